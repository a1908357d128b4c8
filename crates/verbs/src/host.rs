//! Contexts on a host service: who shares what within the process.

use std::error::Error as StdError;
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use oarlock_device::{DeviceChange, DeviceInfo, DeviceLimits, Endpoint, PortSource};
use oarlock_hostd::{self as hostd, DeviceChangeKind, Host};
use oarlock_port::fault::DeviceFault;
use oarlock_port::fork::PerProcess;
use oarlock_port::{DeviceStatistics, Port};
use oarlock_wire::{Gid, Guid, IbTimeout};

use crate::context::{Context, Inner};
use crate::error::Error;

/// What this process has open on one host.
struct Open {
    host: u64,
    endpoint: Weak<Endpoint>,
    contexts: Vec<(u32, Weak<Inner>)>,
}

/// A forked child begins with nothing: what its parent has open is the parent's, and so is the lock.
static OPEN: PerProcess<Mutex<Vec<Open>>> = PerProcess::new(|_| Mutex::default());

fn all_open() -> MutexGuard<'static, Vec<Open>> {
    OPEN.get().lock().unwrap_or_else(PoisonError::into_inner)
}

impl Open {
    /// What is open of a device.
    fn context(&self, index: u32) -> Option<Arc<Inner>> {
        let (_, inner) = self.contexts.iter().find(|(known, _)| *known == index)?;
        inner.upgrade()
    }
}

/// The endpoint of this process on `host`, made when nobody has one: what all contexts on the host share.
pub(crate) fn endpoint(host: &Host) -> Result<Arc<Endpoint>, Error> {
    let mut all = all_open();
    all.retain(|open| open.endpoint.strong_count() > 0);
    let known = all.iter().find(|open| open.host == host.id());
    if let Some(endpoint) = known.and_then(|open| open.endpoint.upgrade()) {
        return Ok(endpoint);
    }
    let endpoint = Endpoint::new(Box::new(HostPort(host.clone())))?;
    all.retain(|open| open.host != host.id());
    all.push(Open {
        host: host.id(),
        endpoint: Arc::downgrade(&endpoint),
        contexts: Vec::new(),
    });
    Ok(endpoint)
}

pub(crate) fn opened(host: &Host, index: u32) -> Option<Context> {
    let all = all_open();
    let open = all.iter().find(|open| open.host == host.id())?;
    open.context(index).map(Context::from_inner)
}

pub(crate) fn open(host: &Host, index: u32) -> Result<Context, Error> {
    let (device, is_active) = find(host, index)?;
    let mut all = all_open();
    // What nobody holds any more goes.
    all.retain(|open| open.endpoint.strong_count() > 0);
    let known = all.iter_mut().find(|open| open.host == host.id());
    if let Some(inner) = known.as_ref().and_then(|open| open.context(index)) {
        inner.learn(&device, is_active);
        return Ok(Context::from_inner(inner));
    }
    let endpoint = match known.as_ref().and_then(|open| open.endpoint.upgrade()) {
        Some(endpoint) => endpoint,
        None => Endpoint::new(Box::new(HostPort(host.clone())))?,
    };
    let context = Context::new(device, &endpoint, Some(host.clone()))?;
    context.device_context().set_port_active(is_active);
    let entry = (index, context.downgrade());
    match known {
        Some(open) => {
            open.endpoint = Arc::downgrade(&endpoint);
            open.contexts.retain(|(_, inner)| inner.strong_count() > 0);
            open.contexts.push(entry);
        }
        None => all.push(Open {
            host: host.id(),
            endpoint: Arc::downgrade(&endpoint),
            contexts: vec![entry],
        }),
    }
    Ok(context)
}

pub(crate) fn devices(host: &Host) -> Result<Vec<DeviceInfo>, Error> {
    let devices = devices_with_state(host)?.into_iter();
    Ok(devices.map(|(device, _)| device).collect())
}

/// The devices, each with whether its port carries packets.
pub(crate) fn devices_with_state(host: &Host) -> Result<Vec<(DeviceInfo, bool)>, Error> {
    let devices = host.devices()?.into_iter();
    Ok(devices
        .map(|device| {
            let is_active = device.port_active;
            (translated(device), is_active)
        })
        .collect())
}

fn translated(device: hostd::DeviceInfo) -> DeviceInfo {
    DeviceInfo {
        index: device.index,
        name: device.name,
        guid: Guid(device.guid),
        port_num: device.port_num,
        ifindex: device.ifindex,
        is_loopback: device.is_loopback,
        netdev_mtu: device.netdev_mtu,
        gids: device.addresses.into_iter().map(Gid::from_ip).collect(),
        limits: DeviceLimits {
            max_qp_rd_atom: device.max_qp_rd_atom,
            max_qp_init_rd_atom: device.max_qp_init_rd_atom,
            local_ca_ack_delay: IbTimeout::truncate(device.local_ca_ack_delay),
            ..DeviceLimits::default()
        },
    }
}

/// A device, and whether its port carries packets.
pub(crate) fn find(host: &Host, index: u32) -> Result<(DeviceInfo, bool), Error> {
    let mut devices = host.devices()?;
    match devices.iter().position(|device| device.index == index) {
        Some(position) => {
            let device = devices.swap_remove(position);
            let is_active = device.port_active;
            Ok((translated(device), is_active))
        }
        None => {
            let names = devices
                .iter()
                .map(|device| format!("{} {}", device.index, device.name));
            let listed: Vec<_> = names.collect();
            Err(Error::NoSuchDevice {
                index,
                devices: if listed.is_empty() {
                    "none".to_owned()
                } else {
                    listed.join(", ")
                },
            })
        }
    }
}

/// Takes the slot from the host service; keeps the connection to it.
struct HostPort(Host);

impl PortSource for HostPort {
    fn take_port(&self) -> Result<Port, Box<dyn StdError + Send + Sync>> {
        Ok(self.0.take_slot()?)
    }

    fn gone_fd(&self) -> io::Result<Option<OwnedFd>> {
        self.0.gone_fd().map(Some)
    }

    fn changes_fd(&self) -> io::Result<Option<OwnedFd>> {
        self.0.changes_fd().map_err(io::Error::other)
    }

    fn take_changes(&self) -> Vec<(u32, DeviceChange)> {
        let changes = self.0.take_changes().into_iter();
        changes
            .filter_map(|change| Some((change.device, change_of(change.kind)?)))
            .collect()
    }

    fn statistics_interval(&self) -> Option<Duration> {
        Some(STATISTICS_INTERVAL)
    }

    fn publish_statistics(&self, statistics: &[DeviceStatistics]) {
        self.0.publish_statistics(statistics);
    }

    fn inject(&self, fault: DeviceFault, local: IpAddr) {
        self.0.fail_device(fault, local);
    }

    fn port_closed(&self, slot: u8) {
        self.0.return_slot(slot);
    }
}

fn change_of(kind: DeviceChangeKind) -> Option<DeviceChange> {
    Some(match kind {
        DeviceChangeKind::PortError => DeviceChange::PortError,
        DeviceChangeKind::PortActive => DeviceChange::PortActive,
        DeviceChangeKind::Addresses(addresses) => {
            DeviceChange::Gids(addresses.into_iter().map(Gid::from_ip).collect())
        }
        DeviceChangeKind::Removed => DeviceChange::Removed,
        DeviceChangeKind::Returned => DeviceChange::Returned,
        // A newer service may tell of more.
        _ => return None,
    })
}

/// How often whoever looks at this process from outside gets new figures.
const STATISTICS_INTERVAL: Duration = Duration::from_millis(100);
