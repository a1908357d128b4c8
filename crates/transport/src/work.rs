//! Work requests: what a program asks of a queue pair.

use oarlock_wire::{AddressVector, LKey, QKey, Qpn, RKey, Srqn};

use crate::attr::{AccessFlags, QpType};
use crate::completion::WcOpcode;
use crate::error::Error;
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

impl SendWr<'_> {
    /// Bytes that the request moves.
    #[must_use]
    pub fn length(&self) -> u64 {
        match self.data {
            SendData::Inline(bytes) => bytes.len() as u64,
            SendData::Sges(sges) => sges.iter().map(|sge| u64::from(sge.len)).sum(),
        }
    }

    /// What can be said of a request without knowing a queue pair's state and sizes; gives its length.
    pub(crate) fn check(&self, qp_type: QpType) -> Result<u32, Error> {
        let operation = self.op.name();
        if !self.op.exists_on(qp_type) {
            return Err(Error::OperationNotSupported { operation, qp_type });
        }
        self.check_destination(qp_type)?;
        let flag_not_allowed = |flag| Error::FlagNotAllowed {
            flag,
            operation,
            qp_type,
        };
        if self.fence && matches!(qp_type, QpType::Uc | QpType::Ud) {
            return Err(flag_not_allowed("fence"));
        }
        if self.solicited && !self.op.completes_at_the_peer() {
            return Err(flag_not_allowed("solicited"));
        }
        self.check_data()
    }

    fn check_destination(&self, qp_type: QpType) -> Result<(), Error> {
        let operation = self.op.name();
        match (qp_type, self.ud) {
            (QpType::Ud, None) => return Err(Error::NoDestination),
            (QpType::Ud, Some(_)) | (_, None) => {}
            (_, Some(_)) => return Err(Error::UnexpectedDestination),
        }
        match (qp_type, self.xrc_srqn) {
            (QpType::XrcInitiator, None) if !self.op.is_local() => {
                Err(Error::NoSharedQueueNumber { operation })
            }
            (QpType::XrcInitiator, Some(_)) if !self.op.is_local() => Ok(()),
            (_, None) => Ok(()),
            (_, Some(_)) => Err(Error::UnexpectedSharedQueueNumber { operation, qp_type }),
        }
    }

    fn check_data(&self) -> Result<u32, Error> {
        let operation = self.op.name();
        match self.data {
            SendData::Inline(_) if self.op.brings_data() || self.op.is_local() => {
                return Err(Error::InlineNotAllowed { operation });
            }
            SendData::Sges(sges) if self.op.is_local() && !sges.is_empty() => {
                return Err(Error::DataNotAllowed {
                    operation,
                    given: sges.len(),
                });
            }
            _ => {}
        }
        let given = self.length();
        if self.op.is_atomic() && given != ATOMIC_LEN {
            return Err(Error::AtomicLength { operation, given });
        }
        let length = match u32::try_from(given) {
            Ok(length) if length <= MAX_MESSAGE_LEN => length,
            _ => {
                return Err(Error::MessageTooLong {
                    given,
                    max: MAX_MESSAGE_LEN,
                });
            }
        };
        if let Some(RemoteAddress { addr, .. }) = self.op.remote() {
            if self.op.is_atomic() && !addr.is_multiple_of(ATOMIC_LEN) {
                return Err(Error::AtomicMisaligned { operation, addr });
            }
            if u128::from(addr) + u128::from(length) > 1 << 64 {
                return Err(Error::RemoteRange {
                    operation,
                    addr,
                    len: given,
                });
            }
        }
        Ok(length)
    }
}

/// The longest message (IBA Vol. 1 ch. 9 "Message size").
pub const MAX_MESSAGE_LEN: u32 = 1 << 31;

const ATOMIC_LEN: u64 = 8;

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

    /// What the completion of a request with this operation says.
    #[must_use]
    pub const fn wc_opcode(&self) -> WcOpcode {
        match self {
            Self::Send | Self::SendWithImm(_) | Self::SendWithInvalidate(_) => WcOpcode::SEND,
            Self::Write(_) | Self::WriteWithImm(..) => WcOpcode::RDMA_WRITE,
            Self::Read(_) => WcOpcode::RDMA_READ,
            Self::CompareSwap { .. } => WcOpcode::COMP_SWAP,
            Self::FetchAdd { .. } => WcOpcode::FETCH_ADD,
            Self::LocalInvalidate(_) => WcOpcode::LOCAL_INV,
            Self::BindWindow(_) => WcOpcode::BIND_MW,
        }
    }

    /// The memory of the peer, for operations that name some.
    #[must_use]
    pub const fn remote(&self) -> Option<RemoteAddress> {
        match *self {
            Self::Write(remote)
            | Self::WriteWithImm(remote, _)
            | Self::Read(remote)
            | Self::CompareSwap { remote, .. }
            | Self::FetchAdd { remote, .. } => Some(remote),
            _ => None,
        }
    }

    /// The immediate value.
    pub(crate) const fn imm(&self) -> Option<u32> {
        match *self {
            Self::SendWithImm(imm) | Self::WriteWithImm(_, imm) => Some(imm),
            _ => None,
        }
    }

    /// Done by this side alone: no packet is sent.
    pub(crate) const fn is_local(&self) -> bool {
        matches!(self, Self::LocalInvalidate(_) | Self::BindWindow(_))
    }

    /// Answered by the peer with the value before.
    pub(crate) const fn is_atomic(&self) -> bool {
        matches!(self, Self::CompareSwap { .. } | Self::FetchAdd { .. })
    }

    /// Data come back from the peer.
    pub(crate) const fn brings_data(&self) -> bool {
        matches!(self, Self::Read(_)) || self.is_atomic()
    }

    /// IBA Vol. 1 ch. 11 "Post send request", the table of operations by transport service.
    const fn exists_on(&self, qp_type: QpType) -> bool {
        match qp_type {
            QpType::Rc | QpType::XrcInitiator => true,
            QpType::Uc => !self.brings_data() && !matches!(self, Self::SendWithInvalidate(_)),
            QpType::Ud => matches!(self, Self::Send | Self::SendWithImm(_)),
            QpType::XrcTarget => false,
        }
    }

    /// The receiver's completion, whose solicited bit the sender sets, exists.
    const fn completes_at_the_peer(&self) -> bool {
        matches!(
            self,
            Self::Send
                | Self::SendWithImm(_)
                | Self::SendWithInvalidate(_)
                | Self::WriteWithImm(..)
        )
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

#[cfg(test)]
mod tests;
