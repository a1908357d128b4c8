//! What lookups cost on this machine, as JSON: `cargo run --release -p oarlock-memwatch --example cache`.
//!
//! The Registrar registers nothing, so these are the cache's own costs. A hit is a lookup of one of 1,024 regions by chance, with the
//! handle dropped; a miss watches, registers and publishes. Beside a strict hit stand the cheapest system call, and the cheapest ioctl
//! of a descriptor, which is what settling costs in the kernel.

use std::convert::Infallible;
use std::hint::black_box;
use std::os::fd::AsRawFd;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use oarlock_memwatch::{CacheOptions, Lookup, MrCache, Registrar, Validity};
use rustix::io::Errno;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

struct Null;

impl Registrar for Null {
    type Access = u32;
    type Registration = ();
    type Error = Infallible;

    fn covers(held: u32, wanted: u32) -> bool {
        held & wanted == wanted
    }

    fn union(a: u32, b: u32) -> Option<u32> {
        Some(a | b)
    }

    unsafe fn register(
        &self,
        _: usize,
        _: usize,
        _: u32,
        _: Option<&Validity>,
    ) -> Result<(), Infallible> {
        Ok(())
    }
}

const REGIONS: usize = 1024;
const LEN: usize = 64 << 10;
const SPACING: usize = LEN + 4096;
const BATCH: usize = 2000;
const ROUNDS: usize = 5;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let memory = Memory::new(REGIONS * SPACING)?;
    let miss = best(|| misses(&memory));
    let cache = MrCache::new(Null, CacheOptions::default())?;
    for region in 0..REGIONS {
        get(&cache, memory.region(region), LEN, Lookup::Fast);
    }
    let same = best(|| {
        per_call(2_000_000, |_| {
            get(&cache, memory.region(3) + 64, 1000, Lookup::Fast);
        })
    });
    let one = best(|| hits(&cache, &memory, 1, Lookup::Fast));
    let two = best(|| hits(&cache, &memory, 2, Lookup::Fast));
    let bare = best(|| {
        per_call(1_000_000, |_| {
            let _ = black_box(rustix::process::getppid());
        })
    });
    let eventfd = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC)?;
    let ioctl = best(|| {
        per_call(1_000_000, |_| {
            // SAFETY: an eventfd has no such request, and none looks at the argument.
            black_box(unsafe { libc::ioctl(eventfd.as_raw_fd(), 0xAA06, 0) });
        })
    });
    let strict = best(|| hits(&cache, &memory, 1, Lookup::Strict));
    let strict_two = best(|| hits(&cache, &memory, 2, Lookup::Strict));
    assert_eq!(
        cache.statistics().misses,
        REGIONS as u64,
        "everything else was a hit"
    );
    println!(
        "{{\"fast_hit_same_region_ns\": {same:.1}, \"fast_hit_ns\": {one:.1}, \"fast_hit_2_threads_ns\": {two:.1}, \
         \"fast_hits_per_second\": {:.0}, \"fast_hits_per_second_2_threads\": {:.0}, \"bare_system_call_ns\": {bare:.1}, \
         \"bare_ioctl_ns\": {ioctl:.1}, \"strict_hit_ns\": {strict:.1}, \"strict_hit_2_threads_ns\": {strict_two:.1}, \"miss_ns\": {miss:.1}}}",
        1e9 / one,
        2e9 / two,
    );
    Ok(())
}

/// Of 1,024 regions that were not cached: the median of 32 batches.
fn misses(memory: &Memory) -> f64 {
    let cache = MrCache::new(Null, CacheOptions::default()).expect("a cache");
    let mut batches: Vec<Duration> = (0..32)
        .map(|batch| {
            let began = Instant::now();
            for region in batch * REGIONS / 32..(batch + 1) * REGIONS / 32 {
                get(&cache, memory.region(region), LEN, Lookup::Fast);
            }
            began.elapsed()
        })
        .collect();
    assert_eq!(cache.statistics().misses, REGIONS as u64);
    batches.sort_unstable();
    nanoseconds(batches[16], REGIONS / 32)
}

/// What a hit takes each of some threads.
fn hits(cache: &MrCache<Null>, memory: &Memory, threads: usize, lookup: Lookup) -> f64 {
    let start = Barrier::new(threads);
    let run = || {
        start.wait();
        per_call(1_000_000, |random| {
            get(cache, memory.region(random % REGIONS) + 64, 1000, lookup);
        })
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
        let took = threads
            .into_iter()
            .map(|thread| thread.join().expect("no panic"));
        took.fold(0.0, f64::max)
    })
}

fn get(cache: &MrCache<Null>, start: usize, len: usize, lookup: Lookup) {
    // SAFETY: registers nothing.
    drop(black_box(
        unsafe { cache.get(start, len, 1, lookup) }.expect("registered"),
    ));
}

/// The median of batches, which another program that has the processor for a while does not change.
fn per_call(count: usize, mut what: impl FnMut(usize)) -> f64 {
    let mut state = 1u64;
    let mut batches: Vec<Duration> = (0..count / BATCH)
        .map(|_| {
            let began = Instant::now();
            for _ in 0..BATCH {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                what((state >> 33) as usize);
            }
            began.elapsed()
        })
        .collect();
    batches.sort_unstable();
    nanoseconds(batches[batches.len() / 2], BATCH)
}

fn nanoseconds(time: Duration, count: usize) -> f64 {
    time.as_nanos() as f64 / count as f64
}

fn best(mut what: impl FnMut() -> f64) -> f64 {
    (0..ROUNDS).map(|_| what()).fold(f64::INFINITY, f64::min)
}

/// Mappings of their own, with pages between them that nobody can access.
struct Memory {
    start: usize,
    len: usize,
}

impl Memory {
    fn new(len: usize) -> Result<Self, Errno> {
        // SAFETY: a new mapping.
        let start = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                len,
                ProtFlags::empty(),
                MapFlags::PRIVATE,
            )
        }?;
        for offset in (0..len).step_by(SPACING) {
            // SAFETY: a part of it, from the first to the last byte of a page.
            unsafe {
                mprotect(
                    start.byte_add(offset),
                    LEN,
                    MprotectFlags::READ | MprotectFlags::WRITE,
                )
            }?;
        }
        Ok(Self {
            start: start as usize,
            len,
        })
    }

    fn region(&self, number: usize) -> usize {
        self.start + number * SPACING
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping made above; nobody refers to it.
        let _ = unsafe { munmap(self.start as *mut _, self.len) };
    }
}
