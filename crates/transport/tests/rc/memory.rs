//! Memory backed by a `Vec`, with ranges that can vanish, ranges offered to peers, and shared receive queues.

#[path = "../support/arena.rs"]
mod arena;

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut, Range};

use oarlock_transport::{
    AccessFlags, AtomicOp, BindWindow, HeldReceive, Memory, MemoryError, RemoteAccess,
    RemoteAddress, Sge, SharedReceive,
};
use oarlock_wire::{RKey, Srqn};

use arena::Arena;
pub(crate) use arena::KEY;

#[derive(Debug)]
pub(crate) struct VecMemory {
    arena: Arena,
    pub(crate) gathers: usize,
    /// Where a WRITE of the peer has placed bytes, in order.
    pub(crate) placed: Vec<Range<u64>>,
    /// The shared receive queues; one without a number is the queue pair's.
    queues: Vec<(Option<Srqn>, VecDeque<Buffer>)>,
    /// The queue that was selected last.
    pub(crate) selected: Option<Srqn>,
    pub(crate) bound: Vec<BindWindow>,
    pub(crate) atomics: usize,
}

/// A buffer of a shared receive queue: the `wr_id`, and its only element.
type Buffer = (u64, Sge);

impl VecMemory {
    pub(crate) fn new(len: usize) -> Self {
        Self {
            arena: Arena::new(len),
            gathers: 0,
            placed: Vec::new(),
            queues: Vec::new(),
            selected: None,
            bound: Vec::new(),
            atomics: 0,
        }
    }

    /// Lets the peer access a range in every way.
    pub(crate) fn offer(&mut self, sge: Sge) -> RemoteAddress {
        self.offer_for(
            sge,
            AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC,
        )
    }

    pub(crate) fn offer_for(&mut self, sge: Sge, access: AccessFlags) -> RemoteAddress {
        let rkey = RKey(0x100 * (1 + self.grants() as u32));
        self.grant(rkey, sge.addr..sge.addr + u64::from(sge.len), access);
        RemoteAddress {
            addr: sge.addr,
            rkey,
        }
    }

    /// A fresh shared receive queue.
    pub(crate) fn share(&mut self, srqn: Option<Srqn>) {
        self.queues.push((srqn, VecDeque::new()));
    }

    /// Posts a fresh buffer to a shared receive queue.
    pub(crate) fn post_shared(&mut self, srqn: Option<Srqn>, wr_id: u64, len: usize) -> Sge {
        let sge = self.alloc(len);
        let mut queues = self.queues.iter_mut();
        let (_, queue) = queues.find(|(number, _)| *number == srqn).expect("shared");
        queue.push_back((wr_id, sge));
        sge
    }

    /// Posts a buffer that is in use elsewhere, too.
    pub(crate) fn post_shared_again(&mut self, srqn: Option<Srqn>, sge: Sge) {
        for (_, queue) in self.queues.iter_mut().filter(|(number, _)| *number == srqn) {
            queue.push_back((0, sge));
        }
    }

    /// The queue is gone.
    pub(crate) fn unshare(&mut self, srqn: Srqn) {
        self.queues.retain(|(number, _)| *number != Some(srqn));
    }

    /// How many buffers wait.
    pub(crate) fn shared(&self, srqn: Option<Srqn>) -> usize {
        let mut queues = self.queues.iter();
        let queue = queues.find(|(number, _)| *number == srqn);
        queue.map_or(0, |(_, queue)| queue.len())
    }

    /// The bytes there, if the peer may do that.
    fn reach(
        &mut self,
        rkey: RKey,
        addr: u64,
        len: usize,
        access: RemoteAccess,
    ) -> Result<&mut [u8], MemoryError> {
        self.permit(rkey, addr, len as u64, access)?;
        self.piece(addr, len)
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
        self.gathers += 1;
        self.arena.gather(sges, offset, out)
    }

    fn check_remote(
        &mut self,
        rkey: RKey,
        addr: u64,
        len: u64,
        access: RemoteAccess,
    ) -> Result<(), MemoryError> {
        assert!(len > 0, "nothing is asked for no bytes");
        self.permit(rkey, addr, len, access)
    }

    fn write_remote(&mut self, rkey: RKey, addr: u64, data: &[u8]) -> Result<(), MemoryError> {
        self.reach(rkey, addr, data.len(), RemoteAccess::Write)?
            .copy_from_slice(data);
        self.placed.push(addr..addr + data.len() as u64);
        Ok(())
    }

    fn read_remote(&mut self, rkey: RKey, addr: u64, out: &mut [u8]) -> Result<(), MemoryError> {
        out.copy_from_slice(self.reach(rkey, addr, out.len(), RemoteAccess::Read)?);
        Ok(())
    }

    fn atomic(&mut self, rkey: RKey, addr: u64, op: AtomicOp) -> Result<u64, MemoryError> {
        let word = self.reach(rkey, addr, 8, RemoteAccess::Atomic)?;
        let before = u64::from_ne_bytes((&*word).try_into().expect("8 bytes"));
        word.copy_from_slice(&op.apply(before).to_ne_bytes());
        self.atomics += 1;
        Ok(before)
    }

    fn invalidate(&mut self, rkey: RKey) -> Result<(), MemoryError> {
        self.revoke(rkey)
    }

    fn bind(&mut self, bind: &BindWindow) -> Result<(), MemoryError> {
        if bind.region != KEY {
            return Err(MemoryError::BindRefused("no such region"));
        }
        self.grant(bind.rkey, bind.addr..bind.addr + bind.len, bind.access);
        self.bound.push(*bind);
        Ok(())
    }

    fn take_shared_receive(&mut self, srqn: Option<Srqn>, into: &mut HeldReceive) -> SharedReceive {
        let mut queues = self.queues.iter_mut();
        let Some((_, queue)) = queues.find(|(number, _)| *number == srqn) else {
            return SharedReceive::NoSuchQueue;
        };
        let Some((wr_id, sge)) = queue.pop_front() else {
            return SharedReceive::Empty;
        };
        into.wr_id = wr_id;
        into.sges.clear();
        into.sges.push(sge);
        into.srqn = srqn;
        SharedReceive::Taken
    }

    fn select_shared(&mut self, srqn: Srqn) -> bool {
        self.selected = Some(srqn);
        self.queues.iter().any(|(number, _)| *number == Some(srqn))
    }
}
