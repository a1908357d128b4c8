//! The library's own memory behind keys, without a system call: these also run under Miri.

use super::*;

struct Domain {
    regions: RegionTable,
    counters: Counters,
}

impl Domain {
    fn new() -> Self {
        Self {
            regions: RegionTable::new(),
            counters: Counters::default(),
        }
    }

    fn region(&self, pd: u32, len: usize, access: Access) -> Arc<RegionInner> {
        let memory = OwnedMemory::new(len).expect("memory");
        let region = self.regions.insert(|key| RegionInner {
            addr: memory.start().as_ptr() as u64,
            len: len as u64,
            key,
            pd,
            access,
            backing: Backing::Owned(memory),
            live: RwLock::new(true),
        });
        region.expect("there is room")
    }

    fn memory(&self, pd: u32) -> PdMemory<'_> {
        PdMemory::new(&self.regions, pd, &self.counters)
    }
}

fn sge(region: &RegionInner, offset: u64, len: u32) -> Sge {
    Sge {
        addr: region.addr + offset,
        len,
        lkey: LKey(region.key),
    }
}

#[test]
fn a_message_is_spread_over_its_elements_packet_by_packet() {
    let domain = Domain::new();
    let (a, b) = (
        domain.region(1, 10, Access::LOCAL_WRITE),
        domain.region(1, 10, Access::LOCAL_WRITE),
    );
    let list = [sge(&a, 2, 3), sge(&b, 0, 0), sge(&b, 4, 6), sge(&a, 8, 2)];
    let message = b"abcdefghijk";
    let mut memory = domain.memory(1);
    for packet_len in 1..=message.len() {
        for (i, packet) in message.chunks(packet_len).enumerate() {
            memory
                .scatter(&list, (i * packet_len) as u64, packet)
                .expect("inside");
        }
        let mut whole = [0; 11];
        memory.gather(&list, 0, &mut whole).expect("inside");
        assert_eq!(&whole, message);
        let mut first = [0; 10];
        memory
            .gather(&[sge(&a, 0, 10)], 0, &mut first)
            .expect("inside");
        assert_eq!(&first, b"\0\0abc\0\0\0jk");
        memory
            .scatter(&[sge(&a, 0, 10)], 0, &[0; 10])
            .expect("inside");
    }
}

#[test]
fn the_end_of_the_list_is_the_end() {
    let domain = Domain::new();
    let region = domain.region(1, 4, Access::LOCAL_WRITE);
    let list = [sge(&region, 0, 4)];
    let mut memory = domain.memory(1);
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
    let writable = domain.region(1, 8, Access::LOCAL_WRITE);
    let read_only = domain.region(1, 8, Access::empty());
    let other = domain.region(2, 8, Access::LOCAL_WRITE);
    let mut memory = domain.memory(1);
    assert_eq!(
        memory.scatter(&[sge(&read_only, 0, 1)], 0, b"x"),
        Err(MemoryError::NotWritable(LKey(read_only.key)))
    );
    assert_eq!(memory.gather(&[sge(&read_only, 7, 1)], 0, &mut [0]), Ok(()));
    assert_eq!(
        memory.gather(&[sge(&other, 0, 1)], 0, &mut [0]),
        Err(MemoryError::InvalidKey(LKey(other.key)))
    );
    // The element is wrong as a whole, although this packet would fit.
    assert!(matches!(
        memory.scatter(&[sge(&writable, 1, 8)], 0, b"x"),
        Err(MemoryError::OutOfBounds { len: 8, .. })
    ));
    domain.regions.remove(writable.key);
    assert_eq!(
        memory.scatter(&[sge(&writable, 0, 1)], 0, b"x"),
        Err(MemoryError::InvalidKey(LKey(writable.key)))
    );
    // Looked up before the key went, used after: the guard stops it.
    *write(&writable.live) = false;
    assert_eq!(writable.guarded(|| ()), None);
    assert_eq!(domain.regions.len(), 2);
}

#[test]
fn deregistration_waits_for_the_copy_that_is_under_way() {
    let domain = Domain::new();
    let region = domain.region(1, 8, Access::LOCAL_WRITE);
    let in_copy = std::sync::Barrier::new(2);
    let copied = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            region.guarded(|| {
                in_copy.wait();
                std::thread::yield_now();
                copied.store(true, std::sync::atomic::Ordering::Relaxed);
            })
        });
        in_copy.wait();
        *write(&region.live) = false;
        assert!(copied.load(std::sync::atomic::Ordering::Relaxed));
    });
}
