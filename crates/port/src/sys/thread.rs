//! Threads of ours in a program of somebody else: no signal of the program is ever delivered to them.

use std::io;
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

    fn is_blocked(signal: libc::c_int) -> bool {
        let mut now = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: a null new set only asks; `now` is writable and filled on success, which asking always is.
        unsafe {
            libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), now.as_mut_ptr());
            libc::sigismember(now.as_ptr(), signal) == 1
        }
    }
}
