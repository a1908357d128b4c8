//! Packets of a capture sorted into exchanges, and each exchange as a ladder.
//!
//! - A *connection* begins with a REQ and is known by its communication ids, since both ends may have one address.
//! - A *resolution* begins with a SIDR_REQ and is known by its request id; the datagrams to the queue pair that it found, and
//!   back, belong to it.
//! - A multicast *group* is all datagrams to one address.
//!
//! The sender of the REQ or SIDR_REQ is A. Data packets between two messages are one line: what went each way;
//! operations on the peer's memory, and what came along with messages (immediate data, keys to invalidate), have a line each behind it.

mod data;
mod operations;
pub(super) mod steps;

use crate::capture::Datagram;
pub(super) use data::stamp;
use data::{Data, Group};
use oarlock_wire::{CmMessage, CommId, MAD_LEN, Packet, Qpn, SidrStatus};
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::time::Duration;
use steps::{Step, Steps};

/// The exchanges of a capture.
#[derive(Debug, Default)]
pub(crate) struct Exchanges {
    exchanges: Vec<Exchange>,
    /// Connection by the address and communication id of its active side, and of its passive side.
    by_comm_id: HashMap<(IpAddr, CommId), usize>,
    /// Resolution by the address of its active side and its request id.
    by_request_id: HashMap<(IpAddr, CommId), usize>,
    /// Connection by destination address and queue pair of a data packet.
    by_qpn: HashMap<(IpAddr, Qpn), (usize, Way)>,
    /// Resolution by addresses and the queue pair that it found.
    by_found: HashMap<(IpAddr, IpAddr, Qpn), Vec<usize>>,
    /// Resolution by source and destination of a datagram, once one was seen that way.
    by_ends: HashMap<[(IpAddr, Qpn); 2], (usize, Way)>,
    groups: BTreeMap<IpAddr, Group>,
    /// Packets that belong to no exchange of the capture.
    unmatched: u64,
    /// Datagrams that are no RoCEv2 packet we know.
    unknown: u64,
    started: Option<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    AToB,
    BToA,
}

impl Way {
    fn arrow(self) -> &'static str {
        match self {
            Self::AToB => "A > B",
            Self::BToA => "A < B",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Connection,
    Resolution,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Connection => "connection",
            Self::Resolution => "resolution",
        }
    }
}

#[derive(Debug)]
struct Exchange {
    kind: Kind,
    active: IpAddr,
    passive: IpAddr,
    active_id: CommId,
    lines: Vec<String>,
    steps: Steps,
    /// What each message said last, to tell a repetition.
    said: Vec<(Way, [u8; MAD_LEN])>,
    data: Option<Data>,
    /// A message that ends it was seen.
    ended: bool,
    /// Of a resolution: a datagram of it was seen.
    has_sender: bool,
}

impl Exchanges {
    /// Takes one datagram into account; in the order of time.
    pub(crate) fn add(&mut self, datagram: &Datagram<'_>) {
        let started = *self.started.get_or_insert(datagram.time);
        let at = datagram.time.saturating_sub(started);
        // The last four bytes are the ICRC.
        let Some((transport, _icrc)) = datagram.payload.split_last_chunk::<4>() else {
            self.unknown += 1;
            return;
        };
        let Ok(packet) = Packet::parse(transport) else {
            self.unknown += 1;
            return;
        };
        if packet.bth.dest_qpn == Qpn::MULTICAST {
            let group = self.groups.entry(datagram.destination).or_default();
            group.add(at, datagram.source, &packet);
            return;
        }
        if packet.bth.dest_qpn != Qpn::QP1 {
            self.add_data(at, datagram, &packet);
            return;
        }
        let Ok(mad) = <&[u8; MAD_LEN]>::try_from(packet.payload) else {
            self.unknown += 1;
            return;
        };
        match CmMessage::parse(mad) {
            Ok((_, message)) => self.add_message(at, datagram, mad, &message),
            Err(_) => self.unknown += 1,
        }
    }

    fn add_message(
        &mut self,
        at: Duration,
        datagram: &Datagram<'_>,
        mad: &[u8; MAD_LEN],
        message: &CmMessage,
    ) {
        let (source, destination) = (datagram.source, datagram.destination);
        let Some((number, way)) = self.place(source, destination, message) else {
            self.unmatched += 1;
            return;
        };
        match message {
            CmMessage::Req(req) => {
                self.by_qpn
                    .insert((source, req.local_qpn), (number, Way::BToA));
            }
            CmMessage::Rep(rep) => {
                self.by_comm_id.insert((source, rep.local_comm_id), number);
                self.by_qpn
                    .insert((source, rep.local_qpn), (number, Way::AToB));
            }
            CmMessage::SidrRep(rep) if rep.status == SidrStatus::SUCCESS => {
                let found = self
                    .by_found
                    .entry((destination, source, rep.qpn))
                    .or_default();
                if !found.contains(&number) {
                    found.push(number);
                }
            }
            _ => {}
        }
        let exchange = &mut self.exchanges[number];
        exchange.end_of_data();
        exchange.ended |= matches!(
            message,
            CmMessage::Drep(_) | CmMessage::Rej(_) | CmMessage::SidrRep(_)
        );
        let repetition = exchange.said.contains(&(way, *mad));
        if !repetition {
            exchange.said.push((way, *mad));
        }
        exchange
            .steps
            .message(at, way, message.to_string(), repetition);
        let again = if repetition { " (again)" } else { "" };
        exchange
            .lines
            .push(format!("{}  {}  {message}{again}", stamp(at), way.arrow()));
    }

    /// Which exchange a message belongs to, and which way it goes; a REQ or SIDR_REQ may begin one.
    fn place(
        &mut self,
        source: IpAddr,
        destination: IpAddr,
        message: &CmMessage,
    ) -> Option<(usize, Way)> {
        let (local, remote) = match message {
            CmMessage::Req(req) => {
                let key = (source, req.local_comm_id);
                let known = self.by_comm_id.get(&key).copied();
                let number = self.begin_or_go_on(known, Kind::Connection, key, destination);
                self.by_comm_id.insert(key, number);
                return Some((number, Way::AToB));
            }
            CmMessage::SidrReq(req) => {
                let key = (source, req.request_id);
                let known = self.by_request_id.get(&key).copied();
                let number = self.begin_or_go_on(known, Kind::Resolution, key, destination);
                self.by_request_id.insert(key, number);
                return Some((number, Way::AToB));
            }
            CmMessage::SidrRep(rep) => {
                let number = self.by_request_id.get(&(destination, rep.request_id))?;
                return Some((*number, Way::BToA));
            }
            CmMessage::Mra(m) => (m.local_comm_id, m.remote_comm_id),
            CmMessage::Rej(m) => (m.local_comm_id, m.remote_comm_id),
            CmMessage::Rep(m) => (m.local_comm_id, m.remote_comm_id),
            CmMessage::Rtu(m) => (m.local_comm_id, m.remote_comm_id),
            CmMessage::Dreq(m) => (m.local_comm_id, m.remote_comm_id),
            CmMessage::Drep(m) => (m.local_comm_id, m.remote_comm_id),
            CmMessage::Lap(m) => (m.local_comm_id, m.remote_comm_id),
            CmMessage::Apr(m) => (m.local_comm_id, m.remote_comm_id),
            _ => return None,
        };
        let number = self
            .by_comm_id
            .get(&(source, local))
            .or_else(|| self.by_comm_id.get(&(destination, remote)))
            .copied()?;
        let active_id = self.exchanges[number].active_id;
        // The sender's id tells the side; a REJ of a REQ may have none of its own, then the receiver's does.
        let way = if local == active_id && remote != active_id {
            Way::AToB
        } else {
            Way::BToA
        };
        Some((number, way))
    }

    /// The exchange that a first message belongs to: a known one that has not ended, or a new one. An id comes back after its
    /// exchange has ended; then the message says something new, unless it says the same again.
    fn begin_or_go_on(
        &mut self,
        known: Option<usize>,
        kind: Kind,
        (active, active_id): (IpAddr, CommId),
        passive: IpAddr,
    ) -> usize {
        let same = known.filter(|&number| {
            let exchange = &self.exchanges[number];
            exchange.active_id == active_id && !exchange.ended
        });
        same.unwrap_or_else(|| {
            self.exchanges.push(Exchange {
                kind,
                active,
                passive,
                active_id,
                lines: Vec::new(),
                steps: Steps::default(),
                said: Vec::new(),
                data: None,
                ended: false,
                has_sender: false,
            });
            self.exchanges.len() - 1
        })
    }

    fn add_data(&mut self, at: Duration, datagram: &Datagram<'_>, packet: &Packet<'_>) {
        let destination = (datagram.destination, packet.bth.dest_qpn);
        let place = match packet.deth {
            None => self.by_qpn.get(&destination).copied(),
            Some(deth) => self.place_of_datagram((datagram.source, deth.src_qpn), destination),
        };
        let Some((number, way)) = place else {
            self.unmatched += 1;
            return;
        };
        let exchange = &mut self.exchanges[number];
        let data = exchange.data.get_or_insert_with(|| Data::beginning(at));
        let seen = data.add(at, way, packet);
        exchange.steps.data(at, way, seen, packet);
    }

    /// Many may have found one queue pair: the first datagram of a sender goes to the first resolution from there that has
    /// none yet, and both directions between the two queue pairs follow it.
    fn place_of_datagram(
        &mut self,
        source: (IpAddr, Qpn),
        destination: (IpAddr, Qpn),
    ) -> Option<(usize, Way)> {
        if let Some(known) = self.by_ends.get(&[source, destination]) {
            return Some(*known);
        }
        let found = self
            .by_found
            .get(&(source.0, destination.0, destination.1))?;
        let number = *found
            .iter()
            .find(|number| !self.exchanges[**number].has_sender)
            .or(found.last())?;
        self.exchanges[number].has_sender = true;
        self.by_ends
            .insert([source, destination], (number, Way::AToB));
        self.by_ends
            .insert([destination, source], (number, Way::BToA));
        Some((number, Way::AToB))
    }

    /// How many connections and resolutions there are.
    pub(crate) fn count(&self) -> usize {
        self.exchanges.len()
    }

    /// The lines of one connection or resolution, numbered from 1.
    pub(crate) fn exchange(&self, number: usize) -> Option<Vec<String>> {
        let exchange = self.exchanges.get(number.checked_sub(1)?)?;
        let mut lines = vec![exchange.title(number)];
        lines.extend(exchange.lines.iter().cloned());
        lines.extend(exchange.data.iter().flat_map(Data::lines));
        Some(lines)
    }

    /// The title and the steps of one connection or resolution, numbered from 1, and the addresses of its sides.
    pub(super) fn drawing(&self, number: usize) -> Option<(String, [IpAddr; 2], &[Step])> {
        let exchange = self.exchanges.get(number.checked_sub(1)?)?;
        let title = format!("{} {number}", exchange.kind.name());
        let sides = [exchange.active, exchange.passive];
        Some((title, sides, exchange.steps.list()))
    }

    /// The last line: what there is besides.
    pub(super) fn summary(&self) -> String {
        let of = |kind| self.exchanges.iter().filter(|e| e.kind == kind).count();
        format!(
            "{} connections; {} resolutions; {} groups; {} packets of exchanges that began before the capture; {} datagrams that are no packet we know",
            of(Kind::Connection),
            of(Kind::Resolution),
            self.groups.len(),
            self.unmatched,
            self.unknown
        )
    }

    /// The lines of the multicast groups.
    pub(super) fn group_lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for (address, group) in &self.groups {
            lines.push(format!("group {address}"));
            lines.extend(group.lines(*address));
            lines.push(String::new());
        }
        lines
    }

    /// The lines of all exchanges, and what is none of theirs.
    pub(crate) fn all(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for number in 1..=self.count() {
            lines.extend(self.exchange(number).unwrap_or_default());
            lines.push(String::new());
        }
        lines.extend(self.group_lines());
        lines.push(self.summary());
        lines
    }
}

impl Exchange {
    fn title(&self, number: usize) -> String {
        format!(
            "{} {number}: A = {} (active), B = {} (passive)",
            self.kind.name(),
            self.active,
            self.passive
        )
    }

    fn end_of_data(&mut self) {
        if let Some(data) = self.data.take() {
            self.lines.extend(data.lines());
        }
    }
}

#[cfg(test)]
mod picture_tests;
#[cfg(test)]
mod tests;
