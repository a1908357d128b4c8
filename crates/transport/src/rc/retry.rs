//! What the requester does with responses, and without them: complete, go back, wait, give up.
//!
//! | Input | In flight | Then |
//! |---|---|---|
//! | ACK *n* | `oldest` moves past *n*, entries complete, both retry counts are full again | |
//! | NAK sequence error *n* | as ACK *n - 1* | one retry; sends again from *n* |
//! | RNR NAK *n* | as ACK *n - 1* | one RNR retry; silence for the time asked; sends again from *n* |
//! | any other NAK *n* | as ACK *n - 1* | the request with *n* fails; error state |
//! | local ACK timeout | | one retry; sends again from `oldest` |
//! | a PSN not in flight | | dropped and counted |
//!
//! Repetitions come after a fixed time, not a growing one: the specification has no back-off.
//! IBA Vol. 1 ch. 9 "Responses", "Requester side error behavior".

use oarlock_wire::{NakCode, Opcode, Packet, RnrTimer, Syndrome, Time};

use super::Rc;
use super::in_flight::Place;
use super::timers::Timer;
use crate::attr::QpState;
use crate::completion::WcStatus;
use crate::counters::Counter;

impl Rc {
    pub(super) fn on_response(&mut self, now: Time, packet: &Packet<'_>) {
        if packet.bth.opcode != Opcode::RC_ACKNOWLEDGE {
            // Responses to READ and atomic requests: none was sent.
            self.counters.count(Counter::DroppedUnexpectedResponse);
            return;
        }
        let Some(aeth) = packet.aeth else {
            self.counters.count(Counter::DroppedNoAeth);
            return;
        };
        let older = match self.requester.in_flight.place(packet.bth.psn) {
            Place::Sent(older) => older,
            Place::Stale => return self.counters.count(Counter::DroppedStaleAck),
            Place::Unsent => return self.counters.count(Counter::DroppedUnsentAck),
        };
        match aeth.syndrome {
            Syndrome::Ack { .. } => {
                self.counters.count(Counter::AcksReceived);
                self.acknowledge(now, older + 1);
            }
            Syndrome::RnrNak(timer) => self.on_rnr_nak(now, older, timer),
            Syndrome::Nak(NakCode::PSN_SEQUENCE_ERROR) => self.on_sequence_nak(now, older),
            Syndrome::Nak(code) => match fatal_status(code) {
                Some(status) => self.on_fatal_nak(now, older, status, aeth.syndrome),
                None => self.counters.count(Counter::DroppedReservedSyndrome),
            },
            _ => self.counters.count(Counter::DroppedReservedSyndrome),
        }
    }

    /// The `count` oldest packets have arrived.
    fn acknowledge(&mut self, now: Time, count: u32) {
        if count == 0 {
            return;
        }
        let mut before = self.requester.in_flight.oldest();
        let passed_cursor = self.requester.in_flight.acknowledge(count);
        let oldest = self.requester.in_flight.oldest();
        while !self.sq.is_empty() {
            let wqe = *self.sq.get(self.sq.head());
            if wqe.way.end().distance_from(before) > oldest.distance_from(before) {
                break;
            }
            before = wqe.way.end();
            let _ = self.sq.pop();
            self.complete_send(&wqe, WcStatus::SUCCESS, 0);
        }
        if passed_cursor {
            self.cursor_to_oldest();
        }
        self.requester.refill_retries(&self.attr);
        self.requester.timers.clear(Timer::Rnr);
        if self.requester.in_flight.len() == 0 {
            self.requester.timers.clear(Timer::Ack);
        } else {
            let wait = self.ack_wait();
            self.requester.timers.set(Timer::Ack, now, wait);
        }
        self.fail_unreadable();
    }

    fn on_sequence_nak(&mut self, now: Time, older: u32) {
        if older == 0 && self.requester.timers.is_set(Timer::Rnr) {
            // Interop: kernel soft RoCE reports the packets behind an RNR NAK as a gap. They wait for the same timer.
            return self.counters.count(Counter::DroppedDuringRnrWait);
        }
        self.counters.count(Counter::SequenceNaksReceived);
        self.acknowledge(now, older);
        self.retry();
    }

    fn on_rnr_nak(&mut self, now: Time, older: u32, timer: RnrTimer) {
        if older == 0 && self.requester.timers.is_set(Timer::Rnr) {
            return self.counters.count(Counter::DroppedDuringRnrWait);
        }
        self.counters.count(Counter::RnrNaksReceived);
        self.acknowledge(now, older);
        if self.state != QpState::Rts {
            return;
        }
        if !self.requester.rnr_retries.take() {
            return self.fail_oldest(WcStatus::RNR_RETRY_EXC_ERR, 0);
        }
        self.rewind();
        self.requester
            .timers
            .set(Timer::Rnr, now, Some(timer.to_duration()));
    }

    fn on_fatal_nak(&mut self, now: Time, older: u32, status: WcStatus, syndrome: Syndrome) {
        self.counters.count(Counter::FatalNaksReceived);
        self.acknowledge(now, older);
        if self.state == QpState::Rts {
            self.fail_oldest(status, syndrome.to_bits().into());
        }
    }

    pub(super) fn on_deadlines(&mut self, now: Time) {
        // May be sent again now; nothing else to do.
        let _ = self.requester.timers.take_due(Timer::Rnr, now);
        if self.requester.timers.take_due(Timer::Ack, now) {
            self.counters.count(Counter::AckTimeouts);
            self.retry();
        }
    }

    /// Sends everything again that is in flight, or gives up.
    fn retry(&mut self) {
        if self.state != QpState::Rts {
            return;
        }
        if self.requester.retries.take() {
            self.rewind();
        } else {
            self.fail_oldest(WcStatus::RETRY_EXC_ERR, 0);
        }
    }

    fn rewind(&mut self) {
        self.requester.in_flight.rewind();
        self.requester.timers.clear(Timer::Ack);
        self.cursor_to_oldest();
    }

    fn cursor_to_oldest(&mut self) {
        self.requester.cursor = self.sq.head();
        self.requester.packet = if self.sq.is_empty() {
            0
        } else {
            self.requester
                .in_flight
                .oldest()
                .distance_from(self.sq.get(self.sq.head()).way.first)
        };
    }

    /// Fails the entry that could not be read, if nothing older is left to complete first.
    pub(super) fn fail_unreadable(&mut self) {
        if self.requester.unreadable == Some(self.sq.head()) {
            self.fail_oldest(WcStatus::LOC_PROT_ERR, 0);
        }
    }

    /// The oldest entry fails, all others are flushed.
    fn fail_oldest(&mut self, status: WcStatus, vendor_err: u32) {
        if let Some(wqe) = self.sq.pop() {
            self.complete_send(&wqe, status, vendor_err);
        }
        self.enter_error();
    }
}

/// How a request ends that is answered so; `None` for codes that the specification reserves (an RC responder sends no
/// "invalid RD request" either).
const fn fatal_status(code: NakCode) -> Option<WcStatus> {
    match code {
        NakCode::INVALID_REQUEST => Some(WcStatus::REM_INV_REQ_ERR),
        NakCode::REMOTE_ACCESS_ERROR => Some(WcStatus::REM_ACCESS_ERR),
        NakCode::REMOTE_OPERATIONAL_ERROR => Some(WcStatus::REM_OP_ERR),
        _ => None,
    }
}
