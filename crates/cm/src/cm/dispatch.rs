//! Where a message goes: to the connection that its comm ids name, if it comes from that connection's peer, or to nobody.
//! Requests that make a resolution, and their answers, are in `resolve`.

use oarlock_wire::Time;
use oarlock_wire::cm::{CmMessage, Drep, Dreq, Lap, MessageKind, Mra, Rej, Rep, Req};
use oarlock_wire::error::WireErrorKind;
use oarlock_wire::units::{
    AddressVector, AprStatus, CommId, Gid, Guid, IbTimeout, RejReason, TransactionId,
};

use super::held::{Held, Request};
use super::{Cm, UNKNOWN_QPN, claimed_wait};
use crate::conn::{Base, Conn, Cx, Peer, Role, State, active, lap, passive, teardown};
use crate::index::Slot;
use crate::{DropReason, Event, MessageName};

impl Cm {
    pub(super) fn dispatch(
        &mut self,
        now: Time,
        av: &AddressVector,
        tid: TransactionId,
        message: CmMessage,
    ) {
        let Some(name) = crate::output::name(&message) else {
            let unknown = WireErrorKind::UnsupportedAttribute(message.attribute_id().0);
            return self.out.counters.count_malformed(unknown);
        };
        self.out.counters.count_received(name);
        if is_not_unicast(av) {
            return self.out.drop_message(name, DropReason::NotUnicast);
        }
        let (local, remote) = (
            message.remote_comm_id().unwrap_or_default(),
            message.local_comm_id().unwrap_or_default(),
        );
        match message {
            CmMessage::Req(req) => self.on_req(now, av, tid, Box::new(req)),
            CmMessage::Rep(rep) => self.on_rep(now, av, tid, Box::new(rep)),
            CmMessage::Rej(rej) => self.on_rej(now, av, Box::new(rej)),
            CmMessage::Mra(mra) => self.on_mra(now, av, Box::new(mra)),
            CmMessage::Rtu(rtu) => {
                let addressee = self.by_both_ids(av, local, remote);
                self.hand(now, name, addressee, |state, cx| {
                    passive::on_rtu(state, &rtu, cx)
                });
            }
            CmMessage::Dreq(dreq) => match self.by_both_ids(av, local, remote) {
                Addressee::Nobody => self.answer_unknown_dreq(av, tid, &dreq),
                addressee => self.hand(now, name, addressee, |state, cx| {
                    teardown::on_dreq(state, &dreq, tid, cx)
                }),
            },
            CmMessage::Drep(drep) => {
                let addressee = self.by_both_ids(av, local, remote);
                self.hand(now, name, addressee, |state, cx| {
                    teardown::on_drep(state, &drep, cx)
                });
            }
            CmMessage::SidrReq(req) => self.on_sidr_req(now, av, tid, Box::new(req)),
            CmMessage::SidrRep(rep) => self.on_sidr_rep(now, av, Box::new(rep)),
            CmMessage::Lap(lap) => match self.by_both_ids(av, local, remote) {
                Addressee::Nobody => self.answer_unknown_lap(av, tid, &lap),
                addressee => self.hand(now, name, addressee, |state, cx| {
                    lap::on_lap(state, Box::new(lap), tid, cx)
                }),
            },
            CmMessage::Apr(apr) => {
                let addressee = self.by_both_ids(av, local, remote);
                self.hand(now, name, addressee, |state, cx| {
                    lap::on_apr(state, Box::new(apr), tid, cx)
                });
            }
            // Messages without a name: left above.
            _ => {}
        }
    }

    /// A connection that has not heard from its peer yet, by our comm id alone.
    fn awaiting_first_answer(&self, av: &AddressVector, local: CommId) -> Addressee {
        self.addressee(av, local, |conn| conn.state.is_unheard_of(conn.base.role))
    }

    /// A connection by both comm ids.
    fn by_both_ids(&self, av: &AddressVector, local: CommId, remote: CommId) -> Addressee {
        self.addressee(av, local, |conn| {
            conn.state.peer().is_some_and(|peer| peer.comm_id == remote)
        })
    }

    /// The connection that has our comm id `local`, if it `fits` and the message comes from its peer's address.
    pub(super) fn addressee(
        &self,
        av: &AddressVector,
        local: CommId,
        fits: impl FnOnce(&Conn) -> bool,
    ) -> Addressee {
        let found = self
            .index
            .local_id(local)
            .and_then(|slot| Some((slot, self.at(slot)?)));
        match found {
            Some((slot, conn)) if fits(conn) => {
                if conn.base.av.peer() == av.peer() {
                    Addressee::Connection(slot)
                } else {
                    Addressee::NotForStrangers
                }
            }
            _ => Addressee::Nobody,
        }
    }

    /// Hands a message to its connection, or counts why not.
    pub(super) fn hand(
        &mut self,
        now: Time,
        name: MessageName,
        addressee: Addressee,
        f: impl FnOnce(State, &mut Cx<'_>) -> State,
    ) {
        match addressee {
            Addressee::Connection(slot) => {
                self.step(now, slot, |state, cx| (f(state, cx), ()));
            }
            // Deviation: Linux compares no addresses. Comm ids can be guessed or overheard by hosts that could not take
            // the peer's address; without this each of them could end the connections of others.
            Addressee::NotForStrangers => self.out.drop_message(name, DropReason::ForeignAddress),
            Addressee::Nobody => self.out.drop_message(name, DropReason::UnknownCommId),
        }
    }

    fn on_req(&mut self, now: Time, av: &AddressVector, tid: TransactionId, req: Box<Req>) {
        let (name, from) = (MessageName::Req, av.peer());
        let duplicate_of = self
            .index
            .remote_id(req.local_comm_id, req.local_ca_guid, from);
        if let Some(slot) = duplicate_of {
            return self.hand(
                now,
                name,
                Addressee::Connection(slot),
                passive::on_duplicate_req,
            );
        }
        if let Some(slot) = self
            .index
            .remote_qpn(req.local_qpn, req.local_ca_guid, from)
        {
            self.out.drop_message(name, DropReason::StaleConnection);
            self.reject_unasked(
                av,
                tid,
                &Unasked::req(&req),
                RejReason::STALE_CONNECTION,
                &[],
            );
            return self.end_stale(now, slot);
        }
        let Some(listener) = self.listeners.get(&req.service_id).copied() else {
            if !self.hold(now, av, tid, Request::Req(req.clone())) {
                self.refuse_request(av, tid, &req);
            }
            return;
        };
        if let Some(gid) = self.unusable_gid(av, &req) {
            self.out.drop_message(name, DropReason::UnusableGid);
            return self.reject_unasked(
                av,
                tid,
                &Unasked::req(&req),
                RejReason::INVALID_GID,
                &gid.0,
            );
        }
        if let Some(reason) = self.no_room_for_a_request() {
            return self.out.drop_message(name, reason);
        }
        let response_wait = claimed_wait(&self.config, req.local_cm_response_timeout);
        let id = self.open(|id, local_comm_id, own_tid| Base {
            id,
            role: Role::Passive,
            local_comm_id,
            local_qpn: UNKNOWN_QPN,
            is_xrc: req.is_xrc(),
            av: *av,
            req_tid: tid,
            own_tid,
            response_wait,
            max_cm_retries: req.max_cm_retries,
            packet_life_time: IbTimeout::default(),
            ack_timeout: req.primary.local_ack_timeout,
            alternate_offered: !req.alternate.is_absent(),
            laps_sent: 0,
        });
        let peer = Peer {
            comm_id: req.local_comm_id,
            ca_guid: req.local_ca_guid,
            qpn: req.local_qpn,
        };
        self.out.event(Event::ReqReceived {
            id,
            listener,
            av: *av,
            req,
        });
        self.step(now, id.slot, |_, _| (State::ReqRcvd { peer }, ()));
    }

    /// Answers a REQ that nobody listens for.
    fn refuse_request(&mut self, av: &AddressVector, tid: TransactionId, req: &Req) {
        self.out
            .drop_message(MessageName::Req, DropReason::NoListener);
        self.reject_unasked(
            av,
            tid,
            &Unasked::req(req),
            RejReason::INVALID_SERVICE_ID,
            &[],
        );
    }

    /// The wait of a request for a listener is over: it arrives once more, or is rejected.
    pub(super) fn end_wait(&mut self, now: Time, held: Held) {
        let Held { av, tid, request } = held;
        match request {
            Request::Req(req) if self.listeners.contains_key(&req.service_id) => {
                self.on_req(now, &av, tid, req);
            }
            Request::Sidr(req) if self.listeners.contains_key(&req.service_id) => {
                self.on_sidr_req(now, &av, tid, req);
            }
            Request::Req(req) => self.refuse_request(&av, tid, &req),
            Request::Sidr(req) => self.refuse_resolution(&av, tid, &req),
        }
    }

    /// Why a request cannot be taken in now, if so. The peer asks again.
    pub(super) fn no_room_for_a_request(&self) -> Option<DropReason> {
        if self.half_open >= self.config.max_half_open {
            Some(DropReason::TooManyHalfOpen)
        } else if self.check_room().is_err() {
            Some(DropReason::TooManyConnections)
        } else {
            None
        }
    }

    /// The GID of the primary path that cannot be used, if there is one.
    fn unusable_gid(&self, av: &AddressVector, req: &Req) -> Option<Gid> {
        let (ours, theirs) = (req.primary.remote_gid, req.primary.local_gid);
        if ours != av.local && !self.local_gids.contains(&ours) {
            return Some(ours);
        }
        // Data goes where the path leads, so the path may only lead to whoever asks for it.
        // Deviation: Linux looks up the path and does not compare it with the source of the REQ.
        (theirs != av.remote).then_some(theirs)
    }

    fn on_rep(&mut self, now: Time, av: &AddressVector, tid: TransactionId, rep: Box<Rep>) {
        let (name, local, from) = (MessageName::Rep, rep.remote_comm_id, av.peer());
        let addressee = match self.by_both_ids(av, local, rep.local_comm_id) {
            Addressee::Nobody => self.awaiting_first_answer(av, local),
            known => known,
        };
        if let Addressee::Connection(slot) = addressee
            && self
                .at(slot)
                .is_some_and(|conn| conn.state.is_awaiting_rep())
        {
            let same_id = self
                .index
                .remote_id(rep.local_comm_id, rep.local_ca_guid, from);
            if same_id.is_some() {
                // The peer has this comm id for another connection with us.
                return self.out.drop_duplicate(name);
            }
            let is_xrc = self.at(slot).is_some_and(|conn| conn.base.is_xrc);
            let stale = self
                .index
                .remote_qpn(rep.qpn(is_xrc), rep.local_ca_guid, from);
            if let Some(stale) = stale {
                self.out.drop_message(name, DropReason::StaleConnection);
                self.reject_unasked(
                    av,
                    tid,
                    &Unasked::rep(&rep),
                    RejReason::STALE_CONNECTION,
                    &[],
                );
                return self.end_stale(now, stale);
            }
        }
        self.hand(now, name, addressee, |state, cx| {
            active::on_rep(state, rep, cx)
        });
    }

    fn on_mra(&mut self, now: Time, av: &AddressVector, mra: Box<Mra>) {
        let name = MessageName::Mra;
        match mra.message {
            MessageKind::REQ => {
                let addressee = self.awaiting_first_answer(av, mra.remote_comm_id);
                self.hand(now, name, addressee, |state, cx| {
                    active::on_mra_of_req(state, mra, cx)
                });
            }
            MessageKind::REP => {
                let addressee = self.by_both_ids(av, mra.remote_comm_id, mra.local_comm_id);
                self.hand(now, name, addressee, |state, cx| {
                    passive::on_mra_of_rep(state, mra, cx)
                });
            }
            MessageKind::OTHER => {
                let addressee = self.by_both_ids(av, mra.remote_comm_id, mra.local_comm_id);
                self.hand(now, name, addressee, |state, cx| {
                    lap::on_mra(state, mra, cx)
                });
            }
            _ => self.out.drop_message(name, DropReason::UnknownMessageKind),
        }
    }

    fn on_rej(&mut self, now: Time, av: &AddressVector, rej: Box<Rej>) {
        let name = MessageName::Rej;
        let addressee = if rej.reason == RejReason::TIMEOUT {
            // The peer gave up waiting for us, perhaps without ever having learnt our comm id: it says who it is.
            let Some(guid) = rej.additional_info.as_bytes().first_chunk::<8>() else {
                return self.out.drop_message(name, DropReason::RejWithoutGuid);
            };
            let guid = Guid(u64::from_be_bytes(*guid));
            match self.index.remote_id(rej.local_comm_id, guid, av.peer()) {
                Some(slot) => Addressee::Connection(slot),
                None if self.withdraw_held(av, &rej, guid) => return,
                None => Addressee::Nobody,
            }
        } else {
            match rej.message {
                MessageKind::REQ => self.awaiting_first_answer(av, rej.remote_comm_id),
                MessageKind::REP | MessageKind::OTHER => {
                    self.by_both_ids(av, rej.remote_comm_id, rej.local_comm_id)
                }
                _ => return self.out.drop_message(name, DropReason::UnknownMessageKind),
            }
        };
        self.hand(now, name, addressee, |state, cx| {
            teardown::on_rej(state, rej, cx)
        });
    }

    /// A DREQ for a connection that we have forgotten (or never had) is answered, so that the peer can forget it too.
    fn answer_unknown_dreq(&mut self, av: &AddressVector, tid: TransactionId, dreq: &Dreq) {
        self.out
            .drop_message(MessageName::Dreq, DropReason::UnknownCommId);
        let drep = Drep {
            local_comm_id: dreq.remote_comm_id,
            remote_comm_id: dreq.local_comm_id,
            ..Drep::default()
        };
        self.out.send(*av, tid, drep);
    }

    /// A LAP for a connection that we do not have is answered, so that the peer need not repeat it.
    ///
    /// Deviation: Linux drops it. The specification has a status for the case.
    fn answer_unknown_lap(&mut self, av: &AddressVector, tid: TransactionId, lap: &Lap) {
        self.out
            .drop_message(MessageName::Lap, DropReason::UnknownCommId);
        let apr = lap::refusal(lap, AprStatus::INVALID_COMM_ID);
        self.out.send(*av, tid, apr);
    }

    /// Rejects a message for which there is no connection here.
    fn reject_unasked(
        &mut self,
        av: &AddressVector,
        tid: TransactionId,
        rejected: &Unasked,
        reason: RejReason,
        additional_info: &[u8],
    ) {
        let rej = Rej {
            local_comm_id: rejected.local_comm_id,
            remote_comm_id: rejected.remote_comm_id,
            message: rejected.message,
            ..teardown::rej(reason, additional_info)
        };
        self.out.send(*av, tid, rej);
    }

    /// A queue pair of `slot`'s peer was connected anew, so the peer has forgotten the old connection: ends it.
    fn end_stale(&mut self, now: Time, slot: Slot) {
        self.step(now, slot, |state, cx| {
            // Other states than ESTABLISHED end by themselves.
            let (next, _) = teardown::disconnect(state, Default::default(), cx);
            (next, ())
        });
    }
}

/// Whether an answer along `av` would go to many or to nobody, or come from a group.
fn is_not_unicast(av: &AddressVector) -> bool {
    let (local, remote) = (av.local, av.remote);
    local.is_multicast() || remote.is_multicast() || remote.to_ip().is_unspecified()
}

/// Who a message is for.
pub(super) enum Addressee {
    Connection(Slot),
    /// A connection has these comm ids, but its peer has another address than the sender.
    NotForStrangers,
    Nobody,
}

/// What a REJ says about the message it answers.
struct Unasked {
    local_comm_id: CommId,
    remote_comm_id: CommId,
    message: MessageKind,
}

impl Unasked {
    fn req(req: &Req) -> Self {
        Self {
            local_comm_id: CommId::default(),
            remote_comm_id: req.local_comm_id,
            message: MessageKind::REQ,
        }
    }

    fn rep(rep: &Rep) -> Self {
        Self {
            local_comm_id: rep.remote_comm_id,
            remote_comm_id: rep.local_comm_id,
            message: MessageKind::REP,
        }
    }
}
