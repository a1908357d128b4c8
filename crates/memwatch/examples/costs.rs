//! What watching costs on this machine: `cargo run --release -p oarlock-memwatch --example costs`.

use std::hint::black_box;
use std::time::Instant;

use oarlock_memwatch::{Policy, Watcher};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

const LEN: usize = 64 << 10;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let watcher = Watcher::new()?;
    let memory = vec![1u8; LEN];
    let region = watcher.register(memory.as_ptr() as usize, LEN, 0, Policy::Report)?;
    let print = |what: &str, nanoseconds: f64| println!("{what:<44} {nanoseconds:>9.1} ns");
    print(
        "is_valid",
        mean(10_000_000, || assert!(black_box(&region).is_valid())),
    );
    print(
        "generation",
        mean(10_000_000, || {
            assert!(black_box(watcher.generation()) < u64::MAX)
        }),
    );
    print(
        "getppid, a bare system call",
        mean(1_000_000, || {
            let _ = black_box(rustix::process::getppid());
        }),
    );
    print(
        "settle and is_valid",
        mean(1_000_000, || {
            assert!(watcher.settle().is_ok() && region.is_valid())
        }),
    );
    let validity = region.validity();
    print(
        "hold and let go",
        mean(10_000_000, || {
            assert!(black_box(&validity).hold().is_some())
        }),
    );
    print(
        "register and deregister 64 KiB",
        mean(100_000, || {
            drop(watcher.register(memory.as_ptr() as usize, LEN, 1, Policy::Report));
        }),
    );
    let watched = |start| {
        std::mem::forget(watcher.register(start, LEN, start as u64, Policy::Deregister));
    };
    for (what, at) in percentiles(|_| ()) {
        print(&format!("munmap of 64 KiB, plain, {what}"), at);
    }
    for (what, at) in percentiles(watched) {
        print(&format!("munmap of 64 KiB, watched, {what}"), at);
    }
    Ok(())
}

fn mean(count: u32, mut what: impl FnMut()) -> f64 {
    let began = Instant::now();
    for _ in 0..count {
        what();
    }
    began.elapsed().as_nanos() as f64 / f64::from(count)
}

/// Of 20,000 mappings, each prepared before it is unmapped.
fn percentiles(mut prepare: impl FnMut(usize)) -> [(&'static str, f64); 3] {
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    let mut times: Vec<u128> = (0..20_000)
        .map(|_| {
            let flags = MapFlags::PRIVATE | MapFlags::POPULATE;
            // SAFETY: a new mapping.
            let start = unsafe { mmap_anonymous(std::ptr::null_mut(), LEN, prot, flags) };
            let start = start.expect("memory");
            prepare(start as usize);
            let began = Instant::now();
            // SAFETY: the mapping just made; nobody refers to it.
            let unmapped = unsafe { munmap(start, LEN) };
            let time = began.elapsed().as_nanos();
            unmapped.expect("a mapping of ours");
            time
        })
        .collect();
    times.sort_unstable();
    [("p50", 50), ("p90", 90), ("p99", 99)]
        .map(|(what, percent)| (what, times[times.len() * percent / 100] as f64))
}
