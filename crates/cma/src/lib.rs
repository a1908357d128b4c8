//! RDMA CM identifiers and event channels over the IB CM, without I/O: addresses and ports, address and route resolution,
//! connections, queue pair recipes, events and their migration between channels.
//!
//! # The contract
//! 1. Inputs are methods: `handle_*` for the network, for route lookups and for time, plain verbs for the caller. Those
//!    that can depend on time take `now`. None does I/O, reads a clock, or asks the system for randomness.
//! 2. Outputs are polled: [`poll_lookup`](Cma::poll_lookup), [`poll_transmit`](Cma::poll_transmit),
//!    [`poll_ready`](Cma::poll_ready), [`poll_timeout`](Cma::poll_timeout), in that order.
//! 3. After every input, poll until there is nothing left but the next deadline; then wait. One input, one drain.
//! 4. Late, early and repeated calls to `handle_timeout` are harmless.
//!
//! # A connection
//! ```text
//!  active                                                      passive
//!  create_id                                                   create_id, bind_addr, listen
//!  resolve_addr   > Lookup, < Route     ADDR_RESOLVED
//!  resolve_route                        ROUTE_RESOLVED
//!  connect        ------------------ REQ ------------------>   CONNECT_REQUEST (a child on the listener's channel)
//!  CONNECT_RESPONSE <--------------- REP -------------------   accept
//!  establish      ------------------ RTU ------------------>   ESTABLISHED
//!  disconnect     ------------------ DREQ ----------------->   DISCONNECTED
//!  DISCONNECTED   <----------------- DREP -------------------  disconnect
//!  TIMEWAIT_EXIT                                               TIMEWAIT_EXIT
//! ```
//!
//! # Channels
//! Every identifier reports on one channel, and [`migrate_id`](Cma::migrate_id) moves it to another with all that waits:
//! no event is lost, none comes twice, and those of one identifier come in order. A child starts on its listener's channel.
//!
//! # What happens when something is full
//! Identifiers, channels, and events per channel are bounded ([`Config`]). A call that would go beyond is refused with an
//! error that names the limit; a connection request is dropped and counted, and its sender tries again. Events of identifiers
//! that exist are never dropped for want of room: an identifier has a handful at most.
//!
//! # What this crate does not do
//! Port spaces other than TCP, native (AF_IB) addresses, multicast, and paths given by the caller are refused by name.
//! Where the behaviour differs from the kernel's on purpose, a comment says `Deviation`.
//!
//! Types to read next: [`Cma`], [`State`], [`Event`].
#![forbid(unsafe_code)]

mod attr;
mod channel;
mod cma;
mod config;
mod connect;
mod counters;
mod device;
mod errno;
mod error;
mod event;
mod handle;
mod identifier;
mod listeners;
mod lookup;
mod migrate;
mod param;
mod ports;
mod query;
mod recipe;
mod report;
mod request;
mod resolve;
mod state;

pub use attr::{AccessFlags, InitAttr, QpAttr, QpAttrMask, QpState, RtrAttr, RtsAttr};
pub use cma::Cma;
pub use config::{BacklogOverflow, Config, LoopbackRule};
pub use counters::{Counter, Counters};
pub use device::{Device, Limits};
pub use errno::Errno;
pub use error::{Error, LimitOwner};
pub use event::{ConnEventParam, Event, EventKind, ReceivedPrivateData};
pub use handle::{ChannelId, Id};
pub use lookup::{Lookup, LookupError, LookupToken, Route};
pub use param::{
    AsyncEvent, ConnectParam, Disconnect, IdOption, PRIVATE_DATA_ACCEPT, PRIVATE_DATA_CONNECT,
    PRIVATE_DATA_REJECT, QpType,
};
pub use query::{Backlog, DeviceRef, Path, Query};
pub use state::State;

pub use oarlock_cm::{Seed, StateName, Transmit};
pub use oarlock_wire::PortSpace;

#[cfg(test)]
mod tests;
