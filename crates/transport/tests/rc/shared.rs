//! Receives out of shared receive queues, and the two halves of an extended reliable connection.

use oarlock_transport::{
    Counter, Error, QpEvent, QpState, RcConfig, RcKind, RecvWr, SendOp, SendWr, VendorError,
    WcOpcode, WcStatus,
};
use oarlock_wire::base::TransportClass;
use oarlock_wire::{Opcode, Packet, Srqn, XrcEth};

use crate::forge;
use crate::pair::{A, B, Pair, SRQN, Setup, psn};

const SUCCESS: WcStatus = WcStatus::SUCCESS;
const FLUSHED: WcStatus = WcStatus::WR_FLUSH_ERR;

/// B receives into a shared queue, which exists.
fn shared() -> Pair {
    let mut pair = Pair::new(&Setup::default().shared());
    pair.hosts[B].memory.share(None);
    pair
}

/// A is an XRC initiator, B an XRC target; the queue that A's requests name exists.
fn xrc() -> Pair {
    let mut pair = Pair::new(&Setup::default().xrc());
    pair.hosts[B].memory.share(Some(SRQN));
    pair
}

#[test]
fn a_message_takes_one_buffer_of_the_shared_queue_whatever_its_packets() {
    let mut pair = shared();
    let first = pair.hosts[B].memory.post_shared(None, 20, 1000);
    let second = pair.hosts[B].memory.post_shared(None, 21, 1000);
    let data: Vec<u8> = (0..700u32).map(|n| n as u8).collect();
    pair.hosts[A].post(10, SendOp::Send, &data);
    pair.hosts[A].post(11, SendOp::SendWithImm(5), b"short");
    pair.run();
    assert_eq!(pair.hosts[B].outcomes(), [(20, SUCCESS), (21, SUCCESS)]);
    assert_eq!(pair.hosts[B].memory.load(first, 700), data);
    assert_eq!(pair.hosts[B].memory.load(second, 5), b"short");
    assert_eq!(pair.hosts[B].completions[1].imm, Some(5));
    assert_eq!(pair.hosts[B].completions[0].srqn, None);
    assert_eq!(pair.hosts[B].memory.shared(None), 0);
}

#[test]
fn an_empty_shared_queue_is_a_receiver_that_is_not_ready() {
    let mut pair = shared();
    let target = pair.hosts[B].memory.alloc(300);
    let remote = pair.hosts[B].memory.offer(target);
    pair.hosts[A].post(10, SendOp::WriteWithImm(remote, 7), &[1; 300]);
    pair.hosts[A].post(11, SendOp::Send, &[2; 300]);
    pair.run_until(oarlock_wire::Time::from_nanos(1_000_000));
    assert!(pair.hosts[B].count(Counter::RnrNaksSent) > 0);
    pair.hosts[B].memory.post_shared(None, 20, 300);
    pair.run_until(oarlock_wire::Time::from_nanos(3_000_000));
    assert_eq!(pair.hosts[B].outcomes(), [(20, SUCCESS)]);
    assert_eq!(
        pair.hosts[B].completions[0].opcode,
        WcOpcode::RECV_RDMA_WITH_IMM
    );
    pair.hosts[B].memory.post_shared(None, 21, 300);
    pair.run();
    assert_eq!(pair.hosts[B].outcomes(), [(20, SUCCESS), (21, SUCCESS)]);
    assert_eq!(pair.hosts[A].outcomes(), [(10, SUCCESS), (11, SUCCESS)]);
}

/// The buffer is taken by the first packet and kept, however often the others are lost.
#[test]
fn a_buffer_is_held_across_repetitions() {
    let mut pair = shared().lose(&[1, 4]);
    pair.hosts[B].memory.post_shared(None, 20, 1000);
    pair.hosts[A].post(10, SendOp::Send, &[3; 700]);
    pair.run();
    assert_eq!(pair.hosts[B].outcomes(), [(20, SUCCESS)]);
    assert_eq!(pair.hosts[B].memory.shared(None), 0);
}

/// Whatever ends the connection in the middle of a message: the buffer held is flushed, others stay with their queue, and
/// the program learns that no more are taken.
#[test]
fn a_held_buffer_is_flushed_and_the_last_wqe_reached() {
    let ends: [fn(&mut Pair); 3] = [
        |pair| pair.hosts[B].modify(QpState::Error),
        |pair| pair.hosts[B].rc.fail(VendorError::FLUSHED_BY_DEVICE),
        |pair| {
            forge::request(
                pair,
                &forge::header(B, Opcode::RC_SEND_FIRST, 0x101),
                &[0; 256],
            )
        },
    ];
    let causes = [
        VendorError::FLUSHED_BY_PROGRAM,
        VendorError::FLUSHED_BY_DEVICE,
        VendorError::OPCODE_SEQUENCE,
    ];
    for (end, cause) in ends.into_iter().zip(causes) {
        let mut pair = shared();
        pair.hosts[B].memory.post_shared(None, 20, 1000);
        pair.hosts[B].memory.post_shared(None, 21, 1000);
        forge::request(
            &mut pair,
            &forge::header(B, Opcode::RC_SEND_FIRST, 0x100),
            &[0; 256],
        );
        end(&mut pair);
        pair.drain_both();
        assert_eq!(pair.hosts[B].outcomes(), [(20, FLUSHED)]);
        assert_eq!(pair.hosts[B].completions[0].vendor_err, cause);
        assert_eq!(pair.hosts[B].memory.shared(None), 1);
        assert_eq!(pair.hosts[B].events.last(), Some(&QpEvent::LastWqeReached));
        // Once.
        pair.hosts[B].modify(QpState::Error);
        pair.drain_both();
        let events = &pair.hosts[B].events;
        let count = events
            .iter()
            .filter(|event| **event == QpEvent::LastWqeReached);
        assert_eq!(count.count(), 1);
    }
}

#[test]
fn a_held_buffer_that_is_flushed_tells_its_queue() {
    let mut pair = xrc();
    pair.hosts[B].memory.post_shared(Some(SRQN), 20, 1000);
    pair.hosts[A].send(10, &[0; 300]);
    let first = forge::sent(&mut pair, A).remove(0);
    forge::deliver(&mut pair, B, &first);
    pair.hosts[B].modify(QpState::Error);
    pair.drain_both();
    let completion = pair.hosts[B].completions[0];
    assert_eq!((completion.wr_id, completion.srqn), (20, Some(SRQN)));
    assert_eq!(completion.status, FLUSHED);
}

#[test]
fn a_queue_pair_with_receives_of_its_own_reaches_no_last_wqe() {
    let mut pair = Pair::new(&Setup::default());
    pair.hosts[B].modify(QpState::Error);
    pair.drain_both();
    assert_eq!(pair.hosts[B].events, []);
}

#[test]
fn a_message_longer_than_a_shared_buffer_fails_that_buffer_alone() {
    let mut pair = shared();
    pair.hosts[B].memory.post_shared(None, 20, 300);
    pair.hosts[B].memory.post_shared(None, 21, 300);
    pair.hosts[A].post(10, SendOp::Send, &[1; 301]);
    pair.run();
    assert_eq!(pair.hosts[B].outcomes(), [(20, WcStatus::LOC_LEN_ERR)]);
    assert_eq!(
        pair.hosts[B].completions[0].vendor_err,
        VendorError::MESSAGE_TOO_LONG
    );
    assert_eq!(pair.hosts[A].outcomes(), [(10, WcStatus::REM_INV_REQ_ERR)]);
    assert_eq!(pair.hosts[B].memory.shared(None), 1);
}

#[test]
fn nothing_is_posted_where_no_receive_queue_is() {
    let config = RcConfig {
        max_recv_wr: 5,
        ..RcConfig::default()
    };
    let of = |kind, shared_receives| {
        let mut rc = oarlock_transport::Rc::new(RcConfig {
            kind,
            shared_receives,
            ..config
        });
        crate::pair::to_state(&mut rc, &Setup::default().attr(A), QpState::Rts);
        rc
    };
    let cases = [
        (
            of(RcKind::Rc, true),
            "its buffers come from a shared receive queue",
        ),
        (
            of(RcKind::XrcTarget, false),
            "its buffers come from a shared receive queue",
        ),
        (
            of(RcKind::XrcInitiator, false),
            "an XRC initiator only sends",
        ),
    ];
    for (mut rc, reason) in cases {
        assert_eq!(
            rc.post_recv(&RecvWr::default()),
            Err(Error::NoReceiveQueue { reason })
        );
    }
    let error = of(RcKind::XrcTarget, false)
        .post_send(&SendWr::default())
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "SEND is no operation of XRC_RECV queue pairs"
    );
    let mut initiator = of(RcKind::XrcInitiator, false);
    let error = initiator.post_send(&SendWr::default()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "SEND on an XRC queue pair needs the number of a shared receive queue"
    );
}

#[test]
fn xrc_messages_go_to_the_queue_they_name_and_say_so() {
    let other = Srqn::truncate(0x78);
    let mut pair = xrc();
    pair.hosts[B].memory.share(Some(other));
    let a = pair.hosts[B].memory.post_shared(Some(SRQN), 20, 1000);
    let b = pair.hosts[B].memory.post_shared(Some(other), 21, 1000);
    pair.hosts[A].post(10, SendOp::Send, &[1; 600]);
    let sge = pair.hosts[A].memory.store(&[2; 600]);
    let wr = SendWr {
        wr_id: 11,
        data: oarlock_transport::SendData::Sges(&[sge]),
        xrc_srqn: Some(other),
        ..SendWr::default()
    };
    pair.hosts[A].rc.post_send(&wr).unwrap();
    pair.run();
    assert_eq!(pair.hosts[B].outcomes(), [(20, SUCCESS), (21, SUCCESS)]);
    let numbers = [0, 1].map(|n| pair.hosts[B].completions[n].srqn);
    assert_eq!(numbers, [Some(SRQN), Some(other)]);
    assert_eq!(pair.hosts[B].memory.load(a, 600), [1; 600]);
    assert_eq!(pair.hosts[B].memory.load(b, 600), [2; 600]);
    assert_eq!(pair.hosts[A].outcomes(), [(10, SUCCESS), (11, SUCCESS)]);
}

/// Every operation works over XRC; requests name the queue, responses do not, and the queue is selected before memory is
/// looked at, also when a READ is carried out later.
#[test]
fn every_operation_works_over_xrc() {
    let mut pair = xrc();
    let word = pair.hosts[B].memory.store(&5u64.to_ne_bytes());
    let remote = pair.hosts[B].memory.offer(word);
    let window = pair.hosts[B].memory.alloc(8);
    let window = pair.hosts[B].memory.offer(window);
    for n in 20..23 {
        pair.hosts[B].memory.post_shared(Some(SRQN), n, 64);
    }
    let ops = [
        SendOp::Send,
        SendOp::Write(remote),
        SendOp::WriteWithImm(remote, 9),
        SendOp::Read(remote),
        SendOp::FetchAdd { remote, add: 1 },
        SendOp::CompareSwap {
            remote,
            compare: 6,
            swap: 7,
        },
        SendOp::SendWithInvalidate(window.rkey),
    ];
    for (n, op) in (10..).zip(ops) {
        pair.hosts[A].post(n, op, &5u64.to_ne_bytes());
    }
    pair.hosts[A].memory.offer(word);
    pair.hosts[A].post_local(17, SendOp::LocalInvalidate(oarlock_wire::RKey(0x100)));
    let sent = forge::sent(&mut pair, A);
    for bytes in &sent {
        let packet = Packet::parse(bytes).unwrap();
        assert_eq!(packet.bth.opcode.transport(), TransportClass::Xrc);
        assert_eq!(packet.xrceth, Some(XrcEth { srqn: SRQN }));
        forge::deliver(&mut pair, B, bytes);
    }
    assert_eq!(sent.len(), 7);
    pair.hosts[B].memory.selected = None;
    for bytes in forge::sent(&mut pair, B) {
        let packet = Packet::parse(&bytes).unwrap();
        assert_eq!(
            (packet.bth.opcode.transport(), packet.xrceth),
            (TransportClass::Xrc, None)
        );
        forge::deliver(&mut pair, A, &bytes);
    }
    assert_eq!(pair.hosts[B].memory.selected, Some(SRQN), "for the READ");
    pair.run();
    let expected: Vec<_> = (10..18).map(|n| (n, SUCCESS)).collect();
    assert_eq!(pair.hosts[A].outcomes(), expected);
    assert_eq!(pair.hosts[B].memory.load(word, 8), 7u64.to_ne_bytes());
    assert_eq!(pair.hosts[B].completions.len(), 3);
    assert!(
        pair.hosts[B]
            .completions
            .iter()
            .all(|c| c.srqn == Some(SRQN))
    );
}

#[test]
fn a_queue_that_is_not_there_is_an_invalid_request() {
    let ops = [SendOp::Send, SendOp::Read(Default::default())];
    for op in ops {
        let mut pair = Pair::new(&Setup::default().xrc());
        pair.hosts[A].post(10, op, b"x");
        pair.run();
        assert_eq!(pair.hosts[A].outcomes(), [(10, WcStatus::REM_INV_REQ_ERR)]);
        assert!(pair.hosts[B].events.contains(&QpEvent::RequestError));
        assert_eq!(pair.hosts[B].completions, []);
    }
    // A READ that is to be carried out when its queue has gone.
    let mut pair = xrc();
    let source = pair.hosts[B].memory.alloc(8);
    let remote = pair.hosts[B].memory.offer(source);
    pair.hosts[A].post(10, SendOp::Read(remote), &[0; 8]);
    let request = forge::sent(&mut pair, A);
    forge::deliver(&mut pair, B, &request[0]);
    pair.hosts[B].memory.unshare(SRQN);
    pair.run();
    assert_eq!(pair.hosts[A].outcomes(), [(10, WcStatus::REM_ACCESS_ERR)]);
}

#[test]
fn a_queue_pair_with_one_half_drops_what_is_for_the_other() {
    let mut pair = xrc();
    let as_xrc = |header: oarlock_wire::PacketHeader| oarlock_wire::PacketHeader {
        bth: oarlock_wire::Bth {
            opcode: header.bth.opcode.of(TransportClass::Xrc),
            ..header.bth
        },
        ..header
    };
    let send = as_xrc(forge::header(A, Opcode::RC_SEND_ONLY, 0x800));
    let send = send.with_xrceth(XrcEth { srqn: SRQN });
    forge::response(&mut pair, &send, b"x");
    assert_eq!(pair.hosts[A].count(Counter::DroppedNoResponder), 1);
    let ack = as_xrc(forge::header(B, Opcode::RC_ACKNOWLEDGE, 0x800)).with_aeth(forge::ack(1));
    forge::request(&mut pair, &ack, &[]);
    assert_eq!(pair.hosts[B].count(Counter::DroppedUnexpectedResponse), 1);
    // And packets of RC are those of another transport.
    forge::request(
        &mut pair,
        &forge::header(B, Opcode::RC_SEND_ONLY, 0x100),
        b"x",
    );
    assert_eq!(pair.hosts[B].count(Counter::DroppedWrongTransport), 1);
    assert_eq!(pair.hosts[A].rc.query().sq_psn, psn(0x100));
}

/// A packet in the middle of a message that names no queue: the buffer that the message has taken tells so.
#[test]
fn a_message_that_changes_to_a_queue_that_is_not_there_flushes_its_buffer() {
    let mut pair = xrc();
    pair.hosts[B].memory.post_shared(Some(SRQN), 20, 1000);
    pair.hosts[A].send(10, &[0; 600]);
    let packets = forge::sent(&mut pair, A);
    forge::deliver(&mut pair, B, &packets[0]);
    let middle = Packet::parse(&packets[1]).unwrap();
    let elsewhere = XrcEth {
        srqn: Srqn::truncate(0x99),
    };
    let forged = middle.header().with_xrceth(elsewhere);
    forge::request(&mut pair, &forged, middle.payload);
    pair.run();
    assert_eq!(pair.hosts[B].outcomes(), [(20, FLUSHED)]);
    let rule = pair.hosts[B].completions[0].vendor_err;
    assert_eq!(rule, VendorError::NO_SHARED_QUEUE);
    assert!(pair.hosts[B].events.contains(&QpEvent::RequestError));
    assert_eq!(pair.hosts[A].outcomes(), [(10, WcStatus::REM_INV_REQ_ERR)]);
}
