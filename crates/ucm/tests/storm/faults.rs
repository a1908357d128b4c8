//! What is planted, to see whether the judge sees it.

use oarlock_ucm::client::Event;

use crate::program::kind;
use crate::world::ACTIVE;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    MigratedEventsAreLost,
    MigratedEventsWakeNobody,
    OneByteIsFlipped,
    OneIdentifierIsForgotten,
    /// The first event of this kind never reaches its program.
    Lost(u32),
    /// The first event of this kind comes twice.
    Twice(u32),
    /// One DISCONNECTED comes after its TIMEWAIT_EXIT.
    DisconnectedComesLast,
    /// One group is not left when it should be.
    MembershipIsNotLeft,
    /// One join of a group is not answered.
    MembershipIsNotAnswered,
    /// Nobody tells the passive host that time has passed.
    TimersAreForgotten,
    /// Both hosts do with alternate paths the opposite of what their programs know.
    PathsAreMisjudged,
}

/// Where faults between the dispatcher and the programs happen, once each.
pub(crate) struct Tamper {
    fault: Fault,
    is_done: bool,
    held: Option<Event>,
}

impl Tamper {
    pub(crate) const fn new(fault: Fault) -> Self {
        Self {
            fault,
            is_done: false,
            held: None,
        }
    }

    /// What a program gets of an event.
    pub(crate) fn pass(&mut self, side: usize, event: Event) -> Vec<Event> {
        let is_last = |held: &mut Event| {
            side == ACTIVE && held.uid == event.uid && event.kind == kind::TIMEWAIT_EXIT
        };
        if let Some(held) = self.held.take_if(is_last) {
            return vec![event, held];
        }
        let strikes = match self.fault {
            Fault::Lost(kind) | Fault::Twice(kind) => event.kind == kind,
            // Of a side that has asked for it itself, so that the rest follows.
            Fault::DisconnectedComesLast => side == ACTIVE && event.kind == kind::DISCONNECTED,
            _ => false,
        };
        if !strikes || std::mem::replace(&mut self.is_done, true) {
            return vec![event];
        }
        match self.fault {
            Fault::Twice(_) => vec![event.clone(), event],
            Fault::DisconnectedComesLast => {
                self.held = Some(event);
                vec![]
            }
            _ => vec![],
        }
    }

    fn strikes(&mut self, fault: Fault) -> bool {
        self.fault == fault && !std::mem::replace(&mut self.is_done, true)
    }

    pub(crate) fn forgets_leave(&mut self) -> bool {
        self.strikes(Fault::MembershipIsNotLeft)
    }

    pub(crate) fn forgets_answer(&mut self) -> bool {
        self.strikes(Fault::MembershipIsNotAnswered)
    }
}
