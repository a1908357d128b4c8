//! Encoded times: 4.096 µs × 2^n.

use core::fmt;
use core::time::Duration;

/// A time encoded in 5 bits as 4.096 µs × 2^n. It stays encoded until it becomes a deadline.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, PartialOrd, Ord)]
pub struct IbTimeout(u8);

impl IbTimeout {
    /// The width of the field in bits.
    pub const BITS: u32 = 5;
    /// The longest: 2 h 26 min.
    pub const MAX: Self = Self(31);

    /// The timeout with exponent `exponent`, or `None` if that needs more than 5 bits.
    #[must_use]
    pub const fn new(exponent: u8) -> Option<Self> {
        if exponent <= Self::MAX.0 {
            Some(Self(exponent))
        } else {
            None
        }
    }

    /// The low 5 bits of `value`, as a parser reads them.
    #[must_use]
    pub const fn truncate(value: u8) -> Self {
        Self(value & Self::MAX.0)
    }

    /// The exponent.
    #[must_use]
    pub const fn get(self) -> u8 {
        self.0
    }

    /// The exact duration. (A queue pair's timeout of 0 means none; that is for the caller to know.)
    #[must_use]
    pub const fn to_duration(self) -> Duration {
        Duration::from_nanos(UNIT_NANOS << self.0)
    }

    /// The duration in milliseconds as Linux approximates it, 2^(n-8) and at least one.
    #[must_use]
    pub const fn kernel_millis(self) -> u64 {
        1 << self.0.saturating_sub(8)
    }

    /// The shortest timeout that is not shorter than `duration`; the conversion rounds up, and what is longer than
    /// [`MAX`](Self::MAX) becomes `MAX`.
    #[must_use]
    pub const fn from_duration_ceil(duration: Duration) -> Self {
        let mut exponent = 0;
        while exponent < Self::MAX.0 {
            if (UNIT_NANOS << exponent) as u128 >= duration.as_nanos() {
                return Self(exponent);
            }
            exponent += 1;
        }
        Self::MAX
    }
}

const UNIT_NANOS: u64 = 4096;

impl fmt::Display for IbTimeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:?})", self.0, self.to_duration())
    }
}
