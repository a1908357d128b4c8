//! Recipes: the attributes that take a queue pair to INIT, RTR and RTS.

use oarlock_wire::{AddressVector, IbTimeout, Mtu, Psn, QKey, Qpn, RetryCount};
use std::fmt;

/// A queue pair state, with the numbers of `enum ibv_qp_state`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct QpState(pub u32);

impl QpState {
    /// Initialised: receives may be posted.
    pub const INIT: Self = Self(1);
    /// Ready to receive.
    pub const RTR: Self = Self(2);
    /// Ready to send.
    pub const RTS: Self = Self(3);
    /// Failed, or taken down: everything is flushed.
    pub const ERROR: Self = Self(6);
}

impl fmt::Display for QpState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::INIT => f.write_str("INIT"),
            Self::RTR => f.write_str("RTR"),
            Self::RTS => f.write_str("RTS"),
            Self::ERROR => f.write_str("ERROR"),
            Self(other) => write!(f, "QP state {other}"),
        }
    }
}

/// What a peer may do with memory through a queue pair, with the bits of `enum ibv_access_flags`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct AccessFlags(pub u32);

impl AccessFlags {
    /// Nothing.
    pub const NONE: Self = Self(0);
    /// RDMA write.
    pub const REMOTE_WRITE: Self = Self(1 << 1);
    /// RDMA read.
    pub const REMOTE_READ: Self = Self(1 << 2);
    /// Atomics.
    pub const REMOTE_ATOMIC: Self = Self(1 << 3);

    pub(crate) const fn for_connection(responder_resources: u8) -> Self {
        if responder_resources == 0 {
            return Self::REMOTE_WRITE;
        }
        Self(Self::REMOTE_WRITE.0 | Self::REMOTE_READ.0 | Self::REMOTE_ATOMIC.0)
    }
}

/// Which attributes a recipe sets, with the bits of `enum ibv_qp_attr_mask`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct QpAttrMask(pub u32);

impl QpAttrMask {
    /// STATE, ACCESS_FLAGS, PKEY_INDEX, PORT.
    pub const INIT: Self = Self(1 | 1 << 3 | 1 << 4 | 1 << 5);
    /// STATE, AV, PATH_MTU, DEST_QPN, RQ_PSN, MAX_DEST_RD_ATOMIC, MIN_RNR_TIMER.
    pub const RTR: Self = Self(1 | 1 << 7 | 1 << 8 | 1 << 12 | 1 << 15 | 1 << 17 | 1 << 20);
    /// STATE, TIMEOUT, RETRY_CNT, RNR_RETRY, MAX_QP_RD_ATOMIC, SQ_PSN.
    pub const RTS: Self = Self(1 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 13 | 1 << 16);
    /// STATE, TIMEOUT, SQ_PSN.
    pub const XRC_RECV_RTS: Self = Self(1 | 1 << 9 | 1 << 16);
    /// STATE, AV, PATH_MTU, DEST_QPN, RQ_PSN.
    pub const UC_RTR: Self = Self(1 | 1 << 7 | 1 << 8 | 1 << 12 | 1 << 20);
    /// STATE, SQ_PSN.
    pub const UC_RTS: Self = Self(1 | 1 << 16);
    /// STATE, PKEY_INDEX, PORT, QKEY.
    pub const UD_INIT: Self = Self(1 | 1 << 4 | 1 << 5 | 1 << 6);
    /// STATE.
    pub const UD_RTR: Self = Self(1);
    /// STATE, SQ_PSN.
    pub const UD_RTS: Self = Self(1 | 1 << 16);
}

/// The attributes for one state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum QpAttr {
    /// To INIT.
    Init(InitAttr),
    /// To RTR.
    Rtr(RtrAttr),
    /// To RTS.
    Rts(RtsAttr),
    /// An unreliable connected queue pair, or the sending side of XRC, to RTR.
    UcRtr(UcRtrAttr),
    /// The receiving side of XRC to RTS: it sends nothing but answers.
    XrcRecvRts {
        /// The PSN of the first packet to send: the one that the peer announced.
        sq_psn: Psn,
        /// How long to wait for an acknowledgement.
        timeout: IbTimeout,
    },
    /// An unreliable connected queue pair to RTS.
    UcRts {
        /// The PSN of the first packet to send: the one that the peer announced.
        sq_psn: Psn,
    },
    /// A datagram queue pair to INIT.
    UdInit(UdInitAttr),
    /// A datagram queue pair to RTR: nothing but the state.
    UdRtr,
    /// A datagram queue pair to RTS.
    UdRts {
        /// The PSN of the first packet to send, which nobody checks: 0.
        sq_psn: Psn,
    },
}

impl QpAttr {
    /// The state that the attributes lead to.
    #[must_use]
    pub const fn state(&self) -> QpState {
        match self {
            Self::Init(_) | Self::UdInit(_) => QpState::INIT,
            Self::Rtr(_) | Self::UcRtr(_) | Self::UdRtr => QpState::RTR,
            Self::Rts(_) | Self::XrcRecvRts { .. } | Self::UcRts { .. } | Self::UdRts { .. } => {
                QpState::RTS
            }
        }
    }

    /// Which attributes are set.
    #[must_use]
    pub const fn mask(&self) -> QpAttrMask {
        match self {
            Self::Init(_) => QpAttrMask::INIT,
            Self::Rtr(_) => QpAttrMask::RTR,
            Self::Rts(_) => QpAttrMask::RTS,
            Self::UcRtr(_) => QpAttrMask::UC_RTR,
            Self::XrcRecvRts { .. } => QpAttrMask::XRC_RECV_RTS,
            Self::UcRts { .. } => QpAttrMask::UC_RTS,
            Self::UdInit(_) => QpAttrMask::UD_INIT,
            Self::UdRtr => QpAttrMask::UD_RTR,
            Self::UdRts { .. } => QpAttrMask::UD_RTS,
        }
    }
}

/// Attributes for INIT.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InitAttr {
    /// What the peer may do; nothing before there is a connection.
    pub access: AccessFlags,
    /// The place of the partition key; 0 on RoCE.
    pub pkey_index: u16,
    /// The port.
    pub port_num: u8,
}

/// Attributes for RTR.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RtrAttr {
    /// The way to the peer.
    pub av: AddressVector,
    /// The place of the source address in the device's GID table.
    pub sgid_index: u8,
    /// The port.
    pub port_num: u8,
    /// Payload bytes per packet.
    pub path_mtu: Mtu,
    /// The peer's queue pair.
    pub dest_qpn: Qpn,
    /// The PSN of the first packet to expect: the one that this side announced.
    pub rq_psn: Psn,
    /// RDMA reads and atomics to answer at a time.
    pub max_dest_rd_atomic: u8,
    /// The RNR timer to ask for, a 5-bit code.
    pub min_rnr_timer: u8,
}

/// Attributes for RTS.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RtsAttr {
    /// The PSN of the first packet to send: the one that the peer announced.
    pub sq_psn: Psn,
    /// How long to wait for an acknowledgement.
    pub timeout: IbTimeout,
    /// How often to retransmit.
    pub retry_cnt: RetryCount,
    /// How often to try again when the peer's receive queue is empty.
    pub rnr_retry: RetryCount,
    /// RDMA reads and atomics to have outstanding.
    pub max_rd_atomic: u8,
}

/// Attributes for RTR of an unreliable connected queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UcRtrAttr {
    /// The way to the peer.
    pub av: AddressVector,
    /// The place of the source address in the device's GID table.
    pub sgid_index: u8,
    /// The port.
    pub port_num: u8,
    /// Payload bytes per packet.
    pub path_mtu: Mtu,
    /// The peer's queue pair.
    pub dest_qpn: Qpn,
    /// The PSN of the first packet to expect: the one that this side announced.
    pub rq_psn: Psn,
}

/// Attributes for INIT of a datagram queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UdInitAttr {
    /// The Q_Key that datagrams must carry to be received.
    pub qkey: QKey,
    /// The place of the partition key; 0 on RoCE.
    pub pkey_index: u16,
    /// The port.
    pub port_num: u8,
}
