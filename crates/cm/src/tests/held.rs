//! Requests that wait for a listener that is expected back.

use std::time::Duration;

use oarlock_sim::NetworkConfig;
use oarlock_wire::{
    CommId, Gid, Guid, MessageKind, QKey, Qpn, Rej, RejReason, ServiceId, SidrStatus,
};

use super::support::{
    A, B, GUID, Pair, SERVICE, av, config, connect_params, gid, named, parse, transmits,
};
use crate::conn::{active, sidr};
use crate::{
    Config, ConnId, DropReason, Event, MessageName, SidrParams, SidrReplyParams, StateName,
};

/// The program behind the listener.
const SERVER: u64 = 7;
const HOLD: Duration = Duration::from_millis(500);
const WINDOW: Duration = Duration::from_secs(10);
const TICK: Duration = Duration::from_nanos(1);

/// B's listener has ended, and may come back.
fn gap() -> Pair {
    let mut pair = Pair::new();
    leave(&mut pair);
    pair
}

fn leave(pair: &mut Pair) {
    let now = pair.now();
    pair.cms[B].stop_listening(pair.listener);
    pair.cms[B].expect_listener(now, SERVICE, SERVER);
}

fn come_back(pair: &mut Pair) {
    pair.listener = pair.cms[B].listen(SERVICE).expect("nobody listens");
}

fn connect(pair: &mut Pair) -> ConnId {
    let now = pair.now();
    let id = pair.cms[A]
        .connect(now, connect_params())
        .expect("correct parameters");
    pair.drive();
    id
}

fn assert_rejected(pair: &mut Pair, active: ConnId) {
    let Event::RejReceived { id, rej } = pair.event(A) else {
        panic!("{}", pair.ladder)
    };
    assert_eq!(
        (id, rej.reason, rej.message),
        (active, RejReason::INVALID_SERVICE_ID, MessageKind::REQ)
    );
}

#[test]
fn a_req_that_comes_between_two_listeners_reaches_the_second() {
    let mut pair = gap();
    let active = connect(&mut pair);
    assert_eq!(pair.cms[B].waiting(), (1, 1));
    assert_eq!(pair.cms[B].connections(), 0, "nothing is made of it yet");
    pair.drive_for(Duration::from_millis(1));
    come_back(&mut pair);
    pair.drive_for(Duration::ZERO);
    let Event::ReqReceived { id, listener, .. } = pair.event(B) else {
        panic!("{}", pair.ladder)
    };
    assert_eq!(listener, pair.listener);
    assert_eq!(pair.cms[B].waiting(), (0, 0));
    pair.accept(B, id);
    pair.complete(A, active);
    assert_eq!(pair.state(B, id), StateName::Established);
    assert_eq!(named(&pair.sent, "REJ"), []);
}

#[test]
fn a_req_for_a_listener_that_does_not_come_back_is_rejected_when_its_wait_is_over() {
    let mut pair = gap();
    let active = connect(&mut pair);
    let arrived = pair.now();
    assert_eq!(pair.cms[B].poll_timeout(), Some(arrived + HOLD));
    pair.drive_for(HOLD - TICK);
    assert_eq!(pair.event_names(A), [""; 0]);
    pair.drive_for(TICK);
    pair.drive();
    assert_rejected(&mut pair, active);
    assert_eq!(pair.cms[B].waiting(), (1, 0));
    assert_eq!(pair.cms[B].counters().dropped(DropReason::NoListener), 1);
}

/// What is rejected is rejected as by a communication manager that holds nothing.
#[test]
fn the_rej_after_the_wait_is_the_rej_without_it() {
    let rej = |expect: bool| {
        let mut pair = Pair::new();
        pair.cms[B].stop_listening(pair.listener);
        if expect {
            leave(&mut pair);
        }
        connect(&mut pair);
        pair.drive_for(HOLD);
        let sent = named(&pair.sent, "REJ");
        assert_eq!(sent.len(), 1, "{}", pair.ladder);
        sent[0].1
    };
    assert_eq!(rej(true), rej(false));
}

#[test]
fn nothing_waits_for_a_listener_that_is_not_expected() {
    let mut pair = Pair::new();
    pair.cms[B].stop_listening(pair.listener);
    let active = connect(&mut pair);
    assert_rejected(&mut pair, active);

    let mut pair = gap();
    pair.drive_for(WINDOW);
    let active = connect(&mut pair);
    assert_rejected(&mut pair, active);

    let mut pair = gap();
    let now = pair.now();
    let id = pair.cms[A].connect(
        now,
        crate::ConnectParams {
            service_id: ServiceId(SERVICE.0 + 1),
            ..connect_params()
        },
    );
    pair.drive();
    assert_rejected(&mut pair, id.expect("correct parameters"));
}

#[test]
fn an_expectation_beside_a_listener_is_none() {
    let mut pair = Pair::new();
    let now = pair.now();
    pair.cms[B].expect_listener(now, SERVICE, SERVER);
    assert_eq!(pair.cms[B].waiting(), (0, 0));
}

#[test]
fn when_whoever_was_to_listen_has_ended_what_waits_is_rejected_at_once() {
    let mut pair = gap();
    let active = connect(&mut pair);
    pair.cms[B].expect_no_more(SERVER + 1);
    pair.drive_for(Duration::ZERO);
    assert_eq!(pair.cms[B].waiting(), (1, 1), "somebody else's end");
    pair.cms[B].expect_no_more(SERVER);
    pair.drive_for(Duration::ZERO);
    pair.drive();
    assert_rejected(&mut pair, active);
    assert_eq!(pair.cms[B].waiting(), (0, 0));
    let active = connect(&mut pair);
    assert_rejected(&mut pair, active);
}

#[test]
fn a_repeated_req_waits_once() {
    let short = |side| Config {
        req_wait: Some(Duration::from_millis(30)),
        ..config(side)
    };
    let mut pair = Pair::with([short(A), short(B)], NetworkConfig::default(), 1);
    leave(&mut pair);
    connect(&mut pair);
    pair.drive_for(Duration::from_millis(100));
    assert_eq!(pair.cms[B].counters().duplicate(MessageName::Req), 3);
    assert_eq!(pair.cms[B].waiting(), (1, 1));
    come_back(&mut pair);
    pair.drive_for(Duration::ZERO);
    assert_eq!(pair.event_names(B), ["ReqReceived"]);
}

#[test]
fn a_req_that_its_sender_gives_up_waits_no_longer() {
    let mut pair = gap();
    let active = connect(&mut pair);
    // Another host may not give it up.
    let mut stranger = av(B);
    stranger.remote = Gid::from_ip([10, 0, 0, 99].into());
    let mut rej = Rej {
        local_comm_id: pair.cms[A].comm_id(active).expect("exists"),
        reason: RejReason::TIMEOUT,
        ..Rej::default()
    };
    let guid = GUID[A].0.to_be_bytes();
    rej.additional_info = oarlock_wire::cm::Ari::from_slice(&guid).expect("8 bytes");
    pair.inject_from(B, &stranger, rej);
    assert_eq!(pair.cms[B].waiting(), (1, 1));
    let now = pair.now();
    pair.cms[A].destroy(now, active);
    pair.drive();
    assert_eq!(pair.cms[B].waiting(), (1, 0));
    assert_eq!(pair.cms[B].counters().dropped(DropReason::Withdrawn), 1);
    come_back(&mut pair);
    pair.drive_for(HOLD);
    assert_eq!(pair.event_names(B), [""; 0]);
    assert_eq!(named(&pair.sent, "REJ").len(), 1, "A's alone");
}

/// Requests of many queue pairs reach the new listener in the order in which they came; the one that found no room was
/// rejected at once.
#[test]
fn the_number_of_requests_that_wait_is_bounded() {
    let mut pair = gap();
    let req = |n: u32| {
        let mut req =
            active::request(&connect_params(), CommId(n), Guid(0xC0)).expect("correct parameters");
        req.local_qpn = Qpn::truncate(0x100 + n);
        (req.primary.local_gid, req.primary.remote_gid) = (gid(A), gid(B));
        req
    };
    for n in 1..=256 {
        pair.inject_message(B, req(n));
    }
    assert_eq!(transmits(&mut pair.cms[B]).len(), 0);
    pair.inject_message(B, req(257));
    assert_eq!(transmits(&mut pair.cms[B]).len(), 1);
    pair.inject_message(B, req(1));
    assert_eq!(transmits(&mut pair.cms[B]).len(), 0, "it waits already");
    assert_eq!(pair.cms[B].waiting(), (1, 256));
    come_back(&mut pair);
    pair.drive_for(Duration::ZERO);
    let order: Vec<u32> = pair.events[B]
        .iter()
        .map(|event| match event {
            Event::ReqReceived { req, .. } => req.local_comm_id.0,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(order, (1..=256).collect::<Vec<_>>());
}

#[test]
fn the_number_of_listeners_that_are_expected_is_bounded() {
    let mut pair = Pair::new();
    let now = pair.now();
    let expect = |pair: &mut Pair, now, n: u64| {
        pair.cms[B].expect_listener(now, ServiceId(n), SERVER);
    };
    for n in 0..2000 {
        expect(&mut pair, now, n);
    }
    assert_eq!(pair.cms[B].waiting(), (1024, 0));
    expect(&mut pair, now + WINDOW, 5000);
    assert_eq!(pair.cms[B].waiting(), (1, 0), "the others are past");
}

fn resolve(pair: &mut Pair) -> ConnId {
    let now = pair.now();
    let params = SidrParams::new(av(A), SERVICE);
    let id = pair.cms[A].sidr_request(now, params).expect("correct");
    pair.drive();
    id
}

#[test]
fn a_sidr_req_waits_as_a_req_does() {
    let mut pair = gap();
    let asking = resolve(&mut pair);
    assert_eq!(pair.cms[B].waiting(), (1, 1));
    come_back(&mut pair);
    pair.drive_for(Duration::ZERO);
    let Event::SidrReqReceived { id, .. } = pair.event(B) else {
        panic!("{}", pair.ladder)
    };
    let now = pair.now();
    let reply = SidrReplyParams::success(Qpn::truncate(0x55), QKey(1));
    pair.cms[B].sidr_reply(now, id, reply).expect("asked");
    pair.drive();
    assert_eq!(pair.event_names(A), ["SidrRepReceived"]);
    assert_eq!(pair.event(A).id(), asking);
}

#[test]
fn a_sidr_req_in_vain_is_answered_when_its_wait_is_over() {
    let mut pair = gap();
    resolve(&mut pair);
    pair.drive_for(HOLD - TICK);
    assert_eq!(pair.event_names(A), [""; 0]);
    pair.drive_for(TICK);
    pair.drive();
    let Event::SidrRepReceived { rep, .. } = pair.event(A) else {
        panic!("{}", pair.ladder)
    };
    assert_eq!(rep.status, SidrStatus::UNSUPPORTED);
}

/// A peer that began anew may use the number of a request for another one: that is not a repetition.
#[test]
fn another_sidr_req_under_the_same_number_is_another_request() {
    let mut pair = gap();
    let mut req =
        sidr::request(&SidrParams::new(av(A), SERVICE), CommId(9)).expect("correct parameters");
    pair.inject_message(B, req.clone());
    pair.inject_message(B, req.clone());
    assert_eq!(pair.cms[B].waiting(), (1, 1));
    req.private_data = oarlock_wire::cm::PrivateData::from_slice(b"new").expect("fits");
    pair.inject_message(B, req);
    assert_eq!(pair.cms[B].waiting(), (1, 2));
    pair.drive_for(HOLD);
    let answers = pair.sent.iter().map(|(_, sent)| parse(sent).name());
    assert_eq!(answers.collect::<Vec<_>>(), ["SIDR_REP"; 2]);
}
