//! What the service's host is on: the real port, or an in-memory wire. Slots and routes come from here.

use super::devices::{Devices, Found};
use super::identity;
use crate::{Error, sys};
use oarlock_cma::{Errno, Lookup, LookupError, Membership, MembershipAction, Route};
use oarlock_port::netlink::{self, Monitor, RouteQuery};
use oarlock_port::{
    ForwardToken, GroupKeeper, MEM_IFINDEX, MemChanges, MemHost, Port, Renewal, SERVICE_SLOT,
    SPARE_SLOT, UdpPort, UdpSlots,
};
use oarlock_wire::Guid;
use std::collections::VecDeque;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Slot 0's endpoint, the devices, and the slots that can be lent.
#[derive(Debug)]
pub(super) struct Network {
    pub(super) guid: Guid,
    pub(super) port: Port,
    pub(super) devices: Devices,
    kind: Kind,
    /// Slots that nobody has, the one that was given back longest ago first.
    free: VecDeque<u8>,
    /// Slots that were given back while somebody still holds a copy of the socket.
    held: Vec<u8>,
    /// Datagrams that slots which were given back had no room for.
    dropped_before: u64,
}

#[derive(Debug)]
enum Kind {
    Udp {
        slots: UdpSlots,
        token: ForwardToken,
        monitor: Monitor,
        groups: GroupKeeper,
    },
    Memory(MemHost, MemChanges),
}

impl Network {
    pub(super) fn udp(slots: UdpSlots) -> Result<Self, Error> {
        let token = ForwardToken(u64::from_ne_bytes(
            sys::random().map_err(Error::system("get random bytes"))?,
        ));
        let own = slots
            .lend(SERVICE_SLOT)?
            .expect("the service's slot is never lent");
        let own = own
            .try_clone_to_owned()
            .map_err(Error::system("copy the socket of slot 0"))?;
        let port = UdpPort::new(SERVICE_SLOT, own, token)
            .map_err(Error::system("use the socket of slot 0"))?;
        // Listening before looking: no change falls in between.
        let monitor = Monitor::new().map_err(Error::system("watch the network interfaces"))?;
        let guid = identity::namespace_guid();
        let mut devices = Devices::new(guid);
        devices.look_at_namespace()?;
        if !devices.passes_within {
            return Err(Error::LoopbackDown);
        }
        let kind = Kind::Udp {
            slots,
            token,
            monitor,
            groups: GroupKeeper::new(),
        };
        Self::new(guid, Port::Udp(port), devices, kind)
    }

    pub(super) fn memory(host: MemHost) -> Result<Self, Error> {
        let changes = host.changes()?;
        let guid = identity::random_guid()?;
        let mut devices = Devices::new(guid);
        devices.look_at_memory(&host);
        let port = Port::Mem(host.open(SERVICE_SLOT)?);
        Self::new(guid, port, devices, Kind::Memory(host, changes))
    }

    fn new(guid: Guid, port: Port, devices: Devices, kind: Kind) -> Result<Self, Error> {
        Ok(Self {
            guid,
            port,
            devices,
            kind,
            free: free_slots()?,
            held: Vec::new(),
            dropped_before: 0,
        })
    }

    /// A descriptor that is readable when interfaces or addresses have changed.
    pub(super) fn changes_fd(&self) -> BorrowedFd<'_> {
        match &self.kind {
            Kind::Udp { monitor, .. } => monitor.as_fd(),
            Kind::Memory(_, changes) => changes.as_fd(),
        }
    }

    /// Takes the news off that descriptor; whether there was any.
    pub(super) fn take_changes(&self) -> bool {
        match &self.kind {
            Kind::Udp { monitor, .. } => monitor.take_changes(),
            Kind::Memory(_, changes) => changes.take(),
        }
    }

    /// Looks at the interfaces again.
    pub(super) fn look_again(&mut self) -> Result<Found, Error> {
        match &self.kind {
            Kind::Udp { .. } => self.devices.look_at_namespace(),
            Kind::Memory(host, _) => Ok(self.devices.look_at_memory(host)),
        }
    }

    /// Makes an interface join or leave a multicast group. Datagrams to the group reach programs by their own slots' memberships;
    /// this one is what the network is told as long as anybody is a member.
    pub(super) fn change_membership(&mut self, change: &Membership) -> Result<(), Errno> {
        let (group, ifindex) = (change.group, change.ifindex);
        match (&mut self.kind, change.action) {
            (Kind::Udp { groups, .. }, MembershipAction::Join) => groups
                .join(group, ifindex)
                .map_err(|error| Errno(error.raw_os_error().unwrap_or(libc::EIO))),
            (Kind::Udp { groups, .. }, _) => {
                groups.leave(group, ifindex);
                Ok(())
            }
            (Kind::Memory(host, _), MembershipAction::Join)
                if ifindex != MEM_IFINDEX || !host.has_device() =>
            {
                Err(Errno(libc::ENODEV))
            }
            (Kind::Memory(..), _) => Ok(()),
        }
    }

    /// Number of memberships that are kept.
    pub(super) fn memberships(&self) -> usize {
        match &self.kind {
            Kind::Udp { groups, .. } => groups.len(),
            Kind::Memory(..) => 0,
        }
    }

    /// Takes a slot and, on the real port, a copy of its socket; nothing when all are taken.
    pub(super) fn take_slot(&mut self) -> Result<Option<(u8, Option<OwnedFd>, u64)>, Error> {
        self.settle();
        let Some(slot) = self.free.pop_front() else {
            return Ok(None);
        };
        match &self.kind {
            Kind::Memory(..) => Ok(Some((slot, None, 0))),
            Kind::Udp { slots, token, .. } => {
                let socket = slots.lend(slot).map(|socket| {
                    socket
                        .expect("a slot on the free list has its socket")
                        .try_clone_to_owned()
                        .map_err(Error::system("copy the socket of a slot"))
                });
                match socket.map_err(Error::from).flatten() {
                    Ok(socket) => Ok(Some((slot, Some(socket), token.0))),
                    Err(error) => {
                        self.free.push_front(slot);
                        Err(error)
                    }
                }
            }
        }
    }

    /// Takes a slot back: renewed at once, or as soon as nobody holds its socket any more.
    pub(super) fn release_slot(&mut self, slot: u8) {
        match &mut self.kind {
            Kind::Memory(..) => self.free.push_back(slot),
            Kind::Udp { slots, .. } => {
                self.dropped_before += slots.dropped(slot);
                match slots.renew(slot) {
                    Ok(Renewal::Ready) => self.free.push_back(slot),
                    // An error leaves the slot to a later attempt as well.
                    _ => self.held.push(slot),
                }
            }
        }
    }

    /// Tries again to renew slots; whether some are still held.
    pub(super) fn settle(&mut self) -> bool {
        if let Kind::Udp { slots, .. } = &mut self.kind
            && !self.held.is_empty()
        {
            let _ = slots.settle();
            let free = &mut self.free;
            self.held.retain(|slot| {
                let renewed = slots.is_ready(*slot);
                if renewed {
                    free.push_back(*slot);
                }
                !renewed
            });
        }
        !self.held.is_empty()
    }

    pub(super) fn held_slots(&self) -> usize {
        self.held.len()
    }

    /// Datagrams that the queues of programs' slots had no room for.
    pub(super) fn dropped_in_slots(&self) -> u64 {
        let lent = match &self.kind {
            Kind::Udp { slots, .. } => (SERVICE_SLOT + 1..SPARE_SLOT)
                .map(|slot| slots.dropped(slot))
                .sum(),
            // Every endpoint counts its own.
            Kind::Memory(..) => 0,
        };
        self.dropped_before + lent
    }

    /// Answers a route lookup.
    pub(super) fn look_up(&self, lookup: &Lookup) -> Result<Route, LookupError> {
        match &self.kind {
            Kind::Udp { .. } => self.ask_kernel(lookup),
            Kind::Memory(host, _) => route_in_memory(host, lookup),
        }
    }

    fn ask_kernel(&self, lookup: &Lookup) -> Result<Route, LookupError> {
        let query = RouteQuery {
            destination: lookup.destination,
            source: lookup.source,
            interface: lookup.scope_id,
            traffic_class: lookup.tos,
        };
        let down = LookupError::Unreachable(Errno(libc::ENETDOWN));
        if !self.devices.passes_within && lookup.destination.is_loopback() {
            return Err(down);
        }
        let route = netlink::route(&query, &self.devices.interfaces)
            .map_err(|error| LookupError::Unreachable(Errno(error.raw_os_error())))?;
        if route.is_local && !self.devices.passes_within {
            return Err(down);
        }
        Ok(Route {
            source: route.source,
            ifindex: route.interface,
            gateway: route.gateway,
            hop_limit: route.hop_limit,
            mtu: route.mtu,
            is_local: route.is_local,
        })
    }
}

/// On an in-memory wire every host is a neighbour, and every group can be reached.
fn route_in_memory(host: &MemHost, lookup: &Lookup) -> Result<Route, LookupError> {
    let destination = lookup.destination.to_canonical();
    let own = host.addresses();
    let is_local = own.contains(&destination);
    let unreachable = LookupError::Unreachable(Errno(libc::ENETUNREACH));
    let is_there = destination.is_multicast() || host.wire().has_address(destination);
    if !host.has_device() || !is_there {
        return Err(unreachable);
    }
    let same_family = |ip: &&IpAddr| ip.is_ipv4() == destination.is_ipv4();
    let source = match lookup.source {
        Some(source) => own.iter().copied().find(|ip| *ip == source),
        None if is_local => Some(destination),
        None => own.iter().find(same_family).copied(),
    };
    let source = source.ok_or(unreachable)?;
    Ok(Route {
        source,
        ifindex: MEM_IFINDEX,
        gateway: None,
        hop_limit: 64,
        mtu: 0,
        is_local: is_local || (destination.is_multicast() && source.is_loopback()),
    })
}

/// 1 to 254, from a random place on: so a service that follows another does not give out the QP numbers that peers of
/// the other may still remember.
fn free_slots() -> Result<VecDeque<u8>, Error> {
    let [start] = sys::random().map_err(Error::system("get random bytes"))?;
    let mut free: VecDeque<u8> = (SERVICE_SLOT + 1..SPARE_SLOT).collect();
    let len = free.len();
    free.rotate_left(usize::from(start) % len);
    Ok(free)
}
