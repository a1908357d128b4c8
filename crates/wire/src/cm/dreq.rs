//! DREQ: request to disconnect (IBA Vol. 1 ch. 12, DREQ).
//!
//! ```text
//!  byte
//!     0  local communication ID (32)
//!     4  remote communication ID (32)
//!     8  remote QPN or EECN (24) | reserved (8)
//!    12  private data, 220 bytes
//! ```
//!
//! Offsets count from the end of the MAD header.

use super::PrivateData;
use super::message::{body_of, emit_message, private_data};
use crate::error::WireError;
use crate::layout::{self, Field};
use crate::mad::{AttributeId, MAD_LEN};
use crate::units::{CommId, Qpn, TransactionId};

/// Request to disconnect.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Dreq {
    /// The sender's name for the connection.
    pub local_comm_id: CommId,
    /// The receiver's name for the connection.
    pub remote_comm_id: CommId,
    /// The receiver's queue pair, which must be that of the connection.
    pub remote_qpn: Qpn,
    /// The private data field, 220 bytes.
    pub private_data: PrivateData<PRIVATE_DATA_LEN>,
}

impl Dreq {
    /// The field table.
    pub const FIELDS: &[Field] = &[LOCAL_COMM_ID, REMOTE_COMM_ID, REMOTE_QPN];

    /// Reads a whole MAD.
    ///
    /// # Errors
    /// Names the field of the header that says this is not a DREQ.
    pub fn parse(mad: &[u8; MAD_LEN]) -> Result<Self, WireError> {
        let body = body_of(AttributeId::DREQ, mad)?;
        Ok(Self {
            local_comm_id: CommId(LOCAL_COMM_ID.get_u32(body)),
            remote_comm_id: CommId(REMOTE_COMM_ID.get_u32(body)),
            remote_qpn: Qpn::truncate(REMOTE_QPN.get_u32(body)),
            private_data: private_data(body),
        })
    }

    /// Writes a whole MAD.
    pub fn emit(&self, transaction_id: TransactionId, out: &mut [u8; MAD_LEN]) {
        emit_message(
            AttributeId::DREQ,
            transaction_id,
            self.private_data.as_bytes(),
            out,
            |body| {
                LOCAL_COMM_ID.put(body, self.local_comm_id.0);
                REMOTE_COMM_ID.put(body, self.remote_comm_id.0);
                REMOTE_QPN.put(body, self.remote_qpn.get());
            },
        );
    }
}

const LOCAL_COMM_ID: Field = Field::new("local communication ID", 0, 0, 32);
const REMOTE_COMM_ID: Field = Field::new("remote communication ID", 4, 0, 32);
const REMOTE_QPN: Field = Field::new("remote QPN/EECN", 8, 0, 24);

const PRIVATE_DATA_LEN: usize = 220;
const _: () = layout::check(Dreq::FIELDS, 12, PRIVATE_DATA_LEN);
