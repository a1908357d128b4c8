//! The active side.

use std::time::Duration;

use oarlock_wire::cm::{CmMessage, MessageKind, Rej};
use oarlock_wire::{IbTimeout, RejReason, Time};

use super::support::{
    A, B, GUID, PSN, Pair, QPN, SERVICE, accept_params, av, connect_params, gid, named, parse,
    transmits,
};
use crate::{ConnectParams, DropReason, Event, MessageName, StateName};

#[test]
fn the_req_carries_the_parameters_of_the_call() {
    let mut pair = Pair::new();
    let id = pair.cms[A]
        .connect(
            Time::ZERO,
            ConnectParams {
                private_data: vec![1, 2, 3],
                ..connect_params()
            },
        )
        .expect("correct");
    let sent = transmits(&mut pair.cms[A]);
    let [CmMessage::Req(req)] = &sent[..] else {
        panic!("{sent:?}")
    };
    assert_eq!(Some(req.local_comm_id), pair.cms[A].comm_id(id));
    assert_eq!(
        (
            req.service_id,
            req.local_ca_guid,
            req.local_qpn,
            req.starting_psn
        ),
        (SERVICE, GUID[A], QPN[A], PSN[A])
    );
    assert_eq!((req.responder_resources, req.initiator_depth), (4, 3));
    assert_eq!(
        (req.primary.local_gid, req.primary.remote_gid),
        (gid(A), gid(B))
    );
    assert_eq!(
        (req.primary.hop_limit, req.primary.subnet_local),
        (64, false)
    );
    assert_eq!(
        (
            req.max_cm_retries,
            req.remote_cm_response_timeout.get(),
            req.local_cm_response_timeout.get()
        ),
        (15, 20, 20)
    );
    assert_eq!(req.private_data.as_bytes()[..4], [1, 2, 3, 0]);
    assert_eq!((req.ece, req.alternate), Default::default());
}

#[test]
fn an_unanswered_req_is_sent_sixteen_times_every_4608_ms_and_then_given_up() {
    let mut pair = Pair::new();
    pair.network.partition(A, B);
    let id = pair.cms[A]
        .connect(Time::ZERO, connect_params())
        .expect("correct");
    pair.drive_for(Duration::from_secs(100));
    let times: Vec<_> = pair
        .ladder
        .lines()
        .iter()
        .filter(|line| line.contains("REQ"))
        .map(|line| line[2..10].to_owned())
        .collect();
    assert_eq!(times.len(), 16);
    assert_eq!(times[..3], ["0.000000", "4.608000", "9.216000"]);
    assert_eq!(pair.event_names(A), ["ReqError"]);
    assert_eq!(pair.state(A, id), StateName::Idle);
    assert_eq!(pair.cms[A].counters().sent(MessageName::Req), 16);
    assert_eq!(pair.cms[A].counters().retried(MessageName::Req), 15);
    let last = pair.ladder.lines().last().expect("lines");
    assert!(last.starts_with("t=73.728000  A > B  REJ"), "{last}");
}

#[test]
fn one_timeout_input_yields_the_retransmission_in_the_same_drain() {
    let mut pair = Pair::new();
    pair.cms[A]
        .connect(Time::ZERO, connect_params())
        .expect("correct");
    let first = pair.cms[A].poll_transmit().expect("the REQ");
    let due = pair.cms[A].poll_timeout().expect("a wait for the REP");
    pair.cms[A].handle_timeout(due);
    assert_eq!(pair.cms[A].poll_transmit(), Some(first));
    assert_eq!(pair.cms[A].poll_transmit(), None);
}

#[test]
fn early_late_and_repeated_timeouts_are_harmless() {
    let mut pair = Pair::new();
    pair.cms[A]
        .connect(Time::ZERO, connect_params())
        .expect("correct");
    transmits(&mut pair.cms[A]);
    let due = pair.cms[A].poll_timeout().expect("a wait for the REP");
    pair.cms[A].handle_timeout(Time::from_nanos(due.as_nanos() - 1));
    assert_eq!(transmits(&mut pair.cms[A]).len(), 0, "early");
    let late = due + Duration::from_secs(20);
    pair.cms[A].handle_timeout(late);
    pair.cms[A].handle_timeout(late);
    assert_eq!(
        transmits(&mut pair.cms[A]).len(),
        1,
        "late by four waits, and twice: still one repetition"
    );
    assert_eq!(
        pair.cms[A].poll_timeout(),
        Some(late + Duration::from_millis(4608))
    );
}

#[test]
fn the_deadline_ends_the_attempt_even_if_retries_remain() {
    let mut pair = Pair::new();
    pair.network.partition(A, B);
    let params = ConnectParams {
        deadline: Some(Duration::from_secs(10)),
        ..connect_params()
    };
    let id = pair.cms[A].connect(Time::ZERO, params).expect("correct");
    pair.drive_for(Duration::from_secs(100));
    assert_eq!(named(&pair.sent, "REQ").len(), 3);
    assert_eq!(pair.event_names(A), ["ReqError"]);
    assert_eq!(pair.state(A, id), StateName::Idle);
    let last = pair.ladder.lines().last().expect("lines");
    assert!(last.starts_with("t=10.000000  A > B  REJ"), "{last}");
}

#[test]
fn the_deadline_does_not_end_a_connection_whose_rep_has_come() {
    let mut pair = Pair::new();
    let params = ConnectParams {
        deadline: Some(Duration::from_secs(1)),
        ..connect_params()
    };
    let (active, passive) = pair.request_with(params);
    pair.cms[B]
        .accept(pair.clock.now(), passive, accept_params())
        .expect("a request waits");
    pair.drive_for(Duration::from_secs(2));
    assert_eq!(pair.state(A, active), StateName::RepRcvd);
    assert_eq!(pair.event_names(A), ["RepReceived"]);
}

#[test]
fn the_rej_of_an_attempt_given_up_ends_the_request_at_the_peer() {
    let mut pair = Pair::new();
    let params = ConnectParams {
        deadline: Some(Duration::from_secs(1)),
        ..connect_params()
    };
    let (_, passive) = pair.request_with(params);
    pair.drive_for(Duration::from_secs(2));
    let Event::RejReceived { id, rej } = pair.event(B) else {
        panic!("{}", pair.ladder)
    };
    assert_eq!((id, rej.reason), (passive, RejReason::TIMEOUT));
    assert_eq!(pair.state(B, passive), StateName::Idle);
}

#[test]
fn a_duplicate_rep_is_answered_with_the_same_rtu() {
    let mut pair = Pair::new();
    let (active, _) = pair.reply();
    pair.cms[A]
        .establish(pair.clock.now(), active, b"ready")
        .expect("a reply waits");
    pair.drive();
    let rep = named(&pair.sent, "REP")[0].1;
    pair.inject(A, &rep);
    let rtus = named(&pair.sent, "RTU");
    assert_eq!(rtus.len(), 2);
    assert_eq!(rtus[0].1, rtus[1].1);
    assert_eq!(pair.cms[A].counters().duplicate(MessageName::Rep), 1);
}

#[test]
fn a_duplicate_rep_before_the_decision_is_dropped_without_an_mra_and_answered_with_one_prepared() {
    let mut pair = Pair::new();
    let (active, _) = pair.reply();
    let rep = named(&pair.sent, "REP")[0].1;
    pair.inject(A, &rep);
    assert_eq!(named(&pair.sent, "MRA").len(), 0);
    pair.cms[A]
        .send_mra(pair.clock.now(), active, IbTimeout::truncate(24))
        .expect("a reply waits");
    pair.drain(A);
    assert_eq!(
        named(&pair.sent, "MRA").len(),
        0,
        "nothing is sent before the peer asks again"
    );
    pair.inject(A, &rep);
    let mras = named(&pair.sent, "MRA");
    let CmMessage::Mra(mra) = parse(&mras[0].1) else {
        panic!("{mras:?}")
    };
    assert_eq!(
        (mras.len(), mra.message, mra.service_timeout.get()),
        (1, MessageKind::REP, 24)
    );
}

#[test]
fn an_mra_extends_the_wait_to_the_service_time_and_the_round_trip() {
    let mut pair = Pair::new();
    let (active, passive) = pair.request();
    pair.cms[B]
        .send_mra(pair.clock.now(), passive, IbTimeout::truncate(24))
        .expect("a request waits");
    pair.fire_timer(A);
    pair.drive();
    assert_eq!(pair.state(A, active), StateName::MraReqRcvd);
    assert_eq!(pair.event_names(A), ["MraReceived"]);
    // Service timeout 24: 65,536 ms; packet life time 16, one more: 512 ms.
    let wait = pair.cms[A].poll_timeout().expect("armed") - pair.now();
    assert_eq!(wait, Duration::from_millis(65_536 + 512));
}

#[test]
fn a_rep_from_a_queue_pair_of_a_live_connection_is_rejected_as_stale_and_ends_the_old_one() {
    let mut pair = Pair::new();
    let (old, _) = pair.establish();
    // B was restarted and uses its QPN again.
    let now = pair.now();
    let second = ConnectParams {
        local_qpn: oarlock_wire::Qpn::truncate(0x99),
        ..connect_params()
    };
    let (new, passive) = pair.request_with(second);
    pair.cms[B]
        .accept(now, passive, accept_params())
        .expect("a request waits");
    let mark = pair.sent.len();
    pair.drive();
    assert_eq!(
        pair.messages_since(mark)[..3],
        [(B, "REP"), (A, "REJ"), (A, "DREQ")]
    );
    let CmMessage::Rej(rej) = parse(&pair.sent[mark + 1].1) else {
        panic!("{}", pair.ladder)
    };
    assert_eq!(
        (rej.reason, rej.message),
        (RejReason::STALE_CONNECTION, MessageKind::REP)
    );
    assert_eq!(pair.state(A, old), StateName::DreqSent);
    assert_eq!(pair.state(A, new), StateName::ReqSent);
    assert_eq!(pair.state(B, passive), StateName::Timewait);
    assert_eq!(
        pair.cms[A].counters().dropped(DropReason::StaleConnection),
        1
    );
}

#[test]
fn a_rep_after_the_attempt_was_given_up_is_dropped() {
    let mut pair = Pair::new();
    let (active, passive) = pair.request();
    pair.cms[B]
        .accept(pair.clock.now(), passive, accept_params())
        .expect("a request waits");
    pair.cms[A].destroy(pair.clock.now(), active);
    let mark = pair.sent.len();
    pair.drive();
    assert_eq!(pair.messages_since(mark), [(A, "REJ"), (B, "REP")]);
    assert_eq!(pair.cms[A].counters().dropped(DropReason::UnknownCommId), 1);
}

#[test]
fn a_rej_for_a_req_ends_only_a_connection_that_has_no_peer_yet() {
    let mut pair = Pair::new();
    let (active, _) = pair.establish();
    let comm_id = pair.cms[A].comm_id(active).expect("it exists");
    let forged = Rej {
        remote_comm_id: comm_id,
        message: MessageKind::REQ,
        reason: RejReason::CONSUMER_DEFINED,
        ..Rej::default()
    };
    pair.inject_message(A, forged);
    assert_eq!(pair.state(A, active), StateName::Established);
    assert_eq!(pair.cms[A].counters().dropped(DropReason::UnknownCommId), 1);
}

#[test]
fn the_path_of_management_is_the_path_of_the_call() {
    let mut pair = Pair::new();
    let path = oarlock_wire::AddressVector {
        traffic_class: 0x60,
        scope_id: 3,
        ..av(A)
    };
    pair.cms[A]
        .connect(
            Time::ZERO,
            ConnectParams {
                av: path,
                ..connect_params()
            },
        )
        .expect("correct");
    assert_eq!(pair.cms[A].poll_transmit().expect("the REQ").av, path);
}
