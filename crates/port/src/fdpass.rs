//! Messages with descriptors over Unix sockets, and who is at the other end.

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// One received message.
#[derive(Debug)]
pub struct Message {
    /// Number of bytes in the buffer; zero at the end of the connection.
    pub len: usize,
    /// The message was longer than the buffer, or came with more than [`MAX_FDS`] descriptors.
    pub truncated: bool,
    /// Descriptors that came with it, closed on exec.
    pub fds: Vec<OwnedFd>,
}

/// Who is at the other end of a Unix socket, when it was connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// Process id; 0 for a process of a pid namespace that ours does not see, as of another container.
    pub pid: u32,
    /// User id.
    pub uid: u32,
}

/// Sends one message with descriptors. With `wait` unset returns `WouldBlock` when there is no room.
///
/// # Errors
/// What the socket says; a closed peer is `BrokenPipe`, without a signal.
pub fn send(
    socket: impl AsFd,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
    wait: bool,
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "too many descriptors in one message",
        ));
    }
    let mut flags = SendFlags::NOSIGNAL;
    if !wait {
        flags |= SendFlags::DONTWAIT;
    }
    loop {
        match sendmsg(&socket, &[IoSlice::new(bytes)], &mut control, flags) {
            Err(rustix::io::Errno::INTR) => {}
            result => return Ok(result?),
        }
    }
}

/// Receives one message with its descriptors. With `wait` unset returns `WouldBlock` when there is none.
///
/// # Errors
/// What the socket says.
pub fn receive(socket: impl AsFd, buffer: &mut [u8], wait: bool) -> io::Result<Message> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut flags = RecvFlags::CMSG_CLOEXEC;
    if !wait {
        flags |= RecvFlags::DONTWAIT;
    }
    let message = loop {
        match recvmsg(&socket, &mut [IoSliceMut::new(buffer)], &mut control, flags) {
            Err(rustix::io::Errno::INTR) => {}
            result => break result?,
        }
    };
    let mut fds = Vec::new();
    for item in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = item {
            fds.extend(received);
        }
    }
    let truncated = message
        .flags
        .intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC);
    Ok(Message {
        len: message.bytes,
        truncated,
        fds,
    })
}

/// Who is at the other end of a connected Unix socket.
///
/// # Errors
/// Not a connected Unix socket.
pub fn peer(socket: impl AsFd) -> io::Result<Peer> {
    let (pid, uid) = crate::sys::peer_credentials(socket)?;
    Ok(Peer { pid, uid })
}

/// Most descriptors in one message.
pub const MAX_FDS: usize = 8;
