//! What has changed between two looks at the devices.

use oarlock_ucm::proto::{DeviceChange, DeviceChangeKind, DeviceInfo};
use std::collections::BTreeSet;

/// The changes in an order that makes sense to those who have the device open. `gone` are devices that have been there at an earlier look;
/// it is brought up to date.
pub(super) fn between(
    before: &[DeviceInfo],
    after: &[DeviceInfo],
    gone: &mut BTreeSet<u32>,
) -> Vec<DeviceChange> {
    let mut changes = Vec::new();
    let mut tell = |device: u32, kind| changes.push(DeviceChange { device, kind });
    for old in before {
        let new = after.iter().find(|new| new.index == old.index);
        let is_another = |new: &DeviceInfo| new.ifindex != old.ifindex || new.guid != old.guid;
        match new {
            Some(new) if !is_another(new) => {
                if new.addresses != old.addresses {
                    let addresses = new.addresses.clone();
                    tell(old.index, DeviceChangeKind::Addresses(addresses));
                }
                match (old.port_active, new.port_active) {
                    (true, false) => tell(old.index, DeviceChangeKind::PortError),
                    (false, true) => tell(old.index, DeviceChangeKind::PortActive),
                    _ => {}
                }
            }
            _ => {
                if old.port_active {
                    tell(old.index, DeviceChangeKind::PortError);
                }
                tell(old.index, DeviceChangeKind::Removed);
                gone.insert(old.index);
            }
        }
    }
    for new in after {
        if gone.remove(&new.index) {
            tell(new.index, DeviceChangeKind::Returned);
            if new.port_active {
                tell(new.index, DeviceChangeKind::PortActive);
            }
        }
    }
    changes
}

#[cfg(test)]
mod tests {
    use super::*;
    use DeviceChangeKind::{Addresses, PortActive, PortError, Removed, Returned};

    fn device(index: u32) -> DeviceInfo {
        DeviceInfo {
            index,
            name: format!("soft_eth{index}"),
            guid: u64::from(index) + 100,
            port_num: 1,
            ifindex: index + 10,
            interface: format!("eth{index}"),
            is_loopback: false,
            netdev_mtu: 1500,
            path_mtu: 3,
            max_qp_rd_atom: 16,
            max_qp_init_rd_atom: 16,
            local_ca_ack_delay: 15,
            addresses: vec!["192.0.2.1".parse().unwrap()],
            port_active: true,
        }
    }

    #[test]
    fn each_change_is_told_of_the_device_that_it_happened_to() {
        let all = [device(0), device(1)];
        let mut gone = BTreeSet::new();
        let mut look = |before: &[DeviceInfo], after: &[DeviceInfo]| -> Vec<_> {
            let changes = between(before, after, &mut gone);
            changes
                .into_iter()
                .map(|change| (change.device, change.kind))
                .collect()
        };
        assert_eq!(look(&[], &all), [], "at the start");
        assert_eq!(look(&all, &all), []);
        let mut down = all.clone();
        down[1].port_active = false;
        assert_eq!(look(&all, &down), [(1, PortError)]);
        assert_eq!(look(&down, &all), [(1, PortActive)]);
        let mut moved = all.clone();
        moved[0].addresses = vec!["192.0.2.2".parse().unwrap()];
        let addresses = Addresses(moved[0].addresses.clone());
        assert_eq!(look(&all, &moved), [(0, addresses)]);
        assert_eq!(look(&all, &all[..1]), [(1, PortError), (1, Removed)]);
        assert_eq!(look(&all[..1], &all[..1]), []);
        assert_eq!(look(&all[..1], &all), [(1, Returned), (1, PortActive)]);
        // Deleted and made anew between two looks.
        let mut replaced = all.clone();
        replaced[1].ifindex = 99;
        let expected = [(1, PortError), (1, Removed), (1, Returned), (1, PortActive)];
        assert_eq!(look(&all, &replaced), expected);
        // A device that is new has no story.
        assert_eq!(look(&all, &[device(0), device(1), device(2)]), []);
    }
}
