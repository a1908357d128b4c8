//! Established connections.

use super::ConnectionOptions;
use super::work::{Calls, post};
use crate::error::{Error, Result};
use crate::event::Event;
use crate::identifier::Identifier;
use oarlock_verbs::{
    Access, Buffers, Completion, CompletionQueue, Context, ProtectionDomain, QpInitAttr, QueuePair,
    RemoteAddress, RemoteMemory, SendRequest,
};
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// An established connection: an identifier, its queue pair, and a completion queue for each direction. Dropping it
/// disconnects.
///
/// [`send`](Self::send), [`write`](Self::write), [`read`](Self::read), [`fetch_add`](Self::fetch_add) and
/// [`compare_swap`](Self::compare_swap) do one thing at a time and wait for it. What is to overlap is posted on the
/// [`queue_pair`](Self::queue_pair), with numbers below 2^63, and waited for on [`send_cq`](Self::send_cq); both may be mixed,
/// see [`take_others`](Self::take_others).
///
/// # Examples
/// The passive side offers memory and says where it is; the active side writes into it, reads it back and counts in it.
///
/// ```
/// use oarlock_rdmacm::{ConnectionOptions, Connector, Host, Listener};
/// use oarlock_verbs::{Access, Buffer, RemoteAddress};
/// use oarlock_wire::RKey;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let host = Host::private()?;
/// # let listener = Listener::bind(&host, "127.0.0.1:0".parse()?)?;
/// # let address = listener.local_addr()?;
/// let passive = std::thread::spawn(move || {
///     let connection = listener.accept().expect("a peer connects");
///     let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
///     let memory = connection.memory(4096, rights).expect("there is memory");
///     let mut place = Buffer::new(&connection.pd, 12).expect("there is memory");
///     place[..8].copy_from_slice(&memory.addr().to_be_bytes());
///     place[8..].copy_from_slice(&memory.rkey().0.to_be_bytes());
///     connection.send(place).expect("the peer receives");
///     connection.until_disconnected().expect("the peer disconnects");
///     let mut bytes = [0; 5];
///     memory.read_at(64, &mut bytes).expect("within the memory");
///     (bytes, memory.load_u64(0).expect("within the memory"))
/// });
///
/// let receives = ConnectionOptions::new()
///     .prepare(|queue_pair, pd| Ok(queue_pair.post_recv(1, Buffer::new(pd, 12)?)?));
/// let connection = Connector::new(&host).options(receives).connect(address)?;
/// let received = connection.receive()?;
/// let (addr, rkey) = received.message().expect("one buffer").split_at(8);
/// let base = RemoteAddress {
///     addr: u64::from_be_bytes(addr.try_into()?),
///     rkey: RKey(u32::from_be_bytes(rkey.try_into()?)),
/// };
/// let place = |offset| RemoteAddress { addr: base.addr + offset, ..base };
///
/// let mut message = Buffer::new(&connection.pd, 5)?;
/// message.copy_from_slice(b"hello");
/// let message = connection.write(message, place(64))?;
/// let back = connection.read(Buffer::new(&connection.pd, 5)?, place(64))?;
/// assert_eq!(back[0][..], message[0][..]);
/// assert_eq!(connection.fetch_add(place(0), 7)?, 0);
/// assert_eq!(connection.compare_swap(place(0), 7, 9)?, 7);
/// connection.disconnect()?;
/// assert_eq!(passive.join().expect("no panic"), (*b"hello", 9));
/// # Ok(()) }
/// ```
#[doc(alias = "rdma_create_ep")]
#[doc(alias = "rdma_destroy_ep")]
#[derive(Debug)]
#[non_exhaustive]
pub struct Connection {
    /// The identifier, synchronous.
    pub id: Identifier,
    /// The queue pair, in state RTS.
    pub queue_pair: QueuePair,
    /// Where memory for messages comes from.
    pub pd: ProtectionDomain,
    /// Completions of sends.
    pub send_cq: CompletionQueue,
    /// Completions of receives.
    pub recv_cq: CompletionQueue,
    pub(crate) calls: Mutex<Calls>,
    /// What has arrived beside a message that was waited for.
    pub(crate) arrived: Mutex<VecDeque<Completion>>,
}

impl Connection {
    /// Memory that the peer may work on as `access` says; its [`at`](RemoteMemory::at) names it to the peer.
    /// It is of the protection domain that all connections of a device share, so whoever is told its key reaches it, the peer
    /// of another connection, too.
    ///
    /// # Errors
    /// [`Error::Verbs`]: no bytes asked for, no memory, too many regions, or rights that do not go together.
    ///
    /// # Blocking
    /// Never.
    #[doc(alias = "rdma_reg_read")]
    #[doc(alias = "rdma_reg_write")]
    pub fn memory(&self, len: usize, access: Access) -> Result<RemoteMemory> {
        RemoteMemory::new(&self.pd, len, access).map_err(|source| Error::Verbs {
            call: "memory",
            source,
        })
    }

    /// Sends a message, and waits until the peer has it. The buffers come back.
    ///
    /// # Errors
    /// [`Error::WorkFailed`], which says how and by which rule; [`Error::Verbs`] when it could not be posted; the buffers are dropped
    /// then. [`Error::TimedOut`] at the [identifier's deadline](Identifier::set_deadline): the message may still arrive.
    ///
    /// # Blocking
    /// Until it is acknowledged, or the deadline. Calls of several threads wait for one another.
    #[doc(alias = "rdma_post_send")]
    pub fn send(&self, buffers: impl Into<Buffers>) -> Result<Buffers> {
        let buffers = buffers.into();
        self.perform("send", |number, _| Ok(SendRequest::new(number, buffers)))
            .map(|(buffers, _)| buffers)
    }

    /// Writes into memory of the peer, and waits until it is there. The buffers come back.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    ///
    /// # Blocking
    /// As [`send`](Self::send).
    #[doc(alias = "rdma_post_write")]
    pub fn write(&self, buffers: impl Into<Buffers>, to: RemoteAddress) -> Result<Buffers> {
        let buffers = buffers.into();
        self.perform("write", |number, _| {
            Ok(SendRequest::write(number, buffers, to))
        })
        .map(|(buffers, _)| buffers)
    }

    /// Fills the buffers from memory of the peer, and waits until they are full. They come back.
    ///
    /// # Errors
    /// As [`send`](Self::send). [`Error::Verbs`] also on a connection that was made with an
    /// [`initiator_depth`](crate::ConnParam::initiator_depth) of zero, or whose peer allows none.
    ///
    /// # Blocking
    /// As [`send`](Self::send).
    #[doc(alias = "rdma_post_read")]
    pub fn read(&self, buffers: impl Into<Buffers>, from: RemoteAddress) -> Result<Buffers> {
        let buffers = buffers.into();
        self.perform("read", |number, _| {
            Ok(SendRequest::read(number, buffers, from))
        })
        .map(|(buffers, _)| buffers)
    }

    /// Adds to 8 bytes of the peer, modulo 2^64, and gives their value before.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    ///
    /// # Blocking
    /// As [`send`](Self::send).
    pub fn fetch_add(&self, at: RemoteAddress, add: u64) -> Result<u64> {
        const CALL: &str = "fetch_add";
        let (buffers, mut calls) = self.perform(CALL, |number, calls| {
            let word = calls.word(CALL, &self.pd)?;
            Ok(SendRequest::fetch_add(number, word, at, add))
        })?;
        Ok(calls.value_of(buffers))
    }

    /// Stores `swap` in 8 bytes of the peer if they are `compare`, and gives their value before.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    ///
    /// # Blocking
    /// As [`send`](Self::send).
    pub fn compare_swap(&self, at: RemoteAddress, compare: u64, swap: u64) -> Result<u64> {
        const CALL: &str = "compare_swap";
        let (buffers, mut calls) = self.perform(CALL, |number, calls| {
            let word = calls.word(CALL, &self.pd)?;
            Ok(SendRequest::compare_swap(number, word, at, compare, swap))
        })?;
        Ok(calls.value_of(buffers))
    }

    /// The next message, or WRITE with immediate, that takes a receive which the program has posted. A program that looks at
    /// [`recv_cq`](Self::recv_cq) itself does not see what this call has taken along for the next one.
    ///
    /// # Errors
    /// [`Error::WorkFailed`], with status flushed when the connection has ended; [`Error::Verbs`]; [`Error::TimedOut`] at the
    /// [identifier's deadline](Identifier::set_deadline).
    ///
    /// # Blocking
    /// Until something arrives, the connection ends, or the deadline. Calls of several threads wait for one another.
    #[doc(alias = "rdma_get_recv_comp")]
    pub fn receive(&self) -> Result<Completion> {
        const CALL: &str = "receive";
        let mut arrived = self.arrived.lock().unwrap_or_else(PoisonError::into_inner);
        let received = match arrived.pop_front() {
            Some(received) => received,
            None => {
                let mut taken = Vec::new();
                self.wait(CALL, &self.recv_cq, &mut taken, "a message")?;
                let mut taken = taken.into_iter();
                let Some(first) = taken.next() else {
                    unreachable!("a wait that ends well brings something");
                };
                arrived.extend(taken);
                first
            }
        };
        succeeded(CALL, &self.id, received)
    }

    fn wait(
        &self,
        call: &'static str,
        cq: &CompletionQueue,
        out: &mut Vec<Completion>,
        awaited: &'static str,
    ) -> Result<()> {
        let limit = self.id.deadline();
        let left = limit.map(|limit| limit.saturating_duration_since(Instant::now()));
        match cq.wait(out, left) {
            Ok(0) => Err(Error::TimedOut {
                peer: self.id.0.peer(),
                awaited,
            }),
            Ok(_) => Ok(()),
            Err(source) => Err(Error::Verbs { call, source }),
        }
    }

    /// Completions of requests that the program has posted itself, and that one of the calls found while it waited for its
    /// own. The others are in [`send_cq`](Self::send_cq).
    pub fn take_others(&self) -> Vec<Completion> {
        std::mem::take(&mut self.lock_calls().others)
    }

    /// Posts a request and waits for it.
    fn perform<'a>(
        &self,
        call: &'static str,
        request: impl FnOnce(u64, &mut Calls) -> Result<SendRequest<'a>>,
    ) -> Result<(Buffers, MutexGuard<'_, Calls>)> {
        let mut calls = self.lock_calls();
        let number = calls.begin();
        post(call, &self.queue_pair, request(number, &mut calls)?)?;
        let mut completed = Vec::new();
        loop {
            self.wait(call, &self.send_cq, &mut completed, "an acknowledgement")?;
            if let Some(outcome) = calls.sort(call, self.id.0.peer(), number, &mut completed) {
                return outcome.map(|buffers| (buffers, calls));
            }
        }
    }

    fn lock_calls(&self) -> MutexGuard<'_, Calls> {
        // Only whole values are exchanged.
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// Ends the connection, and waits until it is down.
    ///
    /// # Errors
    /// [`Error::ServiceGone`]; [`Error::TimedOut`] at the [identifier's deadline](Identifier::set_deadline).
    ///
    /// # Blocking
    /// Until the peer has answered: disconnected as well, or dropped its side. A peer that does neither is asked again
    /// until the retries are used up, more than a minute, or until the identifier's deadline.
    #[doc(alias = "rdma_disconnect")]
    pub fn disconnect(self) -> Result<()> {
        self.id.disconnect()
    }

    /// Waits until the peer ends the connection, and answers.
    ///
    /// # Errors
    /// [`Error::ServiceGone`]; [`Error::TimedOut`] at the [identifier's deadline](Identifier::set_deadline);
    /// [`Error::DeviceRemoved`].
    ///
    /// # Blocking
    /// Until the peer ends the connection, or the identifier's deadline.
    pub fn until_disconnected(self) -> Result<()> {
        while !ends(&self.id.next_event()?)? {}
        self.id.disconnect()
    }

    /// Two completion queues and a queue pair for an identifier that has its device.
    pub(crate) fn prepare(
        call: &'static str,
        id: Identifier,
        options: &ConnectionOptions,
        new_cq: impl Fn(&Context, u32) -> Result<CompletionQueue>,
    ) -> Result<Self> {
        let device = id.device()?;
        let pd = device.default_pd();
        let sizes = options.sizes();
        let send_cq = new_cq(&device, sizes.send.max(1))?;
        let recv_cq = new_cq(&device, sizes.receive.max(1))?;
        let init = QpInitAttr {
            max_send_wr: sizes.send,
            max_recv_wr: sizes.receive,
            ..QpInitAttr::default()
        };
        let queue_pair = id.create_qp(&pd, &send_cq, &recv_cq, init)?;
        let connection = Self {
            id,
            queue_pair,
            pd,
            send_cq,
            recv_cq,
            calls: Mutex::default(),
            arrived: Mutex::default(),
        };
        options.run_prepared(call, &connection)?;
        Ok(connection)
    }
}

/// A completion queue that is polled or waited on.
pub(super) fn plain_cq(device: &Context, size: u32) -> Result<CompletionQueue> {
    CompletionQueue::new(device, size).map_err(|source| Error::Verbs {
        call: "create_cq",
        source,
    })
}

/// The receive if it has brought something.
pub(crate) fn succeeded(
    call: &'static str,
    id: &Identifier,
    received: Completion,
) -> Result<Completion> {
    if received.status.is_success() {
        return Ok(received);
    }
    Err(Error::WorkFailed {
        call,
        peer: id.0.peer(),
        status: received.status,
        rule: received.vendor_err,
    })
}

/// Whether the event is the connection's end.
pub(crate) fn ends(event: &Event) -> Result<bool> {
    match event {
        Event::Disconnected { .. } | Event::TimewaitExit { .. } => Ok(true),
        Event::DeviceRemoval { .. } => Err(Error::DeviceRemoved {
            call: "until_disconnected",
        }),
        _ => Ok(false),
    }
}
