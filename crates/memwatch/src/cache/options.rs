//! How a cache is made, what it refuses, and what it counts.

use std::fmt;
use std::time::Duration;

use crate::error::Error;
use crate::watcher::Options;

/// How a cache is made: `CacheOptions { max_regions: 64, ..CacheOptions::default() }`.
#[derive(Debug, Clone)]
pub struct CacheOptions {
    /// How many registrations the cache may hold, 1 to 2^20. Those that were replaced, evicted or invalidated count for as long as
    /// a handle keeps them. About 200 bytes are taken for each when the cache is made. Default 4,096.
    pub max_regions: usize,
    /// How many bytes all of them may cover; where registrations overlap, bytes count more than once. Default 2^63: no limit.
    pub max_bytes: usize,
    /// A registration that no lookup has asked for so long is evicted by the next sweep, which is part of
    /// [`MrCache::clean`](crate::MrCache::clean), and of a lookup that misses when a quarter of this time has passed since the
    /// last. Default: none.
    pub max_age: Option<Duration>,
    /// Ranges are registered rounded outwards to multiples of so many bytes, a power of two up to a page; then neighbours on the
    /// same page share a registration, and a peer that knows its key reaches what lies between them. Default 1: exactly what
    /// was asked for.
    pub alignment: usize,
    /// A registration is not merged with others if the result would cover more bytes. Default 2^63: no limit.
    pub max_merged: usize,
    /// What a lookup does when nothing can be evicted because everything is in use. Default [`Fallback::Uncached`].
    pub when_full: Fallback,
    /// What a lookup does with memory that cannot be watched: of the wrong kind, watched by somebody else, no mappings left.
    /// Default [`Fallback::Uncached`].
    pub when_unwatchable: Fallback,
    /// What a cache does in a process that cannot watch memory at all. Default [`Fallback::Refuse`]: none is made.
    pub when_unavailable: Fallback,
    /// For the Watcher inside. Its `max_regions` is chosen by the cache.
    pub watcher: Options,
}

impl Default for CacheOptions {
    fn default() -> Self {
        Self {
            max_regions: 4096,
            max_bytes: 1 << 63,
            max_age: None,
            alignment: 1,
            max_merged: 1 << 63,
            when_full: Fallback::Uncached,
            when_unwatchable: Fallback::Uncached,
            when_unavailable: Fallback::Refuse,
            watcher: Options::default(),
        }
    }
}

/// What to do for want of a place in the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "there is no third way")]
pub enum Fallback {
    /// Register for this lookup alone: its handle owns the registration, nobody else gets it.
    Uncached,
    /// Fail.
    Refuse,
}

/// How sure a lookup is.
///
/// A lookup that registers is always as sure as `Strict`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_enums,
    reason = "one more would need other code at its callers"
)]
pub enum Lookup {
    /// No system call. A change whose event has been read and marked is seen, others are not: for microseconds around the return
    /// of a call that unmaps memory, the registration of what was there can be handed out, also for new memory at the same address.
    ///
    /// For programs that know by other means that the memory is the one they registered, or whose registrations are checked
    /// again when they are used.
    Fast,
    /// One system call more. If a range was unmapped, replaced, moved or discarded by a call that
    /// [returned](crate::Watcher::settle), or whose address was given to somebody else, before the lookup began, no registration
    /// from before is handed out. What no event exists for is not seen ([`Capabilities::promise`](crate::Capabilities::promise)),
    /// and a kernel before 5.16 can miss a change ([`Capabilities::is_strict`](crate::Capabilities::is_strict)).
    Strict,
}

/// Why a lookup has no registration. The cache has not changed.
///
/// `E` is the error of the [`Registrar`](crate::Registrar).
#[derive(Debug)]
#[non_exhaustive]
pub enum CacheError<E> {
    /// The Registrar's own reason.
    Registrar(E),
    /// The range cannot be watched, or the Watcher is gone and another could not be made.
    Watch(Error),
    /// Everything is in use, and [`CacheOptions::when_full`] says to refuse.
    Full {
        /// Registrations held.
        regions: usize,
        /// Bytes that they cover.
        bytes: usize,
    },
    /// The memory changed during each of so many attempts to register it.
    Changing {
        /// How many.
        attempts: u32,
    },
}

impl<E: fmt::Display> fmt::Display for CacheError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Registrar(error) => error.fmt(f),
            Self::Watch(error) => error.fmt(f),
            Self::Full { regions, bytes } => write!(
                f,
                "all {regions} registrations of the cache, of {bytes} bytes, are in use"
            ),
            Self::Changing { attempts } => {
                write!(
                    f,
                    "the memory changed while it was registered, {attempts} times"
                )
            }
        }
    }
}

impl<E: std::error::Error + 'static> std::error::Error for CacheError<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Registrar(error) => error.source(),
            Self::Watch(error) => error.source(),
            Self::Full { .. } | Self::Changing { .. } => None,
        }
    }
}

/// Counts since the cache was made, and what it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct CacheStatistics {
    /// Lookups that got a registration that was there.
    pub hits: u64,
    /// Lookups that had to register, whether that succeeded or not.
    pub misses: u64,
    /// Registrations that would have served a lookup but for a change of their memory.
    pub stale_avoided: u64,
    /// Registrations given up, although valid, for the sake of others: count and bytes.
    pub evictions: u64,
    /// Registrations given up because nobody asked for them for [`CacheOptions::max_age`].
    pub aged: u64,
    /// Registrations given up because their memory changed.
    pub invalidated: u64,
    /// Registrations replaced by one that covers them.
    pub merged: u64,
    /// Registrations made for one lookup alone.
    pub uncached: u64,
    /// Attempts to register that were repeated because the memory changed meanwhile.
    pub repeated: u64,
    /// Watchers opened in the place of one that broke.
    pub reopened: u64,
    /// Registrations that the cache holds, with those that only a handle keeps.
    pub regions: usize,
    /// Bytes that they cover.
    pub bytes: usize,
}
