//! Shared receive queues: buffers that the messages of many queue pairs take in turn.
//!
//! A queue pair takes a buffer when the first packet of a message arrives that needs one, while its own lock is held; the
//! queue's lock comes after it (see `endpoint.rs`). Posting takes the queue's lock only, so that it never waits for a
//! packet.

use std::any::Any;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use oarlock_transport::{HeldReceive, RecvWr, SrqAttr, SrqConfig};
use oarlock_wire::Srqn;

use crate::cq::{Cq, CqShared};
use crate::error::Error;
use crate::event::{AsyncEvent, SrqId};
use crate::locks::lock;
use crate::pd::Pd;
use crate::xrc::XrcDomain;

/// What a shared receive queue is created with.
#[derive(Clone)]
pub struct SrqInit {
    /// Depth, 1 to the device's `max_srq_wr`.
    pub max_wr: u32,
    /// Scatter/gather elements of a receive, 1 to the device's `max_srq_sge`.
    pub max_sge: u32,
    /// For messages of XRC queue pairs: their domain, and where receives complete.
    pub xrc: Option<SrqXrc>,
    /// Comes back with every completion of a receive of the queue, and lives at least as long as the device may touch
    /// memory that a receive of the queue names.
    pub user: Option<Arc<dyn Any + Send + Sync>>,
}

/// What makes a shared receive queue one of XRC.
#[derive(Clone)]
pub struct SrqXrc {
    /// The domain: targets of this domain take buffers of the queue.
    pub domain: XrcDomain,
    /// Where its receives complete, whichever queue pair took them.
    pub cq: Arc<Cq>,
}

impl Default for SrqInit {
    fn default() -> Self {
        Self {
            max_wr: 64,
            max_sge: 4,
            xrc: None,
            user: None,
        }
    }
}

/// A shared receive queue.
///
/// It lives until the last handle and the last queue pair that uses it have gone: queue pairs hold it
/// ([`QpInit::srq`](crate::QpInit::srq)). A queue of XRC ends with its last handle: messages for it are refused from then
/// on, and what a message under way completes is discarded.
#[doc(alias = "ibv_srq")]
pub struct Srq {
    shared: Arc<SrqShared>,
    cq: Option<Arc<Cq>>,
}

pub(crate) struct SrqShared {
    id: SrqId,
    pd: Pd,
    queue: Mutex<oarlock_transport::Srq>,
    xrc: Option<Xrc>,
    /// Queue pairs that were created with it and exist.
    qps: AtomicUsize,
    /// Has events in its context's queue, or had.
    has_raised: AtomicBool,
    closed: AtomicBool,
    user: Option<Arc<dyn Any + Send + Sync>>,
}

struct Xrc {
    domain: XrcDomain,
    number: Srqn,
    cq: Arc<CqShared>,
}

impl Srq {
    /// Creates a queue; its buffers are looked up in `pd`, whichever queue pair takes them.
    ///
    /// # Errors
    /// `OutOfRange`: beyond a limit of the device, which the error names. `OtherContext`: of the XRC domain or the
    /// completion queue. `TooManySrqs`. `Forked`.
    #[doc(alias = "ibv_create_srq")]
    #[doc(alias = "ibv_create_srq_ex")]
    pub fn new(pd: &Pd, init: SrqInit) -> Result<Self, Error> {
        let context = pd.context();
        let core = context.endpoint().core();
        core.check_not_forked()?;
        let limits = context.device().limits;
        check_range(
            "max_wr of the shared receive queue",
            init.max_wr,
            1,
            limits.max_srq_wr,
        )?;
        check_range(
            "max_sge of the shared receive queue",
            init.max_sge,
            1,
            limits.max_srq_sge,
        )?;
        if let Some(xrc) = &init.xrc {
            if !Arc::ptr_eq(xrc.domain.context(), context) {
                return Err(Error::OtherContext {
                    object: "XRC domain",
                });
            }
            if !Arc::ptr_eq(xrc.cq.context(), context) {
                return Err(Error::OtherContext {
                    object: "completion queue of the shared receive queue",
                });
            }
        }
        core.enter_srq(limits.max_srq)?;
        let queue = oarlock_transport::Srq::new(SrqConfig {
            max_wr: init.max_wr,
            max_sge: init.max_sge,
        });
        let (cq, xrc) = match init.xrc {
            None => (None, None),
            Some(SrqXrc { domain, cq }) => {
                let xrc = Xrc {
                    number: domain.next_srqn(),
                    domain,
                    cq: Arc::clone(cq.shared()),
                };
                (Some(cq), Some(xrc))
            }
        };
        let shared = Arc::new(SrqShared {
            id: context.next_srq(),
            pd: pd.clone(),
            queue: Mutex::new(queue),
            xrc,
            qps: AtomicUsize::new(0),
            has_raised: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            user: init.user,
        });
        if let Some(xrc) = &shared.xrc {
            xrc.domain.enter_srq(xrc.number, &shared);
        }
        Ok(Self { shared, cq })
    }

    /// Names it in asynchronous events.
    pub fn id(&self) -> SrqId {
        self.shared.id
    }

    /// Its protection domain.
    pub fn pd(&self) -> &Pd {
        &self.shared.pd
    }

    /// Of XRC: the number by which peers name it.
    #[doc(alias = "ibv_get_srq_num")]
    pub fn number(&self) -> Option<Srqn> {
        self.shared.number()
    }

    /// Of XRC: its domain.
    pub fn xrc_domain(&self) -> Option<&XrcDomain> {
        self.shared.xrc.as_ref().map(|xrc| &xrc.domain)
    }

    /// Of XRC: where its receives complete.
    pub fn cq(&self) -> Option<&Arc<Cq>> {
        self.cq.as_ref()
    }

    /// How many queue pairs that were created with it exist.
    pub fn queue_pairs(&self) -> usize {
        self.shared.qps.load(Ordering::SeqCst)
    }

    /// Size and limit.
    #[doc(alias = "ibv_query_srq")]
    pub fn query(&self) -> SrqAttr {
        lock(&self.shared.queue).query()
    }

    /// Raises [`AsyncEvent::SrqLimitReached`] once when fewer than `limit` receives are posted, at once if that is so
    /// already; 0 takes the wish back.
    ///
    /// # Errors
    /// `QueuePair`: more than the queue holds. `Forked`.
    ///
    /// # Specification
    /// IBA Vol. 1 ch. 10 "Shared receive queue", SRQ limit.
    #[doc(alias = "ibv_modify_srq")]
    pub fn set_limit(&self, limit: u32) -> Result<(), Error> {
        self.check_not_forked()?;
        let reached = {
            let mut queue = lock(&self.shared.queue);
            queue.set_limit(limit)?;
            queue.poll_limit_reached()
        };
        if reached {
            self.shared.raise_limit();
        }
        Ok(())
    }

    /// Changes the depth. Posted receives stay.
    ///
    /// # Errors
    /// `OutOfRange`: beyond the device's limit. `QueuePair`: more receives are posted than would have room, or the limit is
    /// higher. `Forked`.
    #[doc(alias = "ibv_modify_srq")]
    pub fn resize(&self, max_wr: u32) -> Result<(), Error> {
        self.check_not_forked()?;
        let max = self.shared.pd.context().device().limits.max_srq_wr;
        check_range("max_wr of the shared receive queue", max_wr, 1, max)?;
        lock(&self.shared.queue).resize(max_wr)?;
        Ok(())
    }

    /// Posts buffers for one message.
    ///
    /// # Errors
    /// `QueuePair`: the queue is full, or there are too many elements. `Forked`.
    ///
    /// # Blocking
    /// Never for a packet: only while another thread posts or a buffer is taken.
    #[doc(alias = "ibv_post_srq_recv")]
    pub fn post_recv(&self, request: &RecvWr<'_>) -> Result<(), Error> {
        self.check_not_forked()?;
        lock(&self.shared.queue).post_recv(request)?;
        Ok(())
    }

    /// Posts many, in order, until one is refused.
    ///
    /// # Errors
    /// Index of the first one that was refused and why, as [`post_recv`](Self::post_recv); those before it are posted, it
    /// and those after it are not.
    #[doc(alias = "ibv_post_srq_recv")]
    pub fn post_recv_list(&self, requests: &[RecvWr<'_>]) -> Result<(), (usize, Error)> {
        self.check_not_forked().map_err(|error| (0, error))?;
        let mut queue = lock(&self.shared.queue);
        for (i, request) in requests.iter().enumerate() {
            queue
                .post_recv(request)
                .map_err(|error| (i, Error::from(error)))?;
        }
        Ok(())
    }

    pub(crate) fn shared(&self) -> &Arc<SrqShared> {
        &self.shared
    }

    fn check_not_forked(&self) -> Result<(), Error> {
        self.shared
            .pd
            .context()
            .endpoint()
            .core()
            .check_not_forked()
    }
}

impl Drop for Srq {
    fn drop(&mut self) {
        let shared = &self.shared;
        if shared.pd.context().endpoint().core().is_forked() {
            return;
        }
        shared.closed.store(true, Ordering::SeqCst);
        if let Some(xrc) = &shared.xrc {
            xrc.domain.forget_srq(xrc.number);
        }
        let context = shared.pd.context();
        context.endpoint().core().forget_srq();
        if shared.has_raised.load(Ordering::SeqCst) {
            let id = shared.id;
            context.forget_events(|event| event.srq_id() == Some(id));
        }
    }
}

impl std::fmt::Debug for Srq {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Srq")
            .field("id", &self.shared.id)
            .field("number", &self.number())
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for SrqShared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SrqShared")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl SrqShared {
    pub(crate) fn id(&self) -> SrqId {
        self.id
    }

    pub(crate) fn number(&self) -> Option<Srqn> {
        self.xrc.as_ref().map(|xrc| xrc.number)
    }

    pub(crate) fn pd(&self) -> &Pd {
        &self.pd
    }

    pub(crate) fn user(&self) -> Option<&Arc<dyn Any + Send + Sync>> {
        self.user.as_ref()
    }

    /// Of XRC: where receives complete.
    pub(crate) fn cq(&self) -> Option<&Arc<CqShared>> {
        self.xrc.as_ref().map(|xrc| &xrc.cq)
    }

    pub(crate) fn attach_qp(&self) {
        self.qps.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn detach_qp(&self) {
        self.qps.fetch_sub(1, Ordering::SeqCst);
    }

    /// Takes the oldest buffer; false if none is posted.
    pub(crate) fn take(&self, into: &mut HeldReceive) -> bool {
        let (taken, reached) = {
            let mut queue = lock(&self.queue);
            (queue.take(into), queue.poll_limit_reached())
        };
        if reached {
            self.raise_limit();
        }
        if taken {
            into.domain = self.pd.id();
            into.srqn = self.number();
        }
        taken
    }

    fn raise_limit(&self) {
        self.has_raised.store(true, Ordering::SeqCst);
        // Closed meanwhile: whoever closed it takes what was raised before out of the queue.
        if !self.closed.load(Ordering::SeqCst) {
            self.pd
                .context()
                .raise(AsyncEvent::SrqLimitReached(self.id));
        }
    }
}

pub(crate) fn check_range(
    parameter: &'static str,
    given: u32,
    min: u32,
    max: u32,
) -> Result<(), Error> {
    if (min..=max).contains(&given) {
        return Ok(());
    }
    Err(Error::OutOfRange {
        parameter,
        given: given.into(),
        min: min.into(),
        max: max.into(),
    })
}
