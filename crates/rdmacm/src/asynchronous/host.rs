//! One descriptor for the events of all identifiers.
//!
//! A task reads the channel and puts each event into the mailbox of its identifier. (If the waiting calls read the channel
//! themselves, one whose task does not poll it would hold up all others.) Fetching and delivering is one step, under a lock
//! that whoever moves an identifier away holds, too: no event falls between two channels.

use super::channel::AsyncEventChannel;
use super::completion::Completions;
use crate::channel::{self, EventChannel};
use crate::error::{Error, Result};
use crate::event::Event;
use oarlock_hostd::Host;
use oarlock_verbs::Context;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use tokio::task::AbortHandle;

/// A host whose identifiers' calls are awaited.
///
/// A handle; clones are the same. It lives on the runtime it was made on, where a task reads the events, until the last
/// handle goes and everything made with it. The calls may be awaited on any runtime.
#[derive(Clone)]
pub struct AsyncHost {
    inner: Arc<Inner>,
}

struct Inner {
    channel: EventChannel,
    mailboxes: Arc<Mailboxes>,
    runtime: Handle,
    reader: AbortHandle,
    /// By device.
    completions: Mutex<HashMap<u32, Arc<Completions>>>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

impl AsyncHost {
    /// Reads events of the host on the runtime that this is called on.
    ///
    /// # Errors
    /// [`Error::NoRuntime`]; as [`EventChannel::new`].
    ///
    /// # Panics
    /// If the runtime was built without I/O.
    pub fn new(host: &Host) -> Result<Self> {
        let channel = EventChannel::new(host)?;
        let readable = AsyncEventChannel::new(channel.clone())?;
        let mailboxes = Arc::new(Mailboxes::default());
        let weak = Arc::downgrade(&mailboxes);
        channel.inner.on_close(Box::new(move |uid| {
            if let Some(mailboxes) = weak.upgrade() {
                mailboxes.wake(uid);
            }
        }));
        let runtime = Handle::current();
        let reader = runtime.spawn(read(readable, Arc::clone(&mailboxes)));
        Ok(Self {
            inner: Arc::new(Inner {
                channel,
                mailboxes,
                runtime,
                reader: reader.abort_handle(),
                completions: Mutex::default(),
            }),
        })
    }

    /// The host.
    #[must_use]
    pub fn host(&self) -> &Host {
        self.inner.channel.host()
    }

    pub(super) fn channel(&self) -> &EventChannel {
        &self.inner.channel
    }

    pub(super) fn mailboxes(&self) -> &Mailboxes {
        &self.inner.mailboxes
    }

    /// Where the completion queues of a device report.
    pub(super) fn completions(&self, device: &Context) -> Result<Arc<Completions>> {
        let mut all = self
            .inner
            .completions
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let index = device.device().index;
        if let Some(known) = all.get(&index)
            && known.is_of(device)
        {
            return Ok(Arc::clone(known));
        }
        let new = Arc::new(Completions::new(
            device,
            &self.inner.runtime,
            Arc::clone(&self.inner.mailboxes),
        )?);
        all.insert(index, Arc::clone(&new));
        Ok(new)
    }
}

impl fmt::Debug for AsyncHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AsyncHost").field(self.host()).finish()
    }
}

/// Delivers events until the host service is gone, or the runtime.
async fn read(channel: AsyncEventChannel, mailboxes: Arc<Mailboxes>) {
    let runtime = EndWith(Arc::clone(&mailboxes), End::Runtime);
    let Err(error) = read_on(&channel, &mailboxes).await;
    mailboxes.end(End::from(error));
    drop(runtime);
}

async fn read_on(
    channel: &AsyncEventChannel,
    mailboxes: &Mailboxes,
) -> Result<std::convert::Infallible> {
    loop {
        let mut ready = channel.readable().await?;
        for _ in 0..TURN {
            if !mailboxes.fetch(channel.channel())? {
                ready.clear_ready();
                break;
            }
        }
        tokio::task::yield_now().await;
    }
}

/// Events that are delivered before others on the runtime have a turn.
const TURN: usize = 32;

/// What comes to each identifier.
#[derive(Default)]
pub(super) struct Mailboxes {
    by_uid: Mutex<HashMap<u64, Arc<Mailbox>>>,
    /// Held while an event is on its way from the channel to its mailbox.
    fetching: Mutex<()>,
    end: OnceLock<End>,
    /// Wakes those who wait for completions.
    ended: Notify,
}

/// Why nothing comes any more.
enum End {
    ServiceGone,
    Runtime,
    Refused { errno: i32, sentence: String },
}

impl From<Error> for End {
    fn from(error: Error) -> Self {
        if error.is_device_fatal() {
            Self::ServiceGone
        } else {
            Self::Refused {
                errno: error.errno(),
                sentence: error.to_string(),
            }
        }
    }
}

/// Ends the waits when it is dropped, with the runtime that ran its task.
struct EndWith(Arc<Mailboxes>, End);

impl Drop for EndWith {
    fn drop(&mut self) {
        self.0.end(std::mem::replace(&mut self.1, End::Runtime));
    }
}

impl Mailboxes {
    pub(super) fn open(&self, uid: u64) -> Arc<Mailbox> {
        let mailbox = Arc::new(Mailbox::default());
        self.lock().insert(uid, Arc::clone(&mailbox));
        mailbox
    }

    /// Nobody waits for the identifier's events here any more; those that came.
    pub(super) fn close(&self, uid: u64) -> VecDeque<Event> {
        let mailbox = self.lock().remove(&uid);
        mailbox.map_or_else(VecDeque::new, |mailbox| {
            std::mem::take(&mut mailbox.lock().events)
        })
    }

    /// Has whoever waits for the identifier's events look again.
    fn wake(&self, uid: u64) {
        let mailbox = self.lock().get(&uid).cloned();
        if let Some(mailbox) = mailbox {
            mailbox.arrived.notify_waiters();
        }
    }

    /// Nothing is under way from the channel to a mailbox while this is held.
    pub(super) fn hold(&self) -> MutexGuard<'_, ()> {
        self.fetching.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Delivers the next event, if one is queued.
    fn fetch(&self, channel: &EventChannel) -> Result<bool> {
        let _under_way = self.hold();
        let Some(mut event) = channel.try_event()? else {
            return Ok(false);
        };
        let receipt = event.receipt_mut();
        // Whoever takes it out has it.
        receipt.hand_over();
        let uid = receipt.owner().uid;
        let mailbox = self.lock().get(&uid).cloned();
        // Without a mailbox the identifier is being dropped.
        if let Some(mailbox) = mailbox {
            mailbox.lock().events.push_back(event);
            // All of them look: a call that was woken alone might not be polled, and hold up the others.
            mailbox.arrived.notify_waiters();
        }
        Ok(true)
    }

    fn end(&self, end: End) {
        if self.end.set(end).is_ok() {
            let all: Vec<_> = self.lock().values().cloned().collect();
            for mailbox in all {
                mailbox.arrived.notify_waiters();
            }
            self.ended.notify_waiters();
        }
    }

    /// Whether events still come.
    pub(super) fn check(&self) -> Result<()> {
        match self.end.get() {
            None => Ok(()),
            Some(End::ServiceGone) => Err(Error::ServiceGone),
            Some(End::Runtime) => Err(Error::RuntimeGone),
            Some(End::Refused { errno, sentence }) => Err(Error::Refused {
                call: "get_event",
                errno: *errno,
                sentence: sentence.clone(),
            }),
        }
    }

    /// Completes when nothing comes any more, if it was made before that.
    pub(super) fn ended(&self) -> Notified<'_> {
        self.ended.notified()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Arc<Mailbox>>> {
        // Insert and remove leave the map whole.
        self.by_uid.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where the events of one identifier come.
#[derive(Default)]
pub(super) struct Mailbox {
    received: Mutex<Received>,
    arrived: Notify,
}

#[derive(Default)]
struct Received {
    /// Fetched and not taken.
    events: VecDeque<Event>,
    /// The end of the connection was taken.
    end_taken: bool,
    /// Calls that wait for an outcome: what comes is theirs first.
    calls: usize,
}

/// One call that waits for an outcome, from before it asks until it is done or dropped.
#[must_use]
pub(super) struct Claim<'a>(&'a Mailbox);

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.0.lock().calls -= 1;
        // What it has left is for whoever waits for what is left.
        self.0.arrived.notify_waiters();
    }
}

impl Mailbox {
    /// Keeps what comes from [`next_unclaimed`](Self::next_unclaimed) until it is dropped.
    pub(super) fn claim(&self) -> Claim<'_> {
        self.lock().calls += 1;
        Claim(self)
    }

    /// The next event that no call has waited for, as [`next`](Self::next).
    pub(super) async fn next_unclaimed(&self, check: impl Fn() -> Result<()>) -> Result<Event> {
        let is_free = |received: &Received| received.calls == 0;
        self.wait_for(check, || self.take_if(is_free)).await
    }

    /// The next event. Takes and returns it in one step. `check` says whether one can still come.
    pub(super) async fn next(&self, check: impl Fn() -> Result<()>) -> Result<Event> {
        self.wait_for(check, || self.take()).await
    }

    /// The next event, as [`next`](Self::next), or `None` when another call has taken the end of the connection.
    pub(super) async fn next_until_end(
        &self,
        check: impl Fn() -> Result<()>,
    ) -> Result<Option<Event>> {
        self.wait_for(check, || match self.take() {
            None if self.lock().end_taken => Some(None),
            None => None,
            event => Some(event),
        })
        .await
    }

    async fn wait_for<T>(
        &self,
        check: impl Fn() -> Result<()>,
        look: impl Fn() -> Option<T>,
    ) -> Result<T> {
        loop {
            // Before the look, so that nothing that comes after it goes unnoticed.
            let arrived = self.arrived.notified();
            if let Some(found) = look() {
                return Ok(found);
            }
            check()?;
            arrived.await;
        }
    }

    fn take(&self) -> Option<Event> {
        self.take_if(|_| true)
    }

    fn take_if(&self, may: impl Fn(&Received) -> bool) -> Option<Event> {
        let mut received = self.lock();
        if !may(&received) {
            return None;
        }
        let mut event = received.events.pop_front()?;
        if channel::ends(event.number()) {
            received.end_taken = true;
            self.arrived.notify_waiters();
        }
        drop(received);
        event.receipt_mut().take_over();
        Some(event)
    }

    fn lock(&self) -> MutexGuard<'_, Received> {
        // Push and pop leave the queue whole.
        self.received.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
