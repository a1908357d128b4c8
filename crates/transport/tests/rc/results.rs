//! What a requester makes of responses to READs and atomics, right ones and wrong ones.

use oarlock_transport::{
    Counter, QpState, RcConfig, RemoteAddress, SendOp, Sge, VendorError, WcStatus,
};
use oarlock_wire::{Aeth, AtomicAckEth, NakCode, Opcode, RKey, Syndrome};

use crate::forge::{self, data, header, result};
use crate::pair::{A, B, Pair, Setup};

const FIRST: Opcode = Opcode::RC_RDMA_READ_RESPONSE_FIRST;
const MIDDLE: Opcode = Opcode::RC_RDMA_READ_RESPONSE_MIDDLE;
const LAST: Opcode = Opcode::RC_RDMA_READ_RESPONSE_LAST;
const ONLY: Opcode = Opcode::RC_RDMA_READ_RESPONSE_ONLY;
const REMOTE: RemoteAddress = RemoteAddress {
    addr: 0x1000,
    rkey: RKey(1),
};

/// A has asked for a READ of 1000 bytes in four packets (0x100 to 0x103), then sent a WRITE (0x104) and an atomic (0x105).
/// Nobody answers but the test.
fn asked(read_window: u32) -> (Pair, Sge) {
    let setup = Setup {
        config: RcConfig {
            read_window,
            ..RcConfig::default()
        },
        ..Setup::default()
    };
    let mut pair = Pair::new(&setup);
    pair.network.partition(A, B);
    let target = pair.hosts[A].memory.alloc(1000);
    pair.hosts[A].send_sges(10, SendOp::Read(REMOTE), &[target]);
    pair.hosts[A].post(11, SendOp::Write(REMOTE), b"x");
    let add = SendOp::FetchAdd {
        remote: REMOTE,
        add: 1,
    };
    pair.hosts[A].post(12, add, &[0; 8]);
    let _ = forge::sent(&mut pair, A);
    (pair, target)
}

fn state(pair: &Pair) -> QpState {
    pair.hosts[A].rc.state()
}

fn answer_read(pair: &mut Pair) {
    data(pair, FIRST, 0x100, &[1; 256]);
    data(pair, MIDDLE, 0x101, &[2; 256]);
    data(pair, MIDDLE, 0x102, &[3; 256]);
    data(pair, LAST, 0x103, &[4; 232]);
}

#[test]
fn data_in_order_complete_the_read_and_a_result_completes_what_is_before_it() {
    let (mut pair, target) = asked(64);
    answer_read(&mut pair);
    // The WRITE is acknowledged by the answer to what comes behind it.
    result(&mut pair, 0x105, 77);
    pair.run();
    let success = WcStatus::SUCCESS;
    assert_eq!(
        pair.hosts[A].outcomes(),
        [(10, success), (11, success), (12, success)]
    );
    let mut all = vec![1; 256];
    all.extend([2; 256]);
    all.extend([3; 256]);
    all.extend([4; 232]);
    assert_eq!(pair.hosts[A].memory.load(target, 1000), all);
    assert_eq!(pair.hosts[A].count(Counter::ReadResponsesReceived), 4);
    assert_eq!(pair.hosts[A].count(Counter::AtomicResponsesReceived), 1);
    assert_eq!(pair.hosts[A].rc.poll_timeout(), None);
}

type Wrong = (&'static str, fn(&mut Pair), VendorError);

#[test]
fn a_response_of_a_wrong_kind_or_length_ends_the_request_as_a_bad_response() {
    let unexpected = VendorError::RESPONSE_UNEXPECTED;
    let length = VendorError::RESPONSE_LENGTH;
    let cases: [Wrong; 12] = [
        (
            "middle at the start",
            |p| data(p, MIDDLE, 0x100, &[1; 256]),
            unexpected,
        ),
        (
            "only for a part",
            |p| data(p, ONLY, 0x100, &[1; 256]),
            unexpected,
        ),
        (
            "last at the start",
            |p| data(p, LAST, 0x100, &[1; 256]),
            unexpected,
        ),
        ("short first", |p| data(p, FIRST, 0x100, &[1; 252]), length),
        ("long first", |p| data(p, FIRST, 0x100, &[1; 260]), length),
        ("empty first", |p| data(p, FIRST, 0x100, &[]), length),
        ("an atomic's result", |p| result(p, 0x100, 1), unexpected),
        (
            "first again",
            |p| {
                data(p, FIRST, 0x100, &[1; 256]);
                data(p, FIRST, 0x101, &[1; 256]);
            },
            unexpected,
        ),
        (
            "last too early",
            |p| {
                data(p, FIRST, 0x100, &[1; 256]);
                data(p, LAST, 0x101, &[1; 256]);
            },
            unexpected,
        ),
        (
            "long last",
            |p| {
                data(p, FIRST, 0x100, &[1; 256]);
                data(p, MIDDLE, 0x101, &[1; 256]);
                data(p, MIDDLE, 0x102, &[1; 256]);
                data(p, LAST, 0x103, &[1; 236]);
            },
            length,
        ),
        (
            "middle in place of last",
            |p| {
                data(p, FIRST, 0x100, &[1; 256]);
                data(p, MIDDLE, 0x101, &[1; 256]);
                data(p, MIDDLE, 0x102, &[1; 256]);
                data(p, MIDDLE, 0x103, &[1; 232]);
            },
            unexpected,
        ),
        (
            "a NAK among the data",
            |p| {
                let nak = Aeth {
                    syndrome: Syndrome::Nak(NakCode::INVALID_REQUEST),
                    msn: 0,
                };
                forge::response(p, &header(A, FIRST, 0x100).with_aeth(nak), &[1; 256]);
            },
            unexpected,
        ),
    ];
    for (name, wrong, rule) in cases {
        let (mut pair, _) = asked(64);
        wrong(&mut pair);
        pair.run();
        let flushed = WcStatus::WR_FLUSH_ERR;
        let expected = [(10, WcStatus::BAD_RESP_ERR), (11, flushed), (12, flushed)];
        assert_eq!(pair.hosts[A].outcomes(), expected, "{name}");
        assert_eq!(pair.hosts[A].completions[0].vendor_err, rule, "{name}");
        assert_eq!(pair.hosts[A].count(Counter::BadResponses), 1, "{name}");
        assert_eq!(state(&pair), QpState::Error, "{name}");
    }
}

#[test]
fn data_for_a_write_and_data_for_an_atomic_are_bad_responses() {
    for (at, wr_id) in [(0x104, 11), (0x105, 12)] {
        let (mut pair, _) = asked(64);
        answer_read(&mut pair);
        data(&mut pair, ONLY, at, &[0; 8]);
        pair.run();
        let outcomes = pair.hosts[A].outcomes();
        assert!(
            outcomes.contains(&(wr_id, WcStatus::BAD_RESP_ERR)),
            "{outcomes:?}"
        );
        assert_eq!(outcomes[0], (10, WcStatus::SUCCESS));
    }
    let (mut pair, _) = asked(64);
    answer_read(&mut pair);
    let header = header(A, Opcode::RC_ATOMIC_ACKNOWLEDGE, 0x105)
        .with_aeth(forge::ack(3))
        .with_atomic_ack_eth(AtomicAckEth { original: 1 });
    forge::response(&mut pair, &header, &[0; 4]);
    pair.run();
    let last = pair.hosts[A].completions[2];
    assert_eq!(
        (last.status, last.vendor_err),
        (WcStatus::BAD_RESP_ERR, VendorError::RESPONSE_LENGTH)
    );
}

#[test]
fn an_atomics_result_that_says_no_is_a_bad_response() {
    let (mut pair, _) = asked(64);
    answer_read(&mut pair);
    let nak = Aeth {
        syndrome: Syndrome::Nak(NakCode::INVALID_REQUEST),
        msn: 0,
    };
    let header = header(A, Opcode::RC_ATOMIC_ACKNOWLEDGE, 0x105)
        .with_aeth(nak)
        .with_atomic_ack_eth(AtomicAckEth { original: 1 });
    forge::response(&mut pair, &header, &[]);
    pair.run();
    let last = pair.hosts[A].completions[2];
    let expected = (WcStatus::BAD_RESP_ERR, VendorError::RESPONSE_UNEXPECTED);
    assert_eq!((last.status, last.vendor_err), expected);
}

#[test]
fn results_that_cannot_be_placed_are_a_local_protection_error() {
    let (mut pair, target) = asked(64);
    data(&mut pair, FIRST, 0x100, &[1; 256]);
    pair.hosts[A].memory.vanish(target);
    data(&mut pair, MIDDLE, 0x101, &[1; 256]);
    pair.run();
    let flushed = WcStatus::WR_FLUSH_ERR;
    let expected = [(10, WcStatus::LOC_PROT_ERR), (11, flushed), (12, flushed)];
    assert_eq!(pair.hosts[A].outcomes(), expected);
    assert_eq!(
        pair.hosts[A].completions[0].vendor_err,
        VendorError::UNMAPPED
    );
    assert_eq!(pair.hosts[A].count(Counter::LocalAccessErrors), 1);
}

#[test]
fn results_of_nothing_in_flight_are_dropped_and_counted() {
    let (mut pair, target) = asked(64);
    data(&mut pair, FIRST, 0x100, &[1; 256]);
    data(&mut pair, FIRST, 0x100, &[9; 256]);
    data(&mut pair, ONLY, 0x0FF, &[9; 8]);
    result(&mut pair, 0x106, 9);
    assert_eq!(pair.hosts[A].count(Counter::DroppedStaleResponse), 2);
    assert_eq!(pair.hosts[A].count(Counter::DroppedUnsentAck), 1);
    assert_eq!(pair.hosts[A].memory.load(target, 256), [1; 256]);
    assert_eq!(state(&pair), QpState::Rts);
}

/// A lost packet of data is asked for again from where it is missing, once, whatever else implies the loss.
#[test]
fn data_behind_a_hole_make_the_rest_be_asked_for_again_once() {
    let (mut pair, target) = asked(64);
    data(&mut pair, FIRST, 0x100, &[1; 256]);
    data(&mut pair, MIDDLE, 0x102, &[3; 256]);
    data(&mut pair, LAST, 0x103, &[4; 232]);
    forge::acknowledge(&mut pair, 0x104, Syndrome::ACK);
    result(&mut pair, 0x105, 5);
    assert_eq!(pair.hosts[A].count(Counter::ImpliedNaks), 1);
    assert_eq!(pair.hosts[A].count(Counter::Retries), 1);
    assert_eq!(pair.hosts[A].count(Counter::DroppedOutOfOrderResponse), 3);
    let again = forge::sent(&mut pair, A);
    let outline = forge::outline(&again);
    let expected = [
        (Opcode::RC_RDMA_READ_REQUEST, 0x101),
        (Opcode::RC_RDMA_WRITE_ONLY, 0x104),
        (Opcode::RC_FETCH_ADD, 0x105),
    ];
    assert_eq!(outline, expected);
    let reth = oarlock_wire::Packet::parse(&again[0])
        .unwrap()
        .reth
        .unwrap();
    assert_eq!((reth.addr, reth.len), (REMOTE.addr + 256, 744));
    // What was asked for from there begins with a first; what is still on its way from before says middle.
    data(&mut pair, FIRST, 0x101, &[2; 256]);
    data(&mut pair, MIDDLE, 0x102, &[3; 256]);
    data(&mut pair, LAST, 0x103, &[4; 232]);
    result(&mut pair, 0x105, 5);
    let success = WcStatus::SUCCESS;
    pair.run();
    assert_eq!(
        pair.hosts[A].outcomes(),
        [(10, success), (11, success), (12, success)]
    );
    assert_eq!(pair.hosts[A].memory.load(target, 512)[256..], [2; 256]);
}

#[test]
fn late_data_are_taken_before_and_after_they_are_asked_for_again() {
    let (mut pair, _) = asked(64);
    data(&mut pair, FIRST, 0x100, &[1; 256]);
    data(&mut pair, LAST, 0x103, &[4; 232]);
    // Not asked for again yet: the missing packet was only late.
    data(&mut pair, MIDDLE, 0x101, &[2; 256]);
    let again = forge::outline(&forge::sent(&mut pair, A));
    assert_eq!(again[0], (Opcode::RC_RDMA_READ_REQUEST, 0x102));
    data(&mut pair, MIDDLE, 0x102, &[3; 256]);
    data(&mut pair, LAST, 0x103, &[4; 232]);
    forge::acknowledge(&mut pair, 0x104, Syndrome::ACK);
    result(&mut pair, 0x105, 5);
    pair.run();
    assert!(
        pair.hosts[A]
            .outcomes()
            .iter()
            .all(|(_, status)| status.is_success())
    );
    assert_eq!(pair.hosts[A].completions.len(), 3);
}

/// Interop: kernel soft RoCE drops the repetition of a READ that asks for more than the first request did.
#[test]
fn a_repetition_never_asks_beyond_the_end_of_its_piece() {
    let (mut pair, _) = asked(4);
    // Pieces of two packets; both were asked for.
    data(&mut pair, FIRST, 0x100, &[1; 256]);
    data(&mut pair, FIRST, 0x102, &[3; 256]);
    let again = forge::sent(&mut pair, A);
    let asked: Vec<_> = again
        .iter()
        .filter_map(|bytes| oarlock_wire::Packet::parse(bytes).unwrap().reth)
        .filter(|reth| reth.len > 1)
        .map(|reth| (reth.addr - REMOTE.addr, reth.len))
        .collect();
    assert_eq!(asked, [(256, 256), (512, 488)]);
    data(&mut pair, ONLY, 0x101, &[2; 256]);
    data(&mut pair, FIRST, 0x102, &[3; 256]);
    data(&mut pair, LAST, 0x103, &[4; 232]);
    pair.drain_both();
    assert_eq!(pair.hosts[A].outcomes(), [(10, WcStatus::SUCCESS)]);
}

/// An acknowledgement, or a NAK for something later, while data are missing: the data are lost.
#[test]
fn whatever_answers_beyond_missing_data_implies_that_they_are_lost() {
    let codes = [
        Syndrome::ACK,
        Syndrome::Nak(NakCode::INVALID_REQUEST),
        Syndrome::Nak(NakCode::REMOTE_ACCESS_ERROR),
        Syndrome::Nak(NakCode::PSN_SEQUENCE_ERROR),
    ];
    for syndrome in codes {
        let (mut pair, _) = asked(64);
        data(&mut pair, FIRST, 0x100, &[1; 256]);
        forge::acknowledge(&mut pair, 0x104, syndrome);
        assert_eq!(state(&pair), QpState::Rts, "{syndrome}");
        let again = forge::outline(&forge::sent(&mut pair, A));
        assert_eq!(
            again[0],
            (Opcode::RC_RDMA_READ_REQUEST, 0x101),
            "{syndrome}"
        );
        assert_eq!(pair.hosts[A].count(Counter::Retries), 1, "{syndrome}");
    }
    // A NAK for a packet of the READ itself ends the READ.
    let (mut pair, _) = asked(64);
    forge::acknowledge(
        &mut pair,
        0x102,
        Syndrome::Nak(NakCode::REMOTE_ACCESS_ERROR),
    );
    pair.run();
    assert_eq!(pair.hosts[A].outcomes()[0], (10, WcStatus::REM_ACCESS_ERR));
}

#[test]
fn losses_without_progress_use_up_the_retry_count() {
    let setup = Setup {
        retry: 2,
        ..Setup::default()
    };
    let mut pair = Pair::new(&setup);
    let source = pair.hosts[B].memory.store(&[1; 600]);
    let remote = pair.hosts[B].memory.offer(source);
    // The second packet of the response never arrives.
    pair.loss = Box::new(|_, side, packet| side == B && packet.bth.psn == crate::pair::psn(0x101));
    pair.hosts[A].post(10, SendOp::Read(remote), &[0; 600]);
    pair.run();
    assert_eq!(pair.hosts[A].outcomes(), [(10, WcStatus::RETRY_EXC_ERR)]);
    assert_eq!(pair.hosts[A].count(Counter::ImpliedNaks), 1);
    assert_eq!(pair.hosts[A].count(Counter::AckTimeouts), 2);
    assert_eq!(pair.hosts[A].count(Counter::RetriesExceeded), 1);
    let setup = Setup {
        retry: 0,
        ..Setup::default()
    };
    let mut pair = Pair::new(&setup).lose(&[2]);
    let source = pair.hosts[B].memory.store(&[1; 600]);
    let remote = pair.hosts[B].memory.offer(source);
    pair.hosts[A].post(10, SendOp::Read(remote), &[0; 600]);
    pair.run();
    let completion = pair.hosts[A].completions[0];
    assert_eq!(completion.status, WcStatus::RETRY_EXC_ERR);
    assert_eq!(completion.vendor_err, VendorError::RESPONSES_LOST);
}
