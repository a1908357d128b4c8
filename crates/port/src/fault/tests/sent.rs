use super::*;
use crate::tests::namespace::in_own_namespace;
use crate::{ForwardToken, UdpPort, UdpSlots};

const FAMILIES: [(&str, &str); 2] = [("192.0.2.1", "192.0.2.2"), ("fd00::1", "fd00::2")];

fn send_all(pair: &Pair, psns: impl IntoIterator<Item = u32>) {
    for psn in psns {
        pair.a.send(&pair.av, &send_only(QPN, psn)).unwrap();
    }
}

/// The receiver's check finds every change, whichever part of the packet is hit: over IPv4, where it has 16 bits, and
/// over IPv6, on the way out and on the way in.
#[test]
fn every_changed_bit_is_found_by_the_icrc() {
    for (local, remote) in FAMILIES {
        for field in ["any", "bth", "payload", "icrc"] {
            for direction in ["tx", "rx"] {
                let pair = pair(local, remote);
                let rule = format!("corrupt:field={field},direction={direction},p=0.9,seed=3");
                let faults = faults(&rule);
                let at = if direction == "tx" { &pair.a } else { &pair.b };
                at.inject(Some(faults.clone())).unwrap();
                let sent: Vec<u32> = (0..3000).collect();
                send_all(&pair, sent.iter().copied());
                let found = psns(&pair.b);
                let struck = faults.counts()[0].struck;
                assert!(struck > 2500, "{struck}");
                assert_eq!(found.len() as u64 + struck, 3000, "{rule} {local}");
                assert_eq!(counter(&pair.b, "icrc_bad"), struck);
                assert_eq!(counter(at, "fault_corrupted"), struck);
            }
        }
    }
}

#[test]
fn lost_and_doubled_packets_are_counted_at_both_ends() {
    for direction in ["tx", "rx"] {
        let pair = pair("192.0.2.1", "192.0.2.2");
        let at = if direction == "tx" { &pair.a } else { &pair.b };
        let rules =
            format!("drop:direction={direction},psn=3-5;duplicate:direction={direction},psn=5-6");
        at.inject(Some(faults(&rules))).unwrap();
        send_all(&pair, 0..9);
        assert_eq!(psns(&pair.b), [0, 1, 2, 6, 6, 7, 8]);
        assert_eq!(counter(at, "fault_lost"), 3);
        assert_eq!(counter(at, "fault_duplicated"), 1);
        at.inject(None).unwrap();
        send_all(&pair, 3..6);
        assert_eq!(psns(&pair.b), [3, 4, 5]);
    }
}

/// The rule says which way, and nothing of the other way is struck.
#[test]
fn a_direction_is_that_of_the_port() {
    let pair = pair("fd00::1", "fd00::2");
    pair.a.inject(Some(faults("drop:direction=rx"))).unwrap();
    pair.b.inject(Some(faults("drop:direction=tx"))).unwrap();
    send_all(&pair, 0..3);
    assert_eq!(psns(&pair.b), [0, 1, 2]);
}

#[test]
fn the_next_packet_overtakes_and_with_none_the_time_lets_go() {
    for direction in ["tx", "rx"] {
        let pair = pair("192.0.2.1", "192.0.2.2");
        let at = if direction == "tx" { &pair.a } else { &pair.b };
        // Longer than any test: only overtaking lets it go.
        let rule = format!("reorder:direction={direction},psn=1,us=60000000");
        at.inject(Some(faults(&rule))).unwrap();
        let other = |psn| packet(Opcode::RC_SEND_ONLY, QPN + 1, psn);
        send_all(&pair, 0..2);
        pair.a.send(&pair.av, &other(9)).unwrap();
        assert_eq!(
            psns(&pair.b),
            [0, 9],
            "{direction}: another queue pair's does not count"
        );
        send_all(&pair, 2..4);
        let found = wait_for(&pair.b, 3);
        let expected = if direction == "tx" {
            [2, 1, 3]
        } else {
            [2, 3, 1]
        };
        assert_eq!(found, expected, "{direction}");
        let rule = format!("reorder:direction={direction},us=1000");
        at.inject(Some(faults(&rule))).unwrap();
        send_all(&pair, [7]);
        assert_eq!(wait_for(&pair.b, 1), [7]);
        assert!(counter(at, "fault_reordered") >= 2);
    }
}

/// A delayed packet comes by itself, and its receiver's descriptor says so.
#[test]
fn delayed_packets_are_passed_by_others_and_come() {
    for direction in ["tx", "rx"] {
        let pair = pair("fd00::1", "fd00::2");
        let at = if direction == "tx" { &pair.a } else { &pair.b };
        let rule = format!("delay:direction={direction},us=1000,count=2");
        at.inject(Some(faults(&rule))).unwrap();
        send_all(&pair, 0..4);
        let mut found = wait_for(&pair.b, 4);
        let place = |psn: u32| found.iter().position(|found| *found == psn).unwrap();
        assert!(place(2) < place(3) && place(0) < place(1), "{found:?}");
        found.sort_unstable();
        assert_eq!(found, [0, 1, 2, 3]);
        assert_eq!(counter(at, "fault_delayed"), 2);
        assert_eq!(counter(&pair.b, "icrc_bad"), 0);
        let rule = format!("delay:direction={direction},us=60000000,count=2");
        at.inject(Some(faults(&rule))).unwrap();
        send_all(&pair, 0..4);
        assert_eq!(psns(&pair.b), [2, 3], "passed");
        at.inject(None).unwrap();
        assert_eq!(psns(&pair.b), [0, 1]);
    }
}

/// Two runs of one seed give the same packets in the same order, and so does a replay of the record without the rules.
#[test]
fn a_seed_and_a_record_give_the_same_packets_again() {
    let rules = "drop:p=0.05,seed=9;duplicate:p=0.05,seed=9;reorder:p=0.05,seed=9,us=60000000;\
                 corrupt:p=0.05,seed=9;delay:p=0.05,seed=9,us=60000000";
    let run = |injected: Arc<Faults>| -> Vec<u32> {
        let pair = pair("192.0.2.1", "192.0.2.2");
        pair.a.inject(Some(injected.clone())).unwrap();
        pair.b.inject(Some(injected)).unwrap();
        let mut found = Vec::new();
        for psn in 0..1000 {
            send_all(&pair, [psn]);
            found.extend(psns(&pair.b));
        }
        // What still waits goes when the rules do, in the order of its time.
        pair.a.inject(None).unwrap();
        found.extend(psns(&pair.b));
        pair.b.inject(None).unwrap();
        found.extend(psns(&pair.b));
        found
    };
    let file = tempfile::NamedTempFile::new().unwrap();
    let first = faults(rules);
    first.record_to(file.reopen().unwrap()).unwrap();
    let found = run(first.clone());
    assert!(found.len() > 800 && !found.is_sorted());
    assert_eq!(run(faults(rules)), found);
    assert_ne!(run(faults(&rules.replace("seed=9", "seed=8"))), found);
    let record = std::fs::read_to_string(file.path()).unwrap();
    let replay = Arc::new(Faults::replay(&record, false).unwrap());
    assert_eq!(run(replay.clone()), found);
    let count = replay.counts().remove(0);
    let struck: u64 = first.counts().iter().map(|count| count.struck).sum();
    assert_eq!((count.matched, count.struck), (struck, struck));
    assert!(first.counts().iter().all(|count| count.struck > 10));
}

#[test]
fn what_waits_is_bounded_and_nothing_of_it_is_lost() {
    let pair = pair("192.0.2.1", "192.0.2.2");
    pair.a.inject(Some(faults("delay:us=60000000"))).unwrap();
    send_all(&pair, 0..4096 + 100);
    assert_eq!(psns(&pair.b), (0..100).collect::<Vec<_>>());
    assert_eq!(counter(&pair.a, "fault_released_early"), 100);
    pair.a.inject(None).unwrap();
    assert_eq!(psns(&pair.b), (100..4196).collect::<Vec<_>>());
}

/// With the port go its thread and what it holds: the host leaves the wire.
#[test]
fn nothing_is_left_when_the_port_goes() {
    let Pair {
        wire,
        hosts: [host_a, host_b],
        a,
        b,
        av,
    } = pair("192.0.2.1", "192.0.2.2");
    a.inject(Some(faults("delay:us=60000000"))).unwrap();
    b.inject(Some(faults("reorder:us=60000000"))).unwrap();
    a.send(&av, &send_only(QPN, 1)).unwrap();
    drop((a, host_a));
    assert!(!wire.has_address("192.0.2.1".parse().unwrap()));
    drop((b, host_b));
    assert!(!wire.has_address("192.0.2.2".parse().unwrap()));
}

/// What is the device's to do comes with the packet.
#[test]
fn faults_of_the_device_come_with_their_packets() {
    let pair = pair("192.0.2.1", "192.0.2.2");
    let rules = "rnr:psn=2;qp_error:psn=4;device_removal:psn=5;address_change:psn=6;drop:psn=3";
    pair.b.inject(Some(faults(rules))).unwrap();
    send_all(&pair, 0..8);
    let mut found = Vec::new();
    let mut batch = Batch::default();
    while pair.b.recv(&mut batch).unwrap() > 0 {
        let mut strikes = batch.strikes();
        for (place, (_, bytes)) in batch.iter().enumerate() {
            if let Some(fault) = strikes.at(place) {
                found.push((bytes[11], fault));
            }
        }
    }
    let expected = [
        (2, DeviceFault::ReceiverNotReady),
        (4, DeviceFault::QpError),
        (5, DeviceFault::DeviceRemoval),
        (6, DeviceFault::AddressChange),
    ];
    assert_eq!(found, expected);
}

/// Several sets of rules on one port: each counts every packet, the first that strikes decides.
#[test]
fn several_sets_of_rules_are_asked_in_order() {
    let pair = pair("192.0.2.1", "192.0.2.2");
    let (one, two) = (faults("drop:psn=1"), faults("duplicate:psn=1-2"));
    let both = vec![one.clone(), two.clone()];
    pair.a.set_faults(both).unwrap();
    assert!(pair.a.has_faults() && !pair.b.has_faults());
    send_all(&pair, 0..4);
    assert_eq!(psns(&pair.b), [0, 2, 2, 3]);
    assert_eq!((one.counts()[0].matched, two.counts()[0].matched), (1, 2));
}

fn udp(slots: &UdpSlots, slot: u8) -> Port {
    let socket = slots
        .lend(slot)
        .unwrap()
        .unwrap()
        .try_clone_to_owned()
        .unwrap();
    Port::Udp(UdpPort::new(slot, socket, ForwardToken(0x1234)).unwrap())
}

/// All of it on the real port: single packets and bursts, both directions, both families.
#[test]
fn the_real_port_does_the_same() {
    in_own_namespace("fault::tests::sent::the_real_port_does_the_same", || {
        let slots = UdpSlots::open().unwrap();
        for (local, remote) in [("127.0.0.1", "127.0.0.2"), ("::1", "::1")] {
            let (a, b) = (udp(&slots, 1), udp(&slots, 2));
            let av = path(local, remote);
            let send = |psns: std::ops::Range<u32>| {
                for psn in psns {
                    a.send(&av, &send_only(QPN, psn)).unwrap();
                }
            };
            let burst = |psns: std::ops::Range<u32>| {
                let mut run = Vec::new();
                for psn in psns {
                    run.extend(send_only(QPN, psn));
                    run.extend([0; 4]);
                }
                a.send_run(&av, &mut run, 24).unwrap();
            };
            for (at, direction) in [(&a, "tx"), (&b, "rx")] {
                let rule = |text: &str| {
                    let rules: Vec<String> = text
                        .split(';')
                        .map(|rule| format!("{rule},direction={direction}"))
                        .collect();
                    Some(faults(&rules.join(";")))
                };
                let before = counter(&b, "icrc_bad");
                at.inject(rule("drop:psn=1;duplicate:psn=2;corrupt:psn=5"))
                    .unwrap();
                send(0..4);
                burst(4..8);
                assert_eq!(
                    wait_for(&b, 7),
                    [0, 2, 2, 3, 4, 6, 7],
                    "{local} {direction}"
                );
                assert_eq!(counter(&b, "icrc_bad") - before, 1);
                at.inject(rule("reorder:psn=1,us=60000000")).unwrap();
                burst(0..4);
                let expected = if direction == "tx" {
                    [0, 2, 1, 3]
                } else {
                    [0, 2, 3, 1]
                };
                assert_eq!(wait_for(&b, 4), expected, "{local} {direction}");
                at.inject(rule("delay:psn=1,us=1000")).unwrap();
                send(0..3);
                let mut found = wait_for(&b, 3);
                found.sort_unstable();
                assert_eq!(found, [0, 1, 2], "{local} {direction}");
                at.inject(rule("delay:psn=1,us=60000000")).unwrap();
                send(0..3);
                assert_eq!(wait_for(&b, 2), [0, 2], "{local} {direction}");
                at.inject(None).unwrap();
                assert_eq!(wait_for(&b, 1), [1], "{local} {direction}");
                at.inject(rule("corrupt:field=payload,psn=0-0xfe,p=0.99"))
                    .unwrap();
                let before = counter(&b, "icrc_bad");
                for _ in 0..4 {
                    burst(0..60);
                }
                // The last is none of the rule's; of those before it, few were not struck.
                send(0xFF..0x100);
                let mut found = Vec::new();
                while found.last() != Some(&0xFF) {
                    assert!(is_readable_within(&b, 20));
                    found.extend(psns(&b));
                }
                let bad = counter(&b, "icrc_bad") - before;
                assert_eq!(bad + found.len() as u64 - 1, 240, "{local} {direction}");
                assert!(bad > 200, "{bad}");
                at.inject(None).unwrap();
                for name in ["foreign_qp", "forward_bad", "not_rocev2", "rxq_overflow"] {
                    assert_eq!(counter(&b, name), 0, "{name}");
                }
            }
        }
    });
}
