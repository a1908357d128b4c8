//! What work requests of the program name.

use super::*;

#[test]
fn a_message_is_spread_over_its_elements_packet_by_packet() {
    let domain = Domain::new();
    let (a, b) = (domain.region(10, LOCAL), domain.region(10, LOCAL));
    let list = [
        sge(&a, 2, 3),
        sge(&b, 0, 0),
        sge(&b, 4, 3),
        sge(&b, 0, 0),
        sge(&b, 7, 3),
        sge(&a, 8, 2),
    ];
    let message = b"abcdefghijk";
    let mut memory = domain.memory();
    for packet_len in 1..=message.len() {
        for (i, packet) in message.chunks(packet_len).enumerate() {
            memory
                .scatter(&list, (i * packet_len) as u64, packet)
                .expect("inside");
        }
        let mut whole = [0; 11];
        for (i, out) in whole.chunks_mut(packet_len).enumerate() {
            let offset = (i * packet_len) as u64;
            memory.gather(&list, offset, out).expect("inside");
        }
        assert_eq!(&whole, message);
        assert_eq!(content(&a), b"\0\0abc\0\0\0jk");
        assert_eq!(content(&b), b"\0\0\0\0defghi");
        a.copy_in(0, &[0; 10]).expect("inside");
        b.copy_in(0, &[0; 10]).expect("inside");
    }
}

#[test]
fn more_elements_than_one_system_call_takes() {
    let domain = Domain::new();
    let region = domain.region(200, LOCAL);
    // From the last byte to the first, in threes; then in ones.
    for step in [3, 1] {
        let list: Vec<_> = (0..60 / step)
            .map(|i| sge(&region, (100 - i * step) as u64, step as u32))
            .collect();
        let message: Vec<u8> = (1..=60).collect();
        let mut memory = domain.memory();
        memory.scatter(&list, 0, &message).expect("inside");
        for (i, element) in message.chunks(step).enumerate() {
            let at = 100 - i * step;
            assert_eq!(content(&region)[at..at + step], *element);
        }
        let mut back = [0; 60];
        memory.gather(&list, 0, &mut back).expect("inside");
        assert_eq!(back[..], message);
    }
}

#[test]
#[cfg_attr(miri, ignore = "system calls")]
fn elements_in_memory_of_the_program_are_copied_together() {
    let domain = Domain::new();
    let pages = Pages::new(2);
    let region = domain.foreign(&pages, LOCAL);
    let list: Vec<_> = (0..20).map(|i| sge(&region, 397 * i, 100)).collect();
    let message: Vec<u8> = (0..2000).map(|i| ((i * 7) >> 2) as u8).collect();
    let mut memory = domain.memory();
    memory.scatter(&list, 0, &message[..1234]).expect("mapped");
    memory
        .scatter(&list, 1234, &message[1234..])
        .expect("mapped");
    let whole = content(&region);
    for (i, element) in message.chunks(100).enumerate() {
        assert_eq!(whole[397 * i..397 * i + 100], *element, "element {i}");
        let gap = &whole[397 * i + 100..397 * (i + 1)];
        assert!(gap.iter().all(|byte| *byte == 0), "gap {i}");
    }
    let mut back = vec![0; 2000];
    memory.gather(&list, 0, &mut back).expect("mapped");
    assert_eq!(back, message);
}

#[test]
fn the_end_of_the_list_is_the_end() {
    let domain = Domain::new();
    let region = domain.region(4, LOCAL);
    let list = [sge(&region, 0, 4)];
    let mut memory = domain.memory();
    assert_eq!(memory.scatter(&list, 4, &[]), Ok(()));
    for (offset, data) in [(0, &b"12345"[..]), (4, b"1"), (u64::MAX, b"1")] {
        let refused = memory.scatter(&list, offset, data);
        assert!(matches!(refused, Err(MemoryError::OutOfBounds { .. })));
    }
    assert_eq!(domain.counters.scatter_failed.get(), 3);
}

#[test]
fn domain_right_bounds_and_life_are_checked_on_every_access() {
    let domain = Domain::new();
    let writable = domain.region(8, LOCAL);
    let read_only = domain.region(8, AccessFlags::empty());
    let other = domain.region_of(PD + 1, 8, LOCAL);
    let mut memory = domain.memory();
    assert_eq!(
        memory.scatter(&[sge(&read_only, 0, 1)], 0, b"x"),
        Err(MemoryError::NotWritable(read_only.lkey()))
    );
    assert_eq!(memory.gather(&[sge(&read_only, 7, 1)], 0, &mut [0]), Ok(()));
    assert_eq!(
        memory.gather(&[sge(&other, 0, 1)], 0, &mut [0]),
        Err(MemoryError::InvalidKey(other.lkey()))
    );
    // The element is wrong as a whole, although this packet would fit.
    assert!(matches!(
        memory.scatter(&[sge(&writable, 1, 8)], 0, b"x"),
        Err(MemoryError::OutOfBounds { len: 8, .. })
    ));
    // The variant belongs to the key.
    let near = Sge {
        lkey: LKey(writable.lkey().0 ^ 1),
        ..sge(&writable, 0, 1)
    };
    assert_eq!(
        memory.scatter(&[near], 0, b"x"),
        Err(MemoryError::InvalidKey(near.lkey))
    );
    let element = sge(&writable, 0, 1);
    memory.scatter(&[element], 0, b"x").expect("inside");
    writable.deregister().expect("no windows");
    // Also for who has looked it up before.
    assert_eq!(
        memory.scatter(&[element], 0, b"x"),
        Err(MemoryError::InvalidKey(element.lkey))
    );
    assert_eq!(domain.regions.len(), 2);
}

#[test]
fn elements_are_named_by_the_address_that_the_region_counts_from() {
    let domain = Domain::new();
    for iova in [0, 1, 0x10_0000, u64::MAX - 15] {
        let region = domain.region_at(iova, 16, LOCAL);
        let mut memory = domain.memory();
        memory
            .scatter(&[sge(&region, 12, 4)], 0, b"last")
            .expect("inside");
        assert_eq!(&content(&region)[12..], b"last");
        for (addr, len) in [
            (iova.wrapping_sub(1), 4),
            (iova.wrapping_add(13), 4),
            (iova.wrapping_add(16), 1),
            (u64::MAX, 2),
            (region.addr(), 1),
        ] {
            let outside = Sge {
                addr,
                len,
                lkey: region.lkey(),
            };
            assert_eq!(
                memory.gather(&[outside], 0, &mut [0]),
                Err(MemoryError::OutOfBounds {
                    addr,
                    len: len.into()
                }),
                "iova {iova:#x}"
            );
        }
    }
}

#[test]
fn deregistration_waits_for_the_copy_that_is_under_way() {
    use std::sync::atomic::{AtomicBool, Ordering};
    for access in [LOCAL, ALL] {
        let domain = Domain::new();
        let region = domain.region(8, access);
        let inner = Arc::clone(&region.inner);
        let in_copy = std::sync::Barrier::new(2);
        let copied = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let guard = inner.enter_to_place().expect("alive");
                in_copy.wait();
                for _ in 0..100 {
                    std::thread::yield_now();
                }
                copied.store(true, Ordering::Relaxed);
                drop(guard);
            });
            in_copy.wait();
            region.deregister().expect("no windows");
            assert!(copied.load(Ordering::Relaxed));
        });
        assert!(inner.enter_to_place().is_none());
        assert!(inner.enter_to_fetch().is_none());
    }
}

#[test]
fn dropping_the_handle_does_not_wait_and_keeps_memory_that_is_in_use() {
    let domain = Domain::new();
    let region = domain.region(8, LOCAL);
    region.copy_in(0, b"contents").expect("inside");
    let inner = Arc::clone(&region.inner);
    let entered = inner.enter_to_fetch().expect("alive");
    drop(region);
    let mut out = [0; 8];
    let all = region::Piece { offset: 0, len: 8 };
    assert!(entered.fetch(&[all], &mut out).expect("no system call"));
    assert_eq!(&out, b"contents");
    drop(entered);
    assert!(inner.enter_to_fetch().is_none());
    assert_eq!(domain.regions.len(), 0);
}

#[test]
fn the_programs_copies_meet_only_the_region() {
    let domain = Domain::new();
    let region = domain.region_at(0x1003, 20, ALL);
    region.copy_in(4, b"sixteen bytes!!!").expect("inside");
    region.copy_in(20, b"").expect("nothing at the end");
    for (offset, len) in [(5, 16), (20, 1), (21, 0), (u64::MAX, 1), (0, 21)] {
        let refused = region.copy_in(offset, &vec![1; len]).unwrap_err();
        let Error::OutsideRegion {
            offset: o,
            len: l,
            region_len: 20,
        } = refused
        else {
            panic!("{refused}");
        };
        assert_eq!((o, l), (offset, len));
        let refused = region.copy_out(offset, &mut vec![1; len]).unwrap_err();
        assert!(matches!(refused, Error::OutsideRegion { .. }), "{refused}");
    }
    assert_eq!(&content(&region), b"\0\0\0\0sixteen bytes!!!");
    region
        .store_u64(8, u64::from_ne_bytes(*b"morebyte"))
        .expect("aligned");
    assert_eq!(
        region.load_u64(8).expect("aligned").to_ne_bytes(),
        *b"morebyte"
    );
    for offset in [1, 4, 12] {
        let refused = region.load_u64(offset).unwrap_err();
        assert!(matches!(refused, Error::Misaligned { .. }), "{refused}");
        let refused = region.store_u64(offset, 1).unwrap_err();
        assert!(matches!(refused, Error::Misaligned { .. }), "{refused}");
    }
    assert!(matches!(
        region.load_u64(16),
        Err(Error::OutsideRegion { .. })
    ));
}

/// Placements into memory that peers may reach and the program's copies of it happen one after the other: no packet is seen
/// in part. (Under Miri this shows that there is no data race.)
#[test]
fn the_program_sees_packets_of_peers_whole() {
    let domain = Domain::new();
    let region = domain.region(64, ALL);
    let rounds = if cfg!(miri) { 20 } else { 20_000 };
    std::thread::scope(|scope| {
        for value in [1, 2] {
            let (domain, region) = (&domain, &region);
            scope.spawn(move || {
                let mut memory = domain.memory();
                for _ in 0..rounds {
                    memory
                        .write_remote(region.rkey(), region.iova(), &[value; 64])
                        .expect("inside");
                }
            });
        }
        for _ in 0..rounds {
            let mut seen = [0; 64];
            region.copy_out(0, &mut seen).expect("inside");
            assert!(seen.iter().all(|byte| *byte == seen[0]), "{seen:?}");
        }
    });
}
