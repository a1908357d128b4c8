//! Network interfaces and their addresses.

use super::socket::ask;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{AddressAttribute, AddressHeaderFlags, AddressMessage};
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkMessage};
use std::collections::HashMap;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::Path;

/// One network interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// Its index, which is the scope of its link-local addresses.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Largest IP packet in bytes.
    pub mtu: u32,
    /// Whether it is up.
    pub up: bool,
    /// Whether it carries packets: it is up and has a carrier (IFF_RUNNING).
    pub running: bool,
    /// Whether it is the loopback interface.
    pub loopback: bool,
    /// Hardware address, empty if it has none.
    pub hardware: Vec<u8>,
    /// Its addresses that may be used, in the kernel's order.
    pub addresses: Vec<Address>,
    /// The kernel's RDMA device on this interface, if there is one.
    pub kernel_rdma: Option<String>,
}

/// One address of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address {
    /// The address.
    pub ip: IpAddr,
    /// Length of the prefix that is reached directly.
    pub prefix_len: u8,
}

impl Interface {
    /// Whether a packet to `ip` is delivered to this interface's host: one of its addresses, or any of 127/8 for the
    /// loopback interface.
    #[must_use]
    pub fn owns(&self, ip: IpAddr) -> bool {
        (self.loopback && ip.is_loopback()) || self.addresses.iter().any(|address| address.ip == ip)
    }
}

/// All interfaces of this network namespace, by index.
///
/// # Errors
/// No netlink socket to be had.
pub fn interfaces() -> io::Result<Vec<Interface>> {
    let rdma = kernel_rdma(Path::new("/sys/class/infiniband"));
    let mut found: Vec<Interface> = Vec::new();
    for message in ask(RouteNetlinkMessage::GetLink(LinkMessage::default()), true)? {
        if let RouteNetlinkMessage::NewLink(link) = message {
            found.extend(interface(&link, &rdma));
        }
    }
    for message in ask(
        RouteNetlinkMessage::GetAddress(AddressMessage::default()),
        true,
    )? {
        if let RouteNetlinkMessage::NewAddress(address) = message {
            add_address(&mut found, &address);
        }
    }
    found.sort_by_key(|interface| interface.index);
    Ok(found)
}

fn interface(link: &LinkMessage, rdma: &HashMap<String, String>) -> Option<Interface> {
    let mut interface = Interface {
        index: link.header.index,
        name: String::new(),
        mtu: 0,
        up: link.header.flags.contains(LinkFlags::Up),
        running: link.header.flags.contains(LinkFlags::Running),
        loopback: link.header.flags.contains(LinkFlags::Loopback),
        hardware: Vec::new(),
        addresses: Vec::new(),
        kernel_rdma: None,
    };
    for attribute in &link.attributes {
        match attribute {
            LinkAttribute::IfName(name) => interface.name.clone_from(name),
            LinkAttribute::Mtu(mtu) => interface.mtu = *mtu,
            LinkAttribute::Address(hardware) => interface.hardware.clone_from(hardware),
            _ => {}
        }
    }
    interface.kernel_rdma = rdma.get(&interface.name).cloned();
    (!interface.name.is_empty()).then_some(interface)
}

fn add_address(interfaces: &mut [Interface], message: &AddressMessage) {
    let unusable = AddressHeaderFlags::Tentative | AddressHeaderFlags::Dadfailed;
    if message.header.flags.intersects(unusable) {
        return;
    }
    let Some(interface) = interfaces
        .iter_mut()
        .find(|interface| interface.index == message.header.index)
    else {
        return;
    };
    // On a point-to-point link IFA_ADDRESS is the peer's and IFA_LOCAL ours; IPv6 has IFA_ADDRESS alone.
    let mut ip = None;
    for attribute in &message.attributes {
        match attribute {
            AddressAttribute::Local(local) => ip = Some(*local),
            AddressAttribute::Address(address) => ip = ip.or(Some(*address)),
            _ => {}
        }
    }
    let Some(ip) = ip else { return };
    let address = Address {
        ip,
        prefix_len: message.header.prefix_len,
    };
    if !interface.addresses.contains(&address) {
        interface.addresses.push(address);
    }
}

/// The kernel's RDMA devices by the network interface they belong to: that of the same hardware (`device/net`), that
/// of each GID (`ports/*/gid_attrs/ndevs`), that which a soft device was made on (`parent`).
fn kernel_rdma(class: &Path) -> HashMap<String, String> {
    let mut found = HashMap::new();
    for device in entries(class) {
        let path = class.join(&device);
        for name in entries(&path.join("device/net")) {
            found.insert(name, device.clone());
        }
        if let Ok(name) = fs::read_to_string(path.join("parent")) {
            found.insert(name.trim().to_owned(), device.clone());
        }
        for port in entries(&path.join("ports")) {
            let ndevs = path.join("ports").join(port).join("gid_attrs/ndevs");
            for gid in entries(&ndevs) {
                // An unused entry of the GID table answers with an error.
                if let Ok(name) = fs::read_to_string(ndevs.join(gid)) {
                    found.insert(name.trim().to_owned(), device.clone());
                }
            }
        }
    }
    found
}

/// Whether the kernel has an RDMA device of its own soft RoCE driver, and its name.
pub(crate) fn kernel_soft_roce() -> Option<String> {
    entries(Path::new("/sys/class/infiniband"))
        .into_iter()
        .find(|device| device.starts_with("rxe"))
}

fn entries(path: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(path) else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_owns_all_of_127() {
        let all = interfaces().unwrap();
        let lo = all
            .iter()
            .find(|interface| interface.loopback)
            .expect("every namespace has one");
        assert_eq!(lo.name, "lo");
        assert!(lo.owns("127.9.9.9".parse().unwrap()));
        assert!(!lo.owns("192.0.2.77".parse().unwrap()));
    }

    #[test]
    fn an_interface_of_a_kernel_rdma_device_is_found_in_each_of_three_places() {
        let class = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = class.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("mlx5_0/device/net/eth4/address", "");
        write("rxe0/parent", "eth5\n");
        write("irdma0/ports/1/gid_attrs/ndevs/0", "eth6\n");
        let found = kernel_rdma(class.path());
        let expected = [("eth4", "mlx5_0"), ("eth5", "rxe0"), ("eth6", "irdma0")];
        assert_eq!(
            found,
            expected
                .into_iter()
                .map(|(a, b)| (a.to_owned(), b.to_owned()))
                .collect()
        );
    }
}
