//! From an address to a path: bind, resolve the address, resolve the route.

use crate::device::{is_any_or_loopback, is_link_local, is_per_interface};
use crate::identifier::{Identifier, PendingLookup, Resolution};
use crate::ports::Claim;
use crate::{
    Cma, Counter, Errno, Error, EventKind, Id, LookupError, LookupToken, LoopbackRule, Path, Route,
    State,
};
use oarlock_wire::{AddressVector, FlowLabel, Gid, IbTimeout, Mtu, PKey, Rate, ServiceId, Time};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::time::Duration;

impl Cma {
    /// Binds an identifier to a local address and port; port 0 is any free port of the ephemeral range.
    ///
    /// A specific address binds the identifier to the device of its interface. Unspecified and loopback addresses bind it
    /// to no device: what listens there listens on all.
    ///
    /// # Errors
    /// `WrongState`; `LinkLocalWithoutScope`; `AddressNotLocal`, `MappedAddress`, `NoDeviceForAddress`; `PrivilegedPort`,
    /// `PortCovered`, `PortInUse`, `NoEphemeralPort`.
    #[doc(alias = "rdma_bind_addr")]
    pub fn bind_addr(&mut self, id: Id, address: SocketAddr) -> Result<(), Error> {
        let state = self.working("bind_addr", id)?.state;
        if state != State::Idle {
            return Err(Error::WrongState {
                call: "bind_addr",
                state,
                wanted: "IDLE",
            });
        }
        self.bind(id, address, None)
    }

    /// Binds an idle identifier. `destination` is what an ephemeral port may be shared by.
    pub(crate) fn bind(
        &mut self,
        id: Id,
        address: SocketAddr,
        destination: Option<SocketAddr>,
    ) -> Result<(), Error> {
        let (ip, scope_id) = (address.ip(), scope_of(address));
        check_scope(ip, scope_id)?;
        if is_mapped(ip) {
            return Err(Error::MappedAddress { address: ip });
        }
        let device = if is_any_or_loopback(ip) {
            None
        } else {
            match self.devices.by_address(ip, scope_id, scope_id) {
                Some(device) => Some(device.index),
                None if self.devices.is_local(ip, scope_id) => {
                    return Err(Error::NoDeviceForAddress { address: ip });
                }
                None => return Err(Error::AddressNotLocal { address: ip }),
            }
        };
        let ident = self.exposed(id)?;
        let af_only = match ip {
            _ if ident.options.af_only_set => ident.options.af_only,
            IpAddr::V4(_) => true,
            IpAddr::V6(_) => self.config.bindv6only,
        };
        let claim = Claim {
            address,
            destination,
            reuse_addr: ident.options.reuse_addr,
            af_only,
        };
        let (port_space, privileged) = (
            ident.port_space,
            self.channels
                .get(ident.channel)
                .is_some_and(|channel| channel.privileged),
        );
        let (ids, ephemeral) = (&self.ids, &self.config.ephemeral_ports);
        let claim_of = |id: Id| ids.get(id.into()).and_then(Identifier::claim);
        let port = self
            .ports
            .bind(id, port_space, &claim, ephemeral, privileged, claim_of)?;
        let ident = self.exposed_mut(id)?;
        let mut local = address;
        local.set_port(port);
        ident.options.af_only = af_only;
        ident.local = Some(local);
        ident.bound_port = Some(port);
        ident.device = device;
        ident.state = State::AddrBound;
        Ok(())
    }

    /// Finds the device and the way to a destination. The outcome is ADDR_RESOLVED or ADDR_ERROR; after the latter it may be
    /// tried again.
    ///
    /// An idle identifier is bound first, to `source` or to any address, and stays bound whatever follows. One that is bound
    /// already keeps its address, and `source` has no effect. Without a specific source, the source is the one that the
    /// route lookup gives. The lookup happens once: the connection keeps to its result.
    ///
    /// A loopback or unspecified destination needs no lookup; the latter means loopback.
    ///
    /// # Errors
    /// `WrongState`; `FamilyMismatch`, `LinkLocalWithoutScope`, `ScopeMismatch`, `MappedAddress`; those of
    /// [`bind_addr`](Self::bind_addr); `NoDevices`; `ChannelFull`.
    #[doc(alias = "rdma_resolve_addr")]
    pub fn resolve_addr(
        &mut self,
        now: Time,
        id: Id,
        source: Option<SocketAddr>,
        destination: SocketAddr,
        timeout: Duration,
    ) -> Result<(), Error> {
        let call = "resolve_addr";
        let ident = self.working(call, id)?;
        let (state, tos) = (ident.state, self.type_of_service(ident));
        let unspecified = SocketAddr::new(unspecified_like(destination.ip()), 0);
        let local = match (state, ident.local) {
            (State::Idle, _) => source.unwrap_or_else(|| with_scope_of(unspecified, destination)),
            (State::AddrBound, Some(local)) => local,
            _ => {
                return Err(Error::WrongState {
                    call,
                    state,
                    wanted: "IDLE or ADDR_BOUND",
                });
            }
        };
        check_destination(local, destination)?;
        self.check_room(id, 1)?;
        if state == State::Idle {
            self.bind(id, local, Some(destination))?;
        }
        self.exposed_mut(id)?.remote = Some(destination);
        if is_any_or_loopback(destination.ip()) {
            return self.resolve_loopback(id, destination);
        }
        let source = Some(local.ip()).filter(|ip| !ip.is_unspecified());
        let scope_id = if is_per_interface(destination.ip()) && scope_of(destination) != 0 {
            scope_of(destination)
        } else {
            scope_of(local)
        };
        let token = self
            .lookups
            .ask(id, source, destination.ip(), scope_id, tos);
        self.counters.count(Counter::Lookups);
        let deadline = now + timeout;
        self.lookup_deadlines.insert((deadline, id));
        let ident = self.exposed_mut(id)?;
        ident.lookup = Some(PendingLookup { token, deadline });
        ident.state = State::AddrQuery;
        Ok(())
    }

    /// Answers a lookup that came from [`poll_lookup`](Self::poll_lookup).
    pub fn handle_lookup(
        &mut self,
        now: Time,
        token: LookupToken,
        answer: Result<Route, LookupError>,
    ) {
        let waiting = self.lookups.take(token);
        let pending =
            waiting.and_then(|id| Some((id, self.ids.get_mut(id.into())?.lookup.take()?)));
        let Some((id, lookup)) = pending else {
            self.counters.count(Counter::LookupsStale);
            return;
        };
        self.lookup_deadlines.remove(&(lookup.deadline, id));
        let found = answer
            .map_err(LookupError::errno)
            .and_then(|route| self.apply_route(id, &route));
        match found {
            Ok(()) => self.report(id, EventKind::ADDR_RESOLVED, 0),
            Err(errno) => self.fail_resolution(id, errno),
        }
        self.pump(now);
    }

    /// Binds the identifier to what the lookup found.
    fn apply_route(&mut self, id: Id, route: &Route) -> Result<(), Errno> {
        let ident = self.ids.get(id.into()).ok_or(Errno::ENOENT)?;
        let (Some(local), Some(remote)) = (ident.local, ident.remote) else {
            return Err(Errno::EINVAL);
        };
        let source = if local.ip().is_unspecified() {
            route.source
        } else {
            local.ip()
        };
        if source.is_unspecified() || source.is_ipv4() != remote.is_ipv4() {
            return Err(Errno::EHOSTUNREACH);
        }
        if source.is_loopback() && !route.is_local {
            return Err(Errno::ENETUNREACH);
        }
        let wanted_scope = if is_per_interface(remote.ip()) && scope_of(remote) != 0 {
            scope_of(remote)
        } else {
            scope_of(local)
        };
        let scope_id = match is_link_local(source) || is_per_interface(remote.ip()) {
            true if wanted_scope != 0 => wanted_scope,
            true => route.ifindex,
            false => 0,
        };
        let device = match ident.device {
            Some(index) => self.devices.get(index),
            None => self.device_of_source(source, scope_id, route.ifindex),
        };
        let device = device.ok_or(Errno::ENODEV)?;
        let gid = if device.addresses.contains(&source) {
            source
        } else {
            *device.addresses.first().ok_or(Errno::ENODEV)?
        };
        let mut link_mtu = device.netdev_mtu;
        if route.mtu != 0 {
            link_mtu = link_mtu.min(route.mtu);
        }
        // Within the host the packets of one device may arrive at another, whose MTU counts too.
        let target = self
            .devices
            .by_address(remote.ip(), scope_id, route.ifindex);
        if let Some(target) = target.filter(|_| route.is_local) {
            link_mtu = link_mtu.min(target.netdev_mtu);
        }
        let av = AddressVector {
            scope_id,
            hop_limit: if route.hop_limit == 0 {
                DEFAULT_HOP_LIMIT
            } else {
                route.hop_limit
            },
            ..AddressVector::new(Gid::from_ip(gid), Gid::from_ip(remote.ip()))
        };
        let index = device.index;
        let local = with_scope(
            SocketAddr::new(source, local.port()),
            if is_link_local(source) { scope_id } else { 0 },
        );
        self.finish_resolution(id, local, remote, index, Resolution { av, link_mtu });
        Ok(())
    }

    fn device_of_source(
        &self,
        source: IpAddr,
        scope_id: u32,
        ifindex: u32,
    ) -> Option<&crate::Device> {
        let owner = self.devices.by_address(source, scope_id, ifindex);
        if !source.is_loopback() {
            return owner;
        }
        let loopback = || self.devices.loopback(source).map(|(device, _)| device);
        owner.or_else(loopback).or_else(|| self.devices.first())
    }

    fn resolve_loopback(&mut self, id: Id, destination: SocketAddr) -> Result<(), Error> {
        let ident = self.exposed(id)?;
        let local = ident.local.unwrap_or(destination);
        let target = match destination.ip() {
            ip if !ip.is_unspecified() => ip,
            _ if local.ip().is_loopback() => local.ip(),
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::LOCALHOST),
        };
        let (device, local_gid, remote_gid) = match ident.device {
            Some(index) => (
                self.devices.get(index).ok_or(Error::NoDevices)?,
                local.ip(),
                local.ip(),
            ),
            None => {
                let own = self
                    .devices
                    .loopback(target)
                    .filter(|_| self.config.loopback == LoopbackRule::LoopbackDevice);
                let first = || {
                    self.devices
                        .first()
                        .and_then(|device| Some((device, *device.addresses.first()?)))
                };
                let (device, remote_gid) = own.or_else(first).ok_or(Error::NoDevices)?;
                let local_gid = if device.addresses.contains(&local.ip()) {
                    local.ip()
                } else {
                    remote_gid
                };
                (device, local_gid, remote_gid)
            }
        };
        let scope_id = if is_link_local(local_gid) {
            device.ifindex
        } else {
            0
        };
        let av = AddressVector {
            scope_id,
            ..AddressVector::new(Gid::from_ip(local_gid), Gid::from_ip(remote_gid))
        };
        let (index, link_mtu) = (device.index, device.netdev_mtu);
        let source = if local.ip().is_unspecified() {
            loopback_like(target)
        } else {
            local.ip()
        };
        let local = with_scope(SocketAddr::new(source, local.port()), scope_of(local));
        let remote = SocketAddr::new(target, destination.port());
        self.finish_resolution(id, local, remote, index, Resolution { av, link_mtu });
        self.report(id, EventKind::ADDR_RESOLVED, 0);
        Ok(())
    }

    fn finish_resolution(
        &mut self,
        id: Id,
        local: SocketAddr,
        remote: SocketAddr,
        device: u32,
        resolution: Resolution,
    ) {
        let Some(ident) = self.ids.get_mut(id.into()) else {
            return;
        };
        ident.local = Some(local);
        ident.remote = Some(remote);
        ident.device = Some(device);
        ident.resolution = Some(resolution);
        ident.state = State::AddrResolved;
    }

    fn fail_resolution(&mut self, id: Id, errno: Errno) {
        if let Some(ident) = self.ids.get_mut(id.into()) {
            ident.state = State::AddrBound;
        }
        self.report(id, EventKind::ADDR_ERROR, errno.as_status());
    }

    pub(crate) fn expire_lookups(&mut self, now: Time) {
        while let Some(entry) = self
            .lookup_deadlines
            .first()
            .copied()
            .filter(|(deadline, _)| *deadline <= now)
        {
            self.lookup_deadlines.remove(&entry);
            let id = entry.1;
            if let Some(lookup) = self
                .ids
                .get_mut(id.into())
                .and_then(|ident| ident.lookup.take())
            {
                self.lookups.take(lookup.token);
                self.counters.count(Counter::LookupsTimedOut);
                self.fail_resolution(id, Errno::ETIMEDOUT);
            }
        }
    }

    /// Determines the path. On RoCE nobody needs to be asked, so that ROUTE_RESOLVED is queued at once.
    ///
    /// # Errors
    /// `ZeroTimeout`, `NoDevice`, `WrongState`, `LinkTooSmall`, `ChannelFull`.
    #[doc(alias = "rdma_resolve_route")]
    pub fn resolve_route(&mut self, id: Id, timeout: Duration) -> Result<(), Error> {
        let call = "resolve_route";
        let ident = self.working(call, id)?;
        let state = ident.state;
        if ident.device.is_none() {
            return Err(Error::NoDevice { call, state });
        }
        if timeout.is_zero() {
            return Err(Error::ZeroTimeout { call });
        }
        let (State::AddrResolved, Some(resolution), Some(local), Some(remote)) =
            (state, ident.resolution, ident.local, ident.remote)
        else {
            return Err(Error::WrongState {
                call,
                state,
                wanted: "ADDR_RESOLVED",
            });
        };
        let mtu = Mtu::largest_for_link(resolution.link_mtu).ok_or(Error::LinkTooSmall {
            mtu: resolution.link_mtu,
        })?;
        self.check_room(id, 1)?;
        // The acknowledgement timeout covers the way there and back: half of it is the way there.
        let half = |timeout: IbTimeout| IbTimeout::truncate(timeout.get().saturating_sub(1));
        let path = Path {
            av: AddressVector {
                flow_label: flow_label(local.port(), remote.port()),
                traffic_class: self.type_of_service(ident),
                ..resolution.av
            },
            service_id: ServiceId::for_port(ident.port_space, remote.port()),
            pkey: PKey::DEFAULT,
            mtu,
            rate: Rate::PORT_CURRENT,
            packet_life_time: ident
                .options
                .ack_timeout
                .map_or(self.config.packet_life_time, half),
        };
        let ident = self.exposed_mut(id)?;
        ident.path = Some(path);
        ident.state = State::RouteResolved;
        self.report(id, EventKind::ROUTE_RESOLVED, 0);
        Ok(())
    }

    pub(crate) fn type_of_service(&self, ident: &Identifier) -> u8 {
        ident
            .options
            .type_of_service
            .unwrap_or(self.config.type_of_service)
    }
}

fn check_destination(local: SocketAddr, destination: SocketAddr) -> Result<(), Error> {
    let ip = destination.ip();
    if local.is_ipv4() != destination.is_ipv4() {
        return Err(Error::FamilyMismatch {
            local: local.ip(),
            destination: ip,
        });
    }
    if is_mapped(ip) {
        return Err(Error::MappedAddress { address: ip });
    }
    check_scope(ip, scope_of(destination))?;
    let (bound, wanted) = (scope_of(local), scope_of(destination));
    if is_link_local(ip) && bound != 0 && bound != wanted {
        return Err(Error::ScopeMismatch {
            bound,
            destination: wanted,
        });
    }
    Ok(())
}

fn check_scope(ip: IpAddr, scope_id: u32) -> Result<(), Error> {
    if is_link_local(ip) && scope_id == 0 {
        return Err(Error::LinkLocalWithoutScope { address: ip });
    }
    Ok(())
}

/// The hash of the ports that Linux uses as a flow label (`drivers/infiniband/core/cma.c`).
fn flow_label(source_port: u16, destination_port: u16) -> FlowLabel {
    FlowLabel::truncate(u32::from(source_port) * 31 + u32::from(destination_port))
}

pub(crate) const fn scope_of(address: SocketAddr) -> u32 {
    match address {
        SocketAddr::V4(_) => 0,
        SocketAddr::V6(v6) => v6.scope_id(),
    }
}

pub(crate) fn with_scope(address: SocketAddr, scope_id: u32) -> SocketAddr {
    match address {
        SocketAddr::V4(_) => address,
        SocketAddr::V6(v6) => {
            SocketAddrV6::new(*v6.ip(), v6.port(), v6.flowinfo(), scope_id).into()
        }
    }
}

/// Gives `address` the interface of a link-local destination.
fn with_scope_of(address: SocketAddr, destination: SocketAddr) -> SocketAddr {
    if is_link_local(destination.ip()) {
        with_scope(address, scope_of(destination))
    } else {
        address
    }
}

const fn unspecified_like(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    }
}

const fn loopback_like(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::LOCALHOST),
    }
}

pub(crate) const fn is_mapped(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some())
}

/// What Linux gives a route that says nothing (`net.ipv4.ip_default_ttl`).
const DEFAULT_HOP_LIMIT: u8 = 64;
