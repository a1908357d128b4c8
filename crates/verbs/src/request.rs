//! Requests for the send queue.

use oarlock_transport::{BindWindow, RemoteAddress, SendOp, UdDestination};
use oarlock_wire::{QKey, Qpn, RKey, Srqn};

use crate::address::AddressHandle;
use crate::buffer::{Access, Buffers};
use crate::memory::{Element, Elements};
use crate::remote::RemoteMemory;
use crate::window::MemoryWindow;

/// Bytes that are copied when the request is posted, at most
/// [`max_inline_data`](crate::QpInitAttr::max_inline_data) of the queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(clippy::exhaustive_structs, reason = "a name for a slice")]
pub struct Inline<'a>(pub &'a [u8]);

/// What a request sends, or where what it fetches goes: buffers, which the queue pair owns until the request has completed,
/// [`Elements`] of the program's memory, or [`Inline`] bytes, which can only be sent.
#[derive(Debug)]
pub struct Payload<'a>(pub(crate) Bytes<'a>);

#[derive(Debug)]
pub(crate) enum Bytes<'a> {
    Buffers(Buffers),
    Elements(Elements),
    Inline(&'a [u8]),
}

impl Payload<'_> {
    fn none() -> Self {
        Self(Bytes::Buffers(Buffers::new()))
    }
}

impl<T: Into<Buffers>> From<T> for Payload<'_> {
    fn from(buffers: T) -> Self {
        Self(Bytes::Buffers(buffers.into()))
    }
}

impl From<Elements> for Payload<'_> {
    fn from(elements: Elements) -> Self {
        Self(Bytes::Elements(elements))
    }
}

impl From<Element> for Payload<'_> {
    fn from(element: Element) -> Self {
        Elements::from(element).into()
    }
}

impl<'a> From<Inline<'a>> for Payload<'a> {
    fn from(Inline(bytes): Inline<'a>) -> Self {
        Self(Bytes::Inline(bytes))
    }
}

/// A request for the send queue: one operation, made by the function with its name and refined by methods.
///
/// What does not go together (an immediate value with a READ, a datagram's destination on a connected queue pair, a READ
/// of inline bytes) is refused by name when the request is posted; nothing is ignored.
#[doc(alias = "ibv_send_wr")]
#[derive(Debug)]
#[must_use]
pub struct SendRequest<'a> {
    pub(crate) wr_id: u64,
    pub(crate) op: SendOp,
    pub(crate) payload: Payload<'a>,
    /// A value that [`imm`](Self::imm) gave to an operation that takes none.
    pub(crate) misplaced_imm: bool,
    pub(crate) solicited: bool,
    pub(crate) signaled: bool,
    pub(crate) fence: bool,
    pub(crate) to: Option<UdDestination>,
    pub(crate) xrc_srqn: Option<Srqn>,
}

impl SendRequest<'static> {
    /// Sends the bytes of `payload`, one piece after the other, as one message.
    #[doc(alias = "IBV_WR_SEND")]
    pub fn new(wr_id: u64, payload: impl Into<Payload<'static>>) -> Self {
        Self::with(wr_id, SendOp::Send, payload.into())
    }

    /// Reads memory of the peer into `into`, whose lengths say how much; buffers come back with it in the completion.
    /// RC and XRC; needs `max_rd_atomic` of the queue pair.
    #[doc(alias = "IBV_WR_RDMA_READ")]
    pub fn read(wr_id: u64, into: impl Into<Payload<'static>>, remote: RemoteAddress) -> Self {
        Self::with(wr_id, SendOp::Read(remote), into.into())
    }

    /// Stores `swap` in 8 bytes of the peer if they are `compare`; the value before comes into `before`, a buffer or element
    /// of 8 bytes, in the byte order of this host. RC and XRC; needs `max_rd_atomic`.
    #[doc(alias = "IBV_WR_ATOMIC_CMP_AND_SWP")]
    pub fn compare_swap(
        wr_id: u64,
        before: impl Into<Payload<'static>>,
        remote: RemoteAddress,
        compare: u64,
        swap: u64,
    ) -> Self {
        let op = SendOp::CompareSwap {
            remote,
            compare,
            swap,
        };
        Self::with(wr_id, op, before.into())
    }

    /// Adds to 8 bytes of the peer, modulo 2^64; otherwise as [`compare_swap`](Self::compare_swap).
    #[doc(alias = "IBV_WR_ATOMIC_FETCH_AND_ADD")]
    pub fn fetch_add(
        wr_id: u64,
        before: impl Into<Payload<'static>>,
        remote: RemoteAddress,
        add: u64,
    ) -> Self {
        Self::with(wr_id, SendOp::FetchAdd { remote, add }, before.into())
    }

    /// Takes the key of a type 2 window of this queue pair away. It is executed when all requests before it have
    /// completed. RC, UC, XRC.
    #[doc(alias = "IBV_WR_LOCAL_INV")]
    pub fn local_invalidate(wr_id: u64, rkey: RKey) -> Self {
        Self::with(wr_id, SendOp::LocalInvalidate(rkey), Payload::none())
    }

    /// Binds a window of type 2, which must be free, to `len` bytes of `memory` from `offset` on; it has the key `rkey`
    /// then, which differs from the present one in its low 8 bits only (see [`MemoryWindow::next_key`]). It is executed
    /// when all requests before it have completed. RC, UC, XRC.
    ///
    /// With [`Access::ZERO_BASED`] peers count addresses in the window from 0, else as in the memory. A window of type 1
    /// is bound by [`QueuePair::bind_window`](crate::QueuePair::bind_window).
    #[doc(alias = "IBV_WR_BIND_MW")]
    pub fn bind(
        wr_id: u64,
        window: &MemoryWindow,
        rkey: RKey,
        memory: &RemoteMemory,
        offset: u64,
        len: u64,
        access: Access,
    ) -> Self {
        let bind = BindWindow {
            window: window.rkey(),
            rkey,
            region: memory.lkey(),
            addr: memory.at(offset).addr,
            len,
            access,
        };
        Self::with(wr_id, SendOp::BindWindow(bind), Payload::none())
    }
}

impl<'a> SendRequest<'a> {
    /// Sends `bytes`, which are copied when the request is posted.
    #[doc(alias = "IBV_SEND_INLINE")]
    pub fn inline(wr_id: u64, bytes: &'a [u8]) -> Self {
        Self::with(wr_id, SendOp::Send, Inline(bytes).into())
    }

    /// Sends a message that also takes a key of the peer away: it works no more when the peer sees the message's
    /// completion. RC and XRC.
    #[doc(alias = "IBV_WR_SEND_WITH_INV")]
    pub fn send_invalidate(wr_id: u64, payload: impl Into<Payload<'a>>, rkey: RKey) -> Self {
        Self::with(wr_id, SendOp::SendWithInvalidate(rkey), payload.into())
    }

    /// Writes to memory of the peer, which learns nothing of it. RC, UC, XRC.
    #[doc(alias = "IBV_WR_RDMA_WRITE")]
    pub fn write(wr_id: u64, payload: impl Into<Payload<'a>>, remote: RemoteAddress) -> Self {
        Self::with(wr_id, SendOp::Write(remote), payload.into())
    }

    /// Writes to memory of the peer and then takes a receive of it, whose completion has the value. RC, UC, XRC.
    #[doc(alias = "IBV_WR_RDMA_WRITE_WITH_IMM")]
    pub fn write_imm(
        wr_id: u64,
        payload: impl Into<Payload<'a>>,
        remote: RemoteAddress,
        imm: u32,
    ) -> Self {
        Self::with(wr_id, SendOp::WriteWithImm(remote, imm), payload.into())
    }

    fn with(wr_id: u64, op: SendOp, payload: Payload<'a>) -> Self {
        Self {
            wr_id,
            op,
            payload,
            misplaced_imm: false,
            solicited: false,
            signaled: true,
            fence: false,
            to: None,
            xrc_srqn: None,
        }
    }

    /// Sends the message as a datagram to a queue pair: needed on a UD queue pair, refused on a connected one.
    ///
    /// `remote_qkey` is the key that the receiver demands; with its top bit set it stands for the sending queue pair's
    /// own. To a multicast group, `remote_qpn` is [`Qpn::MULTICAST`].
    pub fn to(self, ah: &AddressHandle, remote_qpn: Qpn, remote_qkey: QKey) -> Self {
        Self {
            to: Some(UdDestination {
                av: ah.address_vector(),
                remote_qpn,
                remote_qkey,
            }),
            ..self
        }
    }

    /// The peer's shared receive queue: needed on an XRC initiator, refused elsewhere.
    pub fn srqn(self, srqn: Srqn) -> Self {
        Self {
            xrc_srqn: Some(srqn),
            ..self
        }
    }

    /// Sends an immediate value along with a SEND or a WRITE, which takes a receive of the peer then. With any other
    /// operation the request is refused when it is posted.
    pub fn imm(self, imm: u32) -> Self {
        let (op, misplaced_imm) = match self.op {
            SendOp::Send | SendOp::SendWithImm(_) => (SendOp::SendWithImm(imm), false),
            SendOp::Write(remote) | SendOp::WriteWithImm(remote, _) => {
                (SendOp::WriteWithImm(remote, imm), false)
            }
            other => (other, true),
        };
        Self {
            op,
            misplaced_imm,
            ..self
        }
    }

    /// Asks for an event at a receiver that waits for solicited messages. For operations that take a receive of the peer.
    #[doc(alias = "IBV_SEND_SOLICITED")]
    pub fn solicited(self) -> Self {
        Self {
            solicited: true,
            ..self
        }
    }

    /// Asks for no completion on success. The buffers come back in
    /// [`Completion::earlier`](crate::Completion::earlier) of a later one.
    pub fn unsignaled(self) -> Self {
        Self {
            signaled: false,
            ..self
        }
    }

    /// Starts only when all earlier READs and atomics of the queue pair have completed. RC and XRC.
    #[doc(alias = "IBV_SEND_FENCE")]
    pub fn fence(self) -> Self {
        Self {
            fence: true,
            ..self
        }
    }

    /// Its number, which the completion will carry.
    pub fn wr_id(&self) -> u64 {
        self.wr_id
    }

    /// Takes the buffers back out of a request that was not posted.
    pub fn into_buffers(self) -> Buffers {
        match self.payload.0 {
            Bytes::Buffers(buffers) => buffers,
            Bytes::Elements(_) | Bytes::Inline(_) => Buffers::new(),
        }
    }
}
