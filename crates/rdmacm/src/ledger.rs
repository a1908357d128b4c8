//! How many events of an identifier were delivered and how many of them are acknowledged.
//!
//! The service counts what it delivered and tells the count when an identifier migrates or is destroyed; this side counts
//! acknowledgements by the channel they were fetched from. After a migration no event comes out of the old channel any
//! more, so *delivered from the old channel* is fixed, and waiting for that many acknowledgements of that channel is
//! exact: an event that the new channel delivers meanwhile, and whoever acknowledges it, cannot be mistaken for one.
//!
//! An account that is closed while events are missing (a deadline passed) is a debt. Acknowledgements pay it off whoever
//! waits, and the next one to wait waits for that debt, too.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;
use std::time::Instant;

#[derive(Default)]
pub(crate) struct Ledger {
    state: Mutex<State>,
    acknowledged: Condvar,
}

#[derive(Default)]
struct State {
    /// Acknowledged over the identifier's life.
    total: u32,
    /// Events delivered before the present channel.
    settled: u32,
    /// By channel serial, what was acknowledged less what was delivered, where the channel's account is closed: of the
    /// present channel, and of those before it that are in debt. Nothing is kept of a balance of zero.
    balances: Vec<(u64, i64)>,
    /// The unacknowledged events.
    held: Vec<Held>,
    /// Threads that wait for acknowledgements; waking nobody is a system call, too.
    waiting: u32,
}

/// An unacknowledged event.
struct Held {
    /// Who fetched it, unless it was handed over.
    holder: Option<ThreadId>,
    name: &'static str,
}

impl Ledger {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic cannot leave the counts half changed: every update is one assignment.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An event was fetched by `thread`.
    pub(crate) fn fetched(&self, thread: ThreadId, name: &'static str) {
        self.lock().held.push(Held {
            holder: Some(thread),
            name,
        });
    }

    /// The event counts as held by another thread from now on, or by none that is known.
    pub(crate) fn pass(&self, from: Option<ThreadId>, to: Option<ThreadId>, name: &'static str) {
        let mut state = self.lock();
        if let Some(at) = state.position(from, name) {
            state.held[at].holder = to;
        }
    }

    /// An event fetched from the channel is acknowledged; `thread` is its fetcher unless it was handed over. How many
    /// are acknowledged in all.
    pub(crate) fn acknowledge(
        &self,
        channel: u64,
        thread: Option<ThreadId>,
        name: &'static str,
    ) -> u32 {
        let mut state = self.lock();
        if let Some(at) = state.position(thread, name) {
            state.held.swap_remove(at);
        }
        state.add(channel, 1);
        state.total = state.total.wrapping_add(1);
        let (total, waiting) = (state.total, state.waiting);
        drop(state);
        if waiting > 0 {
            self.acknowledged.notify_all();
        }
        total
    }

    /// Whether any event was ever acknowledged.
    pub(crate) fn has_acknowledged(&self) -> bool {
        self.lock().total > 0
    }

    /// The names of the unacknowledged events that the calling thread fetched and still holds.
    pub(crate) fn held_by_caller(&self) -> Vec<&'static str> {
        let caller = std::thread::current().id();
        let state = self.lock();
        let own = |held: &&Held| held.holder == Some(caller);
        state
            .held
            .iter()
            .filter(own)
            .map(|held| held.name)
            .collect()
    }

    /// Closes the account of the channel. `reported` is the service's count over the identifier's life. To be called in
    /// the order in which the service counted.
    pub(crate) fn close_account(&self, channel: u64, reported: u32) -> Debts {
        let mut state = self.lock();
        let due = reported.wrapping_sub(state.settled);
        state.settled = reported;
        state.add(channel, -i64::from(due));
        // More than is due happens only when an identifier migrates to the channel it is on.
        let in_debt = state.balances.iter().filter(|(_, balance)| *balance < 0);
        Debts(in_debt.map(|&(serial, _)| serial).collect())
    }

    /// Waits until the debts are paid: all events that those channels delivered are acknowledged. At `until` the wait ends
    /// with the names of the events that are held.
    pub(crate) fn wait(
        &self,
        debts: &Debts,
        until: Option<Instant>,
    ) -> Result<(), Vec<&'static str>> {
        let mut state = self.lock();
        while debts.0.iter().any(|&channel| state.is_in_debt(channel)) {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Err(state.held.iter().map(|held| held.name).collect());
            }
            state.waiting += 1;
            state = match left {
                None => self
                    .acknowledged
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner),
                Some(left) => {
                    self.acknowledged
                        .wait_timeout(state, left)
                        .unwrap_or_else(PoisonError::into_inner)
                        .0
                }
            };
            state.waiting -= 1;
        }
        Ok(())
    }
}

/// The channels whose closed accounts were in debt at some time.
#[must_use]
pub(crate) struct Debts(Vec<u64>);

impl State {
    fn add(&mut self, channel: u64, amount: i64) {
        match self
            .balances
            .iter_mut()
            .find(|(serial, _)| *serial == channel)
        {
            Some((_, balance)) => *balance += amount,
            None => self.balances.push((channel, amount)),
        }
        self.balances.retain(|(_, balance)| *balance != 0);
    }

    fn is_in_debt(&self, channel: u64) -> bool {
        self.balances
            .iter()
            .any(|&(serial, balance)| serial == channel && balance < 0)
    }

    fn position(&self, holder: Option<ThreadId>, name: &'static str) -> Option<usize> {
        self.held
            .iter()
            .position(|held| held.holder == holder && held.name == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    const NAME: &str = "RDMA_CM_EVENT_ESTABLISHED";

    fn me() -> ThreadId {
        std::thread::current().id()
    }

    fn settle(
        ledger: &Ledger,
        channel: u64,
        reported: u32,
        until: Option<Instant>,
    ) -> Result<(), Vec<&'static str>> {
        let debts = ledger.close_account(channel, reported);
        ledger.wait(&debts, until)
    }

    /// R-MIG-5: the service's count over the identifier's life is compared with the acknowledgements; equal is done.
    #[test]
    fn nothing_outstanding_settles_at_once() {
        let ledger = Ledger::default();
        settle(&ledger, 1, 0, None).unwrap();
        ledger.fetched(me(), NAME);
        ledger.acknowledge(1, Some(me()), NAME);
        settle(&ledger, 1, 1, None).unwrap();
        assert!(ledger.held_by_caller().is_empty());
    }

    /// R-MIG-3: an acknowledgement on the new channel does not pay for an event of the old one.
    #[test]
    fn acknowledgements_of_the_new_channel_do_not_count_for_the_old() {
        let ledger = Arc::new(Ledger::default());
        let settled = Arc::new(AtomicBool::new(false));
        ledger.fetched(me(), NAME);
        let waiter = {
            let (ledger, settled) = (Arc::clone(&ledger), Arc::clone(&settled));
            std::thread::spawn(move || {
                settle(&ledger, 1, 1, None).unwrap();
                settled.store(true, Ordering::SeqCst);
            })
        };
        for _ in 0..100 {
            ledger.acknowledge(2, None, NAME);
            std::thread::yield_now();
        }
        assert!(!settled.load(Ordering::SeqCst));
        ledger.acknowledge(1, Some(me()), NAME);
        waiter.join().unwrap();
        // The hundred of the second channel are still on its account.
        settle(&ledger, 2, 101, None).unwrap();
    }

    #[test]
    fn migrating_to_the_same_channel_leaves_newer_acknowledgements_on_the_account() {
        let ledger = Ledger::default();
        ledger.acknowledge(1, None, NAME);
        ledger.acknowledge(1, None, NAME);
        settle(&ledger, 1, 1, None).unwrap();
        settle(&ledger, 1, 2, None).unwrap();
    }

    #[test]
    fn handed_over_events_are_not_the_callers() {
        let ledger = Ledger::default();
        ledger.fetched(me(), NAME);
        ledger.fetched(me(), NAME);
        ledger.pass(Some(me()), None, NAME);
        assert_eq!(ledger.held_by_caller(), [NAME]);
    }

    /// R-MIG-3: who gives up waiting leaves a debt; the next one waits for it, too, and the names say what is missing.
    #[test]
    fn a_debt_is_waited_for_by_the_next_one() {
        let ledger = Ledger::default();
        ledger.fetched(me(), NAME);
        let now = Some(Instant::now());
        assert_eq!(settle(&ledger, 1, 1, now), Err(vec![NAME]));
        // The second channel delivered nothing; the first still lacks one.
        assert_eq!(settle(&ledger, 2, 1, now), Err(vec![NAME]));
        ledger.acknowledge(1, Some(me()), NAME);
        assert_eq!(settle(&ledger, 3, 1, now), Ok(()));
    }

    #[test]
    fn an_acknowledgement_before_the_deadline_ends_the_wait() {
        let ledger = Arc::new(Ledger::default());
        ledger.fetched(me(), NAME);
        let waiter = {
            let ledger = Arc::clone(&ledger);
            let until = Instant::now() + Duration::from_secs(300);
            std::thread::spawn(move || settle(&ledger, 1, 1, Some(until)))
        };
        ledger.acknowledge(1, Some(me()), NAME);
        waiter.join().unwrap().unwrap();
    }
}
