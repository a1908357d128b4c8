//! Nothing that arrives makes a queue pair panic, complete what was not posted, or speak without end.

use oarlock_sim::{Rng, for_each_seed};
use oarlock_transport::{
    BindWindow, Counter, Counters, MAX_PACKET_LEN, QpAttr, QpState, Rc, RcConfig, RcKind, RecvWr,
    RemoteAddress, SendData, SendOp, SendWr, Sge,
};
use oarlock_wire::base::{Operation, TransportClass};
use oarlock_wire::{
    AddressVector, Aeth, AtomicAckEth, AtomicEth, Bth, Ieth, ImmDt, Mtu, Opcode, PKey,
    PacketHeader, Psn, Qpn, RKey, Reth, Syndrome, Time, XrcEth,
};

use crate::memory::{KEY, VecMemory};
use crate::pair::{A, SRQN, Setup, gid, qpn, to_state};

const LENGTHS: [u32; 10] = [0, 1, 8, 64, 255, 256, 257, 512, 700, 1 << 20];

/// Memory of this side that a packet may name, rightly or not.
fn remote(rng: &mut Rng, offered: RemoteAddress) -> RemoteAddress {
    RemoteAddress {
        addr: offered.addr.wrapping_add(8 * rng.below(20)),
        rkey: if rng.chance(0.95) {
            offered.rkey
        } else {
            RKey(rng.next_u64() as u32)
        },
    }
}

/// The headers that an opcode asks for, with values that fit more often than not.
fn headers(rng: &mut Rng, bth: Bth, offered: RemoteAddress) -> PacketHeader {
    let RemoteAddress { addr, rkey } = remote(rng, offered);
    let opcode = bth.opcode;
    let operation = opcode.operation();
    let syndromes = [
        0x1F, 0x1F, 0x1F, 0x00, 0x01, 0x20, 0x2C, 0x60, 0x60, 0x61, 0x63, 0x45,
    ];
    let asks = |of: &[Operation]| of.contains(&operation);
    let middle = opcode.position() == oarlock_wire::base::Position::Middle;
    let mut header = PacketHeader::new(bth);
    header.xrceth = (opcode.transport() == TransportClass::Xrc && !opcode.is_response())
        .then_some(XrcEth { srqn: SRQN });
    if asks(&[Operation::RdmaReadRequest])
        || (asks(&[Operation::RdmaWrite]) && opcode.position().is_start())
    {
        let len = LENGTHS[rng.index(LENGTHS.len())];
        header.reth = Some(Reth { addr, rkey, len });
    }
    if asks(&[Operation::CompareSwap, Operation::FetchAdd]) {
        header.atomic_eth = Some(AtomicEth {
            addr,
            rkey,
            swap_add: rng.next_u64(),
            compare: 0,
        });
    }
    if asks(&[Operation::Acknowledge, Operation::AtomicAcknowledge])
        || (asks(&[Operation::RdmaReadResponse]) && !middle)
    {
        header.aeth = Some(Aeth {
            syndrome: Syndrome::from_bits(syndromes[rng.index(syndromes.len())]),
            msn: rng.below(4) as u32,
        });
    }
    header.atomic_ack_eth =
        asks(&[Operation::AtomicAcknowledge]).then_some(AtomicAckEth { original: 1 });
    header.immdt = opcode.has_immediate().then_some(ImmDt(7));
    header.ieth = matches!(opcode.0 & 0x1F, 0x16 | 0x17).then_some(Ieth(rkey));
    header
}

/// A packet that passes the first checks more often than not: right addresses, a PSN near one that matters, any opcode.
fn plausible(rng: &mut Rng, rc: &Rc, offered: RemoteAddress) -> Vec<u8> {
    let query = rc.query();
    let near = [query.rq_psn, query.sq_psn.sub(3)];
    let class = match rc.config().kind {
        RcKind::Rc => TransportClass::Rc,
        _ => TransportClass::Xrc,
    };
    let opcode = if rng.chance(0.97) {
        Opcode(rng.below(0x18) as u8).of(class)
    } else {
        Opcode(rng.below(256) as u8)
    };
    let base = near[rng.index(2)];
    let psn: Psn = if rng.chance(0.8) {
        base.add(rng.below(3) as u32)
    } else {
        base.sub(rng.below(5) as u32)
    };
    let dest_qpn = if rng.chance(0.99) {
        qpn(0x11)
    } else {
        Qpn::truncate(rng.next_u64() as u32)
    };
    let bth = Bth {
        solicited: rng.chance(0.5),
        ack_request: rng.chance(0.5),
        pkey: if rng.chance(0.99) {
            PKey::DEFAULT
        } else {
            PKey(rng.next_u64() as u16)
        },
        ..Bth::new(opcode, dest_qpn, psn)
    };
    let header = headers(rng, bth, offered);
    let takes_payload = matches!(
        opcode.operation(),
        Operation::Send | Operation::RdmaWrite | Operation::RdmaReadResponse | Operation::Unknown
    );
    let mut body = if takes_payload || rng.chance(0.05) {
        vec![0; [0, 1, 4, 8, 64, 188, 256, 256, 257, 300][rng.index(10)]]
    } else {
        Vec::new()
    };
    rng.fill(&mut body);
    let mut out = [0; MAX_PACKET_LEN];
    match header.emit_packet(&body, &mut out) {
        Ok(len) => {
            let mut bytes = out[..len].to_vec();
            if rng.chance(0.03) {
                bytes[1] ^= (1 + rng.below(3) as u8) << 4;
            }
            bytes
        }
        // What wire does not write: reserved opcodes, with anything behind the BTH.
        Err(_) => {
            let mut bytes = vec![0; Bth::LEN];
            bth.emit(bytes.first_chunk_mut().expect("a BTH"));
            bytes.extend(body);
            bytes
        }
    }
}

fn random_op(rng: &mut Rng, remote: RemoteAddress) -> SendOp {
    match rng.below(11) {
        0 => SendOp::SendWithImm(1),
        1 => SendOp::SendWithInvalidate(remote.rkey),
        2 => SendOp::Write(remote),
        3 => SendOp::WriteWithImm(remote, 2),
        4 | 5 => SendOp::Read(remote),
        6 => SendOp::CompareSwap {
            remote,
            compare: 0,
            swap: 1,
        },
        7 => SendOp::FetchAdd { remote, add: 1 },
        8 if rng.chance(0.2) => SendOp::LocalInvalidate(RKey(1)),
        9 => SendOp::BindWindow(BindWindow {
            window: RKey(0x7700),
            rkey: RKey(0x7701),
            region: KEY,
            addr: remote.addr,
            len: 8,
            access: Default::default(),
        }),
        _ => SendOp::Send,
    }
}

/// One queue pair, and what was posted to and completed by it: sends, receives.
struct Storm {
    rc: Rc,
    setup: Setup,
    memory: VecMemory,
    sge: Sge,
    word: Sge,
    offered: RemoteAddress,
    posted: [u64; 2],
    completed: [u64; 2],
    now: Time,
}

impl Storm {
    fn new(rng: &mut Rng) -> Self {
        let kinds = [
            RcKind::Rc,
            RcKind::Rc,
            RcKind::XrcInitiator,
            RcKind::XrcTarget,
        ];
        let config = RcConfig {
            kind: kinds[rng.index(4)],
            max_send_wr: 8,
            max_recv_wr: 8,
            window: 1 + rng.below(8) as u32,
            read_window: 1 + rng.below(8) as u32,
            shared_receives: rng.chance(0.3),
            flow_control: rng.chance(0.5),
            ..RcConfig::default()
        };
        let setup = Setup {
            mtu: Mtu::MTU_256,
            psn_a: 0xFF_FFFA,
            psn_b: 0xFF_FFFE,
            rd_atomic: 1 + rng.below(3) as u8,
            config,
            ..Setup::default()
        };
        let mut memory = VecMemory::new(8192);
        let target = memory.alloc(1024);
        let sge = memory.alloc(700);
        let word = memory.alloc(8);
        let offered = memory.offer(target);
        if rng.chance(0.9) {
            memory.share(None);
            memory.share(Some(SRQN));
        }
        Self {
            rc: setup.rc(A),
            setup,
            memory,
            sge,
            word,
            offered,
            posted: [0; 2],
            completed: [0; 2],
            now: Time::ZERO,
        }
    }

    fn shared_queue(&self) -> Option<oarlock_wire::Srqn> {
        (self.rc.config().kind != RcKind::Rc).then_some(SRQN)
    }

    fn post_send(&mut self, rng: &mut Rng) {
        let op = random_op(rng, self.offered);
        let (sges, word) = ([self.sge], [self.word]);
        let is_local = matches!(op, SendOp::LocalInvalidate(_) | SendOp::BindWindow(_));
        let data = match op {
            _ if is_local => SendData::Sges(&[]),
            SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } => SendData::Sges(&word),
            SendOp::Read(_) => SendData::Sges(&sges),
            _ if rng.chance(0.5) => SendData::Inline(b"inline"),
            _ => SendData::Sges(&sges),
        };
        let is_xrc = self.rc.config().kind == RcKind::XrcInitiator;
        let wr = SendWr {
            op,
            data,
            fence: rng.chance(0.2),
            xrc_srqn: (is_xrc && !is_local).then_some(SRQN),
            ..SendWr::default()
        };
        self.posted[0] += u64::from(self.rc.post_send(&wr).is_ok());
    }

    fn post_recv(&mut self) {
        let wr = RecvWr {
            wr_id: 0,
            sges: &[self.sge],
        };
        if self.rc.post_recv(&wr).is_ok() {
            self.posted[1] += 1;
        } else if self.rc.config().shared_receives {
            let queue = self.shared_queue();
            let before = self.memory.shared(queue);
            self.memory.post_shared_again(queue, self.sge);
            self.posted[1] += (self.memory.shared(queue) - before) as u64;
        }
    }

    fn change_state(&mut self, rng: &mut Rng) {
        let to = [QpState::Init, QpState::Rtr, QpState::Rts, QpState::Rts][rng.index(4)];
        match self.rc.state() {
            QpState::Reset => to_state(&mut self.rc, &self.setup.attr(A), to),
            QpState::Rts => {
                let _ = self.rc.modify(&QpAttr::to_state(QpState::Sqd));
            }
            QpState::Sqd => {
                let _ = self.rc.modify(&QpAttr::to_state(QpState::Rts));
            }
            QpState::Error => self.reset(),
            _ if rng.chance(0.02) => self.reset(),
            _ => {}
        }
    }

    fn reset(&mut self) {
        self.rc.modify(&QpAttr::to_state(QpState::Reset)).unwrap();
        let waiting = self.memory.shared(self.shared_queue()) as u64;
        self.posted = [
            0,
            if self.rc.config().shared_receives {
                waiting
            } else {
                0
            },
        ];
        self.completed = [0; 2];
    }

    fn drain(&mut self) {
        let mut out = [0; MAX_PACKET_LEN];
        let mut packets = 0;
        let memory = &mut self.memory;
        while self.rc.poll_transmit(self.now, memory, &mut out).is_some() {
            packets += 1;
            assert!(packets <= 100, "speaks without end");
        }
        while let Some(completion) = self.rc.poll_completion() {
            self.completed[usize::from(!completion.is_send)] += 1;
        }
        while self.rc.poll_event().is_some() {}
    }

    fn step(&mut self, rng: &mut Rng) {
        let from = AddressVector::new(gid(1), gid(2));
        match rng.below(20) {
            0 => self.change_state(rng),
            1..=3 => self.post_send(rng),
            4..=6 => self.post_recv(),
            7 => {
                self.now = self.rc.poll_timeout().unwrap_or(self.now).max(self.now);
                self.rc.handle_timeout(self.now);
            }
            8 => {
                let mut bytes = vec![0; rng.index(400)];
                rng.fill(&mut bytes);
                self.rc
                    .handle_datagram(self.now, &from, &bytes, &mut self.memory);
            }
            9 if rng.chance(0.1) => self.rc.refuse_request(),
            _ => {
                let bytes = plausible(rng, &self.rc, self.offered);
                self.rc
                    .handle_datagram(self.now, &from, &bytes, &mut self.memory);
            }
        }
        if rng.chance(0.7) {
            self.drain();
        }
        for queue in 0..2 {
            assert!(
                self.completed[queue] <= self.posted[queue],
                "completes what was not posted"
            );
        }
    }
}

/// Gives what happened.
fn storm(seed: u64) -> Counters {
    let mut rng = Rng::new(seed);
    let mut storm = Storm::new(&mut rng);
    for _ in 0..600 {
        storm.step(&mut rng);
    }
    if storm.rc.state() != QpState::Reset {
        storm.rc.modify(&QpAttr::to_state(QpState::Error)).unwrap();
        storm.drain();
        let waiting = storm.memory.shared(storm.shared_queue()) as u64;
        if storm.rc.config().shared_receives {
            storm.posted[1] -= waiting;
        }
        assert_eq!(
            storm.completed, storm.posted,
            "every request completes once"
        );
    }
    storm.rc.counters().clone()
}

/// What the storms have to reach, or they would show less than they say.
const REACHED: [Counter; 20] = [
    Counter::SendsReceived,
    Counter::WritesReceived,
    Counter::ReadsReceived,
    Counter::AtomicsReceived,
    Counter::InvalidatesReceived,
    Counter::DuplicateReads,
    Counter::DuplicateAtomics,
    Counter::DroppedLostAtomic,
    Counter::DroppedNoResponder,
    Counter::InvalidRequestNaksSent,
    Counter::RemoteAccessNaksSent,
    Counter::RnrNaksSent,
    Counter::SendsCompleted,
    Counter::WritesCompleted,
    Counter::AtomicsCompleted,
    Counter::BindsCompleted,
    Counter::ReadResponsesReceived,
    Counter::BadResponses,
    Counter::ImpliedNaks,
    Counter::CreditStalls,
];

#[test]
fn random_and_forged_packets_change_no_promise() {
    let mut sum = Counters::default();
    let mut seeds = 0;
    for_each_seed(1500, |seed| {
        sum.add(&storm(seed));
        seeds += 1;
    });
    // One seed alone reaches less.
    if seeds > 1 {
        for counter in REACHED {
            assert!(sum.get(counter) > 0, "{counter:?} is never reached");
        }
    }
}
