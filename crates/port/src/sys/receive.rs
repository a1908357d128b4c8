//! Receiving many datagrams with one call, with their control messages.

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd};

use super::system_call;

/// What the kernel says about one received datagram or GRO burst.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Received {
    /// Number of bytes in the buffer.
    pub(crate) len: usize,
    /// The datagram was longer than the buffer, or the control messages longer than their room.
    pub(crate) truncated: bool,
    /// Where it came from.
    pub(crate) source: Option<SocketAddr>,
    /// Where it was sent to, and the index of the interface.
    pub(crate) destination: Option<(std::net::IpAddr, u32)>,
    /// Length of each packet of a GRO burst but the last.
    pub(crate) segment: Option<usize>,
    /// Type of service or traffic class.
    pub(crate) traffic_class: u8,
    /// Time to live or hop limit.
    pub(crate) hop_limit: u8,
}

/// Receives up to `N` datagrams without blocking, one into each buffer; returns their number, zero when there is none.
pub(crate) fn receive_many<const N: usize>(
    socket: BorrowedFd<'_>,
    buffers: &mut [Box<[u8]>],
    results: &mut [Received; N],
) -> io::Result<usize> {
    let count = buffers.len().min(N);
    let mut names = [const { MaybeUninit::<libc::sockaddr_storage>::uninit() }; N];
    let mut controls = [const { Control(MaybeUninit::uninit()) }; N];
    let mut vectors = [const {
        libc::iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: 0,
        }
    }; N];
    // SAFETY: mmsghdr is a plain C structure of integers and pointers, for which all zero is a valid value.
    let mut headers: [libc::mmsghdr; N] = unsafe { MaybeUninit::zeroed().assume_init() };
    for i in 0..count {
        vectors[i] = libc::iovec {
            iov_base: buffers[i].as_mut_ptr().cast(),
            iov_len: buffers[i].len(),
        };
        let header = &mut headers[i].msg_hdr;
        header.msg_name = names[i].as_mut_ptr().cast();
        header.msg_namelen = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
        header.msg_iov = &raw mut vectors[i];
        header.msg_iovlen = 1;
        header.msg_control = controls[i].0.as_mut_ptr().cast();
        header.msg_controllen = CONTROL_LEN as _;
    }
    // SAFETY: the descriptor is borrowed and so open. The first `count` headers point to distinct buffers, names and
    // control areas with their true lengths, all alive and not otherwise used until the call returns. The flags make
    // the call return at once; no timeout is given.
    let received = unsafe {
        let (socket, headers) = (socket.as_raw_fd() as usize, headers.as_mut_ptr());
        let (flags, timeout) = (libc::MSG_DONTWAIT as usize, 0);
        let arguments = [socket, headers.expose_provenance(), count, flags, timeout];
        system_call(libc::SYS_recvmmsg, arguments)
    };
    let n = match received {
        Ok(n) => n,
        Err(error) => {
            return match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(0),
                _ => Err(error),
            };
        }
    };
    for i in 0..n {
        let header = &headers[i].msg_hdr;
        let mut received = Received {
            len: (headers[i].msg_len as usize).min(buffers[i].len()),
            truncated: header.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0,
            // SAFETY: the kernel has written `msg_namelen` bytes of the address, at most the structure's size.
            source: unsafe { address(&names[i], header.msg_namelen as usize) },
            ..Received::default()
        };
        let length = header.msg_controllen.min(CONTROL_LEN);
        // SAFETY: the kernel has written `msg_controllen` bytes of the control area, at most its size.
        let control =
            unsafe { std::slice::from_raw_parts(controls[i].0.as_ptr().cast::<u8>(), length) };
        read_control(control, &mut received);
        results[i] = received;
    }
    Ok(n)
}

/// Reads a socket address of which `len` bytes are initialised.
///
/// # Safety
/// The first `len` bytes of `storage` must be initialised.
unsafe fn address(storage: &MaybeUninit<libc::sockaddr_storage>, len: usize) -> Option<SocketAddr> {
    let len = len.min(size_of::<libc::sockaddr_storage>());
    // SAFETY: the caller vouches for `len` initialised bytes, which lie within the storage.
    let bytes = unsafe { std::slice::from_raw_parts(storage.as_ptr().cast::<u8>(), len) };
    let family = i32::from(u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?));
    let port = u16::from_be_bytes(bytes.get(2..4)?.try_into().ok()?);
    match family {
        libc::AF_INET => {
            let ip: [u8; 4] = bytes.get(4..8)?.try_into().ok()?;
            Some(SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::from(ip), port)))
        }
        libc::AF_INET6 => {
            let ip: [u8; 16] = bytes.get(8..24)?.try_into().ok()?;
            let scope = u32::from_ne_bytes(bytes.get(24..28)?.try_into().ok()?);
            Some(SocketAddr::V6(SocketAddrV6::new(
                Ipv6Addr::from(ip),
                port,
                0,
                scope,
            )))
        }
        _ => None,
    }
}

/// Walks control messages: each a length (of header and data), a level and a type, then the data, padded to 8.
fn read_control(mut control: &[u8], received: &mut Received) {
    while control.len() >= HEADER_LEN {
        let len = usize::from_ne_bytes(control[..WORD].try_into().expect("one word"));
        let level = i32::from_ne_bytes(control[WORD..WORD + 4].try_into().expect("four bytes"));
        let kind = i32::from_ne_bytes(control[WORD + 4..WORD + 8].try_into().expect("four bytes"));
        if len < HEADER_LEN || len > control.len() {
            return;
        }
        read_message(level, kind, &control[HEADER_LEN..len], received);
        let next = len.next_multiple_of(WORD).min(control.len());
        control = &control[next..];
    }
}

fn read_message(level: i32, kind: i32, data: &[u8], received: &mut Received) {
    let int = || {
        data.first_chunk::<4>()
            .map(|bytes| i32::from_ne_bytes(*bytes))
    };
    match (level, kind) {
        (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) if data.len() >= 20 => {
            let ip: [u8; 16] = data[..16].try_into().expect("length is checked");
            let index = u32::from_ne_bytes(data[16..20].try_into().expect("length is checked"));
            received.destination = Some((Ipv6Addr::from(ip).to_canonical(), index));
        }
        // struct in_pktinfo: interface index, the local address, the destination in the header.
        (libc::IPPROTO_IP, libc::IP_PKTINFO) if data.len() >= 12 => {
            let index = u32::from_ne_bytes(data[..4].try_into().expect("length is checked"));
            let ip: [u8; 4] = data[8..12].try_into().expect("length is checked");
            received.destination = Some((Ipv4Addr::from(ip).into(), index));
        }
        (libc::SOL_UDP, libc::UDP_GRO) => {
            received.segment = int()
                .and_then(|n| usize::try_from(n).ok())
                .filter(|n| *n > 0);
        }
        (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
            received.traffic_class = int().unwrap_or(0) as u8
        }
        (libc::IPPROTO_IP, libc::IP_TOS) => {
            received.traffic_class = data.first().copied().unwrap_or(0)
        }
        (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) | (libc::IPPROTO_IP, libc::IP_TTL) => {
            received.hop_limit = int().unwrap_or(0) as u8;
        }
        _ => {}
    }
}

#[repr(C, align(8))]
struct Control(MaybeUninit<[u8; CONTROL_LEN]>);

const WORD: usize = size_of::<usize>();
const HEADER_LEN: usize = WORD + 8;
/// Room for packet info of both families, GRO size, traffic class and hop limit, with margin.
const CONTROL_LEN: usize = 256;
