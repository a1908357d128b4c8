//! The two kinds of random bits: those that appear on the wire and those that stay secret.

use rand_chacha::ChaCha12Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::Seed;

pub(crate) struct Random {
    wire: ChaCha12Rng,
    secret: ChaCha12Rng,
}

impl Random {
    pub(crate) fn new(seed: Seed) -> Self {
        let wire = ChaCha12Rng::from_seed(seed.0);
        let mut secret = wire.clone();
        secret.set_stream(1);
        Self { wire, secret }
    }

    /// Bits that a peer may see: comm ids, PSNs, transaction ids.
    pub(crate) fn wire_u32(&mut self) -> u32 {
        self.wire.next_u32()
    }

    /// Bits that nobody sees: the keys of the index.
    pub(crate) fn secret_u64(&mut self) -> u64 {
        self.secret.next_u64()
    }

    /// Bits of which a peer sees no more than when we repeat a message.
    pub(crate) fn secret_u32(&mut self) -> u32 {
        self.secret.next_u32()
    }
}
