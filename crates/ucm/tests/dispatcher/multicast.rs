//! Datagram identifiers, multicast joins, given paths, events of the program's own, ECE.

use std::net::{IpAddr, SocketAddr};

use oarlock_cma::{Errno, MembershipAction};
use oarlock_ucm::abi::{IbPathRecData, join_flag};
use oarlock_ucm::client::{self, IdNumber, JoinNumber, Param};
use oarlock_ucm::{Failure, FileId};

use crate::errno::{EINVAL, ENOENT, ENXIO};
use crate::world::{PORT, UDP, World, accept_param, address, device, kind, param};

fn group() -> SocketAddr {
    "224.1.1.1:0".parse().expect("an address")
}

/// A datagram identifier that is bound to host 0's address.
fn member(w: &mut World, file: FileId, uid: u64) -> IdNumber {
    let id = w.ok(0, file, &client::create_id(uid, UDP, 0));
    w.ok(0, file, &client::bind(id, SocketAddr::new(address(0), 0)));
    id
}

fn join(w: &mut World, file: FileId, id: IdNumber, uid: u64, flags: u16) -> JoinNumber {
    w.ok(0, file, &client::join_multicast(id, uid, group(), flags))
}

fn asked(w: &World) -> Vec<(MembershipAction, IpAddr, u32)> {
    let memberships = w.memberships.iter();
    memberships
        .map(|(_, membership)| (membership.action, membership.group, membership.ifindex))
        .collect()
}

#[test]
fn a_join_brings_what_a_datagram_to_the_group_needs() {
    let mut w = World::new(1);
    let file = w.open(0);
    let id = member(&mut w, file, 1);
    let number = join(&mut w, file, id, 77, join_flag::FULL_MEMBER);
    assert_eq!(number, JoinNumber(0), "a number space of its own");
    let event = w.expect(0, file, kind::MULTICAST_JOIN);
    assert_eq!((event.uid, event.join(), event.status), (77, number, 0));
    let ud = event.ud();
    assert_eq!((ud.qp_num, ud.qkey), (0xFF_FFFF, 0x0123_4567));
    assert_eq!(ud.ah_attr.dgid[10..], [0xFF, 0xFF, 224, 1, 1, 1]);
    assert_eq!(
        (
            ud.ah_attr.is_global,
            ud.ah_attr.port_num,
            ud.ah_attr.hop_limit
        ),
        (1, 1, 64)
    );
    assert_eq!(ud.private_data, None);
    assert_eq!(asked(&w), [(MembershipAction::Join, group().ip(), 2)]);

    let info = w.hosts[0]
        .id_infos(None, |_| 0)
        .next()
        .expect("there is one");
    assert_eq!(info.groups, [group().ip()]);
    assert_eq!(w.ok(0, file, &client::leave_multicast(number)).0, 1);
    assert_eq!(asked(&w)[1], (MembershipAction::Leave, group().ip(), 2));
    assert_eq!(w.hosts[0].joins(), 0);
    assert_eq!(
        w.ok(0, file, &client::destroy_id(id)).0,
        1,
        "the join's event counts on both"
    );
}

/// The lowest free number comes first, over all files; an interface joins with the first and leaves with the last.
#[test]
fn joins_are_counted_and_numbered_apart_from_identifiers() {
    let mut w = World::new(1);
    let (a, b) = (w.open(0), w.open(0));
    let one = member(&mut w, a, 1);
    let two = member(&mut w, b, 2);
    let joins = [
        join(&mut w, a, one, 10, join_flag::FULL_MEMBER),
        join(&mut w, b, two, 20, join_flag::FULL_MEMBER),
        join(&mut w, a, one, 11, join_flag::SEND_ONLY_FULL_MEMBER),
    ];
    assert_eq!(joins, [0, 1, 2].map(JoinNumber));
    assert_eq!(asked(&w).len(), 1, "the interface joins once");
    assert_eq!(
        w.ok(0, a, &client::leave_multicast(joins[0])).0,
        0,
        "its event was queued"
    );
    assert_eq!(w.expect(0, a, kind::MULTICAST_JOIN).uid, 11);
    assert_eq!(w.event(0, a), None, "the event of what was left is gone");
    assert_eq!(
        join(&mut w, b, two, 21, join_flag::FULL_MEMBER),
        JoinNumber(0)
    );
    w.ok(0, b, &client::destroy_id(two));
    assert_eq!(w.hosts[0].joins(), 1, "joins go with their identifier");
    assert_eq!(
        asked(&w).last(),
        Some(&(MembershipAction::Leave, group().ip(), 2))
    );
    let now = w.now;
    w.hosts[0].close(now, a);
    assert_eq!((w.hosts[0].joins(), w.hosts[0].ids()), (0, 0));
}

#[test]
fn what_is_no_join_is_refused() {
    let mut w = World::new(1);
    let (file, other) = (w.open(0), w.open(0));
    let id = member(&mut w, file, 1);
    let call = |flags| client::join_multicast(id, 1, group(), flags);
    assert_eq!(w.errno(0, file, call(2).request(), &[]), EINVAL);
    let failure = w.call(0, file, &call(2)).expect_err("no such flag");
    assert_eq!(
        failure.to_string(),
        "JOIN_MCAST: join flags 2; 0 (full member) and 1 (send-only full member) are known"
    );
    let number = w.ok(0, file, &call(0));
    let leave = |number| client::leave_multicast(JoinNumber(number));
    assert_eq!(w.errno(0, file, leave(9).request(), &[]), ENOENT);
    assert_eq!(w.errno(0, other, leave(number.0).request(), &[]), EINVAL);
    let now = w.now;
    w.hosts[0].set_devices(now, vec![]);
    w.settle();
    assert_eq!(w.errno(0, file, leave(number.0).request(), &[]), ENXIO);
    w.hosts[0].set_devices(now, vec![device(0)]);
    w.ok(0, file, &client::destroy_id(id));
    assert_eq!(w.errno(0, file, leave(number.0).request(), &[]), ENOENT);
}

#[test]
fn a_group_that_cannot_be_joined_is_reported_with_the_reason() {
    let mut w = World::new(1);
    let file = w.open(0);
    let id = member(&mut w, file, 1);
    w.membership = Err(Errno(105));
    let number = join(&mut w, file, id, 5, join_flag::FULL_MEMBER);
    let event = w.expect(0, file, kind::MULTICAST_ERROR);
    assert_eq!((event.uid, event.join(), event.status), (5, number, -105));
    assert_eq!(w.ok(0, file, &client::leave_multicast(number)).0, 1);
}

/// R-MIG-2: the events of joins move with their identifier, and leaving is then asked on the new channel.
#[test]
fn joins_move_with_their_identifier() {
    let mut w = World::new(1);
    let (old, new) = (w.open(0), w.open(0));
    let id = member(&mut w, old, 1);
    let number = join(&mut w, old, id, 5, join_flag::FULL_MEMBER);
    assert_eq!(w.ok(0, new, &client::migrate_id(id, old.0)).0, 0);
    assert_eq!(w.event(0, old), None);
    let event = w.expect(0, new, kind::MULTICAST_JOIN);
    assert_eq!((event.uid, event.join()), (5, number));
    let leave = client::leave_multicast(number);
    assert_eq!(w.errno(0, old, leave.request(), &[]), EINVAL);
    assert_eq!(w.ok(0, new, &leave).0, 1);
}

#[test]
fn a_datagram_service_is_found_and_addressed() {
    let mut w = World::new(2);
    let (active, passive) = (w.open(0), w.open(1));
    let listener = w.ok(1, passive, &client::create_id(3, UDP, 0));
    let at = SocketAddr::new(address(1), PORT);
    w.ok(1, passive, &client::bind(listener, at));
    w.ok(1, passive, &client::listen(listener, 4));
    let id = w.ok(0, active, &client::create_id(4, UDP, 0));
    w.ok(0, active, &client::resolve_addr(id, None, at, 1000));
    w.expect(0, active, kind::ADDR_RESOLVED);
    w.ok(0, active, &client::resolve_route(id, 1000));
    w.expect(0, active, kind::ROUTE_RESOLVED);
    let param = Param {
        private_data: b"who".to_vec(),
        qp_num: 0x11,
        ..Param::default()
    };
    w.ok(0, active, &client::connect(id, &param).expect("short"));
    let request = w.expect(1, passive, kind::CONNECT_REQUEST);
    let ud = request.ud();
    assert_eq!((request.uid, ud.qp_num, ud.qkey), (3, 0, 0));
    let data = ud.private_data.expect("a request has private data");
    assert_eq!((data.len(), &data[..4]), (180, &b"who\0"[..]));
    let answer = Param {
        private_data: b"me".to_vec(),
        qp_num: 0x22,
        ..Param::default()
    };
    let accept = client::accept(request.id, 6, &answer).expect("short");
    w.ok(1, passive, &accept);
    assert_eq!(
        w.event(1, passive),
        None,
        "nothing more on the passive side"
    );
    let established = w.expect(0, active, kind::ESTABLISHED);
    let ud = established.ud();
    assert_eq!(
        (established.uid, ud.qp_num, ud.qkey),
        (4, 0x22, 0x0123_4567)
    );
    assert_eq!(ud.ah_attr.dgid[12..], [10, 0, 0, 2]);
    assert_eq!(ud.private_data.map(|data| data.len()), Some(136));
}

#[test]
fn a_given_path_is_read_back_and_used() {
    let mut w = World::new(2);
    let file = w.open(0);
    let id = w.create(0, file, 1);
    let at = SocketAddr::new(address(1), PORT);
    w.ok(0, file, &client::resolve_addr(id, None, at, 1000));
    w.expect(0, file, kind::ADDR_RESOLVED);
    let other = w.routed(0, file, 2, 1);
    let mut path = w.ok(0, file, &client::query_path(other)).0[0];
    path.service_id = [0; 8];
    path.traffic_class = 0x28;
    path.packet_life_time = 2 << 6 | 18;
    let unused = IbPathRecData {
        flags: 0x2F,
        ..path
    };
    let none = client::set_path(id, &[unused]);
    let failure = w.call(0, file, &none).expect_err("no record is used");
    assert_eq!(failure, Failure::NoPrimaryPath { records: 1 });
    w.ok(0, file, &client::set_path(id, &[unused, path]));
    assert_eq!(w.expect(0, file, kind::ROUTE_RESOLVED).id, id);
    assert_eq!(w.ok(0, file, &client::query_path(id)).0, [path]);
    let again = client::set_path(id, &[path]);
    assert_eq!(w.errno(0, file, again.request(), again.inline()), EINVAL);
}

#[test]
fn events_of_the_programs_own_come_in_order_with_the_rest() {
    let mut w = World::new(1);
    let file = w.open(0);
    let id = w.create(0, file, 9);
    w.ok(
        0,
        file,
        &client::write_cm_event(id, kind::USER, -5, u64::MAX - 1),
    );
    w.ok(0, file, &client::write_cm_event(id, kind::USER, 7, 1));
    let event = w.expect(0, file, kind::USER);
    assert_eq!(
        (event.uid, event.id, event.status, event.arg()),
        (9, id, -5, u64::MAX - 1)
    );
    assert_eq!(w.expect(0, file, kind::USER).arg(), 1);
    for foreign in [0, 4, 17, 20, u32::MAX] {
        let call = client::write_cm_event(id, foreign, 0, 0);
        assert_eq!(w.errno(0, file, call.request(), &[]), EINVAL, "{foreign}");
    }
    assert_eq!(w.ok(0, file, &client::destroy_id(id)).0, 2);
}

/// The options travel in the request and in the response, and come out of the events.
#[test]
fn vendor_options_reach_the_other_side() {
    let mut w = World::new(2);
    let (active, passive) = (w.open(0), w.open(1));
    w.listener(1, passive, 100);
    let id = w.routed(0, active, 1, 1);
    let with = |param: Param, vendor_id, attr_mod| Param {
        ece: oarlock_ucm::abi::Ece {
            vendor_id,
            attr_mod,
        },
        ..param
    };
    let offer = with(param(0x11), 0x15B3, 0xA1B2_C3D4);
    w.ok(0, active, &client::connect(id, &offer).expect("short"));
    let request = w.expect(1, passive, kind::CONNECT_REQUEST);
    assert_eq!(request.ece, offer.ece);
    let answer = with(accept_param(0x22), 0x15B3, 1);
    w.ok(
        1,
        passive,
        &client::accept(request.id, 2, &answer).expect("short"),
    );
    assert_eq!(w.expect(0, active, kind::CONNECT_RESPONSE).ece, answer.ece);
}
