//! What the messages hold, as rping(1) has it: readable text that begins one letter further with every message, and a zero at the
//! end.

/// Fills `message` with the text of message `number`.
pub(super) fn fill(number: u32, message: &mut [u8]) {
    let name = format!("rdma-ping-{number}: ");
    let letters = (FIRST..=LAST).cycle().skip((number % LETTERS) as usize);
    for (byte, text) in message
        .iter_mut()
        .zip(name.into_bytes().into_iter().chain(letters))
    {
        *byte = text;
    }
    if let Some(last) = message.last_mut() {
        *last = 0;
    }
}

/// Whether `message` is exactly the text of message `number`.
pub(super) fn is_right(number: u32, message: &[u8]) -> bool {
    let mut expected = vec![0; message.len()];
    fill(number, &mut expected);
    expected == message
}

/// Bytes of a peer as they may be printed, whatever they are: without the zero at the end.
pub(super) fn printable(message: &[u8]) -> String {
    message
        .strip_suffix(&[0])
        .unwrap_or(message)
        .escape_ascii()
        .to_string()
}

const FIRST: u8 = b'A';
const LAST: u8 = b'z';
const LETTERS: u32 = (LAST - FIRST + 1) as u32;

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes of READ responses between two kernels' rping programs (Linux 6.1, rdma-core 44).
    #[test]
    fn a_message_is_that_of_rping() {
        let mut message = [0xff; 64];
        fill(0, &mut message);
        assert_eq!(
            message,
            *b"rdma-ping-0: ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqr\0"
        );
        fill(5, &mut message);
        assert!(message.starts_with(b"rdma-ping-5: FGHIJKLMN"));
        // The letters begin again after the last one, and the beginning does after 58 messages.
        fill(57, &mut message);
        assert!(message.starts_with(b"rdma-ping-57: zABC"));
        fill(58, &mut message);
        assert!(message.starts_with(b"rdma-ping-58: ABC"));
    }

    #[test]
    fn one_wrong_byte_shows() {
        let mut message = [0; 40];
        fill(7, &mut message);
        assert!(is_right(7, &message));
        assert!(!is_right(8, &message));
        for at in 0..message.len() {
            message[at] ^= 1;
            assert!(!is_right(7, &message), "{at}");
            message[at] ^= 1;
        }
        assert!(is_right(7, &[]) && is_right(7, &[0]));
    }

    #[test]
    fn nothing_of_a_peer_reaches_the_terminal_raw() {
        assert_eq!(printable(b"a\x1b[2J\n\xff\0"), "a\\x1b[2J\\n\\xff");
    }
}
