//! Destroying identifiers and channels in every state; devices that go away.

use super::world::{PORT, SECOND, World, addr, param};
use crate::{ConnectParam, Errno, Error, EventKind, State};
use oarlock_wire::CmMessage;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

fn listening() -> (World, crate::Id) {
    let mut world = World::pair();
    let listener = world.b().listener(addr("0.0.0.0", PORT), 0);
    (world, listener)
}

fn sent(world: &World, name: &str) -> usize {
    world
        .network
        .sent
        .iter()
        .filter(|sent| **sent == name)
        .count()
}

#[test]
fn an_identifier_can_be_destroyed_in_every_state_and_leaves_nothing() {
    // How far the connection gets before its active side is destroyed.
    for steps in 0..=9 {
        let (mut world, listener) = listening();
        let active = world.a().id();
        let mut passive = None;
        for step in 0..steps {
            let now = world.now();
            match step {
                0 => world
                    .a()
                    .cma
                    .bind_addr(active, addr("10.0.0.1", 0))
                    .expect("idle"),
                1 => {
                    world.ask(active, addr("10.0.0.2", PORT));
                }
                2 => world.drain(),
                3 => world
                    .a()
                    .cma
                    .resolve_route(active, SECOND)
                    .expect("resolved"),
                4 => world
                    .a()
                    .cma
                    .connect(now, active, param(0x11))
                    .expect("a path"),
                5 => world.settle(),
                6 => {
                    passive = world.b().next().map(|event| event.id);
                    let child = passive.expect("a request");
                    world.accept(child, ConnectParam::default());
                }
                7 => {
                    world.establish(active);
                }
                _ => {
                    world.a().cma.disconnect(now, active).expect("connected");
                }
            }
        }
        let now = world.now();
        world.a().cma.destroy_id(now, active).expect("exists");
        assert_eq!(
            world.a().cma.destroy_id(now, active),
            Err(Error::UnknownId),
            "the second time, after {steps} steps"
        );
        world.settle();
        let now = world.now();
        for id in passive.into_iter().chain([listener]) {
            world.b().cma.destroy_id(now, id).expect("exists");
        }
        world.assert_nothing_left();
    }
}

#[test]
fn destroying_gives_the_number_of_events_that_were_handed_out_not_of_those_queued() {
    let (mut world, _) = listening();
    let id = world.a().id();
    let now = world.now();
    world.ask(id, addr("127.0.0.1", PORT));
    world.a().expect(EventKind::ADDR_RESOLVED);
    world.a().cma.resolve_route(id, SECOND).expect("resolved");
    assert_eq!(world.a().cma.destroy_id(now, id), Ok(1));
    world.a().expect_nothing();
}

#[test]
fn destroying_a_listener_rejects_the_requests_that_wait_and_spares_those_taken() {
    let (mut world, listener) = listening();
    let (taken_active, taken) = world.requested();
    let waiting = world.resolved(addr("10.0.0.2", PORT));
    let now = world.now();
    world.connect(waiting, param(0x21));
    assert_eq!(world.b().cma.len(), 3);
    // Two requests were queued, one was handed out.
    assert_eq!(world.b().cma.destroy_id(now, listener), Ok(1));
    world.settle();
    let event = world.a().expect(EventKind::REJECTED);
    assert_eq!((event.id, event.status), (waiting, 28));
    world.b().expect_nothing();
    assert_eq!(world.b().cma.len(), 1);
    world.accept(taken, ConnectParam::default());
    assert_eq!(
        world.a().expect(EventKind::CONNECT_RESPONSE).id,
        taken_active
    );
    // The port is free for another listener at once.
    world.b().listener(addr("0.0.0.0", PORT), 0);
}

#[test]
fn what_the_peer_is_told_depends_on_how_far_the_connection_is() {
    let (mut world, _) = listening();
    let reasons = Rc::new(RefCell::new(Vec::new()));
    let seen = Rc::clone(&reasons);
    world.tap = Some(Box::new(move |message| {
        if let CmMessage::Rej(rej) = message {
            seen.borrow_mut().push(rej.reason.0);
        }
    }));
    let (active, _) = world.requested();
    let now = world.now();
    world.a().cma.destroy_id(now, active).expect("exists");
    world.settle();
    let (_, passive) = world.requested();
    world.b().cma.destroy_id(now, passive).expect("exists");
    world.settle();
    assert_eq!(world.a().expect(EventKind::REJECTED).status, 28);
    assert_eq!(*reasons.borrow(), [4, 28]);
    let (active, passive) = world.connected();
    let now = world.now();
    world.a().cma.destroy_id(now, active).expect("exists");
    world.settle();
    world.b().expect(EventKind::DISCONNECTED);
    assert_eq!((sent(&world, "DREQ"), sent(&world, "DREP")), (1, 0));
    let now = world.now();
    world.b().cma.destroy_id(now, passive).expect("exists");
    world.settle();
    assert_eq!((sent(&world, "DREQ"), sent(&world, "DREP")), (1, 1));
}

#[test]
fn destroying_a_channel_destroys_what_reports_there_and_nothing_else() {
    let (mut world, listener) = listening();
    let (_, taken) = world.requested();
    let waiting = world.resolved(addr("10.0.0.2", PORT));
    let now = world.now();
    world.connect(waiting, param(0x21));
    let elsewhere = world.b().cma.create_channel().expect("a second");
    world.b().cma.migrate_id(taken, elsewhere).expect("exists");
    let channel = world.b().channel;
    world.b().cma.destroy_channel(now, channel).expect("exists");
    world.settle();
    assert_eq!(world.a().expect(EventKind::REJECTED).id, waiting);
    assert_eq!(world.b().cma.ids().collect::<Vec<_>>(), [taken]);
    assert_eq!(world.b().cma.query(listener), Err(Error::UnknownId));
    assert_eq!(
        world.b().cma.destroy_channel(now, channel),
        Err(Error::UnknownChannel)
    );
    let refused = world
        .b()
        .cma
        .create_id(channel, crate::PortSpace::TCP, crate::QpType::RC, 0);
    assert_eq!(refused, Err(Error::UnknownChannel));
    let actives: Vec<_> = world.a().cma.ids().collect();
    for id in actives {
        world.a().cma.destroy_id(now, id).expect("exists");
    }
    world
        .b()
        .cma
        .destroy_channel(now, elsewhere)
        .expect("exists");
    world.assert_nothing_left();
}

#[test]
fn a_device_that_goes_away_is_reported_once_and_only_destruction_is_left() {
    let (mut world, wildcard) = listening();
    let specific = world.b().listener(addr("10.0.0.2", PORT + 1), 0);
    let (active, passive) = world.connected();
    let now = world.now();
    world
        .b()
        .cma
        .set_devices(now, vec![super::world::loopback(1)]);
    let mut removed = [
        world.b().expect(EventKind::DEVICE_REMOVAL).id,
        world.b().expect(EventKind::DEVICE_REMOVAL).id,
    ];
    removed.sort_unstable();
    let mut expected = [specific, passive];
    expected.sort_unstable();
    assert_eq!(removed, expected);
    world.b().cma.set_devices(now, vec![]);
    world.b().expect_nothing();
    assert_eq!(
        world.b().cma.query(passive).expect("exists").state,
        State::DeviceRemoval
    );
    let refused = world.b().cma.disconnect(now, passive).expect_err("removed");
    assert_eq!(
        (refused.errno(), refused.to_string().as_str()),
        (Errno::ENXIO, "disconnect: the identifier's device has gone")
    );
    assert_eq!(
        world.b().cma.query(wildcard).expect("exists").state,
        State::Listen
    );
    world.settle();
    assert_eq!(world.a().expect(EventKind::DISCONNECTED).id, active);
    for id in [specific, passive, wildcard] {
        world.b().cma.destroy_id(now, id).expect("exists");
    }
    world.a().cma.destroy_id(now, active).expect("exists");
    world.assert_nothing_left();
}

/// A REQ from A, which has arrived at B.
fn ask(world: &mut World) -> crate::Id {
    let active = world.resolved(addr("10.0.0.2", PORT));
    world.connect(active, param(0x11));
    active
}

fn destroy_listener(world: &mut World, listener: crate::Id) {
    let now = world.now();
    world.b().cma.destroy_id(now, listener).expect("exists");
}

#[test]
fn a_request_between_two_listeners_of_a_port_is_for_the_second() {
    let (mut world, first) = listening();
    destroy_listener(&mut world, first);
    let active = ask(&mut world);
    world.b().expect_nothing();
    let second = world.b().listener(addr("10.0.0.2", PORT), 0);
    world.run(Duration::from_millis(1));
    let request = world.b().expect(EventKind::CONNECT_REQUEST);
    assert_eq!(request.listen_id, Some(second));
    world.accept(request.id, ConnectParam::default());
    world.establish(active);
    assert_eq!(sent(&world, "REJ"), 0);
}

/// A listener that goes with its channel does not come back, nor one whose owner has ended: there is no wait.
#[test]
fn a_request_for_a_listener_that_does_not_come_back_is_rejected_at_once() {
    let ends: [fn(&mut World, crate::Id); 3] = [
        |world, _| {
            let (now, channel) = (world.now(), world.b().channel);
            world.b().cma.destroy_channel(now, channel).expect("exists");
        },
        |world, listener| {
            destroy_listener(world, listener);
            world.b().cma.end_owner(5);
        },
        |world, listener| {
            // Bound, and never a listener.
            let bound = world.b().id();
            destroy_listener(world, listener);
            world.b().cma.end_owner(5);
            let address = addr("0.0.0.0", PORT);
            world.b().cma.bind_addr(bound, address).expect("free");
            destroy_listener(world, bound);
        },
    ];
    for end in ends {
        let (mut world, listener) = listening();
        let channel = world.b().channel;
        world.b().cma.set_owner(channel, 5).expect("exists");
        end(&mut world, listener);
        ask(&mut world);
        world.run(Duration::from_millis(1));
        assert_eq!(world.a().expect(EventKind::REJECTED).status, 8);
    }
}

#[test]
fn a_request_that_waits_is_rejected_when_the_owner_of_the_listener_ends() {
    let (mut world, listener) = listening();
    let channel = world.b().channel;
    world.b().cma.set_owner(channel, 5).expect("exists");
    destroy_listener(&mut world, listener);
    ask(&mut world);
    world.b().cma.end_owner(6);
    world.run(Duration::from_millis(1));
    world.a().expect_nothing();
    world.b().cma.end_owner(5);
    world.run(Duration::from_millis(1));
    assert_eq!(world.a().expect(EventKind::REJECTED).status, 8);
}
