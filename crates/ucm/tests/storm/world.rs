//! Two hosts, the network between them, virtual time, and the judge.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use oarlock_cm::Seed;
use oarlock_cma::{Config, Device, Limits, Route};
use oarlock_sim::{Network, NetworkConfig, Rng};
use oarlock_transport::{MAX_PACKET_LEN, PacketBuf};
use oarlock_ucm::client::{self, Answer, Call, Event, IdNumber};
use oarlock_ucm::{Failure, FileId, Owner, Ucm};
use oarlock_wire::{AddressVector, Gid, Guid, MAD_LEN, Time};

use crate::program::{End, Phase};
use crate::qp::Qp;

/// Active and passive side.
pub(crate) const ACTIVE: usize = 0;
pub(crate) const PASSIVE: usize = 1;
/// Both ends of every connection have ended by then: a connect or a program's patience, a disconnect that goes unheard
/// (16 times 4.6 s), and something to spare.
const DEADLINE: Duration = Duration::from_secs(240);
/// How long a connect may take altogether.
const CONNECT_DEADLINE: Duration = Duration::from_secs(100);
/// Identifiers of a side are spread over so many channels, and move to as many others, or each to its own.
const CHANNELS: usize = 4;
/// A program reads a channel that long after it was woken, at most: events wait, and some of them move.
const THINKING: Duration = Duration::from_millis(8);

/// What is planted, to see whether the judge sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    MigratedEventsAreLost,
    MigratedEventsWakeNobody,
    OneByteIsFlipped,
    OneIdentifierIsForgotten,
}

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

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) connections: usize,
    /// All messages arrived and were acknowledged, both ways, as both ends know.
    pub(crate) completed: usize,
    /// Messages that arrived, checked by content.
    pub(crate) messages: usize,
    /// Identifiers that moved, listeners included.
    pub(crate) migrations: usize,
    /// Events that stood in a queue when their identifier moved.
    pub(crate) moved_events: usize,
    pub(crate) retransmitted_mads: u64,
}

impl Outcome {
    pub(crate) fn add(&mut self, other: &Self) {
        self.connections += other.connections;
        self.completed += other.completed;
        self.messages += other.messages;
        self.migrations += other.migrations;
        self.moved_events += other.moved_events;
        self.retransmitted_mads += other.retransmitted_mads;
    }
}

#[derive(Clone)]
enum Datagram {
    Mad(AddressVector, Box<[u8; MAD_LEN]>),
    Packet(AddressVector, Vec<u8>),
}

/// What a program does at a moment of its own choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Action {
    Start(usize),
    Read(usize, FileId),
    Migrate(usize, usize),
    MigrateListener,
    Disconnect(usize, usize),
    GiveUp(usize),
    Cut,
    Mend,
}

pub(crate) struct Host {
    pub(crate) ucm: Ucm,
    pub(crate) qps: BTreeMap<u32, Qp>,
    /// Channels that identifiers start on; on the passive side there is one, the listener's.
    pub(crate) old: Vec<FileId>,
    /// Channels that they move to: the first few are shared, then one for each connection.
    pub(crate) new: Vec<FileId>,
    pub(crate) ends: Vec<End>,
    pub(crate) by_id: BTreeMap<IdNumber, usize>,
    reading: BTreeSet<FileId>,
}

pub(crate) struct World {
    pub(crate) now: Time,
    pub(crate) rng: Rng,
    pub(crate) fault: Fault,
    pub(crate) hosts: [Host; 2],
    pub(crate) listener: Listener,
    network: Network<Datagram>,
    actions: BTreeSet<(Time, u64, Action)>,
    next_action: u64,
    /// When queue pairs have to be looked at: host and number.
    qp_deadlines: BTreeSet<(Time, usize, u32)>,
    pub(crate) moved_events: usize,
    packet: Box<PacketBuf>,
}

pub(crate) struct Listener {
    pub(crate) id: IdNumber,
    pub(crate) file: FileId,
    pub(crate) reported: u32,
    pub(crate) migrated: bool,
    /// Requests for connections that were served already; they were rejected and are destroyed in the end.
    pub(crate) strays: Vec<(IdNumber, FileId)>,
}

pub(crate) fn address(host: usize) -> IpAddr {
    IpAddr::from([10, 0, 0, host as u8 + 1])
}

pub(crate) const PORT: u16 = 7471;

fn host(side: usize, seed: u64, connections: usize) -> Host {
    let mut config = Config::default();
    config.cm.ca_guid = Guid(0x1000 + side as u64);
    // Without it, a peer that said "I am working on it" (MRA) and fell silent is waited for up to a quarter of an hour.
    config.connect_deadline = Some(CONNECT_DEADLINE);
    let mut seed_bytes = [side as u8; 32];
    seed_bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let mut ucm = Ucm::new(config, Seed(seed_bytes));
    let device = Device {
        index: 0,
        name: format!("dev{side}"),
        guid: Guid(0x1000 + side as u64),
        port_num: 1,
        ifindex: 2,
        is_loopback: false,
        netdev_mtu: 1500,
        addresses: vec![address(side)],
        limits: Limits::default(),
    };
    ucm.set_devices(Time::ZERO, vec![device]);
    let mut open = |count| {
        (0..count)
            .map(|_| ucm.open(Owner(1)).expect("few channels"))
            .collect::<Vec<_>>()
    };
    let old = open(if side == ACTIVE { CHANNELS } else { 1 });
    let new = open(CHANNELS + connections);
    Host {
        ucm,
        qps: BTreeMap::new(),
        old,
        new,
        ends: (0..connections).map(|_| End::default()).collect(),
        by_id: BTreeMap::new(),
        reading: BTreeSet::new(),
    }
}

impl World {
    pub(crate) fn new(seed: u64, loss: f64, connections: usize, fault: Fault) -> Self {
        let network = NetworkConfig {
            loss,
            duplication: 0.03,
            reorder: 0.05,
            delay: Duration::from_micros(20)..=Duration::from_micros(200),
            extra_delay: Duration::from_micros(10)..=Duration::from_millis(2),
        };
        let hosts = [
            host(ACTIVE, seed, connections),
            host(PASSIVE, seed, connections),
        ];
        let file = hosts[PASSIVE].old[0];
        Self {
            now: Time::ZERO,
            rng: Rng::new(seed ^ 0x5707),
            fault,
            hosts,
            listener: Listener {
                id: IdNumber(0),
                file,
                reported: 0,
                migrated: false,
                strays: vec![],
            },
            network: Network::new(network, seed),
            actions: BTreeSet::new(),
            next_action: 0,
            qp_deadlines: BTreeSet::new(),
            moved_events: 0,
            packet: Box::new([0; MAX_PACKET_LEN]),
        }
    }

    /// The network breaks at some moment of the storm, for a while or for good.
    pub(crate) fn breaking(mut self) -> Self {
        self.later(Duration::from_millis(100), Action::Cut);
        if self.rng.chance(0.5) {
            self.later(Duration::from_secs(20), Action::Mend);
        }
        self
    }

    // ---- running ----

    /// Everything from the first request to the last check.
    pub(crate) fn run(mut self) -> Result<Outcome, Wrong> {
        let outcome = self.play().map_err(Wrong::Disagreement)?;
        self.clean_up().map_err(Wrong::Disagreement)?;
        self.turn(|_| false).map_err(Wrong::Disagreement)?;
        self.check_nothing_is_left().map_err(Wrong::Leak)?;
        Ok(outcome)
    }

    fn play(&mut self) -> Result<Outcome, String> {
        self.start_listener()?;
        for connection in 0..self.hosts[ACTIVE].ends.len() {
            self.later(Duration::from_millis(40), Action::Start(connection));
        }
        self.later(Duration::from_millis(40), Action::MigrateListener);
        self.turn(|world| world.all_over())?;
        if !self.all_over() {
            return Err(format!("still going on: {}", self.unfinished()));
        }
        self.judge()
    }

    /// Lets time pass until `done`, or nothing can happen any more, or the deadline.
    fn turn(&mut self, done: impl Fn(&Self) -> bool) -> Result<(), String> {
        let deadline = Time::ZERO + DEADLINE;
        while !done(self) {
            let Some(next) = self.next_moment() else {
                break;
            };
            if next > deadline {
                break;
            }
            self.now = self.now.max(next);
            self.step()?;
        }
        Ok(())
    }

    fn next_moment(&self) -> Option<Time> {
        let hosts = self.hosts.iter().filter_map(|host| host.ucm.poll_timeout());
        let others = [
            self.network.next_delivery(),
            self.actions.first().map(|(at, ..)| *at),
            self.qp_deadlines.first().map(|(at, ..)| *at),
        ];
        hosts.chain(others.into_iter().flatten()).min()
    }

    /// One input of each kind that is due, each with its drain.
    fn step(&mut self) -> Result<(), String> {
        let now = self.now;
        while let Some(delivery) = self.network.deliver(now) {
            let to = delivery.to;
            match delivery.datagram {
                Datagram::Mad(av, mad) => {
                    self.hosts[to].ucm.handle_mad(now, &av, &mad);
                    self.drain_host(to);
                }
                Datagram::Packet(av, bytes) => self.packet_arrived(to, &av, &bytes)?,
            }
        }
        for side in [ACTIVE, PASSIVE] {
            if self.hosts[side]
                .ucm
                .poll_timeout()
                .is_some_and(|at| at <= now)
            {
                self.hosts[side].ucm.handle_timeout(now);
                self.drain_host(side);
            }
        }
        while let Some(&(at, side, qpn)) = self.qp_deadlines.first().filter(|(at, ..)| *at <= now) {
            self.qp_deadlines.remove(&(at, side, qpn));
            if let Some(qp) = self.hosts[side].qps.get_mut(&qpn) {
                qp.noted = None;
                qp.rc.handle_timeout(now);
                self.drain_qp(side, qpn)?;
            }
        }
        while let Some(&entry) = self.actions.first().filter(|(at, ..)| *at <= now) {
            self.actions.remove(&entry);
            self.act(entry.2)?;
        }
        Ok(())
    }

    fn packet_arrived(
        &mut self,
        to: usize,
        av: &AddressVector,
        bytes: &[u8],
    ) -> Result<(), String> {
        // BTH bytes 5 to 7 (IBA Vol. 1 ch. 9): the destination queue pair.
        let qpn = u32::from_be_bytes([0, bytes[5], bytes[6], bytes[7]]);
        let Some(qp) = self.hosts[to].qps.get_mut(&qpn) else {
            return Ok(());
        };
        qp.rc.handle_datagram(self.now, av, bytes, &mut qp.memory);
        self.drain_qp(to, qpn)
    }

    /// Sends what a host has to send, answers its lookups, and lets its programs know that there is something to read.
    pub(crate) fn drain_host(&mut self, side: usize) {
        let now = self.now;
        let ucm = &mut self.hosts[side].ucm;
        while let Some(lookup) = ucm.poll_lookup() {
            let route = Route {
                source: address(side),
                ifindex: 2,
                gateway: None,
                hop_limit: 64,
                mtu: 1500,
                is_local: lookup.destination == address(side),
            };
            ucm.handle_lookup(now, lookup.token, Ok(route));
        }
        while let Some(transmit) = ucm.poll_transmit() {
            let datagram = Datagram::Mad(transmit.av.reversed(), Box::new(transmit.mad));
            self.network.send(now, side, 1 - side, datagram);
        }
        while let Some((file, _)) = self.hosts[side].ucm.poll_wake() {
            if self.hosts[side].reading.insert(file) {
                self.later(THINKING, Action::Read(side, file));
            }
        }
    }

    pub(crate) fn drain_qp(&mut self, side: usize, qpn: u32) -> Result<(), String> {
        let now = self.now;
        let Some(qp) = self.hosts[side].qps.get_mut(&qpn) else {
            return Ok(());
        };
        while let Some(transmit) = qp.rc.poll_transmit(now, &mut qp.memory, &mut self.packet) {
            let datagram =
                Datagram::Packet(transmit.av.reversed(), self.packet[..transmit.len].to_vec());
            self.network.send(now, side, 1 - side, datagram);
        }
        let deadline = qp.rc.poll_timeout();
        if deadline != qp.noted {
            if let Some(old) = qp.noted {
                self.qp_deadlines.remove(&(old, side, qpn));
            }
            self.qp_deadlines.extend(deadline.map(|at| (at, side, qpn)));
            qp.noted = deadline;
        }
        let completions: Vec<_> = std::iter::from_fn(|| qp.rc.poll_completion()).collect();
        let events: Vec<_> = std::iter::from_fn(|| qp.rc.poll_event()).collect();
        for event in events {
            self.on_qp_event(side, qpn, event);
        }
        for completion in completions {
            self.on_completion(side, qpn, &completion)?;
        }
        Ok(())
    }

    /// Notes an action for some time up to `within` from now.
    pub(crate) fn later(&mut self, within: Duration, action: Action) {
        let after = self.rng.duration(&(Duration::from_micros(1)..=within));
        self.after(after, action);
    }

    /// Notes an action for a moment `after` from now.
    pub(crate) fn after(&mut self, after: Duration, action: Action) {
        let at = self.now + after;
        self.actions.insert((at, self.next_action, action));
        self.next_action += 1;
    }

    fn act(&mut self, action: Action) -> Result<(), String> {
        match action {
            Action::Start(connection) => self.start(connection),
            Action::Read(side, file) => {
                self.hosts[side].reading.remove(&file);
                self.read(side, file)
            }
            Action::Migrate(side, connection) => self.migrate(side, connection),
            Action::MigrateListener => self.migrate_listener(),
            Action::Disconnect(side, connection) => self.disconnect(side, connection),
            Action::GiveUp(connection) => {
                self.give_up(connection);
                Ok(())
            }
            Action::Cut => {
                self.network.partition(ACTIVE, PASSIVE);
                Ok(())
            }
            Action::Mend => {
                self.network.heal(ACTIVE, PASSIVE);
                Ok(())
            }
        }
    }

    // ---- requests ----

    pub(crate) fn try_call<A: Answer>(
        &mut self,
        side: usize,
        file: FileId,
        call: &Call<A>,
    ) -> Result<A, Failure> {
        let mut response = Vec::new();
        let written = self.hosts[side].ucm.write(
            self.now,
            file,
            call.request(),
            call.inline(),
            &mut response,
        );
        self.drain_host(side);
        written?;
        Ok(call.decode(&response).expect("the answer fits its command"))
    }

    pub(crate) fn call<A: Answer>(
        &mut self,
        side: usize,
        file: FileId,
        call: &Call<A>,
    ) -> Result<A, String> {
        self.try_call(side, file, call)
            .map_err(|failure| format!("side {side}: {failure}"))
    }

    /// Takes events until the channel is empty. Only woken channels are read, so that a lost wake-up shows.
    fn read(&mut self, side: usize, file: FileId) -> Result<(), String> {
        loop {
            match self.try_call(side, file, &client::get_event()) {
                Ok(event) => self.on_event(side, file, &event)?,
                Err(Failure::NoEvent | Failure::UnknownFile) => return Ok(()),
                Err(other) => return Err(other.to_string()),
            }
        }
    }

    /// The planted fault: what waited is gone.
    pub(crate) fn discard(&mut self, side: usize, file: FileId) {
        while self.try_call(side, file, &client::get_event()).is_ok() {}
    }

    /// The planted fault: the waker is lost.
    pub(crate) fn forget_wake(&mut self, side: usize, file: FileId) {
        self.actions
            .retain(|(_, _, action)| *action != Action::Read(side, file));
        self.hosts[side].reading.remove(&file);
    }

    // ---- the judge ----

    fn all_over(&self) -> bool {
        let over = |side: usize| self.hosts[side].ends.iter().all(End::is_over);
        over(ACTIVE) && over(PASSIVE) && self.listener.migrated
    }

    fn unfinished(&self) -> String {
        let ends = [ACTIVE, PASSIVE].into_iter().flat_map(|side| {
            let ends = self.hosts[side]
                .ends
                .iter()
                .enumerate()
                .filter(|(_, end)| !end.is_over());
            ends.map(move |(connection, end)| format!("{connection} side {side} {:?}", end.phase))
        });
        ends.collect::<Vec<_>>().join(", ")
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
            let counters = host.ucm.counters();
            // R-ADDR-2: one lookup for each connection that is asked for, and none for those that come in.
            let lookups = counters
                .iter()
                .find(|(name, _)| name == "cma_lookups")
                .map(|(_, value)| *value);
            let wanted = if side == ACTIVE {
                outcome.connections as u64
            } else {
                0
            };
            if lookups != Some(wanted) {
                return Err(format!(
                    "side {side}: {lookups:?} route lookups, {wanted} connections asked for"
                ));
            }
            let retries = counters.iter().filter(|(name, _)| name.contains("retried"));
            outcome.retransmitted_mads += retries.map(|(_, value)| value).sum::<u64>();
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
                if ends[side].id.is_some() && !ends[side].migrated {
                    return Err(format!("connection {connection}: side {side} never moved"));
                }
            }
            if ends[ACTIVE].sent_all() && all[ACTIVE] {
                if !all[PASSIVE] || ends[PASSIVE].phase != Phase::Down {
                    return Err(format!(
                        "connection {connection}: complete for one side, {:?} for the other",
                        ends[PASSIVE].phase
                    ));
                }
                outcome.completed += 1;
            }
        }
        Ok(outcome)
    }

    fn clean_up(&mut self) -> Result<(), String> {
        for side in [ACTIVE, PASSIVE] {
            for connection in 0..self.hosts[side].ends.len() {
                let end = &self.hosts[side].ends[connection];
                let (Some(id), Some(file), reported) = (end.id, end.file, end.reported) else {
                    continue;
                };
                if self.fault == Fault::OneIdentifierIsForgotten
                    && side == PASSIVE
                    && connection == 7
                {
                    continue;
                }
                let counted = self.call(side, file, &client::destroy_id(id))?.0;
                if counted != reported {
                    return Err(format!(
                        "connection {connection} side {side}: {reported} events taken, {counted} reported"
                    ));
                }
            }
            self.hosts[side].qps.clear();
        }
        self.qp_deadlines.clear();
        for (id, file) in std::mem::take(&mut self.listener.strays) {
            self.call(PASSIVE, file, &client::destroy_id(id))?;
        }
        let Listener {
            id, file, reported, ..
        } = self.listener;
        let counted = self.call(PASSIVE, file, &client::destroy_id(id))?.0;
        if counted != reported {
            return Err(format!(
                "listener: {reported} events taken, {counted} reported"
            ));
        }
        Ok(())
    }

    fn check_nothing_is_left(&self) -> Result<(), String> {
        for (side, Host { ucm, .. }) in self.hosts.iter().enumerate() {
            let left = (
                ucm.ids(),
                ucm.cma().len(),
                ucm.cma().connections(),
                ucm.ports().len(),
            );
            if left != (0, 0, 0, 0) {
                return Err(format!(
                    "side {side}: identifiers, with children, connections, ports left: {left:?}"
                ));
            }
            if ucm.poll_timeout().is_some() {
                return Err(format!("side {side}: something still waits"));
            }
        }
        Ok(())
    }

    /// Where an end moves to: every other one to a channel where nobody else would wake a reader.
    pub(crate) fn target(&self, side: usize, connection: usize) -> FileId {
        let place = if connection.is_multiple_of(2) {
            connection % CHANNELS
        } else {
            CHANNELS + connection
        };
        self.hosts[side].new[place]
    }

    pub(crate) fn gid(side: usize) -> Gid {
        Gid::from_ip(address(side))
    }

    pub(crate) fn on_event(
        &mut self,
        side: usize,
        file: FileId,
        event: &Event,
    ) -> Result<(), String> {
        self.handle_event(side, file, event)
            .map_err(|what| format!("{what} (side {side}, {event:?})"))
    }
}
