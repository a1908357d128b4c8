//! Shared receive queues and XRC.

#[path = "support/end.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    reason = "shared by the tests"
)]
mod end;
#[path = "support/pair.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    reason = "shared with the crate's examples"
)]
mod pair;

use std::collections::HashSet;

use end::{End, collect, eventually, next_event, one, waiting_event};
use oarlock_verbs::{
    AsyncEvent, CompletionQueue, Context, Error, Inline, QpAttr, QpInitAttr, QpState, QpType,
    QueuePair, RemoteMemory, SendRequest, SharedReceiveQueue, SrqInitAttr, WcOpcode, WcStatus,
    XrcDomain,
};
use pair::{all_rights, connect, contexts};

/// A receiver whose queue pairs share their receives, and senders that are connected to one each.
struct Crowd {
    senders: Vec<End>,
    context: Context,
    srq: SharedReceiveQueue,
    cq: CompletionQueue,
    receivers: Vec<QueuePair>,
}

impl Crowd {
    fn new(qp_type: QpType, count: usize, srq: SrqInitAttr) -> Self {
        let (a, b) = contexts();
        let attr = QpInitAttr {
            qp_type,
            ..QpInitAttr::default()
        };
        let pd = b.default_pd();
        let srq = SharedReceiveQueue::new(&pd, srq).expect("srq");
        let cq = CompletionQueue::new(&b, 256).expect("cq");
        let mut senders = Vec::new();
        let mut receivers = Vec::new();
        for _ in 0..count {
            let sender = End::new(a.clone(), attr);
            let receiver = QueuePair::with_srq(&pd, &cq, &cq, &srq, attr).expect("qp");
            connect(&sender.qp, &receiver);
            senders.push(sender);
            receivers.push(receiver);
        }
        Self {
            senders,
            context: b,
            srq,
            cq,
            receivers,
        }
    }

    fn post(&self, wr_id: u64, len: usize) {
        let buffer = oarlock_verbs::Buffer::new(self.srq.pd(), len).expect("buffer");
        self.srq.post_recv(wr_id, buffer).expect("post");
    }
}

#[test]
fn any_queue_pair_takes_a_receive_and_brings_its_own_buffer_back() {
    let crowd = Crowd::new(QpType::Rc, 3, SrqInitAttr::default());
    for wr_id in 100..112 {
        crowd.post(wr_id, 64);
    }
    for round in 0..4 {
        for (i, sender) in crowd.senders.iter().enumerate() {
            let text = format!("sender {i} round {round}");
            sender
                .qp
                .post_send(SendRequest::inline(1, text.as_bytes()))
                .expect("post");
            sender.ok();
            let got = one(&crowd.cq);
            assert_eq!(got.status, WcStatus::SUCCESS);
            assert_eq!(got.message(), Some(text.as_bytes()));
            assert_eq!(got.qpn, crowd.receivers[i].qpn());
            assert_eq!((got.srq, got.srqn), (Some(crowd.srq.id()), None));
            // Oldest first, one at a time.
            assert_eq!(got.wr_id, 100 + 3 * round + i as u64);
        }
    }
}

#[test]
fn messages_that_overlap_complete_each_with_its_own_bytes() {
    const LEN: usize = 100_000;
    let crowd = Crowd::new(QpType::Rc, 4, SrqInitAttr::default());
    for wr_id in 0..40 {
        crowd.post(wr_id, LEN);
    }
    std::thread::scope(|scope| {
        for (i, sender) in crowd.senders.iter().enumerate() {
            scope.spawn(move || {
                for round in 0..10 {
                    let data = vec![(16 * i + round) as u8; LEN];
                    let buffer = sender.buffer(&data);
                    sender
                        .qp
                        .post_send(SendRequest::new(1, buffer))
                        .expect("post");
                    sender.ok();
                }
            });
        }
        let received = collect(&crowd.cq, 40);
        let numbers: HashSet<_> = received.iter().map(|one| one.wr_id).collect();
        assert_eq!(numbers.len(), 40, "each receive completes once");
        for (i, receiver) in crowd.receivers.iter().enumerate() {
            let of_it = received.iter().filter(|one| one.qpn == receiver.qpn());
            for (round, one) in of_it.enumerate() {
                let message = one.message().expect("message");
                let expected = (16 * i + round) as u8;
                assert!(message.iter().all(|byte| *byte == expected));
                assert_eq!(message.len(), LEN);
            }
        }
    });
}

#[test]
fn a_queue_pair_of_a_shared_queue_takes_no_receives_of_its_own() {
    let crowd = Crowd::new(QpType::Rc, 1, SrqInitAttr::default());
    let buffer = oarlock_verbs::Buffer::new(crowd.srq.pd(), 8).expect("buffer");
    let refused = crowd.receivers[0]
        .post_recv(1, buffer)
        .expect_err("refused");
    assert!(refused.to_string().contains("shared"), "{refused}");
    assert_eq!(refused.buffers.len(), 1);
    assert_eq!(crowd.receivers[0].srq(), Some(&crowd.srq));
}

#[test]
fn a_full_queue_and_too_many_buffers_are_refused_with_the_buffers() {
    let sizes = SrqInitAttr {
        max_wr: 2,
        max_sge: 1,
    };
    let crowd = Crowd::new(QpType::Rc, 1, sizes);
    let buffer = |len| oarlock_verbs::Buffer::new(crowd.srq.pd(), len).expect("buffer");
    let refused = crowd
        .srq
        .post_recv(1, [buffer(3), buffer(4)])
        .expect_err("two");
    assert_eq!(refused.buffers.len(), 2);
    crowd.post(1, 8);
    crowd.post(2, 8);
    let refused = crowd.srq.post_recv(3, buffer(5)).expect_err("full");
    assert_eq!(refused.buffers[0].len(), 5);
    // Larger, and then not smaller than what is posted.
    crowd.srq.resize(3).expect("resize");
    crowd.post(3, 8);
    crowd.srq.resize(2).expect_err("three are posted");
    assert_eq!(crowd.srq.query().max_wr, 3);
    // What was refused left nothing behind: the three come back in order.
    for text in [b"1", b"2", b"3"] {
        crowd.senders[0]
            .qp
            .post_send(SendRequest::inline(1, text))
            .expect("post");
    }
    let got: Vec<_> = collect(&crowd.cq, 3).iter().map(|one| one.wr_id).collect();
    assert_eq!(got, [1, 2, 3]);
}

#[test]
fn a_list_of_receives_stops_at_the_first_that_is_refused() {
    let sizes = SrqInitAttr {
        max_wr: 3,
        max_sge: 1,
    };
    let crowd = Crowd::new(QpType::Rc, 1, sizes);
    let buffer = |len| oarlock_verbs::Buffer::new(crowd.srq.pd(), len).expect("buffer");
    let refused = crowd
        .srq
        .post_recv_list((10..15).map(|wr_id| (wr_id, buffer(wr_id as usize))))
        .expect_err("three have room");
    assert_eq!(refused.index, 3);
    let lens: Vec<_> = refused.buffers.iter().map(|one| one[0].len()).collect();
    assert_eq!(lens, [13, 14]);
    for wr_id in 10..13 {
        crowd.senders[0]
            .qp
            .post_send(SendRequest::inline(1, b"x"))
            .expect("post");
        let got = one(&crowd.cq);
        assert_eq!((got.wr_id, got.buffers[0].len()), (wr_id, wr_id as usize));
    }
    // As with a queue pair's own queue.
    let (a, b) = end::ends(QpInitAttr {
        max_recv_wr: 2,
        ..QpInitAttr::default()
    });
    let refused =
        b.qp.post_recv_list((0..4).map(|wr_id| (wr_id, b.empty(8 + wr_id as usize))))
            .expect_err("two have room");
    assert_eq!((refused.index, refused.buffers.len()), (2, 2));
    assert_eq!(refused.buffers[0][0].len(), 10);
    b.qp.post_recv_list([(9, oarlock_verbs::Buffers::new())])
        .expect_err("full");
    for wr_id in 0..2 {
        a.qp.post_send(SendRequest::inline(1, b"x")).expect("post");
        assert_eq!(b.ok().wr_id, wr_id);
    }
    let none: [(u64, oarlock_verbs::Buffers); 0] = [];
    b.qp.post_recv_list(none).expect("nothing");
    b.qp.post_recv(5, b.empty(8)).expect("the queue goes on");
    a.qp.post_send(SendRequest::inline(1, b"y")).expect("post");
    assert_eq!(b.ok().wr_id, 5);
}

#[test]
fn the_limit_event_comes_once_and_is_armed_again() {
    let crowd = Crowd::new(QpType::Rc, 1, SrqInitAttr::default());
    for wr_id in 0..4 {
        crowd.post(wr_id, 8);
    }
    crowd.srq.set_limit(3).expect("limit");
    let send = || {
        crowd.senders[0]
            .qp
            .post_send(SendRequest::inline(1, b"x"))
            .expect("post");
        crowd.senders[0].ok();
        one(&crowd.cq);
    };
    send();
    assert_eq!(waiting_event(&crowd.context), None, "three are left");
    send();
    let limit = AsyncEvent::SrqLimitReached(crowd.srq.id());
    assert_eq!(waiting_event(&crowd.context), Some(limit));
    send();
    assert_eq!(waiting_event(&crowd.context), None, "disarmed");
    assert_eq!(crowd.srq.query().limit, 0);
    // Below it already: at once.
    crowd.srq.set_limit(2).expect("limit");
    assert_eq!(waiting_event(&crowd.context), Some(limit));
}

#[test]
fn a_queue_pair_in_error_says_when_it_has_taken_its_last_receive() {
    let crowd = Crowd::new(QpType::Rc, 2, SrqInitAttr::default());
    for wr_id in 0..4 {
        crowd.post(wr_id, 8);
    }
    crowd.receivers[0].to_error().expect("error");
    let last = AsyncEvent::LastWqeReached(crowd.receivers[0].qpn());
    assert_eq!(next_event(&crowd.context), last);
    // The receives are the other's.
    crowd.senders[1]
        .qp
        .post_send(SendRequest::inline(1, b"other"))
        .expect("post");
    let got = one(&crowd.cq);
    assert_eq!((got.wr_id, got.message()), (0, Some(&b"other"[..])));
}

#[test]
fn datagrams_and_unreliable_connections_share_receives_too() {
    let crowd = Crowd::new(QpType::Uc, 2, SrqInitAttr::default());
    for wr_id in 0..4 {
        crowd.post(wr_id, 32);
    }
    for (i, sender) in crowd.senders.iter().enumerate() {
        sender
            .qp
            .post_send(SendRequest::inline(1, &[i as u8]).imm(7))
            .expect("post");
        let got = one(&crowd.cq);
        assert_eq!(got.message(), Some(&[i as u8][..]));
        assert_eq!((got.wr_id, got.imm), (i as u64, Some(7)));
    }

    // And UD.
    let attr = QpInitAttr {
        qp_type: QpType::Ud,
        ..QpInitAttr::default()
    };
    let pd = crowd.srq.pd();
    let srq = SharedReceiveQueue::new(pd, SrqInitAttr::default()).expect("srq");
    let receiver = QueuePair::with_srq(pd, &crowd.cq, &crowd.cq, &srq, attr).expect("qp");
    let sender = End::new(crowd.senders[0].context.clone(), attr);
    let key = oarlock_wire::QKey(0x1234);
    pair::connect_with(&sender.qp, &receiver, |attr| attr.qkey = key);
    let remote = crowd.context.device().gids[0];
    let attr = oarlock_verbs::AddressHandleAttr {
        remote,
        ..Default::default()
    };
    let ah = oarlock_verbs::AddressHandle::new(&sender.pd, attr).expect("ah");
    for (wr_id, text) in [(10, &b"first"[..]), (11, b"second")] {
        let room = oarlock_verbs::Buffer::new(pd, oarlock_verbs::GRH_LEN + 10);
        srq.post_recv(wr_id, room.expect("buffer")).expect("post");
        let request = SendRequest::inline(1, text).to(&ah, receiver.qpn(), key);
        sender.qp.post_send(request).expect("post");
        let got = one(&crowd.cq);
        assert_eq!((got.wr_id, got.message()), (wr_id, Some(text)));
        assert_eq!((got.src_qp, got.srq), (sender.qp.qpn(), Some(srq.id())));
    }
}

/// XRC: one connection, and the message says which queue it is for.
struct Xrc {
    initiator: End,
    target: QueuePair,
    domain: XrcDomain,
    context: Context,
}

impl Xrc {
    fn new() -> Self {
        let (a, b) = contexts();
        let initiator = End::new(
            a,
            QpInitAttr {
                qp_type: QpType::XrcInitiator,
                ..QpInitAttr::default()
            },
        );
        let domain = XrcDomain::open(&b).expect("domain");
        let unused = CompletionQueue::new(&b, 1).expect("cq");
        let target = QueuePair::xrc_target(&b.default_pd(), &unused, &domain).expect("target");
        connect(&initiator.qp, &target);
        Self {
            initiator,
            target,
            domain,
            context: b,
        }
    }

    fn queue(&self) -> (SharedReceiveQueue, CompletionQueue) {
        let cq = CompletionQueue::new(&self.context, 64).expect("cq");
        let pd = self.context.default_pd();
        let attr = SrqInitAttr::default();
        let srq = SharedReceiveQueue::xrc(&pd, attr, &self.domain, &cq).expect("srq");
        (srq, cq)
    }
}

#[test]
fn an_xrc_message_goes_to_the_queue_that_it_names_and_completes_there() {
    let xrc = Xrc::new();
    let queues = [xrc.queue(), xrc.queue()];
    for (i, (srq, _)) in queues.iter().enumerate() {
        let buffer = oarlock_verbs::Buffer::new(srq.pd(), 32).expect("buffer");
        srq.post_recv(40 + i as u64, buffer).expect("post");
        assert_eq!(srq.xrc_domain(), Some(&xrc.domain));
    }
    for (i, (srq, cq)) in queues.iter().enumerate().rev() {
        let number = srq.number().expect("a number");
        let text = format!("for queue {i}");
        let request = SendRequest::inline(1, text.as_bytes()).srqn(number);
        xrc.initiator.qp.post_send(request.imm(9)).expect("post");
        xrc.initiator.ok();
        let got = one(cq);
        assert_eq!(got.message(), Some(text.as_bytes()));
        assert_eq!((got.wr_id, got.imm), (40 + i as u64, Some(9)));
        assert_eq!((got.srqn, got.srq), (Some(number), Some(srq.id())));
        assert_eq!(got.qpn, xrc.target.qpn());
    }
}

#[test]
fn xrc_does_the_one_sided_operations_in_the_domain_of_the_queue_that_it_names() {
    let xrc = Xrc::new();
    let (srq, cq) = xrc.queue();
    let number = srq.number().expect("a number");
    let memory = RemoteMemory::new(srq.pd(), 64, all_rights()).expect("memory");
    memory.store_u64(0, 5).expect("store");
    let initiator = &xrc.initiator;
    let request = SendRequest::fetch_add(1, initiator.empty(8), memory.at(0), 6);
    initiator.qp.post_send(request.srqn(number)).expect("post");
    assert_eq!(initiator.ok().buffers[0][..], 5_u64.to_ne_bytes());
    let request = SendRequest::read(2, initiator.empty(8), memory.at(0));
    initiator.qp.post_send(request.srqn(number)).expect("post");
    assert_eq!(initiator.ok().buffers[0][..], 11_u64.to_ne_bytes());
    srq.post_recv(3, oarlock_verbs::Buffers::new())
        .expect("post");
    let request = SendRequest::write_imm(4, Inline(b"abc"), memory.at(8), 77);
    initiator.qp.post_send(request.srqn(number)).expect("post");
    let got = one(&cq);
    assert_eq!(got.opcode, WcOpcode::RECV_RDMA_WITH_IMM);
    assert_eq!((got.imm, got.srqn), (Some(77), Some(number)));
    let mut bytes = [0; 3];
    memory.read_at(8, &mut bytes).expect("read");
    assert_eq!(&bytes, b"abc");
}

#[test]
fn a_message_for_a_queue_that_is_gone_is_refused() {
    let xrc = Xrc::new();
    let (srq, cq) = xrc.queue();
    let number = srq.number().expect("a number");
    drop((srq, cq));
    let request = SendRequest::inline(1, b"nobody");
    xrc.initiator
        .qp
        .post_send(request.srqn(number))
        .expect("post");
    assert_eq!(xrc.initiator.one().status, WcStatus::REM_INV_REQ_ERR);
    // And a message that names none is not posted at all.
    let fresh = Xrc::new();
    let refused = fresh.initiator.qp.post_send(SendRequest::inline(1, b"x"));
    let refused = refused.expect_err("names no queue");
    assert!(
        refused.to_string().contains("shared receive queue"),
        "{refused}"
    );
}

#[test]
fn a_target_lives_until_its_last_handle() {
    let xrc = Xrc::new();
    let (srq, cq) = xrc.queue();
    let number = srq.number().expect("a number");
    let second = xrc.domain.open_target(xrc.target.qpn()).expect("target");
    assert_eq!(second.qpn(), xrc.target.qpn());
    assert_eq!(second.state(), QpState::Rts);
    let qpn = second.qpn();
    drop(xrc.target);
    let buffer = oarlock_verbs::Buffer::new(srq.pd(), 8).expect("buffer");
    srq.post_recv(1, buffer).expect("post");
    let request = SendRequest::inline(1, b"still").srqn(number);
    xrc.initiator.qp.post_send(request).expect("post");
    assert_eq!(one(&cq).message(), Some(&b"still"[..]));
    drop(second);
    let gone = xrc.domain.open_target(qpn).expect_err("gone");
    assert!(matches!(gone, Error::Device(_)), "{gone}");
}

#[test]
fn a_queue_pair_that_is_dropped_with_receives_taken_frees_them_with_the_queue() {
    let crowd = Crowd::new(QpType::Rc, 1, SrqInitAttr::default());
    crowd.post(1, 8);
    crowd.post(2, 8);
    assert_eq!(crowd.context.region_count(), 2);
    let Crowd {
        senders,
        context,
        srq,
        cq,
        receivers,
    } = crowd;
    senders[0]
        .qp
        .post_send(SendRequest::inline(1, b"x"))
        .expect("post");
    senders[0].ok();
    drop(receivers);
    // The completion is in the queue still, and brings its buffer back.
    let got = one(&cq);
    assert_eq!((got.wr_id, got.message()), (1, Some(&b"x"[..])));
    drop(got);
    assert_eq!(context.region_count(), 1, "the other is posted");
    drop((srq, cq));
    // A thread of the device may hold the queue pair still.
    eventually("the end of the last region", || context.region_count() == 0);
}

#[test]
fn attributes_can_be_queried() {
    let crowd = Crowd::new(QpType::Rc, 1, SrqInitAttr::default());
    let attr = crowd.srq.query();
    assert_eq!((attr.max_wr, attr.max_sge, attr.limit), (64, 4, 0));
    let too_deep = SrqInitAttr {
        max_wr: u32::MAX,
        ..SrqInitAttr::default()
    };
    let refused = SharedReceiveQueue::new(crowd.srq.pd(), too_deep).expect_err("too deep");
    let max = crowd.context.device().limits.max_srq_wr.to_string();
    assert!(refused.to_string().contains(&max), "{refused}");
    let attr: QpAttr = crowd.receivers[0].query();
    assert_eq!(attr.state, QpState::Rts);
}
