//! Work requests: what a program asks of a queue pair.

use oarlock_wire::{AddressVector, LKey, QKey, Qpn, RKey, Srqn};

use crate::attr::AccessFlags;
use crate::memory::Sge;

/// A request for the send queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SendWr<'a> {
    /// Returned in the completion.
    pub wr_id: u64,
    /// What to do.
    pub op: SendOp,
    /// What to send.
    pub data: SendData<'a>,
    /// Asks for a completion when the request succeeds. Failures always give one.
    pub signaled: bool,
    /// Sets the solicited-event bit of the last packet.
    pub solicited: bool,
    /// Starts only when all earlier READ and atomic requests of the queue have completed.
    pub fence: bool,
    /// Where a datagram goes: needed on a UD queue pair, refused on a connected one.
    pub ud: Option<UdDestination>,
    /// The peer's shared receive queue: needed on an XRC initiator, refused elsewhere.
    pub xrc_srqn: Option<Srqn>,
}

/// Where one datagram goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UdDestination {
    /// The path: what an address handle is made of. For a multicast group the group's address is `remote`, and
    /// `scope_id` the interface it leaves by.
    #[doc(alias = "ibv_ah")]
    pub av: AddressVector,
    /// The receiving queue pair; [`Qpn::MULTICAST`] exactly for a multicast group.
    pub remote_qpn: Qpn,
    /// The key that the receiver demands. With the top bit set it stands for the sending queue pair's own key
    /// (IBA Vol. 1 ch. 10 "Q_Keys"): so a program can use a key that only a privileged caller may give a queue pair.
    pub remote_qkey: QKey,
}

impl Default for SendWr<'_> {
    /// A signalled SEND of no bytes.
    fn default() -> Self {
        Self {
            wr_id: 0,
            op: SendOp::Send,
            data: SendData::Sges(&[]),
            signaled: true,
            solicited: false,
            fence: false,
            ud: None,
            xrc_srqn: None,
        }
    }
}

/// The operation of a send-queue request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SendOp {
    /// SEND.
    Send,
    /// SEND with immediate: the value reaches the receiver's completion.
    SendWithImm(u32),
    /// SEND with invalidate: the receiver's key works no more when its completion is visible. RC and XRC.
    SendWithInvalidate(RKey),
    /// RDMA WRITE. RC, UC, XRC.
    Write(RemoteAddress),
    /// RDMA WRITE with immediate: takes a receive of the peer, whose completion has the value.
    WriteWithImm(RemoteAddress, u32),
    /// RDMA READ into the scatter/gather list, which the device must be allowed to write. RC, XRC.
    Read(RemoteAddress),
    /// Compare-and-swap; the value before goes to the scatter/gather list of 8 bytes, in host byte order. RC, XRC.
    CompareSwap {
        /// Where, a multiple of 8.
        remote: RemoteAddress,
        /// What the value is compared with.
        compare: u64,
        /// What is stored if it is equal.
        swap: u64,
    },
    /// Fetch-and-add; otherwise as [`CompareSwap`](Self::CompareSwap).
    FetchAdd {
        /// Where, a multiple of 8.
        remote: RemoteAddress,
        /// What is added, modulo 2^64.
        add: u64,
    },
    /// Takes the key of a type 2 window of this process away; no data. RC, UC, XRC.
    LocalInvalidate(RKey),
    /// Binds a memory window; no data. RC, UC, XRC.
    BindWindow(BindWindow),
}

impl SendOp {
    /// The name of the operation, for errors.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Send => "SEND",
            Self::SendWithImm(_) => "SEND with immediate",
            Self::SendWithInvalidate(_) => "SEND with invalidate",
            Self::Write(_) => "RDMA WRITE",
            Self::WriteWithImm(..) => "RDMA WRITE with immediate",
            Self::Read(_) => "RDMA READ",
            Self::CompareSwap { .. } => "compare-and-swap",
            Self::FetchAdd { .. } => "fetch-and-add",
            Self::LocalInvalidate(_) => "local invalidate",
            Self::BindWindow(_) => "bind window",
        }
    }
}

/// Memory of the peer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct RemoteAddress {
    /// Address of the first byte, as the peer's region counts.
    pub addr: u64,
    /// The peer's key.
    pub rkey: RKey,
}

/// What a memory window is bound to (IBA Vol. 1 ch. 10 "Memory windows").
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct BindWindow {
    /// The window's present key.
    pub window: RKey,
    /// The key it has from now on. Type 2: as the present one but for the low 8 bits, which are the program's to choose.
    /// Type 1: chosen by the device when the request was posted.
    pub rkey: RKey,
    /// The region; it must allow windows, and local writes if the window allows remote writes or atomics.
    pub region: LKey,
    /// First byte, as the region counts.
    pub addr: u64,
    /// Length in bytes; 0 unbinds a window of type 1.
    pub len: u64,
    /// What peers may do through the window, and whether its addresses count from 0.
    pub access: AccessFlags,
}

/// Where the bytes of a send-queue request come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SendData<'a> {
    /// Registered memory, read while packets are built (and rebuilt), until the completion.
    Sges(&'a [Sge]),
    /// Bytes copied when the request is posted.
    Inline(&'a [u8]),
}

/// A request for the receive queue: buffers for one message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RecvWr<'a> {
    /// Returned in the completion.
    pub wr_id: u64,
    /// Buffers that together take one message.
    pub sges: &'a [Sge],
}
