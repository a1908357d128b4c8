//! An allocator that gives back every block at once, from memory that is watched; and a thread that ends inside it, with the lock held.
//!
//! Whatever this crate frees inside its own calls waits for its own reader. If the reader freed or allocated anything, or waited
//! for the lock, this program would hang, and its alarm would end it.

#[path = "../support/mod.rs"]
mod support;

use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use oarlock_memwatch::{Error, Policy};
use support::*;

#[global_allocator]
static ALLOCATOR: Discarding = Discarding;

/// Each block has pages of its own in one large arena; they are thrown away when it is freed, and never used again.
struct Discarding;

const ARENA: usize = 64 << 30;
static START: AtomicUsize = AtomicUsize::new(0);
static USED: AtomicUsize = AtomicUsize::new(0);
static FREED: AtomicUsize = AtomicUsize::new(0);
static MAPPING: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// After how many allocations this thread ends; 0: never.
    static LAST_ALLOCATION: Cell<usize> = const { Cell::new(0) };
}

fn arena() -> usize {
    loop {
        match START.load(Ordering::SeqCst) {
            0 if !MAPPING.swap(true, Ordering::SeqCst) => {
                START.store(try_map(None, ARENA).unwrap_or(1), Ordering::SeqCst);
            }
            0 => std::hint::spin_loop(),
            start => return start,
        }
    }
}

// SAFETY: blocks are disjoint, aligned (up to a page, and no more is asked for), and zero.
unsafe impl GlobalAlloc for Discarding {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let ends = LAST_ALLOCATION.try_with(|left| {
            let now = left.get();
            left.set(now.saturating_sub(1));
            now == 1
        });
        if ends == Ok(true) {
            // SAFETY: ends this thread as a fatal signal to it alone would, with whatever it holds.
            unsafe { libc::syscall(libc::SYS_exit, 0) };
        }
        let len = layout.size().next_multiple_of(PAGE);
        let start = arena();
        let offset = USED.fetch_add(len, Ordering::SeqCst);
        if start == 1 || offset + len > ARENA || layout.align() > PAGE {
            return std::ptr::null_mut();
        }
        (start + offset) as *mut u8
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let start = block as usize;
        FREED.fetch_add(1, Ordering::SeqCst);
        discard(start..start + layout.size().next_multiple_of(PAGE));
    }
}

/// R-MEM-5, and no call that hangs: every block that anyone frees is an event of a region.
#[test]
fn allocators_may_unmap_inside_our_calls_and_threads_may_end_there() {
    watchdog(60);
    let Some(watcher) = watcher() else { return };
    let everything = watcher
        .register(arena(), ARENA, 0, Policy::Report)
        .expect("registered");
    std::thread::scope(|scope| {
        for number in 1..4u64 {
            let watcher = &watcher;
            scope.spawn(move || {
                let mut regions = Vec::new();
                for round in 0..200 {
                    let block = vec![1u8; 3 * PAGE];
                    let start = block.as_ptr() as usize;
                    let region = watcher
                        .register(start, block.len(), number << 32 | round, Policy::Report)
                        .expect("registered");
                    drop(block);
                    watcher.settle().expect("settled");
                    assert!(!region.is_valid());
                    regions.push(region);
                    if round % 50 == 49 {
                        drain(watcher);
                        regions.clear();
                        watcher.deregister_notified().expect("ended");
                    }
                }
            });
        }
    });
    assert!(FREED.load(Ordering::SeqCst) > 3 * 200);
    drop(everything);
    a_thread_that_ends_inside_a_call_breaks_the_watcher(watcher);
}

/// Nothing counts as valid, calls are refused, nobody hangs.
fn a_thread_that_ends_inside_a_call_breaks_the_watcher(watcher: oarlock_memwatch::Watcher) {
    let pages = Pages::new(4);
    let region = watcher
        .register(pages.start, PAGE, 1, Policy::Report)
        .expect("registered");
    let before = watcher.generation();
    let watcher = std::sync::Arc::new(watcher);
    // Where a call allocates depends on it: end at the first allocation, the second, and so on, until one was with the lock held.
    let mut tries = 0;
    while watcher.settle().is_ok() && watcher.regions().is_ok() {
        tries += 1;
        assert!(tries < 1000, "no call allocates with the lock held");
        let (watcher, start) = (std::sync::Arc::clone(&watcher), pages.part(2..3).start);
        // Not joined: nothing of it ever says that it has ended.
        drop(std::thread::spawn(move || {
            LAST_ALLOCATION.set(tries);
            for cookie in 0..100 {
                let cookie = 1 << 40 | (tries as u64) << 8 | cookie;
                if let Ok(region) = watcher.register(start, PAGE, cookie, Policy::Report) {
                    std::mem::forget(region);
                }
            }
        }));
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert!(matches!(watcher.settle(), Err(Error::Broken)));
    assert!(matches!(
        watcher.register(pages.start, PAGE, 3, Policy::Report),
        Err(Error::Broken)
    ));
    assert!(!region.is_valid());
    assert!(watcher.generation() > before);
    assert!(matches!(region.deregister(), Err(Error::Broken)));
    another_takes_its_place(&pages);
    pages.discard(0..4);
    pages.unmap();
}

/// While the broken one is still there, the same memory is refused to nobody.
fn another_takes_its_place(pages: &Pages) {
    let watcher = watcher().expect("there was one before");
    let region = watcher
        .register(pages.start, pages.len, 1, Policy::Report)
        .expect("watched by nobody");
    let everything = watcher
        .register(arena(), ARENA, 0, Policy::Report)
        .expect("watched by nobody");
    pages.discard(0..1);
    drop(vec![1u8; PAGE]);
    watcher.settle().expect("it works");
    assert!(!region.is_valid() && !everything.is_valid());
}
