//! What a lookup does that finds no registration.
//!
//! In this order: the memory is watched, then registered, then the Watcher is settled and the mark read, and only then can others get
//! the registration. So it is of the memory that was there when the watch began, and every change since then is seen.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Inner;
use super::book::{Place, Plan};
use super::handle::{Entry, Held, Lone, Own};
use super::options::{CacheError, Fallback};
use super::registrar::Registrar;
use super::slots::{Pinned, Slots};
use crate::error::Error;
use crate::event::Policy;
use crate::watcher::Watcher;

/// What a lookup gets.
pub(super) type Found<'a, R> = Held<&'a Slots<Entry<R>>, R>;

/// Why an attempt to register has come to nothing.
enum Failure<E> {
    /// The memory changed meanwhile.
    Changed,
    /// The Watcher is of no use any more.
    Lost,
    /// The range cannot be watched; another might.
    Unwatchable(Error),
    Refused(CacheError<E>),
}

/// What to do for a lookup.
enum Planned<'a, R: Registrar> {
    Found(Pinned<&'a Slots<Entry<R>>, Entry<R>>),
    Plan(Plan<'a, R>),
}

impl<R: Registrar> Inner<R> {
    /// Registers for a lookup. `stale`: there was a registration that is not valid.
    ///
    /// # Safety
    /// As `MrCache::get`.
    #[cold]
    pub(super) unsafe fn miss(
        &self,
        start: usize,
        len: usize,
        access: R::Access,
        stale: bool,
    ) -> Result<Found<'_, R>, CacheError<R::Error>> {
        let asked = self
            .aligned(start, len)
            .ok_or(CacheError::Watch(Error::BadRange { start, len }))?;
        if stale {
            self.counts.stale_avoided.fetch_add(1, Ordering::Relaxed);
        }
        let mut merge = true;
        let (mut missed, mut attempts) = (false, 0);
        loop {
            let plan = match self.planned(&asked, access, merge)? {
                Planned::Plan(plan) => plan,
                Planned::Found(entry) => {
                    if entry.validity.settle().is_ok() && entry.validity.is_valid() {
                        entry.touch(self.uses.0.load(Ordering::Relaxed));
                        if !missed {
                            self.counts.found.fetch_add(1, Ordering::Relaxed);
                        }
                        return Ok(Held::Cached(entry));
                    }
                    self.once_more(&mut attempts)?;
                    continue;
                }
            };
            if !std::mem::replace(&mut missed, true) {
                self.counts.misses.fetch_add(1, Ordering::Relaxed);
            }
            let merged = plan.merged;
            let watcher = plan.watcher.clone();
            // SAFETY: the caller's promise covers what is merged.
            let failure = match unsafe { self.attempt(plan) } {
                Ok(found) => {
                    self.sweep_if_due();
                    return Ok(found);
                }
                Err(failure) => failure,
            };
            match (failure, watcher) {
                (Failure::Changed, _) => {
                    self.once_more(&mut attempts)?;
                    merge &= attempts < MERGED_ATTEMPTS;
                }
                (Failure::Lost, Some(lost)) => self.reopen(&lost).map_err(CacheError::Watch)?,
                (Failure::Lost, None) => return Err(CacheError::Watch(Error::Ended)),
                // What was asked for may still be possible, without what it was merged with.
                (_, _) if merged => merge = false,
                (Failure::Unwatchable(error), _) => {
                    if self.options.when_unwatchable == Fallback::Refuse {
                        return Err(CacheError::Watch(error));
                    }
                    // SAFETY: the caller's promise.
                    return unsafe { self.unwatched(asked, access) };
                }
                (Failure::Refused(error), _) => return Err(error),
            }
        }
    }

    /// Counts an attempt that a change has spoilt.
    fn once_more(&self, attempts: &mut u32) -> Result<(), CacheError<R::Error>> {
        *attempts += 1;
        if *attempts == MAX_ATTEMPTS {
            return Err(CacheError::Changing {
                attempts: *attempts,
            });
        }
        self.counts.repeated.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// A plan that has a place, unless everything is in use. What makes room for it is deregistered.
    fn planned(
        &self,
        asked: &Range<usize>,
        access: R::Access,
        merge: bool,
    ) -> Result<Planned<'_, R>, CacheError<R::Error>> {
        for _ in 0..MAX_PLANS {
            // Declared first: dropped when the lock is free.
            let mut claimed = Vec::new();
            let mut book = self.lock().map_err(CacheError::Watch)?;
            // Published meanwhile, or not seen, because others were moved in the index.
            if let Some(entry) = self.find_locked(asked, access) {
                return Ok(Planned::Found(entry));
            }
            let plan = self.plan(&mut book, asked, access, merge, &mut claimed);
            drop(book);
            if !matches!(plan.place, Place::Soon) {
                return Ok(Planned::Plan(plan));
            }
        }
        // Others always took the room that was made.
        let book = self.lock().map_err(CacheError::Watch)?;
        Ok(Planned::Plan(Plan {
            range: asked.clone(),
            access,
            merged: false,
            parts: Vec::new(),
            place: Place::None,
            watcher: book.watcher.clone(),
        }))
    }

    /// Watches, registers and publishes.
    ///
    /// # Safety
    /// As `MrCache::get`.
    unsafe fn attempt<'a>(&'a self, plan: Plan<'a, R>) -> Result<Found<'a, R>, Failure<R::Error>> {
        let Some(watcher) = plan.watcher else {
            // SAFETY: the caller's promise.
            return unsafe { self.unwatched(plan.range, plan.access) }.map_err(Failure::Refused);
        };
        let reserved = match plan.place {
            Place::Taken(reserved) => Some(reserved),
            Place::Soon | Place::None if plan.merged => {
                return Err(Failure::Refused(self.full()));
            }
            Place::Soon | Place::None if self.options.when_full == Fallback::Refuse => {
                return Err(Failure::Refused(self.full()));
            }
            Place::Soon | Place::None => None,
        };
        // SAFETY: the caller's promise.
        let entry = unsafe { self.watched(&plan.range, plan.access, &watcher) }?;
        // Of memory that went before the watch began and was mapped again, the kernel watches nothing.
        if plan.parts.iter().any(|part| !part.is_valid()) {
            return Err(Failure::Changed);
        }
        let Some(reserved) = reserved else {
            return Ok(self.uncached(Lone {
                access: entry.access,
                registration: entry.registration,
                region: Some(entry.region),
                range: plan.range,
            }));
        };
        // Declared before the lock is taken: dropped when it is free.
        let (mut entry, mut claimed) = (Some(entry), Vec::new());
        let Ok(mut book) = self.lock() else {
            return Err(Failure::Refused(CacheError::Watch(Error::Broken)));
        };
        let published = self.publish(&mut book, reserved, &mut entry, &mut claimed);
        drop(book);
        Ok(Held::Cached(published))
    }

    /// A registration of watched memory that was the same all the time.
    ///
    /// # Safety
    /// As `MrCache::get`.
    unsafe fn watched(
        &self,
        range: &Range<usize>,
        access: R::Access,
        watcher: &Watcher,
    ) -> Result<Entry<R>, Failure<R::Error>> {
        let cookie = self.cookie.fetch_add(1, Ordering::Relaxed);
        // An old change of this address that nobody has read yet is taken for one of now; then it is read, and not there next time.
        let region = watcher
            .register_unsettled(range.start, range.len(), cookie, Policy::Deregister)
            .map_err(|error| match error {
                Error::Broken | Error::Ended => Failure::Lost,
                Error::NotWatchable { .. }
                | Error::Conflict { .. }
                | Error::OutOfMappings { .. }
                | Error::TooManyRegions { .. } => Failure::Unwatchable(error),
                error => Failure::Refused(CacheError::Watch(error)),
            })?;
        let validity = region.validity();
        // SAFETY: the caller's promise.
        let registered = unsafe {
            self.registrar
                .register(range.start, range.len(), access, Some(&validity))
        };
        watcher.settle().map_err(|error| match error {
            Error::Broken | Error::Ended => Failure::Lost,
            error => Failure::Refused(CacheError::Watch(error)),
        })?;
        // Also if it was refused: that may be why.
        if !validity.is_valid() {
            return Err(Failure::Changed);
        }
        Ok(Entry {
            access,
            validity,
            registration: registered
                .map_err(|error| Failure::Refused(CacheError::Registrar(error)))?,
            region,
        })
    }

    /// A registration of memory that cannot be watched.
    ///
    /// # Safety
    /// As `MrCache::get`.
    unsafe fn unwatched(
        &self,
        range: Range<usize>,
        access: R::Access,
    ) -> Result<Found<'_, R>, CacheError<R::Error>> {
        // SAFETY: the caller's promise.
        let registration = unsafe {
            self.registrar
                .register(range.start, range.len(), access, None)
        };
        Ok(self.uncached(Lone {
            access,
            registration: registration.map_err(CacheError::Registrar)?,
            region: None,
            range,
        }))
    }

    fn uncached(&self, lone: Lone<R>) -> Found<'_, R> {
        self.counts.uncached.fetch_add(1, Ordering::Relaxed);
        Held::Own(Own::new(&self.slots, lone))
    }

    fn full(&self) -> CacheError<R::Error> {
        CacheError::Full {
            regions: self.slots.occupied(),
            bytes: self.slots.bytes(),
        }
    }

    /// What is registered for a range at least. `None`: it is empty, or leaves the address space.
    fn aligned(&self, start: usize, len: usize) -> Option<Range<usize>> {
        let alignment = self.options.alignment;
        let end = start.checked_add(len)?;
        (len > 0).then_some(())?;
        Some(start / alignment * alignment..end.checked_next_multiple_of(alignment)?)
    }

    /// Opens another Watcher in the place of one that broke, unless another thread has.
    fn reopen(&self, lost: &Arc<Watcher>) -> Result<(), Error> {
        let is_lost = |watcher: &Option<Arc<Watcher>>| {
            watcher
                .as_ref()
                .is_some_and(|watcher| Arc::ptr_eq(watcher, lost))
        };
        let book = self.lock()?;
        if !is_lost(&book.watcher) {
            return Ok(());
        }
        if book.reopened == MAX_REOPENED {
            return Err(Error::Broken);
        }
        drop(book);
        let mut watcher = Some(Arc::new(Watcher::with(self.options.watcher.clone())?));
        let mut book = self.lock()?;
        if is_lost(&book.watcher) {
            std::mem::swap(&mut book.watcher, &mut watcher);
            book.reopened += 1;
            self.counts.reopened.fetch_add(1, Ordering::Relaxed);
        }
        drop(book);
        // The other one ends here, with the lock free, unless a registration still has it.
        drop(watcher);
        Ok(())
    }

    fn sweep_if_due(&self) {
        let Some(max_age) = self.options.max_age else {
            return;
        };
        let Ok(book) = self.lock() else {
            return;
        };
        let is_due = book.swept.elapsed() >= max_age / 4;
        drop(book);
        if is_due {
            self.sweep();
        }
    }
}

/// How often memory may change while it is being registered.
const MAX_ATTEMPTS: u32 = 4;
/// After how many of them nothing is merged any more: what changes may be the others' memory.
const MERGED_ATTEMPTS: u32 = 2;
/// How often room is made for one registration.
const MAX_PLANS: u32 = 4;
/// How many Watchers a cache opens after its first: each stands for a thread that ended inside a call.
pub(super) const MAX_REOPENED: u32 = 16;
