//! What the service tells unasked: of devices, and of the capture of all programs.

use super::Host;
use crate::Error;
use oarlock_port::fdpass;
use oarlock_port::fork::ForkGuard;
use oarlock_ucm::proto::{DeviceChange, RefusalCode, Reply, Request};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::PoisonError;

/// Our end of the feed.
#[derive(Debug)]
pub(super) struct Feed {
    /// Taken off the list before the socket is closed: fields are dropped in this order.
    _fork: ForkGuard,
    socket: OwnedFd,
}

impl Host {
    /// A descriptor that is readable while changes of devices wait to be taken; from the first call on they are collected. `None`:
    /// the service is older than this and tells nothing.
    ///
    /// # Errors
    /// As [`call`](Self::call); no descriptor to be had.
    ///
    /// # Blocking
    /// The first call, until the service has answered.
    pub fn changes_fd(&self) -> Result<Option<OwnedFd>, Error> {
        let mut feed = self
            .inner
            .feed
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if feed.is_none() {
            *feed = self.watch_devices()?;
        }
        let copy = feed.as_ref().map(|feed| feed.socket.try_clone());
        copy.transpose()
            .map_err(Error::system("copy the descriptor of the changes"))
    }

    /// The changes of devices since the last call, oldest first. None before [`changes_fd`](Self::changes_fd) was called. Also begins and
    /// ends what a capture of the whole host ([`capture_host`](Self::capture_host)) wants of this program, which comes by the same
    /// descriptor.
    ///
    /// A program that does not look for long learns how things stand, not everything that happened: of several changes of one kind that the
    /// service could not send, the last is told.
    ///
    /// # Blocking
    /// Never.
    #[must_use]
    pub fn take_changes(&self) -> Vec<DeviceChange> {
        let feed = self
            .inner
            .feed
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let Some(feed) = feed.as_ref() else {
            return Vec::new();
        };
        let mut all = Vec::new();
        let mut captures = Vec::new();
        let mut buffer = vec![0; MAX_CHANGE];
        for _ in 0..MAX_MESSAGES {
            match fdpass::receive(&feed.socket, &mut buffer, false) {
                Ok(message) if message.len > 0 => match Reply::decode(&buffer[..message.len]) {
                    Ok((_, Reply::Changes(changes))) => all.extend(changes),
                    Ok((_, Reply::Capture(news))) => captures.push((news, message.fds)),
                    // A newer service tells of things that we do not know.
                    other => tracing::debug!(?other, "no change of a device"),
                },
                _ => break,
            }
        }
        for (news, fds) in captures {
            self.hear_of_capture(news, fds);
        }
        if !all.is_empty() {
            self.renew_captures();
        }
        all
    }

    fn watch_devices(&self) -> Result<Option<Feed>, Error> {
        let (reply, fds) = match self.inner.connection.request(&Request::WatchDevices, &[]) {
            Err(Error::Refused(refusal)) if refusal.code == RefusalCode::UNKNOWN_REQUEST => {
                return Ok(None);
            }
            answer => answer?,
        };
        super::done(&reply)?;
        let socket = fds.into_iter().next().ok_or(Error::NoDescriptor)?;
        let fork = ForkGuard::new(&socket).map_err(|error: io::Error| Error::System {
            what: "watch for forks",
            source: error,
        })?;
        Ok(Some(Feed {
            _fork: fork,
            socket,
        }))
    }
}

/// A change brings a GID table at most: 256 addresses.
const MAX_CHANGE: usize = 8192;
/// More than the socket's buffer holds.
const MAX_MESSAGES: usize = 4096;
