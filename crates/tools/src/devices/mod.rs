//! `oarlock devices`: the devices of this host, in the manner of ibv_devinfo(1).

mod listing;
mod text;

use crate::failure::Failure;
use crate::report::{self, Lines};
use clap::Args;
use listing::{Device, Listing};
use oarlock_hostd::Host;
use oarlock_verbs::{Context, DeviceInfo};

/// Options of `oarlock devices`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  oarlock devices\n  oarlock devices -v                    with all limits, addresses and statistics\n  oarlock devices -d soft_eth0 --json | jq '.devices[].gids'\n\nExit status 1 when there is no device, or none of that name."
)]
pub(crate) struct Options {
    /// Prints limits, capabilities, the whole address table and statistics, too
    #[arg(short = 'v', long)]
    verbose: bool,
    /// Only this device
    #[arg(short = 'd', long, value_name = "NAME")]
    device: Option<String>,
    /// Prints the result as one JSON object, which has everything
    #[arg(long, conflicts_with = "verbose")]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let host = crate::host::open()?;
    let mut devices = ask(&host)?;
    if let Some(name) = &options.device {
        let known: Vec<String> = devices.iter().map(|device| device.name.clone()).collect();
        devices.retain(|device| device.name == *name);
        if devices.is_empty() {
            return Err(Failure::Result(format!(
                "there is no device {name}; the devices are: {}",
                if known.is_empty() {
                    "none".to_owned()
                } else {
                    known.join(", ")
                }
            )));
        }
    }
    let found = !devices.is_empty();
    if options.json {
        report::print_json("devices", found, &Listing { devices })?;
    } else {
        let lines = Lines::new(false);
        for device in &devices {
            for line in text::lines(device, options.verbose) {
                lines.say(line);
            }
        }
    }
    if found {
        Ok(())
    } else {
        Err(Failure::Result(
            "there is no device: no network interface is up".to_owned(),
        ))
    }
}

/// All that is known of every device.
fn ask(host: &Host) -> Result<Vec<Device>, Failure> {
    let interfaces = host.devices()?;
    let statistics = host.statistics()?;
    let described: Vec<DeviceInfo> = Context::devices(host)?;
    let mut devices = Vec::new();
    for info in described {
        // Both lists are of one service, but a device may have come or gone in between.
        let Some(interface) = interfaces.iter().find(|known| known.index == info.index) else {
            continue;
        };
        let counters = statistics
            .iter()
            .find(|known| known.device == info.index)
            .map(|known| known.counters.clone())
            .unwrap_or_default();
        devices.push(Device::new(&info, interface, counters));
    }
    Ok(devices)
}
