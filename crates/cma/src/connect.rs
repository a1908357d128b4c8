//! The calls of a connection: connect, listen, accept, establish, reject, disconnect, notify.

use crate::identifier::{Answer, Asked, Connection, Identifier, Listening, Role};
use crate::{
    AsyncEvent, Cma, ConnectParam, Disconnect, Error, Id, LimitOwner, Limits, PRIVATE_DATA_ACCEPT,
    PRIVATE_DATA_CONNECT, PRIVATE_DATA_REJECT, State,
};
use oarlock_cm::{AcceptParams, ConnId, ConnectParams, StateName, ack_timeout};
use oarlock_wire::{IpCmHeader, RejReason, ServiceId, Time};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

impl Cma {
    /// Sends a REQ to the service that the path leads to. The outcome is CONNECT_RESPONSE, after which [`establish`](Self::establish)
    /// is due, REJECTED or UNREACHABLE.
    ///
    /// # Errors
    /// `NoDevice`, `WrongState`; `ResponderResources` and `InitiatorDepth` against the device's limits;
    /// `PrivateDataTooLong`; `TooManyConnections`, `ChannelFull`.
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
        check_depths(&param, &limits, LimitOwner::Device)?;
        check_private_data(call, &param.private_data, PRIVATE_DATA_CONNECT)?;
        self.check_room(id, 1)?;
        let header = IpCmHeader {
            source_port: local.port(),
            source: local.ip(),
            destination: remote.ip(),
        };
        let mut header_bytes = [0; IpCmHeader::LEN];
        header.emit(&mut header_bytes);
        let mut private_data = header_bytes.to_vec();
        private_data.extend_from_slice(&param.private_data);
        let options = ident.options;
        let base = ConnectParams::new(path.av, path.service_id, param.qpn, ident.starting_psn);
        let request = ConnectParams {
            responder_resources: param.responder_resources,
            initiator_depth: param.initiator_depth,
            end_to_end_flow_control: param.flow_control,
            retry_count: param.retry_count,
            rnr_retry_count: param.rnr_retry_count,
            srq: param.srq,
            path_mtu: path.mtu,
            packet_life_time: path.packet_life_time,
            local_ack_timeout: ack_timeout(limits.local_ca_ack_delay, path.packet_life_time),
            pkey: path.pkey,
            private_data,
            response_timeout: options
                .cm_response_timeout
                .unwrap_or(self.config.cm_response_timeout),
            max_cm_retries: options.max_cm_retries.unwrap_or(self.config.max_cm_retries),
            deadline: options
                .connect_deadline
                .unwrap_or(self.config.connect_deadline),
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
        self.by_connection.insert(cm, id);
        let ident = self.exposed_mut(id)?;
        ident.connection = Some(Connection {
            cm,
            is_over: false,
            role: Role::Active {
                asked,
                response: None,
            },
        });
        ident.state = State::Connect;
        self.pump(now);
        Ok(())
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
    /// # Errors
    /// `WrongState`, `NoConnection`, `ConnectionState` (the request was answered, or the peer has given up). With
    /// `ResponderResources`, `InitiatorDepth` (against the device and the request) and `PrivateDataTooLong` the request
    /// is rejected for reason 28, as the kernel does, so that the peer does not wait for nothing.
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
        let Role::Passive { request, .. } = connection.role else {
            return Err(self.connection_state(call, connection.cm));
        };
        let offered = Limits {
            max_qp_rd_atom: request.responder_resources,
            max_qp_init_rd_atom: request.initiator_depth,
            ..Limits::default()
        };
        let checked = self.limits(call, ident).and_then(|limits| {
            check_depths(&param, &limits, LimitOwner::Device)?;
            check_depths(&param, &offered, LimitOwner::Request)?;
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
        ident.standing = crate::identifier::Standing::Reporting;
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
    /// `WrongState`, `NoConnection`, `ConnectionState`.
    #[doc(alias = "rdma_establish")]
    pub fn establish(&mut self, now: Time, id: Id) -> Result<(), Error> {
        let call = "establish";
        let (_, cm) = self.connection_of(call, id)?;
        self.cm
            .establish(now, cm, &[])
            .map_err(|source| refused(call, source))?;
        self.pump(now);
        Ok(())
    }

    /// Rejects a connection request, or a response, with private data for the peer. No event follows.
    ///
    /// # Errors
    /// `NoConnection`, `RejectReason`, `PrivateDataTooLong`, `ConnectionState`.
    #[doc(alias = "rdma_reject")]
    pub fn reject(
        &mut self,
        now: Time,
        id: Id,
        reason: RejReason,
        private_data: &[u8],
    ) -> Result<(), Error> {
        let call = "reject";
        let (_, cm) = self.connection_of(call, id)?;
        if reason != RejReason::CONSUMER_DEFINED && reason != RejReason::VENDOR_OPTION_NOT_SUPPORTED
        {
            return Err(Error::RejectReason { reason });
        }
        check_private_data(call, private_data, PRIVATE_DATA_REJECT)?;
        self.cm
            .reject(now, cm, reason, &[], private_data)
            .map_err(|source| refused(call, source))?;
        self.end_connection(id);
        self.pump(now);
        Ok(())
    }

    /// Takes a connection down: sends a DREQ, or a DREP if the peer has sent a DREQ. The outcome is DISCONNECTED, unless it
    /// was reported before, and then TIMEWAIT_EXIT.
    ///
    /// # Errors
    /// `NoConnection`. A connection with nothing to take down is no error, see [`Disconnect::Nothing`].
    #[doc(alias = "rdma_disconnect")]
    pub fn disconnect(&mut self, now: Time, id: Id) -> Result<Disconnect, Error> {
        let (_, cm) = self.connection_of("disconnect", id)?;
        let done = if self.cm.disconnect(now, cm, &[]).is_ok() {
            Disconnect::Requested
        } else if self.cm.reply_disconnect(now, cm, &[]).is_ok() {
            Disconnect::Replied
        } else {
            Disconnect::Nothing {
                cm_state: self.cm.state(cm).unwrap_or(StateName::Idle),
            }
        };
        self.pump(now);
        Ok(done)
    }

    /// Passes an asynchronous event of the queue pair on. `CommEst` establishes a connection whose RTU is late or lost;
    /// the outcome is ESTABLISHED.
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
            // The IB CM would turn to the alternate path; a RoCE path has none.
            AsyncEvent::PathMig => return Err(self.connection_state(call, cm)),
        }
        self.pump(now);
        Ok(())
    }

    fn connection_of(&self, call: &'static str, id: Id) -> Result<(&Identifier, ConnId), Error> {
        let ident = self.working(call, id)?;
        let connection = ident.connection.ok_or(Error::NoConnection {
            call,
            state: ident.state,
        })?;
        Ok((ident, connection.cm))
    }

    fn connection_state(&self, call: &'static str, cm: ConnId) -> Error {
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
        let device = ident.device.and_then(|index| self.devices.get(index));
        device.map(|device| device.limits).ok_or(Error::NoDevice {
            call,
            state: ident.state,
        })
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

fn check_private_data(call: &'static str, data: &[u8], max: usize) -> Result<(), Error> {
    if data.len() > max {
        return Err(Error::PrivateDataTooLong {
            call,
            given: data.len(),
            max,
        });
    }
    Ok(())
}

fn refused(call: &'static str, source: oarlock_cm::Error) -> Error {
    match source {
        oarlock_cm::Error::WrongState { state, .. } => Error::ConnectionState {
            call,
            cm_state: state,
        },
        oarlock_cm::Error::TooManyConnections { max } => Error::TooManyConnections { max },
        source => Error::Cm { call, source },
    }
}
