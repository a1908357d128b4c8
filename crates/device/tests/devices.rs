//! What happens to devices while a program uses them: removal, addresses, link; and what is published of them.

mod support;

use oarlock_device::{AsyncEvent, DeviceChange, DeviceInfo, Error, Qp, QpInit};
use oarlock_port::{MemWire, Port};
use oarlock_transport::{QpAttr, QpState, RecvWr, SendData, SendWr, WcStatus};
use support::{
    Changes, Published, Side, Source, connect, device, eventually, gid, host, recv, ud_ready, ud_to,
};

/// Two devices of one process, and a peer of another.
fn world() -> (Side, Side, Side, Changes) {
    let wire = MemWire::new();
    let both = wire
        .add_host(&[
            [10, 0, 0, 2].into(),
            [10, 0, 0, 3].into(),
            [10, 0, 0, 4].into(),
        ])
        .expect("host");
    let changes = Changes::new();
    let source = Source::new(Port::Mem(both.open(7).expect("slot"))).with_changes(&changes);
    let first = Side::new(source, gid(2));
    let second = first.second_device(DeviceInfo {
        index: 1,
        ifindex: 2,
        ..device("mem1", gid(3))
    });
    let peer = Side::new(
        Source::new(Port::Mem(host(&wire, 1).open(3).expect("slot"))),
        gid(1),
    );
    (first, second, peer, changes)
}

#[test]
fn removal_flushes_every_queue_pair_of_the_device_and_of_no_other() {
    let (gone, stays, peer, changes) = world();
    let qps = [&gone, &stays].map(|side| {
        let (qp, remote) = (side.qp(QpInit::default()), peer.qp(QpInit::default()));
        connect((side, &qp), (&peer, &remote));
        for wr_id in 1..4 {
            recv(&qp, wr_id, &[]);
        }
        (qp, remote)
    });
    let unused = gone.qp(QpInit::default());
    changes.tell(0, DeviceChange::Removed);
    let flushed = gone.collect_any(3);
    for (i, cqe) in (1..).zip(&flushed) {
        let completion = &cqe.completion;
        assert_eq!(
            (completion.wr_id, completion.status),
            (i, WcStatus::WR_FLUSH_ERR)
        );
    }
    assert_eq!(
        gone.context.try_async_event(),
        Some(AsyncEvent::DeviceRemoved)
    );
    assert_eq!(gone.context.try_async_event(), None);
    assert!(gone.context.is_removed() && !gone.context.is_port_active());
    assert_eq!(qps[0].0.state(), QpState::Error);
    // Nothing new comes of it, but what there is can be ended.
    let refused = Qp::new(&gone.pd, &gone.cq, &gone.cq, QpInit::default());
    assert!(matches!(refused, Err(Error::DeviceFatal)));
    let init = QpAttr::to_state(QpState::Init);
    assert!(matches!(unused.modify(&init), Err(Error::DeviceFatal)));
    qps[0]
        .0
        .modify(&QpAttr::to_state(QpState::Reset))
        .expect("reset");

    let (near, far) = &qps[1];
    far.post_send(&SendWr {
        data: SendData::Inline(b""),
        ..SendWr::default()
    })
    .expect("post_send");
    assert_eq!(stays.collect(1)[0].completion.wr_id, 1);
    assert_eq!(near.state(), QpState::Rts);
    let comm_est = AsyncEvent::CommEst(near.qpn());
    assert_eq!(stays.context.try_async_event(), Some(comm_est));
    assert_eq!(stays.context.try_async_event(), None);
}

#[test]
fn addresses_and_the_state_of_the_link_are_told_and_used() {
    let (near, _other, peer, changes) = world();
    let port = near.context.device().port_num;
    let told = |change, event| {
        changes.tell(0, change);
        eventually("the event", || {
            near.context.try_async_event() == Some(event)
        });
    };
    let (sender, receiver) = (ud_ready(&peer), ud_ready(&near));
    let moved = |to| {
        let mut to_new = ud_to(&peer, &near, &receiver);
        to_new.av.remote = gid(to);
        let wr = SendWr {
            data: SendData::Inline(b""),
            ud: Some(to_new),
            ..SendWr::default()
        };
        sender.post_send(&wr).expect("post_send");
    };
    let buffer = near
        .pd
        .allocate(40, oarlock_device::Access::LOCAL_WRITE)
        .expect("region");
    let sges = [support::whole(&buffer)];
    receiver
        .post_recv(&RecvWr {
            wr_id: 1,
            sges: &sges,
        })
        .expect("post_recv");
    moved(4);
    eventually("the drop", || near.counter("wrong_interface") == 1);
    told(
        DeviceChange::Gids(vec![gid(4)]),
        AsyncEvent::GidChange(port),
    );
    assert_eq!(*near.context.gids(), [gid(4)]);
    moved(2);
    eventually("the drop", || near.counter("wrong_interface") == 2);
    moved(4);
    near.collect(1);
    told(DeviceChange::PortError, AsyncEvent::PortError(port));
    assert!(!near.context.is_port_active());
    told(DeviceChange::PortActive, AsyncEvent::PortActive(port));
    assert!(near.context.is_port_active());
    assert_eq!(receiver.state(), QpState::Rts, "no reason to fail anything");
}

/// What a process has counted is there for others to see, also of a device that is closed, and at the end.
#[test]
fn figures_are_published_while_something_happens_and_at_the_end() {
    let wire = MemWire::new();
    let published = Published::default();
    let source = |last: u8| Source::new(Port::Mem(host(&wire, last).open(3).expect("slot")));
    let near = Side::new(source(1).publishing(&published), gid(1));
    let far = Side::new(source(2), gid(2));
    let figure = |device: u32, name: &str| {
        let all = published.lock().expect("lock");
        let one = all.iter().find(|one| one.device == device)?;
        let found = one.counters.iter().find(|(known, _)| *known == name);
        Some(found.expect("a figure of this name").1)
    };
    let send = |side: &Side, count: u64| {
        let (qp, peer) = (side.qp(QpInit::default()), far.qp(QpInit::default()));
        connect((side, &qp), (&far, &peer));
        for wr_id in 0..count {
            recv(&peer, wr_id, &[]);
            qp.post_send(&SendWr::default()).expect("post_send");
            side.collect(1);
        }
    };
    let second = near.second_device(DeviceInfo {
        index: 1,
        ..device("mem1", gid(1))
    });
    send(&near, 2);
    send(&second, 3);
    eventually("the figures of both", || {
        (figure(0, "rdma_sends"), figure(1, "rdma_sends")) == (Some(2), Some(3))
    });
    drop(second);
    send(&near, 1);
    drop(near);
    eventually("the last figures", || {
        (figure(0, "rdma_sends"), figure(1, "rdma_sends")) == (Some(3), Some(3))
    });
}
