//! A host that crashes and comes back again and again, with the same GUID, address and queue pairs, over a bad network.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use oarlock_sim::{NetworkConfig, Rng, for_each_seed};
use oarlock_wire::{Qpn, Time, earliest};

use super::support::{A, B, Pair, accept_params, config, connect_params};
use crate::{AcceptParams, Cm, ConnId, ConnectParams, DropReason, Event, Seed};

const QUEUE_PAIRS: u32 = 8;
const LIVES: u64 = 5;
/// Long enough for the longest memory of an earlier life: a REP that is repeated 15 times.
const PATIENCE: Duration = Duration::from_secs(400);

/// The side that crashes. It connects each of its queue pairs until it is connected, and never disconnects.
#[derive(Default)]
struct Crashing {
    attempts: BTreeMap<ConnId, u32>,
    connected: BTreeMap<u32, ConnId>,
    again: BTreeSet<(Time, u32)>,
}

impl Crashing {
    fn try_again(&mut self, pair: &mut Pair, id: ConnId) {
        let now = pair.now();
        pair.cms[A].destroy(now, id);
        if let Some(qpn) = self.attempts.remove(&id) {
            self.connected.retain(|_, connected| *connected != id);
            self.again.insert((now + Duration::from_secs(1), qpn));
        }
    }

    fn on_event(&mut self, pair: &mut Pair, event: Event) {
        let (now, id) = (pair.now(), event.id());
        match event {
            Event::RepReceived { .. } => {
                pair.cms[A].establish(now, id, &[]).expect("a reply waits");
                self.connected.insert(self.attempts[&id], id);
            }
            Event::RejReceived { .. } | Event::ReqError { .. } => self.try_again(pair, id),
            Event::DreqReceived { .. } => {
                // The other side found the connection stale, or gave its REP up.
                pair.cms[A].reply_disconnect(now, id, &[]).expect("asked");
                self.try_again(pair, id);
            }
            other => panic!("{other:?} was not asked for"),
        }
    }

    fn connect_what_is_due(&mut self, pair: &mut Pair) {
        let now = pair.now();
        while let Some((_, qpn)) = self.again.first().copied().filter(|(at, _)| *at <= now) {
            self.again.pop_first();
            let params = ConnectParams {
                local_qpn: Qpn::truncate(qpn),
                ..connect_params()
            };
            let id = pair.cms[A].connect(now, params).expect("correct");
            self.attempts.insert(id, qpn);
        }
    }
}

/// The side that lives on. It accepts all and tidies up.
#[derive(Default)]
struct Lasting {
    name: BTreeMap<ConnId, u32>,
    connected: BTreeMap<ConnId, u32>,
    next_qpn: u32,
}

impl Lasting {
    fn on_event(&mut self, pair: &mut Pair, event: Event) {
        let (now, id) = (pair.now(), event.id());
        let cm = &mut pair.cms[B];
        match event {
            Event::ReqReceived { req, .. } => {
                self.name.insert(id, req.local_qpn.get());
                self.next_qpn += 1;
                let params = AcceptParams {
                    local_qpn: Qpn::truncate(0x8000 + self.next_qpn),
                    ..accept_params()
                };
                cm.accept(now, id, params).expect("a request waits");
            }
            Event::RtuReceived { .. } => {
                self.connected.insert(id, self.name[&id]);
            }
            Event::DreqReceived { .. } => {
                self.connected.remove(&id);
                cm.reply_disconnect(now, id, &[]).expect("asked");
            }
            Event::DrepReceived { .. } | Event::DreqError { .. } => {
                self.connected.remove(&id);
            }
            Event::RepError { .. } | Event::RejReceived { .. } | Event::TimewaitExit { .. } => {
                self.connected.remove(&id);
                cm.destroy(now, id);
            }
            other => panic!("{other:?} was not asked for"),
        }
    }
}

/// Says how many messages of earlier lives were found to be stale.
fn storm(seed: u64, loss: f64) -> u64 {
    let network = NetworkConfig {
        loss,
        duplication: loss / 2.0,
        reorder: loss / 2.0,
        delay: Duration::from_micros(5)..=Duration::from_micros(300),
        ..NetworkConfig::default()
    };
    let mut pair = Pair::with([config(A), config(B)], network, seed);
    let mut rng = Rng::new(seed);
    let (mut crashing, mut lasting) = (Crashing::default(), Lasting::default());
    let mut crashes: Vec<Time> = (1..LIVES)
        .map(|_| Time::ZERO + Duration::from_millis(rng.below(60_000)))
        .collect();
    crashes.sort_unstable();
    let end = *crashes.last().expect("several lives") + PATIENCE;
    crashing.again = (0..QUEUE_PAIRS).map(|n| (Time::ZERO, 0x100 + n)).collect();
    for _ in 0..100_000 {
        crashing.connect_what_is_due(&mut pair);
        for side in [A, B] {
            pair.drain(side);
            while let Some(event) = pair.events[side].pop_front() {
                match side {
                    A => crashing.on_event(&mut pair, event),
                    _ => lasting.on_event(&mut pair, event),
                }
                pair.drain(side);
            }
        }
        let timers = earliest(pair.cms[A].poll_timeout(), pair.cms[B].poll_timeout());
        let plans = earliest(
            crashing.again.first().map(|(at, _)| *at),
            crashes.first().copied(),
        );
        let Some(next) = earliest(pair.network.next_delivery(), earliest(timers, plans)) else {
            break;
        };
        assert!(
            next < end,
            "seed {seed}, loss {loss}: no end\n{:?}",
            pair.cms
        );
        if crashes.first() == Some(&next) {
            crashes.remove(0);
            pair.clock.advance_to(next);
            let life = u8::try_from(crashes.len()).expect("few lives");
            pair.cms[A] = Cm::new(config(A), Seed([0x40 | life; 32]));
            pair.events[A].clear();
            crashing = Crashing {
                again: (0..QUEUE_PAIRS).map(|n| (next, 0x100 + n)).collect(),
                ..Crashing::default()
            };
            continue;
        }
        pair.one_input(next);
    }
    // Both sides agree, queue pair by queue pair, and nothing of the earlier lives is left.
    let ours: BTreeSet<u32> = crashing.connected.keys().copied().collect();
    let theirs: Vec<u32> = lasting.connected.values().copied().collect();
    assert_eq!(ours.len() as u32, QUEUE_PAIRS, "seed {seed}, loss {loss}");
    assert_eq!(theirs.len() as u32, QUEUE_PAIRS, "seed {seed}, loss {loss}");
    assert_eq!(theirs.into_iter().collect::<BTreeSet<_>>(), ours);
    for side in [A, B] {
        let cm = &pair.cms[side];
        assert_eq!(cm.connections() as u32, QUEUE_PAIRS, "side {side}");
        assert_eq!(cm.half_open(), 0);
        assert_eq!(cm.footprint().1, 0, "no timer is left");
    }
    let stale = pair
        .cms
        .map(|cm| cm.counters().dropped(DropReason::StaleConnection));
    stale.into_iter().sum()
}

/// Public fault 45: stale connections of earlier lives are found and ended, and never one of the present life.
#[test]
fn a_host_that_restarts_again_and_again_is_connected_in_the_end_and_both_sides_agree() {
    for_each_seed(75, |seed| {
        let stale: u64 = [0.0, 0.01, 0.05, 0.2]
            .into_iter()
            .map(|loss| storm(seed, loss))
            .sum();
        assert!(stale > 0, "nothing was stale");
    });
}
