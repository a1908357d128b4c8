//! Threads of ours in a program of somebody else: no signal of the program is ever delivered to them.

use std::io;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::thread::{Builder, JoinHandle};

/// Starts `body` on a new thread called `name` with every signal blocked.
///
/// The mask is set in the calling thread around the start, because a thread inherits the mask of its creator: blocking
/// from inside would leave a moment in which a handler of the program could run there.
///
/// # Errors
/// No thread to be had.
pub fn spawn_without_signals(
    name: &str,
    body: impl FnOnce() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let before = block_all()?;
    let spawned = Builder::new().name(name.to_owned()).spawn(body);
    restore(&before);
    spawned
}

/// Asks the scheduler for turns of 0.1 ms for the calling thread: who works for so short a time at once gets a processor
/// sooner, also where other threads never sleep. Linux does so from 6.12 on; before, and where a thread is scheduled by
/// another rule than the usual one, nothing changes.
pub fn take_short_turns() {
    let mut attributes = SchedAttr::default();
    // SAFETY: the structure is writable and as long as is said; 0 is the calling thread. The kernel fills what it knows of it.
    let asked = unsafe {
        let size = size_of::<SchedAttr>() as libc::c_uint;
        libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0)
    };
    if asked != 0 || attributes.policy != libc::SCHED_OTHER.unsigned_abs() {
        return;
    }
    attributes.size = size_of::<SchedAttr>() as u32;
    attributes.runtime = SHORT_TURN_NANOS;
    // SAFETY: as above; the kernel only reads it. Refused, the thread is scheduled as before.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
}

/// While it lives, `pthread_cancel` of the calling thread waits: functions of the C library that cancel a thread would unwind
/// whatever called them. Stays on the thread that made it.
#[derive(Debug)]
pub struct Uncancelled {
    before: libc::c_int,
    _of_this_thread: PhantomData<*const ()>,
}

impl Uncancelled {
    /// From here on. May be made while there is one already; dropped in the reverse order.
    #[must_use]
    pub fn new() -> Self {
        let mut before = 0;
        // SAFETY: room for the answer; it fails only for a state that there is not.
        unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &raw mut before) };
        Self {
            before,
            _of_this_thread: PhantomData,
        }
    }
}

impl Default for Uncancelled {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        let mut disabled = 0;
        // SAFETY: as in `new`, to which the state was told by the call.
        unsafe { pthread_setcancelstate(self.before, &raw mut disabled) };
    }
}

// Not in the crate libc.
unsafe extern "C" {
    fn pthread_setcancelstate(state: libc::c_int, before: *mut libc::c_int) -> libc::c_int;
}

const PTHREAD_CANCEL_DISABLE: libc::c_int = 1;

/// `struct sched_attr` of Linux include/uapi/linux/sched/types.h, as it began.
#[repr(C)]
#[derive(Default)]
struct SchedAttr {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

/// The shortest that the scheduler gives.
const SHORT_TURN_NANOS: u64 = 100_000;

fn block_all() -> io::Result<libc::sigset_t> {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: both sets are valid, writable and live for the whole call; `sigfillset` initialises `all` before
    // `pthread_sigmask` reads it.
    let status = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr())
    };
    if status != 0 {
        return Err(io::Error::from_raw_os_error(status));
    }
    // SAFETY: `pthread_sigmask` returned success, so it has stored the mask that there was.
    Ok(unsafe { before.assume_init() })
}

fn restore(mask: &libc::sigset_t) {
    // SAFETY: `mask` is a mask that the kernel gave us; a null old set is allowed. The call can fail only for an unknown
    // first argument.
    unsafe {
        libc::pthread_sigmask(libc::SIG_SETMASK, mask, std::ptr::null_mut());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_new_thread_blocks_signals_and_the_caller_does_not() {
        let (send, receive) = std::sync::mpsc::channel();
        let before = is_blocked(libc::SIGUSR1);
        let thread = spawn_without_signals("masked", move || {
            send.send(is_blocked(libc::SIGUSR1))
                .expect("receiver lives");
        })
        .expect("spawn");
        assert!(receive.recv().expect("thread sends"));
        thread.join().expect("join");
        assert_eq!((before, is_blocked(libc::SIGUSR1)), (false, false));
    }

    #[test]
    fn a_thread_with_short_turns_keeps_its_rule_and_its_nice_value() {
        // A kernel that knows such turns tells of them.
        let attributes = || {
            let mut attributes = SchedAttr::default();
            // SAFETY: as in `take_short_turns`.
            let asked = unsafe {
                let size = size_of::<SchedAttr>() as libc::c_uint;
                libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0)
            };
            assert_eq!(asked, 0, "{}", io::Error::last_os_error());
            attributes
        };
        std::thread::spawn(move || {
            let before = attributes();
            take_short_turns();
            let after = attributes();
            assert_eq!((after.policy, after.nice), (before.policy, before.nice));
            assert!(
                [before.runtime, SHORT_TURN_NANOS].contains(&after.runtime),
                "{}",
                after.runtime
            );
        })
        .join()
        .expect("no panic");
    }

    #[test]
    fn a_thread_can_be_cancelled_again_when_the_outermost_guard_is_gone() {
        let state = || {
            let guard = Uncancelled::new();
            guard.before
        };
        let enabled = state();
        assert_ne!(enabled, PTHREAD_CANCEL_DISABLE);
        let outer = Uncancelled::new();
        assert_eq!(state(), PTHREAD_CANCEL_DISABLE);
        assert_eq!(state(), PTHREAD_CANCEL_DISABLE, "the inner one is gone");
        drop(outer);
        assert_eq!(state(), enabled);
    }

    fn is_blocked(signal: libc::c_int) -> bool {
        let mut now = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: a null new set only asks; `now` is writable and filled on success, which asking always is.
        unsafe {
            libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), now.as_mut_ptr());
            libc::sigismember(now.as_ptr(), signal) == 1
        }
    }
}
