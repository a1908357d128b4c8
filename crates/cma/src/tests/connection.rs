//! Connections from beginning to end, and what becomes of them when messages are lost.

use super::world::{PORT, SECOND, World, addr, param, scoped};
use crate::{
    AsyncEvent, Config, ConnectParam, Disconnect, Errno, Error, EventKind, IdOption, State,
    StateName,
};
use oarlock_sim::assert_snapshot;
use oarlock_wire::{IbTimeout, RejReason};
use std::time::Duration;

fn listening() -> World {
    let mut world = World::pair();
    world.b().listener(addr("0.0.0.0", PORT), 0);
    world
}

fn snapshot(name: &str, world: &World) {
    let path = format!(
        "{}/src/tests/snapshots/{name}.txt",
        env!("CARGO_MANIFEST_DIR")
    );
    assert_snapshot(path, &world.ladder.to_string());
}

/// Connects and disconnects with every event on both sides noted in the ladder.
#[test]
fn the_whole_exchange() {
    let mut world = listening();
    let (active, passive) = world.connected();
    assert_eq!(
        world.a().cma.query(active).expect("exists").cm_state,
        Some(StateName::Established)
    );
    let now = world.now();
    assert_eq!(
        world.a().cma.disconnect(now, active),
        Ok(Disconnect::Requested)
    );
    world.settle();
    let event = world.b().expect(EventKind::DISCONNECTED);
    assert_eq!((event.id, event.status, event.context), (passive, 0, 7));
    let now = world.now();
    assert_eq!(
        world.b().cma.disconnect(now, passive),
        Ok(Disconnect::Replied)
    );
    world.settle();
    world.a().expect(EventKind::DISCONNECTED);
    world.run(SECOND);
    world.a().expect(EventKind::TIMEWAIT_EXIT);
    world.b().expect(EventKind::TIMEWAIT_EXIT);
    world.a().expect_nothing();
    world.b().expect_nothing();
    snapshot("exchange", &world);
}

#[test]
fn ipv6_loopback_and_link_local_connections_look_the_same() {
    let cases = [
        (addr("fd00::2", PORT), 1),
        (addr("127.0.0.1", PORT), 0),
        (addr("::1", PORT), 0),
        (scoped("fe80::2", PORT, 2), 1),
    ];
    for (destination, server) in cases {
        let mut world = World::pair();
        world.hosts[server].listener(addr("::", PORT), 0);
        let active = world.a().id();
        world.resolve(0, active, None, destination);
        let now = world.now();
        world.connect(active, param(0x11));
        let request = world.hosts[server].expect(EventKind::CONNECT_REQUEST);
        let (local, remote) = {
            let query = world.hosts[server].cma.query(request.id).expect("taken");
            (query.local, query.remote)
        };
        let query = world.a().cma.query(active).expect("exists");
        assert_eq!(
            (local, remote),
            (query.remote, query.local),
            "{destination}"
        );
        world.hosts[server]
            .cma
            .accept(now, request.id, None, ConnectParam::default())
            .expect("waits");
        world.settle();
        world.a().expect(EventKind::CONNECT_RESPONSE);
        world.establish(active);
        world.hosts[server].expect(EventKind::ESTABLISHED);
    }
}

#[test]
fn a_rejection_carries_the_reason() {
    let mut world = listening();
    let (active, passive) = world.requested();
    let now = world.now();
    let wrong = world
        .b()
        .cma
        .reject(now, passive, RejReason::NO_RESOURCES, &[]);
    assert_eq!(
        wrong,
        Err(Error::RejectReason {
            reason: RejReason::NO_RESOURCES
        })
    );
    world
        .b()
        .cma
        .reject(now, passive, RejReason::VENDOR_OPTION_NOT_SUPPORTED, &[])
        .expect("waits");
    world.settle();
    let event = world.a().expect(EventKind::REJECTED);
    assert_eq!((event.id, event.status), (active, 35));
    world.run(100 * SECOND);
    world.a().expect_nothing();
    world.b().expect_nothing();
    let again = world
        .b()
        .cma
        .reject(now, passive, RejReason::CONSUMER_DEFINED, &[])
        .expect_err("rejected already");
    assert_eq!(
        (again.errno(), again.to_string().as_str()),
        (Errno::EINVAL, "reject while the IB CM is in state IDLE")
    );
}

/// Public fault 26.
#[test]
fn nobody_listening_is_reason_8_and_the_wrong_address_is_reason_28() {
    let mut world = World::pair();
    for (listens, reason) in [(None, 8), (Some("fd00::2"), 28), (Some("127.0.0.1"), 28)] {
        if let Some(address) = listens {
            let id = world.b().listener(addr(address, PORT), 0);
            let active = world.resolved(addr("10.0.0.2", PORT));
            let now = world.now();
            world.connect(active, param(0x11));
            world.b().cma.destroy_id(now, id).expect("exists");
        } else {
            let active = world.resolved(addr("10.0.0.2", PORT));
            world.connect(active, param(0x11));
        }
        assert_eq!(
            world.a().expect(EventKind::REJECTED).status,
            reason,
            "{listens:?}"
        );
        world.b().expect_nothing();
    }
}

#[test]
fn a_peer_that_does_not_answer_is_unreachable_after_the_kernels_74_seconds() {
    let mut world = listening();
    world.network.lose = vec!["REQ"];
    let active = world.resolved(addr("10.0.0.2", PORT));
    let now = world.now();
    world
        .a()
        .cma
        .connect(now, active, param(0x11))
        .expect("a path");
    // 16 sends, 4608 ms each.
    world.run(Duration::from_millis(16 * 4608 - 1));
    world.a().expect_nothing();
    assert_eq!(
        world
            .network
            .sent
            .iter()
            .filter(|name| **name == "REQ")
            .count(),
        16
    );
    world.run(Duration::from_millis(1));
    let event = world.a().expect(EventKind::UNREACHABLE);
    assert_eq!((event.id, event.status), (active, -110));
    world.run(100 * SECOND);
    world.a().expect_nothing();
}

#[test]
fn response_time_retries_and_deadline_are_configurable_for_all_and_for_one() {
    let config = Config {
        cm_response_timeout: IbTimeout::truncate(18),
        max_cm_retries: 3,
        ..Config::default()
    };
    let mut world = World::with(&[config, Config::default()]);
    world.network.lose = vec!["REQ"];
    let unreachable_after = |world: &mut World, options: &[IdOption]| {
        let active = world.resolved(addr("10.0.0.2", PORT));
        for option in options {
            world
                .a()
                .cma
                .set_option(active, *option)
                .expect("any state");
        }
        let start = world.now();
        world
            .a()
            .cma
            .connect(start, active, param(0x11))
            .expect("a path");
        for _ in 0..100_000 {
            world.run(Duration::from_millis(1));
            if let Some(event) = world.a().next() {
                assert_eq!(event.kind, EventKind::UNREACHABLE);
                return world.now() - start;
            }
        }
        panic!("no event");
    };
    // Twice the packet life time of 256 ms and 1024 ms, four times.
    assert_eq!(
        unreachable_after(&mut world, &[]),
        Duration::from_millis(4 * 1536)
    );
    let options = [IdOption::CmResponseTimeout(16), IdOption::MaxCmRetries(1)];
    assert_eq!(
        unreachable_after(&mut world, &options),
        Duration::from_millis(2 * 768)
    );
    let deadline = Duration::from_millis(250);
    assert_eq!(
        unreachable_after(&mut world, &[IdOption::ConnectDeadline(Some(deadline))]),
        deadline
    );
}

#[test]
fn a_lost_message_of_each_kind_is_made_up_for() {
    for lost in ["REQ", "REP", "RTU", "DREQ", "DREP"] {
        let mut world = listening();
        // Sends one message and, if it is the one to be lost, waits until it has been sent again.
        let deliver = |world: &mut World, name: &str| {
            if name == lost {
                world.network.lose = vec![lost];
                world.settle();
                world.network.lose.clear();
                world.run(5 * SECOND);
            }
            world.settle();
        };
        let active = world.resolved(addr("10.0.0.2", PORT));
        let now = world.now();
        world
            .a()
            .cma
            .connect(now, active, param(0x11))
            .expect("a path");
        deliver(&mut world, "REQ");
        let passive = world.b().expect(EventKind::CONNECT_REQUEST).id;
        let now = world.now();
        let answer = ConnectParam::default();
        world
            .b()
            .cma
            .accept(now, passive, None, answer)
            .expect("waits");
        deliver(&mut world, "REP");
        world.a().expect(EventKind::CONNECT_RESPONSE);
        let now = world.now();
        world.a().cma.establish(now, active).expect("responded");
        deliver(&mut world, "RTU");
        world.b().expect(EventKind::ESTABLISHED);
        let now = world.now();
        world.a().cma.disconnect(now, active).expect("connected");
        deliver(&mut world, "DREQ");
        world.b().expect(EventKind::DISCONNECTED);
        let now = world.now();
        world.b().cma.disconnect(now, passive).expect("connected");
        deliver(&mut world, "DREP");
        world.run(SECOND);
        world.a().expect(EventKind::DISCONNECTED);
        world.a().expect(EventKind::TIMEWAIT_EXIT);
        world.b().expect(EventKind::TIMEWAIT_EXIT);
        world.a().expect_nothing();
        world.b().expect_nothing();
        let repeated = world
            .network
            .sent
            .iter()
            .filter(|name| **name == lost)
            .count();
        assert_eq!(repeated, 2, "{lost}");
    }
}

/// Public fault 56.
#[test]
fn a_lost_disconnect_is_reported_once_with_a_timeout_and_before_timewait_exit() {
    let mut world = listening();
    let (active, _) = world.connected();
    world.network.lose = vec!["DREQ"];
    let now = world.now();
    world.a().cma.disconnect(now, active).expect("connected");
    world.run(100 * SECOND);
    let event = world.a().expect(EventKind::DISCONNECTED);
    assert_eq!(event.status, Errno::ETIMEDOUT.as_status());
    world.a().expect(EventKind::TIMEWAIT_EXIT);
    world.a().expect_nothing();
}

#[test]
fn both_sides_disconnecting_at_once_get_one_disconnected_each() {
    let mut world = listening();
    let (active, passive) = world.connected();
    let now = world.now();
    assert_eq!(
        world.a().cma.disconnect(now, active),
        Ok(Disconnect::Requested)
    );
    assert_eq!(
        world.b().cma.disconnect(now, passive),
        Ok(Disconnect::Requested)
    );
    world.run(20 * SECOND);
    for host in &mut world.hosts {
        host.expect(EventKind::DISCONNECTED);
    }
    for (host, id) in [(0, active), (1, passive)] {
        // A second disconnect is harmless.
        let now = world.now();
        world.hosts[host]
            .cma
            .disconnect(now, id)
            .expect("a connection once");
        assert_eq!(
            world.hosts[host].cma.query(id).expect("exists").state,
            State::Disconnect
        );
    }
    world.run(20 * SECOND);
    for host in &mut world.hosts {
        host.expect(EventKind::TIMEWAIT_EXIT);
        host.expect_nothing();
    }
}

#[test]
fn a_disconnect_without_a_connection_says_so() {
    let mut world = listening();
    let id = world.resolved(addr("10.0.0.2", PORT));
    let now = world.now();
    let none = world
        .a()
        .cma
        .disconnect(now, id)
        .expect_err("no connection");
    assert_eq!(
        none.to_string(),
        "disconnect in state ROUTE_RESOLVED: there is no connection"
    );
}

#[test]
fn the_first_packet_establishes_a_connection_whose_rtu_is_lost() {
    let mut world = listening();
    world.network.lose = vec!["RTU"];
    let (active, passive) = world.requested();
    let now = world.now();
    let early = world
        .b()
        .cma
        .notify(now, passive, AsyncEvent::CommEst)
        .expect_err("not accepted");
    assert_eq!(early.errno(), Errno::EINVAL);
    world.accept(passive, ConnectParam::default());
    world.a().expect(EventKind::CONNECT_RESPONSE);
    world.establish(active);
    world.b().expect_nothing();
    world
        .b()
        .cma
        .notify(now, passive, AsyncEvent::CommEst)
        .expect("the REP is out");
    world.b().expect(EventKind::ESTABLISHED);
    let again = world.b().cma.notify(now, passive, AsyncEvent::CommEst);
    assert_eq!(again, Err(Error::AlreadyEstablished));
    assert_eq!(again.map_err(|error| error.errno()), Err(Errno::EISCONN));
    world.network.lose.clear();
    world.run(100 * SECOND);
    world.b().expect_nothing();
}

#[test]
fn calls_in_the_wrong_state_name_it() {
    let mut world = listening();
    let id = world.a().id();
    let now = world.now();
    let sentence = |error: Error| {
        assert_eq!(error.errno(), Errno::EINVAL);
        error.to_string()
    };
    let host = world.a();
    let refused = host.cma.connect(now, id, param(1)).expect_err("idle");
    assert_eq!(
        sentence(refused),
        "connect before the identifier has a device (state IDLE): resolve an address first"
    );
    let refused = host.cma.accept(now, id, None, param(1)).expect_err("idle");
    assert_eq!(
        sentence(refused),
        "accept in state IDLE: there is no connection"
    );
    let refused = host.cma.establish(now, id).expect_err("idle");
    assert_eq!(
        sentence(refused),
        "establish in state IDLE: there is no connection"
    );
    let refused = host
        .cma
        .notify(now, id, AsyncEvent::CommEst)
        .expect_err("idle");
    assert_eq!(
        sentence(refused),
        "notify before the identifier has a device (state IDLE): resolve an address first"
    );
    host.cma.bind_addr(id, addr("10.0.0.1", 0)).expect("free");
    let refused = host.cma.connect(now, id, param(1)).expect_err("bound");
    assert_eq!(
        sentence(refused),
        "connect in state ADDR_BOUND, which wants ROUTE_RESOLVED"
    );
    host.cma.listen(id, 1).expect("bound");
    let refused = host.cma.listen(id, 1).expect_err("listens");
    assert_eq!(
        sentence(refused),
        "listen in state LISTEN, which wants IDLE or ADDR_BOUND"
    );
    let refused = host
        .cma
        .resolve_addr(now, id, None, addr("10.0.0.2", 1), SECOND)
        .expect_err("listens");
    assert_eq!(
        sentence(refused),
        "resolve_addr in state LISTEN, which wants IDLE or ADDR_BOUND"
    );

    let (active, passive) = world.requested();
    let refused = world
        .a()
        .cma
        .accept(now, active, None, param(1))
        .expect_err("active");
    assert_eq!(
        sentence(refused),
        "accept while the IB CM is in state REQ_SENT"
    );
    let refused = world.b().cma.establish(now, passive).expect_err("passive");
    assert_eq!(
        sentence(refused),
        "establish while the IB CM is in state MRA_REQ_SENT"
    );
    world
        .b()
        .cma
        .accept(now, passive, None, ConnectParam::default())
        .expect("waits");
    assert!(
        world
            .b()
            .cma
            .accept(now, passive, None, ConnectParam::default())
            .is_err(),
        "accepted twice"
    );
}

#[test]
fn a_slow_user_is_covered_by_an_mra() {
    let mut world = listening();
    let (active, passive) = world.requested();
    // The peer repeats its REQ, gets an MRA, and waits for 65 s instead of 4.6 s.
    world.run(60 * SECOND);
    assert_eq!(
        world
            .network
            .sent
            .iter()
            .filter(|name| **name == "MRA")
            .count(),
        1
    );
    world.accept(passive, ConnectParam::default());
    assert_eq!(world.a().expect(EventKind::CONNECT_RESPONSE).id, active);
}
