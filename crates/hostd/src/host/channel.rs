//! An event channel as a program holds it.

use super::Host;
use crate::Error;
use oarlock_port::fork::ForkGuard;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// An event channel: a token for requests, and a descriptor with one byte for each event that waits.
///
/// The descriptor is readable while events wait. Whoever wants an event takes a byte first ([`take_wake`](Self::take_wake))
/// and then asks for the event; an answer of `EAGAIN` means that the event has gone elsewhere (its identifier was destroyed
/// or moved), and one waits again. Bytes that found no room are made up for when events are taken.
///
/// Dropping it closes the channel and destroys what is on it, without waiting.
#[derive(Debug)]
pub struct ClientChannel {
    host: Host,
    token: u64,
    /// Taken off the list before the descriptor is closed: fields are dropped in this order.
    _fork: ForkGuard,
    fd: OwnedFd,
}

/// What [`ClientChannel::take_wake`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Wake {
    /// So many bytes, and so many events at most.
    Events(usize),
    /// No event waits.
    Nothing,
    /// The service has gone, or the channel was closed.
    Gone,
}

impl ClientChannel {
    pub(super) fn new(host: Host, token: u64, fd: OwnedFd) -> Result<Self, Error> {
        let fork = ForkGuard::new(&fd).map_err(Error::system("watch for forks"))?;
        Ok(Self {
            host,
            token,
            _fork: fork,
            fd,
        })
    }

    /// What names the channel in requests.
    #[must_use]
    pub fn token(&self) -> u64 {
        self.token
    }

    /// The host that the channel is on.
    #[must_use]
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// Takes up to `max` bytes off the descriptor, without blocking.
    ///
    /// # Errors
    /// What the socket says.
    pub fn take_wake(&self, max: usize) -> io::Result<Wake> {
        let mut bytes = [0; 64];
        let max = max.min(bytes.len());
        loop {
            let flags = rustix::net::RecvFlags::DONTWAIT;
            return match rustix::net::recv(&self.fd, &mut bytes[..max], flags) {
                Ok((0, _)) if max > 0 => Ok(Wake::Gone),
                Ok((n, _)) => Ok(Wake::Events(n)),
                Err(rustix::io::Errno::AGAIN) => Ok(Wake::Nothing),
                Err(rustix::io::Errno::CONNRESET) => Ok(Wake::Gone),
                Err(rustix::io::Errno::INTR) => continue,
                Err(errno) => Err(errno.into()),
            };
        }
    }
}

impl AsFd for ClientChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for ClientChannel {
    fn drop(&mut self) {
        self.host.close_channel(self.token);
    }
}
