//! Why a call was refused.

use std::io;

/// A call that was refused. Unless a variant says otherwise, nothing has changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// This process cannot watch memory. Registrations must not be cached.
    #[error("memory cannot be watched: {reason} (error {errno})")]
    Unavailable {
        /// What is missing.
        reason: Reason,
        /// The system's error number.
        errno: i32,
    },
    /// Another userfaultfd of this process watches part of the range (EBUSY).
    #[error("range of {len} bytes at {start:#x} is watched by another userfaultfd of this process")]
    Conflict {
        /// Start of the range.
        start: usize,
        /// Its length in bytes.
        len: usize,
    },
    /// Part of the range is not mapped.
    #[error("range of {len} bytes at {start:#x} is not mapped throughout")]
    NotMapped {
        /// Start of the range.
        start: usize,
        /// Its length in bytes.
        len: usize,
    },
    /// The kernel does not watch mappings of this kind in this mode.
    #[error("range of {len} bytes at {start:#x} is of a kind that this kernel does not watch")]
    NotWatchable {
        /// Start of the range.
        start: usize,
        /// Its length in bytes.
        len: usize,
    },
    /// The process has as many mappings as it may (`vm.max_map_count`), or the kernel is out of memory.
    #[error("no mapping is left to watch {len} bytes at {start:#x} apart from their surroundings")]
    OutOfMappings {
        /// Start of the range.
        start: usize,
        /// Its length in bytes.
        len: usize,
    },
    /// This kernel cannot be asked which pages are watched (PAGEMAP_SCAN, Linux 6.7), or this Watcher does not work in full mode.
    #[error("the kernel does not say which pages are watched (error {errno})")]
    CannotValidate {
        /// The system's error number.
        errno: i32,
    },
    /// This kernel (before Linux 6.10) or a sandbox does not seal mappings.
    #[error("memory cannot be sealed (error {errno})")]
    CannotSeal {
        /// The system's error number: ENOSYS, or EPERM.
        errno: i32,
    },
    /// The range is empty, or leaves the address space.
    #[error("range of {len} bytes at {start:#x} is empty or leaves the address space")]
    BadRange {
        /// Start of the range.
        start: usize,
        /// Its length in bytes.
        len: usize,
    },
    /// A region with this cookie exists.
    #[error("a region with cookie {cookie} exists")]
    CookieInUse {
        /// The cookie given.
        cookie: u64,
    },
    /// No region has this cookie: never registered, deregistered, or ended by [`Policy::Deregister`](crate::Policy::Deregister).
    #[error("no region has cookie {cookie}")]
    UnknownCookie {
        /// The cookie given.
        cookie: u64,
    },
    /// As many regions exist as [`Options::max_regions`](crate::Options::max_regions) allows.
    #[error("the limit of {max} regions is reached")]
    TooManyRegions {
        /// The limit.
        max: usize,
    },
    /// As many Watchers exist in this process as it may have.
    #[error("the limit of {max} watchers of a process is reached")]
    TooManyWatchers {
        /// The limit.
        max: usize,
    },
    /// The Watcher belongs to a parent of this process, which is not watched by it.
    #[error("the watcher belongs to the process that this one was forked from")]
    Forked,
    /// A thread ended inside a call of this Watcher, or the kernel does not answer it any more: its descriptor was closed behind our back,
    /// or a sandbox that began meanwhile refuses the call. No region of it is valid any more, and it watches nothing any more: another
    /// Watcher can take its place, also for the same memory, while this one is still there (where /proc is mounted; else once this
    /// one is dropped).
    #[error(
        "a thread ended inside a call of this watcher, or the kernel does not answer it any more"
    )]
    Broken,
    /// The Watcher has ended, and its regions with it.
    #[error("the watcher has ended")]
    Ended,
    /// The generation page that was given is none.
    #[error("the descriptor is not that of a generation page")]
    NotAGenerationPage,
    /// A system call failed.
    #[error("{call}: {source}")]
    System {
        /// Which one.
        call: &'static str,
        /// Why.
        source: io::Error,
    },
}

impl Error {
    /// A failed system call.
    pub(crate) fn system(call: &'static str, source: impl Into<io::Error>) -> Self {
        Self::System {
            call,
            source: source.into(),
        }
    }
}

/// What is missing to watch memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// The kernel was built without userfaultfd, or is older than it (ENOSYS).
    NotBuilt,
    /// Not allowed: a seccomp filter, as in many containers, or `vm.unprivileged_userfaultfd` before Linux 5.11 (EPERM).
    NotPermitted,
    /// The kernel is older than Linux 5.7, or its processor lacks the write-protect mode.
    TooOld,
    /// The process or the system has no descriptor or memory left for it.
    NoResources,
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::NotBuilt => "the kernel has no userfaultfd",
            Self::NotPermitted => "userfaultfd is not permitted here",
            Self::TooOld => "the kernel's userfaultfd has no write-protect mode",
            Self::NoResources => "no descriptor or memory is left for a userfaultfd",
        })
    }
}
