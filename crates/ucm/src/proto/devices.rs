//! Devices, as the service lists them.

use std::net::IpAddr;

use super::changes::{read_addresses, write_addresses};
use super::codec::{Malformed, Reader, Writer};
use super::reply::{PAGE_ROOM, fitting};
use super::{MAX_MESSAGE, MAX_NAME};

/// Some of the service's devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DevicePage {
    /// The devices, in order.
    pub devices: Vec<DeviceInfo>,
    /// Where to go on, when there are more.
    pub next: Option<u32>,
}

/// One device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Its index.
    pub index: u32,
    /// Its name; at most [`MAX_NAME`] bytes.
    pub name: String,
    /// Its GUID.
    pub guid: u64,
    /// Its only port.
    pub port_num: u8,
    /// The network interface.
    pub ifindex: u32,
    /// The network interface's name; at most [`MAX_NAME`] bytes.
    pub interface: String,
    /// Whether it is the loopback interface.
    pub is_loopback: bool,
    /// The network interface's MTU.
    pub netdev_mtu: u32,
    /// The path MTU that follows from it, encoded.
    pub path_mtu: u8,
    /// Reads and atomics that it takes as the responder.
    pub max_qp_rd_atom: u8,
    /// Reads and atomics that it issues as the requester.
    pub max_qp_init_rd_atom: u8,
    /// How long an acknowledgement takes it, encoded.
    pub local_ca_ack_delay: u8,
    /// The GID table, in order; an entry is an address.
    pub addresses: Vec<IpAddr>,
    /// Whether the link is up; true from a service before version 1.2.
    pub port_active: bool,
}

impl DevicePage {
    const LEAST: usize = 4 + 4 + 8 + 1 + 4 + 4 + 1 + 4 + 1 + 1 + 1 + 1 + 4;

    /// As many devices of `all` as fit, from the one at place `first` on.
    #[must_use]
    pub fn fill(all: &[DeviceInfo], first: u32) -> Self {
        let skip = usize::try_from(first).unwrap_or(usize::MAX);
        let (devices, more) = fitting(
            PAGE_ROOM,
            all.iter().skip(skip).cloned(),
            |device: &DeviceInfo, w: &mut Writer| {
                device.write(w);
                device.write_since_1_2(w);
            },
        );
        let next =
            more.then(|| first.saturating_add(u32::try_from(devices.len()).unwrap_or(u32::MAX)));
        Self { devices, next }
    }

    pub(super) fn write(&self, w: &mut Writer) {
        w.count(self.devices.len());
        for device in &self.devices {
            device.write(w);
        }
        w.option(self.next, Writer::u32);
        for device in &self.devices {
            device.write_since_1_2(w);
        }
    }

    pub(super) fn read(r: &mut Reader<'_>, since_1_2: bool) -> Result<Self, Malformed> {
        let count = r.count("number of devices", MAX_MESSAGE, Self::LEAST)?;
        let mut devices = Vec::with_capacity(count);
        for _ in 0..count {
            devices.push(DeviceInfo::read(r)?);
        }
        let next = r.option("next device", Reader::u32)?;
        if since_1_2 {
            for device in &mut devices {
                device.port_active = r.bool("port state")?;
            }
        }
        Ok(Self { devices, next })
    }
}

impl DeviceInfo {
    fn write(&self, w: &mut Writer) {
        w.u32(self.index);
        w.text(&self.name, MAX_NAME);
        w.u64(self.guid);
        w.u8(self.port_num);
        w.u32(self.ifindex);
        w.text(&self.interface, MAX_NAME);
        w.bool(self.is_loopback);
        w.u32(self.netdev_mtu);
        w.u8(self.path_mtu);
        w.u8(self.max_qp_rd_atom);
        w.u8(self.max_qp_init_rd_atom);
        w.u8(self.local_ca_ack_delay);
        write_addresses(&self.addresses, w);
    }

    /// What version 1.2 added. It follows the whole list, so that older programs read the list as they always did.
    fn write_since_1_2(&self, w: &mut Writer) {
        w.bool(self.port_active);
    }

    fn read(r: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            index: r.u32("device index")?,
            name: r.text("device name", MAX_NAME)?,
            guid: r.u64("device GUID")?,
            port_num: r.u8("port")?,
            ifindex: r.u32("interface index")?,
            interface: r.text("interface name", MAX_NAME)?,
            is_loopback: r.bool("loopback")?,
            netdev_mtu: r.u32("interface MTU")?,
            path_mtu: r.u8("path MTU")?,
            max_qp_rd_atom: r.u8("responder limit")?,
            max_qp_init_rd_atom: r.u8("initiator limit")?,
            local_ca_ack_delay: r.u8("acknowledgement delay")?,
            addresses: read_addresses(r)?,
            port_active: true,
        })
    }
}
