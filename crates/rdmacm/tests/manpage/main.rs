//! What the manual pages of librdmacm promise, statement by statement: each test is named after one, and the modules after
//! the pages. Where this library keeps a promise in another way, the test says how.

mod accept;
mod connect;
mod get_cm_event;
mod migrate_id;
#[path = "../api/support.rs"]
#[allow(dead_code, reason = "shared with the tests of the API")]
mod support;

use oarlock_rdmacm::{
    ConnParam, Event, EventChannel, Host, Identifier, PaddedData, PortSpace, UdParam,
};
use oarlock_verbs::{CompletionQueue, QpInitAttr, QpType, QueuePair};
use std::net::SocketAddr;
use support::*;

/// A listener and a resolved active identifier, each on a channel of its own.
struct Sides {
    host: Host,
    passive_channel: EventChannel,
    active_channel: EventChannel,
    listener: Identifier,
    address: SocketAddr,
    active: Identifier,
}

fn sides() -> Sides {
    let host = private();
    let (passive_channel, active_channel) = (channel(&host), channel(&host));
    let (listener, address) = listener(&passive_channel);
    let active = resolved(&active_channel, address);
    Sides {
        host,
        passive_channel,
        active_channel,
        listener,
        address,
        active,
    }
}

/// The same, for datagrams.
fn datagram_sides() -> Sides {
    let host = private();
    let (passive_channel, active_channel) = (channel(&host), channel(&host));
    let listener = Identifier::new(&passive_channel, PortSpace::UDP).unwrap();
    listener.bind_addr("127.0.0.1:0".parse().unwrap()).unwrap();
    listener.listen(0).unwrap();
    let address = listener.local_addr().unwrap().unwrap();
    let active = resolved_datagram(&active_channel, address);
    Sides {
        host,
        passive_channel,
        active_channel,
        listener,
        address,
        active,
    }
}

fn resolved_datagram(channel: &EventChannel, address: SocketAddr) -> Identifier {
    let id = Identifier::new(channel, PortSpace::UDP).unwrap();
    id.resolve_addr(None, address, LONG).unwrap();
    expect(channel, "ADDR_RESOLVED");
    id.resolve_route(LONG).unwrap();
    expect(channel, "ROUTE_RESOLVED");
    id
}

fn datagram_queue_pair(id: &Identifier) -> QueuePair {
    let device = id.device().unwrap();
    let cq = CompletionQueue::new(&device, 4).unwrap();
    let init = QpInitAttr {
        qp_type: QpType::Ud,
        ..QpInitAttr::default()
    };
    id.create_qp(&device.default_pd(), &cq, &cq, init).unwrap()
}

/// What a request for datagrams carries.
struct Lookup {
    id: Identifier,
    ud: UdParam,
    private_data: Option<PaddedData>,
}

#[track_caller]
fn lookup(channel: &EventChannel) -> Lookup {
    match expect(channel, "CONNECT_REQUEST") {
        Event::ConnectRequest {
            id,
            ud: Some(ud),
            private_data,
            ..
        } => Lookup {
            id,
            ud,
            private_data,
        },
        other => panic!("{other}"),
    }
}

/// Both queue pairs of a connection, asked for and accepted with these parameters.
fn connected(asked: &ConnParam, accepted: &ConnParam) -> (QueuePair, QueuePair) {
    let sides = sides();
    let active = idle_queue_pair(&sides.active);
    sides.active.connect(asked).unwrap();
    let request = request(&sides.passive_channel);
    let passive = idle_queue_pair(&request.id);
    request.id.accept(accepted).unwrap();
    expect(&sides.active_channel, "ESTABLISHED");
    expect(&sides.passive_channel, "ESTABLISHED");
    (active, passive)
}
