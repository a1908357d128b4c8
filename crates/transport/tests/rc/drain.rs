//! State Sqd: what was begun is finished, what was not begun waits, and messages still arrive.

use oarlock_transport::{
    AttrMask, Counter, Error, QpAttr, QpEvent, QpState, SendOp, VendorError, WcStatus,
};
use oarlock_wire::{IbTimeout, Opcode, Syndrome, Time};

use crate::forge;
use crate::pair::{A, B, Pair, Setup};

const SUCCESS: WcStatus = WcStatus::SUCCESS;

fn to_sqd(notify: bool) -> QpAttr {
    QpAttr {
        mask: AttrMask::STATE | AttrMask::EN_SQD_ASYNC_NOTIFY,
        state: QpState::Sqd,
        sqd_notify: notify,
        ..QpAttr::default()
    }
}

fn drain(pair: &mut Pair, notify: bool) {
    pair.hosts[A].rc.modify(&to_sqd(notify)).unwrap();
}

fn is_draining(pair: &Pair) -> bool {
    pair.hosts[A].rc.query().sq_draining
}

#[test]
fn a_queue_without_work_has_drained_at_once() {
    for notify in [true, false] {
        let mut pair = Pair::new(&Setup::default());
        drain(&mut pair, notify);
        pair.run();
        assert!(!is_draining(&pair));
        let events: &[QpEvent] = if notify { &[QpEvent::SqDrained] } else { &[] };
        assert_eq!(pair.hosts[A].events, events);
        assert_eq!(pair.hosts[A].rc.state(), QpState::Sqd);
    }
}

/// A message half sent is sent to its end, and acknowledged, before the event; what is behind it waits until Rts.
#[test]
fn a_message_that_was_begun_is_finished_and_others_wait() {
    let setup = Setup {
        config: oarlock_transport::RcConfig {
            window: 1,
            ..Default::default()
        },
        ..Setup::default()
    };
    let mut pair = Pair::new(&setup);
    for n in 20..23 {
        pair.hosts[B].recv(n, 1000);
    }
    pair.hosts[A].send(10, &[1; 600]);
    pair.hosts[A].send(11, b"waits");
    pair.drain_both();
    drain(&mut pair, true);
    pair.hosts[A].send(12, b"posted in Sqd");
    assert!(is_draining(&pair));
    assert_eq!(pair.hosts[A].events, []);
    // Every packet of it is acknowledged before the next is sent, and the queue has not drained for that.
    while is_draining(&pair) {
        assert_eq!(pair.hosts[A].outcomes(), []);
        assert!(pair.step());
    }
    pair.drain_both();
    assert_eq!(pair.hosts[A].outcomes(), [(10, SUCCESS)]);
    assert_eq!(pair.hosts[A].count(Counter::RequestsSent), 3);
    assert_eq!(pair.hosts[A].events, [QpEvent::SqDrained]);
    assert!(!pair.hosts[A].rc.has_output());
    pair.hosts[A].modify(QpState::Rts);
    assert!(pair.hosts[A].rc.has_output());
    pair.run();
    assert_eq!(
        pair.hosts[A].outcomes(),
        [(10, SUCCESS), (11, SUCCESS), (12, SUCCESS)]
    );
    assert_eq!(pair.hosts[A].events, [QpEvent::SqDrained], "once");
}

/// Losses are made good, READs brought to their end.
#[test]
fn what_was_begun_is_repeated_in_sqd() {
    let mut pair = Pair::new(&Setup::default()).lose(&[0, 1, 3]);
    let source = pair.hosts[B].memory.store(&[7; 600]);
    let remote = pair.hosts[B].memory.offer(source);
    pair.hosts[B].recv(20, 1000);
    pair.hosts[A].send(10, b"lost at first");
    let target = pair.hosts[A].post(11, SendOp::Read(remote), &[0; 600]);
    pair.drain_both();
    pair.hosts[A].send(12, b"waits");
    drain(&mut pair, true);
    pair.run();
    assert_eq!(pair.hosts[A].outcomes(), [(10, SUCCESS), (11, SUCCESS)]);
    assert_eq!(pair.hosts[A].memory.load(target, 600), [7; 600]);
    assert_eq!(pair.hosts[A].events, [QpEvent::SqDrained]);
    assert!(pair.hosts[A].count(Counter::Retries) > 0);
}

#[test]
fn a_local_operation_has_not_begun() {
    let mut pair = Pair::new(&Setup::default());
    let sge = pair.hosts[A].memory.alloc(8);
    let key = pair.hosts[A].memory.offer(sge).rkey;
    drain(&mut pair, true);
    pair.hosts[A].post_local(10, SendOp::LocalInvalidate(key));
    pair.run();
    assert_eq!(pair.hosts[A].outcomes(), []);
    pair.hosts[A].modify(QpState::Rts);
    pair.run();
    assert_eq!(pair.hosts[A].outcomes(), [(10, SUCCESS)]);
}

#[test]
fn messages_arrive_in_sqd() {
    let mut pair = Pair::new(&Setup::default());
    pair.hosts[A].recv(20, 100);
    drain(&mut pair, false);
    pair.hosts[B].send(10, b"to a drained one");
    pair.run();
    assert_eq!(pair.hosts[A].outcomes(), [(20, SUCCESS)]);
    assert_eq!(pair.hosts[B].outcomes(), [(10, SUCCESS)]);
}

#[test]
fn while_the_queue_drains_only_the_ends_can_be_reached() {
    let mut pair = Pair::new(&Setup::default());
    pair.hosts[A].send(10, b"x");
    let sent = forge::sent(&mut pair, A);
    assert_eq!(forge::outline(&sent), [(Opcode::RC_SEND_ONLY, 0x100)]);
    drain(&mut pair, true);
    let timeout = QpAttr {
        mask: AttrMask::TIMEOUT,
        timeout: IbTimeout::new(20).unwrap(),
        ..QpAttr::default()
    };
    for (attr, to) in [
        (timeout, QpState::Sqd),
        (QpAttr::to_state(QpState::Rts), QpState::Rts),
    ] {
        let error = pair.hosts[A].rc.modify(&attr).unwrap_err();
        assert_eq!(error, Error::StillDraining { to });
    }
    assert!(is_draining(&pair));
    forge::acknowledge(&mut pair, 0x100, Syndrome::ACK);
    pair.drain_both();
    assert_eq!(pair.hosts[A].events, [QpEvent::SqDrained]);
    // Attributes change now, and are used from Rts on.
    pair.hosts[A].rc.modify(&timeout).unwrap();
    pair.hosts[A].modify(QpState::Rts);
    pair.hosts[A].send(11, b"y");
    let _ = forge::sent(&mut pair, A);
    assert_eq!(
        pair.hosts[A].rc.poll_timeout(),
        Some(Time::from_nanos(4_096 << 20))
    );
}

/// A failure while draining goes to the error state; the queue never drains.
#[test]
fn a_request_that_fails_while_draining_is_no_drained_queue() {
    let mut pair = Pair::new(&Setup {
        retry: 1,
        ..Setup::default()
    });
    pair.network.partition(A, B);
    pair.hosts[A].send(10, b"x");
    pair.drain_both();
    drain(&mut pair, true);
    pair.hosts[A].send(11, b"waits");
    pair.run();
    let expected = [(10, WcStatus::RETRY_EXC_ERR), (11, WcStatus::WR_FLUSH_ERR)];
    assert_eq!(pair.hosts[A].outcomes(), expected);
    assert_eq!(
        pair.hosts[A].completions[0].vendor_err,
        VendorError::ACK_TIMEOUTS
    );
    assert_eq!(pair.hosts[A].events, []);
    assert!(!is_draining(&pair));
}

/// The responder's limit can grow in Sqd; results of atomics that are kept stay.
#[test]
fn limits_of_reads_change_in_sqd() {
    let mut pair = Pair::new(&Setup {
        rd_atomic: 1,
        ..Setup::default()
    });
    let word = pair.hosts[B].memory.store(&1u64.to_ne_bytes());
    let remote = pair.hosts[B].memory.offer(word);
    let add = SendOp::FetchAdd { remote, add: 1 };
    pair.hosts[A].post(10, add, &[0; 8]);
    pair.run();
    for (side, mask) in [
        (A, AttrMask::MAX_QP_RD_ATOMIC),
        (B, AttrMask::MAX_DEST_RD_ATOMIC),
    ] {
        let rc = &mut pair.hosts[side].rc;
        rc.modify(&QpAttr::to_state(QpState::Sqd)).unwrap();
        rc.modify(&QpAttr {
            mask,
            max_rd_atomic: 3,
            max_dest_rd_atomic: 3,
            ..QpAttr::default()
        })
        .unwrap();
        rc.modify(&QpAttr::to_state(QpState::Rts)).unwrap();
    }
    for n in 11..14 {
        pair.hosts[A].post(n, add, &[0; 8]);
    }
    let requests = forge::sent(&mut pair, A);
    assert_eq!(requests.len(), 3);
    for bytes in &requests {
        forge::deliver(&mut pair, B, bytes);
    }
    let _lost = forge::sent(&mut pair, B);
    // All three are repeated from what was kept.
    for bytes in &requests {
        forge::deliver(&mut pair, B, bytes);
    }
    pair.run();
    assert_eq!(pair.hosts[B].count(Counter::DuplicateAtomics), 3);
    assert_eq!(pair.hosts[B].memory.atomics, 4);
    assert_eq!(pair.hosts[A].completions.len(), 4);
}
