//! GRH: the global route header (IBA Vol. 1 ch. 8), which a UD receive finds in the first 40 bytes of its buffer.
//!
//! On RoCEv2 the IP header stands there (Annex A17): the 40 bytes of IPv6, or 20 bytes without a meaning and the 20 bytes of
//! IPv4.
//!
//! ```text
//!  byte  IPv6
//!     0  version (4): 6 | traffic class (8) | flow label (20)
//!     4  payload length (16) | next header (8) | hop limit (8)
//!     8  source address (128)
//!    24  destination address (128)
//!
//!  byte  IPv4
//!     0  zero, 20 bytes
//!    20  version (4): 4 | header words (4): 5 | TOS (8) | total length (16)
//!    24  identification (16) | flags and fragment offset (16)
//!    28  TTL (8) | protocol (8) | header checksum (16)
//!    32  source address (32)
//!    36  destination address (32)
//! ```

use crate::error::{WireError, WireErrorKind};
use crate::icrc::{DONT_FRAGMENT, ICRC_LEN};
use crate::units::{AddressVector, FlowLabel};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The global route header of a datagram: its IP header, as far as a receiver has a use for it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Grh {
    /// Who sent the datagram.
    pub source: IpAddr,
    /// To whom: this host or a multicast group. If its family is not that of the source, it is emitted as unspecified.
    pub destination: IpAddr,
    /// The traffic class (IPv6) or type of service (IPv4).
    pub traffic_class: u8,
    /// The flow label; IPv4 has none.
    pub flow_label: FlowLabel,
    /// The hop limit (IPv6) or time to live (IPv4).
    pub hop_limit: u8,
    /// The bytes after the IP header, from the UDP header to the ICRC.
    pub payload_len: u16,
}

impl Grh {
    /// The length of the header.
    pub const LEN: usize = 40;

    /// The header of a datagram that came along `av` (its local end is the destination, a group perhaps), whose packet has
    /// `packet_len` bytes from the BTH to the padding, as [`Packet::parse`](crate::Packet::parse) takes it.
    #[must_use]
    pub fn of(av: &AddressVector, packet_len: usize) -> Self {
        let (source, destination) = (av.remote.to_ip(), av.local.to_ip());
        let flow_label = match source {
            IpAddr::V4(_) => FlowLabel::default(),
            IpAddr::V6(_) => av.flow_label,
        };
        let payload_len = UDP_LEN.saturating_add(packet_len).saturating_add(ICRC_LEN);
        Self {
            source,
            destination,
            traffic_class: av.traffic_class,
            flow_label,
            hop_limit: av.hop_limit,
            payload_len: u16::try_from(payload_len).unwrap_or(u16::MAX),
        }
    }

    /// Reads the header in the first 40 bytes of a receive.
    ///
    /// It is an IPv6 header if it begins with that version, unless the last 20 bytes are an IPv4 header with the right
    /// checksum: not every device writes zeros before it.
    ///
    /// # Errors
    /// `OutOfRange` for what is neither.
    pub fn parse(bytes: &[u8; Self::LEN]) -> Result<Self, WireError> {
        let (_, v4) = bytes.split_at(V4_AT);
        let is_v4 = v4[0] == V4_VERSION_AND_LEN && (bytes[0] >> 4 != 6 || sum(v4) == 0xFFFF);
        if is_v4 {
            Ok(Self::parse_v4(v4))
        } else if bytes[0] >> 4 == 6 {
            Ok(Self::parse_v6(bytes))
        } else {
            let version = bytes[0] >> 4;
            Err(WireError::new(
                "GRH",
                "IP version",
                WireErrorKind::OutOfRange(version.into()),
            ))
        }
    }

    /// The header as it stands in a receive buffer. An IPv4 header has identification 0, which a receiver of UDP cannot see,
    /// and the flag that forbids fragments.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        match self.source {
            IpAddr::V4(source) => self.emit_v4(source, &mut bytes),
            IpAddr::V6(source) => self.emit_v6(source, &mut bytes),
        }
        bytes
    }

    fn parse_v4(v4: &[u8]) -> Self {
        let address =
            |at: usize| IpAddr::V4(Ipv4Addr::new(v4[at], v4[at + 1], v4[at + 2], v4[at + 3]));
        let total = u16::from_be_bytes([v4[2], v4[3]]);
        Self {
            source: address(12),
            destination: address(16),
            traffic_class: v4[1],
            flow_label: FlowLabel::default(),
            hop_limit: v4[8],
            payload_len: total.saturating_sub(V4_LEN),
        }
    }

    fn parse_v6(bytes: &[u8; Self::LEN]) -> Self {
        let word = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        let [traffic_class, ..] = (word << 4).to_be_bytes();
        let address = |at: usize| {
            let mut octets = [0; 16];
            octets.copy_from_slice(&bytes[at..at + 16]);
            IpAddr::V6(Ipv6Addr::from_octets(octets))
        };
        Self {
            source: address(8),
            destination: address(24),
            traffic_class,
            flow_label: FlowLabel::truncate(word),
            hop_limit: bytes[7],
            payload_len: u16::from_be_bytes([bytes[4], bytes[5]]),
        }
    }

    fn emit_v4(&self, source: Ipv4Addr, bytes: &mut [u8; Self::LEN]) {
        let destination = match self.destination {
            IpAddr::V4(destination) => destination,
            IpAddr::V6(_) => Ipv4Addr::UNSPECIFIED,
        };
        let (_, v4) = bytes.split_at_mut(V4_AT);
        v4[0] = V4_VERSION_AND_LEN;
        v4[1] = self.traffic_class;
        v4[2..4].copy_from_slice(&self.payload_len.saturating_add(V4_LEN).to_be_bytes());
        v4[6..8].copy_from_slice(&DONT_FRAGMENT.to_be_bytes());
        v4[8] = self.hop_limit;
        v4[9] = PROTOCOL_UDP;
        v4[12..16].copy_from_slice(&source.octets());
        v4[16..20].copy_from_slice(&destination.octets());
        let checksum = !sum(v4);
        v4[10..12].copy_from_slice(&checksum.to_be_bytes());
    }

    fn emit_v6(&self, source: Ipv6Addr, bytes: &mut [u8; Self::LEN]) {
        let destination = match self.destination {
            IpAddr::V6(destination) => destination,
            IpAddr::V4(_) => Ipv6Addr::UNSPECIFIED,
        };
        let word = 6 << 28 | u32::from(self.traffic_class) << 20 | self.flow_label.get();
        bytes[..4].copy_from_slice(&word.to_be_bytes());
        bytes[4..6].copy_from_slice(&self.payload_len.to_be_bytes());
        bytes[6] = PROTOCOL_UDP;
        bytes[7] = self.hop_limit;
        bytes[8..24].copy_from_slice(&source.octets());
        bytes[24..].copy_from_slice(&destination.octets());
    }
}

/// The ones' complement sum of an IPv4 header: all ones if its checksum is right.
fn sum(header: &[u8]) -> u16 {
    header
        .chunks_exact(2)
        .map(|pair| u16::from_be_bytes([pair[0], pair[1]]))
        .fold(0, |sum: u16, word| {
            let (sum, carry) = sum.overflowing_add(word);
            sum + u16::from(carry)
        })
}

/// Where the IPv4 header begins.
const V4_AT: usize = 20;
const V4_LEN: u16 = 20;
const V4_VERSION_AND_LEN: u8 = 0x45;
const UDP_LEN: usize = 8;
const PROTOCOL_UDP: u8 = 17;
