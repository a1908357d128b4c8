//! Key to region or window.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, RwLock, RwLockReadGuard};

use oarlock_wire::Qpn;

use super::keys::{KeySource, index_of};
use super::region::RegionInner;
use super::window::WindowInner;
use crate::error::Error;
use crate::locks::{lock, read, write};

/// The regions and windows of a context. Looked up for every piece of data, so readers share.
pub(crate) struct RegionTable {
    entries: RwLock<Entries>,
    /// Held around every atomic operation: see `Registration::atomic`.
    atomics: Mutex<()>,
    /// Held shared while bytes of regions are on their way out: see [`leave`](Self::leave).
    leaving: RwLock<()>,
    /// The indices of the type 2 windows that are bound, by queue pair.
    bound: Mutex<HashMap<Qpn, HashSet<u32>>>,
}

struct Entries {
    keys: KeySource,
    by_index: HashMap<u32, Entry, BuildHasherDefault<KeyHasher>>,
    regions: usize,
    windows: usize,
}

/// What a key names.
#[derive(Clone)]
pub(crate) enum Entry {
    Region(Arc<RegionInner>),
    Window(Arc<WindowInner>),
}

impl RegionTable {
    pub(crate) fn new() -> Self {
        Self {
            entries: RwLock::new(Entries {
                keys: KeySource::new(),
                by_index: HashMap::default(),
                regions: 0,
                windows: 0,
            }),
            atomics: Mutex::new(()),
            leaving: RwLock::new(()),
            bound: Mutex::default(),
        }
    }

    /// Enters the region that `build` makes for a fresh key, if there are fewer than `max`.
    pub(super) fn insert_region(
        &self,
        max: usize,
        build: impl FnOnce(u32) -> RegionInner,
    ) -> Result<(u32, Arc<RegionInner>), Error> {
        let mut entries = write(&self.entries);
        if entries.regions >= max {
            return Err(Error::TooManyRegions { max });
        }
        let key = entries.fresh_key();
        let region = Arc::new(build(key));
        entries.regions += 1;
        let entry = Entry::Region(Arc::clone(&region));
        entries.by_index.insert(index_of(key), entry);
        Ok((key, region))
    }

    /// Enters the window that `build` makes for a fresh key, if there are fewer than `max`.
    pub(super) fn insert_window(
        &self,
        max: usize,
        build: impl FnOnce(u32) -> WindowInner,
    ) -> Result<(u32, Arc<WindowInner>), Error> {
        let mut entries = write(&self.entries);
        if entries.windows >= max {
            return Err(Error::TooManyWindows { max });
        }
        let key = entries.fresh_key();
        let window = Arc::new(build(key));
        entries.windows += 1;
        let entry = Entry::Window(Arc::clone(&window));
        entries.by_index.insert(index_of(key), entry);
        Ok((key, window))
    }

    /// Gives what has key `old` a fresh key.
    pub(super) fn rekey(&self, old: u32) -> u32 {
        let mut entries = write(&self.entries);
        let key = entries.fresh_key();
        if let Some(entry) = entries.by_index.remove(&index_of(old)) {
            entries.by_index.insert(index_of(key), entry);
        }
        key
    }

    pub(super) fn get(&self, key: u32) -> Option<Entry> {
        read(&self.entries).by_index.get(&index_of(key)).cloned()
    }

    pub(super) fn remove(&self, key: u32) {
        // Dropped outside the lock: freeing a large region takes a while.
        let removed = {
            let mut entries = write(&self.entries);
            let removed = entries.by_index.remove(&index_of(key));
            match &removed {
                Some(Entry::Region(_)) => entries.regions -= 1,
                Some(Entry::Window(_)) => entries.windows -= 1,
                None => {}
            }
            removed
        };
        drop(removed);
    }

    /// How many regions are registered.
    pub(crate) fn len(&self) -> usize {
        read(&self.entries).regions
    }

    pub(super) fn lock_atomics(&self) -> MutexGuard<'_, ()> {
        lock(&self.atomics)
    }

    /// Held from before a key is checked until the bytes that it names, which go through a pipe, are in packets: what is in
    /// the pipe may be the program's pages themselves. Taken before the guards of regions and windows.
    pub(super) fn leave(&self) -> RwLockReadGuard<'_, ()> {
        read(&self.leaving)
    }

    /// Waits until no bytes are on their way out that are of keys which were taken away before. Called without a guard.
    pub(super) fn wait_for_leaving(&self) {
        drop(write(&self.leaving));
    }

    /// Notes that type 2 window `index` belongs to `qpn` now.
    pub(super) fn enter_bound(&self, qpn: Qpn, index: u32) {
        lock(&self.bound).entry(qpn).or_default().insert(index);
    }

    pub(super) fn leave_bound(&self, qpn: Qpn, index: u32) {
        let mut bound = lock(&self.bound);
        if let Some(windows) = bound.get_mut(&qpn) {
            windows.remove(&index);
            if windows.is_empty() {
                bound.remove(&qpn);
            }
        }
    }

    /// Frees the type 2 windows that queue pair `qpn` has bound: it is destroyed, or goes to Reset.
    ///
    /// Called with the queue pair's lock held, so that it binds none meanwhile.
    pub(crate) fn release_windows_of(&self, qpn: Qpn) {
        let indices = lock(&self.bound).remove(&qpn).unwrap_or_default();
        for index in indices {
            let entry = read(&self.entries).by_index.get(&index).cloned();
            if let Some(Entry::Window(window)) = entry {
                window.release_from(qpn, self);
            }
        }
    }
}

impl Entries {
    fn fresh_key(&mut self) -> u32 {
        // Ends: the limits of the device are far below 2^24.
        loop {
            let key = self.keys.next();
            if !self.by_index.contains_key(&index_of(key)) {
                return key;
            }
        }
    }
}

/// Indices are as good as random already: a multiplication spreads them over the bits that the map uses.
#[derive(Default)]
pub(crate) struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 << 8) | u64::from(*byte);
        }
    }

    fn write_u32(&mut self, key: u32) {
        // The map takes the bucket from the low bits and a tag from the top seven.
        self.0 = u64::from(key).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

/// Regions of a context by default, reported as `max_mr`, and windows, reported as `max_mw`.
pub(crate) const MAX_REGIONS: usize = 1 << 20;
