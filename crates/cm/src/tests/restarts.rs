//! Peers that crash and come back with the same addresses and queue pairs, partitions that heal, and clocks that stand
//! still or jump.

use std::time::Duration;

use oarlock_wire::cm::{Rej, Req};
use oarlock_wire::{CmMessage, CommId, MessageKind, Qpn, RejReason, Time};

use super::support::{
    A, B, GUID, Pair, QPN, SERVICE, accept_params, av, config, connect_params, named, transmits,
};
use crate::{
    AlternatePathParams, Cm, ConnectParams, DropReason, Event, MessageName, Seed, SidrParams,
    StateName,
};

/// A side forgets everything and begins anew, with the same GUID, address and queue pairs.
fn restart(pair: &mut Pair, side: usize, life: u8) {
    pair.cms[side] = Cm::new(config(side), Seed([0x80 | life; 32]));
    if side == B {
        pair.listener = pair.cms[B].listen(SERVICE).expect("the first listener");
    }
    pair.events[side].clear();
}

/// Public fault 45: the first attempt of a restarted peer is told so (REJ 10), the old connection is disconnected, the
/// next attempt succeeds.
#[test]
fn a_restarted_active_side_connects_its_queue_pair_again_at_the_second_attempt() {
    let mut pair = Pair::new();
    let (_, old) = pair.establish();
    restart(&mut pair, A, 1);
    let now = pair.now();
    let first = pair.cms[A].connect(now, connect_params()).expect("correct");
    pair.drive();
    let Event::RejReceived { id, rej } = pair.event(A) else {
        panic!("{}", pair.ladder)
    };
    assert_eq!(
        (id, rej.reason, rej.message),
        (first, RejReason::STALE_CONNECTION, MessageKind::REQ)
    );
    assert_eq!(pair.event_names(B), ["DrepReceived"], "{}", pair.ladder);
    assert_eq!(pair.state(B, old), StateName::Timewait);
    pair.events = Default::default();
    let (active, passive) = pair.reply();
    pair.complete(A, active);
    assert_eq!(pair.state(B, passive), StateName::Established);
}

/// Public fault 45: the same from the other side: the REP of a restarted passive side names a queue pair that is
/// connected still.
#[test]
fn a_restarted_passive_side_answers_from_its_old_queue_pair_and_is_told_so() {
    let mut pair = Pair::new();
    let (old, _) = pair.establish();
    restart(&mut pair, B, 1);
    let other_qp = ConnectParams {
        local_qpn: Qpn::truncate(0x99),
        ..connect_params()
    };
    let (new, passive) = pair.request_with(other_qp);
    pair.accept(B, passive);
    let Event::RejReceived { id, rej } = pair.event(B) else {
        panic!("{}", pair.ladder)
    };
    assert_eq!(
        (id, rej.reason, rej.message),
        (passive, RejReason::STALE_CONNECTION, MessageKind::REP)
    );
    pair.drive();
    assert_eq!(pair.state(A, old), StateName::Timewait);
    assert_eq!(pair.state(A, new), StateName::ReqSent);
}

/// Public fault 45: another connection of the same host is not stale: queue pair *and* CA must be the same.
#[test]
fn another_queue_pair_or_another_ca_does_not_make_a_connection_stale() {
    let mut pair = Pair::new();
    let (_, old) = pair.establish();
    let req = |comm_id, guid, qpn| {
        let mut req: Req = crate::conn::active::request(&connect_params(), CommId(comm_id), guid)
            .expect("correct");
        req.local_qpn = qpn;
        req
    };
    pair.inject_message(B, req(0x501, GUID[A], Qpn::truncate(0x99)));
    pair.inject_message(B, req(0x502, oarlock_wire::Guid(0xC), QPN[A]));
    assert_eq!(
        pair.cms[B].counters().dropped(DropReason::StaleConnection),
        0
    );
    assert_eq!(pair.state(B, old), StateName::Established);
    assert_eq!(pair.cms[B].connections(), 3);
}

#[test]
fn a_peer_that_restarts_in_every_state_can_connect_in_the_end() {
    for state in [
        StateName::ReqRcvd,
        StateName::RepSent,
        StateName::Established,
        StateName::DreqSent,
        StateName::DreqRcvd,
        StateName::Timewait,
    ] {
        let mut pair = Pair::new();
        let (active, passive) = pair.request();
        if state != StateName::ReqRcvd {
            pair.accept(B, passive);
        }
        if !matches!(state, StateName::ReqRcvd | StateName::RepSent) {
            pair.complete(A, active);
        }
        match state {
            StateName::DreqSent => pair.disconnect(B, passive),
            StateName::DreqRcvd => pair.disconnect(A, active),
            StateName::Timewait => {
                pair.disconnect(B, passive);
                pair.reply_disconnect(A, active);
            }
            _ => {}
        }
        assert_eq!(pair.state(B, passive), state);
        restart(&mut pair, A, 2);
        // The program on B ends what it is asked to end; the one on A tries until it is connected.
        let mut connected = None;
        for _ in 0..40 {
            pair.events = Default::default();
            let now = pair.now();
            let id = pair.cms[A].connect(now, connect_params()).expect("correct");
            pair.drive();
            if state == StateName::ReqRcvd && pair.state(B, passive) == StateName::ReqRcvd {
                let now = pair.now();
                pair.cms[B]
                    .reject(now, passive, RejReason::CONSUMER_DEFINED, &[], &[])
                    .expect("the old request waits");
            }
            if pair.state(B, passive) == StateName::DreqRcvd {
                pair.reply_disconnect(B, passive);
            }
            if let Some(Event::ReqReceived { id: new, .. }) = pair.events[B]
                .iter()
                .find(|event| matches!(event, Event::ReqReceived { .. }))
            {
                connected = Some((id, *new));
                break;
            }
            pair.drive_for(Duration::from_secs(2));
            let now = pair.now();
            pair.cms[A].destroy(now, id);
        }
        let (new_active, new_passive) =
            connected.unwrap_or_else(|| panic!("{state}: never connected\n{}", pair.ladder));
        pair.accept(B, new_passive);
        pair.complete(A, new_active);
        assert_eq!(
            pair.state(B, new_passive),
            StateName::Established,
            "{state}"
        );
    }
}

/// Messages of an earlier life: whatever was recorded comes to a host that has forgotten all of it.
#[test]
fn a_restarted_host_survives_every_message_of_its_earlier_life() {
    let mut pair = Pair::new();
    let (active, passive) = pair.establish();
    let now = pair.now();
    pair.cms[A]
        .load_alternate_path(now, active, AlternatePathParams::new(Default::default()))
        .expect("connected");
    pair.cms[A]
        .sidr_request(now, SidrParams::new(av(A), SERVICE))
        .expect("correct");
    pair.drive();
    pair.disconnect(A, active);
    pair.reply_disconnect(B, passive);
    let recorded = pair.sent.clone();
    for side in [A, B] {
        restart(&mut pair, side, 3);
        for (_, transmit) in recorded.iter().filter(|(from, _)| *from != side) {
            pair.inject(side, transmit);
        }
        // Only a REQ and a SIDR_REQ mean something to a stranger.
        let made = if side == B { 2 } else { 0 };
        assert_eq!(pair.cms[side].connections(), made);
        assert_eq!(pair.event_names(side).len(), made);
    }
}

#[test]
fn a_partition_that_heals_lets_everything_go_on() {
    let mut pair = Pair::new();
    let (active, passive) = pair.establish();
    pair.network.partition(A, B);
    let now = pair.now();
    pair.cms[A]
        .load_alternate_path(now, active, AlternatePathParams::new(Default::default()))
        .expect("connected");
    pair.cms[A]
        .sidr_request(now, SidrParams::new(av(A), SERVICE))
        .expect("correct");
    let other_qp = ConnectParams {
        local_qpn: Qpn::truncate(0x99),
        ..connect_params()
    };
    pair.cms[A].connect(now, other_qp).expect("correct");
    pair.drive_for(Duration::from_secs(30));
    assert_eq!(pair.event_names(B), [""; 0]);
    pair.network.heal(A, B);
    pair.drive_for(Duration::from_secs(6));
    let mut told = pair.event_names(B);
    told.sort_unstable();
    assert_eq!(told, ["LapReceived", "ReqReceived", "SidrReqReceived"]);
    assert_eq!(pair.state(B, passive), StateName::Established);

    // One direction only: the DREP never arrives.
    pair.network.partition_one_way(B, A);
    pair.disconnect(A, active);
    pair.reply_disconnect(B, passive);
    pair.drive_for(Duration::from_secs(20));
    assert_eq!(pair.state(A, active), StateName::DreqSent);
    pair.network.heal(A, B);
    pair.drive_for(Duration::from_secs(10));
    assert_eq!(pair.state(A, active), StateName::Idle);
}

#[test]
fn on_a_clock_that_stands_still_nothing_is_repeated_and_everything_else_works() {
    let mut pair = Pair::new();
    let now = Time::from_nanos(7);
    let deliver = |pair: &mut Pair| {
        for _ in 0..10 {
            for side in [A, B] {
                while let Some(transmit) = pair.cms[side].poll_transmit() {
                    pair.cms[1 - side].handle_mad(now, &transmit.av.reversed(), &transmit.mad);
                }
                pair.cms[side].handle_timeout(now);
            }
        }
    };
    let active = pair.cms[A].connect(now, connect_params()).expect("correct");
    deliver(&mut pair);
    let Some(Event::ReqReceived { id: passive, .. }) = pair.cms[B].poll_event() else {
        panic!("no request")
    };
    pair.cms[B]
        .accept(now, passive, accept_params())
        .expect("a request waits");
    deliver(&mut pair);
    pair.cms[A].establish(now, active, &[]).expect("a reply");
    deliver(&mut pair);
    pair.cms[A].disconnect(now, active, &[]).expect("connected");
    deliver(&mut pair);
    pair.cms[B]
        .reply_disconnect(now, passive, &[])
        .expect("asked");
    deliver(&mut pair);
    for (side, id) in [(A, active), (B, passive)] {
        assert_eq!(pair.state(side, id), StateName::Timewait);
        let counters = pair.cms[side].counters();
        for message in MessageName::ALL {
            assert_eq!(counters.retried(*message), 0);
        }
    }
}

#[test]
fn a_clock_that_jumps_fires_each_timer_once() {
    let mut pair = Pair::new();
    let now = pair.now();
    pair.cms[A].connect(now, connect_params()).expect("correct");
    pair.cms[A]
        .sidr_request(now, SidrParams::new(av(A), SERVICE))
        .expect("correct");
    transmits(&mut pair.cms[A]);
    // A year of sleep is one missed deadline each, not a burst of all the repetitions.
    let mut at = Time::ZERO;
    for jump in 1..=15 {
        at += Duration::from_secs(365 * 86_400);
        pair.cms[A].handle_timeout(at);
        assert_eq!(transmits(&mut pair.cms[A]).len(), 2, "jump {jump}");
        // Back, or the same again: harmless.
        pair.cms[A].handle_timeout(Time::ZERO);
        pair.cms[A].handle_timeout(at);
        assert_eq!(transmits(&mut pair.cms[A]).len(), 0, "jump {jump}");
    }
    pair.cms[A].handle_timeout(Time::MAX);
    pair.drain(A);
    let mut told = pair.event_names(A);
    told.sort_unstable();
    assert_eq!(told, ["ReqError", "SidrReqError"]);
    assert_eq!(pair.cms[A].poll_timeout(), None);
}

/// At the end of time deadlines saturate. A timer must not fire without end there.
#[test]
fn at_the_end_of_time_retries_are_used_up_and_it_ends() {
    let mut pair = Pair::new();
    pair.cms[A]
        .connect(Time::MAX, connect_params())
        .expect("correct");
    pair.cms[A].handle_timeout(Time::MAX);
    pair.drain(A);
    assert_eq!(pair.event_names(A), ["ReqError"]);
    assert_eq!(named(&pair.sent, "REQ").len(), 16);
    assert_eq!(pair.cms[A].poll_timeout(), None);
}

/// A REJ (timeout) of an earlier life names our GUID's connections by the peer's comm id, and reaches only the one it
/// means.
#[test]
fn a_rej_timeout_of_an_earlier_life_does_nothing_to_the_next() {
    let mut pair = Pair::new();
    let (active, _) = pair.request();
    let old_comm_id = pair.cms[A].comm_id(active).expect("exists");
    restart(&mut pair, A, 4);
    let (_, new) = pair.request_with(ConnectParams {
        local_qpn: Qpn::truncate(0x99),
        ..connect_params()
    });
    let rej = Rej {
        local_comm_id: old_comm_id,
        reason: RejReason::TIMEOUT,
        message: MessageKind::OTHER,
        additional_info: oarlock_wire::Ari::from_slice(&GUID[A].0.to_be_bytes()).expect("8 bytes"),
        ..Rej::default()
    };
    pair.inject_message(B, CmMessage::from(rej));
    assert_eq!(pair.state(B, new), StateName::ReqRcvd);
}
