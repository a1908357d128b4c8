//! What is given to `connect` and `accept`, and what a connection event says about the peer's wishes.

use oarlock_wire::{Ece, Qpn, RetryCount};

/// Private data of a REQ that is left to an application in port space TCP, after the 36-byte IP CM header.
pub const MAX_CONNECT_PRIVATE_DATA: usize = 56;
/// Private data of a REP.
pub const MAX_ACCEPT_PRIVATE_DATA: usize = 196;
/// Private data of a SIDR_REQ that is left to an application in port spaces UDP and IPOIB, after the 36-byte IP CM header.
pub const MAX_DATAGRAM_CONNECT_PRIVATE_DATA: usize = 180;
/// Private data of a SIDR_REP, which accepts or refuses.
pub const MAX_DATAGRAM_REPLY_PRIVATE_DATA: usize = 136;
/// Private data of a REJ.
pub const MAX_REJECT_PRIVATE_DATA: usize = 148;

/// Parameters of [`connect`](crate::Identifier::connect) and [`accept`](crate::Identifier::accept).
///
/// The default asks for what the device can do (`None`: the device's maximum; on accept also not more than the request
/// offers), retries seven times, and carries no private data.
///
/// ```
/// use oarlock_rdmacm::ConnParam;
/// let param = ConnParam::default().responder_resources(4).initiator_depth(1).private_data(b"hello");
/// assert_eq!(param.private_data, b"hello");
/// ```
#[doc(alias = "rdma_conn_param")]
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnParam {
    /// Outstanding RDMA reads and atomics accepted from the peer, 0..=255; `None`: as many as the device can.
    pub responder_resources: Option<u8>,
    /// Outstanding RDMA reads and atomics this side will have at the peer, 0..=255; `None`: as many as the device can.
    pub initiator_depth: Option<u8>,
    /// Whether end-to-end flow control (credits) is announced to the peer, which may make use of it or not. The device itself
    /// gives credits whenever its queue pair has receives of its own, and honours those of any peer, whatever was
    /// announced (IBA Vol. 1 ch. 9, end-to-end flow control: a responder's choice in each acknowledgement).
    pub flow_control: bool,
    /// How often an unacknowledged packet is sent again; travels in the REQ only (ignored by `accept`).
    pub retry_count: RetryCount,
    /// How often a request refused for want of a receive buffer is sent again; 7 means for ever.
    pub rnr_retry_count: RetryCount,
    /// Enhanced connection establishment: a vendor's options, of which the two sides agree on those that both know. None
    /// unless set, and none in a `connect` for datagrams, whose message has no place for it.
    #[doc(alias = "ibv_ece")]
    pub ece: Ece,
    /// Copied into the REQ or REP.
    pub private_data: Vec<u8>,
    /// A queue pair that the caller moves through its states, for identifiers without one of their own.
    pub external_queue_pair: Option<ExternalQueuePair>,
}

/// A queue pair that is not the identifier's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExternalQueuePair {
    /// Its number, sent to the peer.
    pub qpn: Qpn,
    /// Whether it receives from a shared receive queue.
    pub srq: bool,
}

impl Default for ConnParam {
    fn default() -> Self {
        let seven = RetryCount::new(7).expect("7 fits three bits");
        Self {
            responder_resources: None,
            initiator_depth: None,
            flow_control: false,
            retry_count: seven,
            rnr_retry_count: seven,
            ece: Ece::default(),
            private_data: Vec::new(),
            external_queue_pair: None,
        }
    }
}

impl ConnParam {
    /// Sets [`responder_resources`](Self::responder_resources).
    #[must_use]
    pub fn responder_resources(mut self, count: u8) -> Self {
        self.responder_resources = Some(count);
        self
    }

    /// Sets [`initiator_depth`](Self::initiator_depth).
    #[must_use]
    pub fn initiator_depth(mut self, count: u8) -> Self {
        self.initiator_depth = Some(count);
        self
    }

    /// Sets [`flow_control`](Self::flow_control).
    #[must_use]
    pub fn flow_control(mut self, offered: bool) -> Self {
        self.flow_control = offered;
        self
    }

    /// Sets [`retry_count`](Self::retry_count).
    #[must_use]
    pub fn retry_count(mut self, count: RetryCount) -> Self {
        self.retry_count = count;
        self
    }

    /// Sets [`rnr_retry_count`](Self::rnr_retry_count).
    #[must_use]
    pub fn rnr_retry_count(mut self, count: RetryCount) -> Self {
        self.rnr_retry_count = count;
        self
    }

    /// Sets [`ece`](Self::ece).
    #[doc(alias = "rdma_set_local_ece")]
    #[must_use]
    pub fn ece(mut self, ece: Ece) -> Self {
        self.ece = ece;
        self
    }

    /// Sets [`private_data`](Self::private_data); the limits are [`MAX_CONNECT_PRIVATE_DATA`] and
    /// [`MAX_ACCEPT_PRIVATE_DATA`], with datagrams [`MAX_DATAGRAM_CONNECT_PRIVATE_DATA`] and
    /// [`MAX_DATAGRAM_REPLY_PRIVATE_DATA`].
    #[must_use]
    pub fn private_data(mut self, data: impl Into<Vec<u8>>) -> Self {
        self.private_data = data.into();
        self
    }

    /// Sets [`external_queue_pair`](Self::external_queue_pair).
    #[must_use]
    pub fn external_queue_pair(mut self, qpn: Qpn, srq: bool) -> Self {
        self.external_queue_pair = Some(ExternalQueuePair { qpn, srq });
        self
    }
}

/// What a request or reply of the peer says, in this side's view: `responder_resources` is what we are asked to hold for
/// the peer's reads (its initiator depth), `initiator_depth` what it holds for ours.
#[doc(alias = "rdma_conn_param")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerParam {
    /// Reads and atomics the peer will have outstanding here.
    pub responder_resources: u8,
    /// Reads and atomics we may have outstanding there.
    pub initiator_depth: u8,
    /// Whether the peer offers end-to-end flow control.
    pub flow_control: bool,
    /// Reported in a connection request only, else zero.
    pub retry_count: RetryCount,
    /// How often we shall retry after a receiver-not-ready answer.
    pub rnr_retry_count: RetryCount,
    /// Whether the peer's queue pair uses a shared receive queue.
    pub srq: bool,
    /// The peer's queue pair number.
    pub qpn: Qpn,
}

/// Private data as it was received: the whole field of the message. What the peer wrote stands at the beginning; how much
/// that was is not sent, so the rest is zeros (R-PAR-1). A message without private data has none (`Option::None`).
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct PaddedData(Box<[u8]>);

impl PaddedData {
    /// None for an empty field.
    pub(crate) fn from_field(field: &[u8]) -> Option<Self> {
        (!field.is_empty()).then(|| Self(field.into()))
    }

    /// The whole field, zeros included.
    #[must_use]
    pub fn as_padded(&self) -> &[u8] {
        &self.0
    }

    /// Whether the peer's data is `data`: the field begins with it and the rest is zero.
    #[must_use]
    pub fn is_padded_from(&self, data: &[u8]) -> bool {
        self.0
            .strip_prefix(data)
            .is_some_and(|rest| rest.iter().all(|&byte| byte == 0))
    }
}

impl std::fmt::Debug for PaddedData {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let used = self
            .0
            .iter()
            .rposition(|&byte| byte != 0)
            .map_or(0, |last| last + 1);
        write!(
            f,
            "PaddedData({:?} of {} bytes)",
            self.0[..used].escape_ascii().to_string(),
            self.0.len()
        )
    }
}
