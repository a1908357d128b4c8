//! Packets of every opcode with everything else at random, for queue pairs of every type.

use std::sync::Arc;

use oarlock_device::{Access, Qp, QpInit, Region, Srq, SrqInit, SrqXrc, XrcDomain};
use oarlock_transport::{QpAttr, QpState, QpType, RecvWr, RemoteAddress, SendData, SendOp, SendWr};
use oarlock_wire::Qpn;

use crate::forger::{Scene, of_type};
use crate::support::ends::Link;
use crate::support::{content, filled, pattern, recv, send, whole};

/// xorshift64*: the packets of a seed are always the same.
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, end: u64) -> u64 {
        (self.roll() >> 16) % end
    }

    fn of<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len() as u64) as usize]
    }
}

/// What the packets are about.
struct Target {
    qpn: Qpn,
    /// Numbers of XRC queues, those of other domains too.
    srqns: Vec<u32>,
    /// Address and keys of memory, offered and not.
    addr: u64,
    keys: Vec<u32>,
    psn: u32,
}

fn forge(dice: &mut Dice, target: &mut Target) -> Vec<u8> {
    let class: u8 = dice.of(&[0, 0, 0, 1, 3, 5, 5, 4, 2, 6]);
    let opcode = class << 5 | dice.below(25) as u8;
    let psn = match dice.below(8) {
        0..5 => target.psn,
        5 => target.psn.wrapping_sub(dice.below(20) as u32),
        6 => target.psn.wrapping_add(dice.below(20) as u32),
        _ => dice.roll() as u32,
    };
    let mut bytes = vec![opcode];
    let second = match dice.below(8) {
        0 => dice.roll() as u8,
        // Any padding.
        1 => (dice.below(4) as u8) << 4,
        _ => 0,
    };
    bytes.push(second);
    bytes.extend(match dice.below(16) {
        0 => [0x12, 0x34],
        _ => [0xff, 0xff],
    });
    bytes.extend(target.qpn.get().to_be_bytes());
    let ack = (dice.below(2) as u32) << 31;
    bytes.extend((psn & 0xff_ffff | ack).to_be_bytes());
    // The headers that the opcode calls for, most of the time, and then anything.
    let operation = opcode & 0x1f;
    if class == 5 && dice.below(16) > 0 {
        bytes.extend(dice.of(&target.srqns).to_be_bytes());
    }
    if class == 3 {
        bytes.extend(dice.of(&[0x0111_1111_u32, 0, 0x8000_0000]).to_be_bytes());
        bytes.extend((dice.roll() as u32).to_be_bytes());
    }
    let len = dice.of(&[0, 0, 1, 7, 64, 255, 256, 257, 1024, 4096]);
    match operation {
        6 | 10..=12 => {
            let far = dice.of(&[0_u64, 0, 8, 4000, 4096, u64::MAX - 3]);
            bytes.extend(target.addr.wrapping_add(far).to_be_bytes());
            bytes.extend(dice.of(&target.keys).to_be_bytes());
            let asked = dice.of(&[0, 1, len, len, 4096, 4097, 1 << 20, 1 << 31, u32::MAX]);
            bytes.extend(asked.to_be_bytes());
        }
        0x13 | 0x14 => {
            let far = dice.of(&[0_u64, 8, 4, 4088, 4092, 4096]);
            bytes.extend(target.addr.wrapping_add(far).to_be_bytes());
            bytes.extend(dice.of(&target.keys).to_be_bytes());
            bytes.extend(dice.roll().to_be_bytes());
            bytes.extend(dice.roll().to_be_bytes());
        }
        0x0d..=0x12 => {
            let syndrome = match dice.below(4) {
                0 => dice.roll() as u8,
                1 => 0x20 | dice.below(32) as u8,
                2 => 0x60,
                _ => dice.below(32) as u8,
            };
            bytes.push(syndrome);
            bytes.extend(&dice.roll().to_be_bytes()[..3]);
        }
        0x16 | 0x17 => bytes.extend(dice.of(&target.keys).to_be_bytes()),
        _ => {}
    }
    let room = 4096 + 60 - bytes.len();
    bytes.resize(bytes.len() + room.min(len as usize), 0xee);
    if psn & 0xff_ffff == target.psn & 0xff_ffff {
        // It may have been taken.
        target.psn = target.psn.wrapping_add(dice.of(&[0, 1, 1, 4]));
    }
    bytes
}

struct Everything {
    scene: Scene,
    offered: Region,
    /// Nobody was told of it.
    private: Region,
    domain: XrcDomain,
    srqs: Vec<Srq>,
}

impl Everything {
    fn new() -> Self {
        let scene = Scene::new();
        let victim = &scene.victim;
        let rights = Access::REMOTE_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_ATOMIC
            | Access::LOCAL_WRITE
            | Access::MW_BIND;
        let offered = victim.pd.allocate(4096, rights).expect("region");
        let private = filled(victim, &[0x5a; 4096]);
        let (domain, other) = (
            XrcDomain::open(&victim.context, None).expect("domain"),
            XrcDomain::open(&victim.context, None).expect("domain"),
        );
        let queue = |domain: &XrcDomain| {
            let init = SrqInit {
                max_wr: 64,
                xrc: Some(SrqXrc {
                    domain: domain.clone(),
                    cq: Arc::clone(&victim.cq),
                }),
                ..SrqInit::default()
            };
            Srq::new(&victim.pd, init).expect("queue")
        };
        let srqs = vec![queue(&domain), queue(&other)];
        Self {
            scene,
            offered,
            private,
            domain,
            srqs,
        }
    }

    fn prey(&self, qp_type: QpType) -> Qp {
        let link = Link {
            // What waits does so for ever.
            timeout: 0,
            ..Link::default()
        };
        match qp_type {
            QpType::Ud => crate::support::ud_ready(&self.scene.victim),
            QpType::XrcTarget => {
                let init = QpInit {
                    xrc_domain: Some(self.domain.clone()),
                    ..of_type(qp_type)
                };
                self.scene.prey(init, &link)
            }
            _ => self.scene.prey(of_type(qp_type), &link),
        }
    }

    fn target(&self, qp: &Qp) -> Target {
        let numbers = self
            .srqs
            .iter()
            .map(|srq| srq.number().expect("of XRC").get());
        let known = self.offered.rkey().0;
        Target {
            qpn: qp.qpn(),
            srqns: numbers.chain([0, 0xff_ffff]).collect(),
            addr: self.offered.iova(),
            keys: vec![
                known,
                known,
                known,
                known ^ 1,
                known ^ 0x100,
                0,
                u32::MAX,
                self.private.lkey().0,
            ],
            psn: Link::default().first_psn,
        }
    }
}

/// Every seed is one life of a queue pair: it ends by the forger's fault or lives on. Nothing else changes: not memory that
/// nobody offered, not the messages of others, not the number of things that wait.
fn attack(qp_type: QpType, seeds: std::ops::Range<u64>) {
    let everything = Everything::new();
    let Everything { scene, .. } = &everything;
    let others = scene.bystanders();
    let buffer = scene
        .victim
        .pd
        .allocate(8192, Access::LOCAL_WRITE)
        .expect("region");
    let message = pattern(5, 2000);
    let source = filled(&scene.honest, &message);
    let target = scene
        .victim
        .pd
        .allocate(2000, Access::LOCAL_WRITE)
        .expect("region");
    let mut ended = 0;
    for seed in seeds {
        let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let prey = everything.prey(qp_type);
        for _ in 0..4 {
            if !matches!(qp_type, QpType::XrcTarget | QpType::XrcInitiator) {
                recv(&prey, 1, &[buffer.sge(0, 4096 + 40)]);
            }
            for srq in &everything.srqs {
                // Full of those that were not taken.
                let sges = [buffer.sge(0, 4096)];
                let _ = srq.post_recv(&RecvWr {
                    wr_id: 2,
                    sges: &sges,
                });
            }
        }
        if qp_type != QpType::XrcTarget && qp_type != QpType::Ud {
            send_some(&everything, &prey, &mut dice);
        }
        let mut aim = everything.target(&prey);
        for _ in 0..60 {
            let bytes = forge(&mut dice, &mut aim);
            scene.forger.send(&scene.victim, &bytes);
        }
        // Comes after them all.
        recv(&others.0, 1, &[whole(&target)]);
        send(&others.1, 2, &[whole(&source)]);
        scene.honest.collect(1);
        let mut is_here = false;
        while !is_here {
            for cqe in scene.victim.collect_any(1) {
                is_here |= cqe.qpn() == others.0.qpn();
            }
        }
        assert!(content(&target) == message, "seed {seed}");
        assert!(
            content(&everything.private)
                .iter()
                .all(|byte| *byte == 0x5a),
            "seed {seed}"
        );
        ended += u32::from(prey.state() == QpState::Error);
        prey.modify(&QpAttr::to_state(QpState::Error))
            .expect("error");
    }
    // It would be no attack if none of it were taken.
    if matches!(
        qp_type,
        QpType::Rc | QpType::XrcTarget | QpType::XrcInitiator
    ) {
        assert!(ended > 0);
    }
    assert_eq!(scene.victim.context.endpoint().qp_count(), 1);
}

fn send_some(everything: &Everything, prey: &Qp, dice: &mut Dice) {
    let private = [everything.private.sge(0, 700)];
    let remote = RemoteAddress::default();
    for _ in 0..dice.below(4) {
        let (op, sges) = match (dice.below(4), prey.qp_type()) {
            (0, _) => (SendOp::Send, private),
            (1, _) | (_, QpType::Uc) => (SendOp::Write(remote), private),
            (2, _) => (
                SendOp::FetchAdd { remote, add: 1 },
                [everything.offered.sge(8, 8)],
            ),
            _ => (SendOp::Read(remote), [everything.offered.sge(0, 700)]),
        };
        let number = everything.srqs[0].number().expect("of XRC");
        prey.post_send(&SendWr {
            wr_id: 4,
            op,
            data: SendData::Sges(&sges),
            xrc_srqn: (prey.qp_type() == QpType::XrcInitiator).then_some(number),
            ..SendWr::default()
        })
        .expect("post_send");
    }
}

const SEEDS: u64 = 150;

#[test]
fn forgeries_against_a_reliable_connection() {
    attack(QpType::Rc, 0..SEEDS);
}

#[test]
fn forgeries_against_an_unreliable_connection() {
    attack(QpType::Uc, 0..SEEDS);
}

#[test]
fn forgeries_against_datagrams() {
    attack(QpType::Ud, 0..SEEDS);
}

#[test]
fn forgeries_against_an_extended_target() {
    attack(QpType::XrcTarget, 0..SEEDS);
}

#[test]
fn forgeries_against_an_extended_initiator() {
    attack(QpType::XrcInitiator, 0..SEEDS);
}
