//! Queue pair attributes, on both sides and in every state.

use super::world::{PORT, World, addr, param, qpn};
use crate::{
    AccessFlags, Config, ConnectParam, Errno, Error, EventKind, IdOption, PortSpace, QpAttr,
    QpAttrMask, QpState, QpType, RtrAttr, RtsAttr,
};
use oarlock_wire::{CmMessage, IbTimeout, Mtu, Psn, RetryCount, RnrTimer};
use std::cell::Cell;
use std::rc::Rc;

fn rtr(world: &mut World, host: usize, id: crate::Id) -> RtrAttr {
    match world.hosts[host].cma.init_qp_attr(id, QpState::RTR) {
        Ok(QpAttr::Rtr(attr)) => attr,
        other => panic!("{other:?}"),
    }
}

fn rts(world: &mut World, host: usize, id: crate::Id) -> RtsAttr {
    match world.hosts[host].cma.init_qp_attr(id, QpState::RTS) {
        Ok(QpAttr::Rts(attr)) => attr,
        other => panic!("{other:?}"),
    }
}

fn access(world: &mut World, host: usize, id: crate::Id) -> AccessFlags {
    match world.hosts[host].cma.init_qp_attr(id, QpState::INIT) {
        Ok(QpAttr::Init(attr)) => attr.access,
        other => panic!("{other:?}"),
    }
}

#[test]
fn both_sides_of_a_connection_fit_together() {
    let mut world = World::pair();
    world.b().listener(addr("0.0.0.0", PORT), 0);
    // The PSNs on the wire: (of the REQ, of the REP).
    let psns = Rc::new(Cell::new((Psn::default(), Psn::default())));
    let seen = Rc::clone(&psns);
    world.tap = Some(Box::new(move |message| match message {
        CmMessage::Req(req) => seen.set((req.starting_psn, seen.get().1)),
        CmMessage::Rep(rep) => seen.set((seen.get().0, rep.starting_psn)),
        _ => {}
    }));
    let (active, passive) = world.connected();
    let (of_req, of_rep) = psns.get();
    assert_ne!(of_req, of_rep);
    let (a, b) = (rtr(&mut world, 0, active), rtr(&mut world, 1, passive));
    // Each side receives from the PSN that it announced, and sends from the one that the peer announced.
    assert_eq!((a.rq_psn, b.rq_psn), (of_req, of_rep));
    assert_eq!(
        (
            rts(&mut world, 0, active).sq_psn,
            rts(&mut world, 1, passive).sq_psn
        ),
        (of_rep, of_req)
    );
    assert_eq!((a.dest_qpn, b.dest_qpn), (qpn(0x12), qpn(0x11)));
    assert_eq!((a.av.local, a.av.remote), (b.av.remote, b.av.local));
    assert_eq!(
        (a.av.flow_label, a.av.hop_limit),
        (b.av.flow_label, b.av.hop_limit)
    );
    assert_eq!((a.path_mtu, b.path_mtu), (Mtu::MTU_1024, Mtu::MTU_1024));
    // connected(): A offers 4 and wants 3; B takes 3 and 4.
    assert_eq!(
        (
            a.max_dest_rd_atomic,
            rts(&mut world, 1, passive).max_rd_atomic
        ),
        (4, 4)
    );
    assert_eq!(
        (
            b.max_dest_rd_atomic,
            rts(&mut world, 0, active).max_rd_atomic
        ),
        (3, 3)
    );
    assert_eq!((a.sgid_index, b.sgid_index), (0, 0));
    for attr in [rts(&mut world, 0, active), rts(&mut world, 1, passive)] {
        // Packet life time 16 and acknowledgement delay 15 make 17: 0.54 s.
        assert_eq!(attr.timeout, IbTimeout::truncate(17));
        assert_eq!(
            (attr.retry_cnt, attr.rnr_retry),
            (RetryCount::MAX, RetryCount::MAX)
        );
    }
}

/// Port space IB connects unreliable queue pairs too; their recipes leave out what they have no use for.
#[test]
fn unreliable_connections_come_up_and_have_shorter_recipes() {
    let mut world = World::pair();
    let listener = world.b().id_of(PortSpace::IB, QpType::UC);
    world.b().listen_at(listener, addr("0.0.0.0", PORT), 0);
    let active = world.a().id_of(PortSpace::IB, QpType::UC);
    world.resolve(0, active, None, addr("10.0.0.2", PORT));
    world.connect(active, param(0x11));
    let passive = world.b().expect(EventKind::CONNECT_REQUEST).id;
    assert_eq!(
        world.b().cma.query(passive).expect("taken").qp_type,
        QpType::UC
    );
    world.accept(
        passive,
        ConnectParam {
            qpn: qpn(0x12),
            ..ConnectParam::default()
        },
    );
    world.a().expect(EventKind::CONNECT_RESPONSE);
    world.establish(active);
    world.b().expect(EventKind::ESTABLISHED);
    let mut recipe = |host: usize, id, state| {
        let attr = world.hosts[host].cma.init_qp_attr(id, state);
        attr.expect("connected")
    };
    let (QpAttr::UcRtr(a), QpAttr::UcRtr(b)) = (
        recipe(0, active, QpState::RTR),
        recipe(1, passive, QpState::RTR),
    ) else {
        panic!("not for UC")
    };
    let (QpAttr::UcRts { sq_psn: from_a }, QpAttr::UcRts { sq_psn: from_b }) = (
        recipe(0, active, QpState::RTS),
        recipe(1, passive, QpState::RTS),
    ) else {
        panic!("not for UC")
    };
    assert_eq!((a.dest_qpn, b.dest_qpn), (qpn(0x12), qpn(0x11)));
    assert_eq!((a.rq_psn, b.rq_psn), (from_b, from_a));
    assert_eq!((a.av.local, a.av.remote), (b.av.remote, b.av.local));
    assert_eq!(
        (a.path_mtu, a.sgid_index, a.port_num),
        (Mtu::MTU_1024, 0, 1)
    );
    assert!(matches!(
        recipe(0, active, QpState::INIT),
        QpAttr::Init(init) if init.access == AccessFlags::REMOTE_WRITE
    ));
}

/// The sending side of XRC issues and is answered, the receiving side answers: each gets what it has use for.
#[test]
fn xrc_connections_come_up_and_each_side_has_recipes_of_its_own() {
    let mut world = World::pair();
    let listener = world.b().id_of(PortSpace::IB, QpType::XRC_RECV);
    world.b().listen_at(listener, addr("0.0.0.0", PORT), 0);
    let active = world.a().id_of(PortSpace::IB, QpType::XRC_SEND);
    world.resolve(0, active, None, addr("10.0.0.2", PORT));
    let retry_count = RetryCount::truncate(5);
    world.connect(
        active,
        ConnectParam {
            retry_count,
            ..param(0x11)
        },
    );
    let request = world.b().expect(EventKind::CONNECT_REQUEST);
    let asked = super::world::conn(&request);
    // Of reads the sending side answers none, and nothing is sent to it.
    assert_eq!((asked.responder_resources, asked.initiator_depth), (3, 0));
    assert_eq!(
        (asked.retry_count.get(), asked.rnr_retry_count.get()),
        (0, 0)
    );
    let passive = request.id;
    world.accept(
        passive,
        ConnectParam {
            qpn: qpn(0x12),
            responder_resources: 3,
            ..ConnectParam::default()
        },
    );
    let response = world.a().expect(EventKind::CONNECT_RESPONSE);
    assert_eq!(super::world::conn(&response).qpn, qpn(0x12));
    assert!(super::world::conn(&response).srq);
    world.establish(active);
    world.b().expect(EventKind::ESTABLISHED);
    let mut recipe = |host: usize, id, state| {
        let attr = world.hosts[host].cma.init_qp_attr(id, state);
        attr.expect("connected")
    };
    let (QpAttr::UcRtr(a), QpAttr::Rtr(b)) = (
        recipe(0, active, QpState::RTR),
        recipe(1, passive, QpState::RTR),
    ) else {
        panic!("not for XRC")
    };
    assert_eq!((a.dest_qpn, b.dest_qpn), (qpn(0x12), qpn(0x11)));
    assert_eq!(b.max_dest_rd_atomic, 3);
    let (QpAttr::Rts(from_a), QpAttr::XrcRecvRts { sq_psn, timeout }) = (
        recipe(0, active, QpState::RTS),
        recipe(1, passive, QpState::RTS),
    ) else {
        panic!("not for XRC")
    };
    assert_eq!((a.rq_psn, b.rq_psn), (sq_psn, from_a.sq_psn));
    assert_eq!((from_a.retry_cnt, from_a.max_rd_atomic), (retry_count, 3));
    assert_eq!(
        (from_a.timeout, timeout),
        (IbTimeout::truncate(17), IbTimeout::truncate(17))
    );
}

/// As in the kernel, a connection that is being taken down has no recipes any more, whoever began.
#[test]
fn there_is_no_recipe_while_a_connection_is_taken_down() {
    let mut world = World::pair();
    world.b().listener(addr("0.0.0.0", PORT), 0);
    let (active, passive) = world.connected();
    let now = world.now();
    world.a().cma.disconnect(now, active).expect("connected");
    let refused = |world: &mut World, host: usize, id| {
        for state in [QpState::INIT, QpState::RTR, QpState::RTS] {
            let attr = world.hosts[host].cma.init_qp_attr(id, state);
            assert_eq!(attr.map_err(|error| error.errno()), Err(Errno::EINVAL));
        }
    };
    refused(&mut world, 0, active);
    world.settle();
    refused(&mut world, 1, passive);
}

#[test]
fn masks_are_those_of_the_kernel() {
    assert_eq!(QpAttrMask::INIT.0, 0x39);
    assert_eq!(QpAttrMask::RTR.0, 0x12_9181);
    assert_eq!(QpAttrMask::RTS.0, 0x1_2E01);
    assert_eq!(QpAttrMask::UC_RTR.0, 0x10_1181);
    assert_eq!(QpAttrMask::UC_RTS.0, 0x1_0001);
    assert_eq!(QpAttrMask::XRC_RECV_RTS.0, 0x1_0201);
    assert_eq!(QpAttrMask::UD_INIT.0, 0x71);
}

#[test]
fn init_gives_access_only_to_a_connection_and_reads_only_with_resources() {
    let mut world = World::pair();
    world.b().listener(addr("0.0.0.0", PORT), 0);
    let id = world.a().id();
    let refused = world
        .a()
        .cma
        .init_qp_attr(id, QpState::INIT)
        .expect_err("no device");
    assert_eq!(refused.errno(), Errno::EINVAL);
    let active = world.resolved(addr("10.0.0.2", PORT));
    assert_eq!(access(&mut world, 0, active), AccessFlags::NONE);
    let now = world.now();
    world
        .a()
        .cma
        .connect(
            now,
            active,
            ConnectParam {
                responder_resources: 0,
                ..param(0x11)
            },
        )
        .expect("a path");
    assert_eq!(access(&mut world, 0, active), AccessFlags::REMOTE_WRITE);
    world.settle();
    // The peer wants to read: 3 outstanding.
    let passive = world.b().expect(EventKind::CONNECT_REQUEST).id;
    assert_eq!(access(&mut world, 1, passive), AccessFlags(0b1110));
}

#[test]
fn there_is_no_recipe_before_the_peer_has_spoken_or_after_the_end() {
    let mut world = World::pair();
    world.b().listener(addr("0.0.0.0", PORT), 0);
    let active = world.resolved(addr("10.0.0.2", PORT));
    let states = [QpState::RTR, QpState::RTS];
    for state in states {
        let refused = world
            .a()
            .cma
            .init_qp_attr(active, state)
            .expect_err("no connection");
        assert_eq!(
            refused.to_string(),
            "init_qp_attr in state ROUTE_RESOLVED: there is no connection"
        );
    }
    assert_eq!(
        world.a().cma.init_qp_attr(active, QpState::ERROR),
        Err(Error::NoRecipe(6))
    );
    let now = world.now();
    world
        .a()
        .cma
        .connect(now, active, param(0x11))
        .expect("a path");
    for state in states {
        let refused = world
            .a()
            .cma
            .init_qp_attr(active, state)
            .expect_err("no response");
        assert_eq!(
            (refused.errno(), refused.to_string().as_str()),
            (
                Errno::EINVAL,
                "init_qp_attr while the IB CM is in state REQ_SENT"
            )
        );
    }
    world.settle();
    let passive = world.b().expect(EventKind::CONNECT_REQUEST).id;
    world
        .b()
        .cma
        .reject(now, passive, oarlock_wire::RejReason::CONSUMER_DEFINED, &[])
        .expect("waits");
    world.settle();
    for state in [QpState::INIT, QpState::RTR, QpState::RTS] {
        assert!(
            world.a().cma.init_qp_attr(active, state).is_err(),
            "{state} after REJECTED"
        );
        assert!(
            world.b().cma.init_qp_attr(passive, state).is_err(),
            "{state} after reject"
        );
    }
}

/// Public fault 36: 0.64 ms unless another is chosen, not the 655 ms that 0 means.
#[test]
fn the_rnr_timer_does_not_stall_by_default_and_can_be_chosen() {
    let config = Config {
        min_rnr_timer: RnrTimer::truncate(5),
        ..Config::default()
    };
    let mut world = World::with(&[Config::default(), config]);
    world.b().listener(addr("0.0.0.0", PORT), 0);
    let (active, passive) = world.connected();
    // Code 12 is 0.64 ms; code 0 would be 655.36 ms.
    assert_eq!(rtr(&mut world, 0, active).min_rnr_timer, 12);
    assert_eq!(rtr(&mut world, 1, passive).min_rnr_timer, 5);
    world
        .a()
        .cma
        .set_option(active, IdOption::MinRnrTimer(1))
        .expect("5 bits");
    assert_eq!(rtr(&mut world, 0, active).min_rnr_timer, 1);
}

/// Public fault 37: the acknowledgement timeout that was chosen is that of the queue pair.
#[test]
fn an_ack_timeout_overrides_the_computed_one() {
    let mut world = World::pair();
    world.b().listener(addr("0.0.0.0", PORT), 0);
    let (active, passive) = world.connected();
    world
        .a()
        .cma
        .set_option(active, IdOption::AckTimeout(9))
        .expect("5 bits");
    assert_eq!(rts(&mut world, 0, active).timeout, IbTimeout::truncate(9));
    assert_eq!(rts(&mut world, 1, passive).timeout, IbTimeout::truncate(17));
}

#[test]
fn the_rnr_retry_count_is_that_of_the_answer_and_the_retry_count_that_of_the_request() {
    let mut world = World::pair();
    world.b().listener(addr("0.0.0.0", PORT), 0);
    let retries = |n| RetryCount::new(n).expect("3 bits");
    let active = world.resolved(addr("10.0.0.2", PORT));
    let asked = ConnectParam {
        retry_count: retries(4),
        rnr_retry_count: retries(6),
        ..param(0x11)
    };
    world.connect(active, asked);
    let passive = world.b().expect(EventKind::CONNECT_REQUEST).id;
    let attr = rts(&mut world, 1, passive);
    assert_eq!((attr.retry_cnt, attr.rnr_retry), (retries(4), retries(6)));
    let answer = ConnectParam {
        retry_count: retries(1),
        rnr_retry_count: retries(2),
        ..ConnectParam::default()
    };
    world.accept(passive, answer);
    world.a().expect(EventKind::CONNECT_RESPONSE);
    let (a, b) = (rts(&mut world, 0, active), rts(&mut world, 1, passive));
    assert_eq!((a.retry_cnt, a.rnr_retry), (retries(4), retries(2)));
    assert_eq!((b.retry_cnt, b.rnr_retry), (retries(4), retries(2)));
}
