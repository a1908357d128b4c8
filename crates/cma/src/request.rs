//! A REQ or a SIDR_REQ arrives: find its listener, make a child, queue the event.

use crate::device::{Device, is_link_local};
use crate::identifier::{Connection, Identifier, Request, Resolution, Role, Standing};
use crate::resolve::with_scope;
use crate::{
    Alternate, BacklogOverflow, Cma, ConnEventParam, Counter, Event, EventKind, EventParam, Id,
    Limits, Path, QpType, ReceivedPrivateData, State,
};
use oarlock_cm::{ConnId, ListenerId};
use oarlock_wire::{
    AddressVector, Ece, IbTimeout, IpCmHeader, RejReason, Req, SidrReq, SidrStatus, Time,
    TransportService, WireErrorKind,
};
use std::net::SocketAddr;

/// Why a request does not become an event.
pub(crate) enum Refusal {
    /// A REJ goes back.
    Reject(RejReason, Counter),
    /// Nothing goes back; the peer tries again.
    Drop(Counter),
}

impl Refusal {
    pub(crate) const fn counter(&self) -> Counter {
        match self {
            Self::Reject(_, counter) | Self::Drop(counter) => *counter,
        }
    }

    /// The answer to a SIDR_REQ, if there is one.
    pub(crate) fn sidr_status(&self) -> Option<SidrStatus> {
        match *self {
            Self::Reject(RejReason::NO_RESOURCES, _) => Some(SidrStatus::NO_QP),
            Self::Reject(..) => Some(SidrStatus::REJECT),
            Self::Drop(_) => None,
        }
    }
}

/// What a request that becomes an event leads to.
pub(crate) struct Match {
    listener: Id,
    header: IpCmHeader,
    device: u32,
    limits: Limits,
    pub(crate) link_mtu: u32,
    pub(crate) sgid_index: u8,
    pub(crate) port_num: u8,
}

/// What tells the children of a REQ and of a SIDR_REQ apart.
pub(crate) struct NewChild {
    pub(crate) role: Role,
    pub(crate) path: Option<Path>,
    pub(crate) resolution: Option<Resolution>,
    pub(crate) alternate: Option<Alternate>,
    pub(crate) param: EventParam,
    pub(crate) ece: Ece,
}

impl Cma {
    pub(crate) fn on_request(
        &mut self,
        now: Time,
        cm: ConnId,
        listener: ListenerId,
        av: &AddressVector,
        req: &Req,
    ) {
        let refusal = match self.match_request(listener, av, req) {
            Ok(found) => {
                self.add_connected_child(now, cm, av, req, &found);
                return;
            }
            Err(refusal) => refusal,
        };
        self.counters.count(refusal.counter());
        match refusal {
            Refusal::Drop(_) => self.forget_request(now, cm),
            Refusal::Reject(reason, _) => {
                let ari = if reason == RejReason::INVALID_GID {
                    &av.local.0[..]
                } else {
                    &[]
                };
                // The connection has just arrived, a state in which it can be rejected; if not, destroying it does the same.
                let _rejected = self.cm.reject(now, cm, reason, ari, &[]);
                self.cm.destroy(now, cm);
            }
        }
    }

    /// Leaves a request without an answer: the peer tries again.
    pub(crate) fn forget_request(&mut self, now: Time, cm: ConnId) {
        let forgotten = self.cm.drop_request(now, cm);
        debug_assert!(forgotten.is_ok(), "the request has just arrived");
    }

    fn match_request(
        &mut self,
        listener: ListenerId,
        av: &AddressVector,
        req: &Req,
    ) -> Result<Match, Refusal> {
        let found = self.match_addresses(listener, av, req.private_data.as_bytes())?;
        let device = self.devices.get(found.device);
        if device.is_none_or(|device| device.sgid_index(req.primary.remote_gid).is_none()) {
            return Err(Refusal::Reject(
                RejReason::INVALID_GID,
                Counter::RequestsRejectedGid,
            ));
        }
        let qp_type = match req.transport_service {
            TransportService::RC => Some(QpType::RC),
            TransportService::UC => Some(QpType::UC),
            _ if req.is_xrc() => Some(QpType::XRC_RECV),
            _ => None,
        };
        self.check_transport(found.listener, qp_type)?;
        let largest = oarlock_wire::Mtu::largest_for_link(found.link_mtu);
        if req.path_mtu.bytes().is_none() || largest.is_none_or(|largest| req.path_mtu > largest) {
            return Err(Refusal::Reject(
                RejReason::INVALID_PATH_MTU,
                Counter::RequestsRejectedMtu,
            ));
        }
        self.check_limits(found.listener)?;
        Ok(found)
    }

    pub(crate) fn match_datagram_request(
        &mut self,
        listener: ListenerId,
        av: &AddressVector,
        req: &SidrReq,
    ) -> Result<Match, Refusal> {
        let found = self.match_addresses(listener, av, req.private_data.as_bytes())?;
        self.check_transport(found.listener, Some(QpType::UD))?;
        self.check_limits(found.listener)?;
        Ok(found)
    }

    /// Finds the device and the listener that the addresses of a request name.
    fn match_addresses(
        &self,
        listener: ListenerId,
        av: &AddressVector,
        private_data: &[u8],
    ) -> Result<Match, Refusal> {
        let header = private_data.first_chunk().map_or_else(
            || Err(consumer(Counter::RequestsRejectedHeader)),
            |bytes| {
                IpCmHeader::parse(bytes).map_err(|error| match error.kind {
                    // Deviation: the kernel takes this for native addressing (AF_IB), which is not implemented.
                    WireErrorKind::NotIp(_) => consumer(Counter::RequestsRejectedNotIp),
                    _ => consumer(Counter::RequestsRejectedHeader),
                })
            },
        )?;
        let foreign = || consumer(Counter::RequestsRejectedAddress);
        let device = self.devices.by_path(av).ok_or_else(foreign)?;
        self.check_addresses(&header, device, av)
            .then_some(())
            .ok_or_else(foreign)?;
        let sgid_index = device.sgid_index(av.local).ok_or_else(foreign)?;
        let found = self.find_listener(listener, &header, device.index);
        Ok(Match {
            listener: found.ok_or_else(|| consumer(Counter::RequestsRejectedNoListener))?,
            header,
            device: device.index,
            limits: device.limits,
            link_mtu: device.netdev_mtu,
            sgid_index,
            port_num: device.port_num,
        })
    }

    /// Whether a request is for queue pairs of the listener's type.
    fn check_transport(&self, listener: Id, asked: Option<QpType>) -> Result<(), Refusal> {
        let listener = self.ids.get(listener.into());
        if listener.map(|listener| listener.qp_type) == asked {
            return Ok(());
        }
        Err(consumer(Counter::RequestsRejectedTransport))
    }

    /// Whether the addresses in the header are ones that may stand there. Loopback addresses are as good as any as long as
    /// both ends are this host.
    fn check_addresses(&self, header: &IpCmHeader, device: &Device, av: &AddressVector) -> bool {
        let is_from_here = || self.devices.is_local(av.remote.to_ip(), av.scope_id);
        let destination_fits =
            device.addresses.contains(&header.destination) || header.destination.is_loopback();
        let names_loopback = header.destination.is_loopback() || header.source.is_loopback();
        destination_fits && (!names_loopback || is_from_here())
    }

    /// The listener whose address and device the request is for.
    fn find_listener(&self, listener: ListenerId, header: &IpCmHeader, device: u32) -> Option<Id> {
        let is_for = |id: &Id| {
            let Some(ident) = self
                .ids
                .get((*id).into())
                .filter(|ident| ident.state == State::Listen)
            else {
                return false;
            };
            let Some(local) = ident.local.map(|local| local.ip()) else {
                return false;
            };
            let address_fits = if local.is_unspecified() {
                !ident.options.af_only || local.is_ipv4() == header.destination.is_ipv4()
            } else {
                local == header.destination
            };
            address_fits && ident.device.is_none_or(|bound| bound == device)
        };
        self.listeners.ids(listener).iter().copied().find(is_for)
    }

    fn check_limits(&mut self, listener: Id) -> Result<(), Refusal> {
        let id_limit_reached = self.ids.len() >= self.config.max_ids;
        let overflow = self.config.backlog_overflow;
        let max_queued = self.config.max_queued_events;
        let Some(ident) = self.ids.get_mut(listener.into()) else {
            return Err(Refusal::Drop(Counter::RequestsDroppedIds));
        };
        let channel = ident.channel;
        if let Some(listening) = ident
            .listening
            .as_mut()
            .filter(|listening| listening.waiting >= listening.backlog)
        {
            listening.overflows += 1;
            return Err(match overflow {
                BacklogOverflow::Drop => Refusal::Drop(Counter::RequestsDroppedBacklog),
                BacklogOverflow::RejectNoResources => {
                    Refusal::Reject(RejReason::NO_RESOURCES, Counter::RequestsRejectedBacklog)
                }
            });
        }
        if id_limit_reached {
            return Err(Refusal::Drop(Counter::RequestsDroppedIds));
        }
        if self.queued(channel) >= max_queued {
            return Err(Refusal::Drop(Counter::RequestsDroppedChannel));
        }
        Ok(())
    }

    fn add_connected_child(
        &mut self,
        now: Time,
        cm: ConnId,
        av: &AddressVector,
        req: &Req,
        found: &Match,
    ) {
        let limits = found.limits;
        let request = Request {
            qpn: req.local_qpn,
            starting_psn: req.starting_psn,
            responder_resources: self.clamp(req.initiator_depth, limits.max_qp_rd_atom),
            initiator_depth: self.clamp(req.responder_resources, limits.max_qp_init_rd_atom),
            retry_count: req.retry_count,
            rnr_retry_count: req.rnr_retry_count,
        };
        let data = &req.private_data.as_bytes()[IpCmHeader::LEN..];
        let param = ConnEventParam {
            private_data: Some(ReceivedPrivateData::new(data)),
            responder_resources: request.responder_resources,
            initiator_depth: request.initiator_depth,
            flow_control: req.end_to_end_flow_control,
            retry_count: req.retry_count,
            rnr_retry_count: req.rnr_retry_count,
            srq: req.srq,
            qpn: req.local_qpn,
        };
        let child = NewChild {
            role: Role::Passive {
                request,
                answer: None,
            },
            path: Some(path_of(req, av)),
            resolution: None,
            alternate: Self::offered_alternate(req),
            param: EventParam::Conn(param),
            ece: req.ece,
        };
        self.add_child(cm, av, found, child);
        self.ask_for_patience(now, cm);
    }

    /// Makes the child of a request and queues the event.
    pub(crate) fn add_child(
        &mut self,
        cm: ConnId,
        av: &AddressVector,
        found: &Match,
        new: NewChild,
    ) {
        let starting_psn = self.cm.random_psn();
        let Some(parent) = self.ids.get(found.listener.into()) else {
            return;
        };
        let context = parent.context;
        let port = parent.local.map_or(0, |local| local.port());
        let scoped = |ip, port| {
            let scope_id = if is_link_local(ip) { av.scope_id } else { 0 };
            with_scope(SocketAddr::new(ip, port), scope_id)
        };
        let mut child = Identifier::new(
            parent.channel,
            parent.port_space,
            parent.qp_type,
            0,
            starting_psn,
        );
        child.options = parent.options;
        child.state = State::Connect;
        child.standing = Standing::Undelivered {
            listener: found.listener,
        };
        child.local = Some(scoped(found.header.destination, port));
        child.remote = Some(scoped(found.header.source, found.header.source_port));
        child.device = Some(found.device);
        child.path = new.path;
        child.resolution = new.resolution;
        child.alternate = new.alternate;
        child.connection = Some(Connection {
            cm,
            is_over: false,
            role: new.role,
        });
        let child = self.add(child);
        self.by_connection.insert(cm, child);
        let event = Event {
            id: child,
            listen_id: Some(found.listener),
            context,
            kind: EventKind::CONNECT_REQUEST,
            status: 0,
            param: new.param,
            ece: new.ece,
            multicast: None,
        };
        self.enqueue(found.listener, event);
        self.counters.count(Counter::RequestsQueued);
        if let Some(listening) = self
            .ids
            .get_mut(found.listener.into())
            .and_then(|ident| ident.listening.as_mut())
        {
            listening.waiting += 1;
        }
    }

    /// What a peer offers, as far as it can be used here.
    pub(crate) fn clamp(&mut self, offered: u8, max: u8) -> u8 {
        if offered > max {
            self.counters.count(Counter::OffersClamped);
        }
        offered.min(max)
    }
}

/// The answer to a request that is not for anyone here.
const fn consumer(counter: Counter) -> Refusal {
    Refusal::Reject(RejReason::CONSUMER_DEFINED, counter)
}

/// The path of a request, seen from its receiver.
fn path_of(req: &Req, av: &AddressVector) -> Path {
    let primary = &req.primary;
    let life_time = primary.local_ack_timeout.get().saturating_sub(1);
    Path {
        av: AddressVector {
            local: primary.remote_gid,
            remote: primary.local_gid,
            scope_id: av.scope_id,
            traffic_class: primary.traffic_class,
            hop_limit: if primary.hop_limit == 0 {
                av.hop_limit
            } else {
                primary.hop_limit
            },
            flow_label: primary.flow_label,
            service_level: primary.service_level,
        },
        service_id: req.service_id,
        pkey: req.partition_key,
        mtu: req.path_mtu,
        rate: primary.packet_rate,
        packet_life_time: IbTimeout::truncate(life_time),
    }
}
