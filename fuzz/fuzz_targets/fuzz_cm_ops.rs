//! Lists of operations on a pair of communication managers: both ends call in any state, messages are delivered, lost, duplicated and
//! corrupted, a stranger sends what it has overheard, hosts restart, time stands still or jumps. Nothing panics, limits hold, and once
//! all is destroyed and time has passed nothing is left.
#![no_main]

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use oarlock_cm::{
    AcceptParams, AlternatePathParams, Cm, Config, ConnId, ConnectParams, Event, Seed, SidrParams,
    SidrReplyParams,
};
use oarlock_wire::Time;
use oarlock_wire::mad::MAD_LEN;
use oarlock_wire::units::{
    AddressVector, AprStatus, Gid, Guid, IbTimeout, Psn, Qpn, RejReason, ServiceId, SidrStatus,
};

const SERVICE: ServiceId = ServiceId(0x0106_1d2f);
const MAX_CONNECTIONS: usize = 64;
const MAX_HALF_OPEN: usize = 32;

struct Side {
    cm: Cm,
    ids: Vec<ConnId>,
    inbox: VecDeque<[u8; MAD_LEN]>,
    lives: u8,
}

impl Side {
    fn new(n: u8) -> Self {
        Self {
            cm: manager(n, 0),
            ids: Vec::new(),
            inbox: VecDeque::new(),
            lives: 1,
        }
    }
}

fn manager(n: u8, life: u8) -> Cm {
    let config = Config {
        ca_guid: Guid(n.into()),
        max_connections: MAX_CONNECTIONS,
        max_half_open: MAX_HALF_OPEN,
        // One end repeats as Linux does, the other one as it can be configured to.
        first_wait: (n == 2).then_some(Duration::from_millis(50)),
        retry_spread: if n == 2 { 30 } else { 0 },
        ..Config::default()
    };
    let mut seed = [n; 32];
    seed[0] = life;
    let mut cm = Cm::new(config, Seed(seed));
    cm.listen(SERVICE).expect("the first listener");
    cm
}

fn av(local: u8, remote: u8) -> AddressVector {
    let gid = |n| Gid::from_ip(IpAddr::from([10, 0, 0, n]));
    AddressVector::new(gid(local), gid(remote))
}

fuzz_target!(|data: &[u8]| {
    let mut now = Time::ZERO;
    let mut sides = [Side::new(1), Side::new(2)];
    let mut bytes = data.iter().copied();
    while let Some(op) = bytes.next() {
        let me = usize::from(op & 1);
        let arg = bytes.next().unwrap_or(0);
        operate(&mut sides, me, op >> 1, arg, &mut now, &mut bytes);
        drain(&mut sides);
        for side in &sides {
            assert!(side.cm.connections() <= MAX_CONNECTIONS);
            assert!(side.cm.half_open() <= MAX_HALF_OPEN);
        }
    }
    end(&mut sides, now);
});

fn operate(
    sides: &mut [Side; 2],
    me: usize,
    op: u8,
    arg: u8,
    now: &mut Time,
    bytes: &mut impl Iterator<Item = u8>,
) {
    let path = if me == 0 { av(1, 2) } else { av(2, 1) };
    let side = &mut sides[me];
    let id = (!side.ids.is_empty()).then(|| side.ids[usize::from(arg) % side.ids.len()]);
    match op % 32 {
        0 => {
            // Few queue pairs, so that they are used again.
            let qpn = Qpn::truncate(u32::from(arg % 8) + 0x10);
            let mut params = ConnectParams::new(path, SERVICE, qpn, Psn::default());
            if arg & 0x80 != 0 {
                params.deadline = Some(Duration::from_millis(500));
            }
            if arg & 0x40 != 0 {
                params.alternate = Some(Default::default());
            }
            side.ids.extend(side.cm.connect(*now, params));
        }
        1 => {
            let mut params = SidrParams::new(path, SERVICE);
            params.max_cm_retries = arg & 15;
            if arg & 0x80 != 0 {
                params.deadline = Some(Duration::from_millis(500));
            }
            side.ids.extend(side.cm.sidr_request(*now, params));
        }
        op @ 2..=13 => {
            if let Some(id) = id {
                call(side, id, op, arg, *now);
            }
        }
        14 | 15 => {
            // 0 is a clock that stands still.
            *now += Duration::from_millis(u64::from(arg) * 100);
            side.cm.handle_timeout(*now);
        }
        16 => {
            *now += Duration::from_secs(u64::from(arg) << 20);
            side.cm.handle_timeout(*now);
        }
        17 => {
            side.inbox.pop_front();
        }
        18 => {
            if let Some(mad) = side.inbox.front().copied() {
                side.inbox.push_back(mad);
            }
        }
        19 => {
            if let Some(mad) = side.inbox.front_mut() {
                let at =
                    (usize::from(arg) * 2 + usize::from(bytes.next().unwrap_or(0) & 1)) % MAD_LEN;
                mad[at] ^= bytes.next().unwrap_or(1);
            }
        }
        20 => {
            // What the peer said, from a stranger.
            if let Some(mad) = side.inbox.front().copied() {
                let from = AddressVector::new(path.local, av(1, 99).remote);
                side.cm.handle_mad(*now, &from, &mad);
            }
        }
        21 => {
            // Another message with the names of this one: the ids stay, the attribute changes.
            if let Some(mut mad) = side.inbox.front().copied() {
                mad[17] = 0x10 + arg % 11;
                side.cm.handle_mad(*now, &path, &mad);
            }
        }
        22 => {
            // Reflected: our own message comes back.
            let other = &sides[1 - me];
            if let Some(mad) = other.inbox.front().copied() {
                sides[me].cm.handle_mad(*now, &path, &mad);
            }
        }
        23 => {
            let mut mad = [arg; MAD_LEN];
            mad[..4].copy_from_slice(&[1, 7, 2, 3]);
            mad[16..18].copy_from_slice(&[0, 0x10 + bytes.next().unwrap_or(0) % 11]);
            for place in &mut mad[24..64] {
                *place = bytes.next().unwrap_or(arg);
            }
            side.cm.handle_mad(*now, &path, &mad);
        }
        24 if side.lives < 4 => {
            // A crash: everything is forgotten, the address and the GUID stay.
            let n = if me == 0 { 1 } else { 2 };
            side.cm = manager(n, side.lives);
            side.ids.clear();
            side.lives += 1;
        }
        _ => {
            if let Some(mad) = side.inbox.pop_front() {
                side.cm.handle_mad(*now, &path, &mad);
            }
        }
    }
}

/// A call in whatever state. A refusal is a correct answer.
fn call(side: &mut Side, id: ConnId, op: u8, arg: u8, now: Time) {
    let cm = &mut side.cm;
    let _refused = match op {
        2 => {
            let qpn = Qpn::truncate(u32::from(arg % 8) + 0x400);
            cm.accept(now, id, AcceptParams::new(qpn, Psn::default()))
        }
        3 => cm.establish(now, id, &[]),
        4 => cm.reject(now, id, RejReason(arg.into()), &[arg], &[]),
        5 => cm.disconnect(now, id, &[]),
        6 => cm.reply_disconnect(now, id, &[]),
        7 => cm.notify_established(now, id),
        8 => cm.send_mra(now, id, IbTimeout::truncate(arg & 31)),
        9 => cm.sidr_reply(now, id, SidrReplyParams::refusal(SidrStatus(arg))),
        10 => cm.load_alternate_path(now, id, AlternatePathParams::new(Default::default())),
        11 => cm.answer_alternate_path(now, id, AprStatus(arg), &[arg], &[]),
        12 => cm.drop_request(now, id),
        _ => {
            cm.destroy(now, id);
            Ok(())
        }
    };
    if cm.state(id).is_none() {
        side.ids.retain(|other| *other != id);
    }
}

/// Destroys everything, lets all time pass, and looks whether something is left.
fn end(sides: &mut [Side; 2], mut now: Time) {
    for _ in 0..10_000 {
        for side in sides.iter_mut() {
            side.inbox.clear();
            for id in side.ids.drain(..) {
                side.cm.destroy(now, id);
            }
        }
        drain(sides);
        let Some(at) = sides.iter().filter_map(|side| side.cm.poll_timeout()).min() else {
            break;
        };
        now = now.max(at);
        for side in sides.iter_mut() {
            side.cm.handle_timeout(now);
        }
    }
    for side in sides {
        assert_eq!(side.cm.connections(), 0, "a connection is left");
        assert_eq!(side.cm.half_open(), 0, "a half-open connection is left");
    }
}

fn drain(sides: &mut [Side; 2]) {
    for me in 0..2 {
        while let Some(transmit) = sides[me].cm.poll_transmit() {
            if sides[1 - me].inbox.len() < 64 {
                sides[1 - me].inbox.push_back(transmit.mad);
            }
        }
        while let Some(event) = sides[me].cm.poll_event() {
            if let Event::ReqReceived { id, .. } | Event::SidrReqReceived { id, .. } = event {
                sides[me].ids.push(id);
            }
        }
    }
}
