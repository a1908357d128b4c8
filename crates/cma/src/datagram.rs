//! Identifiers for datagrams (UD): a request is a SIDR_REQ, its answer a SIDR_REP. There is no third message, no
//! connection, and nothing to take down.

use crate::connect::{check_ece, check_private_data, refused, with_header};
use crate::identifier::{Identifier, Resolution, Role, Standing, UdPeer};
use crate::report::Outcome;
use crate::request::{Match, NewChild};
use crate::{
    Cma, ConnectParam, Counter, Errno, Error, EventKind, EventParam, Id, PRIVATE_DATA_UD_ACCEPT,
    PRIVATE_DATA_UD_CONNECT, Path, ReceivedPrivateData, State, UdEventParam,
};
use oarlock_cm::{ConnId, ListenerId, SidrParams, SidrReplyParams};
use oarlock_wire::{AddressVector, Ece, IpCmHeader, QKey, Qpn, SidrRep, SidrReq, SidrStatus, Time};

impl Cma {
    /// Sends a SIDR_REQ: `connect` of a UD identifier, whose route is resolved.
    pub(crate) fn connect_datagrams(
        &mut self,
        now: Time,
        id: Id,
        path: &Path,
        header: &IpCmHeader,
        param: ConnectParam,
    ) -> Result<(), Error> {
        let call = "connect";
        let ident = self.exposed(id)?;
        let own = param_qkey(call, ident, param.qkey)?;
        if !param.ece.is_none() {
            return Err(Error::EceNotCarried {
                call,
                ece: param.ece,
            });
        }
        check_private_data(call, &param.private_data, PRIVATE_DATA_UD_CONNECT)?;
        let device = self.device_of(call, ident)?;
        let sgid_index = device
            .sgid_index(path.av.local)
            .ok_or(Error::PathSource { gid: path.av.local })?;
        let port_num = device.port_num;
        self.check_room(id, 1)?;
        let options = ident.options;
        let request = SidrParams {
            pkey: path.pkey,
            private_data: with_header(header, &param.private_data),
            response_timeout: options.cm_response_timeout(&self.config),
            max_cm_retries: options.max_cm_retries(&self.config),
            deadline: options.connect_deadline(&self.config),
            ..SidrParams::new(path.av, path.service_id)
        };
        let cm = self
            .cm
            .sidr_request(now, request)
            .map_err(|source| refused(call, source))?;
        let ident = self.begin_connection(
            id,
            cm,
            Role::Requester {
                qpn: param.qpn,
                sgid_index,
                port_num,
                peer: None,
            },
        )?;
        ident.qkey = own;
        self.pump(now);
        Ok(())
    }

    /// Sends a SIDR_REP with success: `accept` of the child of a SIDR_REQ.
    pub(crate) fn accept_datagrams(
        &mut self,
        now: Time,
        id: Id,
        context: Option<u64>,
        param: ConnectParam,
    ) -> Result<(), Error> {
        let call = "accept";
        let ident = self.exposed(id)?;
        let cm = self.unanswered(call, ident)?;
        let qkey = param_qkey(call, ident, param.qkey).and_then(|own| {
            check_ece(call, param.ece)?;
            check_private_data(call, &param.private_data, PRIVATE_DATA_UD_ACCEPT)?;
            Ok(own.unwrap_or(QKey::RDMA_UDP))
        });
        let answered = qkey.and_then(|qkey| {
            let reply = SidrReplyParams {
                private_data: param.private_data,
                ece: param.ece,
                ..SidrReplyParams::success(param.qpn, qkey)
            };
            self.cm
                .sidr_reply(now, cm, reply)
                .map(|()| qkey)
                .map_err(|source| refused(call, source))
        });
        let qkey = match answered {
            Ok(qkey) => qkey,
            Err(error) => {
                self.refuse_datagrams(now, id, cm, &[]);
                self.pump(now);
                return Err(error);
            }
        };
        let ident = self.exposed_mut(id)?;
        ident.standing = Standing::Reporting;
        ident.context = context.unwrap_or(ident.context);
        ident.qkey = Some(qkey);
        if let Some(connection) = &mut ident.connection {
            connection.role = Role::Responder {
                answer: Some(param.qpn),
            };
        }
        self.pump(now);
        Ok(())
    }

    /// Sends a SIDR_REP with status 2: `reject` of the child of a SIDR_REQ.
    pub(crate) fn reject_datagrams(
        &mut self,
        now: Time,
        id: Id,
        private_data: &[u8],
    ) -> Result<(), Error> {
        let call = "reject";
        let cm = self.unanswered(call, self.exposed(id)?)?;
        check_private_data(call, private_data, PRIVATE_DATA_UD_ACCEPT)?;
        self.refuse_datagrams(now, id, cm, private_data);
        self.pump(now);
        Ok(())
    }

    /// Answers a request with status 2, which is the end of it.
    pub(crate) fn refuse_datagrams(&mut self, now: Time, id: Id, cm: ConnId, private_data: &[u8]) {
        let refusal = SidrReplyParams {
            private_data: private_data.to_vec(),
            ..SidrReplyParams::refusal(SidrStatus::REJECT)
        };
        let answered = self.cm.sidr_reply(now, cm, refusal);
        debug_assert!(
            answered.is_ok(),
            "the request is unanswered and the private data checked: {answered:?}"
        );
        self.end_connection(id);
    }

    /// The IB CM's handle of a SIDR_REQ that waits for its answer.
    fn unanswered(&self, call: &'static str, ident: &Identifier) -> Result<ConnId, Error> {
        let state = ident.state;
        let connection = ident
            .connection
            .ok_or(Error::NoConnection { call, state })?;
        match connection.role {
            Role::Responder { answer: None } if !connection.is_over => Ok(connection.cm),
            _ => Err(self.connection_state(call, connection.cm)),
        }
    }

    /// A SIDR_REQ arrived.
    pub(crate) fn on_datagram_request(
        &mut self,
        now: Time,
        cm: ConnId,
        listener: ListenerId,
        av: &AddressVector,
        req: &SidrReq,
    ) {
        match self.match_datagram_request(listener, av, req) {
            Ok(found) => self.add_datagram_child(cm, av, req, &found),
            Err(refusal) => {
                self.counters.count(refusal.counter());
                match refusal.sidr_status() {
                    // Destroying it instead would answer with status 2.
                    None => self.forget_request(now, cm),
                    Some(status) => {
                        let reply = SidrReplyParams::refusal(status);
                        // It has just arrived, a state in which it can be answered; if not, destroying it does.
                        let _answered = self.cm.sidr_reply(now, cm, reply);
                        self.cm.destroy(now, cm);
                    }
                }
            }
        }
    }

    fn add_datagram_child(&mut self, cm: ConnId, av: &AddressVector, req: &SidrReq, found: &Match) {
        let data = &req.private_data.as_bytes()[IpCmHeader::LEN..];
        let param = UdEventParam {
            private_data: Some(ReceivedPrivateData::new(data)),
            av: *av,
            sgid_index: found.sgid_index,
            port_num: found.port_num,
            qpn: Qpn::default(),
            qkey: QKey(0),
        };
        let child = NewChild {
            role: Role::Responder { answer: None },
            path: None,
            resolution: Some(Resolution {
                av: *av,
                link_mtu: found.link_mtu,
            }),
            alternate: None,
            param: EventParam::Ud(param),
            ece: Ece::default(),
        };
        self.add_child(cm, av, found, child);
    }

    /// The peer answered a SIDR_REQ.
    pub(crate) fn on_datagram_reply(&mut self, cm: ConnId, rep: &SidrRep) {
        let Some(id) = self.in_state(cm, State::Connect) else {
            return;
        };
        let Some(ident) = self.ids.get_mut(id.into()) else {
            return;
        };
        let own = ident.qkey;
        let (Some(path), Some(connection)) = (ident.path, &mut ident.connection) else {
            return;
        };
        let Role::Requester {
            sgid_index,
            port_num,
            peer,
            ..
        } = &mut connection.role
        else {
            self.counters.count(Counter::EventsDroppedState);
            return;
        };
        let mut param = UdEventParam {
            private_data: Some(ReceivedPrivateData::new(rep.private_data.as_bytes())),
            av: path.av,
            sgid_index: *sgid_index,
            port_num: *port_num,
            qpn: Qpn::default(),
            qkey: QKey(0),
        };
        let fits = rep.qkey != QKey(0) && own.is_none_or(|own| rep.qkey == own);
        let (kind, status) = match rep.status {
            SidrStatus::SUCCESS if fits => {
                let found = UdPeer {
                    qpn: rep.qpn,
                    qkey: rep.qkey,
                };
                *peer = Some(found);
                (param.qpn, param.qkey) = (found.qpn, found.qkey);
                self.report_with(
                    id,
                    EventKind::ESTABLISHED,
                    0,
                    EventParam::Ud(param),
                    rep.ece,
                );
                return;
            }
            SidrStatus::SUCCESS => (EventKind::ADDR_ERROR, Errno::EINVAL.as_status()),
            status => (EventKind::UNREACHABLE, i32::from(status.0)),
        };
        let outcome = Outcome {
            kind,
            status,
            param: EventParam::Ud(param),
            ece: rep.ece,
        };
        self.on_end(cm, outcome);
    }
}

/// The Q_Key that an identifier has once `given` is taken: an identifier keeps its first.
fn param_qkey(call: &'static str, ident: &Identifier, given: QKey) -> Result<Option<QKey>, Error> {
    match ident.qkey {
        Some(own) if given != QKey(0) && given != own => {
            Err(Error::QKeyMismatch { call, given, own })
        }
        Some(own) => Ok(Some(own)),
        None => Ok(Some(given).filter(|given| *given != QKey(0))),
    }
}
