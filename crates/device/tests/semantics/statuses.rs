//! Every way in which a request ends: the status, and the rule behind it.

use std::collections::BTreeSet;
use std::sync::Arc;

use oarlock_device::{Access, Cq, Qp, QpInit, Srq, SrqInit};
use oarlock_transport::{
    AccessFlags, BindWindow, Completion, QpState, QpType, RecvWr, RemoteAddress, SendOp, SendWr,
    Sge, VendorError as V, WcStatus as S,
};
use oarlock_wire::{LKey, Mtu, RKey};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::cases;
use crate::conn::Conn;
use crate::end::{EVERYTHING, End};
use crate::support::collect;
use crate::support::ends::{Link, steps};
use crate::wrong_peers::WRONG;

cases! {
    /// Every status that this device gives, by every rule that two devices can break between them.
    completion_statuses: |end| each(end, WAYS), |end| each(end, WAYS);
    /// The statuses above are all that the table of statuses calls given.
    completion_statuses_complete: complete, |_| ();
}

/// One request that ends so at one side, which gives its completion.
struct Way {
    status: S,
    rule: V,
    a: fn(&mut End) -> Option<Completion>,
    b: fn(&mut End) -> Option<Completion>,
}

const fn way(
    status: S,
    rule: V,
    a: fn(&mut End) -> Option<Completion>,
    b: fn(&mut End) -> Option<Completion>,
) -> Way {
    Way { status, rule, a, b }
}

fn each(end: &mut End, ways: &[Way]) {
    for way in ways {
        let side = if end.is_first() { way.a } else { way.b };
        if let Some(done) = side(end) {
            let seen = (done.status, done.vendor_err);
            assert_eq!(seen, (way.status, way.rule));
        }
        end.meet();
    }
}

/// Of the statuses of a list, those seen at a requester and those at a responder together.
fn complete(_end: &mut End) {
    let reached: BTreeSet<u32> = WAYS
        .iter()
        .map(|way| way.status.0)
        .chain(WRONG.iter().map(|wrong| wrong.status.0))
        .collect();
    let given = [0, 1, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13];
    assert_eq!(reached, BTreeSet::from(given));
    let rules: BTreeSet<u32> = WAYS
        .iter()
        .map(|way| way.rule.0)
        .chain(WRONG.iter().map(|wrong| wrong.rule.0))
        .chain(OTHER_RULES.map(|rule| rule.0))
        .collect();
    let all = V::ALL.iter().map(|(rule, _)| rule.0).collect();
    assert_eq!(rules, all);
}

/// Those of the cases that are no list.
const OTHER_RULES: [V; 4] = [
    V::RESPONSES_LOST,
    V::FLUSHED_BY_DEVICE,
    V::MISALIGNED,
    V::NO_SHARED_QUEUE,
];

/// Just the other side of a connection.
fn peer(end: &mut End) -> Option<Completion> {
    let _conn = end.open(QpType::Rc);
    end.meet();
    None
}

/// A's request on a fresh connection.
fn alone(end: &mut End, op: SendOp, sges: &[Sge]) -> Option<Completion> {
    let conn = end.open(QpType::Rc);
    let done = end.attempt(&conn, op, sges);
    end.meet();
    Some(done)
}

/// B waits for its receive to end, with these options of the queue pair.
fn receiving(end: &mut End, link: &Link, prepare: fn(&mut End, &Conn)) -> Option<Completion> {
    let conn = end.open_with(QpType::Rc, QpInit::default(), link);
    prepare(end, &conn);
    let done = end.next();
    assert!(!done.is_send);
    end.meet();
    Some(done)
}

/// A's request after B is ready, whose end is not the point.
fn causing(end: &mut End, op: fn(RemoteAddress) -> SendOp, bytes: &[u8]) -> Option<Completion> {
    let conn = end.open(QpType::Rc);
    let remote = end.offered();
    let source = end.filled(bytes);
    end.attempt(&conn, op(remote), &[source.sge(0, bytes.len() as u32)]);
    end.meet();
    None
}

/// A's failing request at memory or a buffer of B.
fn caused(end: &mut End, op: fn(RemoteAddress) -> SendOp, link: &Link) -> Option<Completion> {
    let conn = end.open_with(QpType::Rc, QpInit::default(), link);
    let remote = end.offered();
    let source = end.filled(b"12345678");
    let done = end.attempt(&conn, op(remote), &[source.sge(0, 8)]);
    end.meet();
    Some(done)
}

fn post_buffer(end: &mut End, conn: &Conn, len: u32, access: Access) {
    let buffer = end.region(64, access);
    conn.recv(1, &[buffer.sge(0, len)]);
    end.offer(&buffer);
    // The buffer outlives the request, whose completion the caller waits for.
    std::mem::forget(buffer);
}

/// Memory that was mapped when it was registered.
fn vanished(end: &End, access: Access) -> oarlock_device::Region {
    let flags = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a mapping of its own, at an address that the system chooses.
    let page = unsafe { mmap_anonymous(std::ptr::null_mut(), 4096, flags, MapFlags::PRIVATE) }
        .expect("page");
    // SAFETY: no references are made to the page.
    let region = unsafe { end.side.pd.register(page as u64, 4096, access) }.expect("region");
    // SAFETY: the mapping is ours, and nobody refers to it.
    unsafe { munmap(page, 4096) }.expect("munmap");
    region
}

const IMPATIENT: Link = Link {
    timeout: 8,
    retries: 1,
    ..UNREADY_ONCE
};

/// Waits for answers, and gives up when the peer has no buffer.
const UNREADY_ONCE: Link = Link {
    mtu: Mtu::MTU_1024,
    access: AccessFlags::LOCAL_WRITE
        .union(AccessFlags::REMOTE_WRITE)
        .union(AccessFlags::REMOTE_READ)
        .union(AccessFlags::REMOTE_ATOMIC),
    reads: 4,
    timeout: 18,
    retries: 7,
    rnr_timer: 1,
    rnr_retry: 0,
    first_psn: 0xff_fff0,
};

const WAYS: &[Way] = &[
    way(
        S::SUCCESS,
        V::NONE,
        |end| caused(end, |_| SendOp::Send, &Link::default()),
        |end| {
            receiving(end, &Link::default(), |end, conn| {
                post_buffer(end, conn, 64, EVERYTHING);
            })
        },
    ),
    way(
        S::LOC_LEN_ERR,
        V::MESSAGE_TOO_LONG,
        |end| causing(end, |_| SendOp::Send, b"12345678"),
        |end| {
            receiving(end, &Link::default(), |end, conn| {
                post_buffer(end, conn, 7, EVERYTHING);
            })
        },
    ),
    way(
        S::REM_INV_REQ_ERR,
        V::NAK_INVALID_REQUEST,
        |end| caused(end, |_| SendOp::Send, &Link::default()),
        |end| {
            receiving(end, &Link::default(), |end, conn| {
                post_buffer(end, conn, 7, EVERYTHING);
            })
            .and(None)
        },
    ),
    way(
        S::LOC_PROT_ERR,
        V::LKEY_UNKNOWN,
        |end| {
            let sge = Sge {
                addr: 0x1000,
                len: 8,
                lkey: LKey(0xbad),
            };
            alone(end, SendOp::Send, &[sge])
        },
        peer,
    ),
    way(
        S::LOC_PROT_ERR,
        V::OUT_OF_BOUNDS,
        |end| {
            let region = end.region(8, EVERYTHING);
            alone(end, SendOp::Send, &[region.sge(1, 8)])
        },
        peer,
    ),
    way(
        S::LOC_PROT_ERR,
        V::UNMAPPED,
        |end| {
            let region = vanished(end, EVERYTHING);
            alone(end, SendOp::Send, &[region.sge(0, 8)])
        },
        peer,
    ),
    way(
        S::LOC_PROT_ERR,
        V::NOT_WRITABLE,
        |end| causing(end, |_| SendOp::Send, b"12345678"),
        |end| {
            receiving(end, &Link::default(), |end, conn| {
                post_buffer(end, conn, 64, Access::empty());
            })
        },
    ),
    way(
        S::WR_FLUSH_ERR,
        V::FLUSHED_BY_PROGRAM,
        |end| flushed(end, |_, conn| conn.to_state(QpState::Error)),
        peer,
    ),
    way(
        S::WR_FLUSH_ERR,
        V::FLUSHED_AT_POST,
        |end| {
            let conn = end.open(QpType::Rc);
            conn.to_state(QpState::Error);
            let done = end.attempt(&conn, SendOp::Send, &[]);
            conn.recv(1, &[]);
            let received = end.next();
            assert_eq!(received.vendor_err, done.vendor_err);
            end.meet();
            Some(done)
        },
        peer,
    ),
    way(
        S::WR_FLUSH_ERR,
        V::FLUSHED_BY_SEND,
        |end| {
            flushed(end, |end, conn| {
                let sge = Sge {
                    addr: 0,
                    len: 1,
                    lkey: LKey(0xbad),
                };
                let done = end.attempt(conn, SendOp::Send, &[sge]);
                assert_eq!(done.status, S::LOC_PROT_ERR);
            })
        },
        peer,
    ),
    way(
        S::WR_FLUSH_ERR,
        V::FLUSHED_BY_RECEIVE,
        |end| causing(end, |_| SendOp::Send, b"12345678"),
        |end| {
            receiving(end, &Link::default(), |end, conn| {
                conn.recv(1, &[]);
                conn.recv(2, &[]);
                end.tell(&[0, 0]);
                assert_eq!(end.next().status, S::LOC_LEN_ERR);
            })
        },
    ),
    way(
        S::WR_FLUSH_ERR,
        V::FLUSHED_BY_FAULT_RULE,
        |end| {
            let conn = end.open(QpType::Rc);
            end.meet();
            conn.post(&conn.wr(SendOp::Send));
            // The peer is in the error state, and silent.
            end.meet();
            None
        },
        |end| {
            let conn = end.open(QpType::Rc);
            conn.recv(1, &[]);
            end.strike("qp_error:opcode=send");
            end.meet();
            let done = end.next();
            end.heal();
            end.meet();
            Some(done)
        },
    ),
    way(S::WR_FLUSH_ERR, V::FLUSHED_BY_OVERRUN, overrun, |end| {
        let conn = end.open(QpType::Rc);
        conn.recv(1, &[]);
        conn.recv(2, &[]);
        end.meet();
        end.nexts(2);
        end.meet();
        None
    }),
    way(
        S::WR_FLUSH_ERR,
        V::ACCESS_NOT_ENABLED,
        |end| causing(end, SendOp::Write, b"12345678"),
        |end| {
            let link = Link {
                access: AccessFlags::empty(),
                ..Link::default()
            };
            receiving(end, &link, |end, conn| {
                post_buffer(end, conn, 64, EVERYTHING);
            })
        },
    ),
    way(
        S::MW_BIND_ERR,
        V::BIND_REFUSED,
        |end| {
            let region = end.region(8, Access::LOCAL_WRITE);
            let two = oarlock_device::WindowType::Two;
            let window = oarlock_device::Window::new(&end.side.pd, two).expect("window");
            let bind = BindWindow {
                window: window.rkey(),
                rkey: window.rkey(),
                region: region.lkey(),
                addr: region.iova(),
                len: 8,
                access: AccessFlags::REMOTE_READ,
            };
            alone(end, SendOp::BindWindow(bind), &[])
        },
        peer,
    ),
    way(
        S::MW_BIND_ERR,
        V::RKEY_UNKNOWN,
        |end| alone(end, SendOp::LocalInvalidate(RKey(0xbad)), &[]),
        peer,
    ),
    way(
        S::MW_BIND_ERR,
        V::NOT_INVALIDATABLE,
        |end| {
            let region = end.region(8, EVERYTHING);
            alone(end, SendOp::LocalInvalidate(region.rkey()), &[])
        },
        peer,
    ),
    way(
        S::LOC_ACCESS_ERR,
        V::RIGHT_MISSING,
        |end| causing(end, |remote| SendOp::WriteWithImm(remote, 1), b"12345678"),
        |end| {
            receiving(end, &Link::default(), |end, conn| {
                post_buffer(end, conn, 64, Access::LOCAL_WRITE);
            })
        },
    ),
    way(
        S::LOC_ACCESS_ERR,
        V::OUT_OF_BOUNDS,
        |end| causing(end, |remote| SendOp::WriteWithImm(remote, 1), &[7; 65]),
        |end| {
            receiving(end, &Link::default(), |end, conn| {
                post_buffer(end, conn, 64, EVERYTHING);
            })
        },
    ),
    way(
        S::REM_INV_REQ_ERR,
        V::NAK_INVALID_REQUEST,
        |end| caused(end, SendOp::Read, &Link::default()),
        |end| {
            let link = Link {
                access: AccessFlags::REMOTE_WRITE,
                ..Link::default()
            };
            receiving(end, &link, |end, conn| {
                post_buffer(end, conn, 64, EVERYTHING);
            })
            .and(None)
        },
    ),
    way(
        S::REM_INV_REQ_ERR,
        V::NOT_INVALIDATABLE,
        |end| causing(end, |remote| SendOp::SendWithInvalidate(remote.rkey), b"1"),
        |end| {
            receiving(end, &Link::default(), |end, conn| {
                post_buffer(end, conn, 64, EVERYTHING);
            })
        },
    ),
    way(
        S::REM_INV_REQ_ERR,
        V::MESSAGE_INCOMPLETE,
        incomplete_from,
        incomplete_into,
    ),
    way(
        S::REM_ACCESS_ERR,
        V::NAK_REMOTE_ACCESS,
        |end| caused(end, SendOp::Read, &Link::default()),
        |end| {
            receiving(end, &Link::default(), |end, conn| {
                post_buffer(end, conn, 64, Access::LOCAL_WRITE);
            })
            .and(None)
        },
    ),
    way(
        S::REM_OP_ERR,
        V::NAK_REMOTE_OPERATIONAL,
        |end| caused(end, SendOp::Write, &Link::default()),
        |end| {
            receiving(end, &Link::default(), |end, conn| {
                let region = vanished(end, EVERYTHING);
                conn.recv(1, &[]);
                end.offer(&region);
                std::mem::forget(region);
            })
            .and(None)
        },
    ),
    way(
        S::RETRY_EXC_ERR,
        V::ACK_TIMEOUTS,
        |end| {
            let conn = end.open_with(QpType::Rc, QpInit::default(), &IMPATIENT);
            end.strike("drop:direction=tx");
            let done = end.attempt(&conn, SendOp::Send, &[]);
            end.heal();
            end.meet();
            Some(done)
        },
        peer,
    ),
    way(
        S::RNR_RETRY_EXC_ERR,
        V::RNR_NAKS,
        |end| {
            let conn = end.open_with(QpType::Rc, QpInit::default(), &UNREADY_ONCE);
            let done = end.attempt(&conn, SendOp::Send, &[]);
            end.meet();
            Some(done)
        },
        peer,
    ),
];

/// What ends a queue pair that has a receive.
fn flushed(end: &mut End, how: fn(&End, &Conn)) -> Option<Completion> {
    let conn = end.open(QpType::Rc);
    conn.recv(3, &[]);
    how(end, &conn);
    let done = end.next();
    assert_eq!((done.wr_id, done.is_send), (3, false));
    end.meet();
    Some(done)
}

/// Two sends complete on a queue for one; the receive that waits is flushed, on another.
fn overrun(end: &mut End) -> Option<Completion> {
    let small = Arc::new(Cq::new(&end.side.context, 1, None, 0).expect("cq"));
    let qp = Qp::new(&end.side.pd, &small, &end.side.cq, QpInit::default()).expect("qp");
    let [peer, _] = end.swap([qp.qpn().get().into(), 0]);
    let peer = oarlock_wire::Qpn::truncate(peer as u32);
    for attr in steps(QpType::Rc, end.here, end.there, peer, &Link::default()) {
        qp.modify(&attr).expect("modify");
    }
    end.meet();
    qp.post_recv(&RecvWr {
        wr_id: 1,
        sges: &[],
    })
    .expect("recv");
    end.meet();
    for _ in 0..2 {
        qp.post_send(&SendWr::default()).expect("send");
    }
    let done = end.next();
    end.meet();
    Some(done)
}

/// UC, shared receives: the middle of a message is lost, and its buffer cannot go back.
fn incomplete_from(end: &mut End) -> Option<Completion> {
    let conn = end.open(QpType::Uc);
    end.meet();
    end.strike("drop:opcode=uc_send_middle,count=1");
    let source = end.filled(&[1; 4000]);
    end.attempt(&conn, SendOp::Send, &[source.sge(0, 4000)]);
    end.heal();
    // What follows shows the gap.
    end.inline(&conn, b"next");
    end.meet();
    None
}

fn incomplete_into(end: &mut End) -> Option<Completion> {
    let srq = Arc::new(Srq::new(&end.side.pd, SrqInit::default()).expect("srq"));
    let init = QpInit {
        srq: Some(Arc::clone(&srq)),
        ..QpInit::default()
    };
    let _conn = end.open_with(QpType::Uc, init, &Link::default());
    let buffers = [1, 2].map(|wr_id| {
        let buffer = end.region(4000, Access::LOCAL_WRITE);
        let sges = [buffer.sge(0, 4000)];
        srq.post_recv(&RecvWr { wr_id, sges: &sges })
            .expect("post_recv");
        buffer
    });
    end.meet();
    let done = end.next();
    assert_eq!(done.wr_id, 1);
    let next = collect(&end.side.cq, 1).remove(0).completion;
    assert_eq!((next.wr_id, next.byte_len), (2, 4));
    drop(buffers);
    end.meet();
    Some(done)
}
