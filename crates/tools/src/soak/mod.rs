//! `oarlock soak`: keeps connections up and busy, whatever happens to the other side. Hidden: it is what `accept/chaos.sh`
//! kills and starts again.
//!
//! The client keeps a number of connections: one that ends, or is not made, is tried again after a pause. On those that
//! are up it sends messages, which the server sends back and the client compares. Both go on until SIGINT or SIGTERM.

mod client;
mod server;

use crate::failure::{Failure, system};
use crate::report::{self, Lines};
use crate::signals::Ending;
use clap::{Args, Subcommand};
use oarlock_verbs::{Buffer, ProtectionDomain, QpInitAttr, QueuePair};
use std::net::SocketAddr;
use std::time::Duration;

/// Options of `oarlock soak`.
#[derive(Debug, Args)]
#[command(
    arg_required_else_help = true,
    after_help = "Examples:\n  oarlock soak server --port 7471\n  oarlock soak client 127.0.0.1:7471 -c 500"
)]
pub(crate) struct Options {
    #[command(subcommand)]
    side: Side,
}

#[derive(Debug, Subcommand)]
enum Side {
    /// Accepts and sends back
    Server {
        /// The port, of all addresses
        #[arg(long, default_value_t = 7471)]
        port: u16,
    },
    /// Keeps connections and compares
    Client {
        /// The server
        address: SocketAddr,
        /// How many connections to keep
        #[arg(short = 'c', value_name = "CONNECTIONS", value_parser = clap::value_parser!(u32).range(1..=30_000))]
        connections: u32,
    },
}

/// Bytes in a message.
const SIZE: usize = 64;
/// Tells receives from sends in the `wr_id` of a completion; the lower half is the connection.
const RECEIVE: u64 = 1 << 63;
/// How long completions are waited for before the event channel is looked at again.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let lines = Lines::new(true);
    let ending = Ending::register().map_err(system("signals"))?;
    let host = crate::host::open()?;
    match &options.side {
        Side::Server { port } => {
            let mut counts = server::Counts::default();
            let result = server::run(&host, *port, &ending, lines, &mut counts);
            report::print_json("soak", result.is_ok(), &counts)?;
            result
        }
        Side::Client {
            address,
            connections,
        } => {
            let mut counts = client::Counts::new(*connections);
            let result = client::run(&host, *address, &ending, lines, &mut counts);
            report::print_json("soak", result.is_ok(), &counts)?;
            result
        }
    }
}

/// One message each way.
fn queue_sizes() -> QpInitAttr {
    QpInitAttr {
        max_send_wr: 2,
        max_recv_wr: 2,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline_data: 0,
        ..QpInitAttr::default()
    }
}

/// A buffer for the first message of connection `number`.
fn post_receive(queue_pair: &QueuePair, pd: &ProtectionDomain, number: u64) -> Result<(), Failure> {
    let buffer = Buffer::new(pd, SIZE)?;
    Ok(queue_pair.post_recv(RECEIVE | number, buffer)?)
}
