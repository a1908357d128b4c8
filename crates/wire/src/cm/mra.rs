//! MRA: message receipt acknowledgement (IBA Vol. 1 ch. 12, MRA).
//!
//! ```text
//!  byte
//!     0  local communication ID (32)
//!     4  remote communication ID (32)
//!     8  message MRAed (2) | reserved (6)
//!     9  service timeout (5) | reserved (3)
//!    10  private data, 222 bytes
//! ```
//!
//! Offsets count from the end of the MAD header.

use super::PrivateData;
use super::message::{MessageKind, body_of, emit_message, private_data};
use crate::error::WireError;
use crate::layout::{self, Field};
use crate::mad::{AttributeId, MAD_LEN};
use crate::units::{CommId, IbTimeout, TransactionId};

/// Message receipt acknowledgement: the answer to a message will take a while.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Mra {
    /// The sender's name for the connection.
    pub local_comm_id: CommId,
    /// The receiver's name for the connection.
    pub remote_comm_id: CommId,
    /// Which message is acknowledged.
    pub message: MessageKind,
    /// How long the answer may take, from now on.
    pub service_timeout: IbTimeout,
    /// The private data field, 222 bytes.
    pub private_data: PrivateData<PRIVATE_DATA_LEN>,
}

impl Mra {
    /// The field table.
    pub const FIELDS: &[Field] = &[LOCAL_COMM_ID, REMOTE_COMM_ID, MESSAGE, SERVICE_TIMEOUT];

    /// Reads a whole MAD.
    ///
    /// # Errors
    /// Names the field of the header that says this is not a MRA.
    pub fn parse(mad: &[u8; MAD_LEN]) -> Result<Self, WireError> {
        let body = body_of(AttributeId::MRA, mad)?;
        Ok(Self {
            local_comm_id: CommId(LOCAL_COMM_ID.get_u32(body)),
            remote_comm_id: CommId(REMOTE_COMM_ID.get_u32(body)),
            message: MessageKind(MESSAGE.get_u8(body)),
            service_timeout: IbTimeout::truncate(SERVICE_TIMEOUT.get_u8(body)),
            private_data: private_data(body),
        })
    }

    /// Writes a whole MAD.
    pub fn emit(&self, transaction_id: TransactionId, out: &mut [u8; MAD_LEN]) {
        emit_message(
            AttributeId::MRA,
            transaction_id,
            self.private_data.as_bytes(),
            out,
            |body| {
                LOCAL_COMM_ID.put(body, self.local_comm_id.0);
                REMOTE_COMM_ID.put(body, self.remote_comm_id.0);
                MESSAGE.put(body, self.message.0);
                SERVICE_TIMEOUT.put(body, self.service_timeout.get());
            },
        );
    }
}

const LOCAL_COMM_ID: Field = Field::new("local communication ID", 0, 0, 32);
const REMOTE_COMM_ID: Field = Field::new("remote communication ID", 4, 0, 32);
const MESSAGE: Field = Field::new("message MRAed", 8, 0, 2);
const SERVICE_TIMEOUT: Field = Field::new("service timeout", 9, 0, 5);

const PRIVATE_DATA_LEN: usize = 222;
const _: () = layout::check(Mra::FIELDS, 10, PRIVATE_DATA_LEN);
