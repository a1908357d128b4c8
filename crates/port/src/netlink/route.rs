//! Which way a packet would go.

use super::Interface;
use super::socket::ask;
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteMetric, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use std::io;
use std::net::IpAddr;

/// What is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RouteQuery {
    /// Where to: an address or a multicast group.
    pub destination: IpAddr,
    /// Where from, if that is fixed. To a group a packet leaves by the interface that owns this address.
    pub source: Option<IpAddr>,
    /// Interface to leave by, 0 for any; needed for a link-local destination.
    pub interface: u32,
    /// Type of service or traffic class.
    pub traffic_class: u8,
}

/// The way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// The source address to use.
    pub source: IpAddr,
    /// The interface: for a destination on this host the one that owns the address, not the loopback interface that
    /// carries the packet.
    pub interface: u32,
    /// The next hop, if the destination is not on the link.
    pub gateway: Option<IpAddr>,
    /// Hop limit of the packets.
    pub hop_limit: u8,
    /// Largest IP packet.
    pub mtu: u32,
    /// Whether the destination is on this host. So is a group that is reached by the loopback interface.
    pub is_local: bool,
}

/// Why there is no way.
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum RouteError {
    /// The routing table has none.
    #[error("no route to {destination}: {source}")]
    Unreachable {
        /// Where to.
        destination: IpAddr,
        /// What the kernel says, with its errno.
        source: io::Error,
    },
    /// The kernel answered something that is not a route.
    #[error("the kernel's answer about the route to {destination} lacks {what}")]
    Incomplete {
        /// Where to.
        destination: IpAddr,
        /// What is missing.
        what: &'static str,
    },
}

impl RouteError {
    /// The errno of the kernel, or `ENETUNREACH`.
    #[must_use]
    pub fn raw_os_error(&self) -> i32 {
        match self {
            Self::Unreachable { source, .. } => source.raw_os_error().unwrap_or(libc::ENETUNREACH),
            Self::Incomplete { .. } => libc::ENETUNREACH,
        }
    }
}

/// Asks the kernel for the route of one packet. `interfaces` are those of this namespace.
///
/// # Errors
/// `Unreachable`, with the kernel's errno.
pub fn route(query: &RouteQuery, interfaces: &[Interface]) -> Result<Route, RouteError> {
    let destination = query.destination;
    let mut query = *query;
    if destination.is_multicast() {
        if let Some(owner) = owner(interfaces, query.source).filter(|_| query.interface == 0) {
            query.interface = owner.index;
        }
        if let Some(route) = on_loopback(&query, interfaces) {
            return Ok(route);
        }
    }
    let unreachable = |source| RouteError::Unreachable {
        destination,
        source,
    };
    let answer = ask(RouteNetlinkMessage::GetRoute(request(&query)), false).map_err(unreachable)?;
    let Some(RouteNetlinkMessage::NewRoute(answer)) = answer.into_iter().next() else {
        return Err(RouteError::Incomplete {
            destination,
            what: "a route",
        });
    };
    if matches!(
        answer.header.kind,
        RouteType::BlackHole | RouteType::Unreachable | RouteType::Prohibit | RouteType::Throw
    ) {
        return Err(unreachable(io::Error::from_raw_os_error(libc::ENETUNREACH)));
    }
    let is_local = answer.header.kind == RouteType::Local;
    let (mut source, mut gateway, mut out, mut mtu, mut hop_limit) =
        (query.source, None, 0, None, None);
    for attribute in &answer.attributes {
        match attribute {
            RouteAttribute::PrefSource(address) => source = source.or(ip(address)),
            RouteAttribute::Gateway(address) => gateway = ip(address),
            RouteAttribute::Via(via) => gateway = gateway.or(via_ip(via)),
            RouteAttribute::Oif(index) => out = *index,
            RouteAttribute::Metrics(metrics) => {
                for metric in metrics {
                    match metric {
                        RouteMetric::Mtu(value) if *value > 0 => mtu = Some(*value),
                        RouteMetric::Hoplimit(value) if *value > 0 => {
                            hop_limit = u8::try_from(*value).ok()
                        }
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    let source = match source {
        Some(source) => source,
        None if is_local => destination,
        None => {
            return Err(RouteError::Incomplete {
                destination,
                what: "a source address",
            });
        }
    };
    let owner = owner(interfaces, is_local.then_some(destination));
    let interface = owner.map_or(out, |owner| owner.index);
    let by_loopback = interfaces
        .iter()
        .any(|lo| lo.loopback && lo.index == interface);
    let is_local = is_local || (destination.is_multicast() && by_loopback);
    let mtu = mtu.or_else(|| {
        interfaces
            .iter()
            .find(|i| i.index == interface)
            .map(|i| i.mtu)
    });
    Ok(Route {
        source,
        interface,
        gateway,
        hop_limit: hop_limit.unwrap_or(DEFAULT_HOP_LIMIT),
        mtu: mtu.ok_or(RouteError::Incomplete {
            destination,
            what: "an interface that exists",
        })?,
        is_local,
    })
}

fn owner(interfaces: &[Interface], address: Option<IpAddr>) -> Option<&Interface> {
    let address = address?;
    interfaces.iter().find(|interface| interface.owns(address))
}

/// The way to an IPv6 group on the loopback interface. The kernel has no route for it, and our endpoints do without one.
fn on_loopback(query: &RouteQuery, interfaces: &[Interface]) -> Option<Route> {
    let lo = interfaces.iter().find(|interface| {
        interface.loopback && interface.up && interface.index == query.interface
    })?;
    let own = lo.addresses.iter().map(|address| address.ip);
    query.destination.is_ipv6().then_some(Route {
        source: query
            .source
            .or_else(|| own.into_iter().find(IpAddr::is_ipv6))?,
        interface: lo.index,
        gateway: None,
        hop_limit: DEFAULT_HOP_LIMIT,
        mtu: lo.mtu,
        is_local: true,
    })
}

/// The interface of the default route with the lowest metric, of IPv4 before IPv6.
///
/// # Errors
/// No netlink socket to be had.
pub fn default_route_interface() -> io::Result<Option<u32>> {
    for family in [AddressFamily::Inet, AddressFamily::Inet6] {
        let mut message = RouteMessage::default();
        message.header.address_family = family;
        let mut best: Option<(u32, u32)> = None;
        for answer in ask(RouteNetlinkMessage::GetRoute(message), true)? {
            let RouteNetlinkMessage::NewRoute(answer) = answer else {
                continue;
            };
            let is_default = answer.header.destination_prefix_length == 0
                && answer.header.table == RouteHeader::RT_TABLE_MAIN
                && answer.header.kind == RouteType::Unicast;
            if !is_default {
                continue;
            }
            let (mut metric, mut interface) = (0, None);
            for attribute in &answer.attributes {
                match attribute {
                    RouteAttribute::Priority(value) => metric = *value,
                    RouteAttribute::Oif(index) => interface = Some(*index),
                    RouteAttribute::MultiPath(hops) => {
                        interface = interface.or(hops.first().map(|hop| hop.interface_index));
                    }
                    _ => {}
                }
            }
            if let Some(interface) = interface
                && best.is_none_or(|(least, _)| metric < least)
            {
                best = Some((metric, interface));
            }
        }
        if let Some((_, interface)) = best {
            return Ok(Some(interface));
        }
    }
    Ok(None)
}

fn request(query: &RouteQuery) -> RouteMessage {
    let mut message = RouteMessage::default();
    message.header.address_family = if query.destination.is_ipv4() {
        AddressFamily::Inet
    } else {
        AddressFamily::Inet6
    };
    message.header.destination_prefix_length = prefix_len(query.destination);
    message.header.tos = query.traffic_class & TOS_MASK;
    message
        .attributes
        .push(RouteAttribute::Destination(query.destination.into()));
    if let Some(source) = query.source {
        message.header.source_prefix_length = prefix_len(source);
        message
            .attributes
            .push(RouteAttribute::Source(source.into()));
    }
    if query.interface != 0 {
        message
            .attributes
            .push(RouteAttribute::Oif(query.interface));
    }
    message
}

fn prefix_len(ip: IpAddr) -> u8 {
    if ip.is_ipv4() { 32 } else { 128 }
}

fn ip(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(ip) => Some((*ip).into()),
        RouteAddress::Inet6(ip) => Some((*ip).into()),
        _ => None,
    }
}

fn via_ip(via: &netlink_packet_route::route::RouteVia) -> Option<IpAddr> {
    match via {
        netlink_packet_route::route::RouteVia::Inet(ip) => Some((*ip).into()),
        netlink_packet_route::route::RouteVia::Inet6(ip) => Some((*ip).into()),
        _ => None,
    }
}

const DEFAULT_HOP_LIMIT: u8 = 64;
/// The bits of the type of service that take part in routing; the lowest two are ECN.
const TOS_MASK: u8 = 0x1C;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::namespace::{in_own_namespace, run};

    fn query(destination: &str) -> RouteQuery {
        RouteQuery {
            destination: destination.parse().unwrap(),
            source: None,
            interface: 0,
            traffic_class: 0,
        }
    }

    /// R-ADDR-1: without a source, the source is the one that a route lookup gives.
    #[test]
    fn a_local_destination_is_routed_to_the_interface_that_owns_it() {
        let interfaces = super::super::interfaces().unwrap();
        let lo = interfaces
            .iter()
            .find(|interface| interface.loopback)
            .unwrap();
        if !lo.up {
            oarlock_sim::not_run("loopback", "the loopback interface is down");
            return;
        }
        let found = route(&query("127.0.0.1"), &interfaces).unwrap();
        assert!(found.is_local);
        assert_eq!(
            (found.source, found.interface, found.mtu),
            ("127.0.0.1".parse().unwrap(), lo.index, lo.mtu)
        );
        for interface in interfaces
            .iter()
            .filter(|interface| interface.up && !interface.loopback)
        {
            for address in &interface.addresses {
                let scope = if matches!(address.ip, IpAddr::V6(v6) if v6.is_unicast_link_local()) {
                    interface.index
                } else {
                    0
                };
                let query = RouteQuery {
                    destination: address.ip,
                    interface: scope,
                    source: None,
                    traffic_class: 0,
                };
                let found = route(&query, &interfaces).unwrap();
                assert!(found.is_local, "{address:?}");
                assert_eq!(found.interface, interface.index, "{address:?}");
                assert_eq!(found.source, address.ip, "{address:?}");
            }
        }
    }

    #[test]
    fn a_source_that_is_not_ours_is_refused_with_the_kernels_errno() {
        let mut query = query("127.0.0.1");
        query.source = Some("203.0.113.9".parse().unwrap());
        let error = route(&query, &[]).unwrap_err();
        // Which of the two depends on the kernel's version.
        assert!(
            [libc::EINVAL, libc::ENETUNREACH].contains(&error.raw_os_error()),
            "{error}"
        );
    }

    /// The interface of a group is that of the source address, and an IPv6 group can be reached over loopback too.
    #[test]
    fn a_group_is_reached_by_the_interface_of_the_source() {
        in_own_namespace(
            "netlink::route::tests::a_group_is_reached_by_the_interface_of_the_source",
            || {
                for (name, i) in [("m0", 1), ("n0", 2)] {
                    run(&format!(
                        "ip link add {name} type veth peer name {name}p && ip link set {name} up && ip link set {name}p up"
                    ));
                    run(&format!(
                        "ip addr add 192.0.{i}.1/24 dev {name} && ip -6 addr add fd0{i}::1/64 dev {name} nodad"
                    ));
                }
                let interfaces = crate::netlink::interfaces().unwrap();
                let from = |destination, source: &str| {
                    let source: IpAddr = source.parse().unwrap();
                    let query = RouteQuery {
                        source: Some(source),
                        ..query(destination)
                    };
                    let found = route(&query, &interfaces).unwrap();
                    assert_eq!(found.is_local, source.is_loopback());
                    assert!(found.gateway.is_none());
                    assert_eq!((found.source, found.hop_limit), (source, 64));
                    let name = interfaces
                        .iter()
                        .find(|interface| interface.index == found.interface);
                    name.unwrap().name.clone()
                };
                assert_eq!(from("239.1.2.3", "192.0.1.1"), "m0");
                assert_eq!(from("239.1.2.3", "192.0.2.1"), "n0");
                assert_eq!(from("239.1.2.3", "127.0.0.1"), "lo");
                assert_eq!(from("ff0e::123", "fd01::1"), "m0");
                assert_eq!(from("ff0e::123", "fd02::1"), "n0");
                assert_eq!(from("ff0e::123", "::1"), "lo");
                let by_scope = RouteQuery {
                    interface: 1,
                    ..query("ff02::123")
                };
                let found = route(&by_scope, &interfaces).unwrap();
                assert_eq!(found.source, "::1".parse::<IpAddr>().unwrap());
                // Without a source it is the routing table that knows.
                assert!(route(&query("239.1.2.3"), &interfaces).is_err());
                run("ip route add default via 192.0.2.9");
                let n0 = route(&query("239.1.2.3"), &interfaces).unwrap();
                assert_eq!(n0.source, "192.0.2.1".parse::<IpAddr>().unwrap());
            },
        );
    }
}
