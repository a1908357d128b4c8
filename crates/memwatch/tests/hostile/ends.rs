//! A Watcher that ends while everything else goes on.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use oarlock_memwatch::{Error, Policy, Region};

use crate::support::*;

const ROUNDS: usize = 60;
const REGIONS: usize = 24;
const USERS: usize = 3;

/// Threads settle, hold, validate and deregister, one discards the memory, and a child forked in between drops its copy: nobody hangs,
/// calls say why they are refused, and once the Watcher has ended nothing is valid or held.
#[test]
fn a_watcher_may_end_beside_calls_changes_and_forks() {
    watchdog(120);
    for round in 0..ROUNDS {
        let Some(watcher) = watcher() else { return };
        let pages = Pages::new(REGIONS);
        let mut regions: Vec<_> = (0..REGIONS)
            .map(|page| {
                let policy = match page % 2 {
                    0 => Policy::Report,
                    _ => Policy::Deregister,
                };
                let start = pages.part(page..page + 1).start;
                watcher
                    .register(start, PAGE, page as u64, policy)
                    .expect("registered")
            })
            .collect();
        let validities: Vec<_> = regions.iter().map(Region::validity).collect();
        let watcher = Mutex::new(Some(watcher));
        let (ended, over) = (AtomicBool::new(false), AtomicBool::new(false));
        thread::scope(|scope| {
            for _ in 0..USERS {
                let mine = regions.split_off(regions.len() - REGIONS / USERS);
                let (ended, over) = (&ended, &over);
                scope.spawn(move || use_until_over(mine, ended, over));
            }
            scope.spawn(|| {
                for page in (0..REGIONS).cycle() {
                    pages.discard(page..page + 1);
                    if over.load(Ordering::SeqCst) {
                        break;
                    }
                }
            });
            in_child(|| {
                watchdog(60);
                // No Watcher of its own: a thread cannot be started here if one of the parent's was just starting, since the standard
                // library has a lock for that.
                drop(watcher.lock().expect("no panic").take());
                pages.discard(0..REGIONS);
                let valid = |one: &oarlock_memwatch::Validity| {
                    one.is_valid() || one.hold().is_some() || one.settle().is_ok()
                };
                !validities.iter().any(valid)
            });
            for _ in 0..round % 7 {
                thread::yield_now();
            }
            drop(watcher.lock().expect("no panic").take());
            ended.store(true, Ordering::SeqCst);
            for validity in &validities {
                assert!(!validity.is_valid() && validity.hold().is_none());
                assert!(matches!(validity.settle(), Err(Error::Ended)));
            }
            over.store(true, Ordering::SeqCst);
        });
    }
}

fn use_until_over(mut regions: Vec<Region>, ended: &AtomicBool, over: &AtomicBool) {
    let validities: Vec<_> = regions.iter().map(Region::validity).collect();
    while !over.load(Ordering::SeqCst) {
        for validity in &validities {
            let settled = validity.settle();
            assert!(matches!(settled, Ok(()) | Err(Error::Ended)), "{settled:?}");
            let had_ended = ended.load(Ordering::SeqCst);
            assert!(validity.hold().is_none() || !had_ended);
        }
        for region in &regions {
            let asked = region.validate().map(drop);
            let refusals = matches!(asked, Err(Error::Ended | Error::CannotValidate { .. }));
            assert!(asked.is_ok() || refusals, "{asked:?}");
        }
        if let Some(region) = regions.pop() {
            let ended = region.deregister();
            assert!(
                matches!(
                    ended,
                    Ok(_) | Err(Error::Ended | Error::UnknownCookie { .. })
                ),
                "{ended:?}"
            );
        }
    }
}
