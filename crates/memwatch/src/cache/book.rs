//! What a cache decides with its lock held: what is merged, what is evicted, what is published.
//!
//! Nothing is registered or deregistered here: what is to go is handed out as [`Claimed`], for a caller that has let go of the lock.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::Inner;
use super::handle::Entry;
use super::index::Writer;
use super::registrar::Registrar;
use super::slots::{Claimed, Idle, Pinned, Reserved, Slots};
use crate::region::Validity;
use crate::watcher::Watcher;

/// What the lock guards.
pub(super) struct Book {
    writer: Writer,
    /// The slots that are live and in the index, in no order; and for each slot its place here.
    live: Vec<u32>,
    places: Vec<usize>,
    /// Those that were used least recently, the least last, with when that was.
    victims: Vec<(u64, u32)>,
    /// For each slot its last use that a sweep has seen, and when that was seen first.
    idle: Vec<(u64, Instant)>,
    pub(super) swept: Instant,
    /// Where in `live` to look next for what is invalid, and how far to go.
    hand: usize,
    left: usize,
    generation: u64,
    pub(super) watcher: Option<Arc<Watcher>>,
    /// How often another Watcher was opened.
    pub(super) reopened: u32,
}

/// What is to be registered for a lookup.
pub(super) struct Plan<'a, R: Registrar> {
    pub(super) range: Range<usize>,
    pub(super) access: R::Access,
    /// Whether that is more than the lookup asks for.
    pub(super) merged: bool,
    /// Of the registrations that cover the rest. One that is valid when the new one has been made was so all the time: its memory is
    /// what the kernel has been told to watch.
    pub(super) parts: Vec<Validity>,
    pub(super) place: Place<'a, R>,
    pub(super) watcher: Option<Arc<Watcher>>,
}

/// Where a registration goes.
pub(super) enum Place<'a, R: Registrar> {
    Taken(Reserved<'a, Entry<R>>),
    /// There is one when what was claimed is dropped.
    Soon,
    /// The cache is full of what is in use, or smaller than the range.
    None,
}

impl Book {
    pub(super) fn new(writer: Writer, slots: usize, watcher: Option<Arc<Watcher>>) -> Self {
        let now = Instant::now();
        Self {
            writer,
            live: Vec::with_capacity(slots),
            places: vec![0; slots],
            victims: Vec::with_capacity(slots),
            idle: vec![(0, now); slots],
            swept: now,
            hand: 0,
            left: 0,
            generation: 0,
            watcher,
            reopened: 0,
        }
    }
}

impl<R: Registrar> Inner<R> {
    /// What to register for a lookup, and where it goes: the range that it asks for, if `merge` with all registrations that this
    /// overlaps, and with neighbours that are not longer than it is by then.
    pub(super) fn plan<'a>(
        &'a self,
        book: &mut Book,
        asked: &Range<usize>,
        access: R::Access,
        merge: bool,
        claimed: &mut Vec<Claimed<'a, Entry<R>>>,
    ) -> Plan<'a, R> {
        self.look_further(book, claimed);
        let mut plan = Plan {
            range: asked.clone(),
            access,
            merged: false,
            parts: Vec::new(),
            place: Place::None,
            watcher: book.watcher.clone(),
        };
        let mut rounds = if merge { MERGE_ROUNDS } else { 0 };
        while rounds > 0 && self.merge(book, &mut plan, claimed) {
            rounds -= 1;
        }
        plan.merged = plan.range != *asked || plan.access != access;
        if plan.watcher.is_some() {
            plan.place = self.find_place(book, &plan.range, claimed);
        }
        plan
    }

    /// Takes neighbours of the plan into it; whether there were any.
    fn merge<'a>(
        &'a self,
        book: &mut Book,
        plan: &mut Plan<'a, R>,
        claimed: &mut Vec<Claimed<'a, Entry<R>>>,
    ) -> bool {
        let limit = self.options.max_merged.min(self.options.max_bytes);
        let mut grown = false;
        for slot in self.neighbours(book, &plan.range) {
            let Some(entry) = self.slots.pin(slot) else {
                continue;
            };
            if !entry.validity.is_valid() {
                drop(entry);
                self.give_up(book, slot, claimed);
                self.counts.invalidated.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            let range = entry.range();
            let hull = plan.range.start.min(range.start)..plan.range.end.max(range.end);
            let overlaps = range.start < plan.range.end && plan.range.start < range.end;
            let near = overlaps || range.len() <= plan.range.len();
            if let Some(access) = R::union(plan.access, entry.access)
                && near
                && hull.len() <= limit
            {
                if hull != plan.range {
                    grown = true;
                    plan.parts.push(entry.validity.clone());
                }
                plan.range = hull;
                plan.access = access;
            }
        }
        grown
    }

    /// The slots in the index whose ranges overlap or touch a range.
    fn neighbours(&self, book: &Book, range: &Range<usize>) -> Vec<u32> {
        let wide = range.start.saturating_sub(1)..range.end.saturating_add(1);
        let mut slots = match self.index.touching(&wide, book.live.len()) {
            Some(slots) => slots,
            None => book.live.clone(),
        };
        slots.retain(|slot| {
            let other = self.slots.range(*slot);
            other.start < wide.end && wide.start < other.end
        });
        slots.sort_unstable();
        slots.dedup();
        slots
    }

    /// Takes a place for a range, which others are evicted for.
    pub(super) fn find_place<'a>(
        &'a self,
        book: &mut Book,
        range: &Range<usize>,
        claimed: &mut Vec<Claimed<'a, Entry<R>>>,
    ) -> Place<'a, R> {
        if range.len() > self.options.max_bytes {
            return Place::None;
        }
        // Whether all that could go has been tried since the last that went.
        let mut tried = false;
        loop {
            let going: usize = claimed.iter().map(Claimed::len).sum();
            let held = self.slots.bytes() - going;
            let slots_left = self.slots.count() - self.slots.occupied() + claimed.len();
            if slots_left > 0 && held.saturating_add(range.len()) <= self.options.max_bytes {
                break;
            }
            match book.victims.pop() {
                Some((used, slot)) => tried &= !self.evict(book, slot, used, claimed),
                None if tried => return Place::None,
                None => {
                    self.refill(book);
                    tried = true;
                }
            }
        }
        if claimed.is_empty()
            && let Some(reserved) = self.slots.reserve(range.clone())
        {
            return Place::Taken(reserved);
        }
        Place::Soon
    }

    /// Gives up a slot of the victims, unless it has been used since; whether it went.
    fn evict<'a>(
        &'a self,
        book: &mut Book,
        slot: u32,
        used: u64,
        claimed: &mut Vec<Claimed<'a, Entry<R>>>,
    ) -> bool {
        let Some(entry) = self.slots.pin(slot) else {
            return false;
        };
        let valid = entry.validity.is_valid();
        drop(entry);
        if !valid {
            self.give_up(book, slot, claimed);
            self.counts.invalidated.fetch_add(1, Ordering::Relaxed);
            return true;
        }
        let evicted = self.slots.used(slot) == used && self.give_up_idle(book, slot, claimed);
        self.counts
            .evictions
            .fetch_add(u64::from(evicted), Ordering::Relaxed);
        evicted
    }

    /// Finds the next to be evicted: a sixteenth of all, so that the cost of looking at each is shared by as many evictions.
    fn refill(&self, book: &mut Book) {
        book.victims.clear();
        for &slot in &book.live {
            if self.slots.is_pinned(slot) {
                continue;
            }
            let Some(entry) = self.slots.pin(slot) else {
                continue;
            };
            let used = if entry.validity.is_valid() {
                self.slots.used(slot)
            } else {
                0
            };
            book.victims.push((used, slot));
        }
        let keep = book.live.len() / 16 + 1;
        if keep < book.victims.len() {
            book.victims.select_nth_unstable(keep);
            book.victims.truncate(keep);
        }
        book.victims.sort_unstable_by(|a, b| b.cmp(a));
    }

    /// Makes a registration the one that lookups find, instead of those that it covers; or finds another that covers it, which
    /// somebody published meanwhile. Then `entry` is still there.
    pub(super) fn publish<'a>(
        &'a self,
        book: &mut Book,
        reserved: Reserved<'a, Entry<R>>,
        entry: &mut Option<Entry<R>>,
        claimed: &mut Vec<Claimed<'a, Entry<R>>>,
    ) -> Pinned<&'a Slots<Entry<R>>, Entry<R>> {
        let access = entry.as_ref().expect("given by the caller").access;
        let range = reserved.range();
        if let Some(rival) = self.find_locked(&range, access) {
            return rival;
        }
        for slot in self.neighbours(book, &range) {
            let Some(old) = self.slots.pin(slot) else {
                continue;
            };
            let covered = self.slots.range(slot);
            let covered = range.start <= covered.start && covered.end <= range.end;
            let valid = old.validity.is_valid();
            let replaced = covered && R::covers(access, old.access);
            drop(old);
            if !valid {
                self.counts.invalidated.fetch_add(1, Ordering::Relaxed);
                self.give_up(book, slot, claimed);
            } else if replaced {
                self.counts.merged.fetch_add(1, Ordering::Relaxed);
                self.give_up(book, slot, claimed);
            }
        }
        let slot = reserved.slot();
        // Uses from now on are later than this one.
        let now = self.uses.0.fetch_add(2, Ordering::Relaxed) + 1;
        let entry = entry.take().expect("given by the caller");
        let pinned = reserved.fill(entry, now);
        if self.index.is_full(&book.writer) {
            let live = book.live.iter();
            let ranges = live.map(|slot| (self.slots.range(*slot), *slot));
            self.index.rebuild(&mut book.writer, ranges);
        }
        self.index.insert(&mut book.writer, &range, slot);
        book.places[slot as usize] = book.live.len();
        book.live.push(slot);
        book.idle[slot as usize].0 = 0;
        pinned
    }

    /// A valid registration that covers a range. With the lock held the index has all there are, and none is dropped here.
    pub(super) fn find_locked(
        &self,
        range: &Range<usize>,
        access: R::Access,
    ) -> Option<Pinned<&Slots<Entry<R>>, Entry<R>>> {
        self.index.covering(range).find_map(|slot| {
            let entry = self.slots.pin(slot)?;
            let held = entry.range();
            let serves = held.start <= range.start
                && range.end <= held.end
                && R::covers(entry.access, access)
                && entry.validity.is_valid();
            serves.then_some(entry)
        })
    }

    /// Gives up a registration whoever uses it: lookups do not find it any more.
    fn give_up<'a>(&'a self, book: &mut Book, slot: u32, claimed: &mut Vec<Claimed<'a, Entry<R>>>) {
        self.withdraw(book, slot);
        claimed.extend(self.slots.retire(slot));
    }

    /// Gives up a registration if nobody uses it.
    fn give_up_idle<'a>(
        &'a self,
        book: &mut Book,
        slot: u32,
        claimed: &mut Vec<Claimed<'a, Entry<R>>>,
    ) -> bool {
        match self.slots.retire_idle(slot) {
            Idle::Claimed(it) => {
                self.withdraw(book, slot);
                claimed.push(it);
                true
            }
            Idle::Gone => {
                self.withdraw(book, slot);
                true
            }
            Idle::InUse => false,
        }
    }

    /// Takes a live slot out of the index.
    fn withdraw(&self, book: &mut Book, slot: u32) {
        self.index
            .remove(&mut book.writer, &self.slots.range(slot), slot);
        let place = book.places[slot as usize];
        book.live.swap_remove(place);
        if let Some(moved) = book.live.get(place) {
            book.places[*moved as usize] = place;
        }
    }

    /// Gives up some of what was invalidated, a few at each lookup that misses, until all were looked at since the last change.
    fn look_further<'a>(&'a self, book: &mut Book, claimed: &mut Vec<Claimed<'a, Entry<R>>>) {
        let generation = book
            .watcher
            .as_ref()
            .map_or(0, |watcher| watcher.generation());
        if generation != book.generation {
            book.generation = generation;
            book.left = book.live.len();
        }
        let part = book.left.min(LOOK_AT);
        book.left -= part;
        for _ in 0..part {
            // From the end, so that what takes the place of one that goes has been looked at.
            let Some(hand) = book.hand.min(book.live.len()).checked_sub(1) else {
                book.hand = book.live.len();
                continue;
            };
            book.hand = hand;
            self.sweep_slot(book, book.live[hand], None, claimed);
        }
    }

    /// Gives up a slot if it is invalid, or if `now` it has not been used for too long.
    pub(super) fn sweep_slot<'a>(
        &'a self,
        book: &mut Book,
        slot: u32,
        now: Option<Instant>,
        claimed: &mut Vec<Claimed<'a, Entry<R>>>,
    ) {
        let Some(entry) = self.slots.pin(slot) else {
            return;
        };
        let valid = entry.validity.is_valid();
        drop(entry);
        if !valid {
            self.give_up(book, slot, claimed);
            self.counts.invalidated.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let (Some(now), Some(max_age)) = (now, self.options.max_age) else {
            return;
        };
        let used = self.slots.used(slot);
        let (seen, since) = &mut book.idle[slot as usize];
        if *seen != used {
            (*seen, *since) = (used, now);
        } else if now.saturating_duration_since(*since) >= max_age
            && self.give_up_idle(book, slot, claimed)
        {
            self.counts.aged.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Gives up everything.
    pub(super) fn give_up_all<'a>(
        &'a self,
        book: &mut Book,
        claimed: &mut Vec<Claimed<'a, Entry<R>>>,
    ) {
        while let Some(&slot) = book.live.last() {
            self.give_up(book, slot, claimed);
        }
    }
}

/// How often neighbours of neighbours are merged for one lookup: each time, what is merged doubles at most.
const MERGE_ROUNDS: u32 = 8;
/// How many registrations a lookup that misses looks at, beside those that it asks for.
const LOOK_AT: usize = 8;
