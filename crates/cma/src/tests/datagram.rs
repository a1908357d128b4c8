//! Identifiers for datagrams: SIDR_REQ and SIDR_REP, Q_Keys, and what a datagram identifier does not do.

use super::world::{PORT, SECOND, World, addr, errno, qpn, ud};
use crate::{
    AsyncEvent, BacklogOverflow, Config, ConnectParam, Counter, Disconnect, Ece, Errno, Error,
    EventKind, Id, PRIVATE_DATA_UD_ACCEPT, PRIVATE_DATA_UD_CONNECT, QpAttr, QpAttrMask, QpState,
    QpType, State, StateName, UdInitAttr,
};
use oarlock_wire::{
    CmMessage, Gid, IpCmHeader, PrivateData, Psn, QKey, Qpn, RejReason, ServiceId, SidrStatus, Time,
};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

fn listening() -> World {
    let mut world = World::pair();
    world.b().ud_listener(addr("0.0.0.0", PORT), 0);
    world
}

/// A's identifier with a path to B.
fn resolved(world: &mut World) -> Id {
    let id = world.a().ud_id();
    world.resolve(0, id, None, addr("10.0.0.2", PORT));
    id
}

fn with_qpn(n: u32) -> ConnectParam {
    ConnectParam {
        qpn: qpn(n),
        ..ConnectParam::default()
    }
}

/// A's identifier, whose request has arrived, and B's child.
fn requested(world: &mut World) -> (Id, Id) {
    let active = resolved(world);
    world.connect(active, with_qpn(0x11));
    let event = world.b().expect(EventKind::CONNECT_REQUEST);
    (active, event.id)
}

/// R-PAR-7: a datagram identifier's request and answer carry private data, what an address handle is made of, queue
/// pair and Q_Key; the passive side has no ESTABLISHED.
#[test]
fn a_request_is_answered_with_queue_pair_and_q_key() {
    let mut world = listening();
    let active = resolved(&mut world);
    let asked = ConnectParam {
        private_data: b"who".to_vec(),
        ..with_qpn(0x11)
    };
    world.connect(active, asked);
    assert_eq!(
        world.a().cma.query(active).expect("exists").qpn,
        Some(qpn(0x11))
    );
    let request = world.b().expect(EventKind::CONNECT_REQUEST);
    let mut field = [0; PRIVATE_DATA_UD_CONNECT];
    field[..3].copy_from_slice(b"who");
    let param = ud(&request);
    assert_eq!(
        param.private_data.as_ref().expect("a field").as_bytes(),
        field
    );
    assert_eq!(
        (param.av.local, param.av.remote, param.qpn, param.qkey),
        (gid("10.0.0.2"), gid("10.0.0.1"), Qpn::default(), QKey(0))
    );
    let child = world.b().cma.query(request.id).expect("taken");
    assert_eq!(
        (child.state, child.qp_type, child.path),
        (State::Connect, QpType::UD, None)
    );
    assert_eq!(
        (child.local, child.remote),
        (
            Some(addr("10.0.0.2", PORT)),
            world.a().cma.query(active).expect("exists").local
        )
    );
    assert_eq!(child.av.expect("known").remote, gid("10.0.0.1"));

    let answer = ConnectParam {
        private_data: b"me".to_vec(),
        ..with_qpn(0x12)
    };
    world.accept(request.id, answer);
    let event = world.a().expect(EventKind::ESTABLISHED);
    let mut field = [0; PRIVATE_DATA_UD_ACCEPT];
    field[..2].copy_from_slice(b"me");
    let param = ud(&event);
    assert_eq!(
        param.private_data.as_ref().expect("a field").as_bytes(),
        field
    );
    assert_eq!(
        (event.id, event.status, param.qpn, param.qkey),
        (active, 0, qpn(0x12), QKey::RDMA_UDP)
    );
    assert_eq!(
        (param.av.local, param.av.remote, param.av.hop_limit),
        (gid("10.0.0.1"), gid("10.0.0.2"), 64)
    );
    assert_eq!((param.sgid_index, param.port_num), (0, 1));
    let query = world.a().cma.query(active).expect("exists");
    // The peer's key says nothing about one's own queue pair, which is not made yet.
    assert_eq!(
        (query.state, query.remote_qpn, query.qkey),
        (State::Connect, Some(qpn(0x12)), None)
    );
    world.run(100 * SECOND);
    world.a().expect_nothing();
    world.b().expect_nothing();
    assert_eq!(world.network.sent, ["SIDR_REQ", "SIDR_REP"]);
}

fn gid(text: &str) -> Gid {
    Gid::from_ip(super::world::ip(text))
}

/// The service ID names the port space; the IP CM header is at the front of the private data, as in a REQ.
#[test]
fn the_request_carries_header_and_service_id() {
    let mut world = listening();
    let seen = Rc::new(Cell::new(None));
    let out = Rc::clone(&seen);
    world.tap = Some(Box::new(move |message| {
        if let CmMessage::SidrReq(req) = message {
            let header = req.private_data.as_bytes().first_chunk().expect("longer");
            out.set(Some((req.service_id, IpCmHeader::parse(header))));
        }
    }));
    let (active, _) = requested(&mut world);
    let (service_id, header) = seen.take().expect("sent");
    assert_eq!(service_id, ServiceId(0x0111_0000 + u64::from(PORT)));
    let header = header.expect("an IP CM header");
    let local = world.a().cma.query(active).expect("exists").local;
    assert_eq!(
        (header.source, header.source_port),
        local
            .map(|local| (local.ip(), local.port()))
            .expect("bound")
    );
    assert_eq!(header.destination, super::world::ip("10.0.0.2"));
}

/// Statuses of the peer arrive as they are: nobody listens is 1, a refusal 2, and what only a test can send as well.
#[test]
fn a_refusal_is_unreachable_with_the_peers_status() {
    let mut world = World::pair();
    let active = resolved(&mut world);
    world.connect(active, with_qpn(0x11));
    let event = world.a().expect(EventKind::UNREACHABLE);
    assert_eq!((event.id, event.status), (active, 1));

    let mut world = listening();
    let (active, passive) = requested(&mut world);
    let now = world.now();
    world
        .b()
        .cma
        .reject(now, passive, RejReason::CONSUMER_DEFINED, b"no")
        .expect("waits");
    world.settle();
    let event = world.a().expect(EventKind::UNREACHABLE);
    assert_eq!((event.id, event.status), (active, 2));
    let param = ud(&event);
    let data = param.private_data.as_ref().expect("a field").as_bytes();
    assert_eq!(
        (&data[..3], data.len()),
        (&b"no\0"[..], PRIVATE_DATA_UD_ACCEPT)
    );
    assert_eq!((param.qpn, param.qkey), (Qpn::default(), QKey(0)));
    let again = world
        .b()
        .cma
        .reject(now, passive, RejReason::CONSUMER_DEFINED, &[]);
    assert_eq!(errno(again).0, Errno::EINVAL);

    for status in [
        SidrStatus::NO_QP,
        SidrStatus::REDIRECT,
        SidrStatus::UNSUPPORTED_VERSION,
        SidrStatus(77),
    ] {
        let mut world = listening();
        world.tap = Some(Box::new(move |message| {
            if let CmMessage::SidrRep(rep) = message {
                rep.status = status;
            }
        }));
        let (_, passive) = requested(&mut world);
        world.accept(passive, with_qpn(0x12));
        let event = world.a().expect(EventKind::UNREACHABLE);
        assert_eq!(event.status, i32::from(status.0), "{status}");
        world.run(100 * SECOND);
        world.a().expect_nothing();
    }
}

#[test]
fn a_silent_peer_is_unreachable_after_the_kernels_65_seconds() {
    let mut world = listening();
    world.network.lose = vec!["SIDR_REQ"];
    let active = resolved(&mut world);
    let now = world.now();
    world
        .a()
        .cma
        .connect(now, active, with_qpn(0x11))
        .expect("a path");
    world.run(Duration::from_millis(16 * 4096 - 1));
    world.a().expect_nothing();
    world.run(Duration::from_millis(1));
    let event = world.a().expect(EventKind::UNREACHABLE);
    assert_eq!((event.id, event.status), (active, -110));
    assert_eq!(event.param.ud(), None);
}

#[test]
fn a_lost_request_or_answer_is_made_up_for() {
    for lost in ["SIDR_REQ", "SIDR_REP"] {
        let mut world = listening();
        world.network.lose = vec![lost];
        let active = resolved(&mut world);
        world.connect(active, with_qpn(0x11));
        if lost == "SIDR_REQ" {
            world.network.lose.clear();
            world.run(5 * SECOND);
        }
        let passive = world.b().expect(EventKind::CONNECT_REQUEST).id;
        world.accept(passive, with_qpn(0x12));
        world.network.lose.clear();
        world.run(5 * SECOND);
        world.a().expect(EventKind::ESTABLISHED);
        world.run(100 * SECOND);
        world.a().expect_nothing();
        world.b().expect_nothing();
    }
}

/// R-PAR-4: what does not fit is refused at the call, with both lengths.
#[test]
fn private_data_has_its_limits() {
    let mut world = listening();
    let active = resolved(&mut world);
    let now = world.now();
    let long = |len| ConnectParam {
        private_data: vec![1; len],
        ..with_qpn(0x11)
    };
    let refused = world.a().cma.connect(now, active, long(181));
    assert_eq!(
        errno(refused),
        (
            Errno::EINVAL,
            "181 bytes of private data, of which connect carries at most 180".to_owned()
        )
    );
    world.connect(active, long(180));
    let passive = world.b().expect(EventKind::CONNECT_REQUEST).id;
    let refused = world.b().cma.reject(
        now,
        passive,
        RejReason::CONSUMER_DEFINED,
        &[0; PRIVATE_DATA_UD_ACCEPT + 1],
    );
    assert_eq!(errno(refused).0, Errno::EINVAL);
    // A failed accept refuses the request, so that the peer does not wait for nothing.
    let refused = world.b().cma.accept(now, passive, None, long(137));
    assert_eq!(
        errno(refused).1,
        "137 bytes of private data, of which accept carries at most 136"
    );
    world.settle();
    assert_eq!(world.a().expect(EventKind::UNREACHABLE).status, 2);
    let late = world.b().cma.accept(now, passive, None, with_qpn(0x12));
    assert_eq!(errno(late).0, Errno::EINVAL);
}

/// The Q_Key of an identifier is settled once: by its recipe or by the caller.
#[test]
fn another_q_key_than_the_identifiers_is_an_address_error() {
    let custom = QKey(0x7654_3210);
    // (the active side made its queue pair first, its Q_Key in `connect`, what comes of an answer with `custom`)
    let cases = [
        (false, QKey(0), EventKind::ESTABLISHED),
        (false, custom, EventKind::ESTABLISHED),
        (false, QKey(1), EventKind::ADDR_ERROR),
        (true, QKey(0), EventKind::ADDR_ERROR),
    ];
    for (settled, own, outcome) in cases {
        let mut world = listening();
        let active = resolved(&mut world);
        if settled {
            world
                .a()
                .cma
                .init_qp_attr(active, QpState::INIT)
                .expect("a device");
        }
        let asked = ConnectParam {
            qkey: own,
            ..with_qpn(0x11)
        };
        world.connect(active, asked);
        let passive = world.b().expect(EventKind::CONNECT_REQUEST).id;
        let answer = ConnectParam {
            qkey: custom,
            ..with_qpn(0x12)
        };
        world.accept(passive, answer);
        assert_eq!(
            world.b().cma.init_qp_attr(passive, QpState::INIT),
            Ok(QpAttr::UdInit(UdInitAttr {
                qkey: custom,
                pkey_index: 0,
                port_num: 1
            }))
        );
        let event = world.a().expect(outcome);
        if outcome == EventKind::ESTABLISHED {
            assert_eq!((event.status, ud(&event).qkey), (0, custom));
        } else {
            assert_eq!(event.status, Errno::EINVAL.as_status());
            assert_eq!(ud(&event).qpn, Qpn::default());
        }
        let recipe = world.a().cma.init_qp_attr(active, QpState::INIT);
        let own = match own {
            QKey(0) => QKey::RDMA_UDP,
            own => own,
        };
        assert_eq!(
            recipe,
            Ok(QpAttr::UdInit(UdInitAttr {
                qkey: own,
                pkey_index: 0,
                port_num: 1
            }))
        );
        world.run(100 * SECOND);
        world.a().expect_nothing();
    }
}

#[test]
fn a_q_key_that_contradicts_an_earlier_one_is_refused_and_so_is_one_for_rc() {
    let mut world = listening();
    world.b().listener(addr("0.0.0.0", PORT), 0);
    let active = resolved(&mut world);
    let now = world.now();
    world
        .a()
        .cma
        .init_qp_attr(active, QpState::INIT)
        .expect("a device");
    let param = ConnectParam {
        qkey: QKey(5),
        ..with_qpn(0x11)
    };
    let refused = world.a().cma.connect(now, active, param.clone());
    assert_eq!(
        errno(refused),
        (
            Errno::EINVAL,
            "connect with Q_Key 0x00000005, while the identifier has 0x01234567".to_owned()
        )
    );
    let rc = world.resolved(addr("10.0.0.2", PORT));
    let refused = world.a().cma.connect(now, rc, param);
    assert_eq!(
        errno(refused).1,
        "connect with Q_Key 0x00000005: a connected queue pair has none"
    );
}

#[test]
fn malformed_and_foreign_requests_are_refused_with_status_2() {
    type Spoil = fn(&mut IpCmHeader, &mut [u8]);
    let cases: [(Spoil, Counter); 4] = [
        (|_, bytes| bytes[0] = 1, Counter::RequestsRejectedHeader),
        (|_, bytes| bytes[1] = 0x50, Counter::RequestsRejectedNotIp),
        (
            |header, bytes| {
                header.destination = super::world::ip("10.0.0.99");
                header.emit(bytes.first_chunk_mut().expect("longer"));
            },
            Counter::RequestsRejectedAddress,
        ),
        (
            |header, bytes| {
                header.destination = super::world::ip("127.0.0.1");
                header.emit(bytes.first_chunk_mut().expect("longer"));
            },
            Counter::RequestsRejectedAddress,
        ),
    ];
    for (spoil, counter) in cases {
        let mut world = listening();
        world.tap = Some(Box::new(move |message| {
            if let CmMessage::SidrReq(req) = message {
                let mut bytes = *req.private_data.as_bytes();
                let mut header =
                    IpCmHeader::parse(bytes.first_chunk().expect("longer")).expect("ours");
                spoil(&mut header, &mut bytes);
                req.private_data = PrivateData::from_slice(&bytes).expect("as long");
            }
        }));
        let active = resolved(&mut world);
        world.connect(active, with_qpn(0x11));
        assert_eq!(
            world.a().expect(EventKind::UNREACHABLE).status,
            2,
            "{counter:?}"
        );
        assert_eq!(world.b().cma.counters().get(counter), 1, "{counter:?}");
        assert_eq!(world.b().cma.connections(), 0);
    }
}

/// Public fault 54: what exceeds the backlog is dropped and counted, like a REQ, and comes again; as an option it is
/// answered.
#[test]
fn the_backlog_counts_datagram_requests() {
    let refusing = Config {
        backlog_overflow: BacklogOverflow::RejectNoResources,
        ..Config::default()
    };
    for config in [Config::default(), refusing] {
        let drops = config.backlog_overflow == BacklogOverflow::Drop;
        let mut world = World::with(&[Config::default(), config]);
        let listener = world.b().ud_listener(addr("0.0.0.0", PORT), 1);
        for n in [1, 2] {
            let active = resolved(&mut world);
            world.connect(active, with_qpn(n));
        }
        let backlog = world.b().cma.query(listener).expect("exists").backlog;
        let backlog = backlog.expect("listens");
        assert_eq!(
            (backlog.size, backlog.waiting, backlog.overflows),
            (1, 1, 1)
        );
        let counters = world.b().cma.counters();
        if drops {
            assert_eq!(counters.get(Counter::RequestsDroppedBacklog), 1);
            world.a().expect_nothing();
            world.b().expect(EventKind::CONNECT_REQUEST);
            world.run(5 * SECOND);
            world.b().expect(EventKind::CONNECT_REQUEST);
        } else {
            assert_eq!(counters.get(Counter::RequestsRejectedBacklog), 1);
            let event = world.a().expect(EventKind::UNREACHABLE);
            assert_eq!(event.status, i32::from(SidrStatus::NO_QP.0));
        }
    }
}

#[test]
fn the_limit_of_identifiers_drops_datagram_requests() {
    let config = Config {
        max_ids: 2,
        ..Config::default()
    };
    let mut world = World::with(&[Config::default(), config]);
    world.b().ud_listener(addr("0.0.0.0", PORT), 0);
    for n in [1, 2] {
        let active = resolved(&mut world);
        world.connect(active, with_qpn(n));
    }
    assert_eq!(world.b().cma.len(), 2);
    assert_eq!(world.b().cma.counters().get(Counter::RequestsDroppedIds), 1);
    assert_eq!(world.b().cma.connections(), 1);
}

#[test]
fn there_is_no_connection_to_establish_or_to_take_down() {
    let mut world = listening();
    let (active, passive) = requested(&mut world);
    let now = world.now();
    let nothing = |cm_state| Ok(Disconnect::Nothing { cm_state });
    assert_eq!(
        world.a().cma.disconnect(now, active),
        nothing(StateName::SidrReqSent)
    );
    let refused = world.a().cma.establish(now, active);
    assert_eq!(
        errno(refused),
        (
            Errno::EINVAL,
            "establish with an identifier for UD queue pairs, which are not connected".to_owned()
        )
    );
    let refused = world.a().cma.accept(now, active, None, with_qpn(0x12));
    assert_eq!(
        errno(refused).1,
        "accept while the IB CM is in state SIDR_REQ_SENT"
    );
    let refused = world
        .a()
        .cma
        .reject(now, active, RejReason::CONSUMER_DEFINED, &[]);
    assert_eq!(errno(refused).0, Errno::EINVAL);
    world.accept(passive, with_qpn(0x12));
    world.a().expect(EventKind::ESTABLISHED);
    for (host, id, state) in [
        (0, active, StateName::SidrRepRcvd),
        (1, passive, StateName::SidrRepSent),
    ] {
        let cma = &mut world.hosts[host].cma;
        assert_eq!(cma.disconnect(now, id), nothing(state));
        assert_eq!(
            errno(cma.notify(now, id, AsyncEvent::CommEst)).0,
            Errno::EINVAL
        );
        let path = crate::AlternatePath::default();
        assert_eq!(
            cma.load_alternate_path(now, id, path),
            Err(Error::NotConnected {
                call: "load_alternate_path"
            })
        );
        assert_eq!(cma.query(id).expect("exists").state, State::Connect);
    }
    world.run(100 * SECOND);
    world.a().expect_nothing();
    world.b().expect_nothing();
}

/// A request that waits is refused when its identifier is disconnected or destroyed; nobody waits for nothing.
#[test]
fn an_unanswered_request_that_ends_is_refused() {
    for destroys in [false, true] {
        let mut world = listening();
        let (active, passive) = requested(&mut world);
        let now = world.now();
        if destroys {
            assert_eq!(world.b().cma.destroy_id(now, passive), Ok(0));
        } else {
            let done = world.b().cma.disconnect(now, passive);
            assert_eq!(done, Ok(Disconnect::Withdrawn));
        }
        world.settle();
        let event = world.a().expect(EventKind::UNREACHABLE);
        assert_eq!((event.id, event.status), (active, 2));
        world.b().expect_nothing();
    }
}

#[test]
fn recipes_need_a_device_and_nothing_else() {
    let mut world = listening();
    let idle = world.a().ud_id();
    let refused = world.a().cma.init_qp_attr(idle, QpState::INIT);
    assert_eq!(errno(refused).0, Errno::EINVAL);
    let (active, passive) = requested(&mut world);
    for (host, id) in [(0, active), (1, passive)] {
        let cma = &mut world.hosts[host].cma;
        let init = cma.init_qp_attr(id, QpState::INIT).expect("a device");
        let expected = UdInitAttr {
            qkey: QKey::RDMA_UDP,
            pkey_index: 0,
            port_num: 1,
        };
        assert_eq!(init, QpAttr::UdInit(expected));
        assert_eq!(init.mask(), QpAttrMask(0x71));
        let rtr = cma.init_qp_attr(id, QpState::RTR).expect("a device");
        assert_eq!((rtr, rtr.mask()), (QpAttr::UdRtr, QpAttrMask(1)));
        let rts = cma.init_qp_attr(id, QpState::RTS).expect("a device");
        let expected = QpAttr::UdRts {
            sq_psn: Psn::default(),
        };
        assert_eq!((rts, rts.mask()), (expected, QpAttrMask(0x1_0001)));
        let refused = cma.init_qp_attr(id, QpState::ERROR);
        assert_eq!(errno(refused).0, Errno::EINVAL);
    }
}

/// ECE travels in a REQ, a REP and a SIDR_REP, and is refused where no message carries it.
#[test]
fn ece_arrives_where_it_is_carried() {
    let ours = Ece {
        vendor_id: 0x15B3,
        options: 7,
    };
    let theirs = Ece {
        vendor_id: 0x15B3,
        options: 3,
    };
    let mut world = listening();
    world.b().listener(addr("0.0.0.0", PORT), 0);
    let rc = world.resolved(addr("10.0.0.2", PORT));
    let ud = resolved(&mut world);
    let now = world.now();
    let with = |ece| ConnectParam {
        ece,
        ..with_qpn(0x11)
    };
    assert_eq!(
        errno(world.a().cma.connect(now, ud, with(ours))),
        (
            Errno::EINVAL,
            "connect with ECE data of vendor 0x0015b3: a SIDR_REQ carries none".to_owned()
        )
    );
    let wide = Ece {
        vendor_id: 0x100_0000,
        options: 0,
    };
    assert_eq!(
        errno(world.a().cma.connect(now, rc, with(wide))).1,
        "connect with ECE vendor ID 0x1000000: the field has 24 bits"
    );
    world.connect(rc, with(ours));
    let request = world.b().expect(EventKind::CONNECT_REQUEST);
    assert_eq!(request.ece, ours);
    world.accept(request.id, with(theirs));
    assert_eq!(world.a().expect(EventKind::CONNECT_RESPONSE).ece, theirs);
    world.connect(ud, with_qpn(0x21));
    let request = world.b().expect(EventKind::CONNECT_REQUEST);
    assert_eq!(request.ece, Ece::NONE);
    world.accept(request.id, with(theirs));
    assert_eq!(world.a().expect(EventKind::ESTABLISHED).ece, theirs);
}

/// R-MIG-1, R-MIG-9: events and children of datagram identifiers move like all others.
#[test]
fn datagram_identifiers_migrate() {
    let mut world = World::pair();
    let listener = world.b().ud_listener(addr("0.0.0.0", PORT), 0);
    let active = resolved(&mut world);
    world.connect(active, with_qpn(0x11));
    let to = world.b().cma.create_channel().expect("room");
    assert_eq!(world.b().cma.migrate_id(listener, to), Ok(0));
    world.b().expect_nothing();
    let passive = world.b().expect_on(to, EventKind::CONNECT_REQUEST).id;
    assert_eq!(world.b().cma.channel_of(passive), Ok(to));
    let elsewhere = world.a().cma.create_channel().expect("room");
    world.accept(passive, with_qpn(0x12));
    assert_eq!(world.a().cma.migrate_id(active, elsewhere), Ok(2));
    world.a().expect_on(elsewhere, EventKind::ESTABLISHED);
}

/// A stray SIDR_REP for an identifier that is gone, or a second one, leads to nothing.
#[test]
fn duplicate_and_late_answers_are_dropped() {
    let mut world = listening();
    let (active, passive) = requested(&mut world);
    let now = world.now();
    let (av, mads) = {
        let cma = &mut world.b().cma;
        cma.accept(now, passive, None, with_qpn(0x12))
            .expect("waits");
        let transmit = cma.poll_transmit().expect("the answer");
        (transmit.av.reversed(), [transmit.mad; 2])
    };
    for mad in &mads {
        world.a().cma.handle_mad(now, &av, mad);
    }
    world.a().expect(EventKind::ESTABLISHED);
    world.a().expect_nothing();
    world.a().cma.destroy_id(now, active).expect("exists");
    world.a().cma.handle_mad(Time::ZERO, &av, &mads[0]);
    world.a().expect_nothing();
    assert_eq!(world.a().cma.connections(), 0);
}
