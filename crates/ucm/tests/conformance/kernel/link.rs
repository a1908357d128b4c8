//! The machine's interfaces, and the hosts on the link of the first one: sockets in a network namespace of their own, at the
//! other end of a pair of virtual Ethernets, that speak RoCEv2.

use std::fs;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::process::Command;
use std::thread;
use std::time::Duration;

use oarlock_wire::icrc::{ICRC_LEN, UdpAddresses};
use oarlock_wire::{Bth, Deth, Opcode, Packet, PacketHeader, Psn, QKey, Qpn, ROCE_PORT};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::sockopt::{Ipv4PathMtuDiscovery, set_ip_mtu_discover};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::subject::{HostEvent, Peer};

/// The interfaces: `rows0` is the first device's, `rows1` its link's other end in the namespace `rows`, `rows2` has the
/// second device and `rows3` none.
const ADDRESSES: [(&str, &str, Option<&str>); 18] = [
    ("LOCAL", "10.0.0.1", Some("rows0")),
    ("LOCAL2", "10.0.0.11", Some("rows0")),
    ("LOCAL6", "2001:db8::1", Some("rows0")),
    ("LL6", "fe80::1", Some("rows0")),
    ("LL6_UNSCOPED", "fe80::1", None),
    ("SECOND", "10.0.1.1", Some("rows2")),
    ("OTHER", "10.0.0.2", Some("rows1")),
    ("OTHER6", "2001:db8::2", Some("rows1")),
    ("STRANGER", "10.0.0.3", Some("rows1")),
    ("ABSENT", "10.0.0.99", None),
    ("UNROUTED", "192.0.2.1", None),
    ("NODEVICE", "10.0.2.1", Some("rows3")),
    ("ANY", "0.0.0.0", None),
    ("ANY6", "::", None),
    ("LOOP", "127.0.0.1", None),
    ("LOOP6", "::1", None),
    ("GROUP", "224.1.1.1", None),
    ("GROUP6", "ff05::1:3", None),
];
const NAMESPACE: &str = "/run/netns/rows";
/// What both ends of the link call themselves.
const HARDWARE: [&str; 2] = ["02:00:00:00:00:01", "02:00:00:00:00:02"];
/// Where a neighbour moves to.
const MOVED: &str = "02:00:00:00:00:03";
/// After this time a device has its table of addresses.
const READY: Duration = Duration::from_secs(1);
/// The queue pair of management datagrams, and its key (IBA Vol. 1 ch. 3, 16).
const GSI: Qpn = Qpn::QP1;
const GSI_KEY: QKey = QKey::GSI;

fn address(name: &str) -> IpAddr {
    let entry = ADDRESSES.iter().find(|(known, ..)| *known == name);
    let (_, text, _) = entry.unwrap_or_else(|| panic!("no address {name}"));
    text.parse().expect("an address")
}

/// Runs a program that is to succeed.
fn run(command: &str) {
    let mut words = command.split_whitespace();
    let program = words.next().expect("a program");
    let output = Command::new(program)
        .args(words)
        .output()
        .unwrap_or_else(|error| panic!("{command}: {error}"));
    assert!(
        output.status.success(),
        "{command}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

fn inside(command: &str) {
    run(&format!("ip netns exec rows {command}"));
}

struct Socket {
    peer: Peer,
    at: SocketAddr,
    socket: UdpSocket,
}

pub(super) struct Link {
    sockets: Vec<Socket>,
    psn: u32,
    /// What is not as it was.
    changed: Option<HostEvent>,
}

impl Link {
    pub(super) fn new() -> Self {
        if fs::metadata(NAMESPACE).is_err() {
            build();
        }
        let peers = [
            (Peer::Other, "OTHER"),
            (Peer::Other, "OTHER6"),
            (Peer::Stranger, "STRANGER"),
        ];
        let sockets = thread::spawn(move || {
            let namespace = fs::File::open(NAMESPACE).expect("the namespace is there");
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
                .expect("the namespace opens");
            peers.map(|(peer, name)| socket(peer, address(name)))
        });
        Self {
            sockets: sockets.join().expect("sockets").into(),
            psn: 0,
            changed: None,
        }
    }

    pub(super) fn address(&self, name: &str) -> Option<(IpAddr, u32)> {
        let (_, text, _) = ADDRESSES.iter().find(|(known, ..)| *known == name)?;
        let scope = match name {
            "LL6" => index("rows0"),
            _ => 0,
        };
        Some((text.parse().expect("an address"), scope))
    }

    pub(super) fn send(&mut self, from: Peer, to: IpAddr, mad: &[u8; 256]) {
        let to = SocketAddr::new(to, ROCE_PORT);
        let sender = self
            .sockets
            .iter()
            .find(|socket| socket.peer == from && socket.at.is_ipv4() == to.is_ipv4())
            .expect("the peer has an address of that family");
        self.psn = (self.psn + 1) % (1 << 24);
        let bth = Bth::new(
            Opcode::UD_SEND_ONLY,
            GSI,
            Psn::new(self.psn).expect("24 bits"),
        );
        let header = PacketHeader::new(bth).with_deth(Deth {
            qkey: GSI_KEY,
            src_qpn: GSI,
        });
        let mut packet = [0; Bth::LEN + Deth::LEN + 256 + ICRC_LEN];
        let len = header.emit_packet(mad, &mut packet).expect("it fits");
        let addresses = UdpAddresses::new(sender.at, to).expect("of one family");
        // A socket that must not fragment has the identification 0.
        let icrc = addresses.icrc(0, &[&packet[..len]]);
        packet[len..].copy_from_slice(&icrc.to_le_bytes());
        sender.socket.send_to(&packet, to).expect("it is sent");
    }

    /// The next message, or `None` after that time, or when something came that was none.
    pub(super) fn receive(&self, peer: Peer, within: Duration) -> Option<[u8; 256]> {
        let sockets: Vec<&Socket> = self.sockets.iter().filter(|s| s.peer == peer).collect();
        let mut fds: Vec<PollFd<'_>> = sockets
            .iter()
            .map(|socket| PollFd::new(&socket.socket, PollFlags::IN))
            .collect();
        poll(&mut fds, Some(&super::time(within))).expect("poll");
        let ready = fds
            .iter()
            .position(|fd| fd.revents().contains(PollFlags::IN))?;
        let mut bytes = [0; 2048];
        let (len, from) = sockets[ready]
            .socket
            .recv_from(&mut bytes)
            .expect("it was readable");
        let (transport, icrc) = bytes[..len].split_last_chunk::<ICRC_LEN>()?;
        let addresses = UdpAddresses::new(from, sockets[ready].at).expect("of one family");
        assert!(
            addresses.is_right(&[transport], u32::from_le_bytes(*icrc)),
            "the kernel's ICRC"
        );
        let packet = Packet::parse(transport).expect("a packet of RoCEv2");
        match packet.bth.dest_qpn {
            GSI => Some(packet.payload.try_into().expect("a management datagram")),
            _ => None,
        }
    }

    pub(super) fn host(&mut self, event: HostEvent) {
        match event {
            HostEvent::DeviceLeaves => run("rdma link delete rows0"),
            HostEvent::AddressLeaves => run("ip address del 10.0.0.1/24 dev rows0"),
            HostEvent::DeviceReturns => run("rdma link add rows0 type rxe netdev rows0"),
            HostEvent::AddressReturns => run("ip address add 10.0.0.1/24 dev rows0"),
            HostEvent::NeighbourMoves => neighbour(MOVED),
        }
        self.changed = match event {
            HostEvent::DeviceReturns | HostEvent::AddressReturns => None,
            _ => Some(event),
        };
        thread::sleep(READY);
    }

    /// Everything is as it was, for the next row.
    pub(super) fn restore(&mut self) {
        match self.changed.take() {
            Some(HostEvent::DeviceLeaves) => {
                // The first device is the one that was there first.
                run("rdma link delete rows2");
                self.host(HostEvent::DeviceReturns);
                run("rdma link add rows2 type rxe netdev rows2");
                thread::sleep(READY);
            }
            Some(HostEvent::AddressLeaves) => {
                // The first address of an interface is the one that its packets come from.
                run("ip address del 10.0.0.11/24 dev rows0");
                self.host(HostEvent::AddressReturns);
                run("ip address add 10.0.0.11/24 dev rows0");
                thread::sleep(READY);
            }
            Some(HostEvent::NeighbourMoves) => neighbour(HARDWARE[1]),
            _ => {}
        }
    }
}

fn neighbour(hardware: &str) {
    run(&format!(
        "ip neighbour replace 10.0.0.2 lladdr {hardware} dev rows0 nud permanent"
    ));
}

fn index(interface: &str) -> u32 {
    let path = format!("/sys/class/net/{interface}/ifindex");
    let text = fs::read_to_string(path).expect("the interface is there");
    text.trim().parse().expect("a number")
}

fn socket(peer: Peer, ip: IpAddr) -> Socket {
    let at = SocketAddr::new(ip, ROCE_PORT);
    let socket = UdpSocket::bind(at).unwrap_or_else(|error| panic!("{at}: {error}"));
    match at {
        SocketAddr::V4(_) => {
            set_ip_mtu_discover(&socket, Ipv4PathMtuDiscovery::DO).expect("not to fragment");
        }
        SocketAddr::V6(_) => take_without_checksum(&socket),
    }
    Socket { peer, at, socket }
}

/// RoCEv2 has no checksums of UDP, which IPv6 otherwise demands.
fn take_without_checksum(socket: &UdpSocket) {
    let yes: libc::c_int = 1;
    // SAFETY: the option's value is an int, of the size that is given, and lives as long as the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_UDP,
            libc::UDP_NO_CHECK6_RX,
            std::ptr::from_ref(&yes).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    assert_eq!(result, 0, "packets without a checksum");
}

/// Makes interfaces and devices, once.
fn build() {
    run("ip netns add rows");
    run("ip link add rows0 type veth peer name rows1 netns rows");
    run("ip link add rows2 type dummy");
    run("ip link add rows3 type dummy");
    run(&format!("ip link set rows0 address {}", HARDWARE[0]));
    inside(&format!("ip link set rows1 address {}", HARDWARE[1]));
    fs::write("/proc/sys/net/ipv4/conf/all/promote_secondaries", "1")
        .expect("the setting is there");
    for interface in ["rows0", "rows2", "rows3"] {
        run(&format!("ip link set {interface} addrgenmode none"));
    }
    inside("ip link set rows1 addrgenmode none");
    inside("ip link set rows1 up");
    inside("ip link set lo up");
    for interface in ["lo", "rows0", "rows2", "rows3"] {
        run(&format!("ip link set {interface} up"));
    }
    for (_, address, interface) in ADDRESSES {
        let Some(interface) = interface else { continue };
        let (bits, how) = match address.contains(':') {
            true => (64, " nodad"),
            false => (24, ""),
        };
        let command = format!("ip address add {address}/{bits} dev {interface}{how}");
        match interface {
            "rows1" => inside(&command),
            _ => run(&command),
        }
    }
    // Both ends know each other: no row is about the first packet's search for the neighbour.
    for (name, address, interface) in ADDRESSES {
        match (name, interface) {
            (_, Some("rows1")) => run(&format!(
                "ip neighbour add {address} lladdr {} dev rows0 nud permanent",
                HARDWARE[1]
            )),
            (_, Some("rows0")) => inside(&format!(
                "ip neighbour add {address} lladdr {} dev rows1 nud permanent",
                HARDWARE[0]
            )),
            _ => {}
        }
    }
    for interface in ["rows0", "rows2"] {
        run(&format!(
            "rdma link add {interface} type rxe netdev {interface}"
        ));
    }
    thread::sleep(READY);
}
