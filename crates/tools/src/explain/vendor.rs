//! The vendor field of a failed completion: which rule was broken.

use super::table::{Entry, Table};

/// The codes of this device. Below 0x100 they are syndromes of the peer's refusal, so that those of other devices read alike.
pub(super) const TABLE: Table = Table {
    kind: "vendor",
    prefix: "VENDOR_ERROR_",
    entries: &[
        entry(0, "NONE", "the request did not fail", "nothing is wrong"),
        entry(
            0x61,
            "NAK_INVALID_REQUEST",
            "the peer refused the request as invalid: NAK code 1",
            "enable the operation on the peer's queue pair, post larger receives there, keep to its max_dest_rd_atomic; its own completion or event says which",
        ),
        entry(
            0x62,
            "NAK_REMOTE_ACCESS",
            "the peer does not allow this access to its memory: NAK code 2",
            "compare key, address, length and rights with what the peer registered; a key is dead after deregistration or invalidation",
        ),
        entry(
            0x63,
            "NAK_REMOTE_OPERATIONAL",
            "the peer could not execute the request: NAK code 3",
            "look at the peer: memory that its program no longer has, a buffer that its device may not write",
        ),
        entry(
            0x101,
            "LKEY_UNKNOWN",
            "no memory region of this protection domain has the local key",
            "use the key of a region that lives, of the queue pair's (of a shared receive queue: the queue's) protection domain",
        ),
        entry(
            0x102,
            "OUT_OF_BOUNDS",
            "the range leaves its memory region or window",
            "compare address and length with the region's; a zero-based region counts from 0",
        ),
        entry(
            0x103,
            "NOT_WRITABLE",
            "the memory region does not allow local writes",
            "register what is received or read into with local write",
        ),
        entry(
            0x104,
            "RKEY_UNKNOWN",
            "no region or window that this queue pair's peer may use has the remote key",
            "the key was never given, is invalidated or deregistered, of another protection domain, or of a window bound to another queue pair: exchange keys anew",
        ),
        entry(
            0x105,
            "RIGHT_MISSING",
            "the region or window does not allow the peer this access",
            "register, or bind, with the remote right for the operation: write, read or atomic",
        ),
        entry(
            0x106,
            "MISALIGNED",
            "the address of the atomic operation is no multiple of 8",
            "align what atomics work on",
        ),
        entry(
            0x107,
            "BIND_REFUSED",
            "a rule of binding a memory window is broken",
            "the region must allow windows, and local writes if the window allows remote writes or atomics; window, region and queue pair must be of one protection domain",
        ),
        entry(
            0x108,
            "NOT_INVALIDATABLE",
            "the key is not that of a type 2 window, so that no work request takes it away",
            "deregister regions, deallocate or bind windows of type 1 anew; only keys of type 2 windows are invalidated by a work request",
        ),
        entry(
            0x109,
            "UNMAPPED",
            "the program no longer has memory at this address",
            "keep registered memory mapped until it is deregistered and what uses it has completed",
        ),
        entry(
            0x201,
            "MESSAGE_TOO_LONG",
            "the message is longer than the receive buffers",
            "post receives as large as the largest message",
        ),
        entry(
            0x202,
            "OPCODE_SEQUENCE",
            "the packet's opcode cannot follow the one before it",
            "the peer's stack is at fault: take a capture",
        ),
        entry(
            0x203,
            "PACKET_LENGTH",
            "the packet's length is not what its opcode and the path MTU ask for",
            "give both queue pairs the same path MTU",
        ),
        entry(
            0x204,
            "OPCODE_UNSUPPORTED",
            "the opcode is none that this queue pair serves",
            "give both queue pairs the same type; an operation of a later specification is not served",
        ),
        entry(
            0x205,
            "ACCESS_NOT_ENABLED",
            "the queue pair's access flags do not enable the operation",
            "set the remote right in the attributes of this queue pair, beside the region's",
        ),
        entry(
            0x206,
            "TOO_MANY_READS",
            "the peer has more READs and atomics outstanding than max_dest_rd_atomic",
            "the peer's max_rd_atomic must be at most this side's max_dest_rd_atomic: let the connection manager agree on it",
        ),
        entry(
            0x207,
            "MESSAGE_INCOMPLETE",
            "part of the message was lost",
            "an unreliable service loses messages; the buffer of a shared receive queue comes back so",
        ),
        entry(
            0x208,
            "NO_SHARED_QUEUE",
            "no such shared receive queue",
            "the number that the peer sends to must be that of an XRC shared receive queue of the target's domain",
        ),
        entry(
            0x209,
            "WRITE_LENGTH",
            "the WRITE carries another number of bytes than it announced",
            "the peer's stack is at fault: take a capture",
        ),
        entry(
            0x301,
            "ACK_TIMEOUTS",
            "the peer does not answer, and the retry count is used up",
            "look whether the peer's process and queue pair live and UDP port 4791 passes both ways; raise timeout or retry_count",
        ),
        entry(
            0x302,
            "SEQUENCE_NAKS",
            "the peer reports lost packets, and the retry count is used up",
            "find where packets are lost: the drop counters of both sides, and those of the interface",
        ),
        entry(
            0x303,
            "RNR_NAKS",
            "the peer has no receive buffer, and the RNR retry count is used up",
            "post receives before the peer sends, or set rnr_retry_count to 7, which is for ever",
        ),
        entry(
            0x304,
            "RESPONSE_LENGTH",
            "the response has another length than was asked for",
            "the peer's stack is at fault, or the path MTUs differ: take a capture",
        ),
        entry(
            0x305,
            "RESPONSE_UNEXPECTED",
            "the response does not belong to the request",
            "the peer's stack is at fault: take a capture",
        ),
        entry(
            0x306,
            "RESPONSES_LOST",
            "responses of the peer are lost again and again, and the retry count is used up",
            "find where packets are lost, this side's receive buffer first: the drop counters say",
        ),
        entry(
            0x401,
            "FLUSHED_BY_PROGRAM",
            "flushed: the program put the queue pair into the error state",
            "after a disconnect this is the normal end of what was posted",
        ),
        entry(
            0x402,
            "FLUSHED_BY_SEND",
            "flushed: an earlier request of the send queue failed",
            "look at the first completion of the queue pair that is not flushed",
        ),
        entry(
            0x403,
            "FLUSHED_BY_RECEIVE",
            "flushed: a message or request of the peer failed at this side",
            "look at the first receive that is not flushed, and at the asynchronous events: an access error of the peer has no completion here",
        ),
        entry(
            0x404,
            "FLUSHED_AT_POST",
            "flushed: the queue pair was in an error state when the request was posted",
            "bring the queue pair through reset to RTS again, or connect anew",
        ),
        entry(
            0x405,
            "FLUSHED_BY_DEVICE",
            "flushed: the device is gone or has failed",
            "open the device anew when it is back; the host service may have ended",
        ),
        entry(
            0x406,
            "FLUSHED_BY_FAULT_RULE",
            "flushed: a fault rule put the queue pair into the error state",
            "a rule of OARLOCK_FAULT asked for it",
        ),
        entry(
            0x407,
            "FLUSHED_BY_OVERRUN",
            "flushed: a completion queue of the queue pair had no room",
            "make completion queues as large as the requests that may be outstanding on all their queue pairs, or poll more often",
        ),
    ],
};

const fn entry(
    code: i64,
    name: &'static str,
    meaning: &'static str,
    remedy: &'static str,
) -> Entry {
    Entry {
        code,
        name,
        aliases: &[],
        meaning,
        remedy,
        source: if code < 0x100 {
            "IBA Vol. 1 ch. 9, AETH syndrome"
        } else {
            "oarlock's own code: crates/transport/src/vendor.rs"
        },
    }
}
