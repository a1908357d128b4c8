//! Established connections whose calls are awaited.

use super::completion::{AsyncCompletionQueue, Completions};
use super::host::AsyncHost;
use super::identifier::AsyncIdentifier;
use crate::easy::work::{Calls, post};
use crate::easy::{self, Connection};
use crate::error::{Error, Result};
use oarlock_verbs::{
    Access, Buffers, Completion, ProtectionDomain, QueuePair, RemoteAddress, RemoteMemory,
    SendRequest,
};
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::sync::{Mutex, MutexGuard};

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
    calls: Mutex<Calls>,
    /// What has arrived beside a message that was awaited.
    arrived: Mutex<VecDeque<Completion>>,
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
            ..
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
            calls: Mutex::default(),
            arrived: Mutex::default(),
        }
    }

    /// Memory that the peer may work on: as [`Connection::memory`].
    ///
    /// # Errors
    /// As there.
    pub fn memory(&self, len: usize, access: Access) -> Result<RemoteMemory> {
        RemoteMemory::new(&self.pd, len, access).map_err(|source| Error::Verbs {
            call: "memory",
            source,
        })
    }

    /// Sends a message, and waits until the peer has it. The buffers come back.
    ///
    /// # Errors
    /// [`Error::WorkFailed`]; [`Error::Verbs`]; [`Error::ServiceGone`]. The buffers are dropped then.
    ///
    /// # Cancellation
    /// Safe: before it is posted nothing happens, afterwards the message is sent, and its buffers are dropped when it has
    /// completed. Calls of several tasks wait for one another.
    #[doc(alias = "rdma_post_send")]
    pub async fn send(&self, buffers: impl Into<Buffers>) -> Result<Buffers> {
        let buffers = buffers.into();
        let calls = self.calls.lock().await;
        self.perform("send", calls, |number, _| {
            Ok(SendRequest::new(number, buffers))
        })
        .await
        .map(|(buffers, _)| buffers)
    }

    /// Writes into memory of the peer, and waits until it is there. The buffers come back.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    ///
    /// # Cancellation
    /// As [`send`](Self::send).
    #[doc(alias = "rdma_post_write")]
    pub async fn write(&self, buffers: impl Into<Buffers>, to: RemoteAddress) -> Result<Buffers> {
        let buffers = buffers.into();
        let calls = self.calls.lock().await;
        self.perform("write", calls, |number, _| {
            Ok(SendRequest::write(number, buffers, to))
        })
        .await
        .map(|(buffers, _)| buffers)
    }

    /// Fills the buffers from memory of the peer, and waits until they are full. They come back.
    ///
    /// # Errors
    /// As [`send`](Self::send); [`Error::Verbs`] also on a connection without
    /// [`initiator_depth`](crate::ConnParam::initiator_depth).
    ///
    /// # Cancellation
    /// As [`send`](Self::send).
    #[doc(alias = "rdma_post_read")]
    pub async fn read(&self, buffers: impl Into<Buffers>, from: RemoteAddress) -> Result<Buffers> {
        let buffers = buffers.into();
        let calls = self.calls.lock().await;
        self.perform("read", calls, |number, _| {
            Ok(SendRequest::read(number, buffers, from))
        })
        .await
        .map(|(buffers, _)| buffers)
    }

    /// Adds to 8 bytes of the peer, modulo 2^64, and gives their value before.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    ///
    /// # Cancellation
    /// As [`send`](Self::send): whether it was added is not known then.
    pub async fn fetch_add(&self, at: RemoteAddress, add: u64) -> Result<u64> {
        const CALL: &str = "fetch_add";
        let calls = self.calls.lock().await;
        let performed = self.perform(CALL, calls, |number, calls| {
            let word = calls.word(CALL, &self.pd)?;
            Ok(SendRequest::fetch_add(number, word, at, add))
        });
        let (buffers, mut calls) = performed.await?;
        Ok(calls.value_of(buffers))
    }

    /// Stores `swap` in 8 bytes of the peer if they are `compare`, and gives their value before.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    ///
    /// # Cancellation
    /// As [`send`](Self::send): whether it was stored is not known then.
    pub async fn compare_swap(&self, at: RemoteAddress, compare: u64, swap: u64) -> Result<u64> {
        const CALL: &str = "compare_swap";
        let calls = self.calls.lock().await;
        let performed = self.perform(CALL, calls, |number, calls| {
            let word = calls.word(CALL, &self.pd)?;
            Ok(SendRequest::compare_swap(number, word, at, compare, swap))
        });
        let (buffers, mut calls) = performed.await?;
        Ok(calls.value_of(buffers))
    }

    /// The next message, or WRITE with immediate, that takes a receive which the program has posted: as
    /// [`Connection::receive`].
    ///
    /// # Errors
    /// As there; [`Error::ServiceGone`].
    ///
    /// # Cancellation
    /// Safe: what arrives later comes out of the next call.
    #[doc(alias = "rdma_get_recv_comp")]
    pub async fn receive(&self) -> Result<Completion> {
        let mut arrived = self.arrived.lock().await;
        let received = loop {
            if let Some(received) = arrived.pop_front() {
                break received;
            }
            let mut taken = Vec::new();
            self.recv_cq.wait(&mut taken).await?;
            arrived.extend(taken);
        };
        easy::succeeded("receive", self.id.id(), received)
    }

    /// As [`Connection::take_others`].
    pub async fn take_others(&self) -> Vec<Completion> {
        std::mem::take(&mut self.calls.lock().await.others)
    }

    /// Posts a request and waits for it.
    async fn perform<'a, 'c>(
        &self,
        call: &'static str,
        mut calls: MutexGuard<'c, Calls>,
        request: impl FnOnce(u64, &mut Calls) -> Result<SendRequest<'a>>,
    ) -> Result<(Buffers, MutexGuard<'c, Calls>)> {
        let number = calls.begin();
        post(call, &self.queue_pair, request(number, &mut calls)?)?;
        let peer = self.id.id().0.peer();
        let mut completed = Vec::new();
        loop {
            self.send_cq.wait(&mut completed).await?;
            if let Some(outcome) = calls.sort(call, peer, number, &mut completed) {
                return outcome.map(|buffers| (buffers, calls));
            }
        }
    }

    /// Ends the connection, and waits until it is down: until the peer has answered, or the retries are used up.
    ///
    /// # Errors
    /// [`Error::ServiceGone`].
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
    /// [`Error::ServiceGone`]; [`Error::DeviceRemoved`].
    ///
    /// # Cancellation
    /// Safe: the connection stays as it is.
    pub async fn until_disconnected(&self) -> Result<()> {
        while !easy::ends(&self.id.next_event().await?)? {}
        self.id.id().disconnect()
    }
}
