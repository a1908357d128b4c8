//! Limits, malformed input, many connections.

use std::time::Duration;

use oarlock_sim::{NetworkConfig, Rng};
use oarlock_wire::{CmMessage, Qpn, Time};

use super::support::{A, B, Pair, accept_params, av, config, connect_params, named, transmits};
use crate::{Config, ConnectParams, DropReason, Error, Event, MessageName};

fn connect_from(pair: &mut Pair, qpn: u32) {
    let now = pair.now();
    pair.cms[A]
        .connect(
            now,
            ConnectParams {
                local_qpn: Qpn::truncate(qpn),
                ..connect_params()
            },
        )
        .expect("correct");
    pair.drive();
}

#[test]
fn half_open_connections_are_limited_and_a_decision_makes_room() {
    let mut pair = Pair::with(
        [
            config(A),
            Config {
                max_half_open: 2,
                ..config(B)
            },
        ],
        NetworkConfig::default(),
        1,
    );
    for qpn in 1..=3 {
        connect_from(&mut pair, qpn);
    }
    assert_eq!((pair.cms[B].half_open(), pair.cms[B].connections()), (2, 2));
    assert_eq!(
        pair.cms[B].counters().dropped(DropReason::TooManyHalfOpen),
        1
    );
    let Event::ReqReceived { id, .. } = pair.event(B) else {
        panic!("no request")
    };
    pair.cms[B]
        .accept(pair.clock.now(), id, accept_params())
        .expect("a request waits");
    assert_eq!(
        pair.cms[B].half_open(),
        2,
        "a REP that is out is half-open still"
    );
    pair.cms[B]
        .notify_established(pair.clock.now(), id)
        .expect("our REP is out");
    assert_eq!(pair.cms[B].half_open(), 1);
    // The third REQ is repeated, and there is room.
    pair.drive_for(Duration::from_secs(5));
    assert_eq!((pair.cms[B].half_open(), pair.cms[B].connections()), (2, 3));
}

#[test]
fn connections_are_limited_on_both_sides() {
    let limit = |side| Config {
        max_connections: 1,
        ..config(side)
    };
    let mut pair = Pair::with([config(A), limit(B)], NetworkConfig::default(), 1);
    connect_from(&mut pair, 1);
    connect_from(&mut pair, 2);
    assert_eq!(pair.cms[B].connections(), 1);
    assert_eq!(
        pair.cms[B]
            .counters()
            .dropped(DropReason::TooManyConnections),
        1
    );

    let mut pair = Pair::with([limit(A), config(B)], NetworkConfig::default(), 1);
    connect_from(&mut pair, 1);
    let now = pair.now();
    assert_eq!(
        pair.cms[A].connect(now, connect_params()),
        Err(Error::TooManyConnections { max: 1 })
    );
}

#[test]
fn a_flood_of_requests_costs_no_more_than_the_limit() {
    let mut pair = Pair::with(
        [
            config(A),
            Config {
                max_half_open: 100,
                ..config(B)
            },
        ],
        NetworkConfig::default(),
        1,
    );
    let template = crate::conn::active::request(
        &connect_params(),
        oarlock_wire::CommId(1),
        config(A).ca_guid,
    )
    .expect("correct");
    for n in 1..=5000 {
        let mut req = template.clone();
        req.local_comm_id.0 = n;
        req.local_qpn = Qpn::truncate(n);
        pair.inject_message(B, req);
    }
    assert_eq!(pair.cms[B].connections(), 100);
    assert_eq!(pair.cms[B].footprint(), ([100, 100, 100, 0], 0));
    assert_eq!(
        pair.cms[B].counters().dropped(DropReason::TooManyHalfOpen),
        4900
    );
}

#[test]
fn attributes_that_are_no_messages_are_counted() {
    let mut pair = Pair::new();
    pair.request();
    let mut mad = named(&pair.sent, "REQ")[0].1.mad;
    for attribute in [0x01, 0x0F, 0x1B, 0xFF] {
        mad[16..18].copy_from_slice(&u16::to_be_bytes(attribute));
        pair.cms[B].handle_mad(Time::ZERO, &av(B), &mad);
    }
    assert_eq!(pair.cms[B].counters().malformed("unsupported_attribute"), 4);
    mad[1] = 0x03;
    pair.cms[B].handle_mad(Time::ZERO, &av(B), &mad);
    assert_eq!(pair.cms[B].counters().malformed("unsupported_class"), 1);
    assert_eq!(transmits(&mut pair.cms[B]).len(), 0);
}

#[test]
fn any_bytes_and_any_single_flipped_bit_are_survived() {
    let mut pair = Pair::new();
    let (active, passive) = pair.establish();
    pair.disconnect(A, active);
    pair.reply_disconnect(B, passive);
    let now = pair.now();
    for (from, transmit) in pair.sent.clone() {
        for bit in 0..transmit.mad.len() * 8 {
            let mut mad = transmit.mad;
            mad[bit / 8] ^= 1 << (bit % 8);
            pair.cms[1 - from].handle_mad(now, &transmit.av.reversed(), &mad);
        }
    }
    let mut rng = Rng::new(5);
    for attribute in 0x10..0x1B {
        for _ in 0..200 {
            let mut mad = [0; 256];
            rng.fill(&mut mad);
            mad[..4].copy_from_slice(&[1, 7, 2, 3]);
            mad[16..18].copy_from_slice(&u16::to_be_bytes(attribute));
            pair.cms[B].handle_mad(now, &av(B), &mad);
        }
    }
    while pair.cms[B].poll_event().is_some() {}
    transmits(&mut pair.cms[B]);
}

#[test]
fn ten_thousand_connections_each_keep_their_own_timer() {
    let mut pair = Pair::new();
    for n in 0..10_000u32 {
        let now = Time::from_nanos(u64::from(n) * 1000);
        pair.cms[A]
            .connect(
                now,
                ConnectParams {
                    local_qpn: Qpn::truncate(n + 2),
                    ..connect_params()
                },
            )
            .expect("correct");
    }
    let first: Vec<CmMessage> = transmits(&mut pair.cms[A]);
    let mut again = Vec::new();
    let mut deadlines = 0;
    while let Some(due) = pair.cms[A]
        .poll_timeout()
        .filter(|due| *due < Time::ZERO + Duration::from_secs(9))
    {
        deadlines += 1;
        pair.cms[A].handle_timeout(due);
        again.extend(transmits(&mut pair.cms[A]));
    }
    assert_eq!(deadlines, 10_000);
    assert_eq!(first, again, "in the order in which they were sent");
    assert_eq!(pair.cms[A].counters().retried(MessageName::Req), 10_000);
    let mut comm_ids: Vec<_> = first.iter().map(CmMessage::local_comm_id).collect();
    comm_ids.sort_unstable();
    comm_ids.dedup();
    assert_eq!(
        comm_ids.len(),
        10_000,
        "comm ids are unique among live connections"
    );
}

/// What a connection costs beside its index entries and the message it may have out (280 bytes).
#[test]
fn an_idle_connection_is_small() {
    let size = size_of::<crate::conn::Conn>();
    assert!(size <= 300, "{size} bytes");
}
