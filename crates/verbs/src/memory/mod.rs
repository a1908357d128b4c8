//! Memory of the program, in place: registered as it lies, and watched, so that its keys end when the program unmaps, moves
//! or discards it.
//!
//! ```text
//!   MemoryChannel ── register_notified ──> NotifiedRegion ──┐            channel.rs, notified.rs
//!   MrCache<ProtectionDomain> ── get ────> ProgramMemory  ──┤ Registered: address, keys, elements
//!                                          cached.rs        └──> Element in requests    element.rs
//! ```

mod cached;
pub(crate) mod channel;
mod element;
mod notified;

pub use cached::ProgramMemory;
pub use channel::MemoryChannel;
pub use element::{Element, Elements, Registered};
pub use notified::NotifiedRegion;
