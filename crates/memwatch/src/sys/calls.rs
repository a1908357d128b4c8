//! Functions of the C library that change memory without an event, each with the Watchers told before and after.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::event::Kind;
use crate::hooks::{has_watchers, invalidate, invalidate_inode, segment_at};

use super::page_size;

/// The next definition of a function after the one that calls, as the program would have called it; `None` in a static program.
struct Next {
    name: &'static CStr,
    address: AtomicUsize,
}

impl Next {
    const fn new(name: &'static CStr) -> Self {
        Self {
            name,
            address: AtomicUsize::new(UNKNOWN),
        }
    }

    fn address(&self) -> Option<usize> {
        let mut address = self.address.load(Ordering::Relaxed);
        if address == UNKNOWN {
            // SAFETY: a C string; the answer is null if there is none.
            address = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) }.addr();
            self.address.store(address, Ordering::Relaxed);
        }
        (address != 0).then_some(address)
    }
}

/// Not the address of a function.
const UNKNOWN: usize = 1;

/// Calls the next definition of a function, or the system call of that number.
macro_rules! call_next {
    ($name:ident($($arg:ident: $of:ty),*) -> $result:ty, $number:expr) => {{
        static NEXT: Next = Next::new(
            match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!("one zero, at the end"),
            },
        );
        match NEXT.address() {
            // SAFETY: a function of that name, which has this type; the caller vouches for the arguments.
            Some(address) => unsafe {
                let next: unsafe extern "C" fn($($of),*) -> $result =
                    std::mem::transmute(std::ptr::with_exposed_provenance::<c_void>(address));
                next($($arg),*)
            },
            // SAFETY: the function is this system call, with the same arguments (64-bit Linux).
            None => unsafe { libc::syscall($number, $($arg),*) as $result },
        }
    }};
}

/// Tells before and, if it succeeded, after.
fn told(range: Option<Range<usize>>, kind: Kind, operation: impl FnOnce() -> c_int) -> c_int {
    let range = range.filter(|_| has_watchers());
    if let Some(range) = &range {
        invalidate(range.clone(), kind);
    }
    let result = operation();
    if let (0, Some(range)) = (result, range) {
        invalidate(range, kind);
    }
    result
}

fn file_told(
    inode: Option<u64>,
    part: impl FnOnce() -> Option<Range<u64>>,
    operation: impl FnOnce() -> c_int,
) -> c_int {
    let lost = inode.filter(|_| has_watchers()).zip(part());
    if let Some((inode, part)) = &lost {
        invalidate_inode(*inode, part.clone());
    }
    let result = operation();
    if let (0, Some((inode, part))) = (result, lost) {
        invalidate_inode(inode, part);
    }
    result
}

/// shmdt(2).
///
/// # Safety
/// That of shmdt(2): nobody uses the segment at this address any more.
pub unsafe fn shmdt(addr: *const c_void) -> c_int {
    let segment = match has_watchers() {
        true => segment_at(addr.addr()),
        false => None,
    };
    told(
        segment,
        Kind::Unmapped,
        || call_next!(shmdt(addr: *const c_void) -> c_int, libc::SYS_shmdt),
    )
}

/// shmat(2). Only with `SHM_REMAP` is there something to tell.
///
/// # Safety
/// That of shmat(2): with `SHM_REMAP`, nobody uses what is mapped at this address any more.
pub unsafe fn shmat(id: c_int, addr: *const c_void, flags: c_int) -> *mut c_void {
    let mut replaced = None;
    if flags & libc::SHM_REMAP != 0 && has_watchers() {
        // SAFETY: zeros are valid for the structure, which is written to.
        let segment = unsafe {
            let mut about: libc::shmid_ds = std::mem::zeroed();
            (libc::shmctl(id, libc::IPC_STAT, &raw mut about) == 0).then_some(about.shm_segsz)
        };
        replaced = segment.map(|len| {
            let start = addr.addr() / page_size() * page_size();
            start..start.saturating_add(len.next_multiple_of(page_size()))
        });
    }
    let mut attached = std::ptr::null_mut();
    told(replaced, Kind::Unmapped, || {
        attached = call_next!(
            shmat(id: c_int, addr: *const c_void, flags: c_int) -> *mut c_void,
            libc::SYS_shmat
        );
        c_int::from(attached.addr() == usize::MAX)
    });
    attached
}

/// remap_file_pages(2).
///
/// # Safety
/// That of remap_file_pages(2): nobody uses what these pages show any more.
pub unsafe fn remap_file_pages(
    addr: *mut c_void,
    size: usize,
    prot: c_int,
    page: usize,
    flags: c_int,
) -> c_int {
    let range = addr.addr()..addr.addr().saturating_add(size);
    told(Some(range), Kind::Unmapped, || {
        call_next!(
            remap_file_pages(addr: *mut c_void, size: usize, prot: c_int, page: usize, flags: c_int)
                -> c_int,
            libc::SYS_remap_file_pages
        )
    })
}

/// madvise(2). Only `MADV_GUARD_INSTALL` is told, the rest is reported by the kernel or takes nothing away.
///
/// # Safety
/// That of madvise(2).
pub unsafe fn madvise(addr: *mut c_void, len: usize, advice: c_int) -> c_int {
    let guarded = (advice == GUARD_INSTALL).then(|| addr.addr()..addr.addr().saturating_add(len));
    told(
        guarded,
        Kind::Discarded,
        || call_next!(madvise(addr: *mut c_void, len: usize, advice: c_int) -> c_int, libc::SYS_madvise),
    )
}

/// Linux `include/uapi/asm-generic/mman-common.h`.
const GUARD_INSTALL: c_int = 102;

/// Defines a function under its name and under that for files above 2 GiB, which on 64-bit Linux is the same.
macro_rules! both {
    ($(#[$doc:meta])* $name:ident and $large:ident($($arg:ident: $of:ty),*), $number:expr, $inode:expr, $part:expr) => {
        both!($(#[$doc])* $name($($arg: $of),*), $number, $inode, $part);
        both!($(#[$doc])* $large($($arg: $of),*), $number, $inode, $part);
    };
    ($(#[$doc:meta])* $name:ident($($arg:ident: $of:ty),*), $number:expr, $inode:expr, $part:expr) => {
        $(#[$doc])*
        pub unsafe fn $name($($arg: $of),*) -> c_int {
            let about = match has_watchers() {
                true => $inode,
                false => None,
            };
            file_told(
                about.map(|(inode, _)| inode),
                || about.and_then(|(_, size)| $part(size)),
                || call_next!($name($($arg: $of),*) -> c_int, $number),
            )
        }
    };
}

both! {
    /// ftruncate(2): what lies beyond the new end is told.
    ///
    /// # Safety
    /// Passes no memory; mapped pages beyond the end cannot be accessed any more.
    ftruncate and ftruncate64(fd: c_int, len: i64), libc::SYS_ftruncate, about_fd(fd),
    |size| beyond(len, size)
}

both! {
    /// truncate(2): what lies beyond the new end is told.
    ///
    /// # Safety
    /// `path` is a C string; mapped pages beyond the end cannot be accessed any more.
    truncate and truncate64(path: *const c_char, len: i64), libc::SYS_truncate, about_path(path),
    |size| beyond(len, size)
}

both! {
    /// fallocate(2): what becomes a hole or zeros, and what changes its place, is told.
    ///
    /// # Safety
    /// Passes no memory; contents of mapped pages are lost as it says.
    fallocate and fallocate64(fd: c_int, mode: c_int, offset: i64, len: i64), libc::SYS_fallocate,
    about_fd(fd), |_| lost(mode, offset, len)
}

/// Inode and size.
fn about_fd(fd: c_int) -> Option<(u64, u64)> {
    if fd < 0 {
        return None;
    }
    // SAFETY: the program passes it as a descriptor of its own, for a call to come; if it is none, fstat says so.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    let about = rustix::fs::fstat(fd).ok()?;
    Some((about.st_ino, about.st_size as u64))
}

fn about_path(path: *const c_char) -> Option<(u64, u64)> {
    if path.is_null() {
        return None;
    }
    // SAFETY: the caller passes a C string.
    let path = unsafe { CStr::from_ptr(path) };
    let about = rustix::fs::stat(path).ok()?;
    Some((about.st_ino, about.st_size as u64))
}

/// The part of a file that goes when it is truncated; none if it grows.
fn beyond(len: i64, size: u64) -> Option<Range<u64>> {
    let len = u64::try_from(len).ok()?;
    // Pages may be mapped beyond the end, up to which they count.
    (len < size).then_some(len..u64::MAX)
}

/// The part of a file whose contents go or move.
fn lost(mode: c_int, offset: i64, len: i64) -> Option<Range<u64>> {
    let (offset, len) = (u64::try_from(offset).ok()?, u64::try_from(len).ok()?);
    let moves = libc::FALLOC_FL_COLLAPSE_RANGE | libc::FALLOC_FL_INSERT_RANGE;
    let empties = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE;
    if mode & moves != 0 {
        Some(offset..u64::MAX)
    } else if mode & empties != 0 {
        Some(offset..offset.saturating_add(len))
    } else {
        None
    }
}
