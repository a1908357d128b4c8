//! `oarlock run`: a program with faults on purpose, in what it sends and receives.

use crate::failure::Failure;
use clap::Args;
use oarlock_hostd::{FAULT_RECORD_VARIABLE, FAULT_REPLAY_VARIABLE, FAULT_VARIABLE};
use oarlock_port::fault::Rules;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;

/// Options of `oarlock run`.
#[derive(Debug, Args)]
#[command(
    arg_required_else_help = true,
    after_help = "Examples:\n  oarlock run --fault drop:p=0.01,seed=7 -- oarlock ping -c -a 127.0.0.1 -C 100 -V\n  oarlock run --fault drop:opcode=ack,count=3 --fault delay:us=500,p=0.1 --fault-record faults.%p -- PROGRAM\n  oarlock run --fault-replay faults.1234 -- PROGRAM      exactly those faults again\n\nExit status: that of the program; 125 when this command itself fails, 126 when the program cannot be run, 127 when there is none of that name."
)]
pub(crate) struct Options {
    /// A rule: KIND[:KEY=VALUE,...], see oarlock-run(1); may be given several times, the first that strikes decides
    #[arg(long, value_name = "RULE", conflicts_with = "fault_replay")]
    fault: Vec<String>,
    /// Writes a line about every fault that strikes to this file; %p in its name is the process's number
    #[arg(long, value_name = "FILE")]
    fault_record: Option<PathBuf>,
    /// Strikes exactly the packets of such a file
    #[arg(long, value_name = "FILE")]
    fault_replay: Option<PathBuf>,
    /// What the program's RDMA libraries log to standard error, as in OARLOCK_LOG
    #[arg(long, value_name = "LEVEL")]
    log: Option<String>,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// Becomes the program.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let ours = |sentence: String| Failure::Run {
        status: 125,
        sentence,
    };
    let rules = options.fault.join(";");
    rules
        .parse::<Rules>()
        .map_err(|error| ours(error.to_string()))?;
    if options.fault_record.is_some() && options.fault.is_empty() && options.fault_replay.is_none()
    {
        return Err(ours(
            "--fault-record without --fault or --fault-replay: there is nothing to record"
                .to_owned(),
        ));
    }
    let Some((name, arguments)) = options.program.split_first() else {
        unreachable!("clap requires a program");
    };
    let mut command = Command::new(name);
    command.args(arguments);
    if !options.fault.is_empty() {
        command.env(FAULT_VARIABLE, &rules);
    }
    for (variable, file) in [
        (FAULT_RECORD_VARIABLE, &options.fault_record),
        (FAULT_REPLAY_VARIABLE, &options.fault_replay),
    ] {
        if let Some(file) = file {
            command.env(variable, file);
        }
    }
    if let Some(log) = &options.log {
        command.env(crate::LOG_VARIABLE, log);
    }
    // Returns only if it fails.
    let error = command.exec();
    Err(Failure::Run {
        status: if error.kind() == ErrorKind::NotFound {
            127
        } else {
            126
        },
        sentence: format!("{}: {error}", name.to_string_lossy()),
    })
}
