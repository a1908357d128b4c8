//! Why a call was refused, and how work requests fail.

use std::net::IpAddr;

use oarlock_device as device;
use oarlock_hostd as hostd;
use oarlock_transport::{AccessFlags, VendorError, WcStatus};
use oarlock_wire::Gid;

use crate::buffer::Buffers;

/// A call that was refused. Nothing has changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The host has no such device.
    #[error("no device with index {index}: this host has {devices}")]
    NoSuchDevice {
        /// What was asked for.
        index: u32,
        /// The devices there are, by index and name.
        devices: String,
    },
    /// The host service refused, or is gone.
    #[error("{}{}", prefix_of(.0), .0)]
    Host(#[source] Box<hostd::Error>),
    /// A buffer is longer than an element of a work request can say.
    #[error("buffer of {given} bytes in a work request, at most {max}")]
    BufferTooLong {
        /// Its length.
        given: usize,
        /// The limit.
        max: u32,
    },
    /// Peers cannot have a right to memory that is handed out as buffers.
    #[error(
        "buffers cannot have the rights {rights:?}: use RemoteMemory for what peers may access"
    )]
    RemoteRights {
        /// Those that were asked for.
        rights: AccessFlags,
    },
    /// Only a buffer that is a whole region, and its only piece, can be offered to peers.
    #[error("the buffer is not the only piece of its region")]
    SharedRegion,
    /// Only SENDs and WRITEs carry an immediate value.
    #[error("{operation} carries no immediate value")]
    NoImmediate {
        /// What was to be posted.
        operation: &'static str,
    },
    /// No address handle can be made so.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// The context has a channel of memory events already.
    #[error("the context has a memory channel already: there is one at a time")]
    MemoryChannelExists,
    /// Memory cannot be watched, or is not any more.
    #[error(transparent)]
    Memory(#[from] oarlock_memwatch::Error),
    /// The system refused.
    #[error("cannot {what}: {source}")]
    System {
        /// What was being done.
        what: &'static str,
        /// What the system said.
        source: std::io::Error,
    },
    /// The device refused.
    #[error(transparent)]
    Device(#[from] device::Error),
}

impl From<hostd::Error> for Error {
    fn from(error: hostd::Error) -> Self {
        // So that a refused request, which is not of the host's, is small.
        Self::Host(Box::new(error))
    }
}

impl Error {
    /// Whether the host service is gone, so that nothing will work on this context any more.
    pub fn is_device_fatal(&self) -> bool {
        match self {
            Self::Device(error) => matches!(error, device::Error::DeviceFatal),
            Self::Host(error) => error.is_gone(),
            _ => false,
        }
    }
}

/// Why there is no [`AddressHandle`](crate::AddressHandle).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AddressError {
    /// The device has no such port.
    #[error("port {given} does not exist, the device has port {port}")]
    NoSuchPort {
        /// What was given.
        given: u8,
        /// The only one there is.
        port: u8,
    },
    /// The device has fewer addresses.
    #[error("own address {index} does not exist, the device has {count}, counted from 0")]
    NoSuchIndex {
        /// What was given.
        index: u8,
        /// How many there are.
        count: usize,
    },
    /// One of the two ends is no address.
    #[error("an end of the path is unspecified")]
    Unspecified,
    /// An IPv4 address cannot reach an IPv6 address.
    #[error("{local} and {remote} are of different IP versions")]
    MixedVersions {
        /// The own address.
        local: Gid,
        /// The destination.
        remote: Gid,
    },
    /// A service level has 4 bits.
    #[error("service level {given} is above {max}")]
    ServiceLevel {
        /// What was given.
        given: u8,
        /// The limit.
        max: u8,
    },
    /// The device cannot put it into packets.
    #[error("{field} {given} cannot be sent: {reason}")]
    NotCarried {
        /// Which field.
        field: &'static str,
        /// What was given.
        given: u32,
        /// Why not.
        reason: &'static str,
    },
    /// A device sends by its own interface.
    #[error("the path leaves by interface {given}, the device is interface {device}")]
    OtherInterface {
        /// What the path says.
        given: u32,
        /// The device's interface.
        device: u32,
    },
    /// The completion is not that of a received datagram, or its first buffer does not hold the header.
    #[error("the completion has no header of a datagram in its first buffer")]
    NoHeader,
    /// The sender of a message to a group has an address that none of ours can reach.
    #[error("the device has no address from which {remote} can be reached")]
    NoOwnAddress {
        /// The sender.
        remote: IpAddr,
    },
}

fn prefix_of(error: &hostd::Error) -> &'static str {
    if error.is_gone() {
        "device fatal: "
    } else {
        ""
    }
}

/// A work request that was refused, with the buffers it came with.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct PostError {
    /// Why.
    #[source]
    pub error: Error,
    /// What was to be posted.
    pub buffers: Buffers,
}

impl From<PostError> for Error {
    /// Drops the buffers.
    fn from(refused: PostError) -> Self {
        refused.error
    }
}

/// A list of which one request was refused: see [`QueuePair::post_send_list`](crate::QueuePair::post_send_list),
/// [`post_recv_list`](crate::QueuePair::post_recv_list) and
/// [`Batch::complete`](crate::Batch::complete).
#[derive(Debug, thiserror::Error)]
#[error("request {index} of the list: {error}")]
pub struct ListError {
    /// Which one, counted from 0.
    pub index: usize,
    /// Why.
    #[source]
    pub error: Error,
    /// The buffers of the requests that were not posted, in order: those from `index` on, or of a batch all.
    pub buffers: Vec<Buffers>,
}

impl From<ListError> for Error {
    /// Drops the buffers.
    fn from(refused: ListError) -> Self {
        refused.error
    }
}

/// A work request that failed: see [`Completion::ok`](crate::Completion::ok).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("work request {wr_id} failed: {status} ({vendor_err})")]
pub struct WorkError {
    /// From the work request.
    pub wr_id: u64,
    /// How it failed.
    pub status: WcStatus,
    /// Which rule failed.
    pub vendor_err: VendorError,
}
