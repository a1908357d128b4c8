//! Exchanges as text.

use oarlock_sim::assert_snapshot;
use oarlock_transport::{AccessFlags, SendOp, UcConfig};

use crate::pair::{A, B, MTU, Pair, pattern};

fn check(name: &str, pair: &Pair) {
    let path = format!(
        "{}/tests/uc/snapshots/{name}.txt",
        env!("CARGO_MANIFEST_DIR")
    );
    assert_snapshot(path, &pair.ladder.to_string());
}

#[test]
fn a_send_whose_middle_is_lost_and_the_one_behind_it() {
    let mut pair = Pair::new().lose([1]);
    pair.hosts[B].recv(20, 1000);
    pair.hosts[A].send(10, &pattern(1, 700));
    pair.hosts[A].send(11, b"arrives");
    pair.run();
    check("send_middle_lost", &pair);
}

#[test]
fn a_write_with_immediate_in_three_bursts() {
    let mut pair = Pair::of(UcConfig {
        burst: 2,
        ..UcConfig::default()
    });
    let (_, remote) = pair.hosts[B]
        .memory
        .offer(5 * MTU, AccessFlags::REMOTE_WRITE);
    pair.hosts[B].recv(20, 0);
    pair.hosts[A].op(
        10,
        SendOp::WriteWithImm(remote, 0xBEEF),
        &pattern(1, 5 * MTU),
    );
    pair.run();
    check("write_paced", &pair);
}

#[test]
fn a_receiver_without_a_buffer() {
    let mut pair = Pair::new();
    pair.hosts[A].send(10, &pattern(1, 300));
    pair.run();
    pair.hosts[B].recv(20, 1000);
    pair.hosts[A].send(11, b"in time");
    pair.run();
    check("send_not_ready", &pair);
}
