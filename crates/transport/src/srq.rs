//! Shared receive queues: buffers for the messages of many queue pairs.

use oarlock_wire::Srqn;

use crate::error::Error;
use crate::memory::Sge;
use crate::queue::RecvQueue;
use crate::work::RecvWr;

/// A buffer that was taken out of a shared receive queue for one message, and belongs to the queue pair now.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct HeldReceive {
    /// From the work request.
    pub wr_id: u64,
    /// The buffers; the vector is used again, so that taking allocates nothing once it has grown.
    pub sges: Vec<Sge>,
    /// The protection domain of the queue, a number of whoever implements [`Memory`](crate::Memory).
    pub domain: u32,
    /// The queue, if it has a number (XRC).
    pub srqn: Option<Srqn>,
}

/// What a shared receive queue is made with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SrqConfig {
    /// Buffers that can wait at once.
    pub max_wr: u32,
    /// Scatter/gather elements of one of them.
    pub max_sge: u32,
}

impl Default for SrqConfig {
    fn default() -> Self {
        Self {
            max_wr: 128,
            max_sge: 4,
        }
    }
}

/// What [`Srq::query`] tells.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[doc(alias = "ibv_srq_attr")]
pub struct SrqAttr {
    /// Buffers that can wait at once.
    pub max_wr: u32,
    /// Scatter/gather elements of one of them.
    pub max_sge: u32,
    /// The limit that is armed; 0 when none is.
    pub limit: u32,
}

/// One shared receive queue: buffers in the order in which they were posted, and a limit whose passing is reported.
///
/// It knows nothing of queue pairs: an implementation of [`Memory::take_shared_receive`](crate::Memory::take_shared_receive)
/// calls [`take`](Self::take) when the first packet of a message needs a buffer. The place of a buffer is free again as soon as it
/// was taken.
///
/// ```
/// use oarlock_transport::{HeldReceive, RecvWr, Sge, Srq, SrqConfig};
///
/// let mut srq = Srq::new(SrqConfig { max_wr: 8, max_sge: 1 });
/// for wr_id in 0..3 {
///     srq.post_recv(&RecvWr { wr_id, sges: &[Sge { addr: 0x1000, len: 64, ..Sge::default() }] })?;
/// }
/// srq.set_limit(3)?;
/// let mut held = HeldReceive::default();
/// assert!(srq.take(&mut held) && held.wr_id == 0);
/// assert!(srq.poll_limit_reached(), "fewer than 3 wait");
/// assert!(!srq.poll_limit_reached(), "once per arming");
/// # Ok::<(), oarlock_transport::Error>(())
/// ```
///
/// # Specification
/// IBA Vol. 1 ch. 10 "Shared receive queue", ch. 11 "Modify shared receive queue", "SRQ limit reached".
#[derive(Debug)]
pub struct Srq {
    config: SrqConfig,
    queue: RecvQueue,
    /// 0: not armed.
    limit: u32,
    limit_reached: bool,
}

impl Srq {
    /// A queue without buffers, and without a limit.
    pub fn new(config: SrqConfig) -> Self {
        Self {
            config,
            queue: new_queue(config),
            limit: 0,
            limit_reached: false,
        }
    }

    /// Appends a buffer.
    ///
    /// # Errors
    /// [`Error::QueueFull`], [`Error::TooManySges`].
    #[doc(alias = "ibv_post_srq_recv")]
    pub fn post_recv(&mut self, wr: &RecvWr<'_>) -> Result<(), Error> {
        self.queue.check(wr)?;
        self.queue.push(wr);
        Ok(())
    }

    /// Takes the oldest buffer out: its request and its list go into `into`, whose other fields stay. False if none waits.
    #[must_use]
    pub fn take(&mut self, into: &mut HeldReceive) -> bool {
        let Some((wqe, sges)) = self.queue.front() else {
            return false;
        };
        into.wr_id = wqe.wr_id;
        into.sges.clear();
        into.sges.extend_from_slice(sges);
        let _ = self.queue.pop();
        self.queue.retire();
        self.check_limit();
        true
    }

    /// Arms the limit: when fewer than `limit` buffers wait, [`poll_limit_reached`](Self::poll_limit_reached) says so once,
    /// and the limit is 0 again. If fewer wait already, it says so at once. 0 disarms.
    ///
    /// # Errors
    /// [`Error::AttributeTooLarge`]: the queue never holds so many. Nothing has changed then.
    #[doc(alias = "ibv_modify_srq")]
    pub fn set_limit(&mut self, limit: u32) -> Result<(), Error> {
        if limit > self.config.max_wr {
            return Err(Error::AttributeTooLarge {
                attribute: "srq_limit",
                given: limit,
                max: self.config.max_wr,
            });
        }
        self.limit = limit;
        self.check_limit();
        Ok(())
    }

    /// Changes how many buffers can wait. Those that do keep their order, and so does the limit, which is never more than they
    /// are. Allocates.
    ///
    /// # Errors
    /// [`Error::QueueInUse`]: more wait than would fit. Nothing has changed then.
    #[doc(alias = "ibv_modify_srq")]
    pub fn resize(&mut self, max_wr: u32) -> Result<(), Error> {
        if self.len() > max_wr {
            return Err(Error::QueueInUse {
                queue: QUEUE,
                given: max_wr,
                outstanding: self.len(),
            });
        }
        self.config.max_wr = max_wr;
        let old = core::mem::replace(&mut self.queue, new_queue(self.config));
        self.queue.append_all(&old);
        Ok(())
    }

    /// Sizes and limit.
    #[doc(alias = "ibv_query_srq")]
    pub const fn query(&self) -> SrqAttr {
        SrqAttr {
            max_wr: self.config.max_wr,
            max_sge: self.config.max_sge,
            limit: self.limit,
        }
    }

    /// How many buffers wait.
    pub const fn len(&self) -> u32 {
        self.queue.len()
    }

    /// Whether none waits.
    pub const fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Whether the limit was passed since it was armed; true once.
    #[must_use]
    pub const fn poll_limit_reached(&mut self) -> bool {
        core::mem::replace(&mut self.limit_reached, false)
    }

    const fn check_limit(&mut self) {
        if self.len() < self.limit {
            self.limit = 0;
            self.limit_reached = true;
        }
    }
}

const QUEUE: &str = "shared receive";

fn new_queue(config: SrqConfig) -> RecvQueue {
    RecvQueue::named(QUEUE, config.max_wr, config.max_sge)
}
