//! Packets of a capture sorted into connections, and each connection as a ladder.
//!
//! A connection is known by its communication ids, since both ends may have one address. The sender of the REQ is A. Data
//! packets between two messages are one line: what went each way.

use crate::capture::Datagram;
use oarlock_wire::{CmMessage, CommId, MAD_LEN, Opcode, Packet, Psn, Qpn, Syndrome};
use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

/// The connections of a capture.
#[derive(Debug, Default)]
pub(crate) struct Exchanges {
    connections: Vec<Connection>,
    /// Connection by the address and communication id of its active side, and of its passive side.
    by_comm_id: HashMap<(IpAddr, CommId), usize>,
    /// Connection by destination address and queue pair of a data packet.
    by_qpn: HashMap<(IpAddr, Qpn), (usize, Way)>,
    /// Packets that belong to no connection of the capture.
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

#[derive(Debug)]
struct Connection {
    active: IpAddr,
    passive: IpAddr,
    active_id: CommId,
    lines: Vec<String>,
    /// What each message said last, to tell a repetition.
    said: Vec<(Way, [u8; MAD_LEN])>,
    data: Option<Data>,
}

/// Data packets since the last message.
#[derive(Debug)]
struct Data {
    first: Duration,
    ways: [Flow; 2],
}

#[derive(Debug, Default)]
struct Flow {
    packets: u64,
    messages: u64,
    bytes: u64,
    repeated: u64,
    acks: u64,
    naks: u64,
    highest: Option<Psn>,
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
        if packet.bth.dest_qpn != Qpn::QP1 {
            self.add_data(at, datagram.destination, &packet);
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
            _ => {}
        }
        let connection = &mut self.connections[number];
        connection.end_of_data();
        let repetition = connection.said.contains(&(way, *mad));
        if !repetition {
            connection.said.push((way, *mad));
        }
        let again = if repetition { " (again)" } else { "" };
        connection
            .lines
            .push(format!("{}  {}  {message}{again}", stamp(at), way.arrow()));
    }

    /// Which connection a message belongs to, and which way it goes; a REQ may begin one.
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
                // An id comes back after its connection has ended: that REQ says something new.
                let same = known.filter(|&number| {
                    let connection = &self.connections[number];
                    connection.active_id == req.local_comm_id && !connection.has_ended()
                });
                let number = same.unwrap_or_else(|| {
                    self.connections.push(Connection {
                        active: source,
                        passive: destination,
                        active_id: req.local_comm_id,
                        lines: Vec::new(),
                        said: Vec::new(),
                        data: None,
                    });
                    self.connections.len() - 1
                });
                self.by_comm_id.insert(key, number);
                return Some((number, Way::AToB));
            }
            CmMessage::Mra(m) => (m.local_comm_id, m.remote_comm_id),
            CmMessage::Rej(m) => (m.local_comm_id, m.remote_comm_id),
            CmMessage::Rep(m) => (m.local_comm_id, m.remote_comm_id),
            CmMessage::Rtu(m) => (m.local_comm_id, m.remote_comm_id),
            CmMessage::Dreq(m) => (m.local_comm_id, m.remote_comm_id),
            CmMessage::Drep(m) => (m.local_comm_id, m.remote_comm_id),
            _ => return None,
        };
        let number = self
            .by_comm_id
            .get(&(source, local))
            .or_else(|| self.by_comm_id.get(&(destination, remote)))
            .copied()?;
        let active_id = self.connections[number].active_id;
        // The sender's id tells the side; a REJ of a REQ may have none of its own, then the receiver's does.
        let way = if local == active_id && remote != active_id {
            Way::AToB
        } else {
            Way::BToA
        };
        Some((number, way))
    }

    fn add_data(&mut self, at: Duration, destination: IpAddr, packet: &Packet<'_>) {
        let Some(&(number, way)) = self.by_qpn.get(&(destination, packet.bth.dest_qpn)) else {
            self.unmatched += 1;
            return;
        };
        let data = self.connections[number].data.get_or_insert_with(|| Data {
            first: at,
            ways: <[Flow; 2]>::default(),
        });
        data.ways[usize::from(way == Way::BToA)].add(packet);
    }

    /// How many connections there are.
    pub(crate) fn count(&self) -> usize {
        self.connections.len()
    }

    /// The lines of one connection, numbered from 1.
    pub(crate) fn connection(&self, number: usize) -> Option<Vec<String>> {
        let connection = self.connections.get(number.checked_sub(1)?)?;
        let mut lines = vec![format!(
            "connection {number}: A = {} (active), B = {} (passive)",
            connection.active, connection.passive
        )];
        lines.extend(connection.lines.iter().cloned());
        lines.extend(connection.data.as_ref().map(ToString::to_string));
        Some(lines)
    }

    /// The lines of all connections, and what is none of theirs.
    pub(crate) fn all(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for number in 1..=self.count() {
            lines.extend(self.connection(number).unwrap_or_default());
            lines.push(String::new());
        }
        lines.push(format!(
            "{} connections; {} packets of connections that began before the capture; {} datagrams that are no packet we know",
            self.count(),
            self.unmatched,
            self.unknown
        ));
        lines
    }
}

impl Connection {
    fn end_of_data(&mut self) {
        if let Some(data) = self.data.take() {
            self.lines.push(data.to_string());
        }
    }

    fn has_ended(&self) -> bool {
        self.lines
            .iter()
            .any(|line| line.contains("  DREP") || line.contains("  REJ"))
    }
}

impl Flow {
    fn add(&mut self, packet: &Packet<'_>) {
        if let Some(aeth) = packet.aeth
            && packet.payload.is_empty()
        {
            match aeth.syndrome {
                Syndrome::Ack { .. } => self.acks += 1,
                _ => self.naks += 1,
            }
            return;
        }
        let psn = packet.bth.psn;
        if self.highest.is_some_and(|highest| !psn.is_after(highest)) {
            self.repeated += 1;
            return;
        }
        self.highest = Some(psn);
        self.packets += 1;
        self.bytes += packet.payload.len() as u64;
        self.messages += u64::from(ends_message(packet.bth.opcode));
    }

    fn is_idle(&self) -> bool {
        self.packets + self.repeated + self.acks + self.naks == 0
    }
}

fn ends_message(opcode: Opcode) -> bool {
    opcode.position().is_end()
}

impl fmt::Display for Data {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        for (way, flow) in [Way::AToB, Way::BToA].into_iter().zip(&self.ways) {
            if !flow.is_idle() {
                parts.push(format!("{}: {flow}", way.arrow()));
            }
        }
        write!(
            f,
            "{}  A = B  data  {}",
            stamp(self.first),
            parts.join("; ")
        )
    }
}

impl fmt::Display for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} messages in {} packets, {} bytes, {} acknowledgements",
            self.messages, self.packets, self.bytes, self.acks
        )?;
        if self.naks > 0 {
            write!(f, ", {} negative", self.naks)?;
        }
        if self.repeated > 0 {
            write!(f, ", {} repeated packets", self.repeated)?;
        }
        Ok(())
    }
}

fn stamp(at: Duration) -> String {
    format!("t={}.{:06}", at.as_secs(), at.subsec_micros())
}

#[cfg(test)]
mod tests;
