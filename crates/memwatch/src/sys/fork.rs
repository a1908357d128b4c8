//! What a forked child must not keep: descriptors from which it could take the parent's events.

use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use rustix::io::Errno;

/// How many descriptors can be kept from children at once.
const MAX_KEPT: usize = 64;
const FREE: RawFd = -1;
/// Taken, the descriptor not entered yet.
const TAKEN: RawFd = -2;

static KEPT: [AtomicI32; MAX_KEPT] = [const { AtomicI32::new(FREE) }; MAX_KEPT];
static EPOCH: AtomicU64 = AtomicU64::new(1);

/// Grows in a forked child.
pub(crate) fn epoch() -> u64 {
    EPOCH.load(Ordering::Relaxed)
}

/// A descriptor that fork(2), as the C library offers it, closes in the child.
#[derive(Debug)]
pub(crate) struct Slot(&'static AtomicI32);

impl Slot {
    pub(crate) const MAX: usize = MAX_KEPT;
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.store(FREE, Ordering::SeqCst);
    }
}

/// Closes the descriptor in every child from now on, until the result is dropped. To be dropped before the descriptor is closed.
///
/// `None`: [`Slot::MAX`] are in use.
pub(crate) fn keep_from_children(fd: impl AsFd) -> Result<Option<Slot>, Errno> {
    static INSTALLED: OnceLock<i32> = OnceLock::new();
    // SAFETY: the handler is a function of this program, and does only what a child of a program with threads may do.
    let installed =
        INSTALLED.get_or_init(|| unsafe { libc::pthread_atfork(None, None, Some(in_child)) });
    if *installed != 0 {
        return Err(Errno::from_raw_os_error(*installed));
    }
    let claim = |slot: &&AtomicI32| {
        slot.compare_exchange(FREE, TAKEN, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
    };
    Ok(KEPT.iter().find(claim).map(|slot| {
        slot.store(fd.as_fd().as_raw_fd(), Ordering::SeqCst);
        Slot(slot)
    }))
}

/// Async-signal-safe: the other threads of the parent, and whatever they held, do not exist here.
extern "C" fn in_child() {
    EPOCH.fetch_add(1, Ordering::Relaxed);
    for slot in &KEPT {
        let fd = slot.swap(FREE, Ordering::SeqCst);
        if fd >= 0 {
            // SAFETY: the child's copy of a descriptor whose owner never closes it in a child.
            unsafe { libc::close(fd) };
        }
    }
}
