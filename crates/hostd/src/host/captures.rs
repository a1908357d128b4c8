//! Captures in pcapng: of all programs of the service, and of this one.

use super::{Host, Inner};
use crate::Error;
use oarlock_port::Port;
use oarlock_port::pcap::{Capture, PortTap};
use oarlock_ucm::proto::{CaptureNews, CaptureScope, CaptureState, RefusalCode, Reply, Request};
use rustix::pipe::{PipeFlags, pipe_with};
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::PathBuf;
use std::sync::{Arc, MutexGuard, PoisonError};

/// Names the variable with the file to which a program's packets are captured. `%p` in it is the process's number.
pub const TRACE_VARIABLE: &str = "OARLOCK_TRACE";

/// What is captured of this program.
#[derive(Debug, Default)]
pub(super) struct Captured {
    /// Of the news of the capture of all programs.
    generation: u64,
    of_host: Option<Capture>,
    own: Vec<Capture>,
    /// The ports of the slots that were taken.
    ports: Vec<PortTap>,
}

impl Captured {
    /// Puts the captures in place.
    fn apply(&mut self) {
        let captures: Vec<Capture> = self.of_host.iter().chain(&self.own).cloned().collect();
        self.ports.retain(|port| port.set(captures.clone()));
    }
}

/// The capture of all programs of a host, as [`Host::capture_host`] has begun it.
///
/// Its descriptor is readable (at its end) once nobody writes any more: because it was ended, has failed, or the service has gone and
/// every program has noticed.
#[derive(Debug)]
pub struct HostCapture {
    host: Host,
    idle: OwnedFd,
    state: CaptureState,
}

impl HostCapture {
    /// How it stood when it began: how many programs were told.
    #[must_use]
    pub fn state(&self) -> &CaptureState {
        &self.state
    }

    /// Ends it. Programs write what they are about to, and no more; the descriptor tells when they have.
    ///
    /// # Errors
    /// As [`Host::call`].
    ///
    /// # Blocking
    /// Until the service has answered.
    pub fn end(&self) -> Result<CaptureState, Error> {
        match self.host.request(Request::EndCapture)? {
            Reply::CaptureState(state) => Ok(state),
            _ => Err(Error::UnexpectedReply),
        }
    }
}

impl AsFd for HostCapture {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.idle.as_fd()
    }
}

impl Host {
    /// Captures all packets of this host in pcapng at the end of `file`, which is empty or pcapng, and open for reading and writing:
    /// management datagrams and those of the queue pairs of every program, also of one that comes later. Each
    /// program is an interface of the file, `NAME (PID)`. A packet between two programs of this host stands there once.
    ///
    /// It ends when it is told to, with this program, and with the first packet that anybody cannot write. The programs go on in any
    /// case.
    ///
    /// # Errors
    /// As [`call`](Self::call); another program captures this host already; not a regular file; an older service.
    ///
    /// # Blocking
    /// Until the service has answered. Programs that are there begin a moment later.
    pub fn capture_host(&self, file: impl AsFd) -> Result<HostCapture, Error> {
        let (idle, lease) = pipe_with(PipeFlags::CLOEXEC).map_err(Error::errno("make a pipe"))?;
        let request = Request::Capture(CaptureScope::Host);
        let fds = [file.as_fd(), lease.as_fd()];
        let (reply, _) = self.inner.connection.request(&request, &fds)?;
        match reply {
            Reply::CaptureState(state) => Ok(HostCapture {
                host: self.clone(),
                idle,
                state,
            }),
            _ => Err(Error::UnexpectedReply),
        }
    }

    /// Captures this program's packets and the service's management datagrams, of whichever program, in pcapng at the end of `file`,
    /// which is empty or pcapng, and open for reading and writing; until this program ends. Several programs of one service may name one file;
    /// then a packet between two of them stands there twice, as sent and as received.
    ///
    /// It ends with the first packet that cannot be written, which is counted (`capture_failed`); the program goes on.
    ///
    /// # Errors
    /// As [`call`](Self::call); not a regular file; another service writes to it; an older service.
    ///
    /// # Blocking
    /// Until the service has answered.
    pub fn capture(&self, file: impl AsFd) -> Result<(), Error> {
        let file = file.as_fd();
        let request = Request::Capture(CaptureScope::Client);
        let (reply, _) = self.inner.connection.request(&request, &[file])?;
        let Reply::Capture(CaptureNews {
            interface: Some(interface),
            ..
        }) = reply
        else {
            return Err(Error::UnexpectedReply);
        };
        let capture = file
            .try_clone_to_owned()
            .and_then(|fd| Capture::of_interface(fd, interface))
            .map_err(Error::system("use the trace's file"))?
            .with_all_received()
            .on_failure(self.tell_failure(CaptureScope::Client));
        let mut captured = self.captured();
        captured.own.push(capture);
        captured.apply();
        Ok(())
    }

    /// The capture that the environment asks for.
    pub(super) fn capture_from_environment(&self) -> Result<(), Error> {
        // A host of this process alone has no other programs, and there may be many of them.
        if self.inner.memory.is_some() {
            return Ok(());
        }
        let Some(path) = std::env::var_os(TRACE_VARIABLE).filter(|path| !path.is_empty()) else {
            return Ok(());
        };
        let path = expand(path);
        let file = File::options()
            .read(true)
            .append(true)
            .create(true)
            .open(&path);
        let file = file.map_err(|source| Error::TraceFile {
            path: path.clone(),
            sentence: source.to_string(),
        })?;
        self.capture(file).map_err(|error| match error {
            Error::Refused(refusal) => Error::TraceFile {
                path,
                sentence: refusal.sentence,
            },
            error => error,
        })
    }

    /// A slot has been taken: its packets are captured from the first on.
    pub(super) fn tap_into(&self, port: &Port) {
        {
            let mut captured = self.captured();
            captured.ports.retain(PortTap::is_there);
            captured.ports.push(port.taps());
            captured.apply();
        }
        // First what tells of changes, then how it is: so none is missed.
        if let Err(error) = self.changes_fd() {
            tracing::debug!(%error, "the service does not tell of changes");
        }
        let joined = self.inner.connection.request(&Request::JoinCapture, &[]);
        match joined {
            Ok((Reply::Capture(news), fds)) => self.hear_of_capture(news, fds),
            Err(Error::Refused(refusal)) if refusal.code == RefusalCode::UNKNOWN_REQUEST => {}
            other => tracing::debug!(?other, "the service does not tell of its capture"),
        }
    }

    /// News of the capture of all programs.
    pub(super) fn hear_of_capture(&self, news: CaptureNews, fds: Vec<OwnedFd>) {
        let mut captured = self.captured();
        if news.generation <= captured.generation {
            return;
        }
        captured.generation = news.generation;
        captured.of_host = news.interface.and_then(|interface| {
            let made = self.capture_of_host(interface, fds);
            // Whoever captures sees that this program does not write: nothing here fails for it.
            made.inspect_err(|error| tracing::warn!(%error, "cannot join the host's trace"))
                .ok()
        });
        captured.apply();
    }

    /// The addresses of this host have changed, by which packets are told that others record.
    pub(super) fn renew_captures(&self) {
        self.captured().apply();
    }

    fn capture_of_host(&self, interface: u32, fds: Vec<OwnedFd>) -> io::Result<Capture> {
        let mut fds = fds.into_iter();
        let Some(file) = fds.next() else {
            return Err(io::Error::other("no descriptor came with it"));
        };
        let capture = Capture::of_interface(file, interface)?
            .on_failure(self.tell_failure(CaptureScope::Host));
        Ok(match fds.next() {
            Some(lease) => capture.with_lease(lease),
            None => capture,
        })
    }

    /// What a capture does that cannot write: it is called where packets are sent, and only posts a message.
    fn tell_failure(&self, scope: CaptureScope) -> impl Fn(&io::Error) + Send + Sync + 'static {
        let inner = Arc::downgrade(&self.inner);
        move |error| {
            tracing::warn!(%error, "a packet could not be traced, and tracing ends");
            let errno = error.raw_os_error().unwrap_or(0);
            let inner: Option<Arc<Inner>> = inner.upgrade();
            if let Some(inner) = inner {
                let request = Request::CaptureFailed { scope, errno };
                let _ = inner.connection.post(&request);
            }
        }
    }

    fn captured(&self) -> MutexGuard<'_, Captured> {
        self.inner
            .captured
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// The process's number in the place of `%p`.
fn expand(path: OsString) -> PathBuf {
    let pid = std::process::id().to_string();
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let Some((&byte, more)) = rest.split_first() {
        if let Some(behind) = rest.strip_prefix(b"%p") {
            bytes.extend_from_slice(pid.as_bytes());
            rest = behind;
        } else {
            bytes.push(byte);
            rest = more;
        }
    }
    OsString::from_vec(bytes).into()
}
