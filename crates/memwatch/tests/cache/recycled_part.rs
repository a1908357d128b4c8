//! A neighbour that is merged is taken away, and its address given again, while the merged registration is made.

use std::sync::atomic::{AtomicU8, Ordering};
use std::thread;

use oarlock_memwatch::{CacheOptions, Lookup};

use crate::registrar::*;
use crate::support::*;

const STAND: u8 = 0;
const RECYCLE: u8 = 1;
const END: u8 = 2;

/// The kernel does not watch what is not mapped when it is told to, and a merged registration asks for memory that its lookup does
/// not: nobody promised that it stays. Without the mend, a few of these thousands are found by strict lookups after they have gone.
#[test]
fn a_part_that_went_meanwhile_is_not_found() {
    let Some(cache) = cache(CacheOptions::default()) else {
        return;
    };
    let pages = crate::far(8);
    let (part, asked) = (pages.part(0..4), pages.part(4..8));
    let recycle = || {
        unmap(part.clone());
        map(Some(part.start), part.len());
    };
    let (wanted, seen) = (AtomicU8::new(STAND), AtomicU8::new(STAND));
    let tell = |what: u8| {
        wanted.store(what, Ordering::SeqCst);
        while seen.load(Ordering::SeqCst) != what {
            std::hint::spin_loop();
        }
    };
    let (mut merged, mut stale) = (0, 0);
    thread::scope(|scope| {
        scope.spawn(|| {
            loop {
                let now = wanted.load(Ordering::SeqCst);
                seen.store(now, Ordering::SeqCst);
                match now {
                    RECYCLE => recycle(),
                    END => return,
                    _ => std::hint::spin_loop(),
                }
            }
        });
        for round in 0..4000 {
            cache.clear();
            drop(read(&cache, part.clone()));
            tell(RECYCLE);
            for _ in 0..round % 64 * 8 {
                std::hint::spin_loop();
            }
            let got = get(&cache, asked.clone(), READ, Lookup::Strict);
            tell(STAND);
            let Ok(got) = got else { continue };
            if got.range() != pages.range() {
                continue;
            }
            merged += 1;
            drop(got);
            recycle();
            let before = cache.statistics().hits;
            drop(read(&cache, part.clone()));
            stale += cache.statistics().hits - before;
        }
        tell(END);
    });
    assert_eq!(stale, 0, "of {merged} that were merged");
}
