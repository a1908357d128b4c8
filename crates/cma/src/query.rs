//! What is known about an identifier, in any state.

use crate::{Alternate, ChannelId, McId, QpType, State};
use oarlock_cm::StateName;
use oarlock_wire::{
    AddressVector, Guid, IbTimeout, Mtu, PKey, PortSpace, QKey, Qpn, Rate, ServiceId,
};
use std::net::SocketAddr;

/// The device of an identifier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceRef {
    /// The device's number.
    pub index: u32,
    /// Its node GUID.
    pub guid: Guid,
    /// The port, counted from 1.
    pub port_num: u8,
}

/// The path that the connection is bound to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Path {
    /// Addresses, flow label, traffic class, hop limit, service level.
    pub av: AddressVector,
    /// The service that is asked for.
    pub service_id: ServiceId,
    /// The partition.
    pub pkey: PKey,
    /// Payload bytes per packet.
    pub mtu: Mtu,
    /// How fast.
    pub rate: Rate,
    /// How long a packet may be under way.
    pub packet_life_time: IbTimeout,
}

/// The state of a listener's backlog.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Backlog {
    /// Connection requests that may wait.
    pub size: usize,
    /// Connection requests that wait.
    pub waiting: usize,
    /// Connection requests that found it full.
    pub overflows: u64,
}

/// What is known about an identifier.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Query {
    /// Its channel.
    pub channel: ChannelId,
    /// The caller's context.
    pub context: u64,
    /// The port space.
    pub port_space: PortSpace,
    /// The queue pair type.
    pub qp_type: QpType,
    /// The state.
    pub state: State,
    /// The state of the connection in the IB CM, if there is one.
    pub cm_state: Option<StateName>,
    /// The local address, once bound.
    pub local: Option<SocketAddr>,
    /// The peer's address, once given.
    pub remote: Option<SocketAddr>,
    /// The device, once known.
    pub device: Option<DeviceRef>,
    /// The addresses on the wire, once resolved.
    pub av: Option<AddressVector>,
    /// The path, once resolved.
    pub path: Option<Path>,
    /// The alternate path, if there was ever talk of one.
    pub alternate: Option<Alternate>,
    /// The Q_Key of a UD identifier, once it is settled.
    pub qkey: Option<QKey>,
    /// Its joins of multicast groups.
    pub multicasts: Vec<McId>,
    /// The local queue pair, once given by `connect` or `accept`.
    pub qpn: Option<Qpn>,
    /// The peer's queue pair, once known.
    pub remote_qpn: Option<Qpn>,
    /// The backlog of a listener.
    pub backlog: Option<Backlog>,
    /// Events that wait on the channel.
    pub events_queued: usize,
    /// Events handed out over the identifier's life.
    pub events_reported: u32,
}
