//! Every row of the transition table, executed.

use std::time::Duration;

use oarlock_sim::assert_snapshot;
use oarlock_wire::cm::{
    Apr, CmMessage, Drep, Dreq, Lap, MessageKind, Mra, PrivateData, Rej, Rep, Req, Rtu, SidrRep,
    SidrReq,
};
use oarlock_wire::mad::MadHeader;
use oarlock_wire::{AprStatus, CommId, Guid, IbTimeout, Qpn, RejReason, TransactionId};

use super::reach::{alternate_path, answer_lap, reach, receive_lap};
use super::support::{
    A, B, GUID, Pair, QPN, SERVICE, accept_params, av, connect_params, gid, named, parse,
};
use crate::table::{
    Answer, Input, Next, Place, Transition, transition, transitions, without_connection,
};
use crate::{
    Config, ConnId, ConnectParams, DropReason, Error, SidrReplyParams, StateName, Transmit,
};

#[test]
fn the_table_is_the_reviewed_one() {
    let mut text = format!(
        "{:<13}  {:<23}  {:<30}  {:<13}  {:<9}  events\n",
        "place", "input", "answer", "next", "sends"
    );
    for transition in transitions() {
        text += &format!("{transition}\n");
    }
    assert_snapshot(
        concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/src/tests/snapshots/transition_table.txt"
        ),
        &text,
    );
}

#[test]
fn every_input_in_every_state_does_what_the_table_says() {
    let mut executed = 0;
    for place in Place::ALL {
        for input in Input::ALL.iter().filter(|input| !input.makes_one()) {
            for side in sides(*place, *input) {
                if let Some(scene) = Scene::new(*place, *input, side) {
                    scene.check(transition(*place, *input));
                    executed += 1;
                } else {
                    assert_eq!(
                        transition(*place, *input).answer,
                        Answer::NoTimer,
                        "{place} {input}: not executed"
                    );
                }
            }
        }
    }
    // 21 places and 37 inputs, less the timers that do not exist, and some on both sides.
    assert!(executed > 900, "{executed} rows executed");
}

#[test]
fn every_message_without_a_connection_does_what_the_table_says() {
    for transition in Input::ALL
        .iter()
        .filter(|input| !input.makes_one())
        .filter_map(|input| without_connection(*input))
    {
        let mut pair = Pair::new();
        let local = CommId(0x1234);
        let message = message(
            transition.input,
            &Names {
                local,
                remote: CommId(0x4321),
                guid: GUID[A],
                qpn: QPN[A],
                local_qpn: QPN[B],
                has_peer: true,
                lap_tid: TransactionId(0x7777),
            },
        );
        let before = pair.cms[B].counters().clone();
        pair.inject_message(B, message.expect("only messages reach no connection"));
        pair.drain(B);
        let sent: Vec<_> = pair
            .messages_since(0)
            .into_iter()
            .map(|(_, name)| name)
            .collect();
        assert_eq!(
            sent,
            transition
                .sends
                .iter()
                .map(|m| m.as_str())
                .collect::<Vec<_>>(),
            "{transition}"
        );
        assert_eq!(pair.event_names(B), transition.events, "{transition}");
        let made = usize::from(transition.answer == Answer::Advance);
        assert_eq!(pair.cms[B].connections(), made, "{transition}");
        if let Answer::Drop(reason) = transition.answer {
            assert_eq!(
                pair.cms[B].counters().dropped(reason),
                before.dropped(reason) + 1,
                "{transition}"
            );
        }
    }
}

/// The side on which a state exists; where both know it, both are tried unless the input belongs to one of them.
pub(super) fn sides(place: Place, input: Input) -> Vec<usize> {
    let by_place: &[usize] = match place {
        Place::ReqSent
        | Place::MraReqRcvd
        | Place::RepRcvd
        | Place::MraRepSent
        | Place::SidrReqSent
        | Place::SidrRepRcvd => &[A],
        Place::ReqRcvd
        | Place::MraReqSent
        | Place::RepSent
        | Place::MraRepRcvd
        | Place::SidrReqRcvd
        | Place::SidrRepSent => &[B],
        _ => &[A, B],
    };
    // A is the active side of every connection.
    let by_input: &[usize] = match input {
        Input::Rep | Input::RepOfStaleQp if place.state() == StateName::Established => &[A],
        Input::LapAgain if matches!(place, Place::LapSent | Place::MraLapRcvd) => &[A],
        Input::Lap if place.state() == StateName::Established => &[A],
        Input::LapOfActive if place.state() == StateName::Established => &[B],
        _ => &[A, B],
    };
    by_place
        .iter()
        .copied()
        .filter(|side| by_input.contains(side))
        .collect()
}

/// A connection in a state, and an input that is about to happen to it.
pub(super) struct Scene {
    pub(super) pair: Pair,
    side: usize,
    pub(super) id: ConnId,
    input: Input,
    pub(super) names: Names,
    /// What the input is a repetition of.
    recorded: Option<(usize, Transmit)>,
}

/// What a message for the connection says.
pub(super) struct Names {
    local: CommId,
    remote: CommId,
    guid: Guid,
    qpn: Qpn,
    local_qpn: Qpn,
    has_peer: bool,
    /// The transaction of the last LAP of the connection that is addressed.
    lap_tid: TransactionId,
}

impl Scene {
    /// `None` if the input cannot happen in this state, which only holds for timers that are not armed.
    pub(super) fn new(place: Place, input: Input, side: usize) -> Option<Self> {
        let state = place.state();
        let retries = if input == Input::LastReplyTimeout {
            0
        } else {
            15
        };
        let config = |side| Config {
            dreq_retries: Some(retries),
            rep_retries: Some(retries),
            ..super::support::config(side)
        };
        let mut pair = Pair::with([config(A), config(B)], Default::default(), 1);
        let deadline = (input == Input::Deadline).then_some(Duration::from_millis(1));
        let params = ConnectParams {
            max_cm_retries: retries,
            deadline,
            ..connect_params()
        };
        let (active, passive) = reach(&mut pair, place, side, params);
        if input == Input::LapAgain && place == Place::Established {
            let ids = [active, passive.expect("reached on both sides")];
            receive_lap(&mut pair, side, ids);
            answer_lap(&mut pair, side, ids[side]);
        }
        let id = if side == A {
            active
        } else {
            passive.expect("reached on both sides")
        };
        assert_eq!(pair.state(side, id), state, "the scene is set");
        assert_eq!(pair.cms[side].lap_state(id), Some(place.lap()));

        let other = passive
            .filter(|_| side == A)
            .map_or(CommId(0x4321), |passive| {
                pair.cms[B].comm_id(passive).expect("exists")
            });
        let remote = if side == A {
            other
        } else {
            pair.cms[A].comm_id(active).expect("exists")
        };
        let names = Names {
            local: pair.cms[side].comm_id(id).expect("exists"),
            remote,
            guid: GUID[1 - side],
            qpn: QPN[1 - side],
            // A passive connection has no queue pair before it accepts; DREQs name none then.
            local_qpn: if matches!(state, StateName::ReqRcvd | StateName::MraReqSent) {
                Qpn::QP0
            } else {
                QPN[side]
            },
            has_peer: !matches!(
                place,
                Place::ReqSent
                    | Place::MraReqRcvd
                    | Place::SidrReqSent
                    | Place::SidrRepRcvd
                    | Place::SidrReqRcvd
                    | Place::SidrRepSent
            ),
            lap_tid: named(&pair.sent, "LAP")
                .last()
                .map_or(TransactionId(0x7777), |(_, lap)| {
                    MadHeader::parse(&lap.mad).transaction_id
                }),
        };
        let last_lap = named(&pair.sent, "LAP").last().copied();
        let sidr_req = named(&pair.sent, "SIDR_REQ").last().copied();
        let timer_exists = match input {
            Input::ReplyTimeout | Input::LastReplyTimeout => {
                pair.cms[side].poll_timeout().is_some() && state != StateName::Timewait
            }
            Input::TimewaitOver => state == StateName::Timewait,
            Input::Deadline => {
                matches!(
                    place,
                    Place::ReqSent | Place::MraReqRcvd | Place::SidrReqSent
                )
            }
            _ => true,
        };
        pair.sent.clear();
        pair.events = Default::default();
        timer_exists.then_some(Self {
            pair,
            side,
            id,
            input,
            names,
            recorded: match input {
                Input::LapAgain => last_lap.filter(|(from, _)| *from != side),
                Input::SidrReq => sidr_req,
                _ => None,
            },
        })
    }

    fn check(mut self, row: Transition) {
        let before = self.pair.cms[self.side].counters().clone();
        let live_before = self.pair.cms[self.side].connections();
        if self.input == Input::RepOfStaleQp {
            self.add_connection_with_the_peers_qp();
        }
        let result = self.apply();
        self.pair.drain(self.side);

        let sent: Vec<_> = self
            .pair
            .messages_since(0)
            .into_iter()
            .map(|(_, name)| name)
            .collect();
        assert_eq!(
            sent,
            row.sends
                .iter()
                .map(|message| message.as_str())
                .collect::<Vec<_>>(),
            "sent: {row}"
        );
        assert_eq!(
            self.pair.event_names(self.side),
            row.events,
            "events: {row}"
        );
        let after = self.pair.cms[self.side]
            .state(self.id)
            .zip(self.pair.cms[self.side].lap_state(self.id));
        let known_as = |place: Place| Some((place.state(), place.lap()));
        match row.next {
            Next::Same => assert_eq!(after, row.place.and_then(known_as), "next: {row}"),
            Next::To(next) => assert_eq!(after, known_as(next), "next: {row}"),
            Next::Gone => {
                assert_eq!(after, None, "next: {row}");
                assert_eq!(
                    self.pair.cms[self.side].connections(),
                    live_before - 1,
                    "next: {row}"
                );
            }
        }
        let counters = self.pair.cms[self.side].counters();
        let dropped = |reason: DropReason| counters.dropped(reason) - before.dropped(reason);
        match row.answer {
            Answer::Drop(reason) => assert_eq!(dropped(reason), 1, "counted: {row}"),
            Answer::Misuse => assert!(
                matches!(
                    result,
                    Err(Error::WrongState { .. } | Error::WrongLapState { .. })
                ),
                "misuse: {row}: {result:?}"
            ),
            Answer::Advance | Answer::Again => {
                assert_eq!(result, Ok(()), "{row}");
                let by_caller = u64::from(self.input == Input::DropRequest);
                let all: u64 = DropReason::ALL.iter().map(|reason| dropped(*reason)).sum();
                assert_eq!(all, by_caller, "nothing is dropped: {row}");
            }
            Answer::NotOurs | Answer::NoTimer => {}
        }
    }

    fn apply(&mut self) -> Result<(), Error> {
        let (side, id) = (self.side, self.id);
        if let Some((_, transmit)) = self.recorded {
            let now = self.pair.now();
            self.pair.cms[side].handle_mad(now, &transmit.av.reversed(), &transmit.mad);
            return Ok(());
        }
        if let Some(message) = message(self.input, &self.names) {
            let tid = match self.input {
                Input::Apr => self.names.lap_tid,
                _ => TransactionId(0x7777),
            };
            self.pair.inject_as(side, &av(side), tid, message);
            return Ok(());
        }
        let now = self.pair.now();
        let cm = &mut self.pair.cms[side];
        match self.input {
            Input::Accept => cm.accept(now, id, accept_params()),
            Input::Establish => cm.establish(now, id, &[]),
            Input::NotifyEstablished => cm.notify_established(now, id),
            Input::Reject => cm.reject(now, id, RejReason::CONSUMER_DEFINED, &[], &[]),
            Input::SendMra => cm.send_mra(now, id, IbTimeout::truncate(24)),
            Input::LoadAlternatePath => cm.load_alternate_path(now, id, alternate_path(side)),
            Input::AnswerAlternatePath => {
                cm.answer_alternate_path(now, id, AprStatus::SUCCESS, &[], &[])
            }
            Input::SidrReply => cm.sidr_reply(now, id, SidrReplyParams::default()),
            Input::Disconnect => cm.disconnect(now, id, &[]),
            Input::ReplyDisconnect => cm.reply_disconnect(now, id, &[]),
            Input::DropRequest => cm.drop_request(now, id),
            Input::Destroy => {
                cm.destroy(now, id);
                Ok(())
            }
            Input::ReplyTimeout
            | Input::LastReplyTimeout
            | Input::Deadline
            | Input::TimewaitOver => {
                self.pair.fire_timer(side);
                Ok(())
            }
            other => unreachable!("{other} is a message"),
        }
    }

    /// Another connection of this side whose peer has the queue pair that the next REP will name.
    fn add_connection_with_the_peers_qp(&mut self) {
        let Pair { cms, clock, .. } = &mut self.pair;
        let now = clock.now();
        let cm = &mut cms[self.side];
        let other = cm
            .connect(
                now,
                ConnectParams {
                    av: av(self.side),
                    local_qpn: Qpn::truncate(0x55),
                    ..connect_params()
                },
            )
            .expect("correct");
        let remote_comm_id = cm.comm_id(other).expect("exists");
        let (local_qpn, local_ca_guid) = (Qpn::truncate(STALE_QPN), self.names.guid);
        self.pair.inject_message(
            self.side,
            Rep {
                local_comm_id: CommId(0x5555),
                remote_comm_id,
                local_qpn,
                local_ca_guid,
                ..Rep::default()
            },
        );
        self.pair.cms[self.side]
            .establish(now, other, &[])
            .expect("a reply waits");
        self.pair.drain(self.side);
        self.pair.sent.clear();
        self.pair.events = Default::default();
    }
}

/// A queue pair of the peer that is not the connection's.
const STALE_QPN: u32 = 0x66;

/// The message that an input is; `None` for calls and timers.
pub(super) fn message(input: Input, names: &Names) -> Option<CmMessage> {
    // As the peer writes them.
    let (local_comm_id, remote_comm_id) = (names.remote, names.local);
    let rej = |reason| Rej {
        local_comm_id,
        remote_comm_id,
        message: if names.has_peer {
            MessageKind::OTHER
        } else {
            MessageKind::REQ
        },
        reason,
        ..Rej::default()
    };
    let mra = |message| Mra {
        local_comm_id,
        remote_comm_id,
        message,
        service_timeout: IbTimeout::truncate(24),
        private_data: PrivateData::ZERO,
    };
    let rep = |qpn| Rep {
        local_comm_id,
        remote_comm_id,
        local_qpn: qpn,
        local_ca_guid: names.guid,
        ..Rep::default()
    };
    let req = |comm_id| {
        let mut req: Req =
            crate::conn::active::request(&connect_params(), comm_id, names.guid).expect("correct");
        let to = if names.guid == GUID[A] { B } else { A };
        (req.primary.local_gid, req.primary.remote_gid) = (gid(1 - to), gid(to));
        req.local_qpn = names.qpn;
        req
    };
    let dreq = |remote_qpn| Dreq {
        local_comm_id,
        remote_comm_id,
        remote_qpn,
        ..Dreq::default()
    };
    let lap = |remote_qpn| Lap {
        local_comm_id,
        remote_comm_id,
        remote_qpn,
        ..Lap::default()
    };
    Some(match input {
        Input::ReqAgain => req(local_comm_id).into(),
        Input::ReqOfSameQp => req(CommId(local_comm_id.0 ^ 0xFFFF)).into(),
        Input::MraOfReq => mra(MessageKind::REQ).into(),
        Input::MraOfRep => mra(MessageKind::REP).into(),
        Input::MraOfLap => mra(MessageKind::OTHER).into(),
        Input::Lap | Input::LapOfActive | Input::LapAgain => lap(names.local_qpn).into(),
        Input::LapOfOtherQp => lap(Qpn::truncate(0x9999)).into(),
        Input::Apr => Apr {
            local_comm_id,
            remote_comm_id,
            ..Apr::default()
        }
        .into(),
        Input::SidrReq => SidrReq {
            request_id: local_comm_id,
            service_id: SERVICE,
            ..SidrReq::default()
        }
        .into(),
        Input::SidrRep => SidrRep {
            request_id: remote_comm_id,
            ..SidrRep::default()
        }
        .into(),
        Input::Rep => rep(names.qpn).into(),
        Input::RepOfStaleQp => rep(Qpn::truncate(STALE_QPN)).into(),
        Input::Rtu => Rtu {
            local_comm_id,
            remote_comm_id,
            ..Rtu::default()
        }
        .into(),
        Input::Rej => rej(RejReason::CONSUMER_DEFINED).into(),
        Input::RejStale => rej(RejReason::STALE_CONNECTION).into(),
        Input::RejTimeout => {
            let additional_info =
                oarlock_wire::Ari::from_slice(&names.guid.0.to_be_bytes()).expect("8 bytes");
            Rej {
                additional_info,
                ..rej(RejReason::TIMEOUT)
            }
            .into()
        }
        Input::Dreq => dreq(names.local_qpn).into(),
        Input::DreqOfOtherQp => dreq(Qpn::truncate(0x9999)).into(),
        Input::Drep => Drep {
            local_comm_id,
            remote_comm_id,
            ..Drep::default()
        }
        .into(),
        _ => return None,
    })
}

#[test]
fn every_recorded_message_again_in_every_state_never_makes_a_second_connection_of_a_live_one() {
    for place in Place::ALL {
        for side in sides(*place, Input::Dreq) {
            let mut pair = Pair::new();
            let state = place.state();
            let (active, passive) = reach(&mut pair, *place, side, connect_params());
            let id = if side == A { Some(active) } else { passive }.expect("reached");
            let received: Vec<_> = pair
                .sent
                .iter()
                .filter(|(from, _)| *from != side)
                .copied()
                .collect();
            let before = pair.cms[side].connections();
            pair.events = Default::default();
            for (_, transmit) in received {
                let name = parse(&transmit).name();
                pair.inject(side, &transmit);
                let told = pair.event_names(side);
                let new_request = name == "REQ" && matches!(place, Place::Timewait | Place::Idle);
                assert_eq!(
                    told,
                    if new_request {
                        vec!["ReqReceived"]
                    } else {
                        vec![]
                    },
                    "{place}: {name} again"
                );
                assert_eq!(
                    pair.cms[side].connections(),
                    before + usize::from(new_request),
                    "{place}: {name} again"
                );
                assert_eq!(pair.state(side, id), state, "{place}: {name} again");
                assert_eq!(pair.cms[side].lap_state(id), Some(place.lap()));
                if new_request {
                    forget_request(&mut pair, side);
                    assert_eq!(pair.cms[side].connections(), before);
                }
                pair.events = Default::default();
            }
        }
    }
}

/// Forgets the request that a late duplicate REQ became.
fn forget_request(pair: &mut Pair, side: usize) {
    let now = pair.now();
    let crate::Event::ReqReceived { id, .. } = pair.event(side) else {
        panic!("no request")
    };
    pair.cms[side]
        .drop_request(now, id)
        .expect("a request waits");
}
