//! Exchanges as text, compared exactly with the files in `snapshots`. `OARLOCK_UPDATE=1` writes them.

use std::time::Duration;

use oarlock_sim::assert_snapshot;
use oarlock_wire::cm::AlternatePath;
use oarlock_wire::{AprStatus, IbTimeout, QKey, Qpn, RejReason, SidrStatus};

use super::support::{A, B, Pair, SERVICE, accept_params, av, connect_params, gid};
use crate::{AlternatePathParams, ConnId, ConnectParams, SidrParams, SidrReplyParams};

macro_rules! assert_ladder {
    ($pair:expr, $name:literal) => {
        assert_snapshot(
            concat!(
                env!("CARGO_MANIFEST_DIR"),
                "/src/tests/snapshots/",
                $name,
                ".txt"
            ),
            &told(&$pair),
        )
    };
}

/// The ladder, and below it what each side was told.
fn told(pair: &Pair) -> String {
    let mut text = pair.ladder.to_string();
    for (side, name) in [(A, "A"), (B, "B")] {
        text += &format!("{name}: {}\n", pair.told[side].join(" "));
    }
    text
}

#[test]
fn connect_and_disconnect() {
    let mut pair = Pair::new();
    let (active, passive) = pair.establish();
    pair.disconnect(A, active);
    pair.cms[B]
        .reply_disconnect(pair.clock.now(), passive, &[])
        .expect("the peer disconnects");
    pair.drive_for(Duration::from_secs(2));
    assert_ladder!(pair, "connect_and_disconnect");
}

#[test]
fn every_first_message_is_lost() {
    let mut pair = Pair::new();
    let lose_one = |pair: &mut Pair, side: usize| {
        pair.network.partition(A, B);
        pair.drain(side);
        pair.network.heal(A, B);
    };
    let now = pair.now();
    let active = pair.cms[A].connect(now, connect_params()).expect("correct");
    lose_one(&mut pair, A);
    pair.drive_for(Duration::from_secs(5));
    let crate::Event::ReqReceived { id: passive, .. } = pair.event(B) else {
        panic!("{}", pair.ladder)
    };
    pair.cms[B]
        .accept(pair.clock.now(), passive, accept_params())
        .expect("a request waits");
    lose_one(&mut pair, B);
    pair.drive_for(Duration::from_secs(6));
    pair.cms[A]
        .establish(pair.clock.now(), active, &[])
        .expect("a reply waits");
    lose_one(&mut pair, A);
    pair.drive_for(Duration::from_secs(5));
    pair.cms[A]
        .disconnect(pair.clock.now(), active, &[])
        .expect("connected");
    lose_one(&mut pair, A);
    pair.drive_for(Duration::from_secs(5));
    pair.cms[B]
        .reply_disconnect(pair.clock.now(), passive, &[])
        .expect("the peer disconnects");
    lose_one(&mut pair, B);
    pair.drive_for(Duration::from_secs(10));
    assert_ladder!(pair, "every_first_message_is_lost");
}

#[test]
fn patience() {
    let mut pair = Pair::new();
    let (active, passive) = pair.request();
    pair.cms[B]
        .send_mra(pair.clock.now(), passive, IbTimeout::truncate(22))
        .expect("a request waits");
    pair.drive_for(Duration::from_secs(12));
    pair.accept(B, passive);
    pair.cms[A]
        .send_mra(pair.clock.now(), active, IbTimeout::truncate(22))
        .expect("a reply waits");
    pair.drive_for(Duration::from_secs(12));
    pair.complete(A, active);
    assert_ladder!(pair, "patience");
}

#[test]
fn rejections() {
    let mut pair = Pair::new();
    let (_, passive) = pair.request();
    pair.cms[B]
        .reject(
            pair.clock.now(),
            passive,
            RejReason::CONSUMER_DEFINED,
            &[],
            &[],
        )
        .expect("a request waits");
    pair.drive();
    pair.ladder.note(pair.now(), A, "the reply is rejected");
    pair.events = Default::default();
    let (active, _) = pair.reply();
    pair.cms[A]
        .reject(
            pair.clock.now(),
            active,
            RejReason::CONSUMER_DEFINED,
            &[],
            &[],
        )
        .expect("a reply waits");
    pair.drive();
    pair.ladder.note(pair.now(), A, "nobody listens");
    pair.events = Default::default();
    let now = pair.now();
    pair.cms[A]
        .connect(
            now,
            ConnectParams {
                service_id: oarlock_wire::ServiceId(0x0106_0001),
                ..connect_params()
            },
        )
        .expect("correct");
    pair.drive();
    pair.ladder.note(pair.now(), A, "the attempt is destroyed");
    pair.events = Default::default();
    let (active, _) = pair.request();
    pair.cms[A].destroy(pair.clock.now(), active);
    pair.drive();
    assert_ladder!(pair, "rejections");
}

#[test]
fn crossed_disconnects() {
    let mut pair = Pair::new();
    let (active, passive) = pair.establish();
    pair.cms[A]
        .disconnect(pair.clock.now(), active, &[])
        .expect("connected");
    pair.disconnect(B, passive);
    pair.cms[A]
        .reply_disconnect(pair.clock.now(), active, &[])
        .expect("the peer disconnects");
    pair.cms[B]
        .reply_disconnect(pair.clock.now(), passive, &[])
        .expect("the peer disconnects");
    pair.drive_for(Duration::from_secs(2));
    assert_ladder!(pair, "crossed_disconnects");
}

#[test]
fn restarted_peer() {
    let mut pair = Pair::new();
    pair.establish();
    pair.cms[A] = crate::Cm::new(super::support::config(A), crate::Seed([77; 32]));
    pair.ladder
        .note(pair.now(), A, "restarts and uses its QPN again");
    pair.events = Default::default();
    let now = pair.now();
    let attempt = pair.cms[A].connect(now, connect_params()).expect("correct");
    pair.drive_for(Duration::from_secs(1));
    pair.cms[A].destroy(pair.clock.now(), attempt);
    pair.ladder.note(pair.now(), A, "tries once more");
    pair.events = Default::default();
    pair.request();
    assert_ladder!(pair, "restarted_peer");
}

#[test]
fn nobody_answers() {
    let mut pair = Pair::new();
    pair.network.partition(A, B);
    let now = pair.now();
    pair.cms[A]
        .connect(
            now,
            ConnectParams {
                max_cm_retries: 2,
                ..connect_params()
            },
        )
        .expect("correct");
    pair.drive_for(Duration::from_secs(60));
    assert_ladder!(pair, "nobody_answers");
}

fn resolve(pair: &mut Pair, params: SidrParams) -> ConnId {
    let now = pair.now();
    let asking = pair.cms[A].sidr_request(now, params).expect("correct");
    pair.drive();
    asking
}

fn sidr_params() -> SidrParams {
    SidrParams::new(av(A), SERVICE)
}

/// The request that B was told about.
fn resolution(pair: &mut Pair) -> ConnId {
    let crate::Event::SidrReqReceived { id, .. } = pair.event(B) else {
        panic!("{}", pair.ladder)
    };
    id
}

#[test]
fn resolutions() {
    let mut pair = Pair::new();
    resolve(&mut pair, sidr_params());
    let serving = resolution(&mut pair);
    let found = SidrReplyParams::success(Qpn::truncate(0x77), QKey(0x0123_4567));
    pair.cms[B]
        .sidr_reply(pair.clock.now(), serving, found.clone())
        .expect("a request waits");
    pair.drive();
    pair.ladder.note(pair.now(), B, "the next one is refused");
    resolve(&mut pair, sidr_params());
    let serving = resolution(&mut pair);
    pair.cms[B]
        .sidr_reply(
            pair.clock.now(),
            serving,
            SidrReplyParams::refusal(SidrStatus::NO_QP),
        )
        .expect("a request waits");
    pair.drive();
    pair.ladder.note(pair.now(), B, "the next one is destroyed");
    resolve(&mut pair, sidr_params());
    let serving = resolution(&mut pair);
    pair.cms[B].destroy(pair.clock.now(), serving);
    pair.drive();
    pair.ladder.note(pair.now(), A, "nobody listens");
    let nowhere = SidrParams {
        service_id: oarlock_wire::ServiceId(0x0111_0001),
        ..sidr_params()
    };
    resolve(&mut pair, nowhere);
    pair.ladder.note(pair.now(), B, "the answer is lost");
    resolve(&mut pair, sidr_params());
    let serving = resolution(&mut pair);
    pair.cms[B]
        .sidr_reply(pair.clock.now(), serving, found)
        .expect("a request waits");
    pair.network.partition(A, B);
    pair.drain(B);
    pair.network.heal(A, B);
    pair.drive_for(Duration::from_secs(5));
    pair.ladder.note(pair.now(), A, "nobody answers");
    pair.network.partition(A, B);
    let impatient = SidrParams {
        max_cm_retries: 2,
        ..sidr_params()
    };
    resolve(&mut pair, impatient);
    pair.drive_for(Duration::from_secs(30));
    assert_ladder!(pair, "resolutions");
}

#[test]
fn alternate_paths() {
    let mut pair = Pair::new();
    let (active, passive) = pair.establish();
    let ids = [active, passive];
    let load = |pair: &mut Pair, side: usize| {
        let path = AlternatePath {
            local_gid: gid(side),
            remote_gid: gid(1 - side),
            ..AlternatePath::default()
        };
        let now = pair.now();
        pair.cms[side]
            .load_alternate_path(now, ids[side], AlternatePathParams::new(path))
            .expect("connected");
    };
    let answer = |pair: &mut Pair, side: usize, status| {
        let now = pair.now();
        pair.cms[side]
            .answer_alternate_path(now, ids[side], status, &[], &[])
            .expect("a LAP waits");
    };
    load(&mut pair, A);
    pair.drive();
    answer(&mut pair, B, AprStatus::SUCCESS);
    pair.drive();
    pair.ladder
        .note(pair.now(), A, "the passive side's is refused");
    load(&mut pair, B);
    pair.drive();
    answer(&mut pair, A, AprStatus::REJECT);
    pair.drive();
    pair.ladder
        .note(pair.now(), B, "asks for patience, and its answer is lost");
    load(&mut pair, A);
    pair.drive();
    pair.cms[B]
        .send_mra(pair.clock.now(), passive, IbTimeout::truncate(22))
        .expect("a LAP waits");
    pair.drive_for(Duration::from_secs(6));
    answer(&mut pair, B, AprStatus::SUCCESS);
    pair.network.partition(A, B);
    pair.drain(B);
    pair.network.heal(A, B);
    pair.drive_for(Duration::from_secs(20));
    pair.ladder.note(pair.now(), A, "both at once");
    load(&mut pair, A);
    load(&mut pair, B);
    pair.drive();
    answer(&mut pair, B, AprStatus::SUCCESS);
    pair.drive();
    pair.ladder
        .note(pair.now(), B, "disconnects with a LAP under way");
    load(&mut pair, A);
    pair.disconnect(B, passive);
    pair.reply_disconnect(A, active);
    pair.drive_for(Duration::from_secs(20));
    assert_ladder!(pair, "alternate_paths");
}
