//! Descriptors that a forked child must not keep: a child that holds the socket of its parent's slot or connection
//! would keep them alive after the parent's death.
//!
//! Rust objects own descriptor *numbers*, so the child must not close these behind their backs. The fork handler
//! instead puts `/dev/null` in their place (`dup3`, which may be called between fork and exec): the number stays
//! valid, the socket is let go.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, AsRawFd, IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

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

/// Does what must not be under way in another thread while this process forks: a child would find the locks of libraries held
/// for good. Whoever forks waits until `act` has ended, and `act` begins after a fork that is under way; neither waits for
/// more than a second, so that an `act` that waits for the thread that forks holds nobody up for ever. No thread waits for
/// itself: it may come here in a fork handler of the program, and fork in an `act` (in a signal handler, say).
pub fn without_forks<T>(act: impl FnOnce() -> T) -> T {
    // A process that cannot have the handlers has no descriptor left for /dev/null: its forks are as they are without this.
    let _installed = install();
    let patience = Deadline::new();
    let _acting = loop {
        let acting = Acting::new();
        if !others_fork() || patience.is_over() {
            break acting;
        }
        drop(acting);
        std::thread::yield_now();
    };
    act()
}

/// Counts a call of [`without_forks`], also when its `act` panics.
struct Acting;

impl Acting {
    fn new() -> Self {
        HERE.with(|here| here.acting.set(here.acting.get() + 1));
        ACTING.fetch_add(1, Ordering::SeqCst);
        Self
    }
}

impl Drop for Acting {
    fn drop(&mut self) {
        ACTING.fetch_sub(1, Ordering::SeqCst);
        HERE.with(|here| here.acting.set(here.acting.get() - 1));
    }
}

/// Whether what this thread is about to do, and has counted already, has to wait.
fn others_fork() -> bool {
    let is_within = HERE.with(|here| here.acting.get() > 1 || here.forking.get() > 0);
    FORKING.load(Ordering::SeqCst) != 0 && !is_within
}

/// Whether a fork of this thread has to wait. Not within an `act`: others may wait for a lock that this one holds.
fn others_act() -> bool {
    ACTING.load(Ordering::SeqCst) != 0 && HERE.with(|here| here.acting.get() == 0)
}

/// How long a fork waits for others, and others for a fork.
struct Deadline(Instant);

impl Deadline {
    fn new() -> Self {
        Self(Instant::now() + Duration::from_secs(1))
    }

    fn is_over(&self) -> bool {
        Instant::now() >= self.0
    }
}

/// Counts forks from now on at the latest.
///
/// No thread waits for another here, since a fork may leave a child without that one. Of several threads that come at once
/// each installs the handler, and a fork that is counted twice is a fork all the same.
pub(crate) fn install() -> io::Result<()> {
    static ERRNO: AtomicI32 = AtomicI32::new(NOT_INSTALLED);
    let mut errno = ERRNO.load(Ordering::Acquire);
    if errno == NOT_INSTALLED {
        errno = install_once_more().map_or_else(|errno| errno, |()| 0);
        ERRNO.store(errno, Ordering::Release);
    }
    match errno {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

fn install_once_more() -> Result<(), i32> {
    if NULL.load(Ordering::Acquire) == FREE {
        let null = std::fs::File::open("/dev/null")
            .map(OwnedFd::from)
            .map_err(|error| error.raw_os_error().unwrap_or(libc::EIO))?;
        let number = null.as_raw_fd();
        let is_ours = NULL.compare_exchange(FREE, number, Ordering::AcqRel, Ordering::Acquire);
        if is_ours.is_ok() {
            // The process needs it until its end.
            let _kept = null.into_raw_fd();
        }
    }
    // SAFETY: the handlers are functions that live as long as the program; that of the child calls only dup3, which is
    // async-signal-safe, and atomic operations.
    match unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) } {
        0 => Ok(()),
        errno => Err(errno),
    }
}

extern "C" fn before() {
    HERE.with(|here| here.forking.set(here.forking.get() + 1));
    FORKING.fetch_add(1, Ordering::SeqCst);
    let patience = Deadline::new();
    while others_act() && !patience.is_over() {
        std::thread::yield_now();
    }
}

extern "C" fn in_parent() {
    HERE.with(|here| here.forking.set(here.forking.get().saturating_sub(1)));
    FORKING.fetch_sub(1, Ordering::SeqCst);
}

extern "C" fn in_child() {
    // The other threads are the parent's.
    HERE.with(|here| here.forking.set(0));
    FORKING.store(0, Ordering::SeqCst);
    ACTING.store(HERE.with(|here| here.acting.get()), Ordering::SeqCst);
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
const NOT_INSTALLED: i32 = -1;
/// Where to look for a free place first, so that a long list need not be walked.
static NEXT: AtomicUsize = AtomicUsize::new(0);
static GENERATION: AtomicU32 = AtomicU32::new(0);
/// Calls of [`without_forks`] that are under way.
static ACTING: AtomicU32 = AtomicU32::new(0);
/// Forks that are under way, each as often as the handlers are installed.
static FORKING: AtomicU32 = AtomicU32::new(0);
/// What of these two is this thread's.
struct Here {
    acting: Cell<u32>,
    forking: Cell<u32>,
}
thread_local! {
    static HERE: Here = const {
        Here {
            acting: Cell::new(0),
            forking: Cell::new(0),
        }
    };
}
static NULL: AtomicI32 = AtomicI32::new(FREE);
static LIST: [AtomicI32; 4096] = [const { AtomicI32::new(FREE) }; 4096];

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;
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

    /// A lock that only what stands in `without_forks` takes is free in every child, whatever other threads do.
    #[test]
    fn no_child_is_forked_while_another_thread_acts() {
        static LOCK: Mutex<()> = Mutex::new(());
        let has_ended = AtomicBool::new(false);
        let locked_in = std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !has_ended.load(Ordering::Relaxed) {
                        without_forks(|| drop(LOCK.lock()));
                    }
                });
            }
            let is_locked = || without_forks(|| i32::from(LOCK.try_lock().is_err()));
            let locked_in: i32 = (0..200).map(|_| in_child(is_locked)).sum();
            has_ended.store(true, Ordering::Relaxed);
            locked_in
        });
        assert_eq!(locked_in, 0);
    }

    /// Fork handlers of a program may call what does not want to be forked, before ours and after them; a fork may interrupt
    /// it, and the child may come back from there.
    #[test]
    fn a_thread_does_not_wait_for_itself() {
        let elsewhere = || std::thread::scope(|scope| scope.spawn(others_fork).join().unwrap());
        let child = || {
            // Nobody else is here to act or fork.
            before();
            let in_handler = !others_fork() && without_forks(|| !others_act() && !others_fork());
            let others_wait = elsewhere();
            in_parent();
            let returned = without_forks(|| {
                let may_fork = !others_act();
                in_child(|| i32::from(ACTING.load(Ordering::SeqCst) == 1 && !others_act())) == 1
                    && may_fork
            });
            let is_over = ACTING.load(Ordering::SeqCst) == 0 && !elsewhere();
            i32::from(in_handler && others_wait && returned && is_over)
        };
        assert_eq!(in_child(child), 1);
    }

    #[test]
    fn a_fork_does_not_wait_for_ever_for_what_waits_for_it() {
        let forked = || std::thread::scope(|scope| scope.spawn(|| in_child(|| 7)).join().unwrap());
        without_forks(|| assert_eq!(forked(), 7));
    }
}
