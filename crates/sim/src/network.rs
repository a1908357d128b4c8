//! A network of numbered hosts that loses, duplicates, delays and reorders.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap};
use std::ops::RangeInclusive;
use std::time::Duration;

use oarlock_wire::Time;

use crate::Rng;

/// How a [`Network`] treats what it carries. Probabilities are between 0.0 and 1.0.
#[derive(Clone, Debug)]
pub struct NetworkConfig {
    /// Probability that a datagram is lost.
    pub loss: f64,
    /// Probability that a datagram which is not lost arrives twice.
    pub duplication: f64,
    /// Probability that a datagram is held back so that later ones of its flow overtake it.
    pub reorder: f64,
    /// How long a datagram that overtakes nothing travels. Datagrams of one flow (one pair of hosts, one direction)
    /// stay in order unless [`reorder`](Self::reorder) strikes.
    pub delay: RangeInclusive<Duration>,
    /// How much longer a held-back datagram, or a second copy, travels.
    pub extra_delay: RangeInclusive<Duration>,
}

impl Default for NetworkConfig {
    /// A perfect network with a delay of 10 µs.
    fn default() -> Self {
        let delay = Duration::from_micros(10);
        Self {
            loss: 0.0,
            duplication: 0.0,
            reorder: 0.0,
            delay: delay..=delay,
            extra_delay: Duration::from_micros(1)..=Duration::from_millis(2),
        }
    }
}

/// What a [`Network`] did so far, in datagrams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct NetworkCounters {
    /// Given to [`Network::send`].
    pub sent: u64,
    /// Lost by chance.
    pub lost: u64,
    /// Swallowed by a partition.
    pub partitioned: u64,
    /// Second copies made.
    pub duplicated: u64,
    /// Held back behind later ones.
    pub reordered: u64,
    /// Handed out by [`Network::deliver`].
    pub delivered: u64,
}

/// A datagram that arrives.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Delivery<T> {
    /// The host that sent it.
    pub from: usize,
    /// The host it is for.
    pub to: usize,
    /// What was sent.
    pub datagram: T,
}

/// The network between hosts 0, 1, 2, ...; see the crate example.
#[derive(Debug)]
pub struct Network<T> {
    config: NetworkConfig,
    rng: Rng,
    /// Order of delivery: time, then order of sending.
    queue: BinaryHeap<Reverse<(Time, u64)>>,
    in_flight: HashMap<u64, Delivery<T>>,
    next_serial: u64,
    /// The latest delivery promised per flow, which keeps a flow in order.
    flow_end: BTreeMap<(usize, usize), Time>,
    cut: BTreeSet<(usize, usize)>,
    counters: NetworkCounters,
}

impl<T: Clone> Network<T> {
    /// A network with the faults of `config`, chosen by `seed`.
    #[must_use]
    pub fn new(config: NetworkConfig, seed: u64) -> Self {
        Self {
            config,
            rng: Rng::new(seed),
            queue: BinaryHeap::new(),
            in_flight: HashMap::new(),
            next_serial: 0,
            flow_end: BTreeMap::new(),
            cut: BTreeSet::new(),
            counters: NetworkCounters::default(),
        }
    }

    /// Sends one datagram. A partition swallows at sending time; what is already in flight still arrives.
    pub fn send(&mut self, now: Time, from: usize, to: usize, datagram: T) {
        self.counters.sent += 1;
        if self.cut.contains(&(from, to)) {
            self.counters.partitioned += 1;
            return;
        }
        if self.rng.chance(self.config.loss) {
            self.counters.lost += 1;
            return;
        }
        let in_order = now
            .saturating_add(self.rng.duration(&self.config.delay))
            .max(
                self.flow_end
                    .get(&(from, to))
                    .copied()
                    .unwrap_or(Time::ZERO),
            );
        let at = if self.rng.chance(self.config.reorder) {
            self.counters.reordered += 1;
            in_order.saturating_add(self.rng.duration(&self.config.extra_delay))
        } else {
            self.flow_end.insert((from, to), in_order);
            in_order
        };
        if self.rng.chance(self.config.duplication) {
            self.counters.duplicated += 1;
            let again = at.saturating_add(self.rng.duration(&self.config.extra_delay));
            self.enqueue(
                again,
                Delivery {
                    from,
                    to,
                    datagram: datagram.clone(),
                },
            );
        }
        self.enqueue(at, Delivery { from, to, datagram });
    }

    /// When the next datagram arrives; `None` when nothing is in flight.
    #[must_use]
    pub fn next_delivery(&self) -> Option<Time> {
        self.queue.peek().map(|Reverse((at, _))| *at)
    }

    /// Takes one datagram that has arrived by `now`.
    pub fn deliver(&mut self, now: Time) -> Option<Delivery<T>> {
        if self.next_delivery()? > now {
            return None;
        }
        let Reverse((_, serial)) = self.queue.pop()?;
        self.counters.delivered += 1;
        self.in_flight.remove(&serial)
    }

    /// Cuts the path between `a` and `b`, both ways.
    pub fn partition(&mut self, a: usize, b: usize) {
        self.cut.extend([(a, b), (b, a)]);
    }

    /// Cuts the path from `from` to `to`, this way only.
    pub fn partition_one_way(&mut self, from: usize, to: usize) {
        self.cut.insert((from, to));
    }

    /// Mends the path between `a` and `b`, both ways.
    pub fn heal(&mut self, a: usize, b: usize) {
        self.cut.remove(&(a, b));
        self.cut.remove(&(b, a));
    }

    /// Changes the faults from here on.
    pub fn set_config(&mut self, config: NetworkConfig) {
        self.config = config;
    }

    /// How many datagrams are in flight.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// What happened so far.
    #[must_use]
    pub fn counters(&self) -> NetworkCounters {
        self.counters
    }

    fn enqueue(&mut self, at: Time, delivery: Delivery<T>) {
        self.queue.push(Reverse((at, self.next_serial)));
        self.in_flight.insert(self.next_serial, delivery);
        self.next_serial += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(network: &mut Network<u32>) -> Vec<u32> {
        std::iter::from_fn(|| network.next_delivery().and_then(|at| network.deliver(at)))
            .map(|d| d.datagram)
            .collect()
    }

    fn config() -> NetworkConfig {
        NetworkConfig {
            delay: Duration::from_micros(1)..=Duration::from_millis(1),
            ..NetworkConfig::default()
        }
    }

    fn send_hundred(network: &mut Network<u32>) {
        for n in 0..100 {
            network.send(Time::from_nanos(u64::from(n)), 0, 1, n);
        }
    }

    #[test]
    fn a_random_delay_alone_keeps_a_flow_in_order() {
        let mut network = Network::new(config(), 5);
        send_hundred(&mut network);
        assert_eq!(drain(&mut network), (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn reordering_changes_the_order_and_loses_nothing() {
        let mut network = Network::new(
            NetworkConfig {
                reorder: 0.3,
                ..config()
            },
            5,
        );
        send_hundred(&mut network);
        let mut got = drain(&mut network);
        assert_ne!(got, (0..100).collect::<Vec<_>>());
        got.sort_unstable();
        assert_eq!(got, (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn every_datagram_is_lost_duplicated_or_delivered_and_counted() {
        let mut network = Network::new(
            NetworkConfig {
                loss: 0.2,
                duplication: 0.2,
                ..config()
            },
            11,
        );
        send_hundred(&mut network);
        let got = drain(&mut network).len() as u64;
        let counters = network.counters();
        assert!(counters.lost > 0 && counters.duplicated > 0);
        assert_eq!(got, counters.sent - counters.lost + counters.duplicated);
        assert_eq!(counters.delivered, got);
    }

    #[test]
    fn a_partition_swallows_until_it_heals() {
        let mut network = Network::new(NetworkConfig::default(), 1);
        network.partition(0, 1);
        network.send(Time::ZERO, 0, 1, 1);
        network.send(Time::ZERO, 1, 0, 2);
        network.send(Time::ZERO, 0, 2, 3);
        network.heal(0, 1);
        network.send(Time::ZERO, 0, 1, 4);
        network.partition_one_way(0, 1);
        network.send(Time::ZERO, 0, 1, 5);
        network.send(Time::ZERO, 1, 0, 6);
        assert_eq!(drain(&mut network), [3, 4, 6]);
        assert_eq!(network.counters().partitioned, 3);
    }

    #[test]
    fn the_same_seed_gives_the_same_run() {
        let run = |seed| {
            let mut network = Network::new(
                NetworkConfig {
                    loss: 0.1,
                    duplication: 0.1,
                    reorder: 0.1,
                    ..config()
                },
                seed,
            );
            send_hundred(&mut network);
            drain(&mut network)
        };
        assert_eq!(run(9), run(9));
        assert_ne!(run(9), run(10));
    }

    #[test]
    fn nothing_arrives_before_its_time() {
        let mut network = Network::new(NetworkConfig::default(), 1);
        network.send(Time::ZERO, 0, 1, 1);
        assert_eq!(network.deliver(Time::from_nanos(9_999)), None);
        assert!(network.deliver(Time::from_nanos(10_000)).is_some());
        assert_eq!(network.in_flight(), 0);
    }
}
