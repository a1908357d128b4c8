//! `oarlock cmtime`: how long every step of a connection takes.
//!
//! All connections go through one step before any begins the next, `--concurrency` of them at a time, so that a step's
//! figures are not mixed with another's.

mod active;
mod passive;
mod statistics;

use crate::failure::Failure;
use crate::host;
use crate::report::{self, Lines};
use clap::{ArgGroup, Args, ValueEnum};
use oarlock_hostd::Host;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// Options of `oarlock cmtime`.
#[derive(Debug, Args)]
#[command(
    arg_required_else_help = true,
    group(ArgGroup::new("side").args(["local", "server", "role"]).required(true)),
    after_help = "Examples:\n  oarlock cmtime --local -c 1000                   both sides in this process\n  oarlock cmtime --local -c 1000 --concurrency 100 --json\n  oarlock cmtime server                            the passive side, until killed, and\n  oarlock cmtime -s 192.0.2.7 -c 1000              its active side, also elsewhere\n\nTimes are microseconds. connects per second: first connect call to last established event; set-ups per second: first identifier created to last destroyed."
)]
pub(crate) struct Options {
    /// Runs both sides in this process
    #[arg(long)]
    local: bool,
    /// Is the active side, for a passive side at this address
    #[arg(short = 's', value_name = "ADDRESS")]
    server: Option<IpAddr>,
    /// `server`: is the passive side
    #[arg(value_enum)]
    role: Option<Role>,
    /// How many connections [default: 100]; `server` ends after so many, without it never
    #[arg(short = 'c', value_name = "CONNECTIONS", value_parser = clap::value_parser!(u32).range(1..=60_000))]
    connections: Option<u32>,
    /// How many connections are in a step at a time
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    concurrency: u32,
    /// The passive side's port
    #[arg(short = 'p', value_name = "PORT", default_value_t = 7471)]
    port: u16,
    /// First establishes so many connections more and leaves them idle
    #[arg(long, value_name = "L", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=60_000))]
    live: u32,
    /// Prints the result as one JSON object, and everything else to standard error
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Role {
    /// The passive side
    Server,
}

const DEFAULT_CONNECTIONS: u32 = 100;

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let lines = Lines::new(options.json);
    let host = host::open()?;
    if options.role == Some(Role::Server) {
        return serve(options, &host, lines);
    }
    let asked = options.connections.unwrap_or(DEFAULT_CONNECTIONS);
    // Kept until the active side is done; ends when its last connection has.
    let passive = options
        .local
        .then(|| passive::Passive::listen(&host, SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0)))
        .transpose()?;
    let destination = match (&passive, options.server) {
        (Some(passive), _) => passive.address(),
        (None, Some(server)) => SocketAddr::new(server, options.port),
        (None, None) => unreachable!("clap requires one of the three sides"),
    };
    let serving = passive.map(|passive| {
        let total = asked + options.live;
        std::thread::spawn(move || passive.serve(Some(total)))
    });
    let result = active::run(
        &host,
        destination,
        active::Load {
            asked,
            concurrency: options.concurrency,
            live: options.live,
        },
    );
    let timing = result?;
    if let Some(serving) = serving
        && timing.failed == 0
    {
        match serving.join() {
            Ok(served) => served?,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
    let ok = timing.failed == 0;
    if options.json {
        report::print_json("cmtime", ok, &timing)?;
    } else {
        for line in timing.table() {
            lines.say(line);
        }
    }
    match timing.first_failure {
        None => Ok(()),
        Some(first) => Err(Failure::Connect {
            failed: timing.failed as usize,
            connections: asked as usize,
            first,
        }),
    }
}

fn serve(options: &Options, host: &Host, lines: Lines) -> Result<(), Failure> {
    let any = crate::cmatose::any_address(options.port);
    let passive = passive::Passive::listen(host, any)?;
    lines.say(format_args!("listening on {}", passive.address()));
    let served = options.connections.map(|count| count + options.live);
    passive.serve(served)?;
    if options.json {
        report::print_json("cmtime", true, &Served { asked: served })?;
    }
    Ok(())
}

#[derive(serde::Serialize)]
struct Served {
    asked: Option<u32>,
}
