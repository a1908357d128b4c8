//! Structures and numbers of `oarlock/memory_events.h`, our extension: they never change after a release.

use std::ffi::c_int;

use super::*;

#[repr(C)]
pub(crate) struct oarlock_memory_channel {
    pub(crate) context: *mut ibv_context,
    pub(crate) fd: c_int,
    pub(crate) generation_fd: c_int,
    pub(crate) generation: *const u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct oarlock_memory_event {
    pub(crate) type_: u32,
    pub(crate) kind: u32,
    pub(crate) flags: u64,
    pub(crate) hint_start: u64,
    pub(crate) hint_end: u64,
    pub(crate) cookie: u64,
    pub(crate) generation: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct oarlock_deregistered {
    pub(crate) cookie: u64,
    pub(crate) events: u64,
    pub(crate) mr: *mut ibv_mr,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct oarlock_memory_capabilities {
    pub(crate) mode: u32,
    pub(crate) flags: u32,
    pub(crate) max_regions: u64,
}

pub(crate) const OARLOCK_MEMORY_REPORT: u32 = 0;
pub(crate) const OARLOCK_MEMORY_DEREGISTER: u32 = 1;
pub(crate) const OARLOCK_MEMORY_INVALIDATED: u32 = 0;
pub(crate) const OARLOCK_MEMORY_LAST: u32 = 1;
pub(crate) const OARLOCK_MEMORY_UNKNOWN: u32 = 0;
pub(crate) const OARLOCK_MEMORY_DISCARDED: u32 = 1;
pub(crate) const OARLOCK_MEMORY_UNMAPPED: u32 = 2;
pub(crate) const OARLOCK_MEMORY_MOVED: u32 = 3;
pub(crate) const OARLOCK_MEMORY_HINT: u64 = 1;
pub(crate) const OARLOCK_MEMORY_MODE_ANONYMOUS: u32 = 1;
pub(crate) const OARLOCK_MEMORY_MODE_SHARED: u32 = 2;
pub(crate) const OARLOCK_MEMORY_MODE_FULL: u32 = 3;
pub(crate) const OARLOCK_MEMORY_STRICT: u32 = 1;
pub(crate) const OARLOCK_MEMORY_OP_UNMAP: u32 = 0;
pub(crate) const OARLOCK_MEMORY_OP_UNMAP_RAW: u32 = 1;
pub(crate) const OARLOCK_MEMORY_OP_MAP_OVER: u32 = 2;
pub(crate) const OARLOCK_MEMORY_OP_MOVE: u32 = 3;
pub(crate) const OARLOCK_MEMORY_OP_MOVE_KEEP_MAPPING: u32 = 4;
pub(crate) const OARLOCK_MEMORY_OP_MOVE_ONTO: u32 = 5;
pub(crate) const OARLOCK_MEMORY_OP_SHRINK: u32 = 6;
pub(crate) const OARLOCK_MEMORY_OP_GROW_IN_PLACE: u32 = 7;
pub(crate) const OARLOCK_MEMORY_OP_DUPLICATE: u32 = 8;
pub(crate) const OARLOCK_MEMORY_OP_BRK_SHRINK: u32 = 9;
pub(crate) const OARLOCK_MEMORY_OP_DONTNEED: u32 = 10;
pub(crate) const OARLOCK_MEMORY_OP_DONTNEED_LOCKED: u32 = 11;
pub(crate) const OARLOCK_MEMORY_OP_PROCESS_DONTNEED: u32 = 12;
pub(crate) const OARLOCK_MEMORY_OP_FREE: u32 = 13;
pub(crate) const OARLOCK_MEMORY_OP_REMOVE: u32 = 14;
pub(crate) const OARLOCK_MEMORY_OP_GUARD_INSTALL: u32 = 15;
pub(crate) const OARLOCK_MEMORY_OP_PROTECT: u32 = 16;
pub(crate) const OARLOCK_MEMORY_OP_LOCK: u32 = 17;
pub(crate) const OARLOCK_MEMORY_OP_PAGEOUT: u32 = 18;
pub(crate) const OARLOCK_MEMORY_OP_DONTFORK: u32 = 19;
pub(crate) const OARLOCK_MEMORY_OP_TRUNCATE: u32 = 20;
pub(crate) const OARLOCK_MEMORY_OP_TRUNCATE_ELSEWHERE: u32 = 21;
pub(crate) const OARLOCK_MEMORY_OP_PUNCH_HOLE: u32 = 22;
pub(crate) const OARLOCK_MEMORY_OP_PUNCH_HOLE_ELSEWHERE: u32 = 23;
pub(crate) const OARLOCK_MEMORY_OP_WRITE_FILE: u32 = 24;
pub(crate) const OARLOCK_MEMORY_OP_SHMDT: u32 = 25;
pub(crate) const OARLOCK_MEMORY_OP_SHM_REMAP: u32 = 26;
pub(crate) const OARLOCK_MEMORY_OP_REMAP_FILE_PAGES: u32 = 27;
pub(crate) const OARLOCK_MEMORY_OP_FORK: u32 = 28;
pub(crate) const OARLOCK_MEMORY_OP_FORK_UNMAP: u32 = 29;
pub(crate) const OARLOCK_MEMORY_OP_SPAWN: u32 = 30;
pub(crate) const OARLOCK_MEMORY_OP_UNMAP_SEALED: u32 = 31;
pub(crate) const OARLOCK_MEMORY_MAP_ANONYMOUS: u32 = 0;
pub(crate) const OARLOCK_MEMORY_MAP_STACK: u32 = 1;
pub(crate) const OARLOCK_MEMORY_MAP_HEAP: u32 = 2;
pub(crate) const OARLOCK_MEMORY_MAP_SHARED_ANONYMOUS: u32 = 3;
pub(crate) const OARLOCK_MEMORY_MAP_MEMFD_SHARED: u32 = 4;
pub(crate) const OARLOCK_MEMORY_MAP_MEMFD_PRIVATE: u32 = 5;
pub(crate) const OARLOCK_MEMORY_MAP_FILE_SHARED: u32 = 6;
pub(crate) const OARLOCK_MEMORY_MAP_FILE_PRIVATE: u32 = 7;
pub(crate) const OARLOCK_MEMORY_MAP_HUGETLB: u32 = 8;
pub(crate) const OARLOCK_MEMORY_MAP_SYSTEM_V: u32 = 9;
pub(crate) const OARLOCK_MEMORY_REPORTED: u32 = 0;
pub(crate) const OARLOCK_MEMORY_SILENT: u32 = 1;
pub(crate) const OARLOCK_MEMORY_UNCHANGED: u32 = 2;
pub(crate) const OARLOCK_MEMORY_REFUSED: u32 = 3;
pub(crate) const OARLOCK_MEMORY_SPURIOUS: u32 = 4;
pub(crate) const OARLOCK_MEMORY_NOT_WATCHABLE: u32 = 5;
pub(crate) const OARLOCK_MEMORY_NOT_APPLICABLE: u32 = 6;
