//! Programs that wait for bytes in memory that their peer writes call nobody meanwhile: what arrives is placed by the
//! engine, which sleeps, and has to get a processor beside a thread that never does. Such a program usually writes to its
//! peer, and then waits for the peer's answer. So a thread that has posted a request receives for a moment, if the program has
//! been seen to wait so, and nothing else of its queue pair was on its way.
//!
//! It is a bet: one is allowed when the engine has placed a WRITE, and more while they are won. Lost ones are allowed more
//! and more rarely.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::endpoint::Core;

#[derive(Default)]
pub(crate) struct Linger {
    /// Bets that are allowed.
    allowed: AtomicU32,
    /// Lost in a row.
    lost: AtomicU32,
    /// Times that the engine has placed a WRITE since the last loss.
    seen: AtomicU32,
}

impl Linger {
    /// The engine has placed a peer's WRITE.
    pub(crate) fn engine_placed(&self) {
        let seen = self.seen.fetch_add(1, Ordering::Relaxed) + 1;
        if seen >> self.lost.load(Ordering::Relaxed).min(MOST_LOST) > 0 {
            self.allowed.fetch_max(1, Ordering::Relaxed);
        }
    }

    /// The last bet was won: the program receives when it posts.
    pub(crate) fn is_winning(&self) -> bool {
        self.allowed.load(Ordering::Relaxed) == WON
    }

    /// Packets wait, and nobody receives: winning is over.
    pub(crate) fn doubt(&self) {
        self.allowed.fetch_min(WON - 1, Ordering::Relaxed);
    }

    fn is_allowed(&self) -> bool {
        self.allowed.load(Ordering::Relaxed) > 0
    }

    fn won(&self) {
        self.allowed.store(WON, Ordering::Relaxed);
        self.lost.store(0, Ordering::Relaxed);
    }

    fn lost(&self) {
        let less = |allowed: u32| allowed.checked_sub(1);
        let _ = self
            .allowed
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        self.lost.fetch_add(1, Ordering::Relaxed);
        self.seen.store(0, Ordering::Relaxed);
    }
}

impl Core {
    /// What a thread remembers before it posts.
    pub(crate) fn placed_writes(&self) -> u64 {
        self.counters().writes_placed.get()
    }

    /// Receives until a peer's WRITE has been placed since `before`, at most for [`LONGEST`]; returns at once unless the
    /// program waits so. Called with nothing locked.
    pub(crate) fn linger(self: &Arc<Self>, before: u64) {
        let linger = self.lingering();
        if !linger.is_allowed() {
            return;
        }
        let mut end = None;
        loop {
            for _ in 0..LOOKS {
                if self.placed_writes() != before {
                    return linger.won();
                }
                self.progress_once();
            }
            let now = self.now();
            if now >= *end.get_or_insert(now + LONGEST) {
                break;
            }
        }
        linger.lost();
        self.call_back();
    }
}

/// A few times there and back on one host.
const LONGEST: Duration = Duration::from_micros(60);
/// Looks at the port between two looks at the clock.
const LOOKS: u32 = 8;
/// Bets that a won one allows.
const WON: u32 = 2;
/// After so many lost bets one is allowed for 2^10 of the engine's placements.
const MOST_LOST: u32 = 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bet_is_allowed_when_the_engine_has_placed_and_while_they_are_won() {
        let linger = Linger::default();
        assert!(!linger.is_allowed());
        linger.engine_placed();
        assert!(linger.is_allowed() && !linger.is_winning());
        linger.won();
        assert!(linger.is_winning());
        linger.doubt();
        assert!(linger.is_allowed() && !linger.is_winning());
        linger.won();
        linger.lost();
        assert!(linger.is_allowed(), "one may be lost");
        assert!(!linger.is_winning());
        linger.lost();
        assert!(!linger.is_allowed());
    }

    #[test]
    fn lost_bets_become_rare() {
        let linger = Linger::default();
        let mut bets = 0_u32;
        for _ in 0..100_000 {
            linger.engine_placed();
            if linger.is_allowed() {
                bets += 1;
                linger.lost();
            }
        }
        assert!((11..=110).contains(&bets), "{bets}");
        linger.engine_placed();
        while !linger.is_allowed() {
            linger.engine_placed();
        }
        linger.won();
        linger.lost();
        linger.lost();
        linger.engine_placed();
        assert!(!linger.is_allowed());
        for _ in 0..3 {
            linger.engine_placed();
        }
        assert!(linger.is_allowed(), "two were lost in a row");
    }
}
