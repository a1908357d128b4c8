//! Whole packets: the headers that an opcode calls for, payload and padding, without the ICRC.
//!
//! ```text
//!  BTH  [DETH]  [XRCETH]  [RETH]  [AtomicETH]  [AETH]  [AtomicAckETH]  [ImmDt]  [IETH]  payload  padding to 4 bytes
//! ```
//!
//! | Packet | Extended headers |
//! |---|---|
//! | SEND | ImmDt or IETH in the last or only packet, with immediate or with invalidate |
//! | RDMA WRITE | RETH in the first or only packet; ImmDt in the last or only one, with immediate |
//! | RDMA READ request | RETH |
//! | RDMA READ response | AETH, but for those in the middle |
//! | acknowledge | AETH |
//! | compare-and-swap, fetch-and-add | AtomicETH |
//! | atomic acknowledge | AETH, AtomicAckETH |
//!
//! Every UD packet has a DETH before these, and every request of XRC an XRCETH (IBA Vol. 1 ch. 9; Annex A14).

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
        let given = self.extended_headers();
        let mut len = Bth::LEN;
        let mut i = 0;
        while i < LAYOUT.len() {
            let (header, _, header_len) = LAYOUT[i];
            if given.contains(header) {
                len += header_len;
            }
            i += 1;
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
        let Some(wanted) = opcode.extended_headers() else {
            return Err(unsupported(opcode.0));
        };
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
        Bth { pad, ..self.bth }.emit(writer.next().ok_or_else(|| self.no_room(given))?);
        if wanted != ExtendedHeaders::NONE && self.write_extended(&mut writer).is_none() {
            return Err(self.no_room(given));
        }
        Ok(given - writer.rest.len())
    }

    #[cold]
    const fn no_room(&self, given: usize) -> WireError {
        let needed = self.len();
        WireError::new("packet", "headers", WireErrorKind::NoRoom { given, needed })
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
        use ExtendedHeaders as H;
        H::given(H::DETH, self.deth.is_some())
            .union(H::given(H::XRCETH, self.xrceth.is_some()))
            .union(H::given(H::RETH, self.reth.is_some()))
            .union(H::given(H::ATOMIC_ETH, self.atomic_eth.is_some()))
            .union(H::given(H::AETH, self.aeth.is_some()))
            .union(H::given(H::ATOMIC_ACK_ETH, self.atomic_ack_eth.is_some()))
            .union(H::given(H::IMMDT, self.immdt.is_some()))
            .union(H::given(H::IETH, self.ieth.is_some()))
    }

    fn write_extended(&self, writer: &mut Writer<'_>) -> Option<()> {
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
        use ExtendedHeaders as H;
        let Some((bth, rest)) = bytes.split_first_chunk() else {
            let (given, needed) = (bytes.len(), Bth::LEN);
            let kind = WireErrorKind::Truncated { given, needed };
            return Err(WireError::new("BTH", "length", kind));
        };
        let Bth {
            opcode, version, ..
        } = Bth::parse(bth);
        if version != 0 {
            let kind = WireErrorKind::UnsupportedVersion(version);
            return Err(WireError::new("BTH", "transport version", kind));
        }
        match opcode.extended_headers() {
            Some(H::NONE) => {
                let bth = Bth::parse(bth);
                Ok(PacketHeader::new(bth).packet(unpadded(rest, bth.pad)?))
            }
            Some(H::AETH) => Self::parse_with(bth, rest, H::AETH, |header, bytes| {
                header.with_aeth(Aeth::parse(bytes))
            }),
            Some(H::RETH) => Self::parse_with(bth, rest, H::RETH, |header, bytes| {
                header.with_reth(Reth::parse(bytes))
            }),
            Some(H::IMMDT) => Self::parse_with(bth, rest, H::IMMDT, |header, bytes| {
                header.with_immdt(ImmDt::parse(bytes))
            }),
            Some(H::DETH) => Self::parse_with(bth, rest, H::DETH, |header, bytes| {
                header.with_deth(Deth::parse(bytes))
            }),
            Some(wanted) => Self::parse_extended(bth, wanted, rest),
            None => Err(unsupported(opcode.0)),
        }
    }

    /// A packet whose only extended header is `wanted`.
    #[inline]
    fn parse_with<const N: usize>(
        bth: &[u8; Bth::LEN],
        rest: &'a [u8],
        wanted: ExtendedHeaders,
        add: impl FnOnce(PacketHeader, &[u8; N]) -> PacketHeader,
    ) -> Result<Self, WireError> {
        let Some((bytes, payload)) = rest.split_first_chunk() else {
            return Err(truncated(rest.len(), wanted));
        };
        let bth = Bth::parse(bth);
        let header = add(PacketHeader::new(bth), bytes);
        Ok(header.packet(unpadded(payload, bth.pad)?))
    }

    /// A packet with any extended headers. Out of line: what this keeps in registers, the others would have to save.
    #[inline(never)]
    fn parse_extended(
        bth: &[u8; Bth::LEN],
        wanted: ExtendedHeaders,
        rest: &'a [u8],
    ) -> Result<Self, WireError> {
        use ExtendedHeaders as H;
        let mut reader = Reader {
            rest,
            all: rest.len(),
            wanted,
        };
        let bth = Bth::parse(bth);
        let header = PacketHeader {
            bth,
            deth: reader.header(H::DETH, Deth::parse)?,
            xrceth: reader.header(H::XRCETH, XrcEth::parse)?,
            reth: reader.header(H::RETH, Reth::parse)?,
            atomic_eth: reader.header(H::ATOMIC_ETH, AtomicEth::parse)?,
            aeth: reader.header(H::AETH, Aeth::parse)?,
            atomic_ack_eth: reader.header(H::ATOMIC_ACK_ETH, AtomicAckEth::parse)?,
            immdt: reader.header(H::IMMDT, ImmDt::parse)?,
            ieth: reader.header(H::IETH, Ieth::parse)?,
        };
        Ok(header.packet(unpadded(reader.rest, bth.pad)?))
    }

    /// As [`parse`](Self::parse), but an opcode that is reserved is no error: of such a packet only the base header is read, and
    /// `true` says so. That is what a responder of a reliable service needs to answer it as an invalid request (IBA Vol. 1 ch. 9
    /// "Inbound packet validation").
    ///
    /// # Errors
    /// As [`parse`](Self::parse), without `UnsupportedOpcode`.
    pub fn parse_or_base(bytes: &'a [u8]) -> Result<(Self, bool), WireError> {
        match Self::parse(bytes) {
            Ok(packet) => Ok((packet, false)),
            Err(error) => match (error.kind, bytes.first_chunk()) {
                (WireErrorKind::UnsupportedOpcode(_), Some(header)) => {
                    let header = PacketHeader::new(Bth::parse(header));
                    Ok((header.packet(&[]), true))
                }
                _ => Err(error),
            },
        }
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

/// The payload before `pad` bytes of padding.
#[inline]
fn unpadded(rest: &[u8], pad: u8) -> Result<&[u8], WireError> {
    let (given, needed) = (rest.len(), usize::from(pad));
    match given.checked_sub(needed) {
        Some(len) => Ok(&rest[..len]),
        None => Err(WireError::new(
            "packet",
            "padding",
            WireErrorKind::Truncated { given, needed },
        )),
    }
}

/// Which header does not fit into the `rest` bytes behind the BTH.
#[cold]
fn truncated(rest: usize, wanted: ExtendedHeaders) -> WireError {
    let given = Bth::LEN + rest;
    let (mut header, mut needed) = ("BTH", Bth::LEN);
    for (kind, name, len) in LAYOUT {
        if wanted.contains(kind) && needed <= given {
            (header, needed) = (name, needed + len);
        }
    }
    let kind = WireErrorKind::Truncated { given, needed };
    WireError::new(header, "length", kind)
}

/// The extended headers in their order, by name and length.
const LAYOUT: [(ExtendedHeaders, &str, usize); 8] = [
    (ExtendedHeaders::DETH, "DETH", Deth::LEN),
    (ExtendedHeaders::XRCETH, "XRCETH", XrcEth::LEN),
    (ExtendedHeaders::RETH, "RETH", Reth::LEN),
    (ExtendedHeaders::ATOMIC_ETH, "AtomicETH", AtomicEth::LEN),
    (ExtendedHeaders::AETH, "AETH", Aeth::LEN),
    (
        ExtendedHeaders::ATOMIC_ACK_ETH,
        "AtomicAckETH",
        AtomicAckEth::LEN,
    ),
    (ExtendedHeaders::IMMDT, "ImmDt", ImmDt::LEN),
    (ExtendedHeaders::IETH, "IETH", Ieth::LEN),
];

/// Takes the headers that are wanted off the front of what follows the BTH.
struct Reader<'a> {
    rest: &'a [u8],
    all: usize,
    wanted: ExtendedHeaders,
}

impl Reader<'_> {
    /// The header of this kind, if it is wanted. The kinds are asked for in their order.
    #[inline]
    fn header<const N: usize, T>(
        &mut self,
        kind: ExtendedHeaders,
        parse: impl FnOnce(&[u8; N]) -> T,
    ) -> Result<Option<T>, WireError> {
        if !self.wanted.contains(kind) {
            return Ok(None);
        }
        let Some((bytes, rest)) = self.rest.split_first_chunk() else {
            return Err(truncated(self.all, self.wanted));
        };
        self.rest = rest;
        Ok(Some(parse(bytes)))
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
