//! Attributes of queue pairs: what each of them changes, and which values it has.

use oarlock_device::QpInit;
use oarlock_transport::{AccessFlags, AttrMask, QpAttr, QpState, QpType, SendOp, WcStatus};
use oarlock_wire::{Mtu, Opcode, PKey, Packet, Psn, QKey, Qpn, RetryCount, RnrTimer, Syndrome};

use crate::cases;
use crate::conn::{Conn, SERVICES};
use crate::end::{End, content};
use crate::support::ends::Link;

cases! {
    /// What was given is what a query tells, and what takes effect.
    attributes: attributes_from, attributes_at;
    /// What a queue pair asks of its peer when it is not ready.
    min_rnr_timer: |end| {
        for timer in [0, 9, 31] {
            let link = Link { rnr_timer: timer, ..Link::default() };
            let conn = end.open_to_forger(QpType::Rc, QpInit::default(), &link);
            end.meet();
            assert_eq!(conn.count(oarlock_transport::Counter::RnrNaksSent), 1);
        }
    }, |end| {
        let mut forger = end.forger();
        for timer in [0, 9, 31] {
            forger.open(end);
            forger.send(&forger.header(Opcode::RC_SEND_ONLY, 0), &[]);
            let bytes = forger.packet();
            let packet = Packet::parse(&bytes).expect("a packet");
            let syndrome = packet.aeth.map(|aeth| aeth.syndrome);
            assert_eq!(syndrome, Some(Syndrome::RnrNak(RnrTimer::truncate(timer))));
            end.meet();
        }
    };
    /// Packets of another partition are dropped, and counted.
    partition_key: partition_from, partition_at;
    /// A connected queue pair hears the address of its path alone.
    wrong_source: |end| {
        let link = Link { timeout: 8, retries: 1, ..Link::default() };
        let conn = end.open_with(QpType::Rc, QpInit::default(), &link);
        end.meet();
        let done = end.attempt(&conn, SendOp::Send, &[]);
        assert_eq!(done.status, WcStatus::RETRY_EXC_ERR);
        end.meet();
    }, |end| {
        let conn = end.open(QpType::Rc);
        let to = conn.qp.query().dest_qpn;
        conn.to_state(QpState::Reset);
        let elsewhere = oarlock_wire::Gid::from_ip([10, 9, 8, 7].into());
        for attr in end.way(QpType::Rc, to, &Link::default()) {
            let av = oarlock_wire::AddressVector::new(end.here, elsewhere);
            conn.qp.modify(&QpAttr { av, ..attr }).expect("modify");
        }
        conn.recv(1, &[]);
        end.meet();
        let dropped = oarlock_transport::Counter::DroppedWrongSource;
        crate::support::eventually("the drops", || conn.count(dropped) == 2);
        end.nothing();
        end.meet();
    };
    /// Values out of range are refused by name, and nothing has changed.
    attribute_ranges: ranges, ranges;
}

fn attributes_from(end: &mut End) {
    let link = Link {
        mtu: Mtu::MTU_512,
        reads: 3,
        timeout: 17,
        retries: 5,
        rnr_timer: 9,
        rnr_retry: 4,
        first_psn: 0x77_7777,
        access: AccessFlags::REMOTE_READ,
    };
    let conn = end.open_with(QpType::Rc, QpInit::default(), &link);
    let attr = conn.qp.query();
    assert_eq!(
        (attr.state, attr.port_num, attr.pkey),
        (QpState::Rts, 1, PKey::DEFAULT)
    );
    assert_eq!(
        (attr.path_mtu, attr.max_rd_atomic, attr.max_dest_rd_atomic),
        (link.mtu, 3, 3)
    );
    assert_eq!(
        (attr.timeout.get(), attr.retry_count, attr.rnr_retry),
        (17, RetryCount::truncate(5), RetryCount::truncate(4))
    );
    assert_eq!(
        (attr.min_rnr_timer, attr.access),
        (9, AccessFlags::REMOTE_READ)
    );
    assert_eq!((attr.av.local, attr.av.remote), (end.here, end.there));
    assert!(!attr.sq_draining);
    let psn = Psn::truncate(0x77_7777);
    assert_eq!((attr.sq_psn, attr.rq_psn), (psn, psn));
    // Five packets of the path MTU that was given, from the number that was given.
    let source = end.filled(&[1; 5 * 512]);
    end.meet();
    let faults = end.strike("duplicate:psn=0x777777-0x77777b,opcode=rc_send_middle,direction=tx");
    end.run(&conn, SendOp::Send, &[source.sge(0, 5 * 512)]);
    assert_eq!(faults.counts()[0].struck, 3, "first, three, last");
    end.heal();
    // A right that is given while packets flow counts from then on.
    end.meet();
    let remote = end.offered();
    end.run(&conn, SendOp::Write(remote), &[source.sge(0, 8)]);
    end.meet();
    // A datagram queue pair's key.
    let conn = end.open(QpType::Ud);
    assert_eq!(conn.qp.query().qkey, crate::support::KEY);
    conn.qp
        .modify(&QpAttr {
            mask: AttrMask::QKEY,
            qkey: QKey(7),
            ..QpAttr::default()
        })
        .expect("RTS to RTS");
    assert_eq!(conn.qp.query().qkey, QKey(7));
    end.meet();
}

fn attributes_at(end: &mut End) {
    let link = Link {
        mtu: Mtu::MTU_512,
        first_psn: 0x77_7777,
        access: AccessFlags::REMOTE_READ,
        ..Link::default()
    };
    let conn = end.open_with(QpType::Rc, QpInit::default(), &link);
    let buffer = end.ready(&conn, 1, 5 * 512);
    end.meet();
    end.received(&conn, &buffer);
    conn.qp
        .modify(&QpAttr {
            mask: AttrMask::ACCESS_FLAGS,
            access: AccessFlags::REMOTE_WRITE,
            ..QpAttr::default()
        })
        .expect("RTS to RTS");
    let memory = end.region(8, crate::end::EVERYTHING);
    end.meet();
    end.offer(&memory);
    end.meet();
    assert_eq!(content(&memory), [1; 8]);
    let _conn = end.open(QpType::Ud);
    end.meet();
}

fn partition_from(end: &mut End) {
    for service in SERVICES {
        let conn = end.made(service, QpInit::default());
        let numbers = end.swap([conn.qp.qpn().get().into(), 0]);
        let link = Link {
            timeout: 8,
            retries: 1,
            ..Link::default()
        };
        let peer = Qpn::truncate(numbers[0] as u32);
        for attr in end.way(service, peer, &link) {
            let attr = QpAttr {
                pkey: PKey(0x8001),
                ..attr
            };
            conn.qp.modify(&attr).expect("modify");
        }
        assert_eq!(conn.qp.query().pkey, PKey(0x8001));
        end.meet();
        let conn = Conn {
            to: (service == QpType::Ud).then(|| oarlock_transport::UdDestination {
                av: oarlock_wire::AddressVector::new(end.here, end.there),
                remote_qpn: peer,
                remote_qkey: crate::support::KEY,
            }),
            srqn: (service == QpType::XrcInitiator)
                .then(|| oarlock_wire::Srqn::truncate(numbers[1] as u32)),
            ..conn
        };
        let done = end.attempt(&conn, SendOp::Send, &[]);
        let expected = if matches!(service, QpType::Uc | QpType::Ud) {
            WcStatus::SUCCESS
        } else {
            WcStatus::RETRY_EXC_ERR
        };
        assert_eq!(done.status, expected, "{service}");
        end.meet();
    }
}

fn partition_at(end: &mut End) {
    for service in SERVICES {
        let conn = end.open(service);
        let _buffer = end.ready(&conn, 1, 0);
        let dropped = oarlock_transport::Counter::DroppedWrongPkey;
        crate::support::eventually("the drop", || conn.count(dropped) > 0);
        end.nothing();
        end.meet();
    }
}

fn ranges(end: &mut End) {
    let conn = end.made_first(QpType::Rc);
    let refused = |attr: QpAttr| conn.qp.modify(&attr).unwrap_err().to_string();
    let peer = Qpn::truncate(5);
    let way = end.way(QpType::Rc, peer, &Link::default());
    for (attr, sentence) in [
        (
            QpAttr {
                port_num: 2,
                ..way[0]
            },
            "port number is 2",
        ),
        (
            QpAttr {
                access: AccessFlags::MW_BIND,
                ..way[0]
            },
            "a queue pair cannot grant MW_BIND",
        ),
    ] {
        assert!(refused(attr).starts_with(sentence), "{}", refused(attr));
    }
    conn.qp.modify(&way[0]).expect("init");
    for (attr, sentence) in [
        (
            QpAttr {
                path_mtu: Mtu(6),
                ..way[1]
            },
            "path MTU",
        ),
        (
            QpAttr {
                path_mtu: Mtu(0),
                ..way[1]
            },
            "path MTU code 0 is reserved",
        ),
        (
            QpAttr {
                min_rnr_timer: 32,
                ..way[1]
            },
            "min_rnr_timer is 32, at most 31",
        ),
        (
            QpAttr {
                max_dest_rd_atomic: 129,
                ..way[1]
            },
            "max_dest_rd_atomic is 129, at most 128",
        ),
        (
            QpAttr {
                mask: way[1].mask | AttrMask::from_bits_retain(1 << 30),
                ..way[1]
            },
            "attribute",
        ),
    ] {
        assert!(refused(attr).starts_with(sentence), "{}", refused(attr));
    }
    conn.qp.modify(&way[1]).expect("rtr");
    let attr = QpAttr {
        max_rd_atomic: 129,
        ..way[2]
    };
    assert!(refused(attr).starts_with("max_rd_atomic is 129, at most 128"));
    assert_eq!(conn.qp.state(), QpState::Rtr);
    end.meet();
}
