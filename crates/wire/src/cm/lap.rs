//! LAP: load alternate path (IBA Vol. 1 ch. 12, LAP).
//!
//! ```text
//!  byte
//!     0  local communication ID (32)
//!     4  remote communication ID (32)
//!     8  reserved (32)
//!    12  remote QPN or EECN (24)
//!    15  remote CM response timeout (5) | reserved (3)
//!    16  reserved (32)
//!    20  alternate path, 44 bytes:
//!          0  local LID (16) | remote LID (16)
//!          4  local GID (128)
//!         20  remote GID (128)
//!         36  flow label (20) | reserved (4)
//!         39  traffic class (8)
//!         40  hop limit (8)
//!         41  reserved (2) | packet rate (6)
//!         42  SL (4) | subnet local (1) | reserved (3)
//!         43  local ACK timeout (5) | reserved (3)
//!    64  private data, 168 bytes
//! ```
//!
//! Offsets count from the end of the MAD header.

use super::PrivateData;
use super::message::{body_of, emit_message, private_data};
use super::path::{AlternatePath, PathTable};
use crate::error::WireError;
use crate::layout::{self, Field};
use crate::mad::{AttributeId, MAD_LEN};
use crate::units::{CommId, IbTimeout, Qpn, TransactionId};

/// Load alternate path: the active side names the path to fail over to.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Lap {
    /// The sender's name for the connection.
    pub local_comm_id: CommId,
    /// The receiver's name for the connection.
    pub remote_comm_id: CommId,
    /// The receiver's queue pair, which must be that of the connection.
    pub remote_qpn: Qpn,
    /// How long the receiver's CM may take to answer.
    pub remote_cm_response_timeout: IbTimeout,
    /// The path to fail over to; local is the sender's end.
    pub alternate: AlternatePath,
    /// The private data field, 168 bytes.
    pub private_data: PrivateData<PRIVATE_DATA_LEN>,
}

impl Lap {
    /// The field table.
    pub const FIELDS: &[Field] = &[
        LOCAL_COMM_ID,
        REMOTE_COMM_ID,
        REMOTE_QPN,
        REMOTE_CM_RESPONSE_TIMEOUT,
        ALTERNATE.local_lid,
        ALTERNATE.remote_lid,
        ALTERNATE.local_gid,
        ALTERNATE.remote_gid,
        ALTERNATE.flow_label,
        ALTERNATE.traffic_class,
        ALTERNATE.hop_limit,
        ALTERNATE.packet_rate,
        ALTERNATE.service_level,
        ALTERNATE.subnet_local,
        ALTERNATE.local_ack_timeout,
    ];

    /// Reads a whole MAD.
    ///
    /// # Errors
    /// Names the field of the header that says this is not a LAP.
    pub fn parse(mad: &[u8; MAD_LEN]) -> Result<Self, WireError> {
        let body = body_of(AttributeId::LAP, mad)?;
        Ok(Self {
            local_comm_id: CommId(LOCAL_COMM_ID.get_u32(body)),
            remote_comm_id: CommId(REMOTE_COMM_ID.get_u32(body)),
            remote_qpn: Qpn::truncate(REMOTE_QPN.get_u32(body)),
            remote_cm_response_timeout: IbTimeout::truncate(
                REMOTE_CM_RESPONSE_TIMEOUT.get_u8(body),
            ),
            alternate: ALTERNATE.parse(body),
            private_data: private_data(body),
        })
    }

    /// Writes a whole MAD.
    pub fn emit(&self, transaction_id: TransactionId, out: &mut [u8; MAD_LEN]) {
        emit_message(
            AttributeId::LAP,
            transaction_id,
            self.private_data.as_bytes(),
            out,
            |body| {
                LOCAL_COMM_ID.put(body, self.local_comm_id.0);
                REMOTE_COMM_ID.put(body, self.remote_comm_id.0);
                REMOTE_QPN.put(body, self.remote_qpn.get());
                REMOTE_CM_RESPONSE_TIMEOUT.put(body, self.remote_cm_response_timeout.get());
                ALTERNATE.emit(&self.alternate, body);
            },
        );
    }
}

const LOCAL_COMM_ID: Field = Field::new("local communication ID", 0, 0, 32);
const REMOTE_COMM_ID: Field = Field::new("remote communication ID", 4, 0, 32);
const REMOTE_QPN: Field = Field::new("remote QPN/EECN", 12, 0, 24);
const REMOTE_CM_RESPONSE_TIMEOUT: Field = Field::new("remote CM response timeout", 15, 0, 5);

const ALTERNATE: PathTable = PathTable::in_lap(20);

const PRIVATE_DATA_LEN: usize = 168;
const _: () = layout::check(Lap::FIELDS, 64, PRIVATE_DATA_LEN);
