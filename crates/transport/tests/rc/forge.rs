//! Packets that no queue pair of ours would send.

use oarlock_transport::MAX_PACKET_LEN;
use oarlock_wire::{
    AddressVector, Aeth, AtomicAckEth, AtomicEth, Bth, Opcode, Packet, PacketHeader, RKey, Reth,
    Syndrome,
};

use crate::pair::{A, B, Host, Pair, gid, psn, qpn};

/// A header from `1 - to` to `to`, which asks for an acknowledgement.
pub(crate) fn header(to: usize, opcode: Opcode, at: u32) -> PacketHeader {
    PacketHeader::new(Bth {
        ack_request: true,
        ..Bth::new(opcode, qpn(0x11 + to as u32), psn(at))
    })
}

pub(crate) fn bytes(header: &PacketHeader, payload: &[u8]) -> Vec<u8> {
    let mut out = [0; MAX_PACKET_LEN];
    let len = header
        .emit_packet(payload, &mut out)
        .expect("headers that belong to the opcode");
    out[..len].to_vec()
}

pub(crate) fn reth(rkey: RKey, addr: u64, len: u32) -> Reth {
    Reth { addr, rkey, len }
}

pub(crate) fn atomic_eth(rkey: RKey, addr: u64) -> AtomicEth {
    AtomicEth {
        addr,
        rkey,
        swap_add: 1,
        compare: 0,
    }
}

pub(crate) fn ack(msn: u32) -> Aeth {
    Aeth {
        syndrome: Syndrome::ACK,
        msn,
    }
}

/// Gives a packet to one side, as if from the other.
pub(crate) fn deliver(pair: &mut Pair, to: usize, bytes: &[u8]) {
    let now = pair.clock.now();
    let Host { rc, memory, .. } = &mut pair.hosts[to];
    let from = AddressVector::new(gid(to as u8 + 1), gid(2 - to as u8));
    rc.handle_datagram(now, &from, bytes, memory);
}

/// Gives B a request.
pub(crate) fn request(pair: &mut Pair, header: &PacketHeader, payload: &[u8]) {
    deliver(pair, B, &bytes(header, payload));
}

/// Gives A a response.
pub(crate) fn response(pair: &mut Pair, header: &PacketHeader, payload: &[u8]) {
    deliver(pair, A, &bytes(header, payload));
}

/// Gives A a response that is an acknowledgement of some kind.
pub(crate) fn acknowledge(pair: &mut Pair, at: u32, syndrome: Syndrome) {
    let header = header(A, Opcode::RC_ACKNOWLEDGE, at).with_aeth(Aeth { syndrome, msn: 0 });
    response(pair, &header, &[]);
}

/// Gives A the packet of a READ response.
pub(crate) fn data(pair: &mut Pair, opcode: Opcode, at: u32, payload: &[u8]) {
    let header = header(A, opcode, at);
    let header = if opcode == Opcode::RC_RDMA_READ_RESPONSE_MIDDLE {
        header
    } else {
        header.with_aeth(ack(1))
    };
    response(pair, &header, payload);
}

/// Gives A the result of an atomic.
pub(crate) fn result(pair: &mut Pair, at: u32, original: u64) {
    let header = header(A, Opcode::RC_ATOMIC_ACKNOWLEDGE, at)
        .with_aeth(ack(1))
        .with_atomic_ack_eth(AtomicAckEth { original });
    response(pair, &header, &[]);
}

/// Everything that a side has to send now, which nobody gets.
pub(crate) fn sent(pair: &mut Pair, side: usize) -> Vec<Vec<u8>> {
    let now = pair.clock.now();
    let Host { rc, memory, .. } = &mut pair.hosts[side];
    let mut out = [0; MAX_PACKET_LEN];
    std::iter::from_fn(|| {
        rc.poll_transmit(now, memory, &mut out)
            .map(|sent| out[..sent.len].to_vec())
    })
    .collect()
}

/// Opcode and PSN of packets.
pub(crate) fn outline(packets: &[Vec<u8>]) -> Vec<(Opcode, u32)> {
    packets
        .iter()
        .map(|bytes| {
            let packet = Packet::parse(bytes).expect("a packet of ours");
            (packet.bth.opcode, packet.bth.psn.get())
        })
        .collect()
}
