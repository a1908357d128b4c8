//! Requests that arrive: the backlog, the limits, and what is rejected.

use super::world::{PORT, World, addr, conn, param};
use crate::{BacklogOverflow, Config, ConnectParam, Counter, EventKind, Id};
use oarlock_wire::{CmMessage, Gid, IpCmHeader, Mtu, Req, TransportService};
use std::net::IpAddr;

/// Sends a request from A without waiting for anything.
fn request(world: &mut World, qp: u32) -> Id {
    let id = world.resolved(addr("10.0.0.2", PORT));
    world.connect(id, param(qp));
    id
}

fn backlog_of(world: &mut World, listener: Id) -> (usize, usize, u64) {
    let backlog = world
        .b()
        .cma
        .query(listener)
        .expect("exists")
        .backlog
        .expect("listens");
    (backlog.size, backlog.waiting, backlog.overflows)
}

/// Public fault 53: the backlog is what was asked for, and its overflow is counted.
#[test]
fn a_full_backlog_drops_silently_and_taking_an_event_makes_room() {
    let mut world = World::pair();
    let listener = world.b().listener(addr("0.0.0.0", PORT), 2);
    let ids: Vec<Id> = (1..=3).map(|qp| request(&mut world, qp)).collect();
    assert_eq!(backlog_of(&mut world, listener), (2, 2, 1));
    assert_eq!(
        world
            .b()
            .cma
            .counters()
            .get(Counter::RequestsDroppedBacklog),
        1
    );
    world.a().expect_nothing();
    let first = world.b().expect(EventKind::CONNECT_REQUEST);
    assert_eq!(
        (first.listen_id, first.context, conn(&first).qpn.get()),
        (Some(listener), 0xC0FFEE, 1)
    );
    assert_eq!(backlog_of(&mut world, listener), (2, 1, 1));
    // The dropped request comes again by itself.
    world.run(std::time::Duration::from_secs(5));
    assert_eq!(backlog_of(&mut world, listener), (2, 2, 1));
    let taken = [
        world.b().expect(EventKind::CONNECT_REQUEST),
        world.b().expect(EventKind::CONNECT_REQUEST),
    ];
    assert_eq!(taken.map(|event| conn(&event).qpn.get()), [2, 3]);
    assert_eq!(ids.len(), 3);
}

/// Public fault 54.
#[test]
fn a_full_backlog_can_be_answered_with_no_resources() {
    let config = Config {
        backlog_overflow: BacklogOverflow::RejectNoResources,
        ..Config::default()
    };
    let mut world = World::with(&[Config::default(), config]);
    let listener = world.b().listener(addr("0.0.0.0", PORT), 1);
    request(&mut world, 1);
    let refused = request(&mut world, 2);
    let event = world.a().expect(EventKind::REJECTED);
    assert_eq!((event.id, event.status), (refused, 3));
    assert_eq!(backlog_of(&mut world, listener), (1, 1, 1));
    assert_eq!(
        world
            .b()
            .cma
            .counters()
            .get(Counter::RequestsRejectedBacklog),
        1
    );
}

/// Public fault 53.
#[test]
fn a_backlog_of_nothing_or_too_much_is_the_maximum() {
    let mut world = World::pair();
    for (port, asked) in [(1, 0), (2, -5), (3, 1025), (4, 1024)] {
        let listener = world.b().listener(addr("10.0.0.2", 6000 + port), asked);
        assert_eq!(backlog_of(&mut world, listener).0, 1024, "{asked}");
    }
}

#[test]
fn the_limit_of_identifiers_drops_requests_and_refuses_calls() {
    let config = Config {
        max_ids: 2,
        ..Config::default()
    };
    let mut world = World::with(&[Config::default(), config]);
    world.b().listener(addr("0.0.0.0", PORT), 0);
    request(&mut world, 1);
    request(&mut world, 2);
    assert_eq!(world.b().cma.len(), 2);
    assert_eq!(world.b().cma.counters().get(Counter::RequestsDroppedIds), 1);
    let host = world.b();
    let refused = host
        .cma
        .create_id(host.channel, crate::PortSpace::TCP, crate::QpType::RC, 0);
    assert_eq!(refused, Err(crate::Error::TooManyIds { max: 2 }));
    // The connection that was dropped leaves nothing behind.
    assert_eq!(host.cma.connections(), 1);
}

#[test]
fn the_limit_of_channels_is_an_error_with_its_value() {
    let mut world = World::with(&[Config {
        max_channels: 2,
        ..Config::default()
    }]);
    world.a().cma.create_channel().expect("the second");
    let refused = world.a().cma.create_channel().expect_err("the third");
    assert_eq!(refused.to_string(), "2 event channels exist already");
}

#[test]
fn a_full_channel_refuses_what_leads_to_more_events_and_loses_none() {
    let config = Config {
        max_queued_events: 3,
        ..Config::default()
    };
    let mut world = World::with(&[config.clone(), config]);
    world.b().listener(addr("0.0.0.0", PORT), 0);
    for qp in 1..=4 {
        request(&mut world, qp);
    }
    let channel = world.b().channel;
    assert_eq!(world.b().cma.queued(channel), 3);
    assert_eq!(
        world
            .b()
            .cma
            .counters()
            .get(Counter::RequestsDroppedChannel),
        1
    );

    let ids: Vec<Id> = (0..4).map(|_| world.a().id()).collect();
    let now = world.now();
    let resolve = |world: &mut World, id| {
        world
            .a()
            .cma
            .resolve_addr(now, id, None, addr("127.0.0.1", PORT), super::world::SECOND)
    };
    for id in &ids[..3] {
        resolve(&mut world, *id).expect("room");
    }
    let refused = resolve(&mut world, ids[3]).expect_err("full");
    let sentence =
        "3 events wait on the channel and 1 more were to come: the limit is 3, take some first";
    assert_eq!(refused.to_string(), sentence);
    world.a().expect(EventKind::ADDR_RESOLVED);
    resolve(&mut world, ids[3]).expect("room again");
}

/// Sends a request that `change` has changed, and gives the reason for which it is rejected.
fn rejected_for(change: fn(&mut Req), counter: Counter) -> i32 {
    let mut world = World::pair();
    world.b().listener(addr("0.0.0.0", PORT), 0);
    world.tap = Some(Box::new(move |message| {
        if let CmMessage::Req(req) = message {
            change(req);
        }
    }));
    request(&mut world, 1);
    world.b().expect_nothing();
    assert_eq!(
        (world.b().cma.len(), world.b().cma.connections()),
        (1, 0),
        "left behind"
    );
    assert_eq!(
        world.b().cma.counters().get(counter),
        1,
        "{}",
        counter.name()
    );
    world.a().expect(EventKind::REJECTED).status
}

fn change_header(req: &mut Req, change: impl FnOnce(&mut [u8; 92])) {
    let mut data = *req.private_data.as_bytes();
    change(&mut data);
    req.private_data = oarlock_wire::PrivateData::from_slice(&data).expect("92 bytes");
}

fn readdress(req: &mut Req, source: &str, destination: &str) {
    let parse = |text: &str| text.parse::<IpAddr>().expect("an address");
    let header = IpCmHeader {
        source_port: 1,
        source: parse(source),
        destination: parse(destination),
    };
    change_header(req, |data| {
        header.emit(data.first_chunk_mut().expect("36 bytes"))
    });
}

#[test]
fn a_request_that_does_not_fit_is_rejected_for_a_reason_that_is_counted() {
    let version = |req: &mut Req| change_header(req, |data| data[0] = 1);
    assert_eq!(rejected_for(version, Counter::RequestsRejectedHeader), 28);
    let not_ip = |req: &mut Req| change_header(req, |data| data[1] = 0);
    assert_eq!(rejected_for(not_ip, Counter::RequestsRejectedNotIp), 28);
    let foreign = |req: &mut Req| readdress(req, "10.0.0.1", "10.0.0.3");
    assert_eq!(rejected_for(foreign, Counter::RequestsRejectedAddress), 28);
    let uc = |req: &mut Req| req.transport_service = TransportService::UC;
    assert_eq!(rejected_for(uc, Counter::RequestsRejectedTransport), 28);
    let wide = |req: &mut Req| req.path_mtu = Mtu::MTU_2048;
    assert_eq!(rejected_for(wide, Counter::RequestsRejectedMtu), 26);
}

#[test]
fn a_path_to_another_device_of_this_host_is_an_invalid_gid() {
    let loopback_gid = |req: &mut Req| req.primary.remote_gid = Gid::from_ip([127, 0, 0, 1].into());
    assert_eq!(rejected_for(loopback_gid, Counter::RequestsRejectedGid), 12);
}

#[test]
fn loopback_addresses_from_another_host_are_forged() {
    let source = |req: &mut Req| readdress(req, "127.0.0.1", "10.0.0.2");
    assert_eq!(rejected_for(source, Counter::RequestsRejectedAddress), 28);
    let destination = |req: &mut Req| readdress(req, "10.0.0.1", "127.0.0.1");
    assert_eq!(
        rejected_for(destination, Counter::RequestsRejectedAddress),
        28
    );
}

#[test]
fn a_listener_on_a_specific_address_hears_only_what_is_for_it() {
    let mut world = World::pair();
    let v4 = world.b().listener(addr("10.0.0.2", PORT), 0);
    let v6 = world.b().listener(addr("fd00::2", PORT), 0);
    for (destination, listener) in [("10.0.0.2", v4), ("fd00::2", v6)] {
        let id = world.resolved(addr(destination, PORT));
        let param = world.param();
        world.connect(id, param);
        assert_eq!(
            world.b().expect(EventKind::CONNECT_REQUEST).listen_id,
            Some(listener)
        );
    }
    // One of them goes: the other one still hears.
    let now = world.now();
    world.b().cma.destroy_id(now, v4).expect("exists");
    let id = world.resolved(addr("fd00::2", PORT));
    world.connect(id, param(0x99));
    assert_eq!(
        world.b().expect(EventKind::CONNECT_REQUEST).listen_id,
        Some(v6)
    );
}

#[test]
fn a_wildcard_hears_both_families_unless_it_is_for_one() {
    for (listens, ipv4_is_heard) in [("::", true), ("0.0.0.0", true)] {
        let mut world = World::pair();
        world.b().listener(addr(listens, PORT), 0);
        request(&mut world, 1);
        assert_eq!(world.b().next().is_some(), ipv4_is_heard, "{listens}");
    }
    let mut world = World::pair();
    let id = world.b().id();
    world
        .b()
        .cma
        .set_option(id, crate::IdOption::AfOnly(true))
        .expect("idle");
    world.b().cma.bind_addr(id, addr("::", PORT)).expect("free");
    world.b().cma.listen(id, 0).expect("bound");
    request(&mut world, 1);
    assert_eq!(world.a().expect(EventKind::REJECTED).status, 28);
    assert_eq!(
        world
            .b()
            .cma
            .counters()
            .get(Counter::RequestsRejectedNoListener),
        1
    );
}

#[test]
fn a_wildcard_listener_covers_devices_that_come_later() {
    let mut world = World::pair();
    world.b().listener(addr("0.0.0.0", PORT), 0);
    let now = world.now();
    let mut devices = world.b().devices.clone();
    devices.push(super::world::device(7, 9000, &["10.0.0.77"]));
    world.b().devices = devices.clone();
    world.b().cma.set_devices(now, devices);
    let id = world.resolved(addr("10.0.0.77", PORT));
    world.connect(id, param(0x11));
    let child = world.b().expect(EventKind::CONNECT_REQUEST).id;
    assert_eq!(
        world
            .b()
            .cma
            .query(child)
            .expect("taken")
            .device
            .expect("bound")
            .index,
        7
    );
}

#[test]
fn two_listeners_never_share_an_address_even_if_both_allow_it() {
    let mut world = World::pair();
    let host = world.b();
    let ids = [host.id(), host.id()];
    for id in ids {
        host.cma
            .set_option(id, crate::IdOption::ReuseAddr(true))
            .expect("idle");
        host.cma
            .bind_addr(id, addr("10.0.0.2", PORT))
            .expect("both allow it");
    }
    let refused = host.cma.listen(ids[0], 0).expect_err("shared");
    assert_eq!(
        (refused.errno(), refused.to_string().as_str()),
        (
            crate::Errno::EADDRINUSE,
            "10.0.0.2:7471 is bound by another identifier"
        )
    );
    let now = world.now();
    let host = world.b();
    host.cma.destroy_id(now, ids[1]).expect("exists");
    host.cma.listen(ids[0], 0).expect("alone now");
    // A listener allows it no longer.
    let third = host.id();
    host.cma
        .set_option(third, crate::IdOption::ReuseAddr(true))
        .expect("idle");
    assert!(host.cma.bind_addr(third, addr("10.0.0.2", PORT)).is_err());
}

#[test]
fn an_idle_identifier_that_listens_is_bound_to_any_address_and_a_free_port() {
    let mut world = World::pair();
    let id = world.b().id();
    world.b().cma.listen(id, 0).expect("idle");
    let local = world
        .b()
        .cma
        .query(id)
        .expect("exists")
        .local
        .expect("bound");
    assert!(
        local.ip().is_unspecified() && local.is_ipv4() && local.port() != 0,
        "{local}"
    );
}

#[test]
fn events_of_a_child_are_dropped_until_it_is_accepted_and_accepting_then_fails() {
    let mut world = World::pair();
    world.b().listener(addr("0.0.0.0", PORT), 0);
    let (active, passive) = world.requested();
    let now = world.now();
    world.a().cma.destroy_id(now, active).expect("exists");
    world.settle();
    world.b().expect_nothing();
    assert_eq!(
        world
            .b()
            .cma
            .counters()
            .get(Counter::EventsDroppedUnaccepted),
        1
    );
    let refused = world
        .b()
        .cma
        .accept(now, passive, None, ConnectParam::default())
        .expect_err("the peer is gone");
    assert_eq!(
        refused.to_string(),
        "accept while the IB CM is in state IDLE"
    );
    world.b().expect_nothing();
}

#[test]
fn a_child_does_not_exist_for_the_caller_before_its_request_is_taken() {
    let mut world = World::pair();
    let listener = world.b().listener(addr("0.0.0.0", PORT), 0);
    let known: Vec<Id> = world.b().cma.ids().collect();
    assert_eq!(known, [listener]);
    request(&mut world, 1);
    assert_eq!((world.b().cma.ids().count(), world.b().cma.len()), (1, 2));
    let child = world.b().expect(EventKind::CONNECT_REQUEST).id;
    assert!(world.b().cma.ids().any(|id| id == child));
}
