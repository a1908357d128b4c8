//! Completions one by one, field by field.

use std::time::SystemTime;

use oarlock_device as device;
use oarlock_transport::{VendorError, WcOpcode, WcStatus};
use oarlock_wire::{Qpn, RKey, Srqn, Time};

use crate::buffer::Buffers;
use crate::cq::{Completion, CompletionQueue, finish};
use crate::outstanding::Done;
use crate::srq::SrqId;

/// A look at the completions of a queue, one after the other: made by
/// [`CompletionQueue::start_poll`], it stands on one completion, [`next`](Self::next) goes on to the one after it, and
/// dropping it ends the look. A completion that it has stood on is out of the queue.
///
/// Other threads may poll the queue meanwhile, and requests may be posted.
///
/// ```compile_fail,E0505
/// # use oarlock_verbs::CompletionQueue;
/// fn outlive(cq: CompletionQueue) {
///     let polling = cq.start_poll().unwrap().unwrap();
///     drop(cq); // error[E0505]: cannot move out of `cq` because it is borrowed
///     polling.wr_id();
/// }
/// ```
#[doc(alias = "ibv_cq_ex")]
#[derive(Debug)]
#[must_use]
pub struct Polling<'a> {
    queue: &'a CompletionQueue,
    cqe: device::Cqe,
    done: Done,
}

impl<'a> Polling<'a> {
    pub(crate) fn new(queue: &'a CompletionQueue, cqe: device::Cqe) -> Self {
        Self {
            queue,
            done: finish(&cqe),
            cqe,
        }
    }

    /// Goes on to the next completion that is waiting; `false` if none is, and then this one stays. Buffers of the present
    /// one that were not [taken](Self::take_buffers) are dropped.
    #[doc(alias = "ibv_next_poll")]
    #[expect(
        clippy::should_implement_trait,
        reason = "it is no iterator: the item is the object itself"
    )]
    pub fn next(&mut self) -> bool {
        match self.queue.device().take_one() {
            Some(cqe) => {
                self.done = finish(&cqe);
                self.cqe = cqe;
                true
            }
            None => false,
        }
    }

    /// Ends the look; dropping does the same.
    #[doc(alias = "ibv_end_poll")]
    pub fn end(self) {}

    /// From the work request.
    pub fn wr_id(&self) -> u64 {
        self.done.wr_id
    }

    /// How it ended.
    pub fn status(&self) -> WcStatus {
        self.cqe.completion.status
    }

    /// What completed.
    #[doc(alias = "ibv_wc_read_opcode")]
    pub fn opcode(&self) -> WcOpcode {
        self.cqe.completion.opcode
    }

    /// Which rule failed.
    #[doc(alias = "ibv_wc_read_vendor_err")]
    pub fn vendor_err(&self) -> VendorError {
        self.cqe.completion.vendor_err
    }

    /// Bytes received, the header of a datagram included, or sent.
    #[doc(alias = "ibv_wc_read_byte_len")]
    pub fn byte_len(&self) -> u32 {
        self.cqe.completion.byte_len
    }

    /// The immediate value that came with the message.
    #[doc(alias = "ibv_wc_read_imm_data")]
    pub fn imm(&self) -> Option<u32> {
        self.cqe.completion.imm
    }

    /// The key that the received SEND took away.
    #[doc(alias = "ibv_wc_read_invalidated_rkey")]
    pub fn invalidated(&self) -> Option<RKey> {
        self.cqe.completion.invalidated
    }

    /// Whether the request was on the send queue.
    pub fn is_send(&self) -> bool {
        self.cqe.completion.is_send
    }

    /// The queue pair.
    #[doc(alias = "ibv_wc_read_qp_num")]
    pub fn qpn(&self) -> Qpn {
        self.cqe.qpn()
    }

    /// The queue pair that sent a received datagram.
    #[doc(alias = "ibv_wc_read_src_qp")]
    pub fn src_qp(&self) -> Qpn {
        self.cqe.completion.src_qp
    }

    /// The service level of a received datagram.
    #[doc(alias = "ibv_wc_read_sl")]
    pub fn service_level(&self) -> u8 {
        self.cqe.completion.sl
    }

    /// The shared receive queue whose receive it was.
    pub fn srq(&self) -> Option<SrqId> {
        self.cqe.srq_id()
    }

    /// Its number, if it is one of XRC.
    pub fn srqn(&self) -> Option<Srqn> {
        self.cqe.completion.srqn
    }

    /// When it completed, on the device's clock, in nanoseconds.
    #[doc(alias = "ibv_wc_read_completion_ts")]
    pub fn timestamp(&self) -> Time {
        self.cqe.timestamp()
    }

    /// When it completed, on the wall clock as it is set now.
    #[doc(alias = "ibv_wc_read_completion_wallclock_ns")]
    pub fn wall_clock(&self) -> SystemTime {
        self.queue.wall_clock(self.timestamp())
    }

    /// The buffers of the work request.
    pub fn buffers(&self) -> &Buffers {
        &self.done.buffers
    }

    /// Takes the buffers of the work request; a second time there are none.
    pub fn take_buffers(&mut self) -> Buffers {
        std::mem::take(&mut self.done.buffers)
    }

    /// Takes the buffers of unsignaled sends before this one that succeeded, oldest first.
    pub fn take_earlier(&mut self) -> Buffers {
        std::mem::take(&mut self.done.earlier)
    }

    /// All fields, with the buffers; ends the look.
    pub fn into_completion(self) -> Completion {
        Completion::of(&self.cqe, self.done)
    }
}
