//! One unreliable-connected queue pair: messages of any length to one peer, in order, or lost; nobody acknowledges.
//!
//! A request is complete when its last packet has been handed over. SEND and WRITE, with or without immediate, local
//! invalidate and bind exist; READ, atomics and SEND with invalidate need answers and do not. What a responder does with
//! each packet is the table in `responder`.
//!
//! Nothing tells a sender that it is too fast, so packets come in bursts with pauses between them, see
//! [`UcConfig::burst`].
//!
//! IBA Vol. 1 ch. 9 "Unreliable connection", ch. 10 "Queue pair states".

mod pace;
mod requester;
mod responder;
#[cfg(test)]
mod tests;

use core::time::Duration;

use oarlock_wire::base::TransportClass;
use oarlock_wire::{AddressVector, Mtu, Packet, Psn, Qpn, Time};

use crate::attr::{AttrMask, Limits, QpAttr, QpState, QpType, transition};
use crate::common::Common;
use crate::completion::Completion;
use crate::counters::{Counter, Counters};
use crate::error::Error;
use crate::memory::Memory;
use crate::packet::{PacketBuf, Transmit, pkeys_match};
use crate::queue::SendQueue;
use crate::rc::QpEvent;
use crate::receive::Buffers;
use crate::vendor::VendorError;
use crate::work::{RecvWr, SendWr};
use pace::Pace;
use responder::Responder;

/// What a UC queue pair is made with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UcConfig {
    /// Its number.
    pub qpn: Qpn,
    /// Depth of the send queue.
    pub max_send_wr: u32,
    /// Depth of the receive queue; without meaning when the buffers are shared.
    pub max_recv_wr: u32,
    /// Scatter/gather elements of a send.
    pub max_send_sge: u32,
    /// Scatter/gather elements of a receive.
    pub max_recv_sge: u32,
    /// Bytes of inline data of a send.
    pub max_inline: u32,
    /// Every send gives a completion, signalled or not.
    pub sq_sig_all: bool,
    /// Receive buffers come from [`Memory::take_shared_receive`].
    pub shared_receives: bool,
    /// What the port carries: limit of [`QpAttr::path_mtu`].
    pub mtu: Mtu,
    /// At most so many packets are sent in each [`pace`](Self::pace), at least 1. 64 packets of 4 KiB that come together fit into
    /// the socket buffer that a user may have on a Linux system as it is installed.
    pub burst: u32,
    /// How long after the beginning of a full burst the next begins; [`Uc::poll_timeout`] gives the time. 50 µs by default,
    /// in which a receiver that sleeps wakes up; zero is no limit.
    pub pace: Duration,
}

impl Default for UcConfig {
    fn default() -> Self {
        Self {
            qpn: Qpn::QP0,
            max_send_wr: 128,
            max_recv_wr: 128,
            max_send_sge: 4,
            max_recv_sge: 4,
            max_inline: 64,
            sq_sig_all: false,
            shared_receives: false,
            mtu: Mtu::MTU_4096,
            burst: 64,
            pace: Duration::from_micros(50),
        }
    }
}

/// One unreliable-connected queue pair. The crate's documentation has the contract.
#[derive(Debug)]
pub struct Uc {
    config: UcConfig,
    common: Common<()>,
    /// Payload bytes of a full packet; fixed from Rtr on.
    mtu: u32,
    /// PSN of the next packet.
    next_psn: Psn,
    /// Which packet of the oldest request is next.
    packet: u32,
    pace: Pace,
    /// Raise the event when the send queue has drained.
    notify_drained: bool,
    responder: Responder,
}

impl Uc {
    /// A queue pair in state [`QpState::Reset`].
    pub fn new(config: UcConfig) -> Self {
        let sq = SendQueue::new(
            config.max_send_wr,
            config.max_send_sge,
            config.max_inline,
            (),
        );
        let buffers = Buffers::new(
            config.max_recv_wr,
            config.max_recv_sge,
            config.shared_receives,
        );
        Self {
            config,
            common: Common::new(sq, buffers, config.sq_sig_all),
            mtu: 0,
            next_psn: Psn::default(),
            packet: 0,
            pace: Pace::new(config.burst, config.pace),
            notify_drained: false,
            responder: Responder::default(),
        }
    }

    /// The number of this queue pair.
    pub const fn qpn(&self) -> Qpn {
        self.config.qpn
    }

    /// What it was made with.
    pub const fn config(&self) -> &UcConfig {
        &self.config
    }

    /// Its state.
    pub const fn state(&self) -> QpState {
        self.common.state
    }

    /// Its counters.
    pub const fn counters(&self) -> &Counters {
        &self.common.counters
    }

    /// Its attributes; the mask names those that have been given. `sq_psn` is the next to be sent, `rq_psn` the next expected.
    #[doc(alias = "ibv_query_qp")]
    pub fn query(&self) -> QpAttr {
        let mut attr = QpAttr {
            state: self.common.state,
            current_state: self.common.state,
            sq_draining: self.is_draining(),
            ..self.common.attr
        };
        if attr.mask.contains(AttrMask::SQ_PSN) {
            attr.sq_psn = self.next_psn;
        }
        if attr.mask.contains(AttrMask::RQ_PSN) {
            attr.rq_psn = self.responder.expected;
        }
        attr
    }

    /// Changes state and attributes, as [`QpType::transition`] lists them.
    ///
    /// To [`QpState::Error`]: everything outstanding is flushed. To [`QpState::Reset`]: everything is forgotten, waiting
    /// completions and events too. To [`QpState::Sqd`]: a message of which part has been sent is finished, no other is begun. From
    /// [`QpState::Sqe`] to [`QpState::Rts`]: sends are taken again.
    ///
    /// # Errors
    /// [`Error::InvalidTransition`] and its kin: the transition does not exist, misses an attribute or has one too many;
    /// [`Error::AttributeTooLarge`], [`Error::InvalidMtu`] and theirs: a value is out of range; [`Error::StillDraining`]. Nothing
    /// has changed then.
    ///
    /// # Specification
    /// IBA Vol. 1 ch. 11 "Modify queue pair".
    #[doc(alias = "ibv_modify_qp")]
    pub fn modify(&mut self, attr: &QpAttr) -> Result<(), Error> {
        let to = transition(QpType::Uc, self.common.state, attr)?;
        let limits = Limits {
            max_rd_atomic: 0,
            max_dest_rd_atomic: 0,
            mtu: self.config.mtu,
        };
        limits.check(attr)?;
        if self.is_draining() && !matches!(to, QpState::Reset | QpState::Error) {
            return Err(Error::StillDraining { to });
        }
        let from = self.common.state;
        match to {
            QpState::Reset => self.reset(),
            QpState::Error => self.common.enter_error(VendorError::FLUSHED_BY_PROGRAM),
            _ => {
                self.common.attr.merge(attr);
                self.common.state = to;
            }
        }
        match (from, to) {
            (QpState::Init, QpState::Rtr) => {
                self.mtu = self.common.attr.path_mtu.bytes().map_or(0, u32::from);
                self.responder.expected = self.common.attr.rq_psn;
            }
            (QpState::Rtr, QpState::Rts) => self.next_psn = self.common.attr.sq_psn,
            (QpState::Rts, QpState::Sqd) => {
                let asked = attr.mask.contains(AttrMask::EN_SQD_ASYNC_NOTIFY);
                self.notify_drained = asked && attr.sqd_notify;
                if !self.is_draining() {
                    self.note_drained();
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn reset(&mut self) {
        self.common.reset();
        self.mtu = 0;
        self.next_psn = Psn::default();
        self.packet = 0;
        self.pace.clear();
        self.notify_drained = false;
        self.responder = Responder::default();
    }

    /// Puts the queue pair into the error state by the fault of neither program, which [`QpEvent::Fatal`] tells: everything
    /// outstanding is flushed, for this reason. In [`QpState::Error`] it does nothing.
    pub fn fail(&mut self, reason: VendorError) {
        self.common.fail(reason);
    }

    /// The send queue has drained: state Sqd, and nothing is begun and unfinished.
    fn note_drained(&mut self) {
        if core::mem::take(&mut self.notify_drained) {
            self.common.events.push_back(QpEvent::SqDrained);
        }
    }

    /// Appends a request to the send queue; in [`QpState::Error`] and [`QpState::Sqe`] it is flushed at once, in
    /// [`QpState::Sqd`] it waits.
    ///
    /// # Errors
    /// [`Error::WrongState`] before [`QpState::Rts`]; [`Error::OperationNotSupported`] for READ, atomics and SEND with
    /// invalidate; [`Error::UnexpectedDestination`] and others that say which field does not go with the operation;
    /// [`Error::MessageTooLong`], [`Error::RemoteRange`]; [`Error::QueueFull`], [`Error::TooManySges`],
    /// [`Error::InlineTooLong`].
    #[doc(alias = "ibv_post_send")]
    pub fn post_send(&mut self, wr: &SendWr<'_>) -> Result<(), Error> {
        let length = self.check_send(wr)?;
        self.common.post_send(wr, length, ());
        Ok(())
    }

    /// Whether [`post_send`](Self::post_send) would take all of these requests, one after the other. Nothing is posted.
    ///
    /// # Errors
    /// Those of `post_send`, with the index of the first request that would be refused.
    pub fn check_sends(&self, wrs: &[SendWr<'_>]) -> Result<(), (usize, Error)> {
        self.common.sq.check_list(wrs, |wr| self.check_send(wr))
    }

    /// The length of the message, or the rule that the request breaks.
    fn check_send(&self, wr: &SendWr<'_>) -> Result<u32, Error> {
        self.common.check_state_to_send()?;
        let length = wr.check(QpType::Uc)?;
        let _ = self.common.sq.check(wr)?;
        Ok(length)
    }

    /// Appends a buffer to the receive queue; in [`QpState::Error`] it is flushed at once.
    ///
    /// # Errors
    /// [`Error::WrongState`] in [`QpState::Reset`]; [`Error::NoReceiveQueue`] when the buffers are shared;
    /// [`Error::QueueFull`], [`Error::TooManySges`].
    #[doc(alias = "ibv_post_recv")]
    pub fn post_recv(&mut self, wr: &RecvWr<'_>) -> Result<(), Error> {
        self.common.post_recv(wr)
    }

    /// Takes a packet as it came from the network, without its ICRC; bytes that are no packet are counted.
    pub fn handle_datagram(
        &mut self,
        now: Time,
        from: &AddressVector,
        bytes: &[u8],
        memory: &mut dyn Memory,
    ) {
        match Packet::parse(bytes) {
            Ok(packet) => self.handle_packet(now, from, &packet, memory),
            Err(_) => {
                self.common.counters.count(Counter::PacketsReceived);
                self.common.counters.count(Counter::DroppedMalformed);
            }
        }
    }

    /// Takes a packet that has arrived. `from` is its address as the receiver sees it: `local` is where it was sent to,
    /// `remote` (with `scope_id`, if it is link-local) where it comes from; nothing else of it is looked at. The time is that of
    /// the contract; nothing of a receiver depends on it.
    pub fn handle_packet(
        &mut self,
        _now: Time,
        from: &AddressVector,
        packet: &Packet<'_>,
        memory: &mut dyn Memory,
    ) {
        self.common.counters.count(Counter::PacketsReceived);
        match self.admit(from, packet) {
            Ok(()) => self.on_request(packet, memory),
            Err(reason) => self.common.counters.count(reason),
        }
    }

    /// IBA Vol. 1 ch. 9 "Packet header validation".
    fn admit(&self, from: &AddressVector, packet: &Packet<'_>) -> Result<(), Counter> {
        let bth = &packet.bth;
        if bth.version != 0 {
            return Err(Counter::DroppedWrongVersion);
        }
        if bth.dest_qpn != self.config.qpn {
            return Err(Counter::DroppedWrongQpn);
        }
        if bth.opcode.transport() != TransportClass::Uc {
            return Err(Counter::DroppedWrongTransport);
        }
        if !self.common.is_receiving() {
            return Err(Counter::DroppedWrongState);
        }
        if !pkeys_match(bth.pkey, self.common.attr.pkey) {
            return Err(Counter::DroppedWrongPkey);
        }
        if from.peer() != self.common.attr.av.peer() || from.local != self.common.attr.av.local {
            return Err(Counter::DroppedWrongSource);
        }
        Ok(())
    }

    /// Lets the pause between two bursts end if it is over. Changes state only: what is to be sent comes out of
    /// [`poll_transmit`](Self::poll_transmit).
    pub fn handle_timeout(&mut self, now: Time) {
        self.pace.lift(now);
    }

    /// Writes the next packet to be sent into `out`, unless a burst is full. With its last packet a request is complete: nobody
    /// answers. Local operations that come before it are done first.
    ///
    /// Payload is gathered from `memory`; when that fails no packet comes of it, the request fails with
    /// [`LOC_PROT_ERR`](crate::WcStatus::LOC_PROT_ERR), those behind it are flushed, and the queue pair is in
    /// [`QpState::Sqe`]. A local operation that fails does the same with [`MW_BIND_ERR`](crate::WcStatus::MW_BIND_ERR).
    #[must_use]
    pub fn poll_transmit(
        &mut self,
        now: Time,
        memory: &mut dyn Memory,
        out: &mut PacketBuf,
    ) -> Option<Transmit> {
        self.pace.lift(now);
        if self.pace.until().is_some() {
            return None;
        }
        let len = self.next_request(now, memory, out)?;
        Some(Transmit {
            av: self.common.attr.av,
            len,
        })
    }

    /// The next completion.
    #[must_use]
    pub fn poll_completion(&mut self) -> Option<Completion> {
        self.common.poll_completion()
    }

    /// The next asynchronous event.
    #[must_use]
    pub fn poll_event(&mut self) -> Option<QpEvent> {
        self.common.events.pop_front()
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due: when the next burst may begin, if anything is to be sent.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        self.pace.until().filter(|_| self.has_request())
    }

    /// Whether every request for the send queue that was posted so far has come to its end, and no completion of one waits
    /// here.
    pub const fn has_sent_all(&self) -> bool {
        self.common.sq.is_done()
    }

    /// Whether [`poll_transmit`](Self::poll_transmit) or [`poll_completion`](Self::poll_completion) or
    /// [`poll_event`](Self::poll_event) may have something.
    #[must_use]
    pub fn has_output(&self) -> bool {
        self.common.has_news() || (self.pace.until().is_none() && self.has_request())
    }
}
