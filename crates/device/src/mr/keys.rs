//! Keys of memory regions: never the same twice, and not guessable.
//!
//! A counter is the generation; a keyed permutation of 32 bits turns it into the key. As a
//! permutation it cannot collide, so a key of a region that is gone names nothing until the
//! counter has wrapped (2^32 registrations); as a keyed one it says nothing about the next key.

use std::hash::{BuildHasher, RandomState};

/// The source of keys of one device context.
pub(crate) struct KeySource {
    secret: RandomState,
    generation: u32,
}

impl KeySource {
    /// A source with a secret of its own.
    pub(crate) fn new() -> Self {
        Self {
            secret: RandomState::new(),
            generation: 0,
        }
    }

    /// The next key; never 0, which programs use for "no key".
    pub(crate) fn next(&mut self) -> u32 {
        loop {
            self.generation = self.generation.wrapping_add(1);
            let key = self.permute(self.generation);
            if key != 0 {
                return key;
            }
        }
    }

    /// A Feistel network: whatever the round function is, the whole is a permutation.
    fn permute(&self, value: u32) -> u32 {
        let (mut left, mut right) = ((value >> 16) as u16, value as u16);
        for round in 0..ROUNDS {
            let mixed = self.secret.hash_one((round, right)) as u16;
            (left, right) = (right, left ^ mixed);
        }
        (u32::from(left) << 16) | u32::from(right)
    }
}

const ROUNDS: u8 = 4;

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn keys_do_not_repeat_and_do_not_count_up() {
        let mut keys = KeySource::new();
        let mut seen = HashSet::new();
        let mut neighbours = 0;
        let mut last = keys.next();
        seen.insert(last);
        for _ in 1..100_000 {
            let key = keys.next();
            assert_ne!(key, 0);
            assert!(seen.insert(key), "key {key:#x} was given twice");
            if key == last.wrapping_add(1) {
                neighbours += 1;
            }
            last = key;
        }
        assert!(
            neighbours < 10,
            "{neighbours} keys followed their predecessor"
        );
    }

    #[test]
    fn two_sources_give_different_keys() {
        let (mut a, mut b) = (KeySource::new(), KeySource::new());
        let same = (0..1000).filter(|_| a.next() == b.next()).count();
        assert!(same < 10);
    }
}
