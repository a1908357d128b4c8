//! The active side: takes the times.

use super::statistics::{Phase, STEPS, Timing, per_second};
use crate::connections::Devices;
use crate::failure::{Failure, NOBODY_ANSWERS};
use crate::host;
use crate::progress::Progress;
use oarlock_hostd::Host;
use oarlock_rdmacm::{ConnParam, Event, EventChannel, Identifier, PortSpace};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

const RESOLVE_TIMEOUT: Duration = Duration::from_secs(2);
/// No event for so long is a failure.
const STALL: Duration = Duration::from_secs(90);

/// How much is to be done.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    pub(super) asked: u32,
    pub(super) concurrency: u32,
    pub(super) live: u32,
}

/// The steps that end with an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    ResolveAddr,
    ResolveRoute,
    Connect,
    Disconnect,
}

impl Step {
    /// Whether the event ends the step; an error is the way it ended badly.
    fn is_ended_by(self, event: &Event) -> Option<Result<(), String>> {
        match (self, event) {
            (Self::ResolveAddr, Event::AddressResolved { .. })
            | (Self::ResolveRoute, Event::RouteResolved { .. })
            | (Self::Connect, Event::Established { .. })
            | (Self::Disconnect, Event::Disconnected { .. }) => Some(Ok(())),
            (_, Event::Disconnected { .. }) => Some(Err("disconnected by the peer".to_owned())),
            _ => event.error().map(|error| Err(error.to_string())),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::ResolveAddr => "address resolution",
            Self::ResolveRoute => "route resolution",
            Self::Connect => "connections",
            Self::Disconnect => "disconnections",
        }
    }
}

/// Connections that go through the steps together.
struct Group<'a> {
    channel: &'a EventChannel,
    destination: SocketAddr,
    concurrency: usize,
    /// None after a failure.
    ids: Vec<Option<Identifier>>,
    times: [Vec<Duration>; STEPS.len()],
    first_failure: Option<String>,
}

/// Runs the load.
pub(super) fn run(host: &Host, destination: SocketAddr, load: Load) -> Result<Timing, Failure> {
    let channel = EventChannel::new(host)?;
    let mut devices = Devices::default();
    let mut timing = Timing {
        asked: load.asked,
        concurrency: load.concurrency,
        ..Timing::default()
    };
    let group = |count: u32, concurrency: u32| Group {
        channel: &channel,
        destination,
        concurrency: concurrency as usize,
        ids: vec![None; count as usize],
        times: Default::default(),
        first_failure: None,
    };
    // Held open to the end.
    let mut idle = group(load.live, load.live.clamp(1, 100));
    if load.live > 0 {
        let service = host::traffic(host)?.pid;
        let (own_before, service_before) = (
            crate::memory::resident(std::process::id())?,
            crate::memory::resident(service)?,
        );
        idle.set_up(&mut devices)?;
        if let Some(failure) = idle.first_failure {
            return Err(Failure::Result(format!(
                "the idle connections could not be established: {failure}"
            )));
        }
        let (own, other) = (
            crate::memory::resident(std::process::id())?,
            crate::memory::resident(service)?,
        );
        let each = |before: u64, after: u64| (after as f64 - before as f64) / f64::from(load.live);
        timing.live = Some(load.live);
        timing.program_bytes_per_connection = Some(each(own_before, own));
        timing.service_bytes_per_connection = Some(each(service_before, other));
    }
    let mut measured = group(load.asked, load.concurrency);
    let started = Instant::now();
    let connecting = measured.set_up(&mut devices)?;
    measured.take_down()?;
    let all = started.elapsed();
    timing.completed = measured.times[7].len() as u32;
    timing.failed = load.asked - timing.completed;
    timing.connects_per_s = per_second(measured.times[5].len() as u32, connecting);
    timing.setups_per_s = per_second(timing.completed, all);
    timing.phases = STEPS
        .into_iter()
        .zip(std::mem::take(&mut measured.times))
        .map(|(name, times)| Phase::new(name, times))
        .collect();
    timing.first_failure = measured.first_failure.take().or_else(|| {
        (timing.failed > 0).then(|| "the failure was not reported by an event".to_owned())
    });
    idle.take_down()?;
    Ok(timing)
}

impl Group<'_> {
    /// Everything up to established; how long the connecting took.
    fn set_up(&mut self, devices: &mut Devices) -> Result<Duration, Failure> {
        for number in 0..self.ids.len() {
            let begun = Instant::now();
            let id = Identifier::new(self.channel, PortSpace::TCP)?;
            self.times[0].push(begun.elapsed());
            id.set_context(number as u64);
            self.ids[number] = Some(id);
        }
        let source = SocketAddr::new(
            match self.destination {
                SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
                SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
            },
            0,
        );
        self.each_call(1, |id| Ok(id.bind_addr(source)?))?;
        let destination = self.destination;
        self.each_event(2, Step::ResolveAddr, |id| {
            Ok(id.resolve_addr(None, destination, RESOLVE_TIMEOUT)?)
        })?;
        self.each_event(3, Step::ResolveRoute, |id| {
            Ok(id.resolve_route(RESOLVE_TIMEOUT)?)
        })?;
        self.each_call(4, |id| devices.idle_queue_pair(id))?;
        let begun = Instant::now();
        let param = ConnParam::default();
        self.each_event(5, Step::Connect, |id| Ok(id.connect(&param)?))?;
        Ok(begun.elapsed())
    }

    fn take_down(&mut self) -> Result<(), Failure> {
        self.each_event(6, Step::Disconnect, |id| Ok(id.disconnect()?))?;
        for slot in &mut self.ids {
            let Some(id) = slot.take() else { continue };
            let begun = Instant::now();
            id.close()?;
            self.times[7].push(begun.elapsed());
        }
        Ok(())
    }

    /// A step that is over when its call returns.
    fn each_call(
        &mut self,
        step: usize,
        mut call: impl FnMut(&Identifier) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        for slot in &mut self.ids {
            let Some(id) = slot else { continue };
            let begun = Instant::now();
            match call(id) {
                Ok(()) => self.times[step].push(begun.elapsed()),
                Err(failure) => fail(slot, &mut self.first_failure, failure)?,
            }
        }
        Ok(())
    }

    /// A step that an event ends, `concurrency` at a time.
    fn each_event(
        &mut self,
        index: usize,
        step: Step,
        mut call: impl FnMut(&Identifier) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut begun: Vec<Option<Instant>> = vec![None; self.ids.len()];
        let (mut next, mut under_way) = (0, 0);
        let mut progress = Progress::new(step.name(), self.ids.len() as u64);
        loop {
            while under_way < self.concurrency && next < self.ids.len() {
                let slot = &mut self.ids[next];
                if let Some(id) = slot {
                    let now = Instant::now();
                    match call(id) {
                        Ok(()) => {
                            begun[next] = Some(now);
                            under_way += 1;
                        }
                        Err(failure) => fail(slot, &mut self.first_failure, failure)?,
                    }
                }
                next += 1;
            }
            if under_way == 0 {
                return Ok(());
            }
            let Some(event) = self.channel.get_event_timeout(STALL)? else {
                return Err(Failure::Stalled {
                    seconds: STALL.as_secs(),
                    awaited: step.name(),
                    missing: under_way,
                    total: self.ids.len(),
                    hint: match step {
                        Step::Connect => NOBODY_ANSWERS,
                        _ => "",
                    },
                });
            };
            let Some(ended) = step.is_ended_by(&event) else {
                continue;
            };
            let number = event.id().context() as usize;
            // Events of idle connections, and late ones, are of no step under way.
            let Some(start) = begun.get_mut(number).and_then(Option::take) else {
                continue;
            };
            if self.ids[number].as_ref() != Some(event.id()) {
                begun[number] = Some(start);
                continue;
            }
            under_way -= 1;
            progress.set((next - under_way) as u64);
            match ended {
                Ok(()) => self.times[index].push(start.elapsed()),
                Err(problem) => {
                    self.first_failure.get_or_insert(problem);
                    self.ids[number] = None;
                }
            }
        }
    }
}

/// Counts a connection out; only the loss of the device ends the run.
fn fail(
    slot: &mut Option<Identifier>,
    first: &mut Option<String>,
    failure: Failure,
) -> Result<(), Failure> {
    if failure.is_device_fatal() {
        return Err(failure);
    }
    first.get_or_insert_with(|| failure.to_string());
    *slot = None;
    Ok(())
}
