//! Four threads do anything to their memory, each against a model of what must be valid.

use std::ops::Range;
use std::thread;

use libc::c_void;
use oarlock_memwatch::{Policy, Region, Watcher};
use oarlock_sim::{Rng, for_each_seed};

use crate::support::*;

const PAGES: usize = 64;
const OPERATIONS: usize = 120;
const THREADS: u64 = 4;

/// R-MEM-5: after each operation and settling, exactly those regions are invalid that it concerned; none missing, none spurious.
#[test]
fn random_operations_agree_with_a_model() {
    let Some(watcher) = watcher() else { return };
    for_each_seed(50, |seed| {
        thread::scope(|scope| {
            for number in 0..THREADS {
                let watcher = &watcher;
                scope.spawn(move || run(watcher, seed * THREADS + number));
            }
        });
        assert_eq!(watcher.regions().expect("counted"), 0);
        assert_eq!(drain(&watcher), [], "nothing after deregistration");
    });
}

fn run(watcher: &Watcher, seed: u64) {
    let mut world = World {
        rng: Rng::new(seed),
        arena: place(seed % THREADS),
        mapped: [true; PAGES],
        regions: Vec::new(),
    };
    let mut events = Vec::new();
    for operation in 0..OPERATIONS {
        let cookie = seed << 16 | operation as u64;
        let what = world.step(watcher, cookie);
        watcher.settle().expect("settled");
        for (region, expected) in &world.regions {
            let found = region.is_valid();
            assert_eq!(
                found, *expected,
                "seed {seed}, operation {operation}, {what}: {region:x?}"
            );
        }
        if world.rng.chance(0.05) {
            // The events of all threads; whoever reads takes them.
            watcher.read_events(&mut events, 8).expect("read");
            events.clear();
        }
    }
    world.regions.clear();
    world.arena.unmap();
}

/// Where the kernel puts nothing by itself, so that nobody is given the holes.
fn place(number: u64) -> Pages {
    let len = PAGES * PAGE;
    let start = 0x2100_0000_0000 + number as usize * (len + (1 << 30));
    Pages {
        start: map(Some(start), len),
        len,
    }
}

struct World {
    rng: Rng,
    arena: Pages,
    mapped: [bool; PAGES],
    /// With whether the model says that they are valid.
    regions: Vec<(Region, bool)>,
}

impl World {
    fn step(&mut self, watcher: &Watcher, cookie: u64) -> String {
        let range = self.pages();
        let part = self.arena.part(range.clone());
        let mapped = self.mapped[range.clone()].iter().all(|mapped| *mapped);
        match self.rng.below(12) {
            0..=3 => {
                // Bytes, not pages: from the middle of the first page on.
                let start = part.start + self.rng.index(PAGE);
                let result = watcher.register(start, part.end - start, cookie, Policy::Report);
                assert_eq!(result.is_ok(), mapped, "{result:?}");
                if let Ok(region) = result {
                    self.regions.push((region, true));
                }
                format!("register {range:?}")
            }
            4 => {
                if !self.regions.is_empty() {
                    let (region, valid) =
                        self.regions.swap_remove(self.rng.index(self.regions.len()));
                    let read = region.deregister().expect("registered");
                    assert!(!valid || read == 0, "events of a valid region");
                }
                "deregister".into()
            }
            5 => {
                self.replace(&range, libc::PROT_NONE);
                self.mapped[range.clone()].fill(true);
                self.concern(&part);
                format!("map over {range:?}")
            }
            6 => {
                unmap(part.clone());
                self.mapped[range.clone()].fill(false);
                self.concern(&part);
                format!("unmap {range:?}")
            }
            7 if mapped => {
                discard(part.clone());
                self.concern(&part);
                format!("discard {range:?}")
            }
            8 => {
                let to = self.pages();
                let to = to.start..(to.start + range.len()).min(PAGES);
                let from = range.start..range.start + to.len().min(range.len());
                let apart = from.end <= to.start || to.end <= from.start;
                if apart
                    && from.len() == to.len()
                    && self.mapped[from.clone()].iter().all(|mapped| *mapped)
                {
                    self.remap(&from, &to);
                }
                format!("move {from:?} to {to:?}")
            }
            9 => {
                // SAFETY: pages of this thread's own, that it does not touch.
                unsafe { libc::mprotect(part.start as *mut c_void, part.len(), libc::PROT_READ) };
                format!("protect {range:?}")
            }
            10 if self.rng.chance(0.1) => {
                in_child(|| true);
                "fork".into()
            }
            _ => {
                let size = 1 << self.rng.below(22);
                drop(std::hint::black_box(vec![1u8; size]));
                format!("allocate {size}")
            }
        }
    }

    fn pages(&mut self) -> Range<usize> {
        let start = self.rng.index(PAGES);
        start..start + 1 + self.rng.index((PAGES - start).min(12))
    }

    /// What the model knows of a change.
    fn concern(&mut self, bytes: &Range<usize>) {
        for (region, valid) in &mut self.regions {
            let range = region.range();
            if range.start < bytes.end && bytes.start < range.end {
                *valid = false;
            }
        }
    }

    fn replace(&self, pages: &Range<usize>, prot: i32) {
        let part = self.arena.part(pages.clone());
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
        // SAFETY: pages of this thread's own, that it does not touch.
        let start =
            unsafe { libc::mmap(part.start as *mut c_void, part.len(), prot, flags, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED);
    }

    fn remap(&mut self, from: &Range<usize>, to: &Range<usize>) {
        let (source, target) = (self.arena.part(from.clone()), self.arena.part(to.clone()));
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
        // SAFETY: pages of this thread's own, that it does not touch.
        let moved = unsafe {
            libc::mremap(
                source.start as *mut c_void,
                source.len(),
                source.len(),
                flags,
                target.start as *mut c_void,
            )
        };
        if moved == libc::MAP_FAILED {
            // Refused where the source is several mappings; the target may be unmapped by then, or not. Now it is, in any case.
            self.replace(to, libc::PROT_READ);
            self.mapped[to.clone()].fill(true);
            self.concern(&target);
            return;
        }
        self.concern(&source);
        self.concern(&target);
        self.mapped[to.clone()].fill(true);
    }
}
