//! Open codes: numbers with names, of which unknown ones survive.

use core::fmt;

/// A path MTU code, 4 bits on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, PartialOrd, Ord)]
pub struct Mtu(pub u8);

impl Mtu {
    /// 256 bytes.
    pub const MTU_256: Self = Self(1);
    /// 512 bytes.
    pub const MTU_512: Self = Self(2);
    /// 1024 bytes.
    pub const MTU_1024: Self = Self(3);
    /// 2048 bytes.
    pub const MTU_2048: Self = Self(4);
    /// 4096 bytes.
    pub const MTU_4096: Self = Self(5);

    /// Payload bytes per packet, or `None` for a code without a meaning.
    #[must_use]
    pub const fn bytes(self) -> Option<u16> {
        match self.0 {
            1..=5 => Some(128 << self.0),
            _ => None,
        }
    }

    /// The largest path MTU whose packets fit a link of `netdev_mtu` bytes, or `None` if not even 256 do.
    ///
    /// 96 bytes are set aside for headers, which is what Linux (`include/rdma/ib_addr.h`) sets aside: a link of 1500
    /// gives 1024, one of 4192 gives 4096.
    #[must_use]
    pub const fn largest_for_link(netdev_mtu: u32) -> Option<Self> {
        match netdev_mtu.saturating_sub(HEADER_ALLOWANCE) {
            4096.. => Some(Self::MTU_4096),
            2048.. => Some(Self::MTU_2048),
            1024.. => Some(Self::MTU_1024),
            512.. => Some(Self::MTU_512),
            256.. => Some(Self::MTU_256),
            _ => None,
        }
    }
}

const HEADER_ALLOWANCE: u32 = 96;

impl fmt::Display for Mtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.bytes() {
            Some(bytes) => fmt::Display::fmt(&bytes, f),
            None => write!(f, "mtu code {}", self.0),
        }
    }
}

/// A packet rate code, 6 bits on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, PartialOrd, Ord)]
pub struct Rate(pub u8);

impl Rate {
    /// As fast as the port goes; what RoCE paths carry.
    pub const PORT_CURRENT: Self = Self(0);
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rate code {}", self.0)
    }
}

/// The transport service type of a connection, 2 bits in a REQ.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, PartialOrd, Ord)]
pub struct TransportService(pub u8);

impl TransportService {
    /// Reliable connected.
    pub const RC: Self = Self(0);
    /// Unreliable connected.
    pub const UC: Self = Self(1);
    /// Reliable datagram.
    pub const RD: Self = Self(2);
    /// The extended transport type field says which one: XRC ([`EXTENDED_XRC`](Self::EXTENDED_XRC)).
    pub const EXTENDED: Self = Self(3);
    /// The value of the extended transport type field, 3 bits in a REQ, that means XRC.
    pub const EXTENDED_XRC: u8 = 1;
}

impl fmt::Display for TransportService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::RC => f.write_str("RC"),
            Self::UC => f.write_str("UC"),
            Self::RD => f.write_str("RD"),
            Self::EXTENDED => f.write_str("extended"),
            Self(other) => write!(f, "transport {other}"),
        }
    }
}

/// Why a connection was rejected (IBA Vol. 1 ch. 12, REJ, reason codes).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, PartialOrd, Ord)]
pub struct RejReason(pub u16);

macro_rules! reasons {
    ($type:ident, $noun:literal: $($name:ident = $value:literal, $text:literal;)*) => {
        impl $type {
            $(#[doc = concat!($noun, " ", $value, ": ", $text, ".")]
            pub const $name: Self = Self($value);)*

            /// What the code means, or `None` for a code without a name.
            #[must_use]
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($value => Some($text),)*
                    _ => None,
                }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self.name() {
                    Some(name) => write!(f, "{name} ({})", self.0),
                    None => write!(f, concat!($noun, " {}"), self.0),
                }
            }
        }
    };
}

reasons! {
    RejReason, "reason":
    NO_QP = 1, "no QP available";
    NO_EEC = 2, "no EEC available";
    NO_RESOURCES = 3, "no resources";
    TIMEOUT = 4, "timeout";
    UNSUPPORTED_REQUEST = 5, "unsupported request";
    INVALID_COMM_ID = 6, "invalid communication ID";
    INVALID_COMM_INSTANCE = 7, "invalid communication instance";
    INVALID_SERVICE_ID = 8, "invalid service ID";
    INVALID_TRANSPORT_TYPE = 9, "invalid transport service type";
    STALE_CONNECTION = 10, "stale connection";
    RDC_DOES_NOT_EXIST = 11, "RDC does not exist";
    INVALID_GID = 12, "invalid primary GID";
    INVALID_LID = 13, "invalid primary LID";
    INVALID_SL = 14, "invalid primary SL";
    INVALID_TRAFFIC_CLASS = 15, "invalid primary traffic class";
    INVALID_HOP_LIMIT = 16, "invalid primary hop limit";
    INVALID_PACKET_RATE = 17, "invalid primary packet rate";
    INVALID_ALTERNATE_GID = 18, "invalid alternate GID";
    INVALID_ALTERNATE_LID = 19, "invalid alternate LID";
    INVALID_ALTERNATE_SL = 20, "invalid alternate SL";
    INVALID_ALTERNATE_TRAFFIC_CLASS = 21, "invalid alternate traffic class";
    INVALID_ALTERNATE_HOP_LIMIT = 22, "invalid alternate hop limit";
    INVALID_ALTERNATE_PACKET_RATE = 23, "invalid alternate packet rate";
    PORT_AND_CM_REDIRECTION = 24, "port and CM redirection";
    PORT_REDIRECTION = 25, "port redirection";
    INVALID_PATH_MTU = 26, "invalid path MTU";
    INSUFFICIENT_RESPONDER_RESOURCES = 27, "insufficient responder resources";
    CONSUMER_DEFINED = 28, "consumer defined";
    INVALID_RNR_RETRY = 29, "invalid RNR retry count";
    DUPLICATE_LOCAL_COMM_ID = 30, "duplicate local communication ID";
    INVALID_CLASS_VERSION = 31, "invalid class version";
    INVALID_FLOW_LABEL = 32, "invalid primary flow label";
    INVALID_ALTERNATE_FLOW_LABEL = 33, "invalid alternate flow label";
    VENDOR_OPTION_NOT_SUPPORTED = 35, "vendor option not supported";
}

/// The outcome of a SIDR_REQ (IBA Vol. 1 ch. 12, SIDR_REP, status).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, PartialOrd, Ord)]
pub struct SidrStatus(pub u8);

reasons! {
    SidrStatus, "status":
    SUCCESS = 0, "queue pair and Q_Key are valid";
    UNSUPPORTED = 1, "service ID not supported";
    REJECT = 2, "rejected by the service";
    NO_QP = 3, "no QP available";
    REDIRECT = 4, "redirected";
    UNSUPPORTED_VERSION = 5, "version not supported";
}

/// The outcome of a LAP (IBA Vol. 1 ch. 12, APR, AP status).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, PartialOrd, Ord)]
pub struct AprStatus(pub u8);

reasons! {
    AprStatus, "status":
    SUCCESS = 0, "alternate path loaded";
    INVALID_COMM_ID = 1, "invalid communication ID";
    UNSUPPORTED = 2, "alternate paths not supported";
    REJECT = 3, "alternate path rejected";
    REDIRECT = 4, "alternate path redirected";
    IS_CURRENT = 5, "alternate path is the current path";
    INVALID_QPN = 6, "QPN or EECN does not match";
    INVALID_LID = 7, "invalid LID";
    INVALID_GID = 8, "invalid GID";
    INVALID_FLOW_LABEL = 9, "invalid flow label";
    INVALID_TRAFFIC_CLASS = 10, "invalid traffic class";
    INVALID_HOP_LIMIT = 11, "invalid hop limit";
    INVALID_PACKET_RATE = 12, "invalid packet rate";
    INVALID_SL = 13, "invalid SL";
}
