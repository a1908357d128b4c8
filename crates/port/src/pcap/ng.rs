//! Reading of pcapng: sections of either byte order, their interfaces, packets. Other blocks are skipped.

use super::block::{self, BYTE_ORDER, FRAME_LEN, INBOUND, INTERFACE, OUTBOUND, PACKET, SECTION};
use super::read::{Direction, PcapError, Record, truncated};
use super::{SNAPLEN, linktype};
use std::io::{self, Read};
use std::time::Duration;

/// Who captured packets, as a pcapng file says it.
#[non_exhaustive]
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Interface {
    /// Its name; empty where there is none.
    pub name: String,
    /// Its description; empty where there is none.
    pub description: String,
    /// What its packets begin with.
    pub linktype: u32,
    resolution: Resolution,
}

/// The unit of times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Resolution {
    /// Ten to the minus this many seconds.
    Decimal(u8),
    /// Two to the minus this many seconds.
    Binary(u8),
}

impl Default for Resolution {
    fn default() -> Self {
        Self::Decimal(6)
    }
}

impl Resolution {
    fn time(self, ticks: u64) -> Duration {
        let ticks = u128::from(ticks);
        let nanos = match self {
            Self::Decimal(digits) => match 10u128.checked_pow(digits.into()) {
                Some(per_second) => ticks * NANOS_PER_SECOND / per_second,
                None => 0,
            },
            Self::Binary(bits) => (ticks * NANOS_PER_SECOND)
                .checked_shr(bits.into())
                .unwrap_or(0),
        };
        let seconds = u64::try_from(nanos / NANOS_PER_SECOND).unwrap_or(u64::MAX);
        Duration::new(seconds, (nanos % NANOS_PER_SECOND) as u32)
    }
}

/// What is known while reading.
#[derive(Debug, Default)]
pub(super) struct NgReader {
    swapped: bool,
    /// All interfaces so far, and where those of this section begin.
    interfaces: Vec<Interface>,
    first_of_section: usize,
    body: Vec<u8>,
}

/// Where a packet stands in the body of its block.
struct Found {
    interface: usize,
    time: Duration,
    direction: Direction,
    original_len: u32,
    len: usize,
}

impl NgReader {
    /// Goes on after the type of the first section header has been read.
    pub(super) fn begin(source: &mut impl Read) -> Result<Self, PcapError> {
        let mut reader = Self::default();
        reader.section(source)?;
        Ok(reader)
    }

    pub(super) fn interfaces(&self) -> &[Interface] {
        &self.interfaces
    }

    pub(super) fn next_record(
        &mut self,
        source: &mut impl Read,
    ) -> Result<Option<Record<'_>>, PcapError> {
        let found = loop {
            let mut kind = [0; 4];
            if !read_or_end(source, &mut kind)? {
                return Ok(None);
            }
            match self.word(kind) {
                // The same in both byte orders.
                SECTION => self.section(source)?,
                kind => {
                    self.block(source)?;
                    match kind {
                        INTERFACE => self.interface()?,
                        PACKET => break self.packet()?,
                        _ => {}
                    }
                }
            }
        };
        Ok(Some(Record {
            time: found.time,
            linktype: self.interfaces[found.interface].linktype,
            original_len: found.original_len,
            interface: found.interface,
            direction: found.direction,
            data: &self.body[PACKET_HEADER_LEN..PACKET_HEADER_LEN + found.len],
        }))
    }

    fn word(&self, bytes: [u8; 4]) -> u32 {
        let word = u32::from_ne_bytes(bytes);
        if self.swapped {
            word.swap_bytes()
        } else {
            word
        }
    }

    fn half(&self, bytes: [u8; 2]) -> u16 {
        let half = u16::from_ne_bytes(bytes);
        if self.swapped {
            half.swap_bytes()
        } else {
            half
        }
    }

    fn word_at(&self, at: usize) -> Result<u32, PcapError> {
        let bytes = self.body.get(at..).and_then(<[u8]>::first_chunk::<4>);
        bytes
            .map(|bytes| self.word(*bytes))
            .ok_or(PcapError::Block("a block is too short for its fields"))
    }

    /// The rest of a section header: the byte order stands behind the length.
    fn section(&mut self, source: &mut impl Read) -> Result<(), PcapError> {
        let mut head = [0; 8];
        source.read_exact(&mut head).map_err(truncated)?;
        let [len, order] = [0, 4].map(|at| head[at..at + 4].try_into().expect("4 bytes"));
        let order = u32::from_ne_bytes(order);
        self.swapped = match order {
            BYTE_ORDER => false,
            order if order.swap_bytes() == BYTE_ORDER => true,
            order => return Err(PcapError::Magic(order)),
        };
        self.first_of_section = self.interfaces.len();
        // Length and byte order have been read.
        self.rest(source, self.word(len), 4)?;
        let major = self.half([self.body[0], self.body[1]]);
        if major != 1 {
            return Err(PcapError::Version(major));
        }
        Ok(())
    }

    /// Reads length and body of a block whose type has been read.
    fn block(&mut self, source: &mut impl Read) -> Result<(), PcapError> {
        let mut len = [0; 4];
        source.read_exact(&mut len).map_err(truncated)?;
        self.rest(source, self.word(len), 0)
    }

    /// Reads the rest of a block of which `done` bytes of the body are read, and checks the length at its end.
    fn rest(&mut self, source: &mut impl Read, len: u32, done: usize) -> Result<(), PcapError> {
        if len > MAX_BLOCK {
            return Err(PcapError::RecordLength(len));
        }
        let body = (len as usize).checked_sub(FRAME_LEN + done);
        let body = body.filter(|_| len.is_multiple_of(4) && (done == 0 || len >= MIN_SECTION));
        let Some(body) = body else {
            return Err(PcapError::Block("a block has a length that none can have"));
        };
        self.body.resize(body, 0);
        source.read_exact(&mut self.body).map_err(truncated)?;
        let mut again = [0; 4];
        source.read_exact(&mut again).map_err(truncated)?;
        if self.word(again) != len {
            return Err(PcapError::Block("the two lengths of a block differ"));
        }
        Ok(())
    }

    fn interface(&mut self) -> Result<(), PcapError> {
        if self.interfaces.len() >= MAX_INTERFACES {
            return Err(PcapError::Block("there are too many interfaces"));
        }
        self.word_at(4)?;
        let mut interface = Interface {
            linktype: self.half([self.body[0], self.body[1]]).into(),
            ..Interface::default()
        };
        self.options(8, |code, value| match code {
            block::option::NAME => interface.name = text(value),
            block::option::DESCRIPTION => interface.description = text(value),
            block::option::RESOLUTION => {
                if let [unit] = *value {
                    interface.resolution = match unit {
                        0x80.. => Resolution::Binary(unit & 0x7F),
                        digits => Resolution::Decimal(digits),
                    };
                }
            }
            _ => {}
        });
        self.interfaces.push(interface);
        Ok(())
    }

    fn packet(&self) -> Result<Found, PcapError> {
        let interface = self.first_of_section + self.word_at(0)? as usize;
        let Some(of) = self.interfaces.get(interface) else {
            return Err(PcapError::Block(
                "a packet names an interface that is not there",
            ));
        };
        let ticks = u64::from(self.word_at(4)?) << 32 | u64::from(self.word_at(8)?);
        let captured = self.word_at(12)?;
        let original_len = self.word_at(16)?;
        let len = captured as usize;
        let room = self.body.len() - PACKET_HEADER_LEN;
        if captured > SNAPLEN || len > room {
            return Err(PcapError::RecordLength(captured));
        }
        let mut direction = Direction::Unknown;
        self.options(
            PACKET_HEADER_LEN + len.next_multiple_of(4),
            |code, value| {
                if let (block::option::FLAGS, &[a, b, c, d]) = (code, value) {
                    direction = match self.word([a, b, c, d]) & 3 {
                        INBOUND => Direction::Received,
                        OUTBOUND => Direction::Sent,
                        _ => Direction::Unknown,
                    };
                }
            },
        );
        Ok(Found {
            interface,
            time: of.resolution.time(ticks),
            direction,
            original_len,
            len,
        })
    }

    /// Hands over the options from `at` on, as far as they are whole.
    fn options(&self, at: usize, mut each: impl FnMut(u16, &[u8])) {
        let mut rest = self.body.get(at..).unwrap_or_default();
        while let [a, b, c, d, more @ ..] = rest {
            let (code, len) = (self.half([*a, *b]), usize::from(self.half([*c, *d])));
            let Some(value) = more.get(..len).filter(|_| code != block::option::END) else {
                return;
            };
            each(code, value);
            rest = more.get(len.next_multiple_of(4)..).unwrap_or_default();
        }
    }
}

/// Fills `bytes`; false at the end of the file.
pub(super) fn read_or_end(source: &mut impl Read, bytes: &mut [u8]) -> Result<bool, PcapError> {
    let mut have = 0;
    while have < bytes.len() {
        match source.read(&mut bytes[have..]) {
            Ok(0) if have == 0 => return Ok(false),
            Ok(0) => return Err(PcapError::Truncated),
            Ok(n) => have += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(true)
}

/// As it is written by us; what others write may be anything.
fn text(value: &[u8]) -> String {
    let end = value.iter().position(|byte| *byte == 0);
    String::from_utf8_lossy(&value[..end.unwrap_or(value.len())]).into_owned()
}

impl Interface {
    /// What a classic pcap file has instead.
    pub(super) fn unnamed(linktype: u32) -> Self {
        Self {
            linktype,
            ..Self::default()
        }
    }

    /// Whether its packets begin with the IP header.
    #[must_use]
    pub fn is_raw(&self) -> bool {
        matches!(
            self.linktype,
            linktype::RAW | linktype::IPV4 | linktype::IPV6
        )
    }
}

const NANOS_PER_SECOND: u128 = 1_000_000_000;
const PACKET_HEADER_LEN: usize = 20;
/// The longest packet, and more options than anybody gives.
const MAX_BLOCK: u32 = SNAPLEN + 65_536;
/// A section header without options.
const MIN_SECTION: u32 = 28;
const MAX_INTERFACES: usize = 1 << 16;
