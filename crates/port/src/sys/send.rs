//! Sending a datagram with control messages.

use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, BorrowedFd};

use socket2::SockAddr;

use super::system_call;

/// Sends `pieces`, one after the other, as one datagram to `address`. No signal is raised.
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
    unsafe {
        let (socket, header) = (socket.as_raw_fd() as usize, &raw const header);
        let arguments = [
            socket,
            header.expose_provenance(),
            libc::MSG_NOSIGNAL as usize,
        ];
        system_call(libc::SYS_sendmsg, arguments)?;
    }
    Ok(())
}
