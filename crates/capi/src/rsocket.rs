//! rsockets: not implemented. Making one fails with `ENOSYS`; as there is none, every call on one fails with `EBADF`, as
//! with a descriptor that is no rsocket. [`rpoll`] and [`rselect`] work, because programs wait with them on ordinary
//! descriptors too, those of event channels and completion channels among them.

use std::ffi::{c_int, c_long, c_void};

use libc::{
    epoll_event, fd_set, iovec, msghdr, nfds_t, off_t, pollfd, size_t, sockaddr, socklen_t,
    ssize_t, timeval,
};

use crate::errno::{self, Refused, Result};

/// No rsocket can be made.
fn unimplemented_yet<T>() -> Result<T> {
    Err(Refused::new(libc::ENOSYS, "rsockets are not implemented"))
}

/// A call on what cannot be an rsocket.
fn no_rsocket<T>(socket: c_int) -> Result<T> {
    let sentence = format!("descriptor {socket} is no rsocket; rsockets are not implemented");
    Err(Refused::new(libc::EBADF, sentence))
}

fn length(call: &'static str, result: Result<()>) -> ssize_t {
    errno::minus_one(call, result) as ssize_t
}

/// Fails with `ENOSYS`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn rsocket(_domain: c_int, _type: c_int, _protocol: c_int) -> c_int {
    errno::minus_one("rsocket", unimplemented_yet())
}

/// Fails with `EBADF`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn rbind(socket: c_int, _addr: *const sockaddr, _len: socklen_t) -> c_int {
    errno::minus_one("rbind", no_rsocket(socket))
}

/// Fails with `EBADF`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn rlisten(socket: c_int, _backlog: c_int) -> c_int {
    errno::minus_one("rlisten", no_rsocket(socket))
}

/// Fails with `EBADF`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn raccept(
    socket: c_int,
    _addr: *mut sockaddr,
    _len: *mut socklen_t,
) -> c_int {
    errno::minus_one("raccept", no_rsocket(socket))
}

/// Fails with `EBADF`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn rconnect(socket: c_int, _addr: *const sockaddr, _len: socklen_t) -> c_int {
    errno::minus_one("rconnect", no_rsocket(socket))
}

/// Fails with `EBADF`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn rshutdown(socket: c_int, _how: c_int) -> c_int {
    errno::minus_one("rshutdown", no_rsocket(socket))
}

/// Fails with `EBADF`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn rclose(socket: c_int) -> c_int {
    errno::minus_one("rclose", no_rsocket(socket))
}

/// Fails with `EBADF`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn rrecv(
    socket: c_int,
    _buf: *mut c_void,
    _len: size_t,
    _flags: c_int,
) -> ssize_t {
    length("rrecv", no_rsocket(socket))
}

/// Fails with `EBADF`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn rrecvfrom(
    socket: c_int,
    _buf: *mut c_void,
    _len: size_t,
    _flags: c_int,
    _src_addr: *mut sockaddr,
    _addrlen: *mut socklen_t,
) -> ssize_t {
    length("rrecvfrom", no_rsocket(socket))
}

/// Fails with `EBADF`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn rrecvmsg(socket: c_int, _msg: *mut msghdr, _flags: c_int) -> ssize_t {
    length("rrecvmsg", no_rsocket(socket))
}

/// Fails with `EBADF`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn rsend(
    socket: c_int,
    _buf: *const c_void,
    _len: size_t,
    _flags: c_int,
) -> ssize_t {
    length("rsend", no_rsocket(socket))
}

/// Fails with `EBADF`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn rsendto(
    socket: c_int,
    _buf: *const c_void,
    _len: size_t,
    _flags: c_int,
    _dest_addr: *const sockaddr,
    _addrlen: socklen_t,
) -> ssize_t {
    length("rsendto", no_rsocket(socket))
}

/// Fails with `EBADF`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn rsendmsg(socket: c_int, _msg: *const msghdr, _flags: c_int) -> ssize_t {
    length("rsendmsg", no_rsocket(socket))
}

/// Fails with `EBADF`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn rread(socket: c_int, _buf: *mut c_void, _count: size_t) -> ssize_t {
    length("rread", no_rsocket(socket))
}

/// Fails with `EBADF`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn rreadv(socket: c_int, _iov: *const iovec, _iovcnt: c_int) -> ssize_t {
    length("rreadv", no_rsocket(socket))
}

/// Fails with `EBADF`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn rwrite(socket: c_int, _buf: *const c_void, _count: size_t) -> ssize_t {
    length("rwrite", no_rsocket(socket))
}

/// Fails with `EBADF`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn rwritev(socket: c_int, _iov: *const iovec, _iovcnt: c_int) -> ssize_t {
    length("rwritev", no_rsocket(socket))
}

/// `poll(2)`: what it is given are ordinary descriptors, as there are no rsockets.
///
/// # Safety
/// As `poll(2)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rpoll(fds: *mut pollfd, nfds: nfds_t, timeout: c_int) -> c_int {
    // SAFETY: the caller's promise is that of poll(2).
    unsafe { libc::poll(fds, nfds, timeout) }
}

/// `select(2)`: what it is given are ordinary descriptors, as there are no rsockets.
///
/// # Safety
/// As `select(2)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rselect(
    nfds: c_int,
    readfds: *mut fd_set,
    writefds: *mut fd_set,
    exceptfds: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    // Unlike select(2) on Linux, rselect leaves the time as it was given.
    // SAFETY: the caller's promise: null, or a time.
    let mut time = unsafe { timeout.as_ref() }.copied();
    let timeout = time.as_mut().map_or(std::ptr::null_mut(), |time| {
        std::ptr::from_mut::<timeval>(time)
    });
    // SAFETY: the caller's promise is that of select(2); the time is ours.
    unsafe { libc::select(nfds, readfds, writefds, exceptfds, timeout) }
}

/// Fails with `EBADF`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn rgetpeername(
    socket: c_int,
    _addr: *mut sockaddr,
    _len: *mut socklen_t,
) -> c_int {
    errno::minus_one("rgetpeername", no_rsocket(socket))
}

/// Fails with `EBADF`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn rgetsockname(
    socket: c_int,
    _addr: *mut sockaddr,
    _len: *mut socklen_t,
) -> c_int {
    errno::minus_one("rgetsockname", no_rsocket(socket))
}

/// Fails with `EBADF`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn rsetsockopt(
    socket: c_int,
    _level: c_int,
    _optname: c_int,
    _optval: *const c_void,
    _optlen: socklen_t,
) -> c_int {
    errno::minus_one("rsetsockopt", no_rsocket(socket))
}

/// Fails with `EBADF`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn rgetsockopt(
    socket: c_int,
    _level: c_int,
    _optname: c_int,
    _optval: *mut c_void,
    _optlen: *mut socklen_t,
) -> c_int {
    errno::minus_one("rgetsockopt", no_rsocket(socket))
}

/// Fails with `EBADF`. In C its third parameter is variable, which the calling convention lets a fixed one receive.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn rfcntl(socket: c_int, _cmd: c_int, _arg: c_long) -> c_int {
    errno::minus_one("rfcntl", no_rsocket(socket))
}

/// Fails with `EBADF`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn riomap(
    socket: c_int,
    _buf: *mut c_void,
    _len: size_t,
    _prot: c_int,
    _flags: c_int,
    _offset: off_t,
) -> off_t {
    off_t::from(errno::minus_one("riomap", no_rsocket(socket)))
}

/// Fails with `EBADF`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn riounmap(socket: c_int, _buf: *mut c_void, _len: size_t) -> c_int {
    errno::minus_one("riounmap", no_rsocket(socket))
}

/// Fails with `EBADF`: -1 in the unsigned type that the header gives it.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn riowrite(
    socket: c_int,
    _buf: *const c_void,
    _count: size_t,
    _offset: off_t,
    _flags: c_int,
) -> size_t {
    length("riowrite", no_rsocket(socket)).cast_unsigned()
}

/// Fails with `ENOSYS`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn repoll_create(_flags: c_int) -> c_int {
    errno::minus_one("repoll_create", unimplemented_yet())
}

/// Fails with `EBADF`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn repoll_ctl(
    epfd: c_int,
    _op: c_int,
    _fd: c_int,
    _event: *mut epoll_event,
) -> c_int {
    errno::minus_one("repoll_ctl", no_rsocket(epfd))
}

/// Fails with `EBADF`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn repoll_wait(
    epfd: c_int,
    _events: *mut epoll_event,
    _maxevents: c_int,
    _timeout: c_int,
) -> c_int {
    errno::minus_one("repoll_wait", no_rsocket(epfd))
}
