//! What was wrong with bytes from a peer: which message, which field, what about it.

use core::fmt;

/// Bytes that are not what they should be.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct WireError {
    /// The message or header, by the specification's name.
    pub message: &'static str,
    /// The field, by the specification's name.
    pub field: &'static str,
    /// What is wrong with it.
    pub kind: WireErrorKind,
}

impl WireError {
    pub(crate) const fn new(
        message: &'static str,
        field: &'static str,
        kind: WireErrorKind,
    ) -> Self {
        Self {
            message,
            field,
            kind,
        }
    }
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}: {}", self.message, self.field, self.kind)
    }
}

impl core::error::Error for WireError {}

/// What is wrong with a field. [`label`](Self::label) is the name of the drop counter.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum WireErrorKind {
    /// There are fewer bytes than the format needs.
    Truncated {
        /// Bytes that are there.
        given: usize,
        /// Bytes that are needed.
        needed: usize,
    },
    /// The output is too small for what is to be written.
    NoRoom {
        /// Bytes that are there.
        given: usize,
        /// Bytes that are needed.
        needed: usize,
    },
    /// The value has no meaning in this field.
    OutOfRange(u64),
    /// A version that we do not speak.
    UnsupportedVersion(u8),
    /// A management class other than the expected one.
    UnsupportedClass(u8),
    /// A management method other than the expected one.
    UnsupportedMethod(u8),
    /// A management attribute that we do not implement.
    UnsupportedAttribute(u16),
    /// A packet opcode whose extended headers we do not implement.
    UnsupportedOpcode(u8),
    /// The private data is not an IP CM header: the request addresses by something other than IP. Holds the IP version
    /// that stands in its place.
    NotIp(u8),
    /// The headers given are not those that the opcode calls for.
    HeaderSet(u8),
}

impl WireErrorKind {
    /// Every label there is, for a table of counters.
    pub const LABELS: [&'static str; 10] = [
        "truncated",
        "no_room",
        "out_of_range",
        "unsupported_version",
        "unsupported_class",
        "unsupported_method",
        "unsupported_attribute",
        "unsupported_opcode",
        "not_ip",
        "header_set",
    ];

    /// A stable name, which is also the name of the drop counter.
    #[must_use]
    pub const fn label(self) -> &'static str {
        Self::LABELS[self.index()]
    }

    /// The place of [`label`](Self::label) in [`LABELS`](Self::LABELS).
    #[must_use]
    pub const fn index(self) -> usize {
        match self {
            Self::Truncated { .. } => 0,
            Self::NoRoom { .. } => 1,
            Self::OutOfRange(_) => 2,
            Self::UnsupportedVersion(_) => 3,
            Self::UnsupportedClass(_) => 4,
            Self::UnsupportedMethod(_) => 5,
            Self::UnsupportedAttribute(_) => 6,
            Self::UnsupportedOpcode(_) => 7,
            Self::NotIp(_) => 8,
            Self::HeaderSet(_) => 9,
        }
    }
}

impl fmt::Display for WireErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Truncated { given, needed } => write!(f, "truncated: {given} bytes of {needed}"),
            Self::NoRoom { given, needed } => write!(f, "room for {given} bytes, {needed} needed"),
            Self::OutOfRange(value) => write!(f, "{value} is out of range"),
            Self::UnsupportedVersion(version) => write!(f, "version {version} is not supported"),
            Self::UnsupportedClass(class) => write!(f, "class {class:#04x} is not supported"),
            Self::UnsupportedMethod(method) => write!(f, "method {method:#04x} is not supported"),
            Self::UnsupportedAttribute(id) => write!(f, "attribute {id:#06x} is not supported"),
            Self::UnsupportedOpcode(opcode) => write!(f, "opcode {opcode:#04x} is not supported"),
            Self::NotIp(version) => write!(f, "IP version {version}: not an IP address"),
            Self::HeaderSet(opcode) => write!(f, "opcode {opcode:#04x} calls for other headers"),
        }
    }
}
