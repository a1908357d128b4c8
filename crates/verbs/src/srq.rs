//! Shared receive queues.

use std::sync::Arc;

use oarlock_device as device;
use oarlock_transport::{RecvWr, SrqAttr};
use oarlock_wire::Srqn;

use crate::buffer::Buffers;
use crate::cq::CompletionQueue;
use crate::error::{Error, ListError, PostError};
use crate::memory::Elements;
use crate::outstanding::SharedReceives;
use crate::pd::ProtectionDomain;
use crate::qp::{with_receives, with_sges};
use crate::xrc::XrcDomain;

pub use device::SrqId;

/// Sizes of a shared receive queue.
#[doc(alias = "ibv_srq_init_attr")]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SrqInitAttr {
    /// Receives that can be posted, 1 to `max_srq_wr`.
    pub max_wr: u32,
    /// Buffers of one receive, 1 to `max_srq_sge`.
    pub max_sge: u32,
}

impl Default for SrqInitAttr {
    /// 64 receives of up to 4 buffers.
    fn default() -> Self {
        let device = device::SrqInit::default();
        Self {
            max_wr: device.max_wr,
            max_sge: device.max_sge,
        }
    }
}

/// A shared receive queue: receives that the messages of many queue pairs take in turn. Clones are the same queue.
///
/// A queue pair takes a receive with the first packet of a message that needs one, so receives complete in another order
/// than they were posted in; each brings its own buffers back. A queue pair that is reset or destroyed in the midst of a
/// message loses the receive that it had taken: the buffers are freed with the queue. To lose none, move it to the error
/// state first and wait for [`AsyncEvent::LastWqeReached`](crate::AsyncEvent::LastWqeReached).
#[doc(alias = "ibv_srq")]
#[derive(Clone, Debug)]
pub struct SharedReceiveQueue {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    device: Arc<device::Srq>,
    outstanding: Arc<SharedReceives>,
    pd: ProtectionDomain,
    xrc: Option<(XrcDomain, CompletionQueue)>,
}

impl SharedReceiveQueue {
    /// A queue whose buffers are of `pd`. Queue pairs are made for it by
    /// [`QueuePair::with_srq`](crate::QueuePair::with_srq).
    ///
    /// # Errors
    /// `Device`: a size is beyond the device's limits, or too many queues.
    #[doc(alias = "ibv_create_srq")]
    pub fn new(pd: &ProtectionDomain, attr: SrqInitAttr) -> Result<Self, Error> {
        Self::create(pd, attr, None)
    }

    /// A queue for messages to XRC targets of `domain`, whichever names it by its [`number`](Self::number); its receives
    /// complete on `cq`.
    ///
    /// # Errors
    /// As [`new`](Self::new); `Device`: the domain or the completion queue is of another context.
    #[doc(alias = "ibv_create_srq_ex")]
    pub fn xrc(
        pd: &ProtectionDomain,
        attr: SrqInitAttr,
        domain: &XrcDomain,
        cq: &CompletionQueue,
    ) -> Result<Self, Error> {
        Self::create(pd, attr, Some((domain.clone(), cq.clone())))
    }

    fn create(
        pd: &ProtectionDomain,
        attr: SrqInitAttr,
        xrc: Option<(XrcDomain, CompletionQueue)>,
    ) -> Result<Self, Error> {
        let outstanding = Arc::new(SharedReceives::default());
        let init = device::SrqInit {
            max_wr: attr.max_wr,
            max_sge: attr.max_sge,
            xrc: xrc.as_ref().map(|(domain, cq)| device::SrqXrc {
                domain: domain.device().clone(),
                cq: Arc::clone(cq.device()),
            }),
            user: Some(Arc::clone(&outstanding) as _),
        };
        let device = Arc::new(device::Srq::new(pd.device(), init)?);
        Ok(Self {
            inner: Arc::new(Inner {
                device,
                outstanding,
                pd: pd.clone(),
                xrc,
            }),
        })
    }

    /// Names it in events and completions.
    pub fn id(&self) -> SrqId {
        self.inner.device.id()
    }

    /// Of XRC: the number by which peers name it ([`SendRequest::srqn`](crate::SendRequest::srqn)).
    #[doc(alias = "ibv_get_srq_num")]
    pub fn number(&self) -> Option<Srqn> {
        self.inner.device.number()
    }

    /// Its protection domain.
    pub fn pd(&self) -> &ProtectionDomain {
        &self.inner.pd
    }

    /// Of XRC: its domain.
    pub fn xrc_domain(&self) -> Option<&XrcDomain> {
        self.inner.xrc.as_ref().map(|(domain, _)| domain)
    }

    /// Of XRC: where its receives complete.
    pub fn cq(&self) -> Option<&CompletionQueue> {
        self.inner.xrc.as_ref().map(|(_, cq)| cq)
    }

    /// Size and limit.
    #[doc(alias = "ibv_query_srq")]
    pub fn query(&self) -> SrqAttr {
        self.inner.device.query()
    }

    /// Raises [`AsyncEvent::SrqLimitReached`](crate::AsyncEvent::SrqLimitReached) once when fewer than `limit` receives are
    /// posted, at once if that is so already; 0 takes the wish back.
    ///
    /// # Errors
    /// `Device`: more than the queue holds.
    #[doc(alias = "ibv_modify_srq")]
    pub fn set_limit(&self, limit: u32) -> Result<(), Error> {
        Ok(self.inner.device.set_limit(limit)?)
    }

    /// Changes how many receives can be posted; those that are stay.
    ///
    /// # Errors
    /// `Device`: beyond the device's limit, or fewer than are posted, or than the limit of [`set_limit`](Self::set_limit).
    #[doc(alias = "ibv_modify_srq")]
    pub fn resize(&self, max_wr: u32) -> Result<(), Error> {
        Ok(self.inner.device.resize(max_wr)?)
    }

    /// Posts buffers for one message of any queue pair. They come back in the completion.
    ///
    /// # Errors
    /// The buffers, and why: the depth of the queue or the number of buffers with the limit.
    ///
    /// # Blocking
    /// Never.
    #[doc(alias = "ibv_post_srq_recv")]
    pub fn post_recv(&self, wr_id: u64, buffers: impl Into<Buffers>) -> Result<(), PostError> {
        let buffers = buffers.into();
        let mut table = self.inner.outstanding.lock();
        let number = table.enter(wr_id, buffers);
        let posted = with_sges(table.buffers(number), |sges| {
            let request = RecvWr {
                wr_id: number,
                sges,
            };
            self.inner.device.post_recv(&request)
        });
        posted.map_err(|error| PostError {
            error,
            buffers: table.take(number).1,
        })
    }

    /// Posts memory of the program for one message of any queue pair; otherwise as [`post_recv`](Self::post_recv). The completion
    /// brings no buffer: the message is where the elements say.
    ///
    /// # Errors
    /// Why: the depth of the queue or the number of elements with the limit.
    ///
    /// # Blocking
    /// Never.
    #[doc(alias = "ibv_post_srq_recv")]
    pub fn post_recv_into(&self, wr_id: u64, elements: impl Into<Elements>) -> Result<(), Error> {
        let mut table = self.inner.outstanding.lock();
        let number = table.enter(wr_id, Buffers::new());
        let elements = elements.into();
        let request = RecvWr {
            wr_id: number,
            sges: elements.sges(),
        };
        self.inner.device.post_recv(&request).map_err(|error| {
            table.take(number);
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
    #[doc(alias = "ibv_post_srq_recv")]
    pub fn post_recv_list<B: Into<Buffers>>(
        &self,
        requests: impl IntoIterator<Item = (u64, B)>,
    ) -> Result<(), ListError> {
        let mut table = self.inner.outstanding.lock();
        let numbers: Vec<_> = requests
            .into_iter()
            .map(|(wr_id, buffers)| table.enter(wr_id, buffers.into()))
            .collect();
        let receives = numbers
            .iter()
            .map(|number| (*number, table.buffers(*number)));
        let posted = with_receives(receives, |requests| {
            self.inner.device.post_recv_list(requests)
        });
        posted.map_err(|(index, error)| ListError {
            index,
            error,
            buffers: numbers[index..]
                .iter()
                .map(|number| table.take(*number).1)
                .collect(),
        })
    }

    pub(crate) fn device(&self) -> &Arc<device::Srq> {
        &self.inner.device
    }
}

impl PartialEq for SharedReceiveQueue {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

impl Eq for SharedReceiveQueue {}
