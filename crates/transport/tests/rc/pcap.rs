//! Reads the captures among `wire`'s fixtures: Ethernet or raw IP, IPv4, UDP port 4791.

use std::net::Ipv4Addr;

use oarlock_wire::ROCE_PORT;

/// A RoCEv2 packet as it was on the wire, without its ICRC.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Recorded {
    pub(crate) source: Ipv4Addr,
    pub(crate) destination: Ipv4Addr,
    pub(crate) traffic_class: u8,
    pub(crate) hop_limit: u8,
    pub(crate) bytes: Vec<u8>,
}

const ICRC_LEN: usize = 4;

/// The RoCEv2 packets of a capture, in order.
pub(crate) fn read(name: &str) -> Vec<Recorded> {
    let path = format!("{}/../wire/fixtures/{name}", env!("CARGO_MANIFEST_DIR"));
    let file = std::fs::read(&path).unwrap_or_else(|error| panic!("cannot read {path}: {error}"));
    let u32_at = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap()) as usize;
    assert_eq!(u32_at(0), 0xA1B2_C3D4, "{path}: not a little-endian pcap");
    let ip_at = match u32_at(20) {
        1 => 14,
        101 => 0,
        other => panic!("{path}: link type {other}"),
    };
    let mut packets = Vec::new();
    let mut at = 24;
    while at < file.len() {
        let len = u32_at(at + 8);
        packets.extend(roce(&file[at + 16 + ip_at..at + 16 + len]));
        at += 16 + len;
    }
    assert!(!packets.is_empty(), "{path}: no RoCEv2 packets");
    packets
}

fn roce(ip: &[u8]) -> Option<Recorded> {
    const UDP: u8 = 17;
    if ip.first()? >> 4 != 4 || ip[9] != UDP {
        return None;
    }
    let udp = &ip[usize::from(ip[0] & 0xF) * 4..];
    if u16::from_be_bytes([udp[2], udp[3]]) != ROCE_PORT {
        return None;
    }
    let len = usize::from(u16::from_be_bytes([udp[4], udp[5]]));
    let address = |at: usize| Ipv4Addr::new(ip[at], ip[at + 1], ip[at + 2], ip[at + 3]);
    Some(Recorded {
        source: address(12),
        destination: address(16),
        traffic_class: ip[1],
        hop_limit: ip[8],
        bytes: udp[8..len - ICRC_LEN].to_vec(),
    })
}
