//! What the caller is told.

use oarlock_wire::cm::{Apr, Lap, Mra, PrivateData, Rej, Rep, Req, SidrRep, SidrReq};
use oarlock_wire::mad::MAD_LEN;
use oarlock_wire::units::AddressVector;

use crate::{ConnId, ListenerId};

/// Something happened to a connection. After [`destroy`](crate::Cm::destroy) there are no events for its id, not even
/// ones that were queued before.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Event {
    /// A peer asks for a connection. `id` is new; it waits for [`accept`](crate::Cm::accept),
    /// [`reject`](crate::Cm::reject) or [`drop_request`](crate::Cm::drop_request).
    ReqReceived {
        /// The new connection.
        id: ConnId,
        /// Who listens on the service ID.
        listener: ListenerId,
        /// Where the REQ came from. The data path is in [`Req::primary`], seen from the peer's side.
        av: AddressVector,
        /// The whole message.
        req: Box<Req>,
    },
    /// The peer accepted; [`establish`](crate::Cm::establish) completes the connection.
    RepReceived {
        /// The connection.
        id: ConnId,
        /// The whole message.
        rep: Box<Rep>,
    },
    /// The active side is ready to use the connection, which is now established.
    RtuReceived {
        /// The connection.
        id: ConnId,
        /// The whole private data field.
        private_data: PrivateData<224>,
    },
    /// [`notify_established`](crate::Cm::notify_established) established the connection before its RTU came.
    UserEstablished {
        /// The connection.
        id: ConnId,
    },
    /// The peer rejected.
    RejReceived {
        /// The connection.
        id: ConnId,
        /// The whole message.
        rej: Box<Rej>,
    },
    /// The peer asks for patience.
    MraReceived {
        /// The connection.
        id: ConnId,
        /// The whole message.
        mra: Box<Mra>,
    },
    /// The peer disconnects; [`reply_disconnect`](crate::Cm::reply_disconnect) answers.
    DreqReceived {
        /// The connection.
        id: ConnId,
        /// The whole private data field.
        private_data: PrivateData<220>,
    },
    /// The peer answered our DREQ.
    DrepReceived {
        /// The connection.
        id: ConnId,
        /// The whole private data field.
        private_data: PrivateData<224>,
    },
    /// Our REQ was never answered, or the deadline of the attempt passed.
    ReqError {
        /// The connection.
        id: ConnId,
    },
    /// Our REP was never answered.
    RepError {
        /// The connection.
        id: ConnId,
    },
    /// Our DREQ was never answered; the connection is gone all the same.
    DreqError {
        /// The connection.
        id: ConnId,
    },
    /// The time in TIMEWAIT is over; nothing of this connection is under way any more.
    TimewaitExit {
        /// The connection.
        id: ConnId,
    },
    /// A peer asks for a datagram service. `id` is new; it waits for [`sidr_reply`](crate::Cm::sidr_reply) or
    /// [`drop_request`](crate::Cm::drop_request).
    SidrReqReceived {
        /// The new resolution.
        id: ConnId,
        /// Who listens on the service ID.
        listener: ListenerId,
        /// Where the SIDR_REQ came from, and where the SIDR_REP goes.
        av: AddressVector,
        /// The whole message.
        req: Box<SidrReq>,
    },
    /// The peer answered our SIDR_REQ, whatever its status.
    SidrRepReceived {
        /// The resolution.
        id: ConnId,
        /// The whole message.
        rep: Box<SidrRep>,
    },
    /// Our SIDR_REQ was never answered, or the deadline passed.
    SidrReqError {
        /// The resolution.
        id: ConnId,
    },
    /// The peer wants to load an alternate path; [`answer_alternate_path`](crate::Cm::answer_alternate_path) answers.
    /// Whether the path leads to the peer is for the caller to decide: it may lead anywhere.
    LapReceived {
        /// The connection.
        id: ConnId,
        /// The whole message.
        lap: Box<Lap>,
    },
    /// The peer answered our LAP, whatever its status.
    AprReceived {
        /// The connection.
        id: ConnId,
        /// The whole message.
        apr: Box<Apr>,
    },
    /// Our LAP was never answered, or gave way to one of the peer's. The connection lives on without it.
    LapError {
        /// The connection.
        id: ConnId,
    },
}

impl Event {
    /// The connection that the event is about.
    #[must_use]
    pub const fn id(&self) -> ConnId {
        match self {
            Self::ReqReceived { id, .. }
            | Self::RepReceived { id, .. }
            | Self::RtuReceived { id, .. }
            | Self::UserEstablished { id }
            | Self::RejReceived { id, .. }
            | Self::MraReceived { id, .. }
            | Self::DreqReceived { id, .. }
            | Self::DrepReceived { id, .. }
            | Self::ReqError { id }
            | Self::RepError { id }
            | Self::DreqError { id }
            | Self::TimewaitExit { id }
            | Self::SidrReqReceived { id, .. }
            | Self::SidrRepReceived { id, .. }
            | Self::SidrReqError { id }
            | Self::LapReceived { id, .. }
            | Self::AprReceived { id, .. }
            | Self::LapError { id } => *id,
        }
    }

    /// The name of the event, as in the transition table: `RepReceived`.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::ReqReceived { .. } => "ReqReceived",
            Self::RepReceived { .. } => "RepReceived",
            Self::RtuReceived { .. } => "RtuReceived",
            Self::UserEstablished { .. } => "UserEstablished",
            Self::RejReceived { .. } => "RejReceived",
            Self::MraReceived { .. } => "MraReceived",
            Self::DreqReceived { .. } => "DreqReceived",
            Self::DrepReceived { .. } => "DrepReceived",
            Self::ReqError { .. } => "ReqError",
            Self::RepError { .. } => "RepError",
            Self::DreqError { .. } => "DreqError",
            Self::TimewaitExit { .. } => "TimewaitExit",
            Self::SidrReqReceived { .. } => "SidrReqReceived",
            Self::SidrRepReceived { .. } => "SidrRepReceived",
            Self::SidrReqError { .. } => "SidrReqError",
            Self::LapReceived { .. } => "LapReceived",
            Self::AprReceived { .. } => "AprReceived",
            Self::LapError { .. } => "LapError",
        }
    }
}

/// A datagram to send, from QP1 to QP1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Transmit {
    /// Where to.
    pub av: AddressVector,
    /// What.
    pub mad: [u8; MAD_LEN],
}
