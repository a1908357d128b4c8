//! IETH: invalidate extended transport header (IBA Vol. 1 ch. 9, IETH): the key that a SEND with invalidate takes away.

use crate::units::RKey;

/// The invalidate extended transport header.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Ieth(pub RKey);

impl Ieth {
    /// The length of the header.
    pub const LEN: usize = 4;

    /// Reads the header.
    #[must_use]
    pub const fn parse(bytes: &[u8; Self::LEN]) -> Self {
        Self(RKey(u32::from_be_bytes(*bytes)))
    }

    /// Writes the header.
    pub const fn emit(&self, out: &mut [u8; Self::LEN]) {
        *out = self.0.0.to_be_bytes();
    }
}
