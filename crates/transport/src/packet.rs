//! What both engines do with packets.

use oarlock_wire::{AddressVector, PKey, PacketHeader};

/// A packet that [`Rc::poll_transmit`](crate::Rc::poll_transmit) or [`Ud::poll_transmit`](crate::Ud::poll_transmit) has
/// written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transmit {
    /// Where it goes.
    pub av: AddressVector,
    /// How many bytes of the buffer it takes: BTH to padding, without the ICRC.
    pub len: usize,
}

/// The longest packet without ICRC: 4096 bytes of payload and the longest sequence of headers.
pub const MAX_PACKET_LEN: usize = 4096 + 64;

/// Room for one packet.
pub type PacketBuf = [u8; MAX_PACKET_LEN];

/// Writes the headers of a packet.
pub(crate) fn emit(header: &PacketHeader, payload_len: usize, out: &mut PacketBuf) -> usize {
    let written = header.emit(payload_len, out);
    written.expect("the headers are those of the opcode, and the buffer has room for any")
}

/// Same partition, and not both limited members (IBA Vol. 1 ch. 10 "Partition key matching").
pub(crate) const fn pkeys_match(a: PKey, b: PKey) -> bool {
    const FULL_MEMBER: u16 = 0x8000;
    (a.0 ^ b.0) & !FULL_MEMBER == 0 && (a.0 | b.0) & FULL_MEMBER != 0
}
