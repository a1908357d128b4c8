//! `oarlock soak`: keeps connections up and busy, whatever happens to the other side. Hidden: it is what `accept/chaos.sh`
//! kills and starts again, and what `accept/soak.sh` lets move data ([`data`]).
//!
//! The client keeps a number of connections: one that ends, or is not made, is tried again after a pause. On those that
//! are up it sends messages, which the server sends back and the client compares. Both go on until SIGINT or SIGTERM.

mod client;
mod data;
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
    after_help = "Examples:\n  oarlock soak server --port 7471\n  oarlock soak client 127.0.0.1:7471 -c 500\n  oarlock soak data --seconds 120 --loss 0.01"
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
    /// Moves data both ways by every operation, between two processes, while packets are lost
    Data {
        /// How long
        #[arg(long, default_value_t = 10.0, value_parser = seconds)]
        seconds: f64,
        /// How many connections at once
        #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
        connections: u32,
        /// Of the operations and of the faults
        #[arg(long, default_value_t = 1)]
        seed: u64,
        #[command(flatten)]
        faults: Faults,
        /// Is the accepting process
        #[arg(long, hide = true)]
        accept: Option<SocketAddr>,
    },
}

/// Faults that are injected into both processes.
#[derive(Clone, Debug, Default, Args)]
struct Faults {
    /// The share of packets that is lost in each direction, from 0 to 0.5
    #[arg(long, default_value_t = 0.0, value_parser = share)]
    loss: f64,
    /// Another rule, as of `OARLOCK_FAULT`; may be given several times
    #[arg(long, value_name = "RULE")]
    fault: Vec<String>,
}

impl Faults {
    /// All of them, as one text; the dice of the loss follow from the seed.
    fn rules(&self, seed: u64) -> String {
        let mut rules = self.fault.clone();
        if self.loss > 0.0 {
            rules.push(format!("drop:p={},seed={seed}", self.loss));
        }
        rules.join(";")
    }

    fn pass_on(&self, command: &mut std::process::Command) {
        command.args(["--loss", &self.loss.to_string()]);
        for rule in &self.fault {
            command.args(["--fault", rule]);
        }
    }
}

fn share(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(share) if (0.0..=0.5).contains(&share) => Ok(share),
        _ => Err("give a share, from 0 to 0.5".to_owned()),
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.1..=1e6).contains(&seconds) => Ok(seconds),
        _ => Err("give seconds, from 0.1 to 1000000".to_owned()),
    }
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
    if let Side::Data {
        seconds,
        connections,
        seed,
        faults,
        accept,
    } = &options.side
    {
        let plan = data::Plan {
            seconds: *seconds,
            connections: *connections,
            seed: *seed,
        };
        if let Some(address) = accept {
            let moved = data::serve(faults, plan, *address, lines)?;
            return report::print_json("soak", true, &moved);
        }
        let done = data::run(faults, plan, &ending, lines)?;
        report::print_json("soak", done.complaint.is_none(), &done)?;
        return match done.complaint {
            None => Ok(()),
            Some(complaint) => Err(Failure::Result(complaint)),
        };
    }
    let host = crate::host::open()?;
    match &options.side {
        Side::Data { .. } => unreachable!("it is done above"),
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
