//! What a caller gives: connection parameters, options, queue pair types.

use oarlock_cm::StateName;
use oarlock_wire::{Ece, QKey, Qpn, RetryCount};
use std::fmt;
use std::time::Duration;

/// Parameters of `connect` and `accept`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConnectParam {
    /// The local queue pair.
    pub qpn: Qpn,
    /// RDMA reads and atomics of the peer that the local queue pair answers at a time.
    pub responder_resources: u8,
    /// RDMA reads and atomics that the local queue pair has outstanding.
    pub initiator_depth: u8,
    /// Whether the receive queue is flow controlled end to end.
    pub flow_control: bool,
    /// How often a packet is retransmitted; of no meaning in `accept`, where the request's counts.
    pub retry_count: RetryCount,
    /// How often to try again when the peer's receive queue is empty; 7 is without end.
    pub rnr_retry_count: RetryCount,
    /// Whether the local queue pair has a shared receive queue.
    pub srq: bool,
    /// The Q_Key of the local queue pair, for UD; 0 stands for the identifier's own, which is [`QKey::RDMA_UDP`] unless one
    /// was given before. In `accept` it is what the peer is told, in `connect` what the peer's answer must name too.
    /// Connected queue pairs have none: it must be 0.
    pub qkey: QKey,
    /// Enhanced connection establishment data for the peer. Not in a UD `connect`, whose message has no place for it.
    pub ece: Ece,
    /// Data for the peer's user: at most [`PRIVATE_DATA_CONNECT`] bytes in `connect`, [`PRIVATE_DATA_ACCEPT`] in
    /// `accept`; for UD [`PRIVATE_DATA_UD_CONNECT`] and [`PRIVATE_DATA_UD_ACCEPT`]. Shorter data is padded with zeros.
    pub private_data: Vec<u8>,
}

impl Default for ConnectParam {
    /// Queue pair 0, no reads or atomics, 7 retries of both kinds, the usual Q_Key, no private data.
    fn default() -> Self {
        Self {
            qpn: Qpn::default(),
            responder_resources: 0,
            initiator_depth: 0,
            flow_control: false,
            retry_count: RetryCount::MAX,
            rnr_retry_count: RetryCount::MAX,
            srq: false,
            qkey: QKey(0),
            ece: Ece::default(),
            private_data: Vec::new(),
        }
    }
}

/// Bytes of private data in a connection request (92 in a REQ, of which the IP CM header takes 36).
pub const PRIVATE_DATA_CONNECT: usize = 56;
/// Bytes of private data in an acceptance (REP).
pub const PRIVATE_DATA_ACCEPT: usize = 196;
/// Bytes of private data in a rejection (REJ).
pub const PRIVATE_DATA_REJECT: usize = 148;
/// Bytes of private data in a connection request of a UD identifier (216 in a SIDR_REQ, of which the IP CM header takes 36).
pub const PRIVATE_DATA_UD_CONNECT: usize = 180;
/// Bytes of private data in the answer to one, acceptance and rejection alike (SIDR_REP).
pub const PRIVATE_DATA_UD_ACCEPT: usize = 136;

/// An option of an identifier. A kernel has the first four.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum IdOption {
    /// The type of service of the path, used by `resolve_addr` (route lookup) and `resolve_route` (traffic class).
    TypeOfService(u8),
    /// Whether the port may be shared with other identifiers that allow it too.
    ReuseAddr(bool),
    /// Whether an address stands for its own family only.
    AfOnly(bool),
    /// The queue pair's timeout, 4.096 µs × 2^n, 5 bits. Given before `resolve_route` it changes the packet life time too.
    AckTimeout(u8),
    /// The RNR timer that the local queue pair asks of its peer, a 5-bit code.
    MinRnrTimer(u8),
    /// How long the peer's connection manager may take for an answer before the request is sent again, 4.096 µs × 2^n,
    /// 5 bits.
    CmResponseTimeout(u8),
    /// How often a message of the connection manager is sent again, 4 bits.
    MaxCmRetries(u8),
    /// How long `connect` may take altogether.
    ConnectDeadline(Option<Duration>),
}

/// A queue pair type, with the numbers of `enum ibv_qp_type`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct QpType(pub u8);

impl QpType {
    /// Reliable connected.
    pub const RC: Self = Self(2);
    /// Unreliable connected.
    pub const UC: Self = Self(3);
    /// Unreliable datagram.
    pub const UD: Self = Self(4);
    /// The sending side of XRC, which connects to [`XRC_RECV`](Self::XRC_RECV).
    pub const XRC_SEND: Self = Self(9);
    /// The receiving side of XRC.
    pub const XRC_RECV: Self = Self(10);
}

impl fmt::Display for QpType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::RC => f.write_str("RC"),
            Self::UC => f.write_str("UC"),
            Self::UD => f.write_str("UD"),
            Self::XRC_SEND => f.write_str("XRC_SEND"),
            Self::XRC_RECV => f.write_str("XRC_RECV"),
            Self(other) => write!(f, "QP type {other}"),
        }
    }
}

/// An asynchronous event of the queue pair that the caller passes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// The first packet arrived on a queue pair that is not established yet.
    CommEst,
    /// The queue pair moved to its alternate path. Without one the call changes nothing, as in the kernel.
    PathMig,
}

/// What `disconnect` did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Disconnect {
    /// A DREQ is on its way; DISCONNECTED follows.
    Requested,
    /// The peer's DREQ was answered.
    Replied,
    /// The connection was not up yet: the peer got a REJ. DISCONNECTED is queued, unless this is a request that was not
    /// accepted.
    ///
    /// Deviation: the kernel does nothing, and the program waits for an end that never comes.
    Withdrawn,
    /// There was nothing to take down in this IB CM state. The kernel's ABI reports success here too, so that a second
    /// disconnect is harmless.
    Nothing {
        /// The IB CM's state.
        cm_state: StateName,
    },
}
