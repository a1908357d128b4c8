//! Requests that arrive twice: executed once, answered as often as asked.

use oarlock_transport::{Counter, QpState, SendOp, WcStatus};
use oarlock_wire::{NakCode, Opcode, Packet, Syndrome};

use crate::forge::{self, atomic_eth, header, outline, reth};
use crate::pair::{A, B, Pair, Setup, psn};

fn read_at(at: u32, remote: oarlock_transport::RemoteAddress, offset: u64, len: u32) -> Vec<u8> {
    let reth = reth(remote.rkey, remote.addr + offset, len);
    forge::bytes(
        &header(B, Opcode::RC_RDMA_READ_REQUEST, at).with_reth(reth),
        &[],
    )
}

/// A pair whose B offers 1024 bytes: 0, 1, 2, ...
fn offering(rd_atomic: u8) -> (Pair, oarlock_transport::RemoteAddress) {
    let mut pair = Pair::new(&Setup {
        rd_atomic,
        ..Setup::default()
    });
    let bytes: Vec<u8> = (0..1024u32).map(|n| (n / 4) as u8).collect();
    let sge = pair.hosts[B].memory.store(&bytes);
    let remote = pair.hosts[B].memory.offer(sge);
    (pair, remote)
}

#[test]
fn an_atomic_is_executed_once_and_answered_from_what_was_kept() {
    let (mut pair, remote) = offering(2);
    let add = |at| {
        let header = header(B, Opcode::RC_FETCH_ADD, at);
        forge::bytes(
            &header.with_atomic_eth(atomic_eth(remote.rkey, remote.addr)),
            &[],
        )
    };
    let mut first = Vec::new();
    for at in 0x100..0x103 {
        forge::deliver(&mut pair, B, &add(at));
        first.extend(forge::sent(&mut pair, B));
    }
    assert_eq!(pair.hosts[B].memory.atomics, 3);
    // The last two are kept, the one before is not.
    for at in 0x100..0x103 {
        forge::deliver(&mut pair, B, &add(at));
    }
    let again = forge::sent(&mut pair, B);
    assert_eq!(
        outline(&again),
        [0x101, 0x102].map(|at| (Opcode::RC_ATOMIC_ACKNOWLEDGE, at))
    );
    let original = |bytes: &Vec<u8>| Packet::parse(bytes).unwrap().atomic_ack_eth;
    assert_eq!(original(&again[0]), original(&first[1]));
    assert_eq!(original(&again[1]), original(&first[2]));
    assert_eq!(pair.hosts[B].memory.atomics, 3);
    assert_eq!(pair.hosts[B].count(Counter::DuplicateAtomics), 2);
    assert_eq!(pair.hosts[B].count(Counter::DroppedLostAtomic), 1);
    assert_eq!(pair.hosts[B].count(Counter::AtomicsReceived), 3);
}

#[test]
fn a_read_that_comes_again_is_carried_out_again() {
    let (mut pair, remote) = offering(2);
    forge::deliver(&mut pair, B, &read_at(0x100, remote, 0, 700));
    let first = forge::sent(&mut pair, B);
    assert_eq!(first.len(), 3);
    // From its middle on, as one asks whose second packet was lost.
    forge::deliver(&mut pair, B, &read_at(0x101, remote, 256, 444));
    let again = forge::sent(&mut pair, B);
    let expected = [
        (Opcode::RC_RDMA_READ_RESPONSE_FIRST, 0x101),
        (Opcode::RC_RDMA_READ_RESPONSE_LAST, 0x102),
    ];
    assert_eq!(outline(&again), expected);
    let payload = |bytes: &Vec<u8>| Packet::parse(bytes).unwrap().payload.to_vec();
    assert_eq!(payload(&again[0]), payload(&first[1]));
    assert_eq!(payload(&again[1]), payload(&first[2]));
    assert_eq!(pair.hosts[B].count(Counter::ReadsReceived), 1);
    assert_eq!(pair.hosts[B].count(Counter::DuplicateReads), 1);
    assert_eq!(pair.hosts[B].rc.query().rq_psn, psn(0x103));
}

/// Asked again while it is being answered: from where it was asked, in its old place, and no second answer.
#[test]
fn a_read_that_is_asked_again_while_it_is_answered_starts_from_there() {
    let (mut pair, remote) = offering(2);
    forge::deliver(&mut pair, B, &read_at(0x100, remote, 0, 1024));
    let send = header(B, Opcode::RC_SEND_ONLY, 0x104);
    pair.hosts[B].recv(20, 10);
    forge::request(&mut pair, &send, b"x");
    let now = pair.clock.now();
    let mut out = [0; oarlock_transport::MAX_PACKET_LEN];
    for _ in 0..3 {
        let host = &mut pair.hosts[B];
        assert!(
            host.rc
                .poll_transmit(now, &mut host.memory, &mut out)
                .is_some()
        );
    }
    forge::deliver(&mut pair, B, &read_at(0x101, remote, 256, 768));
    let rest = forge::sent(&mut pair, B);
    let expected = [
        (Opcode::RC_RDMA_READ_RESPONSE_FIRST, 0x101),
        (Opcode::RC_RDMA_READ_RESPONSE_MIDDLE, 0x102),
        (Opcode::RC_RDMA_READ_RESPONSE_LAST, 0x103),
        (Opcode::RC_ACKNOWLEDGE, 0x104),
    ];
    assert_eq!(outline(&rest), expected);
}

/// A request that the network has kept arrives once more when the peer has long given its key back: no fault of anybody.
#[test]
fn a_repeated_read_whose_key_is_gone_ends_nothing() {
    let (mut pair, remote) = offering(2);
    forge::deliver(&mut pair, B, &read_at(0x100, remote, 0, 300));
    let _ = forge::sent(&mut pair, B);
    oarlock_transport::Memory::invalidate(&mut pair.hosts[B].memory, remote.rkey).unwrap();
    pair.hosts[B].recv(20, 10);
    forge::deliver(&mut pair, B, &read_at(0x100, remote, 0, 300));
    forge::request(&mut pair, &header(B, Opcode::RC_SEND_ONLY, 0x102), b"x");
    let answers = forge::sent(&mut pair, B);
    let expected = [
        (Opcode::RC_ACKNOWLEDGE, 0x100),
        (Opcode::RC_ACKNOWLEDGE, 0x102),
    ];
    assert_eq!(outline(&answers), expected);
    let syndrome = Packet::parse(&answers[0]).unwrap().aeth.unwrap().syndrome;
    assert_eq!(syndrome, Syndrome::Nak(NakCode::REMOTE_ACCESS_ERROR));
    pair.drain_both();
    assert_eq!(pair.hosts[B].rc.state(), QpState::Rts);
    assert_eq!(pair.hosts[B].outcomes(), [(20, WcStatus::SUCCESS)]);
    assert_eq!(pair.hosts[B].events, [oarlock_transport::QpEvent::CommEst]);
}

#[test]
fn repetitions_of_reads_are_bounded_and_cost_no_resource_of_new_ones() {
    let (mut pair, remote) = offering(2);
    for n in 0..6 {
        forge::deliver(&mut pair, B, &read_at(0x100 + n, remote, 0, 8));
        let _ = forge::sent(&mut pair, B);
    }
    for n in 0..6 {
        forge::deliver(&mut pair, B, &read_at(0x100 + n, remote, 0, 8));
    }
    assert_eq!(pair.hosts[B].count(Counter::DroppedTooManyReads), 4);
    // Two new ones are still welcome.
    for n in 6..8 {
        forge::deliver(&mut pair, B, &read_at(0x100 + n, remote, 0, 8));
    }
    assert_eq!(pair.hosts[B].rc.state(), QpState::Rts);
    assert_eq!(forge::sent(&mut pair, B).len(), 4);
}

#[test]
fn a_repetition_that_was_never_asked_for_is_dropped() {
    let (mut pair, remote) = offering(2);
    forge::deliver(&mut pair, B, &read_at(0x100, remote, 0, 300));
    let _ = forge::sent(&mut pair, B);
    // Longer than all that came since, and from before the first request: the peer cannot have asked so.
    forge::deliver(&mut pair, B, &read_at(0x100, remote, 0, 600));
    assert_eq!(forge::sent(&mut pair, B).len(), 0);
    assert_eq!(pair.hosts[B].count(Counter::DroppedInvalidRequest), 1);
    let mut reserved = read_at(0x100, remote, 0, 1);
    reserved[0] = 0x1F;
    forge::deliver(&mut pair, B, &reserved);
    assert_eq!(forge::sent(&mut pair, B).len(), 0);
    assert_eq!(pair.hosts[B].rc.state(), QpState::Rts);
}

/// An acknowledgement of a repetition does not jump over a READ whose data the peer may still miss.
#[test]
fn a_repeated_send_before_a_read_is_acknowledged_by_itself() {
    let (mut pair, remote) = offering(2);
    pair.hosts[B].recv(20, 10);
    pair.hosts[B].recv(21, 10);
    let send = |at| header(B, Opcode::RC_SEND_ONLY, at);
    forge::request(&mut pair, &send(0x100), b"x");
    forge::deliver(&mut pair, B, &read_at(0x101, remote, 0, 300));
    forge::request(&mut pair, &send(0x103), b"y");
    let _ = forge::sent(&mut pair, B);
    forge::request(&mut pair, &send(0x100), b"x");
    assert_eq!(
        outline(&forge::sent(&mut pair, B)),
        [(Opcode::RC_ACKNOWLEDGE, 0x100)]
    );
    forge::request(&mut pair, &send(0x103), b"y");
    assert_eq!(
        outline(&forge::sent(&mut pair, B)),
        [(Opcode::RC_ACKNOWLEDGE, 0x103)]
    );
}

/// However a peer alternates: what waits to be sent is bounded, and what finds no room has not happened.
#[test]
fn responses_that_wait_are_bounded() {
    let (mut pair, remote) = offering(2);
    let send = |at| header(B, Opcode::RC_SEND_ONLY, at);
    let add = |at| {
        let header = header(B, Opcode::RC_FETCH_ADD, at);
        header.with_atomic_eth(atomic_eth(remote.rkey, remote.addr))
    };
    forge::request(&mut pair, &add(0x100), &[]);
    let _ = forge::sent(&mut pair, B);
    for n in 0..40 {
        pair.hosts[B].recv(n.into(), 10);
        // A gap, and what fills it: a NAK and an ACK, which are not merged.
        forge::request(&mut pair, &send(0x102 + n), b"x");
        forge::request(&mut pair, &send(0x101 + n), b"x");
    }
    let suppressed = pair.hosts[B].count(Counter::ResponsesSuppressed);
    assert!(suppressed > 0);
    // Neither a READ nor an atomic is executed, nor the old one answered again.
    forge::deliver(&mut pair, B, &read_at(0x129, remote, 0, 8));
    forge::request(&mut pair, &add(0x129), &[]);
    forge::request(&mut pair, &add(0x100), &[]);
    let now = pair.hosts[B].count(Counter::ResponsesSuppressed);
    assert_eq!(now, suppressed + 3);
    assert_eq!(pair.hosts[B].memory.atomics, 1);
    assert_eq!(pair.hosts[B].rc.query().rq_psn, psn(0x129));
    assert_eq!(forge::sent(&mut pair, B).len(), 16 + 2 * 2);
    forge::deliver(&mut pair, B, &read_at(0x129, remote, 0, 8));
    assert_eq!(forge::sent(&mut pair, B).len(), 1);
}

/// Acknowledgements that wait are merged into the one that says most, not into the one that came last.
#[test]
fn a_repetition_does_not_take_an_acknowledgement_back() {
    let (mut pair, remote) = offering(2);
    pair.hosts[B].recv(20, 10);
    pair.hosts[B].recv(21, 10);
    let send = |at| header(B, Opcode::RC_SEND_ONLY, at);
    forge::request(&mut pair, &send(0x100), b"x");
    forge::deliver(&mut pair, B, &read_at(0x101, remote, 0, 300));
    let _ = forge::sent(&mut pair, B);
    forge::request(&mut pair, &send(0x103), b"y");
    forge::request(&mut pair, &send(0x100), b"x");
    let answers = outline(&forge::sent(&mut pair, B));
    assert_eq!(answers, [(Opcode::RC_ACKNOWLEDGE, 0x103)]);
}

/// Between two packets of data a request leaves: neither direction starves the other.
#[test]
fn data_and_requests_take_turns() {
    let (mut pair, remote) = offering(2);
    forge::deliver(&mut pair, B, &read_at(0x100, remote, 0, 1024));
    for n in 0..3 {
        pair.hosts[B].send(n, b"own");
    }
    let kinds: Vec<_> = outline(&forge::sent(&mut pair, B))
        .iter()
        .map(|(opcode, _)| opcode.is_response())
        .collect();
    assert_eq!(kinds, [true, false, true, false, true, false, true]);
}

/// Ended by the program: what was to be read is read no more, and acknowledgements before it still leave.
#[test]
fn the_end_of_a_connection_stops_the_data_but_not_the_acknowledgements_before_them() {
    let (mut pair, remote) = offering(2);
    pair.hosts[B].recv(20, 10);
    pair.hosts[B].recv(21, 10);
    let send = |at| header(B, Opcode::RC_SEND_ONLY, at);
    forge::request(&mut pair, &send(0x100), b"x");
    forge::deliver(&mut pair, B, &read_at(0x101, remote, 0, 300));
    forge::request(&mut pair, &send(0x103), b"y");
    pair.hosts[B].modify(QpState::Error);
    assert_eq!(
        outline(&forge::sent(&mut pair, B)),
        [(Opcode::RC_ACKNOWLEDGE, 0x100)]
    );
    pair.drain_both();
    let success = WcStatus::SUCCESS;
    assert_eq!(pair.hosts[B].outcomes(), [(20, success), (21, success)]);
}

#[test]
fn a_lost_answer_to_an_atomic_is_given_again() {
    let (mut pair, remote) = offering(1);
    pair = pair.lose(&[1]);
    let before = pair.hosts[B].memory.atomics;
    let result = pair.hosts[A].post(10, SendOp::FetchAdd { remote, add: 3 }, &[0; 8]);
    pair.run();
    assert_eq!(pair.hosts[A].outcomes(), [(10, WcStatus::SUCCESS)]);
    assert_eq!(pair.hosts[B].memory.atomics, before + 1);
    assert_eq!(
        pair.hosts[A].memory.load(result, 8),
        [0, 0, 0, 0, 1, 1, 1, 1]
    );
}
