//! Messages that name a connection and come from another address than its peer's.

use oarlock_wire::cm::{Dreq, Lap, MessageKind, Rej, Rep, Req, SidrReq};
use oarlock_wire::units::{AddressVector, CommId, Gid, Guid, Qpn, RejReason};

use super::support::{A, B, GUID, Pair, QPN, av, connect_params, gid, transmits};
use super::table_walk::{Scene, message, sides};
use crate::table::{Input, Place};
use crate::{ConnId, ConnectParams, DropReason, StateName};

/// The path from a side to somebody else.
fn to_a_stranger(side: usize) -> AddressVector {
    AddressVector::new(gid(side), stranger())
}

fn stranger() -> Gid {
    Gid::from_ip([10, 0, 0, 99].into())
}

#[test]
fn no_message_of_a_stranger_does_anything_to_a_connection_in_any_state() {
    let mut executed = 0;
    for place in Place::ALL {
        for input in Input::ALL {
            for side in sides(*place, *input) {
                let Some(mut scene) = Scene::new(*place, *input, side) else {
                    continue;
                };
                let Some(message) = message(*input, &scene.names) else {
                    continue;
                };
                if matches!(input, Input::ReqAgain | Input::ReqOfSameQp | Input::SidrReq) {
                    continue;
                }
                executed += 1;
                let pair = &mut scene.pair;
                let timer = pair.cms[side].poll_timeout();
                let dropped = pair.cms[side]
                    .counters()
                    .dropped(DropReason::ForeignAddress);
                pair.inject_from(side, &to_a_stranger(side), message);
                let sent = transmits(&mut pair.cms[side]);
                assert_eq!(
                    pair.state(side, scene.id),
                    place.state(),
                    "{place}: {input}"
                );
                assert_eq!(pair.cms[side].lap_state(scene.id), Some(place.lap()));
                assert_eq!(pair.cms[side].poll_timeout(), timer, "{place}: {input}");
                assert_eq!(pair.cms[side].poll_event(), None, "{place}: {input}");
                let dropped = pair.cms[side]
                    .counters()
                    .dropped(DropReason::ForeignAddress)
                    - dropped;
                // An answer goes only to those who name no connection of ours.
                assert!(
                    sent.is_empty() || (matches!(sent[0].name(), "DREP" | "APR") && dropped == 0),
                    "{place}: {input}: {sent:?}"
                );
            }
        }
    }
    assert!(executed > 400, "{executed} pairs executed");
}

#[test]
fn strangers_who_name_a_connection_are_counted_and_not_answered() {
    let mut pair = Pair::new();
    let (active, passive) = pair.establish();
    let (local_comm_id, remote_comm_id) = (
        pair.cms[A].comm_id(active).expect("exists"),
        pair.cms[B].comm_id(passive).expect("exists"),
    );
    let dreq = Dreq {
        local_comm_id,
        remote_comm_id,
        remote_qpn: QPN[B],
        ..Dreq::default()
    };
    pair.inject_from(B, &to_a_stranger(B), dreq.clone());
    assert_eq!(transmits(&mut pair.cms[B]).len(), 0);
    assert_eq!(
        pair.cms[B].counters().dropped(DropReason::ForeignAddress),
        1
    );
    assert_eq!(pair.state(B, passive), StateName::Established);
    pair.inject_message(B, dreq);
    assert_eq!(
        pair.state(B, passive),
        StateName::DreqRcvd,
        "from the peer it disconnects"
    );
}

#[test]
fn a_stranger_cannot_reject_a_request_whose_comm_id_it_has_guessed() {
    let mut pair = Pair::new();
    let (active, _) = pair.request();
    let rej = Rej {
        remote_comm_id: pair.cms[A].comm_id(active).expect("exists"),
        message: MessageKind::REQ,
        reason: RejReason::INVALID_SERVICE_ID,
        ..Rej::default()
    };
    pair.inject_from(A, &to_a_stranger(A), rej.clone());
    assert_eq!(pair.state(A, active), StateName::ReqSent);
    pair.inject_message(A, rej);
    assert_eq!(pair.state(A, active), StateName::Idle);
}

/// A REQ that `from` sends to B, and that claims to be of A's CA and queue pair.
fn claims_to_be_a(pair: &Pair, comm_id: CommId, from: Gid) -> Req {
    let mut req =
        crate::conn::active::request(&connect_params(), comm_id, GUID[A]).expect("correct");
    (req.primary.local_gid, req.primary.remote_gid) = (from, gid(B));
    assert!(pair.cms[B].connections() > 0);
    req
}

#[test]
fn a_stranger_with_the_peers_guid_and_queue_pair_does_not_make_the_connection_stale() {
    let mut pair = Pair::new();
    let (_, passive) = pair.establish();
    let req = claims_to_be_a(&pair, CommId(0x7777), stranger());
    pair.inject_from(B, &to_a_stranger(B), req);
    pair.drain(B);
    assert_eq!(pair.state(B, passive), StateName::Established);
    assert_eq!(
        pair.cms[B].counters().dropped(DropReason::StaleConnection),
        0
    );
    assert_eq!(
        pair.event_names(B),
        ["ReqReceived"],
        "a request like any other"
    );
}

#[test]
fn a_stranger_with_the_peers_guid_and_comm_id_does_not_stand_in_the_peers_way() {
    let mut pair = Pair::new();
    pair.request_with(ConnectParams {
        local_qpn: Qpn::truncate(0x77),
        ..connect_params()
    });
    // The stranger was first with what the peer's next REQ will say.
    let mut req = claims_to_be_a(&pair, CommId(0x7777), stranger());
    pair.inject_from(B, &to_a_stranger(B), req.clone());
    pair.drain(B);
    assert_eq!(pair.event_names(B), ["ReqReceived"]);
    req.primary.local_gid = gid(A);
    pair.inject_message(B, req);
    pair.drain(B);
    assert_eq!(pair.event_names(B), ["ReqReceived", "ReqReceived"]);
    assert_eq!(
        pair.cms[B].counters().dropped(DropReason::StaleConnection),
        0
    );
}

#[test]
fn a_responder_that_claims_another_hosts_queue_pair_does_not_make_its_connection_stale() {
    let mut pair = Pair::new();
    let (old, _) = pair.establish();
    let now = pair.now();
    let to_stranger = ConnectParams {
        av: to_a_stranger(A),
        local_qpn: Qpn::truncate(0x99),
        ..connect_params()
    };
    let new = pair.cms[A].connect(now, to_stranger).expect("correct");
    transmits(&mut pair.cms[A]);
    let rep = Rep {
        local_comm_id: CommId(0x5555),
        remote_comm_id: pair.cms[A].comm_id(new).expect("exists"),
        local_qpn: QPN[B],
        local_ca_guid: GUID[B],
        ..Rep::default()
    };
    pair.inject_from(A, &to_a_stranger(A), rep);
    pair.drain(A);
    assert_eq!(pair.state(A, old), StateName::Established);
    assert_eq!(pair.state(A, new), StateName::RepRcvd);
}

/// The same link-local address on two interfaces is two addresses.
#[test]
fn a_link_local_address_on_another_interface_is_a_strangers() {
    let link_local =
        |n: u16| Gid::from_ip(std::net::Ipv6Addr::new(0xFE80, 0, 0, 0, 0, 0, 0, n).into());
    let on = |scope_id| AddressVector {
        scope_id,
        ..AddressVector::new(link_local(1), link_local(2))
    };
    let mut pair = Pair::new();
    let now = pair.now();
    let params = ConnectParams {
        av: on(3),
        ..connect_params()
    };
    let active: ConnId = pair.cms[A].connect(now, params).expect("correct");
    transmits(&mut pair.cms[A]);
    let rep = Rep {
        local_comm_id: CommId(0x5555),
        remote_comm_id: pair.cms[A].comm_id(active).expect("exists"),
        local_qpn: QPN[B],
        local_ca_guid: GUID[B],
        ..Rep::default()
    };
    pair.inject_from(A, &on(4), rep.clone());
    assert_eq!(pair.state(A, active), StateName::ReqSent);
    pair.inject_from(A, &on(3), rep);
    assert_eq!(pair.state(A, active), StateName::RepRcvd);
}

/// Data goes where the path in the REQ leads. If that were not where the REQ came from, whoever can send one could have
/// packets sent to anybody.
#[test]
fn a_req_whose_path_leads_elsewhere_than_where_it_came_from_is_rejected() {
    let mut pair = Pair::new();
    let mut req =
        crate::conn::active::request(&connect_params(), CommId(1), Guid(7)).expect("correct");
    req.primary.local_gid = stranger();
    pair.inject_message(B, req.clone());
    let sent = transmits(&mut pair.cms[B]);
    let [oarlock_wire::CmMessage::Rej(rej)] = &sent[..] else {
        panic!("{sent:?}")
    };
    assert_eq!(
        (rej.reason, rej.additional_info.as_bytes()),
        (RejReason::INVALID_GID, &stranger().0[..])
    );
    assert_eq!(pair.cms[B].counters().dropped(DropReason::UnusableGid), 1);
    req.primary.local_gid = av(B).remote;
    pair.inject_message(B, req);
    assert_eq!(pair.cms[B].connections(), 1);
}

/// Whoever is told one comm id must not know the next one.
#[test]
fn comm_ids_do_not_follow_from_each_other() {
    let mut pair = Pair::new();
    let now = pair.now();
    let ids: Vec<CommId> = (0..100)
        .map(|n| {
            let params = ConnectParams {
                local_qpn: Qpn::truncate(0x100 + n),
                ..connect_params()
            };
            let id = pair.cms[A].connect(now, params).expect("correct");
            pair.cms[A].comm_id(id).expect("exists")
        })
        .collect();
    let distances: std::collections::BTreeSet<u32> = ids
        .windows(2)
        .map(|two| two[1].0.wrapping_sub(two[0].0))
        .collect();
    assert_eq!(distances.len(), 99, "no distance comes twice");
    assert!(!ids.contains(&CommId(0)));
}

/// Whoever can forge the address of a group would make us send to all of its members.
#[test]
fn nothing_that_comes_from_or_to_a_group_or_from_nowhere_is_answered() {
    let ip = |a: u8, b: u8, c: u8, d: u8| Gid::from_ip([a, b, c, d].into());
    let v6 = |first| Gid::from_ip(std::net::Ipv6Addr::new(first, 0, 0, 0, 0, 0, 0, 1).into());
    let unspecified = Gid::from_ip(std::net::Ipv6Addr::UNSPECIFIED.into());
    for (local, remote) in [
        (gid(B), ip(239, 1, 2, 3)),
        (gid(B), v6(0xFF02)),
        (gid(B), ip(0, 0, 0, 0)),
        (gid(B), unspecified),
        (ip(239, 1, 2, 3), gid(A)),
        (v6(0xFF02), gid(A)),
    ] {
        let mut pair = Pair::new();
        let mut req =
            crate::conn::active::request(&connect_params(), CommId(1), Guid(7)).expect("correct");
        (req.primary.local_gid, req.primary.remote_gid) = (remote, local);
        let path = AddressVector::new(local, remote);
        pair.inject_from(B, &path, req);
        pair.inject_from(B, &path, Dreq::default());
        pair.inject_from(B, &path, Lap::default());
        pair.inject_from(B, &path, SidrReq::default());
        assert_eq!(transmits(&mut pair.cms[B]).len(), 0, "{local} < {remote}");
        assert_eq!(pair.cms[B].connections(), 0);
        assert_eq!(pair.cms[B].counters().dropped(DropReason::NotUnicast), 4);
    }
}
