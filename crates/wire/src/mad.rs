//! The common header of management datagrams (IBA Vol. 1 ch. 13, MAD base format).
//!
//! ```text
//!  byte  0             1             2              3
//!     0  base version  mgmt class    class version  R | method
//!     4  status                      class specific
//!     8  transaction ID (8 bytes)
//!    16  attribute ID                reserved
//!    20  attribute modifier
//!    24  attribute data, 232 bytes
//! ```

use crate::error::{WireError, WireErrorKind};
use crate::units::TransactionId;
use core::fmt;

/// The length of a management datagram.
pub const MAD_LEN: usize = 256;
/// The length of its common header.
pub const MAD_HEADER_LEN: usize = 24;

/// The common header of a management datagram.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct MadHeader {
    /// The version of this header: 1.
    pub base_version: u8,
    /// Which manager the datagram is for.
    pub mgmt_class: MgmtClass,
    /// The version of the class's formats: 2 for communication management.
    pub class_version: u8,
    /// What to do, with the response bit on top.
    pub method: Method,
    /// The outcome, in a response.
    pub status: u16,
    /// Two bytes that the class may use.
    pub class_specific: u16,
    /// What a response has in common with its request; in the CM, the messages of one exchange.
    pub transaction_id: TransactionId,
    /// What the attribute data is.
    pub attribute_id: AttributeId,
    /// A modifier of the attribute; the CM of Linux carries ECE options here.
    pub attribute_modifier: u32,
}

impl MadHeader {
    /// The header of a CM message.
    #[must_use]
    pub const fn cm(attribute_id: AttributeId, transaction_id: TransactionId) -> Self {
        Self {
            base_version: BASE_VERSION,
            mgmt_class: MgmtClass::CM,
            class_version: CM_CLASS_VERSION,
            method: Method::SEND,
            status: 0,
            class_specific: 0,
            transaction_id,
            attribute_id,
            attribute_modifier: 0,
        }
    }

    /// Reads the header of a datagram, whatever it holds.
    #[must_use]
    pub fn parse(mad: &[u8; MAD_LEN]) -> Self {
        let [
            b0,
            b1,
            b2,
            b3,
            s0,
            s1,
            c0,
            c1,
            t0,
            t1,
            t2,
            t3,
            t4,
            t5,
            t6,
            t7,
            a0,
            a1,
            _,
            _,
            m0,
            m1,
            m2,
            m3,
            ..,
        ] = *mad;
        Self {
            base_version: b0,
            mgmt_class: MgmtClass(b1),
            class_version: b2,
            method: Method(b3),
            status: u16::from_be_bytes([s0, s1]),
            class_specific: u16::from_be_bytes([c0, c1]),
            transaction_id: TransactionId(u64::from_be_bytes([t0, t1, t2, t3, t4, t5, t6, t7])),
            attribute_id: AttributeId(u16::from_be_bytes([a0, a1])),
            attribute_modifier: u32::from_be_bytes([m0, m1, m2, m3]),
        }
    }

    /// Writes the header into the first bytes of `mad`; the reserved bytes become zero, the rest stays.
    pub fn emit(&self, mad: &mut [u8; MAD_LEN]) {
        mad[..4].copy_from_slice(&[
            self.base_version,
            self.mgmt_class.0,
            self.class_version,
            self.method.0,
        ]);
        mad[4..6].copy_from_slice(&self.status.to_be_bytes());
        mad[6..8].copy_from_slice(&self.class_specific.to_be_bytes());
        mad[8..16].copy_from_slice(&self.transaction_id.0.to_be_bytes());
        mad[16..18].copy_from_slice(&self.attribute_id.0.to_be_bytes());
        mad[18..20].fill(0);
        mad[20..24].copy_from_slice(&self.attribute_modifier.to_be_bytes());
    }

    /// Whether the datagram can be a CM message.
    ///
    /// # Errors
    /// Names the field of the header that says it is not.
    pub const fn expect_cm(&self) -> Result<(), WireError> {
        let (field, kind) = if self.base_version != BASE_VERSION {
            (
                "base version",
                WireErrorKind::UnsupportedVersion(self.base_version),
            )
        } else if self.mgmt_class.0 != MgmtClass::CM.0 {
            (
                "management class",
                WireErrorKind::UnsupportedClass(self.mgmt_class.0),
            )
        } else if self.class_version != CM_CLASS_VERSION {
            (
                "class version",
                WireErrorKind::UnsupportedVersion(self.class_version),
            )
        } else if self.method.0 != Method::SEND.0 {
            ("method", WireErrorKind::UnsupportedMethod(self.method.0))
        } else {
            return Ok(());
        };
        Err(WireError::new("MAD", field, kind))
    }
}

/// The version of the common header.
pub const BASE_VERSION: u8 = 1;
/// The version of the CM's formats.
pub const CM_CLASS_VERSION: u8 = 2;

/// A management class.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct MgmtClass(pub u8);

impl MgmtClass {
    /// Subnet administration.
    pub const SUBNET_ADMINISTRATION: Self = Self(0x03);
    /// Communication management.
    pub const CM: Self = Self(0x07);
}

/// A management method, with the response bit on top.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Method(pub u8);

impl Method {
    /// A datagram that asks for no response of its own; every CM message is one.
    pub const SEND: Self = Self(0x03);
}

/// A management attribute. The constants are those of the CM class.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct AttributeId(pub u16);

macro_rules! attributes {
    ($($name:ident = $value:literal, $text:literal;)*) => {
        impl AttributeId {
            $(#[doc = concat!("`", $text, "`")]
            pub const $name: Self = Self($value);)*

            /// The name of the CM message, or `None` for another attribute.
            #[must_use]
            pub const fn cm_name(self) -> Option<&'static str> {
                match self.0 {
                    $($value => Some($text),)*
                    _ => None,
                }
            }
        }
    };
}

attributes! {
    CLASS_PORT_INFO = 0x0001, "ClassPortInfo";
    REQ = 0x0010, "REQ";
    MRA = 0x0011, "MRA";
    REJ = 0x0012, "REJ";
    REP = 0x0013, "REP";
    RTU = 0x0014, "RTU";
    DREQ = 0x0015, "DREQ";
    DREP = 0x0016, "DREP";
    SIDR_REQ = 0x0017, "SIDR_REQ";
    SIDR_REP = 0x0018, "SIDR_REP";
    LAP = 0x0019, "LAP";
    APR = 0x001A, "APR";
}

impl fmt::Display for AttributeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.cm_name() {
            Some(name) => f.write_str(name),
            None => write!(f, "attribute {:#06x}", self.0),
        }
    }
}
