//! What a reader of events is told.

use std::ops::Range;

/// One entry of the event queue.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// Memory of a region changed.
    Invalidated(Invalidation),
    /// The queue was emptied by this read.
    Last {
        /// The generation of that moment: while the page shows the same value, nothing is unread.
        generation: u64,
    },
}

/// The memory of a region is no longer what was registered.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Invalidation {
    /// The region, as [`Watcher::register`](crate::Watcher::register) was told.
    pub cookie: u64,
    /// What happened; the gravest where several changes are reported as one.
    pub kind: Kind,
    /// Exactly the bytes of the region that changed. `None`: several disjoint parts, or not known; then the whole region is meant.
    pub hint: Option<Range<usize>>,
}

/// What happened to memory, from the lightest to the gravest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// Contents thrown away, mapping kept: `MADV_DONTNEED`, `MADV_FREE`, `MADV_REMOVE`. Reported just before it happens, and also
    /// when the kernel then refuses it.
    Discarded,
    /// Unmapped, or replaced by another mapping: `munmap`, `MAP_FIXED`, `mremap` onto it or smaller, `brk`.
    Unmapped,
    /// Moved elsewhere by `mremap`.
    Moved,
    /// Not known which region changed, or how: more happened than could be kept.
    Unknown,
}

/// What an invalidation does to a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Policy {
    /// Queue an event; the region stays registered, and further changes are reported.
    #[default]
    Report,
    /// Deregister the region at once, without an event: for those who do not read. Only the generation grows.
    Deregister,
}

/// A region that [`Watcher::deregister_notified`](crate::Watcher::deregister_notified) ended.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Deregistered {
    /// Its cookie.
    pub cookie: u64,
    /// How many events of it were read.
    pub reported: u64,
    /// An event that nobody had read, and nobody will.
    pub unread: Option<Invalidation>,
}
