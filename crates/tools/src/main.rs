//! The `oarlock` command. One file or folder per subcommand; what several of them need stands beside them:
//! [`connections`] (a set of connections with their events), [`content`] (messages that can be checked),
//! [`capture`], [`report`], [`progress`], [`failure`].
//!
//! Contract of every command: exit status 0 when all that was asked was done, 1 when it failed, 2 for wrong usage. With
//! `--json` exactly one object goes to standard output and everything else to standard error. A failure is one line
//! `error: SENTENCE` on standard error.
#![forbid(unsafe_code)]

mod bench;
mod capture;
mod cmatose;
mod cmtime;
mod completions;
mod connections;
mod content;
mod demo;
mod devices;
mod explain;
mod failure;
mod host;
#[cfg(test)]
mod listening;
mod man;
mod memory;
mod ping;
mod progress;
mod ps;
mod report;
mod run;
mod signals;
mod soak;
mod trace;

use clap::{CommandFactory as _, Parser, Subcommand};
use oarlock_hostd::service::{LOG_FILE_VARIABLE, LogFile};
use std::io::Write as _;
use std::process::ExitCode;
use std::sync::Mutex;
use tracing_subscriber::EnvFilter;

const LOG_VARIABLE: &str = "OARLOCK_LOG";

/// RDMA connection management in user space: needs no RDMA device, no kernel module, no root and no set-up.
#[derive(Debug, Parser)]
#[command(
    name = "oarlock",
    version,
    propagate_version = true,
    arg_required_else_help = true,
    after_help = "Start here:\n  oarlock demo                     two processes connect, exchange data, migrate, disconnect\n  oarlock cmatose                  a server ...\n  oarlock cmatose -s 127.0.0.1     ... and its client, as ucmatose(1)\n\nThe environment variable OARLOCK_LOG sets what is logged to standard error (e.g. `OARLOCK_LOG=debug oarlock host`); without it, warnings. OARLOCK_FAULT lets packets of a program get lost, late or damaged on purpose (e.g. `OARLOCK_FAULT=drop:p=0.01,seed=7 oarlock ping -c -a 127.0.0.1 -C 100 -V`); oarlock(1) has the rules."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs two processes that connect, exchange checked messages, migrate and disconnect
    Demo(demo::Options),
    /// Connection test in the manner of ucmatose(1): server without -s, client with it
    Cmatose(cmatose::Options),
    /// Times every step of setting up connections
    Cmtime(cmtime::Options),
    /// Measures bandwidth, latency and cost of one operation between two processes
    Bench(bench::Options),
    /// Round trips over a connection, in the manner of rping(1)
    Ping(ping::Options),
    /// Runs a program that was built against rdma-core, as it is, on this host's software devices
    Run(run::RunOptions),
    /// Prints what sets up a shell so that its programs run as by `oarlock run`
    Env(run::EnvOptions),
    /// Shows the devices of this host: addresses, limits, statistics
    Devices(devices::Options),
    /// Shows the host service: identifiers, ports, slots, counters
    Ps(ps::Options),
    /// Explains a code: why a peer refused, how a work request, a call or a connection ended
    Explain(explain::Options),
    /// Runs the host service of this network namespace in the foreground
    Host(host::Options),
    /// Captures the packets of this host, and draws captures
    Trace(trace::Options),
    /// Keeps connections up and busy, whatever happens to the other side
    #[command(hide = true)]
    Soak(soak::Options),
    /// Prints or writes manual pages
    Man(man::Options),
    /// Prints the script by which a shell completes commands, options and values
    Completions(completions::Options),
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return help_or_wrong_usage(&error),
    };
    if let Err(failure) = init_log(&cli.command) {
        let status = failure.report();
        return match cli.command {
            Command::Run(_) => ExitCode::from(run::STATUS_OURS),
            _ => status,
        };
    }
    if let Err(error) = signals::outlive_file_size_limit() {
        return failure::system("signals")(error).report();
    }
    let result = match cli.command {
        Command::Demo(options) => demo::run(&options),
        Command::Cmatose(options) => cmatose::run(&options),
        Command::Cmtime(options) => cmtime::run(&options),
        Command::Bench(options) => bench::run(&options),
        Command::Ping(options) => ping::run(&options),
        Command::Run(options) => return run::run(&options),
        Command::Env(options) => run::env(&options),
        Command::Devices(options) => devices::run(&options),
        Command::Ps(options) => ps::run(&options),
        Command::Explain(options) => explain::run(&options),
        Command::Host(options) => host::run(&options),
        Command::Trace(options) => trace::run(&options),
        Command::Soak(options) => soak::run(&options),
        Command::Man(options) => man::run(&options, Cli::command()),
        Command::Completions(options) => completions::run(&options, &Cli::command()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

/// Prints what clap has to say: 0 after help and version, 2 on wrong usage, but of `run`, whose program may end with 2 as well.
fn help_or_wrong_usage(error: &clap::Error) -> ExitCode {
    // Nobody is left to tell when the stream is closed.
    let _ = error.print();
    let is_run = std::env::args_os()
        .nth(1)
        .is_some_and(|command| command == "run");
    match u8::try_from(error.exit_code()) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) if is_run => ExitCode::from(run::STATUS_OURS),
        Ok(status) => ExitCode::from(status),
        Err(_) => ExitCode::FAILURE,
    }
}

/// Programs log warnings to standard error. The service that a program started has a file for it, and says more.
fn init_log(command: &Command) -> Result<(), failure::Failure> {
    let file = match command {
        Command::Host(_) => LogFile::from_env().unwrap_or_else(|error| {
            // A service without a log is better than none.
            let _ = writeln!(std::io::stderr(), "warning: {LOG_FILE_VARIABLE}: {error}");
            None
        }),
        _ => None,
    };
    let filter = match std::env::var_os(LOG_VARIABLE) {
        Some(text) if !text.is_empty() => {
            let text = text.to_string_lossy();
            EnvFilter::try_new(&text).map_err(|error| {
                failure::Failure::Usage(format!("{LOG_VARIABLE}={text}: {error}"))
            })?
        }
        _ => EnvFilter::new(if file.is_some() { "info" } else { "warn" }),
    };
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_target(false)
        // A service that a program started outlives the reader of its standard error: what cannot be written is not said.
        .log_internal_errors(false);
    match file {
        Some(file) => log.with_ansi(false).with_writer(Mutex::new(file)).init(),
        None => log.with_writer(std::io::stderr).without_time().init(),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commands_are_well_formed() {
        Cli::command().debug_assert();
    }
}
