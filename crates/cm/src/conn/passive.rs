//! The passive side: the side that sends the REP.

use oarlock_wire::cm::{MessageKind, Mra, PrivateData, Rep, Rtu};
use oarlock_wire::units::{IbTimeout, Qpn, RejReason};

use super::active::be_patient;
use super::lap::Alternate;
use super::{Cx, Outcome, Peer, Resend, State, lap, teardown, wrong_state};
use crate::{AcceptParams, Error, Event, MessageName};

/// The REQ of this connection came again.
pub(crate) fn on_duplicate_req(state: State, cx: &mut Cx<'_>) -> State {
    match state {
        State::MraReqSent {
            peer,
            service_timeout,
        } => {
            cx.out.counters.count_duplicate(MessageName::Req);
            teardown::send_mra(&peer, MessageKind::REQ, service_timeout, cx);
            State::MraReqSent {
                peer,
                service_timeout,
            }
        }
        // REQ_RCVD: the caller has not decided. REP_SENT: our REP is repeated by its own timer. Later states: the peer
        // has our REP, so this REQ was late.
        other => {
            cx.out.drop_duplicate(MessageName::Req);
            other
        }
    }
}

/// The REP that `params` asks for, without the peer's comm id.
pub(crate) fn reply(params: &AcceptParams) -> Result<Rep, Error> {
    Ok(Rep {
        local_qpn: params.local_qpn,
        starting_psn: params.starting_psn,
        responder_resources: params.responder_resources,
        initiator_depth: params.initiator_depth,
        target_ack_delay: params.target_ack_delay,
        end_to_end_flow_control: params.end_to_end_flow_control,
        rnr_retry_count: params.rnr_retry_count,
        srq: params.srq,
        failover_accepted: params.failover.code(),
        ece: params.ece,
        private_data: PrivateData::from_slice(&params.private_data)?,
        ..Rep::default()
    })
}

/// What Linux says of an XRC target: its number is an EE context number, it always has a shared receive queue, and it issues
/// nothing.
fn of_target(rep: Rep) -> Rep {
    Rep {
        local_qpn: Qpn::QP0,
        local_eecn: rep.local_qpn.get(),
        srq: true,
        initiator_depth: 0,
        end_to_end_flow_control: false,
        ..rep
    }
}

/// The caller accepts: sends the REP.
pub(crate) fn accept(state: State, rep: Rep, cx: &mut Cx<'_>) -> Outcome {
    match state {
        State::ReqRcvd { peer } | State::MraReqSent { peer, .. } => {
            cx.base.local_qpn = rep.local_qpn;
            let rep = if cx.base.is_xrc { of_target(rep) } else { rep };
            let failover_accepted = if cx.base.alternate_offered {
                rep.failover_accepted
            } else {
                // What Linux says when there is nothing to accept.
                0
            };
            let rep = Rep {
                failover_accepted,
                local_comm_id: cx.base.local_comm_id,
                remote_comm_id: peer.comm_id,
                local_ca_guid: cx.config.ca_guid,
                ..rep
            };
            let wait = cx.config.rep_wait.unwrap_or(cx.base.response_wait);
            let retries = cx.config.rep_retries.unwrap_or(cx.base.max_cm_retries);
            let reply = cx.send_and_wait(cx.base.req_tid, rep, wait, retries);
            (State::RepSent { peer, reply }, Ok(()))
        }
        other => wrong_state(other, "accept"),
    }
}

/// The peer is ready to use the connection.
pub(crate) fn on_rtu(state: State, rtu: &Rtu, cx: &mut Cx<'_>) -> State {
    match state {
        State::RepSent { peer, .. } | State::MraRepRcvd { peer, .. } => {
            cx.out.event(Event::RtuReceived {
                id: cx.id(),
                private_data: rtu.private_data,
            });
            established(peer)
        }
        // A duplicate, or the RTU after the first data (COMM_EST).
        state @ State::Established { .. } => {
            cx.out.drop_duplicate(MessageName::Rtu);
            state
        }
        other => {
            cx.drop_unexpected(MessageName::Rtu);
            other
        }
    }
}

/// The passive side sends no RTU, so there is none to repeat.
fn established(peer: Peer) -> State {
    State::Established {
        peer,
        rtu_data: Box::default(),
        alternate: Alternate::NONE,
    }
}

/// Data came before the RTU: the peer must have received our REP.
pub(crate) fn notify_established(state: State, cx: &mut Cx<'_>) -> Outcome {
    match state {
        State::RepSent { peer, .. } | State::MraRepRcvd { peer, .. } => {
            cx.out.event(Event::UserEstablished { id: cx.id() });
            (established(peer), Ok(()))
        }
        other => wrong_state(other, "notify_established"),
    }
}

/// The peer has our REP and asks for patience.
pub(crate) fn on_mra_of_rep(state: State, mra: Box<Mra>, cx: &mut Cx<'_>) -> State {
    match state {
        State::RepSent { peer, mut reply } => {
            be_patient(&mut reply, mra, cx);
            State::MraRepRcvd { peer, reply }
        }
        State::MraRepRcvd { peer, reply } => {
            cx.out.drop_duplicate(MessageName::Mra);
            State::MraRepRcvd { peer, reply }
        }
        other => {
            cx.drop_unexpected(MessageName::Mra);
            other
        }
    }
}

/// Prepares an MRA: of the passive side for a duplicate REQ, of the active side for a duplicate REP, of either for a
/// duplicate LAP.
pub(crate) fn prepare_mra(state: State, service_timeout: IbTimeout, cx: &mut Cx<'_>) -> Outcome {
    match state {
        State::ReqRcvd { peer } => (
            State::MraReqSent {
                peer,
                service_timeout,
            },
            Ok(()),
        ),
        State::RepRcvd { peer } => (
            State::MraRepSent {
                peer,
                service_timeout,
            },
            Ok(()),
        ),
        other => lap::prepare_mra(other, service_timeout, "send_mra", cx),
    }
}

/// The wait for an RTU is over: the REP again, or the end.
pub(crate) fn on_reply_timeout(
    peer: Peer,
    mut reply: Resend,
    cx: &mut Cx<'_>,
) -> Result<(Peer, Resend), State> {
    if reply.send_again(cx) {
        return Ok((peer, reply));
    }
    cx.out.event(Event::RepError { id: cx.id() });
    // Deviation: Linux gives up without a word. If only our peer's RTUs were lost, it believes itself connected; the REJ
    // of IBA Vol. 1 ch. 12 (reason timeout) tells it.
    let rej = teardown::rej(RejReason::TIMEOUT, &cx.config.ca_guid.0.to_be_bytes());
    let rej = oarlock_wire::cm::Rej {
        local_comm_id: cx.base.local_comm_id,
        remote_comm_id: peer.comm_id,
        ..rej
    };
    cx.send(cx.base.req_tid, rej);
    Err(State::Idle { peer: Some(peer) })
}
