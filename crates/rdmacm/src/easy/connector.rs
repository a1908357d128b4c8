//! Connecting, blocking.

use super::connection::plain_cq;
use super::options::RESOLVE_TIMEOUT;
use super::{Connection, ConnectionOptions};
use crate::error::Result;
use crate::identifier::Identifier;
use oarlock_hostd::Host;
use oarlock_wire::PortSpace;
use std::net::SocketAddr;

/// Connects to an address.
///
/// ```
/// # use oarlock_rdmacm::{ConnectionOptions, Connector, Host, Listener};
/// # use std::time::Duration;
/// let host = Host::private()?;
/// let listener = Listener::bind(&host, "127.0.0.1:0".parse()?)?;
/// let address = listener.local_addr()?;
/// let passive = std::thread::spawn(move || listener.accept()?.until_disconnected());
/// let patience = ConnectionOptions::new().deadline(Duration::from_secs(10));
/// let active = Connector::new(&host).options(patience).connect(address)?;
/// assert_eq!(active.id.peer_addr()?, Some(address));
/// active.disconnect()?;
/// passive.join().expect("the thread does not panic")?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "rdma_create_ep")]
#[derive(Clone, Debug)]
pub struct Connector {
    host: Host,
    source: Option<SocketAddr>,
    options: ConnectionOptions,
}

impl Connector {
    /// Connects from a host, with default options.
    #[must_use]
    pub fn new(host: &Host) -> Self {
        Self {
            host: host.clone(),
            source: None,
            options: ConnectionOptions::new(),
        }
    }

    /// Fixes the local address.
    #[must_use]
    pub fn source(mut self, address: SocketAddr) -> Self {
        self.source = Some(address);
        self
    }

    /// How the connection is made.
    #[must_use]
    pub fn options(mut self, options: ConnectionOptions) -> Self {
        self.options = options;
        self
    }

    /// Resolves, connects, and waits until the connection is established.
    ///
    /// # Errors
    /// Of every step: [`Error::AddressResolution`](crate::Error::AddressResolution),
    /// [`RouteResolution`](crate::Error::RouteResolution), [`Rejected`](crate::Error::Rejected),
    /// [`Unreachable`](crate::Error::Unreachable), [`TimedOut`](crate::Error::TimedOut) at the deadline,
    /// [`Verbs`](crate::Error::Verbs), [`Refused`](crate::Error::Refused),
    /// [`ServiceGone`](crate::Error::ServiceGone). After a failure nothing is left, and a peer that was asked is told.
    ///
    /// # Blocking
    /// Until the peer has answered, or the [deadline](ConnectionOptions::deadline).
    pub fn connect(&self, destination: SocketAddr) -> Result<Connection> {
        let id = Identifier::synchronous(&self.host, PortSpace::TCP)?;
        id.set_deadline(self.options.until());
        id.resolve_addr(self.source, destination, RESOLVE_TIMEOUT)?;
        id.resolve_route(RESOLVE_TIMEOUT)?;
        let connection = Connection::prepare("connect", id, &self.options, plain_cq)?;
        connection.id.connect(self.options.conn_param())?;
        connection.id.set_deadline(None);
        Ok(connection)
    }
}
