//! What the messages hold: words that follow from the sequence number, the queue pair and the position, so that any
//! byte that is old, of another message, of another queue pair or out of place shows.
//!
//! Word `i` of message `n` of lane `l` is `(n + 1) * A + l * B + i * C` modulo 2^64, little-endian. `A` is odd, so a word whose
//! lane and place are known tells which message it is of.

/// Fills `message` with the words from `first` on of message `number` of `lane`.
pub(super) fn fill(lane: u32, number: u64, first: u64, message: &mut [u8]) {
    let mut word = word(lane, number, first);
    let mut chunks = message.chunks_exact_mut(WORD);
    for chunk in &mut chunks {
        chunk.copy_from_slice(&word.to_le_bytes());
        word = word.wrapping_add(C);
    }
    let rest = chunks.into_remainder();
    rest.copy_from_slice(&word.to_le_bytes()[..rest.len()]);
}

/// Whether `message` is exactly the words from `first` on of message `number` of `lane`.
pub(super) fn is_right(lane: u32, number: u64, first: u64, message: &[u8]) -> bool {
    let mut expected = word(lane, number, first);
    let mut differs = 0;
    let mut chunks = message.chunks_exact(WORD);
    for chunk in &mut chunks {
        let found = u64::from_le_bytes(chunk.try_into().expect("chunks are as long as a word"));
        // No branch in here: a right message is the rule, and this way several words are compared at once.
        differs |= found ^ expected;
        expected = expected.wrapping_add(C);
    }
    let rest = chunks.remainder();
    differs == 0 && rest == &expected.to_le_bytes()[..rest.len()]
}

/// Which message of `lane` the bytes are of that begin with word `first`, if they are of one at all; of fewer bytes than a
/// word only as many low bits are known, and the number nearest to `near` that has them is meant.
pub(super) fn number_of(lane: u32, first: u64, bytes: &[u8], near: u64) -> u64 {
    let known = bytes.len().min(WORD);
    if known == 0 {
        return near;
    }
    let mut field = [0; WORD];
    field[..known].copy_from_slice(&bytes[..known]);
    let number = u64::from_le_bytes(field)
        .wrapping_sub(u64::from(lane).wrapping_mul(B))
        .wrapping_sub(first.wrapping_mul(C))
        .wrapping_mul(INVERSE_OF_A)
        .wrapping_sub(1);
    // The difference to what is expected, sign-extended from the bits that are known.
    let unknown = 64 - 8 * known as u32;
    let ahead = (number.wrapping_sub(near) << unknown).cast_signed() >> unknown;
    near.wrapping_add_signed(ahead)
}

fn word(lane: u32, number: u64, at: u64) -> u64 {
    number
        .wrapping_add(1)
        .wrapping_mul(A)
        .wrapping_add(u64::from(lane).wrapping_mul(B))
        .wrapping_add(at.wrapping_mul(C))
}

const WORD: usize = 8;
/// Odd, and without pattern: the fractions of the golden ratio, of the square root of 2 and of that of 3.
const A: u64 = 0x9e37_79b9_7f4a_7c15;
const B: u64 = 0x6a09_e667_f3bc_c909;
const C: u64 = 0xbb67_ae85_84ca_a73b;
const INVERSE_OF_A: u64 = inverse(A);

/// The inverse of an odd number modulo 2^64, by Newton's iteration: each step doubles the bits that are right.
const fn inverse(odd: u64) -> u64 {
    let mut inverse = odd;
    let mut step = 0;
    while step < 5 {
        inverse = inverse.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(inverse)));
        step += 1;
    }
    inverse
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_wrong_byte_shows_at_every_length() {
        for len in [1, 7, 8, 9, 64, 4095] {
            let mut message = vec![0; len];
            fill(3, 1000, 5, &mut message);
            assert!(is_right(3, 1000, 5, &message), "{len}");
            assert!(!is_right(3, 1001, 5, &message), "{len}: another message");
            assert!(!is_right(2, 1000, 5, &message), "{len}: another lane");
            assert!(!is_right(3, 1000, 6, &message), "{len}: another place");
            for at in 0..len {
                message[at] ^= 0x10;
                assert!(!is_right(3, 1000, 5, &message), "{len}: byte {at}");
                message[at] ^= 0x10;
            }
        }
    }

    #[test]
    fn bytes_tell_the_message_they_are_of() {
        for len in [1, 2, 3, 8, 64] {
            for number in [0, 1, 99, 0x0123_4567_89ab] {
                let mut message = vec![0; len];
                fill(7, number, 11, &mut message);
                for near in [number.saturating_sub(100), number, number + 100] {
                    assert_eq!(number_of(7, 11, &message, near), number, "{len} {near}");
                }
            }
        }
        assert_eq!(number_of(0, 0, &[], 9), 9);
    }
}
