//! A range that is watched.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::error::Error;
use crate::hold::Hold;
use crate::marks::Marks;
use crate::shared::Shared;

/// A range that is watched until it is deregistered or this is dropped.
///
/// Dropping it deregisters without telling how many events were read.
#[must_use = "dropping a region deregisters it"]
#[derive(Debug)]
pub struct Region {
    pub(crate) validity: Validity,
    pub(crate) range: Range<usize>,
    pub(crate) cookie: u64,
    /// Whether dropping it still has something to end.
    pub(crate) open: bool,
}

impl Region {
    /// The bytes that were registered.
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// The cookie that its events carry.
    pub fn cookie(&self) -> u64 {
        self.cookie
    }

    /// See [`Validity::is_valid`].
    #[inline]
    pub fn is_valid(&self) -> bool {
        self.validity.is_valid()
    }

    /// A handle that answers only whether the region is valid, also after it is gone.
    pub fn validity(&self) -> Validity {
        self.validity.clone()
    }

    /// Ends the watch and returns how many events of this region were read. An unread one is dropped, and none comes later.
    ///
    /// # Errors
    /// [`Error::UnknownCookie`]: it was deregistered by its cookie, as notified, or by its policy. [`Error::Forked`],
    /// [`Error::Broken`], [`Error::Ended`]: it ended with its Watcher.
    ///
    /// # Blocking
    /// For the time of another call.
    pub fn deregister(mut self) -> Result<u64, Error> {
        self.open = false;
        self.end()
    }

    fn end(&self) -> Result<u64, Error> {
        let Validity {
            shared,
            slot,
            serial,
            ..
        } = &self.validity;
        let mut table = shared.enter()?;
        if !table.is_current(*slot, *serial) {
            return Err(Error::UnknownCookie {
                cookie: self.cookie,
            });
        }
        Ok(shared.remove(&mut table, *slot).reported)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if self.open {
            // Gone already, in whichever way: nothing is left to end.
            let _ = self.end();
        }
    }
}

/// Whether a region is valid: one load, from any thread.
///
/// It keeps four descriptors (five, once anything was [validated](Region::validate)) and the table of its Watcher in existence, but neither
/// the Watcher nor its thread.
#[derive(Clone)]
pub struct Validity {
    pub(crate) shared: Arc<Shared>,
    pub(crate) marks: Marks,
    pub(crate) slot: u32,
    pub(crate) serial: u64,
}

impl Validity {
    /// A number for the region's Watcher: unique in this process, never 0, never used again. Regions of the same number need one
    /// [`settle`](Self::settle) together.
    pub fn watcher(&self) -> u64 {
        self.shared.number
    }

    /// False once the region was invalidated or deregistered, or its Watcher ended or broke; always false in a forked child.
    /// Becomes false before the event can be read, and never true again.
    ///
    /// A change whose event nobody has read yet is not included: [`settle`](Self::settle) first, to be sure.
    #[inline]
    pub fn is_valid(&self) -> bool {
        self.marks.is_set(self.slot, self.serial)
    }

    /// [`Watcher::settle`](crate::Watcher::settle) of the region's Watcher: after it, [`is_valid`](Self::is_valid) is the strict
    /// answer, and [`hold`](Self::hold) refuses what had changed. One call answers for all regions of the Watcher.
    ///
    /// # Errors
    /// [`Error::Forked`], [`Error::Broken`], [`Error::Ended`]: no region is valid.
    ///
    /// # Blocking
    /// As [`Watcher::settle`](crate::Watcher::settle). Not while this thread has a [`Hold`].
    #[inline]
    pub fn settle(&self) -> Result<(), Error> {
        self.shared.settle()
    }

    /// Keeps every call that changes the region from returning, until the result is dropped. `None`: the region is not valid.
    ///
    /// For who copies to or from the region while the program may free it: bytes that are copied under a hold never arrive in
    /// memory that the program was given after a call had returned that took the region away. Such a call (munmap, mmap over it,
    /// mremap, madvise) has already removed the pages, and waits: the copy itself has to cope with memory that is not there, as
    /// process_vm_readv and process_vm_writev do. Not covered is what another thread maps at that address while the call waits.
    ///
    /// [`settle`](Self::settle) first: without it, a region is held whose event nobody has read yet. Its call cannot return either,
    /// but another thread may have been given the address long ago.
    ///
    /// A hold is for microseconds: one copy. While this thread has one, it must not unmap or discard watched memory (nor let an
    /// allocator do so), take another hold, or make any other call of this crate. Whoever reads events waits 500 ms for it; then
    /// all regions of the Watcher are invalidated, the holds that live are not waited for any more and hold nothing, and
    /// [`Statistics::holds_given_up`](crate::Statistics::holds_given_up) counts them. So a thread that is killed under a hold costs
    /// this once, and nobody hangs.
    ///
    /// # Blocking
    /// Two atomic operations, and no system call, if no event is being read; else until it is read and marked.
    ///
    /// # Examples
    /// ```
    /// # use oarlock_memwatch::{Policy, Watcher};
    /// # let Ok(watcher) = Watcher::new() else { return };
    /// let memory = vec![1u8; 1 << 20];
    /// let region = watcher.register(memory.as_ptr() as usize, memory.len(), 7, Policy::Report).unwrap();
    /// let validity = region.validity();
    /// validity.settle().unwrap();
    /// match validity.hold() {
    ///     Some(_hold) => { /* copy */ }
    ///     None => { /* refuse */ }
    /// }
    /// drop(memory);
    /// validity.settle().unwrap();
    /// assert!(validity.hold().is_none());
    /// ```
    #[inline]
    pub fn hold(&self) -> Option<Hold<'_>> {
        // Of a region that has gone nothing is counted: who waits for holds could wait for such ones alone.
        while self.is_valid() {
            let hold = self.shared.holds.begin();
            // Looked at after it was counted; see the module.
            if !self.shared.is_reading() {
                return self.is_valid().then_some(hold);
            }
            drop(hold);
            self.shared.wait_for_marks().ok()?;
        }
        None
    }
}

impl fmt::Debug for Validity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Validity")
            .field("serial", &self.serial)
            .field("is_valid", &self.is_valid())
            .finish()
    }
}
