//! Many identifiers at once under loss, duplication and reordering: connections and datagrams, slow users, alternate paths,
//! multicast groups, injected events, migrations, addresses and a device that go.

use super::world::{PORT, SECOND, World, addr, device, ip, loopback, param, usual_devices};
use crate::{
    AlternatePath, AlternatePaths, ChannelId, Config, ConnectParam, Event, EventKind, Id, JoinKind,
    QpType,
};
use oarlock_sim::{NetworkConfig, Rng, for_each_seed};
use oarlock_wire::{Gid, Time};
use std::collections::{HashMap, HashSet};
use std::time::Duration;

type Key = (usize, Id);

/// What the users of both hosts do, and how often each identifier was told what.
struct Users {
    channels: Vec<Vec<ChannelId>>,
    rng: Rng,
    /// Requests that a slow user answers later.
    slow: Vec<(Time, Id)>,
    established: HashMap<Key, u32>,
    ended: HashMap<Key, u32>,
    timewaits: HashMap<Key, u32>,
    removed: HashSet<Key>,
    injected: HashMap<Key, u32>,
    joined: HashMap<Key, u32>,
}

const CONNECTIONS: usize = 16;
const DATAGRAMS: usize = 16;
/// Longer than the peer waits for an answer before it asks again.
const SLOW: Duration = Duration::from_secs(6);

impl Users {
    fn new(world: &mut World, seed: u64) -> Self {
        let channels = world.hosts.iter_mut().map(|host| {
            (0..3)
                .map(|_| host.cma.create_channel().expect("room"))
                .chain([host.channel])
                .collect()
        });
        Self {
            channels: channels.collect(),
            rng: Rng::new(seed),
            slow: Vec::new(),
            established: HashMap::new(),
            ended: HashMap::new(),
            timewaits: HashMap::new(),
            removed: HashSet::new(),
            injected: HashMap::new(),
            joined: HashMap::new(),
        }
    }

    fn run(&mut self, world: &mut World, steps: usize) {
        for _ in 0..steps {
            world.run(Duration::from_millis(250));
            let now = world.now();
            for (at, id) in std::mem::take(&mut self.slow) {
                match at <= now {
                    true => accept(world, id),
                    false => self.slow.push((at, id)),
                }
            }
            for host in 0..2 {
                memberships(world, host);
                for channel in self.channels[host].clone() {
                    while let Some(event) = world.hosts[host].cma.next_event(channel) {
                        self.act(world, host, &event);
                    }
                }
            }
        }
    }

    fn act(&mut self, world: &mut World, host: usize, event: &Event) {
        let now = world.now();
        let id = event.id;
        let key = (host, id);
        assert!(
            !self.removed.contains(&key),
            "{} after DEVICE_REMOVAL",
            event.kind
        );
        let cma = &mut world.hosts[host].cma;
        match event.kind {
            EventKind::CONNECT_REQUEST if self.rng.chance(0.2) => self.slow.push((now + SLOW, id)),
            EventKind::CONNECT_REQUEST => accept(world, id),
            EventKind::CONNECT_RESPONSE => {
                if cma.establish(now, id).is_ok() {
                    *self.established.entry(key).or_default() += 1;
                    let path = AlternatePath {
                        local_gid: Gid::from_ip(ip("fd00::1")),
                        remote_gid: Gid::from_ip(ip("fd00::2")),
                        ..AlternatePath::default()
                    };
                    cma.load_alternate_path(now, id, path)
                        .expect("established, and the first");
                }
            }
            EventKind::ESTABLISHED => *self.established.entry(key).or_default() += 1,
            EventKind::DISCONNECTED => {
                *self.ended.entry(key).or_default() += 1;
                assert!(
                    !self.timewaits.contains_key(&key),
                    "DISCONNECTED comes before TIMEWAIT_EXIT"
                );
                cma.disconnect(now, id).expect("there is a connection");
            }
            EventKind::UNREACHABLE | EventKind::REJECTED => {
                *self.ended.entry(key).or_default() += 1;
            }
            EventKind::TIMEWAIT_EXIT => {
                *self.timewaits.entry(key).or_default() += 1;
                assert_eq!(
                    self.ended.get(&key),
                    Some(&1),
                    "TIMEWAIT_EXIT follows DISCONNECTED"
                );
            }
            EventKind::DEVICE_REMOVAL => {
                self.removed.insert(key);
            }
            EventKind::USER => *self.injected.get_mut(&key).expect("was injected") -= 1,
            EventKind::MULTICAST_JOIN => *self.joined.get_mut(&key).expect("has joined") -= 1,
            EventKind::ADDR_CHANGE => {}
            other => panic!("{other}"),
        }
        let cma = &mut world.hosts[host].cma;
        let to = self.channels[host][self.rng.index(self.channels[host].len())];
        cma.migrate_id(id, to).expect("both exist");
        if self.rng.chance(0.1) && cma.inject_event(now, id, EventKind::USER, 0, 0).is_ok() {
            *self.injected.entry(key).or_default() += 1;
        }
    }

    fn join(&mut self, world: &mut World, id: Id) {
        let now = world.now();
        let group = addr("239.7.7.7", 0);
        world
            .a()
            .cma
            .join_multicast(now, id, group, JoinKind::FullMember, 0)
            .expect("bound");
        *self.joined.entry((0, id)).or_default() += 1;
    }
}

/// B accepts; its peer may have given up, or its device gone, in the meantime.
fn accept(world: &mut World, id: Id) {
    let now = world.now();
    let answer = ConnectParam {
        qpn: super::world::qpn(0x1000 + id.index()),
        ..ConnectParam::default()
    };
    let _accepted = world
        .b()
        .cma
        .accept(now, id, Some(u64::from(id.index())), answer);
}

fn memberships(world: &mut World, host: usize) {
    let now = world.now();
    let cma = &mut world.hosts[host].cma;
    while let Some(membership) = cma.poll_membership() {
        if membership.action == crate::MembershipAction::Join {
            cma.handle_membership(now, membership.token, Ok(()));
        }
    }
}

/// B's device loses an address for a moment.
fn change_address(world: &mut World) {
    let now = world.now();
    let mut devices = usual_devices(2);
    devices[0].addresses.remove(0);
    world.b().cma.set_devices(now, devices);
    world.b().cma.set_devices(now, usual_devices(2));
}

/// B's device goes, and comes back under another number.
fn replace_device(world: &mut World) {
    let now = world.now();
    let devices = vec![
        device(5, 1500, &["10.0.0.2", "fd00::2", "fe80::2"]),
        loopback(1),
    ];
    world.hosts[1].devices.clone_from(&devices);
    world.b().cma.set_devices(now, devices);
}

/// Gives the number of connections and of datagram services that came about.
fn storm(seed: u64, loss: f64) -> [usize; 2] {
    let config = Config {
        connect_deadline: Some(60 * SECOND),
        alternate_paths: AlternatePaths::Accept,
        ..Config::default()
    };
    let mut world = World::with(&[config.clone(), config]);
    world.b().listener(addr("0.0.0.0", PORT), 0);
    world.b().ud_listener(addr("0.0.0.0", PORT), 0);
    let mut actives: Vec<Id> = (0..CONNECTIONS)
        .map(|_| world.resolved(addr("10.0.0.2", PORT)))
        .collect();
    for _ in 0..DATAGRAMS {
        let id = world.a().ud_id();
        world.resolve(0, id, None, addr("10.0.0.2", PORT));
        actives.push(id);
    }
    let mut users = Users::new(&mut world, seed);
    for _ in 0..4 {
        let id = world.a().ud_id();
        let bound = world.a().cma.bind_addr(id, addr("10.0.0.1", 0));
        bound.expect("free");
        users.join(&mut world, id);
    }
    let faulty = loss > 0.0;
    world.set_faults(NetworkConfig {
        loss,
        duplication: if faulty { 0.1 } else { 0.0 },
        reorder: if faulty { 0.1 } else { 0.0 },
        ..NetworkConfig::default()
    });
    for (n, id) in (0x100..).zip(&actives) {
        let now = world.now();
        world.a().cma.connect(now, *id, param(n)).expect("a path");
    }
    // Everybody connects or gives up; the active side disconnects; everybody comes out of TIMEWAIT.
    let before = users.rng.index(100);
    users.run(&mut world, before);
    change_address(&mut world);
    users.run(&mut world, 400 - before);
    let came_about = [&actives[..CONNECTIONS], &actives[CONNECTIONS..]].map(|ids| {
        let count = |id: &&Id| users.established.contains_key(&(0, **id));
        ids.iter().filter(count).count()
    });
    if seed.is_multiple_of(3) {
        replace_device(&mut world);
        users.run(&mut world, 4);
        assert!(!users.removed.is_empty());
    }
    for id in &actives {
        let now = world.now();
        world
            .a()
            .cma
            .disconnect(now, *id)
            .expect("there is a connection, or there was");
    }
    users.run(&mut world, 800);
    users.judge(&world, &actives, faulty);
    for host in 0..2 {
        let ids: Vec<Id> = world.hosts[host].cma.ids().collect();
        for id in ids {
            let now = world.now();
            world.hosts[host].cma.destroy_id(now, id).expect("exists");
        }
    }
    world.run(100 * SECOND);
    world.assert_nothing_left();
    assert!(loss < 0.05 || world.lost() > 0, "nothing was lost");
    came_about
}

impl Users {
    fn judge(&self, world: &World, actives: &[Id], faulty: bool) {
        for id in actives {
            let key = (0, *id);
            let count = self.established.get(&key).copied().unwrap_or(0);
            assert!(
                count <= 1 && (faulty || count == 1),
                "established {count} times"
            );
            let ended = self.ended.get(&key).copied().unwrap_or(0);
            let is_datagram = world.hosts[0].cma.query(*id).expect("exists").qp_type == QpType::UD;
            // A datagram service that was found has no end.
            let expected = if is_datagram { 1 - count } else { 1 };
            assert_eq!(ended, expected, "ends of {id:?}");
        }
        let once = |counts: &HashMap<Key, u32>| counts.values().all(|count| *count == 1);
        assert!(once(&self.established), "ESTABLISHED comes once");
        assert!(once(&self.ended), "one end for each side");
        assert!(once(&self.timewaits), "TIMEWAIT_EXIT comes once");
        let none = |counts: &HashMap<Key, u32>| counts.values().all(|count| *count == 0);
        assert!(none(&self.injected), "an injected event was lost");
        assert!(none(&self.joined), "a join has no outcome");
        for host in 0..2 {
            for id in world.hosts[host].cma.ids() {
                let key = (host, id);
                let query = world.hosts[host].cma.query(id).expect("exists");
                let is_up = self.established.contains_key(&key) && query.qp_type != QpType::UD;
                let is_over = self.ended.contains_key(&key) || self.removed.contains(&key);
                assert!(!is_up || is_over, "{id:?} of host {host} is still up");
            }
        }
    }
}

/// Public fault 69: whatever does not arrive, nothing of a connection is left, timewait included.
#[test]
fn both_sides_agree_or_give_up_and_nothing_is_left() {
    const LOSSES: [f64; 4] = [0.0, 0.01, 0.05, 0.2];
    for_each_seed(100, |seed| {
        let came_about = LOSSES.map(|loss| storm(seed, loss));
        // The deadline of a minute lets a lost message be sent again a dozen times.
        assert_eq!(came_about[0], [CONNECTIONS, DATAGRAMS]);
        assert!(
            came_about.iter().flatten().all(|count| *count >= 13),
            "{came_about:?}"
        );
    });
}
