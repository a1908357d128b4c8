//! Whole packets: the headers that an opcode calls for, payload and padding, without the ICRC.
//!
//! ```text
//!  BTH  [DETH]  [XRCETH]  [RETH]  [AtomicETH]  [AETH]  [AtomicAckETH]  [ImmDt]  [IETH]  payload  padding to 4 bytes
//! ```

use crate::base::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, ExtendedHeaders, Ieth, ImmDt, Reth, XrcEth,
};
use crate::error::{WireError, WireErrorKind};

/// The longest headers that [`PacketHeader::emit`] writes.
pub const MAX_HEADER_LEN: usize = Bth::LEN + XrcEth::LEN + AtomicEth::LEN;

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
    /// The shared receive queue, for requests of XRC.
    pub xrceth: Option<XrcEth>,
    /// Address, key and length, for the first packet of a WRITE and for READ requests.
    pub reth: Option<Reth>,
    /// The operands of an atomic request.
    pub atomic_eth: Option<AtomicEth>,
    /// The acknowledgement header, for responses that acknowledge.
    pub aeth: Option<Aeth>,
    /// The value before an atomic operation, for its response.
    pub atomic_ack_eth: Option<AtomicAckEth>,
    /// The immediate data, for opcodes with immediate.
    pub immdt: Option<ImmDt>,
    /// The key to take away, for a SEND with invalidate.
    pub ieth: Option<Ieth>,
}

impl PacketHeader {
    /// Headers without an extended header.
    #[must_use]
    pub const fn new(bth: Bth) -> Self {
        Self {
            bth,
            deth: None,
            xrceth: None,
            reth: None,
            atomic_eth: None,
            aeth: None,
            atomic_ack_eth: None,
            immdt: None,
            ieth: None,
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

    /// With an XRCETH.
    #[must_use]
    pub const fn with_xrceth(self, xrceth: XrcEth) -> Self {
        Self {
            xrceth: Some(xrceth),
            ..self
        }
    }

    /// With a RETH.
    #[must_use]
    pub const fn with_reth(self, reth: Reth) -> Self {
        Self {
            reth: Some(reth),
            ..self
        }
    }

    /// With an AtomicETH.
    #[must_use]
    pub const fn with_atomic_eth(self, atomic_eth: AtomicEth) -> Self {
        Self {
            atomic_eth: Some(atomic_eth),
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

    /// With an AtomicAckETH.
    #[must_use]
    pub const fn with_atomic_ack_eth(self, atomic_ack_eth: AtomicAckEth) -> Self {
        Self {
            atomic_ack_eth: Some(atomic_ack_eth),
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

    /// With an IETH.
    #[must_use]
    pub const fn with_ieth(self, ieth: Ieth) -> Self {
        Self {
            ieth: Some(ieth),
            ..self
        }
    }

    /// A packet with these headers and `payload`.
    #[must_use]
    pub const fn packet<'a>(&self, payload: &'a [u8]) -> Packet<'a> {
        Packet {
            bth: self.bth,
            deth: self.deth,
            xrceth: self.xrceth,
            reth: self.reth,
            atomic_eth: self.atomic_eth,
            aeth: self.aeth,
            atomic_ack_eth: self.atomic_ack_eth,
            immdt: self.immdt,
            ieth: self.ieth,
            payload,
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
        if self.xrceth.is_some() {
            len += XrcEth::LEN;
        }
        if self.reth.is_some() {
            len += Reth::LEN;
        }
        if self.atomic_eth.is_some() {
            len += AtomicEth::LEN;
        }
        if self.aeth.is_some() {
            len += Aeth::LEN;
        }
        if self.atomic_ack_eth.is_some() {
            len += AtomicAckEth::LEN;
        }
        if self.immdt.is_some() {
            len += ImmDt::LEN;
        }
        if self.ieth.is_some() {
            len += Ieth::LEN;
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
        if self.extended_headers() != wanted {
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

    const fn extended_headers(&self) -> ExtendedHeaders {
        ExtendedHeaders {
            deth: self.deth.is_some(),
            xrceth: self.xrceth.is_some(),
            reth: self.reth.is_some(),
            atomic_eth: self.atomic_eth.is_some(),
            aeth: self.aeth.is_some(),
            atomic_ack_eth: self.atomic_ack_eth.is_some(),
            immdt: self.immdt.is_some(),
            ieth: self.ieth.is_some(),
        }
    }

    fn write(&self, pad: u8, writer: &mut Writer<'_>) -> Option<()> {
        Bth { pad, ..self.bth }.emit(writer.next()?);
        if let Some(deth) = self.deth {
            deth.emit(writer.next()?);
        }
        if let Some(xrceth) = self.xrceth {
            xrceth.emit(writer.next()?);
        }
        if let Some(reth) = self.reth {
            reth.emit(writer.next()?);
        }
        if let Some(atomic_eth) = self.atomic_eth {
            atomic_eth.emit(writer.next()?);
        }
        if let Some(aeth) = self.aeth {
            aeth.emit(writer.next()?);
        }
        if let Some(atomic_ack_eth) = self.atomic_ack_eth {
            atomic_ack_eth.emit(writer.next()?);
        }
        if let Some(immdt) = self.immdt {
            immdt.emit(writer.next()?);
        }
        if let Some(ieth) = self.ieth {
            ieth.emit(writer.next()?);
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
    /// The shared receive queue, for requests of XRC.
    pub xrceth: Option<XrcEth>,
    /// Address, key and length, for the first packet of a WRITE and for READ requests.
    pub reth: Option<Reth>,
    /// The operands of an atomic request.
    pub atomic_eth: Option<AtomicEth>,
    /// The acknowledgement header, for responses that acknowledge.
    pub aeth: Option<Aeth>,
    /// The value before an atomic operation, for its response.
    pub atomic_ack_eth: Option<AtomicAckEth>,
    /// The immediate data, for opcodes with immediate.
    pub immdt: Option<ImmDt>,
    /// The key to take away, for a SEND with invalidate.
    pub ieth: Option<Ieth>,
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
        let xrceth = if wanted.xrceth {
            Some(XrcEth::parse(reader.next("XRCETH")?))
        } else {
            None
        };
        let reth = if wanted.reth {
            Some(Reth::parse(reader.next("RETH")?))
        } else {
            None
        };
        let atomic_eth = if wanted.atomic_eth {
            Some(AtomicEth::parse(reader.next("AtomicETH")?))
        } else {
            None
        };
        let aeth = if wanted.aeth {
            Some(Aeth::parse(reader.next("AETH")?))
        } else {
            None
        };
        let atomic_ack_eth = if wanted.atomic_ack_eth {
            Some(AtomicAckEth::parse(reader.next("AtomicAckETH")?))
        } else {
            None
        };
        let immdt = if wanted.immdt {
            Some(ImmDt::parse(reader.next("ImmDt")?))
        } else {
            None
        };
        let ieth = if wanted.ieth {
            Some(Ieth::parse(reader.next("IETH")?))
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
            xrceth,
            reth,
            atomic_eth,
            aeth,
            atomic_ack_eth,
            immdt,
            ieth,
            payload: &reader.rest[..payload_len],
        })
    }

    /// The headers alone.
    #[must_use]
    pub const fn header(&self) -> PacketHeader {
        PacketHeader {
            bth: self.bth,
            deth: self.deth,
            xrceth: self.xrceth,
            reth: self.reth,
            atomic_eth: self.atomic_eth,
            aeth: self.aeth,
            atomic_ack_eth: self.atomic_ack_eth,
            immdt: self.immdt,
            ieth: self.ieth,
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
