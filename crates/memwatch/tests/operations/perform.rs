//! The operations themselves, on memory of any kind.

use std::io;
use std::ops::Range;
use std::process::Command;

use libc::{c_int, c_void};
use oarlock_memwatch::{Mapping, Operation};

use crate::memory::{Memory, READ_WRITE, attach_new_segment, check, map};

/// Linux `include/uapi/asm-generic/mman-common.h`; not in the libc crate yet.
const MADV_GUARD_INSTALL: c_int = 102;

/// What an operation did.
pub(crate) struct Done {
    pub(crate) result: io::Result<()>,
    /// The pages that it concerned.
    pub(crate) pages: Range<usize>,
}

/// Does it. `Err`: not on this machine, and why.
pub(crate) fn perform(operation: Operation, memory: &Memory) -> Result<Done, String> {
    let all = memory.pages;
    let (half, middle) = (0..all / 2, all / 4..all / 2);
    let bytes = |pages: &Range<usize>| pages.len() * memory.page;
    let len = memory.len();
    let (result, pages) = match operation {
        Operation::Unmap => (unmap(memory.at(middle.start), bytes(&middle)), middle),
        Operation::UnmapRaw => {
            // SAFETY: memory of ours, that nobody uses any more.
            let returned = unsafe { libc::syscall(libc::SYS_munmap, memory.base, len) };
            (check(returned).map(drop), 0..all)
        }
        Operation::MapOver => {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
            let mapped = map(
                memory.at(middle.start),
                bytes(&middle),
                READ_WRITE,
                flags,
                -1,
            );
            (mapped.map(drop), middle)
        }
        Operation::Move => {
            let moved = remap(
                memory.at(middle.start),
                bytes(&middle),
                bytes(&middle),
                MOVE,
                memory.far,
            );
            (moved, middle)
        }
        Operation::MoveKeepMapping => {
            let flags = MOVE | libc::MREMAP_DONTUNMAP;
            (remap(memory.base, len, len, flags, memory.far), 0..all)
        }
        Operation::MoveOnto => (move_onto(memory, bytes(&half))?, half),
        Operation::Shrink => (remap(memory.base, len, len / 2, 0, 0), all / 2..all),
        Operation::GrowInPlace => (grow(memory), 0..all),
        Operation::Duplicate => (remap(memory.base, 0, len, MOVE, memory.far), 0..all),
        Operation::BrkShrink => (shrink_heap(memory)?, all / 2..all),
        Operation::DontNeed => (advise(memory, &half, libc::MADV_DONTNEED), half),
        Operation::DontNeedLocked => {
            known("MADV_DONTNEED_LOCKED", |page| {
                advise_at(page, 4096, libc::MADV_DONTNEED_LOCKED)
            })?;
            (advise(memory, &half, libc::MADV_DONTNEED_LOCKED), half)
        }
        Operation::ProcessDontNeed => {
            known("process_madvise of oneself", |page| {
                process_dont_need(page, 4096)
            })?;
            (process_dont_need(memory.base, bytes(&half)), half)
        }
        Operation::Free => (advise(memory, &half, libc::MADV_FREE), half),
        Operation::Remove => (advise(memory, &half, libc::MADV_REMOVE), half),
        Operation::GuardInstall => {
            known("MADV_GUARD_INSTALL", |page| {
                advise_at(page, 4096, MADV_GUARD_INSTALL)
            })?;
            (advise(memory, &half, MADV_GUARD_INSTALL), half)
        }
        Operation::Protect => {
            // SAFETY: memory of ours, that nobody uses.
            let returned =
                unsafe { libc::mprotect(memory.base as *mut c_void, len / 2, libc::PROT_NONE) };
            (check(returned.into()).map(drop), half)
        }
        Operation::Lock => {
            // SAFETY: memory of ours; it is unlocked when it is unmapped.
            let returned = unsafe { libc::mlock(memory.base as *const c_void, memory.page) };
            match check(returned.into()) {
                Err(error) => return Err(format!("memory cannot be locked: {error}")),
                Ok(_) => (Ok(()), 0..1),
            }
        }
        Operation::PageOut => (advise(memory, &half, libc::MADV_PAGEOUT), half),
        Operation::DontFork => (advise(memory, &half, libc::MADV_DONTFORK), half),
        Operation::Truncate => (truncate(memory), all / 2..all),
        Operation::TruncateElsewhere => (in_child(|| truncate(memory)), all / 2..all),
        Operation::PunchHole => (punch(memory), half),
        Operation::PunchHoleElsewhere => (in_child(|| punch(memory)), half),
        Operation::WriteFile => {
            // The same bytes: what is asked is whether the mapping is still the file's.
            let page = vec![1u8; memory.page];
            // SAFETY: the buffer is as long as it says.
            let returned =
                unsafe { libc::pwrite(memory.fd(), page.as_ptr().cast(), page.len(), 0) };
            (check(returned as i64).map(drop), 0..1)
        }
        Operation::ShmDetach => {
            // SAFETY: a segment of ours, that nobody uses any more.
            let returned = unsafe { libc::shmdt(memory.base as *const c_void) };
            (check(returned.into()).map(drop), 0..all)
        }
        Operation::ShmRemap => (attach_new_segment(memory.base, len).map(drop), 0..all),
        Operation::RemapFilePages => {
            // SAFETY: memory of ours, that nobody uses.
            let returned = unsafe {
                libc::syscall(
                    libc::SYS_remap_file_pages,
                    memory.base,
                    memory.page,
                    0,
                    2,
                    0,
                )
            };
            (check(returned).map(drop), 0..1)
        }
        Operation::Fork => (in_child(|| Ok(())), 0..all),
        Operation::ForkUnmap => (in_child(|| unmap(memory.base, len)), 0..all),
        Operation::Spawn => match Command::new("true").status() {
            Ok(status) if status.success() => (Ok(()), 0..all),
            other => return Err(format!("no program `true`: {other:?}")),
        },
        Operation::UnmapSealed => {
            let seal = |start: usize, len: usize| {
                // SAFETY: memory of ours, that may stay until the end of the process.
                check(unsafe { libc::syscall(libc::SYS_mseal, start, len, 0) }).map(drop)
            };
            seal(memory.base, len).map_err(|error| format!("mseal: {error}"))?;
            (unmap(memory.base, len), 0..all)
        }
        other => return Err(format!("no way to do: {other}")),
    };
    Ok(Done { result, pages })
}

const MOVE: c_int = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;

/// Tries an operation that older kernels do not have, on a page of its own.
fn known(what: &str, operation: impl Fn(usize) -> io::Result<()>) -> Result<(), String> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let page = map(0, 4096, READ_WRITE, flags, -1).map_err(|error| error.to_string())?;
    let result = operation(page);
    unmap(page, 4096).map_err(|error| error.to_string())?;
    result.map_err(|error| format!("no {what} on this kernel: {error}"))
}

fn unmap(start: usize, len: usize) -> io::Result<()> {
    // SAFETY: memory of ours, that nobody uses any more.
    check(unsafe { libc::munmap(start as *mut c_void, len) }.into()).map(drop)
}

fn remap(start: usize, len: usize, new_len: usize, flags: c_int, to: usize) -> io::Result<()> {
    // SAFETY: memory and addresses of ours, that nobody uses.
    let moved =
        unsafe { libc::mremap(start as *mut c_void, len, new_len, flags, to as *mut c_void) };
    check(moved as i64).map(drop)
}

fn move_onto(memory: &Memory, len: usize) -> Result<io::Result<()>, String> {
    let huge = match memory.mapping {
        Mapping::HugeTlb => libc::MAP_HUGETLB,
        _ => 0,
    };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | huge;
    let other = map(0, len, READ_WRITE, flags, -1)
        .map_err(|error| format!("no second memory of kind {}: {error}", memory.mapping))?;
    // SAFETY: just mapped.
    unsafe { std::ptr::write_bytes(other as *mut u8, 0xEE, 1) };
    Ok(remap(other, len, len, MOVE, memory.base))
}

fn grow(memory: &Memory) -> io::Result<()> {
    let len = memory.len();
    if memory.mapping != Mapping::Heap {
        unmap(memory.base + len, len)?;
    }
    remap(memory.base, len, len * 3 / 2, 0, 0)?;
    match memory.mapping {
        // The allocator's next brk wants these addresses.
        Mapping::Heap => unmap(memory.base + len, len / 2),
        _ => Ok(()),
    }
}

fn shrink_heap(memory: &Memory) -> Result<io::Result<()>, String> {
    // SAFETY: gives back what this test added, if nobody has added to it.
    unsafe {
        if libc::sbrk(0) as usize != memory.base + memory.len() {
            return Err("another thread grew the heap".into());
        }
        Ok(check(libc::sbrk(-((memory.len() / 2) as isize)) as i64).map(drop))
    }
}

fn advise(memory: &Memory, pages: &Range<usize>, advice: c_int) -> io::Result<()> {
    advise_at(memory.at(pages.start), pages.len() * memory.page, advice)
}

fn advise_at(start: usize, len: usize, advice: c_int) -> io::Result<()> {
    // SAFETY: memory of ours, that nobody uses.
    check(unsafe { libc::madvise(start as *mut c_void, len, advice) }.into()).map(drop)
}

fn process_dont_need(start: usize, len: usize) -> io::Result<()> {
    // SAFETY: memory of ours, that nobody uses; the vector lives through the call.
    unsafe {
        let own = check(libc::syscall(libc::SYS_pidfd_open, libc::getpid(), 0))?;
        let part = libc::iovec {
            iov_base: start as *mut c_void,
            iov_len: len,
        };
        let advice = libc::MADV_DONTNEED;
        let result = check(libc::syscall(
            libc::SYS_process_madvise,
            own,
            &part,
            1,
            advice,
            0,
        ));
        libc::close(own as c_int);
        result.map(drop)
    }
}

fn truncate(memory: &Memory) -> io::Result<()> {
    // SAFETY: passes no memory.
    check(unsafe { libc::ftruncate(memory.fd(), memory.len() as i64 / 2) }.into()).map(drop)
}

fn punch(memory: &Memory) -> io::Result<()> {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: passes no memory.
    check(unsafe { libc::fallocate(memory.fd(), mode, 0, memory.len() as i64 / 2) }.into())
        .map(drop)
}

/// Does something in a child, which then ends. It must be a plain system call.
fn in_child(operation: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    // SAFETY: the child makes system calls only, and ends without running what the parent registered.
    unsafe {
        match check(libc::fork().into())? {
            0 => {
                let errno = operation().err().and_then(|error| error.raw_os_error());
                libc::_exit(errno.unwrap_or(0))
            }
            child => {
                let mut status = 0;
                check(libc::waitpid(child as c_int, &mut status, 0).into())?;
                match status {
                    0 => Ok(()),
                    _ => Err(io::Error::from_raw_os_error(libc::WEXITSTATUS(status))),
                }
            }
        }
    }
}
