//! The contract of the notification interface: what is reported, once, and never afterwards.

#[path = "../support/mod.rs"]
mod support;

mod chaos;
mod hold;
mod order;
mod paths;
mod refusals;
mod sealed;
mod validate;

use std::os::fd::AsFd;

use oarlock_memwatch::{Error, Event, GenerationPage, Kind, Options, Policy, Watcher};
use support::*;

/// R-MEM-1: the cookie comes back, with the exact part, and deregistering says how many events were read.
#[test]
fn an_event_carries_cookie_kind_and_part_and_is_counted() {
    let Some(watcher) = watcher() else { return };
    let pages = Pages::new(16);
    let region = watcher
        .register(pages.start, pages.len, 0xFEED, Policy::Report)
        .expect("registered");
    assert!(region.is_valid());
    assert_eq!((region.cookie(), region.range()), (0xFEED, pages.range()));

    pages.discard(2..4);
    let events = drain(&watcher);
    assert_eq!(events.len(), 1);
    assert_eq!(
        (events[0].cookie, events[0].kind),
        (0xFEED, Kind::Discarded)
    );
    assert_eq!(events[0].hint, Some(pages.part(2..4)));
    assert!(!region.is_valid());

    pages.unmap_part(8..9);
    let events = drain(&watcher);
    assert_eq!(
        (events[0].kind, events[0].hint.clone()),
        (Kind::Unmapped, Some(pages.part(8..9)))
    );
    assert_eq!(region.deregister().expect("registered"), 2);
    pages.unmap();
    assert_eq!(drain(&watcher), []);
}

/// R-MEM-1: hints are cut to the bytes of the region, also where more was unmapped than was registered.
#[test]
fn the_hint_is_of_the_regions_bytes() {
    let Some(watcher) = watcher() else { return };
    let pages = Pages::new(4);
    let region = watcher
        .register(pages.start + PAGE + 100, PAGE, 1, Policy::Report)
        .expect("registered");
    pages.unmap_part(0..2);
    let hint = drain(&watcher)[0].hint.clone().expect("one part");
    assert_eq!(hint, pages.start + PAGE + 100..pages.start + 2 * PAGE);
    drop(region);
}

/// R-MEM-1: at most one unread event per cookie, and none after deregistration.
#[test]
fn an_unread_event_is_one_and_goes_with_its_region() {
    let Some(watcher) = watcher() else { return };
    let pages = Pages::new(8);
    let region = watcher
        .register(pages.start, pages.len, 1, Policy::Report)
        .expect("registered");
    for page in [0, 2, 4] {
        pages.discard(page..page + 1);
    }
    let events = drain(&watcher);
    assert_eq!(events.len(), 1);
    assert_eq!(events[0].hint, None, "three parts that do not touch");

    pages.discard(5..6);
    watcher.settle().expect("settled");
    assert!(is_readable(&watcher));
    assert_eq!(region.deregister().expect("registered"), 1);
    assert!(!is_readable(&watcher));
    assert_eq!(drain(&watcher), []);
}

/// R-MEM-2: the descriptor is readable exactly while an event is unread; reads may take a part.
#[test]
fn the_descriptor_is_readable_while_events_are_unread() {
    let Some(watcher) = watcher() else { return };
    let pages = Pages::new(3);
    let regions: Vec<_> = (0..3)
        .map(|page| {
            let part = pages.part(page..page + 1);
            watcher
                .register(part.start, PAGE, page as u64, Policy::Report)
                .expect("registered")
        })
        .collect();
    assert!(!is_readable(&watcher));
    pages.discard(0..3);
    watcher.settle().expect("settled");
    assert!(is_readable(&watcher));

    let mut events = Vec::new();
    assert_eq!(watcher.read_events(&mut events, 2).expect("read"), 2);
    assert!(
        events
            .iter()
            .all(|event| matches!(event, Event::Invalidated(_))),
        "not the last"
    );
    assert!(is_readable(&watcher));
    assert_eq!(watcher.read_events(&mut events, 2).expect("read"), 1);
    assert!(!is_readable(&watcher));
    assert_eq!(
        events.last(),
        Some(&Event::Last {
            generation: watcher.generation()
        })
    );
    assert_eq!(watcher.generation(), 3);
    drop(regions);
}

/// R-MEM-3: the page is seen, and cannot be written, by others; it grows with each event, before the event is read.
#[test]
fn the_generation_page_is_shared_and_read_only() {
    let Some(watcher) = watcher() else { return };
    let page = watcher.generation_page().expect("a descriptor");
    let seen = GenerationPage::map(&page).expect("mapped");
    assert_eq!(seen.get(), 0);
    let pages = Pages::new(1);
    let region = watcher
        .register(pages.start, pages.len, 1, Policy::Report)
        .expect("registered");
    pages.discard(0..1);
    watcher.settle().expect("settled");
    assert_eq!((seen.get(), watcher.generation()), (1, 1));
    // Another process maps it by itself.
    in_child(|| GenerationPage::map(page.as_fd()).is_ok_and(|seen| seen.get() == 1));
    drop(region);

    let flags = rustix::mm::MapFlags::SHARED;
    let write = rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE;
    // SAFETY: a new mapping, which is refused.
    let writable = unsafe { rustix::mm::mmap(std::ptr::null_mut(), PAGE, write, flags, &page, 0) };
    assert_eq!(writable.err(), Some(rustix::io::Errno::PERM));
    let other = rustix::fs::memfd_create("other", rustix::fs::MemfdFlags::CLOEXEC).expect("a file");
    assert!(matches!(
        GenerationPage::map(&other),
        Err(Error::NotAGenerationPage)
    ));
}

/// R-MEM-4: one call ends all that were notified, read or not, and nothing else.
#[test]
fn notified_regions_end_in_one_call() {
    let Some(watcher) = watcher() else { return };
    let pages = Pages::new(6);
    let regions: Vec<_> = (0..6)
        .map(|page| {
            let part = pages.part(page..page + 1);
            watcher
                .register(part.start, PAGE, page as u64, Policy::Report)
                .expect("registered")
        })
        .collect();
    pages.discard(1..2);
    assert_eq!(cookies(&watcher), [1]);
    pages.unmap_part(4..5);
    let ended = watcher.deregister_notified().expect("ended");
    let told: Vec<_> = ended
        .iter()
        .map(|region| {
            (
                region.cookie,
                region.reported,
                region.unread.as_ref().map(|event| event.kind),
            )
        })
        .collect();
    assert_eq!(told, [(1, 1, None), (4, 0, Some(Kind::Unmapped))]);
    assert!(!is_readable(&watcher));
    assert_eq!(watcher.regions().expect("counted"), 4);
    assert!(matches!(
        watcher.deregister(4),
        Err(Error::UnknownCookie { cookie: 4 })
    ));
    // The cookies are free, and the old handles do not touch the new regions.
    let part = pages.part(1..2);
    let again = watcher
        .register(part.start, PAGE, 1, Policy::Report)
        .expect("registered");
    drop(regions);
    assert!(again.is_valid());
    assert_eq!(watcher.regions().expect("counted"), 1);
    assert_eq!(watcher.deregister_notified().expect("none"), []);
}

/// R-MEM-4: the mode for those who do not read.
#[test]
fn regions_with_the_policy_end_without_any_reading() {
    let Some(watcher) = watcher() else { return };
    let pages = Pages::new(2);
    let region = watcher
        .register(pages.start, PAGE, 9, Policy::Deregister)
        .expect("registered");
    pages.discard(1..2);
    assert!(region.is_valid());
    let before = watcher.generation();
    assert!(!is_readable(&watcher.ended()));
    pages.discard(0..1);
    watcher.settle().expect("settled");
    assert!(!region.is_valid());
    assert!(watcher.generation() > before);
    assert!(!is_readable(&watcher));
    assert!(is_readable(&watcher.ended()));
    rustix::io::read(watcher.ended(), &mut [0; 8]).expect("reset");
    assert!(!is_readable(&watcher.ended()));
    assert_eq!(watcher.regions().expect("counted"), 0);
    let again = watcher
        .register(pages.start, PAGE, 9, Policy::Report)
        .expect("the cookie is free");
    assert!(matches!(
        region.deregister(),
        Err(Error::UnknownCookie { cookie: 9 })
    ));
    assert!(again.is_valid());
    assert_eq!(watcher.statistics().expect("counted").ended, 1);
}

/// Regions of one Watcher have one number, those of another have another.
#[test]
fn validities_name_their_watcher() {
    let (Some(one), Some(other)) = (watcher(), watcher()) else {
        return;
    };
    let (pages, others) = (Pages::new(2), Pages::new(1));
    let number = |watcher: &Watcher, start| {
        let region = watcher
            .register(start, PAGE, start as u64, Policy::Report)
            .expect("registered");
        region.validity().watcher()
    };
    let first = number(&one, pages.start);
    assert_ne!(first, 0);
    assert_eq!(number(&one, pages.start + PAGE), first);
    assert_ne!(number(&other, others.start), first);
}

/// Regions may overlap and repeat: each is told, and the end of one leaves the watch of the others.
#[test]
fn overlapping_regions_do_not_depend_on_each_other() {
    let Some(watcher) = watcher() else { return };
    let pages = Pages::new(8);
    let register = |part: std::ops::Range<usize>, cookie| {
        watcher
            .register(part.start, part.len(), cookie, Policy::Report)
            .expect("registered")
    };
    let whole = register(pages.part(0..8), 1);
    let left = register(pages.part(0..5), 2);
    let same = register(pages.part(0..5), 3);
    let byte = register(pages.part(4..5).start + 7..pages.part(4..5).start + 8, 4);
    whole.deregister().expect("registered");
    left.deregister().expect("registered");
    let before = watcher.statistics().expect("counted").changes;
    pages.discard(6..8);
    assert_eq!(cookies(&watcher), []);
    assert_eq!(
        watcher.statistics().expect("counted").changes,
        before,
        "nobody needs it watched"
    );
    pages.discard(4..5);
    let mut told = cookies(&watcher);
    told.sort_unstable();
    assert_eq!(told, [3, 4]);
    same.deregister().expect("registered");
    pages.discard(4..5);
    assert_eq!(cookies(&watcher), [4]);
    drop(byte);
}

/// Long ranges stay watched, since ending the watch takes time; they are not reported any more all the same.
#[test]
fn long_ranges_are_parked() {
    let options = Options {
        park_above: 2 * PAGE,
        ..Options::default()
    };
    let Some(watcher) = watcher_with(options) else {
        return;
    };
    let pages = Pages::new(8);
    let long = watcher
        .register(pages.start, 3 * PAGE, 1, Policy::Report)
        .expect("registered");
    let short = watcher
        .register(pages.part(4..6).start, 2 * PAGE, 2, Policy::Report)
        .expect("registered");
    long.deregister().expect("registered");
    short.deregister().expect("registered");
    pages.discard(4..6);
    watcher.settle().expect("settled");
    assert_eq!(watcher.statistics().expect("counted").changes, 0);
    pages.discard(0..3);
    watcher.settle().expect("settled");
    assert_eq!(watcher.statistics().expect("counted").changes, 1);
    assert_eq!((cookies(&watcher), watcher.generation()), (vec![], 0));
}

#[test]
fn validity_outlives_its_region_and_does_not_come_back() {
    let Some(watcher) = watcher() else { return };
    let pages = Pages::new(1);
    let region = watcher
        .register(pages.start, PAGE, 1, Policy::Report)
        .expect("registered");
    let validity = region.validity();
    assert!(validity.is_valid());
    drop(region);
    assert!(!validity.is_valid());
    // The slot is used again, by another region.
    let next = watcher
        .register(pages.start, PAGE, 1, Policy::Report)
        .expect("registered");
    assert!(next.is_valid() && !validity.is_valid());
    let validity = next.validity();
    drop(watcher);
    assert!(!validity.is_valid());
    assert!(matches!(next.deregister(), Err(Error::Ended)));
}

#[test]
fn nothing_waits_when_a_watcher_is_gone() {
    watchdog(120);
    let Some(watcher) = watcher() else { return };
    let pages = Pages::new(4);
    let region = watcher
        .register(pages.start, pages.len, 1, Policy::Report)
        .expect("registered");
    drop(watcher);
    pages.unmap();
    drop(region);
}
