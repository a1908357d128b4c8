//! The sockets we send from: one for each family and slot of the remote host, made at first use.

use crate::frame::Flow;
use crate::sys::thread::Uncancelled;
use crate::sys::{send, set_option};
use oarlock_wire::AddressVector;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::hash::{BuildHasher, Hasher};
use std::io::{self, IoSlice};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::AsFd as _;
use std::sync::{Mutex, OnceLock, PoisonError};

/// All sending sockets of one slot.
#[derive(Debug)]
pub(crate) struct Senders {
    ipv6: bool,
    sockets: Box<[OnceLock<Sender>]>,
    making: Mutex<()>,
}

/// One unconnected socket with a port of its own.
#[derive(Debug)]
pub(crate) struct Sender {
    socket: Socket,
    port: u16,
}

impl Senders {
    pub(crate) fn new(ipv6: bool) -> Self {
        Self {
            ipv6,
            sockets: (0..2 * crate::SLOTS).map(|_| OnceLock::new()).collect(),
            making: Mutex::new(()),
        }
    }

    /// Whether the system has IPv6.
    pub(crate) fn have_ipv6(&self) -> bool {
        self.ipv6
    }

    /// The socket for a slot of a remote host.
    pub(crate) fn get(&self, ipv6: bool, slot: u8) -> io::Result<&Sender> {
        if ipv6 && !self.ipv6 {
            return Err(io::Error::from_raw_os_error(libc::EAFNOSUPPORT));
        }
        let family = usize::from(ipv6) * crate::SLOTS;
        let place = &self.sockets[family + usize::from(slot)];
        if let Some(sender) = place.get() {
            return Ok(sender);
        }
        // Not while a socket is made, which takes more calls than sending.
        let _uncancelled = Uncancelled::new();
        let _making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        match Sender::new(ipv6) {
            Ok(sender) => Ok(place.get_or_init(|| sender)),
            // Out of descriptors or ports: share one that exists. What GRO then merges wrongly is forwarded.
            Err(error) => place
                .get()
                .or_else(|| {
                    self.sockets[family..]
                        .iter()
                        .take(crate::SLOTS)
                        .find_map(OnceLock::get)
                })
                .ok_or(error),
        }
    }
}

impl Sender {
    fn new(ipv6: bool) -> io::Result<Self> {
        let domain = if ipv6 { Domain::IPV6 } else { Domain::IPV4 };
        let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
        socket.set_nonblocking(true)?;
        if ipv6 {
            socket.set_only_v6(true)?;
            set_option(
                &socket,
                libc::IPPROTO_IPV6,
                libc::IPV6_MTU_DISCOVER,
                libc::IPV6_PMTUDISC_DO,
            )?;
        } else {
            set_option(
                &socket,
                libc::IPPROTO_IP,
                libc::IP_MTU_DISCOVER,
                libc::IP_PMTUDISC_DO,
            )?;
        }
        // Nothing is read here; a send buffer for two full bursts, as far as the system allows.
        let _ = socket.set_recv_buffer_size(1);
        let _ = socket.set_send_buffer_size(SEND_BUFFER);
        let any: IpAddr = if ipv6 {
            Ipv6Addr::UNSPECIFIED.into()
        } else {
            Ipv4Addr::UNSPECIFIED.into()
        };
        let start = std::collections::hash_map::RandomState::new()
            .build_hasher()
            .finish() as u16;
        let mut error = io::Error::from_raw_os_error(libc::EADDRINUSE);
        for i in 0..PORT_COUNT {
            let port = FIRST_PORT + (start.wrapping_add(i) % PORT_COUNT);
            match socket.bind(&SockAddr::from(SocketAddr::new(any, port))) {
                Ok(()) => return Ok(Self { socket, port }),
                Err(e) if e.raw_os_error() == Some(libc::EADDRINUSE) => error = e,
                Err(e) => return Err(e),
            }
        }
        Err(error)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Sends one datagram, or a burst of `segment` bytes each.
    pub(crate) fn send(
        &self,
        av: &AddressVector,
        flow: &Flow,
        pieces: &[&[u8]],
        segment: Option<u16>,
    ) -> io::Result<()> {
        let address = match flow.destination {
            IpAddr::V4(ip) => SocketAddr::new(ip.into(), flow.destination_port),
            IpAddr::V6(ip) => {
                let scope = if ip.is_unicast_link_local() || ip.is_multicast() {
                    av.scope_id
                } else {
                    0
                };
                SocketAddr::V6(SocketAddrV6::new(ip, flow.destination_port, 0, scope))
            }
        };
        let mut control = ControlBuffer {
            bytes: [0; 128],
            len: 0,
        };
        // A group is reached by one interface, and the system's default for its hop limit is 1.
        let to_group = flow.destination.is_multicast();
        let hop_limit = if to_group {
            hop_limit(av)
        } else {
            av.hop_limit
        };
        match flow.source {
            // struct in_pktinfo: interface, source address, unused.
            IpAddr::V4(ip) => {
                let mut info = [0; 12];
                if to_group {
                    info[..4].copy_from_slice(&av.scope_id.to_ne_bytes());
                }
                info[4..8].copy_from_slice(&ip.octets());
                control.push(libc::IPPROTO_IP, libc::IP_PKTINFO, &info);
                if av.traffic_class != 0 {
                    control.push(
                        libc::IPPROTO_IP,
                        libc::IP_TOS,
                        &i32::from(av.traffic_class).to_ne_bytes(),
                    );
                }
                if hop_limit != 0 {
                    control.push(
                        libc::IPPROTO_IP,
                        libc::IP_TTL,
                        &i32::from(hop_limit).to_ne_bytes(),
                    );
                }
            }
            // struct in6_pktinfo: source address, interface.
            IpAddr::V6(ip) => {
                let mut info = [0; 20];
                info[..16].copy_from_slice(&ip.octets());
                if to_group || ip.is_unicast_link_local() {
                    info[16..].copy_from_slice(&av.scope_id.to_ne_bytes());
                }
                control.push(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info);
                if av.traffic_class != 0 {
                    control.push(
                        libc::IPPROTO_IPV6,
                        libc::IPV6_TCLASS,
                        &i32::from(av.traffic_class).to_ne_bytes(),
                    );
                }
                if hop_limit != 0 {
                    control.push(
                        libc::IPPROTO_IPV6,
                        libc::IPV6_HOPLIMIT,
                        &i32::from(hop_limit).to_ne_bytes(),
                    );
                }
            }
        }
        if let Some(segment) = segment {
            control.push(libc::SOL_UDP, libc::UDP_SEGMENT, &segment.to_ne_bytes());
        }
        let mut slices = [IoSlice::new(&[]); MAX_PIECES];
        for (slice, piece) in slices.iter_mut().zip(pieces) {
            *slice = IoSlice::new(piece);
        }
        let address = SockAddr::from(address);
        let slices = &slices[..pieces.len()];
        send(self.socket.as_fd(), &address, slices, control.as_bytes())
    }
}

/// The hop limit that goes on the wire for `av`: the system's default where none is given.
pub(crate) fn hop_limit(av: &AddressVector) -> u8 {
    if av.hop_limit == 0 {
        DEFAULT_HOP_LIMIT
    } else {
        av.hop_limit
    }
}

/// Control messages for the kernel: each a length (of header and data), a level and a type, then the data, padded.
struct ControlBuffer {
    bytes: [u8; 128],
    len: usize,
}

impl ControlBuffer {
    fn push(&mut self, level: i32, kind: i32, data: &[u8]) {
        let len = CONTROL_HEADER + data.len();
        let place = &mut self.bytes[self.len..self.len + len];
        place[..WORD].copy_from_slice(&len.to_ne_bytes());
        place[WORD..WORD + 4].copy_from_slice(&level.to_ne_bytes());
        place[WORD + 4..CONTROL_HEADER].copy_from_slice(&kind.to_ne_bytes());
        place[CONTROL_HEADER..].copy_from_slice(data);
        self.len += len.next_multiple_of(WORD);
    }

    fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

const WORD: usize = size_of::<usize>();
const CONTROL_HEADER: usize = WORD + 8;
const MAX_PIECES: usize = 3;
const SEND_BUFFER: usize = 1 << 20;
/// Source ports of RoCEv2 are taken from the dynamic range.
const FIRST_PORT: u16 = 0xC000;
const PORT_COUNT: u16 = 0x4000;
const DEFAULT_HOP_LIMIT: u8 = 64;
