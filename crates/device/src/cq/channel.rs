//! Completion channels and the events on them.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use super::{Cq, CqId, CqShared};
use crate::context::Context;
use crate::error::Error;
use crate::queue::EventQueue;

/// Where armed completion queues report: a queue of events behind a descriptor.
#[doc(alias = "ibv_comp_channel")]
pub struct CompChannel {
    context: Arc<Context>,
    events: EventQueue<Arc<CqShared>>,
}

impl CompChannel {
    /// A channel for completion queues of `context`.
    ///
    /// # Errors
    /// `System`: no descriptor left.
    #[doc(alias = "ibv_create_comp_channel")]
    pub fn new(context: &Arc<Context>) -> Result<Arc<Self>, Error> {
        Ok(Arc::new(Self {
            context: Arc::clone(context),
            events: EventQueue::new()?,
        }))
    }

    /// The next event, if one is queued.
    #[doc(alias = "ibv_get_cq_event")]
    pub fn try_event(&self) -> Option<CqEvent> {
        self.events.try_pop().map(CqEvent::new)
    }

    /// The next event; `None` when `timeout` has passed.
    ///
    /// # Errors
    /// `WouldBlock`: the program has made the descriptor non-blocking and nothing is queued.
    #[doc(alias = "ibv_get_cq_event")]
    pub fn event(&self, timeout: Option<Duration>) -> Result<Option<CqEvent>, Error> {
        Ok(self.events.pop_wait(timeout)?.map(CqEvent::new))
    }

    /// The next event, for who has read(2) 8 bytes from the descriptor and so waited for it as the program has set it up
    /// (`O_NONBLOCK`, `SA_RESTART`); `None` if the event has gone in between: read again.
    ///
    /// # Blocking
    /// Never.
    #[doc(alias = "ibv_get_cq_event")]
    pub fn take_event(&self) -> Option<CqEvent> {
        let cq = self.events.take_counted(|cq| cq.event_taken())?;
        Some(CqEvent {
            cq,
            is_counted_by_program: false,
        })
    }

    pub(super) fn is_of(&self, context: &Arc<Context>) -> bool {
        Arc::ptr_eq(&self.context, context)
    }

    pub(super) fn report(&self, cq: Arc<CqShared>) {
        self.events.push(cq);
    }

    /// The queue is closed: its events are no news any more.
    pub(super) fn forget(&self, id: CqId) {
        self.events.retain(|cq| cq.id() != id);
    }
}

impl AsFd for CompChannel {
    /// Readable while events are queued.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}

impl std::fmt::Debug for CompChannel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CompChannel").finish_non_exhaustive()
    }
}

/// A completion queue has something: one event for one arming. Dropping it acknowledges it.
pub struct CqEvent {
    cq: Arc<CqShared>,
    /// Acknowledged by number, not by dropping it.
    is_counted_by_program: bool,
}

impl CqEvent {
    fn new(cq: Arc<CqShared>) -> Self {
        cq.event_taken();
        Self {
            cq,
            is_counted_by_program: false,
        }
    }

    /// Which queue.
    pub fn cq_id(&self) -> CqId {
        self.cq.id()
    }

    /// The number given when the queue was created.
    pub fn cookie(&self) -> u64 {
        self.cq.cookie()
    }

    /// The number given when the queue was created; the event stays in the program's hands until
    /// [`Cq::acknowledge`] is told of it.
    #[doc(alias = "ibv_get_cq_event")]
    pub fn into_cookie(mut self) -> u64 {
        self.is_counted_by_program = true;
        self.cookie()
    }

    /// Whether it is about `cq`.
    pub fn is_for(&self, cq: &Cq) -> bool {
        Arc::ptr_eq(&self.cq, cq.shared())
    }
}

impl Drop for CqEvent {
    fn drop(&mut self) {
        if !self.is_counted_by_program {
            self.cq.events_acknowledged(1);
        }
    }
}

impl std::fmt::Debug for CqEvent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CqEvent")
            .field("cq", &self.cq_id())
            .field("cookie", &self.cookie())
            .finish()
    }
}
