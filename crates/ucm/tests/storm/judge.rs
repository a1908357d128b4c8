//! From the first request to the last check, and what there is to say about it.

use std::collections::BTreeMap;
use std::time::Duration;

use oarlock_wire::Time;

use crate::faults::Fault;
use crate::host::{Host, address};
use crate::ledger::Part;
use crate::program::Phase;
use crate::weather::Clock;
use crate::world::{ACTIVE, Action, PASSIVE, World};

/// What the judge finds.
#[derive(Debug)]
pub(crate) enum Wrong {
    /// The ends of a connection see it differently, or one of them never ends, or events do not come as they should.
    Disagreement(String),
    /// Something is left behind.
    Leak(String),
}

impl std::fmt::Display for Wrong {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Disagreement(what) => write!(f, "disagreement: {what}"),
            Self::Leak(what) => write!(f, "leak: {what}"),
        }
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) connections: usize,
    /// All messages arrived and were acknowledged, both ways, as both ends know.
    pub(crate) completed: usize,
    /// Connections of hosts that kept their first device.
    pub(crate) undisturbed: usize,
    /// Messages that arrived, checked by content.
    pub(crate) messages: usize,
    /// Identifiers of the spine that moved, listeners included.
    pub(crate) migrations: usize,
    /// Events that stood in a queue when their identifier moved.
    pub(crate) moved_events: usize,
    /// Everything else, by name.
    pub(crate) tally: BTreeMap<String, u64>,
}

impl Outcome {
    pub(crate) fn add(&mut self, other: &Self) {
        self.connections += other.connections;
        self.completed += other.completed;
        self.undisturbed += other.undisturbed;
        self.messages += other.messages;
        self.migrations += other.migrations;
        self.moved_events += other.moved_events;
        for (what, count) in &other.tally {
            *self.tally.entry(what.clone()).or_default() += count;
        }
    }

    pub(crate) fn of(&self, what: &str) -> u64 {
        self.tally.get(what).copied().unwrap_or_default()
    }
}

/// Counters of the hosts that go into the summary.
pub(crate) const COUNTERS: [&str; 19] = [
    "cm_mra_sent",
    "cm_mra_received",
    "cm_lap_sent",
    "cm_lap_retried",
    "cm_apr_received",
    "cm_sidr_req_sent",
    "cm_sidr_req_retried",
    "cm_sidr_rep_received",
    "cm_req_retried",
    "cm_rep_retried",
    "cm_dreq_retried",
    "cm_req_duplicate",
    "cma_requests_dropped_backlog",
    "cma_events_dropped_unaccepted",
    "cma_events_destroyed",
    "cma_lookups_stale",
    "cma_lookups_timed_out",
    "cma_memberships_stale",
    "cma_address_changes",
];

impl World {
    /// A whole storm: programs of all kinds, and weather.
    pub(crate) fn with_everything(mut self) -> Result<Self, String> {
        self.is_severe = (self.seed / 4) % 8 == 7;
        self.plan_calls()?;
        self.plan_members();
        self.plan_weather();
        Ok(self)
    }

    /// The network breaks at some moment of the storm, for a while or for good.
    pub(crate) fn breaking(mut self) -> Self {
        self.later(Duration::from_millis(100), Action::Cut);
        if self.rng.chance(0.5) {
            self.later(Duration::from_secs(20), Action::Mend);
        }
        self
    }

    /// The network is broken from one moment to another.
    pub(crate) fn broken(mut self, from: Duration, until: Duration) -> Self {
        self.after(from, Action::Cut);
        self.after(until, Action::Mend);
        self
    }

    /// The clock of one host stands still for a while, and then shows the time again.
    pub(crate) fn with_standing_clock(mut self, longest: Duration) -> Self {
        let side = self.rng.index(2);
        let from = Time::ZERO + Duration::from_micros(self.rng.below(60_000));
        let until = from + self.rng.duration(&(Duration::from_millis(1)..=longest));
        self.clocks[side] = Clock::standing(from, until);
        self
    }

    /// The spine begins now, within so long.
    pub(crate) fn begin_spine(&mut self, within: Duration) -> Result<(), String> {
        self.start_listener()?;
        for connection in 0..self.hosts[ACTIVE].ends.len() {
            self.later(within, Action::Start(connection));
        }
        self.later(within, Action::MigrateListener);
        Ok(())
    }

    /// Everything from the first request to the last check.
    pub(crate) fn run(mut self) -> Result<Outcome, Wrong> {
        let outcome = self.play().map_err(Wrong::Disagreement)?;
        self.clean_up().map_err(Wrong::Disagreement)?;
        self.turn().map_err(Wrong::Disagreement)?;
        self.check_nothing_is_left().map_err(Wrong::Leak)?;
        Ok(outcome)
    }

    fn play(&mut self) -> Result<Outcome, String> {
        self.begin_spine(Duration::from_millis(40))?;
        self.turn()?;
        if !self.all_over() {
            return Err(format!("nothing more will happen: {}", self.unfinished()));
        }
        for host in &self.hosts {
            host.ledger.check_settled()?;
        }
        self.judge()
    }

    fn all_over(&self) -> bool {
        self.unfinished().is_empty() && self.listener.migrated
    }

    /// Who is not through.
    pub(crate) fn unfinished(&self) -> String {
        let mut names = vec![];
        for (side, host) in self.hosts.iter().enumerate() {
            for (connection, end) in host.ends.iter().enumerate() {
                // A passive end may never hear of its peer.
                let never_began = side == PASSIVE && end.phase == Phase::None;
                if !end.is_over() && !never_began {
                    names.push(format!("{connection} side {side} {:?}", end.phase));
                }
            }
            let wild = host.ledger.iter();
            for (_, record) in wild.filter(|(_, record)| Self::is_wild(record.part)) {
                names.push(format!("{:?} side {side} {:?}", record.part, record.stage));
            }
        }
        names.join(", ")
    }

    /// Both sides agree, or both have given up.
    fn judge(&self) -> Result<Outcome, String> {
        let mut outcome = Outcome {
            connections: self.hosts[ACTIVE].ends.len(),
            moved_events: self.moved_events,
            migrations: usize::from(self.listener.migrated),
            ..Outcome::default()
        };
        for (side, host) in self.hosts.iter().enumerate() {
            // R-ADDR-2: one lookup for each connection that is asked for, and none for those that come in.
            let (found, wanted) = (host.counter("cma_lookups"), host.lookups_asked);
            if found != wanted {
                return Err(format!(
                    "side {side}: {found} route lookups, {wanted} connections asked for"
                ));
            }
            for name in COUNTERS {
                *outcome.tally.entry(name.into()).or_default() += host.counter(name);
            }
        }
        for (what, count) in &self.tally {
            outcome.tally.insert((*what).into(), *count);
        }
        if !self.is_severe {
            outcome.undisturbed = outcome.connections;
        }
        for connection in 0..outcome.connections {
            let ends = [
                &self.hosts[ACTIVE].ends[connection],
                &self.hosts[PASSIVE].ends[connection],
            ];
            outcome.messages += ends.iter().map(|end| end.received).sum::<usize>();
            outcome.migrations += ends.iter().filter(|end| end.migrated).count();
            let all: Vec<bool> = ends.iter().map(|end| end.received_all()).collect();
            for side in [ACTIVE, PASSIVE] {
                // Acknowledged means that it is in the peer's memory.
                if ends[side].sent_all() && !all[1 - side] {
                    return Err(format!(
                        "connection {connection}: side {side} has every acknowledgement, its peer not every message"
                    ));
                }
                if ends[side].id.is_some() && !ends[side].migrated && !ends[side].is_gone {
                    return Err(format!("connection {connection}: side {side} never moved"));
                }
            }
            if ends[ACTIVE].sent_all() && all[ACTIVE] {
                let is_down = ends[PASSIVE].phase == Phase::Down || ends[PASSIVE].is_gone;
                if !all[PASSIVE] || !is_down {
                    return Err(format!(
                        "connection {connection}: complete for one side, {:?} for the other",
                        ends[PASSIVE].phase
                    ));
                }
                outcome.completed += 1;
            }
        }
        self.judge_datagrams()?;
        Ok(outcome)
    }

    /// Over a network that loses nothing, between addresses that stay, every datagram arrives.
    fn judge_datagrams(&self) -> Result<(), String> {
        let counters = self.network.counters();
        if counters.lost + counters.partitioned > 0 || self.is_severe {
            return Ok(());
        }
        for (attempt, known) in self.attempts.iter().enumerate() {
            let is_steady = known.to.ip() == address(1 - known.side);
            if known.has_sent && is_steady && known.arrived.contains(&0) {
                return Err(format!("datagrams of {attempt} are missing: {known:?}"));
            }
        }
        Ok(())
    }

    fn clean_up(&mut self) -> Result<(), String> {
        for side in [ACTIVE, PASSIVE] {
            let ids: Vec<_> = self.hosts[side]
                .ledger
                .iter()
                .map(|(id, record)| (id, record.part))
                .collect();
            for (id, part) in ids {
                let is_forgotten = self.fault == Fault::OneIdentifierIsForgotten
                    && side == PASSIVE
                    && part == Part::Spine(7);
                if !is_forgotten {
                    self.destroy(side, id)?;
                }
            }
            self.hosts[side].qps.clear();
            self.hosts[side].datagram_qps.clear();
        }
        self.qp_deadlines.clear();
        Ok(())
    }

    fn check_nothing_is_left(&self) -> Result<(), String> {
        for (
            side,
            Host {
                ucm, interfaces, ..
            },
        ) in self.hosts.iter().enumerate()
        {
            let left = [
                ("identifiers", ucm.ids()),
                ("with children", ucm.cma().len()),
                ("connections", ucm.cma().connections()),
                ("ports", ucm.ports().len()),
                ("joins", ucm.joins()),
                ("memberships of interfaces", interfaces.len()),
            ];
            if left.iter().any(|(_, count)| *count > 0) {
                return Err(format!("side {side}: left are {left:?}"));
            }
            let files = self.hosts[side].old.iter().chain(&self.hosts[side].new);
            let files = files.chain(&self.hosts[side].wild);
            let events: usize = files.map(|file| ucm.queued(*file)).sum();
            if events > 0 {
                return Err(format!("side {side}: {events} events are left"));
            }
            if ucm.poll_timeout().is_some() {
                return Err(format!("side {side}: something still waits"));
            }
        }
        Ok(())
    }
}
