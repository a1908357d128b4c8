//! Which request a queue pair of which type takes, field by field.

use oarlock_wire::Gid;

use super::*;

const TYPES: [QpType; 5] = [
    QpType::Rc,
    QpType::Uc,
    QpType::Ud,
    QpType::XrcInitiator,
    QpType::XrcTarget,
];
const REMOTE: RemoteAddress = RemoteAddress {
    addr: 0x1000,
    rkey: RKey(5),
};
const BIND: BindWindow = BindWindow {
    window: RKey(0x100),
    rkey: RKey(0x101),
    region: LKey(1),
    addr: 0,
    len: 8,
    access: AccessFlags::REMOTE_WRITE,
};
const WORD: [Sge; 1] = [Sge {
    addr: 0,
    len: 8,
    lkey: LKey(1),
}];

fn operations() -> [SendOp; 10] {
    let remote = REMOTE;
    [
        SendOp::Send,
        SendOp::SendWithImm(1),
        SendOp::SendWithInvalidate(RKey(1)),
        SendOp::Write(remote),
        SendOp::WriteWithImm(remote, 1),
        SendOp::Read(remote),
        SendOp::CompareSwap {
            remote,
            compare: 0,
            swap: 1,
        },
        SendOp::FetchAdd { remote, add: 1 },
        SendOp::LocalInvalidate(RKey(1)),
        SendOp::BindWindow(BIND),
    ]
}

/// A request that fits `qp_type` if it has the operation at all.
fn request(op: SendOp, qp_type: QpType) -> SendWr<'static> {
    let to = UdDestination {
        av: AddressVector::new(Gid([1; 16]), Gid([2; 16])),
        remote_qpn: Qpn::truncate(1),
        remote_qkey: QKey(1),
    };
    let is_xrc = matches!(qp_type, QpType::XrcInitiator) && !op.is_local();
    SendWr {
        op,
        data: SendData::Sges(if op.is_local() { &[] } else { &WORD }),
        ud: (qp_type == QpType::Ud).then_some(to),
        xrc_srqn: is_xrc.then_some(Srqn::truncate(9)),
        ..SendWr::default()
    }
}

/// IBA Vol. 1 ch. 11 "Post send request", operations by transport service.
#[test]
fn every_operation_is_taken_or_refused_by_name() {
    let mut table = String::new();
    for op in operations() {
        for qp_type in TYPES {
            let answer = request(op, qp_type).check(qp_type);
            let length = if op.is_local() { 0 } else { 8 };
            match answer {
                Ok(given) => assert_eq!(given, length),
                Err(error) => {
                    let operation = op.name();
                    let expected = Error::OperationNotSupported { operation, qp_type };
                    assert_eq!(error, expected);
                }
            }
            table.push(if answer.is_ok() { 'x' } else { '.' });
        }
        table.push('\n');
    }
    let expected = "\
xxxx.
xxxx.
x..x.
xx.x.
xx.x.
x..x.
x..x.
x..x.
xx.x.
xx.x.
";
    assert_eq!(table, expected);
}

#[test]
fn destinations_go_with_datagrams_and_queue_numbers_with_xrc() {
    for op in operations() {
        let operation = op.name();
        for qp_type in TYPES {
            let good = request(op, qp_type);
            if good.check(qp_type).is_err() {
                continue;
            }
            let with = |ud, xrc_srqn| {
                SendWr {
                    ud,
                    xrc_srqn,
                    ..good
                }
                .check(qp_type)
            };
            let (to, srqn) = (request(op, QpType::Ud).ud, Some(Srqn::truncate(3)));
            match qp_type {
                QpType::Ud => assert_eq!(with(None, None), Err(Error::NoDestination)),
                _ => {
                    let answer = with(to, good.xrc_srqn);
                    assert_eq!(answer, Err(Error::UnexpectedDestination));
                }
            }
            if qp_type == QpType::XrcInitiator && !op.is_local() {
                let expected = Error::NoSharedQueueNumber { operation };
                assert_eq!(with(None, None), Err(expected));
            } else {
                let expected = Error::UnexpectedSharedQueueNumber { operation, qp_type };
                assert_eq!(with(good.ud, srqn), Err(expected));
            }
        }
    }
}

#[test]
fn flags_are_taken_where_they_mean_something() {
    for op in operations() {
        let operation = op.name();
        for qp_type in TYPES {
            let good = request(op, qp_type);
            if good.check(qp_type).is_err() {
                continue;
            }
            let refused = |flag| {
                Err(Error::FlagNotAllowed {
                    flag,
                    operation,
                    qp_type,
                })
            };
            let fence = SendWr {
                fence: true,
                ..good
            }
            .check(qp_type);
            if matches!(qp_type, QpType::Uc | QpType::Ud) {
                assert_eq!(fence, refused("fence"));
            } else {
                assert!(fence.is_ok());
            }
            let solicited = SendWr {
                solicited: true,
                ..good
            }
            .check(qp_type);
            if matches!(
                op,
                SendOp::Send
                    | SendOp::SendWithImm(_)
                    | SendOp::SendWithInvalidate(_)
                    | SendOp::WriteWithImm(..)
            ) {
                assert!(solicited.is_ok());
            } else {
                assert_eq!(solicited, refused("solicited"));
            }
        }
    }
}

#[test]
fn data_is_what_the_operation_moves() {
    fn with(op: SendOp, data: SendData<'_>) -> Result<u32, Error> {
        let wr = SendWr {
            op,
            data,
            ..SendWr::default()
        };
        wr.check(QpType::Rc)
    }
    for op in operations() {
        let operation = op.name();
        let inline = with(op, SendData::Inline(&[0; 8]));
        let takes_inline = !op.brings_data() && !op.is_local();
        let expected = if takes_inline {
            Ok(8)
        } else {
            Err(Error::InlineNotAllowed { operation })
        };
        assert_eq!(inline, expected);
        if op.is_local() {
            let given = 1;
            let expected = Error::DataNotAllowed { operation, given };
            assert_eq!(with(op, SendData::Sges(&WORD)), Err(expected));
        }
        if op.is_atomic() {
            let sge = |len| Sge { len, ..WORD[0] };
            assert_eq!(with(op, SendData::Sges(&[sge(3), sge(5)])), Ok(8));
            for lens in [&[][..], &[7], &[9], &[8, 1], &[u32::MAX, u32::MAX]] {
                let sges: Vec<Sge> = lens.iter().map(|len| sge(*len)).collect();
                let given = lens.iter().map(|len| u64::from(*len)).sum();
                let expected = Error::AtomicLength { operation, given };
                assert_eq!(with(op, SendData::Sges(&sges)), Err(expected));
            }
        }
    }
}

#[test]
fn messages_end_at_two_gibibytes() {
    let sge = |len| Sge { len, ..WORD[0] };
    for op in operations() {
        if op.is_local() || op.is_atomic() {
            continue;
        }
        let with = |sges: &[Sge]| {
            let data = SendData::Sges(sges);
            SendWr {
                op,
                data,
                ..SendWr::default()
            }
            .check(QpType::Rc)
        };
        assert_eq!(with(&[sge(1 << 31)]), Ok(1 << 31));
        let max = MAX_MESSAGE_LEN;
        for sges in [&[sge(1 << 31), sge(1)][..], &[sge(u32::MAX); 3]] {
            let given = sges.iter().map(|sge| u64::from(sge.len)).sum();
            assert_eq!(with(sges), Err(Error::MessageTooLong { given, max }));
        }
    }
}

#[test]
fn remote_ranges_end_with_the_address_space_and_atomics_are_aligned() {
    let with = |op, sges: &[Sge]| {
        let data = SendData::Sges(sges);
        SendWr {
            op,
            data,
            ..SendWr::default()
        }
        .check(QpType::Rc)
    };
    let at = |addr| RemoteAddress { addr, ..REMOTE };
    for make in [
        SendOp::Write,
        |remote| SendOp::WriteWithImm(remote, 1),
        SendOp::Read,
    ] {
        let last = u64::MAX - 7;
        assert_eq!(with(make(at(last)), &WORD), Ok(8));
        assert_eq!(with(make(at(u64::MAX)), &[]), Ok(0));
        let operation = make(REMOTE).name();
        let (addr, len) = (last + 1, 8);
        let expected = Error::RemoteRange {
            operation,
            addr,
            len,
        };
        assert_eq!(with(make(at(addr)), &WORD), Err(expected));
        let sentence = expected.to_string();
        assert!(sentence.contains(operation) && sentence.contains("0xfffffffffffffff9"));
    }
    let fetch_add = |addr| SendOp::FetchAdd {
        remote: at(addr),
        add: 1,
    };
    assert_eq!(with(fetch_add(u64::MAX - 7), &WORD), Ok(8));
    for addr in [1, 4, 0x1007] {
        let operation = "fetch-and-add";
        let expected = Error::AtomicMisaligned { operation, addr };
        assert_eq!(with(fetch_add(addr), &WORD), Err(expected));
    }
}

#[test]
fn the_parts_of_an_operation() {
    use crate::completion::WcOpcode as O;
    let opcodes = [
        O::SEND,
        O::SEND,
        O::SEND,
        O::RDMA_WRITE,
        O::RDMA_WRITE,
        O::RDMA_READ,
        O::COMP_SWAP,
        O::FETCH_ADD,
        O::LOCAL_INV,
        O::BIND_MW,
    ];
    for (op, opcode) in operations().iter().zip(opcodes) {
        assert_eq!(op.wc_opcode(), opcode);
        let reaches = matches!(
            opcode,
            O::RDMA_WRITE | O::RDMA_READ | O::COMP_SWAP | O::FETCH_ADD
        );
        assert_eq!(op.remote(), reaches.then_some(REMOTE));
    }
    let sges = [WORD[0], WORD[0]];
    let two = SendWr {
        data: SendData::Sges(&sges),
        ..SendWr::default()
    };
    assert_eq!(two.length(), 16);
}
