//! What is refused, by name, and changes nothing.

use oarlock_device::{Access, Error as DeviceError, Qp, QpInit, XrcDomain};
use oarlock_transport::{BindWindow, Error, QpType, RemoteAddress, SendData, SendOp, SendWr};
use oarlock_wire::{LKey, RKey, Srqn};

use crate::cases;
use crate::conn::SERVICES;
use crate::end::End;

cases! {
    /// Each operation on each type of queue pair: there, or refused.
    operations_by_service: operations, operations;
    /// Flags and fields that mean nothing with an operation are refused, not ignored.
    flags_by_operation: flags, flags;
    /// Access flags that this device does not give.
    access_flags: access, access;
    /// What a queue pair cannot be made with.
    queue_pairs: queue_pairs, queue_pairs;
}

const REMOTE: RemoteAddress = RemoteAddress {
    addr: 0x1000,
    rkey: RKey(1),
};

const OPERATIONS: [SendOp; 10] = [
    SendOp::Send,
    SendOp::SendWithImm(1),
    SendOp::SendWithInvalidate(RKey(1)),
    SendOp::Write(REMOTE),
    SendOp::WriteWithImm(REMOTE, 1),
    SendOp::Read(REMOTE),
    SendOp::CompareSwap {
        remote: REMOTE,
        compare: 0,
        swap: 0,
    },
    SendOp::FetchAdd {
        remote: REMOTE,
        add: 0,
    },
    SendOp::LocalInvalidate(RKey(1)),
    SendOp::BindWindow(BindWindow {
        window: RKey(1),
        rkey: RKey(2),
        region: LKey(1),
        addr: 0,
        len: 1,
        access: Access::REMOTE_READ,
    }),
];

/// IBA Vol. 1 ch. 11 "Post send request", the table of operations by transport service.
fn exists(op: usize, service: QpType) -> bool {
    match service {
        QpType::Rc | QpType::XrcInitiator => true,
        QpType::Uc => matches!(op, 0 | 1 | 3 | 4 | 8 | 9),
        QpType::Ud => op < 2,
        _ => false,
    }
}

fn operations(end: &mut End) {
    for service in SERVICES {
        for (i, op) in OPERATIONS.into_iter().enumerate() {
            let conn = end.open(service);
            let result = end.region(8, Access::LOCAL_WRITE);
            let sges = [result.sge(0, 8)];
            let is_atomic = (6..8).contains(&i);
            let data = SendData::Sges(if is_atomic { &sges } else { &[] });
            let qp_type = conn.qp.qp_type();
            let wr = SendWr {
                data,
                ..conn.wr(op)
            };
            match conn.qp.post_send(&wr) {
                Ok(()) => assert!(exists(i, qp_type), "{} on {qp_type}", op.name()),
                Err(error) => {
                    assert!(!exists(i, qp_type), "{} on {qp_type}: {error}", op.name());
                    let DeviceError::QueuePair(error) = error else {
                        panic!("{error}");
                    };
                    let operation = op.name();
                    let expected = Error::OperationNotSupported { operation, qp_type };
                    assert_eq!(error, expected);
                }
            }
            end.meet();
        }
    }
}

fn flags(end: &mut End) {
    // The first side has the sending half of XRC.
    for service in SERVICES {
        if service == QpType::XrcInitiator && !end.is_first() {
            end.open(service);
            end.meet();
            continue;
        }
        let conn = end.open(service);
        let memory = end.region(64, crate::end::EVERYTHING);
        let (eight, seven) = ([memory.sge(0, 8)], [memory.sge(0, 7)]);
        for (i, op) in OPERATIONS.into_iter().enumerate() {
            if !exists(i, service) {
                continue;
            }
            let operation = op.name();
            let is_atomic = (6..8).contains(&i);
            let is_local = i >= 8;
            let wr = SendWr {
                data: SendData::Sges(if is_atomic { &eight } else { &[] }),
                ..conn.wr(op)
            };
            let refused = |wr| conn.refused(&wr);
            let not_allowed = |flag| Error::FlagNotAllowed {
                flag,
                operation,
                qp_type: service,
            };
            if matches!(service, QpType::Uc | QpType::Ud) {
                let error = refused(SendWr { fence: true, ..wr });
                assert_eq!(error, not_allowed("fence"));
            }
            if !matches!(i, 0..=2 | 4) {
                let error = refused(SendWr {
                    solicited: true,
                    ..wr
                });
                assert_eq!(error, not_allowed("solicited"));
            }
            if i >= 5 {
                let error = refused(SendWr {
                    data: SendData::Inline(b"12345678"),
                    ..wr
                });
                assert_eq!(error, Error::InlineNotAllowed { operation });
            }
            if is_local {
                let error = refused(SendWr {
                    data: SendData::Sges(&eight),
                    ..wr
                });
                let given = 1;
                assert_eq!(error, Error::DataNotAllowed { operation, given });
            }
            if is_atomic {
                let error = refused(SendWr {
                    data: SendData::Sges(&seven),
                    ..wr
                });
                let given = 7;
                assert_eq!(error, Error::AtomicLength { operation, given });
            }
            if service == QpType::XrcInitiator {
                let other = if is_local {
                    Some(Srqn::truncate(1))
                } else {
                    None
                };
                let error = refused(SendWr {
                    xrc_srqn: other,
                    ..wr
                });
                let expected = if is_local {
                    Error::UnexpectedSharedQueueNumber {
                        operation,
                        qp_type: service,
                    }
                } else {
                    Error::NoSharedQueueNumber { operation }
                };
                assert_eq!(error, expected);
            } else {
                let error = refused(SendWr {
                    xrc_srqn: Some(Srqn::truncate(1)),
                    ..wr
                });
                let expected = Error::UnexpectedSharedQueueNumber {
                    operation,
                    qp_type: service,
                };
                assert_eq!(error, expected);
            }
        }
        if service == QpType::Rc {
            let misaligned = SendOp::FetchAdd {
                remote: RemoteAddress {
                    addr: 0x1004,
                    ..REMOTE
                },
                add: 1,
            };
            let wr = SendWr {
                data: SendData::Sges(&eight),
                ..conn.wr(misaligned)
            };
            assert!(matches!(
                conn.refused(&wr),
                Error::AtomicMisaligned { addr: 0x1004, .. }
            ));
            let over = SendOp::Write(RemoteAddress {
                addr: u64::MAX - 6,
                ..REMOTE
            });
            let wr = SendWr {
                data: SendData::Sges(&eight),
                ..conn.wr(over)
            };
            assert!(matches!(conn.refused(&wr), Error::RemoteRange { .. }));
            let huge = [memory.sge(0, 1 << 31), memory.sge(0, 1)];
            let wr = SendWr {
                data: SendData::Sges(&huge),
                ..conn.wr(SendOp::Send)
            };
            assert!(matches!(
                conn.refused(&wr),
                Error::MessageTooLong { given, .. } if given == (1 << 31) + 1
            ));
        }
        end.nothing();
        end.meet();
    }
}

fn access(end: &mut End) {
    for (bit, name) in [
        (7, "HUGETLB"),
        (8, "FLUSH_GLOBAL"),
        (9, "FLUSH_PERSISTENT"),
        (20, "RELAXED_ORDERING"),
        (21, "of a later version"),
    ] {
        let access = Access::LOCAL_WRITE | Access::from_bits_retain(1 << bit);
        match end.side.pd.allocate(8, access) {
            Err(DeviceError::UnsupportedAccess { flag, bits, .. }) => {
                assert_eq!((flag, bits), (name, 1 << bit));
            }
            other => panic!("{other:?}"),
        }
    }
    for right in [Access::REMOTE_WRITE, Access::REMOTE_ATOMIC] {
        let refused = end.side.pd.allocate(8, right).unwrap_err();
        assert!(
            matches!(refused, DeviceError::LocalWriteMissing { .. }),
            "{refused}"
        );
    }
    // SAFETY: refused before anything is touched.
    let all = unsafe { end.side.pd.register(0, usize::MAX, Access::ON_DEMAND) };
    assert!(matches!(all.unwrap_err(), DeviceError::ImplicitOnDemand));
    end.meet();
}

fn queue_pairs(end: &mut End) {
    let make = |init| Qp::new(&end.side.pd, &end.side.cq, &end.side.cq, init);
    let domain = XrcDomain::open(&end.side.context, None).expect("domain");
    let limits = end.side.context.device().limits;
    let refused = make(QpInit {
        qp_type: QpType::XrcTarget,
        ..QpInit::default()
    });
    assert!(matches!(
        refused,
        Err(DeviceError::Needs {
            qp_type: QpType::XrcTarget,
            ..
        })
    ));
    let refused = make(QpInit {
        xrc_domain: Some(domain),
        ..QpInit::default()
    });
    assert!(matches!(refused, Err(DeviceError::DoesNotTake { .. })));
    let beyond: [fn(&mut QpInit, u32); 5] = [
        |init, more| init.max_send_wr = more,
        |init, more| init.max_recv_wr = more,
        |init, more| init.max_send_sge = more,
        |init, more| init.max_recv_sge = more,
        |init, more| init.max_inline_data = more,
    ];
    let most = [
        limits.max_qp_wr,
        limits.max_qp_wr,
        limits.max_sge,
        limits.max_sge,
        limits.max_inline_data,
    ];
    for (set, most) in beyond.into_iter().zip(most) {
        let mut init = QpInit::default();
        set(&mut init, most + 1);
        assert!(
            matches!(make(init), Err(DeviceError::OutOfRange { max, .. }) if max == most.into())
        );
    }
    let here = std::fs::File::open("/").expect("a directory");
    let file = std::os::fd::AsFd::as_fd(&here);
    let refused = XrcDomain::open(&end.side.context, Some(file)).unwrap_err();
    assert!(matches!(refused, DeviceError::XrcDomainOfFile), "{refused}");
    end.meet();
}
