//! The registration cache: what lookups get, what is merged, who deregisters, what is refused.

#[path = "../support/mod.rs"]
mod support;

mod bounds;
mod failures;
mod model;
mod recycled_part;
mod registrar;

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use oarlock_memwatch::{CacheOptions, Error, Lookup};
use registrar::*;
use support::*;

/// Pages where the kernel maps nothing by itself, so that nobody is given the holes that a test makes.
fn far(count: usize) -> Pages {
    static NEXT: AtomicUsize = AtomicUsize::new(0x2500_0000_0000);
    let len = count * PAGE;
    let start = NEXT.fetch_add(len.next_multiple_of(1 << 30) + (1 << 30), Ordering::SeqCst);
    Pages {
        start: map(Some(start), len),
        len,
    }
}

#[test]
fn what_is_covered_is_found_and_the_rest_is_registered() {
    let Some(cache) = cache(CacheOptions::default()) else {
        return;
    };
    let pages = Pages::new(8);
    let first = read(&cache, pages.part(0..4));
    assert!(first.is_cached() && first.is_valid());
    assert_eq!((first.range(), first.access()), (pages.part(0..4), READ));
    for lookup in [Lookup::Fast, Lookup::Strict] {
        let inside = pages.start + 100..pages.start + 200;
        let again = get(&cache, inside, READ, lookup).expect("found");
        assert_eq!(again.id, first.id);
    }
    assert_eq!(cache.registrar().books.made(), 1);
    // An access that is not covered, and a range that is not.
    let more = get(&cache, pages.part(0..1), WRITE, Lookup::Fast).expect("registered");
    assert_eq!(
        (more.range(), more.access()),
        (pages.part(0..4), READ | WRITE)
    );
    let beyond = read(&cache, pages.part(3..5));
    assert_eq!(
        (beyond.range(), beyond.access()),
        (pages.part(0..5), READ | WRITE)
    );
    let statistics = cache.statistics();
    assert_eq!(
        (statistics.hits, statistics.misses, statistics.merged),
        (2, 3, 2)
    );
    assert_eq!(
        (statistics.regions, statistics.bytes),
        (3, (4 + 4 + 5) * PAGE)
    );
    drop((first, more, beyond));
    let statistics = cache.statistics();
    assert_eq!((statistics.regions, statistics.bytes), (1, 5 * PAGE));
    assert_eq!(cache.registrar().books.alive(), [pages.part(0..5)]);
}

#[test]
fn what_is_replaced_lives_while_it_is_in_use() {
    let Some(cache) = cache(CacheOptions::default()) else {
        return;
    };
    let pages = Pages::new(4);
    let old = read(&cache, pages.part(0..2)).keep();
    let new = read(&cache, pages.part(1..4));
    assert_eq!(
        (old.range(), new.range()),
        (pages.part(0..2), pages.part(0..4))
    );
    assert!(old.is_valid() && old.is_cached());
    assert_eq!(read(&cache, pages.part(0..1)).id, new.id, "found no more");
    assert_eq!(cache.registrar().books.alive().len(), 2);
    drop(old);
    assert_eq!(cache.registrar().books.alive(), [pages.part(0..4)]);
}

#[test]
fn neighbours_are_merged_like_a_binary_counter() {
    let Some(cache) = cache(CacheOptions::default()) else {
        return;
    };
    let pages = Pages::new(64);
    let mut registered = 0;
    for page in 0..64 {
        registered += read(&cache, pages.part(page..page + 1)).range().len() / PAGE;
    }
    // Each page as often as what it is part of doubles: 7 times at most, 6 of 12 on average.
    assert_eq!(cache.registrar().books.alive(), [pages.range()]);
    assert!(registered <= 7 * 64, "{registered}");
    // Not exactly beside it: nothing that nobody has asked for is registered.
    let other = Pages::new(4);
    drop(read(&cache, other.start..other.start + 100));
    let apart = read(&cache, other.start + 101..other.start + 200);
    assert_eq!(apart.range(), other.start + 101..other.start + 200);
}

#[test]
fn accesses_that_are_kept_apart_stay_beside_each_other() {
    let Some(cache) = cache(CacheOptions::default()) else {
        return;
    };
    let pages = Pages::new(4);
    let plain = read(&cache, pages.part(0..3));
    let alone = get(&cache, pages.part(1..4), READ | ALONE, Lookup::Fast).expect("registered");
    assert_eq!(alone.range(), pages.part(1..4));
    for _ in 0..2 {
        assert_eq!(read(&cache, pages.part(1..2)).id, plain.id);
        let found = get(&cache, pages.part(1..2), ALONE, Lookup::Fast).expect("found");
        assert_eq!(found.id, alone.id);
    }
    assert_eq!(cache.registrar().books.made(), 2);
}

#[test]
fn a_merge_that_is_refused_is_made_without_the_others() {
    let Some(cache) = cache(CacheOptions::default()) else {
        return;
    };
    let pages = Pages::new(8);
    let only = pages.part(0..2);
    let limit = only.clone();
    cache.registrar().hook(move |range, access| {
        // Memory that is read-only, as a part of a larger buffer.
        let overlaps = range.start < limit.end && limit.start < range.end;
        match overlaps && access & WRITE != 0 {
            true => Err(Refused),
            false => Ok(()),
        }
    });
    let first = get(&cache, pages.part(2..4), WRITE, Lookup::Fast).expect("writable");
    let whole = read(&cache, pages.part(0..4));
    assert_eq!((whole.range(), whole.access()), (pages.part(0..4), READ));
    for _ in 0..3 {
        let found = get(&cache, pages.part(2..4), WRITE, Lookup::Fast).expect("found");
        assert_eq!(found.id, first.id);
        assert_eq!(read(&cache, pages.part(0..4)).id, whole.id);
    }
    let refused = get(&cache, only, WRITE, Lookup::Fast);
    assert!(refused.is_err());
}

#[test]
fn with_an_alignment_neighbours_on_a_page_share() {
    let Some(cache) = cache(CacheOptions {
        alignment: PAGE,
        ..CacheOptions::default()
    }) else {
        return;
    };
    let pages = Pages::new(4);
    let first = read(&cache, pages.start + 100..pages.start + 200);
    assert_eq!(first.range(), pages.part(0..1));
    let second = read(&cache, pages.start + 3000..pages.start + 3100);
    assert_eq!(second.id, first.id);
    assert_eq!(
        read(&cache, pages.start + 4090..pages.start + 4100).range(),
        pages.part(0..2)
    );
}

#[test]
fn nothing_larger_than_the_limit_is_made_by_merging() {
    let Some(cache) = cache(CacheOptions {
        max_merged: 4 * PAGE,
        ..CacheOptions::default()
    }) else {
        return;
    };
    let pages = Pages::new(16);
    drop(read(&cache, pages.part(0..3)));
    assert_eq!(read(&cache, pages.part(2..4)).range(), pages.part(0..4));
    assert_eq!(read(&cache, pages.part(3..6)).range(), pages.part(3..6));
    assert_eq!(
        read(&cache, pages.part(2..10)).range(),
        pages.part(2..10),
        "asked for"
    );
    assert_eq!(
        cache.registrar().books.alive(),
        [pages.part(0..4), pages.part(2..10)]
    );
}

/// R-MEM-5: by whatever call it went.
#[test]
fn memory_that_changed_is_registered_anew() {
    let Some(cache) = cache(CacheOptions::default()) else {
        return;
    };
    let pages = far(8);
    let changes: [&dyn Fn(); 3] = [
        &|| pages.discard(1..2),
        &|| {
            pages.unmap_part(1..2);
            map(Some(pages.part(1..2).start), PAGE);
        },
        &|| {
            let part = pages.part(0..4);
            // SAFETY: unmaps memory of this test, around the C library.
            let result = unsafe { libc::syscall(libc::SYS_munmap, part.start, part.len()) };
            assert_eq!(result, 0);
            map(Some(part.start), part.len());
        },
    ];
    for (turn, change) in changes.iter().enumerate() {
        let before = read(&cache, pages.part(0..4));
        let other = read(&cache, pages.part(6..7));
        change();
        let after = read(&cache, pages.part(0..4));
        assert_ne!(after.id, before.id);
        assert!(after.is_valid() && !before.is_valid());
        assert_eq!(read(&cache, pages.part(6..7)).id, other.id, "not concerned");
        let statistics = cache.statistics();
        assert_eq!(statistics.stale_avoided, turn as u64 + 1);
        assert_eq!(statistics.invalidated, turn as u64 + 1);
    }
    assert_eq!(cache.registrar().books.alive().len(), 2);
}

/// R-MEM-5: what has no event is found on demand.
#[test]
fn what_is_silent_is_found_by_validating() {
    let Some(cache) = cache(CacheOptions::default()) else {
        return;
    };
    let pages = Pages::new(4);
    let handle = read(&cache, pages.range());
    match handle.validate() {
        Ok(found) => assert!(found.is_intact()),
        Err(error) => return oarlock_sim::not_run("PAGEMAP_SCAN", error),
    }
    // Another mapping in its place, behind the back of userfaultfd.
    // SAFETY: memory of this test, that it does not touch any more.
    let (id, at) = unsafe {
        let id = libc::shmget(libc::IPC_PRIVATE, PAGE, 0o600 | libc::IPC_CREAT);
        let at = libc::shmat(id, pages.part(1..2).start as *const _, libc::SHM_REMAP);
        libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut());
        (id, at)
    };
    if id < 0 || at as usize != pages.part(1..2).start {
        return oarlock_sim::not_run("System V shared memory", std::io::Error::last_os_error());
    }
    assert!(handle.is_valid(), "silent");
    assert!(!handle.validate().expect("asked").is_intact());
    assert!(!handle.is_valid());
    assert_ne!(read(&cache, pages.range()).id, handle.id);
}

#[test]
fn registrations_are_dropped_without_a_lock() {
    let Some(cache) = cache(CacheOptions {
        max_regions: 4,
        ..CacheOptions::default()
    }) else {
        return;
    };
    let pages = Pages::new(64);
    let cache = std::sync::Arc::new(cache);
    let inner = std::sync::Arc::downgrade(&cache);
    let again = std::sync::Arc::new(AtomicUsize::new(0));
    let counted = std::sync::Arc::clone(&again);
    // With a lock held, this would find it held by this thread.
    cache.registrar().books.on_drop(move || {
        thread_local! {
            /// What is deregistered for the lookup below looks nothing up.
            static INSIDE: Cell<bool> = const { Cell::new(false) };
        }
        if INSIDE.replace(true) {
            return;
        }
        if let Some(cache) = inner.upgrade() {
            cache.clean();
            drop(read(&cache, 0x2400_0000_0000..0x2400_0000_0010));
            counted.fetch_add(1, Ordering::SeqCst);
        }
        INSIDE.set(false);
    });
    let here = map(Some(0x2400_0000_0000), PAGE);
    // By eviction, by merging, by a sweep, by the last handle, by giving up all.
    for page in 0..8 {
        drop(read(&cache, pages.part(4 * page..4 * page + 1)));
    }
    drop(read(&cache, pages.part(26..29)));
    drop(read(&cache, pages.part(40..41)));
    pages.discard(40..41);
    cache.clean();
    let kept = read(&cache, pages.part(44..45));
    pages.discard(44..45);
    assert_ne!(read(&cache, pages.part(44..45)).id, kept.id);
    drop(kept);
    cache.clear();
    assert!(again.load(Ordering::SeqCst) >= 10);
    unmap(here..here + PAGE);
}

#[test]
fn a_kept_handle_goes_to_another_thread_and_outlives_the_cache() {
    let Some(cache) = cache(CacheOptions::default()) else {
        return;
    };
    let books = std::sync::Arc::clone(&cache.registrar().books);
    let pages = Pages::new(2);
    let kept: Kept = read(&cache, pages.range()).keep();
    let second = read(&cache, pages.range()).keep();
    drop(cache);
    thread::spawn(move || drop(kept)).join().expect("no panic");
    assert_eq!(books.alive().len(), 1);
    assert!(second.is_valid(), "still watched");
    pages.discard(0..1);
    drop(second);
    assert_eq!(books.alive().len(), 0);
}

#[test]
fn nonsense_is_refused() {
    let Some(cache) = cache(CacheOptions::default()) else {
        return;
    };
    for (start, len) in [(4096, 0), (usize::MAX - 10, 11), (usize::MAX - 10, 10)] {
        // SAFETY: no memory.
        let result = unsafe { cache.get(start, len, READ, Lookup::Fast) };
        assert!(
            matches!(
                result,
                Err(oarlock_memwatch::CacheError::Watch(Error::BadRange { .. }))
            ),
            "{result:?}"
        );
    }
    let pages = far(4);
    let gone = pages.part(1..2);
    unmap(gone.clone());
    for range in [gone, pages.range()] {
        let result = get(&cache, range, READ, Lookup::Fast);
        assert!(
            matches!(
                result,
                Err(oarlock_memwatch::CacheError::Watch(Error::NotMapped { .. }))
            ),
            "{result:?}"
        );
    }
    assert_eq!(cache.statistics().regions, 0);
}
