//! Any packets, requests and transitions, in any order: nothing panics, each accepted request completes once and in the order
//! of its queue, and every packet is counted.

use std::collections::VecDeque;
use std::time::Duration;

use oarlock_sim::{Rng, for_each_seed};
use oarlock_transport::{
    AccessFlags, AttrMask, Counter, QpAttr, QpState, RecvWr, RemoteAddress, SendData, SendOp,
    SendWr, Sge, Srq, SrqConfig, UcConfig,
};
use oarlock_wire::{Opcode, Psn, RKey, Time};

use crate::pair::{A, B, Host, MTU, attr, pattern};

const STATES: [QpState; 7] = [
    QpState::Reset,
    QpState::Init,
    QpState::Rtr,
    QpState::Rts,
    QpState::Sqd,
    QpState::Sqe,
    QpState::Error,
];

struct World {
    rng: Rng,
    host: Host,
    /// Packets of a well-behaved peer.
    packets: Vec<Vec<u8>>,
    now: Time,
    number: u64,
    sends: VecDeque<(u64, bool)>,
    receives: VecDeque<u64>,
    shared: bool,
    handed_in: u64,
}

/// Everything a peer can say in order.
fn packets(remote: RemoteAddress) -> Vec<Vec<u8>> {
    let mut peer = Host::new(A, UcConfig::default(), QpState::Rts);
    for (n, len) in [0, 5, MTU, 3 * MTU + 1].into_iter().enumerate() {
        let data = pattern(n, len);
        for op in [
            SendOp::Send,
            SendOp::SendWithImm(1),
            SendOp::Write(remote),
            SendOp::WriteWithImm(remote, 2),
        ] {
            peer.op(1, op, &data);
        }
    }
    peer.packets(Time::ZERO)
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let shared = rng.chance(0.5);
        let config = UcConfig {
            max_send_wr: 4,
            max_recv_wr: 4,
            burst: 3,
            shared_receives: shared,
            ..UcConfig::default()
        };
        let mut host = Host::new(B, config, QpState::Rts);
        let (_, remote) = host.memory.offer(2 * MTU, AccessFlags::REMOTE_WRITE);
        host.memory.srq = shared.then(|| {
            Srq::new(SrqConfig {
                max_wr: 4,
                max_sge: 1,
            })
        });
        Self {
            rng,
            host,
            packets: packets(remote),
            now: Time::ZERO,
            number: 0,
            sends: VecDeque::new(),
            receives: VecDeque::new(),
            shared,
            handed_in: 0,
        }
    }

    fn number(&mut self) -> u64 {
        self.number += 1;
        self.number
    }

    fn step(&mut self) {
        match self.rng.below(12) {
            0..=1 => self.send(),
            2..=3 => self.recv(),
            4..=8 => self.packet(),
            9 => {
                self.now += self
                    .rng
                    .duration(&(Duration::ZERO..=Duration::from_millis(1)));
            }
            10 => self.host.uc.handle_timeout(self.now),
            _ if self.rng.chance(0.3) => self.modify(),
            _ => {}
        }
        self.drain();
    }

    fn send(&mut self) {
        let wr_id = self.number();
        let len = self.rng.index(2 * MTU);
        let sge = self.host.memory.alloc(len);
        if self.rng.chance(0.1) {
            self.host.memory.vanish(sge);
        }
        let remote = RemoteAddress {
            addr: self.rng.below(u64::MAX),
            rkey: RKey(1),
        };
        let (op, sges): (SendOp, &[Sge]) = match self.rng.below(4) {
            0 => (SendOp::LocalInvalidate(RKey(self.rng.below(3) as u32)), &[]),
            1 => (SendOp::Write(remote), &[sge]),
            _ => (SendOp::Send, &[sge]),
        };
        let signaled = self.rng.chance(0.5);
        let wr = SendWr {
            wr_id,
            op,
            data: SendData::Sges(sges),
            signaled,
            fence: self.rng.chance(0.05),
            ..SendWr::default()
        };
        let would = self.host.uc.check_sends(&[wr]);
        let answer = self.host.uc.post_send(&wr);
        assert_eq!(would, answer.map_err(|error| (0, error)));
        if answer.is_ok() {
            self.sends.push_back((wr_id, signaled));
        }
    }

    fn recv(&mut self) {
        let wr_id = self.number();
        let len = self.rng.index(2 * MTU);
        let sge = self.host.memory.alloc(len);
        if self.rng.chance(0.02) {
            self.host.memory.vanish(sge);
        }
        let wr = RecvWr {
            wr_id,
            sges: &[sge],
        };
        let answer = match &mut self.host.memory.srq {
            Some(srq) => srq.post_recv(&wr),
            None => self.host.uc.post_recv(&wr),
        };
        if answer.is_ok() {
            self.receives.push_back(wr_id);
        }
    }

    /// One of the peer's packets, whole, at another PSN, or damaged.
    fn packet(&mut self) {
        let mut bytes = self.packets[self.rng.index(self.packets.len())].clone();
        let expected = self.host.uc.query().rq_psn;
        let psn = match self.rng.below(4) {
            0 => expected.sub(self.rng.below(5000) as u32),
            1 => expected.add(self.rng.below(4) as u32),
            _ => expected,
        };
        set_psn(&mut bytes, psn);
        match self.rng.below(8) {
            0 => {
                let at = self.rng.index(bytes.len());
                bytes[at] ^= 1 << self.rng.below(8);
            }
            1 => bytes.truncate(self.rng.index(bytes.len())),
            2 => bytes[0] = self.rng.below(256) as u8,
            3 => bytes[0] = Opcode::RC_SEND_FIRST.0 | 0x20 | self.rng.below(12) as u8,
            _ => {}
        }
        self.handed_in += 1;
        let from = attr(B).av;
        self.host
            .uc
            .handle_datagram(self.now, &from, &bytes, &mut self.host.memory);
    }

    fn modify(&mut self) {
        let to = STATES[self.rng.index(STATES.len())];
        let bits = AttrMask::from_bits_retain(self.rng.below(1 << 21) as u32);
        let from = self.host.uc.state();
        let row = oarlock_transport::QpType::Uc.transition(from, to);
        let needed = row.map_or(AttrMask::empty(), |row| row.required);
        let mask = AttrMask::STATE | if self.rng.chance(0.2) { bits } else { needed };
        let asked = QpAttr {
            mask,
            state: to,
            current_state: from,
            sqd_notify: self.rng.chance(0.5),
            ..attr(B)
        };
        let before = self.host.uc.query();
        if self.host.uc.modify(&asked).is_err() {
            assert_eq!(self.host.uc.query(), before, "nothing has changed");
        } else if to == QpState::Reset {
            self.sends.clear();
            if !self.shared {
                self.receives.clear();
            }
        }
    }

    /// Whatever comes out, in the order of the contract.
    fn drain(&mut self) {
        let _ = self.host.packets(self.now);
        for completion in std::mem::take(&mut self.host.completions) {
            if completion.is_send {
                let whose = std::iter::from_fn(|| self.sends.pop_front())
                    .find(|(wr_id, signaled)| *signaled || *wr_id == completion.wr_id);
                let (wr_id, signaled) = whose.expect("nothing completes twice");
                assert_eq!(wr_id, completion.wr_id);
                assert!(signaled || !completion.status.is_success());
            } else if self.shared {
                // Those before it may be held by a life that was reset.
                let found = self.receives.iter().position(|n| *n == completion.wr_id);
                self.receives
                    .drain(..=found.expect("nothing completes twice"));
            } else {
                assert_eq!(Some(completion.wr_id), self.receives.pop_front());
            }
        }
        self.host.events.clear();
    }

    /// Each packet was received or dropped, under exactly one name.
    fn account(&self) {
        let counters = self.host.uc.counters();
        let taken = counters.get(Counter::RequestsReceived);
        let repeated = counters.get(Counter::DuplicateRequests);
        let dropped: u64 = self.host.dropped().iter().map(|(_, value)| value).sum();
        assert_eq!(counters.get(Counter::PacketsReceived), self.handed_in);
        assert_eq!(taken + repeated + dropped, self.handed_in);
    }
}

/// The PSN is the last three bytes of the BTH.
fn set_psn(bytes: &mut [u8], psn: Psn) {
    bytes[9..12].copy_from_slice(&psn.get().to_be_bytes()[1..]);
}

#[test]
fn anything_in_any_order_is_survived_and_accounted_for() {
    let mut received = 0;
    for_each_seed(150, |seed| {
        let mut world = World::new(seed);
        for _ in 0..300 {
            world.step();
        }
        world.account();
        received += world.host.count(Counter::SendsReceived);
        let to_error = QpAttr::to_state(QpState::Error);
        world.host.uc.modify(&to_error).unwrap();
        world.drain();
        let left = world.sends.iter().filter(|(_, signaled)| *signaled);
        assert_eq!(left.count(), 0, "every request has an end");
        if !world.shared {
            assert!(world.receives.is_empty());
        }
    });
    assert!(received > 500, "some of it is good: {received}");
}
