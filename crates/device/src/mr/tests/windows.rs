//! The rules of memory windows.

use oarlock_transport::{AtomicOp, BindWindow, RemoteAccess};
use oarlock_wire::RKey;

use super::keys::{index_of, key_of};
use super::window::WindowInner;
use super::*;

struct Bench {
    domain: Domain,
    region: Region,
}

impl Bench {
    fn new() -> Self {
        Self::with_access(ALL)
    }

    fn with_access(access: AccessFlags) -> Self {
        let domain = Domain::new();
        let region = domain.region(64, access);
        Self { domain, region }
    }

    fn window(&self, window_type: WindowType) -> RKey {
        self.window_of(PD, window_type)
    }

    fn window_of(&self, pd: u32, window_type: WindowType) -> RKey {
        let made = WindowInner::insert(&self.domain.regions, 100, pd, window_type);
        RKey(made.expect("there is room").0)
    }

    /// A binding of 16 bytes from byte 32 on, with a key one further.
    fn binding(&self, window: RKey) -> BindWindow {
        BindWindow {
            window,
            rkey: next(window),
            region: self.region.lkey(),
            addr: self.region.iova() + 32,
            len: 16,
            access: AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ,
        }
    }

    fn bind(&self, binding: &BindWindow) -> Result<(), MemoryError> {
        self.domain.memory().bind(binding)
    }

    fn bound(&self, window_type: WindowType) -> RKey {
        let binding = self.binding(self.window(window_type));
        self.bind(&binding).expect("bind");
        binding.rkey
    }

    fn write(&self, rkey: RKey, addr: u64) -> Result<(), MemoryError> {
        self.domain.memory().write_remote(rkey, addr, b"x")
    }

    fn count(&self) -> usize {
        match self.region.inner.change(|_| ()) {
            Ok(()) => 0,
            Err(Error::WindowsBound { count }) => count,
            Err(other) => panic!("{other}"),
        }
    }
}

fn next(key: RKey) -> RKey {
    RKey(key_of(index_of(key.0), (key.0 as u8).wrapping_add(1)))
}

const BOTH: [WindowType; 2] = [WindowType::One, WindowType::Two];

fn unknown<T>(rkey: RKey) -> Result<T, MemoryError> {
    Err(MemoryError::InvalidRemoteKey(rkey))
}

#[test]
fn a_window_offers_its_part_of_the_region_and_its_rights() {
    for window_type in BOTH {
        // The region itself offers peers nothing.
        let bench = Bench::with_access(LOCAL | AccessFlags::MW_BIND);
        let free = bench.window(window_type);
        let start = bench.region.iova() + 32;
        assert_eq!(bench.write(free, start), unknown(free), "not bound yet");
        let binding = bench.binding(free);
        bench.bind(&binding).expect("bind");
        let rkey = binding.rkey;
        assert_eq!(bench.write(free, start), unknown(free), "the key before");
        let mut memory = bench.domain.memory();
        memory.write_remote(rkey, start, &[7; 16]).expect("inside");
        assert_eq!(content(&bench.region)[32..48], [7; 16]);
        assert_eq!(content(&bench.region)[..32], [0; 32]);
        let mut back = [0; 3];
        memory
            .read_remote(rkey, start + 13, &mut back)
            .expect("inside");
        assert_eq!(back, [7; 3]);
        for (addr, len) in [
            (start - 1, 1),
            (start, 17),
            (start + 16, 1),
            (start + 8, u64::MAX),
        ] {
            let refused = memory.check_remote(rkey, addr, len, RemoteAccess::Write);
            assert_eq!(refused, Err(MemoryError::OutOfBounds { addr, len }));
        }
        let add = AtomicOp::FetchAdd { add: 1 };
        assert_eq!(
            memory.atomic(rkey, start, add),
            Err(MemoryError::RemoteAccessDenied {
                rkey,
                access: RemoteAccess::Atomic
            })
        );
        assert_eq!(
            memory.write_remote(bench.region.rkey(), start, b"x"),
            Err(MemoryError::RemoteAccessDenied {
                rkey: bench.region.rkey(),
                access: RemoteAccess::Write
            })
        );
        // No local key.
        let as_lkey = Sge {
            addr: start,
            len: 1,
            lkey: LKey(rkey.0),
        };
        assert_eq!(
            memory.gather(&[as_lkey], 0, &mut [0]),
            Err(MemoryError::InvalidKey(LKey(rkey.0)))
        );
    }
}

#[test]
fn a_window_reaches_no_other_domain() {
    for window_type in BOTH {
        let bench = Bench::new();
        let rkey = bench.bound(window_type);
        let mut memory = bench.domain.memory_of(PD + 1, QPN);
        let addr = bench.region.iova() + 32;
        assert_eq!(memory.write_remote(rkey, addr, b"x"), unknown(rkey));
        assert_eq!(memory.bind(&bench.binding(rkey)), unknown(rkey));
        assert!(memory.invalidate(rkey).is_err());
    }
}

#[test]
fn every_queue_pair_uses_type_1_and_only_the_binder_type_2() {
    let bench = Bench::new();
    let addr = bench.region.iova() + 32;
    for (window_type, others_may) in [(WindowType::One, true), (WindowType::Two, false)] {
        let rkey = bench.bound(window_type);
        let mut other = bench.domain.memory_of(PD, OTHER_QPN);
        let expected = if others_may { Ok(()) } else { unknown(rkey) };
        assert_eq!(other.write_remote(rkey, addr, b"x"), expected);
        assert_eq!(
            other.check_remote(rkey, addr, 1, RemoteAccess::Read),
            expected
        );
        bench.write(rkey, addr).expect("its own");
    }
}

/// Each rule by its name; nothing is bound then.
#[test]
fn every_rule_of_binding_is_enforced() {
    type Break = fn(&Bench, &mut BindWindow);
    let rules: [(&[WindowType], Break, &str); 11] = [
        (
            &BOTH,
            |_, bind| bind.rkey = RKey(bind.rkey.0 ^ 0x100),
            "more than the low 8 bits",
        ),
        (
            &BOTH,
            |_, bind| bind.access |= LOCAL,
            "a window has the rights",
        ),
        (
            &BOTH,
            |_, bind| bind.access |= AccessFlags::from_bits_retain(1 << 20),
            "a window has the rights",
        ),
        (
            &[WindowType::One],
            |_, bind| bind.access |= AccessFlags::ZERO_BASED,
            "type 1 window cannot count from 0",
        ),
        (&[WindowType::Two], |_, bind| bind.len = 0, "no bytes"),
        (
            &BOTH,
            |bench, bind| {
                let closed = bench.domain.region(64, LOCAL);
                bind.region = closed.lkey();
                bind.addr = closed.iova();
                std::mem::forget(closed);
            },
            "MW_BIND",
        ),
        (
            &BOTH,
            |bench, bind| {
                let read_only = bench.domain.region(64, AccessFlags::MW_BIND);
                bind.region = read_only.lkey();
                bind.addr = read_only.iova();
                std::mem::forget(read_only);
            },
            "needs a region with LOCAL_WRITE",
        ),
        (&BOTH, |_, bind| bind.len = 33, "leaves its memory region"),
        (
            &BOTH,
            |_, bind| bind.addr = u64::MAX,
            "leaves its memory region",
        ),
        (
            &BOTH,
            |_, bind| bind.region = LKey(bind.region.0 ^ 1),
            "no memory region with lkey",
        ),
        (
            &BOTH,
            |bench, bind| {
                let other = bench.domain.region_of(PD + 1, 64, ALL);
                bind.region = other.lkey();
                bind.addr = other.iova();
                std::mem::forget(other);
            },
            "no memory region with lkey",
        ),
    ];
    for (types, break_rule, sentence) in rules {
        for window_type in types {
            let bench = Bench::new();
            let window = bench.window(*window_type);
            let mut binding = bench.binding(window);
            break_rule(&bench, &mut binding);
            let refused = bench.bind(&binding).unwrap_err().to_string();
            assert!(refused.contains(sentence), "{refused} ({sentence})");
            assert_eq!(bench.count(), 0, "{sentence}");
            bench.bind(&bench.binding(window)).expect("as before");
        }
    }
}

#[test]
fn a_window_for_reading_needs_no_right_to_write() {
    let bench = Bench::with_access(AccessFlags::MW_BIND);
    let window = bench.window(WindowType::Two);
    let binding = BindWindow {
        access: AccessFlags::REMOTE_READ,
        ..bench.binding(window)
    };
    bench.bind(&binding).expect("bind");
    let mut memory = bench.domain.memory();
    memory
        .read_remote(binding.rkey, binding.addr, &mut [0; 16])
        .expect("inside");
}

#[test]
fn type_1_is_bound_again_at_any_time_and_unbound_by_no_bytes() {
    let bench = Bench::new();
    let first = bench.bound(WindowType::One);
    assert_eq!(bench.count(), 1);
    let start = bench.region.iova();
    let again = BindWindow {
        addr: start,
        ..bench.binding(first)
    };
    bench.bind(&again).expect("bind");
    assert_eq!(bench.count(), 1);
    assert_eq!(bench.write(first, start + 32), unknown(first));
    bench.write(again.rkey, start).expect("its new place");
    assert!(bench.write(again.rkey, start + 32).is_err());
    let unbind = BindWindow {
        len: 0,
        ..bench.binding(again.rkey)
    };
    bench.bind(&unbind).expect("unbind");
    assert_eq!(bench.count(), 0);
    for key in [first, again.rkey, unbind.rkey] {
        assert_eq!(bench.write(key, start), unknown(key));
    }
    bench.bind(&bench.binding(unbind.rkey)).expect("bind");
    assert_eq!(bench.count(), 1);
}

#[test]
fn type_1_may_be_bound_again_before_the_last_binding_was_executed() {
    let bench = Bench::new();
    let window = bench.window(WindowType::One);
    let first = bench.binding(window);
    // Posted when the program knew only the first key.
    let second = BindWindow {
        rkey: next(first.rkey),
        ..first
    };
    bench.bind(&first).expect("bind");
    bench.bind(&second).expect("bind");
    bench.write(second.rkey, second.addr).expect("bound");
    assert_eq!(bench.write(first.rkey, first.addr), unknown(first.rkey));
}

#[test]
fn type_2_is_bound_only_when_free_and_by_its_present_key() {
    let bench = Bench::new();
    let window = bench.window(WindowType::Two);
    let near = BindWindow {
        window: next(window),
        ..bench.binding(window)
    };
    assert_eq!(bench.bind(&near), unknown(near.window));
    let rkey = bench.bound(WindowType::Two);
    let refused = bench.bind(&bench.binding(rkey));
    assert!(matches!(refused, Err(MemoryError::BindRefused(_))));
    bench
        .write(rkey, bench.region.iova() + 32)
        .expect("still bound");
    bench.domain.memory().invalidate(rkey).expect("invalidate");
    bench.bind(&bench.binding(rkey)).expect("free again");
}

#[test]
fn type_2_counts_from_0_if_asked() {
    let bench = Bench::new();
    let window = bench.window(WindowType::Two);
    let mut binding = bench.binding(window);
    binding.access |= AccessFlags::ZERO_BASED | AccessFlags::REMOTE_ATOMIC;
    binding.addr += 4;
    bench.bind(&binding).expect("bind");
    let mut memory = bench.domain.memory();
    memory
        .write_remote(binding.rkey, 0, &[9; 16])
        .expect("inside");
    assert_eq!(content(&bench.region)[36..52], [9; 16]);
    assert!(memory.write_remote(binding.rkey, 1, &[9; 16]).is_err());
    assert!(
        memory
            .write_remote(binding.rkey, binding.addr, &[9])
            .is_err()
    );
    // Aligned as the peer counts, but not in memory.
    let refused = memory.atomic(binding.rkey, 0, AtomicOp::FetchAdd { add: 1 });
    assert_eq!(refused, Err(MemoryError::Misaligned { addr: 0 }));
}

#[test]
fn a_window_on_a_region_that_counts_from_elsewhere_counts_with_it() {
    for iova in [0, u64::MAX - 63] {
        let domain = Domain::new();
        let region = domain.region_at(iova, 64, ALL);
        let bench = Bench { domain, region };
        let rkey = bench.bound(WindowType::Two);
        bench.write(rkey, iova + 47).expect("its last byte");
        assert!(bench.write(rkey, (iova + 47).wrapping_add(1)).is_err());
        assert_eq!(content(&bench.region)[47], b'x');
    }
}

#[test]
fn invalidation_is_for_the_binder_of_type_2() {
    let bench = Bench::new();
    let type_1 = bench.bound(WindowType::One);
    let mut memory = bench.domain.memory();
    let refused = memory.invalidate(type_1);
    assert_eq!(refused, Err(MemoryError::NotInvalidatable(type_1)));
    bench
        .write(type_1, bench.region.iova() + 32)
        .expect("as before");

    let free = bench.window(WindowType::Two);
    assert_eq!(memory.invalidate(free), unknown(free));
    let rkey = bench.bound(WindowType::Two);
    let mut other = bench.domain.memory_of(PD, OTHER_QPN);
    assert_eq!(other.invalidate(rkey), unknown(rkey));
    assert_eq!(memory.invalidate(next(rkey)), unknown(next(rkey)));
    bench
        .write(rkey, bench.region.iova() + 32)
        .expect("as before");
    assert_eq!(bench.count(), 2);
    memory.invalidate(rkey).expect("invalidate");
    assert_eq!(bench.count(), 1);
    assert_eq!(bench.write(rkey, bench.region.iova() + 32), unknown(rkey));
    assert_eq!(memory.invalidate(rkey), unknown(rkey), "once");
}

#[test]
fn invalidation_waits_for_the_copy_that_is_under_way() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let bench = Bench::new();
    let rkey = bench.bound(WindowType::Two);
    let Some(table::Entry::Window(window)) = bench.domain.regions.get(rkey.0) else {
        panic!("a window");
    };
    let in_copy = std::sync::Barrier::new(2);
    let copied = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let state = window.enter().expect("bound");
            in_copy.wait();
            for _ in 0..100 {
                std::thread::yield_now();
            }
            copied.store(true, Ordering::Relaxed);
            drop(state);
        });
        in_copy.wait();
        bench.domain.memory().invalidate(rkey).expect("invalidate");
        assert!(copied.load(Ordering::Relaxed));
    });
}

#[test]
fn a_region_with_windows_is_not_deregistered() {
    let bench = Bench::new();
    let (one, two) = (bench.bound(WindowType::One), bench.bound(WindowType::Two));
    let Bench { domain, region } = bench;
    let (region, error) = region.deregister().unwrap_err();
    assert_eq!(
        error.to_string(),
        "2 memory windows are bound to the region"
    );
    let mut memory = domain.memory();
    let addr = region.iova() + 32;
    memory.write_remote(one, addr, b"x").expect("as before");
    memory
        .write_remote(region.rkey(), addr, b"x")
        .expect("as before");
    memory.invalidate(two).expect("invalidate");
    let (region, error) = region.deregister().unwrap_err();
    assert!(matches!(error, Error::WindowsBound { count: 1 }), "{error}");
    let unbind = BindWindow {
        window: one,
        rkey: next(one),
        region: region.lkey(),
        addr,
        len: 0,
        access: AccessFlags::empty(),
    };
    memory.bind(&unbind).expect("unbind");
    region.deregister().expect("no windows left");
}

#[test]
fn a_region_that_is_dropped_takes_its_windows_along() {
    for window_type in BOTH {
        let bench = Bench::new();
        let rkey = bench.bound(window_type);
        let Bench { domain, region } = bench;
        let addr = region.iova() + 32;
        let inner = Arc::downgrade(&region.inner);
        drop(region);
        assert!(inner.upgrade().is_none(), "a window keeps no memory");
        let refused = domain.memory().write_remote(rkey, addr, b"x");
        assert_eq!(refused, unknown(rkey));
    }
}

#[test]
fn a_queue_pair_that_ends_frees_its_windows() {
    let bench = Bench::new();
    let one = bench.bound(WindowType::One);
    let (a, b) = (bench.bound(WindowType::Two), bench.bound(WindowType::Two));
    let other_window = bench.window(WindowType::Two);
    let others = bench.binding(other_window);
    let mut other = bench.domain.memory_of(PD, OTHER_QPN);
    other.bind(&others).expect("bind");
    assert_eq!(bench.count(), 4);
    bench.domain.regions.release_windows_of(QPN);
    assert_eq!(bench.count(), 2);
    let addr = bench.region.iova() + 32;
    for key in [a, b] {
        assert_eq!(bench.write(key, addr), unknown(key));
    }
    bench.write(one, addr).expect("of every queue pair");
    other
        .write_remote(others.rkey, addr, b"x")
        .expect("another's");
    // Whoever has the number next starts without windows, and the windows are free for it.
    bench.bind(&bench.binding(a)).expect("bind");
    bench.domain.regions.release_windows_of(OTHER_QPN);
    bench.domain.regions.release_windows_of(QPN);
    assert_eq!(bench.count(), 1);
}

/// Binding, invalidating and deregistering while placements run: what is refused is refused whole. (For Miri and the
/// sanitizers, besides.)
#[test]
fn rights_come_and_go_while_peers_write() {
    let bench = Bench::new();
    let window = bench.window(WindowType::Two);
    let rounds = if cfg!(miri) { 10 } else { 5_000 };
    let current = std::sync::atomic::AtomicU32::new(window.0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..rounds {
                    let rkey = RKey(current.load(std::sync::atomic::Ordering::Acquire));
                    let done = bench.domain.memory().write_remote(
                        rkey,
                        bench.region.iova() + 32,
                        &[1; 16],
                    );
                    assert!(done.is_ok() || done == unknown(rkey), "{done:?}");
                }
            });
        }
        let mut memory = bench.domain.memory();
        let mut key = window;
        for _ in 0..rounds {
            let binding = bench.binding(key);
            memory.bind(&binding).expect("free");
            key = binding.rkey;
            current.store(key.0, std::sync::atomic::Ordering::Release);
            memory.invalidate(key).expect("bound");
            // Nothing is placed from here on: the mark stays.
            bench.region.copy_in(32, &[0x55; 16]).expect("inside");
            let seen = &content(&bench.region)[32..48];
            assert_eq!(seen, [0x55; 16]);
        }
    });
}
