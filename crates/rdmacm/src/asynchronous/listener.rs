//! Accepting, awaited.

use super::channel::AsyncEventChannel;
use super::connection::AsyncConnection;
use super::host::AsyncHost;
use super::identifier::AsyncIdentifier;
use crate::channel::EventChannel;
use crate::easy::intake::{Found, Intake, Ways};
use crate::easy::{Connection, ConnectionOptions};
use crate::error::{Error, Result};
use crate::identifier::Identifier;
use oarlock_verbs::{CompletionQueue, Context};
use oarlock_wire::PortSpace;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Accepts connections on an address: [`Listener`](crate::Listener), awaited.
///
/// Requests are taken from the service only while somebody waits for a connection, so that the backlog is the service's.
/// Connections in the making belong to the listener, not to the future that began them. Several tasks may accept at once.
#[doc(alias = "rdma_create_ep")]
pub struct AsyncListener {
    id: Identifier,
    host: AsyncHost,
    channel: AsyncEventChannel,
    options: ConnectionOptions,
    intake: Mutex<Intake<OnHost>>,
}

impl AsyncListener {
    /// Listens on an address; port 0 takes a free one. As many requests wait as the service allows.
    ///
    /// # Errors
    /// As [`Identifier::bind_addr`] and [`Identifier::listen`]; [`Error::NoRuntime`].
    ///
    /// # Panics
    /// If the runtime was built without I/O.
    ///
    /// # Blocking
    /// A few round trips to the host service.
    #[doc(alias = "rdma_listen")]
    pub fn bind(host: &AsyncHost, address: SocketAddr) -> Result<Self> {
        Self::bind_with_backlog(host, address, 0)
    }

    /// As [`bind`](Self::bind), and says how many requests may wait until they are looked at; see
    /// [`Identifier::listen`].
    ///
    /// # Errors
    /// As [`bind`](Self::bind).
    ///
    /// # Panics
    /// As [`bind`](Self::bind).
    #[doc(alias = "rdma_listen")]
    pub fn bind_with_backlog(host: &AsyncHost, address: SocketAddr, backlog: i32) -> Result<Self> {
        let channel = AsyncEventChannel::new(EventChannel::new(host.host())?)?;
        let id = Identifier::new(channel.channel(), PortSpace::TCP)?;
        id.bind_addr(address)?;
        id.listen(backlog)?;
        Ok(Self {
            id,
            host: host.clone(),
            channel,
            options: ConnectionOptions::new(),
            intake: Mutex::new(Intake::new(OnHost(host.clone()))),
        })
    }

    /// How connections are made. A [deadline](ConnectionOptions::deadline) bounds each `accept` and needs a runtime with
    /// time enabled.
    #[must_use]
    pub fn options(mut self, options: ConnectionOptions) -> Self {
        self.options = options;
        self
    }

    /// The address with its port.
    ///
    /// # Errors
    /// [`Error::ServiceGone`].
    #[doc(alias = "rdma_get_local_addr")]
    pub fn local_addr(&self) -> Result<SocketAddr> {
        self.id
            .local_addr()?
            .ok_or(Error::NoDevice { call: "local_addr" })
    }

    /// The identifier that listens.
    #[must_use]
    pub fn id(&self) -> &Identifier {
        &self.id
    }

    /// The next connection, established. A peer that gives up meanwhile is passed over.
    ///
    /// # Errors
    /// As [`Listener::accept`](crate::Listener::accept).
    ///
    /// # Cancellation
    /// Safe: a connection is taken and returned in one step. Those in the making stay with the listener, and the next call
    /// goes on with them.
    #[doc(alias = "rdma_get_request")]
    #[doc(alias = "rdma_accept")]
    pub async fn accept(&self) -> Result<AsyncConnection> {
        let accept = || self.lock().accept(self.channel.channel(), &self.options);
        // A connection that became established while a request was wanted is announced by nothing.
        if let Found::This(ready) = accept()? {
            return Ok(ready);
        }
        self.in_time(self.channel.wait_for(accept), "a connection")
            .await
    }

    /// The next connection request, to be looked at, given a queue pair, and accepted or rejected by hand.
    ///
    /// # Errors
    /// As [`accept`](Self::accept).
    ///
    /// # Cancellation
    /// Safe: a request is taken and returned in one step.
    #[doc(alias = "rdma_get_request")]
    pub async fn get_request(&self) -> Result<AsyncIdentifier> {
        let request = || self.lock().request(self.channel.channel());
        let child = self
            .in_time(self.channel.wait_for(request), "a connection request")
            .await?;
        AsyncIdentifier::adopt(&self.host, child)
    }

    /// How many connections were rejected, the oldest first, because too many were in the making.
    #[must_use]
    pub fn turned_away(&self) -> u64 {
        self.lock().turned_away()
    }

    async fn in_time<T>(
        &self,
        found: impl Future<Output = Result<T>>,
        awaited: &'static str,
    ) -> Result<T> {
        match self.options.limit() {
            None => found.await,
            Some(limit) => tokio::time::timeout(limit, found)
                .await
                .unwrap_or_else(|_| {
                    Err(Error::TimedOut {
                        peer: None,
                        awaited,
                    })
                }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Intake<OnHost>> {
        // A panic (in what prepares a connection) leaves the collections whole.
        self.intake.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for AsyncListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncListener")
            .field("id", &self.id)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

/// Connections whose events the host's task reads.
struct OnHost(AsyncHost);

impl Ways for OnHost {
    type Settled = AsyncConnection;

    fn new_cq(&self, device: &Context, size: u32) -> Result<CompletionQueue> {
        self.0.completions(device)?.new_cq(device, size)
    }

    fn settle(&self, connection: Connection) -> Result<AsyncConnection> {
        let completions = self.0.completions(connection.pd.context())?;
        AsyncConnection::adopt(&self.0, connection, &completions)
    }
}
