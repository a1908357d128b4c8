//! A Watcher: the channel that regions are registered with and events are read from.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use crate::capabilities::{Capabilities, Mode, unavailable};
use crate::error::Error;
use crate::event::{Deregistered, Event, Policy};
use crate::hooks;
use crate::maps;
use crate::reader;
use crate::region::{Region, Validity};
use crate::shared::{Shared, Statistics, whole_pages};
use crate::sys::{self, Slot, Userfaultfd};
use crate::table::Table;

/// How a Watcher is made: `Options { max_regions: 1024, ..Options::default() }`.
#[derive(Debug, Clone)]
pub struct Options {
    /// How many regions may exist, 1 to 2^24. Default 65,536.
    pub max_regions: usize,
    /// Ranges of more bytes stay watched when their region ends, since ending a watch takes time with the length (0.5 ms for
    /// 64 MiB). Default 1 MiB.
    pub park_above: usize,
    /// The most to make use of; for trying what a program does on an older kernel. Default [`Mode::Full`].
    pub best_mode: Mode,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            max_regions: 65_536,
            park_above: 1 << 20,
            best_mode: Mode::Full,
        }
    }
}

/// Watches ranges of this process's memory, and says when they change.
///
/// The descriptor ([`AsFd`]) can be polled: it is readable exactly while an event is unread. It is not for reading or writing.
///
/// Dropping a Watcher ends all its regions. All methods can be called from any thread; none from a signal handler.
#[derive(Debug)]
pub struct Watcher {
    pub(crate) shared: Arc<Shared>,
    /// Keeps the userfaultfd from children. Taken by drop.
    kept: Option<Slot>,
    /// Taken by drop.
    reader: Option<JoinHandle<()>>,
    stop: Arc<OwnedFd>,
    capabilities: Capabilities,
    options: Options,
    /// Mappings that a process may have.
    max_mappings: usize,
}

impl Watcher {
    /// A Watcher with the default [`Options`].
    ///
    /// # Errors
    /// See [`with`](Self::with).
    pub fn new() -> Result<Self, Error> {
        Self::with(Options::default())
    }

    /// Opens the channel, and starts its reader: a thread that takes no signals.
    ///
    /// # Errors
    /// [`Error::Unavailable`]: this process cannot watch memory. [`Error::TooManyWatchers`]: 64 exist. [`Error::System`]: the
    /// process has no descriptor, memory or thread left.
    pub fn with(options: Options) -> Result<Self, Error> {
        let options = Options {
            max_regions: options.max_regions.clamp(1, 1 << 24),
            ..options
        };
        let capabilities = Capabilities::up_to(options.best_mode)?;
        let features = capabilities.mode().features();
        let userfaultfd = Userfaultfd::open(features).map_err(unavailable)?;
        let shared = Shared::new(
            userfaultfd,
            capabilities.mode(),
            options.max_regions,
            options.park_above,
        )?;
        let shared = Arc::new(shared);
        let kept = sys::keep_from_children(shared.userfaultfd.as_fd())
            .map_err(|e| Error::system("pthread_atfork", e))?
            .ok_or(Error::TooManyWatchers { max: Slot::MAX })?;
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| Error::system("eventfd", e))?;
        let stop = Arc::new(stop);
        let reader = {
            let (shared, stop) = (Arc::clone(&shared), Arc::clone(&stop));
            sys::without_signals(|| {
                thread::Builder::new()
                    .name("memory events".into())
                    .spawn(move || reader::run(&shared, &stop))
            })
            .map_err(|e| Error::system("pthread_create", e))?
        };
        shared.wait_for_reader();
        hooks::enter(&shared);
        Ok(Self {
            shared,
            kept: Some(kept),
            reader: Some(reader),
            stop,
            capabilities,
            options,
            max_mappings: maps::max_mappings(),
        })
    }

    /// What this Watcher can and cannot see.
    pub fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    /// Registers a range for notification.
    ///
    /// Ranges need no alignment; they may overlap and repeat. What is watched are their whole pages, what is reported are changes
    /// of their bytes. A change that is under way may be reported although it concerns the memory that was there before.
    ///
    /// The whole range has to stay mapped during the call. A hole is refused; but a part that another thread unmaps and maps again
    /// meanwhile may be left unwatched, and only [`Region::validate`] tells.
    ///
    /// For a registration with a device: first this, then the device, then [`settle`](Self::settle) and
    /// [`Region::is_valid`]; only then may others use it.
    ///
    /// # Errors
    /// [`Error::BadRange`], [`Error::NotMapped`], [`Error::NotWatchable`], [`Error::Conflict`], [`Error::OutOfMappings`]: the
    /// range. [`Error::CookieInUse`], [`Error::TooManyRegions`]. [`Error::Forked`], [`Error::Broken`].
    ///
    /// # Blocking
    /// For the time of another call, and of a change of watched memory that is under way.
    #[doc(alias = "UMMUNOTIFY_REGISTER_REGION")]
    pub fn register(
        &self,
        start: usize,
        len: usize,
        cookie: u64,
        policy: Policy,
    ) -> Result<Region, Error> {
        // Old changes of this address are out of the way, as far as anyone can know.
        self.shared.settle()?;
        self.register_unsettled(start, len, cookie, policy)
    }

    /// The same for who settles afterwards, and tries again if the region is invalid: it may be for an old change, of what was there before.
    pub(crate) fn register_unsettled(
        &self,
        start: usize,
        len: usize,
        cookie: u64,
        policy: Policy,
    ) -> Result<Region, Error> {
        let range = checked_range(start, len)?;
        let pages = whole_pages(&range);
        let mut table = self.shared.enter()?;
        self.shared.sweep(&mut table);
        if table.find(cookie).is_some() {
            return Err(Error::CookieInUse { cookie });
        }
        if table.live() >= self.options.max_regions {
            return Err(Error::TooManyRegions {
                max: self.options.max_regions,
            });
        }
        // Entered first: from the moment that the kernel watches, a change finds the region.
        let (slot, serial) = table.insert(range.clone(), cookie, policy);
        let region = Region {
            validity: Validity {
                shared: Arc::clone(&self.shared),
                marks: self.shared.marks.clone(),
                slot,
                serial,
            },
            range,
            cookie,
            open: true,
        };
        let watched = self.watch(&mut table, slot, &pages);
        drop(table);
        // On any error the region is dropped, with the lock free.
        watched.map_err(|errno| refusal(errno, start, len, &pages))?;
        // The kernel skips what is not mapped.
        if !sys::is_mapped(&pages) {
            return Err(Error::NotMapped { start, len });
        }
        Ok(region)
    }

    /// Has the kernel watch the pages; or the whole mappings that they are in, if watching them alone would cost too many.
    fn watch(&self, table: &mut Table, slot: u32, pages: &Range<usize>) -> Result<(), Errno> {
        // A region in the middle of a mapping makes it three.
        if table.live() * 2 <= self.max_mappings / 4 {
            match self.shared.userfaultfd.register(pages) {
                Err(Errno::NOMEM) => self.shared.widening.store(true, Ordering::Relaxed),
                // Of huge pages, only whole ones.
                Err(Errno::INVAL) => {}
                other => return other,
            }
        } else {
            self.shared.widening.store(true, Ordering::Relaxed);
        }
        let Some(whole) = maps::surroundings(pages) else {
            return Err(Errno::INVAL);
        };
        self.shared.userfaultfd.register(&whole)?;
        table.set_widened(slot);
        table.counts().widened += 1;
        Ok(())
    }

    /// Ends the watch of a region by its cookie; see [`Region::deregister`].
    ///
    /// # Errors
    /// [`Error::UnknownCookie`]. [`Error::Forked`], [`Error::Broken`].
    ///
    /// # Blocking
    /// For the time of another call.
    #[doc(alias = "UMMUNOTIFY_UNREGISTER_REGION")]
    pub fn deregister(&self, cookie: u64) -> Result<u64, Error> {
        let mut table = self.shared.enter()?;
        let slot = table.find(cookie).ok_or(Error::UnknownCookie { cookie })?;
        Ok(self.shared.remove(&mut table, slot).reported)
    }

    /// Ends the watch of every region that was invalidated, whether its event was read or not, and says which.
    ///
    /// # Errors
    /// [`Error::Forked`], [`Error::Broken`].
    ///
    /// # Blocking
    /// As [`settle`](Self::settle).
    pub fn deregister_notified(&self) -> Result<Vec<Deregistered>, Error> {
        self.shared.settle()?;
        let mut table = self.shared.enter()?;
        self.shared.sweep(&mut table);
        let had_unread = table.has_unread();
        let mut ended = Vec::new();
        let mut next = 0;
        while let Some(removed) = table.remove_notified(&mut next) {
            self.shared.unwatch(&mut table, &removed);
            ended.push(removed.report);
        }
        self.shared.signal(had_unread, &table);
        Ok(ended)
    }

    /// Appends up to `max` events in the order in which they came, and returns how many invalidations are among them. If no
    /// event is unread after that, an [`Event::Last`] follows.
    ///
    /// The event of a change is among them if the call that made it returned before this one began, unless another thread took it.
    ///
    /// # Errors
    /// [`Error::Forked`], [`Error::Broken`]. Nothing is appended.
    ///
    /// # Blocking
    /// As [`settle`](Self::settle); never for an event to come.
    pub fn read_events(&self, into: &mut Vec<Event>, max: usize) -> Result<usize, Error> {
        self.shared.settle()?;
        let mut table = self.shared.enter()?;
        let had_unread = table.has_unread();
        let mut count = 0;
        while count < max
            && let Some(event) = table.next_event()
        {
            into.push(Event::Invalidated(event));
            count += 1;
        }
        if !table.has_unread() {
            into.push(Event::Last {
                generation: self.shared.generation.get(),
            });
        }
        self.shared.signal(had_unread, &table);
        Ok(count)
    }

    /// Returns when every change is marked whose call returned, or whose address was given to somebody else, before this began.
    ///
    /// [`Validity::is_valid`] right afterwards is the strict answer, if [`Capabilities::is_strict`] says so.
    ///
    /// # Errors
    /// [`Error::Forked`], [`Error::Broken`]: no region is valid.
    ///
    /// # Blocking
    /// One system call if nothing is under way; else until the kernel's events are read and marked, by this thread if need be.
    #[inline]
    pub fn settle(&self) -> Result<(), Error> {
        self.shared.settle()
    }

    /// An event descriptor that becomes readable when a region is ended by [`Policy::Deregister`]: reading its eight bytes resets it,
    /// and does not block. For who has something of a region to release, and does not want to look at the generation.
    pub fn ended(&self) -> BorrowedFd<'_> {
        self.shared.policy_ended.as_fd()
    }

    /// The generation: grows with every event queued, and with every region that its policy ended.
    pub fn generation(&self) -> u64 {
        self.shared.generation.get()
    }

    /// A descriptor of the generation page, to map or to send to another process: [`GenerationPage`](crate::GenerationPage).
    ///
    /// # Errors
    /// [`Error::System`]: no descriptor is left.
    pub fn generation_page(&self) -> Result<OwnedFd, Error> {
        self.shared
            .generation
            .file()
            .try_clone_to_owned()
            .map_err(|e| Error::system("dup", e))
    }

    /// How many regions exist.
    ///
    /// # Errors
    /// [`Error::Forked`], [`Error::Broken`].
    pub fn regions(&self) -> Result<usize, Error> {
        Ok(self.shared.enter()?.live())
    }

    /// Counts since the Watcher was made.
    ///
    /// # Errors
    /// [`Error::Forked`], [`Error::Broken`].
    pub fn statistics(&self) -> Result<Statistics, Error> {
        Ok(Statistics {
            holds_given_up: self.shared.holds.given_up(),
            ..*self.shared.enter()?.counts()
        })
    }
}

impl AsFd for Watcher {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.ready.as_fd()
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        if self.shared.marks.is_forked() {
            // The thread is not in this process, and what has their places now is not ours. What the thread shares with us stays, too:
            // the table may have been changed at the moment of the fork, and must not be walked, not even to free it.
            std::mem::forget((self.reader.take(), self.kept.take()));
            return;
        }
        hooks::leave(&self.shared);
        self.shared.end();
        // While the reader still reads: what this allocates and frees may be watched. Closing the descriptor would release the
        // mappings, too, but not if a child forked behind the C library's back still has a copy.
        self.shared.unwatch_everything();
        // A counter of ours cannot be full.
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        // It never panics; if it did, there would be nobody to tell.
        let _ = self.reader.take().map(JoinHandle::join);
        // The number stays ours as long as a region or its validity is left.
        self.kept = None;
    }
}

pub(crate) fn checked_range(start: usize, len: usize) -> Result<Range<usize>, Error> {
    match start.checked_add(len) {
        Some(end) if len > 0 && end <= usize::MAX - sys::page_size() => Ok(start..end),
        _ => Err(Error::BadRange { start, len }),
    }
}

/// Why the kernel does not watch a range.
fn refusal(errno: Errno, start: usize, len: usize, pages: &Range<usize>) -> Error {
    match errno {
        Errno::BUSY => Error::Conflict { start, len },
        Errno::NOMEM => Error::OutOfMappings { start, len },
        Errno::PERM => Error::NotWatchable { start, len },
        Errno::INVAL if sys::is_mapped(pages) => Error::NotWatchable { start, len },
        Errno::INVAL => Error::NotMapped { start, len },
        other => Error::system("ioctl UFFDIO_REGISTER", other),
    }
}
