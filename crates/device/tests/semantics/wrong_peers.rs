//! Ends of requests that only a peer shows which is no device of ours.

use oarlock_device::{Access, DeviceChange, QpInit};
use oarlock_transport::{
    QpState, QpType, RemoteAddress, SendData, SendOp, SendWr, VendorError as V, WcStatus as S,
};
use oarlock_wire::base::TransportClass;
use oarlock_wire::{AtomicAckEth, AtomicEth, Mtu, NakCode, Opcode, Srqn, Syndrome, XrcEth};

use crate::cases;
use crate::conn::Conn;
use crate::end::{EVERYTHING, End};
use crate::forge::{ACK, Forger, nowhere};
use crate::support::ends::Link;

cases! {
    /// Those that only a peer shows which is no device of ours.
    completion_statuses_of_a_wrong_peer: wrong_peer_seen, wrong_peer;
    /// A requester that is wrong: an atomic between words, an XRC message that goes on in another queue.
    completion_statuses_of_a_wrong_requester: wrong_requester, wrong_requester_seen;
}

/// A first side with a queue pair, and what a wrong peer does to it.
pub(crate) struct Wrong {
    pub(crate) status: S,
    pub(crate) rule: V,
    reads: u8,
    retries: u8,
    /// Posts; the completion that counts is that of request 1.
    post: fn(&Conn),
    wrong: fn(&Forger),
}

fn posts(conn: &Conn, op: SendOp, len: usize) {
    let bytes = vec![0; len];
    let data = match op {
        SendOp::Send => SendData::Inline(&bytes),
        _ => SendData::Sges(&[]),
    };
    conn.post(&SendWr {
        wr_id: 1,
        data,
        ..conn.wr(op)
    });
}

fn receives(conn: &Conn) {
    conn.recv(1, &[]);
}

const PATIENT: u8 = 7;

pub(crate) const WRONG: &[Wrong] = &[
    Wrong {
        status: S::BAD_RESP_ERR,
        rule: V::RESPONSE_UNEXPECTED,
        reads: 1,
        retries: PATIENT,
        post: |conn| posts(conn, SendOp::Send, 1),
        wrong: |forger| {
            let header = forger
                .header(Opcode::RC_ATOMIC_ACKNOWLEDGE, 0)
                .with_aeth(ACK)
                .with_atomic_ack_eth(AtomicAckEth { original: 1 });
            forger.send(&header, &[]);
        },
    },
    Wrong {
        status: S::BAD_RESP_ERR,
        rule: V::RESPONSE_LENGTH,
        reads: 1,
        retries: PATIENT,
        post: |conn| {
            posts(conn, SendOp::Read(RemoteAddress::default()), 0);
        },
        wrong: |forger| {
            let opcode = Opcode::RC_RDMA_READ_RESPONSE_ONLY;
            forger.send(&forger.header(opcode, 0).with_aeth(ACK), b"too much");
        },
    },
    Wrong {
        status: S::REM_OP_ERR,
        rule: V::NAK_REMOTE_OPERATIONAL,
        reads: 1,
        retries: PATIENT,
        post: |conn| posts(conn, SendOp::Send, 1),
        wrong: |forger| {
            forger.answer(0, Syndrome::Nak(NakCode::REMOTE_OPERATIONAL_ERROR));
        },
    },
    Wrong {
        status: S::RETRY_EXC_ERR,
        rule: V::SEQUENCE_NAKS,
        reads: 1,
        retries: 0,
        post: |conn| posts(conn, SendOp::Send, 1),
        wrong: |forger| forger.answer(0, Syndrome::Nak(NakCode::PSN_SEQUENCE_ERROR)),
    },
    Wrong {
        status: S::WR_FLUSH_ERR,
        rule: V::TOO_MANY_READS,
        reads: 0,
        retries: PATIENT,
        post: receives,
        wrong: |forger| {
            let header = forger.header(Opcode::RC_RDMA_READ_REQUEST, 0);
            forger.send(&header.with_reth(nowhere(0)), &[]);
        },
    },
    Wrong {
        status: S::WR_FLUSH_ERR,
        rule: V::OPCODE_UNSUPPORTED,
        reads: 1,
        retries: PATIENT,
        post: receives,
        wrong: |forger| {
            let mut bytes = [0; 12];
            let header = forger.header(Opcode::RC_SEND_ONLY, 0);
            let len = header.emit_packet(&[], &mut bytes).expect("a BTH");
            // RESYNC, of reliable datagrams.
            bytes[0] = 0x15;
            forger.send_bytes(&bytes[..len]);
        },
    },
    Wrong {
        status: S::WR_FLUSH_ERR,
        rule: V::OPCODE_SEQUENCE,
        reads: 1,
        retries: PATIENT,
        post: receives,
        wrong: |forger| {
            forger.send(&forger.header(Opcode::RC_SEND_MIDDLE, 0), &[0; 1024]);
        },
    },
    Wrong {
        status: S::WR_FLUSH_ERR,
        rule: V::PACKET_LENGTH,
        reads: 1,
        retries: PATIENT,
        post: receives,
        wrong: |forger| {
            forger.send(&forger.header(Opcode::RC_SEND_FIRST, 0), &[0; 100]);
        },
    },
    Wrong {
        status: S::WR_FLUSH_ERR,
        rule: V::WRITE_LENGTH,
        reads: 1,
        retries: PATIENT,
        post: receives,
        wrong: |forger| {
            let header = forger.header(Opcode::RC_RDMA_WRITE_ONLY, 0);
            forger.send(&header.with_reth(nowhere(9)), b"12345678");
        },
    },
];

fn wrong_peer_seen(end: &mut End) {
    for wrong in WRONG {
        let link = Link {
            reads: wrong.reads,
            retries: wrong.retries,
            ..Link::default()
        };
        let conn = end.open_to_forger(QpType::Rc, QpInit::default(), &link);
        (wrong.post)(&conn);
        end.meet();
        let done = end.next();
        assert_eq!(done.wr_id, 1);
        let seen = (done.status, done.vendor_err);
        assert_eq!(seen, (wrong.status, wrong.rule));
        assert_eq!(conn.qp.state(), QpState::Error);
        end.meet();
    }
    lost_responses(end);
    foreign_service(end);
}

/// A READ of two packets, of which only the second comes: the first would be asked for again, once too often.
fn lost_responses(end: &mut End) {
    let link = Link {
        mtu: Mtu::MTU_256,
        retries: 0,
        ..Link::default()
    };
    let conn = end.open_to_forger(QpType::Rc, QpInit::default(), &link);
    let target = end.region(300, Access::LOCAL_WRITE);
    let sges = [target.sge(0, 300)];
    conn.post(&SendWr {
        wr_id: 1,
        data: SendData::Sges(&sges),
        ..conn.wr(SendOp::Read(RemoteAddress::default()))
    });
    end.meet();
    let done = end.next();
    let seen = (done.status, done.vendor_err);
    assert_eq!(seen, (S::RETRY_EXC_ERR, V::RESPONSES_LOST));
    end.meet();
}

/// A packet of another service is no error of the queue pair: it is dropped. When the device goes, what waits is flushed for
/// that reason.
fn foreign_service(end: &mut End) {
    let conn = end.open_to_forger(QpType::Uc, QpInit::default(), &Link::default());
    conn.recv(1, &[]);
    end.meet();
    end.meet();
    crate::support::eventually("the drop", || {
        conn.count(oarlock_transport::Counter::DroppedWrongTransport) == 1
    });
    end.nothing();
    end.change(DeviceChange::Removed);
    let done = end.next();
    let seen = (done.status, done.vendor_err);
    assert_eq!(seen, (S::WR_FLUSH_ERR, V::FLUSHED_BY_DEVICE));
}

fn wrong_requester(end: &mut End) {
    let mut forger = end.forger();
    forger.open(end);
    let remote = end.offered();
    let header = forger.header(Opcode::RC_FETCH_ADD, 0);
    forger.send(
        &header.with_atomic_eth(AtomicEth {
            addr: remote.addr + 4,
            rkey: remote.rkey,
            swap_add: 1,
            compare: 0,
        }),
        &[],
    );
    end.meet();
    forger.open(end);
    let [srqn] = end.told();
    for (opcode, ahead, srqn) in [
        (Opcode::RC_SEND_FIRST, 0, srqn),
        (Opcode::RC_SEND_MIDDLE, 1, srqn ^ 1),
    ] {
        let srqn = Srqn::truncate(srqn as u32);
        let header = forger.header(opcode.of(TransportClass::Xrc), ahead);
        forger.send(&header.with_xrceth(XrcEth { srqn }), &[1; 1024]);
    }
    end.meet();
}

fn wrong_requester_seen(end: &mut End) {
    let conn = end.open_to_forger(QpType::Rc, QpInit::default(), &Link::default());
    let memory = end.region(16, EVERYTHING);
    conn.recv(1, &[]);
    end.offer(&memory);
    let done = end.next();
    let seen = (done.status, done.vendor_err);
    assert_eq!(seen, (S::WR_FLUSH_ERR, V::MISALIGNED));
    end.meet();
    let link = Link::default();
    let conn = end.open_to_forger(QpType::XrcInitiator, QpInit::default(), &link);
    let buffer = end.ready(&conn, 1, 4096);
    let srqn = conn.srq.as_ref().and_then(|srq| srq.number());
    end.tell(&[srqn.expect("a queue of XRC").get().into()]);
    let done = end.next();
    let seen = (done.status, done.vendor_err);
    assert_eq!(seen, (S::WR_FLUSH_ERR, V::NO_SHARED_QUEUE));
    drop(buffer);
    end.meet();
}

fn wrong_peer(end: &mut End) {
    let mut forger = end.forger();
    for wrong in WRONG {
        forger.open(end);
        // It has posted.
        end.meet();
        (wrong.wrong)(&forger);
        end.meet();
    }
    forger.open(end);
    end.meet();
    let last = Opcode::RC_RDMA_READ_RESPONSE_LAST;
    forger.send(&forger.header(last, 1).with_aeth(ACK), &[0; 44]);
    end.meet();
    forger.open(end);
    end.meet();
    forger.send(&forger.header(Opcode::RC_SEND_ONLY, 0), &[]);
    end.meet();
}
