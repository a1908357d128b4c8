//! Writing to files in a program of somebody else, whose limit of file sizes must not become its end.

use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;

/// write(2) that fails with `EFBIG` at the limit of file sizes (RLIMIT_FSIZE) and raises no signal.
pub(crate) fn write_without_signal(file: &File, bytes: &[u8]) -> io::Result<usize> {
    if !is_limited() {
        return write(file, bytes);
    }
    // The kernel sends SIGXFSZ to the thread that writes: it is blocked here, and taken away if it came.
    let Some(before) = block() else {
        return write(file, bytes);
    };
    let result = write(file, bytes);
    let raised = matches!(&result, Err(error) if error.raw_os_error() == Some(libc::EFBIG));
    if raised && !before.had_pending {
        take_away();
    }
    restore(&before.mask);
    result
}

struct Before {
    mask: libc::sigset_t,
    /// A signal of this kind waited already: it is the program's own.
    had_pending: bool,
}

fn write(file: &File, bytes: &[u8]) -> io::Result<usize> {
    // SAFETY: the descriptor is borrowed and so open; pointer and length are those of `bytes`.
    let n = unsafe { libc::write(file.as_raw_fd(), bytes.as_ptr().cast(), bytes.len()) };
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}

fn is_limited() -> bool {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize);
    limit.current.is_some()
}

fn only_file_size() -> libc::sigset_t {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `sigemptyset` initialises the set that it is given; `sigaddset` changes it, with a signal that exists.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), libc::SIGXFSZ);
        set.assume_init()
    }
}

fn block() -> Option<Before> {
    let set = only_file_size();
    let mut mask = MaybeUninit::<libc::sigset_t>::uninit();
    let mut pending = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `set` is initialised; the other two are live, writable, and filled by calls that succeed.
    unsafe {
        if libc::sigpending(pending.as_mut_ptr()) != 0 {
            return None;
        }
        let had_pending = libc::sigismember(pending.as_ptr(), libc::SIGXFSZ) == 1;
        if libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, mask.as_mut_ptr()) != 0 {
            return None;
        }
        Some(Before {
            mask: mask.assume_init(),
            had_pending,
        })
    }
}

fn take_away() {
    let set = only_file_size();
    let now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: set and time are live and initialised; no information about the signal is asked for. It waits for nothing.
    unsafe {
        libc::sigtimedwait(&raw const set, std::ptr::null_mut(), &raw const now);
    }
}

fn restore(mask: &libc::sigset_t) {
    // SAFETY: `mask` is a mask that the kernel gave us; a null old set is allowed.
    unsafe {
        libc::pthread_sigmask(libc::SIG_SETMASK, mask, std::ptr::null_mut());
    }
}
