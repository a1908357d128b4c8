//! Holds: what is copied under one never arrives in memory that the program was given after it had lost the old one.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use oarlock_memwatch::{Error, Event, Kind, Policy, Validity, Watcher};

use crate::support::*;

/// How many copies are made under a hold.
const WANTED: u64 = 1_000;

/// R-MEM-5: a copy under a hold, after settling, never reaches memory that was mapped at that address after the unmapping call had
/// returned. The same without the hold does, which shows that this test can fail.
#[test]
fn copies_under_a_hold_never_reach_recycled_memory() {
    watchdog(240);
    let Some(watcher) = watcher() else { return };
    if !watcher.capabilities().is_strict() {
        return oarlock_sim::not_run("userfaultfd", "this kernel's count of changes is one bit");
    }
    let (place, len) = (0x2300_0000_0000, 2 * PAGE);
    let published: Mutex<Option<Validity>> = Mutex::new(None);
    let [done, weak] = [const { AtomicBool::new(false) }; 2];
    // Grows when the region's memory is there, and when other memory is in its place.
    let turn = AtomicU64::new(0);
    let [held, hits, weak_hits] = [const { AtomicU64::new(0) }; 3];
    let deadline = Instant::now() + Duration::from_secs(120);

    let [done, weak] = [&done, &weak];
    let (published, turn) = (&published, &turn);
    let [held, hits, weak_hits] = [&held, &hits, &weak_hits];
    thread::scope(|scope| {
        let other = scope.spawn(|| {
            let mut cookie = 0;
            while !done.load(Ordering::SeqCst) {
                assert_eq!(map(Some(place), len), place);
                cookie += 1;
                let region = watcher
                    .register(place, len, cookie, Policy::Report)
                    .expect("registered");
                weak.store(cookie % 2 == 0, Ordering::SeqCst);
                *published.lock().expect("no panic") = Some(region.validity());
                turn.fetch_add(1, Ordering::SeqCst);
                linger(|| false);
                unmap(place..place + len);
                assert_eq!(map(Some(place), len), place);
                turn.fetch_add(1, Ordering::SeqCst);
                linger(|| false);
                // SAFETY: just mapped; another thread of the test may write to it by a system call.
                let byte = unsafe { std::ptr::read_volatile((place + PAGE) as *const u8) };
                let counter = match cookie % 2 {
                    0 => &weak_hits,
                    _ => &hits,
                };
                counter.fetch_add(u64::from(byte != 0), Ordering::SeqCst);
                // A copy without a hold may still be on its way: it must not be counted as one with.
                *published.lock().expect("no panic") = None;
                drop(region);
                unmap(place..place + len);
            }
        });
        scope.spawn(move || {
            let enough =
                || held.load(Ordering::SeqCst) >= WANTED && weak_hits.load(Ordering::SeqCst) > 0;
            let mut last = 0;
            while !enough() && !other.is_finished() && Instant::now() < deadline {
                let before = turn.load(Ordering::SeqCst);
                if before % 2 == 0 || before == last {
                    thread::yield_now();
                    continue;
                }
                last = before;
                // Locked throughout: the next region comes when this copy is made.
                let region = published.lock().expect("no panic");
                let Some(region) = region.as_ref() else {
                    continue;
                };
                let recycled = || turn.load(Ordering::SeqCst) != before;
                region.settle().expect("settled");
                if weak.load(Ordering::SeqCst) {
                    if region.is_valid() {
                        linger(recycled);
                        write(place + PAGE);
                    }
                } else if let Some(hold) = region.hold() {
                    linger(recycled);
                    write(place + PAGE);
                    drop(hold);
                    held.fetch_add(1, Ordering::SeqCst);
                }
            }
            done.store(true, Ordering::SeqCst);
        });
    });
    let [held, hits, weak_hits] = [held, hits, weak_hits].map(|n| n.load(Ordering::SeqCst));
    println!("copies under a hold: {held}, into recycled memory: {hits}; without: {weak_hits}");
    assert!(
        weak_hits > 0,
        "the window was never hit: this run shows nothing"
    );
    assert!(held > 0);
    assert_eq!(hits, 0);
    assert_eq!(
        watcher.statistics().expect("counted").holds_given_up,
        0,
        "a thread had no processor for half a second: this run shows nothing"
    );
}

/// The call that takes a region away, and deregistering it, return after the hold has ended.
#[test]
fn changes_and_deregistration_wait_for_a_hold() {
    watchdog(60);
    let Some(watcher) = watcher() else { return };
    type Take = fn(&Watcher, &Pages);
    let ways: [Take; 6] = [
        |watcher, pages| {
            watcher
                .invalidate(pages.part(0..1), Kind::Unmapped)
                .expect("told");
        },
        |_, pages| pages.unmap_part(0..1),
        |_, pages| pages.discard(1..2),
        |_, pages| {
            // SAFETY: a page of the test's own, and memory that the kernel chooses.
            let moved = unsafe {
                libc::mremap(
                    pages.start as *mut libc::c_void,
                    PAGE,
                    2 * PAGE,
                    libc::MREMAP_MAYMOVE,
                )
            };
            assert_ne!(moved, libc::MAP_FAILED);
            unmap(moved as usize..moved as usize + 2 * PAGE);
        },
        |watcher, _| assert_eq!(watcher.deregister(1).expect("known"), 0),
        |watcher, pages| {
            pages.discard(0..1);
            assert_eq!(watcher.deregister_notified().expect("ended").len(), 1);
        },
    ];
    for take in ways {
        let pages = Pages::new(4);
        let region = watcher
            .register(pages.start, pages.len, 1, Policy::Report)
            .expect("registered");
        let validity = region.validity();
        validity.settle().expect("settled");
        let released = AtomicBool::new(false);
        let hold = validity.hold().expect("valid");
        thread::scope(|scope| {
            scope.spawn(|| {
                take(&watcher, &pages);
                assert!(released.load(Ordering::SeqCst), "it did not wait");
            });
            thread::sleep(Duration::from_millis(20));
            released.store(true, Ordering::SeqCst);
            drop(hold);
        });
        validity.settle().expect("settled");
        assert!(validity.hold().is_none());
        drop(region);
    }
}

/// A hold whose thread is gone, or unmaps by itself, costs all regions once, and hangs nobody.
#[test]
fn a_hold_that_never_ends_invalidates_everything_once() {
    watchdog(60);
    let Some(watcher) = watcher() else { return };
    let (pages, other) = (Pages::new(2), Pages::new(2));
    for (round, in_own_thread) in [(1u64, true), (2, false)] {
        let region = watcher
            .register(pages.start, pages.len, 1, Policy::Report)
            .expect("registered");
        let unconcerned = watcher
            .register(other.start, other.len, 2, Policy::Report)
            .expect("registered");
        let validity = region.validity();
        if in_own_thread {
            let _hold = validity.hold().expect("valid");
            pages.discard(0..1);
        } else {
            let leaked = validity.clone();
            thread::spawn(move || std::mem::forget(leaked.hold()))
                .join()
                .expect("no panic");
            pages.discard(0..1);
        }
        assert!(validity.hold().is_none() && !unconcerned.is_valid());
        let mut events = Vec::new();
        watcher.read_events(&mut events, 8).expect("events");
        let unknown = events.iter().filter(|event| {
            matches!(event, Event::Invalidated(event) if event.kind == Kind::Unknown && event.hint.is_none())
        });
        assert_eq!(unknown.count(), 2, "{events:?}");
        assert_eq!(watcher.statistics().expect("counted").holds_given_up, round);
    }
    // It is not waited for a second time.
    let region = watcher
        .register(pages.start, pages.len, 3, Policy::Report)
        .expect("registered");
    let validity = region.validity();
    drop(validity.hold().expect("valid"));
    pages.discard(1..2);
    assert_eq!(drain(&watcher)[0].kind, Kind::Discarded);
    assert_eq!(watcher.statistics().expect("counted").holds_given_up, 2);
}

/// What is no region any more is not held, and does not settle.
#[test]
fn nothing_is_held_after_the_end_or_in_a_child() {
    watchdog(60);
    let Some(watcher) = watcher() else { return };
    let pages = Pages::new(1);
    let register = |cookie| {
        watcher
            .register(pages.start, PAGE, cookie, Policy::Report)
            .expect("registered")
    };
    let (ended, region) = (register(1), register(2));
    let (ended_validity, validity) = (ended.validity(), region.validity());
    assert_eq!(ended.deregister().expect("registered"), 0);
    assert!(ended_validity.hold().is_none());
    ended_validity.settle().expect("its watcher works");
    in_child(|| validity.hold().is_none() && matches!(validity.settle(), Err(Error::Forked)));
    assert!(validity.hold().is_some());
    drop(watcher);
    assert!(validity.hold().is_none());
    assert!(matches!(validity.settle(), Err(Error::Ended)));
    assert!(matches!(region.deregister(), Err(Error::Ended)));
    assert!(matches!(validity.settle(), Err(Error::Ended)));
}

/// Many threads that hold while others take memory away: nobody waits for each other in a circle.
#[test]
fn holding_and_unmapping_threads_get_along() {
    watchdog(120);
    let Some(watcher) = watcher() else { return };
    thread::scope(|scope| {
        for number in 0..4u64 {
            let watcher = &watcher;
            scope.spawn(move || {
                for round in 0..300 {
                    let pages = Pages::new(2);
                    let region = watcher
                        .register(pages.start, pages.len, number << 32 | round, Policy::Report)
                        .expect("registered");
                    let validity = region.validity();
                    for _ in 0..4 {
                        // Spuriously invalid if another thread has just unmapped something at this address.
                        drop(validity.hold());
                    }
                    pages.unmap();
                    validity.settle().expect("settled");
                    assert!(validity.hold().is_none());
                }
            });
        }
    });
    assert_eq!(watcher.statistics().expect("counted").holds_given_up, 0);
}

/// Lets another thread run until something is true, for a moment at most.
fn linger(is_over: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_micros(200);
    while !is_over() && Instant::now() < until {
        thread::yield_now();
    }
}

/// Writes a byte by its address, as a device does: if nothing is there, nothing happens.
fn write(address: usize) {
    let byte = [0xEEu8];
    let local = libc::iovec {
        iov_base: byte.as_ptr().cast_mut().cast(),
        iov_len: 1,
    };
    let remote = libc::iovec {
        iov_base: address as *mut libc::c_void,
        iov_len: 1,
    };
    // SAFETY: reads one byte of ours; what is written to is memory that the test maps there, if any.
    unsafe { libc::process_vm_writev(libc::getpid(), &local, 1, &remote, 1, 0) };
}

/// Threads that copy all the time do not keep others from deregistering, invalidating and settling until patience ends.
#[test]
fn holds_of_others_that_go_on_coming_are_not_waited_for() {
    watchdog(120);
    let Some(watcher) = watcher() else { return };
    let (held, other) = (Pages::new(64), Pages::new(2));
    let region = watcher
        .register(held.start, held.len, 0, Policy::Report)
        .expect("registered");
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..3 {
            let validity = region.validity();
            let (held, over) = (&held, &over);
            scope.spawn(move || {
                let mut copy = vec![0u8; held.len];
                while !over.load(Ordering::SeqCst) {
                    let Some(hold) = validity.hold() else { break };
                    // SAFETY: memory of the test's own that stays, and that nobody writes to.
                    unsafe {
                        std::ptr::copy_nonoverlapping(
                            held.start as *const u8,
                            copy.as_mut_ptr(),
                            held.len,
                        );
                    }
                    std::hint::black_box(&mut copy);
                    drop(hold);
                }
            });
        }
        for cookie in 1..100 {
            let region = watcher
                .register(other.start, other.len, cookie, Policy::Report)
                .expect("registered");
            match cookie % 3 {
                0 => other.discard(0..1),
                1 => watcher
                    .invalidate(other.range(), Kind::Discarded)
                    .expect("told"),
                _ => {}
            }
            region.deregister().expect("there");
        }
        over.store(true, Ordering::SeqCst);
    });
    let counts = watcher.statistics().expect("there");
    assert_eq!((counts.holds_given_up, counts.overflows), (0, 0));
    assert!(region.is_valid());
}
