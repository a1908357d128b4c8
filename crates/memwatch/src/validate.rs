//! What userfaultfd has no event for: found on demand, or told by the program.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;

use crate::capabilities::Mode;
use crate::error::Error;
use crate::event::Kind;
use crate::region::Region;
use crate::shared::{Shared, whole_pages};
use crate::sys;
use crate::table::Change;
use crate::watcher::{Watcher, checked_range};

/// What the kernel says of a range, in bytes of whole pages: [`Watcher::validate`].
///
/// It is the state of a moment: what another thread changes meanwhile may be seen or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Validation {
    /// Not mapped, or mapped and not watched. Watched memory becomes so by shmdt, shmat with `SHM_REMAP`, remap_file_pages.
    pub unwatched: usize,
    /// Watched, but made guard pages (`MADV_GUARD_INSTALL`), which nobody can access.
    pub guarded: usize,
    /// Watched, and neither in memory nor in swap space: never touched, thrown away, beyond the end of a file that was truncated, or
    /// where a hole was punched. Of shared mappings and files, also what the kernel has paged out. Where every page was touched or
    /// pinned before, and is not paged out, such pages are no longer what was registered. Once it is touched again, a page in a hole
    /// is present, and cannot be told from what it was.
    pub absent: usize,
    /// Watched, and there.
    pub present: usize,
    /// Whether guard pages are told apart (Linux 6.15); else they are among the present ones.
    pub sees_guards: bool,
}

impl Validation {
    /// Whether the whole range is watched, and none of it guard pages. Absent pages are no reason against it.
    pub fn is_intact(&self) -> bool {
        self.unwatched == 0 && self.guarded == 0
    }
}

impl Watcher {
    /// Asks the kernel whether a range is still all in watched mappings, and what its pages are. Nothing is changed, read or faulted in.
    ///
    /// For the operations that have no event ([`Promise::Silent`](crate::Promise::Silent)): after code that may have done one, from
    /// time to time, or while debugging. It cannot see that a range was lost silently and then registered again, nor tell the
    /// userfaultfd of this Watcher from another of the process that also works asynchronously.
    ///
    /// # Errors
    /// [`Error::BadRange`]. [`Error::CannotValidate`]: Linux before 6.7, or a lesser mode. [`Error::Forked`], [`Error::Broken`].
    /// [`Error::System`]: /proc is not there, or no descriptor is left.
    ///
    /// # Blocking
    /// As [`settle`](Self::settle), and for the time that the kernel walks the pages: about 1 µs, and 10 µs per MiB.
    ///
    /// # Examples
    /// ```
    /// # use oarlock_memwatch::{Policy, Watcher};
    /// # let Ok(watcher) = Watcher::new() else { return };
    /// let memory = vec![1u8; 1 << 20];
    /// let region = watcher.register(memory.as_ptr() as usize, memory.len(), 7, Policy::Report).unwrap();
    /// if let Ok(found) = watcher.validate(region.range()) {
    ///     assert!(found.is_intact());
    /// }
    /// ```
    pub fn validate(&self, range: Range<usize>) -> Result<Validation, Error> {
        self.shared.validate(&range, |_, _| ())
    }

    /// Invalidates every region that overlaps a range, as if the kernel had reported it: for the operations that it does not report
    /// ([`Promise::Silent`](crate::Promise::Silent)), by the code that does them, **before** it does. After this returns, nobody copies
    /// to or from these regions any more.
    ///
    /// A region that another thread registers between this and the operation is not invalidated; call it once more afterwards if that
    /// can happen.
    ///
    /// # Errors
    /// [`Error::Forked`], [`Error::Broken`]: no region is valid.
    ///
    /// # Blocking
    /// For the time of another call, and of a [`Hold`](crate::Hold) that lives.
    ///
    /// # Examples
    /// ```
    /// # use oarlock_memwatch::{Kind, Policy, Watcher};
    /// # let Ok(watcher) = Watcher::new() else { return };
    /// # let segment = vec![1u8; 8192];
    /// # let segment = segment.as_ptr() as usize..segment.as_ptr() as usize + 8192;
    /// let region = watcher.register(segment.start, segment.len(), 7, Policy::Report).unwrap();
    /// watcher.invalidate(segment, Kind::Unmapped).unwrap();
    /// // shmdt(segment)
    /// assert!(!region.is_valid());
    /// ```
    pub fn invalidate(&self, range: Range<usize>, kind: Kind) -> Result<(), Error> {
        self.shared.invalidate(range, kind)
    }
}

impl Region {
    /// [`Watcher::validate`] of this region; what is found missing invalidates it and every other region there, as an event would:
    /// what is not watched any more with [`Kind::Unmapped`], guard pages with [`Kind::Discarded`]. Absent pages only count.
    ///
    /// # Errors
    /// As [`Watcher::validate`], and [`Error::Ended`].
    ///
    /// # Blocking
    /// As [`Watcher::validate`] and [`Watcher::invalidate`].
    pub fn validate(&self) -> Result<Validation, Error> {
        let shared = &self.validity.shared;
        let mut missing = Vec::new();
        let validation = shared.validate(&self.range, |range, kind| {
            if missing.len() <= MAX_PARTS {
                missing.push(Change { kind, range });
            }
        })?;
        if missing.len() > MAX_PARTS {
            let range = self.range.clone();
            let kind = Kind::Unmapped;
            missing = vec![Change { kind, range }];
        }
        for change in missing {
            shared.invalidate(change.range, change.kind)?;
        }
        Ok(validation)
    }
}

impl Shared {
    /// Tells `missing` about every part that is not as it was registered.
    fn validate(
        &self,
        range: &Range<usize>,
        mut missing: impl FnMut(Range<usize>, Kind),
    ) -> Result<Validation, Error> {
        let range = checked_range(range.start, range.len())?;
        let pages = whole_pages(&range);
        if self.mode < Mode::Full {
            return Err(cannot(Errno::OPNOTSUPP));
        }
        // What the kernel has reported is an event, not a finding.
        self.settle()?;
        let mut validation = Validation::default();
        let mut watched_to = pages.start;
        let result = sys::scan(self.pagemap()?, &pages, |run, page| {
            if !page.is_watched {
                return;
            }
            if watched_to < run.start {
                missing(watched_to..run.start, Kind::Unmapped);
            }
            watched_to = run.end;
            let len = run.len();
            if page.is_guard {
                validation.guarded += len;
                missing(run, Kind::Discarded);
            } else if page.is_present {
                validation.present += len;
            } else {
                validation.absent += len;
            }
        });
        validation.sees_guards = result.map_err(cannot)?;
        if watched_to < pages.end {
            missing(watched_to..pages.end, Kind::Unmapped);
        }
        let watched = validation.guarded + validation.present + validation.absent;
        validation.unwatched = pages.len() - watched;
        Ok(validation)
    }

    /// Kept open: it is this process's.
    fn pagemap(&self) -> Result<BorrowedFd<'_>, Error> {
        if let Some(pagemap) = self.pagemap.get() {
            return Ok(pagemap.as_fd());
        }
        let opened =
            sys::open_own("pagemap").map_err(|e| Error::system("open /proc/self/pagemap", e))?;
        // Another thread may have been faster.
        Ok(self.pagemap.get_or_init(|| opened).as_fd())
    }

    /// The same from wherever the program changes memory, also inside a call of this crate that allocates: then without an event, and
    /// for all regions.
    pub(crate) fn invalidate_anyhow(&self, range: Range<usize>, kind: Kind) {
        if self.check().is_ok() && self.table.is_mine() {
            self.marks.clear_all();
            self.generation.grow();
        } else {
            // Where nothing can be told any more, nothing is valid.
            let _ = self.invalidate(range, kind);
        }
    }

    /// As if the kernel had reported it.
    pub(crate) fn invalidate(&self, range: Range<usize>, kind: Kind) -> Result<(), Error> {
        let mut table = self.enter()?;
        table.counts().told += 1;
        self.announce(&mut table, |table| {
            table.apply(&Change { kind, range }, &self.generation);
        });
        self.end_holds(&mut table);
        Ok(())
    }
}

fn cannot(errno: Errno) -> Error {
    Error::CannotValidate {
        errno: errno.raw_os_error(),
    }
}

/// Parts of a region that are told apart; if there are more, all of it is meant.
const MAX_PARTS: usize = 64;
