//! What the messages hold: readable text that follows from the message's number.

/// Fills `message` with the text of message `number`.
pub(super) fn fill(number: u32, message: &mut [u8]) {
    for (byte, text) in message.iter_mut().zip(text(number)) {
        *byte = text;
    }
}

/// Whether `message` is exactly the text of message `number`.
pub(super) fn is_right(number: u32, message: &[u8]) -> bool {
    message
        .iter()
        .zip(text(number))
        .all(|(byte, text)| *byte == text)
}

/// The message's name, then printable characters that begin one further with every message.
fn text(number: u32) -> impl Iterator<Item = u8> {
    let first = (number % PRINTABLE) as usize;
    let characters = (b'!'..=b'~').cycle().skip(first);
    format!("oarlock-ping-{number}: ")
        .into_bytes()
        .into_iter()
        .chain(characters)
}

const PRINTABLE: u32 = (b'~' - b'!' + 1) as u32;

/// Bytes of a peer as they may be printed, whatever they are.
pub(super) fn printable(message: &[u8]) -> String {
    message.escape_ascii().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_reads_as_its_number_and_one_wrong_byte_shows() {
        let mut message = [0; 40];
        fill(7, &mut message);
        assert_eq!(&message[..16], b"oarlock-ping-7: ");
        assert!(message.iter().all(|byte| (b' '..=b'~').contains(byte)));
        assert!(is_right(7, &message));
        assert!(!is_right(8, &message));
        for at in 0..message.len() {
            message[at] ^= 1;
            assert!(!is_right(7, &message), "{at}");
            message[at] ^= 1;
        }
        assert!(is_right(7, &[]));
    }

    #[test]
    fn nothing_of_a_peer_reaches_the_terminal_raw() {
        assert_eq!(printable(b"a\x1b[2J\n\xff"), "a\\x1b[2J\\n\\xff");
    }
}
