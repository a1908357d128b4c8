//! Many threads at one queue pair or one piece of memory, and queue pairs that go while packets arrive.

mod support;

use std::sync::Arc;

use oarlock_device::{Access, QpInit, Srq, SrqInit};
use oarlock_transport::{QpState, RecvWr, RemoteAddress, SendData, SendOp, SendWr};
use support::ends::Link;
use support::{Side, connect, eventually, filled, pair, recv, whole};

/// Requests of a thread keep their order, and those of one list are not mixed with those of other threads.
#[test]
fn threads_post_to_one_queue_pair_and_lists_stay_together() {
    let (a, b) = pair();
    let init = QpInit {
        max_send_wr: 1024,
        max_recv_wr: 1024,
        ..QpInit::default()
    };
    let (qa, qb) = (a.qp(init.clone()), b.qp(init));
    connect((&a, &qa), (&b, &qb));
    for wr_id in 0..THREADS * LISTS * LENGTH {
        recv(&qb, wr_id.into(), &[]);
    }
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let qa = &qa;
            scope.spawn(move || {
                for list in 0..LISTS {
                    let first = (thread << 16) | (list << 8);
                    let requests: Vec<_> = (0..LENGTH)
                        .map(|i| SendWr {
                            op: SendOp::SendWithImm(first | i),
                            ..SendWr::default()
                        })
                        .collect();
                    qa.post_send_list(&requests).expect("room for all");
                }
            });
        }
        let all = (THREADS * LISTS * LENGTH) as usize;
        let received = b.collect(all);
        let mut next = [0; THREADS as usize];
        for list in received.chunks(LENGTH as usize) {
            let immediates = list
                .iter()
                .map(|cqe| cqe.completion.imm.expect("an immediate"));
            let immediates: Vec<_> = immediates.collect();
            let thread = immediates[0] >> 16;
            let number: &mut u32 = &mut next[thread as usize];
            let first = (thread << 16) | (*number << 8);
            assert_eq!(immediates, [first, first | 1, first | 2]);
            *number += 1;
        }
        assert_eq!(next, [LISTS; THREADS as usize]);
        a.collect(all);
    });
}

/// Atomic operations of several queue pairs on one value are atomic against each other.
#[test]
fn additions_of_many_queue_pairs_add_up() {
    let (a, b) = pair();
    let access = Access::LOCAL_WRITE | Access::REMOTE_ATOMIC;
    let target = b.pd.allocate(8, access).expect("region");
    let remote = RemoteAddress {
        addr: target.iova(),
        rkey: target.rkey(),
    };
    let pairs: Vec<_> = (0..THREADS)
        .map(|_| {
            let cq = Arc::new(oarlock_device::Cq::new(&a.context, 16, None, 0).expect("cq"));
            let qa = oarlock_device::Qp::new(&a.pd, &cq, &cq, QpInit::default()).expect("qp");
            let qb = b.qp(QpInit::default());
            for (qp, peer, here, there) in [(&qa, &qb, &a, &b), (&qb, &qa, &b, &a)] {
                let link = Link::default();
                for attr in
                    support::ends::steps(qp.qp_type(), here.gid, there.gid, peer.qpn(), &link)
                {
                    qp.modify(&attr).expect("modify");
                }
            }
            (qa, qb, cq)
        })
        .collect();
    std::thread::scope(|scope| {
        for (qp, _, cq) in &pairs {
            let result = a.pd.allocate(8, Access::LOCAL_WRITE).expect("region");
            scope.spawn(move || {
                for _ in 0..ADDITIONS {
                    let sges = [whole(&result)];
                    qp.post_send(&SendWr {
                        op: SendOp::FetchAdd { remote, add: 1 },
                        data: SendData::Sges(&sges),
                        ..SendWr::default()
                    })
                    .expect("post_send");
                    support::collect(cq, 1);
                }
            });
        }
    });
    assert_eq!(
        target.load_u64(0).expect("aligned"),
        u64::from(THREADS) * ADDITIONS
    );
}

/// A responder that goes while WRITEs, READs and messages arrive is silence for its peer, and leaves nothing behind.
#[test]
fn responders_go_while_packets_of_every_kind_arrive() {
    let (a, b) = pair();
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let memory = b.pd.allocate(1 << 16, access).expect("region");
    let remote = RemoteAddress {
        addr: memory.iova(),
        rkey: memory.rkey(),
    };
    let local = filled(&a, &[7; 1 << 16]);
    let sges = [whole(&local)];
    for (round, op) in [SendOp::Write(remote), SendOp::Read(remote), SendOp::Send]
        .into_iter()
        .cycle()
        .take(9)
        .enumerate()
    {
        let (qa, qb, user) = responder(&a, &b);
        std::thread::scope(|scope| {
            let qa = &qa;
            scope.spawn(move || {
                for _ in 0..MANY {
                    let wr = SendWr {
                        op,
                        data: SendData::Sges(&sges),
                        ..SendWr::default()
                    };
                    if qa.post_send(&wr).is_err() {
                        return;
                    }
                }
            });
            for _ in 0..round * 3 {
                // So that another share of the packets has arrived each time.
                std::thread::yield_now();
            }
            drop(qb);
        });
        let drain = |side: &Side| {
            let mut out = [const { None }; 16];
            while side.cq.poll(&mut out).expect("poll") > 0 {
                out = [const { None }; 16];
            }
        };
        eventually("the release of the responder's memory", || {
            drain(&b);
            Arc::strong_count(&user) == 1
        });
        eventually("the failure", || {
            drain(&a);
            // All of them may have come through before the responder went.
            let last = SendWr {
                op,
                data: SendData::Sges(&sges),
                ..SendWr::default()
            };
            let _ = qa.post_send(&last);
            qa.state() == QpState::Error
        });
    }
}

/// A connected pair whose responder shares a receive queue with nobody else.
fn responder(a: &Side, b: &Side) -> (oarlock_device::Qp, oarlock_device::Qp, Arc<()>) {
    let user = Arc::new(());
    let srq = Srq::new(&b.pd, SrqInit::default()).expect("srq");
    let buffer = b.pd.allocate(1 << 16, Access::LOCAL_WRITE).expect("region");
    for wr_id in 0..8 {
        let sges = [whole(&buffer)];
        srq.post_recv(&RecvWr { wr_id, sges: &sges })
            .expect("post_recv");
    }
    let qa = a.qp(QpInit::default());
    let qb = b.qp(QpInit {
        srq: Some(Arc::new(srq)),
        user: Some(user.clone()),
        ..QpInit::default()
    });
    let impatient = Link {
        timeout: 10,
        rnr_retry: 7,
        ..Link::default()
    };
    for (qp, peer, here, there) in [(&qa, &qb, a, b), (&qb, &qa, b, a)] {
        for attr in support::ends::steps(qp.qp_type(), here.gid, there.gid, peer.qpn(), &impatient)
        {
            qp.modify(&attr).expect("modify");
        }
    }
    (qa, qb, user)
}

const THREADS: u32 = 4;
const LISTS: u32 = 50;
const LENGTH: u32 = 3;
const ADDITIONS: u64 = 200;
/// Fewer than the completion queue holds: in the error state each gives a completion at once.
const MANY: usize = 500;
