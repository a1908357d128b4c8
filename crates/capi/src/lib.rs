//! Drop-in `librdmacm.so.1` and `libibverbs.so.1`: the C libraries of rdma-core over the soft host.
//!
//! One shared object is installed under both names, so that a program that needs both has one copy of everything here.
//!
//! ```text
//!  abi/       structures and numbers of the headers; no code
//!  process/   the one host and endpoint of this process, its log, a second copy, forks
//!  errno.rs   how a refused call is told: errno, and a sentence in the log
//!  memory/    memory events, our extension of libibverbs
//!  verbs/     libibverbs: devices, contexts, memory, queues, work requests
//!  cm/        librdmacm: channels, identifiers, events, and what is made of them
//! ```
//!
//! A function here is called by C: its pointers are what the manual pages of rdma-core say, and nothing of Rust unwinds
//! through it.

mod abi;
mod cm;
mod compat;
mod errno;
mod memory;
mod private;
mod process;
mod rsocket;
mod verbs;
