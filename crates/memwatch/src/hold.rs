//! Holds: while one lives, nobody reads the kernel's events, so that no call that changes watched memory returns.
//!
//! ```text
//!   who copies                           who reads events (the reader, or a thread that settles)
//!     count += 1                           busy = yes
//!     busy? then count -= 1, wait, again   wait until count == 0
//!     mark gone? then count -= 1, no       read, mark
//!     copy                                 busy = no
//!     count -= 1
//! ```
//!
//! Each side writes its own word before it looks at the other's, all sequentially consistent: at least one of them sees the other.

use std::cell::Cell;
use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::shared::Patience;

/// Keeps calls that change a region from returning; see [`Validity::hold`](crate::Validity::hold).
#[must_use = "the region is held until this is dropped"]
pub struct Hold<'a> {
    shard: &'a AtomicU64,
    epoch: u64,
}

impl Drop for Hold<'_> {
    #[inline]
    fn drop(&mut self) {
        let mut word = self.shard.load(Ordering::Relaxed);
        // Of an older epoch: whoever read has given this one up, and counts it no longer.
        while word >> COUNT_BITS == self.epoch {
            match self.shard.compare_exchange_weak(
                word,
                word - 1,
                Ordering::SeqCst,
                Ordering::Relaxed,
            ) {
                Ok(_) => return,
                Err(now) => word = now,
            }
        }
    }
}

impl fmt::Debug for Hold<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold").finish_non_exhaustive()
    }
}

/// How many holds of a Watcher's regions live.
#[derive(Debug)]
pub(crate) struct Holds {
    shards: [Shard; SHARDS],
    given_up: AtomicU64,
}

/// A count in the lower half; in the upper half an epoch, which changes when living holds are given up.
///
/// Each in cache lines of its own (processors fetch them in pairs): threads that hold do not slow each other down.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Shard(AtomicU64);

impl Holds {
    pub(crate) fn new() -> Self {
        Self {
            shards: Default::default(),
            given_up: AtomicU64::new(0),
        }
    }

    /// Counts one. It holds only if, looked at afterwards, nobody reads.
    #[inline]
    pub(crate) fn begin(&self) -> Hold<'_> {
        let shard = &self.shards[shard_of_this_thread()].0;
        let before = shard.fetch_add(1, Ordering::SeqCst);
        Hold {
            shard,
            epoch: before >> COUNT_BITS,
        }
    }

    /// Waits until no hold lives that began before the caller said that it reads; false if one lives on after all patience.
    pub(crate) fn wait(&self) -> bool {
        let mut patience = Patience::new();
        let mut deadline = None;
        for shard in &self.shards {
            while shard.0.load(Ordering::SeqCst) & COUNT != 0 {
                let deadline = deadline.get_or_insert_with(|| Instant::now() + PATIENCE);
                if Instant::now() > *deadline {
                    return false;
                }
                patience.wait();
            }
        }
        true
    }

    /// Counts the holds that live no longer. Before this, every mark has to be cleared.
    pub(crate) fn give_up(&self) {
        for shard in &self.shards {
            let mut word = shard.0.load(Ordering::SeqCst);
            while word & COUNT != 0 {
                let next = ((word >> COUNT_BITS) + 1) << COUNT_BITS;
                match shard
                    .0
                    .compare_exchange(word, next, Ordering::SeqCst, Ordering::SeqCst)
                {
                    Ok(_) => {
                        self.given_up.fetch_add(word & COUNT, Ordering::Relaxed);
                        break;
                    }
                    Err(now) => word = now,
                }
            }
        }
    }

    /// How many were given up, since the beginning.
    pub(crate) fn given_up(&self) -> u64 {
        self.given_up.load(Ordering::Relaxed)
    }
}

/// Threads take turns.
#[inline]
fn shard_of_this_thread() -> usize {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    thread_local! {
        static MINE: Cell<u32> = const { Cell::new(UNKNOWN) };
    }
    let known = MINE.with(Cell::get);
    if known != UNKNOWN {
        return known as usize;
    }
    let mine = NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS as u32;
    MINE.set(mine);
    mine as usize
}

const SHARDS: usize = 8;
const UNKNOWN: u32 = u32::MAX;
const COUNT_BITS: u32 = 32;
const COUNT: u64 = (1 << COUNT_BITS) - 1;
/// A hold lasts microseconds; its thread may have to wait for a processor meanwhile.
const PATIENCE: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_is_waited_for_and_then_given_up() {
        let holds = Holds::new();
        assert!(holds.wait());
        let (first, second) = (holds.begin(), holds.begin());
        assert!(!holds.wait());
        drop(first);
        holds.give_up();
        assert_eq!(holds.given_up(), 1);
        assert!(holds.wait(), "counted no longer");
        let third = holds.begin();
        // Of the epoch before: the count is the third one's.
        drop(second);
        assert!(!holds.wait());
        drop(third);
        assert!(holds.wait());
        assert_eq!(holds.given_up(), 1);
    }

    #[test]
    fn a_hold_may_end_on_another_thread() {
        let holds = Holds::new();
        std::thread::scope(|scope| {
            for _ in 0..20 {
                let hold = holds.begin();
                scope.spawn(move || drop(hold));
            }
        });
        assert!(holds.wait());
    }
}
