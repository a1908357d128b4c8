//! Values that many threads use without a lock, and that one of them ends when nobody uses them any more.
//!
//! Each slot has a state word, and each has a count of pins in every shard; a thread counts in the shard that it was given, so that
//! threads do not write to the same cache line.
//!
//! ```text
//!   FREE ── reserve, fill ──▶ LIVE ── retire ──▶ RETIRED ── whoever finds no pins ──▶ CLAIMED ── value dropped ──▶ FREE
//!                              └──────◀── recall ───┘
//!
//!   pin:    count += 1;  LIVE? yes: the value can be read until unpin.   no: unpin
//!   unpin:  count -= 1;  RETIRED? then try to claim
//!   retire: LIVE → RETIRED;            then try to claim
//!   claim:  is the count of every shard 0?  RETIRED → CLAIMED by compare-exchange
//! ```
//!
//! Why a claimed value is used by nobody: all these accesses are SeqCst, so they have one order. A pin that found LIVE counted
//! before RETIRED was stored. Whoever claims looks at the counts after that, finds 0 in each, and none of them is raised again by a
//! pin that will use the value, since it would find RETIRED. Shards are not looked at in one moment; that does not matter, since
//! a pin is taken back in the shard where it was counted.
//!
//! Why a retired value is claimed by somebody: of all pins that are taken back after RETIRED was stored, also those that never
//! found LIVE, the last in that order looks at the state and finds all counts 0; if there are none, `retire` itself does.
//! A test goes through all orders of the steps of a model.
//!
//! The word also has a generation, so that one that compares late cannot claim the slot's next value.

use std::cell::{Cell, UnsafeCell};
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ops::{Deref, Range};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use rustix::io::Errno;

use crate::sys::WipedPages;

#[cfg(test)]
mod tests;

/// A fixed number of slots for values that stand for ranges.
pub(super) struct Slots<T> {
    /// Not dropped in a forked child: what the values end is the parent's.
    slots: ManuallyDrop<Box<[Slot<T>]>>,
    /// Per slot, when it was used last.
    used: Box<[AtomicU64]>,
    /// Per shard, per slot: pins in the lower half, hits in the upper one. Memory is taken for the shards that are used.
    pins: WipedPages,
    /// From one shard's pins to the next's.
    stride: usize,
    shards: usize,
    /// Hits that were taken out of the counts, which are too small for all.
    hits: AtomicU64,
    /// A set bit is a free slot.
    free: Box<[AtomicU64]>,
    /// Where a free slot was found last.
    hand: AtomicUsize,
    occupied: AtomicUsize,
    bytes: AtomicUsize,
    /// 0 in a forked child.
    origin: WipedPages,
}

/// What a lookup reads comes first, in one cache line.
#[repr(C, align(64))]
struct Slot<T> {
    state: AtomicU64,
    start: AtomicUsize,
    end: AtomicUsize,
    value: UnsafeCell<MaybeUninit<T>>,
}

// SAFETY: a value is moved in by one thread and dropped by another, so T is Send; between, several threads have references to it,
// so T is Sync. That the two do not overlap is argued above.
unsafe impl<T: Send + Sync> Sync for Slots<T> {}

impl<T> Slots<T> {
    pub(super) fn new(count: usize) -> Result<Self, Errno> {
        let origin = WipedPages::new(1)?;
        origin.words()[0].store(1, Ordering::Relaxed);
        let shards = shard_count();
        let stride = count.next_multiple_of(LINE / size_of::<AtomicU64>());
        let free = (0..count.div_ceil(64))
            .map(|word| match count - word * 64 {
                64.. => AtomicU64::new(u64::MAX),
                rest => AtomicU64::new((1 << rest) - 1),
            })
            .collect();
        Ok(Self {
            slots: ManuallyDrop::new((0..count).map(|_| Slot::new()).collect()),
            used: (0..count).map(|_| AtomicU64::new(0)).collect(),
            pins: WipedPages::new(stride * shards)?,
            stride,
            shards,
            hits: AtomicU64::new(0),
            free,
            hand: AtomicUsize::new(0),
            occupied: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            origin,
        })
    }

    /// Whether this is not the process that made them.
    pub(super) fn is_forked(&self) -> bool {
        self.origin.words()[0].load(Ordering::Relaxed) == 0
    }

    pub(super) fn count(&self) -> usize {
        self.slots.len()
    }

    /// Slots that are not free.
    pub(super) fn occupied(&self) -> usize {
        self.occupied.load(Ordering::Relaxed)
    }

    /// Bytes that their ranges cover.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// The range of whatever is in a slot. Reliable while the slot is pinned or nobody can end its value; else a hint.
    #[inline]
    pub(super) fn range(&self, slot: u32) -> Range<usize> {
        let slot = &self.slots[slot as usize];
        slot.start.load(Ordering::Relaxed)..slot.end.load(Ordering::Relaxed)
    }

    /// When the value was used last, in whatever its users count.
    pub(super) fn used(&self, slot: u32) -> u64 {
        self.used[slot as usize].load(Ordering::Relaxed)
    }

    /// Notes a use. Writes only if that is new.
    #[inline]
    pub(super) fn touch(&self, slot: u32, now: u64) {
        let used = &self.used[slot as usize];
        if used.load(Ordering::Relaxed) != now {
            used.store(now, Ordering::Relaxed);
        }
    }

    /// Takes a free slot for a range. `None`: there is none.
    pub(super) fn reserve(&self, range: Range<usize>) -> Option<Reserved<'_, T>> {
        let words = self.free.len();
        let first = self.hand.load(Ordering::Relaxed);
        for word in (first..words).chain(0..first) {
            let mut bits = self.free[word].load(Ordering::Relaxed);
            while bits != 0 {
                let bit = bits & bits.wrapping_neg();
                let before = self.free[word].fetch_and(!bit, Ordering::Acquire);
                if before & bit != 0 {
                    self.hand.store(word, Ordering::Relaxed);
                    self.occupied.fetch_add(1, Ordering::Relaxed);
                    self.bytes.fetch_add(range.len(), Ordering::Relaxed);
                    return Some(Reserved {
                        slots: self,
                        slot: (word * 64) as u32 + bit.trailing_zeros(),
                        range,
                    });
                }
                bits = before & !bit;
            }
        }
        None
    }

    /// Uses the value of a slot, if it has one that is not retired. For who keeps others from retiring values: then no value is
    /// dropped here.
    pub(super) fn pin(&self, slot: u32) -> Option<Pinned<&Self, T>> {
        if phase(self.state(slot).load(Ordering::SeqCst)) != LIVE {
            return None;
        }
        self.pin_counting(self.shard(), slot, 1)
    }

    /// Uses the value of a slot, if it has one that is not retired: a hit, unless the result is [rejected](Pinned::reject). `shard` is
    /// that of this thread.
    #[inline(always)]
    pub(super) fn hit(&self, shard: u32, slot: u32) -> Option<Pinned<&Self, T>> {
        self.pin_counting(shard, slot, 1 + HIT)
    }

    #[inline(always)]
    fn pin_counting(&self, shard: u32, slot: u32, count: u64) -> Option<Pinned<&Self, T>> {
        let before = self.pins(shard, slot).fetch_add(count, Ordering::SeqCst);
        let live = phase(self.state(slot).load(Ordering::SeqCst)) == LIVE;
        if !live || before & (TOP_HIT | TOP_PIN) != 0 && !self.relieve(shard, slot) {
            self.unpin(shard, slot, count);
            return None;
        }
        Some(Pinned {
            owner: self,
            slot,
            shard,
        })
    }

    pub(super) fn shards(&self) -> usize {
        self.shards
    }

    /// Takes hits out of a count that is half full; whether there is room for pins.
    #[cold]
    fn relieve(&self, shard: u32, slot: u32) -> bool {
        let before = self.pins(shard, slot).fetch_and(!TOP_HIT, Ordering::SeqCst);
        if before & TOP_HIT != 0 {
            self.hits.fetch_add(TOP_HIT / HIT, Ordering::Relaxed);
        }
        // Else handles were forgotten, not dropped. Before that could make the lower half wrap, the threads of a process that are
        // here at once would have to be two billion.
        before & TOP_PIN == 0
    }

    /// Pins that were hits.
    pub(super) fn hits(&self) -> u64 {
        let counted = self
            .pins
            .words()
            .iter()
            .map(|pins| pins.load(Ordering::Relaxed) / HIT);
        self.hits.load(Ordering::Relaxed) + counted.sum::<u64>()
    }

    /// From now on nobody can pin the value; it is claimed at once if nobody has. `None`: it is in use, or was not live.
    pub(super) fn retire(&self, slot: u32) -> Option<Claimed<'_, T>> {
        let retired = self.change(slot, LIVE, RETIRED)?;
        self.claim(slot, retired)
    }

    /// Claims a live value if nobody uses it; else it stays as it was.
    pub(super) fn retire_idle(&self, slot: u32) -> Idle<'_, T> {
        if self.is_pinned(slot) {
            return Idle::InUse;
        }
        let Some(retired) = self.change(slot, LIVE, RETIRED) else {
            return Idle::Gone;
        };
        if let Some(claimed) = self.claim(slot, retired) {
            return Idle::Claimed(claimed);
        }
        // Somebody pinned it meanwhile. If he has taken that back, he may have claimed it, too.
        match self.change(slot, RETIRED, LIVE) {
            Some(_) => Idle::InUse,
            None => Idle::Gone,
        }
    }

    /// Whether somebody uses the value, or is about to find that he cannot.
    pub(super) fn is_pinned(&self, slot: u32) -> bool {
        (0..self.shards as u32)
            .any(|shard| self.pins(shard, slot).load(Ordering::SeqCst) as u32 != 0)
    }

    /// The shard of this thread.
    #[inline]
    pub(super) fn shard(&self) -> u32 {
        thread_number() & (self.shards as u32 - 1)
    }

    #[inline(always)]
    fn unpin(&self, shard: u32, slot: u32, count: u64) {
        self.pins(shard, slot).fetch_sub(count, Ordering::SeqCst);
        let state = self.state(slot).load(Ordering::SeqCst);
        if phase(state) == RETIRED {
            self.finish(slot, state);
        }
    }

    #[cold]
    fn finish(&self, slot: u32, retired: u64) {
        drop(self.claim(slot, retired));
    }

    fn claim(&self, slot: u32, retired: u64) -> Option<Claimed<'_, T>> {
        if self.is_forked() || self.is_pinned(slot) {
            return None;
        }
        let claimed = retired - RETIRED + CLAIMED;
        self.state(slot)
            .compare_exchange(retired, claimed, Ordering::SeqCst, Ordering::SeqCst)
            .ok()?;
        Some(Claimed { slots: self, slot })
    }

    fn change(&self, slot: u32, from: u64, to: u64) -> Option<u64> {
        let state = self.state(slot).load(Ordering::SeqCst);
        if phase(state) != from {
            return None;
        }
        let new = state - from + to;
        self.state(slot)
            .compare_exchange(state, new, Ordering::SeqCst, Ordering::SeqCst)
            .ok()?;
        Some(new)
    }

    #[inline]
    fn state(&self, slot: u32) -> &AtomicU64 {
        &self.slots[slot as usize].state
    }

    #[inline]
    fn pins(&self, shard: u32, slot: u32) -> &AtomicU64 {
        &self.pins.words()[shard as usize * self.stride + slot as usize]
    }

    /// The slot is nobody's.
    fn give_back(&self, slot: u32, len: usize) {
        self.bytes.fetch_sub(len, Ordering::Relaxed);
        self.occupied.fetch_sub(1, Ordering::Relaxed);
        self.free[slot as usize / 64].fetch_or(1 << (slot % 64), Ordering::Release);
    }
}

impl<T> Drop for Slots<T> {
    fn drop(&mut self) {
        if !self.is_forked() {
            // SAFETY: not used again; this is its drop.
            unsafe { ManuallyDrop::drop(&mut self.slots) };
        }
    }
}

impl<T> Slot<T> {
    fn new() -> Self {
        Self {
            state: AtomicU64::new(FREE),
            start: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            value: UnsafeCell::new(MaybeUninit::uninit()),
        }
    }
}

impl<T> Drop for Slot<T> {
    fn drop(&mut self) {
        if matches!(phase(*self.state.get_mut()), LIVE | RETIRED) {
            // SAFETY: these phases have a value, and it is borrowed by nobody, since the slots are being dropped.
            unsafe { self.value.get_mut().assume_init_drop() };
        }
    }
}

/// A slot without a value yet. Given back when dropped.
pub(super) struct Reserved<'a, T> {
    slots: &'a Slots<T>,
    slot: u32,
    range: Range<usize>,
}

impl<'a, T> Reserved<'a, T> {
    pub(super) fn slot(&self) -> u32 {
        self.slot
    }

    pub(super) fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// Makes the value live, pinned.
    pub(super) fn fill(self, value: T, now: u64) -> Pinned<&'a Slots<T>, T> {
        let this = ManuallyDrop::new(self);
        let (slots, number) = (this.slots, this.slot);
        let slot = &slots.slots[number as usize];
        slot.start.store(this.range.start, Ordering::Relaxed);
        slot.end.store(this.range.end, Ordering::Relaxed);
        slots.touch(number, now);
        // SAFETY: the slot is reserved for this thread alone: nobody reads a value before its state is LIVE.
        unsafe { (*slot.value.get()).write(value) };
        let shard = slots.shard();
        slots.pins(shard, number).fetch_add(1, Ordering::SeqCst);
        let generation = slot.state.load(Ordering::SeqCst) & !PHASE;
        slot.state.store(generation + LIVE, Ordering::SeqCst);
        Pinned {
            owner: slots,
            slot: number,
            shard,
        }
    }
}

impl<T> Drop for Reserved<'_, T> {
    fn drop(&mut self) {
        self.slots.give_back(self.slot, self.range.len());
    }
}

/// A value in use.
///
/// `S` derefs to the same slots whenever it is asked: a reference, or something that owns a counted one.
pub(super) struct Pinned<S: Deref<Target = Slots<T>>, T> {
    owner: S,
    slot: u32,
    shard: u32,
}

impl<S: Deref<Target = Slots<T>>, T> Pinned<S, T> {
    #[inline]
    pub(super) fn range(&self) -> Range<usize> {
        self.owner.range(self.slot)
    }

    /// It was no hit.
    #[inline]
    pub(super) fn reject(self) {
        let this = ManuallyDrop::new(self);
        this.owner.unpin(this.shard, this.slot, 1 + HIT);
        // SAFETY: `this` is not used again, and not dropped.
        drop(unsafe { std::ptr::read(&raw const this.owner) });
    }

    #[inline]
    pub(super) fn touch(&self, now: u64) {
        self.owner.touch(self.slot, now);
    }

    /// The same, through another owner of the same slots.
    pub(super) fn owned_by<O: Deref<Target = Slots<T>>>(self, owner: O) -> Pinned<O, T> {
        assert!(
            std::ptr::eq(&*self.owner, &*owner),
            "one cache has one set of slots"
        );
        let (slot, shard) = (self.slot, self.shard);
        // The pin is passed on; of the old owner, only what keeps the slots is dropped.
        let this = ManuallyDrop::new(self);
        // SAFETY: `this` is not used again, and not dropped.
        drop(unsafe { std::ptr::read(&raw const this.owner) });
        Pinned { owner, slot, shard }
    }
}

impl<S: Deref<Target = Slots<T>>, T> Deref for Pinned<S, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        let slot = &self.owner.slots[self.slot as usize];
        // SAFETY: the slot was LIVE when it was counted, so it has a value, which is claimed only after this pin is taken back;
        // the store of LIVE, which came after the value, was read.
        unsafe { (*slot.value.get()).assume_init_ref() }
    }
}

impl<S: Deref<Target = Slots<T>>, T> Drop for Pinned<S, T> {
    #[inline]
    fn drop(&mut self) {
        self.owner.unpin(self.shard, self.slot, 1);
    }
}

/// What became of a value that was to be claimed if idle.
pub(super) enum Idle<'a, T> {
    Claimed(Claimed<'a, T>),
    InUse,
    /// Somebody else has claimed it.
    Gone,
}

/// A retired value that is in nobody's use, to be dropped where that may take its time.
pub(super) struct Claimed<'a, T> {
    slots: &'a Slots<T>,
    slot: u32,
}

impl<T> Claimed<'_, T> {
    /// The length of its range.
    pub(super) fn len(&self) -> usize {
        self.slots.range(self.slot).len()
    }
}

impl<T> Drop for Claimed<'_, T> {
    fn drop(&mut self) {
        // Also if dropping the value panics.
        let _free = Freed(self.slots, self.slot);
        let value = self.slots.slots[self.slot as usize].value.get();
        // SAFETY: whoever claims has the value for himself (see the module's documentation), and one thread claims.
        unsafe { (*value).assume_init_drop() };
    }
}

struct Freed<'a, T>(&'a Slots<T>, u32);

impl<T> Drop for Freed<'_, T> {
    fn drop(&mut self) {
        let Self(slots, slot) = *self;
        let len = slots.range(slot).len();
        let state = slots.state(slot);
        let generation = state.load(Ordering::SeqCst) & !PHASE;
        state.store(generation.wrapping_add(GENERATION) + FREE, Ordering::SeqCst);
        slots.give_back(slot, len);
    }
}

#[inline]
fn phase(state: u64) -> u64 {
    state & PHASE
}

/// More threads than shards only share counts.
fn shard_count() -> usize {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    (4 * threads).next_power_of_two().clamp(8, 64)
}

/// Threads count in the order in which they come here. Never 0.
#[inline]
fn thread_number() -> u32 {
    thread_local! {
        static NUMBER: Cell<u32> = const { Cell::new(0) };
    }
    match NUMBER.get() {
        0 => {
            NUMBER.set(next_number());
            NUMBER.get()
        }
        number => number,
    }
}

#[cold]
fn next_number() -> u32 {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed) as u32 | 1 << 31
}

const PHASE: u64 = 3;
const FREE: u64 = 0;
const LIVE: u64 = 1;
const RETIRED: u64 = 2;
const CLAIMED: u64 = 3;
const GENERATION: u64 = 4;
const HIT: u64 = 1 << 32;
/// The uppermost bit of the hits, and of the pins: far from where they wrap.
const TOP_HIT: u64 = 1 << 63;
const TOP_PIN: u64 = 1 << 31;
const LINE: usize = 64;
