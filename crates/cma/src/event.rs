//! What an identifier reports on its channel.

use crate::numbered::named_numbers;
use crate::{Id, McId};
use oarlock_wire::{AddressVector, Ece, QKey, Qpn, RetryCount};

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
    MULTICAST_JOIN = 12, "a multicast group was joined";
    MULTICAST_ERROR = 13, "a multicast group could not be joined";
    ADDR_CHANGE = 14, "the identifier's address has gone from its device, or the device has changed";
    TIMEWAIT_EXIT = 15, "no packet of the connection is left in the network";
    ADDRINFO_RESOLVED = 16, "a service was found; never raised here, as there is nobody to ask on RoCE";
    ADDRINFO_ERROR = 17, "a service was not found; never raised here";
    USER = 18, "injected by the user, who gives its meaning";
    INTERNAL = 19, "injected by the library for itself";
}

/// Private data as it was received: the whole field of the message.
///
/// The wire does not carry the length that the peer gave, so this is what it gave and zeros after it: 56 bytes in a
/// connection request, 196 in a response, 148 in a rejection; with UD 180 in a request and 136 in an answer of either kind.
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
/// private data.
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

/// What a datagram to the peer, or to a multicast group, is addressed with. Comes with ESTABLISHED and MULTICAST_JOIN of UD
/// identifiers. In a connection request and in an UNREACHABLE that answers one, queue pair and Q_Key are 0: the peer has
/// named none.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UdEventParam {
    /// The field that the message carried, or `None` if the event comes from no message.
    pub private_data: Option<ReceivedPrivateData>,
    /// The way to the peer or the group: what an address handle is made of. For a group the hop limit is 64, and the
    /// interface is named (`scope_id`) whatever the address.
    pub av: AddressVector,
    /// The place of the local address in the device's GID table.
    pub sgid_index: u8,
    /// The device's port.
    pub port_num: u8,
    /// The queue pair to send to; [`Qpn::MULTICAST`] for a group.
    pub qpn: Qpn,
    /// The Q_Key to send with.
    pub qkey: QKey,
}

/// What an event carries beside its kind and status.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum EventParam {
    /// Nothing.
    #[default]
    None,
    /// Connection parameters: connection requests, responses and rejections of connected identifiers.
    Conn(ConnEventParam),
    /// Of a UD identifier: connection requests, ESTABLISHED, UNREACHABLE that the peer said, MULTICAST_JOIN.
    Ud(UdEventParam),
    /// What was given with a USER or INTERNAL event.
    User(u64),
}

impl EventParam {
    /// The connection parameters, if there are any.
    #[must_use]
    pub const fn conn(&self) -> Option<&ConnEventParam> {
        match self {
            Self::Conn(param) => Some(param),
            Self::None | Self::Ud(_) | Self::User(_) => None,
        }
    }

    /// The datagram parameters, if there are any.
    #[must_use]
    pub const fn ud(&self) -> Option<&UdEventParam> {
        match self {
            Self::Ud(param) => Some(param),
            Self::None | Self::Conn(_) | Self::User(_) => None,
        }
    }

    /// The field that the message carried, if the event comes from one with private data.
    #[must_use]
    pub const fn private_data(&self) -> Option<&ReceivedPrivateData> {
        match self {
            Self::Conn(ConnEventParam { private_data, .. })
            | Self::Ud(UdEventParam { private_data, .. }) => private_data.as_ref(),
            Self::None | Self::User(_) => None,
        }
    }
}

/// Something that happened to an identifier.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    /// The identifier it happened to; in a connection request the new one.
    pub id: Id,
    /// In a connection request the listener, else `None`.
    pub listen_id: Option<Id>,
    /// The context of the identifier, in a connection request that of the listener, in a multicast event that of the join.
    pub context: u64,
    /// What happened.
    pub kind: EventKind,
    /// Zero; a negative error number; in REJECTED the positive reason of the REJ; in UNREACHABLE of a UD identifier, if the
    /// peer answered, the positive status of the SIDR_REP; in USER and INTERNAL what was given.
    pub status: i32,
    /// What comes with it.
    pub param: EventParam,
    /// The peer's enhanced connection establishment data in a connection request, a response and a UD answer; else none.
    pub ece: Ece,
    /// The join that a multicast event is about.
    pub multicast: Option<McId>,
}

impl Event {
    /// The identifier on whose account the event is queued and counted: in a connection request the listener.
    #[must_use]
    pub fn owner(&self) -> Id {
        self.listen_id.unwrap_or(self.id)
    }
}
