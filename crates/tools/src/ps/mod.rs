//! `oarlock ps`: the host service and everything in it, once or again and again.

mod counters;
mod listing;
mod table;
mod watch;

use crate::failure::Failure;
use crate::report::{self, Lines};
use clap::Args;
use oarlock_hostd::{ClientInfo, Host, HostState};
use std::time::Duration;

/// Options of `oarlock ps`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  oarlock ps\n  oarlock ps --counters\n  oarlock ps --watch 0.5                      until Ctrl-C\n  oarlock ps --json | jq .ids\n  oarlock ps --watch --json | jq .counters_per_s\n\nExit status 1 when no host service runs."
)]
pub(crate) struct Options {
    /// Prints the service's counters, too, grouped
    #[arg(long)]
    counters: bool,
    /// Prints it again every so many seconds, and what the counters gained per second; ends by SIGINT, SIGTERM, or when
    /// nobody reads any more, with status 0
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "2", value_parser = interval)]
    watch: Option<Duration>,
    /// Prints the result as one JSON object; with --watch one object a line
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let host = Host::join()?;
    if let Some(interval) = options.watch {
        return watch::run(&host, interval, options.counters, options.json);
    }
    let state = state(&host)?;
    if options.json {
        return report::print_json("ps", true, &listing::listing(state));
    }
    let lines = Lines::new(false);
    for line in table::table(&state) {
        lines.say(line);
    }
    if options.counters {
        for line in counters::grouped(&counters::Values::of(&state), None) {
            lines.say(line);
        }
    }
    Ok(())
}

/// Asks the service.
fn state(host: &Host) -> Result<HostState, Failure> {
    let mut state = host.ps()?;
    // This program is a client itself, while it asks.
    let own = std::process::id();
    let is_own = |client: &ClientInfo| match client.pid {
        0 => client.own_pid == own,
        pid => pid == own,
    };
    state.host.clients.retain(|client| !is_own(client));
    Ok(state)
}

/// Seconds, with a fraction.
fn interval(text: &str) -> Result<Duration, String> {
    let range = 0.1..=86_400.0;
    match text.parse::<f64>() {
        Ok(seconds) if range.contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("give seconds, from 0.1 to 86400".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_is_a_number_of_seconds_in_range() {
        assert_eq!(interval("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(interval("86400"), Ok(Duration::from_secs(86_400)));
        for text in ["0", "-1", "nan", "inf", "1s", "", "86401", "0.09"] {
            assert!(interval(text).is_err(), "{text}");
        }
    }
}
