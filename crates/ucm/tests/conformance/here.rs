//! Our own service as a subject: a `Ucm` with a virtual clock and link.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use oarlock_cm::Seed;
use oarlock_cma::{Config, Device, Errno, Limits, Lookup, LookupError, MembershipAction, Route};
use oarlock_ucm::proto::{WriteBatch, WriteItem};
use oarlock_ucm::{FileId, Owner, Ucm};
use oarlock_wire::{AddressVector, FlowLabel, Gid, Guid, Time};

use crate::subject::{File, HostEvent, Mode, OldFile, Peer, Refused, Subject, Write};

const OWNER: Owner = Owner(1);
const ENETUNREACH: Errno = Errno(101);

pub(crate) struct Here {
    now: Time,
    ucm: Ucm,
    files: Vec<FileId>,
    device: Option<Device>,
    inbox: BTreeMap<Peer, VecDeque<[u8; 256]>>,
}

/// Names and addresses: the first device has LOCAL, LOCAL2, LOCAL6 and the link-local LL6, the second one SECOND.
const ADDRESSES: [(&str, &str, u32); 18] = [
    ("LOCAL", "10.0.0.1", 0),
    ("LOCAL2", "10.0.0.11", 0),
    ("LOCAL6", "2001:db8::1", 0),
    ("LL6", "fe80::1", 2),
    ("LL6_UNSCOPED", "fe80::1", 0),
    ("SECOND", "10.0.1.1", 0),
    ("OTHER", "10.0.0.2", 0),
    ("OTHER6", "2001:db8::2", 0),
    ("STRANGER", "10.0.0.3", 0),
    ("ABSENT", "10.0.0.99", 0),
    ("UNROUTED", "192.0.2.1", 0),
    ("NODEVICE", "10.0.2.1", 0),
    ("ANY", "0.0.0.0", 0),
    ("ANY6", "::", 0),
    ("LOOP", "127.0.0.1", 0),
    ("LOOP6", "::1", 0),
    ("GROUP", "224.1.1.1", 0),
    ("GROUP6", "ff05::1:3", 0),
];

fn address(name: &str) -> IpAddr {
    let entry = ADDRESSES.iter().find(|(known, ..)| *known == name);
    let (_, text, _) = entry.unwrap_or_else(|| panic!("no address {name}"));
    text.parse().expect("an address")
}

fn device(index: u32, ifindex: u32, addresses: &[&str]) -> Device {
    Device {
        index,
        name: format!("dev{index}"),
        guid: Guid(0x1000 + u64::from(index)),
        port_num: 1,
        ifindex,
        is_loopback: addresses.contains(&"LOOP"),
        netdev_mtu: 1500,
        addresses: addresses.iter().map(|name| address(name)).collect(),
        limits: Limits::default(),
    }
}

impl Here {
    pub(crate) fn new() -> Self {
        let mut config = Config::default();
        config.cm.ca_guid = Guid(0x1000);
        let mut here = Self {
            now: Time::ZERO,
            ucm: Ucm::new(config, Seed([7; 32])),
            files: Vec::new(),
            device: Some(device(0, 2, &["LOCAL", "LOCAL2", "LOCAL6", "LL6"])),
            inbox: BTreeMap::new(),
        };
        let without = vec![address("NODEVICE")];
        here.ucm.set_addresses_without_device(without);
        here.devices();
        here
    }

    fn devices(&mut self) {
        let others = [device(1, 3, &["SECOND"]), device(2, 1, &["LOOP", "LOOP6"])];
        let all = self.device.iter().cloned().chain(others).collect();
        self.ucm.set_devices(self.now, all);
        self.settle();
    }

    /// Carries datagrams and answers lookups until nothing moves.
    fn settle(&mut self) {
        loop {
            let mut moved = false;
            while let Some(lookup) = self.ucm.poll_lookup() {
                moved = true;
                if let Some(answer) = route(&lookup) {
                    self.ucm.handle_lookup(self.now, lookup.token, answer);
                }
            }
            while let Some(membership) = self.ucm.poll_membership() {
                moved = true;
                if membership.action == MembershipAction::Join {
                    self.ucm
                        .handle_membership(self.now, membership.token, Ok(()));
                }
            }
            while let Some(transmit) = self.ucm.poll_transmit() {
                moved = true;
                let to = transmit.av.remote.to_ip();
                if to == address("OTHER") || to == address("OTHER6") {
                    self.inbox
                        .entry(Peer::Other)
                        .or_default()
                        .push_back(transmit.mad);
                } else if to == address("STRANGER") {
                    self.inbox
                        .entry(Peer::Stranger)
                        .or_default()
                        .push_back(transmit.mad);
                } else if ADDRESSES[..6].iter().any(|(name, ..)| address(name) == to) {
                    let av = transmit.av.reversed();
                    self.ucm.handle_mad(self.now, &av, &transmit.mad);
                }
            }
            if !moved {
                break;
            }
        }
    }

    /// Lets time pass until something is there, and at most until `end`.
    fn until(&mut self, end: Time, mut there: impl FnMut(&mut Self) -> bool) -> bool {
        loop {
            if there(self) {
                return true;
            }
            let next = self.ucm.poll_timeout().filter(|next| *next <= end);
            match next {
                Some(next) => self.now = self.now.max(next),
                None => {
                    self.now = self.now.max(end);
                    return false;
                }
            }
            self.ucm.handle_timeout(self.now);
            self.settle();
        }
    }
}

/// The answer to a lookup; `None`: nobody answers for the neighbour.
fn route(lookup: &Lookup) -> Option<Result<Route, LookupError>> {
    let to = lookup.destination;
    if to == address("ABSENT") {
        return None;
    }
    if to == address("UNROUTED") {
        return Some(Err(LookupError::Unreachable(ENETUNREACH)));
    }
    let local = ADDRESSES[..6].iter().find(|(name, ..)| address(name) == to);
    let ifindex = match local {
        Some(("SECOND", ..)) => 3,
        _ => 2,
    };
    let source = match (local, to) {
        (Some(_), to) => to,
        (None, IpAddr::V4(_)) => address("LOCAL"),
        (None, IpAddr::V6(_)) => address("LOCAL6"),
    };
    Some(Ok(Route {
        source: lookup.source.unwrap_or(source),
        ifindex,
        gateway: None,
        hop_limit: 64,
        mtu: 1500,
        is_local: local.is_some(),
    }))
}

impl Subject for Here {
    fn is_kernel(&self) -> bool {
        false
    }

    fn is_since(&self, version: &str) -> bool {
        // All 25 commands are there, the last two of which came with 6.17.
        ["6.2", "6.17"].contains(&version)
    }

    fn address(&self, name: &str) -> Option<(IpAddr, u32)> {
        let (_, text, scope) = ADDRESSES.iter().find(|(known, ..)| *known == name)?;
        Some((text.parse().expect("an address"), *scope))
    }

    fn port(&self, number: u16) -> u16 {
        7470 + number
    }

    fn open(&mut self, mode: Mode) -> File {
        let file = self.ucm.open(OWNER).expect("room for a file");
        let allowed = self.ucm.allow_privileged_ports(file, mode.privileged);
        allowed.expect("it is open");
        self.files.push(file);
        self.files.len() - 1
    }

    fn close(&mut self, file: File) {
        assert!(self.ucm.close(self.now, self.files[file]), "it was open");
        self.settle();
    }

    fn write(&mut self, file: File, write: &Write<'_>) -> Result<Vec<u8>, Refused> {
        // Pointers are carried and not looked at: rows in which one is wrong cannot be judged.
        assert!(!write.bad_response, "such a row is to be unjudged");
        if let Some(pointer) = write.response_at.and_then(|at| write.bytes.get(at..at + 8)) {
            assert_eq!(
                pointer, [0; 8],
                "a subject with pointers puts them in itself"
            );
        }
        let file = self.files[file];
        let token = match write.old_file {
            Some((_, OldFile::Open(old))) => Some(self.files[old].0.to_le_bytes()),
            _ => None,
        };
        let inline = match (&token, write.value) {
            (Some(token), _) => &token[..],
            (None, Some(value)) => value,
            (None, None) => &[],
        };
        let result = if write.by_another {
            let item = WriteItem {
                channel: file.0,
                request: write.bytes.to_vec(),
                inline: inline.to_vec(),
                id_from: None,
            };
            let batch = WriteBatch {
                items: vec![item],
                ..WriteBatch::default()
            };
            let replies = self.ucm.write_batch(self.now, Owner(2), batch);
            match &replies[0] {
                reply if reply.errno == 0 => Ok(reply.response.clone()),
                reply => Err(Refused::Errno(reply.errno)),
            }
        } else {
            let mut response = Vec::new();
            let written = self
                .ucm
                .write(self.now, file, write.bytes, inline, &mut response);
            written
                .map(|written| {
                    assert_eq!(
                        written,
                        write.bytes.len(),
                        "success returns the whole length"
                    );
                    response
                })
                .map_err(|failure| Refused::Errno(failure.errno().0))
        };
        self.settle();
        result
    }

    fn poll(&mut self, file: File, within: Duration) -> bool {
        let end = self.now + within;
        let file = self.files[file];
        self.until(end, |here| here.ucm.queued(file) > 0)
    }

    fn send(&mut self, from: Peer, to: IpAddr, mad: &[u8; 256]) {
        let from = match (from, to) {
            (Peer::Other, IpAddr::V4(_)) => address("OTHER"),
            (Peer::Other, IpAddr::V6(_)) => address("OTHER6"),
            (Peer::Stranger, _) => address("STRANGER"),
        };
        let av = AddressVector {
            local: Gid::from_ip(to),
            remote: Gid::from_ip(from),
            scope_id: 0,
            traffic_class: 0,
            hop_limit: 64,
            flow_label: FlowLabel::default(),
            service_level: 0,
        };
        self.ucm.handle_mad(self.now, &av, mad);
        self.settle();
    }

    fn receive(&mut self, peer: Peer, within: Duration) -> Option<[u8; 256]> {
        let end = self.now + within;
        self.until(end, |here| {
            here.inbox.get(&peer).is_some_and(|inbox| !inbox.is_empty())
        });
        self.inbox.get_mut(&peer)?.pop_front()
    }

    fn host(&mut self, event: HostEvent) {
        let whole = device(0, 2, &["LOCAL", "LOCAL2", "LOCAL6", "LL6"]);
        self.device = match event {
            HostEvent::DeviceLeaves => None,
            HostEvent::DeviceReturns | HostEvent::AddressReturns => Some(whole),
            HostEvent::AddressLeaves => Some(device(0, 2, &["LOCAL2", "LOCAL6", "LL6"])),
            // Nobody tells the service: it sends to addresses of IP, and leaves neighbours to the system.
            HostEvent::NeighbourMoves => return,
        };
        self.devices();
    }

    fn wait(&mut self, time: Duration) {
        let end = self.now + time;
        self.until(end, |_| false);
    }
}
