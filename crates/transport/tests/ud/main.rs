//! Datagram queue pairs: to each other, by any rule they can break, and in the place of recorded kernels.
#![forbid(unsafe_code)]

mod errors;
mod kernel;
mod lifecycle;
#[path = "../uc/memory.rs"]
#[allow(dead_code, reason = "shared with the tests of UC")]
mod memory;
mod model;
#[path = "../rc/pcap.rs"]
mod pcap;
mod support;
mod transfer;
