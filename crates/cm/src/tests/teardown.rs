//! Disconnecting, rejecting, destroying.

use std::time::Duration;

use oarlock_sim::{Network, NetworkConfig};
use oarlock_wire::cm::{CmMessage, Dreq, MessageKind, Rej};
use oarlock_wire::{CommId, Qpn, RejReason};

use super::support::{
    A, B, GUID, Pair, QPN, accept_params, connect_params, named, parse, transmits,
};
use crate::{ConnectParams, DropReason, Event, MessageName, StateName};

#[test]
fn a_disconnect_runs_through_timewait_and_leaves_nothing() {
    let mut pair = Pair::new();
    let (active, passive) = pair.establish();
    pair.cms[A]
        .disconnect(pair.clock.now(), active, b"bye")
        .expect("connected");
    pair.drive();
    let Event::DreqReceived { private_data, .. } = pair.event(B) else {
        panic!("{}", pair.ladder)
    };
    assert_eq!(private_data.as_bytes()[..4], *b"bye\0");
    pair.cms[B]
        .reply_disconnect(pair.clock.now(), passive, &[])
        .expect("the peer disconnects");
    pair.drive_for(Duration::from_secs(2));
    assert_eq!(pair.event_names(A), ["DrepReceived", "TimewaitExit"]);
    assert_eq!(pair.event_names(B), ["TimewaitExit"]);
    for (side, id) in [(A, active), (B, passive)] {
        assert_eq!(pair.state(side, id), StateName::Idle);
        assert_eq!(
            pair.cms[side].footprint(),
            ([1, 0, 0, 0], 0),
            "only the comm id is left"
        );
        pair.cms[side].destroy(pair.clock.now(), id);
        assert_eq!(pair.cms[side].footprint(), ([0; 4], 0));
        assert_eq!(pair.cms[side].connections(), 0);
    }
}

#[test]
fn timewait_lasts_as_long_as_the_acknowledgement_timeout() {
    let mut pair = Pair::new();
    let (active, passive) = pair.establish();
    pair.disconnect(A, active);
    pair.cms[B]
        .reply_disconnect(pair.clock.now(), passive, &[])
        .expect("the peer disconnects");
    // Both from packet life time 16 and a CA delay of 15.
    assert_eq!(
        pair.cms[B].poll_timeout().expect("armed") - pair.now(),
        Duration::from_millis(512)
    );
    pair.drive();
    assert_eq!(
        pair.cms[A].poll_timeout().expect("armed") - pair.now(),
        Duration::from_millis(512)
    );
}

#[test]
fn dreqs_that_cross_disconnect_both_sides() {
    let mut pair = Pair::new();
    let (active, passive) = pair.establish();
    pair.cms[A]
        .disconnect(pair.clock.now(), active, &[])
        .expect("connected");
    pair.disconnect(B, passive);
    assert_eq!(
        (pair.state(A, active), pair.state(B, passive)),
        (StateName::DreqRcvd, StateName::DreqRcvd)
    );
    assert_eq!(
        (pair.event_names(A), pair.event_names(B)),
        (vec!["DreqReceived"], vec!["DreqReceived"])
    );
    pair.cms[A]
        .reply_disconnect(pair.clock.now(), active, &[])
        .expect("the peer disconnects");
    pair.reply_disconnect(B, passive);
    assert_eq!(
        (pair.state(A, active), pair.state(B, passive)),
        (StateName::Timewait, StateName::Timewait)
    );
}

#[test]
fn a_repeated_dreq_is_answered_with_the_same_drep_in_timewait_and_after_it() {
    let mut pair = Pair::new();
    let (active, passive) = pair.establish();
    pair.disconnect(A, active);
    pair.cms[B]
        .reply_disconnect(pair.clock.now(), passive, b"bye")
        .expect("the peer disconnects");
    let dreq = named(&pair.sent, "DREQ")[0].1;
    pair.inject(B, &dreq);
    let dreps = named(&pair.sent, "DREP");
    assert_eq!((dreps.len(), dreps[0]), (2, dreps[1]));

    pair.drive_for(Duration::from_secs(2));
    assert_eq!(pair.state(B, passive), StateName::Idle);
    pair.inject(B, &dreq);
    assert_eq!(
        named(&pair.sent, "DREP").len(),
        3,
        "the peer may ask long after our TIMEWAIT"
    );

    pair.cms[B].destroy(pair.clock.now(), passive);
    pair.inject(B, &dreq);
    assert_eq!(
        named(&pair.sent, "DREP").len(),
        4,
        "and after we have forgotten"
    );
}

#[test]
fn a_dreq_for_unknown_ids_is_answered_with_a_drep_for_the_same_ids() {
    let mut pair = Pair::new();
    pair.inject_message(
        A,
        Dreq {
            local_comm_id: CommId(5),
            remote_comm_id: CommId(6),
            remote_qpn: QPN[A],
            ..Dreq::default()
        },
    );
    let sent = transmits(&mut pair.cms[A]);
    let [CmMessage::Drep(drep)] = &sent[..] else {
        panic!("{sent:?}")
    };
    assert_eq!(
        (drep.local_comm_id, drep.remote_comm_id),
        (CommId(6), CommId(5))
    );
}

#[test]
fn a_dreq_for_another_queue_pair_is_ignored() {
    let mut pair = Pair::new();
    let (active, passive) = pair.establish();
    let (local, remote) = (
        pair.cms[B].comm_id(passive).expect("exists"),
        pair.cms[A].comm_id(active).expect("exists"),
    );
    pair.inject_message(
        A,
        Dreq {
            local_comm_id: local,
            remote_comm_id: remote,
            remote_qpn: Qpn::truncate(0x9999),
            ..Dreq::default()
        },
    );
    assert_eq!(pair.state(A, active), StateName::Established);
    assert_eq!(transmits(&mut pair.cms[A]).len(), 0);
    assert_eq!(pair.cms[A].counters().dropped(DropReason::QpnMismatch), 1);
}

#[test]
fn an_unanswered_dreq_is_given_up_and_the_connection_is_gone_all_the_same() {
    let mut pair = Pair::new();
    let (active, _) = pair.establish();
    pair.network.partition(A, B);
    pair.cms[A]
        .disconnect(pair.clock.now(), active, &[])
        .expect("connected");
    pair.drive_for(Duration::from_secs(100));
    assert_eq!(pair.event_names(A), ["DreqError", "TimewaitExit"]);
    assert_eq!(pair.cms[A].counters().sent(MessageName::Dreq), 16);
}

#[test]
fn a_dreq_in_place_of_a_lost_rtu_disconnects() {
    let mut pair = Pair::new();
    let (active, passive) = pair.reply();
    pair.network.partition_one_way(A, B);
    pair.cms[A]
        .establish(pair.clock.now(), active, &[])
        .expect("a reply waits");
    pair.drain(A);
    pair.network.heal(A, B);
    pair.disconnect(A, active);
    assert_eq!(pair.state(B, passive), StateName::DreqRcvd);
    assert_eq!(pair.event_names(B), ["DreqReceived"]);
}

#[test]
fn a_rejection_carries_reason_information_and_private_data() {
    let mut pair = Pair::new();
    let (active, passive) = pair.request();
    pair.cms[B]
        .reject(
            pair.clock.now(),
            passive,
            RejReason::INVALID_PATH_MTU,
            &[3],
            b"no",
        )
        .expect("a request waits");
    pair.drive();
    let Event::RejReceived { id, rej } = pair.event(A) else {
        panic!("{}", pair.ladder)
    };
    assert_eq!(
        (id, rej.reason, rej.message),
        (active, RejReason::INVALID_PATH_MTU, MessageKind::REQ)
    );
    assert_eq!(
        (
            rej.additional_info.as_bytes(),
            &rej.private_data.as_bytes()[..3]
        ),
        (&[3][..], &b"no\0"[..])
    );
    assert_eq!(
        rej.local_comm_id,
        CommId(0),
        "the peer has never heard our comm id"
    );
    assert_eq!(
        (pair.state(A, active), pair.state(B, passive)),
        (StateName::Idle, StateName::Idle)
    );
}

#[test]
fn a_rej_of_an_established_connection_ends_it() {
    let mut pair = Pair::new();
    let (active, passive) = pair.establish();
    let (local, remote) = (
        pair.cms[B].comm_id(passive).expect("exists"),
        pair.cms[A].comm_id(active).expect("exists"),
    );
    pair.inject_message(
        A,
        Rej {
            local_comm_id: local,
            remote_comm_id: remote,
            message: MessageKind::OTHER,
            reason: RejReason::CONSUMER_DEFINED,
            ..Rej::default()
        },
    );
    pair.drain(A);
    assert_eq!(pair.state(A, active), StateName::Timewait);
    assert_eq!(pair.event_names(A), ["RejReceived"]);
}

#[test]
fn a_rej_that_names_no_guid_or_no_known_message_is_dropped() {
    let mut pair = Pair::new();
    pair.request();
    pair.inject_message(
        B,
        Rej {
            reason: RejReason::TIMEOUT,
            message: MessageKind::OTHER,
            ..Rej::default()
        },
    );
    assert_eq!(
        pair.cms[B].counters().dropped(DropReason::RejWithoutGuid),
        1
    );
    pair.inject_message(
        B,
        Rej {
            reason: RejReason::CONSUMER_DEFINED,
            message: MessageKind(3),
            ..Rej::default()
        },
    );
    assert_eq!(
        pair.cms[B]
            .counters()
            .dropped(DropReason::UnknownMessageKind),
        1
    );
}

#[test]
fn destroying_while_the_req_is_out_tells_the_peer_who_gave_up() {
    let mut pair = Pair::new();
    let (active, passive) = pair.request();
    pair.cms[A].destroy(pair.clock.now(), active);
    pair.drive();
    let (_, transmit) = named(&pair.sent, "REJ")[0];
    let CmMessage::Rej(rej) = parse(&transmit) else {
        panic!("{transmit:?}")
    };
    assert_eq!(
        (rej.reason, rej.message),
        (RejReason::TIMEOUT, MessageKind::OTHER)
    );
    assert_eq!(rej.additional_info.as_bytes(), GUID[A].0.to_be_bytes());
    assert_eq!(pair.event_names(B), ["RejReceived"]);
    assert_eq!(pair.state(B, passive), StateName::Idle);
}

#[test]
fn destroying_an_established_connection_sends_one_dreq_and_forgets() {
    let mut pair = Pair::new();
    let (active, passive) = pair.establish();
    pair.cms[A].destroy(pair.clock.now(), active);
    assert_eq!(pair.cms[A].footprint(), ([0; 4], 0));
    pair.drive_for(Duration::from_secs(60));
    assert_eq!(named(&pair.sent, "DREQ").len(), 1);
    assert_eq!(pair.event_names(A), [""; 0]);
    assert_eq!(pair.state(B, passive), StateName::DreqRcvd);
}

#[test]
fn there_are_no_events_for_a_destroyed_id_not_even_queued_ones() {
    let mut pair = Pair::new();
    let (active, passive) = pair.request();
    pair.cms[B]
        .accept(pair.clock.now(), passive, accept_params())
        .expect("a request waits");
    pair.drain(B);
    let rep = named(&pair.sent, "REP")[0].1;
    pair.cms[A].handle_mad(pair.clock.now(), &rep.av.reversed(), &rep.mad);
    // The event is queued and not polled.
    pair.cms[A].destroy(pair.clock.now(), active);
    assert_eq!(pair.cms[A].poll_event(), None);
    assert_eq!(pair.cms[A].state(active), None);
}

#[test]
fn an_id_is_never_used_again() {
    let mut pair = Pair::new();
    let now = pair.now();
    let first = pair.cms[A].connect(now, connect_params()).expect("correct");
    let comm_id = pair.cms[A].comm_id(first);
    pair.cms[A].destroy(now, first);
    let second = pair.cms[A].connect(now, connect_params()).expect("correct");
    assert_ne!(first, second);
    assert_ne!(
        comm_id,
        pair.cms[A].comm_id(second),
        "a late message for the first must not reach the second"
    );
    pair.cms[A].destroy(now, first);
    assert_eq!(
        pair.state(A, second),
        StateName::ReqSent,
        "a dead id destroys nothing"
    );
}

#[test]
fn the_wait_for_a_drep_follows_the_configuration() {
    let mut pair = Pair::with(
        [
            crate::Config {
                dreq_wait: Some(Duration::from_millis(100)),
                dreq_retries: Some(2),
                timewait: Some(Duration::from_millis(7)),
                ..super::support::config(A)
            },
            super::support::config(B),
        ],
        NetworkConfig::default(),
        1,
    );
    let (active, _) = pair.establish();
    pair.network.partition(A, B);
    let start = pair.now();
    pair.cms[A]
        .disconnect(start, active, &[])
        .expect("connected");
    for _ in 0..3 {
        pair.fire_timer(A);
        pair.drain(A);
    }
    assert_eq!(pair.now() - start, Duration::from_millis(300));
    assert_eq!(pair.event_names(A), ["DreqError"]);
    assert_eq!(
        pair.cms[A].poll_timeout().expect("armed") - pair.now(),
        Duration::from_millis(7)
    );
}

#[test]
fn a_peer_cannot_make_us_wait_longer_than_configured() {
    let longest = Duration::from_secs(1);
    let mut pair = Pair::with(
        [
            super::support::config(A),
            crate::Config {
                longest_wait: Some(longest),
                ..super::support::config(B)
            },
        ],
        NetworkConfig::default(),
        1,
    );
    let params = ConnectParams {
        response_timeout: oarlock_wire::IbTimeout::MAX,
        ..connect_params()
    };
    let (_, passive) = pair.request_with(params);
    pair.cms[B]
        .accept(pair.clock.now(), passive, accept_params())
        .expect("a request waits");
    assert_eq!(pair.cms[B].poll_timeout(), Some(pair.now() + longest));
}

#[test]
fn by_default_a_peer_can_hold_a_half_open_connection_for_minutes_and_not_for_days() {
    let mut pair = Pair::new();
    let params = ConnectParams {
        response_timeout: oarlock_wire::IbTimeout::MAX,
        ..connect_params()
    };
    let (active, passive) = pair.request_with(params);
    pair.cms[B]
        .accept(pair.clock.now(), passive, accept_params())
        .expect("a request waits");
    pair.cms[A].destroy(pair.clock.now(), active);
    // The peer is never heard of again, not even its REJ.
    assert_eq!(transmits(&mut pair.cms[A]).len(), 1);
    let silence = NetworkConfig {
        loss: 1.0,
        ..NetworkConfig::default()
    };
    pair.network = Network::new(silence, 1);
    pair.drive_for(16 * Duration::from_secs(70));
    assert_eq!(pair.event_names(B), ["RepError"]);
    assert_eq!(pair.cms[B].half_open(), 0);
}
