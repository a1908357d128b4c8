//! Memory of the program that the library did not allocate: it may be unmapped, protected or
//! truncated at any moment, so every access goes through a system call that fails instead.

use std::io;

use crate::sys::{Direction, copy_own, populate};

/// A range of addresses of this process. Nothing is assumed about what is mapped there.
pub(super) struct ForeignMemory {
    start: u64,
    len: usize,
    /// The program has promised (see `Pd::register`) that the device may change these bytes.
    writable: bool,
}

impl ForeignMemory {
    /// Checks that the whole range can be reached, for writing if `writable`.
    ///
    /// # Safety
    /// If `writable`, the device may from now on change the bytes of the range that work requests
    /// name; the caller answers for what else looks at them.
    pub(super) unsafe fn probe(start: u64, len: usize, writable: bool) -> io::Result<Self> {
        let memory = Self {
            start,
            len,
            writable,
        };
        let (first_page, end) = (start & !(PAGE - 1), start + len as u64);
        let span = (end - first_page).next_multiple_of(PAGE);
        if let Err(error) = populate(first_page, span as usize, writable) {
            match error.raw_os_error() {
                // A hole; no access; the wrong kind of access or of mapping: one answer here.
                Some(libc::ENOMEM | libc::EFAULT) => return Err(no_access()),
                // Of no bytes it fails only if the kernel does not know the call (Linux before
                // 5.14). Then reading below proves that the pages exist, and a missing permission
                // to write shows when data is placed.
                Some(libc::EINVAL) if populate(first_page, 0, writable).is_ok() => {
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
            let at = page.max(start);
            if !memory.read(at, &mut byte)? {
                return Err(no_access());
            }
            page += PAGE;
        }
        Ok(memory)
    }

    /// Copies `data` to `addr`; `Ok(false)` if not all of it is mapped and writable.
    ///
    /// # Errors
    /// The kernel refuses the call as such.
    pub(super) fn write(&self, addr: u64, data: &[u8]) -> io::Result<bool> {
        if !self.writable || !self.holds(addr, data.len()) {
            return Ok(false);
        }
        // SAFETY: `data` is valid for reads, and the kernel only reads it in this direction. The
        // target lies in the range that `probe`'s caller gave for writing.
        let copied = unsafe {
            let local = data.as_ptr().cast_mut();
            copy_own(Direction::Write, local, addr, data.len())
        };
        complete(copied, data.len())
    }

    /// Copies from `addr` into `out`; `Ok(false)` if not all of it is mapped.
    ///
    /// # Errors
    /// The kernel refuses the call as such.
    pub(super) fn read(&self, addr: u64, out: &mut [u8]) -> io::Result<bool> {
        if !self.holds(addr, out.len()) {
            return Ok(false);
        }
        // SAFETY: `out` is valid for writes of its length.
        let copied = unsafe { copy_own(Direction::Read, out.as_mut_ptr(), addr, out.len()) };
        complete(copied, out.len())
    }

    fn holds(&self, addr: u64, len: usize) -> bool {
        addr.checked_sub(self.start)
            .and_then(|offset| offset.checked_add(len as u64))
            .is_some_and(|end| end <= self.len as u64)
    }
}

fn no_access() -> io::Error {
    io::Error::from_raw_os_error(libc::EFAULT)
}

fn complete(copied: io::Result<usize>, wanted: usize) -> io::Result<bool> {
    match copied {
        Ok(copied) => Ok(copied == wanted),
        Err(error) if error.raw_os_error() == Some(libc::EFAULT) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The smallest page of any platform we run on: probing more often than needed does no harm.
const PAGE: u64 = 4096;
