//! Lists of operations on a pair of communication managers: messages delivered, lost, duplicated, corrupted, calls in any state, time
//! that jumps. Nothing panics, and once all is destroyed and time has passed nothing is left.
#![no_main]

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use oarlock_cm::{AcceptParams, Cm, Config, ConnId, ConnectParams, Event, Seed};
use oarlock_wire::Time;
use oarlock_wire::mad::MAD_LEN;
use oarlock_wire::units::{AddressVector, Gid, IbTimeout, Psn, Qpn, RejReason, ServiceId};

struct Side {
    cm: Cm,
    ids: Vec<ConnId>,
    inbox: VecDeque<[u8; MAD_LEN]>,
}

fn av(local: u8, remote: u8) -> AddressVector {
    let gid = |n| Gid::from_ip(IpAddr::from([10, 0, 0, n]));
    AddressVector::new(gid(local), gid(remote))
}

fuzz_target!(|data: &[u8]| {
    let mut now = Time::ZERO;
    let service = ServiceId(0x0106_1d2f);
    let mut sides = [1u8, 2].map(|n| {
        let config = Config {
            ca_guid: oarlock_wire::units::Guid(n.into()),
            max_connections: 64,
            max_half_open: 32,
            ..Config::default()
        };
        let mut cm = Cm::new(config, Seed([n; 32]));
        cm.listen(service).expect("the first listener");
        Side {
            cm,
            ids: Vec::new(),
            inbox: VecDeque::new(),
        }
    });
    let mut bytes = data.iter().copied();
    while let Some(op) = bytes.next() {
        let me = usize::from(op & 1);
        let arg = bytes.next().unwrap_or(0);
        let path = if me == 0 { av(1, 2) } else { av(2, 1) };
        let side = &mut sides[me];
        let id = (!side.ids.is_empty()).then(|| side.ids[usize::from(arg) % side.ids.len()]);
        match (op >> 1) % 16 {
            0 => {
                let qpn = Qpn::new(u32::from(arg) + 0x10).expect("24 bits");
                let mut params = ConnectParams::new(path, service, qpn, Psn::default());
                if arg & 1 == 1 {
                    params.deadline = Some(Duration::from_millis(500));
                }
                if let Ok(id) = side.cm.connect(now, params) {
                    side.ids.push(id);
                }
            }
            1..=5 if id.is_some() => {
                let id = id.expect("checked");
                let _ = match (op >> 1) % 16 {
                    1 => side.cm.accept(
                        now,
                        id,
                        AcceptParams::new(
                            Qpn::new(u32::from(arg) + 0x400).expect("24 bits"),
                            Psn::default(),
                        ),
                    ),
                    2 => side.cm.establish(now, id, &[]),
                    3 => side.cm.reject(now, id, RejReason(u16::from(arg)), &[], &[]),
                    4 => side.cm.disconnect(now, id, &[]),
                    _ => side.cm.reply_disconnect(now, id, &[]),
                };
            }
            6 if id.is_some() => {
                let _ = side.cm.notify_established(now, id.expect("checked"));
            }
            7 if id.is_some() => {
                let _ = side.cm.send_mra(
                    now,
                    id.expect("checked"),
                    IbTimeout::new(arg & 31).expect("5 bits"),
                );
            }
            8 if id.is_some() => {
                let id = id.expect("checked");
                side.cm.destroy(now, id);
                side.ids.retain(|&other| other != id);
            }
            9 => {
                now = now + Duration::from_millis(u64::from(arg) * 100);
                side.cm.handle_timeout(now);
            }
            10 => {
                side.inbox.pop_front();
            }
            11 => {
                if let Some(mad) = side.inbox.front().copied() {
                    side.inbox.push_back(mad);
                }
            }
            12 => {
                if let Some(mad) = side.inbox.front_mut() {
                    let at = (usize::from(arg) * 2 + usize::from(bytes.next().unwrap_or(0) & 1))
                        % MAD_LEN;
                    mad[at] ^= bytes.next().unwrap_or(1);
                }
            }
            _ => {
                if let Some(mad) = side.inbox.pop_front() {
                    side.cm.handle_mad(now, &path, &mad);
                }
            }
        }
        drain(&mut sides);
    }
    for side in &mut sides {
        side.inbox.clear();
        for id in side.ids.drain(..) {
            side.cm.destroy(now, id);
        }
    }
    for _ in 0..10_000 {
        let Some(at) = sides.iter().filter_map(|side| side.cm.poll_timeout()).min() else {
            break;
        };
        now = now.max(at);
        for side in &mut sides {
            side.cm.handle_timeout(now);
            side.inbox.clear();
        }
        drain(&mut sides);
        for side in &mut sides {
            side.inbox.clear();
            for id in side.ids.drain(..) {
                side.cm.destroy(now, id);
            }
        }
    }
    for side in &sides {
        assert_eq!(side.cm.connections(), 0, "a connection is left");
    }
});

fn drain(sides: &mut [Side; 2]) {
    for me in 0..2 {
        while let Some(transmit) = sides[me].cm.poll_transmit() {
            if sides[1 - me].inbox.len() < 64 {
                sides[1 - me].inbox.push_back(transmit.mad);
            }
        }
        while let Some(event) = sides[me].cm.poll_event() {
            if let Event::ReqReceived { id, .. } = event {
                sides[me].ids.push(id);
            }
        }
    }
}
