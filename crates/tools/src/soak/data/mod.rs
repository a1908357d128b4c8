//! `oarlock soak data`: every operation in both directions at once, over connections that come and go, while packets are lost; contents
//! compared, and descriptors and memory counted before and after.
//!
//! Two processes: this one connects, and one that it starts accepts. A cycle is: connect, move data, say how much, disconnect, let go of
//! everything. What the first cycles leave is what a process has once; what later ones add is a leak.

mod direction;
mod receive;
mod send;

use super::Faults;
use crate::failure::{Failure, system};
use crate::report::Lines;
use crate::signals::Ending;
use direction::Direction;
use oarlock_hostd::{Host, Injection};
use oarlock_rdmacm::{Connection, ConnectionOptions, Connector, Listener, QueueSizes};
use oarlock_verbs::Buffer;
use serde::{Deserialize, Serialize};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What is to be done.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) seconds: f64,
    pub(super) connections: u32,
    pub(super) seed: u64,
}

/// What one process has done.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Moved {
    pub(super) cycles: u64,
    pub(super) sends: u64,
    pub(super) writes: u64,
    pub(super) writes_with_imm: u64,
    pub(super) reads: u64,
    pub(super) atomics: u64,
    /// Messages, with and without memory, that came from the other side.
    pub(super) received: u64,
    pub(super) bytes: u64,
    pub(super) mismatches: u64,
    pub(super) retransmits: u64,
    /// Packets that the injected faults have struck.
    pub(super) faults: u64,
    /// Descriptors after the first cycle and after the last.
    pub(super) fds: [u64; 2],
    /// Resident memory, in bytes, after the first cycles and after the last.
    pub(super) rss_bytes: [u64; 2],
}

impl Moved {
    pub(super) fn add(&mut self, other: &Self) {
        self.sends += other.sends;
        self.writes += other.writes;
        self.writes_with_imm += other.writes_with_imm;
        self.reads += other.reads;
        self.atomics += other.atomics;
        self.received += other.received;
        self.bytes += other.bytes;
        self.mismatches += other.mismatches;
        self.retransmits += other.retransmits;
    }

    /// What is wrong, if something is.
    fn complaint(&self, side: &str) -> Option<String> {
        let growth = self.rss_bytes[1].saturating_sub(self.rss_bytes[0]);
        if self.mismatches > 0 {
            Some(format!("{side}: {} contents were wrong", self.mismatches))
        } else if self.received == 0 {
            Some(format!("{side}: nothing arrived"))
        } else if self.fds[1] > self.fds[0] {
            Some(format!(
                "{side}: {} descriptors became {}",
                self.fds[0], self.fds[1]
            ))
        } else if growth > MAX_GROWTH {
            Some(format!("{side}: resident memory grew by {growth} bytes"))
        } else {
            None
        }
    }
}

/// The report of a run.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) seconds: f64,
    pub(super) active: Moved,
    pub(super) passive: Moved,
    /// Resident memory of the host service, in bytes, after the first cycle and after the last.
    pub(super) service_rss_bytes: [u64; 2],
    pub(super) mismatches: u64,
    /// What is wrong, if something is.
    pub(super) complaint: Option<String>,
}

/// Both sides: starts the other one.
pub(super) fn run(
    faults: &Faults,
    plan: Plan,
    ending: &Ending,
    lines: Lines,
) -> Result<Report, Failure> {
    let host = crate::host::open()?;
    let listener =
        std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(system("a free port"))?;
    // The same number is free for the RDMA CM, which has ports of its own.
    let address = listener.local_addr().map_err(system("a free port"))?;
    let mut other = Other::start(faults, plan, address)?;
    let injected = faults.inject(&host, plan.seed)?;
    let mut moved = Moved::default();
    let service = host.ps()?.host.pid;
    let started = Instant::now();
    let mut service_rss = [0; 2];
    let until = started + Duration::from_secs_f64(plan.seconds);
    while !ending.is_asked() && (moved.cycles < MIN_CYCLES || Instant::now() < until) {
        let connections: Vec<Connection> = (0..plan.connections)
            .map(|_| connect(&host, address, &mut other))
            .collect::<Result<_, Failure>>()?;
        let left = until.saturating_duration_since(Instant::now());
        let length = left.clamp(SHORTEST_CYCLE, CYCLE);
        let end = Instant::now() + length;
        run_cycle(connections, plan.seed + moved.cycles, Some(end), &mut moved)?;
        moved.cycles += 1;
        settle(&mut moved)?;
        let rss = crate::memory::resident(service)?;
        if moved.cycles <= WARM_CYCLES {
            service_rss[0] = rss;
        }
        service_rss[1] = rss;
        lines.say(format_args!(
            "cycle {}: {} messages arrived, {} wrong, {} retransmits, {} descriptors, {} bytes resident",
            moved.cycles,
            moved.received,
            moved.mismatches,
            moved.retransmits,
            moved.fds[1],
            moved.rss_bytes[1]
        ));
    }
    moved.faults = struck(injected.as_deref());
    let passive = other.end()?;
    let complaint = moved
        .complaint("active side")
        .or_else(|| passive.complaint("passive side"))
        .or_else(|| {
            let growth = service_rss[1].saturating_sub(service_rss[0]);
            (growth > MAX_GROWTH)
                .then(|| format!("host service: resident memory grew by {growth} bytes"))
        });
    Ok(Report {
        seconds: started.elapsed().as_secs_f64(),
        mismatches: moved.mismatches + passive.mismatches,
        active: moved,
        passive,
        service_rss_bytes: service_rss,
        complaint,
    })
}

/// The accepting side, until nobody connects any more.
pub(super) fn serve(
    faults: &Faults,
    plan: Plan,
    address: SocketAddr,
    lines: Lines,
) -> Result<Moved, Failure> {
    let host = crate::host::open()?;
    let injected = faults.inject(&host, plan.seed)?;
    let listener = Listener::bind(&host, address)?.options(options());
    lines.say("listening");
    let mut moved = Moved::default();
    loop {
        let mut connections = Vec::new();
        while connections.len() < plan.connections as usize {
            // Standard input is closed when no more will come.
            match listener.accept() {
                Ok(connection) => connections.push(connection),
                Err(oarlock_rdmacm::Error::TimedOut { .. }) if is_over()? => {
                    moved.faults = struck(injected.as_deref());
                    return Ok(moved);
                }
                Err(oarlock_rdmacm::Error::TimedOut { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        run_cycle(connections, !(plan.seed + moved.cycles), None, &mut moved)?;
        moved.cycles += 1;
        settle(&mut moved)?;
    }
}

/// Moves data on all connections until the active side ends it, and lets go of them.
fn run_cycle(
    connections: Vec<Connection>,
    seed: u64,
    end: Option<Instant>,
    moved: &mut Moved,
) -> Result<(), Failure> {
    let is_active = end.is_some();
    let running: Vec<_> = connections
        .into_iter()
        .enumerate()
        .map(|(at, connection)| {
            std::thread::Builder::new()
                .name(format!("connection {at}"))
                .spawn(move || {
                    let lane = at as u32;
                    Direction::new(Arc::new(connection), lane, seed, is_active)?.run(end)
                })
                .map_err(system("starting a thread"))
        })
        .collect::<Result<_, Failure>>()?;
    for thread in running {
        let done = match thread.join() {
            Ok(done) => done?,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        moved.add(&done);
    }
    Ok(())
}

/// Counts what the process holds between two cycles.
fn settle(moved: &mut Moved) -> Result<(), Failure> {
    // The last ones of a connection are closed by the device's thread, when it comes to it.
    let mut fds = u64::MAX;
    for _ in 0..SAMPLES {
        std::thread::sleep(PAUSE);
        let now = std::fs::read_dir("/proc/self/fd")
            .map_err(system("the descriptors of this process"))?
            .count() as u64;
        fds = fds.min(now);
    }
    let rss = crate::memory::resident(std::process::id())?;
    if moved.cycles <= WARM_CYCLES {
        moved.fds[0] = moved.fds[0].max(fds);
        moved.rss_bytes[0] = rss;
    }
    moved.fds[1] = fds;
    moved.rss_bytes[1] = rss;
    Ok(())
}

fn options() -> ConnectionOptions {
    let receives = |queue_pair: &oarlock_verbs::QueuePair, pd: &oarlock_verbs::ProtectionDomain| {
        for _ in 0..direction::RECEIVES {
            queue_pair.post_recv(0, Buffer::new(pd, direction::MAX_LEN)?)?;
        }
        Ok(())
    };
    ConnectionOptions::new()
        // One more for what says where the memory is.
        .queue_sizes(QueueSizes::new(direction::SENDS + 1, direction::RECEIVES))
        .deadline(PATIENCE)
        .prepare(receives)
}

/// A connection with the other process, which may not listen yet.
fn connect(host: &Host, address: SocketAddr, other: &mut Other) -> Result<Connection, Failure> {
    let until = Instant::now() + CONNECT_PATIENCE;
    loop {
        match Connector::new(host).options(options()).connect(address) {
            Ok(connection) => return Ok(connection),
            Err(error) => {
                other.check()?;
                if Instant::now() >= until {
                    return Err(error.into());
                }
                std::thread::sleep(PAUSE);
            }
        }
    }
}

fn struck(faults: Option<&oarlock_port::fault::Faults>) -> u64 {
    let counts = faults.map(oarlock_port::fault::Faults::counts);
    counts.map_or(0, |counts| counts.iter().map(|rule| rule.struck).sum())
}

/// Whether standard input has ended: the process that started this one wants no more.
fn is_over() -> Result<bool, Failure> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let now = Timespec::default();
    let stdin = std::io::stdin();
    let ready = poll(&mut [PollFd::new(&stdin, PollFlags::IN)], Some(&now));
    ready
        .map(|ready| ready > 0)
        .map_err(|errno| system("standard input")(errno.into()))
}

impl Faults {
    /// Injects the rules into what this process sends and receives.
    fn inject(
        &self,
        host: &Host,
        seed: u64,
    ) -> Result<Option<Arc<oarlock_port::fault::Faults>>, Failure> {
        let text = self.rules(seed);
        if text.is_empty() {
            return Ok(None);
        }
        let rules = text
            .parse()
            .map_err(|error: oarlock_port::fault::RuleError| Failure::Usage(error.to_string()))?;
        Ok(host.inject(Injection::Rules(rules), None)?)
    }
}

/// The accepting process; killed when it is dropped.
struct Other(Child);

impl Other {
    fn start(faults: &Faults, plan: Plan, address: SocketAddr) -> Result<Self, Failure> {
        let program = std::env::current_exe().map_err(system("the path of this program"))?;
        let mut command = Command::new(program);
        command
            .args(["soak", "data", "--accept", &address.to_string()])
            .args(["--connections", &plan.connections.to_string()])
            .args(["--seed", &plan.seed.to_string()]);
        faults.pass_on(&mut command);
        let child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(system("starting a process"))?;
        Ok(Self(child))
    }

    fn check(&mut self) -> Result<(), Failure> {
        match self.0.try_wait().map_err(system("the other process"))? {
            None => Ok(()),
            Some(status) => Err(Failure::Child {
                role: "accepting",
                status: status.to_string(),
                sentence: "its own message stands above".to_owned(),
            }),
        }
    }

    /// Tells it that this was all, and hears what it has done.
    fn end(mut self) -> Result<Moved, Failure> {
        drop(self.0.stdin.take());
        let mut text = String::new();
        if let Some(mut out) = self.0.stdout.take() {
            std::io::Read::read_to_string(&mut out, &mut text)
                .map_err(system("the other process's report"))?;
        }
        serde_json::from_str(&text).map_err(|error| Failure::System {
            what: "the other process's report",
            source: error.into(),
        })
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        // It may have ended by itself; then there is nothing to kill.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Cycles after which a process has all that it has once.
const WARM_CYCLES: u64 = 8;
const MIN_CYCLES: u64 = 10;
const CYCLE: Duration = Duration::from_secs(5);
const SHORTEST_CYCLE: Duration = Duration::from_millis(200);
/// More resident memory than this, over all cycles but the first, is a leak: many times what allocators keep.
const MAX_GROWTH: u64 = 24 << 20;
const PATIENCE: Duration = Duration::from_secs(1);
const CONNECT_PATIENCE: Duration = Duration::from_secs(30);
/// Looks at the descriptors; the fewest count.
const SAMPLES: u32 = 10;
const PAUSE: Duration = Duration::from_millis(50);
