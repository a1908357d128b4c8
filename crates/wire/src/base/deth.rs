//! DETH: datagram extended transport header (IBA Vol. 1 ch. 9, DETH), in every UD packet.
//!
//! ```text
//!  byte
//!     0  Q_Key (32)
//!     4  reserved (8) | source QPN (24)
//! ```

use crate::units::{QKey, Qpn};

/// The datagram extended transport header.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Deth {
    /// The key that the receiving queue pair demands.
    pub qkey: QKey,
    /// The sending queue pair.
    pub src_qpn: Qpn,
}

impl Deth {
    /// The length of the header.
    pub const LEN: usize = 8;

    /// Reads the header; reserved bits are ignored.
    #[must_use]
    pub const fn parse(bytes: &[u8; Self::LEN]) -> Self {
        let [k0, k1, k2, k3, _, q0, q1, q2] = *bytes;
        Self {
            qkey: QKey(u32::from_be_bytes([k0, k1, k2, k3])),
            src_qpn: Qpn::truncate(u32::from_be_bytes([0, q0, q1, q2])),
        }
    }

    /// Writes the header; reserved bits are zero.
    pub const fn emit(&self, out: &mut [u8; Self::LEN]) {
        let [k0, k1, k2, k3] = self.qkey.0.to_be_bytes();
        let [_, q0, q1, q2] = self.src_qpn.get().to_be_bytes();
        *out = [k0, k1, k2, k3, 0, q0, q1, q2];
    }
}
