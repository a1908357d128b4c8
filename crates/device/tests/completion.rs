//! Completion queues: capacity, arming, channels, waiting.

mod support;

use std::sync::Arc;
use std::time::Duration;

use oarlock_device::{AsyncEvent, CompChannel, Cq, Cqe, Error, Notify, Qp, QpInit};
use oarlock_transport::{QpState, SendData, SendWr};
use support::armed::{Armed, COOKIE, is_readable};
use support::{collect, connect, eventually, pair, recv, whole};

#[test]
fn one_arming_gives_one_event_and_the_descriptor_is_level_triggered() {
    let armed = Armed::new(64);
    armed.send(false);
    assert!(!is_readable(&armed.channel), "not armed");
    // What waits already gives no event.
    armed.cq.req_notify(Notify::Any).expect("arm");
    assert!(!is_readable(&armed.channel));
    armed.send(false);
    armed.send(false);
    assert!(is_readable(&armed.channel));
    assert!(is_readable(&armed.channel), "still");
    let event = armed.channel.try_event().expect("event");
    assert!(event.is_for(&armed.cq));
    assert_eq!((event.cookie(), event.cq_id()), (COOKIE, armed.cq.id()));
    assert!(!is_readable(&armed.channel), "one for one arming");
    assert!(armed.channel.try_event().is_none());
    assert_eq!(armed.cq.unacknowledged_events(), 1);
    drop(event);
    assert_eq!(armed.cq.unacknowledged_events(), 0);
    assert_eq!(collect(&armed.cq, 3).len(), 3);
}

#[test]
fn solicited_arming_waits_for_a_solicited_message_or_a_failure() {
    let armed = Armed::new(64);
    armed.cq.req_notify(Notify::Solicited).expect("arm");
    armed.send(false);
    assert!(!is_readable(&armed.channel));
    armed.send(true);
    assert!(is_readable(&armed.channel));
    drop(armed.channel.try_event());

    armed.cq.req_notify(Notify::Solicited).expect("arm");
    let error = oarlock_transport::QpAttr::to_state(QpState::Error);
    armed.receiver.modify(&error).expect("error");
    assert!(
        is_readable(&armed.channel),
        "a flushed receive is a failure"
    );
    drop(armed.channel.try_event());

    // A wish for any completion is not weakened.
    armed.cq.req_notify(Notify::Any).expect("arm");
    armed.cq.req_notify(Notify::Solicited).expect("arm");
    recv(&armed.receiver, 99, &[]);
    assert!(is_readable(&armed.channel));
}

#[test]
fn a_queue_that_goes_takes_its_events_along() {
    let armed = Armed::new(64);
    let other = Cq::new(&armed.b.context, 4, Some(&armed.channel), 0).expect("cq");
    assert!(other.req_notify(Notify::Any).is_ok());
    armed.cq.req_notify(Notify::Any).expect("arm");
    armed.send(false);
    assert!(is_readable(&armed.channel));
    let Armed {
        receiver,
        cq,
        channel,
        ..
    } = armed;
    drop((receiver, cq));
    assert!(!is_readable(&channel));
    assert!(channel.try_event().is_none());
}

#[test]
fn arming_without_a_channel_is_refused() {
    let (a, b) = pair();
    assert!(matches!(
        a.cq.req_notify(Notify::Any),
        Err(Error::NoChannel)
    ));
    let channel = CompChannel::new(&b.context).expect("channel");
    let mixed = Cq::new(&a.context, 4, Some(&channel), 0);
    assert!(matches!(mixed, Err(Error::OtherContext { .. })));
    let empty = Cq::new(&a.context, 0, None, 0).unwrap_err();
    let expected = "capacity of the completion queue is 0, must be 1..=1048576";
    assert_eq!(empty.to_string(), expected);
}

#[test]
fn overrun_loses_completions_loudly() {
    let armed = Armed::new(2);
    armed.cq.req_notify(Notify::Any).expect("arm");
    armed.send(false);
    drop(armed.channel.try_event().expect("event"));
    armed.cq.req_notify(Notify::Any).expect("arm");
    armed.send(false);
    drop(armed.channel.try_event().expect("event"));
    armed.cq.req_notify(Notify::Any).expect("arm");
    let first = armed.b.context.try_async_event();
    assert_eq!(first, Some(AsyncEvent::CommEst(armed.receiver.qpn())));
    armed.send(false);

    // Who sleeps on the channel is woken, who reads asynchronous events is told.
    eventually("an event", || is_readable(&armed.channel));
    let events = [
        AsyncEvent::CqOverrun(armed.cq.id()),
        AsyncEvent::QpFatal(armed.receiver.qpn()),
    ];
    let patience = Some(Duration::from_secs(300));
    for expected in events {
        let event = armed.b.context.async_event(patience).expect("wait");
        assert_eq!(event, Some(expected));
    }
    assert_eq!(armed.receiver.state(), QpState::Error);
    // What was in the queue before can still be had; then the loss shows.
    let mut out = [const { None }; 4];
    assert_eq!(armed.cq.poll(&mut out).expect("two are left"), 2);
    let overrun = armed.cq.poll(&mut out).unwrap_err();
    let expected = "completion queue overrun: more than 2 completions were waiting";
    assert_eq!(overrun.to_string(), expected);
    assert!(
        armed.b.counter("completions_lost") >= 30,
        "flushed receives are lost, too"
    );
}

#[test]
fn waiting_needs_no_channel_and_sees_what_arrives() {
    let (a, b) = pair();
    let (qa, qb) = support::connected(&a, &b);
    recv(&qb, 1, &[]);
    b.cq.wait(Some(Duration::from_millis(1)))
        .expect("nothing comes");
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| collect(&b.cq, 1));
        qa.post_send(&SendWr {
            data: SendData::Inline(b""),
            ..SendWr::default()
        })
        .expect("post");
        assert_eq!(waiter.join().expect("no panic")[0].completion.wr_id, 1);
    });
}

#[test]
fn many_threads_poll_one_queue_and_each_completion_is_seen_once() {
    let (a, b) = pair();
    let pairs: Vec<_> = (0..4).map(|_| support::connected(&a, &b)).collect();
    let source =
        a.pd.allocate(64, oarlock_device::Access::empty())
            .expect("region");
    let total = 4 * 200;
    let seen = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                eventually("all completions", || {
                    let mut out = [const { None }; 5];
                    let taken = b.cq.poll(&mut out).expect("poll");
                    let mut seen = seen.lock().expect("lock");
                    for cqe in out[..taken].iter().flatten() {
                        seen.push((cqe.qpn(), cqe.completion.wr_id));
                    }
                    seen.len() == total
                });
            });
        }
        for (sender, receiver) in &pairs {
            scope.spawn(|| {
                for wr_id in 0..200 {
                    recv(receiver, wr_id, &[]);
                    support::send(sender, wr_id, &[whole(&source)][..0]);
                    a.collect(1);
                }
            });
        }
    });
    let mut seen = seen.into_inner().expect("lock");
    seen.sort_by_key(|(qpn, wr_id)| (qpn.get(), *wr_id));
    seen.dedup();
    assert_eq!(seen.len(), total);
}

/// Sleeping on the port, on a condition variable and on a channel at the same time; whoever leads
/// leaves in between, and nobody misses a message.
#[test]
fn waiters_of_every_kind_are_woken() {
    const ROUNDS: u64 = 200;
    let (a, b) = pair();
    let channel = CompChannel::new(&b.context).expect("channel");
    let lanes: Vec<_> = (0..3)
        .map(|lane| {
            let on = (lane == 2).then_some(&channel);
            let cq = Arc::new(Cq::new(&b.context, 64, on, 0).expect("cq"));
            let receiver = Qp::new(&b.pd, &cq, &cq, QpInit::default()).expect("qp");
            let own = Arc::new(Cq::new(&a.context, 64, None, 0).expect("cq"));
            let sender = Qp::new(&a.pd, &own, &own, QpInit::default()).expect("qp");
            connect((&a, &sender), (&b, &receiver));
            (sender, receiver)
        })
        .collect();
    std::thread::scope(|scope| {
        for (sender, receiver) in &lanes {
            for wr_id in 0..8 {
                recv(receiver, wr_id, &[]);
            }
            scope.spawn(|| {
                for wr_id in 0..ROUNDS {
                    support::send(sender, wr_id, &[]);
                    collect(sender.send_cq(), 1);
                }
            });
            scope.spawn(|| {
                let cq = receiver.recv_cq();
                for wr_id in 0..ROUNDS {
                    let cqe = match cq.channel() {
                        None => collect(cq, 1).remove(0),
                        Some(channel) => wait_on(channel, cq),
                    };
                    assert_eq!(cqe.completion.wr_id, wr_id);
                    recv(receiver, wr_id + 8, &[]);
                }
            });
        }
    });
}

/// Arm, poll, sleep on the channel.
fn wait_on(channel: &CompChannel, cq: &Cq) -> Cqe {
    let mut one = [None];
    loop {
        cq.req_notify(Notify::Any).expect("arm");
        if cq.poll(&mut one).expect("poll") == 1
            && let Some(cqe) = one[0].take()
        {
            return cqe;
        }
        let event = channel.event(Some(Duration::from_secs(300))).expect("wait");
        assert!(event.is_some(), "a completion without its event");
    }
}
