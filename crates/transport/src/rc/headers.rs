//! Writes the headers of a packet one by one, in the order of the specification (IBA Vol. 1 ch. 9 "Transport header"):
//! BTH, XRCETH, RETH, AtomicETH, AETH, AtomicAckETH, ImmDt, IETH.
//!
//! [`PacketHeader::emit`](oarlock_wire::PacketHeader::emit) does the same from a value that has room for all of them, and checks that
//! they are those of the opcode; that costs a tenth of a packet's instructions. Here the code that chooses the opcode writes its
//! headers, and a debug build checks them.

use oarlock_wire::packet::padding;
use oarlock_wire::{Bth, Packet};

use crate::packet::PacketBuf;

/// A packet in the making.
pub(super) struct Headers<'a> {
    out: &'a mut PacketBuf,
    len: usize,
    payload_len: usize,
}

impl<'a> Headers<'a> {
    /// Begins a packet with so many bytes of payload.
    pub(super) fn of(bth: Bth, payload_len: usize, out: &'a mut PacketBuf) -> Self {
        let mut headers = Self {
            out,
            len: 0,
            payload_len,
        };
        let pad = padding(payload_len).to_le_bytes()[0];
        headers.put(|out| Bth { pad, ..bth }.emit(out));
        headers
    }

    /// Appends a header.
    pub(super) fn put<const N: usize>(&mut self, emit: impl FnOnce(&mut [u8; N])) {
        let rest = self.out.get_mut(self.len..);
        let header = rest.and_then(<[u8]>::first_chunk_mut);
        emit(header.expect("the buffer has room for all headers"));
        self.len += N;
    }

    /// Where the payload goes.
    pub(super) fn payload(&mut self) -> &mut [u8] {
        &mut self.out[self.len..self.len + self.payload_len]
    }

    /// Ends the packet with its padding; gives its length.
    pub(super) fn finish(self) -> usize {
        let end = self.len + self.payload_len;
        let pad = padding(self.payload_len);
        self.out[end..end + pad].fill(0);
        debug_assert!(
            Packet::parse(&self.out[..end + pad])
                .is_ok_and(|packet| packet.payload.len() == self.payload_len),
            "the headers are not those of the opcode"
        );
        end + pad
    }
}
