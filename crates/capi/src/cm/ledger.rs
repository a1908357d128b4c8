//! How many events of an identifier were delivered, and how many of them are acknowledged.
//!
//! The service counts what it delivered and tells the count when an identifier migrates or is destroyed; this side counts
//! acknowledgements by the channel that the event came out of. After a migration nothing of the identifier comes out of the
//! old channel any more, so that waiting for what that channel delivered is exact: an event of the new channel that is
//! acknowledged meanwhile is not mistaken for one of the old.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

#[derive(Default)]
pub(crate) struct Ledger {
    book: Mutex<Book>,
    changed: Condvar,
}

#[derive(Default)]
struct Book {
    /// Acknowledged over the identifier's life.
    total: u32,
    /// Delivered before the present channel.
    settled: u32,
    /// By channel: acknowledged, less what was delivered where that is known. No entry is zero.
    balances: HashMap<u64, i64>,
    /// Names of the events that are not acknowledged.
    held: Vec<&'static str>,
    /// Threads that wait; waking nobody is a system call, too.
    waiting: u32,
}

impl Book {
    fn add(&mut self, channel: u64, count: i64) {
        let balance = self.balances.entry(channel).or_default();
        *balance += count;
        if *balance == 0 {
            self.balances.remove(&channel);
        }
    }
}

impl Ledger {
    fn lock(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An event is given to the program.
    pub(crate) fn delivered(&self, name: &'static str) {
        self.lock().held.push(name);
    }

    /// It is acknowledged; how many are, over the identifier's life.
    pub(crate) fn acknowledged(&self, channel: u64, name: &'static str) -> u32 {
        let mut book = self.lock();
        if let Some(at) = book.held.iter().position(|held| *held == name) {
            book.held.swap_remove(at);
        }
        self.count(book, channel)
    }

    /// The library took an event that the program never sees.
    pub(crate) fn swallowed(&self, channel: u64) -> u32 {
        self.count(self.lock(), channel)
    }

    fn count(&self, mut book: MutexGuard<'_, Book>, channel: u64) -> u32 {
        book.add(channel, 1);
        book.total = book.total.wrapping_add(1);
        let (total, waiting) = (book.total, book.waiting);
        drop(book);
        if waiting > 0 {
            self.changed.notify_all();
        }
        total
    }

    /// Nothing more comes out of `channel`; `reported` is the service's count over the identifier's life. To be called in the
    /// order in which the service counted.
    pub(crate) fn close_account(&self, channel: u64, reported: u32) {
        let mut book = self.lock();
        let due = reported.wrapping_sub(book.settled);
        book.settled = reported;
        book.add(channel, -i64::from(due));
    }

    /// Waits until every event of the accounts closed so far is acknowledged. After a second the log names those that are
    /// missing: the thread that should acknowledge them may be this one.
    pub(crate) fn wait(&self, who: &dyn fmt::Display) {
        let mut book = self.lock();
        book.waiting += 1;
        let mut is_told = false;
        while book.balances.values().any(|balance| *balance < 0) {
            let (next, timeout) = self
                .changed
                .wait_timeout(book, if is_told { LONG } else { PATIENCE })
                .unwrap_or_else(PoisonError::into_inner);
            book = next;
            if timeout.timed_out() && !is_told && !book.held.is_empty() {
                is_told = true;
                tracing::error!(
                    "{who} waits for rdma_ack_cm_event on {}",
                    book.held.join(", ")
                );
            }
        }
        book.waiting -= 1;
    }
}

/// How long a wait is nobody's business.
const PATIENCE: Duration = Duration::from_secs(1);
/// Any time will do: the wait goes on.
const LONG: Duration = Duration::from_secs(3600);

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    /// R-MIG-3: what the new channel delivers and is acknowledged does not pay for an event of the old one.
    #[test]
    fn a_wait_is_for_the_old_channel_only() {
        let ledger = Ledger::default();
        ledger.delivered("OLD");
        ledger.close_account(1, 1);
        ledger.delivered("NEW");
        assert_eq!(ledger.acknowledged(2, "NEW"), 1);
        let is_paid = AtomicBool::new(false);
        thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                ledger.wait(&"the test");
                assert!(is_paid.load(Ordering::Acquire), "the old event is missing");
            });
            while ledger.lock().waiting == 0 {
                thread::yield_now();
            }
            is_paid.store(true, Ordering::Release);
            assert_eq!(ledger.acknowledged(1, "OLD"), 2);
            waiter.join().expect("it waited for the old event");
        });
    }

    /// R-MIG-3: nothing is waited for when everything is acknowledged, in whatever order the service and the program
    /// counted, and wherever the identifier has been.
    #[test]
    fn nothing_is_left_of_what_is_acknowledged() {
        let ledger = Ledger::default();
        for name in ["A", "B", "C"] {
            ledger.delivered(name);
        }
        assert_eq!(ledger.acknowledged(1, "B"), 1);
        assert_eq!(ledger.acknowledged(1, "A"), 2);
        ledger.close_account(1, 2);
        ledger.wait(&"the test");
        assert_eq!(ledger.swallowed(2), 3);
        assert_eq!(ledger.acknowledged(2, "C"), 4);
        ledger.close_account(2, 4);
        ledger.close_account(1, 4);
        ledger.wait(&"the test");
        let book = ledger.lock();
        assert!(book.balances.is_empty() && book.held.is_empty());
    }
}
