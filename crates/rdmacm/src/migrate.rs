//! Moving identifiers between event channels, and closing them.
//!
//! What makes it safe, in four parts:
//! - Events stay with the service until they are fetched; it takes an event from a queue or moves it, never both. So an
//!   event fetched from the old channel was there before the move, and one queued comes out of the new channel, in order.
//! - Commands of an identifier name its channel. They hold the identifier's lock while they run, MIGRATE_ID holds it
//!   exclusively: no command can miss the identifier.
//! - Events, identifiers and readers keep the channel they use alive. The last one to leave closes it.
//! - The service counts what it delivered and the ledger what was acknowledged of it, by channel (see `ledger`).

use crate::channel::{Channel, EventChannel};
use crate::command;
use crate::error::{Error, Result};
use crate::identifier::Identifier;
use crate::ledger::Debts;
use crate::param::ConnParam;
use oarlock_ucm::client;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Instant;

impl Identifier {
    /// Moves the identifier to `channel`: later events are reported there, and those already queued come out of it first, in
    /// their order. Connection requests queued for a listener bring their new identifiers along. Readers that wait on the new
    /// channel wake up.
    ///
    /// After the call no event of the identifier comes out of the old channel any more, which may be dropped at once. Others
    /// may read either channel and use the identifier meanwhile: every event is seen once, by a reader of the old channel if it
    /// was fetched before the move, else by one of the new.
    ///
    /// A synchronous identifier becomes an ordinary one.
    ///
    /// # Errors
    /// [`Error::EventHeldByCaller`]: the calling thread itself has fetched an event of this identifier and not acknowledged
    /// it; nothing has changed. (An event given to another thread must be marked by
    /// [`handed_over`](crate::Event::handed_over) to be waited for.) [`Error::OtherHost`]. [`Error::Refused`].
    /// [`Error::Unacknowledged`] at the identifier's [deadline](Self::set_deadline): it has moved, and events are missing.
    ///
    /// # Blocking
    /// While events of the identifier that were fetched from the old channel are unacknowledged, and only then: the
    /// identifier has moved already, events of the new channel are not waited for. At most until the identifier's
    /// deadline.
    ///
    /// # Examples
    /// ```
    /// # use oarlock_rdmacm::{EventChannel, Host, Identifier, PortSpace};
    /// let host = Host::private()?;
    /// let first = EventChannel::new(&host)?;
    /// let id = Identifier::new(&first, PortSpace::TCP)?;
    /// let second = EventChannel::new(&host)?;
    /// id.migrate(&second)?;
    /// drop(first);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "rdma_migrate_id")]
    pub fn migrate(&self, channel: &EventChannel) -> Result<()> {
        self.move_to("migrate", &channel.inner)
    }

    /// Makes the identifier synchronous: it reports to no channel, and each call waits for its outcome. Events that are queued
    /// already are kept for [`next_event`](Self::next_event) and for the calls that wait for them.
    ///
    /// # Errors
    /// [`Error::AlreadySynchronous`]; else as [`migrate`](Self::migrate).
    ///
    /// # Blocking
    /// As [`migrate`](Self::migrate).
    #[doc(alias = "rdma_migrate_id")]
    pub fn migrate_to_none(&self) -> Result<()> {
        if self.is_synchronous() {
            return Err(Error::AlreadySynchronous);
        }
        self.move_to_own_channel("migrate_to_none")
    }

    /// Gives the identifier a private channel of its own, in place of whatever it reports to.
    pub(crate) fn move_to_own_channel(&self, call: &'static str) -> Result<()> {
        let channel = Channel::open(&self.0.host, Some(self.0.uid))?;
        self.move_to(call, &channel)
    }

    /// Accepts on a channel of choice: the connection's events, from `Established` on, are reported there.
    ///
    /// # Errors
    /// As [`migrate`](Self::migrate) and [`accept`](Self::accept).
    pub fn accept_on(&self, channel: &EventChannel, param: &ConnParam) -> Result<()> {
        self.migrate(channel)?;
        self.accept(param)
    }

    /// Whether the identifier is synchronous.
    #[must_use]
    pub fn is_synchronous(&self) -> bool {
        self.private_channel().is_some()
    }

    fn move_to(&self, call: &'static str, target: &Arc<Channel>) -> Result<()> {
        self.check_holds_no_event(call, None)?;
        self.move_until(call, target, self.deadline())
    }

    /// Moves the identifier, and waits for acknowledgements until then.
    pub(crate) fn move_until(
        &self,
        call: &'static str,
        target: &Arc<Channel>,
        until: Option<Instant>,
    ) -> Result<()> {
        let shared = &*self.0;
        if shared.host.id() != target.host.id() {
            return Err(Error::OtherHost { call });
        }
        let debts = {
            let mut bound = shared
                .channel
                .write()
                .unwrap_or_else(PoisonError::into_inner);
            shared.check_open(call)?;
            let command = client::migrate_id(shared.number, bound.token());
            let reported = command::ask(&shared.host, call, target.token(), command)?;
            let old = std::mem::replace(&mut *bound, Arc::clone(target));
            if old.private_to == Some(shared.uid) {
                old.end_waits();
            }
            shared.ledger.close_account(old.serial, reported.0)
        };
        self.wait_acknowledged(call, &debts, until, "moved")
    }

    fn wait_acknowledged(
        &self,
        call: &'static str,
        debts: &Debts,
        until: Option<Instant>,
        done: &'static str,
    ) -> Result<()> {
        self.0
            .ledger
            .wait(debts, until)
            .map_err(|events| Error::Unacknowledged { call, events, done })
    }

    /// Destroys the identifier and waits until every event of it is acknowledged. Other handles and events may still
    /// exist; their calls fail with [`Error::Closed`], and so does one that waits, in another thread or task. Dropping
    /// the last handle does the same without waiting.
    ///
    /// # Errors
    /// [`Error::EventHeldByCaller`]: the identifier is destroyed, but not waited for, since the calling thread itself
    /// holds an event. [`Error::Closed`]: by another handle before. [`Error::Unacknowledged`] at the identifier's
    /// [deadline](Self::set_deadline): it is destroyed, and events are missing.
    ///
    /// # Blocking
    /// While events of the identifier are unacknowledged, at most until its deadline.
    #[doc(alias = "rdma_destroy_id")]
    pub fn close(self) -> Result<()> {
        const CALL: &str = "close";
        const DESTROYED: &str = "been destroyed";
        let shared = &*self.0;
        let held = self.check_holds_no_event(CALL, Some(DESTROYED));
        let debts = {
            let bound = shared
                .channel
                .write()
                .unwrap_or_else(PoisonError::into_inner);
            if shared.closed.swap(true, Ordering::AcqRel) {
                return Err(Error::Closed { call: CALL });
            }
            shared.lock_queue_pair().take();
            let command = client::destroy_id(shared.number);
            let reported = command::ask(&shared.host, CALL, bound.token(), command)?;
            bound.closed(shared.uid);
            shared.ledger.close_account(bound.serial, reported.0)
        };
        held?;
        self.wait_acknowledged(CALL, &debts, self.deadline(), DESTROYED)
    }

    fn check_holds_no_event(&self, call: &'static str, done: Option<&'static str>) -> Result<()> {
        let events = self.0.ledger.held_by_caller();
        if events.is_empty() {
            Ok(())
        } else {
            Err(Error::EventHeldByCaller { call, events, done })
        }
    }
}
