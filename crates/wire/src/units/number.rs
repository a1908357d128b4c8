//! Numbers that name something or count something.

use core::fmt;

macro_rules! narrow {
    ($(#[$doc:meta])* $name:ident($repr:ty), $bits:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
        pub struct $name($repr);

        impl $name {
            /// The width of the field in bits.
            pub const BITS: u32 = $bits;
            /// The largest value the field can hold.
            pub const MAX: Self = Self((1 << $bits) - 1);

            /// The value, or `None` if it does not fit the field.
            #[must_use]
            pub const fn new(value: $repr) -> Option<Self> {
                if value <= Self::MAX.0 { Some(Self(value)) } else { None }
            }

            /// The low bits of `value`, as a parser reads them.
            #[must_use]
            pub const fn truncate(value: $repr) -> Self {
                Self(value & Self::MAX.0)
            }

            /// The value as an integer.
            #[must_use]
            pub const fn get(self) -> $repr {
                self.0
            }
        }
    };
}

macro_rules! open {
    ($(#[$doc:meta])* $name:ident($repr:ty), $format:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, PartialOrd, Ord)]
        pub struct $name(pub $repr);

        impl $name {
            /// The value as an integer.
            #[must_use]
            pub const fn get(self) -> $repr {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $format, self.0)
            }
        }
    };
}

narrow! {
    /// A queue pair number, 24 bits.
    Qpn(u32), 24
}

impl Qpn {
    /// The subnet management interface.
    pub const QP0: Self = Self(0);
    /// The general service interface: connection management arrives here.
    pub const QP1: Self = Self(1);
    /// The destination of every multicast datagram.
    pub const MULTICAST: Self = Self(0xFF_FFFF);
}

impl fmt::Display for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

narrow! {
    /// The number of an XRC shared receive queue, 24 bits.
    Srqn(u32), 24
}

impl fmt::Display for Srqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

narrow! {
    /// A packet sequence number, 24 bits, compared as a serial number.
    ///
    /// There is no `Ord`: of two PSNs, which one comes first depends on the distance between them, not on the values.
    Psn(u32), 24
}

impl Psn {
    /// The PSN `count` packets later.
    #[must_use]
    pub const fn add(self, count: u32) -> Self {
        Self::truncate(self.0.wrapping_add(count))
    }

    /// The PSN `count` packets earlier.
    #[must_use]
    pub const fn sub(self, count: u32) -> Self {
        Self::truncate(self.0.wrapping_sub(count))
    }

    /// The PSN that follows.
    #[must_use]
    pub const fn next(self) -> Self {
        self.add(1)
    }

    /// How many packets after `earlier` this one is, modulo 2^24.
    #[must_use]
    pub const fn distance_from(self, earlier: Self) -> u32 {
        self.0.wrapping_sub(earlier.0) & Self::MAX.0
    }

    /// Whether this PSN lies in the half of the circle before `other`. Exactly opposite PSNs are neither before nor
    /// after each other.
    #[must_use]
    pub const fn is_before(self, other: Self) -> bool {
        let distance = other.distance_from(self);
        distance != 0 && distance < Self::HALF
    }

    /// Whether this PSN lies in the half of the circle after `other`.
    #[must_use]
    pub const fn is_after(self, other: Self) -> bool {
        other.is_before(self)
    }

    const HALF: u32 = 1 << 23;
}

impl fmt::Display for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

narrow! {
    /// A retry count, 3 bits. As an RNR retry count 7 means without end.
    RetryCount(u8), 3
}

impl fmt::Display for RetryCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

narrow! {
    /// A flow label, 20 bits.
    FlowLabel(u32), 20
}

impl fmt::Display for FlowLabel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#07x}", self.0)
    }
}

open! {
    /// A communication ID: one side's name for one connection, chosen by that side.
    CommId(u32), "{:#06x}"
}

open! {
    /// A service ID: what a REQ asks for, and what a listener registers.
    ServiceId(u64), "{:#018x}"
}

open! {
    /// The transaction ID of a management datagram.
    TransactionId(u64), "{:#018x}"
}

open! {
    /// A partition key.
    PKey(u16), "{:#06x}"
}

impl PKey {
    /// The default partition, full membership; the only one on RoCE.
    pub const DEFAULT: Self = Self(0xFFFF);
}

open! {
    /// A queue key: a datagram is delivered only if its key is that of the queue pair.
    QKey(u32), "{:#010x}"
}

impl QKey {
    /// The well-known key of the general service interface (QP1).
    pub const GSI: Self = Self(0x8001_0000);
    /// The key that the RDMA CM gives to queue pairs of the UDP port space.
    pub const RDMA_UDP: Self = Self(0x0123_4567);
}

open! {
    /// The local key of a memory region.
    LKey(u32), "{:#010x}"
}

open! {
    /// The remote key of a memory region.
    RKey(u32), "{:#010x}"
}
