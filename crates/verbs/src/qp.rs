//! Queue pairs and work requests.

use std::sync::Arc;

use oarlock_device as device;
use oarlock_transport::{
    AttrMask, Counters, QpAttr, QpState, QpType, RecvWr, SendData, SendOp, SendWr, Sge,
    UdDestination,
};
use oarlock_wire::{Gid, QKey, Qpn};

use crate::address::AddressHandle;
use crate::buffer::{Buffer, Buffers};
use crate::cq::CompletionQueue;
use crate::error::{Error, PostError};
use crate::outstanding::Outstanding;
use crate::pd::ProtectionDomain;

/// Kind and sizes of a queue pair. What is more than the device's [`limits`](crate::DeviceInfo::limits) is refused with both
/// numbers.
#[doc(alias = "ibv_qp_init_attr")]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpInitAttr {
    /// The transport service: connected ([`QpType::Rc`]) or datagrams ([`QpType::Ud`]).
    pub qp_type: QpType,
    /// Depth of the send queue, at most `max_qp_wr`.
    pub max_send_wr: u32,
    /// Depth of the receive queue, at most `max_qp_wr`.
    pub max_recv_wr: u32,
    /// Buffers of one send, at most `max_sge`.
    pub max_send_sge: u32,
    /// Buffers of one receive, at most `max_sge`.
    pub max_recv_sge: u32,
    /// Bytes of inline data of one send, at most `max_inline_data`.
    pub max_inline_data: u32,
    /// Every send gives a completion, also those posted unsignaled.
    pub sq_sig_all: bool,
}

impl Default for QpInitAttr {
    /// Connected; 64 requests each way, up to 4 buffers each, 64 bytes inline.
    fn default() -> Self {
        let device = device::QpInit::default();
        Self {
            qp_type: device.qp_type,
            max_send_wr: device.max_send_wr,
            max_recv_wr: device.max_recv_wr,
            max_send_sge: device.max_send_sge,
            max_recv_sge: device.max_recv_sge,
            max_inline_data: device.max_inline_data,
            sq_sig_all: device.sq_sig_all,
        }
    }
}

/// A queue pair, reliable-connected or of unreliable datagrams. Clones are the same queue pair.
///
/// A connected one has one peer, given with `modify`, and its messages arrive once and in order. A UD one
/// ([`QpInitAttr::qp_type`]) sends to whomever each request names ([`SendRequest::to`]) and receives from anybody who
/// knows its Q_Key; a message is one packet, nothing is acknowledged, and before each received message stand
/// [`GRH_LEN`](crate::GRH_LEN) bytes of header. The documentation of the crate has an example of both ways.
///
/// When the last clone is dropped the device forgets it, without anybody waiting; completions that
/// are in the completion queues stay there and still bring their buffers back. The buffers of all
/// other requests are dropped once no thread of the device works for the queue pair.
#[doc(alias = "ibv_qp")]
#[derive(Clone, Debug)]
pub struct QueuePair {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    device: device::Qp,
    outstanding: Arc<Outstanding>,
    pd: ProtectionDomain,
    send_cq: CompletionQueue,
    recv_cq: CompletionQueue,
    sq_sig_all: bool,
}

/// A request to send one message.
#[doc(alias = "ibv_send_wr")]
#[derive(Debug)]
#[must_use]
pub struct SendRequest<'a> {
    wr_id: u64,
    payload: Payload<'a>,
    imm: Option<u32>,
    solicited: bool,
    signaled: bool,
    fence: bool,
    to: Option<UdDestination>,
}

#[derive(Debug)]
enum Payload<'a> {
    Buffers(Buffers),
    Inline(&'a [u8]),
}

impl SendRequest<'static> {
    /// Sends the bytes of `buffers`, one after the other, as one message.
    pub fn new(wr_id: u64, buffers: impl Into<Buffers>) -> Self {
        Self::with(wr_id, Payload::Buffers(buffers.into()))
    }
}

impl<'a> SendRequest<'a> {
    /// Sends `bytes`, which are copied when the request is posted.
    pub fn inline(wr_id: u64, bytes: &'a [u8]) -> Self {
        Self::with(wr_id, Payload::Inline(bytes))
    }

    fn with(wr_id: u64, payload: Payload<'a>) -> Self {
        Self {
            wr_id,
            payload,
            imm: None,
            solicited: false,
            signaled: true,
            fence: false,
            to: None,
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

    /// Sends an immediate value along.
    pub fn imm(self, imm: u32) -> Self {
        Self {
            imm: Some(imm),
            ..self
        }
    }

    /// Asks for an event at a receiver that waits for solicited messages.
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

    /// Starts only when all earlier reads and atomics have completed.
    pub fn fence(self) -> Self {
        Self {
            fence: true,
            ..self
        }
    }
}

impl QueuePair {
    /// Creates a queue pair in state Reset. Takes a slot of the RoCEv2 port if this process has
    /// none on this host.
    ///
    /// # Errors
    /// `Device`: a size is beyond the device's limits, a completion queue is of another context,
    /// too many queue pairs, no slot, or the host service is gone.
    ///
    /// # Blocking
    /// The first time, for the answer of the host service.
    #[doc(alias = "ibv_create_qp")]
    pub fn create(
        pd: &ProtectionDomain,
        send_cq: &CompletionQueue,
        recv_cq: &CompletionQueue,
        attr: QpInitAttr,
    ) -> Result<Self, Error> {
        let outstanding = Arc::new(Outstanding::default());
        let init = device::QpInit {
            qp_type: attr.qp_type,
            max_send_wr: attr.max_send_wr,
            max_recv_wr: attr.max_recv_wr,
            max_send_sge: attr.max_send_sge,
            max_recv_sge: attr.max_recv_sge,
            max_inline_data: attr.max_inline_data,
            sq_sig_all: attr.sq_sig_all,
            user: Some(Arc::clone(&outstanding) as _),
        };
        let device = device::Qp::new(pd.device(), send_cq.device(), recv_cq.device(), init)?;
        Ok(Self {
            inner: Arc::new(Inner {
                device,
                outstanding,
                pd: pd.clone(),
                send_cq: send_cq.clone(),
                recv_cq: recv_cq.clone(),
                sq_sig_all: attr.sq_sig_all,
            }),
        })
    }

    /// Its number.
    pub fn qpn(&self) -> Qpn {
        self.inner.device.qpn()
    }

    /// Its transport service.
    pub fn qp_type(&self) -> QpType {
        self.inner.device.qp_type()
    }

    /// Its state.
    pub fn state(&self) -> QpState {
        self.inner.device.state()
    }

    /// Its attributes; the mask names those that have been given.
    #[doc(alias = "ibv_query_qp")]
    pub fn query(&self) -> QpAttr {
        self.inner.device.query()
    }

    /// Its packet counters.
    pub fn counters(&self) -> Counters {
        self.inner.device.counters()
    }

    /// Its protection domain.
    pub fn pd(&self) -> &ProtectionDomain {
        &self.inner.pd
    }

    /// Where its sends complete.
    pub fn send_cq(&self) -> &CompletionQueue {
        &self.inner.send_cq
    }

    /// Where its receives complete.
    pub fn recv_cq(&self) -> &CompletionQueue {
        &self.inner.recv_cq
    }

    /// Changes state and attributes.
    ///
    /// To Error: all outstanding requests complete as flushed. To Reset: they are forgotten, and
    /// their buffers dropped.
    ///
    /// # Errors
    /// `Device`: which transition, and which attribute is missing, extra or out of range.
    #[doc(alias = "ibv_modify_qp")]
    pub fn modify(&self, attr: &QpAttr) -> Result<(), Error> {
        let is_reset = attr.mask.contains(AttrMask::STATE) && attr.state == QpState::Reset;
        if !is_reset {
            return Ok(self.inner.device.modify(attr)?);
        }
        // Both queues stay locked from before the device forgets until the entries are gone:
        // otherwise a request posted in between would lose its buffers while the device has them.
        let mut send = self.inner.outstanding.send();
        let mut recv = self.inner.outstanding.recv();
        self.inner.device.modify(attr)?;
        let forgotten = [send.clear(), recv.clear()];
        drop((send, recv));
        drop(forgotten);
        Ok(())
    }

    /// Moves to the error state: all outstanding requests complete as flushed.
    ///
    /// # Errors
    /// None that a queue pair can be in the state for; the signature is that of `modify`.
    pub fn to_error(&self) -> Result<(), Error> {
        self.modify(&QpAttr::to_state(QpState::Error))
    }

    /// Calls `hook` once when the peer's first request arrives, in place of the event
    /// [`CommEst`](crate::AsyncEvent::CommEst); at once, if that has happened: the peer is
    /// connected, although its RTU may be lost.
    ///
    /// The call comes from the engine thread and must not block for long; a hook that owns a clone
    /// of this queue pair keeps it alive for ever.
    pub fn on_comm_est(&self, hook: device::CommEstHook) {
        self.inner.device.on_comm_est(hook);
    }

    /// The program knows that the peer is connected: no hook is called and no event raised for it
    /// any more.
    pub fn ignore_comm_est(&self) {
        self.inner.device.ignore_comm_est();
    }

    /// Attaches a UD queue pair to a multicast group on its device: from now on it receives what is sent to the group
    /// with its Q_Key, its own messages included. Attached already, it stays so, and gets each message once. Dropping the
    /// queue pair detaches it.
    ///
    /// This makes the process a member of the group on this host; a network that carries groups between hosts is told
    /// by the system (IGMP, MLD).
    ///
    /// # Errors
    /// `Device`: the queue pair is connected, the address is not that of a group, the system refuses, or lets a process
    /// into no more groups, or the host service is gone.
    ///
    /// # Blocking
    /// Never.
    #[doc(alias = "ibv_attach_mcast")]
    pub fn attach_multicast(&self, group: Gid) -> Result<(), Error> {
        Ok(self.inner.device.attach_multicast(group)?)
    }

    /// Undoes [`attach_multicast`](Self::attach_multicast).
    ///
    /// # Errors
    /// `Device`: the queue pair is connected, the address is not that of a group, or it is not attached.
    ///
    /// # Blocking
    /// Never.
    #[doc(alias = "ibv_detach_mcast")]
    pub fn detach_multicast(&self, group: Gid) -> Result<(), Error> {
        Ok(self.inner.device.detach_multicast(group)?)
    }

    /// Posts buffers for one message. They come back in the completion. On a UD queue pair the first
    /// [`GRH_LEN`](crate::GRH_LEN) bytes are for the header.
    ///
    /// # Errors
    /// The buffers, and why: the state, the depth of the queue or the number of buffers with the
    /// limit.
    ///
    /// # Blocking
    /// Never.
    #[doc(alias = "ibv_post_recv")]
    pub fn post_recv(&self, wr_id: u64, buffers: impl Into<Buffers>) -> Result<(), PostError> {
        let mut queue = self.inner.outstanding.recv();
        let number = queue.enter(wr_id, buffers.into(), true);
        let posted = with_sges(queue.last(), |sges| {
            let request = RecvWr {
                wr_id: number,
                sges,
            };
            self.inner.device.post_recv(&request)
        });
        posted.map_err(|error| PostError {
            error,
            buffers: queue.withdraw(),
        })
    }

    /// Posts a message; what the window allows leaves from this thread. Its buffers come back in
    /// the completion.
    ///
    /// # Errors
    /// The buffers, and why: the state, the depth of the queue, the number of buffers or a length
    /// with the limit.
    ///
    /// # Blocking
    /// Never.
    #[doc(alias = "ibv_post_send")]
    pub fn post_send(&self, request: SendRequest<'_>) -> Result<(), PostError> {
        let (buffers, inline) = match request.payload {
            Payload::Buffers(buffers) => (buffers, None),
            Payload::Inline(bytes) => (Buffers::new(), Some(bytes)),
        };
        let signaled = request.signaled || self.inner.sq_sig_all;
        let mut queue = self.inner.outstanding.send();
        let number = queue.enter(request.wr_id, buffers, signaled);
        let posted = with_sges(queue.last(), |sges| {
            let request = SendWr {
                wr_id: number,
                op: request.imm.map_or(SendOp::Send, SendOp::SendWithImm),
                data: inline.map_or(SendData::Sges(sges), SendData::Inline),
                signaled: request.signaled,
                solicited: request.solicited,
                fence: request.fence,
                ud: request.to,
                xrc_srqn: None,
            };
            self.inner.device.post_send(&request)
        });
        posted.map_err(|error| PostError {
            error,
            buffers: queue.withdraw(),
        })
    }
}

impl PartialEq for QueuePair {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

impl Eq for QueuePair {}

/// Calls `post` with the elements of `buffers`; without an allocation for the usual few.
fn with_sges(
    buffers: &[Buffer],
    post: impl FnOnce(&[Sge]) -> Result<(), device::Error>,
) -> Result<(), Error> {
    if buffers.len() <= FEW {
        let mut sges = [Sge::default(); FEW];
        for (sge, buffer) in sges.iter_mut().zip(buffers) {
            *sge = buffer.sge()?;
        }
        Ok(post(&sges[..buffers.len()])?)
    } else {
        let sges: Vec<_> = buffers.iter().map(Buffer::sge).collect::<Result<_, _>>()?;
        Ok(post(&sges)?)
    }
}

const FEW: usize = 4;
