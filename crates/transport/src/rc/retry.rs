//! What the requester does with acknowledgements, and without them: complete, go back, wait, give up.
//!
//! | Input | In flight | Then |
//! |---|---|---|
//! | ACK *n* | `oldest` moves past *n*, entries complete, both retry counts are full again | |
//! | ACK *n*, but a READ or atomic before or at *n* lacks its data | as ACK of what is before that one | its data are lost: one retry; sends again from what is missing |
//! | NAK sequence error *n* | as ACK *n - 1* | one retry; sends again from *n* |
//! | RNR NAK *n* | as ACK *n - 1* | one RNR retry; silence for the time asked; sends again from *n* |
//! | any other NAK *n* | as ACK *n - 1* | the request with *n* fails; error state |
//! | data of a READ, result of an atomic | [`results`](super::results) | |
//! | local ACK timeout | | one retry; sends again from `oldest` |
//! | a PSN not in flight | | dropped and counted |
//!
//! Every other NAK *n*, too, is taken for a lost response while an earlier READ or atomic lacks its data. A loss is acted upon
//! once: until something new arrives, or the timer runs out, further responses that imply it are dropped.
//!
//! The first repetition comes after the local ACK timeout, the second after twice that, further ones after four times: the
//! specification bounds the wait so.
//! IBA Vol. 1 ch. 9 "Responses", "Requester side error behavior".

use oarlock_wire::{Aeth, NakCode, Packet, RnrTimer, Syndrome, Time};

use super::Rc;
use super::in_flight::Place;
use super::timers::Timer;
use crate::attr::QpState;
use crate::completion::WcStatus;
use crate::counters::Counter;
use crate::vendor::VendorError;

impl Rc {
    pub(super) fn on_acknowledge(&mut self, now: Time, packet: &Packet<'_>) {
        let Some(aeth) = packet.aeth else {
            self.counters.count(Counter::DroppedNoAeth);
            return;
        };
        let Some(older) = self.place(packet, Counter::DroppedStaleAck) else {
            return;
        };
        match aeth.syndrome {
            Syndrome::Ack { credits } => {
                self.counters.count(Counter::AcksReceived);
                self.take_credits(aeth.msn, credits);
                if !self.acknowledge(now, older + 1) {
                    self.on_implied_loss();
                }
            }
            Syndrome::RnrNak(timer) => self.on_rnr_nak(now, older, timer),
            Syndrome::Nak(NakCode::PSN_SEQUENCE_ERROR) => self.on_sequence_nak(now, older),
            Syndrome::Nak(code) => match fatal_status(code) {
                Some((status, counter)) => {
                    self.on_fatal_nak(now, older, packet, (status, counter, aeth));
                }
                None => self.counters.count(Counter::DroppedReservedSyndrome),
            },
            _ => self.counters.count(Counter::DroppedReservedSyndrome),
        }
    }

    /// How many PSNs in flight are older than that of the response; `None`, and counted, if it answers nothing in flight.
    pub(super) fn place(&mut self, packet: &Packet<'_>, stale: Counter) -> Option<u32> {
        let reason = match self.requester.in_flight.place(packet.bth.psn) {
            Place::Sent(older) => return Some(older),
            Place::Stale => stale,
            Place::Unsent => Counter::DroppedUnsentAck,
        };
        self.counters.count(reason);
        None
    }

    /// The `count` oldest packets have arrived. False if a READ or atomic among them still lacks data: then what is before it
    /// has.
    pub(super) fn acknowledge(&mut self, now: Time, count: u32) -> bool {
        if count == 0 {
            return true;
        }
        let oldest = self.requester.in_flight.oldest();
        let mut done = 0;
        let mut has_all = true;
        while done < count && !self.sq.is_empty() {
            let wqe = self.sq.get(self.sq.head());
            if wqe.op.brings_data() {
                has_all = false;
                break;
            }
            let end = wqe.way.psns.end().distance_from(oldest);
            if end > count {
                done = count;
                break;
            }
            done = end;
            if let Some(wqe) = self.sq.pop() {
                self.complete_send(&wqe);
            }
        }
        if done > 0 {
            self.progress(now, done);
        }
        has_all
    }

    /// The `count` oldest PSNs are done with, and what of the queue they completed has been taken out.
    pub(super) fn progress(&mut self, now: Time, count: u32) {
        if self.requester.in_flight.acknowledge(count) {
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
        self.check_drained();
    }

    /// Data that the peer must have sent have not arrived.
    pub(super) fn on_implied_loss(&mut self) {
        if !self.may_go_on() {
            return;
        }
        if self.requester.repeated_from == Some(self.requester.in_flight.oldest()) {
            return self.counters.count(Counter::DroppedOutOfOrderResponse);
        }
        self.counters.count(Counter::ImpliedNaks);
        self.retry(VendorError::RESPONSES_LOST);
    }

    fn on_sequence_nak(&mut self, now: Time, older: u32) {
        if older == 0 && self.requester.timers.is_set(Timer::Rnr) {
            // Interop: kernel soft RoCE reports the packets behind an RNR NAK as a gap. They wait for the same timer.
            return self.counters.count(Counter::DroppedDuringRnrWait);
        }
        self.counters.count(Counter::SequenceNaksReceived);
        let _ = self.acknowledge(now, older);
        self.retry(VendorError::SEQUENCE_NAKS);
    }

    fn on_rnr_nak(&mut self, now: Time, older: u32, timer: RnrTimer) {
        if older == 0 && self.requester.timers.is_set(Timer::Rnr) {
            return self.counters.count(Counter::DroppedDuringRnrWait);
        }
        self.counters.count(Counter::RnrNaksReceived);
        let _ = self.acknowledge(now, older);
        if !self.may_go_on() {
            return;
        }
        if !self.requester.rnr_retries.take() {
            self.counters.count(Counter::RnrRetriesExceeded);
            return self.fail_oldest(WcStatus::RNR_RETRY_EXC_ERR, VendorError::RNR_NAKS);
        }
        self.rewind();
        self.requester
            .timers
            .set(Timer::Rnr, now, Some(timer.to_duration()));
    }

    fn on_fatal_nak(
        &mut self,
        now: Time,
        older: u32,
        packet: &Packet<'_>,
        (status, counter, aeth): (WcStatus, Counter, Aeth),
    ) {
        let _ = self.acknowledge(now, older);
        if !self.may_go_on() || self.sq.is_empty() {
            return;
        }
        // The oldest request is the one refused, unless it lacks data that the peer sent before it refused another.
        let psns = self.sq.get(self.sq.head()).way.psns;
        if packet.bth.psn.distance_from(psns.first) >= psns.count {
            return self.on_implied_loss();
        }
        self.counters.count(Counter::FatalNaksReceived);
        self.counters.count(counter);
        self.fail_oldest(status, VendorError::of_syndrome(aeth.syndrome));
    }

    pub(super) fn on_deadlines(&mut self, now: Time) {
        // May be sent again now; nothing else to do.
        let _ = self.requester.timers.take_due(Timer::Rnr, now);
        if self.requester.timers.take_due(Timer::Ack, now) {
            self.counters.count(Counter::AckTimeouts);
            self.requester.timeouts = self.requester.timeouts.saturating_add(1);
            self.retry(VendorError::ACK_TIMEOUTS);
        }
    }

    /// Sends everything again that is in flight, or gives up, for this reason.
    fn retry(&mut self, reason: VendorError) {
        if !self.may_go_on() {
            return;
        }
        if self.requester.retries.take() {
            self.counters.count(Counter::Retries);
            self.rewind();
        } else {
            self.counters.count(Counter::RetriesExceeded);
            self.fail_oldest(WcStatus::RETRY_EXC_ERR, reason);
        }
    }

    fn rewind(&mut self) {
        let requester = &mut self.requester;
        requester.in_flight.rewind();
        requester.timers.clear(Timer::Ack);
        requester.results_awaited = 0;
        requester.reads_outstanding = 0;
        requester.repeated_from = Some(requester.in_flight.oldest());
        self.cursor_to_oldest();
    }

    fn cursor_to_oldest(&mut self) {
        self.requester.cursor = self.sq.head();
        self.requester.packet = if self.sq.is_empty() {
            0
        } else {
            let first = self.sq.get(self.sq.head()).way.psns.first;
            self.requester.in_flight.oldest().distance_from(first)
        };
    }

    /// Whether the send queue still works: what was done before may have failed it.
    pub(super) const fn may_go_on(&self) -> bool {
        matches!(self.state, QpState::Rts | QpState::Sqd)
    }

    /// Fails the entry that could not be read, if nothing older is left to complete first.
    pub(super) fn fail_unreadable(&mut self) {
        if let Some((serial, error)) = self.requester.unreadable
            && serial == self.sq.head()
        {
            self.fail_oldest(WcStatus::LOC_PROT_ERR, error);
        }
    }

    /// The oldest entry fails, all others are flushed.
    pub(super) fn fail_oldest(&mut self, status: WcStatus, vendor_err: VendorError) {
        if let Some(wqe) = self.sq.pop() {
            self.counters.count(Counter::SendsFailed);
            if status == WcStatus::LOC_PROT_ERR {
                self.counters.count(Counter::LocalAccessErrors);
            }
            self.fail_send(&wqe, status, vendor_err);
        }
        self.enter_error(VendorError::FLUSHED_BY_SEND, VendorError::FLUSHED_BY_SEND);
    }
}

/// How a request ends that is answered so; `None` for codes that the specification reserves (an RC responder sends no
/// "invalid RD request" either).
const fn fatal_status(code: NakCode) -> Option<(WcStatus, Counter)> {
    match code {
        NakCode::INVALID_REQUEST => Some((
            WcStatus::REM_INV_REQ_ERR,
            Counter::InvalidRequestNaksReceived,
        )),
        NakCode::REMOTE_ACCESS_ERROR => {
            Some((WcStatus::REM_ACCESS_ERR, Counter::RemoteAccessNaksReceived))
        }
        NakCode::REMOTE_OPERATIONAL_ERROR => {
            Some((WcStatus::REM_OP_ERR, Counter::RemoteOperationalNaksReceived))
        }
        _ => None,
    }
}
