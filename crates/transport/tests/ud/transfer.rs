//! Messages from one queue pair to another.

use oarlock_transport::{
    Counter, QpAttr, QpState, RecvWr, SendData, SendOp, SendWr, Sge, UdConfig, UdDestination,
    WcOpcode, WcStatus,
};
use oarlock_wire::{
    AddressVector, FlowLabel, Gid, Grh, Mtu, Opcode, Packet, QKey, Qpn, units::PKey,
};

use crate::support::{Host, KEY, attr, gid, group, qpn, to, to_state};

/// The message behind the GRH.
fn content(host: &Host, sge: Sge, byte_len: u32) -> Vec<u8> {
    host.memory.load(sge, byte_len as usize)[Grh::LEN..].to_vec()
}

#[test]
fn a_message_of_every_length_up_to_the_path_mtu_arrives_behind_its_grh() {
    let (mut a, mut b) = (Host::new(1), Host::new(2));
    for len in 0..=256 {
        let (mark_a, mark_b) = (a.memory.mark(), b.memory.mark());
        let message: Vec<u8> = (0..len).map(|i| (i * 7) as u8).collect();
        let sge = b.recv(len as u64, Grh::LEN + len);
        a.send(len as u64, &message, to(1, 2));
        let packet = a.one_packet();
        assert_eq!(packet.bytes.len() % 4, 0, "padded");
        b.take(&packet);
        let received = b.completions();
        assert_eq!(received.len(), 1);
        let c = &received[0];
        assert_eq!((c.wr_id, c.status), (len as u64, WcStatus::SUCCESS));
        assert_eq!((c.opcode, c.is_send), (WcOpcode::RECV, false));
        assert_eq!(c.byte_len as usize, Grh::LEN + len);
        assert_eq!((c.src_qp, c.has_grh), (qpn(1), true));
        assert_eq!(content(&b, sge, c.byte_len), message);
        let grh = b.memory.load(sge, Grh::LEN);
        let grh = Grh::parse(grh.as_slice().try_into().unwrap()).expect("a GRH");
        assert_eq!(
            (grh.source, grh.destination),
            (gid(1).to_ip(), gid(2).to_ip())
        );
        assert_eq!(usize::from(grh.payload_len), 8 + packet.bytes.len() + 4);
        let sent = a.completions();
        assert_eq!((sent[0].wr_id, sent[0].byte_len), (len as u64, len as u32));
        assert!(sent[0].is_send && !sent[0].has_grh && sent[0].src_qp == Qpn::QP0);
        a.memory.release(mark_a);
        b.memory.release(mark_b);
    }
}

#[test]
fn the_headers_on_the_wire_are_those_of_the_request() {
    let mut a = Host::new(1);
    a.post(SendWr {
        op: SendOp::SendWithImm(0xDEAD_BEEF),
        data: SendData::Inline(b"inline"),
        solicited: true,
        ud: Some(UdDestination {
            remote_qkey: QKey(0x1234_5678),
            ..to(1, 2)
        }),
        ..SendWr::default()
    });
    a.post(SendWr {
        data: SendData::Inline(b""),
        ud: Some(to(1, 3)),
        ..SendWr::default()
    });
    let sent = a.sent();
    let packets: Vec<_> = sent
        .iter()
        .map(|sent| Packet::parse(&sent.bytes).expect("a packet"))
        .collect();
    assert_eq!(packets[0].bth.opcode, Opcode::UD_SEND_ONLY_IMM);
    assert_eq!(packets[1].bth.opcode, Opcode::UD_SEND_ONLY);
    let [first, second] = [0, 1].map(|n: usize| packets[n].deth.expect("a DETH"));
    assert_eq!((first.qkey, first.src_qpn), (QKey(0x1234_5678), qpn(1)));
    assert_eq!((second.qkey, second.src_qpn), (KEY, qpn(1)));
    assert_eq!(packets[0].immdt.map(|immdt| immdt.0), Some(0xDEAD_BEEF));
    assert_eq!(
        (packets[0].payload, packets[0].bth.pad),
        (&b"inline"[..], 2)
    );
    assert_eq!(sent[0].bytes[sent[0].bytes.len() - 2..], [0, 0]);
    let flags = packets.iter().map(|p| (p.bth.solicited, p.bth.ack_request));
    assert_eq!(flags.collect::<Vec<_>>(), [(true, false), (false, false)]);
    let destinations = packets.iter().map(|p| p.bth.dest_qpn.get());
    assert_eq!(destinations.collect::<Vec<_>>(), [2, 3]);
    // One PSN a message, over the end of the circle.
    let psns = packets.iter().map(|p| p.bth.psn.get());
    assert_eq!(psns.collect::<Vec<_>>(), [0xFF_FFFE, 0xFF_FFFF]);
    assert_eq!(a.ud.query().sq_psn.get(), 0);
    assert_eq!([sent[0].av.remote, sent[1].av.remote], [gid(2), gid(3)]);
}

#[test]
fn immediate_solicited_and_service_level_reach_the_receiver() {
    let (mut a, mut b) = (Host::new(1), Host::new(2));
    b.recv(1, 64);
    a.post(SendWr {
        op: SendOp::SendWithImm(7),
        solicited: true,
        ud: Some(to(1, 2)),
        ..SendWr::default()
    });
    let mut packet = a.one_packet();
    packet.av.service_level = 5;
    b.take(&packet);
    let c = b.completions().remove(0);
    assert_eq!(
        (c.imm, c.solicited, c.sl, c.pkey_index),
        (Some(7), true, 5, 0)
    );
    assert_eq!(c.byte_len as usize, Grh::LEN);
}

#[test]
fn the_grh_tells_traffic_class_hop_limit_and_both_ends_of_ipv6() {
    let addresses = ["fd00::1", "ff0e::7"].map(|a| Gid::from_ip(a.parse().unwrap()));
    let mut b = Host::new(2);
    let mut a = Host::new(1);
    let sge = b.recv(1, Grh::LEN + 3);
    let av = AddressVector {
        traffic_class: 0x2C,
        hop_limit: 3,
        flow_label: FlowLabel::truncate(0xABCDE),
        ..AddressVector::new(addresses[0], addresses[1])
    };
    let to = UdDestination {
        av,
        remote_qpn: Qpn::MULTICAST,
        remote_qkey: KEY,
    };
    a.send(1, b"abc", to);
    b.take(&a.one_packet());
    assert_eq!(b.completions()[0].status, WcStatus::SUCCESS);
    let bytes = b.memory.load(sge, Grh::LEN);
    let grh = Grh::parse(bytes.as_slice().try_into().unwrap()).expect("a GRH");
    assert_eq!(
        (grh.source, grh.destination),
        (addresses[0].to_ip(), addresses[1].to_ip())
    );
    assert_eq!((grh.traffic_class, grh.hop_limit), (0x2C, 3));
    assert_eq!(grh.flow_label.get(), 0xABCDE);
    assert_eq!(bytes[0] >> 4, 6);
}

#[test]
fn a_message_is_spread_over_the_elements_and_gathered_from_them() {
    let (mut a, mut b) = (Host::new(1), Host::new(2));
    let into = [30, 0, 11, 100].map(|len| b.memory.alloc(len));
    b.ud.post_recv(&RecvWr {
        wr_id: 1,
        sges: &into,
    })
    .unwrap();
    let from = [&b"one"[..], b"", b"two"].map(|part| a.memory.store(part));
    a.post(SendWr {
        data: SendData::Sges(&from),
        ud: Some(to(1, 2)),
        ..SendWr::default()
    });
    b.take(&a.one_packet());
    let c = b.completions().remove(0);
    assert_eq!(c.byte_len as usize, Grh::LEN + 6);
    let all = b.memory.load_all(&into, Grh::LEN + 6);
    assert_eq!(&all[Grh::LEN..], b"onetwo");
}

#[test]
fn a_send_completes_when_its_packet_is_out_and_unsignalled_ones_say_nothing() {
    let mut a = Host::new(1);
    for wr_id in 0..4 {
        a.post(SendWr {
            wr_id,
            signaled: wr_id == 2,
            ud: Some(to(1, 2)),
            ..SendWr::default()
        });
    }
    assert!(a.ud.has_output());
    assert_eq!(a.completions(), []);
    assert_eq!(a.sent().len(), 4);
    assert_eq!(a.outcomes(), [(2, WcStatus::SUCCESS)]);
    assert!(!a.ud.has_output());
    let mut b = Host::with(
        UdConfig {
            qpn: qpn(1),
            sq_sig_all: true,
            ..UdConfig::default()
        },
        QpState::Rts,
    );
    b.post(SendWr {
        wr_id: 9,
        signaled: false,
        ud: Some(to(1, 2)),
        ..SendWr::default()
    });
    assert_eq!(b.sent().len(), 1);
    assert_eq!(b.outcomes(), [(9, WcStatus::SUCCESS)]);
}

#[test]
fn a_key_with_the_top_bit_set_stands_for_the_senders_own() {
    let (mut a, mut b) = (Host::new(1), Host::new(2));
    for key in [0x8000_0000, 0x8001_0000, 0xFFFF_FFFF] {
        b.recv(1, 64);
        let to = UdDestination {
            remote_qkey: QKey(key),
            ..to(1, 2)
        };
        a.send(1, b"x", to);
        let packet = a.one_packet();
        let deth = Packet::parse(&packet.bytes).expect("a packet").deth;
        assert_eq!(deth.map(|deth| deth.qkey), Some(KEY));
        b.take(&packet);
    }
    assert_eq!(b.completions().len(), 3);
    // A queue pair that was given such a key sends it, and demands it.
    let privileged = QpAttr {
        qkey: QKey(0x8001_0000),
        ..attr()
    };
    let mut hosts = [
        Host::in_state(1, QpState::Reset),
        Host::in_state(2, QpState::Reset),
    ];
    for host in &mut hosts {
        to_state(&mut host.ud, &privileged, QpState::Rts);
    }
    let [mut a, mut b] = hosts;
    b.recv(1, 64);
    a.send(
        1,
        b"x",
        UdDestination {
            remote_qkey: QKey(0x8000_0000),
            ..to(1, 2)
        },
    );
    b.take(&a.one_packet());
    assert_eq!(b.outcomes(), [(1, WcStatus::SUCCESS)]);
}

#[test]
fn a_message_to_a_group_is_taken_by_each_that_gets_it_the_sender_too() {
    let mut hosts = [1, 2, 3].map(Host::new);
    for host in &mut hosts {
        host.recv(1, 100);
    }
    let to = UdDestination {
        av: AddressVector::new(gid(1), group()),
        remote_qpn: Qpn::MULTICAST,
        remote_qkey: KEY,
    };
    hosts[0].send(9, b"all", to);
    let packet = hosts[0].one_packet();
    for host in &mut hosts {
        host.take(&packet);
    }
    assert_eq!(
        hosts[0].outcomes(),
        [(9, WcStatus::SUCCESS), (1, WcStatus::SUCCESS)]
    );
    for host in &mut hosts[1..] {
        let c = host.completions().remove(0);
        assert_eq!((c.src_qp, c.byte_len), (qpn(1), 43));
    }
}

#[test]
fn what_is_lost_is_lost_and_what_comes_twice_comes_twice() {
    let (mut a, mut b) = (Host::new(1), Host::new(2));
    for wr_id in 0..3 {
        b.recv(wr_id, 64);
        a.send(wr_id, &[wr_id as u8], to(1, 2));
    }
    let sent = a.sent();
    for n in [2, 0, 0] {
        b.take(&sent[n]);
    }
    assert_eq!(b.completions().len(), 3);
    assert_eq!(b.count(Counter::DatagramsReceived), 3);
    assert_eq!(a.count(Counter::DatagramsSent), 3);
    assert_eq!((a.dropped(), b.dropped()), (vec![], vec![]));
    assert_eq!(a.outcomes().len(), 3);
}

#[test]
fn limited_members_of_a_partition_reach_full_members_only() {
    let pkey = |value| QpAttr {
        pkey: PKey(value),
        ..attr()
    };
    for (sender, receiver, arrives) in [
        (0xFFFF, 0x7FFF, true),
        (0x7FFF, 0xFFFF, true),
        (0x7FFF, 0x7FFF, false),
        (0x8001, 0xFFFF, false),
    ] {
        let (mut a, mut b) = (
            Host::in_state(1, QpState::Reset),
            Host::in_state(2, QpState::Reset),
        );
        to_state(&mut a.ud, &pkey(sender), QpState::Rts);
        to_state(&mut b.ud, &pkey(receiver), QpState::Rts);
        b.recv(1, 64);
        a.send(1, b"x", to(1, 2));
        b.take(&a.one_packet());
        assert_eq!(b.completions().len(), usize::from(arrives));
        assert_eq!(b.count(Counter::DroppedWrongPkey), u64::from(!arrives));
    }
}

#[test]
fn a_queue_is_used_again_and_again() {
    let config = UdConfig {
        qpn: qpn(1),
        max_send_wr: 2,
        max_recv_wr: 3,
        mtu: Mtu::MTU_4096,
        ..UdConfig::default()
    };
    let mut a = Host::with(config, QpState::Rts);
    for round in 0..20 {
        let mark = a.memory.mark();
        for wr_id in 0..2 {
            a.recv(wr_id, 5000);
            a.send(10 + wr_id, &[round as u8; 4096], to(1, 1));
        }
        for packet in a.sent() {
            a.take(&packet);
        }
        let ids: Vec<_> = a.outcomes().iter().map(|(id, _)| *id).collect();
        assert_eq!(ids, [10, 11, 0, 1]);
        a.memory.release(mark);
    }
}
