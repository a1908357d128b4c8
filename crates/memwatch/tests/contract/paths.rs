//! R-MEM-5: every path by which a process loses memory, with the allocator's and the C library's own among them.

use std::alloc::{Layout, alloc, dealloc, realloc};

use oarlock_memwatch::{Kind, Policy};

use crate::support::*;

/// Above the size from which glibc maps blocks by themselves, whatever it has learned (M_MMAP_THRESHOLD is at most 32 MiB).
const LARGE: usize = 64 << 20;

/// R-MEM-5: free of a large block, which the allocator unmaps by itself.
#[test]
fn a_freed_block_is_reported() {
    let Some(watcher) = watcher() else { return };
    let layout = Layout::from_size_align(LARGE, 16).expect("a layout");
    // SAFETY: the layout has a size; the block is freed once, below.
    let block = unsafe { alloc(layout) };
    let region = watcher
        .register(block as usize, LARGE, 1, Policy::Report)
        .expect("registered");
    // SAFETY: from alloc, with this layout.
    unsafe { dealloc(block, layout) };
    let events = drain(&watcher);
    assert_eq!(
        (events[0].kind, events[0].hint.clone()),
        (Kind::Unmapped, Some(region.range()))
    );
}

/// R-MEM-5: realloc, which glibc does by mremap.
#[test]
fn a_block_that_realloc_moves_or_shrinks_is_reported() {
    let Some(watcher) = watcher() else { return };
    let layout = Layout::from_size_align(LARGE, 16).expect("a layout");
    // SAFETY: the layout has a size; the block is freed once, below.
    let block = unsafe { alloc(layout) };
    let region = watcher
        .register(block as usize, LARGE, 1, Policy::Report)
        .expect("registered");
    // SAFETY: from alloc, with this layout; the new size is not zero.
    let shorter = unsafe { realloc(block, layout, LARGE / 2) };
    let events = drain(&watcher);
    assert!(!region.is_valid());
    assert!(events[0].kind >= Kind::Unmapped, "{events:?}");
    // SAFETY: from realloc, with that size.
    unsafe { dealloc(shorter, Layout::from_size_align_unchecked(LARGE / 2, 16)) };
}

/// R-MEM-5: the stack of a thread that ended, which the C library discards or unmaps.
#[test]
fn the_stack_of_a_thread_that_ended_is_reported() {
    let Some(watcher) = watcher() else { return };
    let (ready, wait) = (std::sync::mpsc::channel(), std::sync::mpsc::channel::<()>());
    let thread = std::thread::Builder::new()
        // Larger than what glibc keeps for later threads (40 MiB).
        .stack_size(LARGE)
        .spawn(move || {
            let local = [0u8; 64];
            let here = std::hint::black_box(&local).as_ptr() as usize / PAGE * PAGE;
            ready.0.send(here).expect("the test waits");
            wait.1.recv().expect("the test answers");
        })
        .expect("a thread");
    let here = ready.1.recv().expect("the thread answers");
    let region = watcher
        .register(here - 64 * PAGE, 16 * PAGE, 2, Policy::Report)
        .expect("registered");
    wait.0.send(()).expect("the thread waits");
    thread.join().expect("no panic");
    assert_eq!(cookies(&watcher), [2]);
    assert!(!region.is_valid());
}
