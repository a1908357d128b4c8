//! Keys of memory regions and windows: the same place of the table is not given twice soon, and no key is guessable.
//!
//! A key is 32 bits: the upper 24 are its index in the table, the lower 8 a variant, which a program may choose anew for a
//! window of type 2 (IBA Vol. 1 ch. 10 "Memory keys"). A counter is the generation; a keyed permutation of 24 bits turns it
//! into the index. As a permutation it cannot collide, so an index that is gone names nothing until 2^24 - 1 others have
//! been given; as a keyed one it says nothing about the next. The variant is a keyed hash of the generation.

use std::hash::{BuildHasher, RandomState};

/// The source of keys of one device context.
pub(crate) struct KeySource {
    secret: RandomState,
    generation: u64,
}

impl KeySource {
    /// A source with a secret of its own.
    pub(crate) fn new() -> Self {
        Self {
            secret: RandomState::new(),
            generation: 0,
        }
    }

    /// The next key; never one of index 0, so never 0, which programs use for "no key".
    pub(crate) fn next(&mut self) -> u32 {
        loop {
            self.generation += 1;
            let index = self.permute(self.generation as u32 & INDEX_MASK);
            if index != 0 {
                let variant = self.secret.hash_one(("variant", self.generation)) as u8;
                return key_of(index, variant);
            }
        }
    }

    /// A Feistel network: whatever the round function is, the whole is a permutation of 24 bits.
    fn permute(&self, value: u32) -> u32 {
        let (mut left, mut right) = (value >> HALF, value & HALF_MASK);
        for round in 0..ROUNDS {
            let mixed = self.secret.hash_one((round, right)) as u32 & HALF_MASK;
            (left, right) = (right, left ^ mixed);
        }
        (left << HALF) | right
    }
}

/// Which entry of the table a key names.
pub(crate) const fn index_of(key: u32) -> u32 {
    key >> VARIANT_BITS
}

/// The key of entry `index` with this variant.
pub(crate) const fn key_of(index: u32, variant: u8) -> u32 {
    (index << VARIANT_BITS) | variant as u32
}

const VARIANT_BITS: u32 = 8;
const INDEX_MASK: u32 = (1 << 24) - 1;
const HALF: u32 = 12;
const HALF_MASK: u32 = (1 << HALF) - 1;
const ROUNDS: u8 = 4;

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn the_permutation_meets_no_index_twice() {
        let keys = KeySource::new();
        let mut met = vec![false; 1 << 24];
        // Every sixteenth of all, the last among them.
        let step = if cfg!(miri) { 1 << 16 } else { 16 };
        for value in (15..=INDEX_MASK).step_by(step) {
            let index = keys.permute(value) as usize;
            assert!(!met[index], "index {index:#x} twice");
            met[index] = true;
        }
    }

    #[test]
    fn no_index_is_given_again_before_all_others() {
        let mut keys = KeySource::new();
        let rounds = if cfg!(miri) { 1_000 } else { 100_000 };
        let mut seen = HashSet::new();
        for _ in 0..rounds {
            let key = keys.next();
            assert_ne!(index_of(key), 0);
            assert!(seen.insert(index_of(key)), "key {key:#x}: its index twice");
        }
        // Not one index is left after the last: the first comes again, and not before.
        let mut keys = KeySource::new();
        let first = keys.next();
        let place = keys.generation;
        keys.generation = place + (1 << 24) - 1;
        let again = keys.next();
        assert_eq!(index_of(again), index_of(first));
    }

    #[test]
    fn neither_index_nor_variant_counts_up() {
        let mut keys = KeySource::new();
        let rounds: u32 = if cfg!(miri) { 1_000 } else { 100_000 };
        let (mut neighbours, mut same_variant) = (0, 0);
        let mut last = keys.next();
        for _ in 1..rounds {
            let key = keys.next();
            neighbours += u32::from(index_of(key) == index_of(last) + 1);
            same_variant += u32::from(key as u8 == last as u8);
            last = key;
        }
        assert!(neighbours < 10, "{neighbours} followed their predecessor");
        // One in 256 by chance.
        assert!(same_variant < rounds / 100, "{same_variant} variants alike");
    }

    #[test]
    fn two_sources_give_different_keys() {
        let (mut a, mut b) = (KeySource::new(), KeySource::new());
        let same = (0..1000).filter(|_| a.next() == b.next()).count();
        assert!(same < 10);
    }
}
