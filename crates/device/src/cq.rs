//! Completion queues and completion channels.

use std::any::Any;
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use oarlock_transport::Completion;
use oarlock_wire::{Qpn, Time};

use crate::context::Context;
use crate::error::Error;
use crate::event::AsyncEvent;
use crate::lead::Leading;
use crate::locks::lock;
use crate::qp::QpShared;
use crate::queue::EventQueue;

/// Names a completion queue within its context.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CqId(u64);

impl CqId {
    pub(crate) const fn new(number: u64) -> Self {
        Self(number)
    }
}

/// Which completions an armed completion queue reports on its channel.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[expect(clippy::exhaustive_enums, reason = "the specification's two kinds")]
pub enum Notify {
    /// Those of messages sent with the solicited-event bit, and failures.
    Solicited,
    /// Every one.
    Any,
}

/// One entry of a completion queue.
#[derive(Debug)]
pub struct Cqe {
    /// What the packet engine says.
    pub completion: Completion,
    timestamp: Time,
    qp: Arc<QpShared>,
}

impl Cqe {
    /// The queue pair whose work request it was; that may be destroyed already.
    pub fn qpn(&self) -> Qpn {
        self.qp.qpn()
    }

    /// When the request completed, on the device's clock ([`Context::now`]): when the entry came into the queue, after the
    /// last byte had been placed. [`Context::wall_clock`] tells what the wall clock showed.
    pub fn timestamp(&self) -> Time {
        self.timestamp
    }

    /// What was given as [`QpInit::user`](crate::QpInit::user).
    pub fn user(&self) -> Option<&Arc<dyn Any + Send + Sync>> {
        self.qp.user()
    }
}

/// A completion queue: a bounded ring.
///
/// Dropping the handle empties the ring; completions that come later are discarded.
#[doc(alias = "ibv_cq")]
pub struct Cq {
    shared: Arc<CqShared>,
}

pub(crate) struct CqShared {
    me: Weak<Self>,
    id: CqId,
    capacity: u32,
    cookie: u64,
    context: Arc<Context>,
    channel: Option<Arc<CompChannel>>,
    state: Mutex<State>,
    /// Wakes those in [`Cq::wait`].
    filled: Condvar,
    /// Who must go to the error state on overrun.
    qps: Mutex<Vec<Weak<QpShared>>>,
    events_reported: AtomicU64,
    events_acknowledged: AtomicU64,
}

struct State {
    ring: VecDeque<Cqe>,
    armed: Option<Notify>,
    waiters: usize,
    /// The leader waits for this queue.
    has_leader: bool,
    overrun: bool,
    closed: bool,
}

/// What became of a completion.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pushed {
    /// It is in the ring, or was not wanted any more.
    Done,
    /// It is lost, and it is the first one: the queue pairs of the queue must fail.
    Overrun,
}

impl Cq {
    /// A queue for `capacity` completions. `channel` reports events when the queue is armed;
    /// `cookie` comes back with them.
    ///
    /// # Errors
    /// `OutOfRange`: the capacity is zero or beyond the device's limit. `OtherContext`.
    #[doc(alias = "ibv_create_cq")]
    pub fn new(
        context: &Arc<Context>,
        capacity: u32,
        channel: Option<&Arc<CompChannel>>,
        cookie: u64,
    ) -> Result<Self, Error> {
        let max = context.device().limits.max_cqe;
        if capacity == 0 || capacity > max {
            return Err(Error::OutOfRange {
                parameter: "capacity of the completion queue",
                given: capacity.into(),
                min: 1,
                max: max.into(),
            });
        }
        if channel.is_some_and(|channel| !Arc::ptr_eq(&channel.context, context)) {
            return Err(Error::OtherContext {
                object: "completion channel",
            });
        }
        let shared = Arc::new_cyclic(|me| CqShared {
            me: Weak::clone(me),
            id: CqId::new(context.next_cq()),
            capacity,
            cookie,
            context: Arc::clone(context),
            channel: channel.map(Arc::clone),
            state: Mutex::new(State {
                ring: VecDeque::with_capacity(capacity.min(INITIAL_RING) as usize),
                armed: None,
                waiters: 0,
                has_leader: false,
                overrun: false,
                closed: false,
            }),
            filled: Condvar::new(),
            qps: Mutex::default(),
            events_reported: AtomicU64::new(0),
            events_acknowledged: AtomicU64::new(0),
        });
        context.enter_cq(&shared);
        Ok(Self { shared })
    }

    /// Names it in asynchronous events.
    pub fn id(&self) -> CqId {
        self.shared.id
    }

    /// How many completions it holds.
    pub fn capacity(&self) -> u32 {
        self.shared.capacity
    }

    /// The context it belongs to.
    pub fn context(&self) -> &Arc<Context> {
        &self.shared.context
    }

    /// The channel it reports on.
    pub fn channel(&self) -> Option<&Arc<CompChannel>> {
        self.shared.channel.as_ref()
    }

    /// Takes completions, oldest first, into the front of `out`; returns how many.
    ///
    /// If none is waiting, receives what has arrived at the port first, unless another thread is
    /// doing so.
    ///
    /// # Errors
    /// `CqOverrun`: the ring is empty, but completions have been lost.
    #[doc(alias = "ibv_poll_cq")]
    pub fn poll(&self, out: &mut [Option<Cqe>]) -> Result<usize, Error> {
        if out.is_empty() {
            return Ok(0);
        }
        let (taken, _) = self.shared.take(out);
        if taken > 0 {
            return Ok(taken);
        }
        self.shared.context.endpoint().core().progress_inline();
        match self.shared.take(out) {
            (0, true) => Err(Error::CqOverrun {
                capacity: self.shared.capacity,
            }),
            (taken, _) => Ok(taken),
        }
    }

    /// Sleeps until a completion is waiting or `timeout` has passed, whichever is first. Needs no
    /// channel. May return early.
    ///
    /// # Errors
    /// `DeviceFatal`: no completion is waiting, and none will come.
    ///
    /// # Blocking
    /// That is what it is for.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<(), Error> {
        let core = self.shared.context.endpoint().core();
        if let Some(leading) = core.try_lead() {
            return self.shared.sleep_leading(&leading, timeout);
        }
        // Somebody must receive while we sleep.
        core.cq_armed();
        let waited = self.shared.sleep(timeout);
        core.cq_disarmed();
        waited
    }

    /// Asks for one event on the channel at the next completion of this kind.
    ///
    /// A completion that is waiting already gives none: poll once more after arming.
    ///
    /// # Errors
    /// `NoChannel`.
    #[doc(alias = "ibv_req_notify_cq")]
    pub fn req_notify(&self, notify: Notify) -> Result<(), Error> {
        if self.shared.channel.is_none() {
            return Err(Error::NoChannel);
        }
        let newly = {
            let mut state = lock(&self.shared.state);
            // A wish for any completion is not weakened by one for solicited ones.
            let before = state.armed;
            state.armed = before.max(Some(notify));
            before.is_none()
        };
        if newly {
            self.shared.context.endpoint().core().cq_armed();
        }
        Ok(())
    }

    /// Events reported and not yet acknowledged.
    #[doc(alias = "ibv_ack_cq_events")]
    pub fn unacknowledged_events(&self) -> u64 {
        let acknowledged = self.shared.events_acknowledged.load(Ordering::Acquire);
        let reported = self.shared.events_reported.load(Ordering::Acquire);
        reported.saturating_sub(acknowledged)
    }

    pub(crate) fn shared(&self) -> &Arc<CqShared> {
        &self.shared
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        let (ring, was_armed) = {
            let mut state = lock(&self.shared.state);
            state.closed = true;
            (
                std::mem::take(&mut state.ring),
                state.armed.take().is_some(),
            )
        };
        // Outside the lock: an entry may hold the last reference to a queue pair and its buffers.
        drop(ring);
        if was_armed {
            self.shared.context.endpoint().core().cq_disarmed();
        }
        if let Some(channel) = &self.shared.channel {
            let id = self.shared.id;
            channel.events.retain(|event| event.cq.id != id);
        }
    }
}

impl std::fmt::Debug for Cq {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cq")
            .field("id", &self.shared.id)
            .field("capacity", &self.shared.capacity)
            .finish_non_exhaustive()
    }
}

impl CqShared {
    /// Enters a completion and reports it if the queue is armed for it.
    pub(crate) fn push(&self, completion: Completion, qp: &Arc<QpShared>) -> Pushed {
        let core = self.context.endpoint().core();
        let mut state = lock(&self.state);
        if state.closed {
            return Pushed::Done;
        }
        if state.ring.len() >= self.capacity as usize {
            core.counters().completions_lost.add(1);
            let first = !std::mem::replace(&mut state.overrun, true);
            return if first { Pushed::Overrun } else { Pushed::Done };
        }
        let wanted = match state.armed {
            None => false,
            Some(Notify::Any) => true,
            Some(Notify::Solicited) => completion.solicited || !completion.status.is_success(),
        };
        state.ring.push_back(Cqe {
            completion,
            timestamp: core.now(),
            qp: Arc::clone(qp),
        });
        if state.waiters > 0 {
            self.filled.notify_one();
        }
        if state.has_leader {
            core.lead().wake();
        }
        if wanted {
            state.armed = None;
            core.cq_disarmed();
            self.report();
        }
        Pushed::Done
    }

    /// Called with the state locked, so that no event follows the close of the queue.
    fn report(&self) {
        let Some(channel) = &self.channel else {
            return;
        };
        let Some(cq) = self.me.upgrade() else {
            return;
        };
        self.events_reported.fetch_add(1, Ordering::Release);
        channel.events.push(CqEvent { cq });
    }

    fn sleep(&self, timeout: Option<Duration>) -> Result<(), Error> {
        let mut state = lock(&self.state);
        if !state.ring.is_empty() || state.overrun {
            return Ok(());
        }
        // Looked at with the state locked: who sets it later wakes us (`wake_waiters`).
        if self.context.endpoint().core().is_over() {
            return Err(Error::DeviceFatal);
        }
        state.waiters += 1;
        let mut state = match timeout {
            None => self
                .filled
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner),
            Some(timeout) => {
                let waited = self.filled.wait_timeout(state, timeout);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        };
        state.waiters -= 1;
        Ok(())
    }

    /// Receives on this thread until something is in the ring or `timeout` has passed.
    fn sleep_leading(&self, leading: &Leading<'_>, timeout: Option<Duration>) -> Result<(), Error> {
        let end = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let core = self.context.endpoint().core();
        loop {
            {
                let mut state = lock(&self.state);
                if !state.ring.is_empty() || state.overrun {
                    return Ok(());
                }
                // The port is no longer ours; the flushed completions are still to come, and the
                // next call waits for them.
                if core.is_gone() {
                    return Ok(());
                }
                state.has_leader = true;
            }
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            let slept = leading.sleep(left);
            lock(&self.state).has_leader = false;
            if slept? {
                core.progress();
            } else if left == Some(Duration::ZERO) {
                return Ok(());
            }
        }
    }

    /// Ends every [`Cq::wait`].
    pub(crate) fn wake_waiters(&self) {
        let state = lock(&self.state);
        if state.has_leader {
            self.context.endpoint().core().lead().wake();
        }
        if state.waiters > 0 {
            self.filled.notify_all();
        }
    }

    pub(crate) fn attach(&self, qp: &Arc<QpShared>) {
        let mut qps = lock(&self.qps);
        // Pruned when it would grow, so that entering is cheap on average.
        if qps.len() == qps.capacity() {
            qps.retain(|qp| qp.strong_count() > 0);
            let left = qps.len();
            qps.reserve(left.max(1));
        }
        qps.push(Arc::downgrade(qp));
    }

    /// Tells the program of an overrun; returns the queue pairs that must fail.
    pub(crate) fn overrun(&self) -> Vec<Arc<QpShared>> {
        self.context.raise(AsyncEvent::CqOverrun(self.id));
        // The program may be asleep on the channel or in `wait`.
        {
            let mut state = lock(&self.state);
            if state.armed.take().is_some() {
                self.context.endpoint().core().cq_disarmed();
                self.report();
            }
        }
        self.wake_waiters();
        lock(&self.qps).iter().filter_map(Weak::upgrade).collect()
    }

    fn take(&self, out: &mut [Option<Cqe>]) -> (usize, bool) {
        let mut state = lock(&self.state);
        let count = out.len().min(state.ring.len());
        for (slot, cqe) in out.iter_mut().zip(state.ring.drain(..count)) {
            *slot = Some(cqe);
        }
        (count, state.overrun)
    }
}

/// Where armed completion queues report: a queue of events behind a descriptor.
#[doc(alias = "ibv_comp_channel")]
pub struct CompChannel {
    context: Arc<Context>,
    events: EventQueue<CqEvent>,
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
        self.events.try_pop()
    }

    /// The next event; `None` when `timeout` has passed.
    ///
    /// # Errors
    /// `WouldBlock`: the program has made the descriptor non-blocking and nothing is queued.
    #[doc(alias = "ibv_get_cq_event")]
    pub fn event(&self, timeout: Option<Duration>) -> Result<Option<CqEvent>, Error> {
        self.events.pop_wait(timeout)
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
}

impl CqEvent {
    /// Which queue.
    pub fn cq_id(&self) -> CqId {
        self.cq.id
    }

    /// The number given when the queue was created.
    pub fn cookie(&self) -> u64 {
        self.cq.cookie
    }

    /// Whether it is about `cq`.
    pub fn is_for(&self, cq: &Cq) -> bool {
        Arc::ptr_eq(&self.cq, &cq.shared)
    }
}

impl Drop for CqEvent {
    fn drop(&mut self) {
        self.cq.events_acknowledged.fetch_add(1, Ordering::Release);
    }
}

impl std::fmt::Debug for CqEvent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CqEvent")
            .field("cq", &self.cq.id)
            .field("cookie", &self.cq.cookie)
            .finish()
    }
}

/// The ring grows to its capacity when it needs to.
const INITIAL_RING: u32 = 64;
