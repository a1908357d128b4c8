//! The client of a host service.

mod captures;
mod channel;
mod connection;
mod faults;
mod feed;
mod start;
mod statistics;

pub use captures::{HostCapture, TRACE_VARIABLE};
pub use channel::{ClientChannel, Wake};
pub use faults::{FAULT_RECORD_VARIABLE, FAULT_REPLAY_VARIABLE, FAULT_VARIABLE, Injection};

use crate::Error;
use crate::service::{self, ServiceConfig, ServiceThread};
use captures::Captured;
use connection::Connection;
use faults::Injected;
use feed::Feed;
use oarlock_port::{ForwardToken, MemHost, MemWire, Port, UdpPort};
use oarlock_ucm::proto::{
    DeviceInfo, DevicePage, Hello, HostInfo, IdInfo, IdPage, MAX_BATCH, MAX_MESSAGE, Reply,
    Request, WriteBatch, WriteItem, WriteReply,
};
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A program's handle of a host service. Clones are handles of the same connection; the last one ends it.
///
/// All methods may be called from any thread.
///
/// ```
/// use oarlock_hostd::Host;
///
/// let host = Host::private()?;
/// let devices = host.devices()?;
/// assert_eq!(devices[0].name, "soft_mem0");
/// # Ok::<(), oarlock_hostd::Error>(())
/// ```
#[derive(Clone)]
pub struct Host {
    inner: Arc<Inner>,
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host")
            .field("id", &self.inner.id)
            .field("service", self.hello())
            .finish_non_exhaustive()
    }
}

/// The service and all its identifiers, as `oarlock ps` shows them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostState {
    /// The service: process, clients, slots, ports, counters.
    pub host: HostInfo,
    /// The identifiers, by number.
    pub ids: Vec<IdInfo>,
}

#[derive(Debug)]
struct Inner {
    id: u64,
    connection: Connection,
    /// Set in the private modes, where slots are those of an in-memory host.
    memory: Option<MemHost>,
    /// Set in the in-process modes.
    thread: Mutex<Option<ServiceThread>>,
    injected: Mutex<Injected>,
    feed: Mutex<Option<Feed>>,
    captured: Mutex<Captured>,
    /// Where the service reads this program's counters.
    statistics: Mutex<Option<OwnedFd>>,
}

impl Host {
    /// A host of its own in this process, on an in-memory wire of its own, with the addresses 127.0.0.1 and ::1.
    ///
    /// # Errors
    /// No descriptor or thread to be had.
    pub fn private() -> Result<Self, Error> {
        Self::private_on(
            &MemWire::new(),
            &[Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()],
        )
    }

    /// A host in this process, one of those on `wire`.
    ///
    /// # Errors
    /// As [`private`](Self::private); an address that another host on the wire has.
    pub fn private_on(wire: &MemWire, addresses: &[IpAddr]) -> Result<Self, Error> {
        Self::private_with(wire, addresses, ServiceConfig::default())
    }

    /// As [`private_on`](Self::private_on), configured.
    ///
    /// # Errors
    /// As [`private_on`](Self::private_on).
    pub fn private_with(
        wire: &MemWire,
        addresses: &[IpAddr],
        config: ServiceConfig,
    ) -> Result<Self, Error> {
        let memory = wire.add_host(addresses)?;
        let (thread, socket) = service::spawn_private(memory.clone(), config)?;
        Self::over(socket, Some(memory), Some(thread))
    }

    /// Makes this process the host service of its network namespace, on the real port, for as long as the handle lives.
    /// Other programs of the same user can join. Raises the process's soft limit of open descriptors to the hard one.
    ///
    /// # Errors
    /// A service runs already; the port is taken; too few descriptors; the loopback interface is down.
    pub fn serve() -> Result<Self, Error> {
        Self::serve_with(ServiceConfig::default())
    }

    /// As [`serve`](Self::serve), configured.
    ///
    /// # Errors
    /// As [`serve`](Self::serve).
    pub fn serve_with(config: ServiceConfig) -> Result<Self, Error> {
        let (thread, socket) = service::spawn_on_port(config)?;
        Self::over(socket, None, Some(thread))
    }

    /// Joins the host service of this network namespace, or starts one. It ends some time after its last program.
    ///
    /// The service's program is the one that `$OARLOCK_HOSTD` names, if that is set; else it is looked for in this program's
    /// own folder as `oarlock`, and in PATH as `oarlock`.
    ///
    /// # Errors
    /// Another user's service; no program found, or `$OARLOCK_HOSTD` names none; what the started service said.
    ///
    /// # Blocking
    /// Until the started service answers or ends.
    pub fn open() -> Result<Self, Error> {
        Self::open_with(None)
    }

    /// As [`open`](Self::open), but the program of a service that is started is `program`, called with `host --grace
    /// SECONDS`; only `$OARLOCK_HOSTD` goes before. For the tool itself, under whatever name it is installed.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    ///
    /// # Blocking
    /// As [`open`](Self::open).
    pub fn open_starting(program: &Path) -> Result<Self, Error> {
        Self::open_with(Some(program))
    }

    fn open_with(program: Option<&Path>) -> Result<Self, Error> {
        let mut attempts_left = OPEN_ATTEMPTS;
        loop {
            match Self::over(start::join_or_start(program)?, None, None) {
                // It was about to leave when we connected.
                Err(Error::ServiceGone) if attempts_left > 0 => attempts_left -= 1,
                result => return result,
            }
        }
    }

    /// Joins the host service of this network namespace.
    ///
    /// # Errors
    /// `NoService`, `OtherUser`.
    pub fn join() -> Result<Self, Error> {
        Self::over(start::join()?, None, None)
    }

    fn over(
        socket: OwnedFd,
        memory: Option<MemHost>,
        thread: Option<ServiceThread>,
    ) -> Result<Self, Error> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let inner = Inner {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            connection: Connection::new(socket)?,
            memory,
            thread: Mutex::new(thread),
            injected: Mutex::default(),
            feed: Mutex::default(),
            captured: Mutex::default(),
            statistics: Mutex::default(),
        };
        let host = Self {
            inner: Arc::new(inner),
        };
        host.inject_from_environment()?;
        host.capture_from_environment()?;
        Ok(host)
    }

    /// The in-memory host, in the private modes: there a test takes addresses and the interface away and gives them back.
    /// The service sees a change before it answers the next request.
    #[must_use]
    pub fn memory(&self) -> Option<&MemHost> {
        self.inner.memory.as_ref()
    }

    /// A number for this connection, unique in the process and equal for clones.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.inner.id
    }

    /// Who the service is, and our number there.
    #[must_use]
    pub fn hello(&self) -> &Hello {
        self.inner.connection.hello()
    }

    /// Carries out requests of the rdma_ucm ABI in order, one answer for each. As many as fit go in one message.
    ///
    /// # Errors
    /// `ServiceGone`, `Forked`; a request that fails is not an error here but an answer with an errno.
    ///
    /// # Blocking
    /// Until the service has answered, which never waits for anything.
    pub fn call(&self, calls: &[WriteItem]) -> Result<Vec<WriteReply>, Error> {
        if calls.len() <= MAX_BATCH && message_len(calls) <= MAX_MESSAGE {
            let batch = WriteBatch {
                items: calls.to_vec(),
                ..WriteBatch::default()
            };
            return self.call_batch(batch);
        }
        let mut replies = Vec::with_capacity(calls.len());
        for chunk in chunks(calls)? {
            let batch = WriteBatch {
                items: chunk.to_vec(),
                ..WriteBatch::default()
            };
            replies.extend(self.call_batch(batch)?);
        }
        Ok(replies)
    }

    /// Carries out one batch, with everything that a batch can say.
    ///
    /// # Errors
    /// As [`call`](Self::call); `BatchTooLong`.
    pub fn call_batch(&self, batch: WriteBatch) -> Result<Vec<WriteReply>, Error> {
        let given = batch.items.len();
        if given > MAX_BATCH
            || message_len(&batch.items) + 8 * batch.acknowledged.len() > MAX_MESSAGE
        {
            return Err(Error::BatchTooLong {
                given,
                max: MAX_BATCH,
            });
        }
        match self.request(Request::Write(batch))? {
            Reply::Written(replies) if replies.len() == given => Ok(replies),
            _ => Err(Error::UnexpectedReply),
        }
    }

    /// Sends one request without waiting for its answer, or wanting one. It is carried out before any call made later
    /// from this process. For destructors: errors cannot be told.
    ///
    /// # Blocking
    /// Never.
    pub fn post(&self, call: WriteItem) {
        self.post_batch(WriteBatch {
            items: vec![call],
            ..WriteBatch::default()
        });
    }

    /// As [`post`](Self::post), for a whole batch.
    ///
    /// # Blocking
    /// Never.
    pub fn post_batch(&self, batch: WriteBatch) {
        // A service that has gone has destroyed everything already, and one that has not refuses what is too long.
        let _ = self.inner.connection.post(&Request::Write(batch));
    }

    /// Opens an event channel.
    ///
    /// # Errors
    /// As [`call`](Self::call); a limit of the service or of descriptors.
    pub fn open_channel(&self) -> Result<ClientChannel, Error> {
        let (reply, fds) = self.inner.connection.request(&Request::OpenChannel, &[])?;
        match (reply, fds.into_iter().next()) {
            (Reply::Opened { token }, Some(fd)) => ClientChannel::new(self.clone(), token, fd),
            (Reply::Opened { token }, None) => {
                let _ = self.inner.connection.post(&Request::CloseChannel { token });
                Err(Error::NoDescriptor)
            }
            _ => Err(Error::UnexpectedReply),
        }
    }

    /// Takes a slot: an endpoint of its own for the program's queue pairs, and 65,536 QP numbers.
    ///
    /// It is freed when the program ends, or by [`return_slot`](Self::return_slot).
    ///
    /// # Errors
    /// As [`call`](Self::call); all 254 slots are taken.
    pub fn take_slot(&self) -> Result<Port, Error> {
        let (reply, fds) = self.inner.connection.request(&Request::TakeSlot, &[])?;
        let Reply::Slot { slot, forward } = reply else {
            return Err(Error::UnexpectedReply);
        };
        let port = match &self.inner.memory {
            Some(memory) => memory.open(slot).map(Port::Mem).map_err(Error::from),
            None => match fds.into_iter().next() {
                Some(fd) => UdpPort::new(slot, fd, ForwardToken(forward))
                    .map(Port::Udp)
                    .map_err(Error::system("use the slot's socket")),
                None => Err(Error::NoDescriptor),
            },
        };
        let port = port.and_then(|port| {
            self.share_statistics();
            self.inject_into(&port)?;
            self.tap_into(&port);
            Ok(port)
        });
        if port.is_err() {
            self.return_slot(slot);
        }
        port
    }

    /// Gives a slot back. Its [`Port`] must have been dropped.
    ///
    /// # Blocking
    /// Never.
    pub fn return_slot(&self, slot: u8) {
        let _ = self.inner.connection.post(&Request::ReturnSlot { slot });
    }

    /// The soft devices: the one of the default route's interface first, loopback last.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub fn devices(&self) -> Result<Vec<DeviceInfo>, Error> {
        let mut devices = Vec::new();
        let mut first = 0;
        for _ in 0..MAX_PAGES {
            let Reply::Devices(DevicePage {
                devices: page,
                next,
            }) = self.request(Request::Devices { first })?
            else {
                return Err(Error::UnexpectedReply);
            };
            devices.extend(page);
            match next {
                Some(next) if next > first => first = next,
                _ => return Ok(devices),
            }
        }
        Err(Error::UnexpectedReply)
    }

    /// The service and all its identifiers.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub fn ps(&self) -> Result<HostState, Error> {
        let mut state = HostState::default();
        let mut after = None;
        for _ in 0..MAX_PAGES {
            let Reply::Ps(IdPage { host, ids, more }) = self.request(Request::Ps { after })? else {
                return Err(Error::UnexpectedReply);
            };
            if let Some(host) = host {
                state.host = host;
            }
            let last = ids.last().map(|id| id.id);
            state.ids.extend(ids);
            if !more {
                return Ok(state);
            }
            match last {
                Some(last) if after.is_none_or(|after| last > after) => after = Some(last),
                _ => break,
            }
        }
        Err(Error::UnexpectedReply)
    }

    /// From now on the service writes every management datagram, as on the wire, to `file` in pcap format, until this
    /// program ends. The file may be shared with captures of this program's own ports.
    ///
    /// # Errors
    /// As [`call`](Self::call); not a regular file.
    pub fn trace(&self, file: impl AsFd) -> Result<(), Error> {
        let (reply, _) = self
            .inner
            .connection
            .request(&Request::Trace, &[file.as_fd()])?;
        done(&reply)
    }

    /// Asks the service to end.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub fn stop_service(&self) -> Result<(), Error> {
        done(&self.request(Request::Stop)?)
    }

    /// Whether the service has gone.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.inner.connection.is_gone()
    }

    /// A descriptor that becomes readable when the service goes, and never before.
    ///
    /// # Errors
    /// No descriptor to be had.
    pub fn gone_fd(&self) -> io::Result<OwnedFd> {
        self.inner.connection.lifeline().try_clone_to_owned()
    }

    /// Ends the connection and waits for a service in this process to end too. Dropping the last handle ends it without
    /// waiting. Clones that are left get [`Error::ServiceGone`].
    pub fn close(self) {
        self.inner.connection.shut_down();
        let thread = self
            .inner
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(thread) = thread {
            thread.join();
        }
    }

    pub(crate) fn request(&self, request: Request) -> Result<Reply, Error> {
        self.inner
            .connection
            .request(&request, &[])
            .map(|(reply, _)| reply)
    }

    pub(crate) fn close_channel(&self, token: u64) {
        let _ = self.inner.connection.post(&Request::CloseChannel { token });
    }
}

fn done(reply: &Reply) -> Result<(), Error> {
    match reply {
        Reply::Done => Ok(()),
        _ => Err(Error::UnexpectedReply),
    }
}

/// A generous estimate of a batch's length as a message.
fn message_len(calls: &[WriteItem]) -> usize {
    128 + calls.iter().map(item_len).sum::<usize>()
}

fn item_len(call: &WriteItem) -> usize {
    24 + call.request.len() + call.inline.len()
}

/// Cuts calls into pieces of one message each.
fn chunks(calls: &[WriteItem]) -> Result<Vec<&[WriteItem]>, Error> {
    if calls.iter().any(|call| call.id_from.is_some()) {
        return Err(Error::BatchTooLong {
            given: calls.len(),
            max: MAX_BATCH,
        });
    }
    let mut chunks = Vec::new();
    let (mut start, mut len) = (0, message_len(&[]));
    for (i, call) in calls.iter().enumerate() {
        if i - start == MAX_BATCH || len + item_len(call) > MAX_MESSAGE {
            chunks.push(&calls[start..i]);
            (start, len) = (i, message_len(&[]));
        }
        len += item_len(call);
    }
    chunks.push(&calls[start..]);
    Ok(chunks)
}

const OPEN_ATTEMPTS: u32 = 5;
/// More pages than any service can have; a service that goes on is not ours.
const MAX_PAGES: usize = 1 << 16;

#[cfg(test)]
mod tests;
