//! Paths that the caller gives instead of resolving the route.

use super::world::{PORT, SECOND, World, addr, errno, ip, param};
use crate::{Errno, EventKind, Id, Path, State};
use oarlock_wire::{CmMessage, FlowLabel, Gid, IbTimeout, Mtu, PKey, Rate, ServiceId};
use std::cell::Cell;
use std::rc::Rc;

/// An identifier whose address is resolved, and the path that its route would have.
fn addressed(world: &mut World) -> (Id, Path) {
    let routed = world.resolved(addr("10.0.0.2", PORT));
    let path = world.a().path(routed);
    let id = world.a().id();
    world.ask(id, addr("10.0.0.2", PORT));
    world.drain();
    world.a().expect(EventKind::ADDR_RESOLVED);
    (id, path)
}

/// R-PATH-7: a path can be given to an identifier with IP addresses; it replaces the route's.
#[test]
fn a_given_path_completes_route_resolution_and_is_the_one_that_is_used() {
    let mut world = World::pair();
    world.b().listener(addr("0.0.0.0", PORT), 0);
    let (id, path) = addressed(&mut world);
    let given = Path {
        service_id: ServiceId(0),
        mtu: Mtu::MTU_512,
        rate: Rate(3),
        packet_life_time: IbTimeout::truncate(14),
        pkey: PKey(0x7FFF),
        av: oarlock_wire::AddressVector {
            hop_limit: 0,
            traffic_class: 0x40,
            flow_label: FlowLabel::truncate(0x12345),
            ..path.av
        },
    };
    let now = world.now();
    world.a().cma.set_path(now, id, given).expect("resolved");
    let event = world.a().expect(EventKind::ROUTE_RESOLVED);
    assert_eq!((event.id, event.status), (id, 0));
    let used = world.a().path(id);
    assert_eq!(
        (used.service_id, used.mtu, used.rate, used.pkey),
        (path.service_id, Mtu::MTU_512, Rate(3), PKey(0x7FFF))
    );
    assert_eq!(
        (used.av.hop_limit, used.av.traffic_class),
        (path.av.hop_limit, 0x40)
    );
    let seen = Rc::new(Cell::new(None));
    let out = Rc::clone(&seen);
    world.tap = Some(Box::new(move |message| {
        if let CmMessage::Req(req) = message {
            let primary = &req.primary;
            out.set(Some((
                req.path_mtu,
                primary.flow_label,
                primary.packet_rate,
            )));
        }
    }));
    world.connect(id, param(0x11));
    assert_eq!(
        seen.take(),
        Some((Mtu::MTU_512, FlowLabel::truncate(0x12345), Rate(3)))
    );
    let request = world.b().expect(EventKind::CONNECT_REQUEST);
    assert_eq!(
        world
            .b()
            .cma
            .query(request.id)
            .expect("taken")
            .path
            .map(|path| path.mtu),
        Some(Mtu::MTU_512)
    );
}

/// R-PATH-10, R-PAR-4: what cannot work is refused at the call, changes nothing, and harms nobody else.
#[test]
fn a_path_that_cannot_work_is_refused() {
    let mut world = World::pair();
    let (id, path) = addressed(&mut world);
    let now = world.now();
    let cases: [(Path, &str); 6] = [
        (
            Path {
                av: oarlock_wire::AddressVector {
                    local: Gid::from_ip(ip("10.0.0.77")),
                    ..path.av
                },
                ..path
            },
            "a path from 10.0.0.77, which is not in the GID table of the identifier's device",
        ),
        (
            Path {
                pkey: PKey(0x8001),
                ..path
            },
            "a path in partition 0x8001: a RoCE port is in 0xffff alone",
        ),
        (
            Path {
                service_id: ServiceId(7),
                ..path
            },
            "a path for service ID 0x0000000000000007, while the destination's is 0x0000000001061d2f: give that one, or 0",
        ),
        (
            Path {
                mtu: Mtu::MTU_2048,
                ..path
            },
            "a path MTU of 2048, while the link carries 1024",
        ),
        (
            Path {
                mtu: Mtu(0),
                ..path
            },
            "a path MTU of mtu code 0, while the link carries 1024",
        ),
        (
            Path {
                mtu: Mtu(9),
                ..path
            },
            "a path MTU of mtu code 9, while the link carries 1024",
        ),
    ];
    for (given, sentence) in cases {
        let refused = world.a().cma.set_path(now, id, given);
        assert_eq!(errno(refused), (Errno::EINVAL, sentence.to_owned()));
        assert_eq!(
            world.a().cma.query(id).expect("exists").state,
            State::AddrResolved
        );
    }
    world.a().expect_nothing();
    world.a().cma.resolve_route(id, SECOND).expect("as before");
}

#[test]
fn a_path_is_for_resolved_addresses_only() {
    let mut world = World::pair();
    let (addressed_id, path) = addressed(&mut world);
    let now = world.now();
    let idle = world.a().id();
    let refused = world.a().cma.set_path(now, idle, path);
    assert_eq!(
        errno(refused),
        (
            Errno::EINVAL,
            "set_path before the identifier has a device (state IDLE): resolve an address first"
                .to_owned()
        )
    );
    world
        .a()
        .cma
        .set_path(now, addressed_id, path)
        .expect("resolved");
    let refused = world.a().cma.set_path(now, addressed_id, path);
    assert_eq!(
        errno(refused).1,
        "set_path in state ROUTE_RESOLVED, which wants ADDR_RESOLVED"
    );
}
