//! Limits of the process: mappings, watchers. One test, since they concern the whole process.

#[path = "support/mod.rs"]
mod support;

use oarlock_memwatch::{Error, Policy, Region, Watcher};
use support::*;

#[test]
fn limits_are_met_and_said() {
    watchdog(60);
    let Some(watcher) = watcher() else { return };
    many_regions_do_not_use_up_the_mappings(&watcher);
    without_mappings_whole_ones_are_watched(&watcher);
    drop(watcher);
    watchers_are_bounded();
}

fn mappings() -> usize {
    std::fs::read("/proc/self/maps")
        .expect("/proc")
        .iter()
        .filter(|byte| **byte == b'\n')
        .count()
}

fn limit() -> usize {
    let text = std::fs::read_to_string("/proc/sys/vm/max_map_count").expect("/proc");
    text.trim().parse().expect("a number")
}

/// Single pages with gaps take two mappings each: 32,753 of them are all that a process has by default. From a quarter on,
/// whole mappings are watched, and every region is still told what concerns it.
fn many_regions_do_not_use_up_the_mappings(watcher: &Watcher) {
    let count = limit() / 8 + 2000;
    if count > 40_000 {
        return oarlock_sim::not_run(
            "mappings",
            "this machine allows more mappings than the test makes",
        );
    }
    let pages = Pages::untouched(2 * count);
    let before = mappings();
    let regions: Vec<Region> = (0..count)
        .map(|number| {
            let start = pages.start + 2 * number * PAGE;
            watcher
                .register(start, PAGE, number as u64, Policy::Report)
                .expect("registered")
        })
        .collect();
    let used = mappings() - before;
    assert!(used <= limit() / 4 + 16, "{used} mappings");
    assert!(watcher.statistics().expect("counted").widened > 0);
    for number in [0, 1, 777, count / 2, count - 1] {
        pages.discard(2 * number..2 * number + 2);
        assert_eq!(cookies(watcher), [number as u64]);
    }
    drop(regions);
    pages.unmap();
}

/// The program has used up its mappings itself.
fn without_mappings_whole_ones_are_watched(watcher: &Watcher) {
    // Every second page without access: each is a mapping. A region in the middle of a large one would need more.
    let large = Pages::new(64);
    let filler = Pages::untouched(2 * limit());
    let mut protected = 0;
    for number in 0..limit() {
        let page = filler.start + (2 * number + 1) * PAGE;
        // SAFETY: pages of the test's own, that it does not use.
        if unsafe { libc::mprotect(page as *mut libc::c_void, PAGE, libc::PROT_NONE) } != 0 {
            break;
        }
        protected += 1;
    }
    let widened = watcher.statistics().expect("counted").widened;
    let part = large.part(10..12);
    let result = watcher.register(part.start, part.len(), 1, Policy::Report);
    // As many as two more may have been left by the failed call.
    let told = match &result {
        Ok(region) => {
            large.discard(10..11);
            let told = cookies(watcher);
            large.discard(20..21);
            told == [1] && cookies(watcher).is_empty() && !region.is_valid()
        }
        Err(error) => matches!(error, Error::OutOfMappings { .. }),
    };
    let widened = watcher.statistics().expect("counted").widened - widened;
    drop(result);
    filler.unmap();
    large.unmap();
    assert!(protected > 1000, "{protected} mappings made");
    assert!(told);
    assert_eq!(
        widened, 1,
        "the whole mapping was watched, which needs no other"
    );
}

fn watchers_are_bounded() {
    let mut watchers = Vec::new();
    let refused = loop {
        match Watcher::new() {
            Ok(watcher) => watchers.push(watcher),
            Err(error) => break error,
        }
        assert!(watchers.len() <= 64);
    };
    assert!(
        matches!(refused, Error::TooManyWatchers { max: 64 }),
        "{refused:?}"
    );
    assert_eq!(watchers.len(), 64);
    watchers.pop();
    drop(Watcher::new().expect("room again"));
}
