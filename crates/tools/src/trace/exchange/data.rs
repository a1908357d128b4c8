//! Data packets, summed up.

use super::Way;
use super::operations::Operations;
use oarlock_wire::base::{Operation, TransportClass};
use oarlock_wire::{Packet, Psn, Qpn, RKey, Syndrome};
use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

/// Data packets since the last message.
#[derive(Debug)]
pub(super) struct Data {
    first: Duration,
    ways: [Flow; 2],
    operations: Operations,
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
    /// READ responses, and the bytes in them.
    responses: (u64, u64),
    /// The latest PSN of a request, and of a READ response: each way has both, and they know nothing of each other.
    highest: Option<Psn>,
    highest_response: Option<Psn>,
    /// What the latest READ asked for.
    read: Option<(RKey, u64, u64)>,
    /// Nobody acknowledges.
    unreliable: bool,
    datagrams: bool,
    srqns: BTreeSet<u32>,
}

/// What a packet was to a [`Flow`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Seen {
    Request,
    Response,
    Again,
}

impl Data {
    /// Nothing yet; the first packet is about to come.
    pub(super) fn beginning(first: Duration) -> Self {
        Self {
            first,
            ways: <[Flow; 2]>::default(),
            operations: Operations::default(),
        }
    }

    pub(super) fn add(&mut self, at: Duration, way: Way, packet: &Packet<'_>) -> Seen {
        let seen = self.ways[usize::from(way == Way::BToA)].add(packet);
        match seen {
            Seen::Request => self.operations.request(at, way, packet),
            Seen::Response => self.operations.response(way, packet),
            Seen::Again => {}
        }
        seen
    }

    /// What went each way, and the operations one by one.
    pub(super) fn lines(&self) -> impl Iterator<Item = String> {
        std::iter::once(self.to_string()).chain(self.operations.lines())
    }
}

impl Flow {
    fn add(&mut self, packet: &Packet<'_>) -> Seen {
        let opcode = packet.bth.opcode;
        match opcode.operation() {
            Operation::Acknowledge | Operation::AtomicAcknowledge => {
                match packet.aeth.map(|aeth| aeth.syndrome) {
                    Some(Syndrome::Ack { .. }) => self.acks += 1,
                    _ => self.naks += 1,
                }
                return Seen::Response;
            }
            Operation::RdmaReadResponse => {
                if is_repeated(&mut self.highest_response, packet.bth.psn) {
                    self.repeated += 1;
                    return Seen::Again;
                }
                self.responses.0 += 1;
                self.responses.1 += packet.payload.len() as u64;
                return Seen::Response;
            }
            _ => {}
        }
        self.datagrams |= packet.deth.is_some();
        self.unreliable |= opcode.transport() == TransportClass::Uc;
        self.srqns
            .extend(packet.xrceth.map(|xrceth| xrceth.srqn.get()));
        // Nothing repeats a datagram.
        if packet.deth.is_none()
            && (is_repeated(&mut self.highest, packet.bth.psn) || self.is_asked_again(packet))
        {
            self.repeated += 1;
            return Seen::Again;
        }
        self.packets += 1;
        self.bytes += packet.payload.len() as u64;
        self.messages += u64::from(opcode.position().is_end());
        Seen::Request
    }

    /// Whether a READ request asks again for the end of what the latest one asked for: so a lost response is asked for.
    fn is_asked_again(&mut self, packet: &Packet<'_>) -> bool {
        let Some(reth) = packet
            .reth
            .filter(|_| packet.bth.opcode.operation() == Operation::RdmaReadRequest)
        else {
            return false;
        };
        let end = reth.addr.wrapping_add(reth.len.into());
        let again = self.read.is_some_and(|(rkey, first, last)| {
            rkey == reth.rkey && end == last && reth.addr > first && reth.addr < last
        });
        if !again {
            self.read = Some((reth.rkey, reth.addr, end));
        }
        again
    }

    fn is_idle(&self) -> bool {
        self.packets + self.repeated + self.acks + self.naks + self.responses.0 == 0
    }
}

/// Whether `psn` is no news; else it is the latest.
fn is_repeated(highest: &mut Option<Psn>, psn: Psn) -> bool {
    if highest.is_some_and(|highest| !psn.is_after(highest)) {
        return true;
    }
    *highest = Some(psn);
    false
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
            "{} messages in {} packets, {} bytes",
            self.messages, self.packets, self.bytes
        )?;
        if !self.unreliable {
            write!(f, ", {} acknowledgements", self.acks)?;
        }
        if let (packets @ 1.., bytes) = self.responses {
            write!(f, ", {packets} READ responses of {bytes} bytes")?;
        }
        if self.naks > 0 {
            write!(f, ", {} negative", self.naks)?;
        }
        if self.repeated > 0 {
            write!(f, ", {} repeated packets", self.repeated)?;
        }
        if !self.srqns.is_empty() {
            let numbers = self.srqns.iter().map(|srqn| format!("{srqn:#08x}"));
            let srqns: Vec<_> = numbers.collect();
            write!(f, ", to shared receive queues {}", srqns.join(" "))?;
        }
        Ok(())
    }
}

/// A time since the first packet.
pub(in super::super) fn stamp(at: Duration) -> String {
    format!("t={}.{:06}", at.as_secs(), at.subsec_micros())
}
