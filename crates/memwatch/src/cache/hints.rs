//! Where a thread found an address before, so that it need not search again.
//!
//! A word is 43 bits of an address and 21 of a slot number plus 1, in the bucket of its thread's shard that the address hashes to. It
//! says where to look, no more: a slot may have another range by now.

use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::Errno;

use crate::sys::WipedPages;

/// Buckets of two words each. Memory is taken for the shards that are used.
#[derive(Debug)]
pub(super) struct Hints {
    words: WipedPages,
    /// Of the number of buckets of a shard.
    bits: u32,
}

impl Hints {
    pub(super) fn new(shards: usize, slots: usize) -> Result<Self, Errno> {
        let buckets = (slots / 2).next_power_of_two().clamp(32, MAX_BUCKETS);
        Ok(Self {
            words: WipedPages::new(shards * buckets * 2)?,
            bits: buckets.ilog2(),
        })
    }

    #[inline(always)]
    pub(super) fn find(&self, shard: u32, address: usize) -> Option<u32> {
        let [first, second] = self.bucket(shard, address);
        let (first, second) = (
            first.load(Ordering::Relaxed),
            second.load(Ordering::Relaxed),
        );
        // Without a branch between the two.
        let word = if is_of(second, address) {
            second
        } else {
            first
        };
        // An empty word is of address 0, too; its slot number is none.
        (is_of(word, address) && word as u32 & SLOT != 0).then(|| (word as u32 & SLOT) - 1)
    }

    /// In the first place; what is there moves to the second.
    pub(super) fn enter(&self, shard: u32, address: usize, slot: u32) {
        let [first, second] = self.bucket(shard, address);
        second.store(first.load(Ordering::Relaxed), Ordering::Relaxed);
        let word = (address as u64) << SLOT_BITS | u64::from(slot + 1);
        first.store(word, Ordering::Relaxed);
    }

    #[inline(always)]
    fn bucket(&self, shard: u32, address: usize) -> &[AtomicU64; 2] {
        // Fibonacci hashing: the upper bits of the product depend on all of the factor.
        let hash = (address as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let bucket = (shard as usize) << self.bits | (hash >> (u64::BITS - self.bits)) as usize;
        let (buckets, _) = self.words.words().as_chunks::<2>();
        &buckets[bucket]
    }
}

#[inline(always)]
fn is_of(word: u64, address: usize) -> bool {
    (word ^ (address as u64) << SLOT_BITS) >> SLOT_BITS == 0
}

const SLOT_BITS: u32 = 21;
const SLOT: u32 = (1 << SLOT_BITS) - 1;
/// 64 KiB of words.
const MAX_BUCKETS: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_addresses_of_a_bucket_are_found_and_a_third_replaces_the_older() {
        let hints = Hints::new(2, 1).expect("memory");
        let same = |address: &usize| {
            std::ptr::eq(hints.bucket(0, *address), hints.bucket(0, 0x7000_0000_1000))
        };
        let addresses = (0x7000_0000_1000..).step_by(64);
        let addresses: Vec<usize> = addresses.filter(same).take(3).collect();
        assert_eq!(hints.find(0, addresses[0]), None);
        for (slot, address) in addresses.iter().enumerate() {
            hints.enter(0, *address, slot as u32);
        }
        assert_eq!(hints.find(0, addresses[0]), None);
        assert_eq!(hints.find(0, addresses[1]), Some(1));
        assert_eq!(hints.find(0, addresses[2]), Some(2));
        assert_eq!(hints.find(1, addresses[2]), None, "another shard");
        assert_eq!(hints.find(0, 0), None);
    }
}
