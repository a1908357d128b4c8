//! Resolutions: repetition, refusal, loss, floods, strangers, and request ids that are used again.

use std::time::Duration;

use oarlock_sim::NetworkConfig;
use oarlock_wire::cm::{SidrRep, SidrReq};
use oarlock_wire::{CmMessage, CommId, QKey, Qpn, ServiceId, SidrStatus, TransactionId};

use super::support::{A, B, Pair, SERVICE, av, config, connect_params, gid, named, transmits};
use crate::{
    Config, ConnId, DropReason, Error, Event, MessageName, SidrParams, SidrReplyParams, StateName,
};

fn params() -> SidrParams {
    SidrParams {
        private_data: vec![1, 2, 3],
        ..SidrParams::new(av(A), SERVICE)
    }
}

/// A asks and B has the request.
fn ask(pair: &mut Pair) -> (ConnId, ConnId) {
    let now = pair.now();
    let asking = pair.cms[A].sidr_request(now, params()).expect("correct");
    pair.drive();
    let Event::SidrReqReceived { id, req, av, .. } = pair.event(B) else {
        panic!("no request:\n{}", pair.ladder)
    };
    assert_eq!(req.private_data.as_bytes()[..4], [1, 2, 3, 0]);
    assert_eq!(av.remote, gid(A));
    (asking, id)
}

fn answer(pair: &mut Pair, id: ConnId) {
    let now = pair.now();
    let params = SidrReplyParams::success(Qpn::truncate(0x77), QKey(0x0123_4567));
    pair.cms[B].sidr_reply(now, id, params).expect("waits");
}

fn sidr_req(request_id: u32) -> SidrReq {
    SidrReq {
        request_id: CommId(request_id),
        service_id: SERVICE,
        ..SidrReq::default()
    }
}

#[test]
fn a_resolution_needs_two_messages_and_leaves_nothing() {
    let mut pair = Pair::new();
    let (asking, serving) = ask(&mut pair);
    assert_eq!(pair.state(A, asking), StateName::SidrReqSent);
    assert_eq!(pair.cms[B].half_open(), 1);
    answer(&mut pair, serving);
    pair.drive();
    let Event::SidrRepReceived { id, rep } = pair.event(A) else {
        panic!("no answer")
    };
    assert_eq!((id, rep.status), (asking, SidrStatus::SUCCESS));
    assert_eq!((rep.qpn.get(), rep.qkey), (0x77, QKey(0x0123_4567)));
    assert_eq!(pair.sent.len(), 2);
    assert_eq!(pair.cms[B].half_open(), 0);
    let now = pair.now();
    for (side, id) in [(A, asking), (B, serving)] {
        pair.cms[side].destroy(now, id);
        assert_eq!(pair.cms[side].footprint(), ([0; 4], 0));
        assert_eq!(pair.cms[side].poll_transmit(), None);
    }
}

/// Facts of Linux, cm.c: 16 requests, 4096 ms apart, and then the end.
#[test]
fn a_resolution_that_nobody_answers_ends_after_sixteen_requests() {
    let mut pair = Pair::new();
    pair.network.partition(A, B);
    let now = pair.now();
    let id = pair.cms[A].sidr_request(now, params()).expect("correct");
    pair.drive_for(Duration::from_secs(120));
    assert_eq!(named(&pair.sent, "SIDR_REQ").len(), 16);
    assert_eq!(pair.event(A), Event::SidrReqError { id });
    assert_eq!(pair.state(A, id), StateName::Idle);
    assert_eq!(pair.cms[A].counters().retried(MessageName::SidrReq), 15);
    let last = pair.ladder.lines().last().expect("messages").clone();
    assert!(last.starts_with("t=61.44"), "{last}");
}

#[test]
fn a_deadline_ends_a_resolution_early() {
    let mut pair = Pair::new();
    pair.network.partition(A, B);
    let now = pair.now();
    let params = SidrParams {
        deadline: Some(Duration::from_secs(5)),
        ..params()
    };
    let id = pair.cms[A].sidr_request(now, params).expect("correct");
    pair.drive_for(Duration::from_secs(6));
    assert_eq!(named(&pair.sent, "SIDR_REQ").len(), 2);
    assert_eq!(pair.event(A), Event::SidrReqError { id });
    assert_eq!(pair.cms[A].footprint().1, 0, "no timer is left");
}

#[test]
fn a_lost_answer_is_given_again_until_the_resolution_is_destroyed() {
    let mut pair = Pair::new();
    let (asking, serving) = ask(&mut pair);
    pair.network.partition(A, B);
    answer(&mut pair, serving);
    pair.drive();
    pair.network.heal(A, B);
    pair.drive_for(Duration::from_secs(5));
    assert!(matches!(pair.event(A), Event::SidrRepReceived { id, .. } if id == asking));
    assert_eq!(pair.event_names(B), [""; 0], "no second request is told");
    assert_eq!(pair.cms[B].counters().duplicate(MessageName::SidrReq), 1);
    assert_eq!(pair.cms[B].counters().sent(MessageName::SidrRep), 2);

    let req = named(&pair.sent, "SIDR_REQ")[0].1;
    let now = pair.now();
    pair.cms[B].destroy(now, serving);
    pair.inject(B, &req);
    assert_eq!(pair.event_names(B), ["SidrReqReceived"], "forgotten");
}

#[test]
fn a_repeated_request_that_waits_is_dropped_and_counted() {
    let mut pair = Pair::new();
    ask(&mut pair);
    pair.drive_for(Duration::from_secs(9));
    assert_eq!(pair.event_names(B), [""; 0]);
    let counters = pair.cms[B].counters();
    assert_eq!(counters.duplicate(MessageName::SidrReq), 2);
    assert_eq!(
        counters.dropped_of(MessageName::SidrReq, DropReason::Duplicate),
        2
    );
    assert_eq!(pair.cms[B].connections(), 1);
}

/// Facts of Linux, cm.c: no listener is SIDR status 1, a request that is destroyed unanswered is status 2.
#[test]
fn nobody_listening_is_status_1_and_destroying_the_request_is_status_2() {
    let mut pair = Pair::new();
    let now = pair.now();
    let nowhere = SidrParams {
        service_id: ServiceId(0x0111_0001),
        ..params()
    };
    pair.cms[A].sidr_request(now, nowhere).expect("correct");
    pair.drive();
    let Event::SidrRepReceived { rep, .. } = pair.event(A) else {
        panic!("no answer")
    };
    assert_eq!(
        (rep.status, rep.service_id),
        (SidrStatus::UNSUPPORTED, ServiceId(0x0111_0001))
    );
    assert_eq!(
        pair.cms[B]
            .counters()
            .dropped_of(MessageName::SidrReq, DropReason::NoListener),
        1
    );
    assert_eq!(pair.cms[B].connections(), 0, "nothing is kept");

    let (_, serving) = ask(&mut pair);
    let now = pair.now();
    pair.cms[B].destroy(now, serving);
    pair.drive();
    let Event::SidrRepReceived { rep, .. } = pair.event(A) else {
        panic!("no answer")
    };
    assert_eq!(rep.status, SidrStatus::REJECT);
}

#[test]
fn a_request_that_is_dropped_is_not_answered_and_comes_again() {
    let mut pair = Pair::new();
    let (_, serving) = ask(&mut pair);
    let now = pair.now();
    pair.cms[B].drop_request(now, serving).expect("waits");
    assert_eq!(pair.cms[B].footprint(), ([0; 4], 0));
    pair.drive_for(Duration::from_secs(5));
    assert_eq!(pair.event_names(B), ["SidrReqReceived"]);
    assert_eq!(
        pair.cms[B]
            .counters()
            .dropped_of(MessageName::SidrReq, DropReason::ByListener),
        1
    );
}

#[test]
fn a_flood_of_requests_costs_no_more_than_the_limit_and_is_counted() {
    let limits = Config {
        max_half_open: 100,
        ..config(B)
    };
    let mut pair = Pair::with([config(A), limits], NetworkConfig::default(), 1);
    for n in 1..=5000 {
        pair.inject_message(B, sidr_req(n));
    }
    assert_eq!(
        (pair.cms[B].connections(), pair.cms[B].half_open()),
        (100, 100)
    );
    assert_eq!(pair.cms[B].footprint(), ([100, 0, 0, 100], 0));
    assert_eq!(
        pair.cms[B]
            .counters()
            .dropped_of(MessageName::SidrReq, DropReason::TooManyHalfOpen),
        4900
    );
    // They count together with connections: a REQ finds no room either.
    let now = pair.now();
    pair.cms[A].connect(now, connect_params()).expect("correct");
    pair.drive();
    assert_eq!(
        pair.cms[B]
            .counters()
            .dropped_of(MessageName::Req, DropReason::TooManyHalfOpen),
        1
    );
}

#[test]
fn answered_requests_are_limited_by_the_number_of_connections() {
    let limits = Config {
        max_connections: 10,
        ..config(B)
    };
    let mut pair = Pair::with([config(A), limits], NetworkConfig::default(), 1);
    for n in 1..=20 {
        pair.inject_message(B, sidr_req(n));
        if let Some(Event::SidrReqReceived { id, .. }) = pair.cms[B].poll_event() {
            answer(&mut pair, id);
        }
    }
    assert_eq!(pair.cms[B].connections(), 10);
    assert_eq!(
        pair.cms[B]
            .counters()
            .dropped(DropReason::TooManyConnections),
        10
    );
}

#[test]
fn the_answer_of_a_stranger_is_not_believed() {
    let mut pair = Pair::new();
    let now = pair.now();
    let asking = pair.cms[A].sidr_request(now, params()).expect("correct");
    transmits(&mut pair.cms[A]);
    let rep = SidrRep {
        request_id: pair.cms[A].comm_id(asking).expect("exists"),
        ..SidrRep::default()
    };
    let stranger =
        oarlock_wire::AddressVector::new(gid(A), oarlock_wire::Gid::from_ip([10, 0, 0, 99].into()));
    pair.inject_from(A, &stranger, rep.clone());
    assert_eq!(pair.state(A, asking), StateName::SidrReqSent);
    assert_eq!(
        pair.cms[A]
            .counters()
            .dropped_of(MessageName::SidrRep, DropReason::ForeignAddress),
        1
    );
    pair.inject_message(A, rep);
    assert_eq!(pair.state(A, asking), StateName::SidrRepRcvd);
}

/// A stranger cannot take a peer's request id away: requests are found by the address they come from.
#[test]
fn two_peers_may_use_one_request_id() {
    let mut pair = Pair::new();
    let stranger =
        oarlock_wire::AddressVector::new(gid(B), oarlock_wire::Gid::from_ip([10, 0, 0, 99].into()));
    pair.inject_from(B, &stranger, sidr_req(5));
    pair.inject_message(B, sidr_req(5));
    pair.drain(B);
    assert_eq!(pair.event_names(B), ["SidrReqReceived"; 2]);
    // Each is answered where it came from.
    while let Some(Event::SidrReqReceived { id, av, .. }) = pair.events[B].pop_front() {
        answer(&mut pair, id);
        let sent = pair.cms[B].poll_transmit().expect("an answer");
        assert_eq!(sent.av.remote, av.remote);
    }
}

#[test]
fn a_request_id_that_a_restarted_peer_uses_again_is_a_new_request() {
    let mut pair = Pair::new();
    pair.inject_message(B, sidr_req(5));
    pair.drain(B);
    let Event::SidrReqReceived { id: old, .. } = pair.event(B) else {
        panic!("no request")
    };
    answer(&mut pair, old);
    transmits(&mut pair.cms[B]);
    // The same id in another transaction, and with other content.
    pair.inject_as(B, &av(B), TransactionId(0x8888), sidr_req(5));
    let other = SidrReq {
        partition_key: oarlock_wire::PKey(1),
        ..sidr_req(5)
    };
    pair.inject_message(B, other);
    pair.drain(B);
    assert_eq!(pair.event_names(B), ["SidrReqReceived"; 2]);
    // The index holds the newest, and forgets it with the newest.
    let ids: Vec<_> = std::iter::once(old)
        .chain(pair.events[B].drain(..).map(|event| event.id()))
        .collect();
    assert_eq!(pair.cms[B].footprint().0[3], 1);
    let now = pair.now();
    for id in ids {
        pair.cms[B].destroy(now, id);
    }
    assert_eq!(pair.cms[B].footprint(), ([0; 4], 0));
}

#[test]
fn misuse_of_a_resolution_is_refused() {
    let mut pair = Pair::new();
    let now = pair.now();
    let too_long = SidrParams {
        private_data: vec![0; 217],
        ..params()
    };
    assert_eq!(
        pair.cms[A].sidr_request(now, too_long),
        Err(Error::PrivateDataTooLong {
            given: 217,
            max: 216
        })
    );
    let too_many = SidrParams {
        max_cm_retries: 16,
        ..params()
    };
    assert_eq!(
        pair.cms[A].sidr_request(now, too_many),
        Err(Error::TooManyRetries { given: 16, max: 15 })
    );
    assert_eq!(pair.cms[A].connections(), 0);
    let (asking, serving) = ask(&mut pair);
    let now = pair.now();
    let refused = |private_data: usize, additional_info: usize| SidrReplyParams {
        private_data: vec![0; private_data],
        additional_info: vec![0; additional_info],
        ..SidrReplyParams::default()
    };
    assert_eq!(
        pair.cms[B].sidr_reply(now, serving, refused(137, 0)),
        Err(Error::PrivateDataTooLong {
            given: 137,
            max: 136
        })
    );
    assert_eq!(
        pair.cms[B].sidr_reply(now, serving, refused(0, 73)),
        Err(Error::AdditionalInfoTooLong { given: 73, max: 72 })
    );
    assert_eq!(
        pair.cms[A].sidr_reply(now, asking, refused(0, 0)),
        Err(Error::WrongState {
            call: "sidr_reply",
            state: StateName::SidrReqSent
        })
    );
    assert_eq!(pair.state(B, serving), StateName::SidrReqRcvd);
}

#[test]
fn resolutions_and_connections_of_one_service_do_not_mix() {
    let mut pair = Pair::new();
    let (asking, _) = ask(&mut pair);
    let (active, passive) = pair.request();
    assert_eq!(pair.state(A, active), StateName::ReqSent);
    assert_eq!(pair.state(B, passive), StateName::ReqRcvd);
    // A SIDR_REP with a connection's id, and a REP with a resolution's.
    let rep = SidrRep {
        request_id: pair.cms[A].comm_id(active).expect("exists"),
        ..SidrRep::default()
    };
    pair.inject_message(A, rep);
    let rep = oarlock_wire::cm::Rep {
        remote_comm_id: pair.cms[A].comm_id(asking).expect("exists"),
        ..oarlock_wire::cm::Rep::default()
    };
    pair.inject_message(A, CmMessage::from(rep));
    assert_eq!(pair.state(A, active), StateName::ReqSent);
    assert_eq!(pair.state(A, asking), StateName::SidrReqSent);
    assert_eq!(pair.cms[A].counters().dropped(DropReason::UnknownCommId), 2);
}
