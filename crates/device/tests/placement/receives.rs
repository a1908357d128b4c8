//! What receives are placed into and sends are fetched from: memory that vanishes, regions that are deregistered.

use std::sync::atomic::{AtomicBool, Ordering};

use oarlock_device::{Access, Cqe, Error};
use oarlock_transport::{QpAttr, QpState, RemoteAddress, SendOp, WcStatus};
use rustix::mm::{MprotectFlags, ProtFlags};

use crate::chaos::{REMOTE, linked, post};
use crate::pages::{PAGE, Pages};
use crate::support::{
    connected, connected_impatient, content, filled, pair, pattern, recv, send, whole,
};

#[test]
fn registered_memory_of_the_program_is_sent_from_and_received_into() {
    let (a, b) = pair();
    let (qa, qb) = connected(&a, &b);
    let target = Pages::new(4);
    let region = target.register(&b, Access::LOCAL_WRITE).expect("register");
    let bytes = pattern(1, 3 * PAGE + 5);
    let source = filled(&a, &bytes);
    recv(&qb, 1, &[whole(&region)]);
    send(&qa, 1, &[whole(&source)]);
    assert_eq!(b.collect(1)[0].completion.byte_len as usize, bytes.len());
    a.collect(1);
    assert_eq!(target.bytes(0, bytes.len()), bytes);

    let back =
        a.pd.allocate(bytes.len(), Access::LOCAL_WRITE)
            .expect("region");
    recv(&qa, 2, &[whole(&back)]);
    send(&qb, 2, &[region.sge(0, bytes.len() as u32)]);
    a.collect(1);
    assert_eq!(content(&back), bytes);
}

#[test]
fn registration_probes_the_range() {
    let (a, _b) = pair();
    let pages = Pages::new(3);
    let (addr, len) = (pages.addr(), pages.len);
    pages.replace(2 * PAGE, PAGE, ProtFlags::empty());
    for access in [Access::empty(), Access::LOCAL_WRITE] {
        // SAFETY: refused; and the pages are not referred to.
        let refused = unsafe { a.pd.register(addr, len, access) }.unwrap_err();
        assert!(matches!(refused, Error::NotMapped { .. }), "{refused}");
    }
    pages.replace(0, pages.len, ProtFlags::READ);
    let refused = pages.register(&a, Access::LOCAL_WRITE).unwrap_err();
    assert!(matches!(refused, Error::NotMapped { .. }), "{refused}");
    pages
        .register(&a, Access::empty())
        .expect("readable is enough to send from");
    pages.replace(0, pages.len, ProtFlags::empty());
    assert!(pages.register(&a, Access::empty()).is_err());
    // SAFETY: refused before anything is touched. Nothing is ever mapped at the first pages (vm.mmap_min_addr).
    let (hole, none, around) = unsafe {
        (
            a.pd.register(PAGE as u64, PAGE, Access::empty()),
            a.pd.register(addr, 0, Access::empty()),
            a.pd.register(u64::MAX - 5, 10, Access::empty()),
        )
    };
    assert!(matches!(hole, Err(Error::NotMapped { .. })));
    assert!(matches!(none, Err(Error::ZeroLength)));
    assert!(matches!(around, Err(Error::RangeOverflow { .. })));
    assert_eq!(a.context.region_count(), 0);
}

#[test]
fn memory_unmapped_in_the_middle_of_a_message_is_an_error_and_no_signal() {
    let (a, b) = pair();
    let (qa, qb) = connected(&a, &b);
    let target = Pages::new(4);
    let region = target.register(&b, Access::LOCAL_WRITE).expect("register");
    recv(&qb, 1, &[whole(&region)]);
    target.replace(2 * PAGE, 2 * PAGE, ProtFlags::empty());
    let source = filled(&a, &pattern(2, 4 * PAGE));
    send(&qa, 1, &[whole(&source)]);
    assert_eq!(
        b.collect_any(1)[0].completion.status,
        WcStatus::LOC_PROT_ERR
    );
    assert_eq!(a.collect_any(1)[0].completion.status, WcStatus::REM_OP_ERR);
    assert_eq!(b.counter("scatter_failed"), 1);
    assert_eq!(qb.state(), QpState::Error);
}

/// Their packets come and are placed in bursts: what is before the hole is there, and what is behind it is not.
#[test]
fn of_messages_that_arrive_together_the_one_that_meets_a_hole_fails() {
    let (a, b) = pair();
    let (qa, qb) = linked(&a, &b);
    let target = Pages::new(12);
    let region = target.register(&b, REMOTE).expect("register");
    target.replace(6 * PAGE, PAGE, ProtFlags::empty());
    let bytes = pattern(4, 12 * PAGE);
    let source = filled(&a, &bytes);
    for message in 0..3_u64 {
        let (offset, len) = (message * 4 * PAGE as u64, 4 * PAGE as u32);
        let to = RemoteAddress {
            addr: region.iova() + offset,
            rkey: region.rkey(),
        };
        post(
            &qa,
            message,
            SendOp::Write(to),
            Some((&source, offset, len)),
        );
    }
    let ends: Vec<_> = a
        .collect_any(3)
        .iter()
        .map(|cqe| (cqe.completion.wr_id, cqe.completion.status))
        .collect();
    let expected = [
        (0, WcStatus::SUCCESS),
        (1, WcStatus::REM_OP_ERR),
        (2, WcStatus::WR_FLUSH_ERR),
    ];
    assert_eq!(ends, expected);
    assert_eq!(b.counter("scatter_failed"), 1);
    assert_eq!(qb.state(), QpState::Error);
    assert!(target.bytes(0, 6 * PAGE) == bytes[..6 * PAGE]);
    assert!(target.bytes(8 * PAGE, 4 * PAGE) == vec![0; 4 * PAGE]);
}

/// What is before the hole is sent, and the peer gets the message before it whole.
#[test]
fn of_messages_that_leave_together_the_one_that_meets_a_hole_fails() {
    let (a, b) = pair();
    let (qa, _qb) = linked(&a, &b);
    let source = Pages::new(12);
    let region = source.register(&a, Access::LOCAL_WRITE).expect("register");
    let bytes = pattern(5, 4 * PAGE);
    region.copy_in(0, &bytes).expect("mapped");
    source.replace(6 * PAGE, PAGE, ProtFlags::empty());
    let target = b.pd.allocate(12 * PAGE, REMOTE).expect("region");
    for message in 0..3_u64 {
        let (offset, len) = (message * 4 * PAGE as u64, 4 * PAGE as u32);
        let to = RemoteAddress {
            addr: target.iova() + offset,
            rkey: target.rkey(),
        };
        post(
            &qa,
            message,
            SendOp::Write(to),
            Some((&region, offset, len)),
        );
    }
    let ends: Vec<_> = a
        .collect_any(3)
        .iter()
        .map(|cqe| (cqe.completion.wr_id, cqe.completion.status))
        .collect();
    let expected = [
        (0, WcStatus::SUCCESS),
        (1, WcStatus::LOC_PROT_ERR),
        (2, WcStatus::WR_FLUSH_ERR),
    ];
    assert_eq!(ends, expected);
    assert!(content(&target)[..4 * PAGE] == bytes);
    assert_eq!(content(&target)[8 * PAGE..], vec![0; 4 * PAGE]);
}

#[test]
fn memory_unmapped_under_a_send_is_an_error_and_no_signal() {
    let (a, b) = pair();
    let (qa, qb) = connected(&a, &b);
    let source = Pages::new(4);
    let region = source.register(&a, Access::empty()).expect("register");
    source.replace(PAGE, 3 * PAGE, ProtFlags::empty());
    let target =
        b.pd.allocate(4 * PAGE, Access::LOCAL_WRITE)
            .expect("region");
    recv(&qb, 1, &[whole(&target)]);
    send(&qa, 1, &[whole(&region)]);
    assert_eq!(
        a.collect_any(1)[0].completion.status,
        WcStatus::LOC_PROT_ERR
    );
    assert!(a.counter("gather_failed") > 0);
}

#[test]
fn unmapping_and_mapping_again_under_fire_harms_nobody() {
    let (a, b) = pair();
    let stop = AtomicBool::new(false);
    let target = Pages::new(2);
    let region = target.register(&b, Access::LOCAL_WRITE).expect("register");
    let source = filled(&a, &pattern(3, 2 * PAGE));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                target.protect(MprotectFlags::empty());
                target.protect(MprotectFlags::READ | MprotectFlags::WRITE);
                std::thread::yield_now();
            }
        });
        let (mut good, mut bad) = (0, 0);
        for _ in 0..ROUNDS {
            let (qa, qb) = connected(&a, &b);
            recv(&qb, 1, &[whole(&region)]);
            send(&qa, 1, &[whole(&source)]);
            let received = b.collect_any(1).remove(0).completion.status;
            let sent = a.collect_any(1).remove(0).completion.status;
            match received {
                WcStatus::SUCCESS => good += 1,
                WcStatus::LOC_PROT_ERR => bad += 1,
                other => panic!("{other}"),
            }
            assert_eq!(sent.is_success(), received.is_success(), "{sent}");
        }
        stop.store(true, Ordering::Relaxed);
        assert_eq!(good + bad, ROUNDS);
    });
}

/// While messages pour in, their region is deregistered and its memory filled with a mark at once.
/// The messages that follow meet a dead key; none of them may touch the mark.
#[test]
fn nothing_is_placed_after_deregistration_has_returned() {
    let (a, b) = pair();
    let source = filled(&a, &[0xAA; PAGE]);
    let mut cut_short = 0;
    for round in 0..150 {
        let pages = Pages::new(1);
        let region = pages.register(&b, Access::LOCAL_WRITE).expect("register");
        let (sender, receiver) = connected(&a, &b);
        for wr_id in 0..MESSAGES {
            recv(&receiver, wr_id, &[whole(&region)]);
        }
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for wr_id in 0..MESSAGES {
                    send(&sender, wr_id, &[whole(&source)]);
                }
                a.collect_any(MESSAGES as usize);
            });
            // Let some messages in, a different number each time.
            let before = b.collect(round % 40);
            region.deregister().expect("no windows");
            // From here on the memory is ours alone.
            pages.fill(0, PAGE, MARK);
            let after = b.collect_any(MESSAGES as usize - before.len());
            let failed = |cqe: &&Cqe| cqe.completion.status == WcStatus::LOC_PROT_ERR;
            cut_short += after.iter().filter(failed).count();
            let bytes = pages.bytes(0, PAGE);
            assert!(bytes.iter().all(|byte| *byte == MARK), "round {round}");
        });
    }
    assert!(cut_short > 0, "no message met the dead key");
}

const ROUNDS: usize = 100;
const MESSAGES: u64 = 60;
const MARK: u8 = 0x55;

#[test]
fn reset_forgets_receives_and_the_memory_is_free() {
    let (a, b) = pair();
    let (qa, qb) = connected_impatient(&a, &b);
    let target = b.pd.allocate(16, Access::LOCAL_WRITE).expect("region");
    recv(&qb, 1, &[whole(&target)]);
    qb.modify(&QpAttr::to_state(QpState::Reset)).expect("reset");
    let source = filled(&a, b"sixteen bytes...");
    send(&qa, 1, &[whole(&source)]);
    assert_eq!(
        a.collect_any(1)[0].completion.status,
        WcStatus::RETRY_EXC_ERR
    );
    assert_eq!(content(&target), [0; 16]);
    let mut out = [const { None }; 1];
    assert_eq!(b.cq.poll(&mut out).expect("poll"), 0);
}
