//! What has no event: asked for, and told by the program. That every silent operation is found is a test of the table
//! (`tests/operations`).

use libc::c_void;
use oarlock_memwatch::{Error, Kind, Mode, Options, Policy, Watcher};

use crate::support::*;

/// Linux `include/uapi/asm-generic/mman-common.h`.
const MADV_GUARD_INSTALL: libc::c_int = 102;

#[test]
fn pages_are_counted_by_what_they_are() {
    let Some(watcher) = watcher() else { return };
    let pages = Pages::untouched(8);
    pages.write(2 * PAGE);
    pages.write(5 * PAGE);
    let part = pages.part(1..7);
    let region = watcher
        .register(part.start + 100, part.len() - 200, 1, Policy::Report)
        .expect("registered");
    let found = region.validate().expect("asked");
    let counted = [found.unwatched, found.guarded, found.absent, found.present];
    assert_eq!(counted, [0, 0, 4 * PAGE, 2 * PAGE]);
    assert!(found.is_intact() && region.is_valid());
    let found = watcher.validate(pages.range()).expect("asked");
    assert_eq!(found.unwatched, 2 * PAGE, "what is around it");
    assert!(!found.is_intact());
    // What has an event is no finding: it was reported before.
    pages.unmap_part(2..3);
    let found = region.validate().expect("asked");
    assert_eq!((found.unwatched, found.present), (PAGE, PAGE));
    assert_eq!(drain(&watcher)[0].hint, Some(pages.part(2..3)));
}

#[test]
fn what_is_found_invalidates_exactly_the_regions_there() {
    let Some(watcher) = watcher() else { return };
    let pages = Pages::new(8);
    let register = |cookie, part: std::ops::Range<usize>| {
        let part = pages.part(part);
        watcher
            .register(part.start, part.len(), cookie, Policy::Report)
            .expect("registered")
    };
    let regions = [register(1, 0..8), register(2, 3..4), register(3, 5..8)];
    // SAFETY: pages of the test's own, that it does not use afterwards.
    let installed = unsafe {
        libc::madvise(
            pages.part(2..4).start as *mut c_void,
            2 * PAGE,
            MADV_GUARD_INSTALL,
        )
    };
    if installed != 0 {
        return oarlock_sim::not_run("guard pages", std::io::Error::last_os_error());
    }
    watcher.settle().expect("settled");
    assert!(regions.iter().all(|region| region.is_valid()), "silent");
    let found = regions[0].validate().expect("asked");
    if !found.sees_guards {
        return oarlock_sim::not_run("guard pages", "this kernel does not tell them apart");
    }
    assert_eq!(found.guarded, 2 * PAGE);
    assert_eq!(
        regions.each_ref().map(|region| region.is_valid()),
        [false, false, true]
    );
    let events = drain(&watcher);
    let mut said: Vec<_> = events
        .iter()
        .map(|event| (event.cookie, event.kind, event.hint.clone()))
        .collect();
    said.sort_by_key(|(cookie, ..)| *cookie);
    assert_eq!(
        said,
        [
            (1, Kind::Discarded, Some(pages.part(2..4))),
            (2, Kind::Discarded, Some(pages.part(3..4)))
        ]
    );
    assert_eq!(watcher.statistics().expect("counted").told, 1);
}

/// More parts than are told apart: nothing is overlooked.
#[test]
fn a_region_full_of_guard_pages_is_invalidated_as_a_whole() {
    let Some(watcher) = watcher() else { return };
    let pages = Pages::new(512);
    let region = watcher
        .register(pages.start, pages.len, 1, Policy::Report)
        .expect("registered");
    for page in (0..512).step_by(2) {
        let start = pages.part(page..page + 1).start as *mut c_void;
        // SAFETY: as above.
        if unsafe { libc::madvise(start, PAGE, MADV_GUARD_INSTALL) } != 0 {
            return oarlock_sim::not_run("guard pages", std::io::Error::last_os_error());
        }
    }
    let found = region.validate().expect("asked");
    if !found.sees_guards {
        return oarlock_sim::not_run("guard pages", "this kernel does not tell them apart");
    }
    assert_eq!((found.guarded, found.present), (256 * PAGE, 256 * PAGE));
    assert!(!region.is_valid());
    assert_eq!(drain(&watcher)[0].hint, Some(pages.range()));
}

/// What the program tells is as good as what the kernel does.
#[test]
fn what_the_program_tells_is_an_event() {
    let Some(watcher) = watcher() else { return };
    let pages = Pages::new(8);
    let register = |cookie, policy| {
        watcher
            .register(pages.start, 4 * PAGE, cookie, policy)
            .expect("registered")
    };
    let (reported, ended) = (register(1, Policy::Report), register(2, Policy::Deregister));
    watcher
        .invalidate(pages.part(4..8), Kind::Unmapped)
        .expect("told");
    watcher
        .invalidate(pages.start..pages.start, Kind::Unmapped)
        .expect("told");
    assert!(reported.is_valid() && ended.is_valid(), "beside them");
    watcher
        .invalidate(pages.part(3..5), Kind::Unmapped)
        .expect("told");
    assert!(!reported.is_valid() && !ended.is_valid());
    assert!(is_readable(&watcher) && is_readable(&watcher.ended()));
    let events = drain(&watcher);
    assert_eq!(events.len(), 1);
    assert_eq!(
        (events[0].kind, events[0].hint.clone()),
        (Kind::Unmapped, Some(pages.part(3..4)))
    );
    assert_eq!(reported.deregister().expect("registered"), 1);
}

#[test]
fn who_cannot_be_asked_says_so() {
    let Some(watcher) = watcher() else { return };
    for range in [PAGE..PAGE, PAGE..usize::MAX] {
        let result = watcher.validate(range);
        assert!(matches!(result, Err(Error::BadRange { .. })), "{result:?}");
    }
    let pages = Pages::new(1);
    let region = watcher
        .register(pages.start, PAGE, 1, Policy::Report)
        .expect("registered");
    in_child(|| matches!(region.validate(), Err(Error::Forked)));
    drop(watcher);
    assert!(matches!(region.validate(), Err(Error::Ended)));
    let options = Options {
        best_mode: Mode::Shared,
        ..Options::default()
    };
    let watcher = Watcher::with(options).expect("a lesser mode");
    let result = watcher.validate(pages.range());
    assert!(
        matches!(result, Err(Error::CannotValidate { .. })),
        "{result:?}"
    );
}
