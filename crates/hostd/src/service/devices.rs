//! One soft device for each network interface that is, or has been, up with an address: that of the default route first,
//! loopback last. As with soft RoCE of the kernel an interface that goes down is a port that is down, and the device stays;
//! it goes with the interface. Interfaces of a kernel RDMA device are left to it.

use super::identity::device_guid;
use crate::Error;
use oarlock_cma::{Device, Limits};
use oarlock_port::netlink::{self, Interface};
use oarlock_port::{MEM_IFINDEX, MemHost};
use oarlock_ucm::proto::DeviceInfo;
use oarlock_wire::{Guid, Mtu};
use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

/// The devices, and what they were made of.
#[derive(Debug)]
pub(super) struct Devices {
    guid: Guid,
    /// Numbers given so far, by the interface's name: a device keeps its number while the service lives, and has it again
    /// when it reappears.
    numbers: HashMap<String, u32>,
    pub(super) list: Vec<Device>,
    pub(super) interfaces: Vec<Interface>,
    /// Addresses of this host, whose management datagrams need not leave the service.
    own: HashSet<IpAddr>,
    /// Addresses of interfaces without a device.
    pub(super) without_device: Vec<IpAddr>,
    /// Interfaces that were left to a kernel RDMA device, with its name.
    pub(super) skipped: Vec<(String, String)>,
    /// Whether packets between programs of this host pass: on the real port that takes the loopback interface.
    pub(super) passes_within: bool,
}

/// What a look at the interfaces has found.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Nothing new.
    Same,
    /// The devices have changed. These, by number, are others than before although name and number are the same: their
    /// interfaces were deleted and made anew.
    Changed { replaced: Vec<u32> },
}

impl Devices {
    /// Of interfaces that [`take`](Self::take) will tell.
    pub(super) fn new(guid: Guid) -> Self {
        Self {
            guid,
            numbers: HashMap::new(),
            list: Vec::new(),
            interfaces: Vec::new(),
            own: HashSet::new(),
            without_device: Vec::new(),
            skipped: Vec::new(),
            passes_within: true,
        }
    }

    /// Looks at the interfaces of this network namespace.
    pub(super) fn look_at_namespace(&mut self) -> Result<Found, Error> {
        let interfaces =
            netlink::interfaces().map_err(Error::system("list the network interfaces"))?;
        if interfaces == self.interfaces {
            return Ok(Found::Same);
        }
        let default =
            netlink::default_route_interface().map_err(Error::system("find the default route"))?;
        let found = self.take(interfaces, default);
        let passes = self.interfaces.iter().any(|lo| lo.loopback && lo.up);
        if !passes && self.passes_within {
            tracing::warn!("{}", Error::LoopbackDown);
        }
        self.passes_within = passes;
        Ok(found)
    }

    /// Looks at the interface of an in-memory host.
    pub(super) fn look_at_memory(&mut self, host: &MemHost) -> Found {
        let addresses = host.addresses();
        let interface = Interface {
            index: MEM_IFINDEX,
            name: "mem0".to_owned(),
            mtu: MEMORY_MTU,
            up: true,
            running: host.is_link_up(),
            loopback: addresses.iter().any(IpAddr::is_loopback),
            hardware: Vec::new(),
            addresses: addresses
                .into_iter()
                .map(|ip| netlink::Address { ip, prefix_len: 0 })
                .collect(),
            kernel_rdma: None,
        };
        let interfaces = Vec::from_iter(host.has_device().then_some(interface));
        if interfaces == self.interfaces {
            return Found::Same;
        }
        self.take(interfaces, None)
    }

    fn take(&mut self, interfaces: Vec<Interface>, default: Option<u32>) -> Found {
        let mut usable: Vec<&Interface> = Vec::new();
        self.own.clear();
        self.without_device.clear();
        let mut skipped = Vec::new();
        for interface in &interfaces {
            if interface.up {
                self.own
                    .extend(interface.addresses.iter().map(|address| address.ip));
            }
            match &interface.kernel_rdma {
                Some(rdma) if !interface.loopback => {
                    self.without_device
                        .extend(interface.addresses.iter().map(|address| address.ip));
                    skipped.push((interface.name.clone(), rdma.clone()));
                }
                // A device whose interface is down stays, and so does one that has lost its last address: who is bound to
                // the address hears of that.
                _ if (interface.up && !interface.addresses.is_empty())
                    || self.numbers.contains_key(&interface.name) =>
                {
                    usable.push(interface);
                }
                _ => {}
            }
        }
        // Stable: the others stay in the order of their indices.
        usable.sort_by_key(|interface| (interface.loopback, Some(interface.index) != default));
        let mut list = Vec::with_capacity(usable.len());
        for interface in usable {
            let next = self.numbers.len() as u32;
            let number = *self.numbers.entry(interface.name.clone()).or_insert(next);
            list.push(device(self.guid, number, interface));
        }
        for entry @ (interface, rdma) in &skipped {
            if !self.skipped.contains(entry) {
                tracing::warn!("interface {interface} is left to the kernel's RDMA device {rdma}");
            }
        }
        let is_another = |device: &&Device| {
            let before = self.list.iter().find(|before| before.index == device.index);
            before.is_some_and(|before| before.ifindex != device.ifindex)
        };
        let replaced = list
            .iter()
            .filter(is_another)
            .map(|device| device.index)
            .collect();
        self.skipped = skipped;
        self.list = list;
        self.interfaces = interfaces;
        Found::Changed { replaced }
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
            port_active: interface.is_some_and(|interface| interface.up && interface.running),
        }
    }
}

fn device(host: Guid, index: u32, interface: &Interface) -> Device {
    Device {
        index,
        name: format!("soft_{}", interface.name),
        guid: device_guid(host, &interface.name),
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
            running: true,
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
        let mut devices = Devices::new(Guid(1));
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

    /// An interface that was deleted and made anew has its number again, and is told apart from one that has stayed.
    #[test]
    fn a_device_that_reappears_has_its_number_and_is_known_for_another() {
        let mut devices = Devices::new(Guid(1));
        let lo = interface(1, "lo", "127.0.0.1");
        let numbers = |devices: &Devices| -> Vec<u32> {
            devices.list.iter().map(|device| device.index).collect()
        };
        let changed = |replaced: &[u32]| Found::Changed {
            replaced: replaced.to_vec(),
        };
        let eth0 = interface(2, "eth0", "192.0.2.1");
        devices.take(vec![lo.clone(), eth0.clone()], None);
        let guid = devices.list[0].guid;
        devices.take(vec![lo.clone()], None);
        assert_eq!(numbers(&devices), [1]);
        let again = Interface { index: 7, ..eth0 };
        assert_eq!(
            devices.take(vec![lo.clone(), again.clone()], None),
            changed(&[])
        );
        assert_eq!(
            (numbers(&devices), devices.list[0].guid),
            (vec![0, 1], guid)
        );
        let at_once = Interface {
            index: 8,
            ..again.clone()
        };
        assert_eq!(
            devices.take(vec![lo.clone(), at_once.clone()], None),
            changed(&[0])
        );
        // Without its last address the device is still there; down, too, but its port is not active.
        let bare = Interface {
            addresses: Vec::new(),
            ..at_once.clone()
        };
        devices.take(vec![lo.clone(), bare], None);
        assert_eq!(
            (numbers(&devices), devices.list[0].addresses.len()),
            (vec![0, 1], 0)
        );
        let down = Interface {
            up: false,
            running: false,
            ..at_once
        };
        devices.take(vec![lo.clone(), down.clone()], None);
        let active = |devices: &Devices| -> Vec<bool> {
            devices
                .infos()
                .iter()
                .map(|info| info.port_active)
                .collect()
        };
        assert_eq!(
            (numbers(&devices), active(&devices)),
            (vec![0, 1], vec![false, true])
        );
        devices.take(vec![lo.clone()], None);
        assert_eq!(numbers(&devices), [1]);
        // One that has never been up with an address is no device.
        let mut fresh = interface(9, "eth9", "192.0.2.9");
        fresh.addresses.clear();
        devices.take(vec![lo.clone(), fresh.clone()], None);
        assert_eq!(numbers(&devices), [1]);
        let asleep = Interface {
            up: false,
            ..interface(9, "eth9", "192.0.2.9")
        };
        devices.take(vec![lo, asleep], None);
        assert_eq!(numbers(&devices), [1]);
    }
}
