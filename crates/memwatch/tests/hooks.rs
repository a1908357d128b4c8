//! A program that has its calls intercepted: what has no event is an event. What is missed is missed as documented.

#[path = "support/mod.rs"]
mod support;

use std::ffi::CString;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Mutex;

use libc::c_void;
use oarlock_memwatch::{Kind, Policy, Region, Watcher, hooks};
use support::*;

oarlock_memwatch::interpose_silent_calls!();

/// One test at a time: what one unmaps, another may be given, and calls tell twice.
static ALONE: Mutex<()> = Mutex::new(());

const LEN: usize = 4 * PAGE;
const MADV_GUARD_INSTALL: libc::c_int = 102;

/// A file of its own, mapped from its second page on.
struct Mapped {
    file: File,
    start: usize,
}

impl Mapped {
    fn of(file: File) -> Self {
        file.set_len((LEN + PAGE) as u64).expect("grown");
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let (null, offset) = (std::ptr::null_mut(), PAGE as i64);
        // SAFETY: a new mapping at an address that the kernel chooses.
        let start =
            unsafe { libc::mmap(null, LEN, prot, libc::MAP_SHARED, file.as_raw_fd(), offset) };
        assert_ne!(start, libc::MAP_FAILED);
        let start = start as usize;
        Self { file, start }
    }

    fn memory() -> Self {
        // SAFETY: a C string; the descriptor is new.
        let fd = unsafe { libc::memfd_create(c"hooked".as_ptr(), libc::MFD_CLOEXEC) };
        assert!(fd >= 0);
        // SAFETY: just made.
        Self::of(unsafe { std::os::fd::FromRawFd::from_raw_fd(fd) })
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        unmap(self.start..self.start + LEN);
    }
}

fn register(watcher: &Watcher, start: usize) -> Region {
    watcher
        .register(start, LEN, start as u64, Policy::Report)
        .expect("registered")
}

/// The one event that there is: what it says of the pages of the region.
fn only_event(watcher: &Watcher, region: &Region) -> (Kind, std::ops::Range<usize>) {
    assert!(!region.is_valid());
    let events = drain(watcher);
    assert_eq!(events.len(), 1, "{events:?}");
    let hint = events[0].hint.clone().expect("known");
    let start = region.range().start;
    (
        events[0].kind,
        (hint.start - start) / PAGE..(hint.end - start) / PAGE,
    )
}

#[test]
fn files_that_become_shorter_or_get_holes() {
    let _alone = ALONE.lock();
    let Some(watcher) = watcher() else { return };
    type Call = fn(&Mapped) -> i32;
    let calls: [(Call, std::ops::Range<usize>); 5] = [
        (
            // SAFETY: passes no memory; nobody uses the pages.
            |m| unsafe { libc::ftruncate(m.file.as_raw_fd(), 3 * PAGE as i64) },
            2..4,
        ),
        (|m| i32::from(m.file.set_len(0).is_err()), 0..4),
        (|m| punch(m, libc::FALLOC_FL_PUNCH_HOLE, 0, 2), 0..1),
        (|m| punch(m, libc::FALLOC_FL_PUNCH_HOLE, 2, 2), 1..3),
        (
            |m| {
                let path = format!("/proc/self/fd/{}", m.file.as_raw_fd());
                let path = CString::new(path).expect("no zero");
                // SAFETY: a C string; nobody uses the pages.
                unsafe { libc::truncate(path.as_ptr(), PAGE as i64) }
            },
            0..4,
        ),
    ];
    for (call, pages) in calls {
        let mapped = Mapped::memory();
        let region = register(&watcher, mapped.start);
        // Nothing is lost, and nothing told.
        mapped.file.set_len((LEN + 2 * PAGE) as u64).expect("grown");
        assert_eq!(punch(&mapped, 0, 0, 5), 0);
        assert!(region.is_valid());
        assert_eq!(call(&mapped), 0);
        assert_eq!(only_event(&watcher, &region), (Kind::Discarded, pages));
        drop(region);
    }
    let (mapped, other) = (Mapped::memory(), Mapped::memory());
    let region = register(&watcher, mapped.start);
    other.file.set_len(0).expect("shorter");
    assert!(region.is_valid(), "another file");
    hooks::invalidate_file(other.file.as_fd(), 0..u64::MAX);
    assert!(region.is_valid(), "another file");
    hooks::invalidate_file(mapped.file.as_fd(), 0..u64::MAX);
    assert_eq!(only_event(&watcher, &region).1, 0..4);
}

fn punch(mapped: &Mapped, mode: i32, page: usize, pages: usize) -> i32 {
    let (offset, len) = ((page * PAGE) as i64, (pages * PAGE) as i64);
    let mode = mode | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: passes no memory; nobody uses the pages.
    unsafe { libc::fallocate(mapped.file.as_raw_fd(), mode, offset, len) }
}

#[test]
fn segments_that_are_detached_or_replace_something() {
    let _alone = ALONE.lock();
    let Some(watcher) = watcher() else { return };
    // SAFETY: a new segment at addresses that the kernel chooses, or that are the test's own and not used.
    unsafe {
        let id = libc::shmget(libc::IPC_PRIVATE, LEN - 100, libc::IPC_CREAT | 0o600);
        if id < 0 {
            return oarlock_sim::not_run("System V", std::io::Error::last_os_error());
        }
        let start = libc::shmat(id, std::ptr::null(), 0);
        assert_ne!(start as usize, usize::MAX);
        let region = register(&watcher, start as usize);
        assert_eq!(libc::shmdt(start), 0);
        assert_eq!(only_event(&watcher, &region), (Kind::Unmapped, 0..4));
        drop(region);

        // The rest goes with the segment.
        let start = libc::shmat(id, std::ptr::null(), 0);
        assert_ne!(start as usize, usize::MAX);
        unmap(start as usize..start as usize + PAGE);
        let rest = watcher
            .register(start as usize + 2 * PAGE, PAGE, 1, Policy::Report)
            .expect("registered");
        assert_eq!(libc::shmdt(start), 0);
        assert_eq!(only_event(&watcher, &rest), (Kind::Unmapped, 0..1));
        drop(rest);

        let pages = Pages::new(6);
        let region = register(&watcher, pages.start + PAGE);
        let at = pages.part(2..3).start as *const c_void;
        assert_eq!(libc::shmat(id, at, 0) as usize, usize::MAX, "taken");
        assert!(region.is_valid());
        let attached = libc::shmat(id, at, libc::SHM_REMAP);
        assert_eq!(attached as usize, at as usize);
        assert_eq!(only_event(&watcher, &region), (Kind::Unmapped, 1..4));
        drop(region);
        assert_eq!(libc::shmdt(attached), 0);
        libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut());
    }
}

#[test]
fn guard_pages_and_pages_of_another_place() {
    let _alone = ALONE.lock();
    let Some(watcher) = watcher() else { return };
    let pages = Pages::new(4);
    let region = register(&watcher, pages.start);
    // SAFETY: pages of the test's own, that it does not use.
    let installed = unsafe {
        let at = pages.part(1..2).start as *mut c_void;
        libc::madvise(at, PAGE, libc::MADV_WILLNEED);
        assert!(region.is_valid());
        libc::madvise(at, PAGE, MADV_GUARD_INSTALL)
    };
    // Told before it is refused, too.
    assert_eq!(only_event(&watcher, &region), (Kind::Discarded, 1..2));
    if installed != 0 {
        oarlock_sim::not_run("guard pages", std::io::Error::last_os_error());
    }
    drop(region);

    let mapped = Mapped::memory();
    let region = register(&watcher, mapped.start);
    // SAFETY: as above.
    let remapped = unsafe { libc::remap_file_pages(mapped.start as *mut c_void, PAGE, 0, 3, 0) };
    assert_eq!(remapped, 0);
    assert_eq!(only_event(&watcher, &region), (Kind::Unmapped, 0..1));
}

/// What does not go through these functions is found by asking only.
#[test]
fn a_raw_system_call_is_missed_and_then_found() {
    let _alone = ALONE.lock();
    let Some(watcher) = watcher() else { return };
    // SAFETY: as above.
    unsafe {
        let id = libc::shmget(libc::IPC_PRIVATE, LEN, libc::IPC_CREAT | 0o600);
        if id < 0 {
            return oarlock_sim::not_run("System V", std::io::Error::last_os_error());
        }
        let start = libc::shmat(id, std::ptr::null(), 0);
        libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut());
        let region = register(&watcher, start as usize);
        assert_eq!(libc::syscall(libc::SYS_shmdt, start), 0);
        watcher.settle().expect("settled");
        assert!(region.is_valid());
        assert_eq!(region.validate().expect("asked").unwatched, LEN);
        assert_eq!(only_event(&watcher, &region), (Kind::Unmapped, 0..4));
    }
}

/// Every Watcher is told; a child that has none of its own tells nobody, and waits for nobody.
#[test]
fn all_watchers_of_the_process_and_of_no_other() {
    let _alone = ALONE.lock();
    watchdog(60);
    let (Some(one), Some(other)) = (watcher(), watcher()) else {
        return;
    };
    let (mapped, beside) = (Mapped::memory(), Pages::new(4));
    let region = register(&one, mapped.start);
    let of_the_other = other
        .register(beside.start, LEN, 1, Policy::Report)
        .expect("registered");
    in_child(|| {
        hooks::invalidate(0..usize::MAX, Kind::Unmapped);
        mapped.file.set_len(0).is_ok()
    });
    assert!(region.is_valid() && of_the_other.is_valid());
    hooks::invalidate(0..usize::MAX, Kind::Unmapped);
    assert!(!region.is_valid() && !of_the_other.is_valid());
}
