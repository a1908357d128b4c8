//! REQ: request for communication (IBA Vol. 1 ch. 12, REQ).
//!
//! ```text
//!  byte
//!     0  local communication ID (32)
//!     4  reserved (8) | vendor ID (24)
//!     8  service ID (64)
//!    16  local CA GUID (64)
//!    24  reserved (32)
//!    28  local Q_Key (32)
//!    32  local QPN (24) | responder resources (8)
//!    36  local EE context number (24) | initiator depth (8)
//!    40  remote EE context number (24)
//!    43  remote CM response timeout (5) | transport service type (2) | end-to-end flow control (1)
//!    44  starting PSN (24)
//!    47  local CM response timeout (5) | retry count (3)
//!    48  partition key (16)
//!    50  path MTU (4) | RDC exists (1) | RNR retry count (3)
//!    51  max CM retries (4) | SRQ (1) | extended transport type (3)
//!    52  primary path, 44 bytes:
//!          0  local LID (16) | remote LID (16)
//!          4  local GID (128)
//!         20  remote GID (128)
//!         36  flow label (20) | reserved (6) | packet rate (6)
//!         40  traffic class (8)
//!         41  hop limit (8)
//!         42  SL (4) | subnet local (1) | reserved (3)
//!         43  local ACK timeout (5) | reserved (3)
//!    96  alternate path, 44 bytes alike
//!   140  private data, 92 bytes
//! ```
//!
//! Offsets count from the end of the MAD header.

use super::message::{body_of, emit_message_with_options, options, private_data};
use super::path::{PathFields, PathTable};
use super::{Ece, PrivateData};
use crate::error::WireError;
use crate::layout::{self, Field};
use crate::mad::{AttributeId, MAD_LEN};
use crate::units::{
    CommId, Guid, IbTimeout, Mtu, PKey, Psn, QKey, Qpn, RetryCount, ServiceId, TransactionId,
    TransportService,
};

/// Request for communication: the active side asks for a connection.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Req {
    /// The sender's name for the connection.
    pub local_comm_id: CommId,
    /// What the sender offers beyond the specification.
    pub ece: Ece,
    /// The service that is asked for.
    pub service_id: ServiceId,
    /// The sender's CA.
    pub local_ca_guid: Guid,
    /// The Q_Key of the sender's queue pair; of use to datagrams only.
    pub local_qkey: QKey,
    /// The sender's queue pair.
    pub local_qpn: Qpn,
    /// RDMA reads and atomics that the sender accepts at a time.
    pub responder_resources: u8,
    /// The sender's EE context, 24 bits; of use to reliable datagrams only.
    pub local_eecn: u32,
    /// RDMA reads and atomics that the sender will have outstanding.
    pub initiator_depth: u8,
    /// The receiver's EE context, 24 bits; of use to reliable datagrams only.
    pub remote_eecn: u32,
    /// How long the receiver's CM may take to answer.
    pub remote_cm_response_timeout: IbTimeout,
    /// The transport service of the connection.
    pub transport_service: TransportService,
    /// Whether the sender's acknowledgements carry credits.
    pub end_to_end_flow_control: bool,
    /// The PSN of the first request that goes to the sender: the receiver begins sending with it.
    pub starting_psn: Psn,
    /// How long the sender's CM may take to answer.
    pub local_cm_response_timeout: IbTimeout,
    /// How often the receiver shall retry after a timeout or a sequence error.
    pub retry_count: RetryCount,
    /// The partition of the connection.
    pub partition_key: PKey,
    /// The path MTU.
    pub path_mtu: Mtu,
    /// Whether a reliable datagram channel exists already.
    pub rdc_exists: bool,
    /// How often the receiver shall retry after receiver-not-ready; 7 without end.
    pub rnr_retry_count: RetryCount,
    /// How often each side resends a message that is not answered, 4 bits.
    pub max_cm_retries: u8,
    /// Whether the sender's queue pair takes its receives from a shared queue.
    pub srq: bool,
    /// The extended transport type, 3 bits; 1 is XRC.
    pub extended_transport: u8,
    /// The path of the connection.
    pub primary: PathFields,
    /// The path to fail over to; all zero if there is none.
    pub alternate: PathFields,
    /// The private data field, 92 bytes.
    pub private_data: PrivateData<PRIVATE_DATA_LEN>,
}

impl Req {
    /// Whether the connection is one of XRC: the extended transport type that says so.
    pub const fn is_xrc(&self) -> bool {
        self.transport_service.0 == TransportService::EXTENDED.0
            && self.extended_transport == TransportService::EXTENDED_XRC
    }

    /// The field table.
    pub const FIELDS: &[Field] = &[
        LOCAL_COMM_ID,
        VENDOR_ID,
        SERVICE_ID,
        LOCAL_CA_GUID,
        LOCAL_QKEY,
        LOCAL_QPN,
        RESPONDER_RESOURCES,
        LOCAL_EECN,
        INITIATOR_DEPTH,
        REMOTE_EECN,
        REMOTE_CM_RESPONSE_TIMEOUT,
        TRANSPORT_SERVICE,
        END_TO_END_FLOW_CONTROL,
        STARTING_PSN,
        LOCAL_CM_RESPONSE_TIMEOUT,
        RETRY_COUNT,
        PARTITION_KEY,
        PATH_MTU,
        RDC_EXISTS,
        RNR_RETRY_COUNT,
        MAX_CM_RETRIES,
        SRQ,
        EXTENDED_TRANSPORT,
        PRIMARY.local_lid,
        PRIMARY.remote_lid,
        PRIMARY.local_gid,
        PRIMARY.remote_gid,
        PRIMARY.flow_label,
        PRIMARY.packet_rate,
        PRIMARY.traffic_class,
        PRIMARY.hop_limit,
        PRIMARY.service_level,
        PRIMARY.subnet_local,
        PRIMARY.local_ack_timeout,
        ALTERNATE.local_lid,
        ALTERNATE.remote_lid,
        ALTERNATE.local_gid,
        ALTERNATE.remote_gid,
        ALTERNATE.flow_label,
        ALTERNATE.packet_rate,
        ALTERNATE.traffic_class,
        ALTERNATE.hop_limit,
        ALTERNATE.service_level,
        ALTERNATE.subnet_local,
        ALTERNATE.local_ack_timeout,
    ];

    /// Reads a whole MAD.
    ///
    /// # Errors
    /// Names the field of the header that says this is not a REQ.
    pub fn parse(mad: &[u8; MAD_LEN]) -> Result<Self, WireError> {
        let body = body_of(AttributeId::REQ, mad)?;
        Ok(Self {
            local_comm_id: CommId(LOCAL_COMM_ID.get_u32(body)),
            ece: Ece {
                vendor_id: VENDOR_ID.get_u32(body),
                options: options(mad),
            },
            service_id: ServiceId(SERVICE_ID.get_u64(body)),
            local_ca_guid: Guid(LOCAL_CA_GUID.get_u64(body)),
            local_qkey: QKey(LOCAL_QKEY.get_u32(body)),
            local_qpn: Qpn::truncate(LOCAL_QPN.get_u32(body)),
            responder_resources: RESPONDER_RESOURCES.get_u8(body),
            local_eecn: LOCAL_EECN.get_u32(body),
            initiator_depth: INITIATOR_DEPTH.get_u8(body),
            remote_eecn: REMOTE_EECN.get_u32(body),
            remote_cm_response_timeout: IbTimeout::truncate(
                REMOTE_CM_RESPONSE_TIMEOUT.get_u8(body),
            ),
            transport_service: TransportService(TRANSPORT_SERVICE.get_u8(body)),
            end_to_end_flow_control: END_TO_END_FLOW_CONTROL.get_bool(body),
            starting_psn: Psn::truncate(STARTING_PSN.get_u32(body)),
            local_cm_response_timeout: IbTimeout::truncate(LOCAL_CM_RESPONSE_TIMEOUT.get_u8(body)),
            retry_count: RetryCount::truncate(RETRY_COUNT.get_u8(body)),
            partition_key: PKey(PARTITION_KEY.get_u16(body)),
            path_mtu: Mtu(PATH_MTU.get_u8(body)),
            rdc_exists: RDC_EXISTS.get_bool(body),
            rnr_retry_count: RetryCount::truncate(RNR_RETRY_COUNT.get_u8(body)),
            max_cm_retries: MAX_CM_RETRIES.get_u8(body),
            srq: SRQ.get_bool(body),
            extended_transport: EXTENDED_TRANSPORT.get_u8(body),
            primary: PRIMARY.parse(body),
            alternate: ALTERNATE.parse(body),
            private_data: private_data(body),
        })
    }

    /// Writes a whole MAD.
    pub fn emit(&self, transaction_id: TransactionId, out: &mut [u8; MAD_LEN]) {
        emit_message_with_options(
            AttributeId::REQ,
            transaction_id,
            self.ece.options,
            self.private_data.as_bytes(),
            out,
            |body| {
                LOCAL_COMM_ID.put(body, self.local_comm_id.0);
                VENDOR_ID.put(body, self.ece.vendor_id);
                SERVICE_ID.put(body, self.service_id.0);
                LOCAL_CA_GUID.put(body, self.local_ca_guid.0);
                LOCAL_QKEY.put(body, self.local_qkey.0);
                LOCAL_QPN.put(body, self.local_qpn.get());
                RESPONDER_RESOURCES.put(body, self.responder_resources);
                LOCAL_EECN.put(body, self.local_eecn);
                INITIATOR_DEPTH.put(body, self.initiator_depth);
                REMOTE_EECN.put(body, self.remote_eecn);
                REMOTE_CM_RESPONSE_TIMEOUT.put(body, self.remote_cm_response_timeout.get());
                TRANSPORT_SERVICE.put(body, self.transport_service.0);
                END_TO_END_FLOW_CONTROL.put(body, self.end_to_end_flow_control);
                STARTING_PSN.put(body, self.starting_psn.get());
                LOCAL_CM_RESPONSE_TIMEOUT.put(body, self.local_cm_response_timeout.get());
                RETRY_COUNT.put(body, self.retry_count.get());
                PARTITION_KEY.put(body, self.partition_key.0);
                PATH_MTU.put(body, self.path_mtu.0);
                RDC_EXISTS.put(body, self.rdc_exists);
                RNR_RETRY_COUNT.put(body, self.rnr_retry_count.get());
                MAX_CM_RETRIES.put(body, self.max_cm_retries);
                SRQ.put(body, self.srq);
                EXTENDED_TRANSPORT.put(body, self.extended_transport);
                PRIMARY.emit(&self.primary, body);
                ALTERNATE.emit(&self.alternate, body);
            },
        );
    }
}

const LOCAL_COMM_ID: Field = Field::new("local communication ID", 0, 0, 32);
const VENDOR_ID: Field = Field::new("vendor ID", 5, 0, 24);
const SERVICE_ID: Field = Field::new("service ID", 8, 0, 64);
const LOCAL_CA_GUID: Field = Field::new("local CA GUID", 16, 0, 64);
const LOCAL_QKEY: Field = Field::new("local Q_Key", 28, 0, 32);
const LOCAL_QPN: Field = Field::new("local QPN", 32, 0, 24);
const RESPONDER_RESOURCES: Field = Field::new("responder resources", 35, 0, 8);
const LOCAL_EECN: Field = Field::new("local EE context number", 36, 0, 24);
const INITIATOR_DEPTH: Field = Field::new("initiator depth", 39, 0, 8);
const REMOTE_EECN: Field = Field::new("remote EE context number", 40, 0, 24);
const REMOTE_CM_RESPONSE_TIMEOUT: Field = Field::new("remote CM response timeout", 43, 0, 5);
const TRANSPORT_SERVICE: Field = Field::new("transport service type", 43, 5, 2);
const END_TO_END_FLOW_CONTROL: Field = Field::new("end-to-end flow control", 43, 7, 1);
const STARTING_PSN: Field = Field::new("starting PSN", 44, 0, 24);
const LOCAL_CM_RESPONSE_TIMEOUT: Field = Field::new("local CM response timeout", 47, 0, 5);
const RETRY_COUNT: Field = Field::new("retry count", 47, 5, 3);
const PARTITION_KEY: Field = Field::new("partition key", 48, 0, 16);
const PATH_MTU: Field = Field::new("path packet payload MTU", 50, 0, 4);
const RDC_EXISTS: Field = Field::new("RDC exists", 50, 4, 1);
const RNR_RETRY_COUNT: Field = Field::new("RNR retry count", 50, 5, 3);
const MAX_CM_RETRIES: Field = Field::new("max CM retries", 51, 0, 4);
const SRQ: Field = Field::new("SRQ", 51, 4, 1);
const EXTENDED_TRANSPORT: Field = Field::new("extended transport type", 51, 5, 3);

const PRIMARY: PathTable = PathTable::in_req(52);
const ALTERNATE: PathTable = PathTable::in_req(96);

const PRIVATE_DATA_LEN: usize = 92;
const _: () = layout::check(Req::FIELDS, 140, PRIVATE_DATA_LEN);
