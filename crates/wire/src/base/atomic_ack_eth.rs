//! AtomicAckETH: atomic acknowledge extended transport header (IBA Vol. 1 ch. 9, AtomicAckETH): the value before the operation.

/// The atomic acknowledge extended transport header.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct AtomicAckEth {
    /// What the responder's memory held before the operation.
    pub original: u64,
}

impl AtomicAckEth {
    /// The length of the header.
    pub const LEN: usize = 8;

    /// Reads the header.
    #[must_use]
    pub const fn parse(bytes: &[u8; Self::LEN]) -> Self {
        Self {
            original: u64::from_be_bytes(*bytes),
        }
    }

    /// Writes the header.
    pub const fn emit(&self, out: &mut [u8; Self::LEN]) {
        *out = self.original.to_be_bytes();
    }
}
