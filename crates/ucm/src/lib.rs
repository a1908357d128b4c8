//! The rdma_ucm ABI, its dispatcher, and what a process and the host service exchange.
#![forbid(unsafe_code)]

pub mod abi;
pub mod client;
pub mod proto;
