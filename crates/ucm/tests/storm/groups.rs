//! Members of multicast groups: several on each host, some of them more than once.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use oarlock_transport::UdDestination;
use oarlock_ucm::abi::join_flag;
use oarlock_ucm::client::{self, Event, IdNumber, JoinNumber};
use oarlock_wire::{AddressVector, Gid, QKey, Qpn};

use crate::host::{address, ifindex, movable, volatile};
use crate::ledger::Part;
use crate::program::kind;
use crate::qp::Received;
use crate::world::{ACTIVE, Action, PASSIVE, REFUSED, UDP, World};

/// On each host; each is bound to another address.
const MEMBERS: usize = 3;
/// What one member does in a storm.
const DEEDS: u32 = 14;
/// Joins that a member holds at a time.
const JOINS: usize = 3;

/// A program with a datagram identifier.
#[derive(Debug)]
pub(crate) struct Member {
    side: usize,
    place: usize,
    pub(crate) id: Option<IdNumber>,
    joins: BTreeMap<JoinNumber, Joined>,
    deeds_left: u32,
}

#[derive(Debug)]
struct Joined {
    group: IpAddr,
    is_full: bool,
    /// Once its event has come.
    to: Option<UdDestination>,
}

impl Member {
    fn address(&self) -> IpAddr {
        [address, volatile, movable][self.place](self.side)
    }

    fn ifindex(&self) -> u32 {
        ifindex(self.place.min(1))
    }

    fn hears(&self, group: IpAddr) -> bool {
        let mut joins = self.joins.values();
        joins.any(|join| join.is_full && join.to.is_some() && join.group == group)
    }
}

fn qpn_of_member(member: usize) -> u32 {
    0x60_0000 + member as u32
}

fn message(member: usize, group: IpAddr) -> Vec<u8> {
    format!("{member} to {group}").into_bytes()
}

impl World {
    pub(crate) fn plan_members(&mut self) {
        for member in 0..2 * MEMBERS {
            self.members.push(Member {
                side: [ACTIVE, PASSIVE][member % 2],
                place: member / 2,
                id: None,
                joins: BTreeMap::new(),
                deeds_left: DEEDS,
            });
            self.later(Duration::from_millis(60), Action::Member(member));
        }
    }

    /// One thing that a member does.
    pub(crate) fn member(&mut self, member: usize) -> Result<(), String> {
        let known = &mut self.members[member];
        known.deeds_left -= 1;
        if known.deeds_left > 0 {
            let within = if self.rng.chance(0.1) { 3_000 } else { 60 };
            self.later(Duration::from_millis(within), Action::Member(member));
        }
        let side = self.members[member].side;
        let Some(id) = self.members[member].id else {
            return self.begin_member(member);
        };
        if self.hosts[side].ledger.record(id).is_gone {
            return self.destroy_member(member);
        }
        match self.rng.below(20) {
            0..10 => self.join(member, id),
            10..14 => self.leave(member, id),
            14..19 => self.send_to_group(member),
            _ => self.destroy_member(member),
        }
    }

    fn begin_member(&mut self, member: usize) -> Result<(), String> {
        let known = &self.members[member];
        let (side, source) = (known.side, known.address());
        let file = self.any_wild_file(side);
        let id = self.create(side, file, UDP, Part::Member(member))?;
        let is_there = self.hosts[side].devices.owns(side, source);
        let bound = self.try_call(side, file, &client::bind(id, (source, 0).into()))?;
        if bound.is_ok() != is_there {
            return Err(format!("{source} is there: {is_there}; binding: {bound:?}"));
        }
        if !is_there {
            return self.destroy(side, id);
        }
        self.make_datagram_qp(side, id, qpn_of_member(member))?;
        self.members[member].id = Some(id);
        Ok(())
    }

    fn join(&mut self, member: usize, id: IdNumber) -> Result<(), String> {
        let known = &self.members[member];
        if known.joins.len() == JOINS {
            return Ok(());
        }
        let side = known.side;
        let group = IpAddr::from([239, 0, 0, self.rng.below(2) as u8 + 1]);
        let is_full = self.rng.chance(0.7);
        let flags = match is_full {
            true => join_flag::FULL_MEMBER,
            false => join_flag::SEND_ONLY_FULL_MEMBER,
        };
        let uid = self.rng.next_u64();
        let call = client::join_multicast(id, uid, (group, 0).into(), flags);
        let Some(join) = self.demand(side, id, &call)? else {
            return Err("its device has gone, and nobody said so".into());
        };
        self.hosts[side].ledger.joined(id, join, uid)?;
        let joined = Joined {
            group,
            is_full,
            to: None,
        };
        self.members[member].joins.insert(join, joined);
        self.count(if is_full {
            "joins"
        } else {
            "joins to send only"
        });
        Ok(())
    }

    fn leave(&mut self, member: usize, id: IdNumber) -> Result<(), String> {
        let side = self.members[member].side;
        let joins: Vec<JoinNumber> = self.members[member].joins.keys().copied().collect();
        if joins.is_empty() {
            return Ok(());
        }
        let join = joins[self.rng.index(joins.len())];
        let Some(counted) = self.demand(side, id, &client::leave_multicast(join))? else {
            return Err("its device has gone, and nobody said so".into());
        };
        self.hosts[side].ledger.left(join, counted.0)?;
        self.members[member].joins.remove(&join);
        self.count(match counted.0 {
            0 => "joins left before they were answered",
            _ => "joins left",
        });
        Ok(())
    }

    fn send_to_group(&mut self, member: usize) -> Result<(), String> {
        let known = &self.members[member];
        let side = known.side;
        let mut joins = known.joins.values();
        let found = joins.find_map(|join| join.to.map(|to| (to, join.group)));
        let Some((to, group)) = found else {
            return Ok(());
        };
        let qpn = qpn_of_member(member);
        let qp = self.hosts[side].datagram_qps.get_mut(&qpn);
        qp.expect("made with the identifier")
            .send(to, &message(member, group))?;
        self.count("datagrams sent to groups");
        self.drain_datagrams(side, qpn)
    }

    fn destroy_member(&mut self, member: usize) -> Result<(), String> {
        let side = self.members[member].side;
        let Some(id) = self.members[member].id else {
            return Ok(());
        };
        if !self.hosts[side].ledger.joins_of(id).is_empty() {
            self.count("members destroyed with joins");
        }
        self.forget_member(member);
        self.destroy(side, id)
    }

    pub(crate) fn forget_member(&mut self, member: usize) {
        let known = &mut self.members[member];
        known.id = None;
        known.joins.clear();
        let qpn = qpn_of_member(member);
        self.hosts[known.side].datagram_qps.remove(&qpn);
    }

    pub(crate) fn on_member_event(&mut self, member: usize, event: &Event) -> Result<(), String> {
        match event.kind {
            kind::MULTICAST_JOIN => self.on_join(member, event),
            kind::MULTICAST_ERROR => {
                let joined = &self.members[member].joins[&event.join()];
                if !joined.is_full || event.status != REFUSED.as_status() {
                    return Err(format!("refused without a reason: {joined:?}"));
                }
                self.count("joins refused");
                Ok(())
            }
            kind::DEVICE_REMOVAL => {
                self.count("device removals noticed");
                if self.rng.chance(0.5) {
                    return self.destroy_member(member);
                }
                Ok(())
            }
            kind::ADDR_CHANGE => {
                self.count("address changes noticed");
                Ok(())
            }
            kind::USER => Ok(()),
            _ => Err("not for a member".into()),
        }
    }

    fn on_join(&mut self, member: usize, event: &Event) -> Result<(), String> {
        let known = &self.members[member];
        let (side, ifindex) = (known.side, known.ifindex());
        let Joined { group, is_full, .. } = known.joins[&event.join()];
        let is_gone = known
            .id
            .is_none_or(|id| self.hosts[side].ledger.record(id).is_gone);
        let interfaces = &self.hosts[side].interfaces;
        if is_full && !is_gone && !interfaces.is_member(ifindex, group) {
            return Err(format!("joined, and the interface is not in {group}"));
        }
        let found = event.ud();
        let expected = (Qpn::MULTICAST.get(), QKey::RDMA_UDP.0, Gid::from_ip(group));
        if (found.qp_num, found.qkey, Gid(found.ah_attr.dgid)) != expected {
            return Err(format!("another group: {found:?}"));
        }
        // The entry of the table may have gone since.
        let devices = self.hosts[side].devices.list(side);
        let device = devices.iter().find(|device| device.ifindex == ifindex);
        let sgid = usize::from(found.ah_attr.sgid_index);
        let source = device.and_then(|device| device.addresses.get(sgid));
        let to = match source {
            Some(source) => {
                let local = (Gid::from_ip(*source), ifindex);
                let av = found.ah_attr.address_vector(local);
                Some(UdDestination {
                    av: av.map_err(|error| error.to_string())?,
                    remote_qpn: Qpn::MULTICAST,
                    remote_qkey: QKey(found.qkey),
                })
            }
            None => None,
        };
        if let Some(joined) = self.members[member].joins.get_mut(&event.join()) {
            joined.to = to;
        }
        Ok(())
    }

    /// A datagram to a group: for each queue pair that is attached to it on that interface.
    pub(crate) fn group_packet_arrived(
        &mut self,
        side: usize,
        av: &AddressVector,
        bytes: &[u8],
    ) -> Result<(), String> {
        let group = av.local.to_ip();
        for member in 0..self.members.len() {
            let known = &self.members[member];
            let is_here = known.side == side && known.ifindex() == av.scope_id;
            let is_member = self.hosts[side].interfaces.is_member(av.scope_id, group);
            if !is_here || !is_member || !known.hears(group) {
                continue;
            }
            let qpn = qpn_of_member(member);
            if let Some(qp) = self.hosts[side].datagram_qps.get_mut(&qpn) {
                qp.handle_datagram(av, bytes);
                self.drain_datagrams(side, qpn)?;
            }
        }
        Ok(())
    }

    pub(crate) fn group_datagram_received(
        &mut self,
        side: usize,
        qpn: u32,
        received: &Received,
    ) -> Result<(), String> {
        let from = received.from.get().checked_sub(qpn_of_member(0));
        let sender = from.map_or(usize::MAX, |from| from as usize);
        let receiver = self.members.get((qpn - qpn_of_member(0)) as usize);
        let receiver = receiver.ok_or("a datagram for nobody")?;
        let mut joins = receiver.joins.values();
        if !joins.any(|join| message(sender, join.group) == received.payload) {
            return Err(format!(
                "a datagram to no group of its receiver on side {side}"
            ));
        }
        self.count("datagrams of groups");
        Ok(())
    }
}
