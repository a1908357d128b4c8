//! What happens to a packet on a faulty wire, decided by a seeded generator.

/// Faults of an in-memory wire. The parts are probabilities from 0 to 1; what is left is delivered as sent.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Faults {
    /// Same seed, same sequence of faults.
    pub seed: u64,
    /// Part of the packets that is lost.
    pub loss: f64,
    /// Part of the packets that is delivered twice.
    pub duplicate: f64,
    /// Part of the packets that the next packet to the same slot overtakes.
    pub reorder: f64,
}

/// What happens to one packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Roll {
    Delivered,
    Lost,
    Duplicated,
    Reordered,
}

/// The generator and the probabilities.
#[derive(Debug, Default)]
pub(super) struct Dice {
    faults: Faults,
    state: u64,
}

impl Dice {
    pub(super) fn new(faults: Faults) -> Self {
        Self {
            faults,
            state: faults.seed,
        }
    }

    pub(super) fn roll(&mut self) -> Roll {
        let Faults {
            loss,
            duplicate,
            reorder,
            ..
        } = self.faults;
        if loss <= 0.0 && duplicate <= 0.0 && reorder <= 0.0 {
            return Roll::Delivered;
        }
        let x = self.next_unit();
        if x < loss {
            Roll::Lost
        } else if x < loss + duplicate {
            Roll::Duplicated
        } else if x < loss + duplicate + reorder {
            Roll::Reordered
        } else {
            Roll::Delivered
        }
    }

    /// SplitMix64, scaled to 0..1.
    fn next_unit(&mut self) -> f64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^= z >> 31;
        (z >> 11) as f64 / (1u64 << 53) as f64
    }
}
