//! Reading and writing of bounded little-endian fields.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// Why bytes are not a message, or not the message that their header says.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Malformed {
    /// The magic number is missing.
    #[error("not a message of the host service")]
    NotOurs,
    /// More bytes than a message may have.
    #[error("a message of {given} bytes; at most {max} are allowed")]
    TooLong {
        /// How many there are.
        given: usize,
        /// How many are allowed.
        max: usize,
    },
    /// The header's length is not the body's.
    #[error("the header says a body of {says} bytes, but {given} follow")]
    BodyLength {
        /// What the header says.
        says: u32,
        /// How many bytes follow.
        given: usize,
    },
    /// The body ends inside a field.
    #[error("the message ends inside its {field}")]
    Truncated {
        /// The field.
        field: &'static str,
    },
    /// A field holds a value that it cannot have.
    #[error("{field} holds {value}; at most {max} is possible")]
    OutOfRange {
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
        /// The largest value possible.
        max: u64,
    },
    /// A text is not UTF-8.
    #[error("{field} is not text")]
    NotText {
        /// The field.
        field: &'static str,
    },
    /// Bytes are left after the last field.
    #[error("{left} bytes follow the last field")]
    Trailing {
        /// How many.
        left: usize,
    },
    /// A reply of a kind that this side does not know.
    #[error("a reply of unknown kind {kind}")]
    UnknownReply {
        /// Its kind.
        kind: u16,
    },
}

/// Takes fields off the front of a body.
#[derive(Clone, Copy)]
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    pub(super) const fn rest(self) -> &'a [u8] {
        self.bytes
    }

    fn take(&mut self, n: usize, field: &'static str) -> Result<&'a [u8], Malformed> {
        let (head, tail) = self
            .bytes
            .split_at_checked(n)
            .ok_or(Malformed::Truncated { field })?;
        self.bytes = tail;
        Ok(head)
    }

    pub(super) fn array<const N: usize>(
        &mut self,
        field: &'static str,
    ) -> Result<[u8; N], Malformed> {
        let (head, tail) = self
            .bytes
            .split_first_chunk::<N>()
            .ok_or(Malformed::Truncated { field })?;
        self.bytes = tail;
        Ok(*head)
    }

    pub(super) fn u8(&mut self, field: &'static str) -> Result<u8, Malformed> {
        self.array(field).map(u8::from_le_bytes)
    }

    pub(super) fn u16(&mut self, field: &'static str) -> Result<u16, Malformed> {
        self.array(field).map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self, field: &'static str) -> Result<u32, Malformed> {
        self.array(field).map(u32::from_le_bytes)
    }

    pub(super) fn i32(&mut self, field: &'static str) -> Result<i32, Malformed> {
        self.array(field).map(i32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, field: &'static str) -> Result<u64, Malformed> {
        self.array(field).map(u64::from_le_bytes)
    }

    pub(super) fn bool(&mut self, field: &'static str) -> Result<bool, Malformed> {
        match self.u8(field)? {
            value @ 0..=1 => Ok(value == 1),
            value => Err(Malformed::OutOfRange {
                field,
                value: value.into(),
                max: 1,
            }),
        }
    }

    /// A count of things that take at least `least` bytes each: neither above `max` nor more than can follow.
    pub(super) fn count(
        &mut self,
        field: &'static str,
        max: usize,
        least: usize,
    ) -> Result<usize, Malformed> {
        let value = self.u32(field)?;
        let max = max.min(self.bytes.len() / least.max(1));
        match usize::try_from(value) {
            Ok(n) if n <= max => Ok(n),
            _ => Err(Malformed::OutOfRange {
                field,
                value: value.into(),
                max: max as u64,
            }),
        }
    }

    pub(super) fn blob(&mut self, field: &'static str, max: usize) -> Result<Vec<u8>, Malformed> {
        let n = self.count(field, max, 1)?;
        self.take(n, field).map(<[u8]>::to_vec)
    }

    pub(super) fn text(&mut self, field: &'static str, max: usize) -> Result<String, Malformed> {
        String::from_utf8(self.blob(field, max)?).map_err(|_| Malformed::NotText { field })
    }

    pub(super) fn option<T>(
        &mut self,
        field: &'static str,
        read: impl FnOnce(&mut Self, &'static str) -> Result<T, Malformed>,
    ) -> Result<Option<T>, Malformed> {
        if self.bool(field)? {
            read(self, field).map(Some)
        } else {
            Ok(None)
        }
    }

    pub(super) fn ip(&mut self, field: &'static str) -> Result<IpAddr, Malformed> {
        match self.u8(field)? {
            4 => self
                .array(field)
                .map(|octets: [u8; 4]| Ipv4Addr::from(octets).into()),
            6 => self
                .array(field)
                .map(|octets: [u8; 16]| Ipv6Addr::from(octets).into()),
            value => Err(Malformed::OutOfRange {
                field,
                value: value.into(),
                max: 6,
            }),
        }
    }

    pub(super) fn socket_addr(&mut self, field: &'static str) -> Result<SocketAddr, Malformed> {
        let ip = self.ip(field)?;
        let port = self.u16(field)?;
        let scope_id = self.u32(field)?;
        Ok(match ip {
            IpAddr::V4(v4) => SocketAddrV4::new(v4, port).into(),
            IpAddr::V6(v6) => SocketAddrV6::new(v6, port, 0, scope_id).into(),
        })
    }
}

/// Appends fields to a body.
pub(super) struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    pub(super) fn with_capacity(capacity: usize) -> Self {
        Self {
            bytes: Vec::with_capacity(capacity),
        }
    }

    pub(super) fn finish(self) -> Vec<u8> {
        self.bytes
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    pub(super) fn u8(&mut self, value: u8) {
        self.bytes.push(value);
    }

    pub(super) fn u16(&mut self, value: u16) {
        self.bytes(&value.to_le_bytes());
    }

    pub(super) fn u32(&mut self, value: u32) {
        self.bytes(&value.to_le_bytes());
    }

    pub(super) fn i32(&mut self, value: i32) {
        self.bytes(&value.to_le_bytes());
    }

    pub(super) fn u64(&mut self, value: u64) {
        self.bytes(&value.to_le_bytes());
    }

    pub(super) fn bool(&mut self, value: bool) {
        self.u8(value.into());
    }

    pub(super) fn count(&mut self, n: usize) {
        self.u32(u32::try_from(n).expect("counts are bounded by MAX_MESSAGE"));
    }

    pub(super) fn blob(&mut self, bytes: &[u8]) {
        self.count(bytes.len());
        self.bytes(bytes);
    }

    /// A text of at most `max` bytes; what is longer is cut at a character.
    pub(super) fn text(&mut self, text: &str, max: usize) {
        let end = text.floor_char_boundary(max);
        self.blob(&text.as_bytes()[..end]);
    }

    pub(super) fn option<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Self, T)) {
        self.bool(value.is_some());
        if let Some(value) = value {
            write(self, value);
        }
    }

    pub(super) fn ip(&mut self, ip: IpAddr) {
        match ip {
            IpAddr::V4(v4) => {
                self.u8(4);
                self.bytes(&v4.octets());
            }
            IpAddr::V6(v6) => {
                self.u8(6);
                self.bytes(&v6.octets());
            }
        }
    }

    pub(super) fn socket_addr(&mut self, addr: SocketAddr) {
        self.ip(addr.ip());
        self.u16(addr.port());
        self.u32(match addr {
            SocketAddr::V4(_) => 0,
            SocketAddr::V6(v6) => v6.scope_id(),
        });
    }
}
