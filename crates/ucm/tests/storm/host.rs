//! A host: the dispatcher, what its programs have, its devices, and the memberships of its interfaces.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use oarlock_cm::Seed;
use oarlock_cma::{
    AlternatePaths, Config, Device, Errno, Limits, Lookup, LookupError, Membership,
    MembershipAction, MembershipToken, Route,
};
use oarlock_ucm::{FileId, Owner, Ucm};
use oarlock_wire::{Gid, Guid};

use crate::faults::Fault;
use crate::ledger::Ledger;
use crate::program::End;
use crate::qp::{Qp, UdQp};
use crate::world::{ACTIVE, CONNECT_DEADLINE};

/// Identifiers of a side are spread over so many channels, and move to as many others, or each to its own.
pub(crate) const CHANNELS: usize = 4;
/// Channels of the programs that are not the spine's.
pub(crate) const WILD_CHANNELS: usize = 3;

pub(crate) struct Host {
    pub(crate) ucm: Ucm,
    pub(crate) ledger: Ledger,
    pub(crate) qps: BTreeMap<u32, Qp>,
    pub(crate) datagram_qps: BTreeMap<u32, UdQp>,
    /// Channels that the spine's identifiers start on; on the passive side there is one, the listener's.
    pub(crate) old: Vec<FileId>,
    /// Channels that they move to: the first few are shared, then one for each connection.
    pub(crate) new: Vec<FileId>,
    /// Channels of the others.
    pub(crate) wild: Vec<FileId>,
    pub(crate) ends: Vec<End>,
    pub(crate) reading: BTreeSet<FileId>,
    pub(crate) devices: Present,
    pub(crate) interfaces: Interfaces,
    /// Calls that lead to a route lookup.
    pub(crate) lookups_asked: u64,
}

/// The address that stays, on the first device.
pub(crate) fn address(host: usize) -> IpAddr {
    IpAddr::from([10, 0, 0, host as u8 + 1])
}

/// The address of the second device, which comes and goes.
pub(crate) fn volatile(host: usize) -> IpAddr {
    IpAddr::from([10, 1, 0, host as u8 + 1])
}

/// Another address of the second device, which comes and goes by itself too.
pub(crate) fn movable(host: usize) -> IpAddr {
    IpAddr::from([10, 2, 0, host as u8 + 1])
}

/// What there is of a host's devices.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Present {
    pub(crate) devices: [bool; 2],
    pub(crate) movable: bool,
}

impl Present {
    pub(crate) fn owns(&self, side: usize, ip: IpAddr) -> bool {
        let devices = self.list(side);
        devices.iter().any(|device| device.addresses.contains(&ip))
    }

    pub(crate) fn list(&self, side: usize) -> Vec<Device> {
        let mut second = vec![volatile(side)];
        second.extend(self.movable.then(|| movable(side)));
        let addresses = [vec![address(side)], second];
        let present = addresses.into_iter().enumerate();
        let present = present.filter(|(index, _)| self.devices[*index]);
        let device = |(index, addresses)| Device {
            index: index as u32,
            name: format!("dev{side}{index}"),
            guid: Guid(0x1000 + 16 * index as u64 + side as u64),
            port_num: 1,
            ifindex: ifindex(index),
            is_loopback: false,
            netdev_mtu: 1500,
            addresses,
            limits: Limits::default(),
        };
        present.map(device).collect()
    }

    /// The system's answer to a lookup.
    pub(crate) fn route(&self, side: usize, lookup: &Lookup) -> Result<Route, LookupError> {
        let (source, device) = match lookup.destination {
            IpAddr::V4(ip) if ip.octets()[1] == 1 => (volatile(side), 1),
            IpAddr::V4(ip) if ip.octets()[1] == 2 => (movable(side), 1),
            _ => (address(side), 0),
        };
        if !self.owns(side, source) {
            return Err(LookupError::Unreachable(Errno::ENETUNREACH));
        }
        Ok(Route {
            source,
            ifindex: ifindex(device),
            gateway: None,
            hop_limit: 64,
            mtu: 1500,
            is_local: false,
        })
    }
}

/// The interface of a device.
pub(crate) fn ifindex(device: usize) -> u32 {
    device as u32 + 2
}

/// Which groups the interfaces of a host are members of. It makes the changes in the order in which they come, and knows what
/// cannot come.
#[derive(Debug, Default)]
pub(crate) struct Interfaces {
    /// By the join that made it, and whether it was granted.
    members: BTreeMap<(u32, IpAddr), (MembershipToken, bool)>,
}

impl Interfaces {
    pub(crate) fn apply(&mut self, membership: &Membership, refuse: bool) -> Result<(), String> {
        let key = (membership.ifindex, membership.group);
        match membership.action {
            MembershipAction::Join => {
                let member = (membership.token, !refuse);
                match self.members.insert(key, member) {
                    None => Ok(()),
                    Some(_) => Err(format!("{key:?} is joined a second time")),
                }
            }
            MembershipAction::Leave => match self.members.remove(&key) {
                Some(_) => Ok(()),
                None => Err(format!("{key:?} is left and was not joined")),
            },
            other => Err(format!("{other:?} is new here")),
        }
    }

    /// Nobody leaves what was refused, so that it is forgotten when that is said.
    pub(crate) fn answered(&mut self, token: MembershipToken) {
        self.members
            .retain(|_, (join, granted)| *granted || *join != token);
    }

    pub(crate) fn is_member(&self, ifindex: u32, group: IpAddr) -> bool {
        self.members
            .get(&(ifindex, group))
            .is_some_and(|(_, granted)| *granted)
    }

    pub(crate) fn len(&self) -> usize {
        self.members.len()
    }
}

impl Host {
    pub(crate) fn new(side: usize, seed: u64, connections: usize, fault: Fault) -> Self {
        let mut config = Config::default();
        config.cm.ca_guid = Guid(0x1000 + side as u64);
        // Without it, a peer that said "I am working on it" (MRA) and fell silent is waited for up to a quarter of an hour.
        config.connect_deadline = Some(CONNECT_DEADLINE);
        let is_misjudged = fault == Fault::PathsAreMisjudged;
        if accepts_alternates(side, seed) != is_misjudged {
            config.alternate_paths = AlternatePaths::Accept;
        }
        let mut seed_bytes = [side as u8; 32];
        seed_bytes[..8].copy_from_slice(&seed.to_le_bytes());
        let mut ucm = Ucm::new(config, Seed(seed_bytes));
        let devices = Present {
            devices: [true, true],
            movable: true,
        };
        ucm.set_devices(oarlock_wire::Time::ZERO, devices.list(side));
        let mut open = |count| {
            (0..count)
                .map(|_| ucm.open(Owner(1)).expect("few channels"))
                .collect::<Vec<_>>()
        };
        let old = open(if side == ACTIVE { CHANNELS } else { 1 });
        let new = open(CHANNELS + connections);
        let wild = open(WILD_CHANNELS);
        Self {
            ucm,
            ledger: Ledger::default(),
            qps: BTreeMap::new(),
            datagram_qps: BTreeMap::new(),
            old,
            new,
            wild,
            ends: (0..connections).map(|_| End::default()).collect(),
            reading: BTreeSet::new(),
            devices,
            interfaces: Interfaces::default(),
            lookups_asked: 0,
        }
    }

    pub(crate) fn counter(&self, wanted: &str) -> u64 {
        let counters = self.ucm.counters();
        let found = counters.iter().find(|(name, _)| name == wanted);
        found
            .unwrap_or_else(|| panic!("there is no counter {wanted}"))
            .1
    }
}

/// Whether a host takes alternate paths.
pub(crate) fn accepts_alternates(side: usize, seed: u64) -> bool {
    (seed >> side) & 2 != 0
}

/// The GID of a side's first address.
pub(crate) fn gid(side: usize) -> Gid {
    Gid::from_ip(address(side))
}
