//! The transport headers (IBA Vol. 1 ch. 9), one file each.

mod aeth;
mod bth;
mod deth;
mod grh;
mod immdt;
mod opcode;
mod syndrome;

pub use aeth::Aeth;
pub use bth::Bth;
pub use deth::Deth;
pub use grh::Grh;
pub use immdt::ImmDt;
pub use opcode::{Opcode, Operation, Position, TransportClass};
pub use syndrome::{NakCode, RnrTimer, Syndrome};
