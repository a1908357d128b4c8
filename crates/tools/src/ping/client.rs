//! The client: connects, asks, counts.

use super::end::{Client, Reply, Wanted};
use super::statistics::{Summary, Times};
use super::{Waited, wait};
use crate::failure::{Failure, NOBODY_ANSWERS};
use crate::report::{Lines, micros};
use crate::signals::Ending;
use oarlock_hostd::Host;
use oarlock_rdmacm::{
    ConnParam, Event, EventChannel, Identifier, PortSpace, RejReason, RetryCount,
};
use serde::Serialize;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// What is to be done.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) address: SocketAddr,
    pub(super) source: Option<SocketAddr>,
    pub(super) count: Option<u32>,
    pub(super) size: u32,
    pub(super) verbose: bool,
    pub(super) validate: bool,
    pub(super) interval: Duration,
    pub(super) connect_timeout: Duration,
    pub(super) timeout: Duration,
    pub(super) until: Option<Instant>,
}

/// What was counted, as the JSON report carries it.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Tally {
    side: &'static str,
    peer: SocketAddr,
    /// Messages asked for; without a number until it was ended.
    asked: Option<u32>,
    size: u32,
    pub(super) sent: u64,
    pub(super) received: u64,
    /// Messages whose reply did not come in time.
    pub(super) lost: u64,
    /// Always none: a server answers one message at a time.
    late: u64,
    /// With -V: replies with other content than was sent.
    pub(super) mismatches: u64,
    elapsed_us: f64,
    rtt_us: Option<Summary>,
    #[serde(skip)]
    times: Times,
    #[serde(skip)]
    connected: bool,
}

impl Tally {
    pub(super) fn new(plan: &Plan) -> Self {
        Self {
            side: "client",
            peer: plan.address,
            asked: plan.count,
            size: plan.size,
            sent: 0,
            received: 0,
            lost: 0,
            late: 0,
            mismatches: 0,
            elapsed_us: 0.0,
            rtt_us: None,
            times: Times::default(),
            connected: false,
        }
    }

    /// The last lines, as ping(8) has them; none if no connection was made.
    pub(super) fn lines(&self) -> Vec<String> {
        if !self.connected {
            return Vec::new();
        }
        let mut lines = vec![
            format!("--- {} ping statistics ---", self.peer),
            format!(
                "{} messages of {} bytes sent, {} received, {} lost, {} wrong, time {:.1} ms",
                self.sent,
                self.size,
                self.received,
                self.lost,
                self.mismatches,
                self.elapsed_us / 1e3
            ),
        ];
        if let Some(rtt) = self.rtt_us {
            lines.push(format!(
                "rtt min/avg/max/mdev = {:.3}/{:.3}/{:.3}/{:.3} ms",
                rtt.min / 1e3,
                rtt.avg / 1e3,
                rtt.max / 1e3,
                rtt.mdev / 1e3
            ));
        }
        lines
    }

    fn check(&self) -> Result<(), Failure> {
        if self.lost == 0 && self.mismatches == 0 {
            return Ok(());
        }
        Err(Failure::Result(format!(
            "of {} messages {} were lost and {} came back wrong",
            self.sent, self.lost, self.mismatches
        )))
    }
}

/// Connects, pings, disconnects.
pub(super) fn run(
    host: &Host,
    plan: &Plan,
    ending: &Ending,
    lines: Lines,
    tally: &mut Tally,
) -> Result<(), Failure> {
    let channel = EventChannel::new(host)?;
    let id = Identifier::new(&channel, PortSpace::TCP)?;
    let Some(mut client) = connect(&channel, &id, plan, ending)? else {
        return Ok(());
    };
    tally.connected = true;
    let started = Instant::now();
    let result = ping_all(&channel, &mut client, plan, ending, lines, tally);
    tally.elapsed_us = micros(started.elapsed());
    tally.rtt_us = tally.times.summary();
    let disconnected = disconnect(&channel, &id, plan, ending);
    result?;
    disconnected?;
    tally.check()
}

/// Ends the connection. The server's confirmation is waited for, since nobody would repeat the message if it was lost; a
/// server that does not confirm changes nothing.
fn disconnect(
    channel: &EventChannel,
    id: &Identifier,
    plan: &Plan,
    ending: &Ending,
) -> Result<(), Failure> {
    id.disconnect()?;
    let limit = Instant::now().checked_add(plan.connect_timeout);
    while wait(channel, ending, limit)? == Waited::Event {
        if let Some(Event::Disconnected { .. }) = channel.try_event()? {
            break;
        }
    }
    Ok(())
}

/// A connection with a server; `None`: somebody asked for the end before.
fn connect(
    channel: &EventChannel,
    id: &Identifier,
    plan: &Plan,
    ending: &Ending,
) -> Result<Option<Client>, Failure> {
    let step_limit = plan
        .connect_timeout
        .clamp(Duration::from_millis(1), MAX_STEP);
    let limit = Instant::now().checked_add(plan.connect_timeout);
    let limit = match (limit, plan.until) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    };
    id.resolve_addr(plan.source, plan.address, step_limit)?;
    let mut client = None;
    loop {
        match wait(channel, ending, limit)? {
            Waited::Asked => return Ok(None),
            Waited::Late => {
                return Err(Failure::Protocol(format!(
                    "no connection with {} within {:.1} s{NOBODY_ANSWERS}",
                    plan.address,
                    plan.connect_timeout.as_secs_f64()
                )));
            }
            Waited::Event => {}
        }
        let Some(event) = channel.try_event()? else {
            continue;
        };
        match &event {
            Event::AddressResolved { .. } => id.resolve_route(step_limit)?,
            Event::RouteResolved { .. } => {
                client = Some(Client::new(id, plan.size)?);
                let param = ConnParam::default()
                    .responder_resources(1)
                    .initiator_depth(1)
                    .retry_count(RetryCount::MAX)
                    .rnr_retry_count(RetryCount::MAX);
                id.connect(&param)?;
            }
            Event::Established { .. } => return Ok(client),
            Event::Rejected { reason, .. } if *reason == RejReason::CONSUMER_DEFINED => {
                return Err(Failure::Protocol(format!(
                    "the server at {} refuses the connection: it has a client, and serves several only with -P, or has too many",
                    plan.address
                )));
            }
            other => {
                if let Some(error) = other.error() {
                    return Err(error.into());
                }
            }
        }
    }
}

fn ping_all(
    channel: &EventChannel,
    client: &mut Client,
    plan: &Plan,
    ending: &Ending,
    lines: Lines,
    tally: &mut Tally,
) -> Result<(), Failure> {
    let wanted = Wanted {
        verbose: plan.verbose,
        validate: plan.validate,
    };
    let is_late = || plan.until.is_some_and(|until| Instant::now() >= until);
    for number in 0..plan.count.unwrap_or(u32::MAX) {
        let unread = plan.count.is_none() && lines.are_in_vain();
        if ending.is_asked() || is_late() || unread {
            break;
        }
        let sent = Instant::now();
        tally.sent += 1;
        let reply = client.ping(number, plan.timeout, wanted, lines, || {
            Ok(is_connected(channel)? && !ending.is_asked() && !is_late())
        })?;
        match reply {
            Reply::Came { time, right } => {
                tally.received += 1;
                tally.mismatches += u64::from(!right);
                tally.times.add(time);
            }
            Reply::Lost => {
                tally.lost += 1;
                if plan.verbose {
                    lines.say(format_args!("ping {number}: no reply"));
                }
                // The server is in the middle of this one, and another cannot follow.
                break;
            }
            Reply::Stopped if is_late() => {
                tally.lost += 1;
                break;
            }
            Reply::Stopped => {
                // Whoever ended it did not wait for this one.
                tally.sent -= 1;
                break;
            }
        }
        let next = sent.checked_add(plan.interval);
        let next = match (next, plan.until) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        let is_last = plan.count == Some(number + 1);
        while !plan.interval.is_zero() && !is_last {
            match wait(channel, ending, next)? {
                Waited::Late | Waited::Asked => break,
                Waited::Event => {
                    is_connected(channel)?;
                }
            }
        }
    }
    Ok(())
}

/// Looks at what the channel has to say: an error where the connection has ended.
fn is_connected(channel: &EventChannel) -> Result<bool, Failure> {
    while let Some(event) = channel.try_event()? {
        let end = match event {
            Event::Disconnected { .. } => Some("the server ended the connection"),
            Event::DeviceRemoval { .. } => Some("the device of the connection is gone"),
            _ => None,
        };
        if let Some(end) = end {
            return Err(Failure::Protocol(end.to_owned()));
        }
        if let Some(error) = event.error() {
            return Err(error.into());
        }
    }
    Ok(true)
}

/// The longest that one resolution may take.
const MAX_STEP: Duration = Duration::from_secs(3600);
