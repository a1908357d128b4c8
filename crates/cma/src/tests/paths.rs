//! Route resolution: the path.

use super::world::{Host, PORT, SECOND, World, addr, device, errno, loopback};
use crate::{Config, Errno, Error, EventKind, IdOption, State};
use oarlock_sim::NetworkConfig;
use oarlock_wire::{FlowLabel, Mtu, ServiceId};
use std::time::Duration;

#[test]
fn the_path_is_the_one_that_linux_would_take() {
    let mut world = World::pair();
    let id = world.a().bound(addr("10.0.0.1", 5000)).expect("free");
    world
        .a()
        .cma
        .set_option(id, IdOption::TypeOfService(0x68))
        .expect("any state");
    world.resolve(0, id, None, addr("10.0.0.2", PORT));
    assert_eq!(world.a().asked[0].tos, 0x68);
    let path = world.a().path(id);
    assert_eq!(path.mtu, Mtu::MTU_1024);
    assert_eq!(path.packet_life_time.get(), 16);
    assert_eq!(
        path.av.flow_label,
        FlowLabel::truncate(5000 * 31 + u32::from(PORT))
    );
    assert_eq!((path.av.traffic_class, path.av.hop_limit), (0x68, 64));
    assert_eq!(path.service_id, ServiceId(0x0106_0000 + u64::from(PORT)));
}

/// Public fault 37: given before the route is resolved, it decides the packet life time as well.
#[test]
fn an_ack_timeout_given_early_shortens_the_packet_life_time() {
    let mut world = World::pair();
    let id = world.a().id();
    world
        .a()
        .cma
        .set_option(id, IdOption::AckTimeout(14))
        .expect("RC");
    world.resolve(0, id, None, addr("10.0.0.2", PORT));
    assert_eq!(world.a().path(id).packet_life_time.get(), 13);
}

#[test]
fn resolve_route_wants_a_timeout_an_address_and_a_link_that_is_wide_enough() {
    let devices = vec![device(0, 351, &["10.0.0.1"]), loopback(1)];
    let mut world = World::of(
        vec![Host::new(Config::default(), 1, devices)],
        NetworkConfig::default(),
        1,
    );
    let id = world.a().id();
    let sentence =
        "resolve_route before the identifier has a device (state IDLE): resolve an address first";
    assert_eq!(
        errno(world.a().cma.resolve_route(id, SECOND)),
        (Errno::EINVAL, sentence.to_owned())
    );
    world.ask(id, addr("10.0.0.2", PORT));
    world.drain();
    world.a().expect(EventKind::ADDR_RESOLVED);
    let zero = world.a().cma.resolve_route(id, Duration::ZERO);
    assert_eq!(
        zero,
        Err(Error::ZeroTimeout {
            call: "resolve_route"
        })
    );
    let narrow = world.a().cma.resolve_route(id, SECOND);
    assert_eq!(
        errno(narrow),
        (
            Errno::EINVAL,
            "a link MTU of 351 bytes carries no RDMA path: 352 is the least".to_owned()
        )
    );
    assert_eq!(
        world.a().cma.query(id).expect("exists").state,
        State::AddrResolved
    );
}

#[test]
fn ten_thousand_resolutions_to_one_service_get_ports_of_their_own() {
    let mut world = World::pair();
    let mut seen = std::collections::HashSet::new();
    for _ in 0..10_000 {
        let id = world.resolved(addr("127.0.0.1", PORT));
        assert!(seen.insert(world.a().cma.query(id).expect("exists").local));
    }
}
