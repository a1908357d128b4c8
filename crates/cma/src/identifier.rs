//! What is kept for one identifier.

use crate::channel::Place;
use crate::lookup::LookupToken;
use crate::ports::Claim;
use crate::{Alternate, AlternateState, ChannelId, Config, Id, McId, Path, QpType, State};
use oarlock_cm::ConnId;
use oarlock_wire::{
    AddressVector, Gid, IbTimeout, PortSpace, Psn, QKey, Qpn, RetryCount, RnrTimer, Time,
};
use std::collections::{BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

#[derive(Debug)]
pub(crate) struct Identifier {
    pub(crate) channel: ChannelId,
    pub(crate) context: u64,
    pub(crate) port_space: PortSpace,
    pub(crate) qp_type: QpType,
    pub(crate) state: State,
    pub(crate) standing: Standing,
    pub(crate) options: Options,
    pub(crate) local: Option<SocketAddr>,
    pub(crate) remote: Option<SocketAddr>,
    /// The port that stands in the port table. Children share their listener's port without standing there.
    pub(crate) bound_port: Option<u16>,
    pub(crate) device: Option<u32>,
    pub(crate) lookup: Option<PendingLookup>,
    pub(crate) resolution: Option<Resolution>,
    pub(crate) path: Option<Path>,
    pub(crate) listening: Option<Listening>,
    pub(crate) connection: Option<Connection>,
    pub(crate) alternate: Option<Alternate>,
    /// The PSN of the first packet that this side expects.
    pub(crate) starting_psn: Psn,
    /// The Q_Key of a UD identifier, once it is settled: by a recipe or by a call that names one.
    pub(crate) qkey: Option<QKey>,
    /// Its joins.
    pub(crate) multicasts: BTreeSet<McId>,
    /// Where this identifier's events stand on its channel, in order.
    pub(crate) queued: VecDeque<Place>,
    pub(crate) reported: u32,
}

impl Identifier {
    pub(crate) fn new(
        channel: ChannelId,
        port_space: PortSpace,
        qp_type: QpType,
        context: u64,
        starting_psn: Psn,
    ) -> Self {
        Self {
            channel,
            context,
            port_space,
            qp_type,
            state: State::Idle,
            standing: Standing::Reporting,
            options: Options::default(),
            local: None,
            remote: None,
            bound_port: None,
            device: None,
            lookup: None,
            resolution: None,
            path: None,
            listening: None,
            connection: None,
            alternate: None,
            starting_psn,
            qkey: None,
            multicasts: BTreeSet::new(),
            queued: VecDeque::new(),
            reported: 0,
        }
    }

    /// The local GIDs that the identifier relies on.
    pub(crate) fn gids(&self) -> impl Iterator<Item = Gid> {
        let bound = self.local.map(|local| Gid::from_ip(local.ip()));
        let found = self.resolution.map(|resolution| resolution.av.local);
        let path = self.path.map(|path| path.av.local);
        bound.into_iter().chain(found).chain(path)
    }

    /// The queue pair has moved to the alternate path, if one is loaded.
    pub(crate) fn turn_to_alternate(&mut self) {
        let loaded = self
            .alternate
            .take_if(|alternate| alternate.state == AlternateState::Loaded);
        if let (Some(path), Some(Alternate { path: to, .. })) = (&mut self.path, loaded) {
            path.av = AddressVector {
                local: to.local_gid,
                remote: to.remote_gid,
                scope_id: path.av.scope_id,
                traffic_class: to.traffic_class,
                hop_limit: to.hop_limit,
                flow_label: to.flow_label,
                service_level: to.service_level,
            };
            path.rate = to.packet_rate;
        }
    }

    /// What the identifier holds in the port table.
    pub(crate) fn claim(&self) -> Option<Claim> {
        Some(Claim {
            address: self.local?,
            destination: self.remote,
            reuse_addr: self.options.reuse_addr,
            af_only: self.options.af_only,
        })
    }
}

/// Whether an identifier exists for the caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Standing {
    /// Its connection request waits on the channel; the caller does not know it yet. Always on its listener's channel.
    Undelivered { listener: Id },
    /// The caller knows it and has not accepted: its events are dropped.
    Unaccepted,
    /// Its events are reported.
    Reporting,
}

#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Options {
    pub(crate) type_of_service: Option<u8>,
    pub(crate) reuse_addr: bool,
    pub(crate) af_only: bool,
    /// Whether `af_only` was set by the caller, so that binding keeps it.
    pub(crate) af_only_set: bool,
    pub(crate) ack_timeout: Option<IbTimeout>,
    pub(crate) min_rnr_timer: Option<RnrTimer>,
    pub(crate) cm_response_timeout: Option<IbTimeout>,
    pub(crate) max_cm_retries: Option<u8>,
    pub(crate) connect_deadline: Option<Option<Duration>>,
}

/// What the identifier asks of the CM, else what the host is configured for.
impl Options {
    pub(crate) fn cm_response_timeout(&self, config: &Config) -> IbTimeout {
        self.cm_response_timeout
            .unwrap_or(config.cm_response_timeout)
    }

    pub(crate) fn max_cm_retries(&self, config: &Config) -> u8 {
        self.max_cm_retries.unwrap_or(config.max_cm_retries)
    }

    pub(crate) fn connect_deadline(&self, config: &Config) -> Option<Duration> {
        self.connect_deadline.unwrap_or(config.connect_deadline)
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingLookup {
    pub(crate) token: LookupToken,
    pub(crate) deadline: Time,
}

/// What address resolution found, to which the connection keeps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Resolution {
    /// Without flow label and traffic class, which come with the path.
    pub(crate) av: AddressVector,
    /// In bytes.
    pub(crate) link_mtu: u32,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Listening {
    pub(crate) backlog: usize,
    pub(crate) waiting: usize,
    pub(crate) overflows: u64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Connection {
    pub(crate) cm: ConnId,
    /// Rejected by either side or unreachable: nothing more comes of it.
    pub(crate) is_over: bool,
    pub(crate) role: Role,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Role {
    Active {
        asked: Asked,
        response: Option<Response>,
    },
    Passive {
        request: Request,
        answer: Option<Answer>,
    },
    /// Of a SIDR_REQ, by which it is known.
    Requester {
        qpn: Qpn,
        /// The place of the source address in the device's GID table when the request was sent.
        sgid_index: u8,
        port_num: u8,
        peer: Option<UdPeer>,
    },
    /// Of a SIDR_REQ; the answer names a queue pair.
    Responder { answer: Option<Qpn> },
}

/// What the peer's SIDR_REP said.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UdPeer {
    pub(crate) qpn: Qpn,
    pub(crate) qkey: QKey,
}

/// What `connect` asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) qpn: Qpn,
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
    pub(crate) retry_count: RetryCount,
}

/// What the peer's REP said, in our view and clamped to what was asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Response {
    pub(crate) qpn: Qpn,
    pub(crate) starting_psn: Psn,
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
    pub(crate) rnr_retry_count: RetryCount,
    pub(crate) target_ack_delay: IbTimeout,
}

/// What the peer's REQ said, in our view and clamped to what the device can do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) qpn: Qpn,
    pub(crate) starting_psn: Psn,
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
    pub(crate) retry_count: RetryCount,
    pub(crate) rnr_retry_count: RetryCount,
}

/// What `accept` answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer {
    pub(crate) qpn: Qpn,
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
    pub(crate) rnr_retry_count: RetryCount,
}

impl Role {
    pub(crate) fn local_qpn(&self) -> Option<Qpn> {
        match self {
            Self::Active { asked, .. } => Some(asked.qpn),
            Self::Passive { answer, .. } => answer.map(|answer| answer.qpn),
            Self::Requester { qpn, .. } => Some(*qpn),
            Self::Responder { answer } => *answer,
        }
    }

    pub(crate) fn remote_qpn(&self) -> Option<Qpn> {
        match self {
            Self::Active { response, .. } => response.map(|response| response.qpn),
            Self::Passive { request, .. } => Some(request.qpn),
            Self::Requester { peer, .. } => peer.map(|peer| peer.qpn),
            Self::Responder { .. } => None,
        }
    }

    /// The number of reads and atomics to answer at a time, as far as it is known.
    pub(crate) fn responder_resources(&self) -> u8 {
        match self {
            Self::Active { asked, response } => response
                .map_or(asked.responder_resources, |response| {
                    response.responder_resources
                }),
            Self::Passive { request, answer } => answer
                .map_or(request.responder_resources, |answer| {
                    answer.responder_resources
                }),
            Self::Requester { .. } | Self::Responder { .. } => 0,
        }
    }
}
