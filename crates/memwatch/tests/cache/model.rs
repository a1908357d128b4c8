//! Random operations against a model, by one thread and by several.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;

use oarlock_memwatch::{CacheError, CacheOptions, Error, Fallback, Lookup};
use oarlock_sim::{Rng, for_each_seed};

use crate::far;
use crate::registrar::*;
use crate::support::*;

const PAGES: usize = 48;
const OPERATIONS: usize = 400;

/// What is known of a registration that the cache made.
struct Known {
    range: Range<usize>,
    access: u8,
    /// Whether all of its memory is what it was.
    valid: bool,
}

struct Model<'c> {
    rng: Rng,
    cache: &'c Cache,
    pages: Pages,
    mapped: [bool; PAGES],
    known: HashMap<usize, Known>,
    held: Vec<Kept>,
    /// Nothing is evicted in this run: whatever is valid and was not replaced is found.
    roomy: bool,
}

/// R-MEM-5: what lookups get covers what they ask for and is of the memory that is there; what could be found is found; nothing is
/// deregistered in use; the bounds hold.
#[test]
fn random_operations_agree_with_a_model() {
    for_each_seed(50, |seed| {
        let roomy = seed % 2 == 0;
        let options = CacheOptions {
            max_regions: if roomy { 4096 } else { 6 },
            max_bytes: if roomy { 1 << 63 } else { 40 * PAGE },
            max_merged: if seed % 3 == 0 { 10 * PAGE } else { 1 << 63 },
            alignment: [1, 64, PAGE][seed as usize % 5 % 3],
            when_full: if seed % 4 == 1 {
                Fallback::Refuse
            } else {
                Fallback::Uncached
            },
            ..CacheOptions::default()
        };
        let Some(cache) = cache(options.clone()) else {
            return;
        };
        let mut model = Model {
            rng: Rng::new(seed),
            cache: &cache,
            pages: far(PAGES),
            mapped: [true; PAGES],
            known: HashMap::new(),
            held: Vec::new(),
            roomy,
        };
        for operation in 0..OPERATIONS {
            let what = model.step();
            let books = &cache.registrar().books;
            let (statistics, alive) = (cache.statistics(), books.alive());
            let context = format!("seed {seed}, operation {operation}, {what}: {statistics:?}");
            let alone = model
                .held
                .iter()
                .filter(|handle| !handle.is_cached())
                .count();
            assert_eq!(alive.len(), statistics.regions + alone, "{context}");
            assert!(statistics.regions <= options.max_regions, "{context}");
            assert!(statistics.bytes <= options.max_bytes, "{context}");
            for handle in &model.held {
                assert!(alive.contains(&handle.range()), "in use: {context}");
            }
        }
        let Model { held, pages, .. } = model;
        drop(held);
        pages.unmap();
        cache.clear();
        assert_eq!(cache.registrar().books.alive(), []);
        assert_eq!(
            (cache.statistics().regions, cache.statistics().bytes),
            (0, 0)
        );
    });
}

impl Model<'_> {
    fn step(&mut self) -> String {
        match self.rng.below(16) {
            0..=8 => {
                let pages = self.part();
                let part = self.pages.part(pages.clone());
                let start = part.start + self.rng.index(PAGE);
                let end = start + 1 + self.rng.index(part.end - start);
                let access = [READ, WRITE, READ | WRITE, READ | ALONE][self.rng.index(4)];
                self.look_up(start..end.min(part.end), access);
                format!("look up {pages:?} for {access}")
            }
            9 | 10 => {
                if !self.held.is_empty() {
                    drop(self.held.swap_remove(self.rng.index(self.held.len())));
                }
                "drop a handle".into()
            }
            11 => {
                let pages = self.part();
                unmap(self.pages.part(pages.clone()));
                self.change(&pages, false);
                format!("unmap {pages:?}")
            }
            12 | 13 => {
                let pages = self.part();
                let part = self.pages.part(pages.clone());
                replace(part);
                self.change(&pages, true);
                format!("map over {pages:?}")
            }
            14 => {
                self.cache.clean();
                "clean".into()
            }
            _ if self.rng.chance(0.2) => {
                self.cache.clear();
                self.known.clear();
                "clear".into()
            }
            _ => {
                // In the middle of what may be registered.
                let pages = self.part();
                if self.mapped[pages.clone()].iter().all(|mapped| *mapped) {
                    discard(self.pages.part(pages.clone()));
                    self.change(&pages, true);
                }
                format!("discard {pages:?}")
            }
        }
    }

    fn look_up(&mut self, range: Range<usize>, access: u8) {
        let page = |address: usize| (address - self.pages.start) / PAGE;
        let mapped = self.mapped[page(range.start)..=page(range.end - 1)]
            .iter()
            .all(|is| *is);
        let covering = |known: &Known| {
            let covers = known.range.start <= range.start && range.end <= known.range.end;
            known.valid
                && covers
                && known.access & access == access
                && (known.access ^ access) & ALONE == 0
        };
        let findable = self.known.values().any(covering);
        let made = self.cache.registrar().books.made();
        let handle = match get(self.cache, range.clone(), access, Lookup::Strict) {
            Ok(handle) => handle,
            Err(CacheError::Watch(Error::NotMapped { .. })) if !mapped => return,
            Err(CacheError::Full { .. }) if !self.roomy => return,
            Err(error) => panic!("{error}"),
        };
        assert!(mapped, "registered what is not there");
        let held = handle.range();
        assert!(held.start <= range.start && range.end <= held.end);
        assert_eq!(handle.access() & access, access);
        assert!(handle.is_valid());
        if handle.id < made {
            let known = self
                .known
                .get(&handle.id)
                .expect("not replaced, not cleared");
            assert!(known.valid, "stale");
            assert_eq!((&known.range, known.access), (&held, handle.access()));
        } else {
            assert!(!(findable && self.roomy), "not found");
            if handle.is_cached() {
                let access = handle.access();
                self.known.retain(|_, old| {
                    let covered = held.start <= old.range.start && old.range.end <= held.end;
                    !(covered
                        && access & old.access == old.access
                        && (access ^ old.access) & ALONE == 0)
                });
                let known = Known {
                    range: held,
                    access,
                    valid: true,
                };
                self.known.insert(handle.id, known);
            }
        }
        if self.held.len() < 12 && self.rng.chance(0.4) {
            self.held.push(handle.keep());
        }
    }

    fn change(&mut self, pages: &Range<usize>, mapped: bool) {
        self.mapped[pages.clone()].fill(mapped);
        let bytes = self.pages.part(pages.clone());
        for known in self.known.values_mut() {
            known.valid &= known.range.end <= bytes.start || bytes.end <= known.range.start;
        }
    }

    fn part(&mut self) -> Range<usize> {
        let start = self.rng.index(PAGES);
        start..start + 1 + self.rng.index((PAGES - start).min(8))
    }
}

/// Maps other memory over it.
fn replace(part: Range<usize>) {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: memory of a test, that it does not touch.
    let start = unsafe { libc::mmap(part.start as *mut _, part.len(), prot, flags, -1, 0) };
    assert_eq!(start as usize, part.start);
}

/// R-MEM-5: several threads, each with memory of its own that it changes, and some that all look up.
#[test]
fn threads_share_a_cache_that_is_too_small() {
    let Some(cache) = cache(CacheOptions {
        max_regions: 12,
        ..CacheOptions::default()
    }) else {
        return;
    };
    let common = Pages::new(16);
    for_each_seed(4, |seed| {
        thread::scope(|scope| {
            for number in 0..3 {
                let (cache, common) = (&cache, &common);
                scope.spawn(move || look_up_and_change(cache, common, seed * 3 + number));
            }
        });
        let books = Arc::clone(&cache.registrar().books);
        assert_eq!(books.alive().len(), cache.statistics().regions);
        cache.clear();
        assert_eq!(books.alive(), []);
    });
    // Beside those in the cache, what each thread is making or has for itself.
    assert!(cache.registrar().books.most.load(Ordering::SeqCst) <= 12 + 3 * (1 + 4));
}

fn look_up_and_change(cache: &Cache, common: &Pages, seed: u64) {
    let mut rng = Rng::new(seed);
    let own = Pages::new(16);
    let mut held = Vec::new();
    // The first registration that may be of the memory that is there now.
    let mut since = [0; 16];
    for _ in 0..2000 {
        let page = rng.index(16);
        match rng.below(8) {
            0..=3 => {
                let pages = if rng.chance(0.5) { &own } else { common };
                let lookup = if rng.chance(0.5) {
                    Lookup::Fast
                } else {
                    Lookup::Strict
                };
                // Pages that do not touch, or one registration would have them all.
                if page.is_multiple_of(2) {
                    let handle = get(cache, pages.part(page..page + 1), READ, lookup);
                    let handle = handle.expect("registered");
                    if pages.start == own.start && lookup == Lookup::Strict {
                        assert!(handle.id >= since[page], "stale");
                    }
                    if held.len() < 4 {
                        held.push(handle);
                    }
                }
            }
            4 | 5 => held.clear(),
            6 => {
                discard(own.part(page..page + 1));
                since[page] = cache.registrar().books.made();
            }
            _ => {
                replace(own.part(page..page + 1));
                since[page] = cache.registrar().books.made();
            }
        }
    }
    drop(held);
    own.unmap();
}
