//! What goes wrong, and what is left of it: nothing.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use oarlock_memwatch::{CacheError, CacheOptions, Error, Fallback, Lookup, MrCache, Reason};

use crate::registrar::*;
use crate::support::*;

#[test]
fn a_registrar_that_fails_or_panics_leaves_nothing_behind() {
    let Some(cache) = cache(CacheOptions {
        max_regions: 2,
        ..CacheOptions::default()
    }) else {
        return;
    };
    let pages = Pages::new(4);
    // More often than there are places.
    for _ in 0..5 {
        cache.registrar().hook(|_, _| Err(Refused));
        let result = get(&cache, pages.part(0..2), READ, Lookup::Fast);
        assert!(
            matches!(result, Err(CacheError::Registrar(Refused))),
            "{result:?}"
        );
        cache.registrar().hook(|_, _| panic!("on purpose"));
        let result = catch_unwind(AssertUnwindSafe(|| {
            drop(get(&cache, pages.part(0..2), READ, Lookup::Fast));
        }));
        assert!(result.is_err());
        assert_eq!(
            (cache.statistics().regions, cache.statistics().bytes),
            (0, 0)
        );
    }
    cache.registrar().hook(|_, _| Ok(()));
    assert!(read(&cache, pages.part(0..2)).is_cached());
    assert_eq!(cache.statistics().misses, 11);
}

#[test]
fn a_registration_that_panics_when_dropped_gives_its_place_back() {
    let Some(cache) = cache(CacheOptions {
        max_regions: 1,
        ..CacheOptions::default()
    }) else {
        return;
    };
    let pages = Pages::new(4);
    drop(read(&cache, pages.part(0..1)));
    cache.registrar().books.on_drop(|| panic!("on purpose"));
    let result = catch_unwind(AssertUnwindSafe(|| cache.clear()));
    assert!(result.is_err());
    cache.registrar().books.on_drop(|| ());
    assert_eq!(
        (cache.statistics().regions, cache.statistics().bytes),
        (0, 0)
    );
    assert!(read(&cache, pages.part(2..3)).is_cached());
}

/// R-MEM-5: a registration is of the memory that was there from before to after.
#[test]
fn memory_that_changes_while_it_is_registered_is_registered_again() {
    let Some(cache) = cache(CacheOptions::default()) else {
        return;
    };
    let pages = Pages::new(4);
    let left = Arc::new(AtomicU32::new(0));
    let (part, counted) = (pages.part(0..1), Arc::clone(&left));
    cache.registrar().hook(move |_, _| {
        let before = counted.load(Ordering::SeqCst);
        if before > 0 {
            counted.store(before - 1, Ordering::SeqCst);
            discard(part.clone());
        }
        Ok(())
    });
    left.store(3, Ordering::SeqCst);
    assert!(read(&cache, pages.part(0..2)).is_valid());
    assert_eq!(cache.statistics().repeated, 3);
    assert_eq!(cache.registrar().books.alive().len(), 1);
    cache.clear();
    left.store(u32::MAX, Ordering::SeqCst);
    let result = get(&cache, pages.part(0..2), READ, Lookup::Fast);
    assert!(
        matches!(result, Err(CacheError::Changing { attempts: 4 })),
        "{result:?}"
    );
    assert_eq!(
        (
            cache.statistics().regions,
            cache.registrar().books.alive().len()
        ),
        (0, 0)
    );
    // Not what another lookup asks for: it is left out.
    left.store(0, Ordering::SeqCst);
    drop(read(&cache, pages.part(0..2)));
    left.store(u32::MAX, Ordering::SeqCst);
    assert_eq!(read(&cache, pages.part(1..3)).range(), pages.part(1..3));
}

#[test]
fn memory_that_cannot_be_watched_is_not_cached() {
    let file = tempfile();
    let start = map_read_only(&file);
    for when_unwatchable in [Fallback::Uncached, Fallback::Refuse] {
        let Some(cache) = cache(CacheOptions {
            when_unwatchable,
            ..CacheOptions::default()
        }) else {
            return;
        };
        let range = start..start + PAGE;
        match (
            when_unwatchable,
            get(&cache, range.clone(), READ, Lookup::Fast),
        ) {
            (Fallback::Uncached, Ok(alone)) => {
                assert!(!alone.is_cached() && !alone.is_valid());
                assert!(matches!(alone.validate(), Err(Error::NotWatchable { .. })));
                let other = read(&cache, range).keep();
                assert_ne!(other.id, alone.id);
                assert_eq!(cache.statistics().uncached, 2);
                drop((alone, other));
                assert_eq!(cache.registrar().books.alive().len(), 0);
            }
            (Fallback::Refuse, Err(CacheError::Watch(Error::NotWatchable { .. }))) => {}
            (_, result) => panic!("{result:?}"),
        }
    }
    unmap(start..start + PAGE);
}

fn tempfile() -> std::fs::File {
    let path = std::env::temp_dir().join(format!("oarlock-cache-{}", std::process::id()));
    std::fs::write(&path, [1; PAGE]).expect("a file");
    let file = std::fs::File::open(&path).expect("a file");
    std::fs::remove_file(&path).expect("a file");
    file
}

/// A shared mapping of a file that was opened for reading only.
fn map_read_only(file: &std::fs::File) -> usize {
    use std::os::fd::AsRawFd;
    let null = std::ptr::null_mut();
    // SAFETY: a new mapping.
    let start = unsafe {
        libc::mmap(
            null,
            PAGE,
            libc::PROT_READ,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        )
    };
    assert_ne!(start, libc::MAP_FAILED);
    start as usize
}

/// As in many containers: a seccomp filter answers EPERM.
#[test]
fn without_userfaultfd_nothing_is_cached() {
    thread::spawn(|| {
        if let Err(error) = refuse_system_call(libc::SYS_userfaultfd, libc::EPERM) {
            return oarlock_sim::not_run("seccomp", error);
        }
        let refused = MrCache::new(Keeper::new(), CacheOptions::default()).map(drop);
        let expected = Reason::NotPermitted;
        assert!(
            matches!(refused, Err(Error::Unavailable { reason, .. }) if reason == expected),
            "{refused:?}"
        );
        let cache = MrCache::new(
            Keeper::new(),
            CacheOptions {
                when_unavailable: Fallback::Uncached,
                ..CacheOptions::default()
            },
        )
        .expect("a cache that caches nothing");
        assert!(matches!(cache.capabilities(), Ok(None)));
        let pages = Pages::new(2);
        let handles = [0, 1].map(|_| read(&cache, pages.range()));
        assert_ne!(handles[0].id, handles[1].id);
        assert!(!handles[0].is_cached() && !handles[0].is_valid());
        drop(handles);
        let statistics = cache.statistics();
        assert_eq!(
            (statistics.misses, statistics.uncached, statistics.regions),
            (2, 2, 0)
        );
        assert_eq!(cache.registrar().books.alive().len(), 0);
    })
    .join()
    .expect("no panic");
}

/// R-MEM-5: the child has nothing of its parent's, and takes nothing from it.
#[test]
fn a_forked_child_finds_nothing_and_deregisters_nothing() {
    let Some(cache) = cache(CacheOptions::default()) else {
        return;
    };
    let pages = Pages::new(8);
    let replaced = read(&cache, pages.part(0..1));
    let held = read(&cache, pages.part(0..2));
    let kept = read(&cache, pages.part(4..5)).keep();
    discard(pages.part(4..5));
    let books = Arc::clone(&cache.registrar().books);
    let alive = books.alive();
    in_child(|| {
        let forked = |result: Got<'_>| matches!(result, Err(CacheError::Watch(Error::Forked)));
        let nothing = [Lookup::Fast, Lookup::Strict].into_iter().all(|lookup| {
            forked(get(&cache, pages.part(0..1), READ, lookup))
                && forked(get(&cache, pages.part(6..7), READ, lookup))
        });
        let invalid = !replaced.is_valid() && !held.is_valid() && !kept.is_valid();
        // SAFETY: copies of the child, dropped once, there; the process ends without going back.
        unsafe {
            drop(std::ptr::read(&replaced));
            drop(std::ptr::read(&held));
            drop(std::ptr::read(&kept));
        }
        let none = cache.clean() == 0 && cache.clear() == 0;
        // SAFETY: as above.
        unsafe { drop(std::ptr::read(&cache)) };
        nothing && invalid && none && books.alive() == alive
    });
    assert_eq!(books.alive(), alive);
    assert_eq!(read(&cache, pages.part(0..1)).id, held.id);
    drop((replaced, held, kept));
    cache.clear();
    assert_eq!(books.alive().len(), 0);
}

/// A thread that ends inside a call: nobody hangs, and what is found is right.
#[test]
fn a_thread_that_ends_with_the_lock_held_makes_misses_fail() {
    watchdog(60);
    let Some(cache) = cache(CacheOptions::default()) else {
        return;
    };
    let cache: &'static Cache = Box::leak(Box::new(cache));
    let pages = Pages::new(4);
    let (first, second) = (pages.part(0..2), pages.part(1..3));
    drop(read(cache, first.clone()));
    // Not joined: nothing of it ever says that it has ended.
    let deadly = second.clone();
    drop(thread::spawn(move || {
        drop(get(cache, deadly, DEADLY, Lookup::Fast))
    }));
    while !DYING.load(Ordering::SeqCst) {
        thread::yield_now();
    }
    let result = get(cache, second, READ, Lookup::Strict);
    assert!(
        matches!(result, Err(CacheError::Watch(Error::Broken))),
        "{result:?}"
    );
    assert!(matches!(cache.capabilities(), Err(Error::Broken)));
    assert_eq!((cache.clean(), cache.clear()), (0, 0));
    assert!(read(cache, first.clone()).is_valid());
    discard(first.clone());
    assert!(
        get(cache, first, READ, Lookup::Strict).is_err(),
        "never stale"
    );
}
