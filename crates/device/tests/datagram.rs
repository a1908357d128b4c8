//! Datagrams between devices on one in-memory wire: content, keys, groups, what is dropped and what fails.

mod support;

use oarlock_device::{Access, AsyncEvent, Error, Qp, QpInit, Region};
use oarlock_port::{Faults, MEM_IFINDEX, MemWire, Port};
use oarlock_transport::{
    AttrMask, Counter, QpAttr, QpState, SendData, SendOp, SendWr, UdDestination, WcOpcode, WcStatus,
};
use oarlock_wire::{AddressVector, Gid, Grh, QKey, Qpn};
use support::{
    Side, Source, content, eventually, filled, gid, group, host, pair, pair_with, pattern, recv,
    to_group, ud_init, ud_ready, ud_to, whole,
};

fn send(from: &Qp, region: &Region, to: UdDestination) {
    from.post_send(&SendWr {
        data: SendData::Sges(&[whole(region)]),
        ud: Some(to),
        ..SendWr::default()
    })
    .expect("post_send");
}

/// A receive buffer for a message of `len` bytes.
fn posted(side: &Side, qp: &Qp, wr_id: u64, len: usize) -> Region {
    let region = side
        .pd
        .allocate(Grh::LEN + len, Access::LOCAL_WRITE)
        .expect("region");
    recv(qp, wr_id, &[whole(&region)]);
    region
}

#[test]
fn messages_up_to_the_path_mtu_arrive_unchanged_with_their_sender() {
    let (a, b) = pair();
    let (qa, qb) = (ud_ready(&a), ud_ready(&b));
    for (i, len) in [1, 3, 4, 1023, 1024].into_iter().enumerate() {
        let target = posted(&b, &qb, 7, len);
        let bytes = pattern(i, len);
        send(&qa, &filled(&a, &bytes), ud_to(&a, &b, &qb));
        let received = b.collect(1).remove(0).completion;
        assert_eq!((received.wr_id, received.status), (7, WcStatus::SUCCESS));
        assert_eq!(received.opcode, WcOpcode::RECV);
        assert_eq!(received.byte_len as usize, Grh::LEN + len);
        assert_eq!((received.src_qp, received.has_grh), (qa.qpn(), true));
        let placed = content(&target);
        assert_eq!(placed[Grh::LEN..], bytes);
        let grh = Grh::parse(placed.first_chunk().expect("40 bytes")).expect("a GRH");
        assert_eq!(
            (grh.source, grh.destination),
            (a.gid.to_ip(), b.gid.to_ip())
        );
        let sent = a.collect(1).remove(0).completion;
        assert_eq!((sent.status, sent.is_send), (WcStatus::SUCCESS, true));
    }
    assert_eq!(qb.counters().get(Counter::DatagramsReceived), 5);
    for side in [&a, &b] {
        for dropped in [
            "malformed",
            "no_such_qp",
            "no_such_group",
            "foreign_slot",
            "send_failed",
        ] {
            assert_eq!(side.counter(dropped), 0, "{dropped}");
        }
    }
}

#[test]
fn one_queue_pair_talks_to_many_and_each_answer_finds_its_way() {
    let wire = MemWire::new();
    let side = |last: u8| {
        let port = host(&wire, last).open(last).expect("slot");
        Side::new(Source::new(Port::Mem(port)), gid(last))
    };
    let server = side(1);
    let server_qp = ud_ready(&server);
    let clients: Vec<_> = (2..6).map(side).collect();
    let qps: Vec<_> = clients.iter().map(ud_ready).collect();
    let mut targets = Vec::new();
    for (n, (client, qp)) in clients.iter().zip(&qps).enumerate() {
        targets.push((posted(&server, &server_qp, n as u64, 4), client, qp));
    }
    let answers: Vec<_> = clients
        .iter()
        .zip(&qps)
        .map(|(client, qp)| posted(client, qp, 9, 4))
        .collect();
    for (n, (client, qp)) in clients.iter().zip(&qps).enumerate() {
        send(
            qp,
            &filled(client, &[n as u8; 4]),
            ud_to(client, &server, &server_qp),
        );
    }
    for cqe in server.collect(clients.len()) {
        let request = content(&targets[cqe.completion.wr_id as usize].0);
        let who = usize::from(request[Grh::LEN]);
        assert_eq!(cqe.completion.src_qp, qps[who].qpn());
        let grh = Grh::parse(request.first_chunk().expect("40 bytes")).expect("a GRH");
        let back = UdDestination {
            av: AddressVector::new(server.gid, Gid::from_ip(grh.source)),
            remote_qpn: cqe.completion.src_qp,
            remote_qkey: support::KEY,
        };
        send(&server_qp, &filled(&server, &[who as u8 + 100; 4]), back);
    }
    for (n, (client, answer)) in clients.iter().zip(&answers).enumerate() {
        // Its own send, and the answer.
        let all = client.collect(2);
        assert!(all.iter().all(|cqe| cqe.completion.status.is_success()));
        assert_eq!(content(answer)[Grh::LEN..], [n as u8 + 100; 4]);
    }
}

#[test]
fn messages_to_two_processes_of_one_host_part() {
    let wire = MemWire::new();
    let there = host(&wire, 2);
    let open = |host: &oarlock_port::MemHost, slot, last| {
        let port = host.open(slot).expect("slot");
        Side::new(Source::new(Port::Mem(port)), gid(last))
    };
    let a = open(&host(&wire, 1), 1, 1);
    let (b, c) = (open(&there, 2, 2), open(&there, 3, 2));
    let (qa, qb, qc) = (ud_ready(&a), ud_ready(&b), ud_ready(&c));
    let targets: Vec<_> = (0..4)
        .map(|n| (posted(&b, &qb, n, 8), posted(&c, &qc, n, 8)))
        .collect();
    let source = filled(&a, b"the same");
    for _ in 0..4 {
        send(&qa, &source, ud_to(&a, &b, &qb));
        send(&qa, &source, ud_to(&a, &c, &qc));
    }
    for side in [&b, &c] {
        let all = side.collect(4);
        assert!(all.iter().all(|cqe| cqe.completion.status.is_success()));
        assert_eq!(side.counter("foreign_slot"), 0);
        assert_eq!(side.counter("no_such_qp"), 0);
    }
    drop(targets);
}

#[test]
fn immediate_inline_and_solicited_pass() {
    let (a, b) = pair();
    let (qa, qb) = (ud_ready(&a), ud_ready(&b));
    let target = posted(&b, &qb, 1, 6);
    qa.post_send(&SendWr {
        op: SendOp::SendWithImm(0xdead_beef),
        data: SendData::Inline(b"inline"),
        solicited: true,
        ud: Some(ud_to(&a, &b, &qb)),
        ..SendWr::default()
    })
    .expect("post_send");
    let received = b.collect(1).remove(0).completion;
    assert_eq!(
        (received.imm, received.solicited),
        (Some(0xdead_beef), true)
    );
    assert_eq!(content(&target)[Grh::LEN..], *b"inline");
}

#[test]
fn what_breaks_a_rule_is_dropped_counted_and_takes_no_buffer() {
    let (a, b) = pair();
    let (qa, qb) = (ud_ready(&a), ud_ready(&b));
    let to = ud_to(&a, &b, &qb);
    let source = filled(&a, b"message");
    // Nobody has posted a receive yet.
    send(&qa, &source, to);
    eventually("the drop", || {
        qb.counters().get(Counter::DroppedReceiverNotReady) == 1
    });
    let target = posted(&b, &qb, 1, 7);
    send(
        &qa,
        &source,
        UdDestination {
            remote_qkey: QKey(1),
            ..to
        },
    );
    let stranger = Qpn::truncate(qb.qpn().get() ^ 1);
    send(
        &qa,
        &source,
        UdDestination {
            remote_qpn: stranger,
            ..to
        },
    );
    send(&qa, &source, to);
    assert_eq!(b.collect(1)[0].completion.status, WcStatus::SUCCESS);
    assert_eq!(content(&target)[Grh::LEN..], *b"message");
    assert_eq!(qb.counters().get(Counter::DroppedWrongQkey), 1);
    assert_eq!(b.counter("no_such_qp"), 1);
    // Whatever became of them, they were sent.
    assert!(
        a.collect(4)
            .iter()
            .all(|cqe| cqe.completion.status.is_success())
    );
}

#[test]
fn services_do_not_mix() {
    let (a, b) = pair();
    let ud = ud_ready(&a);
    let (rc, _peer) = support::connected(&b, &a);
    send(&ud, &filled(&a, b"x"), ud_to(&a, &b, &rc));
    eventually("the drop", || {
        rc.counters().get(Counter::DroppedWrongTransport) == 1
    });
    assert_eq!(rc.state(), QpState::Rts);
    // And connected messages to a datagram queue pair.
    let target = ud_ready(&b);
    let sender = a.qp(QpInit::default());
    let path = support::Path::between(&a, &b);
    support::to_init(&sender);
    support::to_rtr(&sender, &target, &path);
    support::to_rts(&sender, &path);
    support::send(&sender, 1, &[whole(&filled(&a, b"x"))]);
    eventually("the drop", || {
        target.counters().get(Counter::DroppedWrongTransport) > 0
    });
}

#[test]
fn a_message_longer_than_its_buffer_is_dropped_and_the_buffer_waits_on() {
    let (a, b) = pair();
    let (qa, qb) = (ud_ready(&a), ud_ready(&b));
    let _target = posted(&b, &qb, 1, 2);
    send(&qa, &filled(&a, b"three"), ud_to(&a, &b, &qb));
    eventually("the drop", || {
        qb.counters().get(Counter::DroppedNoRoom) == 1
    });
    assert_eq!(qb.state(), QpState::Rts);
    send(&qa, &filled(&a, b"2b"), ud_to(&a, &b, &qb));
    assert_eq!(b.collect(1)[0].completion.wr_id, 1);
}

#[test]
fn foreign_memory_and_memory_that_is_gone_are_protection_errors() {
    let (a, b) = pair();
    let (qa, qb) = (ud_ready(&a), ud_ready(&b));
    let other = oarlock_device::Pd::new(&b.context);
    let foreign = other.allocate(100, Access::LOCAL_WRITE).expect("region");
    recv(&qb, 1, &[whole(&foreign)]);
    send(&qa, &filled(&a, b"x"), ud_to(&a, &b, &qb));
    assert_eq!(
        b.collect_any(1)[0].completion.status,
        WcStatus::LOC_PROT_ERR
    );
    assert!(content(&foreign).iter().all(|byte| *byte == 0));
    // On the sending side it stops the sends, and nothing else.
    assert_eq!(a.collect(1)[0].completion.status, WcStatus::SUCCESS);
    let gone = filled(&a, b"gone");
    let sge = whole(&gone);
    gone.deregister().expect("no window");
    qa.post_send(&SendWr {
        data: SendData::Sges(&[sge]),
        ud: Some(ud_to(&a, &b, &qb)),
        ..SendWr::default()
    })
    .expect("post_send");
    assert_eq!(
        a.collect_any(1)[0].completion.status,
        WcStatus::LOC_PROT_ERR
    );
    assert_eq!(qa.state(), QpState::Sqe);
    qa.modify(&QpAttr::to_state(QpState::Rts)).expect("again");
    assert_eq!(qa.state(), QpState::Rts);
}

#[test]
fn refusals_say_which_rule() {
    let (a, b) = pair();
    let qa = ud_ready(&a);
    let message = |error: Error| error.to_string();
    let long = a.pd.allocate(1025, Access::LOCAL_WRITE).expect("region");
    let to = ud_to(&a, &b, &qa);
    let post = |data: SendData<'_>, ud| {
        qa.post_send(&SendWr {
            data,
            ud,
            ..SendWr::default()
        })
        .map_err(message)
        .unwrap_err()
    };
    assert_eq!(
        post(SendData::Sges(&[whole(&long)]), Some(to)),
        "datagram of 1025 bytes does not fit the path MTU of 1024"
    );
    assert_eq!(
        post(SendData::Inline(b""), None),
        "a send on a UD queue pair needs a destination"
    );
    let rc = a.qp(QpInit::default());
    assert_eq!(
        rc.attach_multicast(group(1)).map_err(message),
        Err("attach_multicast needs a UD queue pair, this one is RC".to_owned())
    );
    assert_eq!(
        rc.detach_multicast(group(1)).map_err(message),
        Err("detach_multicast needs a UD queue pair, this one is RC".to_owned())
    );
    assert_eq!(
        qa.attach_multicast(b.gid).map_err(message),
        Err("10.0.0.2 is not the address of a multicast group".to_owned())
    );
    assert_eq!(
        qa.detach_multicast(group(1)).map_err(message),
        Err("the queue pair is not attached to group 239.0.0.1".to_owned())
    );
    assert_eq!(
        ud_init(&a)
            .modify(&QpAttr {
                mask: AttrMask::STATE | AttrMask::AV,
                state: QpState::Rtr,
                ..QpAttr::default()
            })
            .map_err(message),
        Err("INIT to RTR does not take the attributes AV".to_owned())
    );
}

#[test]
fn every_attached_queue_pair_of_every_process_gets_a_copy_and_the_sender_too() {
    let (a, b) = pair();
    let sender = ud_ready(&a);
    let members = [ud_ready(&a), ud_ready(&b), ud_ready(&b)];
    let sides = [&a, &b, &b];
    let outsider = ud_ready(&b);
    sender.attach_multicast(group(1)).expect("attach");
    let mut targets = vec![posted(&a, &sender, 0, 5)];
    for (side, qp) in sides.iter().zip(&members) {
        qp.attach_multicast(group(1)).expect("attach");
        // Once more changes nothing: it gets each message once.
        qp.attach_multicast(group(1)).expect("attach again");
        targets.push(posted(side, qp, 1, 5));
    }
    let unused = posted(&b, &outsider, 2, 5);
    send(&sender, &filled(&a, b"hello"), to_group(&a, group(1)));
    // The send, and the copies of the two on this device.
    let here = a.collect(3);
    let there = b.collect(2);
    let received = here
        .iter()
        .chain(&there)
        .filter(|cqe| !cqe.completion.is_send);
    for cqe in received {
        assert_eq!(cqe.completion.status, WcStatus::SUCCESS);
        assert_eq!(cqe.completion.src_qp, sender.qpn());
    }
    for target in &targets {
        let placed = content(target);
        assert_eq!(placed[Grh::LEN..], *b"hello");
        let grh = Grh::parse(placed.first_chunk().expect("40 bytes")).expect("a GRH");
        assert_eq!(grh.destination, group(1).to_ip());
    }
    assert!(content(&unused).iter().all(|byte| *byte == 0));
    for qp in members.iter().chain([&sender]) {
        assert_eq!(qp.counters().get(Counter::DatagramsReceived), 1);
    }
    assert_eq!(outsider.counters().get(Counter::DatagramsReceived), 0);
}

#[test]
fn a_group_is_an_address_and_a_key_is_a_key() {
    let (a, b) = pair();
    let sender = ud_ready(&a);
    let (one, two) = (ud_ready(&b), ud_ready(&b));
    one.attach_multicast(group(1)).expect("attach");
    two.attach_multicast(group(2)).expect("attach");
    let targets = [posted(&b, &one, 1, 3), posted(&b, &two, 2, 3)];
    for (number, text) in [(1, b"one"), (2, b"two")] {
        send(&sender, &filled(&a, text), to_group(&a, group(number)));
    }
    b.collect(2);
    assert_eq!(content(&targets[0])[Grh::LEN..], *b"one");
    assert_eq!(content(&targets[1])[Grh::LEN..], *b"two");
    send(
        &sender,
        &filled(&a, b"bad"),
        UdDestination {
            remote_qkey: QKey(3),
            ..to_group(&a, group(1))
        },
    );
    eventually("the drop", || {
        one.counters().get(Counter::DroppedWrongQkey) == 1
    });
    assert_eq!(two.counters().get(Counter::DroppedWrongQkey), 0);
}

#[test]
fn membership_lasts_from_the_first_attachment_to_the_end_of_the_last() {
    let (a, b) = pair();
    let sender = ud_ready(&a);
    let source = filled(&a, b"x");
    let (one, two) = (ud_ready(&b), ud_ready(&b));
    let unreceived = |side: &Side| side.counter("port_group_not_joined");
    let say = || send(&sender, &source, to_group(&a, group(1)));
    for qp in [&one, &two] {
        qp.attach_multicast(group(1)).expect("attach");
    }
    one.detach_multicast(group(1)).expect("detach");
    let target = posted(&b, &two, 1, 1);
    say();
    assert_eq!(b.collect(1)[0].qpn(), two.qpn());
    assert_eq!(content(&target)[Grh::LEN..], *b"x");
    assert_eq!(one.counters().get(Counter::DatagramsReceived), 0);
    assert!(matches!(
        one.detach_multicast(group(1)),
        Err(Error::NotAttached(_))
    ));
    // Dropping the queue pair detaches it, and the process leaves with the last.
    drop(two);
    one.attach_multicast(group(2)).expect("attach");
    let target = posted(&b, &one, 2, 1);
    say();
    send(&sender, &source, to_group(&a, group(2)));
    assert_eq!(b.collect(1)[0].completion.wr_id, 2);
    assert_eq!(content(&target)[Grh::LEN..], *b"x");
    assert_eq!(b.counter("no_such_group"), 0);
    assert_eq!(unreceived(&b), 0, "the wire keeps it away");
    // And may come again.
    one.attach_multicast(group(1)).expect("attach");
    let _target = posted(&b, &one, 3, 1);
    say();
    assert_eq!(b.collect(1)[0].completion.wr_id, 3);
}

#[test]
fn an_interface_that_is_not_there_cannot_be_joined() {
    let wire = MemWire::new();
    let port = host(&wire, 1).open(1).expect("slot");
    let device = oarlock_device::DeviceInfo {
        ifindex: MEM_IFINDEX + 1,
        ..support::device("mem1", gid(1))
    };
    let side = Side::with_device(Source::new(Port::Mem(port)), device);
    let qp = ud_ready(&side);
    let refused = qp.attach_multicast(group(1)).expect_err("no interface");
    assert!(matches!(refused, Error::CannotJoin { .. }), "{refused}");
    assert!(
        refused
            .to_string()
            .starts_with("cannot join group 239.0.0.1: ")
    );
    // Nothing is left of the attempt.
    assert!(matches!(
        qp.detach_multicast(group(1)),
        Err(Error::NotAttached(_))
    ));
}

#[test]
fn over_a_bad_network_some_messages_arrive_and_none_is_changed() {
    let (a, b) = pair_with(Faults {
        seed: 11,
        loss: 0.1,
        duplicate: 0.1,
        reorder: 0.1,
    });
    let (qa, qb) = (ud_ready(&a), ud_ready(&b));
    let mut targets: Vec<_> = (0..16).map(|n| posted(&b, &qb, n, 100)).collect();
    let (mut sent, mut arrived) = (0_u8, 0);
    eventually("a hundred messages", || {
        sent = sent.wrapping_add(1);
        send(&qa, &filled(&a, &[sent; 100]), ud_to(&a, &b, &qb));
        assert!(a.collect(1)[0].completion.status.is_success());
        let mut some = [const { None }; 16];
        arrived += b.cq.poll(&mut some).expect("poll");
        for cqe in some.iter().flatten() {
            let completion = &cqe.completion;
            assert!(completion.status.is_success());
            let number = completion.wr_id as usize;
            let placed = content(&targets[number]);
            let first = placed[Grh::LEN];
            assert!(placed[Grh::LEN..].iter().all(|byte| *byte == first));
            targets[number] = posted(&b, &qb, number as u64, 100);
        }
        arrived >= 100
    });
    assert!(a.counter("port_fault_lost") > 0, "the faults were on");
}

#[test]
fn a_dead_service_flushes_and_ends_membership() {
    let (service, theirs) = std::os::unix::net::UnixStream::pair().expect("pair");
    let wire = MemWire::new();
    let port = host(&wire, 1).open(1).expect("slot");
    let source = Source::new(Port::Mem(port)).with_service(theirs.into());
    let side = Side::new(source, gid(1));
    let qp = ud_ready(&side);
    qp.attach_multicast(group(1)).expect("attach");
    let _target = posted(&side, &qp, 1, 1);
    drop(service);
    assert_eq!(
        side.collect_any(1)[0].completion.status,
        WcStatus::WR_FLUSH_ERR
    );
    eventually("device fatal", || side.context.endpoint().is_gone());
    assert!(matches!(
        qp.attach_multicast(group(2)),
        Err(Error::DeviceFatal)
    ));
    qp.detach_multicast(group(1)).expect("detach");
    eventually("the event", || {
        side.context.try_async_event() == Some(AsyncEvent::DeviceFatal)
    });
}
