//! Established connections whose calls are awaited.

use super::completion::{AsyncCompletionQueue, Completions};
use super::host::AsyncHost;
use super::identifier::AsyncIdentifier;
use crate::easy::{self, Connection};
use crate::error::Result;
use oarlock_verbs::{ProtectionDomain, QueuePair};
use std::sync::Arc;

/// An established connection: an identifier, its queue pair, and a completion queue for each direction. Dropping it
/// disconnects.
#[derive(Debug)]
#[non_exhaustive]
pub struct AsyncConnection {
    /// The identifier.
    pub id: AsyncIdentifier,
    /// The queue pair, in state RTS.
    pub queue_pair: QueuePair,
    /// Where memory for messages comes from.
    pub pd: ProtectionDomain,
    /// Completions of sends.
    pub send_cq: AsyncCompletionQueue,
    /// Completions of receives.
    pub recv_cq: AsyncCompletionQueue,
}

impl AsyncConnection {
    /// Takes over a connection whose completion queues report to `completions`.
    pub(super) fn adopt(
        host: &AsyncHost,
        connection: Connection,
        completions: &Arc<Completions>,
    ) -> Result<Self> {
        let Connection {
            id,
            queue_pair,
            pd,
            send_cq,
            recv_cq,
        } = connection;
        let id = AsyncIdentifier::adopt(host, id)?;
        Ok(Self::of(id, queue_pair, pd, send_cq, recv_cq, completions))
    }

    pub(super) fn of(
        id: AsyncIdentifier,
        queue_pair: QueuePair,
        pd: ProtectionDomain,
        send_cq: oarlock_verbs::CompletionQueue,
        recv_cq: oarlock_verbs::CompletionQueue,
        completions: &Arc<Completions>,
    ) -> Self {
        Self {
            id,
            queue_pair,
            pd,
            send_cq: AsyncCompletionQueue::attach(send_cq, completions),
            recv_cq: AsyncCompletionQueue::attach(recv_cq, completions),
        }
    }

    /// Ends the connection, and waits until it is down: until the peer has answered, or the retries are used up.
    ///
    /// # Errors
    /// [`Error::ServiceGone`](crate::Error::ServiceGone).
    ///
    /// # Cancellation
    /// Safe: the disconnection goes on as long as the connection is not dropped, and dropping it ends it as well, without
    /// asking a silent peer again.
    #[doc(alias = "rdma_disconnect")]
    pub async fn disconnect(&self) -> Result<()> {
        self.id.disconnect().await
    }

    /// Waits until the peer ends the connection, and answers.
    ///
    /// # Errors
    /// [`Error::ServiceGone`](crate::Error::ServiceGone); [`Error::DeviceRemoved`](crate::Error::DeviceRemoved).
    ///
    /// # Cancellation
    /// Safe: the connection stays as it is.
    pub async fn until_disconnected(&self) -> Result<()> {
        while !easy::ends(&self.id.next_event().await?)? {}
        self.id.id().disconnect()
    }
}
