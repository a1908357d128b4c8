//! Messages from one queue pair to another on a network that loses nothing.

use oarlock_transport::{
    AccessFlags, BindWindow, Counter, RecvWr, SendData, SendOp, SendWr, Sge, UcConfig, WcOpcode,
    WcStatus,
};
use oarlock_wire::{LKey, Opcode, Packet, PacketHeader, Psn, RKey, Time};

use crate::pair::{A, B, Host, MTU, Pair, attr, pattern, qpn};
use oarlock_transport::QpState;
use oarlock_wire::base::TransportClass;

const LENGTHS: [usize; 9] = [
    0,
    1,
    3,
    MTU - 1,
    MTU,
    MTU + 1,
    2 * MTU,
    3 * MTU + 5,
    20 * MTU,
];

#[test]
fn sends_of_every_length_arrive_with_and_without_immediate() {
    let mut pair = Pair::new();
    for (n, len) in LENGTHS.into_iter().enumerate() {
        for op in [SendOp::Send, SendOp::SendWithImm(0xC0FF_EE00 + n as u32)] {
            let (before_a, before_b) = (
                pair.hosts[A].completions.len(),
                pair.hosts[B].completions.len(),
            );
            let sge = pair.hosts[B].recv(n as u64, len + 7);
            let data = pattern(n, len);
            pair.hosts[A].op(100 + n as u64, op, &data);
            pair.run();
            assert_eq!(pair.hosts[B].memory.load(sge, len), data);
            assert_eq!(
                pair.hosts[B].memory.load(sge, len + 7)[len..],
                [0xEE; 7],
                "nothing behind the message"
            );
            let [sent] = pair.hosts[A].completions[before_a..] else {
                panic!("one completion of the send");
            };
            assert_eq!(
                (sent.wr_id, sent.status, sent.opcode, sent.is_send),
                (100 + n as u64, WcStatus::SUCCESS, WcOpcode::SEND, true)
            );
            assert_eq!(sent.byte_len as usize, len);
            let [received] = pair.hosts[B].completions[before_b..] else {
                panic!("one completion of the receive");
            };
            assert_eq!(
                (received.wr_id, received.status, received.opcode),
                (n as u64, WcStatus::SUCCESS, WcOpcode::RECV)
            );
            assert_eq!(received.byte_len as usize, len);
            let imm = match op {
                SendOp::SendWithImm(imm) => Some(imm),
                _ => None,
            };
            assert_eq!((received.imm, received.is_send), (imm, false));
        }
    }
    assert_eq!(
        pair.hosts[B].count(Counter::SendsReceived),
        2 * LENGTHS.len() as u64
    );
    assert_eq!(pair.hosts[B].dropped(), []);
}

#[test]
fn writes_of_every_length_are_placed_and_only_an_immediate_tells() {
    let mut pair = Pair::new();
    for (n, len) in LENGTHS.into_iter().enumerate() {
        for with_imm in [false, true] {
            let before = pair.hosts[B].completions.len();
            let (sge, remote) = pair.hosts[B]
                .memory
                .offer(len + 9, AccessFlags::REMOTE_WRITE);
            let buffer = with_imm.then(|| pair.hosts[B].recv(7, 4));
            let op = if with_imm {
                SendOp::WriteWithImm(remote, 0x55)
            } else {
                SendOp::Write(remote)
            };
            let data = pattern(n, len);
            pair.hosts[A].op(n as u64, op, &data);
            pair.run();
            let memory = &pair.hosts[B].memory;
            assert_eq!(memory.load(sge, len), data);
            assert_eq!(memory.load(sge, len + 9)[len..], [0xEE; 9]);
            let told = &pair.hosts[B].completions[before..];
            match buffer {
                None => assert!(told.is_empty(), "a WRITE takes no receive"),
                Some(buffer) => {
                    assert_eq!(memory.load(buffer, 4), [0xEE; 4], "no byte in the buffer");
                    assert_eq!(told.len(), 1);
                    assert_eq!(
                        (told[0].opcode, told[0].imm, told[0].byte_len as usize),
                        (WcOpcode::RECV_RDMA_WITH_IMM, Some(0x55), len)
                    );
                }
            }
            let sent = pair.hosts[A].completions.last().unwrap();
            assert_eq!(
                (sent.opcode, sent.status),
                (WcOpcode::RDMA_WRITE, WcStatus::SUCCESS)
            );
        }
    }
    let written = 2 * LENGTHS.len() as u64;
    assert_eq!(pair.hosts[B].count(Counter::WritesReceived), written);
    assert_eq!(pair.hosts[A].count(Counter::WritesCompleted), written);
    assert_eq!(pair.hosts[B].dropped(), []);
}

/// What is in the packets of one request, read back from the bytes.
#[test]
fn the_headers_on_the_wire_are_those_of_the_request() {
    let mut host = Host::new(A, UcConfig::default(), QpState::Rts);
    let remote = oarlock_transport::RemoteAddress {
        addr: 0x1234_5678_9ABC,
        rkey: RKey(0xABCD),
    };
    let data = pattern(1, 2 * MTU + 3);
    let sge = [host.memory.store(&data)];
    host.post(SendWr {
        op: SendOp::WriteWithImm(remote, 0x99),
        data: SendData::Sges(&sge),
        solicited: true,
        ..SendWr::default()
    });
    host.post(SendWr {
        op: SendOp::SendWithImm(0x77),
        data: SendData::Inline(b"abc"),
        ..SendWr::default()
    });
    let packets = host.packets(Time::ZERO);
    let parsed: Vec<Packet<'_>> = packets
        .iter()
        .map(|bytes| Packet::parse(bytes).unwrap())
        .collect();
    let opcodes: Vec<Opcode> = parsed.iter().map(|p| p.bth.opcode).collect();
    let expected = [
        Opcode::RC_RDMA_WRITE_FIRST,
        Opcode::RC_RDMA_WRITE_MIDDLE,
        Opcode::RC_RDMA_WRITE_LAST_IMM,
        Opcode::RC_SEND_ONLY_IMM,
    ];
    assert_eq!(opcodes, expected.map(|rc| rc.of(TransportClass::Uc)));
    for (n, packet) in parsed.iter().enumerate() {
        assert_eq!(packet.bth.psn, attr(A).sq_psn.add(n as u32));
        assert_eq!(packet.bth.dest_qpn, qpn(B));
        assert_eq!(packet.bth.pkey, attr(A).pkey);
        assert!(!packet.bth.ack_request, "nobody acknowledges");
        assert_eq!(packet.bth.solicited, n == 2);
        assert_eq!(packet.reth.is_some(), n == 0);
        assert_eq!(
            packet.immdt.map(|imm| imm.0),
            [None, None, Some(0x99), Some(0x77)][n]
        );
    }
    let reth = parsed[0].reth.unwrap();
    assert_eq!((reth.addr, reth.rkey), (remote.addr, remote.rkey));
    assert_eq!(reth.len as usize, data.len());
    assert_eq!(parsed[3].payload, b"abc");
    assert_eq!(packets[3].len() % 4, 0, "padded");
    assert_eq!(packets[3].last(), Some(&0), "with zeros");
}

#[test]
fn a_message_is_gathered_from_its_elements_and_spread_over_the_receivers() {
    let mut pair = Pair::new();
    let data = pattern(5, 1000);
    let parts = [&data[..1], &data[1..300], &[], &data[300..]];
    let sges: Vec<Sge> = parts
        .iter()
        .map(|part| {
            pair.hosts[A].memory.alloc(3);
            pair.hosts[A].memory.store(part)
        })
        .collect();
    let buffers = [400, 0, 599, 100].map(|len| pair.hosts[B].memory.alloc(len));
    let wr = RecvWr {
        wr_id: 1,
        sges: &buffers,
    };
    pair.hosts[B].uc.post_recv(&wr).unwrap();
    pair.hosts[A].post(SendWr {
        data: SendData::Sges(&sges),
        ..SendWr::default()
    });
    pair.run();
    assert_eq!(pair.hosts[B].memory.load_all(&buffers, 1000), data);
}

#[test]
fn unsignalled_requests_say_nothing_and_give_their_place_back() {
    let depth = 3;
    let mut pair = Pair::of(UcConfig {
        max_send_wr: depth,
        ..UcConfig::default()
    });
    for n in 0..20 {
        for k in 0..depth {
            pair.hosts[B].recv(0, 10);
            pair.hosts[A].post(SendWr {
                wr_id: n,
                data: SendData::Inline(b"x"),
                signaled: k == 0,
                ..SendWr::default()
            });
        }
        pair.run();
    }
    let ids: Vec<u64> = pair.hosts[A].completions.iter().map(|c| c.wr_id).collect();
    assert_eq!(ids, (0..20).collect::<Vec<_>>());
    assert_eq!(pair.hosts[B].completions.len(), 60);

    let mut all = Pair::of(UcConfig {
        sq_sig_all: true,
        ..UcConfig::default()
    });
    all.hosts[B].recv(0, 10);
    all.hosts[A].post(SendWr {
        signaled: false,
        ..SendWr::default()
    });
    all.run();
    assert_eq!(all.hosts[A].completions.len(), 1);
}

#[test]
fn the_solicited_bit_reaches_the_completion() {
    let mut pair = Pair::new();
    let (_, remote) = pair.hosts[B].memory.offer(8, AccessFlags::REMOTE_WRITE);
    for solicited in [false, true] {
        for op in [
            SendOp::Send,
            SendOp::SendWithImm(1),
            SendOp::WriteWithImm(remote, 1),
        ] {
            pair.hosts[B].recv(0, 8);
            pair.hosts[A].post(SendWr {
                op,
                solicited,
                ..SendWr::default()
            });
            pair.run();
            assert_eq!(
                pair.hosts[B].completions.last().unwrap().solicited,
                solicited
            );
        }
    }
}

/// Local operations are done in their turn, once, and send nothing.
#[test]
fn local_operations_take_their_turn_and_no_psn() {
    let mut pair = Pair::new();
    let (_, window) = pair.hosts[A].memory.offer(8, AccessFlags::REMOTE_WRITE);
    let bind = BindWindow {
        window: RKey(0x100),
        rkey: RKey(0x101),
        region: LKey(0x51),
        addr: 0x1000,
        len: 8,
        access: AccessFlags::REMOTE_WRITE,
    };
    pair.hosts[B].recv(20, 2 * MTU);
    pair.hosts[B].recv(21, 10);
    let long = pattern(3, 2 * MTU);
    pair.hosts[A].send(10, &long);
    pair.hosts[A].op(11, SendOp::LocalInvalidate(window.rkey), &[]);
    pair.hosts[A].op(12, SendOp::BindWindow(bind), &[]);
    pair.hosts[A].send(13, b"after");
    assert!(
        pair.hosts[A].memory.invalidated.is_empty(),
        "not when posted"
    );
    pair.run();
    let memory = &pair.hosts[A].memory;
    assert_eq!(
        (&memory.invalidated[..], &memory.bound[..]),
        (&[window.rkey][..], &[bind][..])
    );
    let completed: Vec<(u64, WcOpcode)> = pair.hosts[A]
        .completions
        .iter()
        .map(|c| (c.wr_id, c.opcode))
        .collect();
    assert_eq!(
        completed,
        [
            (10, WcOpcode::SEND),
            (11, WcOpcode::LOCAL_INV),
            (12, WcOpcode::BIND_MW),
            (13, WcOpcode::SEND)
        ]
    );
    assert_eq!(pair.hosts[B].outcomes().len(), 2);
    assert_eq!(pair.hosts[A].uc.query().sq_psn, attr(A).sq_psn.add(3));
    assert_eq!(pair.hosts[A].count(Counter::InvalidatesCompleted), 1);
    assert_eq!(pair.hosts[A].count(Counter::BindsCompleted), 1);
}

/// What the query says of PSNs follows the traffic across the wrap.
#[test]
fn psns_wrap_and_the_query_shows_the_next() {
    let mut pair = Pair::new();
    for n in 0..6 {
        pair.hosts[B].recv(n, 3 * MTU);
        pair.hosts[A].send(n, &pattern(n as usize, 3 * MTU));
    }
    pair.run();
    assert_eq!(pair.hosts[B].outcomes().len(), 6);
    let next = attr(A).sq_psn.add(18);
    assert_eq!(next, Psn::truncate(14));
    assert_eq!(pair.hosts[A].uc.query().sq_psn, next);
    assert_eq!(pair.hosts[B].uc.query().rq_psn, next);
}

/// Both directions at once do not disturb each other.
#[test]
fn both_sides_send_at_the_same_time() {
    let mut pair = Pair::new();
    let mut buffers = [Vec::new(), Vec::new()];
    for n in 0..10 {
        for side in [A, B] {
            buffers[side].push(pair.hosts[side].recv(n, 700));
            pair.hosts[side].send(n, &pattern(side * 100 + n as usize, 600));
        }
    }
    pair.run();
    for side in [A, B] {
        for (n, sge) in buffers[side].iter().enumerate() {
            let sent = pattern((1 - side) * 100 + n, 600);
            assert_eq!(pair.hosts[side].memory.load(*sge, 600), sent);
        }
        assert_eq!(pair.hosts[side].count(Counter::PacketsSent), 30);
        assert_eq!(pair.hosts[side].count(Counter::PacketsReceived), 30);
    }
}

/// A packet that was built by hand, as a kernel would send it: ours is taken apart the same way.
#[test]
fn a_packet_without_immediate_and_payload_is_a_message_too() {
    let mut host = Host::new(B, UcConfig::default(), QpState::Rts);
    host.recv(1, 0);
    let opcode = Opcode::RC_SEND_ONLY.of(TransportClass::Uc);
    let bth = oarlock_wire::Bth::new(opcode, qpn(B), attr(B).rq_psn);
    let mut out = [0; 64];
    let len = PacketHeader::new(bth).emit_packet(&[], &mut out).unwrap();
    host.take(&out[..len]);
    assert_eq!(host.outcomes(), [(1, WcStatus::SUCCESS)]);
}
