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
//! # What it costs
//! Unlike those of the C library, these `ftruncate`, `truncate` and `madvise` are not for signal handlers while a Watcher exists: they
//! take locks. Of a file or segment, the list of mappings is read, twice.
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
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::event::Kind;
use crate::maps::{self, Mapping};
use crate::shared::Shared;
pub use crate::sys::calls::{
    fallocate, fallocate64, ftruncate, ftruncate64, madvise, remap_file_pages, shmat, shmdt,
    truncate, truncate64,
};
use crate::sys::{PerProcess, Slot};

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

/// The addresses of the System V segment that was attached at an address, or of what is left of it: what shmdt detaches.
pub(crate) fn segment_at(start: usize) -> Option<Range<usize>> {
    attached_at(start, maps::mappings())
}

fn attached_at(start: usize, mappings: Vec<Mapping>) -> Option<Range<usize>> {
    let mut parts = mappings.into_iter().filter(|part| {
        let from = part.range.start.checked_sub(start);
        part.is_segment && from.is_some_and(|from| from as u64 == part.offset)
    });
    let first = parts.next()?;
    let last = parts.rfind(|part| part.inode == first.inode);
    Some(first.range.start..last.map_or(first.range.end, |last| last.range.end))
}

/// The Watchers of this process. Nothing is allocated or freed while it is locked.
static WATCHERS: PerProcess<Mutex<Known>> = PerProcess::new();

type Known = [Option<Weak<Shared>>; Slot::MAX];

fn known() -> Option<MutexGuard<'static, Known>> {
    WATCHERS
        .get()
        .map(|known| known.lock().unwrap_or_else(PoisonError::into_inner))
}

/// A Watcher has begun.
pub(crate) fn enter(watcher: &Arc<Shared>) {
    WATCHERS.get_or_make(|| Mutex::new([const { None }; Slot::MAX]));
    if let Some(mut known) = known()
        && let Some(place) = known.iter_mut().find(|place| place.is_none())
    {
        *place = Some(Arc::downgrade(watcher));
    }
}

/// It has ended, and still exists.
pub(crate) fn leave(watcher: &Arc<Shared>) {
    let is_it = |other: &Weak<Shared>| other.as_ptr() == Arc::as_ptr(watcher);
    if let Some(mut known) = known() {
        for place in known.iter_mut() {
            place.take_if(|other| is_it(other));
        }
    }
}

pub(crate) fn has_watchers() -> bool {
    known().is_some_and(|known| known.iter().any(Option::is_some))
}

fn watchers() -> impl Iterator<Item = Arc<Shared>> {
    let mut found = [const { None }; Slot::MAX];
    if let Some(known) = known() {
        for (place, watcher) in found.iter_mut().zip(known.iter().flatten()) {
            *place = watcher.upgrade();
        }
    }
    found.into_iter().flatten()
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
            is_segment: false,
        };
        let at = |part: Range<u64>| bytes_of(&mapping, &part);
        assert_eq!(at(0..0x2000), None);
        assert_eq!(at(0..0x2001), Some(0x10_000..0x10_001));
        assert_eq!(at(0x3000..0x3800), Some(0x11_000..0x11_800));
        assert_eq!(at(0x5fff..u64::MAX), Some(0x13_fff..0x14_000));
        assert_eq!(at(0x6000..u64::MAX), None);
    }

    #[test]
    fn what_is_left_of_a_segment_is_found() {
        let part = |page: usize, offset: u64, inode, is_segment| Mapping {
            range: page << 12..(page + 1) << 12,
            offset: offset << 12,
            inode,
            is_segment,
        };
        let maps = [
            part(0x10, 0, 7, true),
            part(0x20, 0, 1, true),
            part(0x21, 1, 1, true),
            // Another file, in a gap, whose offset fits by chance.
            part(0x22, 2, 9, false),
            part(0x23, 3, 1, true),
            // Attached once more.
            part(0x30, 0, 1, true),
            part(0x31, 17, 2, true),
        ];
        let at = |page: usize, from| attached_at(page << 12, maps[from..].to_vec());
        assert_eq!(at(0x20, 0), Some(0x20_000..0x24_000));
        assert_eq!(at(0x20, 2), Some(0x21_000..0x24_000));
        assert_eq!(at(0x10, 0), Some(0x10_000..0x11_000));
        assert_eq!(at(0x11, 0), None);
    }
}
