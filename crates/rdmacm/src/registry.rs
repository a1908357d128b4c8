//! The identifiers of this process, and their memberships in multicast groups, by the value that the service echoes in their
//! events.

use crate::identifier::Shared;
use crate::multicast::Membership;
use oarlock_port::fork::PerProcess;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// A forked child begins with none: no event of its parent's reaches it, and the lock may be held by a thread of the parent.
static ENTRIES: PerProcess<Mutex<HashMap<u64, Entry>>> = PerProcess::new(|_| Mutex::default());

enum Entry {
    Identifier(Weak<Shared>),
    /// Outlives the membership while an event of it may be on its way, since that counts for the identifier, too.
    Membership(Weak<Membership>, Weak<Shared>),
}

/// Whom an event is for.
pub(crate) enum Found {
    Identifier(Arc<Shared>),
    /// `None`: the membership was dropped meanwhile.
    Membership(Option<Arc<Membership>>, Arc<Shared>),
}

fn lock() -> MutexGuard<'static, HashMap<u64, Entry>> {
    // Insert and remove leave the map whole.
    ENTRIES.get().lock().unwrap_or_else(PoisonError::into_inner)
}

/// A value that nothing of this process had before; never 0, which means "not accepted yet" to the service.
pub(crate) fn next_uid() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

pub(crate) fn insert(uid: u64, shared: &Arc<Shared>) {
    let entry = Entry::Identifier(Arc::downgrade(shared));
    lock().insert(uid, entry);
}

pub(crate) fn insert_join(uid: u64, membership: &Arc<Membership>, owner: &Arc<Shared>) {
    let entry = Entry::Membership(Arc::downgrade(membership), Arc::downgrade(owner));
    lock().insert(uid, entry);
    let mut joins = owner.lock_joins();
    if joins.len() >= FEW {
        joins.retain(|&uid| is_known(uid));
    }
    joins.push(uid);
}

/// From so many on, the list of an identifier's memberships is rid of the forgotten ones.
const FEW: usize = 16;

/// Takes what is known of an identifier, or of a membership of which no event can come any more.
pub(crate) fn remove(uid: u64) {
    lock().remove(&uid);
}

fn is_known(uid: u64) -> bool {
    lock().contains_key(&uid)
}

pub(crate) fn find(uid: u64) -> Option<Found> {
    match lock().get(&uid)? {
        Entry::Identifier(shared) => Some(Found::Identifier(shared.upgrade()?)),
        Entry::Membership(membership, owner) => {
            Some(Found::Membership(membership.upgrade(), owner.upgrade()?))
        }
    }
}
