//! Receive buffers from a shared receive queue.

use oarlock_transport::{
    AccessFlags, Counter, Error, QpEvent, QpState, RecvWr, SendOp, Sge, Srq, SrqConfig, UcConfig,
    VendorError, WcOpcode, WcStatus,
};
use oarlock_wire::Time;

use crate::pair::{A, B, Host, MTU, Pair, pattern};

const OK: WcStatus = WcStatus::SUCCESS;

fn config() -> UcConfig {
    UcConfig {
        shared_receives: true,
        ..UcConfig::default()
    }
}

/// Gives the host's queue a buffer.
fn offer(host: &mut Host, wr_id: u64, len: usize) -> Sge {
    let sge = host.memory.alloc(len);
    let srq = host
        .memory
        .srq
        .get_or_insert_with(|| Srq::new(SrqConfig::default()));
    srq.post_recv(&RecvWr {
        wr_id,
        sges: &[sge],
    })
    .expect("room for a buffer");
    sge
}

fn pair() -> Pair {
    let mut pair = Pair::new();
    pair.hosts[B] = Host::new(B, config(), QpState::Rts);
    pair
}

#[test]
fn messages_take_the_buffers_of_the_shared_queue_in_order() {
    let mut pair = pair();
    let buffers = [20, 21, 22].map(|n| offer(&mut pair.hosts[B], n, 3 * MTU));
    let (_, remote) = pair.hosts[B].memory.offer(8, AccessFlags::REMOTE_WRITE);
    pair.hosts[A].send(1, &pattern(1, 2 * MTU + 1));
    pair.hosts[A].op(2, SendOp::WriteWithImm(remote, 5), &[1; 8]);
    pair.hosts[A].send(3, b"third");
    pair.hosts[A].send(4, b"no buffer");
    pair.run();
    let b = &pair.hosts[B];
    assert_eq!(b.outcomes(), [(20, OK), (21, OK), (22, OK)]);
    assert_eq!(b.completions[1].opcode, WcOpcode::RECV_RDMA_WITH_IMM);
    assert_eq!(
        b.memory.load(buffers[0], 2 * MTU + 1),
        pattern(1, 2 * MTU + 1)
    );
    assert_eq!(b.memory.load(buffers[2], 5), b"third");
    assert_eq!(b.dropped(), [("dropped_receiver_not_ready", 1)]);
}

#[test]
fn a_queue_pair_with_a_shared_queue_has_no_receive_queue_of_its_own() {
    let mut host = Host::new(B, config(), QpState::Rts);
    let answer = host.uc.post_recv(&RecvWr::default());
    assert!(
        matches!(answer, Err(Error::NoReceiveQueue { .. })),
        "{answer:?}"
    );
    // And without the queue there is nothing to receive into.
    let mut peer = Host::new(A, UcConfig::default(), QpState::Rts);
    peer.send(1, b"x");
    host.take(&peer.packets(Time::ZERO)[0]);
    assert_eq!(host.dropped(), [("dropped_receiver_not_ready", 1)]);
}

/// IBA Vol. 1 ch. 9, class E: a buffer of a shared queue cannot go back, so it completes with an error. The queue pair goes on.
#[test]
fn a_lost_packet_costs_the_buffer_that_was_taken() {
    for (lost, used) in [(0, false), (1, true), (2, true)] {
        let mut pair = pair().lose([lost]);
        offer(&mut pair.hosts[B], 20, 3 * MTU);
        offer(&mut pair.hosts[B], 21, 3 * MTU);
        pair.hosts[A].send(1, &pattern(1, 3 * MTU));
        pair.hosts[A].send(2, b"next");
        pair.run();
        let b = &pair.hosts[B];
        if used {
            let error = WcStatus::REM_INV_REQ_ERR;
            assert_eq!(b.outcomes(), [(20, error), (21, OK)]);
            assert_eq!(b.completions[0].vendor_err, VendorError::MESSAGE_INCOMPLETE);
        } else {
            assert_eq!(b.outcomes(), [(20, OK)]);
        }
        assert_eq!(b.uc.state(), QpState::Rts);
    }
}

#[test]
fn a_message_that_is_too_long_costs_its_buffer() {
    for len in [11, 2 * MTU] {
        let mut pair = pair();
        offer(&mut pair.hosts[B], 20, if len == 11 { 10 } else { MTU + 9 });
        offer(&mut pair.hosts[B], 21, 10);
        pair.hosts[A].send(1, &pattern(1, len));
        pair.hosts[A].send(2, b"fits");
        pair.run();
        let b = &pair.hosts[B];
        let expected = [(20, WcStatus::LOC_LEN_ERR), (21, OK)];
        assert_eq!(b.outcomes(), expected);
        assert_eq!(b.completions[0].vendor_err, VendorError::MESSAGE_TOO_LONG);
        assert_eq!(b.count(Counter::ReceiveLengthErrors), 1);
        assert_eq!(b.uc.state(), QpState::Rts);
    }
}

/// A WRITE with immediate whose bytes could not be placed has touched no buffer: the one taken serves the next message.
#[test]
fn an_untouched_buffer_is_kept_for_the_next_message() {
    let mut pair = pair();
    let buffer = offer(&mut pair.hosts[B], 20, 10);
    let (sge, remote) = pair.hosts[B].memory.offer(8, AccessFlags::REMOTE_WRITE);
    pair.hosts[B].memory.vanish(sge);
    pair.hosts[A].op(1, SendOp::WriteWithImm(remote, 5), &[1; 8]);
    pair.hosts[A].send(2, b"mine");
    pair.run();
    let b = &pair.hosts[B];
    assert_eq!(b.outcomes(), [(20, OK)]);
    assert_eq!(b.memory.load(buffer, 4), b"mine");
    assert_eq!(b.dropped(), [("dropped_not_placed", 1)]);
}

/// What is held is flushed, what waits in the shared queue stays there; the event says that no more will be taken.
#[test]
fn in_error_the_held_buffer_is_flushed_and_the_last_one_announced() {
    let mut pair = pair();
    offer(&mut pair.hosts[B], 20, 3 * MTU);
    offer(&mut pair.hosts[B], 21, 3 * MTU);
    pair.hosts[A].send(1, &pattern(1, 3 * MTU));
    let packets = pair.hosts[A].packets(Time::ZERO);
    pair.hosts[B].take(&packets[0]);
    pair.hosts[B].modify(QpState::Error);
    pair.hosts[B].modify(QpState::Error);
    pair.hosts[B].collect();
    let b = &mut pair.hosts[B];
    assert_eq!(b.outcomes(), [(20, WcStatus::WR_FLUSH_ERR)]);
    assert_eq!(b.events, [QpEvent::CommEst, QpEvent::LastWqeReached]);
    assert_eq!(b.memory.srq.as_ref().unwrap().len(), 1);
    // In a new life the next message takes the next buffer.
    b.modify(QpState::Reset);
    crate::pair::to_state(&mut b.uc, &crate::pair::attr(B), QpState::Rts);
    b.take(&packets[0]);
    assert!(b.memory.srq.as_ref().unwrap().is_empty());
}

#[test]
fn reset_forgets_the_held_buffer() {
    let mut pair = pair();
    offer(&mut pair.hosts[B], 20, 3 * MTU);
    offer(&mut pair.hosts[B], 21, 10);
    pair.hosts[A].send(1, &pattern(1, 3 * MTU));
    let packets = pair.hosts[A].packets(Time::ZERO);
    pair.hosts[B].take(&packets[0]);
    pair.hosts[B].modify(QpState::Reset);
    crate::pair::to_state(&mut pair.hosts[B].uc, &crate::pair::attr(B), QpState::Rts);
    pair.hosts[A].send(2, b"new life");
    pair.run();
    assert_eq!(pair.hosts[B].outcomes(), [(21, OK)]);
}

#[test]
fn a_shared_buffer_that_cannot_be_written_fails_and_ends_the_queue_pair() {
    let mut pair = pair();
    let gone = offer(&mut pair.hosts[B], 20, 10);
    pair.hosts[B].memory.vanish(gone);
    pair.hosts[A].send(1, b"x");
    pair.run();
    let b = &pair.hosts[B];
    assert_eq!(b.outcomes(), [(20, WcStatus::LOC_PROT_ERR)]);
    assert_eq!(b.uc.state(), QpState::Error);
    assert_eq!(b.events, [QpEvent::CommEst, QpEvent::LastWqeReached]);
}
