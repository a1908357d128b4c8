//! Copies to and from memory of this process that fail with an error where a plain copy would
//! raise SIGSEGV: `process_vm_readv(2)` and `process_vm_writev(2)` on our own process id.

use std::io;

/// Which way a copy goes, seen from the memory that may be missing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Direction {
    /// From the foreign memory into ours.
    Read,
    /// From our memory into the foreign one.
    Write,
}

/// A range of addresses of this process of which nothing is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Range {
    pub(crate) start: u64,
    pub(crate) len: usize,
}

/// Ranges of one call at most.
pub(crate) const MAX_RANGES: usize = 8;

/// Copies between `local` and the bytes of `ranges`, one after the other; returns how many bytes were copied before the
/// first page that is missing or protected. Of more than [`MAX_RANGES`] ranges the first are copied.
///
/// The kernel works through the ranges in order, and within one from page to page upwards.
///
/// # Safety
/// `local` is valid for as many bytes as the ranges have: for writes if `direction` is [`Direction::Read`], else for
/// reads. With [`Direction::Write`] the bytes of the ranges, as far as they are mapped, must be memory that this process
/// lets the device change. Nothing at all is asked of the ranges else.
pub(crate) unsafe fn copy_own(
    direction: Direction,
    local: *mut u8,
    ranges: &[Range],
) -> io::Result<usize> {
    let (theirs, count) = vectors(ranges);
    let total = ranges[..count].iter().map(|range| range.len).sum();
    let ours = libc::iovec {
        iov_base: local.cast(),
        iov_len: total,
    };
    // SAFETY: both vectors live through the call and have as many elements as is said. The kernel checks every
    // page of the remote side itself; the local side is valid by the caller's promise.
    let copied = unsafe {
        let pid = libc::getpid();
        let theirs = theirs.as_ptr();
        match direction {
            Direction::Read => {
                libc::process_vm_readv(pid, &ours, 1, theirs, count as libc::c_ulong, 0)
            }
            Direction::Write => {
                libc::process_vm_writev(pid, &ours, 1, theirs, count as libc::c_ulong, 0)
            }
        }
    };
    // A negative count is the only value that does not convert.
    usize::try_from(copied).map_err(|_| io::Error::last_os_error())
}

/// The ranges, at most [`MAX_RANGES`] of them, as the system's calls take them; and how many there are.
pub(super) fn vectors(ranges: &[Range]) -> ([libc::iovec; MAX_RANGES], usize) {
    const NONE: libc::iovec = libc::iovec {
        iov_base: std::ptr::null_mut(),
        iov_len: 0,
    };
    let mut vectors = [NONE; MAX_RANGES];
    for (vector, range) in vectors.iter_mut().zip(ranges) {
        vector.iov_base = range.start as usize as *mut libc::c_void;
        vector.iov_len = range.len;
    }
    (vectors, ranges.len().min(MAX_RANGES))
}

/// Faults in the pages of `[addr, addr + len)`, for writing if `write`; the range is page aligned.
///
/// `EINVAL` means that this kernel does not know the advice (before Linux 5.14).
pub(crate) fn populate(addr: u64, len: usize, write: bool) -> io::Result<()> {
    let advice = if write {
        libc::MADV_POPULATE_WRITE
    } else {
        libc::MADV_POPULATE_READ
    };
    // SAFETY: populating changes no byte and unmaps nothing: the kernel resolves page faults as an
    // access would, and answers an error where an access would raise a signal.
    let status = unsafe { libc::madvise(addr as usize as *mut libc::c_void, len, advice) };
    if status == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
