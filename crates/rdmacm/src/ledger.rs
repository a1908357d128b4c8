//! How many events of an identifier were delivered and how many of them are acknowledged.
//!
//! The service counts what it delivered and tells the count when an identifier migrates or is destroyed; this side counts
//! acknowledgements by the channel they were fetched from. After a migration no event comes out of the old channel any
//! more, so *delivered from the old channel* is fixed, and waiting for that many acknowledgements of that channel is
//! exact: an event that the new channel delivers meanwhile, and whoever acknowledges it, cannot be mistaken for one.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

#[derive(Default)]
pub(crate) struct Ledger {
    state: Mutex<State>,
    acknowledged: Condvar,
}

#[derive(Default)]
struct State {
    /// Acknowledged over the identifier's life.
    total: u32,
    /// Events delivered before the present channel, all acknowledged.
    settled: u32,
    /// Acknowledgements by channel serial, at most the present channel and the one before it.
    by_channel: Vec<(u64, u32)>,
    /// Unacknowledged events by the thread that fetched them.
    held: Vec<(ThreadId, u32)>,
    /// Threads that wait for acknowledgements; waking nobody is a system call, too.
    waiting: u32,
}

impl Ledger {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic cannot leave the counts half changed: every update is one assignment.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An event was fetched by `thread`.
    pub(crate) fn fetched(&self, thread: ThreadId) {
        let mut state = self.lock();
        match state.held.iter_mut().find(|(holder, _)| *holder == thread) {
            Some((_, count)) => *count += 1,
            None => state.held.push((thread, 1)),
        }
    }

    /// The event no longer counts as held by `thread`, although it is not acknowledged yet.
    pub(crate) fn handed_over(&self, thread: ThreadId) {
        release(&mut self.lock().held, thread);
    }

    /// An event fetched from the channel is acknowledged; `thread` is its fetcher unless it was handed over. How many
    /// are acknowledged in all.
    pub(crate) fn acknowledge(&self, channel: u64, thread: Option<ThreadId>) -> u32 {
        let mut state = self.lock();
        if let Some(thread) = thread {
            release(&mut state.held, thread);
        }
        match state
            .by_channel
            .iter_mut()
            .find(|(serial, _)| *serial == channel)
        {
            Some((_, count)) => *count = count.wrapping_add(1),
            None => state.by_channel.push((channel, 1)),
        }
        state.total = state.total.wrapping_add(1);
        let (total, waiting) = (state.total, state.waiting);
        drop(state);
        if waiting > 0 {
            self.acknowledged.notify_all();
        }
        total
    }

    /// Unacknowledged events that the calling thread fetched and still holds.
    pub(crate) fn held_by_caller(&self) -> u32 {
        let caller = std::thread::current().id();
        self.lock()
            .held
            .iter()
            .find(|(holder, _)| *holder == caller)
            .map_or(0, |(_, count)| *count)
    }

    /// Waits until all events that the channel delivered are acknowledged, then closes the account of that channel.
    /// `reported` is the service's count over the identifier's life.
    pub(crate) fn settle(&self, channel: u64, reported: u32) {
        let mut state = self.lock();
        let due = reported.wrapping_sub(state.settled);
        // More than due happens only when an identifier migrates to the channel it is on.
        while state
            .acknowledged_from(channel)
            .wrapping_sub(due)
            .cast_signed()
            < 0
        {
            state.waiting += 1;
            state = self
                .acknowledged
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
            state.waiting -= 1;
        }
        state.settled = reported;
        for (serial, count) in &mut state.by_channel {
            if *serial == channel {
                *count = count.wrapping_sub(due);
            }
        }
        state.by_channel.retain(|(_, count)| *count != 0);
    }
}

impl State {
    fn acknowledged_from(&self, channel: u64) -> u32 {
        self.by_channel
            .iter()
            .find(|(serial, _)| *serial == channel)
            .map_or(0, |(_, count)| *count)
    }
}

fn release(held: &mut Vec<(ThreadId, u32)>, thread: ThreadId) {
    if let Some(at) = held.iter().position(|(holder, _)| *holder == thread) {
        held[at].1 -= 1;
        if held[at].1 == 0 {
            held.swap_remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    fn me() -> ThreadId {
        std::thread::current().id()
    }

    /// R-MIG-5: the service's count over the identifier's life is compared with the acknowledgements; equal is done.
    #[test]
    fn nothing_outstanding_settles_at_once() {
        let ledger = Ledger::default();
        ledger.settle(1, 0);
        ledger.fetched(me());
        ledger.acknowledge(1, Some(me()));
        ledger.settle(1, 1);
        assert_eq!(ledger.held_by_caller(), 0);
    }

    /// R-MIG-3: an acknowledgement on the new channel does not pay for an event of the old one.
    #[test]
    fn acknowledgements_of_the_new_channel_do_not_count_for_the_old() {
        let ledger = Arc::new(Ledger::default());
        let settled = Arc::new(AtomicBool::new(false));
        ledger.fetched(me());
        let waiter = {
            let (ledger, settled) = (Arc::clone(&ledger), Arc::clone(&settled));
            std::thread::spawn(move || {
                ledger.settle(1, 1);
                settled.store(true, Ordering::SeqCst);
            })
        };
        for _ in 0..100 {
            ledger.acknowledge(2, None);
            std::thread::yield_now();
        }
        assert!(!settled.load(Ordering::SeqCst));
        ledger.acknowledge(1, Some(me()));
        waiter.join().unwrap();
        // The hundred of the second channel are still on its account.
        ledger.settle(2, 101);
    }

    #[test]
    fn migrating_to_the_same_channel_leaves_newer_acknowledgements_on_the_account() {
        let ledger = Ledger::default();
        ledger.acknowledge(1, None);
        ledger.acknowledge(1, None);
        ledger.settle(1, 1);
        ledger.settle(1, 2);
    }

    #[test]
    fn handed_over_events_are_not_the_callers() {
        let ledger = Ledger::default();
        ledger.fetched(me());
        ledger.fetched(me());
        ledger.handed_over(me());
        assert_eq!(ledger.held_by_caller(), 1);
    }
}
