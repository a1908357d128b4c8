//! Queue pairs against each other, against a model, and against recorded kernels.
#![forbid(unsafe_code)]

mod errors;
mod fuzz;
mod kernel;
mod ladders;
mod lifecycle;
mod memory;
mod model;
mod pair;
mod pcap;
mod transfer;
