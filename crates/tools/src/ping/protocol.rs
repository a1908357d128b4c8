//! What the two sides say to each other before the first message: private data of REQ, REP and REJ.
//!
//! ```text
//!  byte
//!     0  "oarping", 0
//!     8  version of this protocol (8)
//!     9  hello: the way of pinging (8)     refusal: why (8)
//!    10  reserved (16)
//!    12  hello: bytes in a message (32)    refusal: the limit, where there is one (32)
//! ```
//!
//! Numbers are in network byte order. Other versions keep the first nine bytes.

use oarlock_rdmacm::PaddedData;
use std::fmt;

/// Begins the private data of a program that speaks this protocol, whatever its version. rping(1) sends none.
const MARKER: [u8; 8] = *b"oarping\0";
/// The version that this program speaks.
pub(super) const VERSION: u8 = 1;
/// The largest message, in bytes, that a server makes room for.
pub(super) const MAX_SIZE: u32 = 1 << 20;

const LEN: usize = 16;

/// A way of pinging.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Way(pub(super) u8);

impl Way {
    /// The message goes there and back by SEND, its number as immediate data.
    pub(super) const SEND: Self = Self(0);
}

/// What a client asks for, and a server confirms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) way: Way,
    /// Bytes in a message.
    pub(super) size: u32,
}

impl Hello {
    pub(super) fn emit(self) -> [u8; LEN] {
        emit(VERSION, self.way.0, self.size)
    }

    /// Reads what a client wants; the refusal says why it cannot be.
    pub(super) fn asked(private_data: Option<&PaddedData>) -> Result<Self, Refusal> {
        let fields = Fields::read(private_data).ok_or(Refusal::Foreign)?;
        if fields.version != VERSION {
            return Err(Refusal::Version(fields.version));
        }
        let way = Way(fields.code);
        if way != Way::SEND {
            return Err(Refusal::Way(way.0));
        }
        if fields.number > MAX_SIZE {
            return Err(Refusal::Size(fields.number));
        }
        Ok(Self {
            way,
            size: fields.number,
        })
    }

    /// Whether a server's reply confirms this; the sentence says what it is else.
    pub(super) fn is_confirmed(self, private_data: Option<&PaddedData>) -> Result<(), String> {
        match Fields::read(private_data) {
            None => Err(
                "the passive side accepted but is no `oarlock ping -s`: its reply carries no marker (rping and other programs are not spoken to)"
                    .to_owned(),
            ),
            Some(fields) if fields.version != VERSION => Err(other_version(fields.version)),
            Some(fields) if (Way(fields.code), fields.number) != (self.way, self.size) => Err(
                "the server confirms something else than it was asked for".to_owned(),
            ),
            Some(_) => Ok(()),
        }
    }
}

/// Why a server turns a client away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// It does not speak this protocol.
    Foreign,
    /// It speaks another version.
    Version(u8),
    /// It wants a way of pinging that the server does not know.
    Way(u8),
    /// Its messages are larger than the server makes room for.
    Size(u32),
    /// The server has as many clients as it serves at once.
    Full(u32),
}

impl Refusal {
    const FOREIGN: u8 = 1;
    const VERSION: u8 = 2;
    const WAY: u8 = 3;
    const SIZE: u8 = 4;
    const FULL: u8 = 5;

    /// Private data for the REJ.
    pub(super) fn emit(self) -> [u8; LEN] {
        let (code, limit) = match self {
            Self::Foreign => (Self::FOREIGN, 0),
            Self::Version(_) => (Self::VERSION, 0),
            Self::Way(_) => (Self::WAY, 0),
            Self::Size(_) => (Self::SIZE, MAX_SIZE),
            Self::Full(limit) => (Self::FULL, limit),
        };
        emit(VERSION, code, limit)
    }

    /// What a REJ says to a client, where it comes from a server of this program.
    pub(super) fn sentence_in(private_data: Option<&PaddedData>) -> Option<String> {
        let fields = Fields::read(private_data)?;
        Some(match fields.code {
            _ if fields.version != VERSION => other_version(fields.version),
            Self::SIZE => format!(
                "the server makes room for messages of at most {} bytes",
                fields.number
            ),
            Self::FULL => format!(
                "the server has {} clients already; try again later",
                fields.number
            ),
            Self::WAY => "the server does not know this way of pinging".to_owned(),
            code => format!("the server refuses for a reason of its own ({code})"),
        })
    }
}

impl fmt::Display for Refusal {
    /// The sentence for the server's user.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Foreign => f.write_str(
                "the client is no `oarlock ping -c`: its request carries no marker (rping and other programs are not served)",
            ),
            Self::Version(theirs) => write!(
                f,
                "the client speaks version {theirs} of the ping protocol, this program version {VERSION}"
            ),
            Self::Way(way) => write!(f, "the client wants way {way} of pinging, which is not known here"),
            Self::Size(size) => write!(
                f,
                "the client wants messages of {size} bytes, at most {MAX_SIZE} are possible"
            ),
            Self::Full(limit) => write!(f, "there are {limit} clients already"),
        }
    }
}

fn other_version(theirs: u8) -> String {
    format!(
        "the server speaks version {theirs} of the ping protocol, this program version {VERSION}: use one release on both sides"
    )
}

struct Fields {
    version: u8,
    code: u8,
    number: u32,
}

impl Fields {
    fn read(private_data: Option<&PaddedData>) -> Option<Self> {
        Self::at(private_data?.as_padded())
    }

    fn at(field: &[u8]) -> Option<Self> {
        let rest = field.strip_prefix(&MARKER)?;
        match *rest.first_chunk()? {
            [version, code, _, _, a, b, c, d] => Some(Self {
                version,
                code,
                number: u32::from_be_bytes([a, b, c, d]),
            }),
        }
    }
}

fn emit(version: u8, code: u8, number: u32) -> [u8; LEN] {
    let mut field = [0; LEN];
    field[..8].copy_from_slice(&MARKER);
    field[8] = version;
    field[9] = code;
    field[12..].copy_from_slice(&number.to_be_bytes());
    field
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A hello as another version would send it.
    pub(in crate::ping) fn hello_of_version(version: u8) -> [u8; LEN] {
        emit(version, Way::SEND.0, 64)
    }

    #[test]
    fn what_is_emitted_is_read() {
        let hello = Hello {
            way: Way::SEND,
            size: 0x0102_0304,
        };
        let fields = Fields::at(&hello.emit()).unwrap();
        assert_eq!(
            (fields.version, Way(fields.code), fields.number),
            (VERSION, Way::SEND, 0x0102_0304)
        );
    }

    #[test]
    fn what_carries_no_marker_is_foreign() {
        let whole = hello_of_version(VERSION);
        for len in 0..whole.len() {
            assert!(Fields::at(&whole[..len]).is_none(), "{len}");
        }
        for bit in 0..64 {
            let mut other = whole;
            other[bit / 8] ^= 1 << (bit % 8);
            assert!(Fields::at(&other).is_none(), "bit {bit}");
        }
        assert_eq!(Hello::asked(None), Err(Refusal::Foreign));
    }

    #[test]
    fn the_marker_is_not_that_of_cmatose() {
        assert!(!MARKER.starts_with(b"oarl"));
    }
}
