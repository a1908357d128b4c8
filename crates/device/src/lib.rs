//! The software RoCEv2 device: the half of it that lives in the program.
//!
//! Queue pairs, memory regions and completion queues are here, in the process that uses them, as
//! with the user-space driver of a network card. Data packets go between this crate and UDP port
//! 4791; the host service never sees them.
//!
//! ```text
//!   Context (device, regions, events)      one per device and process
//!      |  \
//!      |   Pd ── Region ── Window          mr/: placement that fails instead of faulting
//!      |   Cq ── CompChannel               cq/
//!      |   Srq ── XrcDomain                srq.rs, xrc.rs: buffers that queue pairs share
//!      |   Qp ── oarlock_transport::Rc     qp/, transport/: the packet engine behind a lock, and what it reaches
//!      |    |                        Uc Ud
//!      |   Groups                          groups.rs: multicast, and who in this process takes it
//!      v
//!   Endpoint (slot, queue pair numbers)    endpoint.rs: one per process; lock order; who works
//!      |      receive.rs, transmit.rs      batches of packets in, runs of packets out
//!   oarlock_port::Port                     engine.rs: the thread that works when nobody else does
//! ```
//!
//! # Transport services
//! RC, UC, UD and both halves of XRC, with every operation that the InfiniBand specification gives them. Their semantics are
//! those of the engines in `oarlock-transport`; this crate adds what they reach (memory by keys, shared receive queues), who
//! drives them, and where completions and events go.
//!
//! Receives come from a queue of the queue pair's own, or from a shared one ([`Srq`], [`QpInit::srq`]). An XRC initiator
//! names a shared receive queue of the peer's domain with every request; the target takes buffers of that queue, and their
//! completions go to the queue's own completion queue. Domains are of one process: sharing one by a file is refused
//! ([`XrcDomain::open`]).
//!
//! # Datagrams
//! A queue pair of type [`QpType::Ud`](oarlock_transport::QpType) sends each message as one packet to a destination of
//! its own, and finds 40 bytes of GRH before each message it receives. Those attached to a multicast group
//! ([`Qp::attach_multicast`]) each get a copy of what is sent to it, their own messages included; the process is a member
//! of the group, on its own slot of the port, from the first attachment to the end of the last. Nothing is acknowledged:
//! what a receiver had no buffer for, or the network lost, is gone, and counted where that is known.
//!
//! Read next: [`Endpoint`] for the threads, [`Region`] for memory, [`Cq`] for completions.
//!
//! # Memory
//! This crate moves bytes into memory that work requests name by address. It never makes a
//! reference to those bytes. Who makes one from [`Region::as_ptr`], or registers memory of the
//! program with [`Pd::register`], takes over the obligation stated there; `oarlock-verbs` does so
//! on behalf of safe programs.
//!
//! The device touches a byte only through a work request that has not completed, or for a peer that has a right to it by the
//! key of a region or window ([`Region`] says what that means for the program). A completion is entered after the last
//! placement for its request, and both happen under the queue pair's lock.
#![deny(unsafe_code)]

mod attention;
mod backlog;
mod context;
mod counters;
mod cq;
mod endpoint;
mod engine;
mod error;
mod event;
mod faults;
mod groups;
mod lead;
mod linger;
mod locks;
mod mr;
mod pd;
mod qp;
mod qpn;
mod queue;
mod receive;
mod source;
mod srq;
mod statistics;
mod sys;
mod timers;
mod transmit;
mod transport;
mod trust;
mod watch;
mod xrc;

pub use context::{
    AtomicCapability, Capabilities, Context, DeviceInfo, DeviceLimits, STATISTICS, Statistic,
};
pub use cq::{CompChannel, Cq, CqEvent, CqId, Cqe, Notify};
pub use endpoint::Endpoint;
pub use error::Error;
pub use event::{AsyncEvent, DeviceChange, EVENT_KINDS, EventKind, SrqId};
pub use mr::{Access, Bound, Region, Reregistration, Translation, Window, WindowType};
pub use pd::Pd;
pub use qp::{CommEstHook, Qp, QpInit, WindowBind};
pub use source::PortSource;
pub use srq::{Srq, SrqInit, SrqXrc};
pub use xrc::XrcDomain;
