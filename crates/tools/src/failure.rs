//! Why a command did not do what it was asked for.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

/// A hint where a peer says nothing at all.
pub(crate) const NOBODY_ANSWERS: &str =
    "; is a passive side running at that address, and UDP port 4791 open both ways?";

/// How a failure reads that some failure of the other side is behind.
pub(crate) const DISCONNECTED_BY_PEER: &str = "were disconnected by the peer before the end";

/// What ends a command with status 1 or 2.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// A call of the RDMA CM library.
    #[error(transparent)]
    Rdmacm(#[from] oarlock_rdmacm::Error),
    /// A call of the verbs library.
    #[error(transparent)]
    Verbs(#[from] oarlock_verbs::Error),
    /// The host service.
    #[error(transparent)]
    Host(oarlock_hostd::Error),
    /// A file.
    #[error("{}: {source}", path.display())]
    File {
        path: PathBuf,
        source: std::io::Error,
    },
    /// Something of the system that has no path.
    #[error("{what}: {source}")]
    System {
        what: &'static str,
        source: std::io::Error,
    },
    /// A capture that cannot be read.
    #[error("{}: {problem}", path.display())]
    Capture { path: PathBuf, problem: String },
    /// A capture that is not whole.
    #[error("{}: {packets} packets could not be written: {cause}", path.display())]
    CaptureIncomplete {
        path: PathBuf,
        packets: u64,
        cause: String,
    },
    /// A name that does not resolve.
    #[error("{name} is not the name or address of a host: {problem}")]
    Name { name: String, problem: String },
    /// A child process of the command.
    #[error("the {role} process failed ({status}): {sentence}")]
    Child {
        role: &'static str,
        status: String,
        sentence: String,
    },
    /// A send or receive did not complete.
    #[error("connection {connection}: {operation} completed with {status}{hint}")]
    Completion {
        connection: usize,
        operation: &'static str,
        status: String,
        /// As in `Stalled`.
        hint: &'static str,
    },
    /// Connections were lost before the end.
    #[error("{lost} of {connections} connections {}", DISCONNECTED_BY_PEER)]
    Disconnected { lost: usize, connections: usize },
    /// Nothing happened for too long.
    #[error(
        "nothing happened for {seconds} s while waiting for {awaited}: {missing} of {total} are missing{hint}"
    )]
    Stalled {
        seconds: u64,
        awaited: &'static str,
        missing: usize,
        total: usize,
        /// What may be the cause, with its separator; empty where nothing is known.
        hint: &'static str,
    },
    /// Not every connection was established.
    #[error("{failed} of {connections} connections were not established: {first}")]
    Connect {
        failed: usize,
        connections: usize,
        first: String,
    },
    /// The peer is not what the command speaks to, or does not keep to the protocol.
    #[error("{0}")]
    Protocol(String),
    /// Migration did not work.
    #[error("failure migrating to channel: {0}")]
    Migration(oarlock_rdmacm::Error),
    /// The work was done, with a wrong result.
    #[error("{0}")]
    Result(String),
    /// Wrong usage that only shows after the arguments were read.
    #[error("{0}")]
    Usage(String),
}

impl Failure {
    /// Whether the host service is lost, and with it everything this process had there.
    pub(crate) fn is_device_fatal(&self) -> bool {
        match self {
            Self::Rdmacm(error) | Self::Migration(error) => error.is_device_fatal(),
            Self::Verbs(oarlock_verbs::Error::Host(error)) => error.is_gone(),
            Self::Verbs(error) => error.is_device_fatal(),
            Self::Host(error) => error.is_gone(),
            _ => false,
        }
    }

    /// Prints the sentence; the exit status.
    pub(crate) fn report(&self) -> ExitCode {
        // One line, whatever the parts were.
        let sentence = self.to_string().replace('\n', " ");
        // Nobody is left to tell when standard error is closed.
        let _ = writeln!(std::io::stderr(), "error: {sentence}");
        ExitCode::from(match self {
            Self::Usage(_) => 2,
            _ => 1,
        })
    }
}

impl From<oarlock_hostd::Error> for Failure {
    fn from(error: oarlock_hostd::Error) -> Self {
        if error.is_gone() {
            // One sentence for it, whichever call noticed.
            Self::Rdmacm(oarlock_rdmacm::Error::ServiceGone)
        } else {
            Self::Host(error)
        }
    }
}

impl From<oarlock_verbs::PostError> for Failure {
    fn from(refused: oarlock_verbs::PostError) -> Self {
        Self::Verbs(refused.into())
    }
}

/// For `map_err`: names what was being done.
pub(crate) fn system(what: &'static str) -> impl FnOnce(std::io::Error) -> Failure {
    move |source| Failure::System { what, source }
}
