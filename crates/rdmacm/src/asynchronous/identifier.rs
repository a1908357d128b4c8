//! Identifiers whose calls are awaited.

use super::host::{AsyncHost, Mailbox};
use crate::channel::EventChannel;
use crate::datagram::UdParam;
use crate::error::{Error, Result};
use crate::event::Event;
use crate::identifier::{Awaited, Identifier};
use crate::multicast::{JoinKind, Multicast};
use crate::param::ConnParam;
use crate::synchronous::peer_of;
use oarlock_wire::PortSpace;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// An identifier whose calls wait for their outcome.
///
/// Everything that does not wait is done through [`id`](Self::id): binding, options, addresses, the queue pair, `reject`.
/// Dropping it destroys the identifier without waiting, once no other handle exists.
///
/// ```
/// # use oarlock_rdmacm::{AsyncHost, AsyncIdentifier, AsyncListener, ConnParam, Host, PortSpace};
/// # use oarlock_verbs::{CompletionQueue, QpInitAttr};
/// # use std::time::Duration;
/// # let host = Host::private()?;
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let host = AsyncHost::new(&host)?;
/// let listener = AsyncListener::bind(&host, "127.0.0.1:0".parse()?)?;
/// let address = listener.local_addr()?;
/// # let passive = tokio::spawn(async move { listener.accept().await?.until_disconnected().await });
/// let id = AsyncIdentifier::new(&host, PortSpace::TCP)?;
/// id.resolve_addr(None, address, Duration::from_secs(2)).await?;
/// id.resolve_route(Duration::from_secs(2)).await?;
/// let device = id.id().device()?;
/// let cq = CompletionQueue::new(&device, 16)?;
/// let queue_pair = id.id().create_qp(&device.default_pd(), &cq, &cq, QpInitAttr::default())?;
/// id.connect(&ConnParam::default()).await?;
/// id.disconnect().await?;
/// # passive.await??;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "rdma_cm_id")]
pub struct AsyncIdentifier {
    id: Identifier,
    host: AsyncHost,
    mailbox: Arc<Mailbox>,
}

impl AsyncIdentifier {
    /// Creates an identifier.
    ///
    /// # Errors
    /// As [`Identifier::new`].
    ///
    /// # Blocking
    /// One round trip to the host service.
    #[doc(alias = "rdma_create_id")]
    pub fn new(host: &AsyncHost, port_space: PortSpace) -> Result<Self> {
        let id = Identifier::new(host.channel(), port_space)?;
        Ok(Self::register(host, id))
    }

    /// Takes over an identifier, whatever it reports to: its queued and later events come here.
    ///
    /// # Errors
    /// As [`Identifier::migrate`].
    ///
    /// # Blocking
    /// As [`Identifier::migrate`]: while fetched events of it are unacknowledged, at most until its deadline.
    #[doc(alias = "rdma_migrate_id")]
    pub fn adopt(host: &AsyncHost, id: Identifier) -> Result<Self> {
        // A mailbox first: events come as soon as it has moved.
        let adopted = Self::register(host, id);
        adopted.id.migrate(host.channel())?;
        Ok(adopted)
    }

    fn register(host: &AsyncHost, id: Identifier) -> Self {
        let mailbox = host.mailboxes().open(id.0.uid);
        Self {
            id,
            host: host.clone(),
            mailbox,
        }
    }

    /// Moves the identifier to an event channel, and ends being async. The events that were fetched from the service and
    /// not awaited are returned, oldest first; those that were queued come out of the channel.
    ///
    /// # Errors
    /// [`Error::OtherHost`]; [`Error::Refused`].
    ///
    /// # Blocking
    /// One round trip. Unacknowledged events are not waited for here; the next `migrate` or `close` waits for them.
    #[doc(alias = "rdma_migrate_id")]
    pub fn into_identifier(self, channel: &EventChannel) -> Result<(Identifier, Vec<Event>)> {
        let mailboxes = self.host.mailboxes();
        let under_way = mailboxes.hold();
        match self
            .id
            .move_until("migrate", &channel.inner, Some(Instant::now()))
        {
            Ok(()) | Err(Error::Unacknowledged { .. }) => {}
            Err(error) => return Err(error),
        }
        let events = mailboxes.close(self.id.0.uid);
        drop(under_way);
        let taken = events.into_iter().map(|mut event| {
            event.receipt_mut().take_over();
            event
        });
        Ok((self.id.clone(), taken.collect()))
    }

    /// The identifier, for all that does not wait. Its calls that are answered by an event return at once; the event
    /// comes out of [`next_event`](Self::next_event). (One that is migrated through this handle is awaited in vain.)
    #[must_use]
    pub fn id(&self) -> &Identifier {
        &self.id
    }

    /// The next event that no call has waited for: the end of the connection, the outcome of a call that was cancelled. While
    /// another call of this identifier waits for its outcome, events are that call's.
    ///
    /// # Errors
    /// [`Error::ServiceGone`]; [`Error::RuntimeGone`]; [`Error::Closed`], as from every call that waits, when another handle
    /// of the identifier is [closed](Identifier::close).
    ///
    /// # Cancellation
    /// Safe: an event is taken and returned in one step.
    #[doc(alias = "rdma_get_cm_event")]
    pub async fn next_event(&self) -> Result<Event> {
        let _waiting = self.id.0.waiting();
        let check = || self.check_can_come("next_event");
        self.mailbox.next_unclaimed(check).await
    }

    async fn event(&self, call: &'static str) -> Result<Event> {
        self.mailbox.next(|| self.check_can_come(call)).await
    }

    fn check_can_come(&self, call: &'static str) -> Result<()> {
        self.id.0.check_open(call)?;
        self.host.mailboxes().check()
    }

    /// As [`Identifier::resolve_addr`], and waits for the outcome.
    ///
    /// # Errors
    /// [`Error::AddressResolution`]; [`Error::Refused`]; [`Error::ServiceGone`].
    ///
    /// # Cancellation
    /// Safe: the resolution goes on, and its outcome comes out of [`next_event`](Self::next_event).
    #[doc(alias = "rdma_resolve_addr")]
    pub async fn resolve_addr(
        &self,
        source: Option<SocketAddr>,
        destination: SocketAddr,
        timeout: Duration,
    ) -> Result<()> {
        let _claim = self.mailbox.claim();
        self.id.resolve_addr(source, destination, timeout)?;
        self.outcome(Awaited::AddressResolved).await
    }

    /// As [`Identifier::resolve_route`], and waits for the outcome.
    ///
    /// # Errors
    /// [`Error::RouteResolution`]; [`Error::Refused`]; [`Error::ServiceGone`].
    ///
    /// # Cancellation
    /// Safe: the resolution goes on, and its outcome comes out of [`next_event`](Self::next_event).
    #[doc(alias = "rdma_resolve_route")]
    pub async fn resolve_route(&self, timeout: Duration) -> Result<()> {
        let _claim = self.mailbox.claim();
        self.id.resolve_route(timeout)?;
        self.outcome(Awaited::RouteResolved).await
    }

    /// As [`Identifier::connect`], and waits until the connection is established; with an external queue pair, until the
    /// peer has answered and [`establish`](Identifier::establish) is to follow.
    ///
    /// # Errors
    /// [`Error::Rejected`]; [`Error::Unreachable`]; [`Error::ConnectFailed`]; else as [`Identifier::connect`].
    ///
    /// # Cancellation
    /// Safe: connecting goes on, and its outcome comes out of [`next_event`](Self::next_event). To end it, drop the
    /// identifier: the peer is told.
    #[doc(alias = "rdma_connect")]
    pub async fn connect(&self, param: &ConnParam) -> Result<()> {
        let _waiting = self.id.0.waiting();
        let _claim = self.mailbox.claim();
        self.id.connect(param)?;
        self.outcome(Awaited::Established).await
    }

    /// As [`Identifier::accept`], and waits until the connection is established.
    ///
    /// # Errors
    /// [`Error::Unreachable`], [`Error::Rejected`], [`Error::DisconnectedEarly`]: the peer has given up. Else as
    /// [`Identifier::accept`].
    ///
    /// # Cancellation
    /// Safe: the acceptance is on its way, and what becomes of it comes out of [`next_event`](Self::next_event).
    #[doc(alias = "rdma_accept")]
    pub async fn accept(&self, param: &ConnParam) -> Result<()> {
        let _waiting = self.id.0.waiting();
        let _claim = self.mailbox.claim();
        self.id.accept(param)?;
        self.outcome(Awaited::Established).await
    }

    /// As [`Identifier::resolve_peer`].
    ///
    /// # Errors
    /// As [`Identifier::resolve_peer`].
    ///
    /// # Cancellation
    /// Safe: the question is asked again as often as needed, and what becomes of it comes out of
    /// [`next_event`](Self::next_event).
    #[doc(alias = "rdma_connect")]
    pub async fn resolve_peer(&self, private_data: &[u8]) -> Result<UdParam> {
        let _claim = self.mailbox.claim();
        self.id.ask_for_peer("resolve_peer", private_data)?;
        loop {
            if let Some(outcome) = peer_of(self.event("resolve_peer").await?) {
                return outcome;
            }
        }
    }

    /// As [`Identifier::join_multicast`], and waits for the outcome; [`Multicast::param`] says how the group is reached. One
    /// join of an identifier at a time.
    ///
    /// # Errors
    /// [`Error::JoinFailed`]; else as [`Identifier::join_multicast`].
    ///
    /// # Cancellation
    /// Safe: the group is left, since nobody has its membership. Its event, if it came already, is passed over by the next
    /// call, or comes out of [`next_event`](Self::next_event).
    #[doc(alias = "rdma_join_multicast")]
    #[doc(alias = "rdma_join_multicast_ex")]
    pub async fn join_multicast(&self, group: SocketAddr, kind: JoinKind) -> Result<Multicast> {
        let _claim = self.mailbox.claim();
        let multicast = self.id.begin_join(group, kind)?;
        loop {
            if let Some(outcome) = multicast.outcome(self.event("join_multicast").await?) {
                return outcome.map(|()| multicast);
            }
        }
    }

    /// As [`Identifier::disconnect`], and waits until the connection is down. It does not wait while another call of the
    /// identifier does: there is one event, and it ends that call ([`Error::DisconnectedEarly`], or as what
    /// [`next_event`](Self::next_event) gives). Nor for an end of which no event comes, see there.
    ///
    /// # Errors
    /// As [`Identifier::disconnect`].
    ///
    /// # Cancellation
    /// Safe: the disconnection goes on, and a second call waits for it.
    #[doc(alias = "rdma_disconnect")]
    pub async fn disconnect(&self) -> Result<()> {
        self.id.disconnect()?;
        if self.id.0.is_waited_on() || !self.id.0.awaits_end() {
            return Ok(());
        }
        let _waiting = self.id.0.waiting();
        self.outcome(Awaited::Disconnected).await
    }

    async fn outcome(&self, awaited: Awaited) -> Result<()> {
        let check = || self.check_can_come(awaited.call());
        while let Some(event) = self.mailbox.next_until_end(check).await? {
            if let Some(outcome) = awaited.outcome(event) {
                return outcome;
            }
        }
        awaited.outcome_of_end(&self.id)
    }
}

impl Drop for AsyncIdentifier {
    fn drop(&mut self) {
        // The events hold handles of the identifier.
        drop(self.host.mailboxes().close(self.id.0.uid));
    }
}

impl fmt::Debug for AsyncIdentifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Async{:?}", self.id)
    }
}
