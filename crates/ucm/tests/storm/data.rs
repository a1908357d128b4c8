//! What the spine's ends do with their queue pairs, and the alternate paths of their connections.

use std::time::Duration;

use oarlock_cma::{Alternate, AlternatePath, AlternateState};
use oarlock_transport::{Completion, QpEvent, WcStatus};
use oarlock_ucm::client;
use oarlock_wire::{AprStatus, Gid};

use crate::faults::Fault;
use crate::host::{accepts_alternates, gid, volatile};
use crate::program::PATIENCE;
use crate::qp::{Qp, message};
use crate::world::{ACTIVE, Action, PASSIVE, World};

/// How long those stay up that load an alternate path: two of its repetitions.
const LOADING: Duration = Duration::from_secs(12);

/// Some stay up for a while, and load an alternate path meanwhile.
fn loads_paths(connection: usize) -> bool {
    connection % 4 == 1
}

/// Of those, some do so from both ends, perhaps at the same time.
fn loads_from_both_ends(connection: usize) -> bool {
    connection % 8 == 5
}

fn second_path(side: usize) -> AlternatePath {
    AlternatePath {
        local_gid: Gid::from_ip(volatile(side)),
        remote_gid: Gid::from_ip(volatile(1 - side)),
        hop_limit: 64,
        ..AlternatePath::default()
    }
}

impl World {
    // ---- alternate paths ----

    pub(crate) fn note_up(&mut self, side: usize, connection: usize) {
        let asks = side == ACTIVE || loads_from_both_ends(connection);
        if loads_paths(connection) && asks {
            let action = Action::LoadPath(side, connection);
            self.later(Duration::from_millis(2), action);
        }
    }

    pub(crate) fn load_path(&mut self, side: usize, connection: usize) -> Result<(), String> {
        let (id, _) = self.place(side, connection);
        let shown = self.host_now(side);
        let path = second_path(side);
        // Refused while the peer's is being loaded, without the second device, and when the connection is over.
        if self.hosts[side]
            .ucm
            .load_alternate_path(shown, id.0, path)
            .is_ok()
        {
            self.count("alternate paths asked for");
        }
        self.drain_host(side)
    }

    fn alternate(&self, side: usize, connection: usize) -> Option<Alternate> {
        let ucm = &self.hosts[side].ucm;
        let number = self.hosts[side].ends[connection].id?;
        ucm.cma().query(ucm.id(number.0)?).ok()?.alternate
    }

    /// What one end has loaded the other one agreed to, and has loaded too.
    pub(crate) fn check_paths(&mut self, connection: usize) -> Result<(), String> {
        let known = [ACTIVE, PASSIVE].map(|side| self.alternate(side, connection));
        let wrong = || Err(format!("connection {connection}: paths {known:?}"));
        for side in [ACTIVE, PASSIVE] {
            let accepts = |side| accepts_alternates(side, self.seed);
            match known[side].map(|alternate| (alternate.state, alternate.path)) {
                None | Some((AlternateState::Asked | AlternateState::Unanswered, _)) => {}
                Some((AlternateState::Loaded, path)) => {
                    let is_agreed =
                        accepts(1 - side) || accepts(side) && loads_from_both_ends(connection);
                    let is_agreed = is_agreed || side == PASSIVE && accepts(PASSIVE);
                    if path != second_path(side) || !is_agreed {
                        return wrong();
                    }
                    let other = known[1 - side].map(|other| other.state);
                    let is_one_way = !loads_from_both_ends(connection);
                    if is_one_way && side == ACTIVE && other != Some(AlternateState::Loaded) {
                        return wrong();
                    }
                    self.count("alternate paths loaded");
                }
                Some((AlternateState::Refused(AprStatus::UNSUPPORTED), _)) => {
                    if accepts(1 - side) {
                        return wrong();
                    }
                    self.count("alternate paths refused");
                }
                // The second device of the peer has gone.
                Some((AlternateState::Refused(AprStatus::INVALID_GID), _)) => {
                    if !accepts(1 - side) {
                        return wrong();
                    }
                }
                // The whole connection of the peer has gone with its device.
                Some((AlternateState::Refused(AprStatus::INVALID_COMM_ID), _))
                    if self.is_severe => {}
                Some(_) => return wrong(),
            }
        }
        Ok(())
    }

    // ---- queue pairs ----

    /// Makes the queue pair, and takes it to INIT.
    pub(crate) fn make_qp(&mut self, side: usize, connection: usize) -> Result<bool, String> {
        let qpn = self.end(side, connection).qpn;
        self.hosts[side].qps.insert(qpn, Qp::new(qpn, connection));
        let is_done = self.follow_recipes(side, connection, &[1])?;
        let qp = self.hosts[side].qps.get_mut(&qpn);
        if let Some(qp) = qp.filter(|_| is_done) {
            qp.post_receives();
        }
        Ok(is_done)
    }

    /// Takes the queue pair from state to state. `false`: the peer has ended the attempt meanwhile.
    pub(crate) fn follow_recipes(
        &mut self,
        side: usize,
        connection: usize,
        states: &[u32],
    ) -> Result<bool, String> {
        let (id, _) = self.place(side, connection);
        let qpn = self.end(side, connection).qpn;
        for state in states {
            let Ok(recipe) = self.ask(side, id, &client::init_qp_attr(id, *state))? else {
                return Ok(false);
            };
            let qp = self.hosts[side].qps.get_mut(&qpn).expect("made before");
            qp.modify(gid(side), &recipe)?;
        }
        Ok(true)
    }

    pub(crate) fn send_everything(&mut self, side: usize, connection: usize) -> Result<(), String> {
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

    pub(crate) fn fail_qp(&mut self, side: usize, connection: usize) {
        let qpn = self.end(side, connection).qpn;
        if let Some(qp) = self.hosts[side].qps.get_mut(&qpn) {
            qp.fail();
            // Flushed work is not of interest.
            while qp.rc.poll_completion().is_some() {}
        }
    }

    pub(crate) fn on_qp_event(
        &mut self,
        side: usize,
        qpn: u32,
        event: QpEvent,
    ) -> Result<(), String> {
        if event == QpEvent::CommEst {
            let connection = self.hosts[side].qps[&qpn].connection;
            let (id, file) = self.place(side, connection);
            // Refused where the connection is established already, or gone.
            let answer = self.try_call(side, file, &client::notify(id, 4))?;
            if answer.is_ok() {
                self.count("established by the first packet");
            }
        }
        Ok(())
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
            let action = Action::Disconnect(ACTIVE, connection);
            if loads_paths(connection) {
                self.after(LOADING, action);
            } else {
                self.later(Duration::from_millis(5), action);
            }
        }
        Ok(())
    }
}
