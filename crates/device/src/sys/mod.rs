//! The system calls that have no safe wrapper in the crates we use.
#![allow(
    unsafe_code,
    reason = "calls into libc; each block argues its obligations"
)]

mod pipe;
mod process_vm;
mod shelf;

pub(crate) use pipe::{Pipe, Step};
use process_vm::vectors;
pub(crate) use process_vm::{Direction, MAX_RANGES, Range, copy_own, populate};
pub(crate) use shelf::{Mapped, Shelf};

#[cfg(test)]
mod tests;
