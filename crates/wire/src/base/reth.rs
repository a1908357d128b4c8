//! RETH: RDMA extended transport header (IBA Vol. 1 ch. 9, RETH), in the first packet of a WRITE and in a READ request.
//!
//! ```text
//!  byte
//!     0  virtual address (64)
//!     8  R_Key (32)
//!    12  DMA length (32)
//! ```

use crate::units::RKey;

/// The RDMA extended transport header.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Reth {
    /// Address of the first byte, as the responder's region counts.
    pub addr: u64,
    /// The remote key of the region or window.
    pub rkey: RKey,
    /// Length of the whole operation in bytes.
    pub len: u32,
}

impl Reth {
    /// The length of the header.
    pub const LEN: usize = 16;

    /// Reads the header.
    #[must_use]
    pub const fn parse(bytes: &[u8; Self::LEN]) -> Self {
        let [
            a0,
            a1,
            a2,
            a3,
            a4,
            a5,
            a6,
            a7,
            k0,
            k1,
            k2,
            k3,
            l0,
            l1,
            l2,
            l3,
        ] = *bytes;
        Self {
            addr: u64::from_be_bytes([a0, a1, a2, a3, a4, a5, a6, a7]),
            rkey: RKey(u32::from_be_bytes([k0, k1, k2, k3])),
            len: u32::from_be_bytes([l0, l1, l2, l3]),
        }
    }

    /// Writes the header.
    pub const fn emit(&self, out: &mut [u8; Self::LEN]) {
        let [a0, a1, a2, a3, a4, a5, a6, a7] = self.addr.to_be_bytes();
        let [k0, k1, k2, k3] = self.rkey.0.to_be_bytes();
        let [l0, l1, l2, l3] = self.len.to_be_bytes();
        *out = [
            a0, a1, a2, a3, a4, a5, a6, a7, k0, k1, k2, k3, l0, l1, l2, l3,
        ];
    }
}
