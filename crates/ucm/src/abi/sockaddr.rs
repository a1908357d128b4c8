//! Socket addresses as the ABI carries them.
//!
//! ```text
//!   sockaddr_in  (16)  family u16 | port be16 | address 4 | zero 8
//!   sockaddr_in6 (28)  family u16 | port be16 | flow info be32 | address 16 | scope id u32
//!   sockaddr_ib  (48)  family u16 | pkey be16 | flow info be32 | GID 16 | service id be64 | mask be64 | scope id u64
//! ```

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use super::{layout, read};

/// Family number of IPv4 on Linux.
pub const AF_INET: u16 = 2;
/// Family number of IPv6 on Linux.
pub const AF_INET6: u16 = 10;
/// Family number of native InfiniBand addresses on Linux.
pub const AF_IB: u16 = 27;

const SOCKADDR_IN_LEN: usize = 16;
const SOCKADDR_IN6_LEN: usize = size_of::<SockaddrIn6>();

/// The bytes of a `sockaddr_in6`, in which an IPv4 address may stand too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SockaddrIn6 {
    /// The address family.
    pub family: u16,
    /// The port, big endian.
    pub port: [u8; 2],
    /// Flow information, big endian; the address itself for IPv4.
    pub flowinfo: [u8; 4],
    /// The IPv6 address.
    pub addr: [u8; 16],
    /// The interface of a link-local address.
    pub scope_id: u32,
}
layout!(SockaddrIn6, 28, { family: 0, port: 2, flowinfo: 4, addr: 8, scope_id: 24 });

/// The bytes of a `sockaddr_storage`.
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(8))]
pub struct SockaddrStorage {
    /// The bytes; how many of them count depends on the family in the first two.
    pub bytes: [u8; 128],
}
layout!(SockaddrStorage, 128, { bytes: 0 });

/// The bytes of a `sockaddr_ib`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SockaddrIb {
    /// The address family, [`AF_IB`].
    pub family: u16,
    /// The partition key, big endian.
    pub pkey: [u8; 2],
    /// Flow information, big endian.
    pub flowinfo: [u8; 4],
    /// The GID.
    pub addr: [u8; 16],
    /// The service, big endian.
    pub sid: [u8; 8],
    /// Which bits of the service count, big endian.
    pub sid_mask: [u8; 8],
    /// The scope.
    pub scope_id: u64,
}
layout!(SockaddrIb, 48, { family: 0, pkey: 2, flowinfo: 4, addr: 8, sid: 24, sid_mask: 32, scope_id: 40 });

/// Why bytes are no address for us.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UnusableAddress {
    /// No family that RDMA CM knows.
    #[error("address family {0} is none of IPv4 (2), IPv6 (10) and InfiniBand (27)")]
    UnknownFamily(u16),
    /// A native InfiniBand address, which the host does not resolve.
    #[error("native InfiniBand addresses (AF_IB) are not supported")]
    NativeInfiniBand,
}

/// The size that an address of a family has; 0 for unknown families (`rdma_addr_size`).
const fn size_of_family(family: u16) -> usize {
    match family {
        AF_INET => SOCKADDR_IN_LEN,
        AF_INET6 => SOCKADDR_IN6_LEN,
        AF_IB => size_of::<SockaddrIb>(),
        _ => 0,
    }
}

impl SockaddrIn6 {
    /// No address.
    pub const NONE: Self = Self {
        family: 0,
        port: [0; 2],
        flowinfo: [0; 4],
        addr: [0; 16],
        scope_id: 0,
    };

    /// How many bytes count: 16, 28, or 0 when the family does not fit here.
    #[must_use]
    pub const fn size(&self) -> usize {
        let size = size_of_family(self.family);
        if size <= SOCKADDR_IN6_LEN { size } else { 0 }
    }

    /// The address.
    ///
    /// # Errors
    /// The family is none that can be used.
    pub fn to_addr(&self) -> Result<SocketAddr, UnusableAddress> {
        let port = u16::from_be_bytes(self.port);
        match self.family {
            AF_INET => Ok(SocketAddrV4::new(Ipv4Addr::from(self.flowinfo), port).into()),
            AF_INET6 => {
                let flowinfo = u32::from_be_bytes(self.flowinfo);
                Ok(
                    SocketAddrV6::new(Ipv6Addr::from(self.addr), port, flowinfo, self.scope_id)
                        .into(),
                )
            }
            AF_IB => Err(UnusableAddress::NativeInfiniBand),
            other => Err(UnusableAddress::UnknownFamily(other)),
        }
    }
}

impl From<SocketAddr> for SockaddrIn6 {
    fn from(addr: SocketAddr) -> Self {
        let port = addr.port().to_be_bytes();
        match addr {
            SocketAddr::V4(v4) => Self {
                family: AF_INET,
                port,
                flowinfo: v4.ip().octets(),
                ..Self::NONE
            },
            SocketAddr::V6(v6) => Self {
                family: AF_INET6,
                port,
                flowinfo: v6.flowinfo().to_be_bytes(),
                addr: v6.ip().octets(),
                scope_id: v6.scope_id(),
            },
        }
    }
}

impl SockaddrStorage {
    /// The address family.
    #[must_use]
    pub const fn family(&self) -> u16 {
        u16::from_ne_bytes([self.bytes[0], self.bytes[1]])
    }

    /// How many bytes count; 0 for an unknown family.
    #[must_use]
    pub const fn size(&self) -> usize {
        size_of_family(self.family())
    }

    /// [`size`](Self::size) as the ABI's size fields carry it.
    #[must_use]
    pub fn abi_size(&self) -> u16 {
        u16::try_from(self.size()).expect("no family has more than 48 bytes")
    }

    /// The address.
    ///
    /// # Errors
    /// The family is none that can be used.
    pub fn to_addr(&self) -> Result<SocketAddr, UnusableAddress> {
        let narrow: SockaddrIn6 = read(&self.bytes).expect("128 bytes hold a sockaddr_in6");
        narrow.to_addr()
    }

    /// The native InfiniBand address, when it is one.
    #[must_use]
    pub fn to_ib(&self) -> Option<SockaddrIb> {
        (self.family() == AF_IB).then(|| read(&self.bytes).expect("128 bytes hold a sockaddr_ib"))
    }
}

impl From<SocketAddr> for SockaddrStorage {
    fn from(addr: SocketAddr) -> Self {
        let narrow = SockaddrIn6::from(addr);
        let mut storage = Self::new_zeroed();
        storage.bytes[..narrow.size()].copy_from_slice(&narrow.as_bytes()[..narrow.size()]);
        storage
    }
}

impl From<SockaddrIb> for SockaddrStorage {
    fn from(addr: SockaddrIb) -> Self {
        let mut storage = Self::new_zeroed();
        storage.bytes[..size_of::<SockaddrIb>()].copy_from_slice(addr.as_bytes());
        storage
    }
}

impl std::fmt::Debug for SockaddrStorage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.to_addr() {
            Ok(addr) => write!(f, "SockaddrStorage({addr})"),
            Err(_) => write!(f, "SockaddrStorage(family {})", self.family()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_both_forms() {
        for text in [
            "127.0.0.1:7471",
            "0.0.0.0:0",
            "[::1]:18515",
            "[fe80::1%5]:65535",
            "[2001:db8::7]:1",
        ] {
            let addr: SocketAddr = text.parse().expect("an address");
            assert_eq!(SockaddrIn6::from(addr).to_addr(), Ok(addr));
            assert_eq!(SockaddrStorage::from(addr).to_addr(), Ok(addr));
        }
    }

    #[test]
    fn bytes_are_those_of_linux() {
        let v4 = SockaddrStorage::from("10.1.2.3:8000".parse::<SocketAddr>().expect("an address"));
        assert_eq!(v4.size(), 16);
        assert_eq!(v4.bytes[2..8], [0x1F, 0x40, 10, 1, 2, 3]);
        assert!(v4.bytes[8..].iter().all(|&byte| byte == 0));
        let v6 = SockaddrStorage::from(
            "[fe80::2%7]:8000"
                .parse::<SocketAddr>()
                .expect("an address"),
        );
        assert_eq!(v6.size(), 28);
        assert_eq!(v6.bytes[8..10], [0xFE, 0x80]);
        assert_eq!(v6.bytes[24..28], 7_u32.to_ne_bytes());
    }

    #[test]
    fn other_families_are_refused_by_name() {
        let mut storage = SockaddrStorage::new_zeroed();
        assert_eq!(storage.to_addr(), Err(UnusableAddress::UnknownFamily(0)));
        assert_eq!(storage.size(), 0);
        storage.bytes[..2].copy_from_slice(&AF_IB.to_ne_bytes());
        assert_eq!(storage.to_addr(), Err(UnusableAddress::NativeInfiniBand));
        assert_eq!(storage.size(), 48);
        assert!(storage.to_ib().is_some());
        let narrow = SockaddrIn6 {
            family: AF_IB,
            ..SockaddrIn6::NONE
        };
        assert_eq!(
            narrow.size(),
            0,
            "a sockaddr_ib does not fit in a sockaddr_in6"
        );
    }
}
