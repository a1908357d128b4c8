//! A range that is watched.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Weak};

use crate::error::Error;
use crate::marks::Marks;
use crate::shared::Shared;
use crate::sys::Userfaultfd;

/// A range that is watched until it is deregistered or this is dropped.
///
/// Dropping it deregisters without telling how many events were read.
#[must_use = "dropping a region deregisters it"]
#[derive(Debug)]
pub struct Region {
    pub(crate) shared: Arc<Shared>,
    pub(crate) userfaultfd: Weak<Userfaultfd>,
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
        let Validity { slot, serial, .. } = self.validity;
        let userfaultfd = self.userfaultfd.upgrade();
        let mut table = self.shared.enter()?;
        if !table.is_current(slot, serial) {
            return Err(Error::UnknownCookie {
                cookie: self.cookie,
            });
        }
        Ok(self
            .shared
            .remove(&mut table, userfaultfd.as_deref(), slot)
            .reported)
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
#[derive(Clone)]
pub struct Validity {
    pub(crate) marks: Marks,
    pub(crate) slot: u32,
    pub(crate) serial: u64,
}

impl Validity {
    /// False once the region was invalidated or deregistered, or its Watcher ended or broke; always false in a forked child.
    /// Becomes false before the event can be read, and never true again.
    ///
    /// A change whose event nobody has read yet is not included: [`Watcher::settle`](crate::Watcher::settle) first, to be sure.
    pub fn is_valid(&self) -> bool {
        self.marks.is_set(self.slot, self.serial)
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
