//! APR: alternate path response (IBA Vol. 1 ch. 12, APR).
//!
//! ```text
//!  byte
//!     0  local communication ID (32)
//!     4  remote communication ID (32)
//!     8  additional information length (8)
//!     9  AP status (8)
//!    10  reserved (16)
//!    12  additional information, 72 bytes
//!    84  private data, 148 bytes
//! ```
//!
//! Offsets count from the end of the MAD header.

use super::message::{additional_info, body_of, emit_message, private_data};
use super::{Ari, PrivateData};
use crate::error::WireError;
use crate::layout::{self, Field};
use crate::mad::{AttributeId, MAD_LEN};
use crate::units::{AprStatus, CommId, TransactionId};

/// Alternate path response: whether the path of a LAP has been loaded.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Apr {
    /// The sender's name for the connection.
    pub local_comm_id: CommId,
    /// The receiver's name for the connection.
    pub remote_comm_id: CommId,
    /// Whether the path has been loaded, or why not.
    pub status: AprStatus,
    /// More about why not, depending on the status.
    pub additional_info: Ari,
    /// The private data field, 148 bytes.
    pub private_data: PrivateData<PRIVATE_DATA_LEN>,
}

impl Apr {
    /// The field table.
    pub const FIELDS: &[Field] = &[LOCAL_COMM_ID, REMOTE_COMM_ID, INFO_LENGTH, STATUS];

    /// Reads a whole MAD.
    ///
    /// # Errors
    /// Names the field of the header that says this is not an APR, or the field that is wrong.
    pub fn parse(mad: &[u8; MAD_LEN]) -> Result<Self, WireError> {
        let body = body_of(AttributeId::APR, mad)?;
        Ok(Self {
            local_comm_id: CommId(LOCAL_COMM_ID.get_u32(body)),
            remote_comm_id: CommId(REMOTE_COMM_ID.get_u32(body)),
            status: AprStatus(STATUS.get_u8(body)),
            additional_info: additional_info("APR", INFO_LENGTH, INFO, body)?,
            private_data: private_data(body),
        })
    }

    /// Writes a whole MAD.
    pub fn emit(&self, transaction_id: TransactionId, out: &mut [u8; MAD_LEN]) {
        emit_message(
            AttributeId::APR,
            transaction_id,
            self.private_data.as_bytes(),
            out,
            |body| {
                LOCAL_COMM_ID.put(body, self.local_comm_id.0);
                REMOTE_COMM_ID.put(body, self.remote_comm_id.0);
                INFO_LENGTH.put(body, self.additional_info.len());
                STATUS.put(body, self.status.0);
                let given = self.additional_info.as_bytes();
                body[INFO..INFO + given.len()].copy_from_slice(given);
            },
        );
    }
}

const LOCAL_COMM_ID: Field = Field::new("local communication ID", 0, 0, 32);
const REMOTE_COMM_ID: Field = Field::new("remote communication ID", 4, 0, 32);
const INFO_LENGTH: Field = Field::new("additional information length", 8, 0, 8);
const STATUS: Field = Field::new("AP status", 9, 0, 8);

/// Where the additional information begins.
const INFO: usize = 12;
const _: () = assert!(
    INFO + Ari::MAX_LEN == 84,
    "the additional information ends where the private data begins"
);

const PRIVATE_DATA_LEN: usize = 148;
const _: () = layout::check(Apr::FIELDS, 84, PRIVATE_DATA_LEN);
