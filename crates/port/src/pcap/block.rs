//! Blocks of a pcapng file, as they are written.
//!
//! ```text
//!   block                        type 4 | length 4 | body, padded to 4 | length 4
//!   option at a body's end       code 2 | length 2 | value, padded to 4        code 0, length 0 ends them
//!   section header  0x0A0D0D0A   byte-order magic 4 | major 2 | minor 2 | section length 8 | options
//!   interface       1            link type 2 | 0 2 | snap length 4 | options
//!   packet          6            interface 4 | time, upper and lower half 8 | captured 4 | original 4 | packet | options
//! ```
//!
//! In the writer's byte order (draft-ietf-opsawg-pcapng).

use super::{SNAPLEN, linktype};
use std::time::{Duration, SystemTime};

pub(super) const SECTION: u32 = 0x0A0D_0D0A;
pub(super) const INTERFACE: u32 = 1;
pub(super) const PACKET: u32 = 6;
pub(super) const BYTE_ORDER: u32 = 0x1A2B_3C4D;
/// Type, length and the length again.
pub(super) const FRAME_LEN: usize = 12;

/// Codes of options.
pub(super) mod option {
    pub(in super::super) const END: u16 = 0;
    pub(in super::super) const NAME: u16 = 2;
    pub(in super::super) const DESCRIPTION: u16 = 3;
    pub(in super::super) const OS: u16 = 3;
    pub(in super::super) const APPLICATION: u16 = 4;
    pub(in super::super) const RESOLUTION: u16 = 9;
    /// Of a packet.
    pub(in super::super) const FLAGS: u16 = 2;
}

/// The lowest two bits of a packet's flags.
pub(super) const INBOUND: u32 = 1;
pub(super) const OUTBOUND: u32 = 2;

/// Times are counted in units of ten to the minus this.
pub(super) const NANOS: u8 = 9;

/// The beginning of a section, of unknown length: it goes on to the next, or to the end of the file.
pub(super) fn section() -> Vec<u8> {
    let mut block = Block::new(SECTION);
    block.u32(BYTE_ORDER);
    block.bytes(&1u16.to_ne_bytes());
    block.bytes(&0u16.to_ne_bytes());
    block.bytes(&u64::MAX.to_ne_bytes());
    block.option(option::OS, std::env::consts::OS.as_bytes());
    let application = concat!("oarlock ", env!("CARGO_PKG_VERSION"));
    block.option(option::APPLICATION, application.as_bytes());
    block.finish_options()
}

/// Somebody who captures: packets name it by its place among those of its section.
pub(super) fn interface(name: &str, description: &str) -> Vec<u8> {
    let mut block = Block::new(INTERFACE);
    block.bytes(&(linktype::RAW as u16).to_ne_bytes());
    block.bytes(&[0; 2]);
    block.u32(SNAPLEN);
    block.option(option::NAME, name.as_bytes());
    block.option(option::DESCRIPTION, description.as_bytes());
    block.option(option::RESOLUTION, &[NANOS]);
    block.finish_options()
}

/// Appends a block of one IP packet to `out`.
pub(super) fn packet(
    out: &mut Vec<u8>,
    interface: u32,
    time: SystemTime,
    is_inbound: bool,
    packet: &[u8],
) {
    let since = time
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or(Duration::ZERO);
    let nanos = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
    let len = packet.len() as u32;
    let mut block = Block::after(std::mem::take(out), PACKET);
    block.u32(interface);
    block.u32((nanos >> 32) as u32);
    block.u32(nanos as u32);
    block.u32(len);
    block.u32(len);
    block.padded(packet);
    let flags = if is_inbound { INBOUND } else { OUTBOUND };
    block.option(option::FLAGS, &flags.to_ne_bytes());
    *out = block.finish_options();
}

/// A block in the making.
struct Block {
    bytes: Vec<u8>,
    start: usize,
}

impl Block {
    fn new(kind: u32) -> Self {
        Self::after(Vec::new(), kind)
    }

    fn after(bytes: Vec<u8>, kind: u32) -> Self {
        let start = bytes.len();
        let mut block = Self { bytes, start };
        block.u32(kind);
        // The length comes with the end.
        block.u32(0);
        block
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    fn u32(&mut self, value: u32) {
        self.bytes(&value.to_ne_bytes());
    }

    fn padded(&mut self, bytes: &[u8]) {
        self.bytes(bytes);
        let rest = bytes.len().next_multiple_of(4) - bytes.len();
        self.bytes(&[0; 3][..rest]);
    }

    fn option(&mut self, code: u16, value: &[u8]) {
        let value = &value[..value.len().min(MAX_OPTION)];
        self.bytes(&code.to_ne_bytes());
        self.bytes(&(value.len() as u16).to_ne_bytes());
        self.padded(value);
    }

    fn finish_options(mut self) -> Vec<u8> {
        self.option(option::END, &[]);
        let len = (self.bytes.len() - self.start + 4) as u32;
        self.bytes[self.start + 4..self.start + 8].copy_from_slice(&len.to_ne_bytes());
        self.u32(len);
        self.bytes
    }
}

/// Names and descriptions are short; this keeps whatever is given within its length field.
const MAX_OPTION: usize = 1024;
