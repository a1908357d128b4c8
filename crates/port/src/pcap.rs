//! Captures: writing packets as on the wire, reading what we or others captured, in the classic pcap format and in pcapng.
//!
//! A pcapng file that several processes write has one *interface* for each of them, named after the program, so that a reader knows
//! whose packet it sees. Interfaces count from the beginning of their section of the file: whoever began the section adds
//! them and tells each process its number ([`Section`]). Each packet has its time in nanoseconds, and whether its sender or
//! its receiver captured it.

mod block;
mod ng;
mod read;
mod section;
mod tap;
mod write;

pub use ng::Interface;
pub use read::{Datagram, Direction, PcapError, Reader, Record};
pub use section::Section;
pub use tap::PortTap;
pub(crate) use tap::{Tap, Tapped, interface_addresses};
pub use write::Capture;

/// Link types of packets in a capture (the LINKTYPE registry of tcpdump.org).
pub mod linktype {
    /// BSD loopback: a family in host order, then the IP packet.
    pub const NULL: u32 = 0;
    /// Ethernet.
    pub const ETHERNET: u32 = 1;
    /// An IP packet without a link header. What we write.
    pub const RAW: u32 = 101;
    /// BSD loopback with the family in network order.
    pub const LOOP: u32 = 108;
    /// Linux "cooked" capture.
    pub const LINUX_SLL: u32 = 113;
    /// An IPv4 packet.
    pub const IPV4: u32 = 228;
    /// An IPv6 packet.
    pub const IPV6: u32 = 229;
    /// Linux "cooked" capture, second version.
    pub const LINUX_SLL2: u32 = 276;
}

/// Microseconds, in the writer's byte order.
const MAGIC_MICROS: u32 = 0xA1B2_C3D4;
/// Nanoseconds.
const MAGIC_NANOS: u32 = 0xA1B2_3C4D;
const FILE_HEADER_LEN: usize = 24;
const RECORD_HEADER_LEN: usize = 16;
const SNAPLEN: u32 = 262_144;

#[cfg(test)]
mod ng_tests;
#[cfg(test)]
mod tests;
