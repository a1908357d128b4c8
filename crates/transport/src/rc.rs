//! One reliable-connected queue pair: its states, its queues, and who gets a packet.

mod in_flight;
mod requester;
mod responder;
mod retry;
#[cfg(test)]
mod tests;
mod timers;

use std::collections::VecDeque;

use oarlock_wire::base::TransportClass;
use oarlock_wire::{AddressVector, Bth, Opcode, Packet, PacketHeader, Qpn, Time, WireErrorKind};

use crate::attr::{AttrMask, QpAttr, QpState, QpType, transition};
use crate::completion::{Completion, WcOpcode, WcStatus};
use crate::counters::{Counter, Counters};
use crate::error::Error;
use crate::memory::Memory;
use crate::packet::{PacketBuf, Transmit, pkeys_match};
use crate::queue::{PsnRange, RecvQueue, RecvWqe, SendQueue, SendWqe};
use crate::work::{MAX_MESSAGE_LEN, RecvWr, SendOp, SendWr};
use requester::Requester;
use responder::Responder;

/// Which reliable connected service a queue pair gives.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum RcKind {
    /// A reliable connection: both halves.
    #[default]
    Rc,
    /// The sending half of an extended reliable connection: no receives (IBA Vol. 1 Annex A14).
    XrcInitiator,
    /// The receiving half: no sends; each message names the shared receive queue that it is for.
    XrcTarget,
}

impl RcKind {
    /// The type of queue pair.
    #[must_use]
    pub const fn qp_type(self) -> QpType {
        match self {
            Self::Rc => QpType::Rc,
            Self::XrcInitiator => QpType::XrcInitiator,
            Self::XrcTarget => QpType::XrcTarget,
        }
    }
}

/// What a queue pair is made with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RcConfig {
    /// Which service.
    pub kind: RcKind,
    /// Its number.
    pub qpn: Qpn,
    /// Depth of the send queue.
    pub max_send_wr: u32,
    /// Depth of the receive queue.
    pub max_recv_wr: u32,
    /// Scatter/gather elements of a send.
    pub max_send_sge: u32,
    /// Scatter/gather elements of a receive.
    pub max_recv_sge: u32,
    /// Bytes of inline data of a send.
    pub max_inline: u32,
    /// Every send gives a completion, signalled or not.
    pub sq_sig_all: bool,
    /// Limit of [`QpAttr::max_dest_rd_atomic`].
    pub max_qp_rd_atom: u8,
    /// Limit of [`QpAttr::max_rd_atomic`].
    pub max_qp_init_rd_atom: u8,
    /// Request packets on their way at once, 1 to 2^22 (more would outrun the PSNs): keeps a receiver's socket buffer from overflowing.
    pub window: u32,
    /// Response packets of READs on their way at once, 1 to 2^22: keeps our own socket buffer from overflowing. A longer READ
    /// is asked for in pieces of half of it, rounded up.
    pub read_window: u32,
    /// Receive buffers come from shared receive queues, by [`Memory::take_shared_receive`], and none are posted here. An XRC
    /// target is always so.
    pub shared_receives: bool,
    /// Tells the peer with every acknowledgement how many messages it may send (IBA Vol. 1 ch. 9 "End-to-end flow
    /// control"). Without it, and with shared receive queues, RNR NAKs regulate alone. What the peer tells is always
    /// respected.
    pub flow_control: bool,
    /// Within a message, every how many packets an acknowledgement is asked for, at least 1. The last packet of a
    /// message and the one that fills the window always ask.
    pub ack_interval: u32,
}

impl Default for RcConfig {
    fn default() -> Self {
        Self {
            kind: RcKind::Rc,
            qpn: Qpn::QP0,
            max_send_wr: 128,
            max_recv_wr: 128,
            max_send_sge: 4,
            max_recv_sge: 4,
            max_inline: 64,
            sq_sig_all: false,
            max_qp_rd_atom: 128,
            max_qp_init_rd_atom: 128,
            window: 64,
            read_window: 64,
            shared_receives: false,
            flow_control: false,
            ack_interval: 32,
        }
    }
}

/// An asynchronous event of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum QpEvent {
    /// The first request has arrived since the queue pair can receive: the peer is established, although its RTU may
    /// still be on its way. Once per life.
    CommEst,
    /// The peer sent an invalid request; the queue pair is in the error state.
    RequestError,
    /// The peer wanted memory that it may not access so; the queue pair is in the error state.
    AccessError,
    /// The send queue has drained: state Sqd has been entered with [`QpAttr::sqd_notify`], and every request that was begun
    /// has completed.
    SqDrained,
    /// The queue pair uses a shared receive queue, is in the error state, and takes no more buffers of it.
    LastWqeReached,
    /// The queue pair is in the error state by the fault of neither program.
    Fatal,
}

/// Old and new PSNs are told apart by half of their 2^24 values; a quarter is enough for anyone.
const MAX_WINDOW: u32 = 1 << 22;

/// One reliable-connected queue pair. The crate's documentation has the contract.
#[derive(Debug)]
pub struct Rc {
    config: RcConfig,
    state: QpState,
    attr: QpAttr,
    /// Payload bytes of a full packet; fixed from Rtr on.
    mtu: u32,
    sq: SendQueue<PsnRange>,
    rq: RecvQueue,
    requester: Requester,
    responder: Responder,
    completions: VecDeque<Completion>,
    events: VecDeque<QpEvent>,
    counters: Counters,
}

/// Whose packet it is, by opcode.
enum Destination {
    Responder,
    Requester,
    OtherTransport,
}

impl Rc {
    /// A queue pair in state [`QpState::Reset`].
    pub fn new(config: RcConfig) -> Self {
        let config = RcConfig {
            window: config.window.clamp(1, MAX_WINDOW),
            read_window: config.read_window.clamp(1, MAX_WINDOW),
            shared_receives: config.shared_receives || config.kind == RcKind::XrcTarget,
            ack_interval: config.ack_interval.max(1),
            ..config
        };
        Self {
            config,
            state: QpState::Reset,
            attr: QpAttr::default(),
            mtu: 0,
            sq: SendQueue::new(
                config.max_send_wr,
                config.max_send_sge,
                config.max_inline,
                PsnRange::default(),
            ),
            rq: RecvQueue::new(config.max_recv_wr, config.max_recv_sge),
            requester: Requester::default(),
            responder: Responder::new(),
            completions: VecDeque::with_capacity(
                config.max_send_wr as usize + config.max_recv_wr as usize,
            ),
            events: VecDeque::with_capacity(2),
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
    /// first time, and the next expected.
    #[doc(alias = "ibv_query_qp")]
    pub fn query(&self) -> QpAttr {
        let mut attr = QpAttr {
            state: self.state,
            current_state: self.state,
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
    /// completions and events too.
    ///
    /// # Errors
    /// [`Error::WrongState`] and its kin: the transition does not exist, misses an attribute or has one too many;
    /// [`Error::AttributeTooLarge`], [`Error::InvalidMtu`]: a value is out of range. Nothing has changed then.
    ///
    /// # Specification
    /// IBA Vol. 1 ch. 11 "Modify queue pair".
    #[doc(alias = "ibv_modify_qp")]
    pub fn modify(&mut self, attr: &QpAttr) -> Result<(), Error> {
        let to = transition(QpType::Rc, self.state, attr)?;
        self.check_values(attr)?;
        let from = self.state;
        match to {
            QpState::Reset => self.reset(),
            QpState::Error => self.enter_error(),
            _ => {
                self.attr.merge(attr);
                self.state = to;
            }
        }
        match (from, to) {
            (QpState::Init, QpState::Rtr) => {
                self.mtu = u32::from(self.attr.path_mtu.bytes().unwrap_or_default());
                self.responder.start(self.attr.rq_psn);
            }
            (QpState::Rtr, QpState::Rts) => self.requester.start(&self.attr),
            _ => {}
        }
        Ok(())
    }

    fn check_values(&self, attr: &QpAttr) -> Result<(), Error> {
        if attr.mask.contains(AttrMask::PATH_MTU) && attr.path_mtu.bytes().is_none() {
            return Err(Error::InvalidMtu(attr.path_mtu.0));
        }
        let limited = [
            (
                AttrMask::MIN_RNR_TIMER,
                "min_rnr_timer",
                attr.min_rnr_timer,
                31,
            ),
            (
                AttrMask::MAX_QP_RD_ATOMIC,
                "max_rd_atomic",
                attr.max_rd_atomic,
                self.config.max_qp_init_rd_atom,
            ),
            (
                AttrMask::MAX_DEST_RD_ATOMIC,
                "max_dest_rd_atomic",
                attr.max_dest_rd_atomic,
                self.config.max_qp_rd_atom,
            ),
        ];
        for (bit, attribute, given, max) in limited {
            if attr.mask.contains(bit) && given > max {
                return Err(Error::AttributeTooLarge {
                    attribute,
                    given: given.into(),
                    max: max.into(),
                });
            }
        }
        Ok(())
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

    /// Flushes both queues, each in its order. Responses that wait to be sent still leave.
    fn enter_error(&mut self) {
        self.state = QpState::Error;
        self.requester.stop();
        self.responder.stop();
        while let Some(wqe) = self.sq.pop() {
            self.complete_send(&wqe, WcStatus::WR_FLUSH_ERR, 0);
        }
        while let Some(wqe) = self.rq.pop() {
            self.fail_recv(&wqe, WcStatus::WR_FLUSH_ERR);
        }
    }

    /// Appends a request to the send queue; in [`QpState::Error`] it is flushed at once.
    ///
    /// # Errors
    /// [`Error::WrongState`] before [`QpState::Rts`]; [`Error::QueueFull`], [`Error::TooManySges`],
    /// [`Error::InlineTooLong`], [`Error::MessageTooLong`]; [`Error::UnexpectedDestination`].
    #[doc(alias = "ibv_post_send")]
    pub fn post_send(&mut self, wr: &SendWr<'_>) -> Result<(), Error> {
        if !matches!(self.state, QpState::Rts | QpState::Error) {
            return Err(Error::WrongState {
                call: "post_send",
                state: self.state,
            });
        }
        if !matches!(wr.op, SendOp::Send | SendOp::SendWithImm(_)) {
            return Err(Error::OperationNotSupported {
                operation: wr.op.name(),
                qp_type: QpType::Rc,
            });
        }
        if wr.ud.is_some() {
            return Err(Error::UnexpectedDestination);
        }
        let given = self.sq.check(wr)?;
        let length = match u32::try_from(given) {
            Ok(length) if length <= MAX_MESSAGE_LEN => length,
            _ => {
                return Err(Error::MessageTooLong {
                    given,
                    max: MAX_MESSAGE_LEN,
                });
            }
        };
        if self.state == QpState::Error {
            self.sq.reserve();
            let opcode = WcOpcode::SEND;
            self.completions.push_back(Completion::failure(
                wr.wr_id,
                WcStatus::WR_FLUSH_ERR,
                opcode,
                true,
                0,
            ));
            return Ok(());
        }
        let count = length.div_ceil(self.mtu).max(1);
        let psns = PsnRange {
            first: self.requester.assign_psns(count),
            count,
        };
        let signaled = wr.signaled || self.config.sq_sig_all;
        self.sq.push(wr, signaled, length, psns);
        Ok(())
    }

    /// Appends a buffer to the receive queue; in [`QpState::Error`] it is flushed at once.
    ///
    /// # Errors
    /// [`Error::WrongState`] in [`QpState::Reset`]; [`Error::QueueFull`], [`Error::TooManySges`].
    #[doc(alias = "ibv_post_recv")]
    pub fn post_recv(&mut self, wr: &RecvWr<'_>) -> Result<(), Error> {
        if self.state == QpState::Reset {
            return Err(Error::WrongState {
                call: "post_recv",
                state: self.state,
            });
        }
        self.rq.check(wr)?;
        if self.state == QpState::Error {
            self.rq.reserve();
            let opcode = WcOpcode::RECV;
            self.completions.push_back(Completion::failure(
                wr.wr_id,
                WcStatus::WR_FLUSH_ERR,
                opcode,
                false,
                0,
            ));
        } else {
            self.rq.push(wr);
        }
        Ok(())
    }

    /// Takes a packet as it came from the network, without its ICRC. Like [`handle_packet`](Self::handle_packet), but a
    /// request that this implementation cannot take apart (WRITE, READ, atomics) is answered as invalid, and bytes that
    /// are no packet are counted.
    pub fn handle_datagram(
        &mut self,
        now: Time,
        from: &AddressVector,
        bytes: &[u8],
        memory: &mut dyn Memory,
    ) {
        match (Packet::parse(bytes), bytes.first_chunk()) {
            (Ok(packet), _) => self.handle_packet(now, from, &packet, memory),
            (Err(error), Some(header))
                if matches!(error.kind, WireErrorKind::UnsupportedOpcode(_)) =>
            {
                let bth = Bth::parse(header);
                let packet = PacketHeader::new(bth).packet(&[]);
                self.handle_packet(now, from, &packet, memory);
            }
            (Err(_), _) => self.counters.count(Counter::DroppedMalformed),
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
        let destination = destination(packet.bth.opcode);
        if let Err(reason) = self.admit(from, packet, &destination) {
            self.counters.count(reason);
            return;
        }
        match destination {
            Destination::Requester => self.on_response(now, packet),
            _ => self.on_request(packet, memory),
        }
    }

    /// The checks that come before those of requester and responder (IBA Vol. 1 ch. 9 "Packet header validation").
    fn admit(
        &self,
        from: &AddressVector,
        packet: &Packet<'_>,
        destination: &Destination,
    ) -> Result<(), Counter> {
        let bth = &packet.bth;
        if bth.version != 0 {
            return Err(Counter::DroppedWrongVersion);
        }
        if bth.dest_qpn != self.config.qpn {
            return Err(Counter::DroppedWrongQpn);
        }
        match (self.state, destination) {
            (_, Destination::OtherTransport) => return Err(Counter::DroppedWrongTransport),
            (QpState::Rts, _) | (QpState::Rtr, Destination::Responder) => {}
            _ => return Err(Counter::DroppedWrongState),
        }
        if !pkeys_match(bth.pkey, self.attr.pkey) {
            return Err(Counter::DroppedWrongPkey);
        }
        if from.peer() != self.attr.av.peer() || from.local != self.attr.av.local {
            return Err(Counter::DroppedWrongSource);
        }
        Ok(())
    }

    /// Lets deadlines pass that have come. Changes state only: what is to be sent comes out of
    /// [`poll_transmit`](Self::poll_transmit).
    pub fn handle_timeout(&mut self, now: Time) {
        self.on_deadlines(now);
    }

    /// Writes the next packet to be sent into `out`, responses before requests.
    ///
    /// Payload is gathered from `memory`; when that fails no packet comes of it, and the request fails with
    /// [`WcStatus::LOC_PROT_ERR`] as soon as all earlier ones have completed.
    #[must_use]
    pub fn poll_transmit(
        &mut self,
        now: Time,
        memory: &mut dyn Memory,
        out: &mut PacketBuf,
    ) -> Option<Transmit> {
        let len = match self.next_response(out) {
            Some(len) => len,
            None => self.next_request(now, memory, out)?,
        };
        Some(Transmit {
            av: self.attr.av,
            len,
        })
    }

    /// The next completion. `None` while an acknowledgement waits for [`poll_transmit`](Self::poll_transmit).
    #[must_use]
    pub fn poll_completion(&mut self) -> Option<Completion> {
        if self.responder.has_response() {
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

    /// Whether [`poll_transmit`](Self::poll_transmit) or [`poll_completion`](Self::poll_completion) or
    /// [`poll_event`](Self::poll_event) may have something: lets a driver of many queue pairs skip the idle ones.
    #[must_use]
    pub fn has_output(&self) -> bool {
        self.responder.has_response()
            || !self.completions.is_empty()
            || !self.events.is_empty()
            || self.may_send_request()
    }

    /// Ends a request that was taken out of the send queue.
    fn complete_send(&mut self, wqe: &SendWqe<PsnRange>, status: WcStatus, vendor_err: u32) {
        if !status.is_success() {
            self.completions.push_back(Completion::failure(
                wqe.wr_id,
                status,
                WcOpcode::SEND,
                true,
                vendor_err,
            ));
        } else if wqe.signaled {
            self.completions.push_back(Completion::success(
                wqe.wr_id,
                WcOpcode::SEND,
                true,
                wqe.length,
            ));
        } else {
            self.sq.retire();
        }
    }

    /// Ends a buffer that was taken out of the receive queue, without a message.
    fn fail_recv(&mut self, wqe: &RecvWqe, status: WcStatus) {
        self.completions.push_back(Completion::failure(
            wqe.wr_id,
            status,
            WcOpcode::RECV,
            false,
            0,
        ));
    }
}

fn destination(opcode: Opcode) -> Destination {
    match opcode.transport() {
        TransportClass::Rc if opcode.is_response() => Destination::Requester,
        TransportClass::Rc => Destination::Responder,
        _ => Destination::OtherTransport,
    }
}
