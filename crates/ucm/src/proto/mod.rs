//! What a process and the host service exchange, over a `SOCK_SEQPACKET` Unix socket: one message per packet.
//!
//! ```text
//!   0       4       5       6      8          12         16
//!   +-------+-------+-------+------+----------+----------+------------------+
//!   | magic | major | minor | kind | sequence | body len | body ...         |
//!   +-------+-------+-------+------+----------+----------+------------------+
//!     all little endian; a reply carries the sequence number of its request
//! ```
//!
//! **Versions.** The header and the body of [`Reply::Refused`] are the same in every version. A different major version is
//! refused with a sentence. A higher minor version may append fields to a body, which are skipped, and know more kinds,
//! which are answered with [`RefusalCode::UNKNOWN_REQUEST`]; fields that a lower minor version does not send have the value
//! that the field's documentation says. [`Header::read`] and [`Header::check`] are apart so that even a refused message can
//! be answered with its sequence number. Version 1.1 added to [`IdPage`] the backlog and the groups of identifiers, and the process
//! number that a client gives itself. Version 1.2 added the feed of device changes, faults on purpose, statistics, and to
//! [`DeviceInfo`] the state of the port. A program asks for the feed, so one of an earlier version is not sent any of it. Version 1.3
//! added captures in pcapng, and news of them to the feed, which an earlier version skips.
//!
//! **Bounds.** A message has at most [`MAX_MESSAGE`] bytes, and every count in it is checked against what is left before
//! anything is allocated.

mod capture;
mod changes;
mod codec;
mod devices;
mod reply;
mod request;
mod statistics;
#[cfg(test)]
mod tests;

pub use capture::{CaptureFailure, CaptureNews, CaptureScope, CaptureState};
pub use changes::{DeviceChange, DeviceChangeKind};
pub use codec::Malformed;
pub use devices::{DeviceInfo, DevicePage};
pub use reply::{
    BacklogInfo, ClientInfo, Hello, HostInfo, IdInfo, IdPage, PortInfo, Refusal, RefusalCode,
    Reply, WriteReply,
};
pub use request::{Acknowledged, DeviceFault, InjectFaults, Request, WriteBatch, WriteItem};
pub use statistics::{DeviceCounters, MAX_PAGE_FILE, Page, StatisticsPage};

use codec::{Reader, Writer};

/// The sequence number of a request that wants no answer: nothing is sent back, not even a refusal.
pub const NO_ANSWER: u32 = 0;
/// The most bytes that a message may have.
pub const MAX_MESSAGE: usize = 128 * 1024;
/// The most requests that one [`WriteBatch`] may have.
pub const MAX_BATCH: usize = 64;
/// The most bytes of one request in a batch, header included.
pub const MAX_REQUEST: usize = 1024;
/// The most bytes that may travel beside one request in a batch.
pub const MAX_INLINE: usize = 8192;
/// The most bytes of one answer in a batch.
pub const MAX_RESPONSE: usize = 1024;
/// The most bytes of a sentence; longer ones are cut at a character.
pub const MAX_SENTENCE: usize = 512;
/// The most counters that one reply may carry.
pub const MAX_COUNTERS: usize = 1024;
/// The most ports that one reply lists.
pub const MAX_PORTS: usize = 2048;
/// The most multicast groups that are listed for one identifier.
pub const MAX_GROUPS: usize = 64;
/// The most bytes of fault rules, and of a record that is replayed by the service.
pub const MAX_RULES_TEXT: usize = 48 * 1024;
/// The most bytes of a name.
pub const MAX_NAME: usize = 64;
/// The size of [`Header`] on the socket.
pub const HEADER_LEN: usize = 16;

const MAGIC: [u8; 4] = *b"oarK";

/// The version of this module.
pub const VERSION: Version = Version { major: 1, minor: 3 };

/// A version of the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// Grows when old and new cannot talk.
    pub major: u8,
    /// Grows when something is added.
    pub minor: u8,
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// What every message begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The sender's version.
    pub version: Version,
    /// What the body is.
    pub kind: u16,
    /// Chosen by the requester, repeated in the reply; see [`NO_ANSWER`].
    pub sequence: u32,
}

impl Header {
    /// Reads the header; the rest is the body. The version is not judged yet, see [`check`](Self::check).
    ///
    /// # Errors
    /// The bytes are no message of any version.
    pub fn read(message: &[u8]) -> Result<(Self, &[u8]), Malformed> {
        if message.len() > MAX_MESSAGE {
            return Err(Malformed::TooLong {
                given: message.len(),
                max: MAX_MESSAGE,
            });
        }
        let mut r = Reader::new(message);
        if r.array::<4>("magic")? != MAGIC {
            return Err(Malformed::NotOurs);
        }
        let version = Version {
            major: r.u8("major version")?,
            minor: r.u8("minor version")?,
        };
        let kind = r.u16("kind")?;
        let sequence = r.u32("sequence")?;
        let len = r.u32("body length")?;
        let body = r.rest();
        if usize::try_from(len) != Ok(body.len()) {
            return Err(Malformed::BodyLength {
                says: len,
                given: body.len(),
            });
        }
        Ok((
            Self {
                version,
                kind,
                sequence,
            },
            body,
        ))
    }

    /// Judges the version against ours.
    ///
    /// # Errors
    /// The major versions differ; the refusal says both.
    pub fn check(&self) -> Result<(), Refusal> {
        if self.version.major == VERSION.major {
            return Ok(());
        }
        let sentence = format!(
            "this service speaks version {VERSION} of the messages, the program speaks {}; use the same release for both",
            self.version
        );
        Err(Refusal {
            code: RefusalCode::VERSION,
            sentence,
        })
    }
}

/// Puts a header before a body.
fn frame(version: Version, kind: u16, sequence: u32, body: &[u8]) -> Vec<u8> {
    let mut w = Writer::with_capacity(HEADER_LEN + body.len());
    w.bytes(&MAGIC);
    w.u8(version.major);
    w.u8(version.minor);
    w.u16(kind);
    w.u32(sequence);
    w.u32(u32::try_from(body.len()).expect("a body is bounded by MAX_MESSAGE"));
    w.bytes(body);
    w.finish()
}

/// Closes the reading of a body: bytes that are left belong to a higher minor version, or to nobody.
fn end(header: &Header, rest: Reader<'_>) -> Result<(), Malformed> {
    let left = rest.rest().len();
    if left > 0 && header.version <= VERSION {
        return Err(Malformed::Trailing { left });
    }
    Ok(())
}
