//! Alternate paths: LAP, APR, and what a connection request offers.

use super::world::{PORT, SECOND, World, addr, errno, ip, param};
use crate::{
    Alternate, AlternatePath, AlternatePaths, AlternateState, AsyncEvent, Config, ConnectParam,
    Counter, Errno, EventKind, Id, LapState,
};
use oarlock_wire::{AprStatus, CmMessage, Gid};
use std::cell::Cell;
use std::rc::Rc;

fn world(passive: AlternatePaths) -> World {
    let config = Config {
        alternate_paths: passive,
        ..Config::default()
    };
    let mut world = World::with(&[Config::default(), config]);
    world.b().listener(addr("0.0.0.0", PORT), 0);
    world
}

/// Between the IPv6 addresses of A and B, seen from A.
fn second_path() -> AlternatePath {
    AlternatePath {
        local_gid: Gid::from_ip(ip("fd00::1")),
        remote_gid: Gid::from_ip(ip("fd00::2")),
        hop_limit: 7,
        ..AlternatePath::default()
    }
}

fn alternate(world: &World, host: usize, id: Id) -> Option<Alternate> {
    world.hosts[host].cma.query(id).expect("exists").alternate
}

fn load(world: &mut World, id: Id, path: AlternatePath) {
    let now = world.now();
    world
        .a()
        .cma
        .load_alternate_path(now, id, path)
        .expect("established");
    assert_eq!(
        alternate(world, 0, id),
        Some(Alternate {
            path,
            state: AlternateState::Asked
        })
    );
    world.settle();
}

/// R-PATH-9: an alternate path is loaded on a live connection, and both sides know; nobody gets an event.
#[test]
fn a_path_that_the_peer_takes_is_loaded_on_both_sides() {
    let mut world = world(AlternatePaths::Accept);
    let (active, passive) = world.connected();
    load(&mut world, active, second_path());
    let loaded = |path| {
        Some(Alternate {
            path,
            state: AlternateState::Loaded,
        })
    };
    let path = second_path();
    let theirs = AlternatePath {
        local_gid: path.remote_gid,
        remote_gid: path.local_gid,
        ..path
    };
    assert_eq!(alternate(&world, 0, active), loaded(path));
    assert_eq!(alternate(&world, 1, passive), loaded(theirs));
    let counters = world.b().cma.counters();
    assert_eq!(counters.get(Counter::AlternatePathsLoaded), 1);
    // The queue pair moves: the alternate path is the path now.
    let now = world.now();
    world
        .a()
        .cma
        .notify(now, active, AsyncEvent::PathMig)
        .expect("established");
    assert_eq!(alternate(&world, 0, active), None);
    let av = world.a().path(active).av;
    assert_eq!(
        (av.local, av.remote, av.hop_limit),
        (path.local_gid, path.remote_gid, 7)
    );
    // The connection is as it was: it goes down in the usual way.
    world.a().cma.disconnect(now, active).expect("established");
    world.settle();
    world.b().expect(EventKind::DISCONNECTED);
}

/// R-PATH-9: the peer may refuse, and by default does: soft queue pairs do not migrate.
#[test]
fn a_refusal_leaves_the_connection_alone() {
    let foreign = AlternatePath {
        remote_gid: Gid::from_ip(ip("fd00::99")),
        ..second_path()
    };
    let current = AlternatePath {
        local_gid: Gid::from_ip(ip("10.0.0.1")),
        remote_gid: Gid::from_ip(ip("10.0.0.2")),
        ..AlternatePath::default()
    };
    let cases = [
        (
            AlternatePaths::Refuse,
            second_path(),
            AprStatus::UNSUPPORTED,
        ),
        (AlternatePaths::Accept, foreign, AprStatus::INVALID_GID),
        (AlternatePaths::Accept, current, AprStatus::IS_CURRENT),
    ];
    for (config, path, status) in cases {
        let mut world = world(config);
        let (active, passive) = world.connected();
        load(&mut world, active, path);
        let state = AlternateState::Refused(status);
        assert_eq!(
            alternate(&world, 0, active),
            Some(Alternate { path, state })
        );
        assert_eq!(alternate(&world, 1, passive), None);
        let counters = world.b().cma.counters();
        assert_eq!(counters.get(Counter::AlternatePathsRefused), 1);
        // It may be tried again.
        load(&mut world, active, path);
        world.run(100 * SECOND);
        world.a().expect_nothing();
        world.b().expect_nothing();
    }
}

#[test]
fn a_peer_that_never_answers_leaves_the_connection_alone() {
    let mut world = world(AlternatePaths::Accept);
    let (active, _) = world.connected();
    world.network.lose = vec!["LAP"];
    load(&mut world, active, second_path());
    let now = world.now();
    let again = world
        .a()
        .cma
        .load_alternate_path(now, active, second_path());
    assert_eq!(
        errno(again),
        (
            Errno::EINVAL,
            format!(
                "load_alternate_path while an alternate path is being agreed on ({})",
                LapState::LapSent
            )
        )
    );
    world.run(100 * SECOND);
    world.a().expect_nothing();
    assert_eq!(
        alternate(&world, 0, active).map(|alternate| alternate.state),
        Some(AlternateState::Unanswered)
    );
    assert_eq!(
        world.a().cma.query(active).expect("exists").cm_state,
        Some(crate::StateName::Established)
    );
}

#[test]
fn a_path_needs_an_established_connection_and_an_own_address() {
    let mut world = world(AlternatePaths::Accept);
    let (active, _) = world.requested();
    let now = world.now();
    let refused = world
        .a()
        .cma
        .load_alternate_path(now, active, second_path());
    assert_eq!(
        errno(refused),
        (
            Errno::EINVAL,
            "load_alternate_path while the IB CM is in state REQ_SENT".to_owned()
        )
    );
    let refused = world.a().cma.load_alternate_path(
        now,
        active,
        AlternatePath {
            local_gid: Gid::from_ip(ip("fd00::2")),
            ..second_path()
        },
    );
    assert_eq!(errno(refused).0, Errno::EINVAL);
    let idle = world.a().id();
    let refused = world.a().cma.load_alternate_path(now, idle, second_path());
    assert_eq!(errno(refused).0, Errno::EINVAL);
    // Without an alternate path there is nowhere to migrate to, and only an established queue pair can.
    let migrated = world.a().cma.notify(now, active, AsyncEvent::PathMig);
    assert_eq!(errno(migrated).0, Errno::EINVAL);
}

/// A request may offer an alternate path; the response says what became of it.
#[test]
fn the_alternate_path_of_a_request_is_answered_in_the_response() {
    for (config, failover, state) in [
        (AlternatePaths::Accept, 0, AlternateState::Loaded),
        (
            AlternatePaths::Refuse,
            1,
            AlternateState::Refused(AprStatus::UNSUPPORTED),
        ),
    ] {
        let mut world = world(config);
        let said = Rc::new(Cell::new(None));
        let out = Rc::clone(&said);
        world.tap = Some(Box::new(move |message| match message {
            CmMessage::Req(req) => req.alternate = second_path(),
            CmMessage::Rep(rep) => out.set(Some(rep.failover_accepted)),
            _ => {}
        }));
        let active = world.resolved(addr("10.0.0.2", PORT));
        world.connect(active, param(0x11));
        let passive = world.b().expect(EventKind::CONNECT_REQUEST).id;
        let offered = alternate(&world, 1, passive).expect("offered");
        assert_eq!(
            (offered.state, offered.path.local_gid),
            (AlternateState::Offered, second_path().remote_gid)
        );
        world.accept(passive, ConnectParam::default());
        assert_eq!(said.get(), Some(failover));
        assert_eq!(
            alternate(&world, 1, passive).map(|alternate| alternate.state),
            Some(state)
        );
    }
}
