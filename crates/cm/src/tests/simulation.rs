//! Storms of connections, resolutions, patience and alternate paths under loss, duplication and reordering, with invariants.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use oarlock_sim::{NetworkConfig, Rng, for_each_seed};
use oarlock_wire::cm::{AlternatePath, SidrReq};
use oarlock_wire::{AprStatus, IbTimeout, Qpn, RejReason, SidrStatus, Time, earliest};

use super::support::{A, B, Pair, SERVICE, accept_params, av, config, connect_params};
use crate::{
    AcceptParams, AlternatePathParams, ConnId, ConnectParams, Event, MessageName, SidrParams,
    SidrReplyParams,
};

/// What an MRA asks for: 1 s.
const PATIENCE: IbTimeout = IbTimeout::truncate(18);

const CONNECTIONS: u32 = 32;
const RESOLUTIONS: u32 = 12;
const CUT_AT: Duration = Duration::from_millis(900);
const HEAL_AT: Duration = Duration::from_secs(25);
/// Longer than a resolution of the peer can still be repeated.
const FORGET_RESOLUTIONS_AFTER: Duration = Duration::from_secs(90);
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
    /// What to do later.
    plans: Vec<(Time, ConnId, Plan)>,
    /// Connections with a LAP of ours under way.
    loading: BTreeSet<ConnId>,
    /// How often a LAP of ours ended with an APR, without one, and with its connection.
    laps: [u32; 3],
    /// The status with which each resolution was answered (serving side: each status that it was ever answered with).
    statuses: BTreeMap<u32, BTreeSet<u8>>,
    /// Resolutions that nobody answered.
    unresolved: BTreeSet<u32>,
    /// Resolutions of ours that are under way.
    resolving: BTreeMap<ConnId, u32>,
    destroyed: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Plan {
    Disconnect,
    LoadPath,
    AnswerPath,
    Accept,
    Establish,
    Forget,
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
            loading: BTreeSet::new(),
            laps: [0; 3],
            statuses: BTreeMap::new(),
            unresolved: BTreeSet::new(),
            resolving: BTreeMap::new(),
            destroyed: 0,
        }
    }

    fn connected(&mut self, now: Time, id: ConnId) {
        let name = self.name[&id];
        self.belief.insert(name, Belief::Connected);
        self.ever_connected.insert(name);
        self.plan(now, 15_000, id, Plan::Disconnect);
        if self.rng.chance(0.4) {
            self.plan(now, 2000, id, Plan::LoadPath);
        }
    }

    fn plan(&mut self, now: Time, within_millis: u64, id: ConnId, plan: Plan) {
        let at = now + Duration::from_millis(self.rng.below(within_millis));
        self.plans.push((at, id, plan));
    }

    fn destroy(&mut self, pair: &mut Pair, id: ConnId) {
        pair.cms[self.side].destroy(pair.clock.now(), id);
        if let Some(name) = self.name.remove(&id) {
            self.belief.insert(name, Belief::Over);
        }
        self.plans.retain(|(_, planned, _)| *planned != id);
        if self.loading.remove(&id) {
            self.laps[2] += 1;
        }
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
                    let patience = self.rng.chance(0.2);
                    if patience {
                        cm.send_mra(now, id, PATIENCE).expect("a request waits");
                    }
                    // Who asks for patience takes its time.
                    self.plan(now, if patience { 8000 } else { 10 }, id, Plan::Accept);
                }
            }
            Event::RepReceived { .. } => {
                let patience = self.rng.chance(0.2);
                if patience {
                    cm.send_mra(now, id, PATIENCE).expect("a reply waits");
                }
                self.plan(now, if patience { 8000 } else { 10 }, id, Plan::Establish);
            }
            Event::LapReceived { .. } => {
                let patience = self.rng.chance(0.3);
                if patience {
                    cm.send_mra(now, id, PATIENCE).expect("a LAP waits");
                }
                self.plan(now, if patience { 8000 } else { 10 }, id, Plan::AnswerPath);
            }
            Event::AprReceived { .. } => {
                assert!(self.loading.remove(&id), "one LAP, one outcome");
                self.laps[0] += 1;
            }
            Event::LapError { .. } => {
                assert!(self.loading.remove(&id), "one LAP, one outcome");
                self.laps[1] += 1;
            }
            Event::SidrReqReceived { req, .. } => self.on_sidr_req(pair, id, &req),
            Event::SidrRepReceived { rep, .. } => {
                let name = self
                    .resolving
                    .remove(&id)
                    .expect("one request, one outcome");
                let first = self.statuses.insert(name, [rep.status.0].into());
                assert_eq!(first, None);
                self.destroy(pair, id);
            }
            Event::SidrReqError { .. } => {
                let name = self
                    .resolving
                    .remove(&id)
                    .expect("one request, one outcome");
                self.unresolved.insert(name);
                self.destroy(pair, id);
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

    fn on_sidr_req(&mut self, pair: &mut Pair, id: ConnId, req: &SidrReq) {
        let now = pair.now();
        let cm = &mut pair.cms[self.side];
        let name = req.private_data.as_bytes()[0].into();
        if self.rng.chance(0.1) {
            cm.drop_request(now, id).expect("a request waits");
            return;
        }
        let status = if self.rng.chance(0.1) {
            self.destroy(pair, id);
            SidrStatus::REJECT
        } else {
            let status = SidrStatus(self.rng.below(6) as u8);
            cm.sidr_reply(now, id, SidrReplyParams::refusal(status))
                .expect("a request waits");
            self.plans
                .push((now + FORGET_RESOLUTIONS_AFTER, id, Plan::Forget));
            status
        };
        self.statuses.entry(name).or_default().insert(status.0);
    }

    fn next_plan(&self) -> Option<Time> {
        self.plans.iter().map(|(at, ..)| *at).min()
    }

    fn act(&mut self, pair: &mut Pair) {
        let now = pair.now();
        for (_, id, plan) in self
            .plans
            .extract_if(.., |(at, ..)| *at <= now)
            .collect::<Vec<_>>()
        {
            let cm = &mut pair.cms[self.side];
            // The peer may have been first in each of these.
            match plan {
                Plan::Disconnect => {
                    let _peer_was_first = cm.disconnect(now, id, &[]).is_err();
                }
                Plan::LoadPath => {
                    let path = AlternatePathParams::new(AlternatePath::default());
                    if cm.load_alternate_path(now, id, path).is_ok() {
                        assert!(self.loading.insert(id), "one LAP at a time");
                    }
                }
                Plan::AnswerPath => {
                    let status = AprStatus(self.rng.below(4) as u8);
                    let _connection_over =
                        cm.answer_alternate_path(now, id, status, &[], &[]).is_err();
                }
                Plan::Accept => {
                    let local_qpn = Qpn::truncate(0x8000 + self.name[&id]);
                    let params = AcceptParams {
                        local_qpn,
                        ..accept_params()
                    };
                    let _request_over = cm.accept(now, id, params).is_err();
                }
                Plan::Establish => {
                    if cm.establish(now, id, &[]).is_ok() {
                        self.connected(now, id);
                    }
                }
                Plan::Forget => self.destroy(pair, id),
            }
        }
    }
}

/// Every third time the network is cut for a while, which is shorter than the patience of every exchange.
fn is_cut(seed: u64) -> bool {
    seed.is_multiple_of(3)
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
    for name in 0..RESOLUTIONS {
        let now = pair.now();
        let params = SidrParams {
            private_data: vec![name as u8],
            ..SidrParams::new(av(A), SERVICE)
        };
        let id = pair.cms[A].sidr_request(now, params).expect("correct");
        programs[A].resolving.insert(id, name);
    }
    let mut cuts = VecDeque::new();
    if is_cut(seed) {
        cuts.extend([(Time::ZERO + CUT_AT, true), (Time::ZERO + HEAL_AT, false)]);
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
        if let Some((at, cut)) = cuts.pop_front_if(|(at, _)| *at <= next) {
            pair.clock.advance_to(at);
            if cut {
                pair.network.partition(A, B);
            } else {
                pair.network.heal(A, B);
            }
            continue;
        }
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
    if loss == 0.0 && !is_cut(seed) {
        assert_eq!(programs[A].ever_connected, programs[B].ever_connected);
    }
    // Each resolution has one outcome, and an answer is one that was given.
    for name in 0..RESOLUTIONS {
        let got = programs[A].statuses.get(&name);
        assert_ne!(
            got.is_some(),
            programs[A].unresolved.contains(&name),
            "resolution {name}"
        );
        if let Some(got) = got {
            let given = &programs[B].statuses[&name];
            assert!(
                got.is_subset(given),
                "resolution {name}: {got:?} of {given:?}"
            );
        }
    }
    if loss == 0.0 {
        assert_eq!(programs[A].unresolved.len(), 0);
    }
    for side in [A, B] {
        assert!(programs[side].loading.is_empty(), "one LAP, one outcome");
        assert!(programs[side].plans.is_empty());
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
    for_each_seed(300, |seed| {
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
    let network = pair.network.counters();
    assert!(network.lost > 20 && network.reordered > 5 && network.partitioned > 20);
    let [a, b] = &pair.cms;
    for message in [MessageName::Mra, MessageName::Lap, MessageName::Apr] {
        assert!(a.counters().received(message) > 0, "{message} to A");
        assert!(b.counters().received(message) > 0, "{message} to B");
    }
    for (cm, message) in [
        (a, MessageName::SidrReq),
        (a, MessageName::Lap),
        (a, MessageName::Req),
        (b, MessageName::Rep),
        (a, MessageName::Dreq),
    ] {
        assert!(cm.counters().retried(message) > 0, "{message} was repeated");
    }
    for (cm, message) in [
        (b, MessageName::SidrReq),
        (b, MessageName::Lap),
        (b, MessageName::Req),
        (a, MessageName::Rep),
        (b, MessageName::Dreq),
    ] {
        assert!(cm.counters().duplicate(message) > 0, "{message} came twice");
    }
}

#[test]
fn every_outcome_of_a_lap_occurs_in_a_storm() {
    let mut laps = [0; 3];
    for seed in 0..12 {
        let (_, programs) = storm(seed, 0.2);
        for program in programs {
            for (sum, count) in laps.iter_mut().zip(program.laps) {
                *sum += count;
            }
        }
    }
    assert!(
        laps.iter().all(|count| *count > 0),
        "answered, given up, over: {laps:?}"
    );
}

#[test]
fn the_same_seed_gives_the_same_storm() {
    let (first, _) = storm(3, 0.2);
    let (second, _) = storm(3, 0.2);
    assert_eq!(first.ladder.to_string(), second.ladder.to_string());
}
