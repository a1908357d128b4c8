//! Messages arrive whole, once, in order.

use oarlock_transport::{
    Counter, QpEvent, RcConfig, RecvWr, SendData, SendOp, SendWr, WcOpcode, WcStatus,
};
use oarlock_wire::{Mtu, Packet};

use crate::pair::{A, B, Pair, Setup};

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n * 7 + n / 256) as u8).collect()
}

/// Sends one message from A to B and returns what B got.
fn transfer(setup: &Setup, data: &[u8], op: SendOp) -> (Pair, Vec<u8>) {
    let mut pair = Pair::new(setup);
    let sge = pair.hosts[B].recv(20, data.len());
    let source = pair.hosts[A].memory.store(data);
    pair.hosts[A].send_sges(10, op, &[source]);
    pair.run();
    let got = pair.hosts[B].memory.load(sge, data.len());
    (pair, got)
}

#[test]
fn every_length_around_a_packet_arrives_at_every_mtu() {
    for mtu in [
        Mtu::MTU_256,
        Mtu::MTU_512,
        Mtu::MTU_1024,
        Mtu::MTU_2048,
        Mtu::MTU_4096,
    ] {
        let bytes = usize::from(mtu.bytes().unwrap());
        for len in [
            0,
            1,
            2,
            3,
            4,
            5,
            bytes - 1,
            bytes,
            bytes + 1,
            2 * bytes,
            3 * bytes + 2,
        ] {
            let data = pattern(len);
            let (pair, got) = transfer(
                &Setup {
                    mtu,
                    ..Setup::default()
                },
                &data,
                SendOp::Send,
            );
            assert_eq!(got, data, "length {len} at {mtu}");
            let packets = len.div_ceil(bytes).max(1) as u64;
            assert_eq!(pair.hosts[A].count(Counter::RequestsSent), packets);
            assert_eq!(pair.hosts[A].count(Counter::RequestsResent), 0);
            let [sent] = pair.hosts[A].completions[..] else {
                panic!("one completion")
            };
            assert_eq!(
                (sent.wr_id, sent.status, sent.is_send),
                (10, WcStatus::SUCCESS, true)
            );
            assert_eq!((sent.opcode, sent.byte_len), (WcOpcode::SEND, len as u32));
            let [received] = pair.hosts[B].completions[..] else {
                panic!("one completion")
            };
            assert_eq!((received.wr_id, received.status), (20, WcStatus::SUCCESS));
            assert_eq!((received.opcode, received.is_send), (WcOpcode::RECV, false));
            assert_eq!((received.byte_len, received.imm), (len as u32, None));
        }
    }
}

#[test]
fn an_immediate_value_travels_with_the_last_packet() {
    for len in [0, 10, 256, 600] {
        let (pair, got) = transfer(
            &Setup::default(),
            &pattern(len),
            SendOp::SendWithImm(0xDEAD_BEEF),
        );
        assert_eq!(got, pattern(len));
        assert_eq!(pair.hosts[B].completions[0].imm, Some(0xDEAD_BEEF));
        assert_eq!(pair.hosts[B].completions[0].byte_len, len as u32);
    }
}

#[test]
fn psns_wrap_within_a_message_and_between_messages() {
    for start in [0xFF_FFFF, 0xFF_FFFE, 0xFF_FFFC, 0xFF_FFF0] {
        let setup = Setup {
            psn_a: start,
            psn_b: 0xFF_FFFF,
            ..Setup::default()
        };
        // Losses as well, so that NAKs and repetitions cross the wrap.
        let mut pair = Pair::new(&setup).lose(&[1, 4, 9]);
        let mut receives = Vec::new();
        for n in 0..6 {
            receives.push(pair.hosts[B].recv(20 + n, 1000));
            pair.hosts[A].send(10 + n, &pattern(700 + n as usize));
        }
        pair.hosts[A].recv(1, 100);
        pair.hosts[B].send(2, b"the other way");
        pair.run();
        for (n, sge) in receives.into_iter().enumerate() {
            assert_eq!(
                pair.hosts[B].memory.load(sge, 700 + n),
                pattern(700 + n),
                "from {start:#x}"
            );
        }
        assert!(
            pair.hosts[A]
                .completions
                .iter()
                .all(|c| c.status.is_success())
        );
        assert_eq!(pair.hosts[A].completions.len(), 7);
    }
}

#[test]
fn scattered_sources_and_targets_are_one_message() {
    let mut pair = Pair::new(&Setup::default());
    let data = pattern(1000);
    let mut sources = Vec::new();
    for part in [&data[..1], &data[1..1], &data[1..300], &data[300..]] {
        sources.push(pair.hosts[A].memory.store(part));
        // A hole, so that neighbouring ranges are not neighbours in memory.
        pair.hosts[A].memory.alloc(13);
    }
    let mut targets = Vec::new();
    for len in [255, 2, 600, 500] {
        targets.push(pair.hosts[B].memory.alloc(len));
        pair.hosts[B].memory.alloc(5);
    }
    pair.hosts[B]
        .rc
        .post_recv(&RecvWr {
            wr_id: 20,
            sges: &targets,
        })
        .unwrap();
    pair.hosts[A].send_sges(10, SendOp::Send, &sources);
    pair.run();
    assert_eq!(pair.hosts[B].memory.load_all(&targets, 1000), data);
    assert_eq!(pair.hosts[B].completions[0].byte_len, 1000);
}

#[test]
fn inline_data_is_copied_when_it_is_posted_and_survives_repetition() {
    let config = RcConfig {
        max_inline: 600,
        ..RcConfig::default()
    };
    let mut pair = Pair::new(&Setup {
        config,
        ..Setup::default()
    })
    .lose(&[0, 1]);
    let sge = pair.hosts[B].recv(20, 600);
    let mut data = pattern(600);
    let expected = data.clone();
    let wr = SendWr {
        wr_id: 10,
        data: SendData::Inline(&data),
        ..SendWr::default()
    };
    pair.hosts[A].rc.post_send(&wr).unwrap();
    data.fill(0);
    pair.run();
    assert_eq!(pair.hosts[B].memory.load(sge, 600), expected);
    assert_eq!(pair.hosts[A].memory.gathers, 0);
}

#[test]
fn unsignalled_sends_complete_in_silence_and_free_their_place() {
    let config = RcConfig {
        max_send_wr: 2,
        ..RcConfig::default()
    };
    let mut pair = Pair::new(&Setup {
        config,
        ..Setup::default()
    });
    for n in 0..10 {
        pair.hosts[B].recv(n, 64);
        let wr = SendWr {
            wr_id: n,
            data: SendData::Inline(b"quiet"),
            signaled: n == 9,
            ..SendWr::default()
        };
        pair.hosts[A].rc.post_send(&wr).unwrap();
        pair.run();
    }
    assert_eq!(pair.hosts[A].outcomes(), [(9, WcStatus::SUCCESS)]);
    assert_eq!(pair.hosts[B].completions.len(), 10);
}

#[test]
fn sq_sig_all_signals_every_send() {
    let config = RcConfig {
        sq_sig_all: true,
        ..RcConfig::default()
    };
    let mut pair = Pair::new(&Setup {
        config,
        ..Setup::default()
    });
    pair.hosts[B].recv(20, 64);
    pair.hosts[A]
        .rc
        .post_send(&SendWr {
            wr_id: 10,
            signaled: false,
            ..SendWr::default()
        })
        .unwrap();
    pair.run();
    assert_eq!(pair.hosts[A].outcomes(), [(10, WcStatus::SUCCESS)]);
}

#[test]
fn the_solicited_bit_is_that_of_the_last_packet() {
    let mut pair = Pair::new(&Setup::default());
    pair.hosts[B].recv(20, 1000);
    pair.hosts[B].recv(21, 1000);
    let sge = pair.hosts[A].memory.store(&pattern(600));
    for solicited in [true, false] {
        let wr = SendWr {
            data: SendData::Sges(&[sge]),
            solicited,
            ..SendWr::default()
        };
        pair.hosts[A].rc.post_send(&wr).unwrap();
    }
    pair.run();
    let marked: Vec<_> = pair
        .ladder
        .lines()
        .iter()
        .filter(|l| l.contains("solicited"))
        .collect();
    assert_eq!(marked.len(), 1);
    assert!(marked[0].contains("SEND_LAST"), "{marked:?}");
    let solicited: Vec<bool> = pair.hosts[B]
        .completions
        .iter()
        .map(|c| c.solicited)
        .collect();
    assert_eq!(solicited, [true, false]);
}

#[test]
fn no_more_packets_are_on_their_way_than_the_window_allows() {
    let config = RcConfig {
        window: 8,
        ack_interval: 5,
        ..RcConfig::default()
    };
    let mut pair = Pair::new(&Setup {
        config,
        ..Setup::default()
    });
    let (mut unacknowledged, mut most) = (0, 0);
    let (report, most_seen) = std::sync::mpsc::channel();
    let mut last_psn = None;
    pair.loss = Box::new(move |_, side, packet: &Packet<'_>| {
        if side == A {
            last_psn = Some(packet.bth.psn);
            unacknowledged += 1;
            most = most.max(unacknowledged);
            report.send(most).unwrap();
        } else if let Some(last) = last_psn {
            unacknowledged = last.distance_from(packet.bth.psn);
        }
        false
    });
    let sge = pair.hosts[B].recv(20, 100 * 256);
    pair.hosts[A].send(10, &pattern(100 * 256));
    pair.run();
    assert_eq!(
        pair.hosts[B].memory.load(sge, 100 * 256),
        pattern(100 * 256)
    );
    assert_eq!(most_seen.try_iter().max(), Some(8));
    assert_eq!(pair.hosts[A].count(Counter::RequestsSent), 100);
}

#[test]
fn acknowledgements_of_one_batch_are_merged() {
    let mut pair = Pair::new(&Setup::default());
    for n in 0..20 {
        pair.hosts[B].recv(n, 64);
        pair.hosts[A].send(n, b"one of twenty");
    }
    pair.run();
    assert_eq!(pair.hosts[B].count(Counter::RequestsReceived), 20);
    assert_eq!(pair.hosts[B].count(Counter::AcksSent), 1);
    let ids: Vec<u64> = pair.hosts[A].completions.iter().map(|c| c.wr_id).collect();
    assert_eq!(ids, (0..20).collect::<Vec<_>>());
}

#[test]
fn a_duplicate_is_acknowledged_again_and_delivered_once() {
    let mut pair = Pair::new(&Setup::default()).lose(&[1]);
    pair.hosts[B].recv(20, 64);
    pair.hosts[B].recv(21, 64);
    pair.hosts[A].send(10, b"once");
    pair.run();
    assert_eq!(pair.hosts[B].count(Counter::DuplicateRequests), 1);
    assert_eq!(pair.hosts[B].count(Counter::AcksSent), 2);
    assert_eq!(pair.hosts[B].completions.len(), 1);
    assert_eq!(pair.hosts[A].outcomes(), [(10, WcStatus::SUCCESS)]);
}

#[test]
fn a_gap_is_reported_once_until_it_is_closed() {
    let mut pair = Pair::new(&Setup::default()).lose(&[0]);
    for n in 0..10 {
        pair.hosts[B].recv(n, 64);
        pair.hosts[A].send(n, b"ten");
    }
    pair.run();
    assert_eq!(pair.hosts[B].count(Counter::SequenceNaksSent), 1);
    assert_eq!(pair.hosts[B].count(Counter::DroppedOutOfOrder), 9);
    assert_eq!(pair.hosts[A].count(Counter::SequenceNaksReceived), 1);
    assert_eq!(pair.hosts[A].count(Counter::AckTimeouts), 0);
    assert_eq!(pair.hosts[A].count(Counter::RequestsResent), 10);
    assert_eq!(pair.hosts[B].completions.len(), 10);
}

#[test]
fn the_first_request_reports_that_communication_is_established() {
    let mut pair = Pair::new(&Setup::default());
    for n in 0..2 {
        pair.hosts[B].recv(n, 64);
        pair.hosts[A].send(n, b"hello");
        pair.run();
    }
    assert_eq!(pair.hosts[B].events, [QpEvent::CommEst]);
    assert_eq!(pair.hosts[A].events, []);
}
