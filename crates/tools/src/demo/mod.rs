//! `oarlock demo`: two processes of this program connect, exchange checked messages, migrate and disconnect.

mod child;

use crate::capture::{self, SharedCapture};
use crate::connections::Devices;
use crate::failure::Failure;
use crate::report::{self, Lines};
use crate::{host, trace};
use child::{Child, Report};
use clap::Args;
use serde::Serialize;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

/// Options of `oarlock demo`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  oarlock demo\n  oarlock demo -c 10 -C 100 -S 65536 --address ::1\n  oarlock demo -c 3 --pcap demo.pcap --ladder\n  oarlock trace ladder demo.pcap               or look at it with Wireshark\n\nNeeds no RDMA hardware, no root and no set-up. The last line tells everything: every connection was made, every message arrived with the right content, every identifier moved to another event channel, no event was lost."
)]
pub(crate) struct Options {
    /// How many connections
    #[arg(short = 'c', value_name = "CONNECTIONS", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=60_000))]
    connections: u32,
    /// How many messages each way on every connection
    #[arg(short = 'C', value_name = "MESSAGES", default_value_t = 10)]
    messages: u32,
    /// Bytes in a message
    #[arg(short = 'S', value_name = "BYTES", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(0..=1 << 30))]
    size: u32,
    /// The local address that the two processes use
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    address: IpAddr,
    /// Writes every packet, of both processes and of the host service, to a new pcap file
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
    /// Prints the packets of the first connection as a ladder
    #[arg(long, requires = "pcap")]
    ladder: bool,
    /// Prints the result as one JSON object, and everything else to standard error
    #[arg(long)]
    json: bool,
}

/// The result of both processes together.
#[derive(Debug, Serialize)]
struct Summary {
    /// Connections that both sides saw established.
    connections: u32,
    /// Connections asked for.
    asked: u32,
    /// Messages that arrived, both ways.
    messages: u64,
    /// Messages that should have.
    messages_expected: u64,
    /// Identifiers that moved to another event channel, both sides.
    migrations: u32,
    /// Events that should have come and did not, both sides.
    events_lost: u64,
    /// Messages with other content than they should have.
    mismatches: u64,
    /// Data packets that the host service saw.
    service_data_packets: u64,
    /// Management packets that it sent and received for all its programs since it started.
    service_management_packets: u64,
    /// The host service's process.
    service_pid: u32,
    /// Connections set up in a second.
    connects_per_s: f64,
    /// Messages in a second, both ways.
    messages_per_s: f64,
    /// Payload in a second, both ways.
    bytes_per_s: f64,
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let lines = Lines::new(options.json);
    let host = host::open()?;
    let before = host::traffic(&host)?;
    lines.say(format_args!(
        "host service: process {}; it manages connections on {}",
        before.pid,
        host::device_names(&host)?
    ));
    let capture = match &options.pcap {
        Some(file) => {
            let mut capture = SharedCapture::create(&capture::absolute(file)?)?;
            capture.trace_service(&host)?;
            Some(capture)
        }
        None => None,
    };
    let (passive, active) = run_both(options, capture.as_ref(), lines)?;
    if let Some(capture) = &capture {
        capture.check(&host, &Devices::default())?;
    }
    let after = host::traffic(&host)?;
    let summary = summarise(options, &passive, &active, &before, &after);
    print(options, &passive, &active, &summary, lines);
    if let (true, Some(capture)) = (options.ladder, &capture) {
        for line in trace::first_connection(&capture.path)? {
            lines.say(line);
        }
    }
    let complete = summary.is_complete();
    if options.json {
        report::print_json("demo", complete, &summary)?;
    }
    lines.say(format_args!(
        "summary: connections={}/{} messages={}/{} migrations={} events_lost={} mismatches={}",
        summary.connections,
        summary.asked,
        summary.messages,
        summary.messages_expected,
        summary.migrations,
        summary.events_lost,
        summary.mismatches
    ));
    if complete {
        Ok(())
    } else {
        Err(Failure::Result(
            "not everything arrived: see the summary".to_owned(),
        ))
    }
}

fn run_both(
    options: &Options,
    capture: Option<&SharedCapture>,
    lines: Lines,
) -> Result<(Report, Report), Failure> {
    let mut common = vec![
        "-c".to_owned(),
        options.connections.to_string(),
        "-C".to_owned(),
        options.messages.to_string(),
        "-S".to_owned(),
        options.size.to_string(),
        "-m".to_owned(),
        "--json".to_owned(),
    ];
    if let Some(capture) = capture {
        common.push("--pcap-data-only".to_owned());
        common.push("--pcap".to_owned());
        common.push(capture.path.display().to_string());
    }
    let with = |extra: &[String]| [extra, &common].concat();
    let address = options.address.to_string();
    let mut passive = Child::start(
        "passive",
        &with(&[
            "-b".to_owned(),
            address.clone(),
            "-p".to_owned(),
            "0".to_owned(),
        ]),
    )?;
    let listening: SocketAddr = passive.wait_listening()?;
    lines.say(format_args!(
        "passive side: process {}, listening on {listening}",
        passive.pid()
    ));
    let mut active = Child::start(
        "active",
        &with(&[
            "-s".to_owned(),
            address,
            "-p".to_owned(),
            listening.port().to_string(),
        ]),
    )?;
    lines.say(format_args!("active side: process {}", active.pid()));
    // One side says why; the complaint of the other one about it would only hide that.
    let (first, second) = child::wait_both(&mut passive, &mut active)?;
    Ok((first, second))
}

fn summarise(
    options: &Options,
    passive: &Report,
    active: &Report,
    before: &host::Traffic,
    after: &host::Traffic,
) -> Summary {
    let messages = passive.messages + active.messages;
    let per_second = |count: f64, us: f64| if us > 0.0 { count * 1e6 / us } else { 0.0 };
    // The passive side's clock runs from its first send to its last receive: both ways.
    let transfer_us = passive.transfer_us;
    Summary {
        connections: passive.connections.min(active.connections),
        asked: options.connections,
        messages,
        messages_expected: 2 * u64::from(options.connections) * u64::from(options.messages),
        migrations: passive.migrations + active.migrations,
        events_lost: passive.events_lost + active.events_lost,
        mismatches: passive.mismatches + active.mismatches,
        service_data_packets: after.data_packets - before.data_packets,
        service_management_packets: after.management_packets - before.management_packets,
        service_pid: after.pid,
        connects_per_s: per_second(f64::from(active.connections), active.connect_us),
        messages_per_s: per_second(messages as f64, transfer_us),
        bytes_per_s: per_second(messages as f64 * f64::from(options.size), transfer_us),
    }
}

impl Summary {
    fn is_complete(&self) -> bool {
        self.connections == self.asked
            && self.messages == self.messages_expected
            && self.migrations == 2 * self.asked
            && self.events_lost == 0
            && self.mismatches == 0
            && self.service_data_packets == 0
    }
}

fn print(options: &Options, passive: &Report, active: &Report, summary: &Summary, lines: Lines) {
    lines.say(format_args!(
        "connected: {} reliable connections, {:.0} per second",
        summary.connections, summary.connects_per_s
    ));
    lines.say(format_args!(
        "exchanged: {} messages of {} bytes each way, {:.0} per second, {:.1} MB/s; every byte compared",
        u64::from(options.connections) * u64::from(options.messages),
        options.size,
        summary.messages_per_s,
        summary.bytes_per_s / 1e6
    ));
    lines.say(format_args!(
        "migrated: {} + {} identifiers to another event channel; {} events came out of it afterwards",
        passive.migrations,
        active.migrations,
        passive.events_after_migration + active.events_after_migration
    ));
    lines.say(format_args!(
        "management packets through the service: {}",
        summary.service_management_packets
    ));
    lines.say(format_args!(
        "data packets through the service: {}",
        summary.service_data_packets
    ));
}
