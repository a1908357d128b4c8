//! `oarlock trace`: reads captures.

mod exchange;

use crate::capture;
use crate::failure::Failure;
use crate::report::Lines;
use clap::{Args, Subcommand};
use std::path::{Path, PathBuf};

pub(crate) use exchange::Exchanges;

/// Options of `oarlock trace`.
#[derive(Debug, Args)]
#[command(
    arg_required_else_help = true,
    after_help = "Examples:\n  oarlock demo -c 2 --pcap demo.pcap && oarlock trace ladder demo.pcap"
)]
pub(crate) struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Prints the connections, service resolutions and groups of a capture as ladders: who sent what to whom, and when
    #[command(
        after_help = "Examples:\n  oarlock demo -c 2 --pcap demo.pcap && oarlock trace ladder demo.pcap\n  oarlock trace ladder demo.pcap --connection 1"
    )]
    Ladder(LadderOptions),
}

#[derive(Debug, Args)]
struct LadderOptions {
    /// A pcap file of `oarlock --pcap` or of tcpdump
    file: PathBuf,
    /// Only this connection or service resolution (they are numbered from 1 in the order of their REQs and SIDR_REQs)
    #[arg(long, value_name = "N")]
    connection: Option<usize>,
    /// Not implemented yet: only the text form is
    #[arg(long, value_name = "OUT", hide = true)]
    svg: Option<PathBuf>,
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let Command::Ladder(options) = &options.command;
    if options.svg.is_some() {
        return Err(Failure::Usage(
            "--svg is not implemented yet; the ladder is printed as text without it".to_owned(),
        ));
    }
    let exchanges = read(&options.file)?;
    let lines = Lines::new(false);
    let chosen = match options.connection {
        None => exchanges.all(),
        Some(number) => exchanges.exchange(number).ok_or_else(|| Failure::Capture {
            path: options.file.clone(),
            problem: format!(
                "there is no connection or resolution {number}, it holds {}",
                exchanges.count()
            ),
        })?,
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
