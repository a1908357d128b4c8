//! The packet engines of RC and UD queue pairs: requester, responder, PSNs, acknowledgement, retry; datagrams. Sans-IO.
//!
//! [`Rc`] is one reliable-connected queue pair, [`Ud`] one of unreliable datagrams (IBA Vol. 1 ch. 9 "Transport layer",
//! ch. 10 "Software transport interface", ch. 11 "Software transport verbs"). Each is given work requests, packets and the
//! time, and is polled for packets to send, completions, events and its next deadline. Neither opens a socket, reads a
//! clock or starts a thread.
//!
//! # Contract
//!
//! 1. Inputs: [`Rc::modify`], [`Rc::post_send`], [`Rc::post_recv`], [`Rc::handle_packet`], [`Rc::handle_timeout`].
//! 2. After an input (or a batch of them) drain the outputs **in this order**:
//!    [`Rc::poll_transmit`] until `None`, then [`Rc::poll_completion`], then [`Rc::poll_event`]; then wait until
//!    [`Rc::poll_timeout`] or the next input.
//! 3. The order is enforced where it matters: while an acknowledgement waits to be sent, [`Rc::poll_completion`] yields
//!    nothing. The acknowledgement has left before the completion is visible, so that a program that sees its last
//!    message and exits does not fail its peer.
//! 4. `handle_timeout` only changes state. A retransmission it causes comes out of `poll_transmit` in the same drain.
//!    Calling it early, late or twice is harmless.
//! 5. A work request that was accepted gives exactly one completion, in the order of its queue; a send that was not
//!    signalled gives none when it succeeds. [`QpState::Reset`] forgets all of them.
//! 6. A queue slot is free again when its completion has been polled (or, unsignalled, when the send is acknowledged),
//!    so the number of waiting completions never exceeds the depth of both queues.
//!
//! ```text
//!   post_send ──> SendQueue ──> requester ──> poll_transmit          requester: sends requests, takes responses
//!                                   ^                ^
//!                    responses      │                │ responses
//!   handle_packet ───────┬──────────┘                │
//!                        └─ requests ──> responder ──┴──> scatter into RecvQueue's buffers ──> poll_completion
//! ```
//!
//! [`Ud`] is the simple case: nobody answers, so it has neither deadlines nor events, and its methods take no time.
//!
//! ```text
//!   post_send ──> SendQueue ──> poll_transmit      one packet a message, to the destination of the request
//!   handle_packet ── Q_Key ──> scatter GRH and payload into RecvQueue's buffers ──> poll_completion
//! ```
//!
//! Memory is reached through [`Memory`] only, so that whatever can go wrong with a buffer comes back as an error.
//! No call allocates once the queue pair exists.
//!
//! # Example
//!
//! One message from one queue pair to another, the network being a function call:
//!
//! ```
//! use oarlock_transport::*;
//! use oarlock_wire::{AddressVector, Gid, Psn, Qpn, Time};
//!
//! struct Ram(Vec<u8>);
//! impl Memory for Ram {
//!     fn scatter(&mut self, sges: &[Sge], offset: u64, data: &[u8]) -> Result<(), MemoryError> {
//!         let start = (sges[0].addr + offset) as usize;
//!         self.0[start..start + data.len()].copy_from_slice(data);
//!         Ok(())
//!     }
//!     fn gather(&mut self, sges: &[Sge], offset: u64, out: &mut [u8]) -> Result<(), MemoryError> {
//!         let start = (sges[0].addr + offset) as usize;
//!         out.copy_from_slice(&self.0[start..start + out.len()]);
//!         Ok(())
//!     }
//! }
//!
//! /// A queue pair in RTS, made with the three steps of the RDMA CM's recipe.
//! fn ready(own: u8, peer: u8) -> Result<Rc, Error> {
//!     use AttrMask as M;
//!     let number = |host: u8| Qpn::truncate(0x100 + u32::from(host));
//!     let address = |host| Gid::from_ip([10, 0, 0, host].into());
//!     let mut rc = Rc::new(RcConfig { qpn: number(own), ..RcConfig::default() });
//!     let attr = QpAttr {
//!         av: AddressVector::new(address(own), address(peer)),
//!         dest_qpn: number(peer),
//!         rq_psn: Psn::truncate(own.into()),
//!         sq_psn: Psn::truncate(peer.into()),
//!         ..QpAttr::default()
//!     };
//!     let init = M::ACCESS_FLAGS | M::PKEY_INDEX | M::PORT;
//!     let rtr = M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
//!     let rts = M::SQ_PSN | M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC;
//!     for (state, mask) in [(QpState::Init, init), (QpState::Rtr, rtr), (QpState::Rts, rts)] {
//!         rc.modify(&QpAttr { mask: mask | M::STATE, state, ..attr })?;
//!     }
//!     Ok(rc)
//! }
//!
//! let (mut a, mut b) = (ready(1, 2)?, ready(2, 1)?);
//! let (mut ram_a, mut ram_b) = (Ram(b"hello".to_vec()), Ram(vec![0; 5]));
//! let sges = [Sge { addr: 0, len: 5, ..Sge::default() }];
//! b.post_recv(&RecvWr { wr_id: 7, sges: &sges })?;
//! a.post_send(&SendWr { wr_id: 8, data: SendData::Sges(&sges), ..SendWr::default() })?;
//!
//! let (now, mut packet) = (Time::ZERO, [0; MAX_PACKET_LEN]);
//! while let Some(sent) = a.poll_transmit(now, &mut ram_a, &mut packet) {
//!     b.handle_datagram(now, &sent.av.reversed(), &packet[..sent.len], &mut ram_b);
//! }
//! while let Some(sent) = b.poll_transmit(now, &mut ram_b, &mut packet) {
//!     a.handle_datagram(now, &sent.av.reversed(), &packet[..sent.len], &mut ram_a);
//! }
//! assert_eq!(ram_b.0, b"hello");
//! assert_eq!(b.poll_completion().map(|c| (c.wr_id, c.byte_len)), Some((7, 5)));
//! assert_eq!(a.poll_completion().map(|c| (c.wr_id, c.status)), Some((8, WcStatus::SUCCESS)));
//! # Ok::<(), Error>(())
//! ```
//!
//! # Scope
//!
//! RC: SEND, SEND with immediate, RECV. RDMA WRITE and READ and atomics follow; requests for them are answered as *invalid
//! request*, as a responder without them must. UD: SEND, SEND with immediate, RECV, to single queue pairs and to multicast
//! groups; a receive buffer begins with 40 bytes of GRH; a send that fails leads to state `Sqe`. The UC engine follows.
//! State `Sqd` is named and refused.
#![forbid(unsafe_code)]

mod attr;
mod completion;
mod counters;
mod error;
mod memory;
mod packet;
mod queue;
mod rc;
mod receive;
mod srq;
mod uc;
mod ud;
mod vendor;
mod work;

pub use attr::{AccessFlags, AttrMask, QpAttr, QpState, QpType, Transition};
pub use completion::{Completion, WcOpcode, WcStatus};
pub use counters::{Counter, Counters};
pub use error::Error;
pub use memory::{AtomicOp, Memory, MemoryError, RemoteAccess, Sge, SharedReceive};
pub use packet::{MAX_PACKET_LEN, PacketBuf, Transmit};
pub use rc::{QpEvent, Rc, RcConfig, RcKind};
pub use srq::{HeldReceive, Srq, SrqAttr, SrqConfig};
pub use uc::{Uc, UcConfig};
pub use ud::{Ud, UdConfig};
pub use vendor::VendorError;
pub use work::{
    BindWindow, MAX_MESSAGE_LEN, RecvWr, RemoteAddress, SendData, SendOp, SendWr, UdDestination,
};
