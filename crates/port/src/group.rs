//! Membership of multicast groups: which groups an endpoint is in, and the socket options behind it.

mod keeper;

pub use keeper::GroupKeeper;

use crate::Counters;
use crate::counters::Counter;
use socket2::{InterfaceIndexOrAddress, Socket};
use std::io;
use std::net::IpAddr;
use std::sync::{PoisonError, RwLock};

/// The groups of one endpoint, each with its interface.
///
/// The kernel delivers an IPv6 group's packets by any interface to a socket that has joined it on one (Linux
/// net/ipv6/mcast.c, `inet6_mc_check`), and queued packets outlive their membership: so received packets are held
/// against this list.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    joined: RwLock<Vec<(IpAddr, u32)>>,
}

impl Groups {
    /// Adds a membership after `join`, which is given those there are, has told the network.
    pub(crate) fn join(
        &self,
        group: IpAddr,
        ifindex: u32,
        join: impl FnOnce(&[(IpAddr, u32)]) -> io::Result<()>,
    ) -> io::Result<()> {
        if !group.is_multicast() || ifindex == 0 {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let mut joined = self.joined.write().unwrap_or_else(PoisonError::into_inner);
        if joined.contains(&(group, ifindex)) {
            return Err(io::Error::from_raw_os_error(libc::EADDRINUSE));
        }
        join(&joined)?;
        joined.push((group, ifindex));
        Ok(())
    }

    /// Removes a membership; `leave`, which is given those that are left, tells the network.
    pub(crate) fn leave(
        &self,
        group: IpAddr,
        ifindex: u32,
        leave: impl FnOnce(&[(IpAddr, u32)]) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut joined = self.joined.write().unwrap_or_else(PoisonError::into_inner);
        let place = joined.iter().position(|entry| *entry == (group, ifindex));
        let Some(place) = place else {
            return Err(io::Error::from_raw_os_error(libc::EADDRNOTAVAIL));
        };
        joined.swap_remove(place);
        leave(&joined)
    }

    fn is_member(&self, group: IpAddr, ifindex: u32) -> bool {
        self.joined
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .contains(&(group, ifindex))
    }

    /// Whether a packet to a group, which came by this interface and names this queue pair, is for this endpoint; counts
    /// why not.
    pub(crate) fn accept(
        &self,
        counters: &Counters,
        group: IpAddr,
        ifindex: u32,
        dest_qpn: &[u8],
    ) -> bool {
        if dest_qpn != MULTICAST_QPN {
            counters.add(Counter::group_qp_bad, 1);
        } else if !self.is_member(group, ifindex) {
            counters.add(Counter::group_not_joined, 1);
        } else {
            return true;
        }
        false
    }
}

/// Makes a socket a member of a group. A socket of family AF_INET6 can be in IPv4 groups as well.
pub(crate) fn join(socket: &Socket, group: IpAddr, ifindex: u32) -> io::Result<()> {
    match group {
        IpAddr::V4(group) => {
            socket.join_multicast_v4_n(&group, &InterfaceIndexOrAddress::Index(ifindex))
        }
        IpAddr::V6(group) => socket.join_multicast_v6(&group, ifindex),
    }
}

/// Ends what [`join`] began.
pub(crate) fn leave(socket: &Socket, group: IpAddr, ifindex: u32) -> io::Result<()> {
    match group {
        IpAddr::V4(group) => {
            socket.leave_multicast_v4_n(&group, &InterfaceIndexOrAddress::Index(ifindex))
        }
        IpAddr::V6(group) => socket.leave_multicast_v6(&group, ifindex),
    }
}

/// The destination queue pair of every multicast packet, as in the BTH.
pub(crate) const MULTICAST_QPN: [u8; 3] = [0xFF; 3];
