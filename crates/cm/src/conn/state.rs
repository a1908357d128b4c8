//! The states of a connection. Each holds only what exists in it.

use oarlock_wire::cm::SidrReq;
use oarlock_wire::units::{IbTimeout, TransactionId};
use oarlock_wire::{Time, earliest};
use std::fmt;

use super::lap::Alternate;
use super::sidr::Answered;
use super::{Peer, Resend, Role};
use crate::timers::Timer;

/// The states, named after the message last sent or received.
pub(crate) enum State {
    /// Not connected any more, or rejected. Rests until the caller destroys it. `peer` was connected once.
    Idle { peer: Option<Peer> },
    /// Active: a REQ is out.
    ReqSent { attempt: Attempt },
    /// Active: the peer has the REQ and asks for patience.
    MraReqRcvd { attempt: Attempt },
    /// Active: the peer accepted; the caller decides.
    RepRcvd { peer: Peer },
    /// Active: as `RepRcvd`, and a duplicate REP is answered with an MRA.
    MraRepSent {
        peer: Peer,
        service_timeout: IbTimeout,
    },
    /// Passive: the caller decides on a REQ.
    ReqRcvd { peer: Peer },
    /// Passive: as `ReqRcvd`, and a duplicate REQ is answered with an MRA.
    MraReqSent {
        peer: Peer,
        service_timeout: IbTimeout,
    },
    /// Passive: a REP is out.
    RepSent { peer: Peer, reply: Resend },
    /// Passive: the peer has the REP and asks for patience.
    MraRepRcvd { peer: Peer, reply: Resend },
    /// Connected. `rtu_data` is what our RTU carried, in case the peer asks again (active side).
    Established {
        peer: Peer,
        rtu_data: Box<[u8]>,
        alternate: Alternate,
    },
    /// A DREQ is out.
    DreqSent { peer: Peer, request: Resend },
    /// The peer disconnects; the caller answers.
    DreqRcvd { peer: Peer, dreq_tid: TransactionId },
    /// Disconnected; packets may still be under way. `drep_data` is what our DREP carried, in case the peer asks again.
    Timewait {
        peer: Option<Peer>,
        drep_data: Box<[u8]>,
        until: Time,
    },
    /// Resolution: a SIDR_REQ is out.
    SidrReqSent { attempt: Attempt },
    /// Resolution: the peer answered. Rests until the caller destroys it.
    SidrRepRcvd,
    /// Resolution: the caller decides on a SIDR_REQ.
    SidrReqRcvd { request: Box<SidrReq> },
    /// Resolution: we answered, and answer again. Rests until the caller destroys it.
    SidrRepSent { answered: Box<Answered> },
}

/// A REQ or SIDR_REQ that is out.
pub(crate) struct Attempt {
    pub(crate) request: Resend,
    /// When to give up even if retries remain.
    pub(crate) give_up_at: Option<Time>,
}

impl State {
    pub(crate) fn name(&self) -> StateName {
        match self {
            Self::Idle { .. } => StateName::Idle,
            Self::ReqSent { .. } => StateName::ReqSent,
            Self::MraReqRcvd { .. } => StateName::MraReqRcvd,
            Self::RepRcvd { .. } => StateName::RepRcvd,
            Self::MraRepSent { .. } => StateName::MraRepSent,
            Self::ReqRcvd { .. } => StateName::ReqRcvd,
            Self::MraReqSent { .. } => StateName::MraReqSent,
            Self::RepSent { .. } => StateName::RepSent,
            Self::MraRepRcvd { .. } => StateName::MraRepRcvd,
            Self::Established { .. } => StateName::Established,
            Self::DreqSent { .. } => StateName::DreqSent,
            Self::DreqRcvd { .. } => StateName::DreqRcvd,
            Self::Timewait { .. } => StateName::Timewait,
            Self::SidrReqSent { .. } => StateName::SidrReqSent,
            Self::SidrRepRcvd => StateName::SidrRepRcvd,
            Self::SidrReqRcvd { .. } => StateName::SidrReqRcvd,
            Self::SidrRepSent { .. } => StateName::SidrRepSent,
        }
    }

    /// Where the exchange about an alternate path stands.
    pub(crate) fn lap_state(&self) -> LapState {
        match self {
            Self::Established { alternate, .. } => alternate.name(),
            _ => LapState::Idle,
        }
    }

    /// The peer, once it is known.
    pub(crate) fn peer(&self) -> Option<&Peer> {
        match self {
            Self::ReqSent { .. }
            | Self::MraReqRcvd { .. }
            | Self::SidrReqSent { .. }
            | Self::SidrRepRcvd
            | Self::SidrReqRcvd { .. }
            | Self::SidrRepSent { .. } => None,
            Self::Idle { peer } | Self::Timewait { peer, .. } => peer.as_ref(),
            Self::RepRcvd { peer }
            | Self::MraRepSent { peer, .. }
            | Self::ReqRcvd { peer }
            | Self::MraReqSent { peer, .. }
            | Self::RepSent { peer, .. }
            | Self::MraRepRcvd { peer, .. }
            | Self::Established { peer, .. }
            | Self::DreqSent { peer, .. }
            | Self::DreqRcvd { peer, .. } => Some(peer),
        }
    }

    /// The peer under which a duplicate REQ or a stale queue pair finds this connection. One that has reached TIMEWAIT is
    /// not found any more: its queue pair may be used again at once.
    pub(crate) fn indexed_peer(&self) -> Option<Peer> {
        match self {
            Self::Idle { .. } | Self::Timewait { .. } => None,
            live => live.peer().copied(),
        }
    }

    /// The request under which a SIDR_REQ that comes again finds this resolution.
    pub(crate) fn sidr_request(&self) -> Option<&SidrReq> {
        match self {
            Self::SidrReqRcvd { request } => Some(request),
            Self::SidrRepSent { answered } => Some(&answered.request),
            _ => None,
        }
    }

    /// Whether a passive connection or resolution in this state counts as half-open.
    pub(crate) fn is_half_open(&self) -> bool {
        matches!(
            self,
            Self::ReqRcvd { .. }
                | Self::MraReqSent { .. }
                | Self::RepSent { .. }
                | Self::MraRepRcvd { .. }
                | Self::SidrReqRcvd { .. }
        )
    }

    /// Whether a first REP advances this state.
    pub(crate) fn is_awaiting_rep(&self) -> bool {
        matches!(self, Self::ReqSent { .. } | Self::MraReqRcvd { .. })
    }

    /// Whether a message that names only our comm id can be for this state: of a connection that knows no peer yet.
    pub(crate) fn is_unheard_of(&self, role: Role) -> bool {
        role.is_connection() && self.peer().is_none()
    }

    /// The next timer of this state.
    pub(crate) fn deadline(&self) -> Option<Time> {
        match self {
            Self::ReqSent { attempt }
            | Self::MraReqRcvd { attempt }
            | Self::SidrReqSent { attempt } => {
                earliest(Some(attempt.request.reply_by()), attempt.give_up_at)
            }
            Self::RepSent { reply, .. } | Self::MraRepRcvd { reply, .. } => Some(reply.reply_by()),
            Self::DreqSent { request, .. } => Some(request.reply_by()),
            Self::Timewait { until, .. } => Some(*until),
            Self::Established { alternate, .. } => alternate.deadline(),
            Self::Idle { .. }
            | Self::RepRcvd { .. }
            | Self::MraRepSent { .. }
            | Self::ReqRcvd { .. }
            | Self::MraReqSent { .. }
            | Self::DreqRcvd { .. }
            | Self::SidrRepRcvd
            | Self::SidrReqRcvd { .. }
            | Self::SidrRepSent { .. } => None,
        }
    }

    /// Which timer of this state has come, if any.
    pub(crate) fn due(&self, now: Time) -> Option<Timer> {
        if self.deadline()? > now {
            return None;
        }
        Some(match self {
            Self::ReqSent { attempt }
            | Self::MraReqRcvd { attempt }
            | Self::SidrReqSent { attempt }
                if attempt.give_up_at.is_some_and(|at| at <= now) =>
            {
                Timer::Deadline
            }
            Self::Timewait { .. } => Timer::Timewait,
            _ => Timer::Reply,
        })
    }
}

macro_rules! state_names {
    ($(#[$type_doc:meta])* $type:ident: $($(#[$doc:meta])* $name:ident => $text:literal,)*) => {
        $(#[$type_doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
        #[non_exhaustive]
        pub enum $type {
            $($(#[$doc])* $name,)*
        }

        impl $type {
            /// Every state.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The name as the specification's state diagrams write it: `REQ_SENT`.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.as_str())
            }
        }
    };
}

state_names! {
    /// The name of a connection's or resolution's state.
    StateName:
    /// Not connected any more, or rejected; waits to be destroyed.
    Idle => "IDLE",
    /// Active: a REQ is out.
    ReqSent => "REQ_SENT",
    /// Active: the peer has the REQ and asks for patience.
    MraReqRcvd => "MRA_REQ_RCVD",
    /// Active: the peer accepted; waits for `establish` or `reject`.
    RepRcvd => "REP_RCVD",
    /// Active: as `RepRcvd`, a duplicate REP is answered with an MRA.
    MraRepSent => "MRA_REP_SENT",
    /// Passive: waits for `accept` or `reject`.
    ReqRcvd => "REQ_RCVD",
    /// Passive: as `ReqRcvd`, a duplicate REQ is answered with an MRA.
    MraReqSent => "MRA_REQ_SENT",
    /// Passive: a REP is out.
    RepSent => "REP_SENT",
    /// Passive: the peer has the REP and asks for patience.
    MraRepRcvd => "MRA_REP_RCVD",
    /// Connected.
    Established => "ESTABLISHED",
    /// A DREQ is out.
    DreqSent => "DREQ_SENT",
    /// The peer disconnects; waits for `reply_disconnect`.
    DreqRcvd => "DREQ_RCVD",
    /// Disconnected; packets may still be under way.
    Timewait => "TIMEWAIT",
    /// Resolution, asking side: a SIDR_REQ is out.
    SidrReqSent => "SIDR_REQ_SENT",
    /// Resolution, asking side: the answer is here; waits to be destroyed. (Linux says IDLE.)
    SidrRepRcvd => "SIDR_REP_RCVD",
    /// Resolution, serving side: waits for `sidr_reply`.
    SidrReqRcvd => "SIDR_REQ_RCVD",
    /// Resolution, serving side: answered, and answers again; waits to be destroyed. (Linux says IDLE, and takes a repeated
    /// request for a new one.)
    SidrRepSent => "SIDR_REP_SENT",
}

state_names! {
    /// Where an established connection stands with an alternate path.
    LapState:
    /// No exchange is going on.
    Idle => "LAP_IDLE",
    /// A LAP of ours is out.
    LapSent => "LAP_SENT",
    /// The peer has our LAP and asks for patience.
    MraLapRcvd => "MRA_LAP_RCVD",
    /// A LAP of the peer waits for `answer_alternate_path`.
    LapRcvd => "LAP_RCVD",
    /// As `LapRcvd`, a duplicate LAP is answered with an MRA.
    MraLapSent => "MRA_LAP_SENT",
}
