//! The two programs: what each end of a connection does when something happens.

use std::time::Duration;

use oarlock_transport::{Completion, QpEvent, WcStatus};
use oarlock_ucm::FileId;
use oarlock_ucm::client::{self, Event, IdNumber, Param};

use crate::qp::{MESSAGES, Qp, message};
use crate::world::{ACTIVE, Action, Fault, PASSIVE, PORT, World, address};

/// How long an end waits for its messages before it leaves.
const PATIENCE: Duration = Duration::from_secs(60);

mod kind {
    pub(super) const ADDR_RESOLVED: u32 = 0;
    pub(super) const ROUTE_RESOLVED: u32 = 2;
    pub(super) const CONNECT_REQUEST: u32 = 4;
    pub(super) const CONNECT_RESPONSE: u32 = 5;
    pub(super) const UNREACHABLE: u32 = 7;
    pub(super) const REJECTED: u32 = 8;
    pub(super) const ESTABLISHED: u32 = 9;
    pub(super) const DISCONNECTED: u32 = 10;
    pub(super) const TIMEWAIT_EXIT: u32 = 15;
}

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
    pub(crate) reported: u32,
    pub(crate) migrated: bool,
    qpn: u32,
    pub(crate) received: usize,
    sent: usize,
    leaving: bool,
}

impl End {
    pub(crate) fn is_over(&self) -> bool {
        let settled = matches!(self.phase, Phase::Down | Phase::GaveUp) && self.migrated;
        // A passive end whose request never came has nothing to settle; the active one says when that is certain.
        settled || (self.phase == Phase::None && self.leaving)
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
        ..Param::default()
    }
}

impl World {
    pub(crate) fn start_listener(&mut self) -> Result<(), String> {
        let file = self.listener.file;
        self.listener.id = self.call(PASSIVE, file, &client::create_id(u64::MAX, 0x106, 2))?;
        self.call(
            PASSIVE,
            file,
            &client::bind(self.listener.id, (address(PASSIVE), PORT).into()),
        )?;
        self.call(PASSIVE, file, &client::listen(self.listener.id, 64))
    }

    pub(crate) fn start(&mut self, connection: usize) -> Result<(), String> {
        let file = self.hosts[ACTIVE].old[connection % self.hosts[ACTIVE].old.len()];
        let id = self.call(
            ACTIVE,
            file,
            &client::create_id(connection as u64, 0x106, 2),
        )?;
        self.begin(ACTIVE, connection, id, file, Phase::ResolvingAddr);
        self.call(
            ACTIVE,
            file,
            &client::resolve_addr(id, None, (address(PASSIVE), PORT).into(), 2000),
        )
    }

    /// An end has its identifier; it will move once, at a moment of its own.
    fn begin(&mut self, side: usize, connection: usize, id: IdNumber, file: FileId, phase: Phase) {
        let host = &mut self.hosts[side];
        let qpn = ((side as u32 + 1) << 16) | connection as u32;
        host.ends[connection] = End {
            phase,
            id: Some(id),
            file: Some(file),
            qpn,
            ..End::default()
        };
        host.by_id.insert(id, connection);
        self.later(Duration::from_millis(60), Action::Migrate(side, connection));
    }

    fn end(&mut self, side: usize, connection: usize) -> &mut End {
        &mut self.hosts[side].ends[connection]
    }

    /// Identifier and channel of an end that has begun.
    fn place(&self, side: usize, connection: usize) -> (IdNumber, FileId) {
        let end = &self.hosts[side].ends[connection];
        (
            end.id.expect("it has begun"),
            end.file.expect("it has begun"),
        )
    }

    // ---- migration ----

    pub(crate) fn migrate(&mut self, side: usize, connection: usize) -> Result<(), String> {
        let (id, old) = self.place(side, connection);
        let new = self.target(side, connection);
        let waiting = self.hosts[side].ucm.queued(old);
        if self.fault == Fault::MigratedEventsAreLost {
            self.discard(side, old);
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
        let taken = self.end(side, connection).reported;
        if reported != taken && self.fault == Fault::None {
            return Err(format!(
                "connection {connection}: {taken} events taken, {reported} reported"
            ));
        }
        let end = self.end(side, connection);
        (end.file, end.migrated) = (Some(new), true);
        self.close_if_deserted(side, old);
        Ok(())
    }

    pub(crate) fn migrate_listener(&mut self) -> Result<(), String> {
        let (old, new) = (self.listener.file, self.hosts[PASSIVE].new[0]);
        let before = self.hosts[PASSIVE].ucm.queued(new);
        if self.fault == Fault::MigratedEventsAreLost {
            self.discard(PASSIVE, old);
        }
        let reported = self
            .call(PASSIVE, new, &client::migrate_id(self.listener.id, old.0))?
            .0;
        if self.fault == Fault::MigratedEventsWakeNobody {
            self.forget_wake(PASSIVE, new);
        }
        if reported != self.listener.reported && self.fault == Fault::None {
            return Err(format!(
                "listener: {} events taken, {reported} reported",
                self.listener.reported
            ));
        }
        self.moved_events += self.hosts[PASSIVE].ucm.queued(new) - before;
        (self.listener.file, self.listener.migrated) = (new, true);
        self.close_if_deserted(PASSIVE, old);
        Ok(())
    }

    /// R-MIG-7: the old channel is closed at once when the last identifier has left it.
    fn close_if_deserted(&mut self, side: usize, old: FileId) {
        let host = &self.hosts[side];
        let is_old = host.old.contains(&old);
        let begun = host.ends.iter().filter(|end| end.id.is_some()).count();
        let all_begun = side == PASSIVE || begun == host.ends.len();
        let left = host.ends.iter().any(|end| end.file == Some(old));
        let stray = self
            .listener
            .strays
            .iter()
            .any(|(_, file)| side == PASSIVE && *file == old);
        let listening = side == PASSIVE && self.listener.file == old;
        if is_old && all_begun && !left && !stray && !listening {
            let now = self.now;
            self.hosts[side].ucm.close(now, old);
            self.drain_host(side);
        }
    }

    // ---- events ----

    pub(crate) fn handle_event(
        &mut self,
        side: usize,
        file: FileId,
        event: &Event,
    ) -> Result<(), String> {
        if event.kind == kind::CONNECT_REQUEST {
            return self.on_request(file, event);
        }
        let connection = *self.hosts[side]
            .by_id
            .get(&event.id)
            .ok_or("an event of an unknown identifier")?;
        let end = self.end(side, connection);
        end.reported += 1;
        if end.file != Some(file) {
            return Err(format!(
                "it came out of {file:?}, its identifier is on {:?}",
                end.file
            ));
        }
        if event.uid != connection as u64 {
            return Err(format!("its value is not that of connection {connection}"));
        }
        let phase = end.phase;
        let next = match (event.kind, phase) {
            (kind::ADDR_RESOLVED, Phase::ResolvingAddr) => self.on_addr_resolved(connection)?,
            (kind::ROUTE_RESOLVED, Phase::ResolvingRoute) => self.on_route_resolved(connection)?,
            (kind::CONNECT_RESPONSE, Phase::Connecting) if side == ACTIVE => {
                self.on_response(connection)?
            }
            (kind::ESTABLISHED, Phase::Connecting) if side == PASSIVE => {
                self.on_established(connection)?
            }
            (kind::UNREACHABLE | kind::REJECTED, Phase::Connecting) => {
                self.on_refused(side, connection)
            }
            (kind::DISCONNECTED, Phase::Connecting | Phase::Up) => {
                self.on_disconnected(side, connection)?
            }
            (kind::TIMEWAIT_EXIT, Phase::Disconnected) => Phase::Down,
            (kind::TIMEWAIT_EXIT | kind::REJECTED | kind::UNREACHABLE, Phase::GaveUp) => {
                Phase::GaveUp
            }
            (_, phase) => return Err(format!("out of order in phase {phase:?}")),
        };
        self.end(side, connection).phase = next;
        Ok(())
    }

    fn on_addr_resolved(&mut self, connection: usize) -> Result<Phase, String> {
        let (id, file) = self.place(ACTIVE, connection);
        // The next event may be there before this call returns.
        self.end(ACTIVE, connection).phase = Phase::ResolvingRoute;
        self.call(ACTIVE, file, &client::resolve_route(id, 2000))?;
        Ok(Phase::ResolvingRoute)
    }

    fn on_route_resolved(&mut self, connection: usize) -> Result<Phase, String> {
        let (id, file) = self.place(ACTIVE, connection);
        let qpn = self.make_qp(ACTIVE, connection)?;
        let call = client::connect(id, &param(qpn, connection)).expect("one byte");
        self.call(ACTIVE, file, &call)?;
        Ok(Phase::Connecting)
    }

    fn on_request(&mut self, file: FileId, event: &Event) -> Result<(), String> {
        self.listener.reported += 1;
        if file != self.listener.file {
            return Err(format!(
                "a request out of {file:?}, the listener is on {:?}",
                self.listener.file
            ));
        }
        let data = event
            .param
            .private_data
            .as_ref()
            .ok_or("a request without private data")?;
        let connection = usize::from(data[0]);
        if self.end(PASSIVE, connection).phase != Phase::None {
            // An old copy of a request, from before the connection ended.
            self.listener.strays.push((event.id, file));
            let reject = client::reject(event.id, 0, &[]).expect("no data");
            return self.call(PASSIVE, file, &reject);
        }
        self.begin(PASSIVE, connection, event.id, file, Phase::Connecting);
        let qpn = self.make_qp(PASSIVE, connection)?;
        for state in [1, 2, 3] {
            self.follow_recipe(PASSIVE, connection, state)?;
        }
        let accept =
            client::accept(event.id, connection as u64, &param(qpn, connection)).expect("one byte");
        self.after(2 * PATIENCE, Action::GiveUp(connection));
        if self.try_call(PASSIVE, file, &accept).is_err() {
            // The peer has given up meanwhile.
            self.end(PASSIVE, connection).phase = Phase::GaveUp;
        }
        Ok(())
    }

    fn on_response(&mut self, connection: usize) -> Result<Phase, String> {
        let (id, file) = self.place(ACTIVE, connection);
        for state in [1, 2, 3] {
            self.follow_recipe(ACTIVE, connection, state)?;
        }
        self.call(ACTIVE, file, &client::establish(id))?;
        self.send_everything(ACTIVE, connection)?;
        Ok(Phase::Up)
    }

    fn on_established(&mut self, connection: usize) -> Result<Phase, String> {
        self.send_everything(PASSIVE, connection)?;
        Ok(Phase::Up)
    }

    fn on_refused(&mut self, side: usize, connection: usize) -> Phase {
        self.fail_qp(side, connection);
        if side == ACTIVE {
            self.nothing_more_will_come(connection);
        }
        Phase::GaveUp
    }

    fn on_disconnected(&mut self, side: usize, connection: usize) -> Result<Phase, String> {
        self.fail_qp(side, connection);
        let (id, file) = self.place(side, connection);
        // Answers the peer's request; where this end asked itself there is nothing to answer, which is no error.
        self.call(side, file, &client::disconnect(id))?;
        if side == ACTIVE {
            self.nothing_more_will_come(connection);
        }
        Ok(Phase::Disconnected)
    }

    /// The active end is through: a passive end that has not heard of it never will.
    fn nothing_more_will_come(&mut self, connection: usize) {
        self.end(PASSIVE, connection).leaving = true;
    }

    pub(crate) fn disconnect(&mut self, side: usize, connection: usize) -> Result<(), String> {
        if self.end(side, connection).phase != Phase::Up {
            return Ok(());
        }
        let (id, file) = self.place(side, connection);
        self.fail_qp(side, connection);
        self.call(side, file, &client::disconnect(id))
    }

    /// A passive end that was accepted and never established. A peer that said "I am working on it" (MRA) and fell silent
    /// may be waited for a quarter of an hour by the protocol's own timers; a program has its own idea of that.
    pub(crate) fn give_up(&mut self, connection: usize) {
        if self.end(PASSIVE, connection).phase != Phase::Connecting {
            return;
        }
        let (id, file) = self.place(PASSIVE, connection);
        self.end(PASSIVE, connection).phase = Phase::GaveUp;
        self.fail_qp(PASSIVE, connection);
        // Refused where the protocol has given up at this very moment.
        let _ = self.try_call(PASSIVE, file, &client::reject(id, 0, &[]).expect("no data"));
    }

    // ---- queue pairs ----

    fn make_qp(&mut self, side: usize, connection: usize) -> Result<u32, String> {
        let qpn = self.end(side, connection).qpn;
        let mut qp = Qp::new(qpn, connection);
        let (id, file) = self.place(side, connection);
        let recipe = self.call(side, file, &client::init_qp_attr(id, 1))?;
        qp.modify(Self::gid(side), &recipe)?;
        qp.post_receives();
        self.hosts[side].qps.insert(qpn, qp);
        Ok(qpn)
    }

    fn follow_recipe(&mut self, side: usize, connection: usize, state: u32) -> Result<(), String> {
        let (id, file) = self.place(side, connection);
        let recipe = self.call(side, file, &client::init_qp_attr(id, state))?;
        let qpn = self.end(side, connection).qpn;
        self.hosts[side]
            .qps
            .get_mut(&qpn)
            .expect("made before")
            .modify(Self::gid(side), &recipe)
    }

    fn send_everything(&mut self, side: usize, connection: usize) -> Result<(), String> {
        let flipped = self.fault == Fault::OneByteIsFlipped && side == ACTIVE && connection == 3;
        let qpn = self.end(side, connection).qpn;
        self.hosts[side]
            .qps
            .get_mut(&qpn)
            .expect("made before")
            .post_sends(side, flipped)?;
        self.after(PATIENCE, Action::Disconnect(side, connection));
        self.drain_qp(side, qpn)
    }

    fn fail_qp(&mut self, side: usize, connection: usize) {
        let qpn = self.end(side, connection).qpn;
        if let Some(qp) = self.hosts[side].qps.get_mut(&qpn) {
            qp.fail();
            // Flushed work is not of interest.
            while qp.rc.poll_completion().is_some() {}
        }
    }

    pub(crate) fn on_qp_event(&mut self, side: usize, qpn: u32, event: QpEvent) {
        if event == QpEvent::CommEst {
            let connection = self.hosts[side].qps[&qpn].connection;
            let (id, file) = self.place(side, connection);
            // Refused where the connection is established already, or gone.
            let _ = self.try_call(side, file, &client::notify(id, 4));
        }
    }

    pub(crate) fn on_completion(
        &mut self,
        side: usize,
        qpn: u32,
        completion: &Completion,
    ) -> Result<(), String> {
        let connection = self.hosts[side].qps[&qpn].connection;
        if !completion.status.is_success() {
            if completion.status != WcStatus::WR_FLUSH_ERR {
                // The peer does not answer any more: leave, if the connection is not over anyway.
                self.later(
                    Duration::from_millis(1),
                    Action::Disconnect(side, connection),
                );
            }
            return Ok(());
        }
        let index = completion.wr_id as usize;
        if completion.is_send {
            let end = self.end(side, connection);
            if index != end.sent {
                return Err(format!(
                    "connection {connection} side {side}: send {index} completed as number {}",
                    end.sent
                ));
            }
            end.sent += 1;
        } else {
            let wanted = message(connection, 1 - side, index);
            let got = self.hosts[side].qps[&qpn].received(index, completion.byte_len as usize);
            if got != wanted {
                return Err(format!(
                    "connection {connection} side {side}: message {index} is not what was sent"
                ));
            }
            let end = self.end(side, connection);
            if index != end.received {
                return Err(format!(
                    "connection {connection} side {side}: message {index} came as number {}",
                    end.received
                ));
            }
            end.received += 1;
        }
        let end = self.end(side, connection);
        if side == ACTIVE && end.received_all() && end.sent_all() && !end.leaving {
            end.leaving = true;
            self.later(
                Duration::from_millis(5),
                Action::Disconnect(ACTIVE, connection),
            );
        }
        Ok(())
    }
}
