//! What the caller configures and what it gives with each call.

use std::time::Duration;

use oarlock_wire::cm::{AlternatePath, Ece};
use oarlock_wire::units::{
    AddressVector, Guid, IbTimeout, Mtu, PKey, Psn, QKey, Qpn, Rate, RetryCount, ServiceId,
    SidrStatus, TransportService,
};

/// Sizes and timers of a [`Cm`](crate::Cm). Timers left at `None` are those that a Linux kernel uses.
#[derive(Clone, Debug)]
pub struct Config {
    /// The GUID that our messages name as the local CA. With the comm id it names a connection to the peer.
    pub ca_guid: Guid,
    /// Connections of either side that may exist at once, TIMEWAIT included. At the limit `connect` is refused and a REQ
    /// is dropped (the peer tries again). A resolution (SIDR), on either side, counts as a connection.
    pub max_connections: usize,
    /// Passive connections that may exist before they are established, and SIDR requests that may wait for their answer.
    /// At the limit a REQ or SIDR_REQ is dropped.
    pub max_half_open: usize,
    /// How long to wait for an answer to a REQ. `None`: twice the packet life time and the response time that the REQ
    /// grants the peer.
    pub req_wait: Option<Duration>,
    /// How long to wait for an RTU. `None`: the response time that the peer's REQ claims for itself.
    pub rep_wait: Option<Duration>,
    /// How long to wait for a SIDR_REP. `None`: the response time that the request was given.
    pub sidr_wait: Option<Duration>,
    /// How long to wait for an APR. `None`: twice the packet life time and the response time that the LAP grants the peer.
    pub lap_wait: Option<Duration>,
    /// How long to wait for a DREP. `None`: the wait of the connection's REQ (active side) or REP (passive side).
    pub dreq_wait: Option<Duration>,
    /// How long to wait before a message is repeated for the first time. Each later wait is twice as long as the one before,
    /// up to the wait that applies. `None`: that wait from the beginning, as Linux does. A short first wait makes a lost
    /// message cost little, and the growing ones keep the number of repetitions small.
    pub first_wait: Option<Duration>,
    /// How far, in percent, a wait differs from the computed one by chance, 0 to 100 (more counts as 100). 0, as in Linux: not
    /// at all, so that what was refused in one burst comes again in one burst. The wait that an MRA asks for is not touched.
    pub retry_spread: u8,
    /// How often a REP is repeated. `None`: what the peer's REQ asks for.
    pub rep_retries: Option<u8>,
    /// How often a DREQ is repeated. `None`: as often as the connection's REQ.
    pub dreq_retries: Option<u8>,
    /// How long a connection stays in TIMEWAIT. `None`: its acknowledgement timeout.
    pub timewait: Option<Duration>,
    /// Bounds every wait whose length the peer's messages determine. `None`: what the peer says, up to 2 h 20 min, sixteen
    /// times over.
    ///
    /// Deviation: Linux has no bound, so that a REQ whose sender is never heard of again keeps a connection half-open for a
    /// day and a half. The default is a little more than the longest wait that Linux itself asks for (an MRA of 65.5 s).
    pub longest_wait: Option<Duration>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            ca_guid: Guid(0),
            max_connections: 1 << 17,
            max_half_open: 1 << 14,
            req_wait: None,
            rep_wait: None,
            sidr_wait: None,
            first_wait: None,
            retry_spread: 0,
            lap_wait: None,
            dreq_wait: None,
            rep_retries: None,
            dreq_retries: None,
            timewait: None,
            longest_wait: Some(Duration::from_secs(70)),
        }
    }
}

/// Where all randomness of a [`Cm`](crate::Cm) comes from. The same seed and the same inputs give the same outputs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Seed(pub [u8; 32]);

impl std::fmt::Debug for Seed {
    /// Keeps the secret out of logs.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Seed(..)")
    }
}

/// What [`connect`](crate::Cm::connect) puts into the REQ.
#[derive(Clone, Debug)]
pub struct ConnectParams {
    /// The path, for management and for data.
    pub av: AddressVector,
    /// The service to ask for.
    pub service_id: ServiceId,
    /// Our queue pair.
    pub local_qpn: Qpn,
    /// The PSN of the first request that the peer sends us.
    pub starting_psn: Psn,
    /// RDMA reads and atomics that we accept at a time.
    pub responder_resources: u8,
    /// RDMA reads and atomics that we will have outstanding.
    pub initiator_depth: u8,
    /// Whether our acknowledgements carry credits.
    pub end_to_end_flow_control: bool,
    /// How often the peer shall retry.
    pub retry_count: RetryCount,
    /// How often the peer shall retry after receiver-not-ready; 7 without end.
    pub rnr_retry_count: RetryCount,
    /// Whether our queue pair takes its receives from a shared queue.
    pub srq: bool,
    /// The transport service; the extended one is XRC, of whose requester the REQ is then.
    pub transport_service: TransportService,
    /// The packet rate of the path.
    pub packet_rate: Rate,
    /// The path MTU.
    pub path_mtu: Mtu,
    /// How long a packet can be under way, one direction.
    pub packet_life_time: IbTimeout,
    /// The acknowledgement timeout that the peer's queue pair shall use; [`ack_timeout`](crate::ack_timeout) computes it.
    pub local_ack_timeout: IbTimeout,
    /// The partition.
    pub pkey: PKey,
    /// The path to fail over to.
    pub alternate: Option<AlternatePath>,
    /// What we offer beyond the specification.
    pub ece: Ece,
    /// Private data, up to 92 bytes. For the RDMA CM it begins with the IP CM header.
    pub private_data: Vec<u8>,
    /// How long each side's CM may take to answer a message.
    pub response_timeout: IbTimeout,
    /// How often a message that is not answered is repeated, at most 15.
    pub max_cm_retries: u8,
    /// When to give up even if retries remain, counted from the call. `None`: when the retries are used up.
    pub deadline: Option<Duration>,
}

impl ConnectParams {
    /// The defaults of the RDMA CM over RoCE for everything but the path, the service, the queue pair and its PSN.
    #[must_use]
    pub fn new(
        av: AddressVector,
        service_id: ServiceId,
        local_qpn: Qpn,
        starting_psn: Psn,
    ) -> Self {
        Self {
            av,
            service_id,
            local_qpn,
            starting_psn,
            responder_resources: 0,
            initiator_depth: 0,
            end_to_end_flow_control: false,
            retry_count: RetryCount::MAX,
            rnr_retry_count: RetryCount::MAX,
            srq: false,
            transport_service: TransportService::RC,
            packet_rate: Rate::PORT_CURRENT,
            path_mtu: Mtu::MTU_1024,
            packet_life_time: IbTimeout::truncate(16),
            local_ack_timeout: IbTimeout::truncate(17),
            pkey: PKey::DEFAULT,
            alternate: None,
            ece: Ece::NONE,
            private_data: Vec::new(),
            response_timeout: IbTimeout::truncate(20),
            max_cm_retries: 15,
            deadline: None,
        }
    }
}

/// What [`accept`](crate::Cm::accept) puts into the REP.
#[derive(Clone, Debug)]
pub struct AcceptParams {
    /// Our queue pair.
    pub local_qpn: Qpn,
    /// The PSN of the first request that the peer sends us.
    pub starting_psn: Psn,
    /// RDMA reads and atomics that we accept at a time.
    pub responder_resources: u8,
    /// RDMA reads and atomics that we will have outstanding.
    pub initiator_depth: u8,
    /// Whether our acknowledgements carry credits.
    pub end_to_end_flow_control: bool,
    /// How often the peer shall retry after receiver-not-ready; 7 without end.
    pub rnr_retry_count: RetryCount,
    /// Whether our queue pair takes its receives from a shared queue.
    pub srq: bool,
    /// How long our CA may take to acknowledge.
    pub target_ack_delay: IbTimeout,
    /// What becomes of the alternate path of the REQ, if it names one.
    pub failover: Failover,
    /// What we agree to beyond the specification.
    pub ece: Ece,
    /// Private data, up to 196 bytes.
    pub private_data: Vec<u8>,
}

impl AcceptParams {
    /// The defaults of the RDMA CM for everything but the queue pair and its PSN.
    #[must_use]
    pub fn new(local_qpn: Qpn, starting_psn: Psn) -> Self {
        Self {
            local_qpn,
            starting_psn,
            responder_resources: 0,
            initiator_depth: 0,
            end_to_end_flow_control: false,
            rnr_retry_count: RetryCount::MAX,
            srq: false,
            target_ack_delay: IbTimeout::truncate(15),
            failover: Failover::default(),
            ece: Ece::NONE,
            private_data: Vec::new(),
        }
    }
}

/// What a REP says about the alternate path of its REQ (IBA Vol. 1 ch. 12, REP, failover accepted). Of no meaning if the REQ
/// names none.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[expect(
    clippy::exhaustive_enums,
    reason = "the specification has these three, and the field has no room for more than one other"
)]
pub enum Failover {
    /// The path is loaded.
    Accepted,
    /// We load no alternate paths.
    #[default]
    NotSupported,
    /// We do not take this one.
    Rejected,
}

impl Failover {
    /// The value of the field.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Accepted => 0,
            Self::NotSupported => 1,
            Self::Rejected => 2,
        }
    }
}

/// What [`sidr_request`](crate::Cm::sidr_request) puts into the SIDR_REQ.
#[derive(Clone, Debug)]
pub struct SidrParams {
    /// The path to the peer.
    pub av: AddressVector,
    /// The service to ask for.
    pub service_id: ServiceId,
    /// The partition.
    pub pkey: PKey,
    /// Private data, up to 216 bytes. For the RDMA CM it begins with the IP CM header.
    pub private_data: Vec<u8>,
    /// How long the peer's CM may take to answer.
    pub response_timeout: IbTimeout,
    /// How often a request that is not answered is repeated, at most 15.
    pub max_cm_retries: u8,
    /// When to give up even if retries remain, counted from the call. `None`: when the retries are used up.
    pub deadline: Option<Duration>,
}

impl SidrParams {
    /// The defaults of the RDMA CM over RoCE for everything but the path and the service: 16 requests, 4.096 s apart.
    #[must_use]
    pub fn new(av: AddressVector, service_id: ServiceId) -> Self {
        Self {
            av,
            service_id,
            pkey: PKey::DEFAULT,
            private_data: Vec::new(),
            response_timeout: IbTimeout::truncate(20),
            max_cm_retries: 15,
            deadline: None,
        }
    }
}

/// What [`sidr_reply`](crate::Cm::sidr_reply) puts into the SIDR_REP.
#[derive(Clone, Debug, Default)]
pub struct SidrReplyParams {
    /// The outcome. Unless it is [`SidrStatus::SUCCESS`] the queue pair and its Q_Key mean nothing.
    pub status: SidrStatus,
    /// The queue pair that serves the requester.
    pub qpn: Qpn,
    /// Its Q_Key.
    pub qkey: QKey,
    /// What the status leaves open, up to 72 bytes.
    pub additional_info: Vec<u8>,
    /// Private data, up to 136 bytes.
    pub private_data: Vec<u8>,
    /// What we agree to beyond the specification.
    pub ece: Ece,
}

impl SidrReplyParams {
    /// The service is here.
    #[must_use]
    pub fn success(qpn: Qpn, qkey: QKey) -> Self {
        Self {
            qpn,
            qkey,
            ..Self::default()
        }
    }

    /// The service is not to be had, for `status`.
    #[must_use]
    pub fn refusal(status: SidrStatus) -> Self {
        Self {
            status,
            ..Self::default()
        }
    }
}

/// What [`load_alternate_path`](crate::Cm::load_alternate_path) puts into the LAP.
#[derive(Clone, Debug)]
pub struct AlternatePathParams {
    /// The path; local is our end.
    pub path: AlternatePath,
    /// How long the peer's CM may take to answer.
    pub response_timeout: IbTimeout,
    /// Private data, up to 168 bytes.
    pub private_data: Vec<u8>,
}

impl AlternatePathParams {
    /// The response time of the RDMA CM, and no private data.
    #[must_use]
    pub fn new(path: AlternatePath) -> Self {
        Self {
            path,
            response_timeout: IbTimeout::truncate(20),
            private_data: Vec::new(),
        }
    }
}
