//! Two hosts, the network between them, virtual time, and everything that a program asks for.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use oarlock_cm::StateName;
use oarlock_cma::{Errno, LookupToken, MembershipAction, MembershipToken};
use oarlock_cma::{LookupError, Route};
use oarlock_sim::{Network, NetworkConfig, Rng};
use oarlock_transport::{MAX_PACKET_LEN, PacketBuf};
use oarlock_ucm::client::{self, Answer, Call, Event, IdNumber};
use oarlock_ucm::{Failure, FileId};
use oarlock_wire::{AddressVector, MAD_LEN, Time};

use crate::faults::{Fault, Tamper};
use crate::groups::Member;
use crate::host::{Host, address};
use crate::ledger::{Part, Stage};
use crate::weather::Clock;
use crate::wild::{Attempt, Deed};

/// Active and passive side.
pub(crate) const ACTIVE: usize = 0;
pub(crate) const PASSIVE: usize = 1;
/// By then nothing happens any more. A connect or a program's patience, a disconnect that goes unheard (16 times 4.6 s), and
/// that twice, as some try again.
const DEADLINE: Duration = Duration::from_secs(900);
/// No host may have to be looked at later than that from now: the longest is a connect's deadline.
const LONGEST_TIMER: Duration = Duration::from_secs(101);
/// How long a connect may take altogether.
pub(crate) const CONNECT_DEADLINE: Duration = Duration::from_secs(100);
/// A program reads a channel that long after it was woken, at most: events wait, and some of them move.
const THINKING: Duration = Duration::from_millis(8);
/// What a membership is refused with: ENOBUFS.
pub(crate) const REFUSED: Errno = Errno(105);

#[derive(Clone)]
pub(crate) enum Datagram {
    Mad(AddressVector, Box<[u8; MAD_LEN]>),
    Packet(AddressVector, Vec<u8>),
}

/// What happens at a moment of its own choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Action {
    Start(usize),
    Read(usize, FileId),
    Migrate(usize, usize),
    MigrateListener,
    Accept(usize),
    Establish(usize),
    Disconnect(usize, usize),
    GiveUp(usize),
    LoadPath(usize, usize),
    Cut,
    Mend,
    AnswerLookup(usize, LookupToken, bool),
    AnswerMembership(usize, MembershipToken, bool),
    /// A device of a side goes or comes.
    Device(usize, usize, bool),
    /// The movable address of a side goes or comes.
    Address(usize, bool),
    Inject(usize),
    MoveAny(usize),
    CloseAny(usize),
    Listen(usize, usize),
    ListenAnew(usize, usize),
    Call(usize),
    /// Something that is done with an identifier, if it is still the one with that key.
    Do(Deed, usize, IdNumber, u64),
    Member(usize),
}

pub(crate) struct World {
    pub(crate) now: Time,
    pub(crate) rng: Rng,
    pub(crate) seed: u64,
    pub(crate) fault: Fault,
    pub(crate) tamper: Tamper,
    pub(crate) hosts: [Host; 2],
    pub(crate) listener: Listener,
    pub(crate) attempts: Vec<Attempt>,
    pub(crate) members: Vec<Member>,
    pub(crate) network: Network<Datagram>,
    actions: BTreeSet<(Time, u64, Action)>,
    next_action: u64,
    /// When queue pairs have to be looked at: host and number.
    pub(crate) qp_deadlines: BTreeSet<(Time, usize, u32)>,
    pub(crate) clocks: [Clock; 2],
    /// Whether a device that goes still carries what its host has to say about it.
    pub(crate) last_words: bool,
    /// The device of the spine goes too.
    pub(crate) is_severe: bool,
    pub(crate) moved_events: usize,
    /// What happened how often, beside what the hosts count.
    pub(crate) tally: BTreeMap<&'static str, u64>,
    routes: BTreeMap<(usize, LookupToken), Result<Route, LookupError>>,
    packet: Box<PacketBuf>,
}

pub(crate) struct Listener {
    pub(crate) id: IdNumber,
    pub(crate) file: FileId,
    pub(crate) migrated: bool,
    /// Requests for connections that were served already; they were rejected and are destroyed in the end.
    pub(crate) strays: Vec<(IdNumber, FileId)>,
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
            Host::new(ACTIVE, seed, connections, fault),
            Host::new(PASSIVE, seed, connections, fault),
        ];
        let file = hosts[PASSIVE].old[0];
        Self {
            now: Time::ZERO,
            rng: Rng::new(seed ^ 0x5707),
            seed,
            fault,
            tamper: Tamper::new(fault),
            hosts,
            listener: Listener {
                id: IdNumber(0),
                file,
                migrated: false,
                strays: vec![],
            },
            attempts: vec![],
            members: vec![],
            network: Network::new(network, seed),
            actions: BTreeSet::new(),
            next_action: 0,
            qp_deadlines: BTreeSet::new(),
            clocks: [Clock::default(); 2],
            last_words: seed.is_multiple_of(3),
            is_severe: false,
            moved_events: 0,
            tally: BTreeMap::new(),
            routes: BTreeMap::new(),
            packet: Box::new([0; MAX_PACKET_LEN]),
        }
    }

    pub(crate) fn count(&mut self, what: &'static str) {
        *self.tally.entry(what).or_default() += 1;
    }

    // ---- time ----

    /// The time that a host's clock shows.
    pub(crate) fn host_now(&self, side: usize) -> Time {
        self.clocks[side].shows(self.now)
    }

    /// Lets time pass until nothing can happen any more.
    pub(crate) fn turn(&mut self) -> Result<(), String> {
        let deadline = Time::ZERO + DEADLINE;
        while let Some(next) = self.next_moment() {
            if next > deadline {
                return Err(format!("it still goes on: {}", self.unfinished()));
            }
            self.now = self.now.max(next);
            self.step()?;
        }
        Ok(())
    }

    fn host_timeout(&self, side: usize) -> Option<Time> {
        if self.fault == Fault::TimersAreForgotten && side == PASSIVE {
            return None;
        }
        let at = self.hosts[side].ucm.poll_timeout()?;
        Some(self.clocks[side].when_it_shows(at, self.now))
    }

    fn next_moment(&self) -> Option<Time> {
        let hosts = [ACTIVE, PASSIVE].map(|side| self.host_timeout(side));
        let others = [
            self.network.next_delivery(),
            self.actions.first().map(|(at, ..)| *at),
            self.qp_deadlines.first().map(|(at, ..)| *at),
        ];
        hosts.into_iter().chain(others).flatten().min()
    }

    /// One input of each kind that is due, each with its drain.
    fn step(&mut self) -> Result<(), String> {
        let now = self.now;
        while let Some(delivery) = self.network.deliver(now) {
            let to = delivery.to;
            match delivery.datagram {
                Datagram::Mad(av, mad) => {
                    if self.arrives(to, &av) {
                        let shown = self.host_now(to);
                        self.hosts[to].ucm.handle_mad(shown, &av, &mad);
                        self.drain_host(to)?;
                    }
                }
                Datagram::Packet(av, bytes) => self.packet_arrived(to, &av, &bytes)?,
            }
        }
        for side in [ACTIVE, PASSIVE] {
            if self.host_timeout(side).is_some_and(|at| at <= now) {
                let shown = self.host_now(side);
                self.hosts[side].ucm.handle_timeout(shown);
                self.drain_host(side)?;
            }
        }
        while let Some(&(at, side, qpn)) = self.qp_deadlines.first().filter(|(at, ..)| *at <= now) {
            self.qp_deadlines.remove(&(at, side, qpn));
            let shown = self.host_now(side);
            if let Some(qp) = self.hosts[side].qps.get_mut(&qpn) {
                qp.noted = None;
                qp.rc.handle_timeout(shown);
                self.drain_qp(side, qpn)?;
            }
        }
        while let Some(&entry) = self.actions.first().filter(|(at, ..)| *at <= now) {
            self.actions.remove(&entry);
            self.act(entry.2)?;
        }
        Ok(())
    }

    /// Whether the address that a datagram was sent to is there.
    fn arrives(&mut self, to: usize, av: &AddressVector) -> bool {
        let is_there = self.hosts[to].devices.owns(to, av.local.to_ip());
        if !is_there {
            self.count("datagrams to an address that has gone");
        }
        is_there
    }

    fn packet_arrived(
        &mut self,
        to: usize,
        av: &AddressVector,
        bytes: &[u8],
    ) -> Result<(), String> {
        if av.local.is_multicast() {
            return self.group_packet_arrived(to, av, bytes);
        }
        if !self.arrives(to, av) {
            return Ok(());
        }
        // BTH bytes 5 to 7 (IBA Vol. 1 ch. 9): the destination queue pair.
        let qpn = u32::from_be_bytes([0, bytes[5], bytes[6], bytes[7]]);
        let shown = self.host_now(to);
        if let Some(qp) = self.hosts[to].qps.get_mut(&qpn) {
            qp.rc.handle_datagram(shown, av, bytes, &mut qp.memory);
            return self.drain_qp(to, qpn);
        }
        if let Some(qp) = self.hosts[to].datagram_qps.get_mut(&qpn) {
            qp.handle_datagram(av, bytes);
            return self.drain_datagrams(to, qpn);
        }
        Ok(())
    }

    /// Sends what a host has to send, takes its questions, and lets its programs know that there is something to read.
    pub(crate) fn drain_host(&mut self, side: usize) -> Result<(), String> {
        while let Some(lookup) = self.hosts[side].ucm.poll_lookup() {
            let answer = self.hosts[side].devices.route(side, &lookup);
            self.routes.insert((side, lookup.token), answer);
            let is_spine = lookup.destination == address(1 - side);
            match self.rng.below(20) {
                0 if !is_spine => self.count("lookups without an answer"),
                1 => {
                    let late = Duration::from_millis(2500 * self.rng.below(2) + 100);
                    let late = if is_spine { late.min(THINKING) } else { late };
                    self.later(late, Action::AnswerLookup(side, lookup.token, true));
                }
                2 if !is_spine => {
                    self.later(THINKING, Action::AnswerLookup(side, lookup.token, false));
                }
                _ => self.answer_lookup(side, lookup.token, true),
            }
        }
        while let Some(membership) = self.hosts[side].ucm.poll_membership() {
            let is_leave = membership.action == MembershipAction::Leave;
            if is_leave && self.tamper.forgets_leave() {
                continue;
            }
            let refuse = self.rng.chance(0.15);
            self.hosts[side].interfaces.apply(&membership, refuse)?;
            if is_leave {
                self.count("memberships left");
                continue;
            }
            self.count(if refuse {
                "memberships refused"
            } else {
                "memberships granted"
            });
            if !self.tamper.forgets_answer() {
                let answer = Action::AnswerMembership(side, membership.token, !refuse);
                self.later(Duration::from_millis(40), answer);
            }
        }
        while let Some(transmit) = self.hosts[side].ucm.poll_transmit() {
            if self.last_words
                || self.hosts[side]
                    .devices
                    .owns(side, transmit.av.local.to_ip())
            {
                let datagram = Datagram::Mad(transmit.av.reversed(), Box::new(transmit.mad));
                self.network.send(self.now, side, 1 - side, datagram);
            }
        }
        while let Some((file, _)) = self.hosts[side].ucm.poll_wake() {
            if self.hosts[side].reading.insert(file) {
                self.later(THINKING, Action::Read(side, file));
            }
        }
        let latest = self.host_now(side) + LONGEST_TIMER;
        match self.hosts[side].ucm.poll_timeout() {
            Some(at) if at > latest => Err(format!("side {side} waits until {at:?}")),
            _ => Ok(()),
        }
    }

    fn answer_lookup(&mut self, side: usize, token: LookupToken, is_good: bool) {
        let known = self.routes.remove(&(side, token));
        let answer = known
            .filter(|_| is_good)
            .unwrap_or(Err(LookupError::Failed(Errno::EHOSTUNREACH)));
        let shown = self.host_now(side);
        self.hosts[side].ucm.handle_lookup(shown, token, answer);
    }

    fn answer_membership(&mut self, side: usize, token: MembershipToken, is_granted: bool) {
        self.hosts[side].interfaces.answered(token);
        let outcome = if is_granted { Ok(()) } else { Err(REFUSED) };
        let shown = self.host_now(side);
        self.hosts[side]
            .ucm
            .handle_membership(shown, token, outcome);
    }

    pub(crate) fn drain_qp(&mut self, side: usize, qpn: u32) -> Result<(), String> {
        let shown = self.host_now(side);
        let owns_source =
            |host: &Host, av: &AddressVector| host.devices.owns(side, av.local.to_ip());
        while let Some(qp) = self.hosts[side].qps.get_mut(&qpn) {
            let Some(transmit) = qp.rc.poll_transmit(shown, &mut qp.memory, &mut self.packet)
            else {
                break;
            };
            if owns_source(&self.hosts[side], &transmit.av) {
                let bytes = self.packet[..transmit.len].to_vec();
                let datagram = Datagram::Packet(transmit.av.reversed(), bytes);
                self.network.send(self.now, side, 1 - side, datagram);
            }
        }
        let Some(qp) = self.hosts[side].qps.get_mut(&qpn) else {
            return Ok(());
        };
        let deadline = qp.rc.poll_timeout();
        let deadline = deadline.map(|at| self.clocks[side].when_it_shows(at, self.now));
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
            self.on_qp_event(side, qpn, event)?;
        }
        for completion in completions {
            self.on_completion(side, qpn, &completion)?;
        }
        Ok(())
    }

    /// Sends what a datagram queue pair has to send: to a group, its own host hears it too.
    pub(crate) fn drain_datagrams(&mut self, side: usize, qpn: u32) -> Result<(), String> {
        while let Some(qp) = self.hosts[side].datagram_qps.get_mut(&qpn) {
            let Some(transmit) = qp.poll_transmit(&mut self.packet) else {
                break;
            };
            if !self.hosts[side]
                .devices
                .owns(side, transmit.av.local.to_ip())
            {
                continue;
            }
            let bytes = self.packet[..transmit.len].to_vec();
            let hosts = match transmit.av.remote.is_multicast() {
                true => vec![side, 1 - side],
                false => vec![1 - side],
            };
            for to in hosts {
                let datagram = Datagram::Packet(transmit.av.reversed(), bytes.clone());
                self.network.send(self.now, side, to, datagram);
            }
        }
        while let Some(qp) = self.hosts[side].datagram_qps.get_mut(&qpn) {
            let Some(received) = qp.received()? else {
                break;
            };
            self.datagram_received(side, qpn, &received)?;
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
            Action::Accept(connection) => self.accept(connection),
            Action::Establish(connection) => self.establish(connection),
            Action::Disconnect(side, connection) => self.disconnect(side, connection),
            Action::GiveUp(connection) => self.give_up(connection),
            Action::LoadPath(side, connection) => self.load_path(side, connection),
            Action::Cut => {
                self.network.partition(ACTIVE, PASSIVE);
                Ok(())
            }
            Action::Mend => {
                self.network.heal(ACTIVE, PASSIVE);
                Ok(())
            }
            Action::AnswerLookup(side, token, is_good) => {
                self.answer_lookup(side, token, is_good);
                self.drain_host(side)
            }
            Action::AnswerMembership(side, token, is_granted) => {
                self.answer_membership(side, token, is_granted);
                self.drain_host(side)
            }
            Action::Device(side, device, comes) => self.device(side, device, comes),
            Action::Address(side, comes) => self.address(side, comes),
            Action::Inject(side) => self.inject(side),
            Action::MoveAny(side) => self.move_any(side),
            Action::CloseAny(side) => self.close_any(side),
            Action::Listen(side, which) => self.listen(side, which),
            Action::ListenAnew(side, which) => self.listen_anew(side, which),
            Action::Call(attempt) => self.call_peer(attempt),
            Action::Do(deed, side, id, key) => {
                if self.hosts[side].ledger.is_still(id, key) {
                    self.carry_out(deed, side, id)?;
                }
                Ok(())
            }
            Action::Member(member) => self.member(member),
        }
    }

    // ---- requests ----

    pub(crate) fn try_call<A: Answer>(
        &mut self,
        side: usize,
        file: FileId,
        call: &Call<A>,
    ) -> Result<Result<A, Failure>, String> {
        let mut response = Vec::new();
        let shown = self.host_now(side);
        let written =
            self.hosts[side]
                .ucm
                .write(shown, file, call.request(), call.inline(), &mut response);
        self.drain_host(side)?;
        let decode = |_| call.decode(&response).expect("the answer fits its command");
        Ok(written.map(decode))
    }

    pub(crate) fn call<A: Answer>(
        &mut self,
        side: usize,
        file: FileId,
        call: &Call<A>,
    ) -> Result<A, String> {
        self.try_call(side, file, call)?
            .map_err(|failure| format!("side {side}: {failure}"))
    }

    /// A request about an identifier, on its channel. Once its device has gone there is only one answer, and before that any
    /// other.
    pub(crate) fn ask<A: Answer + std::fmt::Debug>(
        &mut self,
        side: usize,
        id: IdNumber,
        call: &Call<A>,
    ) -> Result<Result<A, Failure>, String> {
        let record = self.hosts[side].ledger.record(id);
        let (file, is_gone) = (record.file, record.is_gone);
        let answer = self.try_call(side, file, call)?;
        let says_gone = matches!(&answer, Err(failure) if failure.errno() == Errno::ENXIO);
        if says_gone != is_gone {
            return Err(format!(
                "side {side}, {id:?}: {answer:?}; device gone: {is_gone}"
            ));
        }
        Ok(answer)
    }

    /// As [`ask`](Self::ask), of what can only fail for want of a device. Says whether it was done.
    pub(crate) fn demand<A: Answer + std::fmt::Debug>(
        &mut self,
        side: usize,
        id: IdNumber,
        call: &Call<A>,
    ) -> Result<Option<A>, String> {
        match self.ask(side, id, call)? {
            Ok(answer) => Ok(Some(answer)),
            Err(failure) if failure.errno() == Errno::ENXIO => Ok(None),
            Err(failure) => Err(format!("side {side}, {id:?}: {failure}")),
        }
    }

    /// A new identifier in the books. Its value is its key.
    pub(crate) fn create(
        &mut self,
        side: usize,
        file: FileId,
        port_space: u16,
        part: Part,
    ) -> Result<IdNumber, String> {
        let is_datagram = port_space != TCP;
        let qp_type = if is_datagram { 4 } else { 2 };
        let uid = self.hosts[side].ledger.next_key();
        let id = self.call(side, file, &client::create_id(uid, port_space, qp_type))?;
        let ledger = &mut self.hosts[side].ledger;
        ledger.add(id, file, part, Stage::Idle, is_datagram)?;
        Ok(id)
    }

    pub(crate) fn destroy(&mut self, side: usize, id: IdNumber) -> Result<(), String> {
        let file = self.hosts[side].ledger.record(id).file;
        self.note_state(side, id);
        let counted = self.call(side, file, &client::destroy_id(id))?.0;
        self.hosts[side].ledger.destroyed(id, counted)
    }

    /// Counts the state in which an identifier is destroyed: the connection's, if there is one.
    fn note_state(&mut self, side: usize, id: IdNumber) {
        let ucm = &self.hosts[side].ucm;
        let known = ucm.id(id.0).and_then(|id| ucm.cma().query(id).ok());
        let Some(known) = known else { return };
        let name = match known.cm_state {
            Some(StateName::Idle) => "a connection that is over",
            Some(state) => state.as_str(),
            None => known.state.name(),
        };
        *self.tally.entry(name).or_default() += 1;
    }

    /// Takes events until the channel is empty. Only woken channels are read, so that a lost wake-up shows.
    fn read(&mut self, side: usize, file: FileId) -> Result<(), String> {
        loop {
            match self.try_call(side, file, &client::get_event())? {
                Ok(event) => {
                    for event in self.tamper.pass(side, event) {
                        let Event {
                            id, kind, status, ..
                        } = event;
                        self.on_event(side, file, &event).map_err(|what| {
                            format!("{what} (side {side}, {id:?}, event {kind}, status {status})")
                        })?;
                    }
                }
                Err(Failure::NoEvent | Failure::UnknownFile) => return Ok(()),
                Err(other) => return Err(other.to_string()),
            }
        }
    }

    fn on_event(&mut self, side: usize, file: FileId, event: &Event) -> Result<(), String> {
        let (id, part) = self.hosts[side].ledger.take(file, event)?;
        match part {
            Part::SpineListener | Part::Spine(_) | Part::Stray => {
                self.on_spine_event(side, id, part, event)
            }
            Part::Member(member) => self.on_member_event(member, event),
            _ => self.on_wild_event(side, id, part, event),
        }
    }

    /// The planted fault: what waited is gone.
    pub(crate) fn discard(&mut self, side: usize, file: FileId) -> Result<(), String> {
        while self.try_call(side, file, &client::get_event())?.is_ok() {}
        Ok(())
    }

    /// The planted fault: the waker is lost.
    pub(crate) fn forget_wake(&mut self, side: usize, file: FileId) {
        self.actions
            .retain(|(_, _, action)| *action != Action::Read(side, file));
        self.hosts[side].reading.remove(&file);
    }
}

pub(crate) const TCP: u16 = 0x106;
pub(crate) const UDP: u16 = 0x111;
