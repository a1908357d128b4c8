//! Key to region.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Arc, Mutex, RwLock};

use super::RegionInner;
use super::keys::KeySource;
use crate::error::Error;
use crate::locks::{lock, read, write};

/// The regions of a context. Looked up for every piece of data, so readers share.
pub(crate) struct RegionTable {
    keys: Mutex<KeySource>,
    by_key: RwLock<HashMap<u32, Arc<RegionInner>, BuildHasherDefault<KeyHasher>>>,
}

impl RegionTable {
    pub(crate) fn new() -> Self {
        Self {
            keys: Mutex::new(KeySource::new()),
            by_key: RwLock::default(),
        }
    }

    /// Enters the region that `build` makes for a fresh key.
    pub(crate) fn insert(
        &self,
        build: impl FnOnce(u32) -> RegionInner,
    ) -> Result<Arc<RegionInner>, Error> {
        let mut by_key = write(&self.by_key);
        if by_key.len() >= MAX_REGIONS {
            return Err(Error::TooManyRegions { max: MAX_REGIONS });
        }
        let mut keys = lock(&self.keys);
        let key = loop {
            let key = keys.next();
            // Only after 2^32 registrations can a key still be in use.
            if !by_key.contains_key(&key) {
                break key;
            }
        };
        let region = Arc::new(build(key));
        by_key.insert(key, Arc::clone(&region));
        Ok(region)
    }

    pub(crate) fn get(&self, key: u32) -> Option<Arc<RegionInner>> {
        read(&self.by_key).get(&key).map(Arc::clone)
    }

    pub(crate) fn remove(&self, key: u32) {
        // Dropped outside the lock: freeing a large region takes a while.
        let removed = write(&self.by_key).remove(&key);
        debug_assert!(removed.as_ref().is_none_or(|region| region.key() == key));
        drop(removed);
    }

    /// How many regions are registered.
    pub(crate) fn len(&self) -> usize {
        read(&self.by_key).len()
    }
}

/// Keys are a random permutation already: hashing them again would only cost time.
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
        self.0 = u64::from(key) | (u64::from(key) << 32);
    }
}

/// Bound of the table, reported as `max_mr`.
pub(crate) const MAX_REGIONS: usize = 1 << 20;
