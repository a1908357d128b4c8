//! Multicast groups.

use crate::command;
use crate::datagram::UdParam;
use crate::error::{Error, Result};
use crate::event::Event;
use crate::identifier::{Identifier, Shared};
use crate::ledger::Ledger;
use crate::registry;
use oarlock_ucm::abi::join_flag;
use oarlock_ucm::client::{self, JoinNumber};
use oarlock_wire::Gid;
use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// What a member of a multicast group does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum JoinKind {
    /// Receives and sends.
    #[doc(alias = "RDMA_MC_JOIN_FLAG_FULLMEMBER")]
    FullMember,
    /// Sends only: the host does not become a member, and nothing is received.
    #[doc(alias = "RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER")]
    SendOnlyFullMember,
}

/// An identifier's membership in a multicast group.
///
/// A handle; clones are the same membership. The last one to go leaves the group without waiting, and [`leave`](Self::leave)
/// leaves it while others exist. It keeps its identifier alive; [closing](Identifier::close) that ends it.
#[doc(alias = "rdma_cm_join_mc_attr_ex")]
#[derive(Clone)]
pub struct Multicast(pub(crate) Arc<Membership>);

pub(crate) struct Membership {
    id: Identifier,
    uid: u64,
    group: SocketAddr,
    kind: JoinKind,
    /// Set by the answer to the join, or by its event, whichever is seen first.
    number: OnceLock<JoinNumber>,
    param: OnceLock<UdParam>,
    left: AtomicBool,
    /// Whether the identifier's queue pair is attached for this membership.
    attached: AtomicBool,
    /// Of the events of this membership; they are counted with its identifier's, too.
    pub(crate) ledger: Ledger,
}

/// A membership has one account.
pub(crate) const ACCOUNT: u64 = 0;

impl Identifier {
    /// Joins a multicast group, on the device the identifier is bound to: after [`bind_addr`](Self::bind_addr) to an address
    /// that is neither a wildcard nor loopback, or after address resolution (of the group's address, where nothing else is
    /// wanted). Followed by [`MulticastJoin`](crate::Event::MulticastJoin) with what datagrams
    /// to the group are addressed with, or by [`MulticastError`](crate::Event::MulticastError).
    ///
    /// On RoCE a group is an IP multicast group; the port of `group` has no meaning, and the scope of an IPv6 address must
    /// be 0 or the identifier's interface. If the identifier has a queue pair when the event is fetched, that is attached
    /// to the group (full members only): it receives what is sent to it, its own messages included. A queue pair made
    /// later, or elsewhere, is attached by [`QueuePair::attach_multicast`](oarlock_verbs::QueuePair::attach_multicast). A
    /// group may be joined more than once; each join counts.
    ///
    /// # Errors
    /// [`Error::Refused`] with `EINVAL`: no device, not a UD identifier, or not the address of a group. A synchronous
    /// identifier also [`Error::JoinFailed`] and [`Error::TimedOut`]; one join at a time then.
    ///
    /// # Blocking
    /// One round trip; a synchronous identifier waits for the outcome.
    #[doc(alias = "rdma_join_multicast")]
    #[doc(alias = "rdma_join_multicast_ex")]
    pub fn join_multicast(&self, group: SocketAddr, kind: JoinKind) -> Result<Multicast> {
        let multicast = self.begin_join(group, kind)?;
        if let Some(channel) = self.private_channel() {
            self.wait_joined(&channel, &multicast)?;
        }
        Ok(multicast)
    }

    pub(crate) fn begin_join(&self, group: SocketAddr, kind: JoinKind) -> Result<Multicast> {
        let uid = registry::next_uid();
        let membership = Arc::new(Membership {
            id: self.clone(),
            uid,
            group,
            kind,
            number: OnceLock::new(),
            param: OnceLock::new(),
            left: AtomicBool::new(false),
            attached: AtomicBool::new(false),
            ledger: Ledger::default(),
        });
        // Its event may be fetched before the answer is read here.
        registry::insert_join(uid, &membership, &self.0);
        let flags = match kind {
            JoinKind::FullMember => join_flag::FULL_MEMBER,
            JoinKind::SendOnlyFullMember => join_flag::SEND_ONLY_FULL_MEMBER,
        };
        let command = client::join_multicast(self.0.number, uid, group, flags);
        match self.0.ask("join_multicast", command) {
            Ok(number) => {
                membership.number.get_or_init(|| number);
                Ok(Multicast(membership))
            }
            Err(error) => {
                membership.left.store(true, Ordering::Release);
                registry::remove(uid);
                Err(error)
            }
        }
    }
}

impl Multicast {
    /// The group.
    #[must_use]
    pub fn group(&self) -> SocketAddr {
        self.0.group
    }

    /// What the membership is for.
    #[must_use]
    pub fn kind(&self) -> JoinKind {
        self.0.kind
    }

    /// The identifier that joined.
    #[must_use]
    pub fn id(&self) -> &Identifier {
        &self.0.id
    }

    /// What datagrams to the group are addressed with, once its [`MulticastJoin`](crate::Event::MulticastJoin) was fetched.
    #[must_use]
    pub fn param(&self) -> Option<UdParam> {
        self.0.param.get().copied()
    }

    /// What the event means for whoever waits for the join; `None`: nothing, wait on.
    pub(crate) fn outcome(&self, event: Event) -> Option<Result<()>> {
        match event {
            Event::MulticastJoin { ref multicast, .. } if multicast == self => Some(Ok(())),
            Event::MulticastError { ref multicast, .. } if multicast == self => {
                event.error().map(Err)
            }
            Event::DeviceRemoval { .. } => Some(Err(Error::DeviceRemoved {
                call: "join_multicast",
            })),
            _ => None,
        }
    }

    /// Leaves the group: the identifier's queue pair is detached, an event still queued is removed, and events that were
    /// fetched are waited for.
    ///
    /// # Errors
    /// [`Error::EventHeldByCaller`]: nothing has changed. [`Error::AlreadyLeft`]. [`Error::Closed`]: the identifier is, which has ended the
    /// membership.
    /// [`Error::Unacknowledged`] at the identifier's [deadline](Identifier::set_deadline): the group is left.
    /// [`Error::Refused`] with `ENXIO` after a device removal.
    ///
    /// # Blocking
    /// While events of this membership are unacknowledged, at most until the identifier's deadline.
    #[doc(alias = "rdma_leave_multicast")]
    pub fn leave(&self) -> Result<()> {
        const CALL: &str = "leave";
        let membership = &*self.0;
        let events = membership.ledger.held_by_caller();
        if !events.is_empty() {
            return Err(Error::EventHeldByCaller {
                call: CALL,
                events,
                done: None,
            });
        }
        let shared = &membership.id.0;
        let debts = {
            let channel = shared.bound();
            shared.check_open(CALL)?;
            if membership.left.swap(true, Ordering::AcqRel) {
                return Err(Error::AlreadyLeft);
            }
            membership.detach();
            let number = membership
                .number
                .get()
                .expect("set when the join was asked for");
            let command = client::leave_multicast(*number);
            let reported = command::ask(&shared.host, CALL, channel.token(), command)?;
            membership.ledger.close_account(ACCOUNT, reported.0)
        };
        membership
            .ledger
            .wait(&debts, membership.id.deadline())
            .map_err(|events| Error::Unacknowledged {
                call: CALL,
                events,
                done: "left the group",
            })?;
        // No event of it can come any more.
        registry::remove(membership.uid);
        Ok(())
    }
}

impl Membership {
    /// The join has succeeded: attaches the identifier's queue pair, where there is one and it is to receive.
    pub(crate) fn joined(
        &self,
        number: JoinNumber,
        param: UdParam,
    ) -> Result<(), oarlock_verbs::Error> {
        self.number.get_or_init(|| number);
        self.param.get_or_init(|| param);
        if self.kind == JoinKind::FullMember && self.id.0.attach(self.gid())? {
            self.attached.store(true, Ordering::Release);
        }
        Ok(())
    }

    pub(crate) fn failed(&self, number: JoinNumber) {
        self.number.get_or_init(|| number);
    }

    fn detach(&self) {
        if self.attached.swap(false, Ordering::AcqRel) {
            self.id.0.detach(self.gid());
        }
    }

    fn gid(&self) -> Gid {
        Gid::from_ip(self.group.ip())
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        if *self.left.get_mut() {
            return;
        }
        self.detach();
        let shared = &self.id.0;
        if self.ledger.has_acknowledged() {
            // There is one event in its life.
            registry::remove(self.uid);
        }
        // An identifier that is closed has no memberships; their numbers may be others' by now.
        if let Some(number) = self.number.get()
            && !shared.closed.load(Ordering::Acquire)
        {
            let channel = shared.bound();
            command::post(
                &shared.host,
                channel.token(),
                client::leave_multicast(*number),
            );
        }
    }
}

impl Shared {
    /// Attaches the queue pair to a group once more; whether there is a queue pair.
    fn attach(&self, group: Gid) -> Result<bool, oarlock_verbs::Error> {
        let queue_pair = self.lock_queue_pair();
        let Some(queue_pair) = queue_pair.as_ref() else {
            return Ok(false);
        };
        let mut attached = self.lock_attached();
        let count = attached.entry(group).or_insert(0);
        if *count == 0 {
            queue_pair.attach_multicast(group)?;
        }
        *count += 1;
        Ok(true)
    }

    /// Detaches the queue pair after the last membership that it was attached for.
    fn detach(&self, group: Gid) {
        let queue_pair = self.lock_queue_pair();
        let mut attached = self.lock_attached();
        let Some(count) = attached.get_mut(&group) else {
            return;
        };
        *count -= 1;
        if *count > 0 {
            return;
        }
        attached.remove(&group);
        if let Some(queue_pair) = queue_pair.as_ref()
            && let Err(error) = queue_pair.detach_multicast(group)
        {
            tracing::debug!("queue pair not detached from {group}: {error}");
        }
    }
}

impl PartialEq for Multicast {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Multicast {}

impl fmt::Debug for Multicast {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Multicast({} of {:?})", self.0.group.ip(), self.0.id)
    }
}
