//! A program forks that has memory watched. The one test of its process.
#![allow(unsafe_code, reason = "fork has no safe wrapper")]

#[path = "support/end.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    reason = "shared by the tests"
)]
mod end;
#[path = "support/pair.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    reason = "shared with the crate's examples"
)]
mod pair;

use end::{ends, eventually};
use oarlock_memwatch::{Error as WatchError, Policy};
use oarlock_verbs::*;

/// In the child no region is valid, calls say so, and what it drops is not the parent's: there the regions go on, and end by
/// themselves.
#[test]
fn a_child_drops_what_it_has_a_copy_of_and_the_parent_goes_on() {
    let (a, b) = ends(QpInitAttr::default());
    let channel = match MemoryChannel::new(&b.context) {
        Ok(channel) => channel,
        Err(Error::Memory(error @ WatchError::Unavailable { .. })) => {
            oarlock_sim::not_run("userfaultfd", error);
            return;
        }
        Err(error) => panic!("{error}"),
    };
    let map = || {
        let open = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping wherever the kernel has room.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), LEN, open, flags, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        start.addr()
    };
    let (kept, freed) = (map(), map());
    let register = |start: usize, cookie, policy| {
        // SAFETY: no reference to the pages is made.
        let region = unsafe {
            b.pd.register_notified(&channel, start, LEN, pair::all_rights(), cookie, policy)
        };
        region.expect("region")
    };
    let regions = [
        register(kept, 1, Policy::Report),
        register(freed, 2, Policy::Deregister),
    ];
    // SAFETY: the child calls what is made for forked children, and the allocator, which is sound after a fork; it ends by _exit.
    match unsafe { libc::fork() } {
        0 => {
            // SAFETY: no pointers.
            unsafe { libc::alarm(120) };
            let is_valid = regions.iter().any(NotifiedRegion::is_valid);
            let refused = matches!(
                channel.read_events(&mut Vec::new(), 1),
                Err(Error::Memory(WatchError::Forked))
            );
            drop(regions);
            drop(channel);
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(is_valid) + 2 * i32::from(!refused)) }
        }
        child => {
            let mut status = 0;
            // SAFETY: the child of above, a live integer.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert_eq!(status, 0);
        }
    }
    assert!(regions.iter().all(NotifiedRegion::is_valid));
    a.qp.post_send(SendRequest::write(1, Inline(b"x"), regions[0].at(0)))
        .expect("post");
    a.ok();
    let before = b.context.region_count();
    // SAFETY: our own mapping, without references to it.
    assert_eq!(unsafe { libc::munmap(freed as *mut _, LEN) }, 0);
    eventually("the device forgets it", || {
        b.context.region_count() == before - 1
    });
    assert!(regions[0].is_valid());
    drop(regions);
    // SAFETY: as above.
    assert_eq!(unsafe { libc::munmap(kept as *mut _, LEN) }, 0);
}

const LEN: usize = 1 << 14;
