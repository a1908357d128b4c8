//! Lookups while a second thread recycles the addresses that are asked for, as fast as it can.
//!
//! Two threads take turns at the same addresses without waiting for each other: one maps, looks up and unmaps; the other one tries to
//! map the same address from the moment that the first is about to unmap it, and succeeds while that call still waits for its
//! event to be read. Each mapping has a serial number, which the Registrar writes down. A lookup that is given a registration
//! with another number than its own mapping's has been given one of memory that is gone.
//!
//! `OARLOCK_LOOKUPS=N` chooses how many lookups are made.

mod support;

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use oarlock_memwatch::{CacheOptions, Lookup, MrCache, Registrar, Validity};
use support::*;

const LEN: usize = 16 * PAGE;
/// Addresses that are recycled, one after the other, where the kernel maps nothing by itself.
const ADDRESSES: usize = 64;
const ARENA: usize = 0x2300_0000_0000;
/// Regions that nobody changes, and how many of them are looked up for each try of the second thread.
const UNCHANGED: usize = 256;
const PER_TRY: u64 = 32;
/// How many addresses the second thread is given again while the cache is weakened, at least.
const SHOWN: u64 = 500;
/// How many lookups the weakened cache gets to show that it is wrong; it needs from a thousand to some ten million.
const WEAKENED: u64 = 1_000_000_000;

/// A registration is the number of the mapping that it was made of.
struct Serials {
    by_address: [AtomicU64; ADDRESSES],
    registered: AtomicU64,
}

struct Serial {
    mapping: u64,
    /// Which registration this is.
    registration: u64,
}

impl Registrar for Serials {
    type Access = ();
    type Registration = Serial;
    type Error = Infallible;

    fn covers((): (), (): ()) -> bool {
        true
    }

    fn union((): (), (): ()) -> Option<()> {
        Some(())
    }

    unsafe fn register(
        &self,
        start: usize,
        len: usize,
        (): (),
        watch: Option<&Validity>,
    ) -> Result<Serial, Infallible> {
        assert!(watch.is_some() && len == LEN, "nothing is merged here");
        // The mapping is that of the thread that registers.
        let serial = number(start).map(|number| self.by_address[number].load(Ordering::Relaxed));
        Ok(Serial {
            mapping: serial.unwrap_or(0),
            registration: self.registered.fetch_add(1, Ordering::Relaxed),
        })
    }
}

fn address(number: usize) -> usize {
    ARENA + number * 2 * LEN
}

fn number(address: usize) -> Option<usize> {
    let number = address.checked_sub(ARENA)? / (2 * LEN);
    (number < ADDRESSES).then_some(number)
}

struct Race {
    cache: MrCache<Serials>,
    lookup: Lookup,
    unchanged: Pages,
    next_serial: AtomicU64,
    target: AtomicUsize,
    over: AtomicBool,
}

#[derive(Debug, Default)]
struct Tally {
    lookups: u64,
    stale: u64,
    /// Addresses that were given to a new mapping.
    recycled: u64,
    unchanged: u64,
    unchanged_hits: u64,
}

impl Race {
    fn new(lookup: Lookup) -> Option<Self> {
        // Whether this machine can.
        drop(watcher()?);
        let cache = MrCache::new(
            Serials {
                by_address: [const { AtomicU64::new(0) }; ADDRESSES],
                registered: AtomicU64::new(1),
            },
            CacheOptions {
                max_regions: UNCHANGED + 4 * ADDRESSES,
                max_merged: LEN,
                ..CacheOptions::default()
            },
        );
        Some(Self {
            cache: cache.expect("a cache"),
            lookup,
            unchanged: Pages::untouched(UNCHANGED * 2 * LEN / PAGE),
            next_serial: AtomicU64::new(1),
            target: AtomicUsize::new(0),
            over: AtomicBool::new(false),
        })
    }

    /// Maps an address and looks it up, if it is free.
    fn take(&self, number: usize, tally: &mut Tally) -> bool {
        let start = address(number);
        if try_map(Some(start), LEN).is_none() {
            return false;
        }
        let serial = self.next_serial.fetch_add(1, Ordering::Relaxed);
        self.cache.registrar().by_address[number].store(serial, Ordering::Relaxed);
        // SAFETY: nothing is done to the memory.
        let handle = unsafe { self.cache.get(start, LEN, (), self.lookup) };
        tally.lookups += 1;
        tally.recycled += 1;
        tally.stale += u64::from(handle.expect("registered").mapping != serial);
        true
    }

    /// The first thread, until the second has done its part.
    fn recycle(&self) -> Tally {
        let mut tally = Tally::default();
        for turn in 0usize.. {
            if self.over.load(Ordering::Relaxed) {
                break;
            }
            let number = turn % ADDRESSES;
            // Not free: the other thread has it still.
            if self.take(number, &mut tally) {
                self.target.store(number + 1, Ordering::SeqCst);
                unmap(address(number)..address(number) + LEN);
            }
        }
        tally
    }

    /// The second thread, until `enough` is true.
    fn look(&self, enough: impl Fn(&Tally) -> bool) -> Tally {
        let mut tally = Tally::default();
        let mut known = [0; UNCHANGED];
        let mut region = 0;
        while !enough(&tally) {
            let number = self.target.swap(0, Ordering::SeqCst);
            if number != 0 && self.take(number - 1, &mut tally) {
                unmap(address(number - 1)..address(number - 1) + LEN);
            }
            for _ in 0..PER_TRY {
                region = (region + 7) % UNCHANGED;
                let start = self.unchanged.start + region * 2 * LEN;
                // SAFETY: nothing is done to the memory.
                let handle = unsafe { self.cache.get(start, LEN, (), self.lookup) };
                let found = handle.expect("registered").registration;
                tally.unchanged += 1;
                tally.unchanged_hits += u64::from(known[region] == found);
                known[region] = found;
            }
            tally.lookups += PER_TRY;
        }
        self.over.store(true, Ordering::Relaxed);
        tally
    }

    fn run(&self, enough: impl Fn(&Tally) -> bool + Send) -> Tally {
        let (first, second) = std::thread::scope(|scope| {
            let first = scope.spawn(|| self.recycle());
            let second = scope.spawn(|| self.look(enough));
            (first.join(), second.join())
        });
        let (first, second) = (first.expect("no panic"), second.expect("no panic"));
        Tally {
            lookups: first.lookups + second.lookups,
            stale: first.stale + second.stale,
            recycled: first.recycled + second.recycled,
            ..second
        }
    }
}

fn lookups() -> u64 {
    let default = if cfg!(debug_assertions) {
        100_000
    } else {
        1_000_000
    };
    match std::env::var("OARLOCK_LOOKUPS") {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("OARLOCK_LOOKUPS={text} is not a number")),
        Err(_) => default,
    }
}

/// R-MEM-5: no registration of memory that is gone is handed out, and regions that nobody changes are found.
#[test]
fn strict_lookups_are_never_stale_while_addresses_are_recycled() {
    let Some(race) = Race::new(Lookup::Strict) else {
        return;
    };
    let wanted = lookups();
    let tally = race.run(|tally| tally.lookups >= wanted);
    let statistics = race.cache.statistics();
    let percent = 100.0 * tally.unchanged_hits as f64 / tally.unchanged as f64;
    println!(
        "\nrace: mode=strict lookups={} hits={} stale={} recycled={} unchanged_hit_percent={percent:.3}",
        tally.lookups, statistics.hits, tally.stale, tally.recycled,
    );
    assert_eq!(tally.stale, 0);
    assert!(tally.recycled > 0 && statistics.stale_avoided > 0);
    assert!(percent >= 99.0, "{percent}");
}

/// Without settling, registrations are found of memory that is gone: the race above is one that can be lost.
#[test]
fn lookups_without_settling_are_stale_while_addresses_are_recycled() {
    let Some(race) = Race::new(Lookup::Fast) else {
        return;
    };
    let tally =
        race.run(|tally| tally.stale > 0 && tally.recycled >= SHOWN || tally.lookups >= WEAKENED);
    println!(
        "\nrace: mode=weakened lookups={} stale={} recycled={}",
        tally.lookups, tally.stale, tally.recycled,
    );
    assert!(tally.stale > 0, "the race is not run");
}
