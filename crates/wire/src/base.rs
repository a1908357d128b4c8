//! The transport headers (IBA Vol. 1 ch. 9), one file each.

mod aeth;
mod atomic_ack_eth;
mod atomic_eth;
mod bth;
mod deth;
mod grh;
mod ieth;
mod immdt;
mod opcode;
mod reth;
mod syndrome;
mod xrceth;

pub use aeth::Aeth;
pub use atomic_ack_eth::AtomicAckEth;
pub use atomic_eth::AtomicEth;
pub use bth::Bth;
pub use deth::Deth;
pub use grh::Grh;
pub use ieth::Ieth;
pub use immdt::ImmDt;
pub(crate) use opcode::ExtendedHeaders;
pub use opcode::{Opcode, Operation, Position, TransportClass};
pub use reth::Reth;
pub use syndrome::{NakCode, RnrTimer, Syndrome};
pub use xrceth::XrcEth;
