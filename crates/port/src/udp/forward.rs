//! Handing a packet on to the slot it was meant for.
//!
//! GRO can merge packets of one UDP flow whose queue pairs sit in two slots (a sender that is not ours may use one
//! source port for both). The kernel delivers such a burst whole, to the slot of its first packet. The receiver sends
//! the others on over loopback, with their addresses, to the same port, where the kernel steers them by the QP number
//! as it steers any packet:
//!
//! ```text
//!    0  opcode 0xFF (no opcode of the specification); 1 if the packet is one that an injected fault has held
//!       back and that comes to its own slot now, else 0; two zero bytes
//!    4  the packet's destination QP number, 32 bits with the upper 8 zero
//!    8  token, 8 bytes: a secret of the host service, known to the holders of slots
//!   16  source address 16, destination address 16 (IPv4 mapped)
//!   48  source port 2, traffic class 1, hop limit 1, interface 4
//!   56  the datagram as it came, ICRC included
//! ```

use super::{Arrival, Senders};
use crate::ROCE_PORT;
use crate::frame::Flow;
use oarlock_wire::{AddressVector, Gid};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The secret by which the holders of a host's slots know each other's forwarded packets. Made by the host service.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ForwardToken(pub u64);

impl std::fmt::Debug for ForwardToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ForwardToken(..)")
    }
}

/// Whether a datagram claims to be a forwarded packet.
pub(super) fn is_forwarded(datagram: &[u8]) -> bool {
    datagram.first() == Some(&OPCODE)
}

/// Sends a datagram on to its slot.
pub(super) fn send(
    senders: &Senders,
    arrival: &Arrival,
    token: ForwardToken,
    datagram: &[u8],
) -> io::Result<()> {
    let dest_qpn = [datagram[5], datagram[6], datagram[7]];
    send_with(
        senders,
        arrival,
        datagram,
        header(arrival, token, &dest_qpn),
    )
}

/// Sends a datagram that has been held to the slot that it came to.
pub(super) fn send_to_slot(
    senders: &Senders,
    arrival: &Arrival,
    token: ForwardToken,
    slot: u8,
    datagram: &[u8],
) -> io::Result<()> {
    let mut header = header(arrival, token, &[slot, 0, 0]);
    header[1] = HELD;
    send_with(senders, arrival, datagram, header)
}

fn send_with(
    senders: &Senders,
    arrival: &Arrival,
    datagram: &[u8],
    header: [u8; HEADER_LEN],
) -> io::Result<()> {
    let ipv6 = arrival.flow.destination.is_ipv6();
    let loopback: IpAddr = if ipv6 {
        Ipv6Addr::LOCALHOST.into()
    } else {
        Ipv4Addr::LOCALHOST.into()
    };
    let sender = senders.get(ipv6, header[5])?;
    let flow = Flow {
        source: loopback,
        source_port: sender.port(),
        destination: loopback,
        destination_port: ROCE_PORT,
    };
    let av = AddressVector::new(loopback.into(), loopback.into());
    sender.send(&av, &flow, &[&header, datagram], None)
}

/// What stands before a datagram that is handed on.
pub(super) fn header(arrival: &Arrival, token: ForwardToken, dest_qpn: &[u8]) -> [u8; HEADER_LEN] {
    let mut header = [0; HEADER_LEN];
    header[0] = OPCODE;
    header[5..8].copy_from_slice(dest_qpn);
    header[8..16].copy_from_slice(&token.0.to_be_bytes());
    header[16..32].copy_from_slice(&Gid::from_ip(arrival.flow.source).0);
    header[32..48].copy_from_slice(&Gid::from_ip(arrival.flow.destination).0);
    header[48..50].copy_from_slice(&arrival.flow.source_port.to_be_bytes());
    header[50] = arrival.traffic_class;
    header[51] = arrival.hop_limit;
    header[52..56].copy_from_slice(&arrival.interface.to_be_bytes());
    header
}

/// A packet that was handed on.
pub(super) struct Forwarded {
    /// How it first arrived.
    pub(super) arrival: Arrival,
    /// Where the datagram begins.
    pub(super) offset: usize,
    /// Whether this slot has held it and lets it come now.
    pub(super) was_held: bool,
}

/// Opens a forwarded packet. Nothing when it did not come over loopback from a holder of the token.
pub(super) fn open(arrival: &Arrival, token: ForwardToken, datagram: &[u8]) -> Option<Forwarded> {
    let header = datagram.first_chunk::<HEADER_LEN>()?;
    let field = |start: usize| Gid(header[start..start + 16].try_into().expect("16 bytes")).to_ip();
    let given = u64::from_be_bytes(header[8..16].try_into().expect("8 bytes"));
    let to_us = arrival.flow.destination.is_loopback() || super::loopback::is_carrier(arrival);
    if !arrival.flow.source.is_loopback() || !to_us || given != token.0 {
        return None;
    }
    let first = Arrival {
        flow: Flow {
            source: field(16),
            source_port: u16::from_be_bytes([header[48], header[49]]),
            destination: field(32),
            destination_port: ROCE_PORT,
        },
        interface: u32::from_be_bytes(header[52..56].try_into().expect("4 bytes")),
        traffic_class: header[50],
        hop_limit: header[51],
    };
    // A forwarded packet is never forwarded again: what is inside must be a packet.
    (!is_forwarded(&datagram[HEADER_LEN..])).then_some(Forwarded {
        arrival: first,
        offset: HEADER_LEN,
        was_held: header[1] == HELD,
    })
}

const OPCODE: u8 = 0xFF;
const HELD: u8 = 1;
const HEADER_LEN: usize = 56;
