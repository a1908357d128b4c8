//! rdma_get_cm_event(3).

use super::*;
use oarlock_rdmacm::{
    Error, JoinKind, MAX_ACCEPT_PRIVATE_DATA, MAX_CONNECT_PRIVATE_DATA,
    MAX_DATAGRAM_CONNECT_PRIVATE_DATA, MAX_DATAGRAM_REPLY_PRIVATE_DATA, QKey, Qpn, RejReason,
    RetryCount,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::net::IpAddr;
use std::time::{Duration, Instant};

const GROUP: &str = "239.1.2.3:0";

fn readable(channel: &EventChannel) -> bool {
    let none = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let mut fds = [PollFd::new(channel, PollFlags::IN)];
    poll(&mut fds, Some(&none)).unwrap() > 0
}

/// A private host whose address is one of a device that identifiers can be bound to.
fn host_with_device() -> (Host, IpAddr) {
    let address: IpAddr = "192.0.2.1".parse().unwrap();
    let wire = oarlock_hostd::MemWire::new();
    let host = Host::private_on(&wire, &[address]).unwrap();
    (host, address)
}

#[test]
fn without_an_event_it_blocks_until_there_is_one() {
    let host = private();
    let events = channel(&host);
    let id = Identifier::new(&events, PortSpace::TCP).unwrap();
    let waiting = std::thread::spawn(move || events.get_event().unwrap().name());
    assert!(!waiting.is_finished());
    id.inject(1, 0).unwrap();
    assert_eq!(waiting.join().unwrap(), "RDMA_CM_EVENT_USER");
}

/// The page has the descriptor made non-blocking; here there is a call that never waits, and the descriptor is readable
/// exactly when it will find something.
#[test]
fn who_does_not_want_to_block_need_not() {
    let host = private();
    let events = channel(&host);
    let id = Identifier::new(&events, PortSpace::TCP).unwrap();
    assert!(!readable(&events));
    assert!(events.try_event().unwrap().is_none());
    assert!(events.poll_event().is_pending());
    id.inject(1, 0).unwrap();
    assert!(readable(&events));
    assert!(events.try_event().unwrap().is_some());
    assert!(!readable(&events));
    let soon = Instant::now() + Duration::from_millis(5);
    assert!(events.get_event_until(soon).unwrap().is_none());
}

/// R-PAR-6: there is no way not to, since dropping acknowledges; the service learns of each.
#[test]
fn every_event_is_acknowledged() {
    let host = private();
    let events = channel(&host);
    let id = Identifier::new(&events, PortSpace::TCP).unwrap();
    let unacknowledged = || host.ps().unwrap().ids[0].unacked;
    for value in 0..3 {
        id.inject(value, 0).unwrap();
    }
    let held = [expect(&events, "USER"), expect(&events, "USER")];
    assert_eq!(unacknowledged(), 2);
    let [first, second] = held;
    first.ack();
    drop(second);
    expect(&events, "USER").ack();
    // The last one travels with the next request.
    assert!(events.try_event().unwrap().is_none());
    let deadline = Instant::now() + LONG;
    while unacknowledged() > 0 {
        assert!(Instant::now() < deadline);
        assert!(
            events
                .get_event_timeout(Duration::from_millis(30))
                .unwrap()
                .is_none()
        );
    }
}

/// R-PAR-6
#[test]
fn destroying_an_identifier_blocks_until_its_events_are_acknowledged() {
    let host = private();
    let events = channel(&host);
    let id = Identifier::new(&events, PortSpace::TCP).unwrap();
    id.inject(1, 0).unwrap();
    let event = expect(&events, "USER").handed_over();
    id.set_deadline(Some(Instant::now() + Duration::from_millis(20)));
    let error = id.close().unwrap_err();
    assert!(
        matches!(error, Error::Unacknowledged { call: "close", .. }),
        "{error}"
    );
    drop(event);
    let id = Identifier::new(&events, PortSpace::TCP).unwrap();
    id.inject(1, 0).unwrap();
    let event = expect(&events, "USER").handed_over();
    let closing = std::thread::spawn(move || id.close());
    event.ack();
    closing.join().unwrap().unwrap();
}

/// R-PAR-6: acknowledging frees the event. What a program has taken out of it is the program's own, so nothing dangles.
#[test]
fn what_is_taken_out_of_an_event_outlives_it() {
    let sides = sides();
    sides
        .active
        .connect(&external(1).private_data(b"kept"))
        .unwrap();
    let event = expect(&sides.passive_channel, "CONNECT_REQUEST");
    let Event::ConnectRequest {
        private_data: Some(data),
        id,
        ..
    } = &event
    else {
        panic!("{event}")
    };
    let (data, id) = (data.clone(), id.clone());
    event.ack();
    assert!(data.is_padded_from(b"kept"));
    assert_eq!(id.peer_private_data(), Some(&data));
}

/// R-PAR-8
#[test]
fn a_connection_request_names_a_new_identifier_and_the_listener() {
    let sides = sides();
    sides.active.connect(&external(1)).unwrap();
    let event = expect(&sides.passive_channel, "CONNECT_REQUEST");
    assert_eq!(event.listen_id(), Some(&sides.listener));
    assert_ne!(event.id(), &sides.listener);
    // Others name the identifier that the call was made on, and no listener.
    event.id().accept(&external(2)).unwrap();
    let answer = expect(&sides.active_channel, "CONNECT_RESPONSE");
    assert_eq!(answer.id(), &sides.active);
    assert_eq!(answer.listen_id(), None);
}

/// R-PAR-8
#[test]
fn the_status_is_zero_after_success() {
    let sides = sides();
    sides.active.connect(&external(1)).unwrap();
    let event = expect(&sides.passive_channel, "CONNECT_REQUEST");
    assert_eq!(event.status(), 0);
    assert!(event.error().is_none());
}

/// R-PAR-8: a negative errno where the host knows, a code of the transport where the peer said why.
#[test]
fn the_status_tells_the_failure() {
    let sides = sides();
    sides
        .active
        .set_connect_deadline(Some(Duration::from_millis(50)))
        .unwrap();
    sides.active.connect(&external(1)).unwrap();
    let _undecided = request(&sides.passive_channel);
    let event = expect(&sides.active_channel, "UNREACHABLE");
    assert_eq!(event.status(), -110);
    assert!(matches!(
        event.error(),
        Some(Error::Unreachable { status: -110, .. })
    ));

    let refused = resolved(&sides.active_channel, sides.address);
    refused.connect(&external(1)).unwrap();
    request(&sides.passive_channel)
        .id
        .reject(RejReason::CONSUMER_DEFINED, b"")
        .unwrap();
    let event = expect(&sides.active_channel, "REJECTED");
    assert_eq!(event.status(), 28);

    let nobody = resolved_datagram(&sides.active_channel, "127.0.0.1:4711".parse().unwrap());
    nobody.connect(&ConnParam::default()).unwrap();
    let event = expect(&sides.active_channel, "UNREACHABLE");
    assert_eq!(event.status(), 1);
}

/// R-PAR-7: connection data with connections, datagram data with datagrams.
#[test]
fn the_port_space_decides_which_data_an_event_carries() {
    let connections = sides();
    connections.active.connect(&external(1)).unwrap();
    let event = expect(&connections.passive_channel, "CONNECT_REQUEST");
    assert!(matches!(
        event,
        Event::ConnectRequest {
            params: Some(_),
            ud: None,
            ..
        }
    ));
    let datagrams = datagram_sides();
    datagrams.active.connect(&ConnParam::default()).unwrap();
    let event = expect(&datagrams.passive_channel, "CONNECT_REQUEST");
    assert!(matches!(
        event,
        Event::ConnectRequest {
            params: None,
            ud: Some(_),
            ..
        }
    ));
}

/// R-PAR-7 and R-PAR-1
#[test]
fn datagram_private_data_is_what_the_remote_side_gave_zeros_behind_it() {
    let sides = datagram_sides();
    sides
        .active
        .connect(&ConnParam::default().private_data(b"asked"))
        .unwrap();
    let lookup = lookup(&sides.passive_channel);
    let data = lookup.private_data.unwrap();
    assert_eq!(data.as_padded().len(), MAX_DATAGRAM_CONNECT_PRIVATE_DATA);
    assert!(data.is_padded_from(b"asked"));
    lookup
        .id
        .accept(&external(2).private_data(b"answered"))
        .unwrap();
    match expect(&sides.active_channel, "ESTABLISHED") {
        Event::Established { private_data, .. } => {
            let data = private_data.unwrap();
            assert_eq!(data.as_padded().len(), MAX_DATAGRAM_REPLY_PRIVATE_DATA);
            assert!(data.is_padded_from(b"answered"));
        }
        other => panic!("{other}"),
    }
}

/// R-PAR-7: the address in the event makes an address handle, and that reaches the peer.
#[test]
fn the_datagram_address_is_what_an_address_handle_is_made_of() {
    let sides = datagram_sides();
    let own = datagram_queue_pair(&sides.active);
    sides.active.connect(&ConnParam::default()).unwrap();
    let lookup = lookup(&sides.passive_channel);
    // The passive side learns where the asking side is.
    lookup.ud.address_handle(own.pd()).unwrap();
    assert_eq!(lookup.ud.address.remote.to_ip(), sides.address.ip());
    let theirs = datagram_queue_pair(&lookup.id);
    let buffer = oarlock_verbs::Buffer::new(theirs.pd(), oarlock_verbs::GRH_LEN + 8).unwrap();
    theirs.post_recv(1, buffer).unwrap();
    lookup.id.accept(&ConnParam::default()).unwrap();
    let Event::Established { ud: Some(ud), .. } = expect(&sides.active_channel, "ESTABLISHED")
    else {
        panic!("datagrams are established with an address")
    };
    let handle = ud.address_handle(own.pd()).unwrap();
    let request = oarlock_verbs::SendRequest::inline(1, b"reached").to(&handle, ud.qpn, ud.qkey);
    own.post_send(request).unwrap();
    let mut completions = Vec::new();
    while completions.is_empty() {
        theirs.recv_cq().wait(&mut completions, Some(LONG)).unwrap();
    }
    assert_eq!(completions[0].message(), Some(&b"reached"[..]));
}

/// R-PAR-7
#[test]
fn the_datagram_qp_num_and_qkey_are_those_of_the_remote_end_or_of_the_group() {
    let sides = datagram_sides();
    sides.active.connect(&ConnParam::default()).unwrap();
    let child = lookup(&sides.passive_channel).id;
    let theirs = datagram_queue_pair(&child);
    child.accept(&ConnParam::default()).unwrap();
    match expect(&sides.active_channel, "ESTABLISHED") {
        Event::Established { ud: Some(ud), .. } => {
            assert_eq!((ud.qpn, ud.qkey), (theirs.qpn(), QKey::RDMA_UDP));
        }
        other => panic!("{other}"),
    }
    let (host, address) = host_with_device();
    let events = channel(&host);
    let id = Identifier::new(&events, PortSpace::UDP).unwrap();
    id.bind_addr(SocketAddr::new(address, 0)).unwrap();
    let group: SocketAddr = GROUP.parse().unwrap();
    let _member = id.join_multicast(group, JoinKind::FullMember).unwrap();
    match expect(&events, "MULTICAST_JOIN") {
        Event::MulticastJoin { ud, .. } => {
            assert_eq!((ud.qpn, ud.qkey), (Qpn::MULTICAST, QKey::RDMA_UDP));
            assert_eq!(ud.address.remote.to_ip(), group.ip());
        }
        other => panic!("{other}"),
    }
}

/// R-PAR-1
#[test]
fn connection_private_data_is_what_the_remote_side_gave_zeros_behind_it() {
    let sides = sides();
    sides
        .active
        .connect(&external(1).private_data(b"asked"))
        .unwrap();
    let request = request(&sides.passive_channel);
    let data = request.private_data.unwrap();
    assert_eq!(data.as_padded().len(), MAX_CONNECT_PRIVATE_DATA);
    assert!(data.is_padded_from(b"asked"));
    request
        .id
        .accept(&external(2).private_data(b"answered"))
        .unwrap();
    match expect(&sides.active_channel, "CONNECT_RESPONSE") {
        Event::ConnectResponse { private_data, .. } => {
            let data = private_data.unwrap();
            assert_eq!(data.as_padded().len(), MAX_ACCEPT_PRIVATE_DATA);
            assert!(data.is_padded_from(b"answered"));
        }
        other => panic!("{other}"),
    }
}

/// R-PAR-1: absent is absent, and not empty.
#[test]
fn an_event_without_private_data_has_none() {
    let sides = sides();
    sides.active.connect(&external(1)).unwrap();
    let child = request(&sides.passive_channel).id;
    child.accept(&external(2)).unwrap();
    expect(&sides.active_channel, "CONNECT_RESPONSE").ack();
    sides.active.establish().unwrap();
    match expect(&sides.passive_channel, "ESTABLISHED") {
        Event::Established { private_data, .. } => assert_eq!(private_data, None),
        other => panic!("{other}"),
    }
}

/// R-PAR-3
#[test]
fn responder_resources_are_the_initiator_depth_of_the_remote_node_and_the_reverse() {
    let sides = sides();
    sides
        .active
        .connect(&external(1).responder_resources(3).initiator_depth(2))
        .unwrap();
    let request = request(&sides.passive_channel);
    assert_eq!(request.params.responder_resources, 2);
    assert_eq!(request.params.initiator_depth, 3);
    request
        .id
        .accept(&external(2).responder_resources(1).initiator_depth(3))
        .unwrap();
    match expect(&sides.active_channel, "CONNECT_RESPONSE") {
        Event::ConnectResponse { params, .. } => {
            assert_eq!(params.responder_resources, 3);
            assert_eq!(params.initiator_depth, 1);
        }
        other => panic!("{other}"),
    }
}

/// R-PAR-5
#[test]
fn the_retry_count_is_in_the_request_only_and_the_others_in_both() {
    let sides = sides();
    let retries = |count| RetryCount::new(count).unwrap();
    let number = Qpn::truncate(0x01_0077);
    let param = ConnParam::default()
        .external_queue_pair(number, true)
        .flow_control(true)
        .retry_count(retries(5))
        .rnr_retry_count(retries(4));
    sides.active.connect(&param).unwrap();
    let request = request(&sides.passive_channel);
    let seen = request.params;
    assert_eq!(
        (seen.retry_count, seen.rnr_retry_count),
        (retries(5), retries(4))
    );
    assert_eq!(
        (seen.flow_control, seen.srq, seen.qpn),
        (true, true, number)
    );
    let other = Qpn::truncate(0x01_0078);
    request
        .id
        .accept(&param.external_queue_pair(other, true))
        .unwrap();
    match expect(&sides.active_channel, "CONNECT_RESPONSE") {
        Event::ConnectResponse { params: seen, .. } => {
            assert_eq!(
                (seen.retry_count, seen.rnr_retry_count),
                (retries(0), retries(4))
            );
            assert_eq!((seen.flow_control, seen.srq, seen.qpn), (true, true, other));
        }
        other => panic!("{other}"),
    }
}

#[test]
fn address_and_route_resolution_report_success_and_failure() {
    let host = private();
    let events = channel(&host);
    let (_listener, address) = listener(&channel(&host));
    let id = Identifier::new(&events, PortSpace::TCP).unwrap();
    // Nothing leads there: the call says so, or the event does.
    match id.resolve_addr(None, "192.0.2.9:7".parse().unwrap(), LONG) {
        Ok(()) => assert!(expect(&events, "ADDR_ERROR").status() < 0),
        Err(error) => assert!([101, 113].contains(&error.errno()), "{error}"),
    }
    // And may be tried again.
    id.resolve_addr(None, address, LONG).unwrap();
    expect(&events, "ADDR_RESOLVED");
    id.resolve_route(LONG).unwrap();
    expect(&events, "ROUTE_RESOLVED");
}

#[test]
fn a_response_is_reported_to_identifiers_without_a_queue_pair_only() {
    let sides = sides();
    sides.active.connect(&external(1)).unwrap();
    let child = request(&sides.passive_channel).id;
    child.accept(&external(2)).unwrap();
    expect(&sides.active_channel, "CONNECT_RESPONSE");
    let with = resolved(&sides.active_channel, sides.address);
    idle_queue_pair(&with);
    with.connect(&ConnParam::default()).unwrap();
    let other_child = request(&sides.passive_channel).id;
    idle_queue_pair(&other_child);
    other_child.accept(&ConnParam::default()).unwrap();
    assert_eq!(expect(&sides.active_channel, "ESTABLISHED").id(), &with);
}

#[test]
fn a_rejection_carries_the_reason_of_the_message() {
    let sides = sides();
    sides.active.connect(&external(1)).unwrap();
    let child = request(&sides.passive_channel).id;
    child
        .reject(RejReason::VENDOR_OPTION_NOT_SUPPORTED, b"because")
        .unwrap();
    match expect(&sides.active_channel, "REJECTED") {
        Event::Rejected {
            reason,
            private_data,
            ..
        } => {
            assert_eq!(reason, RejReason::VENDOR_OPTION_NOT_SUPPORTED);
            assert!(private_data.unwrap().is_padded_from(b"because"));
        }
        other => panic!("{other}"),
    }
}

/// Public fault 56.
#[test]
fn the_end_of_a_connection_is_reported_and_then_the_end_of_its_timewait() {
    let pair = pair();
    pair.active.disconnect().unwrap();
    expect(&pair.passive_channel, "DISCONNECTED");
    pair.passive.disconnect().unwrap();
    expect(&pair.active_channel, "DISCONNECTED");
    assert_eq!(
        expect(&pair.active_channel, "TIMEWAIT_EXIT").id(),
        &pair.active
    );
}

/// Public fault 4: once, to listeners too, and nothing but destroying is left.
#[test]
fn the_removal_of_the_device_is_reported_and_the_identifier_must_be_destroyed() {
    let (host, address) = host_with_device();
    let events = channel(&host);
    let id = Identifier::new(&events, PortSpace::TCP).unwrap();
    id.bind_addr(SocketAddr::new(address, 0)).unwrap();
    id.listen(0).unwrap();
    host.memory().expect("a private host").remove_device();
    assert_eq!(expect(&events, "DEVICE_REMOVAL").id(), &id);
    let error = id.listen(0).unwrap_err();
    assert!([6, 19].contains(&error.errno()), "{error}");
    assert_empty(&events);
    id.close().unwrap();
}

/// R-ADDR-4
#[test]
fn a_change_of_the_address_is_reported() {
    let (host, address) = host_with_device();
    let memory = host.memory().expect("a private host");
    let stays: IpAddr = "192.0.2.2".parse().unwrap();
    memory.add_address(stays).unwrap();
    let events = channel(&host);
    let id = Identifier::new(&events, PortSpace::TCP).unwrap();
    id.bind_addr(SocketAddr::new(address, 0)).unwrap();
    assert!(memory.remove_address(address));
    assert_eq!(expect(&events, "ADDR_CHANGE").id(), &id);
}

#[test]
fn joining_a_group_is_reported() {
    let (host, address) = host_with_device();
    let events = channel(&host);
    let id = Identifier::new(&events, PortSpace::UDP).unwrap();
    id.bind_addr(SocketAddr::new(address, 0)).unwrap();
    let member = id
        .join_multicast(GROUP.parse().unwrap(), JoinKind::FullMember)
        .unwrap();
    match expect(&events, "MULTICAST_JOIN") {
        Event::MulticastJoin { multicast, .. } => assert_eq!(multicast, member),
        other => panic!("{other}"),
    }
}
