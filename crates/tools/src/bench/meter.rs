//! What the requesting side counts.

use super::histogram::{Histogram, Percentiles};
use crate::failure::{Failure, system};
use rustix::time::{ClockId, clock_gettime};
use std::time::{Duration, Instant};

/// Messages and their times, from the end of the warm-up to the deadline. Those before and after are done, and compared, but
/// not counted.
#[derive(Debug)]
pub(super) struct Meter {
    opens: Instant,
    closes: Instant,
    opened: Option<Mark>,
    closed: Option<Mark>,
    messages: u64,
    times: Histogram,
}

/// A moment, and the processor time of this process until then.
#[derive(Clone, Copy, Debug)]
struct Mark {
    at: Instant,
    cpu: Duration,
}

impl Mark {
    fn now() -> Self {
        Self {
            at: Instant::now(),
            cpu: cpu_time(),
        }
    }
}

/// What came of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measured {
    pub(super) messages: u64,
    pub(super) elapsed: Duration,
    pub(super) cpu: Duration,
    pub(super) times: Option<Percentiles>,
}

impl Meter {
    /// Begins now, and lasts for the time given; a tenth of it more is the warm-up.
    pub(super) fn start(seconds: f64) -> Self {
        let now = Instant::now();
        let opens = now + Duration::from_secs_f64(seconds * WARM_UP);
        Self {
            opens,
            closes: opens + Duration::from_secs_f64(seconds),
            opened: None,
            closed: None,
            messages: 0,
            times: Histogram::default(),
        }
    }

    /// Whether the time is up: nothing new is to be begun.
    pub(super) fn is_over(&self) -> bool {
        self.closed.is_some()
    }

    /// Whether what completes is being counted.
    pub(super) fn is_counting(&self) -> bool {
        self.opened.is_some() && self.closed.is_none()
    }

    pub(super) fn closes(&self) -> Instant {
        self.closes
    }

    /// One message has completed, after `time` where that is known.
    pub(super) fn count(&mut self, time: Option<Duration>) {
        if self.is_counting() {
            self.messages += 1;
            if let Some(time) = time {
                self.times.add(time);
            }
        }
    }

    /// To be told the time after each batch of completions.
    pub(super) fn tick(&mut self, now: Instant) {
        if self.opened.is_none() && now >= self.opens {
            self.opened = Some(Mark::now());
        }
        if self.closed.is_none() && now >= self.closes {
            // A message that takes longer than all of the time leaves nothing to count.
            self.opened.get_or_insert_with(Mark::now);
            self.closed = Some(Mark::now());
        }
    }

    pub(super) fn measured(&self) -> Measured {
        let (elapsed, cpu) = match (self.opened, self.closed) {
            (Some(from), Some(to)) => (to.at - from.at, to.cpu.saturating_sub(from.cpu)),
            _ => (Duration::ZERO, Duration::ZERO),
        };
        Measured {
            messages: self.messages,
            elapsed,
            cpu,
            times: self.times.percentiles(),
        }
    }
}

/// Processor time of all threads of this process, so far.
pub(super) fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

/// For `map_err`, where what is measured has no name of its own.
pub(super) fn data(error: std::io::Error) -> Failure {
    system("a connection for data")(error)
}

const WARM_UP: f64 = 0.1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_completes_between_warm_up_and_deadline_is_counted() {
        let mut meter = Meter::start(10.0);
        let opens = meter.opens;
        meter.count(None);
        meter.tick(opens - Duration::from_millis(1));
        assert!(!meter.is_counting());
        meter.tick(opens);
        meter.count(Some(Duration::from_micros(5)));
        meter.count(None);
        assert!(meter.is_counting() && !meter.is_over());
        meter.tick(meter.closes());
        assert!(meter.is_over());
        meter.count(None);
        let measured = meter.measured();
        assert_eq!(measured.messages, 2);
        assert_eq!(measured.times.unwrap().max, 5.0);
    }

    #[test]
    fn work_takes_processor_time() {
        let before = cpu_time();
        let mut sum = 0u64;
        while cpu_time() == before {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        assert!(cpu_time() > before);
    }
}
