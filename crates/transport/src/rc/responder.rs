//! The receiving half: requests in, acknowledgements out.
//!
//! | Request | Answer | State |
//! |---|---|---|
//! | expected PSN, valid | ACK if asked for | executed; expected PSN moves on |
//! | expected PSN, no receive buffer | RNR NAK | unchanged |
//! | expected PSN, invalid | NAK invalid request | error |
//! | expected PSN, buffer not writable | NAK remote operational error | error |
//! | PSN seen before | ACK if asked for | unchanged |
//! | PSN after a gap | NAK sequence error, once until the gap is closed | unchanged |
//!
//! Consecutive ACKs that wait to be sent are merged into the latest; a NAK keeps its place among them.
//! IBA Vol. 1 ch. 9 "Responder behavior", "Responder side error behavior".

use std::collections::VecDeque;

use oarlock_wire::{
    Aeth, Bth, ImmDt, NakCode, Opcode, Packet, PacketHeader, Psn, RnrTimer, Syndrome,
};

use super::{QpEvent, Rc};
use crate::completion::{Completion, WcOpcode, WcStatus};
use crate::counters::Counter;
use crate::memory::Memory;
use crate::packet::{PacketBuf, emit};

#[derive(Debug)]
pub(super) struct Responder {
    expected: Psn,
    /// Messages completed, modulo 2^24.
    msn: u32,
    /// Bytes placed of the SEND in progress; its buffer is the oldest receive.
    in_progress: Option<u64>,
    /// A NAK has been sent for `expected`: what comes after it is dropped in silence.
    gap_reported: bool,
    /// A request has arrived.
    is_established: bool,
    responses: VecDeque<Response>,
}

#[derive(Clone, Copy, Debug)]
struct Response {
    psn: Psn,
    syndrome: Syndrome,
    msn: u32,
}

/// Responses that may wait. ACKs are merged, so that more than one waits only when gaps and packets alternate.
const MAX_RESPONSES: usize = 16;

/// The position of a packet in its SEND.
#[derive(Clone, Copy)]
struct Part {
    is_first: bool,
    is_last: bool,
}

/// Why a request cannot be executed.
enum Refusal {
    ReceiverNotReady,
    Invalid,
    /// The message is longer than its buffer.
    TooLong,
    /// The buffer cannot be written.
    NotPlaced,
}

impl Responder {
    pub(super) fn new() -> Self {
        Self {
            expected: Psn::default(),
            msn: 0,
            in_progress: None,
            gap_reported: false,
            is_established: false,
            responses: VecDeque::with_capacity(MAX_RESPONSES),
        }
    }

    /// Enters Rtr.
    pub(super) const fn start(&mut self, expected: Psn) {
        self.expected = expected;
    }

    pub(super) const fn stop(&mut self) {
        self.in_progress = None;
    }

    pub(super) const fn expected_psn(&self) -> Psn {
        self.expected
    }

    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.responses.capacity()
    }

    pub(super) fn has_response(&self) -> bool {
        !self.responses.is_empty()
    }
}

impl Rc {
    pub(super) fn on_request(&mut self, packet: &Packet<'_>, memory: &mut dyn Memory) {
        // Deviation: the specification reports this in Rtr only. rdma_accept goes to Rts before the peer has even seen the
        // REP, so that a passive side whose RTU is lost would never be told.
        if !self.responder.is_established {
            self.responder.is_established = true;
            self.events.push_back(QpEvent::CommEst);
        }
        let psn = packet.bth.psn;
        if psn == self.responder.expected {
            match self.execute(packet, memory) {
                Ok(()) => self.on_executed(packet.bth.ack_request),
                Err(refusal) => self.refuse(&refusal),
            }
        } else if psn.is_before(self.responder.expected) {
            self.counters.count(Counter::DuplicateRequests);
            if packet.bth.ack_request {
                self.respond_ack();
            }
        } else {
            self.counters.count(Counter::DroppedOutOfOrder);
            if !self.responder.gap_reported {
                self.responder.gap_reported = true;
                self.respond(
                    self.responder.expected,
                    Syndrome::Nak(NakCode::PSN_SEQUENCE_ERROR),
                );
            }
        }
    }

    fn on_executed(&mut self, ack_request: bool) {
        self.counters.count(Counter::RequestsReceived);
        self.responder.expected = self.responder.expected.next();
        self.responder.gap_reported = false;
        if ack_request {
            self.respond_ack();
        }
    }

    /// Checks and places one packet. The order of the checks is that of the specification: sequence of opcodes, resources,
    /// length, memory.
    fn execute(&mut self, packet: &Packet<'_>, memory: &mut dyn Memory) -> Result<(), Refusal> {
        let part = send_part(packet.bth.opcode).ok_or(Refusal::Invalid)?;
        let placed = match (part.is_first, self.responder.in_progress) {
            (true, None) => 0,
            (false, Some(placed)) => placed,
            _ => return Err(Refusal::Invalid),
        };
        let Some((wqe, sges)) = self.rq.front() else {
            return Err(Refusal::ReceiverNotReady);
        };
        let len = packet.payload.len() as u64;
        let mtu = u64::from(self.mtu);
        let length_is_valid = match part {
            Part {
                is_first: true,
                is_last: true,
            } => len <= mtu,
            Part {
                is_first: false,
                is_last: true,
            } => (1..=mtu).contains(&len),
            Part { is_last: false, .. } => len == mtu && packet.bth.pad == 0,
        };
        if !length_is_valid || placed + len > u64::from(crate::work::MAX_MESSAGE_LEN) {
            return Err(Refusal::Invalid);
        }
        if placed + len > wqe.capacity {
            return Err(Refusal::TooLong);
        }
        if len > 0 {
            memory
                .scatter(sges, placed, packet.payload)
                .map_err(|_| Refusal::NotPlaced)?;
        }
        if !part.is_last {
            self.responder.in_progress = Some(placed + len);
            return Ok(());
        }
        self.responder.in_progress = None;
        self.responder.msn = (self.responder.msn + 1) & 0xFF_FFFF;
        let _ = self.rq.pop();
        self.completions.push_back(Completion {
            imm: packet.immdt.map(|ImmDt(imm)| imm),
            solicited: packet.bth.solicited,
            ..Completion::success(wqe.wr_id, WcOpcode::RECV, false, (placed + len) as u32)
        });
        Ok(())
    }

    fn refuse(&mut self, refusal: &Refusal) {
        let expected = self.responder.expected;
        let (nak, status, event) = match refusal {
            Refusal::ReceiverNotReady => {
                self.counters.count(Counter::DroppedReceiverNotReady);
                self.responder.gap_reported = true;
                return self.respond(
                    expected,
                    Syndrome::RnrNak(RnrTimer::truncate(self.attr.min_rnr_timer)),
                );
            }
            // A message in progress is flushed with the rest of the queue: its buffer did nothing wrong.
            Refusal::Invalid => (NakCode::INVALID_REQUEST, None, Some(QpEvent::RequestError)),
            Refusal::TooLong => (NakCode::INVALID_REQUEST, Some(WcStatus::LOC_LEN_ERR), None),
            Refusal::NotPlaced => (
                NakCode::REMOTE_OPERATIONAL_ERROR,
                Some(WcStatus::LOC_PROT_ERR),
                None,
            ),
        };
        self.counters.count(Counter::DroppedInvalidRequest);
        self.respond(expected, Syndrome::Nak(nak));
        self.events.extend(event);
        if let Some(status) = status
            && let Some(wqe) = self.rq.pop()
        {
            self.fail_recv(&wqe, status);
        }
        self.enter_error();
    }

    /// Everything before the expected PSN is done.
    fn respond_ack(&mut self) {
        // Credits are not used: the code says so to the peer, and RNR NAKs regulate.
        self.respond(self.responder.expected.sub(1), Syndrome::ACK);
    }

    fn respond(&mut self, psn: Psn, syndrome: Syndrome) {
        let response = Response {
            psn,
            syndrome,
            msn: self.responder.msn,
        };
        let responses = &mut self.responder.responses;
        if let Some(last) = responses.back_mut()
            && is_ack(last.syndrome)
            && is_ack(syndrome)
        {
            *last = response;
        } else if responses.len() == MAX_RESPONSES {
            self.counters.count(Counter::ResponsesSuppressed);
        } else {
            responses.push_back(response);
        }
    }

    /// Writes the next response, if one waits.
    pub(super) fn next_response(&mut self, out: &mut PacketBuf) -> Option<usize> {
        let response = self.responder.responses.pop_front()?;
        self.counters.count(match response.syndrome {
            Syndrome::Ack { .. } => Counter::AcksSent,
            Syndrome::RnrNak { .. } => Counter::RnrNaksSent,
            Syndrome::Nak(NakCode::PSN_SEQUENCE_ERROR) => Counter::SequenceNaksSent,
            _ => Counter::FatalNaksSent,
        });
        let bth = Bth {
            pkey: self.attr.pkey,
            ..Bth::new(Opcode::RC_ACKNOWLEDGE, self.attr.dest_qpn, response.psn)
        };
        let aeth = Aeth {
            syndrome: response.syndrome,
            msn: response.msn,
        };
        Some(emit(&PacketHeader::new(bth).with_aeth(aeth), 0, out))
    }
}

const fn is_ack(syndrome: Syndrome) -> bool {
    matches!(syndrome, Syndrome::Ack { .. })
}

/// `None` for requests that are not served: WRITE, READ, atomics, SEND with invalidate, reserved opcodes.
const fn send_part(opcode: Opcode) -> Option<Part> {
    let (is_first, is_last) = match opcode {
        Opcode::RC_SEND_FIRST => (true, false),
        Opcode::RC_SEND_MIDDLE => (false, false),
        Opcode::RC_SEND_LAST | Opcode::RC_SEND_LAST_IMM => (false, true),
        Opcode::RC_SEND_ONLY | Opcode::RC_SEND_ONLY_IMM => (true, true),
        _ => return None,
    };
    Some(Part { is_first, is_last })
}
