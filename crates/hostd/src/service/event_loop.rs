//! The loop: what is ready, to whom it goes, what comes out.

use super::admission;
use super::captures::Captures;
use super::clients::{self, Client, Grant};
use super::devices::Found;
use super::ebb::Ebb;
use super::faults::ManagementFaults;
use super::feed::Feed;
use super::network::Network;
use super::pipe::Pipe;
use super::qp1::Qp1;
use super::statistics::Statistics;
use super::{ServiceConfig, identity};
use crate::{Error, Patience, sys};
use oarlock_cma::{Device, MembershipAction};
use oarlock_port::fork::ForkGuard;
use oarlock_ucm::proto::MAX_MESSAGE;
use oarlock_ucm::{FileId, Owner, Ucm};
use oarlock_wire::{Psn, Time, earliest};
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// When a service ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// When it is told to.
    Told,
    /// When it has had no client for so long.
    Idle(Duration),
    /// With its first client, whose process it is part of.
    WithFirstClient,
}

/// The service.
#[derive(Debug)]
pub(super) struct Service {
    start: Instant,
    epoll: OwnedFd,
    pub(super) network: Network,
    pub(super) ucm: Ucm,
    qp1: Qp1,
    pub(super) clients: BTreeMap<u32, Client>,
    next_client: u32,
    pub(super) max_clients: usize,
    pipes: HashMap<u64, Pipe>,
    pub(super) listener: Option<(ForkGuard, OwnedFd)>,
    /// Given up for a moment when a program connects and no descriptor is left, so as to be able to refuse it.
    pub(super) reserve: Option<OwnedFd>,
    signals: Option<OwnedFd>,
    end: End,
    idle_since: Instant,
    ebb: Ebb,
    /// When to look again whether slots that are held can be renewed.
    settle_at: Option<Time>,
    pub(super) stopping: bool,
    /// Whether the system lets everybody bind ports below 1024.
    pub(super) ports_are_free: bool,
    pub(super) feeds: BTreeMap<u32, Feed>,
    /// Devices that have gone, for which somebody may wait.
    pub(super) gone_devices: BTreeSet<u32>,
    pub(super) faults: ManagementFaults,
    pub(super) statistics: Statistics,
    pub(super) captures: Captures,
    pub(super) buffer: Vec<u8>,
    pub(super) counters: ServiceCounters,
}

/// What the service did, by name.
#[derive(Debug, Default)]
pub(super) struct ServiceCounters {
    clients: u64,
    pub(super) clients_refused: u64,
    clients_failed: u64,
    pub(super) other_users: u64,
    pub(super) requests: u64,
    pub(super) refusals: u64,
    turns: u64,
    sleeps: u64,
}

/// What a descriptor is to the loop; a number in epoll.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    Listener,
    Signals,
    Interfaces,
    Port,
    Client(u32),
    Process(u32),
    Pipe(u64),
    Feed(u32),
}

impl Service {
    pub(super) fn new(config: ServiceConfig, network: Network, end: End) -> Result<Self, Error> {
        let ServiceConfig {
            mut cma,
            max_clients,
            ..
        } = config;
        cma.cm.ca_guid = network.guid;
        let mut ucm = Ucm::new(cma, identity::seed()?);
        ucm.set_devices(Time::ZERO, network.devices.list.clone());
        ucm.set_addresses_without_device(network.devices.without_device.clone());
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(Error::errno("make an epoll instance"))?;
        let psn = u32::from_ne_bytes(sys::random().map_err(Error::system("get random bytes"))?);
        let unprivileged = std::fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start");
        let service = Self {
            start: Instant::now(),
            epoll,
            network,
            ucm,
            qp1: Qp1::new(Psn::truncate(psn)),
            clients: BTreeMap::new(),
            next_client: 1,
            max_clients,
            pipes: HashMap::new(),
            listener: None,
            reserve: admission::reserve(),
            signals: None,
            end,
            idle_since: Instant::now(),
            ebb: Ebb::default(),
            settle_at: None,
            stopping: false,
            ports_are_free: unprivileged.is_ok_and(|text| text.trim() == "0"),
            feeds: BTreeMap::new(),
            gone_devices: BTreeSet::new(),
            faults: ManagementFaults::default(),
            statistics: Statistics::default(),
            captures: Captures::default(),
            buffer: vec![0; MAX_MESSAGE],
            counters: ServiceCounters::default(),
        };
        service.watch(Source::Port, &service.network.port, epoll::EventFlags::IN)?;
        let changes = service.network.changes_fd();
        service.watch(Source::Interfaces, changes, epoll::EventFlags::IN)?;
        Ok(service)
    }

    pub(super) fn add_listener(&mut self, listener: OwnedFd) -> Result<(), Error> {
        rustix::io::ioctl_fionbio(&listener, true)
            .map_err(Error::errno("prepare the listening socket"))?;
        self.watch(Source::Listener, &listener, epoll::EventFlags::IN)?;
        let fork = ForkGuard::new(&listener).map_err(Error::system("watch for forks"))?;
        self.listener = Some((fork, listener));
        Ok(())
    }

    pub(super) fn add_signals(&mut self, signals: OwnedFd) -> Result<(), Error> {
        self.watch(Source::Signals, &signals, epoll::EventFlags::IN)?;
        self.signals = Some(signals);
        Ok(())
    }

    /// An error leaves nothing behind and gives the socket back, so that the program can be told.
    pub(super) fn add_client(&mut self, socket: OwnedFd) -> Result<(), (OwnedFd, Error)> {
        let client = Client::new(socket)?;
        let id = self.next_client;
        self.next_client += 1;
        if let Err(error) = self.watch_new_client(id, &client) {
            return Err((client.into_socket(), error));
        }
        tracing::debug!(client = id, pid = client.peer.pid, "connected");
        self.clients.insert(id, client);
        self.counters.clients += 1;
        Ok(())
    }

    fn watch_new_client(&self, id: u32, client: &Client) -> Result<(), Error> {
        let (socket, process) = clients::sources(id);
        self.watch(socket, client, epoll::EventFlags::IN)?;
        match &client.process {
            Some(fd) => self.watch(process, fd, epoll::EventFlags::IN),
            None => Ok(()),
        }
    }

    pub(super) fn add_pipe(&mut self, token: u64, pipe: Pipe) -> Result<(), Error> {
        // No more than the end of the other side, which epoll tells unasked.
        self.watch(Source::Pipe(token), &pipe, epoll::EventFlags::empty())?;
        self.pipes.insert(token, pipe);
        Ok(())
    }

    pub(super) fn now(&self) -> Time {
        Time::ZERO.saturating_add(self.start.elapsed())
    }

    /// Runs until the end.
    pub(super) fn run(&mut self) {
        tracing::info!(
            devices = self.network.devices.list.len(),
            "the host service is ready"
        );
        let mut events = Vec::with_capacity(EVENTS_PER_TURN);
        // After every input the next is looked for a moment before sleeping; without input there is none of this.
        let mut patience: Option<Patience> = None;
        while !self.stopping {
            let timeout = if patience.is_some() {
                Some(Duration::ZERO)
            } else {
                self.give_memory_back();
                self.wait()
            };
            self.counters.sleeps += u64::from(timeout != Some(Duration::ZERO));
            events.clear();
            self.poll(&mut events, timeout);
            let busy = !events.is_empty();
            self.counters.turns += u64::from(busy);
            // What a program asks after a change is answered after it.
            events.sort_by_key(|event| event.data.u64() != Source::Interfaces.number());
            for event in events.drain(..) {
                if let Some(source) = Source::from_number(event.data.u64()) {
                    self.dispatch(source, event.flags);
                }
            }
            self.turn();
            if busy {
                if let Some(waiting) = &patience {
                    waiting.paid_off();
                }
                patience = Patience::new();
            } else if patience
                .as_mut()
                .is_some_and(|waiting| !waiting.look_again())
            {
                patience = None;
            }
        }
        self.shut_down();
    }

    fn poll(&self, events: &mut Vec<epoll::Event>, timeout: Option<Duration>) {
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        if let Err(errno) = epoll::wait(&self.epoll, spare_capacity(events), timeout.as_ref())
            && errno != rustix::io::Errno::INTR
        {
            // The descriptor is ours and the buffer is right: nothing else is possible, and going on would spin.
            panic!("epoll_wait: {errno}");
        }
    }

    /// On the way into a sleep, after a crowd has gone. In a program of somebody else the heap is not ours to trim.
    fn give_memory_back(&mut self) {
        if self.end != End::WithFirstClient && self.ebb.has_come(self.ucm.ids()) {
            self.ucm.shrink_to_fit();
            self.qp1.shrink_to_fit();
            sys::trim_heap();
        }
    }

    /// How long there is nothing to do; none: until something comes.
    fn wait(&self) -> Option<Duration> {
        let now = self.now();
        let idle = match self.end {
            End::Idle(grace) if self.clients.is_empty() => {
                Some(now.saturating_add(grace.saturating_sub(self.idle_since.elapsed())))
            }
            _ => None,
        };
        let own = earliest(self.settle_at, self.qp1.next_turn());
        let next = earliest(earliest(self.ucm.poll_timeout(), own), idle)?;
        // Nanoseconds are waited for exactly; a little later is better than a turn for nothing.
        Some(next.saturating_since(now))
    }

    fn dispatch(&mut self, source: Source, flags: epoll::EventFlags) {
        match source {
            Source::Listener => self.accept(),
            Source::Signals => self.stopping = true,
            Source::Interfaces => self.notice_changes(),
            Source::Port => {
                let now = self.now();
                let struck = self.qp1.receive(now, &self.network.port, &mut self.ucm);
                self.strike(&struck);
            }
            Source::Process(id) => self.remove_client(id),
            Source::Client(id) => {
                let Some(client) = self.clients.get_mut(&id) else {
                    return;
                };
                let sent = client.send_unsent();
                let alive = self.after_sending(id, sent) && self.serve_client(id);
                if alive {
                    self.watch_client(id);
                } else {
                    self.remove_client(id);
                }
            }
            Source::Feed(id) => self.serve_feed(id, flags),
            Source::Pipe(token) => {
                if flags.intersects(epoll::EventFlags::HUP | epoll::EventFlags::ERR) {
                    self.close_file(token);
                } else {
                    self.pay_pipes(&[token]);
                }
            }
        }
    }

    /// Time, and what has come out of the inputs of this turn.
    fn turn(&mut self) {
        let now = self.now();
        if self.ucm.poll_timeout().is_some_and(|due| due <= now) {
            self.ucm.handle_timeout(now);
        }
        if self.qp1.next_turn().is_some_and(|due| due <= now) {
            self.qp1.send_waiting(now, &self.network.port);
        }
        if self.settle_at.is_some_and(|due| due <= now) {
            self.settle_at = self.network.settle().then(|| now + SETTLE_EVERY);
        }
        self.drain();
        self.note_capture_trouble();
        if let End::Idle(grace) = self.end
            && self.clients.is_empty()
            && self.idle_since.elapsed() >= grace
        {
            // A program may have connected meanwhile.
            self.accept();
            self.stopping = self.clients.is_empty();
        }
    }

    /// Takes everything out of the dispatcher: lookups to answer, datagrams to send, channels to wake.
    pub(super) fn drain(&mut self) {
        let now = self.now();
        loop {
            while let Some(lookup) = self.ucm.poll_lookup() {
                let answer = self.network.look_up(&lookup);
                self.ucm.handle_lookup(now, lookup.token, answer);
            }
            while let Some(change) = self.ucm.poll_membership() {
                let outcome = self.network.change_membership(&change);
                if change.action == MembershipAction::Join {
                    self.ucm.handle_membership(now, change.token, outcome);
                }
            }
            while let Some(transmit) = self.ucm.poll_transmit() {
                // Faults strike what passes the port.
                let within_host = self.network.devices.is_own(transmit.av.remote.to_ip())
                    && !self.network.port.has_faults();
                self.qp1.send(
                    now,
                    &self.network.port,
                    (transmit.av, transmit.mad),
                    within_host,
                );
            }
            if !self.qp1.deliver_within(now, &mut self.ucm) {
                break;
            }
        }
        while let Some((file, events)) = self.ucm.poll_wake() {
            if let Some(pipe) = self.pipes.get_mut(&file.0) {
                pipe.wake(events);
                self.watch_pipe(file.0);
            }
        }
    }

    /// Writes wake-up bytes that found no room earlier.
    pub(super) fn pay_pipes(&mut self, tokens: &[u64]) {
        for token in tokens {
            if let Some(pipe) = self.pipes.get_mut(token)
                && pipe.is_in_debt()
            {
                pipe.pay();
                self.watch_pipe(*token);
            }
        }
    }

    /// After an attempt to send answers: takes back what did not arrive. False: the client has gone.
    pub(super) fn after_sending(&mut self, id: u32, sent: std::io::Result<()>) -> bool {
        let Some(client) = self.clients.get_mut(&id) else {
            return true;
        };
        for grant in client.take_undelivered() {
            match grant {
                Grant::Hello => {}
                Grant::Channel(token) => self.close_file(token),
                Grant::Slot(slot) => self.take_slot_back(id, slot),
            }
        }
        if let Err(error) = &sent {
            self.note_failure(id, error);
        }
        sent.is_ok()
    }

    /// A client is lost by something else than its end.
    pub(super) fn note_failure(&mut self, id: u32, error: &std::io::Error) {
        if !matches!(
            error.kind(),
            std::io::ErrorKind::BrokenPipe | std::io::ErrorKind::ConnectionReset
        ) {
            self.counters.clients_failed += 1;
            tracing::warn!(client = id, %error, "the connection to a program has failed");
        }
    }

    /// Reads from a client, or waits for room to answer it first.
    fn watch_client(&mut self, id: u32) {
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        let waits = client.is_backed_up();
        if std::mem::replace(&mut client.waits_for_room, waits) == waits {
            return;
        }
        let flags = if waits {
            epoll::EventFlags::OUT
        } else {
            epoll::EventFlags::IN
        };
        let client = &self.clients[&id];
        self.change(Source::Client(id), client, flags);
    }

    /// Waits for room for what a channel's pipe is owed, as long as it is.
    fn watch_pipe(&mut self, token: u64) {
        let Some(waits) = self.pipes.get_mut(&token).and_then(Pipe::new_watch) else {
            return;
        };
        let flags = if waits {
            epoll::EventFlags::OUT
        } else {
            epoll::EventFlags::empty()
        };
        self.change(Source::Pipe(token), &self.pipes[&token], flags);
    }

    pub(super) fn watch(
        &self,
        source: Source,
        fd: impl AsFd,
        flags: epoll::EventFlags,
    ) -> Result<(), Error> {
        epoll::add(
            &self.epoll,
            fd,
            epoll::EventData::new_u64(source.number()),
            flags,
        )
        .map_err(Error::errno("watch a descriptor"))
    }

    pub(super) fn change(&self, source: Source, fd: impl AsFd, flags: epoll::EventFlags) {
        let changed = epoll::modify(
            &self.epoll,
            fd,
            epoll::EventData::new_u64(source.number()),
            flags,
        );
        debug_assert!(
            changed.is_ok(),
            "{source:?} is watched from its making on: {changed:?}"
        );
    }

    /// Stops watching, also for copies of the descriptor that somebody else may hold.
    pub(super) fn forget(&self, fd: impl AsFd) {
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// A channel has been closed.
    pub(super) fn close_file(&mut self, token: u64) {
        if let Some(pipe) = self.pipes.remove(&token) {
            self.forget(&pipe);
        }
        let now = self.now();
        self.ucm.close(now, FileId(token));
    }

    /// A client has gone: its identifiers are destroyed, so that peers hear of it at once, its ports are free, its slots
    /// are renewed, its traces end.
    fn remove_client(&mut self, id: u32) {
        let Some(client) = self.clients.remove(&id) else {
            return;
        };
        tracing::debug!(
            client = id,
            pid = client.peer.pid,
            name = client.name,
            "gone"
        );
        self.forget(&client);
        if let Some(process) = &client.process {
            self.forget(process);
        }
        let now = self.now();
        self.ucm.close_all(now, Owner(id));
        let tokens: Vec<u64> = self
            .pipes
            .iter()
            .filter(|(_, pipe)| pipe.client == id)
            .map(|(token, _)| *token)
            .collect();
        for token in tokens {
            if let Some(pipe) = self.pipes.remove(&token) {
                self.forget(&pipe);
            }
        }
        self.statistics.close(id);
        self.faults.forget(&self.network.port, id);
        self.close_feed(id);
        for slot in &client.slots {
            self.network.release_slot(*slot);
        }
        if self.network.held_slots() > 0 {
            self.settle_at = Some(now + SETTLE_EVERY);
        }
        let had_traces = !client.captures.is_empty();
        drop(client);
        self.forget_captures(id, had_traces);
        self.idle_since = Instant::now();
        if self.end == End::WithFirstClient && id == FIRST_CLIENT {
            self.stopping = true;
        }
    }

    /// Looks at the interfaces again if something has changed there.
    pub(super) fn notice_changes(&mut self) {
        if self.network.take_changes() {
            self.refresh_devices();
        }
    }

    /// Looks at the interfaces again.
    pub(super) fn refresh_devices(&mut self) {
        // A failed look leaves things as they were; the next one comes.
        let before = self.network.devices.infos();
        let Ok(Found::Changed { replaced }) = self.network.look_again() else {
            return;
        };
        self.tell_changes(&before);
        let now = self.now();
        let devices = &self.network.devices;
        if !replaced.is_empty() {
            let is_same = |device: &&Device| !replaced.contains(&device.index);
            let same = devices.list.iter().filter(is_same).cloned().collect();
            self.ucm.set_devices(now, same);
        }
        self.ucm.set_devices(now, devices.list.clone());
        self.ucm
            .set_addresses_without_device(devices.without_device.clone());
        self.set_captures();
    }

    /// Every counter there is, by name.
    pub(super) fn all_counters(&self) -> Vec<(String, u64)> {
        let own = [
            ("clients", self.counters.clients),
            ("clients_refused", self.counters.clients_refused),
            ("clients_failed", self.counters.clients_failed),
            ("clients_of_other_users", self.counters.other_users),
            ("requests", self.counters.requests),
            ("requests_refused", self.counters.refusals),
            ("turns", self.counters.turns),
            ("sleeps", self.counters.sleeps),
            ("slots_held", self.network.held_slots() as u64),
            ("slots_rxq_overflow", self.network.dropped_in_slots()),
            ("group_memberships", self.network.memberships() as u64),
            ("faults_struck", self.faults.struck()),
            (
                "interfaces_left_to_kernel_rdma",
                self.network.devices.skipped.len() as u64,
            ),
        ];
        let own = own
            .into_iter()
            .map(|(name, value)| (format!("service_{name}"), value));
        let qp1 = self
            .qp1
            .counters
            .iter()
            .map(|(name, value)| (name.to_owned(), value));
        let port = self
            .network
            .port
            .counters()
            .iter()
            .map(|(name, value)| (format!("port_{name}"), value));
        own.chain(qp1)
            .chain(port)
            .chain(self.ucm.counters())
            .collect()
    }

    /// Ends every connection. What peers must hear leaves before.
    fn shut_down(&mut self) {
        let ids: Vec<u32> = self.clients.keys().copied().collect();
        for id in ids {
            self.remove_client(id);
        }
        self.drain();
        self.listener = None;
        tracing::info!("the host service has ended");
    }
}

impl Source {
    fn number(self) -> u64 {
        let (kind, value) = match self {
            Self::Listener => (0, 0),
            Self::Signals => (1, 0),
            Self::Interfaces => (2, 0),
            Self::Port => (3, 0),
            Self::Client(id) => (4, u64::from(id)),
            Self::Process(id) => (5, u64::from(id)),
            Self::Pipe(token) => (6, token),
            Self::Feed(id) => (7, u64::from(id)),
        };
        kind << VALUE_BITS | value & VALUE_MASK
    }

    fn from_number(number: u64) -> Option<Self> {
        let value = number & VALUE_MASK;
        Some(match number >> VALUE_BITS {
            0 => Self::Listener,
            1 => Self::Signals,
            2 => Self::Interfaces,
            3 => Self::Port,
            4 => Self::Client(value as u32),
            5 => Self::Process(value as u32),
            6 => Self::Pipe(value),
            7 => Self::Feed(value as u32),
            _ => return None,
        })
    }
}

/// Tokens are counted from 0 and never get this far.
const VALUE_BITS: u32 = 56;
const VALUE_MASK: u64 = (1 << VALUE_BITS) - 1;
const FIRST_CLIENT: u32 = 1;
const EVENTS_PER_TURN: usize = 256;
const SETTLE_EVERY: Duration = Duration::from_millis(500);
