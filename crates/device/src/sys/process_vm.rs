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

/// Copies between `local` and the bytes at `remote` of this process; returns how many bytes
/// were copied before the first page that is missing or protected.
///
/// # Safety
/// `local` is valid for `len` bytes: for writes if `direction` is [`Direction::Read`], else for
/// reads. With [`Direction::Write`] the bytes at `remote`, as far as they are mapped, must be
/// memory that this process lets the device change. Nothing at all is asked of `remote` else.
pub(crate) unsafe fn copy_own(
    direction: Direction,
    local: *mut u8,
    remote: u64,
    len: usize,
) -> io::Result<usize> {
    let ours = libc::iovec {
        iov_base: local.cast(),
        iov_len: len,
    };
    let theirs = libc::iovec {
        iov_base: remote as usize as *mut libc::c_void,
        iov_len: len,
    };
    // SAFETY: both vectors live through the call and have one element. The kernel checks every
    // page of the remote side itself; the local side is valid by the caller's promise.
    let copied = unsafe {
        let pid = libc::getpid();
        match direction {
            Direction::Read => libc::process_vm_readv(pid, &ours, 1, &theirs, 1, 0),
            Direction::Write => libc::process_vm_writev(pid, &ours, 1, &theirs, 1, 0),
        }
    };
    // A negative count is the only value that does not convert.
    usize::try_from(copied).map_err(|_| io::Error::last_os_error())
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
