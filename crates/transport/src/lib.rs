//! The packet engines of RC, XRC, UC and UD queue pairs: requester, responder, PSNs, acknowledgement, retry. Sans-IO.
//!
//! [`Rc`] is one reliable-connected queue pair (or half of an extended one, see [`RcKind`]), [`Uc`] an unreliable-connected
//! one, [`Ud`] one of unreliable datagrams, [`Srq`] a shared receive queue (IBA Vol. 1 ch. 9 "Transport layer", ch. 10 "Software
//! transport interface", ch. 11 "Software transport verbs", Annex A14). Each queue pair is given work requests, packets and
//! the time, and is polled for packets to send, completions, events and its next deadline. None opens a socket, reads a
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
//!    message and exits does not fail its peer. (One that waits for the data of a READ keeps nothing back: the data may be
//!    2^31 bytes, and a program that exits fails the READ anyway.)
//! 4. `handle_timeout` only changes state. A retransmission it causes comes out of `poll_transmit` in the same drain.
//!    Calling it early, late or twice is harmless.
//! 5. A work request that was accepted gives exactly one completion, in the order of its queue; a send that was not
//!    signalled gives none when it succeeds. [`QpState::Reset`] forgets all of them.
//! 6. A queue slot is free again when its completion has been polled (or, unsignalled, when the send is acknowledged),
//!    so the number of waiting completions never exceeds the depth of both queues. Buffers of a shared receive queue have no
//!    slot here: who uses one polls completions as often as packets arrive.
//!
//! ```text
//!   post_send ──> SendQueue ──> requester ──> poll_transmit          requester: sends requests, takes responses
//!                                   ^                ^
//!                    responses      │                │ responses
//!   handle_packet ───────┬──────────┘                │
//!                        └─ requests ──> responder ──┴──> place in receive buffers or offered memory ──> poll_completion
//! ```
//!
//! With [`Uc`] and [`Ud`] nobody answers: there are no responses, a request is complete when its last packet is out, and the only
//! deadline is that of [`UcConfig::pace`]. The methods of [`Ud`] take no time.
//!
//! Memory is reached through [`Memory`] only, so that whatever can go wrong with a buffer comes back as an error.
//! Once a queue pair exists no call allocates but [`Rc::modify`], which makes room for responses when it is known how many
//! there can be; a shared receive queue's [`HeldReceive`] grows once.
//!
//! # What each service does
//!
//! | | RC | XRC | UC | UD |
//! |---|---|---|---|---|
//! | SEND, with or without immediate | yes | initiator | yes | yes, one packet |
//! | SEND with invalidate | yes | initiator | | |
//! | RDMA WRITE, with or without immediate | yes | initiator | yes | |
//! | RDMA READ, compare-and-swap, fetch-and-add | yes | initiator | | |
//! | local invalidate, bind | yes | initiator | yes | |
//! | inline data, scatter/gather, unsignalled requests | yes | initiator | yes | yes |
//! | fence | yes | initiator | | |
//! | shared receive queue | if configured | target, always | if configured | if configured |
//! | states Sqd, Sqe | Sqd | Sqd | both | both |
//!
//! What a service does not do is refused by name when it is posted ([`SendWr`]), and answered or dropped with a counter when it
//! arrives. [`QpType::transition`] lists what [`Rc::modify`] and its kin take, [`VendorError`] says of each failed request
//! which rule it broke, [`Counter`] what is counted.
//!
//! # Example
//!
//! One message, one RDMA WRITE and one RDMA READ from one queue pair to another, the network being a function call:
//!
//! ```
//! use oarlock_transport::*;
//! use oarlock_wire::{AddressVector, Gid, Psn, Qpn, RKey, Time};
//!
//! /// Memory that offers all of itself to the peer, under one key.
//! struct Ram(Vec<u8>);
//! const KEY: RKey = RKey(7);
//!
//! impl Ram {
//!     fn at(&mut self, addr: u64, len: usize) -> &mut [u8] {
//!         &mut self.0[addr as usize..][..len]
//!     }
//! }
//!
//! impl Memory for Ram {
//!     fn scatter(&mut self, sges: &[Sge], offset: u64, data: &[u8]) -> Result<(), MemoryError> {
//!         self.at(sges[0].addr + offset, data.len()).copy_from_slice(data);
//!         Ok(())
//!     }
//!     fn gather(&mut self, sges: &[Sge], offset: u64, out: &mut [u8]) -> Result<(), MemoryError> {
//!         out.copy_from_slice(self.at(sges[0].addr + offset, out.len()));
//!         Ok(())
//!     }
//!     fn check_remote(
//!         &mut self,
//!         rkey: RKey,
//!         addr: u64,
//!         len: u64,
//!         _: RemoteAccess,
//!     ) -> Result<(), MemoryError> {
//!         if rkey != KEY {
//!             return Err(MemoryError::InvalidRemoteKey(rkey));
//!         }
//!         match addr.checked_add(len) {
//!             Some(end) if end <= self.0.len() as u64 => Ok(()),
//!             _ => Err(MemoryError::OutOfBounds { addr, len }),
//!         }
//!     }
//!     fn write_remote(&mut self, rkey: RKey, addr: u64, data: &[u8]) -> Result<(), MemoryError> {
//!         self.check_remote(rkey, addr, data.len() as u64, RemoteAccess::Write)?;
//!         self.at(addr, data.len()).copy_from_slice(data);
//!         Ok(())
//!     }
//!     fn read_remote(&mut self, rkey: RKey, addr: u64, out: &mut [u8]) -> Result<(), MemoryError> {
//!         self.check_remote(rkey, addr, out.len() as u64, RemoteAccess::Read)?;
//!         out.copy_from_slice(self.at(addr, out.len()));
//!         Ok(())
//!     }
//! }
//!
//! /// A queue pair in RTS, made with the three steps of the RDMA CM's recipe.
//! fn ready(own: u8, peer: u8) -> Result<Rc, Error> {
//!     let number = |host: u8| Qpn::truncate(0x100 + u32::from(host));
//!     let address = |host| Gid::from_ip([10, 0, 0, host].into());
//!     let mut rc = Rc::new(RcConfig { qpn: number(own), ..RcConfig::default() });
//!     let attr = QpAttr {
//!         access: AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ,
//!         av: AddressVector::new(address(own), address(peer)),
//!         dest_qpn: number(peer),
//!         rq_psn: Psn::truncate(own.into()),
//!         sq_psn: Psn::truncate(peer.into()),
//!         max_rd_atomic: 1,
//!         max_dest_rd_atomic: 1,
//!         ..QpAttr::default()
//!     };
//!     for step in [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts].windows(2) {
//!         let transition = QpType::Rc.transition(step[0], step[1]).expect("a step of the recipe");
//!         let mask = transition.required | AttrMask::STATE;
//!         rc.modify(&QpAttr { mask, state: step[1], ..attr })?;
//!     }
//!     Ok(rc)
//! }
//!
//! let (mut a, mut b) = (ready(1, 2)?, ready(2, 1)?);
//! let (mut ram_a, mut ram_b) = (Ram(b"hello world, ....".to_vec()), Ram(vec![0; 64]));
//! let bytes = |addr, len| [Sge { addr, len, ..Sge::default() }];
//! let theirs = |addr| RemoteAddress { addr, rkey: KEY };
//!
//! b.post_recv(&RecvWr { wr_id: 7, sges: &bytes(0, 5) })?;
//! for (wr_id, op, sges) in [
//!     (1, SendOp::Send, bytes(0, 5)),
//!     (2, SendOp::Write(theirs(32)), bytes(6, 6)),
//!     (3, SendOp::Read(theirs(32)), bytes(13, 4)),
//! ] {
//!     a.post_send(&SendWr { wr_id, op, data: SendData::Sges(&sges), ..SendWr::default() })?;
//! }
//!
//! let (now, mut packet) = (Time::ZERO, [0; MAX_PACKET_LEN]);
//! while a.has_output() || b.has_output() {
//!     while let Some(sent) = a.poll_transmit(now, &mut ram_a, &mut packet) {
//!         b.handle_datagram(now, &sent.av.reversed(), &packet[..sent.len], &mut ram_b);
//!     }
//!     while let Some(sent) = b.poll_transmit(now, &mut ram_b, &mut packet) {
//!         a.handle_datagram(now, &sent.av.reversed(), &packet[..sent.len], &mut ram_a);
//!     }
//!     while let Some(done) = a.poll_completion() {
//!         println!("{} {}: {}", done.wr_id, done.opcode, done.status);
//!         assert!(done.status.is_success());
//!     }
//!     while let Some(done) = b.poll_completion() {
//!         assert_eq!((done.wr_id, done.byte_len), (7, 5));
//!     }
//!     while b.poll_event().is_some() {}
//! }
//! assert_eq!(ram_b.0[..5], *b"hello");
//! assert_eq!(ram_b.0[32..38], *b"world,");
//! assert_eq!(ram_a.0[13..], *b"worl", "read back");
//! # Ok::<(), Error>(())
//! ```
//!
//! # Where to read on
//!
//! [`Rc`], [`Uc`] and [`Ud`] have the same methods; [`Memory`] is what an owner of queue pairs implements; [`SendOp`] lists the
//! operations, [`WcStatus`] how they can end.
#![forbid(unsafe_code)]

mod attr;
mod common;
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
