//! Everything that a program may do to its objects, from several threads at once, while packets and completions are in
//! flight: no deadlock, no panic of any thread, nothing left behind, and a connection made afterwards works.

mod support;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use oarlock_device::{
    Access, CompChannel, Cq, Cqe, Notify, Qp, QpInit, Region, Srq, SrqInit, Window, WindowBind,
    WindowType,
};
use oarlock_transport::{QpAttr, QpState, QpType, RecvWr, RemoteAddress, SendData, SendOp, SendWr};
use oarlock_wire::RKey;
use support::ends::{Link, steps};
use support::{Side, content, eventually, filled, pair, pattern, recv, send, whole};

/// xorshift64*.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16) % end
    }
}

/// Two connected queue pairs, which any thread may replace.
struct Couple {
    qp_type: QpType,
    ends: Mutex<(Arc<Qp>, Arc<Qp>)>,
}

struct Arena {
    sides: [Side; 2],
    cqs: [Arc<Cq>; 2],
    channel: Arc<CompChannel>,
    srq: Arc<Srq>,
    couples: Vec<Couple>,
    /// Memory of the second side for the first one's operations; its key changes under fire.
    offered: Mutex<Arc<Region>>,
    local: Region,
    buffers: Region,
    /// Lives as long as any queue pair or posted buffer.
    user: Arc<()>,
    over: AtomicBool,
    /// Requests and receives that succeeded.
    done: AtomicU64,
}

const LEN: usize = 6000;
/// More completions than there are before a thread looks at them, on a busy machine too.
const DEPTH: u32 = 200_000;

impl Arena {
    fn new() -> Self {
        let (a, b) = pair();
        let channel = CompChannel::new(&b.context).expect("channel");
        let cqs = [
            Arc::new(Cq::new(&a.context, DEPTH, None, 0).expect("cq")),
            Arc::new(Cq::new(&b.context, DEPTH, Some(&channel), 0).expect("cq")),
        ];
        let user = Arc::new(());
        let srq = Srq::new(
            &b.pd,
            SrqInit {
                max_wr: 32,
                user: Some(user.clone()),
                ..SrqInit::default()
            },
        );
        let mut arena = Self {
            local: a.pd.allocate(LEN, Access::LOCAL_WRITE).expect("region"),
            buffers: b.pd.allocate(LEN, Access::LOCAL_WRITE).expect("region"),
            offered: Mutex::new(Arc::new(offer(&b))),
            srq: Arc::new(srq.expect("srq")),
            sides: [a, b],
            cqs,
            channel,
            couples: Vec::new(),
            user,
            over: AtomicBool::new(false),
            done: AtomicU64::new(0),
        };
        for qp_type in [QpType::Rc, QpType::Rc, QpType::Uc] {
            let ends = Mutex::new(arena.make(qp_type));
            arena.couples.push(Couple { qp_type, ends });
        }
        arena
    }

    fn make(&self, qp_type: QpType) -> (Arc<Qp>, Arc<Qp>) {
        let [a, b] = &self.sides;
        let make = |side: &Side, cq: &Arc<Cq>, srq| {
            let init = QpInit {
                qp_type,
                srq,
                user: Some(self.user.clone()),
                ..QpInit::default()
            };
            Arc::new(Qp::new(&side.pd, cq, cq, init).expect("qp"))
        };
        let ends = (
            make(a, &self.cqs[0], None),
            make(b, &self.cqs[1], Some(self.srq.clone())),
        );
        self.connect(&ends.0, &ends.1);
        ends
    }

    /// Another thread may be at it with the same two: then one of them finds a state that it did not expect, and leaves it.
    fn connect(&self, one: &Qp, two: &Qp) {
        let [a, b] = &self.sides;
        let link = Link {
            timeout: 10,
            ..Link::default()
        };
        for (side, qp, peer_side, peer) in [(a, one, b, two), (b, two, a, one)] {
            for attr in steps(qp.qp_type(), side.gid, peer_side.gid, peer.qpn(), &link) {
                let _ = qp.modify(&attr);
            }
        }
    }

    fn some(&self, dice: &mut Dice) -> (&Couple, Arc<Qp>, Arc<Qp>) {
        let couple = &self.couples[dice.below(self.couples.len() as u64) as usize];
        let ends = couple.ends.lock().expect("lock");
        (couple, ends.0.clone(), ends.1.clone())
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// Posts requests of every kind; what is refused is refused.
    fn post(&self, mut dice: Dice) {
        while !self.is_over() {
            let (_, one, two) = self.some(&mut dice);
            let region = self.offered.lock().expect("lock").clone();
            let remote = RemoteAddress {
                addr: region.iova(),
                rkey: RKey(region.rkey().0 ^ u32::from(dice.below(200) == 0)),
            };
            let len = [0, 8, 700, LEN as u32][dice.below(4) as usize];
            let sges = [self.local.sge(0, len)];
            let word = [self.local.sge(0, 8)];
            let (op, sges) = match dice.below(6) {
                0 => (SendOp::Send, &sges),
                1 => (SendOp::Write(remote), &sges),
                2 => (SendOp::WriteWithImm(remote, 7), &sges),
                3 => (SendOp::Read(remote), &sges),
                4 => (SendOp::FetchAdd { remote, add: 1 }, &word),
                _ => (
                    SendOp::SendWithInvalidate(RKey(dice.below(9) as u32)),
                    &sges,
                ),
            };
            let _ = one.post_send(&SendWr {
                op,
                data: SendData::Sges(sges),
                signaled: dice.below(2) == 0,
                ..SendWr::default()
            });
            let sges = [self.buffers.sge(0, LEN as u32)];
            let _ = self.srq.post_recv(&RecvWr {
                wr_id: 1,
                sges: &sges,
            });
            let _ = two.state();
        }
    }

    /// Takes completions and events.
    fn collect(&self, mut dice: Dice) {
        while !self.is_over() {
            let cq = &self.cqs[dice.below(2) as usize];
            let mut out = [const { None }; 16];
            cq.poll(&mut out).expect("poll");
            let is_done = |cqe: &&Cqe| cqe.completion.status.is_success();
            let done = out.iter().flatten().filter(is_done).count();
            self.done.fetch_add(done as u64, Ordering::Relaxed);
            drop(out);
            match dice.below(8) {
                0 => cq.wait(Some(Duration::from_micros(200))).expect("wait"),
                1 => self.cqs[1]
                    .req_notify([Notify::Any, Notify::Solicited][dice.below(2) as usize])
                    .expect("notify"),
                2 => drop(self.channel.try_event()),
                3 => {
                    for side in &self.sides {
                        while side.context.try_async_event().is_some() {}
                        assert!(!side.context.statistics().is_empty());
                    }
                }
                4 => self.cqs[1]
                    .moderate(dice.below(5) as u16, Duration::from_micros(dice.below(300)))
                    .expect("moderate"),
                _ => {}
            }
        }
    }

    /// Changes what there is.
    fn change(&self, mut dice: Dice, rounds: usize) {
        for _ in 0..rounds {
            let (couple, one, two) = self.some(&mut dice);
            let qp = if dice.below(2) == 0 { &one } else { &two };
            match dice.below(10) {
                0 => qp.modify(&QpAttr::to_state(QpState::Error)).expect("error"),
                1 => {
                    qp.modify(&QpAttr::to_state(QpState::Reset)).expect("reset");
                }
                2 | 3 => {
                    for qp in [&one, &two] {
                        qp.modify(&QpAttr::to_state(QpState::Reset)).expect("reset");
                    }
                    self.connect(&one, &two);
                }
                4 => {
                    let fresh = self.make(couple.qp_type);
                    let before = std::mem::replace(&mut *couple.ends.lock().expect("lock"), fresh);
                    drop((one, two));
                    drop(before);
                }
                5 => {
                    let fresh = Arc::new(offer(&self.sides[1]));
                    let before = std::mem::replace(&mut *self.offered.lock().expect("lock"), fresh);
                    drop(before);
                }
                6 => {
                    // Refused where more are posted, or the limit is higher.
                    let _ = self.srq.resize(1 + dice.below(64) as u32);
                    let _ = self.srq.set_limit(dice.below(8) as u32);
                }
                7 => {
                    // Refused where more are waiting.
                    let _ = self.cqs[dice.below(2) as usize].resize(DEPTH + dice.below(96) as u32);
                }
                8 => self.bind(&two, &mut dice),
                _ => std::thread::sleep(Duration::from_micros(dice.below(500))),
            }
        }
    }

    fn bind(&self, two: &Qp, dice: &mut Dice) {
        let window = Window::new(&self.sides[1].pd, WindowType::One).expect("window");
        let region = self.offered.lock().expect("lock").clone();
        for _ in 0..3 {
            let _ = two.bind_window(
                &window,
                &WindowBind {
                    wr_id: 6,
                    signaled: dice.below(2) == 0,
                    region: region.lkey(),
                    addr: region.iova(),
                    len: dice.below(2) * 64,
                    access: Access::REMOTE_WRITE,
                },
            );
        }
    }
}

fn offer(side: &Side) -> Region {
    let access = Access::REMOTE_WRITE
        | Access::REMOTE_READ
        | Access::REMOTE_ATOMIC
        | Access::LOCAL_WRITE
        | Access::MW_BIND;
    side.pd.allocate(LEN, access).expect("region")
}

fn one_storm(seed: u64) {
    let arena = Arena::new();
    std::thread::scope(|scope| {
        let arena = &arena;
        for n in 0..2 {
            scope.spawn(move || arena.post(Dice(seed * 100 + n + 1)));
        }
        for n in 0..2 {
            scope.spawn(move || arena.collect(Dice(seed * 100 + n + 11)));
        }
        let changers: Vec<_> = (0..2)
            .map(|n| scope.spawn(move || arena.change(Dice(seed * 100 + n + 21), 1500)))
            .collect();
        let ended: Vec<_> = changers.into_iter().map(|thread| thread.join()).collect();
        arena.over.store(true, Ordering::Relaxed);
        for ended in ended {
            ended.expect("no panic");
        }
    });
    let Arena {
        sides,
        cqs,
        srq,
        couples,
        user,
        channel,
        done,
        ..
    } = arena;
    assert!(
        done.into_inner() > 100,
        "seed {seed}: nothing was under fire"
    );
    drop(couples);
    drop(srq);
    // What waits there keeps its queue pair.
    drop(cqs);
    drop(channel);
    eventually("the release of every queue pair", || {
        Arc::strong_count(&user) == 1
    });
    let [a, b] = &sides;
    for side in &sides {
        assert_eq!(side.context.endpoint().qp_count(), 0);
        while side.context.try_async_event().is_some() {}
    }
    // Both engines live: nobody else does anything for these.
    let (one, two) = support::connected(a, b);
    let bytes = pattern(3, 5000);
    let source = filled(a, &bytes);
    let target = b.pd.allocate(5000, Access::LOCAL_WRITE).expect("region");
    recv(&two, 1, &[whole(&target)]);
    send(&one, 2, &[whole(&source)]);
    a.collect(1);
    b.collect(1);
    assert!(content(&target) == bytes);
}

/// Runs `body` and fails if it does not come to an end.
fn ends(body: impl FnOnce() + Send + 'static) {
    let (over, wait) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        body();
        let _ = over.send(());
    });
    match wait.recv_timeout(Duration::from_secs(300)) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("it hangs"),
        Ok(()) | Err(mpsc::RecvTimeoutError::Disconnected) => {
            if let Err(panic) = thread.join() {
                std::panic::resume_unwind(panic);
            }
        }
    }
}

#[test]
fn everything_changes_under_fire() {
    let seeds = std::env::var("OARLOCK_SEEDS").ok();
    let seeds = seeds.map_or(6, |seeds| seeds.parse().expect("a number"));
    for seed in 1..=seeds {
        ends(move || one_storm(seed));
    }
}
