//! What the IB CM says, and what becomes of it on the channel.
//!
//! | IB CM | reported | status |
//! |---|---|---|
//! | REQ on a listener | CONNECT_REQUEST | 0 |
//! | REP | CONNECT_RESPONSE | 0 |
//! | RTU, or established by the first packet | ESTABLISHED | 0 |
//! | REQ or REP not answered | UNREACHABLE | -110 |
//! | REJ | REJECTED | its reason |
//! | DREQ, DREP | DISCONNECTED, once | 0 |
//! | DREQ not answered | DISCONNECTED, once | -110 |
//! | TIMEWAIT is over | TIMEWAIT_EXIT, after DISCONNECTED only | 0 |
//! | SIDR_REQ on a listener | CONNECT_REQUEST | 0 |
//! | SIDR_REP with status 0 | ESTABLISHED, or ADDR_ERROR if the Q_Key is not the identifier's | 0 or -22 |
//! | SIDR_REP with another status | UNREACHABLE | that status |
//! | SIDR_REQ not answered | UNREACHABLE | -110 |
//! | MRA, LAP, APR | nothing | |

use crate::identifier::{Response, Role, Standing};
use crate::{
    Cma, ConnEventParam, Counter, Errno, Event, EventKind, EventParam, Id, McId, QpType,
    ReceivedPrivateData, State,
};
use oarlock_cm::ConnId;
use oarlock_wire::{Ece, Rej, Rep, Time};

/// How an attempt ends.
pub(crate) struct Outcome {
    pub(crate) kind: EventKind,
    pub(crate) status: i32,
    pub(crate) param: EventParam,
    pub(crate) ece: Ece,
}

impl Cma {
    /// Takes everything that the IB CM has to say. Called after every input.
    pub(crate) fn pump(&mut self, now: Time) {
        use oarlock_cm::Event as Said;
        while let Some(said) = self.cm.poll_event() {
            match said {
                Said::ReqReceived {
                    id,
                    listener,
                    av,
                    req,
                } => self.on_request(now, id, listener, &av, &req),
                Said::RepReceived { id, rep } => self.on_response(now, id, &rep),
                Said::RtuReceived { id, .. } | Said::UserEstablished { id } => {
                    self.report_of(id, State::Connect, EventKind::ESTABLISHED, 0);
                }
                Said::ReqError { id } | Said::RepError { id } | Said::SidrReqError { id } => {
                    self.on_end(
                        id,
                        Outcome {
                            kind: EventKind::UNREACHABLE,
                            status: Errno::ETIMEDOUT.as_status(),
                            param: EventParam::None,
                            ece: Ece::default(),
                        },
                    );
                }
                Said::SidrReqReceived {
                    id,
                    listener,
                    av,
                    req,
                } => self.on_datagram_request(now, id, listener, &av, &req),
                Said::SidrRepReceived { id, rep } => self.on_datagram_reply(id, &rep),
                Said::LapReceived { id, lap } => self.on_lap(now, id, &lap),
                Said::AprReceived { id, apr } => self.on_apr(id, Some(&apr)),
                Said::LapError { id } => self.on_apr(id, None),
                Said::RejReceived { id, rej } => self.on_rejection(id, &rej),
                Said::DreqReceived { id, .. } | Said::DrepReceived { id, .. } => {
                    self.on_disconnect(id, 0)
                }
                Said::DreqError { id } => self.on_disconnect(id, Errno::ETIMEDOUT.as_status()),
                Said::TimewaitExit { id } => {
                    self.report_of(id, State::Disconnect, EventKind::TIMEWAIT_EXIT, 0);
                }
                // The IB CM waits longer by itself; what a newer one may say beyond this has no event either.
                _ => {}
            }
        }
    }

    fn on_response(&mut self, now: Time, cm: ConnId, rep: &Rep) {
        let Some(id) = self.in_state(cm, State::Connect) else {
            return;
        };
        let Some(ident) = self.ids.get(id.into()) else {
            return;
        };
        let qpn = rep.qpn(ident.qp_type == QpType::XRC_SEND);
        let device = ident.device.and_then(|index| self.devices.get(index));
        let limits = device.map(|device| device.limits).unwrap_or_default();
        let Some(connection) = ident.connection else {
            return;
        };
        let Role::Active {
            asked,
            response: None,
        } = connection.role
        else {
            self.counters.count(Counter::EventsDroppedState);
            return;
        };
        // A response may not grant more than was asked for, nor more than the device can do.
        let response = Response {
            qpn,
            starting_psn: rep.starting_psn,
            responder_resources: self.clamp(
                rep.initiator_depth,
                asked.responder_resources.min(limits.max_qp_rd_atom),
            ),
            initiator_depth: self.clamp(
                rep.responder_resources,
                asked.initiator_depth.min(limits.max_qp_init_rd_atom),
            ),
            rnr_retry_count: rep.rnr_retry_count,
            target_ack_delay: rep.target_ack_delay,
        };
        if let Some(connection) = self
            .ids
            .get_mut(id.into())
            .and_then(|ident| ident.connection.as_mut())
        {
            connection.role = Role::Active {
                asked,
                response: Some(response),
            };
        }
        let param = ConnEventParam {
            private_data: Some(ReceivedPrivateData::new(rep.private_data.as_bytes())),
            responder_resources: response.responder_resources,
            initiator_depth: response.initiator_depth,
            flow_control: rep.end_to_end_flow_control,
            rnr_retry_count: rep.rnr_retry_count,
            srq: rep.srq,
            qpn,
            ..ConnEventParam::default()
        };
        let param = EventParam::Conn(param);
        self.report_with(id, EventKind::CONNECT_RESPONSE, 0, param, rep.ece);
        self.ask_for_patience(now, cm);
    }

    /// Lets the IB CM answer a duplicate of the message with an MRA: the user may take its time.
    pub(crate) fn ask_for_patience(&mut self, now: Time, cm: ConnId) {
        // Refused only if the message has been answered in the meantime, when there is nothing left to wait for.
        let _armed = self.cm.send_mra(now, cm, self.config.mra_service_timeout);
    }

    fn on_rejection(&mut self, cm: ConnId, rej: &Rej) {
        let param = ConnEventParam {
            private_data: Some(ReceivedPrivateData::new(rej.private_data.as_bytes())),
            ..ConnEventParam::default()
        };
        let outcome = Outcome {
            kind: EventKind::REJECTED,
            status: i32::from(rej.reason.0),
            param: EventParam::Conn(param),
            ece: Ece::default(),
        };
        self.on_end(cm, outcome);
    }

    /// The connection did not come about, or is no more, without a DREQ.
    pub(crate) fn on_end(&mut self, cm: ConnId, outcome: Outcome) {
        let Some(id) = self.in_state(cm, State::Connect) else {
            return;
        };
        self.end_connection(id);
        let Outcome {
            kind,
            status,
            param,
            ece,
        } = outcome;
        self.report_with(id, kind, status, param, ece);
    }

    fn on_disconnect(&mut self, cm: ConnId, status: i32) {
        let Some(id) = self.in_state(cm, State::Connect) else {
            return;
        };
        if let Some(ident) = self.ids.get_mut(id.into()) {
            ident.state = State::Disconnect;
        }
        self.report(id, EventKind::DISCONNECTED, status);
    }

    fn report_of(&mut self, cm: ConnId, wanted: State, kind: EventKind, status: i32) {
        if let Some(id) = self.in_state(cm, wanted) {
            self.report(id, kind, status);
        }
    }

    /// The identifier of a connection, if it is in the state for which an event has a meaning.
    pub(crate) fn in_state(&mut self, cm: ConnId, wanted: State) -> Option<Id> {
        let id = self.by_connection.get(&cm).copied();
        let fits = |id: &Id| {
            let ident = self.ids.get((*id).into());
            ident.is_some_and(|ident| {
                ident.state == wanted
                    && ident
                        .connection
                        .is_some_and(|connection| !connection.is_over)
            })
        };
        let found = id.filter(fits);
        if found.is_none() {
            self.counters.count(Counter::EventsDroppedState);
        }
        found
    }

    /// Reports an event without parameters.
    pub(crate) fn report(&mut self, id: Id, kind: EventKind, status: i32) {
        self.report_with(id, kind, status, EventParam::None, Ece::default());
    }

    /// Reports what became of a multicast join.
    pub(crate) fn report_multicast(
        &mut self,
        id: Id,
        mc: McId,
        context: u64,
        kind: EventKind,
        status: i32,
        param: EventParam,
    ) {
        let event = Event {
            id,
            listen_id: None,
            context,
            kind,
            status,
            param,
            ece: Ece::default(),
            multicast: Some(mc),
        };
        self.enqueue(id, event);
    }

    pub(crate) fn report_with(
        &mut self,
        id: Id,
        kind: EventKind,
        status: i32,
        param: EventParam,
        ece: Ece,
    ) {
        let Some(ident) = self.ids.get(id.into()) else {
            return;
        };
        if ident.standing != Standing::Reporting {
            self.counters.count(Counter::EventsDroppedUnaccepted);
            return;
        }
        let event = Event {
            id,
            listen_id: None,
            context: ident.context,
            kind,
            status,
            param,
            ece,
            multicast: None,
        };
        self.enqueue(id, event);
    }

    /// Puts an event at the tail of its owner's channel.
    pub(crate) fn enqueue(&mut self, owner: Id, event: Event) {
        let Some(ident) = self.ids.get_mut(owner.into()) else {
            return;
        };
        let multicast = event.multicast;
        if let Some(place) = self.channels.push(ident.channel, event) {
            ident.queued.push_back(place);
            if let Some(join) = multicast.and_then(|mc| self.multicasts.get_mut(mc)) {
                join.queued = Some(place);
            }
        }
    }
}
