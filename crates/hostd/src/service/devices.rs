//! One soft device for each network interface that is up: that of the default route first, loopback last. Interfaces of
//! a kernel RDMA device are left to it.

use super::identity::device_guid;
use crate::Error;
use oarlock_cma::{Device, Limits};
use oarlock_port::netlink::{self, Interface};
use oarlock_ucm::proto::DeviceInfo;
use oarlock_wire::{Guid, Mtu};
use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

/// The devices, and what they were made of.
#[derive(Debug)]
pub(super) struct Devices {
    guid: Guid,
    /// Numbers given so far, by interface: a device keeps its number while the service lives.
    numbers: HashMap<u32, u32>,
    pub(super) list: Vec<Device>,
    pub(super) interfaces: Vec<Interface>,
    /// Addresses of this host, whose management datagrams need not leave the service.
    own: HashSet<IpAddr>,
    /// Addresses of interfaces without a device.
    pub(super) without_device: Vec<IpAddr>,
    /// Interfaces that were left to a kernel RDMA device, with its name.
    pub(super) skipped: Vec<(String, String)>,
}

impl Devices {
    /// Looks at the interfaces of this network namespace.
    pub(super) fn of_namespace(guid: Guid) -> Result<Self, Error> {
        let mut devices = Self {
            guid,
            numbers: HashMap::new(),
            list: Vec::new(),
            interfaces: Vec::new(),
            own: HashSet::new(),
            without_device: Vec::new(),
            skipped: Vec::new(),
        };
        devices.refresh()?;
        if !devices
            .interfaces
            .iter()
            .any(|interface| interface.loopback && interface.up)
        {
            return Err(Error::LoopbackDown);
        }
        Ok(devices)
    }

    /// The only device of an in-memory host.
    pub(super) fn in_memory(guid: Guid, addresses: &[IpAddr]) -> Self {
        let interface = Interface {
            index: 1,
            name: "mem0".to_owned(),
            mtu: MEMORY_MTU,
            up: true,
            loopback: addresses.iter().any(IpAddr::is_loopback),
            hardware: Vec::new(),
            addresses: addresses
                .iter()
                .map(|ip| netlink::Address {
                    ip: *ip,
                    prefix_len: 0,
                })
                .collect(),
            kernel_rdma: None,
        };
        let list = vec![device(guid, 0, &interface)];
        Self {
            guid,
            numbers: HashMap::from([(interface.index, 0)]),
            list,
            interfaces: vec![interface],
            own: addresses.iter().copied().collect(),
            without_device: Vec::new(),
            skipped: Vec::new(),
        }
    }

    /// Looks at the interfaces again; whether the devices have changed.
    pub(super) fn refresh(&mut self) -> Result<bool, Error> {
        let interfaces =
            netlink::interfaces().map_err(Error::system("list the network interfaces"))?;
        if interfaces == self.interfaces {
            return Ok(false);
        }
        let default =
            netlink::default_route_interface().map_err(Error::system("find the default route"))?;
        self.take(interfaces, default);
        Ok(true)
    }

    fn take(&mut self, interfaces: Vec<Interface>, default: Option<u32>) {
        let mut usable: Vec<&Interface> = Vec::new();
        self.own.clear();
        self.without_device.clear();
        self.skipped.clear();
        for interface in &interfaces {
            self.own
                .extend(interface.addresses.iter().map(|address| address.ip));
            match &interface.kernel_rdma {
                Some(rdma) if !interface.loopback => {
                    self.without_device
                        .extend(interface.addresses.iter().map(|address| address.ip));
                    self.skipped.push((interface.name.clone(), rdma.clone()));
                }
                _ if interface.up && !interface.addresses.is_empty() => usable.push(interface),
                _ => {}
            }
        }
        // Stable: the others stay in the order of their indices.
        usable.sort_by_key(|interface| (interface.loopback, Some(interface.index) != default));
        let mut list = Vec::with_capacity(usable.len());
        for interface in usable {
            let next = self.numbers.len() as u32;
            let number = *self.numbers.entry(interface.index).or_insert(next);
            list.push(device(self.guid, number, interface));
        }
        for (interface, rdma) in &self.skipped {
            tracing::warn!("interface {interface} is left to the kernel's RDMA device {rdma}");
        }
        self.list = list;
        self.interfaces = interfaces;
    }

    /// Whether datagrams to this address are for this host.
    pub(super) fn is_own(&self, ip: IpAddr) -> bool {
        self.own.contains(&ip)
    }

    /// The devices as programs see them.
    pub(super) fn infos(&self) -> Vec<DeviceInfo> {
        self.list.iter().map(|device| self.info(device)).collect()
    }

    fn info(&self, device: &Device) -> DeviceInfo {
        let interface = self
            .interfaces
            .iter()
            .find(|interface| interface.index == device.ifindex);
        DeviceInfo {
            index: device.index,
            name: device.name.clone(),
            guid: device.guid.0,
            port_num: device.port_num,
            ifindex: device.ifindex,
            interface: interface
                .map(|interface| interface.name.clone())
                .unwrap_or_default(),
            is_loopback: device.is_loopback,
            netdev_mtu: device.netdev_mtu,
            path_mtu: Mtu::largest_for_link(device.netdev_mtu).map_or(0, |mtu| mtu.0),
            max_qp_rd_atom: device.limits.max_qp_rd_atom,
            max_qp_init_rd_atom: device.limits.max_qp_init_rd_atom,
            local_ca_ack_delay: device.limits.local_ca_ack_delay.get(),
            addresses: device.addresses.clone(),
        }
    }
}

fn device(host: Guid, index: u32, interface: &Interface) -> Device {
    Device {
        index,
        name: format!("soft_{}", interface.name),
        guid: device_guid(host, interface.index),
        port_num: 1,
        ifindex: interface.index,
        is_loopback: interface.loopback,
        netdev_mtu: interface.mtu,
        addresses: interface
            .addresses
            .iter()
            .map(|address| address.ip)
            .take(GID_TABLE_MAX)
            .collect(),
        limits: Limits::default(),
    }
}

/// As the loopback interface.
const MEMORY_MTU: u32 = 65_536;
/// A GID index is a byte.
const GID_TABLE_MAX: usize = 255;

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(index: u32, name: &str, address: &str) -> Interface {
        Interface {
            index,
            name: name.to_owned(),
            mtu: 1500,
            up: true,
            loopback: name == "lo",
            hardware: Vec::new(),
            addresses: vec![netlink::Address {
                ip: address.parse().unwrap(),
                prefix_len: 24,
            }],
            kernel_rdma: None,
        }
    }

    #[test]
    fn the_default_routes_device_is_first_and_loopback_last_and_numbers_stay() {
        let mut devices = Devices::in_memory(Guid(1), &["192.0.2.9".parse().unwrap()]);
        devices.numbers.clear();
        let lo = interface(1, "lo", "127.0.0.1");
        let (eth0, eth1) = (
            interface(2, "eth0", "192.0.2.1"),
            interface(3, "eth1", "198.51.100.1"),
        );
        let mut rdma = interface(4, "eth2", "203.0.113.1");
        rdma.kernel_rdma = Some("mlx5_0".to_owned());
        devices.take(
            vec![lo.clone(), eth0.clone(), eth1.clone(), rdma.clone()],
            Some(3),
        );
        let names = |devices: &Devices| -> Vec<(String, u32)> {
            devices
                .list
                .iter()
                .map(|device| (device.name.clone(), device.index))
                .collect()
        };
        let expected = [("soft_eth1", 0), ("soft_eth0", 1), ("soft_lo", 2)];
        assert_eq!(
            names(&devices),
            expected.map(|(name, index)| (name.to_owned(), index))
        );
        assert_eq!(
            devices.without_device,
            ["203.0.113.1".parse::<IpAddr>().unwrap()]
        );
        assert_eq!(devices.skipped, [("eth2".to_owned(), "mlx5_0".to_owned())]);
        assert!(devices.is_own("203.0.113.1".parse().unwrap()));
        // eth1 goes; the others keep their numbers.
        devices.take(vec![lo, eth0, rdma], None);
        let expected = [("soft_eth0", 1), ("soft_lo", 2)];
        assert_eq!(
            names(&devices),
            expected.map(|(name, index)| (name.to_owned(), index))
        );
        assert!(!devices.is_own("198.51.100.1".parse().unwrap()));
    }
}
