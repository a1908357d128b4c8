//! Completions one by one, events of the device, figures.

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

use std::time::Duration;

use end::{End, PATIENCE, ends, eventually};
use oarlock_verbs::{
    Buffers, CompletionChannel, CompletionQueue, Inline, Notify, Polling, QpInitAttr, QpState,
    QueuePair, SendRequest, VendorError, WcOpcode, WcStatus,
};

fn wait_for_completions(end: &End, count: usize) {
    let wanted = end::collect(&end.cq, count);
    drop(wanted);
}

/// Looks until something has completed.
fn start(cq: &CompletionQueue) -> Polling<'_> {
    let mut polling = None;
    eventually("a completion", || {
        polling = cq.start_poll().expect("poll");
        polling.is_some()
    });
    polling.expect("it came")
}

#[test]
fn a_look_at_the_queue_goes_from_one_to_the_next_and_takes_them_out() {
    let (a, b) = ends(QpInitAttr::default());
    for wr_id in 0..5 {
        b.qp.post_recv(wr_id, b.empty(8)).expect("post");
    }
    for imm in 0..4 {
        let byte = [imm as u8];
        let request = SendRequest::inline(imm.into(), &byte).imm(imm);
        a.qp.post_send(request).expect("post");
    }
    wait_for_completions(&a, 4);
    let mut polling = start(&b.cq);
    for number in 0..3 {
        assert_eq!(polling.wr_id(), u64::from(number));
        assert_eq!(polling.status(), WcStatus::SUCCESS);
        assert_eq!(polling.opcode(), WcOpcode::RECV);
        assert_eq!((polling.imm(), polling.byte_len()), (Some(number), 1));
        assert_eq!(polling.qpn(), b.qp.qpn());
        assert_eq!(polling.vendor_err(), VendorError::NONE);
        assert_eq!((polling.invalidated(), polling.srq()), (None, None));
        assert!(!polling.is_send());
        assert!(polling.timestamp() <= b.context.now());
        assert!(polling.timestamp() > oarlock_wire::Time::ZERO);
        assert!(polling.wall_clock() > std::time::UNIX_EPOCH);
        assert_eq!(polling.buffers()[0][0], number as u8);
        // Requests can be posted meanwhile, with the very buffers.
        let buffers = polling.take_buffers();
        assert!(polling.buffers().is_empty());
        b.qp.post_recv(100, buffers).expect("post");
        if number < 2 {
            eventually("the next", || polling.next());
        }
    }
    polling.end();
    // The fourth is still there.
    let fourth = b.ok();
    assert_eq!((fourth.wr_id, fourth.imm), (3, Some(3)));
    assert_eq!(b.cq.iter().count(), 0);
}

#[test]
fn a_look_that_finds_nothing_more_stays_on_the_last() {
    let (a, _b) = ends(QpInitAttr::default());
    let to_error = oarlock_verbs::QpAttr::to_state(QpState::Error);
    a.qp.modify(&to_error).expect("error");
    a.qp.post_send(SendRequest::new(9, a.buffer(b"back")))
        .expect("post");
    let mut polling = a.cq.start_poll().expect("poll").expect("flushed");
    assert!(!polling.next());
    assert_eq!(polling.wr_id(), 9);
    assert_eq!(polling.status(), WcStatus::WR_FLUSH_ERR);
    assert_eq!(polling.vendor_err(), VendorError::FLUSHED_AT_POST);
    let completion = polling.into_completion();
    assert_eq!(&completion.buffers[0][..], b"back");
    assert!(a.cq.start_poll().expect("poll").is_none());
}

#[test]
fn buffers_of_unsignaled_requests_come_with_a_look_too() {
    let (a, b) = ends(QpInitAttr::default());
    for wr_id in 0..3 {
        b.qp.post_recv(wr_id, b.empty(8)).expect("post");
    }
    for text in [b"one", b"two"] {
        a.qp.post_send(SendRequest::new(1, a.buffer(text)).unsignaled())
            .expect("post");
    }
    a.qp.post_send(SendRequest::inline(3, b"three"))
        .expect("post");
    wait_for_completions(&b, 3);
    let mut polling = start(&a.cq);
    assert_eq!(polling.wr_id(), 3);
    let earlier = polling.take_earlier();
    let texts: Vec<_> = earlier.iter().map(|buffer| buffer.to_vec()).collect();
    assert_eq!(texts, [b"one", b"two"]);
    assert!(polling.take_earlier().is_empty());
}

#[test]
fn the_iterator_ends_when_the_queue_is_empty_and_with_an_overrun() {
    let (a, b) = pair::contexts();
    let a = End::new(a, QpInitAttr::default());
    let pd = b.default_pd();
    let cq = CompletionQueue::new(&b, 2).expect("cq");
    let qp = QueuePair::create(&pd, &cq, &cq, QpInitAttr::default()).expect("qp");
    pair::connect(&a.qp, &qp);
    for wr_id in 0..4 {
        qp.post_recv(wr_id, Buffers::new()).expect("post");
    }
    a.qp.post_send(SendRequest::inline(1, b"")).expect("post");
    let mut got = Vec::new();
    eventually("a completion", || {
        got.extend(cq.iter().map(|one| one.expect("no overrun").wr_id));
        got == [0]
    });
    for _ in 0..3 {
        a.qp.post_send(SendRequest::inline(1, b"")).expect("post");
    }
    eventually("the overrun", || qp.state() == QpState::Error);
    let got: Vec<_> = cq.iter().map(|one| one.map(|one| one.wr_id)).collect();
    assert_eq!(got.len(), 3);
    assert_eq!(
        (got[0].as_ref().ok(), got[1].as_ref().ok()),
        (Some(&1), Some(&2))
    );
    assert!(got[2].is_err());
}

#[test]
fn size_and_moderation_can_be_changed() {
    let (a, b) = pair::contexts();
    let a = End::new(a, QpInitAttr::default());
    let channel = CompletionChannel::new(&b).expect("channel");
    let cq = CompletionQueue::with_channel(&b, 2, &channel).expect("cq");
    let qp = QueuePair::create(&b.default_pd(), &cq, &cq, QpInitAttr::default()).expect("qp");
    pair::connect(&a.qp, &qp);
    cq.resize(16).expect("resize");
    assert_eq!(cq.capacity(), 16);
    cq.moderate(2, Duration::from_micros(65_535))
        .expect("moderate");
    cq.req_notify(Notify::Any).expect("arm");
    for wr_id in 0..2 {
        qp.post_recv(wr_id, Buffers::new()).expect("post");
        a.qp.post_send(SendRequest::inline(1, b"")).expect("post");
        a.ok();
    }
    let event = channel.next_event(Some(PATIENCE)).expect("wait");
    let event = event.expect("an event");
    assert_eq!(event.cq_id(), cq.id());
    assert_eq!(cq.unacknowledged_events(), 1);
    drop(event);
    assert_eq!(cq.unacknowledged_events(), 0);
    // Moderation needs something to report on.
    a.cq.moderate(2, Duration::ZERO).expect_err("no channel");
}

#[test]
fn a_failure_says_which_rule_was_broken() {
    let (a, b) = ends(QpInitAttr::default());
    b.qp.post_recv(1, b.empty(2)).expect("post");
    a.qp.post_send(SendRequest::inline(1, b"too long"))
        .expect("post");
    let here = b.one();
    assert_eq!(here.status, WcStatus::LOC_LEN_ERR);
    assert_eq!(here.vendor_err, VendorError::MESSAGE_TOO_LONG);
    let there = a.one();
    assert_eq!(there.status, WcStatus::REM_INV_REQ_ERR);
    let error = there.ok().expect_err("failed");
    assert_eq!(error.vendor_err, VendorError::NAK_INVALID_REQUEST);
    assert_eq!(
        error.to_string(),
        "work request 1 failed: remote invalid request (the peer refused the request as invalid)"
    );
}

#[test]
fn figures_count_operations_under_the_names_of_rdma_statistic() {
    let (a, b) = ends(QpInitAttr::default());
    let figure = |end: &End, name: &str| {
        let all = end.context.statistics();
        all.iter().find(|(known, _)| *known == name).expect(name).1
    };
    let memory = oarlock_verbs::RemoteMemory::new(&b.pd, 64, pair::all_rights()).expect("memory");
    a.qp.post_send(SendRequest::write(1, Inline(b"x"), memory.at(0)))
        .expect("post");
    a.qp.post_send(SendRequest::read(2, a.empty(4), memory.at(0)))
        .expect("post");
    for wr_id in 3..5 {
        let request = SendRequest::fetch_add(wr_id, a.empty(8), memory.at(8), 1);
        a.qp.post_send(request).expect("post");
    }
    wait_for_completions(&a, 4);
    assert_eq!(figure(&b, "rx_write_requests"), 1);
    assert_eq!(figure(&b, "rx_read_requests"), 1);
    assert_eq!(figure(&b, "rx_atomic_requests"), 2);
    assert_eq!(figure(&b, "resp_remote_access_errors"), 0);
    let beyond = SendRequest::write(5, Inline(b"x"), memory.at(64));
    a.qp.post_send(beyond).expect("post");
    assert_eq!(a.one().status, WcStatus::REM_ACCESS_ERR);
    assert_eq!(figure(&b, "resp_remote_access_errors"), 1);
    assert_eq!(figure(&a, "req_remote_access_errors"), 1);
    assert_eq!(figure(&a, "req_cqe_error"), 1);
    assert_eq!(figure(&a, "req_cqe_flush_error"), 0);
}
