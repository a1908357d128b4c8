//! Exchanges as text.

use oarlock_sim::assert_snapshot;
use oarlock_transport::{
    AccessFlags, AttrMask, BindWindow, Counter, QpAttr, QpState, RcConfig, RemoteAddress, SendData,
    SendOp, SendWr,
};
use oarlock_wire::{RKey, Time};

use crate::memory::KEY;
use crate::pair::{A, B, Pair, SRQN, Setup};

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
    pair.run_until(Time::from_nanos(1_500_000));
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

/// A pair whose B offers `len` bytes.
fn offering(setup: &Setup, len: usize) -> (Pair, RemoteAddress) {
    let mut pair = Pair::new(setup);
    let bytes: Vec<u8> = (0..len).map(|n| n as u8).collect();
    let sge = pair.hosts[B].memory.store(&bytes);
    let remote = pair.hosts[B].memory.offer(sge);
    (pair, remote)
}

#[test]
fn a_read_whose_middle_response_is_lost() {
    let (mut pair, remote) = offering(&Setup::default(), 1000);
    pair = pair.lose(&[3]);
    let target = pair.hosts[A].post(10, SendOp::Read(remote), &[0; 1000]);
    pair.hosts[B].recv(20, 100);
    pair.hosts[A].send(11, b"behind it");
    pair.run();
    let expected: Vec<u8> = (0..1000u32).map(|n| n as u8).collect();
    assert_eq!(pair.hosts[A].memory.load(target, 1000), expected);
    check("read_middle_lost", &pair);
}

#[test]
fn a_read_in_pieces() {
    let config = RcConfig {
        read_window: 4,
        ..RcConfig::default()
    };
    let setup = Setup {
        config,
        ..Setup::default()
    };
    let (mut pair, remote) = offering(&setup, 1500);
    pair.hosts[A].post(10, SendOp::Read(remote), &[0; 1500]);
    pair.run();
    check("read_pieces", &pair);
}

#[test]
fn an_atomic_whose_answer_is_lost_is_executed_once() {
    let mut pair = Pair::new(&Setup::default()).lose(&[1]);
    let word = pair.hosts[B].memory.store(&41u64.to_ne_bytes());
    let remote = pair.hosts[B].memory.offer(word);
    pair.hosts[A].post(10, SendOp::FetchAdd { remote, add: 1 }, &[0; 8]);
    pair.run();
    assert_eq!(pair.hosts[B].memory.load(word, 8), 42u64.to_ne_bytes());
    assert_eq!(pair.hosts[B].memory.atomics, 1);
    assert_eq!(pair.hosts[B].count(Counter::DuplicateAtomics), 1);
    check("atomic_ack_lost", &pair);
}

#[test]
fn a_write_with_immediate_that_waits_for_a_receive() {
    let (mut pair, remote) = offering(&Setup::default(), 700);
    pair.hosts[A].post(10, SendOp::WriteWithImm(remote, 0x1234), &[7; 700]);
    pair.run_until(Time::from_nanos(800_000));
    pair.hosts[B].recv(20, 0);
    pair.run();
    check("write_imm_rnr", &pair);
}

#[test]
fn a_fence_behind_a_read() {
    let (mut pair, remote) = offering(&Setup::default(), 600);
    pair.hosts[A].post(10, SendOp::Read(remote), &[0; 600]);
    let wr = SendWr {
        wr_id: 11,
        op: SendOp::Write(remote),
        data: SendData::Inline(b"after the data"),
        fence: true,
        ..SendWr::default()
    };
    pair.hosts[A].rc.post_send(&wr).unwrap();
    pair.run();
    check("fence", &pair);
}

#[test]
fn a_drained_send_queue_goes_on() {
    let mut pair = Pair::new(&Setup::default());
    for n in 20..22 {
        pair.hosts[B].recv(n, 100);
    }
    pair.hosts[A].send(10, b"begun");
    pair.drain_both();
    pair.hosts[A].send(11, b"waits");
    let sqd = QpAttr {
        mask: AttrMask::STATE | AttrMask::EN_SQD_ASYNC_NOTIFY,
        state: QpState::Sqd,
        sqd_notify: true,
        ..QpAttr::default()
    };
    pair.hosts[A].rc.modify(&sqd).unwrap();
    pair.run_until(Time::from_nanos(1_000_000));
    pair.hosts[A].modify(QpState::Rts);
    pair.run();
    check("sqd", &pair);
}

#[test]
fn a_window_that_is_bound_used_and_taken_away() {
    let mut pair = Pair::new(&Setup::default());
    let sge = pair.hosts[B].memory.alloc(64);
    let rkey = RKey(0x4201);
    let bind = BindWindow {
        window: RKey(0x4200),
        rkey,
        region: KEY,
        addr: sge.addr,
        len: 64,
        access: AccessFlags::REMOTE_WRITE,
    };
    let remote = RemoteAddress {
        addr: sge.addr,
        rkey,
    };
    pair.hosts[A].recv(1, 10);
    pair.hosts[B].recv(2, 10);
    pair.hosts[B].post_local(20, SendOp::BindWindow(bind));
    pair.hosts[B].send(21, b"bound");
    pair.run();
    pair.hosts[A].post(10, SendOp::Write(remote), b"through the window");
    pair.hosts[A].post(11, SendOp::SendWithInvalidate(rkey), b"done");
    pair.hosts[A].post(12, SendOp::Write(remote), b"too late");
    pair.run();
    check("window", &pair);
}

#[test]
fn an_xrc_message_and_a_read() {
    let mut pair = Pair::new(&Setup::default().xrc());
    pair.hosts[B].memory.share(Some(SRQN));
    pair.hosts[B].memory.post_shared(Some(SRQN), 20, 1000);
    let sge = pair.hosts[B].memory.store(&[3; 300]);
    let remote = pair.hosts[B].memory.offer(sge);
    pair.hosts[A].send(10, &[1; 300]);
    pair.hosts[A].post(11, SendOp::Read(remote), &[0; 300]);
    pair.run();
    check("xrc", &pair);
}

#[test]
fn a_read_that_is_not_allowed() {
    let (mut pair, remote) = offering(&Setup::default(), 100);
    pair.hosts[B].recv(20, 100);
    pair.hosts[A].send(10, b"good");
    pair.hosts[A].post(11, SendOp::Read(remote), &[0; 101]);
    pair.hosts[A].send(12, b"behind it");
    pair.run();
    check("read_refused", &pair);
}
