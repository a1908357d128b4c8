//! The ends of a connection: DREQ and DREP, REJ, and destroying an id.

use oarlock_wire::cm::{Ari, Drep, Dreq, MessageKind, Mra, PrivateData, Rej};
use oarlock_wire::units::{IbTimeout, RejReason, SidrStatus, TransactionId};

use super::lap::Alternate;
use super::{
    Cx, Outcome, Peer, Resend, Role, State, active, lap, passive, sidr, timewait, wrong_state,
};
use crate::timers::Timer;
use crate::{DropReason, Event, MessageName};

/// The caller disconnects: sends the DREQ.
pub(crate) fn disconnect(state: State, private_data: PrivateData<220>, cx: &mut Cx<'_>) -> Outcome {
    match state {
        State::Established { peer, .. } => {
            let wait = cx.config.dreq_wait.unwrap_or(cx.base.response_wait);
            let retries = cx.config.dreq_retries.unwrap_or(cx.base.max_cm_retries);
            let dreq = dreq(&peer, private_data, cx);
            let request = cx.send_and_wait(cx.base.own_tid, dreq, wait, retries);
            (State::DreqSent { peer, request }, Ok(()))
        }
        other => wrong_state(other, "disconnect"),
    }
}

fn dreq(peer: &Peer, private_data: PrivateData<220>, cx: &Cx<'_>) -> Dreq {
    Dreq {
        local_comm_id: cx.base.local_comm_id,
        remote_comm_id: peer.comm_id,
        remote_qpn: peer.qpn,
        private_data,
    }
}

/// The caller answers a DREQ.
pub(crate) fn reply_disconnect(state: State, private_data: &[u8], cx: &mut Cx<'_>) -> Outcome {
    match state {
        State::DreqRcvd { peer, dreq_tid } => {
            send_drep(&peer, dreq_tid, private_data, cx);
            (timewait::enter(Some(peer), private_data.into(), cx), Ok(()))
        }
        other => wrong_state(other, "reply_disconnect"),
    }
}

fn send_drep(peer: &Peer, transaction_id: TransactionId, private_data: &[u8], cx: &mut Cx<'_>) {
    let private_data = PrivateData::from_slice(private_data)
        .expect("`Cm` checked the length when the caller gave it");
    cx.send(
        transaction_id,
        Drep {
            local_comm_id: cx.base.local_comm_id,
            remote_comm_id: peer.comm_id,
            private_data,
        },
    );
}

/// The peer disconnects.
pub(crate) fn on_dreq(
    state: State,
    dreq: &Dreq,
    transaction_id: TransactionId,
    cx: &mut Cx<'_>,
) -> State {
    if dreq.remote_qpn != cx.base.local_qpn {
        cx.out
            .drop_message(MessageName::Dreq, DropReason::QpnMismatch);
        return state;
    }
    match state {
        // DREQ_SENT: the DREQs crossed. REP_SENT: the RTU was lost, but the peer is connected, and leaves.
        State::RepSent { peer, .. }
        | State::MraRepRcvd { peer, .. }
        | State::Established { peer, .. }
        | State::DreqSent { peer, .. } => {
            cx.out.event(Event::DreqReceived {
                id: cx.id(),
                private_data: dreq.private_data,
            });
            State::DreqRcvd {
                peer,
                dreq_tid: transaction_id,
            }
        }
        // Our DREP was lost: the peer asks again, so we answer again.
        State::Timewait {
            peer: Some(peer),
            drep_data,
            until,
        } => {
            cx.out.counters.count_duplicate(MessageName::Dreq);
            send_drep(&peer, transaction_id, &drep_data, cx);
            State::Timewait {
                peer: Some(peer),
                drep_data,
                until,
            }
        }
        // Deviation: Linux ignores this. TIMEWAIT (half a second) is usually shorter than the peer's wait for our DREP
        // (seconds), so a lost DREP would keep the peer asking for more than a minute.
        State::Idle { peer: Some(peer) } => {
            cx.out.counters.count_duplicate(MessageName::Dreq);
            send_drep(&peer, transaction_id, &[], cx);
            State::Idle { peer: Some(peer) }
        }
        State::DreqRcvd { peer, dreq_tid } => {
            cx.out.drop_duplicate(MessageName::Dreq);
            State::DreqRcvd { peer, dreq_tid }
        }
        other => {
            cx.drop_unexpected(MessageName::Dreq);
            other
        }
    }
}

/// The peer answers our DREQ.
pub(crate) fn on_drep(state: State, drep: &Drep, cx: &mut Cx<'_>) -> State {
    match state {
        State::DreqSent { peer, .. } | State::DreqRcvd { peer, .. } => {
            cx.out.event(Event::DrepReceived {
                id: cx.id(),
                private_data: drep.private_data,
            });
            timewait::enter(Some(peer), Box::default(), cx)
        }
        other => {
            cx.drop_unexpected(MessageName::Drep);
            other
        }
    }
}

/// A REJ without comm ids.
pub(crate) fn rej(reason: RejReason, additional_info: &[u8]) -> Rej {
    let additional_info =
        Ari::from_slice(additional_info).expect("a GUID or a GID: shorter than the field");
    Rej {
        message: MessageKind::OTHER,
        reason,
        additional_info,
        ..Rej::default()
    }
}

/// The caller rejects. `rej` holds what the caller gave.
pub(crate) fn reject(state: State, rej: Rej, cx: &mut Cx<'_>) -> Outcome {
    let remote_comm_id = state.peer().map(|peer| peer.comm_id).unwrap_or_default();
    let local_comm_id = cx.base.local_comm_id;
    let (next, local_comm_id, message) = match state {
        // The peer has not heard our comm id yet, and does not need it.
        State::ReqRcvd { peer } => (
            State::Idle { peer: Some(peer) },
            Default::default(),
            MessageKind::REQ,
        ),
        State::MraReqSent { peer, .. } => (
            State::Idle { peer: Some(peer) },
            local_comm_id,
            MessageKind::REQ,
        ),
        State::RepRcvd { peer } | State::MraRepSent { peer, .. } => (
            State::Idle { peer: Some(peer) },
            local_comm_id,
            MessageKind::REP,
        ),
        State::ReqSent { .. } | State::MraReqRcvd { .. } => {
            active::send_timeout_rej(rej.private_data, cx);
            return (State::Idle { peer: None }, Ok(()));
        }
        State::RepSent { peer, .. } | State::MraRepRcvd { peer, .. } => (
            timewait::enter(Some(peer), Box::default(), cx),
            local_comm_id,
            MessageKind::OTHER,
        ),
        other => return wrong_state(other, "reject"),
    };
    cx.send(
        cx.base.req_tid,
        Rej {
            local_comm_id,
            remote_comm_id,
            message,
            ..rej
        },
    );
    (next, Ok(()))
}

/// The peer rejects, in whatever state.
pub(crate) fn on_rej(state: State, rej: Box<Rej>, cx: &mut Cx<'_>) -> State {
    let peer = state.peer().copied();
    let next = match state {
        State::ReqSent { .. }
        | State::MraReqRcvd { .. }
        | State::ReqRcvd { .. }
        | State::MraReqSent { .. }
        | State::RepSent { .. }
        | State::MraRepRcvd { .. }
            if rej.reason != RejReason::STALE_CONNECTION =>
        {
            State::Idle { peer }
        }
        State::Idle { .. } | State::DreqRcvd { .. } | State::Timewait { .. } => {
            cx.drop_unexpected(MessageName::Rej);
            return state;
        }
        // Linux: a REJ ends an established connection if no LAP is in progress, or if it may be the answer to ours.
        State::Established { ref alternate, .. }
            if !matches!(
                alternate,
                Alternate::Idle { .. } | Alternate::LapSent { .. }
            ) =>
        {
            cx.drop_unexpected(MessageName::Rej);
            return state;
        }
        // A stale connection, or one that the peer has given up: packets of it may be under way.
        _ => timewait::enter(peer, Box::default(), cx),
    };
    cx.out.event(Event::RejReceived { id: cx.id(), rej });
    next
}

/// Sends an MRA for a duplicate of `message`.
pub(crate) fn send_mra(
    peer: &Peer,
    message: MessageKind,
    service_timeout: IbTimeout,
    cx: &mut Cx<'_>,
) {
    let mra = mra(peer, message, service_timeout, cx);
    cx.send(cx.base.req_tid, mra);
}

/// An MRA for a duplicate of `message`.
pub(crate) fn mra(
    peer: &Peer,
    message: MessageKind,
    service_timeout: IbTimeout,
    cx: &Cx<'_>,
) -> Mra {
    Mra {
        local_comm_id: cx.base.local_comm_id,
        remote_comm_id: peer.comm_id,
        message,
        service_timeout,
        private_data: PrivateData::ZERO,
    }
}

/// Says the last word of a connection that the caller destroys; nothing is repeated and nothing is reported.
pub(crate) fn destroy(state: State, cx: &mut Cx<'_>) {
    match state {
        State::ReqSent { .. } | State::MraReqRcvd { .. } => {
            active::send_timeout_rej(PrivateData::ZERO, cx)
        }
        State::ReqRcvd { .. }
        | State::MraReqSent { .. }
        | State::RepSent { .. }
        | State::MraRepRcvd { .. }
        | State::RepRcvd { .. }
        | State::MraRepSent { .. } => {
            let (_, result) = reject(state, rej(RejReason::CONSUMER_DEFINED, &[]), cx);
            debug_assert!(result.is_ok(), "each of these states can reject");
        }
        // Linux: an XRC target is not disconnected, since it may serve other processes.
        State::Established { .. } if cx.base.is_xrc && cx.base.role == Role::Passive => {}
        State::Established { peer, .. } => {
            let dreq = dreq(&peer, PrivateData::ZERO, cx);
            cx.send(cx.base.own_tid, dreq);
        }
        State::DreqRcvd { peer, dreq_tid } => send_drep(&peer, dreq_tid, &[], cx),
        State::SidrReqRcvd { request } => {
            let refusal = sidr::refusal(&request, SidrStatus::REJECT);
            cx.send(cx.base.req_tid, refusal);
        }
        State::DreqSent { .. }
        | State::Timewait { .. }
        | State::Idle { .. }
        | State::SidrReqSent { .. }
        | State::SidrRepRcvd
        | State::SidrRepSent { .. } => {}
    }
}

/// A timer of the connection has come.
pub(crate) fn on_timer(state: State, timer: Timer, cx: &mut Cx<'_>) -> State {
    match (timer, state) {
        (Timer::Deadline, State::ReqSent { .. } | State::MraReqRcvd { .. }) => active::give_up(cx),
        (Timer::Reply, State::ReqSent { attempt }) => match active::on_reply_timeout(attempt, cx) {
            Ok(attempt) => State::ReqSent { attempt },
            Err(over) => over,
        },
        (Timer::Reply, State::MraReqRcvd { attempt }) => {
            match active::on_reply_timeout(attempt, cx) {
                Ok(attempt) => State::MraReqRcvd { attempt },
                Err(over) => over,
            }
        }
        (Timer::Reply, State::RepSent { peer, reply }) => {
            match passive::on_reply_timeout(peer, reply, cx) {
                Ok((peer, reply)) => State::RepSent { peer, reply },
                Err(over) => over,
            }
        }
        (Timer::Reply, State::MraRepRcvd { peer, reply }) => {
            match passive::on_reply_timeout(peer, reply, cx) {
                Ok((peer, reply)) => State::MraRepRcvd { peer, reply },
                Err(over) => over,
            }
        }
        (Timer::Reply, State::DreqSent { peer, request }) => on_drep_timeout(peer, request, cx),
        (Timer::Reply, state @ State::Established { .. }) => lap::on_reply_timeout(state, cx),
        (Timer::Reply, State::SidrReqSent { attempt }) => sidr::on_reply_timeout(attempt, cx),
        (Timer::Deadline, State::SidrReqSent { .. }) => sidr::give_up(cx),
        (Timer::Timewait, State::Timewait { peer, .. }) => timewait::exit(peer, cx),
        // `State::due` names no other pairs.
        (_, other) => other,
    }
}

/// The wait for a DREP is over: the DREQ again, or the end.
fn on_drep_timeout(peer: Peer, mut request: Resend, cx: &mut Cx<'_>) -> State {
    if request.send_again(cx) {
        return State::DreqSent { peer, request };
    }
    cx.out.event(Event::DreqError { id: cx.id() });
    timewait::enter(Some(peer), Box::default(), cx)
}
