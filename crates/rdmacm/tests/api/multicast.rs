//! Multicast groups.

use crate::datagram::{Socket, socket};
use crate::support::*;
use oarlock_hostd::MemWire;
use oarlock_rdmacm::{
    DatagramSocket, Error, Event, Host, Identifier, JoinKind, Multicast, PortSpace, QKey, Qpn,
    UdParam,
};
use oarlock_verbs::QpType;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

const GROUP: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(239, 1, 2, 3)), 0);
const OTHER_GROUP: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(239, 1, 2, 4)), 0);
const A: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
const B: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2));

fn hosts() -> (Host, Host) {
    let wire = MemWire::new();
    let host = |address| Host::private_on(&wire, &[address]).expect("a host");
    (host(A), host(B))
}

/// A synchronous identifier bound to the host's device.
fn member(host: &Host, address: IpAddr) -> Identifier {
    let id = Identifier::synchronous(host, PortSpace::UDP).unwrap();
    id.bind_addr(SocketAddr::new(address, 0)).unwrap();
    id
}

fn send(socket: &Socket, group: &UdParam, message: &[u8]) {
    let handle = group.address_handle(socket.queue_pair.pd()).unwrap();
    socket.send(&handle, group.qpn, group.qkey, message);
}

/// R-PAR-7: what the join's event says is what a datagram to the group is addressed with; members of this host and of
/// another receive it, the sender too, and who has left does not.
#[test]
fn members_receive_what_is_sent_to_the_group() {
    let (a, b) = hosts();
    let ids = [member(&a, A), member(&a, A), member(&b, B)];
    let sockets: Vec<Socket> = ids.iter().map(socket).collect();
    let members: Vec<Multicast> = ids
        .iter()
        .map(|id| id.join_multicast(GROUP, JoinKind::FullMember).unwrap())
        .collect();
    let group = members[0].param().unwrap();
    assert_eq!((group.qpn, group.qkey), (Qpn::MULTICAST, QKey::RDMA_UDP));
    assert_eq!(group.address.remote.to_ip(), GROUP.ip());
    send(&sockets[0], &group, b"to all");
    for socket in &sockets {
        let received = socket.receive();
        assert_eq!(received.message(), Some(&b"to all"[..]));
        assert_eq!(received.src_qp, sockets[0].queue_pair.qpn());
    }
    members[1].leave().unwrap();
    let again = members[1].leave().unwrap_err();
    assert!(matches!(again, Error::AlreadyLeft), "{again}");
    send(&sockets[0], &group, b"to those who stayed");
    for number in [0, 2] {
        let received = sockets[number].receive();
        assert_eq!(received.message(), Some(&b"to those who stayed"[..]));
    }
    // Both of the others were served from the same sends, and this one was on the same host as the sender.
    let mut completions = Vec::new();
    assert_eq!(sockets[1].cq.poll(&mut completions).unwrap(), 0);
}

/// Who joins to send only is addressed nothing, and can send.
#[test]
fn a_send_only_member_receives_nothing() {
    let (a, b) = hosts();
    let (sending, receiving) = (member(&a, A), member(&b, B));
    let (sender, receiver) = (socket(&sending), socket(&receiving));
    let _member = receiving
        .join_multicast(GROUP, JoinKind::FullMember)
        .unwrap();
    let sends = sending
        .join_multicast(GROUP, JoinKind::SendOnlyFullMember)
        .unwrap();
    assert_eq!(sends.kind(), JoinKind::SendOnlyFullMember);
    send(&sender, &sends.param().unwrap(), b"one way");
    assert_eq!(receiver.receive().message(), Some(&b"one way"[..]));
    let mut completions = Vec::new();
    assert_eq!(sender.cq.poll(&mut completions).unwrap(), 0);
}

/// Two memberships of one identifier in one group: it receives until it has left both.
#[test]
fn each_join_counts() {
    let (a, _b) = hosts();
    let id = member(&a, A);
    let own = socket(&id);
    let first = id.join_multicast(GROUP, JoinKind::FullMember).unwrap();
    let second = id.join_multicast(GROUP, JoinKind::FullMember).unwrap();
    assert_ne!(first, second);
    first.leave().unwrap();
    let group = second.param().unwrap();
    send(&own, &group, b"once");
    assert_eq!(own.receive().message(), Some(&b"once"[..]));
    drop(second);
    send(&own, &group, b"to nobody");
    let other = id
        .join_multicast(OTHER_GROUP, JoinKind::FullMember)
        .unwrap();
    send(&own, &other.param().unwrap(), b"to the other");
    assert_eq!(own.receive().message(), Some(&b"to the other"[..]));
}

/// Public fault 17 and R-PAR-6: a membership's event counts for it and for its identifier. Leaving waits for it, and so
/// does closing.
#[test]
fn leaving_waits_for_the_event_of_the_membership() {
    let (a, _b) = hosts();
    let events = channel(&a);
    let id = Identifier::new(&events, PortSpace::UDP).unwrap();
    id.bind_addr(SocketAddr::new(A, 0)).unwrap();
    let multicast = id.join_multicast(GROUP, JoinKind::FullMember).unwrap();
    let event = expect(&events, "MULTICAST_JOIN");
    let Event::MulticastJoin {
        multicast: reported,
        id: of,
        ..
    } = &event
    else {
        unreachable!("its name says so")
    };
    assert_eq!((reported, of), (&multicast, &id));
    let error = multicast.leave().unwrap_err();
    assert!(
        matches!(error, Error::EventHeldByCaller { call: "leave", .. }),
        "{error}"
    );
    let event = event.handed_over();
    id.set_deadline(Some(Instant::now() + Duration::from_millis(20)));
    let error = multicast.leave().unwrap_err();
    assert!(
        matches!(error, Error::Unacknowledged { call: "leave", .. }),
        "{error}"
    );
    let error = id.clone().close().unwrap_err();
    assert!(
        matches!(error, Error::Unacknowledged { call: "close", .. }),
        "{error}"
    );
    drop(event);
    let again = multicast.leave().unwrap_err();
    assert!(matches!(again, Error::Closed { .. }), "{again}");
}

/// Public fault 17: memberships dropped while their event is queued, fetched or not yet there leave nothing that
/// counts: the identifier migrates and closes.
#[test]
fn dropping_a_membership_at_any_time_harms_nothing() {
    let (a, _b) = hosts();
    let events = channel(&a);
    let id = Identifier::new(&events, PortSpace::UDP).unwrap();
    id.bind_addr(SocketAddr::new(A, 0)).unwrap();
    for _ in 0..50 {
        drop(id.join_multicast(GROUP, JoinKind::FullMember).unwrap());
        let kept = id.join_multicast(GROUP, JoinKind::FullMember).unwrap();
        wait_queued(&a, 1);
        drop(kept);
        let fetched = id.join_multicast(GROUP, JoinKind::FullMember).unwrap();
        expect(&events, "MULTICAST_JOIN").ack();
        drop(fetched);
    }
    assert_empty(&events);
    let other = channel(&a);
    id.set_deadline(Some(Instant::now() + LONG));
    id.migrate(&other).unwrap();
    id.close().unwrap();
    assert!(a.ps().unwrap().ids.is_empty());
}

/// While one thread fetches, another drops: an event between the two still counts for the identifier, which can migrate.
#[test]
fn an_event_without_its_membership_still_counts() {
    let (a, _b) = hosts();
    let events = channel(&a);
    let id = Identifier::new(&events, PortSpace::UDP).unwrap();
    id.bind_addr(SocketAddr::new(A, 0)).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            loop {
                let event = events.get_event().unwrap();
                if matches!(event, Event::User { .. }) {
                    break;
                }
            }
        });
        for _ in 0..300 {
            drop(id.join_multicast(GROUP, JoinKind::FullMember).unwrap());
        }
        id.inject(0, 0).unwrap();
    });
    id.set_deadline(Some(Instant::now() + LONG));
    id.migrate(&channel(&a)).unwrap();
    id.close().unwrap();
}

/// Every rule of a join is named by its error.
#[test]
fn joins_that_cannot_be_say_why() {
    let (a, _b) = hosts();
    let events = channel(&a);
    let refused = |id: &Identifier, group: SocketAddr, says: &str| {
        let error = id.join_multicast(group, JoinKind::FullMember).unwrap_err();
        assert!(matches!(error, Error::Refused { errno: 22, .. }), "{error}");
        assert!(error.to_string().contains(says), "{error}");
    };
    let unbound = Identifier::new(&events, PortSpace::UDP).unwrap();
    refused(&unbound, GROUP, "device");
    let connected = Identifier::new(&events, PortSpace::TCP).unwrap();
    connected.bind_addr(SocketAddr::new(A, 0)).unwrap();
    refused(&connected, GROUP, "UD");
    let bound = Identifier::new(&events, PortSpace::UDP).unwrap();
    bound.bind_addr(SocketAddr::new(A, 0)).unwrap();
    refused(&bound, "192.0.2.7:0".parse().unwrap(), "192.0.2.7");
}

/// A queue pair made after the event was fetched is attached by hand.
#[test]
fn a_later_queue_pair_is_attached_by_hand() {
    let (a, _b) = hosts();
    let id = member(&a, A);
    let multicast = id.join_multicast(GROUP, JoinKind::FullMember).unwrap();
    let later = socket(&id);
    assert_eq!(later.queue_pair.qp_type(), QpType::Ud);
    later
        .queue_pair
        .attach_multicast(multicast.param().unwrap().address.remote)
        .unwrap();
    send(&later, &multicast.param().unwrap(), b"by hand");
    assert_eq!(later.receive().message(), Some(&b"by hand"[..]));
}

/// The short way: sockets of two hosts in one group.
#[test]
fn sockets_join_a_group() {
    let (a, b) = hosts();
    let bind = |host, address| {
        let socket = DatagramSocket::bind(host, SocketAddr::new(address, 0)).unwrap();
        socket.deadline(LONG)
    };
    let (one, other) = (bind(&a, A), bind(&b, B));
    let (_member, _) = one.join(GROUP, JoinKind::FullMember).unwrap();
    let (_sender, group) = other.join(GROUP, JoinKind::SendOnlyFullMember).unwrap();
    other.send_to(&group, b"to all").unwrap();
    let arrived = one.receive().unwrap();
    assert_eq!(arrived.message, b"to all");
    assert_eq!(arrived.to, GROUP.ip());
    one.send_to(&arrived.from, b"to you").unwrap();
    assert_eq!(other.receive().unwrap().message, b"to you");
}
