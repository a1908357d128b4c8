//! Data packets, summed up.

use super::Way;
use oarlock_wire::{Opcode, Packet, Psn, Qpn, Syndrome};
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

/// Data packets since the last message.
#[derive(Debug)]
pub(super) struct Data {
    pub(super) first: Duration,
    pub(super) ways: [Flow; 2],
}

/// Packets one way.
#[derive(Debug, Default)]
pub(super) struct Flow {
    packets: u64,
    messages: u64,
    bytes: u64,
    repeated: u64,
    acks: u64,
    naks: u64,
    highest: Option<Psn>,
    datagrams: bool,
}

impl Flow {
    pub(super) fn add(&mut self, packet: &Packet<'_>) {
        if let Some(aeth) = packet.aeth
            && packet.payload.is_empty()
        {
            match aeth.syndrome {
                Syndrome::Ack { .. } => self.acks += 1,
                _ => self.naks += 1,
            }
            return;
        }
        self.datagrams |= packet.deth.is_some();
        let psn = packet.bth.psn;
        // Nothing repeats a datagram.
        if packet.deth.is_none() && self.highest.is_some_and(|highest| !psn.is_after(highest)) {
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

/// Datagrams to one multicast address, by their senders.
#[derive(Debug, Default)]
pub(super) struct Group {
    senders: Vec<Sender>,
}

#[derive(Debug)]
struct Sender {
    address: IpAddr,
    qpn: Qpn,
    first: Duration,
    flow: Flow,
}

impl Group {
    pub(super) fn add(&mut self, at: Duration, address: IpAddr, packet: &Packet<'_>) {
        let qpn = packet.deth.map_or(Qpn::default(), |deth| deth.src_qpn);
        let known = self
            .senders
            .iter()
            .position(|sender| (sender.address, sender.qpn) == (address, qpn));
        let at = known.unwrap_or_else(|| {
            self.senders.push(Sender {
                address,
                qpn,
                first: at,
                flow: Flow::default(),
            });
            self.senders.len() - 1
        });
        self.senders[at].flow.add(packet);
    }

    pub(super) fn lines(&self, group: IpAddr) -> impl Iterator<Item = String> {
        self.senders.iter().map(move |sender| {
            format!(
                "{}  {} (qpn {:#08x}) > {group}  data  {}",
                stamp(sender.first),
                sender.address,
                sender.qpn.get(),
                sender.flow
            )
        })
    }
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
        if self.datagrams {
            return write!(f, "{} datagrams, {} bytes", self.packets, self.bytes);
        }
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

/// A time since the first packet.
pub(super) fn stamp(at: Duration) -> String {
    format!("t={}.{:06}", at.as_secs(), at.subsec_micros())
}
