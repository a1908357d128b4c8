//! The states of a queue pair: every transition with every attribute, what each state does, and how queues end.

use oarlock_device::{AsyncEvent, Error as DeviceError, Qp, QpInit};
use oarlock_transport::{
    AttrMask, Error, QpAttr, QpState, QpType, SendOp, SendWr, Sge, VendorError, WcStatus,
};
use oarlock_wire::{LKey, Qpn, RetryCount};

use crate::cases;
use crate::conn::{Conn, SERVICES};
use crate::end::End;
use crate::support::ends::Link;

cases! {
    /// The whole table: every type, from every state to every state, with what is needed, with each attribute less, with each
    /// one more.
    transitions: transitions, transitions;
    /// In SQD what was begun ends, what was posted waits, messages still arrive; then an event.
    send_queue_drained: drained_from, drained_at;
    /// Attributes of the path change while nothing is sent, and not before.
    changes_while_drained: changing_from, changing_at;
    /// A failed send of UC or UD stops the sends and nothing else.
    send_queue_error: sqe_from, sqe_at;
    /// Error ends every request, in order; Reset forgets them.
    flush: flush_from, flush_at;
    /// What may be posted in which state.
    posting_by_state: posting, posting;
}

const TYPES: [QpType; 5] = [
    QpType::Rc,
    QpType::Uc,
    QpType::Ud,
    QpType::XrcInitiator,
    QpType::XrcTarget,
];

const STATES: [QpState; 7] = [
    QpState::Reset,
    QpState::Init,
    QpState::Rtr,
    QpState::Rts,
    QpState::Sqd,
    QpState::Sqe,
    QpState::Error,
];

const ATTRIBUTES: [AttrMask; 21] = [
    AttrMask::CUR_STATE,
    AttrMask::EN_SQD_ASYNC_NOTIFY,
    AttrMask::ACCESS_FLAGS,
    AttrMask::PKEY_INDEX,
    AttrMask::PORT,
    AttrMask::QKEY,
    AttrMask::AV,
    AttrMask::PATH_MTU,
    AttrMask::TIMEOUT,
    AttrMask::RETRY_CNT,
    AttrMask::RNR_RETRY,
    AttrMask::RQ_PSN,
    AttrMask::MAX_QP_RD_ATOMIC,
    AttrMask::ALT_PATH,
    AttrMask::MIN_RNR_TIMER,
    AttrMask::SQ_PSN,
    AttrMask::MAX_DEST_RD_ATOMIC,
    AttrMask::PATH_MIG_STATE,
    AttrMask::CAP,
    AttrMask::DEST_QPN,
    AttrMask::RATE_LIMIT,
];

/// Attributes that exist and that this device has not.
const NOT_SUPPORTED: AttrMask = AttrMask::ALT_PATH
    .union(AttrMask::PATH_MIG_STATE)
    .union(AttrMask::CAP)
    .union(AttrMask::RATE_LIMIT);

/// A queue pair, alone, and the attributes that lead it anywhere.
struct Lone<'a> {
    end: &'a mut End,
    qp_type: QpType,
    attr: QpAttr,
}

impl Lone<'_> {
    fn new(end: &mut End, qp_type: QpType) -> Lone<'_> {
        let peer = Qpn::truncate(0x12_3456);
        let mut attr = QpAttr::default();
        for step in end.way(qp_type, peer, &Link::default()) {
            attr = QpAttr {
                mask: attr.mask | step.mask,
                ..step
            };
        }
        Lone { end, qp_type, attr }
    }

    fn to(&self, state: QpState, mask: AttrMask) -> QpAttr {
        QpAttr {
            mask: mask | AttrMask::STATE,
            state,
            ..self.attr
        }
    }

    /// A fresh queue pair in this state; `None` where its type has no such state.
    fn at(&mut self, state: QpState) -> Option<Conn> {
        let service = match self.qp_type {
            QpType::XrcTarget => QpType::XrcInitiator,
            other => other,
        };
        let conn = if self.qp_type == QpType::XrcTarget {
            self.end.xrc_target()
        } else {
            self.end.made_first(service)
        };
        let path: &[QpState] = match state {
            QpState::Reset => &[],
            QpState::Error => &[QpState::Error],
            QpState::Init => &STATES[1..2],
            QpState::Rtr => &STATES[1..3],
            QpState::Rts | QpState::Sqe => &STATES[1..4],
            QpState::Sqd => &STATES[1..5],
        };
        for step in path {
            let from = conn.qp.state();
            let row = self.qp_type.transition(from, *step).expect("on the way");
            conn.qp
                .modify(&self.to(*step, row.required))
                .expect("modify");
        }
        if state == QpState::Sqe {
            if !matches!(self.qp_type, QpType::Uc | QpType::Ud) {
                return None;
            }
            fail_locally(self.end, &conn);
        }
        assert_eq!(conn.qp.state(), state);
        Some(conn)
    }
}

/// A send of memory that is none.
fn fail_locally(end: &End, conn: &Conn) {
    let nowhere = Sge {
        addr: 0,
        len: 1,
        lkey: LKey(0xbad),
    };
    let to = (conn.qp.qp_type() == QpType::Ud).then(|| oarlock_transport::UdDestination {
        av: oarlock_wire::AddressVector::new(end.here, end.there),
        remote_qpn: Qpn::truncate(0x12_3456),
        remote_qkey: crate::support::KEY,
    });
    let sges = [nowhere];
    conn.post(&SendWr {
        wr_id: FAILS,
        ud: to,
        data: oarlock_transport::SendData::Sges(&sges),
        ..conn.wr(SendOp::Send)
    });
    // Other queue pairs may have left something.
    let done = loop {
        let done = end.next();
        if done.wr_id == FAILS {
            break done;
        }
    };
    assert_eq!(done.status, WcStatus::LOC_PROT_ERR);
}

const FAILS: u64 = 0xfa11;

fn refusal(qp: &Qp, attr: &QpAttr) -> Error {
    match qp.modify(attr) {
        Err(DeviceError::QueuePair(error)) => error,
        other => panic!("{other:?}"),
    }
}

fn transitions(end: &mut End) {
    let mut counts = (0, 0);
    for qp_type in TYPES {
        let mut lone = Lone::new(end, qp_type);
        for from in STATES {
            for to in STATES {
                let Some(conn) = lone.at(from) else {
                    continue;
                };
                match qp_type.transition(from, to) {
                    Some(row) => {
                        counts.0 += 1;
                        one_transition(&mut lone, &conn, (from, to), row);
                    }
                    None => {
                        counts.1 += 1;
                        let all = lone.to(to, AttrMask::empty());
                        let expected = Error::InvalidTransition { from, to };
                        assert_eq!(refusal(&conn.qp, &all), expected, "{qp_type}");
                        assert_eq!(conn.qp.state(), from);
                    }
                }
            }
        }
    }
    assert!(counts.0 > 100 && counts.1 > 80, "{counts:?}");
    end.meet();
}

fn one_transition(
    lone: &mut Lone<'_>,
    conn: &Conn,
    (from, to): (QpState, QpState),
    row: oarlock_transport::Transition,
) {
    let what = format!("{} {from} -> {to}", lone.qp_type);
    let required = row.required;
    for attribute in ATTRIBUTES {
        let attr = if required.contains(attribute) {
            lone.to(to, required - attribute)
        } else {
            lone.to(to, required | attribute)
        };
        let attr = QpAttr {
            current_state: from,
            ..attr
        };
        let expected = if required.contains(attribute) {
            Error::AttributeMissing {
                from,
                to,
                missing: attribute,
            }
        } else if NOT_SUPPORTED.contains(attribute) {
            match refusal(&conn.qp, &attr) {
                Error::AttributeNotSupported {
                    attribute: named, ..
                } => assert_eq!(named, attribute, "{what}"),
                other => panic!("{what}, {attribute}: {other}"),
            }
            continue;
        } else if row.optional.contains(attribute) {
            // On another queue pair: this one stays where it is.
            let other = lone.at(from).expect("as before");
            other
                .qp
                .modify(&attr)
                .unwrap_or_else(|error| panic!("{what} with {attribute}: {error}"));
            assert_eq!(other.qp.state(), to);
            continue;
        } else {
            Error::AttributeNotAllowed {
                from,
                to,
                extra: attribute,
            }
        };
        assert_eq!(refusal(&conn.qp, &attr), expected, "{what}");
        assert_eq!(conn.qp.state(), from, "{what}");
    }
    let wrong = QpAttr {
        current_state: if from == QpState::Init {
            QpState::Rts
        } else {
            QpState::Init
        },
        ..lone.to(to, required | AttrMask::CUR_STATE)
    };
    let refused = refusal(&conn.qp, &wrong);
    assert!(
        matches!(refused, Error::CurrentStateMismatch { .. }),
        "{what}: {refused}"
    );
    conn.qp
        .modify(&lone.to(to, required))
        .unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!(conn.qp.state(), to, "{what}");
}

impl End {
    /// As the first side makes it, in Reset.
    pub(crate) fn made_first(&mut self, service: QpType) -> Conn {
        let qp = self.side.qp(QpInit {
            qp_type: service,
            ..QpInit::default()
        });
        let xrc = service == QpType::XrcInitiator;
        Conn {
            qp,
            to: None,
            srqn: xrc.then(|| oarlock_wire::Srqn::truncate(1)),
            srq: None,
        }
    }

    fn xrc_target(&mut self) -> Conn {
        let domain = oarlock_device::XrcDomain::open(&self.side.context, None).expect("domain");
        let qp = self.side.qp(QpInit {
            qp_type: QpType::XrcTarget,
            xrc_domain: Some(domain),
            ..QpInit::default()
        });
        Conn {
            qp,
            to: None,
            srqn: None,
            srq: None,
        }
    }
}

fn notify() -> QpAttr {
    QpAttr {
        mask: AttrMask::STATE | AttrMask::EN_SQD_ASYNC_NOTIFY,
        state: QpState::Sqd,
        sqd_notify: true,
        ..QpAttr::default()
    }
}

fn drained_from(end: &mut End) {
    for service in SERVICES {
        let conn = end.open(service);
        let is_reliable = matches!(service, QpType::Rc | QpType::XrcInitiator);
        if is_reliable {
            // Begun, and not to be ended before the other side is ready.
            conn.post(&conn.wr(SendOp::Send));
        }
        conn.qp.modify(&notify()).expect("sqd");
        assert_eq!(conn.qp.query().sq_draining, is_reliable);
        conn.post(&SendWr {
            wr_id: 2,
            ..conn.wr(SendOp::SendWithImm(2))
        });
        end.meet();
        end.event(AsyncEvent::SqDrained(conn.qp.qpn()));
        if is_reliable {
            assert_eq!(end.next().wr_id, 0);
        }
        assert!(!conn.qp.query().sq_draining);
        // The other side has heard nothing of the second.
        end.meet();
        end.nothing();
        conn.to_state(QpState::Rts);
        let done = end.next();
        assert_eq!((done.wr_id, done.status), (2, WcStatus::SUCCESS));
        // Without the wish no event comes.
        conn.to_state(QpState::Sqd);
        assert!(!end.events().contains(&AsyncEvent::SqDrained(conn.qp.qpn())));
        end.meet();
    }
}

fn drained_at(end: &mut End) {
    for service in SERVICES {
        let conn = end.open(service);
        let is_reliable = matches!(service, QpType::Rc | QpType::XrcInitiator);
        let _buffers = [end.region(64, oarlock_device::Access::LOCAL_WRITE)];
        end.meet();
        let buffer = end.ready(&conn, 1, 0);
        if is_reliable {
            end.received(&conn, &buffer);
        }
        end.meet();
        let second = is_reliable.then(|| end.ready(&conn, 2, 0));
        let done = end.next();
        assert_eq!((done.status, done.imm), (WcStatus::SUCCESS, Some(2)));
        drop(second);
        end.meet();
    }
}

fn changing_from(end: &mut End) {
    let conn = end.open(QpType::Rc);
    conn.post(&conn.wr(SendOp::Send));
    conn.to_state(QpState::Sqd);
    let change = QpAttr {
        mask: AttrMask::STATE | AttrMask::RETRY_CNT | AttrMask::TIMEOUT | AttrMask::MIN_RNR_TIMER,
        state: QpState::Sqd,
        retry_count: RetryCount::truncate(2),
        ..conn.qp.query()
    };
    // The peer is not ready: what was begun is not done.
    for attr in [change, QpAttr::to_state(QpState::Rts)] {
        let to = attr.state;
        assert_eq!(refusal(&conn.qp, &attr), Error::StillDraining { to });
    }
    end.meet();
    assert_eq!(end.next().status, WcStatus::SUCCESS);
    crate::support::eventually("the end of draining", || !conn.qp.query().sq_draining);
    conn.qp.modify(&change).expect("nothing is outstanding");
    assert_eq!(conn.qp.query().retry_count, RetryCount::truncate(2));
    conn.to_state(QpState::Rts);
    end.run(&conn, SendOp::Send, &[]);
    end.meet();
}

fn changing_at(end: &mut End) {
    let conn = end.open(QpType::Rc);
    end.meet();
    conn.recv(1, &[]);
    conn.recv(2, &[]);
    end.nexts(2);
    end.meet();
}

fn sqe_from(end: &mut End) {
    for service in [QpType::Uc, QpType::Ud] {
        let conn = end.open(service);
        let mine = end.ready(&conn, 8, 5);
        end.meet();
        fail_locally(end, &conn);
        assert_eq!(conn.qp.state(), QpState::Sqe);
        // A send is flushed, a message arrives.
        let done = end.attempt(&conn, SendOp::Send, &[]);
        let seen = (done.status, done.vendor_err);
        assert_eq!(seen, (WcStatus::WR_FLUSH_ERR, VendorError::FLUSHED_AT_POST));
        end.meet();
        assert_eq!(end.received(&conn, &mine).1, b"hello");
        assert_eq!(conn.qp.state(), QpState::Sqe);
        conn.to_state(QpState::Rts);
        end.run(&conn, SendOp::Send, &[]);
        end.meet();
    }
}

fn sqe_at(end: &mut End) {
    for service in [QpType::Uc, QpType::Ud] {
        let conn = end.open(service);
        let buffer = end.ready(&conn, 1, 0);
        end.meet();
        end.meet();
        end.inline(&conn, b"hello");
        end.received(&conn, &buffer);
        end.meet();
    }
}

fn flush_from(end: &mut End) {
    for service in SERVICES {
        let conn = end.open(service);
        let receives = service != QpType::XrcInitiator;
        if receives {
            conn.recv(1, &[]);
            conn.recv(2, &[]);
        }
        // In SQD requests wait, so that they are there.
        conn.to_state(QpState::Sqd);
        for wr_id in [11, 12] {
            conn.post(&SendWr {
                wr_id,
                signaled: wr_id == 12,
                ..conn.wr(SendOp::Send)
            });
        }
        conn.to_state(QpState::Error);
        let count = if receives { 4 } else { 2 };
        let flushed = end.nexts(count);
        for done in &flushed {
            let seen = (done.status, done.vendor_err);
            let expected = (WcStatus::WR_FLUSH_ERR, VendorError::FLUSHED_BY_PROGRAM);
            assert_eq!(seen, expected);
        }
        let of = |is_send: bool| -> Vec<u64> {
            let some = flushed.iter().filter(|done| done.is_send == is_send);
            some.map(|done| done.wr_id).collect()
        };
        // Signalled or not, each in its queue's order.
        assert_eq!(of(true), [11, 12]);
        assert_eq!(of(false), if receives { vec![1, 2] } else { vec![] });
        conn.to_state(QpState::Reset);
        assert_eq!(conn.qp.query().mask, AttrMask::empty());
        // Reset forgets without a word.
        if receives {
            let way = end.way(service, Qpn::truncate(5), &Link::default());
            conn.qp.modify(&way[0]).expect("init");
            conn.recv(3, &[]);
            conn.to_state(QpState::Reset);
            end.nothing();
        }
        end.meet();
    }
}

fn flush_at(end: &mut End) {
    for service in SERVICES {
        let _conn = end.open(service);
        end.meet();
    }
}

fn posting(end: &mut End) {
    for qp_type in TYPES {
        for state in STATES {
            let mut lone = Lone::new(end, qp_type);
            let Some(conn) = lone.at(state) else {
                continue;
            };
            let to = (qp_type == QpType::Ud).then(|| oarlock_transport::UdDestination {
                av: oarlock_wire::AddressVector::new(end.here, end.there),
                remote_qpn: Qpn::truncate(0x12_3456),
                remote_qkey: crate::support::KEY,
            });
            let send = conn.qp.post_send(&SendWr {
                ud: to,
                signaled: false,
                ..conn.wr(SendOp::Send)
            });
            let recv = conn.qp.post_recv(&oarlock_transport::RecvWr::default());
            let name = format!("{qp_type} in {state}");
            let can_send = matches!(
                state,
                QpState::Rts | QpState::Sqd | QpState::Sqe | QpState::Error
            );
            let sent = send.map_err(|error| error.to_string());
            if qp_type == QpType::XrcTarget {
                assert!(sent.is_err(), "{name}");
            } else if can_send {
                assert_eq!(sent, Ok(()), "{name}");
            } else {
                let expected = format!("post_send is not allowed in state {state}");
                assert_eq!(sent, Err(expected), "{name}");
            }
            let received = recv.map_err(|error| error.to_string());
            match qp_type {
                QpType::XrcInitiator | QpType::XrcTarget => {
                    let refused = received.unwrap_err();
                    let no_queue = refused.starts_with("the queue pair has no receive queue");
                    let no_state = state == QpState::Reset && refused.ends_with("in state RESET");
                    assert!(no_queue || no_state, "{name}: {refused}");
                }
                _ if state == QpState::Reset => {
                    let expected = "post_recv is not allowed in state RESET".to_owned();
                    assert_eq!(received, Err(expected));
                }
                _ => assert_eq!(received, Ok(()), "{name}"),
            }
        }
    }
    end.meet();
}
