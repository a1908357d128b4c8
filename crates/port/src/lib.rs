//! Everything that is a socket below the packet: who receives on UDP port 4791, the in-memory wire that takes its
//! place in tests, the ICRC on the way out and in, captures, and what the kernel's routing tables say.
//!
//! ```text
//!   oarlock-hostd  QP1 (slot 0)      oarlock-device  queue pairs (slots 1..=254)
//!          |                                  |
//!        Port --------------------------------+      one slot's endpoint: send, recv, as_fd
//!        /  \
//!  UdpPort   MemPort                                 UDP 4791          a queue of a MemWire
//!     |         |
//!  UdpSlots   MemWire                                256 sockets       any number of hosts in memory
//! ```
//!
//! # Slots
//! RoCEv2 always arrives on UDP port 4791, for every process of the host. The upper 8 bits of a QP number are its
//! *slot*: slot 0 is the host service (QP1), 255 is never assigned (QPN 0xFFFFFF is multicast), and a program takes
//! one of 1..=254. [`UdpSlots`] is the service's side: a group of 256 sockets on the port in which the kernel picks
//! the socket by the destination QP number of the BTH. A program gets its slot's socket over a Unix socket and makes
//! a [`UdpPort`] of it.
//!
//! # What a packet is here
//! [`Port::send`] takes the packet from the BTH to the end of the padded payload; the ICRC, which covers addresses
//! that only this layer knows, is added here and verified here. Whatever is dropped is counted by name in
//! [`Counters`].
//!
//! # Files
//! `port.rs` the two kinds of endpoint behind one face; `udp.rs` sending and receiving on the real port;
//! `batch.rs` the packets that one call has received; `group.rs` multicast memberships; `slots.rs` the socket group; `mem.rs`
//! the in-memory wire; `frame.rs` IP and UDP headers as on the wire and the ICRC; `pcap/` captures; `fault.rs` and `fault/`
//! faults on purpose; `netlink/` interfaces and routes; `fdpass.rs` descriptors over Unix sockets; `sys.rs` the only `unsafe`
//! code.
#![deny(unsafe_code)]

mod batch;
mod counters;
mod error;
pub mod fault;
pub mod fdpass;
mod frame;
mod group;
mod mem;
pub mod netlink;
pub mod pcap;
mod port;
mod slots;
mod sys;
mod udp;

pub use oarlock_wire::ROCE_PORT;

pub use batch::{Batch, Strikes};
pub use counters::Counters;
pub use error::{MemError, PortOwner, SlotsError};
pub use group::GroupKeeper;
pub use mem::{Faults, MEM_IFINDEX, MemChanges, MemHost, MemPort, MemWire};
pub use port::{DeviceStatistics, Port};
pub use slots::{Renewal, UdpSlots};
pub use sys::{fork, system_call, thread};
pub use udp::{ForwardToken, UdpPort};

/// Number of slots a host has: the upper 8 bits of a QP number.
pub const SLOTS: usize = 256;
/// The host service's slot, which holds QP1.
pub const SERVICE_SLOT: u8 = 0;
/// The slot that is never assigned, because QP number 0xFFFFFF means multicast.
pub const SPARE_SLOT: u8 = 255;

#[cfg(test)]
mod tests;
