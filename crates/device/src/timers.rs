//! Deadlines of queue pairs and completion queues, and until when the engine thread sleeps.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Arc, Mutex, Weak};

use oarlock_wire::Time;

use crate::cq::CqShared;
use crate::locks::lock;
use crate::qp::QpShared;

/// The deadlines. A queue pair has one entry that counts: the one whose time it remembers; it
/// enters another only when its deadline becomes earlier. A deadline that moves later (which every
/// acknowledgement does) is noticed when the entry is due, so it costs nothing.
pub(crate) struct Timers {
    state: Mutex<State>,
}

struct State {
    heap: BinaryHeap<Reverse<Entry>>,
    sleep: Sleep,
}

#[derive(Clone, Copy)]
enum Sleep {
    /// The engine is awake and looks at the heap before it sleeps.
    Awake,
    /// The engine sleeps until then; for ever without a time.
    Until(Option<Time>),
}

struct Entry {
    due: Time,
    whose: Whose,
}

/// Whose deadline it is.
pub(crate) enum Whose {
    Qp(Weak<QpShared>),
    /// A completion queue that holds an event back.
    Cq(Weak<CqShared>),
    /// The endpoint's: its counters are to be published.
    Statistics,
}

impl Whose {
    fn is_gone(&self) -> bool {
        match self {
            Self::Qp(qp) => qp.strong_count() == 0,
            Self::Cq(cq) => cq.strong_count() == 0,
            Self::Statistics => false,
        }
    }
}

impl Timers {
    pub(crate) fn new() -> Self {
        Self {
            state: Mutex::new(State {
                heap: BinaryHeap::new(),
                sleep: Sleep::Awake,
            }),
        }
    }

    /// Enters a deadline of a queue pair; `true` if the engine sleeps too long for it and must be woken.
    #[must_use]
    pub(crate) fn enter(&self, due: Time, qp: &Arc<QpShared>) -> bool {
        self.push(due, Whose::Qp(Arc::downgrade(qp)))
    }

    /// Enters a deadline of a completion queue; as [`enter`](Self::enter).
    #[must_use]
    pub(crate) fn enter_cq(&self, due: Time, cq: &Arc<CqShared>) -> bool {
        self.push(due, Whose::Cq(Arc::downgrade(cq)))
    }

    /// Enters the endpoint's own deadline; as [`enter`](Self::enter).
    #[must_use]
    pub(crate) fn enter_statistics(&self, due: Time) -> bool {
        self.push(due, Whose::Statistics)
    }

    fn push(&self, due: Time, whose: Whose) -> bool {
        let mut state = lock(&self.state);
        state.heap.push(Reverse(Entry { due, whose }));
        match state.sleep {
            Sleep::Until(end) if end.is_none_or(|end| due < end) => {
                // One wake-up is enough.
                state.sleep = Sleep::Awake;
                true
            }
            Sleep::Awake | Sleep::Until(_) => false,
        }
    }

    /// Whether [`pop_due`](Self::pop_due) would find something.
    pub(crate) fn has_due(&self, now: Time) -> bool {
        let state = lock(&self.state);
        state.heap.peek().is_some_and(|next| next.0.due <= now)
    }

    /// Takes an entry that is due, with its time.
    pub(crate) fn pop_due(&self, now: Time) -> Option<(Time, Whose)> {
        let mut state = lock(&self.state);
        let next = state.heap.peek()?;
        if next.0.due > now {
            return None;
        }
        state
            .heap
            .pop()
            .map(|Reverse(entry)| (entry.due, entry.whose))
    }

    /// The engine goes to sleep; returns until when.
    pub(crate) fn fall_asleep(&self) -> Option<Time> {
        let mut state = lock(&self.state);
        // Entries of what is gone need no wake-up.
        while state.heap.peek().is_some_and(|next| next.0.whose.is_gone()) {
            state.heap.pop();
        }
        let end = state.heap.peek().map(|next| next.0.due);
        state.sleep = Sleep::Until(end);
        end
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        lock(&self.state).heap.len()
    }

    pub(crate) fn wake_up(&self) {
        lock(&self.state).sleep = Sleep::Awake;
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.due == other.due
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.due.cmp(&other.due)
    }
}
