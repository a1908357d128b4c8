//! Hooks for what userfaultfd has no event for, for programs that ask for them.
//!
//! Nothing here does anything by itself. A program either calls [`invalidate`] and [`invalidate_file`] before it detaches, truncates or
//! guards memory; or has the calls of the C library that do so intercepted, with one line in its main crate:
//!
//! ```no_run
//! oarlock_memwatch::interpose_silent_calls!();
//! ```
//!
//! That defines `shmdt`, `shmat`, `remap_file_pages`, `madvise`, `ftruncate`, `truncate` and `fallocate` (and their `64` names) in the
//! program, each of which tells every Watcher of the process, calls the next definition of its name, and tells them again: for regions
//! that were registered meanwhile. Without a Watcher they only call on. An object for LD_PRELOAD can do the same with the functions here,
//! in a process whose Watchers are of the same copy of this crate.
//!
//! # What it misses
//! - calls from inside the C library, raw system calls, io_uring, and, unless the program exports its symbols, calls from shared objects;
//! - what other processes do to a file or segment;
//! - `open` with `O_TRUNC`, `process_madvise`, and files of overlay file systems whose inode number in /proc/self/maps is another one;
//! - memory that this process cannot look up, where /proc is not mounted.
//!
//! [`Watcher::validate`](crate::Watcher::validate) finds what was missed.

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::event::Kind;
use crate::maps::{self, Mapping};
use crate::shared::Shared;
use crate::sys::PerProcess;
pub use crate::sys::calls::{
    fallocate, fallocate64, ftruncate, ftruncate64, madvise, remap_file_pages, shmat, shmdt,
    truncate, truncate64,
};

/// Tells every Watcher of this process what [`Watcher::invalidate`](crate::Watcher::invalidate) tells one.
///
/// Never fails: a Watcher that cannot be told has no valid region.
///
/// # Blocking
/// As [`Watcher::invalidate`](crate::Watcher::invalidate).
///
/// # Examples
/// ```
/// # use oarlock_memwatch::{hooks, Kind, Policy, Watcher};
/// # let Ok(watcher) = Watcher::new() else { return };
/// # let segment = vec![1u8; 8192];
/// # let segment = segment.as_ptr() as usize..segment.as_ptr() as usize + 8192;
/// let region = watcher.register(segment.start, segment.len(), 7, Policy::Report).unwrap();
/// hooks::invalidate(segment, Kind::Unmapped);
/// assert!(!region.is_valid());
/// ```
pub fn invalidate(range: Range<usize>, kind: Kind) {
    for watcher in watchers() {
        watcher.invalidate_anyhow(range.clone(), kind);
    }
}

/// The same for every place where this process has mapped the bytes `part` of a file, shared or private.
///
/// # Blocking
/// As [`invalidate`], after it has read the list of mappings.
pub fn invalidate_file(file: BorrowedFd<'_>, part: Range<u64>) {
    if let Ok(about) = rustix::fs::fstat(file)
        && has_watchers()
    {
        invalidate_inode(about.st_ino, part);
    }
}

pub(crate) fn invalidate_inode(inode: u64, part: Range<u64>) {
    for mapping in maps::mappings() {
        if mapping.inode == inode
            && let Some(range) = bytes_of(&mapping, &part)
        {
            invalidate(range, Kind::Discarded);
        }
    }
}

/// Where a mapping has a part of its file.
fn bytes_of(mapping: &Mapping, part: &Range<u64>) -> Option<Range<usize>> {
    let len = mapping.range.len() as u64;
    let from = part.start.saturating_sub(mapping.offset).min(len);
    let to = part.end.saturating_sub(mapping.offset).min(len);
    let start = mapping.range.start;
    (from < to).then(|| start + from as usize..start + to as usize)
}

/// The addresses of the System V segment that is attached at an address.
pub(crate) fn segment_at(start: usize) -> Option<Range<usize>> {
    let mut mappings = maps::mappings().into_iter();
    let first = mappings.find(|mapping| mapping.range.start == start && mapping.offset == 0)?;
    let rest = mappings.take_while(|next| {
        // Parts that were unmapped are left out.
        let offset = (next.range.start - start) as u64;
        next.inode == first.inode && next.offset == offset
    });
    Some(start..rest.last().map_or(first.range.end, |last| last.range.end))
}

/// The Watchers of this process.
static WATCHERS: PerProcess<Mutex<Vec<Weak<Shared>>>> = PerProcess::new();

/// A Watcher has begun.
pub(crate) fn enter(watcher: &Arc<Shared>) {
    let watchers = WATCHERS.get_or_make(|| Mutex::new(Vec::new()));
    let mut watchers = watchers.lock().unwrap_or_else(PoisonError::into_inner);
    watchers.push(Arc::downgrade(watcher));
}

/// It has ended.
pub(crate) fn leave(watcher: &Arc<Shared>) {
    if let Some(watchers) = WATCHERS.get() {
        let mut watchers = watchers.lock().unwrap_or_else(PoisonError::into_inner);
        watchers.retain(|other| other.as_ptr() != Arc::as_ptr(watcher));
    }
}

pub(crate) fn has_watchers() -> bool {
    WATCHERS.get().is_some_and(|watchers| {
        let watchers = watchers.lock().unwrap_or_else(PoisonError::into_inner);
        !watchers.is_empty()
    })
}

fn watchers() -> Vec<Arc<Shared>> {
    WATCHERS.get().map_or_else(Vec::new, |watchers| {
        let watchers = watchers.lock().unwrap_or_else(PoisonError::into_inner);
        watchers.iter().filter_map(Weak::upgrade).collect()
    })
}

/// Defines the functions of the C library that change memory without an event, so that every Watcher of the process is told; see
/// [`hooks`](crate::hooks). For the main crate of a program, once, at its top level.
#[macro_export]
macro_rules! interpose_silent_calls {
    () => {
        const _: () = {
            use ::std::ffi::{c_char, c_int, c_void};

            $crate::interpose_silent_calls! {
                fn shmdt(addr: *const c_void) -> c_int;
                fn shmat(id: c_int, addr: *const c_void, flags: c_int) -> *mut c_void;
                fn remap_file_pages(
                    addr: *mut c_void, size: usize, prot: c_int, page: usize, flags: c_int
                ) -> c_int;
                fn madvise(addr: *mut c_void, len: usize, advice: c_int) -> c_int;
                fn ftruncate(fd: c_int, len: i64) -> c_int;
                fn ftruncate64(fd: c_int, len: i64) -> c_int;
                fn truncate(path: *const c_char, len: i64) -> c_int;
                fn truncate64(path: *const c_char, len: i64) -> c_int;
                fn fallocate(fd: c_int, mode: c_int, offset: i64, len: i64) -> c_int;
                fn fallocate64(fd: c_int, mode: c_int, offset: i64, len: i64) -> c_int;
            }
        };
    };
    ($(fn $name:ident($($arg:ident: $of:ty),*) -> $result:ty;)*) => {
        $(
            // SAFETY: takes the place of the C library's function of this name, of this type and behaviour.
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name($($arg: $of),*) -> $result {
                // SAFETY: the caller's obligations are those of the same function.
                unsafe { $crate::hooks::$name($($arg),*) }
            }
        )*
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_files_are_found_in_mappings() {
        let mapping = Mapping {
            range: 0x10_000..0x14_000,
            offset: 0x2000,
            inode: 1,
        };
        let at = |part: Range<u64>| bytes_of(&mapping, &part);
        assert_eq!(at(0..0x2000), None);
        assert_eq!(at(0..0x2001), Some(0x10_000..0x10_001));
        assert_eq!(at(0x3000..0x3800), Some(0x11_000..0x11_800));
        assert_eq!(at(0x5fff..u64::MAX), Some(0x13_fff..0x14_000));
        assert_eq!(at(0x6000..u64::MAX), None);
    }
}
