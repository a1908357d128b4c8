//! `oarlock cmatose`: the connection test, in the manner of ucmatose(1).
//!
//! The passive side listens, accepts `-c` connections, sends `-C` messages on each, and receives as many; the active side
//! connects, receives, and replies. Other than in ucmatose every message has a content of its own that the receiver checks,
//! and the active side disconnects, when it knows that everything arrived. Where the other side is ucmatose, the passive side
//! disconnects, as ucmatose has it.

mod active;
mod address;
mod options;
mod outcome;
mod passive;
mod session;
#[cfg(test)]
mod tests;

use crate::failure::Failure;
use crate::host;
use crate::report::{self, Lines};
use crate::trace;
use std::net::SocketAddr;

pub(crate) use address::any as any_address;
pub(crate) use options::Options;
pub(crate) use outcome::Outcome;

/// The address of a host name or of an address in text; the first one where a name has several.
pub(crate) fn resolve_address(name: &str, port: u16) -> Result<SocketAddr, Failure> {
    address::resolve(name, None, port)
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let lines = Lines::new(options.json);
    let plan = options.plan()?;
    let mut outcome = Outcome::new(&plan);
    let result = host::open().and_then(|host| match plan.server {
        Some(server) => active::run(host, &plan, server, lines, &mut outcome),
        None => passive::run(host, &plan, lines, &mut outcome),
    });
    let status = i32::from(result.is_err());
    lines.say("test complete");
    lines.say(format_args!("return status {status}"));
    if let (true, Some(file)) = (options.ladder, &options.pcap) {
        for line in trace::first_connection(file)? {
            lines.say(line);
        }
    }
    if options.json {
        report::print_json("cmatose", result.is_ok(), &outcome)?;
    }
    result
}
