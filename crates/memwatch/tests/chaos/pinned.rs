//! A device that reaches memory by its physical pages, as network cards do, for anyone: a pipe that holds the pages themselves.
//!
//! vmsplice(2) puts references to the pages into a pipe. What is read from the pipe afterwards is what those pages hold then, whatever the
//! program has mapped at their address meanwhile. So a registration that the cache should not have given shows other bytes than the program sees.

use std::cell::RefCell;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};

use libc::c_void;
use rustix::pipe::{PipeFlags, SpliceFlags};

use crate::support::PAGE;

/// The pages under a range of addresses, held.
#[derive(Debug)]
pub(crate) struct Pinned {
    pages: Range<usize>,
    read: OwnedFd,
    _write: OwnedFd,
}

impl Pinned {
    /// # Errors
    /// Nothing is mapped at part of the range, or the system has no room for the pipe.
    pub(crate) fn new(start: usize, len: usize) -> io::Result<Self> {
        let pages = start & !(PAGE - 1)..(start + len).next_multiple_of(PAGE);
        let (read, write) = pipe(pages.len() / PAGE)?;
        // A child would share the pages, and the parent's next write would go to a copy: what ibv_fork_init(3) is for. Pages that an
        // earlier child was given are made this process's own.
        for advice in [libc::MADV_DONTFORK, libc::MADV_POPULATE_WRITE] {
            // SAFETY: changes nothing in the memory.
            let advised = unsafe { libc::madvise(pages.start as *mut c_void, pages.len(), advice) };
            if advised != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        let mut at = pages.start;
        while at < pages.end {
            let part = libc::iovec {
                iov_base: at as *mut c_void,
                iov_len: pages.end - at,
            };
            // SAFETY: takes references to pages of this process, if there are any; they are not a gift.
            let held =
                unsafe { libc::vmsplice(write.as_raw_fd(), &part, 1, libc::SPLICE_F_NONBLOCK) };
            let held = usize::try_from(held).map_err(|_| io::Error::last_os_error())?;
            at += held;
        }
        Ok(Self {
            pages,
            read,
            _write: write,
        })
    }

    /// Whether the range lies in the held pages, and they hold what the program sees there.
    ///
    /// # Errors
    /// Of the system.
    ///
    /// # Safety
    /// The range can be read, and nobody changes it meanwhile.
    pub(crate) unsafe fn shows(&self, start: usize, len: usize) -> io::Result<bool> {
        if start < self.pages.start || start + len > self.pages.end {
            return Ok(false);
        }
        let whole = start + len - self.pages.start;
        BUFFER.with_borrow_mut(|buffer| {
            buffer.read(&self.read, whole)?;
            // SAFETY: as the caller says.
            let seen = unsafe { std::slice::from_raw_parts(start as *const u8, len) };
            Ok(seen == &buffer.bytes()[start - self.pages.start..whole])
        })
    }
}

thread_local! {
    static BUFFER: RefCell<Buffer> = const { RefCell::new(Buffer(None)) };
}

/// A pipe for copies of references, and memory for what they hold.
struct Buffer(Option<(OwnedFd, OwnedFd, Vec<u8>)>);

impl Buffer {
    /// The most pages that one registration may hold: what a pipe of an ordinary user may.
    const PAGES: usize = 256;

    fn read(&mut self, from: &OwnedFd, len: usize) -> io::Result<()> {
        let (read, write, bytes) = match &mut self.0 {
            Some(made) => made,
            empty => {
                let (read, write) = pipe(Self::PAGES)?;
                empty.insert((read, write, vec![0; Self::PAGES * PAGE]))
            }
        };
        let copied = rustix::pipe::tee(from, &*write, len, SpliceFlags::NONBLOCK)?;
        let mut done = 0;
        while done < copied {
            done += rustix::io::read(&*read, &mut bytes[done..copied])?;
        }
        match copied == len {
            true => Ok(()),
            false => Err(io::Error::other(format!("{copied} of {len} bytes"))),
        }
    }

    fn bytes(&self) -> &[u8] {
        self.0.as_ref().map_or(&[], |(_, _, bytes)| bytes)
    }
}

/// A pipe with room for so many pages.
fn pipe(pages: usize) -> io::Result<(OwnedFd, OwnedFd)> {
    let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    rustix::pipe::fcntl_setpipe_size(&write, pages * PAGE)?;
    Ok((read, write))
}
