//! Pages that stay.

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{NonNull, null_mut};

use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, ftruncate, memfd_create,
};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

use crate::error::Error;

/// A mapping of a memory file, both sealed. It is never unmapped.
#[derive(Debug)]
pub(crate) struct SealedPages {
    start: NonNull<u8>,
    len: usize,
    file: OwnedFd,
}

// SAFETY: this only says where the memory is; it reads and writes nothing.
unsafe impl Send for SealedPages {}
// SAFETY: as above.
unsafe impl Sync for SealedPages {}

impl SealedPages {
    /// `len` bytes of whole pages.
    pub(crate) fn new(len: usize) -> Result<Self, Error> {
        let system = |call| move |errno: Errno| Error::system(call, errno);
        // Nothing is allocated before these two: the kernel itself ends processes, this one or others, rather than say that a memory
        // file is too long.
        Self::mseal(null_mut(), 0)?;
        if len as u64 > available() / 8 * 7 {
            return Err(Error::system("fallocate", Errno::NOMEM));
        }
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create("sealed memory", flags).map_err(system("memfd_create"))?;
        ftruncate(&file, len as u64).map_err(system("ftruncate"))?;
        // Otherwise a write could find no memory left, and would be a signal.
        fallocate(&file, FallocateFlags::empty(), 0, len as u64).map_err(system("fallocate"))?;
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let start =
            unsafe { mmap(null_mut(), len, prot, flags, &file, 0) }.map_err(system("mmap"))?;
        let sealed = Self::seal(start, len, &file);
        match (sealed, NonNull::new(start.cast())) {
            (Ok(()), Some(start)) => Ok(Self { start, len, file }),
            (sealed, _) => {
                // SAFETY: just mapped, not sealed, and known to nobody.
                let unmapped = unsafe { munmap(start, len) };
                debug_assert!(unmapped.is_ok(), "it is not sealed");
                Err(sealed.err().unwrap_or(Error::system("mmap", Errno::NOMEM)))
            }
        }
    }

    /// What cannot be undone comes last.
    fn seal(start: *mut c_void, len: usize, file: &OwnedFd) -> Result<(), Error> {
        // SAFETY: a mapping of ours, that children are not to have.
        unsafe { madvise(start, len, Advice::LinuxDontFork) }
            .map_err(|errno| Error::system("madvise", errno))?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
        fcntl_add_seals(file, seals).map_err(cannot)?;
        Self::mseal(start, len)
    }

    /// Of length 0, it only asks whether the kernel can.
    fn mseal(start: *mut c_void, len: usize) -> Result<(), Error> {
        // SAFETY: a mapping of ours that is meant to stay for ever, or nothing; no memory is passed.
        match unsafe { libc::syscall(libc::SYS_mseal, start, len, 0usize) } {
            0 => Ok(()),
            _ => Err(cannot(
                Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO),
            )),
        }
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

fn cannot(errno: Errno) -> Error {
    Error::CannotSeal {
        errno: errno.raw_os_error(),
    }
}

/// Bytes that can be allocated without swapping, as far as the kernel can tell.
fn available() -> u64 {
    let told = std::fs::read_to_string("/proc/meminfo").ok();
    told.and_then(|told| mem_available(&told))
        .unwrap_or_else(|| {
            // Without /proc: what is free at once.
            let about = sysinfo();
            about.freeram.saturating_mul(about.mem_unit.into())
        })
}

fn sysinfo() -> libc::sysinfo {
    // SAFETY: zeros are valid for the structure, which the call writes; it cannot fail otherwise.
    unsafe {
        let mut about = std::mem::zeroed();
        libc::sysinfo(&raw mut about);
        about
    }
}

/// The line `MemAvailable:   22839000 kB`.
fn mem_available(meminfo: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kilobytes: u64 = line.trim().strip_suffix(" kB")?.trim_end().parse().ok()?;
    kilobytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn available_memory_is_read() {
        let meminfo = "MemTotal:       24684028 kB\nMemFree:  9 kB\nMemAvailable:   22839000 kB\nBuffers: 1 kB\n";
        assert_eq!(mem_available(meminfo), Some(22_839_000 << 10));
        for other in [
            "",
            "MemFree: 9 kB",
            "MemAvailable: 9",
            "MemAvailable: -9 kB",
        ] {
            assert_eq!(mem_available(other), None, "{other}");
        }
        assert!(mem_available(&format!("MemAvailable: {} kB", u64::MAX)).is_none());
        let all = sysinfo();
        let all = all.totalram * u64::from(all.mem_unit);
        assert!((1..=all).contains(&available()));
    }
}
