//! Hostile surroundings: what is missing, taken, forked, interrupted. Degraded as documented, never hanging, never stale.

#[path = "../support/mod.rs"]
mod support;

mod ends;
mod fork;

use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;

use oarlock_memwatch::{Capabilities, Error, Mode, Options, Policy, Reason, Watcher};
use support::*;

/// As in many containers: a seccomp filter answers EPERM.
#[test]
fn a_seccomp_filter_is_named() {
    thread::spawn(|| {
        if let Err(error) = refuse_system_call(libc::SYS_userfaultfd, libc::EPERM) {
            return oarlock_sim::not_run("seccomp", error);
        }
        for result in [Watcher::new().map(drop), Capabilities::probe().map(drop)] {
            assert!(
                matches!(
                    result,
                    Err(Error::Unavailable {
                        reason: Reason::NotPermitted,
                        errno: libc::EPERM
                    })
                ),
                "{result:?}"
            );
        }
    })
    .join()
    .expect("no panic");
}

/// As on a kernel that was built without it.
#[test]
fn a_kernel_without_userfaultfd_is_named() {
    thread::spawn(|| {
        if let Err(error) = refuse_system_call(libc::SYS_userfaultfd, libc::ENOSYS) {
            return oarlock_sim::not_run("seccomp", error);
        }
        let result = Watcher::new().map(drop);
        assert!(
            matches!(
                result,
                Err(Error::Unavailable {
                    reason: Reason::NotBuilt,
                    ..
                })
            ),
            "{result:?}"
        );
    })
    .join()
    .expect("no panic");
}

/// The other one keeps its range; what we watch is refused to it.
/// A program that puts itself into a sandbox after its Watcher was made: what the kernel does not tell is not taken for "nothing".
#[test]
fn a_sandbox_that_begins_later_leaves_nothing_valid() {
    let Some(watcher) = watcher() else { return };
    let pages = Pages::new(1);
    let region = watcher
        .register(pages.start, pages.len, 1, Policy::Report)
        .expect("registered");
    let validity = region.validity();
    thread::scope(|scope| {
        let inside = scope.spawn(|| {
            if let Err(error) = refuse_system_call(libc::SYS_ioctl, libc::EPERM) {
                oarlock_sim::not_run("seccomp", error);
                return None;
            }
            Some((validity.settle(), watcher.settle()))
        });
        if let Some(answers) = inside.join().expect("no panic") {
            assert!(
                matches!(answers, (Err(Error::Broken), Err(Error::Broken))),
                "{answers:?}"
            );
            assert!(!region.is_valid() && validity.hold().is_none());
            let refused = watcher.register(pages.start, pages.len, 2, Policy::Report);
            assert!(matches!(refused, Err(Error::Broken)), "{refused:?}");
        }
    });
    // Nobody waits for ever.
    pages.unmap();
}

#[test]
fn another_userfaultfd_is_a_conflict() {
    let Some(watcher) = watcher() else { return };
    let pages = Pages::new(8);
    let other = other_userfaultfd();
    assert_eq!(register_with(&other, pages.part(2..4)), 0);
    for part in [2..3, 0..8, 3..5] {
        let part = pages.part(part);
        let result = watcher.register(part.start, part.len(), 1, Policy::Report);
        assert!(matches!(result, Err(Error::Conflict { .. })), "{result:?}");
    }
    let beside = pages.part(4..6);
    let region = watcher
        .register(beside.start, beside.len(), 1, Policy::Report)
        .expect("beside it");
    assert_eq!(register_with(&other, pages.part(5..7)), libc::EBUSY);
    pages.discard(3..5);
    assert_eq!(drain(&watcher)[0].hint, Some(pages.part(4..5)));
    drop(region);
    assert_eq!(register_with(&other, pages.part(5..7)), 0, "free again");
}

/// Options restrict the mode, as an older kernel would.
#[test]
fn a_lesser_mode_says_what_it_lacks() {
    let options = Options {
        best_mode: Mode::Shared,
        ..Options::default()
    };
    let Ok(watcher) = Watcher::with(options) else {
        return oarlock_sim::not_run("userfaultfd", "no mode Shared");
    };
    assert_eq!(watcher.capabilities().mode(), Mode::Shared);
    assert!(watcher.capabilities().is_strict());
    assert!(!Capabilities::of(Mode::Anonymous).is_strict());
}

/// A storm of signals whose handler unmaps watched memory itself, also inside calls of the Watcher and with its lock held.
#[test]
fn signal_handlers_may_unmap_inside_our_calls() {
    watchdog(60);
    let Some(watcher) = watcher() else { return };
    let memory = Pages::new(PREY);
    PREY_START.store(memory.start, Ordering::SeqCst);
    let region = watcher
        .register(memory.start, memory.len, 0, Policy::Report)
        .expect("registered");
    // SAFETY: the handler makes one system call and counts; the structure is zeros and a function.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = unmap_prey as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        assert_eq!(
            libc::sigaction(libc::SIGUSR2, &action, std::ptr::null_mut()),
            0
        );
    }
    let over = AtomicBool::new(false);
    let calls = AtomicU64::new(0);
    thread::scope(|scope| {
        let worker = scope.spawn(|| {
            // SAFETY: this thread's own id.
            WORKER.store(unsafe { libc::pthread_self() } as usize, Ordering::SeqCst);
            let mut cookie = 1;
            while !over.load(Ordering::SeqCst) {
                let pages = Pages::new(2);
                let own = watcher
                    .register(pages.start, pages.len, cookie, Policy::Report)
                    .expect("registered");
                cookie += 1;
                pages.unmap();
                watcher.settle().expect("settled");
                assert!(!own.is_valid());
                drain(&watcher);
                calls.fetch_add(1, Ordering::SeqCst);
            }
        });
        while UNMAPPED.load(Ordering::SeqCst) < PREY && !worker.is_finished() {
            let id = WORKER.load(Ordering::SeqCst);
            if id != 0 {
                // SAFETY: the worker runs until `over` is set below.
                unsafe { libc::pthread_kill(id as libc::pthread_t, libc::SIGUSR2) };
            }
            thread::sleep(std::time::Duration::from_micros(100));
        }
        over.store(true, Ordering::SeqCst);
    });
    assert!(calls.load(Ordering::SeqCst) > 0);
    watcher.settle().expect("settled");
    assert!(!region.is_valid());
}

const PREY: usize = 2000;
static PREY_START: AtomicUsize = AtomicUsize::new(0);
static UNMAPPED: AtomicUsize = AtomicUsize::new(0);
static WORKER: AtomicUsize = AtomicUsize::new(0);

/// Alternates between a page moved away (two events, waited for one after the other) and a page unmapped.
extern "C" fn unmap_prey(_: libc::c_int) {
    let page = UNMAPPED.fetch_add(1, Ordering::SeqCst);
    if page >= PREY {
        return;
    }
    let start = (PREY_START.load(Ordering::SeqCst) + page * PAGE) as *mut libc::c_void;
    // SAFETY: pages of the test's own, each taken once; errno is what the interrupted code may be about to read.
    unsafe {
        let errno = *libc::__errno_location();
        match page % 2 {
            0 => drop(libc::mremap(start, PAGE, 2 * PAGE, libc::MREMAP_MAYMOVE)),
            _ => drop(libc::munmap(start, PAGE)),
        }
        *libc::__errno_location() = errno;
    }
}

/// Linux `include/uapi/linux/userfaultfd.h`: UFFDIO_API, UFFDIO_REGISTER, and the write-protect mode.
fn other_userfaultfd() -> OwnedFd {
    // SAFETY: a new descriptor; the structure is of the type that the request is defined for.
    unsafe {
        let fd = libc::syscall(
            libc::SYS_userfaultfd,
            libc::O_CLOEXEC | libc::O_NONBLOCK | 1,
        );
        assert!(fd >= 0);
        let fd = OwnedFd::from_raw_fd(fd as i32);
        let mut api = [0xAAu64, 1, 0];
        assert_eq!(
            libc::ioctl(std::os::fd::AsRawFd::as_raw_fd(&fd), 0xC018_AA3F, &mut api),
            0
        );
        fd
    }
}

/// The errno, or 0.
fn register_with(fd: &OwnedFd, range: std::ops::Range<usize>) -> i32 {
    let mut register = [range.start as u64, range.len() as u64, 1 << 1, 0];
    // SAFETY: as above.
    let result = unsafe {
        libc::ioctl(
            std::os::fd::AsRawFd::as_raw_fd(fd),
            0xC020_AA00,
            &mut register,
        )
    };
    match result {
        0 => 0,
        _ => std::io::Error::last_os_error().raw_os_error().unwrap_or(-1),
    }
}
