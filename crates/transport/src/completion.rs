//! Work completions.

use core::fmt;

use oarlock_wire::{Qpn, RKey, Srqn};

use crate::vendor::VendorError;

/// The outcome of one work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// From the work request.
    pub wr_id: u64,
    /// How it ended. When this is not [`WcStatus::SUCCESS`], only `wr_id`, `status`, `vendor_err` and `is_send` hold.
    pub status: WcStatus,
    /// What completed.
    pub opcode: WcOpcode,
    /// Received bytes, the GRH of a datagram included; for sends the length of the message.
    pub byte_len: u32,
    /// The immediate value of the received message.
    pub imm: Option<u32>,
    /// The received message asked for a solicited event; true for every failure, which always is one.
    pub solicited: bool,
    /// Whether the request was on the send queue.
    pub is_send: bool,
    /// Which rule a failed request broke; [`VendorError::NONE`] for success.
    pub vendor_err: VendorError,
    /// The queue pair that sent the received datagram; 0 for everything else.
    pub src_qp: Qpn,
    /// The buffers begin with [`Grh::LEN`](oarlock_wire::Grh::LEN) bytes of GRH: every received datagram.
    pub has_grh: bool,
    /// Index of the received datagram's partition key; a port has one key, so it is 0.
    pub pkey_index: u16,
    /// The service level of the received datagram, 4 bits; 0 for everything else.
    pub sl: u8,
    /// The key that the received SEND with invalidate took away.
    pub invalidated: Option<RKey>,
    /// The shared receive queue that an XRC message was for.
    pub srqn: Option<Srqn>,
}

impl Completion {
    /// A request that succeeded, with nothing said of where a message came from.
    pub(crate) const fn success(
        wr_id: u64,
        opcode: WcOpcode,
        is_send: bool,
        byte_len: u32,
    ) -> Self {
        Self {
            wr_id,
            status: WcStatus::SUCCESS,
            opcode,
            byte_len,
            imm: None,
            solicited: false,
            is_send,
            vendor_err: VendorError::NONE,
            src_qp: Qpn::QP0,
            has_grh: false,
            pkey_index: 0,
            sl: 0,
            invalidated: None,
            srqn: None,
        }
    }

    /// A request that failed.
    pub(crate) fn failure(
        wr_id: u64,
        status: WcStatus,
        opcode: WcOpcode,
        is_send: bool,
        vendor_err: impl Into<VendorError>,
    ) -> Self {
        Self {
            status,
            solicited: true,
            vendor_err: vendor_err.into(),
            ..Self::success(wr_id, opcode, is_send, 0)
        }
    }
}

/// Completion status. The numbers are those of `enum ibv_wc_status`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct WcStatus(pub u32);

impl WcStatus {
    /// The request succeeded.
    pub const SUCCESS: Self = Self(0);
    /// A message was longer than the receive buffers.
    pub const LOC_LEN_ERR: Self = Self(1);
    /// An inconsistency of the queue pair itself.
    pub const LOC_QP_OP_ERR: Self = Self(2);
    /// Local memory could not be read or written.
    pub const LOC_PROT_ERR: Self = Self(4);
    /// The queue pair entered the error state before the request was done.
    pub const WR_FLUSH_ERR: Self = Self(5);
    /// A memory window could not be bound.
    pub const MW_BIND_ERR: Self = Self(6);
    /// An unexpected response.
    pub const BAD_RESP_ERR: Self = Self(7);
    /// A receive of a WRITE with immediate met memory that may not be accessed so.
    pub const LOC_ACCESS_ERR: Self = Self(8);
    /// The responder found the request invalid.
    pub const REM_INV_REQ_ERR: Self = Self(9);
    /// The responder's memory may not be accessed so.
    pub const REM_ACCESS_ERR: Self = Self(10);
    /// The responder could not complete the request.
    pub const REM_OP_ERR: Self = Self(11);
    /// The peer did not answer.
    pub const RETRY_EXC_ERR: Self = Self(12);
    /// The peer had no receive buffer for too long.
    pub const RNR_RETRY_EXC_ERR: Self = Self(13);

    /// Whether the request succeeded.
    pub const fn is_success(self) -> bool {
        self.0 == Self::SUCCESS.0
    }

    const fn name(self) -> Option<&'static str> {
        Some(match self {
            Self::SUCCESS => "success",
            Self::LOC_LEN_ERR => "local length error",
            Self::LOC_QP_OP_ERR => "local QP operation error",
            Self::LOC_PROT_ERR => "local protection error",
            Self::WR_FLUSH_ERR => "work request flushed",
            Self::MW_BIND_ERR => "memory window bind error",
            Self::BAD_RESP_ERR => "bad response",
            Self::LOC_ACCESS_ERR => "local access error",
            Self::REM_INV_REQ_ERR => "remote invalid request",
            Self::REM_ACCESS_ERR => "remote access error",
            Self::REM_OP_ERR => "remote operational error",
            Self::RETRY_EXC_ERR => "retry count exceeded",
            Self::RNR_RETRY_EXC_ERR => "RNR retry count exceeded",
            Self(_) => return None,
        })
    }
}

impl fmt::Display for WcStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "status {}", self.0),
        }
    }
}

impl fmt::Debug for WcStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WcStatus({self})")
    }
}

/// What a completion is about. The numbers are those of `enum ibv_wc_opcode`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct WcOpcode(pub u32);

impl WcOpcode {
    /// A SEND, with or without immediate.
    pub const SEND: Self = Self(0);
    /// An RDMA WRITE, with or without immediate.
    pub const RDMA_WRITE: Self = Self(1);
    /// An RDMA READ.
    pub const RDMA_READ: Self = Self(2);
    /// A compare-and-swap.
    pub const COMP_SWAP: Self = Self(3);
    /// A fetch-and-add.
    pub const FETCH_ADD: Self = Self(4);
    /// A memory window was bound.
    pub const BIND_MW: Self = Self(5);
    /// A local invalidate.
    pub const LOCAL_INV: Self = Self(6);
    /// A received SEND, with or without immediate.
    pub const RECV: Self = Self(128);
    /// A received RDMA WRITE with immediate: no bytes in the buffers.
    pub const RECV_RDMA_WITH_IMM: Self = Self(129);
}
