//! Why a request fails: the error number that the kernel gives, and the rule that was broken.

use oarlock_cma::{Errno, State};
use oarlock_wire::PortSpace;

use crate::abi::{Command, UnusableAddress};

/// Why a request was refused. Nothing has changed then.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    // The request is not one.
    /// No such file: it was closed, or never opened.
    #[error("the event channel is closed")]
    UnknownFile,
    /// Shorter than a header.
    #[error("a request of {given} bytes is shorter than its header of 8")]
    NoHeader {
        /// How many bytes there are.
        given: usize,
    },
    /// A number that is no command.
    #[error("there is no command {number}; the last one is 24")]
    UnknownCommand {
        /// The number.
        number: u32,
    },
    /// The header promises more than was written.
    #[error("{command}: the header says that {says} bytes follow, but there are {given}")]
    BodyLength {
        /// The command.
        command: Command,
        /// What the header says.
        says: usize,
        /// How many bytes follow it.
        given: usize,
    },
    /// Less than the structure of the command.
    #[error("{command}: {given} bytes where the structure has {needed}")]
    ShortRequest {
        /// The command.
        command: Command,
        /// How many bytes there are.
        given: usize,
        /// The least that is accepted.
        needed: usize,
    },
    /// Fewer bytes were written than the kernel would copy.
    #[error("{command}: the request ends after {given} bytes of a structure of {needed}")]
    RequestEnds {
        /// The command.
        command: Command,
        /// How many bytes there are.
        given: usize,
        /// The structure's size.
        needed: usize,
    },
    /// No room for the answer.
    #[error("{command}: room for an answer of {given} bytes, which has {needed}")]
    NoRoom {
        /// The command.
        command: Command,
        /// The room.
        given: usize,
        /// The least that is needed.
        needed: usize,
    },
    /// A reserved field is in use.
    #[error("{command}: the reserved field holds {value}; it must be 0")]
    Reserved {
        /// The command.
        command: Command,
        /// Its value.
        value: u32,
    },
    /// An address size that is not the family's.
    #[error("{command}: the {which} address says {given} bytes, its family {family} has {wanted}")]
    AddressSize {
        /// The command.
        command: Command,
        /// Source or destination.
        which: &'static str,
        /// The size given.
        given: u16,
        /// The family.
        family: u16,
        /// The family's size; 0 for an unknown one.
        wanted: u16,
    },
    /// An address that cannot be used.
    #[error("{command}: {reason}")]
    Address {
        /// The command.
        command: Command,
        /// Why.
        reason: UnusableAddress,
    },

    // The identifier.
    /// No identifier has this number.
    #[error("{command}: no identifier has the number {number}")]
    UnknownId {
        /// The command.
        command: Command,
        /// The number.
        number: u32,
    },
    /// The identifier is on another channel.
    #[error("{command}: identifier {number} is on another event channel")]
    OtherFile {
        /// The command.
        command: Command,
        /// The number.
        number: u32,
    },
    /// The identifier's device has gone.
    #[error("{command}: the device of identifier {number} has gone; only destroying it is left")]
    DeviceRemoved {
        /// The command.
        command: Command,
        /// The number.
        number: u32,
    },
    /// The identifier has no device yet.
    #[error(
        "{command}: identifier {number} is in state {state} and has no device yet; resolve an address first"
    )]
    NoDevice {
        /// The command.
        command: Command,
        /// The number.
        number: u32,
        /// Its state.
        state: State,
    },
    /// A queue pair's attributes for a listener.
    #[error("INIT_QP_ATTR: identifier {number} listens, which no queue pair does")]
    ListenerHasNoQueuePair {
        /// The number.
        number: u32,
    },
    /// MIGRATE_ID names no channel of the caller.
    #[error("MIGRATE_ID: the old event channel is not one of this program's")]
    UnknownOldChannel,

    // Values.
    /// A number that is no port space.
    #[error("there is no port space {:#06x}", .0.0)]
    UnknownPortSpace(PortSpace),
    /// CONNECT without parameters.
    #[error("CONNECT: the parameters are marked as not valid")]
    NoParameters,
    /// A reject reason that programs may not give.
    #[error(
        "REJECT: a program may give reason 28 (consumer defined) or 35 (vendor option not supported), not {given}"
    )]
    RejectReason {
        /// The reason.
        given: u8,
    },
    /// A queue pair state beyond the last one.
    #[error("INIT_QP_ATTR: there is no queue pair state {given}; the last one is 6")]
    QpState {
        /// The state.
        given: u32,
    },
    /// An asynchronous event that programs may not pass on.
    #[error(
        "NOTIFY: asynchronous event {given}; communication established (4) and path migrated (6) can be passed on"
    )]
    AsyncEvent {
        /// The event.
        given: u32,
    },
    /// Options of enhanced connection establishment with an RTU.
    #[error("ACCEPT: an RTU carries no options; vendor {vendor_id:#x} was given")]
    EceInRtu {
        /// The vendor given.
        vendor_id: u32,
    },
    /// Join flags that are none.
    #[error(
        "{command}: join flags {given}; 0 (full member) and 1 (send-only full member) are known"
    )]
    JoinFlags {
        /// The command.
        command: Command,
        /// The flags.
        given: u16,
    },
    /// An event that programs may not put into a channel.
    #[error("WRITE_CM_EVENT: event {given}; USER (18) and INTERNAL (19) can be written")]
    ForeignEvent {
        /// The event.
        given: u32,
    },
    /// Path records that are no whole number of records.
    #[error("SET_OPTION: path records of {given} bytes; each has 72")]
    PathRecords {
        /// The length given.
        given: usize,
    },
    /// No path record that is used.
    #[error(
        "SET_OPTION: none of {records} path records has flags 0x2b (general management, primary, both directions)"
    )]
    NoPrimaryPath {
        /// How many there are.
        records: usize,
    },
    /// A service record is asked for in another state.
    #[error(
        "RESOLVE_IB_SERVICE: identifier {number} is in state {state}; it must be in ADDR_RESOLVED"
    )]
    ServiceState {
        /// The number.
        number: u32,
        /// Its state.
        state: State,
    },
    /// An option of another length.
    #[error("SET_OPTION: option {option} has {wanted} bytes, not {given}")]
    OptionLength {
        /// The option.
        option: &'static str,
        /// The length given.
        given: u32,
        /// The option's length.
        wanted: u32,
    },
    /// A value longer than any option's.
    #[error("SET_OPTION: a value of {given} bytes; at most {max} are possible")]
    OptionTooLong {
        /// The length given.
        given: u32,
        /// The largest.
        max: u32,
    },
    /// The option's value did not come along.
    #[error("SET_OPTION: the value has {says} bytes, of which {given} came along")]
    OptionValue {
        /// What the request says.
        says: u32,
        /// What came along.
        given: usize,
    },

    // What is not there.
    /// The command that no kernel implements either.
    #[error("GET_OPTION is not implemented, as in every kernel")]
    NoGetOption,
    /// Service records are resolved by an InfiniBand subnet administrator.
    #[error(
        "RESOLVE_IB_SERVICE: on RoCE there is no subnet administrator to ask for service records"
    )]
    NoServiceRecords,
    /// No service records were found.
    #[error("QUERY: identifier {number} has no service records")]
    NoServices {
        /// The number.
        number: u32,
    },
    /// No multicast join has this number.
    #[error("LEAVE_MCAST: no join has the number {number}")]
    UnknownJoin {
        /// The number.
        number: u32,
    },
    /// The join's identifier is on another channel.
    #[error("LEAVE_MCAST: the identifier of join {number} is on another event channel")]
    OtherFilesJoin {
        /// The number.
        number: u32,
    },
    /// A level or name of no option, or of one that is not implemented.
    #[error("SET_OPTION: option {name} of level {level} is not implemented")]
    UnknownOption {
        /// The level.
        level: u32,
        /// The name.
        name: u32,
    },
    /// A query option that is none.
    #[error(
        "QUERY: there is no option {option}; addresses (0), paths (1), GIDs (2) and service records (3) are"
    )]
    UnknownQuery {
        /// The option.
        option: u32,
    },
    /// No event waits.
    #[error("no event waits on the channel")]
    NoEvent,

    // A batch.
    /// An earlier request of the batch failed.
    #[error("not tried: request {failed} of the batch failed")]
    NotTried {
        /// The place of the failed request.
        failed: usize,
    },
    /// The request means the identifier of an earlier one, which did not name any.
    #[error("request {from} of the batch named no identifier for this one")]
    NothingNamed {
        /// The place of the earlier request.
        from: u8,
    },

    /// The identifier's own rules.
    #[error(transparent)]
    Cma(#[from] oarlock_cma::Error),
}

/// Error numbers that identifiers never give and requests do.
mod number {
    use oarlock_cma::Errno;

    pub(super) const EBADF: Errno = Errno(9);
    pub(super) const EFAULT: Errno = Errno(14);
    pub(super) const ENOSPC: Errno = Errno(28);
    pub(super) const ENODATA: Errno = Errno(61);
    pub(super) const EOPNOTSUPP: Errno = Errno(95);
    pub(super) const ECANCELED: Errno = Errno(125);
}

impl Failure {
    /// The error number that `write(2)` on the kernel's file would give.
    #[must_use]
    pub const fn errno(&self) -> Errno {
        match self {
            Self::UnknownFile => number::EBADF,
            Self::RequestEnds { .. } | Self::OptionValue { .. } => number::EFAULT,
            Self::NoRoom { .. } => number::ENOSPC,
            Self::UnknownId { .. } | Self::UnknownOldChannel | Self::UnknownJoin { .. } => {
                Errno::ENOENT
            }
            Self::DeviceRemoved { .. } => Errno::ENXIO,
            Self::NoGetOption | Self::UnknownOption { .. } | Self::UnknownQuery { .. } => {
                Errno::ENOSYS
            }
            Self::NoServiceRecords => number::EOPNOTSUPP,
            Self::NoServices { .. } => number::ENODATA,
            Self::NoEvent => Errno::EAGAIN,
            Self::NotTried { .. } => number::ECANCELED,
            Self::Address { .. } => Errno::EAFNOSUPPORT,
            Self::NoHeader { .. }
            | Self::UnknownCommand { .. }
            | Self::BodyLength { .. }
            | Self::ShortRequest { .. }
            | Self::Reserved { .. }
            | Self::AddressSize { .. }
            | Self::OtherFile { .. }
            | Self::NoDevice { .. }
            | Self::ListenerHasNoQueuePair { .. }
            | Self::UnknownPortSpace(_)
            | Self::NoParameters
            | Self::RejectReason { .. }
            | Self::QpState { .. }
            | Self::AsyncEvent { .. }
            | Self::EceInRtu { .. }
            | Self::JoinFlags { .. }
            | Self::ForeignEvent { .. }
            | Self::PathRecords { .. }
            | Self::NoPrimaryPath { .. }
            | Self::ServiceState { .. }
            | Self::OtherFilesJoin { .. }
            | Self::OptionLength { .. }
            | Self::OptionTooLong { .. }
            | Self::NothingNamed { .. } => Errno::EINVAL,
            Self::Cma(error) => error.errno(),
        }
    }
}
