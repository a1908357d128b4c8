//! Results: what the server reports, and what the command prints.

use super::histogram::Percentiles;
use super::meter::Measured;
use super::plan::{Atomic, Mode, Op, Path, Plan, Transport};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// What the server counted.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Passive {
    /// Messages that arrived, where it hears of them.
    pub(super) received: u64,
    pub(super) mismatches: u64,
    /// Messages that left nothing behind, where only memory tells of them.
    pub(super) lost: u64,
    /// Between the first and the last message that arrived.
    pub(super) elapsed_us: f64,
    /// Processor time from the first message to the end.
    pub(super) cpu_us: f64,
    pub(super) retransmits: u64,
}

/// One measurement, as the JSON report carries it.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Outcome {
    op: Op,
    /// Which atomic operation; null of others.
    atomic: Option<Atomic>,
    transport: Transport,
    path: Path,
    mode: Mode,
    size: u32,
    qps: u32,
    window: u32,
    /// Whether one message after the other was timed.
    lat: bool,
    /// Whether contents were made and compared, which takes its share of the time.
    checked: bool,
    elapsed_us: f64,
    /// Messages that count for the rates.
    pub(super) messages: u64,
    /// Messages sent in all, warm-up included.
    sent: u64,
    /// Of these the ones that did not arrive.
    lost: u64,
    bytes_per_s: f64,
    msgs_per_s: f64,
    lat_us: Option<Percentiles>,
    cpu_ns_per_msg: Cpu,
    retransmits: u64,
    pub(super) mismatches: u64,
}

/// Processor time of each side for a message, in nanoseconds; null where nothing was counted.
#[derive(Clone, Copy, Debug, Serialize)]
struct Cpu {
    tx: Option<f64>,
    rx: Option<f64>,
}

/// What the client counted.
#[derive(Clone, Debug)]
pub(super) struct Active {
    pub(super) measured: Measured,
    pub(super) sent: u64,
    pub(super) mismatches: u64,
    pub(super) retransmits: u64,
}

/// All of a run.
#[derive(Debug, Serialize)]
pub(super) struct Results {
    pub(super) results: Vec<Outcome>,
}

impl Outcome {
    pub(super) fn new(plan: &Plan, active: &Active, passive: &Passive) -> Self {
        let hears = plan.is_heard();
        // Nobody confirms a message of these: what arrived in which time is the receiver's to say.
        let by_receiver = hears && !plan.lat && (plan.may_lose() || plan.path == Path::Tcp);
        let (messages, elapsed) = if by_receiver {
            let elapsed = Duration::from_secs_f64(passive.elapsed_us.max(0.0) / 1e6);
            // The first message begins the time and is not of it.
            (passive.received.saturating_sub(1), elapsed)
        } else {
            (active.measured.messages, active.measured.elapsed)
        };
        let seconds = elapsed.as_secs_f64();
        let per_s = if seconds > 0.0 {
            messages as f64 / seconds
        } else {
            0.0
        };
        let each =
            |cpu_ns: f64, messages: u64| (messages > 0).then(|| round(cpu_ns / messages as f64));
        // A target that hears nothing has worked for all that was sent.
        let at_target = if passive.received > 0 {
            passive.received
        } else {
            active.sent
        };
        Self {
            op: plan.op,
            atomic: (plan.op == Op::Atomic).then_some(plan.atomic),
            transport: plan.transport,
            path: plan.path,
            mode: plan.mode,
            size: plan.size,
            qps: plan.qps,
            window: plan.window,
            lat: plan.lat,
            checked: plan.check,
            elapsed_us: crate::report::micros(elapsed),
            messages,
            sent: active.sent,
            lost: if hears {
                active.sent.saturating_sub(passive.received)
            } else {
                passive.lost
            },
            bytes_per_s: round(per_s * f64::from(plan.size)),
            msgs_per_s: round(per_s),
            lat_us: active.measured.times,
            cpu_ns_per_msg: Cpu {
                tx: each(
                    active.measured.cpu.as_secs_f64() * 1e9,
                    active.measured.messages,
                ),
                rx: each(passive.cpu_us * 1e3, at_target),
            },
            retransmits: active.retransmits + passive.retransmits,
            mismatches: active.mismatches + passive.mismatches,
        }
    }

    /// For people.
    pub(super) fn lines(&self) -> Vec<String> {
        let op = match self.atomic {
            Some(atomic) => format!("{} ({atomic})", self.op),
            None => self.op.to_string(),
        };
        let checked = if self.checked {
            format!("contents compared, {} wrong", self.mismatches)
        } else {
            "contents not compared".to_owned()
        };
        let mut lines = vec![
            format!(
                "{op} of {} bytes, {} over {}, {} queue pair{}, window {}, {}",
                self.size,
                self.transport,
                self.path,
                self.qps,
                if self.qps == 1 { "" } else { "s" },
                self.window,
                match self.mode {
                    Mode::Poll => "polled",
                    Mode::Event => "event-driven",
                }
            ),
            format!(
                "  {:.1} MB/s, {:.0} messages/s in {:.2} s",
                self.bytes_per_s / 1e6,
                self.msgs_per_s,
                self.elapsed_us / 1e6
            ),
        ];
        if let Some(times) = self.lat_us {
            lines.push(format!(
                "  latency us: min {:.2}, median {:.2}, 99 % {:.2}, 99.9 % {:.2}, max {:.2}",
                times.min, times.p50, times.p99, times.p999, times.max
            ));
        }
        let cpu = |side: Option<f64>| side.map_or("-".to_owned(), |ns| format!("{ns:.0}"));
        lines.push(format!(
            "  CPU ns per message: requester {}, responder {}; retransmits {}, lost {}; {checked}",
            cpu(self.cpu_ns_per_msg.tx),
            cpu(self.cpu_ns_per_msg.rx),
            self.retransmits,
            self.lost
        ));
        lines
    }
}

impl Plan {
    /// Whether the responder learns of every message.
    pub(super) fn is_heard(&self) -> bool {
        self.op == Op::Send || (self.path == Path::Tcp && self.op == Op::Write)
    }
}

fn round(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}
