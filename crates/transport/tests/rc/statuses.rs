//! Every way in which a request of a reliable queue pair can end: the status, and the rule behind it.
//!
//! [`WcStatus::LOC_QP_OP_ERR`] is not among them: no inconsistency of a queue pair is left for the time after a request was
//! accepted; what the specification has it for is refused when it is posted.

use oarlock_transport::{
    AccessFlags, BindWindow, QpState, RemoteAddress, SendOp, VendorError, WcOpcode, WcStatus,
};
use oarlock_wire::{LKey, NakCode, Opcode, RKey, Syndrome};

use crate::forge;
use crate::pair::{A, B, Pair, Setup};

/// One request that ends so; gives the pair in which it did.
struct Way {
    side: usize,
    status: WcStatus,
    rule: VendorError,
    run: fn(&mut Pair),
    setup: Setup,
}

fn way(side: usize, status: WcStatus, rule: VendorError, run: fn(&mut Pair)) -> Way {
    Way {
        side,
        status,
        rule,
        run,
        setup: Setup::default(),
    }
}

impl Way {
    fn with(self, change: fn(&mut Setup)) -> Self {
        let mut setup = self.setup;
        change(&mut setup);
        Self { setup, ..self }
    }
}

/// Memory of B that A may write and read, 8 bytes.
fn offered(pair: &mut Pair) -> RemoteAddress {
    let sge = pair.hosts[B].memory.alloc(8);
    pair.hosts[B].memory.offer(sge)
}

/// A posts something that B refuses with this code.
fn refused(pair: &mut Pair, code: NakCode) {
    pair.network.partition(A, B);
    pair.hosts[A].send(1, b"x");
    pair.drain_both();
    forge::acknowledge(pair, 0x100, Syndrome::Nak(code));
}

fn ways() -> Vec<Way> {
    use VendorError as V;
    use WcStatus as S;
    vec![
        way(A, S::SUCCESS, V::NONE, |pair| {
            pair.hosts[B].recv(9, 8);
            pair.hosts[A].send(1, b"x");
        }),
        way(B, S::LOC_LEN_ERR, V::MESSAGE_TOO_LONG, |pair| {
            pair.hosts[B].recv(1, 1);
            pair.hosts[A].send(9, b"xy");
        }),
        way(A, S::LOC_PROT_ERR, V::LKEY_UNKNOWN, |pair| {
            let mut sge = pair.hosts[A].memory.alloc(8);
            sge.lkey = LKey(0xBAD);
            pair.hosts[A].send_sges(1, SendOp::Send, &[sge]);
        }),
        way(A, S::LOC_PROT_ERR, V::UNMAPPED, |pair| {
            let remote = offered(pair);
            let sge = pair.hosts[A].memory.alloc(8);
            pair.hosts[A].memory.vanish(sge);
            pair.hosts[A].send_sges(1, SendOp::Read(remote), &[sge]);
        }),
        way(B, S::LOC_PROT_ERR, V::UNMAPPED, |pair| {
            let sge = pair.hosts[B].recv(1, 8);
            pair.hosts[B].memory.vanish(sge);
            pair.hosts[A].send(9, b"x");
        }),
        way(A, S::WR_FLUSH_ERR, V::FLUSHED_BY_PROGRAM, |pair| {
            pair.hosts[A].send(1, b"x");
            pair.hosts[A].modify(QpState::Error);
        }),
        way(A, S::WR_FLUSH_ERR, V::FLUSHED_AT_POST, |pair| {
            pair.hosts[A].modify(QpState::Error);
            pair.hosts[A].recv(1, 8);
        }),
        way(A, S::WR_FLUSH_ERR, V::FLUSHED_BY_SEND, |pair| {
            pair.hosts[A].post(9, SendOp::Write(RemoteAddress::default()), b"x");
            pair.hosts[A].recv(1, 8);
        }),
        way(B, S::WR_FLUSH_ERR, V::FLUSHED_BY_RECEIVE, |pair| {
            pair.hosts[B].recv(8, 1);
            pair.hosts[B].recv(1, 1);
            pair.hosts[A].send(9, b"xy");
        }),
        way(B, S::WR_FLUSH_ERR, V::TOO_MANY_READS, |pair| {
            pair.hosts[B].recv(1, 1);
            let header = forge::header(B, Opcode::RC_RDMA_READ_REQUEST, 0x100);
            forge::request(pair, &header.with_reth(forge::reth(RKey(0), 0, 0)), &[]);
        })
        .with(|setup| setup.rd_atomic = 0),
        way(B, S::WR_FLUSH_ERR, V::OPCODE_UNSUPPORTED, |pair| {
            pair.hosts[B].recv(1, 1);
            let mut bytes = forge::bytes(&forge::header(B, Opcode::RC_SEND_ONLY, 0x100), &[]);
            bytes[0] = 0x15;
            forge::deliver(pair, B, &bytes);
        }),
        way(B, S::WR_FLUSH_ERR, V::ACCESS_NOT_ENABLED, |pair| {
            pair.hosts[B].recv(1, 1);
            let remote = offered(pair);
            pair.hosts[A].post(9, SendOp::Write(remote), b"x");
        })
        .with(|setup| setup.access = AccessFlags::empty()),
        way(A, S::WR_FLUSH_ERR, V::FLUSHED_BY_DEVICE, |pair| {
            pair.hosts[A].recv(1, 8);
            pair.hosts[A].rc.fail(VendorError::FLUSHED_BY_DEVICE);
        }),
        way(A, S::MW_BIND_ERR, V::BIND_REFUSED, |pair| {
            let bind = BindWindow {
                window: RKey(0),
                rkey: RKey(1),
                region: LKey(0xBAD),
                addr: 0,
                len: 1,
                access: AccessFlags::REMOTE_READ,
            };
            pair.hosts[A].post_local(1, SendOp::BindWindow(bind));
        }),
        way(A, S::MW_BIND_ERR, V::RKEY_UNKNOWN, |pair| {
            pair.hosts[A].post_local(1, SendOp::LocalInvalidate(RKey(0xBAD)));
        }),
        way(A, S::BAD_RESP_ERR, V::RESPONSE_UNEXPECTED, |pair| {
            pair.network.partition(A, B);
            pair.hosts[A].send(1, b"x");
            pair.drain_both();
            forge::result(pair, 0x100, 1);
        }),
        way(A, S::BAD_RESP_ERR, V::RESPONSE_LENGTH, |pair| {
            pair.network.partition(A, B);
            pair.hosts[A].post(1, SendOp::Read(RemoteAddress::default()), b"x");
            pair.drain_both();
            forge::data(pair, Opcode::RC_RDMA_READ_RESPONSE_ONLY, 0x100, b"xy");
        }),
        way(B, S::LOC_ACCESS_ERR, V::RKEY_UNKNOWN, |pair| {
            pair.hosts[B].recv(1, 8);
            let op = SendOp::WriteWithImm(RemoteAddress::default(), 1);
            pair.hosts[A].post(9, op, b"x");
        }),
        way(A, S::REM_INV_REQ_ERR, V::NAK_INVALID_REQUEST, |pair| {
            refused(pair, NakCode::INVALID_REQUEST);
        }),
        way(B, S::REM_INV_REQ_ERR, V::RKEY_UNKNOWN, |pair| {
            pair.hosts[B].recv(1, 8);
            pair.hosts[A].post(9, SendOp::SendWithInvalidate(RKey(0xBAD)), b"x");
        }),
        way(A, S::REM_ACCESS_ERR, V::NAK_REMOTE_ACCESS, |pair| {
            pair.hosts[A].post(1, SendOp::Write(RemoteAddress::default()), b"x");
        }),
        way(A, S::REM_OP_ERR, V::NAK_REMOTE_OPERATIONAL, |pair| {
            refused(pair, NakCode::REMOTE_OPERATIONAL_ERROR);
        }),
        way(A, S::RETRY_EXC_ERR, V::ACK_TIMEOUTS, |pair| {
            pair.network.partition(A, B);
            pair.hosts[A].send(1, b"x");
        })
        .with(|setup| setup.retry = 0),
        way(A, S::RETRY_EXC_ERR, V::SEQUENCE_NAKS, |pair| {
            refused(pair, NakCode::PSN_SEQUENCE_ERROR);
        })
        .with(|setup| setup.retry = 0),
        way(A, S::RETRY_EXC_ERR, V::RESPONSES_LOST, |pair| {
            pair.network.partition(A, B);
            pair.hosts[A].post(1, SendOp::Read(RemoteAddress::default()), &[0; 300]);
            pair.drain_both();
            forge::data(pair, Opcode::RC_RDMA_READ_RESPONSE_LAST, 0x101, &[0; 44]);
        })
        .with(|setup| setup.retry = 0),
        way(A, S::RNR_RETRY_EXC_ERR, V::RNR_NAKS, |pair| {
            pair.hosts[A].send(1, b"x");
        })
        .with(|setup| setup.rnr_retry = 0),
    ]
}

#[test]
fn every_end_of_a_request_has_its_status_and_its_rule() {
    for Way {
        side,
        status,
        rule,
        run,
        setup,
    } in ways()
    {
        let mut pair = Pair::new(&setup);
        run(&mut pair);
        pair.run();
        let completions = &pair.hosts[side].completions;
        let ended = completions.iter().find(|completion| completion.wr_id == 1);
        let ended = ended.unwrap_or_else(|| panic!("{status}, {rule}: no completion"));
        assert_eq!((ended.status, ended.vendor_err), (status, rule));
    }
}

/// A status that is added has to be shown.
#[test]
fn no_status_is_missing() {
    let reached: std::collections::BTreeSet<u32> = ways().iter().map(|way| way.status.0).collect();
    let all = [
        WcStatus::SUCCESS,
        WcStatus::LOC_LEN_ERR,
        WcStatus::LOC_PROT_ERR,
        WcStatus::WR_FLUSH_ERR,
        WcStatus::MW_BIND_ERR,
        WcStatus::BAD_RESP_ERR,
        WcStatus::LOC_ACCESS_ERR,
        WcStatus::REM_INV_REQ_ERR,
        WcStatus::REM_ACCESS_ERR,
        WcStatus::REM_OP_ERR,
        WcStatus::RETRY_EXC_ERR,
        WcStatus::RNR_RETRY_EXC_ERR,
    ];
    assert_eq!(reached, all.map(|status| status.0).into());
    // The numbers without a gap but for those of other services: local QP operation, local EE operation.
    let numbers: Vec<u32> = (0..=13).filter(|n| ![2, 3].contains(n)).collect();
    assert_eq!(reached.into_iter().collect::<Vec<_>>(), numbers);
}

/// Flushed and failed requests say what they were.
#[test]
fn a_failed_request_has_the_opcode_of_its_operation() {
    let remote = RemoteAddress::default();
    let ops = [
        (SendOp::Send, WcOpcode::SEND),
        (SendOp::Write(remote), WcOpcode::RDMA_WRITE),
        (SendOp::Read(remote), WcOpcode::RDMA_READ),
        (SendOp::FetchAdd { remote, add: 1 }, WcOpcode::FETCH_ADD),
    ];
    for at_post in [false, true] {
        let mut pair = Pair::new(&Setup::default());
        if at_post {
            pair.hosts[A].modify(QpState::Error);
        }
        for (n, (op, _)) in (0..).zip(ops) {
            pair.hosts[A].post(n, op, &[0; 8]);
        }
        pair.hosts[A].post_local(4, SendOp::LocalInvalidate(RKey(1)));
        if !at_post {
            pair.hosts[A].modify(QpState::Error);
        }
        pair.run();
        let opcodes: Vec<_> = pair.hosts[A].completions.iter().map(|c| c.opcode).collect();
        let mut expected: Vec<_> = ops.iter().map(|(_, opcode)| *opcode).collect();
        expected.push(WcOpcode::LOCAL_INV);
        assert_eq!(opcodes, expected);
    }
}
