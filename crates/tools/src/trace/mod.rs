//! `oarlock trace`: captures packets of this host, and draws what captures hold.

mod exchange;
mod record;
mod svg;
mod tally;

use crate::capture;
use crate::failure::Failure;
use crate::report::Lines;
use clap::{Args, Subcommand};
use std::path::{Path, PathBuf};
use std::time::Duration;

pub(crate) use exchange::Exchanges;

/// Options of `oarlock trace`.
#[derive(Debug, Args)]
#[command(
    arg_required_else_help = true,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "Examples:\n  oarlock trace -w x.pcapng                 until Ctrl-C; wireshark x.pcapng\n  oarlock trace -w x.pcapng --seconds 10 && oarlock trace ladder x.pcapng --svg x.svg\n\nNo privilege is needed: every program of the host service writes its own packets, and the service its management datagrams, also the programs that start later. The file has one interface for each, named after the program and its process. Packets stand there as on the wire, one between two programs of this host once, as its sender had it. One capture of a host can run at a time. It ends early when a packet cannot be written (a full disk, ulimit -f): then the exit status is 1, and the programs go on. Packets that a fault rule lost before they left are not there; `oarlock run --trace` captures one program only."
)]
pub(crate) struct Options {
    /// Captures the packets of all programs of this host to FILE, in pcapng; an older file is overwritten
    #[arg(short = 'w', long = "write", value_name = "FILE", required = true)]
    write: Option<PathBuf>,
    /// Ends after so long; without it when it is told to by SIGINT (Ctrl-C) or SIGTERM, or when the host service goes
    #[arg(long, value_name = "N", value_parser = seconds)]
    seconds: Option<f64>,
    /// Prints one JSON object
    #[arg(long)]
    json: bool,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Prints the connections, service resolutions and groups of a capture as ladders: who sent what to whom, and when
    #[command(
        after_help = "Examples:\n  oarlock demo -c 2 --pcap demo.pcap && oarlock trace ladder demo.pcap\n  oarlock trace ladder demo.pcap --connection 1\n  oarlock trace ladder x.pcapng --svg x.svg && xdg-open x.svg"
    )]
    Ladder(LadderOptions),
}

#[derive(Debug, Args)]
struct LadderOptions {
    /// A pcap or pcapng file, of oarlock, tcpdump or Wireshark
    file: PathBuf,
    /// Only this connection or service resolution (they are numbered from 1 in the order of their REQs and SIDR_REQs)
    #[arg(long, value_name = "N")]
    connection: Option<usize>,
    /// Draws it as a picture to this file, in place of the text; of many connections the first, of long ones the beginnings
    #[arg(long, value_name = "OUT")]
    svg: Option<PathBuf>,
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    match (&options.command, &options.write) {
        (Some(Command::Ladder(options)), _) => ladder(options),
        (None, Some(file)) => {
            let limit = options.seconds.map(Duration::from_secs_f64);
            record::run(file, limit, options.json)
        }
        (None, None) => Err(Failure::Usage(
            "give a file to write to with -w, or `ladder` and a file to read".to_owned(),
        )),
    }
}

fn ladder(options: &LadderOptions) -> Result<(), Failure> {
    let exchanges = read(&options.file)?;
    let missing = |number: usize| Failure::Capture {
        path: options.file.clone(),
        problem: format!(
            "there is no connection or resolution {number}, it holds {}",
            exchanges.count()
        ),
    };
    if let Some(number) = options.connection
        && !(1..=exchanges.count()).contains(&number)
    {
        return Err(missing(number));
    }
    let lines = Lines::new(false);
    if let Some(out) = &options.svg {
        let picture = svg::picture(&exchanges, options.connection);
        std::fs::write(out, picture.text).map_err(|source| Failure::File {
            path: out.clone(),
            source,
        })?;
        lines.say(format_args!(
            "{}: {} of {} connections and resolutions drawn",
            out.display(),
            picture.drawn,
            exchanges.count()
        ));
        return Ok(());
    }
    let chosen = match options.connection {
        None => exchanges.all(),
        Some(number) => exchanges.exchange(number).ok_or_else(|| missing(number))?,
    };
    for line in chosen {
        lines.say(line);
    }
    Ok(())
}

/// The lines of the first connection in a capture.
pub(crate) fn first_connection(file: &Path) -> Result<Vec<String>, Failure> {
    read(file)?.exchange(1).ok_or_else(|| Failure::Capture {
        path: file.to_owned(),
        problem: "it holds no connection".to_owned(),
    })
}

fn read(file: &Path) -> Result<Exchanges, Failure> {
    let mut exchanges = Exchanges::default();
    capture::read(file, |packet| exchanges.add(&packet))?;
    Ok(exchanges)
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.1..=MAX_SECONDS).contains(&seconds) => Ok(seconds),
        _ => Err("give seconds, from 0.1 to 31536000 (a year)".to_owned()),
    }
}

const MAX_SECONDS: f64 = 31_536_000.0;
