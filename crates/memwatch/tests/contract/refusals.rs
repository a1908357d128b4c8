//! What is refused, and that nothing is left behind.

use std::fs::File;

use oarlock_memwatch::{Error, Options, Policy};

use crate::support::*;

#[test]
fn ranges_that_are_none_are_refused() {
    let Some(watcher) = watcher() else { return };
    let pages = Pages::new(1);
    for (start, len) in [
        (pages.start, 0),
        (usize::MAX - 10, 20),
        (usize::MAX - 10, 5),
        (pages.start, usize::MAX),
    ] {
        let result = watcher.register(start, len, 1, Policy::Report);
        assert!(
            matches!(result, Err(Error::BadRange { .. })),
            "{start:#x}+{len:#x}: {result:?}"
        );
    }
    assert_eq!(watcher.regions().expect("counted"), 0);
}

#[test]
fn holes_are_refused_wherever_they_are() {
    let Some(watcher) = watcher() else { return };
    for hole in [0..1, 2..3, 3..4, 0..4] {
        let pages = Pages::new(4);
        pages.unmap_part(hole.clone());
        let result = watcher.register(pages.start, pages.len, 1, Policy::Report);
        // Another thread of this process may have been given the addresses: then there is no hole, for now.
        if !matches!(result, Err(Error::NotMapped { .. })) {
            assert!(result.is_ok(), "hole {hole:?}: {result:?}");
            eprintln!("not run: the hole {hole:?} was filled by another thread");
        }
    }
    assert_eq!(watcher.regions().expect("counted"), 0);
}

#[test]
fn a_shared_mapping_that_can_never_be_written_is_refused() {
    let Some(watcher) = watcher() else { return };
    let file = File::open("/proc/self/exe").expect("this program");
    let flags = rustix::mm::MapFlags::SHARED;
    let read = rustix::mm::ProtFlags::READ;
    // SAFETY: a new mapping.
    let start = unsafe { rustix::mm::mmap(std::ptr::null_mut(), PAGE, read, flags, &file, 0) };
    let start = start.expect("mapped") as usize;
    let result = watcher.register(start, PAGE, 1, Policy::Report);
    assert!(
        matches!(result, Err(Error::NotWatchable { .. })),
        "{result:?}"
    );
    unmap(start..start + PAGE);
    assert_eq!(drain(&watcher), []);
}

#[test]
fn a_cookie_belongs_to_one_region() {
    let Some(watcher) = watcher() else { return };
    let pages = Pages::new(2);
    let first = watcher
        .register(pages.start, PAGE, 1, Policy::Report)
        .expect("registered");
    let second = watcher.register(pages.start + PAGE, PAGE, 1, Policy::Report);
    assert!(matches!(second, Err(Error::CookieInUse { cookie: 1 })));
    assert_eq!(watcher.deregister(1).expect("registered"), 0);
    assert!(matches!(
        first.deregister(),
        Err(Error::UnknownCookie { cookie: 1 })
    ));
    assert!(matches!(
        watcher.deregister(1),
        Err(Error::UnknownCookie { cookie: 1 })
    ));
}

#[test]
fn regions_are_bounded() {
    let options = Options {
        max_regions: 2,
        ..Options::default()
    };
    let Some(watcher) = watcher_with(options) else {
        return;
    };
    let pages = Pages::new(1);
    let register = |cookie| watcher.register(pages.start, PAGE, cookie, Policy::Report);
    let kept = [register(1).expect("one"), register(2).expect("two")];
    assert!(matches!(register(3), Err(Error::TooManyRegions { max: 2 })));
    drop(kept);
    register(3)
        .expect("room again")
        .deregister()
        .expect("registered");
}
