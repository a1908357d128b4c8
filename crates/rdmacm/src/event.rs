//! What an event channel reports.

use crate::channel::Channel;
use crate::command;
use crate::datagram::UdParam;
use crate::error::Error;
use crate::identifier::{Identifier, Shared};
use crate::ledger::Ledger;
use crate::multicast::{ACCOUNT, Membership, Multicast};
use crate::param::{PaddedData, PeerParam};
use oarlock_wire::{RejReason, SidrStatus};
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
        /// What the peer asks for, in our view (connections only).
        params: Option<PeerParam>,
        /// Where the peer is (datagrams only); it has named no queue pair.
        ud: Option<UdParam>,
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
    /// The peer did not answer, or, with datagrams, has no service for us.
    #[non_exhaustive]
    Unreachable {
        /// The identifier.
        id: Identifier,
        /// Negative errno; positive: the status of the peer's SIDR_REP ([`SidrStatus`]).
        status: i32,
        /// The private data of the SIDR_REP (datagrams only).
        private_data: Option<PaddedData>,
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
    /// Connected; the queue pair is in state RTS. With datagrams: the peer has answered (active side only; a passive side
    /// hears nothing after it has accepted).
    #[non_exhaustive]
    Established {
        /// The identifier.
        id: Identifier,
        /// What the peer's reply says, in our view (active side of a connection only).
        params: Option<PeerParam>,
        /// How the peer is reached (datagrams only).
        ud: Option<UdParam>,
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
    /// A multicast group was joined; follows `join_multicast`.
    #[non_exhaustive]
    MulticastJoin {
        /// The identifier.
        id: Identifier,
        /// The membership.
        multicast: Multicast,
        /// How the group is reached.
        ud: UdParam,
        /// Acknowledges when dropped (it counts for the membership and for the identifier).
        receipt: Receipt,
    },
    /// A multicast group was not joined, or is lost; leave it.
    #[non_exhaustive]
    MulticastError {
        /// The identifier.
        id: Identifier,
        /// The membership.
        multicast: Multicast,
        /// Negative errno.
        status: i32,
        /// What failed, where this library knows.
        sentence: Option<String>,
        /// Acknowledges when dropped (it counts for the membership and for the identifier).
        receipt: Receipt,
    },
    /// The program has injected this, see [`inject`](Identifier::inject).
    #[non_exhaustive]
    User {
        /// The identifier it was injected for.
        id: Identifier,
        /// As injected.
        status: i32,
        /// As injected.
        value: u64,
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
            | Self::MulticastJoin { id, .. }
            | Self::MulticastError { id, .. }
            | Self::User { id, .. }
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
            Self::MulticastJoin { .. } => command::MULTICAST_JOIN,
            Self::MulticastError { .. } => command::MULTICAST_ERROR,
            Self::User { .. } => command::USER,
            Self::Other { number, .. } => *number,
        }
    }

    /// The asynchronous result as the C library reports it: 0, a negative errno, or (positive) the reason of a REJ or the
    /// status of a SIDR_REP.
    #[must_use]
    pub fn status(&self) -> i32 {
        match self {
            Self::AddressError { status, .. }
            | Self::RouteError { status, .. }
            | Self::ConnectError { status, .. }
            | Self::Unreachable { status, .. }
            | Self::Disconnected { status, .. }
            | Self::MulticastError { status, .. }
            | Self::User { status, .. }
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
            Self::Unreachable {
                id,
                status,
                private_data,
                ..
            } => Some(match u8::try_from(*status) {
                Ok(status) => Error::ServiceRefused {
                    peer: id.0.peer(),
                    status: SidrStatus(status),
                    private_data: private_data.clone(),
                },
                Err(_) => Error::Unreachable {
                    peer: id.0.peer(),
                    status: *status,
                },
            }),
            Self::MulticastError {
                multicast,
                status,
                sentence,
                ..
            } => Some(Error::JoinFailed {
                group: multicast.group().ip(),
                status: *status,
                sentence: sentence.clone(),
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
            | Self::MulticastJoin { receipt, .. }
            | Self::MulticastError { receipt, .. }
            | Self::User { receipt, .. }
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
    /// The membership that counts it, too.
    membership: Option<Arc<Membership>>,
    /// Where it was fetched.
    channel: Arc<Channel>,
    fetched_by: Option<ThreadId>,
    /// The event's name, for whoever waits for it.
    name: &'static str,
}

impl Receipt {
    /// For an event fetched by the calling thread.
    pub(crate) fn new(
        owner: Arc<Shared>,
        membership: Option<Arc<Membership>>,
        channel: Arc<Channel>,
        name: &'static str,
    ) -> Self {
        let thread = std::thread::current().id();
        owner.ledger.fetched(thread, name);
        if let Some(membership) = &membership {
            membership.ledger.fetched(thread, name);
        }
        Self {
            owner,
            membership,
            channel,
            fetched_by: Some(thread),
            name,
        }
    }

    /// The calling thread has the event now.
    #[cfg(feature = "tokio")]
    pub(crate) fn take_over(&mut self) {
        self.pass_to(Some(std::thread::current().id()));
    }

    /// The identifier whose count it is.
    #[cfg(feature = "tokio")]
    pub(crate) fn owner(&self) -> &Arc<Shared> {
        &self.owner
    }

    /// See [`Event::handed_over`].
    pub fn hand_over(&mut self) {
        self.pass_to(None);
    }

    fn pass_to(&mut self, holder: Option<ThreadId>) {
        let from = std::mem::replace(&mut self.fetched_by, holder);
        for ledger in self.ledgers() {
            ledger.pass(from, holder, self.name);
        }
    }

    fn ledgers(&self) -> impl Iterator<Item = &Ledger> {
        let membership = self.membership.iter().map(|membership| &membership.ledger);
        membership.chain([&self.owner.ledger])
    }
}

impl Drop for Receipt {
    fn drop(&mut self) {
        if let Some(membership) = &self.membership {
            membership
                .ledger
                .acknowledge(ACCOUNT, self.fetched_by, self.name);
        }
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
