//! A REQ arrives: find its listener, make a child, queue the event.

use crate::device::{Device, is_link_local};
use crate::identifier::{Connection, Identifier, Request, Role, Standing};
use crate::resolve::with_scope;
use crate::{
    BacklogOverflow, Cma, ConnEventParam, Counter, Event, EventKind, EventParam, Id, Limits, Path,
    ReceivedPrivateData, State,
};
use oarlock_cm::{ConnId, ListenerId};
use oarlock_wire::{
    AddressVector, IbTimeout, IpCmHeader, RejReason, Req, Time, TransportService, WireErrorKind,
};
use std::net::SocketAddr;

/// Why a request does not become an event.
enum Refusal {
    /// A REJ goes back.
    Reject(RejReason, Counter),
    /// Nothing goes back; the peer tries again.
    Drop(Counter),
}

/// What a request that becomes an event leads to.
struct Match {
    listener: Id,
    header: IpCmHeader,
    device: u32,
    limits: Limits,
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
                self.add_child(now, cm, av, req, &found);
                return;
            }
            Err(refusal) => refusal,
        };
        match refusal {
            Refusal::Drop(counter) => {
                self.counters.count(counter);
                let forgotten = self.cm.drop_request(now, cm);
                debug_assert!(forgotten.is_ok(), "the request has just arrived");
            }
            Refusal::Reject(reason, counter) => {
                self.counters.count(counter);
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

    fn match_request(
        &mut self,
        listener: ListenerId,
        av: &AddressVector,
        req: &Req,
    ) -> Result<Match, Refusal> {
        let consumer = |counter| Refusal::Reject(RejReason::CONSUMER_DEFINED, counter);
        let header = req.private_data.as_bytes().first_chunk().map_or_else(
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
        if device.sgid_index(req.primary.remote_gid).is_none() {
            return Err(Refusal::Reject(
                RejReason::INVALID_GID,
                Counter::RequestsRejectedGid,
            ));
        }
        if req.transport_service != TransportService::RC {
            return Err(consumer(Counter::RequestsRejectedTransport));
        }
        let largest = oarlock_wire::Mtu::largest_for_link(device.netdev_mtu);
        if req.path_mtu.bytes().is_none() || largest.is_none_or(|largest| req.path_mtu > largest) {
            return Err(Refusal::Reject(
                RejReason::INVALID_PATH_MTU,
                Counter::RequestsRejectedMtu,
            ));
        }
        let (device, limits) = (device.index, device.limits);
        let found = self.find_listener(listener, &header, device);
        let listener = found.ok_or_else(|| consumer(Counter::RequestsRejectedNoListener))?;
        self.check_limits(listener)?;
        Ok(Match {
            listener,
            header,
            device,
            limits,
        })
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

    fn add_child(&mut self, now: Time, cm: ConnId, av: &AddressVector, req: &Req, found: &Match) {
        let Some(parent) = self.ids.get(found.listener.into()) else {
            return;
        };
        let (channel, context, port_space, qp_type) = (
            parent.channel,
            parent.context,
            parent.port_space,
            parent.qp_type,
        );
        let (options, port) = (parent.options, parent.local.map_or(0, |local| local.port()));
        let limits = found.limits;
        let request = Request {
            qpn: req.local_qpn,
            starting_psn: req.starting_psn,
            responder_resources: self.clamp(req.initiator_depth, limits.max_qp_rd_atom),
            initiator_depth: self.clamp(req.responder_resources, limits.max_qp_init_rd_atom),
            retry_count: req.retry_count,
            rnr_retry_count: req.rnr_retry_count,
        };
        let starting_psn = self.cm.random_psn();
        let scoped = |ip, port| {
            let scope_id = if is_link_local(ip) { av.scope_id } else { 0 };
            with_scope(SocketAddr::new(ip, port), scope_id)
        };
        let mut child = Identifier::new(channel, port_space, qp_type, 0, starting_psn);
        child.options = options;
        child.state = State::Connect;
        child.standing = Standing::Undelivered {
            listener: found.listener,
        };
        child.local = Some(scoped(found.header.destination, port));
        child.remote = Some(scoped(found.header.source, found.header.source_port));
        child.device = Some(found.device);
        child.path = Some(path_of(req, av));
        child.connection = Some(Connection {
            cm,
            is_over: false,
            role: Role::Passive {
                request,
                answer: None,
            },
        });
        let child = self.add(child);
        self.by_connection.insert(cm, child);
        let data = &req.private_data.as_bytes()[IpCmHeader::LEN..];
        let event = Event {
            id: child,
            listen_id: Some(found.listener),
            context,
            kind: EventKind::CONNECT_REQUEST,
            status: 0,
            param: EventParam::Conn(ConnEventParam {
                private_data: Some(ReceivedPrivateData::new(data)),
                responder_resources: request.responder_resources,
                initiator_depth: request.initiator_depth,
                flow_control: req.end_to_end_flow_control,
                retry_count: req.retry_count,
                rnr_retry_count: req.rnr_retry_count,
                srq: req.srq,
                qpn: req.local_qpn,
            }),
            ece: req.ece,
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
        self.ask_for_patience(now, cm);
    }

    /// What a peer offers, as far as it can be used here.
    pub(crate) fn clamp(&mut self, offered: u8, max: u8) -> u8 {
        if offered > max {
            self.counters.count(Counter::OffersClamped);
        }
        offered.min(max)
    }
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
