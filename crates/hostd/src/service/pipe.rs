//! The descriptor of an event channel: a socket pair that carries one byte for each queued event.
//!
//! Bytes are written with MSG_DONTWAIT, so that no program can block the service. What finds no room is owed; while
//! anything is owed the pair is full, so the program's end is readable, as it must be while events are queued. What is
//! owed is written when the program takes an event or reads bytes.

use crate::Error;
use oarlock_port::fork::ForkGuard;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The service's end.
#[derive(Debug)]
pub(super) struct Pipe {
    /// The client that the channel belongs to.
    pub(super) client: u32,
    /// Bytes that found no room.
    owed: usize,
    /// Whether the loop waits for room.
    waits_for_room: bool,
    /// Taken off the list before the socket is closed: fields are dropped in this order.
    _fork: ForkGuard,
    socket: OwnedFd,
}

impl Pipe {
    /// Makes a pair; the second is the program's end.
    pub(super) fn new(client: u32) -> Result<(Self, OwnedFd), Error> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)
            .map_err(Error::errno("make a socket pair for an event channel"))?;
        let fork = ForkGuard::new(&ours).map_err(Error::system("watch for forks"))?;
        Ok((
            Self {
                client,
                owed: 0,
                waits_for_room: false,
                _fork: fork,
                socket: ours,
            },
            theirs,
        ))
    }

    /// Tells of `events` more events.
    pub(super) fn wake(&mut self, events: usize) {
        let was_full = self.is_in_debt();
        self.owed = self.owed.saturating_add(events);
        // Room comes when the program takes something, and is noticed then.
        if !was_full {
            self.pay();
        }
    }

    /// Writes what is owed, as far as there is room.
    pub(super) fn pay(&mut self) {
        while self.owed > 0 {
            let bytes = &BYTES[..self.owed.min(BYTES.len())];
            match send(
                &self.socket,
                bytes,
                SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
            ) {
                Ok(n) => self.owed -= n.min(self.owed),
                // The other end is closed: its channel is about to be, too.
                Err(rustix::io::Errno::PIPE | rustix::io::Errno::CONNRESET) => self.owed = 0,
                Err(_) => return,
            }
        }
    }

    /// Whether something is owed.
    pub(super) fn is_in_debt(&self) -> bool {
        self.owed > 0
    }

    /// Whether the socket is to be watched for room, if that has changed since it was asked last.
    pub(super) fn new_watch(&mut self) -> Option<bool> {
        let waits = self.is_in_debt();
        (std::mem::replace(&mut self.waits_for_room, waits) != waits).then_some(waits)
    }
}

impl AsFd for Pipe {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

const BYTES: [u8; 64] = [1; 64];
