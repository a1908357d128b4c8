//! `oarlock host`: the host service, in the foreground. Also what other commands want to know about it.

use crate::failure::{Failure, system};
use crate::report::Lines;
use clap::{Args, ValueEnum};
use oarlock_cma::{AlternatePaths, BacklogOverflow};
use oarlock_hostd::Host;
use oarlock_hostd::service::{self, ServiceConfig};
use oarlock_wire::{IbTimeout, RnrTimer};
use std::time::Duration;

/// Options of `oarlock host`.
#[derive(Debug, Args)]
#[command(
    after_help = "Programs start a host service by themselves when none runs, which ends by itself after them; this command is for running one on purpose, for example to keep it between programs, or with other timers.\n\nExamples:\n  oarlock host                  until it is killed\n  oarlock host --grace 60       until no program has used it for a minute"
)]
pub(crate) struct Options {
    /// Ends so long after the last program has gone (and if none comes); without it never
    #[arg(long, value_name = "SECONDS")]
    grace: Option<u64>,
    /// Gives up a connection attempt after so long; without it the retries decide, about 74 seconds
    #[arg(long, value_name = "SECONDS")]
    connect_deadline: Option<u64>,
    /// How long a peer may take to answer a connection message: 4.096 us * 2^N [default: 20, 4.3 s]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=31))]
    cm_response_timeout: Option<u8>,
    /// How often a connection message is sent again [default: 15]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u8).range(0..=15))]
    max_cm_retries: Option<u8>,
    /// How long a sender waits when no receive was posted, as encoded in the packets (12: 0.64 ms, 0:
    /// 655 ms) [default: 12]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=31))]
    min_rnr_timer: Option<u8>,
    /// The largest backlog of a listener, and that of one that asks for none [default: 1024]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    max_backlog: Option<u32>,
    /// What becomes of a connection request when the listener's backlog is full [default: drop]
    #[arg(long, value_enum, value_name = "WHAT")]
    backlog_overflow: Option<Overflow>,
    /// What becomes of an alternate path that a peer offers [default: refuse]
    #[arg(long, value_enum, value_name = "WHAT")]
    alternate_paths: Option<Alternates>,
    /// How much patience a peer is asked for whose request waits for a busy program: 4.096 us * 2^N [default:
    /// 24, 69 s]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=31))]
    mra_service_timeout: Option<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Overflow {
    /// It is dropped, as the kernel does, and the peer sends it again
    Drop,
    /// It is answered at once: rejected for reason 3, no resources
    Reject,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Alternates {
    /// It is refused
    Refuse,
    /// It is taken if it leads to a device of this host, and kept
    Accept,
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let mut config = ServiceConfig::default();
    config.grace = options.grace.map(Duration::from_secs);
    config.cma.connect_deadline = options.connect_deadline.map(Duration::from_secs);
    if let Some(timeout) = options.cm_response_timeout {
        config.cma.cm_response_timeout = IbTimeout::truncate(timeout);
    }
    if let Some(retries) = options.max_cm_retries {
        config.cma.max_cm_retries = retries;
    }
    if let Some(timer) = options.min_rnr_timer {
        config.cma.min_rnr_timer = RnrTimer::truncate(timer);
    }
    let lines = Lines::new(false);
    if let Some(backlog) = options.max_backlog {
        config.cma.max_backlog = backlog as usize;
    }
    match options.backlog_overflow {
        None => {}
        Some(Overflow::Drop) => config.cma.backlog_overflow = BacklogOverflow::Drop,
        Some(Overflow::Reject) => {
            config.cma.backlog_overflow = BacklogOverflow::RejectNoResources;
        }
    }
    match options.alternate_paths {
        None => {}
        Some(Alternates::Refuse) => config.cma.alternate_paths = AlternatePaths::Refuse,
        Some(Alternates::Accept) => config.cma.alternate_paths = AlternatePaths::Accept,
    }
    if let Some(timeout) = options.mra_service_timeout {
        config.cma.mra_service_timeout = IbTimeout::truncate(timeout);
    }
    service::run(config, || {
        lines.say(format_args!("host service: process {}", std::process::id()));
    })?;
    Ok(())
}

/// Joins the service, or starts this very program as the service, whatever name it has.
pub(crate) fn open() -> Result<Host, Failure> {
    let program = std::env::current_exe().map_err(system("the path of this program"))?;
    Ok(Host::open_starting(&program)?)
}

/// Packets that the service has sent and received since it started.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Traffic {
    pub(crate) pid: u32,
    pub(crate) data_packets: u64,
    pub(crate) management_packets: u64,
}

/// One counter of the service.
pub(crate) fn counter(host: &Host, name: &str) -> Result<u64, Failure> {
    find(&host.ps()?.host.counters, name)
}

fn find(counters: &[(String, u64)], name: &str) -> Result<u64, Failure> {
    let found = counters.iter().find(|(known, _)| known == name);
    // Without the counter nothing would be known; that must not pass for none.
    found
        .map(|(_, value)| *value)
        .ok_or_else(|| Failure::Result(format!("the host service has no counter {name}")))
}

/// Asks the service for its traffic.
pub(crate) fn traffic(host: &Host) -> Result<Traffic, Failure> {
    let state = host.ps()?.host;
    let counter = |name| find(&state.counters, name);
    Ok(Traffic {
        pid: state.pid,
        data_packets: counter("data_packets")?,
        management_packets: counter("qp1_sent")?
            + counter("qp1_received")?
            + counter("qp1_sent_within_host")?,
    })
}

/// The devices' names and interfaces, for people.
pub(crate) fn device_names(host: &Host) -> Result<String, Failure> {
    let names: Vec<String> = host
        .devices()?
        .into_iter()
        .map(|device| format!("{} ({})", device.name, device.interface))
        .collect();
    Ok(names.join(", "))
}
