//! The memberships of a host, kept on sockets that receive nothing.

use super::{join, leave};
use crate::fork::ForkGuard;
use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::net::IpAddr;

/// Keeps interfaces in multicast groups, so that the network delivers to this host what is sent there, whether or not an
/// endpoint listens at the moment.
///
/// The sockets are bound to no port, so nothing is ever delivered to them. There are several, because the system bounds the
/// groups of one (`net.ipv4.igmp_max_memberships`, 20 as a rule; `net.core.optmem_max`).
#[derive(Debug, Default)]
pub struct GroupKeeper {
    sockets: Vec<Keeper>,
}

/// One socket and what it keeps. Taken off the fork list before the socket is closed: fields are dropped in this order.
#[derive(Debug)]
struct Keeper {
    _fork: ForkGuard,
    socket: Socket,
    ipv6: bool,
    kept: Vec<(IpAddr, u32)>,
}

impl GroupKeeper {
    /// Without a membership.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes an interface a member of a group. One that is a member stays so.
    ///
    /// # Errors
    /// `EINVAL`: not a group. `ENODEV`: no such interface. `EAFNOSUPPORT`: no IPv6. `EMFILE`: no descriptor left.
    /// `ENOBUFS`: so many groups that even 64 sockets have no room.
    ///
    /// # Blocking
    /// Never.
    pub fn join(&mut self, group: IpAddr, ifindex: u32) -> io::Result<()> {
        let group = group.to_canonical();
        if !group.is_multicast() || ifindex == 0 {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let membership = (group, ifindex);
        if self.is_kept(membership) {
            return Ok(());
        }
        for keeper in &mut self.sockets {
            if keeper.ipv6 == group.is_ipv6() {
                match keeper.keep(membership) {
                    Err(error) if is_full(&error) => {}
                    result => return result,
                }
            }
        }
        if self.sockets.len() >= SOCKETS_MAX {
            return Err(io::Error::from_raw_os_error(libc::ENOBUFS));
        }
        let mut keeper = Keeper::new(group.is_ipv6())?;
        keeper.keep(membership)?;
        self.sockets.push(keeper);
        Ok(())
    }

    /// Ends a membership; one that is not kept, or whose interface has gone, is none already.
    pub fn leave(&mut self, group: IpAddr, ifindex: u32) {
        let membership = (group.to_canonical(), ifindex);
        for keeper in &mut self.sockets {
            if let Some(place) = keeper.kept.iter().position(|kept| *kept == membership) {
                keeper.kept.swap_remove(place);
                // The kernel's part ends with the interface, if it has not ended here.
                let _ = leave(&keeper.socket, membership.0, ifindex);
            }
        }
        self.sockets.retain(|keeper| !keeper.kept.is_empty());
    }

    /// Number of memberships.
    #[must_use]
    pub fn len(&self) -> usize {
        self.sockets.iter().map(|keeper| keeper.kept.len()).sum()
    }

    /// Whether there is no membership.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sockets.is_empty()
    }

    fn is_kept(&self, membership: (IpAddr, u32)) -> bool {
        self.sockets
            .iter()
            .any(|keeper| keeper.kept.contains(&membership))
    }
}

impl Keeper {
    fn new(ipv6: bool) -> io::Result<Self> {
        let domain = if ipv6 { Domain::IPV6 } else { Domain::IPV4 };
        let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
        Ok(Self {
            _fork: ForkGuard::new(&socket)?,
            socket,
            ipv6,
            kept: Vec::new(),
        })
    }

    fn keep(&mut self, (group, ifindex): (IpAddr, u32)) -> io::Result<()> {
        join(&self.socket, group, ifindex)?;
        self.kept.push((group, ifindex));
        Ok(())
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOBUFS | libc::ENOMEM))
}

const SOCKETS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::namespace::{in_own_namespace, run};
    use std::net::{Ipv4Addr, Ipv6Addr};

    fn is_member(line: &str) -> bool {
        ["/proc/net/igmp", "/proc/net/igmp6"]
            .iter()
            .any(|file| std::fs::read_to_string(file).unwrap().contains(line))
    }

    /// One socket may be in 20 IPv4 groups; a host in more.
    #[test]
    fn a_host_is_in_more_groups_than_one_socket_may_be() {
        in_own_namespace(
            "group::keeper::tests::a_host_is_in_more_groups_than_one_socket_may_be",
            || {
                let mut keeper = GroupKeeper::new();
                let four = |i: u8| IpAddr::from(Ipv4Addr::new(239, 7, 7, i));
                let six = |i: u16| IpAddr::from(Ipv6Addr::new(0xFF0E, 0, 0, 0, 0, 0, 7, i));
                for i in 0..100 {
                    keeper.join(four(i), 1).unwrap();
                    keeper.join(six(i.into()), 1).unwrap();
                }
                keeper.join(four(5), 1).unwrap();
                assert_eq!(keeper.len(), 200);
                // Addresses stand in the list in the host's order.
                assert!(is_member("630707EF") && is_member("ff0e0000000000000000000000070063"));
                keeper.leave(four(99), 1);
                keeper.leave(six(99), 1);
                keeper.leave(four(99), 1);
                keeper.leave(four(1), 2);
                assert!(!is_member("630707EF") && !is_member("ff0e0000000000000000000000070063"));
                assert_eq!(keeper.len(), 198);
                assert!(is_member("050707EF"));
                for i in 0..99 {
                    keeper.leave(four(i), 1);
                    keeper.leave(six(i.into()), 1);
                }
                assert!(keeper.is_empty() && !is_member("0707EF"));
            },
        );
    }

    #[test]
    fn memberships_of_an_interface_that_has_gone_end_without_ado() {
        in_own_namespace(
            "group::keeper::tests::memberships_of_an_interface_that_has_gone_end_without_ado",
            || {
                run("ip link add m0 type veth peer name m1 && ip link set m0 up");
                let interfaces = crate::netlink::interfaces().unwrap();
                let m0 = interfaces.iter().find(|interface| interface.name == "m0");
                let m0 = m0.unwrap().index;
                let groups: [IpAddr; 2] = ["239.7.7.7", "ff0e::77"].map(|ip| ip.parse().unwrap());
                let mut keeper = GroupKeeper::new();
                for group in groups {
                    keeper.join(group, m0).unwrap();
                }
                run("ip link del m0");
                for group in groups {
                    keeper.leave(group, m0);
                    let error = keeper.join(group, m0).unwrap_err();
                    assert_eq!(error.raw_os_error(), Some(libc::ENODEV));
                }
                assert!(keeper.is_empty());
                let error = keeper.join("192.0.2.1".parse().unwrap(), 1).unwrap_err();
                assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
            },
        );
    }

    /// A host's memberships have a bound of their own.
    #[test]
    fn so_many_groups_that_no_socket_has_room_are_refused() {
        in_own_namespace(
            "group::keeper::tests::so_many_groups_that_no_socket_has_room_are_refused",
            || {
                std::fs::write("/proc/sys/net/ipv4/igmp_max_memberships", "2").unwrap();
                let mut keeper = GroupKeeper::new();
                let group = |i: u8| IpAddr::from(Ipv4Addr::new(239, 7, 7, i));
                for i in 0..2 * SOCKETS_MAX as u8 {
                    keeper.join(group(i), 1).unwrap();
                }
                let error = keeper.join(group(255), 1).unwrap_err();
                assert_eq!(error.raw_os_error(), Some(libc::ENOBUFS));
                keeper.leave(group(7), 1);
                keeper.join(group(255), 1).unwrap();
            },
        );
    }
}
