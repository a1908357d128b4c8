//! The receiving half: packets in, nothing out.
//!
//! | Packet | What becomes of it |
//! |---|---|
//! | expected PSN, next of its message | placed |
//! | expected PSN, beginning of a message while another is unfinished | that one is given up; placed |
//! | expected PSN, no beginning, its message was given up | dropped |
//! | PSN after a gap | the message in progress is given up; placed if a message begins here, else dropped |
//! | PSN shortly before the expected one | dropped: a repetition, or overtaken |
//! | no receive buffer, message longer than the buffer | the message is dropped |
//! | WRITE with a wrong key, range or right | the message is dropped |
//! | buffer not writable | the receive fails with *local protection error*, the queue pair is in error |
//!
//! What is given up was placed in part; a buffer of the own queue waits for the next message, one of a shared queue cannot
//! go back and completes with an error. Every dropped packet has a counter.
//!
//! IBA Vol. 1 ch. 9 "Unreliable connection", "Responder side error behavior" (classes D1 and E).

use oarlock_wire::base::{Operation, Position};
use oarlock_wire::{ImmDt, Packet, Psn, RKey};

use super::Uc;
use crate::attr::AccessFlags;
use crate::completion::{Completion, WcOpcode, WcStatus};
use crate::counters::Counter;
use crate::memory::{Memory, MemoryError, RemoteAccess};
use crate::rc::QpEvent;
use crate::vendor::VendorError;
use crate::work::MAX_MESSAGE_LEN;

#[derive(Debug, Default)]
pub(super) struct Responder {
    pub(super) expected: Psn,
    pub(super) progress: Progress,
    /// A packet has arrived.
    is_established: bool,
}

/// What is known of the message that is arriving.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum Progress {
    /// None, or one that was given up.
    #[default]
    Idle,
    Send {
        placed: u64,
    },
    Write(Write),
    /// The rest of the message is dropped for this reason.
    Dropping(Counter),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Write {
    rkey: RKey,
    /// Where the next byte goes.
    addr: u64,
    left: u32,
    length: u32,
}

/// Why a packet, and with it the rest of its message, is dropped.
enum Refusal {
    Drop(Counter),
    /// The message is longer than its buffer.
    TooLong,
    /// The buffer cannot be written.
    NotPlaced(MemoryError),
}

/// PSNs up to so far before the expected one belong to packets that were repeated or overtaken on their way.
///
/// Deviation: the specification has a responder begin a message with any first packet whose PSN is not expected. A network
/// that repeats a packet would so deliver a message twice, and one that reorders packets, messages in a wrong order.
const MAX_REORDERING: u32 = 1 << 12;

impl Uc {
    pub(super) fn on_request(&mut self, packet: &Packet<'_>, memory: &mut dyn Memory) {
        // As for RC: not only in Rtr, since an accepting side may be in Rts before its peer can send.
        if !self.responder.is_established {
            self.responder.is_established = true;
            self.common.events.push_back(QpEvent::CommEst);
        }
        let (psn, expected) = (packet.bth.psn, self.responder.expected);
        if psn != expected {
            if expected.distance_from(psn) <= MAX_REORDERING {
                return self.common.counters.count(Counter::DuplicateRequests);
            }
            self.common.counters.count(Counter::SequenceGaps);
            self.give_up();
        }
        self.responder.expected = psn.next();
        let is_end = packet.bth.opcode.position().is_end();
        let refusal = match self.execute(packet, memory) {
            Ok(()) => return self.common.counters.count(Counter::RequestsReceived),
            Err(refusal) => refusal,
        };
        let reason = self.refuse(&refusal);
        self.common.counters.count(reason);
        self.responder.progress = if is_end || reason == Counter::DroppedOutOfOrder {
            Progress::Idle
        } else {
            Progress::Dropping(reason)
        };
    }

    fn execute(&mut self, packet: &Packet<'_>, memory: &mut dyn Memory) -> Result<(), Refusal> {
        let opcode = packet.bth.opcode;
        if opcode.position().is_start() {
            self.give_up();
        } else if let Progress::Dropping(reason) = self.responder.progress {
            return Err(Refusal::Drop(reason));
        }
        match opcode.operation() {
            Operation::Send => self.execute_send(packet, memory),
            Operation::RdmaWrite => self.execute_write(packet, memory),
            _ => {
                self.give_up();
                Err(Refusal::Drop(Counter::DroppedInvalidRequest))
            }
        }
    }

    fn execute_send(
        &mut self,
        packet: &Packet<'_>,
        memory: &mut dyn Memory,
    ) -> Result<(), Refusal> {
        let position = packet.bth.opcode.position();
        let placed = match self.responder.progress {
            _ if position.is_start() => 0,
            Progress::Send { placed } => placed,
            _ => return Err(self.out_of_order()),
        };
        let end = placed + packet.payload.len() as u64;
        if !self.fits_its_place(packet, position) || end > u64::from(MAX_MESSAGE_LEN) {
            return Err(Refusal::Drop(Counter::DroppedInvalidRequest));
        }
        let capacity = self
            .common
            .buffers
            .take(memory)
            .ok_or(Refusal::Drop(Counter::DroppedReceiverNotReady))?;
        if end > capacity {
            return Err(Refusal::TooLong);
        }
        self.common
            .buffers
            .place(memory, placed, packet.payload)
            .map_err(Refusal::NotPlaced)?;
        self.responder.progress = if position.is_end() {
            self.common.counters.count(Counter::SendsReceived);
            self.complete_recv(packet, WcOpcode::RECV, end as u32);
            Progress::Idle
        } else {
            Progress::Send { placed: end }
        };
        Ok(())
    }

    fn execute_write(
        &mut self,
        packet: &Packet<'_>,
        memory: &mut dyn Memory,
    ) -> Result<(), Refusal> {
        let position = packet.bth.opcode.position();
        let write = match self.responder.progress {
            _ if position.is_start() => self.begin_write(packet, memory)?,
            Progress::Write(write) => write,
            _ => return Err(self.out_of_order()),
        };
        let len = packet.payload.len() as u32;
        let is_complete = len == write.left;
        if !self.fits_its_place(packet, position)
            || len > write.left
            || is_complete != position.is_end()
        {
            return Err(Refusal::Drop(Counter::DroppedInvalidRequest));
        }
        // A message that nobody can be told of is not placed either.
        if packet.immdt.is_some() && self.common.buffers.take(memory).is_none() {
            return Err(Refusal::Drop(Counter::DroppedReceiverNotReady));
        }
        if len > 0 {
            memory.announce((write.left - len).into());
            memory
                .write_remote(write.rkey, write.addr, packet.payload)
                .map_err(|error| Refusal::Drop(remote_reason(error)))?;
        }
        self.responder.progress = if is_complete {
            self.common.counters.count(Counter::WritesReceived);
            if packet.immdt.is_some() {
                self.complete_recv(packet, WcOpcode::RECV_RDMA_WITH_IMM, write.length);
            }
            Progress::Idle
        } else {
            Progress::Write(Write {
                addr: write.addr.wrapping_add(len.into()),
                left: write.left - len,
                ..write
            })
        };
        Ok(())
    }

    fn begin_write(&self, packet: &Packet<'_>, memory: &mut dyn Memory) -> Result<Write, Refusal> {
        let invalid = Refusal::Drop(Counter::DroppedInvalidRequest);
        let Some(reth) = packet.reth.filter(|reth| reth.len <= MAX_MESSAGE_LEN) else {
            return Err(invalid);
        };
        if !self.common.attr.access.contains(AccessFlags::REMOTE_WRITE) {
            return Err(Refusal::Drop(Counter::DroppedRemoteAccess));
        }
        if reth.len > 0 {
            memory
                .check_remote(reth.rkey, reth.addr, reth.len.into(), RemoteAccess::Write)
                .map_err(|error| Refusal::Drop(remote_reason(error)))?;
        }
        Ok(Write {
            rkey: reth.rkey,
            addr: reth.addr,
            left: reth.len,
            length: reth.len,
        })
    }

    /// A packet that cannot follow the one before it: the beginning of its message was lost, or never sent.
    fn out_of_order(&mut self) -> Refusal {
        self.give_up();
        Refusal::Drop(Counter::DroppedOutOfOrder)
    }

    /// Whether the payload has the length that first, middle, last and only packets have.
    fn fits_its_place(&self, packet: &Packet<'_>, position: Position) -> bool {
        let (len, mtu) = (packet.payload.len(), self.mtu as usize);
        match position {
            Position::Only => len <= mtu,
            Position::Last => (1..=mtu).contains(&len),
            _ => len == mtu,
        }
    }

    fn complete_recv(&mut self, packet: &Packet<'_>, opcode: WcOpcode, byte_len: u32) {
        let Some(wr_id) = self.common.buffers.finish() else {
            return;
        };
        self.common.completions.push_back(Completion {
            imm: packet.immdt.map(|ImmDt(imm)| imm),
            solicited: packet.bth.solicited,
            ..Completion::success(wr_id, opcode, false, byte_len)
        });
    }

    /// What the refusal does beside dropping; gives what is counted.
    fn refuse(&mut self, refusal: &Refusal) -> Counter {
        match *refusal {
            Refusal::Drop(reason) => {
                self.give_up();
                reason
            }
            Refusal::TooLong => {
                // Deviation: IBA calls it a local length error of the receive queue. As for UD, a peer that sends too much does
                // not stop a receiver.
                self.common.counters.count(Counter::ReceiveLengthErrors);
                self.common
                    .fail_shared(WcStatus::LOC_LEN_ERR, VendorError::MESSAGE_TOO_LONG);
                Counter::DroppedNoRoom
            }
            Refusal::NotPlaced(error) => {
                if let Some(wr_id) = self.common.buffers.finish() {
                    self.common
                        .fail_recv(wr_id, WcStatus::LOC_PROT_ERR, error.into());
                }
                self.common.enter_error(VendorError::FLUSHED_BY_RECEIVE);
                Counter::DroppedNotPlaced
            }
        }
    }

    /// Forgets the message in progress.
    fn give_up(&mut self) {
        match core::mem::take(&mut self.responder.progress) {
            Progress::Idle | Progress::Dropping(_) => {}
            Progress::Write(_) => self.common.counters.count(Counter::MessagesAbandoned),
            Progress::Send { .. } => {
                self.common.counters.count(Counter::MessagesAbandoned);
                self.common
                    .fail_shared(WcStatus::REM_INV_REQ_ERR, VendorError::MESSAGE_INCOMPLETE);
            }
        }
    }
}

const fn remote_reason(error: MemoryError) -> Counter {
    match error {
        MemoryError::Unmapped { .. } => Counter::DroppedNotPlaced,
        _ => Counter::DroppedRemoteAccess,
    }
}
