//! REP: reply to a request for communication (IBA Vol. 1 ch. 12, REP).
//!
//! ```text
//!  byte
//!     0  local communication ID (32)
//!     4  remote communication ID (32)
//!     8  local Q_Key (32)
//!    12  local QPN (24) | vendor ID, first byte (8)
//!    16  local EE context number (24) | vendor ID, second byte (8)
//!    20  starting PSN (24) | vendor ID, third byte (8)
//!    24  responder resources (8)
//!    25  initiator depth (8)
//!    26  target ACK delay (5) | failover accepted (2) | end-to-end flow control (1)
//!    27  RNR retry count (3) | SRQ (1) | reserved (4)
//!    28  local CA GUID (64)
//!    36  private data, 196 bytes
//! ```
//!
//! Offsets count from the end of the MAD header.

use super::message::{body_of, emit_message_with_options, options, private_data};
use super::{Ece, PrivateData};
use crate::error::WireError;
use crate::layout::{self, Field};
use crate::mad::{AttributeId, MAD_LEN};
use crate::units::{CommId, Guid, IbTimeout, Psn, QKey, Qpn, RetryCount, TransactionId};

/// Reply to a request for communication: the passive side accepts.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Rep {
    /// The sender's name for the connection.
    pub local_comm_id: CommId,
    /// The receiver's name for the connection.
    pub remote_comm_id: CommId,
    /// The Q_Key of the sender's queue pair; of use to datagrams only.
    pub local_qkey: QKey,
    /// The sender's queue pair.
    pub local_qpn: Qpn,
    /// What the sender offers beyond the specification.
    pub ece: Ece,
    /// The sender's EE context, 24 bits; of use to reliable datagrams only.
    pub local_eecn: u32,
    /// The PSN of the first request that goes to the sender: the receiver begins sending with it.
    pub starting_psn: Psn,
    /// RDMA reads and atomics that the sender accepts at a time.
    pub responder_resources: u8,
    /// RDMA reads and atomics that the sender will have outstanding.
    pub initiator_depth: u8,
    /// How long the sender's CA takes to acknowledge.
    pub target_ack_delay: IbTimeout,
    /// Whether the alternate path is accepted, 2 bits: 0 yes, 1 not supported, 2 rejected.
    pub failover_accepted: u8,
    /// Whether the sender's acknowledgements carry credits.
    pub end_to_end_flow_control: bool,
    /// How often the receiver shall retry after receiver-not-ready; 7 without end.
    pub rnr_retry_count: RetryCount,
    /// Whether the sender's queue pair takes its receives from a shared queue.
    pub srq: bool,
    /// The sender's CA.
    pub local_ca_guid: Guid,
    /// The private data field, 196 bytes.
    pub private_data: PrivateData<PRIVATE_DATA_LEN>,
}

impl Rep {
    /// The number that the sender is reached by: its queue pair, or with XRC the EE context, as Linux says it.
    pub fn qpn(&self, is_xrc: bool) -> Qpn {
        if is_xrc {
            Qpn::truncate(self.local_eecn)
        } else {
            self.local_qpn
        }
    }

    /// The field table.
    pub const FIELDS: &[Field] = &[
        LOCAL_COMM_ID,
        REMOTE_COMM_ID,
        LOCAL_QKEY,
        LOCAL_QPN,
        VENDOR_ID_HIGH,
        LOCAL_EECN,
        VENDOR_ID_MIDDLE,
        STARTING_PSN,
        VENDOR_ID_LOW,
        RESPONDER_RESOURCES,
        INITIATOR_DEPTH,
        TARGET_ACK_DELAY,
        FAILOVER_ACCEPTED,
        END_TO_END_FLOW_CONTROL,
        RNR_RETRY_COUNT,
        SRQ,
        LOCAL_CA_GUID,
    ];

    /// Reads a whole MAD.
    ///
    /// # Errors
    /// Names the field of the header that says this is not a REP.
    pub fn parse(mad: &[u8; MAD_LEN]) -> Result<Self, WireError> {
        let body = body_of(AttributeId::REP, mad)?;
        let vendor_id = [
            0,
            VENDOR_ID_HIGH.get_u8(body),
            VENDOR_ID_MIDDLE.get_u8(body),
            VENDOR_ID_LOW.get_u8(body),
        ];
        Ok(Self {
            local_comm_id: CommId(LOCAL_COMM_ID.get_u32(body)),
            remote_comm_id: CommId(REMOTE_COMM_ID.get_u32(body)),
            local_qkey: QKey(LOCAL_QKEY.get_u32(body)),
            local_qpn: Qpn::truncate(LOCAL_QPN.get_u32(body)),
            ece: Ece {
                vendor_id: u32::from_be_bytes(vendor_id),
                options: options(mad),
            },
            local_eecn: LOCAL_EECN.get_u32(body),
            starting_psn: Psn::truncate(STARTING_PSN.get_u32(body)),
            responder_resources: RESPONDER_RESOURCES.get_u8(body),
            initiator_depth: INITIATOR_DEPTH.get_u8(body),
            target_ack_delay: IbTimeout::truncate(TARGET_ACK_DELAY.get_u8(body)),
            failover_accepted: FAILOVER_ACCEPTED.get_u8(body),
            end_to_end_flow_control: END_TO_END_FLOW_CONTROL.get_bool(body),
            rnr_retry_count: RetryCount::truncate(RNR_RETRY_COUNT.get_u8(body)),
            srq: SRQ.get_bool(body),
            local_ca_guid: Guid(LOCAL_CA_GUID.get_u64(body)),
            private_data: private_data(body),
        })
    }

    /// Writes a whole MAD.
    pub fn emit(&self, transaction_id: TransactionId, out: &mut [u8; MAD_LEN]) {
        emit_message_with_options(
            AttributeId::REP,
            transaction_id,
            self.ece.options,
            self.private_data.as_bytes(),
            out,
            |body| {
                let [_, vendor_high, vendor_middle, vendor_low] =
                    self.ece.vendor_id.min(Ece::MAX_VENDOR_ID).to_be_bytes();
                LOCAL_COMM_ID.put(body, self.local_comm_id.0);
                REMOTE_COMM_ID.put(body, self.remote_comm_id.0);
                LOCAL_QKEY.put(body, self.local_qkey.0);
                LOCAL_QPN.put(body, self.local_qpn.get());
                VENDOR_ID_HIGH.put(body, vendor_high);
                LOCAL_EECN.put(body, self.local_eecn);
                VENDOR_ID_MIDDLE.put(body, vendor_middle);
                STARTING_PSN.put(body, self.starting_psn.get());
                VENDOR_ID_LOW.put(body, vendor_low);
                RESPONDER_RESOURCES.put(body, self.responder_resources);
                INITIATOR_DEPTH.put(body, self.initiator_depth);
                TARGET_ACK_DELAY.put(body, self.target_ack_delay.get());
                FAILOVER_ACCEPTED.put(body, self.failover_accepted);
                END_TO_END_FLOW_CONTROL.put(body, self.end_to_end_flow_control);
                RNR_RETRY_COUNT.put(body, self.rnr_retry_count.get());
                SRQ.put(body, self.srq);
                LOCAL_CA_GUID.put(body, self.local_ca_guid.0);
            },
        );
    }
}

const LOCAL_COMM_ID: Field = Field::new("local communication ID", 0, 0, 32);
const REMOTE_COMM_ID: Field = Field::new("remote communication ID", 4, 0, 32);
const LOCAL_QKEY: Field = Field::new("local Q_Key", 8, 0, 32);
const LOCAL_QPN: Field = Field::new("local QPN", 12, 0, 24);
const VENDOR_ID_HIGH: Field = Field::new("vendor ID, first byte", 15, 0, 8);
const LOCAL_EECN: Field = Field::new("local EE context number", 16, 0, 24);
const VENDOR_ID_MIDDLE: Field = Field::new("vendor ID, second byte", 19, 0, 8);
const STARTING_PSN: Field = Field::new("starting PSN", 20, 0, 24);
const VENDOR_ID_LOW: Field = Field::new("vendor ID, third byte", 23, 0, 8);
const RESPONDER_RESOURCES: Field = Field::new("responder resources", 24, 0, 8);
const INITIATOR_DEPTH: Field = Field::new("initiator depth", 25, 0, 8);
const TARGET_ACK_DELAY: Field = Field::new("target ACK delay", 26, 0, 5);
const FAILOVER_ACCEPTED: Field = Field::new("failover accepted", 26, 5, 2);
const END_TO_END_FLOW_CONTROL: Field = Field::new("end-to-end flow control", 26, 7, 1);
const RNR_RETRY_COUNT: Field = Field::new("RNR retry count", 27, 0, 3);
const SRQ: Field = Field::new("SRQ", 27, 3, 1);
const LOCAL_CA_GUID: Field = Field::new("local CA GUID", 28, 0, 64);

const PRIVATE_DATA_LEN: usize = 196;
const _: () = layout::check(Rep::FIELDS, 36, PRIVATE_DATA_LEN);
