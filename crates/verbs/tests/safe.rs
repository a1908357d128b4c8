//! The safe API: content, ownership of buffers, whatever is dropped or forgotten.

#[path = "support/pair.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    reason = "shared with the crate's example"
)]
mod pair;

use std::collections::HashSet;
use std::mem;
use std::os::fd::AsFd;
use std::time::Duration;

use oarlock_port::Faults;
use oarlock_verbs::{
    Access, AsyncEvents, Buffer, Buffers, Completion, CompletionChannel, CompletionQueue, Context,
    CqEvent, Error, MemoryRegion, Notify, PostError, ProtectionDomain, QpInitAttr, QpState,
    QueuePair, SendRequest, WcOpcode, WcStatus,
};
use pair::{connect, contexts, contexts_with};

/// One end.
struct End {
    context: Context,
    pd: ProtectionDomain,
    cq: CompletionQueue,
    qp: QueuePair,
}

impl End {
    fn new(context: Context) -> Self {
        let pd = context.default_pd();
        let cq = CompletionQueue::new(&context, 256).expect("cq");
        let qp = QueuePair::create(&pd, &cq, &cq, QpInitAttr::default()).expect("qp");
        Self {
            context,
            pd,
            cq,
            qp,
        }
    }

    fn buffer(&self, bytes: &[u8]) -> Buffer {
        let mut buffer = Buffer::new(&self.pd, bytes.len()).expect("buffer");
        buffer.copy_from_slice(bytes);
        buffer
    }

    fn empty(&self, len: usize) -> Buffer {
        Buffer::new(&self.pd, len).expect("buffer")
    }

    fn collect(&self, count: usize) -> Vec<Completion> {
        let next = || self.cq.wait_one(Some(Duration::from_secs(300)));
        let completions = (0..count).map(|_| next().expect("wait").expect("a completion"));
        completions.collect()
    }

    fn one(&self) -> Completion {
        self.collect(1).remove(0)
    }
}

fn ends_with(faults: Faults) -> (End, End) {
    let (a, b) = contexts_with(faults);
    let (a, b) = (End::new(a), End::new(b));
    connect(&a.qp, &b.qp);
    (a, b)
}

fn ends() -> (End, End) {
    ends_with(Faults::default())
}

#[test]
fn buffers_go_in_and_come_back_with_their_bytes() {
    let (a, b) = ends();
    let halves = MemoryRegion::new(&b.pd, 20, Access::LOCAL_WRITE)
        .expect("region")
        .into_buffers(10);
    b.qp.post_recv(7, halves).expect("post");
    let message = [a.buffer(b"scatter "), a.buffer(b"and gather")];
    a.qp.post_send(SendRequest::new(8, message).imm(99).solicited())
        .expect("post");

    let received = b.one().ok().expect("success");
    assert_eq!(
        (received.wr_id, received.byte_len, received.imm),
        (7, 18, Some(99))
    );
    assert_eq!(
        (received.opcode, received.is_send, received.qpn),
        (WcOpcode::RECV, false, b.qp.qpn())
    );
    assert_eq!(&received.buffers[0][..], b"scatter an");
    assert_eq!(&received.buffers[1][..8], b"d gather");
    let sent = a.one().ok().expect("success");
    assert_eq!((sent.wr_id, sent.is_send, sent.buffers.len()), (8, true, 2));
    assert_eq!(&sent.buffers[0][..], b"scatter ");

    // The same buffers again, as often as one likes.
    let [mut first, second] =
        <[Buffer; 2]>::try_from(Vec::from_iter(received.buffers)).expect("two");
    first.set_len(3);
    b.qp.post_recv(9, [first, second]).expect("post");
    a.qp.post_send(SendRequest::inline(10, b"abcdef"))
        .expect("post");
    let received = b.one();
    assert_eq!(&received.buffers[0][..], b"abc");
    assert_eq!(received.buffers[0].capacity(), 10);
    assert_eq!(&received.buffers[1][..3], b"def");
}

#[test]
fn a_refused_request_gives_its_buffers_back() {
    let (a, _b) = ends();
    let six = MemoryRegion::new(&a.pd, 6, Access::LOCAL_WRITE)
        .expect("region")
        .into_buffers(1);
    let PostError { error, buffers } = a.qp.post_recv(1, six).expect_err("too many");
    assert_eq!(error.to_string(), "6 scatter/gather elements, at most 4");
    assert_eq!(buffers.len(), 6);
    let long = [7; 65];
    let refused =
        a.qp.post_send(SendRequest::inline(1, &long))
            .expect_err("too long");
    assert_eq!(refused.to_string(), "65 bytes of inline data, at most 64");
    // The numbering of requests is not upset by it.
    for wr_id in 0..64 {
        a.qp.post_recv(wr_id, a.empty(1)).expect("room");
    }
    let refused = a.qp.post_recv(64, a.empty(1)).expect_err("full");
    assert_eq!(
        refused.to_string(),
        "receive queue is full: 64 requests outstanding"
    );
    assert_eq!(refused.buffers.len(), 1);
    a.qp.to_error().expect("error");
    for (i, flushed) in a.collect(64).iter().enumerate() {
        assert_eq!((flushed.wr_id, flushed.buffers.len()), (i as u64, 1));
        assert_eq!(flushed.status, WcStatus::WR_FLUSH_ERR);
    }
}

#[test]
fn unsignaled_sends_return_with_a_later_completion() {
    let (a, b) = ends();
    for wr_id in 0..4 {
        b.qp.post_recv(wr_id, b.empty(8)).expect("post");
    }
    for wr_id in 0..3 {
        let request = SendRequest::new(wr_id, a.buffer(&[wr_id as u8])).unsignaled();
        a.qp.post_send(request).expect("post");
    }
    a.qp.post_send(SendRequest::new(3, a.buffer(b"x")))
        .expect("post");
    let sent = a.one();
    assert_eq!((sent.wr_id, sent.buffers.len()), (3, 1));
    let earlier: Vec<_> = sent.earlier.iter().map(|buffer| buffer[0]).collect();
    assert_eq!(earlier, [0, 1, 2]);
    // One that fails completes by itself.
    a.qp.to_error().expect("error");
    a.qp.post_send(SendRequest::new(4, a.buffer(b"y")).unsignaled())
        .expect("flushed");
    let flushed = a.one();
    assert_eq!(
        (flushed.wr_id, flushed.buffers.len(), flushed.earlier.len()),
        (4, 1, 0)
    );
    assert_eq!(
        flushed.ok().unwrap_err().to_string(),
        "work request 4 failed: work request flushed (flushed: the queue pair was in an error state when the request was posted)"
    );
}

#[test]
fn pieces_of_a_region_are_disjoint_and_join_again() {
    let (a, _b) = ends();
    let mut whole = a.empty(10);
    whole.copy_from_slice(b"0123456789");
    let mut tail = whole.split_off(4);
    tail[0] = b'x';
    assert_eq!((&whole[..], &tail[..]), (&b"0123"[..], &b"x56789"[..]));
    let end = tail.split_off(6);
    assert!(end.is_empty());
    let (tail, whole) = tail.join(whole).expect_err("wrong way round");
    let joined = whole
        .join(tail)
        .expect("adjacent")
        .join(end)
        .expect("adjacent");
    assert_eq!(&joined[..], b"0123x56789");
    let other = a.empty(1);
    assert!(joined.join(other).is_err());
    let sizes: Vec<_> = MemoryRegion::new(&a.pd, 10, Access::LOCAL_WRITE)
        .expect("region")
        .into_buffers(4)
        .iter()
        .map(|buffer| buffer.len())
        .collect();
    assert_eq!(sizes, [4, 4, 2]);
}

#[test]
fn another_domains_buffer_is_no_memory() {
    let (a, b) = ends();
    let elsewhere = ProtectionDomain::new(&b.context);
    b.qp.post_recv(1, Buffer::new(&elsewhere, 8).expect("buffer"))
        .expect("post");
    a.qp.post_send(SendRequest::inline(1, b"hello"))
        .expect("post");
    let failed = b.one();
    assert_eq!(failed.status, WcStatus::LOC_PROT_ERR);
    assert_eq!(&failed.buffers[0][..], [0; 8]);
    // Nor is one of another context's domain, whose keys mean nothing here.
    let (a, b) = ends();
    b.qp.post_recv(1, a.empty(8)).expect("post");
    a.qp.post_send(SendRequest::inline(1, b"hello"))
        .expect("post");
    let failed = b.one();
    assert_eq!(failed.status, WcStatus::LOC_PROT_ERR);
    assert_eq!(&failed.buffers[0][..], [0; 8]);
}

#[test]
fn all_memory_is_given_back() {
    let (a, b) = ends();
    for wr_id in 0..16 {
        b.qp.post_recv(wr_id, b.empty(100)).expect("post");
        a.qp.post_send(SendRequest::new(wr_id, a.buffer(&[1; 100])))
            .expect("post");
    }
    let received = b.collect(16);
    assert_eq!(b.context.region_count(), 16);
    drop(received);
    assert_eq!(b.context.region_count(), 0);

    let post = |qp: &QueuePair| {
        for wr_id in 0..16 {
            qp.post_recv(wr_id, b.empty(100)).expect("post");
        }
    };
    // Outstanding ones go with the queue pair, as soon as no thread of the device works for it.
    let gone = |what: &str| {
        let end = std::time::Instant::now() + Duration::from_secs(300);
        while b.context.region_count() > 0 {
            assert!(std::time::Instant::now() < end, "{what} keeps memory");
            std::thread::yield_now();
        }
    };
    let [first, second] = [(); 2].map(|()| {
        let cq = CompletionQueue::new(&b.context, 32).expect("cq");
        let qp = QueuePair::create(&b.pd, &cq, &cq, QpInitAttr::default()).expect("qp");
        qp.modify(&pair::init()).expect("init");
        (cq, qp)
    });
    post(&first.1);
    drop(first.1);
    gone("a dropped queue pair");
    // Those of completions go with the completion queue.
    post(&second.1);
    second.1.to_error().expect("error");
    drop(second.1);
    assert_eq!(b.context.region_count(), 16, "can still be polled");
    drop(second.0);
    gone("a dropped completion queue");
}

/// Every order of dropping and forgetting, with messages arriving all the time: nothing hangs or
/// crashes, and what has been received keeps its bytes.
#[test]
fn handles_may_go_in_any_order_under_fire() {
    for round in 0..60 {
        let (a, b) = ends();
        for wr_id in 0..16 {
            b.qp.post_recv(wr_id, b.empty(2000)).expect("post");
            let message = a.buffer(&vec![wr_id as u8; 2000]);
            a.qp.post_send(SendRequest::new(wr_id, message))
                .expect("post");
        }
        let some = if round % 2 == 0 {
            b.collect(3)
        } else {
            Vec::new()
        };
        for completion in &some {
            assert!(
                completion.buffers[0]
                    .iter()
                    .all(|byte| u64::from(*byte) == completion.wr_id)
            );
        }
        let End {
            context,
            pd,
            cq,
            qp,
        } = b;
        match round % 6 {
            0 => drop((qp, cq, pd, context)),
            1 => drop((context, pd, cq, qp)),
            2 => drop((cq, qp, context, pd)),
            3 => {
                mem::forget(qp);
                drop((cq, pd, context));
            }
            4 => {
                mem::forget(cq);
                mem::forget(some);
                drop((qp, pd, context));
                continue;
            }
            _ => {
                drop(qp);
                mem::forget(context);
            }
        }
        for completion in &some {
            assert!(
                completion.buffers[0]
                    .iter()
                    .all(|byte| u64::from(*byte) == completion.wr_id)
            );
        }
    }
}

#[test]
fn completions_outlive_their_queue_pair_and_reset_forgets() {
    let (a, b) = ends();
    b.qp.post_recv(1, b.empty(8)).expect("post");
    b.qp.post_recv(2, b.empty(8)).expect("post");
    a.qp.post_send(SendRequest::inline(1, b"hello"))
        .expect("post");
    a.one();
    // The peer has acknowledged, so its completion is in the queue as soon as this returns.
    b.qp.state();
    let End { cq, qp, .. } = b;
    let qpn = qp.qpn();
    drop(qp);
    let mut received = Vec::new();
    assert_eq!(cq.poll(&mut received).expect("poll"), 1);
    assert_eq!((received[0].wr_id, received[0].qpn), (1, qpn));
    assert_eq!(&received[0].buffers[0][..5], b"hello");

    let (a, b) = ends();
    b.qp.post_recv(1, b.empty(8)).expect("post");
    b.qp.modify(&oarlock_verbs::QpAttr::to_state(QpState::Reset))
        .expect("reset");
    assert_eq!(b.cq.poll(&mut received).expect("poll"), 0);
    drop(a);
}

#[test]
fn clones_are_one_queue_pair_and_threads_share_it() {
    let (a, b) = ends_with(Faults {
        seed: 7,
        loss: 0.02,
        duplicate: 0.02,
        reorder: 0.02,
    });
    const TOTAL: u64 = 400;
    std::thread::scope(|scope| {
        for part in 0..2 {
            let a = &a;
            let qp = a.qp.clone();
            scope.spawn(move || {
                for i in 0..TOTAL / 2 {
                    let wr_id = part * 1000 + i;
                    let message = a.buffer(&wr_id.to_le_bytes());
                    let mut request = SendRequest::new(wr_id, message);
                    // The queue is shorter than what two threads post.
                    while let Err(PostError { buffers, .. }) = qp.post_send(request) {
                        std::thread::yield_now();
                        request = SendRequest::new(wr_id, buffers);
                    }
                }
            });
        }
        scope.spawn(|| {
            for completion in collect_by_ones(&a, TOTAL) {
                let sent = u64::from_le_bytes(completion.buffers[0][..].try_into().expect("8"));
                assert_eq!(completion.wr_id, sent, "whose buffer");
            }
        });
        let mut seen = HashSet::new();
        for wr_id in 0..32 {
            b.qp.post_recv(wr_id, b.empty(8)).expect("post");
        }
        let mut posted = 32;
        while seen.len() < TOTAL as usize {
            for completion in b.collect(1) {
                let Completion { mut buffers, .. } = completion.ok().expect("success");
                let buffer = buffers.pop().expect("one");
                assert!(seen.insert(u64::from_le_bytes(buffer[..].try_into().expect("8"))));
                if posted < TOTAL {
                    b.qp.post_recv(posted, buffer).expect("post");
                    posted += 1;
                }
            }
        }
    });
}

fn collect_by_ones(end: &End, total: u64) -> Vec<Completion> {
    let mut all = Vec::new();
    while (all.len() as u64) < total {
        all.extend(end.collect(1));
    }
    all
}

#[test]
fn a_channel_reports_what_was_asked_for() {
    let (a, b) = contexts();
    let a = End::new(a);
    let channel = CompletionChannel::new(&b).expect("channel");
    let cq = CompletionQueue::with_channel(&b, 8, &channel).expect("cq");
    let pd = b.default_pd();
    let qp = QueuePair::create(&pd, &cq, &cq, QpInitAttr::default()).expect("qp");
    connect(&a.qp, &qp);
    qp.post_recv(1, Buffers::new()).expect("post");
    cq.req_notify(Notify::Any).expect("arm");
    assert!(channel.try_next_event().is_none());
    a.qp.post_send(SendRequest::inline(1, b"")).expect("post");
    let event = channel.next_event(None).expect("wait").expect("event");
    assert_eq!(event.cq_id(), cq.id());
    let mut out = Vec::new();
    assert_eq!(cq.poll(&mut out).expect("poll"), 1);
    assert!(
        channel
            .next_event(Some(Duration::ZERO))
            .expect("wait")
            .is_none()
    );
    let plain = CompletionQueue::new(&b, 8).expect("cq");
    assert!(plain.req_notify(Notify::Any).is_err());
    assert_eq!(
        plain
            .wait(&mut out, Some(Duration::from_millis(1)))
            .expect("wait"),
        0
    );
}

#[test]
fn the_default_domain_is_one_and_new_ones_are_others() {
    let (a, b) = contexts();
    assert_eq!(a.default_pd(), a.default_pd());
    assert_ne!(a.default_pd(), ProtectionDomain::new(&a));
    assert_ne!(a.default_pd(), b.default_pd());
    assert_eq!(a.default_pd().context(), &a);
    assert!(!a.is_device_fatal());
    let long = CompletionQueue::new(&a, 0).expect_err("zero");
    assert!(matches!(long, Error::Device(_)));
}

#[test]
fn handles_are_send_and_sync() {
    fn check<T: Send + Sync + 'static>() {}
    check::<Context>();
    check::<AsyncEvents>();
    check::<ProtectionDomain>();
    check::<MemoryRegion>();
    check::<Buffer>();
    check::<Buffers>();
    check::<CompletionQueue>();
    check::<CompletionChannel>();
    check::<CqEvent>();
    check::<Completion>();
    check::<QueuePair>();
    check::<SendRequest<'static>>();
    check::<Error>();
    check::<PostError>();
    fn has_descriptor<T: AsFd>() {}
    has_descriptor::<CompletionChannel>();
    has_descriptor::<AsyncEvents>();
}

#[test]
fn a_timeout_beyond_what_the_clock_can_express_is_none() {
    let (a, b) = contexts();
    let (a, b) = (End::new(a), End::new(b));
    connect(&a.qp, &b.qp);
    a.qp.post_recv(1, a.empty(8)).expect("post");
    let waiter = std::thread::spawn({
        let cq = a.cq.clone();
        move || cq.wait(&mut Vec::new(), Some(Duration::MAX))
    });
    b.qp.post_send(SendRequest::new(1, b.buffer(b"8 bytes.")))
        .expect("post");
    assert_eq!(waiter.join().expect("no panic").expect("wait"), 1);
}
