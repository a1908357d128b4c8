//! Hardware addresses of neighbours, as the kernel knows them.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::thread;
use std::time::Duration;

use oarlock_port::netlink::{RouteQuery, interfaces, route};
use oarlock_wire::Gid;

use crate::errno::{Refused, Result};

/// The hardware address of the next hop from `source` on interface `ifindex` to `peer`: all zero where there is none, as on
/// a loopback interface.
///
/// # Errors
/// `ENETUNREACH`, `EHOSTUNREACH` and others of the routing table. `EHOSTUNREACH`: the neighbour does not answer.
///
/// # Blocking
/// For up to three seconds, until the neighbour has answered.
pub(crate) fn resolve(peer: IpAddr, source: IpAddr, ifindex: u32) -> Result<[u8; 6]> {
    let system = |error: io::Error| {
        let errno = error.raw_os_error().unwrap_or(libc::EIO);
        Refused::new(errno, format!("cannot ask for interfaces: {error}"))
    };
    let known = interfaces().map_err(system)?;
    let query = RouteQuery {
        destination: peer,
        source: Some(source),
        interface: if Gid::from_ip(peer).is_link_local() {
            ifindex
        } else {
            0
        },
        traffic_class: 0,
    };
    let way = route(&query, &known)
        .map_err(|error| Refused::new(error.raw_os_error(), error.to_string()))?;
    if way.is_local {
        return Ok([0; 6]);
    }
    let next_hop = way.gateway.unwrap_or(peer);
    for attempt in 0..ATTEMPTS {
        if let Some(address) = look_up(next_hop, way.interface).map_err(system)? {
            return Ok(address);
        }
        if attempt == 0 {
            provoke(next_hop, source, way.interface);
        }
        thread::sleep(INTERVAL);
    }
    Err(Refused::new(
        libc::EHOSTUNREACH,
        format!("{next_hop} does not tell its hardware address"),
    ))
}

/// Has the kernel ask the neighbour: by a datagram to the discard port, which is lost if there is no such neighbour.
fn provoke(next_hop: IpAddr, source: IpAddr, ifindex: u32) {
    let mut to = SocketAddr::new(next_hop, DISCARD);
    if let SocketAddr::V6(to) = &mut to {
        to.set_scope_id(ifindex);
    }
    if let Ok(socket) = UdpSocket::bind(SocketAddr::new(source, 0)) {
        let _lost = socket.send_to(&[], to);
    }
}

/// What the kernel's table has for `neighbour`; `None` if it does not know.
fn look_up(neighbour: IpAddr, ifindex: u32) -> io::Result<Option<[u8; 6]>> {
    let request = request(neighbour, ifindex);
    let socket = open()?;
    // SAFETY: `request` is as long as is said.
    let sent = unsafe {
        libc::send(
            socket.as_raw_fd(),
            request.as_ptr().cast(),
            request.len(),
            0,
        )
    };
    if sent < 0 {
        return Err(io::Error::last_os_error());
    }
    let mut answer = [0_u8; 4096];
    // SAFETY: `answer` has room for as much as is said.
    let received = unsafe {
        libc::recv(
            socket.as_raw_fd(),
            answer.as_mut_ptr().cast(),
            answer.len(),
            0,
        )
    };
    match usize::try_from(received) {
        Ok(len) => Ok(address_in(answer.get(..len).unwrap_or_default())),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

fn open() -> io::Result<OwnedFd> {
    // SAFETY: no pointers.
    let socket = unsafe {
        libc::socket(
            libc::AF_NETLINK,
            libc::SOCK_RAW | libc::SOCK_CLOEXEC,
            libc::NETLINK_ROUTE,
        )
    };
    if socket < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it was opened just now, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(socket) })
}

/// RTM_GETNEIGH for one neighbour: header (16), `struct ndmsg` (12), its address (rtnetlink(7)).
fn request(neighbour: IpAddr, ifindex: u32) -> Vec<u8> {
    let (family, address) = match neighbour {
        IpAddr::V4(address) => (libc::AF_INET, address.octets().to_vec()),
        IpAddr::V6(address) => (libc::AF_INET6, address.octets().to_vec()),
    };
    let attribute = ATTRIBUTE + address.len();
    let mut bytes = Vec::with_capacity(HEADER + BODY + attribute);
    bytes.extend(((HEADER + BODY + attribute) as u32).to_ne_bytes());
    bytes.extend(libc::RTM_GETNEIGH.to_ne_bytes());
    bytes.extend((libc::NLM_F_REQUEST as u16).to_ne_bytes());
    // Sequence number and port: one request, one answer.
    bytes.extend([0; 8]);
    bytes.extend([family as u8, 0, 0, 0]);
    bytes.extend(ifindex.to_ne_bytes());
    // State, flags, type.
    bytes.extend([0; 4]);
    bytes.extend((attribute as u16).to_ne_bytes());
    bytes.extend(NDA_DST.to_ne_bytes());
    bytes.extend(address);
    bytes
}

/// The hardware address in an answer; `None` if it says that there is none, or no valid one.
fn address_in(answer: &[u8]) -> Option<[u8; 6]> {
    let kind = u16::from_ne_bytes(*answer.get(4..)?.first_chunk()?);
    if kind != libc::RTM_NEWNEIGH {
        return None;
    }
    let state = u16::from_ne_bytes(*answer.get(HEADER + 8..)?.first_chunk()?);
    if state & VALID == 0 {
        return None;
    }
    let mut attributes = answer.get(HEADER + BODY..)?;
    while let Some(head) = attributes.first_chunk::<ATTRIBUTE>() {
        let len = usize::from(u16::from_ne_bytes([head[0], head[1]]));
        let kind = u16::from_ne_bytes([head[2], head[3]]);
        let value = attributes.get(ATTRIBUTE..len)?;
        if kind == NDA_LLADDR {
            return value.first_chunk().copied();
        }
        attributes = attributes.get(len.next_multiple_of(4)..)?;
    }
    None
}

/// `struct nlmsghdr`.
const HEADER: usize = 16;
/// `struct ndmsg`.
const BODY: usize = 12;
/// `struct rtattr`.
const ATTRIBUTE: usize = 4;
/// Attributes of Linux include/uapi/linux/neighbour.h.
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
/// NUD_REACHABLE, NUD_STALE, NUD_DELAY, NUD_PROBE, NUD_NOARP and NUD_PERMANENT there: states with an address.
const VALID: u16 = 0x02 | 0x04 | 0x08 | 0x10 | 0x40 | 0x80;
/// RFC 863.
const DISCARD: u16 = 9;
const ATTEMPTS: u32 = 60;
const INTERVAL: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;

    /// An answer of the kernel: the question about `neighbour` with a type, a state, and an attribute before the address.
    fn answer(kind: u16, state: u16, address: Option<[u8; 6]>) -> Vec<u8> {
        let mut bytes = request(IpAddr::from([10, 0, 0, 2]), 7);
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[HEADER + 8..HEADER + 10].copy_from_slice(&state.to_ne_bytes());
        if let Some(address) = address {
            bytes.extend(10_u16.to_ne_bytes());
            bytes.extend(NDA_LLADDR.to_ne_bytes());
            bytes.extend(address);
            bytes.extend([0; 2]);
        }
        bytes
    }

    #[test]
    fn a_question_is_as_long_as_it_says() {
        let v4 = request(IpAddr::from([10, 0, 0, 2]), 7);
        assert_eq!(v4.len(), HEADER + BODY + ATTRIBUTE + 4);
        assert_eq!(v4[..4], (v4.len() as u32).to_ne_bytes());
        assert_eq!(v4[HEADER], libc::AF_INET as u8);
        assert_eq!(v4[HEADER + 4..HEADER + 8], 7_u32.to_ne_bytes());
        assert_eq!(v4[v4.len() - 4..], [10, 0, 0, 2]);
        let v6 = request(IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, 2]), 7);
        assert_eq!(v6.len(), HEADER + BODY + ATTRIBUTE + 16);
    }

    #[test]
    fn only_a_state_with_an_address_has_one() {
        let mac = [2, 0, 0, 0, 0, 9];
        let reachable = 0x02;
        let neighbour = libc::RTM_NEWNEIGH;
        assert_eq!(
            address_in(&answer(neighbour, reachable, Some(mac))),
            Some(mac)
        );
        for (kind, state, address) in [
            // NUD_INCOMPLETE, NUD_FAILED.
            (neighbour, 0x01, Some(mac)),
            (neighbour, 0x20, Some(mac)),
            (neighbour, reachable, None),
            (libc::NLMSG_ERROR as u16, reachable, Some(mac)),
        ] {
            assert_eq!(
                address_in(&answer(kind, state, address)),
                None,
                "{kind} {state:#x}"
            );
        }
    }

    #[test]
    fn an_answer_that_is_cut_off_has_no_address() {
        let whole = answer(libc::RTM_NEWNEIGH, 0x02, Some([2, 0, 0, 0, 0, 9]));
        // Without the two bytes of padding the address is whole.
        for len in 0..whole.len() - 2 {
            assert_eq!(address_in(&whole[..len]), None, "{len} bytes");
        }
        let mut endless = whole;
        // An attribute of no length.
        endless[HEADER + BODY..HEADER + BODY + 2].copy_from_slice(&[0; 2]);
        assert_eq!(address_in(&endless), None);
    }
}
