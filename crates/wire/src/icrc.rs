//! ICRC: the invariant CRC at the end of every packet (IBA Vol. 1 ch. 7; Annex A17 for RoCEv2).
//!
//! The CRC-32 of Ethernet over a pseudo header and the packet, with every field that a router may change replaced by ones,
//! stored with the least significant byte first:
//!
//! ```text
//!  8 bytes of ones           where InfiniBand has its local route header
//!  IPv4: TOS, TTL and header checksum are ones; identification, flags and fragment offset are covered
//!  IPv6: traffic class, flow label and hop limit are ones
//!  UDP: checksum is ones
//!  BTH: byte 4 (FECN, BECN, reserved) is ones
//!  the rest as it is, padding included
//! ```
//!
//! # The identification that nobody shows
//! A plain UDP receiver cannot see the IPv4 identification of what it gets, yet the ICRC covers it. A CRC is linear: the
//! ICRCs of two packets that differ in the identification alone differ by a value that depends on nothing but that
//! difference and its distance from the end. [`check_ipv4_unknown_id`] computes the ICRC for identification 0 and turns the
//! difference back to where the identification stands. There its upper 16 bits must be zero (that is the check, 16 bits
//! strong) and the lower 16 are the identification.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use crc32fast::Hasher;

/// The length of the ICRC.
pub const ICRC_LEN: usize = 4;
/// The flags and fragment offset of a packet that must not be fragmented, as RoCEv2 packets are sent.
pub const DONT_FRAGMENT: u16 = 0x4000;

/// The ICRC of a packet over IPv4. `transport` is everything from the BTH to the padding, in any number of pieces.
#[must_use]
pub fn icrc_ipv4(
    source: Ipv4Addr,
    destination: Ipv4Addr,
    source_port: u16,
    destination_port: u16,
    identification: u16,
    flags_and_fragment: u16,
    transport: &[&[u8]],
) -> u32 {
    let udp_len = udp_len(transport);
    let mut header = [0xFF; 8 + IPV4_LEN + UDP_LEN];
    let ip = &mut header[8..];
    ip[0] = 0x45;
    ip[2..4].copy_from_slice(&low_16(IPV4_LEN + udp_len));
    ip[4..6].copy_from_slice(&identification.to_be_bytes());
    ip[6..8].copy_from_slice(&flags_and_fragment.to_be_bytes());
    ip[9] = PROTOCOL_UDP;
    ip[12..16].copy_from_slice(&source.octets());
    ip[16..20].copy_from_slice(&destination.octets());
    put_udp(&mut ip[IPV4_LEN..], source_port, destination_port, udp_len);
    crc(&header, transport)
}

/// The ICRC of a packet over IPv6. `transport` is everything from the BTH to the padding, in any number of pieces.
#[must_use]
pub fn icrc_ipv6(
    source: Ipv6Addr,
    destination: Ipv6Addr,
    source_port: u16,
    destination_port: u16,
    transport: &[&[u8]],
) -> u32 {
    let udp_len = udp_len(transport);
    let mut header = [0xFF; 8 + IPV6_LEN + UDP_LEN];
    let ip = &mut header[8..];
    ip[0] = 0x6F;
    ip[4..6].copy_from_slice(&low_16(udp_len));
    ip[6] = PROTOCOL_UDP;
    ip[8..24].copy_from_slice(&source.octets());
    ip[24..40].copy_from_slice(&destination.octets());
    put_udp(&mut ip[IPV6_LEN..], source_port, destination_port, udp_len);
    crc(&header, transport)
}

/// Checks the ICRC of a packet over IPv4 whose identification is not known. Returns the identification if there is one
/// that makes `received` right; [`DONT_FRAGMENT`] is taken for granted.
///
/// A damaged packet passes by chance once in 65,536 times.
#[must_use]
pub fn check_ipv4_unknown_id(
    source: Ipv4Addr,
    destination: Ipv4Addr,
    source_port: u16,
    destination_port: u16,
    transport: &[&[u8]],
    received: u32,
) -> Option<u16> {
    let expected = icrc_ipv4(
        source,
        destination,
        source_port,
        destination_port,
        0,
        DONT_FRAGMENT,
        transport,
    );
    if expected == received {
        return Some(0);
    }
    let after_identification = IPV4_LEN - IDENTIFICATION + udp_len(transport) - ICRC_LEN;
    let difference = reverse::by_bytes(expected ^ received, after_identification);
    u16::try_from(difference).ok().map(u16::swap_bytes)
}

/// The addresses and ports of a datagram. They are of one family; IPv4 in its IPv6 form counts as IPv4.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct UdpAddresses {
    hosts: Hosts,
    source_port: u16,
    destination_port: u16,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Hosts {
    V4(Ipv4Addr, Ipv4Addr),
    V6(Ipv6Addr, Ipv6Addr),
}

impl UdpAddresses {
    /// The addresses of a datagram from `source` to `destination`, or `None` if they are of different families.
    #[must_use]
    pub fn new(source: SocketAddr, destination: SocketAddr) -> Option<Self> {
        let hosts = match (source.ip().to_canonical(), destination.ip().to_canonical()) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => Hosts::V4(source, destination),
            (IpAddr::V6(source), IpAddr::V6(destination)) => Hosts::V6(source, destination),
            _ => return None,
        };
        Some(Self {
            hosts,
            source_port: source.port(),
            destination_port: destination.port(),
        })
    }

    /// The ICRC of a packet between these addresses. Over IPv4 it covers the identification, over IPv6 there is none.
    #[must_use]
    pub fn icrc(&self, identification: u16, transport: &[&[u8]]) -> u32 {
        let (source_port, destination_port) = (self.source_port, self.destination_port);
        match self.hosts {
            Hosts::V4(source, destination) => icrc_ipv4(
                source,
                destination,
                source_port,
                destination_port,
                identification,
                DONT_FRAGMENT,
                transport,
            ),
            Hosts::V6(source, destination) => icrc_ipv6(
                source,
                destination,
                source_port,
                destination_port,
                transport,
            ),
        }
    }

    /// Checks the ICRC of a packet between these addresses, whatever its identification: see
    /// [`check_ipv4_unknown_id`]. Over IPv6 the check is exact.
    #[must_use]
    pub fn is_right(&self, transport: &[&[u8]], received: u32) -> bool {
        let (source_port, destination_port) = (self.source_port, self.destination_port);
        match self.hosts {
            Hosts::V4(source, destination) => check_ipv4_unknown_id(
                source,
                destination,
                source_port,
                destination_port,
                transport,
                received,
            )
            .is_some(),
            Hosts::V6(..) => self.icrc(0, transport) == received,
        }
    }
}

/// The CRC of the masked headers, then of the pieces with byte 4 of the whole replaced by ones.
fn crc(header: &[u8], transport: &[&[u8]]) -> u32 {
    let mut hasher = Hasher::new();
    hasher.update(header);
    let mut before_mask = BTH_MASKED_BYTE;
    let mut masked = false;
    for &piece in transport {
        match piece.split_at_checked(before_mask) {
            Some((head, [_, tail @ ..])) if !masked => {
                masked = true;
                hasher.update(head);
                hasher.update(&[0xFF]);
                hasher.update(tail);
            }
            _ => {
                before_mask = before_mask.saturating_sub(piece.len());
                hasher.update(piece);
            }
        }
    }
    hasher.finalize()
}

fn udp_len(transport: &[&[u8]]) -> usize {
    UDP_LEN + transport.iter().map(|piece| piece.len()).sum::<usize>() + ICRC_LEN
}

fn put_udp(udp: &mut [u8], source_port: u16, destination_port: u16, udp_len: usize) {
    udp[0..2].copy_from_slice(&source_port.to_be_bytes());
    udp[2..4].copy_from_slice(&destination_port.to_be_bytes());
    udp[4..6].copy_from_slice(&low_16(udp_len));
}

/// A length as its field holds it. Longer packets than the field can tell do not exist on a network.
fn low_16(len: usize) -> [u8; 2] {
    let [low, high, ..] = len.to_le_bytes();
    [high, low]
}

const IPV4_LEN: usize = 20;
const IPV6_LEN: usize = 40;
const UDP_LEN: usize = 8;
const PROTOCOL_UDP: u8 = 17;
/// Where the identification stands in an IPv4 header.
const IDENTIFICATION: usize = 4;
/// The byte of the BTH that a switch may change.
const BTH_MASKED_BYTE: usize = 4;

mod reverse;
#[cfg(test)]
mod tests;
