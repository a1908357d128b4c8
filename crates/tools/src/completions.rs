//! `oarlock completions`: scripts for shells.

use crate::failure::{Failure, system};
use clap::{Args, Command, ValueEnum};
use clap_complete::generate;
use std::io::{self, Write as _};

/// Options of `oarlock completions`.
#[derive(Debug, Args)]
#[command(
    arg_required_else_help = true,
    after_help = "Examples:\n  source <(oarlock completions bash)\n  oarlock completions bash > ~/.local/share/bash-completion/completions/oarlock\n  oarlock completions zsh > ~/.zfunc/_oarlock\n  oarlock completions fish > ~/.config/fish/completions/oarlock.fish"
)]
pub(crate) struct Options {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Shell {
    /// bash, for its package bash-completion or by itself
    Bash,
    /// zsh
    Zsh,
    /// fish
    Fish,
}

/// Runs the command; `cli` is the definition of the whole program.
pub(crate) fn run(options: &Options, cli: &Command) -> Result<(), Failure> {
    let shell = match options.shell {
        Shell::Bash => clap_complete::Shell::Bash,
        Shell::Zsh => clap_complete::Shell::Zsh,
        Shell::Fish => clap_complete::Shell::Fish,
    };
    let mut script = Vec::new();
    generate(shell, &mut visible(cli), "oarlock", &mut script);
    let mut out = io::stdout().lock();
    match out.write_all(&script).and_then(|()| out.flush()) {
        // Who has gone has read enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written.map_err(system("standard output")),
    }
}

/// The command without what its help does not show.
fn visible(command: &Command) -> Command {
    let about = command.get_about().cloned().unwrap_or_default();
    let arguments = command.get_arguments().filter(|arg| !arg.is_hide_set());
    let subcommands = command.get_subcommands().filter(|sub| !sub.is_hide_set());
    Command::new(command.get_name().to_owned())
        .about(about)
        .args(arguments.cloned())
        .subcommands(subcommands.map(visible))
        .disable_version_flag(command.is_disable_version_flag_set())
        .version(env!("CARGO_PKG_VERSION"))
}
