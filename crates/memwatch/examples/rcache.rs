//! The registration cache without a device, measured as `benches/peers/ucx_rcache.c` measures that of UCX; `benches/memory.sh` prints both.
//!
//! `rcache [SECONDS]` prints `name value`, one a line; `rcache stale CASE` says what one case does: a process of its own each.

use std::error::Error;
use std::hint::black_box;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use libc::c_void;
use oarlock_memwatch::{CacheOptions, Kind, Lookup, MrCache, Registrar, Validity, hooks};

const REGIONS: usize = 1024;
const LEN: usize = 64 << 10;
const PAGE: usize = 4096;
const UNMAPS: usize = 5000;
const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;
const PRIVATE: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
/// Linux `include/uapi/asm-generic/mman-common.h`, from 6.13 on.
const MADV_GUARD_INSTALL: i32 = 102;

/// Registering costs nothing, so that what is left is the cache.
struct Nothing(AtomicU64);

impl Registrar for Nothing {
    type Access = i32;
    type Registration = ();
    type Error = std::convert::Infallible;

    fn covers(held: i32, wanted: i32) -> bool {
        held & wanted == wanted
    }

    fn union(a: i32, b: i32) -> Option<i32> {
        Some(a | b)
    }

    unsafe fn register(
        &self,
        _: usize,
        _: usize,
        _: i32,
        _: Option<&Validity>,
    ) -> Result<(), Self::Error> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

type Cache = MrCache<Nothing>;

fn cache() -> Result<Cache, oarlock_memwatch::Error> {
    MrCache::new(Nothing(AtomicU64::new(0)), CacheOptions::default())
}

fn registrations(cache: &Cache) -> u64 {
    cache.registrar().0.load(Ordering::Relaxed)
}

fn look_up(cache: &Cache, start: usize, len: usize, how: Lookup) {
    // SAFETY: nothing is done with the memory.
    drop(unsafe { cache.get(start, len, READ_WRITE, how) }.expect("a registration"));
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [what, case] if what == "stale" => stale(case),
        [] => measure(0.5),
        [seconds] => measure(seconds.parse()?),
        _ => Err("usage: rcache [SECONDS] | rcache stale CASE".into()),
    }
}

fn measure(seconds: f64) -> Result<(), Box<dyn Error>> {
    print("unmap_plain", median_unmap(|_| ()));
    let cache = cache()?;
    let memory: Vec<usize> = (0..REGIONS)
        .map(|_| {
            // A hole between any two, so that nothing merges.
            let start = map(0, LEN + PAGE, libc::PROT_NONE, 0);
            map(start, LEN, READ_WRITE, libc::MAP_FIXED | libc::MAP_POPULATE)
        })
        .collect();
    let began = Instant::now();
    for start in &memory {
        look_up(&cache, *start, LEN, Lookup::Fast);
    }
    print("miss", nanoseconds(began, REGIONS));
    let count = (seconds * 2e6) as usize;
    for (name, how) in [("", Lookup::Fast), ("strict_", Lookup::Strict)] {
        let began = Instant::now();
        for _ in 0..count {
            look_up(&cache, memory[3] + 64, 1000, how);
        }
        print(&format!("{name}hit_same"), nanoseconds(began, count));
        let mut random = Random(88_172_645_463_325_252);
        let began = Instant::now();
        for _ in 0..count {
            look_up(&cache, memory[random.below(REGIONS)] + 64, 1000, how);
        }
        print(&format!("{name}hit_random"), nanoseconds(began, count));
        for threads in 1..=2 {
            let rate = rate(&cache, &memory, threads, how, seconds);
            print(&format!("{name}rate_{threads}"), rate);
        }
    }
    if registrations(&cache) != REGIONS as u64 {
        return Err(format!("{} registrations: a hit was a miss", registrations(&cache)).into());
    }
    let began = Instant::now();
    for _ in 0..count {
        // SAFETY: passes no memory.
        black_box(unsafe { libc::syscall(libc::SYS_getppid) });
    }
    print("system_call", nanoseconds(began, count));
    let watched = median_unmap(|start| look_up(&cache, start, LEN, Lookup::Fast));
    print("unmap_watched", watched);
    let validated = CASES[CASES.len() - 4..]
        .iter()
        .filter(|(case, _)| !case.ends_with("_told"))
        .map(|(case, _)| format!("{case}{VALIDATED}"));
    for case in CASES
        .iter()
        .map(|(case, _)| (*case).to_owned())
        .chain(validated)
    {
        let output = Command::new(std::env::current_exe()?)
            .args(["stale", &case])
            .output()?;
        match (
            output.status.success(),
            String::from_utf8(output.stdout)?.trim(),
        ) {
            (true, answer) => println!("stale_{case} {answer}"),
            (false, _) => println!("stale_{case} failed"),
        }
    }
    Ok(())
}

fn print(name: &str, value: f64) {
    println!("{name} {value:.1}");
}

fn nanoseconds(since: Instant, count: usize) -> f64 {
    since.elapsed().as_nanos() as f64 / count as f64
}

/// Lookups a second of all threads together.
fn rate(cache: &Cache, memory: &[usize], threads: u64, how: Lookup, seconds: f64) -> f64 {
    let (started, over) = (AtomicBool::new(false), AtomicBool::new(false));
    let total = AtomicU64::new(0);
    let mut began = Instant::now();
    thread::scope(|scope| {
        for number in 0..threads {
            let (started, over, total) = (&started, &over, &total);
            scope.spawn(move || {
                let mut random = Random(88_172_645_463_325_252 + number);
                while !started.load(Ordering::Acquire) {
                    std::hint::spin_loop();
                }
                let mut own = 0;
                while !over.load(Ordering::Acquire) {
                    for _ in 0..64 {
                        look_up(cache, memory[random.below(REGIONS)] + 64, 1000, how);
                    }
                    own += 64;
                }
                total.fetch_add(own, Ordering::Relaxed);
            });
        }
        began = Instant::now();
        started.store(true, Ordering::Release);
        thread::sleep(Duration::from_secs_f64(seconds));
        over.store(true, Ordering::Release);
    });
    total.load(Ordering::Relaxed) as f64 / began.elapsed().as_secs_f64()
}

/// Of mappings that were prepared, or not, before they are unmapped.
fn median_unmap(mut prepare: impl FnMut(usize)) -> f64 {
    let mut times: Vec<u128> = (0..UNMAPS)
        .map(|_| {
            let start = map(0, LEN, READ_WRITE, libc::MAP_POPULATE);
            prepare(start);
            let began = Instant::now();
            // SAFETY: the mapping just made; nobody refers to it.
            let result = unsafe { libc::munmap(start as *mut c_void, LEN) };
            let time = began.elapsed().as_nanos();
            assert_eq!(result, 0);
            time
        })
        .collect();
    times.sort_unstable();
    times[UNMAPS / 2] as f64
}

fn map(at: usize, len: usize, prot: i32, flags: i32) -> usize {
    // SAFETY: new memory, or in the place of memory of this program that nobody refers to.
    let start = unsafe { libc::mmap(at as *mut c_void, len, prot, PRIVATE | flags, -1, 0) };
    assert_ne!(start, libc::MAP_FAILED, "no memory");
    start as usize
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }
}

/// What happens to memory at an address; false: this system cannot do it.
type Change = fn(usize) -> bool;

/// Changes after which a registration is no longer that of the memory at its address.
const CASES: [(&str, Change); 12] = [
    ("munmap", |at| {
        // SAFETY: in this and the other cases: memory of this program that nobody refers to.
        let gone = unsafe { libc::munmap(at as *mut c_void, LEN) } == 0;
        map(at, LEN, READ_WRITE, libc::MAP_FIXED_NOREPLACE);
        gone
    }),
    ("map_over", |at| {
        map(at, LEN, READ_WRITE, libc::MAP_FIXED) == at
    }),
    ("dont_need", |at| {
        // SAFETY: as above.
        unsafe { libc::madvise(at as *mut c_void, LEN, libc::MADV_DONTNEED) == 0 }
    }),
    ("mremap_onto", |at| {
        let other = map(0, LEN, READ_WRITE, libc::MAP_POPULATE) as *mut c_void;
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // SAFETY: as above.
        unsafe { libc::mremap(other, LEN, LEN, flags, at as *mut c_void) as usize == at }
    }),
    ("raw_mremap_onto", |at| {
        let other = map(0, LEN, READ_WRITE, libc::MAP_POPULATE);
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // SAFETY: as above.
        unsafe { libc::syscall(libc::SYS_mremap, other, LEN, LEN, flags, at) as usize == at }
    }),
    ("raw_munmap", |at| {
        // SAFETY: as above.
        let gone = unsafe { libc::syscall(libc::SYS_munmap, at, LEN) } == 0;
        map(at, LEN, READ_WRITE, libc::MAP_FIXED_NOREPLACE);
        gone
    }),
    ("own_munmap", |at| {
        let gone = own_munmap(at, LEN);
        map(at, LEN, READ_WRITE, libc::MAP_FIXED_NOREPLACE);
        gone
    }),
    ("process_madvise", |at| {
        let part = libc::iovec {
            iov_base: at as *mut c_void,
            iov_len: LEN,
        };
        // SAFETY: as above; the vector lives through the call.
        unsafe {
            let own = libc::syscall(libc::SYS_pidfd_open, libc::getpid(), 0);
            let advice = libc::MADV_DONTNEED;
            libc::syscall(libc::SYS_process_madvise, own, &part, 1, advice, 0) == LEN as i64
        }
    }),
    ("guard", guard),
    ("guard_told", |at| {
        hooks::invalidate(at..at + LEN, Kind::Discarded);
        guard(at)
    }),
    ("attach_over", attach_over),
    ("attach_over_told", |at| {
        hooks::invalidate(at..at + LEN, Kind::Unmapped);
        attach_over(at)
    }),
];

fn guard(at: usize) -> bool {
    // SAFETY: as above.
    unsafe { libc::madvise(at as *mut c_void, LEN, MADV_GUARD_INSTALL) == 0 }
}

fn attach_over(at: usize) -> bool {
    // SAFETY: as above; the segment is new.
    unsafe {
        let id = libc::shmget(libc::IPC_PRIVATE, LEN, libc::IPC_CREAT | 0o600);
        let attached = libc::shmat(id, at as *const c_void, libc::SHM_REMAP);
        libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut());
        attached as usize == at
    }
}

/// Code that enters the kernel by itself.
#[cfg(target_arch = "x86_64")]
fn own_munmap(at: usize, len: usize) -> bool {
    let result: isize;
    // SAFETY: munmap by its number; the kernel changes rcx and r11. The memory is this program's, and nobody refers to it.
    unsafe {
        std::arch::asm!("syscall", inlateout("rax") libc::SYS_munmap as isize => result, in("rdi") at, in("rsi") len,
            out("rcx") _, out("r11") _);
    }
    result == 0
}

#[cfg(not(target_arch = "x86_64"))]
fn own_munmap(_: usize, _: usize) -> bool {
    false
}

/// At the end of the name of a case: what a lookup gives is validated, which is for changes that no event shows.
const VALIDATED: &str = "_validated";

fn stale(name: &str) -> Result<(), Box<dyn Error>> {
    let is_validated = name.ends_with(VALIDATED);
    let name = name.trim_end_matches(VALIDATED);
    let (_, change) = CASES
        .iter()
        .find(|(case, _)| *case == name)
        .ok_or("no such case")?;
    let cache = cache()?;
    let at = map(0, LEN, READ_WRITE, libc::MAP_POPULATE);
    look_up(&cache, at, LEN, Lookup::Strict);
    let before = registrations(&cache);
    if !change(at) {
        println!("not_run");
        return Ok(());
    }
    if is_validated {
        // SAFETY: nothing is done with the memory.
        let handle = unsafe { cache.get(at, LEN, READ_WRITE, Lookup::Strict) }?;
        handle.validate()?;
    }
    look_up(&cache, at, LEN, Lookup::Strict);
    let again = registrations(&cache) != before;
    println!("{}", if again { "right" } else { "stale" });
    Ok(())
}
