//! What is told of a device, as the JSON report carries it.

use oarlock_hostd::DeviceInfo as Interface;
use oarlock_verbs::{AtomicCapability, DeviceInfo};
use serde::Serialize;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// The report.
#[derive(Debug, Serialize)]
pub(super) struct Listing {
    pub(super) devices: Vec<Device>,
}

/// One device, with its only port.
#[derive(Debug, Serialize)]
pub(super) struct Device {
    pub(super) index: u32,
    pub(super) name: String,
    /// As C programs print it: four groups of four hexadecimal digits.
    pub(super) guid: String,
    /// The network interface behind it.
    pub(super) interface: String,
    pub(super) ifindex: u32,
    /// What carries it: RoCEv2 over UDP.
    pub(super) transport: &'static str,
    pub(super) is_loopback: bool,
    pub(super) port: Port,
    pub(super) gids: Vec<Entry>,
    pub(super) limits: BTreeMap<&'static str, u64>,
    pub(super) capabilities: Vec<&'static str>,
    /// Against what atomic operations are atomic.
    pub(super) atomic: &'static str,
    /// Sums over the programs of this host, under the names of rdma-statistic(8).
    pub(super) statistics: BTreeMap<String, u64>,
}

#[derive(Debug, Serialize)]
pub(super) struct Port {
    pub(super) number: u8,
    pub(super) state: &'static str,
    pub(super) link_layer: &'static str,
    /// Bytes of payload in a packet, as the interface carries them.
    pub(super) active_mtu: u16,
    pub(super) max_mtu: u16,
    /// That of the interface.
    pub(super) netdev_mtu: u32,
}

/// An entry of the GID table.
#[derive(Debug, Serialize)]
pub(super) struct Entry {
    pub(super) index: usize,
    /// In full, as in /sys/class/infiniband/*/ports/1/gids.
    pub(super) gid: String,
    pub(super) r#type: &'static str,
    pub(super) address: IpAddr,
}

impl Device {
    pub(super) fn new(
        info: &DeviceInfo,
        interface: &Interface,
        statistics: Vec<(String, u64)>,
    ) -> Self {
        let limits = &info.limits;
        Self {
            index: info.index,
            name: info.name.clone(),
            guid: groups(&info.guid.0.to_be_bytes()),
            interface: interface.interface.clone(),
            ifindex: info.ifindex,
            transport: "RoCEv2 (UDP port 4791)",
            is_loopback: info.is_loopback,
            port: Port {
                number: info.port_num,
                state: if interface.port_active {
                    "active"
                } else {
                    "down"
                },
                link_layer: "Ethernet",
                active_mtu: info.max_path_mtu().bytes().unwrap_or(0),
                max_mtu: MAX_MTU,
                netdev_mtu: info.netdev_mtu,
            },
            gids: info
                .gids
                .iter()
                .enumerate()
                .map(|(index, gid)| Entry {
                    index,
                    gid: groups(&gid.0),
                    r#type: "RoCE v2",
                    address: gid.to_ip(),
                })
                .collect(),
            limits: BTreeMap::from([
                ("max_qp", limits.max_qp.into()),
                ("max_qp_wr", limits.max_qp_wr.into()),
                ("max_sge", limits.max_sge.into()),
                ("max_inline_data", limits.max_inline_data.into()),
                ("max_cq", limits.max_cq.into()),
                ("max_cqe", limits.max_cqe.into()),
                ("max_mr", limits.max_mr.into()),
                ("max_mr_size", limits.max_mr_size),
                ("max_mw", limits.max_mw.into()),
                ("max_pd", limits.max_pd.into()),
                ("max_ah", limits.max_ah.into()),
                ("max_srq", limits.max_srq.into()),
                ("max_srq_wr", limits.max_srq_wr.into()),
                ("max_srq_sge", limits.max_srq_sge.into()),
                ("max_xrcd", limits.max_xrcd.into()),
                ("max_mcast_grp", limits.max_mcast_grp.into()),
                ("max_mcast_qp_attach", limits.max_mcast_qp_attach.into()),
                (
                    "max_total_mcast_qp_attach",
                    limits.max_total_mcast_qp_attach().into(),
                ),
                ("max_pkeys", limits.max_pkeys.into()),
                ("max_qp_rd_atom", limits.max_qp_rd_atom.into()),
                ("max_qp_init_rd_atom", limits.max_qp_init_rd_atom.into()),
                ("max_res_rd_atom", limits.max_res_rd_atom().into()),
                ("local_ca_ack_delay", limits.local_ca_ack_delay.get().into()),
            ]),
            capabilities: limits
                .capabilities
                .iter_names()
                .map(|(name, _)| name)
                .collect(),
            atomic: match limits.atomic {
                AtomicCapability::None => "none",
                AtomicCapability::Device => "device",
                AtomicCapability::Global => "global",
            },
            statistics: statistics.into_iter().collect(),
        }
    }
}

/// Groups of four digits.
fn groups(bytes: &[u8]) -> String {
    let groups: Vec<String> = bytes
        .chunks_exact(2)
        .map(|pair| format!("{:02x}{:02x}", pair[0], pair[1]))
        .collect();
    groups.join(":")
}

const MAX_MTU: u16 = 4096;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices::ask;

    /// All that a program can learn of a device is told, and what the text form of a GID hides is written out.
    #[test]
    fn a_private_device_is_described_in_full() {
        let host = oarlock_hostd::Host::private().unwrap();
        let devices = ask(&host).unwrap();
        assert!(!devices.is_empty());
        for device in &devices {
            assert_eq!(device.port.state, "active");
            assert_eq!(device.guid.len(), 19, "{}", device.guid);
            assert!(device.limits.values().all(|limit| *limit > 0), "{device:?}");
            assert!(device.capabilities.contains(&"MEMORY_WINDOW_TYPE_2B"));
            assert!(
                device
                    .gids
                    .iter()
                    .enumerate()
                    .all(|(at, gid)| gid.index == at)
            );
        }
        let gid = oarlock_wire::Gid::from_ip("192.0.2.1".parse().unwrap());
        assert_eq!(groups(&gid.0), "0000:0000:0000:0000:0000:ffff:c000:0201");
    }
}
