//! Completion queues whose completions are awaited: one descriptor for all queues of a device.

use super::channel::Readable;
use super::host::{AsyncHost, Mailboxes};
use crate::error::{Error, Result};
use oarlock_verbs::{Completion, CompletionChannel, CompletionQueue, Context, CqId, Notify};
use std::collections::HashMap;
use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

/// A completion queue whose completions are awaited.
///
/// Several tasks may wait; each completion goes to one of them.
pub struct AsyncCompletionQueue {
    queue: CompletionQueue,
    completions: Arc<Completions>,
    completed: Arc<tokio::sync::Notify>,
}

impl AsyncCompletionQueue {
    /// A queue for `capacity` completions of queue pairs of the device.
    ///
    /// # Errors
    /// [`Error::Verbs`]: as [`CompletionQueue::with_channel`]; [`Error::Channel`].
    #[doc(alias = "ibv_create_cq")]
    pub fn new(host: &AsyncHost, device: &Context, capacity: u32) -> Result<Self> {
        let completions = host.completions(device)?;
        Ok(Self::attach(
            completions.new_cq(device, capacity)?,
            &completions,
        ))
    }

    /// Waits for a queue that was made with [`Completions::new_cq`].
    pub(super) fn attach(queue: CompletionQueue, completions: &Arc<Completions>) -> Self {
        let completed = Arc::new(tokio::sync::Notify::new());
        completions
            .lock()
            .insert(queue.id(), Arc::clone(&completed));
        Self {
            queue,
            completions: Arc::clone(completions),
            completed,
        }
    }

    /// The queue, for queue pairs to be made with, and for polling.
    #[must_use]
    pub fn queue(&self) -> &CompletionQueue {
        &self.queue
    }

    /// Appends what has completed to `out`, oldest first and at most 32; waits until there is something. Returns how many.
    ///
    /// # Errors
    /// [`Error::Verbs`]: completions have been lost because the queue was full. [`Error::ServiceGone`];
    /// [`Error::RuntimeGone`].
    ///
    /// # Cancellation
    /// Safe: completions are taken and appended in one step, and stay in the queue until then.
    #[doc(alias = "ibv_get_cq_event")]
    #[doc(alias = "rdma_get_send_comp")]
    #[doc(alias = "rdma_get_recv_comp")]
    pub async fn wait(&self, out: &mut Vec<Completion>) -> Result<usize> {
        const CALL: &str = "AsyncCompletionQueue::wait";
        let verbs = |source| Error::Verbs { call: CALL, source };
        let mailboxes = &self.completions.mailboxes;
        loop {
            let count = self.queue.poll(out).map_err(verbs)?;
            if count > 0 {
                return Ok(count);
            }
            // Both exist before the last looks, so that nothing that comes after these goes unnoticed.
            let completed = self.completed.notified();
            let ended = mailboxes.ended();
            self.queue.req_notify(Notify::Any).map_err(verbs)?;
            let count = self.queue.poll(out).map_err(verbs)?;
            if count > 0 {
                return Ok(count);
            }
            mailboxes.check()?;
            either(completed, ended).await;
        }
    }
}

impl Drop for AsyncCompletionQueue {
    fn drop(&mut self) {
        self.completions.lock().remove(&self.queue.id());
    }
}

impl fmt::Debug for AsyncCompletionQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AsyncCompletionQueue")
            .field(&self.queue.id())
            .finish()
    }
}

async fn either(one: impl Future<Output = ()>, other: impl Future<Output = ()>) {
    let (mut one, mut other) = (pin!(one), pin!(other));
    poll_fn(|cx| {
        if one.as_mut().poll(cx).is_ready() || other.as_mut().poll(cx).is_ready() {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
}

/// Where the queues of one device report, and the task that passes the reports on.
pub(super) struct Completions {
    device: Context,
    channel: CompletionChannel,
    waiting: Arc<Mutex<Waiting>>,
    mailboxes: Arc<Mailboxes>,
    reader: AbortHandle,
}

type Waiting = HashMap<CqId, Arc<tokio::sync::Notify>>;

impl Completions {
    pub(super) fn new(
        device: &Context,
        runtime: &Handle,
        mailboxes: Arc<Mailboxes>,
    ) -> Result<Self> {
        const CALL: &str = "AsyncCompletionQueue::new";
        let channel =
            CompletionChannel::new(device).map_err(|source| Error::Verbs { call: CALL, source })?;
        // The calling thread may be of another runtime, or of none.
        let readable = {
            let _in_runtime = runtime.enter();
            Readable::new(CALL, channel.clone())?
        };
        let waiting = Arc::new(Mutex::new(Waiting::new()));
        let reader = runtime.spawn(read(readable, Arc::clone(&waiting)));
        Ok(Self {
            device: device.clone(),
            channel,
            waiting,
            mailboxes,
            reader: reader.abort_handle(),
        })
    }

    pub(super) fn is_of(&self, device: &Context) -> bool {
        self.device == *device
    }

    /// A queue that reports here.
    pub(super) fn new_cq(&self, device: &Context, capacity: u32) -> Result<CompletionQueue> {
        CompletionQueue::with_channel(device, capacity, &self.channel).map_err(|source| {
            Error::Verbs {
                call: "create_cq",
                source,
            }
        })
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        lock(&self.waiting)
    }
}

impl Drop for Completions {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

fn lock(waiting: &Mutex<Waiting>) -> MutexGuard<'_, Waiting> {
    // Insert and remove leave the map whole.
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Wakes whoever waits for a queue that has reported.
async fn read(channel: Readable<CompletionChannel>, waiting: Arc<Mutex<Waiting>>) {
    while let Ok(mut ready) = channel.readable().await {
        for _ in 0..TURN {
            let Some(event) = channel.source().try_next_event() else {
                ready.clear_ready();
                break;
            };
            let completed = lock(&waiting).get(&event.cq_id()).cloned();
            if let Some(completed) = completed {
                // All of them look: an event stands for any number of completions.
                completed.notify_waiters();
            }
        }
        tokio::task::yield_now().await;
    }
}

/// Reports that are passed on before others on the runtime have a turn.
const TURN: usize = 64;
