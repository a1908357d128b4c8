//! Why there is no service, or it does not answer.

use oarlock_port::fault::{RecordError, RuleError};
use oarlock_port::{MemError, SlotsError};
use oarlock_ucm::proto::{Malformed, Refusal};
use std::io;
use std::path::PathBuf;

/// What can go wrong between a program and its host service. Each prints as one sentence with the remedy.
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum Error {
    // The service.
    /// Nobody holds the service's name.
    #[error("no host service runs in this network namespace: start one with `oarlock host`")]
    NoService,
    /// Another service holds the name.
    #[error("a host service already runs in this network namespace, {}", whose(*pid))]
    AlreadyRunning {
        /// Its process; 0 in another pid namespace.
        pid: u32,
    },
    /// The service belongs to another user.
    #[error(
        "the host service of this network namespace belongs to user {service}, this program to user {program}: run as that user, or in a network namespace of your own (`unshare -rn`)"
    )]
    OtherUser {
        /// The service's user.
        service: u32,
        /// This program's user.
        program: u32,
    },
    /// The program that is the service was not found.
    #[error(
        "no host service runs and none can be started: `oarlock` was found neither through $OARLOCK_HOSTD (not set), nor in {folder}, nor in PATH"
    )]
    NoProgram {
        /// The folder of this program.
        folder: String,
    },
    /// `$OARLOCK_HOSTD` names no program.
    #[error(
        "no host service runs and none can be started: $OARLOCK_HOSTD names {}, which {why}: correct it, or unset it",
        program.display()
    )]
    NotExecutable {
        /// What it names.
        program: PathBuf,
        /// Why it is no program.
        why: String,
    },
    /// The service was started and ended at once.
    #[error("the host service {program} could not start: {sentence}")]
    StartFailed {
        /// What was started.
        program: PathBuf,
        /// What it said.
        sentence: String,
    },
    /// The service has ended or was killed.
    #[error("the host service has gone: connections through it are lost; open the host again")]
    ServiceGone,
    /// This process is a forked child of the one that opened the host.
    #[error(
        "this host was opened by process {opener}, and a forked child cannot use it: open one in the child"
    )]
    Forked {
        /// The process that opened it.
        opener: u32,
    },

    // The request.
    /// The service refused.
    #[error("{0}")]
    Refused(Refusal),
    /// More requests than one message may have.
    #[error(
        "a batch of {given} requests that refer to each other does not fit one message of {max}: split it"
    )]
    BatchTooLong {
        /// How many there are.
        given: usize,
        /// How many are allowed.
        max: usize,
    },
    /// What came is no answer.
    #[error(
        "the host service answered something else than an answer ({0}): use the same release for both"
    )]
    Protocol(Malformed),
    /// The answer is one to another request.
    #[error(
        "the host service answered another request than was made: use the same release for both"
    )]
    UnexpectedReply,
    /// A descriptor that must come with an answer did not.
    #[error(
        "the host service's answer came without its descriptor: raise this program's limit of open descriptors (`ulimit -n`)"
    )]
    NoDescriptor,

    // Faults on purpose.
    /// Fault rules that are none.
    #[error(transparent)]
    FaultRules(#[from] RuleError),
    /// A fault record that is none.
    #[error(transparent)]
    FaultRecord(#[from] RecordError),
    /// The environment's variables about faults contradict each other.
    #[error("{0}")]
    FaultVariables(&'static str),
    /// A file of faults cannot be read or written.
    #[error("cannot {what} the fault record {}: {source}", path.display())]
    FaultFile {
        /// What was tried.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },

    // Traces.
    /// The environment asks for a trace that cannot be written.
    #[error("cannot trace to {}, which OARLOCK_TRACE names: {sentence}", path.display())]
    TraceFile {
        /// The file.
        path: PathBuf,
        /// Why not.
        sentence: String,
    },

    // The system.
    /// UDP port 4791 cannot be had.
    #[error(transparent)]
    Slots(#[from] SlotsError),
    /// The in-memory wire refused.
    #[error(transparent)]
    Mem(#[from] MemError),
    /// The loopback interface is down.
    #[error(
        "the loopback interface is down, and packets between programs of this host pass through it: bring it up with `ip link set lo up`"
    )]
    LoopbackDown,
    /// Any other refusal of the system.
    #[error("cannot {what}: {source}")]
    System {
        /// What was being done.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

fn whose(pid: u32) -> String {
    match pid {
        0 => "in another pid namespace: use it, or end it there".to_owned(),
        pid => format!("process {pid}: use it, or end it with `kill {pid}`"),
    }
}

impl Error {
    /// Names what was being done when the system refused.
    pub(crate) fn system(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { what, source }
    }

    /// As [`system`](Self::system), for rustix.
    pub(crate) fn errno(what: &'static str) -> impl FnOnce(rustix::io::Errno) -> Self {
        move |errno| Self::System {
            what,
            source: errno.into(),
        }
    }

    /// Whether the service has gone, so that opening the host again may help.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        matches!(self, Self::ServiceGone)
    }
}
