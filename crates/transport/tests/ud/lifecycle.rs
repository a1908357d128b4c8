//! States: what may be posted, what is admitted, what is forgotten.

use oarlock_transport::{
    AttrMask, Counter, Error, QpAttr, QpEvent, QpState, RecvWr, SendWr, VendorError, WcStatus,
};
use oarlock_wire::{PKey, Psn, QKey};

use crate::support::{Host, INIT, KEY, RTR, RTS, attr, to, to_state};

const STATES: [QpState; 5] = [
    QpState::Reset,
    QpState::Init,
    QpState::Rtr,
    QpState::Rts,
    QpState::Error,
];

#[test]
fn receives_are_taken_from_init_on_and_sends_from_rts_on() {
    for state in STATES {
        let mut host = Host::in_state(1, state);
        let recv = host.ud.post_recv(&RecvWr::default());
        let send = host.ud.post_send(&SendWr {
            ud: Some(to(1, 2)),
            ..SendWr::default()
        });
        let refused = |call| Err(Error::WrongState { call, state });
        match state {
            QpState::Reset => assert_eq!(recv, refused("post_recv")),
            _ => assert_eq!(recv, Ok(())),
        }
        match state {
            QpState::Rts | QpState::Error => assert_eq!(send, Ok(())),
            _ => assert_eq!(send, refused("post_send")),
        }
    }
}

#[test]
fn messages_are_admitted_from_rtr_on() {
    let mut a = Host::new(1);
    a.send(1, b"hello", to(1, 2));
    let packet = a.one_packet();
    for state in STATES {
        let mut b = Host::in_state(2, state);
        let has_buffer =
            b.ud.post_recv(&RecvWr {
                wr_id: 1,
                sges: &[b.memory.alloc(100)],
            })
            .is_ok();
        b.take(&packet);
        let arrives = matches!(state, QpState::Rtr | QpState::Rts);
        let arrived = b.outcomes().contains(&(1, WcStatus::SUCCESS));
        assert_eq!(arrived, arrives && has_buffer, "{state}");
        assert_eq!(b.count(Counter::DroppedWrongState), u64::from(!arrives));
    }
}

/// The recipe of the RDMA CM (facts, "UD (rdma_cm)").
#[test]
fn three_steps_lead_to_rts_and_are_what_a_query_shows() {
    let mut host = Host::in_state(1, QpState::Reset);
    assert_eq!(host.ud.query().mask, AttrMask::empty());
    for (state, mask) in [
        (QpState::Init, INIT),
        (QpState::Rtr, RTR),
        (QpState::Rts, RTS),
    ] {
        let attr = QpAttr {
            mask,
            state,
            ..attr()
        };
        host.ud.modify(&attr).expect("the recipe");
        assert_eq!(host.ud.state(), state);
    }
    let seen = host.ud.query();
    assert_eq!((seen.state, seen.qkey), (QpState::Rts, KEY));
    assert_eq!((seen.pkey, seen.port_num), (PKey::DEFAULT, 1));
    assert_eq!(seen.sq_psn, Psn::truncate(0xFF_FFFE));
    assert_eq!(seen.mask, INIT | RTR | RTS);
}

#[test]
fn paths_and_peers_are_refused_by_name() {
    let mut host = Host::in_state(1, QpState::Init);
    for extra in [
        AttrMask::AV,
        AttrMask::PATH_MTU,
        AttrMask::DEST_QPN,
        AttrMask::RQ_PSN,
        AttrMask::MIN_RNR_TIMER,
        AttrMask::MAX_DEST_RD_ATOMIC,
    ] {
        let refused = host.ud.modify(&QpAttr {
            mask: RTR | extra,
            state: QpState::Rtr,
            ..attr()
        });
        let (from, to) = (QpState::Init, QpState::Rtr);
        assert_eq!(refused, Err(Error::AttributeNotAllowed { from, to, extra }));
    }
    assert_eq!(host.ud.state(), QpState::Init);
    let refused = host.ud.modify(&QpAttr::to_state(QpState::Sqd));
    let (from, to) = (QpState::Init, QpState::Sqd);
    assert_eq!(refused, Err(Error::InvalidTransition { from, to }));
}

#[test]
fn error_flushes_both_queues_in_their_order_and_reset_forgets() {
    let mut host = Host::new(1);
    for wr_id in 0..3 {
        host.recv(wr_id, 10);
    }
    host.send(10, b"a", to(1, 2));
    host.post(SendWr {
        wr_id: 11,
        signaled: false,
        ud: Some(to(1, 2)),
        ..SendWr::default()
    });
    to_error(&mut host);
    host.recv(3, 10);
    host.send(12, b"b", to(1, 2));
    assert_eq!(host.sent(), []);
    let flushed = host.outcomes();
    let ids: Vec<_> = flushed.iter().map(|(id, _)| *id).collect();
    assert_eq!(ids, [10, 11, 0, 1, 2, 3, 12]);
    assert!(flushed.iter().all(|(_, s)| *s == WcStatus::WR_FLUSH_ERR));
    host.recv(4, 10);
    host.ud
        .modify(&QpAttr::to_state(QpState::Reset))
        .expect("any state");
    assert_eq!(host.completions(), []);
    assert!(!host.ud.has_output());
    // As new: with another key, and the PSN that is given now.
    let again = QpAttr {
        qkey: QKey(1),
        sq_psn: Psn::truncate(7),
        ..attr()
    };
    to_state(&mut host.ud, &again, QpState::Rts);
    assert_eq!(host.ud.query().qkey, QKey(1));
    host.send(1, b"c", to(1, 2));
    let packet = host.one_packet();
    assert_eq!(packet.bytes[9..12], [0, 0, 7]);
}

fn to_error(host: &mut Host) {
    host.ud
        .modify(&QpAttr::to_state(QpState::Error))
        .expect("any state");
}

/// A list is taken as a whole or not: the check names the first request that would be refused, and posts nothing.
#[test]
fn a_list_of_requests_is_checked_as_a_whole() {
    let good = SendWr {
        ud: Some(to(1, 2)),
        ..SendWr::default()
    };
    let mut host = Host::new(1);
    let depth = host.ud.config().max_send_wr;
    assert_eq!(host.ud.check_sends(&vec![good; depth as usize]), Ok(()));
    let queue = "send";
    let full = Error::QueueFull { queue, depth };
    let refused = host.ud.check_sends(&vec![good; depth as usize + 1]);
    assert_eq!(refused, Err((depth as usize, full)));
    let refused = host.ud.check_sends(&[good, SendWr::default()]);
    assert_eq!(refused, Err((1, Error::NoDestination)));
    assert!(host.sent().is_empty(), "nothing was posted");
}

/// IBA Vol. 1 ch. 10 "Send queue drain": sends wait, messages still arrive; the event comes if it was asked for.
#[test]
fn in_sqd_sends_wait_and_messages_arrive() {
    for notify in [false, true] {
        let (mut a, mut b) = (Host::new(1), Host::new(2));
        a.send(1, b"before", to(1, 2));
        let attr = QpAttr {
            mask: AttrMask::STATE | AttrMask::EN_SQD_ASYNC_NOTIFY,
            state: QpState::Sqd,
            sqd_notify: notify,
            ..QpAttr::default()
        };
        a.ud.modify(&attr).unwrap();
        a.send(2, b"in it", to(1, 2));
        assert!(a.sent().is_empty(), "nothing was begun");
        assert!(!a.ud.query().sq_draining);
        let event = notify.then_some(QpEvent::SqDrained);
        assert_eq!((a.ud.poll_event(), a.ud.poll_event()), (event, None));
        a.recv(20, 100);
        b.send(3, b"to A", to(2, 1));
        a.take(&b.one_packet());
        assert_eq!(a.completions().len(), 1);
        a.ud.modify(&QpAttr::to_state(QpState::Rts)).unwrap();
        assert_eq!(a.sent().len(), 2);
    }
}

/// A device that is gone, a fault rule: every request says so, and the event comes once.
#[test]
fn a_failure_of_neither_program_is_fatal_and_flushes_with_its_reason() {
    let mut host = Host::new(1);
    host.send(1, b"x", to(1, 2));
    host.recv(20, 100);
    let reason = VendorError::FLUSHED_BY_DEVICE;
    host.ud.fail(reason);
    host.ud.fail(VendorError::FLUSHED_BY_PROGRAM);
    let completions = host.completions();
    assert_eq!(completions.len(), 2);
    assert!(completions.iter().all(|c| c.vendor_err == reason));
    let event = Some(QpEvent::Fatal);
    assert_eq!((host.ud.poll_event(), host.ud.poll_event()), (event, None));
    assert_eq!(host.ud.state(), QpState::Error);
    let mut host = Host::new(1);
    host.ud.fail(reason);
    host.ud.modify(&QpAttr::to_state(QpState::Reset)).unwrap();
    assert_eq!(host.ud.poll_event(), None, "forgotten");
}
