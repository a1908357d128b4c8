//! The receiving half: requests in, responses out.
//!
//! | Request | Answer | State |
//! |---|---|---|
//! | expected PSN, SEND or WRITE, valid | ACK if asked for | executed; expected PSN moves on |
//! | expected PSN, READ, valid | the data, read when their packets are built | expected PSN moves on by the number of packets |
//! | expected PSN, atomic, valid | the value before | executed; the result is kept |
//! | expected PSN, no receive buffer | RNR NAK | unchanged |
//! | expected PSN, not allowed | a fatal NAK, see [`Refusal`] | error |
//! | PSN seen before, SEND or WRITE | ACK if asked for | unchanged |
//! | PSN seen before, READ | the data once more, read anew; a NAK if that is not possible any more | unchanged |
//! | PSN seen before, atomic | the result that was kept; without one, nothing | unchanged |
//! | PSN after a gap | NAK sequence error, once until the gap is closed | unchanged |
//!
//! The checks of a request at the expected PSN, in the order of the specification:
//!
//! | # | Check | Answer when it fails | Event | Receive buffer |
//! |---|---|---|---|---|
//! | 1 | the opcode is served | NAK invalid request | `RequestError` | flushed |
//! | 2 | it may follow the packet before it | NAK invalid request | `RequestError` | flushed |
//! | 3 | XRC: there is such a shared receive queue | NAK invalid request | `RequestError` | flushed |
//! | 4 | the queue pair's access flags enable it | NAK invalid request | `RequestError` | flushed |
//! | 5 | SEND, WRITE with immediate: a buffer waits | RNR NAK | | |
//! | 6 | READ, atomic: fewer than `max_dest_rd_atomic` are outstanding | NAK invalid request | `RequestError` | |
//! | 7 | the packet's length; an atomic's alignment | NAK invalid request | `RequestError` | flushed |
//! | 8 | the message fits its buffer | NAK invalid request | | [`WcStatus::LOC_LEN_ERR`] |
//! | 9 | key, range and right of the memory | NAK remote access error | `AccessError` | WRITE with immediate: [`WcStatus::LOC_ACCESS_ERR`] |
//! | 10 | the peer's memory is mapped | NAK remote operational error | `Fatal` | as 9 |
//! | 11 | the receive buffer can be written | NAK remote operational error | | [`WcStatus::LOC_PROT_ERR`] |
//! | 12 | SEND with invalidate: the key can be taken away | NAK remote access error | `AccessError` | [`WcStatus::REM_INV_REQ_ERR`] |
//!
//! For 8 to 12 the buffer that the message has taken, or would take with this packet, fails so. Otherwise the buffers that are
//! flushed have the rule that was broken as their [`VendorError`].
//!
//! IBA Vol. 1 ch. 9 "Responder behavior", "Inbound packet validation", "Responder side error behavior".

use std::collections::VecDeque;

use oarlock_wire::{NakCode, Packet, Psn, RKey, RnrTimer, Syndrome};

use super::opcodes::{Meaning, Service};
use super::responses::Responses;
use super::{QpEvent, Rc};
use crate::attr::QpAttr;
use crate::completion::WcStatus;
use crate::counters::Counter;
use crate::memory::{Memory, MemoryError};
use crate::vendor::VendorError;

#[derive(Debug)]
pub(super) struct Responder {
    pub(super) expected: Psn,
    /// Messages completed, modulo 2^24.
    pub(super) msn: u32,
    pub(super) message: Message,
    /// A NAK has been sent for `expected`: what comes after it is dropped in silence.
    pub(super) gap_reported: bool,
    /// A request has arrived.
    is_established: bool,
    /// The PSN after the latest READ or atomic: an acknowledgement from before it to behind it would skip its data.
    pub(super) data_end: Psn,
    pub(super) responses: Responses,
    /// Results of the latest atomics, newest last, to answer repetitions.
    pub(super) results: VecDeque<(Psn, u64)>,
    /// How many requests are to be answered as if the receiver were not ready.
    refusals: u32,
}

/// The message in progress.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum Message {
    /// None: the next packet begins one.
    #[default]
    None,
    /// A SEND.
    Send {
        /// Bytes placed.
        placed: u64,
    },
    /// An RDMA WRITE.
    Write(Write),
}

/// An RDMA WRITE in progress.
#[derive(Clone, Copy, Debug)]
pub(super) struct Write {
    pub(super) rkey: RKey,
    /// Where the next byte goes.
    pub(super) addr: u64,
    /// Bytes still to come.
    pub(super) left: u32,
    /// Bytes in all.
    pub(super) total: u32,
}

/// Why a request cannot be executed.
#[derive(Debug)]
pub(super) enum Refusal {
    /// The receiver is not ready: try again later.
    NotReady,
    /// The connection ends.
    Fatal(Fatal),
    /// There is no room for its response: as if it had been lost.
    NoRoom,
}

/// The end of a connection by the fault of a request.
#[derive(Debug)]
pub(super) struct Fatal {
    pub(super) nak: NakCode,
    pub(super) event: Option<QpEvent>,
    /// How the receive buffer of the message ends. Without, it is flushed with the others: it did nothing wrong.
    pub(super) receive: Option<WcStatus>,
    pub(super) rule: VendorError,
}

impl Refusal {
    /// The request is malformed, or none that this queue pair serves.
    pub(super) const fn invalid(rule: VendorError) -> Self {
        Self::Fatal(Fatal {
            nak: NakCode::INVALID_REQUEST,
            event: Some(QpEvent::RequestError),
            receive: None,
            rule,
        })
    }

    /// Memory that is offered to the peer, but not so; `receive`: how the buffer ends that the message takes, if it takes one.
    pub(super) fn remote_memory(error: MemoryError, receive: Option<WcStatus>) -> Self {
        let (nak, event) = match error {
            MemoryError::Unmapped { .. } => (NakCode::REMOTE_OPERATIONAL_ERROR, QpEvent::Fatal),
            MemoryError::Misaligned { .. } => (NakCode::INVALID_REQUEST, QpEvent::RequestError),
            _ => (NakCode::REMOTE_ACCESS_ERROR, QpEvent::AccessError),
        };
        Self::Fatal(Fatal {
            nak,
            event: Some(event),
            receive,
            rule: error.into(),
        })
    }

    /// A receive buffer that is too short, or cannot be written.
    pub(super) const fn buffer(nak: NakCode, status: WcStatus, rule: VendorError) -> Self {
        Self::Fatal(Fatal {
            nak,
            event: None,
            receive: Some(status),
            rule,
        })
    }
}

/// A request that was executed.
pub(super) enum Executed {
    /// A packet of a SEND or WRITE: acknowledged if asked for.
    Placed,
    /// A READ or atomic of so many PSNs: its response waits.
    Answered(u32),
}

impl Responder {
    pub(super) fn new() -> Self {
        Self {
            expected: Psn::default(),
            msn: 0,
            message: Message::None,
            gap_reported: false,
            is_established: false,
            data_end: Psn::default(),
            responses: Responses::new(),
            results: VecDeque::new(),
            refusals: 0,
        }
    }

    /// Enters Rtr.
    pub(super) fn start(&mut self, attr: &QpAttr) {
        self.expected = attr.rq_psn;
        self.data_end = attr.rq_psn;
        self.settle(attr.max_dest_rd_atomic);
    }

    /// Makes room for so many READs and atomics at once. The only place that allocates.
    pub(super) fn settle(&mut self, max_dest_rd_atomic: u8) {
        let count = usize::from(max_dest_rd_atomic);
        let surplus = self.results.len().saturating_sub(count);
        self.results.drain(..surplus);
        self.results.reserve_exact(count - self.results.len());
        self.responses.settle(count);
    }

    pub(super) const fn stop(&mut self) {
        self.message = Message::None;
    }

    pub(super) const fn expected_psn(&self) -> Psn {
        self.expected
    }

    #[cfg(test)]
    pub(super) fn capacity(&self) -> (usize, usize) {
        (self.responses.capacity(), self.results.capacity())
    }

    pub(super) const fn count_message(&mut self) {
        self.msn = (self.msn + 1) & super::credits::MESSAGE_MASK;
    }
}

impl Rc {
    /// Answers the next request that begins a message in sequence (SEND, WRITE, READ or atomic) as if the receiver were not
    /// ready: by an RNR NAK with [`QpAttr::min_rnr_timer`], without executing anything. Calls add up.
    ///
    /// A fault for tests. Entering [`QpState::Error`](crate::QpState::Error) or [`QpState::Reset`](crate::QpState::Reset) ends
    /// it.
    pub const fn refuse_request(&mut self) {
        self.responder.refusals = self.responder.refusals.saturating_add(1);
    }

    pub(super) fn on_request(
        &mut self,
        packet: &Packet<'_>,
        meaning: Meaning,
        memory: &mut dyn Memory,
    ) {
        // Deviation: the specification reports this in Rtr only. rdma_accept goes to Rts before the peer has even seen the
        // REP, so that a passive side whose RTU is lost would never be told.
        if !self.responder.is_established {
            self.responder.is_established = true;
            self.events.push_back(QpEvent::CommEst);
        }
        let psn = packet.bth.psn;
        if psn == self.responder.expected {
            match self.execute(packet, meaning, memory) {
                Ok(executed) => self.on_executed(&executed, packet.bth.ack_request),
                Err(refusal) => self.refuse(&refusal),
            }
        } else if psn.is_before(self.responder.expected) {
            self.counters.count(Counter::DuplicateRequests);
            self.repeat(packet, meaning.service);
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

    fn on_executed(&mut self, executed: &Executed, ack_request: bool) {
        self.counters.count(Counter::RequestsReceived);
        self.responder.gap_reported = false;
        match *executed {
            Executed::Placed => {
                self.responder.expected = self.responder.expected.next();
                if ack_request {
                    self.respond_ack();
                }
            }
            Executed::Answered(psns) => {
                self.responder.expected = self.responder.expected.add(psns);
                self.responder.data_end = self.responder.expected;
            }
        }
    }

    /// Checks and executes one packet.
    fn execute(
        &mut self,
        packet: &Packet<'_>,
        meaning: Meaning,
        memory: &mut dyn Memory,
    ) -> Result<Executed, Refusal> {
        if meaning.service == Service::Unknown {
            return Err(Refusal::invalid(VendorError::OPCODE_UNSUPPORTED));
        }
        match (&self.responder.message, meaning.service, meaning.is_first) {
            (Message::None, _, true)
            | (Message::Send { .. }, Service::Send, false)
            | (Message::Write(_), Service::Write, false) => {}
            _ => return Err(Refusal::invalid(VendorError::OPCODE_SEQUENCE)),
        }
        if self.responder.refusals > 0 && meaning.is_first {
            self.responder.refusals -= 1;
            self.counters.count(Counter::RnrInjected);
            return Err(Refusal::NotReady);
        }
        if let Some(xrceth) = packet.xrceth
            && !memory.select_shared(xrceth.srqn)
        {
            return Err(Refusal::invalid(VendorError::NO_SHARED_QUEUE));
        }
        match meaning.service {
            Service::Send => self.execute_send(meaning, packet, memory),
            Service::Write => self.execute_write(meaning, packet, memory),
            Service::Read => self.execute_read(packet, memory),
            _ => self.execute_atomic(meaning.service, packet, memory),
        }
    }

    fn refuse(&mut self, refusal: &Refusal) {
        let expected = self.responder.expected;
        let fatal = match refusal {
            Refusal::NotReady => {
                self.counters.count(Counter::DroppedReceiverNotReady);
                self.responder.gap_reported = true;
                return self.respond(
                    expected,
                    Syndrome::RnrNak(RnrTimer::truncate(self.attr.min_rnr_timer)),
                );
            }
            Refusal::NoRoom => return self.counters.count(Counter::ResponsesSuppressed),
            Refusal::Fatal(fatal) => fatal,
        };
        self.counters.count(Counter::DroppedInvalidRequest);
        self.respond(expected, Syndrome::Nak(fatal.nak));
        self.end(fatal);
    }

    /// The connection ends by the fault of a request whose NAK waits to be sent.
    pub(super) fn end(&mut self, fatal: &Fatal) {
        self.events.extend(fatal.event);
        let cause = VendorError::FLUSHED_BY_RECEIVE;
        match fatal.receive {
            Some(status) => {
                self.fail_receive(status, fatal.rule);
                self.enter_error(cause, cause);
            }
            // No buffer fails for it, so that those flushed tell which rule the peer broke.
            None => self.enter_error(cause, fatal.rule),
        }
    }
}
