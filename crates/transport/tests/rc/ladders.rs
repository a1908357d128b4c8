//! Exchanges as text.

use oarlock_sim::assert_snapshot;

use crate::pair::{A, B, Pair, Setup};

fn check(name: &str, pair: &Pair) {
    let path = format!(
        "{}/tests/rc/snapshots/{name}.txt",
        env!("CARGO_MANIFEST_DIR")
    );
    assert_snapshot(path, &pair.ladder.to_string());
}

#[test]
fn a_send_of_three_packets_whose_middle_is_lost() {
    let mut pair = Pair::new(&Setup::default()).lose(&[1]);
    let sge = pair.hosts[B].recv(20, 1000);
    let data: Vec<u8> = (0..700u32).map(|n| n as u8).collect();
    pair.hosts[A].send(10, &data);
    pair.run();
    assert_eq!(pair.hosts[B].memory.load(sge, 700), data);
    check("send_middle_lost", &pair);
}

#[test]
fn a_send_whose_acknowledgement_is_lost() {
    let mut pair = Pair::new(&Setup::default()).lose(&[1]);
    pair.hosts[B].recv(20, 1000);
    pair.hosts[A].send(10, b"once only");
    pair.run();
    check("send_ack_lost", &pair);
}

#[test]
fn a_receiver_that_becomes_ready_during_the_third_wait() {
    let mut pair = Pair::new(&Setup::default());
    pair.hosts[A].send(10, &[7; 300]);
    pair.hosts[A].send(11, b"behind it");
    pair.run_until(oarlock_wire::Time::from_nanos(1_500_000));
    pair.hosts[B].recv(20, 1000);
    pair.hosts[B].recv(21, 1000);
    pair.run();
    check("send_rnr", &pair);
}

#[test]
fn a_receiver_that_is_never_ready() {
    let mut pair = Pair::new(&Setup {
        rnr_retry: 2,
        ..Setup::default()
    });
    pair.hosts[A].send(10, b"nobody takes it");
    pair.hosts[A].send(11, b"nor this");
    pair.run();
    check("send_rnr_retry_exceeded", &pair);
}

#[test]
fn a_peer_that_never_answers() {
    let mut pair = Pair::new(&Setup {
        retry: 2,
        ..Setup::default()
    });
    pair.network.partition(A, B);
    pair.hosts[A].send(10, b"lost");
    pair.hosts[A].send(11, b"lost, too");
    pair.hosts[A].recv(12, 100);
    pair.run();
    check("send_retry_exceeded", &pair);
}

#[test]
fn a_message_longer_than_its_buffer() {
    let mut pair = Pair::new(&Setup::default());
    pair.hosts[B].recv(20, 500);
    pair.hosts[B].recv(21, 1000);
    pair.hosts[A].send(10, &[1; 600]);
    pair.run();
    check("send_too_long", &pair);
}
