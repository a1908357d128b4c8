//! The rules that the table is made of. What no rule names is in `otherwise`.

use super::Place::{
    self, DreqRcvd, DreqSent, Established, Idle, LapRcvd, LapSent, MraLapRcvd, MraLapSent,
    MraRepRcvd, MraRepSent, MraReqRcvd, MraReqSent, RepRcvd, RepSent, ReqRcvd, ReqSent,
    SidrRepRcvd, SidrRepSent, SidrReqRcvd, SidrReqSent, Timewait,
};
use super::{Answer, Input, Next};
use crate::DropReason;
use crate::MessageName::{self, Apr, Drep, Dreq, Lap, Mra, Rej, Rep, Req, Rtu, SidrRep, SidrReq};

/// Several lines of the table.
pub(super) struct Rule {
    pub(super) input: Input,
    pub(super) places: &'static [Place],
    pub(super) answer: Answer,
    pub(super) next: Next,
    pub(super) sends: &'static [MessageName],
    pub(super) events: &'static [&'static str],
}

const fn advance(
    input: Input,
    places: &'static [Place],
    next: Place,
    sends: &'static [MessageName],
    events: &'static [&'static str],
) -> Rule {
    Rule {
        input,
        places,
        answer: Answer::Advance,
        next: Next::To(next),
        sends,
        events,
    }
}

const fn again(input: Input, places: &'static [Place], sends: &'static [MessageName]) -> Rule {
    Rule {
        input,
        places,
        answer: Answer::Again,
        next: Next::Same,
        sends,
        events: &[],
    }
}

const fn dropped(
    input: Input,
    places: &'static [Place],
    reason: DropReason,
    sends: &'static [MessageName],
) -> Rule {
    Rule {
        input,
        places,
        answer: Answer::Drop(reason),
        next: Next::Same,
        sends,
        events: &[],
    }
}

const fn not_ours(
    input: Input,
    places: &'static [Place],
    sends: &'static [MessageName],
    events: &'static [&'static str],
) -> Rule {
    Rule {
        input,
        places,
        answer: Answer::NotOurs,
        next: Next::Same,
        sends,
        events,
    }
}

const fn gone(input: Input, places: &'static [Place], sends: &'static [MessageName]) -> Rule {
    Rule {
        input,
        places,
        answer: Answer::Advance,
        next: Next::Gone,
        sends,
        events: &[],
    }
}

/// Where the peer is known and the index finds the connection, except when it is established.
const LIVE: &[Place] = &[
    RepRcvd, MraRepSent, ReqRcvd, MraReqSent, RepSent, MraRepRcvd, DreqSent, DreqRcvd,
];
/// Established.
const CONNECTED: &[Place] = &[Established, LapSent, MraLapRcvd, LapRcvd, MraLapSent];
/// Where a REJ ends a connection that never was one.
const PENDING: &[Place] = &[
    ReqSent, MraReqRcvd, ReqRcvd, MraReqSent, RepSent, MraRepRcvd,
];
/// Where a REJ ends a connection that was one, or nearly.
const PAST_REP: &[Place] = &[RepRcvd, MraRepSent, Established, LapSent, DreqSent];
/// Where messages with both comm ids cannot be meant: no peer is known.
const NO_PEER: &[Place] = &[
    ReqSent,
    MraReqRcvd,
    SidrReqSent,
    SidrRepRcvd,
    SidrReqRcvd,
    SidrRepSent,
];
/// The resolutions.
const SIDR: &[Place] = &[SidrReqSent, SidrRepRcvd, SidrReqRcvd, SidrRepSent];
/// Where a REQ is a new one, whatever it names.
const UNINDEXED: &[Place] = &[
    Idle,
    ReqSent,
    MraReqRcvd,
    Timewait,
    SidrReqSent,
    SidrRepRcvd,
    SidrReqRcvd,
    SidrRepSent,
];
/// Where a SIDR_REQ is a new one, whatever it names.
const NOT_SERVING: &[Place] = &[
    Idle,
    ReqSent,
    MraReqRcvd,
    RepRcvd,
    MraRepSent,
    ReqRcvd,
    MraReqSent,
    RepSent,
    MraRepRcvd,
    Established,
    LapSent,
    MraLapRcvd,
    LapRcvd,
    MraLapSent,
    DreqSent,
    DreqRcvd,
    Timewait,
    SidrReqSent,
    SidrRepRcvd,
];

pub(super) const RULES: &[Rule] = &[
    // Messages of establishment.
    again(Input::ReqAgain, &[MraReqSent], &[Mra]),
    dropped(
        Input::ReqAgain,
        &[
            ReqRcvd, RepSent, MraRepRcvd, RepRcvd, MraRepSent, DreqSent, DreqRcvd,
        ],
        DropReason::Duplicate,
        &[],
    ),
    dropped(Input::ReqAgain, CONNECTED, DropReason::Duplicate, &[]),
    not_ours(Input::ReqAgain, UNINDEXED, &[], &["ReqReceived"]),
    dropped(
        Input::ReqOfSameQp,
        LIVE,
        DropReason::StaleConnection,
        &[Rej],
    ),
    Rule {
        input: Input::ReqOfSameQp,
        places: CONNECTED,
        answer: Answer::Drop(DropReason::StaleConnection),
        next: Next::To(DreqSent),
        sends: &[Rej, Dreq],
        events: &[],
    },
    not_ours(Input::ReqOfSameQp, UNINDEXED, &[], &["ReqReceived"]),
    advance(
        Input::MraOfReq,
        &[ReqSent],
        MraReqRcvd,
        &[],
        &["MraReceived"],
    ),
    dropped(Input::MraOfReq, &[MraReqRcvd], DropReason::Duplicate, &[]),
    advance(
        Input::MraOfRep,
        &[RepSent],
        MraRepRcvd,
        &[],
        &["MraReceived"],
    ),
    dropped(Input::MraOfRep, &[MraRepRcvd], DropReason::Duplicate, &[]),
    advance(
        Input::MraOfLap,
        &[LapSent],
        MraLapRcvd,
        &[],
        &["MraReceived"],
    ),
    dropped(Input::MraOfLap, &[MraLapRcvd], DropReason::Duplicate, &[]),
    not_ours(Input::MraOfLap, NO_PEER, &[], &[]),
    not_ours(Input::MraOfRep, NO_PEER, &[], &[]),
    advance(
        Input::Rep,
        &[ReqSent, MraReqRcvd],
        RepRcvd,
        &[],
        &["RepReceived"],
    ),
    dropped(Input::Rep, &[RepRcvd], DropReason::Duplicate, &[]),
    again(Input::Rep, &[MraRepSent], &[Mra]),
    again(Input::Rep, CONNECTED, &[Rtu]),
    not_ours(Input::Rep, SIDR, &[], &[]),
    // Once the peer is known, its comm id counts and not its QP.
    dropped(Input::RepOfStaleQp, &[RepRcvd], DropReason::Duplicate, &[]),
    again(Input::RepOfStaleQp, &[MraRepSent], &[Mra]),
    again(Input::RepOfStaleQp, CONNECTED, &[Rtu]),
    not_ours(Input::RepOfStaleQp, SIDR, &[], &[]),
    dropped(
        Input::RepOfStaleQp,
        &[ReqSent, MraReqRcvd],
        DropReason::StaleConnection,
        &[Rej, Dreq],
    ),
    advance(
        Input::Rtu,
        &[RepSent, MraRepRcvd],
        Established,
        &[],
        &["RtuReceived"],
    ),
    dropped(Input::Rtu, CONNECTED, DropReason::Duplicate, &[]),
    not_ours(Input::Rtu, NO_PEER, &[], &[]),
    // Rejections.
    advance(Input::Rej, PENDING, Idle, &[], &["RejReceived"]),
    advance(Input::Rej, PAST_REP, Timewait, &[], &["RejReceived"]),
    advance(Input::RejStale, PENDING, Timewait, &[], &["RejReceived"]),
    advance(Input::RejStale, PAST_REP, Timewait, &[], &["RejReceived"]),
    advance(
        Input::RejTimeout,
        &[ReqRcvd, MraReqSent, RepSent, MraRepRcvd],
        Idle,
        &[],
        &["RejReceived"],
    ),
    advance(Input::RejTimeout, PAST_REP, Timewait, &[], &["RejReceived"]),
    dropped(
        Input::RejTimeout,
        &[MraLapRcvd, LapRcvd, MraLapSent, DreqRcvd],
        DropReason::UnexpectedInState,
        &[],
    ),
    not_ours(Input::Rej, SIDR, &[], &[]),
    not_ours(Input::RejStale, SIDR, &[], &[]),
    // Disconnection.
    advance(
        Input::Dreq,
        &[RepSent, MraRepRcvd, DreqSent],
        DreqRcvd,
        &[],
        &["DreqReceived"],
    ),
    advance(Input::Dreq, CONNECTED, DreqRcvd, &[], &["DreqReceived"]),
    dropped(Input::Dreq, &[DreqRcvd], DropReason::Duplicate, &[]),
    again(Input::Dreq, &[Timewait, Idle], &[Drep]),
    not_ours(Input::Dreq, NO_PEER, &[Drep], &[]),
    not_ours(Input::DreqOfOtherQp, NO_PEER, &[Drep], &[]),
    advance(
        Input::Drep,
        &[DreqSent, DreqRcvd],
        Timewait,
        &[],
        &["DrepReceived"],
    ),
    not_ours(Input::Drep, NO_PEER, &[], &[]),
    // Alternate paths.
    advance(Input::Lap, &[Established], LapRcvd, &[], &["LapReceived"]),
    dropped(
        Input::Lap,
        &[LapSent, MraLapRcvd],
        DropReason::CrossedLap,
        &[],
    ),
    not_ours(Input::Lap, NO_PEER, &[Apr], &[]),
    advance(
        Input::LapOfActive,
        &[Established],
        LapRcvd,
        &[],
        &["LapReceived"],
    ),
    advance(
        Input::LapOfActive,
        &[LapSent, MraLapRcvd],
        LapRcvd,
        &[],
        &["LapError", "LapReceived"],
    ),
    not_ours(Input::LapOfActive, NO_PEER, &[Apr], &[]),
    again(Input::LapAgain, &[Established], &[Apr]),
    again(Input::LapAgain, &[MraLapSent], &[Mra]),
    dropped(Input::LapAgain, &[LapRcvd], DropReason::Duplicate, &[]),
    dropped(
        Input::LapAgain,
        &[LapSent, MraLapRcvd],
        DropReason::CrossedLap,
        &[],
    ),
    not_ours(Input::LapAgain, NO_PEER, &[Apr], &[]),
    dropped(
        Input::LapOfOtherQp,
        CONNECTED,
        DropReason::QpnMismatch,
        &[Apr],
    ),
    not_ours(Input::LapOfOtherQp, NO_PEER, &[Apr], &[]),
    advance(
        Input::Apr,
        &[LapSent, MraLapRcvd],
        Established,
        &[],
        &["AprReceived"],
    ),
    not_ours(Input::Apr, NO_PEER, &[], &[]),
    // Resolution.
    dropped(Input::SidrReq, &[SidrReqRcvd], DropReason::Duplicate, &[]),
    again(Input::SidrReq, &[SidrRepSent], &[SidrRep]),
    not_ours(Input::SidrReq, NOT_SERVING, &[], &["SidrReqReceived"]),
    advance(
        Input::SidrRep,
        &[SidrReqSent],
        SidrRepRcvd,
        &[],
        &["SidrRepReceived"],
    ),
    dropped(Input::SidrRep, &[SidrRepRcvd], DropReason::Duplicate, &[]),
    // Calls.
    advance(Input::Accept, &[ReqRcvd, MraReqSent], RepSent, &[Rep], &[]),
    advance(
        Input::Establish,
        &[RepRcvd, MraRepSent],
        Established,
        &[Rtu],
        &[],
    ),
    advance(
        Input::NotifyEstablished,
        &[RepSent, MraRepRcvd],
        Established,
        &[],
        &["UserEstablished"],
    ),
    advance(
        Input::Reject,
        &[
            ReqSent, MraReqRcvd, RepRcvd, MraRepSent, ReqRcvd, MraReqSent,
        ],
        Idle,
        &[Rej],
        &[],
    ),
    advance(Input::Reject, &[RepSent, MraRepRcvd], Timewait, &[Rej], &[]),
    advance(Input::SendMra, &[ReqRcvd], MraReqSent, &[], &[]),
    advance(Input::SendMra, &[RepRcvd], MraRepSent, &[], &[]),
    advance(Input::SendMra, &[LapRcvd], MraLapSent, &[], &[]),
    advance(
        Input::LoadAlternatePath,
        &[Established],
        LapSent,
        &[Lap],
        &[],
    ),
    advance(
        Input::AnswerAlternatePath,
        &[LapRcvd, MraLapSent],
        Established,
        &[Apr],
        &[],
    ),
    advance(
        Input::SidrReply,
        &[SidrReqRcvd],
        SidrRepSent,
        &[SidrRep],
        &[],
    ),
    advance(Input::Disconnect, CONNECTED, DreqSent, &[Dreq], &[]),
    advance(Input::ReplyDisconnect, &[DreqRcvd], Timewait, &[Drep], &[]),
    gone(Input::DropRequest, &[ReqRcvd, MraReqSent, SidrReqRcvd], &[]),
    gone(
        Input::Destroy,
        &[
            Idle,
            DreqSent,
            Timewait,
            SidrReqSent,
            SidrRepRcvd,
            SidrRepSent,
        ],
        &[],
    ),
    gone(
        Input::Destroy,
        &[
            ReqSent, MraReqRcvd, RepRcvd, MraRepSent, ReqRcvd, MraReqSent, RepSent, MraRepRcvd,
        ],
        &[Rej],
    ),
    gone(Input::Destroy, CONNECTED, &[Dreq]),
    gone(Input::Destroy, &[SidrReqRcvd], &[SidrRep]),
    gone(Input::Destroy, &[DreqRcvd], &[Drep]),
    // Timers.
    again(Input::ReplyTimeout, &[ReqSent, MraReqRcvd], &[Req]),
    again(Input::ReplyTimeout, &[RepSent, MraRepRcvd], &[Rep]),
    again(Input::ReplyTimeout, &[DreqSent], &[Dreq]),
    again(Input::ReplyTimeout, &[LapSent, MraLapRcvd], &[Lap]),
    again(Input::ReplyTimeout, &[SidrReqSent], &[SidrReq]),
    advance(
        Input::LastReplyTimeout,
        &[ReqSent, MraReqRcvd],
        Idle,
        &[Rej],
        &["ReqError"],
    ),
    advance(
        Input::LastReplyTimeout,
        &[RepSent, MraRepRcvd],
        Idle,
        &[Rej],
        &["RepError"],
    ),
    advance(
        Input::LastReplyTimeout,
        &[DreqSent],
        Timewait,
        &[],
        &["DreqError"],
    ),
    advance(
        Input::LastReplyTimeout,
        &[LapSent, MraLapRcvd],
        Established,
        &[],
        &["LapError"],
    ),
    advance(
        Input::LastReplyTimeout,
        &[SidrReqSent],
        Idle,
        &[],
        &["SidrReqError"],
    ),
    advance(
        Input::Deadline,
        &[SidrReqSent],
        Idle,
        &[],
        &["SidrReqError"],
    ),
    advance(
        Input::Deadline,
        &[ReqSent, MraReqRcvd],
        Idle,
        &[Rej],
        &["ReqError"],
    ),
    advance(
        Input::TimewaitOver,
        &[Timewait],
        Idle,
        &[],
        &["TimewaitExit"],
    ),
];
