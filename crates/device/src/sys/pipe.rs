//! A way out of memory that may be missing: through a pipe, into memory of ours. Short pieces are written into the pipe; of
//! longer ones it takes the pages (`vmsplice(2)`), which are read when all that is to be sent is known. Cheaper than
//! `process_vm_readv(2)`, which looks up a process first, and checks whether it may be read.

use std::io;
use std::ops::Range as Places;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};

use oarlock_port::fork::ForkGuard;
use oarlock_port::system_call;

use super::{Range, vectors};

/// Bytes on their way out of foreign memory.
#[derive(Default)]
pub(crate) enum Pipe {
    /// Nothing has been fetched so far.
    #[default]
    NotTried,
    /// The system has none to give, or it failed, or there are many already: bytes are fetched otherwise.
    Missing,
    Open(Ends),
}

/// The two ends of a pipe.
pub(crate) struct Ends {
    _forks: [ForkGuard; 2],
    read: OwnedFd,
    write: OwnedFd,
    /// It has room for [`ROOM`] bytes, wherever they lie, and the system lets us put pages there.
    takes_pages: bool,
    /// Bytes in it.
    held: usize,
}

/// What becomes of the next bytes in the pipe.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// They belong at these places of the buffer.
    Fill(Places<usize>),
    /// So many are of no use any more.
    Skip(usize),
}

impl Pipe {
    /// So many bytes at most are copied when they are put into it: what fits one of its pages. Of more it takes the pages.
    pub(crate) const COPIED: usize = 4096;
    /// Bytes that are put into it at one time at most.
    pub(crate) const LONGEST: usize = 65_536;

    /// Puts the bytes of `ranges` into it, behind those that are there; how many that were. Less than all: there is no pipe, or
    /// no room, or a page is missing or protected; what was put is to be skipped.
    pub(crate) fn put(&mut self, ranges: &[Range]) -> usize {
        let total: usize = ranges.iter().map(|range| range.len).sum();
        let is_short = total <= Self::COPIED;
        let Some(ends) = self.open() else { return 0 };
        if ends.held + total > ROOM || !(is_short || ends.takes_pages) {
            return 0;
        }
        match ends.put(ranges, is_short) {
            Ok(put) => put,
            Err(error) => {
                if !matches!(error.raw_os_error(), Some(libc::EFAULT | libc::EAGAIN)) {
                    tracing::debug!(%error, "a pipe does not take the program's memory");
                    ends.takes_pages = false;
                }
                0
            }
        }
    }

    /// Does with the next bytes in it what `steps` say, in their order; whether it could be done. If not, what is in the buffer
    /// is nothing, and the pipe is gone.
    pub(crate) fn carry_out(&mut self, steps: &[Step], buffer: &mut [u8]) -> bool {
        if steps.is_empty() {
            return true;
        }
        let Self::Open(ends) = self else { return false };
        let is_done = ends.carry_out(steps, buffer);
        if !is_done {
            tracing::warn!(
                "a pipe has lost bytes: packets are not sent, and the program's memory is read otherwise"
            );
            *self = Self::Missing;
        }
        is_done
    }

    /// Bytes in it.
    pub(crate) const fn held(&self) -> usize {
        match self {
            Self::Open(ends) => ends.held,
            Self::NotTried | Self::Missing => 0,
        }
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
            held: 0,
        })
    }

    fn put(&mut self, ranges: &[Range], is_short: bool) -> io::Result<usize> {
        let (vectors, count) = vectors(ranges);
        // SAFETY: the vectors live through the call, and `count` of them are filled. The kernel checks each page that they
        // name, and changes nothing there.
        let put = unsafe {
            let (pipe, vectors) = (self.write.as_raw_fd() as usize, &vectors[..count]);
            let list = vectors.as_ptr().expose_provenance();
            match vectors {
                // Costs less.
                [one] if is_short => {
                    let bytes = one.iov_base.expose_provenance();
                    system_call(libc::SYS_write, [pipe, bytes, one.iov_len])
                }
                _ if is_short => system_call(libc::SYS_writev, [pipe, list, count]),
                _ => {
                    let flags = libc::SPLICE_F_NONBLOCK as usize;
                    system_call(libc::SYS_vmsplice, [pipe, list, count, flags])
                }
            }
        }?;
        self.held += put;
        Ok(put)
    }

    fn carry_out(&mut self, steps: &[Step], buffer: &mut [u8]) -> bool {
        let mut rest = steps;
        while let Some((step, behind)) = rest.split_first() {
            let is_fill = |step: &&Step| matches!(step, Step::Fill(_));
            let count = rest.iter().take(MAX_VECTORS).take_while(is_fill).count();
            let is_done = match step {
                Step::Skip(len) => self.skip(*len),
                Step::Fill(places) if count == 1 => self.read(&mut buffer[places.clone()]),
                Step::Fill(_) => self.fill(&rest[..count], buffer),
            };
            if !is_done {
                return false;
            }
            rest = if count > 1 { &rest[count..] } else { behind };
        }
        true
    }

    fn skip(&mut self, len: usize) -> bool {
        let mut rest = len;
        let mut nowhere = [0; Pipe::COPIED];
        while rest > 0 {
            let some = rest.min(nowhere.len());
            if !self.read(&mut nowhere[..some]) {
                return false;
            }
            rest -= some;
        }
        true
    }

    /// Whether as many bytes as `out` has were there.
    fn read(&mut self, out: &mut [u8]) -> bool {
        // SAFETY: `out` is valid for writes of its length.
        let got = unsafe {
            let (pipe, bytes) = (self.read.as_raw_fd() as usize, out.as_mut_ptr());
            system_call(libc::SYS_read, [pipe, bytes.expose_provenance(), out.len()])
        };
        self.note_read(got, out.len())
    }

    /// As [`read`](Self::read), to several places of `buffer`: of at most [`MAX_VECTORS`] steps, each of which fills.
    fn fill(&mut self, steps: &[Step], buffer: &mut [u8]) -> bool {
        let mut vectors = [const {
            libc::iovec {
                iov_base: std::ptr::null_mut(),
                iov_len: 0,
            }
        }; MAX_VECTORS];
        let mut total = 0;
        for (vector, step) in vectors.iter_mut().zip(steps) {
            let Step::Fill(places) = step else {
                return false;
            };
            let place = &mut buffer[places.clone()];
            vector.iov_base = place.as_mut_ptr().cast();
            vector.iov_len = place.len();
            total += place.len();
        }
        // SAFETY: the vectors live through the call, and as many as there are steps are filled: with places of `buffer`,
        // which is borrowed here for writing.
        let got = unsafe {
            let (pipe, list) = (self.read.as_raw_fd() as usize, vectors.as_ptr());
            system_call(
                libc::SYS_readv,
                [pipe, list.expose_provenance(), steps.len()],
            )
        };
        self.note_read(got, total)
    }

    fn note_read(&mut self, got: io::Result<usize>, wanted: usize) -> bool {
        let Ok(got) = got else {
            return false;
        };
        self.held = self.held.saturating_sub(got);
        got == wanted
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

/// Bytes in it at most: of a message whose end is still to be sent, and of the next.
const ROOM: usize = 2 * Pipe::LONGEST;
/// Twice that: pages, of which the first and the last of a range may be used in part only.
const SIZE: libc::c_int = 2 * ROOM as libc::c_int;
/// Places that are filled by one call: the packets of a burst.
const MAX_VECTORS: usize = 66;
/// Pipes of a process at most: threads that send at one moment, beyond which they copy as without a pipe.
const MOST: usize = 8;
static OPEN: AtomicUsize = AtomicUsize::new(0);
