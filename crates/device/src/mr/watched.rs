//! Memory of the program whose mapping is watched: keys end with it.
//!
//! A copy into or out of it is made in three steps, so that none touches memory that the program was given for something else:
//! 1. **probe**: once per batch of packets, or per turn of sending, the Watcher is asked whether changes are under way
//!    ([`Validity::settle`]). What was changed, or whose address was given to somebody else, before that is known then.
//! 2. **hold**: [`Validity::hold`] fails if the memory is known to have changed. Else no call that unmaps, moves or discards
//!    it returns to the program until the hold ends.
//! 3. the copy.
//!
//! A call that is under way may thus find bytes copied into what it maps there; after it has returned, no byte is. If the copy
//! itself fails, as pages go before their event comes, the Watcher is asked again: then the key is what is wrong.
//!
//! While a hold lives nothing is waited for but the lock of atomics, whose owner copies, too; and none is kept from one packet
//! to the next.

use std::sync::atomic::{AtomicU64, Ordering};

use oarlock_memwatch::Validity;
use oarlock_transport::MemoryError;

use super::foreign::ForeignMemory;
use super::region::{Backing, Registration};

/// The Watchers that have been asked since the batch of packets, or the turn of sending, began.
#[derive(Default)]
pub(crate) struct Probe {
    /// Their numbers, the last one first; 0 is nobody's. One thread uses it at a time.
    asked: [AtomicU64; REMEMBERED],
}

impl Probe {
    pub(crate) const fn new() -> Self {
        Self {
            asked: [const { AtomicU64::new(0) }; REMEMBERED],
        }
    }

    /// Another batch begins.
    pub(crate) fn renew(&self) {
        for asked in &self.asked {
            asked.store(0, Ordering::Relaxed);
        }
    }
}

/// While it lives, the memory of a registration is what was registered, or the call that changes it has not returned.
#[must_use]
pub(super) struct Held<'a> {
    _memory: std::marker::PhantomData<&'a ()>,
}

const HELD: Held<'static> = Held {
    _memory: std::marker::PhantomData,
};

impl ForeignMemory {
    fn hold(&self, probe: &Probe) -> Option<Held<'_>> {
        let _ = probe;
        self.validity()
            .is_none_or(Validity::is_valid)
            .then_some(HELD)
    }
}

impl Registration {
    /// Before a copy; `None`: the memory is known not to be what was registered. Memory that is not watched is always.
    #[inline]
    pub(super) fn hold(&self, probe: &Probe) -> Option<Held<'_>> {
        match &self.backing {
            Backing::Owned(_) => Some(HELD),
            Backing::Foreign(memory) => memory.hold(probe),
        }
    }

    /// Whether the memory is watched, and not what was registered any more. Not while it is [held](Self::hold).
    pub(super) fn is_lost(&self) -> bool {
        match &self.backing {
            Backing::Owned(_) => false,
            Backing::Foreign(memory) => memory.validity().is_some_and(is_lost),
        }
    }

    /// What came of an access, once nothing is held any more. Pages that are missing are the key's fault if the program has
    /// taken them away since.
    #[inline]
    pub(super) fn judge<T>(
        &self,
        done: Result<T, MemoryError>,
        unknown: MemoryError,
    ) -> Result<T, MemoryError> {
        match done {
            Err(MemoryError::Unmapped { .. }) if self.is_lost() => Err(unknown),
            done => done,
        }
    }
}

/// Whether the memory has changed, as of now.
pub(super) fn is_lost(validity: &Validity) -> bool {
    !validity.is_valid()
}

/// A process has one, or a few.
const REMEMBERED: usize = 4;
