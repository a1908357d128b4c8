//! Many connections at once under loss, duplication and reordering.

use super::world::{PORT, SECOND, World, addr, param};
use crate::{ChannelId, Config, ConnectParam, EventKind, Id};
use oarlock_sim::{NetworkConfig, Rng, for_each_seed};
use std::collections::HashMap;
use std::time::Duration;

/// What the users of one host do: the active side connects and disconnects, the passive side accepts, and both migrate at
/// random moments. Counts the terminal events of each identifier.
struct Users {
    channels: Vec<Vec<ChannelId>>,
    rng: Rng,
    established: HashMap<(usize, Id), u32>,
    ended: HashMap<(usize, Id), u32>,
    timewaits: HashMap<(usize, Id), u32>,
}

const CONNECTIONS: u32 = 32;

impl Users {
    fn step(&mut self, world: &mut World) {
        for host in 0..2 {
            for channel in self.channels[host].clone() {
                while let Some(event) = world.hosts[host].cma.next_event(channel) {
                    self.act(world, host, event.id, event.kind);
                }
            }
        }
    }

    fn act(&mut self, world: &mut World, host: usize, id: Id, kind: EventKind) {
        let now = world.now();
        let key = (host, id);
        let cma = &mut world.hosts[host].cma;
        match kind {
            EventKind::CONNECT_REQUEST => {
                // The peer may have given up in the meantime.
                let qpn = super::world::qpn(0x1000 + id.index());
                let answer = ConnectParam {
                    qpn,
                    ..ConnectParam::default()
                };
                let _accepted = cma.accept(now, id, Some(u64::from(id.index())), answer);
            }
            EventKind::CONNECT_RESPONSE => {
                if cma.establish(now, id).is_ok() {
                    *self.established.entry(key).or_default() += 1;
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
                *self.ended.entry(key).or_default() += 1
            }
            EventKind::TIMEWAIT_EXIT => {
                *self.timewaits.entry(key).or_default() += 1;
                assert_eq!(
                    self.ended.get(&key),
                    Some(&1),
                    "TIMEWAIT_EXIT follows DISCONNECTED"
                );
            }
            other => panic!("{other}"),
        }
        let to = self.channels[host][self.rng.index(self.channels[host].len())];
        cma.migrate_id(id, to).expect("both exist");
    }
}

/// Gives the number of connections that came about.
fn storm(seed: u64, loss: f64) -> usize {
    let config = Config {
        connect_deadline: Some(60 * SECOND),
        ..Config::default()
    };
    let mut world = World::with(&[config.clone(), config]);
    world.b().listener(addr("0.0.0.0", PORT), 0);
    let actives: Vec<Id> = (0..CONNECTIONS)
        .map(|_| world.resolved(addr("10.0.0.2", PORT)))
        .collect();
    let faulty = loss > 0.0;
    world.set_faults(NetworkConfig {
        loss,
        duplication: if faulty { 0.1 } else { 0.0 },
        reorder: if faulty { 0.1 } else { 0.0 },
        ..NetworkConfig::default()
    });
    let channels = world.hosts.iter_mut().map(|host| {
        (0..3)
            .map(|_| host.cma.create_channel().expect("room"))
            .chain([host.channel])
            .collect()
    });
    let mut users = Users {
        channels: channels.collect(),
        rng: Rng::new(seed),
        established: HashMap::new(),
        ended: HashMap::new(),
        timewaits: HashMap::new(),
    };
    for (n, id) in (0x100..).zip(&actives) {
        let now = world.now();
        world.a().cma.connect(now, *id, param(n)).expect("a path");
    }
    // Everybody connects or gives up; the active side disconnects; everybody comes out of TIMEWAIT.
    for _ in 0..400 {
        world.run(Duration::from_millis(250));
        users.step(&mut world);
    }
    let now = world.now();
    for id in &actives {
        world
            .a()
            .cma
            .disconnect(now, *id)
            .expect("there is a connection");
    }
    for _ in 0..800 {
        world.run(Duration::from_millis(250));
        users.step(&mut world);
    }
    for id in &actives {
        assert_eq!(
            users.ended.get(&(0, *id)),
            Some(&1),
            "one end for each connection"
        );
        let count = users.established.get(&(0, *id)).copied().unwrap_or(0);
        assert!(
            count <= 1 && (faulty || count == 1),
            "established {count} times"
        );
    }
    assert!(
        users.established.values().all(|count| *count == 1),
        "ESTABLISHED comes once"
    );
    assert!(
        users.ended.values().all(|count| *count == 1),
        "one end for each side"
    );
    assert!(
        users.timewaits.values().all(|count| *count == 1),
        "TIMEWAIT_EXIT comes once"
    );
    for host in 0..2 {
        let ids: Vec<Id> = world.hosts[host].cma.ids().collect();
        for id in ids {
            let key = (host, id);
            let agreed = !users.established.contains_key(&key) || users.ended.contains_key(&key);
            assert!(agreed, "{id:?} of host {host} is still up");
            let now = world.now();
            world.hosts[host].cma.destroy_id(now, id).expect("exists");
        }
    }
    world.run(100 * SECOND);
    world.assert_nothing_left();
    assert!(loss < 0.05 || world.lost() > 0, "nothing was lost");
    users
        .established
        .keys()
        .filter(|(host, _)| *host == 0)
        .count()
}

#[test]
fn both_sides_agree_or_give_up_and_nothing_is_left() {
    const LOSSES: [f64; 4] = [0.0, 0.01, 0.05, 0.2];
    for_each_seed(100, |seed| {
        let came_about = LOSSES.map(|loss| storm(seed, loss));
        // The deadline of a minute lets a lost message be sent again a dozen times.
        assert_eq!(came_about[0], 32);
        assert!(
            came_about.iter().all(|count| *count >= 28),
            "{came_about:?}"
        );
    });
}
