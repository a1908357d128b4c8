//! The calls of a connection: connect, listen, accept, establish, reject, notify.

use crate::identifier::{Answer, Asked, Connection, Identifier, Listening, Role, Standing};
use crate::{
    AsyncEvent, Cma, ConnectParam, Error, Id, LimitOwner, Limits, PRIVATE_DATA_ACCEPT,
    PRIVATE_DATA_CONNECT, PRIVATE_DATA_REJECT, QpType, State,
};
use oarlock_cm::{AcceptParams, ConnId, ConnectParams, Failover, StateName, ack_timeout};
use oarlock_wire::{
    Ece, IpCmHeader, QKey, RejReason, RetryCount, ServiceId, Time, TransportService,
};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

impl Cma {
    /// Sends a REQ to the service that the path leads to. The outcome is CONNECT_RESPONSE, after which [`establish`](Self::establish)
    /// is due, REJECTED or UNREACHABLE.
    ///
    /// A UD identifier sends a SIDR_REQ. Its outcome is ESTABLISHED, with what datagrams to the peer are addressed with;
    /// UNREACHABLE, also if the peer refuses (the status is its own then); or ADDR_ERROR if the peer's Q_Key is another than
    /// the identifier's. Reads, flow control and retries have no meaning for it.
    ///
    /// # Errors
    /// `NoDevice`, `WrongState`; `ResponderResources` and `InitiatorDepth` against the device's limits;
    /// `PrivateDataTooLong`; `QKeyWithoutDatagrams`, `QKeyMismatch`; `EceVendorId`, `EceNotCarried`; `PathSource` if the
    /// address of a UD identifier has gone; `TooManyConnections`, `ChannelFull`.
    #[doc(alias = "rdma_connect")]
    pub fn connect(&mut self, now: Time, id: Id, param: ConnectParam) -> Result<(), Error> {
        let call = "connect";
        let ident = self.working(call, id)?;
        let limits = self.limits(call, ident)?;
        let state = ident.state;
        let (State::RouteResolved, Some(path), Some(local), Some(remote)) =
            (state, ident.path, ident.local, ident.remote)
        else {
            return Err(Error::WrongState {
                call,
                state,
                wanted: "ROUTE_RESOLVED",
            });
        };
        let header = IpCmHeader {
            source_port: local.port(),
            source: local.ip(),
            destination: remote.ip(),
        };
        if ident.qp_type == QpType::UD {
            return self.connect_datagrams(now, id, &path, &header, param);
        }
        check_depths(&param, &limits, LimitOwner::Device)?;
        check_qkey(call, param.qkey)?;
        check_ece(call, param.ece)?;
        check_private_data(call, &param.private_data, PRIVATE_DATA_CONNECT)?;
        self.check_room(id, 1)?;
        let options = ident.options;
        let base = ConnectParams::new(path.av, path.service_id, param.qpn, ident.starting_psn);
        // As in the kernel, the requester of XRC answers nothing and is sent nothing.
        let is_xrc = ident.qp_type == QpType::XRC_SEND;
        let for_peer = |count: RetryCount| if is_xrc { RetryCount::default() } else { count };
        let request = ConnectParams {
            responder_resources: if is_xrc { 0 } else { param.responder_resources },
            initiator_depth: param.initiator_depth,
            end_to_end_flow_control: param.flow_control,
            retry_count: for_peer(param.retry_count),
            rnr_retry_count: for_peer(param.rnr_retry_count),
            srq: param.srq && !is_xrc,
            path_mtu: path.mtu,
            packet_life_time: path.packet_life_time,
            local_ack_timeout: ack_timeout(limits.local_ca_ack_delay, path.packet_life_time),
            pkey: path.pkey,
            packet_rate: path.rate,
            transport_service: match ident.qp_type {
                QpType::UC => TransportService::UC,
                QpType::XRC_SEND | QpType::XRC_RECV => TransportService::EXTENDED,
                _ => TransportService::RC,
            },
            ece: param.ece,
            private_data: with_header(&header, &param.private_data),
            response_timeout: options.cm_response_timeout(&self.config),
            max_cm_retries: options.max_cm_retries(&self.config),
            deadline: options.connect_deadline(&self.config),
            ..base
        };
        let cm = self
            .cm
            .connect(now, request)
            .map_err(|source| refused(call, source))?;
        let asked = Asked {
            qpn: param.qpn,
            responder_resources: param.responder_resources,
            initiator_depth: param.initiator_depth,
            retry_count: param.retry_count,
        };
        let role = Role::Active {
            asked,
            response: None,
        };
        self.begin_connection(id, cm, role)?;
        self.pump(now);
        Ok(())
    }

    /// Gives an identifier the connection that it has just asked for.
    pub(crate) fn begin_connection(
        &mut self,
        id: Id,
        cm: ConnId,
        role: Role,
    ) -> Result<&mut Identifier, Error> {
        self.by_connection.insert(cm, id);
        let ident = self.exposed_mut(id)?;
        ident.connection = Some(Connection {
            cm,
            is_over: false,
            role,
        });
        ident.state = State::Connect;
        Ok(ident)
    }

    /// Listens. Requests arrive as CONNECT_REQUEST; at most `backlog` of them wait on the channel, and what comes beyond
    /// is dropped and counted, or rejected, as configured. A backlog of 0 or less, or above the configured maximum, is that
    /// maximum.
    ///
    /// Its children begin with the options of the listener.
    ///
    /// An idle identifier is bound to any IPv4 address and a free port first. An address that is unspecified or loopback
    /// covers every device, ones that come later included.
    ///
    /// # Errors
    /// `WrongState`; `PortCovered` and `PortInUse`, as a listener shares its port with no one of the same address;
    /// `ServiceIdInUse`; those of [`bind_addr`](Self::bind_addr).
    #[doc(alias = "rdma_listen")]
    pub fn listen(&mut self, id: Id, backlog: i32) -> Result<(), Error> {
        let call = "listen";
        let state = self.working(call, id)?.state;
        match state {
            State::Idle => self.bind(
                id,
                SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0),
                None,
            )?,
            State::AddrBound => {}
            _ => {
                return Err(Error::WrongState {
                    call,
                    state,
                    wanted: "IDLE or ADDR_BOUND",
                });
            }
        }
        let ident = self.exposed(id)?;
        let state = ident.state;
        let claim = ident.claim().ok_or(Error::WrongState {
            call,
            state,
            wanted: "ADDR_BOUND",
        })?;
        let (port_space, port) = (ident.port_space, claim.address.port());
        let ids = &self.ids;
        let claim_of = |id: Id| ids.get(id.into()).and_then(Identifier::claim);
        self.ports.check(id, port_space, &claim, false, claim_of)?;
        let service_id = ServiceId::for_port(port_space, port);
        if !self.listeners.join(service_id, id) {
            let listener = self
                .cm
                .listen(service_id)
                .map_err(|_| Error::ServiceIdInUse { port })?;
            self.listeners.add(service_id, listener, id);
        }
        let max = self.config.max_backlog;
        let backlog = usize::try_from(backlog)
            .ok()
            .filter(|backlog| (1..=max).contains(backlog))
            .unwrap_or(max);
        let ident = self.exposed_mut(id)?;
        ident.options.reuse_addr = false;
        ident.listening = Some(Listening {
            backlog,
            waiting: 0,
            overflows: 0,
        });
        ident.state = State::Listen;
        Ok(())
    }

    /// Accepts a connection request: sends a REP. From now on the child's events are reported, with `context` if one is
    /// given. The outcome is ESTABLISHED, UNREACHABLE or DISCONNECTED.
    ///
    /// A UD identifier sends a SIDR_REP with its queue pair and Q_Key. No outcome is reported: nobody ever says whether the
    /// peer got it.
    ///
    /// # Errors
    /// `WrongState`, `NoConnection`, `ConnectionState` (the request was answered, or the peer has given up). With
    /// `ResponderResources`, `InitiatorDepth` (against the device and the request), `PrivateDataTooLong`,
    /// `QKeyWithoutDatagrams`, `QKeyMismatch` and `EceVendorId` the request is rejected for reason 28 (UD: status 2), as the
    /// kernel does, so that the peer does not wait for nothing.
    #[doc(alias = "rdma_accept")]
    pub fn accept(
        &mut self,
        now: Time,
        id: Id,
        context: Option<u64>,
        param: ConnectParam,
    ) -> Result<(), Error> {
        let call = "accept";
        let ident = self.working(call, id)?;
        let (state, starting_psn) = (ident.state, ident.starting_psn);
        let connection = ident
            .connection
            .ok_or(Error::NoConnection { call, state })?;
        if state != State::Connect {
            return Err(Error::WrongState {
                call,
                state,
                wanted: "CONNECT",
            });
        }
        if ident.qp_type == QpType::UD {
            return self.accept_datagrams(now, id, context, param);
        }
        let Role::Passive { request, .. } = connection.role else {
            return Err(self.connection_state(call, connection.cm));
        };
        let offer = self.answer_offer(id);
        let offered = Limits {
            max_qp_rd_atom: request.responder_resources,
            max_qp_init_rd_atom: request.initiator_depth,
            ..Limits::default()
        };
        let checked = self.limits(call, ident).and_then(|limits| {
            check_depths(&param, &limits, LimitOwner::Device)?;
            check_depths(&param, &offered, LimitOwner::Request)?;
            check_qkey(call, param.qkey)?;
            check_ece(call, param.ece)?;
            check_private_data(call, &param.private_data, PRIVATE_DATA_ACCEPT)?;
            Ok(limits)
        });
        let accepted = checked.and_then(|limits| {
            let reply = AcceptParams {
                responder_resources: param.responder_resources,
                initiator_depth: param.initiator_depth,
                end_to_end_flow_control: param.flow_control,
                rnr_retry_count: param.rnr_retry_count,
                srq: param.srq,
                target_ack_delay: limits.local_ca_ack_delay,
                failover: offer.map_or_else(Failover::default, |(failover, _)| failover),
                ece: param.ece,
                private_data: param.private_data,
                ..AcceptParams::new(param.qpn, starting_psn)
            };
            self.cm
                .accept(now, connection.cm, reply)
                .map_err(|source| refused(call, source))
        });
        if let Err(error) = accepted {
            let rejected =
                self.cm
                    .reject(now, connection.cm, RejReason::CONSUMER_DEFINED, &[], &[]);
            if rejected.is_ok() {
                self.end_connection(id);
            }
            self.pump(now);
            return Err(error);
        }
        let answer = Answer {
            qpn: param.qpn,
            responder_resources: param.responder_resources,
            initiator_depth: param.initiator_depth,
            rnr_retry_count: param.rnr_retry_count,
        };
        let ident = self.exposed_mut(id)?;
        ident.standing = Standing::Reporting;
        if let (Some(alternate), Some((_, state))) = (&mut ident.alternate, offer) {
            alternate.state = state;
        }
        ident.context = context.unwrap_or(ident.context);
        ident.connection = Some(Connection {
            role: Role::Passive {
                request,
                answer: Some(answer),
            },
            ..connection
        });
        self.pump(now);
        Ok(())
    }

    /// Completes a connection after CONNECT_RESPONSE: sends the RTU. No event follows; the queue pair is to be ready.
    ///
    /// # Errors
    /// `NoConnection`, `NotConnected` for UD, `ConnectionState`.
    #[doc(alias = "rdma_establish")]
    pub fn establish(&mut self, now: Time, id: Id) -> Result<(), Error> {
        let call = "establish";
        let (ident, cm) = self.connection_of(call, id)?;
        if ident.qp_type == QpType::UD {
            return Err(Error::NotConnected { call });
        }
        self.cm
            .establish(now, cm, &[])
            .map_err(|source| refused(call, source))?;
        self.pump(now);
        Ok(())
    }

    /// Rejects a connection request, or a response, with private data for the peer. No event follows. The answer to a UD
    /// request has a status (2) and no reason.
    ///
    /// # Errors
    /// `NoConnection`, `RejectReason`, `PrivateDataTooLong`, `ConnectionState`.
    #[doc(alias = "rdma_reject")]
    #[doc(alias = "rdma_reject_ece")]
    pub fn reject(
        &mut self,
        now: Time,
        id: Id,
        reason: RejReason,
        private_data: &[u8],
    ) -> Result<(), Error> {
        let call = "reject";
        let (ident, cm) = self.connection_of(call, id)?;
        if reason != RejReason::CONSUMER_DEFINED && reason != RejReason::VENDOR_OPTION_NOT_SUPPORTED
        {
            return Err(Error::RejectReason { reason });
        }
        if ident.qp_type == QpType::UD {
            return self.reject_datagrams(now, id, private_data);
        }
        check_private_data(call, private_data, PRIVATE_DATA_REJECT)?;
        self.cm
            .reject(now, cm, reason, &[], private_data)
            .map_err(|source| refused(call, source))?;
        self.end_connection(id);
        self.pump(now);
        Ok(())
    }

    /// Passes an asynchronous event of the queue pair on. `CommEst` establishes a connection whose RTU is late or lost;
    /// the outcome is ESTABLISHED. `PathMig` makes the alternate path, if one is loaded, the path of an established
    /// connection; messages of the connection manager still take the way on which the connection was made.
    ///
    /// # Errors
    /// `NoDevice`, `NoConnection`, `ConnectionState`, `AlreadyEstablished`.
    #[doc(alias = "rdma_notify")]
    pub fn notify(&mut self, now: Time, id: Id, event: AsyncEvent) -> Result<(), Error> {
        let call = "notify";
        let ident = self.working(call, id)?;
        if ident.device.is_none() {
            return Err(Error::NoDevice {
                call,
                state: ident.state,
            });
        }
        let (_, cm) = self.connection_of(call, id)?;
        match event {
            AsyncEvent::CommEst => match self.cm.notify_established(now, cm) {
                Ok(()) => {}
                Err(oarlock_cm::Error::WrongState {
                    state: StateName::Established,
                    ..
                }) => {
                    return Err(Error::AlreadyEstablished);
                }
                Err(source) => return Err(refused(call, source)),
            },
            AsyncEvent::PathMig if self.cm.state(cm) == Some(StateName::Established) => {
                self.exposed_mut(id)?.turn_to_alternate();
            }
            AsyncEvent::PathMig => return Err(self.connection_state(call, cm)),
        }
        self.pump(now);
        Ok(())
    }

    pub(crate) fn connection_of(
        &self,
        call: &'static str,
        id: Id,
    ) -> Result<(&Identifier, ConnId), Error> {
        let ident = self.working(call, id)?;
        let connection = ident.connection.ok_or(Error::NoConnection {
            call,
            state: ident.state,
        })?;
        Ok((ident, connection.cm))
    }

    pub(crate) fn connection_state(&self, call: &'static str, cm: ConnId) -> Error {
        Error::ConnectionState {
            call,
            cm_state: self.cm.state(cm).unwrap_or(StateName::Idle),
        }
    }

    pub(crate) fn end_connection(&mut self, id: Id) {
        if let Some(connection) = self
            .ids
            .get_mut(id.into())
            .and_then(|ident| ident.connection.as_mut())
        {
            connection.is_over = true;
        }
    }

    pub(crate) fn limits(&self, call: &'static str, ident: &Identifier) -> Result<Limits, Error> {
        Ok(self.device_of(call, ident)?.limits)
    }

    /// Refuses what leads to further events while the channel is full.
    pub(crate) fn check_room(&self, id: Id, adding: usize) -> Result<(), Error> {
        let (queued, max) = (
            self.queued(self.exposed(id)?.channel),
            self.config.max_queued_events,
        );
        if queued + adding > max {
            Err(Error::ChannelFull {
                queued,
                adding,
                max,
            })
        } else {
            Ok(())
        }
    }
}

fn check_depths(param: &ConnectParam, limits: &Limits, owner: LimitOwner) -> Result<(), Error> {
    let (given, max) = (param.responder_resources, limits.max_qp_rd_atom);
    if given > max {
        return Err(Error::ResponderResources { given, max, owner });
    }
    let (given, max) = (param.initiator_depth, limits.max_qp_init_rd_atom);
    if given > max {
        return Err(Error::InitiatorDepth { given, max, owner });
    }
    Ok(())
}

pub(crate) fn check_private_data(call: &'static str, data: &[u8], max: usize) -> Result<(), Error> {
    if data.len() > max {
        return Err(Error::PrivateDataTooLong {
            call,
            given: data.len(),
            max,
        });
    }
    Ok(())
}

fn check_qkey(call: &'static str, qkey: QKey) -> Result<(), Error> {
    if qkey != QKey(0) {
        return Err(Error::QKeyWithoutDatagrams { call, qkey });
    }
    Ok(())
}

pub(crate) fn check_ece(call: &'static str, ece: Ece) -> Result<(), Error> {
    if ece.vendor_id > Ece::MAX_VENDOR_ID {
        return Err(Error::EceVendorId {
            call,
            given: ece.vendor_id,
        });
    }
    Ok(())
}

/// The private data of a request: the IP CM header and what the user gave.
pub(crate) fn with_header(header: &IpCmHeader, data: &[u8]) -> Vec<u8> {
    let mut bytes = [0; IpCmHeader::LEN];
    header.emit(&mut bytes);
    [&bytes[..], data].concat()
}

pub(crate) fn refused(call: &'static str, source: oarlock_cm::Error) -> Error {
    match source {
        oarlock_cm::Error::WrongState { state, .. } => Error::ConnectionState {
            call,
            cm_state: state,
        },
        oarlock_cm::Error::WrongLapState { state, .. } => {
            Error::AlternatePathPending { call, state }
        }
        oarlock_cm::Error::TooManyConnections { max } => Error::TooManyConnections { max },
        source => Error::Cm { call, source },
    }
}
