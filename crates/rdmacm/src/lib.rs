//! The RDMA communication manager in safe Rust: connections between queue pairs, addressed by IP.
//!
//! | Type | What it is |
//! |---|---|
//! | [`Host`] | where identifiers live: the host service of this machine, or a private one in this process |
//! | [`EventChannel`] | reports what happens to identifiers |
//! | [`Identifier`] | one connection, or a listener |
//! | [`Event`] | what happened, with its data |
//! | [`ConnParam`] | what is given to `connect` and `accept` |
//! | [`UdParam`], [`Multicast`] | how a datagram peer, or a multicast group, is reached; a membership in a group |
//! | [`Connector`], [`Listener`], [`Connection`] | connections, the short way, blocking |
//! | [`DatagramSocket`] | datagrams, the short way, blocking |
//! | `AsyncHost`, `AsyncConnector`, `AsyncListener`, ... | the same, awaited: module `asynchronous`, cargo feature `tokio` |
//!
//! Queue pairs, memory and completion queues are those of `oarlock-verbs`, which a program that sends or receives depends
//! on, too, and the keys, numbers and addresses that name them.
//!
//! # The short way
//!
//! [`Listener`] and [`Connector`] go through all the steps, blocking. Receives that must be there before the peer's first
//! message are posted in `prepare`.
//!
//! ```
//! use oarlock_rdmacm::{ConnectionOptions, Connector, Host, Listener};
//! use oarlock_verbs::{Buffer, SendRequest};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let host = Host::private()?;
//! let receives = ConnectionOptions::new().prepare(|queue_pair, pd| {
//!     queue_pair.post_recv(1, Buffer::new(pd, 64)?)?;
//!     Ok(())
//! });
//! let listener = Listener::bind(&host, "127.0.0.1:0".parse()?)?.options(receives);
//! let address = listener.local_addr()?;
//! let passive = std::thread::spawn(move || {
//!     let connection = listener.accept().expect("a peer connects");
//!     let mut completions = Vec::new();
//!     connection.recv_cq.wait(&mut completions, None).expect("the host lives");
//!     let message = completions.remove(0).ok().expect("a message arrives");
//!     assert_eq!(&message.buffers[0][..message.byte_len as usize], b"hello");
//!     connection.until_disconnected().expect("the peer disconnects");
//! });
//!
//! let connection = Connector::new(&host).connect(address)?;
//! let mut message = Buffer::new(&connection.pd, 5)?;
//! message.copy_from_slice(b"hello");
//! connection.queue_pair.post_send(SendRequest::new(1, message))?;
//! let mut completions = Vec::new();
//! connection.send_cq.wait(&mut completions, None)?;
//! completions.remove(0).ok()?;
//! connection.disconnect()?;
//! passive.join().expect("the passive side does not panic");
//! # Ok(())
//! # }
//! ```
//!
//! # Both sides, step by step
//!
//! A passive side that accepts one connection and receives a message, and an active side that connects and sends it. Both are
//! in one process here, on a private host. With [`Host::open`] they can be anywhere: it joins the host service of this
//! machine (of the network namespace, exactly), or starts it, for which the `oarlock` program must be found beside the
//! running program, in PATH or through `$OARLOCK_HOSTD`.
//!
//! ```
#![doc = include_str!("../doc/step_by_step.rs")]
//! ```
//!
//! # Data
//!
//! A queue pair is used by the verbs; [`Connection`] has the usual things as calls that wait: [`send`](Connection::send),
//! [`receive`](Connection::receive), [`write`](Connection::write), [`read`](Connection::read), [`fetch_add`](Connection::fetch_add)
//! and [`compare_swap`](Connection::compare_swap); `AsyncConnection` has them to be awaited. What peers may work on is
//! [`memory`](Connection::memory), whose place is told to them by a message or in private data. How many READs and atomics may be
//! under way is agreed when the connection is made ([`ConnParam::initiator_depth`], [`ConnParam::responder_resources`]); with
//! [`create_qp_with_srq`](Identifier::create_qp_with_srq) many connections share their receives.
//!
//! # Which event follows which call
//!
//! Active side:
//!
//! | Call | Followed by |
//! |---|---|
//! | [`resolve_addr`](Identifier::resolve_addr) | [`AddressResolved`](Event::AddressResolved), or [`AddressError`](Event::AddressError) |
//! | [`resolve_route`](Identifier::resolve_route) | [`RouteResolved`](Event::RouteResolved), or [`RouteError`](Event::RouteError) |
//! | [`create_qp`](Identifier::create_qp), [`create_qp_with_srq`](Identifier::create_qp_with_srq) | nothing |
//! | [`connect`](Identifier::connect) | [`Established`](Event::Established) (with an external queue pair [`ConnectResponse`](Event::ConnectResponse)), or [`Rejected`](Event::Rejected), [`Unreachable`](Event::Unreachable), [`ConnectError`](Event::ConnectError) |
//! | [`establish`](Identifier::establish) | nothing: the connection is established |
//!
//! Passive side:
//!
//! | Call | Followed by |
//! |---|---|
//! | [`bind_addr`](Identifier::bind_addr) | nothing |
//! | [`listen`](Identifier::listen) | a [`ConnectRequest`](Event::ConnectRequest) for every peer, each with a new identifier |
//! | [`accept`](Identifier::accept), on the new identifier | [`Established`](Event::Established), or [`Unreachable`](Event::Unreachable), [`Rejected`](Event::Rejected) when the peer is gone |
//! | [`reject`](Identifier::reject) | nothing; the peer sees [`Rejected`](Event::Rejected) |
//!
//! Both sides:
//!
//! | Call | Followed by |
//! |---|---|
//! | [`disconnect`](Identifier::disconnect), or the peer's | [`Disconnected`](Event::Disconnected) on both sides, later [`TimewaitExit`](Event::TimewaitExit) |
//! | [`migrate`](Identifier::migrate) | nothing: later events come out of the new channel |
//! | [`close`](Identifier::close), or dropping the last handle | no event of the identifier any more |
//!
//! Datagrams (port spaces UDP and IPOIB):
//!
//! | Call | Followed by |
//! |---|---|
//! | [`create_qp`](Identifier::create_qp) | nothing: the queue pair is in state RTS |
//! | [`connect`](Identifier::connect) | [`Established`](Event::Established) with the peer's [`UdParam`], or [`Unreachable`](Event::Unreachable); [`AddressError`](Event::AddressError) if the peer's Q_Key is another |
//! | [`listen`](Identifier::listen) | a [`ConnectRequest`](Event::ConnectRequest) for every peer |
//! | [`accept`](Identifier::accept), [`reject`](Identifier::reject) | nothing |
//! | [`join_multicast`](Identifier::join_multicast) | [`MulticastJoin`](Event::MulticastJoin) with the group's [`UdParam`], or [`MulticastError`](Event::MulticastError) |
//! | [`Multicast::leave`] | nothing |
//!
//! At any time: [`DeviceRemoval`](Event::DeviceRemoval), [`AddressChange`](Event::AddressChange), and
//! [`User`](Event::User) events that the program [injects](Identifier::inject). When the host service dies, every call and
//! every wait ends with [`Error::ServiceGone`].
//!
//! # Deadlines
//!
//! | Wait | Ends at |
//! |---|---|
//! | for an event | [`get_event_until`](EventChannel::get_event_until), [`get_event_timeout`](EventChannel::get_event_timeout) |
//! | calls of a synchronous identifier, and of a [`Connection`]; `migrate`, `close` and `leave` of any | [`Identifier::set_deadline`] |
//! | [`Connector::connect`], [`Listener::accept`], [`get_request`](Listener::get_request), [`reject`](Listener::reject) | [`ConnectionOptions::deadline`] |
//! | for a datagram, or the answer of a peer or group | [`DatagramSocket::deadline`] |
//! | connecting as such, in the host service | [`Identifier::set_connect_deadline`] |
//! | resolving an address or a route, in the host service | an argument of the call |
//!
//! Every other call is a round trip to the host service, which never waits for anything. Async calls take
//! `tokio::time::timeout`.
//!
//! # Events, acknowledgements, migration
//!
//! The rules of the C library hold: every event is acknowledged once, and `migrate` and `close` wait for the events of their
//! identifier. Here they cannot be broken:
//! - An [`Event`] acknowledges when it is dropped, and keeps alive what it refers to.
//! - An event channel exists as long as an identifier or a reader uses it, whoever drops what first.
//! - An event is with the service until it is fetched; fetching and migrating exclude each other there. So a reader of the old
//!   channel sees an event once, or not at all because it moved.
//! - A thread that would wait for an event it holds itself gets [`Error::EventHeldByCaller`], with the names of the events.
//! - A wait for events that others hold ends at the identifier's deadline with [`Error::Unacknowledged`], and their names.
//! - `mem::forget` of an event is an event never acknowledged: its identifier stays until the program ends, and `migrate` and
//!   `close` of it answer as above, or wait for ever in another thread. Other identifiers notice nothing.
//!
//! # What this crate never does
//!
//! No call blocks on the network, except those of synchronous identifiers and of the short way. Dropping never blocks. No
//! thread is started. No event is made up: each comes from the host service, except that the end of connecting is
//! [`Established`](Event::Established) where the service says that a reply has come, and that a group to which the queue
//! pair cannot be attached is a [`MulticastError`](Event::MulticastError).
#![deny(unsafe_code)]

#[cfg(feature = "tokio")]
pub mod asynchronous;
mod channel;
mod command;
mod connect;
mod datagram;
mod easy;
mod error;
mod event;
mod hint;
mod identifier;
mod ledger;
mod migrate;
mod multicast;
mod param;
mod queue_pair;
mod registry;
mod synchronous;

#[cfg(feature = "tokio")]
pub use asynchronous::{
    AsyncCompletionQueue, AsyncConnection, AsyncConnector, AsyncEventChannel, AsyncHost,
    AsyncIdentifier, AsyncListener,
};
pub use channel::EventChannel;
pub use datagram::UdParam;
pub use easy::{
    Connection, ConnectionOptions, Connector, Datagram, DatagramSocket, Destination, Listener,
    QueueSizes,
};
pub use error::{Error, Result};
pub use event::{Event, Receipt};
pub use identifier::Identifier;
pub use multicast::{JoinKind, Multicast};
pub use oarlock_hostd::Host;
pub use oarlock_wire::{
    Ece, IbTimeout, PortSpace, QKey, Qpn, RejReason, RetryCount, RnrTimer, SidrStatus,
};
pub use param::{
    ConnParam, ExternalQueuePair, MAX_ACCEPT_PRIVATE_DATA, MAX_CONNECT_PRIVATE_DATA,
    MAX_DATAGRAM_CONNECT_PRIVATE_DATA, MAX_DATAGRAM_REPLY_PRIVATE_DATA, MAX_REJECT_PRIVATE_DATA,
    PaddedData, PeerParam,
};
