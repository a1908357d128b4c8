//! What the caller did wrong.

use oarlock_wire::{Gid, Mtu, Qpn};

use crate::attr::{AttrMask, QpState, QpType};

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
    /// The state exists for this type of queue pair but is not implemented.
    #[error("state {0} is not supported")]
    StateNotSupported(QpState),
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
    /// As many requests as the queue holds are outstanding.
    #[error("{queue} queue is full: {depth} requests outstanding")]
    QueueFull {
        /// "send" or "receive".
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
    /// A send on a UD queue pair has to say where to.
    #[error("a send on a UD queue pair needs a destination")]
    NoDestination,
    /// The peer of a connected queue pair is fixed.
    #[error("a send on a connected queue pair takes no destination of its own")]
    UnexpectedDestination,
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
}
