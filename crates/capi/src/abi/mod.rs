//! The C interface as data: structures, numbers, tables of functions, of rdma-core 44 on a 64-bit machine, and of our extension.
//!
//! No code here. `tests/layout.rs` compares sizes and offsets with the installed headers.
#![allow(
    non_camel_case_types,
    clippy::use_self,
    clippy::wildcard_imports,
    reason = "the names are those of the C headers"
)]
#![allow(
    dead_code,
    reason = "the headers' numbers are listed whole, used or not"
)]

mod attributes;
mod constants;
mod context;
mod memory;
mod objects;
mod rdma;
mod work;

pub(crate) use attributes::*;
pub(crate) use constants::*;
pub(crate) use context::*;
pub(crate) use memory::*;
pub(crate) use objects::*;
pub(crate) use rdma::*;
pub(crate) use work::*;
