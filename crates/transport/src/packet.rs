//! What every engine does with packets.

use oarlock_wire::{AddressVector, Opcode, PKey, PacketHeader};

use crate::work::SendOp;

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

/// The opcode of one packet of a SEND or WRITE, as RC has it (IBA Vol. 1 ch. 9 "Operation code").
pub(crate) const fn request_opcode(op: &SendOp, is_first: bool, is_last: bool) -> Opcode {
    let base = match op {
        SendOp::Write(_) | SendOp::WriteWithImm(..) => Opcode::RC_RDMA_WRITE_FIRST.0,
        _ => Opcode::RC_SEND_FIRST.0,
    };
    match (is_first, is_last) {
        (true, false) => Opcode(base),
        (false, false) => Opcode(base + 1),
        (false, true) if matches!(op, SendOp::SendWithInvalidate(_)) => {
            Opcode::RC_SEND_LAST_INVALIDATE
        }
        (true, true) if matches!(op, SendOp::SendWithInvalidate(_)) => {
            Opcode::RC_SEND_ONLY_INVALIDATE
        }
        (false, true) => Opcode(base + 2 + op.imm().is_some() as u8),
        (true, true) => Opcode(base + 4 + op.imm().is_some() as u8),
    }
}

/// Same partition, and not both limited members (IBA Vol. 1 ch. 10 "Partition key matching").
pub(crate) const fn pkeys_match(a: PKey, b: PKey) -> bool {
    const FULL_MEMBER: u16 = 0x8000;
    (a.0 ^ b.0) & !FULL_MEMBER == 0 && (a.0 | b.0) & FULL_MEMBER != 0
}
