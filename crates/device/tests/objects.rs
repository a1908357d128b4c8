//! Queue pairs, shared receive queues and XRC domains: what goes with what, limits, and how each of them ends.

mod support;

use std::os::fd::AsFd;
use std::sync::Arc;

use oarlock_device::{
    Access, AsyncEvent, Cq, DeviceLimits, Error, Qp, QpInit, Srq, SrqInit, SrqXrc, Window,
    WindowType, XrcDomain,
};
use oarlock_port::{MemWire, Port};
use oarlock_transport::{
    AccessFlags, AttrMask, BindWindow, QpAttr, QpState, QpType, RecvWr, SendData, SendOp, SendWr,
    WcStatus,
};
use oarlock_wire::{AddressVector, RKey};
use support::ends::{Link, steps};
use support::{
    KEY, Side, Source, connect, content, device, eventually, filled, gid, host, pair, recv, send,
    ud_ready, ud_to, whole,
};

fn refusal<T>(result: Result<T, Error>) -> String {
    match result {
        Ok(_) => panic!("nothing was refused"),
        Err(error) => error.to_string(),
    }
}

fn domain(side: &Side) -> XrcDomain {
    XrcDomain::open(&side.context, None).expect("domain")
}

fn srq(side: &Side) -> Arc<Srq> {
    Arc::new(Srq::new(&side.pd, SrqInit::default()).expect("srq"))
}

fn xrc_srq(side: &Side, domain: &XrcDomain, cq: &Arc<Cq>) -> Srq {
    let xrc = SrqXrc {
        domain: domain.clone(),
        cq: Arc::clone(cq),
    };
    let init = SrqInit {
        xrc: Some(xrc),
        ..SrqInit::default()
    };
    Srq::new(&side.pd, init).expect("srq")
}

/// A queue pair of this type with what it needs.
fn of_type(side: &Side, qp_type: QpType) -> Qp {
    side.qp(QpInit {
        qp_type,
        xrc_domain: (qp_type == QpType::XrcTarget).then(|| domain(side)),
        ..QpInit::default()
    })
}

#[test]
fn each_type_of_queue_pair_takes_its_own_objects_of_its_own_context() {
    let (a, b) = pair();
    let xrc_queue = Arc::new(xrc_srq(&a, &domain(&a), &a.cq));
    let refused = |init: QpInit| refusal(Qp::new(&a.pd, &a.cq, &a.cq, init));
    let of = |qp_type| QpInit {
        qp_type,
        ..QpInit::default()
    };
    for (init, message) in [
        (
            of(QpType::XrcTarget),
            "XRC_RECV queue pairs need an XRC domain",
        ),
        (
            QpInit {
                xrc_domain: Some(domain(&a)),
                ..of(QpType::Rc)
            },
            "RC queue pairs take no XRC domain",
        ),
        (
            QpInit {
                xrc_domain: Some(domain(&a)),
                ..of(QpType::XrcInitiator)
            },
            "XRC_SEND queue pairs take no XRC domain",
        ),
        (
            QpInit {
                xrc_domain: Some(domain(&b)),
                ..of(QpType::XrcTarget)
            },
            "XRC domain belongs to another context",
        ),
        (
            QpInit {
                srq: Some(srq(&b)),
                ..of(QpType::Uc)
            },
            "shared receive queue belongs to another context",
        ),
        (
            QpInit {
                srq: Some(srq(&a)),
                ..of(QpType::XrcInitiator)
            },
            "XRC_SEND queue pairs take no shared receive queue of their own",
        ),
        (
            QpInit {
                srq: Some(xrc_queue),
                ..of(QpType::Rc)
            },
            "RC queue pairs take no shared receive queue of XRC",
        ),
    ] {
        assert_eq!(refused(init), message);
    }
    let of_queue = |xrc| {
        refusal(Srq::new(
            &a.pd,
            SrqInit {
                xrc: Some(xrc),
                ..SrqInit::default()
            },
        ))
    };
    let (own, other) = (domain(&a), domain(&b));
    let cq = |side: &Side| Arc::clone(&side.cq);
    assert_eq!(
        of_queue(SrqXrc {
            domain: other,
            cq: cq(&a)
        }),
        "XRC domain belongs to another context"
    );
    assert_eq!(
        of_queue(SrqXrc {
            domain: own,
            cq: cq(&b)
        }),
        "completion queue of the shared receive queue belongs to another context"
    );
    let null = std::fs::File::open("/dev/null").expect("a file");
    let shared = refusal(XrcDomain::open(&a.context, Some(null.as_fd())));
    assert!(
        shared.starts_with("an XRC domain of a file is shared"),
        "{shared}"
    );
}

#[test]
fn limits_of_the_device_are_named_and_what_goes_makes_room() {
    let wire = MemWire::new();
    let port = host(&wire, 1).open(3).expect("slot");
    let mut info = device("mem0", gid(1));
    info.limits = DeviceLimits {
        max_srq: 2,
        max_srq_wr: 10,
        max_srq_sge: 3,
        max_xrcd: 1,
        max_mcast_grp: 1,
        max_mcast_qp_attach: 1,
        ..DeviceLimits::default()
    };
    let side = Side::with_device(Source::new(Port::Mem(port)), info);
    let queue = |max_wr, max_sge| {
        Srq::new(
            &side.pd,
            SrqInit {
                max_wr,
                max_sge,
                ..SrqInit::default()
            },
        )
    };
    for (max_wr, max_sge, message) in [
        (
            0,
            1,
            "max_wr of the shared receive queue is 0, must be 1..=10",
        ),
        (
            11,
            1,
            "max_wr of the shared receive queue is 11, must be 1..=10",
        ),
        (
            1,
            0,
            "max_sge of the shared receive queue is 0, must be 1..=3",
        ),
        (
            1,
            4,
            "max_sge of the shared receive queue is 4, must be 1..=3",
        ),
    ] {
        assert_eq!(refusal(queue(max_wr, max_sge)), message);
    }
    let first = queue(10, 3).expect("srq");
    let _second = queue(1, 1).expect("srq");
    let message = "2 shared receive queues exist, which is the limit";
    assert_eq!(refusal(queue(1, 1)), message);
    drop(first);
    let third = queue(1, 1).expect("room again");
    assert_eq!(
        refusal(third.resize(11)),
        "max_wr of the shared receive queue is 11, must be 1..=10"
    );

    let one = domain(&side);
    let message = "1 XRC domains are open, which is the limit";
    assert_eq!(refusal(XrcDomain::open(&side.context, None)), message);
    // A clone is the same one.
    let clone = one.clone();
    drop(one);
    assert_eq!(refusal(XrcDomain::open(&side.context, None)), message);
    drop(clone);
    let _other = domain(&side);

    let (first, second) = (ud_ready(&side), ud_ready(&side));
    first.attach_multicast(support::group(1)).expect("attach");
    first
        .attach_multicast(support::group(1))
        .expect("attached already");
    assert_eq!(
        refusal(first.attach_multicast(support::group(2))),
        "multicast groups is 2, must be 0..=1"
    );
    assert_eq!(
        refusal(second.attach_multicast(support::group(1))),
        "queue pairs attached to one multicast group is 2, must be 0..=1"
    );
    first.detach_multicast(support::group(1)).expect("detach");
    second
        .attach_multicast(support::group(2))
        .expect("room again");
}

#[test]
fn a_shared_receive_queue_grows_shrinks_and_keeps_its_receives() {
    let (a, _b) = pair();
    let queue = Srq::new(
        &a.pd,
        SrqInit {
            max_wr: 2,
            max_sge: 1,
            ..SrqInit::default()
        },
    )
    .expect("srq");
    let post = |wr_id| queue.post_recv(&RecvWr { wr_id, sges: &[] });
    post(1).expect("room");
    let list = [2, 3, 4].map(|wr_id| RecvWr { wr_id, sges: &[] });
    let (index, error) = queue.post_recv_list(&list).unwrap_err();
    assert_eq!(
        (index, error.to_string()),
        (
            1,
            "shared receive queue is full: 2 requests outstanding".to_owned()
        )
    );
    queue.resize(3).expect("larger");
    assert_eq!(queue.query().max_wr, 3);
    post(3).expect("room");
    assert!(queue.resize(2).is_err(), "three are posted");
    assert!(queue.set_limit(4).is_err(), "never so many");
    queue.set_limit(3).expect("three are posted");
    assert_eq!(a.context.try_async_event(), None);
    queue.set_limit(0).expect("taken back");
    assert_eq!(queue.query().limit, 0);
    // Reached already: at once.
    let empty = srq(&a);
    empty.set_limit(1).expect("below the depth");
    assert_eq!(
        a.context.try_async_event(),
        Some(AsyncEvent::SrqLimitReached(empty.id()))
    );
    empty.set_limit(1).expect("below the depth");
    drop(empty);
    assert_eq!(a.context.try_async_event(), None, "its events go with it");
}

/// A queue pair keeps its shared receive queue; the queue's memory lives as long as anybody may write to it.
#[test]
fn a_shared_receive_queue_outlives_its_handle_while_queue_pairs_use_it() {
    let (a, b) = pair();
    let memory = Arc::new(());
    let queue = Arc::new(
        Srq::new(
            &b.pd,
            SrqInit {
                user: Some(memory.clone()),
                ..SrqInit::default()
            },
        )
        .expect("srq"),
    );
    let target = b.pd.allocate(5, Access::LOCAL_WRITE).expect("region");
    let sges = [whole(&target)];
    queue
        .post_recv(&RecvWr {
            wr_id: 4,
            sges: &sges,
        })
        .expect("posted");
    let receiver = b.qp(QpInit {
        srq: Some(queue),
        ..QpInit::default()
    });
    let sender = a.qp(QpInit::default());
    connect((&a, &sender), (&b, &receiver));
    let source = filled(&a, b"heard");
    send(&sender, 1, &[whole(&source)]);
    let received = b.collect(1);
    assert_eq!(content(&target), b"heard");
    drop(receiver);
    assert_eq!(Arc::strong_count(&memory), 2, "the completion shows it");
    drop(received);
    // The engine may have it in hand for a moment.
    eventually("the release", || Arc::strong_count(&memory) == 1);
}

/// Completions of an XRC queue that is gone are nobody's; its target refuses further messages for it.
#[test]
fn an_xrc_queue_ends_with_its_handle() {
    let (a, b) = pair();
    let domain = domain(&b);
    let queue = xrc_srq(&b, &domain, &b.cq);
    let number = queue.number();
    let initiator = of_type(&a, QpType::XrcInitiator);
    let target = b.qp(QpInit {
        qp_type: QpType::XrcTarget,
        xrc_domain: Some(domain),
        ..QpInit::default()
    });
    for (qp, peer, sides) in [
        (&initiator, &target, (&a, &b)),
        (&target, &initiator, (&b, &a)),
    ] {
        let link = Link::default();
        for attr in steps(qp.qp_type(), sides.0.gid, sides.1.gid, peer.qpn(), &link) {
            qp.modify(&attr).expect("modify");
        }
    }
    for call in [
        refusal(target.post_recv(&RecvWr::default())),
        refusal(initiator.post_recv(&RecvWr::default())),
    ] {
        assert!(
            call.starts_with("the queue pair has no receive queue"),
            "{call}"
        );
    }
    assert!(
        target.post_send(&SendWr::default()).is_err(),
        "a target sends nothing"
    );
    let say = || {
        let wr = SendWr {
            data: SendData::Inline(b"x"),
            xrc_srqn: number,
            ..SendWr::default()
        };
        initiator.post_send(&wr).expect("post_send");
        a.collect_any(1).remove(0).completion.status
    };
    let target_memory = b.pd.allocate(1, Access::LOCAL_WRITE).expect("region");
    let sges = [whole(&target_memory)];
    queue
        .post_recv(&RecvWr {
            wr_id: 1,
            sges: &sges,
        })
        .expect("posted");
    assert_eq!(say(), WcStatus::SUCCESS);
    drop(queue);
    assert!(!say().is_success(), "nobody takes it");
    assert_eq!(b.collect(1)[0].completion.srqn, number);
}

/// A target takes no buffers of a domain that is not its own, though they are of the same process.
#[test]
fn an_xrc_queue_of_another_domain_is_not_found() {
    let (a, b) = pair();
    let (own, other) = (domain(&b), domain(&b));
    // Both count from a number of their own, so that the other's is not one of ours.
    let elsewhere = xrc_srq(&b, &other, &b.cq);
    let queue = xrc_srq(&b, &own, &b.cq);
    assert_ne!(elsewhere.number(), queue.number());
    elsewhere
        .post_recv(&RecvWr::default())
        .expect("posted, and never taken");
    let initiator = of_type(&a, QpType::XrcInitiator);
    let target = b.qp(QpInit {
        qp_type: QpType::XrcTarget,
        xrc_domain: Some(own),
        ..QpInit::default()
    });
    for (qp, peer, sides) in [
        (&initiator, &target, (&a, &b)),
        (&target, &initiator, (&b, &a)),
    ] {
        let link = Link::default();
        for attr in steps(qp.qp_type(), sides.0.gid, sides.1.gid, peer.qpn(), &link) {
            qp.modify(&attr).expect("modify");
        }
    }
    let wr = SendWr {
        xrc_srqn: elsewhere.number(),
        ..SendWr::default()
    };
    initiator.post_send(&wr).expect("post_send");
    assert!(!a.collect_any(1)[0].completion.status.is_success());
    assert_eq!(
        refusal(other.open_target(target.qpn())),
        format!("the XRC domain has no target {}", target.qpn())
    );
}

/// A queue pair that begins anew leaves what is posted to its shared receive queue to whoever takes it next.
#[test]
fn reset_leaves_the_shared_receive_queue_alone() {
    let (a, b) = pair();
    let queue = srq(&b);
    for wr_id in 1..4 {
        let wr = RecvWr { wr_id, sges: &[] };
        queue.post_recv(&wr).expect("posted");
    }
    let receiver = b.qp(QpInit {
        srq: Some(Arc::clone(&queue)),
        ..QpInit::default()
    });
    for life in 1..4 {
        let sender = a.qp(QpInit::default());
        connect((&a, &sender), (&b, &receiver));
        send(&sender, 1, &[]);
        a.collect(1);
        assert_eq!(b.collect(1)[0].completion.wr_id, life);
        if life == 2 {
            receiver
                .modify(&QpAttr::to_state(QpState::Error))
                .expect("error");
        }
        receiver
            .modify(&QpAttr::to_state(QpState::Reset))
            .expect("reset");
    }
    assert!(a.cq.poll(&mut [None]).expect("poll") == 0);
}

/// More completions than the queue of an XRC shared receive queue holds: the target fails.
#[test]
fn an_overrun_by_an_xrc_target_fails_the_target() {
    let (a, b) = pair();
    let domain = domain(&b);
    let small = Arc::new(Cq::new(&b.context, 1, None, 0).expect("cq"));
    let queue = xrc_srq(&b, &domain, &small);
    let initiator = of_type(&a, QpType::XrcInitiator);
    let target = b.qp(QpInit {
        qp_type: QpType::XrcTarget,
        xrc_domain: Some(domain),
        ..QpInit::default()
    });
    for (qp, peer, sides) in [
        (&initiator, &target, (&a, &b)),
        (&target, &initiator, (&b, &a)),
    ] {
        let link = Link::default();
        for attr in steps(qp.qp_type(), sides.0.gid, sides.1.gid, peer.qpn(), &link) {
            qp.modify(&attr).expect("modify");
        }
    }
    for wr_id in 0..3 {
        queue
            .post_recv(&RecvWr { wr_id, sges: &[] })
            .expect("posted");
        let wr = SendWr {
            xrc_srqn: queue.number(),
            ..SendWr::default()
        };
        initiator.post_send(&wr).expect("post_send");
    }
    eventually("the failure", || target.state() == QpState::Error);
    let mut events = Vec::new();
    eventually("the event of the target", || {
        events.extend(b.context.try_async_event());
        events.contains(&AsyncEvent::QpFatal(target.qpn()))
    });
    assert!(events.contains(&AsyncEvent::CqOverrun(small.id())));
}

/// What a queue pair has bound is free when it is destroyed, and when it goes to Reset.
#[test]
fn windows_of_type_2_are_free_when_their_queue_pair_ends() {
    let (a, b) = pair();
    let memory =
        a.pd.allocate(
            16,
            Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::MW_BIND,
        )
        .expect("region");
    let window = Window::new(&a.pd, WindowType::Two).expect("window");
    let bind = |qp: &Qp, n: u32| {
        let rkey = RKey(window.rkey().0 & !0xff | n);
        let bind = BindWindow {
            window: window.rkey(),
            rkey,
            region: memory.lkey(),
            addr: memory.iova(),
            len: 16,
            access: AccessFlags::REMOTE_WRITE,
        };
        let wr = SendWr {
            op: SendOp::BindWindow(bind),
            ..SendWr::default()
        };
        qp.post_send(&wr).expect("post_send");
        a.collect_any(1).remove(0).completion.status
    };
    let connected = || {
        let (qa, qb) = (a.qp(QpInit::default()), b.qp(QpInit::default()));
        connect((&a, &qa), (&b, &qb));
        (qa, qb)
    };
    let (first, _peer) = connected();
    assert_eq!(bind(&first, 1), WcStatus::SUCCESS);
    assert!(window.bound().is_some());
    first
        .modify(&QpAttr::to_state(QpState::Reset))
        .expect("reset");
    assert_eq!(window.bound(), None);
    let (second, _peer) = connected();
    assert_eq!(bind(&second, 2), WcStatus::SUCCESS);
    drop(second);
    assert_eq!(window.bound(), None);
}

/// A queue pair of each type can be flushed, emptied and used again.
#[test]
fn every_type_is_flushed_by_error_and_emptied_by_reset() {
    let (a, b) = pair();
    for qp_type in [
        QpType::Rc,
        QpType::Uc,
        QpType::Ud,
        QpType::XrcInitiator,
        QpType::XrcTarget,
    ] {
        let (qp, peer) = match qp_type {
            QpType::Ud => (ud_ready(&a), ud_ready(&b)),
            _ => (of_type(&a, qp_type), of_type(&b, qp_type)),
        };
        let way = |qp: &Qp| {
            for attr in steps(qp_type, a.gid, b.gid, peer.qpn(), &Link::default()) {
                qp.modify(&attr).expect("modify");
            }
        };
        if qp_type != QpType::Ud {
            way(&qp);
        }
        let receives = matches!(qp_type, QpType::Rc | QpType::Uc | QpType::Ud);
        if receives {
            recv(&qp, 1, &[]);
            recv(&qp, 2, &[]);
        }
        qp.modify(&QpAttr::to_state(QpState::Error)).expect("error");
        let mut expected = if receives {
            vec![(1, false), (2, false)]
        } else {
            vec![]
        };
        if qp_type != QpType::XrcTarget {
            let ud = (qp_type == QpType::Ud).then(|| ud_to(&a, &b, &peer));
            let xrc_srqn =
                (qp_type == QpType::XrcInitiator).then_some(oarlock_wire::Srqn::truncate(1));
            let wr = SendWr {
                wr_id: 3,
                ud,
                xrc_srqn,
                ..SendWr::default()
            };
            qp.post_send(&wr).expect("flushed at once");
            expected.push((3, true));
        }
        let flushed: Vec<_> = a
            .collect_any(expected.len())
            .iter()
            .map(|cqe| {
                assert_eq!(cqe.completion.status, WcStatus::WR_FLUSH_ERR, "{qp_type}");
                (cqe.completion.wr_id, cqe.completion.is_send)
            })
            .collect();
        assert_eq!(flushed, expected, "{qp_type}");
        qp.modify(&QpAttr::to_state(QpState::Reset)).expect("reset");
        assert_eq!(
            (qp.state(), qp.query().mask),
            (QpState::Reset, AttrMask::empty())
        );
        if qp_type != QpType::Ud {
            way(&qp);
            assert_eq!(qp.state(), QpState::Rts);
        }
    }
}

/// A datagram to another device of this process is not for a queue pair of this one, whatever number it names.
#[test]
fn a_datagram_to_the_address_of_another_interface_is_dropped_and_counted() {
    let wire = MemWire::new();
    let both = wire
        .add_host(&[[10, 0, 0, 2].into(), [10, 0, 0, 3].into()])
        .expect("host");
    let port = both.open(7).expect("slot");
    let near = Side::new(Source::new(Port::Mem(port)), gid(2));
    let far = near.second_device(oarlock_device::DeviceInfo {
        index: 1,
        ifindex: 2,
        ..device("mem1", gid(3))
    });
    let sender_port = host(&wire, 1).open(3).expect("slot");
    let from = Side::new(Source::new(Port::Mem(sender_port)), gid(1));
    let (sender, receiver, other) = (ud_ready(&from), ud_ready(&near), ud_ready(&far));
    for (qp, side) in [(&receiver, &near), (&other, &far)] {
        let buffer = side.pd.allocate(42, Access::LOCAL_WRITE).expect("region");
        recv(qp, 1, &[whole(&buffer)]);
        let post = |to: &Side| {
            sender
                .post_send(&SendWr {
                    data: SendData::Inline(b"hi"),
                    ud: Some(oarlock_transport::UdDestination {
                        av: AddressVector::new(from.gid, to.gid),
                        remote_qpn: qp.qpn(),
                        remote_qkey: KEY,
                    }),
                    ..SendWr::default()
                })
                .expect("post_send");
            from.collect(1);
        };
        let before = near.counter("wrong_interface");
        let wrong = if side.gid == near.gid { &far } else { &near };
        post(wrong);
        eventually("the drop", || near.counter("wrong_interface") == before + 1);
        post(side);
        assert_eq!(side.collect(1)[0].qpn(), qp.qpn());
        assert_eq!(content(&buffer)[40..], *b"hi");
    }
}
