//! Queue pairs and work requests.

use std::sync::Arc;

use oarlock_device as device;
use oarlock_transport::{
    AttrMask, Counters, QpAttr, QpState, QpType, RecvWr, SendData, SendWr, Sge,
};
use oarlock_wire::{Gid, Qpn, RKey};

use crate::batch::Batch;
use crate::buffer::{Access, Buffer, Buffers};
use crate::context::Context;
use crate::cq::CompletionQueue;
use crate::error::{Error, ListError, PostError};
use crate::memory::Elements;
use crate::outstanding::{Outstanding, WorkQueue};
use crate::pd::ProtectionDomain;
use crate::remote::RemoteMemory;
use crate::request::{Bytes, SendRequest};
use crate::srq::SharedReceiveQueue;
use crate::window::MemoryWindow;
use crate::xrc::XrcDomain;

/// Kind and sizes of a queue pair. What is more than the device's [`limits`](crate::DeviceInfo::limits) is refused with both
/// numbers.
#[doc(alias = "ibv_qp_init_attr")]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpInitAttr {
    /// The transport service: connected ([`QpType::Rc`], [`QpType::Uc`]), datagrams ([`QpType::Ud`]), or the sending half of
    /// XRC ([`QpType::XrcInitiator`]); the receiving half is made by [`QueuePair::xrc_target`].
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

/// A queue pair of any transport service ([`QpInitAttr::qp_type`]). Clones are the same queue pair.
///
/// A connected one has one peer, given with `modify`. Over RC and XRC messages arrive once and in order; over UC they arrive
/// in order or are lost, and nobody is told. A UD one sends to whomever each request names ([`SendRequest::to`]) and
/// receives from anybody who knows its Q_Key; a message is one packet, nothing is acknowledged, and before each received
/// message stand [`GRH_LEN`](crate::GRH_LEN) bytes of header. The documentation of the crate has examples of all of them.
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
    srq: Option<SharedReceiveQueue>,
    sq_sig_all: bool,
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
        Self::make(pd, [send_cq, recv_cq], attr, None, None)
    }

    /// As [`create`](Self::create); receives are posted to `srq` and not to the queue pair. RC, UC and UD.
    ///
    /// # Errors
    /// As there; `Device`: the shared receive queue is of another context, or one of XRC.
    ///
    /// # Blocking
    /// As there.
    #[doc(alias = "ibv_create_qp")]
    pub fn with_srq(
        pd: &ProtectionDomain,
        send_cq: &CompletionQueue,
        recv_cq: &CompletionQueue,
        srq: &SharedReceiveQueue,
        attr: QpInitAttr,
    ) -> Result<Self, Error> {
        Self::make(pd, [send_cq, recv_cq], attr, Some(srq), None)
    }

    /// The receiving half of XRC: it takes receives of the shared receive queues of `domain`, and they complete where each
    /// of those says. It sends nothing; nothing completes on `cq`.
    ///
    /// # Errors
    /// As for [`create`](Self::create); `Device`: the domain is of another context.
    ///
    /// # Blocking
    /// As there.
    #[doc(alias = "ibv_create_qp_ex")]
    pub fn xrc_target(
        pd: &ProtectionDomain,
        cq: &CompletionQueue,
        domain: &XrcDomain,
    ) -> Result<Self, Error> {
        let attr = QpInitAttr {
            qp_type: QpType::XrcTarget,
            ..QpInitAttr::default()
        };
        Self::make(pd, [cq, cq], attr, None, Some(domain))
    }

    fn make(
        pd: &ProtectionDomain,
        [send_cq, recv_cq]: [&CompletionQueue; 2],
        attr: QpInitAttr,
        srq: Option<&SharedReceiveQueue>,
        domain: Option<&XrcDomain>,
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
            srq: srq.map(|srq| Arc::clone(srq.device())),
            xrc_domain: domain.map(|domain| domain.device().clone()),
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
                srq: srq.cloned(),
                sq_sig_all: attr.sq_sig_all,
            }),
        })
    }

    /// Another handle of an XRC target, which has no requests of its own.
    pub(crate) fn from_target(domain: &XrcDomain, device: device::Qp) -> Self {
        Self {
            inner: Arc::new(Inner {
                outstanding: Arc::default(),
                pd: ProtectionDomain::from_device(domain.context(), device.pd().clone()),
                send_cq: CompletionQueue::of_device(device.send_cq()),
                recv_cq: CompletionQueue::of_device(device.recv_cq()),
                srq: None,
                sq_sig_all: false,
                device,
            }),
        }
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

    /// Where its receives come from, if not from a queue of its own.
    pub fn srq(&self) -> Option<&SharedReceiveQueue> {
        self.inner.srq.as_ref()
    }

    /// The context it belongs to.
    pub fn context(&self) -> &Context {
        self.inner.pd.context()
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
        let posted = with_sges(queue.last(1).next().unwrap_or_default(), |sges| {
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

    /// Posts memory of the program for one message; otherwise as [`post_recv`](Self::post_recv). The completion brings no buffer:
    /// the message is where the elements say, from the first byte on.
    ///
    /// # Errors
    /// Why: the state, the depth of the queue or the number of elements with the limit.
    ///
    /// # Blocking
    /// Never.
    #[doc(alias = "ibv_post_recv")]
    pub fn post_recv_into(&self, wr_id: u64, elements: impl Into<Elements>) -> Result<(), Error> {
        let mut queue = self.inner.outstanding.recv();
        let number = queue.enter(wr_id, Buffers::new(), true);
        let elements = elements.into();
        let request = RecvWr {
            wr_id: number,
            sges: elements.sges(),
        };
        self.inner.device.post_recv(&request).map_err(|error| {
            queue.withdraw();
            error.into()
        })
    }

    /// Posts buffers for many messages, in order, until one is refused.
    ///
    /// # Errors
    /// Which one and why, as for [`post_recv`](Self::post_recv), and the buffers of it and those after it, which are not
    /// posted; those before it are.
    ///
    /// # Blocking
    /// Never.
    #[doc(alias = "ibv_post_recv")]
    pub fn post_recv_list<B: Into<Buffers>>(
        &self,
        requests: impl IntoIterator<Item = (u64, B)>,
    ) -> Result<(), ListError> {
        let mut queue = self.inner.outstanding.recv();
        let numbers: Vec<_> = requests
            .into_iter()
            .map(|(wr_id, buffers)| queue.enter(wr_id, buffers.into(), true))
            .collect();
        let count = numbers.len();
        let posted = with_receives(numbers.into_iter().zip(queue.last(count)), |requests| {
            self.inner.device.post_recv_list(requests)
        });
        posted.map_err(|(index, error)| {
            let mut buffers: Vec<_> = (index..count).map(|_| queue.withdraw()).collect();
            buffers.reverse();
            ListError {
                index,
                error,
                buffers,
            }
        })
    }

    /// Posts a request; what the window allows leaves from this thread. Its buffers come back in
    /// the completion.
    ///
    /// # Errors
    /// The buffers, and why: the state, the depth of the queue, the number of buffers or a length
    /// with the limit, an operation or a flag that the type of queue pair does not have.
    ///
    /// # Blocking
    /// Never.
    #[doc(alias = "ibv_post_send")]
    pub fn post_send(&self, request: SendRequest<'_>) -> Result<(), PostError> {
        let mut queue = self.inner.outstanding.send();
        let entered = Entered::new(&mut queue, request, self.inner.sq_sig_all);
        let posted = entered.check().and_then(|()| {
            let buffers = queue.last(1).next().unwrap_or_default();
            with_sges(buffers, |sges| {
                self.inner.device.post_send(&entered.work_request(sges))
            })
        });
        posted.map_err(|error| PostError {
            error,
            buffers: queue.withdraw(),
        })
    }

    /// Posts many requests, in order, until one is refused; their packets leave together.
    ///
    /// # Errors
    /// Which one and why, as for [`post_send`](Self::post_send), and the buffers of it and those after it, which are not
    /// posted; those before it are. [`batch`](Self::batch) posts all or none.
    ///
    /// # Blocking
    /// Never.
    #[doc(alias = "ibv_post_send")]
    pub fn post_send_list<'a>(
        &self,
        requests: impl IntoIterator<Item = SendRequest<'a>>,
    ) -> Result<(), ListError> {
        self.post_list(requests.into_iter().collect(), Refusal::Rest)
    }

    /// Gathers requests that are posted together or not at all.
    #[doc(alias = "ibv_wr_start")]
    pub fn batch<'a>(&self) -> Batch<'_, 'a> {
        Batch::new(self)
    }

    /// Posts all of the requests or none.
    pub(crate) fn post_all(&self, requests: Vec<SendRequest<'_>>) -> Result<(), ListError> {
        self.post_list(requests, Refusal::All)
    }

    fn post_list(&self, requests: Vec<SendRequest<'_>>, refusal: Refusal) -> Result<(), ListError> {
        let mut queue = self.inner.outstanding.send();
        let sq_sig_all = self.inner.sq_sig_all;
        let entered: Vec<_> = requests
            .into_iter()
            .map(|request| Entered::new(&mut queue, request, sq_sig_all))
            .collect();
        let posted = self.post_entered(&queue, &entered, refusal);
        let Err((index, error)) = posted else {
            return Ok(());
        };
        let kept = match refusal {
            Refusal::Rest => index,
            Refusal::All => 0,
        };
        let mut buffers: Vec<_> = (kept..entered.len()).map(|_| queue.withdraw()).collect();
        buffers.reverse();
        Err(ListError {
            index,
            error,
            buffers,
        })
    }

    /// Posts the last requests of `queue`, which are `entered`.
    fn post_entered(
        &self,
        queue: &WorkQueue,
        entered: &[Entered<'_>],
        refusal: Refusal,
    ) -> Result<(), (usize, Error)> {
        let mut sges = Vec::new();
        let mut ends = Vec::with_capacity(entered.len());
        let mut refused = None;
        for (index, (one, buffers)) in entered.iter().zip(queue.last(entered.len())).enumerate() {
            let before = sges.len();
            let named = one.check().and_then(|()| {
                for buffer in buffers {
                    sges.push(buffer.sge()?);
                }
                Ok(())
            });
            if let Err(error) = named {
                sges.truncate(before);
                refused = Some((index, error));
                break;
            }
            ends.push(sges.len());
        }
        if let Some(refused) = refused.take_if(|_| refusal == Refusal::All) {
            return Err(refused);
        }
        let mut start = 0;
        let requests: Vec<_> = entered
            .iter()
            .zip(ends)
            .map(|(one, end)| one.work_request(&sges[std::mem::replace(&mut start, end)..end]))
            .collect();
        match refusal {
            Refusal::Rest => self.inner.device.post_send_list(&requests),
            Refusal::All => self.inner.device.post_send_all(&requests),
        }
        .map_err(|(index, error)| (index, error.into()))?;
        refused.map_or(Ok(()), Err)
    }

    /// Binds a window of type 1 to `len` bytes of `memory` from `offset` on, and gives the key that it has from now on;
    /// peers can use it when the request has completed, and the one before no more. No bytes: the window becomes free.
    ///
    /// # Errors
    /// `Device`: the window is of type 2 (see [`SendRequest::bind`]), or as for [`post_send`](Self::post_send); the window
    /// is as before. What the memory does not allow is found when the request is executed, and ends it.
    ///
    /// # Blocking
    /// Never.
    #[doc(alias = "ibv_bind_mw")]
    pub fn bind_window(
        &self,
        wr_id: u64,
        window: &MemoryWindow,
        memory: &RemoteMemory,
        offset: u64,
        len: u64,
        access: Access,
    ) -> Result<RKey, Error> {
        let mut queue = self.inner.outstanding.send();
        let number = queue.enter(wr_id, Buffers::new(), true);
        let bind = device::WindowBind {
            wr_id: number,
            signaled: true,
            region: memory.lkey(),
            addr: memory.at(offset).addr,
            len,
            access,
        };
        let posted = self.inner.device.bind_window(window.device(), &bind);
        posted.map_err(|error| {
            queue.withdraw();
            error.into()
        })
    }
}

impl PartialEq for QueuePair {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

impl Eq for QueuePair {}

/// What is not posted of a list of which one request is refused.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Refusal {
    /// That one and those after it.
    Rest,
    All,
}

/// A send request whose buffers are in the table already.
struct Entered<'a> {
    number: u64,
    inline: Option<&'a [u8]>,
    elements: Option<Elements>,
    request: SendRequest<'a>,
}

impl<'a> Entered<'a> {
    /// Moves the buffers of `request` into the table.
    fn new(queue: &mut WorkQueue, mut request: SendRequest<'a>, sq_sig_all: bool) -> Self {
        let nothing = Bytes::Inline(&[]);
        let (buffers, inline, elements) = match std::mem::replace(&mut request.payload.0, nothing) {
            Bytes::Buffers(buffers) => (buffers, None, None),
            Bytes::Elements(elements) => (Buffers::new(), None, Some(elements)),
            Bytes::Inline(bytes) => (Buffers::new(), Some(bytes), None),
        };
        let number = queue.enter(request.wr_id, buffers, request.signaled || sq_sig_all);
        Self {
            number,
            inline,
            elements,
            request,
        }
    }

    fn check(&self) -> Result<(), Error> {
        if self.request.misplaced_imm {
            return Err(Error::NoImmediate {
                operation: self.request.op.name(),
            });
        }
        Ok(())
    }

    /// The request, whose buffers are `sges`.
    fn work_request<'b>(&'b self, sges: &'b [Sge]) -> SendWr<'b> {
        let sges = self.elements.as_ref().map_or(sges, Elements::sges);
        SendWr {
            wr_id: self.number,
            op: self.request.op,
            data: self.inline.map_or(SendData::Sges(sges), SendData::Inline),
            signaled: self.request.signaled,
            solicited: self.request.solicited,
            fence: self.request.fence,
            ud: self.request.to,
            xrc_srqn: self.request.xrc_srqn,
        }
    }
}

/// Calls `post` with the elements of `buffers`; without an allocation for the usual few.
pub(crate) fn with_sges(
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

/// Calls `post` with the receives of these numbers and buffers, as far as they can be named to the device.
pub(crate) fn with_receives<'a>(
    receives: impl Iterator<Item = (u64, &'a [Buffer])>,
    post: impl FnOnce(&[RecvWr<'_>]) -> Result<(), (usize, device::Error)>,
) -> Result<(), (usize, Error)> {
    let mut sges = Vec::new();
    let mut ends = Vec::new();
    let mut refused = None;
    for (number, buffers) in receives {
        let before = sges.len();
        for buffer in buffers {
            match buffer.sge() {
                Ok(sge) => sges.push(sge),
                Err(error) => refused = Some((ends.len(), error)),
            }
        }
        if refused.is_some() {
            sges.truncate(before);
            break;
        }
        ends.push((number, sges.len()));
    }
    let mut start = 0;
    let requests: Vec<_> = ends
        .into_iter()
        .map(|(wr_id, end)| RecvWr {
            wr_id,
            sges: &sges[std::mem::replace(&mut start, end)..end],
        })
        .collect();
    post(&requests).map_err(|(index, error)| (index, error.into()))?;
    refused.map_or(Ok(()), Err)
}

const FEW: usize = 4;
