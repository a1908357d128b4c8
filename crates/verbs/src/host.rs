//! Contexts on a host service: who shares what within the process.

use std::error::Error as StdError;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use oarlock_device::{DeviceInfo, DeviceLimits, Endpoint, PortSource};
use oarlock_hostd::Host;
use oarlock_port::Port;
use oarlock_wire::{Gid, Guid, IbTimeout};

use crate::context::{Context, Inner};
use crate::error::Error;

/// What this process has open on one host.
struct Open {
    host: u64,
    endpoint: Weak<Endpoint>,
    contexts: Vec<(u32, Weak<Inner>)>,
}

static OPEN: Mutex<Vec<Open>> = Mutex::new(Vec::new());

impl Open {
    /// What is open of a device.
    fn context(&self, index: u32) -> Option<Arc<Inner>> {
        let (_, inner) = self.contexts.iter().find(|(known, _)| *known == index)?;
        inner.upgrade()
    }
}

pub(crate) fn opened(host: &Host, index: u32) -> Option<Context> {
    let all = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    let open = all.iter().find(|open| open.host == host.id())?;
    open.context(index).map(Context::from_inner)
}

pub(crate) fn open(host: &Host, index: u32) -> Result<Context, Error> {
    let device = find(host, index)?;
    let mut all = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    // What nobody holds any more goes.
    all.retain(|open| open.endpoint.strong_count() > 0);
    let known = all.iter_mut().find(|open| open.host == host.id());
    if let Some(inner) = known.as_ref().and_then(|open| open.context(index)) {
        inner.set_gids(&device.gids);
        return Ok(Context::from_inner(inner));
    }
    let endpoint = match known.as_ref().and_then(|open| open.endpoint.upgrade()) {
        Some(endpoint) => endpoint,
        None => Endpoint::new(Box::new(HostPort(host.clone())))?,
    };
    let context = Context::new(device, &endpoint, Some(host.clone()))?;
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
    let devices = host.devices()?;
    let translated = devices.into_iter().map(|device| DeviceInfo {
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
    });
    Ok(translated.collect())
}

pub(crate) fn find(host: &Host, index: u32) -> Result<DeviceInfo, Error> {
    let mut devices = devices(host)?;
    match devices.iter().position(|device| device.index == index) {
        Some(position) => Ok(devices.swap_remove(position)),
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

    fn port_closed(&self, slot: u8) {
        self.0.return_slot(slot);
    }
}
