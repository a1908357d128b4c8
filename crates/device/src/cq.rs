//! Completion queues: bounded rings that queue pairs enter completions into and programs poll.

use std::any::Any;
use std::sync::{Arc, Weak};
use std::time::Duration;

use oarlock_transport::Completion;
use oarlock_wire::{Qpn, Time};

use crate::context::Context;
use crate::error::Error;
use crate::event::SrqId;
use crate::locks::lock;
use crate::qp::QpShared;
use crate::srq::SrqShared;

mod channel;
mod shared;

pub use channel::{CompChannel, CqEvent};
pub(crate) use shared::{CqShared, Pushed};

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
    srq: Option<Arc<SrqShared>>,
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

    /// What was given with the queue that the work request was posted to: [`SrqInit::user`](crate::SrqInit::user) for a
    /// receive of a shared receive queue, else [`QpInit::user`](crate::QpInit::user).
    pub fn user(&self) -> Option<&Arc<dyn Any + Send + Sync>> {
        match &self.srq {
            Some(srq) => srq.user(),
            None => self.qp.user(),
        }
    }

    /// The shared receive queue whose receive it was.
    pub fn srq_id(&self) -> Option<SrqId> {
        self.srq.as_ref().map(|srq| srq.id())
    }
}

/// A completion queue: a bounded ring.
///
/// # Overrun
/// A completion that finds the ring full is lost. Then [`AsyncEvent::CqOverrun`](crate::AsyncEvent::CqOverrun) is raised,
/// every queue pair of the queue goes to the error state with [`AsyncEvent::QpFatal`](crate::AsyncEvent::QpFatal), what the
/// ring holds can still be polled, and after that each poll says `CqOverrun`: the queue is of no use any more (IBA Vol. 1
/// ch. 11 "Completion queue error").
///
/// # Dropping
/// Dropping the handle empties the ring and takes back the events that wait on the channel; completions that come later
/// are discarded. It never waits: an event in the program's hands stays valid. A program that must know that
/// no other thread holds one any more calls [`wait_acknowledged`](Self::wait_acknowledged) before.
#[doc(alias = "ibv_cq")]
pub struct Cq {
    shared: Arc<CqShared>,
}

impl Cq {
    /// A queue for `capacity` completions. `channel` reports events when the queue is armed;
    /// `cookie` comes back with them.
    ///
    /// # Errors
    /// `OutOfRange`: the capacity is zero or beyond the device's limit, or so many queues exist. `OtherContext`.
    #[doc(alias = "ibv_create_cq")]
    pub fn new(
        context: &Arc<Context>,
        capacity: u32,
        channel: Option<&Arc<CompChannel>>,
        cookie: u64,
    ) -> Result<Self, Error> {
        check_capacity(context, capacity, 1)?;
        if channel.is_some_and(|channel| !channel.is_of(context)) {
            return Err(Error::OtherContext {
                object: "completion channel",
            });
        }
        let shared = Arc::new_cyclic(|me| {
            let id = CqId::new(context.next_cq());
            CqShared::new(Weak::clone(me), id, context, capacity, channel, cookie)
        });
        context.enter_cq(&shared)?;
        Ok(Self { shared })
    }

    /// Names it in asynchronous events.
    pub fn id(&self) -> CqId {
        self.shared.id()
    }

    /// How many completions it holds.
    pub fn capacity(&self) -> u32 {
        lock(self.shared.state()).capacity()
    }

    /// The context it belongs to.
    pub fn context(&self) -> &Arc<Context> {
        self.shared.context()
    }

    /// The channel it reports on.
    pub fn channel(&self) -> Option<&Arc<CompChannel>> {
        self.shared.channel()
    }

    /// From now on holds `capacity` completions. Those that wait keep their order, none is lost or doubled, and whether
    /// the queue is armed stays as it was.
    ///
    /// # Errors
    /// `OutOfRange`: beyond the device's limit, zero, or fewer than wait in the queue (`min` is how many do); nothing has
    /// changed. `CqOverrun`.
    ///
    /// # Blocking
    /// Never.
    #[doc(alias = "ibv_resize_cq")]
    pub fn resize(&self, capacity: u32) -> Result<(), Error> {
        let mut state = lock(self.shared.state());
        let waiting = state.waiting();
        check_capacity(self.context(), capacity, waiting.max(1))?;
        if state.is_overrun() {
            return Err(Error::CqOverrun {
                capacity: state.capacity(),
            });
        }
        state.set_capacity(capacity);
        Ok(())
    }

    /// Gathers completions before an armed queue reports: an event comes when `count` completions of the kind that it is
    /// armed for have come since it was armed, or `period` after the first of them, or with the first that failed,
    /// whichever is first. A count of 0 or 1, or no period, reports each at once, as a fresh queue does.
    ///
    /// A queue that is armed and has gathered some already goes by the new figures.
    ///
    /// # Units
    /// `period`: at most 65,535 µs; it begins with the first completion and ends when the engine thread gets to it.
    ///
    /// # Errors
    /// `OutOfRange`: the period. `NoChannel`: there is nothing to report on.
    ///
    /// # Blocking
    /// Never.
    #[doc(alias = "ibv_modify_cq")]
    pub fn moderate(&self, count: u16, period: Duration) -> Result<(), Error> {
        if self.channel().is_none() {
            return Err(Error::NoChannel);
        }
        if period > MAX_PERIOD {
            return Err(Error::OutOfRange {
                parameter: "period of the completion queue's moderation, in microseconds,",
                given: u64::try_from(period.as_micros()).unwrap_or(u64::MAX),
                min: 0,
                max: MAX_PERIOD.as_micros() as u64,
            });
        }
        self.shared.moderate(count, period);
        Ok(())
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
        match self.shared.take(out) {
            0 => {}
            taken => return Ok(taken),
        }
        self.shared.progress_inline();
        match self.shared.take(out) {
            0 => self.shared.check_overrun().map(|()| 0),
            taken => Ok(taken),
        }
    }

    /// Takes the oldest completion; receives what has arrived at the port first if none is waiting.
    ///
    /// # Errors
    /// As for [`poll`](Self::poll).
    #[doc(alias = "ibv_start_poll")]
    pub fn poll_one(&self) -> Result<Option<Cqe>, Error> {
        let mut one = [None];
        self.poll(&mut one)?;
        let [cqe] = one;
        Ok(cqe)
    }

    /// Takes the oldest completion that is waiting; looks nowhere else.
    #[doc(alias = "ibv_next_poll")]
    pub fn take_one(&self) -> Option<Cqe> {
        lock(self.shared.state()).pop()
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
        self.shared.wait(timeout)
    }

    /// Asks for one event on the channel at the next completion of this kind.
    ///
    /// A completion that is waiting already gives none: poll once more after arming.
    ///
    /// # Errors
    /// `NoChannel`.
    #[doc(alias = "ibv_req_notify_cq")]
    pub fn req_notify(&self, notify: Notify) -> Result<(), Error> {
        if self.channel().is_none() {
            return Err(Error::NoChannel);
        }
        self.shared.arm(notify);
        Ok(())
    }

    /// Events that the program has taken off the channel and not yet acknowledged by dropping them.
    #[doc(alias = "ibv_ack_cq_events")]
    pub fn unacknowledged_events(&self) -> u64 {
        self.shared.unacknowledged()
    }

    /// Acknowledges `count` events that the program keeps by number ([`CqEvent::into_cookie`]); of more than there are, those
    /// there are.
    #[doc(alias = "ibv_ack_cq_events")]
    pub fn acknowledge(&self, count: u64) {
        self.shared.events_acknowledged(count);
    }

    /// Closes the queue as dropping it does, though handles of it remain: no event of it is queued any more, and polls find
    /// nothing. For who must wait for acknowledgements afterwards ([`wait_acknowledged`](Self::wait_acknowledged)), when no
    /// other thread can take one more event. A second time it does nothing.
    #[doc(alias = "ibv_destroy_cq")]
    pub fn close(&self) {
        if !self.context().endpoint().core().is_forked() {
            self.shared.close();
        }
    }

    /// Waits until every event of this queue that was taken off the channel has been acknowledged, or until `timeout` has
    /// passed; whether all are. What `ibv_destroy_cq` waits for before it destroys; dropping a `Cq` does not need it.
    ///
    /// # Blocking
    /// Until then. With an event of its own in hand the caller waits for itself.
    #[doc(alias = "ibv_destroy_cq")]
    pub fn wait_acknowledged(&self, timeout: Option<Duration>) -> bool {
        self.shared.wait_acknowledged(timeout)
    }

    pub(crate) fn shared(&self) -> &Arc<CqShared> {
        &self.shared
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        self.close();
    }
}

impl std::fmt::Debug for Cq {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cq")
            .field("id", &self.id())
            .field("capacity", &self.capacity())
            .finish_non_exhaustive()
    }
}

fn check_capacity(context: &Context, capacity: u32, min: u32) -> Result<(), Error> {
    let max = context.device().limits.max_cqe;
    if (min..=max).contains(&capacity) {
        return Ok(());
    }
    Err(Error::OutOfRange {
        parameter: "capacity of the completion queue",
        given: capacity.into(),
        min: min.into(),
        max: max.into(),
    })
}

/// What 16 bits of microseconds tell, as in `struct ibv_moderate_cq`.
const MAX_PERIOD: Duration = Duration::from_micros(u16::MAX as u64);
