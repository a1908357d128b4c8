//! Where a SIDR_REQ and a SIDR_REP go.

use oarlock_wire::Time;
use oarlock_wire::cm::{SidrRep, SidrReq};
use oarlock_wire::units::{AddressVector, SidrStatus, TransactionId};

use super::Cm;
use super::dispatch::Addressee;
use super::held::Request;
use crate::conn::{Base, Role, State, cm_wait, sidr};
use crate::{DropReason, Event, MessageName};

impl Cm {
    pub(super) fn on_sidr_req(
        &mut self,
        now: Time,
        av: &AddressVector,
        tid: TransactionId,
        req: Box<SidrReq>,
    ) {
        let name = MessageName::SidrReq;
        let known = self.index.sidr_request(req.request_id, av.peer());
        if let Some(slot) = known
            && self.is_same_request(slot, tid, &req)
        {
            return self.hand(
                now,
                name,
                Addressee::Connection(slot),
                sidr::on_duplicate_req,
            );
        }
        let Some(listener) = self.listeners.get(&req.service_id).copied() else {
            if !self.hold(now, av, tid, Request::Sidr(req.clone())) {
                self.refuse_resolution(av, tid, &req);
            }
            return;
        };
        if let Some(reason) = self.no_room_for_a_request() {
            return self.out.drop_message(name, reason);
        }
        let id = self.open(|id, local_comm_id, _| {
            // The answer is not repeated by a timer, so there is nothing to wait for.
            let wait = cm_wait(Default::default());
            Base::of_resolution(id, Role::Resolved, local_comm_id, *av, tid, wait)
        });
        self.out.event(Event::SidrReqReceived {
            id,
            listener,
            av: *av,
            req: req.clone(),
        });
        self.step(now, id.slot, |_, _| {
            (State::SidrReqRcvd { request: req }, ())
        });
    }

    /// Answers a SIDR_REQ that nobody listens for.
    pub(super) fn refuse_resolution(
        &mut self,
        av: &AddressVector,
        tid: TransactionId,
        req: &SidrReq,
    ) {
        self.out
            .drop_message(MessageName::SidrReq, DropReason::NoListener);
        let refusal = sidr::refusal(req, SidrStatus::UNSUPPORTED);
        self.out.send(*av, tid, refusal);
    }

    /// Whether `req` is the request of this resolution again. A peer that began anew may use the request id for another.
    fn is_same_request(&self, slot: crate::index::Slot, tid: TransactionId, req: &SidrReq) -> bool {
        self.at(slot)
            .is_some_and(|conn| conn.base.req_tid == tid && conn.state.sidr_request() == Some(req))
    }

    pub(super) fn on_sidr_rep(&mut self, now: Time, av: &AddressVector, rep: Box<SidrRep>) {
        let addressee = self.addressee(av, rep.request_id, |conn| {
            conn.base.role == Role::Resolver && !matches!(conn.state, State::Idle { .. })
        });
        self.hand(now, MessageName::SidrRep, addressee, |state, cx| {
            sidr::on_rep(state, rep, cx)
        });
    }
}
