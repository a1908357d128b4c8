//! A way out of memory that may be missing: through a pipe, into memory of ours. Short pieces are written into the pipe; of
//! longer ones it takes the pages (`vmsplice(2)`), which are read at once. Two calls, and yet cheaper than one of
//! `process_vm_readv(2)`, which looks up a process first, and checks whether it may be read.
//!
//! The C library's functions for these calls are points where a program's thread may be cancelled: the calls go around them.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};

use libc::syscall;
use oarlock_port::fork::ForkGuard;

use super::{Direction, Range, copy_own, vectors};

/// Bytes on their way out of foreign memory.
#[derive(Default)]
pub(crate) enum Pipe {
    /// Nothing has been copied so far.
    #[default]
    NotTried,
    /// The system has none to give, or it failed, or there are many already: copies are made otherwise.
    Missing,
    Open(Ends),
}

/// The two ends of a pipe with nothing in it.
pub(crate) struct Ends {
    _forks: [ForkGuard; 2],
    read: OwnedFd,
    write: OwnedFd,
    /// It has room for [`LONGEST`] bytes, wherever they lie, and the system lets us put pages there.
    takes_pages: bool,
}

impl Pipe {
    /// Copies the bytes of `ranges`, one after the other, into `out`, which has as many; returns how many were copied before
    /// the first page that is missing or protected. Of more than [`MAX_RANGES`](super::MAX_RANGES) ranges the first are
    /// copied.
    pub(crate) fn copy_from(&mut self, ranges: &[Range], out: &mut [u8]) -> io::Result<usize> {
        debug_assert_eq!(
            out.len(),
            ranges.iter().map(|range| range.len).sum::<usize>()
        );
        if out.len() <= LONGEST
            && let Some(ends) = self.open()
        {
            match ends.carry(ranges, out) {
                Carried::All => return Ok(out.len()),
                // The other way tells what is missing.
                Carried::Less => {}
                Carried::Broken => *self = Self::Missing,
            }
        }
        // SAFETY: `out` is valid for writes of as many bytes as the ranges have.
        unsafe { copy_own(Direction::Read, out.as_mut_ptr(), ranges) }
    }

    fn open(&mut self) -> Option<&mut Ends> {
        if matches!(self, Self::NotTried) {
            *self = Ends::new().map_or(Self::Missing, Self::Open);
        }
        match self {
            Self::Open(ends) => Some(ends),
            Self::NotTried | Self::Missing => None,
        }
    }
}

/// What came through.
enum Carried {
    All,
    /// Not all, and nothing is left in the pipe.
    Less,
    /// Something may be left in the pipe: it is of no use any more.
    Broken,
}

impl Ends {
    fn new() -> Option<Self> {
        let one_more = |count: usize| (count < MOST).then_some(count + 1);
        OPEN.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more)
            .ok()?;
        let made = Self::make();
        if made.is_none() {
            OPEN.fetch_sub(1, Ordering::Relaxed);
        }
        made
    }

    fn make() -> Option<Self> {
        let mut ends = [-1; 2];
        // SAFETY: room for two descriptors.
        let status = unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) };
        if status < 0 {
            return None;
        }
        // SAFETY: opened just now, and nobody else knows them.
        let [read, write] = ends.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
        let forks = [ForkGuard::new(&read).ok()?, ForkGuard::new(&write).ok()?];
        // SAFETY: no pointers. A user may have only so many pages in pipes, and is refused.
        let size = unsafe { libc::fcntl(write.as_raw_fd(), libc::F_SETPIPE_SZ, SIZE) };
        Some(Self {
            _forks: forks,
            read,
            write,
            takes_pages: size >= SIZE,
        })
    }

    fn carry(&mut self, ranges: &[Range], out: &mut [u8]) -> Carried {
        let (vectors, count) = vectors(ranges);
        let is_short = out.len() <= SHORT;
        if !is_short && !self.takes_pages {
            return Carried::Less;
        }
        // SAFETY: the vectors live through the call, and `count` of them are filled. The kernel checks each page that they
        // name, and changes nothing there.
        let put = unsafe {
            let pipe = self.write.as_raw_fd();
            match &vectors[..count] {
                // Costs less.
                [one] if is_short => syscall(libc::SYS_write, pipe, one.iov_base, one.iov_len),
                _ if is_short => syscall(libc::SYS_writev, pipe, vectors.as_ptr(), count),
                _ => syscall(libc::SYS_vmsplice, pipe, vectors.as_ptr(), count, 0),
            }
        };
        let Ok(put) = usize::try_from(put) else {
            let is_missing = io::Error::last_os_error().raw_os_error() == Some(libc::EFAULT);
            return match (is_missing, is_short) {
                (true, _) => Carried::Less,
                (false, true) => Carried::Broken,
                (false, false) => {
                    self.takes_pages = false;
                    Carried::Less
                }
            };
        };
        let Some(place) = out.get_mut(..put) else {
            return Carried::Broken;
        };
        // SAFETY: `place` is valid for writes of its length.
        let got = unsafe {
            let pipe = self.read.as_raw_fd();
            syscall(libc::SYS_read, pipe, place.as_mut_ptr(), put)
        };
        match usize::try_from(got) {
            Ok(got) if got == out.len() => Carried::All,
            Ok(got) if got == put => Carried::Less,
            _ => Carried::Broken,
        }
    }
}

#[cfg(test)]
impl Ends {
    pub(super) const fn ends(&self) -> [&OwnedFd; 2] {
        [&self.read, &self.write]
    }
}

impl Drop for Ends {
    fn drop(&mut self) {
        OPEN.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What fits one page of the pipe.
const SHORT: usize = 4096;
/// Longer copies are made otherwise.
const LONGEST: usize = 65_536;
/// Twice that: pages, of which the first and the last of a range may be used in part only.
const SIZE: libc::c_int = 131_072;
/// Pipes of a process at most: threads that send at one moment, beyond which they copy as without a pipe.
const MOST: usize = 8;
static OPEN: AtomicUsize = AtomicUsize::new(0);
