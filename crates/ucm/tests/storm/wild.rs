//! Programs of another kind than the spine's: they connect both ways, and change their minds at any moment. Nothing is sent
//! but the connection managers' own messages.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use oarlock_ucm::abi::Ece;
use oarlock_ucm::client::{self, Event, IdNumber, Param};

use crate::host::{address, movable, volatile};
use crate::ledger::{Part, Stage};
use crate::program::{kind, reason};
use crate::world::{ACTIVE, Action, PASSIVE, TCP, UDP, World};

/// Connections and datagram requests that a storm begins, on both sides together.
const CALLS: usize = 24;
const ASKS: usize = 12;
/// Where they listen: on any address, on the one that comes and goes, for datagrams.
const LISTENERS: [(u16, u16); 3] = [(TCP, 7472), (TCP, 7473), (UDP, 7474)];
/// Where nobody listens.
const NOBODY: u16 = 7479;
/// How long a connection that is up lives, at most.
const LIFE: Duration = Duration::from_secs(20);
/// How long an accepted request is waited for. It covers all repetitions of a response.
const PATIENCE: Duration = Duration::from_secs(110);
/// What a rejection says.
const REFUSAL: &[u8] = b"not today";

/// What may be done with an identifier at some moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Deed {
    Destroy,
    /// Takes a connection down or an attempt back, once or twice.
    Disconnect,
    Connect,
    Accept,
    Reject,
    Establish,
    /// The end of a long wait for the outcome of an acceptance.
    LosePatience,
}

/// One attempt to reach a service, and what became of it on both sides.
#[derive(Clone, Debug)]
pub(crate) struct Attempt {
    pub(crate) side: usize,
    pub(crate) is_datagram: bool,
    pub(crate) to: SocketAddr,
    ece: Ece,
    /// The active side has completed the connection.
    established: bool,
    /// Keys of children that were accepted.
    pub(crate) accepted: Vec<u64>,
    /// Requests that were refused, destroyed or lost with their listener.
    refused: u32,
    pub(crate) is_over: bool,
    /// Datagrams that arrived, by number.
    pub(crate) arrived: [u32; crate::datagrams::SENT],
    pub(crate) has_sent: bool,
}

fn ece_of(attempt: usize) -> Ece {
    match attempt % 3 {
        0 => Ece::default(),
        rest => Ece {
            vendor_id: 0x00_1405 + attempt as u32,
            attr_mod: rest as u32,
        },
    }
}

/// What a child answers to the options of its request.
fn ece_of_child(asked: Ece) -> Ece {
    Ece {
        attr_mod: asked.attr_mod << 4,
        ..asked
    }
}

/// The queue pairs of callers and children: nobody else has these numbers.
fn qpn_of_caller(attempt: usize) -> u32 {
    0x20_0000 + attempt as u32
}

fn qpn_of_child(key: u64) -> u32 {
    0x30_0000 + key as u32
}

impl World {
    pub(crate) fn plan_calls(&mut self) -> Result<(), String> {
        for side in [ACTIVE, PASSIVE] {
            self.start_datagram_service(side)?;
            for which in 0..LISTENERS.len() {
                self.listen(side, which)?;
                if self.rng.chance(0.3) {
                    self.later(Duration::from_millis(200), Action::ListenAnew(side, which));
                }
            }
        }
        for attempt in 0..CALLS + ASKS {
            let side = self.rng.index(2);
            let is_datagram = attempt >= CALLS;
            let other = 1 - side;
            let port = LISTENERS[if is_datagram { 2 } else { 0 }].1;
            let to = match self.rng.below(10) {
                0 => (address(other), NOBODY),
                1 | 2 => (movable(other), port),
                3 | 4 if is_datagram => (volatile(other), port),
                3 | 4 => (volatile(other), LISTENERS[1].1),
                _ => (address(other), port),
            };
            self.attempts.push(Attempt {
                side,
                is_datagram,
                to: to.into(),
                // A SIDR_REQ carries none.
                ece: if is_datagram {
                    Ece::default()
                } else {
                    ece_of(attempt)
                },
                established: false,
                accepted: vec![],
                refused: 0,
                is_over: false,
                arrived: Default::default(),
                has_sent: false,
            });
            let within = if self.rng.chance(0.3) { 5_000 } else { 150 };
            self.later(Duration::from_millis(within), Action::Call(attempt));
        }
        Ok(())
    }

    pub(crate) fn listen(&mut self, side: usize, which: usize) -> Result<(), String> {
        let part = Part::Listener(which);
        let ip = match which {
            1 => volatile(side),
            _ => IpAddr::from([0, 0, 0, 0]),
        };
        let listens = self.hosts[side]
            .ledger
            .iter()
            .any(|(_, record)| record.part == part);
        if listens || which == 1 && !self.hosts[side].devices.owns(side, ip) {
            return Ok(());
        }
        let file = self.any_wild_file(side);
        let (port_space, port) = LISTENERS[which];
        let id = self.create(side, file, port_space, part)?;
        self.call(side, file, &client::bind(id, (ip, port).into()))?;
        let backlog = self.rng.below(4) as i32 + 1;
        self.call(side, file, &client::listen(id, backlog))?;
        self.hosts[side].ledger.record(id).stage = Stage::Listening;
        Ok(())
    }

    /// A listener goes, with the requests that wait for it, and another one takes its place.
    pub(crate) fn listen_anew(&mut self, side: usize, which: usize) -> Result<(), String> {
        let part = Part::Listener(which);
        let found = self.hosts[side].ledger.find(part);
        if let Some(id) = found {
            self.destroy(side, id)?;
        }
        self.listen(side, which)
    }

    pub(crate) fn any_wild_file(&mut self, side: usize) -> oarlock_ucm::FileId {
        let wild = &self.hosts[side].wild;
        wild[self.rng.index(wild.len())]
    }

    // ---- the active side ----

    pub(crate) fn call_peer(&mut self, attempt: usize) -> Result<(), String> {
        let Attempt {
            side,
            is_datagram,
            to,
            ..
        } = self.attempts[attempt];
        let file = self.any_wild_file(side);
        let (port_space, part) = match is_datagram {
            true => (UDP, Part::Asker(attempt)),
            false => (TCP, Part::Caller(attempt)),
        };
        let id = self.create(side, file, port_space, part)?;
        let key = self.hosts[side].ledger.record(id).key;
        if to.ip() == movable(1 - side) {
            let source = (movable(side), 0).into();
            let is_there = self.hosts[side].devices.owns(side, movable(side));
            let bound = self.try_call(side, file, &client::bind(id, source))?;
            if bound.is_ok() != is_there {
                return Err(format!(
                    "{source:?} is there: {is_there}; binding: {bound:?}"
                ));
            }
            if !is_there {
                return self.finish(side, id);
            }
        }
        let resolve = client::resolve_addr(id, None, to, 2000);
        self.call(side, file, &resolve)?;
        self.hosts[side].ledger.record(id).stage = Stage::ResolvingAddr;
        self.hosts[side].lookups_asked += 1;
        let deed = match self.rng.below(10) {
            0..3 => Deed::Destroy,
            3..6 => Deed::Disconnect,
            _ => return Ok(()),
        };
        let scale = [2, 30, 300, 12_000][self.rng.index(4)];
        self.later(
            Duration::from_millis(scale),
            Action::Do(deed, side, id, key),
        );
        Ok(())
    }

    fn soon(&mut self, within: Duration, deed: Deed, side: usize, id: IdNumber) {
        let key = self.hosts[side].ledger.record(id).key;
        self.later(within, Action::Do(deed, side, id, key));
    }

    /// After longer than the peer waits before it asks again.
    fn slowly(&mut self, deed: Deed, side: usize, id: IdNumber) {
        let key = self.hosts[side].ledger.record(id).key;
        let after = Duration::from_millis(5_000 + self.rng.below(7_000));
        self.after(after, Action::Do(deed, side, id, key));
    }

    /// Nothing more is wanted of an identifier: it goes now, or in a while.
    pub(crate) fn finish(&mut self, side: usize, id: IdNumber) -> Result<(), String> {
        if self.rng.chance(0.5) {
            return self.carry_out(Deed::Destroy, side, id);
        }
        self.soon(Duration::from_secs(2), Deed::Destroy, side, id);
        Ok(())
    }

    pub(crate) fn forget_caller(&mut self, attempt: usize) {
        self.attempts[attempt].is_over = true;
        let side = self.attempts[attempt].side;
        let qpn = crate::datagrams::qpn_of_asker(attempt);
        self.hosts[side].datagram_qps.remove(&qpn);
    }

    // ---- events ----

    pub(crate) fn on_wild_event(
        &mut self,
        side: usize,
        id: IdNumber,
        part: Part,
        event: &Event,
    ) -> Result<(), String> {
        match event.kind {
            kind::USER => return Ok(()),
            kind::ADDR_CHANGE => {
                self.count("address changes noticed");
                return Ok(());
            }
            kind::CONNECT_REQUEST => {
                self.count("requests");
                return self.on_wild_request(side, id, event);
            }
            kind::DEVICE_REMOVAL => {
                self.count("device removals noticed");
                if let Part::Listener(which) = part {
                    self.after(Duration::from_secs(3), Action::Listen(side, which));
                    return self.destroy(side, id);
                }
                return self.finish(side, id);
            }
            _ => {}
        }
        if self.hosts[side].ledger.record(id).is_gone {
            // The program is about to hear of it.
            return Ok(());
        }
        match (event.kind, part) {
            (kind::ADDR_RESOLVED, _) => {
                self.demand(side, id, &client::resolve_route(id, 2000))?;
                self.hosts[side].ledger.record(id).stage = Stage::ResolvingRoute;
                Ok(())
            }
            (kind::ROUTE_RESOLVED, Part::Caller(_)) if self.rng.chance(0.2) => {
                self.soon(Duration::from_millis(30), Deed::Connect, side, id);
                Ok(())
            }
            (kind::ROUTE_RESOLVED, Part::Caller(attempt)) => self.connect(side, id, attempt),
            (kind::ROUTE_RESOLVED, Part::Asker(attempt)) => self.ask_service(side, id, attempt),
            (kind::ESTABLISHED, Part::Asker(attempt)) => self.on_service(side, id, attempt, event),
            (kind::CONNECT_RESPONSE, Part::Caller(attempt)) => {
                self.on_wild_response(side, id, attempt, event)
            }
            (kind::REJECTED | kind::UNREACHABLE | kind::ADDR_ERROR, _) => {
                self.check_refusal(part, event)?;
                self.finish(side, id)
            }
            (kind::ESTABLISHED, Part::Called(attempt)) => {
                if !self.attempts[attempt].established {
                    return Err("established, and the active side never said so".into());
                }
                self.count("wild connections");
                self.soon(LIFE, Deed::Disconnect, side, id);
                Ok(())
            }
            (kind::DISCONNECTED, _) => {
                if self.hosts[side].ledger.record(id).is_withdrawn {
                    self.soon(Duration::from_secs(3), Deed::Destroy, side, id);
                } else {
                    self.soon(Duration::from_secs(3), Deed::Disconnect, side, id);
                }
                Ok(())
            }
            (kind::TIMEWAIT_EXIT, _) => self.finish(side, id),
            _ => Err(format!("not for {part:?}")),
        }
    }

    /// Whoever is refused is so for a reason that somebody had.
    fn check_refusal(&mut self, part: Part, event: &Event) -> Result<(), String> {
        let (Part::Caller(attempt) | Part::Asker(attempt)) = part else {
            return Ok(());
        };
        let known = &self.attempts[attempt];
        let is_nobody = known.to.port() == NOBODY;
        match (event.kind, event.status) {
            (kind::REJECTED, reason::CONSUMER_DEFINED) => {
                let data = event.param.private_data.as_deref().unwrap_or_default();
                if data.starts_with(REFUSAL) && known.refused == 0 {
                    return Err("a refusal that nobody said".into());
                }
            }
            (kind::REJECTED, reason::INVALID_SERVICE_ID) => self.count("rejected: no listener"),
            (kind::UNREACHABLE, 1) if known.is_datagram => self.count("no service"),
            (kind::UNREACHABLE, 2) if known.is_datagram => self.count("service refused"),
            (kind::REJECTED, reason::TIMEOUT) if !known.accepted.is_empty() => {}
            // The address that the request was for had gone from the host, or the device.
            (kind::REJECTED, reason::INVALID_GID) => {}
            (kind::UNREACHABLE | kind::ADDR_ERROR, status) if status < 0 => {}
            _ => return Err(format!("refused without a reason; {known:?}")),
        }
        if is_nobody && !self.attempts[attempt].accepted.is_empty() {
            return Err("somebody accepted for nobody".into());
        }
        Ok(())
    }

    fn connect(&mut self, side: usize, id: IdNumber, attempt: usize) -> Result<(), String> {
        let param = Param {
            private_data: (attempt as u32).to_le_bytes().into(),
            retry_count: 7,
            rnr_retry_count: 7,
            qp_num: qpn_of_caller(attempt),
            ece: self.attempts[attempt].ece,
            ..Param::default()
        };
        let call = client::connect(id, &param).expect("few bytes");
        if self.demand(side, id, &call)?.is_some() {
            self.hosts[side].ledger.record(id).stage = Stage::Calling;
        }
        Ok(())
    }

    fn on_wild_response(
        &mut self,
        side: usize,
        id: IdNumber,
        attempt: usize,
        event: &Event,
    ) -> Result<(), String> {
        let data = event.param.private_data.as_deref().unwrap_or_default();
        let key = data.first_chunk().map_or(0, |key| u64::from_le_bytes(*key));
        let known = &self.attempts[attempt];
        if !known.accepted.contains(&key) || event.param.qp_num != qpn_of_child(key) {
            return Err(format!("a response that nobody gave; {known:?}"));
        }
        if event.ece != ece_of_child(known.ece) {
            return Err(format!("options of the response: asked {:?}", known.ece));
        }
        match self.rng.below(10) {
            0 => self.carry_out(Deed::Reject, side, id),
            1 => self.carry_out(Deed::Disconnect, side, id),
            2 | 3 => {
                // Longer than a response is waited for: the peer hears that it takes a while.
                self.slowly(Deed::Establish, side, id);
                Ok(())
            }
            _ => self.carry_out(Deed::Establish, side, id),
        }
    }

    // ---- the passive side ----

    fn on_wild_request(
        &mut self,
        side: usize,
        listener: IdNumber,
        event: &Event,
    ) -> Result<(), String> {
        let record = self.hosts[side].ledger.record(listener);
        let (file, is_datagram) = (record.file, record.is_datagram);
        let data = match is_datagram {
            true => event.ud().private_data,
            false => event.param.private_data.clone(),
        };
        let data = data.unwrap_or_default();
        let attempt = data
            .first_chunk()
            .map_or(0, |four| u32::from_le_bytes(*four)) as usize;
        let known = self.attempts.get(attempt).ok_or("a request of nobody")?;
        if known.side == side || known.is_datagram != is_datagram || known.ece != event.ece {
            return Err(format!("a request that nobody made; {known:?}"));
        }
        let part = match is_datagram {
            true => Part::Asked(attempt),
            false => Part::Called(attempt),
        };
        let id = event.id;
        let ledger = &mut self.hosts[side].ledger;
        ledger.add(id, file, part, Stage::Requested, is_datagram)?;
        if self.has_gone(side, id)? {
            return self.finish(side, id);
        }
        match self.rng.below(20) {
            0..9 => self.carry_out(Deed::Accept, side, id),
            9..12 => {
                // Longer than a request is waited for: the peer hears that it takes a while.
                self.slowly(Deed::Accept, side, id);
                Ok(())
            }
            12..14 => self.carry_out(Deed::Reject, side, id),
            14 => self.carry_out(Deed::Disconnect, side, id),
            15 => {
                self.soon(Duration::from_secs(9), Deed::Destroy, side, id);
                Ok(())
            }
            16 => self.carry_out(Deed::Destroy, side, id),
            _ => {
                self.soon(Duration::from_secs(12), Deed::Destroy, side, id);
                self.carry_out(Deed::Accept, side, id)
            }
        }
    }

    /// Whether the device of a request went before the request was taken: nothing says so but the first call.
    pub(crate) fn has_gone(&mut self, side: usize, id: IdNumber) -> Result<bool, String> {
        let file = self.hosts[side].ledger.record(id).file;
        let Err(failure) = self.try_call(side, file, &client::query_addr(id))? else {
            return Ok(false);
        };
        if failure.errno() != oarlock_cma::Errno::ENXIO {
            return Err(format!("{id:?}: {failure}"));
        }
        self.hosts[side].ledger.device_goes(id);
        self.count("requests whose device had gone");
        Ok(true)
    }

    // ---- deeds ----

    pub(crate) fn carry_out(
        &mut self,
        deed: Deed,
        side: usize,
        id: IdNumber,
    ) -> Result<(), String> {
        let record = self.hosts[side].ledger.record(id);
        let (part, key) = (record.part, record.key);
        let (stage, is_gone) = (record.stage, record.is_gone);
        let is_reporting = record.is_reporting;
        match deed {
            Deed::Destroy => {
                match part {
                    Part::Caller(attempt) | Part::Asker(attempt) => self.forget_caller(attempt),
                    Part::Called(attempt) | Part::Asked(attempt) => {
                        self.attempts[attempt].refused += u32::from(stage == Stage::Requested);
                    }
                    _ => {}
                }
                self.destroy(side, id)
            }
            _ if is_gone && is_reporting => Ok(()),
            // Nobody says so to the child of a request, but the next call.
            _ if is_gone => self.carry_out(Deed::Destroy, side, id),
            Deed::Disconnect => {
                self.disconnect_wild(side, id)?;
                let is_there = self.hosts[side].ledger.is_still(id, key);
                if is_there && self.rng.chance(0.3) {
                    self.count("second disconnects");
                    self.disconnect_wild(side, id)?;
                }
                Ok(())
            }
            Deed::LosePatience if stage == Stage::Accepted => self.disconnect_wild(side, id),
            Deed::LosePatience => Ok(()),
            Deed::Accept if stage == Stage::Requested => self.accept_wild(side, id, part),
            Deed::Reject => self.reject_wild(side, id, part),
            Deed::Establish if stage == Stage::Answered => self.establish_wild(side, id, part),
            Deed::Connect => match part {
                Part::Caller(attempt) => self.connect(side, id, attempt),
                _ => Err(format!("{part:?} connects")),
            },
            Deed::Accept | Deed::Establish => Ok(()),
        }
    }

    /// In any state: it ends what there is, and is harmless where there is nothing.
    fn disconnect_wild(&mut self, side: usize, id: IdNumber) -> Result<(), String> {
        let stage = self.stage(side, id);
        let has_connection = !matches!(
            stage,
            Stage::Idle
                | Stage::ResolvingAddr
                | Stage::AddrResolved
                | Stage::ResolvingRoute
                | Stage::RouteResolved
        );
        let answer = self.ask(side, id, &client::disconnect(id))?;
        if answer.is_ok() != has_connection {
            return Err(format!(
                "{id:?} in {stage:?}: disconnect answers {answer:?}"
            ));
        }
        let record = self.hosts[side].ledger.record(id);
        match stage {
            Stage::Calling if record.is_datagram => {}
            Stage::Calling | Stage::Answered | Stage::Accepted => {
                (record.is_leaving, record.is_withdrawn) = (true, true);
                self.count("attempts withdrawn");
            }
            Stage::Up | Stage::Down => record.is_leaving = true,
            Stage::Requested => {
                if let Part::Called(attempt) | Part::Asked(attempt) = record.part {
                    self.attempts[attempt].refused += 1;
                }
                self.hosts[side].ledger.record(id).stage = Stage::Over;
                self.count("requests withdrawn");
                return self.finish(side, id);
            }
            _ => {}
        }
        Ok(())
    }

    fn accept_wild(&mut self, side: usize, id: IdNumber, part: Part) -> Result<(), String> {
        let (Part::Called(attempt) | Part::Asked(attempt)) = part else {
            return Err(format!("{part:?} accepts"));
        };
        let record = self.hosts[side].ledger.record(id);
        let (key, is_datagram) = (record.key, record.is_datagram);
        let param = Param {
            private_data: key.to_le_bytes().into(),
            rnr_retry_count: 7,
            qp_num: match is_datagram {
                true => crate::datagrams::qpn_of_service(side),
                false => qpn_of_child(key),
            },
            ece: match is_datagram {
                true => ece_of(attempt),
                false => ece_of_child(self.attempts[attempt].ece),
            },
            ..Param::default()
        };
        let call = client::accept(id, key, &param).expect("few bytes");
        if self.ask(side, id, &call)?.is_err() {
            // The peer has taken it back.
            self.attempts[attempt].refused += 1;
            self.hosts[side].ledger.record(id).stage = Stage::Over;
            self.count("requests taken back");
            return self.finish(side, id);
        }
        let record = self.hosts[side].ledger.record(id);
        (record.uid, record.is_reporting) = (key, true);
        record.stage = if is_datagram {
            Stage::Served
        } else {
            Stage::Accepted
        };
        self.attempts[attempt].accepted.push(key);
        if !is_datagram {
            self.soon(PATIENCE, Deed::LosePatience, side, id);
            return Ok(());
        }
        // It answers repeated requests as long as it lives.
        let life = if self.rng.chance(0.3) { 20 } else { 60_000 };
        self.soon(Duration::from_millis(life), Deed::Destroy, side, id);
        Ok(())
    }

    /// A request, or a response.
    fn reject_wild(&mut self, side: usize, id: IdNumber, part: Part) -> Result<(), String> {
        let queued = self.queued_for(side, id);
        let call = client::reject(id, 0, REFUSAL).expect("few bytes");
        let is_done = self.ask(side, id, &call)?.is_ok();
        if let (true, Part::Called(attempt) | Part::Asked(attempt)) = (is_done, part) {
            self.attempts[attempt].refused += 1;
        }
        if is_done {
            self.count("rejections");
            self.hosts[side].ledger.last_word(id, queued);
        }
        self.finish(side, id)
    }

    fn establish_wild(&mut self, side: usize, id: IdNumber, part: Part) -> Result<(), String> {
        let Part::Caller(attempt) = part else {
            return Err(format!("{part:?} completes"));
        };
        if self.ask(side, id, &client::establish(id))?.is_err() {
            // It is over by now, and an event says so.
            self.hosts[side].ledger.record(id).is_leaving = true;
            return Ok(());
        }
        self.attempts[attempt].established = true;
        self.hosts[side].ledger.record(id).stage = Stage::Up;
        self.soon(LIFE, Deed::Disconnect, side, id);
        Ok(())
    }

    /// How many events of an identifier wait.
    pub(crate) fn queued_for(&self, side: usize, id: IdNumber) -> u32 {
        let after = id.0.checked_sub(1);
        let mut infos = self.hosts[side].ucm.id_infos(after, |_| 1);
        infos.next().map_or(0, |info| info.queued)
    }
}
