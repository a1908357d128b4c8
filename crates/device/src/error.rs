//! Why the device refused a call.

use std::error::Error as StdError;
use std::io;
use std::net::IpAddr;

use oarlock_transport::QpType;
use oarlock_wire::{Gid, Mtu, Qpn};

/// A call that was refused. Nothing has changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The caller asked for a region of no bytes.
    #[error("a memory region needs at least one byte")]
    ZeroLength,
    /// The range wraps around the end of the address space.
    #[error("range of {len} bytes at {addr:#x} leaves the address space")]
    RangeOverflow {
        /// Start of the range.
        addr: u64,
        /// Its length.
        len: usize,
    },
    /// The allocator refused.
    #[error("no memory for a region of {len} bytes")]
    OutOfMemory {
        /// What was asked for.
        len: usize,
    },
    /// Part of the range cannot be accessed as the region wants to.
    #[error("range of {len} bytes at {addr:#x} is not mapped, or not with the access asked for")]
    NotMapped {
        /// Start of the range.
        addr: u64,
        /// Its length.
        len: usize,
    },
    /// The memory is watched, and was unmapped, moved or discarded since it was registered: it may be somebody else's by now.
    #[error("range of {len} bytes at {addr:#x} is not the memory that was registered any more")]
    Invalidated {
        /// Start of the range.
        addr: u64,
        /// Its length.
        len: usize,
    },
    /// The region's memory is watched: other memory needs a watch of its own.
    #[error("the region's memory is watched: register other memory with a watch of its own")]
    Watched,
    /// The system does not let a process copy to its own memory by system call.
    #[error(
        "this system forbids process_vm_readv on the own process ({source}): only memory allocated by the library can be registered"
    )]
    ForeignMemoryForbidden {
        /// What the system said.
        source: io::Error,
    },
    /// A limit of the device.
    #[error("{max} memory regions are registered, which is the limit")]
    TooManyRegions {
        /// The limit.
        max: usize,
    },
    /// A limit of the device.
    #[error("{max} memory windows exist, which is the limit")]
    TooManyWindows {
        /// The limit.
        max: usize,
    },
    /// An access right of memory that this device does not know, or cannot give.
    #[error("access flag {flag} ({bits:#x}) is not supported: {reason}")]
    UnsupportedAccess {
        /// Its name in `enum ibv_access_flags`.
        flag: &'static str,
        /// The bits.
        bits: u32,
        /// Why not.
        reason: &'static str,
    },
    /// Peers may write only what the device may write.
    #[error("{flag} needs LOCAL_WRITE too")]
    LocalWriteMissing {
        /// The right that was asked for.
        flag: &'static str,
    },
    /// The whole address space cannot be one region of this device.
    #[error("implicit on-demand registration of the whole address space is not supported")]
    ImplicitOnDemand,
    /// The region cannot go while windows are bound to it.
    #[error("{count} memory windows are bound to the region")]
    WindowsBound {
        /// How many.
        count: usize,
    },
    /// Memory that the library allocated stays where it is.
    #[error("the memory of the region is the library's: it cannot be registered at another place")]
    OwnMemory,
    /// A copy leaves its region.
    #[error("{len} bytes at offset {offset} leave the region of {region_len} bytes")]
    OutsideRegion {
        /// First byte.
        offset: u64,
        /// How many bytes.
        len: usize,
        /// Length of the region.
        region_len: u64,
    },
    /// The memory of a word is not aligned to its size.
    #[error("the word at offset {offset} is not on a multiple of 8 bytes of memory")]
    Misaligned {
        /// Where, counted from the start of the region.
        offset: u64,
    },
    /// A limit of the device.
    #[error("{max} queue pairs exist, which is the limit")]
    TooManyQueuePairs {
        /// The limit.
        max: usize,
    },
    /// A limit of the device.
    #[error("{max} shared receive queues exist, which is the limit")]
    TooManySrqs {
        /// The limit.
        max: u32,
    },
    /// A limit of the device.
    #[error("{max} XRC domains are open, which is the limit")]
    TooManyXrcDomains {
        /// The limit.
        max: u32,
    },
    /// A parameter beyond the device's limits.
    #[error("{parameter} is {given}, must be {min}..={max}")]
    OutOfRange {
        /// Name of the parameter.
        parameter: &'static str,
        /// What was given.
        given: u64,
        /// Smallest value allowed.
        min: u64,
        /// Largest value allowed.
        max: u64,
    },
    /// The path MTU does not fit the interface.
    #[error("path MTU {requested} is more than the interface carries ({largest})")]
    MtuTooLarge {
        /// What was given.
        requested: Mtu,
        /// The largest that fits.
        largest: Mtu,
    },
    /// Two objects of different contexts were combined.
    #[error("{object} belongs to another context")]
    OtherContext {
        /// Which object does not fit the protection domain.
        object: &'static str,
    },
    /// More completions than the completion queue holds; some are lost.
    #[error("completion queue overrun: more than {capacity} completions were waiting")]
    CqOverrun {
        /// Size of the queue.
        capacity: u32,
    },
    /// Waiting needs a completion channel.
    #[error("the completion queue has no completion channel")]
    NoChannel,
    /// A non-blocking descriptor has nothing to give.
    #[error("no event is waiting and the descriptor is non-blocking")]
    WouldBlock,
    /// The host service has died; nothing can be sent or received.
    #[error("device fatal: the host service is gone")]
    DeviceFatal,
    /// This process is a forked child of the one that the queue pair belongs to.
    #[error("the queue pair belongs to the parent of this forked process: open a host of its own")]
    Forked,
    /// No slot of the port could be had.
    #[error("no slot of the RoCEv2 port: {source}")]
    NoPort {
        /// What the host said.
        source: Box<dyn StdError + Send + Sync>,
    },
    /// The device has no such queue pairs.
    #[error("queue pairs of type {0} are not supported")]
    UnsupportedQpType(QpType),
    /// A queue pair of this type cannot be made without this.
    #[error("{qp_type} queue pairs need {what}")]
    Needs {
        /// What the queue pair is.
        qp_type: QpType,
        /// What is missing.
        what: &'static str,
    },
    /// A queue pair of this type has no use for this.
    #[error("{qp_type} queue pairs take no {what}")]
    DoesNotTake {
        /// What the queue pair is.
        qp_type: QpType,
        /// What is too much.
        what: &'static str,
    },
    /// Several processes would share the domain, which this device cannot do.
    #[error(
        "an XRC domain of a file is shared between processes: here a domain belongs to the process that opens it (no file)"
    )]
    XrcDomainOfFile,
    /// The domain has no such target.
    #[error("the XRC domain has no target {0}")]
    NoSuchXrcTarget(Qpn),
    /// The window is of the other type.
    #[error(
        "windows of type 2 are bound by a send-queue request of the program's own key (SendOp::BindWindow)"
    )]
    NotTypeOneWindow,
    /// The call is for queue pairs of another transport service.
    #[error("{call} needs a UD queue pair, this one is {qp_type}")]
    NotUd {
        /// The call.
        call: &'static str,
        /// What the queue pair is.
        qp_type: QpType,
    },
    /// The address is not that of a multicast group.
    #[error("{0} is not the address of a multicast group")]
    NotMulticast(Gid),
    /// The queue pair is not attached to the group.
    #[error("the queue pair is not attached to group {0}")]
    NotAttached(Gid),
    /// The system lets one process, or rather its slot of the port, into so many groups only.
    #[error(
        "cannot join group {group}: this process is in as many groups as the system allows (net.ipv4.igmp_max_memberships, for IPv6 net.core.optmem_max)"
    )]
    TooManyGroups {
        /// The group.
        group: IpAddr,
    },
    /// The system refused to make the process a member of a group.
    #[error("cannot join group {group}: {source}")]
    CannotJoin {
        /// The group.
        group: IpAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The queue pair refused the call.
    #[error(transparent)]
    QueuePair(#[from] oarlock_transport::Error),
    /// The system refused.
    #[error("cannot {what}: {source}")]
    System {
        /// What was being done.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

impl Error {
    /// For `map_err` on a system call.
    pub(crate) fn system<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> Self {
        move |source| Self::System {
            what,
            source: source.into(),
        }
    }
}
