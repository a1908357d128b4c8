//! Memory of the program that is watched: from the moment that it is another's, its keys are nobody's. Packets that come then
//! meet the errors of the specification, and neither change nor show what lies at the address.

use oarlock_device::{
    Access, Error, Qp, QpInit, Region, Reregistration, Srq, SrqInit, Window, WindowType,
};
use oarlock_memwatch::{Event, Region as Watch, Watcher};
use oarlock_transport::{BindWindow, RecvWr, RemoteAddress, SendOp, WcStatus};
use oarlock_wire::RKey;

use crate::arena::{Block, CHANGES, Change, OLD, OTHERS, watcher};
use crate::chaos::{REMOTE, linked, linked_as, post};
use crate::pages::PAGE;
use crate::support::{Side, filled, pair, pattern, recv, whole};

/// Two ends, and memory of `b` that is watched.
struct Bench {
    a: Side,
    b: Side,
    watcher: Watcher,
}

/// Longer than a packet, longer than what goes into a pipe at once, and not whole pages.
const PAGES: usize = 40;
const LEN: usize = PAGES * PAGE - 100;

impl Bench {
    fn new() -> Option<Self> {
        let watcher = watcher()?;
        let (a, b) = pair();
        Some(Self { a, b, watcher })
    }

    fn watched(&self, access: Access) -> (Block, Watch, Region) {
        let block = Block::new(PAGES);
        let watch = block.watch(&self.watcher);
        let region = block.register(&self.b, access, watch.validity());
        (block, watch, region)
    }
}

/// Takes the memory away on another thread, and waits until the call has returned.
fn recycle(block: &Block, change: Change) {
    std::thread::scope(|scope| {
        let recycled = scope.spawn(|| block.recycle(change));
        recycled.join().expect("recycled");
    });
}

/// Makes an operation on memory of the peer.
type Make = fn(RemoteAddress) -> SendOp;

fn at(region: &Region) -> RemoteAddress {
    RemoteAddress {
        addr: region.iova(),
        rkey: region.rkey(),
    }
}

fn ends_with(side: &Side, status: WcStatus) {
    let completion = side.collect_any(1).remove(0).completion;
    assert_eq!(completion.status, status);
}

/// A WRITE, a READ and an atomic of the peer get a remote access error; the region can be deregistered, and its watch says
/// how many events were read.
#[test]
fn a_peer_gets_a_remote_access_error() {
    let Some(bench) = Bench::new() else { return };
    let Bench { a, b, watcher } = &bench;
    let ops: [(Make, usize); 5] = [
        (SendOp::Write, LEN),
        (SendOp::Write, 8),
        (SendOp::Read, LEN),
        (SendOp::Read, 8),
        (|remote| SendOp::FetchAdd { remote, add: 1 }, 8),
    ];
    for change in CHANGES {
        for (op, len) in ops {
            let (block, watch, region) = bench.watched(REMOTE);
            let (qa, _qb) = linked(a, b);
            let local = filled(a, &pattern(3, len));
            let request = || {
                let sge = Some((&local, 0, len as u32));
                post(&qa, 1, op(at(&region)), sge);
            };
            request();
            a.collect(1);
            recycle(&block, change);
            let before = pattern(7, len);
            local.copy_in(0, &before).expect("inside");
            request();
            ends_with(a, WcStatus::REM_ACCESS_ERR);
            assert_eq!(block.foreign_bytes(), 0, "{change:?}");
            let mut after = vec![0; len];
            local.copy_out(0, &mut after).expect("inside");
            assert_eq!(after, before, "{change:?}: nothing was read");
            // Without anybody having asked for it, the event is there.
            let mut events = Vec::new();
            let read = watcher.read_events(&mut events, 8).expect("alive");
            assert_eq!(read, 1, "{events:?}");
            let known =
                matches!(&events[0], Event::Invalidated(event) if event.cookie == watch.cookie());
            assert!(known, "{events:?}");
            region.deregister().expect("no windows");
            assert_eq!(watch.deregister().expect("watched"), 1);
        }
    }
    assert_eq!(b.context.region_count(), 0);
}

/// Whoever has seen the event need not fear that a key still works.
#[test]
fn the_keys_are_dead_before_the_event_is_visible() {
    let Some(bench) = Bench::new() else { return };
    let Bench { a, b, watcher } = &bench;
    let (block, watch, region) = bench.watched(REMOTE);
    let (qa, _qb) = linked(a, b);
    let source = filled(a, &[1; 64]);
    std::thread::scope(|scope| {
        let recycled = scope.spawn(|| block.recycle(Change::Unmap));
        // As a program does that sleeps until there is an event.
        let mut fds = [rustix::event::PollFd::new(
            watcher,
            rustix::event::PollFlags::IN,
        )];
        while rustix::event::poll(&mut fds, None).is_err() {}
        assert!(!watch.is_valid());
        post(&qa, 1, SendOp::Write(at(&region)), Some((&source, 0, 64)));
        ends_with(a, WcStatus::REM_ACCESS_ERR);
        recycled.join().expect("recycled");
    });
    assert_eq!(block.foreign_bytes(), 0);
}

/// Our own requests that name the memory end with a local protection error: what is sent from it, received into it, read
/// into it, and the value that an atomic brings back.
#[test]
fn our_own_requests_get_a_local_protection_error() {
    let Some(bench) = Bench::new() else { return };
    let Bench { a, b, .. } = &bench;
    let theirs = a.pd.allocate(LEN, REMOTE).expect("region");
    for change in CHANGES {
        for kind in 0..5 {
            let (block, _watch, region) = bench.watched(Access::LOCAL_WRITE);
            let (qa, qb) = linked(a, b);
            let landing = filled(a, &[0; LEN]);
            let part = |len: usize| Some((&region, 0, len as u32));
            let request = |wr_id| match kind {
                0 => {
                    recv(&qa, wr_id, &[whole(&landing)]);
                    post(&qb, wr_id, SendOp::Send, part(LEN));
                }
                1 => post(&qb, wr_id, SendOp::Write(at(&theirs)), part(LEN)),
                2 => post(&qb, wr_id, SendOp::Read(at(&theirs)), part(LEN)),
                3 => post(&qb, wr_id, SendOp::Read(at(&theirs)), part(8)),
                _ => {
                    let remote = at(&theirs);
                    post(&qb, wr_id, SendOp::FetchAdd { remote, add: 1 }, part(8));
                }
            };
            request(1);
            b.collect(1);
            if kind == 0 {
                a.collect(1);
            }
            landing.copy_in(0, &[0; LEN]).expect("inside");
            theirs.copy_in(0, &[7; LEN]).expect("inside");
            recycle(&block, change);
            request(2);
            ends_with(b, WcStatus::LOC_PROT_ERR);
            assert_eq!(block.foreign_bytes(), 0, "{change:?}, request {kind}");
            for region in [&landing, &theirs] {
                let mut bytes = vec![0; LEN];
                region.copy_out(0, &mut bytes).expect("inside");
                let shown = bytes.contains(&OTHERS);
                assert!(!shown, "{change:?}, request {kind}");
            }
            region.deregister().expect("no windows");
        }
    }
}

/// A message that finds its receive's memory gone changes nothing; the receiver's completion says why, and the sender hears
/// of an operational error, as for every receive that is wrong (IBA Vol. 1 ch. 9, "Remote operational error").
#[test]
fn a_receive_into_memory_that_is_gone_fails() {
    let Some(bench) = Bench::new() else { return };
    let Bench { a, b, .. } = &bench;
    for change in CHANGES {
        for (shared, len) in [(false, LEN), (false, 8), (true, LEN), (true, 8)] {
            let (block, _watch, region) = bench.watched(Access::LOCAL_WRITE);
            let srq = shared
                .then(|| std::sync::Arc::new(Srq::new(&b.pd, SrqInit::default()).expect("srq")));
            let init = || QpInit {
                srq: srq.clone(),
                ..QpInit::default()
            };
            let (qa, qb) = linked_as(a, b, QpInit::default(), init());
            let receive = |wr_id| {
                let sges = &[region.sge(0, len as u32)];
                match &srq {
                    Some(srq) => srq.post_recv(&RecvWr { wr_id, sges }).expect("post"),
                    None => recv(&qb, wr_id, sges),
                }
            };
            let source = filled(a, &pattern(1, len));
            receive(1);
            receive(2);
            post(&qa, 1, SendOp::Send, Some((&source, 0, len as u32)));
            a.collect(1);
            b.collect(1);
            recycle(&block, change);
            post(&qa, 2, SendOp::Send, Some((&source, 0, len as u32)));
            ends_with(b, WcStatus::LOC_PROT_ERR);
            ends_with(a, WcStatus::REM_OP_ERR);
            assert_eq!(block.foreign_bytes(), 0, "{change:?}, {len} bytes");
        }
    }
}

fn bind(qp: &Qp, window: &Window, region: &Region, rkey: RKey) {
    let bind = BindWindow {
        window: window.rkey(),
        rkey,
        region: region.lkey(),
        addr: region.iova(),
        len: region.len(),
        access: REMOTE - Access::LOCAL_WRITE,
    };
    post(qp, 1, SendOp::BindWindow(bind), None);
}

/// A window ends with the memory that it is bound to, and none is bound to memory that is gone.
#[test]
fn windows_end_with_the_memory() {
    let Some(bench) = Bench::new() else { return };
    let Bench { a, b, .. } = &bench;
    let (block, _watch, region) = bench.watched(Access::LOCAL_WRITE | Access::MW_BIND);
    let (qa, qb) = linked(a, b);
    let window = Window::new(&b.pd, WindowType::Two).expect("window");
    bind(&qb, &window, &region, RKey(window.rkey().0 ^ 1));
    b.collect(1);
    let source = filled(a, &[1; 64]);
    let remote = RemoteAddress {
        addr: region.iova(),
        rkey: window.rkey(),
    };
    let write = || post(&qa, 2, SendOp::Write(remote), Some((&source, 0, 64)));
    write();
    a.collect(1);
    recycle(&block, Change::MapOver);
    write();
    ends_with(a, WcStatus::REM_ACCESS_ERR);
    assert_eq!(block.foreign_bytes(), 0);
    let (_qa, qb) = linked(a, b);
    let other = Window::new(&b.pd, WindowType::Two).expect("window");
    bind(&qb, &other, &region, RKey(other.rkey().0 ^ 1));
    let ended = b.collect_any(1).remove(0).completion;
    assert!(!ended.status.is_success());
    assert!(other.bound().is_none());
    let (region, _) = region.deregister().expect_err("a window is bound");
    window.deallocate();
    region.deregister().expect("no windows");
}

/// A registration that is moved to other memory takes a watch of that memory along, and works again if it was dead. It
/// cannot lose its watch unnoticed.
#[test]
fn reregistering_needs_a_watch_of_the_new_memory() {
    let Some(bench) = Bench::new() else { return };
    let Bench { a, b, watcher } = &bench;
    let (block, _watch, mut region) = bench.watched(REMOTE);
    let source = filled(a, &[1; 64]);
    let write = |region: &Region| {
        let (qa, _qb) = linked(a, b);
        post(&qa, 1, SendOp::Write(at(region)), Some((&source, 0, 64)));
        a.collect_any(1).remove(0).completion.status
    };
    let other = Block::new(PAGES);
    let refused = other.reregister(&mut region, None);
    assert!(matches!(refused, Err(Error::Watched)), "{refused:?}");
    let rights = Reregistration {
        access: Some(REMOTE - Access::REMOTE_ATOMIC),
        ..Reregistration::default()
    };
    // SAFETY: the block is reached by copies only.
    unsafe { region.reregister(&rights) }.expect("rights");
    assert_eq!(write(&region), WcStatus::SUCCESS);
    recycle(&block, Change::Unmap);
    assert_eq!(write(&region), WcStatus::REM_ACCESS_ERR, "the watch stays");
    // SAFETY: the block is reached by copies only.
    let refused = unsafe { region.reregister(&rights) };
    assert!(
        matches!(refused, Err(Error::Invalidated { .. })),
        "{refused:?}"
    );

    let watch = other.watch(watcher);
    other
        .reregister(&mut region, Some(watch.validity()))
        .expect("other memory");
    assert_eq!(write(&region), WcStatus::SUCCESS);
    recycle(&other, Change::Unmap);
    assert_eq!(write(&region), WcStatus::REM_ACCESS_ERR);
    assert_eq!((block.foreign_bytes(), other.foreign_bytes()), (0, 0));
    let mut own = b.pd.allocate(64, REMOTE).expect("region");
    let refused = other.reregister(&mut own, Some(watch.validity()));
    assert!(
        matches!(refused, Err(Error::Invalidated { .. })),
        "{refused:?}"
    );
}

/// Regions beside it, of the same memory or of other memory, are not concerned.
#[test]
fn other_regions_go_on_working() {
    let Some(bench) = Bench::new() else { return };
    let Bench { a, b, .. } = &bench;
    let (block, _watch, region) = bench.watched(REMOTE);
    let (kept, watch_of_kept, other) = bench.watched(REMOTE);
    let unwatched = block.register_unwatched(b, REMOTE);
    let own = b.pd.allocate(64, REMOTE).expect("region");
    recycle(&block, Change::Unmap);
    let (qa, _qb) = linked(a, b);
    let source = filled(a, &[OLD; 64]);
    for (wr_id, region) in [(1, &other), (2, &unwatched), (3, &own)] {
        post(
            &qa,
            wr_id,
            SendOp::Write(at(region)),
            Some((&source, 0, 64)),
        );
        a.collect(1);
    }
    assert_eq!(block.foreign_bytes(), 64, "as it was asked for");
    assert!(watch_of_kept.is_valid());
    assert_eq!(kept.foreign_bytes(), kept.len, "still the old memory");
    drop(region);
}
