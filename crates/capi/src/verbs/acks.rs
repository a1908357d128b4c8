//! Events that were delivered and not acknowledged: what destructors wait for; and which C object an event is about.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Events of one object that the program has got and not acknowledged yet.
#[derive(Default, Debug)]
pub(crate) struct Unacked {
    count: Mutex<u64>,
    changed: Condvar,
}

impl Unacked {
    /// One more event has been given to the program.
    pub(crate) fn delivered(&self) {
        *self.lock() += 1;
    }

    /// The program acknowledges `count` events. What it acknowledges too much is forgotten.
    pub(crate) fn acknowledge(&self, count: u64) {
        let mut unacked = self.lock();
        *unacked = unacked.saturating_sub(count);
        drop(unacked);
        self.changed.notify_all();
    }

    /// Blocks until every event that was delivered has been acknowledged.
    pub(crate) fn wait(&self) {
        let unacked = self.lock();
        let done = self.changed.wait_while(unacked, |count| *count > 0);
        drop(done.unwrap_or_else(PoisonError::into_inner));
    }

    fn lock(&self) -> MutexGuard<'_, u64> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The C objects of a context that asynchronous events can be about, by the name that the device has for them.
pub(crate) struct Registry<K, T> {
    entries: Mutex<HashMap<K, Vec<Entry<T>>>>,
    /// By the address of the C object, until nobody waits for it any more.
    unacked: Mutex<HashMap<usize, Arc<Unacked>>>,
}

struct Entry<T> {
    object: *mut T,
    unacked: Arc<Unacked>,
}

// SAFETY: the pointers are handed to the program and compared, never followed here.
unsafe impl<K: Send, T> Send for Registry<K, T> {}
// SAFETY: as above; the maps are behind locks.
unsafe impl<K: Send, T> Sync for Registry<K, T> {}

impl<K, T> Default for Registry<K, T> {
    fn default() -> Self {
        Self {
            entries: Mutex::default(),
            unacked: Mutex::default(),
        }
    }
}

impl<K: Eq + Hash, T> Registry<K, T> {
    /// Events about `key` are about `object` from now on. Several objects may have one key: events go to the oldest.
    pub(crate) fn enter(&self, key: K, object: *mut T) {
        let unacked = Arc::<Unacked>::default();
        lock(&self.unacked).insert(object.addr(), Arc::clone(&unacked));
        lock(&self.entries)
            .entry(key)
            .or_default()
            .push(Entry { object, unacked });
    }

    /// Delivers no more events about `object`, and blocks until the program has acknowledged those it got.
    pub(crate) fn leave(&self, key: &K, object: *mut T) {
        {
            let mut entries = lock(&self.entries);
            if let Some(same) = entries.get_mut(key) {
                same.retain(|entry| entry.object != object);
                if same.is_empty() {
                    entries.remove(key);
                }
            }
        }
        let unacked = lock(&self.unacked).get(&object.addr()).cloned();
        if let Some(unacked) = unacked {
            unacked.wait();
            lock(&self.unacked).remove(&object.addr());
        }
    }

    /// The object that an event about `key` goes to, which has one more event to be acknowledged; `None` if it is gone.
    pub(crate) fn deliver(&self, key: &K) -> Option<*mut T> {
        let entries = lock(&self.entries);
        let first = entries.get(key)?.first()?;
        first.unacked.delivered();
        Some(first.object)
    }

    /// The program acknowledges one event about `object`.
    pub(crate) fn acknowledge(&self, object: *mut T) {
        let unacked = lock(&self.unacked).get(&object.addr()).cloned();
        if let Some(unacked) = unacked {
            unacked.acknowledge(1);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
