//! The messages of communication management (IBA Vol. 1 ch. 12), one file each.
//!
//! A message is parsed from and emitted into a whole MAD. Reserved bits are emitted as zero and ignored on receipt. A
//! value wider than its field (possible where a field's type is a plain integer) is emitted as the field's largest.

mod ari;
mod drep;
mod dreq;
mod message;
mod mra;
mod private_data;
mod rej;
mod rep;
mod req;
mod rtu;

pub use ari::{Ari, AriTooLong};
pub use drep::Drep;
pub use dreq::Dreq;
pub use message::{CmMessage, MessageKind};
pub use mra::Mra;
pub use private_data::{PrivateData, PrivateDataTooLong};
pub use rej::Rej;
pub use rep::Rep;
pub use req::{PathFields, Req};
pub use rtu::Rtu;
