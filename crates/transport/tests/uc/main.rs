//! Unreliable-connected queue pairs: to each other, over networks that lose, and against packets that break rules.
#![forbid(unsafe_code)]

mod errors;
mod fuzz;
mod ladders;
mod lifecycle;
mod loss;
#[allow(dead_code, reason = "shared with the tests of UD")]
mod memory;
mod model;
mod pace;
mod pair;
mod shared;
mod transfer;
