//! A child that is forked while the parent's threads hold the locks of the device.

use std::sync::Arc;
use std::time::{Duration, Instant};

use oarlock_device::{Access, Cq, Qp, QpInit, Srq, SrqInit};
use oarlock_transport::{QpState, QpType};
use oarlock_wire::Mtu;

use crate::floods::{PSN, Sparse};
use crate::forger::{Scene, of_type, read_request};
use crate::support::ends::Link;

/// The child drops its copies of everything, while the parent's engine has the queue pair most of the time and a thread of
/// the program polls: it comes to an end, and the parent's queue pair goes on.
#[test]
fn a_child_may_drop_what_its_parent_has() {
    let scene = Scene::new();
    let sparse = Sparse::new(&scene);
    let link = Link {
        mtu: Mtu::MTU_256,
        first_psn: PSN,
        ..Link::default()
    };
    let victim = &scene.victim;
    let mut prey = Some(scene.prey(of_type(QpType::Rc), &link));
    let mut others = Some((
        Cq::new(&victim.context, 16, None, 0).expect("cq"),
        Srq::new(&victim.pd, SrqInit::default()).expect("srq"),
        victim.qp(QpInit::default()),
    ));
    let mut cq = Some(Arc::clone(&victim.cq));
    let qpn = prey.as_ref().map(Qp::qpn).expect("there");
    let request = read_request(qpn, PSN, sparse.place(), 1 << 31);
    scene.forger.send(victim, &request);
    for round in 0..40 {
        // SAFETY: the child drops what it has a copy of, which frees memory (the C library's allocator can do so after a fork),
        // and leaves by _exit.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            drop(prey.take());
            drop(others.take());
            drop(cq.take());
            // SAFETY: ends the child, without destructors.
            unsafe { libc::_exit(7) };
        }
        assert!(pid > 0, "fork");
        let end = Instant::now() + Duration::from_secs(300);
        let status = loop {
            let mut status = 0;
            // SAFETY: a child of ours, and a place for its status.
            match unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG) } {
                0 if Instant::now() < end => std::thread::sleep(Duration::from_millis(1)),
                0 => {
                    // SAFETY: a child of ours that has not been waited for.
                    unsafe { libc::kill(pid, libc::SIGKILL) };
                    panic!("round {round}: the child hangs");
                }
                _ => break status,
            }
        };
        assert_eq!(libc::WEXITSTATUS(status), 7, "round {round}: {status:#x}");
    }
    let prey = prey.expect("the parent's");
    assert_eq!(prey.state(), QpState::Rts);
    drop((prey, others));
    assert_eq!(victim.context.endpoint().qp_count(), 0);
    victim.pd.allocate(64, Access::LOCAL_WRITE).expect("region");
}
