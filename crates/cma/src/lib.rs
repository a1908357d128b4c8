//! RDMA CM identifiers and event channels over the IB CM, without I/O: addresses and ports, address and route resolution,
//! connections and datagram services, multicast groups, queue pair recipes, events and their migration between channels.
//!
//! # The contract
//! 1. Inputs are methods: `handle_*` for the network, for route lookups, for memberships and for time, `set_*` for what the
//!    host has, plain verbs for the caller. Those that can depend on time take `now`. None does I/O, reads a clock, or asks
//!    the system for randomness.
//! 2. Outputs are polled: [`poll_lookup`](Cma::poll_lookup), [`poll_membership`](Cma::poll_membership),
//!    [`poll_transmit`](Cma::poll_transmit), [`poll_ready`](Cma::poll_ready), [`poll_timeout`](Cma::poll_timeout), in that
//!    order.
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
//! # Datagrams
//! In port spaces UDP and IPOIB, and in IB for UD queue pairs. There is no connection: the passive side names a queue pair
//! and a Q_Key, and never learns whether that arrived.
//! ```text
//!  connect        ---------------- SIDR_REQ --------------->   CONNECT_REQUEST (a child on the listener's channel)
//!  ESTABLISHED    <--------------- SIDR_REP ----------------   accept
//!  UNREACHABLE    <---------- SIDR_REP, status 2 -----------   reject
//! ```
//!
//! # Multicast
//! A UD identifier with a device joins groups in states ADDR_BOUND and ADDR_RESOLVED. The first full member on an interface
//! leads to a [`Membership`] for the driver to make, the last one to its end.
//! ```text
//!  join_multicast   > Membership (Join), < handle_membership   MULTICAST_JOIN or MULTICAST_ERROR
//!  leave_multicast  > Membership (Leave)                       its queued event is removed
//! ```
//!
//! # Devices and addresses that go
//! [`set_devices`](Cma::set_devices) tells what there is. Identifiers of a device that is gone get DEVICE_REMOVAL, and every
//! call but destruction fails with `DeviceRemoved`; those whose address is gone get ADDR_CHANGE and go on.
//!
//! # The end
//! Whoever disconnects, rejects or is lost at whatever moment: each side that had accepted or asked gets one end, DISCONNECTED,
//! REJECTED or UNREACHABLE, and TIMEWAIT_EXIT only after DISCONNECTED. (If the passive side withdraws its acceptance while
//! the RTU is under way and its REJ is lost, the active side learns of it when it disconnects itself.)
//!
//! # Example
//! Both sides on one host, over its loopback device; what is sent is handed in again.
//!
//! ```
//! use oarlock_cma::{Cma, Config, ConnectParam, Device, EventKind, Limits, PortSpace, QpType, Seed};
//! use oarlock_wire::{Guid, Qpn, Time};
//! use std::time::Duration;
//!
//! let now = Time::ZERO;
//! let mut cma = Cma::new(Config::default(), Seed([1; 32]));
//! let loopback = Device {
//!     index: 0,
//!     name: "soft0".into(),
//!     guid: Guid(1),
//!     port_num: 1,
//!     ifindex: 1,
//!     is_loopback: true,
//!     netdev_mtu: 65536,
//!     addresses: vec!["127.0.0.1".parse()?],
//!     limits: Limits::default(),
//! };
//! cma.set_devices(now, vec![loopback]);
//! let channel = cma.create_channel()?;
//! let take = |cma: &mut Cma, kind| {
//!     while let Some(transmit) = cma.poll_transmit() {
//!         cma.handle_mad(now, &transmit.av.reversed(), &transmit.mad);
//!     }
//!     let event = cma.next_event(channel).expect("an event");
//!     assert_eq!(event.kind, kind);
//!     event.id
//! };
//!
//! let listener = cma.create_id(channel, PortSpace::TCP, QpType::RC, 0)?;
//! cma.bind_addr(listener, "127.0.0.1:7471".parse()?)?;
//! cma.listen(listener, 16)?;
//!
//! let active = cma.create_id(channel, PortSpace::TCP, QpType::RC, 1)?;
//! // A destination on another host would be asked about by `poll_lookup`.
//! cma.resolve_addr(now, active, None, "127.0.0.1:7471".parse()?, Duration::from_secs(2))?;
//! take(&mut cma, EventKind::ADDR_RESOLVED);
//! cma.resolve_route(active, Duration::from_secs(2))?;
//! take(&mut cma, EventKind::ROUTE_RESOLVED);
//! cma.connect(now, active, ConnectParam { qpn: Qpn::truncate(0x11), ..ConnectParam::default() })?;
//!
//! let passive = take(&mut cma, EventKind::CONNECT_REQUEST);
//! cma.accept(now, passive, Some(2), ConnectParam { qpn: Qpn::truncate(0x12), ..ConnectParam::default() })?;
//! take(&mut cma, EventKind::CONNECT_RESPONSE);
//! cma.establish(now, active)?;
//! take(&mut cma, EventKind::ESTABLISHED);
//!
//! let other = cma.create_channel()?;
//! assert_eq!(cma.migrate_id(passive, other)?, 1);
//! cma.disconnect(now, active)?;
//! while let Some(transmit) = cma.poll_transmit() {
//!     cma.handle_mad(now, &transmit.av.reversed(), &transmit.mad);
//! }
//! let event = cma.next_event(other).expect("on the new channel");
//! assert_eq!((event.id, event.kind, event.context), (passive, EventKind::DISCONNECTED, 2));
//! # Ok::<(), Box<dyn std::error::Error>>(())
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
//! - Native (AF_IB) addresses and paths of InfiniBand subnets: an identifier has IP addresses, and a request without an IP CM
//!   header is rejected and counted. Port space IB works with IP addresses and the service IDs that its ports make.
//! - Queue pair types other than RC, UC, UD and the two sides of XRC are refused by name.
//! - ADDRINFO events and service records: there is nobody to ask on RoCE.
//! - Attaching queue pairs to multicast groups, and migrating them to alternate paths: that is the device's. An alternate path
//!   is agreed on ([`Config::alternate_paths`]) and shown ([`Query::alternate`]); the connection manager's own messages stay
//!   on the path that the connection was made on.
//! - UNREACHABLE for a connection whose neighbour's hardware address changes, which the kernel reports late and for
//!   connections that work.
//!
//! Where the behaviour differs from the kernel's on purpose, a comment says `Deviation`.
//!
//! Types to read next: [`Cma`], [`State`], [`Event`].
#![forbid(unsafe_code)]

mod alternate;
mod attr;
mod channel;
mod cma;
mod config;
mod connect;
mod counters;
mod datagram;
mod device;
mod disconnect;
mod errno;
mod error;
mod event;
mod handle;
mod hotplug;
mod identifier;
mod inject;
mod listeners;
mod lookup;
mod migrate;
mod multicast;
mod numbered;
mod param;
mod path;
mod ports;
mod query;
mod recipe;
mod report;
mod request;
mod resolve;
mod state;

pub use alternate::{Alternate, AlternateState};
pub use attr::{
    AccessFlags, InitAttr, QpAttr, QpAttrMask, QpState, RtrAttr, RtsAttr, UcRtrAttr, UdInitAttr,
};
pub use cma::Cma;
pub use config::{AlternatePaths, BacklogOverflow, Config, LoopbackRule};
pub use counters::{Counter, Counters};
pub use device::{Device, Limits};
pub use errno::Errno;
pub use error::{Error, LimitOwner};
pub use event::{ConnEventParam, Event, EventKind, EventParam, ReceivedPrivateData, UdEventParam};
pub use handle::{ChannelId, Id, McId};
pub use hotplug::Pretence;
pub use lookup::{Lookup, LookupError, LookupToken, Route};
pub use multicast::{JoinKind, Membership, MembershipAction, MembershipToken};
pub use param::{
    AsyncEvent, ConnectParam, Disconnect, IdOption, PRIVATE_DATA_ACCEPT, PRIVATE_DATA_CONNECT,
    PRIVATE_DATA_REJECT, PRIVATE_DATA_UD_ACCEPT, PRIVATE_DATA_UD_CONNECT, QpType,
};
pub use query::{Backlog, DeviceRef, Path, Query};
pub use state::State;

pub use oarlock_cm::{LapState, Seed, StateName, Transmit};
pub use oarlock_wire::{AlternatePath, Ece, PortSpace};

#[cfg(test)]
mod tests;
