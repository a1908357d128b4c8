//! Four threads do anything to their memory, and what the cache gives them is compared with what they see, byte by byte.

#[path = "../support/mod.rs"]
mod support;

mod caches;
mod pinned;
mod world;

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use caches::{Cache, Notified, Untold};
use oarlock_memwatch::Error;
use oarlock_sim::{for_each_seed, not_run, seeds};
use support::PAGE;
use world::World;

const THREADS: u64 = 4;

/// The largest registration: what fits into the pipe of an ordinary user.
pub(crate) const LARGEST: usize = 256 * PAGE;

/// What happened in all threads.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Lookups, of them of memory that nothing had happened to since the last one, and of those how many found the registration.
    pub(crate) lookups: AtomicU64,
    pub(crate) unchanged: AtomicU64,
    pub(crate) unchanged_hits: AtomicU64,
    /// Strict lookups whose registration showed something else than the program saw.
    pub(crate) stale: AtomicU64,
    /// Of these, those of blocks of the allocator.
    pub(crate) block_stale: AtomicU64,
    /// The same of fast lookups, which may.
    pub(crate) fast_stale: AtomicU64,
    /// Operations of each kind, by [`world::KINDS`].
    pub(crate) operations: [AtomicU64; world::KINDS.len()],
}

pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// R-MEM-5: mmap, munmap, mremap, madvise, brk, MAP_FIXED, threads that end, forks and an allocator under load, on four threads: no
/// strict lookup gives pages that are not those of the program.
#[test]
fn random_operations_agree_with_the_contents_of_pages() {
    support::watchdog(45 * 60);
    let cache = match Notified::new() {
        Ok(cache) => cache,
        Err(error @ Error::Unavailable { .. }) => return not_run("userfaultfd", error),
        Err(error) => panic!("{error}"),
    };
    let tally = Tally::default();
    for_each_seed(50, |seed| {
        run(&cache, &tally, seed);
        assert_eq!(get(&tally.stale), 0, "stale registrations");
    });
    report("MrCache", &tally);
    println!("chaos: {:?}", cache.statistics());
    if seeds(50).len() >= 20 {
        for (kind, times) in world::KINDS.iter().zip(&tally.operations) {
            assert!(get(times) > 0, "nothing of kind {kind}");
        }
        let (hits, all) = (get(&tally.unchanged_hits), get(&tally.unchanged));
        assert!(
            hits * 100 >= all * 99,
            "{hits} of {all} lookups of unchanged memory hit"
        );
    }
}

/// The same operations and the same judge show what a cache does that is told nothing.
#[test]
fn a_cache_that_is_told_nothing_is_caught() {
    support::watchdog(45 * 60);
    let (cache, tally) = (Untold::default(), Tally::default());
    for seed in 0..2 {
        run(&cache, &tally, seed);
    }
    report("untold", &tally);
    assert!(get(&tally.stale) > 0, "the judge sees nothing");
}

fn run(cache: &dyn Cache, tally: &Tally, seed: u64) {
    // One at a time: the addresses are fixed, and there is one heap.
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _alone = ALONE.lock();
    // Before there is any stack that is not inherited.
    world::fork();
    thread::scope(|scope| {
        for number in 0..THREADS {
            scope.spawn(move || World::new(cache, tally, seed, number).run());
        }
    });
}

fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

fn report(name: &str, tally: &Tally) {
    let operations: Vec<String> = world::KINDS
        .iter()
        .zip(&tally.operations)
        .map(|(kind, times)| format!("{kind} {}", get(times)))
        .collect();
    println!("chaos: {name}: {}", operations.join(", "));
    println!(
        "chaos: {name}: allocator={} lookups={} unchanged={} hits={} stale={} block_stale={} fast_stale={}",
        allocator(),
        get(&tally.lookups),
        get(&tally.unchanged),
        get(&tally.unchanged_hits),
        get(&tally.stale),
        get(&tally.block_stale),
        get(&tally.fast_stale),
    );
}

/// Whose malloc this program uses.
fn allocator() -> &'static str {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("/proc");
    ["jemalloc", "mimalloc"]
        .into_iter()
        .find(|name| maps.contains(&format!("lib{name}")))
        .unwrap_or("glibc")
}
