//! IPv6 multicast on the loopback interface.
//!
//! Linux has no route for it: the interface lacks the flag from which one is made, and an ordinary user cannot add one.
//! IPv4 multicast passes there. So an IPv6 group on that interface is carried by an IPv4 group of our own: whoever joins
//! the one joins the other, and a packet goes with the header of [`forward`], which says what its addresses
//! are. Several groups may have one carrier; the receiver tells them apart by the header.

use super::forward::{self, ForwardToken};
use super::sender::hop_limit;
use super::{Arrival, Senders};
use crate::ROCE_PORT;
use crate::frame::Flow;
use crate::group::MULTICAST_QPN;
use oarlock_wire::{AddressVector, Gid};
use std::io;
use std::net::{IpAddr, Ipv4Addr};

/// Whether a packet must be carried: an IPv6 group is its destination, and it leaves by the loopback interface.
pub(super) fn carries(av: &AddressVector, flow: &Flow) -> bool {
    flow.destination.is_ipv6()
        && flow.destination.is_multicast()
        && (av.scope_id == LOOPBACK || (av.scope_id == 0 && flow.source.is_loopback()))
}

/// The group that stands for `group` on an interface: itself, or its carrier.
pub(super) fn carried(group: IpAddr, ifindex: u32) -> IpAddr {
    match group {
        IpAddr::V6(_) if ifindex == LOOPBACK => carrier(group),
        group => group,
    }
}

/// The carrier of a group.
pub(crate) fn carrier(group: IpAddr) -> IpAddr {
    let [a, b] = Gid::from_ip(group)
        .0
        .chunks(2)
        .map(|word| u16::from_be_bytes([word[0], word[1]]))
        .fold(0, |fold: u16, word| fold.rotate_left(5) ^ word)
        .to_be_bytes();
    Ipv4Addr::new(CARRIERS[0], CARRIERS[1], a, b).into()
}

/// Whether one of these memberships already needs the group `joined` on that interface.
pub(super) fn is_carried_for(joined: IpAddr, ifindex: u32, memberships: &[(IpAddr, u32)]) -> bool {
    memberships
        .iter()
        .any(|(group, index)| *index == ifindex && carried(*group, *index) == joined)
}

/// Whether a datagram came to a carrier.
pub(super) fn is_carrier(arrival: &Arrival) -> bool {
    arrival.interface == LOOPBACK
        && matches!(arrival.flow.destination, IpAddr::V4(group) if group.octets()[..2] == CARRIERS)
}

/// Sends a datagram to the carrier of its group.
pub(super) fn send(
    senders: &Senders,
    token: ForwardToken,
    av: &AddressVector,
    flow: &Flow,
    datagram: &[&[u8]],
) -> io::Result<()> {
    let sender = senders.get(false, MULTICAST_QPN[0])?;
    let arrival = Arrival {
        flow: *flow,
        interface: LOOPBACK,
        traffic_class: av.traffic_class,
        hop_limit: hop_limit(av),
    };
    let header = forward::header(&arrival, token, &MULTICAST_QPN);
    let carrier = Flow {
        source: Ipv4Addr::LOCALHOST.into(),
        source_port: sender.port(),
        destination: carrier(flow.destination),
        destination_port: ROCE_PORT,
    };
    let to_carrier = AddressVector {
        scope_id: LOOPBACK,
        ..AddressVector::new(carrier.source.into(), carrier.destination.into())
    };
    let mut pieces: [&[u8]; 3] = [&header, &[], &[]];
    for (place, piece) in pieces[1..].iter_mut().zip(datagram) {
        *place = piece;
    }
    sender.send(&to_carrier, &carrier, &pieces, None)
}

/// Every network namespace's loopback interface has this index (Linux include/net/flow.h, `LOOPBACK_IFINDEX`).
const LOOPBACK: u32 = 1;
/// Carriers are 239.255.x.y: within the host in any case, and of the scope of one administration (RFC 2365).
const CARRIERS: [u8; 2] = [239, 255];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv6_group_on_loopback_has_a_carrier_and_no_other_has() {
        let six: IpAddr = "ff0e::1234".parse().unwrap();
        let four: IpAddr = "239.1.2.3".parse().unwrap();
        assert_eq!(carried(six, 2), six);
        assert_eq!(carried(four, LOOPBACK), four);
        let carrier = carried(six, LOOPBACK);
        assert!(carrier.is_ipv4() && carrier.is_multicast());
        assert!(is_carried_for(carrier, LOOPBACK, &[(six, LOOPBACK)]));
        assert!(!is_carried_for(carrier, LOOPBACK, &[(six, 2)]));
        assert!(is_carried_for(four, 2, &[(four, 2)]));
        assert!(!is_carried_for(four, 2, &[(four, 3)]));
    }
}
