//! The variables by which a program gets the libraries and what it was asked to do with them.

use super::folder::Libraries;
use super::program::Refusal;
use clap::{Args, ValueEnum};
use oarlock_hostd::{FAULT_REPLAY_VARIABLE, FAULT_VARIABLE};
use oarlock_port::fault::Rules;
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::path::PathBuf;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

/// What `run` and `env` are asked for.
#[derive(Debug, Args)]
pub(crate) struct Settings {
    /// A fault that packets of the program meet (oarlock(1) has the rules); may be given several times
    #[arg(long, value_name = "RULE", value_parser = rule)]
    fault: Vec<String>,
    /// Captures the program's connection management and data packets, and those of programs it starts, to a pcapng file; %p
    /// in the name gives each process a file of its own
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// The program uses only this RDMA device (`oarlock devices` lists them): addresses of others are refused with ENODEV
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// What the libraries say on standard error: error, warn (why a call failed, too), info, debug, trace, or a filter of the
    /// crate tracing-subscriber [default: error]
    #[arg(long, value_name = "LEVEL", value_parser = level)]
    log: Option<String>,
}

fn rule(text: &str) -> Result<String, String> {
    let rules: Rules = text.parse().map_err(|error| format!("{error}"))?;
    Ok(rules.to_string())
}

fn level(text: &str) -> Result<String, String> {
    EnvFilter::try_new(text).map_err(|error| error.to_string())?;
    // A word alone would be a filter for everything of a crate of that name.
    let is_word = text.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if is_word && text.parse::<LevelFilter>().is_err() {
        return Err("the levels are off, error, warn, info, debug and trace".to_owned());
    }
    Ok(text.to_owned())
}

impl Settings {
    /// Whether what is only for information is to be said.
    pub(super) fn wants_notes(&self) -> bool {
        let asked = self
            .log
            .clone()
            .or_else(|| env::var(LOG).ok())
            .unwrap_or_default();
        let filter = EnvFilter::try_new(asked).ok();
        let level = filter.and_then(|filter| filter.max_level_hint());
        level.is_some_and(|level| level >= tracing::Level::INFO)
    }

    /// Makes the file for the capture, empty: a program that connects to nothing leaves one, too.
    pub(super) fn begin_trace(&self) -> Result<(), Refusal> {
        let Some(path) = &self.trace else {
            return Ok(());
        };
        if path
            .as_os_str()
            .as_encoded_bytes()
            .windows(2)
            .any(|part| part == b"%p")
        {
            return Ok(());
        }
        let made = File::create(path);
        made.map(drop)
            .map_err(|error| Refusal::ours(format!("--trace {}: {error}", path.display())))
    }

    /// The variables to set, in order, and those to unset.
    pub(super) fn variables(&self, libraries: &Libraries) -> Result<Variables, Refusal> {
        let mut variables = Variables::default();
        let search = search_path(libraries, env::var_os(SEARCH_PATH).as_deref())?;
        variables.set.push((SEARCH_PATH, search));
        if env::var_os(SERVICE).is_none_or(|value| value.is_empty()) {
            let program = env::current_exe()
                .map_err(|error| Refusal::ours(format!("the path of this program: {error}")))?;
            variables.set.push((SERVICE, program.into_os_string()));
        }
        if !self.fault.is_empty() {
            variables
                .set
                .push((FAULT_VARIABLE, self.fault.join(";").into()));
            // Faults as they were recorded, and faults by rules, exclude each other.
            if env::var_os(FAULT_REPLAY_VARIABLE).is_some() {
                variables.unset.push(FAULT_REPLAY_VARIABLE);
            }
        }
        if let Some(trace) = &self.trace {
            // The program may change its directory.
            let path = std::path::absolute(trace)
                .map_err(|error| Refusal::ours(format!("--trace {}: {error}", trace.display())))?;
            variables.set.push((TRACE, path.into_os_string()));
        }
        if let Some(device) = &self.device {
            variables.set.push((DEVICE, device.into()));
        }
        if let Some(level) = &self.log {
            variables.set.push((LOG, level.into()));
        }
        Ok(variables)
    }
}

/// Variables of the environment.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Variables {
    pub(super) set: Vec<(&'static str, OsString)>,
    pub(super) unset: Vec<&'static str>,
}

/// Our folder, and then what was there: once, however often this is done.
fn search_path(libraries: &Libraries, before: Option<&OsStr>) -> Result<OsString, Refusal> {
    let others = before.map(|before| {
        env::split_paths(before)
            .filter(|folder| *folder != libraries.folder)
            .collect::<Vec<_>>()
    });
    let folders = std::iter::once(libraries.folder.clone()).chain(others.unwrap_or_default());
    env::join_paths(folders).map_err(|error| Refusal::ours(format!("{SEARCH_PATH}: {error}")))
}

/// Whose language the variables are printed in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Shell {
    /// sh, dash, bash, zsh, ksh
    #[value(aliases = ["bash", "zsh", "dash", "ksh"])]
    #[default]
    Sh,
    /// fish
    Fish,
    /// csh, tcsh
    #[value(alias = "tcsh")]
    Csh,
}

impl Shell {
    /// Lines that set and unset the variables.
    pub(super) fn script(self, variables: &Variables) -> Vec<u8> {
        let mut script = Vec::new();
        for (name, value) in &variables.set {
            let (before, between) = match self {
                Self::Sh => ("export ", "="),
                Self::Fish => ("set -gx ", " "),
                Self::Csh => ("setenv ", " "),
            };
            script.extend_from_slice(before.as_bytes());
            script.extend_from_slice(name.as_bytes());
            script.extend_from_slice(between.as_bytes());
            self.quote(value.as_encoded_bytes(), &mut script);
            script.push(b'\n');
        }
        for name in &variables.unset {
            let line = match self {
                Self::Sh => format!("unset {name}\n"),
                Self::Fish => format!("set -e {name}\n"),
                Self::Csh => format!("unsetenv {name}\n"),
            };
            script.extend_from_slice(line.as_bytes());
        }
        script
    }

    fn quote(self, value: &[u8], script: &mut Vec<u8>) {
        script.push(b'\'');
        for &byte in value {
            match (self, byte) {
                (Self::Sh | Self::Csh, b'\'') => script.extend_from_slice(b"'\\''"),
                (Self::Fish, b'\'' | b'\\') => script.extend_from_slice(&[b'\\', byte]),
                // History is looked up within quotes, too, and a line does not go on by itself.
                (Self::Csh, b'!' | b'\n') => script.extend_from_slice(&[b'\\', byte]),
                _ => script.push(byte),
            }
        }
        script.push(b'\'');
    }
}

const SEARCH_PATH: &str = "LD_LIBRARY_PATH";
const SERVICE: &str = "OARLOCK_HOSTD";
const TRACE: &str = "OARLOCK_TRACE";
const DEVICE: &str = "OARLOCK_DEVICE";
const LOG: &str = "OARLOCK_LOG";

#[cfg(test)]
#[path = "environment/tests.rs"]
mod tests;
