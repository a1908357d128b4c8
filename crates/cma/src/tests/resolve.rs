//! Binding, address resolution, route resolution.

use super::world::{Host, Lookups, PORT, SECOND, World, addr, device, ip, loopback, param, scoped};
use crate::{
    Config, Counter, Errno, Error, EventKind, Id, IdOption, LookupError, LoopbackRule, PortSpace,
    QpType, Route, State,
};
use oarlock_sim::NetworkConfig;
use oarlock_wire::{FlowLabel, Gid, Mtu, ServiceId, Time};
use std::time::Duration;

fn errno<T: std::fmt::Debug>(result: Result<T, Error>) -> (Errno, String) {
    let error = result.expect_err("must be refused");
    (error.errno(), error.to_string())
}

fn bound(host: &mut Host, address: std::net::SocketAddr) -> Result<Id, Error> {
    let id = host.id();
    host.cma.bind_addr(id, address).map(|()| id)
}

#[test]
fn binding_a_specific_address_binds_the_device_and_any_or_loopback_does_not() {
    let mut world = World::pair();
    let device_of = |host: &mut Host, address: &str| {
        let id = bound(host, addr(address, 0)).expect("binds");
        let query = host.cma.query(id).expect("exists");
        assert_eq!(query.state, State::AddrBound);
        assert_ne!(query.local.expect("bound").port(), 0);
        query.device.map(|device| device.index)
    };
    assert_eq!(device_of(world.a(), "10.0.0.1"), Some(0));
    assert_eq!(device_of(world.a(), "fd00::1"), Some(0));
    for address in ["0.0.0.0", "::", "127.0.0.1", "127.9.9.9", "::1"] {
        assert_eq!(device_of(world.a(), address), None, "{address}");
    }
}

#[test]
fn what_cannot_be_bound_says_why() {
    let mut world = World::pair();
    let host = world.a();
    host.cma
        .set_addresses_without_device(vec![ip("192.168.7.7")]);
    let cases = [
        (
            addr("10.0.0.77", 0),
            Errno::EADDRNOTAVAIL,
            "10.0.0.77 is not an address of this host",
        ),
        (
            addr("192.168.7.7", 0),
            Errno::ENODEV,
            "192.168.7.7 is a local address without an RDMA device",
        ),
        (
            addr("fe80::1", 0),
            Errno::EINVAL,
            "link-local address fe80::1 without a scope: say which interface, as in fe80::1%2",
        ),
        (
            scoped("fe80::1", 0, 9),
            Errno::EADDRNOTAVAIL,
            "fe80::1 is not an address of this host",
        ),
        (
            addr("::ffff:10.0.0.1", 0),
            Errno::EADDRNOTAVAIL,
            "::ffff:10.0.0.1 is an IPv4-mapped address: give the IPv4 address",
        ),
        (
            addr("10.0.0.1", 80),
            Errno::EACCES,
            "port 80 is below 1024, which needs the privilege to bind such ports",
        ),
    ];
    for (address, number, sentence) in cases {
        let id = host.id();
        assert_eq!(
            errno(host.cma.bind_addr(id, address)),
            (number, sentence.to_owned())
        );
        assert_eq!(
            host.cma.query(id).expect("exists").state,
            State::Idle,
            "{address} changed something"
        );
        assert_eq!(
            host.cma.bind_addr(id, addr("10.0.0.1", 0)),
            Ok(()),
            "still idle after {address}"
        );
    }
    assert!(bound(host, scoped("fe80::1", 0, 2)).is_ok());
    let id = bound(host, addr("10.0.0.1", 5000)).expect("free");
    let again = host.cma.bind_addr(id, addr("10.0.0.1", 5001));
    assert_eq!(
        errno(again),
        (
            Errno::EINVAL,
            "bind_addr in state ADDR_BOUND, which wants IDLE".to_owned()
        )
    );
    assert_eq!(
        errno(bound(host, addr("10.0.0.1", 5000))).0,
        Errno::EADDRINUSE
    );
    assert_eq!(
        errno(bound(host, addr("0.0.0.0", 5000))).0,
        Errno::EADDRNOTAVAIL
    );
}

#[test]
fn a_channel_may_be_allowed_to_bind_low_ports() {
    let mut world = World::pair();
    let channel = world.a().channel;
    world
        .a()
        .cma
        .allow_privileged_ports(channel, true)
        .expect("exists");
    assert!(bound(world.a(), addr("10.0.0.1", 80)).is_ok());
    let config = Config {
        privileged_ports: true,
        ..Config::default()
    };
    let mut world = World::with(&[config]);
    assert!(bound(world.a(), addr("10.0.0.1", 80)).is_ok());
}

#[test]
fn af_only_follows_the_family_the_configuration_and_the_option() {
    let mut world = World::pair();
    let host = world.a();
    bound(host, addr("0.0.0.0", 5000)).expect("free");
    // bindv6only is off: an IPv6 wildcard stands for IPv4 too.
    assert_eq!(errno(bound(host, addr("::", 5000))).0, Errno::EADDRNOTAVAIL);
    let id = host.id();
    host.cma
        .set_option(id, IdOption::AfOnly(true))
        .expect("idle");
    assert_eq!(host.cma.bind_addr(id, addr("::", 5000)), Ok(()));

    let mut world = World::with(&[Config {
        bindv6only: true,
        ..Config::default()
    }]);
    bound(world.a(), addr("0.0.0.0", 5000)).expect("free");
    assert!(bound(world.a(), addr("::", 5000)).is_ok());
}

#[test]
fn options_change_only_where_they_still_mean_something() {
    let mut world = World::pair();
    let host = world.a();
    let listener = host.listener(addr("10.0.0.1", PORT), 0);
    let bound = bound(host, addr("10.0.0.1", 0)).expect("free");
    let set = |host: &mut Host, id, option| {
        host.cma
            .set_option(id, option)
            .map_err(|error| error.errno())
    };
    assert_eq!(
        set(host, listener, IdOption::ReuseAddr(true)),
        Err(Errno::EINVAL)
    );
    assert_eq!(set(host, bound, IdOption::ReuseAddr(true)), Ok(()));
    assert_eq!(
        set(host, bound, IdOption::ReuseAddr(false)),
        Err(Errno::EINVAL)
    );
    assert_eq!(set(host, bound, IdOption::AfOnly(false)), Ok(()));
    assert_eq!(
        set(host, listener, IdOption::AfOnly(false)),
        Err(Errno::EINVAL)
    );
    assert_eq!(set(host, bound, IdOption::AckTimeout(31)), Ok(()));
    let refused = host.cma.set_option(bound, IdOption::AckTimeout(32));
    assert_eq!(
        errno(refused),
        (
            Errno::EINVAL,
            "option ACK_TIMEOUT of 32, at most 31".to_owned()
        )
    );
    assert_eq!(
        set(host, bound, IdOption::MinRnrTimer(32)),
        Err(Errno::EINVAL)
    );
    assert_eq!(
        set(host, bound, IdOption::MaxCmRetries(16)),
        Err(Errno::EINVAL)
    );
    assert_eq!(set(host, listener, IdOption::TypeOfService(8)), Ok(()));
}

#[test]
fn other_port_spaces_are_refused_by_name() {
    let mut world = World::pair();
    let host = world.a();
    let mut create =
        |port_space| errno(host.cma.create_id(host.channel, port_space, QpType::UD, 0));
    let sentence = "port space UDP (0x0111) is not implemented; TCP (0x0106) is".to_owned();
    assert_eq!(create(PortSpace::UDP), (Errno::ENOSYS, sentence));
    assert_eq!(create(PortSpace::IPOIB).0, Errno::ENOSYS);
    assert_eq!(create(PortSpace::IB).0, Errno::ENOSYS);
    assert_eq!(
        create(PortSpace(0x999)),
        (Errno::EINVAL, "there is no port space 0x0999".to_owned())
    );
    let id = host
        .cma
        .create_id(host.channel, PortSpace::TCP, QpType::UD, 0)
        .expect("TCP");
    assert_eq!(host.cma.query(id).expect("exists").qp_type, QpType::RC);
}

/// R-ADDR-1: without a source, the source is the one that the route lookup gives.
#[test]
fn without_a_source_the_lookup_gives_it() {
    let mut world = World::pair();
    let id = world.resolved(addr("10.0.0.2", PORT));
    assert_eq!(world.a().asked[0].source, None);
    let query = world.a().cma.query(id).expect("exists");
    let local = query.local.expect("bound");
    assert_eq!(local.ip(), ip("10.0.0.1"));
    assert!((32_768..=60_999).contains(&local.port()), "{local}");
    assert_eq!(query.remote, Some(addr("10.0.0.2", PORT)));
    assert_eq!(query.device.expect("bound").index, 0);
    let av = query.av.expect("resolved");
    assert_eq!(
        (av.local.to_ip(), av.remote.to_ip(), av.scope_id),
        (ip("10.0.0.1"), ip("10.0.0.2"), 0)
    );
}

/// R-ADDR-1: an explicit source and a bind beforehand are respected; several sources may fit.
#[test]
fn an_explicit_source_and_a_bind_beforehand_are_respected() {
    let devices = vec![device(0, 1500, &["10.0.0.1", "10.0.0.11", "10.0.0.12"])];
    let hosts = vec![Host::new(Config::default(), 1, devices)];
    let mut world = World::of(hosts, NetworkConfig::default(), 1);
    let local = |world: &mut World, id| {
        world
            .a()
            .cma
            .query(id)
            .expect("exists")
            .local
            .expect("bound")
    };
    let id = world.a().id();
    world.resolve(0, id, Some(addr("10.0.0.11", 0)), addr("10.0.0.2", PORT));
    assert_eq!(local(&mut world, id).ip(), ip("10.0.0.11"));
    let id = bound(world.a(), addr("10.0.0.12", 5000)).expect("free");
    // The identifier is bound already: a source given now has no effect.
    world.resolve(0, id, Some(addr("10.0.0.11", 0)), addr("10.0.0.2", PORT));
    assert_eq!(local(&mut world, id), addr("10.0.0.12", 5000));
    let sources: Vec<_> = world.a().asked.iter().map(|lookup| lookup.source).collect();
    assert_eq!(sources, [Some(ip("10.0.0.11")), Some(ip("10.0.0.12"))]);
}

/// R-ADDR-2: one lookup per connection, and the connection is bound to it.
#[test]
fn one_lookup_serves_the_whole_connection() {
    let mut world = World::pair();
    world.b().listener(addr("0.0.0.0", PORT), 0);
    let id = world.resolved(addr("10.0.0.2", PORT));
    let before = world.a().cma.query(id).expect("exists").path;
    // The routing table changes: every later answer would be another one.
    world.a().devices[0].addresses.insert(0, ip("10.0.0.99"));
    let now = world.now();
    world.a().cma.connect(now, id, param(0x11)).expect("a path");
    world.settle();
    let child = world.b().expect(EventKind::CONNECT_REQUEST).id;
    world
        .b()
        .cma
        .accept(now, child, None, crate::ConnectParam::default())
        .expect("waits");
    world.settle();
    world.a().expect(EventKind::CONNECT_RESPONSE);
    world
        .a()
        .cma
        .establish(now, id)
        .expect("the response is there");
    world.settle();
    world.b().expect(EventKind::ESTABLISHED);
    assert_eq!(world.a().cma.query(id).expect("exists").path, before);
    assert_eq!((world.a().asked.len(), world.b().asked.len()), (1, 0));
    assert_eq!(world.a().cma.counters().get(Counter::Lookups), 1);
}

#[test]
fn ipv6_is_resolved_like_ipv4() {
    let mut world = World::pair();
    let id = world.resolved(addr("fd00::2", PORT));
    let query = world.a().cma.query(id).expect("exists");
    assert_eq!(query.local.expect("bound").ip(), ip("fd00::1"));
    assert_eq!(
        query.av.expect("resolved").remote,
        Gid::from_ip(ip("fd00::2"))
    );
}

#[test]
fn a_link_local_destination_brings_its_interface() {
    let mut world = World::pair();
    let id = world.a().id();
    let now = world.now();
    let refused = world
        .a()
        .cma
        .resolve_addr(now, id, None, addr("fe80::2", PORT), SECOND);
    let sentence =
        "link-local address fe80::2 without a scope: say which interface, as in fe80::1%2";
    assert_eq!(errno(refused), (Errno::EINVAL, sentence.to_owned()));
    world.resolve(0, id, None, scoped("fe80::2", PORT, 2));
    assert_eq!(world.a().asked[0].scope_id, 2);
    let query = world.a().cma.query(id).expect("exists");
    let local = query.local.expect("bound");
    assert_eq!(local, scoped("fe80::1", local.port(), 2));
    assert_eq!(query.av.expect("resolved").scope_id, 2);

    let other = bound(world.a(), scoped("fe80::1", 0, 2)).expect("free");
    let refused = world
        .a()
        .cma
        .resolve_addr(now, other, None, scoped("fe80::2", PORT, 3), SECOND);
    assert_eq!(
        refused,
        Err(Error::ScopeMismatch {
            bound: 2,
            destination: 3
        })
    );
}

#[test]
fn a_connection_between_link_local_addresses_comes_about() {
    let mut world = World::pair();
    world.b().listener(scoped("fe80::2", PORT, 2), 0);
    let id = world.a().id();
    world.resolve(0, id, None, scoped("fe80::2", PORT, 2));
    let now = world.now();
    world.a().cma.connect(now, id, param(0x11)).expect("a path");
    world.settle();
    let child = world.b().expect(EventKind::CONNECT_REQUEST).id;
    let query = world.b().cma.query(child).expect("taken");
    assert_eq!(query.local, Some(scoped("fe80::2", PORT, 2)));
    assert_eq!(query.remote.map(|remote| remote.ip()), Some(ip("fe80::1")));
}

#[test]
fn families_do_not_mix() {
    let mut world = World::pair();
    let now = world.now();
    let id = bound(world.a(), addr("10.0.0.1", 0)).expect("free");
    let refused = world
        .a()
        .cma
        .resolve_addr(now, id, None, addr("fd00::2", 1), SECOND);
    let sentence = "local address 10.0.0.1 and destination fd00::2 are of different families";
    assert_eq!(errno(refused), (Errno::EINVAL, sentence.to_owned()));
    let mapped = world.a().id();
    let refused = world
        .a()
        .cma
        .resolve_addr(now, mapped, None, addr("::ffff:10.0.0.2", 1), SECOND);
    assert_eq!(
        refused,
        Err(Error::MappedAddress {
            address: ip("::ffff:10.0.0.2")
        })
    );
}

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
    let now = world.now();
    world.a().cma.connect(now, id, param(0x11)).expect("a path");
    world.settle();
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
    let path = world
        .a()
        .cma
        .query(id)
        .expect("exists")
        .path
        .expect("resolved");
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

#[test]
fn a_lookup_that_fails_is_an_event_and_may_be_tried_again() {
    let mut world = World::pair();
    let id = world.a().id();
    let now = world.now();
    world.a().lookups = Lookups::Kept;
    world
        .a()
        .cma
        .resolve_addr(now, id, None, addr("10.0.0.2", PORT), SECOND)
        .expect("may try");
    world.drain();
    let token = world.a().asked[0].token;
    let failure = Err(LookupError::Unreachable(Errno::EHOSTUNREACH));
    world.a().cma.handle_lookup(now, token, failure);
    let event = world.a().expect(EventKind::ADDR_ERROR);
    assert_eq!((event.id, event.status), (id, -113));
    assert_eq!(
        world.a().cma.query(id).expect("exists").state,
        State::AddrBound
    );
    // The answer comes again: nobody waits for it.
    world.a().cma.handle_lookup(now, token, failure);
    world.a().expect_nothing();
    assert_eq!(world.a().cma.counters().get(Counter::LookupsStale), 1);
    world.a().lookups = Lookups::Answered;
    world.resolve(0, id, None, addr("10.0.0.2", PORT));
}

#[test]
fn a_lookup_without_an_answer_times_out_once() {
    let mut world = World::pair();
    world.a().lookups = Lookups::Kept;
    let id = world.a().id();
    let now = world.now();
    world
        .a()
        .cma
        .resolve_addr(now, id, None, addr("10.0.0.2", PORT), SECOND)
        .expect("may try");
    let busy = world
        .a()
        .cma
        .resolve_addr(now, id, None, addr("10.0.0.2", PORT), SECOND);
    assert_eq!(
        errno(busy).1,
        "resolve_addr in state ADDR_QUERY, which wants IDLE or ADDR_BOUND"
    );
    world.run(Duration::from_millis(999));
    world.a().expect_nothing();
    world.run(Duration::from_millis(1));
    assert_eq!(
        world.a().expect(EventKind::ADDR_ERROR).status,
        Errno::ETIMEDOUT.as_status()
    );
    world.run(10 * SECOND);
    world.a().expect_nothing();
    assert_eq!(world.a().cma.counters().get(Counter::LookupsTimedOut), 1);
    // The answer that comes too late is dropped.
    let token = world.a().asked[0].token;
    let route = Route {
        source: ip("10.0.0.1"),
        ifindex: 2,
        gateway: None,
        hop_limit: 64,
        mtu: 1500,
        is_local: false,
    };
    world.a().cma.handle_lookup(now, token, Ok(route));
    world.a().expect_nothing();
    assert_eq!(
        world.a().cma.query(id).expect("exists").state,
        State::AddrBound
    );
}

#[test]
fn a_source_that_no_device_owns_is_enodev() {
    let mut world = World::pair();
    world.a().lookups = Lookups::Kept;
    let id = world.a().id();
    let now = world.now();
    world
        .a()
        .cma
        .resolve_addr(now, id, None, addr("10.0.0.2", PORT), SECOND)
        .expect("may try");
    world.drain();
    let token = world.a().asked[0].token;
    let route = Route {
        source: ip("192.168.1.1"),
        ifindex: 7,
        gateway: None,
        hop_limit: 64,
        mtu: 1500,
        is_local: false,
    };
    world.a().cma.handle_lookup(now, token, Ok(route));
    assert_eq!(
        world.a().expect(EventKind::ADDR_ERROR).status,
        Errno::ENODEV.as_status()
    );
}

#[test]
fn destroying_an_identifier_withdraws_its_lookup() {
    let mut world = World::pair();
    world.a().lookups = Lookups::Kept;
    let id = world.a().id();
    let now = world.now();
    world
        .a()
        .cma
        .resolve_addr(now, id, None, addr("10.0.0.2", PORT), SECOND)
        .expect("may try");
    world.a().cma.destroy_id(now, id).expect("exists");
    assert_eq!(world.a().cma.poll_lookup(), None);
    world.assert_nothing_left();
}

#[test]
fn the_path_is_the_one_that_linux_would_take() {
    let mut world = World::pair();
    let id = bound(world.a(), addr("10.0.0.1", 5000)).expect("free");
    world
        .a()
        .cma
        .set_option(id, IdOption::TypeOfService(0x68))
        .expect("any state");
    world.resolve(0, id, None, addr("10.0.0.2", PORT));
    assert_eq!(world.a().asked[0].tos, 0x68);
    let path = world
        .a()
        .cma
        .query(id)
        .expect("exists")
        .path
        .expect("resolved");
    assert_eq!(path.mtu, Mtu::MTU_1024);
    assert_eq!(path.packet_life_time.get(), 16);
    assert_eq!(
        path.av.flow_label,
        FlowLabel::truncate(5000 * 31 + u32::from(PORT))
    );
    assert_eq!((path.av.traffic_class, path.av.hop_limit), (0x68, 64));
    assert_eq!(path.service_id, ServiceId(0x0106_0000 + u64::from(PORT)));
}

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
    assert_eq!(
        world
            .a()
            .cma
            .query(id)
            .expect("exists")
            .path
            .expect("resolved")
            .packet_life_time
            .get(),
        13
    );
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
    let now = world.now();
    let sentence =
        "resolve_route before the identifier has a device (state IDLE): resolve an address first";
    assert_eq!(
        errno(world.a().cma.resolve_route(id, SECOND)),
        (Errno::EINVAL, sentence.to_owned())
    );
    world
        .a()
        .cma
        .resolve_addr(now, id, None, addr("10.0.0.2", PORT), SECOND)
        .expect("may try");
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
