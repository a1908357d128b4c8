//! Windows of type 2 belong to the queue pair that bound them.

use oarlock_device::{Access, Qp, Region, Window, WindowType};
use oarlock_transport::{BindWindow, QpAttr, QpState, RemoteAddress, SendOp, Sge, WcStatus};
use oarlock_wire::{LKey, RKey};

use crate::chaos::{REMOTE, linked, post};
use crate::support::{Side, pair, send, whole};

struct Bound {
    region: Region,
    window: Window,
    remote: RemoteAddress,
}

fn bound(side: &Side, qp: &Qp) -> Bound {
    let access = Access::LOCAL_WRITE | Access::MW_BIND;
    let region = side.pd.allocate(64, access).expect("region");
    let window = Window::new(&side.pd, WindowType::Two).expect("window");
    bind(qp, &window, &region);
    side.collect(1);
    let remote = RemoteAddress {
        addr: region.iova(),
        rkey: window.rkey(),
    };
    Bound {
        region,
        window,
        remote,
    }
}

fn bind(qp: &Qp, window: &Window, region: &Region) {
    let bind = BindWindow {
        window: window.rkey(),
        rkey: RKey(window.rkey().0 ^ 1),
        region: region.lkey(),
        addr: region.iova(),
        len: region.len(),
        access: REMOTE - Access::LOCAL_WRITE,
    };
    post(qp, 1, SendOp::BindWindow(bind), None);
}

#[test]
fn a_queue_pair_that_is_destroyed_or_reset_frees_its_windows() {
    let (a, b) = pair();
    for destroy in [true, false] {
        let (_qa, qb) = linked(&a, &b);
        let Bound { region, window, .. } = bound(&b, &qb);
        assert_eq!(window.bound().expect("bound").qpn, Some(qb.qpn()));
        if destroy {
            drop(qb);
        } else {
            qb.modify(&QpAttr::to_state(QpState::Reset)).expect("reset");
        }
        assert_eq!(window.bound(), None);
        // Free for another queue pair, and the region for an end.
        let (_qa, other) = linked(&a, &b);
        bind(&other, &window, &region);
        b.collect(1);
        assert_eq!(window.bound().expect("bound").qpn, Some(other.qpn()));
        drop(other);
        region.deregister().expect("no windows");
    }
}

/// In state Error nothing is received, and the program may still want to know what is bound.
#[test]
fn a_queue_pair_in_error_keeps_its_windows() {
    let (a, b) = pair();
    let (_qa, qb) = linked(&a, &b);
    let Bound { region, window, .. } = bound(&b, &qb);
    qb.modify(&QpAttr::to_state(QpState::Error)).expect("error");
    assert!(window.bound().is_some());
    let (region, _) = region.deregister().expect_err("a window is bound");
    drop(qb);
    region.deregister().expect("no windows");
}

#[test]
fn a_peer_reaches_a_window_by_the_queue_pair_that_bound_it_only() {
    let (a, b) = pair();
    let (qa, qb) = linked(&a, &b);
    let (other_a, _other_b) = linked(&a, &b);
    let Bound {
        region,
        remote,
        window: _window,
    } = bound(&b, &qb);
    let source = a.pd.allocate(64, Access::empty()).expect("region");
    source.copy_in(0, &[7; 64]).expect("inside");
    let write = |qp| post(qp, 2, SendOp::Write(remote), Some((&source, 0, 64)));
    write(&other_a);
    let status = a.collect_any(1).remove(0).completion.status;
    assert_eq!(status, WcStatus::REM_ACCESS_ERR);
    let mut seen = [1; 64];
    region.copy_out(0, &mut seen).expect("inside");
    assert_eq!(seen, [0; 64]);
    write(&qa);
    a.collect(1);
    region.copy_out(0, &mut seen).expect("inside");
    assert_eq!(seen, [7; 64]);
    // No element of a work request of our own either.
    let as_lkey = Sge {
        lkey: LKey(remote.rkey.0),
        ..whole(&region)
    };
    send(&qb, 3, &[as_lkey]);
    let status = b.collect_any(1).remove(0).completion.status;
    assert_eq!(status, WcStatus::LOC_PROT_ERR);
}
