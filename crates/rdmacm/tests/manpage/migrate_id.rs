//! rdma_migrate_id(3).

use super::*;
use oarlock_rdmacm::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// R-MIG-1
#[test]
fn the_identifier_moves_to_the_channel() {
    let sides = sides();
    let new = channel(&sides.host);
    sides.active.migrate(&new).unwrap();
    sides.active.connect(&external(1)).unwrap();
    request(&sides.passive_channel)
        .id
        .accept(&external(2))
        .unwrap();
    expect(&new, "CONNECT_RESPONSE");
    assert_empty(&sides.active_channel);
}

/// R-MIG-2
#[test]
fn pending_events_move_along() {
    let sides = sides();
    let id = Identifier::new(&sides.active_channel, PortSpace::TCP).unwrap();
    id.resolve_addr(None, sides.address, LONG).unwrap();
    wait_queued(&sides.host, 1);
    let new = channel(&sides.host);
    id.migrate(&new).unwrap();
    assert_empty(&sides.active_channel);
    assert_eq!(expect(&new, "ADDR_RESOLVED").id(), &id);
}

/// R-MIG-6: the page forbids to read the channel or to use the identifier meanwhile; here both are defined, and every event
/// is seen once.
#[test]
fn others_may_read_the_channel_and_use_the_identifier_meanwhile() {
    let host = private();
    let channels = [channel(&host), channel(&host)];
    let id = Identifier::new(&channels[0], PortSpace::TCP).unwrap();
    const EVENTS: u64 = 200;
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let readers = channels.each_ref().map(|channel| {
            scope.spawn(move || {
                let mut seen = Vec::new();
                loop {
                    match channel.get_event().unwrap() {
                        Event::User { value, .. } if value < EVENTS => seen.push(value),
                        _ => return seen,
                    }
                }
            })
        });
        scope.spawn(|| {
            for value in 0..EVENTS {
                id.inject(value, 0).unwrap();
            }
            over.store(true, Ordering::Release);
        });
        let mut turn = 0;
        while !over.load(Ordering::Acquire) {
            turn += 1;
            id.migrate(&channels[turn % 2]).unwrap();
        }
        // Behind everything, on each channel.
        let mut last_ones = Vec::new();
        for channel in &channels {
            id.migrate(channel).unwrap();
            let last = Identifier::new(channel, PortSpace::TCP).unwrap();
            last.inject(EVENTS, 0).unwrap();
            last_ones.push(last);
            while any_is_queued(&host) {
                std::thread::yield_now();
            }
        }
        let mut seen: Vec<u64> = readers
            .into_iter()
            .flat_map(|reader| reader.join().unwrap())
            .collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..EVENTS).collect::<Vec<_>>());
    });
}

fn any_is_queued(host: &Host) -> bool {
    host.ps().unwrap().ids.iter().any(|id| id.queued > 0)
}

/// R-MIG-3
#[test]
fn it_blocks_while_an_event_of_the_channel_is_unacknowledged() {
    let sides = sides();
    let id = Identifier::new(&sides.active_channel, PortSpace::TCP).unwrap();
    id.resolve_addr(None, sides.address, LONG).unwrap();
    let event = expect(&sides.active_channel, "ADDR_RESOLVED").handed_over();
    let new = channel(&sides.host);
    id.set_deadline(Some(Instant::now() + Duration::from_millis(20)));
    let error = id.migrate(&new).unwrap_err();
    assert!(matches!(error, Error::Unacknowledged { .. }), "{error}");
    id.set_deadline(Some(Instant::now() + LONG));
    let migrating = std::thread::spawn({
        let (id, old) = (id.clone(), sides.active_channel.clone());
        move || id.migrate(&old)
    });
    event.ack();
    migrating.join().unwrap().unwrap();
}

/// R-MIG-8
#[test]
fn without_a_channel_all_calls_wait_for_their_outcome() {
    let sides = sides();
    let id = Identifier::new(&sides.active_channel, PortSpace::TCP).unwrap();
    assert!(!id.is_synchronous());
    id.migrate_to_none().unwrap();
    assert!(id.is_synchronous());
    id.resolve_addr(None, sides.address, LONG).unwrap();
    assert_ne!(id.local_addr().unwrap(), None);
    id.resolve_route(LONG).unwrap();
    let accepting = std::thread::spawn({
        let channel = sides.passive_channel.clone();
        move || {
            let child = request(&channel).id;
            idle_queue_pair(&child);
            child.accept(&ConnParam::default()).unwrap();
            expect(&channel, "ESTABLISHED").ack();
            expect(&channel, "DISCONNECTED").ack();
            child.disconnect().unwrap();
        }
    });
    let queue_pair = idle_queue_pair(&id);
    id.connect(&ConnParam::default()).unwrap();
    assert_eq!(queue_pair.state(), oarlock_verbs::QpState::Rts);
    id.disconnect().unwrap();
    accepting.join().unwrap();
}
