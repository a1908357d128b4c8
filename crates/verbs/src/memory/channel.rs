//! The channel of a context by which the program learns that memory has changed.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use oarlock_memwatch as memwatch;
use oarlock_memwatch::{Capabilities, Deregistered, Event, Options, Policy, Statistics, Watcher};
use oarlock_port::fork;
use oarlock_port::thread::spawn_without_signals;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use super::notified::Slot;
use crate::context::Context;
use crate::error::Error;

/// Tells a program which of its registered memory has changed: the events of the [`NotifiedRegion`](super::NotifiedRegion)s of one
/// context.
///
/// A context has one at a time, and it exists before its first region. The descriptor ([`AsFd`]) can be polled: it is readable
/// exactly while an event is unread. It is not for reading or writing. Clones are the same channel; the last one to go, and the
/// last region, end it.
///
/// A range of memory can be watched by one channel or cache of the process only.
#[derive(Clone, Debug)]
pub struct MemoryChannel {
    inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    context: Context,
    watcher: Watcher,
    regions: Arc<Regions>,
    /// Started with the first region that needs it.
    sweeper: Mutex<Option<Sweeper>>,
    fork_generation: u32,
}

/// The regions that have not ended, by cookie; of those that end by themselves also some that have.
///
/// The lock comes before all of the device's and the Watcher's. No region is ended with it held.
#[derive(Debug, Default)]
struct Regions {
    by_cookie: Mutex<HashMap<u64, Arc<Slot>>>,
}

impl Regions {
    /// Ends those of the device that have ended by their policy; how many.
    fn forget_ended(&self) -> usize {
        let has_ended = |slot: &Arc<Slot>| slot.policy == Policy::Deregister && !slot.is_valid();
        let ended: Vec<_> = {
            let mut regions = lock(&self.by_cookie);
            regions.extract_if(|_, slot| has_ended(slot)).collect()
        };
        for (_, slot) in &ended {
            slot.end();
        }
        ended.len()
    }
}

/// The thread that frees what has ended by its policy: not the one that marks, for which every thread waits that unmaps.
#[derive(Debug)]
struct Sweeper {
    stop: Arc<OwnedFd>,
}

impl Sweeper {
    fn start(watcher: &Watcher, regions: &Arc<Regions>) -> Result<Self, Error> {
        let system = |source| Error::System {
            what: "start the thread that frees memory regions",
            source,
        };
        let ended = watcher.ended().try_clone_to_owned().map_err(system)?;
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let stop = Arc::new(stop.map_err(|error| system(error.into()))?);
        let (regions, stopped) = (Arc::clone(regions), Arc::clone(&stop));
        spawn_without_signals("memory regions", move || sweep(&regions, &ended, &stopped))
            .map_err(system)?;
        Ok(Self { stop })
    }
}

impl Drop for Sweeper {
    fn drop(&mut self) {
        // A counter of ours cannot be full.
        let _ = rustix::io::write(&*self.stop, &1_u64.to_ne_bytes());
    }
}

/// Frees whenever `ended` tells of it, until `stop` does.
fn sweep(regions: &Regions, ended: &OwnedFd, stop: &OwnedFd) {
    loop {
        let mut fds = [
            PollFd::new(ended, PollFlags::IN),
            PollFd::new(stop, PollFlags::IN),
        ];
        if poll(&mut fds, None).is_err() {
            // Only a shortage of kernel memory, or a debugger: the next round may do better, but not at once.
            std::thread::sleep(PAUSE);
        }
        if !fds[1].revents().is_empty() {
            return;
        }
        // Before looking: what ends afterwards is told again.
        let _ = rustix::io::read(ended, &mut [0; 8]);
        regions.forget_ended();
    }
}

impl MemoryChannel {
    /// The channel of `context`, with the default options.
    ///
    /// # Errors
    /// `MemoryChannelExists`. `Memory`: this process cannot watch memory, and says why
    /// ([`Unavailable`](oarlock_memwatch::Error::Unavailable)); no descriptor or thread is left.
    #[doc(alias = "UMMUNOTIFY_EXCHANGE_FEATURES")]
    pub fn new(context: &Context) -> Result<Self, Error> {
        Self::with(context, Options::default())
    }

    /// As [`new`](Self::new), with options of the Watcher inside.
    ///
    /// # Errors
    /// As there.
    pub fn with(context: &Context, options: Options) -> Result<Self, Error> {
        let mut place = lock(context.memory_channel());
        if place.strong_count() > 0 {
            return Err(Error::MemoryChannelExists);
        }
        let inner = Arc::new(Inner {
            context: context.clone(),
            watcher: Watcher::with(options)?,
            regions: Arc::default(),
            sweeper: Mutex::new(None),
            fork_generation: fork::generation(),
        });
        *place = Arc::downgrade(&inner);
        Ok(Self { inner })
    }

    /// The context it belongs to.
    pub fn context(&self) -> &Context {
        &self.inner.context
    }

    /// What it can and cannot see.
    pub fn capabilities(&self) -> Capabilities {
        self.inner.watcher.capabilities()
    }

    /// Appends up to `max` events, in the order in which they came, and returns how many invalidations are among them. If no event is
    /// unread after that, an [`Event::Last`] follows.
    ///
    /// The event of a change is among them if the call that made it returned before this one began, unless another thread took it.
    ///
    /// # Errors
    /// `Memory`: this is a forked child, or a thread died within a call. Nothing is appended.
    ///
    /// # Blocking
    /// Until changes that are under way are known; never for an event to come.
    pub fn read_events(&self, into: &mut Vec<Event>, max: usize) -> Result<usize, Error> {
        Ok(self.inner.watcher.read_events(into, max)?)
    }

    /// Deregisters every region that was invalidated, whether its event was read or not, also if windows are bound to it, and
    /// says which. Their handles name nothing any more.
    ///
    /// # Errors
    /// As [`read_events`](Self::read_events).
    ///
    /// # Blocking
    /// As there, and for the rest of copies of a packet.
    pub fn deregister_notified(&self) -> Result<Vec<Deregistered>, Error> {
        self.check_fork()?;
        let (reports, slots) = {
            let mut regions = lock(&self.inner.regions.by_cookie);
            let reports = self.inner.watcher.deregister_notified()?;
            let of = |report: &Deregistered| regions.remove(&report.cookie);
            let slots: Vec<_> = reports.iter().filter_map(of).collect();
            (reports, slots)
        };
        for slot in slots {
            slot.end();
        }
        self.forget_ended();
        Ok(reports)
    }

    /// Returns when every change is known whose call returned before this began.
    ///
    /// # Errors
    /// As [`read_events`](Self::read_events): no region is valid.
    ///
    /// # Blocking
    /// As there; one system call if nothing is under way.
    pub fn settle(&self) -> Result<(), Error> {
        Ok(self.inner.watcher.settle()?)
    }

    /// Grows with every event queued, and with every region that its policy ended: while it is that of the last [`Event::Last`], there
    /// is nothing to read.
    pub fn generation(&self) -> u64 {
        self.inner.watcher.generation()
    }

    /// A descriptor of the page that has the generation, to map ([`GenerationPage`](oarlock_memwatch::GenerationPage)) or to send to
    /// another process.
    ///
    /// # Errors
    /// `Memory`: no descriptor is left.
    pub fn generation_page(&self) -> Result<OwnedFd, Error> {
        Ok(self.inner.watcher.generation_page()?)
    }

    /// What it has counted.
    ///
    /// # Errors
    /// As [`read_events`](Self::read_events).
    pub fn statistics(&self) -> Result<Statistics, Error> {
        Ok(self.inner.watcher.statistics()?)
    }

    /// How many regions are watched.
    ///
    /// # Errors
    /// As [`read_events`](Self::read_events).
    pub fn regions(&self) -> Result<usize, Error> {
        Ok(self.inner.watcher.regions()?)
    }

    /// Has a range watched, and enters it.
    pub(super) fn watch(
        &self,
        (addr, len): (usize, usize),
        cookie: u64,
        policy: Policy,
    ) -> Result<Arc<Slot>, Error> {
        self.check_fork()?;
        let Inner {
            watcher, regions, ..
        } = &*self.inner;
        if policy == Policy::Deregister {
            self.start_sweeper()?;
        }
        let (slot, before) = {
            let mut regions = lock(&regions.by_cookie);
            let watch = watcher.register(addr, len, cookie, policy)?;
            let slot = Arc::new(Slot::new(watch, policy));
            let before = regions.insert(cookie, Arc::clone(&slot));
            (slot, before)
        };
        // One that has ended by its policy, or is being deregistered.
        if let Some(before) = before {
            before.end();
        }
        Ok(slot)
    }

    fn start_sweeper(&self) -> Result<(), Error> {
        let mut sweeper = lock(&self.inner.sweeper);
        if sweeper.is_none() {
            *sweeper = Some(Sweeper::start(&self.inner.watcher, &self.inner.regions)?);
        }
        Ok(())
    }

    /// To be asked before anything is locked: in a child, threads that it does not have may hold the locks for ever.
    pub(super) fn check_fork(&self) -> Result<(), memwatch::Error> {
        if fork::generation() == self.inner.fork_generation {
            Ok(())
        } else {
            Err(memwatch::Error::Forked)
        }
    }

    /// Ends a region.
    pub(super) fn forget(&self, slot: &Arc<Slot>) {
        if self.check_fork().is_err() {
            // Nothing is registered here.
            return;
        }
        {
            let mut regions = lock(&self.inner.regions.by_cookie);
            let has_it = |known: &Arc<Slot>| Arc::ptr_eq(known, slot);
            if regions.get(&slot.cookie).is_some_and(has_it) {
                regions.remove(&slot.cookie);
            }
        }
        slot.end();
    }

    /// Frees what has ended by its policy; how many regions.
    pub(super) fn forget_ended(&self) -> usize {
        self.inner.regions.forget_ended()
    }
}

impl AsFd for MemoryChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.watcher.as_fd()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if fork::generation() != self.fork_generation {
            // The thread is the parent's, and so is what it sleeps on.
            std::mem::forget(self.sweeper.get_mut().map_or(None, Option::take));
        }
    }
}

const PAUSE: Duration = Duration::from_millis(1);

/// Nobody leaves what it protects half done.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
