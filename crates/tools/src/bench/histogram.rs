//! Times, counted by size: bounded memory however many there are.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Times so far. Each counts in a class that is at most 1/64 wide; the smallest and the largest are kept exactly.
#[derive(Clone, Debug)]
pub(super) struct Histogram {
    counts: Vec<u64>,
    total: u64,
    min: u64,
    max: u64,
}

/// Percentiles, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Percentiles {
    pub(super) min: f64,
    pub(super) p50: f64,
    pub(super) p99: f64,
    pub(super) p999: f64,
    pub(super) max: f64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            counts: vec![0; CLASSES],
            total: 0,
            min: u64::MAX,
            max: 0,
        }
    }
}

impl Histogram {
    pub(super) fn add(&mut self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.counts[class(ns)] += 1;
        self.total += 1;
        self.min = self.min.min(ns);
        self.max = self.max.max(ns);
    }

    /// `None` before the first. Each percentile is the upper end of its class, so that it is never too small.
    pub(super) fn percentiles(&self) -> Option<Percentiles> {
        if self.total == 0 {
            return None;
        }
        let at = |share: f64| {
            let rank = ((self.total as f64 * share).ceil() as u64).clamp(1, self.total);
            let mut seen = 0;
            let found = self.counts.iter().position(|count| {
                seen += count;
                seen >= rank
            });
            found.map_or(self.max, upper_end).clamp(self.min, self.max)
        };
        let us = |ns: u64| ns as f64 / 1e3;
        Some(Percentiles {
            min: us(self.min),
            p50: us(at(0.5)),
            p99: us(at(0.99)),
            p999: us(at(0.999)),
            max: us(self.max),
        })
    }
}

/// Classes for each power of two.
const FINE: u64 = 64;
const FINE_BITS: u32 = FINE.trailing_zeros();
const CLASSES: usize = ((64 - FINE_BITS as usize) + 1) * FINE as usize;

fn class(ns: u64) -> usize {
    if ns < FINE {
        return ns as usize;
    }
    let shift = ns.ilog2() - FINE_BITS;
    let fine = (ns >> shift) - FINE;
    (u64::from(shift + 1) * FINE + fine) as usize
}

/// The largest time of a class.
fn upper_end(class: usize) -> u64 {
    let class = class as u64;
    if class < FINE {
        return class;
    }
    let shift = class / FINE - 1;
    let first = (FINE + class % FINE) << shift;
    first + ((1 << shift) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_follow_one_another_and_hold_what_belongs_there() {
        assert_eq!(class(u64::MAX), CLASSES - 1);
        let mut before = 0;
        for at in 0..CLASSES - 1 {
            let end = upper_end(at);
            assert_eq!((class(end), class(end + 1)), (at, at + 1));
            assert!(at == 0 || end > before);
            assert!(
                (end - before) as f64 <= (end as f64 / 64.0).max(1.0),
                "{at}"
            );
            before = end;
        }
        assert_eq!(upper_end(CLASSES - 1), u64::MAX);
    }

    #[test]
    fn percentiles_are_those_of_the_times() {
        let mut times = Histogram::default();
        assert_eq!(times.percentiles(), None);
        for us in 1..=1000 {
            times.add(Duration::from_micros(us));
        }
        let found = times.percentiles().unwrap();
        assert_eq!((found.min, found.max), (1.0, 1000.0));
        for (found, exact) in [(found.p50, 500.0), (found.p99, 990.0), (found.p999, 999.0)] {
            assert!((exact..=exact * 1.02).contains(&found), "{found} {exact}");
        }
    }
}
