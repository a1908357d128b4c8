//! Bursts and the pauses between them, by the virtual clock.

use std::time::Duration;

use oarlock_transport::{Counter, QpState, SendData, SendWr, UcConfig};
use oarlock_wire::Time;

use crate::pair::{A, B, Host, MTU, Pair, pattern};

fn at(micros: u64) -> Time {
    Time::ZERO + Duration::from_micros(micros)
}

fn config(burst: u32, micros: u64) -> UcConfig {
    UcConfig {
        burst,
        pace: Duration::from_micros(micros),
        ..UcConfig::default()
    }
}

#[test]
fn a_long_message_goes_out_in_bursts() {
    let mut host = Host::new(A, config(8, 50), QpState::Rts);
    host.send(1, &pattern(1, 20 * MTU));
    assert_eq!(host.packets(at(100)).len(), 8);
    assert_eq!(host.uc.poll_timeout(), Some(at(150)));
    assert!(!host.uc.has_output(), "nothing to be polled before");
    assert!(host.packets(at(149)).is_empty());
    // The deadline lifts the pause in the same drain; early and repeated calls do nothing.
    host.uc.handle_timeout(at(149));
    assert!(!host.uc.has_output());
    host.uc.handle_timeout(at(150));
    host.uc.handle_timeout(at(150));
    assert!(host.uc.has_output());
    assert_eq!(host.packets(at(150)).len(), 8);
    assert_eq!(host.uc.poll_timeout(), Some(at(200)));
    // A late caller needs no deadline at all.
    assert_eq!(host.packets(at(1000)).len(), 4);
    assert_eq!(host.uc.poll_timeout(), None);
    assert_eq!(host.completions.len(), 1);
    assert_eq!(host.count(Counter::PaceWaits), 2);
}

/// The pause is the queue pair's, not a message's.
#[test]
fn short_messages_are_paced_as_well() {
    let mut host = Host::new(A, config(3, 50), QpState::Rts);
    for wr_id in 0..5 {
        host.post(SendWr {
            wr_id,
            data: SendData::Inline(b"short"),
            ..SendWr::default()
        });
    }
    assert_eq!(host.packets(at(0)).len(), 3);
    assert_eq!(host.completions.len(), 3);
    assert_eq!(host.packets(at(50)).len(), 2);
    assert_eq!(host.uc.poll_timeout(), None, "nothing waits");
    // One more fills the burst that began at 50.
    host.send(9, b"x");
    assert_eq!(host.packets(at(60)).len(), 1);
    host.send(9, b"x");
    assert!(host.packets(at(60)).is_empty());
    assert_eq!(host.uc.poll_timeout(), Some(at(100)));
}

#[test]
fn no_more_than_a_burst_is_ever_in_one_pace() {
    let mut pair = Pair::of(config(16, 50));
    pair.hosts[B].recv(1, 100 * MTU);
    let data = pattern(4, 100 * MTU);
    pair.hosts[A].send(1, &data);
    pair.run();
    assert_eq!(pair.hosts[B].completions.len(), 1);
    assert_eq!(pair.hosts[A].count(Counter::PaceWaits), 6);
    // 100 packets of 16: the last burst began 6 paces after the first, and travelled 10 µs.
    assert_eq!(pair.clock.now(), at(6 * 50 + 10));
}

#[test]
fn no_pace_is_no_pause_and_a_burst_of_none_is_one() {
    let mut host = Host::new(A, config(4, 0), QpState::Rts);
    host.send(1, &pattern(1, 50 * MTU));
    assert_eq!(host.packets(at(0)).len(), 50);
    assert_eq!(host.count(Counter::PaceWaits), 0);
    let mut host = Host::new(A, config(0, 50), QpState::Rts);
    host.send(1, &pattern(1, 2 * MTU));
    assert_eq!(host.packets(at(0)).len(), 1);
    assert_eq!(host.packets(at(50)).len(), 1);
}
