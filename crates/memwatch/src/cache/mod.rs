//! A cache of memory registrations that are given up when their memory changes.

#![allow(
    unsafe_code,
    reason = "registering memory by its address; slots that are read without a lock"
)]

mod options;
mod registrar;

use std::ops::{Deref, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::Error;
use crate::event::Policy;
use crate::region::Region;
use crate::watcher::Watcher;

pub use options::{CacheError, CacheOptions, CacheStatistics, Fallback, Lookup};
pub use registrar::Registrar;

/// Keeps registrations of memory for those who ask for them again.
#[derive(Debug)]
pub struct MrCache<R: Registrar> {
    inner: Arc<Inner<R>>,
}

#[derive(Debug)]
struct Inner<R: Registrar> {
    registrar: R,
    watcher: Watcher,
    cookie: AtomicU64,
}

impl<R: Registrar> MrCache<R> {
    /// A cache of what the Registrar registers.
    ///
    /// # Errors
    /// [`Error::Unavailable`]: this process cannot watch memory. Other errors as [`Watcher::with`].
    pub fn new(registrar: R, options: CacheOptions) -> Result<Self, Error> {
        let watcher = Watcher::with(options.watcher)?;
        Ok(Self {
            inner: Arc::new(Inner {
                registrar,
                watcher,
                cookie: AtomicU64::new(0),
            }),
        })
    }

    /// The Registrar.
    pub fn registrar(&self) -> &R {
        &self.inner.registrar
    }

    /// A registration of the range, made for `access` or one that covers it.
    ///
    /// # Errors
    /// See [`CacheError`].
    ///
    /// # Safety
    /// What the Registrar asks for.
    pub unsafe fn get(
        &self,
        start: usize,
        len: usize,
        access: R::Access,
        _lookup: Lookup,
    ) -> Result<Handle<'_, R>, CacheError<R::Error>> {
        let cookie = self.inner.cookie.fetch_add(1, Ordering::Relaxed);
        let region = self
            .inner
            .watcher
            .register(start, len, cookie, Policy::Deregister)
            .map_err(CacheError::Watch)?;
        // SAFETY: the caller's promise is the same.
        let registration = unsafe {
            self.inner
                .registrar
                .register(start, len, access, Some(&region.validity()))
        }
        .map_err(CacheError::Registrar)?;
        Ok(Handle {
            cache: self,
            registration,
            region,
            access,
        })
    }

    /// Gives up what is invalid or too old, deregisters what nobody uses, and returns how many were deregistered.
    pub fn clean(&self) -> usize {
        0
    }

    /// Counts since the cache was made, and what it holds.
    pub fn statistics(&self) -> CacheStatistics {
        CacheStatistics::default()
    }
}

/// A registration in use: it is not deregistered before this is dropped.
#[derive(Debug)]
pub struct Handle<'c, R: Registrar> {
    cache: &'c MrCache<R>,
    registration: R::Registration,
    region: Region,
    access: R::Access,
}

impl<'c, R: Registrar> Handle<'c, R> {
    /// The bytes that are registered, with those that were asked for.
    pub fn range(&self) -> Range<usize> {
        self.region.range()
    }

    /// What it was registered for.
    pub fn access(&self) -> R::Access {
        self.access
    }

    /// Whether the memory is still what was registered; see [`Validity::is_valid`](crate::Validity::is_valid).
    pub fn is_valid(&self) -> bool {
        self.region.is_valid()
    }

    /// Whether others get the same registration.
    pub fn is_cached(&self) -> bool {
        false
    }

    /// A handle that does not borrow the cache.
    pub fn keep(self) -> KeptHandle<R> {
        KeptHandle {
            _cache: Arc::clone(&self.cache.inner),
            registration: self.registration,
            region: self.region,
            access: self.access,
        }
    }
}

impl<R: Registrar> Deref for Handle<'_, R> {
    type Target = R::Registration;
    fn deref(&self) -> &R::Registration {
        &self.registration
    }
}

/// A [`Handle`] that does not borrow the cache, but keeps it.
#[derive(Debug)]
pub struct KeptHandle<R: Registrar> {
    _cache: Arc<Inner<R>>,
    registration: R::Registration,
    region: Region,
    access: R::Access,
}

impl<R: Registrar> KeptHandle<R> {
    /// See [`Handle::range`].
    pub fn range(&self) -> Range<usize> {
        self.region.range()
    }

    /// See [`Handle::access`].
    pub fn access(&self) -> R::Access {
        self.access
    }

    /// See [`Handle::is_valid`].
    pub fn is_valid(&self) -> bool {
        self.region.is_valid()
    }
}

impl<R: Registrar> Deref for KeptHandle<R> {
    type Target = R::Registration;
    fn deref(&self) -> &R::Registration {
        &self.registration
    }
}
