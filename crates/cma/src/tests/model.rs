//! Everything that queues events against a reference model: random operations on several channels, with identifiers of both
//! kinds, multicast joins, injected events, devices and addresses that go and come, and destruction in the middle of it. Every
//! event comes out exactly once, on the right channel, in the right place, and is told of exactly once.

mod reference;

use super::world::{SECOND, addr, ip, usual_devices};
use crate::{
    ChannelId, Cma, Config, Counter, Errno, Event, EventKind, EventParam, Id, JoinKind,
    LookupError, McId, MembershipAction, MembershipToken, PortSpace, QpType, Seed,
};
use oarlock_sim::{Rng, for_each_seed};
use oarlock_wire::{
    AddressVector, CommId, Gid, Guid, IpCmHeader, MAD_LEN, PathFields, PrivateData, Qpn, Req,
    ServiceId, SidrReq, Time, TransactionId,
};
use reference::{Model, Tag};
use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

struct Bench {
    cma: Cma,
    model: Model,
    rng: Rng,
    next_tag: u32,
    /// Joins that the driver was asked for, with their outcomes, which the manager has not been told.
    outcomes: Vec<(MembershipToken, IpAddr, bool)>,
    /// The question that is the current one for each group.
    current: HashMap<IpAddr, MembershipToken>,
    /// The groups that the interface is a member of.
    is_member: BTreeSet<IpAddr>,
    stale: u64,
}

const NOW: Time = Time::ZERO;

impl Bench {
    fn new(seed: u64) -> Self {
        let mut cma = Cma::new(Config::default(), Seed([9; 32]));
        cma.set_devices(NOW, usual_devices(1));
        let mut bench = Self {
            cma,
            model: Model::default(),
            rng: Rng::new(seed),
            next_tag: 0,
            outcomes: Vec::new(),
            current: HashMap::new(),
            is_member: BTreeSet::new(),
            stale: 0,
        };
        for _ in 0..3 {
            bench.create_channel();
        }
        bench
    }

    fn tag(&mut self) -> u32 {
        self.next_tag += 1;
        self.next_tag
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        if from.is_empty() {
            None
        } else {
            Some(from[self.rng.index(from.len())])
        }
    }

    /// A channel, in an order that does not depend on the hash.
    fn pick_channel(&mut self) -> ChannelId {
        let mut channels: Vec<_> = self.model.queues.keys().copied().collect();
        channels.sort_unstable();
        self.pick(&channels).expect("there is always one")
    }

    fn pick_id(&mut self) -> Option<Id> {
        let mut ids: Vec<_> = self.model.ids.keys().copied().collect();
        ids.sort_unstable();
        self.pick(&ids)
    }

    fn create_channel(&mut self) {
        let channel = self.cma.create_channel().expect("room");
        self.model.queues.insert(channel, Vec::new());
    }

    fn create_id(&mut self) {
        let channel = self.pick_channel();
        let datagrams = self.rng.chance(0.5);
        let (port_space, qp_type) = match datagrams {
            true => (PortSpace::UDP, QpType::UD),
            false => (PortSpace::TCP, QpType::RC),
        };
        let id = self
            .cma
            .create_id(channel, port_space, qp_type, 0)
            .expect("room");
        self.model.ids.insert(id, (channel, 0));
        let (listens, binds) = (self.rng.chance(0.3), self.rng.chance(0.5));
        if !listens && !binds {
            return;
        }
        self.cma.bind_addr(id, addr("10.0.0.1", 0)).expect("idle");
        self.model.on_device.insert(id);
        if listens {
            self.cma.listen(id, 0).expect("bound");
            let query = self.cma.query(id).expect("exists");
            let port = query.local.expect("bound").port();
            self.model.listeners.push((id, port, datagrams));
        } else if datagrams {
            self.model.datagrams.insert(id);
        }
    }

    /// A failed resolution queues an event, as often as one likes; its status is the tag.
    fn fail_resolution(&mut self) {
        let Some(id) = self.pick_id() else { return };
        let resolved = self
            .cma
            .resolve_addr(NOW, id, None, addr("10.0.0.2", 1), SECOND);
        if let Err(error) = resolved {
            let gone = error.errno() == Errno::ENXIO;
            assert_eq!(gone, self.model.dead.contains(&id), "{error}");
            return;
        }
        let lookup = self.cma.poll_lookup().expect("just asked");
        let tag = self.tag();
        let errno = Errno(i32::try_from(tag).expect("small"));
        self.cma
            .handle_lookup(NOW, lookup.token, Err(LookupError::Failed(errno)));
        self.model.queue(id, Tag::Number(tag.into()), false);
    }

    /// A request queues an event on a listener; its queue pair, or with datagrams its private data, is the tag.
    fn request(&mut self) {
        let listeners = self.model.listeners.clone();
        let Some((listener, port, datagrams)) = self.pick(&listeners) else {
            return;
        };
        let tag = self.tag();
        let mad = match datagrams {
            true => datagram_request(tag, port),
            false => request(tag, port),
        };
        self.cma.handle_mad(NOW, &peer_av(), &mad);
        self.model.queue(listener, Tag::Number(tag.into()), true);
    }

    fn inject(&mut self) {
        let Some(id) = self.pick_id() else { return };
        let tag = u64::from(self.tag());
        match self.cma.inject_event(NOW, id, EventKind::USER, 0, tag) {
            Ok(()) => self.model.queue(id, Tag::Number(tag), false),
            Err(error) => {
                assert_eq!(error.errno(), Errno::ENXIO);
                assert!(self.model.dead.contains(&id));
            }
        }
    }

    fn join(&mut self) {
        let datagrams: Vec<Id> = self.model.datagrams.iter().copied().collect();
        let Some(id) = self.pick(&datagrams) else {
            return;
        };
        let group = self.pick(&["239.1.1.1", "ff15::1"]).expect("two");
        let kind = match self.rng.chance(0.8) {
            true => JoinKind::FullMember,
            false => JoinKind::SendOnlyFullMember,
        };
        let tag = u64::from(self.tag());
        let mc = self
            .cma
            .join_multicast(NOW, id, addr(group, 0), kind, tag)
            .expect("bound");
        let group = (kind == JoinKind::FullMember).then(|| ip(group));
        self.model.join(mc, id, tag, group);
    }

    fn leave(&mut self) {
        let joins: Vec<McId> = self.model.joins.keys().copied().collect();
        let Some(mc) = self.pick(&joins) else { return };
        let dead = self.model.dead.contains(&self.model.joins[&mc].id);
        match self.cma.leave_multicast(NOW, mc) {
            Ok(reported) => assert_eq!((reported, dead), (self.model.leave(mc), false)),
            Err(error) => assert_eq!((error.errno(), dead), (Errno::ENXIO, true)),
        }
    }

    /// The driver does what it is asked for, and keeps the outcomes for itself.
    fn drive(&mut self) {
        while let Some(membership) = self.cma.poll_membership() {
            let group = membership.group;
            assert_eq!(membership.ifindex, 2);
            if membership.action == MembershipAction::Leave {
                self.is_member.remove(&group);
                continue;
            }
            let joined = self.rng.chance(0.8);
            if joined {
                assert!(self.is_member.insert(group), "joined twice");
            }
            self.current.insert(group, membership.token);
            self.outcomes.push((membership.token, group, joined));
        }
    }

    /// One outcome is told, in whatever order.
    fn outcome(&mut self) {
        self.drive();
        if self.outcomes.is_empty() {
            return;
        }
        let at = self.rng.index(self.outcomes.len());
        let (token, group, joined) = self.outcomes.swap_remove(at);
        let outcome = if joined { Ok(()) } else { Err(Errno::ENOMEM) };
        self.cma.handle_membership(NOW, token, outcome);
        if self.current.get(&group) == Some(&token) && self.model.is_wanted(group) {
            self.current.remove(&group);
            self.model.outcome(group, joined);
        } else {
            self.stale += 1;
        }
        assert_eq!(
            self.cma.counters().get(Counter::MembershipsStale),
            self.stale
        );
    }

    /// A group that nobody wants any more has no question that counts.
    fn forget_questions(&mut self) {
        let model = &self.model;
        self.current.retain(|group, _| model.is_wanted(*group));
    }

    /// The device goes and comes back.
    fn remove_device(&mut self) {
        let mut devices = usual_devices(1);
        let loopback = devices.split_off(1);
        self.cma.set_devices(NOW, loopback);
        let told = self.told(Tag::Removal);
        self.model.remove_device(&told);
        self.cma.set_devices(NOW, usual_devices(1));
    }

    /// The address goes and comes back.
    fn change_address(&mut self) {
        let mut devices = usual_devices(1);
        devices[0].addresses.remove(0);
        self.cma.set_devices(NOW, devices);
        let told = self.told(Tag::AddressChange);
        for id in &told {
            self.model.queue(*id, Tag::AddressChange, false);
        }
        let all: BTreeSet<Id> = told.iter().copied().collect();
        assert_eq!((all.len(), &all), (told.len(), &self.model.on_device));
        self.cma.set_devices(NOW, usual_devices(1));
    }

    /// Who gets an event now because of the devices: those whose queues have grown. The order among identifiers is the
    /// manager's.
    fn told(&self, tag: Tag) -> Vec<Id> {
        let mut told: Vec<Id> = self.model.on_device.iter().copied().collect();
        told.sort_unstable_by_key(|id| id.index());
        for id in &told {
            let queued = |channel| self.model.queues[channel].iter();
            let (channel, _) = &self.model.ids[id];
            let before = queued(channel)
                .filter(|waiting| waiting.owner == *id)
                .count();
            let after = self.cma.query(*id).expect("exists").events_queued;
            assert_eq!(after, before + 1, "{id:?}, {tag:?}");
        }
        told
    }

    fn migrate(&mut self) {
        let Some(id) = self.pick_id() else { return };
        let to = self.pick_channel();
        let reported = self.cma.migrate_id(id, to).expect("both exist");
        assert_eq!(
            reported,
            self.model.migrate(id, to),
            "events reported by {id:?}"
        );
    }

    fn destroy_id(&mut self) {
        let Some(id) = self.pick_id() else { return };
        let reported = self.cma.destroy_id(NOW, id).expect("exists");
        assert_eq!(
            reported,
            self.model.destroy(id),
            "events reported by {id:?}"
        );
    }

    fn destroy_channel(&mut self) {
        let channel = self.pick_channel();
        self.cma.destroy_channel(NOW, channel).expect("exists");
        let on_it: Vec<Id> = self
            .model
            .ids
            .iter()
            .filter(|(_, (at, _))| *at == channel)
            .map(|(id, _)| *id)
            .collect();
        for id in on_it {
            self.model.destroy(id);
        }
        let left = self.model.queues.remove(&channel).expect("exists");
        assert!(
            left.is_empty(),
            "an event of an identifier elsewhere: {left:?}"
        );
        self.create_channel();
    }

    fn take(&mut self) {
        let channel = self.pick_channel();
        self.take_from(channel);
    }

    fn take_from(&mut self, channel: ChannelId) -> Option<Event> {
        let event = self.cma.next_event(channel);
        let queue = self.model.queues.get_mut(&channel).expect("exists");
        let expected = if queue.is_empty() {
            None
        } else {
            Some(queue.remove(0))
        };
        let seen = event.as_ref().map(|event| (event.owner(), tag_of(event)));
        assert_eq!(
            seen,
            expected.map(|waiting| (waiting.owner, waiting.tag)),
            "on {channel:?}"
        );
        let (event, waiting) = (event?, expected?);
        self.model.ids.get_mut(&waiting.owner).expect("exists").1 += 1;
        assert_eq!(event.multicast, waiting.join);
        if let Some(mc) = waiting.join {
            self.model.joins.get_mut(&mc).expect("exists").reported += 1;
        }
        if waiting.is_request {
            // The child is on the channel that its request came from.
            assert_eq!(self.cma.channel_of(event.id), Ok(channel));
            self.model
                .take_child(event.id, channel, waiting.child_is_dead);
        }
        Some(event)
    }

    fn tell(&mut self) {
        while let Some((channel, count)) = self.cma.poll_ready() {
            let queue = self.model.queues.get_mut(&channel).expect("exists");
            let untold = queue.iter_mut().filter(|waiting| !waiting.told);
            let untold: Vec<_> = untold.map(|waiting| waiting.told = true).collect();
            assert_eq!(untold.len(), count, "woken on {channel:?}");
        }
        let untold = self
            .model
            .queues
            .values()
            .flatten()
            .filter(|waiting| !waiting.told)
            .count();
        assert_eq!(untold, 0, "nobody was woken for them");
    }

    fn step(&mut self) {
        match self.rng.below(100) {
            0..10 => self.create_id(),
            10..22 => self.fail_resolution(),
            22..34 => self.request(),
            34..38 => self.inject(),
            38..46 => self.join(),
            46..50 => self.leave(),
            50..56 => self.outcome(),
            56..58 => self.change_address(),
            58..59 => self.remove_device(),
            59..70 => self.migrate(),
            70..75 => self.destroy_id(),
            75..77 => self.destroy_channel(),
            77..85 => self.tell(),
            _ => {
                self.take();
            }
        }
        self.forget_questions();
        while self.cma.poll_transmit().is_some() {}
        for (channel, queue) in &self.model.queues {
            assert_eq!(self.cma.queued(*channel), queue.len());
        }
    }

    /// Takes everything, destroys everything: nothing is left on either side.
    fn finish(mut self) {
        let channels: Vec<_> = self.model.queues.keys().copied().collect();
        for channel in channels {
            while self.take_from(channel).is_some() {}
        }
        assert_eq!(self.cma.len(), self.model.ids.len());
        while let Some(id) = self.pick_id() {
            let reported = self.cma.destroy_id(NOW, id);
            assert_eq!(reported, Ok(self.model.destroy(id)));
        }
        assert_eq!(
            (
                self.cma.len(),
                self.cma.connections(),
                self.cma.ports().count()
            ),
            (0, 0, 0)
        );
        self.drive();
        assert_eq!(
            self.is_member,
            BTreeSet::new(),
            "memberships without members"
        );
    }
}

fn tag_of(event: &Event) -> Tag {
    let number = |number: u32| Tag::Number(number.into());
    match event.kind {
        EventKind::CONNECT_REQUEST => match &event.param {
            EventParam::Conn(param) => number(param.qpn.get()),
            other => {
                let data = other.private_data().expect("a field").as_bytes();
                number(u32::from_be_bytes(*data.first_chunk().expect("180 bytes")))
            }
        },
        EventKind::ADDR_ERROR => number(event.status.unsigned_abs()),
        EventKind::MULTICAST_JOIN | EventKind::MULTICAST_ERROR => Tag::Number(event.context),
        EventKind::USER => match event.param {
            EventParam::User(arg) => Tag::Number(arg),
            ref other => panic!("{other:?}"),
        },
        EventKind::DEVICE_REMOVAL => Tag::Removal,
        EventKind::ADDR_CHANGE => Tag::AddressChange,
        other => panic!("no operation leads to {other}"),
    }
}

fn peer_av() -> AddressVector {
    AddressVector::new(Gid::from_ip(ip("10.0.0.1")), Gid::from_ip(ip("10.0.0.2")))
}

fn header() -> [u8; IpCmHeader::LEN] {
    let av = peer_av();
    let header = IpCmHeader {
        source_port: 1,
        source: av.remote.to_ip(),
        destination: av.local.to_ip(),
    };
    let mut bytes = [0; IpCmHeader::LEN];
    header.emit(&mut bytes);
    bytes
}

fn datagram_request(tag: u32, port: u16) -> [u8; MAD_LEN] {
    let data = [&header()[..], &tag.to_be_bytes()].concat();
    let req = SidrReq {
        request_id: CommId(tag),
        service_id: ServiceId::for_port(PortSpace::UDP, port),
        private_data: PrivateData::from_slice(&data).expect("40 bytes"),
        ..SidrReq::default()
    };
    let mut mad = [0; MAD_LEN];
    req.emit(TransactionId(u64::from(tag)), &mut mad);
    mad
}

/// A request of the peer, which has a queue pair and a comm ID for each.
fn request(tag: u32, port: u16) -> [u8; MAD_LEN] {
    let av = peer_av();
    let bytes = header();
    let req = Req {
        local_comm_id: CommId(tag),
        local_ca_guid: Guid(0xBEEF),
        local_qpn: Qpn::new(tag).expect("24 bits"),
        service_id: ServiceId::for_port(PortSpace::TCP, port),
        path_mtu: oarlock_wire::Mtu::MTU_1024,
        primary: PathFields {
            local_gid: av.remote,
            remote_gid: av.local,
            ..PathFields::default()
        },
        private_data: PrivateData::from_slice(&bytes).expect("36 bytes"),
        ..Req::default()
    };
    let mut mad = [0; MAD_LEN];
    req.emit(TransactionId(u64::from(tag)), &mut mad);
    mad
}

/// R-MIG-1, R-MIG-2, R-MIG-4, R-MIG-5, R-MIG-7, R-MIG-9, R-ADDR-4: random operations agree with the reference.
#[test]
fn random_migrations_agree_with_the_reference() {
    const HAPPENED: [Counter; 6] = [
        Counter::RequestsQueued,
        Counter::EventsInjected,
        Counter::EventsMigrated,
        Counter::AddressChanges,
        Counter::MulticastErrors,
        Counter::MembershipsStale,
    ];
    let mut counts = [0; HAPPENED.len()];
    for_each_seed(200, |seed| {
        let mut bench = Bench::new(seed);
        for _ in 0..400 {
            bench.step();
        }
        for (count, counter) in counts.iter_mut().zip(HAPPENED) {
            *count += bench.cma.counters().get(counter);
        }
        bench.finish();
    });
    // The operations that the model is about did happen.
    assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
}
