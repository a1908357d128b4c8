//! Destinations on the own host.

use super::world::{Host, PORT, SECOND, World, addr, errno, ip, param};
use crate::{Config, Counter, Errno, EventKind, LoopbackRule, State};
use oarlock_sim::NetworkConfig;
use oarlock_wire::{Gid, Mtu, Time};

/// Public fault 50.
#[test]
fn a_loopback_destination_takes_the_loopback_device_and_no_lookup() {
    let mut world = World::pair();
    for (destination, local) in [
        ("127.0.0.1", "127.0.0.1"),
        ("127.0.0.9", "127.0.0.1"),
        ("::1", "::1"),
    ] {
        let id = world.resolved(addr(destination, PORT));
        let query = world.a().cma.query(id).expect("exists");
        assert_eq!(query.device.expect("bound").index, 1);
        assert_eq!(query.local.expect("bound").ip(), ip(local));
        assert_eq!(query.remote, Some(addr(destination, PORT)));
        let av = query.av.expect("resolved");
        // Both GIDs stand in the device's table, whichever loopback address was asked for.
        assert_eq!(
            (av.local.to_ip(), av.remote.to_ip()),
            (ip(local), ip(local))
        );
        assert_eq!(query.path.expect("resolved").mtu, Mtu::MTU_4096);
    }
    let id = world.resolved(addr("0.0.0.0", PORT));
    assert_eq!(
        world.a().cma.query(id).expect("exists").remote,
        Some(addr("127.0.0.1", PORT))
    );
    assert_eq!(world.a().cma.counters().get(Counter::Lookups), 0);
}

#[test]
fn the_kernels_loopback_rule_takes_the_first_device_and_its_first_gid() {
    let config = Config {
        loopback: LoopbackRule::FirstDevice,
        ..Config::default()
    };
    let mut world = World::with(&[config]);
    let id = world.resolved(addr("127.0.0.1", PORT));
    let query = world.a().cma.query(id).expect("exists");
    assert_eq!(query.device.expect("bound").index, 0);
    assert_eq!(query.local.expect("bound").ip(), ip("127.0.0.1"));
    let av = query.av.expect("resolved");
    assert_eq!(
        (av.local.to_ip(), av.remote.to_ip()),
        (ip("10.0.0.1"), ip("10.0.0.1"))
    );
    // And a request over it finds a listener on the loopback address.
    world.a().listener(addr("127.0.0.1", PORT), 0);
    world.connect(id, param(0x11));
    let event = world.a().expect(EventKind::CONNECT_REQUEST);
    assert_eq!(
        world.a().cma.query(event.id).expect("taken").local,
        Some(addr("127.0.0.1", PORT))
    );
}

#[test]
fn without_any_device_a_loopback_destination_is_refused() {
    let mut world = World::of(
        vec![Host::new(Config::default(), 1, vec![])],
        NetworkConfig::default(),
        1,
    );
    let id = world.a().id();
    let refused = world
        .a()
        .cma
        .resolve_addr(Time::ZERO, id, None, addr("127.0.0.1", 1), SECOND);
    assert_eq!(
        errno(refused),
        (Errno::ENODEV, "this host has no RDMA device".to_owned())
    );
    assert_eq!(
        world.a().cma.query(id).expect("exists").state,
        State::AddrBound
    );
}

/// Public fault 50.
#[test]
fn an_own_address_is_reached_from_itself() {
    let mut world = World::pair();
    let id = world.resolved(addr("10.0.0.1", PORT));
    let query = world.a().cma.query(id).expect("exists");
    let av = query.av.expect("resolved");
    assert_eq!(
        (av.local, av.remote),
        (Gid::from_ip(ip("10.0.0.1")), Gid::from_ip(ip("10.0.0.1")))
    );
    // The route through the loopback interface has a large MTU; the device's own is what counts.
    assert_eq!(query.path.expect("resolved").mtu, Mtu::MTU_1024);
}

#[test]
fn from_a_loopback_address_to_an_own_one_the_smaller_mtu_counts() {
    let mut world = World::pair();
    let id = world.a().id();
    world.resolve(0, id, Some(addr("127.0.0.1", 0)), addr("10.0.0.1", PORT));
    let path = world.a().path(id);
    assert_eq!(path.av.local, Gid::from_ip(ip("127.0.0.1")));
    assert_eq!(path.mtu, Mtu::MTU_1024);
}

#[test]
fn a_loopback_source_does_not_leave_the_host() {
    let mut world = World::pair();
    let id = world.a().id();
    let now = world.now();
    world
        .a()
        .cma
        .resolve_addr(
            now,
            id,
            Some(addr("127.0.0.1", 0)),
            addr("10.0.0.2", 1),
            SECOND,
        )
        .expect("may try");
    world.drain();
    assert_eq!(
        world.a().expect(EventKind::ADDR_ERROR).status,
        Errno::ENETUNREACH.as_status()
    );
}
