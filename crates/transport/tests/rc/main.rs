//! Queue pairs against each other, against a model, and against recorded kernels.
#![forbid(unsafe_code)]

mod credits;
mod drain;
mod duplicates;
mod errors;
mod forge;
mod fuzz;
mod kernel;
mod ladders;
mod lifecycle;
mod memory;
mod model;
mod one_sided;
mod pair;
#[allow(dead_code, reason = "shared with the tests of UD")]
mod pcap;
mod refusals;
mod replay;
mod results;
mod shared;
mod statuses;
mod transfer;
