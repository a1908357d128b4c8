//! The field types: each carries the width, the byte order free value and the printed form of one field.
//!
//! Narrow fields keep their value private and are made by `new`, which refuses what does not fit, or by `truncate`,
//! which keeps the low bits as a parser does. Fields in which every value is valid are open (`CommId(7)`).

mod address;
mod code;
mod number;
mod timeout;

pub use address::{AddressVector, Gid, Guid, Lid, PeerAddress};
pub use code::{AprStatus, Mtu, Rate, RejReason, SidrStatus, TransportService};
pub use number::{
    CommId, FlowLabel, LKey, PKey, Psn, QKey, Qpn, RKey, RetryCount, ServiceId, Srqn, TransactionId,
};
pub use timeout::IbTimeout;

#[cfg(test)]
mod tests;
