//! Forked children: not watched, not trusted, and no reason to wait.

use oarlock_memwatch::{Error, Policy, Watcher};

use crate::support::*;

/// The child: nothing is valid, calls say why, its own changes wait for nobody. The parent: as if nothing had happened.
#[test]
fn a_child_is_told_and_the_parent_goes_on() {
    watchdog(60);
    let Some(watcher) = watcher() else { return };
    let pages = Pages::new(4);
    let region = watcher
        .register(pages.start, pages.len, 1, Policy::Report)
        .expect("registered");
    in_child(|| {
        watchdog(60);
        let refused = matches!(watcher.settle(), Err(Error::Forked))
            && matches!(watcher.deregister(1), Err(Error::Forked))
            && matches!(
                watcher.register(pages.start, PAGE, 2, Policy::Report),
                Err(Error::Forked)
            );
        pages.discard(0..1);
        pages.unmap_part(1..2);
        refused && !region.is_valid()
    });
    assert!(
        region.is_valid(),
        "the child's changes are not the parent's"
    );
    pages.unmap_part(2..3);
    assert_eq!(cookies(&watcher), [1]);
}

/// A child may watch for itself, and may drop what it inherited.
#[test]
fn a_child_may_have_a_watcher_of_its_own() {
    watchdog(120);
    let Some(watcher) = watcher() else { return };
    let pages = Pages::new(4);
    let region = watcher
        .register(pages.start, pages.len, 1, Policy::Report)
        .expect("registered");
    let inherited = std::sync::Mutex::new(Some((watcher, region)));
    let watch = || {
        watchdog(10);
        let own = Watcher::new().expect("as in the parent");
        let region = own
            .register(pages.start, PAGE, 5, Policy::Report)
            .expect("registered");
        drop(inherited.lock().expect("no panic").take());
        pages.discard(0..2);
        let told = cookies(&own);
        told == [5] && !region.is_valid()
    };
    // A child cannot start a thread if one of the parent's was just starting, as the test harness starts them.
    let status = (0..5)
        .map(|_| status_of_child(watch))
        .find(|status| *status != libc::SIGALRM);
    assert_eq!(status, Some(0), "the child says no");
    let (watcher, region) = inherited
        .into_inner()
        .expect("no panic")
        .expect("the child has a copy");
    assert!(region.is_valid());
    pages.discard(0..2);
    assert_eq!(cookies(&watcher), [1]);
}

/// clone(2) behind the C library's back: the child keeps a copy of the descriptor, takes nothing, and holds nobody up.
#[test]
fn a_child_with_the_descriptor_keeps_nobody_waiting() {
    watchdog(60);
    let Some(watcher) = watcher() else { return };
    let pages = Pages::new(4);
    let region = watcher
        .register(pages.start, pages.len, 1, Policy::Report)
        .expect("registered");
    let validity = region.validity();
    // SAFETY: as fork, without the C library; the child makes system calls only.
    let child = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) } as libc::pid_t;
    if child == 0 {
        // SAFETY: waits for the signal that ends it; ends if that does not come.
        unsafe {
            if !validity.is_valid() {
                libc::sleep(120);
            }
            libc::_exit(1)
        }
    }
    assert!(child > 0);
    pages.unmap_part(0..1);
    assert_eq!(cookies(&watcher), [1]);
    assert!(!validity.is_valid());
    drop(watcher);
    // Nobody reads any more, and the child's copy keeps the userfaultfd open: nothing may be watched now.
    pages.unmap_part(1..4);
    // SAFETY: our own child.
    unsafe { libc::kill(child, libc::SIGKILL) };
    let status = wait_for(child);
    assert!(
        libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGKILL,
        "it ended by itself: {status:#x}"
    );
}

/// Forks as fast as possible while other threads register and unmap: no child takes an event, no parent waits.
#[test]
fn a_storm_of_forks() {
    watchdog(60);
    let Some(watcher) = watcher() else { return };
    std::thread::scope(|scope| {
        for number in 0..2u64 {
            let watcher = &watcher;
            scope.spawn(move || {
                for round in 0..300 {
                    let pages = Pages::new(2);
                    let region = watcher
                        .register(pages.start, pages.len, number << 32 | round, Policy::Report)
                        .expect("registered");
                    pages.unmap();
                    watcher.settle().expect("settled");
                    assert!(!region.is_valid());
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..100 {
                // SAFETY: the child ends at once.
                let child = unsafe { libc::fork() };
                if child == 0 {
                    // SAFETY: see above.
                    unsafe { libc::_exit(0) };
                }
                assert_eq!(wait_for(child), 0);
            }
        });
    });
}
