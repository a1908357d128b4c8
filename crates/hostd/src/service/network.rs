//! What the service's host is on: the real port, or an in-memory wire. Slots and routes come from here.

use super::devices::Devices;
use super::identity;
use crate::{Error, sys};
use oarlock_cma::{Errno, Lookup, LookupError, Route};
use oarlock_port::netlink::{self, Monitor, RouteQuery};
use oarlock_port::{
    ForwardToken, MemHost, Port, Renewal, SERVICE_SLOT, SPARE_SLOT, UdpPort, UdpSlots,
};
use oarlock_wire::Guid;
use std::collections::VecDeque;
use std::net::IpAddr;
use std::os::fd::OwnedFd;

/// Slot 0's endpoint, the devices, and the slots that can be lent.
#[derive(Debug)]
pub(super) struct Network {
    pub(super) guid: Guid,
    pub(super) port: Port,
    pub(super) devices: Devices,
    pub(super) monitor: Option<Monitor>,
    kind: Kind,
    /// Slots that nobody has, the one that was given back longest ago first.
    free: VecDeque<u8>,
    /// Slots that were given back while somebody still holds a copy of the socket.
    held: Vec<u8>,
}

#[derive(Debug)]
enum Kind {
    Udp {
        slots: UdpSlots,
        token: ForwardToken,
    },
    Memory(MemHost),
}

impl Network {
    pub(super) fn udp(slots: UdpSlots) -> Result<Self, Error> {
        let token = ForwardToken(u64::from_ne_bytes(
            sys::random().map_err(Error::system("get random bytes"))?,
        ));
        let own = slots
            .socket(SERVICE_SLOT)
            .expect("the service's slot is never lent");
        let own = own
            .try_clone_to_owned()
            .map_err(Error::system("copy the socket of slot 0"))?;
        let port = UdpPort::new(SERVICE_SLOT, own, token)
            .map_err(Error::system("use the socket of slot 0"))?;
        let guid = identity::namespace_guid();
        Ok(Self {
            guid,
            port: Port::Udp(port),
            devices: Devices::of_namespace(guid)?,
            monitor: Some(Monitor::new().map_err(Error::system("watch the network interfaces"))?),
            kind: Kind::Udp { slots, token },
            free: free_slots()?,
            held: Vec::new(),
        })
    }

    pub(super) fn memory(host: MemHost) -> Result<Self, Error> {
        let guid = identity::random_guid()?;
        Ok(Self {
            guid,
            port: Port::Mem(host.open(SERVICE_SLOT)?),
            devices: Devices::in_memory(guid, &host.addresses()),
            monitor: None,
            kind: Kind::Memory(host),
            free: free_slots()?,
            held: Vec::new(),
        })
    }

    /// Takes a slot and, on the real port, a copy of its socket; nothing when all are taken.
    pub(super) fn take_slot(
        &mut self,
    ) -> Result<Option<(u8, Option<OwnedFd>, u64)>, std::io::Error> {
        self.settle();
        let Some(slot) = self.free.pop_front() else {
            return Ok(None);
        };
        match &self.kind {
            Kind::Memory(_) => Ok(Some((slot, None, 0))),
            Kind::Udp { slots, token } => {
                let socket = slots
                    .socket(slot)
                    .expect("a slot on the free list has its socket");
                match socket.try_clone_to_owned() {
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
            Kind::Memory(_) => self.free.push_back(slot),
            Kind::Udp { slots, .. } => match slots.renew(slot) {
                Ok(Renewal::Ready) => self.free.push_back(slot),
                // An error leaves the slot to a later attempt as well.
                _ => self.held.push(slot),
            },
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
                let renewed = slots.socket(*slot).is_some();
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

    /// Answers a route lookup.
    pub(super) fn look_up(&self, lookup: &Lookup) -> Result<Route, LookupError> {
        match &self.kind {
            Kind::Udp { .. } => self.ask_kernel(lookup),
            Kind::Memory(host) => route_in_memory(host, lookup),
        }
    }

    fn ask_kernel(&self, lookup: &Lookup) -> Result<Route, LookupError> {
        let query = RouteQuery {
            destination: lookup.destination,
            source: lookup.source,
            interface: lookup.scope_id,
            traffic_class: lookup.tos,
        };
        let route = netlink::route(&query, &self.devices.interfaces)
            .map_err(|error| LookupError::Unreachable(Errno(error.raw_os_error())))?;
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

/// On an in-memory wire every host is a neighbour.
fn route_in_memory(host: &MemHost, lookup: &Lookup) -> Result<Route, LookupError> {
    let destination = lookup.destination.to_canonical();
    let own = host.addresses();
    let is_local = own.contains(&destination);
    let unreachable = LookupError::Unreachable(Errno(libc::ENETUNREACH));
    if !is_local && !host.wire().has_address(destination) {
        return Err(unreachable);
    }
    let same_family = |ip: &&IpAddr| ip.is_ipv4() == destination.is_ipv4();
    let source = match lookup.source {
        Some(source) => own.iter().copied().find(|ip| *ip == source),
        None if is_local => Some(destination),
        None => own.iter().find(same_family).copied(),
    };
    Ok(Route {
        source: source.ok_or(unreachable)?,
        ifindex: 1,
        gateway: None,
        hop_limit: 64,
        mtu: 0,
        is_local,
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
