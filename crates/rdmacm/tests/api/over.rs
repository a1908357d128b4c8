//! Disconnecting what has no end to come: no call waits for one.

use crate::datagram::{datagram_listener, resolved_datagram};
use crate::support::*;
use oarlock_rdmacm::{ConnParam, Event, EventChannel, Host, Identifier, RejReason};
use std::time::{Duration, Instant};

/// One identifier of each kind whose end was reported, or of which none is.
pub(crate) struct Over {
    pub(crate) ids: Vec<(&'static str, Identifier)>,
    _listeners: [Identifier; 2],
    _channels: [EventChannel; 2],
}

pub(crate) fn over(host: &Host) -> Over {
    let (events, passive_events) = (channel(host), channel(host));
    let (listener, address) = listener(&passive_events);
    let (datagrams, asked) = datagram_listener(&passive_events);
    let mut ids = Vec::new();

    let id = resolved(&events, address);
    id.connect(&external(1)).unwrap();
    let child = request(&passive_events).id;
    child.reject(RejReason::CONSUMER_DEFINED, b"").unwrap();
    expect(&events, "REJECTED").ack();
    ids.extend([("rejected by the peer", id), ("rejected", child)]);

    let id = resolved(&events, address);
    id.set_connect_deadline(Some(Duration::from_millis(1)))
        .unwrap();
    id.connect(&external(2)).unwrap();
    expect(&events, "UNREACHABLE").ack();
    ids.push(("not answered", id));

    // The answer comes to a queue pair that cannot take it.
    let id = resolved(&events, address);
    let queue_pair = idle_queue_pair(&id);
    id.connect(&ConnParam::default()).unwrap();
    let child = next_request(&passive_events, &id);
    queue_pair.to_error().unwrap();
    child.accept(&external(3)).unwrap();
    expect(&events, "CONNECT_ERROR").ack();
    ids.push(("failed here", id));
    drop(child);

    let id = resolved(&events, address);
    id.connect(&external(4)).unwrap();
    ids.push(("not accepted", next_request(&passive_events, &id)));
    drop(id);

    let id = resolved_datagram(&events, asked);
    id.connect(&ConnParam::default()).unwrap();
    let child = next_request(&passive_events, &id);
    child.accept(&external(5)).unwrap();
    expect(&events, "ESTABLISHED").ack();
    ids.extend([("for datagrams", id), ("asked for datagrams", child)]);

    Over {
        ids,
        _listeners: [listener, datagrams],
        _channels: [events, passive_events],
    }
}

/// The identifier made for the peer's request; other events are passed over.
fn next_request(channel: &EventChannel, peer: &Identifier) -> Identifier {
    let peer = peer.local_addr().unwrap();
    loop {
        let event = channel.get_event_timeout(LONG).unwrap().expect("an event");
        if let Event::ConnectRequest { id, .. } = event
            && id.peer_addr().unwrap() == peer
        {
            return id;
        }
    }
}

#[test]
fn a_disconnect_of_what_is_over_does_not_wait() {
    let host = private();
    for (what, id) in over(&host).ids {
        id.migrate_to_none().unwrap();
        id.set_deadline(Instant::now().checked_add(LONG));
        id.disconnect()
            .unwrap_or_else(|error| panic!("{what}: {error}"));
    }
}
