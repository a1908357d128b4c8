//! SIDR: resolution of a service ID into a queue pair for datagrams (IBA Vol. 1 ch. 12, SIDR_REQ and SIDR_REP).
//!
//! ```text
//!     asking side                                             serving side
//!                                                             listen(service_id)
//!     sidr_request()   SIDR_REQ_SENT  --- SIDR_REQ -->        SIDR_REQ_RCVD    Event::SidrReqReceived
//!                                                                              sidr_reply()
//!     Event::SidrRepReceived  SIDR_REP_RCVD  <-- SIDR_REP --- SIDR_REP_SENT
//! ```
//!
//! There is no third message: the serving side never learns whether its answer arrived. So it keeps the answer, and gives
//! it again to a request that comes again, until the caller destroys the resolution.

use oarlock_wire::cm::{Ari, PrivateData, SidrRep, SidrReq};
use oarlock_wire::mad::MAD_LEN;
use oarlock_wire::units::{CommId, SidrStatus};

use super::{Attempt, Cx, Outcome, State, wrong_state};
use crate::conn::active::checked_retries;
use crate::{Error, Event, MessageName, SidrParams, SidrReplyParams};

/// A request that we answered, and the answer.
pub(crate) struct Answered {
    pub(crate) request: SidrReq,
    reply: [u8; MAD_LEN],
}

/// The SIDR_REQ that `params` asks for. This is the only place where `params` can be wrong.
pub(crate) fn request(params: &SidrParams, request_id: CommId) -> Result<SidrReq, Error> {
    checked_retries(params.max_cm_retries)?;
    Ok(SidrReq {
        request_id,
        partition_key: params.pkey,
        service_id: params.service_id,
        private_data: PrivateData::from_slice(&params.private_data)?,
    })
}

/// Sends the SIDR_REQ.
pub(crate) fn ask(req: SidrReq, params: &SidrParams, cx: &mut Cx<'_>) -> State {
    let request = cx.send_and_wait(
        cx.base.own_tid,
        req,
        cx.base.response_wait,
        cx.base.max_cm_retries,
    );
    State::SidrReqSent {
        attempt: Attempt {
            request,
            give_up_at: params.deadline.map(|deadline| cx.now + deadline),
        },
    }
}

/// The peer answers our SIDR_REQ.
pub(crate) fn on_rep(state: State, rep: Box<SidrRep>, cx: &mut Cx<'_>) -> State {
    match state {
        State::SidrReqSent { .. } => {
            cx.out.event(Event::SidrRepReceived { id: cx.id(), rep });
            State::SidrRepRcvd
        }
        State::SidrRepRcvd => {
            cx.out.drop_duplicate(MessageName::SidrRep);
            State::SidrRepRcvd
        }
        other => {
            cx.drop_unexpected(MessageName::SidrRep);
            other
        }
    }
}

/// The wait for a SIDR_REP is over: the SIDR_REQ again, or the end.
pub(crate) fn on_reply_timeout(mut attempt: Attempt, cx: &mut Cx<'_>) -> State {
    if attempt.request.send_again(cx) {
        State::SidrReqSent { attempt }
    } else {
        give_up(cx)
    }
}

/// Gives up. The peer has nothing that it would have to be told about.
pub(crate) fn give_up(cx: &mut Cx<'_>) -> State {
    cx.out.event(Event::SidrReqError { id: cx.id() });
    State::Idle { peer: None }
}

/// The SIDR_REQ of this resolution came again.
pub(crate) fn on_duplicate_req(state: State, cx: &mut Cx<'_>) -> State {
    match state {
        State::SidrRepSent { answered } => {
            cx.out.counters.count_duplicate(MessageName::SidrReq);
            cx.out
                .send_mad(cx.base.av, MessageName::SidrRep, answered.reply);
            State::SidrRepSent { answered }
        }
        // The caller has not decided.
        other => {
            cx.out.drop_duplicate(MessageName::SidrReq);
            other
        }
    }
}

/// The SIDR_REP that `params` asks for, without what the request says.
pub(crate) fn reply(params: &SidrReplyParams) -> Result<SidrRep, Error> {
    Ok(SidrRep {
        status: params.status,
        additional_info: Ari::from_slice(&params.additional_info)?,
        ece: params.ece,
        qpn: params.qpn,
        qkey: params.qkey,
        private_data: PrivateData::from_slice(&params.private_data)?,
        ..SidrRep::default()
    })
}

/// The caller answers a SIDR_REQ.
pub(crate) fn answer(state: State, rep: SidrRep, cx: &mut Cx<'_>) -> Outcome {
    match state {
        State::SidrReqRcvd { request } => {
            let rep = SidrRep {
                request_id: request.request_id,
                service_id: request.service_id,
                ..rep
            };
            let (name, reply) = crate::output::compose(cx.base.req_tid, &rep.into());
            cx.out.send_mad(cx.base.av, name, reply);
            let answered = Box::new(Answered {
                request: *request,
                reply,
            });
            (State::SidrRepSent { answered }, Ok(()))
        }
        other => wrong_state(other, "sidr_reply"),
    }
}

/// The SIDR_REP with `status` and nothing else that answers `request`.
pub(crate) fn refusal(request: &SidrReq, status: SidrStatus) -> SidrRep {
    SidrRep {
        request_id: request.request_id,
        status,
        service_id: request.service_id,
        ..SidrRep::default()
    }
}
