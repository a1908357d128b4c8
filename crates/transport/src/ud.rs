//! One unreliable-datagram queue pair: one packet a message, to whomever the work request names; no acknowledgement.
//!
//! | Datagram | What becomes of it |
//! |---|---|
//! | other version, queue pair, service, partition or Q_Key | dropped and counted |
//! | longer than the path MTU | dropped and counted |
//! | no receive posted | dropped and counted |
//! | GRH and payload longer than the buffer | dropped and counted; the buffer waits on, one of a shared queue fails |
//! | buffer not writable | the receive fails with *local protection error*, the queue pair is in error |
//! | else | GRH and payload are placed, the receive completes |
//!
//! A message is one packet, so that in state Sqd nothing is ever half sent: the send queue has drained at once.
//!
//! IBA Vol. 1 ch. 9 "Unreliable datagram", ch. 10 "Queue pair states", ch. 11 "Completion return status".

#[cfg(test)]
mod tests;

use oarlock_wire::packet::padding;
use oarlock_wire::{
    AddressVector, Bth, Deth, Gid, Grh, ImmDt, Mtu, Opcode, Packet, PacketHeader, Psn, QKey, Qpn,
};

use crate::attr::{AttrMask, Limits, QpAttr, QpState, QpType, transition};
use crate::common::Common;
use crate::completion::{Completion, WcOpcode, WcStatus};
use crate::counters::{Counter, Counters};
use crate::error::Error;
use crate::memory::Memory;
use crate::packet::{PacketBuf, Transmit, emit, pkeys_match};
use crate::queue::{SendQueue, SendWqe};
use crate::rc::QpEvent;
use crate::receive::Buffers;
use crate::vendor::VendorError;
use crate::work::{RecvWr, SendOp, SendWr, UdDestination};

/// What a UD queue pair is made with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UdConfig {
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
    /// What the port carries: no datagram is longer. A reserved code counts as 256 bytes, which every port carries.
    pub mtu: Mtu,
}

impl Default for UdConfig {
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
            mtu: Mtu::MTU_1024,
        }
    }
}

/// One unreliable-datagram queue pair. The crate's documentation has the contract, less what needs a clock: it has no
/// deadlines.
#[derive(Debug)]
pub struct Ud {
    config: UdConfig,
    common: Common<UdDestination>,
    mtu: u32,
    next_psn: Psn,
}

impl Ud {
    /// A queue pair in state [`QpState::Reset`].
    pub fn new(config: UdConfig) -> Self {
        let nowhere = UdDestination {
            av: AddressVector::new(Gid::UNSPECIFIED, Gid::UNSPECIFIED),
            remote_qpn: Qpn::QP0,
            remote_qkey: QKey::default(),
        };
        let sq = SendQueue::new(
            config.max_send_wr,
            config.max_send_sge,
            config.max_inline,
            nowhere,
        );
        let buffers = Buffers::new(
            config.max_recv_wr,
            config.max_recv_sge,
            config.shared_receives,
        );
        Self {
            config,
            common: Common::new(sq, buffers, config.sq_sig_all),
            mtu: config.mtu.bytes().map_or(SMALLEST_MTU, u32::from),
            next_psn: Psn::default(),
        }
    }

    /// The number of this queue pair.
    pub const fn qpn(&self) -> Qpn {
        self.config.qpn
    }

    /// What it was made with.
    pub const fn config(&self) -> &UdConfig {
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

    /// Its attributes; the mask names those that have been given. `sq_psn` is the next to be sent.
    #[doc(alias = "ibv_query_qp")]
    pub fn query(&self) -> QpAttr {
        let mut attr = QpAttr {
            state: self.common.state,
            current_state: self.common.state,
            ..self.common.attr
        };
        if attr.mask.contains(AttrMask::SQ_PSN) {
            attr.sq_psn = self.next_psn;
        }
        attr
    }

    /// Changes state and attributes, as [`QpType::transition`] lists them.
    ///
    /// Init takes `pkey`, `port_num` and `qkey`, Rtr needs nothing more, Rts needs `sq_psn`; of a path or a peer a UD queue
    /// pair knows nothing, and refuses such attributes by name. To [`QpState::Error`]: everything outstanding is flushed.
    /// To [`QpState::Reset`]: everything is forgotten, waiting completions and events too. To [`QpState::Sqd`]: nothing more is
    /// sent until [`QpState::Rts`]. From [`QpState::Sqe`] to [`QpState::Rts`]: sends are taken again.
    ///
    /// # Errors
    /// [`Error::InvalidTransition`] and its kin: the transition does not exist, misses an attribute or has one too many;
    /// [`Error::AttributeTooLarge`] and [`Error::AttributeTooSmall`]: there is no such port. Nothing has changed then.
    ///
    /// # Specification
    /// IBA Vol. 1 ch. 11 "Modify queue pair".
    #[doc(alias = "ibv_modify_qp")]
    pub fn modify(&mut self, attr: &QpAttr) -> Result<(), Error> {
        // Deviation: a Q_Key with the top bit set is for privileged callers (IBA Vol. 1 ch. 10 "Q_Keys"). Whoever has a slot
        // of the port can write any packet to it, so refusing such a key here would protect nobody.
        let to = transition(QpType::Ud, self.common.state, attr)?;
        let limits = Limits {
            max_rd_atomic: 0,
            max_dest_rd_atomic: 0,
            mtu: self.config.mtu,
        };
        limits.check(attr)?;
        match to {
            QpState::Reset => self.reset(),
            QpState::Error => self.common.enter_error(VendorError::FLUSHED_BY_PROGRAM),
            _ => {
                self.common.attr.merge(attr);
                if attr.mask.contains(AttrMask::SQ_PSN) {
                    self.next_psn = attr.sq_psn;
                }
                self.common.state = to;
            }
        }
        if attr.mask.contains(AttrMask::EN_SQD_ASYNC_NOTIFY) && attr.sqd_notify {
            self.common.events.push_back(QpEvent::SqDrained);
        }
        Ok(())
    }

    fn reset(&mut self) {
        self.common.reset();
        self.next_psn = Psn::default();
    }

    /// Puts the queue pair into the error state by the fault of neither program, which [`QpEvent::Fatal`] tells: everything
    /// outstanding is flushed, for this reason. In [`QpState::Error`] it does nothing.
    pub fn fail(&mut self, reason: VendorError) {
        self.common.fail(reason);
    }

    /// Appends a datagram to the send queue; in [`QpState::Error`] and [`QpState::Sqe`] it is flushed at once, in
    /// [`QpState::Sqd`] it waits.
    ///
    /// # Errors
    /// [`Error::WrongState`] before [`QpState::Rts`]; [`Error::OperationNotSupported`] for all but SEND;
    /// [`Error::FlagNotAllowed`] for a fence; [`Error::NoDestination`], [`Error::MulticastQpn`]; [`Error::DatagramTooLong`];
    /// [`Error::QueueFull`], [`Error::TooManySges`], [`Error::InlineTooLong`].
    #[doc(alias = "ibv_post_send")]
    pub fn post_send(&mut self, wr: &SendWr<'_>) -> Result<(), Error> {
        let (length, to) = self.check_send(wr)?;
        self.common.post_send(wr, length, to);
        Ok(())
    }

    /// Whether [`post_send`](Self::post_send) would take all of these requests, one after the other. Nothing is posted.
    ///
    /// # Errors
    /// Those of `post_send`, with the index of the first request that would be refused.
    pub fn check_sends(&self, wrs: &[SendWr<'_>]) -> Result<(), (usize, Error)> {
        self.common.sq.check_list(wrs, |wr| self.check_send(wr))
    }

    /// The length of the message and where it goes, or the rule that the request breaks.
    fn check_send(&self, wr: &SendWr<'_>) -> Result<(u32, UdDestination), Error> {
        self.common.check_state_to_send()?;
        let too_long = |given| Error::DatagramTooLong {
            given,
            mtu: self.config.mtu,
        };
        let length = wr.check(QpType::Ud).map_err(|error| match error {
            Error::MessageTooLong { given, .. } => too_long(given),
            other => other,
        })?;
        let to = wr.ud.ok_or(Error::NoDestination)?;
        if to.av.remote.is_multicast() != (to.remote_qpn == Qpn::MULTICAST) {
            return Err(Error::MulticastQpn {
                remote: to.av.remote,
                qpn: to.remote_qpn,
            });
        }
        let _ = self.common.sq.check(wr)?;
        if length > self.mtu {
            return Err(too_long(length.into()));
        }
        Ok((length, to))
    }

    /// Appends a buffer to the receive queue; in [`QpState::Error`] it is flushed at once. It takes the GRH
    /// ([`Grh::LEN`] bytes) and then the payload, so the longest datagram needs [`Grh::LEN`] bytes more than its length.
    ///
    /// # Errors
    /// [`Error::WrongState`] in [`QpState::Reset`]; [`Error::NoReceiveQueue`] when the buffers are shared;
    /// [`Error::QueueFull`], [`Error::TooManySges`].
    #[doc(alias = "ibv_post_recv")]
    pub fn post_recv(&mut self, wr: &RecvWr<'_>) -> Result<(), Error> {
        self.common.post_recv(wr)
    }

    /// Takes a packet as it came from the network, without its ICRC; bytes that are no packet are counted.
    pub fn handle_datagram(&mut self, from: &AddressVector, bytes: &[u8], memory: &mut dyn Memory) {
        match Packet::parse(bytes) {
            Ok(packet) => self.handle_packet(from, &packet, memory),
            Err(_) => {
                self.common.counters.count(Counter::PacketsReceived);
                self.common.counters.count(Counter::DroppedMalformed);
            }
        }
    }

    /// Takes a packet that has arrived. `from` is its address as the receiver sees it: `local` is where it was sent to (this
    /// host, or a group), `remote` where it comes from.
    ///
    /// A packet to [`Qpn::MULTICAST`] is taken when it was sent to a group's address. Which groups the queue pair is
    /// attached to is its owner's to know, who gives it no other.
    pub fn handle_packet(
        &mut self,
        from: &AddressVector,
        packet: &Packet<'_>,
        memory: &mut dyn Memory,
    ) {
        self.common.counters.count(Counter::PacketsReceived);
        match self.receive(from, packet, memory) {
            Ok(()) => {
                self.common.counters.count(Counter::DatagramsReceived);
                self.common.counters.count(Counter::SendsReceived);
            }
            Err(reason) => self.common.counters.count(reason),
        }
    }

    fn receive(
        &mut self,
        from: &AddressVector,
        packet: &Packet<'_>,
        memory: &mut dyn Memory,
    ) -> Result<(), Counter> {
        let deth = self.admit(from, packet)?;
        let capacity = self
            .common
            .buffers
            .take(memory)
            .ok_or(Counter::DroppedReceiverNotReady)?;
        let length = (Grh::LEN + packet.payload.len()) as u64;
        if length > capacity {
            // Deviation: IBA calls it a local length error, after which the queue pair is of no use: whoever knows the Q_Key
            // could stop every receiver. Linux soft RoCE drops such a message, too.
            self.common.counters.count(Counter::ReceiveLengthErrors);
            self.common
                .fail_shared(WcStatus::LOC_LEN_ERR, VendorError::MESSAGE_TOO_LONG);
            return Err(Counter::DroppedNoRoom);
        }
        let grh = Grh::of(from, packet_len(packet)).to_bytes();
        let header = self.common.buffers.place(memory, 0, &grh);
        let placed = header.and_then(|()| {
            self.common
                .buffers
                .place(memory, Grh::LEN as u64, packet.payload)
        });
        let wr_id = self
            .common
            .buffers
            .finish()
            .ok_or(Counter::DroppedReceiverNotReady)?;
        if let Err(error) = placed {
            self.common
                .fail_recv(wr_id, WcStatus::LOC_PROT_ERR, error.into());
            self.common.enter_error(VendorError::FLUSHED_BY_RECEIVE);
            return Err(Counter::DroppedNotPlaced);
        }
        self.common.completions.push_back(Completion {
            imm: packet.immdt.map(|ImmDt(imm)| imm),
            solicited: packet.bth.solicited,
            src_qp: deth.src_qpn,
            has_grh: true,
            is_ipv4: from.remote.to_ip().is_ipv4(),
            sl: from.service_level,
            ..Completion::success(wr_id, WcOpcode::RECV, false, length as u32)
        });
        Ok(())
    }

    /// IBA Vol. 1 ch. 9 "Packet header validation", in its order: version, queue pair, state, service, P_Key, Q_Key. What is
    /// from no host's address goes nowhere.
    fn admit(&self, from: &AddressVector, packet: &Packet<'_>) -> Result<Deth, Counter> {
        let bth = &packet.bth;
        if bth.version != 0 {
            return Err(Counter::DroppedWrongVersion);
        }
        let wanted = if from.local.is_multicast() {
            Qpn::MULTICAST
        } else {
            self.config.qpn
        };
        if bth.dest_qpn != wanted {
            return Err(Counter::DroppedWrongQpn);
        }
        // Nobody has these addresses, and who answers what came from there gets an error. Networks do deliver such packets.
        if from.remote.is_multicast() || from.remote.to_ip().is_unspecified() {
            return Err(Counter::DroppedWrongSource);
        }
        if !self.common.is_receiving() {
            return Err(Counter::DroppedWrongState);
        }
        if !matches!(bth.opcode, Opcode::UD_SEND_ONLY | Opcode::UD_SEND_ONLY_IMM) {
            return Err(Counter::DroppedWrongTransport);
        }
        let deth = packet.deth.ok_or(Counter::DroppedMalformed)?;
        if !pkeys_match(bth.pkey, self.common.attr.pkey) {
            return Err(Counter::DroppedWrongPkey);
        }
        if deth.qkey != self.common.attr.qkey {
            return Err(Counter::DroppedWrongQkey);
        }
        if packet.payload.len() > self.mtu as usize {
            return Err(Counter::DroppedTooLong);
        }
        Ok(deth)
    }

    /// Writes the next datagram to be sent into `out`. Its request is then complete: nobody answers.
    ///
    /// Payload is gathered from `memory`; when that fails no packet comes of it, the request fails with
    /// [`WcStatus::LOC_PROT_ERR`], those behind it are flushed, and the queue pair is in [`QpState::Sqe`].
    #[must_use]
    pub fn poll_transmit(
        &mut self,
        memory: &mut dyn Memory,
        out: &mut PacketBuf,
    ) -> Option<Transmit> {
        if self.common.state != QpState::Rts || self.common.sq.is_empty() {
            return None;
        }
        let serial = self.common.sq.head();
        let wqe = *self.common.sq.get(serial);
        let header = self.header(&wqe);
        let payload_len = wqe.length as usize;
        let header_len = emit(&header, payload_len, out);
        let end = header_len + payload_len;
        let gathered = self
            .common
            .sq
            .source(serial)
            .read(memory, 0, &mut out[header_len..end]);
        let _ = self.common.sq.pop();
        if let Err(error) = gathered {
            self.common.counters.count(Counter::LocalAccessErrors);
            self.common
                .enter_sqe(&wqe, WcStatus::LOC_PROT_ERR, error.into());
            return None;
        }
        let len = end + padding(payload_len);
        out[end..len].fill(0);
        self.next_psn = self.next_psn.next();
        self.common.counters.count(Counter::DatagramsSent);
        self.common.counters.count(Counter::PacketsSent);
        self.common.counters.count(Counter::SendsCompleted);
        self.common.complete_send(&wqe);
        Some(Transmit {
            av: wqe.way.av,
            len,
        })
    }

    fn header(&self, wqe: &SendWqe<UdDestination>) -> PacketHeader {
        let (opcode, immdt) = match wqe.op {
            SendOp::SendWithImm(imm) => (Opcode::UD_SEND_ONLY_IMM, Some(ImmDt(imm))),
            _ => (Opcode::UD_SEND_ONLY, None),
        };
        let to = &wqe.way;
        let bth = Bth {
            solicited: wqe.solicited,
            pkey: self.common.attr.pkey,
            ..Bth::new(opcode, to.remote_qpn, self.next_psn)
        };
        let qkey = if to.remote_qkey.get() & OWN_QKEY == 0 {
            to.remote_qkey
        } else {
            self.common.attr.qkey
        };
        PacketHeader {
            immdt,
            ..PacketHeader::new(bth).with_deth(Deth {
                qkey,
                src_qpn: self.config.qpn,
            })
        }
    }

    /// The next completion.
    #[must_use]
    pub fn poll_completion(&mut self) -> Option<Completion> {
        self.common.poll_completion()
    }

    /// The next asynchronous event: [`QpEvent::SqDrained`], [`QpEvent::LastWqeReached`], [`QpEvent::Fatal`].
    #[must_use]
    pub fn poll_event(&mut self) -> Option<QpEvent> {
        self.common.events.pop_front()
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
        self.common.has_news() || (self.common.state == QpState::Rts && !self.common.sq.is_empty())
    }
}

/// From the BTH to the padding.
fn packet_len(packet: &Packet<'_>) -> usize {
    let immdt = packet.immdt.map_or(0, |_| ImmDt::LEN);
    let payload = packet.payload.len();
    Bth::LEN + Deth::LEN + immdt + payload + padding(payload)
}

/// In the Q_Key of a send: use the queue pair's own.
const OWN_QKEY: u32 = 0x8000_0000;

const SMALLEST_MTU: u32 = 256;
