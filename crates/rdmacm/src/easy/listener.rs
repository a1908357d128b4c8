//! Accepting, blocking.

use super::connection::plain_cq;
use super::intake::{Found, Intake, MAX_IN_THE_MAKING, Ways};
use super::{Connection, ConnectionOptions};
use crate::channel::EventChannel;
use crate::error::{Error, Result};
use crate::identifier::Identifier;
use oarlock_hostd::Host;
use oarlock_verbs::{CompletionQueue, Context};
use oarlock_wire::{PortSpace, RejReason};
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Accepts connections on an address.
///
/// A peer that asks and then does not confirm holds up nobody: connections are made side by side, 4096 of them at most, and
/// come out of [`accept`](Self::accept) in the order in which they are established. Beyond that number the one that has
/// waited longest for its peer is rejected and [counted](Self::turned_away). Several threads may accept at once.
#[doc(alias = "rdma_create_ep")]
pub struct Listener {
    id: Identifier,
    channel: EventChannel,
    options: ConnectionOptions,
    intake: Mutex<Intake<Synchronously>>,
}

impl Listener {
    /// Listens on an address; port 0 takes a free one. As many requests wait as the service allows.
    ///
    /// # Errors
    /// As [`Identifier::bind_addr`] and [`Identifier::listen`].
    #[doc(alias = "rdma_listen")]
    pub fn bind(host: &Host, address: SocketAddr) -> Result<Self> {
        Self::bind_with_backlog(host, address, 0)
    }

    /// As [`bind`](Self::bind), and says how many requests may wait until they are looked at; see
    /// [`Identifier::listen`].
    ///
    /// # Errors
    /// As [`bind`](Self::bind).
    #[doc(alias = "rdma_listen")]
    pub fn bind_with_backlog(host: &Host, address: SocketAddr, backlog: i32) -> Result<Self> {
        let channel = EventChannel::new(host)?;
        let id = Identifier::new(&channel, PortSpace::TCP)?;
        id.bind_addr(address)?;
        id.listen(backlog)?;
        Ok(Self {
            id,
            channel,
            options: ConnectionOptions::new(),
            intake: Mutex::new(Intake::new(Synchronously)),
        })
    }

    /// How connections are made.
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
    /// [`Error::TimedOut`] at the deadline; what is under way then goes on, and the next call goes on with it.
    /// [`Error::Verbs`]; [`Error::DeviceRemoved`]; [`Error::ServiceGone`].
    ///
    /// # Blocking
    /// Until a connection is established, or the [deadline](ConnectionOptions::deadline).
    #[doc(alias = "rdma_get_request")]
    #[doc(alias = "rdma_accept")]
    pub fn accept(&self) -> Result<Connection> {
        self.wait_for(
            "a connection",
            |intake| intake.accept(&self.channel, &self.options),
            Intake::take_ready,
        )
    }

    /// The next connection request, to be looked at, given a queue pair, and accepted or rejected by hand: a new
    /// synchronous identifier. Connections that are established meanwhile come out of [`accept`](Self::accept).
    ///
    /// # Errors
    /// As [`accept`](Self::accept).
    ///
    /// # Blocking
    /// Until a request comes, or the [deadline](ConnectionOptions::deadline).
    #[doc(alias = "rdma_get_request")]
    pub fn get_request(&self) -> Result<Identifier> {
        let child = self.wait_for(
            "a connection request",
            |intake| intake.request(&self.channel),
            |_| None,
        )?;
        child.move_to_own_channel("get_request")?;
        Ok(child)
    }

    /// Refuses the next request.
    ///
    /// # Errors
    /// As [`get_request`](Self::get_request) and [`Identifier::reject`].
    ///
    /// # Blocking
    /// Until a request comes, or the [deadline](ConnectionOptions::deadline).
    #[doc(alias = "rdma_reject")]
    pub fn reject(&self, private_data: &[u8]) -> Result<()> {
        self.get_request()?
            .reject(RejReason::CONSUMER_DEFINED, private_data)
    }

    /// How many connections were rejected, the oldest first, because too many were in the making.
    #[must_use]
    pub fn turned_away(&self) -> u64 {
        self.lock().turned_away()
    }

    fn wait_for<T>(
        &self,
        awaited: &'static str,
        look: impl Fn(&mut Intake<Synchronously>) -> Result<Found<T>>,
        check: impl Fn(&mut Intake<Synchronously>) -> Option<T>,
    ) -> Result<T> {
        let channel = &self.channel.inner;
        let look = || {
            loop {
                let mut intake = self.lock();
                let found = look(&mut intake)?;
                let is_for_others = intake.has_ready();
                drop(intake);
                if is_for_others {
                    channel.check_again();
                }
                match found {
                    Found::This(found) => return Ok(Some(found)),
                    Found::Nothing => return Ok(None),
                    Found::LookAgain => {}
                }
            }
        };
        channel
            .wait_in_turn(self.options.until(), look, || check(&mut self.lock()))?
            .ok_or(Error::TimedOut {
                peer: None,
                awaited,
            })
    }

    fn lock(&self) -> MutexGuard<'_, Intake<Synchronously>> {
        // A panic (in what prepares a connection) leaves the collections whole.
        self.intake.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener")
            .field("id", &self.id)
            .field("options", &self.options)
            .field("at_most_in_the_making", &MAX_IN_THE_MAKING)
            .finish_non_exhaustive()
    }
}

/// Connections whose calls wait.
struct Synchronously;

impl Ways for Synchronously {
    type Settled = Connection;

    fn new_cq(&self, device: &Context, size: u32) -> Result<CompletionQueue> {
        plain_cq(device, size)
    }

    fn settle(&self, connection: Connection) -> Result<Connection> {
        connection.id.move_to_own_channel("accept")?;
        Ok(connection)
    }
}
