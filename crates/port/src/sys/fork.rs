//! Descriptors that a forked child must not keep: a child that holds the socket of its parent's slot or connection
//! would keep them alive after the parent's death.
//!
//! Rust objects own descriptor *numbers*, so the child must not close these behind their backs. The fork handler
//! instead puts `/dev/null` in their place (`dup3`, which may be called between fork and exec): the number stays
//! valid, the socket is let go.

use std::io;
use std::os::fd::{AsFd, AsRawFd, IntoRawFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicUsize, Ordering};

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

/// A value that a process has once, and that a forked child has anew: of what was the parent's a lock may be held by a
/// thread that the child does not have.
///
/// What was the parent's stays in the child's memory for good, and is never dropped there.
///
/// # Examples
/// ```
/// use oarlock_port::fork::PerProcess;
/// use std::sync::Mutex;
///
/// static NAMES: PerProcess<Mutex<Vec<String>>> = PerProcess::new(|_| Mutex::default());
/// NAMES.get().lock().unwrap().push("first".to_owned());
/// ```
#[derive(Debug)]
pub struct PerProcess<T: 'static> {
    current: AtomicPtr<Life<T>>,
    make: fn(Option<&T>) -> T,
}

/// The value of one process.
#[derive(Debug)]
struct Life<T> {
    generation: u32,
    value: T,
}

impl<T: Send + Sync> PerProcess<T> {
    /// A value that `make` makes when it is first asked for; in a forked child it is given the parent's, if there was one.
    /// Of several threads that ask at once each may make one, of which all get the same.
    #[must_use]
    pub const fn new(make: fn(Option<&T>) -> T) -> Self {
        Self {
            current: AtomicPtr::new(std::ptr::null_mut()),
            make,
        }
    }

    /// The value of this process.
    pub fn get(&'static self) -> &'static T {
        // A process that cannot count forks has no descriptor left for /dev/null, and keeps the value it has.
        let _counted = install();
        loop {
            let known = self.current.load(Ordering::Acquire);
            // SAFETY: null, or a box that was leaked below and that nobody frees.
            let parents = unsafe { known.as_ref() };
            let generation = generation();
            if let Some(life) = parents
                && life.generation == generation
            {
                return &life.value;
            }
            let value = (self.make)(parents.map(|life| &life.value));
            let new = Box::into_raw(Box::new(Life { generation, value }));
            let exchanged =
                self.current
                    .compare_exchange(known, new, Ordering::AcqRel, Ordering::Acquire);
            if exchanged.is_err() {
                // SAFETY: made above, and nobody else has seen it.
                drop(unsafe { Box::from_raw(new) });
            }
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Mutex, TryLockError};

    static VALUE: PerProcess<Mutex<u32>> = PerProcess::new(|parents| {
        let number = parents.map_or(Ok(1), |parents| {
            parents.try_lock().map(|number| *number + 1)
        });
        Mutex::new(match number {
            Ok(number) => number,
            Err(TryLockError::WouldBlock) => 1_000,
            Err(TryLockError::Poisoned(_)) => 2_000,
        })
    });

    /// What a forked child does, as its exit status. It is killed when it hangs.
    fn in_child(act: impl FnOnce() -> i32) -> i32 {
        // SAFETY: the child calls what may be called between fork and exec, and the allocator, which is sound after a fork; it
        // ends by _exit.
        match unsafe { libc::fork() } {
            0 => {
                // SAFETY: as above.
                unsafe {
                    libc::alarm(60);
                    libc::_exit(act())
                }
            }
            child => {
                let mut status = 0;
                // SAFETY: the child of above, a live integer.
                assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
                assert!(libc::WIFEXITED(status), "{status:#x}");
                libc::WEXITSTATUS(status)
            }
        }
    }

    #[test]
    fn a_child_has_a_value_of_its_own_and_waits_for_no_lock_of_the_parents() {
        let value = || *VALUE.get().lock().unwrap();
        assert_eq!(value(), 1);
        let child = || i32::from(value() == 2 && in_child(|| i32::from(value() == 3)) == 1);
        assert_eq!(in_child(child), 1, "given the parent's value");
        assert!(std::ptr::eq(VALUE.get(), VALUE.get()));
        let held = VALUE.get().lock().unwrap();
        assert_eq!(in_child(|| i32::from(value() == 1_000)), 1);
        drop(held);
        assert_eq!(value(), 1, "nothing of it is the parent's");
    }
}
