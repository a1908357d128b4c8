//! The time that the sans-IO crates know: nanoseconds from an arbitrary start.

use core::fmt;
use core::ops::{Add, AddAssign, Sub};
use core::time::Duration;

/// A moment, in nanoseconds from an arbitrary start that the driver chose.
///
/// ```
/// use core::time::Duration;
/// use oarlock_wire::Time;
///
/// let later = Time::ZERO + Duration::from_millis(3);
/// assert_eq!(later - Time::ZERO, Duration::from_millis(3));
/// assert_eq!(Time::ZERO - later, Duration::ZERO);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Time(u64);

impl Time {
    /// The start.
    pub const ZERO: Self = Self(0);
    /// The last moment that can be told, 584 years after the start.
    pub const MAX: Self = Self(u64::MAX);

    /// The moment `nanos` nanoseconds after the start.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the start.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The moment `duration` later, or `None` if it cannot be told.
    #[must_use]
    pub fn checked_add(self, duration: Duration) -> Option<Self> {
        let nanos = u64::try_from(duration.as_nanos()).ok()?;
        self.0.checked_add(nanos).map(Self)
    }

    /// The moment `duration` later, at most [`MAX`](Self::MAX).
    #[must_use]
    pub fn saturating_add(self, duration: Duration) -> Self {
        self.checked_add(duration).unwrap_or(Self::MAX)
    }

    /// How long after `earlier` this is; zero if it is before.
    #[must_use]
    pub const fn saturating_since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Time {
    type Output = Self;

    /// Saturates at [`Time::MAX`].
    fn add(self, duration: Duration) -> Self {
        self.saturating_add(duration)
    }
}

impl AddAssign<Duration> for Time {
    fn add_assign(&mut self, duration: Duration) {
        *self = *self + duration;
    }
}

impl Sub for Time {
    type Output = Duration;

    /// Zero if `earlier` is in fact later.
    fn sub(self, earlier: Self) -> Duration {
        self.saturating_since(earlier)
    }
}

impl fmt::Display for Time {
    /// Seconds with six decimals, as in a ladder: `0.268435`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}.{:06}",
            self.0 / 1_000_000_000,
            self.0 % 1_000_000_000 / 1_000
        )
    }
}

/// The earlier of two deadlines, where `None` is no deadline. (`Option::min` would put `None` first.)
#[must_use]
pub fn earliest(a: Option<Time>, b: Option<Time>) -> Option<Time> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (only, None) | (None, only) => only,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn no_deadline_is_later_than_any() {
        let (soon, late) = (Time::from_nanos(1), Time::from_nanos(2));
        assert_eq!(earliest(None, None), None);
        assert_eq!(earliest(Some(late), None), Some(late));
        assert_eq!(earliest(None, Some(late)), Some(late));
        assert_eq!(earliest(Some(late), Some(soon)), Some(soon));
    }

    #[test]
    fn time_does_not_run_over() {
        assert_eq!(Time::ZERO.checked_add(Duration::MAX), None);
        assert_eq!(Time::from_nanos(5) + Duration::MAX, Time::MAX);
        let mut time = Time::ZERO;
        time += Duration::from_micros(268_435);
        assert_eq!(time.to_string(), "0.268435");
    }
}
