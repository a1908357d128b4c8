//! Address resolution.

use super::world::{Host, Lookups, PORT, SECOND, World, addr, device, errno, ip, param, scoped};
use crate::{Config, Counter, Errno, Error, EventKind, LookupError, Route, State};
use oarlock_sim::NetworkConfig;
use oarlock_wire::Gid;
use std::time::Duration;

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
    let id = world.a().bound(addr("10.0.0.12", 5000)).expect("free");
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
    world.connect(id, param(0x11));
    let child = world.b().expect(EventKind::CONNECT_REQUEST).id;
    world
        .b()
        .cma
        .accept(now, child, None, crate::ConnectParam::default())
        .expect("waits");
    world.settle();
    world.a().expect(EventKind::CONNECT_RESPONSE);
    world.establish(id);
    world.b().expect(EventKind::ESTABLISHED);
    assert_eq!(world.a().cma.query(id).expect("exists").path, before);
    assert_eq!((world.a().asked.len(), world.b().asked.len()), (1, 0));
    assert_eq!(world.a().cma.counters().get(Counter::Lookups), 1);
}

/// Public fault 51.
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

    let other = world.a().bound(scoped("fe80::1", 0, 2)).expect("free");
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
    world.connect(id, param(0x11));
    let child = world.b().expect(EventKind::CONNECT_REQUEST).id;
    let query = world.b().cma.query(child).expect("taken");
    assert_eq!(query.local, Some(scoped("fe80::2", PORT, 2)));
    assert_eq!(query.remote.map(|remote| remote.ip()), Some(ip("fe80::1")));
}

#[test]
fn families_do_not_mix() {
    let mut world = World::pair();
    let now = world.now();
    let id = world.a().bound(addr("10.0.0.1", 0)).expect("free");
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
fn a_lookup_that_fails_is_an_event_and_may_be_tried_again() {
    let mut world = World::pair();
    let id = world.a().id();
    let now = world.now();
    let token = world.ask_and_keep(id, addr("10.0.0.2", PORT));
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
    world.ask(id, addr("10.0.0.2", PORT));
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
    let id = world.a().id();
    let now = world.now();
    let token = world.ask_and_keep(id, addr("10.0.0.2", PORT));
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
    world.ask(id, addr("10.0.0.2", PORT));
    world.a().cma.destroy_id(now, id).expect("exists");
    assert_eq!(world.a().cma.poll_lookup(), None);
    world.assert_nothing_left();
}
