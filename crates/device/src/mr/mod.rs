//! Memory regions: what the device may read and write, and how it does so without a signal.
//!
//! A region is either memory of the library ([`Pd::allocate`]), which lives as long as the region
//! and is copied to plainly, or memory of the program ([`Pd::register`]), which may vanish at any
//! moment and is reached by `process_vm_readv`/`process_vm_writev` only. Either way a placement
//! that cannot be done is an error, never a SIGSEGV.
//!
//! Every access resolves its key anew, and checks protection domain, access right and bounds. It
//! holds the region's guard (a shared lock) while it copies; [`Region::deregister`] takes the key
//! away and then the guard exclusively: when it returns, nothing is being placed, and nothing is
//! placed later.
#![allow(
    unsafe_code,
    reason = "raw memory is the subject; each block argues its obligations"
)]

mod foreign;
mod keys;
mod owned;
mod table;

use std::io;
use std::ptr::NonNull;
use std::sync::{Arc, RwLock, Weak};

use bitflags::bitflags;
use oarlock_transport::{Memory, MemoryError, Sge};
use oarlock_wire::{LKey, RKey};

use crate::counters::Counters;
use crate::error::Error;
use crate::locks::{read, write};
use crate::pd::Pd;

use foreign::ForeignMemory;
use owned::OwnedMemory;
pub(crate) use table::{KeyHasher, MAX_REGIONS, RegionTable};

bitflags! {
    /// What the device may do with a region. Reading for sends is always allowed.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct Access: u32 {
        /// Receives may place data.
        const LOCAL_WRITE = 1;
    }
}

/// A registered range of memory.
///
/// Dropping the last handle takes the key away without waiting: a copy that is under way ends
/// first, and keeps the memory alive until then. Use [`deregister`](Self::deregister) where the
/// memory is not the library's.
pub struct Region {
    inner: Arc<RegionInner>,
    table: Weak<RegionTable>,
}

/// What the key table shares with the handle.
pub(crate) struct RegionInner {
    addr: u64,
    len: u64,
    key: u32,
    pd: u32,
    access: Access,
    backing: Backing,
    /// The guard: shared while bytes are copied; `false` for ever once deregistered.
    live: RwLock<bool>,
}

enum Backing {
    Owned(OwnedMemory),
    Foreign(ForeignMemory),
}

impl Pd {
    /// Registers `len` zeroed bytes of the library's own memory.
    ///
    /// # Errors
    /// `ZeroLength`, `OutOfMemory`, `TooManyRegions`.
    #[doc(alias = "ibv_reg_mr")]
    pub fn allocate(&self, len: usize, access: Access) -> Result<Region, Error> {
        if len == 0 {
            return Err(Error::ZeroLength);
        }
        let memory = OwnedMemory::new(len).ok_or(Error::OutOfMemory { len })?;
        let addr = memory.start().as_ptr() as u64;
        self.enter(addr, len, access, Backing::Owned(memory))
    }

    /// Registers memory of the program.
    ///
    /// The range is probed: a page that cannot be read (or written, with
    /// [`Access::LOCAL_WRITE`]) is an error now. A page that vanishes later is a local protection
    /// error of the work request that meets it.
    ///
    /// # Errors
    /// `NotMapped`: part of the range cannot be reached (`EFAULT`). `ForeignMemoryForbidden`: this
    /// system does not let a process copy to itself by `process_vm_writev`. `ZeroLength`,
    /// `RangeOverflow`, `TooManyRegions`.
    ///
    /// # Safety
    /// While a receive that names bytes of the range is posted, the device may change those bytes,
    /// from another thread. The caller makes sure that no Rust reference to them is used then, and
    /// that the range is not re-used for memory that the device must not change while the region
    /// is registered.
    #[doc(alias = "ibv_reg_mr")]
    pub unsafe fn register(&self, addr: u64, len: usize, access: Access) -> Result<Region, Error> {
        if len == 0 {
            return Err(Error::ZeroLength);
        }
        // Beyond the last page there is never user memory, so page rounding cannot overflow either.
        if addr.checked_add(len as u64 + 0xffff).is_none() {
            return Err(Error::RangeOverflow { addr, len });
        }
        let writable = access.contains(Access::LOCAL_WRITE);
        // SAFETY: the caller's promise is the one that `probe` asks for.
        let probed = unsafe { ForeignMemory::probe(addr, len, writable) };
        let memory = probed.map_err(|source| match source.raw_os_error() {
            Some(libc::EFAULT) => Error::NotMapped { addr, len },
            _ => Error::ForeignMemoryForbidden { source },
        })?;
        self.enter(addr, len, access, Backing::Foreign(memory))
    }

    fn enter(
        &self,
        addr: u64,
        len: usize,
        access: Access,
        backing: Backing,
    ) -> Result<Region, Error> {
        let table = self.context().regions();
        let inner = table.insert(|key| RegionInner {
            addr,
            len: len as u64,
            key,
            pd: self.id(),
            access,
            backing,
            live: RwLock::new(true),
        })?;
        Ok(Region {
            inner,
            table: Arc::downgrade(table),
        })
    }
}

impl Region {
    /// Address of the first byte.
    pub fn addr(&self) -> u64 {
        self.inner.addr
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.inner.len
    }

    /// Never true: a region has at least one byte.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// What the device may do with it.
    pub fn access(&self) -> Access {
        self.inner.access
    }

    /// Names the region in scatter/gather elements.
    pub fn lkey(&self) -> LKey {
        LKey(self.inner.key)
    }

    /// Names the region to peers.
    pub fn rkey(&self) -> RKey {
        RKey(self.inner.key)
    }

    /// The first byte, if the memory is the library's own.
    ///
    /// Whoever makes a reference from it answers for this: while the reference lives, no receive
    /// that names those bytes is posted on any queue pair, and for a mutable reference no send
    /// either. The pointer is valid while the `Region` lives.
    pub fn as_ptr(&self) -> Option<NonNull<u8>> {
        match &self.inner.backing {
            Backing::Owned(memory) => Some(memory.start()),
            Backing::Foreign(_) => None,
        }
    }

    /// A scatter/gather element over `len` bytes from `offset` on; the bounds are checked when it
    /// is used.
    pub fn sge(&self, offset: u64, len: u32) -> Sge {
        Sge {
            addr: self.inner.addr.wrapping_add(offset),
            len,
            lkey: self.lkey(),
        }
    }

    /// Takes the key away and waits until no copy into or out of the region is under way.
    ///
    /// Afterwards nothing is placed: the memory may be unmapped or used for anything else. Work
    /// requests that still name the region end with a local protection error.
    ///
    /// # Blocking
    /// For the rest of a copy of at most one packet.
    #[doc(alias = "ibv_dereg_mr")]
    pub fn deregister(self) {
        self.forget_key();
        *write(&self.inner.live) = false;
    }

    fn forget_key(&self) {
        if let Some(table) = self.table.upgrade() {
            table.remove(self.inner.key);
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        self.forget_key();
    }
}

impl std::fmt::Debug for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Region")
            .field("addr", &format_args!("{:#x}", self.inner.addr))
            .field("len", &self.inner.len)
            .field("lkey", &format_args!("{:#x}", self.inner.key))
            .field("access", &self.inner.access)
            .finish_non_exhaustive()
    }
}

impl RegionInner {
    pub(crate) fn key(&self) -> u32 {
        self.key
    }

    /// Runs `copy` while the guard is held; `None` if the region is deregistered.
    fn guarded<T>(&self, copy: impl FnOnce() -> T) -> Option<T> {
        let live = read(&self.live);
        live.then(copy)
    }

    fn write(&self, addr: u64, data: &[u8]) -> io::Result<bool> {
        match &self.backing {
            Backing::Owned(memory) => Ok(memory.write((addr - self.addr) as usize, data)),
            Backing::Foreign(memory) => memory.write(addr, data),
        }
    }

    fn read(&self, addr: u64, out: &mut [u8]) -> io::Result<bool> {
        match &self.backing {
            Backing::Owned(memory) => Ok(memory.read((addr - self.addr) as usize, out)),
            Backing::Foreign(memory) => memory.read(addr, out),
        }
    }
}

/// The memory of one protection domain, as the packet engine sees it.
pub(crate) struct PdMemory<'a> {
    regions: &'a RegionTable,
    pd: u32,
    counters: &'a Counters,
}

impl<'a> PdMemory<'a> {
    pub(crate) fn new(regions: &'a RegionTable, pd: u32, counters: &'a Counters) -> Self {
        Self {
            regions,
            pd,
            counters,
        }
    }

    /// Calls `copy(region, addr, from, to)` for each piece of the message bytes
    /// `[offset, offset + len)`; `from..to` counts from `offset`.
    fn for_pieces(
        &self,
        sges: &[Sge],
        offset: u64,
        len: usize,
        needed: Access,
        mut copy: impl FnMut(&RegionInner, u64, usize, usize) -> io::Result<bool>,
    ) -> Result<(), MemoryError> {
        let (mut skip, mut done) = (offset, 0);
        for sge in sges {
            if done == len {
                break;
            }
            let sge_len = u64::from(sge.len);
            if skip >= sge_len {
                skip -= sge_len;
                continue;
            }
            let piece = (sge_len - skip).min((len - done) as u64) as usize;
            let region = self.resolve(sge, needed)?;
            let addr = sge.addr + skip;
            let unmapped = MemoryError::Unmapped {
                addr,
                len: piece as u64,
            };
            match region.guarded(|| copy(&region, addr, done, done + piece)) {
                None => return Err(MemoryError::InvalidKey(sge.lkey)),
                Some(Ok(true)) => {}
                Some(Ok(false)) => return Err(unmapped),
                Some(Err(error)) => {
                    tracing::warn!(%error, "the system refuses copies to the program's memory");
                    return Err(unmapped);
                }
            }
            done += piece;
            skip = 0;
        }
        if done == len {
            Ok(())
        } else {
            // The elements end before the message does.
            Err(MemoryError::OutOfBounds {
                addr: offset,
                len: len as u64,
            })
        }
    }

    fn resolve(&self, sge: &Sge, needed: Access) -> Result<Arc<RegionInner>, MemoryError> {
        let region = self
            .regions
            .get(sge.lkey.0)
            .filter(|region| region.pd == self.pd)
            .ok_or(MemoryError::InvalidKey(sge.lkey))?;
        if !region.access.contains(needed) {
            return Err(MemoryError::NotWritable(sge.lkey));
        }
        // The whole element is checked, not only the bytes of this packet: a list that is wrong
        // fails at its first byte.
        let inside = sge
            .addr
            .checked_sub(region.addr)
            .and_then(|start| start.checked_add(u64::from(sge.len)))
            .is_some_and(|end| end <= region.len);
        if inside {
            Ok(region)
        } else {
            Err(MemoryError::OutOfBounds {
                addr: sge.addr,
                len: u64::from(sge.len),
            })
        }
    }
}

impl Memory for PdMemory<'_> {
    fn scatter(&mut self, sges: &[Sge], offset: u64, data: &[u8]) -> Result<(), MemoryError> {
        let placed = self.for_pieces(
            sges,
            offset,
            data.len(),
            Access::LOCAL_WRITE,
            |region, addr, from, to| region.write(addr, &data[from..to]),
        );
        placed.inspect_err(|_| self.counters.scatter_failed.add(1))
    }

    fn gather(&mut self, sges: &[Sge], offset: u64, out: &mut [u8]) -> Result<(), MemoryError> {
        let len = out.len();
        let fetched = self.for_pieces(
            sges,
            offset,
            len,
            Access::empty(),
            |region, addr, from, to| region.read(addr, &mut out[from..to]),
        );
        fetched.inspect_err(|_| self.counters.gather_failed.add(1))
    }
}

#[cfg(test)]
mod tests;
