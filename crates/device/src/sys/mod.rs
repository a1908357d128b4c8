//! The system calls that have no safe wrapper in the crates we use.
#![allow(
    unsafe_code,
    reason = "calls into libc; each block argues its obligations"
)]

mod process_vm;

pub(crate) use process_vm::{Direction, MAX_RANGES, Range, copy_own, populate};
