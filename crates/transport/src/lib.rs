//! The RC packet engine: requester, responder, PSNs, acknowledgement, retry. Sans-IO.
//!
//! [`Rc`] is one reliable-connected queue pair (IBA Vol. 1 ch. 9 "Transport layer", ch. 10 "Software transport
//! interface", ch. 11 "Software transport verbs"). It is given work requests, packets and the time, and is polled for
//! packets to send, completions, events and its next deadline. It opens no socket, reads no clock, starts no thread.
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
//! Memory is reached through [`Memory`] only, so that whatever can go wrong with a buffer comes back as an error.
//! No call allocates once the queue pair exists.
//!
//! # Scope
//!
//! SEND, SEND with immediate, RECV. RDMA WRITE and READ, atomics, and the UC and UD engines follow; requests for them are
//! answered as *invalid request*, as a responder without them must. States `Sqd` and `Sqe` are named and refused.
#![forbid(unsafe_code)]

mod attr;
mod completion;
mod counters;
mod error;
mod memory;
mod queue;
mod rc;
mod work;

pub use attr::{AccessFlags, AttrMask, QpAttr, QpState};
pub use completion::{Completion, WcOpcode, WcStatus};
pub use counters::{Counter, Counters};
pub use error::Error;
pub use memory::{Memory, MemoryError, Sge};
pub use rc::{MAX_MESSAGE_LEN, MAX_PACKET_LEN, PacketBuf, QpEvent, Rc, RcConfig, Transmit};
pub use work::{RecvWr, SendData, SendOp, SendWr};
