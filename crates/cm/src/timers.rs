//! Which timer, when, and the earliest of them.
//!
//! | Timer | Armed in | Fires |
//! |---|---|---|
//! | [`Reply`](Timer::Reply) | REQ_SENT, MRA_REQ_RCVD, REP_SENT, MRA_REP_RCVD, DREQ_SENT, SIDR_REQ_SENT; in ESTABLISHED: LAP_SENT, MRA_LAP_RCVD | the message is sent again, or given up |
//! | [`Deadline`](Timer::Deadline) | REQ_SENT, MRA_REQ_RCVD, SIDR_REQ_SENT | the attempt is given up |
//! | [`Timewait`](Timer::Timewait) | TIMEWAIT | the connection is forgotten |
//!
//! A state holds its own deadlines; the table only remembers the earliest of each connection, so it cannot disagree
//! with the states about what is armed: it is brought up to date after every step of a connection.

use std::collections::BTreeSet;

use oarlock_wire::Time;

use crate::index::Slot;

/// The kinds of timers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Timer {
    /// No answer to a message.
    Reply,
    /// The overall deadline of a connect or a resolution.
    Deadline,
    /// The end of TIMEWAIT.
    Timewait,
}

/// The earliest deadline of every connection that has one. Arming and the earliest cost O(log n).
#[derive(Default)]
pub(crate) struct Timers {
    queue: BTreeSet<(Time, Slot)>,
}

impl Timers {
    /// Changes the deadline of `slot` from `old` to `new`.
    pub(crate) fn rearm(&mut self, slot: Slot, old: Option<Time>, new: Option<Time>) {
        if old == new {
            return;
        }
        if let Some(at) = old {
            self.queue.remove(&(at, slot));
        }
        if let Some(at) = new {
            self.queue.insert((at, slot));
        }
    }

    pub(crate) fn earliest(&self) -> Option<Time> {
        self.queue.first().map(|(at, _)| *at)
    }

    /// A connection whose deadline has come. It stays armed until its step rearms it.
    pub(crate) fn due(&self, now: Time) -> Option<Slot> {
        self.queue
            .first()
            .filter(|(at, _)| *at <= now)
            .map(|(_, slot)| *slot)
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }
}
