//! Memory-invalidation notification: a program registers ranges of its memory, and learns when it unmaps, moves or discards them.
//!
//! The contract is that of the kernel interface proposed as ummunotify: regions with cookies, an event queue with a descriptor
//! to poll, one page with a generation so that "nothing happened" costs no system call, and a count of events on deregistration.
//! It is built on userfaultfd, needs no privilege, and sees what the kernel does: every path of the process, whether through
//! libc, a raw system call or io_uring.
//!
//! [`MrCache`] is a cache of registrations on top of it, for whatever a [`Registrar`] registers.
//!
//! `free` of a block that the allocator keeps is no change: the memory is the program's still, and what is registered there stays
//! valid, for the next block that lies there. Small blocks are always kept; glibc keeps large ones, too, after it has given back the
//! first (`M_MMAP_THRESHOLD` of mallopt). Whoever has told others where a block is ends that before `free`.
//!
//! ```text
//!   Watcher ── register ──▶ Region ── Validity     watcher.rs, region.rs
//!      |  read_events, settle, deregister_notified
//!      |  Table: ranges, cookies, queue            table.rs      behind Lock (lock.rs)
//!      |  Marks: what is valid, one load           marks.rs      never in a forked child
//!      |  Holds: who copies, and is waited for     hold.rs       two atomic operations
//!      |  Reader: the thread that reads events     reader.rs     never allocates, never waits for the lock
//!      |  GenerationPage                           generation.rs also of other processes
//!      |  validate, invalidate                     validate.rs   for what has no event
//!      |  hooks                                    hooks.rs      the same, at the calls themselves
//!      |  SealedMemory                             sealed.rs     of our own, cannot go
//!      |  Capabilities, Operation, Mapping         capabilities.rs, promise.rs
//!      |  MrCache, Registrar                       cache/        registrations that are used again
//!      v
//!   userfaultfd, pages, signals                    sys/          the unsafe code, but for that of cache/ and hooks
//! ```
//!
//! # Example
//! ```
//! use oarlock_memwatch::{Error, Event, Policy, Watcher};
//!
//! # fn main() -> Result<(), Error> {
//! let watcher = match Watcher::new() {
//!     Ok(watcher) => watcher,
//!     // A sandbox or an old kernel: nothing may be cached.
//!     Err(Error::Unavailable { .. }) => return Ok(()),
//!     Err(error) => return Err(error),
//! };
//! let memory = vec![0u8; 1 << 20];
//! let region = watcher.register(memory.as_ptr() as usize, memory.len(), 7, Policy::Report)?;
//! assert!(region.is_valid());
//! drop(memory); // The allocator gives the first block of this size back to the system.
//! let mut events = Vec::new();
//! watcher.read_events(&mut events, 64)?;
//! assert!(matches!(&events[0], Event::Invalidated(event) if event.cookie == 7));
//! assert!(!region.is_valid());
//! assert_eq!(region.deregister()?, 1);
//! # Ok(())
//! # }
//! ```
//!
//! # What it never does
//! It never protects memory, never intercepts a function unless the program asks for it ([`hooks`]), never reads or writes the memory
//! that it watches, and makes no promise about operations that userfaultfd has no event for ([`Capabilities::promise`]), except on
//! request ([`Watcher::validate`]). The design is in `docs/memory-events.md`.

#![deny(unsafe_code)]

mod cache;
mod capabilities;
mod error;
mod event;
mod generation;
mod hold;
pub mod hooks;
mod lock;
mod maps;
mod marks;
mod promise;
mod reader;
mod region;
mod sealed;
mod shared;
mod sys;
mod table;
mod validate;
mod watcher;

pub use cache::{
    CacheError, CacheOptions, CacheStatistics, Fallback, Handle, KeptHandle, Lookup, MrCache,
    Registrar,
};
pub use capabilities::{Capabilities, Mode};
pub use error::{Error, Reason};
pub use event::{Deregistered, Event, Invalidation, Kind, Policy};
pub use generation::GenerationPage;
pub use hold::Hold;
pub use promise::{Mapping, Operation, Promise};
pub use region::{Region, Validity};
pub use sealed::SealedMemory;
pub use shared::Statistics;
pub use validate::Validation;
pub use watcher::{Options, Watcher};
