//! The opcode of a BTH (IBA Vol. 1 ch. 9, operation code field): 3 bits of transport class, 5 bits of operation.

use core::fmt;

/// What a packet is. Unknown codes survive.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Opcode(pub u8);

/// The transport class in an opcode.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum TransportClass {
    /// Reliable connected.
    Rc,
    /// Unreliable connected.
    Uc,
    /// Reliable datagram.
    Rd,
    /// Unreliable datagram.
    Ud,
    /// Congestion notification.
    Cnp,
    /// Extended reliable connected.
    Xrc,
    /// Reserved or a manufacturer's own.
    Other(u8),
}

/// What a packet is part of.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Operation {
    /// A message into a posted receive.
    Send,
    /// A write into memory.
    RdmaWrite,
    /// The request of a read of memory.
    RdmaReadRequest,
    /// The data of a read.
    RdmaReadResponse,
    /// An acknowledgement, positive or negative.
    Acknowledge,
    /// The acknowledgement of an atomic operation.
    AtomicAcknowledge,
    /// Compare and swap.
    CompareSwap,
    /// Fetch and add.
    FetchAdd,
    /// Resynchronisation; reliable datagrams only.
    Resync,
    /// Nothing that we know.
    Unknown,
}

/// Where a packet stands in its message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Position {
    /// The first of several.
    First,
    /// Neither the first nor the last.
    Middle,
    /// The last of several.
    Last,
    /// The only one.
    Only,
}

impl Position {
    /// Whether a message begins here.
    #[must_use]
    pub const fn is_start(self) -> bool {
        matches!(self, Self::First | Self::Only)
    }

    /// Whether a message ends here.
    #[must_use]
    pub const fn is_end(self) -> bool {
        matches!(self, Self::Last | Self::Only)
    }
}

impl Opcode {
    /// RC SEND First
    pub const RC_SEND_FIRST: Self = Self(0x00);
    /// RC SEND Middle
    pub const RC_SEND_MIDDLE: Self = Self(0x01);
    /// RC SEND Last
    pub const RC_SEND_LAST: Self = Self(0x02);
    /// RC SEND Last with Immediate
    pub const RC_SEND_LAST_IMM: Self = Self(0x03);
    /// RC SEND Only
    pub const RC_SEND_ONLY: Self = Self(0x04);
    /// RC SEND Only with Immediate
    pub const RC_SEND_ONLY_IMM: Self = Self(0x05);
    /// RC RDMA WRITE First
    pub const RC_RDMA_WRITE_FIRST: Self = Self(0x06);
    /// RC RDMA WRITE Middle
    pub const RC_RDMA_WRITE_MIDDLE: Self = Self(0x07);
    /// RC RDMA WRITE Last
    pub const RC_RDMA_WRITE_LAST: Self = Self(0x08);
    /// RC RDMA WRITE Last with Immediate
    pub const RC_RDMA_WRITE_LAST_IMM: Self = Self(0x09);
    /// RC RDMA WRITE Only
    pub const RC_RDMA_WRITE_ONLY: Self = Self(0x0A);
    /// RC RDMA WRITE Only with Immediate
    pub const RC_RDMA_WRITE_ONLY_IMM: Self = Self(0x0B);
    /// RC RDMA READ Request
    pub const RC_RDMA_READ_REQUEST: Self = Self(0x0C);
    /// RC RDMA READ Response First
    pub const RC_RDMA_READ_RESPONSE_FIRST: Self = Self(0x0D);
    /// RC RDMA READ Response Middle
    pub const RC_RDMA_READ_RESPONSE_MIDDLE: Self = Self(0x0E);
    /// RC RDMA READ Response Last
    pub const RC_RDMA_READ_RESPONSE_LAST: Self = Self(0x0F);
    /// RC RDMA READ Response Only
    pub const RC_RDMA_READ_RESPONSE_ONLY: Self = Self(0x10);
    /// RC Acknowledge
    pub const RC_ACKNOWLEDGE: Self = Self(0x11);
    /// RC ATOMIC Acknowledge
    pub const RC_ATOMIC_ACKNOWLEDGE: Self = Self(0x12);
    /// RC CmpSwap
    pub const RC_COMPARE_SWAP: Self = Self(0x13);
    /// RC FetchAdd
    pub const RC_FETCH_ADD: Self = Self(0x14);
    /// RC SEND Last with Invalidate
    pub const RC_SEND_LAST_INVALIDATE: Self = Self(0x16);
    /// RC SEND Only with Invalidate
    pub const RC_SEND_ONLY_INVALIDATE: Self = Self(0x17);
    /// UD SEND Only
    pub const UD_SEND_ONLY: Self = Self(0x64);
    /// UD SEND Only with Immediate
    pub const UD_SEND_ONLY_IMM: Self = Self(0x65);
    /// Congestion notification packet (Annex A17)
    pub const CNP: Self = Self(0x81);

    /// The transport class.
    #[must_use]
    pub const fn transport(self) -> TransportClass {
        match self.0 >> 5 {
            0 => TransportClass::Rc,
            1 => TransportClass::Uc,
            2 => TransportClass::Rd,
            3 => TransportClass::Ud,
            4 => TransportClass::Cnp,
            5 => TransportClass::Xrc,
            other => TransportClass::Other(other),
        }
    }

    /// What the packet is part of.
    #[must_use]
    pub const fn operation(self) -> Operation {
        if matches!(
            self.transport(),
            TransportClass::Cnp | TransportClass::Other(_)
        ) {
            return Operation::Unknown;
        }
        match self.0 & 0x1F {
            0x00..=0x05 | 0x16..=0x17 => Operation::Send,
            0x06..=0x0B => Operation::RdmaWrite,
            0x0C => Operation::RdmaReadRequest,
            0x0D..=0x10 => Operation::RdmaReadResponse,
            0x11 => Operation::Acknowledge,
            0x12 => Operation::AtomicAcknowledge,
            0x13 => Operation::CompareSwap,
            0x14 => Operation::FetchAdd,
            0x15 => Operation::Resync,
            _ => Operation::Unknown,
        }
    }

    /// Where the packet stands in its message; an unknown one stands alone.
    #[must_use]
    pub const fn position(self) -> Position {
        if matches!(self.operation(), Operation::Unknown) {
            return Position::Only;
        }
        match self.0 & 0x1F {
            0x00 | 0x06 | 0x0D => Position::First,
            0x01 | 0x07 | 0x0E => Position::Middle,
            0x02 | 0x03 | 0x08 | 0x09 | 0x0F | 0x16 => Position::Last,
            _ => Position::Only,
        }
    }

    /// Whether an ImmDt follows.
    #[must_use]
    pub const fn has_immediate(self) -> bool {
        matches!(self.operation(), Operation::Send | Operation::RdmaWrite)
            && matches!(self.0 & 0x1F, 0x03 | 0x05 | 0x09 | 0x0B)
    }

    /// Whether the packet is a responder's answer.
    #[must_use]
    pub const fn is_response(self) -> bool {
        matches!(
            self.operation(),
            Operation::RdmaReadResponse | Operation::Acknowledge | Operation::AtomicAcknowledge
        )
    }

    /// The same operation and position in another transport class: `RC_SEND_ONLY` of UC is `UC_SEND_ONLY`.
    ///
    /// ```
    /// # use oarlock_wire::{Opcode, base::TransportClass};
    /// let opcode = Opcode::RC_SEND_ONLY.of(TransportClass::Xrc);
    /// assert_eq!(opcode.to_string(), "XRC_SEND_ONLY");
    /// assert_eq!(opcode.of(TransportClass::Rc), Opcode::RC_SEND_ONLY);
    /// ```
    #[must_use]
    pub const fn of(self, class: TransportClass) -> Self {
        let code = match class {
            TransportClass::Rc => 0,
            TransportClass::Uc => 1,
            TransportClass::Rd => 2,
            TransportClass::Ud => 3,
            TransportClass::Cnp => 4,
            TransportClass::Xrc => 5,
            TransportClass::Other(other) => other & 0b111,
        };
        Self(code << 5 | self.0 & 0x1F)
    }

    /// The extended headers that follow the BTH, or `None` if the transport class has no such operation or the opcode is
    /// not implemented (reliable datagrams).
    #[inline]
    pub(crate) const fn extended_headers(self) -> Option<ExtendedHeaders> {
        EXTENDED_HEADERS[self.0 as usize]
    }

    /// What [`extended_headers`](Self::extended_headers) looks up.
    const fn find_extended_headers(self) -> Option<ExtendedHeaders> {
        use ExtendedHeaders as H;
        let operation = self.operation();
        match self.transport() {
            TransportClass::Rc | TransportClass::Xrc => {}
            TransportClass::Uc
                if self.0 & 0x1F <= 0x0B
                    && matches!(operation, Operation::Send | Operation::RdmaWrite) => {}
            TransportClass::Ud if matches!(self, Self::UD_SEND_ONLY | Self::UD_SEND_ONLY_IMM) => {}
            TransportClass::Cnp if self.0 == Self::CNP.0 => return Some(H::NONE),
            _ => return None,
        }
        let mut headers = match operation {
            Operation::Unknown | Operation::Resync => return None,
            Operation::Send => H::NONE,
            Operation::RdmaWrite if self.position().is_start() => H::RETH,
            Operation::RdmaWrite => H::NONE,
            Operation::RdmaReadRequest => H::RETH,
            Operation::RdmaReadResponse if matches!(self.position(), Position::Middle) => H::NONE,
            Operation::RdmaReadResponse | Operation::Acknowledge => H::AETH,
            Operation::AtomicAcknowledge => H::AETH.union(H::ATOMIC_ACK_ETH),
            Operation::CompareSwap | Operation::FetchAdd => H::ATOMIC_ETH,
        };
        if matches!(self.transport(), TransportClass::Ud) {
            headers = headers.union(H::DETH);
        }
        if matches!(self.transport(), TransportClass::Xrc) && !self.is_response() {
            headers = headers.union(H::XRCETH);
        }
        if self.has_immediate() {
            headers = headers.union(H::IMMDT);
        }
        if matches!(self.0 & 0x1F, 0x16 | 0x17) {
            headers = headers.union(H::IETH);
        }
        Some(headers)
    }

    /// The name of the operation and position, without the transport.
    #[must_use]
    pub const fn name(self) -> Option<&'static str> {
        if matches!(
            self.transport(),
            TransportClass::Cnp | TransportClass::Other(_)
        ) {
            return if self.0 == Self::CNP.0 {
                Some("CNP")
            } else {
                None
            };
        }
        NAMES[(self.0 & 0x1F) as usize]
    }
}

/// Which extended headers follow a BTH: a set, in the order of the constants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ExtendedHeaders(u8);

impl ExtendedHeaders {
    pub(crate) const NONE: Self = Self(0);
    pub(crate) const DETH: Self = Self(1 << 0);
    pub(crate) const XRCETH: Self = Self(1 << 1);
    pub(crate) const RETH: Self = Self(1 << 2);
    pub(crate) const ATOMIC_ETH: Self = Self(1 << 3);
    pub(crate) const AETH: Self = Self(1 << 4);
    pub(crate) const ATOMIC_ACK_ETH: Self = Self(1 << 5);
    pub(crate) const IMMDT: Self = Self(1 << 6);
    pub(crate) const IETH: Self = Self(1 << 7);

    pub(crate) const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    #[inline]
    pub(crate) const fn contains(self, header: Self) -> bool {
        self.0 & header.0 != 0
    }

    /// `header` if `is_given`, else nothing.
    #[inline]
    pub(crate) const fn given(header: Self, is_given: bool) -> Self {
        if is_given { header } else { Self::NONE }
    }
}

/// Looked up for every packet that comes and goes.
static EXTENDED_HEADERS: [Option<ExtendedHeaders>; 256] = {
    let mut table = [None; 256];
    let mut opcode = Opcode(0);
    loop {
        table[opcode.0 as usize] = opcode.find_extended_headers();
        match opcode.0.checked_add(1) {
            Some(next) => opcode = Opcode(next),
            None => break table,
        }
    }
};

const NAMES: [Option<&str>; 32] = [
    Some("SEND_FIRST"),
    Some("SEND_MIDDLE"),
    Some("SEND_LAST"),
    Some("SEND_LAST_IMM"),
    Some("SEND_ONLY"),
    Some("SEND_ONLY_IMM"),
    Some("RDMA_WRITE_FIRST"),
    Some("RDMA_WRITE_MIDDLE"),
    Some("RDMA_WRITE_LAST"),
    Some("RDMA_WRITE_LAST_IMM"),
    Some("RDMA_WRITE_ONLY"),
    Some("RDMA_WRITE_ONLY_IMM"),
    Some("RDMA_READ_REQUEST"),
    Some("RDMA_READ_RESPONSE_FIRST"),
    Some("RDMA_READ_RESPONSE_MIDDLE"),
    Some("RDMA_READ_RESPONSE_LAST"),
    Some("RDMA_READ_RESPONSE_ONLY"),
    Some("ACKNOWLEDGE"),
    Some("ATOMIC_ACKNOWLEDGE"),
    Some("COMPARE_SWAP"),
    Some("FETCH_ADD"),
    Some("RESYNC"),
    Some("SEND_LAST_INVALIDATE"),
    Some("SEND_ONLY_INVALIDATE"),
    None,
    None,
    None,
    None,
    None,
    None,
    None,
    None,
];

impl fmt::Display for TransportClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Rd => "RD",
            Self::Ud => "UD",
            Self::Cnp => "CNP",
            Self::Xrc => "XRC",
            Self::Other(class) => return write!(f, "class {class}"),
        })
    }
}

impl fmt::Display for Opcode {
    /// `RC_SEND_ONLY`; for a code without a name, `opcode 0xff`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some("CNP") => f.write_str("CNP"),
            Some(name) => write!(f, "{}_{name}", self.transport()),
            None => write!(f, "opcode {:#04x}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn opcodes_print_by_transport_and_operation() {
        let printed = [
            0x00, 0x04, 0x0C, 0x11, 0x17, 0x24, 0x64, 0x65, 0x81, 0x82, 0xBF, 0x1F,
        ]
        .map(|code| Opcode(code).to_string());
        let wanted = [
            "RC_SEND_FIRST",
            "RC_SEND_ONLY",
            "RC_RDMA_READ_REQUEST",
            "RC_ACKNOWLEDGE",
            "RC_SEND_ONLY_INVALIDATE",
            "UC_SEND_ONLY",
            "UD_SEND_ONLY",
            "UD_SEND_ONLY_IMM",
            "CNP",
            "opcode 0x82",
            "opcode 0xbf",
            "opcode 0x1f",
        ];
        assert_eq!(printed, wanted);
    }

    #[test]
    fn a_name_says_the_position_and_the_immediate_data() {
        let mut named = 0;
        for opcode in (0..=u8::MAX).map(Opcode) {
            let Some(name) = opcode.name() else { continue };
            named += 1;
            let position = opcode.position();
            let said = [
                ("_FIRST", position == Position::First),
                ("_MIDDLE", position == Position::Middle),
                ("_LAST", position == Position::Last),
                ("_IMM", opcode.has_immediate()),
                (
                    "RESPONSE",
                    opcode.operation() == Operation::RdmaReadResponse,
                ),
                (
                    "ACKNOWLEDGE",
                    opcode.is_response() && opcode.operation() != Operation::RdmaReadResponse,
                ),
            ];
            for (word, holds) in said {
                assert_eq!(name.contains(word), holds, "{opcode}: {word}");
            }
            assert_eq!(
                position.is_start(),
                !name.contains("_LAST") && !name.contains("_MIDDLE"),
                "{opcode}"
            );
            assert_eq!(
                position.is_end(),
                !name.contains("_FIRST") && !name.contains("_MIDDLE"),
                "{opcode}"
            );
        }
        assert_eq!(
            named,
            5 * 24 + 1,
            "24 operations of five transports, and CNP"
        );
    }
}
