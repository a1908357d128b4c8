//! The identifiers of this process by the value that the service echoes in their events.

use crate::identifier::Shared;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

static IDENTIFIERS: Mutex<Option<HashMap<u64, Weak<Shared>>>> = Mutex::new(None);

fn lock() -> MutexGuard<'static, Option<HashMap<u64, Weak<Shared>>>> {
    // Insert and remove leave the map whole.
    IDENTIFIERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A value that no identifier of this process had before; never 0, which means "not accepted yet" to the service.
pub(crate) fn next_uid() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

pub(crate) fn insert(uid: u64, shared: &Arc<Shared>) {
    lock()
        .get_or_insert_default()
        .insert(uid, Arc::downgrade(shared));
}

pub(crate) fn remove(uid: u64) {
    if let Some(identifiers) = lock().as_mut() {
        identifiers.remove(&uid);
    }
}

pub(crate) fn find(uid: u64) -> Option<Arc<Shared>> {
    lock().as_ref()?.get(&uid)?.upgrade()
}
