//! The sending half: which request goes on, and when.
//!
//! ```text
//!   post_send ─> [ head ........ cursor ........ tail )      entries of the send queue, by serial number
//!                    │              │
//!               oldest PSN      next PSN                     [`InFlight`]
//! ```
//! An acknowledgement moves `oldest` and completes entries from `head` on; a gap (NAK, or a response that implies one),
//! silence (timeout) or a receiver that is not ready (RNR NAK) moves the cursor back to `oldest`, and packets are built anew
//! from memory.
//!
//! | The entry at the cursor | goes on when |
//! |---|---|
//! | SEND, WRITE | fewer than `window` packets wait for an acknowledgement, and the peer has given credit |
//! | READ | fewer than `max_rd_atomic` READs and atomics are outstanding, and the response fits `read_window` |
//! | atomic | as a READ of one packet |
//! | local invalidate, bind | it is the oldest entry of the queue |
//! | any with a fence | at its first packet: no READ or atomic is outstanding |
//!
//! A READ of *n* response packets takes *n* PSNs. It is asked for in pieces of at most
//! [`RcConfig::piece`](super::RcConfig) packets, each a READ request of its own, so that a responder never outruns our
//! receive buffer; what is missing is asked for again from the first missing packet to the end of its piece.
//!
//! IBA Vol. 1 ch. 9 "Requester behavior", "Retry", "Timeouts"; ch. 10 "Ordering of work requests".

use core::time::Duration;

use oarlock_wire::{AtomicEth, Opcode, Psn, RKey, Srqn, Time};

use super::Rc;
use super::credits::MESSAGE_MASK;
use super::drain::Drain;
use super::in_flight::InFlight;
use super::timers::{Retries, Timer, Timers};
use crate::attr::{QpAttr, QpState};
use crate::counters::Counter;
use crate::memory::Memory;
use crate::packet::PacketBuf;
use crate::queue::{PsnRange, SendWqe};
use crate::vendor::VendorError;
use crate::work::{BindWindow, RemoteAddress, SendOp};

/// What an entry of the send queue needs beside its message, fixed when it is posted: a repetition must use the same.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Way {
    pub(super) psns: PsnRange,
    /// Number of the message, modulo 2^24; that of the first is 1.
    pub(super) ssn: u32,
    pub(super) fence: bool,
    /// XRC: the receiver's queue.
    pub(super) srqn: Option<Srqn>,
}

#[derive(Debug, Default)]
pub(super) struct Requester {
    pub(super) in_flight: InFlight,
    /// First PSN of the next request to be posted.
    unassigned: Psn,
    /// Number of the message posted last.
    messages: u32,
    /// Serial number of the entry that the next packet belongs to.
    pub(super) cursor: u64,
    /// How many PSNs of that entry lie before the next packet.
    pub(super) packet: u32,
    /// The entry whose memory could not be read, and why. Nothing of it or after it is sent; it fails when it is the oldest.
    pub(super) unreadable: Option<(u64, VendorError)>,
    /// PSNs on their way that are answered by data: of READs and atomics.
    pub(super) results_awaited: u32,
    /// READ requests and atomics on their way.
    pub(super) reads_outstanding: u32,
    /// The PSN in the middle of a piece from which the piece was asked for again.
    pub(super) asked_from: Option<Psn>,
    /// The PSN from which everything was sent again last. What still comes from before is no news.
    pub(super) repeated_from: Option<Psn>,
    /// The last message that the peer has a buffer for, if it says so.
    pub(super) message_limit: Option<u32>,
    pub(super) drain: Drain,
    pub(super) retries: Retries,
    /// Local ACK timeouts since something new was acknowledged.
    pub(super) timeouts: u32,
    pub(super) rnr_retries: Retries,
    pub(super) timers: Timers,
}

/// What the send queue may do next.
#[derive(Debug)]
pub(super) enum Step {
    /// Send a packet of a SEND or WRITE.
    Message,
    /// Ask for a piece of a READ.
    Read(RemoteAddress),
    /// Send an atomic request.
    Atomic(Opcode, AtomicEth),
    /// Execute a local invalidate.
    Invalidate(RKey),
    /// Execute a bind.
    Bind(BindWindow),
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
        self.drain = Drain::Idle;
    }

    /// The way of the next request: `count` PSNs; a local operation takes none and is no message.
    pub(super) const fn assign(&mut self, count: u32, fence: bool, srqn: Option<Srqn>) -> Way {
        let first = self.unassigned;
        self.unassigned = first.add(count);
        if count > 0 {
            self.messages = (self.messages + 1) & MESSAGE_MASK;
        }
        Way {
            psns: PsnRange { first, count },
            ssn: self.messages,
            fence,
            srqn,
        }
    }

    pub(super) const fn next_psn(&self) -> Psn {
        self.in_flight.end()
    }

    pub(super) fn next_deadline(&self) -> Option<Time> {
        self.timers.next()
    }

    pub(super) const fn refill_retries(&mut self, attr: &QpAttr) {
        self.timeouts = 0;
        self.retries = Retries::limited(attr.retry_count.get());
        self.rnr_retries = Retries::rnr(attr.rnr_retry.get());
    }

    /// Packets of SENDs and WRITEs that wait for an acknowledgement.
    pub(super) fn packets_waiting(&self) -> u32 {
        self.in_flight.len() - self.results_awaited
    }
}

impl Rc {
    pub(super) fn may_send_request(&self) -> bool {
        self.next_step().is_some()
    }

    /// Whether there is nothing to do at once: the next request is one short packet, and many are on their way already whose
    /// acknowledgement will come soon, or their timeout. A caller that may be about to post more can leave it to that moment,
    /// when all that has been posted by then leaves in one burst.
    pub fn may_wait(&self) -> bool {
        let requester = &self.requester;
        self.state == QpState::Rts
            && requester.packets_waiting() >= STREAM
            && requester.timers.is_set(Timer::Ack)
            && requester.packet == 0
            && !requester.in_flight.next_is_repetition()
            && self.responder.responses.is_empty()
            && self.completions.is_empty()
            && self.events.is_empty()
            && requester.cursor != self.sq.tail()
            && self.is_short(self.sq.get(requester.cursor))
    }

    fn is_short(&self, wqe: &SendWqe<Way>) -> bool {
        use SendOp as O;
        let is_message = matches!(
            wqe.op,
            O::Send
                | O::SendWithImm(_)
                | O::SendWithInvalidate(_)
                | O::Write(_)
                | O::WriteWithImm(..)
        );
        is_message && wqe.length <= self.mtu
    }

    /// What the entry at the cursor may do now.
    #[inline]
    pub(super) fn next_step(&self) -> Option<Step> {
        let requester = &self.requester;
        if requester.cursor == self.sq.tail()
            || !matches!(self.state, QpState::Rts | QpState::Sqd)
            || requester.timers.is_set(Timer::Rnr)
        {
            return None;
        }
        if let Some((unreadable, _)) = requester.unreadable
            && unreadable == requester.cursor
        {
            return None;
        }
        let wqe = self.sq.get(requester.cursor);
        if requester.packet == 0 {
            let begins = !requester.in_flight.next_is_repetition();
            if (begins && self.state == QpState::Sqd)
                || (wqe.way.fence && requester.results_awaited > 0)
            {
                return None;
            }
        }
        match wqe.op {
            SendOp::LocalInvalidate(rkey) => {
                (requester.cursor == self.sq.head()).then_some(Step::Invalidate(rkey))
            }
            SendOp::BindWindow(bind) => {
                (requester.cursor == self.sq.head()).then_some(Step::Bind(bind))
            }
            SendOp::Read(remote) => {
                let packets = self.piece_end(wqe) - requester.packet;
                self.may_ask_for(packets).then_some(Step::Read(remote))
            }
            SendOp::CompareSwap {
                remote,
                compare,
                swap,
            } => self.may_ask_for(1).then(|| {
                let operands = atomic_eth(remote, swap, compare);
                Step::Atomic(Opcode::RC_COMPARE_SWAP, operands)
            }),
            SendOp::FetchAdd { remote, add } => self.may_ask_for(1).then(|| {
                let operands = atomic_eth(remote, add, 0);
                Step::Atomic(Opcode::RC_FETCH_ADD, operands)
            }),
            _ => {
                let has_credit = requester.in_flight.len() == 0 || !self.lacks_credit(wqe);
                let fits = requester.packets_waiting() < self.config.window;
                (has_credit && fits).then_some(Step::Message)
            }
        }
    }

    /// Whether one more READ or atomic, of so many response packets, may be outstanding.
    fn may_ask_for(&self, packets: u32) -> bool {
        // At least one: the limit may have been lowered to 0 while a request waited.
        let limit = u32::from(self.attr.max_rd_atomic.max(1));
        self.requester.reads_outstanding < limit
            && self.requester.results_awaited + packets <= self.config.read_window
    }

    /// Where the piece that the cursor is in ends: the number of a packet of the READ.
    pub(super) fn piece_end(&self, wqe: &SendWqe<Way>) -> u32 {
        let piece = self.config.piece();
        let end = (self.requester.packet / piece + 1) * piece;
        end.min(wqe.way.psns.count)
    }

    /// Executes local operations that are due, and writes the next request packet, if one may be sent.
    pub(super) fn next_request(
        &mut self,
        now: Time,
        memory: &mut dyn Memory,
        out: &mut PacketBuf,
    ) -> Option<usize> {
        loop {
            match self.next_step()? {
                Step::Message => return self.message_packet(now, memory, out),
                Step::Read(remote) => return Some(self.read_packet(now, remote, out)),
                Step::Atomic(opcode, operands) => {
                    return Some(self.atomic_packet(now, (opcode, operands), out));
                }
                Step::Invalidate(rkey) => {
                    let executed = memory.invalidate(rkey);
                    self.finish_local(executed);
                }
                Step::Bind(bind) => {
                    let executed = memory.bind(&bind);
                    self.finish_local(executed);
                }
            }
        }
    }

    /// A packet that takes `psns` PSNs has been written; `is_last`: the entry has no more.
    pub(super) fn note_sent(&mut self, now: Time, psns: u32, is_last: bool) {
        self.counters.count(Counter::RequestsSent);
        let ack_wait = self.ack_wait();
        let requester = &mut self.requester;
        if requester.in_flight.next_is_repetition() {
            self.counters.count(Counter::RequestsResent);
        }
        requester.in_flight.advance(psns);
        requester.packet += psns;
        if is_last {
            requester.cursor += 1;
            requester.packet = 0;
        }
        if !requester.timers.is_set(Timer::Ack) {
            requester.timers.set(Timer::Ack, now, ack_wait);
        }
    }

    /// How long the oldest packet in flight may stay unacknowledged: the local ACK timeout, and after each that was in vain
    /// twice as long, up to four times. The specification allows any wait from one to four of them, and the host of a peer in
    /// software may have other things to do.
    pub(super) fn ack_wait(&self) -> Option<Duration> {
        let factor = 1 << self.requester.timeouts.min(LARGEST_ACK_FACTOR_LOG);
        (self.attr.timeout.get() != 0).then(|| self.attr.timeout.to_duration() * factor)
    }
}

/// IBA Vol. 1 ch. 9 "Transport timer": the interval is at least the timeout and at most four times as long.
const LARGEST_ACK_FACTOR_LOG: u32 = 2;

/// Packets on their way behind which a short request may wait. Who waits for answers has fewer.
const STREAM: u32 = 16;

const fn atomic_eth(remote: RemoteAddress, swap_add: u64, compare: u64) -> AtomicEth {
    AtomicEth {
        addr: remote.addr,
        rkey: remote.rkey,
        swap_add,
        compare,
    }
}
