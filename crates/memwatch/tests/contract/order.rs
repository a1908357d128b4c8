//! The ordering hazard: an address is given to somebody else before the event of its unmapping is read.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use oarlock_memwatch::{Policy, Validity};

use crate::support::*;

/// How many recycled addresses are looked at strictly; a long run raises it.
fn wanted() -> u64 {
    let variable = std::env::var("OARLOCK_MEMWATCH_RECYCLED").ok();
    variable.and_then(|text| text.parse().ok()).unwrap_or(5_000)
}

/// R-MEM-5: after settling, no region is valid whose address a second thread got from the kernel meanwhile; without settling, some
/// are, which shows that this test can fail.
#[test]
fn a_recycled_address_is_never_valid_after_settling() {
    let Some(watcher) = watcher() else { return };
    if !watcher.capabilities().is_strict() {
        return oarlock_sim::not_run("userfaultfd", "this kernel's count of changes is one bit");
    }
    // Where the kernel puts nothing by itself, so that nobody else gets this place.
    let (place, len) = (0x2000_0000_0000, 16 * PAGE);
    let published: Mutex<Option<Validity>> = Mutex::new(None);
    let [done, unmapping] = [const { AtomicBool::new(false) }; 2];
    let [strict, strict_stale, weak, weak_stale] = [const { AtomicU64::new(0) }; 4];
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let deadline = Instant::now() + Duration::from_secs(30 + wanted() / 1000);

    thread::scope(|scope| {
        scope.spawn(|| {
            let mut cookie = 0;
            while !done.load(Ordering::Relaxed) {
                let Some(start) = try_map(Some(place), len) else {
                    thread::yield_now();
                    continue;
                };
                cookie += 1;
                let region = watcher
                    .register(start, len, cookie, Policy::Report)
                    .expect("registered");
                *published.lock().expect("no panic") = Some(region.validity());
                unmapping.store(true, Ordering::SeqCst);
                unmap(start..start + len);
                unmapping.store(false, Ordering::SeqCst);
                assert!(
                    watcher.settle().is_ok() && !region.is_valid(),
                    "after its own munmap"
                );
            }
        });
        scope.spawn(|| {
            let mut spins = 0u32;
            let enough = || count(&strict) >= wanted() && count(&weak_stale) > 0;
            while !enough() && Instant::now() < deadline {
                if !unmapping.load(Ordering::SeqCst) {
                    // Not for long: on a loaded machine this may be the processor that the others wait for.
                    spins += 1;
                    match spins % 64 {
                        0 => thread::yield_now(),
                        _ => std::hint::spin_loop(),
                    }
                    continue;
                }
                let Some(start) = try_map(Some(place), len) else {
                    continue;
                };
                // The region that was last published is of memory that is gone, since this place was free.
                let region = published.lock().expect("no panic").clone();
                if let Some(region) = region {
                    let is_strict = count(&weak) > count(&strict);
                    if is_strict {
                        watcher.settle().expect("settled");
                    }
                    let (looks, stale) = match is_strict {
                        true => (&strict, &strict_stale),
                        false => (&weak, &weak_stale),
                    };
                    stale.fetch_add(u64::from(region.is_valid()), Ordering::Relaxed);
                    looks.fetch_add(1, Ordering::Relaxed);
                }
                unmap(start..start + len);
            }
            done.store(true, Ordering::Relaxed);
        });
    });
    println!(
        "recycled addresses: {} looked at strictly, {} stale; {} without settling, {} stale",
        count(&strict),
        count(&strict_stale),
        count(&weak),
        count(&weak_stale)
    );
    assert_eq!(count(&strict_stale), 0);
    assert!(
        count(&weak_stale) > 0,
        "the window was never hit: this run shows nothing"
    );
    assert!(count(&strict) > 0);
}

/// Several threads that change memory at once, each of which must find its own change.
#[test]
fn each_thread_finds_its_own_changes_after_settling() {
    let Some(watcher) = watcher() else { return };
    thread::scope(|scope| {
        for number in 0..4u64 {
            let watcher = &watcher;
            scope.spawn(move || {
                for round in 0..500 {
                    let pages = Pages::new(4);
                    let region = watcher
                        .register(pages.start, pages.len, number << 32 | round, Policy::Report)
                        .expect("registered");
                    match round % 3 {
                        0 => pages.discard(1..2),
                        1 => pages.unmap_part(3..4),
                        _ => {}
                    }
                    watcher.settle().expect("settled");
                    // Spurious invalidation is allowed where another thread freed these addresses just before; here only after a
                    // change of its own is something promised.
                    assert!(round % 3 == 2 || !region.is_valid());
                    drop(region);
                    pages.discard(0..1);
                    unmap(pages.part(0..3));
                    if round % 3 != 1 {
                        pages.unmap_part(3..4);
                    }
                }
            });
        }
    });
    assert_eq!(watcher.regions().expect("counted"), 0);
}
