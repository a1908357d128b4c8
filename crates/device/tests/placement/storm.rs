//! Everything at once: several peers at full speed, while one thread registers, binds and takes away, and another one takes
//! pages from under all of them. What was taken away bears a mark, which is there in the end.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use oarlock_device::{
    Access, Cq, Region, Reregistration, Translation, Window, WindowBind, WindowType,
};
use oarlock_sim::Rng;
use oarlock_transport::{RemoteAddress, SendOp, WcStatus};
use oarlock_wire::RKey;
use rustix::mm::{MprotectFlags, ProtFlags};

use crate::chaos::{REMOTE, linked, post};
use crate::pages::{PAGE, Pages};
use crate::support::{Side, eventually, pair};

/// Blocks of two pages, each used once, with a page that nobody may touch behind each.
struct Blocks {
    pages: Pages,
    /// How many blocks bear the mark. Held while pages are without access, and while a block is marked.
    marked: Mutex<usize>,
}

const BLOCK: usize = 2 * PAGE;
const STRIDE: usize = BLOCK + PAGE;
const COUNT: usize = 30;
const PEERS: usize = 2;
const BURST: usize = 16;
const LONGEST: usize = 3000;
const BETWEEN: u8 = 0xC3;
const MARK: u8 = 0x55;
/// What peers write.
const WRITTEN: u8 = 0x80;

impl Blocks {
    fn new() -> Self {
        let pages = Pages::new(COUNT * STRIDE / PAGE);
        for i in 0..COUNT {
            pages.fill(i * STRIDE + BLOCK, PAGE, BETWEEN);
        }
        Self {
            pages,
            marked: Mutex::new(0),
        }
    }

    /// The block is the program's alone again.
    fn mark(&self, block: usize) {
        let mut marked = self.marked.lock().expect("lock");
        self.pages.fill(block * STRIDE, BLOCK, MARK);
        *marked = block + 1;
    }

    /// Takes pages of a block away for a moment, or their content, or the right to write.
    fn trouble(&self, rng: &mut Rng, block: usize) {
        let marked = self.marked.lock().expect("lock");
        if block < *marked {
            return;
        }
        let at = block * STRIDE + PAGE * rng.index(2);
        let open = MprotectFlags::READ | MprotectFlags::WRITE;
        match rng.index(4) {
            0 => {
                self.pages.protect_part(at, PAGE, MprotectFlags::empty());
                std::thread::yield_now();
                self.pages.protect_part(at, PAGE, open);
            }
            1 => {
                self.pages.protect_part(at, PAGE, MprotectFlags::READ);
                std::thread::yield_now();
                self.pages.protect_part(at, PAGE, open);
            }
            2 => {
                self.pages.replace(at, PAGE, ProtFlags::empty());
                std::thread::yield_now();
                self.pages.protect_part(at, PAGE, open);
            }
            _ => self
                .pages
                .replace(at, PAGE, ProtFlags::READ | ProtFlags::WRITE),
        }
    }
}

/// What peers are told: the key, the address, and the number of the block that is in use. And what they have done.
#[derive(Default)]
struct Offer {
    rkey: AtomicU64,
    addr: AtomicU64,
    block: AtomicU64,
    /// Operations that have succeeded.
    done: AtomicU64,
}

#[derive(Default)]
struct Seen {
    good: u64,
    refused: u64,
    unmapped: u64,
}

#[test]
fn nothing_is_placed_where_no_right_is_left() {
    let mut cut_short = 0;
    oarlock_sim::for_each_seed(3, |seed| cut_short += storm(seed));
    assert!(cut_short > 0, "nothing was taken away in time");
}

/// Gives how many operations were refused, or met missing pages.
fn storm(seed: u64) -> u64 {
    let (a, b) = pair();
    let blocks = Blocks::new();
    let offer = Offer::default();
    let stop = AtomicBool::new(false);
    let cut_short = std::thread::scope(|scope| {
        let peers: Vec<_> = (0..PEERS)
            .map(|peer| {
                let (side, target) = (beside(&a), beside(&b));
                let rng = Rng::new(seed ^ (peer as u64 + 1));
                let (offer, stop) = (&offer, &stop);
                scope.spawn(move || be_peer(&side, &target, offer, stop, rng))
            })
            .collect();
        let trouble = scope.spawn(|| {
            let mut rng = Rng::new(!seed);
            while !stop.load(Ordering::Acquire) {
                let block = offer.block.load(Ordering::Acquire) as usize;
                blocks.trouble(&mut rng, block);
                for _ in 0..rng.index(2000) {
                    std::hint::spin_loop();
                }
            }
        });
        let ended = Stop(&stop);
        own(&b, &blocks, &offer, &mut Rng::new(seed.rotate_left(32)));
        drop(ended);
        trouble.join().expect("trouble");
        let seen = peers.into_iter().map(|peer| peer.join().expect("peer"));
        let seen = seen.fold(Seen::default(), |sum, one| Seen {
            good: sum.good + one.good,
            refused: sum.refused + one.refused,
            unmapped: sum.unmapped + one.unmapped,
        });
        assert!(seen.good > 0, "nothing was done");
        seen.refused + seen.unmapped
    });
    for block in 0..COUNT {
        let bytes = blocks.pages.bytes(block * STRIDE, STRIDE);
        let (inside, behind) = bytes.split_at(BLOCK);
        assert!(
            behind.iter().all(|byte| *byte == BETWEEN),
            "behind block {block}"
        );
        assert!(inside.iter().all(|byte| *byte == MARK), "in block {block}");
    }
    assert!(blocks.pages.canaries_live());
    // Nobody is left in the middle of anything.
    assert_eq!(b.context.region_count(), 0);
    cut_short
}

/// Ends the other threads when dropped, also by a panic.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// The same domain, with a completion queue of its own.
fn beside(side: &Side) -> Side {
    Side {
        context: Arc::clone(&side.context),
        pd: side.pd.clone(),
        cq: Arc::new(Cq::new(&side.context, 1024, None, 0).expect("cq")),
        gid: side.gid,
    }
}

/// Posts bursts to whatever is offered, on a new connection whenever one has failed.
fn be_peer(side: &Side, target: &Side, offer: &Offer, stop: &AtomicBool, mut rng: Rng) -> Seen {
    let memory = side
        .pd
        .allocate(LONGEST, Access::LOCAL_WRITE)
        .expect("region");
    memory.copy_in(0, &[WRITTEN; LONGEST]).expect("inside");
    let results = side
        .pd
        .allocate(LONGEST, Access::LOCAL_WRITE)
        .expect("region");
    let mut seen = Seen::default();
    while !stop.load(Ordering::Acquire) {
        let (qp, _its_peer) = linked(side, target);
        let mut alive = true;
        let (mut offered, mut is_refused) = (0, false);
        while alive && !stop.load(Ordering::Acquire) {
            offered = offer.rkey.load(Ordering::Acquire);
            for i in 0..BURST {
                let len = 1 + rng.index(LONGEST);
                let offset = rng.index(BLOCK - len) as u64;
                let at = |offset| RemoteAddress {
                    addr: offer.addr.load(Ordering::Acquire) + offset,
                    rkey: RKey(offer.rkey.load(Ordering::Acquire) as u32),
                };
                let (op, region, len) = match rng.index(4) {
                    0 => (SendOp::Read(at(offset)), &results, len),
                    1 => {
                        let remote = at(offset / 8 * 8);
                        (SendOp::FetchAdd { remote, add: 1 }, &results, 8)
                    }
                    _ => (SendOp::Write(at(offset)), &memory, len),
                };
                post(&qp, i as u64, op, Some((region, 0, len as u32)));
            }
            for cqe in side.collect_any(BURST) {
                match cqe.completion.status {
                    WcStatus::SUCCESS => {
                        seen.good += 1;
                        offer.done.fetch_add(1, Ordering::AcqRel);
                    }
                    WcStatus::REM_ACCESS_ERR => {
                        seen.refused += 1;
                        is_refused = true;
                    }
                    WcStatus::REM_OP_ERR => seen.unmapped += 1,
                    WcStatus::WR_FLUSH_ERR => {}
                    other => panic!("{other}"),
                }
                alive &= cqe.completion.status.is_success();
            }
        }
        // The same key would be refused again.
        while is_refused
            && offer.rkey.load(Ordering::Acquire) == offered
            && !stop.load(Ordering::Acquire)
        {
            std::thread::yield_now();
        }
    }
    seen
}

fn bind_whole(binders: &Side, region: &Region) -> Window {
    let window = Window::new(&binders.pd, WindowType::One).expect("window");
    bind(binders, &window, region, region.len());
    window
}

/// Binding moves no packet: both ends of the connection may be here.
fn bind(binders: &Side, window: &Window, region: &Region, len: u64) {
    let (binder, _its_peer) = linked(binders, binders);
    let bind = WindowBind {
        wr_id: 1,
        signaled: true,
        region: region.lkey(),
        addr: region.iova(),
        len,
        access: REMOTE - Access::LOCAL_WRITE,
    };
    binder.bind_window(window, &bind).expect("post");
    binders.collect(1);
}

/// Offers one block after the other, and takes each away in one of the ways there are.
fn own(b: &Side, blocks: &Blocks, offer: &Offer, rng: &mut Rng) {
    let binders = beside(b);
    let on_demand = REMOTE | Access::MW_BIND | Access::ON_DEMAND;
    let mut block = 0;
    while block < COUNT {
        let register = |block: usize| {
            let at = block * STRIDE;
            blocks.pages.register_part(&binders, at, BLOCK, on_demand)
        };
        let mut region = register(block).expect("register");
        let say = |addr: u64, rkey: RKey, block: usize| {
            offer.block.store(block as u64, Ordering::Release);
            offer.addr.store(addr, Ordering::Release);
            offer.rkey.store(rkey.0.into(), Ordering::Release);
        };
        let pause = |rng: &mut Rng| {
            let until = offer.done.load(Ordering::Acquire) + rng.below(8 * BURST as u64);
            // Peers may have no luck with their pages: not for ever.
            for _ in 0..2_000 {
                if offer.done.load(Ordering::Acquire) >= until {
                    break;
                }
                std::thread::yield_now();
            }
        };
        let by_window = rng.chance(0.5);
        let window = by_window.then(|| bind_whole(&binders, &region));
        let rkey = window.as_ref().map_or(region.rkey(), Window::rkey);
        say(region.iova(), rkey, block);
        if block == 0 {
            let done = || offer.done.load(Ordering::Acquire) > 0;
            eventually("an operation that succeeds", done);
        }
        pause(rng);
        match (window, rng.index(3)) {
            (Some(window), 0) => {
                window.deallocate();
                region.deregister().expect("no windows");
            }
            (Some(window), _) => {
                let (region_again, error) = region.deregister().unwrap_err();
                assert_eq!(
                    error.to_string(),
                    "1 memory windows are bound to the region"
                );
                bind(&binders, &window, &region_again, 0);
                region_again.deregister().expect("no windows");
            }
            (None, 0) if block + 1 < COUNT => {
                // To the next block, which is then taken away as well.
                let translation = Some(Translation {
                    addr: blocks.pages.addr() + ((block + 1) * STRIDE) as u64,
                    len: BLOCK,
                    iova: Some(region.iova()),
                });
                let changes = Reregistration {
                    translation,
                    ..Reregistration::default()
                };
                // SAFETY: no references are made to the pages.
                unsafe { region.reregister(&changes) }.expect("reregister");
                blocks.mark(block);
                block += 1;
                say(region.iova(), region.rkey(), block);
                pause(rng);
                region.deregister().expect("no windows");
            }
            (None, 1) => {
                let changes = Reregistration {
                    access: Some(Access::LOCAL_WRITE | Access::ON_DEMAND),
                    ..Reregistration::default()
                };
                // SAFETY: as above.
                unsafe { region.reregister(&changes) }.expect("reregister");
                blocks.mark(block);
                pause(rng);
            }
            (None, _) => region.deregister().expect("no windows"),
        }
        blocks.mark(block);
        block += 1;
    }
}
