//! Messages whose content can be checked: every byte follows from the direction, the connection, the message's number and
//! its place, so that a lost, repeated, swapped, short or stale message shows.

/// Which way a message goes; the two directions of a connection never carry the same bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// Active side to passive side.
    ToPassive,
    /// Passive side to active side.
    ToActive,
}

/// Fills `message` with the content of message `number` of `connection`.
pub(crate) fn fill(direction: Direction, connection: u32, number: u32, message: &mut [u8]) {
    let mut generator = Generator::new(direction, connection, number);
    let mut words = message.chunks_exact_mut(8);
    for word in &mut words {
        word.copy_from_slice(&generator.next().to_le_bytes());
    }
    let last = generator.next().to_le_bytes();
    let rest = words.into_remainder();
    rest.copy_from_slice(&last[..rest.len()]);
}

/// Whether `message` is exactly the content of message `number` of `connection`.
pub(crate) fn is_right(direction: Direction, connection: u32, number: u32, message: &[u8]) -> bool {
    let mut generator = Generator::new(direction, connection, number);
    let mut words = message.chunks_exact(8);
    let whole = words.all(|word| word == generator.next().to_le_bytes());
    let rest = message.chunks_exact(8).remainder();
    whole && rest == &generator.next().to_le_bytes()[..rest.len()]
}

/// SplitMix64 (Steele, Lea, Flood 2014): one multiplication chain per eight bytes, so that checking is not what is timed.
struct Generator(u64);

impl Generator {
    fn new(direction: Direction, connection: u32, number: u32) -> Self {
        let mut seed = Self((u64::from(connection) << 32) | u64::from(number));
        let first = seed.next();
        Self(match direction {
            Direction::ToPassive => first,
            Direction::ToActive => !first,
        })
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_filled_is_right_at_every_length() {
        for len in [0, 1, 7, 8, 9, 64, 100, 4096, 4099] {
            let mut message = vec![0; len];
            fill(Direction::ToActive, 3, 5, &mut message);
            assert!(is_right(Direction::ToActive, 3, 5, &message), "{len}");
        }
    }

    #[test]
    fn other_connection_number_direction_or_one_bit_is_wrong() {
        let mut message = vec![0; 100];
        fill(Direction::ToPassive, 3, 5, &mut message);
        assert!(!is_right(Direction::ToActive, 3, 5, &message));
        assert!(!is_right(Direction::ToPassive, 4, 5, &message));
        assert!(!is_right(Direction::ToPassive, 3, 6, &message));
        for at in [0, 50, 95, 96, 99] {
            message[at] ^= 1;
            assert!(!is_right(Direction::ToPassive, 3, 5, &message), "{at}");
            message[at] ^= 1;
        }
    }
}
