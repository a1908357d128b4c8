//! Deadlines and retry counts of a requester.

use core::time::Duration;

use oarlock_wire::{Time, earliest};

/// What may be waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Timer {
    /// The oldest packet on its way is not acknowledged yet (IBA Vol. 1 ch. 9 "Transport timer").
    Ack,
    /// The peer asked to be left alone (ch. 9 "RNR NAK").
    Rnr,
}

impl Timer {
    const ALL: [Self; 2] = [Self::Ack, Self::Rnr];
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Timers {
    deadlines: [Option<Time>; Timer::ALL.len()],
}

impl Timers {
    pub(crate) const fn is_set(&self, timer: Timer) -> bool {
        self.deadlines[timer as usize].is_some()
    }

    /// Sets the deadline; a `wait` of `None` is for ever.
    pub(crate) fn set(&mut self, timer: Timer, now: Time, wait: Option<Duration>) {
        self.deadlines[timer as usize] = wait.map(|wait| now + wait);
    }

    pub(crate) const fn clear(&mut self, timer: Timer) {
        self.deadlines[timer as usize] = None;
    }

    pub(crate) fn clear_all(&mut self) {
        *self = Self::default();
    }

    /// Takes the deadline out if it has come.
    pub(crate) fn take_due(&mut self, timer: Timer, now: Time) -> bool {
        let deadline = &mut self.deadlines[timer as usize];
        deadline.take_if(|deadline| *deadline <= now).is_some()
    }

    pub(crate) fn next(&self) -> Option<Time> {
        self.deadlines.iter().copied().fold(None, earliest)
    }
}

/// How many repetitions are left.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Retries {
    left: u8,
    is_unlimited: bool,
}

impl Retries {
    pub(crate) const fn limited(count: u8) -> Self {
        Self {
            left: count,
            is_unlimited: false,
        }
    }

    /// An RNR retry count: 7 is without limit.
    pub(crate) const fn rnr(count: u8) -> Self {
        Self {
            left: count,
            is_unlimited: count == 7,
        }
    }

    /// Takes one; false when none was left.
    pub(crate) const fn take(&mut self) -> bool {
        if self.is_unlimited {
            return true;
        }
        if self.left == 0 {
            return false;
        }
        self.left -= 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earliest_deadline_wins_and_is_due_once() {
        let mut timers = Timers::default();
        assert_eq!(timers.next(), None);
        timers.set(Timer::Ack, Time::ZERO, Some(Duration::from_millis(5)));
        timers.set(Timer::Rnr, Time::ZERO, Some(Duration::from_millis(3)));
        assert_eq!(timers.next(), Some(Time::from_nanos(3_000_000)));
        assert!(!timers.take_due(Timer::Rnr, Time::from_nanos(2_999_999)));
        assert!(timers.take_due(Timer::Rnr, Time::from_nanos(3_000_000)));
        assert!(!timers.take_due(Timer::Rnr, Time::from_nanos(3_000_000)));
        timers.set(Timer::Ack, Time::ZERO, None);
        assert_eq!(timers.next(), None);
    }

    #[test]
    fn seven_rnr_retries_are_without_limit() {
        let mut six = Retries::rnr(6);
        let mut seven = Retries::rnr(7);
        let mut seven_timeouts = Retries::limited(7);
        assert!((0..6).all(|_| six.take()));
        assert!(!six.take());
        assert!((0..100).all(|_| seven.take()));
        assert!((0..7).all(|_| seven_timeouts.take()));
        assert!(!seven_timeouts.take());
    }
}
