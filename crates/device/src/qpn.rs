//! Queue pair numbers and the table behind them.
//!
//! The upper 8 bits of a number are the slot; the lower 16 an index that starts at random and
//! counts up, so that a number is given again only after all others: a late packet for a queue
//! pair that is gone does not meet its successor.

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, RandomState};
use std::sync::{Arc, RwLock};

use oarlock_wire::Qpn;

use crate::context::MAX_QP;
use crate::error::Error;
use crate::locks::{read, write};
use crate::mr::KeyHasher;
use crate::qp::QpShared;

pub(crate) struct QpnTable {
    entries: RwLock<Entries>,
}

struct Entries {
    by_index: HashMap<u32, Arc<QpShared>, BuildHasherDefault<KeyHasher>>,
    next: u16,
}

impl QpnTable {
    pub(crate) fn new() -> Self {
        Self {
            entries: RwLock::new(Entries {
                by_index: HashMap::default(),
                next: RandomState::new().hash_one(0) as u16,
            }),
        }
    }

    /// Enters what `build` makes for a free number of `slot`.
    pub(crate) fn insert(
        &self,
        slot: u8,
        build: impl FnOnce(Qpn) -> Arc<QpShared>,
    ) -> Result<Arc<QpShared>, Error> {
        let mut entries = write(&self.entries);
        if entries.by_index.len() >= MAX_QP as usize {
            return Err(Error::TooManyQueuePairs {
                max: MAX_QP as usize,
            });
        }
        // Ends: fewer indices are taken than exist.
        let index = loop {
            let index = entries.next;
            entries.next = index.wrapping_add(1);
            if !entries.by_index.contains_key(&u32::from(index)) {
                break index;
            }
        };
        let qp = build(Qpn::truncate((u32::from(slot) << 16) | u32::from(index)));
        entries.by_index.insert(index.into(), Arc::clone(&qp));
        Ok(qp)
    }

    /// The queue pair with this number; the slot is the caller's to check.
    pub(crate) fn get(&self, qpn: Qpn) -> Option<Arc<QpShared>> {
        let entries = read(&self.entries);
        entries.by_index.get(&index_of(qpn)).map(Arc::clone)
    }

    pub(crate) fn remove(&self, qpn: Qpn) {
        let removed = write(&self.entries).by_index.remove(&index_of(qpn));
        // Dropped outside the lock: it may be the last reference, with buffers in it.
        drop(removed);
    }

    pub(crate) fn all(&self) -> Vec<Arc<QpShared>> {
        read(&self.entries)
            .by_index
            .values()
            .map(Arc::clone)
            .collect()
    }

    pub(crate) fn len(&self) -> usize {
        read(&self.entries).by_index.len()
    }
}

pub(crate) fn slot_of(qpn: Qpn) -> u8 {
    (qpn.get() >> 16) as u8
}

fn index_of(qpn: Qpn) -> u32 {
    qpn.get() & 0xffff
}
