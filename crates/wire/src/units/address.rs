//! Who and where: GIDs, GUIDs, LIDs, and the path a RoCEv2 datagram takes.

use super::FlowLabel;
use core::fmt;
use core::net::{IpAddr, Ipv6Addr};

/// A global identifier. On RoCEv2 it is an IP address; an IPv4 address stands as `::ffff:a.b.c.d`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, PartialOrd, Ord)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// All zero: no address.
    pub const UNSPECIFIED: Self = Self([0; 16]);

    /// The GID of an IP address.
    #[must_use]
    pub const fn from_ip(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(v4) => Self(v4.to_ipv6_mapped().octets()),
            IpAddr::V6(v6) => Self(v6.octets()),
        }
    }

    /// The IP address of this GID; a mapped IPv4 address comes back as IPv4.
    #[must_use]
    pub const fn to_ip(self) -> IpAddr {
        let v6 = Ipv6Addr::from_octets(self.0);
        match v6.to_ipv4_mapped() {
            Some(v4) => IpAddr::V4(v4),
            None => IpAddr::V6(v6),
        }
    }

    /// Whether no address is given.
    #[must_use]
    pub fn is_unspecified(self) -> bool {
        self == Self::UNSPECIFIED
    }

    /// Whether this is an IPv6 link-local address, which needs an interface beside it.
    #[must_use]
    pub const fn is_link_local(self) -> bool {
        matches!(self.to_ip(), IpAddr::V6(v6) if v6.is_unicast_link_local())
    }

    /// Whether this is a multicast group: an IPv4 group in its mapped form, or an IPv6 group. The group `239.1.2.3` has the
    /// GID `::ffff:239.1.2.3`, as any other IPv4 address would.
    #[must_use]
    pub const fn is_multicast(self) -> bool {
        match self.to_ip() {
            IpAddr::V4(v4) => v4.is_multicast(),
            IpAddr::V6(v6) => v6.is_multicast(),
        }
    }
}

impl From<IpAddr> for Gid {
    fn from(ip: IpAddr) -> Self {
        Self::from_ip(ip)
    }
}

impl From<Gid> for IpAddr {
    fn from(gid: Gid) -> Self {
        gid.to_ip()
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.to_ip(), f)
    }
}

/// The globally unique identifier of a channel adapter, node or port.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, PartialOrd, Ord)]
pub struct Guid(pub u64);

impl Guid {
    /// The value as an integer.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#018x}", self.0)
    }
}

/// A local identifier: an address within an InfiniBand subnet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, PartialOrd, Ord)]
pub struct Lid(pub u16);

impl Lid {
    /// The permissive LID, which stands in the messages of a RoCE port, as there are no LIDs there.
    pub const PERMISSIVE: Self = Self(0xFFFF);

    /// The value as an integer.
    #[must_use]
    pub const fn get(self) -> u16 {
        self.0
    }
}

impl fmt::Display for Lid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// Where a RoCEv2 datagram comes from and goes to, seen from this side.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct AddressVector {
    /// This side's address: the source of what we send, the destination of what we receive.
    pub local: Gid,
    /// The peer's address.
    pub remote: Gid,
    /// The interface index when the addresses are link-local, else 0.
    pub scope_id: u32,
    /// The traffic class (IPv6) or type of service (IPv4).
    pub traffic_class: u8,
    /// The hop limit (IPv6) or time to live (IPv4).
    pub hop_limit: u8,
    /// The flow label; the UDP source port follows from it.
    pub flow_label: FlowLabel,
    /// The service level, 4 bits.
    pub service_level: u8,
}

/// Who is on the other end of a path: an address, which is another one on every interface if it is link-local.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PeerAddress {
    gid: Gid,
    /// 0 unless the address is link-local.
    interface: u32,
}

impl AddressVector {
    /// Who is on the other end.
    #[must_use]
    pub const fn peer(&self) -> PeerAddress {
        PeerAddress {
            gid: self.remote,
            interface: if self.remote.is_link_local() {
                self.scope_id
            } else {
                0
            },
        }
    }

    /// The path between two addresses, with a hop limit of 64 and everything else zero.
    #[must_use]
    pub fn new(local: Gid, remote: Gid) -> Self {
        Self {
            local,
            remote,
            scope_id: 0,
            traffic_class: 0,
            hop_limit: 64,
            flow_label: FlowLabel::default(),
            service_level: 0,
        }
    }

    /// The same path seen from the other side.
    #[must_use]
    pub fn reversed(self) -> Self {
        Self {
            local: self.remote,
            remote: self.local,
            ..self
        }
    }
}

impl fmt::Display for AddressVector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} > {}", self.local, self.remote)?;
        if self.scope_id != 0 {
            write!(f, " scope {}", self.scope_id)?;
        }
        Ok(())
    }
}
