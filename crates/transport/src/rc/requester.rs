//! The sending half: requests out, acknowledgements in.
//!
//! ```text
//!   post_send ─> [ head ........ cursor ........ tail )      entries of the send queue, by serial number
//!                    │              │
//!               oldest PSN      next PSN                     [`InFlight`]
//! ```
//! An acknowledgement moves `oldest` and completes entries from `head` on; a gap (NAK), silence (timeout) or a receiver
//! that is not ready (RNR NAK) moves the cursor back to `oldest`, and packets are built anew from memory.
//!
//! IBA Vol. 1 ch. 9 "Requester behavior", "Retry", "Timeouts".

use core::time::Duration;

use oarlock_wire::packet::padding;
use oarlock_wire::{Bth, ImmDt, Opcode, PacketHeader, Psn, Time};

use super::Rc;
use super::in_flight::InFlight;
use super::timers::{Retries, Timer, Timers};
use crate::attr::{QpAttr, QpState};
use crate::counters::Counter;
use crate::memory::Memory;
use crate::packet::{PacketBuf, emit};
use crate::work::SendOp;

#[derive(Debug, Default)]
pub(super) struct Requester {
    pub(super) in_flight: InFlight,
    /// First PSN of the next request to be posted.
    unassigned: Psn,
    /// Serial number of the entry that the next packet belongs to.
    pub(super) cursor: u64,
    /// Which packet of that entry is next.
    pub(super) packet: u32,
    /// The entry whose memory could not be read. Nothing of it or after it is sent; it fails when it is the oldest.
    pub(super) unreadable: Option<u64>,
    pub(super) retries: Retries,
    pub(super) rnr_retries: Retries,
    pub(super) timers: Timers,
}

impl Requester {
    /// Enters Rts.
    pub(super) fn start(&mut self, attr: &QpAttr) {
        self.in_flight = InFlight::starting_at(attr.sq_psn);
        self.unassigned = attr.sq_psn;
        self.refill_retries(attr);
    }

    pub(super) fn stop(&mut self) {
        self.timers.clear_all();
        self.unreadable = None;
    }

    pub(super) const fn assign_psns(&mut self, count: u32) -> Psn {
        let first = self.unassigned;
        self.unassigned = first.add(count);
        first
    }

    pub(super) const fn next_psn(&self) -> Psn {
        self.in_flight.end()
    }

    pub(super) fn next_deadline(&self) -> Option<Time> {
        self.timers.next()
    }

    pub(super) const fn refill_retries(&mut self, attr: &QpAttr) {
        self.retries = Retries::limited(attr.retry_count.get());
        self.rnr_retries = Retries::rnr(attr.rnr_retry.get());
    }
}

impl Rc {
    pub(super) fn may_send_request(&self) -> bool {
        let requester = &self.requester;
        self.state == QpState::Rts
            && requester.cursor != self.sq.tail()
            && requester.unreadable != Some(requester.cursor)
            && requester.in_flight.len() < self.config.window
            && !requester.timers.is_set(Timer::Rnr)
    }

    /// Writes the next request packet, if one may be sent.
    pub(super) fn next_request(
        &mut self,
        now: Time,
        memory: &mut dyn Memory,
        out: &mut PacketBuf,
    ) -> Option<usize> {
        if !self.may_send_request() {
            return None;
        }
        let serial = self.requester.cursor;
        let wqe = *self.sq.get(serial);
        let index = self.requester.packet;
        let is_last = index + 1 == wqe.way.count;
        let offset = u64::from(index) * u64::from(self.mtu);
        let payload_len = (u64::from(wqe.length) - offset).min(u64::from(self.mtu)) as usize;
        let immdt = match wqe.op {
            SendOp::SendWithImm(imm) if is_last => Some(ImmDt(imm)),
            _ => None,
        };
        let fills_window = self.requester.in_flight.len() + 1 == self.config.window;
        let ack_interval = self.config.ack_interval;
        let psn = self.requester.in_flight.next();
        let opcode = send_opcode(index == 0, is_last, immdt.is_some());
        let bth = Bth {
            solicited: is_last && wqe.solicited,
            pkey: self.attr.pkey,
            ack_request: is_last || fills_window || (index + 1).is_multiple_of(ack_interval),
            ..Bth::new(opcode, self.attr.dest_qpn, psn)
        };
        let header = PacketHeader {
            immdt,
            ..PacketHeader::new(bth)
        };
        let mut len = emit(&header, payload_len, out);
        let payload = &mut out[len..len + payload_len];
        let gathered = self.sq.source(serial).read(memory, offset, payload);
        if gathered.is_err() {
            self.requester.unreadable = Some(serial);
            self.fail_unreadable();
            return None;
        }
        len += payload_len;
        let pad = padding(payload_len);
        out[len..len + pad].fill(0);
        self.note_sent(now, is_last);
        Some(len + pad)
    }

    fn note_sent(&mut self, now: Time, is_last: bool) {
        self.counters.count(Counter::RequestsSent);
        let ack_wait = self.ack_wait();
        let requester = &mut self.requester;
        if requester.in_flight.next_is_repetition() {
            self.counters.count(Counter::RequestsResent);
        }
        requester.in_flight.advance();
        requester.packet += 1;
        if is_last {
            requester.cursor += 1;
            requester.packet = 0;
        }
        if !requester.timers.is_set(Timer::Ack) {
            requester.timers.set(Timer::Ack, now, ack_wait);
        }
    }

    pub(super) fn ack_wait(&self) -> Option<Duration> {
        (self.attr.timeout.get() != 0).then(|| self.attr.timeout.to_duration())
    }
}

/// The opcode of one packet of a SEND (IBA Vol. 1 ch. 9 "Operation code").
const fn send_opcode(is_first: bool, is_last: bool, has_imm: bool) -> Opcode {
    match (is_first, is_last, has_imm) {
        (true, true, false) => Opcode::RC_SEND_ONLY,
        (true, true, true) => Opcode::RC_SEND_ONLY_IMM,
        (true, false, _) => Opcode::RC_SEND_FIRST,
        (false, false, _) => Opcode::RC_SEND_MIDDLE,
        (false, true, false) => Opcode::RC_SEND_LAST,
        (false, true, true) => Opcode::RC_SEND_LAST_IMM,
    }
}
