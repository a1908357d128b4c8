//! A lock that one call from C takes and a later one gives back.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Whose turn it is: nobody's, or that of the thread that took it.
#[derive(Default)]
pub(super) struct Turn {
    is_taken: Mutex<bool>,
    given_back: Condvar,
}

impl Turn {
    /// Waits until it is nobody's, and takes it.
    pub(super) fn take(&self) {
        let taken = self
            .given_back
            .wait_while(self.lock(), |is_taken| *is_taken)
            .map(|mut is_taken| *is_taken = true);
        taken.unwrap_or_else(|poisoned| *poisoned.into_inner() = true);
    }

    /// For the next; nothing if it is nobody's.
    pub(super) fn give_back(&self) {
        *self.lock() = false;
        self.given_back.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, bool> {
        self.is_taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn one_at_a_time() {
        let (turn, inside, rounds) = (Turn::default(), AtomicU32::new(0), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        turn.take();
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        rounds.fetch_add(1, Ordering::SeqCst);
                        inside.fetch_sub(1, Ordering::SeqCst);
                        turn.give_back();
                    }
                });
            }
        });
        assert_eq!(rounds.load(Ordering::SeqCst), 800);
    }
}
