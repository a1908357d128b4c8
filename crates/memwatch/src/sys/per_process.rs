//! A value that a forked child does not share with its parent.

use std::sync::atomic::{AtomicPtr, Ordering};

use super::fork::epoch;

/// One value for each process that asks for it, and never dropped. What a child has copied of its parent's, locked by threads that it
/// does not have, is left alone.
pub(crate) struct PerProcess<T: 'static>(AtomicPtr<(u64, T)>);

impl<T: Send + Sync> PerProcess<T> {
    pub(crate) const fn new() -> Self {
        Self(AtomicPtr::new(std::ptr::null_mut()))
    }

    /// That of this process, if it has one.
    pub(crate) fn get(&self) -> Option<&'static T> {
        // SAFETY: null, or from Box::into_raw below, and never freed.
        let made = unsafe { self.0.load(Ordering::Acquire).as_ref() };
        made.filter(|(when, _)| *when == epoch())
            .map(|(_, value)| value)
    }

    /// That of this process, which is made if it has none.
    pub(crate) fn get_or_make(&self, make: impl FnOnce() -> T) -> &'static T {
        if let Some(value) = self.get() {
            return value;
        }
        let before = self.0.load(Ordering::Acquire);
        let ours = Box::into_raw(Box::new((epoch(), make())));
        if self
            .0
            .compare_exchange(before, ours, Ordering::AcqRel, Ordering::Acquire)
            .is_err()
        {
            // SAFETY: just made, and nobody has seen it.
            drop(unsafe { Box::from_raw(ours) });
        }
        self.get()
            .expect("made by this thread or another one of this process")
    }
}
