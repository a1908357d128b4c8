//! Memory of the program that the library did not allocate: it may be unmapped, protected or truncated at any moment, so
//! every access goes through a system call that fails instead.
//!
//! # Order
//! A copy is made by the kernel, range by range and page by page upwards. What another thread sees in between, within a
//! page, is the kernel's affair: on x86-64 a string move, whose stores are seen in any order until it has ended. The last
//! bytes of a placement for a peer are a range of their own, so that their move begins when the others have ended: a
//! program that polls them finds the rest in place. On machines whose stores other cores see out of order, such a program
//! needs the completion instead.

use std::io;

use oarlock_memwatch::Validity;
use oarlock_transport::AtomicOp;

use crate::sys::{Direction, MAX_RANGES, Mapped, Pipe, Range, copy_own, populate};

use super::region::Piece;

/// A range of addresses of this process. Nothing is assumed about what is mapped there.
pub(super) struct ForeignMemory {
    start: u64,
    len: usize,
    /// The program has promised (see `Pd::register`) that the device may change these bytes.
    writable: bool,
    /// What says whether the mapping is still that which was registered; `None`: nobody watches it.
    validity: Option<Validity>,
}

impl ForeignMemory {
    /// The range `[start, start + len)`, which does not wrap around.
    ///
    /// # Safety
    /// If `writable`, the device may from now on change the bytes of the range that work requests, peers and
    /// `Region::copy_in` name; the caller answers for what else looks at them.
    pub(super) const unsafe fn new(start: u64, len: usize, writable: bool) -> Self {
        Self {
            start,
            len,
            writable,
            validity: None,
        }
    }

    /// The same memory for as long as it is valid.
    pub(super) fn watched(self, validity: Option<Validity>) -> Self {
        Self { validity, ..self }
    }

    pub(super) const fn validity(&self) -> Option<&Validity> {
        self.validity.as_ref()
    }

    pub(super) const fn start(&self) -> u64 {
        self.start
    }

    /// Checks that the whole range can be reached, for writing if the device may write.
    ///
    /// # Errors
    /// `EFAULT`: it cannot. Others: this system does not let a process copy to itself.
    pub(super) fn probe(&self) -> io::Result<()> {
        let (first_page, end) = (self.start & !(PAGE - 1), self.start + self.len as u64);
        let span = (end - first_page).next_multiple_of(PAGE);
        if let Err(error) = populate(first_page, span as usize, self.writable) {
            match error.raw_os_error() {
                // A hole; no access; the wrong kind of access or of mapping: one answer here.
                Some(libc::ENOMEM | libc::EFAULT) => return Err(no_access()),
                // Of no bytes it fails only if the kernel does not know the call (Linux before
                // 5.14). Then reading below proves that the pages exist, and a missing permission
                // to write shows when data is placed.
                Some(libc::EINVAL) if populate(first_page, 0, self.writable).is_ok() => {
                    return Err(no_access());
                }
                Some(libc::EINVAL) => {}
                _ => return Err(error),
            }
        }
        let mut page = first_page;
        let mut byte = [0];
        while page < end {
            // One byte in each page, and the first page at the first byte of the range.
            let offset = page.max(self.start) - self.start;
            if !self.read(&[Piece { offset, len: 1 }], &mut byte)? {
                return Err(no_access());
            }
            page += PAGE;
        }
        Ok(())
    }

    /// Copies `data` to the pieces, which have as many bytes together; `Ok(false)` if not all of it is mapped and writable.
    ///
    /// # Errors
    /// The kernel refuses the call as such.
    pub(super) fn write(&self, pieces: &[Piece], data: &[u8]) -> io::Result<bool> {
        let mut rest = data;
        self.for_ranges(pieces, |ranges, total| {
            let Some((now, later)) = rest.split_at_checked(total) else {
                return Ok(false);
            };
            rest = later;
            if !self.writable {
                return Ok(false);
            }
            // SAFETY: `now` has `total` bytes, valid for reads, and the kernel only reads it in this
            // direction. The ranges lie in the one that `new`'s caller gave for writing.
            let copied = unsafe { copy_own(Direction::Write, now.as_ptr().cast_mut(), ranges) };
            complete(copied, total)
        })
    }

    /// Copies what is on the shelf from `start` on to the pieces; returns how many bytes were copied before the first that is
    /// not mapped and writable.
    ///
    /// # Errors
    /// The kernel refuses the call as such.
    pub(super) fn write_from(
        &self,
        shelf: &mut Mapped,
        start: usize,
        pieces: &[Piece],
    ) -> io::Result<usize> {
        let mut done = 0;
        self.for_ranges(pieces, |ranges, total| {
            if !self.writable {
                return Ok(false);
            }
            // SAFETY: the ranges lie in the one that `new`'s caller gave for writing.
            let copied = partial(unsafe { shelf.copy_to(start + done, ranges) })?;
            done += copied;
            Ok(copied == total)
        })?;
        Ok(done)
    }

    /// Puts the bytes of the pieces into the pipe; how many that were.
    pub(super) fn put_in(&self, pipe: &mut Pipe, pieces: &[Piece]) -> usize {
        let mut done = 0;
        // It only ends early.
        let _ = self.for_ranges(pieces, |ranges, total| {
            let put = pipe.put(ranges);
            done += put;
            Ok(put == total)
        });
        done
    }

    /// Copies from the pieces into `out`, which has as many bytes; `Ok(false)` if not all of it is mapped.
    ///
    /// # Errors
    /// The kernel refuses the call as such.
    pub(super) fn read(&self, pieces: &[Piece], out: &mut [u8]) -> io::Result<bool> {
        let mut rest = out;
        self.for_ranges(pieces, |ranges, total| {
            let Some((now, later)) = std::mem::take(&mut rest).split_at_mut_checked(total) else {
                return Ok(false);
            };
            rest = later;
            // SAFETY: `now` is valid for writes of its length, which is `total`.
            let copied = unsafe { copy_own(Direction::Read, now.as_mut_ptr(), ranges) };
            complete(copied, total)
        })
    }

    /// Replaces the word at `offset` and gives the one before; `Ok(None)` if it is not mapped and writable, and then
    /// nothing was changed: a word does not cross a page.
    ///
    /// Atomic against those who hold the lock that the caller holds, not against the program's own instructions.
    pub(super) fn atomic(&self, offset: u64, op: AtomicOp) -> io::Result<Option<u64>> {
        let word = [Piece { offset, len: 8 }];
        let mut before = [0; 8];
        if !self.read(&word, &mut before)? {
            return Ok(None);
        }
        let before = u64::from_ne_bytes(before);
        let after = op.apply(before);
        // Also where the value stays: a word that may not be written is no target.
        let stored = self.write(&word, &after.to_ne_bytes())?;
        Ok(stored.then_some(before))
    }

    /// Calls `copy(ranges, total length)` for as many pieces at a time as one system call takes.
    fn for_ranges(
        &self,
        pieces: &[Piece],
        mut copy: impl FnMut(&[Range], usize) -> io::Result<bool>,
    ) -> io::Result<bool> {
        for some in pieces.chunks(MAX_RANGES) {
            let mut ranges = [Range::default(); MAX_RANGES];
            let mut total = 0;
            for (range, piece) in ranges.iter_mut().zip(some) {
                if !piece.is_within(self.len as u64) {
                    return Ok(false);
                }
                range.start = self.start + piece.offset;
                range.len = piece.len;
                total += piece.len;
            }
            if !copy(&ranges[..some.len()], total)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

fn no_access() -> io::Error {
    io::Error::from_raw_os_error(libc::EFAULT)
}

fn complete(copied: io::Result<usize>, wanted: usize) -> io::Result<bool> {
    partial(copied).map(|copied| copied == wanted)
}

/// How much was copied: nothing, if the first byte could not be.
fn partial(copied: io::Result<usize>) -> io::Result<usize> {
    match copied {
        Err(error) if error.raw_os_error() == Some(libc::EFAULT) => Ok(0),
        copied => copied,
    }
}

/// The smallest page of any platform we run on: probing more often than needed does no harm.
const PAGE: u64 = 4096;
