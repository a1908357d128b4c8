//! XRCETH: extended reliable connected extended transport header (IBA Vol. 1 Annex A14, XRCETH), in every XRC request.
//!
//! ```text
//!  byte
//!     0  reserved (8) | XRC shared receive queue (24)
//! ```

use crate::units::Srqn;

/// The XRC extended transport header.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct XrcEth {
    /// The shared receive queue that the message is for.
    pub srqn: Srqn,
}

impl XrcEth {
    /// The length of the header.
    pub const LEN: usize = 4;

    /// Reads the header; reserved bits are ignored.
    #[must_use]
    pub const fn parse(bytes: &[u8; Self::LEN]) -> Self {
        let [_, s0, s1, s2] = *bytes;
        Self {
            srqn: Srqn::truncate(u32::from_be_bytes([0, s0, s1, s2])),
        }
    }

    /// Writes the header; reserved bits are zero.
    pub const fn emit(&self, out: &mut [u8; Self::LEN]) {
        let [_, s0, s1, s2] = self.srqn.get().to_be_bytes();
        *out = [0, s0, s1, s2];
    }
}
