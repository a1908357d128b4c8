//! What happens to devices, as the service tells its clients unasked.

use std::net::IpAddr;

use super::codec::{Malformed, Reader, Writer};

/// Something that has happened to a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceChange {
    /// The device's index.
    pub device: u32,
    /// What has happened.
    pub kind: DeviceChangeKind,
}

/// What can happen to a device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceChangeKind {
    /// The link is down: nothing passes the port.
    PortError,
    /// The link is up again.
    PortActive,
    /// The GID table is another: these addresses, in order.
    Addresses(Vec<IpAddr>),
    /// The device is no longer there; its queue pairs have no use.
    Removed,
    /// A device with the index of one that had been removed is there.
    Returned,
}

impl DeviceChangeKind {
    /// Whether both say the same of a device, however they say it.
    #[must_use]
    pub fn is_like(&self, other: &Self) -> bool {
        self.code() == other.code()
    }

    const fn code(&self) -> u8 {
        match self {
            Self::PortError => 1,
            Self::PortActive => 2,
            Self::Addresses(_) => 3,
            Self::Removed => 4,
            Self::Returned => 5,
        }
    }
}

impl DeviceChange {
    pub(super) const LEAST: usize = 4 + 1;

    pub(super) fn write(&self, w: &mut Writer) {
        w.u32(self.device);
        w.u8(self.kind.code());
        if let DeviceChangeKind::Addresses(addresses) = &self.kind {
            write_addresses(addresses, w);
        }
    }

    pub(super) fn read(r: &mut Reader<'_>) -> Result<Self, Malformed> {
        let device = r.u32("device index")?;
        let kind = match r.u8("kind of change")? {
            1 => DeviceChangeKind::PortError,
            2 => DeviceChangeKind::PortActive,
            3 => DeviceChangeKind::Addresses(read_addresses(r)?),
            4 => DeviceChangeKind::Removed,
            5 => DeviceChangeKind::Returned,
            value => {
                return Err(Malformed::OutOfRange {
                    field: "kind of change",
                    value: value.into(),
                    max: 5,
                });
            }
        };
        Ok(Self { device, kind })
    }
}

/// A GID table has at most 256 entries; what is above that could not be named by an index anyway.
pub(super) fn write_addresses(addresses: &[IpAddr], w: &mut Writer) {
    let addresses = &addresses[..addresses.len().min(MAX_ADDRESSES)];
    w.count(addresses.len());
    for &address in addresses {
        w.ip(address);
    }
}

pub(super) fn read_addresses(r: &mut Reader<'_>) -> Result<Vec<IpAddr>, Malformed> {
    let count = r.count("number of addresses", MAX_ADDRESSES, 5)?;
    (0..count).map(|_| r.ip("address")).collect()
}

const MAX_ADDRESSES: usize = 256;
