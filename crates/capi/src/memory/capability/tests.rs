use super::*;
use crate::abi;

/// The header numbers operations and mappings as crate `memwatch` lists them: each of these is at its place.
#[test]
fn the_headers_numbers_are_places_in_the_lists() {
    macro_rules! are_places {
        ($list:expr, $($number:ident => $value:expr),* $(,)?) => {{
            let mut count = 0;
            $(assert_eq!($list[abi::$number as usize], $value, stringify!($number)); count += 1;)*
            assert_eq!($list.len(), count, "a number is missing");
        }};
    }
    are_places!(
        Mapping::ALL,
        OARLOCK_MEMORY_MAP_ANONYMOUS => Mapping::Anonymous,
        OARLOCK_MEMORY_MAP_STACK => Mapping::Stack,
        OARLOCK_MEMORY_MAP_HEAP => Mapping::Heap,
        OARLOCK_MEMORY_MAP_SHARED_ANONYMOUS => Mapping::SharedAnonymous,
        OARLOCK_MEMORY_MAP_MEMFD_SHARED => Mapping::MemfdShared,
        OARLOCK_MEMORY_MAP_MEMFD_PRIVATE => Mapping::MemfdPrivate,
        OARLOCK_MEMORY_MAP_FILE_SHARED => Mapping::FileShared,
        OARLOCK_MEMORY_MAP_FILE_PRIVATE => Mapping::FilePrivate,
        OARLOCK_MEMORY_MAP_HUGETLB => Mapping::HugeTlb,
        OARLOCK_MEMORY_MAP_SYSTEM_V => Mapping::SystemV,
    );
    are_places!(
        Operation::ALL,
        OARLOCK_MEMORY_OP_UNMAP => Operation::Unmap,
        OARLOCK_MEMORY_OP_UNMAP_RAW => Operation::UnmapRaw,
        OARLOCK_MEMORY_OP_MAP_OVER => Operation::MapOver,
        OARLOCK_MEMORY_OP_MOVE => Operation::Move,
        OARLOCK_MEMORY_OP_MOVE_KEEP_MAPPING => Operation::MoveKeepMapping,
        OARLOCK_MEMORY_OP_MOVE_ONTO => Operation::MoveOnto,
        OARLOCK_MEMORY_OP_SHRINK => Operation::Shrink,
        OARLOCK_MEMORY_OP_GROW_IN_PLACE => Operation::GrowInPlace,
        OARLOCK_MEMORY_OP_DUPLICATE => Operation::Duplicate,
        OARLOCK_MEMORY_OP_BRK_SHRINK => Operation::BrkShrink,
        OARLOCK_MEMORY_OP_DONTNEED => Operation::DontNeed,
        OARLOCK_MEMORY_OP_DONTNEED_LOCKED => Operation::DontNeedLocked,
        OARLOCK_MEMORY_OP_PROCESS_DONTNEED => Operation::ProcessDontNeed,
        OARLOCK_MEMORY_OP_FREE => Operation::Free,
        OARLOCK_MEMORY_OP_REMOVE => Operation::Remove,
        OARLOCK_MEMORY_OP_GUARD_INSTALL => Operation::GuardInstall,
        OARLOCK_MEMORY_OP_PROTECT => Operation::Protect,
        OARLOCK_MEMORY_OP_LOCK => Operation::Lock,
        OARLOCK_MEMORY_OP_PAGEOUT => Operation::PageOut,
        OARLOCK_MEMORY_OP_DONTFORK => Operation::DontFork,
        OARLOCK_MEMORY_OP_TRUNCATE => Operation::Truncate,
        OARLOCK_MEMORY_OP_TRUNCATE_ELSEWHERE => Operation::TruncateElsewhere,
        OARLOCK_MEMORY_OP_PUNCH_HOLE => Operation::PunchHole,
        OARLOCK_MEMORY_OP_PUNCH_HOLE_ELSEWHERE => Operation::PunchHoleElsewhere,
        OARLOCK_MEMORY_OP_WRITE_FILE => Operation::WriteFile,
        OARLOCK_MEMORY_OP_SHMDT => Operation::ShmDetach,
        OARLOCK_MEMORY_OP_SHM_REMAP => Operation::ShmRemap,
        OARLOCK_MEMORY_OP_REMAP_FILE_PAGES => Operation::RemapFilePages,
        OARLOCK_MEMORY_OP_FORK => Operation::Fork,
        OARLOCK_MEMORY_OP_FORK_UNMAP => Operation::ForkUnmap,
        OARLOCK_MEMORY_OP_SPAWN => Operation::Spawn,
        OARLOCK_MEMORY_OP_UNMAP_SEALED => Operation::UnmapSealed,
    );
}

/// R-MEM-5: what C is told is what crate `memwatch` promises, in every mode, for every pair.
#[test]
fn c_is_told_what_is_promised() {
    for (number, mode) in [(1, Mode::Anonymous), (2, Mode::Shared), (3, Mode::Full)] {
        assert_eq!(mode_number(mode), number);
        for (op, operation) in (0..).zip(Operation::ALL) {
            for (map, mapping) in (0..).zip(Mapping::ALL) {
                let (promised, of_kind) = promise(number, op, map).unwrap();
                let expected = match Capabilities::of(mode).promise(operation, mapping) {
                    Promise::Reported(kind_of) => (0, kind(kind_of)),
                    Promise::Silent => (1, 0),
                    Promise::Unchanged => (2, 0),
                    Promise::Refused => (3, 0),
                    Promise::Spurious(kind_of) => (4, kind(kind_of)),
                    Promise::NotWatchable => (5, 0),
                    Promise::NotApplicable => (6, 0),
                    other => panic!("{other:?} has no number in the header"),
                };
                assert_eq!((promised, of_kind), expected, "{operation} on {mapping}");
            }
        }
    }
    for unknown in [
        promise(0, 0, 0),
        promise(4, 0, 0),
        promise(3, 32, 0),
        promise(3, 0, 10),
    ] {
        assert_eq!(unknown.unwrap_err().errno.0, libc::EINVAL);
    }
}
