//! The virtual clock.

use std::time::Duration;

use oarlock_wire::Time;

/// Virtual time: it moves only when a test moves it, and never backwards.
#[derive(Clone, Debug)]
pub struct Clock {
    now: Time,
}

impl Default for Clock {
    fn default() -> Self {
        Self { now: Time::ZERO }
    }
}

impl Clock {
    /// A clock that stands at [`Time::ZERO`].
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The current virtual time.
    #[must_use]
    pub fn now(&self) -> Time {
        self.now
    }

    /// Moves to `at`; a time in the past leaves the clock where it is. Returns the new time.
    pub fn advance_to(&mut self, at: Time) -> Time {
        self.now = self.now.max(at);
        self.now
    }

    /// Moves forward by `by`. Returns the new time.
    pub fn advance(&mut self, by: Duration) -> Time {
        self.now = self.now.saturating_add(by);
        self.now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_never_goes_back() {
        let mut clock = Clock::new();
        clock.advance(Duration::from_millis(5));
        clock.advance_to(Time::from_nanos(3));
        assert_eq!(clock.now(), Time::from_nanos(5_000_000));
    }
}
