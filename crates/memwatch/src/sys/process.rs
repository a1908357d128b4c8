//! Threads and signals.

use std::cell::Cell;
use std::mem::MaybeUninit;

use rustix::io::Errno;

use super::fork::epoch;

/// This thread's id, never 0. Remembered per thread.
pub(crate) fn thread_id() -> u32 {
    thread_local! {
        static KNOWN: Cell<(u64, u32)> = const { Cell::new((0, 0)) };
    }
    let ask = || {
        rustix::thread::gettid()
            .as_raw_nonzero()
            .get()
            .unsigned_abs()
    };
    KNOWN
        .try_with(|known| {
            let (when, id) = known.get();
            let now = epoch();
            if id != 0 && when == now {
                return id;
            }
            let id = ask();
            known.set((now, id));
            id
        })
        .unwrap_or_else(|_| ask())
}

/// Whether a thread of this process with that id exists and runs.
///
/// The first thread keeps its place after it has ended, for as long as there are others: then it has no memory any more.
pub(crate) fn thread_exists(id: u32) -> bool {
    let process = rustix::process::getpid().as_raw_nonzero().get();
    let answer = if process.unsigned_abs() == id {
        static BYTE: u8 = 0;
        let mut copy = MaybeUninit::<u8>::uninit();
        let (into, from) = (
            extent(copy.as_mut_ptr()),
            extent((&raw const BYTE).cast_mut()),
        );
        // SAFETY: one byte, between a local and a static; each vector of one element lives through the call.
        unsafe {
            libc::syscall(
                libc::SYS_process_vm_readv,
                process,
                &into,
                1usize,
                &from,
                1usize,
                0usize,
            )
        }
    } else {
        // SAFETY: signal 0 only asks; no memory is passed.
        unsafe { libc::syscall(libc::SYS_tgkill, process, id, 0) }
    };
    answer >= 0 || Errno::from_io_error(&std::io::Error::last_os_error()) != Some(Errno::SRCH)
}

fn extent(byte: *mut u8) -> libc::iovec {
    libc::iovec {
        iov_base: byte.cast(),
        iov_len: 1,
    }
}

/// Runs `f` with every signal of this thread blocked. Threads that `f` starts keep them blocked.
pub(crate) fn without_signals<T>(f: impl FnOnce() -> T) -> T {
    let mut all = MaybeUninit::uninit();
    let mut before = MaybeUninit::uninit();
    // SAFETY: sigfillset initialises the set that it is given.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    // SAFETY: `all` is initialised, `before` is written by the call, which fails for a wrong first argument only.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) };
    let result = f();
    // SAFETY: `before` was written by the call above.
    unsafe {
        libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut());
    }
    result
}
