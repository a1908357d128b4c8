//! Memory backed by a `Vec`: ranges that can vanish, keys that peers use, a shared receive queue, windows.

#[path = "../support/arena.rs"]
mod arena;

use std::ops::{Deref, DerefMut};

use oarlock_transport::{
    AccessFlags, BindWindow, HeldReceive, Memory, MemoryError, RemoteAccess, RemoteAddress, Sge,
    SharedReceive, Srq,
};
use oarlock_wire::{RKey, Srqn};

use arena::Arena;

/// The domain of the shared receive queue.
pub(crate) const DOMAIN: u32 = 77;

#[derive(Debug)]
pub(crate) struct VecMemory {
    arena: Arena,
    pub(crate) srq: Option<Srq>,
    /// Keys taken away, in order.
    pub(crate) invalidated: Vec<RKey>,
    /// Windows bound, in order.
    pub(crate) bound: Vec<BindWindow>,
    /// The answer to the next binding.
    pub(crate) bind_error: Option<MemoryError>,
}

impl VecMemory {
    pub(crate) fn new(len: usize) -> Self {
        Self {
            arena: Arena::new(len),
            srq: None,
            invalidated: Vec::new(),
            bound: Vec::new(),
            bind_error: None,
        }
    }

    /// A fresh range that a peer may access so.
    pub(crate) fn offer(&mut self, len: usize, access: AccessFlags) -> (Sge, RemoteAddress) {
        let sge = self.alloc(len);
        let rkey = RKey(0x4000 + self.grants() as u32);
        self.grant(rkey, sge.addr..sge.addr + len as u64, access);
        let addr = sge.addr;
        (sge, RemoteAddress { addr, rkey })
    }
}

impl Deref for VecMemory {
    type Target = Arena;

    fn deref(&self) -> &Arena {
        &self.arena
    }
}

impl DerefMut for VecMemory {
    fn deref_mut(&mut self) -> &mut Arena {
        &mut self.arena
    }
}

impl Memory for VecMemory {
    fn scatter(&mut self, sges: &[Sge], offset: u64, data: &[u8]) -> Result<(), MemoryError> {
        self.arena.scatter(sges, offset, data)
    }

    fn gather(&mut self, sges: &[Sge], offset: u64, out: &mut [u8]) -> Result<(), MemoryError> {
        self.arena.gather(sges, offset, out)
    }

    fn check_remote(
        &mut self,
        rkey: RKey,
        addr: u64,
        len: u64,
        access: RemoteAccess,
    ) -> Result<(), MemoryError> {
        assert!(len > 0, "asked about no bytes");
        self.permit(rkey, addr, len, access)
    }

    fn write_remote(&mut self, rkey: RKey, addr: u64, data: &[u8]) -> Result<(), MemoryError> {
        self.check_remote(rkey, addr, data.len() as u64, RemoteAccess::Write)?;
        self.piece(addr, data.len())?.copy_from_slice(data);
        Ok(())
    }

    fn invalidate(&mut self, rkey: RKey) -> Result<(), MemoryError> {
        self.revoke(rkey)?;
        self.invalidated.push(rkey);
        Ok(())
    }

    fn bind(&mut self, bind: &BindWindow) -> Result<(), MemoryError> {
        if let Some(error) = self.bind_error.take() {
            return Err(error);
        }
        self.bound.push(*bind);
        Ok(())
    }

    fn scatter_held(
        &mut self,
        held: &HeldReceive,
        offset: u64,
        data: &[u8],
    ) -> Result<(), MemoryError> {
        assert_eq!(
            held.domain, DOMAIN,
            "the buffer keeps its queue's protection domain"
        );
        self.scatter(&held.sges, offset, data)
    }

    fn take_shared_receive(&mut self, srqn: Option<Srqn>, into: &mut HeldReceive) -> SharedReceive {
        assert_eq!(srqn, None, "only XRC names a queue");
        let Some(srq) = &mut self.srq else {
            return SharedReceive::NoSuchQueue;
        };
        if !srq.take(into) {
            return SharedReceive::Empty;
        }
        into.domain = DOMAIN;
        SharedReceive::Taken
    }
}
