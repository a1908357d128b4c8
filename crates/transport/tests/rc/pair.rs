//! Two queue pairs, one virtual clock, one network.

use std::fmt::Write as _;

use oarlock_sim::{Clock, Ladder, Network, NetworkConfig};
use oarlock_transport::{
    AccessFlags, AttrMask, Completion, Counter, MAX_PACKET_LEN, QpAttr, QpEvent, QpState, Rc,
    RcConfig, RcKind, RecvWr, SendData, SendOp, SendWr, Sge, WcStatus,
};
use oarlock_wire::{
    AddressVector, Gid, IbTimeout, Mtu, Packet, Psn, Qpn, RetryCount, Srqn, Time, earliest,
};

use crate::memory::VecMemory;

pub(crate) const A: usize = 0;
pub(crate) const B: usize = 1;

pub(crate) const INIT: AttrMask = AttrMask::STATE
    .union(AttrMask::ACCESS_FLAGS)
    .union(AttrMask::PKEY_INDEX)
    .union(AttrMask::PORT);
pub(crate) const RTR: AttrMask = AttrMask::STATE
    .union(AttrMask::AV)
    .union(AttrMask::PATH_MTU)
    .union(AttrMask::DEST_QPN)
    .union(AttrMask::RQ_PSN)
    .union(AttrMask::MAX_DEST_RD_ATOMIC)
    .union(AttrMask::MIN_RNR_TIMER);
pub(crate) const RTS: AttrMask = AttrMask::STATE
    .union(AttrMask::SQ_PSN)
    .union(AttrMask::TIMEOUT)
    .union(AttrMask::RETRY_CNT)
    .union(AttrMask::RNR_RETRY)
    .union(AttrMask::MAX_QP_RD_ATOMIC);

pub(crate) fn psn(value: u32) -> Psn {
    Psn::new(value).expect("24 bits")
}

pub(crate) fn qpn(value: u32) -> Qpn {
    Qpn::new(value).expect("24 bits")
}

pub(crate) fn retry_count(value: u8) -> RetryCount {
    RetryCount::new(value).expect("3 bits")
}

pub(crate) fn gid(last: u8) -> Gid {
    Gid::from_ip([10, 0, 0, last].into())
}

/// What both sides agree on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    pub(crate) mtu: Mtu,
    /// First PSN of A's requests.
    pub(crate) psn_a: u32,
    /// First PSN of B's requests.
    pub(crate) psn_b: u32,
    pub(crate) timeout: u8,
    pub(crate) retry: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) min_rnr_timer: u8,
    /// READs and atomics outstanding, at both ends.
    pub(crate) rd_atomic: u8,
    pub(crate) access: AccessFlags,
    pub(crate) config: RcConfig,
    /// B is made with this instead.
    pub(crate) config_b: Option<RcConfig>,
}

/// What a queue pair lets its peer do, unless a test says otherwise.
pub(crate) const ALL_RIGHTS: AccessFlags = AccessFlags::REMOTE_READ
    .union(AccessFlags::REMOTE_WRITE)
    .union(AccessFlags::REMOTE_ATOMIC);

/// The queue of XRC tests.
pub(crate) const SRQN: Srqn = Srqn::truncate(0x77);

impl Default for Setup {
    fn default() -> Self {
        Self {
            mtu: Mtu::MTU_256,
            psn_a: 0x100,
            psn_b: 0x800,
            timeout: 14,
            retry: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
            rd_atomic: 4,
            access: ALL_RIGHTS,
            config: RcConfig::default(),
            config_b: None,
        }
    }
}

impl Setup {
    /// B receives into a shared queue.
    pub(crate) fn shared(self) -> Self {
        Self {
            config_b: Some(RcConfig {
                shared_receives: true,
                ..self.config
            }),
            ..self
        }
    }

    /// A is an XRC initiator, B an XRC target.
    pub(crate) fn xrc(self) -> Self {
        let of = |kind| RcConfig {
            kind,
            ..self.config
        };
        Self {
            config: of(RcKind::XrcInitiator),
            config_b: Some(of(RcKind::XrcTarget)),
            ..self
        }
    }

    /// The attributes of one side, for every transition.
    pub(crate) fn attr(&self, side: usize) -> QpAttr {
        let (own, peer) = (side as u8 + 1, 2 - side as u8);
        let (sends, receives) = if side == A {
            (self.psn_a, self.psn_b)
        } else {
            (self.psn_b, self.psn_a)
        };
        QpAttr {
            av: AddressVector::new(gid(own), gid(peer)),
            path_mtu: self.mtu,
            dest_qpn: qpn(0x10 + u32::from(peer)),
            rq_psn: psn(receives),
            sq_psn: psn(sends),
            timeout: IbTimeout::new(self.timeout).expect("5 bits"),
            retry_count: retry_count(self.retry),
            rnr_retry: retry_count(self.rnr_retry),
            min_rnr_timer: self.min_rnr_timer,
            max_rd_atomic: self.rd_atomic,
            max_dest_rd_atomic: self.rd_atomic,
            access: self.access,
            ..QpAttr::default()
        }
    }

    pub(crate) fn rc(&self, side: usize) -> Rc {
        let config = match self.config_b {
            Some(config) if side == B => config,
            _ => self.config,
        };
        Rc::new(RcConfig {
            qpn: qpn(0x11 + side as u32),
            ..config
        })
    }

    /// A queue pair in `state`.
    pub(crate) fn rc_in(&self, side: usize, state: QpState) -> Rc {
        let mut rc = self.rc(side);
        to_state(&mut rc, &self.attr(side), state);
        rc
    }
}

/// Walks a fresh queue pair through the states up to `state`.
pub(crate) fn to_state(rc: &mut Rc, attr: &QpAttr, state: QpState) {
    let path = [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts];
    for step in path.windows(2) {
        if (step[1] as u8) <= state as u8 {
            let qp_type = rc.config().kind.qp_type();
            let transition = qp_type.transition(step[0], step[1]);
            let mask = transition.expect("a step of the recipe").required | AttrMask::STATE;
            rc.modify(&QpAttr {
                mask,
                state: step[1],
                ..*attr
            })
            .expect("the recipe is complete");
        }
    }
    if state == QpState::Error {
        rc.modify(&QpAttr::to_state(QpState::Error))
            .expect("any state leads to Error");
    }
}

pub(crate) struct Host {
    pub(crate) rc: Rc,
    pub(crate) memory: VecMemory,
    pub(crate) completions: Vec<Completion>,
    pub(crate) events: Vec<QpEvent>,
}

impl Host {
    pub(crate) fn send(&mut self, wr_id: u64, data: &[u8]) {
        let sge = self.memory.store(data);
        self.send_sges(wr_id, SendOp::Send, &[sge]);
    }

    pub(crate) fn send_sges(&mut self, wr_id: u64, op: SendOp, sges: &[Sge]) {
        let is_local = matches!(op, SendOp::LocalInvalidate(_) | SendOp::BindWindow(_));
        let is_xrc = self.rc.config().kind == RcKind::XrcInitiator;
        let wr = SendWr {
            wr_id,
            op,
            data: SendData::Sges(sges),
            xrc_srqn: (is_xrc && !is_local).then_some(SRQN),
            ..SendWr::default()
        };
        self.rc.post_send(&wr).expect("a send may be posted");
    }

    /// Posts an operation on fresh memory that holds `data`.
    pub(crate) fn post(&mut self, wr_id: u64, op: SendOp, data: &[u8]) -> Sge {
        let sge = self.memory.store(data);
        self.send_sges(wr_id, op, &[sge]);
        sge
    }

    /// Posts a local operation.
    pub(crate) fn post_local(&mut self, wr_id: u64, op: SendOp) {
        self.send_sges(wr_id, op, &[]);
    }

    pub(crate) fn modify(&mut self, state: QpState) {
        self.rc
            .modify(&QpAttr::to_state(state))
            .expect("the transition exists");
    }

    pub(crate) fn recv(&mut self, wr_id: u64, len: usize) -> Sge {
        let sge = self.memory.alloc(len);
        self.rc
            .post_recv(&RecvWr {
                wr_id,
                sges: &[sge],
            })
            .expect("a receive may be posted");
        sge
    }

    pub(crate) fn count(&self, counter: Counter) -> u64 {
        self.rc.counters().get(counter)
    }

    /// (wr_id, status) of everything completed.
    pub(crate) fn outcomes(&self) -> Vec<(u64, WcStatus)> {
        self.completions
            .iter()
            .map(|c| (c.wr_id, c.status))
            .collect()
    }
}

/// Says whether a packet is lost: its number on the wire from 0, who sent it, and itself.
type Loss = Box<dyn FnMut(usize, usize, &Packet<'_>) -> bool>;

pub(crate) struct Pair {
    pub(crate) hosts: [Host; 2],
    pub(crate) network: Network<Vec<u8>>,
    pub(crate) clock: Clock,
    pub(crate) ladder: Ladder,
    pub(crate) loss: Loss,
    pub(crate) packets: usize,
}

impl Pair {
    pub(crate) fn new(setup: &Setup) -> Self {
        Self::over(setup, Network::new(NetworkConfig::default(), 0))
    }

    pub(crate) fn over(setup: &Setup, network: Network<Vec<u8>>) -> Self {
        let host = |side| Host {
            rc: setup.rc_in(side, QpState::Rts),
            memory: VecMemory::new(1 << 20),
            completions: Vec::new(),
            events: Vec::new(),
        };
        Self {
            hosts: [host(A), host(B)],
            network,
            clock: Clock::new(),
            ladder: Ladder::new(["A", "B"]),
            loss: Box::new(|_, _, _| false),
            packets: 0,
        }
    }

    /// Packets with these numbers on the wire are lost.
    pub(crate) fn lose(mut self, numbers: &'static [usize]) -> Self {
        self.loss = Box::new(move |number, _, _| numbers.contains(&number));
        self
    }

    /// Everything that is to be said now, without time passing.
    pub(crate) fn drain_both(&mut self) {
        self.drain(A);
        self.drain(B);
    }

    fn drain(&mut self, side: usize) {
        let now = self.clock.now();
        let host = &mut self.hosts[side];
        let mut out = [0; MAX_PACKET_LEN];
        while let Some(transmit) = host.rc.poll_transmit(now, &mut host.memory, &mut out) {
            assert_eq!(transmit.av.remote, gid(2 - side as u8));
            let bytes = &out[..transmit.len];
            let packet = Packet::parse(bytes).expect("what we send can be parsed");
            let is_lost = (self.loss)(self.packets, side, &packet);
            self.packets += 1;
            let mut line = describe(&packet);
            if is_lost {
                line.push_str("  (lost)");
            } else {
                self.network.send(now, side, 1 - side, bytes.to_vec());
            }
            self.ladder.record(now, side, 1 - side, line);
        }
        while let Some(completion) = host.rc.poll_completion() {
            self.ladder
                .note(now, side, describe_completion(&completion));
            host.completions.push(completion);
        }
        while let Some(event) = host.rc.poll_event() {
            self.ladder.note(now, side, format!("{event:?}"));
            host.events.push(event);
        }
    }

    /// One moment: everything that is due now, then on to the next. False when nothing will happen any more.
    pub(crate) fn step(&mut self) -> bool {
        self.drain_both();
        let Some(next) = self.next() else {
            return false;
        };
        let now = self.clock.advance_to(next);
        while let Some(delivery) = self.network.deliver(now) {
            let host = &mut self.hosts[delivery.to];
            let from = AddressVector::new(gid(delivery.to as u8 + 1), gid(delivery.from as u8 + 1));
            host.rc
                .handle_datagram(now, &from, &delivery.datagram, &mut host.memory);
        }
        for host in &mut self.hosts {
            host.rc.handle_timeout(now);
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

    /// Lets everything happen that happens until `at`.
    pub(crate) fn run_until(&mut self, at: Time) {
        for _ in 0..100_000 {
            self.drain_both();
            if self.next().is_none_or(|next| next > at) {
                self.clock.advance_to(at);
                return;
            }
            self.step();
        }
        panic!("the pair never comes to rest");
    }

    fn next(&self) -> Option<Time> {
        let timeouts = earliest(
            self.hosts[A].rc.poll_timeout(),
            self.hosts[B].rc.poll_timeout(),
        );
        earliest(self.network.next_delivery(), timeouts)
    }
}

pub(crate) fn describe(packet: &Packet<'_>) -> String {
    let bth = &packet.bth;
    let mut line = String::new();
    match packet.aeth {
        Some(aeth) if bth.opcode.name() == Some("ACKNOWLEDGE") => {
            let _ = write!(
                line,
                "{}  psn={:#08x} msn={}",
                aeth.syndrome,
                bth.psn.get(),
                aeth.msn
            );
            return line;
        }
        _ => {}
    }
    let name = bth.opcode.name().unwrap_or("?");
    let _ = write!(
        line,
        "{name}  psn={:#08x} len={}",
        bth.psn.get(),
        packet.payload.len()
    );
    if let Some(xrceth) = packet.xrceth {
        let _ = write!(line, " srqn={:#x}", xrceth.srqn.get());
    }
    if let Some(reth) = packet.reth {
        let _ = write!(line, " dma_len={}", reth.len);
    }
    if let Some(aeth) = packet.aeth {
        let _ = write!(line, " msn={}", aeth.msn);
    }
    if let Some(eth) = packet.atomic_ack_eth {
        let _ = write!(line, " original={}", eth.original);
    }
    if let Some(imm) = packet.immdt {
        let _ = write!(line, " imm={:#x}", imm.0);
    }
    if let Some(ieth) = packet.ieth {
        let _ = write!(line, " invalidate={}", ieth.0);
    }
    if bth.ack_request {
        line.push_str(" ack_request");
    }
    if bth.solicited {
        line.push_str(" solicited");
    }
    line
}

fn describe_completion(c: &Completion) -> String {
    let queue = if c.is_send { "send" } else { "recv" };
    let mut line = format!(
        "{queue} wr_id={} {} byte_len={}",
        c.wr_id, c.status, c.byte_len
    );
    if let Some(imm) = c.imm {
        let _ = write!(line, " imm={imm:#x}");
    }
    if let Some(srqn) = c.srqn {
        let _ = write!(line, " srqn={:#x}", srqn.get());
    }
    line
}
