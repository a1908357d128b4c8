//! The reader: classic pcap of either byte order and pcapng, and the UDP datagrams in them.

use super::block::SECTION;
use super::ng::{Interface, NgReader, read_or_end};
use super::{FILE_HEADER_LEN, MAGIC_MICROS, MAGIC_NANOS, RECORD_HEADER_LEN, SNAPLEN, linktype};
use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

/// Reads a capture record by record, in either format.
#[derive(Debug)]
pub struct Reader<R> {
    source: R,
    format: Format,
}

#[derive(Debug)]
enum Format {
    Classic(Classic),
    Ng(NgReader),
}

/// What the file header says.
#[derive(Debug)]
struct Classic {
    swapped: bool,
    nanos: bool,
    interface: Interface,
    buffer: Vec<u8>,
}

/// One captured packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record<'a> {
    /// When it was captured, since 1970.
    pub time: Duration,
    /// What stands at the beginning of `data`.
    pub linktype: u32,
    /// Length of the packet on the wire; more than `data.len()` when the capture was cut short.
    pub original_len: u32,
    /// Who captured it: its place among [`Reader::interfaces`]. 0 in classic pcap.
    pub interface: usize,
    /// Whether it was captured by its sender or its receiver.
    pub direction: Direction,
    /// The captured bytes.
    pub data: &'a [u8],
}

/// Whether a packet was captured by its sender or its receiver.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Direction {
    /// The file does not say; classic pcap never does.
    #[default]
    Unknown,
    /// By its sender.
    Sent,
    /// By its receiver.
    Received,
}

/// A whole UDP datagram in a captured packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Datagram<'a> {
    /// Source address and port.
    pub source: SocketAddr,
    /// Destination address and port.
    pub destination: SocketAddr,
    /// The IPv4 identification; 0 for IPv6.
    pub identification: u16,
    /// Flags and fragment offset of IPv4; 0 for IPv6.
    pub flags_fragment: u16,
    /// Type of service or traffic class.
    pub traffic_class: u8,
    /// Time to live or hop limit.
    pub hop_limit: u8,
    /// The UDP checksum as captured.
    pub checksum: u16,
    /// What follows the UDP header: for RoCEv2, BTH to ICRC.
    pub payload: &'a [u8],
}

/// Why a capture cannot be read.
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum PcapError {
    /// The system refused.
    #[error("cannot read the capture: {0}")]
    Io(#[from] io::Error),
    /// The first four bytes are none of pcap's or pcapng's, or a section of pcapng says no byte order.
    #[error("not a pcap or pcapng file: it begins with {0:#010x}")]
    Magic(u32),
    /// A section of a version of pcapng that does not exist yet.
    #[error("the capture is in version {0} of pcapng, of which only version 1 is known")]
    Version(u16),
    /// A block of pcapng contradicts itself.
    #[error("{0}: the capture is damaged")]
    Block(&'static str),
    /// A record claims to be longer than any packet.
    #[error("a record of {0} bytes is longer than any packet: the capture is damaged")]
    RecordLength(u32),
    /// The file ends within a record.
    #[error("the capture ends in the middle of a record")]
    Truncated,
}

impl<R: Read> Reader<R> {
    /// Reads the beginning of the file.
    ///
    /// # Errors
    /// Neither a classic pcap file nor pcapng, or unreadable.
    pub fn new(mut source: R) -> Result<Self, PcapError> {
        let mut magic = [0; 4];
        source.read_exact(&mut magic).map_err(truncated)?;
        let format = match u32::from_ne_bytes(magic) {
            SECTION => Format::Ng(NgReader::begin(&mut source)?),
            magic => Format::Classic(Classic::begin(magic, &mut source)?),
        };
        Ok(Self { source, format })
    }

    /// Who has captured, as far as that has been read. One without a name in classic pcap.
    #[must_use]
    pub fn interfaces(&self) -> &[Interface] {
        match &self.format {
            Format::Classic(classic) => std::slice::from_ref(&classic.interface),
            Format::Ng(ng) => ng.interfaces(),
        }
    }

    /// The next record, or nothing at the end.
    ///
    /// # Errors
    /// The capture is damaged or unreadable.
    pub fn next_record(&mut self) -> Result<Option<Record<'_>>, PcapError> {
        match &mut self.format {
            Format::Classic(classic) => classic.next_record(&mut self.source),
            Format::Ng(ng) => ng.next_record(&mut self.source),
        }
    }
}

impl Classic {
    /// Reads what comes behind the magic number.
    fn begin(magic: u32, source: &mut impl Read) -> Result<Self, PcapError> {
        let (swapped, nanos) = match magic {
            MAGIC_MICROS => (false, false),
            MAGIC_NANOS => (false, true),
            magic if magic.swap_bytes() == MAGIC_MICROS => (true, false),
            magic if magic.swap_bytes() == MAGIC_NANOS => (true, true),
            magic => return Err(PcapError::Magic(magic)),
        };
        let mut rest = [0; FILE_HEADER_LEN - 4];
        source.read_exact(&mut rest).map_err(truncated)?;
        let mut classic = Self {
            swapped,
            nanos,
            interface: Interface::default(),
            buffer: Vec::new(),
        };
        // The upper bits tell of a frame check sequence.
        classic.interface = Interface::unnamed(classic.word(&rest, 16) & 0x03FF_FFFF);
        Ok(classic)
    }

    fn next_record(&mut self, source: &mut impl Read) -> Result<Option<Record<'_>>, PcapError> {
        let mut header = [0; RECORD_HEADER_LEN];
        if !read_or_end(source, &mut header)? {
            return Ok(None);
        }
        let len = self.word(&header, 8);
        if len > SNAPLEN {
            return Err(PcapError::RecordLength(len));
        }
        self.buffer.resize(len as usize, 0);
        source.read_exact(&mut self.buffer).map_err(truncated)?;
        let fraction = self.word(&header, 4);
        let fraction = if self.nanos {
            Duration::from_nanos(fraction.into())
        } else {
            Duration::from_micros(fraction.into())
        };
        let time = Duration::from_secs(self.word(&header, 0).into()) + fraction;
        let original_len = self.word(&header, 12);
        Ok(Some(Record {
            time,
            linktype: self.interface.linktype,
            original_len,
            interface: 0,
            direction: Direction::Unknown,
            data: &self.buffer,
        }))
    }

    fn word(&self, bytes: &[u8], offset: usize) -> u32 {
        let word = u32::from_ne_bytes(bytes[offset..offset + 4].try_into().expect("4 bytes"));
        if self.swapped {
            word.swap_bytes()
        } else {
            word
        }
    }
}

impl<'a> Record<'a> {
    /// The IP packet, when the link header is one we know and says IP.
    #[must_use]
    pub fn ip_packet(&self) -> Option<&'a [u8]> {
        let data = self.data;
        match self.linktype {
            linktype::RAW | linktype::IPV4 | linktype::IPV6 => Some(data),
            linktype::NULL | linktype::LOOP => data.get(4..),
            linktype::ETHERNET => after_ethertype(data.get(12..)?),
            linktype::LINUX_SLL => after_ethertype(data.get(14..)?),
            linktype::LINUX_SLL2 => is_ip(data.get(..2)?).then(|| data.get(20..))?,
            _ => None,
        }
    }

    /// The UDP datagram in the packet, when there is one and it was captured whole.
    #[must_use]
    pub fn datagram(&self) -> Option<Datagram<'a>> {
        let packet = self.ip_packet()?;
        match packet.first()? >> 4 {
            4 => datagram_ipv4(packet),
            6 => datagram_ipv6(packet),
            _ => None,
        }
    }
}

fn datagram_ipv4(packet: &[u8]) -> Option<Datagram<'_>> {
    let header = packet.first_chunk::<20>()?;
    let header_len = usize::from(header[0] & 15) * 4;
    let flags_fragment = be16(packet, 6)?;
    // A fragment is not a datagram.
    if header_len < 20 || header[9] != UDP_PROTOCOL || flags_fragment & 0x3FFF != 0 {
        return None;
    }
    let octets =
        |at: usize| Ipv4Addr::new(header[at], header[at + 1], header[at + 2], header[at + 3]);
    let datagram = udp(
        IpAddr::V4(octets(12)),
        IpAddr::V4(octets(16)),
        packet.get(header_len..)?,
    )?;
    Some(Datagram {
        identification: be16(packet, 4)?,
        flags_fragment,
        traffic_class: header[1],
        hop_limit: header[8],
        ..datagram
    })
}

fn datagram_ipv6(packet: &[u8]) -> Option<Datagram<'_>> {
    let header = packet.first_chunk::<40>()?;
    if header[6] != UDP_PROTOCOL {
        return None;
    }
    let octets =
        |at: usize| Ipv6Addr::from(<[u8; 16]>::try_from(&header[at..at + 16]).expect("16 bytes"));
    let datagram = udp(IpAddr::V6(octets(8)), IpAddr::V6(octets(24)), &packet[40..])?;
    Some(Datagram {
        traffic_class: header[0] << 4 | header[1] >> 4,
        hop_limit: header[7],
        ..datagram
    })
}

fn udp(source: IpAddr, destination: IpAddr, bytes: &[u8]) -> Option<Datagram<'_>> {
    let len = usize::from(be16(bytes, 4)?);
    Some(Datagram {
        source: SocketAddr::new(source, be16(bytes, 0)?),
        destination: SocketAddr::new(destination, be16(bytes, 2)?),
        identification: 0,
        flags_fragment: 0,
        traffic_class: 0,
        hop_limit: 0,
        checksum: be16(bytes, 6)?,
        payload: bytes.get(8..len)?,
    })
}

/// Skips VLAN tags.
fn after_ethertype(mut bytes: &[u8]) -> Option<&[u8]> {
    for _ in 0..MAX_TAGS {
        let kind = bytes.get(..2)?;
        if is_ip(kind) {
            return bytes.get(2..);
        }
        if !matches!(kind, [0x81, 0x00] | [0x88, 0xA8]) {
            return None;
        }
        bytes = bytes.get(4..)?;
    }
    None
}

fn is_ip(ethertype: &[u8]) -> bool {
    matches!(ethertype, [0x08, 0x00] | [0x86, 0xDD])
}

fn be16(bytes: &[u8], offset: usize) -> Option<u16> {
    Some(u16::from_be_bytes(
        bytes.get(offset..offset + 2)?.try_into().ok()?,
    ))
}

pub(super) fn truncated(error: io::Error) -> PcapError {
    if error.kind() == io::ErrorKind::UnexpectedEof {
        PcapError::Truncated
    } else {
        PcapError::Io(error)
    }
}

const UDP_PROTOCOL: u8 = 17;
const MAX_TAGS: usize = 3;
