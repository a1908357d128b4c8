//! `address%interface`, for addresses that carry no interface themselves.

use std::ffi::{CStr, CString, c_int};
use std::net::{IpAddr, Ipv6Addr};
use std::ptr;

use super::{Fault, Found, bytes, list};

/// A numeric node with an interface behind it.
pub(super) struct OnInterface {
    /// The node without the interface.
    pub(super) node: CString,
    pub(super) interface: String,
    /// The addresses of the interface.
    addresses: Vec<IpAddr>,
}

/// Takes the interface off `node`, if there is one and the address has no place for it: the resolver itself reads that of
/// link-local addresses.
pub(super) fn split(node: &CStr) -> Found<Option<OnInterface>> {
    let Some((address, interface)) = node.to_str().ok().and_then(|node| node.split_once('%'))
    else {
        return Ok(None);
    };
    let Ok(numeric) = address.parse::<IpAddr>() else {
        return Ok(None);
    };
    if let IpAddr::V6(numeric) = numeric
        && has_scope(numeric)
    {
        return Ok(None);
    }
    let unknown = || Fault::Resolver(libc::EAI_NONAME, format!("interface {interface}"));
    let name = CString::new(interface).map_err(|_| unknown())?;
    // SAFETY: a C string.
    let by_name = unsafe { libc::if_nametoindex(name.as_ptr()) };
    let index = match by_name {
        0 => interface.parse().map_err(|_| unknown())?,
        index => index,
    };
    let addresses = addresses(index).ok_or_else(unknown)?;
    Ok(Some(OnInterface {
        node: CString::new(address).map_err(|_| unknown())?,
        interface: interface.to_owned(),
        addresses,
    }))
}

/// Link-local addresses, and groups of a link or an interface.
fn has_scope(address: Ipv6Addr) -> bool {
    address.is_unicast_link_local()
        || (address.is_multicast() && matches!(address.octets()[1] & 0xF, 1 | 2))
}

impl OnInterface {
    pub(super) fn has(&self, address: IpAddr) -> bool {
        self.addresses.contains(&address)
    }

    /// The interface's address to reach `remote` from: one of its family, of its reach if there is one.
    pub(super) fn local_for(&self, remote: IpAddr) -> Option<IpAddr> {
        let mut same = self
            .addresses
            .iter()
            .filter(|local| local.is_ipv4() == remote.is_ipv4());
        let first = same.clone().next();
        let is_narrow =
            |address: IpAddr| matches!(address, IpAddr::V6(address) if has_scope(address));
        same.find(|local| !is_narrow(**local)).or(first).copied()
    }
}

/// The addresses of an interface; `None` if there is no such interface.
fn addresses(index: u32) -> Option<Vec<IpAddr>> {
    let mut name = [0; libc::IF_NAMESIZE];
    // SAFETY: as long as the call needs.
    if unsafe { libc::if_indextoname(index, name.as_mut_ptr()) }.is_null() {
        return None;
    }
    // SAFETY: the call has put a C string there.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) };
    let mut first: *mut libc::ifaddrs = ptr::null_mut();
    // SAFETY: a place for the answer.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        return None;
    }
    let mut found = Vec::new();
    let mut next = first;
    // SAFETY: a list of the system's, null at its end.
    while let Some(entry) = unsafe { next.as_ref() } {
        next = entry.ifa_next;
        // SAFETY: every entry has a name.
        if entry.ifa_addr.is_null() || unsafe { CStr::from_ptr(entry.ifa_name) } != name {
            continue;
        }
        // SAFETY: not null, and at least the family is there.
        let len = match c_int::from(unsafe { (*entry.ifa_addr).sa_family }) {
            libc::AF_INET => size_of::<libc::sockaddr_in>(),
            libc::AF_INET6 => size_of::<libc::sockaddr_in6>(),
            _ => continue,
        };
        // SAFETY: the family says how long it is.
        let address = list::parsed(&unsafe { bytes(entry.ifa_addr, len as libc::socklen_t) });
        found.extend(address.map(|address| address.ip()));
    }
    // SAFETY: the list, which nobody looks at any more.
    unsafe { libc::freeifaddrs(first) };
    Some(found)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn only_addresses_without_a_scope_of_their_own_lose_their_interface() {
        let split = |node: &CStr| split(node).is_ok_and(|on| on.is_some());
        assert!(split(c"127.0.0.1%lo"));
        assert!(split(c"0.0.0.0%lo"));
        assert!(split(c"::1%lo"));
        assert!(!split(c"127.0.0.1"));
        assert!(!split(c"fe80::1%lo"), "the resolver reads the interface");
        assert!(!split(c"ff02::1%lo"), "the resolver reads the interface");
        assert!(!split(c"host%lo"), "a name");
    }

    #[test]
    fn an_interface_that_is_not_there_is_named() {
        for node in [c"127.0.0.1%nosuch0", c"127.0.0.1%", c"127.0.0.1%4000000"] {
            let Err(Fault::Resolver(number, question)) = split(node) else {
                panic!("{node:?} was taken");
            };
            assert_eq!(number, libc::EAI_NONAME);
            assert!(question.starts_with("interface "), "{question}");
        }
    }

    #[test]
    fn the_local_address_is_of_the_remote_ones_family_and_reach() {
        let addresses = ["fe80::5", "2001:db8::5", "10.0.0.5"];
        let on = OnInterface {
            node: CString::default(),
            interface: "eth9".to_owned(),
            addresses: addresses
                .map(|text| text.parse().expect("an address"))
                .to_vec(),
        };
        let local = |remote: &str| on.local_for(remote.parse().expect("an address"));
        assert_eq!(
            local("2001:db8::7"),
            Some(addresses[1].parse().expect("an address"))
        );
        assert_eq!(
            local("10.0.0.7"),
            Some(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 5)))
        );
        assert!(on.has(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 5))));
        assert!(!on.has(IpAddr::V4(Ipv4Addr::LOCALHOST)));
    }
}
