//! Descriptors that a forked child must not keep: a child that holds the socket of its parent's slot or connection
//! would keep them alive after the parent's death.
//!
//! Rust objects own descriptor *numbers*, so the child must not close these behind their backs. The fork handler
//! instead puts `/dev/null` in their place (`dup3`, which may be called between fork and exec): the number stays
//! valid, the socket is let go.

use std::io;
use std::os::fd::{AsFd, AsRawFd, IntoRawFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicUsize, Ordering};

/// Keeps a descriptor on the list of those that a forked child lets go of; taken off when dropped, which must
/// happen before the descriptor is closed.
#[derive(Debug)]
pub struct ForkGuard {
    place: Option<usize>,
}

impl ForkGuard {
    /// Puts `fd` on the list. With a full list (more than 4,096 descriptors) the descriptor is not watched.
    ///
    /// # Errors
    /// `/dev/null` cannot be opened, or the handler cannot be installed.
    pub fn new(fd: impl AsFd) -> io::Result<Self> {
        install()?;
        let number = fd.as_fd().as_raw_fd();
        let start = NEXT.fetch_add(1, Ordering::Relaxed);
        for place in (0..LIST.len()).map(|i| start.wrapping_add(i) % LIST.len()) {
            let entry = &LIST[place];
            if entry
                .compare_exchange(FREE, number, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
            {
                return Ok(Self { place: Some(place) });
            }
        }
        Ok(Self { place: None })
    }
}

impl Drop for ForkGuard {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            LIST[place].store(FREE, Ordering::Release);
        }
    }
}

/// How many forks lie between the start of the program and this process, counted from the first [`ForkGuard`] on: a
/// process that finds another number than before is a child of the one that noted it. A load from memory, where asking for
/// the process id is a system call.
#[must_use]
pub fn generation() -> u32 {
    GENERATION.load(Ordering::Acquire)
}

/// Counts forks from now on at the latest.
pub(crate) fn install() -> io::Result<()> {
    static INSTALLED: OnceLock<Result<(), i32>> = OnceLock::new();
    let result = INSTALLED.get_or_init(|| {
        let null = OwnedFd::from(
            std::fs::File::open("/dev/null").map_err(|e| e.raw_os_error().unwrap_or(libc::EIO))?,
        );
        // The process needs it until its end.
        NULL.store(null.into_raw_fd(), Ordering::Release);
        // SAFETY: the handler is a function that lives as long as the program and calls only dup3, which is
        // async-signal-safe, and atomic operations.
        match unsafe { libc::pthread_atfork(None, None, Some(in_child)) } {
            0 => Ok(()),
            errno => Err(errno),
        }
    });
    result.map_err(io::Error::from_raw_os_error)
}

extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::AcqRel);
    let null = NULL.load(Ordering::Acquire);
    for entry in &LIST {
        let number = entry.load(Ordering::Acquire);
        if number != FREE {
            // SAFETY: both numbers are descriptors of this process; replacing one that its owner still uses makes
            // the owner's calls fail or do nothing, which is what is wanted in a forked child.
            unsafe { libc::dup3(null, number, libc::O_CLOEXEC) };
        }
    }
}

const FREE: i32 = -1;
/// Where to look for a free place first, so that a long list need not be walked.
static NEXT: AtomicUsize = AtomicUsize::new(0);
static GENERATION: AtomicU32 = AtomicU32::new(0);
static NULL: AtomicI32 = AtomicI32::new(FREE);
static LIST: [AtomicI32; 4096] = [const { AtomicI32::new(FREE) }; 4096];
