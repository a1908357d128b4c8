//! REJ: rejection (IBA Vol. 1 ch. 12, REJ).
//!
//! ```text
//!  byte
//!     0  local communication ID (32)
//!     4  remote communication ID (32)
//!     8  message rejected (2) | reserved (6)
//!     9  reject info length (7) | reserved (1)
//!    10  reason (16)
//!    12  additional reject information, 72 bytes
//!    84  private data, 148 bytes
//! ```
//!
//! Offsets count from the end of the MAD header.

use super::message::{MessageKind, additional_info, body_of, emit_message, private_data};
use super::{Ari, PrivateData};
use crate::error::WireError;
use crate::layout::{self, Field};
use crate::mad::{AttributeId, MAD_LEN};
use crate::units::{CommId, RejReason, TransactionId};

/// Rejection: there will be no connection, or no longer.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Rej {
    /// The sender's name for the connection.
    pub local_comm_id: CommId,
    /// The receiver's name for the connection.
    pub remote_comm_id: CommId,
    /// Which message is rejected; other if there was none.
    pub message: MessageKind,
    /// Why.
    pub reason: RejReason,
    /// More about why, depending on the reason: for a timeout, the sender's CA GUID.
    pub additional_info: Ari,
    /// The private data field, 148 bytes.
    pub private_data: PrivateData<PRIVATE_DATA_LEN>,
}

impl Rej {
    /// The field table.
    pub const FIELDS: &[Field] = &[LOCAL_COMM_ID, REMOTE_COMM_ID, MESSAGE, ARI_LENGTH, REASON];

    /// Reads a whole MAD.
    ///
    /// # Errors
    /// Names the field of the header that says this is not a REJ, or the field that is wrong.
    pub fn parse(mad: &[u8; MAD_LEN]) -> Result<Self, WireError> {
        let body = body_of(AttributeId::REJ, mad)?;
        Ok(Self {
            local_comm_id: CommId(LOCAL_COMM_ID.get_u32(body)),
            remote_comm_id: CommId(REMOTE_COMM_ID.get_u32(body)),
            message: MessageKind(MESSAGE.get_u8(body)),
            reason: RejReason(REASON.get_u16(body)),
            additional_info: additional_info("REJ", ARI_LENGTH, ARI, body)?,
            private_data: private_data(body),
        })
    }

    /// Writes a whole MAD.
    pub fn emit(&self, transaction_id: TransactionId, out: &mut [u8; MAD_LEN]) {
        emit_message(
            AttributeId::REJ,
            transaction_id,
            self.private_data.as_bytes(),
            out,
            |body| {
                LOCAL_COMM_ID.put(body, self.local_comm_id.0);
                REMOTE_COMM_ID.put(body, self.remote_comm_id.0);
                MESSAGE.put(body, self.message.0);
                ARI_LENGTH.put(body, self.additional_info.len());
                REASON.put(body, self.reason.0);
                let given = self.additional_info.as_bytes();
                body[ARI..ARI + given.len()].copy_from_slice(given);
            },
        );
    }
}

const LOCAL_COMM_ID: Field = Field::new("local communication ID", 0, 0, 32);
const REMOTE_COMM_ID: Field = Field::new("remote communication ID", 4, 0, 32);
const MESSAGE: Field = Field::new("message rejected", 8, 0, 2);
const ARI_LENGTH: Field = Field::new("reject info length", 9, 0, 7);
const REASON: Field = Field::new("reason", 10, 0, 16);

/// Where the additional reject information begins.
const ARI: usize = 12;
const _: () = assert!(
    ARI + Ari::MAX_LEN == 84,
    "the additional reject information ends where the private data begins"
);

const PRIVATE_DATA_LEN: usize = 148;
const _: () = layout::check(Rej::FIELDS, 84, PRIVATE_DATA_LEN);
