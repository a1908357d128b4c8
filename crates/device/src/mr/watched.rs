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

use oarlock_memwatch::{Hold, Validity};
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

    /// Asks the Watcher of a region, unless it was asked before; whether the region may be valid.
    fn ask(&self, validity: &Validity) -> bool {
        let watcher = validity.watcher();
        let asked = self.asked.each_ref().map(|one| one.load(Ordering::Relaxed));
        if asked.contains(&watcher) {
            return true;
        }
        if validity.settle().is_err() {
            return false;
        }
        #[cfg(test)]
        hooks::PROBES.with(|count| count.set(count.get() + 1));
        let first = std::iter::once(watcher);
        for (place, now) in self.asked.iter().zip(first.chain(asked)) {
            place.store(now, Ordering::Relaxed);
        }
        true
    }
}

/// While it lives, the memory of a registration is what was registered, or the call that changes it has not returned.
#[must_use]
pub(super) struct Held<'a> {
    /// Memory that is watched. Other memory needs nothing.
    _hold: Option<Hold<'a>>,
}

impl ForeignMemory {
    fn hold(&self, probe: &Probe) -> Option<Held<'_>> {
        let Some(validity) = self.validity() else {
            return Some(Held { _hold: None });
        };
        #[cfg(test)]
        if hooks::WEAKENED.get() {
            let is_valid = validity.is_valid();
            hooks::before_copy();
            return is_valid.then_some(Held { _hold: None });
        }
        // Memory that is known to be gone costs no system call.
        if !validity.is_valid() || !probe.ask(validity) {
            return None;
        }
        let hold = validity.hold()?;
        #[cfg(test)]
        hooks::before_copy();
        Some(Held { _hold: Some(hold) })
    }
}

impl Registration {
    /// Whether copies have to be made [while the memory is held](Self::while_held).
    #[inline]
    pub(super) const fn is_watched(&self) -> bool {
        match &self.backing {
            Backing::Owned(_) => false,
            Backing::Foreign(memory) => memory.validity().is_some(),
        }
    }

    /// Before a copy; `None`: the memory is known not to be what was registered. Memory that is not watched is always.
    pub(super) fn hold(&self, probe: &Probe) -> Option<Held<'_>> {
        match &self.backing {
            Backing::Owned(_) => Some(Held { _hold: None }),
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

    /// Makes a copy while the memory is held. Pages that are missing are the key's fault if the program has taken them away since.
    ///
    /// # Errors
    /// `unknown`: the memory is not what was registered. Those of `copy`.
    #[inline(never)]
    pub(super) fn while_held<T>(
        &self,
        probe: &Probe,
        unknown: MemoryError,
        copy: impl FnOnce() -> Result<T, MemoryError>,
    ) -> Result<T, MemoryError> {
        let held = self.hold(probe).ok_or(unknown)?;
        let done = copy();
        drop(held);
        match done {
            Err(MemoryError::Unmapped { .. }) if self.is_lost() => Err(unknown),
            done => done,
        }
    }
}

/// Whether the memory has changed, as of now.
pub(super) fn is_lost(validity: &Validity) -> bool {
    validity.settle().is_err() || !validity.is_valid()
}

/// A process has one, or a few.
const REMEMBERED: usize = 4;

/// For tests: what this thread does differently, or tells.
#[cfg(test)]
pub(super) mod hooks {
    use std::cell::{Cell, RefCell};

    thread_local! {
        /// How often a Watcher was asked.
        pub(crate) static PROBES: Cell<usize> = const { Cell::new(0) };
        /// The mark is looked at, nothing is probed, and nothing held.
        pub(crate) static WEAKENED: Cell<bool> = const { Cell::new(false) };
        pub(crate) static BEFORE_COPY: RefCell<Option<Box<dyn FnMut()>>> = const { RefCell::new(None) };
    }

    pub(super) fn before_copy() {
        BEFORE_COPY.with_borrow_mut(|call| {
            if let Some(call) = call {
                call();
            }
        });
    }
}
