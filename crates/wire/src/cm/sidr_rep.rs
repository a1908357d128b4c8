//! SIDR_REP: service ID resolution response (IBA Vol. 1 ch. 12, SIDR_REP).
//!
//! ```text
//!  byte
//!     0  request ID (32)
//!     4  status (8)
//!     5  additional information length (8)
//!     6  vendor ID, first two bytes (16)
//!     8  QPN (24) | vendor ID, third byte (8)
//!    12  service ID (64)
//!    20  Q_Key (32)
//!    24  additional information, 72 bytes
//!    96  private data, 136 bytes
//! ```
//!
//! The vendor ID is Linux's (`include/rdma/ibta_vol1_c12.h`): the specification reserves its bytes.
//! Offsets count from the end of the MAD header.

use super::message::{additional_info, body_of, emit_message_with_options, options, private_data};
use super::{Ari, Ece, PrivateData};
use crate::error::WireError;
use crate::layout::{self, Field};
use crate::mad::{AttributeId, MAD_LEN};
use crate::units::{CommId, QKey, Qpn, ServiceId, SidrStatus, TransactionId};

/// Service ID resolution response: the queue pair that offers the service, or why there is none.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct SidrRep {
    /// The request ID of the SIDR_REQ.
    pub request_id: CommId,
    /// Whether the rest is valid, or why not.
    pub status: SidrStatus,
    /// More about why not, depending on the status.
    pub additional_info: Ari,
    /// What the sender offers beyond the specification.
    pub ece: Ece,
    /// The queue pair that offers the service.
    pub qpn: Qpn,
    /// The service that was asked for.
    pub service_id: ServiceId,
    /// The Q_Key of that queue pair.
    pub qkey: QKey,
    /// The private data field, 136 bytes.
    pub private_data: PrivateData<PRIVATE_DATA_LEN>,
}

impl SidrRep {
    /// The field table.
    pub const FIELDS: &[Field] = &[
        REQUEST_ID,
        STATUS,
        INFO_LENGTH,
        VENDOR_ID_HIGH,
        QPN,
        VENDOR_ID_LOW,
        SERVICE_ID,
        QKEY,
    ];

    /// Reads a whole MAD.
    ///
    /// # Errors
    /// Names the field of the header that says this is not a SIDR_REP, or the field that is wrong.
    pub fn parse(mad: &[u8; MAD_LEN]) -> Result<Self, WireError> {
        let body = body_of(AttributeId::SIDR_REP, mad)?;
        Ok(Self {
            request_id: CommId(REQUEST_ID.get_u32(body)),
            status: SidrStatus(STATUS.get_u8(body)),
            additional_info: additional_info("SIDR_REP", INFO_LENGTH, INFO, body)?,
            ece: Ece {
                vendor_id: VENDOR_ID_HIGH.get_u32(body) << 8 | VENDOR_ID_LOW.get_u32(body),
                options: options(mad),
            },
            qpn: Qpn::truncate(QPN.get_u32(body)),
            service_id: ServiceId(SERVICE_ID.get_u64(body)),
            qkey: QKey(QKEY.get_u32(body)),
            private_data: private_data(body),
        })
    }

    /// Writes a whole MAD.
    pub fn emit(&self, transaction_id: TransactionId, out: &mut [u8; MAD_LEN]) {
        emit_message_with_options(
            AttributeId::SIDR_REP,
            transaction_id,
            self.ece.options,
            self.private_data.as_bytes(),
            out,
            |body| {
                let vendor_id = self.ece.vendor_id.min(Ece::MAX_VENDOR_ID);
                REQUEST_ID.put(body, self.request_id.0);
                STATUS.put(body, self.status.0);
                INFO_LENGTH.put(body, self.additional_info.len());
                VENDOR_ID_HIGH.put(body, vendor_id >> 8);
                QPN.put(body, self.qpn.get());
                VENDOR_ID_LOW.put(body, vendor_id & 0xFF);
                SERVICE_ID.put(body, self.service_id.0);
                QKEY.put(body, self.qkey.0);
                let given = self.additional_info.as_bytes();
                body[INFO..INFO + given.len()].copy_from_slice(given);
            },
        );
    }
}

const REQUEST_ID: Field = Field::new("request ID", 0, 0, 32);
const STATUS: Field = Field::new("status", 4, 0, 8);
const INFO_LENGTH: Field = Field::new("additional information length", 5, 0, 8);
const VENDOR_ID_HIGH: Field = Field::new("vendor ID, first two bytes", 6, 0, 16);
const QPN: Field = Field::new("QPN", 8, 0, 24);
const VENDOR_ID_LOW: Field = Field::new("vendor ID, third byte", 11, 0, 8);
const SERVICE_ID: Field = Field::new("service ID", 12, 0, 64);
const QKEY: Field = Field::new("Q_Key", 20, 0, 32);

/// Where the additional information begins.
const INFO: usize = 24;
const _: () = assert!(
    INFO + Ari::MAX_LEN == 96,
    "the additional information ends where the private data begins"
);

const PRIVATE_DATA_LEN: usize = 136;
const _: () = layout::check(SidrRep::FIELDS, 96, PRIVATE_DATA_LEN);
