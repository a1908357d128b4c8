//! How fast packets follow one another.

use core::time::Duration;

use oarlock_wire::Time;

/// At most `burst` packets in each stretch of `pause`.
///
/// Nobody acknowledges on an unreliable connection, so nothing else keeps a long message from running over the receiver's
/// socket buffer.
#[derive(Debug)]
pub(super) struct Pace {
    burst: u32,
    pause: Duration,
    /// When the first packet of the burst was sent.
    since: Time,
    /// Packets of the burst.
    sent: u32,
    /// The burst is full: nothing is sent before.
    until: Option<Time>,
}

impl Pace {
    pub(super) const fn new(burst: u32, pause: Duration) -> Self {
        Self {
            burst,
            pause,
            since: Time::ZERO,
            sent: 0,
            until: None,
        }
    }

    /// Ends the pause if it is over.
    pub(super) fn lift(&mut self, now: Time) {
        if self.until.is_some_and(|until| now >= until) {
            self.clear();
        }
    }

    pub(super) const fn until(&self) -> Option<Time> {
        self.until
    }

    pub(super) fn count(&mut self, now: Time) {
        if self.sent == 0 || now >= self.since + self.pause {
            self.since = now;
            self.sent = 0;
        }
        self.sent += 1;
        if self.sent >= self.burst && !self.pause.is_zero() {
            self.until = Some(self.since + self.pause);
        }
    }

    pub(super) const fn clear(&mut self) {
        self.sent = 0;
        self.until = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSE: Duration = Duration::from_micros(50);

    fn at(micros: u64) -> Time {
        Time::ZERO + Duration::from_micros(micros)
    }

    #[test]
    fn a_full_burst_waits_for_the_rest_of_its_stretch() {
        let mut pace = Pace::new(3, PAUSE);
        for micros in [100, 110, 120] {
            assert_eq!(pace.until(), None);
            pace.count(at(micros));
        }
        assert_eq!(pace.until(), Some(at(150)));
        pace.lift(at(149));
        assert_eq!(pace.until(), Some(at(150)));
        pace.lift(at(150));
        assert_eq!(pace.until(), None);
    }

    #[test]
    fn packets_far_apart_never_wait() {
        let mut pace = Pace::new(2, PAUSE);
        for n in 0..100 {
            pace.count(at(n * 50));
            assert_eq!(pace.until(), None);
        }
        pace.count(at(99 * 50 + 49));
        assert_eq!(pace.until(), Some(at(100 * 50)));
    }

    #[test]
    fn no_pause_is_no_limit() {
        let mut pace = Pace::new(1, Duration::ZERO);
        for _ in 0..10 {
            pace.count(at(7));
            assert_eq!(pace.until(), None);
        }
    }
}
