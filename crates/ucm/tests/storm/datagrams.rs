//! Datagram programs: a service on each host, those that ask for it, and what they send it.

use std::time::Duration;

use oarlock_transport::UdDestination;
use oarlock_ucm::client::{self, Event, IdNumber, Param};
use oarlock_wire::{Gid, QKey, Qpn};

use crate::host::{address, movable, volatile};
use crate::ledger::{Part, Stage};
use crate::qp::{Received, UdQp};
use crate::wild::Deed;
use crate::world::{Action, UDP, World};

/// What each one that found the service sends it.
pub(crate) const SENT: usize = 3;

pub(crate) fn qpn_of_asker(attempt: usize) -> u32 {
    0x40_0000 + attempt as u32
}

pub(crate) fn qpn_of_service(side: usize) -> u32 {
    0x50_0000 + side as u32
}

fn message(attempt: usize, index: usize) -> Vec<u8> {
    let mut bytes = (attempt as u32).to_le_bytes().to_vec();
    bytes.extend((0..20 + index).map(|at| (at * 7 + attempt + index) as u8));
    bytes
}

impl World {
    /// A queue pair that follows the recipes of an identifier; `None` if the device has gone.
    pub(crate) fn make_datagram_qp(
        &mut self,
        side: usize,
        id: IdNumber,
        qpn: u32,
    ) -> Result<Option<()>, String> {
        let mut recipes = vec![];
        for state in [1, 2, 3] {
            let Some(recipe) = self.demand(side, id, &client::init_qp_attr(id, state))? else {
                return Ok(None);
            };
            recipes.push(recipe);
        }
        let mut qp = UdQp::new(qpn);
        qp.modify(Gid::from_ip(address(side)), &recipes)?;
        self.hosts[side].datagram_qps.insert(qpn, qp);
        Ok(Some(()))
    }

    pub(crate) fn start_datagram_service(&mut self, side: usize) -> Result<(), String> {
        let file = self.any_wild_file(side);
        let id = self.create(side, file, UDP, Part::Stray)?;
        self.call(side, file, &client::bind(id, (address(side), 0).into()))?;
        self.make_datagram_qp(side, id, qpn_of_service(side))?;
        self.destroy(side, id)
    }

    pub(crate) fn ask_service(
        &mut self,
        side: usize,
        id: IdNumber,
        attempt: usize,
    ) -> Result<(), String> {
        let qpn = qpn_of_asker(attempt);
        if self.make_datagram_qp(side, id, qpn)?.is_none() {
            return Ok(());
        }
        let param = Param {
            private_data: (attempt as u32).to_le_bytes().into(),
            qp_num: qpn,
            ..Param::default()
        };
        let call = client::connect(id, &param).expect("few bytes");
        if let Err(failure) = self.ask(side, id, &call)? {
            let record = self.hosts[side].ledger.record(id);
            let source_has_gone = !self.hosts[side].devices.owns(side, movable(side));
            if !record.is_gone && !source_has_gone {
                return Err(format!("{id:?}: {failure}"));
            }
            return self.finish(side, id);
        }
        self.hosts[side].ledger.record(id).stage = Stage::Calling;
        Ok(())
    }

    /// The service answered.
    pub(crate) fn on_service(
        &mut self,
        side: usize,
        id: IdNumber,
        attempt: usize,
        event: &Event,
    ) -> Result<(), String> {
        let found = event.ud();
        let data = found.private_data.unwrap_or_default();
        let key = data.first_chunk().map_or(0, |key| u64::from_le_bytes(*key));
        let known = &self.attempts[attempt];
        let expected = (qpn_of_service(1 - side), QKey::RDMA_UDP.0);
        if !known.accepted.contains(&key) || (found.qp_num, found.qkey) != expected {
            return Err(format!("a service that nobody offered; {known:?}"));
        }
        if Gid(found.ah_attr.dgid) != Gid::from_ip(known.to.ip()) {
            return Err("the way leads elsewhere".into());
        }
        let source = match known.to.ip() {
            ip if ip == address(1 - side) => address(side),
            ip if ip == volatile(1 - side) => volatile(side),
            _ => movable(side),
        };
        let av = found.ah_attr.address_vector((Gid::from_ip(source), 0));
        let to = UdDestination {
            av: av.map_err(|error| error.to_string())?,
            remote_qpn: Qpn::truncate(found.qp_num),
            remote_qkey: QKey(found.qkey),
        };
        let qpn = qpn_of_asker(attempt);
        for index in 0..SENT {
            let qp = self.hosts[side].datagram_qps.get_mut(&qpn);
            qp.expect("made before it asked")
                .send(to, &message(attempt, index))?;
        }
        self.attempts[attempt].has_sent = true;
        self.count("services found");
        let key = self.hosts[side].ledger.record(id).key;
        let destroy = Action::Do(Deed::Destroy, side, id, key);
        self.later(Duration::from_secs(2), destroy);
        self.drain_datagrams(side, qpn)
    }

    pub(crate) fn datagram_received(
        &mut self,
        side: usize,
        qpn: u32,
        received: &Received,
    ) -> Result<(), String> {
        if qpn != qpn_of_service(side) {
            return self.group_datagram_received(side, qpn, received);
        }
        let data = &received.payload;
        let attempt = data
            .first_chunk()
            .map_or(0, |four| u32::from_le_bytes(*four)) as usize;
        let index = data.len().saturating_sub(24);
        let known = self.attempts.get_mut(attempt);
        let known = known.ok_or("a datagram of nobody")?;
        let is_right = index < SENT && *data == message(attempt, index);
        if !is_right || received.from.get() != qpn_of_asker(attempt) || !known.has_sent {
            return Err(format!("a datagram that nobody sent: {data:?}"));
        }
        known.arrived[index] += 1;
        self.count("datagrams");
        Ok(())
    }
}
