//! Memory that a program gives back, and gets other memory in its place.

use std::sync::atomic::{AtomicUsize, Ordering};

use oarlock_device::{Access, Error, Region, Reregistration, Translation};
use oarlock_memwatch::{Error as WatchError, Policy, Region as Watch, Validity, Watcher};
use rustix::mm::{
    Advice, MapFlags, MremapFlags, ProtFlags, madvise, mmap_anonymous, mremap_fixed, munmap,
};

use crate::pages::PAGE;
use crate::support::Side;

/// Pages at addresses that the kernel gives to nobody unasked: a hole in them stays one, and what is mapped there again is this
/// test's. They are reached by copies only.
pub(crate) struct Block {
    start: usize,
    pub(crate) len: usize,
}

/// In what way memory becomes other memory at the same address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Change {
    /// Unmapped, then mapped.
    Unmap,
    /// Other pages mapped over it.
    MapOver,
    /// Moved elsewhere, then mapped.
    Move,
    /// Its content thrown away.
    Discard,
}

pub(crate) const CHANGES: [Change; 4] = [
    Change::Unmap,
    Change::MapOver,
    Change::Move,
    Change::Discard,
];

/// What is in memory that is the program's for another purpose by now.
pub(crate) const OTHERS: u8 = 0x5A;
/// What was in it before.
pub(crate) const OLD: u8 = 0xA1;

impl Block {
    pub(crate) fn new(pages: usize) -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0x2000_0000_0000);
        let len = pages * PAGE;
        // As much behind it for moving to, and a page between.
        let start = NEXT.fetch_add(2 * len + PAGE, Ordering::Relaxed);
        let block = Self { start, len };
        block.map(MapFlags::FIXED_NOREPLACE);
        block.fill(OLD);
        block
    }

    fn map(&self, how: MapFlags) {
        let open = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | how;
        // SAFETY: addresses of this block's own, without references to them.
        unsafe { mmap_anonymous(self.start as *mut _, self.len, open, flags) }.expect("mmap");
    }

    fn fill(&self, byte: u8) {
        // SAFETY: mapped and writable; who else writes there does so by system calls.
        unsafe { (self.start as *mut u8).write_bytes(byte, self.len) };
    }

    /// Gives the memory back, in this way; when it returns, other memory is there, and its content is [`OTHERS`].
    pub(crate) fn recycle(&self, change: Change) {
        let start = self.start as *mut _;
        // SAFETY: addresses of this block's own, without references to them.
        unsafe {
            match change {
                Change::Unmap => munmap(start, self.len).expect("munmap"),
                Change::MapOver => self.map(MapFlags::FIXED),
                Change::Move => {
                    let there = (self.start + self.len) as *mut _;
                    let flags = MremapFlags::MAYMOVE;
                    mremap_fixed(start, self.len, self.len, flags, there).expect("mremap");
                    munmap(there, self.len).expect("munmap");
                }
                Change::Discard => {
                    madvise(start, self.len, Advice::LinuxDontNeed).expect("madvise");
                }
            }
        }
        if matches!(change, Change::Unmap | Change::Move) {
            self.map(MapFlags::FIXED_NOREPLACE);
        }
        self.fill(OTHERS);
    }

    pub(crate) fn addr(&self) -> u64 {
        self.start as u64
    }

    /// How many bytes are not what the program has put there after it had recycled the memory. Nobody writes any more.
    pub(crate) fn foreign_bytes(&self) -> usize {
        // SAFETY: mapped and readable, and nobody writes.
        let bytes = unsafe { std::slice::from_raw_parts(self.start as *const u8, self.len) };
        bytes.iter().filter(|byte| **byte != OTHERS).count()
    }

    pub(crate) fn watch(&self, watcher: &Watcher) -> Watch {
        let watched = watcher.register(self.start, self.len, self.addr(), Policy::Report);
        watched.expect("watched")
    }

    pub(crate) fn register(&self, side: &Side, access: Access, validity: Validity) -> Region {
        // SAFETY: the block is reached by copies only.
        let region = unsafe {
            side.pd
                .register_watched(self.addr(), self.len, access, validity)
        };
        region.expect("register")
    }

    /// Without a word about the watch.
    pub(crate) fn register_unwatched(&self, side: &Side, access: Access) -> Region {
        // SAFETY: the block is reached by copies only.
        unsafe { side.pd.register(self.addr(), self.len, access) }.expect("register")
    }

    /// Registers this in place of what was registered before.
    pub(crate) fn reregister(
        &self,
        region: &mut Region,
        validity: Option<Validity>,
    ) -> Result<(), Error> {
        let changes = Reregistration {
            translation: Some(Translation {
                addr: self.addr(),
                len: self.len,
                iova: None,
            }),
            ..Reregistration::default()
        };
        // SAFETY: the block is reached by copies only.
        unsafe {
            match validity {
                Some(validity) => region.reregister_watched(&changes, validity),
                None => region.reregister(&changes),
            }
        }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: addresses of this block's own, without references to them.
        unsafe { munmap(self.start as *mut _, self.len) }.expect("munmap");
    }
}

/// A Watcher; `None` was said on standard error.
pub(crate) fn watcher() -> Option<Watcher> {
    match Watcher::new() {
        Ok(watcher) => Some(watcher),
        Err(error @ WatchError::Unavailable { .. }) => {
            oarlock_sim::not_run("userfaultfd", error);
            None
        }
        Err(error) => panic!("{error}"),
    }
}
