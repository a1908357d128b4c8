use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use super::fork::epoch;
use super::*;

#[test]
fn threads_know_themselves_and_the_dead() {
    let (other, mine) = (
        std::thread::spawn(thread_id).join().expect("no panic"),
        thread_id(),
    );
    assert_ne!(other, mine);
    assert!(thread_exists(mine));
    // A thread can be joined a moment before the kernel has taken it off its list.
    while thread_exists(other) {
        std::thread::yield_now();
    }
}

/// In a child, whose first thread ends before the others.
#[test]
fn the_first_thread_may_be_dead_although_its_place_is_taken() {
    // SAFETY: the child starts a thread and ends; what other threads held of the parent's it does not use.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let first = std::process::id();
        let said = thread_exists(first);
        std::thread::spawn(move || {
            while thread_exists(first) {
                std::thread::yield_now();
            }
            // SAFETY: ends the process without running what the parent registered.
            unsafe { libc::_exit(i32::from(!said)) };
        });
        // SAFETY: ends this thread alone, behind the back of the C library; passes no memory.
        unsafe { libc::syscall(libc::SYS_exit, 2) };
    }
    assert!(child > 0);
    let mut status = 0;
    let patience = std::time::Instant::now() + std::time::Duration::from_secs(60);
    // SAFETY: our own child, and a status of ours.
    while unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) } == 0 {
        if std::time::Instant::now() > patience {
            // SAFETY: our own child, not waited for yet.
            unsafe { libc::kill(child, libc::SIGKILL) };
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert_eq!(status, 0);
}

#[test]
fn mapped_means_throughout() {
    let page = page_size();
    let pages = WipedPages::new(4 * page / 8).expect("memory");
    let start = pages.words().as_ptr() as usize;
    assert!(is_mapped(&(start..start + 4 * page)));
    drop(pages);
    assert!(!is_mapped(&(0..page)));
}

#[test]
fn wiped_pages_start_at_zero_and_keep_what_is_stored() {
    let pages = WipedPages::new(3).expect("memory");
    assert_eq!(pages.words().len(), 3);
    assert!(
        pages
            .words()
            .iter()
            .all(|word| word.load(Ordering::Relaxed) == 0)
    );
    pages.words()[2].store(9, Ordering::Relaxed);
    assert_eq!(pages.words()[2].load(Ordering::Relaxed), 9);
}

#[test]
fn features_are_sets() {
    let all = Features::EVENTS | Features::WRITE_PROTECT;
    assert!(all.has(Features::EVENTS) && all.has(Features::NONE));
    assert!(!all.has(Features::WRITE_PROTECT_ASYNC | Features::EVENTS));
}

/// A descriptor that is kept from children is closed there, and nothing else is.
#[test]
fn a_forked_child_does_not_have_what_is_kept() {
    let (kept, other) = rustix::pipe::pipe().expect("descriptors");
    let slot = keep_from_children(kept.as_fd())
        .expect("installed")
        .expect("a slot");
    let before = epoch();
    // SAFETY: the child makes system calls only, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let gone = rustix::io::fcntl_getfd(&kept).is_err();
        let there = rustix::io::fcntl_getfd(&other).is_ok();
        let grown = epoch() == before + 1;
        // SAFETY: ends the child without running what the parent registered.
        unsafe { libc::_exit(i32::from(!(gone && there && grown))) };
    }
    let mut status = 0;
    // SAFETY: waits for our own child; the status is ours.
    unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!(status, 0);
    assert!(rustix::io::fcntl_getfd(&kept).is_ok());
    drop(slot);
}
