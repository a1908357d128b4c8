//! `oarlock run`: a program that was built against rdma-core, as it is, on this host's software devices. `oarlock env`: the
//! same for a shell, and the header of the extension for a compiler ([`header`]).
//!
//! The program takes the place of this one (execve(2)): its process number, terminal, signals and exit status are its own. What
//! is done before: [`program`] finds it and says what would keep the libraries from it, [`folder`] finds them, [`environment`]
//! has the variables, and for a program that is linked with the libraries the host service is started.
//!
//! Files of devices that programs look at by themselves, under /sys/class/infiniband and /dev/infiniband, are the libraries'
//! affair (`capi/src/verbs/sysfs/programs.rs`).

mod elf;
mod environment;
mod folder;
mod header;
mod program;

use crate::failure::{Failure, system};
use clap::Args;
use environment::{Settings, Shell};
use oarlock_hostd::Host;
use program::{Refusal, Remark};
use std::ffi::OsString;
use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

/// Options of `oarlock run`.
#[derive(Debug, Args)]
#[command(
    arg_required_else_help = true,
    override_usage = "oarlock run [OPTIONS] [--] PROGRAM [ARGUMENT]...",
    after_help = "Exit status: that of PROGRAM; 125 when oarlock itself fails or refuses, 126 when PROGRAM cannot be executed, 127 when it is not found.\n\nOptions of oarlock go before PROGRAM; what follows it is for PROGRAM.\n\nExamples:\n  oarlock run -- ib_send_bw -d soft_lo -x 0             a server ...\n  oarlock run -- ib_send_bw -d soft_lo -x 0 127.0.0.1   ... and its client, in another terminal\n  oarlock run -- ibv_rc_pingpong -g 0                   the pingpongs of libibverbs need -g\n  oarlock run --log warn -- ibv_rc_pingpong 127.0.0.1   says why a call failed\n  oarlock run --fault drop:p=0.01,seed=7 -- rping -c -a 127.0.0.1 -C 100 -V\n  oarlock run --trace rping.pcapng -- rping -c -a 127.0.0.1 -C 10"
)]
pub(crate) struct RunOptions {
    #[command(flatten)]
    settings: Settings,
    /// The program, found as a shell would, and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

/// Options of `oarlock env`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  eval \"$(oarlock env)\"                        sh, bash, zsh: programs of this shell from now on\n  oarlock env --shell fish | source\n  cc $(oarlock env --cflags) cache.c -libverbs   a program that uses the extension for memory events"
)]
pub(crate) struct EnvOptions {
    #[command(flatten)]
    settings: Settings,
    /// The shell that is to read it
    #[arg(long, value_enum, value_name = "SHELL", default_value_t)]
    shell: Shell,
    /// Prints instead what a C compiler needs to find the header of the extension, oarlock/memory_events.h
    #[arg(long, exclusive = true)]
    cflags: bool,
}

/// The exit status of what is ours of `oarlock run`: no program has it by accident.
pub(crate) const STATUS_OURS: u8 = 125;

/// Runs the program in place of this one; returns only when it could not.
pub(crate) fn run(options: &RunOptions) -> ExitCode {
    let Refusal { status, sentence } = match replace(options) {
        Ok(never) => match never {},
        Err(refusal) => refusal,
    };
    say("error", &sentence);
    ExitCode::from(status)
}

enum Never {}

fn replace(options: &RunOptions) -> Result<Never, Refusal> {
    let Some((name, arguments)) = options.command.split_first() else {
        return Err(Refusal::ours("no program is given"));
    };
    let path = program::find(name)?;
    let libraries = folder::libraries()?;
    let own = elf::Elf::read(&libraries.object)
        .map_err(|error| Refusal::ours(format!("{}: {error}", libraries.object.display())))?
        .ok_or_else(|| Refusal::ours(format!("{} is no library", libraries.object.display())))?;
    let remark = program::examine(&path, &own)?;
    let variables = options.settings.variables(&libraries)?;
    options.settings.begin_trace()?;
    match remark {
        // What is not linked with the libraries may never want the service; what it loads or starts can start one, too.
        Some(Remark::Warning(sentence)) => say("warning", &sentence),
        Some(Remark::Note(sentence)) if options.settings.wants_notes() => say("note", &sentence),
        Some(Remark::Note(_)) => {}
        None => start_service()?,
    }

    let mut command = Command::new(&path);
    command.arg0(name).args(arguments).envs(variables.set);
    for name in variables.unset {
        command.env_remove(name);
    }
    let error = command.exec();
    let is_missing = error.kind() == io::ErrorKind::NotFound;
    let sentence = if is_missing && path.exists() {
        format!(
            "{} cannot be executed: what its first line names (#!), or its dynamic linker, is not there",
            path.display()
        )
    } else {
        format!("{} cannot be executed: {error}", path.display())
    };
    Err(Refusal {
        status: if is_missing { 127 } else { 126 },
        sentence,
    })
}

/// Starts the host service if none runs.
fn start_service() -> Result<(), Refusal> {
    let own = std::env::current_exe()
        .map_err(|error| Refusal::ours(format!("the path of this program: {error}")))?;
    Host::start(&own).map_err(|error| Refusal::ours(error.to_string()))
}

/// Prints the variables for a shell, or the flags for a compiler.
pub(crate) fn env(options: &EnvOptions) -> Result<(), Failure> {
    let script = if options.cflags {
        (header::cflags()? + "\n").into_bytes()
    } else {
        variables_for(options)?
    };
    let mut out = io::stdout().lock();
    out.write_all(&script)
        .and_then(|()| out.flush())
        .map_err(system("standard output"))
}

fn variables_for(options: &EnvOptions) -> Result<Vec<u8>, Failure> {
    let refused = |refusal: Refusal| Failure::Result(refusal.sentence);
    let libraries = folder::libraries().map_err(refused)?;
    let variables = options.settings.variables(&libraries).map_err(refused)?;
    options.settings.begin_trace().map_err(refused)?;
    Ok(options.shell.script(&variables))
}

fn say(kind: &str, sentence: &str) {
    // Nobody is left to tell when standard error is closed.
    let _ = writeln!(io::stderr(), "{kind}: {}", sentence.replace('\n', " "));
}
