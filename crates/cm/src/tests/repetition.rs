//! When a message is repeated: the fixed wait of Linux, waits that grow, waits that differ by chance.

use std::collections::BTreeSet;
use std::time::Duration;

use oarlock_sim::NetworkConfig;
use oarlock_wire::{MessageKind, Qpn, RejReason, Time};

use super::support::{A, B, Pair, SERVICE, av, config, connect_params, named, transmits};
use crate::{Cm, Config, ConnectParams, Event, SidrParams, StateName};

/// The times at which a lonely REQ is sent.
fn times(config: Config) -> Vec<Duration> {
    let mut cm = Cm::new(config, crate::Seed([5; 32]));
    cm.connect(Time::ZERO, connect_params()).expect("correct");
    let mut times = Vec::new();
    let mut now = Time::ZERO;
    loop {
        for message in transmits(&mut cm) {
            if message.name() == "REQ" {
                times.push(now - Time::ZERO);
            }
        }
        let Some(due) = cm.poll_timeout() else {
            return times;
        };
        now = due;
        cm.handle_timeout(now);
    }
}

fn millis(times: &[Duration]) -> Vec<u128> {
    times.iter().map(Duration::as_millis).collect()
}

/// Public faults 10, 10b: the period of Linux, 4608 ms, is the default and can be changed.
#[test]
fn the_period_is_that_of_linux_and_can_be_changed() {
    let fixed = times(config(A));
    assert_eq!(fixed.len(), 16);
    for (n, time) in fixed.iter().enumerate() {
        assert_eq!(time.as_millis(), 4608 * n as u128);
    }
    let short = times(Config {
        req_wait: Some(Duration::from_millis(100)),
        ..config(A)
    });
    assert_eq!(millis(&short)[..4], [0, 100, 200, 300]);
}

/// Public fault 10b: a lost REQ costs milliseconds, and yet the attempt lasts as long as before.
#[test]
fn waits_that_grow_begin_short_and_end_at_the_usual_one() {
    let growing = times(Config {
        first_wait: Some(Duration::from_millis(50)),
        ..config(A)
    });
    let waits: Vec<_> = growing
        .windows(2)
        .map(|two| (two[1] - two[0]).as_millis())
        .collect();
    assert_eq!(waits[..8], [50, 100, 200, 400, 800, 1600, 3200, 4608]);
    assert!(waits[8..].iter().all(|wait| *wait == 4608));
    assert_eq!(growing.len(), 16);
}

#[test]
fn a_first_wait_of_nothing_is_no_burst_and_one_beyond_the_wait_is_the_wait() {
    let from = |first| {
        times(Config {
            first_wait: Some(first),
            ..config(A)
        })
    };
    assert_eq!(millis(&from(Duration::ZERO))[..4], [0, 1, 3, 7]);
    assert_eq!(millis(&from(Duration::MAX))[..3], [0, 4608, 9216]);
}

/// Public fault 54: requests that were refused in one burst do not come again in one burst.
#[test]
fn waits_that_differ_by_chance_spread_a_burst() {
    let spread = Config {
        retry_spread: 25,
        ..config(A)
    };
    let mut cm = Cm::new(spread, crate::Seed([5; 32]));
    for n in 0..500 {
        let params = ConnectParams {
            local_qpn: Qpn::truncate(n + 2),
            ..connect_params()
        };
        cm.connect(Time::ZERO, params).expect("correct");
    }
    transmits(&mut cm);
    let mut seen = BTreeSet::new();
    for _ in 0..500 {
        let due = cm.poll_timeout().expect("armed");
        cm.handle_timeout(due);
        assert_eq!(transmits(&mut cm).len(), 1, "one at a time");
        seen.insert((due - Time::ZERO).as_millis());
    }
    let (first, last) = (seen.first().expect("500"), seen.last().expect("500"));
    assert!((3456..3500).contains(first), "{first}");
    assert!((5700..=5760).contains(last), "{last}");
    assert!(seen.len() > 400, "{} different milliseconds", seen.len());
}

#[test]
fn any_spread_and_any_wait_are_survived() {
    for retry_spread in [1, 99, 100, 255] {
        for wait in [Duration::ZERO, Duration::from_nanos(1), Duration::MAX] {
            let extreme = Config {
                retry_spread,
                req_wait: Some(wait),
                ..config(A)
            };
            assert!(!times(extreme).is_empty());
        }
    }
}

/// Public fault 10: the DREQ of a destroyed connection is sent once and not waited for, and nothing of the connection
/// is left.
#[test]
fn destroying_waits_for_nothing() {
    let mut pair = Pair::new();
    let (active, _) = pair.establish();
    pair.network.partition(A, B);
    let now = pair.now();
    pair.cms[A].destroy(now, active);
    pair.drain(A);
    assert_eq!(named(&pair.sent, "DREQ").len(), 1);
    assert_eq!(pair.cms[A].footprint(), ([0; 4], 0));
    assert_eq!(pair.cms[A].poll_timeout(), None);
}

/// Public fault 10: an attempt of either kind has a deadline over all its repetitions.
#[test]
fn every_attempt_can_have_a_deadline() {
    let mut pair = Pair::new();
    pair.network.partition(A, B);
    let now = pair.now();
    let deadline = Some(Duration::from_secs(3));
    let connect = ConnectParams {
        deadline,
        ..connect_params()
    };
    let resolve = SidrParams {
        deadline,
        ..SidrParams::new(av(A), SERVICE)
    };
    pair.cms[A].connect(now, connect).expect("correct");
    pair.cms[A].sidr_request(now, resolve).expect("correct");
    pair.drive_for(Duration::from_secs(4));
    let mut told = pair.event_names(A);
    told.sort_unstable();
    assert_eq!(told, ["ReqError", "SidrReqError"]);
}

/// Public fault 29: a REJ without a remote comm id is sent only where the peer can tell what it is about.
#[test]
fn withdrawing_an_attempt_tells_the_peer_in_the_one_way_it_understands() {
    for reason in [RejReason::CONSUMER_DEFINED, RejReason::TIMEOUT] {
        let mut pair = Pair::new();
        let (active, passive) = pair.request();
        let now = pair.now();
        pair.cms[A]
            .reject(now, active, reason, &[1], &[7; 148])
            .expect("our REQ is out");
        pair.drive();
        assert_eq!(pair.state(A, active), StateName::Idle);
        let Event::RejReceived { id, rej } = pair.event(B) else {
            panic!("not withdrawn")
        };
        assert_eq!((id, rej.reason), (passive, RejReason::TIMEOUT));
        assert_eq!((rej.message, rej.remote_comm_id.0), (MessageKind::OTHER, 0));
        assert_eq!(rej.private_data.as_bytes(), &[7; 148]);
        assert_eq!(pair.state(B, passive), StateName::Idle);
    }
}

/// A patient peer is not asked again early because the first waits are short.
#[test]
fn an_mra_ends_the_growth_of_the_waits() {
    let impatient = Config {
        first_wait: Some(Duration::from_millis(50)),
        retry_spread: 50,
        ..config(A)
    };
    let mut pair = Pair::with([impatient, config(B)], NetworkConfig::default(), 1);
    let (active, passive) = pair.request();
    let now = pair.now();
    pair.cms[B]
        .send_mra(now, passive, oarlock_wire::IbTimeout::truncate(22))
        .expect("a request waits");
    pair.drive_for(Duration::from_secs(1));
    assert_eq!(pair.state(A, active), StateName::MraReqRcvd);
    assert_eq!(named(&pair.sent, "REQ").len(), 2);
}
