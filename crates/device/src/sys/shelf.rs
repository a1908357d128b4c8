//! A place from which the kernel copies into memory that may be missing: a file in memory that is mapped here, and read from
//! into there with `preadv(2)`. For short copies a third of what `process_vm_writev(2)` costs, which looks up a process first,
//! and checks whether it may be touched.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;

use oarlock_port::fork::ForkGuard;
use oarlock_port::system_call;
use oarlock_port::thread::Uncancelled;

use super::{MAX_RANGES, Range};

/// Bytes on their way into foreign memory.
#[derive(Default)]
pub(crate) enum Shelf {
    /// Nothing has been copied so far.
    #[default]
    NotTried,
    /// The system has none to give: copies are made otherwise.
    Missing,
    Here(Mapped),
}

/// A file in memory, mapped.
pub(crate) struct Mapped {
    _fork: ForkGuard,
    file: OwnedFd,
    bytes: NonNull<u8>,
}

// SAFETY: the value owns its mapping, which nothing else reaches: it is a plain buffer.
unsafe impl Send for Mapped {}

impl Shelf {
    /// Bytes that it holds: no burst of packets carries more.
    pub(crate) const LEN: usize = 65_536;

    /// The shelf, made at the first call; `None` where there can be none.
    pub(crate) fn mapped(&mut self) -> Option<&mut Mapped> {
        if matches!(self, Self::NotTried) {
            let _uncancelled = Uncancelled::new();
            *self = Mapped::new().map_or_else(
                |error| {
                    tracing::debug!(%error, "no file in memory: copies go by process_vm_writev");
                    Self::Missing
                },
                Self::Here,
            );
        }
        match self {
            Self::Here(mapped) => Some(mapped),
            Self::NotTried | Self::Missing => None,
        }
    }
}

impl Mapped {
    fn new() -> io::Result<Self> {
        // Making a file longer than the program may have files would raise a signal.
        if !may_be_so_long() {
            return Err(io::Error::from_raw_os_error(libc::EFBIG));
        }
        let file = create()?;
        let fork = ForkGuard::new(&file)?;
        let len = Shelf::LEN;
        // Its pages exist from here on, so that the mapping needs none later, when there may be none.
        // SAFETY: no pointers.
        check(unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, len as libc::off_t) })?;
        // Nobody asks when it was read. Refused, it costs a little more.
        // SAFETY: no pointers.
        unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, libc::O_NOATIME) };
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, wherever the kernel has room, of a file that is ours alone.
        let bytes = unsafe {
            let none = std::ptr::null_mut();
            libc::mmap(none, len, protection, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        if bytes == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let bytes = NonNull::new(bytes.cast()).expect("no mapping begins at 0 unasked");
        Ok(Self {
            _fork: fork,
            file,
            bytes,
        })
    }

    #[cfg(test)]
    pub(super) const fn file(&self) -> &OwnedFd {
        &self.file
    }

    /// What is on it, or will be.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: `bytes` is a mapping of `LEN` bytes that lives as long as `self`, initialized by the kernel, and reached
        // through `self` only: the file has no other user, and `copy_to` lets the kernel read it.
        unsafe { std::slice::from_raw_parts_mut(self.bytes.as_ptr(), Shelf::LEN) }
    }

    /// Copies the bytes from `start` on to the ranges, one after the other and upwards; returns how many were copied before
    /// the first that could not be. Of more than [`MAX_RANGES`] ranges the first are copied.
    ///
    /// # Safety
    /// The bytes of the ranges, as far as they are mapped, must be memory that this process lets the device change.
    pub(crate) unsafe fn copy_to(&mut self, start: usize, ranges: &[Range]) -> io::Result<usize> {
        let (vectors, count) = super::vectors(ranges);
        debug_assert!(start + ranges.iter().map(|range| range.len).sum::<usize>() <= Shelf::LEN);
        // SAFETY: the vectors live through the call, and `count` of them are filled. Where they point the kernel writes as far
        // as it is mapped and writable, which the caller allows.
        unsafe {
            let file = self.file.as_raw_fd() as usize;
            match &vectors[..count] {
                // Costs less.
                [one] => {
                    let bytes = one.iov_base.expose_provenance();
                    system_call(libc::SYS_pread64, [file, bytes, one.iov_len, start])
                }
                some => {
                    let list = some.as_ptr().expose_provenance();
                    // The upper half of the position is an argument of its own.
                    system_call(libc::SYS_preadv, [file, list, count, start, 0])
                }
            }
        }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this length, and no slice of it lives any more.
        unsafe { libc::munmap(self.bytes.as_ptr().cast(), Shelf::LEN) };
    }
}

fn create() -> io::Result<OwnedFd> {
    let with = |flags| {
        // SAFETY: the name is a C string.
        let fd = unsafe { libc::memfd_create(c"oarlock".as_ptr(), flags) };
        check(fd)?;
        // SAFETY: opened just now, and nobody else knows it.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    };
    // Before Linux 6.3 there is no such flag; with some settings, later ones give no file without it.
    with(libc::MFD_CLOEXEC | libc::MFD_NOEXEC_SEAL).or_else(|error: io::Error| {
        match error.raw_os_error() {
            Some(libc::EINVAL) => with(libc::MFD_CLOEXEC),
            _ => Err(error),
        }
    })
}

fn may_be_so_long() -> bool {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is writable and of the type that the call fills.
    let status = unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) };
    status == 0 && limit.rlim_cur >= Shelf::LEN as libc::rlim_t
}

fn check(status: libc::c_int) -> io::Result<()> {
    if status < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

const _: () = assert!(MAX_RANGES <= 1024, "IOV_MAX of every Linux");
