//! What a lost, repeated or overtaken packet costs: its message, and no other.

use oarlock_transport::{AccessFlags, Counter, SendOp, UcConfig, WcStatus};
use oarlock_wire::Time;

use crate::pair::{A, B, Host, MTU, Pair, attr, pattern};
use oarlock_transport::QpState;

const OK: WcStatus = WcStatus::SUCCESS;

/// Three messages of three packets; whichever packet is lost, exactly its message is.
#[test]
fn one_lost_packet_costs_one_message_and_its_buffer_takes_the_next() {
    for lost in 0..9 {
        let mut pair = Pair::new().lose([lost]);
        let buffers = [20, 21, 22].map(|n| pair.hosts[B].recv(n, 3 * MTU));
        let messages: Vec<Vec<u8>> = (0..3).map(|n| pattern(n, 2 * MTU + 10)).collect();
        for (n, message) in messages.iter().enumerate() {
            pair.hosts[A].send(10 + n as u64, message);
        }
        pair.run();
        assert_eq!(pair.hosts[A].outcomes(), [(10, OK), (11, OK), (12, OK)]);
        assert_eq!(
            pair.hosts[B].outcomes(),
            [(20, OK), (21, OK)],
            "lost {lost}"
        );
        let kept = (0..3).filter(|n| *n != lost / 3);
        for (buffer, n) in buffers.iter().zip(kept) {
            let len = messages[n].len();
            assert_eq!(pair.hosts[B].memory.load(*buffer, len), messages[n]);
        }
        let b = &pair.hosts[B];
        let [first, middle, last] = [0, 1, 2].map(|part| lost % 3 == part);
        // Behind a lost first packet two are dropped, behind a lost middle one.
        let dropped = if first { 2 } else { u64::from(middle) };
        assert_eq!(b.count(Counter::DroppedOutOfOrder), dropped, "lost {lost}");
        // Part of the message was there unless the first packet was lost. Of the last message's last packet nobody learns.
        let noticed = !(last && lost == 8);
        assert_eq!(
            b.count(Counter::MessagesAbandoned),
            u64::from(!first && noticed)
        );
        assert_eq!(b.count(Counter::SequenceGaps), u64::from(noticed));
        assert_eq!(b.events.len(), 1, "established, and nothing else");
    }
}

#[test]
fn a_whole_lost_message_is_a_gap_and_no_more() {
    let mut pair = Pair::new().lose([0, 1]);
    pair.hosts[B].recv(20, MTU);
    pair.hosts[A].send(10, &pattern(1, 2 * MTU));
    pair.hosts[A].send(11, b"second");
    pair.run();
    assert_eq!(pair.hosts[B].outcomes(), [(20, OK)]);
    assert_eq!(pair.hosts[B].count(Counter::SequenceGaps), 1);
    assert_eq!(pair.hosts[B].dropped(), []);
}

/// Of a WRITE that loses a packet the beginning is placed, and nothing behind the gap.
#[test]
fn a_write_stops_at_its_gap() {
    for lost in 0..4 {
        let mut pair = Pair::new().lose([lost]);
        let (sge, remote) = pair.hosts[B]
            .memory
            .offer(4 * MTU, AccessFlags::REMOTE_WRITE);
        pair.hosts[B].recv(20, 0);
        let data = pattern(9, 4 * MTU);
        pair.hosts[A].op(10, SendOp::WriteWithImm(remote, 1), &data);
        pair.run();
        assert_eq!(pair.hosts[B].outcomes(), [], "lost {lost}: nobody is told");
        let placed = pair.hosts[B].memory.load(sge, 4 * MTU);
        assert_eq!(placed[..lost * MTU], data[..lost * MTU]);
        assert!(placed[lost * MTU..].iter().all(|byte| *byte == 0xEE));
        pair.hosts[A].op(11, SendOp::WriteWithImm(remote, 2), &data);
        pair.run();
        assert_eq!(pair.hosts[B].outcomes(), [(20, OK)]);
        assert_eq!(pair.hosts[B].memory.load(sge, 4 * MTU), data);
    }
}

/// Two messages of two packets as A sends them.
fn four_packets() -> Vec<Vec<u8>> {
    let mut a = Host::new(A, UcConfig::default(), QpState::Rts);
    a.send(1, &pattern(1, MTU + 1));
    a.send(2, &pattern(2, MTU + 1));
    let packets = a.packets(Time::ZERO);
    assert_eq!(packets.len(), 4);
    packets
}

fn receiver() -> Host {
    let mut b = Host::new(B, UcConfig::default(), QpState::Rts);
    for n in 0..4 {
        b.recv(20 + n, 2 * MTU);
    }
    b
}

#[test]
fn a_repeated_packet_is_dropped_and_disturbs_nothing() {
    let packets = four_packets();
    for repeated in 0..4 {
        for at in repeated + 1..=4 {
            let mut b = receiver();
            for (n, packet) in packets.iter().enumerate() {
                if n == at {
                    b.take(&packets[repeated]);
                }
                b.take(packet);
            }
            if at == 4 {
                b.take(&packets[repeated]);
            }
            assert_eq!(
                b.outcomes(),
                [(20, OK), (21, OK)],
                "{repeated} again at {at}"
            );
            assert_eq!(b.count(Counter::DuplicateRequests), 1);
            assert_eq!(b.dropped(), []);
        }
    }
}

/// A message that was overtaken by a whole later one is lost: messages never arrive in a wrong order.
#[test]
fn what_was_overtaken_is_lost() {
    let packets = four_packets();
    let mut b = receiver();
    for n in [2, 3, 0, 1] {
        b.take(&packets[n]);
    }
    assert_eq!(b.outcomes(), [(20, OK)]);
    let (first, _) = (b.completions[0], ());
    assert_eq!(first.byte_len as usize, MTU + 1);
    assert_eq!(b.count(Counter::DuplicateRequests), 2);
    assert_eq!(b.uc.query().rq_psn, attr(A).sq_psn.add(4));

    // Within a message the order matters as well.
    let mut b = receiver();
    for n in [1, 0, 2, 3] {
        b.take(&packets[n]);
    }
    assert_eq!(b.outcomes(), [(20, OK)]);
    assert_eq!(b.count(Counter::DroppedOutOfOrder), 1);
    assert_eq!(b.count(Counter::DuplicateRequests), 1);
}

/// A peer that starts anew somewhere else is understood, unless it is right behind where it was.
#[test]
fn a_message_may_begin_at_any_psn_that_is_not_just_behind() {
    use oarlock_wire::{Bth, Opcode, PacketHeader, base::TransportClass};
    let expected = attr(B).rq_psn;
    let places = [
        (expected, true),
        (expected.add(1), true),
        (expected.add(1 << 22), true),
        (expected.add(1 << 23), true),
        (expected.sub(1), false),
        (expected.sub(1 << 12), false),
        (expected.sub((1 << 12) + 1), true),
        (expected.sub(1 << 22), true),
    ];
    for (psn, is_taken) in places {
        let mut b = receiver();
        let opcode = Opcode::RC_SEND_ONLY.of(TransportClass::Uc);
        let bth = Bth::new(opcode, crate::pair::qpn(B), psn);
        let mut out = [0; 64];
        let len = PacketHeader::new(bth).emit_packet(b"hi", &mut out).unwrap();
        b.take(&out[..len]);
        assert_eq!(b.outcomes().len(), usize::from(is_taken), "{psn}");
        let next = if is_taken { psn.next() } else { expected };
        assert_eq!(b.uc.query().rq_psn, next);
    }
}

/// A sender whose memory vanished gives up in the middle; the peer drops what it has when the next message begins.
#[test]
fn a_message_that_its_sender_gave_up_is_dropped_by_the_receiver() {
    let mut pair = Pair::new();
    pair.hosts[B].recv(20, 4 * MTU);
    let first = pair.hosts[A].memory.store(&pattern(1, MTU));
    let gone = pair.hosts[A].memory.store(&pattern(2, MTU));
    pair.hosts[A].memory.vanish(gone);
    pair.hosts[A].post(oarlock_transport::SendWr {
        wr_id: 10,
        data: oarlock_transport::SendData::Sges(&[first, gone]),
        ..oarlock_transport::SendWr::default()
    });
    pair.run();
    assert_eq!(pair.hosts[A].outcomes(), [(10, WcStatus::LOC_PROT_ERR)]);
    assert_eq!(pair.hosts[A].uc.state(), QpState::Sqe);
    pair.hosts[A].modify(QpState::Rts);
    pair.hosts[A].send(11, b"again");
    pair.run();
    assert_eq!(pair.hosts[B].outcomes(), [(20, OK)]);
    assert_eq!(pair.hosts[B].completions[0].byte_len, 5);
    let b = &pair.hosts[B];
    assert_eq!(b.count(Counter::MessagesAbandoned), 1);
    assert_eq!(b.count(Counter::SequenceGaps), 0);
}
