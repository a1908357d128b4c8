//! Storms under loss, duplication and reordering, with invariants.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use oarlock_sim::{NetworkConfig, Rng, for_each_seed};
use oarlock_wire::{Qpn, RejReason, Time, earliest};

use super::support::{A, B, Pair, accept_params, config, connect_params};
use crate::{AcceptParams, ConnId, ConnectParams, Event, MessageName};

const CONNECTIONS: u32 = 32;
/// Everything has either happened or been given up by then: 16 waits each for REQ, REP, DREQ, and an MRA.
const END: Duration = Duration::from_secs(1000);

/// What one side believes about a connection, by the pair of queue pairs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Belief {
    Pending,
    Connected,
    Over,
}

/// A program on one side: it accepts or rejects, establishes, disconnects after a while, and destroys what is over.
struct Program {
    side: usize,
    rng: Rng,
    /// The active side's queue pair names a connection on both sides.
    name: BTreeMap<ConnId, u32>,
    belief: BTreeMap<u32, Belief>,
    ever_connected: BTreeSet<u32>,
    /// When to disconnect.
    plans: Vec<(Time, ConnId)>,
    destroyed: u64,
}

impl Program {
    fn new(side: usize, seed: u64) -> Self {
        Self {
            side,
            rng: Rng::new(seed ^ (side as u64) << 32),
            name: BTreeMap::new(),
            belief: BTreeMap::new(),
            ever_connected: BTreeSet::new(),
            plans: Vec::new(),
            destroyed: 0,
        }
    }

    fn connected(&mut self, now: Time, id: ConnId) {
        let name = self.name[&id];
        self.belief.insert(name, Belief::Connected);
        self.ever_connected.insert(name);
        self.plans
            .push((now + Duration::from_millis(self.rng.below(3000)), id));
    }

    fn destroy(&mut self, pair: &mut Pair, id: ConnId) {
        pair.cms[self.side].destroy(pair.clock.now(), id);
        if let Some(name) = self.name.remove(&id) {
            self.belief.insert(name, Belief::Over);
        }
        self.plans.retain(|(_, planned)| *planned != id);
        self.destroyed += 1;
    }

    fn on_event(&mut self, pair: &mut Pair, event: Event) {
        let now = pair.now();
        let id = event.id();
        let cm = &mut pair.cms[self.side];
        match event {
            Event::ReqReceived { req, .. } => {
                let name = req.local_qpn.get();
                self.name.insert(id, name);
                self.belief.insert(name, Belief::Pending);
                if self.rng.chance(0.05) {
                    cm.drop_request(now, id).expect("a request waits");
                    self.name.remove(&id);
                } else if self.rng.chance(0.05) {
                    cm.reject(now, id, RejReason::CONSUMER_DEFINED, &[], &[])
                        .expect("a request waits");
                    self.destroy(pair, id);
                } else {
                    if self.rng.chance(0.2) {
                        cm.send_mra(now, id, oarlock_wire::IbTimeout::truncate(18))
                            .expect("a request waits");
                    }
                    let local_qpn = Qpn::truncate(0x8000 + name);
                    cm.accept(
                        now,
                        id,
                        AcceptParams {
                            local_qpn,
                            ..accept_params()
                        },
                    )
                    .expect("a request waits");
                }
            }
            Event::RepReceived { .. } => {
                cm.establish(now, id, &[]).expect("a reply waits");
                self.connected(now, id);
            }
            Event::RtuReceived { .. } => self.connected(now, id),
            Event::DreqReceived { .. } => {
                cm.reply_disconnect(now, id, &[])
                    .expect("the peer disconnects");
                self.belief.insert(self.name[&id], Belief::Over);
            }
            Event::DrepReceived { .. } | Event::DreqError { .. } => {
                self.belief.insert(self.name[&id], Belief::Over);
            }
            Event::ReqError { .. }
            | Event::RepError { .. }
            | Event::RejReceived { .. }
            | Event::TimewaitExit { .. } => self.destroy(pair, id),
            Event::MraReceived { .. } => {}
            other => panic!("{other:?} was not asked for"),
        }
    }

    fn next_plan(&self) -> Option<Time> {
        self.plans.iter().map(|(at, _)| *at).min()
    }

    fn act(&mut self, pair: &mut Pair) {
        let now = pair.now();
        for (_, id) in self
            .plans
            .extract_if(.., |(at, _)| *at <= now)
            .collect::<Vec<_>>()
        {
            // The peer may have been first.
            if pair.cms[self.side].disconnect(now, id, &[]).is_ok() {
                continue;
            }
        }
    }
}

fn storm(seed: u64, loss: f64) -> (Pair, [Program; 2]) {
    let network = NetworkConfig {
        loss,
        duplication: if loss > 0.0 { 0.05 } else { 0.0 },
        reorder: if loss > 0.0 { 0.1 } else { 0.0 },
        delay: Duration::from_micros(5)..=Duration::from_micros(300),
        extra_delay: Duration::from_micros(1)..=Duration::from_millis(20),
    };
    let mut pair = Pair::with([config(A), config(B)], network, seed);
    let mut programs = [Program::new(A, seed), Program::new(B, seed)];
    for n in 0..CONNECTIONS {
        let name = 0x100 + n;
        let now = pair.now();
        let id = pair.cms[A]
            .connect(
                now,
                ConnectParams {
                    local_qpn: Qpn::truncate(name),
                    ..connect_params()
                },
            )
            .expect("correct");
        programs[A].name.insert(id, name);
        programs[A].belief.insert(name, Belief::Pending);
    }
    for _ in 0..200_000 {
        for side in [A, B] {
            pair.drain(side);
            while let Some(event) = pair.events[side].pop_front() {
                programs[side].on_event(&mut pair, event);
                pair.drain(side);
            }
        }
        let timers = earliest(pair.cms[A].poll_timeout(), pair.cms[B].poll_timeout());
        let plans = earliest(programs[A].next_plan(), programs[B].next_plan());
        let Some(next) = earliest(pair.network.next_delivery(), earliest(timers, plans)) else {
            return (pair, programs);
        };
        assert!(
            next <= Time::ZERO + END,
            "still busy at the end: {:?} {:?}",
            pair.cms,
            programs.map(|p| p.name)
        );
        // One input, one drain: the programs see what an input did before there is another one.
        if !pair.one_input(next) {
            for program in &mut programs {
                program.act(&mut pair);
            }
        }
    }
    panic!("the storm does not end:\n{}", pair.ladder);
}

fn check(seed: u64, loss: f64) {
    let (pair, programs) = storm(seed, loss);
    let rejected_or_dropped = |name: &u32| !programs[A].ever_connected.contains(name);
    for (name, belief) in &programs[A].belief {
        assert_eq!(
            *belief,
            Belief::Over,
            "the active side is done with {name:#x}"
        );
    }
    for (name, belief) in &programs[B].belief {
        assert_ne!(
            *belief,
            Belief::Connected,
            "the passive side is done with {name:#x}"
        );
        if *belief == Belief::Pending {
            assert!(
                rejected_or_dropped(name),
                "the passive side forgot {name:#x}"
            );
        }
    }
    // The passive side is connected only to somebody who is connected to it.
    assert!(
        programs[B]
            .ever_connected
            .is_subset(&programs[A].ever_connected)
    );
    if loss == 0.0 {
        assert_eq!(programs[A].ever_connected, programs[B].ever_connected);
    }
    for side in [A, B] {
        let cm = &pair.cms[side];
        assert_eq!(cm.connections(), 0, "side {side}");
        assert_eq!(cm.half_open(), 0, "side {side}");
        assert_eq!(
            cm.footprint(),
            ([0; 4], 0),
            "side {side}: no comm id, no index entry and no timer is left"
        );
    }
}

#[test]
fn both_sides_agree_or_both_have_given_up_and_nothing_leaks() {
    for_each_seed(75, |seed| {
        for loss in [0.0, 0.01, 0.05, 0.2] {
            check(seed, loss);
        }
    });
}

#[test]
fn a_storm_really_loses_repeats_and_connects() {
    let (pair, programs) = storm(3, 0.2);
    let connected = programs[B].ever_connected.len();
    assert!(
        connected > CONNECTIONS as usize / 2,
        "{connected} connected"
    );
    assert!(pair.network.counters().lost > 20 && pair.network.counters().reordered > 5);
    let [a, b] = &pair.cms;
    for (cm, message) in [
        (a, MessageName::Req),
        (b, MessageName::Rep),
        (a, MessageName::Dreq),
    ] {
        assert!(cm.counters().retried(message) > 0, "{message} was repeated");
    }
    for (cm, message) in [
        (b, MessageName::Req),
        (a, MessageName::Rep),
        (b, MessageName::Dreq),
    ] {
        assert!(cm.counters().duplicate(message) > 0, "{message} came twice");
    }
}

#[test]
fn the_same_seed_gives_the_same_storm() {
    let (first, _) = storm(3, 0.2);
    let (second, _) = storm(3, 0.2);
    assert_eq!(first.ladder.to_string(), second.ladder.to_string());
}
