//! Shared receive queues: order, limit, resize, bounds; and queue pairs that share one.
#![forbid(unsafe_code)]

#[path = "../uc/memory.rs"]
#[allow(dead_code, reason = "shared with the tests of UC")]
mod memory;
mod queue;
mod sharing;
