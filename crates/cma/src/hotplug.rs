//! Devices and addresses that come and go.

use crate::{ChannelId, Cma, Counter, Device, EventKind, Id, State};
use oarlock_wire::{Gid, Time};
use std::net::IpAddr;

/// What can be made to seem to happen to a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pretence {
    /// It goes away.
    Removal,
    /// Its address changes.
    AddressChange,
}

impl Cma {
    /// Tells which devices there are, in the order of preference.
    ///
    /// Identifiers of a device that is no longer among them get DEVICE_REMOVAL, once, and are good for nothing but
    /// destruction: their connections are gone, with a last word to the peer. A device that comes, also one that comes back,
    /// serves identifiers that are bound from now on, and listeners on any address.
    ///
    /// Identifiers whose address is gone from a device that stays, and those of a device that stays in number but has
    /// become another one (its GUID or its interface differs), get ADDR_CHANGE, once for each call; nothing else about them
    /// changes. An address that comes, and a change of the neighbour or the path, are no events.
    ///
    /// Deviation: the kernel raises ADDR_CHANGE when a bonded interface fails over only, and UNREACHABLE when a neighbour's
    /// hardware address changes, in whatever state, which kills connections that work.
    pub fn set_devices(&mut self, now: Time, devices: Vec<Device>) {
        self.cm.set_local_gids(
            devices
                .iter()
                .flat_map(|device| &device.addresses)
                .copied()
                .map(Gid::from_ip),
        );
        let before = self.devices.replace(devices);
        if !before.is_empty() {
            self.compare_devices(now, &before);
        }
    }

    /// Tells which local addresses belong to interfaces without a device, so that binding one of them is told apart
    /// from binding a foreign address.
    pub fn set_addresses_without_device(&mut self, addresses: Vec<IpAddr>) {
        self.devices.set_without_device(addresses);
    }

    /// Finds the identifiers that a change of the devices concerns.
    fn compare_devices(&mut self, now: Time, before: &[Device]) {
        let changed = |old: &&Device| self.devices.get(old.index) != Some(*old);
        let before: Vec<&Device> = before.iter().filter(changed).collect();
        if before.is_empty() {
            return;
        }
        let (mut orphans, mut moved) = (Vec::new(), Vec::new());
        for (key, ident) in self.ids.iter() {
            let bound = ident.device.filter(|_| ident.state != State::DeviceRemoval);
            let Some(old) = bound.and_then(|index| before.iter().find(|old| old.index == index))
            else {
                continue;
            };
            match self.devices.get(old.index) {
                None => orphans.push(Id::from(key)),
                Some(new)
                    if (new.guid, new.ifindex) != (old.guid, old.ifindex)
                        || ident.gids().any(|gid| {
                            old.sgid_index(gid).is_some() && new.sgid_index(gid).is_none()
                        }) =>
                {
                    moved.push(Id::from(key));
                }
                Some(_) => {}
            }
        }
        for id in moved {
            self.counters.count(Counter::AddressChanges);
            self.report(id, EventKind::ADDR_CHANGE, 0);
        }
        for id in orphans {
            self.orphan(now, id);
        }
        self.pump(now);
    }

    /// The device of an identifier has gone.
    fn orphan(&mut self, now: Time, id: Id) {
        self.cut_off(now, id);
        if let Some(ident) = self.ids.get_mut(id.into()) {
            ident.state = State::DeviceRemoval;
        }
        self.report(id, EventKind::DEVICE_REMOVAL, 0);
    }

    /// Lets something happen to a device as far as the identifiers on some channels are concerned; the device itself stays. For
    /// tests of programs.
    pub fn pretend(
        &mut self,
        now: Time,
        device: u32,
        what: Pretence,
        concerns: impl Fn(ChannelId) -> bool,
    ) {
        let bound = self.ids.iter().filter(|(_, ident)| {
            ident.device == Some(device)
                && ident.state != State::DeviceRemoval
                && concerns(ident.channel)
        });
        for id in bound.map(|(key, _)| Id::from(key)).collect::<Vec<_>>() {
            match what {
                Pretence::Removal => self.orphan(now, id),
                Pretence::AddressChange => {
                    self.counters.count(Counter::AddressChanges);
                    self.report(id, EventKind::ADDR_CHANGE, 0);
                }
            }
        }
        self.pump(now);
    }
}
