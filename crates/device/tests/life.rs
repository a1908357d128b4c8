//! Idle, busy, dropped, bereaved: the endpoint and its engine thread.

mod support;

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use oarlock_device::{Access, AsyncEvent, Context, Error, Qp, QpInit};
use oarlock_port::{MemWire, Port};
use oarlock_transport::{AttrMask, Counter, QpAttr, QpState, SendData, SendWr, WcStatus};
use support::armed::is_readable;
use support::{
    Side, Source, connected, device, eventually, filled, gid, host, pair, pattern, recv, send,
    whole,
};

#[test]
fn a_slot_is_taken_by_the_first_queue_pair_and_given_back_at_the_end() {
    let wire = MemWire::new();
    let here = host(&wire, 1);
    let source = Source::new(Port::Mem(here.open(9).expect("slot")));
    let closed = Arc::clone(&source.closed);
    let side = Side::new(source, gid(1));
    assert_eq!(side.context.endpoint().slot(), None);
    let (first, second) = (side.qp(QpInit::default()), side.qp(QpInit::default()));
    assert_eq!(side.context.endpoint().slot(), Some(9));
    assert_eq!(first.qpn().get() >> 16, 9);
    assert_ne!(first.qpn(), second.qpn());
    let gone = first.qpn();
    drop(first);
    assert_eq!(side.context.endpoint().qp_count(), 1);
    assert_ne!(
        side.qp(QpInit::default()).qpn(),
        gone,
        "not used again soon"
    );
    assert!(here.open(9).is_err(), "the slot is in use");
    drop((second, side));
    eventually("the closed slot", || {
        closed.lock().expect("lock").as_slice() == [9]
    });
    here.open(9).expect("the slot is free");
}

#[test]
fn a_refused_slot_is_an_error_that_says_why() {
    let wire = MemWire::new();
    let source = Source::new(Port::Mem(host(&wire, 1).open(9).expect("slot")));
    let _taken = oarlock_device::PortSource::take_port(&source).expect("port");
    let side = Side::new(source, gid(1));
    let refused = Qp::new(&side.pd, &side.cq, &side.cq, QpInit::default()).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "no slot of the RoCEv2 port: the slot is taken"
    );
}

#[test]
fn an_idle_endpoint_does_not_wake_up() {
    let (a, b) = pair();
    let (qa, qb) = connected(&a, &b);
    recv(&qb, 1, &[]);
    qa.post_send(&SendWr {
        data: SendData::Inline(b""),
        ..SendWr::default()
    })
    .expect("post");
    b.collect(1);
    a.collect(1);
    // What is still to come of the traffic: one wake-up for a deadline that has moved away.
    let wakeups = || a.counter("engine_wakeups") + b.counter("engine_wakeups");
    let mut last = wakeups();
    let mut quiet = 0;
    eventually("quiet", || {
        std::thread::sleep(Duration::from_millis(20));
        let now = wakeups();
        quiet = if now == last { quiet + 1 } else { 0 };
        last = now;
        quiet == 10
    });
}

#[test]
fn the_engine_works_for_programs_that_do_nothing() {
    let (a, b) = pair();
    let (qa, qb) = connected(&a, &b);
    let target = b.pd.allocate(100_000, Access::LOCAL_WRITE).expect("region");
    let bytes = pattern(5, 100_000);
    let source = filled(&a, &bytes);
    recv(&qb, 1, &[whole(&target)]);
    send(&qa, 1, &[whole(&source)]);
    // More than one window: packets must leave that no call of ours sends.
    let done = |side: &Side| side.cq.wait(None).expect("wait");
    done(&a);
    done(&b);
    assert_eq!(b.collect(1)[0].completion.byte_len, 100_000);
    assert_eq!(support::content(&target), bytes);
}

#[test]
fn queue_pairs_are_dropped_under_fire() {
    let (a, b) = pair();
    let target = b.pd.allocate(4096, Access::LOCAL_WRITE).expect("region");
    let source = filled(&a, &pattern(6, 4096));
    let user: Arc<dyn std::any::Any + Send + Sync> = Arc::new(());
    for _ in 0..200 {
        let qa = a.qp(QpInit::default());
        let qb = b.qp(QpInit {
            user: Some(Arc::clone(&user)),
            ..QpInit::default()
        });
        support::connect((&a, &qa), (&b, &qb));
        for wr_id in 0..4 {
            recv(&qb, wr_id, &[whole(&target)]);
            send(&qa, wr_id, &[whole(&source)]);
        }
        drop(qb);
        drop(qa);
        let mut out = [const { None }; 16];
        while b.cq.poll(&mut out).expect("poll") > 0 {}
        while a.cq.poll(&mut out).expect("poll") > 0 {}
    }
    eventually("what was given along", || {
        let mut out = [const { None }; 16];
        let _ = b.cq.poll(&mut out).expect("poll");
        Arc::strong_count(&user) == 1
    });
    assert_eq!(b.context.endpoint().qp_count(), 0);
}

#[test]
fn the_death_of_the_service_fails_everything_and_frees_the_slot() {
    let wire = MemWire::new();
    let here = host(&wire, 1);
    let (service, client) = UnixStream::pair().expect("socket pair");
    let source = Source::new(Port::Mem(here.open(9).expect("slot"))).with_service(client.into());
    let closed = Arc::clone(&source.closed);
    let side = Side::new(source, gid(1));
    let endpoint = Arc::clone(side.context.endpoint());
    let second = Context::open(device("mem1", gid(1)), &endpoint).expect("context");
    let (qp, peer) = (side.qp(QpInit::default()), side.qp(QpInit::default()));
    support::connect((&side, &qp), (&side, &peer));
    recv(&qp, 1, &[]);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| side.cq.wait(None));
        let other = oarlock_device::Cq::new(&second, 1, None, 0).expect("cq");
        let lonely = scope.spawn(move || {
            loop {
                if let Err(error) = other.wait(None) {
                    return error;
                }
            }
        });
        drop(service);
        waiter.join().expect("no panic").expect("a flushed receive");
        assert!(matches!(
            lonely.join().expect("no panic"),
            Error::DeviceFatal
        ));
    });
    for context in [&side.context, &second] {
        assert_eq!(
            context.async_event(None).expect("event"),
            Some(AsyncEvent::DeviceFatal)
        );
    }
    assert_eq!(
        side.collect_any(1)[0].completion.status,
        WcStatus::WR_FLUSH_ERR
    );
    assert_eq!((qp.state(), peer.state()), (QpState::Error, QpState::Error));
    here.open(9).expect("the slot is closed");
    assert!(endpoint.is_gone());
    assert!(
        closed.lock().expect("lock").is_empty(),
        "nobody is there to be told"
    );

    // What is posted now is flushed; new queue pairs and transitions are refused.
    recv(&qp, 2, &[]);
    assert_eq!(
        side.collect_any(1)[0].completion.status,
        WcStatus::WR_FLUSH_ERR
    );
    let refused = Qp::new(&side.pd, &side.cq, &side.cq, QpInit::default()).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "device fatal: the host service is gone"
    );
    qp.modify(&QpAttr::to_state(QpState::Reset))
        .expect("reset is possible");
    let init = QpAttr {
        mask: AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS,
        state: QpState::Init,
        ..QpAttr::default()
    };
    assert!(matches!(qp.modify(&init), Err(Error::DeviceFatal)));
    assert!(matches!(side.cq.wait(None), Err(Error::DeviceFatal)));
}

#[test]
fn garbage_is_counted_by_name() {
    let wire = MemWire::new();
    let side = {
        let port = host(&wire, 1).open(9).expect("slot");
        Side::new(Source::new(Port::Mem(port)), gid(1))
    };
    let qp = side.qp(QpInit::default());
    let stranger = Port::Mem(host(&wire, 2).open(1).expect("slot"));
    let av = oarlock_wire::AddressVector::new(gid(2), gid(1));
    let packet = |opcode: u8, qpn: u32| {
        let mut bytes = [0; 16];
        bytes[0] = opcode;
        bytes[4..8].copy_from_slice(&qpn.to_be_bytes());
        bytes
    };
    let absent = (qp.qpn().get() & 0xff_0000) | (qp.qpn().get().wrapping_add(1) & 0xffff);
    // An opcode that nobody knows, of no service that the queue pair has; a WRITE without its RETH; a queue pair that does not
    // exist; one that is in Reset.
    for (opcode, qpn) in [
        (0xff, qp.qpn().get()),
        (0x0a, qp.qpn().get()),
        (0x04, absent),
        (0x04, qp.qpn().get()),
    ] {
        stranger.send(&av, &packet(opcode, qpn)).expect("send");
    }
    // A congestion notification is no packet of the queue pair's own service.
    stranger
        .send(&av, &packet(0x81, qp.qpn().get()))
        .expect("send");
    eventually("the count of notifications", || {
        side.counter("congestion_notifications") == 1
    });
    eventually("four drops", || {
        let own = qp.counters();
        (
            own.get(Counter::DroppedWrongTransport),
            side.counter("malformed"),
            side.counter("no_such_qp"),
            own.get(Counter::DroppedWrongState),
        ) == (1, 1, 1, 1)
    });
}

/// The peer's answer is in the port's queue, and nobody has read it: the news of the end came by another way, as that of a
/// connection's end does.
#[test]
fn what_was_acknowledged_before_the_error_state_is_not_flushed() {
    let wire = MemWire::new();
    let port = host(&wire, 1).open(3).expect("slot");
    let queue = port.as_fd().try_clone_to_owned().expect("descriptor");
    let a = Side::new(Source::new(Port::Mem(port)), gid(1));
    let port = host(&wire, 2).open(7).expect("slot");
    let b = Side::new(Source::new(Port::Mem(port)), gid(2));
    for round in 0..50 {
        let (qa, qb) = connected(&a, &b);
        let received = qa.counters().get(Counter::AcksReceived);
        recv(&qb, 1, &[]);
        qa.post_send(&SendWr {
            data: SendData::Inline(b""),
            ..SendWr::default()
        })
        .expect("post");
        b.collect(1);
        // Not `eventually`, whose sleep would give the engine the time to read it.
        let end = Instant::now() + Duration::from_secs(60);
        while !is_readable(&queue) && qa.counters().get(Counter::AcksReceived) == received {
            assert!(Instant::now() < end, "no answer");
        }
        qa.modify(&QpAttr {
            mask: AttrMask::STATE,
            state: QpState::Error,
            ..QpAttr::default()
        })
        .expect("to the error state");
        let all = a.collect_any(1);
        let status = all[0].completion.status;
        assert!(status.is_success(), "round {round}: {status}");
    }
}
