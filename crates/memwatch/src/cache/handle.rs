//! Registrations in use.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

use super::Inner;
use super::registrar::Registrar;
use super::slots::{Pinned, Slots};
use crate::error::Error;
use crate::region::{Region, Validity};
use crate::validate::Validation;

/// A cached registration. What a lookup reads comes first.
#[repr(C)]
pub(super) struct Entry<R: Registrar> {
    pub(super) validity: Validity,
    pub(super) access: R::Access,
    /// Dropped before the region: the memory is watched for as long as it is registered.
    pub(super) registration: R::Registration,
    pub(super) region: Region,
}

/// A registration that nobody else gets.
pub(super) struct Lone<R: Registrar> {
    pub(super) access: R::Access,
    pub(super) registration: R::Registration,
    /// `None`: not watched.
    pub(super) region: Option<Region>,
    pub(super) range: Range<usize>,
}

/// One of the cache, or one of its own.
pub(super) enum Held<S: Deref<Target = Slots<Entry<R>>>, R: Registrar> {
    Cached(Pinned<S, Entry<R>>),
    Own(Own<S, R>),
}

impl<S: Deref<Target = Slots<Entry<R>>>, R: Registrar> Held<S, R> {
    #[inline]
    fn registration(&self) -> &R::Registration {
        match self {
            Self::Cached(entry) => &entry.registration,
            Self::Own(own) => &own.lone().registration,
        }
    }

    fn access(&self) -> R::Access {
        match self {
            Self::Cached(entry) => entry.access,
            Self::Own(own) => own.lone().access,
        }
    }

    fn range(&self) -> Range<usize> {
        match self {
            Self::Cached(entry) => entry.range(),
            Self::Own(own) => own.lone().range.clone(),
        }
    }

    fn is_valid(&self) -> bool {
        match self {
            Self::Cached(entry) => entry.validity.is_valid(),
            Self::Own(own) => own.lone().region.as_ref().is_some_and(Region::is_valid),
        }
    }

    fn validate(&self) -> Result<Validation, Error> {
        let region = match self {
            Self::Cached(entry) => Some(&entry.region),
            Self::Own(own) => own.lone().region.as_ref(),
        };
        match region {
            Some(region) => region.validate(),
            None => Err(Error::NotWatchable {
                start: self.range().start,
                len: self.range().len(),
            }),
        }
    }

    fn owned_by<O: Deref<Target = Slots<Entry<R>>>>(self, owner: O) -> Held<O, R> {
        match self {
            Self::Cached(entry) => Held::Cached(entry.owned_by(owner)),
            Self::Own(mut own) => Held::Own(Own {
                owner,
                lone: own.lone.take(),
            }),
        }
    }
}

/// A [`Lone`] registration that is dropped in the process that made it.
pub(super) struct Own<S: Deref<Target = Slots<Entry<R>>>, R: Registrar> {
    owner: S,
    /// Taken by drop.
    lone: Option<Box<Lone<R>>>,
}

impl<S: Deref<Target = Slots<Entry<R>>>, R: Registrar> Own<S, R> {
    pub(super) fn new(owner: S, lone: Lone<R>) -> Self {
        Self {
            owner,
            lone: Some(Box::new(lone)),
        }
    }

    fn lone(&self) -> &Lone<R> {
        self.lone.as_ref().expect("taken by drop only")
    }
}

impl<S: Deref<Target = Slots<Entry<R>>>, R: Registrar> Drop for Own<S, R> {
    fn drop(&mut self) {
        if self.owner.is_forked() {
            // The parent deregisters it.
            std::mem::forget(self.lone.take());
        }
    }
}

/// A registration in use: it is not deregistered before this is dropped. Derefs to the Registrar's registration.
///
/// Dropping the last handle of a registration that was replaced, evicted or invalidated meanwhile deregisters it, in this thread. One
/// that is forgotten instead (`mem::forget`, a thread that ends inside a call) keeps its place until the cache is dropped.
#[must_use = "dropping a handle ends the use of its registration"]
pub struct Handle<'c, R: Registrar> {
    pub(super) inner: &'c Arc<Inner<R>>,
    pub(super) held: Held<&'c Slots<Entry<R>>, R>,
}

impl<R: Registrar> Handle<'_, R> {
    /// The bytes that are registered; those that were asked for are among them.
    pub fn range(&self) -> Range<usize> {
        self.held.range()
    }

    /// What they are registered for; it covers what was asked for.
    pub fn access(&self) -> R::Access {
        self.held.access()
    }

    /// Whether the memory is still what was registered; see [`Validity::is_valid`](crate::Validity::is_valid). Never, if it
    /// cannot be watched. A change whose event nobody has read yet is not included, though its call may have returned a moment ago:
    /// a [`Strict`](crate::Lookup::Strict) lookup is the sure answer.
    pub fn is_valid(&self) -> bool {
        self.held.is_valid()
    }

    /// Asks the kernel whether the memory is still there, for what has no event; if not, the registration is invalidated:
    /// [`Region::validate`].
    ///
    /// # Errors
    /// As there. [`Error::NotWatchable`]: the memory is not watched.
    ///
    /// # Blocking
    /// As there.
    pub fn validate(&self) -> Result<Validation, Error> {
        self.held.validate()
    }

    /// Whether other lookups may get the same registration.
    pub fn is_cached(&self) -> bool {
        matches!(self.held, Held::Cached(_))
    }

    /// A handle that owns its part of the cache instead of borrowing it. Costs a write that all such handles share.
    pub fn keep(self) -> KeptHandle<R> {
        KeptHandle {
            held: self.held.owned_by(Keeper(Arc::clone(self.inner))),
        }
    }
}

impl<R: Registrar> Deref for Handle<'_, R> {
    type Target = R::Registration;
    #[inline]
    fn deref(&self) -> &R::Registration {
        self.held.registration()
    }
}

impl<R: Registrar> fmt::Debug for Handle<'_, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        describe(f, "Handle", &self.held)
    }
}

/// A [`Handle`] that does not borrow the cache. The registrations of a cache are kept until the last of these is gone, too.
#[must_use = "dropping a handle ends the use of its registration"]
pub struct KeptHandle<R: Registrar> {
    held: Held<Keeper<R>, R>,
}

impl<R: Registrar> KeptHandle<R> {
    /// See [`Handle::range`].
    pub fn range(&self) -> Range<usize> {
        self.held.range()
    }

    /// See [`Handle::access`].
    pub fn access(&self) -> R::Access {
        self.held.access()
    }

    /// See [`Handle::is_valid`].
    pub fn is_valid(&self) -> bool {
        self.held.is_valid()
    }

    /// See [`Handle::validate`].
    ///
    /// # Errors
    /// As there.
    pub fn validate(&self) -> Result<Validation, Error> {
        self.held.validate()
    }

    /// See [`Handle::is_cached`].
    pub fn is_cached(&self) -> bool {
        matches!(self.held, Held::Cached(_))
    }
}

impl<R: Registrar> Deref for KeptHandle<R> {
    type Target = R::Registration;
    #[inline]
    fn deref(&self) -> &R::Registration {
        self.held.registration()
    }
}

impl<R: Registrar> fmt::Debug for KeptHandle<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        describe(f, "KeptHandle", &self.held)
    }
}

/// Keeps the slots of a cache.
struct Keeper<R: Registrar>(Arc<Inner<R>>);

impl<R: Registrar> Deref for Keeper<R> {
    type Target = Slots<Entry<R>>;
    fn deref(&self) -> &Self::Target {
        &self.0.slots
    }
}

fn describe<S: Deref<Target = Slots<Entry<R>>>, R: Registrar>(
    f: &mut fmt::Formatter<'_>,
    name: &str,
    held: &Held<S, R>,
) -> fmt::Result {
    f.debug_struct(name)
        .field("range", &format_args!("{:#x?}", held.range()))
        .field("is_cached", &matches!(held, Held::Cached(_)))
        .field("is_valid", &held.is_valid())
        .finish()
}
