//! Identifiers: creating, binding, resolving, options, addresses, and what all calls share.

use crate::channel::{Channel, EventChannel};
use crate::error::{Error, Result};
use crate::ledger::Ledger;
use crate::param::{PaddedData, PeerParam};
use crate::queue_pair::Recipes;
use crate::{command, registry};
use oarlock_hostd::Host;
use oarlock_ucm::client::{self, Addresses, Answer, Call, IdNumber};
use oarlock_verbs::{Context, QpType, QueuePair};
use oarlock_wire::{Ece, Gid, IbTimeout, PortSpace, RnrTimer};
use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

/// The types of queue pairs there are, as the ABI numbers them (`enum ibv_qp_type`).
const fn abi_number(qp_type: QpType) -> Option<u8> {
    match qp_type {
        QpType::Rc => Some(2),
        QpType::Ud => Some(4),
        _ => None,
    }
}

/// The RDMA CM's object for one connection, or for listening: what a socket is to TCP.
///
/// A handle: clones are the same identifier, and may be used from several threads. It reports to the
/// [`EventChannel`] it was created on, or is *synchronous*: then every call that would be answered by an event waits for
/// it and returns the outcome.
///
/// When the last handle goes (events hold handles too), the identifier is destroyed without waiting: an established
/// connection is disconnected, a request not yet accepted is rejected, a listener stops. [`close`](Self::close) does the
/// same while other handles exist and waits until no event of the identifier is unacknowledged.
#[doc(alias = "rdma_cm_id")]
#[derive(Clone)]
pub struct Identifier(pub(crate) Arc<Shared>);

pub(crate) struct Shared {
    pub(crate) host: Host,
    pub(crate) number: IdNumber,
    /// What the service echoes in events.
    pub(crate) uid: u64,
    context: AtomicU64,
    /// Where events go. Commands hold it for reading, so that none is under way while MIGRATE_ID moves the identifier.
    pub(crate) channel: RwLock<Arc<Channel>>,
    pub(crate) ledger: Ledger,
    pub(crate) queue_pair: Mutex<Option<QueuePair>>,
    /// An identifier never changes its device.
    pub(crate) device: OnceLock<Context>,
    /// How to move the queue pair, as far as that is known and cannot change.
    pub(crate) recipes: Mutex<Recipes>,
    /// The queue pairs that the identifier is for.
    pub(crate) qp_type: QpType,
    /// Whether it was made for a connection request.
    pub(crate) is_passive: bool,
    /// Of a passive side: what the connection request offers.
    pub(crate) offered: Option<PeerParam>,
    /// What the peer sent along with its request or reply.
    peer_data: OnceLock<PaddedData>,
    /// The vendor's options that came with it.
    peer_ece: OnceLock<Ece>,
    pub(crate) closed: AtomicBool,
    /// Establishing failed on this side; later refusals are consequences.
    failed: AtomicBool,
    /// This side accepted a connection request.
    accepted: AtomicBool,
    /// The end of the connection, or of the attempt to connect, was reported.
    ended: AtomicBool,
    /// How many calls wait for an event, or will when the service has answered.
    waits: AtomicUsize,
    /// How often the queue pair is attached to multicast groups.
    attached: Mutex<HashMap<Gid, u32>>,
    /// The memberships of which events may come, by uid.
    joins: Mutex<Vec<u64>>,
    /// The other side, as far as this process was told: for messages.
    peer: Mutex<Option<SocketAddr>>,
    /// Bounds the identifier's waits.
    wait_until: Mutex<Option<Instant>>,
}

impl Identifier {
    /// Creates an identifier that reports to `channel`.
    ///
    /// # Errors
    /// [`Error::Refused`] with `EINVAL` for port spaces that do not exist.
    ///
    /// # Blocking
    /// One round trip to the host service.
    #[doc(alias = "rdma_create_id")]
    pub fn new(channel: &EventChannel, port_space: PortSpace) -> Result<Self> {
        Self::with_qp_type(channel, port_space, default_qp_type(port_space))
    }

    /// As [`new`](Self::new), for queue pairs of a type of choice, which only port space IB leaves open.
    ///
    /// # Errors
    /// As [`new`](Self::new); [`Error::OtherQpType`]: other port spaces keep to their own type.
    ///
    /// # Blocking
    /// One round trip to the host service.
    #[doc(alias = "rdma_create_id")]
    #[doc(alias = "rdma_create_ep")]
    pub fn with_qp_type(
        channel: &EventChannel,
        port_space: PortSpace,
        qp_type: QpType,
    ) -> Result<Self> {
        let uid = registry::next_uid();
        Self::create(Arc::clone(&channel.inner), uid, port_space, qp_type)
    }

    /// Creates a synchronous identifier.
    ///
    /// # Errors
    /// As [`new`](Self::new), and as [`EventChannel::new`].
    #[doc(alias = "rdma_create_id")]
    pub fn synchronous(host: &Host, port_space: PortSpace) -> Result<Self> {
        let uid = registry::next_uid();
        let channel = Channel::open(host, Some(uid))?;
        Self::create(channel, uid, port_space, default_qp_type(port_space))
    }

    fn create(
        channel: Arc<Channel>,
        uid: u64,
        port_space: PortSpace,
        qp_type: QpType,
    ) -> Result<Self> {
        let usual = default_qp_type(port_space);
        let other_type = Error::OtherQpType {
            call: "create_id",
            given: qp_type,
            wanted: usual,
        };
        if port_space != PortSpace::IB && qp_type != usual {
            return Err(other_type);
        }
        let number = abi_number(qp_type).ok_or(other_type)?;
        let command = client::create_id(uid, port_space.0, number);
        let number = command::ask(&channel.host, "create_id", channel.token(), command)?;
        Ok(Self::register(channel, number, uid, qp_type, None))
    }

    /// Takes over the identifier that the service made for a connection request.
    pub(crate) fn adopt(channel: Arc<Channel>, number: IdNumber, request: Request) -> Self {
        let qp_type = request.qp_type;
        let peer = request.peer;
        let uid = registry::next_uid();
        let child = Self::register(channel, number, uid, qp_type, Some(request));
        child.0.note_peer(peer);
        child
    }

    fn register(
        channel: Arc<Channel>,
        number: IdNumber,
        uid: u64,
        qp_type: QpType,
        request: Option<Request>,
    ) -> Self {
        let shared = Arc::new(Shared {
            host: channel.host.clone(),
            number,
            uid,
            context: AtomicU64::new(0),
            channel: RwLock::new(channel),
            ledger: Ledger::default(),
            queue_pair: Mutex::new(None),
            device: OnceLock::new(),
            recipes: Mutex::default(),
            qp_type,
            is_passive: request.is_some(),
            offered: request.and_then(|request| request.offered),
            peer_data: OnceLock::new(),
            peer_ece: OnceLock::new(),
            closed: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            accepted: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            waits: AtomicUsize::new(0),
            attached: Mutex::default(),
            joins: Mutex::default(),
            peer: Mutex::new(None),
            wait_until: Mutex::new(None),
        });
        registry::insert(uid, &shared);
        Self(shared)
    }

    /// A value of the program's own, 0 until set; every handle sees it.
    #[must_use]
    pub fn context(&self) -> u64 {
        self.0.context.load(Ordering::Relaxed)
    }

    /// Sets [`context`](Self::context).
    pub fn set_context(&self, value: u64) {
        self.0.context.store(value, Ordering::Relaxed);
    }

    /// Binds to a local address and port; port 0 takes a free one.
    ///
    /// A specific address that is not loopback binds the identifier to that address's device. A wildcard or loopback address
    /// leaves it without one until an address is resolved, as with the kernel's RDMA CM.
    ///
    /// # Errors
    /// [`Error::Refused`], by errno: `EADDRNOTAVAIL` no such local address, or the port is held with a wildcard address;
    /// `EADDRINUSE` the port is held with the same address; `ENODEV` no device for the address; `EACCES` a port below
    /// 1024; `EINVAL` bound already, or a link-local address without its interface.
    ///
    /// # Blocking
    /// One round trip.
    #[doc(alias = "rdma_bind_addr")]
    pub fn bind_addr(&self, address: SocketAddr) -> Result<()> {
        self.0
            .ask("bind_addr", client::bind(self.0.number, address))
    }

    /// Finds the device, the source address and the way to `destination`. `source` fixes the local address; without it the
    /// address bound before counts, or the one that the route lookup gives.
    ///
    /// Followed by [`Event::AddressResolved`](crate::Event::AddressResolved) or
    /// [`Event::AddressError`](crate::Event::AddressError).
    ///
    /// # Errors
    /// [`Error::Refused`], by errno: `EINVAL` in a state other than new or bound, or for addresses of two families;
    /// `ENETUNREACH`, `EHOSTUNREACH`, `ENODEV` when the lookup fails at once. A synchronous identifier also
    /// [`Error::AddressResolution`] and [`Error::TimedOut`].
    ///
    /// # Blocking
    /// One round trip; a synchronous identifier waits for the outcome.
    #[doc(alias = "rdma_resolve_addr")]
    pub fn resolve_addr(
        &self,
        source: Option<SocketAddr>,
        destination: SocketAddr,
        timeout: Duration,
    ) -> Result<()> {
        let timeout = milliseconds("resolve_addr", timeout)?;
        let command = client::resolve_addr(self.0.number, source, destination, timeout);
        // Before the event can be fetched, by whomever.
        let before = self.0.note_peer(Some(destination));
        if let Err(error) = self.0.ask("resolve_addr", command) {
            self.0.note_peer(before);
            return Err(error);
        }
        self.wait_if_synchronous(Awaited::AddressResolved)
    }

    /// Finds the path to the destination. Followed by [`Event::RouteResolved`](crate::Event::RouteResolved) or
    /// [`Event::RouteError`](crate::Event::RouteError).
    ///
    /// # Errors
    /// [`Error::Refused`] with `EINVAL` before the address is resolved. A synchronous identifier also
    /// [`Error::RouteResolution`] and [`Error::TimedOut`].
    ///
    /// # Blocking
    /// One round trip; a synchronous identifier waits for the outcome.
    #[doc(alias = "rdma_resolve_route")]
    pub fn resolve_route(&self, timeout: Duration) -> Result<()> {
        let timeout = milliseconds("resolve_route", timeout)?;
        self.0.ask(
            "resolve_route",
            client::resolve_route(self.0.number, timeout),
        )?;
        self.wait_if_synchronous(Awaited::RouteResolved)
    }

    /// Listens for connection requests; each arrives as [`Event::ConnectRequest`](crate::Event::ConnectRequest), or by
    /// [`get_request`](Self::get_request). An identifier that is not bound is bound to all addresses and a free port.
    ///
    /// At most `backlog` requests are kept until they are fetched; more are dropped, and their senders try again. 0 means the
    /// service's maximum.
    ///
    /// # Errors
    /// [`Error::Refused`], by errno: `EINVAL` in a state other than new or bound; `EADDRINUSE`, `EADDRNOTAVAIL` when the
    /// port is shared with another listener.
    ///
    /// # Blocking
    /// One round trip, also for a synchronous identifier.
    #[doc(alias = "rdma_listen")]
    pub fn listen(&self, backlog: i32) -> Result<()> {
        self.0.ask("listen", client::listen(self.0.number, backlog))
    }

    /// The type of service (traffic class) of the connection's packets; before `resolve_addr`.
    ///
    /// # Errors
    /// [`Error::Refused`]: the sentence says why.
    #[doc(alias = "rdma_set_option")]
    pub fn set_type_of_service(&self, value: u8) -> Result<()> {
        self.0
            .ask("set_type_of_service", client::set_tos(self.0.number, value))
    }

    /// Allows sharing the address with other identifiers that allow it; never two listeners.
    ///
    /// # Errors
    /// [`Error::Refused`] with `EINVAL` while listening.
    #[doc(alias = "rdma_set_option")]
    pub fn set_reuse_address(&self, allowed: bool) -> Result<()> {
        self.0.ask(
            "set_reuse_address",
            client::set_reuseaddr(self.0.number, allowed),
        )
    }

    /// Restricts a wildcard address to its own family; before listening.
    ///
    /// # Errors
    /// [`Error::Refused`] with `EINVAL` in later states.
    #[doc(alias = "rdma_set_option")]
    pub fn set_address_family_only(&self, only: bool) -> Result<()> {
        self.0.ask(
            "set_address_family_only",
            client::set_afonly(self.0.number, only),
        )
    }

    /// How long the queue pair waits for an acknowledgement, as encoded in the packets; before `connect` or `accept`.
    ///
    /// # Errors
    /// [`Error::Refused`]: the sentence says why.
    #[doc(alias = "rdma_set_option")]
    pub fn set_ack_timeout(&self, timeout: IbTimeout) -> Result<()> {
        self.0.ask(
            "set_ack_timeout",
            client::set_ack_timeout(self.0.number, timeout.get()),
        )?;
        self.0.forget_recipes();
        Ok(())
    }

    /// How long a sender waits that finds no receive posted here; before `connect` or `accept`. Without it, the host's value:
    /// 0.64 ms.
    ///
    /// # Errors
    /// [`Error::Refused`]: the sentence says why.
    pub fn set_min_rnr_timer(&self, timer: RnrTimer) -> Result<()> {
        self.0.ask(
            "set_min_rnr_timer",
            client::set_min_rnr_timer(self.0.number, timer),
        )?;
        self.0.forget_recipes();
        Ok(())
    }

    /// How long the peer may take to answer a message of connecting before it is sent again; before `connect`. Without it,
    /// the host's value: 4 s.
    ///
    /// # Errors
    /// [`Error::Refused`]: the sentence says why.
    pub fn set_response_timeout(&self, timeout: IbTimeout) -> Result<()> {
        self.0.ask(
            "set_response_timeout",
            client::set_cm_response_timeout(self.0.number, timeout),
        )
    }

    /// How often a message of connecting is sent again, 15 times at most; before `connect`. Without it, the host's value: 15.
    ///
    /// # Errors
    /// [`Error::Refused`] with `EINVAL` for more than 15.
    pub fn set_max_retries(&self, retries: u8) -> Result<()> {
        self.0.ask(
            "set_max_retries",
            client::set_max_cm_retries(self.0.number, retries),
        )
    }

    /// How long `connect` may take altogether, rounded up to whole milliseconds, 1 at least and about 49 days at most: then
    /// comes [`Unreachable`](crate::Event::Unreachable).
    /// Before `connect`. Without it, the host's value: as long as the retries take, 74 s.
    ///
    /// # Errors
    /// [`Error::Refused`]: the sentence says why.
    pub fn set_connect_deadline(&self, deadline: Option<Duration>) -> Result<()> {
        self.0.ask(
            "set_connect_deadline",
            client::set_connect_deadline(self.0.number, deadline),
        )
    }

    /// The local address, once bound or resolved.
    ///
    /// # Errors
    /// [`Error::Closed`], [`Error::ServiceGone`].
    #[doc(alias = "rdma_get_local_addr")]
    #[doc(alias = "rdma_get_src_port")]
    pub fn local_addr(&self) -> Result<Option<SocketAddr>> {
        Ok(self.0.addresses("local_addr")?.local)
    }

    /// The peer's address, once resolved or, on the passive side, from the beginning.
    ///
    /// # Errors
    /// As [`local_addr`](Self::local_addr).
    #[doc(alias = "rdma_get_peer_addr")]
    #[doc(alias = "rdma_get_dst_port")]
    pub fn peer_addr(&self) -> Result<Option<SocketAddr>> {
        Ok(self.0.addresses("peer_addr")?.remote)
    }

    /// Whether the identifier is for datagrams (UD) rather than connections: port spaces UDP and IPOIB, and IB if it was
    /// made so.
    #[must_use]
    pub fn is_datagram(&self) -> bool {
        self.0.qp_type == QpType::Ud
    }

    /// Puts an event into the identifier's channel, from any thread: whoever waits there gets
    /// [`Event::User`](crate::Event::User) with `value` and `status`, behind the events that are queued already.
    ///
    /// # Errors
    /// [`Error::Refused`] with `ENOMEM` when the channel is full; [`Error::Closed`]; [`Error::ServiceGone`].
    ///
    /// # Blocking
    /// One round trip.
    ///
    /// # Examples
    /// A thread that waits for events is told to stop:
    /// ```
    /// # use oarlock_rdmacm::{Event, EventChannel, Host, Identifier, PortSpace};
    /// # let host = Host::private()?;
    /// let channel = EventChannel::new(&host)?;
    /// let id = Identifier::new(&channel, PortSpace::TCP)?;
    /// let waiting = std::thread::spawn(move || {
    ///     loop {
    ///         if let Event::User { value: 1, .. } = channel.get_event().expect("the host lives") {
    ///             break;
    ///         }
    ///     }
    /// });
    /// id.inject(1, 0)?;
    /// waiting.join().expect("the thread ends");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "rdma_write_cm_event")]
    pub fn inject(&self, value: u64, status: i32) -> Result<()> {
        let command = client::write_cm_event(self.0.number, command::USER, status, value);
        self.0.ask("inject", command)
    }

    /// What the connection request offers, in our view; `None` unless this is the passive side of a connection (datagrams
    /// have no connection, and offer nothing).
    #[must_use]
    pub fn offered(&self) -> Option<PeerParam> {
        self.0.offered
    }

    /// The private data that the peer sent with its request (passive side) or its reply (active side).
    #[must_use]
    pub fn peer_private_data(&self) -> Option<&PaddedData> {
        self.0.peer_data.get()
    }

    /// The vendor's options of enhanced connection establishment that came with the peer's request (passive side) or reply
    /// (active side); `None` if it named no vendor.
    #[doc(alias = "rdma_get_remote_ece")]
    #[must_use]
    pub fn peer_ece(&self) -> Option<Ece> {
        self.0.peer_ece.get().copied()
    }

    /// Bounds every wait of the identifier that begins from now on; `None` removes the bound.
    ///
    /// - A call of a synchronous identifier that meets it ends with [`Error::TimedOut`], and the operation goes on: its
    ///   event is there for the next call.
    /// - [`migrate`](Self::migrate) and [`close`](Self::close) end with [`Error::Unacknowledged`] and have done everything
    ///   but the waiting.
    pub fn set_deadline(&self, deadline: Option<Instant>) {
        *self
            .0
            .wait_until
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = deadline;
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        *self
            .0
            .wait_until
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

fn default_qp_type(port_space: PortSpace) -> QpType {
    if port_space == PortSpace::UDP || port_space == PortSpace::IPOIB {
        QpType::Ud
    } else {
        QpType::Rc
    }
}

/// What is known of a connection request when its identifier is made.
pub(crate) struct Request {
    pub(crate) qp_type: QpType,
    /// Connected types only.
    pub(crate) offered: Option<PeerParam>,
    pub(crate) peer: Option<SocketAddr>,
}

/// What a synchronous call waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Awaited {
    AddressResolved,
    RouteResolved,
    Established,
    Disconnected,
}

impl Shared {
    /// The channel, for a command or two; MIGRATE_ID waits until it is released.
    pub(crate) fn bound(&self) -> RwLockReadGuard<'_, Arc<Channel>> {
        // Only a whole Arc is ever assigned under the lock.
        self.channel.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn check_open(&self, call: &'static str) -> Result<()> {
        if self.is_closed() {
            return Err(Error::Closed { call });
        }
        Ok(())
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Sends one command about this identifier.
    pub(crate) fn ask<A: Answer>(&self, call: &'static str, command: Call<A>) -> Result<A> {
        let [answer] = self.ask_all(call, [command])?;
        Ok(answer)
    }

    pub(crate) fn ask_all<A: Answer, const N: usize>(
        &self,
        call: &'static str,
        commands: [Call<A>; N],
    ) -> Result<[A; N]> {
        let channel = self.bound();
        self.check_open(call)?;
        command::ask_all(&self.host, call, channel.token(), commands)
    }

    pub(crate) fn addresses(&self, call: &'static str) -> Result<Addresses> {
        self.ask(call, client::query_addr(self.number))
    }

    pub(crate) fn lock_queue_pair(&self) -> MutexGuard<'_, Option<QueuePair>> {
        // The slot is filled or emptied by one assignment.
        self.queue_pair
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn lock_attached(&self) -> MutexGuard<'_, HashMap<Gid, u32>> {
        // Counts change by one assignment.
        self.attached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn lock_joins(&self) -> MutexGuard<'_, Vec<u64>> {
        // Push and retain leave the list whole.
        self.joins.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn has_queue_pair(&self) -> bool {
        self.lock_queue_pair().is_some()
    }

    /// Keeps what the peer sent along; it sends one request or one reply.
    pub(crate) fn keep_peer_data(&self, data: Option<&PaddedData>) {
        if let Some(data) = data {
            self.peer_data.get_or_init(|| data.clone());
        }
    }

    /// Keeps the vendor's options that the peer sent along.
    pub(crate) fn keep_peer_ece(&self, ece: Ece) {
        if ece != Ece::default() {
            self.peer_ece.get_or_init(|| ece);
        }
    }

    /// Remembers who the other side is; who it was before.
    pub(crate) fn note_peer(&self, peer: Option<SocketAddr>) -> Option<SocketAddr> {
        std::mem::replace(
            &mut *self.peer.lock().unwrap_or_else(PoisonError::into_inner),
            peer,
        )
    }

    pub(crate) fn peer(&self) -> Option<SocketAddr> {
        *self.peer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn fail(&self) {
        self.failed.store(true, Ordering::Release);
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    pub(crate) fn note_accepted(&self) {
        self.accepted.store(true, Ordering::Release);
    }

    pub(crate) fn note_ended(&self) {
        self.ended.store(true, Ordering::Release);
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Whether an event of the connection's end is still to come, after a disconnect that the service took.
    pub(crate) fn awaits_end(&self) -> bool {
        let reports = !self.is_passive || self.accepted.load(Ordering::Acquire);
        self.qp_type != QpType::Ud && reports && !self.has_ended()
    }

    /// Counts a call that waits for its outcome; from before the service is asked, so that whatever the service takes
    /// after that finds the call counted.
    pub(crate) fn waiting(&self) -> Waiting<'_> {
        self.waits.fetch_add(1, Ordering::AcqRel);
        Waiting(&self.waits)
    }

    pub(crate) fn is_waited_on(&self) -> bool {
        self.waits.load(Ordering::Acquire) > 0
    }
}

/// One call that waits, until it is done or dropped.
#[must_use]
pub(crate) struct Waiting<'a>(&'a AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        registry::remove(self.uid);
        for uid in self.joins.get_mut().unwrap_or_else(PoisonError::into_inner) {
            registry::remove(*uid);
        }
        if !*self.closed.get_mut() {
            let channel = self
                .channel
                .get_mut()
                .unwrap_or_else(PoisonError::into_inner);
            command::post(&self.host, channel.token(), client::destroy_id(self.number));
        }
    }
}

impl PartialEq for Identifier {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Identifier {}

impl fmt::Debug for Identifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identifier({})", self.0.number.0)
    }
}

fn milliseconds(call: &'static str, given: Duration) -> Result<u32> {
    const MAX: Duration = Duration::from_millis(i32::MAX as u64);
    // A part of a millisecond is waited for as a whole one.
    u32::try_from(given.as_nanos().div_ceil(1_000_000))
        .ok()
        .filter(|&ms| ms > 0 && given <= MAX)
        .ok_or(Error::TimeoutOutOfRange {
            call,
            given,
            max: MAX,
        })
}
