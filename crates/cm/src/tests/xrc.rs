//! Connections of XRC: what their messages say (Linux `drivers/infiniband/core/cm.c`), and how they end.

use oarlock_wire::cm::{CmMessage, Rep, Req};
use oarlock_wire::{Qpn, RejReason, TransportService};

use super::support::{A, B, Pair, accept_params, connect_params, named, parse};
use crate::{ConnId, ConnectParams, Event, StateName};

fn of_xrc() -> ConnectParams {
    ConnectParams {
        transport_service: TransportService::EXTENDED,
        ..connect_params()
    }
}

fn established(pair: &mut Pair) -> (ConnId, ConnId) {
    let (active, passive) = pair.request_with(of_xrc());
    pair.accept(B, passive);
    assert!(matches!(pair.event(A), Event::RepReceived { .. }));
    pair.complete(A, active);
    assert!(matches!(pair.event(B), Event::RtuReceived { .. }));
    (active, passive)
}

fn req_and_rep(pair: &Pair) -> (Req, Rep) {
    let of = |name: &str| parse(&named(&pair.sent, name)[0].1);
    match (of("REQ"), of("REP")) {
        (CmMessage::Req(req), CmMessage::Rep(rep)) => (req, rep),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_target_is_named_by_its_ee_context() {
    let mut pair = Pair::new();
    let (active, _) = established(&mut pair);
    let (req, rep) = req_and_rep(&pair);
    assert_eq!(
        (req.transport_service, req.extended_transport),
        (TransportService::EXTENDED, 1)
    );
    assert!(req.is_xrc());
    assert_eq!(req.local_qpn, connect_params().local_qpn);
    let target = accept_params().local_qpn;
    assert_eq!((rep.local_qpn, rep.local_eecn), (Qpn::QP0, target.get()));
    assert_eq!(rep.qpn(true), target);
    assert!(rep.srq && !rep.end_to_end_flow_control);
    assert_eq!(
        (rep.initiator_depth, rep.responder_resources),
        (0, accept_params().responder_resources)
    );
    // The same number ends the connection.
    pair.disconnect(A, active);
    let CmMessage::Dreq(dreq) = parse(&named(&pair.sent, "DREQ")[0].1) else {
        panic!("a DREQ")
    };
    assert_eq!(dreq.remote_qpn, target);
    assert!(matches!(pair.event(B), Event::DreqReceived { .. }));
}

/// Destroying a target leaves the peer connected; destroying the side that sends does not.
#[test]
fn only_the_sending_side_takes_leave_when_it_is_destroyed() {
    for (side, says) in [(A, 1), (B, 0)] {
        let mut pair = Pair::new();
        let (active, passive) = established(&mut pair);
        let now = pair.now();
        pair.cms[side].destroy(now, if side == A { active } else { passive });
        pair.drive();
        assert_eq!(named(&pair.sent, "DREQ").len(), says, "side {side}");
        if side == B {
            assert_eq!(pair.state(A, active), StateName::Established);
        }
    }
}

/// A second request from a queue pair that is connected is refused as with other connections, and ends the old one.
#[test]
fn a_queue_pair_has_one_connection() {
    let mut pair = Pair::new();
    established(&mut pair);
    let now = pair.now();
    pair.cms[A]
        .connect(now, of_xrc())
        .expect("correct parameters");
    pair.drive();
    assert!(matches!(
        pair.event(A),
        Event::RejReceived { rej, .. } if rej.reason == RejReason::STALE_CONNECTION
    ));
}
