//! Memory backed by a `Vec`, with ranges that can vanish.

use std::ops::Range;

use oarlock_transport::{Memory, MemoryError, Sge};
use oarlock_wire::LKey;

/// The only key.
pub(crate) const KEY: LKey = LKey(0x51);
const BASE: u64 = 0x7f00_0000_1000;

#[derive(Debug)]
pub(crate) struct VecMemory {
    bytes: Vec<u8>,
    used: usize,
    vanished: Vec<Range<u64>>,
    pub(crate) gathers: usize,
}

impl VecMemory {
    pub(crate) fn new(len: usize) -> Self {
        Self {
            bytes: vec![0xEE; len],
            used: 0,
            vanished: Vec::new(),
            gathers: 0,
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
}
