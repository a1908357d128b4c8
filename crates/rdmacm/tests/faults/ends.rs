//! Destroying, from whatever thread and at whatever moment.

use crate::support::*;
use oarlock_rdmacm::{ConnParam, Error, Event, EventChannel, Identifier, PortSpace, RejReason};
use std::sync::Barrier;

/// Destroying with an event in hand does not wait: the error names the event, which is the caller's to acknowledge; the
/// identifier is destroyed.
#[track_caller]
fn closes_at_once(id: Identifier, event: Event) {
    let error = id.clone().close().unwrap_err();
    assert!(
        matches!(&error, Error::EventHeldByCaller { events, .. } if *events == [event.name()]),
        "{}: {error}",
        event.name()
    );
    assert_eq!(error.errno(), 35, "EDEADLK");
    let error = id.resolve_route(LONG).unwrap_err();
    assert!(matches!(error, Error::Closed { .. }), "{error}");
    event.ack();
}

/// Public faults 1 and 2: a program of one thread, which must acknowledge the event that destroying waits for, gets an error
/// instead of a wait for itself, whatever the event; and dropping the identifier never waits.
#[test]
fn the_thread_that_reads_events_may_destroy() {
    let host = private();
    let (passive_channel, active_channel) = (channel(&host), channel(&host));
    let (listener, address) = listener(&passive_channel);

    let id = Identifier::new(&active_channel, PortSpace::TCP).unwrap();
    id.resolve_addr(None, address, LONG).unwrap();
    closes_at_once(id, expect(&active_channel, "ADDR_RESOLVED"));

    let id = Identifier::new(&active_channel, PortSpace::TCP).unwrap();
    id.resolve_addr(None, address, LONG).unwrap();
    expect(&active_channel, "ADDR_RESOLVED").ack();
    id.resolve_route(LONG).unwrap();
    closes_at_once(id, expect(&active_channel, "ROUTE_RESOLVED"));

    // An answer of the peer: no, and yes.
    let id = resolved(&active_channel, address);
    id.connect(&external(1)).unwrap();
    let child = request(&passive_channel).id;
    child.reject(RejReason::CONSUMER_DEFINED, b"").unwrap();
    closes_at_once(id, expect(&active_channel, "REJECTED"));
    drop(child);

    let id = resolved(&active_channel, address);
    id.connect(&external(2)).unwrap();
    let child = request(&passive_channel).id;
    child.accept(&external(3)).unwrap();
    closes_at_once(id, expect(&active_channel, "CONNECT_RESPONSE"));
    drop(child);

    // Both ends of a connection.
    let pair = pair();
    pair.passive.disconnect().unwrap();
    closes_at_once(pair.active, expect(&pair.active_channel, "DISCONNECTED"));
    closes_at_once(pair.passive, expect(&pair.passive_channel, "DISCONNECTED"));

    // A request counts for its listener; the new identifier is free of it.
    let id = resolved(&active_channel, address);
    id.connect(&external(4)).unwrap();
    let event = loop {
        // Ends of the identifiers above may come first.
        match passive_channel.get_event_timeout(LONG).unwrap().unwrap() {
            event @ Event::ConnectRequest { .. } => break event,
            other => other.ack(),
        }
    };
    event.id().clone().close().unwrap();
    closes_at_once(listener, event);

    // Dropping with the event in hand.
    let event = expect(&active_channel, "REJECTED");
    drop(id);
    event.ack();
    // The service hears of what was dropped before it answers.
    assert_eq!(host.ps().unwrap().ids, []);
}

/// Public fault 3: while one thread reads the event that ends a connection, and the library takes the queue pair to Error,
/// another destroys the queue pair, or the whole identifier. Nobody crashes, waits for ever or misses an end.
#[test]
fn a_queue_pair_may_be_destroyed_while_its_connection_ends() {
    let host = private();
    let (passive_channel, active_channel) = (channel(&host), channel(&host));
    let (_listener, address) = listener(&passive_channel);
    for round in 0..90 {
        let active = resolved(&active_channel, address);
        let queue_pair = idle_queue_pair(&active);
        active.connect(&ConnParam::default()).unwrap();
        let passive = request(&passive_channel).id;
        let is_rejected = round % 2 == 0;
        if !is_rejected {
            idle_queue_pair(&passive);
            passive.accept(&ConnParam::default()).unwrap();
            expect(&active_channel, "ESTABLISHED").ack();
            expect(&passive_channel, "ESTABLISHED").ack();
        }
        let way = round / 2 % 3;
        let start = Barrier::new(3);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                start.wait();
                let end = if is_rejected {
                    "REJECTED"
                } else {
                    "DISCONNECTED"
                };
                if way < 2 {
                    expect(&active_channel, end).ack();
                    return;
                }
                // The event goes with the identifier, unless it is fetched before.
                if let Some(event) = active_channel.try_event().unwrap() {
                    assert_eq!(event.name().strip_prefix("RDMA_CM_EVENT_"), Some(end));
                }
            });
            let destroyer = scope.spawn(|| {
                start.wait();
                match way {
                    0 => active.destroy_qp(),
                    1 => {
                        queue_pair.to_error().unwrap();
                        active.destroy_qp();
                    }
                    _ => active.clone().close().unwrap(),
                }
            });
            start.wait();
            if is_rejected {
                let rejected = passive.reject(RejReason::CONSUMER_DEFINED, b"");
                // Who destroys withdraws the request.
                assert!(rejected.is_ok() || way == 2, "{rejected:?}");
            } else {
                passive.disconnect().unwrap();
            }
            destroyer.join().unwrap();
            reader.join().unwrap();
        });
        if way < 2 {
            assert!(active.queue_pair().is_none(), "round {round}");
            active.close().unwrap();
        }
        drop(queue_pair);
        passive.close().unwrap();
        assert_empty(&active_channel);
        drain(&passive_channel);
    }
}

fn drain(channel: &EventChannel) {
    while let Some(event) = channel.try_event().unwrap() {
        event.ack();
    }
}

/// Public fault 16: identifiers are made, found by their events and destroyed by many threads at once on one channel; each
/// event finds its identifier, and in the end there is none.
#[test]
fn identifiers_come_and_go_in_many_threads() {
    const THREADS: usize = 4;
    const EACH: usize = 60;
    let host = private();
    let shared = channel(&host);
    let (_listener, address) = listener(&channel(&host));
    let start = Barrier::new(THREADS);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (host, shared, start) = (&host, &shared, &start);
            scope.spawn(move || {
                start.wait();
                for n in 0..EACH {
                    let id = Identifier::new(shared, PortSpace::TCP).unwrap();
                    id.set_context((thread * EACH + n) as u64);
                    id.resolve_addr(None, address, LONG).unwrap();
                    // Anybody's event; its identifier may have been dropped meanwhile.
                    if let Some(event) = shared.try_event().unwrap() {
                        assert_eq!(event.name(), "RDMA_CM_EVENT_ADDR_RESOLVED");
                        assert!(event.id().context() < (THREADS * EACH) as u64);
                    }
                    if n % 3 == 0 {
                        assert!(host.devices().unwrap().len() == 1);
                    }
                    drop(id);
                }
            });
        }
    });
    drain(&shared);
    // The listener.
    assert_eq!(host.ps().unwrap().ids.len(), 1);
}

/// Public fault 31: a queue pair completes into the queues that it was given, tells which they are, and keeps them.
#[test]
fn a_queue_pair_keeps_the_completion_queues_it_was_given() {
    use oarlock_verbs::{CompletionQueue, QpInitAttr, SendRequest};
    let host = private();
    let active_channel = channel(&host);
    let passive_channel = channel(&host);
    let (_listener, address) = listener(&passive_channel);
    let active = resolved(&active_channel, address);
    let device = active.device().unwrap();
    let (send, receive) = (
        CompletionQueue::new(&device, 4).unwrap(),
        CompletionQueue::new(&device, 8).unwrap(),
    );
    let init = QpInitAttr {
        max_send_wr: 2,
        max_recv_wr: 2,
        ..QpInitAttr::default()
    };
    let (send_id, receive_id) = (send.id(), receive.id());
    assert_ne!(send_id, receive_id);
    let pd = device.default_pd();
    let queue_pair = active.create_qp(&pd, &send, &receive, init).unwrap();
    drop((send, receive));
    assert_eq!(queue_pair.send_cq().id(), send_id);
    assert_eq!(queue_pair.recv_cq().id(), receive_id);
    active.connect(&ConnParam::default()).unwrap();
    let passive = request(&passive_channel).id;
    let far = idle_queue_pair(&passive);
    let buffer = oarlock_verbs::Buffer::new(&passive.device().unwrap().default_pd(), 16).unwrap();
    far.post_recv(1, buffer).unwrap();
    passive.accept(&ConnParam::default()).unwrap();
    expect(&active_channel, "ESTABLISHED");
    queue_pair
        .post_send(SendRequest::inline(7, b"kept"))
        .unwrap();
    let mut done = Vec::new();
    queue_pair.send_cq().wait(&mut done, Some(LONG)).unwrap();
    assert_eq!(done.remove(0).ok().unwrap().wr_id, 7);
}
