//! Moving identifiers between event channels (R-MIG), single steps.

use crate::support::*;
use oarlock_rdmacm::{Error, Event, EventChannel, Identifier, PortSpace};
use std::sync::mpsc::channel as pipe;
use std::time::{Duration, Instant};

/// R-MIG-1: events after the move are reported on the new channel, and only there.
#[test]
fn later_events_come_out_of_the_new_channel() {
    let pair = pair();
    let new = channel(&pair.host);
    pair.active.migrate(&new).unwrap();
    pair.passive.disconnect().unwrap();
    let event = expect(&new, "DISCONNECTED");
    assert_eq!(event.id(), &pair.active);
    assert_empty(&pair.active_channel);
}

/// R-MIG-2: events that were queued move along, in order, behind what the new channel has already.
#[test]
fn queued_events_move_in_order() {
    let host = private();
    let old = channel(&host);
    let new = channel(&host);
    let (_listener, address) = listener(&channel(&host));
    let moving = Identifier::new(&old, PortSpace::TCP).unwrap();
    let staying = Identifier::new(&new, PortSpace::TCP).unwrap();
    moving.resolve_addr(None, address, LONG).unwrap();
    staying.resolve_addr(None, address, LONG).unwrap();
    wait_queued(&host, 2);
    moving.resolve_route(LONG).unwrap();
    wait_queued(&host, 3);
    moving.migrate(&new).unwrap();
    assert_empty(&old);
    let seen: Vec<(Identifier, &str)> = (0..3)
        .map(|_| {
            let event = new.get_event_timeout(LONG).unwrap().unwrap();
            (event.id().clone(), event.name())
        })
        .collect();
    assert_eq!(
        seen,
        [
            (staying, "RDMA_CM_EVENT_ADDR_RESOLVED"),
            (moving.clone(), "RDMA_CM_EVENT_ADDR_RESOLVED"),
            (moving, "RDMA_CM_EVENT_ROUTE_RESOLVED"),
        ]
    );
    assert_empty(&new);
}

/// R-MIG-3: the call waits for an event that another thread has fetched and not acknowledged. The identifier has moved
/// meanwhile: its new events come out of the new channel and can be acknowledged, which does not end the wait.
#[test]
fn migrating_waits_for_delivered_events_and_nothing_else() {
    let host = private();
    let old = channel(&host);
    let new = channel(&host);
    let (_listener, address) = listener(&channel(&host));
    let id = Identifier::new(&old, PortSpace::TCP).unwrap();
    id.resolve_addr(None, address, LONG).unwrap();
    let held = expect(&old, "ADDR_RESOLVED");
    let before = channel_of(&host, &id);
    let (done, finished) = pipe();
    let migrating = {
        let (id, new) = (id.clone(), new.clone());
        std::thread::spawn(move || {
            id.migrate(&new).unwrap();
            done.send(()).unwrap();
        })
    };
    // The service shows that it has moved; its events come out of the new channel.
    while channel_of(&host, &id) == before {
        std::thread::yield_now();
    }
    id.resolve_route(LONG).unwrap();
    expect(&new, "ROUTE_RESOLVED").ack();
    assert_empty(&old);
    // A migration that does not wait has long said so.
    std::thread::sleep(Duration::from_millis(20));
    assert!(finished.try_recv().is_err(), "an event is still held");
    held.ack();
    finished
        .recv_timeout(LONG)
        .expect("nothing is held any more");
    migrating.join().unwrap();
}

/// R-MIG-3: neither queued events, nor events of other identifiers, nor acknowledged ones make it wait.
#[test]
fn migrating_does_not_wait_for_other_events() {
    let host = private();
    let old = channel(&host);
    let (_listener, address) = listener(&channel(&host));
    let ids: Vec<Identifier> = (0..2)
        .map(|_| Identifier::new(&old, PortSpace::TCP).unwrap())
        .collect();
    for id in &ids {
        id.resolve_addr(None, address, LONG).unwrap();
    }
    let first = expect(&old, "ADDR_RESOLVED");
    let other = ids.iter().find(|id| *id != first.id()).unwrap();
    let new = channel(&host);
    // Held: an event of `first`. Queued: one of `other`.
    other.migrate(&new).unwrap();
    assert_eq!(expect(&new, "ADDR_RESOLVED").id(), other);
    other.migrate(&old).unwrap();
    first.ack();
}

/// R-MIG-6: a thread that holds an event of the identifier would wait for itself; it gets an error, and nothing
/// happens. Public fault 1: the unacknowledged events are named.
#[test]
fn the_holder_of_an_event_gets_an_error_instead_of_a_deadlock() {
    let host = private();
    let old = channel(&host);
    let new = channel(&host);
    let (_listener, address) = listener(&channel(&host));
    let id = Identifier::new(&old, PortSpace::TCP).unwrap();
    id.resolve_addr(None, address, LONG).unwrap();
    let held = expect(&old, "ADDR_RESOLVED");
    let error = id.migrate(&new).unwrap_err();
    let message = "migrate: the calling thread holds 1 event of this identifier (RDMA_CM_EVENT_ADDR_RESOLVED)";
    assert!(error.to_string().starts_with(message), "{error}");
    assert!(matches!(error, Error::EventHeldByCaller { .. }), "{error}");
    assert_eq!(error.errno(), 35);
    // It is still on the old channel.
    id.resolve_route(LONG).unwrap();
    expect(&old, "ROUTE_RESOLVED").ack();
    // Given to another thread, which acknowledges it, the event is waited for.
    let held = held.handed_over();
    let other = std::thread::spawn(move || held.ack());
    id.migrate(&new).unwrap();
    other.join().unwrap();
    // And without one there is nothing to wait for.
    id.migrate(&old).unwrap();
}

/// R-MIG-3 and public fault 2: at the identifier's deadline `migrate` and `close` end, say which events are missing,
/// and have done the rest.
#[test]
fn a_deadline_ends_the_wait_for_acknowledgements() {
    let host = private();
    let old = channel(&host);
    let new = channel(&host);
    let (_listener, address) = listener(&channel(&host));
    let id = Identifier::new(&old, PortSpace::TCP).unwrap();
    id.resolve_addr(None, address, LONG).unwrap();
    let held = expect(&old, "ADDR_RESOLVED").handed_over();
    id.set_deadline(Some(Instant::now() + Duration::from_millis(30)));
    let error = id.migrate(&new).unwrap_err();
    assert!(
        matches!(&error, Error::Unacknowledged { call: "migrate", events, .. }
            if *events == ["RDMA_CM_EVENT_ADDR_RESOLVED"]),
        "{error}"
    );
    assert_eq!(error.errno(), 110);
    // It has moved.
    id.resolve_route(LONG).unwrap();
    expect(&new, "ROUTE_RESOLVED").ack();
    let error = id.clone().close().unwrap_err();
    assert!(
        matches!(error, Error::Unacknowledged { call: "close", .. }),
        "{error}"
    );
    // It is destroyed.
    assert!(matches!(id.resolve_route(LONG), Err(Error::Closed { .. })));
    held.ack();
}

/// Item 9: a forgotten event is one that its thread holds for ever. No call of that thread hangs, and others are not
/// concerned.
#[test]
fn a_forgotten_event_hangs_nobody() {
    let host = private();
    let old = channel(&host);
    let new = channel(&host);
    let (_listener, address) = listener(&channel(&host));
    let forgotten = Identifier::new(&old, PortSpace::TCP).unwrap();
    forgotten.resolve_addr(None, address, LONG).unwrap();
    std::mem::forget(expect(&old, "ADDR_RESOLVED"));
    let other = resolved(&old, address);
    for error in [
        forgotten.migrate(&new).unwrap_err(),
        forgotten.clone().close().unwrap_err(),
    ] {
        assert!(matches!(error, Error::EventHeldByCaller { .. }), "{error}");
    }
    drop((forgotten, old));
    other.migrate(&new).unwrap();
    other.close().unwrap();
}

/// R-MIG-7: the old channel can be dropped right after the move, its queued events come out of the new one.
#[test]
fn the_old_channel_can_be_dropped_at_once() {
    let pair = pair();
    let new = channel(&pair.host);
    pair.passive.disconnect().unwrap();
    wait_queued(&pair.host, 1);
    pair.active.migrate(&new).unwrap();
    drop(pair.active_channel);
    assert_eq!(expect(&new, "DISCONNECTED").id(), &pair.active);
    pair.active.disconnect().unwrap();
    assert_eq!(expect(&new, "TIMEWAIT_EXIT").id(), &pair.active);
}

/// R-MIG-7: a channel that is dropped while an identifier reports to it still serves that identifier.
#[test]
fn a_channel_lives_as_long_as_its_identifiers() {
    let host = private();
    let old = channel(&host);
    let (_listener, address) = listener(&channel(&host));
    let id = Identifier::new(&old, PortSpace::TCP).unwrap();
    drop(old);
    id.resolve_addr(None, address, LONG).unwrap();
    wait_queued(&host, 1);
    let new = channel(&host);
    id.migrate(&new).unwrap();
    expect(&new, "ADDR_RESOLVED");
}

/// R-MIG-4: a new connection starts on its listener's channel; listen events can be had alone by migrating after the
/// request.
#[test]
fn connections_can_leave_the_listen_channel_after_the_request() {
    let host = private();
    let listening = channel(&host);
    let established = channel(&host);
    let active_channel = channel(&host);
    let (listener, address) = listener(&listening);
    let active = resolved(&active_channel, address);
    active.connect(&external(1)).unwrap();
    let request = request(&listening);
    assert_eq!(request.listen_id, listener);
    request.id.migrate(&established).unwrap();
    request.id.accept(&external(2)).unwrap();
    expect(&active_channel, "CONNECT_RESPONSE");
    active.establish().unwrap();
    assert_eq!(expect(&established, "ESTABLISHED").id(), &request.id);
    assert_empty(&listening);
}

/// R-MIG-4: the channel can be chosen when accepting, or changed after establishment.
#[test]
fn the_channel_can_be_chosen_when_accepting_or_later() {
    let host = private();
    let listening = channel(&host);
    let establishing = channel(&host);
    let later = channel(&host);
    let active_channel = channel(&host);
    let (_listener, address) = listener(&listening);
    let active = resolved(&active_channel, address);
    active.connect(&external(1)).unwrap();
    let passive = request(&listening).id;
    passive.accept_on(&establishing, &external(2)).unwrap();
    expect(&active_channel, "CONNECT_RESPONSE");
    active.establish().unwrap();
    expect(&establishing, "ESTABLISHED");
    passive.migrate(&later).unwrap();
    active.disconnect().unwrap();
    expect(&later, "DISCONNECTED");
    assert_empty(&listening);
    assert_empty(&establishing);
}

/// R-MIG-9: a queued connection request moves with its listener, and the new identifier with it: it can be accepted
/// there after the old channel is gone. Public fault 71.
#[test]
fn children_of_queued_requests_move_with_the_listener() {
    let host = private();
    let old = channel(&host);
    let new = channel(&host);
    let active_channel = channel(&host);
    let (listener, address) = listener(&old);
    let active = resolved(&active_channel, address);
    active.connect(&external(1)).unwrap();
    wait_queued(&host, 1);
    listener.migrate(&new).unwrap();
    drop(old);
    let child = request(&new).id;
    child.accept(&external(2)).unwrap();
    expect(&active_channel, "CONNECT_RESPONSE");
    active.establish().unwrap();
    assert_eq!(expect(&new, "ESTABLISHED").id(), &child);
}

/// R-MIG-9: readers that wait on the new channel wake up for an event that migrates there. Public fault 71.
#[test]
fn a_waiting_reader_of_the_new_channel_wakes_up() {
    let host = private();
    let old = channel(&host);
    let new = channel(&host);
    let (_listener, address) = listener(&channel(&host));
    let id = Identifier::new(&old, PortSpace::TCP).unwrap();
    let (waiting, is_waiting) = pipe();
    let reader = {
        let new = new.clone();
        std::thread::spawn(move || {
            assert_empty(&new);
            waiting.send(()).unwrap();
            new.get_event_timeout(LONG)
                .unwrap()
                .map(|event| event.id().clone())
        })
    };
    is_waiting.recv().unwrap();
    id.resolve_addr(None, address, LONG).unwrap();
    wait_queued(&host, 1);
    id.migrate(&new).unwrap();
    assert_eq!(reader.join().unwrap(), Some(id));
}

/// R-MIG-8: migrating to no channel makes the identifier synchronous, migrating to a channel an ordinary one again.
#[test]
fn to_no_channel_and_back() {
    let pair = pair();
    pair.active.migrate_to_none().unwrap();
    assert!(pair.active.is_synchronous());
    let error = pair.active.migrate_to_none().unwrap_err();
    assert!(matches!(error, Error::AlreadySynchronous), "{error}");
    pair.passive.disconnect().unwrap();
    assert!(matches!(
        pair.active.next_event().unwrap(),
        Event::Disconnected { .. }
    ));
    assert_empty(&pair.active_channel);
    pair.active.disconnect().unwrap();
    let new = channel(&pair.host);
    pair.active.migrate(&new).unwrap();
    assert!(!pair.active.is_synchronous());
    expect(&new, "TIMEWAIT_EXIT");
}

/// R-MIG-8: an identifier born synchronous can get a channel, and its calls no longer wait.
#[test]
fn from_synchronous_to_a_channel() {
    let host = private();
    let (_listener, address) = listener(&channel(&host));
    let id = Identifier::synchronous(&host, PortSpace::TCP).unwrap();
    id.resolve_addr(None, address, LONG).unwrap();
    let new = channel(&host);
    id.migrate(&new).unwrap();
    id.resolve_route(LONG).unwrap();
    expect(&new, "ROUTE_RESOLVED");
}

/// R-MIG-6: a thread that waits for a synchronous identifier does not wait for ever when that gets a channel.
#[test]
fn a_synchronous_wait_ends_when_the_identifier_gets_a_channel() {
    let host = private();
    let id = Identifier::synchronous(&host, PortSpace::TCP).unwrap();
    id.listen(0).unwrap();
    let waiter = {
        let id = id.clone();
        std::thread::spawn(move || id.get_request().map(drop))
    };
    let new = channel(&host);
    id.migrate(&new).unwrap();
    let error = waiter.join().unwrap().unwrap_err();
    assert!(matches!(error, Error::NotSynchronous { .. }), "{error}");
}

#[test]
fn a_channel_of_another_host_is_refused() {
    let host = private();
    let id = Identifier::new(&channel(&host), PortSpace::TCP).unwrap();
    let error = id.migrate(&channel(&private())).unwrap_err();
    assert!(matches!(error, Error::OtherHost { .. }), "{error}");
}

/// R-MIG-3: closing waits for delivered events as migrating does, and then no event of the identifier is left. Public
/// fault 1.
#[test]
fn closing_waits_for_delivered_events() {
    let pair = pair();
    pair.passive.disconnect().unwrap();
    let held = expect(&pair.active_channel, "DISCONNECTED");
    let error = pair.active.clone().close().unwrap_err();
    assert!(matches!(error, Error::EventHeldByCaller { .. }), "{error}");
    held.ack();
    let error = pair.active.disconnect().unwrap_err();
    assert!(matches!(error, Error::Closed { .. }), "{error}");

    let held = expect(&pair.passive_channel, "DISCONNECTED").handed_over();
    let (done, finished) = pipe();
    let closing = {
        let passive = pair.passive.clone();
        std::thread::spawn(move || {
            passive.close().unwrap();
            done.send(()).unwrap();
        })
    };
    while pair.host.ps().unwrap().ids.len() > 1 {
        std::thread::yield_now();
    }
    std::thread::sleep(Duration::from_millis(20));
    assert!(
        finished.try_recv().is_err(),
        "destroyed, and an event is still held"
    );
    held.ack();
    finished.recv_timeout(LONG).unwrap();
    closing.join().unwrap();
    assert_empty(&pair.passive_channel);
    assert_empty(&pair.active_channel);
}

/// Item 9: an event keeps its identifier alive, and dropping never waits.
#[test]
fn an_event_keeps_its_identifier_alive() {
    let host = private();
    let events = channel(&host);
    let (_listener, address) = listener(&channel(&host));
    let id = Identifier::new(&events, PortSpace::TCP).unwrap();
    id.set_context(7);
    id.resolve_addr(None, address, LONG).unwrap();
    let event = expect(&events, "ADDR_RESOLVED");
    drop(id);
    drop(events);
    assert_eq!(event.id().context(), 7);
    assert!(event.id().local_addr().unwrap().is_some());
    drop(event);
    while host.ps().unwrap().ids.len() > 1 {
        std::thread::yield_now();
    }
}

/// The descriptor of a channel is readable while events are queued, also those that migrated there.
#[test]
fn the_descriptor_tells_of_events() {
    fn readable(channel: &EventChannel) -> bool {
        let mut fds = [rustix::event::PollFd::new(
            channel,
            rustix::event::PollFlags::IN,
        )];
        let now = rustix::event::Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        rustix::event::poll(&mut fds, Some(&now)).unwrap() > 0
    }
    let host = private();
    let (old, new) = (channel(&host), channel(&host));
    let (_listener, address) = listener(&channel(&host));
    let id = Identifier::new(&old, PortSpace::TCP).unwrap();
    assert!(!readable(&old));
    id.resolve_addr(None, address, LONG).unwrap();
    wait_queued(&host, 1);
    assert!(readable(&old));
    assert!(!readable(&new));
    id.migrate(&new).unwrap();
    assert!(readable(&new));
    expect(&new, "ADDR_RESOLVED").ack();
    assert_empty(&new);
    assert!(!readable(&new));
    // The byte of the event that left is taken by whoever looks.
    assert_empty(&old);
    assert!(!readable(&old));
}

/// A connection with real queue pairs survives any number of moves on both sides.
#[test]
fn connections_survive_migration() {
    let pair = pair();
    for _ in 0..3 {
        pair.active.migrate(&channel(&pair.host)).unwrap();
        pair.passive.migrate(&channel(&pair.host)).unwrap();
        pair.listener.migrate(&channel(&pair.host)).unwrap();
    }
    let last = channel(&pair.host);
    for id in [&pair.active, &pair.passive, &pair.listener] {
        id.migrate(&last).unwrap();
    }
    pair.active.disconnect().unwrap();
    assert_eq!(expect(&last, "DISCONNECTED").id(), &pair.passive);
    // The answer to the peer's disconnection.
    pair.passive.disconnect().unwrap();
    assert_eq!(expect(&last, "DISCONNECTED").id(), &pair.active);
    for id in [pair.active, pair.passive] {
        id.close().unwrap();
    }
    assert_empty(&last);
    let again = resolved(&last, pair.address);
    again.connect(&external(1)).unwrap();
    assert_eq!(request(&last).listen_id, pair.listener);
}
