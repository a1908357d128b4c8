//! Receive buffers: the oldest of the queue pair's own queue, or one taken out of a shared receive queue.
//!
//! An own buffer stays in its queue until its message is complete. A shared one is taken when the message that needs it begins
//! (SEND) or ends (WRITE with immediate) and kept, also across a repetition of the packet that took it; if the connection fails
//! before the message is complete, it completes as flushed. IBA Vol. 1 ch. 10 "Shared receive queue".

use oarlock_wire::{NakCode, Packet};

use super::Rc;
use super::responder::Refusal;
use crate::completion::{Completion, WcOpcode, WcStatus};
use crate::counters::Counter;
use crate::memory::{Memory, SharedReceive};
use crate::vendor::VendorError;

impl Rc {
    /// Makes sure that a buffer is there for the message.
    pub(super) fn ready_receive(
        &mut self,
        packet: &Packet<'_>,
        memory: &mut dyn Memory,
    ) -> Result<(), Refusal> {
        let srqn = packet.xrceth.map(|xrceth| xrceth.srqn);
        match self.rq.ready(srqn, memory) {
            SharedReceive::Taken => Ok(()),
            SharedReceive::Empty => Err(Refusal::NotReady),
            SharedReceive::NoSuchQueue => Err(Refusal::invalid(VendorError::NO_SHARED_QUEUE)),
        }
    }

    /// Places bytes of a SEND into its buffer.
    pub(super) fn place_received(
        &self,
        placed: u64,
        data: &[u8],
        memory: &mut dyn Memory,
    ) -> Result<(), Refusal> {
        match self.rq.place_if_it_fits(memory, placed, data) {
            Some(Ok(())) => Ok(()),
            Some(Err(error)) => Err(Refusal::buffer(
                NakCode::REMOTE_OPERATIONAL_ERROR,
                WcStatus::LOC_PROT_ERR,
                error.into(),
            )),
            None => Err(Refusal::buffer(
                NakCode::INVALID_REQUEST,
                WcStatus::LOC_LEN_ERR,
                VendorError::MESSAGE_TOO_LONG,
            )),
        }
    }

    /// The message is complete: its buffer is, too.
    pub(super) fn complete_receive(
        &mut self,
        opcode: WcOpcode,
        byte_len: u32,
        packet: &Packet<'_>,
    ) {
        let Some(wr_id) = self.rq.finish() else {
            return;
        };
        self.completions.push_back(Completion {
            imm: packet.immdt.map(|immdt| immdt.0),
            solicited: packet.bth.solicited,
            invalidated: packet.ieth.map(|ieth| ieth.0),
            srqn: packet.xrceth.map(|xrceth| xrceth.srqn),
            ..Completion::success(wr_id, opcode, false, byte_len)
        });
    }

    /// The buffer of the message in progress, or the one it would have taken, fails.
    pub(super) fn fail_receive(&mut self, status: WcStatus, rule: VendorError) {
        if let Some(wr_id) = self.rq.finish() {
            self.counters.count(Counter::ReceivesFailed);
            if status == WcStatus::LOC_LEN_ERR {
                self.counters.count(Counter::ReceiveLengthErrors);
            }
            self.push_failed_receive(wr_id, status, rule);
        }
    }

    /// All buffers that the queue pair has are flushed.
    pub(super) fn flush_receives(&mut self, cause: VendorError) {
        while let Some(wr_id) = self.rq.finish() {
            self.counters.count(Counter::ReceivesFlushed);
            self.push_failed_receive(wr_id, WcStatus::WR_FLUSH_ERR, cause);
        }
    }

    fn push_failed_receive(&mut self, wr_id: u64, status: WcStatus, rule: VendorError) {
        self.completions.push_back(Completion {
            srqn: self.rq.srqn(),
            ..Completion::failure(wr_id, status, WcOpcode::RECV, false, rule)
        });
    }
}
