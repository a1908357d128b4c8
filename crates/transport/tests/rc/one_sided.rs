//! WRITE, READ, atomics, keys that are taken away: what arrives, and what the program is told.

use oarlock_transport::{
    AccessFlags, BindWindow, Counter, QpState, RcConfig, RemoteAddress, SendData, SendOp, SendWr,
    Sge, VendorError, WcOpcode, WcStatus,
};
use oarlock_wire::base::Operation;
use oarlock_wire::{LKey, Opcode, RKey};

use crate::forge;
use crate::memory::KEY;
use crate::pair::{A, B, Pair, Setup};

const SIZES: [usize; 9] = [0, 1, 255, 256, 257, 511, 512, 700, 5000];

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n * 7 + n / 256) as u8).collect()
}

/// A pair whose READs are asked for in pieces of two packets.
fn small_window() -> Setup {
    Setup {
        config: RcConfig {
            read_window: 4,
            ..RcConfig::default()
        },
        ..Setup::default()
    }
}

#[test]
fn a_write_of_any_size_is_placed_in_the_order_of_its_addresses_and_nobody_is_told() {
    for len in SIZES {
        let mut pair = Pair::new(&Setup::default());
        let target = pair.hosts[B].memory.alloc(len);
        let remote = pair.hosts[B].memory.offer(target);
        let data = pattern(len);
        pair.hosts[A].post(10, SendOp::Write(remote), &data);
        pair.run();
        assert_eq!(pair.hosts[B].memory.load(target, len), data, "{len}");
        let completion = pair.hosts[A].completions[0];
        assert_eq!(
            (completion.wr_id, completion.opcode, completion.byte_len),
            (10, WcOpcode::RDMA_WRITE, len as u32)
        );
        assert!(pair.hosts[B].completions.is_empty());
        let placed = &pair.hosts[B].memory.placed;
        assert!(placed.is_sorted_by_key(|range| range.start), "{placed:?}");
        assert_eq!(placed.len(), len.div_ceil(256));
        assert_eq!(pair.hosts[B].count(Counter::WritesReceived), 1);
        assert_eq!(pair.hosts[A].count(Counter::WritesCompleted), 1);
    }
}

#[test]
fn a_write_with_immediate_takes_a_receive_whose_buffer_it_leaves_alone() {
    for len in SIZES {
        let mut pair = Pair::new(&Setup::default());
        let target = pair.hosts[B].memory.alloc(len);
        let remote = pair.hosts[B].memory.offer(target);
        let buffer = pair.hosts[B].recv(20, 4);
        let data = pattern(len);
        pair.hosts[A].post(10, SendOp::WriteWithImm(remote, 0xCAFE), &data);
        pair.run();
        assert_eq!(pair.hosts[B].memory.load(target, len), data);
        assert_eq!(pair.hosts[B].memory.load(buffer, 4), [0xEE; 4]);
        let completion = pair.hosts[B].completions[0];
        assert_eq!(completion.opcode, WcOpcode::RECV_RDMA_WITH_IMM);
        assert_eq!((completion.wr_id, completion.imm), (20, Some(0xCAFE)));
        assert_eq!(completion.byte_len, len as u32);
        assert!(!completion.solicited);
    }
}

#[test]
fn a_write_with_immediate_that_finds_no_receive_places_nothing_of_its_last_packet() {
    let mut pair = Pair::new(&Setup::default());
    let target = pair.hosts[B].memory.alloc(600);
    let remote = pair.hosts[B].memory.offer(target);
    let data = pattern(600);
    pair.hosts[A].post(10, SendOp::WriteWithImm(remote, 1), &data);
    pair.run_until(oarlock_wire::Time::from_nanos(100_000));
    assert_eq!(pair.hosts[B].count(Counter::RnrNaksSent), 1);
    assert_eq!(pair.hosts[B].memory.placed.len(), 2, "two full packets");
    assert_eq!(pair.hosts[B].memory.load(target, 600)[512..], [0xEE; 88]);
    pair.hosts[B].recv(20, 0);
    pair.run();
    assert_eq!(pair.hosts[B].memory.load(target, 600), data);
    assert_eq!(pair.hosts[B].memory.placed.len(), 3, "nothing came twice");
    assert_eq!(pair.hosts[A].outcomes(), [(10, WcStatus::SUCCESS)]);
}

#[test]
fn a_read_of_any_size_brings_the_bytes() {
    for setup in [Setup::default(), small_window()] {
        for len in SIZES {
            let mut pair = Pair::new(&setup);
            let data = pattern(len);
            let source = pair.hosts[B].memory.store(&data);
            let remote = pair.hosts[B].memory.offer(source);
            let target = pair.hosts[A].memory.alloc(len);
            pair.hosts[A].send_sges(10, SendOp::Read(remote), &[target]);
            pair.hosts[A].send(11, b"");
            pair.hosts[B].recv(20, 10);
            pair.run();
            assert_eq!(pair.hosts[A].memory.load(target, len), data, "{len}");
            let completion = pair.hosts[A].completions[0];
            assert_eq!(
                (completion.wr_id, completion.opcode, completion.byte_len),
                (10, WcOpcode::RDMA_READ, len as u32)
            );
            assert_eq!(pair.hosts[A].completions[1].wr_id, 11);
            let packets = len.div_ceil(256).max(1) as u64;
            assert_eq!(pair.hosts[B].count(Counter::ReadResponsesSent), packets);
            assert_eq!(pair.hosts[A].count(Counter::ReadResponsesReceived), packets);
            assert_eq!(pair.hosts[A].count(Counter::ReadsCompleted), 1);
        }
    }
}

#[test]
fn the_data_of_a_read_fill_a_scatter_gather_list() {
    let mut pair = Pair::new(&Setup::default());
    let data = pattern(600);
    let source = pair.hosts[B].memory.store(&data);
    let remote = pair.hosts[B].memory.offer(source);
    let sges = [1, 0, 300, 299].map(|len| pair.hosts[A].memory.alloc(len));
    pair.hosts[A].send_sges(10, SendOp::Read(remote), &sges);
    pair.run();
    assert_eq!(pair.hosts[A].memory.load_all(&sges, 600), data);
}

/// What is asked for at once is bounded at the requester: by the number of READs and atomics, and by their packets.
#[test]
fn reads_outstanding_never_exceed_the_limits() {
    for (rd_atomic, read_window) in [(1, 64), (2, 64), (4, 6), (16, 1)] {
        let setup = Setup {
            rd_atomic,
            config: RcConfig {
                read_window,
                ..RcConfig::default()
            },
            ..Setup::default()
        };
        let mut pair = Pair::new(&setup);
        let data = pattern(3000);
        let source = pair.hosts[B].memory.store(&data);
        let remote = pair.hosts[B].memory.offer(source);
        let targets: Vec<Sge> = (0..6).map(|_| pair.hosts[A].memory.alloc(3000)).collect();
        for (n, target) in (0..).zip(&targets) {
            pair.hosts[A].send_sges(n, SendOp::Read(remote), &[*target]);
            let word = pair.hosts[A].memory.alloc(8);
            pair.hosts[A].send_sges(100 + n, SendOp::FetchAdd { remote, add: 0 }, &[word]);
        }
        let mut reads = 0;
        let mut packets = 0;
        let mut most = (0, 0);
        for _ in 0..10_000 {
            for bytes in forge::sent(&mut pair, A) {
                let packet = oarlock_wire::Packet::parse(&bytes).unwrap();
                reads += 1;
                packets += packet.reth.map_or(1, |reth| reth.len.div_ceil(256));
                most = (most.0.max(reads), most.1.max(packets));
                forge::deliver(&mut pair, B, &bytes);
            }
            let answers = forge::sent(&mut pair, B);
            if answers.is_empty() {
                break;
            }
            for bytes in answers {
                let opcode = Opcode(bytes[0]);
                reads -= u8::from(opcode.position().is_end());
                packets -= 1;
                forge::deliver(&mut pair, A, &bytes);
            }
        }
        let completed = std::iter::from_fn(|| pair.hosts[A].rc.poll_completion()).count();
        assert_eq!(completed, 12);
        assert!(most.0 <= rd_atomic && most.1 <= read_window, "{most:?}");
        assert!(
            most.0 == rd_atomic || most.1 == read_window,
            "{most:?}: neither is used"
        );
        for target in targets {
            assert_eq!(pair.hosts[A].memory.load(target, 3000), data);
        }
    }
}

/// Data on their way to this side take nothing of the window of what leaves it.
#[test]
fn a_read_leaves_the_window_to_sends() {
    let config = RcConfig {
        window: 1,
        ..RcConfig::default()
    };
    let setup = Setup {
        config,
        ..Setup::default()
    };
    let mut pair = Pair::new(&setup);
    pair.hosts[A].post(10, SendOp::Read(RemoteAddress::default()), &[0; 1000]);
    pair.hosts[A].send(11, b"one");
    pair.hosts[A].send(12, b"two");
    let expected = [
        (Opcode::RC_RDMA_READ_REQUEST, 0x100),
        (Opcode::RC_SEND_ONLY, 0x104),
    ];
    assert_eq!(forge::outline(&forge::sent(&mut pair, A)), expected);
}

#[test]
fn atomics_give_the_value_before_in_host_byte_order() {
    let mut pair = Pair::new(&Setup::default());
    let word = pair.hosts[B].memory.store(&7u64.to_ne_bytes());
    let remote = pair.hosts[B].memory.offer(word);
    let swap = |compare, swap| SendOp::CompareSwap {
        remote,
        compare,
        swap,
    };
    let ops = [
        (swap(7, 100), 7),
        (swap(7, 1), 100),
        (SendOp::FetchAdd { remote, add: 5 }, 100),
        (
            SendOp::FetchAdd {
                remote,
                add: u64::MAX,
            },
            105,
        ),
    ];
    for (n, (op, _)) in (0..).zip(ops) {
        let result = pair.hosts[A].memory.alloc(8);
        pair.hosts[A].send_sges(n, op, &[result]);
        pair.run();
        let bytes = pair.hosts[A].memory.load(result, 8);
        let before = u64::from_ne_bytes(bytes.try_into().unwrap());
        assert_eq!(before, ops[n as usize].1, "{n}");
        let completion = pair.hosts[A].completions[n as usize];
        assert_eq!(
            (completion.opcode, completion.byte_len),
            (op.wc_opcode(), 8)
        );
    }
    assert_eq!(pair.hosts[B].memory.load(word, 8), 104u64.to_ne_bytes());
    assert_eq!(pair.hosts[B].count(Counter::AtomicsReceived), 4);
    assert_eq!(pair.hosts[A].count(Counter::AtomicsCompleted), 4);
}

#[test]
fn a_send_with_invalidate_takes_the_key_away_before_its_completion() {
    for len in [0, 10, 300] {
        let mut pair = Pair::new(&Setup::default());
        let target = pair.hosts[B].memory.alloc(8);
        let remote = pair.hosts[B].memory.offer(target);
        let buffer = pair.hosts[B].recv(20, 1000);
        let data = pattern(len);
        pair.hosts[A].post(10, SendOp::SendWithInvalidate(remote.rkey), &data);
        pair.hosts[A].post(11, SendOp::Write(remote), &[1; 8]);
        pair.run();
        let completion = pair.hosts[B].completions[0];
        assert_eq!(completion.invalidated, Some(remote.rkey));
        assert_eq!((completion.opcode, completion.wr_id), (WcOpcode::RECV, 20));
        assert_eq!(pair.hosts[B].memory.load(buffer, len), data);
        let expected = [(10, WcStatus::SUCCESS), (11, WcStatus::REM_ACCESS_ERR)];
        assert_eq!(pair.hosts[A].outcomes(), expected);
        assert_eq!(pair.hosts[B].memory.load(target, 8), [0xEE; 8]);
        assert_eq!(pair.hosts[B].count(Counter::InvalidatesReceived), 1);
    }
}

fn window(sge: Sge, rkey: u32) -> BindWindow {
    BindWindow {
        window: RKey(rkey - 1),
        rkey: RKey(rkey),
        region: KEY,
        addr: sge.addr,
        len: sge.len.into(),
        access: AccessFlags::REMOTE_WRITE,
    }
}

/// Bind, tell the peer, and it can write; take away, and it cannot. Local operations give completions in their place.
#[test]
fn a_window_works_from_its_bind_to_its_invalidation() {
    let mut pair = Pair::new(&Setup::default());
    let target = pair.hosts[B].memory.alloc(8);
    let bind = window(target, 0x5501);
    pair.hosts[A].recv(1, 64);
    pair.hosts[B].post_local(20, SendOp::BindWindow(bind));
    pair.hosts[B].send(21, b"the key");
    pair.run();
    assert_eq!(pair.hosts[B].memory.bound, [bind]);
    let remote = RemoteAddress {
        addr: target.addr,
        rkey: bind.rkey,
    };
    pair.hosts[A].post(10, SendOp::Write(remote), &[7; 8]);
    pair.run();
    pair.hosts[B].post_local(22, SendOp::LocalInvalidate(bind.rkey));
    pair.run();
    pair.hosts[A].post(11, SendOp::Write(remote), &[8; 8]);
    pair.run();
    let expected = [(10, WcStatus::SUCCESS), (11, WcStatus::REM_ACCESS_ERR)];
    let sends: Vec<_> = pair.hosts[A]
        .completions
        .iter()
        .filter(|c| c.is_send)
        .collect();
    assert_eq!(
        sends
            .iter()
            .map(|c| (c.wr_id, c.status))
            .collect::<Vec<_>>(),
        expected
    );
    assert_eq!(pair.hosts[B].memory.load(target, 8), [7; 8]);
    let b: Vec<_> = pair.hosts[B]
        .completions
        .iter()
        .map(|c| (c.wr_id, c.opcode))
        .collect();
    let expected = [
        (20, WcOpcode::BIND_MW),
        (21, WcOpcode::SEND),
        (22, WcOpcode::LOCAL_INV),
    ];
    assert_eq!(b, expected);
    assert_eq!(pair.hosts[B].count(Counter::BindsCompleted), 1);
    assert_eq!(pair.hosts[B].count(Counter::InvalidatesCompleted), 1);
}

#[test]
fn a_local_operation_waits_for_all_before_it_and_holds_all_behind_it() {
    let mut pair = Pair::new(&Setup::default());
    let target = pair.hosts[A].memory.alloc(8);
    let bind = window(target, 0x5501);
    pair.hosts[B].recv(20, 64);
    pair.hosts[B].recv(21, 64);
    pair.hosts[A].send(10, b"before");
    pair.hosts[A].post_local(11, SendOp::BindWindow(bind));
    pair.hosts[A].send(12, b"behind");
    let first = forge::sent(&mut pair, A);
    assert_eq!(forge::outline(&first), [(Opcode::RC_SEND_ONLY, 0x100)]);
    assert!(pair.hosts[A].memory.bound.is_empty());
    assert!(!pair.hosts[A].rc.has_output());
    forge::acknowledge(&mut pair, 0x100, oarlock_wire::Syndrome::ACK);
    assert!(pair.hosts[A].rc.has_output());
    let second = forge::sent(&mut pair, A);
    assert_eq!(forge::outline(&second), [(Opcode::RC_SEND_ONLY, 0x101)]);
    assert_eq!(pair.hosts[A].memory.bound, [bind]);
    // A repetition of what comes behind does not execute it again.
    forge::deliver(&mut pair, B, &first[0]);
    pair.run();
    assert_eq!(pair.hosts[A].memory.bound, [bind]);
    let success = WcStatus::SUCCESS;
    assert_eq!(
        pair.hosts[A].outcomes(),
        [(10, success), (11, success), (12, success)]
    );
}

#[test]
fn a_local_operation_that_fails_is_a_bind_error_and_flushes_what_follows() {
    let bad = BindWindow {
        region: LKey(0xBAD),
        ..window(Sge::default(), 0x5501)
    };
    let cases = [
        (SendOp::BindWindow(bad), VendorError::BIND_REFUSED),
        (
            SendOp::LocalInvalidate(RKey(0xBAD)),
            VendorError::RKEY_UNKNOWN,
        ),
    ];
    for (op, rule) in cases {
        let mut pair = Pair::new(&Setup::default());
        pair.hosts[B].recv(20, 64);
        pair.hosts[A].send(10, b"before");
        pair.hosts[A].post_local(11, op);
        pair.hosts[A].send(12, b"behind");
        pair.run();
        let expected = [
            (10, WcStatus::SUCCESS),
            (11, WcStatus::MW_BIND_ERR),
            (12, WcStatus::WR_FLUSH_ERR),
        ];
        assert_eq!(pair.hosts[A].outcomes(), expected);
        let completions = &pair.hosts[A].completions;
        assert_eq!(completions[1].vendor_err, rule);
        assert_eq!(completions[2].vendor_err, VendorError::FLUSHED_BY_SEND);
        assert_eq!(pair.hosts[A].rc.state(), QpState::Error);
        assert_eq!(pair.hosts[B].completions.len(), 1);
    }
}

/// IBA Vol. 1 ch. 10 "Ordering of work requests": a fence waits for READs and atomics, and for nothing else.
#[test]
fn a_fence_holds_a_request_until_earlier_reads_and_atomics_are_complete() {
    for fence in [false, true] {
        let mut pair = Pair::new(&Setup::default());
        let source = pair.hosts[B].memory.store(&pattern(600));
        let remote = pair.hosts[B].memory.offer(source);
        let target = pair.hosts[A].memory.alloc(600);
        let word = pair.hosts[A].memory.alloc(8);
        pair.hosts[A].send_sges(1, SendOp::Read(remote), &[target]);
        pair.hosts[A].send_sges(2, SendOp::FetchAdd { remote, add: 1 }, &[word]);
        let wr = SendWr {
            wr_id: 3,
            op: SendOp::Write(remote),
            data: SendData::Inline(b"fenced"),
            fence,
            ..SendWr::default()
        };
        pair.hosts[A].rc.post_send(&wr).unwrap();
        pair.hosts[A]
            .rc
            .post_send(&SendWr { wr_id: 4, ..wr })
            .unwrap();
        let first = forge::sent(&mut pair, A);
        let operations: Vec<_> = first
            .iter()
            .map(|bytes| Opcode(bytes[0]).operation())
            .collect();
        let mut expected = vec![Operation::RdmaReadRequest, Operation::FetchAdd];
        if !fence {
            expected.extend([Operation::RdmaWrite; 2]);
        }
        assert_eq!(operations, expected);
        for bytes in first {
            forge::deliver(&mut pair, B, &bytes);
        }
        pair.run();
        // The second is fenced, too, but only READs and atomics hold it: both WRITEs went out at once.
        assert_eq!(pair.hosts[A].count(Counter::RequestsSent), 4);
        assert_eq!(pair.hosts[A].completions.len(), 4);
    }
}

#[test]
fn a_fence_behind_a_write_holds_nothing() {
    let mut pair = Pair::new(&Setup::default());
    let target = pair.hosts[B].memory.alloc(64);
    let remote = pair.hosts[B].memory.offer(target);
    pair.hosts[A].post(1, SendOp::Write(remote), b"x");
    let wr = SendWr {
        op: SendOp::Write(remote),
        fence: true,
        ..SendWr::default()
    };
    pair.hosts[A].rc.post_send(&wr).unwrap();
    assert_eq!(forge::sent(&mut pair, A).len(), 2);
}

#[test]
fn inline_data_are_for_what_leaves_and_unsignalled_requests_are_silent() {
    let mut pair = Pair::new(&Setup::default());
    let target = pair.hosts[B].memory.alloc(8);
    let remote = pair.hosts[B].memory.offer(target);
    let word = pair.hosts[A].memory.alloc(8);
    let silent = SendWr {
        signaled: false,
        ..SendWr::default()
    };
    let inline = SendWr {
        op: SendOp::Write(remote),
        data: SendData::Inline(&[9; 8]),
        ..silent
    };
    let read = SendWr {
        op: SendOp::Read(remote),
        data: SendData::Sges(&[word]),
        ..silent
    };
    let last = SendWr {
        wr_id: 3,
        op: SendOp::Read(remote),
        data: SendData::Sges(&[word]),
        ..SendWr::default()
    };
    for wr in [inline, read, last] {
        pair.hosts[A].rc.post_send(&wr).unwrap();
    }
    pair.run();
    assert_eq!(pair.hosts[A].outcomes(), [(3, WcStatus::SUCCESS)]);
    assert_eq!(pair.hosts[A].memory.load(word, 8), [9; 8]);
    for op in [
        SendOp::Read(remote),
        SendOp::FetchAdd { remote, add: 1 },
        SendOp::LocalInvalidate(remote.rkey),
    ] {
        let wr = SendWr { op, ..inline };
        let error = pair.hosts[A].rc.post_send(&wr).unwrap_err().to_string();
        assert_eq!(error, format!("{} takes no inline data", op.name()));
    }
}

#[test]
fn requests_that_mean_nothing_are_refused_by_name() {
    let remote = RemoteAddress::default();
    let eight = [Sge {
        len: 8,
        lkey: KEY,
        ..Sge::default()
    }];
    let data = SendData::Sges(&eight);
    let add = SendOp::FetchAdd { remote, add: 1 };
    let cases = [
        (
            SendWr {
                op: add,
                ..SendWr::default()
            },
            "fetch-and-add gives 8 bytes, the scatter/gather list takes 0",
        ),
        (
            SendWr {
                op: SendOp::LocalInvalidate(RKey(1)),
                data,
                ..SendWr::default()
            },
            "local invalidate moves no data, but 1 scatter/gather elements are given",
        ),
        (
            SendWr {
                xrc_srqn: Some(crate::pair::SRQN),
                ..SendWr::default()
            },
            "SEND on a RC queue pair takes no number of a shared receive queue",
        ),
        (
            SendWr {
                op: SendOp::Read(remote),
                data,
                solicited: true,
                ..SendWr::default()
            },
            "solicited means nothing with RDMA READ on a RC queue pair",
        ),
    ];
    let mut rc = Setup::default().rc_in(A, QpState::Rts);
    for (wr, sentence) in cases {
        assert_eq!(rc.post_send(&wr).unwrap_err().to_string(), sentence);
        let all = [SendWr::default(), wr];
        let (index, error) = rc.check_sends(&all).unwrap_err();
        assert_eq!((index, error.to_string().as_str()), (1, sentence));
    }
    let none = Setup {
        rd_atomic: 0,
        ..Setup::default()
    };
    let mut rc = none.rc_in(A, QpState::Rts);
    for op in [SendOp::Read(remote), add] {
        let wr = SendWr {
            op,
            data,
            ..SendWr::default()
        };
        let error = rc.post_send(&wr).unwrap_err().to_string();
        assert_eq!(error, format!("{} needs max_rd_atomic above 0", op.name()));
    }
}

/// All of a list or none: room is counted for all of them together.
#[test]
fn a_list_that_is_checked_can_be_posted() {
    let config = RcConfig {
        max_send_wr: 3,
        ..RcConfig::default()
    };
    let setup = Setup {
        config,
        ..Setup::default()
    };
    let mut rc = setup.rc_in(A, QpState::Rts);
    let wrs = [SendWr::default(); 4];
    assert_eq!(rc.check_sends(&wrs[..3]), Ok(()));
    let (index, error) = rc.check_sends(&wrs).unwrap_err();
    assert_eq!(index, 3);
    assert_eq!(
        error.to_string(),
        "send queue is full: 3 requests outstanding"
    );
    for wr in &wrs[..3] {
        rc.post_send(wr).unwrap();
    }
    assert_eq!(rc.check_sends(&wrs[..1]).unwrap_err().0, 0);
    let rtr = setup.rc_in(A, QpState::Rtr);
    let (index, error) = rtr.check_sends(&wrs).unwrap_err();
    assert_eq!(
        (index, error.to_string().as_str()),
        (0, "post_send is not allowed in state RTR")
    );
}

/// Every operation, with PSNs that wrap in the middle of a piece, of a WRITE and between atomics; with one packet in ten lost.
#[test]
fn psns_wrap_within_reads_and_atomics_under_loss() {
    for start in 0..24u32 {
        let setup = Setup {
            psn_a: 0xFF_FFFF - start,
            retry: 7,
            ..small_window()
        };
        let mut pair = Pair::new(&setup);
        let mut number = start;
        pair.loss = Box::new(move |_, _, _| {
            number = number.wrapping_mul(0x9E37_79B9).wrapping_add(0x7F4A_7C15);
            number >> 24 < 26
        });
        let word = pair.hosts[B].memory.store(&0u64.to_ne_bytes());
        let counter = pair.hosts[B].memory.offer(word);
        let data = pattern(1500);
        let source = pair.hosts[B].memory.store(&data);
        let remote = pair.hosts[B].memory.offer(source);
        let target = pair.hosts[B].memory.alloc(1500);
        let written = pair.hosts[B].memory.offer(target);
        let mut results = Vec::new();
        for n in 0..3 {
            let read = pair.hosts[A].memory.alloc(1500);
            pair.hosts[A].send_sges(n, SendOp::Read(remote), &[read]);
            let add = SendOp::FetchAdd {
                remote: counter,
                add: 1,
            };
            let before = pair.hosts[A].memory.alloc(8);
            pair.hosts[A].send_sges(10 + n, add, &[before]);
            pair.hosts[A].post(20 + n, SendOp::Write(written), &data);
            results.push((read, before));
        }
        pair.run();
        let outcomes = pair.hosts[A].outcomes();
        assert_eq!(outcomes.len(), 9, "{start}");
        assert!(
            outcomes.iter().all(|(_, status)| status.is_success()),
            "{start}: {outcomes:?}"
        );
        for (n, (read, before)) in (0u64..).zip(results) {
            assert_eq!(pair.hosts[A].memory.load(read, 1500), data, "{start}");
            assert_eq!(pair.hosts[A].memory.load(before, 8), n.to_ne_bytes());
        }
        assert_eq!(pair.hosts[B].memory.load(target, 1500), data);
        assert_eq!(pair.hosts[B].memory.atomics, 3);
        assert!(
            pair.hosts[A].rc.query().sq_psn.get() < 100,
            "it has wrapped"
        );
    }
}
