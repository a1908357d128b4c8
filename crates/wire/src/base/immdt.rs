//! ImmDt: immediate data (IBA Vol. 1 ch. 9, ImmDt): 4 bytes that the receiver finds in its completion.

/// Immediate data, as an integer; the first byte on the wire is the most significant.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ImmDt(pub u32);

impl ImmDt {
    /// The length of the header.
    pub const LEN: usize = 4;

    /// Reads the header.
    #[must_use]
    pub const fn parse(bytes: &[u8; Self::LEN]) -> Self {
        Self(u32::from_be_bytes(*bytes))
    }

    /// Writes the header.
    pub const fn emit(&self, out: &mut [u8; Self::LEN]) {
        *out = self.0.to_be_bytes();
    }
}
