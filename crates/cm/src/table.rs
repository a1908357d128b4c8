//! The transition table as plain data: what each input does in each state.
//!
//! The code does not consult it; the tests execute every row against the code, and a snapshot prints it.
//!
//! ```text
//! active   IDLE > REQ_SENT > [MRA_REQ_RCVD] > REP_RCVD > [MRA_REP_SENT] > ESTABLISHED
//! passive  IDLE > REQ_RCVD > [MRA_REQ_SENT] > REP_SENT > [MRA_REP_RCVD] > ESTABLISHED
//! both     ESTABLISHED > DREQ_SENT | DREQ_RCVD > TIMEWAIT > IDLE
//! ```

use std::fmt;

use crate::DropReason;
use crate::MessageName::{self, Drep, Dreq, Mra, Rej, Rep, Req, Rtu};
use crate::StateName::{
    self, DreqRcvd, DreqSent, Established, Idle, MraRepRcvd, MraRepSent, MraReqRcvd, MraReqSent,
    RepRcvd, RepSent, ReqRcvd, ReqSent, Timewait,
};

macro_rules! inputs {
    ($($(#[$doc:meta])* $name:ident => $text:literal,)*) => {
        /// What can happen to a connection.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[non_exhaustive]
        pub enum Input {
            $($(#[$doc])* $name,)*
        }

        impl Input {
            /// Every input.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// How the table prints it.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }
    };
}

inputs! {
    /// The connection's own REQ again (on the active side: a REQ with the peer's comm id).
    ReqAgain => "REQ again",
    /// A REQ with another comm id from the queue pair of the connection's peer.
    ReqOfSameQp => "REQ of the same QP",
    /// An MRA for a REQ, to our comm id.
    MraOfReq => "MRA of REQ",
    /// An MRA for a REP, with both comm ids.
    MraOfRep => "MRA of REP",
    /// A REP for this connection, a first or a repeated one.
    Rep => "REP",
    /// A REP for this connection from a queue pair that another connection still has.
    RepOfStaleQp => "REP of a stale QP",
    /// An RTU for this connection.
    Rtu => "RTU",
    /// A REJ (consumer defined) for this connection.
    Rej => "REJ",
    /// A REJ (stale connection) for this connection.
    RejStale => "REJ stale",
    /// A REJ (timeout) naming the peer.
    RejTimeout => "REJ timeout",
    /// A DREQ for this connection.
    Dreq => "DREQ",
    /// A DREQ for this connection, but not for its queue pair.
    DreqOfOtherQp => "DREQ of another QP",
    /// A DREP for this connection.
    Drep => "DREP",
    /// [`accept`](crate::Cm::accept)
    Accept => "accept()",
    /// [`establish`](crate::Cm::establish)
    Establish => "establish()",
    /// [`notify_established`](crate::Cm::notify_established)
    NotifyEstablished => "notify_established()",
    /// [`reject`](crate::Cm::reject)
    Reject => "reject()",
    /// [`send_mra`](crate::Cm::send_mra)
    SendMra => "send_mra()",
    /// [`disconnect`](crate::Cm::disconnect)
    Disconnect => "disconnect()",
    /// [`reply_disconnect`](crate::Cm::reply_disconnect)
    ReplyDisconnect => "reply_disconnect()",
    /// [`drop_request`](crate::Cm::drop_request)
    DropRequest => "drop_request()",
    /// [`destroy`](crate::Cm::destroy)
    Destroy => "destroy()",
    /// Nothing came in time, and retries remain.
    ReplyTimeout => "no answer",
    /// Nothing came in time, and no retries remain.
    LastReplyTimeout => "no answer, last",
    /// The deadline of the connect.
    Deadline => "deadline",
    /// The end of TIMEWAIT.
    TimewaitOver => "timewait over",
}

impl fmt::Display for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// How a connection answers an input.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Answer {
    /// The connection moves on.
    Advance,
    /// The connection stays as it is and answers again.
    Again,
    /// The input is dropped and counted.
    Drop(DropReason),
    /// The connection is not involved: the input is treated as one for no connection, the table's first lines.
    NotOurs,
    /// The caller is told that the state does not allow the call.
    Misuse,
    /// There is no such timer in this state.
    NoTimer,
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Advance => f.pad("advance"),
            Self::Again => f.pad("again"),
            Self::Drop(reason) => f.pad(reason.label()),
            Self::NotOurs => f.pad("not ours"),
            Self::Misuse => f.pad("misuse"),
            Self::NoTimer => f.pad("no timer"),
        }
    }
}

/// Where a connection goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Next {
    /// It stays.
    Same,
    /// Into a state.
    To(StateName),
    /// Its id is dead.
    Gone,
}

/// One line of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Transition {
    /// The state before; `None`: there is no connection.
    pub state: Option<StateName>,
    /// What happens.
    pub input: Input,
    /// How the connection answers.
    pub answer: Answer,
    /// The state after.
    pub next: Next,
    /// Messages that are sent, for this connection or because of it.
    pub sends: &'static [MessageName],
    /// The event that is reported, by [`Event::name`](crate::Event::name).
    pub event: Option<&'static str>,
}

/// Several lines of the table.
struct Rule {
    input: Input,
    states: &'static [StateName],
    answer: Answer,
    next: Next,
    sends: &'static [MessageName],
    event: Option<&'static str>,
}

/// The whole table: every input without a connection, then every state with every input.
pub fn transitions() -> impl Iterator<Item = Transition> {
    let without = Input::ALL
        .iter()
        .filter_map(|input| without_connection(*input));
    let with = StateName::ALL
        .iter()
        .flat_map(|state| Input::ALL.iter().map(|input| transition(*state, *input)));
    without.chain(with)
}

/// The table's line for an input in a state.
#[must_use]
pub fn transition(state: StateName, input: Input) -> Transition {
    let found = RULES
        .iter()
        .find(|rule| rule.input == input && rule.states.contains(&state));
    let (answer, next, sends, event) = match found {
        Some(rule) => (rule.answer, rule.next, rule.sends, rule.event),
        None => (otherwise(input), Next::Same, &[][..], None),
    };
    Transition {
        state: Some(state),
        input,
        answer,
        next,
        sends,
        event,
    }
}

/// The table's line for a message that no connection takes; `None` for inputs that need one.
#[must_use]
pub fn without_connection(input: Input) -> Option<Transition> {
    let (answer, next, sends, event): (_, _, &'static [MessageName], _) = match input {
        Input::ReqAgain => (Answer::Advance, Next::To(ReqRcvd), &[], Some("ReqReceived")),
        Input::Dreq => (
            Answer::Drop(DropReason::UnknownCommId),
            Next::Same,
            &[Drep],
            None,
        ),
        Input::MraOfReq
        | Input::MraOfRep
        | Input::Rep
        | Input::Rtu
        | Input::Rej
        | Input::RejStale
        | Input::RejTimeout
        | Input::Drep => (
            Answer::Drop(DropReason::UnknownCommId),
            Next::Same,
            &[],
            None,
        ),
        _ => return None,
    };
    Some(Transition {
        state: None,
        input,
        answer,
        next,
        sends,
        event,
    })
}

/// What an input does in the states that no rule names.
const fn otherwise(input: Input) -> Answer {
    match input {
        Input::ReqAgain => Answer::Drop(DropReason::Duplicate),
        Input::MraOfReq | Input::RejTimeout | Input::ReqOfSameQp => Answer::NotOurs,
        Input::MraOfRep
        | Input::Rep
        | Input::RepOfStaleQp
        | Input::Rtu
        | Input::Rej
        | Input::RejStale
        | Input::Dreq
        | Input::Drep => Answer::Drop(DropReason::UnexpectedInState),
        Input::DreqOfOtherQp => Answer::Drop(DropReason::QpnMismatch),
        Input::Accept
        | Input::Establish
        | Input::NotifyEstablished
        | Input::Reject
        | Input::SendMra
        | Input::Disconnect
        | Input::ReplyDisconnect
        | Input::DropRequest
        | Input::Destroy => Answer::Misuse,
        Input::ReplyTimeout | Input::LastReplyTimeout | Input::Deadline | Input::TimewaitOver => {
            Answer::NoTimer
        }
    }
}

const fn advance(
    input: Input,
    states: &'static [StateName],
    next: StateName,
    sends: &'static [MessageName],
    event: Option<&'static str>,
) -> Rule {
    Rule {
        input,
        states,
        answer: Answer::Advance,
        next: Next::To(next),
        sends,
        event,
    }
}

const fn again(input: Input, states: &'static [StateName], sends: &'static [MessageName]) -> Rule {
    Rule {
        input,
        states,
        answer: Answer::Again,
        next: Next::Same,
        sends,
        event: None,
    }
}

const fn dropped(
    input: Input,
    states: &'static [StateName],
    reason: DropReason,
    sends: &'static [MessageName],
) -> Rule {
    Rule {
        input,
        states,
        answer: Answer::Drop(reason),
        next: Next::Same,
        sends,
        event: None,
    }
}

const fn not_ours(
    input: Input,
    states: &'static [StateName],
    sends: &'static [MessageName],
    event: Option<&'static str>,
) -> Rule {
    Rule {
        input,
        states,
        answer: Answer::NotOurs,
        next: Next::Same,
        sends,
        event,
    }
}

const fn gone(input: Input, states: &'static [StateName], sends: &'static [MessageName]) -> Rule {
    Rule {
        input,
        states,
        answer: Answer::Advance,
        next: Next::Gone,
        sends,
        event: None,
    }
}

/// The states in which the peer is known and the index finds the connection, except ESTABLISHED.
const LIVE: &[StateName] = &[
    RepRcvd, MraRepSent, ReqRcvd, MraReqSent, RepSent, MraRepRcvd, DreqSent, DreqRcvd,
];
/// The states in which a REJ ends a connection that never was one.
const PENDING: &[StateName] = &[
    ReqSent, MraReqRcvd, ReqRcvd, MraReqSent, RepSent, MraRepRcvd,
];

const RULES: &[Rule] = &[
    // Messages of establishment.
    again(Input::ReqAgain, &[MraReqSent], &[Mra]),
    dropped(
        Input::ReqAgain,
        &[
            ReqRcvd,
            RepSent,
            MraRepRcvd,
            Established,
            RepRcvd,
            MraRepSent,
            DreqSent,
            DreqRcvd,
        ],
        DropReason::Duplicate,
        &[],
    ),
    not_ours(
        Input::ReqAgain,
        &[Idle, ReqSent, MraReqRcvd, Timewait],
        &[],
        Some("ReqReceived"),
    ),
    dropped(
        Input::ReqOfSameQp,
        LIVE,
        DropReason::StaleConnection,
        &[Rej],
    ),
    Rule {
        input: Input::ReqOfSameQp,
        states: &[Established],
        answer: Answer::Drop(DropReason::StaleConnection),
        next: Next::To(DreqSent),
        sends: &[Rej, Dreq],
        event: None,
    },
    not_ours(
        Input::ReqOfSameQp,
        &[Idle, ReqSent, MraReqRcvd, Timewait],
        &[],
        Some("ReqReceived"),
    ),
    advance(
        Input::MraOfReq,
        &[ReqSent],
        MraReqRcvd,
        &[],
        Some("MraReceived"),
    ),
    dropped(Input::MraOfReq, &[MraReqRcvd], DropReason::Duplicate, &[]),
    advance(
        Input::MraOfRep,
        &[RepSent],
        MraRepRcvd,
        &[],
        Some("MraReceived"),
    ),
    dropped(Input::MraOfRep, &[MraRepRcvd], DropReason::Duplicate, &[]),
    not_ours(Input::MraOfRep, &[ReqSent, MraReqRcvd], &[], None),
    advance(
        Input::Rep,
        &[ReqSent, MraReqRcvd],
        RepRcvd,
        &[],
        Some("RepReceived"),
    ),
    dropped(Input::Rep, &[RepRcvd], DropReason::Duplicate, &[]),
    again(Input::Rep, &[MraRepSent], &[Mra]),
    again(Input::Rep, &[Established], &[Rtu]),
    // Once the peer is known, its comm id counts and not its QP.
    dropped(Input::RepOfStaleQp, &[RepRcvd], DropReason::Duplicate, &[]),
    again(Input::RepOfStaleQp, &[MraRepSent], &[Mra]),
    again(Input::RepOfStaleQp, &[Established], &[Rtu]),
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
        Some("RtuReceived"),
    ),
    dropped(Input::Rtu, &[Established], DropReason::Duplicate, &[]),
    not_ours(Input::Rtu, &[ReqSent, MraReqRcvd], &[], None),
    // Rejections.
    advance(Input::Rej, PENDING, Idle, &[], Some("RejReceived")),
    advance(
        Input::Rej,
        &[RepRcvd, MraRepSent, Established, DreqSent],
        Timewait,
        &[],
        Some("RejReceived"),
    ),
    advance(Input::RejStale, PENDING, Timewait, &[], Some("RejReceived")),
    advance(
        Input::RejStale,
        &[RepRcvd, MraRepSent, Established, DreqSent],
        Timewait,
        &[],
        Some("RejReceived"),
    ),
    advance(
        Input::RejTimeout,
        &[ReqRcvd, MraReqSent, RepSent, MraRepRcvd],
        Idle,
        &[],
        Some("RejReceived"),
    ),
    advance(
        Input::RejTimeout,
        &[RepRcvd, MraRepSent, Established, DreqSent],
        Timewait,
        &[],
        Some("RejReceived"),
    ),
    dropped(
        Input::RejTimeout,
        &[DreqRcvd],
        DropReason::UnexpectedInState,
        &[],
    ),
    // Disconnection.
    advance(
        Input::Dreq,
        &[RepSent, MraRepRcvd, Established, DreqSent],
        DreqRcvd,
        &[],
        Some("DreqReceived"),
    ),
    dropped(Input::Dreq, &[DreqRcvd], DropReason::Duplicate, &[]),
    again(Input::Dreq, &[Timewait, Idle], &[Drep]),
    not_ours(Input::Dreq, &[ReqSent, MraReqRcvd], &[Drep], None),
    not_ours(Input::DreqOfOtherQp, &[ReqSent, MraReqRcvd], &[Drep], None),
    advance(
        Input::Drep,
        &[DreqSent, DreqRcvd],
        Timewait,
        &[],
        Some("DrepReceived"),
    ),
    not_ours(Input::Drep, &[ReqSent, MraReqRcvd], &[], None),
    // Calls.
    advance(Input::Accept, &[ReqRcvd, MraReqSent], RepSent, &[Rep], None),
    advance(
        Input::Establish,
        &[RepRcvd, MraRepSent],
        Established,
        &[Rtu],
        None,
    ),
    advance(
        Input::NotifyEstablished,
        &[RepSent, MraRepRcvd],
        Established,
        &[],
        Some("UserEstablished"),
    ),
    advance(
        Input::Reject,
        &[
            ReqSent, MraReqRcvd, RepRcvd, MraRepSent, ReqRcvd, MraReqSent,
        ],
        Idle,
        &[Rej],
        None,
    ),
    advance(
        Input::Reject,
        &[RepSent, MraRepRcvd],
        Timewait,
        &[Rej],
        None,
    ),
    advance(Input::SendMra, &[ReqRcvd], MraReqSent, &[], None),
    advance(Input::SendMra, &[RepRcvd], MraRepSent, &[], None),
    advance(Input::Disconnect, &[Established], DreqSent, &[Dreq], None),
    advance(Input::ReplyDisconnect, &[DreqRcvd], Timewait, &[Drep], None),
    gone(Input::DropRequest, &[ReqRcvd, MraReqSent], &[]),
    gone(Input::Destroy, &[Idle, DreqSent, Timewait], &[]),
    gone(
        Input::Destroy,
        &[
            ReqSent, MraReqRcvd, RepRcvd, MraRepSent, ReqRcvd, MraReqSent, RepSent, MraRepRcvd,
        ],
        &[Rej],
    ),
    gone(Input::Destroy, &[Established], &[Dreq]),
    gone(Input::Destroy, &[DreqRcvd], &[Drep]),
    // Timers.
    again(Input::ReplyTimeout, &[ReqSent, MraReqRcvd], &[Req]),
    again(Input::ReplyTimeout, &[RepSent, MraRepRcvd], &[Rep]),
    again(Input::ReplyTimeout, &[DreqSent], &[Dreq]),
    advance(
        Input::LastReplyTimeout,
        &[ReqSent, MraReqRcvd],
        Idle,
        &[Rej],
        Some("ReqError"),
    ),
    advance(
        Input::LastReplyTimeout,
        &[RepSent, MraRepRcvd],
        Idle,
        &[Rej],
        Some("RepError"),
    ),
    advance(
        Input::LastReplyTimeout,
        &[DreqSent],
        Timewait,
        &[],
        Some("DreqError"),
    ),
    advance(
        Input::Deadline,
        &[ReqSent, MraReqRcvd],
        Idle,
        &[Rej],
        Some("ReqError"),
    ),
    advance(
        Input::TimewaitOver,
        &[Timewait],
        Idle,
        &[],
        Some("TimewaitExit"),
    ),
];

impl fmt::Display for Transition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.map_or("(none)", StateName::as_str);
        let next = match self.next {
            Next::Same => "same",
            Next::To(state) => state.as_str(),
            Next::Gone => "(none)",
        };
        let sends: Vec<_> = self.sends.iter().map(|message| message.as_str()).collect();
        let line = format!(
            "{state:<12}  {:<20}  {:<30}  {next:<12}  {:<9}  {}",
            self.input,
            self.answer,
            if sends.is_empty() {
                "-".to_owned()
            } else {
                sends.join(" ")
            },
            self.event.unwrap_or("-"),
        );
        f.write_str(line.trim_end())
    }
}
