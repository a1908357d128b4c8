//! Faults of other connection managers that were reported in public, at the level of this API: each test cites the numbers of
//! `docs/public-faults.md`, and shows the right behaviour.

mod addresses;
mod devices;
mod ends;
#[path = "../api/support.rs"]
#[allow(dead_code, reason = "shared with the tests of the API")]
mod support;
mod synchronous;
