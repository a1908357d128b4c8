//! The short way: an address becomes a connection.

use crate::error::{Error, Result};
use crate::event::Event;
use crate::identifier::Identifier;
use crate::param::ConnParam;
use oarlock_hostd::Host;
use oarlock_verbs::{CompletionQueue, Context, ProtectionDomain, QpInitAttr, QueuePair};
use oarlock_wire::{PortSpace, RejReason};
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long one resolution may take where no deadline is set.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(2);

/// The depths of a connection's queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueSizes {
    /// Sends that may be outstanding.
    pub send: u32,
    /// Receives that may be posted.
    pub receive: u32,
}

impl Default for QueueSizes {
    fn default() -> Self {
        Self {
            send: 64,
            receive: 64,
        }
    }
}

impl QueueSizes {
    /// Both depths.
    #[must_use]
    pub fn new(send: u32, receive: u32) -> Self {
        Self { send, receive }
    }
}

/// An established connection: an identifier, its queue pair, and a completion queue for each direction. Dropping it
/// disconnects.
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
}

impl Connection {
    /// Ends the connection, and waits until it is down.
    ///
    /// # Errors
    /// [`Error::ServiceGone`]; [`Error::TimedOut`] at the identifier's deadline.
    ///
    /// # Blocking
    /// Until the peer has answered: disconnected as well, or dropped its side. A peer that does neither is asked again
    /// until the retries are used up, more than a minute.
    pub fn disconnect(self) -> Result<()> {
        self.id.disconnect()
    }

    /// Waits until the peer ends the connection, and answers.
    ///
    /// # Errors
    /// [`Error::ServiceGone`]; [`Error::TimedOut`] at the identifier's deadline.
    ///
    /// # Blocking
    /// Until the peer ends the connection.
    pub fn until_disconnected(self) -> Result<()> {
        loop {
            match self.id.next_event()? {
                Event::Disconnected { .. } | Event::TimewaitExit { .. } => break,
                Event::DeviceRemoval { .. } => {
                    return Err(Error::NoDevice {
                        call: "until_disconnected",
                    });
                }
                _ => {}
            }
        }
        self.id.disconnect()
    }
}

/// Connects to an address.
///
/// ```
/// # use oarlock_rdmacm::{Connector, Host, Listener};
/// # use std::time::Duration;
/// let host = Host::private()?;
/// let listener = Listener::bind(&host, "127.0.0.1:0".parse()?)?;
/// let address = listener.local_addr()?;
/// let passive = std::thread::spawn(move || listener.accept()?.until_disconnected());
/// let active = Connector::new(&host).deadline(Duration::from_secs(10)).connect(address)?;
/// assert_eq!(active.id.peer_addr()?, Some(address));
/// active.disconnect()?;
/// passive.join().expect("the thread does not panic")?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Connector {
    host: Host,
    source: Option<SocketAddr>,
    param: ConnParam,
    sizes: QueueSizes,
    deadline: Option<Duration>,
    prepared: Prepared,
}

type Prepare =
    dyn Fn(&QueuePair, &ProtectionDomain) -> Result<(), oarlock_verbs::Error> + Send + Sync;

/// Called with the queue pair before the connection exists, to post receives.
#[derive(Clone, Default)]
struct Prepared(Option<Arc<Prepare>>);

impl Prepared {
    fn run(&self, call: &'static str, connection: &Connection) -> Result<()> {
        match &self.0 {
            None => Ok(()),
            Some(prepare) => prepare(&connection.queue_pair, &connection.pd)
                .map_err(|source| Error::Verbs { call, source }),
        }
    }
}

impl fmt::Debug for Prepared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "given" } else { "none" })
    }
}

impl Connector {
    /// Connects from a host, with default parameters and without a deadline of its own.
    #[must_use]
    pub fn new(host: &Host) -> Self {
        Self {
            host: host.clone(),
            source: None,
            param: ConnParam::default(),
            sizes: QueueSizes::default(),
            deadline: None,
            prepared: Prepared::default(),
        }
    }

    /// Fixes the local address.
    #[must_use]
    pub fn source(mut self, address: SocketAddr) -> Self {
        self.source = Some(address);
        self
    }

    /// What is sent along.
    #[must_use]
    pub fn param(mut self, param: ConnParam) -> Self {
        self.param = param;
        self
    }

    /// The depths of the queues.
    #[must_use]
    pub fn queue_sizes(mut self, sizes: QueueSizes) -> Self {
        self.sizes = sizes;
        self
    }

    /// The longest that [`connect`](Self::connect) may take in all.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Posts receives before the peer can send.
    #[must_use]
    pub fn prepare(
        mut self,
        prepare: impl Fn(&QueuePair, &ProtectionDomain) -> Result<(), oarlock_verbs::Error>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        self.prepared = Prepared(Some(Arc::new(prepare)));
        self
    }

    /// Resolves, connects, and waits until the connection is established.
    ///
    /// # Errors
    /// Of every step: [`Error::AddressResolution`], [`Error::RouteResolution`], [`Error::Rejected`],
    /// [`Error::Unreachable`], [`Error::TimedOut`] at the deadline, [`Error::Verbs`], [`Error::Refused`],
    /// [`Error::ServiceGone`].
    ///
    /// # Blocking
    /// Until the peer has answered, or the deadline.
    pub fn connect(&self, destination: SocketAddr) -> Result<Connection> {
        let id = Identifier::synchronous(&self.host, PortSpace::TCP)?;
        let until = self
            .deadline
            .and_then(|limit| Instant::now().checked_add(limit));
        id.set_deadline(until);
        let step = self
            .deadline
            .unwrap_or(RESOLVE_TIMEOUT)
            .min(RESOLVE_TIMEOUT);
        id.resolve_addr(self.source, destination, step)?;
        id.resolve_route(step)?;
        let connection = queues(id, self.sizes)?;
        self.prepared.run("connect", &connection)?;
        connection.id.connect(&self.param)?;
        connection.id.set_deadline(None);
        Ok(connection)
    }
}

/// Accepts connections on an address.
#[derive(Debug)]
pub struct Listener {
    id: Identifier,
    param: ConnParam,
    sizes: QueueSizes,
    deadline: Option<Duration>,
    prepared: Prepared,
}

impl Listener {
    /// Listens on an address; port 0 takes a free one.
    ///
    /// # Errors
    /// As [`Identifier::bind_addr`] and [`Identifier::listen`].
    pub fn bind(host: &Host, address: SocketAddr) -> Result<Self> {
        let id = Identifier::synchronous(host, PortSpace::TCP)?;
        id.bind_addr(address)?;
        id.listen(0)?;
        Ok(Self {
            id,
            param: ConnParam::default(),
            sizes: QueueSizes::default(),
            deadline: None,
            prepared: Prepared::default(),
        })
    }

    /// What is sent along with every acceptance.
    #[must_use]
    pub fn param(mut self, param: ConnParam) -> Self {
        self.param = param;
        self
    }

    /// The depths of the queues of every connection.
    #[must_use]
    pub fn queue_sizes(mut self, sizes: QueueSizes) -> Self {
        self.sizes = sizes;
        self
    }

    /// The longest that one [`accept`](Self::accept) may take, the wait for a request included.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Posts receives before the peer can send.
    #[must_use]
    pub fn prepare(
        mut self,
        prepare: impl Fn(&QueuePair, &ProtectionDomain) -> Result<(), oarlock_verbs::Error>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        self.prepared = Prepared(Some(Arc::new(prepare)));
        self
    }

    /// The address with its port.
    ///
    /// # Errors
    /// [`Error::ServiceGone`].
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
    /// [`Error::TimedOut`] at the deadline; [`Error::Verbs`]; [`Error::ServiceGone`].
    ///
    /// # Blocking
    /// Until a connection is established.
    pub fn accept(&self) -> Result<Connection> {
        let until = self
            .deadline
            .and_then(|limit| Instant::now().checked_add(limit));
        self.id.set_deadline(until);
        loop {
            let child = self.id.get_request()?;
            child.set_deadline(until);
            match self.accept_one(child) {
                // Whatever the service says about a request it has brought: the peer has given up.
                Err(
                    Error::Refused { .. }
                    | Error::Rejected { .. }
                    | Error::Unreachable { .. }
                    | Error::DisconnectedEarly { .. },
                ) => {}
                accepted => return accepted,
            }
        }
    }

    fn accept_one(&self, child: Identifier) -> Result<Connection> {
        let connection = queues(child, self.sizes)?;
        self.prepared.run("accept", &connection)?;
        connection.id.accept(&self.param)?;
        connection.id.set_deadline(None);
        Ok(connection)
    }

    /// Refuses the next request.
    ///
    /// # Errors
    /// As [`accept`](Self::accept) and [`Identifier::reject`].
    ///
    /// # Blocking
    /// Until a request comes.
    pub fn reject(&self, private_data: &[u8]) -> Result<()> {
        let until = self
            .deadline
            .and_then(|limit| Instant::now().checked_add(limit));
        self.id.set_deadline(until);
        self.id
            .get_request()?
            .reject(RejReason::CONSUMER_DEFINED, private_data)
    }

    /// The next event of the listening identifier itself.
    ///
    /// # Errors
    /// As [`Identifier::next_event`].
    pub fn next_event(&self) -> Result<Event> {
        self.id.next_event()
    }
}

/// Two completion queues and a queue pair for an identifier that has its device.
fn queues(id: Identifier, sizes: QueueSizes) -> Result<Connection> {
    let verbs = |source| Error::Verbs {
        call: "create_qp",
        source,
    };
    let device: Context = id.device()?;
    let pd = device.default_pd();
    let send_cq = CompletionQueue::new(&device, sizes.send.max(1)).map_err(verbs)?;
    let recv_cq = CompletionQueue::new(&device, sizes.receive.max(1)).map_err(verbs)?;
    let init = QpInitAttr {
        max_send_wr: sizes.send,
        max_recv_wr: sizes.receive,
        ..QpInitAttr::default()
    };
    let queue_pair = id.create_qp(&pd, &send_cq, &recv_cq, init)?;
    Ok(Connection {
        id,
        queue_pair,
        pd,
        send_cq,
        recv_cq,
    })
}
