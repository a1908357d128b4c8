//! Migration against a reference model: random operations on several channels, and every event comes out exactly once, on the
//! right channel, in the right place, and is told of exactly once.

use super::world::{SECOND, addr, conn, ip, usual_devices};
use crate::{
    ChannelId, Cma, Config, Errno, Event, EventKind, Id, LookupError, PortSpace, QpType, Seed,
};
use oarlock_sim::{Rng, for_each_seed};
use oarlock_wire::{
    AddressVector, CommId, Gid, Guid, IpCmHeader, MAD_LEN, PathFields, PrivateData, Qpn, Req,
    ServiceId, Time, TransactionId,
};
use std::collections::HashMap;

/// An event as the model sees it: no two have the same tag.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    owner: Id,
    tag: u32,
    is_request: bool,
    told: bool,
}

/// The reference: queues as plain lists.
#[derive(Default)]
struct Model {
    queues: HashMap<ChannelId, Vec<Waiting>>,
    /// Identifiers that the caller knows: their channel, and how many of their events were handed out.
    ids: HashMap<Id, (ChannelId, u32)>,
    listeners: Vec<(Id, u16)>,
}

impl Model {
    fn queue(&mut self, owner: Id, tag: u32, is_request: bool) {
        let (channel, _) = self.ids[&owner];
        let waiting = Waiting {
            owner,
            tag,
            is_request,
            told: false,
        };
        self.queues.get_mut(&channel).expect("exists").push(waiting);
    }

    fn migrate(&mut self, id: Id, to: ChannelId) -> u32 {
        let (from, reported) = self.ids[&id];
        let queue = self.queues.get_mut(&from).expect("exists");
        let (mut moving, staying): (Vec<_>, Vec<_>) =
            queue.drain(..).partition(|waiting| waiting.owner == id);
        *queue = staying;
        for waiting in &mut moving {
            waiting.told &= from == to;
        }
        self.queues.get_mut(&to).expect("exists").extend(moving);
        self.ids.insert(id, (to, reported));
        reported
    }

    fn destroy(&mut self, id: Id) -> u32 {
        let (channel, reported) = self.ids.remove(&id).expect("exists");
        self.queues
            .get_mut(&channel)
            .expect("exists")
            .retain(|waiting| waiting.owner != id);
        self.listeners.retain(|(listener, _)| *listener != id);
        reported
    }
}

struct Bench {
    cma: Cma,
    model: Model,
    rng: Rng,
    next_tag: u32,
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
        let id = self
            .cma
            .create_id(channel, PortSpace::TCP, QpType::RC, 0)
            .expect("room");
        self.model.ids.insert(id, (channel, 0));
        if self.rng.chance(0.3) {
            self.cma.bind_addr(id, addr("10.0.0.1", 0)).expect("idle");
            self.cma.listen(id, 0).expect("bound");
            let port = self
                .cma
                .query(id)
                .expect("exists")
                .local
                .expect("bound")
                .port();
            self.model.listeners.push((id, port));
        }
    }

    /// A failed resolution queues an event, as often as one likes; its status is the tag.
    fn fail_resolution(&mut self) {
        let Some(id) = self.pick_id() else { return };
        if self
            .cma
            .resolve_addr(NOW, id, None, addr("10.0.0.2", 1), SECOND)
            .is_err()
        {
            return;
        }
        let lookup = self.cma.poll_lookup().expect("just asked");
        let tag = self.tag();
        let errno = Errno(i32::try_from(tag).expect("small"));
        self.cma
            .handle_lookup(NOW, lookup.token, Err(LookupError::Failed(errno)));
        self.model.queue(id, tag, false);
    }

    /// A request queues an event on a listener; its queue pair is the tag.
    fn request(&mut self) {
        let listeners = self.model.listeners.clone();
        let Some((listener, port)) = self.pick(&listeners) else {
            return;
        };
        let tag = self.tag();
        self.cma.handle_mad(NOW, &peer_av(), &request(tag, port));
        self.model.queue(listener, tag, true);
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
        if waiting.is_request {
            // The child is on the channel that its request came from.
            assert_eq!(self.cma.channel_of(event.id), Ok(channel));
            self.model.ids.insert(event.id, (channel, 0));
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
            10..35 => self.fail_resolution(),
            35..50 => self.request(),
            50..70 => self.migrate(),
            70..75 => self.destroy_id(),
            75..77 => self.destroy_channel(),
            77..85 => self.tell(),
            _ => self.take(),
        }
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
    }
}

fn tag_of(event: &Event) -> u32 {
    match event.kind {
        EventKind::CONNECT_REQUEST => conn(event).qpn.get(),
        EventKind::ADDR_ERROR => event.status.unsigned_abs(),
        other => panic!("no operation leads to {other}"),
    }
}

fn peer_av() -> AddressVector {
    AddressVector::new(Gid::from_ip(ip("10.0.0.1")), Gid::from_ip(ip("10.0.0.2")))
}

/// A request of the peer, which has a queue pair and a comm ID for each.
fn request(tag: u32, port: u16) -> [u8; MAD_LEN] {
    let av = peer_av();
    let header = IpCmHeader {
        source_port: 1,
        source: av.remote.to_ip(),
        destination: av.local.to_ip(),
    };
    let mut bytes = [0; IpCmHeader::LEN];
    header.emit(&mut bytes);
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

/// R-MIG-1, R-MIG-2, R-MIG-4, R-MIG-5, R-MIG-7, R-MIG-9: random operations agree with the reference.
#[test]
fn random_migrations_agree_with_the_reference() {
    let mut requests = 0;
    for_each_seed(200, |seed| {
        let mut bench = Bench::new(seed);
        for _ in 0..400 {
            bench.step();
        }
        requests += bench.cma.counters().get(crate::Counter::RequestsQueued);
        bench.finish();
    });
    // The operations that the model is about did happen.
    assert!(requests > 0);
}
