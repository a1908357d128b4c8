//! Memory that the library allocates: it cannot vanish, so plain copies are enough.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering, fence};

use oarlock_transport::AtomicOp;

use super::region::Piece;

/// Zeroed bytes on the heap that live as long as this value.
///
/// Nothing in here hands out a reference to the bytes, only pointers, and nothing in here orders accesses: whoever calls
/// holds the region's guard as `region.rs` says, and whoever makes a reference from the pointer answers for the device not
/// writing to those bytes meanwhile.
pub(super) struct OwnedMemory {
    start: NonNull<u8>,
    len: usize,
    /// What was allocated: the bytes, and up to a cache line before and after them.
    allocation: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the value owns its allocation, and all access to the bytes is through raw pointers whose
// users order their accesses themselves (see `region.rs`).
unsafe impl Send for OwnedMemory {}
// SAFETY: as above; `&OwnedMemory` gives out nothing but a pointer and the bounds.
unsafe impl Sync for OwnedMemory {}

impl OwnedMemory {
    /// `None` if the allocator has no such piece of memory; `len` is not zero.
    pub(super) fn new(len: usize) -> Option<Self> {
        if len == 0 {
            return None;
        }
        // Aligned by hand: an allocator that is asked for more than its natural alignment writes the zeros itself, and so makes
        // every page of a large region resident.
        let layout = Layout::from_size_align(len.checked_add(LINE)?, WORD).ok()?;
        // SAFETY: the size of the layout is not zero.
        let allocation = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        let before = allocation.as_ptr().align_offset(LINE);
        if before > LINE {
            // `align_offset` may say that it cannot be done.
            // SAFETY: allocated above with this very layout, and given to nobody.
            unsafe { dealloc(allocation.as_ptr(), layout) };
            return None;
        }
        // SAFETY: `before + len` is at most `LINE + len`, the size of the allocation.
        let start = unsafe { allocation.add(before) };
        Some(Self {
            start,
            len,
            allocation,
            layout,
        })
    }

    pub(super) fn start(&self) -> NonNull<u8> {
        self.start
    }

    fn len(&self) -> usize {
        self.len
    }

    /// Copies `data` to the piece, which has as many bytes; `false` if it leaves the allocation.
    ///
    /// Who looks on by the bare pointer sees lower cache lines no later than higher ones, and the bytes behind the last
    /// multiple of 8, at most a word, after all others: aligned words, half-words and bytes of them as a whole.
    pub(super) fn write(&self, piece: Piece, data: &[u8]) -> bool {
        if !piece.is_within(self.len() as u64) || data.len() != piece.len {
            return false;
        }
        let offset = piece.offset as usize;
        let Some(last) = data.len().checked_sub(1) else {
            return true;
        };
        let tail_len = (offset + last) % WORD + 1;
        let (body, tail) = data.split_at(data.len().saturating_sub(tail_len));
        let (head, body) = body.split_at(body.len().min((LINE - offset % LINE) % LINE));
        let lines = body.chunks_exact(LINE);
        let rest = lines.remainder();
        // SAFETY: `offset + data.len()` is within the allocation, which `self` keeps alive, and the parts of `data` follow
        // each other within those bytes. `data` does not overlap them: no reference to these bytes may exist while the
        // device may write them, by the promise of whoever made the reference. The region's guard, or the owner of the work
        // request that names the bytes, keeps all other accesses away.
        unsafe {
            let mut to = self.start.as_ptr().add(offset);
            to.copy_from_nonoverlapping(head.as_ptr(), head.len());
            to = to.add(head.len());
            for line in lines {
                // No instruction on x86-64: stores are seen in order there.
                fence(Ordering::Release);
                // A copy of a length that the compiler knows is a few moves.
                to.copy_from_nonoverlapping(line.as_ptr(), LINE);
                to = to.add(LINE);
            }
            fence(Ordering::Release);
            to.copy_from_nonoverlapping(rest.as_ptr(), rest.len());
            store_tail(to.add(rest.len()), tail);
        }
        true
    }

    /// Copies the piece into `out`, which has as many bytes; `false` if it leaves the allocation.
    pub(super) fn read(&self, piece: Piece, out: &mut [u8]) -> bool {
        if !piece.is_within(self.len() as u64) || out.len() != piece.len {
            return false;
        }
        // SAFETY: as in `write`, the other way round. All bytes are initialised: the allocation
        // was zeroed.
        unsafe {
            let from = self.start.as_ptr().add(piece.offset as usize);
            out.as_mut_ptr().copy_from_nonoverlapping(from, out.len());
        }
        true
    }

    /// The word at `offset`, as the processor's atomic instructions see it; `None` if it leaves the allocation or is not
    /// aligned.
    pub(super) fn word(&self, offset: u64) -> Option<&AtomicU64> {
        let word = Piece { offset, len: WORD };
        if !word.is_within(self.len() as u64) || !offset.is_multiple_of(WORD as u64) {
            return None;
        }
        // SAFETY: within the allocation, which lives as long as the reference; aligned, since the allocation is and the
        // offset is; initialised. Non-atomic accesses at the same time are kept away by the region's guard.
        Some(unsafe {
            let at = self.start.as_ptr().add(offset as usize);
            AtomicU64::from_ptr(at.cast())
        })
    }

    /// Executes `op` on the word at `offset` and gives the value before; `None` as in [`word`](Self::word).
    pub(super) fn atomic(&self, offset: u64, op: AtomicOp) -> Option<u64> {
        let word = self.word(offset)?;
        Some(match op {
            AtomicOp::CompareSwap { compare, swap } => word
                .compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst)
                .unwrap_or_else(|before| before),
            AtomicOp::FetchAdd { add } => word.fetch_add(add, Ordering::SeqCst),
        })
    }
}

/// Stores 1 to 8 bytes of one aligned word (or none), from its start or to its end: in the largest aligned parts.
///
/// # Safety
/// `to` is valid for writes of `tail.len()` bytes.
unsafe fn store_tail(mut to: *mut u8, mut tail: &[u8]) {
    while !tail.is_empty() {
        let aligned = 1 << (to as usize).trailing_zeros().min(3);
        let mut part = aligned;
        while part > tail.len() {
            part /= 2;
        }
        let (now, later) = tail.split_at(part);
        // SAFETY: `part` bytes from `to` on are valid for writes, and `to` is a multiple of `part`.
        unsafe {
            match *now {
                [a, b, c, d, e, f, g, h] => AtomicU64::from_ptr(to.cast()).store(
                    u64::from_ne_bytes([a, b, c, d, e, f, g, h]),
                    Ordering::Release,
                ),
                [a, b, c, d] => AtomicU32::from_ptr(to.cast())
                    .store(u32::from_ne_bytes([a, b, c, d]), Ordering::Release),
                [a, b] => {
                    AtomicU16::from_ptr(to.cast())
                        .store(u16::from_ne_bytes([a, b]), Ordering::Release);
                }
                // `part` is a power of two below 8, and 4 and 2 have had their turn.
                _ => AtomicU8::from_ptr(to).store(now[0], Ordering::Release),
            }
            to = to.add(part);
        }
        tail = later;
    }
}

impl Drop for OwnedMemory {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this very layout, and freed once.
        unsafe { dealloc(self.allocation.as_ptr(), self.layout) }
    }
}

/// A cache line, and the alignment, so that two regions never share one.
const LINE: usize = 64;
const WORD: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(offset: u64, len: usize) -> Piece {
        Piece { offset, len }
    }

    #[test]
    fn starts_zeroed_and_keeps_what_is_written_wherever_it_begins_and_ends() {
        const LEN: usize = 200;
        let memory = OwnedMemory::new(LEN).expect("memory");
        let mut model = [0; LEN];
        let mut out = [1; LEN];
        assert!(memory.read(piece(0, LEN), &mut out));
        assert_eq!(out, model);
        let mut value = 0u8;
        for start in (0..LEN).step_by(if cfg!(miri) { 13 } else { 1 }) {
            for len in (0..=LEN - start).step_by(if cfg!(miri) { 7 } else { 1 }) {
                for byte in &mut model[start..start + len] {
                    value = value.wrapping_mul(31).wrapping_add(7);
                    *byte = value;
                }
                let data = model[start..start + len].to_vec();
                assert!(memory.write(piece(start as u64, len), &data));
                assert!(memory.read(piece(0, LEN), &mut out));
                assert_eq!(out, model, "{len} bytes at {start}");
            }
        }
    }

    #[test]
    fn refuses_what_leaves_the_allocation() {
        let memory = OwnedMemory::new(8).expect("memory");
        assert!(!memory.write(piece(6, 3), b"abc"));
        assert!(!memory.write(piece(u64::MAX, 3), b"abc"));
        assert!(!memory.write(piece(0, 3), b"ab"));
        assert!(!memory.read(piece(9, 0), &mut []));
        assert!(memory.read(piece(8, 0), &mut []));
        assert!(memory.word(8).is_none());
        assert!(memory.word(1).is_none());
        assert!(memory.word(u64::MAX - 7).is_none());
        assert!(memory.word(0).is_some());
    }

    #[test]
    fn atomics_give_the_value_before() {
        let memory = OwnedMemory::new(16).expect("memory");
        let add = AtomicOp::FetchAdd { add: u64::MAX };
        assert_eq!(memory.atomic(8, add), Some(0));
        let swap = |compare, swap| AtomicOp::CompareSwap { compare, swap };
        assert_eq!(memory.atomic(8, swap(1, 2)), Some(u64::MAX));
        assert_eq!(memory.atomic(8, swap(u64::MAX, 2)), Some(u64::MAX));
        assert_eq!(memory.atomic(8, add), Some(2));
        assert_eq!(memory.word(8).expect("word").load(Ordering::SeqCst), 1);
        assert_eq!(memory.atomic(12, add), None);
    }

    /// A large region costs pages when they are used, not when it is allocated.
    #[test]
    #[cfg(target_os = "linux")]
    #[cfg_attr(miri, ignore = "reads /proc")]
    fn a_large_region_is_sparse() {
        let resident = || {
            let status = std::fs::read_to_string("/proc/self/status").expect("proc");
            let line = status.lines().find(|line| line.starts_with("RssAnon:"));
            let number = line.and_then(|line| line.split_whitespace().nth(1));
            number.and_then(|kib| kib.parse::<u64>().ok()).expect("KiB")
        };
        let before = resident();
        let memory = OwnedMemory::new(1 << 31).expect("memory");
        assert_eq!(memory.start().as_ptr() as usize % LINE, 0);
        let grown = resident().saturating_sub(before);
        assert!(
            grown < 256 << 10,
            "{grown} KiB for a region nobody has used"
        );
    }

    #[test]
    fn an_impossible_length_is_no_memory() {
        assert!(OwnedMemory::new(0).is_none());
        assert!(OwnedMemory::new(usize::MAX).is_none());
    }
}
