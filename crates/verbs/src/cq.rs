//! Completion queues, completion channels, completions.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use oarlock_device as device;
use oarlock_transport::{VendorError, WcOpcode, WcStatus};
use oarlock_wire::{Grh, Qpn, RKey, Srqn, Time};

use crate::buffer::Buffers;
use crate::context::Context;
use crate::error::{Error, WorkError};
use crate::outstanding::{Done, Outstanding, SharedReceives};
use crate::polling::Polling;
use crate::srq::SrqId;

pub use device::{CqEvent, CqId, Notify};

/// A completion queue. Clones are the same queue.
///
/// It holds a fixed number of completions. One too many is lost, and then the queue pairs that use
/// it go to the error state and [`poll`](Self::poll) says so: make it as large as the work
/// requests that can be outstanding.
///
/// When the last clone is dropped (queue pairs hold one, too) what was not polled is dropped.
#[doc(alias = "ibv_cq")]
#[derive(Clone, Debug)]
pub struct CompletionQueue {
    device: Arc<device::Cq>,
    channel: Option<CompletionChannel>,
}

impl CompletionQueue {
    /// A queue for `capacity` completions that is polled or waited on.
    ///
    /// # Errors
    /// `Device`: the capacity is zero or beyond the device's limit.
    #[doc(alias = "ibv_create_cq")]
    pub fn new(context: &Context, capacity: u32) -> Result<Self, Error> {
        let device = device::Cq::new(context.device_context(), capacity, None, 0)?;
        Ok(Self {
            device: Arc::new(device),
            channel: None,
        })
    }

    /// A queue that also reports on `channel` when it is armed.
    ///
    /// # Errors
    /// As [`new`](Self::new); `Device`: the channel is of another context.
    #[doc(alias = "ibv_create_cq")]
    pub fn with_channel(
        context: &Context,
        capacity: u32,
        channel: &CompletionChannel,
    ) -> Result<Self, Error> {
        let on = Some(&channel.device);
        let device = device::Cq::new(context.device_context(), capacity, on, 0)?;
        Ok(Self {
            device: Arc::new(device),
            channel: Some(channel.clone()),
        })
    }

    /// Appends what has completed to `out`, oldest first and at most 32; returns how many.
    ///
    /// Receives what has arrived at the port first, if nothing is waiting. Allocates nothing once
    /// `out` has grown to its size.
    ///
    /// # Errors
    /// `Device`: completions have been lost because the queue was full; those before come first.
    ///
    /// # Blocking
    /// Never.
    #[doc(alias = "ibv_poll_cq")]
    pub fn poll(&self, out: &mut Vec<Completion>) -> Result<usize, Error> {
        let mut taken = [const { None }; POLL_BATCH];
        let count = self.device.poll(&mut taken)?;
        out.extend(taken.into_iter().flatten().map(Completion::new));
        Ok(count)
    }

    /// As [`poll`](Self::poll), but waits until there is something or `timeout` has passed (then
    /// it returns 0). Needs no channel and no arming.
    ///
    /// # Errors
    /// As [`poll`](Self::poll). `Device`: the host service is gone, and nothing is left to poll.
    ///
    /// # Blocking
    /// Until something completes, or for `timeout`.
    pub fn wait(
        &self,
        out: &mut Vec<Completion>,
        timeout: Option<Duration>,
    ) -> Result<usize, Error> {
        let end = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            let count = self.poll(out)?;
            if count > 0 {
                return Ok(count);
            }
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Ok(0);
            }
            self.device.wait(left)?;
        }
    }

    /// As [`wait`](Self::wait), but takes one completion, the oldest; `None` when `timeout` has passed.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    ///
    /// # Blocking
    /// Until something completes, or for `timeout`.
    pub fn wait_one(&self, timeout: Option<Duration>) -> Result<Option<Completion>, Error> {
        let end = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            if let Some(cqe) = self.device.poll_one()? {
                return Ok(Some(Completion::new(cqe)));
            }
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Ok(None);
            }
            self.device.wait(left)?;
        }
    }

    /// Asks for one event on the channel at the next completion of this kind. What has completed
    /// already gives none, so: arm, poll once more, wait on the channel.
    ///
    /// # Errors
    /// `Device`: the queue has no channel.
    #[doc(alias = "ibv_req_notify_cq")]
    pub fn req_notify(&self, notify: Notify) -> Result<(), Error> {
        Ok(self.device.req_notify(notify)?)
    }

    /// What has completed, one by one, until nothing is waiting. Receives what has arrived at the port when it begins to
    /// find nothing waiting.
    ///
    /// An item is an error when completions have been lost because the queue was full; it is the last one.
    pub fn iter(&self) -> impl Iterator<Item = Result<Completion, Error>> + '_ {
        let mut over = false;
        std::iter::from_fn(move || {
            if over {
                return None;
            }
            match self.device.poll_one() {
                Ok(cqe) => cqe.map(|cqe| Ok(Completion::new(cqe))),
                Err(error) => {
                    over = true;
                    Some(Err(error.into()))
                }
            }
        })
    }

    /// Looks at what has completed without making [`Completion`]s of it: `None` if nothing is waiting, else the oldest,
    /// whose fields are read when they are asked for. Receives what has arrived at the port first, if nothing is waiting.
    ///
    /// # Errors
    /// As [`poll`](Self::poll).
    ///
    /// # Blocking
    /// Never.
    #[doc(alias = "ibv_start_poll")]
    pub fn start_poll(&self) -> Result<Option<Polling<'_>>, Error> {
        let first = self.device.poll_one()?;
        Ok(first.map(|cqe| Polling::new(self, cqe)))
    }

    /// From now on holds `capacity` completions; those that wait stay.
    ///
    /// # Errors
    /// `Device`: beyond the device's limit, or fewer than wait in the queue; or completions have been lost before.
    ///
    /// # Blocking
    /// Never.
    #[doc(alias = "ibv_resize_cq")]
    pub fn resize(&self, capacity: u32) -> Result<(), Error> {
        Ok(self.device.resize(capacity)?)
    }

    /// Gathers completions before an armed queue reports: an event comes when `count` completions have come since it was
    /// armed, or `period` after the first of them, or with the first that failed. A count of 0 or 1, or no period, reports
    /// each at once, as a fresh queue does. The period is at most 65,535 µs.
    ///
    /// # Errors
    /// `Device`: the period is longer; the queue has no channel.
    ///
    /// # Blocking
    /// Never.
    #[doc(alias = "ibv_modify_cq")]
    pub fn moderate(&self, count: u16, period: Duration) -> Result<(), Error> {
        Ok(self.device.moderate(count, period)?)
    }

    /// What the wall clock showed at the [`timestamp`](Completion::timestamp) of a completion of this queue, by the wall
    /// clock's present setting.
    pub fn wall_clock(&self, timestamp: Time) -> SystemTime {
        self.device.context().wall_clock(timestamp)
    }

    /// Events that the program has taken off the channel and still holds.
    #[doc(alias = "ibv_ack_cq_events")]
    pub fn unacknowledged_events(&self) -> u64 {
        self.device.unacknowledged_events()
    }

    /// How many completions it holds.
    pub fn capacity(&self) -> u32 {
        self.device.capacity()
    }

    /// Names it in events.
    pub fn id(&self) -> CqId {
        self.device.id()
    }

    /// The channel it reports on.
    pub fn channel(&self) -> Option<&CompletionChannel> {
        self.channel.as_ref()
    }

    pub(crate) fn device(&self) -> &Arc<device::Cq> {
        &self.device
    }

    pub(crate) fn of_device(device: &Arc<device::Cq>) -> Self {
        Self {
            device: Arc::clone(device),
            channel: device.channel().map(|channel| CompletionChannel {
                device: Arc::clone(channel),
            }),
        }
    }
}

impl PartialEq for CompletionQueue {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.device, &other.device)
    }
}

impl Eq for CompletionQueue {}

/// Where armed completion queues report. Clones are the same channel.
///
/// Its descriptor is readable exactly while events are queued, so it suits level-triggered as well
/// as edge-triggered event loops.
#[doc(alias = "ibv_comp_channel")]
#[derive(Clone, Debug)]
pub struct CompletionChannel {
    device: Arc<device::CompChannel>,
}

impl CompletionChannel {
    /// A channel for queues of `context`.
    ///
    /// # Errors
    /// `Device`: no descriptor left.
    #[doc(alias = "ibv_create_comp_channel")]
    pub fn new(context: &Context) -> Result<Self, Error> {
        Ok(Self {
            device: device::CompChannel::new(context.device_context())?,
        })
    }

    /// The next event, if one is queued.
    #[doc(alias = "ibv_get_cq_event")]
    pub fn try_next_event(&self) -> Option<CqEvent> {
        self.device.try_event()
    }

    /// The next event; `None` when `timeout` has passed. Dropping it acknowledges it.
    ///
    /// # Errors
    /// `Device`: the program has made the descriptor non-blocking and nothing is queued.
    ///
    /// # Blocking
    /// Until there is an event, or for `timeout`.
    #[doc(alias = "ibv_get_cq_event")]
    pub fn next_event(&self, timeout: Option<Duration>) -> Result<Option<CqEvent>, Error> {
        Ok(self.device.event(timeout)?)
    }
}

impl AsFd for CompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }
}

/// How a work request ended; with it its buffers come back.
#[doc(alias = "ibv_wc")]
#[derive(Debug)]
pub struct Completion {
    /// From the work request.
    pub wr_id: u64,
    /// How it ended. Unless this is success, `byte_len`, `imm` and `opcode` say nothing.
    pub status: WcStatus,
    /// What completed.
    pub opcode: WcOpcode,
    /// Bytes received, the header of a datagram included, or sent.
    pub byte_len: u32,
    /// The immediate value that came with the message.
    pub imm: Option<u32>,
    /// Whether the request was on the send queue; holds for failures, too.
    pub is_send: bool,
    /// The queue pair.
    pub qpn: Qpn,
    /// The buffers of the work request.
    pub buffers: Buffers,
    /// The buffers of unsignaled sends before this one that succeeded, oldest first.
    pub earlier: Buffers,
    /// Which rule failed: a number with a sentence; [`VendorError::NONE`] for success.
    pub vendor_err: VendorError,
    /// When it completed, on the device's clock: see [`Context::now`] and [`CompletionQueue::wall_clock`].
    pub timestamp: Time,
    /// The key that the received SEND took away.
    pub invalidated: Option<RKey>,
    /// The shared receive queue whose receive it was.
    pub srq: Option<SrqId>,
    /// Its number, if it is one of XRC.
    pub srqn: Option<Srqn>,
    /// The queue pair that sent a received datagram; 0 for everything else.
    pub src_qp: Qpn,
    /// The buffers begin with a header ([`GRH_LEN`] bytes): every datagram received with success.
    pub has_grh: bool,
    /// Index of a received datagram's partition key; a port has one key, so it is 0.
    pub pkey_index: u16,
    /// The service level of a received datagram, 0 to 15.
    pub service_level: u8,
}

/// The bytes of header before each message that a UD queue pair receives, see [`Completion::grh`].
pub const GRH_LEN: usize = Grh::LEN;

impl Completion {
    fn new(cqe: device::Cqe) -> Self {
        let done = finish(&cqe);
        Self::of(&cqe, done)
    }

    pub(crate) fn of(cqe: &device::Cqe, done: Done) -> Self {
        let entry = &cqe.completion;
        Self {
            wr_id: done.wr_id,
            status: entry.status,
            opcode: entry.opcode,
            byte_len: entry.byte_len,
            imm: entry.imm,
            is_send: entry.is_send,
            qpn: cqe.qpn(),
            buffers: done.buffers,
            earlier: done.earlier,
            vendor_err: entry.vendor_err,
            timestamp: cqe.timestamp(),
            invalidated: entry.invalidated,
            srq: cqe.srq_id(),
            srqn: entry.srqn,
            src_qp: entry.src_qp,
            has_grh: entry.has_grh,
            pkey_index: entry.pkey_index,
            service_level: entry.sl,
        }
    }

    /// How many bytes of header the received bytes begin with: [`GRH_LEN`] for a datagram, else 0.
    pub fn grh_len(&self) -> usize {
        if self.has_grh { GRH_LEN } else { 0 }
    }

    /// The header of a received datagram: who sent it, and to which address. `None` for everything else, and when the
    /// first buffer does not hold all of it.
    pub fn grh(&self) -> Option<Grh> {
        if !self.has_grh {
            return None;
        }
        let bytes = self.buffers.first()?.first_chunk()?;
        Grh::parse(bytes).ok()
    }

    /// The received message, without the header of a datagram and without what is left of the buffer. `None` for a send
    /// or a failure, and for a message that lies in several buffers.
    pub fn message(&self) -> Option<&[u8]> {
        if self.is_send || !self.status.is_success() {
            return None;
        }
        let end = self.byte_len as usize;
        let first: &[u8] = self.buffers.first().map_or(&[], |buffer| buffer);
        first.get(self.grh_len()..end)
    }

    /// The completion if it tells of success, else how the request failed.
    ///
    /// # Errors
    /// `WorkError` with the status. The buffers are dropped then.
    pub fn ok(self) -> Result<Self, WorkError> {
        if self.status.is_success() {
            Ok(self)
        } else {
            Err(WorkError {
                wr_id: self.wr_id,
                status: self.status,
                vendor_err: self.vendor_err,
            })
        }
    }
}

/// What the request of a completion was called, and what it owned.
pub(crate) fn finish(cqe: &device::Cqe) -> Done {
    let entry = &cqe.completion;
    let Some(user) = cqe.user() else {
        return Done::default();
    };
    if let Some(queues) = user.downcast_ref::<Outstanding>() {
        queues.complete(entry.is_send, entry.wr_id)
    } else if let Some(receives) = user.downcast_ref::<SharedReceives>() {
        receives.complete(entry.wr_id)
    } else {
        Done::default()
    }
}

const POLL_BATCH: usize = 32;
