//! AETH: acknowledgement extended transport header (IBA Vol. 1 ch. 9, AETH).
//!
//! ```text
//!  byte
//!     0  syndrome (8) | message sequence number (24)
//! ```

use super::Syndrome;

/// The acknowledgement extended transport header.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Aeth {
    /// What the responder says.
    pub syndrome: Syndrome,
    /// The number of messages the responder has completed, 24 bits; what is wider is emitted modulo 2^24, as it counts.
    pub msn: u32,
}

impl Aeth {
    /// The length of the header.
    pub const LEN: usize = 4;

    /// Reads the header.
    #[must_use]
    pub const fn parse(bytes: &[u8; Self::LEN]) -> Self {
        let [syndrome, m0, m1, m2] = *bytes;
        Self {
            syndrome: Syndrome::from_bits(syndrome),
            msn: u32::from_be_bytes([0, m0, m1, m2]),
        }
    }

    /// Writes the header.
    pub const fn emit(&self, out: &mut [u8; Self::LEN]) {
        let [_, m0, m1, m2] = self.msn.to_be_bytes();
        *out = [self.syndrome.to_bits(), m0, m1, m2];
    }
}
