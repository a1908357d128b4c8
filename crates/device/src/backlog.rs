//! Queue pairs that have more to send than one turn allows.
//!
//! Only the data of READs are so many that it happens: the peer decides how many. The engine thread gives each queue pair
//! one turn after the other, and looks at the port and at the deadlines between. Whoever else wants a queue pair (to post,
//! to handle a packet, to end it) comes before its next turn.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, Weak};

use crate::endpoint::Core;
use crate::locks::lock;
use crate::qp::{QpInner, QpShared};

/// The queue pairs that wait for a turn, each once.
#[derive(Default)]
pub(crate) struct Backlog {
    waiting: Mutex<VecDeque<Weak<QpShared>>>,
}

impl Backlog {
    /// Waits for a turn at the end of the queue; called with `inner` locked.
    pub(crate) fn enter(&self, core: &Core, qp: &Arc<QpShared>, inner: &mut QpInner) {
        if std::mem::replace(&mut inner.waits_for_turn, true) {
            return;
        }
        let is_first = {
            let mut waiting = lock(&self.waiting);
            waiting.push_back(Arc::downgrade(qp));
            waiting.len() == 1
        };
        // With others in the queue it is awake.
        if is_first {
            core.wake_engine();
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.waiting).is_empty()
    }
}

impl Core {
    /// Gives a turn to each queue pair that waits for one. For the engine thread.
    pub(crate) fn take_turns(self: &Arc<Self>) {
        let count = lock(&self.backlog().waiting).len();
        for _ in 0..count {
            let Some(next) = lock(&self.backlog().waiting).pop_front() else {
                return;
            };
            let Some(qp) = next.upgrade() else {
                continue;
            };
            let Some(mut inner) = qp.lock_if_unwanted() else {
                lock(&self.backlog().waiting).push_back(next);
                continue;
            };
            inner.waits_for_turn = false;
            self.counters().turns.add(1);
            let overruns = self.drive(&qp, &mut inner);
            drop(inner);
            self.fail_overrun(overruns);
        }
    }
}
