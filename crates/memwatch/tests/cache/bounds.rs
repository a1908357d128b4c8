//! How much a cache holds.

use std::time::Duration;

use oarlock_memwatch::{CacheError, CacheOptions, Fallback, Lookup};

use crate::registrar::*;
use crate::support::*;

fn apart(pages: &Pages, number: usize) -> std::ops::Range<usize> {
    pages.part(2 * number..2 * number + 1)
}

#[test]
fn the_least_recently_used_goes_first_and_none_in_use() {
    let Some(cache) = cache(CacheOptions {
        max_regions: 4,
        ..CacheOptions::default()
    }) else {
        return;
    };
    let pages = Pages::new(40);
    let ids: Vec<usize> = (0..4).map(|n| read(&cache, apart(&pages, n)).id).collect();
    let used = read(&cache, apart(&pages, 1)).keep();
    assert_eq!(read(&cache, apart(&pages, 0)).id, ids[0], "used again");
    // 1 is in use; the order of the others is 2, 3, 0.
    drop(read(&cache, apart(&pages, 4)));
    drop(read(&cache, apart(&pages, 5)));
    let mut expected = [0, 1, 4, 5].map(|n| apart(&pages, n));
    expected.sort_by_key(|range| range.start);
    assert_eq!(cache.registrar().books.alive(), expected);
    assert_eq!(read(&cache, apart(&pages, 1)).id, used.id);
    for number in 6..18 {
        drop(read(&cache, apart(&pages, number)));
        assert!(cache.registrar().books.alive().contains(&apart(&pages, 1)));
    }
    assert_eq!(
        cache
            .registrar()
            .books
            .most
            .load(std::sync::atomic::Ordering::SeqCst),
        4
    );
    let statistics = cache.statistics();
    assert_eq!(
        (
            statistics.evictions,
            statistics.regions,
            statistics.uncached
        ),
        (14, 4, 0)
    );
}

#[test]
fn when_all_are_in_use_lookups_do_without_or_are_refused() {
    for when_full in [Fallback::Uncached, Fallback::Refuse] {
        let Some(cache) = cache(CacheOptions {
            max_regions: 2,
            when_full,
            ..CacheOptions::default()
        }) else {
            return;
        };
        let pages = Pages::new(8);
        let held = [0, 1].map(|number| read(&cache, apart(&pages, number)));
        match (when_full, get(&cache, apart(&pages, 2), READ, Lookup::Fast)) {
            (Fallback::Uncached, Ok(alone)) => {
                assert!(!alone.is_cached() && alone.is_valid());
                assert_eq!(alone.range(), apart(&pages, 2));
                let other = read(&cache, apart(&pages, 2));
                assert_ne!(other.id, alone.id, "not shared");
                discard(apart(&pages, 2));
                assert_eq!(cache.clean(), 0);
                assert!(!alone.is_valid(), "watched all the same");
                drop((alone, other));
                assert_eq!(cache.registrar().books.alive().len(), 2);
            }
            (Fallback::Refuse, Err(CacheError::Full { regions: 2, bytes })) => {
                assert_eq!(bytes, 2 * PAGE);
            }
            (_, result) => panic!("{result:?}"),
        }
        drop(held);
        assert!(read(&cache, apart(&pages, 2)).is_cached());
    }
}

#[test]
fn bytes_are_bounded_with_those_that_only_a_handle_keeps() {
    let Some(cache) = cache(CacheOptions {
        max_bytes: 8 * PAGE,
        ..CacheOptions::default()
    }) else {
        return;
    };
    let pages = Pages::new(64);
    drop(read(&cache, pages.part(0..3)));
    drop(read(&cache, pages.part(10..13)));
    drop(read(&cache, pages.part(20..24)));
    assert_eq!(
        cache.registrar().books.alive(),
        [pages.part(10..13), pages.part(20..24)]
    );
    let larger = read(&cache, pages.part(30..39));
    assert!(!larger.is_cached());
    assert_eq!(
        cache.statistics().evictions,
        1,
        "none for what does not fit at all"
    );
    // Replaced, but kept: 5 of the 8 pages.
    let old = read(&cache, pages.part(40..45)).keep();
    discard(pages.part(40..41));
    assert!(!read(&cache, pages.part(40..45)).is_cached());
    drop(old);
    assert!(read(&cache, pages.part(40..45)).is_cached());
    assert!(cache.statistics().bytes <= 8 * PAGE);
}

#[test]
fn a_merge_that_does_not_fit_is_not_made() {
    let Some(cache) = cache(CacheOptions {
        max_bytes: 6 * PAGE,
        ..CacheOptions::default()
    }) else {
        return;
    };
    let pages = Pages::new(16);
    let held = read(&cache, pages.part(0..4));
    // The union has 5 pages, beside the 4 that are in use.
    let beside = read(&cache, pages.part(3..5));
    assert_eq!(
        (beside.range(), beside.is_cached()),
        (pages.part(3..5), true)
    );
    drop((held, beside));
    assert_eq!(read(&cache, pages.part(0..5)).range(), pages.part(0..5));
}

#[test]
fn what_nobody_asks_for_goes_with_age() {
    let Some(cache) = cache(CacheOptions {
        // Of any age that two looks at the clock can tell.
        max_age: Some(Duration::from_nanos(1)),
        ..CacheOptions::default()
    }) else {
        return;
    };
    let pages = Pages::new(16);
    let used = read(&cache, apart(&pages, 0));
    drop(read(&cache, apart(&pages, 1)));
    let mut ended = cache.clean();
    while ended == 0 {
        ended = cache.clean();
    }
    assert_eq!(cache.registrar().books.alive(), [apart(&pages, 0)]);
    assert_eq!(cache.statistics().aged, 1);
    assert_eq!(read(&cache, apart(&pages, 0)).id, used.id);
}

#[test]
fn without_an_age_only_what_is_invalid_is_swept() {
    let Some(cache) = cache(CacheOptions::default()) else {
        return;
    };
    let pages = Pages::new(2000);
    for number in 0..1000 {
        drop(read(&cache, apart(&pages, number)));
    }
    assert_eq!(cache.clean(), 0);
    discard(pages.part(100..200));
    assert_eq!(cache.clean(), 50);
    assert_eq!(cache.clean(), 0);
    assert_eq!(cache.statistics().invalidated, 50);
    for number in 50..100 {
        drop(read(&cache, apart(&pages, number)));
    }
    discard(pages.part(300..400));
    // Each lookup that misses looks at a few.
    for _ in 0..200 {
        drop(read(&cache, apart(&pages, 999)));
        discard(apart(&pages, 999));
    }
    assert_eq!(cache.registrar().books.alive().len(), 950);
    assert_eq!(cache.clean(), 1);
    assert_eq!(cache.clear(), 949);
    assert_eq!(
        (cache.statistics().regions, cache.statistics().bytes),
        (0, 0)
    );
    assert_eq!(cache.clear(), 0);
}
