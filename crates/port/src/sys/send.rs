//! Sending a datagram with control messages.

use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, BorrowedFd};

use socket2::SockAddr;

/// Sends `pieces`, one after the other, as one datagram to `address`. No signal is raised.
///
/// The call goes around the C library's function, where a program's thread that posts might be cancelled.
///
/// # Errors
/// Those of `sendmsg(2)`.
pub(crate) fn send(
    socket: BorrowedFd<'_>,
    address: &SockAddr,
    pieces: &[IoSlice<'_>],
    control: &[u8],
) -> io::Result<()> {
    // SAFETY: msghdr is a plain C structure of integers and pointers, for which all zero is a valid value.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_name = address.as_ptr().cast_mut().cast();
    header.msg_namelen = address.len();
    // An `IoSlice` is laid out as an iovec is.
    header.msg_iov = pieces.as_ptr().cast_mut().cast();
    header.msg_iovlen = pieces.len() as _;
    if !control.is_empty() {
        header.msg_control = control.as_ptr().cast_mut().cast();
        header.msg_controllen = control.len() as _;
    }
    // SAFETY: the descriptor is borrowed and so open. The header points to an address, pieces and control messages with their
    // true lengths, all alive until the call returns, and the kernel only reads them.
    let sent = unsafe {
        libc::syscall(
            libc::SYS_sendmsg,
            socket.as_raw_fd(),
            &raw const header,
            libc::MSG_NOSIGNAL,
        )
    };
    if sent < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
