//! RTU: ready to use (IBA Vol. 1 ch. 12, RTU).
//!
//! ```text
//!  byte
//!     0  local communication ID (32)
//!     4  remote communication ID (32)
//!     8  private data, 224 bytes
//! ```
//!
//! Offsets count from the end of the MAD header.

use super::PrivateData;
use super::message::{body_of, emit_message, private_data};
use crate::error::WireError;
use crate::layout::{self, Field};
use crate::mad::{AttributeId, MAD_LEN};
use crate::units::{CommId, TransactionId};

/// Ready to use: the active side has the REP, the connection stands.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Rtu {
    /// The sender's name for the connection.
    pub local_comm_id: CommId,
    /// The receiver's name for the connection.
    pub remote_comm_id: CommId,
    /// The private data field, 224 bytes.
    pub private_data: PrivateData<PRIVATE_DATA_LEN>,
}

impl Rtu {
    /// The field table.
    pub const FIELDS: &[Field] = &[LOCAL_COMM_ID, REMOTE_COMM_ID];

    /// Reads a whole MAD.
    ///
    /// # Errors
    /// Names the field of the header that says this is not a RTU.
    pub fn parse(mad: &[u8; MAD_LEN]) -> Result<Self, WireError> {
        let body = body_of(AttributeId::RTU, mad)?;
        Ok(Self {
            local_comm_id: CommId(LOCAL_COMM_ID.get_u32(body)),
            remote_comm_id: CommId(REMOTE_COMM_ID.get_u32(body)),
            private_data: private_data(body),
        })
    }

    /// Writes a whole MAD.
    pub fn emit(&self, transaction_id: TransactionId, out: &mut [u8; MAD_LEN]) {
        emit_message(
            AttributeId::RTU,
            transaction_id,
            self.private_data.as_bytes(),
            out,
            |body| {
                LOCAL_COMM_ID.put(body, self.local_comm_id.0);
                REMOTE_COMM_ID.put(body, self.remote_comm_id.0);
            },
        );
    }
}

const LOCAL_COMM_ID: Field = Field::new("local communication ID", 0, 0, 32);
const REMOTE_COMM_ID: Field = Field::new("remote communication ID", 4, 0, 32);

const PRIVATE_DATA_LEN: usize = 224;
const _: () = layout::check(Rtu::FIELDS, 8, PRIVATE_DATA_LEN);
