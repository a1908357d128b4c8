//! A cache in a program whose allocator throws every block away at once, out of memory that is registered in that very cache.
//!
//! Whatever the cache frees inside its own calls, also with its lock held, is a change of memory that it watches, and waits for the
//! reader. If the reader needed the cache, or the cache deregistered in it, this program would hang, and its alarm would end it.

mod support;

use std::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use oarlock_memwatch::{CacheError, CacheOptions, Error, Lookup, MrCache, Registrar, Validity};
use support::*;

#[global_allocator]
static ALLOCATOR: Discarding = Discarding;

/// Each block has pages of its own in one large arena; they are thrown away when it is freed, and never used again.
struct Discarding;

const ARENA: usize = 64 << 30;
static USED: AtomicUsize = AtomicUsize::new(0);

fn arena() -> usize {
    // `OnceLock` does not allocate.
    static START: OnceLock<usize> = OnceLock::new();
    *START.get_or_init(|| try_map(None, ARENA).unwrap_or(0))
}

// SAFETY: blocks are disjoint, aligned (up to a page, and no more is asked for), and zero.
unsafe impl GlobalAlloc for Discarding {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let len = layout.size().next_multiple_of(PAGE);
        let start = arena();
        let offset = USED.fetch_add(len, Ordering::SeqCst);
        if start == 0 || offset + len > ARENA || layout.align() > PAGE {
            return std::ptr::null_mut();
        }
        (start + offset) as *mut u8
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let start = block as usize;
        discard(start..start + layout.size().next_multiple_of(PAGE));
    }
}

/// A registration that is a block, too.
struct Boxes;

impl Registrar for Boxes {
    type Access = ();
    type Registration = Arc<[u8; 100]>;
    type Error = Error;

    fn covers((): (), (): ()) -> bool {
        true
    }

    fn union((): (), (): ()) -> Option<()> {
        drop(std::hint::black_box(Box::new([1; 100])));
        Some(())
    }

    unsafe fn register(
        &self,
        _: usize,
        _: usize,
        (): (),
        _: Option<&Validity>,
    ) -> Result<Arc<[u8; 100]>, Error> {
        Ok(Arc::new([1; 100]))
    }
}

/// R-MEM-5, and no call that hangs.
#[test]
fn allocators_may_discard_registered_memory_inside_lookups() {
    watchdog(120);
    drop(match watcher() {
        Some(watcher) => watcher,
        None => return,
    });
    let cache = MrCache::new(
        Boxes,
        CacheOptions {
            max_regions: 6,
            ..CacheOptions::default()
        },
    )
    .expect("a cache");
    let get = |start: usize, len: usize| {
        // SAFETY: nothing is done to the memory.
        unsafe { cache.get(start, len, (), Lookup::Strict) }
    };
    // All that anyone allocates from now on.
    let free = arena() + USED.load(Ordering::SeqCst);
    drop(get(free, 1 << 30).expect("registered").keep());
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut changing = 0;
                for round in 0..300 {
                    let block = vec![1u8; 3 * PAGE];
                    let start = block.as_ptr() as usize;
                    let before = match get(start, block.len()) {
                        Ok(handle) => handle,
                        // Others free all the time what this one is merged with.
                        Err(CacheError::Changing { .. }) => {
                            changing += 1;
                            continue;
                        }
                        Err(error) => panic!("{error}"),
                    };
                    drop(block);
                    if let Ok(after) = get(start, 3 * PAGE) {
                        assert!(!Arc::ptr_eq(&before, &after), "stale");
                    }
                    if round % 16 == 0 {
                        cache.clean();
                        drop(get(free, 1 << 30).map(drop));
                    }
                }
                assert!(changing < 300, "nothing was registered");
            });
        }
    });
    let statistics = cache.statistics();
    assert!(
        statistics.invalidated > 0 && statistics.regions <= 6,
        "{statistics:?}"
    );
    cache.clear();
    assert_eq!(cache.statistics().regions, 0);
}
