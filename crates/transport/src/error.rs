//! What the caller did wrong.

use oarlock_wire::{Gid, Mtu, Qpn};

use crate::attr::{AccessFlags, AttrMask, QpState, QpType};

/// A call that was refused. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The call is not allowed in this state.
    #[error("{call} is not allowed in state {state}")]
    WrongState {
        /// The call.
        call: &'static str,
        /// The state of the queue pair.
        state: QpState,
    },
    /// `current_state` was given and is not the state of the queue pair.
    #[error("queue pair is in state {actual}, not {given} as the caller says")]
    CurrentStateMismatch {
        /// What the caller gave.
        given: QpState,
        /// The state of the queue pair.
        actual: QpState,
    },
    /// No such transition exists.
    #[error("no transition from {from} to {to}")]
    InvalidTransition {
        /// Present state.
        from: QpState,
        /// Wanted state.
        to: QpState,
    },
    /// The transition needs more attributes.
    #[error("{from} to {to} needs the attributes {missing}")]
    AttributeMissing {
        /// Present state.
        from: QpState,
        /// Wanted state.
        to: QpState,
        /// What was not given.
        missing: AttrMask,
    },
    /// The transition does not take these attributes.
    #[error("{from} to {to} does not take the attributes {extra}")]
    AttributeNotAllowed {
        /// Present state.
        from: QpState,
        /// Wanted state.
        to: QpState,
        /// What is too much.
        extra: AttrMask,
    },
    /// The specification has the attribute, this device does not.
    #[error("attribute {attribute} is not supported: {reason}")]
    AttributeNotSupported {
        /// The attribute.
        attribute: AttrMask,
        /// Why not.
        reason: &'static str,
    },
    /// Requests that were begun before state Sqd are not done; until then only Reset and Error can be reached.
    #[error("no transition from SQD to {to}: the send queue still drains")]
    StillDraining {
        /// Wanted state.
        to: QpState,
    },
    /// An attribute has a value below its range.
    #[error("{attribute} is {given}, at least {min}")]
    AttributeTooSmall {
        /// Name of the attribute.
        attribute: &'static str,
        /// What was given.
        given: u32,
        /// Smallest value allowed.
        min: u32,
    },
    /// An attribute has a value that it cannot have.
    #[error("{attribute} is {given}, at most {max}")]
    AttributeTooLarge {
        /// Name of the attribute.
        attribute: &'static str,
        /// What was given.
        given: u32,
        /// Largest value allowed.
        max: u32,
    },
    /// The path MTU is a reserved code.
    #[error("path MTU code {0} is reserved")]
    InvalidMtu(u8),
    /// The port carries no such packets.
    #[error("path MTU {given} is more than the port's {port}")]
    PathMtuTooLarge {
        /// What was given.
        given: Mtu,
        /// What the port carries.
        port: Mtu,
    },
    /// Rights of memory that mean nothing for a queue pair.
    #[error("a queue pair cannot grant {flags}")]
    QpAccessNotSupported {
        /// Those of the flags given.
        flags: AccessFlags,
    },
    /// As many requests as the queue holds are outstanding.
    #[error("{queue} queue is full: {depth} requests outstanding")]
    QueueFull {
        /// "send", "receive" or "shared receive".
        queue: &'static str,
        /// Depth of the queue.
        depth: u32,
    },
    /// More elements than the queue was created for.
    #[error("{given} scatter/gather elements, at most {max}")]
    TooManySges {
        /// What was given.
        given: usize,
        /// The limit.
        max: u32,
    },
    /// More inline data than the queue was created for.
    #[error("{given} bytes of inline data, at most {max}")]
    InlineTooLong {
        /// What was given.
        given: usize,
        /// The limit.
        max: u32,
    },
    /// Longer than a message may be.
    #[error("message of {given} bytes, at most {max}")]
    MessageTooLong {
        /// What was given.
        given: u64,
        /// The limit.
        max: u32,
    },
    /// A datagram is one packet, so it cannot be longer than one.
    #[error("datagram of {given} bytes does not fit the path MTU of {mtu}")]
    DatagramTooLong {
        /// What was given.
        given: u64,
        /// What the port carries.
        mtu: Mtu,
    },
    /// This kind of queue pair has no such operation.
    #[error("{operation} is no operation of {qp_type} queue pairs")]
    OperationNotSupported {
        /// Name of the operation.
        operation: &'static str,
        /// What the queue pair is.
        qp_type: QpType,
    },
    /// A flag of the work request that means nothing with this operation.
    #[error("{flag} means nothing with {operation} on a {qp_type} queue pair")]
    FlagNotAllowed {
        /// "fence" or "solicited".
        flag: &'static str,
        /// Name of the operation.
        operation: &'static str,
        /// What the queue pair is.
        qp_type: QpType,
    },
    /// Inline data are copied out of the program; this operation has no data, or brings some in.
    #[error("{operation} takes no inline data")]
    InlineNotAllowed {
        /// Name of the operation.
        operation: &'static str,
    },
    /// The operation moves no data.
    #[error("{operation} moves no data, but {given} scatter/gather elements are given")]
    DataNotAllowed {
        /// Name of the operation.
        operation: &'static str,
        /// How many elements.
        given: usize,
    },
    /// The result of an atomic operation is 8 bytes.
    #[error("{operation} gives 8 bytes, the scatter/gather list takes {given}")]
    AtomicLength {
        /// Name of the operation.
        operation: &'static str,
        /// Sum of the lengths of the list.
        given: u64,
    },
    /// An atomic operation works on an aligned word.
    #[error("{operation} at {addr:#x}, which is no multiple of 8")]
    AtomicMisaligned {
        /// Name of the operation.
        operation: &'static str,
        /// The remote address.
        addr: u64,
    },
    /// The peer's memory would end behind the last address.
    #[error("{operation} of {len} bytes at {addr:#x} passes the end of the address space")]
    RemoteRange {
        /// Name of the operation.
        operation: &'static str,
        /// The remote address.
        addr: u64,
        /// Length of the operation.
        len: u64,
    },
    /// The queue pair may have no READ or atomic operation outstanding.
    #[error("{operation} needs max_rd_atomic above 0")]
    NoReadsAllowed {
        /// Name of the operation.
        operation: &'static str,
    },
    /// A send on a UD queue pair has to say where to.
    #[error("a send on a UD queue pair needs a destination")]
    NoDestination,
    /// The peer of a connected queue pair is fixed.
    #[error("a send on a connected queue pair takes no destination of its own")]
    UnexpectedDestination,
    /// A request of an XRC initiator has to name the peer's queue.
    #[error("{operation} on an XRC queue pair needs the number of a shared receive queue")]
    NoSharedQueueNumber {
        /// Name of the operation.
        operation: &'static str,
    },
    /// Only what an XRC initiator sends names a queue of the peer.
    #[error("{operation} on a {qp_type} queue pair takes no number of a shared receive queue")]
    UnexpectedSharedQueueNumber {
        /// Name of the operation.
        operation: &'static str,
        /// What the queue pair is.
        qp_type: QpType,
    },
    /// The queue pair has no receive queue of its own.
    #[error("the queue pair has no receive queue: {reason}")]
    NoReceiveQueue {
        /// Where its receive buffers come from.
        reason: &'static str,
    },
    /// A multicast group is reached at queue pair 0xFFFFFF, and nothing else is.
    #[error(
        "destination {remote} with queue pair {qpn}: 0xffffff goes with multicast groups, and only with them"
    )]
    MulticastQpn {
        /// Address of the destination.
        remote: Gid,
        /// Queue pair of the destination.
        qpn: Qpn,
    },
    /// A queue cannot become smaller than what it holds.
    #[error("{queue} queue cannot be resized to {given}: {outstanding} requests outstanding")]
    QueueInUse {
        /// "shared receive".
        queue: &'static str,
        /// The depth wanted.
        given: u32,
        /// What it holds.
        outstanding: u32,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every sentence names what was given and what would have been right.
    #[test]
    fn sentences_have_the_values() {
        let (operation, qp_type) = ("RDMA READ", QpType::Uc);
        let (from, to) = (QpState::Init, QpState::Rtr);
        let cases = [
            (
                Error::WrongState {
                    call: "post_send",
                    state: from,
                },
                "post_send is not allowed in state INIT",
            ),
            (
                Error::CurrentStateMismatch {
                    given: to,
                    actual: from,
                },
                "queue pair is in state INIT, not RTR as the caller says",
            ),
            (
                Error::InvalidTransition { from, to },
                "no transition from INIT to RTR",
            ),
            (
                Error::AttributeMissing {
                    from,
                    to,
                    missing: AttrMask::AV | AttrMask::RQ_PSN,
                },
                "INIT to RTR needs the attributes AV | RQ_PSN",
            ),
            (
                Error::AttributeNotAllowed {
                    from,
                    to,
                    extra: AttrMask::SQ_PSN,
                },
                "INIT to RTR does not take the attributes SQ_PSN",
            ),
            (
                Error::AttributeNotSupported {
                    attribute: AttrMask::CAP,
                    reason: "queues are fixed",
                },
                "attribute CAP is not supported: queues are fixed",
            ),
            (
                Error::StillDraining { to: QpState::Rts },
                "no transition from SQD to RTS: the send queue still drains",
            ),
            (
                Error::AttributeTooSmall {
                    attribute: "port_num",
                    given: 0,
                    min: 1,
                },
                "port_num is 0, at least 1",
            ),
            (
                Error::PathMtuTooLarge {
                    given: Mtu::MTU_4096,
                    port: Mtu::MTU_1024,
                },
                "path MTU 4096 is more than the port's 1024",
            ),
            (
                Error::QpAccessNotSupported {
                    flags: AccessFlags::ZERO_BASED,
                },
                "a queue pair cannot grant ZERO_BASED",
            ),
            (
                Error::OperationNotSupported { operation, qp_type },
                "RDMA READ is no operation of UC queue pairs",
            ),
            (
                Error::FlagNotAllowed {
                    flag: "fence",
                    operation,
                    qp_type,
                },
                "fence means nothing with RDMA READ on a UC queue pair",
            ),
            (
                Error::InlineNotAllowed { operation },
                "RDMA READ takes no inline data",
            ),
            (
                Error::DataNotAllowed {
                    operation: "bind window",
                    given: 2,
                },
                "bind window moves no data, but 2 scatter/gather elements are given",
            ),
            (
                Error::AtomicLength {
                    operation: "fetch-and-add",
                    given: 4,
                },
                "fetch-and-add gives 8 bytes, the scatter/gather list takes 4",
            ),
            (
                Error::RemoteRange {
                    operation,
                    addr: u64::MAX,
                    len: 2,
                },
                "RDMA READ of 2 bytes at 0xffffffffffffffff passes the end of the address space",
            ),
            (
                Error::NoReadsAllowed { operation },
                "RDMA READ needs max_rd_atomic above 0",
            ),
            (
                Error::NoSharedQueueNumber { operation },
                "RDMA READ on an XRC queue pair needs the number of a shared receive queue",
            ),
            (
                Error::QueueInUse {
                    queue: "shared receive",
                    given: 3,
                    outstanding: 4,
                },
                "shared receive queue cannot be resized to 3: 4 requests outstanding",
            ),
        ];
        for (error, sentence) in cases {
            assert_eq!(error.to_string(), sentence);
        }
    }
}
