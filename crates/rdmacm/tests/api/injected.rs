//! Events of the program's own.

use crate::support::*;
use oarlock_rdmacm::{Event, Identifier, PortSpace};

/// G (waking a channel from another thread): whoever waits wakes up with what was injected.
#[test]
fn an_injected_event_wakes_whoever_waits() {
    let host = private();
    let events = channel(&host);
    let id = Identifier::new(&events, PortSpace::TCP).unwrap();
    let waiting = std::thread::spawn({
        let events = events.clone();
        move || events.get_event().unwrap()
    });
    id.inject(u64::MAX - 5, -7).unwrap();
    match waiting.join().unwrap() {
        Event::User {
            id: of,
            value,
            status,
            ..
        } => {
            assert_eq!(of, id);
            assert_eq!((value, status), (u64::MAX - 5, -7));
        }
        other => panic!("{other}"),
    }
}

/// It queues behind what is there, and R-MIG-2: moves with its identifier, in order.
#[test]
fn injected_events_keep_their_place() {
    let host = private();
    let (first, second) = (channel(&host), channel(&host));
    let (_listener, address) = listener(&channel(&host));
    let id = Identifier::new(&first, PortSpace::TCP).unwrap();
    id.inject(1, 0).unwrap();
    id.resolve_addr(None, address, LONG).unwrap();
    wait_queued(&host, 2);
    id.inject(2, 0).unwrap();
    id.migrate(&second).unwrap();
    assert_empty(&first);
    let value = |event: Event| match event {
        Event::User { value, .. } => value,
        other => panic!("{other}"),
    };
    assert_eq!(value(expect(&second, "USER")), 1);
    expect(&second, "ADDR_RESOLVED").ack();
    assert_eq!(value(expect(&second, "USER")), 2);
}

/// It is acknowledged like any other, and a synchronous call passes it over.
#[test]
fn injected_events_disturb_nothing() {
    let host = private();
    let events = channel(&host);
    let (_listener, address) = listener(&channel(&host));
    let id = Identifier::new(&events, PortSpace::TCP).unwrap();
    for value in 0..20 {
        id.inject(value, 0).unwrap();
    }
    for _ in 0..10 {
        expect(&events, "USER").ack();
    }
    id.migrate_to_none().unwrap();
    id.resolve_addr(None, address, LONG).unwrap();
    id.resolve_route(LONG).unwrap();
    id.close().unwrap();
}
