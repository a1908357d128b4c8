//! What the judges share: a classic pcap reader and writer, RoCEv2 frames, a seeded generator, and how to say "not run".

use oarlock_wire::ROCE_PORT;
use std::fs;
use std::net::{IpAddr, Ipv6Addr};
use std::path::{Path, PathBuf};

/// A RoCEv2 packet of a capture, with what the ICRC covers.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    pub(crate) link_destination: [u8; 6],
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    pub(crate) traffic_class: u8,
    pub(crate) hop_limit: u8,
    pub(crate) source_port: u16,
    /// 0 over IPv6, which has none.
    pub(crate) identification: u16,
    /// 0 over IPv6, which has none.
    pub(crate) flags_and_fragment: u16,
    /// The IP header as it stands.
    pub(crate) ip_header: Vec<u8>,
    /// BTH to padding.
    pub(crate) transport: Vec<u8>,
    pub(crate) icrc: u32,
}

impl Frame {
    /// The MAD of a datagram to QP1, read by fixed offsets: BTH 12, DETH 8.
    pub(crate) fn mad(&self) -> Option<&[u8; 256]> {
        let to_qp1 = self.transport[0] == 0x64 && self.transport[5..8] == [0, 0, 1];
        if to_qp1 {
            self.transport[20..].try_into().ok()
        } else {
            None
        }
    }
}

pub(crate) fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fixtures")
        .join(name)
}

pub(crate) const FIXTURES: [&str; 5] = [
    "wire-cm-mads.pcap",
    "wire-mckey.pcap",
    "wire-mra.pcap",
    "wire-rping.pcap",
    "wire-udaddy.pcap",
];

/// The RoCEv2 packets in a fixture.
pub(crate) fn frames(name: &str) -> Vec<Frame> {
    let frames: Vec<_> = ethernet_frames(name)
        .iter()
        .filter_map(|frame| roce_frame(frame))
        .collect();
    assert!(
        !frames.is_empty(),
        "a fixture without RoCEv2 judges nothing"
    );
    frames
}

/// All frames of a fixture (little-endian pcap of Ethernet frames).
pub(crate) fn ethernet_frames(name: &str) -> Vec<Vec<u8>> {
    let file = fs::read(fixture(name)).expect("the fixture is in the repository");
    assert_eq!(file[..4], [0xD4, 0xC3, 0xB2, 0xA1], "little-endian pcap");
    assert_eq!(file[20..24], [1, 0, 0, 0], "Ethernet");
    let mut rest = &file[24..];
    let mut frames = Vec::new();
    while let Some((header, after)) = rest.split_at_checked(16) {
        let len = u32::from_le_bytes(header[8..12].try_into().expect("4 bytes")) as usize;
        let (frame, after) = after.split_at(len);
        frames.push(frame.to_vec());
        rest = after;
    }
    assert!(rest.is_empty(), "the last record is whole");
    frames
}

fn roce_frame(ethernet: &[u8]) -> Option<Frame> {
    let (link, ip) = ethernet.split_at_checked(14)?;
    let be16 = |at: usize| u16::from_be_bytes([ip[at], ip[at + 1]]);
    let (header_len, end) = match (&link[12..], *ip.first()?) {
        ([0x08, 0x00], 0x45) if ip[9] == 17 => (20, usize::from(be16(2))),
        ([0x86, 0xDD], _) if ip[6] == 17 => (40, 40 + usize::from(be16(4))),
        _ => return None,
    };
    let (ip_header, datagram) = ip[..end].split_at(header_len);
    let port = |at: usize| u16::from_be_bytes([datagram[at], datagram[at + 1]]);
    if port(2) != ROCE_PORT {
        return None;
    }
    let (transport, icrc) = datagram[8..].split_last_chunk()?;
    let is_v4 = header_len == 20;
    let address = |v4: usize, v6: usize| {
        if is_v4 {
            IpAddr::from(<[u8; 4]>::try_from(&ip[v4..v4 + 4]).expect("4 bytes"))
        } else {
            IpAddr::from(<[u8; 16]>::try_from(&ip[v6..v6 + 16]).expect("16 bytes"))
        }
    };
    Some(Frame {
        link_destination: link[..6].try_into().expect("6 bytes"),
        source: address(12, 8),
        destination: address(16, 24),
        traffic_class: if is_v4 {
            ip[1]
        } else {
            ip[0] << 4 | ip[1] >> 4
        },
        hop_limit: if is_v4 { ip[8] } else { ip[7] },
        source_port: port(0),
        identification: if is_v4 { be16(4) } else { 0 },
        flags_and_fragment: if is_v4 { be16(6) } else { 0 },
        ip_header: ip_header.to_vec(),
        transport: transport.to_vec(),
        icrc: u32::from_le_bytes(*icrc),
    })
}

/// An IP packet that carries a RoCEv2 packet, UDP checksum 0.
pub(crate) fn ip_packet(
    source: IpAddr,
    destination: IpAddr,
    source_port: u16,
    identification: u16,
    transport: &[u8],
    icrc: u32,
) -> Vec<u8> {
    let udp_len = u16::try_from(8 + transport.len() + 4).expect("a packet");
    let mut packet = Vec::new();
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            packet.extend([0x45, 0]);
            packet.extend((20 + udp_len).to_be_bytes());
            packet.extend(identification.to_be_bytes());
            packet.extend([0x40, 0, 64, 17, 0, 0]);
            packet.extend(source.octets());
            packet.extend(destination.octets());
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            packet.extend([0x60, 0, 0, 0]);
            packet.extend(udp_len.to_be_bytes());
            packet.extend([17, 64]);
            packet.extend(source.octets());
            packet.extend(destination.octets());
        }
        _ => panic!("addresses of one family"),
    }
    packet.extend(source_port.to_be_bytes());
    packet.extend(ROCE_PORT.to_be_bytes());
    packet.extend(udp_len.to_be_bytes());
    packet.extend([0, 0]);
    packet.extend(transport);
    packet.extend(icrc.to_le_bytes());
    packet
}

/// The byte order of a pcap file.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Order {
    Little,
    Big,
}

impl Order {
    fn u32(self, value: u32) -> [u8; 4] {
        match self {
            Self::Little => value.to_le_bytes(),
            Self::Big => value.to_be_bytes(),
        }
    }
}

/// Writes a classic pcap, each packet behind the link header that `link_header` makes for it.
pub(crate) fn write_pcap(
    name: &str,
    order: Order,
    link_type: u32,
    link_header: fn(&[u8]) -> Vec<u8>,
    packets: &[Vec<u8>],
) -> PathBuf {
    let mut file = Vec::new();
    file.extend(order.u32(0xA1B2_C3D4));
    match order {
        Order::Little => file.extend([2, 0, 4, 0]),
        Order::Big => file.extend([0, 2, 0, 4]),
    }
    for word in [0, 0, 65_535, link_type] {
        file.extend(order.u32(word));
    }
    for packet in packets {
        let mut frame = link_header(packet);
        frame.extend(packet);
        let len = u32::try_from(frame.len()).expect("a frame");
        for word in [0, 0, len, len] {
            file.extend(order.u32(word));
        }
        file.extend(frame);
    }
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::write(&path, file).expect("the target directory is writable");
    path
}

/// Link header of nothing.
pub(crate) fn bare(_packet: &[u8]) -> Vec<u8> {
    Vec::new()
}

/// The transport part of an IP packet, for tests that damage it.
pub(crate) fn transport_offset(packet: &[u8]) -> usize {
    if packet[0] >> 4 == 4 { 28 } else { 48 }
}

pub(crate) const V6_SOURCE: Ipv6Addr = Ipv6Addr::new(0xFD00, 0, 0, 0, 0, 0, 0, 1);
pub(crate) const V6_DESTINATION: Ipv6Addr = Ipv6Addr::new(0xFE80, 0, 0, 0, 0, 0, 0, 0xBEEF);

/// A generator of numbers that look random (SplitMix64, Steele et al. 2014). The seed is in the test's output.
pub(crate) struct Random(u64);

impl Random {
    /// Seeded from `OARLOCK_SEED`, else always the same.
    pub(crate) fn seeded() -> Self {
        let seed = std::env::var("OARLOCK_SEED")
            .ok()
            .and_then(|seed| seed.parse().ok())
            .unwrap_or(1);
        println!("OARLOCK_SEED={seed}");
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    pub(crate) fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let random = self.next().to_le_bytes();
            chunk.copy_from_slice(&random[..chunk.len()]);
        }
    }
}
