//! AtomicETH: atomic extended transport header (IBA Vol. 1 ch. 9, AtomicETH), in a request for an atomic operation.
//!
//! ```text
//!  byte
//!     0  virtual address (64)
//!     8  R_Key (32)
//!    12  swap or add data (64)
//!    20  compare data (64)
//! ```

use crate::units::RKey;

/// The atomic extended transport header.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct AtomicEth {
    /// Address of the 64-bit value, a multiple of 8.
    pub addr: u64,
    /// The remote key of the region or window.
    pub rkey: RKey,
    /// What is stored if the comparison holds, or what is added.
    pub swap_add: u64,
    /// What the value is compared with; without meaning for an addition.
    pub compare: u64,
}

impl AtomicEth {
    /// The length of the header.
    pub const LEN: usize = 28;

    /// Reads the header.
    #[must_use]
    pub fn parse(bytes: &[u8; Self::LEN]) -> Self {
        Self {
            addr: u64::from_be_bytes(field(bytes, 0)),
            rkey: RKey(u32::from_be_bytes(field(bytes, 8))),
            swap_add: u64::from_be_bytes(field(bytes, 12)),
            compare: u64::from_be_bytes(field(bytes, 20)),
        }
    }

    /// Writes the header.
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        out[..8].copy_from_slice(&self.addr.to_be_bytes());
        out[8..12].copy_from_slice(&self.rkey.0.to_be_bytes());
        out[12..20].copy_from_slice(&self.swap_add.to_be_bytes());
        out[20..].copy_from_slice(&self.compare.to_be_bytes());
    }
}

/// The `N` bytes from `at` on; they lie within the header.
fn field<const N: usize>(bytes: &[u8; AtomicEth::LEN], at: usize) -> [u8; N] {
    core::array::from_fn(|i| bytes[at + i])
}
