//! Every asynchronous event that this device raises.

use std::sync::Arc;

use oarlock_device::{AsyncEvent, Cq, DeviceChange, EVENT_KINDS, Error, Qp, QpInit, Srq, SrqInit};
use oarlock_transport::{QpState, QpType, RecvWr, SendOp, SendWr, WcStatus};
use oarlock_wire::Gid;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::cases;
use crate::conn::SERVICES;
use crate::end::{EVERYTHING, End};
use crate::support::ends::{Link, steps};
use crate::support::eventually;

cases! {
    /// The peer's first request is told once, and the descriptor is readable while events wait.
    communication_established: |end| {
        for service in [QpType::Rc, QpType::Uc] {
            let conn = end.open(service);
            end.meet();
            end.run(&conn, SendOp::Send, &[]);
            end.run(&conn, SendOp::Send, &[]);
            end.meet();
        }
    }, |end| {
        for service in [QpType::Rc, QpType::Uc] {
            let conn = end.open(service);
            conn.recv(1, &[]);
            conn.recv(2, &[]);
            assert!(!readable(end));
            end.meet();
            end.nexts(2);
            end.meet();
            eventually("the event", || readable(end));
            let seen = end.events();
            assert_eq!(seen, [AsyncEvent::CommEst(conn.qp.qpn())]);
            assert!(!readable(end));
        }
    };
    /// An invalid request of the peer; an access that it may not have; an error of our own, which is a fault rule here.
    queue_pair_errors: errors_from, errors_at;
    /// A completion without room: the queue, and each of its queue pairs.
    completion_queue_error: |end| {
        let conn = end.open(QpType::Rc);
        end.meet();
        for _ in 0..2 {
            conn.post(&conn.wr(SendOp::Send));
        }
        end.nexts(2);
        end.meet();
    }, overrun_at;
    /// Fewer buffers than the limit, once; armed again, again; at once if it is so already.
    srq_limit: |end| {
        let conn = end.open(QpType::Rc);
        for _ in 0..4 {
            end.meet();
            end.run(&conn, SendOp::Send, &[]);
        }
        end.meet();
    }, limit_at;
    /// A queue pair in the error state gives its last shared buffer back.
    last_wqe_reached: |end| {
        for service in [QpType::Rc, QpType::Uc, QpType::Ud] {
            let _conn = end.open(service);
            end.meet();
        }
    }, |end| {
        for service in [QpType::Rc, QpType::Uc, QpType::Ud] {
            let srq = Arc::new(Srq::new(&end.side.pd, SrqInit::default()).expect("srq"));
            let init = QpInit { srq: Some(srq), ..QpInit::default() };
            let conn = end.open_with(service, init, &Link::default());
            let last = AsyncEvent::LastWqeReached(conn.qp.qpn());
            assert!(!end.events().contains(&last));
            conn.to_state(QpState::Error);
            end.event(last);
            end.meet();
        }
    };
    /// The port goes down and comes up.
    port_state: |end| end.meet(), |end| {
        let conn = end.side.qp(QpInit::default());
        let port = end.side.context.device().port_num;
        end.change(DeviceChange::PortError);
        end.event(AsyncEvent::PortError(port));
        assert!(!end.side.context.is_port_active());
        end.change(DeviceChange::PortActive);
        end.event(AsyncEvent::PortActive(port));
        assert!(end.side.context.is_port_active());
        drop(conn);
        end.meet();
    };
    /// The addresses of the port change.
    gid_change: |end| end.meet(), |end| {
        let conn = end.side.qp(QpInit::default());
        let port = end.side.context.device().port_num;
        let other = Gid::from_ip([10, 9, 8, 7].into());
        end.change(DeviceChange::Gids(vec![end.here, other]));
        end.event(AsyncEvent::GidChange(port));
        assert_eq!(end.side.context.gids()[..], [end.here, other]);
        drop(conn);
        end.meet();
    };
    /// The device is removed: everything on it is flushed, and nothing new begins.
    device_removed: removed_from, removed_at;
    /// Each event that is raised has its number, and each other one says why not.
    event_kinds: |_| {
        for kind in &EVENT_KINDS {
            let never = [6, 7, 11, 12, 13, 14, 17, 19].contains(&kind.number);
            assert_eq!(kind.never_because.is_some(), never, "{}", kind.name);
        }
    }, |_| ();
}

fn readable(end: &End) -> bool {
    let fd = end.side.context.async_fd();
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    let at_once = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    poll(&mut fds, Some(&at_once)).expect("poll") == 1
}

fn errors_from(end: &mut End) {
    for _ in SERVICES {
        // A READ of a queue pair that allows none, and of a region that does not.
        for status in [WcStatus::REM_INV_REQ_ERR, WcStatus::REM_ACCESS_ERR] {
            let conn = end.open(QpType::Rc);
            let remote = end.offered();
            let target = end.region(8, EVERYTHING);
            let done = end.attempt(&conn, SendOp::Read(remote), &[target.sge(0, 8)]);
            assert_eq!(done.status, status);
            end.meet();
        }
    }
    let conn = end.open(QpType::Rc);
    end.meet();
    conn.post(&conn.wr(SendOp::Send));
    end.meet();
}

fn errors_at(end: &mut End) {
    for _ in SERVICES {
        for (of_qp, of_region, event) in [
            (
                oarlock_transport::AccessFlags::empty(),
                EVERYTHING,
                AsyncEvent::QpRequestError as fn(_) -> _,
            ),
            (
                EVERYTHING - oarlock_transport::AccessFlags::MW_BIND,
                oarlock_transport::AccessFlags::LOCAL_WRITE,
                AsyncEvent::QpAccessError as fn(_) -> _,
            ),
        ] {
            let link = Link {
                access: of_qp,
                ..Link::default()
            };
            let conn = end.open_with(QpType::Rc, QpInit::default(), &link);
            let memory = end.region(8, of_region);
            end.offer(&memory);
            end.event(event(conn.qp.qpn()));
            assert_eq!(conn.qp.state(), QpState::Error);
            end.meet();
        }
    }
    let conn = end.open(QpType::Rc);
    end.strike("qp_error:opcode=send");
    end.meet();
    end.event(AsyncEvent::QpFatal(conn.qp.qpn()));
    end.heal();
    end.meet();
}

fn overrun_at(end: &mut End) {
    let cq = Arc::new(Cq::new(&end.side.context, 1, None, 0).expect("cq"));
    let qp = Qp::new(&end.side.pd, &end.side.cq, &cq, QpInit::default()).expect("qp");
    let [peer, _] = end.swap([qp.qpn().get().into(), 0]);
    let peer = oarlock_wire::Qpn::truncate(peer as u32);
    for attr in steps(QpType::Rc, end.here, end.there, peer, &Link::default()) {
        qp.modify(&attr).expect("modify");
    }
    end.meet();
    for wr_id in 0..2 {
        qp.post_recv(&RecvWr { wr_id, sges: &[] }).expect("recv");
    }
    end.meet();
    eventually("the error state", || qp.state() == QpState::Error);
    eventually("both events", || {
        let (cq_error, fatal) = (
            AsyncEvent::CqOverrun(cq.id()),
            AsyncEvent::QpFatal(qp.qpn()),
        );
        let seen = end.events();
        seen.contains(&cq_error) && seen.contains(&fatal)
    });
    let first = cq.poll_one().expect("what it holds").expect("one");
    assert_eq!(first.completion.wr_id, 0);
    assert!(matches!(
        cq.poll_one(),
        Err(Error::CqOverrun { capacity: 1 })
    ));
    end.meet();
}

fn limit_at(end: &mut End) {
    let srq = Arc::new(Srq::new(&end.side.pd, SrqInit::default()).expect("srq"));
    let init = QpInit {
        srq: Some(Arc::clone(&srq)),
        ..QpInit::default()
    };
    let conn = end.open_with(QpType::Rc, init, &Link::default());
    let limit = AsyncEvent::SrqLimitReached(srq.id());
    for wr_id in 0..4 {
        srq.post_recv(&RecvWr { wr_id, sges: &[] }).expect("recv");
    }
    srq.set_limit(3).expect("below the depth");
    assert_eq!(srq.query().limit, 3);
    for left in [3, 2, 1, 0] {
        assert!(!end.events().contains(&limit), "{left} are left then");
        end.meet();
        assert_eq!(end.next().status, WcStatus::SUCCESS);
        if left == 2 {
            end.event(limit);
            assert_eq!(srq.query().limit, 0, "disarmed");
        }
    }
    // At once.
    srq.set_limit(1).expect("below the depth");
    end.event(limit);
    drop(conn);
    end.meet();
}

fn removed_from(end: &mut End) {
    let link = Link {
        timeout: 8,
        retries: 2,
        ..Link::default()
    };
    let conn = end.open_with(QpType::Rc, QpInit::default(), &link);
    end.meet();
    end.meet();
    // Nobody answers any more.
    let done = end.attempt(&conn, SendOp::Send, &[]);
    assert_eq!(done.status, WcStatus::RETRY_EXC_ERR);
    end.meet();
}

fn removed_at(end: &mut End) {
    let conn = end.open(QpType::Rc);
    conn.recv(1, &[]);
    end.meet();
    end.change(DeviceChange::Removed);
    end.event(AsyncEvent::DeviceRemoved);
    assert!(end.side.context.is_removed());
    assert_eq!(end.next().status, WcStatus::WR_FLUSH_ERR);
    assert_eq!(conn.qp.state(), QpState::Error);
    let refused = Qp::new(&end.side.pd, &end.side.cq, &end.side.cq, QpInit::default());
    assert!(matches!(refused, Err(Error::DeviceFatal)));
    conn.qp.post_send(&SendWr::default()).expect("flushed");
    assert_eq!(end.next().status, WcStatus::WR_FLUSH_ERR);
    end.meet();
    end.meet();
}
