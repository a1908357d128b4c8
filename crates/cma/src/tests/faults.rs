//! What others reported about connection managers, by the number in our list of public faults, as the kind that it is.

use super::world::{Host, PORT, SECOND, World, addr, param, usual_devices};
use crate::{BacklogOverflow, Config, ConnectParam, Counter, Disconnect, EventKind, Id, State};
use oarlock_wire::{Guid, RejReason};
use std::time::Duration;

/// How far a connection is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Point {
    /// The REQ is under way.
    Asked,
    /// The REQ has arrived.
    Requested,
    /// The REP is under way.
    Accepted,
    /// The REP has arrived.
    Responded,
    /// The RTU is under way.
    Confirmed,
    /// The RTU has arrived.
    Established,
}

const POINTS: [Point; 6] = [
    Point::Asked,
    Point::Requested,
    Point::Accepted,
    Point::Responded,
    Point::Confirmed,
    Point::Established,
];

/// What the two sides have been told, apart from what brings a connection up.
#[derive(Default, Debug)]
struct Told {
    ends: [Vec<EventKind>; 2],
    timewaits: [usize; 2],
}

impl Told {
    fn take(&mut self, world: &mut World) {
        for (side, host) in world.hosts.iter_mut().enumerate() {
            while let Some(event) = host.next() {
                match event.kind {
                    EventKind::DISCONNECTED | EventKind::REJECTED | EventKind::UNREACHABLE => {
                        self.ends[side].push(event.kind);
                    }
                    EventKind::TIMEWAIT_EXIT => {
                        assert_eq!(
                            self.ends[side],
                            [EventKind::DISCONNECTED],
                            "DISCONNECTED precedes TIMEWAIT_EXIT"
                        );
                        self.timewaits[side] += 1;
                    }
                    EventKind::CONNECT_REQUEST
                    | EventKind::CONNECT_RESPONSE
                    | EventKind::ESTABLISHED => {}
                    other => panic!("{other}"),
                }
            }
        }
    }
}

/// Brings a connection to a point, with what is sent there still under way; gives the identifiers that there are.
fn bring_to(world: &mut World, point: Point) -> [Option<Id>; 2] {
    let active = world.resolved(addr("10.0.0.2", PORT));
    let now = world.now();
    world
        .a()
        .cma
        .connect(now, active, param(0x11))
        .expect("a path");
    world.drain();
    if point == Point::Asked {
        return [Some(active), None];
    }
    world.settle();
    let passive = world.b().expect(EventKind::CONNECT_REQUEST).id;
    let ids = [Some(active), Some(passive)];
    if point == Point::Requested {
        return ids;
    }
    let now = world.now();
    let answer = ConnectParam {
        responder_resources: 3,
        initiator_depth: 4,
        ..param(0x12)
    };
    world
        .b()
        .cma
        .accept(now, passive, Some(1), answer)
        .expect("waits");
    world.drain();
    if point == Point::Accepted {
        return ids;
    }
    world.settle();
    world.a().expect(EventKind::CONNECT_RESPONSE);
    if point == Point::Responded {
        return ids;
    }
    let now = world.now();
    world.a().cma.establish(now, active).expect("responded");
    world.drain();
    if point == Point::Established {
        world.settle();
        world.b().expect(EventKind::ESTABLISHED);
    }
    ids
}

fn disconnect(world: &mut World, side: usize, ids: &[Option<Id>; 2]) -> Option<Disconnect> {
    let now = world.now();
    let id = ids[side]?;
    let done = world.hosts[side].cma.disconnect(now, id);
    world.drain();
    Some(done.expect("there was a connection once"))
}

/// Public faults 27, 32, 56: whoever disconnects at whatever moment, whatever crosses it on the way, and whichever
/// message is lost: each side gets one end and no more, DISCONNECTED before TIMEWAIT_EXIT, and a second disconnect is
/// harmless.
#[test]
fn every_connection_ends_once_on_each_side() {
    let orders: [&[usize]; 4] = [&[0], &[1], &[0, 1], &[1, 0]];
    for point in POINTS {
        for order in orders {
            for lost in [None, Some("REJ"), Some("DREQ"), Some("DREP"), Some("RTU")] {
                let case = format!("{point:?}, {order:?} disconnect, {lost:?} lost");
                let mut world = World::pair();
                world.b().listener(addr("0.0.0.0", PORT), 0);
                let ids = bring_to(&mut world, point);
                world.network.lose = lost.into_iter().collect();
                for side in order {
                    disconnect(&mut world, *side, &ids);
                }
                world.settle();
                let mut told = Told::default();
                told.take(&mut world);
                for side in [0, 1] {
                    disconnect(&mut world, side, &ids);
                }
                world.run(300 * SECOND);
                told.take(&mut world);
                for side in [0, 1] {
                    let done = disconnect(&mut world, side, &ids);
                    assert!(
                        matches!(done, None | Some(Disconnect::Nothing { .. })),
                        "{case}: {done:?}"
                    );
                }
                // A request that was not accepted has no events.
                let accepted = usize::from(point >= Point::Accepted);
                let ends = told.ends.each_ref().map(Vec::len);
                assert_eq!(ends, [1, accepted], "{case}: {told:?}");
                assert!(told.timewaits.iter().all(|count| *count <= 1), "{case}");
                for side in [0, 1] {
                    let left: Vec<Id> = world.hosts[side].cma.ids().collect();
                    let now = world.now();
                    for id in left {
                        world.hosts[side].cma.destroy_id(now, id).expect("exists");
                    }
                }
                world.assert_nothing_left();
            }
        }
    }
}

/// Public fault 27: a disconnect before the connection is up says so to the peer at once, and to the caller as one end.
#[test]
fn a_disconnect_before_the_connection_is_up_withdraws_it() {
    // (the point, who disconnects, what the peer is told, the reason)
    let cases = [
        (Point::Accepted, 0, EventKind::REJECTED, 4),
        (Point::Responded, 0, EventKind::REJECTED, 28),
        (Point::Requested, 1, EventKind::REJECTED, 28),
        (Point::Responded, 1, EventKind::REJECTED, 28),
        (Point::Confirmed, 1, EventKind::REJECTED, 28),
    ];
    for (point, side, kind, reason) in cases {
        let mut world = World::pair();
        world.b().listener(addr("0.0.0.0", PORT), 0);
        let ids = bring_to(&mut world, point);
        let done = disconnect(&mut world, side, &ids);
        assert_eq!(done, Some(Disconnect::Withdrawn), "{point:?}");
        if point != Point::Requested {
            let event = world.hosts[side].expect(EventKind::DISCONNECTED);
            assert_eq!((Some(event.id), event.status), (ids[side], 0));
            let query = world.hosts[side].cma.query(event.id).expect("exists");
            assert_eq!(query.state, State::Disconnect);
        }
        world.settle();
        let event = world.hosts[1 - side].expect(kind);
        assert_eq!(event.status, reason, "{point:?}");
    }
}

/// Public fault 32: rejecting and disconnecting cross in every order, and nobody gets two ends.
#[test]
fn a_rejection_and_a_disconnect_cross() {
    for rejects_first in [false, true] {
        for point in [Point::Requested, Point::Responded] {
            let mut world = World::pair();
            world.b().listener(addr("0.0.0.0", PORT), 0);
            let ids = bring_to(&mut world, point);
            // The passive side rejects the request; the active side rejects the response.
            let rejecter = usize::from(point == Point::Requested);
            let reject = |world: &mut World| {
                let now = world.now();
                let id = ids[rejecter].expect("both exist");
                let cma = &mut world.hosts[rejecter].cma;
                cma.reject(now, id, RejReason::CONSUMER_DEFINED, &[])
                    .expect("waits for an answer");
                world.drain();
            };
            if rejects_first {
                reject(&mut world);
                disconnect(&mut world, 1 - rejecter, &ids);
            } else {
                disconnect(&mut world, 1 - rejecter, &ids);
                reject(&mut world);
            }
            world.run(300 * SECOND);
            let mut told = Told::default();
            told.take(&mut world);
            // Who rejects has no event, but for the answer to what crossed it, which finds the end already there.
            assert_eq!(
                told.ends[1 - rejecter],
                [EventKind::DISCONNECTED],
                "{point:?}, reject first: {rejects_first}"
            );
            assert_eq!(told.ends[rejecter], []);
        }
    }
}

/// Public fault 45: a peer that was restarted asks again from the same address, CA and queue pair: the old connection
/// ends, the new request is rejected as stale once, and the next one comes through.
#[test]
fn a_restarted_peer_ends_its_old_connection_and_connects_again() {
    let config = || {
        let mut config = Config::default();
        config.cm.ca_guid = Guid(0xA000);
        config
    };
    let mut world = World::with(&[config(), config()]);
    world.b().cma = {
        let mut config = Config::default();
        config.cm.ca_guid = Guid(0xB000);
        Host::new(config, 2, usual_devices(2)).cma
    };
    world.b().channel = world.b().cma.create_channel().expect("the first");
    world.b().listener(addr("0.0.0.0", PORT), 0);
    let (_, passive) = world.connected();
    // The restart: nothing is left of the old life but the queue pair number that is given again.
    let seed = 77;
    world.hosts[0] = Host::new(config(), seed, usual_devices(1));
    let mut results = Vec::new();
    for _ in 0..2 {
        let active = world.resolved(addr("10.0.0.2", PORT));
        world.connect(active, param(0x11));
        world.settle();
        results.push(world.a().next().map(|event| (event.kind, event.status)));
        world.run(SECOND);
    }
    assert_eq!(results, [Some((EventKind::REJECTED, 10)), None]);
    let mut seen = Vec::new();
    while let Some(event) = world.b().next() {
        seen.push((event.kind, event.id == passive));
    }
    assert_eq!(
        seen,
        [
            (EventKind::DISCONNECTED, true),
            (EventKind::TIMEWAIT_EXIT, true),
            (EventKind::CONNECT_REQUEST, false)
        ]
    );
}

/// Public fault 54: a thousand clients against a backlog of eight, all at once, who ask again when they are given up
/// on: everybody connects, and the overflow is visible.
#[test]
fn a_thousand_clients_get_through_a_backlog_of_eight() {
    const CLIENTS: u32 = 1000;
    let mut quick = Config::default();
    quick.cm.req_wait = Some(Duration::from_millis(100));
    let mut world = World::with(&[quick, Config::default()]);
    let listener = world.b().listener(addr("0.0.0.0", PORT), 8);
    let connect = |world: &mut World, n: u32| {
        let id = world.resolved(addr("10.0.0.2", PORT));
        let now = world.now();
        let param = param(0x1000 + n);
        world.a().cma.connect(now, id, param).expect("a path");
    };
    for n in 0..CLIENTS {
        connect(&mut world, n);
    }
    let (mut attempts, mut accepted, mut responded) = (CLIENTS, 0, 0);
    for _ in 0..10_000 {
        world.run(Duration::from_millis(10));
        while let Some(event) = world.b().next() {
            if event.kind != EventKind::CONNECT_REQUEST {
                continue;
            }
            let now = world.now();
            let answer = ConnectParam {
                qpn: super::world::qpn(0x10_0000 + accepted),
                ..ConnectParam::default()
            };
            let cma = &mut world.b().cma;
            cma.accept(now, event.id, None, answer).expect("waits");
            accepted += 1;
        }
        let mut given_up = 0;
        while let Some(event) = world.a().next() {
            let now = world.now();
            if event.kind == EventKind::CONNECT_RESPONSE {
                world.a().cma.establish(now, event.id).expect("responded");
                responded += 1;
                continue;
            }
            assert_eq!(event.kind, EventKind::UNREACHABLE);
            world.a().cma.destroy_id(now, event.id).expect("exists");
            given_up += 1;
        }
        for _ in 0..given_up {
            connect(&mut world, attempts);
            attempts += 1;
        }
        if responded == CLIENTS {
            break;
        }
    }
    assert_eq!((accepted, responded), (CLIENTS, CLIENTS));
    let backlog = world.b().cma.query(listener).expect("exists").backlog;
    let overflows = backlog.expect("listens").overflows;
    assert!(overflows > 0);
    let counter = Counter::RequestsDroppedBacklog;
    assert_eq!(world.b().cma.counters().get(counter), overflows);
}

/// Public fault 54: as an option, the requests beyond the backlog are told at once, for reason 3.
#[test]
fn a_thousand_clients_can_be_told_that_the_backlog_is_full() {
    let config = Config {
        backlog_overflow: BacklogOverflow::RejectNoResources,
        ..Config::default()
    };
    let mut world = World::with(&[Config::default(), config]);
    world.b().listener(addr("0.0.0.0", PORT), 8);
    for n in 0..1000 {
        let id = world.resolved(addr("10.0.0.2", PORT));
        let now = world.now();
        let param = param(0x1000 + n);
        world.a().cma.connect(now, id, param).expect("a path");
    }
    world.settle();
    let mut refused = 0;
    while let Some(event) = world.a().next() {
        assert_eq!((event.kind, event.status), (EventKind::REJECTED, 3));
        refused += 1;
    }
    assert_eq!(refused, 1000 - 8);
}
