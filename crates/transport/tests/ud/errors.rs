//! What is refused, what is dropped, and what fails.

use oarlock_transport::{
    AttrMask, Counter, Error, QpAttr, QpState, QpType, Rc, RcConfig, RecvWr, RemoteAddress,
    SendData, SendOp, SendWr, Sge, UdConfig, UdDestination, VendorError, WcStatus,
};
use oarlock_wire::{AddressVector, Gid, Grh, LKey, Mtu, Packet, QKey, Qpn, RKey};

use std::net::Ipv4Addr;

use crate::support::{Host, KEY, Sent, gid, group, qpn, to};

#[test]
fn a_message_longer_than_the_path_mtu_is_refused_when_it_is_posted() {
    let mut a = Host::new(1);
    let sge = |len| Sge {
        len,
        ..Sge::default()
    };
    for sges in [&[sge(257)][..], &[sge(256), sge(1)], &[sge(u32::MAX); 4]] {
        let given = sges.iter().map(|sge| u64::from(sge.len)).sum();
        let refused = a.ud.post_send(&SendWr {
            data: SendData::Sges(sges),
            ud: Some(to(1, 2)),
            ..SendWr::default()
        });
        let mtu = Mtu::MTU_256;
        assert_eq!(refused, Err(Error::DatagramTooLong { given, mtu }));
    }
    let too_long = Error::DatagramTooLong {
        given: 257,
        mtu: Mtu::MTU_256,
    };
    assert_eq!(
        too_long.to_string(),
        "datagram of 257 bytes does not fit the path MTU of 256"
    );
    assert!(!a.ud.has_output());
}

#[test]
fn a_datagram_needs_a_destination_and_a_connection_takes_none() {
    let mut a = Host::new(1);
    assert_eq!(
        a.ud.post_send(&SendWr::default()),
        Err(Error::NoDestination)
    );
    let mut rc = Rc::new(RcConfig::default());
    let init = AttrMask::ACCESS_FLAGS | AttrMask::PKEY_INDEX | AttrMask::PORT;
    rc.modify(&QpAttr {
        mask: init | AttrMask::STATE,
        state: QpState::Init,
        ..QpAttr::default()
    })
    .unwrap();
    rc.modify(&QpAttr::to_state(QpState::Error)).unwrap();
    let wr = SendWr {
        ud: Some(to(1, 2)),
        ..SendWr::default()
    };
    assert_eq!(rc.post_send(&wr), Err(Error::UnexpectedDestination));
}

#[test]
fn the_multicast_queue_pair_goes_with_groups_only() {
    let mut a = Host::new(1);
    let unicast = AddressVector::new(gid(1), gid(2));
    let multicast = AddressVector::new(gid(1), group());
    for (av, remote_qpn) in [(unicast, Qpn::MULTICAST), (multicast, qpn(2))] {
        let refused = a.ud.post_send(&SendWr {
            ud: Some(UdDestination {
                av,
                remote_qpn,
                remote_qkey: KEY,
            }),
            ..SendWr::default()
        });
        let (remote, qpn) = (av.remote, remote_qpn);
        assert_eq!(refused, Err(Error::MulticastQpn { remote, qpn }));
    }
    assert_eq!(
        Error::MulticastQpn {
            remote: gid(2),
            qpn: Qpn::MULTICAST
        }
        .to_string(),
        "destination 10.0.0.2 with queue pair 0xffffff: 0xffffff goes with multicast groups, and only with them"
    );
}

#[test]
fn limits_are_errors_that_name_both_numbers() {
    let mut a = Host::with(
        UdConfig {
            qpn: qpn(1),
            max_send_wr: 1,
            max_recv_wr: 1,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 3,
            ..UdConfig::default()
        },
        QpState::Rts,
    );
    let mut send = |data| {
        let wr = SendWr {
            data,
            ud: Some(to(1, 2)),
            ..SendWr::default()
        };
        a.ud.post_send(&wr)
    };
    let two = [Sge::default(); 2];
    assert_eq!(
        send(SendData::Sges(&two)),
        Err(Error::TooManySges { given: 2, max: 1 })
    );
    assert_eq!(
        send(SendData::Inline(b"four")),
        Err(Error::InlineTooLong { given: 4, max: 3 })
    );
    assert_eq!(send(SendData::Inline(b"abc")), Ok(()));
    let full = |queue| Err(Error::QueueFull { queue, depth: 1 });
    assert_eq!(send(SendData::Inline(b"")), full("send"));
    let recv = RecvWr::default();
    assert_eq!(a.ud.post_recv(&recv), Ok(()));
    assert_eq!(a.ud.post_recv(&recv), full("receive"));
    // A completion that nobody has polled holds its place.
    assert_eq!(a.sent().len(), 1);
    assert_eq!(
        a.ud.post_send(&SendWr {
            ud: Some(to(1, 2)),
            ..SendWr::default()
        }),
        full("send")
    );
    assert_eq!(a.completions().len(), 1);
    a.send(1, b"", to(1, 2));
}

/// A good packet for host 2, with one thing changed.
fn changed(change: impl FnOnce(&mut Sent)) -> Sent {
    let mut a = Host::new(1);
    a.send(1, b"four", to(1, 2));
    let mut packet = a.one_packet();
    change(&mut packet);
    packet
}

#[test]
fn every_drop_has_its_counter_and_takes_no_buffer() {
    let cases = [
        (Counter::DroppedMalformed, changed(|p| p.bytes.truncate(19))),
        (Counter::DroppedMalformed, changed(|p| p.bytes[1] |= 1)),
        (Counter::DroppedMalformed, changed(|p| p.bytes[0] = 0x66)),
        (Counter::DroppedWrongQpn, changed(|p| p.bytes[7] = 3)),
        (
            Counter::DroppedWrongQpn,
            changed(|p| p.bytes[5..8].fill(0xFF)),
        ),
        (Counter::DroppedWrongQpn, changed(|p| p.av.remote = group())),
        (
            Counter::DroppedWrongSource,
            changed(|p| p.av.local = group()),
        ),
        (
            Counter::DroppedWrongSource,
            changed(|p| p.av.local = Gid::UNSPECIFIED),
        ),
        (
            Counter::DroppedWrongSource,
            changed(|p| p.av.local = Gid::from_ip(Ipv4Addr::UNSPECIFIED.into())),
        ),
        (
            Counter::DroppedWrongTransport,
            changed(|p| p.bytes[0] = 0x04),
        ),
        (Counter::DroppedWrongPkey, changed(|p| p.bytes[3] = 1)),
        (Counter::DroppedWrongQkey, changed(|p| p.bytes[15] ^= 1)),
        (
            Counter::DroppedTooLong,
            changed(|p| p.bytes.resize(20 + 260, 0)),
        ),
    ];
    for (reason, packet) in cases {
        let mut b = Host::new(2);
        b.recv(1, 1000);
        b.take(&packet);
        assert_eq!(b.completions(), [], "{reason:?}");
        assert_eq!(b.count(reason), 1, "{reason:?}: {:?}", b.dropped());
        assert_eq!(b.dropped().len(), 1, "{:?}", b.dropped());
        // The same buffer takes the next good one.
        b.take(&changed(|_| {}));
        assert_eq!(b.outcomes(), [(1, WcStatus::SUCCESS)], "{reason:?}");
    }
}

#[test]
fn a_version_that_a_parsed_packet_shows_is_dropped_too() {
    let sent = changed(|_| {});
    let mut packet = Packet::parse(&sent.bytes).expect("a packet");
    let mut b = Host::new(2);
    b.recv(1, 1000);
    let mut take = |packet: &Packet<'_>| {
        b.ud.handle_packet(&sent.av.reversed(), packet, &mut b.memory);
    };
    packet.bth.version = 1;
    take(&packet);
    packet.bth.version = 0;
    packet.deth = None;
    take(&packet);
    assert_eq!(
        b.dropped(),
        [("dropped_malformed", 1), ("dropped_wrong_version", 1)]
    );
}

#[test]
fn without_a_receive_a_message_is_dropped_and_counted() {
    let mut b = Host::new(2);
    b.take(&changed(|_| {}));
    assert_eq!(b.dropped(), [("dropped_receiver_not_ready", 1)]);
    assert_eq!(b.ud.state(), QpState::Rts);
    b.recv(1, 44);
    b.take(&changed(|_| {}));
    assert_eq!(b.outcomes(), [(1, WcStatus::SUCCESS)]);
}

#[test]
fn a_message_longer_than_its_buffer_is_dropped_and_the_buffer_waits_on() {
    for room in [0, 3, Grh::LEN - 1, Grh::LEN, Grh::LEN + 3] {
        let mut b = Host::new(2);
        b.recv(1, room);
        b.take(&changed(|_| {}));
        assert_eq!(b.outcomes(), [], "{room} bytes");
        assert_eq!(b.ud.state(), QpState::Rts);
        assert_eq!(b.dropped(), [("dropped_no_room", 1)]);
    }
}

#[test]
fn a_buffer_that_cannot_be_written_is_a_local_protection_error() {
    // The place of the GRH, and that of the payload.
    for part in 0..2 {
        let mut b = Host::new(2);
        let sges = [b.memory.alloc(Grh::LEN), b.memory.alloc(10)];
        b.memory.vanish(sges[part]);
        b.ud.post_recv(&RecvWr {
            wr_id: 5,
            sges: &sges,
        })
        .unwrap();
        b.take(&changed(|_| {}));
        assert_eq!(b.outcomes(), [(5, WcStatus::LOC_PROT_ERR)]);
        assert_eq!(b.dropped(), [("dropped_not_placed", 1)]);
        assert_eq!(b.ud.state(), QpState::Error);
    }
}

/// IBA Vol. 1 ch. 10 "Send queue error": a send that fails here flushes those behind it, and nothing else.
#[test]
fn a_message_that_cannot_be_read_stops_the_send_queue_only() {
    let mut a = Host::new(1);
    a.send(1, b"first", to(1, 2));
    let bad = a.memory.store(b"gone");
    a.memory.vanish(bad);
    a.post(SendWr {
        wr_id: 2,
        data: SendData::Sges(&[bad]),
        signaled: false,
        ud: Some(to(1, 2)),
        ..SendWr::default()
    });
    a.send(3, b"behind", to(1, 2));
    assert_eq!(a.sent().len(), 1);
    assert_eq!(
        a.outcomes(),
        [
            (1, WcStatus::SUCCESS),
            (2, WcStatus::LOC_PROT_ERR),
            (3, WcStatus::WR_FLUSH_ERR)
        ]
    );
    assert_eq!(a.ud.state(), QpState::Sqe);
    // What is posted now is flushed; messages still arrive.
    a.send(4, b"later", to(1, 2));
    assert_eq!(a.sent(), []);
    assert_eq!(a.outcomes(), [(4, WcStatus::WR_FLUSH_ERR)]);
    a.recv(5, 100);
    let mut b = Host::new(2);
    b.send(1, b"hello", to(2, 1));
    a.take(&b.one_packet());
    assert_eq!(a.outcomes(), [(5, WcStatus::SUCCESS)]);
    // And it goes on from RTS where it stopped: the PSN of the failed one was not used.
    let rts = QpAttr {
        mask: AttrMask::STATE | AttrMask::CUR_STATE,
        state: QpState::Rts,
        current_state: QpState::Sqe,
        ..QpAttr::default()
    };
    a.ud.modify(&rts).expect("from SQE to RTS");
    a.send(6, b"again", to(1, 2));
    let packet = a.one_packet();
    let packet = Packet::parse(&packet.bytes).expect("a packet");
    assert_eq!(packet.bth.psn.get(), 0xFF_FFFF);
    assert_eq!(a.outcomes(), [(6, WcStatus::SUCCESS)]);
}

#[test]
fn a_changed_key_holds_from_then_on() {
    let mut b = Host::new(2);
    b.recv(1, 100);
    b.recv(2, 100);
    b.take(&changed(|_| {}));
    b.ud.modify(&QpAttr {
        mask: AttrMask::QKEY,
        qkey: QKey(5),
        ..QpAttr::default()
    })
    .expect("RTS takes a key");
    b.take(&changed(|_| {}));
    b.take(&changed(|p| p.bytes[12..16].copy_from_slice(&[0, 0, 0, 5])));
    assert_eq!(b.outcomes().len(), 2);
    assert_eq!(b.count(Counter::DroppedWrongQkey), 1);
}

/// IBA Vol. 1 ch. 11 "Post send request": a datagram is a SEND, and no answer to it could be fenced.
#[test]
fn operations_and_flags_that_datagrams_have_not_are_refused_by_name() {
    let remote = RemoteAddress::default();
    let good = SendWr {
        ud: Some(to(1, 2)),
        ..SendWr::default()
    };
    let qp_type = QpType::Ud;
    let mut a = Host::new(1);
    for op in [
        SendOp::SendWithInvalidate(RKey(1)),
        SendOp::Write(remote),
        SendOp::WriteWithImm(remote, 1),
        SendOp::Read(remote),
        SendOp::CompareSwap {
            remote,
            compare: 0,
            swap: 1,
        },
        SendOp::FetchAdd { remote, add: 1 },
        SendOp::LocalInvalidate(RKey(1)),
    ] {
        let operation = op.name();
        let expected = Error::OperationNotSupported { operation, qp_type };
        assert_eq!(a.ud.post_send(&SendWr { op, ..good }), Err(expected));
    }
    let expected = Error::FlagNotAllowed {
        flag: "fence",
        operation: "SEND",
        qp_type,
    };
    let fence = true;
    assert_eq!(a.ud.post_send(&SendWr { fence, ..good }), Err(expected));
    assert!(!a.ud.has_output(), "nothing was posted");
}

/// Each failed request says which rule it broke, and each flushed one why.
#[test]
fn failures_say_which_rule_they_broke() {
    let mut a = Host::new(1);
    let mut data = a.memory.store(b"data");
    data.lkey = LKey(0xBAD);
    for wr_id in 1..3 {
        a.post(SendWr {
            wr_id,
            data: SendData::Sges(&[data]),
            ud: Some(to(1, 2)),
            ..SendWr::default()
        });
    }
    assert!(a.sent().is_empty());
    a.send(3, b"late", to(1, 2));
    let reasons: Vec<VendorError> = a.completions().iter().map(|c| c.vendor_err).collect();
    let expected = [
        VendorError::LKEY_UNKNOWN,
        VendorError::FLUSHED_BY_SEND,
        VendorError::FLUSHED_AT_POST,
    ];
    assert_eq!(reasons, expected);

    let (mut b, mut peer) = (Host::new(2), Host::new(1));
    let gone = b.recv(1, 100);
    b.recv(2, 100);
    b.memory.vanish(gone);
    peer.send(1, b"x", to(1, 2));
    b.take(&peer.one_packet());
    b.recv(3, 100);
    let reasons: Vec<VendorError> = b.completions().iter().map(|c| c.vendor_err).collect();
    let expected = [
        VendorError::UNMAPPED,
        VendorError::FLUSHED_BY_RECEIVE,
        VendorError::FLUSHED_AT_POST,
    ];
    assert_eq!(reasons, expected);
}
