//! Devices: what an identifier is bound to once its source address is known.

use oarlock_wire::{AddressVector, Gid, Guid, IbTimeout};
use std::net::IpAddr;

/// How much a device can do for one connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// RDMA reads and atomics that one queue pair can answer at a time; the limit of `responder_resources`.
    pub max_qp_rd_atom: u8,
    /// RDMA reads and atomics that one queue pair can have outstanding; the limit of `initiator_depth`.
    pub max_qp_init_rd_atom: u8,
    /// How long the device takes to acknowledge a packet.
    pub local_ca_ack_delay: IbTimeout,
}

impl Default for Limits {
    /// 16 each way and an acknowledgement delay of 134 ms, as soft RoCE states it.
    fn default() -> Self {
        Self {
            max_qp_rd_atom: 16,
            max_qp_init_rd_atom: 16,
            local_ca_ack_delay: IbTimeout::truncate(15),
        }
    }
}

/// A RoCE device with one port: that of a network interface, which may be down.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Device {
    /// The number of the device (`ibdev_index` in the ABI); stays the same while the device exists.
    pub index: u32,
    /// The device's name.
    pub name: String,
    /// The node GUID.
    pub guid: Guid,
    /// The port, counted from 1.
    pub port_num: u8,
    /// The network interface's index.
    pub ifindex: u32,
    /// Whether the interface is the loopback interface.
    pub is_loopback: bool,
    /// The interface's MTU in bytes.
    pub netdev_mtu: u32,
    /// The interface's addresses, which are the GID table, in order.
    pub addresses: Vec<IpAddr>,
    /// What the device can do.
    pub limits: Limits,
}

impl Device {
    /// The place of an address in the GID table.
    #[must_use]
    pub fn sgid_index(&self, gid: Gid) -> Option<u8> {
        let ip = gid.to_ip();
        self.addresses
            .iter()
            .position(|address| *address == ip)
            .and_then(|index| u8::try_from(index).ok())
    }

    fn owns(&self, ip: IpAddr, scope_id: u32) -> bool {
        (!is_link_local(ip) || scope_id == self.ifindex) && self.addresses.contains(&ip)
    }
}

/// Whether an address needs an interface beside it.
pub(crate) const fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

/// Whether a destination means another one on every interface: a link-local address, or a group of the link.
pub(crate) const fn is_per_interface(ip: IpAddr) -> bool {
    is_link_local(ip) || matches!(ip, IpAddr::V6(v6) if v6.segments()[0] & 0xFF0F == 0xFF02)
}

/// Whether port rules and resolution treat an address as "any": unspecified or loopback.
pub(crate) const fn is_any_or_loopback(ip: IpAddr) -> bool {
    ip.is_unspecified() || ip.is_loopback()
}

/// The devices, in the order in which they are preferred. A host has a handful, so that each search is a short walk.
#[derive(Debug, Default)]
pub(crate) struct Devices {
    list: Vec<Device>,
    /// Local addresses of interfaces that have no device.
    without_device: Vec<IpAddr>,
}

impl Devices {
    /// Takes the new list and gives the old one.
    pub(crate) fn replace(&mut self, list: Vec<Device>) -> Vec<Device> {
        std::mem::replace(&mut self.list, list)
    }

    pub(crate) fn set_without_device(&mut self, addresses: Vec<IpAddr>) {
        self.without_device = addresses;
    }

    pub(crate) fn get(&self, index: u32) -> Option<&Device> {
        self.list.iter().find(|device| device.index == index)
    }

    pub(crate) fn first(&self) -> Option<&Device> {
        self.list.first()
    }

    /// The device that owns an address; of several, the one of the given interface, else the first.
    pub(crate) fn by_address(&self, ip: IpAddr, scope_id: u32, ifindex: u32) -> Option<&Device> {
        let owners = || self.list.iter().filter(|device| device.owns(ip, scope_id));
        owners()
            .find(|device| device.ifindex == ifindex)
            .or_else(|| owners().next())
    }

    /// The device at which a datagram with these addresses arrives or leaves.
    pub(crate) fn by_path(&self, av: &AddressVector) -> Option<&Device> {
        self.by_address(av.local.to_ip(), av.scope_id, av.scope_id)
    }

    /// The loopback device, if it has an address of the wanted family.
    pub(crate) fn loopback(&self, like: IpAddr) -> Option<(&Device, IpAddr)> {
        let device = self.list.iter().find(|device| device.is_loopback)?;
        let same_family =
            |address: &&IpAddr| address.is_loopback() && address.is_ipv4() == like.is_ipv4();
        let exact = device.addresses.iter().find(|address| **address == like);
        exact
            .or_else(|| device.addresses.iter().find(same_family))
            .map(|address| (device, *address))
    }

    /// Whether an address belongs to this host, on a device or not.
    pub(crate) fn is_local(&self, ip: IpAddr, scope_id: u32) -> bool {
        self.list.iter().any(|device| device.owns(ip, scope_id))
            || self.without_device.contains(&ip)
    }
}
