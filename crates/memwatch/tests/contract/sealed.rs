//! Memory of our own that cannot go: every way that takes memory away is refused, and the contents stay.

use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};

use libc::c_void;
use oarlock_memwatch::{Error, Policy, SealedMemory};

use crate::support::*;

/// `None` was said on standard error.
fn sealed(len: usize) -> Option<SealedMemory> {
    match SealedMemory::new(len) {
        Ok(memory) => Some(memory),
        Err(error @ Error::CannotSeal { .. }) => {
            oarlock_sim::not_run("mseal", error);
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// What a call says, and whether it has to be refused.
type Try = (&'static str, fn(Range<usize>, i32) -> bool);

// SAFETY (of each): addresses of the test's own memory, which stays, or whose contents nobody needs.
const WAYS: [Try; 11] = [
    ("munmap", |at, _| {
        // SAFETY: as above.
        unsafe { libc::munmap(at.start as *mut c_void, at.len()) == 0 }
    }),
    ("munmap of a part", |at, _| {
        // SAFETY: as above.
        unsafe { libc::munmap((at.start + PAGE) as *mut c_void, PAGE) == 0 }
    }),
    ("mmap over it", |at, _| {
        let (prot, flags) = (libc::PROT_READ, libc::MAP_FIXED | libc::MAP_ANONYMOUS);
        let flags = flags | libc::MAP_PRIVATE;
        // SAFETY: as above.
        unsafe { libc::mmap(at.start as *mut c_void, PAGE, prot, flags, -1, 0) != libc::MAP_FAILED }
    }),
    ("mremap", |at, _| {
        let flags = libc::MREMAP_MAYMOVE;
        // SAFETY: as above.
        unsafe {
            libc::mremap(at.start as *mut c_void, at.len(), 2 * at.len(), flags) != libc::MAP_FAILED
        }
    }),
    ("mremap of another onto it", |at, _| {
        let other = Pages::new(1);
        let (from, to) = (other.start as *mut c_void, at.start as *mut c_void);
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // SAFETY: as above.
        unsafe { libc::mremap(from, PAGE, PAGE, flags, to) != libc::MAP_FAILED }
    }),
    ("mprotect", |at, _| {
        // SAFETY: as above.
        unsafe { libc::mprotect(at.start as *mut c_void, at.len(), libc::PROT_NONE) == 0 }
    }),
    ("remap_file_pages", |at, _| {
        // SAFETY: as above.
        unsafe { libc::syscall(libc::SYS_remap_file_pages, at.start, PAGE, 0, 1, 0) == 0 }
    }),
    ("MADV_REMOVE", |at, _| {
        // SAFETY: as above.
        unsafe { libc::madvise(at.start as *mut c_void, at.len(), libc::MADV_REMOVE) == 0 }
    }),
    ("ftruncate to less", |_, fd| {
        // SAFETY: passes no memory.
        unsafe { libc::ftruncate(fd, 0) == 0 }
    }),
    ("ftruncate to more", |at, fd| {
        // SAFETY: passes no memory.
        unsafe { libc::ftruncate(fd, 2 * at.len() as i64) == 0 }
    }),
    ("a hole", |at, fd| {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: passes no memory.
        unsafe { libc::fallocate(fd, mode, 0, at.len() as i64) == 0 }
    }),
];

#[test]
fn nothing_takes_sealed_memory_away() {
    let Some(memory) = sealed(3 * PAGE - 1) else {
        return;
    };
    let (range, start) = (memory.range(), memory.as_ptr());
    assert_eq!(
        (range.start, range.len()),
        (start.as_ptr() as usize, 3 * PAGE)
    );
    // SAFETY: all of it is ours, and stays.
    let bytes = unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), range.len()) };
    assert!(bytes.iter().all(|byte| *byte == 0));
    bytes.fill(0xA5);
    for (way, attempt) in WAYS {
        assert!(!attempt(range.clone(), memory.as_fd().as_raw_fd()), "{way}");
        assert!(bytes.iter().all(|byte| *byte == 0xA5), "after {way}");
    }
    in_child(|| {
        // SAFETY: nothing is passed; asks whether these pages are mapped.
        unsafe { libc::msync(range.start as *mut c_void, PAGE, libc::MS_ASYNC) != 0 }
    });
    drop(memory);
    assert!(bytes.iter().all(|byte| *byte == 0xA5), "it stays");
}

#[test]
fn a_region_of_sealed_memory_stays_valid_and_whole() {
    let Some(watcher) = watcher() else { return };
    let Some(memory) = sealed(4 * PAGE) else {
        return;
    };
    let range = memory.range();
    let region = watcher
        .register(range.start, range.len(), 1, Policy::Report)
        .expect("registered");
    for (way, attempt) in WAYS {
        // The kernel reports what it then refuses.
        if way != "MADV_REMOVE" {
            attempt(range.clone(), memory.as_fd().as_raw_fd());
            watcher.settle().expect("settled");
            assert!(region.is_valid(), "{way}");
        }
    }
    let found = region.validate().expect("asked");
    assert_eq!((found.present, found.is_intact()), (range.len(), true));
    // SAFETY: all of it is ours, and stays.
    let first = unsafe {
        *memory.as_ptr().as_ptr() = 7;
        discard(range.clone());
        memory.as_ptr().as_ptr().read_volatile()
    };
    assert_eq!(first, 7, "the contents are the file's");
    assert_eq!(cookies(&watcher), [1], "reported all the same");
}

#[test]
fn no_memory_and_more_than_addresses_are_refused() {
    for len in [0, usize::MAX, isize::MAX as usize + 1] {
        let result = SealedMemory::new(len);
        assert!(matches!(result, Err(Error::BadRange { .. })), "{result:?}");
    }
}

/// The memory file cannot be made here, so whoever tries before looking fails in another way, and allocates nothing.
#[test]
fn more_than_is_available_is_refused_before_anything_is_allocated() {
    let Some(_) = sealed(PAGE) else { return };
    std::thread::spawn(|| {
        if let Err(error) = refuse_system_call(libc::SYS_memfd_create, libc::EDOM) {
            return oarlock_sim::not_run("seccomp", error);
        }
        // SAFETY: zeros are valid for the structure, which the call writes.
        let all = unsafe {
            let mut about: libc::sysinfo = std::mem::zeroed();
            assert_eq!(libc::sysinfo(&raw mut about), 0);
            about.totalram as usize * about.mem_unit as usize
        };
        for (len, errno) in [
            (all, libc::ENOMEM),
            (1 << 46, libc::ENOMEM),
            (1 << 62, libc::ENOMEM),
            (PAGE, libc::EDOM),
        ] {
            match SealedMemory::new(len) {
                Err(Error::System { source, .. }) => {
                    assert_eq!(source.raw_os_error(), Some(errno), "{len} bytes");
                }
                other => panic!("{len} bytes: {other:?}"),
            }
        }
    })
    .join()
    .expect("no panic");
}

/// As on an older kernel: the sandbox answers ENOSYS. That is said before a memory file is made.
#[test]
fn a_kernel_that_does_not_seal_is_named() {
    std::thread::spawn(|| {
        for (call, errno) in [
            (libc::SYS_memfd_create, libc::EDOM),
            (libc::SYS_mseal, libc::ENOSYS),
        ] {
            if let Err(error) = refuse_system_call(call, errno) {
                return oarlock_sim::not_run("seccomp", error);
            }
        }
        let result = SealedMemory::new(PAGE);
        assert!(
            matches!(
                result,
                Err(Error::CannotSeal {
                    errno: libc::ENOSYS
                })
            ),
            "{result:?}"
        );
    })
    .join()
    .expect("no panic");
}
