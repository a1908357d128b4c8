//! A second side that is no device: it sends packets that no queue pair of ours would.

use oarlock_device::QpInit;
use oarlock_port::{Batch, Port};
use oarlock_transport::{MAX_PACKET_LEN, QpType};
use oarlock_wire::{
    AddressVector, Aeth, Bth, Opcode, PacketHeader, Psn, Qpn, RKey, Reth, Syndrome,
};

use crate::conn::Conn;
use crate::end::End;
use crate::support::ends::Link;
use crate::support::eventually;

/// The port of a side without a device.
pub(crate) struct Forger {
    port: Port,
    av: AddressVector,
    /// The queue pair that packets go to.
    peer: Qpn,
}

impl End {
    /// First side: a queue pair whose peer is a [`Forger`].
    pub(crate) fn open_to_forger(&mut self, service: QpType, init: QpInit, link: &Link) -> Conn {
        let conn = self.made(service, init);
        let [peer] = self.swap([conn.qp.qpn().get().into()]);
        let peer = Qpn::truncate(peer as u32);
        for attr in self.way(conn.qp.qp_type(), peer, link) {
            conn.qp.modify(&attr).expect("modify");
        }
        self.meet();
        conn
    }

    /// Second side: what sends such packets.
    pub(crate) fn forger(&mut self) -> Forger {
        Forger {
            port: self.take_port(),
            av: AddressVector::new(self.here, self.there),
            peer: Qpn::QP0,
        }
    }
}

impl Forger {
    /// The counterpart of [`End::open_to_forger`].
    pub(crate) fn open(&mut self, end: &mut End) {
        let own = u32::from(self.port.slot()) << 16 | 0x1234;
        let [peer] = end.swap([own.into()]);
        self.peer = Qpn::truncate(peer as u32);
        end.meet();
    }

    /// A header to the first side's queue pair, `ahead` packets behind its first number.
    pub(crate) fn header(&self, opcode: Opcode, ahead: u32) -> PacketHeader {
        let first = Psn::truncate(Link::default().first_psn.wrapping_add(ahead));
        PacketHeader::new(Bth {
            ack_request: true,
            ..Bth::new(opcode, self.peer, first)
        })
    }

    pub(crate) fn send(&self, header: &PacketHeader, payload: &[u8]) {
        let mut bytes = [0; MAX_PACKET_LEN];
        let len = header
            .emit_packet(payload, &mut bytes)
            .expect("headers that belong to the opcode");
        self.send_bytes(&bytes[..len]);
    }

    /// The next packet for us.
    pub(crate) fn packet(&self) -> Vec<u8> {
        let mut batch = Batch::new(1);
        eventually("a packet", || {
            self.port.recv(&mut batch).expect("receive") > 0
        });
        let packet = batch.iter().next().map(|(_, bytes)| bytes.to_vec());
        packet.expect("one was received")
    }

    pub(crate) fn send_bytes(&self, bytes: &[u8]) {
        self.port.send(&self.av, bytes).expect("send");
    }

    /// Answers with this syndrome.
    pub(crate) fn answer(&self, ahead: u32, syndrome: Syndrome) {
        let aeth = Aeth { syndrome, msn: 0 };
        self.send(
            &self.header(Opcode::RC_ACKNOWLEDGE, ahead).with_aeth(aeth),
            &[],
        );
    }
}

pub(crate) const ACK: Aeth = Aeth {
    syndrome: Syndrome::ACK,
    msn: 1,
};

/// Nobody's memory.
pub(crate) fn nowhere(len: u32) -> Reth {
    Reth {
        addr: 0x1000,
        rkey: RKey(0xbad),
        len,
    }
}
