//! The figures of a run.

use crate::report::micros;
use serde::Serialize;
use std::time::Duration;

/// The steps, in their order.
pub(super) const STEPS: [&str; 8] = [
    "create_id",
    "bind_addr",
    "resolve_addr",
    "resolve_route",
    "create_qp",
    "connect",
    "disconnect",
    "destroy",
];

/// The result of a run.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Timing {
    pub(super) asked: u32,
    pub(super) completed: u32,
    pub(super) failed: u32,
    pub(super) concurrency: u32,
    pub(super) connects_per_s: f64,
    pub(super) setups_per_s: f64,
    pub(super) phases: Vec<Phase>,
    /// Idle connections that were open all the while.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) live: Option<u32>,
    /// Growth of this process by an idle connection; with both sides in it, by both ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) program_bytes_per_connection: Option<f64>,
    /// Growth of the host service by an idle connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) service_bytes_per_connection: Option<f64>,
    #[serde(skip)]
    pub(super) first_failure: Option<String>,
}

/// One step over all connections.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Phase {
    name: &'static str,
    n: usize,
    min_us: f64,
    median_us: f64,
    p99_us: f64,
    max_us: f64,
}

impl Phase {
    pub(super) fn new(name: &'static str, mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        let at = |share: f64| percentile(&times, share).map_or(0.0, micros);
        Self {
            name,
            n: times.len(),
            min_us: at(0.0),
            median_us: at(0.5),
            p99_us: at(0.99),
            max_us: at(1.0),
        }
    }
}

/// The smallest value that at least `share` of the sorted values do not exceed.
fn percentile(sorted: &[Duration], share: f64) -> Option<Duration> {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied()
}

pub(super) fn per_second(count: u32, elapsed: Duration) -> f64 {
    if elapsed.is_zero() {
        0.0
    } else {
        f64::from(count) / elapsed.as_secs_f64()
    }
}

impl Timing {
    /// For people.
    pub(super) fn table(&self) -> Vec<String> {
        let mut lines = vec![format!(
            "{:<14} {:>6} {:>12} {:>12} {:>12} {:>12}",
            "step", "n", "min us", "median us", "p99 us", "max us"
        )];
        for phase in &self.phases {
            lines.push(format!(
                "{:<14} {:>6} {:>12.1} {:>12.1} {:>12.1} {:>12.1}",
                phase.name, phase.n, phase.min_us, phase.median_us, phase.p99_us, phase.max_us
            ));
        }
        lines.push(format!(
            "{} of {} connections, {} at a time: {:.0} connects per second, {:.0} set-ups per second",
            self.completed, self.asked, self.concurrency, self.connects_per_s, self.setups_per_s
        ));
        if let (Some(live), Some(program), Some(service)) = (
            self.live,
            self.program_bytes_per_connection,
            self.service_bytes_per_connection,
        ) {
            lines.push(format!(
                "{live} idle connections beside: {program:.0} bytes each in this process, {service:.0} in the service"
            ));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn us(values: &[u64]) -> Vec<Duration> {
        values.iter().copied().map(Duration::from_micros).collect()
    }

    #[test]
    fn percentiles_are_values_that_occurred() {
        let phase = Phase::new("connect", us(&[5, 1, 4, 2, 3]));
        assert_eq!(
            (
                phase.n,
                phase.min_us,
                phase.median_us,
                phase.p99_us,
                phase.max_us
            ),
            (5, 1.0, 3.0, 5.0, 5.0)
        );
        let hundred: Vec<u64> = (1..=100).collect();
        assert_eq!(Phase::new("connect", us(&hundred)).p99_us, 99.0);
    }

    #[test]
    fn a_step_nobody_finished_has_zeros() {
        let phase = Phase::new("connect", Vec::new());
        assert_eq!((phase.n, phase.max_us), (0, 0.0));
    }
}
