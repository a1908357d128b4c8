//! States: what may be posted, what is admitted, what a reset forgets.

use oarlock_transport::{
    AttrMask, Counter, Error, MAX_PACKET_LEN, QpAttr, QpEvent, QpState, Rc, RcConfig, RecvWr,
    SendData, SendOp, SendWr, Sge,
};
use oarlock_wire::{
    AddressVector, Aeth, Bth, Gid, Mtu, Opcode, PKey, PacketHeader, Syndrome, Time,
};
use std::net::Ipv6Addr;

use crate::memory::VecMemory;
use crate::pair::{A, B, INIT, Pair, RTR, RTS, Setup, gid, psn, qpn, to_state};

const STATES: [QpState; 5] = [
    QpState::Reset,
    QpState::Init,
    QpState::Rtr,
    QpState::Rts,
    QpState::Error,
];

#[test]
fn receives_are_taken_from_init_on_and_sends_from_rts_on() {
    for state in STATES {
        let mut rc = Setup::default().rc_in(B, state);
        let recv = rc.post_recv(&RecvWr::default());
        let send = rc.post_send(&SendWr::default());
        let refused = |call| Err(Error::WrongState { call, state });
        match state {
            QpState::Reset => assert_eq!(recv, refused("post_recv")),
            _ => assert_eq!(recv, Ok(())),
        }
        match state {
            QpState::Rts | QpState::Error => assert_eq!(send, Ok(())),
            _ => assert_eq!(send, refused("post_send")),
        }
    }
}

#[test]
fn limits_are_errors_that_name_both_numbers() {
    let config = RcConfig {
        max_send_wr: 2,
        max_recv_wr: 1,
        max_send_sge: 2,
        max_recv_sge: 1,
        max_inline: 8,
        ..RcConfig::default()
    };
    let mut rc = Setup {
        config,
        ..Setup::default()
    }
    .rc_in(A, QpState::Rts);
    let sges = [Sge::default(); 3];
    let mut send = |data| {
        rc.post_send(&SendWr {
            data,
            ..SendWr::default()
        })
        .unwrap_err()
        .to_string()
    };
    assert_eq!(
        send(SendData::Sges(&sges)),
        "3 scatter/gather elements, at most 2"
    );
    assert_eq!(
        send(SendData::Inline(&[0; 9])),
        "9 bytes of inline data, at most 8"
    );
    let huge = Sge {
        len: u32::MAX,
        ..Sge::default()
    };
    assert_eq!(
        send(SendData::Sges(&[huge, huge])),
        "message of 8589934590 bytes, at most 2147483648"
    );
    let recv = rc.post_recv(&RecvWr {
        wr_id: 0,
        sges: &sges[..2],
    });
    assert_eq!(recv, Err(Error::TooManySges { given: 2, max: 1 }));
    for _ in 0..2 {
        rc.post_send(&SendWr::default()).unwrap();
    }
    rc.post_recv(&RecvWr::default()).unwrap();
    let full = rc.post_send(&SendWr::default()).unwrap_err();
    assert_eq!(
        full.to_string(),
        "send queue is full: 2 requests outstanding"
    );
    assert_eq!(
        rc.post_recv(&RecvWr::default()),
        Err(Error::QueueFull {
            queue: "receive",
            depth: 1
        })
    );
}

#[test]
fn a_queue_without_depth_takes_nothing() {
    let config = RcConfig {
        max_send_wr: 0,
        max_recv_wr: 0,
        ..RcConfig::default()
    };
    for state in [QpState::Rts, QpState::Error] {
        let mut rc = Setup {
            config,
            ..Setup::default()
        }
        .rc_in(A, state);
        assert_eq!(
            rc.post_send(&SendWr::default()),
            Err(Error::QueueFull {
                queue: "send",
                depth: 0
            })
        );
        assert_eq!(
            rc.post_recv(&RecvWr::default()),
            Err(Error::QueueFull {
                queue: "receive",
                depth: 0
            })
        );
    }
}

#[test]
fn a_place_is_free_again_when_its_completion_has_been_polled() {
    let config = RcConfig {
        max_send_wr: 1,
        ..RcConfig::default()
    };
    let mut rc = Setup {
        config,
        ..Setup::default()
    }
    .rc_in(A, QpState::Error);
    rc.post_send(&SendWr::default()).unwrap();
    assert!(rc.post_send(&SendWr::default()).is_err());
    assert!(rc.poll_completion().is_some());
    rc.post_send(&SendWr::default()).unwrap();
}

#[test]
fn attribute_values_are_checked_where_they_are_given() {
    let config = RcConfig {
        max_qp_rd_atom: 4,
        max_qp_init_rd_atom: 8,
        ..RcConfig::default()
    };
    let setup = Setup {
        config,
        ..Setup::default()
    };
    let good = QpAttr {
        mask: RTR,
        state: QpState::Rtr,
        ..setup.attr(A)
    };
    let mut rc = setup.rc_in(A, QpState::Init);
    let mut refuse = |attr: QpAttr| {
        let error = rc.modify(&attr).unwrap_err().to_string();
        assert_eq!(rc.state(), QpState::Init, "a refused call changes nothing");
        error
    };
    assert_eq!(
        refuse(QpAttr {
            max_dest_rd_atomic: 5,
            ..good
        }),
        "max_dest_rd_atomic is 5, at most 4"
    );
    assert_eq!(
        refuse(QpAttr {
            min_rnr_timer: 32,
            ..good
        }),
        "min_rnr_timer is 32, at most 31"
    );
    assert_eq!(
        refuse(QpAttr {
            path_mtu: Mtu(0),
            ..good
        }),
        "path MTU code 0 is reserved"
    );
    assert_eq!(
        refuse(QpAttr {
            path_mtu: Mtu(6),
            ..good
        }),
        "path MTU code 6 is reserved"
    );
    let partial = QpAttr {
        mask: RTR - AttrMask::DEST_QPN - AttrMask::AV,
        ..good
    };
    assert_eq!(
        refuse(partial),
        "INIT to RTR needs the attributes AV | DEST_QPN"
    );
    rc.modify(&good).unwrap();
    let rts = QpAttr {
        mask: RTS,
        state: QpState::Rts,
        max_rd_atomic: 9,
        ..setup.attr(A)
    };
    assert_eq!(
        rc.modify(&rts).unwrap_err().to_string(),
        "max_rd_atomic is 9, at most 8"
    );
}

#[test]
fn query_tells_the_state_the_attributes_and_the_next_psns() {
    let mut pair = Pair::new(&Setup {
        psn_a: 0xFF_FFFF,
        ..Setup::default()
    });
    assert_eq!(pair.hosts[A].rc.query().mask, INIT | RTR | RTS);
    pair.hosts[B].recv(1, 1000);
    pair.hosts[A].send(1, &[0; 600]);
    pair.run();
    let (a, b) = (pair.hosts[A].rc.query(), pair.hosts[B].rc.query());
    assert_eq!(
        (a.state, a.sq_psn, a.rq_psn),
        (QpState::Rts, psn(2), psn(0x800))
    );
    assert_eq!((b.sq_psn, b.rq_psn), (psn(0x800), psn(2)));
    assert_eq!((a.dest_qpn, a.path_mtu), (qpn(0x12), Mtu::MTU_256));
    assert_eq!(Setup::default().rc(A).query().mask, AttrMask::empty());
}

#[test]
fn rts_to_rts_changes_the_rnr_timer() {
    let mut pair = Pair::new(&Setup {
        min_rnr_timer: 0,
        ..Setup::default()
    });
    let mask = AttrMask::MIN_RNR_TIMER;
    pair.hosts[B]
        .rc
        .modify(&QpAttr {
            mask,
            min_rnr_timer: 1,
            ..QpAttr::default()
        })
        .unwrap();
    pair.hosts[A].send(1, b"x");
    pair.run_until(Time::from_nanos(100_000));
    assert!(pair.hosts[B].count(Counter::RnrNaksSent) > 2);
    pair.hosts[B].recv(1, 10);
    pair.run();
}

#[test]
fn reset_forgets_everything_and_the_queue_pair_can_be_used_again() {
    let mut pair = Pair::new(&Setup::default());
    pair.network.partition(A, B);
    pair.hosts[A].recv(1, 64);
    pair.hosts[A].send(2, b"x");
    pair.drain_both();
    pair.hosts[A]
        .rc
        .modify(&QpAttr::to_state(QpState::Error))
        .unwrap();
    for side in [A, B] {
        let rc = &mut pair.hosts[side].rc;
        rc.modify(&QpAttr::to_state(QpState::Reset)).unwrap();
        assert_eq!(
            (rc.state(), rc.query().mask),
            (QpState::Reset, AttrMask::empty())
        );
        assert_eq!(
            (rc.poll_completion(), rc.poll_event(), rc.poll_timeout()),
            (None, None, None)
        );
        assert!(!rc.has_output());
        to_state(
            rc,
            &Setup {
                psn_a: 5,
                psn_b: 6,
                ..Setup::default()
            }
            .attr(side),
            QpState::Rts,
        );
    }
    pair.network.heal(A, B);
    pair.hosts[B].recv(20, 1000);
    pair.hosts[A].send(10, &[9; 600]);
    pair.run();
    assert_eq!(pair.hosts[B].completions[0].wr_id, 20);
    assert_eq!(pair.hosts[A].completions[0].wr_id, 10);
    assert_eq!(pair.hosts[A].count(Counter::RequestsSent), 4);
}

/// The bytes of a SEND of A's first PSN.
fn request(bth: Bth) -> Vec<u8> {
    let mut out = [0; MAX_PACKET_LEN];
    let len = PacketHeader::new(bth)
        .emit_packet(b"data", &mut out)
        .unwrap();
    out[..len].to_vec()
}

fn good_bth() -> Bth {
    Bth {
        ack_request: true,
        ..Bth::new(Opcode::RC_SEND_ONLY, qpn(0x12), psn(0x100))
    }
}

/// Gives a fresh B one packet; returns the counters that moved, but for those that count every packet and message.
fn admit(state: QpState, from: AddressVector, bytes: &[u8]) -> Vec<&'static str> {
    let mut rc: Rc = Setup::default().rc_in(B, state);
    let mut memory = VecMemory::new(64);
    if state != QpState::Reset {
        let sge = memory.alloc(64);
        rc.post_recv(&RecvWr {
            wr_id: 1,
            sges: &[sge],
        })
        .unwrap();
    }
    rc.handle_datagram(Time::ZERO, &from, bytes, &mut memory);
    let counters = rc.counters().iter();
    counters
        .filter(|(name, _)| {
            !["packets_received", "sends_received", "receives_flushed"].contains(name)
        })
        .filter_map(|(name, count)| (count > 0).then_some(name))
        .collect()
}

#[test]
fn packets_that_are_not_for_this_queue_pair_are_dropped_by_name() {
    let peer = AddressVector::new(gid(2), gid(1));
    let rts = |from, bth| admit(QpState::Rts, from, &request(bth));
    assert_eq!(rts(peer, good_bth()), ["requests_received"]);
    assert_eq!(
        rts(
            peer,
            Bth {
                dest_qpn: qpn(0x13),
                ..good_bth()
            }
        ),
        ["dropped_wrong_qpn"]
    );
    assert_eq!(
        rts(
            peer,
            Bth {
                pkey: PKey(0x8001),
                ..good_bth()
            }
        ),
        ["dropped_wrong_pkey"]
    );
    assert_eq!(
        rts(AddressVector::new(gid(2), gid(3)), good_bth()),
        ["dropped_wrong_source"]
    );
    assert_eq!(
        rts(AddressVector::new(gid(3), gid(1)), good_bth()),
        ["dropped_wrong_source"]
    );
    // A limited member may talk to a full one.
    assert_eq!(
        rts(
            peer,
            Bth {
                pkey: PKey(0x7FFF),
                ..good_bth()
            }
        ),
        ["requests_received"]
    );
    let mut uc = request(good_bth());
    uc[0] = 0x24;
    assert_eq!(admit(QpState::Rts, peer, &uc), ["dropped_wrong_transport"]);
    let mut versioned = request(good_bth());
    versioned[1] |= 3;
    assert_eq!(admit(QpState::Rts, peer, &versioned), ["dropped_malformed"]);
    assert_eq!(
        admit(QpState::Rts, peer, &request(good_bth())[..11]),
        ["dropped_malformed"]
    );
    assert_eq!(admit(QpState::Rts, peer, &[]), ["dropped_malformed"]);
    let mut read_response = request(good_bth());
    read_response[0] = 0x10;
    assert_eq!(
        admit(QpState::Rts, peer, &read_response),
        ["dropped_stale_response"]
    );
    for state in [QpState::Reset, QpState::Init, QpState::Error] {
        assert_eq!(
            admit(state, peer, &request(good_bth())),
            ["dropped_wrong_state"],
            "{state}"
        );
    }
    assert_eq!(
        admit(QpState::Rtr, peer, &request(good_bth())),
        ["requests_received"]
    );
    assert_eq!(
        admit(QpState::Rtr, peer, &read_response),
        ["dropped_wrong_state"]
    );
}

/// The same link-local address on two interfaces is two hosts.
#[test]
fn a_link_local_address_on_another_interface_is_a_wrong_source() {
    let address = |host: u16| Gid::from_ip(Ipv6Addr::new(0xFE80, 0, 0, 0, 0, 0, 0, host).into());
    let on = |scope_id| AddressVector {
        scope_id,
        ..AddressVector::new(address(2), address(1))
    };
    let mut attr = Setup::default().attr(B);
    attr.av = on(3);
    let mut memory = VecMemory::new(64);
    for (scope_id, counter) in [
        (4, Counter::DroppedWrongSource),
        (3, Counter::DroppedReceiverNotReady),
    ] {
        let mut rc = Setup::default().rc(B);
        to_state(&mut rc, &attr, QpState::Rts);
        rc.handle_datagram(Time::ZERO, &on(scope_id), &request(good_bth()), &mut memory);
        assert_eq!(rc.counters().get(counter), 1, "{scope_id}");
    }
}

#[test]
fn the_acknowledgement_leaves_before_the_completion_is_visible() {
    let mut rc = Setup::default().rc_in(B, QpState::Rtr);
    let mut memory = VecMemory::new(64);
    let sge = memory.alloc(64);
    rc.post_recv(&RecvWr {
        wr_id: 1,
        sges: &[sge],
    })
    .unwrap();
    let from = AddressVector::new(gid(2), gid(1));
    rc.handle_datagram(Time::ZERO, &from, &request(good_bth()), &mut memory);
    assert!(rc.has_output());
    assert_eq!(rc.poll_completion(), None);
    let mut out = [0; MAX_PACKET_LEN];
    assert!(
        rc.poll_transmit(Time::ZERO, &mut memory, &mut out)
            .is_some()
    );
    assert_eq!(rc.poll_completion().map(|c| c.wr_id), Some(1));
    assert_eq!(rc.poll_event(), Some(QpEvent::CommEst));
    assert_eq!(rc.poll_event(), None);
    assert!(!rc.has_output());
}

/// A peer asks for as much as it likes: its READ must not keep the completions of other messages back.
#[test]
fn an_acknowledgement_behind_the_data_of_a_read_keeps_no_completion_back() {
    let mut pair = Pair::new(&Setup::default());
    let source = pair.hosts[B].memory.store(&[7; 5000]);
    let remote = pair.hosts[B].memory.offer(source);
    let target = pair.hosts[A].memory.alloc(5000);
    pair.hosts[A].send_sges(10, SendOp::Read(remote), &[target]);
    pair.hosts[A].send(11, b"message");
    pair.hosts[B].recv(20, 10);
    let mut out = [0; MAX_PACKET_LEN];
    let [a, b] = &mut pair.hosts;
    while let Some(sent) = a.rc.poll_transmit(Time::ZERO, &mut a.memory, &mut out) {
        let (from, packet) = (sent.av.reversed(), &out[..sent.len]);
        b.rc.handle_datagram(Time::ZERO, &from, packet, &mut b.memory);
    }
    let sent = b.rc.poll_transmit(Time::ZERO, &mut b.memory, &mut out);
    assert!(sent.is_some(), "data, and not the last");
    assert_eq!(b.rc.poll_completion().map(|c| c.wr_id), Some(20));
    while b
        .rc
        .poll_transmit(Time::ZERO, &mut b.memory, &mut out)
        .is_some()
    {}
    assert_eq!(b.count(Counter::ReadResponsesSent), 20);
    assert_eq!(b.count(Counter::AcksSent), 1);
}

#[test]
fn a_timeout_gives_its_retransmission_in_the_same_drain() {
    let mut rc = Setup::default().rc_in(A, QpState::Rts);
    let mut memory = VecMemory::new(64);
    let mut out = [0; MAX_PACKET_LEN];
    rc.post_send(&SendWr::default()).unwrap();
    assert!(
        rc.poll_transmit(Time::ZERO, &mut memory, &mut out)
            .is_some()
    );
    assert!(
        rc.poll_transmit(Time::ZERO, &mut memory, &mut out)
            .is_none()
    );
    let due = rc.poll_timeout().expect("an answer is waited for");
    assert_eq!(due, Time::from_nanos(4_096 << 14));
    // Too early: nothing happens.
    rc.handle_timeout(Time::from_nanos(due.as_nanos() - 1));
    assert!(
        rc.poll_transmit(Time::ZERO, &mut memory, &mut out)
            .is_none()
    );
    rc.handle_timeout(due);
    rc.handle_timeout(due);
    assert!(rc.poll_transmit(due, &mut memory, &mut out).is_some());
    assert!(rc.poll_transmit(due, &mut memory, &mut out).is_none());
    assert_eq!(rc.counters().get(Counter::AckTimeouts), 1);
    // The next wait is twice as long, all further ones four times.
    let timeout = 4_096 << 14;
    for waited in [1 + 2, 1 + 2 + 4, 1 + 2 + 4 + 4] {
        let due = Time::from_nanos(waited * timeout);
        assert_eq!(rc.poll_timeout(), Some(due));
        rc.handle_timeout(due);
        assert!(rc.poll_transmit(due, &mut memory, &mut out).is_some());
    }
}

#[test]
fn two_limited_members_of_a_partition_do_not_hear_each_other() {
    let attr = QpAttr {
        pkey: PKey(0x7FFF),
        ..Setup::default().attr(B)
    };
    let mut memory = VecMemory::new(64);
    let from = AddressVector::new(gid(2), gid(1));
    for (pkey, dropped) in [(0x7FFF, 1), (0xFFFF, 0), (0x8001, 1)] {
        let mut rc = Setup::default().rc(B);
        to_state(&mut rc, &attr, QpState::Rts);
        let bytes = request(Bth {
            pkey: PKey(pkey),
            ..good_bth()
        });
        rc.handle_datagram(Time::ZERO, &from, &bytes, &mut memory);
        assert_eq!(
            rc.counters().get(Counter::DroppedWrongPkey),
            dropped,
            "{pkey:#x}"
        );
    }
}

#[test]
fn progress_starts_the_acknowledgement_timer_anew() {
    let mut pair = Pair::new(&Setup::default());
    let wait = 4_096 << 14;
    pair.network.partition(A, B);
    pair.hosts[A].send(1, b"x");
    pair.hosts[A].send(2, b"y");
    pair.drain_both();
    assert_eq!(
        pair.hosts[A].rc.poll_timeout(),
        Some(Time::from_nanos(wait))
    );
    let now = pair.clock.advance_to(Time::from_nanos(50_000_000));
    let ack = Bth::new(Opcode::RC_ACKNOWLEDGE, qpn(0x11), psn(0x100));
    let header = PacketHeader::new(ack).with_aeth(Aeth {
        syndrome: Syndrome::ACK,
        msn: 1,
    });
    let mut out = [0; MAX_PACKET_LEN];
    let len = header.emit_packet(&[], &mut out).unwrap();
    let from = AddressVector::new(gid(1), gid(2));
    let host = &mut pair.hosts[A];
    host.rc
        .handle_datagram(now, &from, &out[..len], &mut host.memory);
    assert_eq!(
        host.rc.poll_timeout(),
        Some(Time::from_nanos(50_000_000 + wait))
    );
}

#[test]
fn the_acknowledgement_timer_rests_while_the_receiver_is_not_ready() {
    // 655 ms of silence asked for, 67 ms of patience.
    let mut pair = Pair::new(&Setup {
        min_rnr_timer: 0,
        retry: 0,
        ..Setup::default()
    });
    pair.hosts[A].send(1, b"x");
    pair.run_until(Time::from_nanos(600_000_000));
    pair.hosts[B].recv(1, 10);
    pair.run();
    assert_eq!(pair.hosts[A].count(Counter::AckTimeouts), 0);
    assert_eq!(pair.hosts[A].count(Counter::RequestsSent), 2);
    assert!(pair.hosts[A].completions[0].status.is_success());
}

#[test]
fn memory_that_cannot_be_read_is_asked_once() {
    let mut pair = Pair::new(&Setup::default()).lose(&[0]);
    pair.hosts[A].send(1, b"first");
    let gone = pair.hosts[A].memory.store(b"gone");
    pair.hosts[A].memory.vanish(gone);
    pair.hosts[A].send_sges(2, SendOp::Send, &[gone]);
    for _ in 0..5 {
        pair.drain_both();
        assert!(!pair.hosts[A].rc.has_output());
    }
    assert_eq!(pair.hosts[A].memory.gathers, 2);
}

#[test]
fn padding_is_zero_whatever_the_buffer_held() {
    let mut rc = Setup::default().rc_in(A, QpState::Rts);
    let wr = SendWr {
        data: SendData::Inline(b"12345"),
        ..SendWr::default()
    };
    rc.post_send(&wr).unwrap();
    let mut out = [0xCC; MAX_PACKET_LEN];
    let transmit = rc
        .poll_transmit(Time::ZERO, &mut VecMemory::new(0), &mut out)
        .unwrap();
    assert_eq!(transmit.len, Bth::LEN + 8);
    assert_eq!(out[Bth::LEN..transmit.len], *b"12345\0\0\0");
}
