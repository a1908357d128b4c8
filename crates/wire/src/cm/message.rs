//! Any CM message, and the frame that all of them share.

use super::{Apr, Ari, Drep, Dreq, Lap, Mra, Rej, Rep, Req, Rtu, SidrRep, SidrReq};
use crate::error::{WireError, WireErrorKind};
use crate::layout::{BODY_LEN, Body, Field};
use crate::mad::{AttributeId, MAD_HEADER_LEN, MAD_LEN, MadHeader};
use crate::units::{CommId, TransactionId};
use core::fmt;

/// Any CM message.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum CmMessage {
    /// Request for communication.
    Req(Req),
    /// Message receipt acknowledgement.
    Mra(Mra),
    /// Rejection.
    Rej(Rej),
    /// Reply to a request for communication.
    Rep(Rep),
    /// Ready to use.
    Rtu(Rtu),
    /// Request to disconnect.
    Dreq(Dreq),
    /// Reply to a request to disconnect.
    Drep(Drep),
    /// Service ID resolution request.
    SidrReq(SidrReq),
    /// Service ID resolution response.
    SidrRep(SidrRep),
    /// Load alternate path.
    Lap(Lap),
    /// Alternate path response.
    Apr(Apr),
}

impl CmMessage {
    /// Reads a CM message.
    ///
    /// # Errors
    /// Names the field that is wrong. An attribute that is not a message is [`WireErrorKind::UnsupportedAttribute`].
    pub fn parse(mad: &[u8; MAD_LEN]) -> Result<(MadHeader, Self), WireError> {
        let header = MadHeader::parse(mad);
        header.expect_cm()?;
        let message = match header.attribute_id {
            AttributeId::REQ => Self::Req(Req::parse(mad)?),
            AttributeId::MRA => Self::Mra(Mra::parse(mad)?),
            AttributeId::REJ => Self::Rej(Rej::parse(mad)?),
            AttributeId::REP => Self::Rep(Rep::parse(mad)?),
            AttributeId::RTU => Self::Rtu(Rtu::parse(mad)?),
            AttributeId::DREQ => Self::Dreq(Dreq::parse(mad)?),
            AttributeId::DREP => Self::Drep(Drep::parse(mad)?),
            AttributeId::SIDR_REQ => Self::SidrReq(SidrReq::parse(mad)?),
            AttributeId::SIDR_REP => Self::SidrRep(SidrRep::parse(mad)?),
            AttributeId::LAP => Self::Lap(Lap::parse(mad)?),
            AttributeId::APR => Self::Apr(Apr::parse(mad)?),
            AttributeId(other) => {
                return Err(WireError::new(
                    "MAD",
                    "attribute ID",
                    WireErrorKind::UnsupportedAttribute(other),
                ));
            }
        };
        Ok((header, message))
    }

    /// Writes the message as a whole MAD.
    pub fn emit(&self, transaction_id: TransactionId, out: &mut [u8; MAD_LEN]) {
        match self {
            Self::Req(message) => message.emit(transaction_id, out),
            Self::Mra(message) => message.emit(transaction_id, out),
            Self::Rej(message) => message.emit(transaction_id, out),
            Self::Rep(message) => message.emit(transaction_id, out),
            Self::Rtu(message) => message.emit(transaction_id, out),
            Self::Dreq(message) => message.emit(transaction_id, out),
            Self::Drep(message) => message.emit(transaction_id, out),
            Self::SidrReq(message) => message.emit(transaction_id, out),
            Self::SidrRep(message) => message.emit(transaction_id, out),
            Self::Lap(message) => message.emit(transaction_id, out),
            Self::Apr(message) => message.emit(transaction_id, out),
        }
    }

    /// The attribute ID of the message.
    #[must_use]
    pub const fn attribute_id(&self) -> AttributeId {
        match self {
            Self::Req(_) => AttributeId::REQ,
            Self::Mra(_) => AttributeId::MRA,
            Self::Rej(_) => AttributeId::REJ,
            Self::Rep(_) => AttributeId::REP,
            Self::Rtu(_) => AttributeId::RTU,
            Self::Dreq(_) => AttributeId::DREQ,
            Self::Drep(_) => AttributeId::DREP,
            Self::SidrReq(_) => AttributeId::SIDR_REQ,
            Self::SidrRep(_) => AttributeId::SIDR_REP,
            Self::Lap(_) => AttributeId::LAP,
            Self::Apr(_) => AttributeId::APR,
        }
    }

    /// The name of the message: `REQ`.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Req(_) => "REQ",
            Self::Mra(_) => "MRA",
            Self::Rej(_) => "REJ",
            Self::Rep(_) => "REP",
            Self::Rtu(_) => "RTU",
            Self::Dreq(_) => "DREQ",
            Self::Drep(_) => "DREP",
            Self::SidrReq(_) => "SIDR_REQ",
            Self::SidrRep(_) => "SIDR_REP",
            Self::Lap(_) => "LAP",
            Self::Apr(_) => "APR",
        }
    }

    /// The sender's name for the connection; a SIDR message belongs to none.
    #[must_use]
    pub const fn local_comm_id(&self) -> Option<CommId> {
        Some(match self {
            Self::Req(message) => message.local_comm_id,
            Self::Mra(message) => message.local_comm_id,
            Self::Rej(message) => message.local_comm_id,
            Self::Rep(message) => message.local_comm_id,
            Self::Rtu(message) => message.local_comm_id,
            Self::Dreq(message) => message.local_comm_id,
            Self::Drep(message) => message.local_comm_id,
            Self::Lap(message) => message.local_comm_id,
            Self::Apr(message) => message.local_comm_id,
            Self::SidrReq(_) | Self::SidrRep(_) => return None,
        })
    }

    /// The receiver's name for the connection; a REQ has none yet, and a SIDR message belongs to none.
    #[must_use]
    pub const fn remote_comm_id(&self) -> Option<CommId> {
        Some(match self {
            Self::Mra(message) => message.remote_comm_id,
            Self::Rej(message) => message.remote_comm_id,
            Self::Rep(message) => message.remote_comm_id,
            Self::Rtu(message) => message.remote_comm_id,
            Self::Dreq(message) => message.remote_comm_id,
            Self::Drep(message) => message.remote_comm_id,
            Self::Lap(message) => message.remote_comm_id,
            Self::Apr(message) => message.remote_comm_id,
            Self::Req(_) | Self::SidrReq(_) | Self::SidrRep(_) => return None,
        })
    }
}

macro_rules! from_message {
    ($($message:ident)*) => {
        $(impl From<$message> for CmMessage {
            fn from(message: $message) -> Self {
                Self::$message(message)
            }
        })*
    };
}

from_message!(Req Mra Rej Rep Rtu Dreq Drep SidrReq SidrRep Lap Apr);

/// Which message an MRA or a REJ answers, 2 bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct MessageKind(pub u8);

impl MessageKind {
    /// A REQ.
    pub const REQ: Self = Self(0);
    /// A REP.
    pub const REP: Self = Self(1);
    /// Another message (in an MRA, a LAP), or none.
    pub const OTHER: Self = Self(2);
}

impl fmt::Display for MessageKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::REQ => f.write_str("REQ"),
            Self::REP => f.write_str("REP"),
            Self::OTHER => f.write_str("other"),
            Self(other) => write!(f, "message {other}"),
        }
    }
}

/// The bytes after the header, if the header is that of the message `attribute_id`.
pub(super) fn body_of(attribute_id: AttributeId, mad: &[u8; MAD_LEN]) -> Result<&Body, WireError> {
    let header = MadHeader::parse(mad);
    header.expect_cm()?;
    match mad.last_chunk::<BODY_LEN>() {
        Some(body) if header.attribute_id == attribute_id => Ok(body),
        _ => {
            let kind = WireErrorKind::UnsupportedAttribute(header.attribute_id.0);
            Err(WireError::new("MAD", "attribute ID", kind))
        }
    }
}

/// Writes a whole message: the header, zeros, what `fields` puts into the body, and the private data at its end.
pub(super) fn emit_message(
    attribute_id: AttributeId,
    transaction_id: TransactionId,
    private_data: &[u8],
    out: &mut [u8; MAD_LEN],
    fields: impl FnOnce(&mut Body),
) {
    emit_message_with_options(attribute_id, transaction_id, 0, private_data, out, fields);
}

/// The same with ECE options, which stand in the header.
pub(super) fn emit_message_with_options(
    attribute_id: AttributeId,
    transaction_id: TransactionId,
    options: u32,
    private_data: &[u8],
    out: &mut [u8; MAD_LEN],
    fields: impl FnOnce(&mut Body),
) {
    let mut body = [0; BODY_LEN];
    fields(&mut body);
    body[BODY_LEN - private_data.len()..].copy_from_slice(private_data);
    MadHeader {
        attribute_modifier: options,
        ..MadHeader::cm(attribute_id, transaction_id)
    }
    .emit(out);
    out[MAD_HEADER_LEN..].copy_from_slice(&body);
}

/// The ECE options of a message.
pub(super) fn options(mad: &[u8; MAD_LEN]) -> u32 {
    MadHeader::parse(mad).attribute_modifier
}

/// The private data at the end of a body.
pub(super) fn private_data<const N: usize>(body: &Body) -> super::PrivateData<N> {
    const { assert!(N <= BODY_LEN, "private data is part of the body") };
    let mut bytes = [0; N];
    bytes.copy_from_slice(&body[BODY_LEN - N..]);
    bytes.into()
}

/// The additional information that begins at byte `at` and is as long as the field `length` says.
pub(super) fn additional_info(
    message: &'static str,
    length: Field,
    at: usize,
    body: &Body,
) -> Result<Ari, WireError> {
    let given = length.get_u8(body);
    body[at..]
        .get(..usize::from(given))
        .and_then(|info| Ari::from_slice(info).ok())
        .ok_or(WireError::new(
            message,
            length.name(),
            WireErrorKind::OutOfRange(given.into()),
        ))
}
