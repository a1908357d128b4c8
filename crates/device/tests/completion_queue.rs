//! Completion queues: resizing, moderation, timestamps, acknowledgement; asynchronous events; statistics.

mod support;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use oarlock_device::{AsyncEvent, Context, Cq, Error, Notify, STATISTICS};
use oarlock_transport::{AttrMask, QpAttr, QpState};
use support::armed::{Armed, is_readable};
use support::{collect, connect, eventually, pair};

#[test]
fn a_resized_queue_loses_and_doubles_nothing() {
    let ends = Armed::new(4);
    for _ in 0..4 {
        ends.send(false);
    }
    ends.cq.resize(200).expect("larger");
    assert_eq!(ends.cq.capacity(), 200);
    for _ in 0..4 {
        ends.send(false);
    }
    assert_eq!(ends.numbers(3), [0, 1, 2]);
    // Five wait.
    for capacity in 0..5 {
        let refused = ends.cq.resize(capacity).expect_err("too small");
        assert!(
            matches!(refused, Error::OutOfRange { given, min: 5, .. } if given == capacity.into()),
            "{refused}"
        );
    }
    assert_eq!(ends.cq.capacity(), 200, "nothing has changed");
    let limit = ends.b.context.device().limits.max_cqe;
    ends.cq.resize(limit + 1).expect_err("beyond the device");
    ends.cq.resize(5).expect("as many as wait");
    assert_eq!(ends.numbers(5), [3, 4, 5, 6, 7]);
}

#[test]
fn a_smaller_queue_overruns_where_it_ends_and_is_not_resized_any_more() {
    let ends = Armed::new(64);
    ends.cq.resize(2).expect("smaller");
    for _ in 0..3 {
        ends.send(false);
    }
    // Whoever lost the completion fails the queue pair afterwards.
    eventually("the error state", || {
        ends.receiver.state() == QpState::Error
    });
    assert_eq!(ends.numbers(2), [0, 1]);
    let refused = ends.cq.resize(64).expect_err("overrun");
    assert!(matches!(refused, Error::CqOverrun { capacity: 2 }));
    assert!(matches!(
        ends.cq.poll_one(),
        Err(Error::CqOverrun { capacity: 2 })
    ));
}

#[test]
fn resizing_leaves_the_arming_and_wakes_nobody() {
    let ends = Armed::new(8);
    ends.cq.req_notify(Notify::Any).expect("arm");
    ends.cq.resize(16).expect("larger");
    assert!(!is_readable(&ends.channel));
    ends.send(false);
    assert!(is_readable(&ends.channel));
}

#[test]
fn moderation_reports_after_so_many_completions() {
    let ends = Armed::new(64);
    // Longer than the test.
    ends.cq
        .moderate(3, Duration::from_micros(65_535))
        .expect("moderate");
    for round in 0..3 {
        ends.cq.req_notify(Notify::Any).expect("arm");
        for _ in 0..3 {
            ends.send(false);
        }
        // Not before the third, unless the period has passed on a busy machine; with it for certain.
        assert!(is_readable(&ends.channel), "round {round}");
        drop(ends.channel.try_event().expect("event"));
        assert!(ends.channel.try_event().is_none(), "one for one arming");
    }
}

#[test]
fn moderation_counts_only_what_the_queue_is_armed_for() {
    let ends = Armed::new(64);
    ends.cq
        .moderate(1000, Duration::from_micros(65_535))
        .expect("moderate");
    ends.cq.req_notify(Notify::Solicited).expect("arm");
    for _ in 0..5 {
        ends.send(false);
    }
    // Nothing that was asked for has come, so no period runs: this ends by itself only.
    let nothing = ends.channel.event(Some(Duration::from_millis(200)));
    assert!(nothing.expect("wait").is_none());
    ends.send(true);
    let event = ends.channel.event(Some(PATIENCE)).expect("wait");
    assert!(event.is_some(), "when the period is over");
}

#[test]
fn moderation_reports_after_the_period_what_is_too_little() {
    let ends = Armed::new(64);
    ends.cq
        .moderate(1000, Duration::from_millis(5))
        .expect("moderate");
    // Again and again: an entry in the timers serves several armings.
    for _ in 0..5 {
        ends.cq.req_notify(Notify::Any).expect("arm");
        ends.send(false);
        let event = ends.channel.event(Some(PATIENCE)).expect("wait");
        assert!(event.expect("an event").is_for(&ends.cq));
    }
}

#[test]
fn moderation_does_not_hold_a_failure_back() {
    let ends = Armed::new(64);
    ends.cq
        .moderate(1000, Duration::from_micros(65_535))
        .expect("moderate");
    ends.cq.req_notify(Notify::Any).expect("arm");
    let error = QpAttr::to_state(QpState::Error);
    ends.receiver.modify(&error).expect("error");
    assert!(is_readable(&ends.channel));
}

#[test]
fn moderation_that_is_taken_back_reports_what_it_held() {
    let ends = Armed::new(64);
    ends.cq
        .moderate(1000, Duration::from_micros(65_535))
        .expect("moderate");
    ends.cq.req_notify(Notify::Any).expect("arm");
    ends.send(false);
    ends.cq.moderate(0, Duration::ZERO).expect("none");
    assert!(is_readable(&ends.channel));
    drop(ends.channel.try_event());
    // And from now on each at once.
    ends.cq.req_notify(Notify::Any).expect("arm");
    ends.send(false);
    assert!(is_readable(&ends.channel));
}

#[test]
fn moderation_out_of_range_or_without_a_channel_is_refused() {
    let ends = Armed::new(64);
    let long = Duration::from_micros(65_536);
    let refused = ends.cq.moderate(1, long).expect_err("too long");
    assert_eq!(
        refused.to_string(),
        "period of the completion queue's moderation, in microseconds, is 65536, must be 0..=65535"
    );
    let refused = ends.a.cq.moderate(2, Duration::ZERO);
    assert!(matches!(refused, Err(Error::NoChannel)));
}

#[test]
fn timestamps_are_of_the_devices_clock_and_in_the_order_of_completion() {
    let ends = Armed::new(64);
    let (before, wall_before) = (ends.b.context.now(), SystemTime::now());
    for _ in 0..5 {
        ends.send(false);
    }
    let (after, wall_after) = (ends.b.context.now(), SystemTime::now());
    let stamps: Vec<_> = collect(&ends.cq, 5)
        .iter()
        .map(|cqe| cqe.timestamp())
        .collect();
    assert!(stamps.is_sorted());
    assert!(stamps.iter().all(|stamp| (before..=after).contains(stamp)));
    // The two clocks are read one after the other, with any pause between, and the wall clock may be slewed meanwhile.
    let slack = Duration::from_secs(60);
    for stamp in stamps {
        let wall = ends.b.context.wall_clock(stamp);
        assert!(wall >= wall_before - slack && wall <= wall_after + slack);
    }
}

#[test]
fn a_queue_that_goes_waits_for_nobody_and_leaves_events_valid() {
    let ends = Armed::new(64);
    let (other, _) = (Cq::new(&ends.b.context, 4, None, 0).expect("cq"), ());
    assert!(other.wait_acknowledged(None), "no event, no wait");
    ends.cq.req_notify(Notify::Any).expect("arm");
    ends.send(false);
    // Queued, but in nobody's hands.
    assert_eq!(ends.cq.unacknowledged_events(), 0);
    let event = ends.channel.try_event().expect("event");
    assert_eq!(ends.cq.unacknowledged_events(), 1);
    assert!(!ends.cq.wait_acknowledged(Some(Duration::from_millis(1))));
    std::thread::scope(|scope| {
        let cq = &ends.cq;
        let waiter = scope.spawn(move || cq.wait_acknowledged(None));
        drop(event);
        assert!(waiter.join().expect("no panic"));
    });

    ends.cq.req_notify(Notify::Any).expect("arm");
    ends.send(false);
    let event = ends.channel.try_event().expect("event");
    let id = ends.cq.id();
    let Armed {
        b, receiver, cq, ..
    } = ends;
    drop((receiver, cq));
    assert_eq!(event.cq_id(), id);
    drop(event);
    drop(b);
}

/// As a C program has it: events are numbers, the queue is closed first and waits afterwards.
#[test]
fn events_kept_by_number_are_waited_for_after_the_close() {
    let ends = Armed::new(64);
    for taken in 1..=2 {
        ends.cq.req_notify(Notify::Any).expect("arm");
        ends.send(false);
        rustix::io::read(&ends.channel, &mut [0; 8]).expect("readable");
        let event = ends.channel.take_event().expect("event");
        assert!(event.is_for(&ends.cq));
        event.into_cookie();
        assert_eq!(ends.cq.unacknowledged_events(), taken);
    }
    ends.cq.req_notify(Notify::Any).expect("arm");
    ends.send(false);
    assert!(is_readable(&ends.channel));
    ends.cq.close();
    ends.cq.close();
    assert!(!is_readable(&ends.channel), "queued events went with it");
    assert!(ends.cq.take_one().is_none());
    assert!(!ends.cq.wait_acknowledged(Some(Duration::from_millis(1))));
    ends.cq.acknowledge(1);
    assert_eq!(ends.cq.unacknowledged_events(), 1);
    std::thread::scope(|scope| {
        let cq = &ends.cq;
        let waiter = scope.spawn(move || cq.wait_acknowledged(None));
        // More than there are.
        ends.cq.acknowledge(7);
        assert!(waiter.join().expect("no panic"));
    });
}

#[test]
fn a_queue_that_goes_takes_its_asynchronous_event_along() {
    let ends = Armed::new(1);
    for _ in 0..2 {
        ends.send(false);
    }
    let context = Arc::clone(&ends.b.context);
    eventually("the error state", || {
        ends.receiver.state() == QpState::Error
    });
    let Armed {
        a,
        b,
        sender,
        receiver,
        cq,
        channel,
    } = ends;
    drop((receiver, cq));
    let left: Vec<_> = std::iter::from_fn(|| context.try_async_event()).collect();
    assert_eq!(left, [], "neither the queue nor its queue pair is there");
    assert!(!is_readable(&context.async_fd()));
    drop((a, b, sender, channel));
}

#[test]
fn more_queues_than_the_device_has_are_refused_by_name() {
    let (a, _) = pair();
    let mut device = a.context.device().clone();
    device.limits.max_cq = 2;
    let context = Context::open(device, a.context.endpoint()).expect("context");
    let two = [(); 2].map(|()| Cq::new(&context, 1, None, 0).expect("cq"));
    let refused = Cq::new(&context, 1, None, 0).expect_err("three");
    let expected = "number of completion queues is 3, must be 0..=2";
    assert_eq!(refused.to_string(), expected);
    drop(two);
    Cq::new(&context, 1, None, 0).expect("room again");
}

/// The figure of this name.
fn figure(context: &Context, name: &str) -> u64 {
    let all = context.statistics();
    let found = all.iter().find(|(known, _)| *known == name);
    found.unwrap_or_else(|| panic!("no figure {name}")).1
}

#[test]
fn statistics_stay_when_a_queue_pair_goes_and_are_of_one_device() {
    let ends = Armed::new(64);
    for _ in 0..7 {
        ends.send(false);
    }
    let names: Vec<_> = STATISTICS.iter().map(|figure| figure.name).collect();
    let listed = ends.a.context.statistics();
    let listed: Vec<_> = listed.iter().map(|(name, _)| *name).collect();
    assert_eq!(listed, names);
    assert_eq!(figure(&ends.a.context, "rdma_sends"), 7);
    assert_eq!(figure(&ends.b.context, "rdma_recvs"), 7);
    assert_eq!(figure(&ends.a.context, "rdma_recvs"), 0);
    let sent = figure(&ends.a.context, "sent_pkts");
    assert!(sent >= 7);
    let Armed {
        a,
        sender,
        receiver,
        b,
        ..
    } = ends;
    drop(sender);
    assert_eq!(figure(&a.context, "rdma_sends"), 7);
    assert_eq!(figure(&a.context, "sent_pkts"), sent);
    // Flushed receives.
    let error = QpAttr::to_state(QpState::Error);
    receiver.modify(&error).expect("error");
    assert_eq!(figure(&b.context, "resp_cqe_flush_error"), 32 - 7);
    drop(receiver);
    assert_eq!(figure(&b.context, "resp_cqe_flush_error"), 32 - 7);
    assert_eq!(figure(&b.context, "rdma_recvs"), 7);
    // Another device of the process has its own.
    let device = b.context.device().clone();
    let second = Context::open(device, b.context.endpoint()).expect("context");
    assert_eq!(figure(&second, "rdma_recvs"), 0);
}

#[test]
fn an_asynchronous_event_that_waits_is_not_queued_twice() {
    let ends = Armed::new(64);
    ends.send(false);
    let context = &ends.b.context;
    let established = AsyncEvent::CommEst(ends.receiver.qpn());
    assert_eq!(context.try_async_event(), Some(established));
    for _ in 0..3 {
        // Draining an idle send queue is done at once, and told each time.
        for qp in [&ends.sender, &ends.receiver] {
            qp.modify(&QpAttr::to_state(QpState::Reset)).expect("reset");
        }
        connect((&ends.a, &ends.sender), (&ends.b, &ends.receiver));
        ends.receiver
            .modify(&QpAttr {
                mask: AttrMask::STATE | AttrMask::EN_SQD_ASYNC_NOTIFY,
                state: QpState::Sqd,
                sqd_notify: true,
                ..QpAttr::default()
            })
            .expect("sqd");
    }
    let drained = AsyncEvent::SqDrained(ends.receiver.qpn());
    assert_eq!(context.try_async_event(), Some(drained));
    assert_eq!(context.try_async_event(), None);
    assert!(!is_readable(&context.async_fd()));
}

/// How long an event may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(300);
