//! What an identifier reports on its channel.

use crate::Id;
use crate::numbered::named_numbers;
use oarlock_wire::{Qpn, RetryCount};

/// The kind of an event, with the numbers of `enum rdma_cm_event_type` (Linux `include/rdma/rdma_cm.h`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct EventKind(pub u32);

named_numbers! {
    EventKind, "Event", "event":
    ADDR_RESOLVED = 0, "the peer's address, the source and the device are known";
    ADDR_ERROR = 1, "address resolution failed; it may be tried again";
    ROUTE_RESOLVED = 2, "the path is known";
    ROUTE_ERROR = 3, "route resolution failed";
    CONNECT_REQUEST = 4, "a REQ arrived for a listener";
    CONNECT_RESPONSE = 5, "a REP arrived, and `establish` is to follow";
    CONNECT_ERROR = 6, "the connection could not be brought up locally";
    UNREACHABLE = 7, "the peer does not answer";
    REJECTED = 8, "a REJ arrived; the status is its reason";
    ESTABLISHED = 9, "the connection is up";
    DISCONNECTED = 10, "the connection is down";
    DEVICE_REMOVAL = 11, "the identifier's device has gone";
    TIMEWAIT_EXIT = 15, "no packet of the connection is left in the network";
}

/// Private data as it was received: the whole field of the message.
///
/// The wire does not carry the length that the peer gave, so this is what it gave and zeros after it: 56 bytes in a
/// connection request, 196 in a response, 148 in a rejection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReceivedPrivateData(Box<[u8]>);

impl ReceivedPrivateData {
    pub(crate) fn new(field: &[u8]) -> Self {
        Self(field.into())
    }

    /// The whole field, zero padded.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl AsRef<[u8]> for ReceivedPrivateData {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// Connection parameters in an event, in the view of the identifier that gets it.
///
/// Which events carry which: a connection request all of them; a response all but `retry_count`; a rejection the
/// private data. Everywhere else they are zero, and the private data is `None`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ConnEventParam {
    /// The field that the message carried, or `None` if the event comes from no message with one.
    pub private_data: Option<ReceivedPrivateData>,
    /// RDMA reads and atomics that the peer wants to have outstanding (its `initiator_depth`), at most what the local
    /// device can answer.
    pub responder_resources: u8,
    /// RDMA reads and atomics that the peer can answer (its `responder_resources`), at most what the local device can
    /// have outstanding.
    pub initiator_depth: u8,
    /// Whether the peer does end-to-end flow control.
    pub flow_control: bool,
    /// How often the peer retransmits; in a connection request only.
    pub retry_count: RetryCount,
    /// How often to try again when the peer's receive queue is empty.
    pub rnr_retry_count: RetryCount,
    /// Whether the peer's queue pair has a shared receive queue.
    pub srq: bool,
    /// The peer's queue pair.
    pub qpn: Qpn,
}

/// Something that happened to an identifier.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    /// The identifier it happened to; in a connection request the new one.
    pub id: Id,
    /// In a connection request the listener, else `None`.
    pub listen_id: Option<Id>,
    /// The context of the identifier, in a connection request that of the listener.
    pub context: u64,
    /// What happened.
    pub kind: EventKind,
    /// Zero, a negative error number, or, in a rejection, the positive reason of the REJ.
    pub status: i32,
    /// Connection parameters.
    pub param: ConnEventParam,
}

impl Event {
    /// The identifier on whose account the event is queued and counted: in a connection request the listener.
    #[must_use]
    pub fn owner(&self) -> Id {
        self.listen_id.unwrap_or(self.id)
    }
}
