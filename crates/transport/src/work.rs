//! Work requests: what a program asks of a queue pair.

use oarlock_wire::{AddressVector, QKey, Qpn};

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
    /// Starts only when all earlier READ and atomic requests have completed. None exist yet, so it never waits.
    pub fence: bool,
    /// Where a datagram goes: needed on a UD queue pair, refused on a connected one.
    pub ud: Option<UdDestination>,
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
