//! Random bytes and random lists of requests: no panic, no identifier that cannot be destroyed.

use std::net::SocketAddr;

use oarlock_cma::Cma;
use oarlock_sim::{Rng, for_each_seed};
use oarlock_ucm::abi::{self, COMMANDS};
use oarlock_ucm::client::{self, IdNumber, JoinNumber};
use oarlock_ucm::{FileId, Owner};

use zerocopy::FromZeros;

use crate::world::{PORT, World, accept_param, address, param};

fn pick<T: Copy>(rng: &mut Rng, from: &[T]) -> T {
    from[rng.index(from.len())]
}

/// A header that is often right, before bytes that are often plausible.
fn request(rng: &mut Rng, id: IdNumber, files: &[FileId]) -> (Vec<u8>, Vec<u8>) {
    let to = (
        address(rng.index(3)),
        pick(rng, &[0, 1, PORT, PORT + 1, 40000]),
    )
        .into();
    let group = SocketAddr::from(([224, 0, 1, rng.below(3) as u8], 0));
    let mut parts = match rng.below(24) {
        0 => client::create_id(
            rng.below(3),
            pick(rng, &[0x106, 0x106, 0x106, 0x111, 0x111, 0x13F, 7]),
            pick(rng, &[2, 3, 4]),
        )
        .into_parts(),
        1 => client::destroy_id(id).into_parts(),
        2 => client::bind(id, to).into_parts(),
        3 => client::resolve_addr(id, None, to, 1000).into_parts(),
        4 => client::resolve_route(id, rng.below(2) as u32).into_parts(),
        5 => client::query_addr(id).into_parts(),
        6 => client::query_path(id).into_parts(),
        7 | 8 => client::connect(id, &param(rng.next_u64() as u32))
            .expect("short")
            .into_parts(),
        9 => client::listen(id, rng.below(3) as i32 - 1).into_parts(),
        10 => client::accept(id, rng.below(3), &accept_param(rng.next_u64() as u32))
            .expect("short")
            .into_parts(),
        11 => client::establish(id).into_parts(),
        12 => client::reject(id, 0, &[1; 8]).expect("short").into_parts(),
        13 => client::disconnect(id).into_parts(),
        14 => client::init_qp_attr(id, rng.below(8) as u32).into_parts(),
        15 | 16 => client::get_event().into_parts(),
        17 => client::set_reuseaddr(id, rng.chance(0.5)).into_parts(),
        19 => client::join_multicast(id, 1, group, rng.below(3) as u16).into_parts(),
        20 => client::leave_multicast(JoinNumber(rng.below(4) as u32)).into_parts(),
        21 => client::write_cm_event(id, pick(rng, &[18, 19, 4]), -1, 7).into_parts(),
        22 => client::set_path(id, &[abi::IbPathRecData::new_zeroed()]).into_parts(),
        18 => client::notify(id, pick(rng, &[4, 6, 3])).into_parts(),
        _ => client::migrate_id(id, pick(rng, files).0).into_parts(),
    };
    if rng.chance(0.1) {
        damage(rng, &mut parts.0);
    }
    parts
}

/// What a program would do next with an identifier in this state.
fn sensible(rng: &mut Rng, host: usize, id: IdNumber, state: &str) -> (Vec<u8>, Vec<u8>) {
    let peer = (address(rng.index(3)), PORT).into();
    match (state, rng.below(2)) {
        ("IDLE", 0) => client::bind(id, (address(host), PORT).into()).into_parts(),
        ("IDLE", _) => client::resolve_addr(id, None, peer, 1000).into_parts(),
        ("ADDR_BOUND", _) => client::listen(id, 4).into_parts(),
        ("ADDR_RESOLVED", _) => client::resolve_route(id, 1000).into_parts(),
        ("ROUTE_RESOLVED", _) => client::connect(id, &param(rng.next_u64() as u32))
            .expect("short")
            .into_parts(),
        ("CONNECT", 0) => {
            let param = accept_param(rng.next_u64() as u32);
            client::accept(id, 1, &param).expect("short").into_parts()
        }
        ("CONNECT", _) => client::establish(id).into_parts(),
        _ => client::get_event().into_parts(),
    }
}

/// A bit flipped, bytes cut off, or nothing but noise behind a header.
fn damage(rng: &mut Rng, request: &mut Vec<u8>) {
    match rng.below(3) {
        0 => {
            let bit = rng.index(request.len() * 8);
            request[bit / 8] ^= 1 << (bit % 8);
        }
        1 => request.truncate(rng.index(request.len())),
        _ => {
            let info = COMMANDS[rng.index(COMMANDS.len())];
            request.resize(8 + info.request, 0);
            request[..4].copy_from_slice(&info.command.0.to_ne_bytes());
            request[4..6].copy_from_slice(&(info.request as u16).to_ne_bytes());
            rng.fill(&mut request[8..]);
            if let Some(offset) = info.command.id_offset() {
                request[8 + offset..8 + offset + 4]
                    .copy_from_slice(&(rng.below(12) as u32).to_ne_bytes());
            }
        }
    }
}

/// Every identifier that has a number can be destroyed, whatever was done to it, and then nothing is left.
fn assert_nothing_is_stuck(w: &mut World) {
    for host in 0..w.hosts.len() {
        loop {
            let Some(info) = w.hosts[host].id_infos(None, |_| 0).next() else {
                break;
            };
            w.ok(
                host,
                FileId(info.channel),
                &client::destroy_id(IdNumber(info.id)),
            );
        }
    }
    w.rest();
    for ucm in &w.hosts {
        let cma: &Cma = ucm.cma();
        assert_eq!(
            (ucm.ids(), ucm.joins(), cma.len(), cma.connections()),
            (0, 0, 0, 0)
        );
        assert!(ucm.ports().is_empty(), "{:?}", ucm.ports());
    }
}

#[test]
fn random_requests_leave_nothing_behind() {
    let mut established = 0;
    for_each_seed(60, |seed| {
        let mut rng = Rng::new(seed);
        let mut w = World::new(3);
        let files: Vec<Vec<FileId>> = (0..3)
            .map(|host| (0..3).map(|_| w.open(host)).collect())
            .collect();
        let mut succeeded = 0;
        for _ in 0..400 {
            let host = rng.index(3);
            let known: Vec<_> = w.hosts[host].id_infos(None, |_| 0).collect();
            // Mostly an identifier on its own channel, half the time with what comes next; at times anything on any.
            let ((bytes, inline), file) = if known.is_empty() || rng.chance(0.1) {
                (
                    client::create_id(1, 0x106, 2).into_parts(),
                    pick(&mut rng, &files[host]),
                )
            } else if rng.chance(0.2) {
                let id = IdNumber(rng.below(12) as u32);
                (
                    request(&mut rng, id, &files[host]),
                    pick(&mut rng, &files[host]),
                )
            } else {
                let info = &known[rng.index(known.len())];
                let parts = match rng.chance(0.5) {
                    true => sensible(&mut rng, host, IdNumber(info.id), &info.state),
                    false => request(&mut rng, IdNumber(info.id), &files[host]),
                };
                (parts, FileId(info.channel))
            };
            succeeded += u32::from(w.errno(host, file, &bytes, &inline) == 0);
            if rng.chance(0.02) {
                w.rest();
            }
        }
        assert!(succeeded > 60, "only {succeeded} requests did anything");
        established += w
            .hosts
            .iter()
            .flat_map(|host| host.id_infos(None, |_| 0))
            .filter(|info| info.state == "CONNECT")
            .count();
        assert_nothing_is_stuck(&mut w);
    });
    assert!(established > 0, "no run got as far as a connection");
}

#[test]
fn random_bytes_never_panic() {
    for_each_seed(20, |seed| {
        let mut rng = Rng::new(seed);
        let mut w = World::new(1);
        let file = w.open(0);
        w.create(0, file, 1);
        for _ in 0..500 {
            let mut bytes = vec![0; rng.index(400)];
            rng.fill(&mut bytes);
            if bytes.len() >= 8 && rng.chance(0.9) {
                // Past the first checks, into each command.
                bytes[..4].copy_from_slice(&(rng.below(25) as u32).to_ne_bytes());
                let len = (bytes.len() - 8) as u16;
                bytes[4..6].copy_from_slice(&len.to_ne_bytes());
            }
            let mut inline = vec![0; rng.index(16)];
            rng.fill(&mut inline);
            w.errno(0, file, &bytes, &inline);
        }
        assert_nothing_is_stuck(&mut w);
    });
}

/// Datagrams of strangers: nothing that arrives makes an identifier that nobody can destroy.
#[test]
fn random_datagrams_never_panic() {
    for_each_seed(20, |seed| {
        let mut rng = Rng::new(seed);
        let mut w = World::new(2);
        let (active, passive) = (w.open(0), w.open(1));
        w.listener(1, passive, 100);
        let id = w.routed(0, active, 1, 1);
        // A true request, caught on the wire, damaged and sent again and again.
        let (bytes, _) = client::connect(id, &param(1)).expect("short").into_parts();
        let now = w.now;
        w.hosts[0]
            .write(now, active, &bytes, &[], &mut Vec::new())
            .expect("routed");
        let caught = w.hosts[0].poll_transmit().expect("a REQ");
        for _ in 0..300 {
            let mut mad = caught.mad;
            for _ in 0..rng.below(4) {
                let bit = rng.index(mad.len() * 8);
                mad[bit / 8] ^= 1 << (bit % 8);
            }
            w.hosts[1].handle_mad(now, &caught.av.reversed(), &mad);
            w.settle();
        }
        while w.event(1, passive).is_some() {}
        assert_nothing_is_stuck(&mut w);
    });
}

#[test]
fn an_owner_that_opens_and_closes_leaves_nothing() {
    let mut w = World::new(1);
    for round in 0..200 {
        let file = w.open(0);
        for _ in 0..5 {
            w.create(0, file, round);
        }
        let now = w.now;
        w.hosts[0].close_all(now, Owner(1));
    }
    assert_eq!(
        (w.hosts[0].files(), w.hosts[0].ids(), w.hosts[0].cma().len()),
        (0, 0, 0)
    );
}
