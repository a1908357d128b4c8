//! Every byte format and the field types they are made of. No I/O, no allocation, no `std`.
//!
//! A RoCEv2 packet, from the outside in:
//!
//! ```text
//!  IPv4 or IPv6   not built here; the ICRC covers its fixed fields
//!  UDP            destination port 4791
//!  BTH            12 bytes                      [`base::Bth`]
//!  extended       what the opcode calls for     [`base`], one header a file
//!  payload        and its padding to 4 bytes    [`packet`] puts the headers together
//!  ICRC           4 bytes, little endian        [`icrc`]
//! ```
//!
//! The payload of a datagram on QP1 is a management datagram of 256 bytes:
//!
//! ```text
//!  MAD header     24 bytes                      [`mad`]
//!  CM message     fields and private data       [`cm`], one file each
//!    private data of a REQ or SIDR_REQ begins with the 36-byte IP CM header, where the RDMA CM is used   [`ip_cm`]
//! ```
//!
//! What a UD receive finds before its payload, 40 bytes made of the IP header, is [`base::Grh`].
//!
//! The field types are in [`units`], one-line renderings of the messages are their `Display`, and [`WireError`] says which
//! field of which message was wrong.
//!
//! Parsing never panics and never allocates, whatever the bytes. A parsed message that is emitted gives the same bytes,
//! apart from reserved bits (emitted as zero), the unused end of additional information (REJ, APR, SIDR_REP) and the
//! attribute modifier of a message without a place for [`Ece`].
//!
//! # Features
//! `std`: lets the ICRC choose the fastest instructions of the processor at run time. Results are the same without.
#![no_std]
#![forbid(unsafe_code)]
#![warn(clippy::cast_possible_truncation)]

#[cfg(test)]
extern crate std;

pub mod base;
pub mod cm;
pub mod error;
pub mod icrc;
pub mod ip_cm;
pub mod layout;
pub mod mad;
pub mod packet;
pub mod pretty;
pub mod time;
pub mod units;

pub use base::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Grh, Ieth, ImmDt, NakCode, Opcode, Reth, RnrTimer,
    Syndrome, XrcEth,
};
pub use cm::{
    AlternatePath, Apr, Ari, AriTooLong, CmMessage, Drep, Dreq, Ece, Lap, MessageKind, Mra,
    PathFields, PrivateData, PrivateDataTooLong, Rej, Rep, Req, Rtu, SidrRep, SidrReq,
};
pub use error::{WireError, WireErrorKind};
pub use ip_cm::{IpCmHeader, PortSpace};
pub use mad::{AttributeId, MAD_HEADER_LEN, MAD_LEN, MadHeader, Method, MgmtClass};
pub use packet::{Packet, PacketHeader};
pub use time::{Time, earliest};
pub use units::{
    AddressVector, AprStatus, CommId, FlowLabel, Gid, Guid, IbTimeout, LKey, Lid, Mtu, PKey, Psn,
    QKey, Qpn, RKey, Rate, RejReason, RetryCount, ServiceId, SidrStatus, Srqn, TransactionId,
    TransportService,
};

/// The UDP port that every RoCEv2 packet is sent to (Annex A17).
pub const ROCE_PORT: u16 = 4791;
