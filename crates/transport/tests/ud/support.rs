//! Queue pairs and the packets between them.

use oarlock_transport::{
    AttrMask, Completion, Counter, MAX_PACKET_LEN, QpAttr, QpState, RecvWr, SendData, SendWr, Sge,
    Transmit, Ud, UdConfig, UdDestination, WcStatus,
};
use oarlock_wire::{AddressVector, Gid, Mtu, Psn, QKey, Qpn};

use crate::memory::VecMemory;

pub(crate) const INIT: AttrMask = AttrMask::STATE
    .union(AttrMask::PKEY_INDEX)
    .union(AttrMask::PORT)
    .union(AttrMask::QKEY);
pub(crate) const RTR: AttrMask = AttrMask::STATE;
pub(crate) const RTS: AttrMask = AttrMask::STATE.union(AttrMask::SQ_PSN);
pub(crate) const KEY: QKey = QKey(0x0111_1111);

pub(crate) fn qpn(value: u32) -> Qpn {
    Qpn::new(value).expect("24 bits")
}

pub(crate) fn gid(last: u8) -> Gid {
    Gid::from_ip([10, 0, 0, last].into())
}

pub(crate) fn group() -> Gid {
    Gid::from_ip([239, 1, 2, 3].into())
}

/// Where the host with this number receives.
pub(crate) fn to(from: u8, host: u8) -> UdDestination {
    UdDestination {
        av: AddressVector::new(gid(from), gid(host)),
        remote_qpn: qpn(host.into()),
        remote_qkey: KEY,
    }
}

/// Attributes for every transition.
pub(crate) fn attr() -> QpAttr {
    QpAttr {
        qkey: KEY,
        sq_psn: Psn::truncate(0xFF_FFFE),
        ..QpAttr::default()
    }
}

/// Walks a fresh queue pair through the states up to `state`.
pub(crate) fn to_state(ud: &mut Ud, attr: &QpAttr, state: QpState) {
    let path = [
        (QpState::Init, INIT),
        (QpState::Rtr, RTR),
        (QpState::Rts, RTS),
    ];
    for (next, mask) in path {
        if (next as u8) <= state as u8 {
            let attr = QpAttr {
                mask,
                state: next,
                ..*attr
            };
            ud.modify(&attr).expect("the recipe is complete");
        }
    }
    if state == QpState::Error {
        ud.modify(&QpAttr::to_state(QpState::Error))
            .expect("any state leads to Error");
    }
}

/// A packet on its way.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Sent {
    pub(crate) av: AddressVector,
    pub(crate) bytes: Vec<u8>,
}

/// A queue pair with its memory, numbered as its host.
pub(crate) struct Host {
    pub(crate) ud: Ud,
    pub(crate) memory: VecMemory,
}

impl Host {
    pub(crate) fn with(config: UdConfig, state: QpState) -> Self {
        let mut ud = Ud::new(config);
        to_state(&mut ud, &attr(), state);
        Self {
            ud,
            memory: VecMemory::new(1 << 20),
        }
    }

    pub(crate) fn in_state(number: u8, state: QpState) -> Self {
        let config = UdConfig {
            qpn: qpn(number.into()),
            mtu: Mtu::MTU_256,
            ..UdConfig::default()
        };
        Self::with(config, state)
    }

    pub(crate) fn new(number: u8) -> Self {
        Self::in_state(number, QpState::Rts)
    }

    /// Posts a message.
    pub(crate) fn send(&mut self, wr_id: u64, data: &[u8], to: UdDestination) {
        let sge = self.memory.store(data);
        self.post(SendWr {
            wr_id,
            data: SendData::Sges(&[sge]),
            ud: Some(to),
            ..SendWr::default()
        });
    }

    pub(crate) fn post(&mut self, wr: SendWr<'_>) {
        self.ud.post_send(&wr).expect("a send may be posted");
    }

    pub(crate) fn recv(&mut self, wr_id: u64, len: usize) -> Sge {
        let sge = self.memory.alloc(len);
        let wr = RecvWr {
            wr_id,
            sges: &[sge],
        };
        self.ud.post_recv(&wr).expect("a receive may be posted");
        sge
    }

    /// What it has to send.
    pub(crate) fn sent(&mut self) -> Vec<Sent> {
        let mut out = [0xA5; MAX_PACKET_LEN];
        let mut all = Vec::new();
        while let Some(Transmit { av, len }) = self.ud.poll_transmit(&mut self.memory, &mut out) {
            all.push(Sent {
                av,
                bytes: out[..len].to_vec(),
            });
        }
        all
    }

    /// Exactly one packet.
    pub(crate) fn one_packet(&mut self) -> Sent {
        let mut all = self.sent();
        assert_eq!(all.len(), 1);
        all.remove(0)
    }

    /// Takes a packet that was sent to it or to a group.
    pub(crate) fn take(&mut self, packet: &Sent) {
        let from = packet.av.reversed();
        self.ud
            .handle_datagram(&from, &packet.bytes, &mut self.memory);
    }

    pub(crate) fn completions(&mut self) -> Vec<Completion> {
        std::iter::from_fn(|| self.ud.poll_completion()).collect()
    }

    pub(crate) fn outcomes(&mut self) -> Vec<(u64, WcStatus)> {
        let all = self.completions().into_iter();
        all.map(|c| (c.wr_id, c.status)).collect()
    }

    pub(crate) fn count(&self, counter: Counter) -> u64 {
        self.ud.counters().get(counter)
    }

    /// The reasons for which packets were dropped.
    pub(crate) fn dropped(&self) -> Vec<(&'static str, u64)> {
        let all = self.ud.counters().iter();
        all.filter(|(name, value)| name.starts_with("dropped_") && *value > 0)
            .collect()
    }
}
