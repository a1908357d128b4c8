//! Round trip times, as ping(8) sums them up.

use serde::Serialize;
use std::time::Duration;

/// Times so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Times {
    count: u64,
    min_us: f64,
    max_us: f64,
    sum: f64,
    sum_of_squares: f64,
}

/// Their summary, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Summary {
    pub(super) min: f64,
    pub(super) avg: f64,
    pub(super) max: f64,
    /// Standard deviation, over all of them.
    pub(super) mdev: f64,
}

impl Times {
    pub(super) fn add(&mut self, time: Duration) {
        let us = time.as_secs_f64() * 1e6;
        self.min_us = if self.count == 0 {
            us
        } else {
            self.min_us.min(us)
        };
        self.max_us = self.max_us.max(us);
        self.sum += us;
        self.sum_of_squares += us * us;
        self.count += 1;
    }

    /// `None` before the first.
    pub(super) fn summary(&self) -> Option<Summary> {
        if self.count == 0 {
            return None;
        }
        let count = self.count as f64;
        let avg = self.sum / count;
        // Rounding may take it below zero.
        let variance = (self.sum_of_squares / count - avg * avg).max(0.0);
        let round = |us: f64| (us * 1e3).round() / 1e3;
        Some(Summary {
            min: round(self.min_us),
            avg: round(avg),
            max: round(self.max_us),
            mdev: round(variance.sqrt()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_deviation_is_that_of_ping() {
        let mut times = Times::default();
        assert_eq!(times.summary(), None);
        for us in [2, 4, 4, 4, 5, 5, 7, 9] {
            times.add(Duration::from_micros(us));
        }
        assert_eq!(
            times.summary(),
            Some(Summary {
                min: 2.0,
                avg: 5.0,
                max: 9.0,
                mdev: 2.0
            })
        );
    }

    #[test]
    fn equal_times_do_not_deviate() {
        let mut times = Times::default();
        for _ in 0..1000 {
            times.add(Duration::from_nanos(33_333));
        }
        let summary = times.summary().unwrap();
        assert_eq!((summary.min, summary.max), (33.333, 33.333));
        assert!(summary.mdev < 0.01, "{summary:?}");
    }
}
