//! The system calls for which there is no safe face. The only `unsafe` code of this crate.
#![allow(unsafe_code, reason = "system calls without a safe wrapper")]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Blocks every signal in the calling thread, so that a program's handlers never run on a thread of ours.
pub(crate) fn block_signals() {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigfillset initialises the set that it is given; pthread_sigmask reads it; no old set is asked for.
    unsafe {
        libc::sigfillset(set.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, set.as_ptr(), std::ptr::null_mut());
    }
}

/// Blocks SIGTERM, SIGINT and SIGHUP in the calling thread and gives a descriptor that becomes readable when one comes.
/// Blocks SIGXFSZ as well: a trace that reaches the limit of file sizes must fail, not end the service.
pub(crate) fn termination_signals() -> io::Result<OwnedFd> {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigemptyset initialises the set, sigaddset changes it, the others read it; no old set is asked for.
    // signalfd makes a new descriptor or fails.
    let fd = unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
            libc::sigaddset(set.as_mut_ptr(), signal);
        }
        let fd = libc::signalfd(-1, set.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
        libc::sigaddset(set.as_mut_ptr(), libc::SIGXFSZ);
        libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut());
        fd
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Gives free memory of the heap back to the system, where the C library can.
pub(crate) fn trim_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes no pointer and touches free memory only; it may be called at any time, from any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// A descriptor of the process at the other end of a connected Unix socket, which becomes readable when that process
/// ends. The process is the one that connected, even if its number has been given to another meanwhile.
pub(crate) fn peer_pidfd(socket: impl AsFd) -> io::Result<OwnedFd> {
    let mut fd: libc::c_int = -1;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the descriptor is borrowed and so open; `fd` and `len` are live and `len` is the size of `fd`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PEERPIDFD,
            (&raw mut fd).cast(),
            &raw mut len,
        )
    };
    if result != 0 || fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel made the descriptor for this call, and it is nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Makes the program that `command` starts independent of this one: in a session of its own, a child of nobody in
/// particular, with no descriptor but its standard ones. The process that `spawn` gives ends at once.
pub(crate) fn detach(command: &mut Command) {
    // SAFETY: the closure runs between fork and exec and only makes system calls that are allowed there: setsid,
    // close_range, fork and _exit; it allocates nothing and takes no lock. The second fork leaves the new program
    // to the system, so that this one need not wait for it.
    unsafe {
        command.pre_exec(|| {
            libc::setsid();
            libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, CLOSE_RANGE_CLOEXEC);
            match libc::fork() {
                -1 => Err(io::Error::last_os_error()),
                0 => Ok(()),
                _ => libc::_exit(0),
            }
        });
    }
}

/// Random bytes from the system.
pub(crate) fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    // SAFETY: the pointer and length are those of `bytes`. Up to 256 bytes come whole.
    let n = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), N, 0) };
    if usize::try_from(n) == Ok(N) {
        Ok(bytes)
    } else {
        Err(io::Error::last_os_error())
    }
}

/// From Linux 6.5; include/uapi/asm-generic/socket.h.
const SO_PEERPIDFD: libc::c_int = 77;
/// include/uapi/linux/close_range.h.
const CLOSE_RANGE_CLOEXEC: u32 = 4;
