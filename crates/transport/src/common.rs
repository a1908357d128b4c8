//! What the queue pairs have in common whose requests nobody acknowledges: two queues, and how whatever is in them ends.

use std::collections::VecDeque;

use crate::attr::{QpAttr, QpState};
use crate::completion::{Completion, WcOpcode, WcStatus};
use crate::counters::{Counter, Counters};
use crate::error::Error;
use crate::queue::{SendQueue, SendWqe};
use crate::rc::QpEvent;
use crate::receive::Buffers;
use crate::vendor::VendorError;
use crate::work::{RecvWr, SendWr};

/// The state of a UC or UD queue pair, its queues, and what it has to tell. `W` is what a request keeps beside itself.
#[derive(Debug)]
pub(crate) struct Common<W> {
    pub(crate) state: QpState,
    pub(crate) attr: QpAttr,
    pub(crate) sq: SendQueue<W>,
    pub(crate) buffers: Buffers,
    pub(crate) completions: VecDeque<Completion>,
    pub(crate) events: VecDeque<QpEvent>,
    pub(crate) counters: Counters,
    sq_sig_all: bool,
}

impl<W: Copy> Common<W> {
    /// In state Reset.
    pub(crate) fn new(sq: SendQueue<W>, buffers: Buffers, sq_sig_all: bool) -> Self {
        let receives = buffers.depth().max(SHARED_COMPLETIONS);
        let completions = sq.depth() + receives;
        Self {
            state: QpState::Reset,
            attr: QpAttr::default(),
            sq,
            buffers,
            completions: VecDeque::with_capacity(completions),
            events: VecDeque::with_capacity(EVENTS),
            counters: Counters::default(),
            sq_sig_all,
        }
    }

    /// Forgets everything but the counters.
    pub(crate) fn reset(&mut self) {
        self.state = QpState::Reset;
        self.attr = QpAttr::default();
        self.sq.clear();
        self.buffers.clear();
        self.completions.clear();
        self.events.clear();
    }

    /// Flushes both queues, each in its order; `reason` is why.
    pub(crate) fn enter_error(&mut self, reason: VendorError) {
        let was_error = self.state == QpState::Error;
        self.state = QpState::Error;
        self.flush_sends(reason);
        while let Some(wr_id) = self.buffers.finish() {
            self.fail_recv(wr_id, WcStatus::WR_FLUSH_ERR, reason);
        }
        if self.buffers.is_shared() && !was_error {
            self.events.push_back(QpEvent::LastWqeReached);
        }
    }

    /// The error state by the fault of neither program.
    pub(crate) fn fail(&mut self, reason: VendorError) {
        if self.state != QpState::Error {
            self.events.push_back(QpEvent::Fatal);
            self.enter_error(reason);
        }
    }

    /// A request that was taken out of the send queue fails on this side, those behind it are flushed.
    pub(crate) fn enter_sqe(
        &mut self,
        wqe: &SendWqe<W>,
        status: WcStatus,
        vendor_err: VendorError,
    ) {
        self.fail_send(wqe.wr_id, wqe.op.wc_opcode(), status, vendor_err);
        self.state = QpState::Sqe;
        self.flush_sends(VendorError::FLUSHED_BY_SEND);
    }

    fn flush_sends(&mut self, reason: VendorError) {
        while let Some(wqe) = self.sq.pop() {
            let opcode = wqe.op.wc_opcode();
            self.fail_send(wqe.wr_id, opcode, WcStatus::WR_FLUSH_ERR, reason);
        }
    }

    /// Whether the state is one in which sends are posted.
    pub(crate) fn check_state_to_send(&self) -> Result<(), Error> {
        if matches!(self.state, QpState::Reset | QpState::Init | QpState::Rtr) {
            return Err(Error::WrongState {
                call: "post_send",
                state: self.state,
            });
        }
        Ok(())
    }

    /// Appends a request that has been checked, or flushes it at once, as the state demands.
    pub(crate) fn post_send(&mut self, wr: &SendWr<'_>, length: u32, way: W) {
        if matches!(self.state, QpState::Sqe | QpState::Error) {
            self.sq.reserve();
            let (status, reason) = (WcStatus::WR_FLUSH_ERR, VendorError::FLUSHED_AT_POST);
            self.fail_send(wr.wr_id, wr.op.wc_opcode(), status, reason);
        } else {
            let signaled = wr.signaled || self.sq_sig_all;
            self.sq.push(wr, signaled, length, way);
        }
    }

    pub(crate) fn post_recv(&mut self, wr: &RecvWr<'_>) -> Result<(), Error> {
        if self.state == QpState::Reset {
            return Err(Error::WrongState {
                call: "post_recv",
                state: self.state,
            });
        }
        self.buffers.check(wr)?;
        if self.state == QpState::Error {
            self.buffers.reserve();
            let reason = VendorError::FLUSHED_AT_POST;
            self.fail_recv(wr.wr_id, WcStatus::WR_FLUSH_ERR, reason);
        } else {
            self.buffers.push(wr);
        }
        Ok(())
    }

    /// Whether packets are taken in this state.
    pub(crate) const fn is_receiving(&self) -> bool {
        matches!(
            self.state,
            QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe
        )
    }

    /// A request that was taken out of the send queue has succeeded.
    pub(crate) fn complete_send(&mut self, wqe: &SendWqe<W>) {
        if wqe.signaled {
            let opcode = wqe.op.wc_opcode();
            self.completions
                .push_back(Completion::success(wqe.wr_id, opcode, true, wqe.length));
        } else {
            self.sq.retire();
        }
    }

    pub(crate) fn poll_completion(&mut self) -> Option<Completion> {
        let completion = self.completions.pop_front()?;
        if completion.is_send {
            self.sq.retire();
        } else {
            self.buffers.retire();
        }
        Some(completion)
    }

    /// Whether there is something to tell.
    pub(crate) fn has_news(&self) -> bool {
        !self.completions.is_empty() || !self.events.is_empty()
    }

    /// A buffer that was taken out of a shared queue for a message that came to nothing: it cannot go back.
    pub(crate) fn fail_shared(&mut self, status: WcStatus, vendor_err: VendorError) {
        if self.buffers.is_shared()
            && let Some(wr_id) = self.buffers.finish()
        {
            self.fail_recv(wr_id, status, vendor_err);
        }
    }

    fn fail_send(
        &mut self,
        wr_id: u64,
        opcode: WcOpcode,
        status: WcStatus,
        vendor_err: VendorError,
    ) {
        self.counters.count(Counter::of_failed_send(status));
        self.completions
            .push_back(Completion::failure(wr_id, status, opcode, true, vendor_err));
    }

    pub(crate) fn fail_recv(&mut self, wr_id: u64, status: WcStatus, vendor_err: VendorError) {
        self.counters.count(Counter::of_failed_receive(status));
        let opcode = WcOpcode::RECV;
        self.completions.push_back(Completion::failure(
            wr_id, status, opcode, false, vendor_err,
        ));
    }
}

/// Room at least for completions of receives: of buffers that do not come from a queue of the queue pair's own.
const SHARED_COMPLETIONS: usize = 16;
/// Room for events: each comes once per life, [`QpEvent::SqDrained`] once per transition.
const EVENTS: usize = 4;
