//! Management datagrams for a communication manager that has a connection or resolution in every state: what a host on the network
//! can send. Nothing panics, memory stays bounded, and once all is destroyed nothing is left.
//!
//! The input is a list of records: which connection is meant, which message, how its names are filled in, and bytes to put over the
//! rest. So the fuzzer need not guess comm ids, which are random.
#![no_main]

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
    AddressVector, AprStatus, Gid, Guid, IbTimeout, Psn, QKey, Qpn, RejReason, ServiceId,
};

const SERVICE: ServiceId = ServiceId(0x0106_1d2f);
/// The first and the last attribute ID of communication management.
const ATTRIBUTES: std::ops::RangeInclusive<u8> = 0x10..=0x1A;
const MAX_CONNECTIONS: usize = 256;
/// In a record: not a datagram but a call, or time.
const DECISION: u8 = 0xC0;
const MAX_HALF_OPEN: usize = 64;

fn av(local: u8, remote: u8) -> AddressVector {
    let gid = |n| Gid::from_ip(IpAddr::from([10, 0, 0, n]));
    AddressVector::new(gid(local), gid(remote))
}

fn manager(n: u8) -> Cm {
    let config = Config {
        ca_guid: Guid(n.into()),
        max_connections: MAX_CONNECTIONS,
        max_half_open: MAX_HALF_OPEN,
        ..Config::default()
    };
    let mut cm = Cm::new(config, Seed([n; 32]));
    cm.listen(SERVICE).expect("the first listener");
    cm
}

/// Two managers on a perfect network; the second is the one under attack.
struct World {
    cms: [Cm; 2],
    now: Time,
    ids: [Vec<ConnId>; 2],
}

impl World {
    fn deliver(&mut self) {
        for _ in 0..8 {
            for me in 0..2 {
                while let Some(transmit) = self.cms[me].poll_transmit() {
                    self.cms[1 - me].handle_mad(self.now, &transmit.av.reversed(), &transmit.mad);
                }
            }
        }
    }

    /// A connection of which the attacked manager is the side `side`, as far as `stage`.
    fn connection(&mut self, side: usize, stage: u8, qpn: u32) {
        let (now, active, passive) = (self.now, side, 1 - side);
        let path = if active == 0 { av(1, 2) } else { av(2, 1) };
        let qp = |n| Qpn::truncate(n);
        let params = ConnectParams::new(path, SERVICE, qp(qpn), Psn::default());
        let id = self.cms[active].connect(now, params).expect("room");
        self.ids[active].push(id);
        if stage == 0 {
            while self.cms[active].poll_transmit().is_some() {}
            return;
        }
        self.deliver();
        let Some(Event::ReqReceived { id: peer, .. }) = self.cms[passive].poll_event() else {
            panic!("a perfect network")
        };
        self.ids[passive].push(peer);
        if stage == 1 {
            return;
        }
        let params = AcceptParams::new(qp(qpn + 0x1000), Psn::default());
        self.cms[passive].accept(now, peer, params).expect("waits");
        self.deliver();
        if stage == 2 {
            return;
        }
        self.cms[active].establish(now, id, &[]).expect("waits");
        self.deliver();
        let attacked = if side == 1 { id } else { peer };
        let other = if side == 1 { peer } else { id };
        let path = || AlternatePathParams::new(Default::default());
        let done = match stage {
            4 => self.cms[1].load_alternate_path(now, attacked, path()),
            5 => self.cms[0].load_alternate_path(now, other, path()),
            6 => self.cms[1].disconnect(now, attacked, &[]),
            7 => self.cms[0].disconnect(now, other, &[]),
            _ => Ok(()),
        };
        done.expect("established");
        self.deliver();
    }

    fn resolutions(&mut self) {
        let now = self.now;
        for (side, path) in [(0, av(1, 2)), (1, av(2, 1))] {
            let params = SidrParams::new(path, SERVICE);
            let id = self.cms[side].sidr_request(now, params).expect("room");
            self.ids[side].push(id);
        }
        self.deliver();
    }
}

/// A manager with something in every state, and the ids of it all.
fn world() -> World {
    let mut world = World {
        cms: [manager(1), manager(2)],
        now: Time::ZERO,
        ids: [Vec::new(), Vec::new()],
    };
    let mut qpn = 0x10;
    for side in 0..2 {
        for stage in 0..8 {
            world.connection(side, stage, qpn);
            qpn += 1;
            for cm in &mut world.cms {
                while cm.poll_event().is_some() {}
            }
        }
    }
    world.resolutions();
    world
}

fuzz_target!(|data: &[u8]| {
    let mut world = world();
    let mut rest = data;
    while let [who, what, how, length, tail @ ..] = rest {
        let (body, next) = tail.split_at(tail.len().min(usize::from(*length)));
        rest = next;
        let is_datagram = *how & DECISION != DECISION;
        attack(&mut world, *who, *what, *how, body);
        let cm = &mut world.cms[1];
        assert!(cm.connections() <= MAX_CONNECTIONS && cm.half_open() <= MAX_HALF_OPEN);
        let mut sent = 0;
        while cm.poll_transmit().is_some() {
            sent += 1;
        }
        assert!(sent <= 2 || !is_datagram, "one datagram makes {sent}");
        while let Some(event) = cm.poll_event() {
            if let Event::ReqReceived { id, .. } | Event::SidrReqReceived { id, .. } = event {
                world.ids[1].push(id);
            }
        }
    }
    let now = world.now;
    let cm = &mut world.cms[1];
    for id in world.ids[1].drain(..) {
        cm.destroy(now, id);
    }
    // Whoever came in the last seconds before the end is known only by its event.
    while let Some(event) = cm.poll_event() {
        cm.destroy(now, event.id());
    }
    assert_eq!((cm.connections(), cm.half_open()), (0, 0));
    assert_eq!(cm.poll_timeout(), None, "no timer is left");
});

/// One datagram, or one decision of the program, or time that passes.
fn attack(world: &mut World, who: u8, what: u8, how: u8, body: &[u8]) {
    let id = world.ids[1][usize::from(who) % world.ids[1].len()];
    let peer = world.ids[0].get(usize::from(who)).copied();
    if how & DECISION == DECISION {
        return decide(world, id, what, how);
    }
    let mut mad = [0; MAD_LEN];
    mad[..4].copy_from_slice(&[1, 7, 2, 3]);
    let count = ATTRIBUTES.end() - ATTRIBUTES.start() + 1;
    mad[17] = ATTRIBUTES.start() + what % count;
    for (place, byte) in mad[24..].iter_mut().zip(body) {
        *place = *byte;
    }
    let local = world.cms[1].comm_id(id).unwrap_or_default().0.to_be_bytes();
    let remote = peer
        .and_then(|id| world.cms[0].comm_id(id))
        .unwrap_or_default();
    // The sender's comm id, then the receiver's; a SIDR_REP names the receiver's first.
    if how & 1 != 0 {
        mad[24..28].copy_from_slice(&remote.0.to_be_bytes());
    }
    if how & 2 != 0 {
        mad[28..32].copy_from_slice(&local);
    }
    if how & 4 != 0 {
        mad[24..28].copy_from_slice(&local);
    }
    if how & 8 != 0 {
        // The service ID of a REQ and SIDR_REQ.
        mad[32..40].copy_from_slice(&SERVICE.0.to_be_bytes());
    }
    if how & 16 != 0 {
        // The GUID of the peer and the path of a REQ.
        mad[40..48].copy_from_slice(&1u64.to_be_bytes());
        let path = av(2, 1);
        mad[80..96].copy_from_slice(&path.remote.0);
        mad[96..112].copy_from_slice(&path.local.0);
    }
    let from = if how & 32 != 0 { av(2, 99) } else { av(2, 1) };
    let now = world.now;
    world.cms[1].handle_mad(now, &from, &mad);
}

fn decide(world: &mut World, id: ConnId, what: u8, how: u8) {
    let now = world.now;
    let cm = &mut world.cms[1];
    let timeout = IbTimeout::truncate(how & 31);
    // A refusal is a correct answer.
    let _refused = match what % 14 {
        0 => cm.accept(
            now,
            id,
            AcceptParams::new(Qpn::truncate(0x5000), Psn::default()),
        ),
        1 => cm.establish(now, id, &[]),
        2 => cm.reject(now, id, RejReason(how.into()), &[how], &[]),
        3 => cm.send_mra(now, id, timeout),
        4 => cm.disconnect(now, id, &[]),
        5 => cm.reply_disconnect(now, id, &[]),
        6 => cm.drop_request(now, id),
        7 => cm.sidr_reply(now, id, SidrReplyParams::success(Qpn::truncate(9), QKey(1))),
        8 => cm.load_alternate_path(now, id, AlternatePathParams::new(Default::default())),
        9 => cm.answer_alternate_path(now, id, AprStatus(how), &[], &[]),
        10 => cm.notify_established(now, id),
        11 => {
            cm.destroy(now, id);
            Ok(())
        }
        _ => {
            world.now = now + Duration::from_millis(u64::from(how) * 50);
            cm.handle_timeout(world.now);
            Ok(())
        }
    };
}
