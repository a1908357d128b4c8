//! The transition table as plain data: what each input does in each state.
//!
//! The code does not consult it; the tests execute every row against the code, a snapshot prints it, and
//! `docs/connection-states.md` is drawn from it.
//!
//! ```text
//! active   REQ_SENT > [MRA_REQ_RCVD] > REP_RCVD > [MRA_REP_SENT] > ESTABLISHED
//! passive  REQ_RCVD > [MRA_REQ_SENT] > REP_SENT > [MRA_REP_RCVD] > ESTABLISHED
//! both     ESTABLISHED > DREQ_SENT | DREQ_RCVD > TIMEWAIT > IDLE
//! beside   ESTABLISHED > LAP_SENT > [MRA_LAP_RCVD] > ESTABLISHED,  ESTABLISHED > LAP_RCVD > [MRA_LAP_SENT] > ESTABLISHED
//! SIDR     SIDR_REQ_SENT > SIDR_REP_RCVD,  SIDR_REQ_RCVD > SIDR_REP_SENT
//! ```

use std::fmt;

use crate::MessageName::{Apr, Drep};
use crate::{DropReason, LapState, MessageName, StateName};
use rules::RULES;

mod rules;

macro_rules! places {
    ($($(#[$doc:meta])* $name:ident => $state:ident, $lap:ident;)*) => {
        /// Where a connection or resolution can be: its state, and in ESTABLISHED how far the exchange about an alternate
        /// path has got.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[non_exhaustive]
        pub enum Place {
            $($(#[$doc])* $name,)*
        }

        impl Place {
            /// Every place.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The state.
            #[must_use]
            pub const fn state(self) -> StateName {
                match self {
                    $(Self::$name => StateName::$state,)*
                }
            }

            /// How far the exchange about an alternate path has got.
            #[must_use]
            pub const fn lap(self) -> LapState {
                match self {
                    $(Self::$name => LapState::$lap,)*
                }
            }
        }
    };
}

places! {
    /// IDLE.
    Idle => Idle, Idle;
    /// REQ_SENT.
    ReqSent => ReqSent, Idle;
    /// MRA_REQ_RCVD.
    MraReqRcvd => MraReqRcvd, Idle;
    /// REP_RCVD.
    RepRcvd => RepRcvd, Idle;
    /// MRA_REP_SENT.
    MraRepSent => MraRepSent, Idle;
    /// REQ_RCVD.
    ReqRcvd => ReqRcvd, Idle;
    /// MRA_REQ_SENT.
    MraReqSent => MraReqSent, Idle;
    /// REP_SENT.
    RepSent => RepSent, Idle;
    /// MRA_REP_RCVD.
    MraRepRcvd => MraRepRcvd, Idle;
    /// ESTABLISHED, no LAP under way.
    Established => Established, Idle;
    /// ESTABLISHED, LAP_SENT.
    LapSent => Established, LapSent;
    /// ESTABLISHED, MRA_LAP_RCVD.
    MraLapRcvd => Established, MraLapRcvd;
    /// ESTABLISHED, LAP_RCVD.
    LapRcvd => Established, LapRcvd;
    /// ESTABLISHED, MRA_LAP_SENT.
    MraLapSent => Established, MraLapSent;
    /// DREQ_SENT.
    DreqSent => DreqSent, Idle;
    /// DREQ_RCVD.
    DreqRcvd => DreqRcvd, Idle;
    /// TIMEWAIT.
    Timewait => Timewait, Idle;
    /// SIDR_REQ_SENT.
    SidrReqSent => SidrReqSent, Idle;
    /// SIDR_REP_RCVD.
    SidrRepRcvd => SidrRepRcvd, Idle;
    /// SIDR_REQ_RCVD.
    SidrReqRcvd => SidrReqRcvd, Idle;
    /// SIDR_REP_SENT.
    SidrRepSent => SidrRepSent, Idle;
}

impl Place {
    /// The state's name, or where there is one the name of the state beside ESTABLISHED.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self.lap() {
            LapState::Idle => self.state().as_str(),
            lap => lap.as_str(),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

macro_rules! inputs {
    ($($(#[$doc:meta])* $name:ident => $text:literal,)*) => {
        /// What can happen to a connection or resolution.
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
    /// The connection's own REQ again (on the active side: a REQ with the peer's comm id; without a connection: a first one).
    ReqAgain => "REQ",
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
    /// An MRA for another message, with both comm ids.
    MraOfLap => "MRA of LAP",
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
    /// A LAP for this connection, from its passive side.
    Lap => "LAP of passive",
    /// A LAP for this connection, from its active side.
    LapOfActive => "LAP of active",
    /// The last LAP of this connection again, from its passive side.
    LapAgain => "LAP again",
    /// A LAP for this connection, but not for its queue pair.
    LapOfOtherQp => "LAP of another QP",
    /// An APR for this connection, in the transaction of our last LAP.
    Apr => "APR",
    /// The resolution's own SIDR_REQ again (elsewhere: a first one).
    SidrReq => "SIDR_REQ",
    /// A SIDR_REP with our comm id as its request id.
    SidrRep => "SIDR_REP",
    /// [`connect`](crate::Cm::connect)
    Connect => "connect()",
    /// [`sidr_request`](crate::Cm::sidr_request)
    SidrRequest => "sidr_request()",
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
    /// [`load_alternate_path`](crate::Cm::load_alternate_path)
    LoadAlternatePath => "load_alternate_path()",
    /// [`answer_alternate_path`](crate::Cm::answer_alternate_path)
    AnswerAlternatePath => "answer_alternate_path()",
    /// [`sidr_reply`](crate::Cm::sidr_reply)
    SidrReply => "sidr_reply()",
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
    /// The deadline of the connect or of the resolution.
    Deadline => "deadline",
    /// The end of TIMEWAIT.
    TimewaitOver => "timewait over",
}

impl Input {
    /// Whether it is a call that makes a connection or resolution, which so happens to none.
    #[must_use]
    pub const fn makes_one(self) -> bool {
        matches!(self, Self::Connect | Self::SidrRequest)
    }
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
    /// To another place.
    To(Place),
    /// Its id is dead.
    Gone,
}

/// One line of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Transition {
    /// The place before; `None`: there is no connection.
    pub place: Option<Place>,
    /// What happens.
    pub input: Input,
    /// How the connection answers.
    pub answer: Answer,
    /// The place after.
    pub next: Next,
    /// Messages that are sent, for this connection or because of it.
    pub sends: &'static [MessageName],
    /// The events that are reported, by [`Event::name`](crate::Event::name).
    pub events: &'static [&'static str],
}

/// The whole table: every input without a connection, then every place with every input.
pub fn transitions() -> impl Iterator<Item = Transition> {
    let without = Input::ALL
        .iter()
        .filter_map(|input| without_connection(*input));
    let with = Place::ALL.iter().flat_map(|place| {
        Input::ALL
            .iter()
            .filter(|input| !input.makes_one())
            .map(|input| transition(*place, *input))
    });
    without.chain(with)
}

/// The table's line for an input in a place.
#[must_use]
pub fn transition(place: Place, input: Input) -> Transition {
    let found = RULES
        .iter()
        .find(|rule| rule.input == input && rule.places.contains(&place));
    let (answer, next, sends, events) = match found {
        Some(rule) => (rule.answer, rule.next, rule.sends, rule.events),
        None => (otherwise(input), Next::Same, &[][..], &[][..]),
    };
    Transition {
        place: Some(place),
        input,
        answer,
        next,
        sends,
        events,
    }
}

/// The table's line for an input that no connection takes; `None` for inputs that need one.
#[must_use]
pub fn without_connection(input: Input) -> Option<Transition> {
    const NOTHING: &[&str] = &[];
    let made = |place, sends, events| (Answer::Advance, Next::To(place), sends, events);
    let unknown = |sends: &'static [MessageName]| {
        let answer = Answer::Drop(DropReason::UnknownCommId);
        (answer, Next::Same, sends, NOTHING)
    };
    let (answer, next, sends, events): (_, _, &'static [MessageName], &'static [&'static str]) =
        match input {
            Input::Connect => made(Place::ReqSent, &[MessageName::Req][..], &[][..]),
            Input::SidrRequest => made(Place::SidrReqSent, &[MessageName::SidrReq], &[]),
            Input::ReqAgain => made(Place::ReqRcvd, &[], &["ReqReceived"]),
            Input::SidrReq => made(Place::SidrReqRcvd, &[], &["SidrReqReceived"]),
            Input::Dreq => unknown(&[Drep]),
            Input::Lap => unknown(&[Apr]),
            Input::MraOfReq
            | Input::MraOfRep
            | Input::MraOfLap
            | Input::Rep
            | Input::Rtu
            | Input::Rej
            | Input::RejStale
            | Input::RejTimeout
            | Input::Drep
            | Input::Apr
            | Input::SidrRep => unknown(&[]),
            _ => return None,
        };
    Some(Transition {
        place: None,
        input,
        answer,
        next,
        sends,
        events,
    })
}

/// Each place and input that a rule names, as often as rules name it.
#[cfg(test)]
pub(crate) fn ruled_pairs() -> impl Iterator<Item = (Place, Input)> {
    RULES
        .iter()
        .flat_map(|rule| rule.places.iter().map(|place| (*place, rule.input)))
}

/// What an input does in the places that no rule names.
const fn otherwise(input: Input) -> Answer {
    match input {
        Input::ReqAgain => Answer::Drop(DropReason::Duplicate),
        Input::MraOfReq
        | Input::RejTimeout
        | Input::ReqOfSameQp
        | Input::SidrReq
        | Input::SidrRep => Answer::NotOurs,
        Input::MraOfRep
        | Input::MraOfLap
        | Input::Rep
        | Input::RepOfStaleQp
        | Input::Rtu
        | Input::Rej
        | Input::RejStale
        | Input::Dreq
        | Input::Drep
        | Input::Lap
        | Input::LapOfActive
        | Input::LapAgain
        | Input::LapOfOtherQp
        | Input::Apr => Answer::Drop(DropReason::UnexpectedInState),
        Input::DreqOfOtherQp => Answer::Drop(DropReason::QpnMismatch),
        Input::Accept
        | Input::Establish
        | Input::NotifyEstablished
        | Input::Reject
        | Input::SendMra
        | Input::LoadAlternatePath
        | Input::AnswerAlternatePath
        | Input::SidrReply
        | Input::Disconnect
        | Input::ReplyDisconnect
        | Input::DropRequest
        | Input::Destroy
        | Input::Connect
        | Input::SidrRequest => Answer::Misuse,
        Input::ReplyTimeout | Input::LastReplyTimeout | Input::Deadline | Input::TimewaitOver => {
            Answer::NoTimer
        }
    }
}

impl fmt::Display for Transition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = self.place.map_or("(none)", Place::as_str);
        let next = match self.next {
            Next::Same => "same",
            Next::To(place) => place.as_str(),
            Next::Gone => "(none)",
        };
        let sends: Vec<_> = self.sends.iter().map(|message| message.as_str()).collect();
        let line = format!(
            "{place:<13}  {:<23}  {:<30}  {next:<13}  {:<9}  {}",
            self.input,
            self.answer,
            listed(&sends),
            listed(self.events),
        );
        f.write_str(line.trim_end())
    }
}

/// A list in one column.
fn listed(words: &[&str]) -> String {
    if words.is_empty() {
        "-".to_owned()
    } else {
        words.join(" ")
    }
}
