//! ECE: enhanced connection establishment, how two sides of one vendor agree on more than the specification has.
//!
//! Not part of the specification. Linux (`include/rdma/ib_cm.h`, since 5.8) puts the vendor into the vendor ID of a REQ, REP or
//! SIDR_REP and the options into the attribute modifier of the MAD header.

use core::fmt;

/// What one side offers, or has agreed to, beyond the specification.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Ece {
    /// Whose options they are, 24 bits; 0 for nobody's. A larger value is emitted as the largest.
    pub vendor_id: u32,
    /// The options, which mean what the vendor says.
    pub options: u32,
}

impl Ece {
    /// Nothing beyond the specification.
    pub const NONE: Self = Self {
        vendor_id: 0,
        options: 0,
    };
    /// The largest vendor ID.
    pub const MAX_VENDOR_ID: u32 = 0xFF_FFFF;

    /// Whether nothing is offered.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::NONE
    }
}

impl fmt::Display for Ece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}:{:#010x}", self.vendor_id, self.options)
    }
}
