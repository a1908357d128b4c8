//! Protection domains, thread domains, parent domains.

use std::cell::UnsafeCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use oarlock_device as device;

use super::context::Context;
use crate::abi::ibv_pd;

/// A protection domain. A parent domain is one, too, of the same protection as the one it is made of.
#[repr(C)]
pub(crate) struct Pd {
    abi: UnsafeCell<ibv_pd>,
    pub(crate) inner: device::Pd,
    pub(crate) context: Arc<Context>,
    users: Users,
    /// What a parent domain uses.
    _parts: Vec<Use>,
}

/// How many objects use another, which cannot be destroyed meanwhile.
#[derive(Clone, Default)]
pub(crate) struct Users(Arc<AtomicUsize>);

/// One of them: ends when dropped.
pub(crate) struct Use(Arc<AtomicUsize>);

impl Users {
    /// One more.
    pub(crate) fn enter(&self) -> Use {
        self.0.fetch_add(1, Ordering::AcqRel);
        Use(Arc::clone(&self.0))
    }

    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Pd {
    /// The domain that C knows as `pd`.
    ///
    /// # Safety
    /// `pd` is what C got of this library, and not deallocated.
    pub(crate) unsafe fn of<'a>(pd: *mut ibv_pd) -> &'a Self {
        // SAFETY: the caller's promise; `abi` is the first field.
        unsafe { &*pd.cast::<Self>() }
    }

    /// What C knows the domain by.
    pub(crate) fn as_ptr(&self) -> *mut ibv_pd {
        self.abi.get()
    }

    /// For an object that is made in the domain: keep it until the object is destroyed. Meanwhile the domain is busy.
    pub(crate) fn enter(&self) -> Use {
        self.users.enter()
    }
}
