//! Migration against a reference model: first one thread that knows the order of everything, then many that only know
//! that every event must come once.

use crate::support::*;
use oarlock_hostd::MemWire;
use oarlock_hostd::service::ServiceConfig;
use oarlock_rdmacm::{Event, EventChannel, Host, IbTimeout, Identifier, PortSpace};
use std::collections::{HashMap, VecDeque};
use std::net::{Ipv4Addr, SocketAddr};

const CHANNELS: usize = 4;

/// SplitMix64 (Steele, Lea, Flood 2014).
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) % limit as u64) as usize
    }
}

/// The seeds of a run: one given by `OARLOCK_SEED`, else as many as `OARLOCK_SEEDS` says.
pub(crate) fn seeds(default: u64) -> Vec<u64> {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
    match number("OARLOCK_SEED") {
        Some(seed) => vec![seed],
        None => (1..=number("OARLOCK_SEEDS").unwrap_or(default)).collect(),
    }
}

/// How far an identifier of the model is, as far as its own queue of events tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Fresh,
    Addressed,
    Routed,
    /// Active: REQ sent.
    Asked,
    /// Passive: request fetched.
    Requested,
    /// Passive: REP sent. Active: REP received, not confirmed.
    Accepted,
    Established,
    Ended,
}

struct Member {
    id: Identifier,
    channel: usize,
    stage: Stage,
    /// The other end, once both are known.
    peer: Option<usize>,
}

/// What should come out of the channels.
struct Model {
    host: Host,
    seed: u64,
    channels: Vec<EventChannel>,
    members: Vec<Member>,
    listener: Identifier,
    listener_channel: usize,
    address: SocketAddr,
    /// By channel: member (none: the listener's request of that active member) and event name.
    queues: Vec<VecDeque<(Who, &'static str)>>,
    delivered: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    Member(usize),
    /// A request at the listener, sent by this member.
    RequestOf(usize),
}

/// The model does not know of TIMEWAIT_EXIT, which comes when it likes: here after minutes.
fn with_long_timewait() -> Host {
    let mut config = ServiceConfig::default();
    config.cma.packet_life_time = IbTimeout::truncate(26);
    let addresses = [Ipv4Addr::LOCALHOST.into()];
    Host::private_with(&MemWire::new(), &addresses, config).expect("a private host")
}

impl Model {
    fn new(seed: u64) -> Self {
        let host = with_long_timewait();
        let channels: Vec<EventChannel> = (0..CHANNELS).map(|_| channel(&host)).collect();
        let (listener, address) = listener(&channels[0]);
        Self {
            host,
            seed,
            channels,
            members: Vec::new(),
            listener,
            listener_channel: 0,
            address,
            queues: vec![VecDeque::new(); CHANNELS],
            delivered: 0,
        }
    }

    fn expect(&mut self, member: usize, event: &'static str) {
        let channel = self.members[member].channel;
        self.queues[channel].push_back((Who::Member(member), event));
    }

    /// The service has queued what the model has.
    fn settle(&self) {
        wait_queued(
            &self.host,
            self.queues.iter().map(|queue| queue.len() as u32).sum(),
        );
    }

    fn create(&mut self, channel: usize) {
        self.members.push(Member {
            id: Identifier::new(&self.channels[channel], PortSpace::TCP).unwrap(),
            channel,
            stage: Stage::Fresh,
            peer: None,
        });
    }

    /// Does the next thing in a member's life.
    fn advance(&mut self, member: usize) {
        let Member {
            id, stage, peer, ..
        } = &self.members[member];
        let (id, peer) = (id.clone(), *peer);
        let number = member as u32;
        let next = match stage {
            Stage::Fresh => {
                id.resolve_addr(None, self.address, LONG).unwrap();
                self.expect(member, "ADDR_RESOLVED");
                Stage::Addressed
            }
            Stage::Addressed => {
                id.resolve_route(LONG).unwrap();
                self.expect(member, "ROUTE_RESOLVED");
                Stage::Routed
            }
            Stage::Routed => {
                id.connect(&external(number).private_data(number.to_le_bytes()))
                    .unwrap();
                let at = self.listener_channel;
                self.queues[at].push_back((Who::RequestOf(member), "CONNECT_REQUEST"));
                Stage::Asked
            }
            Stage::Requested => {
                id.accept(&external(number)).unwrap();
                let active = peer.expect("a request has a sender");
                self.expect(active, "CONNECT_RESPONSE");
                self.members[active].stage = Stage::Accepted;
                // The passive side goes on with the active one's confirmation.
                self.settle();
                self.members[active].id.establish().unwrap();
                self.members[active].stage = Stage::Established;
                self.expect(member, "ESTABLISHED");
                Stage::Established
            }
            Stage::Established => {
                let peer = peer.expect("an established connection has two ends");
                id.disconnect().unwrap();
                self.expect(peer, "DISCONNECTED");
                self.settle();
                self.members[peer].id.disconnect().unwrap();
                self.expect(member, "DISCONNECTED");
                self.members[peer].stage = Stage::Ended;
                Stage::Ended
            }
            same @ (Stage::Asked | Stage::Accepted | Stage::Ended) => *same,
        };
        self.members[member].stage = next;
        self.settle();
    }

    fn migrate(&mut self, member: usize, to: usize) {
        self.members[member].id.migrate(&self.channels[to]).unwrap();
        self.move_queued(self.members[member].channel, to, |who| {
            who == Who::Member(member)
        });
        self.members[member].channel = to;
    }

    fn migrate_listener(&mut self, to: usize) {
        self.listener.migrate(&self.channels[to]).unwrap();
        let from = self.listener_channel;
        self.move_queued(from, to, |who| matches!(who, Who::RequestOf(_)));
        self.listener_channel = to;
    }

    /// To the tail of the new queue, in order.
    fn move_queued(&mut self, from: usize, to: usize, is_moved: impl Fn(Who) -> bool) {
        let (moved, kept): (VecDeque<_>, VecDeque<_>) = self.queues[from]
            .drain(..)
            .partition(|(who, _)| is_moved(*who));
        self.queues[from] = kept;
        self.queues[to].extend(moved);
    }

    /// A new channel in place of an old one: everybody moves, the old one is dropped.
    fn replace(&mut self, at: usize) {
        let old = std::mem::replace(&mut self.channels[at], channel(&self.host));
        for member in 0..self.members.len() {
            if self.members[member].channel == at {
                self.migrate(member, at);
            }
        }
        if self.listener_channel == at {
            self.migrate_listener(at);
        }
        assert_empty(&old);
    }

    fn read(&mut self, at: usize) {
        let event = self.channels[at].try_event().unwrap();
        let seed = self.seed;
        let Some((who, name)) = self.queues[at].pop_front() else {
            assert!(
                event.is_none(),
                "seed {seed}: {} came twice or to the wrong channel",
                event.unwrap()
            );
            return;
        };
        let event = event.unwrap_or_else(|| panic!("seed {seed}: {name} of {who:?} is lost"));
        self.delivered += 1;
        assert_eq!(
            event.name().strip_prefix("RDMA_CM_EVENT_"),
            Some(name),
            "seed {seed}"
        );
        match who {
            Who::Member(member) => {
                assert_eq!(event.id(), &self.members[member].id, "seed {seed}: {name}");
            }
            Who::RequestOf(active) => {
                let Event::ConnectRequest {
                    id,
                    private_data: Some(data),
                    ..
                } = event
                else {
                    panic!("seed {seed}: no request");
                };
                assert!(
                    data.is_padded_from(&(active as u32).to_le_bytes()),
                    "seed {seed}"
                );
                let passive = self.members.len();
                self.members.push(Member {
                    id,
                    channel: at,
                    stage: Stage::Requested,
                    peer: Some(active),
                });
                self.members[active].peer = Some(passive);
            }
        }
    }
}

/// R-MIG-1, R-MIG-2, R-MIG-7, R-MIG-9: random operations on four channels; every event comes out of the channel and at
/// the place that a model of four queues says.
#[test]
fn random_operations_agree_with_four_queues() {
    for seed in seeds(12) {
        let mut dice = Dice(seed);
        let mut model = Model::new(seed);
        for _ in 0..120 {
            let members = model.members.len();
            match dice.below(10) {
                0 | 1 if members < 24 => {
                    let channel = dice.below(CHANNELS);
                    model.create(channel);
                }
                2..=4 if members > 0 => {
                    let member = dice.below(members);
                    model.advance(member);
                }
                5 | 6 if members > 0 => {
                    let (member, to) = (dice.below(members), dice.below(CHANNELS));
                    model.migrate(member, to);
                }
                7 => {
                    let to = dice.below(CHANNELS);
                    model.migrate_listener(to);
                }
                8 if dice.below(4) == 0 => {
                    let at = dice.below(CHANNELS);
                    model.replace(at);
                }
                _ => {
                    let at = dice.below(CHANNELS);
                    model.read(at);
                }
            }
        }
        for at in 0..CHANNELS {
            while !model.queues[at].is_empty() {
                model.read(at);
            }
            model.read(at);
        }
        assert!(
            model.delivered > 10,
            "seed {seed}: only {} events",
            model.delivered
        );
    }
}

mod threads {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::sync::{Mutex, RwLock};
    use std::time::Instant;

    const CONNECTIONS: usize = 24;
    const MIGRATORS: usize = 2;
    /// What each end of a connection sees, once each.
    const ACTIVE: [&str; 4] = [
        "ADDR_RESOLVED",
        "ROUTE_RESOLVED",
        "CONNECT_RESPONSE",
        "DISCONNECTED",
    ];
    const PASSIVE: [&str; 3] = ["CONNECT_REQUEST", "ESTABLISHED", "DISCONNECTED"];

    struct World {
        channels: Vec<EventChannel>,
        listener: Identifier,
        /// Both ends of every connection, for the migrators.
        ids: RwLock<Vec<Identifier>>,
        /// By uid of the test (context): what was seen.
        seen: Mutex<HashMap<u64, Vec<&'static str>>>,
        events: AtomicUsize,
        migrations: AtomicUsize,
        ended: AtomicUsize,
        stop: AtomicBool,
    }

    impl World {
        fn is_over(&self) -> bool {
            self.stop.load(Ordering::SeqCst)
        }

        /// Holds the readers back, so that connections do not finish before they have been moved about.
        fn wait_for_migrators(&self) {
            while self.migrations.load(Ordering::SeqCst) < self.events.load(Ordering::SeqCst)
                && !self.is_over()
            {
                std::thread::yield_now();
            }
        }

        fn record(&self, event: &Event) -> u64 {
            let name = event.name().strip_prefix("RDMA_CM_EVENT_").unwrap();
            let key = match event {
                Event::ConnectRequest {
                    id,
                    private_data: Some(data),
                    ..
                } => {
                    // Passive ends are numbered by their peers.
                    let bytes = data.as_padded()[..4].try_into().unwrap();
                    let key = 1000 + u64::from(u32::from_le_bytes(bytes));
                    id.set_context(key);
                    key
                }
                other => other.id().context(),
            };
            if name != "TIMEWAIT_EXIT" {
                self.seen.lock().unwrap().entry(key).or_default().push(name);
            }
            key
        }

        fn handle(&self, event: Event) {
            let key = self.record(&event);
            match &event {
                Event::AddressResolved { id, .. } => id.resolve_route(LONG).unwrap(),
                Event::RouteResolved { id, .. } => {
                    let data = (key as u32).to_le_bytes();
                    id.connect(&external(key as u32).private_data(data))
                        .unwrap();
                }
                Event::ConnectRequest { id, .. } => {
                    self.ids.write().unwrap().push(id.clone());
                    id.accept(&external(key as u32)).unwrap();
                }
                Event::ConnectResponse { id, .. } => id.establish().unwrap(),
                // The passive side ends it, the active side answers.
                Event::Established { id, .. } => id.disconnect().unwrap(),
                Event::Disconnected { id, .. } => {
                    if key < 1000 {
                        id.disconnect().unwrap();
                    }
                    self.ended.fetch_add(1, Ordering::SeqCst);
                }
                Event::TimewaitExit { .. } => {}
                other => panic!("{other}"),
            }
        }

        fn read(&self, at: usize) {
            while !self.is_over() {
                self.wait_for_migrators();
                let tick = std::time::Duration::from_millis(10);
                if let Some(event) = self.channels[at].get_event_timeout(tick).unwrap() {
                    self.events.fetch_add(1, Ordering::SeqCst);
                    self.handle(event);
                }
            }
        }

        fn migrate(&self, mut dice: Dice) {
            while !self.is_over() {
                let to = &self.channels[dice.below(CHANNELS)];
                if dice.below(6) == 0 {
                    self.listener.migrate(to).unwrap();
                } else {
                    let ids = self.ids.read().unwrap();
                    let id = ids[dice.below(ids.len())].clone();
                    drop(ids);
                    id.migrate(to).unwrap();
                }
                self.migrations.fetch_add(1, Ordering::SeqCst);
                // Lets the connections get somewhere on two processors.
                std::thread::yield_now();
            }
        }
    }

    /// R-MIG-6: readers of four channels drive connections from beginning to end while two threads migrate identifiers and
    /// the listener at random. Every event of every identifier is seen exactly once, whichever reader saw it.
    #[test]
    fn every_event_is_seen_once_whoever_reads_and_migrates() {
        for seed in seeds(4) {
            let mut dice = Dice(seed);
            let host = private();
            let channels: Vec<EventChannel> = (0..CHANNELS).map(|_| channel(&host)).collect();
            let (listener, address) = listener(&channels[0]);
            let world = World {
                ids: RwLock::new(
                    (0..CONNECTIONS)
                        .map(|number| {
                            let at = &channels[dice.below(CHANNELS)];
                            let id = Identifier::new(at, PortSpace::TCP).unwrap();
                            id.set_context(number as u64);
                            id
                        })
                        .collect(),
                ),
                channels,
                listener,
                seen: Mutex::default(),
                events: AtomicUsize::new(0),
                migrations: AtomicUsize::new(0),
                ended: AtomicUsize::new(0),
                stop: AtomicBool::new(false),
            };
            std::thread::scope(|scope| {
                for at in 0..CHANNELS {
                    let world = &world;
                    scope.spawn(move || world.read(at));
                }
                for which in 0..MIGRATORS {
                    let dice = Dice(seed * 1000 + which as u64);
                    let world = &world;
                    scope.spawn(move || world.migrate(dice));
                }
                let actives: Vec<Identifier> = world.ids.read().unwrap()[..CONNECTIONS].to_vec();
                for id in &actives {
                    id.resolve_addr(None, address, LONG).unwrap();
                }
                let deadline = Instant::now() + LONG;
                while world.ended.load(Ordering::SeqCst) < 2 * CONNECTIONS
                    && Instant::now() < deadline
                {
                    std::thread::sleep(std::time::Duration::from_millis(5));
                }
                world.stop.store(true, Ordering::SeqCst);
            });
            let migrations = world.migrations.into_inner();
            assert!(
                migrations > CONNECTIONS,
                "seed {seed}: only {migrations} migrations"
            );
            let seen = world.seen.into_inner().unwrap();
            for number in 0..CONNECTIONS as u64 {
                for (key, expected) in [(number, &ACTIVE[..]), (1000 + number, &PASSIVE[..])] {
                    let mut names = seen.get(&key).cloned().unwrap_or_default();
                    let mut expected = expected.to_vec();
                    // Readers of two channels may finish with consecutive events in either order.
                    names.sort_unstable();
                    expected.sort_unstable();
                    assert_eq!(names, expected, "seed {seed}, end {key}");
                }
            }
        }
    }
}
