//! The two programs: what each end of a connection does when something happens.

use std::net::IpAddr;
use std::time::Duration;

use oarlock_ucm::FileId;
use oarlock_ucm::abi::Ece;
use oarlock_ucm::client::{self, Event, IdNumber, Param};

use crate::faults::Fault;
use crate::host::{CHANNELS, address};
use crate::ledger::{Part, Stage};
use crate::qp::MESSAGES;
use crate::world::{ACTIVE, Action, PASSIVE, TCP, World};

/// How long an end waits for its messages before it leaves.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) mod kind {
    pub(crate) const ADDR_RESOLVED: u32 = 0;
    pub(crate) const ADDR_ERROR: u32 = 1;
    pub(crate) const ROUTE_RESOLVED: u32 = 2;
    pub(crate) const CONNECT_REQUEST: u32 = 4;
    pub(crate) const CONNECT_RESPONSE: u32 = 5;
    pub(crate) const UNREACHABLE: u32 = 7;
    pub(crate) const REJECTED: u32 = 8;
    pub(crate) const ESTABLISHED: u32 = 9;
    pub(crate) const DISCONNECTED: u32 = 10;
    pub(crate) const DEVICE_REMOVAL: u32 = 11;
    pub(crate) const MULTICAST_JOIN: u32 = 12;
    pub(crate) const MULTICAST_ERROR: u32 = 13;
    pub(crate) const ADDR_CHANGE: u32 = 14;
    pub(crate) const TIMEWAIT_EXIT: u32 = 15;
    pub(crate) const USER: u32 = 18;
}

/// Reasons of a REJ (IBA Vol. 1 ch. 12, rejection reasons).
pub(crate) mod reason {
    pub(crate) const NO_RESOURCES: i32 = 3;
    pub(crate) const TIMEOUT: i32 = 4;
    pub(crate) const INVALID_SERVICE_ID: i32 = 8;
    pub(crate) const STALE_CONNECTION: i32 = 10;
    pub(crate) const INVALID_GID: i32 = 12;
    pub(crate) const CONSUMER_DEFINED: i32 = 28;
}

const PORT: u16 = 7471;

/// How far an end has come. Events move it forward only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// Not begun; on the passive side: no request was heard of.
    #[default]
    None,
    ResolvingAddr,
    ResolvingRoute,
    /// Asked, or accepted; no answer yet.
    Connecting,
    Up,
    /// Disconnected, and the connection's past is still in the network.
    Disconnected,
    /// Over, in an orderly way.
    Down,
    /// Never came up.
    GaveUp,
}

/// One end of a connection.
#[derive(Debug, Default)]
pub(crate) struct End {
    pub(crate) phase: Phase,
    pub(crate) id: Option<IdNumber>,
    pub(crate) file: Option<FileId>,
    pub(crate) migrated: bool,
    /// Its device has gone.
    pub(crate) is_gone: bool,
    pub(crate) qpn: u32,
    pub(crate) received: usize,
    pub(crate) sent: usize,
    pub(crate) leaving: bool,
}

impl End {
    pub(crate) fn is_over(&self) -> bool {
        self.is_gone || matches!(self.phase, Phase::Down | Phase::GaveUp) && self.migrated
    }

    pub(crate) fn received_all(&self) -> bool {
        self.received == MESSAGES
    }

    pub(crate) fn sent_all(&self) -> bool {
        self.sent == MESSAGES
    }
}

fn param(qpn: u32, connection: usize) -> Param {
    Param {
        private_data: vec![connection as u8],
        responder_resources: 1,
        initiator_depth: 1,
        retry_count: 7,
        rnr_retry_count: 7,
        qp_num: qpn,
        ece: ece_of(connection),
        ..Param::default()
    }
}

/// Every fourth connection has options of enhanced connection establishment, in both directions.
fn ece_of(connection: usize) -> Ece {
    match connection % 4 {
        2 => Ece {
            vendor_id: 0x00_1405,
            attr_mod: 1 << connection,
        },
        _ => Ece::default(),
    }
}

/// Some take longer to accept than their peers wait for an answer.
fn accepts_slowly(connection: usize) -> bool {
    connection % 8 == 3
}

/// Some take longer to complete than their peers wait for it.
fn completes_slowly(connection: usize) -> bool {
    connection % 8 == 6
}

impl World {
    pub(crate) fn start_listener(&mut self) -> Result<(), String> {
        let file = self.listener.file;
        let id = self.create(PASSIVE, file, TCP, Part::SpineListener)?;
        self.listener.id = id;
        // A listener on any address outlives every device.
        let ip = match (self.seed / 32) % 2 {
            0 => address(PASSIVE),
            _ => IpAddr::from([0, 0, 0, 0]),
        };
        self.call(PASSIVE, file, &client::bind(id, (ip, PORT).into()))?;
        self.call(PASSIVE, file, &client::listen(id, 64))?;
        self.hosts[PASSIVE].ledger.record(id).stage = Stage::Listening;
        Ok(())
    }

    pub(crate) fn start(&mut self, connection: usize) -> Result<(), String> {
        let file = self.hosts[ACTIVE].old[connection % self.hosts[ACTIVE].old.len()];
        let id = self.create(ACTIVE, file, TCP, Part::Spine(connection))?;
        self.begin(ACTIVE, connection, id, file, Phase::ResolvingAddr);
        let to = (address(PASSIVE), PORT).into();
        self.call(ACTIVE, file, &client::resolve_addr(id, None, to, 2000))?;
        self.hosts[ACTIVE].ledger.record(id).stage = Stage::ResolvingAddr;
        self.hosts[ACTIVE].lookups_asked += 1;
        Ok(())
    }

    /// An end has its identifier; it will move once, at a moment of its own.
    fn begin(&mut self, side: usize, connection: usize, id: IdNumber, file: FileId, phase: Phase) {
        self.hosts[side].ends[connection] = End {
            phase,
            id: Some(id),
            file: Some(file),
            qpn: ((side as u32 + 1) << 16) | connection as u32,
            ..End::default()
        };
        self.later(Duration::from_millis(60), Action::Migrate(side, connection));
    }

    pub(crate) fn end(&mut self, side: usize, connection: usize) -> &mut End {
        &mut self.hosts[side].ends[connection]
    }

    /// Identifier and channel of an end that has begun.
    pub(crate) fn place(&self, side: usize, connection: usize) -> (IdNumber, FileId) {
        let end = &self.hosts[side].ends[connection];
        (
            end.id.expect("it has begun"),
            end.file.expect("it has begun"),
        )
    }

    /// An end in this phase that can still do something; when its device has gone it cannot.
    fn is_in(&self, side: usize, connection: usize, phase: Phase) -> bool {
        let end = &self.hosts[side].ends[connection];
        let has_device = |id| !self.hosts[side].ledger.get(id).is_some_and(|r| r.is_gone);
        end.phase == phase && end.id.is_some_and(has_device)
    }

    // ---- migration ----

    pub(crate) fn migrate(&mut self, side: usize, connection: usize) -> Result<(), String> {
        let (id, old) = self.place(side, connection);
        if self.hosts[side].ledger.record(id).is_gone {
            return Ok(());
        }
        let new = self.target(side, connection);
        let waiting = self.hosts[side].ucm.queued(old);
        if self.fault == Fault::MigratedEventsAreLost {
            self.discard(side, old)?;
        }
        let before = self.hosts[side].ucm.queued(new);
        let reported = self.call(side, new, &client::migrate_id(id, old.0))?.0;
        if self.fault == Fault::MigratedEventsWakeNobody {
            self.forget_wake(side, new);
        }
        self.moved_events += self.hosts[side].ucm.queued(new) - before;
        if self.hosts[side].ucm.queued(old) + self.hosts[side].ucm.queued(new) != waiting + before
            && self.fault == Fault::None
        {
            return Err(format!(
                "connection {connection}: events came or went while it moved"
            ));
        }
        let counted = self.hosts[side].ledger.migrated(id, new, reported);
        if self.fault != Fault::MigratedEventsAreLost {
            counted?;
        }
        let end = self.end(side, connection);
        (end.file, end.migrated) = (Some(new), true);
        self.close_if_deserted(side, old)
    }

    pub(crate) fn migrate_listener(&mut self) -> Result<(), String> {
        let (id, old, new) = (
            self.listener.id,
            self.listener.file,
            self.hosts[PASSIVE].new[0],
        );
        if self.hosts[PASSIVE].ledger.record(id).is_gone {
            self.listener.migrated = true;
            return Ok(());
        }
        let before = self.hosts[PASSIVE].ucm.queued(new);
        if self.fault == Fault::MigratedEventsAreLost {
            self.discard(PASSIVE, old)?;
        }
        let reported = self.call(PASSIVE, new, &client::migrate_id(id, old.0))?.0;
        if self.fault == Fault::MigratedEventsWakeNobody {
            self.forget_wake(PASSIVE, new);
        }
        let counted = self.hosts[PASSIVE].ledger.migrated(id, new, reported);
        if self.fault != Fault::MigratedEventsAreLost {
            counted?;
        }
        self.moved_events += self.hosts[PASSIVE].ucm.queued(new) - before;
        (self.listener.file, self.listener.migrated) = (new, true);
        self.close_if_deserted(PASSIVE, old)
    }

    /// R-MIG-7: the old channel is closed at once when the last identifier has left it.
    fn close_if_deserted(&mut self, side: usize, old: FileId) -> Result<(), String> {
        let host = &self.hosts[side];
        let is_old = host.old.contains(&old);
        let begun = host.ends.iter().filter(|end| end.id.is_some()).count();
        let all_begun = side == PASSIVE || begun == host.ends.len();
        let is_deserted = host.ledger.iter().all(|(_, record)| record.file != old);
        if is_old && all_begun && is_deserted {
            let shown = self.host_now(side);
            self.hosts[side].ucm.close(shown, old);
            self.drain_host(side)?;
        }
        Ok(())
    }

    // ---- events ----

    pub(crate) fn on_spine_event(
        &mut self,
        side: usize,
        id: IdNumber,
        part: Part,
        event: &Event,
    ) -> Result<(), String> {
        let connection = match (part, event.kind) {
            (_, kind::USER) => return Ok(()),
            (Part::SpineListener, kind::CONNECT_REQUEST) => return self.on_request(event),
            (Part::SpineListener, kind::DEVICE_REMOVAL) => {
                self.count("device removals noticed");
                return Ok(());
            }
            (Part::Spine(connection), _) => connection,
            _ => return Err(format!("not for {part:?}")),
        };
        if event.kind == kind::DEVICE_REMOVAL {
            self.count("device removals noticed");
            self.fail_qp(side, connection);
            self.end(side, connection).is_gone = true;
            return Ok(());
        }
        if self.hosts[side].ledger.record(id).is_gone {
            // It is about to hear of it, and whatever it did would be refused.
            return Ok(());
        }
        let phase = self.end(side, connection).phase;
        let next = match (event.kind, phase) {
            (kind::ADDR_RESOLVED, Phase::ResolvingAddr) => self.on_addr_resolved(connection)?,
            (kind::ADDR_ERROR, Phase::ResolvingAddr) if self.is_severe => Phase::GaveUp,
            (kind::ROUTE_RESOLVED, Phase::ResolvingRoute) => self.on_route_resolved(connection)?,
            (kind::CONNECT_RESPONSE, Phase::Connecting) if side == ACTIVE => {
                self.on_response(connection, event)?
            }
            (kind::ESTABLISHED, Phase::Connecting) if side == PASSIVE => {
                self.on_established(connection)?
            }
            // After it was up too: the peer gave its response up, for it never heard that.
            (kind::UNREACHABLE | kind::REJECTED, Phase::Connecting | Phase::Up) => {
                self.fail_qp(side, connection);
                Phase::GaveUp
            }
            (kind::DISCONNECTED, Phase::Connecting | Phase::Up) => {
                self.on_disconnected(side, connection)?
            }
            (kind::TIMEWAIT_EXIT, Phase::Disconnected) => Phase::Down,
            // What stood in the queue already.
            (kind::REJECTED | kind::UNREACHABLE, Phase::GaveUp) => Phase::GaveUp,
            (_, phase) => return Err(format!("out of order in phase {phase:?}")),
        };
        self.end(side, connection).phase = next;
        Ok(())
    }

    fn on_addr_resolved(&mut self, connection: usize) -> Result<Phase, String> {
        let (id, file) = self.place(ACTIVE, connection);
        self.call(ACTIVE, file, &client::resolve_route(id, 2000))?;
        self.hosts[ACTIVE].ledger.record(id).stage = Stage::ResolvingRoute;
        Ok(Phase::ResolvingRoute)
    }

    fn on_route_resolved(&mut self, connection: usize) -> Result<Phase, String> {
        let (id, file) = self.place(ACTIVE, connection);
        self.make_qp(ACTIVE, connection)?;
        let qpn = self.end(ACTIVE, connection).qpn;
        let call = client::connect(id, &param(qpn, connection)).expect("one byte");
        self.call(ACTIVE, file, &call)?;
        self.hosts[ACTIVE].ledger.record(id).stage = Stage::Calling;
        Ok(Phase::Connecting)
    }

    fn on_request(&mut self, event: &Event) -> Result<(), String> {
        let data = event.param.private_data.as_ref();
        let connection = usize::from(data.ok_or("a request without private data")?[0]);
        if event.ece != ece_of(connection) {
            return Err(format!("connection {connection} never offered that"));
        }
        let (id, file) = (event.id, self.listener.file);
        let is_first = self.end(PASSIVE, connection).phase == Phase::None;
        let part = match is_first {
            true => Part::Spine(connection),
            // An old copy of a request, from before the connection ended.
            false => Part::Stray,
        };
        let ledger = &mut self.hosts[PASSIVE].ledger;
        ledger.add(id, file, part, Stage::Requested, false)?;
        if self.has_gone(PASSIVE, id)? {
            return self.destroy(PASSIVE, id);
        }
        if !is_first {
            self.listener.strays.push((id, file));
            self.hosts[PASSIVE].ledger.record(id).stage = Stage::Over;
            let reject = client::reject(id, 0, &[]).expect("no data");
            return self.call(PASSIVE, file, &reject);
        }
        self.begin(PASSIVE, connection, id, file, Phase::Connecting);
        let is_ready = self.make_qp(PASSIVE, connection)?
            && self.follow_recipes(PASSIVE, connection, &[2, 3])?;
        if !is_ready {
            // The peer has given up meanwhile.
            self.hosts[PASSIVE].ledger.record(id).stage = Stage::Over;
            self.end(PASSIVE, connection).phase = Phase::GaveUp;
            return Ok(());
        }
        self.after(2 * PATIENCE, Action::GiveUp(connection));
        if accepts_slowly(connection) {
            let after = Duration::from_millis(5_000 + self.rng.below(7_000));
            self.after(after, Action::Accept(connection));
            return Ok(());
        }
        self.accept(connection)
    }

    pub(crate) fn accept(&mut self, connection: usize) -> Result<(), String> {
        let (id, file) = self.place(PASSIVE, connection);
        if self.hosts[PASSIVE].ledger.record(id).is_gone {
            // Nobody says so to the child of a request, but this call.
            self.end(PASSIVE, connection).is_gone = true;
            return Ok(());
        }
        let qpn = self.end(PASSIVE, connection).qpn;
        let key = self.hosts[PASSIVE].ledger.record(id).key;
        let accept = client::accept(id, key, &param(qpn, connection)).expect("one byte");
        let is_done = self.try_call(PASSIVE, file, &accept)?.is_ok();
        let record = self.hosts[PASSIVE].ledger.record(id);
        if is_done {
            (record.uid, record.is_reporting) = (key, true);
            record.stage = Stage::Accepted;
        } else {
            // The peer has given up meanwhile.
            record.stage = Stage::Over;
            self.end(PASSIVE, connection).phase = Phase::GaveUp;
        }
        Ok(())
    }

    fn on_response(&mut self, connection: usize, event: &Event) -> Result<Phase, String> {
        if event.ece != ece_of(connection) {
            return Err(format!("connection {connection} was never granted that"));
        }
        // The peer may have given up meanwhile, and then completing it will fail too.
        let is_ready = self.follow_recipes(ACTIVE, connection, &[1, 2, 3])?;
        if is_ready && completes_slowly(connection) {
            let after = Duration::from_millis(5_000 + self.rng.below(4_000));
            self.after(after, Action::Establish(connection));
            return Ok(Phase::Connecting);
        }
        self.complete(connection)
    }

    pub(crate) fn establish(&mut self, connection: usize) -> Result<(), String> {
        if self.is_in(ACTIVE, connection, Phase::Connecting) {
            self.end(ACTIVE, connection).phase = self.complete(connection)?;
        }
        Ok(())
    }

    fn complete(&mut self, connection: usize) -> Result<Phase, String> {
        let (id, file) = self.place(ACTIVE, connection);
        if self
            .try_call(ACTIVE, file, &client::establish(id))?
            .is_err()
        {
            // The peer has given up, and an event that waits says so.
            self.hosts[ACTIVE].ledger.record(id).is_leaving = true;
            return Ok(Phase::Connecting);
        }
        self.hosts[ACTIVE].ledger.record(id).stage = Stage::Up;
        self.note_up(ACTIVE, connection);
        self.send_everything(ACTIVE, connection)?;
        Ok(Phase::Up)
    }

    fn on_established(&mut self, connection: usize) -> Result<Phase, String> {
        self.note_up(PASSIVE, connection);
        self.send_everything(PASSIVE, connection)?;
        Ok(Phase::Up)
    }

    fn on_disconnected(&mut self, side: usize, connection: usize) -> Result<Phase, String> {
        self.fail_qp(side, connection);
        let (id, file) = self.place(side, connection);
        // Answers the peer's request; where this end asked itself there is nothing to answer, which is no error. Nor is it
        // one to say it twice.
        for _ in 0..2 {
            self.call(side, file, &client::disconnect(id))?;
        }
        self.count("second disconnects");
        self.hosts[side].ledger.record(id).is_leaving = true;
        Ok(Phase::Disconnected)
    }

    pub(crate) fn disconnect(&mut self, side: usize, connection: usize) -> Result<(), String> {
        if !self.is_in(side, connection, Phase::Up) {
            return Ok(());
        }
        self.check_paths(connection)?;
        let (id, file) = self.place(side, connection);
        self.fail_qp(side, connection);
        self.call(side, file, &client::disconnect(id))?;
        self.hosts[side].ledger.record(id).is_leaving = true;
        Ok(())
    }

    /// A passive end that was accepted and never established. A peer that said "I am working on it" (MRA) and fell silent
    /// may be waited for a quarter of an hour by the protocol's own timers; a program has its own idea of that.
    pub(crate) fn give_up(&mut self, connection: usize) -> Result<(), String> {
        if !self.is_in(PASSIVE, connection, Phase::Connecting) {
            return Ok(());
        }
        let (id, file) = self.place(PASSIVE, connection);
        self.end(PASSIVE, connection).phase = Phase::GaveUp;
        self.fail_qp(PASSIVE, connection);
        let queued = self.queued_for(PASSIVE, id);
        let reject = client::reject(id, 0, &[]).expect("no data");
        // Refused where the protocol has given up at this very moment.
        if self.try_call(PASSIVE, file, &reject)?.is_ok() {
            self.hosts[PASSIVE].ledger.last_word(id, queued);
        }
        Ok(())
    }

    /// Where an end moves to: every other one to a channel where nobody else would wake a reader.
    fn target(&self, side: usize, connection: usize) -> FileId {
        let place = if connection.is_multiple_of(2) {
            connection % CHANNELS
        } else {
            CHANNELS + connection
        };
        self.hosts[side].new[place]
    }
}
