//! Memory regions and windows: what the device may read and write, and how it does so without a signal.
//!
//! A region is either memory of the library ([`Pd::allocate`](crate::Pd::allocate)), which lives as long as the region and
//! is copied to plainly, or memory of the program ([`Pd::register`](crate::Pd::register)), which may vanish at any moment
//! and is reached by system calls that fail where a plain copy would raise a signal (`foreign.rs`). Either way a placement
//! that cannot be done is an error, never a SIGSEGV.
//!
//! ```text
//!   key ── table.rs ──> RegionInner ──guard── Registration ──> OwnedMemory | ForeignMemory
//!             |            ^   region.rs                        owned.rs     foreign.rs
//!             └───────> WindowInner ──guard── Binding
//!                          window.rs
//! ```
//! Memory of the program can be watched besides (`watched.rs`): then its keys end when its mapping does.
//! Every access (`memory.rs`) resolves its key anew, and checks protection domain, access right and bounds. It holds the
//! guards while it copies: see `region.rs` for what that means for the program. Of memory of the program several packets' bytes
//! are copied at once (`ahead.rs`). A copy between two processes of one host that leaves out packets does not exist yet:
//! whoever sends, the bytes are placed by a thread of this process, so a sender that dies half-way leaves a message that never
//! completes, and no copy under way.
#![allow(
    unsafe_code,
    reason = "raw memory is the subject; each block argues its obligations"
)]

mod access;
mod ahead;
mod content;
mod foreign;
mod keys;
mod memory;
mod owned;
mod region;
mod register;
mod table;
mod watched;
mod window;

use std::ptr::NonNull;
use std::sync::Arc;

use oarlock_transport::Sge;
use oarlock_wire::{LKey, RKey};

use crate::error::Error;

use owned::OwnedMemory;
use region::RegionInner;

pub(crate) use ahead::{Incoming, Outgoing, Ways};
pub(crate) use memory::PdMemory;
pub use oarlock_transport::AccessFlags as Access;
pub use register::{Reregistration, Translation};
pub(crate) use table::{KeyHasher, MAX_REGIONS, RegionTable};
pub(crate) use watched::Probe;
pub use window::{Bound, Window, WindowType};

/// A registered range of memory.
///
/// Dropping the last handle takes the key away without waiting: a copy that is under way ends
/// first, and keeps the memory alive until then. Windows that are bound to it stop working with it. Use
/// [`deregister`](Self::deregister) where the memory is not the library's.
///
/// # Memory that peers may reach
/// With a remote right, or [`Access::MW_BIND`], peers choose what they touch and when. Then use
/// [`copy_in`](Self::copy_in), [`copy_out`](Self::copy_out), [`load_u64`](Self::load_u64) and
/// [`store_u64`](Self::store_u64), which exclude them, and make no reference from [`as_ptr`](Self::as_ptr).
pub struct Region {
    inner: Arc<RegionInner>,
    table: Arc<RegionTable>,
    key: u32,
    addr: u64,
    iova: u64,
    len: u64,
    access: Access,
    own: Option<Arc<OwnedMemory>>,
}

impl Region {
    /// Address of the first byte in this process.
    pub fn addr(&self) -> u64 {
        self.addr
    }

    /// Address of the first byte by which work requests and peers name it: [`addr`](Self::addr), unless the region was
    /// registered with another, or with [`Access::ZERO_BASED`].
    pub fn iova(&self) -> u64 {
        self.iova
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Never true: a region has at least one byte.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// What the device may do with it.
    pub fn access(&self) -> Access {
        self.access
    }

    /// Names the region in scatter/gather elements.
    pub fn lkey(&self) -> LKey {
        LKey(self.key)
    }

    /// Names the region to peers.
    pub fn rkey(&self) -> RKey {
        RKey(self.key)
    }

    /// The first byte, if the memory is the library's own.
    ///
    /// Whoever makes a reference from it answers for this: while the reference lives, no receive
    /// that names those bytes is posted on any queue pair, for a mutable reference no send
    /// either, and peers have no right to those bytes. The pointer is valid while the `Region` lives.
    pub fn as_ptr(&self) -> Option<NonNull<u8>> {
        self.own.as_ref().map(|memory| memory.start())
    }

    /// A scatter/gather element over `len` bytes from `offset` on; the bounds are checked when it
    /// is used.
    pub fn sge(&self, offset: u64, len: u32) -> Sge {
        Sge {
            addr: self.iova.wrapping_add(offset),
            len,
            lkey: self.lkey(),
        }
    }

    /// Takes the key away and waits until no copy into or out of the region is under way.
    ///
    /// Afterwards nothing is placed: the memory may be unmapped or used for anything else. Work
    /// requests that still name the region end with a local protection error, requests of peers with a remote access error.
    ///
    /// # Errors
    /// `WindowsBound`, and the region as it was: windows are bound to it, so many.
    ///
    /// # Blocking
    /// For the rest of a copy of at most one packet, and of bursts that are being built.
    #[doc(alias = "ibv_dereg_mr")]
    pub fn deregister(self) -> Result<(), (Self, Error)> {
        match self.inner.close_unless_bound() {
            // Dropping takes the key away.
            Ok(()) => {
                self.table.wait_for_leaving();
                Ok(())
            }
            Err(error) => Err((self, error)),
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        self.inner.close();
        self.table.remove(self.key);
    }
}

impl std::fmt::Debug for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Region")
            .field("addr", &format_args!("{:#x}", self.addr))
            .field("iova", &format_args!("{:#x}", self.iova))
            .field("len", &self.len)
            .field("lkey", &format_args!("{:#x}", self.key))
            .field("access", &self.access)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
