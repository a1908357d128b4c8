//! Memory backed by a `Vec`, with ranges that can vanish, ranges offered to peers, and shared receive queues.

use std::collections::VecDeque;
use std::ops::Range;

use oarlock_transport::{
    AccessFlags, AtomicOp, BindWindow, HeldReceive, Memory, MemoryError, RemoteAccess,
    RemoteAddress, Sge, SharedReceive,
};
use oarlock_wire::{LKey, RKey, Srqn};

/// The only key.
pub(crate) const KEY: LKey = LKey(0x51);
const BASE: u64 = 0x7f00_0000_1000;

#[derive(Debug)]
pub(crate) struct VecMemory {
    bytes: Vec<u8>,
    used: usize,
    vanished: Vec<Range<u64>>,
    pub(crate) gathers: usize,
    offers: Vec<Offer>,
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

/// What a peer may do with a range.
#[derive(Debug)]
struct Offer {
    rkey: RKey,
    range: Range<u64>,
    access: AccessFlags,
}

impl VecMemory {
    pub(crate) fn new(len: usize) -> Self {
        Self {
            bytes: vec![0xEE; len],
            used: 0,
            vanished: Vec::new(),
            gathers: 0,
            offers: Vec::new(),
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
        let rkey = RKey(0x100 * (1 + self.offers.len() as u32));
        self.offers.push(Offer {
            rkey,
            range: sge.addr..sge.addr + u64::from(sge.len),
            access,
        });
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

    fn permit(
        &self,
        rkey: RKey,
        addr: u64,
        len: u64,
        access: RemoteAccess,
    ) -> Result<(), MemoryError> {
        let mut offers = self.offers.iter();
        let Some(offer) = offers.find(|offer| offer.rkey == rkey) else {
            return Err(MemoryError::InvalidRemoteKey(rkey));
        };
        let right = match access {
            RemoteAccess::Write => AccessFlags::REMOTE_WRITE,
            RemoteAccess::Read => AccessFlags::REMOTE_READ,
            RemoteAccess::Atomic => AccessFlags::REMOTE_ATOMIC,
        };
        if !offer.access.contains(right) {
            return Err(MemoryError::RemoteAccessDenied { rkey, access });
        }
        if addr < offer.range.start || offer.range.end - addr.min(offer.range.end) < len {
            return Err(MemoryError::OutOfBounds { addr, len });
        }
        Ok(())
    }

    fn permit_mapped(
        &self,
        rkey: RKey,
        addr: u64,
        len: u64,
        access: RemoteAccess,
    ) -> Result<Range<usize>, MemoryError> {
        self.permit(rkey, addr, len, access)?;
        let end = addr + len;
        let mut vanished = self.vanished.iter();
        if vanished.any(|gone| gone.start < end && addr < gone.end) {
            return Err(MemoryError::Unmapped { addr, len });
        }
        let start = (addr - BASE) as usize;
        Ok(start..start + len as usize)
    }

    /// A fresh range.
    pub(crate) fn alloc(&mut self, len: usize) -> Sge {
        let start = self.used;
        self.used += len;
        assert!(
            self.used <= self.bytes.len(),
            "the test's memory is too small"
        );
        Sge {
            addr: BASE + start as u64,
            len: len as u32,
            lkey: KEY,
        }
    }

    /// How much is in use, to give it back with [`release`](Self::release).
    pub(crate) fn mark(&self) -> usize {
        self.used
    }

    /// Everything allocated since `mark` is free again.
    pub(crate) fn release(&mut self, mark: usize) {
        self.used = mark;
    }

    /// A fresh range that holds `data`.
    pub(crate) fn store(&mut self, data: &[u8]) -> Sge {
        let sge = self.alloc(data.len());
        let start = (sge.addr - BASE) as usize;
        self.bytes[start..start + data.len()].copy_from_slice(data);
        sge
    }

    pub(crate) fn load(&self, sge: Sge, len: usize) -> Vec<u8> {
        let start = (sge.addr - BASE) as usize;
        self.bytes[start..start + len].to_vec()
    }

    /// The first `len` bytes of a message.
    pub(crate) fn load_all(&self, sges: &[Sge], len: usize) -> Vec<u8> {
        let mut all: Vec<u8> = sges
            .iter()
            .flat_map(|sge| self.load(*sge, sge.len as usize))
            .collect();
        assert!(all.len() >= len);
        all.truncate(len);
        all
    }

    /// From now on nothing of `sge` can be reached.
    pub(crate) fn vanish(&mut self, sge: Sge) {
        self.vanished.push(sge.addr..sge.addr + u64::from(sge.len));
    }

    /// Calls `copy` with each piece of memory and the part of the message it takes.
    fn walk(
        &mut self,
        sges: &[Sge],
        offset: u64,
        len: usize,
        mut copy: impl FnMut(&mut [u8], Range<usize>),
    ) -> Result<(), MemoryError> {
        let mut skip = offset;
        let mut done = 0;
        for sge in sges {
            let here = u64::from(sge.len);
            if skip >= here {
                skip -= here;
                continue;
            }
            if done == len {
                break;
            }
            let take = ((here - skip) as usize).min(len - done);
            let addr = sge.addr + skip;
            skip = 0;
            if sge.lkey != KEY {
                return Err(MemoryError::InvalidKey(sge.lkey));
            }
            let end = addr + take as u64;
            if self
                .vanished
                .iter()
                .any(|gone| gone.start < end && addr < gone.end)
            {
                return Err(MemoryError::Unmapped {
                    addr,
                    len: take as u64,
                });
            }
            let start = (addr - BASE) as usize;
            copy(&mut self.bytes[start..start + take], done..done + take);
            done += take;
        }
        assert_eq!(done, len, "the engine went beyond its scatter/gather list");
        Ok(())
    }
}

impl Memory for VecMemory {
    fn scatter(&mut self, sges: &[Sge], offset: u64, data: &[u8]) -> Result<(), MemoryError> {
        self.walk(sges, offset, data.len(), |memory, part| {
            memory.copy_from_slice(&data[part])
        })
    }

    fn gather(&mut self, sges: &[Sge], offset: u64, out: &mut [u8]) -> Result<(), MemoryError> {
        self.gathers += 1;
        let len = out.len();
        self.walk(sges, offset, len, |memory, part| {
            out[part].copy_from_slice(memory)
        })
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
        let len = data.len() as u64;
        let range = self.permit_mapped(rkey, addr, len, RemoteAccess::Write)?;
        self.bytes[range].copy_from_slice(data);
        self.placed.push(addr..addr + len);
        Ok(())
    }

    fn read_remote(&mut self, rkey: RKey, addr: u64, out: &mut [u8]) -> Result<(), MemoryError> {
        let range = self.permit_mapped(rkey, addr, out.len() as u64, RemoteAccess::Read)?;
        out.copy_from_slice(&self.bytes[range]);
        Ok(())
    }

    fn atomic(&mut self, rkey: RKey, addr: u64, op: AtomicOp) -> Result<u64, MemoryError> {
        let range = self.permit_mapped(rkey, addr, 8, RemoteAccess::Atomic)?;
        let word = &mut self.bytes[range];
        let before = u64::from_ne_bytes(word.try_into().expect("8 bytes"));
        word.copy_from_slice(&op.apply(before).to_ne_bytes());
        self.atomics += 1;
        Ok(before)
    }

    fn invalidate(&mut self, rkey: RKey) -> Result<(), MemoryError> {
        let before = self.offers.len();
        self.offers.retain(|offer| offer.rkey != rkey);
        if self.offers.len() == before {
            return Err(MemoryError::InvalidRemoteKey(rkey));
        }
        Ok(())
    }

    fn bind(&mut self, bind: &BindWindow) -> Result<(), MemoryError> {
        if bind.region != KEY {
            return Err(MemoryError::BindRefused("no such region"));
        }
        self.offers.push(Offer {
            rkey: bind.rkey,
            range: bind.addr..bind.addr + bind.len,
            access: bind.access,
        });
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
