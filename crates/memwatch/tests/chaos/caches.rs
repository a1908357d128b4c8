//! What is judged: the cache, and one that nobody tells anything.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use oarlock_memwatch::{
    CacheError, CacheOptions, CacheStatistics, Lookup, MrCache, Registrar, Validity,
};

use crate::pinned::Pinned;

/// A registration cache, and whether what it gives for a range is what the program sees there.
pub(crate) trait Cache: Sync {
    /// What a lookup gives for the range, compared with the memory; `None` if it refuses.
    ///
    /// # Safety
    /// The range is mapped or not, but nobody changes what is there during the call.
    unsafe fn look_up(&self, start: usize, len: usize, how: Lookup) -> Option<Answer>;

    /// Something that holds a registration until it is dropped.
    ///
    /// # Safety
    /// As for a lookup.
    unsafe fn hold(&self, start: usize, len: usize) -> Option<Box<dyn Held + '_>>;

    /// Whether it can be asked for memory that is not there.
    fn refuses_holes(&self) -> bool;
}

/// Held while its memory changes.
pub(crate) trait Held {}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Answer {
    /// No registration was made for this lookup.
    pub(crate) hit: bool,
    /// The device would send what the program sees.
    pub(crate) right: bool,
}

/// Registers with the device that holds pages.
#[derive(Debug, Default)]
pub(crate) struct Pipes;

thread_local! {
    static REGISTERED: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

impl Registrar for Pipes {
    type Access = ();
    type Registration = Pinned;
    type Error = io::Error;

    fn covers(_: (), _: ()) -> bool {
        true
    }

    fn union(_: (), _: ()) -> Option<()> {
        Some(())
    }

    unsafe fn register(
        &self,
        start: usize,
        len: usize,
        _: (),
        _: Option<&Validity>,
    ) -> io::Result<Pinned> {
        REGISTERED.set(REGISTERED.get() + 1);
        Pinned::new(start, len)
    }
}

/// The cache of this crate.
pub(crate) struct Notified(MrCache<Pipes>);

impl Notified {
    /// # Errors
    /// As for the cache.
    pub(crate) fn new() -> Result<Self, oarlock_memwatch::Error> {
        let options = CacheOptions {
            max_regions: 200,
            max_bytes: 12 << 20,
            max_merged: crate::LARGEST,
            ..CacheOptions::default()
        };
        MrCache::new(Pipes, options).map(Self)
    }

    pub(crate) fn statistics(&self) -> CacheStatistics {
        self.0.statistics()
    }
}

impl Cache for Notified {
    unsafe fn look_up(&self, start: usize, len: usize, how: Lookup) -> Option<Answer> {
        let before = REGISTERED.get();
        // SAFETY: as the caller says.
        match unsafe { self.0.get(start, len, (), how) } {
            Ok(handle) => Some(Answer {
                hit: REGISTERED.get() == before,
                // SAFETY: as the caller says; what was registered is mapped.
                right: unsafe { handle.shows(start, len) }.expect("a pipe can be read"),
            }),
            Err(CacheError::Registrar(_) | CacheError::Watch(_)) => None,
            Err(error) => panic!("{error}"),
        }
    }

    unsafe fn hold(&self, start: usize, len: usize) -> Option<Box<dyn Held + '_>> {
        // SAFETY: as the caller says.
        let handle = unsafe { self.0.get(start, len, (), Lookup::Strict) };
        Some(Box::new(handle.ok()?))
    }

    fn refuses_holes(&self) -> bool {
        true
    }
}

impl<T> Held for oarlock_memwatch::Handle<'_, T> where T: Registrar {}

/// By address and length, for ever: what programs do that trust their allocator.
#[derive(Default)]
pub(crate) struct Untold(Mutex<HashMap<(usize, usize), Arc<Pinned>>>);

impl Cache for Untold {
    unsafe fn look_up(&self, start: usize, len: usize, _: Lookup) -> Option<Answer> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() > 200 {
            known.clear();
        }
        let hit = known.contains_key(&(start, len));
        if !hit {
            known.insert((start, len), Arc::new(Pinned::new(start, len).ok()?));
        }
        let pinned = Arc::clone(&known[&(start, len)]);
        drop(known);
        Some(Answer {
            hit,
            // SAFETY: as the caller says; it is not asked for what is not mapped.
            right: unsafe { pinned.shows(start, len) }.expect("a pipe can be read"),
        })
    }

    unsafe fn hold(&self, _: usize, _: usize) -> Option<Box<dyn Held + '_>> {
        None
    }

    fn refuses_holes(&self) -> bool {
        false
    }
}
