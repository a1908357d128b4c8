//! Which slots may hold a registration of an address: read without a lock, written with one.
//!
//! A range is of the smallest class whose blocks are not shorter than it, so it lies in one or two of them, which are adjacent; it is
//! entered for each. Who looks for an address asks for its block of every class in use: few in most programs, since each is eight
//! times as long as the one before.
//!
//! The answers are hints: a word can be read while it is moved. Whoever reads looks whether the slot is what he wants; if he finds
//! nothing, he asks again with the lock.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A hash table with linear probing. 0 is an empty word, others have, from the most significant bit on:
///
/// | bits | |
/// |---|---|
/// | 27 | of a hash of class and block; the first of them are the word's home |
/// | 8, 8 | the part of the block that the range covers: first and last of 256 |
/// | 21 | the slot number plus 1 |
///
/// Several ranges share a block; the part keeps a reader from looking at slots in vain.
#[derive(Debug)]
pub(super) struct Index {
    words: Box<[AtomicU64]>,
    /// `1 << bits` words are in use: so many that at most half of them are not 0.
    bits: AtomicU32,
    /// A set bit is a class in use.
    classes: AtomicU64,
}

/// Who has this may write. How many ranges are in each class.
#[derive(Debug, Default)]
pub(super) struct Writer {
    counts: [usize; CLASSES as usize],
    /// Words that are not 0.
    words: usize,
}

impl Index {
    /// Room for so many ranges.
    pub(super) fn new(ranges: usize) -> (Self, Writer) {
        let len = (4 * ranges).next_power_of_two().max(1 << FIRST_BITS);
        let index = Self {
            words: (0..len).map(|_| AtomicU64::new(0)).collect(),
            bits: AtomicU32::new(FIRST_BITS),
            classes: AtomicU64::new(0),
        };
        (index, Writer::default())
    }

    /// Whether the table has to grow before another range is entered: then `rebuild` it.
    pub(super) fn is_full(&self, writer: &Writer) -> bool {
        let len = 1 << self.bits.load(Ordering::Relaxed);
        writer.words + 2 > len / 2 && len < self.words.len()
    }

    /// Doubles the table, and enters all ranges again. Meanwhile readers find nothing.
    pub(super) fn rebuild(
        &self,
        writer: &mut Writer,
        ranges: impl Iterator<Item = (Range<usize>, u32)>,
    ) {
        for word in &self.words[..1 << self.bits.load(Ordering::Relaxed)] {
            word.store(0, Ordering::Release);
        }
        self.bits.fetch_add(1, Ordering::Release);
        *writer = Writer::default();
        for (range, slot) in ranges {
            self.insert(writer, &range, slot);
        }
    }

    pub(super) fn insert(&self, writer: &mut Writer, range: &Range<usize>, slot: u32) {
        let class = class_of(range.len());
        let table = self.table();
        for block in blocks(range, class) {
            let word = word(range, class, block, slot);
            let mut at = table.home(word);
            while table.words[at].load(Ordering::Relaxed) != 0 {
                at = table.after(at);
            }
            table.words[at].store(word, Ordering::Release);
            writer.words += 1;
        }
        writer.counts[class as usize] += 1;
        self.classes.fetch_or(1 << class, Ordering::Release);
    }

    pub(super) fn remove(&self, writer: &mut Writer, range: &Range<usize>, slot: u32) {
        let class = class_of(range.len());
        let table = self.table();
        for block in blocks(range, class) {
            let word = word(range, class, block, slot);
            let mut at = table.home(word);
            let mut left = table.words.len();
            while left > 0 && table.words[at].load(Ordering::Relaxed) != word {
                at = table.after(at);
                left -= 1;
            }
            assert!(left > 0, "what was entered is there");
            table.close(at);
            writer.words -= 1;
        }
        writer.counts[class as usize] -= 1;
        if writer.counts[class as usize] == 0 {
            self.classes.fetch_and(!(1 << class), Ordering::Release);
        }
    }

    /// Slots that may cover a range.
    #[inline(always)]
    pub(super) fn covering(&self, range: &Range<usize>) -> Covering<'_> {
        // A class below has no range that is long enough.
        let least = class_of(range.len());
        let bits = self.bits.load(Ordering::Acquire);
        let table = Table {
            words: &self.words[..1 << bits],
            bits,
        };
        Covering {
            table,
            address: range.start,
            classes: self.classes.load(Ordering::Acquire) >> least << least,
            part: 0,
            wanted: 0,
            at: 0,
            left: 0,
        }
    }

    /// For who has the lock: every slot that may have something in common with a range; some more than once. `None`: that would
    /// take more than `limit` questions.
    pub(super) fn touching(&self, range: &Range<usize>, limit: usize) -> Option<Vec<u32>> {
        let mut found = Vec::new();
        let mut asked = 0usize;
        let table = self.table();
        let mut classes = self.classes.load(Ordering::Acquire);
        while classes != 0 {
            let class = classes.trailing_zeros();
            classes &= classes - 1;
            let (first, last) = (range.start >> shift(class), (range.end - 1) >> shift(class));
            asked = asked.saturating_add(last - first);
            if asked > limit {
                return None;
            }
            for block in first..=last {
                let wanted = hash(class, block);
                let mut at = table.home(wanted);
                loop {
                    let word = table.words[at].load(Ordering::Relaxed);
                    if word == 0 {
                        break;
                    }
                    if is_of(word, wanted) {
                        found.push(slot_of(word));
                    }
                    at = table.after(at);
                }
            }
        }
        Some(found)
    }

    #[inline(always)]
    fn table(&self) -> Table<'_> {
        let bits = self.bits.load(Ordering::Acquire);
        Table {
            words: &self.words[..1 << bits],
            bits,
        }
    }
}

/// Goes through the slots that may cover an address.
pub(super) struct Covering<'a> {
    table: Table<'a>,
    address: usize,
    /// Still to be asked for.
    classes: u64,
    /// What is looked for in the class that is being asked for, where next, and in how many words at most, whatever a writer does
    /// meanwhile.
    part: u64,
    wanted: u64,
    at: usize,
    left: usize,
}

impl Iterator for Covering<'_> {
    type Item = u32;

    #[inline(always)]
    fn next(&mut self) -> Option<u32> {
        loop {
            while self.left > 0 {
                let word = self.table.words[self.at].load(Ordering::Acquire);
                if word == 0 {
                    break;
                }
                self.at = self.table.after(self.at);
                self.left -= 1;
                if is_of(word, self.wanted)
                    && first_part(word) <= self.part
                    && self.part <= last_part(word)
                {
                    return Some(slot_of(word));
                }
            }
            if self.classes == 0 {
                return None;
            }
            let class = self.classes.trailing_zeros();
            self.classes &= self.classes - 1;
            self.part = part(self.address, class);
            self.wanted = hash(class, self.address >> shift(class));
            self.at = self.table.home(self.wanted);
            self.left = self.table.words.len();
        }
    }
}

/// The part of the table that is in use.
struct Table<'a> {
    words: &'a [AtomicU64],
    bits: u32,
}

impl Table<'_> {
    #[inline(always)]
    fn home(&self, word: u64) -> usize {
        (word >> (u64::BITS - self.bits)) as usize
    }

    #[inline(always)]
    fn after(&self, at: usize) -> usize {
        (at + 1) & (self.words.len() - 1)
    }

    /// Empties a place, and moves those behind it that belong before.
    fn close(&self, mut hole: usize) {
        let mut at = self.after(hole);
        loop {
            let word = self.words[at].load(Ordering::Relaxed);
            if word == 0 {
                break;
            }
            // It may go there if the hole is not before its home.
            let mask = self.words.len() - 1;
            let from_home = at.wrapping_sub(self.home(word)) & mask;
            let from_hole = at.wrapping_sub(hole) & mask;
            if from_home >= from_hole {
                self.words[hole].store(word, Ordering::Release);
                hole = at;
            }
            at = self.after(at);
        }
        self.words[hole].store(0, Ordering::Release);
    }
}

/// Fibonacci hashing: the upper bits of the product depend on all of the factor. Block numbers have less than 58 bits.
#[inline]
fn hash(class: u32, block: usize) -> u64 {
    (block as u64 ^ u64::from(class) << 58).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// Whether a word is of a block with that hash.
#[inline]
fn is_of(word: u64, hash: u64) -> bool {
    (word ^ hash) >> HASH_AT == 0
}

fn word(range: &Range<usize>, class: u32, block: usize, slot: u32) -> u64 {
    let start = block << shift(class);
    let first = part(range.start.max(start), class);
    let last = match (range.end - 1) >> shift(class) == block {
        true => part(range.end - 1, class),
        false => PARTS - 1,
    };
    hash(class, block) >> HASH_AT << HASH_AT
        | first << FIRST_AT
        | last << LAST_AT
        | u64::from(slot + 1)
}

/// In which part of its block an address is.
#[inline]
fn part(address: usize, class: u32) -> u64 {
    // Blocks of the first class have 64 parts.
    (address >> shift(class).saturating_sub(PARTS.ilog2())) as u64 % PARTS.min(1 << shift(class))
}

#[inline]
fn first_part(word: u64) -> u64 {
    word >> FIRST_AT & (PARTS - 1)
}

#[inline]
fn last_part(word: u64) -> u64 {
    word >> LAST_AT & (PARTS - 1)
}

#[inline]
fn slot_of(word: u64) -> u32 {
    (word & ((1 << LAST_AT) - 1)) as u32 - 1
}

/// The smallest class whose blocks are at least so long.
#[inline]
fn class_of(len: usize) -> u32 {
    let bits = usize::BITS - (len - 1).leading_zeros();
    (bits.saturating_sub(shift(0)))
        .div_ceil(STEP)
        .min(CLASSES - 1)
}

/// A block of a class has `1 << shift(class)` bytes.
#[inline]
fn shift(class: u32) -> u32 {
    6 + STEP * class
}

/// The one or two blocks that a range of that class lies in.
fn blocks(range: &Range<usize>, class: u32) -> impl Iterator<Item = usize> + use<> {
    (range.start >> shift(class))..=((range.end - 1) >> shift(class))
}

/// 64 words.
const FIRST_BITS: u32 = 6;
const HASH_AT: u32 = 37;
const FIRST_AT: u32 = 29;
const LAST_AT: u32 = 21;
const PARTS: u64 = 256;
const STEP: u32 = 3;
/// The last has blocks of 2^63 bytes.
const CLASSES: u32 = 20;

#[cfg(test)]
mod tests {
    use super::*;

    /// Enters the range of a slot; all before it, and after it, are entered.
    fn enter(index: &Index, writer: &mut Writer, ranges: &[Range<usize>], slot: usize) {
        if index.is_full(writer) {
            let others = ranges.iter().cloned().zip(0..);
            index.rebuild(writer, others.filter(|(_, other)| *other != slot as u32));
        }
        index.insert(writer, &ranges[slot], slot as u32);
    }

    #[test]
    fn a_range_is_never_longer_than_the_blocks_of_its_class() {
        for bits in 0..62 {
            for len in [1usize << bits, (1 << bits) + 1] {
                let class = class_of(len);
                assert!(len <= 1 << shift(class), "{len}");
                assert!(class == 0 || len > 1 << shift(class - 1), "{len}");
            }
        }
    }

    #[test]
    fn every_address_of_a_range_finds_it_and_removed_ones_are_gone() {
        let mut rng = oarlock_sim::Rng::new(1);
        let (index, mut writer) = Index::new(256);
        let mut ranges: Vec<Range<usize>> = Vec::new();
        for round in 0..20_000u32 {
            if ranges.len() == 256 || (!ranges.is_empty() && rng.chance(0.5)) {
                let slot = rng.index(ranges.len());
                // The last one takes the number of the one that goes.
                let gone = ranges.swap_remove(slot);
                index.remove(&mut writer, &gone, slot as u32);
                if let Some(moved) = ranges.get(slot) {
                    index.remove(&mut writer, moved, ranges.len() as u32);
                    enter(&index, &mut writer, &ranges, slot);
                }
            } else {
                let start = 0x7000_0000_0000 + rng.index(1 << 22);
                let longest = 1 << rng.below(21);
                let range = start..start + 1 + rng.index(longest);
                ranges.push(range);
                enter(&index, &mut writer, &ranges, ranges.len() - 1);
            }
            if round % 64 == 0 {
                for (slot, range) in ranges.iter().enumerate() {
                    let at = range.start + rng.index(range.len());
                    assert!(
                        index
                            .covering(&(at..range.end))
                            .any(|found| found == slot as u32)
                    );
                }
                let from = 0x7000_0000_0000 + rng.index(1 << 22);
                let part = from..from + 1 + rng.index(1 << 20);
                if let Some(found) = index.touching(&part, 1 << 20) {
                    for (slot, range) in ranges.iter().enumerate() {
                        let touches = range.start < part.end && part.start < range.end;
                        assert!(!touches || found.contains(&(slot as u32)));
                    }
                }
            }
        }
        for (slot, range) in ranges.iter().enumerate().rev() {
            index.remove(&mut writer, range, slot as u32);
        }
        assert!(
            index
                .words
                .iter()
                .all(|word| word.load(Ordering::Relaxed) == 0)
        );
        assert_eq!(index.classes.load(Ordering::Relaxed), 0);
    }
}
