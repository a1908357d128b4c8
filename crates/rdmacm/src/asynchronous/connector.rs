//! Connecting, awaited.

use super::connection::AsyncConnection;
use super::host::AsyncHost;
use super::identifier::AsyncIdentifier;
use crate::easy::{Connection, ConnectionOptions, RESOLVE_TIMEOUT};
use crate::error::{Error, Result};
use oarlock_wire::PortSpace;
use std::net::SocketAddr;

/// Connects to an address: [`Connector`](crate::Connector), awaited.
///
/// ```
/// # use oarlock_rdmacm::{AsyncConnector, AsyncHost, AsyncListener, ConnectionOptions, Host};
/// # use oarlock_verbs::{Buffer, SendRequest};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let host = Host::private()?;
/// let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
/// runtime.block_on(async {
///     let host = AsyncHost::new(&host)?;
///     let receives = ConnectionOptions::new()
///         .prepare(|queue_pair, pd| Ok(queue_pair.post_recv(1, Buffer::new(pd, 64)?)?));
///     let listener = AsyncListener::bind(&host, "127.0.0.1:0".parse()?)?.options(receives);
///     let address = listener.local_addr()?;
///     let passive = tokio::spawn(async move {
///         let connection = listener.accept().await.expect("a peer connects");
///         let mut completions = Vec::new();
///         connection.recv_cq.wait(&mut completions).await.expect("the host lives");
///         let message = completions.remove(0).ok().expect("a message arrives");
///         assert_eq!(&message.buffers[0][..message.byte_len as usize], b"hello");
///         connection.until_disconnected().await.expect("the peer disconnects");
///     });
///     let connection = AsyncConnector::new(&host).connect(address).await?;
///     let mut message = Buffer::new(&connection.pd, 5)?;
///     message.copy_from_slice(b"hello");
///     connection.queue_pair.post_send(SendRequest::new(1, message))?;
///     let mut completions = Vec::new();
///     connection.send_cq.wait(&mut completions).await?;
///     completions.remove(0).ok()?;
///     connection.disconnect().await?;
///     passive.await?;
///     Ok(())
/// })
/// # }
/// ```
#[doc(alias = "rdma_create_ep")]
#[derive(Clone, Debug)]
pub struct AsyncConnector {
    host: AsyncHost,
    source: Option<SocketAddr>,
    options: ConnectionOptions,
}

impl AsyncConnector {
    /// Connects from a host, with default options.
    #[must_use]
    pub fn new(host: &AsyncHost) -> Self {
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

    /// How the connection is made. A [deadline](ConnectionOptions::deadline) needs a runtime with time enabled.
    #[must_use]
    pub fn options(mut self, options: ConnectionOptions) -> Self {
        self.options = options;
        self
    }

    /// Resolves, connects, and waits until the connection is established.
    ///
    /// # Errors
    /// As [`Connector::connect`](crate::Connector::connect), and [`Error::RuntimeGone`].
    ///
    /// # Cancellation
    /// Safe: nothing is left. Whatever was made is dropped with the future; a peer that was asked is told, and one that has
    /// accepted is disconnected.
    pub async fn connect(&self, destination: SocketAddr) -> Result<AsyncConnection> {
        let Some(limit) = self.options.limit() else {
            return self.connect_at_leisure(destination).await;
        };
        tokio::time::timeout(limit, self.connect_at_leisure(destination))
            .await
            .unwrap_or_else(|_| {
                Err(Error::TimedOut {
                    peer: Some(destination),
                    awaited: "the connection",
                })
            })
    }

    async fn connect_at_leisure(&self, destination: SocketAddr) -> Result<AsyncConnection> {
        let id = AsyncIdentifier::new(&self.host, PortSpace::TCP)?;
        id.resolve_addr(self.source, destination, RESOLVE_TIMEOUT)
            .await?;
        id.resolve_route(RESOLVE_TIMEOUT).await?;
        let completions = self.host.completions(&id.id().device()?)?;
        let new_cq = |device: &oarlock_verbs::Context, size| completions.new_cq(device, size);
        let Connection {
            queue_pair,
            pd,
            send_cq,
            recv_cq,
            ..
        } = Connection::prepare("connect", id.id().clone(), &self.options, new_cq)?;
        id.connect(self.options.conn_param()).await?;
        Ok(AsyncConnection::of(
            id,
            queue_pair,
            pd,
            send_cq,
            recv_cq,
            &completions,
        ))
    }
}
