//! Event channels: where identifiers report.

use crate::command::Fetched;
use crate::datagram::UdParam;
use crate::error::{Error, Result};
use crate::event::{Event, Receipt};
use crate::identifier::{Identifier, Request, Shared};
use crate::multicast::{Membership, Multicast};
use crate::param::{PaddedData, PeerParam};
use crate::queue_pair::Recipes;
use crate::registry::Found;
use crate::{command, registry};
use oarlock_hostd::{ClientChannel, Host, Patience, Wake};
use oarlock_ucm::client::JoinNumber;
use oarlock_ucm::proto::{Acknowledged, MAX_BATCH};
use oarlock_verbs::QpType;
use oarlock_wire::{Ece, RejReason};
use rustix::event::{PollFd, PollFlags, Timespec};
use std::collections::HashMap;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant};

/// Reports the events of the identifiers on it, in the order in which they happened.
///
/// A handle; clones are the same channel. Any number of threads may read one channel, each event goes to one of them. The
/// channel exists as long as a handle or an identifier on it does, so dropping the handle early loses nothing; after the
/// last identifier has migrated away it is closed at once.
///
/// The descriptor ([`AsFd`]) is readable while events are queued, for use with poll, epoll or an event loop; then
/// [`try_event`](Self::try_event) gets them. Readable without an event is possible (another reader was faster, the
/// event's identifier migrated or was destroyed), the reverse is not. Nothing else may be done with the descriptor.
#[doc(alias = "rdma_event_channel")]
#[doc(alias = "rdma_destroy_event_channel")]
#[derive(Clone)]
pub struct EventChannel {
    pub(crate) inner: Arc<Channel>,
}

pub(crate) struct Channel {
    /// Distinguishes channels in this process, also after one is closed and its token used again.
    pub(crate) serial: u64,
    pub(crate) host: Host,
    pub(crate) client: ClientChannel,
    /// The synchronous identifier whose private channel this is, by its uid.
    pub(crate) private_to: Option<u64>,
    /// What was acknowledged since the service was last told: identifier, events in all.
    acknowledged: Mutex<HashMap<u32, u32>>,
    /// Whether a call reads the channel, of those that do so in turn.
    is_read: Mutex<bool>,
    /// That call has left, or has something for others of them.
    for_others: Condvar,
    /// Told the uid of an identifier that reports here and is closed.
    on_close: OnceLock<OnClose>,
}

pub(crate) type OnClose = Box<dyn Fn(u64) + Send + Sync>;

/// A channel on which nothing happens for so long tells what was acknowledged.
pub(crate) const QUIET: Duration = Duration::from_millis(20);

impl EventChannel {
    /// Opens a channel on the host.
    ///
    /// # Errors
    /// [`Error::ServiceGone`]; [`Error::Host`] when the service has no room or this process no descriptors left.
    #[doc(alias = "rdma_create_event_channel")]
    pub fn new(host: &Host) -> Result<Self> {
        Ok(Self {
            inner: Channel::open(host, None)?,
        })
    }

    /// The next event; waits for it as long as it takes.
    ///
    /// # Errors
    /// [`Error::ServiceGone`] when the host service has died: nothing will come any more.
    ///
    /// # Blocking
    /// Until an event comes. A signal does not end the wait.
    #[doc(alias = "rdma_get_cm_event")]
    pub fn get_event(&self) -> Result<Event> {
        match self.inner.wait_event(None)? {
            Some(event) => Ok(event),
            None => unreachable!("without a deadline the wait ends with an event"),
        }
    }

    /// The next event, or `None` when none comes within `timeout`.
    ///
    /// # Errors
    /// As [`get_event`](Self::get_event).
    ///
    /// # Blocking
    /// For `timeout`. One beyond what the clock can express is none.
    #[doc(alias = "rdma_get_cm_event")]
    pub fn get_event_timeout(&self, timeout: Duration) -> Result<Option<Event>> {
        self.inner.wait_event(Instant::now().checked_add(timeout))
    }

    /// The next event, or `None` when none has come by `deadline`. One that is queued already is returned even if the
    /// deadline has passed.
    ///
    /// # Errors
    /// As [`get_event`](Self::get_event).
    ///
    /// # Blocking
    /// Until `deadline`.
    #[doc(alias = "rdma_get_cm_event")]
    pub fn get_event_until(&self, deadline: Instant) -> Result<Option<Event>> {
        self.inner.wait_event(Some(deadline))
    }

    /// The next event if one is queued.
    ///
    /// # Errors
    /// As [`get_event`](Self::get_event).
    ///
    /// # Blocking
    /// Never waits for an event.
    pub fn try_event(&self) -> Result<Option<Event>> {
        self.inner.try_event()
    }

    /// As [`try_event`](Self::try_event), in the shape a future wants. Nothing is registered anywhere: after `Pending` wait
    /// for the descriptor, with the means of the event loop at hand.
    ///
    /// # Errors
    /// As [`get_event`](Self::get_event).
    ///
    /// # Examples
    /// Any event loop will do, here epoll in its edge-triggered mode, where every event is taken before the next wait:
    /// ```
    /// # use oarlock_rdmacm::{EventChannel, Host, Identifier, PortSpace};
    /// use rustix::event::epoll;
    /// use std::task::Poll;
    ///
    /// # let host = Host::private()?;
    /// # let listener = Identifier::synchronous(&host, PortSpace::TCP)?;
    /// # listener.bind_addr("127.0.0.1:0".parse()?)?;
    /// # let address = listener.local_addr()?.unwrap();
    /// let channel = EventChannel::new(&host)?;
    /// let id = Identifier::new(&channel, PortSpace::TCP)?;
    /// id.resolve_addr(None, address, std::time::Duration::from_secs(2))?;
    ///
    /// let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    /// let interest = epoll::EventFlags::IN | epoll::EventFlags::ET;
    /// epoll::add(&epoll, &channel, epoll::EventData::new_u64(0), interest)?;
    /// let event = loop {
    ///     match channel.poll_event() {
    ///         Poll::Ready(event) => break event?,
    ///         Poll::Pending => {
    ///             let mut ready = Vec::with_capacity(1);
    ///             epoll::wait(&epoll, rustix::buffer::spare_capacity(&mut ready), None)?;
    ///         }
    ///     }
    /// };
    /// assert_eq!(event.name(), "RDMA_CM_EVENT_ADDR_RESOLVED");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn poll_event(&self) -> Poll<Result<Event>> {
        match self.try_event() {
            Ok(Some(event)) => Poll::Ready(Ok(event)),
            Ok(None) => Poll::Pending,
            Err(error) => Poll::Ready(Err(error)),
        }
    }

    /// The host this channel belongs to.
    #[must_use]
    pub fn host(&self) -> &Host {
        &self.inner.host
    }
}

impl AsFd for EventChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.client.as_fd()
    }
}

impl fmt::Debug for EventChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EventChannel({})", self.inner.serial)
    }
}

impl PartialEq for EventChannel {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

impl Eq for EventChannel {}

impl Channel {
    pub(crate) fn open(host: &Host, private_to: Option<u64>) -> Result<Arc<Self>> {
        static NEXT_SERIAL: AtomicU64 = AtomicU64::new(1);
        let client = host
            .open_channel()
            .map_err(|source| command::host_error("create_event_channel", source))?;
        Ok(Arc::new(Self {
            serial: NEXT_SERIAL.fetch_add(1, Ordering::Relaxed),
            host: host.clone(),
            client,
            private_to,
            acknowledged: Mutex::default(),
            is_read: Mutex::new(false),
            for_others: Condvar::new(),
            on_close: OnceLock::new(),
        }))
    }

    pub(crate) fn token(&self) -> u64 {
        self.client.token()
    }

    /// Calls `told` with the uid of each identifier that is closed while it reports here. Set once.
    #[cfg(feature = "tokio")]
    pub(crate) fn on_close(&self, told: OnClose) {
        let is_first = self.on_close.set(told).is_ok();
        debug_assert!(is_first, "a channel has one reader of this kind");
    }

    /// Ends the waits of an identifier that has just been closed.
    pub(crate) fn closed(&self, uid: u64) {
        if self.private_to == Some(uid) {
            self.end_waits();
        }
        if let Some(told) = self.on_close.get() {
            told(uid);
        }
    }

    /// As [`wait_for`](Self::wait_for), for calls that change what others of them wait for: one reads the channel, and when
    /// it leaves all others check what is theirs without reading.
    pub(crate) fn wait_in_turn<T>(
        &self,
        deadline: Option<Instant>,
        look: impl FnMut() -> Result<Option<T>>,
        mut check: impl FnMut() -> Option<T>,
    ) -> Result<Option<T>> {
        let mut is_read = self.lock_is_read();
        while *is_read {
            if let Some(found) = check() {
                return Ok(Some(found));
            }
            is_read = match deadline {
                None => self
                    .for_others
                    .wait(is_read)
                    .unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Ok(None);
                    }
                    self.for_others
                        .wait_timeout(is_read, left)
                        .unwrap_or_else(PoisonError::into_inner)
                        .0
                }
            };
        }
        *is_read = true;
        drop(is_read);
        let _turn = Turn(self);
        self.wait_for(deadline, look)
    }

    /// Has the other calls of [`wait_in_turn`](Self::wait_in_turn) check what is theirs, although the one that reads stays.
    pub(crate) fn check_again(&self) {
        let _is_read = self.lock_is_read();
        self.for_others.notify_all();
    }

    fn lock_is_read(&self) -> MutexGuard<'_, bool> {
        self.is_read.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn wait_event(self: &Arc<Self>, deadline: Option<Instant>) -> Result<Option<Event>> {
        self.wait_for(deadline, || self.try_event())
    }

    /// Looks for what the channel's events bring until something is found or the deadline has passed.
    pub(crate) fn wait_for<T>(
        &self,
        deadline: Option<Instant>,
        mut look: impl FnMut() -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        let mut patience = Patience::new();
        loop {
            if let Some(found) = look()? {
                if let Some(waiting) = &patience {
                    waiting.paid_off();
                }
                return Ok(Some(found));
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Ok(None);
            }
            if let Some(waiting) = &mut patience {
                if !waiting.look_again() {
                    patience = None;
                }
                continue;
            }
            // What was acknowledged travels with the next request for an event; only when none is made soon it is worth a
            // message of its own.
            let unsaid = self.has_unsaid();
            let limit = if unsaid {
                Some(left.map_or(QUIET, |left| left.min(QUIET)))
            } else {
                left
            };
            if !self.wait_readable(limit)? && unsaid {
                self.say_acknowledged();
            }
        }
    }

    /// Whether something was acknowledged that the service does not know yet.
    pub(crate) fn has_unsaid(&self) -> bool {
        !self.lock_acknowledged().is_empty()
    }

    pub(crate) fn say_acknowledged(&self) {
        command::tell_acknowledged(&self.host, self.take_acknowledged());
    }

    fn wait_readable(&self, limit: Option<Duration>) -> Result<bool> {
        // What does not fit is waited for in pieces.
        let limit = limit.map(|limit| {
            Timespec::try_from(limit).unwrap_or(Timespec {
                tv_sec: i32::MAX.into(),
                tv_nsec: 0,
            })
        });
        let mut fds = [PollFd::new(&self.client, PollFlags::IN)];
        match rustix::event::poll(&mut fds, limit.as_ref()) {
            Ok(ready) => Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(errno) => Err(Error::Channel(errno.into())),
        }
    }

    pub(crate) fn try_event(self: &Arc<Self>) -> Result<Option<Event>> {
        while self.take_wake()? {
            // Without an event here the one announced has migrated, or its identifier was destroyed.
            let acknowledged = self.take_acknowledged();
            if let Some(fetched) = command::get_event(&self.host, self.token(), acknowledged)?
                && let Some(event) = self.deliver(&fetched)
            {
                return Ok(Some(event));
            }
        }
        Ok(None)
    }

    /// Takes one of the bytes by which the service announces events.
    fn take_wake(&self) -> Result<bool> {
        match self.client.take_wake(1).map_err(Error::Channel)? {
            Wake::Events(_) => Ok(true),
            Wake::Nothing => Ok(false),
            _ => Err(Error::ServiceGone),
        }
    }

    /// The identifier has now acknowledged so many of its events.
    pub(crate) fn note_acknowledged(&self, id: u32, events: u32) {
        self.lock_acknowledged().insert(id, events);
    }

    fn lock_acknowledged(&self) -> MutexGuard<'_, HashMap<u32, u32>> {
        // Insert and take leave the map whole.
        self.acknowledged
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn take_acknowledged(&self) -> Vec<Acknowledged> {
        let mut acknowledged = self.lock_acknowledged();
        let some: Vec<u32> = acknowledged.keys().copied().take(MAX_BATCH).collect();
        some.into_iter()
            .filter_map(|id| {
                let events = acknowledged.remove(&id)?;
                Some(Acknowledged { id, events })
            })
            .collect()
    }

    /// Wakes whoever waits for events here, with the end of the channel: the one identifier has left it, or is closed.
    pub(crate) fn end_waits(&self) {
        if let Err(errno) = rustix::net::shutdown(&self.client, rustix::net::Shutdown::Both) {
            tracing::debug!(
                "private event channel {} not shut down: {errno}",
                self.serial
            );
        }
    }

    /// Turns what the service reported into an event, doing what is the library's part of it.
    fn deliver(self: &Arc<Self>, fetched: &Fetched) -> Option<Event> {
        let Fetched {
            event: raw,
            remote,
            recipes,
        } = fetched;
        // A connection request names the listener by uid and the new identifier by number.
        let found = registry::find(raw.uid);
        let qp_type = match &found {
            Some(Found::Identifier(owner) | Found::Membership(_, owner)) => owner.qp_type,
            None => QpType::Rc,
        };
        let is_datagram = qp_type == QpType::Ud;
        let params = (!is_datagram).then(|| command::peer_param(&raw.param));
        let child = (raw.kind == command::CONNECT_REQUEST).then(|| {
            let request = Request {
                qp_type,
                offered: params,
                peer: *remote,
            };
            Identifier::adopt(Arc::clone(self), raw.id, request)
        });
        // The identifier was dropped while its event was under way: nobody waits for it, a new connection is refused.
        let (owner, membership) = match found? {
            Found::Identifier(owner) => (owner, None),
            Found::Membership(membership, owner) => (owner, membership),
        };
        let ece = Ece {
            vendor_id: raw.ece.vendor_id,
            options: raw.ece.attr_mod,
        };
        child
            .as_ref()
            .map_or(&owner, |child| &child.0)
            .keep_peer_ece(ece);
        let number = match raw.kind {
            // It completes the connection, see below.
            command::CONNECT_RESPONSE if owner.has_queue_pair() => command::ESTABLISHED,
            other => other,
        };
        let receipt = Receipt::new(
            Arc::clone(&owner),
            membership.clone(),
            Arc::clone(self),
            command::event_name(number),
        );
        if ends(raw.kind) {
            owner.note_ended();
        }
        let id = Identifier(Arc::clone(&owner));
        let status = raw.status;
        let datagram = is_datagram.then(|| raw.ud());
        let ud = datagram.as_ref().map(UdParam::new);
        let private_data = match &datagram {
            Some(datagram) => &datagram.private_data,
            None => &raw.param.private_data,
        };
        let private_data = private_data.as_deref().and_then(PaddedData::from_field);
        Some(match raw.kind {
            command::ADDR_RESOLVED => {
                owner.keep_recipes(*recipes);
                Event::AddressResolved { id, receipt }
            }
            command::ADDR_ERROR => Event::AddressError {
                id,
                status,
                receipt,
            },
            command::ROUTE_RESOLVED => Event::RouteResolved { id, receipt },
            command::ROUTE_ERROR => Event::RouteError {
                id,
                status,
                receipt,
            },
            command::CONNECT_REQUEST => Event::ConnectRequest {
                id: {
                    let child = child.expect("made above for this event");
                    child.0.keep_peer_data(private_data.as_ref());
                    child.0.keep_recipes(*recipes);
                    child
                },
                listen_id: id,
                params,
                ud,
                private_data,
                receipt,
            },
            command::CONNECT_RESPONSE => {
                let params = command::peer_param(&raw.param);
                response(&owner, params, private_data, recipes, receipt)
            }
            command::CONNECT_ERROR => Event::ConnectError {
                id,
                status,
                sentence: None,
                receipt,
            },
            command::UNREACHABLE => {
                if !is_datagram {
                    owner.stop_queue_pair();
                }
                Event::Unreachable {
                    id,
                    status,
                    private_data,
                    receipt,
                }
            }
            command::REJECTED => {
                owner.stop_queue_pair();
                if owner.has_failed() {
                    // The failure was reported as CONNECT_ERROR.
                    return None;
                }
                Event::Rejected {
                    id,
                    reason: RejReason(u16::try_from(status).unwrap_or(u16::MAX)),
                    private_data,
                    receipt,
                }
            }
            command::ESTABLISHED => {
                owner.ignore_first_data();
                if is_datagram {
                    owner.keep_peer_data(private_data.as_ref());
                }
                Event::Established {
                    id,
                    params: None,
                    ud,
                    private_data,
                    receipt,
                }
            }
            command::DISCONNECTED => {
                if owner.has_failed() {
                    return None;
                }
                Event::Disconnected {
                    id,
                    status,
                    receipt,
                }
            }
            command::DEVICE_REMOVAL => Event::DeviceRemoval { id, receipt },
            command::ADDR_CHANGE => Event::AddressChange { id, receipt },
            command::TIMEWAIT_EXIT => Event::TimewaitExit { id, receipt },
            // Without a membership it was dropped meanwhile; the event counts all the same.
            command::MULTICAST_JOIN => joined(id, membership?, raw.join(), ud?, receipt),
            command::MULTICAST_ERROR => {
                let membership = membership?;
                membership.failed(raw.join());
                Event::MulticastError {
                    id,
                    multicast: Multicast(membership),
                    status,
                    sentence: None,
                    receipt,
                }
            }
            command::USER => Event::User {
                id,
                status,
                value: raw.arg(),
                receipt,
            },
            number => Event::Other {
                id,
                number,
                status,
                receipt,
            },
        })
    }
}

/// A call's turn at reading the channel.
struct Turn<'a>(&'a Channel);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *self.0.lock_is_read() = false;
        self.0.for_others.notify_all();
    }
}

/// Whether the event is the end of a connection, or of the attempt to make one.
pub(crate) fn ends(kind: u32) -> bool {
    [
        command::CONNECT_ERROR,
        command::UNREACHABLE,
        command::REJECTED,
        command::DISCONNECTED,
        command::DEVICE_REMOVAL,
        command::TIMEWAIT_EXIT,
    ]
    .contains(&kind)
}

/// A group was joined: the identifier's queue pair is attached, before the program sees the event.
fn joined(
    id: Identifier,
    membership: Arc<Membership>,
    number: JoinNumber,
    ud: UdParam,
    receipt: Receipt,
) -> Event {
    let attached = membership.joined(number, ud);
    let multicast = Multicast(membership);
    match attached {
        Ok(()) => Event::MulticastJoin {
            id,
            multicast,
            ud,
            receipt,
        },
        Err(source) => {
            let error = Error::Verbs {
                call: "join_multicast",
                source,
            };
            Event::MulticastError {
                id,
                multicast,
                status: -error.errno(),
                sentence: Some(error.to_string()),
                receipt,
            }
        }
    }
}

/// The peer's reply: with a queue pair of its own the identifier completes the connection here, and the program sees it
/// established.
fn response(
    owner: &Arc<Shared>,
    params: PeerParam,
    private_data: Option<PaddedData>,
    recipes: &Recipes,
    receipt: Receipt,
) -> Event {
    owner.keep_peer_data(private_data.as_ref());
    let id = Identifier(Arc::clone(owner));
    if !owner.has_queue_pair() {
        return Event::ConnectResponse {
            id,
            params,
            private_data,
            receipt,
        };
    }
    match owner.complete_connect(recipes) {
        Ok(()) => Event::Established {
            id,
            params: Some(params),
            ud: None,
            private_data,
            receipt,
        },
        Err(error) => {
            owner.fail();
            owner.note_ended();
            Event::ConnectError {
                id,
                status: -error.errno(),
                sentence: Some(error.to_string()),
                receipt,
            }
        }
    }
}
