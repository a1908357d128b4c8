//! The generator behind every random decision of a simulation.

use std::ops::RangeInclusive;
use std::time::Duration;

/// A small seeded generator (SplitMix64). Good enough to choose faults and operations, nothing else.
#[derive(Clone, Debug)]
pub struct Rng {
    state: u64,
}

impl Rng {
    /// A generator whose whole sequence follows from `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A value in `0..bound`.
    ///
    /// # Panics
    /// When `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "no value is below 0");
        self.next_u64() % bound
    }

    /// An index into a collection of `len` elements.
    ///
    /// # Panics
    /// When `len` is 0.
    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// True with probability `p` (0.0 never, 1.0 always).
    pub fn chance(&mut self, p: f64) -> bool {
        // 53 bits: exactly what an f64 can hold.
        ((self.next_u64() >> 11) as f64) < p * (1u64 << 53) as f64
    }

    /// A duration in `range`, uniformly.
    pub fn duration(&mut self, range: &RangeInclusive<Duration>) -> Duration {
        let low = range.start().as_nanos() as u64;
        let high = (range.end().as_nanos() as u64).max(low);
        Duration::from_nanos(low + self.below(high - low + 1))
    }

    /// Fills `out` with random bytes.
    pub fn fill(&mut self, out: &mut [u8]) {
        for chunk in out.chunks_mut(8) {
            chunk.copy_from_slice(&self.next_u64().to_le_bytes()[..chunk.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certainty_and_impossibility_are_exact() {
        let mut rng = Rng::new(1);
        assert!((0..1000).all(|_| rng.chance(1.0)));
        assert!((0..1000).all(|_| !rng.chance(0.0)));
    }

    #[test]
    fn a_chance_of_one_in_five_comes_about_one_time_in_five() {
        let mut rng = Rng::new(2);
        let hits = (0..10_000).filter(|_| rng.chance(0.2)).count();
        assert!((1800..2200).contains(&hits), "{hits}");
    }

    #[test]
    fn durations_stay_in_their_range() {
        let mut rng = Rng::new(3);
        let range = Duration::from_nanos(5)..=Duration::from_nanos(7);
        for _ in 0..100 {
            assert!(range.contains(&rng.duration(&range)));
        }
    }
}
