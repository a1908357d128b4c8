//! Which rule failed: the vendor field of a completion.

use core::fmt;

use oarlock_wire::{NakCode, RnrTimer, Syndrome};

use crate::memory::MemoryError;

/// Why a request failed, finer than its [`WcStatus`](crate::WcStatus): each failure has one. The number is what the
/// `vendor_err` of `struct ibv_wc` carries; `Display` gives the sentence.
///
/// | Numbers | Meaning |
/// |---|---|
/// | 0 | no failure |
/// | 0x20 to 0x7F | the AETH syndrome byte with which the peer refused (IBA Vol. 1 ch. 9 "AETH syndrome") |
/// | 0x1xx | memory of this side: the kinds of [`MemoryError`] |
/// | 0x2xx | a request of the peer that this side refused |
/// | 0x3xx | a request of this side, given up without a refusal |
/// | 0x4xx | why a flushed request was flushed |
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct VendorError(pub u32);

/// The constants, their names and sentences in one place.
macro_rules! vendor_errors {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $sentence:literal;)*) => {
        impl VendorError {
            $($(#[$doc])* #[doc = concat!("\n\n`", stringify!($code), "`: ", $sentence, ".")]
            pub const $name: Self = Self($code);)*

            /// Every named value with its name, in order.
            pub const ALL: &[(Self, &'static str)] = &[$((Self::$name, stringify!($name))),*];

            const fn sentence(self) -> Option<&'static str> {
                match self {
                    $(Self::$name => Some($sentence),)*
                    _ => None,
                }
            }
        }
    };
}

vendor_errors! {
    /// The request did not fail.
    NONE = 0, "no error";
    /// [`WcStatus::REM_INV_REQ_ERR`](crate::WcStatus::REM_INV_REQ_ERR).
    NAK_INVALID_REQUEST = 0x61, "the peer refused the request as invalid";
    /// [`WcStatus::REM_ACCESS_ERR`](crate::WcStatus::REM_ACCESS_ERR).
    NAK_REMOTE_ACCESS = 0x62, "the peer does not allow this access to its memory";
    /// [`WcStatus::REM_OP_ERR`](crate::WcStatus::REM_OP_ERR).
    NAK_REMOTE_OPERATIONAL = 0x63, "the peer could not execute the request";

    /// [`MemoryError::InvalidKey`].
    LKEY_UNKNOWN = 0x101, "no memory region of this protection domain has the local key";
    /// [`MemoryError::OutOfBounds`].
    OUT_OF_BOUNDS = 0x102, "the range leaves its memory region or window";
    /// [`MemoryError::NotWritable`].
    NOT_WRITABLE = 0x103, "the memory region does not allow local writes";
    /// [`MemoryError::InvalidRemoteKey`].
    RKEY_UNKNOWN = 0x104, "no region or window that this queue pair's peer may use has the remote key";
    /// [`MemoryError::RemoteAccessDenied`].
    RIGHT_MISSING = 0x105, "the region or window does not allow the peer this access";
    /// [`MemoryError::Misaligned`].
    MISALIGNED = 0x106, "the address of the atomic operation is no multiple of 8";
    /// [`MemoryError::BindRefused`].
    BIND_REFUSED = 0x107, "a rule of binding a memory window is broken";
    /// [`MemoryError::NotInvalidatable`].
    NOT_INVALIDATABLE = 0x108, "the key is not that of a type 2 window, so that no work request takes it away";
    /// [`MemoryError::Unmapped`].
    UNMAPPED = 0x109, "the program no longer has memory at this address";

    /// A message did not fit into the receive buffers.
    MESSAGE_TOO_LONG = 0x201, "the message is longer than the receive buffers";
    /// First, middle and last packets in an order that no message has.
    OPCODE_SEQUENCE = 0x202, "the packet's opcode cannot follow the one before it";
    /// A packet whose payload does not fit its place in the message.
    PACKET_LENGTH = 0x203, "the packet's length is not what its opcode and the path MTU ask for";
    /// A reserved opcode, or one of another service.
    OPCODE_UNSUPPORTED = 0x204, "the opcode is none that this queue pair serves";
    /// [`QpAttr::access`](crate::QpAttr::access) does not have the right.
    ACCESS_NOT_ENABLED = 0x205, "the queue pair's access flags do not enable the operation";
    /// More than [`QpAttr::max_dest_rd_atomic`](crate::QpAttr::max_dest_rd_atomic).
    TOO_MANY_READS = 0x206, "the peer has more READs and atomics outstanding than max_dest_rd_atomic";
    /// UC with a shared receive queue: part of the message was lost, its buffer cannot go back.
    MESSAGE_INCOMPLETE = 0x207, "part of the message was lost";
    /// XRC: the packet names a shared receive queue that there is not.
    NO_SHARED_QUEUE = 0x208, "no such shared receive queue";
    /// The bytes of a WRITE are more or fewer than its first packet said.
    WRITE_LENGTH = 0x209, "the WRITE carries another number of bytes than it announced";

    /// No acknowledgement came, [`QpAttr::retry_count`](crate::QpAttr::retry_count) times.
    ACK_TIMEOUTS = 0x301, "the peer does not answer, and the retry count is used up";
    /// The peer reported gaps, [`QpAttr::retry_count`](crate::QpAttr::retry_count) times.
    SEQUENCE_NAKS = 0x302, "the peer reports lost packets, and the retry count is used up";
    /// The peer had no buffer, [`QpAttr::rnr_retry`](crate::QpAttr::rnr_retry) times.
    RNR_NAKS = 0x303, "the peer has no receive buffer, and the RNR retry count is used up";
    /// A response to a READ or atomic with another length than asked for.
    RESPONSE_LENGTH = 0x304, "the response has another length than was asked for";
    /// A response of another kind than the request, or in a wrong order.
    RESPONSE_UNEXPECTED = 0x305, "the response does not belong to the request";
    /// Responses were missing, [`QpAttr::retry_count`](crate::QpAttr::retry_count) times.
    RESPONSES_LOST = 0x306, "responses of the peer are lost again and again, and the retry count is used up";

    /// [`Rc::modify`](crate::Rc::modify) and its kin, to [`QpState::Error`](crate::QpState::Error).
    FLUSHED_BY_PROGRAM = 0x401, "flushed: the program put the queue pair into the error state";
    /// A request of the same queue pair failed before.
    FLUSHED_BY_SEND = 0x402, "flushed: an earlier request of the send queue failed";
    /// A message of the peer failed here.
    FLUSHED_BY_RECEIVE = 0x403, "flushed: a message or request of the peer failed at this side";
    /// Posted too late.
    FLUSHED_AT_POST = 0x404, "flushed: the queue pair was in an error state when the request was posted";
    /// The device is gone.
    FLUSHED_BY_DEVICE = 0x405, "flushed: the device is gone or has failed";
    /// Fault injection.
    FLUSHED_BY_FAULT_RULE = 0x406, "flushed: a fault rule put the queue pair into the error state";
    /// IBA Vol. 1 ch. 11 "CQ overrun".
    FLUSHED_BY_OVERRUN = 0x407, "flushed: a completion queue of the queue pair had no room";
}

impl VendorError {
    /// The peer refused with this syndrome.
    #[must_use]
    pub const fn of_syndrome(syndrome: Syndrome) -> Self {
        Self(syndrome.to_bits() as u32)
    }
}

impl From<MemoryError> for VendorError {
    fn from(error: MemoryError) -> Self {
        match error {
            MemoryError::InvalidKey(_) => Self::LKEY_UNKNOWN,
            MemoryError::OutOfBounds { .. } => Self::OUT_OF_BOUNDS,
            MemoryError::NotWritable(_) => Self::NOT_WRITABLE,
            MemoryError::InvalidRemoteKey(_) => Self::RKEY_UNKNOWN,
            MemoryError::RemoteAccessDenied { .. } => Self::RIGHT_MISSING,
            MemoryError::Misaligned { .. } => Self::MISALIGNED,
            MemoryError::BindRefused(_) => Self::BIND_REFUSED,
            MemoryError::NotInvalidatable(_) => Self::NOT_INVALIDATABLE,
            MemoryError::Unmapped { .. } => Self::UNMAPPED,
        }
    }
}

impl fmt::Display for VendorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(sentence) = self.sentence() {
            return f.pad(sentence);
        }
        match u8::try_from(self.0).map(Syndrome::from_bits) {
            Ok(Syndrome::RnrNak(timer)) => not_ready(f, timer),
            Ok(Syndrome::Nak(code)) => refused(f, code),
            _ => write!(f, "vendor error {:#x}", self.0),
        }
    }
}

fn not_ready(f: &mut fmt::Formatter<'_>, timer: RnrTimer) -> fmt::Result {
    write!(f, "the peer has no receive buffer and asks to wait {timer}")
}

fn refused(f: &mut fmt::Formatter<'_>, code: NakCode) -> fmt::Result {
    write!(f, "the peer refused: {code}")
}

impl fmt::Debug for VendorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VendorError({:#x}: {self})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_code_and_every_sentence_is_used_once() {
        let codes: HashSet<u32> = VendorError::ALL.iter().map(|(error, _)| error.0).collect();
        let sentences: HashSet<String> = VendorError::ALL
            .iter()
            .map(|(error, _)| error.to_string())
            .collect();
        assert_eq!(codes.len(), VendorError::ALL.len());
        assert_eq!(sentences.len(), VendorError::ALL.len());
        assert!(VendorError::ALL.is_sorted_by_key(|(error, _)| error.0));
    }

    #[test]
    fn every_way_in_which_memory_fails_has_its_code() {
        use oarlock_wire::{LKey, RKey};

        use crate::memory::RemoteAccess;

        let (addr, len, rkey) = (0x1000, 8, RKey(1));
        let access = RemoteAccess::Write;
        let codes = [
            MemoryError::InvalidKey(LKey(1)),
            MemoryError::OutOfBounds { addr, len },
            MemoryError::NotWritable(LKey(1)),
            MemoryError::InvalidRemoteKey(rkey),
            MemoryError::RemoteAccessDenied { rkey, access },
            MemoryError::Misaligned { addr },
            MemoryError::BindRefused("so"),
            MemoryError::NotInvalidatable(rkey),
            MemoryError::Unmapped { addr, len },
        ]
        .map(|error| VendorError::from(error).0);
        let all: Vec<u32> = (0x101..0x10A).collect();
        assert_eq!(codes[..], all[..]);
    }

    #[test]
    fn the_codes_of_refusals_are_the_syndromes() {
        for (code, error) in [
            (NakCode::INVALID_REQUEST, VendorError::NAK_INVALID_REQUEST),
            (NakCode::REMOTE_ACCESS_ERROR, VendorError::NAK_REMOTE_ACCESS),
            (
                NakCode::REMOTE_OPERATIONAL_ERROR,
                VendorError::NAK_REMOTE_OPERATIONAL,
            ),
        ] {
            assert_eq!(VendorError::of_syndrome(Syndrome::Nak(code)), error);
        }
        let not_ready = VendorError::of_syndrome(Syndrome::RnrNak(RnrTimer::truncate(12)));
        assert!(not_ready.to_string().contains("640µs"), "{not_ready}");
        assert_eq!(VendorError(0x7777).to_string(), "vendor error 0x7777");
        assert_eq!(
            format!("{:?}", VendorError::UNMAPPED),
            "VendorError(0x109: the program no longer has memory at this address)"
        );
    }
}
