//! A connection from end to end, in bytes.

use std::net::SocketAddr;

use oarlock_ucm::client::{self, IdNumber};
use oarlock_ucm::{Failure, Owner};

use crate::world::{PORT, TCP, World, accept_param, address, kind};

/// R-PAR-1, R-PAR-3, R-PAR-5, R-PAR-8, R-ADDR-1: events carry the parameters in the receiver's view, the whole private data
/// field, and both identifiers.
#[test]
fn a_connection_comes_up_and_goes_down() {
    let mut w = World::new(2);
    let (active, passive) = (w.open(0), w.open(1));
    let listener = w.listener(1, passive, 100);
    let id = w.routed(0, active, 1, 1);
    let addresses = w.ok(0, active, &client::query_addr(id));
    assert_eq!(
        addresses.local.map(|local| local.ip()),
        Some(address(0)),
        "the source is the route's"
    );
    assert_eq!(addresses.remote, Some(SocketAddr::new(address(1), PORT)));
    assert_eq!(
        addresses
            .device
            .map(|device| (device.guid, device.index, device.port)),
        Some((0x1000, 0, 1))
    );

    w.connect(0, active, id, 0x11);
    let request = w.expect(1, passive, kind::CONNECT_REQUEST);
    assert_eq!(request.uid, 100, "the listener's value");
    assert_ne!(request.id, listener);
    assert_eq!(
        (
            request.param.responder_resources,
            request.param.initiator_depth
        ),
        (2, 4),
        "swapped"
    );
    assert_eq!(
        (request.param.retry_count, request.param.rnr_retry_count),
        (7, 6)
    );
    assert!(request.param.flow_control && !request.param.srq);
    assert_eq!(request.param.qp_num, 0x11);
    let data = request
        .param
        .private_data
        .expect("a request has private data");
    assert_eq!((data.len(), &data[..5]), (56, &b"hello"[..]));
    assert!(data[5..].iter().all(|&byte| byte == 0));

    let child = request.id;
    let accept = client::Param {
        responder_resources: 1,
        initiator_depth: 3,
        ..accept_param(0x22)
    };
    w.ok(
        1,
        passive,
        &client::accept(child, 200, &accept).expect("short private data"),
    );
    let response = w.expect(0, active, kind::CONNECT_RESPONSE);
    assert_eq!((response.id, response.uid), (id, 1));
    assert_eq!(
        (
            response.param.responder_resources,
            response.param.initiator_depth
        ),
        (3, 1),
        "swapped"
    );
    assert_eq!(response.param.retry_count, 0, "in request events only");
    assert_eq!(
        response.param.private_data.map(|data| data.len()),
        Some(196)
    );
    assert_eq!(response.param.qp_num, 0x22);

    w.ok(0, active, &client::establish(id));
    let established = w.expect(1, passive, kind::ESTABLISHED);
    assert_eq!(
        (established.id, established.uid),
        (child, 200),
        "the value that ACCEPT gave"
    );
    assert_eq!(established.param.private_data, None, "none is none");

    w.ok(0, active, &client::disconnect(id));
    assert_eq!(w.expect(1, passive, kind::DISCONNECTED).id, child);
    w.ok(1, passive, &client::disconnect(child));
    assert_eq!(w.expect(0, active, kind::DISCONNECTED).id, id);
    w.ok(0, active, &client::disconnect(id));
    w.rest();
    assert_eq!(w.expect(0, active, kind::TIMEWAIT_EXIT).id, id);
    assert_eq!(w.expect(1, passive, kind::TIMEWAIT_EXIT).id, child);

    assert_eq!(w.ok(0, active, &client::destroy_id(id)).0, 5);
    assert_eq!(
        w.ok(1, passive, &client::destroy_id(child)).0,
        3,
        "the request counts on the listener"
    );
    assert_eq!(w.ok(1, passive, &client::destroy_id(listener)).0, 1);
    for host in &w.hosts {
        assert_eq!(
            (host.ids(), host.cma().len(), host.cma().connections()),
            (0, 0, 0)
        );
        assert!(host.ports().is_empty());
    }
}

/// R-PAR-2, R-PAR-4: the recipes that lead the queue pairs up agree with each other crosswise.
#[test]
fn recipes_of_both_sides_fit_together() {
    let mut w = World::new(2);
    let (active, passive) = (w.open(0), w.open(1));
    w.listener(1, passive, 100);
    let (id, child) = w.established(active, passive);
    let rtr = [
        w.ok(0, active, &client::init_qp_attr(id, 2)),
        w.ok(1, passive, &client::init_qp_attr(child, 2)),
    ];
    let rts = [
        w.ok(0, active, &client::init_qp_attr(id, 3)),
        w.ok(1, passive, &client::init_qp_attr(child, 3)),
    ];
    assert_eq!(rtr[0].rq_psn, rts[1].sq_psn);
    assert_eq!(rtr[1].rq_psn, rts[0].sq_psn);
    assert_eq!((rtr[0].dest_qp_num, rtr[1].dest_qp_num), (0x22, 0x11));
    assert_eq!((rtr[0].path_mtu, rtr[1].path_mtu), (3, 3));
    assert_eq!(rtr[0].ah_attr.dgid[12..], [10, 0, 0, 2]);
    assert_eq!((rtr[0].ah_attr.is_global, rtr[0].ah_attr.port_num), (1, 1));
    assert_eq!(
        (rtr[0].max_dest_rd_atomic, rts[1].max_rd_atomic),
        (4, 4),
        "{rtr:?} {rts:?}"
    );
    assert_eq!(
        (rtr[1].max_dest_rd_atomic, rts[0].max_rd_atomic),
        (2, 2),
        "{rtr:?} {rts:?}"
    );
    assert_eq!(rts[0].rnr_retry, 6, "what the acceptance says");
    assert_eq!(rtr[0].min_rnr_timer, 12);
    for attr in rtr {
        let typed = attr
            .to_typed(|index| (index == 0).then_some((oarlock_wire::Gid::from_ip(address(0)), 0)));
        assert!(
            matches!(typed, Ok(oarlock_cma::QpAttr::Rtr(_))),
            "{typed:?}"
        );
    }
}

#[test]
fn a_rejection_carries_reason_and_data() {
    let mut w = World::new(2);
    let (active, passive) = (w.open(0), w.open(1));
    w.listener(1, passive, 100);
    let id = w.routed(0, active, 1, 1);
    w.connect(0, active, id, 0x11);
    let child = w.expect(1, passive, kind::CONNECT_REQUEST).id;
    w.ok(
        1,
        passive,
        &client::reject(child, 0, b"full").expect("short private data"),
    );
    let rejected = w.expect(0, active, kind::REJECTED);
    assert_eq!(rejected.status, 28, "a positive code of the transport");
    let data = rejected
        .param
        .private_data
        .expect("a rejection has private data");
    assert_eq!((data.len(), &data[..4]), (148, &b"full"[..]));
}

#[test]
fn numbers_are_global_and_the_lowest_free_one_comes_first() {
    let mut w = World::new(1);
    let (a, b) = (w.open(0), w.open(0));
    let ids: Vec<IdNumber> = [a, b, a, b]
        .into_iter()
        .map(|file| w.create(0, file, 0))
        .collect();
    assert_eq!(ids, [0, 1, 2, 3].map(IdNumber));
    w.ok(0, a, &client::destroy_id(ids[2]));
    w.ok(0, a, &client::destroy_id(ids[0]));
    assert_eq!(w.create(0, b, 0), IdNumber(0));
    assert_eq!(w.create(0, b, 0), IdNumber(2));
    assert_eq!(w.create(0, b, 0), IdNumber(4));
    let now = w.now;
    assert!(w.hosts[0].close(now, b));
    assert!(!w.hosts[0].close(now, b));
    assert_eq!(w.hosts[0].ids(), 0);
    assert_eq!(w.create(0, a, 0), IdNumber(0));
}

#[test]
fn what_a_request_that_was_never_taken_brings_goes_with_its_listener() {
    let mut w = World::new(2);
    let (active, passive) = (w.open(0), w.open(1));
    let listener = w.listener(1, passive, 100);
    let id = w.routed(0, active, 1, 1);
    w.connect(0, active, id, 0x11);
    assert_eq!(
        (w.hosts[1].ids(), w.hosts[1].cma().len()),
        (1, 2),
        "the child has no number yet"
    );
    assert_eq!(
        w.ok(1, passive, &client::destroy_id(listener)).0,
        0,
        "nothing was delivered"
    );
    assert_eq!(w.expect(0, active, kind::REJECTED).status, 28);
    assert_eq!(w.hosts[1].cma().len(), 0);
}

/// The state of identifiers is readable from outside (`oarlock ps`).
#[test]
fn identifiers_are_listed_with_what_waits_and_what_is_not_acknowledged() {
    let mut w = World::new(2);
    let (active, passive) = (w.open(0), w.open(1));
    let listener = w.listener(1, passive, 100);
    let (id, child) = w.established(active, passive);
    w.ok(0, active, &client::disconnect(id));
    let infos: Vec<_> = w.hosts[1].id_infos(None, |owner| 4700 + owner.0).collect();
    assert_eq!(infos.len(), 2);
    assert_eq!(
        (infos[0].id, infos[0].state.as_str(), infos[0].queued),
        (listener.0, "LISTEN", 0)
    );
    assert_eq!(
        (infos[1].id, infos[1].state.as_str(), infos[1].queued),
        (child.0, "DISCONNECT", 1)
    );
    assert_eq!(
        (infos[1].pid, infos[1].ps, infos[1].channel),
        (4701, TCP, passive.0)
    );
    assert_eq!(infos[1].qpn, Some(0x22));
    assert_eq!(infos[1].local, Some(SocketAddr::new(address(1), PORT)));
    assert_eq!(infos[1].unacked, 1, "ESTABLISHED was delivered");
    assert_eq!(w.hosts[1].id_infos(Some(listener.0), |_| 0).count(), 1);
    assert_eq!(w.hosts[1].id_infos(Some(u32::MAX), |_| 0).count(), 0);
    assert_eq!(w.hosts[1].ports().len(), 1);
    assert!(
        w.hosts[1]
            .counters()
            .iter()
            .any(|(name, value)| name == "ucm_requests" && *value > 0)
    );
}

#[test]
fn paths_and_gids_can_be_read_once_they_are_known() {
    let mut w = World::new(2);
    let (active, passive) = (w.open(0), w.open(1));
    w.listener(1, passive, 100);
    let fresh = w.create(0, active, 0);
    let addresses = w.ok(0, active, &client::query_addr(fresh));
    assert_eq!(
        (addresses.local, addresses.remote, addresses.device),
        (None, None, None)
    );
    assert!(w.ok(0, active, &client::query_path(fresh)).0.is_empty());
    assert_eq!(w.ok(0, active, &client::query_gid(fresh)).local, [0; 16]);

    let id = w.routed(0, active, 1, 1);
    let paths = w.ok(0, active, &client::query_path(id)).0;
    assert_eq!(paths.len(), 1);
    assert_eq!((paths[0].flags, paths[0].pkey), (0x2B, [0xFF, 0xFF]));
    assert_eq!(
        (paths[0].mtu & 0x3F, paths[0].packet_life_time & 0x3F),
        (3, 16)
    );
    assert_eq!(
        (&paths[0].sgid[12..], &paths[0].dgid[12..]),
        (&[10, 0, 0, 1][..], &[10, 0, 0, 2][..])
    );
    let gids = w.ok(0, active, &client::query_gid(id));
    assert_eq!((gids.local, gids.remote), (paths[0].sgid, paths[0].dgid));
}

/// A listener that the program destroyed before it ended does not come back either: what waits for it is rejected.
#[test]
fn the_end_of_a_program_ends_the_wait_for_its_next_listener() {
    for ends in [false, true] {
        let mut w = World::new(2);
        let (active, passive) = (w.open(0), w.open(1));
        let listener = w.listener(1, passive, 100);
        w.ok(1, passive, &client::destroy_id(listener));
        let id = w.routed(0, active, 200, 1);
        w.connect(0, active, id, 0x11);
        if ends {
            let now = w.now;
            w.hosts[1].close_all(now, Owner(1));
            w.hosts[1].handle_timeout(now);
            w.settle();
            assert_eq!(w.expect(0, active, kind::REJECTED).status, 8);
        } else {
            assert!(w.event(0, active).is_none());
        }
    }
}

#[test]
fn the_end_of_a_program_destroys_what_it_had() {
    let mut w = World::new(2);
    let (active, passive) = (w.open(0), w.open(1));
    w.listener(1, passive, 100);
    let other = w.hosts[1].open(Owner(2)).expect("room");
    w.established(active, passive);
    let now = w.now;
    w.hosts[1].close_all(now, Owner(1));
    w.settle();
    assert_eq!(
        w.expect(0, active, kind::DISCONNECTED).status,
        0,
        "the peer is told at once"
    );
    assert_eq!((w.hosts[1].ids(), w.hosts[1].files()), (0, 1));
    assert!(w.hosts[1].ports().is_empty());
    assert!(matches!(
        w.call(1, passive, &client::get_event()),
        Err(Failure::UnknownFile)
    ));
    assert!(matches!(
        w.call(1, other, &client::get_event()),
        Err(Failure::NoEvent)
    ));
}
