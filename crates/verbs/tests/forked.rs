//! A program that forks while other threads of it are at work. The one test of its process.
#![allow(unsafe_code, reason = "fork has no safe wrapper")]

use oarlock_hostd::Host;
use oarlock_verbs::Context;
use std::sync::atomic::{AtomicBool, Ordering};

/// Opens the first device of a host and does something with it.
fn open(host: &Host) -> bool {
    let Ok(devices) = Context::devices(host) else {
        return false;
    };
    let Some(device) = devices.first() else {
        return false;
    };
    Context::open(host, device.index).is_ok_and(|context| context.is_port_active())
}

/// Public faults 63 and 64: whatever locks the threads of the parent hold at that moment, a child opens a host and a device of
/// its own, and is refused by its parent's.
#[test]
fn a_child_of_a_busy_program_opens_a_host_of_its_own() {
    const CHILDREN: usize = 60;
    let host = Host::private().unwrap();
    // No thread begins or ends meanwhile: the standard library has locks of its own for that, which a child may find held.
    let index = Context::devices(&host).unwrap()[0].index;
    let _kept = Context::open(&host, index).unwrap();
    let done = AtomicBool::new(false);
    let is_done = || done.load(Ordering::Relaxed);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !is_done() {
                    assert!(open(&host));
                }
            });
        }
        let statuses: Vec<i32> = (0..CHILDREN).map(|_| child(&host)).collect();
        done.store(true, Ordering::Relaxed);
        assert_eq!(statuses, [0; CHILDREN]);
    });
    assert!(open(&host), "and the parent goes on");
}

/// The exit status of a child; it is killed (by signal 14) when it hangs.
fn child(host: &Host) -> i32 {
    // SAFETY: the child uses what is made for forked children, and the allocator, which is sound after a fork; it ends by
    // _exit.
    match unsafe { libc::fork() } {
        0 => {
            // SAFETY: as above.
            unsafe { libc::alarm(120) };
            let refused = !open(host);
            let own = Host::private().is_ok_and(|own| open(&own));
            // SAFETY: as above.
            unsafe { libc::_exit(i32::from(!refused) + 2 * i32::from(!own)) }
        }
        child => {
            let mut status = 0;
            // SAFETY: the child of above, a live integer.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            status
        }
    }
}
