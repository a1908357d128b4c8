//! What a Watcher, its regions and its reader have in common, and the protocol that closes the ordering hazard.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use rustix::thread::{Timespec, nanosleep};

use crate::capabilities::Mode;
use crate::error::Error;
use crate::event::{Deregistered, Kind};
use crate::generation::Generation;
use crate::hold::Holds;
use crate::lock::{Guard, Lock};
use crate::maps;
use crate::marks::Marks;
use crate::sys::{Message, Report, Userfaultfd, page_size};
use crate::table::{Change, Removed, Table};

/// Counts since the Watcher was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Statistics {
    /// Changes that the kernel reported, of registered memory or of memory that is still watched.
    pub changes: u64,
    /// Changes that the program told: [`Watcher::invalidate`](crate::Watcher::invalidate), and what
    /// [`Region::validate`](crate::Region::validate) found.
    pub told: u64,
    /// Events queued.
    pub queued: u64,
    /// Changes that joined an unread event.
    pub joined: u64,
    /// Regions that ended by [`Policy::Deregister`](crate::Policy::Deregister).
    pub ended: u64,
    /// Times that a thread that asked read the kernel's events itself.
    pub helped: u64,
    /// Times that more was reported than could be kept, so that all regions were invalidated.
    pub overflows: u64,
    /// Holds that were not waited for any longer: [`Validity::hold`](crate::Validity::hold). Each time, all regions were invalidated.
    pub holds_given_up: u64,
    /// Registrations that watch whole mappings, for want of mappings or because of their page size.
    pub widened: u64,
}

#[derive(Debug)]
pub(crate) struct Shared {
    /// Of all Watchers of this process; never 0.
    pub(crate) number: u64,
    /// The kernel's end. After the Watcher has ended, a descriptor of something else.
    pub(crate) userfaultfd: Userfaultfd,
    pub(crate) mode: Mode,
    /// Opened when it is first asked.
    pub(crate) pagemap: OnceLock<OwnedFd>,
    pub(crate) table: Lock<Table>,
    pub(crate) marks: Marks,
    pub(crate) generation: Generation,
    /// Readable exactly while an event is unread.
    pub(crate) ready: OwnedFd,
    /// Written to when a region ends by its policy.
    pub(crate) policy_ended: OwnedFd,
    /// The reader has, or may be about to have, an event in hand that is not marked yet.
    pub(crate) reading: Busy,
    /// A thread that holds the lock has one, or waits for holds.
    helping: Busy,
    /// Who must be waited for before events are read.
    pub(crate) holds: Holds,
    /// The reader runs: what starting a thread allocates and frees is over.
    pub(crate) started: AtomicBool,
    ended: AtomicBool,
    given_up: AtomicBool,
    /// Whether a broken Watcher has let go of the memory.
    let_go: AtomicBool,
    letting_go: Lock<()>,
    /// Set once whole mappings are watched to save mappings: from then on, nothing is cut out of them again.
    pub(crate) widening: AtomicBool,
    park_above: usize,
}

impl Shared {
    pub(crate) fn new(
        userfaultfd: Userfaultfd,
        mode: Mode,
        max_regions: usize,
        park_above: usize,
    ) -> Result<Self, Error> {
        let marks = Marks::new(max_regions).map_err(|e| Error::system("mmap", e))?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Ok(Self {
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            userfaultfd,
            mode,
            pagemap: OnceLock::new(),
            table: Lock::new(Table::new(marks.clone())),
            marks,
            generation: Generation::new()?,
            ready: eventfd(0, flags).map_err(|e| Error::system("eventfd", e))?,
            policy_ended: eventfd(0, flags).map_err(|e| Error::system("eventfd", e))?,
            reading: Busy::new(),
            helping: Busy::new(),
            holds: Holds::new(),
            started: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            given_up: AtomicBool::new(false),
            let_go: AtomicBool::new(false),
            letting_go: Lock::new(()),
            widening: AtomicBool::new(false),
            park_above,
        })
    }

    /// Returns when the reader runs. Until then nothing may be watched: a thread that starts frees memory.
    pub(crate) fn wait_for_reader(&self) {
        let mut patience = Patience::new();
        while !self.started.load(Ordering::Acquire) {
            patience.wait();
        }
    }

    /// Whether calls can do anything here. Not for the reader.
    pub(crate) fn check(&self) -> Result<(), Error> {
        match self.is_open() {
            true => Ok(()),
            false => Err(self.why_closed()),
        }
    }

    #[inline]
    fn is_open(&self) -> bool {
        !self.marks.is_forked() && !self.ended.load(Ordering::Acquire) && !self.table.is_lost()
    }

    #[cold]
    fn why_closed(&self) -> Error {
        if self.marks.is_forked() {
            return Error::Forked;
        }
        if self.ended.load(Ordering::Acquire) {
            return Error::Ended;
        }
        self.broken()
    }

    /// The table is lost: this Watcher is to be nobody's obstacle. Returns when nothing is watched any more, so that another can take
    /// its place.
    fn broken(&self) -> Error {
        self.give_up();
        if !self.let_go.load(Ordering::Acquire) {
            // If the thread that is at it dies, too, this one does it again.
            let _alone = self.letting_go.lock();
            if !self.let_go.load(Ordering::Acquire) {
                self.unwatch_everything();
                self.let_go.store(true, Ordering::Release);
            }
        }
        Error::Broken
    }

    /// Takes the lock, for a call of the program.
    pub(crate) fn enter(&self) -> Result<Guard<'_, Table>, Error> {
        self.check()?;
        let Ok(table) = self.table.lock() else {
            return Err(self.broken());
        };
        // It may have ended meanwhile.
        self.check()?;
        Ok(table)
    }

    /// Takes the lock if it is free, for the reader. `Err`: its owner has died.
    pub(crate) fn try_enter(&self) -> Result<Option<Guard<'_, Table>>, Error> {
        match self.table.try_lock() {
            Some(table) => Ok(Some(table)),
            None => match self.table.check_owner() {
                Ok(()) => Ok(None),
                Err(_) => {
                    self.give_up();
                    Err(Error::Broken)
                }
            },
        }
    }

    /// The table is lost: nothing is valid any more.
    fn give_up(&self) {
        if !self.given_up.swap(true, Ordering::SeqCst) {
            self.marks.clear_all();
            self.generation.grow();
        }
    }

    /// From now on calls are refused and nothing is valid.
    pub(crate) fn end(&self) {
        // Whoever holds the lock may still set a mark; nobody enters afterwards.
        let table = self.table.lock();
        self.ended.store(true, Ordering::SeqCst);
        self.marks.clear_all();
        self.generation.grow();
        drop(table);
    }

    /// Ends the kernel's watch of everything, also of what was moved or parked. Every mark is cleared, and the reader runs: what this
    /// allocates and frees may be watched.
    pub(crate) fn unwatch_everything(&self) {
        if !self.holds.wait() {
            self.holds.give_up();
        }
        for mapping in maps::mappings() {
            // Mappings that are not watched, or cannot be, say so: nothing to do.
            let _ = self.userfaultfd.unregister(&mapping.range);
        }
        // Callers that had begun before are let go by the reader.
        for _ in 0..RELEASE_TRIES {
            if self.userfaultfd.is_changing() != Ok(true) {
                break;
            }
            pause(Duration::from_millis(1));
        }
    }

    /// Returns when every change that was complete, or whose address was reused, before the call is marked and queued.
    #[inline]
    pub(crate) fn settle(&self) -> Result<(), Error> {
        // The order matters. A change that concerns us has raised the kernel's count; the count is zero only after its event was
        // read, and who reads is busy from before the read until it is marked.
        if self.is_open()
            && self.userfaultfd.is_changing() == Ok(false)
            && !self.is_reading()
            // The table may have been lost while we looked.
            && self.is_open()
        {
            return Ok(());
        }
        self.settle_slowly()
    }

    #[cold]
    #[inline(never)]
    fn settle_slowly(&self) -> Result<(), Error> {
        let mut patience = Patience::new();
        self.check()?;
        // As above.
        loop {
            match self.userfaultfd.is_changing() {
                Ok(false) => break,
                Ok(true) => {
                    if self.help()? == 0 {
                        // Read by somebody else, or the caller has not woken up yet.
                        patience.wait();
                    }
                }
                Err(_) => return Err(self.blind()),
            }
        }
        self.wait_for_marks()
    }

    /// The kernel does not answer any more: nothing is known of the memory.
    fn blind(&self) -> Error {
        // Nobody is about to set a mark while the lock is held.
        let table = self.table.lock();
        if let Err(closed) = self.check() {
            drop(table);
            return closed;
        }
        self.table.lose();
        self.give_up();
        drop(table);
        self.broken()
    }

    /// Whether the Watcher has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Whether somebody has read events that are not marked yet, or is about to.
    #[inline]
    pub(crate) fn is_reading(&self) -> bool {
        self.reading.turn().is_some() || self.helping.turn().is_some()
    }

    /// Returns when what had been read before is marked.
    pub(crate) fn wait_for_marks(&self) -> Result<(), Error> {
        if let Some(turn) = self.helping.turn() {
            // Helpers hold the lock, which notices their death.
            drop(self.enter()?);
            debug_assert!(
                self.helping.is_over(turn),
                "helping ends before the lock is released"
            );
        }
        if let Some(turn) = self.reading.turn() {
            let mut patience = Patience::new();
            while !self.reading.is_over(turn) {
                self.check()?;
                patience.wait();
            }
        }
        // The table may have been lost while we looked.
        self.check()
    }

    /// Reads and marks what is there; returns how many messages there were.
    fn help(&self) -> Result<usize, Error> {
        let mut table = self.enter()?;
        let mut messages = [Message::default(); 16];
        self.helping.begin();
        self.end_holds_before_reading(&mut table);
        let read = self.userfaultfd.read(&mut messages);
        if let Ok(n @ 1..) = read {
            table.counts().helped += 1;
            self.apply(&mut table, &messages[..n]);
        }
        self.helping.end();
        read.map_err(|e| Error::system("read", e))
    }

    /// Marks and queues what messages report. Allocates nothing.
    pub(crate) fn apply(&self, table: &mut Table, messages: &[Message]) {
        self.announce(table, |table| self.apply_each(table, messages));
    }

    fn apply_each(&self, table: &mut Table, messages: &[Message]) {
        for message in messages {
            let (kind, range) = match message.report() {
                Report::Remap { from, len } => (Kind::Moved, from..from.saturating_add(len)),
                Report::Remove { start, end } => (Kind::Discarded, start..end),
                Report::Unmap { start, end } => (Kind::Unmapped, start..end),
                Report::Other => continue,
            };
            table.counts().changes += 1;
            table.apply(&Change { kind, range }, &self.generation);
        }
    }

    /// Invalidates everything: messages were lost. Allocates nothing.
    pub(crate) fn apply_overflow(&self, table: &mut Table) {
        self.announce(table, |table| {
            table.counts().overflows += 1;
            table.apply_unknown(&self.generation);
        });
    }

    /// Has the descriptors say what a change of the table does.
    pub(crate) fn announce(&self, table: &mut Table, change: impl FnOnce(&mut Table)) {
        let (had_unread, ended) = (table.has_unread(), table.counts().ended);
        change(table);
        self.signal(had_unread, table);
        if table.counts().ended > ended {
            // It does not block, and if its counter is full, it is readable.
            let _ = rustix::io::write(&self.policy_ended, &1u64.to_ne_bytes());
        }
    }

    /// Returns when no hold lives any more that began before; as the last resort, with everything invalid. Holds that others want
    /// meanwhile wait, as for a read: else there could always be one.
    pub(crate) fn end_holds(&self, table: &mut Table) {
        self.helping.begin();
        self.end_holds_before_reading(table);
        self.helping.end();
    }

    /// The same for who has said that it reads.
    fn end_holds_before_reading(&self, table: &mut Table) {
        if !self.holds.wait() {
            self.apply_overflow(table);
            self.holds.give_up();
        }
    }

    /// The same for the reader, without the lock. False: everything is invalid, and [`apply_overflow`](Self::apply_overflow) has to
    /// follow. Allocates nothing.
    pub(crate) fn wait_for_holds(&self) -> bool {
        let over = self.holds.wait();
        if !over {
            self.marks.clear_all();
            self.holds.give_up();
        }
        over
    }

    /// Keeps `ready` in step with the queue.
    pub(crate) fn signal(&self, had_unread: bool, table: &Table) {
        // The descriptor is ours, does not block and counts to 2^64: neither call can fail.
        let _ = match (had_unread, table.has_unread()) {
            (false, true) => rustix::io::write(&self.ready, &1u64.to_ne_bytes()),
            (true, false) => rustix::io::read(&self.ready, &mut [0; 8]),
            _ => return,
        };
    }

    /// Deregisters a live region.
    pub(crate) fn remove(&self, table: &mut Table, slot: u32) -> Deregistered {
        let had_unread = table.has_unread();
        let removed = table.remove(slot);
        self.signal(had_unread, table);
        self.unwatch(table, &removed);
        removed.report
    }

    /// Takes out the regions that ended by themselves.
    pub(crate) fn sweep(&self, table: &mut Table) {
        while let Some(removed) = table.remove_ended() {
            self.unwatch(table, &removed);
        }
    }

    /// Ends the kernel's watch of what no other region needs.
    pub(crate) fn unwatch(&self, table: &mut Table, removed: &Removed) {
        let pages = whole_pages(&removed.range);
        let parked = removed.widened || pages.len() > self.park_above;
        if parked || self.widening.load(Ordering::Relaxed) {
            return;
        }
        // Calls that change this memory do not wait any more: who copies under a hold has to be through.
        self.end_holds(table);
        // What was unmapped may be another userfaultfd's by now, and older kernels let anyone end its watch.
        let mut kept: Vec<_> = removed.gone.iter().map(whole_pages).collect();
        kept.extend(table.overlapping(&pages).iter().map(whole_pages));
        kept.sort_by_key(|range| range.start);
        // Nothing may be mapped there any more, or no mapping left to split: it stays watched, which only costs time.
        let unregister = |range: Range<usize>| {
            let _ = self.userfaultfd.unregister(&range);
        };
        let mut from = pages.start;
        for range in kept {
            if from < range.start {
                unregister(from..range.start.min(pages.end));
            }
            from = from.max(range.end);
        }
        if from < pages.end {
            unregister(from..pages.end);
        }
    }
}

/// The whole pages that a range touches.
pub(crate) fn whole_pages(range: &Range<usize>) -> Range<usize> {
    let page = page_size();
    let end = range.end.checked_next_multiple_of(page);
    range.start / page * page..end.unwrap_or(usize::MAX / page * page)
}

/// Milliseconds that callers are given to be let go; the reader lets them go in microseconds.
const RELEASE_TRIES: u32 = 1000;

/// Says whether somebody has read events that are not marked yet. Odd while so.
#[derive(Debug)]
pub(crate) struct Busy(AtomicU64);

impl Busy {
    const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Before the read.
    pub(crate) fn begin(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    /// After the marks.
    pub(crate) fn end(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    /// The turn that is under way, if any.
    #[inline]
    fn turn(&self) -> Option<u64> {
        let turn = self.0.load(Ordering::SeqCst);
        (turn % 2 == 1).then_some(turn)
    }

    fn is_over(&self, turn: u64) -> bool {
        self.0.load(Ordering::SeqCst) != turn
    }
}

/// Sleeps, for about this long. Not through the C library, where a thread could be cancelled at this point.
pub(crate) fn pause(duration: Duration) {
    let request = Timespec {
        tv_sec: 0,
        tv_nsec: duration.subsec_nanos().into(),
    };
    // Cut short by a signal: callers look again anyway.
    let _ = nanosleep(&request);
}

/// Waiting for another thread that needs the processor for microseconds.
pub(crate) struct Patience(u32);

impl Patience {
    pub(crate) fn new() -> Self {
        Self(0)
    }

    pub(crate) fn wait(&mut self) {
        self.0 += 1;
        match self.0 {
            ..50 => std::thread::yield_now(),
            _ => pause(Duration::from_micros(20)),
        }
    }
}
