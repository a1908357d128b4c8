//! `oarlock ping`: round trips over a connection, in the manner of rping(1).
//!
//! The protocol is that of rping, so that either side may be one: the server reads each message out of the client's memory and writes it
//! back ([`end`]).

mod client;
mod end;
mod info;
mod message;
mod server;
mod statistics;
#[cfg(test)]
mod tests;

use crate::failure::{Failure, system};
use crate::report::{self, Lines};
use crate::signals::Ending;
use clap::{ArgGroup, Args};
use oarlock_rdmacm::EventChannel;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Options of `oarlock ping`; the letters are those of rping(1).
#[derive(Debug, Args)]
#[command(
    arg_required_else_help = true,
    // -V is rping's.
    disable_version_flag = true,
    group(ArgGroup::new("side").args(["server", "client"]).required(true)),
    after_help = "Examples:\n  oarlock ping -s -P                       a server for any number of clients, until it is killed, and\n  oarlock ping -c -a 127.0.0.1 -C 10 -V -v   its client: ten messages, printed and compared\n  oarlock ping -c -a ::1 -i 1              one a second, until Ctrl-C\n  oarlock ping -c -a 192.0.2.7 -C 1000 -S 65536 --json\n\nThe server reads each message out of the client's memory and writes it back, as in rping(1), which may be the other side; an rping server needs the option -S there, too, for messages larger than its usual 64 bytes. Exit status 0 when every reply came, in time and as it was sent."
)]
pub(crate) struct Options {
    /// Is the server: answers
    #[arg(short = 's')]
    server: bool,
    /// Is the client: asks, and counts
    #[arg(short = 'c', requires = "address")]
    client: bool,
    /// The server's name or address; of a server the address to listen on [default there: all]
    #[arg(short = 'a', value_name = "ADDRESS")]
    address: Option<String>,
    /// The client's own address
    #[arg(short = 'I', value_name = "ADDRESS", conflicts_with = "server")]
    source: Option<String>,
    /// The server's port; 0, on the server, takes a free one
    #[arg(short = 'p', value_name = "PORT", default_value_t = 7174)]
    port: u16,
    /// How many messages, from 1 [default: until it is ended, or with -v until nobody reads its output]
    #[arg(short = 'C', value_name = "COUNT", conflicts_with = "server", value_parser = clap::value_parser!(u32).range(1..))]
    count: Option<u32>,
    /// Bytes in a message, from 1 to 1048576 [default: 64]
    #[arg(short = 'S', value_name = "BYTES", conflicts_with = "server", value_parser = clap::value_parser!(u32).range(1..=i64::from(end::MAX_SIZE)))]
    size: Option<u32>,
    /// Prints every message, or reply, that arrives
    #[arg(short = 'v')]
    verbose: bool,
    /// Compares every message, or reply, that arrives with what it should be
    #[arg(short = 'V')]
    validate: bool,
    /// Serves any number of clients, several at once, until it is killed; without it the server ends with its first client
    #[arg(short = 'P', conflicts_with = "client")]
    persistent: bool,
    /// Waits so long between two messages [default: 0, the next one follows the reply]
    #[arg(short = 'i', value_name = "SECONDS", conflicts_with = "server", value_parser = seconds)]
    interval: Option<Duration>,
    /// Ends after so long, whatever has been done [default: never]
    #[arg(short = 'w', long, value_name = "SECONDS", value_parser = seconds)]
    deadline: Option<Duration>,
    /// Gives up when the connection is not there after so long [default: 10]
    #[arg(long, value_name = "SECONDS", conflicts_with = "server", value_parser = seconds)]
    connect_timeout: Option<Duration>,
    /// Counts a message as lost, and ends, when its reply has not come after so long [default: 5]
    #[arg(long, value_name = "SECONDS", conflicts_with = "server", value_parser = seconds)]
    timeout: Option<Duration>,
    /// Prints the result as one JSON object, and everything else to standard error
    #[arg(long)]
    json: bool,
}

const DEFAULT_SIZE: u32 = 64;
const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let lines = Lines::new(options.json);
    let ending = Ending::register().map_err(system("signals"))?;
    let resolve = crate::cmatose::resolve_address;
    let given = options.address.as_deref();
    let until = options
        .deadline
        .and_then(|limit| Instant::now().checked_add(limit));
    if options.server {
        let address = match given {
            Some(name) => resolve(name, options.port)?,
            None => crate::cmatose::any_address(options.port),
        };
        let plan = server::Plan {
            address,
            persistent: options.persistent,
            verbose: options.verbose,
            validate: options.validate,
            until,
        };
        let host = crate::host::open()?;
        let mut served = server::Served::default();
        let result = server::run(&host, &plan, &ending, lines, &mut served);
        return finish(options, result, &served, served.lines(), lines);
    }
    let Some(name) = given else {
        unreachable!("clap requires an address with -c");
    };
    let plan = client::Plan {
        address: resolve(name, options.port)?,
        source: options
            .source
            .as_deref()
            .map(|name| resolve(name, 0))
            .transpose()?,
        count: options.count,
        size: options.size.unwrap_or(DEFAULT_SIZE),
        verbose: options.verbose,
        validate: options.validate,
        interval: options.interval.unwrap_or(Duration::ZERO),
        connect_timeout: options.connect_timeout.unwrap_or(DEFAULT_CONNECT_TIMEOUT),
        timeout: options.timeout.unwrap_or(DEFAULT_TIMEOUT),
        until,
    };
    let host = crate::host::open()?;
    let mut tally = client::Tally::new(&plan);
    let result = client::run(&host, &plan, &ending, lines, &mut tally);
    finish(options, result, &tally, tally.lines(), lines)
}

/// What was counted is told whatever the end was.
fn finish(
    options: &Options,
    result: Result<(), Failure>,
    counted: &impl serde::Serialize,
    summary: Vec<String>,
    lines: Lines,
) -> Result<(), Failure> {
    for line in summary {
        lines.say(line);
    }
    if options.json {
        report::print_json("ping", result.is_ok(), counted)?;
    }
    result
}

fn seconds(text: &str) -> Result<Duration, String> {
    let range = 0.001..=1e6;
    match text.parse::<f64>() {
        Ok(seconds) if range.contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("give seconds, from 0.001 to 1000000".to_owned()),
    }
}

/// Why a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waited {
    /// The channel has something to say.
    Event,
    /// Somebody asked for the end.
    Asked,
    /// The time is up.
    Late,
}

/// Waits for an event, a signal, or a time.
fn wait(
    channel: &EventChannel,
    ending: &Ending,
    until: Option<Instant>,
) -> Result<Waited, Failure> {
    loop {
        if ending.is_asked() {
            return Ok(Waited::Asked);
        }
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let limit = left.map(|left| {
            Timespec::try_from(left).unwrap_or(Timespec {
                tv_sec: i32::MAX.into(),
                tv_nsec: 0,
            })
        });
        let mut fds = [
            PollFd::new(channel, PollFlags::IN),
            PollFd::new(ending, PollFlags::IN),
        ];
        match poll(&mut fds, limit.as_ref()) {
            Ok(0) => return Ok(Waited::Late),
            Ok(_) if !fds[1].revents().is_empty() => return Ok(Waited::Asked),
            Ok(_) => return Ok(Waited::Event),
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(system("waiting for events")(errno.into())),
        }
    }
}

/// A peer, for people.
fn name_of(peer: Option<SocketAddr>) -> String {
    peer.map_or_else(|| "an unknown peer".to_owned(), |peer| peer.to_string())
}
