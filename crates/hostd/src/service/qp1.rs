//! QP1: management datagrams in packets, in and out.
//!
//! ```text
//!   BTH   UD SEND ONLY, destination QP 1, default partition
//!   DETH  Q_Key 0x80010000, source QP 1
//!   MAD   256 bytes, class 0x07 (communication management)
//! ```

use oarlock_port::fault::DeviceFault;
use oarlock_port::{Batch, Port};
use oarlock_ucm::Ucm;
use oarlock_wire::{
    AddressVector, AttributeId, Bth, Deth, MAD_LEN, MgmtClass, Opcode, Packet, PacketHeader, Psn,
    QKey, Qpn, Time, packet::MAX_HEADER_LEN,
};
use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Duration;

/// A management datagram and its path, seen from this side.
type Datagram = (AddressVector, [u8; MAD_LEN]);

/// A fault of a device that came with a datagram.
#[derive(Debug, Clone, Copy)]
pub(super) struct Strike {
    pub(super) fault: DeviceFault,
    /// Which set of rules.
    pub(super) set: usize,
    /// The address that the datagram came to.
    pub(super) local: IpAddr,
}

/// The state of QP1.
#[derive(Debug)]
pub(super) struct Qp1 {
    psn: Psn,
    batch: Batch,
    /// Datagrams from this host to itself, on their way.
    within: VecDeque<Datagram>,
    /// Connection requests to other hosts that wait for their turn.
    waiting: VecDeque<Datagram>,
    /// Requests that may leave before `window_end`.
    allowance: u32,
    window_end: Time,
    pub(super) counters: Qp1Counters,
}

/// What QP1 did, by name.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Qp1Counters {
    sent: u64,
    sent_within: u64,
    send_failed: u64,
    paced: u64,
    pace_dropped: u64,
    received: u64,
    within_dropped: u64,
    data_packets: u64,
    malformed: u64,
    wrong_opcode: u64,
    wrong_qkey: u64,
    wrong_source: u64,
    wrong_length: u64,
    wrong_class: u64,
}

impl Qp1Counters {
    pub(super) fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        [
            ("qp1_sent", self.sent),
            ("qp1_sent_within_host", self.sent_within),
            ("qp1_send_failed", self.send_failed),
            ("qp1_paced", self.paced),
            ("qp1_pace_dropped", self.pace_dropped),
            ("qp1_received", self.received),
            ("qp1_within_host_dropped", self.within_dropped),
            ("qp1_malformed", self.malformed),
            ("qp1_wrong_opcode", self.wrong_opcode),
            ("qp1_wrong_qkey", self.wrong_qkey),
            ("qp1_wrong_source", self.wrong_source),
            ("qp1_wrong_length", self.wrong_length),
            ("qp1_wrong_class", self.wrong_class),
            // Packets for queue pairs: none may ever pass through the service.
            ("data_packets", self.data_packets),
        ]
        .into_iter()
    }
}

impl Qp1 {
    pub(super) fn new(psn: Psn) -> Self {
        Self {
            psn,
            batch: Batch::default(),
            within: VecDeque::new(),
            waiting: VecDeque::new(),
            allowance: BURST,
            window_end: Time::ZERO,
            counters: Qp1Counters::default(),
        }
    }

    /// Gives up memory that was needed at a busier time.
    pub(super) fn shrink_to_fit(&mut self) {
        self.within.shrink_to_fit();
        self.waiting.shrink_to_fit();
    }

    /// Sends a datagram: to this host itself without leaving the service, a connection request to another host when it
    /// is its turn, anything else at once.
    pub(super) fn send(&mut self, now: Time, port: &Port, datagram: Datagram, within_host: bool) {
        if within_host {
            self.send_within(port, &datagram);
        } else if is_request(&datagram.1) {
            if self.waiting.len() >= WAITING_MAX {
                self.counters.pace_dropped += 1;
                return;
            }
            self.waiting.push_back(datagram);
            self.send_waiting(now, port);
            if !self.waiting.is_empty() {
                self.counters.paced += 1;
            }
        } else {
            self.send_out(port, &datagram);
        }
    }

    /// Sends the requests whose turn it is. A receiver with a default buffer holds 166 datagrams, so they leave in
    /// bursts of fewer, with pauses in which it can read them.
    pub(super) fn send_waiting(&mut self, now: Time, port: &Port) {
        if now >= self.window_end {
            self.allowance = BURST;
        }
        while self.allowance > 0
            && let Some(datagram) = self.waiting.pop_front()
        {
            if self.allowance == BURST {
                self.window_end = now + PAUSE;
            }
            self.allowance -= 1;
            self.send_out(port, &datagram);
        }
    }

    /// When the next request may leave, if one waits.
    pub(super) fn next_turn(&self) -> Option<Time> {
        (!self.waiting.is_empty()).then_some(self.window_end)
    }

    fn send_out(&mut self, port: &Port, (av, mad): &Datagram) {
        let packet = self.packet(mad);
        match port.send(av, &packet) {
            Ok(()) => self.counters.sent += 1,
            // No route at the moment, or the address has gone: lost, and sent again by whoever waits for an answer.
            Err(_) => self.counters.send_failed += 1,
        }
    }

    /// Encoded and recorded as on the wire, and taken apart again by the same code as what comes from outside.
    fn send_within(&mut self, port: &Port, (av, mad): &Datagram) {
        if self.within.len() >= WITHIN_MAX {
            self.counters.within_dropped += 1;
            return;
        }
        let packet = self.packet(mad);
        let _ = port.record(av, &packet);
        self.counters.sent_within += 1;
        if let Some(mad) = self.open(&packet) {
            self.within.push_back((av.reversed(), mad));
        }
    }

    fn packet(&mut self, mad: &[u8; MAD_LEN]) -> [u8; PACKET_LEN] {
        let bth = Bth::new(Opcode::UD_SEND_ONLY, Qpn::QP1, self.psn);
        self.psn = self.psn.next();
        let mut packet = [0; PACKET_LEN];
        PacketHeader::new(bth)
            .with_deth(Deth {
                qkey: QKey::GSI,
                src_qpn: Qpn::QP1,
            })
            .emit_packet(mad, &mut packet)
            .expect(
                "a UD SEND ONLY has a BTH and a DETH, and the buffer has room for them and a MAD",
            );
        packet
    }

    /// Hands on what came from this host itself; whether there was anything.
    pub(super) fn deliver_within(&mut self, now: Time, ucm: &mut Ucm) -> bool {
        let waiting = self.within.len();
        // Answers to these wait for the next round.
        for (av, mad) in self.within.drain(..) {
            ucm.handle_mad(now, &av, &mad);
        }
        waiting > 0
    }

    /// Receives what has come from the network, in batches, and hands it on. Gives the faults that rules have for devices.
    pub(super) fn receive(&mut self, now: Time, port: &Port, ucm: &mut Ucm) -> Vec<Strike> {
        let mut struck = Vec::new();
        let mut batch = std::mem::take(&mut self.batch);
        for _ in 0..RECEIVE_ROUNDS {
            if !matches!(port.recv(&mut batch), Ok(n) if n > 0) {
                break;
            }
            let mut strikes = batch.strikes();
            for (place, (av, packet)) in batch.iter().enumerate() {
                struck.extend(strikes.with_set(place).map(|(fault, set)| Strike {
                    fault,
                    set,
                    local: av.local.to_ip(),
                }));
                if let Some(mad) = self.open(packet) {
                    self.counters.received += 1;
                    ucm.handle_mad(now, &av, &mad);
                }
            }
        }
        self.batch = batch;
        struck
    }

    /// Takes the datagram out of a packet; counts why not.
    fn open(&mut self, packet: &[u8]) -> Option<[u8; MAD_LEN]> {
        let counters = &mut self.counters;
        let Ok(packet) = Packet::parse(packet) else {
            counters.malformed += 1;
            return None;
        };
        if packet.bth.dest_qpn != Qpn::QP1 {
            counters.data_packets += 1;
            return None;
        }
        let Some(deth) = packet
            .deth
            .filter(|_| packet.bth.opcode == Opcode::UD_SEND_ONLY)
        else {
            counters.wrong_opcode += 1;
            return None;
        };
        if deth.qkey != QKey::GSI {
            counters.wrong_qkey += 1;
            return None;
        }
        if deth.src_qpn != Qpn::QP1 {
            counters.wrong_source += 1;
            return None;
        }
        let Ok(mad) = <[u8; MAD_LEN]>::try_from(packet.payload) else {
            counters.wrong_length += 1;
            return None;
        };
        if mad[CLASS_OFFSET] != MgmtClass::CM.0 {
            counters.wrong_class += 1;
            return None;
        }
        Some(mad)
    }
}

fn is_request(mad: &[u8; MAD_LEN]) -> bool {
    mad[ATTRIBUTE_OFFSET..ATTRIBUTE_OFFSET + 2] == AttributeId::REQ.0.to_be_bytes()
}

const PACKET_LEN: usize = Bth::LEN + Deth::LEN + MAD_LEN;
const _: () = assert!(PACKET_LEN <= MAX_HEADER_LEN + MAD_LEN);
/// Offset of the class in a MAD, and of the attribute.
const CLASS_OFFSET: usize = 1;
const ATTRIBUTE_OFFSET: usize = 16;
const BURST: u32 = 64;
const PAUSE: Duration = Duration::from_millis(1);
/// More than there can be connections.
const WAITING_MAX: usize = 1 << 17;
const WITHIN_MAX: usize = 1 << 17;
const RECEIVE_ROUNDS: usize = 64;

#[cfg(test)]
mod tests;
