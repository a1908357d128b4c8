//! Two queue pairs, one virtual clock, one network.

use std::fmt::Write as _;

use oarlock_sim::{Clock, Ladder, Network, NetworkConfig};
use oarlock_transport::{
    AccessFlags, AttrMask, Completion, Counter, MAX_PACKET_LEN, QpAttr, QpEvent, QpState, QpType,
    RecvWr, SendData, SendOp, SendWr, Sge, Uc, UcConfig, WcStatus,
};
use oarlock_wire::{AddressVector, Gid, Mtu, Packet, Psn, Qpn, Time, earliest};

use crate::memory::VecMemory;

pub(crate) const A: usize = 0;
pub(crate) const B: usize = 1;
/// Payload of a full packet.
pub(crate) const MTU: usize = 256;

pub(crate) fn gid(last: u8) -> Gid {
    Gid::from_ip([10, 0, 0, last].into())
}

pub(crate) fn qpn(side: usize) -> Qpn {
    Qpn::truncate(0x11 + side as u32)
}

/// Bytes that are unlike those of another seed.
pub(crate) fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len)
        .map(|i| (seed.wrapping_mul(37) + i + i / 251) as u8)
        .collect()
}

/// The attributes of one side, for every transition. Both begin shortly before the PSNs wrap.
pub(crate) fn attr(side: usize) -> QpAttr {
    let (own, peer) = (side as u8 + 1, 2 - side as u8);
    let psn = |side: usize| Psn::truncate(0xFF_FFFC - side as u32);
    QpAttr {
        access: AccessFlags::REMOTE_WRITE,
        av: AddressVector::new(gid(own), gid(peer)),
        path_mtu: Mtu::MTU_256,
        dest_qpn: qpn(1 - side),
        rq_psn: psn(1 - side),
        sq_psn: psn(side),
        ..QpAttr::default()
    }
}

/// Walks a fresh queue pair through the states up to `state`.
pub(crate) fn to_state(uc: &mut Uc, attr: &QpAttr, state: QpState) {
    let path = [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts];
    for step in path.windows(2) {
        if (step[1] as u8) <= state as u8 {
            let row = QpType::Uc.transition(step[0], step[1]).expect("a step");
            let mask = row.required | AttrMask::STATE;
            let attr = QpAttr {
                mask,
                state: step[1],
                ..*attr
            };
            uc.modify(&attr).expect("the recipe is complete");
        }
    }
    if state == QpState::Error {
        uc.modify(&QpAttr::to_state(QpState::Error))
            .expect("any state leads to Error");
    }
}

pub(crate) struct Host {
    pub(crate) uc: Uc,
    pub(crate) memory: VecMemory,
    pub(crate) completions: Vec<Completion>,
    pub(crate) events: Vec<QpEvent>,
}

impl Host {
    pub(crate) fn new(side: usize, config: UcConfig, state: QpState) -> Self {
        let mut uc = Uc::new(UcConfig {
            qpn: qpn(side),
            ..config
        });
        to_state(&mut uc, &attr(side), state);
        Self {
            uc,
            memory: VecMemory::new(1 << 21),
            completions: Vec::new(),
            events: Vec::new(),
        }
    }

    pub(crate) fn send(&mut self, wr_id: u64, data: &[u8]) {
        self.op(wr_id, SendOp::Send, data);
    }

    /// Posts an operation with these bytes.
    pub(crate) fn op(&mut self, wr_id: u64, op: SendOp, data: &[u8]) {
        let sge = [self.memory.store(data)];
        let sges: &[Sge] = if data.is_empty() { &[] } else { &sge };
        self.post(SendWr {
            wr_id,
            op,
            data: SendData::Sges(sges),
            ..SendWr::default()
        });
    }

    pub(crate) fn post(&mut self, wr: SendWr<'_>) {
        self.uc.post_send(&wr).expect("a send may be posted");
    }

    pub(crate) fn recv(&mut self, wr_id: u64, len: usize) -> Sge {
        let sge = self.memory.alloc(len);
        let wr = RecvWr {
            wr_id,
            sges: &[sge],
        };
        self.uc.post_recv(&wr).expect("a receive may be posted");
        sge
    }

    pub(crate) fn modify(&mut self, state: QpState) {
        self.uc
            .modify(&QpAttr::to_state(state))
            .expect("the transition needs nothing");
    }

    pub(crate) fn count(&self, counter: Counter) -> u64 {
        self.uc.counters().get(counter)
    }

    /// The reasons for which packets were dropped.
    pub(crate) fn dropped(&self) -> Vec<(&'static str, u64)> {
        let all = self.uc.counters().iter();
        all.filter(|(name, value)| name.starts_with("dropped_") && *value > 0)
            .collect()
    }

    /// (wr_id, status) of everything completed.
    pub(crate) fn outcomes(&self) -> Vec<(u64, WcStatus)> {
        let all = self.completions.iter();
        all.map(|c| (c.wr_id, c.status)).collect()
    }

    /// Completions and events that wait.
    pub(crate) fn collect(&mut self) {
        while let Some(completion) = self.uc.poll_completion() {
            self.completions.push(completion);
        }
        while let Some(event) = self.uc.poll_event() {
            self.events.push(event);
        }
    }

    /// Every packet that may be sent now.
    pub(crate) fn packets(&mut self, now: Time) -> Vec<Vec<u8>> {
        let mut out = [0xA5; MAX_PACKET_LEN];
        let mut all = Vec::new();
        while let Some(sent) = self.uc.poll_transmit(now, &mut self.memory, &mut out) {
            all.push(out[..sent.len].to_vec());
        }
        self.collect();
        all
    }

    /// Takes a packet of the peer.
    pub(crate) fn take(&mut self, bytes: &[u8]) {
        let from = self.uc.query().av;
        self.uc
            .handle_datagram(Time::ZERO, &from, bytes, &mut self.memory);
        self.collect();
    }
}

/// Says whether a packet is lost: its number on the wire from 0.
type Loss = Box<dyn FnMut(usize) -> bool>;

pub(crate) struct Pair {
    pub(crate) hosts: [Host; 2],
    pub(crate) network: Network<Vec<u8>>,
    pub(crate) clock: Clock,
    pub(crate) ladder: Ladder,
    loss: Loss,
    packets: usize,
}

impl Pair {
    pub(crate) fn new() -> Self {
        Self::of(UcConfig::default())
    }

    pub(crate) fn of(config: UcConfig) -> Self {
        Self::over(config, Network::new(NetworkConfig::default(), 0))
    }

    pub(crate) fn over(config: UcConfig, network: Network<Vec<u8>>) -> Self {
        Self {
            hosts: [
                Host::new(A, config, QpState::Rts),
                Host::new(B, config, QpState::Rts),
            ],
            network,
            clock: Clock::new(),
            ladder: Ladder::new(["A", "B"]),
            loss: Box::new(|_| false),
            packets: 0,
        }
    }

    /// Packets with these numbers on the wire are lost.
    pub(crate) fn lose(mut self, numbers: impl Into<Vec<usize>>) -> Self {
        let numbers = numbers.into();
        self.loss = Box::new(move |number| numbers.contains(&number));
        self
    }

    fn drain(&mut self, side: usize) {
        let now = self.clock.now();
        let host = &mut self.hosts[side];
        let mut out = [0; MAX_PACKET_LEN];
        while let Some(transmit) = host.uc.poll_transmit(now, &mut host.memory, &mut out) {
            assert_eq!(transmit.av, attr(side).av);
            let bytes = &out[..transmit.len];
            let mut line = describe(&Packet::parse(bytes).expect("what we send can be parsed"));
            if (self.loss)(self.packets) {
                line.push_str("  (lost)");
            } else {
                self.network.send(now, side, 1 - side, bytes.to_vec());
            }
            self.packets += 1;
            self.ladder.record(now, side, 1 - side, line);
        }
        let (completions, events) = (host.completions.len(), host.events.len());
        host.collect();
        for completion in &host.completions[completions..] {
            self.ladder.note(now, side, describe_completion(completion));
        }
        for event in &host.events[events..] {
            self.ladder.note(now, side, format!("{event:?}"));
        }
    }

    /// One moment: everything that is due now, then on to the next. False when nothing will happen any more.
    pub(crate) fn step(&mut self) -> bool {
        self.drain(A);
        self.drain(B);
        let timeouts = earliest(
            self.hosts[A].uc.poll_timeout(),
            self.hosts[B].uc.poll_timeout(),
        );
        let Some(next) = earliest(self.network.next_delivery(), timeouts) else {
            assert!(self.hosts.iter().all(|host| !host.uc.has_output()));
            return false;
        };
        let now = self.clock.advance_to(next);
        while let Some(delivery) = self.network.deliver(now) {
            let host = &mut self.hosts[delivery.to];
            let from = AddressVector::new(gid(delivery.to as u8 + 1), gid(delivery.from as u8 + 1));
            host.uc
                .handle_datagram(now, &from, &delivery.datagram, &mut host.memory);
        }
        for host in &mut self.hosts {
            host.uc.handle_timeout(now);
        }
        true
    }

    /// Until both are idle.
    pub(crate) fn run(&mut self) {
        for _ in 0..100_000 {
            if !self.step() {
                return;
            }
        }
        panic!("the pair never comes to rest");
    }
}

fn describe(packet: &Packet<'_>) -> String {
    let bth = &packet.bth;
    let mut line = format!(
        "{}  psn={:#08x} len={}",
        bth.opcode,
        bth.psn.get(),
        packet.payload.len()
    );
    if let Some(reth) = packet.reth {
        let _ = write!(line, " of {}", reth.len);
    }
    if let Some(imm) = packet.immdt {
        let _ = write!(line, " imm={:#x}", imm.0);
    }
    if bth.solicited {
        line.push_str(" solicited");
    }
    line
}

fn describe_completion(c: &Completion) -> String {
    let queue = if c.is_send { "send" } else { "recv" };
    format!(
        "{queue} wr_id={} {} byte_len={}",
        c.wr_id, c.status, c.byte_len
    )
}
