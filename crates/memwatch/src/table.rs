//! The regions of a Watcher: who overlaps a change, what is unread. No system calls.
//!
//! Everything that [`Table::apply`] and [`Table::apply_unknown`] do allocates and frees nothing: they run in the reader.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use crate::event::{Deregistered, Invalidation, Kind, Policy};
use crate::generation::Generation;
use crate::marks::Marks;
use crate::shared::Statistics;

/// A change that the kernel reported.
#[derive(Debug, Clone)]
pub(crate) struct Change {
    pub(crate) kind: Kind,
    pub(crate) range: Range<usize>,
}

#[derive(Debug)]
pub(crate) struct Table {
    entries: Vec<Entry>,
    free: Vec<u32>,
    cookies: HashMap<u64, u32>,
    /// Regions by the size class of their length, each sorted by start.
    classes: Vec<BTreeSet<(usize, u32)>>,
    books: Books,
    next_serial: u64,
    marks: Marks,
}

/// What a notification changes beside the entry itself.
#[derive(Debug)]
struct Books {
    unread: List,
    ended: List,
    live: usize,
    counts: Statistics,
}

#[derive(Debug)]
struct Entry {
    serial: u64,
    cookie: u64,
    range: Range<usize>,
    policy: Policy,
    /// Whether the watch was widened to whole mappings.
    widened: bool,
    reported: u64,
    notified: bool,
    pending: Option<Invalidation>,
    /// The hull of what was unmapped or moved away.
    gone: Option<Range<usize>>,
    state: State,
    /// Neighbours in the list that the entry is in: `unread` while `pending` is something, `ended` in that state.
    before: u32,
    after: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Vacant,
    Live,
    /// Ended by its policy; still to be taken out of the indexes.
    Ended,
}

/// A doubly linked list through the entries.
#[derive(Debug)]
struct List {
    first: u32,
    last: u32,
}

/// What is left to do for a region that was removed.
#[derive(Debug)]
pub(crate) struct Removed {
    pub(crate) report: Deregistered,
    pub(crate) range: Range<usize>,
    pub(crate) gone: Option<Range<usize>>,
    pub(crate) widened: bool,
}

impl Table {
    pub(crate) fn new(marks: Marks) -> Self {
        Self {
            entries: Vec::new(),
            free: Vec::new(),
            cookies: HashMap::new(),
            classes: std::iter::repeat_with(BTreeSet::new)
                .take(usize::BITS as usize)
                .collect(),
            books: Books {
                unread: List::EMPTY,
                ended: List::EMPTY,
                live: 0,
                counts: Statistics::default(),
            },
            next_serial: 1,
            marks,
        }
    }

    /// How many regions exist.
    pub(crate) fn live(&self) -> usize {
        self.books.live
    }

    pub(crate) fn counts(&mut self) -> &mut Statistics {
        &mut self.books.counts
    }

    pub(crate) fn has_unread(&self) -> bool {
        self.books.unread.first != NIL
    }

    pub(crate) fn find(&self, cookie: u64) -> Option<u32> {
        let slot = *self.cookies.get(&cookie)?;
        (self.entries[slot as usize].state == State::Live).then_some(slot)
    }

    /// Enters a region that is valid from now on. The cookie is not in use, the range is not empty.
    pub(crate) fn insert(
        &mut self,
        range: Range<usize>,
        cookie: u64,
        policy: Policy,
    ) -> (u32, u64) {
        let serial = self.next_serial;
        self.next_serial += 1;
        let entry = Entry {
            serial,
            cookie,
            range: range.clone(),
            policy,
            widened: false,
            reported: 0,
            notified: false,
            pending: None,
            gone: None,
            state: State::Live,
            before: NIL,
            after: NIL,
        };
        let slot = match self.free.pop() {
            Some(slot) => {
                self.entries[slot as usize] = entry;
                slot
            }
            None => {
                self.entries.push(entry);
                // So that giving the slot back never fails half-way for want of memory.
                self.free.reserve(self.entries.len());
                self.entries.len() as u32 - 1
            }
        };
        self.cookies.insert(cookie, slot);
        self.classes[class_of(&range)].insert((range.start, slot));
        self.books.live += 1;
        self.marks.set(slot, serial);
        (slot, serial)
    }

    pub(crate) fn is_current(&self, slot: u32, serial: u64) -> bool {
        let entry = &self.entries[slot as usize];
        entry.serial == serial && entry.state == State::Live
    }

    pub(crate) fn set_widened(&mut self, slot: u32) {
        self.entries[slot as usize].widened = true;
    }

    /// Removes a live region. Its unread event is dropped.
    pub(crate) fn remove(&mut self, slot: u32) -> Removed {
        self.marks.clear(slot);
        let unread = self.take_pending(slot);
        self.release(slot, unread)
    }

    /// Removes one of the regions that ended by themselves.
    pub(crate) fn remove_ended(&mut self) -> Option<Removed> {
        let slot = self.books.ended.first;
        if slot == NIL {
            return None;
        }
        self.books.ended.remove(&mut self.entries, slot);
        Some(self.release(slot, None))
    }

    /// Removes one of the regions that were invalidated.
    pub(crate) fn remove_notified(&mut self, from: &mut u32) -> Option<Removed> {
        while let Some(entry) = self.entries.get(*from as usize) {
            let slot = *from;
            *from += 1;
            if entry.state == State::Live && entry.notified {
                return Some(self.remove(slot));
            }
        }
        None
    }

    fn release(&mut self, slot: u32, unread: Option<Invalidation>) -> Removed {
        let entry = &mut self.entries[slot as usize];
        if entry.state == State::Live {
            self.books.live -= 1;
        }
        entry.state = State::Vacant;
        self.cookies.remove(&entry.cookie);
        self.classes[class_of(&entry.range)].remove(&(entry.range.start, slot));
        self.free.push(slot);
        Removed {
            report: Deregistered {
                cookie: entry.cookie,
                reported: entry.reported,
                unread,
            },
            range: entry.range.clone(),
            gone: entry.gone.take(),
            widened: entry.widened,
        }
    }

    fn take_pending(&mut self, slot: u32) -> Option<Invalidation> {
        let pending = self.entries[slot as usize].pending.take()?;
        self.books.unread.remove(&mut self.entries, slot);
        Some(pending)
    }

    /// The oldest unread event, which counts as reported.
    pub(crate) fn next_event(&mut self) -> Option<Invalidation> {
        let slot = self.books.unread.first;
        if slot == NIL {
            return None;
        }
        self.entries[slot as usize].reported += 1;
        self.take_pending(slot)
    }

    /// Every live region that overlaps `range`, except by itself.
    pub(crate) fn overlapping(&self, range: &Range<usize>) -> Vec<Range<usize>> {
        let mut found = Vec::new();
        for (class, starts) in self.classes.iter().enumerate() {
            for &(_, slot) in starts.range(candidates(class, range)) {
                let entry = &self.entries[slot as usize];
                if entry.state == State::Live && overlap(&entry.range, range).is_some() {
                    found.push(entry.range.clone());
                }
            }
        }
        found
    }

    /// Marks and queues what a change does.
    pub(crate) fn apply(&mut self, change: &Change, generation: &Generation) {
        for (class, starts) in self.classes.iter().enumerate() {
            for &(_, slot) in starts.range(candidates(class, &change.range)) {
                let entry = &mut self.entries[slot as usize];
                if entry.state != State::Live {
                    continue;
                }
                let Some(part) = overlap(&entry.range, &change.range) else {
                    continue;
                };
                self.marks.clear(slot);
                if matches!(change.kind, Kind::Unmapped | Kind::Moved) {
                    entry.gone = Some(match entry.gone.take() {
                        Some(gone) => gone.start.min(part.start)..gone.end.max(part.end),
                        None => part.clone(),
                    });
                }
                self.books
                    .notify(&mut self.entries, slot, change.kind, Some(part), generation);
            }
        }
    }

    /// Invalidates every region: more happened than is known.
    pub(crate) fn apply_unknown(&mut self, generation: &Generation) {
        for slot in 0..self.entries.len() as u32 {
            if self.entries[slot as usize].state == State::Live {
                self.marks.clear(slot);
                let entry = &mut self.entries[slot as usize];
                // Nothing is known to be mapped still.
                entry.gone = Some(entry.range.clone());
                self.books
                    .notify(&mut self.entries, slot, Kind::Unknown, None, generation);
            }
        }
    }
}

impl Books {
    /// Queues an event of a live entry, joins it to the one that is unread, or ends the entry: what its policy says.
    fn notify(
        &mut self,
        entries: &mut [Entry],
        slot: u32,
        kind: Kind,
        part: Option<Range<usize>>,
        generation: &Generation,
    ) {
        let entry = &mut entries[slot as usize];
        entry.notified = true;
        match (&mut entry.pending, entry.policy) {
            (Some(event), _) => {
                event.kind = event.kind.max(kind);
                event.hint = join(event.hint.take(), part);
                self.counts.joined += 1;
            }
            (None, Policy::Report) => {
                entry.pending = Some(Invalidation {
                    cookie: entry.cookie,
                    kind,
                    hint: part,
                });
                self.unread.push(entries, slot);
                self.counts.queued += 1;
                generation.grow();
            }
            (None, Policy::Deregister) => {
                entry.state = State::Ended;
                self.live -= 1;
                self.ended.push(entries, slot);
                self.counts.ended += 1;
                generation.grow();
            }
        }
    }
}

impl List {
    const EMPTY: Self = Self {
        first: NIL,
        last: NIL,
    };

    fn push(&mut self, entries: &mut [Entry], slot: u32) {
        entries[slot as usize].before = self.last;
        entries[slot as usize].after = NIL;
        match self.last {
            NIL => self.first = slot,
            last => entries[last as usize].after = slot,
        }
        self.last = slot;
    }

    fn remove(&mut self, entries: &mut [Entry], slot: u32) {
        let Entry { before, after, .. } = entries[slot as usize];
        match before {
            NIL => self.first = after,
            before => entries[before as usize].after = after,
        }
        match after {
            NIL => self.last = before,
            after => entries[after as usize].before = before,
        }
    }
}

/// Lengths from 2^n up to 2^(n+1) are of class n: in each class, few regions that start before a change do not reach it.
fn class_of(range: &Range<usize>) -> usize {
    range.len().ilog2() as usize
}

/// Where regions of a class start that may overlap `range`.
fn candidates(class: usize, range: &Range<usize>) -> Range<(usize, u32)> {
    let longest = 2usize
        .checked_shl(class as u32)
        .unwrap_or(0)
        .wrapping_sub(1);
    let first = range.start.saturating_sub(longest);
    // Of an empty change, which overlaps nothing, the end may lie before.
    (first, 0)..(range.end.max(first), 0)
}

fn overlap(a: &Range<usize>, b: &Range<usize>) -> Option<Range<usize>> {
    let both = a.start.max(b.start)..a.end.min(b.end);
    (!both.is_empty()).then_some(both)
}

/// The union of two parts, if it is a range and both are known.
fn join(a: Option<Range<usize>>, b: Option<Range<usize>>) -> Option<Range<usize>> {
    let (a, b) = (a?, b?);
    (a.start <= b.end && b.start <= a.end).then(|| a.start.min(b.start)..a.end.max(b.end))
}

const NIL: u32 = u32::MAX;

#[cfg(test)]
mod tests;
