//! Multicast groups: joins of identifiers, and the memberships of interfaces that follow from them.
//!
//! On RoCEv2 a group is an IP multicast group, and an interface is its member as long as one join of a full member is left.
//! That is counted here, so that the driver joins a group once and leaves it once. Datagrams find their way to the queue
//! pairs by other means: a queue pair is attached to the group by its owner.
//!
//! Deviation: the kernel refuses IPv6 groups over RoCEv2 (ENOTSUPP); here they are as good as IPv4 ones.

use crate::handle::Table;
use crate::identifier::Identifier;
use crate::resolve::scope_of;
use crate::{
    Cma, Counter, Device, Errno, Error, EventKind, EventParam, Id, McId, QpType, State,
    UdEventParam,
};
use crate::{channel::Place, resolve::is_mapped};
use oarlock_wire::{AddressVector, Gid, Mtu, QKey, Qpn, Time};
use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};

/// What a member of a group wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum JoinKind {
    /// To receive and to send.
    FullMember,
    /// To send only: the interface does not join the group.
    SendOnlyFullMember,
}

/// Names one membership question. An answer to a question that nobody waits for any more is dropped and counted.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct MembershipToken(u64);

/// What is to be done about a membership.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum MembershipAction {
    /// The interface is to join the group; [`handle_membership`](crate::Cma::handle_membership) takes the outcome.
    Join,
    /// The interface is to leave the group; no answer is wanted. It may not be a member: the join before it may have failed,
    /// or the interface may have gone.
    Leave,
}

/// A change of an interface's membership in a group, for the driver to make. They are to be made in the order in which they
/// come: a group may be left and joined again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Membership {
    /// To be given back with the outcome of a join.
    pub token: MembershipToken,
    /// The group.
    pub group: IpAddr,
    /// The interface.
    pub ifindex: u32,
    /// What to do.
    pub action: MembershipAction,
}

/// A join.
#[derive(Debug)]
pub(crate) struct Multicast {
    pub(crate) id: Id,
    pub(crate) context: u64,
    /// Where its event stands on the identifier's channel. There is one event over its life.
    pub(crate) queued: Option<Place>,
    pub(crate) reported: u32,
    /// The membership of the interface that it counts for: none if it only sends, and none after a failure.
    counts_for: Option<GroupKey>,
    param: UdEventParam,
}

type GroupKey = (u32, IpAddr);

/// The membership of an interface in a group.
#[derive(Debug)]
struct Group {
    members: usize,
    standing: GroupStanding,
}

#[derive(Debug)]
enum GroupStanding {
    /// The driver was asked; these wait for the outcome.
    Joining(MembershipToken, Vec<McId>),
    Joined,
}

/// All joins.
#[derive(Debug)]
pub(crate) struct Multicasts {
    pub(crate) table: Table<Multicast>,
    groups: BTreeMap<GroupKey, Group>,
    asked: BTreeMap<MembershipToken, GroupKey>,
    next_token: u64,
    to_do: VecDeque<Membership>,
}

impl Multicasts {
    pub(crate) const fn new() -> Self {
        Self {
            table: Table::new(),
            groups: BTreeMap::new(),
            asked: BTreeMap::new(),
            next_token: 0,
            to_do: VecDeque::new(),
        }
    }

    pub(crate) fn get_mut(&mut self, mc: McId) -> Option<&mut Multicast> {
        self.table.get_mut(mc.into())
    }

    fn ask(&mut self, (ifindex, group): GroupKey, action: MembershipAction) -> MembershipToken {
        let token = MembershipToken(self.next_token);
        self.next_token += 1;
        self.to_do.push_back(Membership {
            token,
            group,
            ifindex,
            action,
        });
        token
    }

    /// Counts `mc` as a member of its group. Says whether the interface is a member already.
    fn enter(&mut self, mc: McId, key: GroupKey) -> bool {
        if let Some(group) = self.groups.get_mut(&key) {
            group.members += 1;
            return match &mut group.standing {
                GroupStanding::Joined => true,
                GroupStanding::Joining(_, waiting) => {
                    waiting.push(mc);
                    false
                }
            };
        }
        let token = self.ask(key, MembershipAction::Join);
        self.asked.insert(token, key);
        let group = Group {
            members: 1,
            standing: GroupStanding::Joining(token, vec![mc]),
        };
        self.groups.insert(key, group);
        false
    }

    /// Takes `mc` out of its group; the interface leaves after the last.
    fn leave(&mut self, mc: McId) {
        let Some(key) = self.get_mut(mc).and_then(|join| join.counts_for.take()) else {
            return;
        };
        let Some(group) = self.groups.get_mut(&key) else {
            return;
        };
        group.members -= 1;
        if let GroupStanding::Joining(_, waiting) = &mut group.standing {
            waiting.retain(|other| *other != mc);
        }
        if group.members > 0 {
            return;
        }
        if let Some(Group {
            standing: GroupStanding::Joining(token, _),
            ..
        }) = self.groups.remove(&key)
        {
            self.asked.remove(&token);
            let asked = self.to_do.len();
            self.to_do.retain(|membership| membership.token != token);
            if self.to_do.len() < asked {
                // The driver has not been asked yet.
                return;
            }
        }
        self.ask(key, MembershipAction::Leave);
    }

    /// Takes the outcome of a join; gives those who waited for it, and `None` if nobody does any more.
    fn settle(&mut self, token: MembershipToken, joined: bool) -> Option<Vec<McId>> {
        let key = self.asked.remove(&token)?;
        let group = self.groups.get_mut(&key)?;
        let standing = std::mem::replace(&mut group.standing, GroupStanding::Joined);
        if !joined {
            self.groups.remove(&key);
        }
        match standing {
            GroupStanding::Joining(_, waiting) => Some(waiting),
            GroupStanding::Joined => None,
        }
    }
}

impl Cma {
    /// Joins a multicast group. The outcome is MULTICAST_JOIN, with what datagrams to the group are addressed with, or
    /// MULTICAST_ERROR; both carry `context`, and the join in [`Event::multicast`](crate::Event::multicast).
    ///
    /// A group may be joined more than once; each join counts. The port of `group` has no meaning, and its scope, if it is not
    /// 0, must be the identifier's interface. The source of the datagrams is the identifier's address, or, if that is of the
    /// other family, the device's first address of the group's family.
    ///
    /// # Errors
    /// `NotDatagram`; `NoDevice`, `WrongState` (which includes connected UD identifiers); `NotMulticast` (the unspecified
    /// address too), `MappedAddress`, `ScopeMismatch`; `NoSourceForGroup`; `LinkTooSmall`; `TooManyMulticasts`,
    /// `ChannelFull`.
    #[doc(alias = "rdma_join_multicast")]
    #[doc(alias = "rdma_join_multicast_ex")]
    pub fn join_multicast(
        &mut self,
        now: Time,
        id: Id,
        group: SocketAddr,
        kind: JoinKind,
        context: u64,
    ) -> Result<McId, Error> {
        let call = "join_multicast";
        let ident = self.working(call, id)?;
        let state = ident.state;
        let device = self.device_of(call, ident)?;
        if !matches!(state, State::AddrBound | State::AddrResolved) {
            return Err(Error::WrongState {
                call,
                state,
                wanted: "ADDR_BOUND or ADDR_RESOLVED",
            });
        }
        if ident.qp_type != QpType::UD {
            return Err(Error::NotDatagram {
                call,
                qp_type: ident.qp_type,
            });
        }
        let address = group.ip();
        check_group(group, device)?;
        Mtu::largest_for_link(device.netdev_mtu).ok_or(Error::LinkTooSmall {
            mtu: device.netdev_mtu,
        })?;
        let param = self.group_param(ident, device, address)?;
        let ifindex = device.ifindex;
        let max = self.config.max_multicasts;
        if self.multicasts.table.len() >= max {
            return Err(Error::TooManyMulticasts { max });
        }
        self.check_room(id, 1)?;

        let key = (ifindex, address);
        let counts_for = match kind {
            JoinKind::FullMember => Some(key),
            JoinKind::SendOnlyFullMember => None,
        };
        let qkey = param.qkey;
        let mc = self.multicasts.table.insert(Multicast {
            id,
            context,
            queued: None,
            reported: 0,
            counts_for,
            param,
        });
        let mc = McId::from(mc);
        let ident = self.exposed_mut(id)?;
        ident.multicasts.insert(mc);
        ident.qkey = Some(qkey);
        let is_member = counts_for.is_none_or(|key| self.multicasts.enter(mc, key));
        self.counters.count(Counter::MulticastJoins);
        if is_member {
            self.report_join(mc, Ok(()));
        }
        self.pump(now);
        Ok(mc)
    }

    /// Ends a join, in whatever state it is, and gives the number of its events that were handed out. Its queued event
    /// is removed.
    ///
    /// # Errors
    /// `UnknownMulticast`; `DeviceRemoved`, after which destroying the identifier ends its joins.
    #[doc(alias = "rdma_leave_multicast")]
    pub fn leave_multicast(&mut self, now: Time, mc: McId) -> Result<u32, Error> {
        let id = self
            .multicasts
            .table
            .get(mc.into())
            .ok_or(Error::UnknownMulticast)?
            .id;
        self.working("leave_multicast", id)?;
        let reported = self.end_join(mc);
        self.pump(now);
        Ok(reported)
    }

    /// The next change of an interface's membership for the driver to make.
    #[must_use]
    pub fn poll_membership(&mut self) -> Option<Membership> {
        self.multicasts.to_do.pop_front()
    }

    /// Takes the outcome of a [`MembershipAction::Join`] that came from [`poll_membership`](Self::poll_membership).
    pub fn handle_membership(
        &mut self,
        now: Time,
        token: MembershipToken,
        outcome: Result<(), Errno>,
    ) {
        let Some(waiting) = self.multicasts.settle(token, outcome.is_ok()) else {
            self.counters.count(Counter::MembershipsStale);
            return;
        };
        for mc in waiting {
            if outcome.is_err()
                && let Some(join) = self.multicasts.get_mut(mc)
            {
                join.counts_for = None;
            }
            self.report_join(mc, outcome);
        }
        self.pump(now);
    }

    /// The group of a join.
    ///
    /// # Errors
    /// `UnknownMulticast`.
    pub fn multicast_group(&self, mc: McId) -> Result<IpAddr, Error> {
        let join = self.multicasts.table.get(mc.into());
        join.map(|join| join.param.av.remote.to_ip())
            .ok_or(Error::UnknownMulticast)
    }

    fn report_join(&mut self, mc: McId, outcome: Result<(), Errno>) {
        let Some(join) = self.multicasts.table.get(mc.into()) else {
            return;
        };
        let (id, context) = (join.id, join.context);
        let (kind, status, param) = match outcome {
            Ok(()) => (
                EventKind::MULTICAST_JOIN,
                0,
                EventParam::Ud(join.param.clone()),
            ),
            Err(errno) => {
                self.counters.count(Counter::MulticastErrors);
                (
                    EventKind::MULTICAST_ERROR,
                    errno.as_status(),
                    EventParam::None,
                )
            }
        };
        self.report_multicast(id, mc, context, kind, status, param);
    }

    /// Removes a join with its event and what it counts for.
    pub(crate) fn end_join(&mut self, mc: McId) -> u32 {
        self.multicasts.leave(mc);
        let Some(join) = self.multicasts.table.remove(mc.into()) else {
            return 0;
        };
        if let Some(ident) = self.ids.get_mut(join.id.into()) {
            ident.multicasts.remove(&mc);
            if let Some(place) = join.queued {
                // The places of one identifier are in order.
                if let Ok(index) = ident.queued.binary_search(&place) {
                    ident.queued.remove(index);
                }
                if self.channels.take(ident.channel, place).is_some() {
                    self.counters.count(Counter::EventsDestroyed);
                }
            }
        }
        join.reported
    }

    /// Ends what the joins of an identifier count for; the joins themselves stay until they are left or destroyed.
    pub(crate) fn drop_memberships(&mut self, id: Id) {
        let Some(ident) = self.ids.get(id.into()) else {
            return;
        };
        for mc in &ident.multicasts {
            self.multicasts.leave(*mc);
        }
    }

    /// What datagrams to a group are addressed with.
    fn group_param(
        &self,
        ident: &Identifier,
        device: &Device,
        group: IpAddr,
    ) -> Result<UdEventParam, Error> {
        let own = ident
            .resolution
            .map(|resolution| resolution.av.local.to_ip())
            .or(ident.local.map(|local| local.ip()));
        let own = own.filter(|ip| {
            ip.is_ipv4() == group.is_ipv4() && device.sgid_index(Gid::from_ip(*ip)).is_some()
        });
        let first = || {
            let mut addresses = device.addresses.iter().copied();
            addresses.find(|ip| ip.is_ipv4() == group.is_ipv4())
        };
        let no_source = Error::NoSourceForGroup { group };
        let source = own.or_else(first).ok_or(no_source.clone())?;
        let local = Gid::from_ip(source);
        let sgid_index = device.sgid_index(local).ok_or(no_source)?;
        Ok(UdEventParam {
            private_data: None,
            av: AddressVector {
                scope_id: device.ifindex,
                hop_limit: GROUP_HOP_LIMIT,
                traffic_class: self.type_of_service(ident),
                ..AddressVector::new(local, Gid::from_ip(group))
            },
            sgid_index,
            port_num: device.port_num,
            qpn: Qpn::MULTICAST,
            qkey: ident.qkey.unwrap_or(QKey::RDMA_UDP),
        })
    }
}

fn check_group(group: SocketAddr, device: &Device) -> Result<(), Error> {
    let address = group.ip();
    if is_mapped(address) {
        return Err(Error::MappedAddress { address });
    }
    if !address.is_multicast() {
        return Err(Error::NotMulticast { address });
    }
    let scope_id = scope_of(group);
    if scope_id != 0 && scope_id != device.ifindex {
        return Err(Error::ScopeMismatch {
            bound: device.ifindex,
            destination: scope_id,
        });
    }
    Ok(())
}

/// The hop limit of datagrams to a group, as the kernel's rdma_cm sets it (`IPV6_DEFAULT_HOPLIMIT`).
const GROUP_HOP_LIMIT: u8 = 64;
