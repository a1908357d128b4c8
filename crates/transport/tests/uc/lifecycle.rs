//! The states of a UC queue pair.

use std::time::Duration;

use oarlock_transport::{
    AttrMask, Counter, Error, QpAttr, QpEvent, QpState, RecvWr, SendWr, UcConfig, VendorError,
    WcStatus,
};
use oarlock_wire::{AddressVector, Packet, Time};

use crate::pair::{A, B, Host, MTU, Pair, attr, gid, pattern};

const OK: WcStatus = WcStatus::SUCCESS;
const FLUSHED: WcStatus = WcStatus::WR_FLUSH_ERR;
const STATES: [QpState; 7] = [
    QpState::Reset,
    QpState::Init,
    QpState::Rtr,
    QpState::Rts,
    QpState::Sqd,
    QpState::Sqe,
    QpState::Error,
];

/// A queue pair of side A in this state.
fn in_state(state: QpState) -> Host {
    match state {
        QpState::Sqd => {
            let mut host = in_state(QpState::Rts);
            host.modify(QpState::Sqd);
            host
        }
        QpState::Sqe => {
            let mut host = in_state(QpState::Rts);
            host.op(
                0,
                oarlock_transport::SendOp::LocalInvalidate(oarlock_wire::RKey(1)),
                &[],
            );
            let _ = host.packets(Time::ZERO);
            host.completions.clear();
            host
        }
        state => Host::new(A, UcConfig::default(), state),
    }
}

#[test]
fn sends_are_taken_from_rts_on_and_receives_from_init_on() {
    for state in STATES {
        let mut host = in_state(state);
        assert_eq!(host.uc.state(), state);
        let (sent, received) = (
            host.uc.post_send(&SendWr::default()),
            host.uc.post_recv(&RecvWr::default()),
        );
        let wrong = |call| Err(Error::WrongState { call, state });
        let may_send = !matches!(state, QpState::Reset | QpState::Init | QpState::Rtr);
        let expected = if may_send { Ok(()) } else { wrong("post_send") };
        assert_eq!(sent, expected, "{state}");
        let expected = if state == QpState::Reset {
            wrong("post_recv")
        } else {
            Ok(())
        };
        assert_eq!(received, expected, "{state}");
    }
}

#[test]
fn packets_are_taken_from_rtr_on_until_error() {
    let mut peer = Host::new(B, UcConfig::default(), QpState::Rts);
    peer.send(1, b"hello");
    let packet = peer.packets(Time::ZERO).remove(0);
    for state in STATES {
        let mut host = in_state(state);
        if state != QpState::Reset {
            host.recv(20, 64);
            host.collect();
            host.completions.clear();
        }
        // In Reset nothing is known of a peer; the state comes first.
        let from = attr(A).av;
        host.uc
            .handle_datagram(Time::ZERO, &from, &packet, &mut host.memory);
        host.collect();
        let takes = matches!(
            state,
            QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe
        );
        assert_eq!(host.completions.len(), usize::from(takes), "{state}");
        assert_eq!(
            host.count(Counter::DroppedWrongState),
            u64::from(!takes),
            "{state}"
        );
        let established: &[QpEvent] = if takes { &[QpEvent::CommEst] } else { &[] };
        assert_eq!(host.events, established);
    }
}

#[test]
fn established_is_said_once_in_a_life() {
    let mut pair = Pair::new();
    for n in 0..3 {
        pair.hosts[B].recv(n, 8);
        pair.hosts[A].send(n, b"x");
    }
    pair.run();
    assert_eq!(pair.hosts[B].events, [QpEvent::CommEst]);
    pair.hosts[B].modify(QpState::Reset);
    crate::pair::to_state(&mut pair.hosts[B].uc, &attr(B), QpState::Rts);
    pair.hosts[B].recv(9, 8);
    pair.hosts[A].send(9, b"x");
    pair.run();
    assert_eq!(pair.hosts[B].events.len(), 2);
}

#[test]
fn the_query_shows_what_was_given() {
    let host = Host::new(A, UcConfig::default(), QpState::Rts);
    let seen = host.uc.query();
    assert_eq!(
        (seen.state, seen.current_state),
        (QpState::Rts, QpState::Rts)
    );
    assert_eq!((seen.av, seen.dest_qpn), (attr(A).av, attr(A).dest_qpn));
    assert_eq!((seen.sq_psn, seen.rq_psn), (attr(A).sq_psn, attr(A).rq_psn));
    assert!(seen.mask.contains(AttrMask::AV | AttrMask::ACCESS_FLAGS));
    assert!(!seen.sq_draining);
}

/// Asks for the event.
fn drain(host: &mut Host, notify: bool) {
    let attr = QpAttr {
        mask: AttrMask::STATE | AttrMask::EN_SQD_ASYNC_NOTIFY,
        state: QpState::Sqd,
        sqd_notify: notify,
        ..QpAttr::default()
    };
    host.uc.modify(&attr).expect("RTS leads to SQD");
}

/// IBA Vol. 1 ch. 10 "Send queue drain": what was begun is finished, what waits does, what arrives is taken.
#[test]
fn a_message_in_progress_is_finished_and_no_other_begun() {
    for notify in [false, true] {
        let mut pair = Pair::of(UcConfig {
            burst: 2,
            ..UcConfig::default()
        });
        pair.hosts[B].recv(20, 5 * MTU);
        pair.hosts[B].recv(21, MTU);
        let data = pattern(1, 5 * MTU);
        pair.hosts[A].send(10, &data);
        pair.hosts[A].send(11, b"waits");
        assert!(pair.step());
        assert_eq!(pair.hosts[A].count(Counter::PacketsSent), 2);
        drain(&mut pair.hosts[A], notify);
        assert!(pair.hosts[A].uc.query().sq_draining);
        assert_eq!(pair.hosts[A].events, []);
        for to in [QpState::Rts, QpState::Sqd] {
            let answer = pair.hosts[A].uc.modify(&QpAttr::to_state(to));
            assert_eq!(answer, Err(Error::StillDraining { to }));
        }
        pair.hosts[A].send(12, b"waits, too");
        pair.hosts[A].recv(30, MTU);
        pair.hosts[B].send(13, b"to A");
        pair.run();
        let a = &pair.hosts[A];
        assert_eq!(a.outcomes(), [(30, OK), (10, OK)]);
        assert!(!a.uc.query().sq_draining);
        let told = a.events.iter().filter(|e| **e == QpEvent::SqDrained);
        assert_eq!(told.count(), usize::from(notify));
        assert_eq!(pair.hosts[B].outcomes(), [(13, OK), (20, OK)]);
        pair.hosts[A].modify(QpState::Rts);
        pair.hosts[B].recv(22, MTU);
        pair.run();
        assert_eq!(pair.hosts[A].outcomes()[2..], [(11, OK), (12, OK)]);
        assert_eq!(pair.hosts[B].outcomes()[2..], [(21, OK), (22, OK)]);
    }
}

#[test]
fn an_idle_send_queue_has_drained_at_once() {
    for notify in [false, true] {
        let mut host = Host::new(A, UcConfig::default(), QpState::Rts);
        host.send(1, b"waits before it is begun");
        drain(&mut host, notify);
        assert!(!host.uc.query().sq_draining);
        assert!(host.packets(Time::ZERO).is_empty());
        let told: &[QpEvent] = if notify { &[QpEvent::SqDrained] } else { &[] };
        assert_eq!(host.events, told);
        // Once: the way back and there again without asking says nothing.
        host.modify(QpState::Rts);
        assert_eq!(host.packets(Time::ZERO).len(), 1);
        host.modify(QpState::Sqd);
        host.collect();
        assert_eq!(host.events, told);
    }
}

/// While nothing is sent the path may change; what follows goes the new way.
#[test]
fn a_drained_queue_pair_takes_another_path() {
    let mut host = Host::new(A, UcConfig::default(), QpState::Rts);
    host.modify(QpState::Sqd);
    let av = AddressVector::new(gid(1), gid(77));
    let attr = QpAttr {
        mask: AttrMask::AV,
        av,
        ..QpAttr::default()
    };
    host.uc.modify(&attr).unwrap();
    host.modify(QpState::Rts);
    host.send(1, b"x");
    let mut out = [0; oarlock_transport::MAX_PACKET_LEN];
    let sent = host
        .uc
        .poll_transmit(Time::ZERO, &mut host.memory, &mut out)
        .unwrap();
    assert_eq!(sent.av, av);
    assert!(Packet::parse(&out[..sent.len]).is_ok());
}

/// A failure while the queue drains leads to Sqe, and nothing is said of a drained queue.
#[test]
fn a_failure_within_the_last_message_is_a_send_queue_error() {
    let mut host = Host::new(
        A,
        UcConfig {
            burst: 1,
            ..UcConfig::default()
        },
        QpState::Rts,
    );
    let sge = host.memory.store(&pattern(1, 3 * MTU));
    host.post(SendWr {
        wr_id: 1,
        data: oarlock_transport::SendData::Sges(&[sge]),
        ..SendWr::default()
    });
    host.send(2, b"behind");
    assert_eq!(host.packets(Time::ZERO).len(), 1);
    drain(&mut host, true);
    host.memory.vanish(sge);
    let later = Time::ZERO + Duration::from_millis(1);
    assert!(host.packets(later).is_empty());
    assert_eq!(host.outcomes(), [(1, WcStatus::LOC_PROT_ERR), (2, FLUSHED)]);
    assert_eq!((host.uc.state(), &host.events[..]), (QpState::Sqe, &[][..]));
}

#[test]
fn error_flushes_both_queues_in_their_order_and_reset_forgets() {
    let mut host = Host::new(
        A,
        UcConfig {
            burst: 1,
            ..UcConfig::default()
        },
        QpState::Rts,
    );
    host.send(1, &pattern(1, 3 * MTU));
    host.send(2, b"x");
    host.recv(20, 8);
    host.recv(21, 8);
    assert_eq!(host.packets(Time::ZERO).len(), 1);
    host.modify(QpState::Error);
    assert_eq!(host.uc.poll_timeout(), None);
    host.collect();
    let expected = [(1, FLUSHED), (2, FLUSHED), (20, FLUSHED), (21, FLUSHED)];
    assert_eq!(host.outcomes(), expected);
    for completion in &host.completions {
        assert_eq!(completion.vendor_err, VendorError::FLUSHED_BY_PROGRAM);
    }
    assert_eq!(host.events, [], "no shared buffers, no event");
    let late = Time::ZERO + Duration::from_secs(1);
    assert!(host.packets(late).is_empty());

    let mut host = Host::new(B, UcConfig::default(), QpState::Rts);
    host.recv(20, 8);
    host.send(1, b"x");
    let mut peer = Host::new(A, UcConfig::default(), QpState::Rts);
    peer.send(1, b"y");
    let packet = peer.packets(Time::ZERO).remove(0);
    let from = host.uc.query().av;
    host.uc
        .handle_datagram(Time::ZERO, &from, &packet, &mut host.memory);
    assert!(host.uc.has_output());
    let received = host.uc.counters().clone();
    host.modify(QpState::Reset);
    assert!(!host.uc.has_output());
    assert_eq!(host.uc.poll_completion(), None);
    assert_eq!(host.uc.poll_event(), None);
    assert_eq!(host.uc.query().mask, AttrMask::empty());
    assert_eq!(*host.uc.counters(), received, "counters survive");
    // A new life begins with its own PSNs, and every place of the queues.
    crate::pair::to_state(&mut host.uc, &attr(B), QpState::Rts);
    for n in 0..128 {
        host.recv(n, 0);
        host.send(n, b"");
    }
    assert_eq!(host.packets(Time::ZERO).len(), 64, "a burst");
}

/// A list is taken as a whole or not: the check names the first request that would be refused, and posts nothing.
#[test]
fn a_list_of_requests_is_checked_as_a_whole() {
    let good = SendWr::default();
    let bad = SendWr {
        fence: true,
        ..good
    };
    let mut host = Host::new(
        A,
        UcConfig {
            max_send_wr: 3,
            ..UcConfig::default()
        },
        QpState::Rts,
    );
    host.send(1, b"");
    assert_eq!(host.uc.check_sends(&[]), Ok(()));
    assert_eq!(host.uc.check_sends(&[good, good]), Ok(()));
    let (queue, depth) = ("send", 3);
    let full = Error::QueueFull { queue, depth };
    assert_eq!(host.uc.check_sends(&[good; 3]), Err((2, full)));
    let refused = host.uc.check_sends(&[good, bad]);
    assert!(matches!(refused, Err((1, Error::FlagNotAllowed { .. }))));
    assert_eq!(host.packets(Time::ZERO).len(), 1, "nothing was posted");
    let rtr = Host::new(A, UcConfig::default(), QpState::Rtr);
    let refused = rtr.uc.check_sends(&[good]);
    assert!(matches!(refused, Err((0, Error::WrongState { .. }))));
}

/// A device that is gone, a fault rule: every request says so, and the event comes once.
#[test]
fn a_failure_of_neither_program_is_fatal_and_flushes_with_its_reason() {
    for reason in [
        VendorError::FLUSHED_BY_DEVICE,
        VendorError::FLUSHED_BY_FAULT_RULE,
    ] {
        let mut host = Host::new(A, UcConfig::default(), QpState::Rts);
        host.send(1, b"x");
        host.recv(20, 8);
        host.uc.fail(reason);
        host.uc.fail(VendorError::FLUSHED_BY_PROGRAM);
        host.collect();
        assert_eq!(host.outcomes(), [(1, FLUSHED), (20, FLUSHED)]);
        assert!(host.completions.iter().all(|c| c.vendor_err == reason));
        assert_eq!(
            (host.uc.state(), &host.events[..]),
            (QpState::Error, &[QpEvent::Fatal][..])
        );
    }
}

/// A new life begins with the first packet of a message and a full burst, whatever was begun before.
#[test]
fn reset_forgets_half_a_message_and_half_a_burst() {
    let config = UcConfig {
        burst: 2,
        ..UcConfig::default()
    };
    let mut host = Host::new(A, config, QpState::Rts);
    host.send(1, &pattern(1, 5 * MTU));
    assert_eq!(host.packets(Time::ZERO).len(), 2);
    host.modify(QpState::Reset);
    crate::pair::to_state(&mut host.uc, &attr(A), QpState::Rts);
    host.send(2, &pattern(2, 2 * MTU));
    let packets = host.packets(Time::ZERO);
    assert_eq!(packets.len(), 2);
    let first = Packet::parse(&packets[0]).unwrap();
    assert_eq!(first.bth.opcode.to_string(), "UC_SEND_FIRST");
    assert_eq!(first.bth.psn, attr(A).sq_psn);
}
