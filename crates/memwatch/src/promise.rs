//! What is promised for each operation on each kind of mapping. The table that proves it is `tests/operations.rs`.

use std::fmt;

use crate::capabilities::Mode;
use crate::event::Kind;

/// A kind of mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Mapping {
    /// Private anonymous memory: allocators, thread stacks.
    Anonymous,
    /// A stack that grows by itself (`MAP_GROWSDOWN`).
    Stack,
    /// The heap of brk(2).
    Heap,
    /// Shared anonymous memory.
    SharedAnonymous,
    /// A memory file, mapped shared.
    MemfdShared,
    /// A memory file, mapped private, its pages written to.
    MemfdPrivate,
    /// A file on a disk, mapped shared.
    FileShared,
    /// A file on a disk, mapped private, its pages written to.
    FilePrivate,
    /// Huge pages of hugetlbfs.
    HugeTlb,
    /// A System V segment.
    SystemV,
}

impl Mapping {
    /// Every kind.
    pub const ALL: [Self; 10] = [
        Self::Anonymous,
        Self::Stack,
        Self::Heap,
        Self::SharedAnonymous,
        Self::MemfdShared,
        Self::MemfdPrivate,
        Self::FileShared,
        Self::FilePrivate,
        Self::HugeTlb,
        Self::SystemV,
    ];

    /// The least mode that can watch it.
    fn watchable_from(self) -> Mode {
        match self {
            Self::Anonymous | Self::Stack | Self::Heap => Mode::Anonymous,
            Self::SharedAnonymous | Self::MemfdShared | Self::MemfdPrivate | Self::HugeTlb => {
                Mode::Shared
            }
            Self::FileShared | Self::FilePrivate | Self::SystemV => Mode::Full,
        }
    }

    /// Whether what one process writes, others see.
    fn is_shared(self) -> bool {
        matches!(
            self,
            Self::SharedAnonymous | Self::MemfdShared | Self::FileShared | Self::SystemV
        )
    }

    /// Whether this process can hold a descriptor of what is mapped.
    fn has_file(self) -> bool {
        matches!(
            self,
            Self::MemfdShared | Self::MemfdPrivate | Self::FileShared | Self::FilePrivate
        )
    }

    /// Private memory with no file behind it.
    fn is_private_anonymous(self) -> bool {
        matches!(self, Self::Anonymous | Self::Stack | Self::Heap)
    }
}

impl fmt::Display for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Anonymous => "anonymous",
            Self::Stack => "stack",
            Self::Heap => "heap (brk)",
            Self::SharedAnonymous => "shared anonymous",
            Self::MemfdShared => "memfd shared",
            Self::MemfdPrivate => "memfd private",
            Self::FileShared => "file shared",
            Self::FilePrivate => "file private",
            Self::HugeTlb => "hugetlb",
            Self::SystemV => "System V",
        })
    }
}

/// Something that a program does to memory, or that happens to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// munmap, of all or part of the region or of more than it.
    Unmap,
    /// munmap by a raw system call; the same for any path that no hook in a library sees.
    UnmapRaw,
    /// mmap with `MAP_FIXED` over it.
    MapOver,
    /// mremap that moves it.
    Move,
    /// mremap with `MREMAP_DONTUNMAP`.
    MoveKeepMapping,
    /// mremap that moves something else to its place.
    MoveOnto,
    /// mremap to a smaller size.
    Shrink,
    /// mremap to a larger size, at its place.
    GrowInPlace,
    /// mremap with old size 0: a second mapping of the same memory.
    Duplicate,
    /// brk to a lower address.
    BrkShrink,
    /// `MADV_DONTNEED`.
    DontNeed,
    /// `MADV_DONTNEED_LOCKED`.
    DontNeedLocked,
    /// process_madvise of this process, with `MADV_DONTNEED`.
    ProcessDontNeed,
    /// `MADV_FREE`.
    Free,
    /// `MADV_REMOVE`: a hole in what is mapped.
    Remove,
    /// `MADV_GUARD_INSTALL` (Linux 6.13).
    GuardInstall,
    /// mprotect to no access.
    Protect,
    /// mlock.
    Lock,
    /// `MADV_PAGEOUT`.
    PageOut,
    /// `MADV_DONTFORK`.
    DontFork,
    /// ftruncate of the file to less, by this process.
    Truncate,
    /// The same by another process.
    TruncateElsewhere,
    /// fallocate with `FALLOC_FL_PUNCH_HOLE` in the file, by this process.
    PunchHole,
    /// The same by another process.
    PunchHoleElsewhere,
    /// pwrite to the file.
    WriteFile,
    /// shmdt.
    ShmDetach,
    /// shmat with `SHM_REMAP` over it.
    ShmRemap,
    /// remap_file_pages.
    RemapFilePages,
    /// fork, and the child exits.
    Fork,
    /// fork, and the child unmaps it and exits.
    ForkUnmap,
    /// posix_spawn or vfork, and exec.
    Spawn,
    /// munmap after mseal (Linux 6.10).
    UnmapSealed,
}

impl Operation {
    /// Every operation.
    pub const ALL: [Self; 32] = [
        Self::Unmap,
        Self::UnmapRaw,
        Self::MapOver,
        Self::Move,
        Self::MoveKeepMapping,
        Self::MoveOnto,
        Self::Shrink,
        Self::GrowInPlace,
        Self::Duplicate,
        Self::BrkShrink,
        Self::DontNeed,
        Self::DontNeedLocked,
        Self::ProcessDontNeed,
        Self::Free,
        Self::Remove,
        Self::GuardInstall,
        Self::Protect,
        Self::Lock,
        Self::PageOut,
        Self::DontFork,
        Self::Truncate,
        Self::TruncateElsewhere,
        Self::PunchHole,
        Self::PunchHoleElsewhere,
        Self::WriteFile,
        Self::ShmDetach,
        Self::ShmRemap,
        Self::RemapFilePages,
        Self::Fork,
        Self::ForkUnmap,
        Self::Spawn,
        Self::UnmapSealed,
    ];
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Unmap => "munmap",
            Self::UnmapRaw => "munmap, raw system call",
            Self::MapOver => "mmap MAP_FIXED over it",
            Self::Move => "mremap, moved",
            Self::MoveKeepMapping => "mremap DONTUNMAP",
            Self::MoveOnto => "mremap of another onto it",
            Self::Shrink => "mremap, smaller",
            Self::GrowInPlace => "mremap, larger in place",
            Self::Duplicate => "mremap, old size 0",
            Self::BrkShrink => "brk, lower",
            Self::DontNeed => "MADV_DONTNEED",
            Self::DontNeedLocked => "MADV_DONTNEED_LOCKED",
            Self::ProcessDontNeed => "process_madvise DONTNEED",
            Self::Free => "MADV_FREE",
            Self::Remove => "MADV_REMOVE",
            Self::GuardInstall => "MADV_GUARD_INSTALL",
            Self::Protect => "mprotect PROT_NONE",
            Self::Lock => "mlock",
            Self::PageOut => "MADV_PAGEOUT",
            Self::DontFork => "MADV_DONTFORK",
            Self::Truncate => "ftruncate",
            Self::TruncateElsewhere => "ftruncate, other process",
            Self::PunchHole => "hole punched",
            Self::PunchHoleElsewhere => "hole punched, other process",
            Self::WriteFile => "pwrite to the file",
            Self::ShmDetach => "shmdt",
            Self::ShmRemap => "shmat SHM_REMAP over it",
            Self::RemapFilePages => "remap_file_pages",
            Self::Fork => "fork, child exits",
            Self::ForkUnmap => "fork, child unmaps",
            Self::Spawn => "posix_spawn",
            Self::UnmapSealed => "munmap after mseal",
        })
    }
}

/// What becomes of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Promise {
    /// An event of this kind.
    Reported(Kind),
    /// **The memory changes, and no event comes.** Code that does this to registered memory has to deregister it itself.
    Silent,
    /// The memory is what it was; no event.
    Unchanged,
    /// The kernel refuses the operation; no event.
    Refused,
    /// The kernel refuses the operation, and there is an event of this kind all the same.
    Spurious(Kind),
    /// The mapping cannot be watched in this mode: registering says so.
    NotWatchable,
    /// There is no such operation on this kind of mapping.
    NotApplicable,
}

impl fmt::Display for Promise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reported(kind) => write!(f, "{}", name(*kind)),
            Self::Silent => f.write_str("**silent**"),
            Self::Unchanged => f.write_str("unchanged"),
            Self::Refused => f.write_str("refused"),
            Self::Spurious(kind) => write!(f, "refused, {}", name(*kind)),
            Self::NotWatchable => f.write_str("not watchable"),
            Self::NotApplicable => f.write_str("-"),
        }
    }
}

fn name(kind: Kind) -> &'static str {
    match kind {
        Kind::Discarded => "discarded",
        Kind::Unmapped => "unmapped",
        Kind::Moved => "moved",
        Kind::Unknown => "unknown",
    }
}

pub(crate) fn promise(mode: Mode, operation: Operation, mapping: Mapping) -> Promise {
    use Operation as Op;
    if !applies(operation, mapping) {
        return Promise::NotApplicable;
    }
    if mode < mapping.watchable_from() {
        return Promise::NotWatchable;
    }
    let huge = mapping == Mapping::HugeTlb;
    match operation {
        Op::Unmap | Op::UnmapRaw | Op::MapOver | Op::MoveOnto | Op::Shrink | Op::BrkShrink => {
            Promise::Reported(Kind::Unmapped)
        }
        Op::MoveKeepMapping | Op::GrowInPlace | Op::GuardInstall | Op::PageOut if huge => {
            Promise::Refused
        }
        Op::Move | Op::MoveKeepMapping => Promise::Reported(Kind::Moved),
        Op::DontNeed | Op::DontNeedLocked | Op::ProcessDontNeed => {
            Promise::Reported(Kind::Discarded)
        }
        Op::Free if mapping.is_private_anonymous() => Promise::Reported(Kind::Discarded),
        Op::Free if huge => Promise::Refused,
        Op::Free => Promise::Spurious(Kind::Discarded),
        Op::Remove if mapping.is_shared() => Promise::Reported(Kind::Discarded),
        Op::Remove | Op::UnmapSealed => Promise::Refused,
        // Nothing is taken away from a private mapping whose pages are its own, except beyond the end of the file.
        Op::PunchHole | Op::PunchHoleElsewhere if !mapping.is_shared() => Promise::Unchanged,
        Op::Duplicate | Op::RemapFilePages if !mapping.is_shared() => Promise::Refused,
        Op::GuardInstall
        | Op::Truncate
        | Op::TruncateElsewhere
        | Op::PunchHole
        | Op::PunchHoleElsewhere
        | Op::ShmDetach
        | Op::ShmRemap
        | Op::RemapFilePages => Promise::Silent,
        // The file's new contents are the mapping's, which is still this file: a device sees them, too.
        Op::WriteFile
        | Op::GrowInPlace
        | Op::Duplicate
        | Op::Protect
        | Op::Lock
        | Op::PageOut
        | Op::DontFork
        | Op::Fork
        | Op::ForkUnmap
        | Op::Spawn => Promise::Unchanged,
    }
}

fn applies(operation: Operation, mapping: Mapping) -> bool {
    use Operation as Op;
    match operation {
        Op::BrkShrink => mapping == Mapping::Heap,
        Op::Truncate
        | Op::TruncateElsewhere
        | Op::PunchHole
        | Op::PunchHoleElsewhere
        | Op::WriteFile => mapping.has_file(),
        Op::ShmDetach => mapping == Mapping::SystemV,
        Op::RemapFilePages => mapping.has_file() || mapping == Mapping::SystemV,
        _ => true,
    }
}
