//! Looking again for a moment before sleeping.
//!
//! Waking a sleeping thread costs ten times what the host service needs for an answer, so whoever waits for one looks
//! again for about as long as a wake-up takes. It gives way to others at every look, and when a look shows that the cores
//! have other work (it came back late), this process sleeps at once for a while: a thread that gives way among busy ones
//! waits longer than one that sleeps and is woken.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use oarlock_port::fork::PerProcess;

/// A wait that has not slept yet.
#[derive(Debug)]
pub struct Patience {
    until: Instant,
}

impl Patience {
    /// Begins a wait; `None` where it is better to sleep at once: on one core, or while others want the cores.
    #[must_use]
    pub fn new() -> Option<Self> {
        let now = Instant::now();
        if !has_cores() || nanos(now) < CROWDED_UNTIL.load(Ordering::Relaxed) {
            return None;
        }
        Some(Self {
            until: now + LONGEST,
        })
    }

    /// Lets others run; whether it is worth looking once more.
    #[must_use]
    pub fn look_again(&mut self) -> bool {
        let before = Instant::now();
        std::thread::yield_now();
        let now = Instant::now();
        if now - before > LATE {
            let pause = (PAUSE.load(Ordering::Relaxed) * 2).min(LONGEST_PAUSE);
            PAUSE.store(pause, Ordering::Relaxed);
            CROWDED_UNTIL.store(nanos(now) + pause, Ordering::Relaxed);
            return false;
        }
        now < self.until
    }

    /// The wait ended without sleeping.
    pub fn paid_off(&self) {
        if PAUSE.load(Ordering::Relaxed) != SHORTEST_PAUSE {
            PAUSE.store(SHORTEST_PAUSE, Ordering::Relaxed);
        }
    }
}

fn has_cores() -> bool {
    static CORES: PerProcess<bool> = PerProcess::new(|parents| {
        let count = || std::thread::available_parallelism().is_ok_and(|n| n.get() > 1);
        parents.copied().unwrap_or_else(count)
    });
    *CORES.get()
}

fn nanos(time: Instant) -> u64 {
    static START: PerProcess<Instant> =
        PerProcess::new(|parents| parents.copied().unwrap_or_else(Instant::now));
    time.saturating_duration_since(*START.get()).as_nanos() as u64
}

/// About what one wake-up costs.
const LONGEST: Duration = Duration::from_micros(50);
/// Programs of ours that work on a request give the core back sooner.
const LATE: Duration = Duration::from_micros(300);
const SHORTEST_PAUSE: u64 = 5_000_000;
const LONGEST_PAUSE: u64 = 640_000_000;

/// Nanoseconds from the first wait of this process.
static CROWDED_UNTIL: AtomicU64 = AtomicU64::new(0);
/// How long to sleep at once after the next late return.
static PAUSE: AtomicU64 = AtomicU64::new(SHORTEST_PAUSE);

#[cfg(test)]
mod tests {
    use super::Patience;

    #[test]
    fn every_wait_comes_to_its_end() {
        for _ in 0..10 {
            if let Some(mut waiting) = Patience::new() {
                while waiting.look_again() {}
                waiting.paid_off();
            }
        }
    }
}
