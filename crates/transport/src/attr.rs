//! Queue pair states, attributes, and which transition needs and takes which.
//!
//! ```text
//!            ┌──────────────────────────── any state ───────────────────────────┐
//!            v                                                                  v
//!          Reset ──> Init ──> Rtr ──> Rts <────> Sqd                          Error
//!                    │  ^            │  ^ ^     │  ^
//!                    └──┘            └──┘ │     └──┘
//!              (loops change attributes)  │
//!                                        Sqe <── from Rts or Sqd, when a send of a UC or UD queue pair fails
//! ```
//! [`QpType::transition`] has the masks of every transition.
//!
//! IBA Vol. 1 ch. 10 "Queue pair and EE context states"; ch. 11 "Modify queue pair".

use core::fmt;

use bitflags::bitflags;
use oarlock_wire::{AddressVector, Gid, IbTimeout, Mtu, PKey, Psn, QKey, Qpn, RetryCount};

/// The transport service of a queue pair. The numbers are those of `enum ibv_qp_type`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u8)]
#[non_exhaustive]
#[doc(alias = "ibv_qp_type")]
pub enum QpType {
    /// Reliable connection: one peer, every message arrives once and in order, or the connection fails.
    #[default]
    Rc = 2,
    /// Unreliable connection: one peer, messages arrive in order or not at all.
    Uc = 3,
    /// Unreliable datagram: each message is one packet to a destination of its own, and may be lost.
    Ud = 4,
    /// The sending half of an extended reliable connection: each message names a shared receive queue of the peer
    /// (IBA Vol. 1 Annex A14).
    XrcInitiator = 9,
    /// The receiving half: messages go to the shared receive queues of its XRC domain.
    XrcTarget = 10,
}

impl fmt::Display for QpType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Ud => "UD",
            Self::XrcInitiator => "XRC_SEND",
            Self::XrcTarget => "XRC_RECV",
        })
    }
}

/// State of a queue pair. The numbers are those of `enum ibv_qp_state`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
#[expect(clippy::exhaustive_enums, reason = "the specification's seven states")]
pub enum QpState {
    /// Fresh, or emptied.
    Reset = 0,
    /// Receives can be posted; packets are dropped.
    Init = 1,
    /// Ready to receive.
    Rtr = 2,
    /// Ready to send, too.
    Rts = 3,
    /// Send queue drain: what was begun is finished, what waits does, and messages still arrive. Attributes of the path may
    /// change when [`QpAttr::sq_draining`] is no longer true.
    Sqd = 4,
    /// Send queue error: a send of a UC or UD queue pair has failed here. Sends are flushed, messages still arrive.
    Sqe = 5,
    /// All work is flushed.
    Error = 6,
}

impl fmt::Display for QpState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Reset => "RESET",
            Self::Init => "INIT",
            Self::Rtr => "RTR",
            Self::Rts => "RTS",
            Self::Sqd => "SQD",
            Self::Sqe => "SQE",
            Self::Error => "ERROR",
        })
    }
}

bitflags! {
    /// Which fields of a [`QpAttr`] hold. The bits are those of `enum ibv_qp_attr_mask`.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct AttrMask: u32 {
        /// `state`
        const STATE = 1 << 0;
        /// `current_state`
        const CUR_STATE = 1 << 1;
        /// `sqd_notify`
        const EN_SQD_ASYNC_NOTIFY = 1 << 2;
        /// `access`
        const ACCESS_FLAGS = 1 << 3;
        /// `pkey`: the index is looked up by the caller.
        const PKEY_INDEX = 1 << 4;
        /// `port_num`
        const PORT = 1 << 5;
        /// `qkey`
        const QKEY = 1 << 6;
        /// `av`
        const AV = 1 << 7;
        /// `path_mtu`
        const PATH_MTU = 1 << 8;
        /// `timeout`
        const TIMEOUT = 1 << 9;
        /// `retry_count`
        const RETRY_CNT = 1 << 10;
        /// `rnr_retry`
        const RNR_RETRY = 1 << 11;
        /// `rq_psn`
        const RQ_PSN = 1 << 12;
        /// `max_rd_atomic`
        const MAX_QP_RD_ATOMIC = 1 << 13;
        /// Alternate path: refused, since which way packets take is the operating system's affair.
        const ALT_PATH = 1 << 14;
        /// `min_rnr_timer`
        const MIN_RNR_TIMER = 1 << 15;
        /// `sq_psn`
        const SQ_PSN = 1 << 16;
        /// `max_dest_rd_atomic`
        const MAX_DEST_RD_ATOMIC = 1 << 17;
        /// Path migration state: refused, as the alternate path.
        const PATH_MIG_STATE = 1 << 18;
        /// Sizes of the queues: refused, they are fixed when the queue pair is made.
        const CAP = 1 << 19;
        /// `dest_qpn`
        const DEST_QPN = 1 << 20;
        /// Packet pacing: refused.
        const RATE_LIMIT = 1 << 25;
        // Bits without a name are kept, and refused by every transition.
        const _ = !0;
    }
}

impl AttrMask {
    /// The bits that no constant names.
    pub(crate) const UNNAMED: Self = Self::from_bits_retain(!0x021F_FFFF);
}

impl fmt::Display for AttrMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        bitflags::parser::to_writer(self, f)
    }
}

bitflags! {
    /// What may be done with a region or window, and what the remote side may do with a queue pair's. The bits are those
    /// of `enum ibv_access_flags`.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct AccessFlags: u32 {
        /// The device may write: receives, results of READs and atomics.
        const LOCAL_WRITE = 1 << 0;
        /// RDMA WRITE.
        const REMOTE_WRITE = 1 << 1;
        /// RDMA READ.
        const REMOTE_READ = 1 << 2;
        /// Atomics.
        const REMOTE_ATOMIC = 1 << 3;
        /// Memory windows may be bound to the region.
        const MW_BIND = 1 << 4;
        /// Addresses in the region or window count from 0.
        const ZERO_BASED = 1 << 5;
        /// Pages need not exist when the region is registered.
        const ON_DEMAND = 1 << 6;
        // Later extensions: kept, and refused where they would have to mean something.
        const _ = !0;
    }
}

impl fmt::Display for AccessFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        bitflags::parser::to_writer(self, f)
    }
}

/// Attributes of a queue pair; `mask` says which fields hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpAttr {
    /// Which of the others hold.
    pub mask: AttrMask,
    /// The state to go to.
    pub state: QpState,
    /// The state the caller believes the queue pair to be in.
    pub current_state: QpState,
    /// Raise [`QpEvent::SqDrained`](crate::QpEvent::SqDrained) when the send queue has drained: with the transition to Sqd.
    pub sqd_notify: bool,
    /// Query only: requests that were begun before the transition to Sqd are not done yet.
    pub sq_draining: bool,
    /// What the remote side may do: any of the three REMOTE rights; LOCAL_WRITE may be given and is always the case.
    pub access: AccessFlags,
    /// The partition key (the entry of the port's table that the caller's index names).
    pub pkey: PKey,
    /// The port; a soft device has port 1.
    pub port_num: u8,
    /// UD: the key that a datagram must carry to be received. Also what a send carries that asks for it, see
    /// [`UdDestination::remote_qkey`](crate::UdDestination::remote_qkey).
    pub qkey: QKey,
    /// The path to the peer.
    pub av: AddressVector,
    /// Largest payload of a packet.
    pub path_mtu: Mtu,
    /// The peer's queue pair.
    pub dest_qpn: Qpn,
    /// First PSN that the responder expects.
    pub rq_psn: Psn,
    /// First PSN that the requester sends.
    pub sq_psn: Psn,
    /// Reads and atomics outstanding as responder.
    pub max_dest_rd_atomic: u8,
    /// Reads and atomics outstanding as requester.
    pub max_rd_atomic: u8,
    /// Code of the RNR timer that our RNR NAKs ask for, 0..=31; 0 is the longest, 655.36 ms.
    pub min_rnr_timer: u8,
    /// Local ACK timeout; 0 waits for ever.
    pub timeout: IbTimeout,
    /// How often a request is repeated for lack of an answer.
    pub retry_count: RetryCount,
    /// How often a request is repeated after RNR NAKs; 7 means without limit.
    pub rnr_retry: RetryCount,
}

impl Default for QpAttr {
    /// Nothing given.
    fn default() -> Self {
        Self {
            mask: AttrMask::empty(),
            state: QpState::Reset,
            current_state: QpState::Reset,
            sqd_notify: false,
            sq_draining: false,
            access: AccessFlags::empty(),
            pkey: PKey::DEFAULT,
            port_num: 1,
            qkey: QKey::default(),
            av: AddressVector::new(Gid::UNSPECIFIED, Gid::UNSPECIFIED),
            path_mtu: Mtu::MTU_1024,
            dest_qpn: Qpn::QP0,
            rq_psn: Psn::default(),
            sq_psn: Psn::default(),
            max_dest_rd_atomic: 0,
            max_rd_atomic: 0,
            min_rnr_timer: 0,
            timeout: IbTimeout::default(),
            retry_count: RetryCount::default(),
            rnr_retry: RetryCount::default(),
        }
    }
}

impl QpAttr {
    /// Only a change of state.
    pub fn to_state(state: QpState) -> Self {
        Self {
            mask: AttrMask::STATE,
            state,
            ..Self::default()
        }
    }

    /// Copies the fields that `from.mask` names, except the two states and the wish for an event, which are of one call.
    pub(crate) fn merge(&mut self, from: &Self) {
        let given = |bit| from.mask.contains(bit);
        if given(AttrMask::ACCESS_FLAGS) {
            self.access = from.access;
        }
        if given(AttrMask::PKEY_INDEX) {
            self.pkey = from.pkey;
        }
        if given(AttrMask::PORT) {
            self.port_num = from.port_num;
        }
        if given(AttrMask::QKEY) {
            self.qkey = from.qkey;
        }
        if given(AttrMask::AV) {
            self.av = from.av;
        }
        if given(AttrMask::PATH_MTU) {
            self.path_mtu = from.path_mtu;
        }
        if given(AttrMask::DEST_QPN) {
            self.dest_qpn = from.dest_qpn;
        }
        if given(AttrMask::RQ_PSN) {
            self.rq_psn = from.rq_psn;
        }
        if given(AttrMask::SQ_PSN) {
            self.sq_psn = from.sq_psn;
        }
        if given(AttrMask::MAX_DEST_RD_ATOMIC) {
            self.max_dest_rd_atomic = from.max_dest_rd_atomic;
        }
        if given(AttrMask::MAX_QP_RD_ATOMIC) {
            self.max_rd_atomic = from.max_rd_atomic;
        }
        if given(AttrMask::MIN_RNR_TIMER) {
            self.min_rnr_timer = from.min_rnr_timer;
        }
        if given(AttrMask::TIMEOUT) {
            self.timeout = from.timeout;
        }
        if given(AttrMask::RETRY_CNT) {
            self.retry_count = from.retry_count;
        }
        if given(AttrMask::RNR_RETRY) {
            self.rnr_retry = from.rnr_retry;
        }
        self.mask |= from.mask - AttrMask::CUR_STATE - AttrMask::EN_SQD_ASYNC_NOTIFY;
    }
}

mod transitions;

pub use transitions::Transition;
pub(crate) use transitions::{Limits, transition};

#[cfg(test)]
mod tests;
