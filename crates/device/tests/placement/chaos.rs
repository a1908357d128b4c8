//! One peer writes, reads and adds at full speed; at a random moment its right is taken away, in each of the ways there are.
//! What it then finds, and what is in memory, is compared with a model.

use oarlock_device::{Access, Qp, QpInit, Region, Reregistration, Window, WindowBind, WindowType};
use oarlock_sim::Rng;
use oarlock_transport::{
    AttrMask, BindWindow, Counter, QpAttr, QpState, RecvWr, RemoteAddress, SendData, SendOp,
    SendWr, WcStatus,
};
use oarlock_wire::{AddressVector, IbTimeout, Mtu, PKey, Psn, RKey, RetryCount};
use rustix::mm::ProtFlags;

use crate::pages::{CANARY, PAGE, Pages};
use crate::support::{Side, pair, recv, whole};

pub(crate) const REMOTE: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC);

/// Two connected queue pairs whose peers may do everything. A second, eight times: a machine that is busy is not taken for
/// dead.
pub(crate) fn linked(a: &Side, b: &Side) -> (Qp, Qp) {
    linked_waiting(a, b, 18)
}

/// As [`linked`], of these kinds.
pub(crate) fn linked_as(a: &Side, b: &Side, of_a: QpInit, of_b: QpInit) -> (Qp, Qp) {
    let (qa, qb) = (a.qp(of_a), b.qp(of_b));
    link((a, &qa), (b, &qb), 18);
    (qa, qb)
}

/// As [`linked`], with this local ACK timeout.
fn linked_waiting(a: &Side, b: &Side, timeout: u8) -> (Qp, Qp) {
    let init = || QpInit {
        max_send_wr: 128,
        ..QpInit::default()
    };
    let (qa, qb) = (a.qp(init()), b.qp(init()));
    link((a, &qa), (b, &qb), timeout);
    (qa, qb)
}

fn link((a, qa): (&Side, &Qp), (b, qb): (&Side, &Qp), timeout: u8) {
    for (side, qp, peer_side, peer) in [(a, qa, b, qb), (b, qb, a, qa)] {
        let whole = QpAttr {
            pkey: PKey::DEFAULT,
            port_num: 1,
            access: REMOTE,
            av: AddressVector::new(side.gid, peer_side.gid),
            path_mtu: Mtu::MTU_1024,
            dest_qpn: peer.qpn(),
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
            rq_psn: Psn::truncate(peer.qpn().get()),
            sq_psn: Psn::truncate(qp.qpn().get()),
            min_rnr_timer: 1,
            timeout: IbTimeout::truncate(timeout),
            retry_count: RetryCount::truncate(7),
            rnr_retry: RetryCount::truncate(7),
            ..QpAttr::default()
        };
        use AttrMask as M;
        let init = M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS;
        let rtr = M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN;
        let rtr = rtr | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
        let rts = M::SQ_PSN | M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC;
        for (state, mask) in [
            (QpState::Init, init),
            (QpState::Rtr, rtr),
            (QpState::Rts, rts),
        ] {
            let mask = mask | M::STATE;
            qp.modify(&QpAttr {
                mask,
                state,
                ..whole
            })
            .expect("modify");
        }
    }
}

pub(crate) fn post(qp: &Qp, wr_id: u64, op: SendOp, region: Option<(&Region, u64, u32)>) {
    post_fenced(qp, wr_id, op, region, false);
}

fn post_fenced(qp: &Qp, wr_id: u64, op: SendOp, region: Option<(&Region, u64, u32)>, fence: bool) {
    let sge = region.map(|(region, offset, len)| region.sge(offset, len));
    qp.post_send(&SendWr {
        wr_id,
        op,
        data: SendData::Sges(sge.as_slice()),
        fence,
        ..SendWr::default()
    })
    .expect("post_send");
}

/// By what the peer reaches the memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Region,
    One,
    Two,
}

/// How it loses the right.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    /// Not at all.
    Never,
    Deregister,
    OtherMemory,
    OtherRights,
    /// The pages are gone; the right stays.
    Unmap,
    LocalInvalidate,
    /// By a SEND of the peer itself.
    RemoteInvalidate,
    Unbind,
    BindElsewhere,
    Deallocate,
    /// The target's queue pair goes to Reset, which frees its windows. The region stays.
    Reset,
}

const ENDS: [(Way, &[End]); 3] = [
    (
        Way::Region,
        &[
            End::Never,
            End::Deregister,
            End::OtherMemory,
            End::OtherRights,
            End::Unmap,
        ],
    ),
    (
        Way::One,
        &[
            End::Never,
            End::Unbind,
            End::BindElsewhere,
            End::Deallocate,
            End::Unmap,
        ],
    ),
    (
        Way::Two,
        &[
            End::Never,
            End::LocalInvalidate,
            End::RemoteInvalidate,
            End::Deallocate,
            End::Unmap,
            End::Reset,
        ],
    ),
];

/// One operation of the peer; `offset` counts from the start of what it may touch.
#[derive(Clone, Copy, Debug)]
enum Step {
    Write {
        offset: usize,
        len: usize,
    },
    Read {
        offset: usize,
        len: usize,
    },
    Add {
        offset: usize,
    },
    /// Leaves the memory by its last byte.
    TooFar {
        offset: usize,
        len: usize,
    },
    Invalidate,
}

const STEPS: usize = 40;
const START: u8 = 0x11;
const MARK: u8 = 0x55;
const SLOT: usize = 3 * PAGE;

/// What write `i` writes.
fn value(i: usize) -> u8 {
    0x60 + (i % 0x20) as u8
}

/// What a byte can be that the peer may see: at the start or written, and added to by each step at most once.
fn is_possible(byte: u8) -> bool {
    let up_to = |lowest: u8, highest: u8| (lowest..=highest + STEPS as u8).contains(&byte);
    up_to(START, START) || up_to(value(0), value(0x1f))
}

#[derive(Default)]
struct Tally {
    good: usize,
    cut_short: usize,
    too_far: usize,
}

/// The contract of the design, section 4 "Placement", for each way to lose a right.
#[test]
fn what_is_taken_away_is_gone_when_the_call_returns() {
    let (a, b) = pair();
    let mut tally = Tally::default();
    let mut rounds = 0;
    oarlock_sim::for_each_seed(6, |seed| {
        let mut rng = Rng::new(seed);
        for (way, ends) in ENDS {
            for end in ends {
                round(&a, &b, &mut rng, way, *end, &mut tally);
                rounds += 1;
            }
        }
    });
    assert!(tally.good > rounds, "{} operations succeeded", tally.good);
    assert!(tally.cut_short > 0, "no operation met a dead key");
    assert!(tally.too_far > 0, "no operation left its memory");
}

fn round(a: &Side, b: &Side, rng: &mut Rng, way: Way, end: End, tally: &mut Tally) {
    let pages = Pages::new(4);
    pages.fill(0, pages.len, CANARY);
    let (start, len) = (8 * rng.index(50), PAGE + 8 * rng.index(1000));
    pages.fill(start, len, START);
    let access = if way == Way::Region {
        REMOTE
    } else {
        Access::LOCAL_WRITE | Access::MW_BIND
    };
    let region = pages
        .register_part(b, start, len, access)
        .expect("register");
    // A peer that is reset is silent: 8 times 16 ms.
    let (qa, qb) = linked_waiting(a, b, if end == End::Reset { 12 } else { 18 });
    let window = match way {
        Way::Region => None,
        Way::One => Some(Window::new(&b.pd, WindowType::One).expect("window")),
        Way::Two => Some(Window::new(&b.pd, WindowType::Two).expect("window")),
    };
    // A window leaves out some bytes at both ends, which are the program's then.
    let (first, size) = if way == Way::Region {
        (0, len)
    } else {
        (8 * rng.index(20), len - 8 * (20 + rng.index(20)))
    };
    let rkey = match &window {
        None => region.rkey(),
        Some(window) => bind(b, &qb, window, &region, (first, size)),
    };
    let steps = steps(rng, end, size);
    // A write of some packets counts as often.
    let when = rng.below(2 * STEPS as u64);
    let spins = rng.index(3000);
    let slots =
        a.pd.allocate(STEPS * SLOT, Access::LOCAL_WRITE)
            .expect("region");
    let target = RemoteAddress {
        addr: region.iova() + first as u64,
        rkey,
    };
    let buffer = b.pd.allocate(8, Access::LOCAL_WRITE).expect("region");
    if end == End::RemoteInvalidate {
        recv(&qb, 99, &[whole(&buffer)]);
    }

    // A READ may be overtaken by a later WRITE or atomic, unless that is fenced (IBA Vol. 1 ch. 10 "Work request operation
    // ordering").
    let fence = rng.chance(0.5);
    let (statuses, kept) = std::thread::scope(|scope| {
        let peer = scope.spawn(|| run_steps(a, &qa, &slots, (target, fence), &steps));
        // A moment between the first packet and the last.
        let executed = || qb.counters().get(Counter::RequestsReceived);
        while executed() < when && !peer.is_finished() {
            std::thread::yield_now();
        }
        for _ in 0..spins {
            std::hint::spin_loop();
        }
        let kept = take_away(b, &qb, &pages, (start, len), region, window, end);
        (peer.join().expect("the peer"), kept)
    });

    let name = format!("{way:?} {end:?} of {size} bytes at {first} of {start}");
    let done = check_statuses(&statuses, &steps, end, &name, tally);
    let mut model = vec![START; size];
    let reads = apply(&mut model, &steps[..done]);
    for (i, expected) in reads {
        let mut seen = vec![0; expected.len()];
        slots
            .copy_out((i * SLOT) as u64, &mut seen)
            .expect("inside");
        if fence || !matches!(steps[i], Step::Read { .. }) {
            assert!(
                seen == expected,
                "{name}: operation {i} read something else"
            );
        }
        let possible = seen.iter().all(|byte| is_possible(*byte));
        assert!(possible, "{name}: operation {i} read what it may not see");
    }
    assert!(pages.canaries_live(), "{name}: a page beside");
    let outside = |from: usize, to: usize| {
        let bytes = pages.bytes(from, to - from);
        bytes.iter().all(|byte| *byte == CANARY)
    };
    if end == End::Unmap {
        // The pages are others now.
        pages.replace(0, pages.len, ProtFlags::READ);
    } else {
        assert!(outside(0, start), "{name}: before the region");
        assert!(outside(start + len, pages.len), "{name}: behind the region");
        let inside = pages.bytes(start, len);
        match end {
            End::Never => {
                assert!(inside[first..first + size] == model, "{name}: content");
                let around = inside[..first].iter().chain(&inside[first + size..]);
                assert!(around.copied().all(|byte| byte == START), "{name}: around");
            }
            _ => assert!(
                inside.iter().all(|byte| *byte == MARK),
                "{name}: something was placed afterwards"
            ),
        }
    }
    drop(kept);
}

fn bind(b: &Side, qb: &Qp, window: &Window, region: &Region, part: (usize, usize)) -> RKey {
    let (addr, len) = (region.iova() + part.0 as u64, part.1 as u64);
    let access = REMOTE - Access::LOCAL_WRITE;
    let rkey = match window.window_type() {
        WindowType::One => {
            let bind = WindowBind {
                wr_id: 1,
                signaled: true,
                region: region.lkey(),
                addr,
                len,
                access,
            };
            qb.bind_window(window, &bind).expect("post")
        }
        WindowType::Two => {
            let rkey = RKey(window.rkey().0 ^ 0x7f);
            let bind = BindWindow {
                window: window.rkey(),
                rkey,
                region: region.lkey(),
                addr,
                len,
                access,
            };
            post(qb, 1, SendOp::BindWindow(bind), None);
            rkey
        }
    };
    b.collect(1);
    assert_eq!(window.rkey(), rkey);
    rkey
}

fn steps(rng: &mut Rng, end: End, size: usize) -> Vec<Step> {
    let invalidate_at = (end == End::RemoteInvalidate).then(|| rng.index(STEPS - 1));
    (0..STEPS)
        .map(|i| {
            if invalidate_at == Some(i) {
                return Step::Invalidate;
            }
            let len = 1 + rng.index(SLOT.min(size));
            let offset = rng.index(size - len + 1);
            match rng.index(100) {
                0 => Step::TooFar {
                    offset: size - len + 1,
                    len,
                },
                1..50 => Step::Write { offset, len },
                50..80 => Step::Read { offset, len },
                _ => Step::Add {
                    offset: 8 * rng.index(size / 8),
                },
            }
        })
        .collect()
}

/// Posts all, and gives the status of each.
fn run_steps(
    a: &Side,
    qa: &Qp,
    slots: &Region,
    (target, fence): (RemoteAddress, bool),
    steps: &[Step],
) -> Vec<WcStatus> {
    for (i, step) in steps.iter().enumerate() {
        let at = |offset: usize| RemoteAddress {
            addr: target.addr + offset as u64,
            ..target
        };
        let slot = (i * SLOT) as u64;
        let (op, data) = match *step {
            Step::Write { offset, len } | Step::TooFar { offset, len } => {
                (SendOp::Write(at(offset)), Some(len))
            }
            Step::Read { offset, len } => (SendOp::Read(at(offset)), Some(len)),
            Step::Add { offset } => (
                SendOp::FetchAdd {
                    remote: at(offset),
                    add: ADD,
                },
                Some(8),
            ),
            Step::Invalidate => (SendOp::SendWithInvalidate(target.rkey), None),
        };
        if let (Step::Write { len, .. }, Some(_)) = (step, data) {
            slots.copy_in(slot, &vec![value(i); *len]).expect("inside");
        }
        let data = data.map(|len| (slots, slot, len as u32));
        let fence = fence && !matches!(step, Step::Read { .. });
        post_fenced(qa, i as u64, op, data, fence);
    }
    let all = a.collect_any(steps.len());
    for (i, cqe) in all.iter().enumerate() {
        assert_eq!(cqe.completion.wr_id, i as u64, "in order");
    }
    all.iter().map(|cqe| cqe.completion.status).collect()
}

/// What each add adds: every byte changes.
const ADD: u64 = 0x0101_0101_0101_0101;

/// Takes the right away, then writes a mark wherever the peer had a right. What must live on is given back.
fn take_away(
    b: &Side,
    qb: &Qp,
    pages: &Pages,
    (start, len): (usize, usize),
    mut region: Region,
    window: Option<Window>,
    end: End,
) -> Option<(Region, Option<Window>)> {
    let anew = |region: &mut Region, changes: &Reregistration<'_>| {
        // SAFETY: no references are made to the pages.
        unsafe { region.reregister(changes) }.expect("reregister");
    };
    match end {
        End::Never => return Some((region, window)),
        End::Unmap => {
            pages.replace(0, pages.len, ProtFlags::empty());
            return Some((region, window));
        }
        End::Deregister => {
            region.deregister().expect("no windows");
            pages.fill(start, len, MARK);
            return None;
        }
        End::OtherMemory => {
            let other = Pages::new(4);
            let iova = Some(region.iova());
            anew(
                &mut region,
                &Reregistration {
                    translation: Some(oarlock_device::Translation {
                        addr: other.addr(),
                        len: other.len,
                        iova,
                    }),
                    ..Reregistration::default()
                },
            );
            pages.fill(start, len, MARK);
            // The old key does not reach the new memory either, while there is any.
            std::thread::yield_now();
            assert!(other.bytes(0, other.len).iter().all(|byte| *byte == 0));
            region.deregister().expect("no windows");
            return None;
        }
        End::OtherRights => {
            let access = Some(Access::LOCAL_WRITE);
            anew(
                &mut region,
                &Reregistration {
                    access,
                    ..Reregistration::default()
                },
            );
        }
        End::LocalInvalidate => {
            let rkey = window.as_ref().expect("a window").rkey();
            post(qb, 2, SendOp::LocalInvalidate(rkey), None);
            // The peer may have failed the queue pair before, by an address too far.
            let ended = b.collect_any(1).remove(0).completion.status;
            if !ended.is_success() {
                assert_eq!(ended, WcStatus::WR_FLUSH_ERR);
                return flushed(pages, (start, len), region, window);
            }
        }
        End::RemoteInvalidate => {
            let received = b.collect_any(1).remove(0).completion;
            if !received.status.is_success() {
                assert_eq!(received.status, WcStatus::WR_FLUSH_ERR);
                return flushed(pages, (start, len), region, window);
            }
            assert_eq!(received.invalidated, window.as_ref().map(Window::rkey));
        }
        End::Unbind | End::BindElsewhere => {
            let window = window.as_ref().expect("a window");
            let elsewhere = b.pd.allocate(8, Access::MW_BIND).expect("region");
            // On a queue pair of its own, as that of the peer may be failing. Bindings move no packet.
            let (binder, _peer) = linked(b, b);
            let bind = WindowBind {
                wr_id: 3,
                signaled: true,
                region: elsewhere.lkey(),
                addr: elsewhere.iova(),
                len: if end == End::Unbind { 0 } else { 8 },
                access: Access::REMOTE_READ,
            };
            binder.bind_window(window, &bind).expect("post");
            b.collect(1);
            pages.fill(start, len, MARK);
        }
        End::Deallocate => {
            window.expect("a window").deallocate();
            pages.fill(start, len, MARK);
            region.deregister().expect("no window any more");
            return None;
        }
        End::Reset => {
            qb.modify(&QpAttr::to_state(QpState::Reset)).expect("reset");
            assert_eq!(window.as_ref().expect("a window").bound(), None);
            pages.fill(start, len, MARK);
            return Some((region, window));
        }
    }
    pages.fill(start, len, MARK);
    Some((region, window))
}

/// The queue pair failed before it could invalidate: the window goes with its handle.
fn flushed(
    pages: &Pages,
    (start, len): (usize, usize),
    region: Region,
    window: Option<Window>,
) -> Option<(Region, Option<Window>)> {
    window.expect("a window").deallocate();
    pages.fill(start, len, MARK);
    Some((region, None))
}

/// Successes, at most one failure for a reason that fits, then flushes. Gives the number of successes.
fn check_statuses(
    statuses: &[WcStatus],
    steps: &[Step],
    end: End,
    name: &str,
    tally: &mut Tally,
) -> usize {
    let done = statuses
        .iter()
        .take_while(|status| status.is_success())
        .count();
    tally.good += done;
    let Some(first) = statuses.get(done) else {
        return done;
    };
    let too_far = matches!(steps[done], Step::TooFar { .. });
    match (*first, end) {
        (WcStatus::REM_ACCESS_ERR, _) if too_far => tally.too_far += 1,
        (WcStatus::REM_OP_ERR, End::Unmap) | (WcStatus::RETRY_EXC_ERR, End::Reset) => {
            tally.cut_short += 1
        }
        (WcStatus::REM_ACCESS_ERR, End::Never | End::Unmap) => {
            panic!("{name}: operation {done} ({:?}) was refused", steps[done])
        }
        (WcStatus::REM_ACCESS_ERR, _) => tally.cut_short += 1,
        (other, _) => panic!("{name}: operation {done} ({:?}): {other}", steps[done]),
    }
    for status in &statuses[done + 1..] {
        assert_eq!(*status, WcStatus::WR_FLUSH_ERR, "{name}");
    }
    done
}

/// Applies the steps to the model and gives what each read (and add) has read.
fn apply(model: &mut [u8], steps: &[Step]) -> Vec<(usize, Vec<u8>)> {
    let mut reads = Vec::new();
    for (i, step) in steps.iter().enumerate() {
        match *step {
            Step::Write { offset, len } => model[offset..offset + len].fill(value(i)),
            Step::Read { offset, len } => reads.push((i, model[offset..offset + len].to_vec())),
            Step::Add { offset } => {
                let word = &mut model[offset..offset + 8];
                reads.push((i, word.to_vec()));
                let before = u64::from_ne_bytes(word.try_into().expect("8 bytes"));
                word.copy_from_slice(&before.wrapping_add(ADD).to_ne_bytes());
            }
            Step::TooFar { .. } => panic!("operation {i} cannot succeed"),
            Step::Invalidate => {}
        }
    }
    reads
}

/// A message too long for its memory is refused by its first packet, before any byte is placed.
#[test]
fn a_write_that_does_not_fit_places_nothing() {
    let (a, b) = pair();
    for (offset, len) in [(0, 2 * PAGE + 1), (PAGE, 5000), (2 * PAGE - 1, 2)] {
        let pages = Pages::new(2);
        let region = pages.register(&b, REMOTE).expect("register");
        let source = a.pd.allocate(len, Access::empty()).expect("region");
        source.copy_in(0, &vec![1; len]).expect("inside");
        let (qa, _qb) = linked(&a, &b);
        let remote = RemoteAddress {
            addr: region.iova() + offset as u64,
            rkey: region.rkey(),
        };
        post(
            &qa,
            1,
            SendOp::Write(remote),
            Some((&source, 0, len as u32)),
        );
        let status = a.collect_any(1).remove(0).completion.status;
        assert_eq!(status, WcStatus::REM_ACCESS_ERR);
        let bytes = pages.bytes(0, pages.len);
        assert!(bytes.iter().all(|byte| *byte == 0), "{len} at {offset}");
        assert!(pages.canaries_live());
    }
}

/// A receive is a right too: what is posted may be placed into, and nothing else of the region.
#[test]
fn a_message_stays_in_its_receive() {
    let (a, b) = pair();
    let pages = Pages::new(2);
    pages.fill(0, pages.len, CANARY);
    let region = pages.register(&b, Access::LOCAL_WRITE).expect("register");
    let source = a.pd.allocate(2000, Access::empty()).expect("region");
    for len in [1999, 2000] {
        let (qa, qb) = linked(&a, &b);
        let sges = [region.sge(1000, 999), region.sge(5000, 1000)];
        qb.post_recv(&RecvWr {
            wr_id: 1,
            sges: &sges,
        })
        .expect("post");
        post(&qa, 1, SendOp::Send, Some((&source, 0, len)));
        let sent = a.collect_any(1).remove(0).completion.status;
        assert_eq!(sent.is_success(), len == 1999, "{sent}");
        b.collect_any(1);
    }
    let bytes = pages.bytes(0, pages.len);
    for (at, byte) in bytes.iter().enumerate() {
        let inside = (1000..1999).contains(&at) || (5000..6000).contains(&at);
        assert_eq!(*byte == 0, inside, "byte {at}");
    }
}
