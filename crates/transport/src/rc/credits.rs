//! End-to-end flow control: how many messages the receiver has buffers for (IBA Vol. 1 ch. 9 "End-to-end (message level) flow
//! control").
//!
//! A responder counts the messages it has completed (MSN) and says with each acknowledgement how many receive buffers it has;
//! a requester numbers its messages in the same way (SSN) and may send those up to MSN + credits. Messages that take no
//! buffer (READ, WRITE, atomics) are numbered, and never wait. Without credit **one packet** may be on its way, as a probe: its
//! answer says more, or that the receiver is not ready. A requester that has heard nothing yet is not limited.

use oarlock_wire::Syndrome;

use super::Rc;
use super::requester::Way;
use crate::queue::SendWqe;
use crate::work::SendOp;

/// Message numbers have 24 bits.
pub(super) const MESSAGE_MASK: u32 = 0xFF_FFFF;
const HALF: u32 = 1 << 23;

/// Credits by code: 0, 1, 2, 3, 4, 6, 8, 12, 16, 24, ... 32768. The last code but one; 31 says that there is no limit.
const MAX_CODE: u8 = Syndrome::NO_CREDITS - 1;

/// The credits that a code stands for; `None`: no limit.
pub(super) const fn decode(code: u8) -> Option<u32> {
    match code {
        0 | 1 => Some(code as u32),
        2..=MAX_CODE if code.is_multiple_of(2) => Some(1 << (code / 2)),
        2..=MAX_CODE => Some(3 << ((code - 3) / 2)),
        _ => None,
    }
}

/// The largest code that stands for no more than `count`.
pub(super) fn encode(count: u32) -> u8 {
    let mut codes = (0..=MAX_CODE).rev();
    let fits = |code: &u8| decode(*code).is_some_and(|credits| credits <= count);
    codes.find(fits).unwrap_or_default()
}

/// Whether message number `ssn` lies beyond `limit`.
const fn is_beyond(ssn: u32, limit: u32) -> bool {
    let distance = ssn.wrapping_sub(limit) & MESSAGE_MASK;
    distance != 0 && distance < HALF
}

const fn takes_a_receive(op: &SendOp) -> bool {
    matches!(
        op,
        SendOp::Send
            | SendOp::SendWithImm(_)
            | SendOp::SendWithInvalidate(_)
            | SendOp::WriteWithImm(..)
    )
}

impl Rc {
    /// The peer has completed `msn` messages and says so much about its buffers.
    pub(super) const fn take_credits(&mut self, msn: u32, code: u8) {
        self.requester.message_limit = match decode(code) {
            Some(credits) => Some((msn + credits) & MESSAGE_MASK),
            None => None,
        };
    }

    /// Whether a packet of the entry goes beyond what the peer has buffers for.
    pub(super) const fn lacks_credit(&self, wqe: &SendWqe<Way>) -> bool {
        match self.requester.message_limit {
            Some(limit) => takes_a_receive(&wqe.op) && is_beyond(wqe.way.ssn, limit),
            None => false,
        }
    }

    /// What an acknowledgement that is made now says.
    pub(super) fn ack_syndrome(&self) -> Syndrome {
        if !self.config.flow_control || self.config.shared_receives {
            return Syndrome::ACK;
        }
        // The buffer of a message in progress counts: the message does not count as completed yet.
        Syndrome::Ack {
            credits: encode(self.rq.len()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// IBA Vol. 1 ch. 9, the table of encoded credit counts.
    #[test]
    fn codes_are_those_of_the_table() {
        let table = [
            0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024,
            1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768,
        ];
        for (code, credits) in (0..).zip(table) {
            assert_eq!(decode(code), Some(credits));
            assert_eq!(encode(credits), code);
            assert_eq!(
                encode(credits + 1),
                code + u8::from(credits < 4 && code < 4)
            );
        }
        assert_eq!(decode(31), None);
        assert_eq!(encode(u32::MAX), 30);
        assert_eq!(encode(5), 4);
    }

    #[test]
    fn messages_are_compared_across_the_wrap() {
        assert!(!is_beyond(5, 5) && is_beyond(6, 5) && !is_beyond(4, 5));
        assert!(is_beyond(0, MESSAGE_MASK) && !is_beyond(MESSAGE_MASK, 0));
    }
}
