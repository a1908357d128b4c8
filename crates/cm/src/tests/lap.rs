//! Alternate paths: who may ask, repetition, loss, patience, crossing, strangers, and how they end with the connection.

use std::time::Duration;

use oarlock_sim::NetworkConfig;
use oarlock_wire::cm::{AlternatePath, Apr, Lap, MessageKind, Mra, PrivateData, Rej};
use oarlock_wire::{AprStatus, CmMessage, IbTimeout, Qpn, RejReason, TransactionId};

use super::support::{A, B, Pair, QPN, av, config, gid, named, transmits};
use crate::{
    AlternatePathParams, Config, ConnId, DropReason, Error, Event, LapState, MessageName, StateName,
};

fn path(from: usize) -> AlternatePathParams {
    AlternatePathParams {
        private_data: vec![4, 5, 6],
        ..AlternatePathParams::new(AlternatePath {
            local_gid: gid(from),
            remote_gid: gid(1 - from),
            hop_limit: 3,
            ..AlternatePath::default()
        })
    }
}

fn load(pair: &mut Pair, side: usize, id: ConnId) {
    let now = pair.now();
    pair.cms[side]
        .load_alternate_path(now, id, path(side))
        .expect("connected");
}

fn answer(pair: &mut Pair, side: usize, id: ConnId, status: AprStatus) {
    let now = pair.now();
    pair.cms[side]
        .answer_alternate_path(now, id, status, &[], &[])
        .expect("a LAP waits");
}

fn lap_states(pair: &Pair, ids: [ConnId; 2]) -> [LapState; 2] {
    [A, B].map(|side| pair.cms[side].lap_state(ids[side]).expect("exists"))
}

/// The LAP that `from` might send for the connection.
fn lap(pair: &Pair, from: usize, ids: [ConnId; 2]) -> Lap {
    let comm_id = |side: usize| pair.cms[side].comm_id(ids[side]).expect("exists");
    Lap {
        local_comm_id: comm_id(from),
        remote_comm_id: comm_id(1 - from),
        remote_qpn: QPN[1 - from],
        ..Lap::default()
    }
}

#[test]
fn either_side_can_load_a_path_and_the_connection_lives_on() {
    for side in [A, B] {
        for status in [AprStatus::SUCCESS, AprStatus::REJECT] {
            let mut pair = Pair::new();
            let (active, passive) = pair.establish();
            let ids = [active, passive];
            load(&mut pair, side, ids[side]);
            pair.drive();
            let other = 1 - side;
            let Event::LapReceived { id, lap } = pair.event(other) else {
                panic!("no LAP")
            };
            assert_eq!((id, lap.alternate), (ids[other], path(side).path));
            assert_eq!(lap.remote_qpn, QPN[other]);
            assert_eq!(lap.private_data.as_bytes()[..4], [4, 5, 6, 0]);
            answer(&mut pair, other, ids[other], status);
            pair.drive();
            let Event::AprReceived { id, apr } = pair.event(side) else {
                panic!("no APR")
            };
            assert_eq!((id, apr.status), (ids[side], status));
            for end in [A, B] {
                assert_eq!(pair.state(end, ids[end]), StateName::Established);
                assert_eq!(pair.cms[end].footprint().1, 0, "no timer is left");
            }
            assert_eq!(lap_states(&pair, ids), [LapState::Idle; 2]);
        }
    }
}

#[test]
fn a_lost_apr_is_sent_again_and_the_caller_is_asked_once() {
    let mut pair = Pair::new();
    let (active, passive) = pair.establish();
    load(&mut pair, A, active);
    pair.drive();
    pair.network.partition(A, B);
    answer(&mut pair, B, passive, AprStatus::SUCCESS);
    pair.drive();
    pair.network.heal(A, B);
    pair.drive_for(Duration::from_secs(5));
    assert_eq!(pair.event_names(B), ["LapReceived"]);
    assert_eq!(pair.event_names(A), ["AprReceived"]);
    assert_eq!(pair.cms[B].counters().duplicate(MessageName::Lap), 1);
    // The next LAP is another one, even if it says the same.
    load(&mut pair, A, active);
    pair.drive();
    assert_eq!(pair.event_names(B), ["LapReceived"; 2]);
}

#[test]
fn a_lap_that_nobody_answers_ends_without_the_connection() {
    let mut pair = Pair::new();
    let (active, passive) = pair.establish();
    pair.network.partition(A, B);
    load(&mut pair, A, active);
    pair.drive_for(Duration::from_secs(120));
    assert_eq!(named(&pair.sent, "LAP").len(), 16);
    assert_eq!(pair.event(A), Event::LapError { id: active });
    assert_eq!(pair.state(A, active), StateName::Established);
    assert_eq!(lap_states(&pair, [active, passive]), [LapState::Idle; 2]);
    pair.network.heal(A, B);
    load(&mut pair, A, active);
    pair.drive();
    assert_eq!(pair.event_names(B), ["LapReceived"]);
}

#[test]
fn patience_of_the_asked_side_is_bounded_and_a_storm_of_mras_extends_it_once() {
    let configs = [A, B].map(|side| Config {
        longest_wait: Some(Duration::from_secs(20)),
        ..config(side)
    });
    let mut pair = Pair::with(configs, NetworkConfig::default(), 1);
    let (active, passive) = pair.establish();
    load(&mut pair, A, active);
    pair.drive();
    let asked_at = pair.now();
    let mra = Mra {
        local_comm_id: pair.cms[B].comm_id(passive).expect("exists"),
        remote_comm_id: pair.cms[A].comm_id(active).expect("exists"),
        message: MessageKind::OTHER,
        service_timeout: IbTimeout::MAX,
        private_data: PrivateData::ZERO,
    };
    for _ in 0..1000 {
        pair.inject_message(A, mra.clone());
        pair.drain(A);
    }
    assert_eq!(pair.event_names(A), ["MraReceived"]);
    assert_eq!(pair.cms[A].counters().duplicate(MessageName::Mra), 999);
    let next = pair.cms[A].poll_timeout().expect("armed");
    assert_eq!(next.saturating_since(asked_at), Duration::from_secs(20));
    assert_eq!(
        lap_states(&pair, [active, passive])[A],
        LapState::MraLapRcvd
    );
}

/// The same for the MRAs of a REQ and of a REP: one storm, one extension, within the bound.
#[test]
fn a_storm_of_mras_for_a_req_or_a_rep_extends_the_wait_once() {
    let mut pair = Pair::new();
    let (active, passive) = pair.request();
    let now = pair.now();
    let mra = |pair: &Pair, message| Mra {
        local_comm_id: pair.cms[B].comm_id(passive).expect("exists"),
        remote_comm_id: pair.cms[A].comm_id(active).expect("exists"),
        message,
        service_timeout: IbTimeout::MAX,
        private_data: PrivateData::ZERO,
    };
    let of_req = mra(&pair, MessageKind::REQ);
    for _ in 0..100 {
        pair.inject_message(A, of_req.clone());
    }
    assert_eq!(pair.state(A, active), StateName::MraReqRcvd);
    let wait = pair.cms[A].poll_timeout().expect("armed");
    assert_eq!(wait.saturating_since(now), Duration::from_secs(70));
    pair.accept(B, passive);
    let now = pair.now();
    let mut of_rep = mra(&pair, MessageKind::REP);
    std::mem::swap(&mut of_rep.local_comm_id, &mut of_rep.remote_comm_id);
    for _ in 0..100 {
        pair.inject_message(B, of_rep.clone());
    }
    assert_eq!(pair.state(B, passive), StateName::MraRepRcvd);
    let wait = pair.cms[B].poll_timeout().expect("armed");
    assert_eq!(wait.saturating_since(now), Duration::from_secs(70));
}

#[test]
fn when_both_ask_at_once_the_active_side_goes_first() {
    let mut pair = Pair::new();
    let (active, passive) = pair.establish();
    let ids = [active, passive];
    load(&mut pair, A, active);
    load(&mut pair, B, passive);
    pair.drive();
    assert_eq!(pair.event_names(B), ["LapError", "LapReceived"]);
    assert_eq!(pair.event_names(A), [""; 0]);
    assert_eq!(
        pair.cms[A]
            .counters()
            .dropped_of(MessageName::Lap, DropReason::CrossedLap),
        1
    );
    assert_eq!(
        lap_states(&pair, ids),
        [LapState::LapSent, LapState::LapRcvd]
    );
    answer(&mut pair, B, passive, AprStatus::SUCCESS);
    pair.drive();
    assert_eq!(pair.event_names(A), ["AprReceived"]);
    assert_eq!(lap_states(&pair, ids), [LapState::Idle; 2]);
}

#[test]
fn a_lap_for_another_queue_pair_is_answered_with_the_status_for_it() {
    let mut pair = Pair::new();
    let (active, passive) = pair.establish();
    let wrong = Lap {
        remote_qpn: Qpn::truncate(0x999),
        ..lap(&pair, A, [active, passive])
    };
    pair.inject_message(B, wrong);
    let sent = transmits(&mut pair.cms[B]);
    let [CmMessage::Apr(apr)] = &sent[..] else {
        panic!("{sent:?}")
    };
    assert_eq!(apr.status, AprStatus::INVALID_QPN);
    assert_eq!(pair.cms[B].poll_event(), None);
    assert_eq!(
        pair.cms[B]
            .counters()
            .dropped_of(MessageName::Lap, DropReason::QpnMismatch),
        1
    );
}

#[test]
fn a_lap_with_comm_ids_that_name_no_connection_is_answered_with_the_status_for_it() {
    let mut pair = Pair::new();
    let (active, passive) = pair.establish();
    let good = lap(&pair, A, [active, passive]);
    let wrong_local = Lap {
        local_comm_id: oarlock_wire::CommId(77),
        ..good.clone()
    };
    let wrong_remote = Lap {
        remote_comm_id: oarlock_wire::CommId(78),
        ..good
    };
    for wrong in [wrong_local, wrong_remote] {
        pair.inject_message(B, wrong.clone());
        let sent = transmits(&mut pair.cms[B]);
        let [CmMessage::Apr(apr)] = &sent[..] else {
            panic!("{sent:?}")
        };
        assert_eq!(
            (apr.status, apr.local_comm_id, apr.remote_comm_id),
            (
                AprStatus::INVALID_COMM_ID,
                wrong.remote_comm_id,
                wrong.local_comm_id
            )
        );
    }
    assert_eq!(
        pair.cms[B]
            .counters()
            .dropped_of(MessageName::Lap, DropReason::UnknownCommId),
        2
    );
    assert_eq!(pair.state(B, passive), StateName::Established);
}

#[test]
fn an_apr_that_answers_nothing_or_an_earlier_lap_is_dropped() {
    let mut pair = Pair::new();
    let (active, passive) = pair.establish();
    load(&mut pair, A, active);
    pair.drive();
    answer(&mut pair, B, passive, AprStatus::REJECT);
    pair.drive();
    let old = named(&pair.sent, "APR")[0].1;
    pair.events = Default::default();
    pair.inject(A, &old);
    assert_eq!(pair.event_names(A), [""; 0], "no LAP is out");
    load(&mut pair, A, active);
    pair.inject(A, &old);
    assert_eq!(
        pair.event_names(A),
        [""; 0],
        "it answers the LAP before this one"
    );
    assert_eq!(
        pair.cms[A]
            .counters()
            .dropped_of(MessageName::Apr, DropReason::UnexpectedInState),
        2
    );
}

#[test]
fn a_second_lap_while_the_first_waits_is_dropped() {
    let mut pair = Pair::new();
    let (active, passive) = pair.establish();
    let first = lap(&pair, A, [active, passive]);
    let second = Lap {
        private_data: PrivateData::from_slice(&[1]).expect("short"),
        ..first.clone()
    };
    pair.inject_message(B, first.clone());
    pair.inject_message(B, second);
    pair.inject_as(B, &av(B), TransactionId(0x8888), first);
    pair.drain(B);
    assert_eq!(pair.event_names(B), ["LapReceived"]);
    assert_eq!(
        pair.cms[B]
            .counters()
            .dropped_of(MessageName::Lap, DropReason::UnexpectedInState),
        2
    );
}

/// Facts of Linux, cm.c: a REJ ends an established connection unless a LAP of the peer is being dealt with.
#[test]
fn a_rej_ends_the_connection_only_if_no_lap_of_the_peer_waits() {
    for (lap_of, ends) in [(None, true), (Some(B), true), (Some(A), false)] {
        let mut pair = Pair::new();
        let (active, passive) = pair.establish();
        if let Some(side) = lap_of {
            load(&mut pair, side, [active, passive][side]);
            pair.drive();
        }
        let rej = Rej {
            local_comm_id: pair.cms[A].comm_id(active).expect("exists"),
            remote_comm_id: pair.cms[B].comm_id(passive).expect("exists"),
            message: MessageKind::OTHER,
            reason: RejReason::CONSUMER_DEFINED,
            ..Rej::default()
        };
        pair.inject_message(B, rej);
        let expected = if ends {
            StateName::Timewait
        } else {
            StateName::Established
        };
        assert_eq!(pair.state(B, passive), expected, "LAP of {lap_of:?}");
    }
}

#[test]
fn an_exchange_about_a_path_ends_with_its_connection() {
    for disconnects in [A, B] {
        let mut pair = Pair::new();
        let (active, passive) = pair.establish();
        let ids = [active, passive];
        load(&mut pair, A, active);
        pair.drive();
        pair.events = Default::default();
        pair.disconnect(disconnects, ids[disconnects]);
        pair.reply_disconnect(1 - disconnects, ids[1 - disconnects]);
        pair.drive_for(Duration::from_secs(200));
        for side in [A, B] {
            assert!(
                !pair.event_names(side).contains(&"LapError"),
                "the connection's end says it all"
            );
            assert_eq!(pair.state(side, ids[side]), StateName::Idle);
            let now = pair.now();
            assert_eq!(
                pair.cms[side].load_alternate_path(now, ids[side], path(side)),
                Err(Error::WrongState {
                    call: "load_alternate_path",
                    state: StateName::Idle
                })
            );
        }
        assert_eq!(named(&pair.sent, "LAP").len(), 1);
    }
}

#[test]
fn misuse_says_how_far_the_exchange_has_got() {
    let mut pair = Pair::new();
    let (active, passive) = pair.establish();
    let now = pair.now();
    let wrong = |call, state| Err(Error::WrongLapState { call, state });
    assert_eq!(
        pair.cms[B].answer_alternate_path(now, passive, AprStatus::SUCCESS, &[], &[]),
        wrong("answer_alternate_path", LapState::Idle)
    );
    assert_eq!(
        pair.cms[B].send_mra(now, passive, IbTimeout::MAX),
        wrong("send_mra", LapState::Idle)
    );
    load(&mut pair, A, active);
    assert_eq!(
        pair.cms[A].load_alternate_path(now, active, path(A)),
        wrong("load_alternate_path", LapState::LapSent)
    );
    let text = wrong("load_alternate_path", LapState::LapSent)
        .expect_err("an error")
        .to_string();
    assert_eq!(
        text,
        "load_alternate_path is not possible in state ESTABLISHED with LAP_SENT"
    );
    let long = AlternatePathParams {
        private_data: vec![0; 169],
        ..path(A)
    };
    assert_eq!(
        pair.cms[A].load_alternate_path(now, active, long),
        Err(Error::PrivateDataTooLong {
            given: 169,
            max: 168
        })
    );
    pair.drive();
    for (info, data, error) in [
        (73, 0, Error::AdditionalInfoTooLong { given: 73, max: 72 }),
        (
            0,
            149,
            Error::PrivateDataTooLong {
                given: 149,
                max: 148,
            },
        ),
    ] {
        assert_eq!(
            pair.cms[B].answer_alternate_path(
                now,
                passive,
                AprStatus::SUCCESS,
                &vec![0; info],
                &vec![0; data]
            ),
            Err(error)
        );
    }
    assert_eq!(
        pair.cms[B].lap_state(passive),
        Some(LapState::LapRcvd),
        "a refused call has changed nothing"
    );
}

#[test]
fn a_strangers_lap_apr_or_mra_does_nothing() {
    let mut pair = Pair::new();
    let (active, passive) = pair.establish();
    let ids = [active, passive];
    let stranger =
        oarlock_wire::AddressVector::new(gid(B), oarlock_wire::Gid::from_ip([10, 0, 0, 99].into()));
    let message = lap(&pair, A, ids);
    pair.inject_from(B, &stranger, message.clone());
    assert_eq!(transmits(&mut pair.cms[B]).len(), 0);
    load(&mut pair, B, passive);
    transmits(&mut pair.cms[B]);
    let (local_comm_id, remote_comm_id) = (message.local_comm_id, message.remote_comm_id);
    let apr = Apr {
        local_comm_id,
        remote_comm_id,
        ..Apr::default()
    };
    let mra = Mra {
        local_comm_id,
        remote_comm_id,
        message: MessageKind::OTHER,
        service_timeout: IbTimeout::MAX,
        private_data: PrivateData::ZERO,
    };
    pair.inject_from(B, &stranger, apr);
    pair.inject_from(B, &stranger, mra);
    assert_eq!(pair.cms[B].lap_state(passive), Some(LapState::LapSent));
    assert_eq!(
        pair.cms[B].counters().dropped(DropReason::ForeignAddress),
        3
    );
    assert_eq!(pair.cms[B].poll_event(), None);
}
