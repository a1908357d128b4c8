//! The active side: the side that sends the REQ.

use oarlock_wire::cm::{Mra, PathFields, PrivateData, Rej, Rep, Req, Rtu};
use oarlock_wire::units::{
    AddressVector, CommId, Guid, IbTimeout, Lid, Rate, RejReason, TransportService,
};

use super::lap::Alternate;
use super::{Attempt, Cx, Outcome, Peer, Resend, Role, State, ack_timeout, cm_wait, wrong_state};
use crate::conn::teardown;
use crate::{ConnectParams, Error, Event, MessageName};

/// The largest count of CM retries, a 4-bit field.
const MAX_CM_RETRIES: u8 = 15;

/// The REQ that `params` asks for. This is the only place where `params` can be wrong.
pub(crate) fn request(
    params: &ConnectParams,
    local_comm_id: CommId,
    local_ca_guid: Guid,
) -> Result<Req, Error> {
    checked_retries(params.max_cm_retries)?;
    let extended_transport = match params.transport_service {
        TransportService::EXTENDED => TransportService::EXTENDED_XRC,
        _ => 0,
    };
    Ok(Req {
        local_comm_id,
        service_id: params.service_id,
        local_ca_guid,
        local_qpn: params.local_qpn,
        responder_resources: params.responder_resources,
        initiator_depth: params.initiator_depth,
        remote_cm_response_timeout: params.response_timeout,
        end_to_end_flow_control: params.end_to_end_flow_control,
        starting_psn: params.starting_psn,
        local_cm_response_timeout: params.response_timeout,
        retry_count: params.retry_count,
        partition_key: params.pkey,
        path_mtu: params.path_mtu,
        rnr_retry_count: params.rnr_retry_count,
        max_cm_retries: params.max_cm_retries,
        srq: params.srq,
        transport_service: params.transport_service,
        extended_transport,
        primary: path_fields(&params.av, params.packet_rate, params.local_ack_timeout),
        alternate: params.alternate.unwrap_or_default(),
        ece: params.ece,
        private_data: PrivateData::from_slice(&params.private_data)?,
        ..Req::default()
    })
}

/// A count of CM retries must fit its field.
pub(crate) fn checked_retries(given: u8) -> Result<(), Error> {
    if given > MAX_CM_RETRIES {
        return Err(Error::TooManyRetries {
            given,
            max: MAX_CM_RETRIES,
        });
    }
    Ok(())
}

/// A RoCE path: there are no LIDs.
fn path_fields(av: &AddressVector, packet_rate: Rate, local_ack_timeout: IbTimeout) -> PathFields {
    PathFields {
        local_lid: Lid::PERMISSIVE,
        remote_lid: Lid::PERMISSIVE,
        local_gid: av.local,
        remote_gid: av.remote,
        flow_label: av.flow_label,
        traffic_class: av.traffic_class,
        hop_limit: av.hop_limit,
        service_level: av.service_level,
        // One hop: the subnet is not left.
        subnet_local: av.hop_limit <= 1,
        packet_rate,
        local_ack_timeout,
    }
}

/// Sends the REQ.
pub(crate) fn connect(req: Req, params: &ConnectParams, cx: &mut Cx<'_>) -> State {
    let request = cx.send_and_wait(
        cx.base.req_tid,
        req,
        cx.base.response_wait,
        cx.base.max_cm_retries,
    );
    State::ReqSent {
        attempt: Attempt {
            request,
            give_up_at: params.deadline.map(|deadline| cx.now + deadline),
        },
    }
}

/// A REP for this connection. `Cm` has checked that it belongs to no other one.
pub(crate) fn on_rep(state: State, rep: Box<Rep>, cx: &mut Cx<'_>) -> State {
    match state {
        State::ReqSent { .. } | State::MraReqRcvd { .. } => {
            let peer = Peer {
                comm_id: rep.local_comm_id,
                ca_guid: rep.local_ca_guid,
                qpn: rep.qpn(cx.base.is_xrc),
            };
            cx.base.ack_timeout = ack_timeout(rep.target_ack_delay, cx.base.packet_life_time);
            cx.out.event(Event::RepReceived { id: cx.id(), rep });
            State::RepRcvd { peer }
        }
        // Our RTU was lost: the passive side asks again, so we answer again.
        State::Established {
            peer,
            rtu_data,
            alternate,
        } if cx.base.role == Role::Active => {
            cx.out.counters.count_duplicate(MessageName::Rep);
            send_rtu(&peer, &rtu_data, cx);
            State::Established {
                peer,
                rtu_data,
                alternate,
            }
        }
        State::MraRepSent {
            peer,
            service_timeout,
        } => {
            cx.out.counters.count_duplicate(MessageName::Rep);
            teardown::send_mra(
                &peer,
                oarlock_wire::cm::MessageKind::REP,
                service_timeout,
                cx,
            );
            State::MraRepSent {
                peer,
                service_timeout,
            }
        }
        State::RepRcvd { peer } => {
            cx.out.drop_duplicate(MessageName::Rep);
            State::RepRcvd { peer }
        }
        other => {
            cx.drop_unexpected(MessageName::Rep);
            other
        }
    }
}

/// The caller is ready to use the connection: sends the RTU.
pub(crate) fn establish(state: State, private_data: &[u8], cx: &mut Cx<'_>) -> Outcome {
    match state {
        State::RepRcvd { peer } | State::MraRepSent { peer, .. } => {
            send_rtu(&peer, private_data, cx);
            (
                State::Established {
                    peer,
                    rtu_data: private_data.into(),
                    alternate: Alternate::NONE,
                },
                Ok(()),
            )
        }
        other => wrong_state(other, "establish"),
    }
}

fn send_rtu(peer: &Peer, private_data: &[u8], cx: &mut Cx<'_>) {
    let private_data = PrivateData::from_slice(private_data)
        .expect("`Cm` checked the length when the caller gave it");
    cx.send(
        cx.base.req_tid,
        Rtu {
            local_comm_id: cx.base.local_comm_id,
            remote_comm_id: peer.comm_id,
            private_data,
        },
    );
}

/// The peer has our REQ and asks for patience.
pub(crate) fn on_mra_of_req(state: State, mra: Box<Mra>, cx: &mut Cx<'_>) -> State {
    match state {
        State::ReqSent { mut attempt } => {
            be_patient(&mut attempt.request, mra, cx);
            State::MraReqRcvd { attempt }
        }
        State::MraReqRcvd { attempt } => {
            cx.out.drop_duplicate(MessageName::Mra);
            State::MraReqRcvd { attempt }
        }
        other => {
            cx.drop_unexpected(MessageName::Mra);
            other
        }
    }
}

/// Waits as long as the peer asks, from now on and after every repetition.
pub(crate) fn be_patient(message: &mut Resend, mra: Box<Mra>, cx: &mut Cx<'_>) {
    let wait = cx.bounded(cm_wait(mra.service_timeout) + cm_wait(cx.base.ack_timeout));
    message.be_patient(wait, cx);
    cx.out.event(Event::MraReceived { id: cx.id(), mra });
}

/// The wait for a REP is over.
pub(crate) fn on_reply_timeout(attempt: Attempt, cx: &mut Cx<'_>) -> Result<Attempt, State> {
    let Attempt {
        mut request,
        give_up_at,
    } = attempt;
    if request.send_again(cx) {
        Ok(Attempt {
            request,
            give_up_at,
        })
    } else {
        Err(give_up(cx))
    }
}

/// Gives up: nothing came, and the peer should know.
pub(crate) fn give_up(cx: &mut Cx<'_>) -> State {
    cx.out.event(Event::ReqError { id: cx.id() });
    send_timeout_rej(PrivateData::ZERO, cx);
    State::Idle { peer: None }
}

/// The REJ that ends an attempt which the peer may have taken up: it finds us by our GUID, as it has no comm id of its own
/// that we could name.
pub(crate) fn send_timeout_rej(private_data: PrivateData<148>, cx: &mut Cx<'_>) {
    let rej = Rej {
        local_comm_id: cx.base.local_comm_id,
        private_data,
        ..teardown::rej(RejReason::TIMEOUT, &cx.config.ca_guid.0.to_be_bytes())
    };
    cx.send(cx.base.req_tid, rej);
}
