//! Exchanges as text, compared exactly with the files in `snapshots`. `OARLOCK_UPDATE=1` writes them.

use std::time::Duration;

use oarlock_sim::assert_snapshot;
use oarlock_wire::{IbTimeout, RejReason};

use super::support::{A, B, Pair, accept_params, connect_params};
use crate::ConnectParams;

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
