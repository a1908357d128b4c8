//! SIDR_REQ: service ID resolution request (IBA Vol. 1 ch. 12, SIDR_REQ).
//!
//! ```text
//!  byte
//!     0  request ID (32)
//!     4  partition key (16)
//!     6  reserved (16)
//!     8  service ID (64)
//!    16  private data, 216 bytes
//! ```
//!
//! Offsets count from the end of the MAD header.

use super::PrivateData;
use super::message::{body_of, emit_message, private_data};
use crate::error::WireError;
use crate::layout::{self, Field};
use crate::mad::{AttributeId, MAD_LEN};
use crate::units::{CommId, PKey, ServiceId, TransactionId};

/// Service ID resolution request: which datagram queue pair offers a service?
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct SidrReq {
    /// The sender's name for the request, which the SIDR_REP repeats. Drawn from the same numbers as communication IDs.
    pub request_id: CommId,
    /// The partition of the datagrams to come.
    pub partition_key: PKey,
    /// The service that is asked for.
    pub service_id: ServiceId,
    /// The private data field, 216 bytes.
    pub private_data: PrivateData<PRIVATE_DATA_LEN>,
}

impl SidrReq {
    /// The field table.
    pub const FIELDS: &[Field] = &[REQUEST_ID, PARTITION_KEY, SERVICE_ID];

    /// Reads a whole MAD.
    ///
    /// # Errors
    /// Names the field of the header that says this is not a SIDR_REQ.
    pub fn parse(mad: &[u8; MAD_LEN]) -> Result<Self, WireError> {
        let body = body_of(AttributeId::SIDR_REQ, mad)?;
        Ok(Self {
            request_id: CommId(REQUEST_ID.get_u32(body)),
            partition_key: PKey(PARTITION_KEY.get_u16(body)),
            service_id: ServiceId(SERVICE_ID.get_u64(body)),
            private_data: private_data(body),
        })
    }

    /// Writes a whole MAD.
    pub fn emit(&self, transaction_id: TransactionId, out: &mut [u8; MAD_LEN]) {
        emit_message(
            AttributeId::SIDR_REQ,
            transaction_id,
            self.private_data.as_bytes(),
            out,
            |body| {
                REQUEST_ID.put(body, self.request_id.0);
                PARTITION_KEY.put(body, self.partition_key.0);
                SERVICE_ID.put(body, self.service_id.0);
            },
        );
    }
}

const REQUEST_ID: Field = Field::new("request ID", 0, 0, 32);
const PARTITION_KEY: Field = Field::new("partition key", 4, 0, 16);
const SERVICE_ID: Field = Field::new("service ID", 8, 0, 64);

const PRIVATE_DATA_LEN: usize = 216;
const _: () = layout::check(SidrReq::FIELDS, 16, PRIVATE_DATA_LEN);
