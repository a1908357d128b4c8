//! The bytes behind the tests' memory: ranges that are handed out, that vanish, and that peers may use.

use std::ops::Range;

use oarlock_transport::{AccessFlags, MemoryError, RemoteAccess, Sge};
use oarlock_wire::{LKey, RKey};

/// The only local key.
pub(crate) const KEY: LKey = LKey(0x51);
const BASE: u64 = 0x7f00_0000_1000;

/// What a peer may do with a range.
#[derive(Debug)]
struct Grant {
    rkey: RKey,
    range: Range<u64>,
    access: AccessFlags,
}

#[derive(Debug)]
pub(crate) struct Arena {
    bytes: Vec<u8>,
    used: usize,
    vanished: Vec<Range<u64>>,
    grants: Vec<Grant>,
}

impl Arena {
    pub(crate) fn new(len: usize) -> Self {
        Self {
            bytes: vec![0xEE; len],
            used: 0,
            vanished: Vec::new(),
            grants: Vec::new(),
        }
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

    /// How many keys work.
    pub(crate) fn grants(&self) -> usize {
        self.grants.len()
    }

    /// Lets the peer access a range so.
    pub(crate) fn grant(&mut self, rkey: RKey, range: Range<u64>, access: AccessFlags) {
        self.grants.push(Grant {
            rkey,
            range,
            access,
        });
    }

    /// Takes a key away.
    pub(crate) fn revoke(&mut self, rkey: RKey) -> Result<(), MemoryError> {
        let before = self.grants.len();
        self.grants.retain(|grant| grant.rkey != rkey);
        if self.grants.len() == before {
            return Err(MemoryError::InvalidRemoteKey(rkey));
        }
        Ok(())
    }

    /// Whether the peer may do that.
    pub(crate) fn permit(
        &self,
        rkey: RKey,
        addr: u64,
        len: u64,
        access: RemoteAccess,
    ) -> Result<(), MemoryError> {
        let mut grants = self.grants.iter();
        let grant = grants
            .find(|grant| grant.rkey == rkey)
            .ok_or(MemoryError::InvalidRemoteKey(rkey))?;
        let right = match access {
            RemoteAccess::Write => AccessFlags::REMOTE_WRITE,
            RemoteAccess::Read => AccessFlags::REMOTE_READ,
            RemoteAccess::Atomic => AccessFlags::REMOTE_ATOMIC,
        };
        if !grant.access.contains(right) {
            return Err(MemoryError::RemoteAccessDenied { rkey, access });
        }
        let end = addr.checked_add(len);
        if addr < grant.range.start || end.is_none_or(|end| end > grant.range.end) {
            return Err(MemoryError::OutOfBounds { addr, len });
        }
        Ok(())
    }

    /// The bytes there, unless some have vanished.
    pub(crate) fn piece(&mut self, addr: u64, len: usize) -> Result<&mut [u8], MemoryError> {
        let end = addr + len as u64;
        let mut vanished = self.vanished.iter();
        if vanished.any(|gone| gone.start < end && addr < gone.end) {
            let len = len as u64;
            return Err(MemoryError::Unmapped { addr, len });
        }
        let start = (addr - BASE) as usize;
        Ok(&mut self.bytes[start..start + len])
    }

    pub(crate) fn scatter(
        &mut self,
        sges: &[Sge],
        offset: u64,
        data: &[u8],
    ) -> Result<(), MemoryError> {
        self.walk(sges, offset, data.len(), |memory, part| {
            memory.copy_from_slice(&data[part]);
        })
    }

    pub(crate) fn gather(
        &mut self,
        sges: &[Sge],
        offset: u64,
        out: &mut [u8],
    ) -> Result<(), MemoryError> {
        let len = out.len();
        self.walk(sges, offset, len, |memory, part| {
            out[part].copy_from_slice(memory);
        })
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
            copy(self.piece(addr, take)?, done..done + take);
            done += take;
        }
        assert_eq!(done, len, "the engine went beyond its scatter/gather list");
        Ok(())
    }
}
