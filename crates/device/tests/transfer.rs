//! Messages between two devices: content, loss, order, receiver not ready, flush.

mod support;

use oarlock_device::{Access, AsyncEvent, Qp, QpInit};
use oarlock_port::Faults;
use oarlock_transport::{
    AttrMask, Counter, QpAttr, QpState, SendData, SendOp, SendWr, Sge, WcOpcode, WcStatus,
};
use oarlock_wire::{LKey, Mtu};
use support::{
    Path, Side, connected, connected_impatient, connected_lossy, content, eventually, filled, pair,
    pair_with, pattern, recv, send, to_init, to_rtr, to_rts, whole,
};

/// Sends messages of many lengths both ways and compares every byte.
fn exchange((a, qa): (&Side, Qp), (b, qb): (&Side, Qp), rounds: usize) {
    let lengths = [0, 1, 3, 4, 1023, 1024, 1025, 4096, 70_000];
    for round in 0..rounds {
        for (from, to, sender, receiver) in [(a, b, &qa, &qb), (b, a, &qb, &qa)] {
            let mut targets = Vec::new();
            let mut sources = Vec::new();
            for (i, len) in lengths.into_iter().enumerate() {
                let target = to
                    .pd
                    .allocate(len + 1, Access::LOCAL_WRITE)
                    .expect("region");
                recv(receiver, i as u64, &[whole(&target)]);
                targets.push(target);
                let mut bytes = pattern(round * 100 + i, len);
                bytes.push(0);
                let source = filled(from, &bytes);
                send(sender, i as u64, &[source.sge(0, len as u32)]);
                sources.push((source, bytes));
            }
            let received = to.collect(lengths.len());
            for (i, cqe) in received.iter().enumerate() {
                let completion = &cqe.completion;
                assert_eq!(completion.status, WcStatus::SUCCESS);
                assert_eq!(completion.opcode, WcOpcode::RECV);
                assert_eq!(completion.wr_id, i as u64, "order");
                assert_eq!(completion.byte_len as usize, lengths[i]);
                assert_eq!(content(&targets[i]), sources[i].1, "length {}", lengths[i]);
            }
            for (i, cqe) in from.collect(lengths.len()).iter().enumerate() {
                assert_eq!(cqe.completion.status, WcStatus::SUCCESS);
                assert_eq!(
                    (cqe.completion.wr_id, cqe.completion.is_send),
                    (i as u64, true)
                );
            }
        }
    }
}

#[test]
fn messages_of_all_lengths_arrive_unchanged_and_in_order() {
    let (a, b) = pair();
    let (qa, qb) = connected(&a, &b);
    exchange((&a, qa), (&b, qb), 2);
    for side in [&a, &b] {
        for dropped in ["malformed", "no_such_qp", "foreign_slot", "send_failed"] {
            assert_eq!(side.counter(dropped), 0, "{dropped}");
        }
    }
}

#[test]
fn losses_duplicates_and_overtaking_change_nothing() {
    let (a, b) = pair_with(Faults {
        seed: 42,
        loss: 0.05,
        duplicate: 0.05,
        reorder: 0.05,
    });
    let (qa, qb) = connected_lossy(&a, &b);
    exchange((&a, qa), (&b, qb), 3);
    let lost = a.counter("port_fault_lost") + b.counter("port_fault_lost");
    assert!(lost > 0, "the faults were on");
}

#[test]
fn immediate_inline_and_several_elements() {
    let (a, b) = pair();
    let (qa, qb) = connected(&a, &b);
    let target = b.pd.allocate(64, Access::LOCAL_WRITE).expect("region");
    recv(
        &qb,
        1,
        &[target.sge(0, 3), target.sge(10, 0), target.sge(32, 32)],
    );
    qa.post_send(&SendWr {
        wr_id: 9,
        op: SendOp::SendWithImm(0xdead_beef),
        data: SendData::Inline(b"inline data"),
        ..SendWr::default()
    })
    .expect("post");
    let received = b.collect(1).remove(0).completion;
    assert_eq!((received.imm, received.byte_len), (Some(0xdead_beef), 11));
    let bytes = content(&target);
    assert_eq!(
        (&bytes[..3], &bytes[32..40]),
        (&b"inl"[..], &b"ine data"[..])
    );
    assert!(
        bytes[3..32]
            .iter()
            .chain(&bytes[40..])
            .all(|byte| *byte == 0)
    );

    // Gathered from several pieces, too.
    let source = filled(&a, b"..one..two..three");
    recv(&qb, 2, &[target.sge(0, 64)]);
    send(
        &qa,
        10,
        &[source.sge(2, 3), source.sge(7, 3), source.sge(12, 5)],
    );
    assert_eq!(b.collect(1)[0].completion.byte_len, 11);
    assert_eq!(&content(&target)[..11], b"onetwothree");
}

#[test]
fn a_sender_waits_for_a_receiver_that_is_not_ready() {
    let (a, b) = pair();
    let (qa, qb) = connected(&a, &b);
    let source = filled(&a, b"early");
    send(&qa, 1, &[whole(&source)]);
    // The NAK comes back, and asks again, without anybody calling in.
    eventually("an RNR NAK", || {
        qa.counters().get(Counter::RnrNaksReceived) > 0
    });
    let target = b.pd.allocate(5, Access::LOCAL_WRITE).expect("region");
    recv(&qb, 1, &[whole(&target)]);
    assert_eq!(b.collect(1)[0].completion.status, WcStatus::SUCCESS);
    assert_eq!(content(&target), b"early");
    assert_eq!(a.collect(1)[0].completion.status, WcStatus::SUCCESS);
}

#[test]
fn a_receiver_that_never_gets_ready_fails_the_send() {
    let (a, b) = pair();
    let (qa, qb) = (a.qp(QpInit::default()), b.qp(QpInit::default()));
    for (side, qp, peer_side, peer) in [(&a, &qa, &b, &qb), (&b, &qb, &a, &qa)] {
        let path = Path {
            rnr_retry: 2,
            ..Path::between(side, peer_side)
        };
        to_init(qp);
        to_rtr(qp, peer, &path);
        to_rts(qp, &path);
    }
    let source = filled(&a, b"never");
    send(&qa, 1, &[whole(&source)]);
    send(&qa, 2, &[whole(&source)]);
    let failed = a.collect_any(2);
    assert_eq!(failed[0].completion.status, WcStatus::RNR_RETRY_EXC_ERR);
    assert_eq!(failed[1].completion.status, WcStatus::WR_FLUSH_ERR);
    assert_eq!(qa.state(), QpState::Error);
    assert_eq!(qb.state(), QpState::Rts);
}

#[test]
fn a_silent_peer_fails_the_send() {
    let (a, b) = pair();
    let (qa, qb) = connected_impatient(&a, &b);
    drop(qb);
    let source = filled(&a, b"anybody there");
    send(&qa, 1, &[whole(&source)]);
    let failed = a.collect_any(1).remove(0).completion;
    assert_eq!(failed.status, WcStatus::RETRY_EXC_ERR);
    assert!(
        b.counter("no_such_qp") > 0,
        "packets for a queue pair that is gone are counted"
    );
}

#[test]
fn error_flushes_everything_that_is_outstanding() {
    let (a, b) = pair();
    let (qa, _qb) = connected(&a, &b);
    let target = a.pd.allocate(8, Access::LOCAL_WRITE).expect("region");
    for wr_id in 0..5 {
        recv(&qa, wr_id, &[whole(&target)]);
    }
    qa.modify(&QpAttr::to_state(QpState::Error)).expect("error");
    // And what is posted later.
    recv(&qa, 5, &[whole(&target)]);
    send(&qa, 6, &[whole(&target)]);
    let flushed = a.collect_any(7);
    for (i, cqe) in flushed.iter().enumerate() {
        assert_eq!(cqe.completion.status, WcStatus::WR_FLUSH_ERR);
        assert_eq!(cqe.completion.wr_id, i as u64);
        assert_eq!(cqe.completion.is_send, i == 6);
    }
}

#[test]
fn wrong_keys_bounds_domains_and_rights_are_protection_errors() {
    let (a, b) = pair();
    let elsewhere = oarlock_device::Pd::new(&b.context);
    let own = b.pd.allocate(16, Access::LOCAL_WRITE).expect("region");
    let foreign_domain = elsewhere.allocate(16, Access::LOCAL_WRITE).expect("region");
    let read_only = b.pd.allocate(16, Access::empty()).expect("region");
    let gone = b.pd.allocate(16, Access::LOCAL_WRITE).expect("region");
    let gone_sge = whole(&gone);
    gone.deregister().expect("no window");
    let wrong = [
        ("another domain", whole(&foreign_domain)),
        ("no right to write", whole(&read_only)),
        ("deregistered", gone_sge),
        ("beyond the end", own.sge(1, 16)),
        ("before the start", own.sge(u64::MAX, 16)),
        (
            "around the end of the address space",
            Sge {
                addr: u64::MAX,
                len: 16,
                lkey: own.lkey(),
            },
        ),
        (
            "no such key",
            Sge {
                lkey: LKey(own.lkey().0 ^ 1),
                ..whole(&own)
            },
        ),
    ];
    let source = filled(&a, b"sixteen bytes...");
    for (what, sge) in wrong {
        let (qa, qb) = connected(&a, &b);
        recv(&qb, 1, &[sge]);
        send(&qa, 2, &[whole(&source)]);
        let received = b.collect_any(1).remove(0).completion;
        assert_eq!(received.status, WcStatus::LOC_PROT_ERR, "{what}");
        let sent = a.collect_any(1).remove(0).completion;
        assert_eq!(sent.status, WcStatus::REM_OP_ERR, "{what}");
    }
    for region in [&own, &foreign_domain, &read_only] {
        assert_eq!(content(region), [0; 16], "nothing was placed");
    }
    // A send from memory that is not there fails locally and sends nothing.
    let (qa, qb) = connected(&a, &b);
    recv(&qb, 1, &[whole(&own)]);
    send(&qa, 3, &[source.sge(8, 16)]);
    assert_eq!(
        a.collect_any(1)[0].completion.status,
        WcStatus::LOC_PROT_ERR
    );
    assert_eq!(content(&own), [0; 16]);
}

#[test]
fn the_first_request_is_reported_once_by_event_or_hook() {
    let (a, b) = pair();
    let exchange = |wanted: &dyn Fn(&Qp)| {
        let (qa, qb) = connected(&a, &b);
        wanted(&qb);
        for wr_id in 0..2 {
            recv(&qb, wr_id, &[]);
            send(&qa, wr_id, &[]);
        }
        b.collect(2);
        a.collect(2);
        (qa, qb)
    };
    let (_qa, qb) = exchange(&|_| ());
    assert_eq!(
        b.context.try_async_event(),
        Some(AsyncEvent::CommEst(qb.qpn()))
    );
    assert_eq!(b.context.try_async_event(), None);

    let (tell, told) = std::sync::mpsc::channel();
    let (_qa, qb) = exchange(&|qb| {
        let tell = tell.clone();
        qb.on_comm_est(Box::new(move |qpn| {
            let name = std::thread::current().name().map(str::to_owned);
            tell.send((qpn, name)).expect("receiver lives");
        }));
    });
    let (qpn, thread) = told.recv().expect("hook runs");
    assert_eq!((qpn, thread.as_deref()), (qb.qpn(), Some("oarlock-engine")));
    // Who asks too late is told at once, from his own thread.
    qb.on_comm_est(Box::new(move |qpn| {
        tell.send((qpn, None)).expect("receiver lives");
    }));
    assert_eq!(told.try_recv(), Ok((qb.qpn(), None)));
    assert!(told.try_recv().is_err(), "once each");

    let _pair = exchange(&|qb| qb.ignore_comm_est());
    assert_eq!(
        b.context.try_async_event(),
        None,
        "neither by hook nor by wish"
    );
}

#[test]
fn events_of_a_queue_pair_go_with_it() {
    let (a, b) = pair();
    for _ in 0..10 {
        let (qa, qb) = connected(&a, &b);
        recv(&qb, 1, &[]);
        send(&qa, 1, &[]);
        b.collect(1);
    }
    assert_eq!(b.context.try_async_event(), None);
}

#[test]
fn misuse_names_the_rule() {
    let (a, b) = pair();
    let too_deep = QpInit {
        max_send_wr: 1 << 20,
        ..QpInit::default()
    };
    let refused = Qp::new(&a.pd, &a.cq, &a.cq, too_deep).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "max_send_wr is 1048576, must be 0..=16384"
    );
    let refused = Qp::new(&a.pd, &a.cq, &b.cq, QpInit::default()).unwrap_err();
    let expected = "completion queue for receives belongs to another context";
    assert_eq!(refused.to_string(), expected);
    let qp = a.qp(QpInit::default());
    let init = AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS;
    let other_port = QpAttr {
        mask: init,
        state: QpState::Init,
        port_num: 2,
        ..QpAttr::default()
    };
    let refused = qp.modify(&other_port).unwrap_err();
    assert_eq!(refused.to_string(), "port number is 2, must be 1..=1");
    let large = QpAttr {
        mask: AttrMask::STATE | AttrMask::PATH_MTU,
        state: QpState::Rtr,
        path_mtu: Mtu::MTU_2048,
        ..QpAttr::default()
    };
    let refused = qp.modify(&large).unwrap_err();
    assert!(refused.to_string().starts_with("path MTU"), "{refused}");
    let refused = qp.post_send(&SendWr::default()).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "post_send is not allowed in state RESET"
    );
    assert_eq!(qp.state(), QpState::Reset);
}
