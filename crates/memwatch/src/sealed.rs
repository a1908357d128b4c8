//! Memory of our own that cannot go.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;

use crate::error::Error;
use crate::sys::{self, SealedPages};

/// Memory that stays where it is until the process ends: what is registered in it cannot become stale.
///
/// It is a memory file, zeroed and allocated, mapped once and shared. The mapping is sealed (mseal, Linux 6.10): munmap, mmap over it,
/// mremap of it or onto it, mprotect, shmat with `SHM_REMAP` and remap_file_pages are refused with EPERM, by whatever path. The file is
/// sealed as well (`F_SEAL_SHRINK`, `F_SEAL_GROW`, `F_SEAL_FUTURE_WRITE`): nobody truncates it, punches holes or maps it for writing
/// once more. `MADV_DONTNEED` is reported as ever, and loses nothing: the contents are the file's. Forked children do not have it.
///
/// What remains is `MADV_GUARD_INSTALL`: it makes pages inaccessible, to devices that reach memory by its address, too; but they
/// become nobody else's.
///
/// # The price
/// **It is never freed**: dropping this leaves the memory as it is. Make few, and keep them.
///
/// # Examples
/// ```
/// use oarlock_memwatch::{Error, SealedMemory};
///
/// # fn main() -> Result<(), Error> {
/// let arena = match SealedMemory::new(64 << 10) {
///     Ok(arena) => arena,
///     // Linux before 6.10: memory like any other, and a Watcher for it.
///     Err(Error::CannotSeal { .. }) => return Ok(()),
///     Err(error) => return Err(error),
/// };
/// assert!(arena.range().len() >= 64 << 10);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct SealedMemory {
    pages: SealedPages,
}

impl SealedMemory {
    /// Memory of at least `len` bytes, rounded up to whole pages.
    ///
    /// # Errors
    /// [`Error::BadRange`]: `len` is 0, or more than there are addresses. [`Error::CannotSeal`]: this kernel, or a sandbox, does not
    /// seal; nothing is left behind, nor allocated if it is the kernel. [`Error::System`]: no descriptor is left, or there is not so
    /// much memory (ENOMEM): more than seven eighths of what the kernel calls available (`MemAvailable` of /proc/meminfo) is not
    /// tried. The limit of a control group is not looked at, and ends the process as with any other memory.
    ///
    /// # Blocking
    /// For the time that it takes to allocate and clear the memory.
    pub fn new(len: usize) -> Result<Self, Error> {
        let whole = len.checked_next_multiple_of(sys::page_size());
        match whole.filter(|whole| *whole > 0 && *whole <= isize::MAX as usize) {
            Some(whole) => Ok(Self {
                pages: SealedPages::new(whole)?,
            }),
            None => Err(Error::BadRange { start: 0, len }),
        }
    }

    /// Its first byte. Reading and writing are for the caller to coordinate, as with any memory that is shared.
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.pages.start()
    }

    /// Its addresses, whole pages.
    pub fn range(&self) -> Range<usize> {
        let start = self.pages.start().addr().get();
        start..start + self.pages.len()
    }
}

/// The memory file, for another process to map for reading.
impl AsFd for SealedMemory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pages.file()
    }
}
