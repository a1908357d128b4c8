//! What a queue pair is made with, and what it reports.

use oarlock_wire::base::TransportClass;
use oarlock_wire::{Mtu, Qpn};

use crate::attr::{Limits, QpType};

/// Which reliable connected service a queue pair gives.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum RcKind {
    /// A reliable connection: both halves.
    #[default]
    Rc,
    /// The sending half of an extended reliable connection: no receives (IBA Vol. 1 Annex A14).
    XrcInitiator,
    /// The receiving half: no sends; each message names the shared receive queue that it is for.
    XrcTarget,
}

impl RcKind {
    /// The type of queue pair.
    #[must_use]
    pub const fn qp_type(self) -> QpType {
        match self {
            Self::Rc => QpType::Rc,
            Self::XrcInitiator => QpType::XrcInitiator,
            Self::XrcTarget => QpType::XrcTarget,
        }
    }

    /// The transport class of its packets.
    pub(super) const fn class(self) -> TransportClass {
        match self {
            Self::Rc => TransportClass::Rc,
            Self::XrcInitiator | Self::XrcTarget => TransportClass::Xrc,
        }
    }
}

/// What a queue pair is made with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RcConfig {
    /// Which service.
    pub kind: RcKind,
    /// Its number.
    pub qpn: Qpn,
    /// Depth of the send queue.
    pub max_send_wr: u32,
    /// Depth of the receive queue; 0 is taken for a queue pair that has none of its own.
    pub max_recv_wr: u32,
    /// Scatter/gather elements of a send.
    pub max_send_sge: u32,
    /// Scatter/gather elements of a receive.
    pub max_recv_sge: u32,
    /// Bytes of inline data of a send.
    pub max_inline: u32,
    /// Every send gives a completion, signalled or not.
    pub sq_sig_all: bool,
    /// Limit of [`QpAttr::max_dest_rd_atomic`](crate::QpAttr::max_dest_rd_atomic).
    pub max_qp_rd_atom: u8,
    /// Limit of [`QpAttr::max_rd_atomic`](crate::QpAttr::max_rd_atomic).
    pub max_qp_init_rd_atom: u8,
    /// Limit of [`QpAttr::path_mtu`](crate::QpAttr::path_mtu): what the port carries.
    pub mtu: Mtu,
    /// Packets of SENDs and WRITEs on their way at once, 1 to 2^22 (more would outrun the PSNs): keeps a receiver's socket
    /// buffer from overflowing.
    pub window: u32,
    /// Response packets of READs, and results of atomics, on their way at once, 1 to 2^22: keeps our own socket buffer from
    /// overflowing. A longer READ is asked for in pieces of half of it, rounded up.
    pub read_window: u32,
    /// Receive buffers come from shared receive queues, by
    /// [`Memory::take_shared_receive`](crate::Memory::take_shared_receive), and none are posted here. An XRC target is always
    /// so.
    pub shared_receives: bool,
    /// Tells the peer with every acknowledgement how many messages it may send (IBA Vol. 1 ch. 9 "End-to-end flow
    /// control"). Without it, and with shared receive queues, RNR NAKs regulate alone. What the peer tells is always
    /// respected.
    pub flow_control: bool,
    /// Within a message, every how many packets an acknowledgement is asked for, at least 1. The last packet of a
    /// message and the one that fills the window always ask.
    pub ack_interval: u32,
}

impl Default for RcConfig {
    fn default() -> Self {
        Self {
            kind: RcKind::Rc,
            qpn: Qpn::QP0,
            max_send_wr: 128,
            max_recv_wr: 128,
            max_send_sge: 4,
            max_recv_sge: 4,
            max_inline: 64,
            sq_sig_all: false,
            max_qp_rd_atom: 128,
            max_qp_init_rd_atom: 128,
            mtu: Mtu::MTU_4096,
            window: 64,
            read_window: 64,
            shared_receives: false,
            flow_control: false,
            ack_interval: 32,
        }
    }
}

/// Old and new PSNs are told apart by half of their 2^24 values; a quarter is enough for anyone.
const MAX_WINDOW: u32 = 1 << 22;

impl RcConfig {
    /// With every number in its range, and what the kind implies.
    pub(super) fn settled(self) -> Self {
        let receives_here = self.kind == RcKind::Rc && !self.shared_receives;
        Self {
            window: self.window.clamp(1, MAX_WINDOW),
            read_window: self.read_window.clamp(1, MAX_WINDOW),
            ack_interval: self.ack_interval.max(1),
            shared_receives: self.shared_receives || self.kind == RcKind::XrcTarget,
            max_recv_wr: if receives_here { self.max_recv_wr } else { 0 },
            max_send_wr: if self.kind == RcKind::XrcTarget {
                0
            } else {
                self.max_send_wr
            },
            ..self
        }
    }

    /// Packets of the responses to one READ request: fixed, so that a repetition never asks for more than the first request
    /// did (Interop: kernel soft RoCE drops one that does).
    pub(super) const fn piece(&self) -> u32 {
        self.read_window.div_ceil(2)
    }

    pub(super) const fn limits(&self) -> Limits {
        Limits {
            max_rd_atomic: self.max_qp_init_rd_atom,
            max_dest_rd_atomic: self.max_qp_rd_atom,
            mtu: self.mtu,
        }
    }
}

/// An asynchronous event of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum QpEvent {
    /// The first request has arrived since the queue pair can receive: the peer is established, although its RTU may
    /// still be on its way. Once per life.
    CommEst,
    /// The peer sent an invalid request; the queue pair is in the error state.
    RequestError,
    /// The peer wanted memory that it may not access so; the queue pair is in the error state.
    AccessError,
    /// The send queue has drained: state Sqd has been entered with
    /// [`QpAttr::sqd_notify`](crate::QpAttr::sqd_notify), and every request that was begun has completed.
    SqDrained,
    /// The queue pair uses a shared receive queue, is in the error state, and takes no more buffers of it.
    LastWqeReached,
    /// Memory that is offered to the peer is not there (the program has unmapped it), or the queue pair has otherwise failed
    /// by no fault of the peer; it is in the error state.
    Fatal,
}
