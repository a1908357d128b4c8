//! BTH: base transport header (IBA Vol. 1 ch. 9, BTH), in every packet.
//!
//! ```text
//!  byte  0         1                                            2 and 3
//!     0  opcode    SE (1) | MigReq (1) | PadCnt (2) | TVer (4)  P_Key
//!     4  FECN (1) | BECN (1) | reserved (6)                     destination QPN (24, bytes 5 to 7)
//!     8  AckReq (1) | reserved (7)                              PSN (24, bytes 9 to 11)
//! ```

use super::Opcode;
use crate::units::{PKey, Psn, Qpn};

/// The base transport header.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Bth {
    /// What the packet is, and which headers follow.
    pub opcode: Opcode,
    /// Solicited event: the receiver's completion shall wake who waits for such.
    pub solicited: bool,
    /// Migration state, set while the path in use is the migrated one; Linux and most devices leave it clear.
    pub migrated: bool,
    /// Bytes of padding at the end of the payload, 2 bits.
    pub pad: u8,
    /// The transport header version, 4 bits: 0.
    pub version: u8,
    /// The partition key.
    pub pkey: PKey,
    /// Forward explicit congestion notification.
    pub fecn: bool,
    /// Backward explicit congestion notification.
    pub becn: bool,
    /// The receiving queue pair.
    pub dest_qpn: Qpn,
    /// Whether the requester wants an acknowledgement of this packet.
    pub ack_request: bool,
    /// The packet sequence number.
    pub psn: Psn,
}

impl Bth {
    /// The length of the header.
    pub const LEN: usize = 12;

    /// A header with everything at rest: default partition, no flags.
    #[must_use]
    pub const fn new(opcode: Opcode, dest_qpn: Qpn, psn: Psn) -> Self {
        Self {
            opcode,
            solicited: false,
            migrated: false,
            pad: 0,
            version: 0,
            pkey: PKey::DEFAULT,
            fecn: false,
            becn: false,
            dest_qpn,
            ack_request: false,
            psn,
        }
    }

    /// Reads the header; reserved bits are ignored.
    #[must_use]
    pub const fn parse(bytes: &[u8; Self::LEN]) -> Self {
        let [
            opcode,
            flags,
            k0,
            k1,
            congestion,
            q0,
            q1,
            q2,
            ack,
            p0,
            p1,
            p2,
        ] = *bytes;
        Self {
            opcode: Opcode(opcode),
            solicited: flags & SOLICITED != 0,
            migrated: flags & MIGRATED != 0,
            pad: flags >> 4 & 0b11,
            version: flags & 0x0F,
            pkey: PKey(u16::from_be_bytes([k0, k1])),
            fecn: congestion & FECN != 0,
            becn: congestion & BECN != 0,
            dest_qpn: Qpn::truncate(u32::from_be_bytes([0, q0, q1, q2])),
            ack_request: ack & ACK_REQUEST != 0,
            psn: Psn::truncate(u32::from_be_bytes([0, p0, p1, p2])),
        }
    }

    /// Writes the header; reserved bits are zero.
    pub const fn emit(&self, out: &mut [u8; Self::LEN]) {
        let [k0, k1] = self.pkey.0.to_be_bytes();
        let [_, q0, q1, q2] = self.dest_qpn.get().to_be_bytes();
        let [_, p0, p1, p2] = self.psn.get().to_be_bytes();
        let flags = flag(self.solicited, SOLICITED)
            | flag(self.migrated, MIGRATED)
            | (self.pad & 0b11) << 4
            | self.version & 0x0F;
        let congestion = flag(self.fecn, FECN) | flag(self.becn, BECN);
        let ack = flag(self.ack_request, ACK_REQUEST);
        *out = [
            self.opcode.0,
            flags,
            k0,
            k1,
            congestion,
            q0,
            q1,
            q2,
            ack,
            p0,
            p1,
            p2,
        ];
    }
}

const fn flag(set: bool, bit: u8) -> u8 {
    if set { bit } else { 0 }
}

const SOLICITED: u8 = 0x80;
const MIGRATED: u8 = 0x40;
const FECN: u8 = 0x80;
const BECN: u8 = 0x40;
const ACK_REQUEST: u8 = 0x80;
