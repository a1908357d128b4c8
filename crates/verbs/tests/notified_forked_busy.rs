//! A program forks while its threads register and deregister watched memory. The one test of its process.
#![allow(unsafe_code, reason = "fork has no safe wrapper")]

#[path = "support/end.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    reason = "shared by the tests"
)]
mod end;
#[path = "support/pair.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    reason = "shared with the crate's examples"
)]
mod pair;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use end::{End, ends};
use oarlock_memwatch::{Error as WatchError, Policy};
use oarlock_verbs::*;

/// R-MEM-5: whatever threads of the parent had locked, each call of a child is refused and returns.
#[test]
fn a_child_is_refused_whatever_was_under_way() {
    let (_a, b) = ends(QpInitAttr::default());
    let channel = match MemoryChannel::new(&b.context) {
        Ok(channel) => channel,
        Err(Error::Memory(error @ WatchError::Unavailable { .. })) => {
            oarlock_sim::not_run("userfaultfd", error);
            return;
        }
        Err(error) => panic!("{error}"),
    };
    let own = map();
    let mut standing: Vec<_> = (0..CHILDREN as u64)
        .map(|cookie| register(&b, &channel, own, cookie, Policy::Report).expect("region"))
        .collect();
    let (stop, cookies) = (AtomicBool::new(false), AtomicU64::new(CHILDREN as u64));
    let work = |policy| {
        while !stop.load(Ordering::Relaxed) {
            let start = map();
            let cookie = cookies.fetch_add(1, Ordering::Relaxed);
            let region = register(&b, &channel, start, cookie, policy).expect("region");
            unmap(start);
            if cookie % 4 == 0 {
                channel.deregister_notified().expect("alive");
            }
            drop(region);
        }
    };
    let wrong = std::thread::scope(|scope| {
        for policy in [Policy::Report, Policy::Report, Policy::Deregister] {
            scope.spawn(move || work(policy));
        }
        let mut statuses = (0..CHILDREN).map(|_| {
            let region = standing.pop().expect("one for each");
            in_child(|| {
                let refused = |error: &Error| matches!(error, Error::Memory(WatchError::Forked));
                let mut wrong = 0;
                if !channel
                    .deregister_notified()
                    .is_err_and(|error| refused(&error))
                {
                    wrong |= 1;
                }
                if !register(&b, &channel, own, u64::MAX, Policy::Deregister)
                    .is_err_and(|error| refused(&error))
                {
                    wrong |= 2;
                }
                if !region.deregister().is_err_and(|(_, error)| refused(&error)) {
                    wrong |= 4;
                }
                wrong
            })
        });
        let wrong = statuses.find(|status| *status != 0);
        stop.store(true, Ordering::Relaxed);
        wrong
    });
    assert_eq!(wrong, None);
    unmap(own);
}

/// Its status: what `run` returns, or that of SIGALRM if it does not return.
fn in_child(run: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child calls what is made for forked children, and the allocator, which is sound after a fork; it ends by _exit.
    match unsafe { libc::fork() } {
        0 => {
            // SAFETY: no pointers.
            unsafe { libc::alarm(30) };
            let code = run();
            // SAFETY: ends the child.
            unsafe { libc::_exit(code) }
        }
        child => {
            let mut status = 0;
            // SAFETY: the child of above, a live integer.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            status
        }
    }
}

fn register(
    end: &End,
    channel: &MemoryChannel,
    start: usize,
    cookie: u64,
    policy: Policy,
) -> Result<NotifiedRegion, Error> {
    // SAFETY: no reference to the pages is made.
    unsafe {
        end.pd
            .register_notified(channel, start, LEN, pair::all_rights(), cookie, policy)
    }
}

fn map() -> usize {
    let open = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping wherever the kernel has room.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), LEN, open, flags, -1, 0) };
    assert_ne!(start, libc::MAP_FAILED);
    start.addr()
}

fn unmap(start: usize) {
    // SAFETY: a mapping of `map`, without references to it.
    assert_eq!(unsafe { libc::munmap(start as *mut _, LEN) }, 0);
}

const LEN: usize = 1 << 13;
const CHILDREN: usize = 100;
