//! Which packets a rule is about: by opcode or class, and by 24-bit numbers.

use super::BTH_LEN;
use oarlock_wire::base::{Operation, TransportClass};
use oarlock_wire::{AttributeId, Opcode};
use std::fmt;

/// Opcodes, or a class of packets.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpcodePattern {
    /// Every packet but management datagrams.
    Any,
    /// Requests of SEND, management datagrams excepted.
    Send,
    /// Requests of RDMA WRITE.
    Write,
    /// Requests and responses of RDMA READ.
    Read,
    /// Requests and acknowledgements of atomic operations.
    Atomic,
    /// Positive acknowledgements.
    Ack,
    /// Negative acknowledgements, receiver-not-ready included.
    Nak,
    /// Management datagrams.
    Management,
    /// Management datagrams with this attribute.
    Message(AttributeId),
    /// One opcode, management datagrams excepted.
    Opcode(Opcode),
}

/// The messages of the connection manager, by the names of the classes.
const MESSAGES: [(&str, AttributeId); 11] = [
    ("cm_req", AttributeId::REQ),
    ("cm_mra", AttributeId::MRA),
    ("cm_rej", AttributeId::REJ),
    ("cm_rep", AttributeId::REP),
    ("cm_rtu", AttributeId::RTU),
    ("cm_dreq", AttributeId::DREQ),
    ("cm_drep", AttributeId::DREP),
    ("cm_lap", AttributeId::LAP),
    ("cm_apr", AttributeId::APR),
    ("cm_sidr_req", AttributeId::SIDR_REQ),
    ("cm_sidr_rep", AttributeId::SIDR_REP),
];

const CLASSES: [(&str, OpcodePattern); 8] = [
    ("any", OpcodePattern::Any),
    ("send", OpcodePattern::Send),
    ("write", OpcodePattern::Write),
    ("read", OpcodePattern::Read),
    ("atomic", OpcodePattern::Atomic),
    ("ack", OpcodePattern::Ack),
    ("nak", OpcodePattern::Nak),
    ("cm", OpcodePattern::Management),
];

impl OpcodePattern {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let class = CLASSES.iter().find(|(name, _)| *name == text);
        let message = || MESSAGES.iter().find(|(name, _)| *name == text);
        match class {
            Some((_, class)) => Some(*class),
            None => match message() {
                Some((_, attribute)) => Some(Self::Message(*attribute)),
                None => opcode(text).map(Self::Opcode),
            },
        }
    }

    /// Whether it is about management datagrams, which are the host service's, and not about a program's packets.
    #[must_use]
    pub fn is_management(self) -> bool {
        matches!(self, Self::Management | Self::Message(_))
    }

    /// Whether a packet, from its BTH on, is meant.
    pub(super) fn takes(self, packet: &[u8]) -> bool {
        let Some(head) = Head::of(packet) else {
            return false;
        };
        if self.is_management() != head.is_management() {
            return false;
        }
        let operation = head.opcode.operation();
        match self {
            Self::Any | Self::Management => true,
            Self::Send => operation == Operation::Send,
            Self::Write => operation == Operation::RdmaWrite,
            Self::Read => matches!(
                operation,
                Operation::RdmaReadRequest | Operation::RdmaReadResponse
            ),
            Self::Atomic => matches!(
                operation,
                Operation::CompareSwap | Operation::FetchAdd | Operation::AtomicAcknowledge
            ),
            Self::Ack => operation == Operation::Acknowledge && is_positive(packet),
            Self::Nak => operation == Operation::Acknowledge && !is_positive(packet),
            Self::Message(attribute) => {
                packet.get(ATTRIBUTE..ATTRIBUTE + 2) == Some(&attribute.0.to_be_bytes()[..])
            }
            Self::Opcode(opcode) => head.opcode == opcode,
        }
    }
}

impl fmt::Display for OpcodePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Message(attribute) => {
                let known = MESSAGES.iter().find(|(_, known)| known == attribute);
                f.write_str(known.map_or("cm", |(name, _)| name))
            }
            Self::Opcode(opcode) => write_opcode(*opcode, f),
            class => {
                let known = CLASSES.iter().find(|(_, known)| known == class);
                f.write_str(known.map_or("any", |(name, _)| name))
            }
        }
    }
}

/// What of a BTH a rule looks at.
#[derive(Debug, Clone, Copy)]
pub(super) struct Head {
    pub(super) opcode: Opcode,
    pub(super) dest_qpn: u32,
    pub(super) psn: u32,
}

impl Head {
    pub(super) fn of(packet: &[u8]) -> Option<Self> {
        let bth = packet.first_chunk::<BTH_LEN>()?;
        Some(Self {
            opcode: Opcode(bth[0]),
            dest_qpn: u32::from_be_bytes([0, bth[5], bth[6], bth[7]]),
            psn: u32::from_be_bytes([0, bth[9], bth[10], bth[11]]),
        })
    }

    pub(super) fn is_management(&self) -> bool {
        self.dest_qpn == 1 && self.opcode.transport() == TransportClass::Ud
    }

    /// Whether a request begins with this packet.
    pub(super) fn begins_request(&self) -> bool {
        !self.opcode.is_response() && self.opcode.position().is_start()
    }
}

/// IBA Vol. 1 ch. 9, AETH: the two bits after the first say what the syndrome is; 0 is an acknowledgement.
fn is_positive(packet: &[u8]) -> bool {
    packet
        .get(BTH_LEN)
        .is_some_and(|syndrome| (syndrome >> 5) & 0b11 == 0)
}

/// A range of 24-bit numbers. One whose start is above its end goes over the top, as PSNs do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Range24 {
    pub(super) first: u32,
    pub(super) last: u32,
}

impl Range24 {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (first, last) = match text.split_once('-') {
            Some((first, last)) => (number24(first)?, number24(last)?),
            None => (number24(text)?, number24(text)?),
        };
        Some(Self { first, last })
    }

    pub(super) fn contains(self, value: u32) -> bool {
        let above = |value: u32| value.wrapping_sub(self.first) & MASK_24;
        above(value) <= above(self.last)
    }
}

impl fmt::Display for Range24 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.first)?;
        if self.last != self.first {
            write!(f, "-{:#08x}", self.last)?;
        }
        Ok(())
    }
}

pub(super) fn number24(text: &str) -> Option<u32> {
    number(text)
        .and_then(|value| u32::try_from(value).ok())
        .filter(|value| *value <= MASK_24)
}

/// A number, decimal or after `0x`; no sign.
pub(super) fn number(text: &str) -> Option<u64> {
    let (digits, base) = match text.strip_prefix("0x") {
        Some(digits) => (digits, 16),
        None => (text, 10),
    };
    if digits.starts_with('+') {
        return None;
    }
    u64::from_str_radix(digits, base).ok()
}

/// As `Opcode` prints, in lower case; the number of one without a name.
pub(super) fn write_opcode(opcode: Opcode, f: &mut impl fmt::Write) -> fmt::Result {
    if opcode.name().is_some() {
        f.write_str(&opcode.to_string().to_ascii_lowercase())
    } else {
        write!(f, "{:#04x}", opcode.0)
    }
}

/// The opposite of [`write_opcode`].
pub(super) fn opcode(text: &str) -> Option<Opcode> {
    if text.starts_with("0x") {
        return number(text)
            .and_then(|code| u8::try_from(code).ok())
            .map(Opcode);
    }
    (0..=u8::MAX)
        .map(Opcode)
        .find(|opcode| opcode.name().is_some() && opcode.to_string().to_ascii_lowercase() == text)
}

const MASK_24: u32 = 0xFF_FFFF;
/// Where the attribute of a MAD stands in its packet: BTH 12, DETH 8, then its place in the MAD's header.
const ATTRIBUTE: usize = BTH_LEN + 8 + 16;
