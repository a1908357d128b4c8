//! The rdma_ucm ABI, its dispatcher, and what a process and the host service exchange.
//!
//! ```text
//!   rdmacm ---- client::* builds requests, reads answers
//!     |
//!     |  proto::Request::Write, or a call in the same process
//!     v
//!   Ucm::write ---- abi::* one structure per command, checks and errors of the kernel
//!     |
//!     v
//!   cma::Cma   identifiers, channels, migration
//! ```
//!
//! The seam is the ABI of the Linux kernel (`/dev/infiniband/rdma_cm`, version 4) on purpose: what stands above it works
//! against a kernel too, and what stands below can be checked against what a kernel answers to the same bytes. Where the
//! two differ on purpose, [`DEVIATIONS`] says so. What a kernel answers is written down row by row in the folder `conformance`,
//! and a test holds both to it.
//!
//! ```
//! use oarlock_cm::Seed;
//! use oarlock_cma::Config;
//! use oarlock_ucm::{Owner, Ucm, client};
//! use oarlock_wire::Time;
//!
//! let mut ucm = Ucm::new(Config::default(), Seed([0; 32]));
//! let file = ucm.open(Owner(1)).expect("the first channel");
//! let call = client::create_id(0xCAFE, 0x0106, 0);
//! let mut answer = Vec::new();
//! ucm.write(Time::ZERO, file, call.request(), call.inline(), &mut answer).expect("port space TCP");
//! assert_eq!(call.decode(&answer), Ok(client::IdNumber(0)));
//!
//! let event = client::get_event();
//! let failure = ucm.write(Time::ZERO, file, event.request(), &[], &mut answer).expect_err("nothing happened yet");
//! assert_eq!(failure.errno().to_string(), "EAGAIN");
//! ```
//!
//! This crate never does I/O, reads no clock, and allocates nothing whose size a peer could choose without a bound.
#![forbid(unsafe_code)]

pub mod abi;
pub mod client;
mod deviations;
mod failure;
pub mod proto;
mod ucm;

pub use deviations::{DEVIATIONS, Deviation};
pub use failure::Failure;
pub use ucm::{FileId, Owner, Ucm};
