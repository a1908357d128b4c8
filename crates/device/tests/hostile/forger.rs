//! The sender of packets that no device sends, and the device that it attacks.

use oarlock_device::{DeviceInfo, Qp, QpInit};
use oarlock_port::{Batch, MemHost, MemWire, Port};
use oarlock_transport::QpType;
use oarlock_wire::{AddressVector, Gid, Psn, Qpn, RKey};

use crate::support::ends::{Link, steps};
use crate::support::{Side, Source, device, gid, host};

/// Two hosts: that of the device under attack, and that of the forger and an honest device.
pub(crate) struct Scene {
    pub(crate) victim: Side,
    pub(crate) honest: Side,
    pub(crate) forger: Forger,
}

/// A slot whose packets are made by hand.
pub(crate) struct Forger {
    port: Port,
    local: Gid,
    batch: Batch,
}

impl Scene {
    pub(crate) fn new() -> Self {
        let wire = MemWire::new();
        let side = |host: &MemHost, last: u8, slot: u8| {
            let port = host.open(slot).expect("slot");
            let info = DeviceInfo {
                netdev_mtu: 9000,
                ..device("mem0", gid(last))
            };
            Side::with_device(Source::new(Port::Mem(port)), info)
        };
        let bad_host = host(&wire, 2);
        Self {
            victim: side(&host(&wire, 1), 1, 3),
            honest: side(&bad_host, 2, 7),
            forger: Forger::new(&bad_host, 8, gid(2)),
        }
    }

    /// A queue pair of the device under attack that takes the forger for its peer.
    pub(crate) fn prey(&self, init: QpInit, link: &Link) -> Qp {
        let qp = self.victim.qp(init);
        let (here, there) = (self.victim.gid, self.forger.local);
        for attr in steps(qp.qp_type(), here, there, self.forger.qpn(), link) {
            qp.modify(&attr).expect("modify");
        }
        qp
    }

    /// A connection that has nothing to do with the forger: the end of the device under attack first.
    pub(crate) fn bystanders(&self) -> (Qp, Qp) {
        crate::support::connected(&self.victim, &self.honest)
    }
}

impl Forger {
    fn new(host: &MemHost, slot: u8, local: Gid) -> Self {
        Self {
            port: Port::Mem(host.open(slot).expect("slot")),
            local,
            batch: Batch::new(64),
        }
    }

    /// The number that it claims to have.
    pub(crate) fn qpn(&self) -> Qpn {
        Qpn::truncate(u32::from(self.port.slot()) << 16 | 1)
    }

    pub(crate) fn send(&self, to: &Side, bytes: &[u8]) {
        let av = AddressVector::new(self.local, to.gid);
        self.port.send(&av, bytes).expect("send");
    }

    /// Takes a batch of what has come; gives the opcode and PSN of each.
    pub(crate) fn heard(&mut self) -> Vec<(u8, u32)> {
        self.port.recv(&mut self.batch).expect("recv");
        let heard = self.batch.iter().map(|(_, bytes)| {
            let psn = u32::from_be_bytes([0, bytes[9], bytes[10], bytes[11]]);
            (bytes[0], psn)
        });
        heard.collect()
    }
}

/// A base transport header.
pub(crate) fn bth(opcode: u8, qp: Qpn, psn: u32, ack: bool) -> Vec<u8> {
    let mut bytes = vec![opcode, 0, 0xff, 0xff];
    bytes.extend(qp.get().to_be_bytes());
    let psn = Psn::truncate(psn).get() | u32::from(ack) << 31;
    bytes.extend(psn.to_be_bytes());
    bytes
}

/// A READ request.
pub(crate) fn read_request(qp: Qpn, psn: u32, (addr, rkey): (u64, RKey), len: u32) -> Vec<u8> {
    let mut bytes = bth(RC_READ_REQUEST, qp, psn, false);
    bytes.extend(addr.to_be_bytes());
    bytes.extend(rkey.0.to_be_bytes());
    bytes.extend(len.to_be_bytes());
    bytes
}

/// An acknowledgement with this syndrome and message number.
pub(crate) fn acknowledge(qp: Qpn, psn: u32, syndrome: u8, msn: u32) -> Vec<u8> {
    let mut bytes = bth(RC_ACKNOWLEDGE, qp, psn, false);
    bytes.extend((u32::from(syndrome) << 24 | msn & 0xff_ffff).to_be_bytes());
    bytes
}

/// What the attacked queue pairs are made with.
pub(crate) fn of_type(qp_type: QpType) -> QpInit {
    QpInit {
        qp_type,
        ..QpInit::default()
    }
}

/// IBA Vol. 1 ch. 9, operation codes.
pub(crate) const RC_READ_REQUEST: u8 = 0x0c;
pub(crate) const RC_READ_RESPONSES: std::ops::RangeInclusive<u8> = 0x0d..=0x10;
pub(crate) const RC_ACKNOWLEDGE: u8 = 0x11;
