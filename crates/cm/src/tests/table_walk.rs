//! Every row of the transition table, executed.

use std::time::Duration;

use oarlock_sim::assert_snapshot;
use oarlock_wire::cm::{CmMessage, Drep, Dreq, MessageKind, Mra, PrivateData, Rej, Rep, Req, Rtu};
use oarlock_wire::{CommId, Guid, IbTimeout, Qpn, RejReason};

use super::support::{A, B, GUID, Pair, QPN, accept_params, av, connect_params, gid, named, parse};
use crate::table::{Answer, Input, Next, Transition, transition, transitions, without_connection};
use crate::{Config, ConnId, ConnectParams, DropReason, Error, StateName};

#[test]
fn the_table_is_the_reviewed_one() {
    let mut text = format!(
        "{:<12}  {:<20}  {:<30}  {:<12}  {:<9}  event\n",
        "state", "input", "answer", "next", "sends"
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
    for state in StateName::ALL {
        for input in Input::ALL {
            for side in sides(*state, *input) {
                if let Some(scene) = Scene::new(*state, *input, side) {
                    scene.check(transition(*state, *input));
                    executed += 1;
                } else {
                    assert_eq!(
                        transition(*state, *input).answer,
                        Answer::NoTimer,
                        "{state} {input}: not executed"
                    );
                }
            }
        }
    }
    // 13 states and 26 inputs, less the timers that do not exist, and some on both sides.
    assert!(executed > 300, "{executed} rows executed");
}

#[test]
fn every_message_without_a_connection_does_what_the_table_says() {
    for transition in Input::ALL
        .iter()
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
        assert_eq!(
            pair.event_names(B),
            transition.event.into_iter().collect::<Vec<_>>(),
            "{transition}"
        );
        let made = usize::from(transition.next == Next::To(StateName::ReqRcvd));
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
pub(super) fn sides(state: StateName, input: Input) -> Vec<usize> {
    let by_state: &[usize] = match state {
        StateName::ReqSent | StateName::MraReqRcvd | StateName::RepRcvd | StateName::MraRepSent => {
            &[A]
        }
        StateName::ReqRcvd | StateName::MraReqSent | StateName::RepSent | StateName::MraRepRcvd => {
            &[B]
        }
        _ => &[A, B],
    };
    let passive_of_rep =
        matches!(input, Input::Rep | Input::RepOfStaleQp) && state == StateName::Established;
    by_state
        .iter()
        .copied()
        .filter(|side| !(passive_of_rep && *side == B))
        .collect()
}

/// A connection in a state, and an input that is about to happen to it.
pub(super) struct Scene {
    pub(super) pair: Pair,
    side: usize,
    pub(super) id: ConnId,
    input: Input,
    pub(super) names: Names,
}

/// What a message for the connection says.
pub(super) struct Names {
    local: CommId,
    remote: CommId,
    guid: Guid,
    qpn: Qpn,
    local_qpn: Qpn,
    has_peer: bool,
}

impl Scene {
    /// `None` if the input cannot happen in this state, which only holds for timers that are not armed.
    pub(super) fn new(state: StateName, input: Input, side: usize) -> Option<Self> {
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
        let (active, passive) = reach(
            &mut pair,
            state,
            side,
            ConnectParams {
                max_cm_retries: retries,
                deadline,
                ..connect_params()
            },
        );
        let id = if side == A {
            active
        } else {
            passive.expect("reached on both sides")
        };
        assert_eq!(pair.state(side, id), state, "the scene is set");

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
            has_peer: !matches!(state, StateName::ReqSent | StateName::MraReqRcvd),
        };
        let timer_exists = match input {
            Input::ReplyTimeout | Input::LastReplyTimeout => {
                pair.cms[side].poll_timeout().is_some() && state != StateName::Timewait
            }
            Input::TimewaitOver => state == StateName::Timewait,
            Input::Deadline => matches!(state, StateName::ReqSent | StateName::MraReqRcvd),
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
            row.event.into_iter().collect::<Vec<_>>(),
            "events: {row}"
        );
        let after = self.pair.cms[self.side].state(self.id);
        match row.next {
            Next::Same => assert_eq!(after, row.state, "next: {row}"),
            Next::To(next) => assert_eq!(after, Some(next), "next: {row}"),
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
                matches!(result, Err(Error::WrongState { .. })),
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
        if let Some(message) = message(self.input, &self.names) {
            self.pair.inject_message(side, message);
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
    Some(match input {
        Input::ReqAgain => req(local_comm_id).into(),
        Input::ReqOfSameQp => req(CommId(local_comm_id.0 ^ 0xFFFF)).into(),
        Input::MraOfReq => mra(MessageKind::REQ).into(),
        Input::MraOfRep => mra(MessageKind::REP).into(),
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

/// Brings a connection on `side` into `state`, by real exchanges.
fn reach(
    pair: &mut Pair,
    state: StateName,
    side: usize,
    params: ConnectParams,
) -> (ConnId, Option<ConnId>) {
    let now = pair.now();
    // Both sides must be able to be asked.
    pair.cms[A]
        .listen(super::support::SERVICE)
        .expect("the first listener");
    let active = pair.cms[A].connect(now, params).expect("correct");
    if state == StateName::ReqSent {
        pair.drain(A);
        return (active, None);
    }
    if state == StateName::MraReqRcvd {
        pair.drain(A);
        let remote_comm_id = pair.cms[A].comm_id(active).expect("exists");
        pair.inject_message(
            A,
            Mra {
                remote_comm_id,
                ..mra_of_req()
            },
        );
        pair.drain(A);
        return (active, None);
    }
    pair.drive();
    let crate::Event::ReqReceived { id: passive, .. } = pair.event(B) else {
        panic!("no request")
    };
    let both = (active, Some(passive));
    match state {
        StateName::ReqRcvd => return both,
        StateName::MraReqSent => {
            pair.cms[B]
                .send_mra(now, passive, IbTimeout::truncate(24))
                .expect("a request waits");
            return both;
        }
        _ => {}
    }
    pair.accept(B, passive);
    match state {
        StateName::RepSent | StateName::RepRcvd => return both,
        StateName::MraRepSent | StateName::MraRepRcvd => {
            pair.cms[A]
                .send_mra(pair.clock.now(), active, IbTimeout::truncate(24))
                .expect("a reply waits");
            let rep = named(&pair.sent, "REP")[0].1;
            pair.inject(A, &rep);
            pair.drive();
            return both;
        }
        _ => {}
    }
    pair.complete(A, active);
    let ids = [active, passive];
    if state == StateName::Established {
        return both;
    }
    // In DREQ_SENT and beyond, `side` has disconnected; in DREQ_RCVD the other one has.
    let first = if state == StateName::DreqRcvd {
        1 - side
    } else {
        side
    };
    pair.disconnect(first, ids[first]);
    if matches!(state, StateName::DreqSent | StateName::DreqRcvd) {
        return both;
    }
    pair.reply_disconnect(1 - side, ids[1 - side]);
    if state == StateName::Idle {
        pair.fire_timer(side);
        pair.drain(side);
    }
    both
}

fn mra_of_req() -> Mra {
    Mra {
        local_comm_id: CommId(0x4321),
        remote_comm_id: CommId(0),
        message: MessageKind::REQ,
        service_timeout: IbTimeout::truncate(4),
        private_data: PrivateData::ZERO,
    }
}

#[test]
fn every_recorded_message_again_in_every_state_never_makes_a_second_connection_of_a_live_one() {
    for state in StateName::ALL {
        for side in sides(*state, Input::Dreq) {
            let mut pair = Pair::new();
            let (active, passive) = reach(&mut pair, *state, side, connect_params());
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
                let new_request =
                    name == "REQ" && matches!(state, StateName::Timewait | StateName::Idle);
                assert_eq!(
                    told,
                    if new_request {
                        vec!["ReqReceived"]
                    } else {
                        vec![]
                    },
                    "{state}: {name} again"
                );
                assert_eq!(
                    pair.cms[side].connections(),
                    before + usize::from(new_request),
                    "{state}: {name} again"
                );
                assert_eq!(pair.state(side, id), *state, "{state}: {name} again");
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
