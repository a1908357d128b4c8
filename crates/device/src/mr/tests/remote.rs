//! What peers may do by the key of a region.

use oarlock_transport::{AtomicOp, RemoteAccess};
use oarlock_wire::RKey;

use super::*;

const ADD: AtomicOp = AtomicOp::FetchAdd { add: 1 };

/// Each operation needs its own right, on every call.
#[test]
fn every_right_is_checked_on_every_packet() {
    let domain = Domain::new();
    let rights = [
        (AccessFlags::REMOTE_WRITE, RemoteAccess::Write),
        (AccessFlags::REMOTE_READ, RemoteAccess::Read),
        (AccessFlags::REMOTE_ATOMIC, RemoteAccess::Atomic),
    ];
    for combination in 0..8 {
        let mut access = LOCAL;
        for (i, (right, _)) in rights.iter().enumerate() {
            access.set(*right, combination & (1 << i) != 0);
        }
        let region = domain.region(16, access);
        let (rkey, addr) = (region.rkey(), region.iova());
        let mut memory = domain.memory();
        for (right, operation) in rights {
            let expected = if access.contains(right) {
                Ok(())
            } else {
                Err(MemoryError::RemoteAccessDenied {
                    rkey,
                    access: operation,
                })
            };
            assert_eq!(memory.check_remote(rkey, addr, 16, operation), expected);
            let done = match operation {
                RemoteAccess::Write => memory.write_remote(rkey, addr, b"x"),
                RemoteAccess::Read => memory.read_remote(rkey, addr, &mut [0]),
                RemoteAccess::Atomic => memory.atomic(rkey, addr, ADD).map(drop),
            };
            assert_eq!(done, expected, "{operation:?} with {access:?}");
        }
        let touched = content(&region)[..8] != [0; 8];
        let writes = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC;
        assert_eq!(touched, access.intersects(writes), "{access:?}");
    }
}

#[test]
fn bounds_are_those_of_the_region_wherever_it_lies() {
    let domain = Domain::new();
    // At the start of the address space, in it, and up to its last byte.
    for iova in [0, 0x7000_0000_1000, u64::MAX - 15] {
        let region = domain.region_at(iova, 16, ALL);
        let rkey = region.rkey();
        let mut memory = domain.memory();
        for (offset, len) in [(0, 16), (15, 1), (7, 2), (0, 1)] {
            let addr = iova + offset;
            assert_eq!(
                memory.check_remote(rkey, addr, len, RemoteAccess::Read),
                Ok(())
            );
            let data = vec![len as u8; len as usize];
            memory.write_remote(rkey, addr, &data).expect("inside");
            let mut back = vec![0; len as usize];
            memory.read_remote(rkey, addr, &mut back).expect("inside");
            assert_eq!(back, data);
        }
        let before = content(&region);
        for (offset, len) in [
            (0, 17),
            (15, 2),
            (16, 1),
            (8, u64::MAX),
            (0, u64::MAX),
            (1, 1 << 32),
        ] {
            let addr = iova.wrapping_add(offset);
            let refused = memory.check_remote(rkey, addr, len, RemoteAccess::Write);
            assert_eq!(refused, Err(MemoryError::OutOfBounds { addr, len }));
        }
        for (addr, len) in [
            (iova.wrapping_sub(1), 2),
            (iova.wrapping_sub(8), 8),
            (u64::MAX, 2),
        ] {
            let refused = memory.write_remote(rkey, addr, &vec![0xee; len as usize]);
            assert_eq!(refused, Err(MemoryError::OutOfBounds { addr, len }));
            let refused = memory.read_remote(rkey, addr, &mut vec![0; len as usize]);
            assert_eq!(refused, Err(MemoryError::OutOfBounds { addr, len }));
        }
        assert_eq!(content(&region), before);
    }
}

#[test]
fn a_key_works_in_its_domain_and_life_only() {
    let domain = Domain::new();
    let region = domain.region(8, ALL);
    let (rkey, addr) = (region.rkey(), region.iova());
    for (pd, key) in [
        (PD + 1, rkey),
        (PD, RKey(rkey.0 ^ 0x80)),
        (PD, RKey(rkey.0 ^ 0x8000_0000)),
        (PD, RKey(0)),
    ] {
        let mut memory = domain.memory_of(pd, QPN);
        let unknown = MemoryError::InvalidRemoteKey(key);
        assert_eq!(memory.write_remote(key, addr, b"x"), Err(unknown));
        assert_eq!(memory.read_remote(key, addr, &mut [0]), Err(unknown));
        assert_eq!(memory.atomic(key, addr, ADD), Err(unknown));
        let asked = memory.check_remote(key, addr, 1, RemoteAccess::Read);
        assert_eq!(asked, Err(unknown));
    }
    // An XRC request is checked against its shared receive queue's domain.
    let mut memory = domain.memory_of(PD + 1, QPN);
    memory.set_remote_domain(PD);
    memory.write_remote(rkey, addr, b"x").expect("its domain");
    let mut memory = domain.memory();
    memory.write_remote(rkey, addr, b"y").expect("its domain");
    region.deregister().expect("no windows");
    assert_eq!(
        memory.write_remote(rkey, addr, b"z"),
        Err(MemoryError::InvalidRemoteKey(rkey))
    );
    assert_eq!(
        memory.invalidate(rkey),
        Err(MemoryError::InvalidRemoteKey(rkey))
    );
}

#[test]
fn a_region_is_not_invalidated_by_a_work_request() {
    let domain = Domain::new();
    let region = domain.region(8, ALL);
    assert_eq!(
        domain.memory().invalidate(region.rkey()),
        Err(MemoryError::NotInvalidatable(region.rkey()))
    );
    domain
        .memory()
        .write_remote(region.rkey(), region.iova(), b"x")
        .expect("as before");
}

#[test]
fn atomics_need_a_word_on_a_multiple_of_8_both_ways() {
    let domain = Domain::new();
    let region = domain.region(32, ALL);
    let mut memory = domain.memory();
    for offset in 0..32 {
        let addr = region.iova() + offset;
        let expected = match offset {
            0 | 8 | 16 | 24 => Ok(0),
            25.. => Err(MemoryError::OutOfBounds { addr, len: 8 }),
            _ => Err(MemoryError::Misaligned { addr }),
        };
        assert_eq!(memory.atomic(region.rkey(), addr, ADD), expected);
        let asked = memory.check_remote(region.rkey(), addr, 8, RemoteAccess::Atomic);
        assert_eq!(asked, expected.map(drop));
    }
    let crooked = domain.region_at(4, 32, ALL);
    let refused = memory.atomic(crooked.rkey(), 8, ADD);
    assert_eq!(refused, Err(MemoryError::Misaligned { addr: 8 }));
    let refused = memory.atomic(crooked.rkey(), 4, ADD);
    assert_eq!(refused, Err(MemoryError::Misaligned { addr: 4 }));
    assert_eq!(content(&crooked), [0; 32]);
}

#[test]
fn atomics_do_what_the_specification_says() {
    let domain = Domain::new();
    let region = domain.region(8, ALL);
    let mut memory = domain.memory();
    let mut run = |op| {
        memory
            .atomic(region.rkey(), region.iova(), op)
            .expect("a word")
    };
    let swap = |compare, swap| AtomicOp::CompareSwap { compare, swap };
    assert_eq!(run(AtomicOp::FetchAdd { add: u64::MAX }), 0);
    assert_eq!(run(AtomicOp::FetchAdd { add: 3 }), u64::MAX);
    assert_eq!(run(swap(7, 8)), 2);
    assert_eq!(run(swap(2, 8)), 2);
    assert_eq!(region.load_u64(0).expect("a word"), 8);
}

/// Adds by several queue pairs: no sum is lost, whichever keys and memory they use.
fn sums_add_up(domain: &Domain, targets: &[&Region]) {
    const THREADS: u64 = 4;
    let rounds = if cfg!(miri) { 10 } else { 500 };
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let region = targets[thread as usize % targets.len()];
            scope.spawn(move || {
                let mut memory = domain.memory_of(PD, Qpn::truncate(thread as u32));
                for _ in 0..rounds {
                    let added = memory.atomic(region.rkey(), region.iova(), ADD);
                    added.expect("a word");
                }
            });
        }
    });
    for region in targets {
        assert_eq!(region.load_u64(0).expect("a word"), THREADS * rounds);
    }
}

#[test]
fn atomics_of_several_queue_pairs_are_atomic() {
    let domain = Domain::new();
    let region = domain.region(8, ALL);
    sums_add_up(&domain, &[&region]);
}

#[test]
#[cfg_attr(miri, ignore = "system calls")]
fn atomics_are_atomic_in_memory_of_the_program_by_whatever_key() {
    let domain = Domain::new();
    let pages = Pages::new(1);
    let first = domain.foreign(&pages, ALL);
    let second = domain.foreign(&pages, ALL);
    sums_add_up(&domain, &[&first, &second]);
    // Memory of the library, registered a second time as if it were the program's.
    let own = domain.region(8, ALL);
    let same = Pages {
        start: own.as_ptr().expect("own"),
        len: 8,
    };
    let again = domain.foreign(&same, ALL);
    std::mem::forget(same);
    sums_add_up(&domain, &[&own, &again]);
}

#[test]
#[cfg_attr(miri, ignore = "system calls")]
fn memory_that_has_vanished_is_an_error_and_nothing_is_changed() {
    use rustix::mm::MprotectFlags;
    let domain = Domain::new();
    let pages = Pages::new(1);
    let region = domain.foreign(&pages, ALL);
    let (rkey, addr) = (region.rkey(), region.iova());
    region.store_u64(0, 5).expect("mapped");
    let mut memory = domain.memory();
    let gone = |len| MemoryError::Unmapped { addr, len };
    pages.protect(MprotectFlags::READ);
    assert_eq!(memory.write_remote(rkey, addr, &[1; 100]), Err(gone(100)));
    assert_eq!(memory.atomic(rkey, addr, ADD), Err(gone(8)));
    let swap = AtomicOp::CompareSwap {
        compare: 6,
        swap: 7,
    };
    // No swap, but no right either.
    assert_eq!(memory.atomic(rkey, addr, swap), Err(gone(8)));
    memory
        .read_remote(rkey, addr, &mut [0; 100])
        .expect("readable");
    assert_eq!(region.load_u64(0).expect("readable"), 5);
    assert!(matches!(
        region.store_u64(0, 1),
        Err(Error::NotMapped { .. })
    ));
    pages.unmap();
    assert_eq!(memory.write_remote(rkey, addr, &[1; 100]), Err(gone(100)));
    assert_eq!(
        memory.read_remote(rkey, addr, &mut [0; 100]),
        Err(gone(100))
    );
    assert_eq!(memory.atomic(rkey, addr, ADD), Err(gone(8)));
    assert!(matches!(region.load_u64(0), Err(Error::NotMapped { .. })));
    assert!(matches!(
        region.copy_in(0, &[1]),
        Err(Error::NotMapped { .. })
    ));
    assert!(matches!(
        region.copy_out(0, &mut [1]),
        Err(Error::NotMapped { .. })
    ));
    assert_eq!(domain.counters.scatter_failed.get(), 5);
    assert_eq!(domain.counters.gather_failed.get(), 1);
}

/// The canaries are the pages around, which a write that is one byte too long would hit.
#[test]
#[cfg_attr(miri, ignore = "system calls")]
fn bytes_of_every_length_are_placed_in_memory_of_the_program() {
    let domain = Domain::new();
    let pages = Pages::new(1);
    let region = domain.foreign(&pages, ALL);
    let mut memory = domain.memory();
    let mut model = vec![0; PAGE];
    for len in [1, 2, 7, 8, 9, 15, 16, 17, 63, 64, 65, 255, 4000, PAGE] {
        for start in [0, 1, 5, 8, 40, PAGE - len] {
            if start + len > PAGE {
                continue;
            }
            let data: Vec<u8> = (0..len).map(|i| (i * 5 + len + start) as u8).collect();
            let addr = region.iova() + start as u64;
            memory
                .write_remote(region.rkey(), addr, &data)
                .expect("mapped");
            model[start..start + len].copy_from_slice(&data);
            assert_eq!(content(&region), model, "{len} bytes at {start}");
            let mut back = vec![0; len];
            memory
                .read_remote(region.rkey(), addr, &mut back)
                .expect("mapped");
            assert_eq!(back, data);
        }
    }
}

/// A program that polls the last word of a placement finds the other bytes there, whatever the way.
#[test]
#[cfg_attr(miri, ignore = "system calls, and a race on purpose")]
fn the_last_word_of_a_placement_becomes_visible_last() {
    last_word_is_last(|_| Ways::NONE);
    last_word_is_last(|way| Ways {
        incoming: Some(way),
        outgoing: None,
    });
}

fn last_word_is_last(ways: fn(&mut Incoming) -> Ways<'_>) {
    use std::sync::atomic::{AtomicU64, Ordering};
    let domain = Domain::new();
    let pages = Pages::new(1);
    let region = domain.foreign(&pages, ALL);
    // SAFETY: an aligned word of a page that stays mapped, which is reached by this and by the kernel only.
    let word = |index: usize| unsafe {
        AtomicU64::from_ptr(pages.start.as_ptr().cast::<u64>().add(index))
    };
    let (first, last) = (word(0), word(PAGE / 8 - 1));
    let rounds = 3000u64;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut way = Incoming::default();
            let mut memory = domain.memory_by(ways(&mut way));
            for round in 1..=rounds {
                let packet = round.to_ne_bytes().repeat(PAGE / 8);
                memory
                    .write_remote(region.rkey(), region.iova(), &packet)
                    .expect("mapped");
            }
        });
        loop {
            let end = last.load(Ordering::Acquire);
            let start = first.load(Ordering::Acquire);
            assert!(
                start >= end,
                "the last word was {end}, the first still {start}"
            );
            if end == rounds {
                break;
            }
            std::hint::spin_loop();
        }
    });
}
