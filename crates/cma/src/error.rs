//! What a caller did wrong, or what stands in the way: each error names the rule, the state, the limit and the value.

use crate::{Errno, EventKind, QpType, State};
use oarlock_cm::{LapState, StateName};
use oarlock_wire::{Ece, Gid, Mtu, PKey, PortSpace, QKey, RejReason, ServiceId};
use std::fmt;
use std::net::{IpAddr, SocketAddr};

/// Whose limit a connection parameter exceeds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum LimitOwner {
    /// The local device.
    Device,
    /// The peer, in its connection request.
    Request,
}

impl fmt::Display for LimitOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Device => "the device's limit",
            Self::Request => "the connection request",
        })
    }
}

/// Why a call was refused. Nothing has changed then, unless the call says otherwise.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    // The caller misused the interface.
    /// The handle names no identifier (any more, or not yet: a child exists once its request was taken).
    #[error("no such identifier")]
    UnknownId,
    /// The handle names no channel.
    #[error("no such event channel")]
    UnknownChannel,
    /// The call is not for this state.
    #[error("{call} in state {state}, which wants {wanted}")]
    WrongState {
        /// The call.
        call: &'static str,
        /// The identifier's state.
        state: State,
        /// The states that the call is for.
        wanted: &'static str,
    },
    /// The call needs a device, and the identifier is bound to none yet.
    #[error("{call} before the identifier has a device (state {state}): resolve an address first")]
    NoDevice {
        /// The call.
        call: &'static str,
        /// The identifier's state.
        state: State,
    },
    /// The call needs a connection, and there is none.
    #[error("{call} in state {state}: there is no connection")]
    NoConnection {
        /// The call.
        call: &'static str,
        /// The identifier's state.
        state: State,
    },
    /// The connection is not where the call could have an effect.
    #[error("{call} while the IB CM is in state {cm_state}")]
    ConnectionState {
        /// The call.
        call: &'static str,
        /// The IB CM's state of the connection.
        cm_state: StateName,
    },
    /// An exchange about an alternate path is under way.
    #[error("{call} while an alternate path is being agreed on ({state})")]
    AlternatePathPending {
        /// The call.
        call: &'static str,
        /// Where the exchange stands.
        state: LapState,
    },
    /// The connection is established already.
    #[error("the connection is established already")]
    AlreadyEstablished,
    /// Source and destination are of different families.
    #[error("local address {local} and destination {destination} are of different families")]
    FamilyMismatch {
        /// The local address.
        local: IpAddr,
        /// The destination.
        destination: IpAddr,
    },
    /// A link-local address without the interface it is valid on.
    #[error("link-local address {address} without a scope: say which interface, as in fe80::1%2")]
    LinkLocalWithoutScope {
        /// The address.
        address: IpAddr,
    },
    /// The source is bound to one interface and the destination lies on another.
    #[error(
        "destination on interface {destination}, while the identifier is bound to interface {bound}"
    )]
    ScopeMismatch {
        /// The interface index that the identifier is bound to.
        bound: u32,
        /// The interface index of the destination.
        destination: u32,
    },
    /// An IPv4 address in IPv6 clothing; its GID is that of the IPv4 address.
    #[error("{address} is an IPv4-mapped address: give the IPv4 address")]
    MappedAddress {
        /// The address.
        address: IpAddr,
    },
    /// A timeout of zero.
    #[error("{call} with a timeout of zero")]
    ZeroTimeout {
        /// The call.
        call: &'static str,
    },
    /// More reads and atomics to be answered than possible.
    #[error("responder_resources {given} exceeds {owner} of {max}")]
    ResponderResources {
        /// What was given.
        given: u8,
        /// What is possible.
        max: u8,
        /// Whose limit it is.
        owner: LimitOwner,
    },
    /// More reads and atomics outstanding than possible.
    #[error("initiator_depth {given} exceeds {owner} of {max}")]
    InitiatorDepth {
        /// What was given.
        given: u8,
        /// What is possible.
        max: u8,
        /// Whose limit it is.
        owner: LimitOwner,
    },
    /// More private data than the message carries for the user.
    #[error("{given} bytes of private data, of which {call} carries at most {max}")]
    PrivateDataTooLong {
        /// The call.
        call: &'static str,
        /// Bytes given.
        given: usize,
        /// Bytes that fit.
        max: usize,
    },
    /// A reason that is not the user's to give.
    #[error("reject for {reason}: a user may give reason 28 or 35")]
    RejectReason {
        /// The reason.
        reason: RejReason,
    },
    /// An option that cannot change in this state.
    #[error("option {option} in state {state}, which wants {wanted}")]
    OptionState {
        /// The option.
        option: &'static str,
        /// The identifier's state.
        state: State,
        /// The states in which it can change.
        wanted: &'static str,
    },
    /// An option of reliable connections for another identifier.
    #[error("option {option} of an identifier for {qp_type} queue pairs: it is for reliable ones")]
    OptionQpType {
        /// The option.
        option: &'static str,
        /// The identifier's queue pair type.
        qp_type: QpType,
    },
    /// An option value that its field cannot hold.
    #[error("option {option} of {given}, at most {max}")]
    OptionRange {
        /// The option.
        option: &'static str,
        /// What was given.
        given: u8,
        /// The largest value.
        max: u8,
    },
    /// No queue pair attributes are known for this state.
    #[error("no attribute recipe for queue pair state {0}: there is one for INIT, RTR and RTS")]
    NoRecipe(u32),

    /// The handle names no join of a multicast group.
    #[error("no such multicast join")]
    UnknownMulticast,
    /// The call is for datagram queue pairs.
    #[error("{call} with an identifier for {qp_type} queue pairs: it is for UD")]
    NotDatagram {
        /// The call.
        call: &'static str,
        /// The identifier's queue pair type.
        qp_type: QpType,
    },
    /// The call is for connected queue pairs.
    #[error("{call} with an identifier for UD queue pairs, which are not connected")]
    NotConnected {
        /// The call.
        call: &'static str,
    },
    /// A Q_Key for a connected queue pair, which has none.
    #[error("{call} with Q_Key {qkey}: a connected queue pair has none")]
    QKeyWithoutDatagrams {
        /// The call.
        call: &'static str,
        /// What was given.
        qkey: QKey,
    },
    /// Another Q_Key than the identifier has already.
    #[error("{call} with Q_Key {given}, while the identifier has {own}")]
    QKeyMismatch {
        /// The call.
        call: &'static str,
        /// What was given.
        given: QKey,
        /// What the identifier has.
        own: QKey,
    },
    /// Connection establishment data where the message has no place for it.
    #[error("{call} with ECE data of vendor {:#08x}: a SIDR_REQ carries none", .ece.vendor_id)]
    EceNotCarried {
        /// The call.
        call: &'static str,
        /// What was given.
        ece: Ece,
    },
    /// A vendor ID of more than 24 bits.
    #[error("{call} with ECE vendor ID {given:#x}: the field has 24 bits")]
    EceVendorId {
        /// The call.
        call: &'static str,
        /// What was given.
        given: u32,
    },
    /// The address is no multicast group.
    #[error("{address} is no multicast group")]
    NotMulticast {
        /// The address.
        address: IpAddr,
    },
    /// Events of this kind are not the user's to give.
    #[error("event {kind} cannot be injected: USER and INTERNAL can")]
    NotInjectable {
        /// The kind.
        kind: EventKind,
    },
    /// A path from an address that the device does not have.
    #[error("a path from {gid}, which is not in the GID table of the identifier's device")]
    PathSource {
        /// The path's local GID.
        gid: Gid,
    },
    /// A path in a partition that the device is not in.
    #[error("a path in partition {pkey}: a RoCE port is in 0xffff alone")]
    PathPKey {
        /// The path's partition.
        pkey: PKey,
    },
    /// A path to another service than the destination's.
    #[error("a path for service ID {given}, while the destination's is {own}: give that one, or 0")]
    PathServiceId {
        /// The path's service ID.
        given: ServiceId,
        /// That of the destination.
        own: ServiceId,
    },
    /// A path MTU that is none, or that the link does not carry.
    #[error("a path MTU of {given}, while the link carries {largest}")]
    PathMtu {
        /// The path's MTU.
        given: Mtu,
        /// The largest that the link carries.
        largest: Mtu,
    },

    // What is asked for does not exist here.
    /// A queue pair type that port space IB knows and that is not built.
    #[error("identifiers for {0} queue pairs are not implemented: RC, UC, UD and XRC are")]
    QpTypeNotImplemented(QpType),
    /// The identifier's device has no address of the family of the multicast group.
    #[error("the identifier's device has no address to send to {group} from")]
    NoSourceForGroup {
        /// The group.
        group: IpAddr,
    },
    /// A number that is no port space.
    #[error("there is no port space {:#06x}", .0.0)]
    UnknownPortSpace(PortSpace),
    /// The address belongs to no interface of this host.
    #[error("{address} is not an address of this host")]
    AddressNotLocal {
        /// The address.
        address: IpAddr,
    },
    /// The address is local, and no RDMA device stands on its interface.
    #[error("{address} is a local address without an RDMA device")]
    NoDeviceForAddress {
        /// The address.
        address: IpAddr,
    },
    /// There is no device at all.
    #[error("this host has no RDMA device")]
    NoDevices,
    /// The interface's MTU carries not even the smallest path MTU.
    #[error("a link MTU of {mtu} bytes carries no RDMA path: 352 is the least")]
    LinkTooSmall {
        /// The MTU in bytes.
        mtu: u32,
    },
    /// The identifier's device has gone.
    #[error("{call}: the identifier's device has gone")]
    DeviceRemoved {
        /// The call.
        call: &'static str,
    },

    // Ports.
    /// A port below 1024, for which the privilege is missing.
    #[error("port {port} is below 1024, which needs the privilege to bind such ports")]
    PrivilegedPort {
        /// The port.
        port: u16,
    },
    /// The port is bound, and one of the two addresses covers every address.
    #[error(
        "the port of {wanted} is in use: {bound} is bound, and one of the two stands for every address (\"any\" includes loopback)"
    )]
    PortCovered {
        /// What was asked for.
        wanted: SocketAddr,
        /// What is bound.
        bound: SocketAddr,
    },
    /// The very address and port are bound.
    #[error("{wanted} is bound by another identifier")]
    PortInUse {
        /// What was asked for.
        wanted: SocketAddr,
    },
    /// Every port of the ephemeral range is taken.
    #[error("no free port between {first} and {last}")]
    NoEphemeralPort {
        /// The first of the range.
        first: u16,
        /// The last of the range.
        last: u16,
    },
    /// The service ID is registered by someone else.
    #[error("port {port} is registered with the connection manager already")]
    ServiceIdInUse {
        /// The port.
        port: u16,
    },

    // A limit was reached.
    /// Too many identifiers.
    #[error("{max} identifiers exist already")]
    TooManyIds {
        /// The limit.
        max: usize,
    },
    /// Too many channels.
    #[error("{max} event channels exist already")]
    TooManyChannels {
        /// The limit.
        max: usize,
    },
    /// Too many joins of multicast groups.
    #[error("{max} multicast joins exist already")]
    TooManyMulticasts {
        /// The limit.
        max: usize,
    },
    /// The channel holds as many events as it may; take some first.
    #[error(
        "{queued} events wait on the channel and {adding} more were to come: the limit is {max}, take some first"
    )]
    ChannelFull {
        /// Events that wait there.
        queued: usize,
        /// Events that the call would add.
        adding: usize,
        /// The limit.
        max: usize,
    },
    /// The connection manager holds as many connections as it may.
    #[error("the connection manager holds {max} connections already")]
    TooManyConnections {
        /// The limit.
        max: usize,
    },
    /// The connection manager refused for a reason that the checks before it should have caught.
    #[error("{call}: {source}")]
    Cm {
        /// The call.
        call: &'static str,
        /// What it said.
        source: oarlock_cm::Error,
    },
}

impl Error {
    /// The error number that the kernel's ABI gives for this.
    #[must_use]
    pub const fn errno(&self) -> Errno {
        match self {
            Self::UnknownId | Self::UnknownChannel | Self::UnknownMulticast => Errno::ENOENT,
            Self::WrongState { .. }
            | Self::NoDevice { .. }
            | Self::NoConnection { .. }
            | Self::ConnectionState { .. }
            | Self::FamilyMismatch { .. }
            | Self::LinkLocalWithoutScope { .. }
            | Self::ScopeMismatch { .. }
            | Self::ZeroTimeout { .. }
            | Self::ResponderResources { .. }
            | Self::InitiatorDepth { .. }
            | Self::PrivateDataTooLong { .. }
            | Self::RejectReason { .. }
            | Self::OptionState { .. }
            | Self::OptionQpType { .. }
            | Self::OptionRange { .. }
            | Self::NoRecipe(_)
            | Self::UnknownPortSpace(_)
            | Self::LinkTooSmall { .. }
            | Self::AlternatePathPending { .. }
            | Self::NotDatagram { .. }
            | Self::NotConnected { .. }
            | Self::QKeyWithoutDatagrams { .. }
            | Self::QKeyMismatch { .. }
            | Self::EceNotCarried { .. }
            | Self::EceVendorId { .. }
            | Self::NotMulticast { .. }
            | Self::NotInjectable { .. }
            | Self::PathSource { .. }
            | Self::PathPKey { .. }
            | Self::PathServiceId { .. }
            | Self::PathMtu { .. }
            | Self::Cm { .. } => Errno::EINVAL,
            Self::AlreadyEstablished => Errno::EISCONN,
            Self::QpTypeNotImplemented(_) => Errno::ENOSYS,
            Self::AddressNotLocal { .. }
            | Self::MappedAddress { .. }
            | Self::PortCovered { .. }
            | Self::NoSourceForGroup { .. }
            | Self::NoEphemeralPort { .. } => Errno::EADDRNOTAVAIL,
            Self::NoDeviceForAddress { .. } | Self::NoDevices => Errno::ENODEV,
            Self::DeviceRemoved { .. } => Errno::ENXIO,
            Self::PrivilegedPort { .. } => Errno::EACCES,
            Self::PortInUse { .. } => Errno::EADDRINUSE,
            Self::ServiceIdInUse { .. } => Errno::EBUSY,
            Self::TooManyIds { .. }
            | Self::TooManyChannels { .. }
            | Self::TooManyMulticasts { .. }
            | Self::ChannelFull { .. }
            | Self::TooManyConnections { .. } => Errno::ENOMEM,
        }
    }
}
