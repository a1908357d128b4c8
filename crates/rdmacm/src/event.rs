//! What an event channel reports.

use crate::channel::Channel;
use crate::command;
use crate::error::Error;
use crate::identifier::{Identifier, Shared};
use crate::param::{PaddedData, PeerParam};
use oarlock_wire::RejReason;
use std::fmt;
use std::sync::Arc;
use std::thread::ThreadId;

/// One event of one identifier, with its data.
///
/// Every event is acknowledged exactly once: by [`ack`](Self::ack), or when it is dropped. An event taken apart by a
/// pattern is acknowledged when its [`Receipt`] is dropped, which stays behind in the value that was matched. Until then
/// [`migrate`](Identifier::migrate) and [`close`](Identifier::close) of the identifier wait; what the event refers to
/// (identifiers, data) stays valid as long as anyone holds it, also after the acknowledgement.
#[doc(alias = "rdma_cm_event")]
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// The destination is reachable through a device; follows `resolve_addr`.
    #[non_exhaustive]
    AddressResolved {
        /// The identifier.
        id: Identifier,
        /// Acknowledges when dropped.
        receipt: Receipt,
    },
    /// The destination is not reachable; `resolve_addr` may be tried again.
    #[non_exhaustive]
    AddressError {
        /// The identifier.
        id: Identifier,
        /// Negative errno.
        status: i32,
        /// Acknowledges when dropped.
        receipt: Receipt,
    },
    /// The path is known; follows `resolve_route`.
    #[non_exhaustive]
    RouteResolved {
        /// The identifier.
        id: Identifier,
        /// Acknowledges when dropped.
        receipt: Receipt,
    },
    /// No path.
    #[non_exhaustive]
    RouteError {
        /// The identifier.
        id: Identifier,
        /// Negative errno.
        status: i32,
        /// Acknowledges when dropped.
        receipt: Receipt,
    },
    /// A peer wants to connect to a listening identifier.
    #[non_exhaustive]
    ConnectRequest {
        /// The new connection's identifier, on the channel of its listener. Dropping it rejects the request.
        id: Identifier,
        /// The identifier that listens.
        listen_id: Identifier,
        /// What the peer asks for, in our view.
        params: PeerParam,
        /// The private data of the request.
        private_data: Option<PaddedData>,
        /// Acknowledges when dropped (it counts for the listening identifier).
        receipt: Receipt,
    },
    /// The peer accepted, and the identifier has no queue pair of its own: bring yours to RTS, then call
    /// [`establish`](Identifier::establish).
    #[non_exhaustive]
    ConnectResponse {
        /// The identifier.
        id: Identifier,
        /// What the peer accepted, in our view.
        params: PeerParam,
        /// The private data of the reply.
        private_data: Option<PaddedData>,
        /// Acknowledges when dropped.
        receipt: Receipt,
    },
    /// Establishing failed on this side.
    #[non_exhaustive]
    ConnectError {
        /// The identifier.
        id: Identifier,
        /// Negative errno.
        status: i32,
        /// What failed, where this library knows.
        sentence: Option<String>,
        /// Acknowledges when dropped.
        receipt: Receipt,
    },
    /// The peer did not answer.
    #[non_exhaustive]
    Unreachable {
        /// The identifier.
        id: Identifier,
        /// Negative errno.
        status: i32,
        /// Acknowledges when dropped.
        receipt: Receipt,
    },
    /// The peer refused. The queue pair is in state Error.
    #[non_exhaustive]
    Rejected {
        /// The identifier.
        id: Identifier,
        /// Why.
        reason: RejReason,
        /// The private data of the refusal.
        private_data: Option<PaddedData>,
        /// Acknowledges when dropped.
        receipt: Receipt,
    },
    /// Connected; the queue pair is in state RTS.
    #[non_exhaustive]
    Established {
        /// The identifier.
        id: Identifier,
        /// What the peer's reply says, in our view (active side only).
        params: Option<PeerParam>,
        /// The private data of the peer's reply (active side only).
        private_data: Option<PaddedData>,
        /// Acknowledges when dropped.
        receipt: Receipt,
    },
    /// The connection is over, by either side; call [`disconnect`](Identifier::disconnect) to stop the queue pair.
    #[non_exhaustive]
    Disconnected {
        /// The identifier.
        id: Identifier,
        /// 0, or the negative errno of a peer that did not answer.
        status: i32,
        /// Acknowledges when dropped.
        receipt: Receipt,
    },
    /// The device is gone; destroy the identifier.
    #[non_exhaustive]
    DeviceRemoval {
        /// The identifier.
        id: Identifier,
        /// Acknowledges when dropped.
        receipt: Receipt,
    },
    /// The address of the network interface changed; the connection may be lost.
    #[non_exhaustive]
    AddressChange {
        /// The identifier.
        id: Identifier,
        /// Acknowledges when dropped.
        receipt: Receipt,
    },
    /// The connection's queue pair number may be used again.
    #[non_exhaustive]
    TimewaitExit {
        /// The identifier.
        id: Identifier,
        /// Acknowledges when dropped.
        receipt: Receipt,
    },
    /// An event this version does not know.
    #[non_exhaustive]
    Other {
        /// The identifier.
        id: Identifier,
        /// Its number.
        number: u32,
        /// Its status.
        status: i32,
        /// Acknowledges when dropped.
        receipt: Receipt,
    },
}

impl Event {
    /// The identifier the event is about: of a connection request, the new one.
    #[must_use]
    pub fn id(&self) -> &Identifier {
        match self {
            Self::AddressResolved { id, .. }
            | Self::AddressError { id, .. }
            | Self::RouteResolved { id, .. }
            | Self::RouteError { id, .. }
            | Self::ConnectRequest { id, .. }
            | Self::ConnectResponse { id, .. }
            | Self::ConnectError { id, .. }
            | Self::Unreachable { id, .. }
            | Self::Rejected { id, .. }
            | Self::Established { id, .. }
            | Self::Disconnected { id, .. }
            | Self::DeviceRemoval { id, .. }
            | Self::AddressChange { id, .. }
            | Self::TimewaitExit { id, .. }
            | Self::Other { id, .. } => id,
        }
    }

    /// The listening identifier of a connection request.
    #[must_use]
    pub fn listen_id(&self) -> Option<&Identifier> {
        match self {
            Self::ConnectRequest { listen_id, .. } => Some(listen_id),
            _ => None,
        }
    }

    /// Acknowledges the event, as dropping it does.
    #[doc(alias = "rdma_ack_cm_event")]
    pub fn ack(self) {}

    /// Takes the event off the account of the thread that fetched it; call it before the event goes to another thread,
    /// which will acknowledge it.
    ///
    /// `migrate` and `close` refuse to wait for an event that their own thread holds, and cannot see where it went.
    #[must_use]
    pub fn handed_over(mut self) -> Self {
        self.receipt_mut().hand_over();
        self
    }

    /// The event's name in the RDMA CM, as `rdma_event_str(3)` prints it.
    #[doc(alias = "rdma_event_str")]
    #[must_use]
    pub fn name(&self) -> &'static str {
        command::event_name(self.number())
    }

    /// The event's number in the RDMA CM (Linux `include/uapi/rdma/rdma_user_cm.h`, `enum rdma_cm_event_type`).
    #[doc(alias = "rdma_cm_event_type")]
    #[must_use]
    pub fn number(&self) -> u32 {
        match self {
            Self::AddressResolved { .. } => command::ADDR_RESOLVED,
            Self::AddressError { .. } => command::ADDR_ERROR,
            Self::RouteResolved { .. } => command::ROUTE_RESOLVED,
            Self::RouteError { .. } => command::ROUTE_ERROR,
            Self::ConnectRequest { .. } => command::CONNECT_REQUEST,
            Self::ConnectResponse { .. } => command::CONNECT_RESPONSE,
            Self::ConnectError { .. } => command::CONNECT_ERROR,
            Self::Unreachable { .. } => command::UNREACHABLE,
            Self::Rejected { .. } => command::REJECTED,
            Self::Established { .. } => command::ESTABLISHED,
            Self::Disconnected { .. } => command::DISCONNECTED,
            Self::DeviceRemoval { .. } => command::DEVICE_REMOVAL,
            Self::AddressChange { .. } => command::ADDR_CHANGE,
            Self::TimewaitExit { .. } => command::TIMEWAIT_EXIT,
            Self::Other { number, .. } => *number,
        }
    }

    /// The asynchronous result as the C library reports it: 0, a negative errno, or the reason of a REJ (positive).
    #[must_use]
    pub fn status(&self) -> i32 {
        match self {
            Self::AddressError { status, .. }
            | Self::RouteError { status, .. }
            | Self::ConnectError { status, .. }
            | Self::Unreachable { status, .. }
            | Self::Disconnected { status, .. }
            | Self::Other { status, .. } => *status,
            Self::Rejected { reason, .. } => i32::from(reason.0),
            _ => 0,
        }
    }

    /// The error that a synchronous call would end with, for events that tell of a failure.
    #[must_use]
    pub fn error(&self) -> Option<Error> {
        match self {
            Self::AddressError { id, status, .. } => Some(Error::AddressResolution {
                destination: id.0.peer(),
                status: *status,
            }),
            Self::RouteError { id, status, .. } => Some(Error::RouteResolution {
                destination: id.0.peer(),
                status: *status,
            }),
            Self::Unreachable { id, status, .. } => Some(Error::Unreachable {
                peer: id.0.peer(),
                status: *status,
            }),
            Self::Rejected {
                id,
                reason,
                private_data,
                ..
            } => Some(Error::Rejected {
                peer: id.0.peer(),
                reason: *reason,
                private_data: private_data.clone(),
            }),
            Self::ConnectError {
                id,
                status,
                sentence,
                ..
            } => Some(Error::ConnectFailed {
                peer: id.0.peer(),
                status: *status,
                sentence: sentence.clone(),
            }),
            _ => None,
        }
    }

    pub(crate) fn receipt_mut(&mut self) -> &mut Receipt {
        match self {
            Self::AddressResolved { receipt, .. }
            | Self::AddressError { receipt, .. }
            | Self::RouteResolved { receipt, .. }
            | Self::RouteError { receipt, .. }
            | Self::ConnectRequest { receipt, .. }
            | Self::ConnectResponse { receipt, .. }
            | Self::ConnectError { receipt, .. }
            | Self::Unreachable { receipt, .. }
            | Self::Rejected { receipt, .. }
            | Self::Established { receipt, .. }
            | Self::Disconnected { receipt, .. }
            | Self::DeviceRemoval { receipt, .. }
            | Self::AddressChange { receipt, .. }
            | Self::TimewaitExit { receipt, .. }
            | Self::Other { receipt, .. } => receipt,
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, status {}", self.name(), self.status())
    }
}

/// The acknowledgement still owed for an event; it is given when this is dropped.
pub struct Receipt {
    /// The identifier whose count it is: of a connection request, the listener's.
    owner: Arc<Shared>,
    /// Where it was fetched.
    channel: Arc<Channel>,
    fetched_by: Option<ThreadId>,
    /// The event's name, for whoever waits for it.
    name: &'static str,
}

impl Receipt {
    /// For an event fetched by the calling thread.
    pub(crate) fn new(owner: Arc<Shared>, channel: Arc<Channel>, name: &'static str) -> Self {
        let thread = std::thread::current().id();
        owner.ledger.fetched(thread, name);
        Self {
            owner,
            channel,
            fetched_by: Some(thread),
            name,
        }
    }

    /// The calling thread has the event now.
    #[cfg(feature = "tokio")]
    pub(crate) fn take_over(&mut self) {
        let thread = std::thread::current().id();
        if self.fetched_by != Some(thread) {
            self.owner
                .ledger
                .taken_over(self.fetched_by, thread, self.name);
            self.fetched_by = Some(thread);
        }
    }

    /// The identifier whose count it is.
    #[cfg(feature = "tokio")]
    pub(crate) fn owner(&self) -> &Arc<Shared> {
        &self.owner
    }

    /// See [`Event::handed_over`].
    pub fn hand_over(&mut self) {
        if let Some(thread) = self.fetched_by.take() {
            self.owner.ledger.handed_over(thread, self.name);
        }
    }
}

impl Drop for Receipt {
    fn drop(&mut self) {
        let total = self
            .owner
            .ledger
            .acknowledge(self.channel.serial, self.fetched_by, self.name);
        self.channel.note_acknowledged(self.owner.number.0, total);
    }
}

impl fmt::Debug for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Receipt")
    }
}
