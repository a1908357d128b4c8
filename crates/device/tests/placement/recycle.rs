//! A storm: a peer, or we ourselves, at full speed, while the program takes the memory away and uses its address for something else.
//! What it puts there after the call has returned that took the memory away stays as it is, and is shown to nobody.
//!
//! Beside it stands what programs do that only read events: they deregister when they have read one. That finds bytes in the wrong
//! place in every run, so this test can fail.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use oarlock_device::{Access, Qp, QpInit, Region};
use oarlock_memwatch::Watcher;
use oarlock_sim::Rng;
use oarlock_transport::{RemoteAddress, SendOp, Sge, WcStatus};

use crate::arena::{Block, CHANGES, Change, OTHERS, watcher};
use crate::chaos::{REMOTE, linked_as, post};
use crate::support::{Side, eventually, pair, recv};

/// How the device learns that memory is gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Binding {
    /// The region is bound to its watch.
    Watched,
    /// A thread of the program reads the event, some requests later, and deregisters the region.
    ByEvents,
}

impl Binding {
    /// The ways in which memory is taken away: for a program that reads events, those that leave no hole, which would end a
    /// request before its time.
    fn changes(self) -> &'static [Change] {
        match self {
            Self::Watched => &CHANGES,
            Self::ByEvents => &[Change::MapOver, Change::Discard],
        }
    }
}

/// What is done at full speed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Traffic {
    /// The peer changes the memory.
    Write,
    Add,
    /// The peer sends into it.
    Receive,
    /// The peer looks at it.
    Read,
    /// We send what is in it.
    Send,
}

const TRAFFIC: [Traffic; 5] = [
    Traffic::Write,
    Traffic::Add,
    Traffic::Receive,
    Traffic::Read,
    Traffic::Send,
];

/// Pages of a block.
const PAGES: usize = 5;
/// Requests that are posted and not done, at most.
const DEPTH: u64 = 16;
/// Requests that are done on memory of somebody else before a program that reads events gets to it.
const LATE: u64 = 8;

/// What has been seen.
#[derive(Default, Debug)]
struct Seen {
    /// Bytes of ours in memory of somebody else, or the other way round.
    astray: usize,
    /// Requests that were done before, and in how many rounds one was refused.
    done: u64,
    refused: u64,
}

struct Bench {
    a: Side,
    b: Side,
    watcher: Watcher,
}

impl Bench {
    /// One life of a block.
    fn round(&self, binding: Binding, traffic: Traffic, rng: &mut Rng, seen: &mut Seen) {
        let Self { a, b, watcher } = self;
        let block = Block::new(PAGES);
        let watch = block.watch(watcher);
        let region = match binding {
            Binding::Watched => block.register(b, REMOTE, watch.validity()),
            Binding::ByEvents => block.register_unwatched(b, REMOTE),
        };
        let landing =
            a.pd.allocate(block.len, Access::LOCAL_WRITE)
                .expect("region");
        let round = Round {
            traffic,
            ours: region.sge(0, 0),
            remote: RemoteAddress {
                addr: region.iova(),
                rkey: region.rkey(),
            },
            landing: &landing,
            span: block.len,
            done: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
            astray: AtomicU64::new(0),
        };
        let changes = binding.changes();
        let change = changes[rng.index(changes.len())];
        let from = 1 + rng.index(40) as u64;
        let mut spin = rng.index(3000);
        let region = Mutex::new(Some(region));
        let init = || QpInit {
            max_send_wr: 2 * DEPTH as u32,
            max_recv_wr: 4 * DEPTH as u32,
            ..QpInit::default()
        };
        let (qa, qb) = linked_as(a, b, init(), init());
        std::thread::scope(|scope| {
            let peer = scope.spawn(|| round.be_busy((a, &qa), (b, &qb)));
            let is_over = || round.is_over.load(Ordering::Acquire);
            eventually("traffic", || round.done.load(Ordering::Acquire) >= from);
            while spin > 0 {
                std::hint::spin_loop();
                spin -= 1;
            }
            block.recycle(change);
            let now = round.done.load(Ordering::Acquire);
            match binding {
                Binding::Watched => eventually("an end", is_over),
                Binding::ByEvents => {
                    eventually("more traffic", || {
                        round.done.load(Ordering::Acquire) >= now + LATE
                    });
                    let mut events = Vec::new();
                    watcher.read_events(&mut events, 64).expect("alive");
                    assert!(events.len() > 1, "{change:?} was not reported");
                    let region = region.lock().expect("lock").take().expect("once");
                    region.deregister().expect("no windows");
                }
            }
            peer.join().expect("peer");
        });
        // Both queue pairs are in error: nothing is placed any more.
        drop((qa, qb));
        seen.done += round.done.load(Ordering::Acquire);
        seen.refused += 1;
        seen.astray += block.foreign_bytes();
        seen.astray += round.astray.load(Ordering::Acquire) as usize;
    }
}

struct Round<'a> {
    traffic: Traffic,
    /// Names the block to its own side; without a length.
    ours: Sge,
    remote: RemoteAddress,
    landing: &'a Region,
    span: usize,
    done: AtomicU64,
    is_over: AtomicBool,
    /// Bytes of somebody else that have arrived.
    astray: AtomicU64,
}

impl Round<'_> {
    /// Posts until a request is refused.
    fn be_busy(&self, (a, qa): (&Side, &Qp), (b, qb): (&Side, &Qp)) {
        let is_ours = self.traffic == Traffic::Send;
        let requests_of = if is_ours { b } else { a };
        let mut rng = Rng::new(self.remote.addr);
        let (mut posted, mut ended) = (0, 0);
        for wr_id in 0..2 * DEPTH {
            self.receive((qa, qb), wr_id);
        }
        loop {
            while posted < ended + DEPTH {
                self.request((qa, qb), posted, &mut rng);
                posted += 1;
            }
            let completion = requests_of.collect_any(1).remove(0).completion;
            let is_receive = self.is_receive(completion.wr_id);
            if !completion.status.is_success() {
                self.check_refusal(completion.status);
                break;
            }
            if is_receive {
                self.receive((qa, qb), completion.wr_id - RECEIVES);
                continue;
            }
            ended += 1;
            self.look();
            self.done.store(ended, Ordering::Release);
            self.refill((a, b), (qa, qb));
        }
        for qp in [qa, qb] {
            let error = oarlock_transport::QpAttr::to_state(oarlock_transport::QpState::Error);
            qp.modify(&error).expect("error");
        }
        self.look();
        self.drain(a);
        self.drain(b);
        self.is_over.store(true, Ordering::Release);
    }

    fn is_receive(&self, wr_id: u64) -> bool {
        wr_id >= RECEIVES
    }

    /// The refusals that memory may end with. While its call is under way its pages may be missing, too.
    fn check_refusal(&self, status: WcStatus) {
        let expected: &[WcStatus] = match self.traffic {
            Traffic::Write | Traffic::Add | Traffic::Read => &[WcStatus::REM_ACCESS_ERR],
            Traffic::Receive => &[WcStatus::REM_OP_ERR],
            Traffic::Send => &[WcStatus::LOC_PROT_ERR],
        };
        assert!(expected.contains(&status), "{:?}: {status}", self.traffic);
    }

    /// A part of the block: packets, or long enough for many.
    fn part(&self, rng: &mut Rng) -> (usize, usize) {
        let len = match rng.index(3) {
            0 => 8,
            1 => 1 + rng.index(900),
            _ => 1 + rng.index(self.span),
        };
        (rng.index(self.span - len + 1), len)
    }

    fn request(&self, (qa, qb): (&Qp, &Qp), wr_id: u64, rng: &mut Rng) {
        let (at, len) = self.part(rng);
        let remote = RemoteAddress {
            addr: self.remote.addr + at as u64,
            ..self.remote
        };
        let landing = Some((self.landing, at as u64, len as u32));
        match self.traffic {
            Traffic::Write => post(qa, wr_id, SendOp::Write(remote), landing),
            Traffic::Add => {
                let remote = RemoteAddress {
                    addr: self.remote.addr + at as u64 / 8 * 8 % (self.span as u64 - 8),
                    ..self.remote
                };
                let landing = Some((self.landing, 0, 8));
                post(
                    qa,
                    wr_id,
                    SendOp::FetchAdd {
                        remote,
                        add: 0x0101,
                    },
                    landing,
                );
            }
            Traffic::Read => post(qa, wr_id, SendOp::Read(remote), landing),
            Traffic::Receive => post(qa, wr_id, SendOp::Send, landing),
            Traffic::Send => {
                let sge = Sge {
                    addr: self.ours.addr + at as u64,
                    len: len as u32,
                    ..self.ours
                };
                crate::support::send(qb, wr_id, &[sge]);
            }
        }
    }

    /// Posts a receive, where messages are sent: of the whole block.
    fn receive(&self, (qa, qb): (&Qp, &Qp), wr_id: u64) {
        let wr_id = RECEIVES + wr_id;
        match self.traffic {
            Traffic::Receive => {
                let whole = Sge {
                    len: self.span as u32,
                    ..self.ours
                };
                recv(qb, wr_id, &[whole]);
            }
            Traffic::Send => recv(qa, wr_id, &[crate::support::whole(self.landing)]),
            Traffic::Write | Traffic::Add | Traffic::Read => {}
        }
    }

    /// Posts receives for those that were used.
    fn refill(&self, (a, b): (&Side, &Side), qps: (&Qp, &Qp)) {
        let receiver = match self.traffic {
            Traffic::Receive => b,
            Traffic::Send => a,
            Traffic::Write | Traffic::Add | Traffic::Read => return,
        };
        let mut some = [const { None }; 8];
        receiver.cq.poll(&mut some).expect("poll");
        for cqe in some.into_iter().flatten() {
            if cqe.completion.status.is_success() {
                self.look();
                self.receive(qps, cqe.completion.wr_id - RECEIVES);
            }
        }
    }

    /// Looks for what nobody was to be shown.
    fn look(&self) {
        if matches!(self.traffic, Traffic::Read | Traffic::Send) {
            let mut bytes = vec![0; self.span];
            self.landing.copy_out(0, &mut bytes).expect("inside");
            let secret = bytes.iter().filter(|byte| **byte == OTHERS).count();
            self.astray.fetch_max(secret as u64, Ordering::AcqRel);
        }
    }

    fn drain(&self, side: &Side) {
        let mut some = [const { None }; 16];
        while side.cq.poll(&mut some).expect("poll") > 0 {}
    }
}

/// Numbers of receives begin here.
const RECEIVES: u64 = 1 << 32;

fn storm(binding: Binding, rounds: usize, seed: u64) -> Option<[Seen; TRAFFIC.len()]> {
    let watcher = watcher()?;
    let (a, b) = pair();
    let bench = Bench { a, b, watcher };
    let mut rng = Rng::new(seed);
    let seen = TRAFFIC.map(|traffic| {
        let mut seen = Seen::default();
        for _ in 0..rounds {
            bench.round(binding, traffic, &mut rng, &mut seen);
        }
        assert!(
            seen.done > 0 && seen.refused == rounds as u64,
            "{traffic:?}: {seen:?}"
        );
        seen
    });
    assert_eq!(bench.b.context.region_count(), 0);
    Some(seen)
}

#[test]
fn memory_of_somebody_else_is_neither_changed_nor_shown() {
    oarlock_sim::for_each_seed(2, |seed| {
        let Some(all) = storm(Binding::Watched, 12, seed) else {
            return;
        };
        for (traffic, seen) in TRAFFIC.iter().zip(all) {
            assert_eq!(seen.astray, 0, "{traffic:?}: {seen:?}");
        }
    });
}

/// The oracle finds what is to be found.
#[test]
fn a_program_that_only_reads_events_is_too_late() {
    let Some(all) = storm(Binding::ByEvents, 2, 1) else {
        return;
    };
    for (traffic, seen) in TRAFFIC.iter().zip(all) {
        assert!(seen.astray > 0, "{traffic:?}: {seen:?}");
    }
}
