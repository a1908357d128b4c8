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
    /// That GRH holds an IPv4 header, in its last 20 bytes: the datagram came over IPv4 (IBA Annex A17.4.5.1).
    pub is_ipv4: bool,
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
            is_ipv4: false,
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

/// Completion status. The numbers are those of `enum ibv_wc_status`, all of which have a name here.
///
/// Some are never given by this device: the names in brackets, with the reason.
///
/// | Number | Name | Given |
/// |---|---|---|
/// | 0 | [`SUCCESS`](Self::SUCCESS) | |
/// | 1 | [`LOC_LEN_ERR`](Self::LOC_LEN_ERR) | receive: longer than the buffers (RC; UC and UD with a shared queue) |
/// | 2 | [`LOC_QP_OP_ERR`](Self::LOC_QP_OP_ERR) | (the engines find inconsistent requests when they are posted) |
/// | 3 | [`LOC_EEC_OP_ERR`](Self::LOC_EEC_OP_ERR) | (reliable datagrams do not exist) |
/// | 4 | [`LOC_PROT_ERR`](Self::LOC_PROT_ERR) | either queue: local memory cannot be reached |
/// | 5 | [`WR_FLUSH_ERR`](Self::WR_FLUSH_ERR) | either queue |
/// | 6 | [`MW_BIND_ERR`](Self::MW_BIND_ERR) | send: a bind or a local invalidate failed |
/// | 7 | [`BAD_RESP_ERR`](Self::BAD_RESP_ERR) | send, RC: a response that does not fit its request |
/// | 8 | [`LOC_ACCESS_ERR`](Self::LOC_ACCESS_ERR) | receive, RC: of a WRITE with immediate that was refused for its key, range or right |
/// | 9 | [`REM_INV_REQ_ERR`](Self::REM_INV_REQ_ERR) | send, RC: NAK; receive, RC: the key to take away is none; receive, UC with a shared queue: message incomplete |
/// | 10 | [`REM_ACCESS_ERR`](Self::REM_ACCESS_ERR) | send, RC: NAK |
/// | 11 | [`REM_OP_ERR`](Self::REM_OP_ERR) | send, RC: NAK |
/// | 12 | [`RETRY_EXC_ERR`](Self::RETRY_EXC_ERR) | send, RC |
/// | 13 | [`RNR_RETRY_EXC_ERR`](Self::RNR_RETRY_EXC_ERR) | send, RC |
/// | 14 | [`LOC_RDD_VIOL_ERR`](Self::LOC_RDD_VIOL_ERR) | (reliable datagrams do not exist) |
/// | 15 | [`REM_INV_RD_REQ_ERR`](Self::REM_INV_RD_REQ_ERR) | (reliable datagrams do not exist) |
/// | 16 | [`REM_ABORT_ERR`](Self::REM_ABORT_ERR) | (reliable datagrams do not exist) |
/// | 17 | [`INV_EECN_ERR`](Self::INV_EECN_ERR) | (reliable datagrams do not exist) |
/// | 18 | [`INV_EEC_STATE_ERR`](Self::INV_EEC_STATE_ERR) | (reliable datagrams do not exist) |
/// | 19 | [`FATAL_ERR`](Self::FATAL_ERR) | (when a device is gone, requests are flushed and an event says why) |
/// | 20 | [`RESP_TIMEOUT_ERR`](Self::RESP_TIMEOUT_ERR) | (no provider gives it; a silent peer is 12) |
/// | 21 | [`GENERAL_ERR`](Self::GENERAL_ERR) | (every failure has a status of its own) |
/// | 22 | [`TM_ERR`](Self::TM_ERR) | (there is no tag matching) |
/// | 23 | [`TM_RNDV_INCOMPLETE`](Self::TM_RNDV_INCOMPLETE) | (there is no tag matching) |
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[doc(alias = "ibv_wc_status")]
pub struct WcStatus(pub u32);

/// The constants with their sentences.
macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $sentence:literal;)*) => {
        impl WcStatus {
            $($(#[$doc])* pub const $name: Self = Self($code);)*

            /// Every named status.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            const fn name(self) -> Option<&'static str> {
                match self {
                    $(Self::$name => Some($sentence),)*
                    Self(_) => None,
                }
            }
        }
    };
}

statuses! {
    /// The request succeeded.
    SUCCESS = 0, "success";
    /// A message was longer than the receive buffers.
    LOC_LEN_ERR = 1, "local length error";
    /// An inconsistency of the queue pair itself.
    LOC_QP_OP_ERR = 2, "local QP operation error";
    /// An inconsistency of the end-to-end context; reliable datagrams only.
    LOC_EEC_OP_ERR = 3, "local EE context operation error";
    /// Local memory could not be read or written.
    LOC_PROT_ERR = 4, "local protection error";
    /// The queue pair entered the error state before the request was done.
    WR_FLUSH_ERR = 5, "work request flushed";
    /// A memory window could not be bound, or a key not be taken away.
    MW_BIND_ERR = 6, "memory window bind error";
    /// An unexpected response.
    BAD_RESP_ERR = 7, "bad response";
    /// A receive of a WRITE with immediate met memory that may not be accessed so.
    LOC_ACCESS_ERR = 8, "local access error";
    /// The responder found the request invalid. As the status of a receive: the message did not arrive whole.
    REM_INV_REQ_ERR = 9, "remote invalid request";
    /// The responder's memory may not be accessed so.
    REM_ACCESS_ERR = 10, "remote access error";
    /// The responder could not complete the request.
    REM_OP_ERR = 11, "remote operational error";
    /// The peer did not answer.
    RETRY_EXC_ERR = 12, "retry count exceeded";
    /// The peer had no receive buffer for too long.
    RNR_RETRY_EXC_ERR = 13, "RNR retry count exceeded";
    /// Wrong reliable datagram domain; reliable datagrams only.
    LOC_RDD_VIOL_ERR = 14, "local RDD violation";
    /// Invalid request; reliable datagrams only.
    REM_INV_RD_REQ_ERR = 15, "remote invalid RD request";
    /// The peer gave the operation up; reliable datagrams only.
    REM_ABORT_ERR = 16, "remote aborted";
    /// Invalid end-to-end context number; reliable datagrams only.
    INV_EECN_ERR = 17, "invalid EE context number";
    /// Invalid state of the end-to-end context; reliable datagrams only.
    INV_EEC_STATE_ERR = 18, "invalid EE context state";
    /// The device has failed.
    FATAL_ERR = 19, "fatal error";
    /// A response took too long.
    RESP_TIMEOUT_ERR = 20, "response timeout";
    /// Another failure.
    GENERAL_ERR = 21, "general error";
    /// Tag matching failed.
    TM_ERR = 22, "tag matching error";
    /// A rendezvous of tag matching has to be finished by software.
    TM_RNDV_INCOMPLETE = 23, "tag matching rendezvous incomplete";
}

impl WcStatus {
    /// Whether the request succeeded.
    pub const fn is_success(self) -> bool {
        self.0 == Self::SUCCESS.0
    }
}

impl fmt::Display for WcStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.pad(name),
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
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[doc(alias = "ibv_wc_opcode")]
pub struct WcOpcode(pub u32);

/// The constants with their names.
macro_rules! opcodes {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $sentence:literal;)*) => {
        impl WcOpcode {
            $($(#[$doc])* pub const $name: Self = Self($code);)*

            const fn name(self) -> Option<&'static str> {
                match self {
                    $(Self::$name => Some($sentence),)*
                    Self(_) => None,
                }
            }
        }
    };
}

opcodes! {
    /// A SEND, with immediate, with invalidate or plain.
    SEND = 0, "SEND";
    /// An RDMA WRITE, with or without immediate.
    RDMA_WRITE = 1, "RDMA WRITE";
    /// An RDMA READ.
    RDMA_READ = 2, "RDMA READ";
    /// A compare-and-swap.
    COMP_SWAP = 3, "compare-and-swap";
    /// A fetch-and-add.
    FETCH_ADD = 4, "fetch-and-add";
    /// A memory window was bound.
    BIND_MW = 5, "bind window";
    /// A local invalidate.
    LOCAL_INV = 6, "local invalidate";
    /// A received SEND, with immediate, with invalidate or plain.
    RECV = 128, "receive";
    /// A received RDMA WRITE with immediate: no bytes in the buffers.
    RECV_RDMA_WITH_IMM = 129, "receive of an RDMA WRITE with immediate";
}

impl fmt::Display for WcOpcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.pad(name),
            None => write!(f, "opcode {}", self.0),
        }
    }
}

impl fmt::Debug for WcOpcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WcOpcode({self})")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// The names and numbers of `enum ibv_wc_status` (rdma-core, libibverbs/verbs.h), in its order.
    #[test]
    fn every_status_of_the_verbs_has_its_number_and_a_name() {
        assert_eq!(WcStatus::ALL.len(), 24);
        for (number, status) in WcStatus::ALL.iter().enumerate() {
            assert_eq!(status.0 as usize, number);
            assert_eq!(status.is_success(), number == 0);
        }
        let names: HashSet<String> = WcStatus::ALL.iter().map(ToString::to_string).collect();
        assert_eq!(names.len(), 24);
        assert_eq!(WcStatus(99).to_string(), "status 99");
        assert_eq!(
            format!("{:?}", WcStatus::REM_OP_ERR),
            "WcStatus(remote operational error)"
        );
    }

    #[test]
    fn opcodes_print_their_operation() {
        assert_eq!(WcOpcode::FETCH_ADD.to_string(), "fetch-and-add");
        assert_eq!(format!("{:>8}|", WcOpcode::SEND), "    SEND|");
        assert_eq!(WcOpcode(7).to_string(), "opcode 7");
        assert_eq!(format!("{:?}", WcOpcode::RECV), "WcOpcode(receive)");
    }

    #[test]
    fn a_failure_is_always_solicited_and_has_a_reason() {
        let failure = Completion::failure(
            7,
            WcStatus::RETRY_EXC_ERR,
            WcOpcode::SEND,
            true,
            VendorError::ACK_TIMEOUTS,
        );
        assert!(failure.solicited);
        assert_eq!(failure.vendor_err, VendorError::ACK_TIMEOUTS);
        let success = Completion::success(7, WcOpcode::SEND, true, 1);
        assert!(!success.solicited);
        assert_eq!(success.vendor_err, VendorError::NONE);
    }
}
