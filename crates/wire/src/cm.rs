//! The messages of communication management (IBA Vol. 1 ch. 12), one file each.
//!
//! A message is parsed from and emitted into a whole MAD. Reserved bits are emitted as zero and ignored on receipt. A
//! value wider than its field (possible where a field's type is a plain integer) is emitted as the field's largest.

mod apr;
mod ari;
mod drep;
mod dreq;
mod ece;
mod lap;
mod message;
mod mra;
mod path;
mod private_data;
mod rej;
mod rep;
mod req;
mod rtu;
mod sidr_rep;
mod sidr_req;

pub use apr::Apr;
pub use ari::{Ari, AriTooLong};
pub use drep::Drep;
pub use dreq::Dreq;
pub use ece::Ece;
pub use lap::Lap;
pub use message::{CmMessage, MessageKind};
pub use mra::Mra;
pub use path::{AlternatePath, PathFields};
pub use private_data::{PrivateData, PrivateDataTooLong};
pub use rej::Rej;
pub use rep::Rep;
pub use req::Req;
pub use rtu::Rtu;
pub use sidr_rep::SidrRep;
pub use sidr_req::SidrReq;
