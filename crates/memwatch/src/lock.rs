//! A lock that knows its owner, so that the death of a thread inside a call is noticed instead of waited for.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use rustix::thread::Timespec;
use rustix::thread::futex::{self, Flags};

use crate::sys::{thread_exists, thread_id};

/// The thread that held a lock ended without releasing it. What it guarded is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OwnerDied;

/// Mutual exclusion over `T`. Not for use in a forked child.
///
/// The word decides who may enter, and names the owner; the mutex inside is only ever taken by that thread. The death of an owner whose
/// id another thread has got before anybody looked is not noticed: ids go round.
/// In cache lines of its own: others of the same structure are read all the time.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Lock<T> {
    word: AtomicU32,
    lost: AtomicBool,
    value: Mutex<T>,
}

impl<T> Lock<T> {
    pub(crate) fn new(value: T) -> Self {
        Self {
            word: AtomicU32::new(FREE),
            lost: AtomicBool::new(false),
            value: Mutex::new(value),
        }
    }

    /// As if an owner had died.
    pub(crate) fn lose(&self) {
        self.lost.store(true, Ordering::Release);
    }

    /// Whether an owner has died, or it was [given up](Self::lose). Never becomes false again.
    #[inline]
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// Whether this thread has it.
    pub(crate) fn is_mine(&self) -> bool {
        self.word.load(Ordering::Relaxed) & !WAITERS == thread_id()
    }

    /// Takes the lock if it is free.
    pub(crate) fn try_lock(&self) -> Option<Guard<'_, T>> {
        self.word
            .compare_exchange(FREE, thread_id(), Ordering::Acquire, Ordering::Relaxed)
            .ok()
            .and_then(|_| self.enter().ok())
    }

    /// Waits for the lock.
    ///
    /// # Panics
    /// If this thread holds it: a call was made from a signal handler inside another call.
    pub(crate) fn lock(&self) -> Result<Guard<'_, T>, OwnerDied> {
        let me = thread_id();
        for _ in 0..SPINS {
            match self
                .word
                .compare_exchange(FREE, me, Ordering::Acquire, Ordering::Relaxed)
            {
                Ok(_) => return self.enter(),
                Err(_) => std::hint::spin_loop(),
            }
        }
        loop {
            let word = self.word.load(Ordering::Relaxed);
            if word == FREE {
                // Others may be waiting, too: nobody knows, so whoever releases wakes one.
                if self
                    .word
                    .compare_exchange(FREE, me | WAITERS, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
                {
                    return self.enter();
                }
                continue;
            }
            assert_ne!(
                word & !WAITERS,
                me,
                "a call inside a call of the same watcher"
            );
            if word & WAITERS == 0
                && self
                    .word
                    .compare_exchange(word, word | WAITERS, Ordering::Relaxed, Ordering::Relaxed)
                    .is_err()
            {
                continue;
            }
            self.check_owner()?;
            // Woken, changed before, interrupted or at the end of patience: all are reasons to look again.
            let _ = futex::wait(&self.word, Flags::PRIVATE, word | WAITERS, Some(&PATIENCE));
        }
    }

    /// Finds out whether the owner, if there is one, is alive.
    pub(crate) fn check_owner(&self) -> Result<(), OwnerDied> {
        let word = self.word.load(Ordering::Acquire);
        if word != FREE
            && !thread_exists(word & !WAITERS)
            && self.word.load(Ordering::Acquire) == word
        {
            self.lost.store(true, Ordering::Release);
        }
        match self.is_lost() {
            true => Err(OwnerDied),
            false => Ok(()),
        }
    }

    /// The word is ours.
    fn enter(&self) -> Result<Guard<'_, T>, OwnerDied> {
        match self.value.try_lock() {
            Ok(value) => Ok(Guard {
                lock: self,
                value: Some(value),
            }),
            Err(TryLockError::Poisoned(poisoned)) => Ok(Guard {
                lock: self,
                value: Some(PoisonError::into_inner(poisoned)),
            }),
            // Its owner has died, and the word was released by one that came between.
            Err(TryLockError::WouldBlock) => {
                self.lost.store(true, Ordering::Release);
                Err(OwnerDied)
            }
        }
    }
}

/// The lock is held.
#[derive(Debug)]
pub(crate) struct Guard<'a, T> {
    lock: &'a Lock<T>,
    /// `None` while it is dropped.
    value: Option<MutexGuard<'a, T>>,
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.value
            .as_ref()
            .expect("held until the guard is dropped")
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.value
            .as_mut()
            .expect("held until the guard is dropped")
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        self.value = None;
        if self.lock.word.swap(FREE, Ordering::Release) & WAITERS != 0 {
            let _ = futex::wake(&self.lock.word, Flags::PRIVATE, 1);
        }
    }
}

const FREE: u32 = 0;
/// Thread ids are below 2^22.
const WAITERS: u32 = 1 << 31;
const SPINS: u32 = 64;
/// How long to wait before the owner is looked at again.
const PATIENCE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 20_000_000,
};

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;

    use super::*;

    #[test]
    fn one_thread_at_a_time() {
        let lock = Arc::new(Lock::new(0u64));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let lock = Arc::clone(&lock);
                thread::spawn(move || {
                    for _ in 0..20_000 {
                        let mut value = lock.lock().expect("no owner dies");
                        let was = *value;
                        std::hint::black_box(&mut value);
                        *value = was + 1;
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().expect("no panic");
        }
        assert_eq!(*lock.lock().expect("alive"), 80_000);
    }

    #[test]
    fn a_dead_owner_is_noticed_and_not_waited_for() {
        let lock: &'static Lock<u64> = Box::leak(Box::new(Lock::new(0)));
        thread::spawn(|| std::mem::forget(lock.lock()))
            .join()
            .expect("no panic");
        assert_eq!(lock.lock().err(), Some(OwnerDied));
        assert!(lock.is_lost());
        assert!(lock.try_lock().is_none());
    }

    #[test]
    fn a_panic_inside_leaves_the_lock_usable() {
        let lock: &'static Lock<u64> = Box::leak(Box::new(Lock::new(7)));
        let panicked = thread::spawn(|| {
            let _held = lock.lock();
            panic!("on purpose");
        })
        .join();
        assert!(panicked.is_err());
        assert_eq!(*lock.lock().expect("released by unwinding"), 7);
    }
}
