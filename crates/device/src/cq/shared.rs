//! What queue pairs, events and the handle share of a completion queue.

use std::collections::VecDeque;
use std::ptr;
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use oarlock_transport::Completion;
use oarlock_wire::Time;

use super::{CompChannel, CqId, Cqe, Notify};
use crate::context::Context;
use crate::error::Error;
use crate::event::AsyncEvent;
use crate::lead::Leading;
use crate::locks::lock;
use crate::qp::QpShared;
use crate::srq::SrqShared;

pub(crate) struct CqShared {
    me: Weak<Self>,
    id: CqId,
    cookie: u64,
    context: Arc<Context>,
    channel: Option<Arc<CompChannel>>,
    state: Mutex<State>,
    /// Wakes those in `wait`.
    filled: Condvar,
    /// Who must go to the error state on overrun.
    qps: Mutex<Vec<Weak<QpShared>>>,
    /// Events in the program's hands.
    unacknowledged: Mutex<u64>,
    /// Wakes those who wait for the last of them.
    acknowledged: Condvar,
}

/// The ring and who waits for it.
pub(crate) struct State {
    ring: VecDeque<Cqe>,
    capacity: u32,
    armed: Option<Armed>,
    moderation: Moderation,
    /// Time of this queue's entry in the timers that counts.
    scheduled: Option<Time>,
    waiters: usize,
    /// The leader waits for this queue.
    has_leader: bool,
    overrun: bool,
    closed: bool,
}

/// The program has asked for an event.
#[derive(Clone, Copy)]
struct Armed {
    notify: Notify,
    /// Completions of that kind since.
    gathered: u32,
    /// When the first of them came.
    since: Option<Time>,
}

/// How many completions an event waits for, and how long; see [`Cq::moderate`](super::Cq::moderate).
#[derive(Clone, Copy)]
struct Moderation {
    count: u16,
    period: Duration,
}

impl Moderation {
    const NONE: Self = Self {
        count: 1,
        period: Duration::ZERO,
    };

    fn is_satisfied_by(&self, gathered: u32) -> bool {
        self.period.is_zero() || gathered >= self.count.into()
    }
}

/// What became of a completion.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pushed {
    /// It is in the ring, or was not wanted any more.
    Done,
    /// It is lost, and it is the first one: the queue pairs of the queue must fail.
    Overrun,
}

/// What a completion, or the time, means for whoever has armed the queue.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Due {
    /// An event.
    Now,
    /// An event at this time, if no other completion brings it before.
    At(Time),
    Nothing,
}

impl CqShared {
    pub(super) fn new(
        me: Weak<Self>,
        id: CqId,
        context: &Arc<Context>,
        capacity: u32,
        channel: Option<&Arc<CompChannel>>,
        cookie: u64,
    ) -> Self {
        Self {
            me,
            id,
            cookie,
            context: Arc::clone(context),
            channel: channel.map(Arc::clone),
            state: Mutex::new(State {
                ring: VecDeque::with_capacity(capacity.min(INITIAL_RING) as usize),
                capacity,
                armed: None,
                moderation: Moderation::NONE,
                scheduled: None,
                waiters: 0,
                has_leader: false,
                overrun: false,
                closed: false,
            }),
            filled: Condvar::new(),
            qps: Mutex::default(),
            unacknowledged: Mutex::new(0),
            acknowledged: Condvar::new(),
        }
    }

    pub(super) fn id(&self) -> CqId {
        self.id
    }

    pub(super) fn cookie(&self) -> u64 {
        self.cookie
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(super) fn channel(&self) -> Option<&Arc<CompChannel>> {
        self.channel.as_ref()
    }

    pub(super) fn state(&self) -> &Mutex<State> {
        &self.state
    }

    /// Enters a completion and reports it if the queue is armed for it. `srq`: whose receive it was, if not the queue
    /// pair's own.
    pub(crate) fn push(
        &self,
        completion: Completion,
        qp: &Arc<QpShared>,
        srq: Option<&Arc<SrqShared>>,
    ) -> Pushed {
        let core = self.context.endpoint().core();
        let mut state = lock(&self.state);
        if state.closed {
            return Pushed::Done;
        }
        if state.ring.len() >= state.capacity as usize {
            core.counters().completions_lost.add(1);
            let first = !std::mem::replace(&mut state.overrun, true);
            return if first { Pushed::Overrun } else { Pushed::Done };
        }
        let timestamp = core.now();
        let due = state.gather(&completion, timestamp);
        state.ring.push_back(Cqe {
            completion,
            timestamp,
            qp: Arc::clone(qp),
            srq: srq.map(Arc::clone),
        });
        if state.waiters > 0 {
            self.filled.notify_one();
        }
        if state.has_leader {
            core.lead().wake();
        }
        self.act(&mut state, due);
        Pushed::Done
    }

    /// The time of an entry in the timers has come.
    pub(crate) fn moderation_due(&self, now: Time) {
        let mut state = lock(&self.state);
        state.scheduled = None;
        let due = state.look(now);
        self.act(&mut state, due);
    }

    pub(super) fn moderate(&self, count: u16, period: Duration) {
        let now = self.context.now();
        let mut state = lock(&self.state);
        state.moderation = Moderation { count, period };
        let due = state.look(now);
        self.act(&mut state, due);
    }

    fn act(&self, state: &mut State, due: Due) {
        match due {
            Due::Nothing => {}
            Due::Now => {
                if state.armed.take().is_some() {
                    self.context.endpoint().core().cq_disarmed();
                    self.report();
                }
            }
            Due::At(time) => {
                if state.scheduled.is_none_or(|scheduled| time < scheduled)
                    && let Some(me) = self.me.upgrade()
                {
                    state.scheduled = Some(time);
                    let core = self.context.endpoint().core();
                    if core.timers().enter_cq(time, &me) {
                        core.wake_engine();
                    }
                }
            }
        }
    }

    /// Called with the state locked, so that no event follows the close of the queue.
    fn report(&self) {
        if let Some(channel) = &self.channel
            && let Some(cq) = self.me.upgrade()
        {
            channel.report(cq);
        }
    }

    pub(super) fn arm(&self, notify: Notify) {
        let newly = {
            let mut state = lock(&self.state);
            match &mut state.armed {
                // A wish for any completion is not weakened by one for solicited ones.
                Some(armed) => {
                    armed.notify = armed.notify.max(notify);
                    false
                }
                none => {
                    *none = Some(Armed {
                        notify,
                        gathered: 0,
                        since: None,
                    });
                    true
                }
            }
        };
        if newly {
            self.context.endpoint().core().cq_armed();
        }
    }

    pub(super) fn progress_inline(&self) {
        self.context.endpoint().core().progress_inline();
    }

    pub(super) fn take(&self, out: &mut [Option<Cqe>]) -> usize {
        let mut state = lock(&self.state);
        let count = out.len().min(state.ring.len());
        // Most polls find nothing.
        if count == 0 {
            return 0;
        }
        for (slot, cqe) in out.iter_mut().zip(state.ring.drain(..count)) {
            *slot = Some(cqe);
        }
        count
    }

    /// Takes the completions of a queue pair out of the ring.
    pub(crate) fn forget(&self, qp: &QpShared) {
        let mut state = lock(&self.state);
        state.ring.retain(|cqe| !ptr::eq(Arc::as_ptr(&cqe.qp), qp));
    }

    pub(super) fn check_overrun(&self) -> Result<(), Error> {
        let state = lock(&self.state);
        if state.overrun && state.ring.is_empty() {
            return Err(Error::CqOverrun {
                capacity: state.capacity,
            });
        }
        Ok(())
    }

    pub(super) fn wait(&self, timeout: Option<Duration>) -> Result<(), Error> {
        let core = self.context.endpoint().core();
        if let Some(leading) = core.try_lead() {
            return self.sleep_leading(&leading, timeout);
        }
        // Somebody must receive while we sleep.
        core.cq_armed();
        let waited = self.sleep(timeout);
        core.cq_disarmed();
        waited
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

    /// Ends every `wait`.
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
        {
            let mut state = lock(&self.state);
            // A handle that goes at this moment takes its events along.
            if !state.closed {
                self.context.raise(AsyncEvent::CqOverrun(self.id));
            }
            // The program may be asleep on the channel or in `wait`.
            self.act(&mut state, Due::Now);
        }
        self.wake_waiters();
        lock(&self.qps).iter().filter_map(Weak::upgrade).collect()
    }

    pub(super) fn close(&self) {
        let (ring, was_armed) = {
            let mut state = lock(&self.state);
            if std::mem::replace(&mut state.closed, true) {
                return;
            }
            let ring = std::mem::take(&mut state.ring);
            (ring, state.armed.take().is_some())
        };
        // Outside the lock: an entry may hold the last reference to a queue pair and its buffers.
        drop(ring);
        if was_armed {
            self.context.endpoint().core().cq_disarmed();
        }
        if let Some(channel) = &self.channel {
            channel.forget(self.id);
        }
        let id = Some(self.id);
        self.context.forget_events(|event| event.cq_id() == id);
        self.context.cq_closed();
    }

    pub(super) fn event_taken(&self) {
        *lock(&self.unacknowledged) += 1;
    }

    pub(super) fn events_acknowledged(&self, count: u64) {
        let mut unacknowledged = lock(&self.unacknowledged);
        *unacknowledged = unacknowledged.saturating_sub(count);
        if *unacknowledged == 0 {
            self.acknowledged.notify_all();
        }
    }

    pub(super) fn unacknowledged(&self) -> u64 {
        *lock(&self.unacknowledged)
    }

    pub(super) fn wait_acknowledged(&self, timeout: Option<Duration>) -> bool {
        let unacknowledged = lock(&self.unacknowledged);
        let is_any = |count: &mut u64| *count > 0;
        match timeout {
            None => {
                let waited = self.acknowledged.wait_while(unacknowledged, is_any);
                drop(waited.unwrap_or_else(PoisonError::into_inner));
                true
            }
            Some(timeout) => {
                let waited = self
                    .acknowledged
                    .wait_timeout_while(unacknowledged, timeout, is_any);
                *waited.unwrap_or_else(PoisonError::into_inner).0 == 0
            }
        }
    }
}

impl State {
    pub(super) fn capacity(&self) -> u32 {
        self.capacity
    }

    pub(super) fn set_capacity(&mut self, capacity: u32) {
        self.capacity = capacity;
        // What a large queue took goes back when it becomes a small one.
        self.ring.shrink_to(capacity as usize);
    }

    pub(super) fn is_overrun(&self) -> bool {
        self.overrun
    }

    /// Completions in the ring; never more than the capacity.
    pub(super) fn waiting(&self) -> u32 {
        self.ring.len() as u32
    }

    pub(super) fn pop(&mut self) -> Option<Cqe> {
        self.ring.pop_front()
    }

    /// Counts a completion that comes now for the event that is wanted.
    fn gather(&mut self, completion: &Completion, now: Time) -> Due {
        let failed = !completion.status.is_success();
        let moderation = self.moderation;
        let Some(armed) = &mut self.armed else {
            return Due::Nothing;
        };
        if armed.notify == Notify::Solicited && !completion.solicited && !failed {
            return Due::Nothing;
        }
        armed.gathered += 1;
        let since = *armed.since.get_or_insert(now);
        if failed || moderation.is_satisfied_by(armed.gathered) {
            Due::Now
        } else {
            Due::At(since + moderation.period)
        }
    }

    /// What is due of what has been gathered.
    fn look(&self, now: Time) -> Due {
        let Some(Armed {
            gathered,
            since: Some(since),
            ..
        }) = self.armed
        else {
            return Due::Nothing;
        };
        let end = since + self.moderation.period;
        if end <= now || self.moderation.is_satisfied_by(gathered) {
            Due::Now
        } else {
            Due::At(end)
        }
    }
}

/// The ring grows to its capacity when it needs to.
const INITIAL_RING: u32 = 64;
