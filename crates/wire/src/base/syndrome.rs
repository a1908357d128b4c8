//! The syndrome of an AETH (IBA Vol. 1 ch. 9, AETH syndrome field).
//!
//! ```text
//!  bit 7  6 5      4 3 2 1 0
//!  0      0 0      credit count           acknowledgement
//!  0      0 1      timer                  receiver not ready
//!  0      1 1      code                   negative acknowledgement
//!  0      1 0, and everything with bit 7  reserved
//! ```

use core::fmt;
use core::time::Duration;

/// What a responder says about a request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Syndrome {
    /// Acknowledged.
    Ack {
        /// Encoded end-to-end credits, 5 bits; [`Self::NO_CREDITS`] says that none are given out.
        credits: u8,
    },
    /// Receiver not ready: try again after the time.
    RnrNak(RnrTimer),
    /// Refused.
    Nak(NakCode),
    /// A value without a meaning, kept as it is: bits 6 to 5 are 10 or bit 7 is set.
    Reserved(u8),
}

impl Syndrome {
    /// The credit count that means: no end-to-end flow control.
    pub const NO_CREDITS: u8 = 0x1F;
    /// An acknowledgement without end-to-end flow control.
    pub const ACK: Self = Self::Ack {
        credits: Self::NO_CREDITS,
    };

    /// The syndrome that the byte stands for.
    #[must_use]
    pub const fn from_bits(bits: u8) -> Self {
        let value = bits & VALUE;
        match bits & KIND {
            ACK => Self::Ack { credits: value },
            RNR_NAK => Self::RnrNak(RnrTimer::truncate(value)),
            NAK => Self::Nak(NakCode(value)),
            _ => Self::Reserved(bits),
        }
    }

    /// The byte that stands for the syndrome.
    #[must_use]
    pub const fn to_bits(self) -> u8 {
        match self {
            Self::Ack { credits } => ACK | credits & VALUE,
            Self::RnrNak(timer) => RNR_NAK | timer.get(),
            Self::Nak(code) => NAK | code.0 & VALUE,
            Self::Reserved(bits) => bits,
        }
    }
}

const KIND: u8 = 0xE0;
const VALUE: u8 = 0x1F;
const ACK: u8 = 0x00;
const RNR_NAK: u8 = 0x20;
const NAK: u8 = 0x60;

impl fmt::Display for Syndrome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Ack { .. } => f.write_str("ACK"),
            Self::RnrNak(timer) => write!(f, "RNR NAK {timer}"),
            Self::Nak(code) => write!(f, "NAK {code}"),
            Self::Reserved(bits) => write!(f, "syndrome {bits:#04x}"),
        }
    }
}

/// Why a request was refused, 5 bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct NakCode(pub u8);

impl NakCode {
    /// A PSN was skipped: something was lost.
    pub const PSN_SEQUENCE_ERROR: Self = Self(0);
    /// The request is malformed or not allowed here.
    pub const INVALID_REQUEST: Self = Self(1);
    /// The memory may not be accessed so.
    pub const REMOTE_ACCESS_ERROR: Self = Self(2);
    /// The responder failed.
    pub const REMOTE_OPERATIONAL_ERROR: Self = Self(3);
    /// Reliable datagrams only.
    pub const INVALID_RD_REQUEST: Self = Self(4);
}

impl fmt::Display for NakCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::PSN_SEQUENCE_ERROR => f.write_str("PSN sequence error"),
            Self::INVALID_REQUEST => f.write_str("invalid request"),
            Self::REMOTE_ACCESS_ERROR => f.write_str("remote access error"),
            Self::REMOTE_OPERATIONAL_ERROR => f.write_str("remote operational error"),
            Self::INVALID_RD_REQUEST => f.write_str("invalid RD request"),
            Self(other) => write!(f, "code {other}"),
        }
    }
}

/// How long to wait after a receiver-not-ready, encoded in 5 bits (IBA Vol. 1 ch. 9, RNR NAK timer field).
///
/// Beware of 0: it is the longest time, 655.36 ms.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct RnrTimer(u8);

impl RnrTimer {
    /// 655.36 ms, the longest time.
    pub const LONGEST: Self = Self(0);
    /// 0.64 ms, a good default.
    pub const US_640: Self = Self(12);

    /// The timer with this code, or `None` if the code needs more than 5 bits.
    #[must_use]
    pub const fn new(code: u8) -> Option<Self> {
        if code <= VALUE {
            Some(Self(code))
        } else {
            None
        }
    }

    /// The low 5 bits of `code`, as a parser reads them.
    #[must_use]
    pub const fn truncate(code: u8) -> Self {
        Self(code & VALUE)
    }

    /// The code.
    #[must_use]
    pub const fn get(self) -> u8 {
        self.0
    }

    /// The time to wait.
    #[must_use]
    pub const fn to_duration(self) -> Duration {
        Duration::from_micros(MICROS[self.0 as usize] as u64)
    }
}

/// The encoded times in microseconds. 0.01 ms to 491.52 ms in steps of 1.5 and 1.33; 0 wraps to the longest.
const MICROS: [u32; 32] = [
    655_360, 10, 20, 30, 40, 60, 80, 120, 160, 240, 320, 480, 640, 960, 1_280, 1_920, 2_560, 3_840,
    5_120, 7_680, 10_240, 15_360, 20_480, 30_720, 40_960, 61_440, 81_920, 122_880, 163_840,
    245_760, 327_680, 491_520,
];

impl fmt::Display for RnrTimer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.to_duration())
    }
}
