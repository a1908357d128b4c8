//! One reliable-connected queue pair, or one half of an extended one: its states, its queues, and who gets a packet.
//!
//! ```text
//!                     requester                                        responder
//!   post_send   ──> [requester] which request is next       [responder] checks, [messages] SEND, WRITE
//!                   [requests]  its packets          ────>              [one_sided] READ, atomics, repetitions
//!   completions <── [retry]     ACK, NAK, timeout    <────  [responses] ACK, NAK, data, results
//!               <── [results]   data of READs, atomics                  [receives] buffers: own or shared
//!                   [local_ops] invalidate, bind
//!                   [drain]     state Sqd            [credits] for both
//! ```
//!
//! | State | Requests of the peer | Responses | Requests of this side |
//! |---|---|---|---|
//! | Reset, Init | dropped | dropped | refused |
//! | Rtr | executed | dropped | refused |
//! | Rts | executed | taken | sent |
//! | Sqd | executed | taken | those that were begun are finished, others wait |
//! | Error | dropped; responses that wait still leave | dropped | flushed |
//!
//! An XRC initiator is a queue pair whose responder never gets a packet, an XRC target one whose requester never gets a
//! request; the packets of both are of the transport class XRC, and requests name the receiver's shared receive queue.

mod config;
mod credits;
mod drain;
mod headers;
mod in_flight;
mod local_ops;
mod messages;
mod one_sided;
mod opcodes;
mod post;
mod receives;
mod requester;
mod requests;
mod responder;
mod responses;
mod results;
mod retry;
#[cfg(test)]
mod tests;
mod timers;

use std::collections::VecDeque;

use oarlock_wire::{AddressVector, Packet, Qpn, Time};

use crate::attr::{AttrMask, QpAttr, QpState, transition};
use crate::completion::{Completion, WcStatus};
use crate::counters::{Counter, Counters};
use crate::error::Error;
use crate::memory::Memory;
use crate::packet::{PacketBuf, Transmit, pkeys_match};
use crate::queue::{SendQueue, SendWqe};
use crate::receive::Buffers;
use crate::vendor::VendorError;
use crate::work::SendOp;
pub use config::{QpEvent, RcConfig, RcKind};
use opcodes::{Meaning, Service};
use requester::{Requester, Way};
use responder::Responder;

/// Room for completions of buffers that do not come from a queue of the queue pair's own.
const SHARED_COMPLETIONS: usize = 16;
/// Room for events: each comes once per life, [`QpEvent::SqDrained`] once per transition.
const EVENTS: usize = 8;

/// One reliable-connected queue pair, or one half of an extended one. The crate's documentation has the contract.
#[derive(Debug)]
pub struct Rc {
    config: RcConfig,
    state: QpState,
    attr: QpAttr,
    /// Payload bytes of a full packet; fixed from Rtr on.
    mtu: u32,
    sq: SendQueue<Way>,
    rq: Buffers,
    requester: Requester,
    responder: Responder,
    completions: VecDeque<Completion>,
    events: VecDeque<QpEvent>,
    counters: Counters,
}

impl Rc {
    /// A queue pair in state [`QpState::Reset`].
    pub fn new(config: RcConfig) -> Self {
        let config = config.settled();
        Self {
            config,
            state: QpState::Reset,
            attr: QpAttr::default(),
            mtu: 0,
            sq: SendQueue::new(
                config.max_send_wr,
                config.max_send_sge,
                config.max_inline,
                Way::default(),
            ),
            rq: Buffers::new(
                config.max_recv_wr,
                config.max_recv_sge,
                config.shared_receives,
            ),
            requester: Requester::default(),
            responder: Responder::new(),
            completions: VecDeque::with_capacity(
                config.max_send_wr as usize + config.max_recv_wr as usize + SHARED_COMPLETIONS,
            ),
            events: VecDeque::with_capacity(EVENTS),
            counters: Counters::default(),
        }
    }

    /// The number of this queue pair.
    pub const fn qpn(&self) -> Qpn {
        self.config.qpn
    }

    /// What it was made with.
    pub const fn config(&self) -> &RcConfig {
        &self.config
    }

    /// Its state.
    pub const fn state(&self) -> QpState {
        self.state
    }

    /// Its counters.
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Its attributes; the mask names those that have been given. `sq_psn` and `rq_psn` are the next to be sent for the
    /// first time, and the next expected; `sq_draining` says whether state Sqd is still to finish what was begun.
    #[doc(alias = "ibv_query_qp")]
    pub fn query(&self) -> QpAttr {
        let mut attr = QpAttr {
            state: self.state,
            current_state: self.state,
            sq_draining: self.is_draining(),
            ..self.attr
        };
        if attr.mask.contains(AttrMask::SQ_PSN) {
            attr.sq_psn = self.requester.next_psn();
        }
        if attr.mask.contains(AttrMask::RQ_PSN) {
            attr.rq_psn = self.responder.expected_psn();
        }
        attr
    }

    /// Changes state and attributes.
    ///
    /// To [`QpState::Error`]: everything outstanding is flushed. To [`QpState::Reset`]: everything is forgotten, waiting
    /// completions and events too, and the buffer of a shared receive queue that a message in progress has taken. To
    /// [`QpState::Sqd`]: requests that were begun are finished, others wait. May allocate, when the queue pair can receive from
    /// now on or [`QpAttr::max_dest_rd_atomic`] grows.
    ///
    /// # Errors
    /// [`Error::InvalidTransition`] and its kin: the transition does not exist, misses an attribute or has one too many;
    /// [`Error::AttributeTooLarge`], [`Error::InvalidMtu`] and their kin: a value is out of range;
    /// [`Error::StillDraining`]: the send queue has not drained yet, so that only Error and Reset can be reached. Nothing has
    /// changed then.
    ///
    /// # Specification
    /// IBA Vol. 1 ch. 11 "Modify queue pair".
    #[doc(alias = "ibv_modify_qp")]
    pub fn modify(&mut self, attr: &QpAttr) -> Result<(), Error> {
        let to = transition(self.config.kind.qp_type(), self.state, attr)?;
        self.config.limits().check(attr)?;
        self.check_draining(to)?;
        let from = self.state;
        match to {
            QpState::Reset => self.reset(),
            QpState::Error => {
                self.responder.responses.drop_reads();
                let cause = VendorError::FLUSHED_BY_PROGRAM;
                self.enter_error(cause, cause);
            }
            _ => {
                self.attr.merge(attr);
                self.state = to;
            }
        }
        match (from, to) {
            (QpState::Init, QpState::Rtr) => {
                self.mtu = u32::from(self.attr.path_mtu.bytes().unwrap_or_default());
                self.responder.start(&self.attr);
            }
            (QpState::Rtr, QpState::Rts) => self.requester.start(&self.attr),
            (QpState::Rts, QpState::Sqd) => self.begin_drain(attr),
            (QpState::Sqd, QpState::Sqd) => self.responder.settle(self.attr.max_dest_rd_atomic),
            _ => {}
        }
        Ok(())
    }

    /// Puts the queue pair into the error state by the fault of neither program, which [`QpEvent::Fatal`] tells: everything
    /// outstanding is flushed, for this reason, and READs of the peer are answered no more. In [`QpState::Error`] it does
    /// nothing.
    pub fn fail(&mut self, reason: VendorError) {
        if self.state != QpState::Error {
            self.events.push_back(QpEvent::Fatal);
            self.responder.responses.drop_reads();
            self.enter_error(reason, reason);
        }
    }

    fn reset(&mut self) {
        self.state = QpState::Reset;
        self.attr = QpAttr::default();
        self.mtu = 0;
        self.sq.clear();
        self.rq.clear();
        self.requester = Requester::default();
        self.responder = Responder::new();
        self.completions.clear();
        self.events.clear();
    }

    /// Flushes both queues, each in its order and for its cause. Responses that wait to be sent still leave.
    fn enter_error(&mut self, cause: VendorError, cause_of_receives: VendorError) {
        if self.state == QpState::Error {
            return;
        }
        self.state = QpState::Error;
        self.requester.stop();
        self.responder.stop();
        while let Some(wqe) = self.sq.pop() {
            self.counters.count(Counter::SendsFlushed);
            self.fail_send(&wqe, WcStatus::WR_FLUSH_ERR, cause);
        }
        self.flush_receives(cause_of_receives);
        if self.config.shared_receives {
            self.events.push_back(QpEvent::LastWqeReached);
        }
    }

    /// Takes a packet as it came from the network, without its ICRC. Like [`handle_packet`](Self::handle_packet), but a
    /// request with a reserved opcode is answered as invalid, and bytes that are no packet are counted.
    pub fn handle_datagram(
        &mut self,
        now: Time,
        from: &AddressVector,
        bytes: &[u8],
        memory: &mut dyn Memory,
    ) {
        match Packet::parse_or_base(bytes) {
            Ok((packet, _)) => self.handle_packet(now, from, &packet, memory),
            Err(_) => self.counters.count(Counter::DroppedMalformed),
        }
    }

    /// Takes a packet that has arrived. `from` is its address as the receiver sees it: `local` is where it was sent to,
    /// `remote` (with `scope_id`, if it is link-local) where it comes from; nothing else of it is looked at.
    pub fn handle_packet(
        &mut self,
        now: Time,
        from: &AddressVector,
        packet: &Packet<'_>,
        memory: &mut dyn Memory,
    ) {
        self.counters.count(Counter::PacketsReceived);
        let meaning = Meaning::of(packet.bth.opcode);
        if let Err(reason) = self.admit(from, packet, meaning.service.is_response()) {
            return self.counters.count(reason);
        }
        match meaning.service {
            Service::Acknowledge => self.on_acknowledge(now, packet),
            Service::ReadResponse | Service::AtomicAcknowledge => {
                self.on_result(now, packet, meaning, memory);
            }
            _ => self.on_request(packet, meaning, memory),
        }
    }

    /// The checks that come before those of requester and responder (IBA Vol. 1 ch. 9 "Packet header validation").
    fn admit(
        &self,
        from: &AddressVector,
        packet: &Packet<'_>,
        is_response: bool,
    ) -> Result<(), Counter> {
        let bth = &packet.bth;
        if bth.version != 0 {
            return Err(Counter::DroppedWrongVersion);
        }
        if bth.dest_qpn != self.config.qpn {
            return Err(Counter::DroppedWrongQpn);
        }
        if bth.opcode.transport() != self.config.kind.class() {
            return Err(Counter::DroppedWrongTransport);
        }
        match (self.config.kind, is_response) {
            (RcKind::XrcInitiator, false) => return Err(Counter::DroppedNoResponder),
            (RcKind::XrcTarget, true) => return Err(Counter::DroppedUnexpectedResponse),
            _ => {}
        }
        match (self.state, is_response) {
            (QpState::Rts | QpState::Sqd, _) | (QpState::Rtr, false) => {}
            _ => return Err(Counter::DroppedWrongState),
        }
        if !pkeys_match(bth.pkey, self.attr.pkey) {
            return Err(Counter::DroppedWrongPkey);
        }
        let av = &self.attr.av;
        let is_same = from.remote == av.remote && from.scope_id == av.scope_id;
        if from.local != av.local || !(is_same || from.peer() == av.peer()) {
            return Err(Counter::DroppedWrongSource);
        }
        Ok(())
    }

    /// Lets deadlines pass that have come. Changes state only: what is to be sent comes out of
    /// [`poll_transmit`](Self::poll_transmit).
    pub fn handle_timeout(&mut self, now: Time) {
        self.on_deadlines(now);
    }

    /// Writes the next packet to be sent into `out`: responses before requests, but a request between two packets of READ
    /// data. Local operations that are due are executed.
    ///
    /// Payload is gathered from `memory`. When that fails for a request, no packet comes of it, and the request fails with
    /// [`WcStatus::LOC_PROT_ERR`] as soon as all earlier ones have completed; when it fails for a READ of the peer, a NAK takes
    /// the place of the data.
    #[must_use]
    pub fn poll_transmit(
        &mut self,
        now: Time,
        memory: &mut dyn Memory,
        out: &mut PacketBuf,
    ) -> Option<Transmit> {
        let len = if self.responder.responses.is_empty() {
            self.next_request(now, memory, out)?
        } else if self.responder.responses.gives_way() {
            match self.next_request(now, memory, out) {
                Some(len) => {
                    self.responder.responses.note_request();
                    len
                }
                None => self.next_response(memory, out)?,
            }
        } else {
            self.next_response(memory, out)?
        };
        self.counters.count(Counter::PacketsSent);
        Some(Transmit {
            av: self.attr.av,
            len,
        })
    }

    /// The next completion. `None` while an acknowledgement waits for [`poll_transmit`](Self::poll_transmit), unless the data
    /// of a READ go before it: a peer asks for up to 2^31 bytes at once, and for as long nothing would complete.
    #[must_use]
    pub fn poll_completion(&mut self) -> Option<Completion> {
        if self.responder.responses.has_acknowledge() {
            return None;
        }
        let completion = self.completions.pop_front()?;
        if completion.is_send {
            self.sq.retire();
        } else {
            self.rq.retire();
        }
        Some(completion)
    }

    /// The next asynchronous event.
    #[must_use]
    pub fn poll_event(&mut self) -> Option<QpEvent> {
        self.events.pop_front()
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        self.requester.next_deadline()
    }

    /// Whether every request for the send queue that was posted so far has come to its end, and no completion of one waits
    /// here.
    pub const fn has_sent_all(&self) -> bool {
        self.sq.is_done()
    }

    /// Whether [`poll_transmit`](Self::poll_transmit) or [`poll_completion`](Self::poll_completion) or
    /// [`poll_event`](Self::poll_event) may have something: lets a driver of many queue pairs skip the idle ones.
    #[must_use]
    pub fn has_output(&self) -> bool {
        !self.responder.responses.is_empty()
            || !self.completions.is_empty()
            || !self.events.is_empty()
            || self.may_send_request()
    }

    /// Ends a request that was taken out of the send queue, and has succeeded.
    fn complete_send(&mut self, wqe: &SendWqe<Way>) {
        self.counters.count(match wqe.op {
            SendOp::Send | SendOp::SendWithImm(_) | SendOp::SendWithInvalidate(_) => {
                Counter::SendsCompleted
            }
            SendOp::Write(_) | SendOp::WriteWithImm(..) => Counter::WritesCompleted,
            SendOp::Read(_) => Counter::ReadsCompleted,
            SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } => Counter::AtomicsCompleted,
            SendOp::LocalInvalidate(_) => Counter::InvalidatesCompleted,
            SendOp::BindWindow(_) => Counter::BindsCompleted,
        });
        if wqe.signaled {
            let opcode = wqe.op.wc_opcode();
            self.completions
                .push_back(Completion::success(wqe.wr_id, opcode, true, wqe.length));
        } else {
            self.sq.retire();
        }
    }

    /// Ends a request that was taken out of the send queue, and has failed.
    fn fail_send(&mut self, wqe: &SendWqe<Way>, status: WcStatus, vendor_err: VendorError) {
        let opcode = wqe.op.wc_opcode();
        self.completions.push_back(Completion::failure(
            wqe.wr_id, status, opcode, true, vendor_err,
        ));
    }
}
