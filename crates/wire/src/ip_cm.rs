//! The IP CM header and service IDs of the RDMA CM (IBA Vol. 1 Annex A11, RDMA IP CM service).
//!
//! ```text
//!  byte
//!     0  CMA version (8): 0
//!     1  IP version (4) | reserved (4)
//!     2  source port (16)
//!     4  source address, 16 bytes; IPv4 in the last 4
//!    20  destination address alike
//!    36  what the application gave
//! ```
//!
//! The header takes the first 36 bytes of the private data of a REQ or SIDR_REQ. The service ID carries port space and
//! destination port: `0x00000000 01 PP pppp`.

use crate::error::{WireError, WireErrorKind};
use crate::units::ServiceId;
use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The IP CM header.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct IpCmHeader {
    /// The port of the active side.
    pub source_port: u16,
    /// The address of the active side.
    pub source: IpAddr,
    /// The address of the passive side. If its family is not that of the source, it is emitted as unspecified.
    pub destination: IpAddr,
}

impl IpCmHeader {
    /// The length of the header.
    pub const LEN: usize = 36;

    /// Reads the header.
    ///
    /// # Errors
    /// `UnsupportedVersion` if the CMA version is not 0, upon which a REQ is rejected as consumer defined; `NotIp` if the
    /// IP version is neither 4 nor 6, which is how a request with native addresses looks.
    pub fn parse(bytes: &[u8; Self::LEN]) -> Result<Self, WireError> {
        if bytes[0] != CMA_VERSION {
            return Err(WireError::new(
                "IP CM header",
                "CMA version",
                WireErrorKind::UnsupportedVersion(bytes[0]),
            ));
        }
        let ip_version = bytes[1] >> 4;
        let read: fn([u8; 16]) -> IpAddr = match ip_version {
            4 => |[.., a, b, c, d]| IpAddr::V4(Ipv4Addr::new(a, b, c, d)),
            6 => |bytes| IpAddr::V6(Ipv6Addr::from(bytes)),
            other => {
                return Err(WireError::new(
                    "IP CM header",
                    "IP version",
                    WireErrorKind::NotIp(other),
                ));
            }
        };
        let mut addresses = [[0; 16]; 2];
        addresses.as_flattened_mut().copy_from_slice(&bytes[4..]);
        let [source, destination] = addresses.map(read);
        Ok(Self {
            source_port: u16::from_be_bytes([bytes[2], bytes[3]]),
            source,
            destination,
        })
    }

    /// Writes the header.
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        out[0] = CMA_VERSION;
        out[1] = if self.source.is_ipv4() {
            4 << 4
        } else {
            6 << 4
        };
        out[2..4].copy_from_slice(&self.source_port.to_be_bytes());
        out[4..20].copy_from_slice(&field(self.source));
        let destination = if self.source.is_ipv4() == self.destination.is_ipv4() {
            field(self.destination)
        } else {
            [0; 16]
        };
        out[20..36].copy_from_slice(&destination);
    }
}

/// An address as it stands in the header: IPv4 in the last 4 bytes, zeros before it.
fn field(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => {
            let mut bytes = [0; 16];
            bytes[12..].copy_from_slice(&v4.octets());
            bytes
        }
        IpAddr::V6(v6) => v6.octets(),
    }
}

const CMA_VERSION: u8 = 0;

/// A port space of the RDMA CM. The values are those of `rdma_port_space` in Linux.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct PortSpace(pub u16);

impl PortSpace {
    /// IP over InfiniBand multicast groups.
    pub const IPOIB: Self = Self(0x0002);
    /// Reliable connected queue pairs.
    pub const TCP: Self = Self(0x0106);
    /// Unreliable datagram queue pairs.
    pub const UDP: Self = Self(0x0111);
    /// Native addresses; the whole service ID belongs to the program.
    pub const IB: Self = Self(0x013F);
}

impl fmt::Display for PortSpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::IPOIB => f.write_str("IPOIB"),
            Self::TCP => f.write_str("TCP"),
            Self::UDP => f.write_str("UDP"),
            Self::IB => f.write_str("IB"),
            Self(other) => write!(f, "port space {other:#06x}"),
        }
    }
}

impl ServiceId {
    /// The service ID of a port in a port space.
    #[must_use]
    pub const fn for_port(port_space: PortSpace, port: u16) -> Self {
        Self((port_space.0 as u64) << 16 | port as u64)
    }

    /// The port, if the service ID is one of a port space.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the low 16 bits are the port"
    )]
    pub const fn port(self) -> Option<u16> {
        if self.port_space().is_some() {
            Some(self.0 as u16)
        } else {
            None
        }
    }

    /// The port space, if the service ID is one of TCP, UDP or IB.
    #[must_use]
    pub const fn port_space(self) -> Option<PortSpace> {
        match self.0 >> 16 {
            0x0106 => Some(PortSpace::TCP),
            0x0111 => Some(PortSpace::UDP),
            0x013F => Some(PortSpace::IB),
            _ => None,
        }
    }
}
