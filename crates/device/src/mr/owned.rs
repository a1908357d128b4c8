//! Memory that the library allocates: it cannot vanish, so plain copies are enough.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

/// Zeroed bytes on the heap that live as long as this value.
///
/// Nothing in here hands out a reference to the bytes, only pointers; whoever makes a reference
/// from one answers for the device not writing to those bytes meanwhile.
pub(super) struct OwnedMemory {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the value owns its allocation, and all access to the bytes is through raw pointers whose
// users order their accesses themselves (see `Region`).
unsafe impl Send for OwnedMemory {}
// SAFETY: as above; `&OwnedMemory` gives out nothing but a pointer and the bounds.
unsafe impl Sync for OwnedMemory {}

impl OwnedMemory {
    /// `None` if the allocator has no such piece of memory; `len` is not zero.
    pub(super) fn new(len: usize) -> Option<Self> {
        let layout = Layout::from_size_align(len, ALIGNMENT).ok()?;
        if len == 0 {
            return None;
        }
        // SAFETY: the size of the layout is not zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Self { start, layout })
    }

    pub(super) fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(super) fn len(&self) -> usize {
        self.layout.size()
    }

    /// Copies `data` to `offset`; `false` if it does not fit.
    pub(super) fn write(&self, offset: usize, data: &[u8]) -> bool {
        if !self.holds(offset, data.len()) {
            return false;
        }
        // SAFETY: `offset + data.len()` is within the allocation, which `self` keeps alive. `data`
        // does not overlap it: no reference to these bytes may exist while a receive that names
        // them is posted, by the promise of whoever made the reference.
        unsafe {
            let to = self.start.add(offset).as_ptr();
            to.copy_from_nonoverlapping(data.as_ptr(), data.len());
        }
        true
    }

    /// Copies from `offset` into `out`; `false` if that leaves the allocation.
    pub(super) fn read(&self, offset: usize, out: &mut [u8]) -> bool {
        if !self.holds(offset, out.len()) {
            return false;
        }
        // SAFETY: as in `write`, the other way round. All bytes are initialised: the allocation
        // was zeroed.
        unsafe {
            let from = self.start.add(offset).as_ptr();
            out.as_mut_ptr().copy_from_nonoverlapping(from, out.len());
        }
        true
    }

    fn holds(&self, offset: usize, len: usize) -> bool {
        offset.checked_add(len).is_some_and(|end| end <= self.len())
    }
}

impl Drop for OwnedMemory {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this very layout, and freed once.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}

/// A cache line, so that two regions never share one.
const ALIGNMENT: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_zeroed_and_keeps_what_is_written() {
        let memory = OwnedMemory::new(100).expect("memory");
        let mut out = [1; 100];
        assert!(memory.read(0, &mut out));
        assert_eq!(out, [0; 100]);
        assert!(memory.write(97, b"abc"));
        let mut out = [0; 4];
        assert!(memory.read(96, &mut out));
        assert_eq!(&out, b"\0abc");
    }

    #[test]
    fn refuses_what_leaves_the_allocation() {
        let memory = OwnedMemory::new(8).expect("memory");
        assert!(!memory.write(6, b"abc"));
        assert!(!memory.write(usize::MAX, b"abc"));
        assert!(!memory.read(9, &mut []));
        assert!(memory.read(8, &mut []));
    }

    #[test]
    fn an_impossible_length_is_no_memory() {
        assert!(OwnedMemory::new(0).is_none());
        assert!(OwnedMemory::new(usize::MAX).is_none());
    }
}
