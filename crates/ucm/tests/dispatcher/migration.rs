//! MIGRATE_ID in bytes, with the two cases that a kernel gets wrong.

use oarlock_ucm::client::{self, EventsReported};
use oarlock_ucm::{Failure, FileId, Owner};

use crate::world::{World, accept_param, kind, param};

fn wakes(w: &mut World, host: usize) -> Vec<(FileId, usize)> {
    std::iter::from_fn(|| w.hosts[host].poll_wake()).collect()
}

/// R-MIG-1, R-MIG-2, R-MIG-5: queued events move to the tail of the new channel in order, later ones are reported
/// there, and the answer counts what was delivered over the identifier's life.
#[test]
fn queued_events_move_in_order_and_later_ones_follow() {
    let mut w = World::new(2);
    let (old, new, passive) = (w.open(0), w.open(0), w.open(1));
    w.listener(1, passive, 100);
    let (id, child) = w.established(old, passive);
    let bystander = w.routed(0, new, 9, 1);
    // Two events of the identifier wait on the old channel, one of another on the new one.
    w.ok(1, passive, &client::disconnect(child));
    w.ok(0, old, &client::disconnect(id));
    w.rest();
    w.ok(
        0,
        new,
        &client::connect(bystander, &param(0x33)).expect("short private data"),
    );
    w.expect(1, passive, kind::DISCONNECTED);
    w.expect(1, passive, kind::TIMEWAIT_EXIT);
    let request = w.expect(1, passive, kind::CONNECT_REQUEST);
    w.ok(
        1,
        passive,
        &client::reject(request.id, 0, b"").expect("no private data"),
    );
    assert_eq!((w.hosts[0].queued(old), w.hosts[0].queued(new)), (2, 1));

    let reported = w.ok(0, new, &client::migrate_id(id, old.0));
    assert_eq!(
        reported,
        EventsReported(3),
        "ADDR_RESOLVED, ROUTE_RESOLVED, CONNECT_RESPONSE"
    );
    assert_eq!(w.event(0, old), None);
    assert_eq!(w.expect(0, new, kind::REJECTED).id, bystander);
    assert_eq!(w.expect(0, new, kind::DISCONNECTED).id, id);
    assert_eq!(w.expect(0, new, kind::TIMEWAIT_EXIT).id, id);
    assert_eq!(w.event(0, new), None);
    assert_eq!(
        w.errno(0, old, client::disconnect(id).request(), &[]),
        22,
        "no longer on the old channel"
    );
    assert_eq!(w.ok(0, new, &client::destroy_id(id)), EventsReported(5));
}

/// R-MIG-9 (b): the child of a queued request moves with its listener, can be used where the request comes out, and
/// survives the end of the old channel. A kernel leaves it behind.
#[test]
fn the_child_of_a_queued_request_moves_with_its_listener() {
    let mut w = World::new(2);
    let (active, old, new) = (w.open(0), w.open(1), w.open(1));
    let listener = w.listener(1, old, 100);
    let id = w.routed(0, active, 1, 1);
    w.connect(0, active, id, 0x11);
    assert_eq!(
        w.ok(1, new, &client::migrate_id(listener, old.0)),
        EventsReported(0)
    );
    let now = w.now;
    assert!(
        w.hosts[1].close(now, old),
        "R-MIG-7: the old channel can go at once"
    );
    w.settle();
    assert_eq!(
        w.event(0, active),
        None,
        "the request was not rejected by that"
    );

    let request = w.expect(1, new, kind::CONNECT_REQUEST);
    assert_eq!(request.uid, 100);
    w.ok(
        1,
        new,
        &client::accept(request.id, 200, &accept_param(0x22)).expect("short private data"),
    );
    w.expect(0, active, kind::CONNECT_RESPONSE);
    w.ok(0, active, &client::establish(id));
    assert_eq!(w.expect(1, new, kind::ESTABLISHED).uid, 200);
    assert_eq!(
        w.ok(1, new, &client::destroy_id(listener)),
        EventsReported(1)
    );
}

/// R-MIG-9 (a): whoever waits on the new channel already is woken, once for each event that moved. A kernel wakes
/// nobody. Public fault 71.
#[test]
fn waiters_of_the_new_channel_are_woken() {
    let mut w = World::new(2);
    let (active, old, new) = (w.open(0), w.open(1), w.open(1));
    let listener = w.listener(1, old, 100);
    for qpn in 1..=3 {
        let id = w.routed(0, active, qpn, 1);
        w.connect(0, active, id, u32::try_from(qpn).expect("small"));
    }
    assert_eq!(wakes(&mut w, 1), [(old, 3)]);
    w.ok(1, new, &client::migrate_id(listener, old.0));
    assert_eq!(wakes(&mut w, 1), [(new, 3)]);
    for _ in 0..3 {
        w.expect(1, new, kind::CONNECT_REQUEST);
    }
    assert_eq!(w.event(1, new), None);
    // An identifier without queued events wakes nobody.
    w.ok(1, old, &client::migrate_id(listener, new.0));
    assert_eq!(wakes(&mut w, 1), []);
}

/// R-MIG-4: a new connection starts on its listener's channel, and both can be parted afterwards.
#[test]
fn a_child_starts_on_its_listeners_channel_and_can_leave_it() {
    let mut w = World::new(2);
    let (active, listening, established) = (w.open(0), w.open(1), w.open(1));
    let listener = w.listener(1, listening, 100);
    let id = w.routed(0, active, 1, 1);
    w.connect(0, active, id, 0x11);
    let child = w.expect(1, listening, kind::CONNECT_REQUEST).id;
    assert_eq!(
        w.ok(1, established, &client::migrate_id(child, listening.0)),
        EventsReported(0)
    );
    w.ok(
        1,
        established,
        &client::accept(child, 200, &accept_param(0x22)).expect("short private data"),
    );
    w.expect(0, active, kind::CONNECT_RESPONSE);
    w.ok(0, active, &client::establish(id));
    assert_eq!(w.expect(1, established, kind::ESTABLISHED).id, child);
    assert_eq!(w.event(1, listening), None);
    // A child whose request was taken stays where it is when the listener moves.
    let elsewhere = w.open(1);
    w.ok(1, elsewhere, &client::migrate_id(listener, listening.0));
    w.ok(0, active, &client::disconnect(id));
    assert_eq!(w.expect(1, established, kind::DISCONNECTED).id, child);
}

/// R-MIG-2: to the channel that it is on, an identifier's events go to the tail.
#[test]
fn migration_to_the_same_channel_queues_again_at_the_tail() {
    let mut w = World::new(2);
    let (file, passive) = (w.open(0), w.open(1));
    w.listener(1, passive, 100);
    let [first, second] = [1, 2].map(|uid| {
        let id = w.create(0, file, uid);
        w.ok(
            0,
            file,
            &client::resolve_addr(id, None, (crate::world::address(1), 7471).into(), 1000),
        );
        id
    });
    w.ok(0, file, &client::migrate_id(first, file.0));
    assert_eq!(w.expect(0, file, kind::ADDR_RESOLVED).id, second);
    assert_eq!(w.expect(0, file, kind::ADDR_RESOLVED).id, first);
    assert_eq!(w.event(0, file), None);
}

/// R-MIG-10: what `ucmatose -m` does after its transfers, on both sides, and the disconnect events come out of the new
/// channels.
#[test]
fn both_sides_migrate_everything_and_disconnect() {
    let mut w = World::new(2);
    let old = [w.open(0), w.open(1)];
    let listener = w.listener(1, old[1], 100);
    let pairs: Vec<_> = (0..4).map(|_| w.established(old[0], old[1])).collect();
    let new = [w.open(0), w.open(1)];
    w.ok(1, new[1], &client::migrate_id(listener, old[1].0));
    for &(id, child) in &pairs {
        assert_eq!(
            w.ok(0, new[0], &client::migrate_id(id, old[0].0)),
            EventsReported(3)
        );
        assert_eq!(
            w.ok(1, new[1], &client::migrate_id(child, old[1].0)),
            EventsReported(1)
        );
    }
    let now = w.now;
    assert!(w.hosts[0].close(now, old[0]) && w.hosts[1].close(now, old[1]));
    for &(id, child) in &pairs {
        w.ok(0, new[0], &client::disconnect(id));
        assert_eq!(w.expect(1, new[1], kind::DISCONNECTED).id, child);
        w.ok(1, new[1], &client::disconnect(child));
        assert_eq!(w.expect(0, new[0], kind::DISCONNECTED).id, id);
    }
    w.rest();
    for &(id, child) in &pairs {
        assert_eq!(w.ok(0, new[0], &client::destroy_id(id)), EventsReported(4));
        assert_eq!(
            w.ok(1, new[1], &client::destroy_id(child)),
            EventsReported(2)
        );
    }
    assert_eq!(
        w.ok(1, new[1], &client::destroy_id(listener)),
        EventsReported(4)
    );
    assert!(
        w.hosts
            .iter()
            .all(|host| host.cma().is_empty() && host.cma().connections() == 0)
    );
}

/// R-MIG-5: the old channel is named, and only one of the same program can be.
#[test]
fn the_old_channel_must_be_the_identifiers_and_the_programs() {
    let mut w = World::new(1);
    let (old, new, third) = (w.open(0), w.open(0), w.open(0));
    let foreign = w.hosts[0].open(Owner(2)).expect("room");
    let id = w.create(0, old, 1);
    let call = client::migrate_id(id, old.0);
    assert_eq!(w.errno(0, new, call.request(), &[]), 2, "no old channel");
    assert_eq!(w.errno(0, new, call.request(), &[0; 4]), 2, "half a token");
    assert_eq!(
        w.errno(0, new, call.request(), &u64::MAX.to_le_bytes()),
        2,
        "no such channel"
    );
    assert_eq!(
        w.errno(0, new, call.request(), &foreign.0.to_le_bytes()),
        2,
        "another program's channel"
    );
    assert_eq!(
        w.errno(0, foreign, call.request(), call.inline()),
        2,
        "another program's identifier"
    );
    assert_eq!(
        w.errno(0, new, call.request(), &third.0.to_le_bytes()),
        22,
        "not on that channel"
    );
    assert!(matches!(
        w.call(0, new, &client::migrate_id(client::IdNumber(7), old.0)),
        Err(Failure::UnknownId { number: 7, .. })
    ));
    assert_eq!(
        w.ok(0, old, &client::query_addr(id)).local,
        None,
        "nothing moved"
    );
    w.ok(0, new, &call);
    assert_eq!(
        w.errno(0, new, call.request(), call.inline()),
        22,
        "it has left that channel"
    );
}
