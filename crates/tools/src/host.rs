//! `oarlock host`: the host service, in the foreground. Also what other commands want to know about it.

use crate::failure::Failure;
use clap::Args;
use oarlock_hostd::Host;
use oarlock_hostd::service::{self, ServiceConfig};
use std::time::Duration;

/// Options of `oarlock host`.
#[derive(Debug, Args)]
#[command(
    after_help = "Programs start a host service by themselves when none runs; this command is for running one on purpose, for\nexample to keep it between programs.\n\nExamples:\n  oarlock host                  until it is killed\n  oarlock host --grace 60       until no program has used it for a minute"
)]
pub(crate) struct Options {
    /// Ends so long after the last program has gone (and if none comes); without it never
    #[arg(long, value_name = "SECONDS")]
    grace: Option<u64>,
    /// Gives up connecting so long after the program asked; without it the retries decide (about 74 s)
    #[arg(long, value_name = "SECONDS")]
    connect_deadline: Option<u64>,
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let config = ServiceConfig {
        grace: options.grace.map(Duration::from_secs),
        ..ServiceConfig::default()
    };
    Ok(service::run(config)?)
}

/// Packets that the service has sent and received since it started.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Traffic {
    pub(crate) pid: u32,
    pub(crate) data_packets: u64,
    pub(crate) management_packets: u64,
}

/// Asks the service for its traffic.
pub(crate) fn traffic(host: &Host) -> Result<Traffic, Failure> {
    let state = host.ps()?.host;
    let counter = |name: &str| {
        let found = state.counters.iter().find(|(known, _)| known == name);
        // Without the counter nothing would be known about the traffic; that must not pass for none.
        found
            .map(|(_, value)| *value)
            .ok_or_else(|| Failure::Result(format!("the host service has no counter {name}")))
    };
    Ok(Traffic {
        pid: state.pid,
        data_packets: counter("data_packets")?,
        management_packets: counter("management_packets")?,
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
