//! Names and addresses of the command line.

use super::options::Format;
use crate::failure::Failure;
use std::net::{
    IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, ToSocketAddrs as _, UdpSocket,
};

/// The address of `name`; the first one where a host name has several.
pub(super) fn resolve(
    name: &str,
    format: Option<Format>,
    port: u16,
) -> Result<SocketAddr, Failure> {
    let failed = |problem: &str| Failure::Name {
        name: name.to_owned(),
        problem: problem.to_owned(),
    };
    match format {
        Some(Format::Ip) => name
            .parse::<Ipv4Addr>()
            .map(|ip| SocketAddr::new(ip.into(), port))
            .map_err(|_| Failure::Usage(format!("-f ip wants an IPv4 address, not {name}"))),
        Some(Format::Ipv6) => ipv6(name, port)
            .ok_or_else(|| Failure::Usage(format!("-f ipv6 wants an IPv6 address, not {name}"))),
        Some(Format::Name | Format::Gid) | None => {
            if let Ok(ip) = name.parse::<IpAddr>() {
                return Ok(SocketAddr::new(ip, port));
            }
            if let Some(address) = ipv6(name, port) {
                return Ok(address);
            }
            (name, port)
                .to_socket_addrs()
                .map_err(|error| failed(&error.to_string()))?
                .next()
                .ok_or_else(|| failed("it has no address"))
        }
    }
}

/// An IPv6 address in text, with its interface behind a `%` if it is link-local.
fn ipv6(name: &str, port: u16) -> Option<SocketAddr> {
    let (address, interface) = match name.split_once('%') {
        Some((address, interface)) => (address, Some(interface)),
        None => (name, None),
    };
    let address: Ipv6Addr = address.parse().ok()?;
    let scope = match interface {
        None => 0,
        Some(text) => match text.parse() {
            Ok(number) => number,
            Err(_) => interface_index(text)?,
        },
    };
    Some(SocketAddrV6::new(address, port, 0, scope).into())
}

fn interface_index(name: &str) -> Option<u32> {
    oarlock_port::netlink::interfaces()
        .ok()?
        .into_iter()
        .find(|interface| interface.name == name)
        .map(|interface| interface.index)
}

/// Any local address: of both families, or of IPv4 alone where the system has no IPv6.
pub(crate) fn any(port: u16) -> SocketAddr {
    let ip = if UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)).is_ok() {
        IpAddr::V6(Ipv6Addr::UNSPECIFIED)
    } else {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED)
    };
    SocketAddr::new(ip, port)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_of_both_families_are_addresses_without_a_format() {
        assert_eq!(
            resolve("127.0.0.1", None, 7).unwrap(),
            "127.0.0.1:7".parse().unwrap()
        );
        assert_eq!(resolve("::1", None, 7).unwrap(), "[::1]:7".parse().unwrap());
        assert_eq!(
            resolve("fe80::1%3", None, 7).unwrap().to_string(),
            "[fe80::1%3]:7"
        );
    }

    #[test]
    fn a_format_refuses_the_other_family_and_says_so() {
        let error = resolve("::1", Some(Format::Ip), 7).unwrap_err().to_string();
        assert!(error.contains("-f ip wants"), "{error}");
        assert!(resolve("127.0.0.1", Some(Format::Ipv6), 7).is_err());
        assert!(resolve("no-such-host.invalid", Some(Format::Name), 7).is_err());
    }
}
