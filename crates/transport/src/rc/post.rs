//! Work requests: what is accepted, and what is refused by name.

use super::Rc;
use crate::attr::QpState;
use crate::completion::{Completion, WcOpcode, WcStatus};
use crate::counters::Counter;
use crate::error::Error;
use crate::vendor::VendorError;
use crate::work::{RecvWr, SendOp, SendWr};

use super::config::RcKind;

impl Rc {
    /// Appends a request to the send queue; in [`QpState::Sqd`] it waits there, in [`QpState::Error`] it is flushed at once.
    ///
    /// # Errors
    /// The request means nothing on this queue pair: [`Error::OperationNotSupported`] (all, on an XRC target),
    /// [`Error::UnexpectedDestination`], [`Error::NoSharedQueueNumber`], [`Error::UnexpectedSharedQueueNumber`],
    /// [`Error::FlagNotAllowed`], [`Error::NoReadsAllowed`]. It has too much, or not what the operation asks for:
    /// [`Error::InlineNotAllowed`], [`Error::DataNotAllowed`], [`Error::AtomicLength`], [`Error::AtomicMisaligned`],
    /// [`Error::RemoteRange`], [`Error::MessageTooLong`], [`Error::TooManySges`], [`Error::InlineTooLong`]. It comes at a wrong
    /// time: [`Error::WrongState`] before [`QpState::Rts`], [`Error::QueueFull`].
    #[doc(alias = "ibv_post_send")]
    pub fn post_send(&mut self, wr: &SendWr<'_>) -> Result<(), Error> {
        let length = self.check_send(wr)?;
        if self.state == QpState::Error {
            self.sq.reserve();
            self.counters.count(Counter::SendsFlushed);
            self.push_flushed(wr.wr_id, wr.op.wc_opcode(), true);
            return Ok(());
        }
        let psns = self.psns(&wr.op, length);
        let way = self.requester.assign(psns, wr.fence, wr.xrc_srqn);
        let signaled = wr.signaled || self.config.sq_sig_all;
        self.sq.push(wr, signaled, length, way);
        Ok(())
    }

    /// Whether [`post_send`](Self::post_send) would take all of these requests, one after the other. Nothing is posted.
    ///
    /// # Errors
    /// Those of `post_send`, with the index of the first request that would be refused.
    pub fn check_sends(&self, wrs: &[SendWr<'_>]) -> Result<(), (usize, Error)> {
        self.sq.check_list(wrs, |wr| self.check_send(wr))
    }

    /// The length of the message, or the rule that the request breaks.
    fn check_send(&self, wr: &SendWr<'_>) -> Result<u32, Error> {
        let length = wr.check(self.config.kind.qp_type())?;
        if !matches!(self.state, QpState::Rts | QpState::Sqd | QpState::Error) {
            return Err(Error::WrongState {
                call: "post_send",
                state: self.state,
            });
        }
        let _ = self.sq.check(wr)?;
        if wr.op.brings_data() && self.attr.max_rd_atomic == 0 {
            return Err(Error::NoReadsAllowed {
                operation: wr.op.name(),
            });
        }
        Ok(length)
    }

    /// How many PSNs a request takes: its packets, or those of its response.
    fn psns(&self, op: &SendOp, length: u32) -> u32 {
        if op.is_local() {
            0
        } else {
            length.div_ceil(self.mtu).max(1)
        }
    }

    /// Appends a buffer to the receive queue; in [`QpState::Error`] it is flushed at once.
    ///
    /// # Errors
    /// [`Error::NoReceiveQueue`]: an XRC initiator receives nothing, and other buffers may come from shared receive queues;
    /// [`Error::WrongState`] in [`QpState::Reset`]; [`Error::QueueFull`], [`Error::TooManySges`].
    #[doc(alias = "ibv_post_recv")]
    pub fn post_recv(&mut self, wr: &RecvWr<'_>) -> Result<(), Error> {
        if self.config.kind == RcKind::XrcInitiator {
            return Err(Error::NoReceiveQueue {
                reason: "an XRC initiator only sends",
            });
        }
        if self.state == QpState::Reset {
            return Err(Error::WrongState {
                call: "post_recv",
                state: self.state,
            });
        }
        self.rq.check(wr)?;
        if self.state == QpState::Error {
            self.rq.reserve();
            self.counters.count(Counter::ReceivesFlushed);
            self.push_flushed(wr.wr_id, WcOpcode::RECV, false);
        } else {
            self.rq.push(wr);
        }
        Ok(())
    }

    fn push_flushed(&mut self, wr_id: u64, opcode: WcOpcode, is_send: bool) {
        self.completions.push_back(Completion::failure(
            wr_id,
            WcStatus::WR_FLUSH_ERR,
            opcode,
            is_send,
            VendorError::FLUSHED_AT_POST,
        ));
    }
}
