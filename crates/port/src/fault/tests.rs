//! Rules as text, what they strike, and what becomes of packets on the in-memory wire and the real port.

mod judged;
mod sent;
mod text;

use super::*;
use crate::{Batch, MemHost, MemWire, Port};
use oarlock_wire::{AddressVector, Gid, Opcode};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::sync::Arc;

/// A packet to queue pair `qpn`, with its PSN as the payload, twice.
fn packet(opcode: Opcode, qpn: u32, psn: u32) -> Vec<u8> {
    let mut packet = vec![opcode.0, 0, 0xFF, 0xFF];
    packet.extend(qpn.to_be_bytes());
    packet.extend(psn.to_be_bytes());
    packet.extend(psn.to_be_bytes());
    packet.extend(psn.to_be_bytes());
    packet
}

fn send_only(qpn: u32, psn: u32) -> Vec<u8> {
    packet(Opcode::RC_SEND_ONLY, qpn, psn)
}

fn faults(rules: &str) -> Arc<Faults> {
    Arc::new(Faults::new(rules.parse().unwrap()))
}

fn path(local: &str, remote: &str) -> AddressVector {
    let gid = |text: &str| Gid::from_ip(text.parse().unwrap());
    AddressVector::new(gid(local), gid(remote))
}

/// Two hosts on a wire, a slot of each.
struct Pair {
    wire: MemWire,
    hosts: [MemHost; 2],
    a: Port,
    b: Port,
    av: AddressVector,
}

/// The queue pair of `Pair::b` that packets go to.
const QPN: u32 = 0x02_0011;

fn pair(local: &str, remote: &str) -> Pair {
    let wire = MemWire::new();
    let host = |address: &str| wire.add_host(&[address.parse().unwrap()]).unwrap();
    let hosts = [host(local), host(remote)];
    Pair {
        a: Port::Mem(hosts[0].open(1).unwrap()),
        b: Port::Mem(hosts[1].open(2).unwrap()),
        av: path(local, remote),
        hosts,
        wire,
    }
}

fn is_readable_within(port: &Port, seconds: i64) -> bool {
    let time = Timespec {
        tv_sec: seconds,
        tv_nsec: 0,
    };
    poll(&mut [PollFd::new(port, PollFlags::IN)], Some(&time)).unwrap() > 0
}

/// What is there: PSNs, after a check of the content.
fn psns(port: &Port) -> Vec<u32> {
    let mut batch = Batch::default();
    let mut found = Vec::new();
    while port.recv(&mut batch).unwrap() > 0 {
        for (_, bytes) in batch.iter() {
            let word = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
            assert_eq!(
                (word(12), word(16)),
                (word(8), word(8)),
                "the content is as sent"
            );
            found.push(word(8) & 0xFF_FFFF);
        }
    }
    found
}

/// Waits until as many have come.
fn wait_for(port: &Port, count: usize) -> Vec<u32> {
    let mut found = psns(port);
    while found.len() < count {
        assert!(is_readable_within(port, 20), "only {found:?} within 20 s");
        found.extend(psns(port));
    }
    found
}

fn counter(port: &Port, name: &str) -> u64 {
    let found = port.counters().iter().find(|(known, _)| *known == name);
    found.unwrap_or_else(|| panic!("no counter {name}")).1
}
