//! The passive side.

use std::time::Duration;

use oarlock_wire::cm::{CmMessage, MessageKind, Req};
use oarlock_wire::{Gid, IbTimeout, RejReason, ServiceId};

use super::support::{
    A, B, GUID, PSN, Pair, QPN, accept_params, av, connect_params, gid, named, parse, transmits,
};
use crate::{ConnectParams, DropReason, Event, MessageName, StateName};

#[test]
fn the_request_event_carries_the_whole_req_and_where_it_came_from() {
    let mut pair = Pair::new();
    let now = pair.now();
    pair.cms[A]
        .connect(
            now,
            ConnectParams {
                private_data: vec![9; 92],
                ..connect_params()
            },
        )
        .expect("92 bytes fit");
    pair.drive();
    let listener_of_pair = pair.listener;
    let Event::ReqReceived {
        listener,
        av: from,
        req,
        ..
    } = pair.event(B)
    else {
        panic!("{}", pair.ladder)
    };
    assert_eq!((listener, from), (listener_of_pair, av(B)));
    assert_eq!(
        (
            req.local_qpn,
            req.starting_psn,
            req.responder_resources,
            req.initiator_depth
        ),
        (QPN[A], PSN[A], 4, 3)
    );
    assert_eq!(req.private_data.as_bytes(), &[9; 92]);
}

#[test]
fn the_rep_carries_the_parameters_of_the_call_and_the_transaction_of_the_req() {
    let mut pair = Pair::new();
    let (active, passive) = pair.request();
    pair.cms[B]
        .accept(pair.clock.now(), passive, accept_params())
        .expect("a request waits");
    pair.drain(B);
    let (_, transmit) = named(&pair.sent, "REP")[0];
    let CmMessage::Rep(rep) = parse(&transmit) else {
        panic!("{transmit:?}")
    };
    assert_eq!(Some(rep.local_comm_id), pair.cms[B].comm_id(passive));
    assert_eq!(Some(rep.remote_comm_id), pair.cms[A].comm_id(active));
    assert_eq!(
        (rep.local_qpn, rep.starting_psn, rep.local_ca_guid),
        (QPN[B], PSN[B], GUID[B])
    );
    assert_eq!(
        (
            rep.responder_resources,
            rep.initiator_depth,
            rep.target_ack_delay.get()
        ),
        (3, 2, 15)
    );
    let req = named(&pair.sent, "REQ")[0].1;
    assert_eq!(transmit.mad[8..16], req.mad[8..16], "transaction ID");
}

#[test]
fn a_duplicate_req_is_no_second_request() {
    let mut pair = Pair::new();
    pair.request();
    let req = named(&pair.sent, "REQ")[0].1;
    pair.inject(B, &req);
    assert_eq!(pair.event_names(B), [""; 0]);
    assert_eq!(pair.cms[B].connections(), 1);
    assert_eq!(pair.cms[B].counters().duplicate(MessageName::Req), 1);
    assert_eq!(pair.cms[B].counters().dropped(DropReason::Duplicate), 1);
}

#[test]
fn a_duplicate_req_is_answered_with_the_mra_that_was_prepared() {
    let mut pair = Pair::new();
    let (_, passive) = pair.request();
    pair.cms[B]
        .send_mra(pair.clock.now(), passive, IbTimeout::truncate(24))
        .expect("a request waits");
    let req = named(&pair.sent, "REQ")[0].1;
    pair.inject(B, &req);
    pair.inject(B, &req);
    let mras = named(&pair.sent, "MRA");
    let CmMessage::Mra(mra) = parse(&mras[0].1) else {
        panic!("{mras:?}")
    };
    assert_eq!(
        (mras.len(), mra.message, mra.service_timeout.get()),
        (2, MessageKind::REQ, 24)
    );
    assert_eq!(pair.state(B, passive), StateName::MraReqSent);
}

#[test]
fn a_lost_rep_is_repeated_by_its_own_timer() {
    let mut pair = Pair::new();
    let (active, passive) = pair.request();
    pair.network.partition_one_way(B, A);
    pair.accept(B, passive);
    pair.network.heal(A, B);
    let accepted = pair.now();
    pair.fire_timer(B);
    // The REQ says that its sender answers within 2^(20-8) ms.
    assert_eq!(pair.now() - accepted, Duration::from_millis(4096));
    pair.drive();
    assert_eq!(pair.state(A, active), StateName::RepRcvd);
}

#[test]
fn an_unanswered_rep_is_given_up_after_the_retries_that_the_req_names() {
    let mut pair = Pair::new();
    let (_, passive) = pair.request_with(ConnectParams {
        max_cm_retries: 3,
        ..connect_params()
    });
    pair.network.partition(A, B);
    pair.cms[B]
        .accept(pair.clock.now(), passive, accept_params())
        .expect("a request waits");
    pair.drive_for(Duration::from_secs(100));
    assert_eq!(named(&pair.sent, "REP").len(), 4);
    assert_eq!(pair.event_names(B), ["RepError"]);
    assert_eq!(pair.state(B, passive), StateName::Idle);
}

#[test]
fn an_active_side_whose_rtus_were_all_lost_learns_that_the_peer_gave_up() {
    let mut pair = Pair::new();
    let (active, passive) = pair.request_with(ConnectParams {
        max_cm_retries: 2,
        ..connect_params()
    });
    pair.accept(B, passive);
    pair.cms[A]
        .establish(pair.clock.now(), active, &[])
        .expect("a reply waits");
    pair.network.partition_one_way(A, B);
    pair.events[A].clear();
    pair.drive_for(Duration::from_secs(60));
    assert_eq!(pair.event_names(B), ["RepError"]);
    assert_eq!(pair.event_names(A), ["RejReceived", "TimewaitExit"]);
}

#[test]
fn the_first_data_establishes_and_the_rtu_that_follows_is_a_duplicate() {
    let mut pair = Pair::new();
    let (active, passive) = pair.reply();
    pair.cms[B]
        .notify_established(pair.clock.now(), passive)
        .expect("our REP is out");
    assert_eq!(
        pair.cms[B].poll_timeout(),
        None,
        "the REP is not repeated any more"
    );
    pair.complete(A, active);
    assert_eq!(pair.event_names(B), ["UserEstablished"]);
    assert_eq!(pair.cms[B].counters().duplicate(MessageName::Rtu), 1);
}

#[test]
fn a_req_without_a_listener_is_rejected_by_service_id() {
    let mut pair = Pair::new();
    let now = pair.now();
    let id = pair.cms[A]
        .connect(
            now,
            ConnectParams {
                service_id: ServiceId(0x0106_0001),
                ..connect_params()
            },
        )
        .expect("correct");
    pair.drive();
    let Event::RejReceived { rej, .. } = pair.event(A) else {
        panic!("{}", pair.ladder)
    };
    assert_eq!(
        (rej.reason, rej.message),
        (RejReason::INVALID_SERVICE_ID, MessageKind::REQ)
    );
    assert_eq!(pair.state(A, id), StateName::Idle);
    assert_eq!(pair.cms[B].connections(), 0);
}

#[test]
fn a_listener_that_stopped_gets_nothing_more_and_its_service_id_is_free() {
    let mut pair = Pair::new();
    let (_, passive) = pair.request();
    let old = pair.listener;
    pair.cms[B].stop_listening(old);
    assert_eq!(
        pair.state(B, passive),
        StateName::ReqRcvd,
        "what it brought lives on"
    );
    let new = pair.cms[B]
        .listen(super::support::SERVICE)
        .expect("free again");
    assert_ne!(old, new);
    pair.cms[B].stop_listening(old);
    assert!(
        pair.cms[B].listen(super::support::SERVICE).is_err(),
        "stopping a listener twice does not stop another"
    );
}

#[test]
fn a_req_from_the_queue_pair_of_a_live_connection_is_rejected_as_stale_and_ends_the_old_one() {
    let mut pair = Pair::new();
    let (_, passive) = pair.establish();
    // A was restarted: it has forgotten the connection and uses its QPN again.
    pair.cms[A] = crate::Cm::new(super::support::config(A), crate::Seed([77; 32]));
    let now = pair.now();
    let new = pair.cms[A].connect(now, connect_params()).expect("correct");
    let mark = pair.sent.len();
    pair.drive();
    // The DREP comes from the new life of A: it does not know the old connection.
    assert_eq!(
        pair.messages_since(mark),
        [(A, "REQ"), (B, "REJ"), (B, "DREQ"), (A, "DREP")]
    );
    let Event::RejReceived { rej, .. } = pair.event(A) else {
        panic!("{}", pair.ladder)
    };
    assert_eq!(rej.reason, RejReason::STALE_CONNECTION);
    assert_eq!(pair.state(A, new), StateName::Timewait);
    assert_eq!(pair.event_names(B), ["DrepReceived"]);
    assert_eq!(pair.state(B, passive), StateName::Timewait);
}

#[test]
fn a_queue_pair_of_a_connection_in_timewait_may_be_used_again_at_once() {
    let mut pair = Pair::new();
    let (active, passive) = pair.establish();
    pair.disconnect(A, active);
    pair.cms[B]
        .reply_disconnect(pair.clock.now(), passive, &[])
        .expect("the peer disconnects");
    pair.events[B].clear();
    let (_, again) = pair.request();
    assert_eq!(pair.state(B, passive), StateName::Timewait);
    assert_eq!(pair.state(B, again), StateName::ReqRcvd);
}

#[test]
fn a_req_for_a_gid_that_is_not_ours_is_rejected_with_that_gid() {
    let mut pair = Pair::new();
    let stranger = Gid::from_ip([10, 9, 9, 9].into());
    let mut req = request();
    req.primary.remote_gid = stranger;
    pair.inject_message(B, req.clone());
    let sent = transmits(&mut pair.cms[B]);
    let [CmMessage::Rej(rej)] = &sent[..] else {
        panic!("{sent:?}")
    };
    assert_eq!(
        (rej.reason, rej.additional_info.as_bytes()),
        (RejReason::INVALID_GID, &stranger.0[..])
    );
    assert_eq!(pair.cms[B].counters().dropped(DropReason::UnusableGid), 1);

    pair.cms[B].set_local_gids([stranger]);
    pair.inject_message(B, req);
    assert_eq!(pair.cms[B].connections(), 1, "another GID of ours is fine");
}

#[test]
fn a_req_that_cannot_be_answered_over_its_path_is_rejected() {
    for theirs in [
        Gid([0; 16]),
        Gid::from_ip([0, 0, 0, 0].into()),
        Gid::from_ip([224, 0, 0, 1].into()),
        Gid::from_ip("ff02::1".parse().expect("an address")),
    ] {
        let mut pair = Pair::new();
        let mut req = request();
        req.primary.local_gid = theirs;
        pair.inject_message(B, req);
        assert_eq!(pair.cms[B].connections(), 0, "{theirs}");
        assert_eq!(transmits(&mut pair.cms[B]).len(), 1, "{theirs}");
    }
}

#[test]
fn an_mra_for_the_rep_extends_the_wait_for_the_rtu() {
    let mut pair = Pair::new();
    let (active, passive) = pair.reply();
    pair.cms[A]
        .send_mra(pair.clock.now(), active, IbTimeout::truncate(24))
        .expect("a reply waits");
    pair.fire_timer(B);
    pair.drive();
    assert_eq!(pair.state(B, passive), StateName::MraRepRcvd);
    // The REQ's local acknowledgement timeout is 17: 512 ms.
    assert_eq!(
        pair.cms[B].poll_timeout().expect("armed") - pair.now(),
        Duration::from_millis(65_536 + 512)
    );
    pair.complete(A, active);
    assert_eq!(pair.state(B, passive), StateName::Established);
}

#[test]
fn a_dropped_request_is_forgotten_and_comes_again() {
    let mut pair = Pair::new();
    let (active, passive) = pair.request();
    pair.cms[B]
        .drop_request(pair.clock.now(), passive)
        .expect("a request waits");
    pair.drive();
    assert_eq!(
        (pair.cms[B].connections(), named(&pair.sent, "REJ").len()),
        (0, 0)
    );
    assert_eq!(pair.cms[B].counters().dropped(DropReason::ByListener), 1);
    pair.fire_timer(A);
    pair.drive();
    let Event::ReqReceived { id, .. } = pair.event(B) else {
        panic!("{}", pair.ladder)
    };
    assert_ne!(id, passive);
    assert_eq!(pair.state(A, active), StateName::ReqSent);
}

/// A REQ from A as B might receive it.
fn request() -> Req {
    let mut req =
        crate::conn::active::request(&connect_params(), oarlock_wire::CommId(0x77), GUID[A])
            .expect("correct");
    req.primary.remote_gid = gid(B);
    req
}
