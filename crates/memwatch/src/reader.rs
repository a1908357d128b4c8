//! The thread that reads the kernel's events.
//!
//! A thread that changes watched memory sleeps until its event is read, so this one must always get to read: it has every signal
//! blocked, allocates and frees nothing, and does not wait for the lock. What it allocated or freed could be watched, and it would
//! wait for itself; who holds the lock may be waiting for it.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::shared::{Shared, pause};
use crate::sys::{Message, Userfaultfd};

/// Reads until `stop` becomes readable.
pub(crate) fn run(shared: &Shared, stop: &OwnedFd) {
    let userfaultfd = &shared.userfaultfd;
    let mut backlog = Backlog::new();
    shared.started.store(true, Ordering::Release);
    loop {
        let mut fds = [
            PollFd::from_borrowed_fd(userfaultfd.as_fd(), PollFlags::IN),
            PollFd::new(stop, PollFlags::IN),
        ];
        let patience = (!backlog.is_empty()).then_some(&RETRY);
        // Interrupted by a debugger, or out of memory: the read below says what there is.
        let _ = poll(&mut fds, patience);
        let asked = !fds[1].revents().is_empty();
        if asked && !shared.has_ended() {
            // Closed behind our back: who changes memory still waits for this thread.
            pause(Duration::from_millis(1));
        } else if asked {
            // Before this thread ends, which discards its stack: if that is still watched, nobody would read of it.
            userfaultfd.replace_with(stop);
            return;
        }
        if backlog.is_empty() {
            shared.reading.begin();
            backlog.overflowed = !shared.wait_for_holds();
        }
        backlog.fill(userfaultfd);
        if backlog.deliver(shared) {
            shared.reading.end();
        }
    }
}

/// Messages that were read while the lock was held by somebody else.
struct Backlog {
    messages: [Message; BACKLOG],
    len: usize,
    overflowed: bool,
}

impl Backlog {
    fn new() -> Self {
        Self {
            messages: [Message::default(); BACKLOG],
            len: 0,
            overflowed: false,
        }
    }

    fn is_empty(&self) -> bool {
        self.len == 0 && !self.overflowed
    }

    /// Reads once, as much as fits: with the lock free, nothing is ever lost for want of room, however fast changes come.
    fn fill(&mut self, userfaultfd: &Userfaultfd) {
        if self.len == BACKLOG {
            self.len = 0;
            self.overflowed = true;
        }
        match userfaultfd.read(&mut self.messages[self.len..]) {
            Ok(n) => self.len += n,
            Err(_) => {
                // Not known to happen. What was lost is not known either.
                self.overflowed = true;
                pause(Duration::from_millis(1));
            }
        }
    }

    /// Marks what there is if the lock is free; whether nothing is left.
    fn deliver(&mut self, shared: &Shared) -> bool {
        if self.is_empty() {
            return true;
        }
        match shared.try_enter() {
            Ok(Some(mut table)) => {
                if self.overflowed {
                    shared.apply_overflow(&mut table);
                } else {
                    shared.apply(&mut table, &self.messages[..self.len]);
                }
            }
            Ok(None) => return false,
            // Nothing is valid any more; the program goes on.
            Err(_) => {}
        }
        self.len = 0;
        self.overflowed = false;
        true
    }
}

/// How many messages are kept while the lock is held.
const BACKLOG: usize = 256;
/// How long to wait for the lock before reading on.
const RETRY: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 50_000,
};
