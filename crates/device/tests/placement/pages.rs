//! Memory of the program that tests take away from the device, between canaries.

use std::ptr::NonNull;

use oarlock_device::{Access, Error, Region};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

use crate::support::Side;

/// Anonymous pages between two that nobody may touch.
///
/// They are never unmapped before the end: another thread's memory could come to lie there, and the device would be right to
/// place data in it. Pages without any access stand for holes.
pub(crate) struct Pages {
    start: NonNull<u8>,
    pub(crate) len: usize,
}

// SAFETY: the pages belong to no thread; what touches them says so itself.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

pub(crate) const PAGE: usize = 4096;
/// What the pages around are full of.
pub(crate) const CANARY: u8 = 0xC3;

impl Pages {
    pub(crate) fn new(pages: usize) -> Self {
        let len = pages * PAGE;
        let open = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses disturbs nothing; it is filled before anybody knows.
        let start = unsafe {
            let start = mmap_anonymous(
                std::ptr::null_mut(),
                len + 2 * PAGE,
                open,
                MapFlags::PRIVATE,
            );
            let start = start.expect("mmap").cast::<u8>();
            start.write_bytes(CANARY, PAGE);
            start.add(PAGE + len).write_bytes(CANARY, PAGE);
            NonNull::new(start.add(PAGE)).expect("not null")
        };
        Self { start, len }
    }

    pub(crate) fn addr(&self) -> u64 {
        self.start.as_ptr() as u64
    }

    pub(crate) fn register(&self, side: &Side, access: Access) -> Result<Region, Error> {
        self.register_part(side, 0, self.len, access)
    }

    pub(crate) fn register_part(
        &self,
        side: &Side,
        offset: usize,
        len: usize,
        access: Access,
    ) -> Result<Region, Error> {
        // SAFETY: no reference is ever made to the pages. They are read and written by the calls below alone, each of which
        // copies.
        unsafe { side.pd.register(self.addr() + offset as u64, len, access) }
    }

    /// A copy of what is in the pages. They are readable, and whoever may change them has finished.
    pub(crate) fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        // SAFETY: within the mapping and readable; nobody writes now, so this is no race.
        unsafe {
            let from = self.start.as_ptr().add(offset);
            out.as_mut_ptr().copy_from_nonoverlapping(from, len);
        }
        out
    }

    /// Fills bytes that are the program's own again. They are writable.
    pub(crate) fn fill(&self, offset: usize, len: usize, byte: u8) {
        // SAFETY: within the mapping and writable; the device has no right to them, or they hold nothing yet.
        unsafe { self.start.as_ptr().add(offset).write_bytes(byte, len) };
    }

    /// Whether no byte around the pages has changed.
    pub(crate) fn canaries_live(&self) -> bool {
        // SAFETY: both pages stay mapped and readable, and nobody writes them, which is what is shown here.
        let around = unsafe {
            [
                std::slice::from_raw_parts(self.start.as_ptr().sub(PAGE), PAGE),
                std::slice::from_raw_parts(self.start.as_ptr().add(self.len), PAGE),
            ]
        };
        around.concat().iter().all(|byte| *byte == CANARY)
    }

    pub(crate) fn protect(&self, flags: MprotectFlags) {
        self.protect_part(0, self.len, flags);
    }

    /// Both of whole pages.
    pub(crate) fn protect_part(&self, offset: usize, len: usize, flags: MprotectFlags) {
        // SAFETY: our own mapping, without references to it.
        unsafe { mprotect(self.start.as_ptr().add(offset).cast(), len, flags) }.expect("mprotect");
    }

    /// Maps other pages over these, in one step, so that no other thread gets the addresses.
    pub(crate) fn replace(&self, offset: usize, len: usize, access: ProtFlags) {
        let flags = MapFlags::PRIVATE | MapFlags::FIXED;
        // SAFETY: within our own mapping, without references to it.
        unsafe { mmap_anonymous(self.start.as_ptr().add(offset).cast(), len, access, flags) }
            .expect("mmap");
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the whole of our own mapping, without references to it.
        unsafe { munmap(self.start.as_ptr().sub(PAGE).cast(), self.len + 2 * PAGE) }
            .expect("munmap");
    }
}
