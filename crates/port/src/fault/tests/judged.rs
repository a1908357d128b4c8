use super::*;
use std::collections::BTreeSet;

fn struck(faults: &Faults, packets: impl IntoIterator<Item = (u32, u32)>) -> BTreeSet<(u32, u32)> {
    packets
        .into_iter()
        .filter(|(qpn, psn)| {
            faults
                .judge(&send_only(*qpn, *psn), Direction::Tx)
                .is_some()
        })
        .collect()
}

#[test]
fn after_and_count_bound_what_a_rule_strikes() {
    let faults = faults("drop:after=5,count=3");
    let struck = struck(&faults, (0..20).map(|psn| (7, psn)));
    assert_eq!(struck, BTreeSet::from([(7, 5), (7, 6), (7, 7)]));
    let counts = faults.counts();
    assert_eq!(counts.len(), 1);
    assert_eq!((counts[0].matched, counts[0].struck), (20, 3));
    assert_eq!(counts[0].rule, "drop:after=5,count=3");
}

/// Packets of several threads are counted one by one.
#[test]
fn after_and_count_are_exact_whoever_sends() {
    let faults = faults("drop:after=1000,count=777");
    let threads: Vec<_> = (0..4_u32)
        .map(|n| {
            let faults = Arc::clone(&faults);
            std::thread::spawn(move || {
                let packet = send_only(n, 0);
                let judge = |_: &u32| faults.judge(&packet, Direction::Tx).is_some();
                (0..2_000).filter(judge).count()
            })
        })
        .collect();
    let struck: usize = threads
        .into_iter()
        .map(|thread| thread.join().expect("no panic"))
        .sum();
    assert_eq!(struck, 777);
    let counts = faults.counts().remove(0);
    assert_eq!((counts.matched, counts.struck), (8_000, 777));
}

#[test]
fn the_part_that_is_struck_is_the_probability() {
    for p in [0.01_f64, 0.1, 0.5, 0.9] {
        for seed in 0..4 {
            let faults = faults(&format!("drop:p={p},seed={seed}"));
            let struck = struck(&faults, (0..20_000).map(|psn| (7, psn))).len() as f64;
            let (mean, deviation) = (20_000.0 * p, (20_000.0 * p * (1.0 - p)).sqrt());
            assert!((struck - mean).abs() < 5.0 * deviation, "p={p}: {struck}");
        }
    }
}

/// However the packets of several queue pairs are interleaved, the same of each are struck; another seed strikes others.
#[test]
fn what_is_struck_follows_from_seed_and_stream_alone() {
    let qps = [0x10, 0x11, 0x12];
    let in_turn: Vec<(u32, u32)> = (0..300).flat_map(|psn| qps.map(|qpn| (qpn, psn))).collect();
    let mut one_by_one: Vec<(u32, u32)> = qps.into_iter().map(|qpn| (qpn, 0)).collect();
    one_by_one.extend(
        qps.into_iter()
            .flat_map(|qpn| (1..300).map(move |psn| (qpn, psn))),
    );
    let run = |seed: u64, packets: &[(u32, u32)]| {
        let faults = faults(&format!("drop:p=0.2,seed={seed}"));
        struck(&faults, packets.iter().copied())
    };
    assert_eq!(run(1, &in_turn), run(1, &one_by_one));
    assert_ne!(run(1, &in_turn), run(2, &in_turn));
    // The streams are not copies of each other.
    let of = |qpn: u32| -> Vec<u32> {
        let struck = run(1, &in_turn);
        struck
            .iter()
            .filter(|(of, _)| *of == qpn)
            .map(|(_, psn)| *psn)
            .collect()
    };
    assert!(of(0x10) != of(0x11) && of(0x11) != of(0x12));
}

#[test]
fn two_rules_of_one_text_throw_their_own_dice() {
    let (one, two) = (faults("drop:p=0.3"), faults("drop:p=0.3;drop:p=0.3"));
    let packets = || (0..1000).map(|psn| (7, psn));
    let (one, both) = (struck(&one, packets()), struck(&two, packets()));
    assert!(one.is_subset(&both) && both.len() > one.len() * 3 / 2);
    let counts = two.counts();
    assert_eq!((counts[0].matched, counts[1].matched), (1000, 1000));
    assert_eq!((counts[0].struck + counts[1].struck) as usize, both.len());
}

/// Requests and answers to a queue pair are two streams: how many acknowledgements come between moves nothing.
#[test]
fn answers_do_not_move_requests() {
    let run = |acks: u32| -> Vec<u32> {
        let faults = faults("drop:opcode=send,p=0.2");
        (0..300)
            .filter(|psn| {
                for _ in 0..acks {
                    let ack = packet(Opcode::RC_ACKNOWLEDGE, 7, 0);
                    assert_eq!(faults.judge(&ack, Direction::Tx), None);
                }
                faults.judge(&send_only(7, *psn), Direction::Tx).is_some()
            })
            .collect()
    };
    assert_eq!(run(0), run(3));
}

/// The rule is about messages: their first packets count, answers never.
#[test]
fn receiver_not_ready_strikes_where_a_request_begins() {
    let faults = faults("rnr:after=1,count=2");
    let opcodes = [
        (Opcode::RC_SEND_FIRST, false),
        (Opcode::RC_SEND_MIDDLE, false),
        (Opcode::RC_SEND_LAST, false),
        (Opcode::RC_ACKNOWLEDGE, false),
        (Opcode::RC_RDMA_WRITE_ONLY, true),
        (Opcode::RC_RDMA_READ_RESPONSE_FIRST, false),
        (Opcode::RC_RDMA_READ_REQUEST, true),
        (Opcode::RC_FETCH_ADD, false),
    ];
    for (opcode, expected) in opcodes {
        assert_eq!(faults.judge(&packet(opcode, 7, 1), Direction::Tx), None);
        let strike = faults.judge(&packet(opcode, 7, 1), Direction::Rx);
        assert_eq!(strike.is_some(), expected, "{opcode}");
        if let Some(strike) = strike {
            let rnr = Verdict::Device(DeviceFault::ReceiverNotReady);
            assert_eq!(strike.verdict, rnr);
        }
    }
    assert_eq!(faults.counts()[0].matched, 4);
}

/// A run and its replay, with other queue pair numbers: exactly the same packets. Where the runs part, nothing is struck.
#[test]
fn a_replay_strikes_what_was_struck() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let run = |faults: &Faults, base: u32| -> Vec<(usize, Verdict)> {
        (0..2000_u32)
            .filter_map(|i| {
                let (qpn, psn) = (base + i % 3, i / 3);
                let direction = if i % 7 == 0 {
                    Direction::Rx
                } else {
                    Direction::Tx
                };
                let strike = faults.judge(&send_only(qpn, psn), direction)?;
                Some((i as usize, strike.verdict))
            })
            .collect()
    };
    let first = faults(
        "drop:p=0.02;duplicate:p=0.02;reorder:p=0.02,us=5;corrupt:p=0.02;delay:us=9,p=0.02;rnr:p=0.1;qp_error:after=100",
    );
    first.record_to(file.reopen().unwrap()).unwrap();
    let struck = run(&first, 0x02_0000);
    for kind in ["Drop", "Dupl", "Reor", "Corr", "Dela", "Receiver", "QpErr"] {
        let of_kind = |(_, verdict): &&(usize, Verdict)| format!("{verdict:?}").contains(kind);
        assert!(struck.iter().find(of_kind).is_some(), "{kind}");
    }
    let text = std::fs::read_to_string(file.path()).unwrap();
    let again = Faults::replay(&text, false).unwrap();
    assert_eq!(run(&again, 0x77_0000), struck);
    let count = again.counts().remove(0);
    assert_eq!(
        (count.matched, count.struck),
        (struck.len() as u64, struck.len() as u64)
    );
    assert_eq!((again.diverged(), first.record_failed()), (0, 0));
    // The same places, other packets.
    let parted = Faults::replay(&text, false).unwrap();
    for i in 0..2000_u32 {
        let write = packet(Opcode::RC_RDMA_WRITE_ONLY, 7 + i % 3, i);
        assert_eq!(parted.judge(&write, Direction::Tx), None);
    }
    assert!(parted.diverged() > 0);
}

/// Queue pair numbers are strangers' to choose: any number of them takes bounded memory, and the rules go on.
#[test]
fn a_flood_of_queue_pair_numbers_is_bounded() {
    let faults = faults("drop:qpn=0x0f0000,count=1");
    for qpn in 0..20_000 {
        assert_eq!(faults.judge(&send_only(qpn, 0), Direction::Rx), None);
    }
    assert!(
        faults
            .judge(&send_only(0x0F_0000, 0), Direction::Rx)
            .is_some()
    );
}

#[test]
fn what_is_shorter_than_a_bth_is_no_packet() {
    let faults = faults("drop");
    for len in 0..12 {
        assert_eq!(faults.judge(&send_only(7, 1)[..len], Direction::Rx), None);
    }
    assert_eq!(faults.counts()[0].matched, 0);
}

#[test]
fn a_record_that_cannot_be_written_is_counted() {
    // Reads only.
    let file = std::fs::File::open("/proc/self/stat").unwrap();
    assert!(faults("drop").record_to(file).is_err());
    let Ok(full) = std::fs::File::options().write(true).open("/dev/full") else {
        oarlock_sim::not_run("a device that is always full", "/dev/full cannot be opened");
        return;
    };
    assert!(faults("drop").record_to(full).is_err());
}
