//! Requests and answers over a netlink socket, and a socket that tells of changes.

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{LinkFlags, LinkMessage};
use rustix::io::retry_on_intr;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send,
    socket_with,
};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Brings an interface up. Needs the right to administer the network namespace, which the creator of a namespace of
/// one's own (`unshare -rn`) has: there even the loopback interface starts down.
///
/// # Errors
/// `EPERM` without that right, `ENODEV` for an index that does not exist.
pub fn bring_up(interface: u32) -> io::Result<()> {
    let mut link = LinkMessage::default();
    link.header.index = interface;
    link.header.flags = LinkFlags::Up;
    link.header.change_mask = LinkFlags::Up;
    ask_with(RouteNetlinkMessage::SetLink(link), NLM_F_ACK).map(drop)
}

/// Sends one request and collects the answer's messages.
pub(super) fn ask(
    message: RouteNetlinkMessage,
    dump: bool,
) -> io::Result<Vec<RouteNetlinkMessage>> {
    ask_with(message, if dump { NLM_F_DUMP } else { 0 })
}

fn ask_with(message: RouteNetlinkMessage, flags: u16) -> io::Result<Vec<RouteNetlinkMessage>> {
    let socket = open()?;
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | flags;
    let dump = flags & NLM_F_DUMP == NLM_F_DUMP;
    header.sequence_number = SEQUENCE;
    let mut request = NetlinkMessage::new(header, NetlinkPayload::from(message));
    request.finalize();
    let mut bytes = vec![0; request.buffer_len()];
    request.serialize(&mut bytes);
    retry_on_intr(|| send(&socket, &bytes, SendFlags::empty()))?;
    let mut answers = Vec::new();
    let mut buffer = vec![0; BUFFER_LEN];
    for _ in 0..MAX_PARTS {
        let (_, len) = retry_on_intr(|| recv(&socket, &mut buffer[..], RecvFlags::TRUNC))?;
        let Some(part) = buffer.get(..len) else {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "a netlink message is longer than 64 KiB",
            ));
        };
        if read_part(part, dump, &mut answers)? {
            return Ok(answers);
        }
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidData,
        "a netlink answer has no end",
    ))
}

/// Reads the messages of one datagram; true when the answer is complete.
fn read_part(
    mut part: &[u8],
    dump: bool,
    answers: &mut Vec<RouteNetlinkMessage>,
) -> io::Result<bool> {
    while !part.is_empty() {
        let message = match NetlinkMessage::<RouteNetlinkMessage>::deserialize(part) {
            Ok(message) => message,
            // A kind or attribute of a newer kernel: skip the message.
            Err(_) => {
                part = skip(part)?;
                continue;
            }
        };
        match message.payload {
            NetlinkPayload::Done(_) => return Ok(true),
            NetlinkPayload::Error(error) => {
                return match error.code {
                    Some(code) => Err(io::Error::from_raw_os_error(code.get().saturating_abs())),
                    None => Ok(true),
                };
            }
            NetlinkPayload::InnerMessage(inner) => {
                answers.push(inner);
                if !dump {
                    return Ok(true);
                }
            }
            _ => {}
        }
        part = skip(part)?;
    }
    Ok(false)
}

/// What follows the first message, whose length is its first word.
fn skip(part: &[u8]) -> io::Result<&[u8]> {
    let len = part
        .first_chunk::<4>()
        .map_or(0, |bytes| u32::from_ne_bytes(*bytes) as usize);
    if len < HEADER_LEN {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "a netlink message is shorter than its header",
        ));
    }
    Ok(part.get(len.next_multiple_of(4)..).unwrap_or_default())
}

fn open() -> io::Result<OwnedFd> {
    Ok(socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        ROUTE,
    )?)
}

/// A descriptor that becomes readable when an interface or an address changes.
#[derive(Debug)]
pub struct Monitor {
    socket: OwnedFd,
}

impl Monitor {
    /// Starts listening for changes.
    ///
    /// # Errors
    /// No netlink socket to be had.
    pub fn new() -> io::Result<Self> {
        let socket = open()?;
        bind(&socket, &SocketAddrNetlink::new(0, GROUPS))?;
        Ok(Self { socket })
    }

    /// Takes the news off the descriptor; whether there was any. What changed is asked for anew.
    pub fn take_changes(&self) -> bool {
        let mut buffer = [0; 4096];
        let mut any = false;
        for _ in 0..MAX_PARTS {
            match recv(
                &self.socket,
                &mut buffer[..],
                RecvFlags::DONTWAIT | RecvFlags::TRUNC,
            ) {
                Ok(_) => any = true,
                // Lost news is news.
                Err(rustix::io::Errno::NOBUFS) => any = true,
                Err(_) => break,
            }
        }
        any
    }
}

impl AsFd for Monitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// NETLINK_ROUTE is protocol 0, which is the default.
const ROUTE: Option<Protocol> = None;
const SEQUENCE: u32 = 1;
const HEADER_LEN: usize = 16;
const BUFFER_LEN: usize = 65_536;
const MAX_PARTS: usize = 4096;
/// RTMGRP_LINK, RTMGRP_IPV4_IFADDR and RTMGRP_IPV6_IFADDR of linux/rtnetlink.h.
const GROUPS: u32 = 0x1 | 0x10 | 0x100;
