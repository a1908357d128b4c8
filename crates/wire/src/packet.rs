//! Whole packets: the headers that an opcode calls for, payload and padding, without the ICRC.
//!
//! ```text
//!  BTH  [DETH]  [AETH]  [ImmDt]  payload  padding to 4 bytes
//! ```

use crate::base::{Aeth, Bth, Deth, ImmDt};
use crate::error::{WireError, WireErrorKind};

/// The longest headers that [`PacketHeader::emit`] writes.
pub const MAX_HEADER_LEN: usize = Bth::LEN + Deth::LEN + Aeth::LEN + ImmDt::LEN;

/// The bytes that pad a payload of `payload_len` to a multiple of 4.
#[must_use]
pub const fn padding(payload_len: usize) -> usize {
    payload_len.wrapping_neg() & 0b11
}

/// The headers of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PacketHeader {
    /// The base transport header. Its padding count is set when the packet is emitted.
    pub bth: Bth,
    /// The datagram header, for UD opcodes.
    pub deth: Option<Deth>,
    /// The acknowledgement header, for acknowledgements.
    pub aeth: Option<Aeth>,
    /// The immediate data, for opcodes with immediate.
    pub immdt: Option<ImmDt>,
}

impl PacketHeader {
    /// Headers without an extended header.
    #[must_use]
    pub const fn new(bth: Bth) -> Self {
        Self {
            bth,
            deth: None,
            aeth: None,
            immdt: None,
        }
    }

    /// With a DETH.
    #[must_use]
    pub const fn with_deth(self, deth: Deth) -> Self {
        Self {
            deth: Some(deth),
            ..self
        }
    }

    /// With an AETH.
    #[must_use]
    pub const fn with_aeth(self, aeth: Aeth) -> Self {
        Self {
            aeth: Some(aeth),
            ..self
        }
    }

    /// With an ImmDt.
    #[must_use]
    pub const fn with_immdt(self, immdt: ImmDt) -> Self {
        Self {
            immdt: Some(immdt),
            ..self
        }
    }

    /// The length of the headers.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a header is never empty")]
    pub const fn len(&self) -> usize {
        let mut len = Bth::LEN;
        if self.deth.is_some() {
            len += Deth::LEN;
        }
        if self.aeth.is_some() {
            len += Aeth::LEN;
        }
        if self.immdt.is_some() {
            len += ImmDt::LEN;
        }
        len
    }

    /// Writes the headers of a packet with `payload_len` bytes of payload and returns their length. The padding count is
    /// that of the payload; the caller appends payload and [`padding`] zeros.
    ///
    /// # Errors
    /// `NoRoom` if `out` is too short; `HeaderSet` if the headers given are not those of the opcode;
    /// `UnsupportedOpcode` if the opcode calls for one that is not implemented.
    pub fn emit(&self, payload_len: usize, out: &mut [u8]) -> Result<usize, WireError> {
        let opcode = self.bth.opcode;
        let wanted = opcode.extended_headers().ok_or(unsupported(opcode.0))?;
        if (wanted.deth, wanted.aeth, wanted.immdt)
            != (
                self.deth.is_some(),
                self.aeth.is_some(),
                self.immdt.is_some(),
            )
        {
            return Err(WireError::new(
                "packet",
                "extended headers",
                WireErrorKind::HeaderSet(opcode.0),
            ));
        }
        let given = out.len();
        let mut writer = Writer { rest: out };
        let pad = padding(payload_len).to_le_bytes()[0];
        self.write(pad, &mut writer).ok_or(WireError::new(
            "packet",
            "headers",
            WireErrorKind::NoRoom {
                given,
                needed: self.len(),
            },
        ))?;
        Ok(self.len())
    }

    /// Writes a whole packet, headers, payload and padding, and returns its length.
    ///
    /// # Errors
    /// As [`emit`](Self::emit).
    pub fn emit_packet(&self, payload: &[u8], out: &mut [u8]) -> Result<usize, WireError> {
        let given = out.len();
        let header_len = self.emit(payload.len(), out)?;
        let payload_end = header_len + payload.len();
        let needed = payload_end + padding(payload.len());
        let rest = out.get_mut(header_len..needed).ok_or(WireError::new(
            "packet",
            "payload",
            WireErrorKind::NoRoom { given, needed },
        ))?;
        let (data, pad) = rest.split_at_mut(payload.len());
        data.copy_from_slice(payload);
        pad.fill(0);
        Ok(needed)
    }

    fn write(&self, pad: u8, writer: &mut Writer<'_>) -> Option<()> {
        Bth { pad, ..self.bth }.emit(writer.next()?);
        if let Some(deth) = self.deth {
            deth.emit(writer.next()?);
        }
        if let Some(aeth) = self.aeth {
            aeth.emit(writer.next()?);
        }
        if let Some(immdt) = self.immdt {
            immdt.emit(writer.next()?);
        }
        Some(())
    }
}

/// A packet, taken apart. The payload is borrowed, without its padding.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Packet<'a> {
    /// The base transport header.
    pub bth: Bth,
    /// The datagram header, for UD opcodes.
    pub deth: Option<Deth>,
    /// The acknowledgement header, for acknowledgements.
    pub aeth: Option<Aeth>,
    /// The immediate data, for opcodes with immediate.
    pub immdt: Option<ImmDt>,
    /// The payload, without its padding.
    pub payload: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Takes a packet apart. `bytes` are all of it but the ICRC.
    ///
    /// # Errors
    /// `Truncated` if the headers, or the padding they announce, do not fit; `UnsupportedVersion` for a transport
    /// version other than 0; `UnsupportedOpcode` for an opcode whose extended headers are not implemented.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, WireError> {
        let mut reader = Reader {
            rest: bytes,
            given: bytes.len(),
        };
        let bth = Bth::parse(reader.next("BTH")?);
        if bth.version != 0 {
            return Err(WireError::new(
                "BTH",
                "transport version",
                WireErrorKind::UnsupportedVersion(bth.version),
            ));
        }
        let wanted = bth
            .opcode
            .extended_headers()
            .ok_or(unsupported(bth.opcode.0))?;
        let deth = if wanted.deth {
            Some(Deth::parse(reader.next("DETH")?))
        } else {
            None
        };
        let aeth = if wanted.aeth {
            Some(Aeth::parse(reader.next("AETH")?))
        } else {
            None
        };
        let immdt = if wanted.immdt {
            Some(ImmDt::parse(reader.next("ImmDt")?))
        } else {
            None
        };
        let pad = usize::from(bth.pad);
        let payload_len = reader.rest.len().checked_sub(pad).ok_or(WireError::new(
            "packet",
            "padding",
            WireErrorKind::Truncated {
                given: reader.rest.len(),
                needed: pad,
            },
        ))?;
        Ok(Self {
            bth,
            deth,
            aeth,
            immdt,
            payload: &reader.rest[..payload_len],
        })
    }

    /// The headers alone.
    #[must_use]
    pub const fn header(&self) -> PacketHeader {
        PacketHeader {
            bth: self.bth,
            deth: self.deth,
            aeth: self.aeth,
            immdt: self.immdt,
        }
    }

    /// Writes the packet, padding included, and returns its length.
    ///
    /// # Errors
    /// As [`PacketHeader::emit`].
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, WireError> {
        self.header().emit_packet(self.payload, out)
    }
}

const fn unsupported(opcode: u8) -> WireError {
    WireError::new("BTH", "opcode", WireErrorKind::UnsupportedOpcode(opcode))
}

struct Reader<'a> {
    rest: &'a [u8],
    given: usize,
}

impl<'a> Reader<'a> {
    fn next<const N: usize>(&mut self, header: &'static str) -> Result<&'a [u8; N], WireError> {
        let (first, rest) = self.rest.split_first_chunk().ok_or_else(|| {
            let needed = self.given - self.rest.len() + N;
            WireError::new(
                header,
                "length",
                WireErrorKind::Truncated {
                    given: self.given,
                    needed,
                },
            )
        })?;
        self.rest = rest;
        Ok(first)
    }
}

struct Writer<'a> {
    rest: &'a mut [u8],
}

impl<'a> Writer<'a> {
    fn next<const N: usize>(&mut self) -> Option<&'a mut [u8; N]> {
        let (first, rest) = core::mem::take(&mut self.rest).split_first_chunk_mut()?;
        self.rest = rest;
        Some(first)
    }
}
