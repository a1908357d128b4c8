//! A cache of memory registrations that are given up when their memory changes.
//!
//! ```text
//!   MrCache::get ── hit: Hints or Index ▶ Slots::hit ▶ [settle] ▶ is_valid ────▶ Handle       no lock, no shared write
//!        |                                                                        ▲
//!        └── miss: lock ▶ plan, make room ▶ unlock ▶ deregister what made room    |
//!                  ▶ watch ▶ register ▶ settle, is_valid ▶ lock ▶ publish ▶ unlock ▶ deregister what was replaced
//! ```
//!
//! | file | subject |
//! |---|---|
//! | `registrar.rs`, `options.rs` | what a program gives and is told |
//! | `handle.rs` | registrations in use |
//! | `slots.rs` | in-use counts, and who ends a value: the only unsafe code beside calls of the Registrar |
//! | `hints.rs` | which slot a thread found for an address before |
//! | `index.rs` | which slots may hold an address |
//! | `book.rs` | merging, evicting, publishing: with the lock held |
//! | `miss.rs` | registering: without it |
//!
//! The lock is not one that the thread needs that reads the kernel's events, so an allocator that unmaps watched memory while it is
//! held is waited for by nobody. It notices the death of its owner.
#![allow(
    unsafe_code,
    reason = "registering memory by its address; values that are used without a lock"
)]

mod book;
mod handle;
mod hints;
mod index;
mod miss;
mod options;
mod registrar;
mod slots;
#[cfg(test)]
mod tests;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::capabilities::Capabilities;
use crate::error::Error;
use crate::lock::{Guard, Lock};
use crate::watcher::{Options, Watcher};
use book::Book;
use handle::{Entry, Held};
use hints::Hints;
use index::Index;
use slots::{Pinned, Slots};

pub use handle::{Handle, KeptHandle};
pub use options::{CacheError, CacheOptions, CacheStatistics, Fallback, Lookup};
pub use registrar::Registrar;

/// Keeps registrations of memory for those who ask for them again, for as long as the memory is the same.
///
/// # Examples
/// ```
/// use oarlock_memwatch::{CacheOptions, Error, Lookup, MrCache, Registrar, Validity};
///
/// /// Registers nothing; a device's keys would be the registrations.
/// struct Device;
///
/// impl Registrar for Device {
///     type Access = u32;
///     type Registration = ();
///     type Error = std::io::Error;
///
///     fn covers(held: u32, wanted: u32) -> bool {
///         held & wanted == wanted
///     }
///
///     fn union(a: u32, b: u32) -> Option<u32> {
///         Some(a | b)
///     }
///
///     unsafe fn register(
///         &self,
///         _start: usize,
///         _len: usize,
///         _access: u32,
///         _watch: Option<&Validity>,
///     ) -> std::io::Result<()> {
///         Ok(())
///     }
/// }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let cache = match MrCache::new(Device, CacheOptions::default()) {
///     Ok(cache) => cache,
///     // A sandbox or an old kernel: register each time.
///     Err(Error::Unavailable { .. }) => return Ok(()),
///     Err(error) => return Err(error.into()),
/// };
/// let buffer = vec![0u8; 1 << 20];
/// let start = buffer.as_ptr() as usize;
/// // SAFETY: this Registrar asks for nothing.
/// let handle = unsafe { cache.get(start, buffer.len(), 1, Lookup::Strict) }?;
/// assert_eq!(handle.range(), start..start + buffer.len());
/// drop(handle); // Stays registered,
/// // SAFETY: as above.
/// drop(unsafe { cache.get(start + 100, 1000, 1, Lookup::Strict) }?);
/// assert_eq!((cache.statistics().hits, cache.statistics().misses), (1, 1));
/// drop(buffer); // until the memory goes, or others need the place.
/// assert_eq!(cache.clean(), 1);
/// # Ok(())
/// # }
/// ```
///
/// # Which registration a lookup gets
/// One whose range and access cover what is asked for, if there is one and it is valid. Else one is made, for what is asked for and
/// * all that the registrations cover which this overlaps,
/// * all that registrations cover which it touches, if they are not longer than it is by then,
///
/// unless the result would cover more than [`CacheOptions::max_merged`] bytes, or [`Registrar::union`] wants the accesses apart, or
/// it cannot be registered as a whole; what cannot be merged stays, beside the new one. Registrations that the new one covers are
/// replaced by it: no lookup gets them any more, and they are deregistered when their last handle is gone. So a program that
/// goes through a large buffer piece by piece ends with few registrations, and makes each of its bytes part of a new one only
/// as often as its length doubles; and with the default options, only bytes are registered that a lookup has asked for.
///
/// # Who deregisters
/// The thread of a lookup that misses, of [`clean`](Self::clean) or [`clear`](Self::clear), or of the last handle that is dropped;
/// with no lock held. Never the thread that marks what has changed. An invalidated registration that nobody asks for is
/// deregistered at the latest when its place is needed: call `clean` now and then to have it earlier.
///
/// # One Watcher for each page
/// The kernel lets one userfaultfd watch a page. Of two caches (or a cache and a [`Watcher`]) over the same memory the later one cannot
/// watch it, and does not cache it: [`CacheOptions::when_unwatchable`] says what its lookups do, and
/// [`CacheStatistics::uncached`] counts them.
///
/// # Forked children
/// In a child every lookup fails with [`Error::Forked`], and nothing is deregistered, whatever the child drops.
///
/// # Threads
/// All methods can be called from any thread; none from a signal handler. A thread that ends inside a call, by a signal to it alone,
/// makes lookups that miss fail with [`Error::Broken`]; what is cached is still found.
pub struct MrCache<R: Registrar> {
    inner: Arc<Inner<R>>,
}

/// What handles keep, too. The slots are dropped first.
struct Inner<R: Registrar> {
    slots: Slots<Entry<R>>,
    index: Index,
    hints: Hints,
    /// Grows by two with each registration that is published: the time by which uses are told apart. The odd numbers are the times of
    /// publishing.
    uses: Line<AtomicU64>,
    counts: Counts,
    book: Lock<Book>,
    options: CacheOptions,
    cookie: AtomicU64,
    registrar: R,
}

/// Away from what others write to.
#[repr(align(64))]
struct Line<T>(T);

#[derive(Default)]
struct Counts {
    /// Hits of lookups that took the lock.
    found: AtomicU64,
    misses: AtomicU64,
    stale_avoided: AtomicU64,
    evictions: AtomicU64,
    aged: AtomicU64,
    invalidated: AtomicU64,
    merged: AtomicU64,
    uncached: AtomicU64,
    repeated: AtomicU64,
    reopened: AtomicU64,
}

impl<R: Registrar> MrCache<R> {
    /// A cache of what the Registrar registers, with a [`Watcher`] of its own.
    ///
    /// # Errors
    /// [`Error::Unavailable`]: this process cannot watch memory, so nothing may be cached, and
    /// [`CacheOptions::when_unavailable`] says to refuse. Others as [`Watcher::with`].
    pub fn new(registrar: R, options: CacheOptions) -> Result<Self, Error> {
        let max_regions = options.max_regions.clamp(1, MAX_REGIONS);
        let options = CacheOptions {
            max_regions,
            alignment: options.alignment.next_power_of_two().min(PAGE),
            watcher: Options {
                // Also for those that are being made, or belong to one handle alone.
                max_regions: max_regions + BESIDE,
                ..options.watcher
            },
            ..options
        };
        let watcher = match Watcher::with(options.watcher.clone()) {
            Ok(watcher) => Some(Arc::new(watcher)),
            Err(Error::Unavailable { .. }) if options.when_unavailable == Fallback::Uncached => {
                None
            }
            Err(error) => return Err(error),
        };
        let slots = Slots::new(max_regions).map_err(|e| Error::system("mmap", e))?;
        let (index, writer) = Index::new(max_regions);
        let hints =
            Hints::new(slots.shards(), max_regions).map_err(|e| Error::system("mmap", e))?;
        let inner = Inner {
            counts: Counts::default(),
            slots,
            index,
            hints,
            uses: Line(AtomicU64::new(0)),
            book: Lock::new(Book::new(writer, max_regions, watcher)),
            options,
            cookie: AtomicU64::new(0),
            registrar,
        };
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// What registers.
    pub fn registrar(&self) -> &R {
        &self.inner.registrar
    }

    /// What the Watcher inside can and cannot see. `None`: there is none, and nothing is cached.
    ///
    /// # Errors
    /// [`Error::Forked`], [`Error::Broken`].
    ///
    /// # Blocking
    /// For the time of another call.
    pub fn capabilities(&self) -> Result<Option<Capabilities>, Error> {
        let book = self.inner.lock()?;
        Ok(book.watcher.as_ref().map(|watcher| watcher.capabilities()))
    }

    /// A registration of the range that `access` can be done with; it may be larger and allow more. See the type.
    ///
    /// A lookup that finds one makes no system call, or with [`Lookup::Strict`] one, and writes nothing that other threads read,
    /// except once after each registration that is made. One that does not find one registers. Threads that do so at the same
    /// time do not wait for each other; of the same memory, one registration is kept.
    ///
    /// # Errors
    /// [`CacheError`]: what kept the memory from being registered. No registration that is in use was given up.
    ///
    /// # Blocking
    /// A hit: [`Lookup::Strict`] as [`Watcher::settle`]. A miss: as that and as the Registrar.
    ///
    /// # Safety
    /// What [`Registrar::register`] of this Registrar asks for, with the union of ranges and of accesses as described, for as long
    /// as the registration exists: also after the handle is gone, until it is evicted, or the memory changes in a way that
    /// can be seen. Memory that is registered for peers to write to must not be used for what they may not change, unless
    /// they cannot know the key.
    #[inline]
    pub unsafe fn get(
        &self,
        start: usize,
        len: usize,
        access: R::Access,
        lookup: Lookup,
    ) -> Result<Handle<'_, R>, CacheError<R::Error>> {
        let inner = &*self.inner;
        let found = match start.checked_add(len) {
            Some(end) if len > 0 => match lookup {
                Lookup::Fast => inner.find::<false>(&(start..end), access),
                Lookup::Strict => inner.find::<true>(&(start..end), access),
            },
            _ => Err(false),
        };
        let held = match found {
            Ok(entry) => Held::Cached(entry),
            // SAFETY: the caller's promise is the same.
            Err(stale) => unsafe { inner.miss(start, len, access, stale) }?,
        };
        Ok(Handle {
            inner: &self.inner,
            held,
        })
    }

    /// Deregisters what was invalidated or is too old, and returns how many registrations that were. Those in use stay until their
    /// last handle is gone.
    ///
    /// # Blocking
    /// As [`Watcher::settle`], and for as long as deregistering takes.
    pub fn clean(&self) -> usize {
        self.inner.sweep()
    }

    /// Gives up everything: lookups register again. Returns how many registrations were deregistered; the others are when their
    /// last handle is gone.
    ///
    /// # Blocking
    /// For as long as deregistering takes.
    pub fn clear(&self) -> usize {
        let mut claimed = Vec::new();
        let Ok(mut book) = self.inner.lock() else {
            return 0;
        };
        self.inner.give_up_all(&mut book, &mut claimed);
        drop(book);
        claimed.len()
    }

    /// Counts since the cache was made, and what it holds. Each count is exact, but they are not of one moment.
    pub fn statistics(&self) -> CacheStatistics {
        self.inner.statistics()
    }
}

impl<R: Registrar> Inner<R> {
    /// A valid registration that covers what is asked for. `Err`: there is none; was there one that is not valid?
    #[inline(always)]
    fn find<const STRICT: bool>(
        &self,
        range: &Range<usize>,
        access: R::Access,
    ) -> Result<Pinned<&Slots<Entry<R>>, Entry<R>>, bool> {
        let shard = self.slots.shard();
        if let Some(slot) = self.hints.find(shard, range.start)
            && let Ok(entry) = self.check::<STRICT>(shard, slot, range, access)
        {
            return Ok(entry);
        }
        self.search::<STRICT>(shard, range, access)
    }

    /// The same, by the index.
    #[inline(never)]
    fn search<const STRICT: bool>(
        &self,
        shard: u32,
        range: &Range<usize>,
        access: R::Access,
    ) -> Result<Pinned<&Slots<Entry<R>>, Entry<R>>, bool> {
        let mut stale = false;
        for slot in self.index.covering(range) {
            match self.check::<STRICT>(shard, slot, range, access) {
                Ok(entry) => {
                    self.hints.enter(shard, range.start, slot);
                    return Ok(entry);
                }
                Err(covers) => stale |= covers,
            }
        }
        Err(stale)
    }

    /// Uses the registration in a slot, if it serves. `Err`: it does not; would it but for being invalid?
    #[inline(always)]
    fn check<const STRICT: bool>(
        &self,
        shard: u32,
        slot: u32,
        range: &Range<usize>,
        access: R::Access,
    ) -> Result<Pinned<&Slots<Entry<R>>, Entry<R>>, bool> {
        let entry = self.slots.hit(shard, slot).ok_or(false)?;
        let held = entry.range();
        if range.start < held.start || held.end < range.end || !R::covers(entry.access, access) {
            entry.reject();
            return Err(false);
        }
        // Settled after the lookup began, before the mark is read.
        if STRICT && entry.validity.settle().is_err() || !entry.validity.is_valid() {
            entry.reject();
            return Err(true);
        }
        entry.touch(self.uses.0.load(Ordering::Relaxed));
        Ok(entry)
    }

    /// The lock; not in a child, where nobody may hold it.
    fn lock(&self) -> Result<Guard<'_, Book>, Error> {
        if self.slots.is_forked() {
            return Err(Error::Forked);
        }
        self.book.lock().map_err(|_| Error::Broken)
    }

    /// Looks at every slot; returns how many registrations were deregistered.
    fn sweep(&self) -> usize {
        let now = Instant::now();
        let watcher = match self.lock() {
            Ok(mut book) => {
                book.swept = now;
                book.watcher.clone()
            }
            Err(_) => return 0,
        };
        if let Some(watcher) = watcher {
            // If it cannot, nothing of it is valid.
            let _ = watcher.settle();
        }
        let mut ended = 0;
        let mut next = 0..self.slots.count() as u32;
        while !next.is_empty() {
            // Declared first: dropped when the lock is free.
            let mut claimed = Vec::new();
            let Ok(mut book) = self.lock() else {
                break;
            };
            for slot in next.by_ref().take(SWEEP) {
                self.sweep_slot(&mut book, slot, Some(now), &mut claimed);
            }
            drop(book);
            ended += claimed.len();
        }
        ended
    }

    fn statistics(&self) -> CacheStatistics {
        let counts = &self.counts;
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        CacheStatistics {
            hits: self.slots.hits() + get(&counts.found),
            misses: get(&counts.misses),
            stale_avoided: get(&counts.stale_avoided),
            evictions: get(&counts.evictions),
            aged: get(&counts.aged),
            invalidated: get(&counts.invalidated),
            merged: get(&counts.merged),
            uncached: get(&counts.uncached),
            repeated: get(&counts.repeated),
            reopened: get(&counts.reopened),
            regions: self.slots.occupied(),
            bytes: self.slots.bytes(),
        }
    }
}

impl<R: Registrar> fmt::Debug for MrCache<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MrCache")
            .field("options", &self.inner.options)
            .field("statistics", &self.statistics())
            .finish_non_exhaustive()
    }
}

const MAX_REGIONS: usize = 1 << 20;
const BESIDE: usize = 1 << 16;
/// The largest alignment: the smallest page of all processors that we know.
const PAGE: usize = 4096;
/// Slots that are looked at without letting go of the lock.
const SWEEP: usize = 256;
