//! Completion queues and shared receive queues.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use oarlock_device::{CompChannel, Cq, Error, Notify, Qp, QpInit, Srq, SrqInit};
use oarlock_transport::{QpState, QpType, RecvWr, SendOp, SendWr, WcStatus};

use crate::cases;
use crate::conn::Conn;
use crate::end::{End, content};
use crate::support::ends::{Link, steps};
use crate::support::{collect, eventually};

cases! {
    /// One arming gives one event, for any completion or for solicited ones and failures.
    notification: |end| paced(end, 5), notified;
    /// Grows and shrinks with completions in it; none is lost.
    resize: |end| paced(end, 6), resized;
    /// So many completions or so long: then an event.
    moderation: |end| paced(end, 6), moderated;
    /// Completions carry the time at which they came.
    timestamps: |end| paced(end, 5), stamped;
    /// Polling one by one and many at once gives the same completions.
    polling: |end| paced(end, 7), polled;
    /// Buffers of one queue serve several queue pairs, in the order of posting, and complete on each one's queue.
    shared_receives: shared_from, shared_into;
    /// The queue's depth and number of elements are what was asked for; it is resized with buffers in it.
    shared_receive_queue_size: |end| end.meet(), sized;
}

/// Sends empty messages, each when the other side says so.
fn paced(end: &mut End, count: usize) {
    let conn = end.open(QpType::Rc);
    for n in 0..count {
        end.meet();
        conn.post(&SendWr {
            solicited: n % 2 == 1,
            ..conn.wr(SendOp::Send)
        });
        assert_eq!(end.next().status, WcStatus::SUCCESS);
        end.meet();
    }
    end.meet();
}

/// The other side of [`paced`]: a queue of its own for receives.
struct Receiver {
    qp: Qp,
    cq: Arc<Cq>,
    channel: Arc<CompChannel>,
}

fn receiver(end: &mut End, capacity: u32) -> Receiver {
    let channel = CompChannel::new(&end.side.context).expect("channel");
    let cq = Cq::new(&end.side.context, capacity, Some(&channel), 42).expect("cq");
    let cq = Arc::new(cq);
    let qp = Qp::new(&end.side.pd, &end.side.cq, &cq, QpInit::default()).expect("qp");
    let [peer, _] = end.swap([qp.qpn().get().into(), 0]);
    let peer = oarlock_wire::Qpn::truncate(peer as u32);
    for attr in steps(QpType::Rc, end.here, end.there, peer, &Link::default()) {
        qp.modify(&attr).expect("modify");
    }
    end.meet();
    for wr_id in 0..10 {
        qp.post_recv(&RecvWr { wr_id, sges: &[] }).expect("recv");
    }
    Receiver { qp, cq, channel }
}

impl Receiver {
    /// Lets the other side send one message; it has completed here when this returns.
    fn one(&self, end: &mut End) {
        end.meet();
        end.meet();
        // The acknowledgement leaves under the lock under which the completion is entered.
        self.qp.state();
    }

    fn numbers(&self, count: usize) -> Vec<u64> {
        let all = collect(&self.cq, count);
        all.iter().map(|cqe| cqe.completion.wr_id).collect()
    }

    fn is_told(&self) -> bool {
        self.channel.try_event().is_some()
    }
}

fn notified(end: &mut End) {
    let at = receiver(end, 16);
    at.one(end);
    assert!(!at.is_told(), "not armed");
    at.cq.req_notify(Notify::Any).expect("arm");
    at.one(end);
    let event = at.channel.try_event().expect("an event");
    assert_eq!((event.cookie(), event.is_for(&at.cq)), (42, true));
    assert_eq!(at.cq.unacknowledged_events(), 1);
    drop(event);
    assert_eq!(at.cq.unacknowledged_events(), 0);
    at.one(end);
    assert!(!at.is_told(), "one for one arming");
    at.cq.req_notify(Notify::Solicited).expect("arm");
    at.one(end);
    assert!(at.is_told());
    at.cq.req_notify(Notify::Solicited).expect("arm");
    at.one(end);
    assert!(!at.is_told(), "not solicited");
    // A failure always is.
    at.qp
        .modify(&oarlock_transport::QpAttr::to_state(QpState::Error))
        .expect("error");
    assert!(at.is_told());
    assert_eq!(at.numbers_of_any(10), (0..10).collect::<Vec<_>>());
    end.meet();
}

impl Receiver {
    fn numbers_of_any(&self, count: usize) -> Vec<u64> {
        let mut all = Vec::new();
        eventually("every completion", || {
            while let Some(cqe) = self.cq.poll_one().expect("poll") {
                all.push(cqe.completion.wr_id);
            }
            all.len() >= count
        });
        all
    }
}

fn resized(end: &mut End) {
    let at = receiver(end, 3);
    for _ in 0..3 {
        at.one(end);
    }
    at.cq.resize(6).expect("larger");
    assert_eq!(at.cq.capacity(), 6);
    for _ in 0..3 {
        at.one(end);
    }
    let refused = at.cq.resize(5).unwrap_err();
    assert!(
        matches!(
            refused,
            Error::OutOfRange {
                given: 5,
                min: 6,
                ..
            }
        ),
        "{refused}"
    );
    assert_eq!(at.numbers(4), [0, 1, 2, 3]);
    at.cq.resize(2).expect("as many as wait");
    assert_eq!(at.numbers(2), [4, 5]);
    assert_eq!(at.qp.state(), QpState::Rts);
    end.meet();
}

fn moderated(end: &mut End) {
    let at = receiver(end, 16);
    at.cq
        .moderate(3, Duration::from_micros(65_535))
        .expect("moderate");
    at.cq.req_notify(Notify::Any).expect("arm");
    for _ in 0..3 {
        at.one(end);
    }
    assert!(at.is_told(), "with the third at the latest");
    assert!(!at.is_told());
    at.cq.req_notify(Notify::Any).expect("arm");
    at.one(end);
    // Alone: after the period.
    eventually("the event", || at.is_told());
    at.cq.moderate(0, Duration::ZERO).expect("moderate");
    for _ in 0..2 {
        at.cq.req_notify(Notify::Any).expect("arm");
        at.one(end);
        assert!(at.is_told(), "each at once");
    }
    let refused = at
        .cq
        .moderate(1, Duration::from_micros(65_536))
        .unwrap_err();
    assert!(matches!(refused, Error::OutOfRange { .. }), "{refused}");
    end.meet();
}

fn stamped(end: &mut End) {
    let at = receiver(end, 16);
    let mut last = end.side.context.now();
    let began = SystemTime::now();
    for _ in 0..5 {
        at.one(end);
        let stamp = collect(&at.cq, 1).remove(0).timestamp();
        let now = end.side.context.now();
        assert!(last <= stamp && stamp <= now, "{last:?} {stamp:?} {now:?}");
        last = stamp;
        let wall = end.side.context.wall_clock(stamp);
        let hour = Duration::from_secs(3600);
        assert!(wall > began - hour && wall < began + hour);
    }
    end.meet();
}

fn polled(end: &mut End) {
    let at = receiver(end, 16);
    for _ in 0..7 {
        at.one(end);
    }
    let one = at.cq.poll_one().expect("poll").expect("seven wait");
    assert_eq!(one.completion.wr_id, 0);
    let next = at.cq.take_one().expect("six wait");
    assert_eq!(next.completion.wr_id, 1);
    let mut some = [const { None }; 3];
    assert_eq!(at.cq.poll(&mut some).expect("poll"), 3);
    let numbers = some.map(|cqe| cqe.expect("three").completion.wr_id);
    assert_eq!(numbers, [2, 3, 4]);
    let mut many = [const { None }; 8];
    assert_eq!(at.cq.poll(&mut many).expect("poll"), 2);
    assert!(at.cq.take_one().is_none());
    end.meet();
}

fn shared_from(end: &mut End) {
    for service in [QpType::Rc, QpType::Uc, QpType::Ud] {
        let conns = [end.open(service), end.open(service)];
        end.meet();
        for n in 0..6_u8 {
            end.inline(&conns[usize::from(n % 2)], &[n; 9]);
            end.meet();
        }
    }
}

fn shared_into(end: &mut End) {
    for service in [QpType::Rc, QpType::Uc, QpType::Ud] {
        let srq = SrqInit {
            user: Some(Arc::new("the queue's")),
            ..SrqInit::default()
        };
        let srq = Arc::new(Srq::new(&end.side.pd, srq).expect("srq"));
        let init = QpInit {
            srq: Some(Arc::clone(&srq)),
            ..QpInit::default()
        };
        let conns: [Conn; 2] =
            [0, 1].map(|_| end.open_with(service, init.clone(), &Link::default()));
        assert_eq!(srq.queue_pairs(), 2);
        let header = conns[0].header();
        let buffers: Vec<_> = (0..6)
            .map(|wr_id| {
                let buffer = end.region(header + 9, oarlock_device::Access::LOCAL_WRITE);
                let sges = [buffer.sge(0, header as u32 + 9)];
                srq.post_recv(&RecvWr { wr_id, sges: &sges })
                    .expect("post_recv");
                buffer
            })
            .collect();
        let own = conns[0].qp.post_recv(&RecvWr::default()).unwrap_err();
        assert!(
            own.to_string()
                .starts_with("the queue pair has no receive queue")
        );
        end.meet();
        for n in 0..6_u8 {
            let cqe = end.next_cqe();
            let done = &cqe.completion;
            assert_eq!((done.wr_id, done.status), (n.into(), WcStatus::SUCCESS));
            assert_eq!(cqe.qpn(), conns[usize::from(n % 2)].qp.qpn());
            assert_eq!(cqe.srq_id(), Some(srq.id()));
            let user = cqe.user().and_then(|user| user.downcast_ref::<&str>());
            assert_eq!(user, Some(&"the queue's"));
            assert_eq!(content(&buffers[usize::from(n)])[header..], [n; 9]);
            end.meet();
        }
    }
}

fn sized(end: &mut End) {
    let init = SrqInit {
        max_wr: 2,
        max_sge: 3,
        ..SrqInit::default()
    };
    let srq = Srq::new(&end.side.pd, init).expect("srq");
    let attr = srq.query();
    assert_eq!((attr.max_wr, attr.max_sge, attr.limit), (2, 3, 0));
    let post = || srq.post_recv(&RecvWr::default());
    post().expect("one");
    post().expect("two");
    post().unwrap_err();
    srq.resize(3).expect("larger");
    post().expect("three");
    srq.resize(2).unwrap_err();
    srq.set_limit(4).unwrap_err();
    let max = end.side.context.device().limits.max_srq_wr;
    let refused = srq.resize(max + 1).unwrap_err();
    assert!(matches!(refused, Error::OutOfRange { .. }), "{refused}");
    assert_eq!(srq.query().max_wr, 3);
    end.meet();
}
