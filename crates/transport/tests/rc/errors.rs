//! Every way a request can fail, and what happens to those behind it.

use oarlock_transport::{
    Counter, MAX_PACKET_LEN, QpAttr, QpEvent, QpState, SendData, SendOp, SendWr, VendorError,
    WcStatus,
};
use oarlock_wire::{Aeth, Bth, NakCode, Opcode, PacketHeader, Syndrome};

use crate::pair::{A, B, Host, Pair, Setup, gid, psn, qpn};
use oarlock_wire::AddressVector;

const FLUSHED: WcStatus = WcStatus::WR_FLUSH_ERR;

fn state(pair: &Pair, side: usize) -> QpState {
    pair.hosts[side].rc.state()
}

/// A packet with opcode, PSN and payload, from A to B.
fn forged(opcode: Opcode, at: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = [0; MAX_PACKET_LEN];
    let bth = Bth {
        ack_request: true,
        ..Bth::new(opcode, qpn(0x12), psn(at))
    };
    let len = PacketHeader::new(bth)
        .emit_packet(payload, &mut out)
        .unwrap();
    out[..len].to_vec()
}

fn deliver(pair: &mut Pair, bytes: &[u8]) {
    let now = pair.clock.now();
    let Host { rc, memory, .. } = &mut pair.hosts[B];
    rc.handle_datagram(now, &AddressVector::new(gid(2), gid(1)), bytes, memory);
}

/// A answers itself: a response as if from B.
fn answer(pair: &mut Pair, at: u32, syndrome: Syndrome) {
    let mut out = [0; MAX_PACKET_LEN];
    let bth = Bth::new(Opcode::RC_ACKNOWLEDGE, qpn(0x11), psn(at));
    let header = PacketHeader::new(bth).with_aeth(Aeth { syndrome, msn: 0 });
    let len = header.emit_packet(&[], &mut out).unwrap();
    let now = pair.clock.now();
    let Host { rc, memory, .. } = &mut pair.hosts[A];
    rc.handle_datagram(
        now,
        &AddressVector::new(gid(1), gid(2)),
        &out[..len],
        memory,
    );
}

#[test]
fn retry_exceeded_fails_the_oldest_and_flushes_the_rest_in_order() {
    let mut pair = Pair::new(&Setup {
        retry: 3,
        ..Setup::default()
    });
    pair.network.partition_one_way(B, A);
    for n in 0..4 {
        pair.hosts[B].recv(n, 64);
    }
    for n in 10..14 {
        pair.hosts[A].send(n, b"x");
    }
    for n in 14..17 {
        pair.hosts[A].recv(n, 64);
    }
    pair.run();
    let mut expected = vec![(10, WcStatus::RETRY_EXC_ERR)];
    expected.extend((11..17).map(|n| (n, FLUSHED)));
    assert_eq!(pair.hosts[A].outcomes(), expected);
    assert_eq!(pair.hosts[A].count(Counter::AckTimeouts), 4);
    assert_eq!(pair.hosts[A].count(Counter::RequestsSent), 4 * 4);
    assert_eq!(state(&pair, A), QpState::Error);
    // What the peer got, it got once.
    assert_eq!(pair.hosts[B].completions.len(), 4);
    assert_eq!(state(&pair, B), QpState::Rts);
}

#[test]
fn progress_fills_the_retry_count_again() {
    // Four losses of a first packet in a row, with two retries each: only possible if each success counts anew.
    let mut pair = Pair::new(&Setup {
        retry: 2,
        ..Setup::default()
    });
    for n in 0..4 {
        pair.hosts[B].recv(n, 64);
    }
    let mut losses = 0;
    let mut last = None;
    pair.loss = Box::new(move |_, side, packet| {
        if side != A {
            return false;
        }
        if last != Some(packet.bth.psn) {
            last = Some(packet.bth.psn);
            losses = 0;
        }
        losses += 1;
        losses <= 2
    });
    for n in 0..4 {
        pair.hosts[A].send(n, b"x");
        pair.run();
    }
    assert_eq!(
        pair.hosts[A].outcomes(),
        [0, 1, 2, 3].map(|n| (n, WcStatus::SUCCESS))
    );
    assert_eq!(pair.hosts[A].count(Counter::AckTimeouts), 8);
}

#[test]
fn without_retries_the_first_gap_is_fatal() {
    let mut pair = Pair::new(&Setup {
        retry: 0,
        ..Setup::default()
    })
    .lose(&[1]);
    for n in 0..3 {
        pair.hosts[B].recv(n, 64);
        pair.hosts[A].send(n, b"x");
    }
    pair.run();
    let expected = [
        (0, WcStatus::SUCCESS),
        (1, WcStatus::RETRY_EXC_ERR),
        (2, FLUSHED),
    ];
    assert_eq!(pair.hosts[A].outcomes(), expected);
}

#[test]
fn a_timeout_of_zero_waits_for_ever() {
    let mut pair = Pair::new(&Setup {
        timeout: 0,
        ..Setup::default()
    })
    .lose(&[0]);
    pair.hosts[A].send(10, b"x");
    pair.run();
    assert_eq!(pair.hosts[A].rc.poll_timeout(), None);
    assert_eq!(pair.hosts[A].outcomes(), []);
    assert_eq!(state(&pair, A), QpState::Rts);
}

#[test]
fn rnr_retry_exceeded_fails_the_oldest() {
    let mut pair = Pair::new(&Setup {
        rnr_retry: 3,
        ..Setup::default()
    });
    pair.hosts[A].send(10, b"x");
    pair.hosts[A].send(11, b"y");
    pair.run();
    assert_eq!(
        pair.hosts[A].outcomes(),
        [(10, WcStatus::RNR_RETRY_EXC_ERR), (11, FLUSHED)]
    );
    assert_eq!(pair.hosts[A].count(Counter::RnrNaksReceived), 4);
    assert_eq!(pair.hosts[A].count(Counter::AckTimeouts), 0);
    assert_eq!(state(&pair, B), QpState::Rts);
}

#[test]
fn seven_rnr_retries_never_end() {
    let mut pair = Pair::new(&Setup {
        min_rnr_timer: 1,
        ..Setup::default()
    });
    pair.hosts[A].send(10, b"x");
    for _ in 0..1000 {
        assert!(pair.step());
    }
    assert!(pair.hosts[A].count(Counter::RnrNaksReceived) > 100);
    pair.hosts[B].recv(20, 64);
    pair.run();
    assert_eq!(pair.hosts[A].outcomes(), [(10, WcStatus::SUCCESS)]);
}

#[test]
fn a_message_longer_than_its_buffer_fails_on_both_sides() {
    for (buffer, len, packets_before) in [(10, 11, 0), (300, 301, 1), (256, 700, 1), (0, 1, 0)] {
        let mut pair = Pair::new(&Setup::default());
        pair.hosts[B].recv(20, buffer);
        pair.hosts[B].recv(21, 1000);
        pair.hosts[A].send(10, &vec![3; len]);
        pair.hosts[A].send(11, b"y");
        pair.hosts[B].send(22, b"z");
        pair.hosts[A].recv(12, 64);
        pair.run();
        let sends: Vec<_> = pair.hosts[A]
            .completions
            .iter()
            .filter(|c| c.is_send)
            .collect();
        assert_eq!(
            sends[0].status,
            WcStatus::REM_INV_REQ_ERR,
            "{len} into {buffer}"
        );
        assert_eq!(
            (sends[0].wr_id, sends[0].vendor_err),
            (10, VendorError::NAK_INVALID_REQUEST)
        );
        assert_eq!((sends[1].wr_id, sends[1].status), (11, FLUSHED));
        assert_eq!(sends.len(), 2);
        let b = pair.hosts[B].outcomes();
        assert!(b.contains(&(20, WcStatus::LOC_LEN_ERR)));
        assert!(b.contains(&(21, FLUSHED)));
        assert_eq!(b.len(), 3);
        assert_eq!(
            pair.hosts[B].count(Counter::RequestsReceived),
            packets_before
        );
        assert_eq!(
            (state(&pair, A), state(&pair, B)),
            (QpState::Error, QpState::Error)
        );
    }
}

#[test]
fn a_receive_buffer_that_vanished_is_a_remote_operational_error() {
    let mut pair = Pair::new(&Setup::default());
    let sge = pair.hosts[B].recv(20, 1000);
    pair.hosts[B].recv(21, 1000);
    pair.hosts[B].memory.vanish(sge);
    pair.hosts[A].send(10, b"x");
    pair.run();
    assert_eq!(pair.hosts[A].outcomes(), [(10, WcStatus::REM_OP_ERR)]);
    assert_eq!(
        pair.hosts[A].completions[0].vendor_err,
        VendorError::NAK_REMOTE_OPERATIONAL
    );
    assert_eq!(
        pair.hosts[B].outcomes(),
        [(20, WcStatus::LOC_PROT_ERR), (21, FLUSHED)]
    );
    assert_eq!(
        (state(&pair, A), state(&pair, B)),
        (QpState::Error, QpState::Error)
    );
}

#[test]
fn a_source_that_vanished_fails_after_all_earlier_sends_have_completed() {
    let mut pair = Pair::new(&Setup::default()).lose(&[0]);
    for n in 20..24 {
        pair.hosts[B].recv(n, 1000);
    }
    pair.hosts[A].send(10, b"good");
    let bad = pair.hosts[A].memory.store(&[1; 600]);
    pair.hosts[A].memory.vanish(bad);
    pair.hosts[A].send_sges(11, SendOp::Send, &[bad]);
    pair.hosts[A].send(12, b"behind");
    pair.run();
    let expected = [
        (10, WcStatus::SUCCESS),
        (11, WcStatus::LOC_PROT_ERR),
        (12, FLUSHED),
    ];
    assert_eq!(pair.hosts[A].outcomes(), expected);
    assert_eq!(pair.hosts[B].outcomes(), [(20, WcStatus::SUCCESS)]);
    assert_eq!(pair.hosts[A].rc.poll_timeout(), None);
}

#[test]
fn a_source_that_vanishes_before_it_is_sent_again_fails() {
    let mut pair = Pair::new(&Setup::default()).lose(&[1]);
    pair.hosts[B].recv(20, 1000);
    let sge = pair.hosts[A].memory.store(&[1; 700]);
    pair.hosts[A].send_sges(10, SendOp::Send, &[sge]);
    pair.drain_both();
    pair.hosts[A].memory.vanish(sge);
    pair.run();
    assert_eq!(pair.hosts[A].outcomes(), [(10, WcStatus::LOC_PROT_ERR)]);
    assert_eq!(state(&pair, A), QpState::Error);
}

#[test]
fn a_full_first_packet_with_padding_behind_it_is_refused() {
    let mut pair = Pair::new(&Setup::default());
    pair.hosts[B].recv(20, 1000);
    let mut bytes = forged(Opcode::RC_SEND_FIRST, 0x100, &[0; 256]);
    bytes[1] |= 2 << 4;
    bytes.extend([0, 0]);
    deliver(&mut pair, &bytes);
    assert_eq!(state(&pair, B), QpState::Error);
    assert_eq!(pair.hosts[B].events, []);
}

/// A packet of a case.
type Piece<'a> = (Opcode, &'a [u8]);

#[test]
fn invalid_requests_are_refused_and_end_the_connection() {
    let full = [0; 256];
    // The packets of one case come one after the other; the last is invalid.
    let cases: [(&str, &[Piece<'_>]); 14] = [
        ("middle without first", &[(Opcode::RC_SEND_MIDDLE, &full)]),
        ("last without first", &[(Opcode::RC_SEND_LAST, &full)]),
        (
            "first in a message",
            &[
                (Opcode::RC_SEND_FIRST, &full),
                (Opcode::RC_SEND_FIRST, &full),
            ],
        ),
        (
            "only in a message",
            &[
                (Opcode::RC_SEND_FIRST, &full),
                (Opcode::RC_SEND_ONLY, &full),
            ],
        ),
        ("short first", &[(Opcode::RC_SEND_FIRST, &full[..252])]),
        ("padded first", &[(Opcode::RC_SEND_FIRST, &full[..255])]),
        ("long first", &[(Opcode::RC_SEND_FIRST, &[0; 260])]),
        (
            "short middle",
            &[
                (Opcode::RC_SEND_FIRST, &full),
                (Opcode::RC_SEND_MIDDLE, &full[..4]),
            ],
        ),
        (
            "empty last",
            &[(Opcode::RC_SEND_FIRST, &full), (Opcode::RC_SEND_LAST, &[])],
        ),
        (
            "long last",
            &[
                (Opcode::RC_SEND_FIRST, &full),
                (Opcode::RC_SEND_LAST, &[0; 257]),
            ],
        ),
        ("long only", &[(Opcode::RC_SEND_ONLY, &[0; 257])]),
        ("write", &[(Opcode::RC_RDMA_WRITE_ONLY, &full)]),
        (
            "read in a message",
            &[
                (Opcode::RC_SEND_FIRST, &full),
                (Opcode::RC_RDMA_READ_REQUEST, &full),
            ],
        ),
        ("reserved opcode", &[(Opcode(0x1F), &full)]),
    ];
    for (name, packets) in cases {
        let mut pair = Pair::new(&Setup::default());
        pair.hosts[B].recv(20, 1000);
        for (n, (opcode, payload)) in packets.iter().enumerate() {
            assert_eq!(state(&pair, B), QpState::Rts, "{name}");
            let at = 0x100 + n as u32;
            let bytes = match *opcode {
                Opcode::RC_SEND_FIRST
                | Opcode::RC_SEND_MIDDLE
                | Opcode::RC_SEND_LAST
                | Opcode::RC_SEND_ONLY => forged(*opcode, at, payload),
                // What wire cannot emit is made of what it can.
                other => {
                    let mut bytes = forged(Opcode::RC_SEND_ONLY, at, payload);
                    bytes[0] = other.0;
                    bytes
                }
            };
            deliver(&mut pair, &bytes);
        }
        pair.run();
        assert_eq!(state(&pair, B), QpState::Error, "{name}");
        assert_eq!(pair.hosts[B].count(Counter::FatalNaksSent), 1, "{name}");
        assert_eq!(pair.hosts[B].outcomes(), [(20, FLUSHED)], "{name}");
        assert_eq!(
            pair.hosts[B].events,
            [QpEvent::CommEst, QpEvent::RequestError],
            "{name}"
        );
        let last = pair
            .ladder
            .lines()
            .iter()
            .find(|line| line.contains("NAK"))
            .unwrap();
        let at = format!(
            "NAK invalid request  psn={:#08x}",
            0x100 + packets.len() - 1
        );
        assert!(last.contains(&at), "{name}: {last}");
    }
}

#[test]
fn every_fatal_nak_ends_the_request_it_names() {
    let codes = [
        (NakCode::INVALID_REQUEST, WcStatus::REM_INV_REQ_ERR),
        (NakCode::REMOTE_ACCESS_ERROR, WcStatus::REM_ACCESS_ERR),
        (NakCode::REMOTE_OPERATIONAL_ERROR, WcStatus::REM_OP_ERR),
    ];
    for (code, status) in codes {
        let mut pair = Pair::new(&Setup::default());
        pair.network.partition(A, B);
        for n in 10..14 {
            pair.hosts[A].send(n, &[0; 300]);
        }
        pair.drain_both();
        // Two packets each: 0x105 is the second of the third message.
        answer(&mut pair, 0x105, Syndrome::Nak(code));
        pair.run();
        let success = WcStatus::SUCCESS;
        let expected = [(10, success), (11, success), (12, status), (13, FLUSHED)];
        assert_eq!(pair.hosts[A].outcomes(), expected);
        assert_eq!(pair.hosts[A].count(Counter::FatalNaksReceived), 1);
    }
}

#[test]
fn responses_that_mean_nothing_are_dropped_and_counted() {
    let mut pair = Pair::new(&Setup::default());
    pair.network.partition(A, B);
    pair.hosts[A].send(10, &[0; 600]);
    pair.hosts[A].send(11, b"x");
    pair.drain_both();
    answer(&mut pair, 0x100, Syndrome::ACK);
    let dropped = [
        (0x100, Syndrome::ACK, Counter::DroppedStaleAck),
        (
            0x0FF,
            Syndrome::Nak(NakCode::INVALID_REQUEST),
            Counter::DroppedStaleAck,
        ),
        (0x104, Syndrome::ACK, Counter::DroppedUnsentAck),
        (
            0x104,
            Syndrome::Nak(NakCode::PSN_SEQUENCE_ERROR),
            Counter::DroppedUnsentAck,
        ),
        (
            0x102,
            Syndrome::Nak(NakCode(9)),
            Counter::DroppedReservedSyndrome,
        ),
        (
            0x102,
            Syndrome::Nak(NakCode::INVALID_RD_REQUEST),
            Counter::DroppedReservedSyndrome,
        ),
        (
            0x102,
            Syndrome::from_bits(0xFF),
            Counter::DroppedReservedSyndrome,
        ),
        (
            0x102,
            Syndrome::from_bits(0x45),
            Counter::DroppedReservedSyndrome,
        ),
    ];
    for (at, syndrome, counter) in dropped {
        let before = pair.hosts[A].count(counter);
        answer(&mut pair, at, syndrome);
        assert_eq!(
            pair.hosts[A].count(counter),
            before + 1,
            "{at:#x} {syndrome}"
        );
    }
    assert_eq!(state(&pair, A), QpState::Rts);
    // Part of the first message is acknowledged; nothing has completed.
    assert_eq!(pair.hosts[A].rc.poll_completion(), None);
    answer(&mut pair, 0x103, Syndrome::ACK);
    pair.run();
    assert_eq!(
        pair.hosts[A].outcomes(),
        [(10, WcStatus::SUCCESS), (11, WcStatus::SUCCESS)]
    );
}

#[test]
fn a_gap_reported_behind_an_rnr_nak_costs_no_retry() {
    let mut pair = Pair::new(&Setup {
        retry: 0,
        rnr_retry: 1,
        ..Setup::default()
    });
    pair.network.partition(A, B);
    pair.hosts[A].send(10, b"x");
    pair.drain_both();
    let rnr = Syndrome::from_bits(0x20 | 12);
    answer(&mut pair, 0x100, rnr);
    answer(&mut pair, 0x100, Syndrome::Nak(NakCode::PSN_SEQUENCE_ERROR));
    answer(&mut pair, 0x100, rnr);
    assert_eq!(state(&pair, A), QpState::Rts);
    assert_eq!(pair.hosts[A].count(Counter::DroppedDuringRnrWait), 2);
    // An acknowledgement after all: the wait is over.
    answer(&mut pair, 0x100, Syndrome::ACK);
    assert_eq!(pair.hosts[A].rc.poll_timeout(), None);
    pair.run();
    assert_eq!(pair.hosts[A].outcomes(), [(10, WcStatus::SUCCESS)]);
}

#[test]
fn modify_to_error_flushes_both_queues_and_takes_more_to_flush() {
    let mut pair = Pair::new(&Setup::default());
    pair.network.partition(A, B);
    for n in 10..13 {
        pair.hosts[A].send(n, b"x");
    }
    for n in 20..23 {
        pair.hosts[A].recv(n, 64);
    }
    pair.drain_both();
    let a = &mut pair.hosts[A];
    a.rc.modify(&QpAttr::to_state(QpState::Error)).unwrap();
    let inline = SendData::Inline(b"late");
    a.rc.post_send(&SendWr {
        wr_id: 13,
        data: inline,
        signaled: false,
        ..SendWr::default()
    })
    .unwrap();
    a.recv(23, 64);
    pair.run();
    let expected: Vec<_> = (10..13)
        .chain(20..23)
        .chain([13, 23])
        .map(|n| (n, FLUSHED))
        .collect();
    assert_eq!(pair.hosts[A].outcomes(), expected);
    assert!(pair.hosts[A].completions.iter().all(|c| c.solicited));
    assert_eq!(pair.hosts[A].rc.poll_timeout(), None);
}

#[test]
fn a_nak_leaves_although_its_queue_pair_is_in_error() {
    let mut pair = Pair::new(&Setup::default());
    deliver(&mut pair, &forged(Opcode::RC_SEND_LAST, 0x100, &[1]));
    assert_eq!(state(&pair, B), QpState::Error);
    assert_eq!(pair.hosts[B].rc.poll_completion(), None);
    pair.run();
    assert_eq!(pair.packets, 1);
}
