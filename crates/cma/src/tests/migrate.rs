//! Migration, clause by clause.

use super::world::{Lookups, PORT, SECOND, World, addr, param};
use crate::{ChannelId, Config, ConnectParam, Disconnect, Error, EventKind, Id};

fn listening() -> (World, Id) {
    let mut world = World::pair();
    let listener = world.b().listener(addr("0.0.0.0", PORT), 0);
    (world, listener)
}

/// A sends a request that waits on B's channel.
fn request(world: &mut World, qp: u32) -> Id {
    let id = world.resolved(addr("10.0.0.2", PORT));
    world.connect(id, param(qp));
    id
}

fn channel(world: &mut World, host: usize) -> ChannelId {
    world.hosts[host].cma.create_channel().expect("one more")
}

/// Queues ADDR_RESOLVED on A without taking it.
fn queue_one(world: &mut World, id: Id) {
    world.ask(id, addr("127.0.0.1", PORT));
}

/// R-MIG-1: later events of the identifier are reported on the new channel, and on it only.
#[test]
fn later_events_are_reported_on_the_new_channel() {
    let (mut world, _) = listening();
    let (active, passive) = world.connected();
    let new = channel(&mut world, 0);
    world.a().cma.migrate_id(active, new).expect("exists");
    assert_eq!(world.a().cma.channel_of(active), Ok(new));
    let now = world.now();
    world.b().cma.disconnect(now, passive).expect("connected");
    world.settle();
    world.a().expect_nothing();
    assert_eq!(world.a().expect_on(new, EventKind::DISCONNECTED).id, active);
}

/// R-MIG-2: pending events move to the tail of the new channel, in order, and those of others stay.
#[test]
fn pending_events_move_to_the_tail_in_order() {
    let (mut world, _) = listening();
    let new = channel(&mut world, 0);
    let (moving, staying) = (world.a().id(), world.a().id());
    let there = world.a().id_on(new);
    for id in [moving, staying, there] {
        queue_one(&mut world, id);
    }
    for id in [moving, staying] {
        world.a().cma.resolve_route(id, SECOND).expect("resolved");
    }
    world.a().cma.migrate_id(moving, new).expect("exists");
    let host = world.a();
    let order = [
        host.expect_on(new, EventKind::ADDR_RESOLVED).id,
        host.expect_on(new, EventKind::ADDR_RESOLVED).id,
        host.expect_on(new, EventKind::ROUTE_RESOLVED).id,
    ];
    assert_eq!(order, [there, moving, moving]);
    assert_eq!(host.cma.next_event(new), None);
    assert_eq!(host.expect(EventKind::ADDR_RESOLVED).id, staying);
    assert_eq!(host.expect(EventKind::ROUTE_RESOLVED).id, staying);
    host.expect_nothing();
}

/// R-MIG-3, R-MIG-5: nothing blocks here; the answer is the number of events handed out over the identifier's life, which
/// the library compares with the number acknowledged. Events that moved count when they are taken.
#[test]
fn the_answer_is_the_number_of_events_handed_out_over_the_identifiers_life() {
    let (mut world, listener) = listening();
    let new = channel(&mut world, 0);
    let id = world.a().id();
    assert_eq!(world.a().cma.migrate_id(id, new), Ok(0));
    queue_one(&mut world, id);
    let back = world.a().channel;
    assert_eq!(world.a().cma.migrate_id(id, back), Ok(0));
    world.a().expect(EventKind::ADDR_RESOLVED);
    world.a().cma.resolve_route(id, SECOND).expect("resolved");
    assert_eq!(world.a().cma.migrate_id(id, new), Ok(1));
    world.a().expect_on(new, EventKind::ROUTE_RESOLVED);
    assert_eq!(world.a().cma.migrate_id(id, new), Ok(2));
    // A request counts on the listener, not on the child.
    let (_, child) = world.requested();
    let new = channel(&mut world, 1);
    assert_eq!(world.b().cma.migrate_id(listener, new), Ok(1));
    assert_eq!(world.b().cma.migrate_id(child, new), Ok(0));
}

/// R-MIG-4: a child starts on its listener's channel.
#[test]
fn a_child_starts_on_its_listeners_channel() {
    let (mut world, listener) = listening();
    let new = channel(&mut world, 1);
    world.b().cma.migrate_id(listener, new).expect("exists");
    request(&mut world, 1);
    let child = world.b().expect_on(new, EventKind::CONNECT_REQUEST).id;
    assert_eq!(world.b().cma.channel_of(child), Ok(new));
}

/// R-MIG-4: migrating after the request leaves listen events alone on their channel.
#[test]
fn migrating_after_the_request_keeps_the_listeners_channel_for_requests() {
    let (mut world, _) = listening();
    let (active, passive) = world.requested();
    let connections = channel(&mut world, 1);
    world
        .b()
        .cma
        .migrate_id(passive, connections)
        .expect("taken");
    world.accept(passive, ConnectParam::default());
    world.a().expect(EventKind::CONNECT_RESPONSE);
    world.establish(active);
    request(&mut world, 2);
    assert_eq!(
        world.b().expect_on(connections, EventKind::ESTABLISHED).id,
        passive
    );
    world.b().expect(EventKind::CONNECT_REQUEST);
    world.b().expect_nothing();
}

/// R-MIG-4: migrating after establishment keeps the events of established connections apart.
#[test]
fn migrating_after_establishment_keeps_established_connections_apart() {
    let (mut world, _) = listening();
    let (active, passive) = world.connected();
    let established = channel(&mut world, 1);
    world
        .b()
        .cma
        .migrate_id(passive, established)
        .expect("exists");
    let (_, second) = world.connected();
    let now = world.now();
    world.a().cma.disconnect(now, active).expect("connected");
    world.settle();
    world.b().expect_nothing();
    assert_eq!(
        world.b().expect_on(established, EventKind::DISCONNECTED).id,
        passive
    );
    assert_eq!(world.b().cma.channel_of(second), Ok(world.hosts[1].channel));
}

/// R-MIG-6: an identifier may be migrated in every state, in the middle of a lookup, a connection attempt, a disconnect.
#[test]
fn an_identifier_may_be_migrated_in_the_middle_of_everything() {
    let (mut world, _) = listening();
    let channels = [world.a().channel, channel(&mut world, 0)];
    let mut moves = 0;
    let id = world.a().id();
    let mut migrate = |world: &mut World| {
        moves += 1;
        world
            .a()
            .cma
            .migrate_id(id, channels[moves % 2])
            .expect("exists");
        channels[moves % 2]
    };
    world.a().lookups = Lookups::Kept;
    world.ask(id, addr("10.0.0.2", PORT));
    let at = migrate(&mut world);
    world.run(SECOND);
    world.a().expect_on(at, EventKind::ADDR_ERROR);
    world.a().lookups = Lookups::Answered;
    let now = world.now();
    world.ask(id, addr("10.0.0.2", PORT));
    let at = migrate(&mut world);
    world.drain();
    world.a().expect_on(at, EventKind::ADDR_RESOLVED);
    world.a().cma.resolve_route(id, SECOND).expect("resolved");
    let at = migrate(&mut world);
    world.a().expect_on(at, EventKind::ROUTE_RESOLVED);
    world.a().cma.connect(now, id, param(0x11)).expect("a path");
    let at = migrate(&mut world);
    world.settle();
    let passive = world.b().expect(EventKind::CONNECT_REQUEST).id;
    world.accept(passive, ConnectParam::default());
    world.a().expect_on(at, EventKind::CONNECT_RESPONSE);
    let now = world.now();
    world.establish(id);
    world.a().cma.disconnect(now, id).expect("connected");
    let at = migrate(&mut world);
    world.settle();
    world.b().expect(EventKind::ESTABLISHED);
    world.b().expect(EventKind::DISCONNECTED);
    let now = world.now();
    assert_eq!(
        world.b().cma.disconnect(now, passive),
        Ok(Disconnect::Replied)
    );
    world.settle();
    world.a().expect_on(at, EventKind::DISCONNECTED);
    let at = migrate(&mut world);
    world.run(SECOND);
    world.a().expect_on(at, EventKind::TIMEWAIT_EXIT);
    for channel in channels {
        assert_eq!(world.a().cma.next_event(channel), None);
    }
}

/// R-MIG-7: after the move the old channel can be destroyed at once, with events pending that moved.
#[test]
fn the_old_channel_can_be_destroyed_at_once() {
    let (mut world, _) = listening();
    let id = world.a().id();
    queue_one(&mut world, id);
    let (old, new) = (world.a().channel, channel(&mut world, 0));
    let now = world.now();
    world.a().cma.migrate_id(id, new).expect("exists");
    world.a().cma.destroy_channel(now, old).expect("exists");
    assert_eq!(world.a().expect_on(new, EventKind::ADDR_RESOLVED).id, id);
    world.a().cma.resolve_route(id, SECOND).expect("alive");
    assert_eq!(world.a().expect_on(new, EventKind::ROUTE_RESOLVED).id, id);
}

/// R-MIG-8: a synchronous identifier has a private channel; going there and back is migration like any other.
#[test]
fn to_a_private_channel_and_back_nothing_is_lost() {
    let (mut world, _) = listening();
    let shared = world.a().channel;
    let id = world.a().id();
    queue_one(&mut world, id);
    let private = channel(&mut world, 0);
    world.a().cma.migrate_id(id, private).expect("exists");
    world.a().cma.resolve_route(id, SECOND).expect("resolved");
    world.a().expect_on(private, EventKind::ADDR_RESOLVED);
    assert_eq!(world.a().cma.migrate_id(id, shared), Ok(1));
    let now = world.now();
    world.a().cma.destroy_channel(now, private).expect("exists");
    assert_eq!(world.a().expect(EventKind::ROUTE_RESOLVED).id, id);
}

/// R-MIG-9: children of queued requests move with their listener, and live on when the old channel dies. Public fault 71.
#[test]
fn children_of_queued_requests_move_with_their_listener() {
    let (mut world, listener) = listening();
    let actives = [request(&mut world, 1), request(&mut world, 2)];
    let (old, new) = (world.b().channel, channel(&mut world, 1));
    let now = world.now();
    world.b().cma.migrate_id(listener, new).expect("exists");
    world.b().cma.destroy_channel(now, old).expect("exists");
    world.settle();
    world.a().expect_nothing();
    let requests = actives.map(|_| world.b().expect_on(new, EventKind::CONNECT_REQUEST));
    for (active, request) in actives.into_iter().zip(requests) {
        assert_eq!(request.listen_id, Some(listener));
        assert_eq!(world.b().cma.channel_of(request.id), Ok(new));
        let answer = ConnectParam {
            qpn: world.param().qpn,
            ..ConnectParam::default()
        };
        world.accept(request.id, answer);
        assert_eq!(world.a().expect(EventKind::CONNECT_RESPONSE).id, active);
        world.establish(active);
        assert_eq!(
            world.b().expect_on(new, EventKind::ESTABLISHED).id,
            request.id
        );
    }
}

/// R-MIG-9: a child whose request was taken stays where it is.
#[test]
fn a_child_whose_request_was_taken_stays() {
    let (mut world, listener) = listening();
    let (_, child) = world.requested();
    let (old, new) = (world.b().channel, channel(&mut world, 1));
    world.b().cma.migrate_id(listener, new).expect("exists");
    assert_eq!(world.b().cma.channel_of(child), Ok(old));
}

/// R-MIG-9: the backlog's places move with the requests.
#[test]
fn taking_a_moved_request_gives_its_place_in_the_backlog_back() {
    let mut world = World::pair();
    let listener = world.b().listener(addr("0.0.0.0", PORT), 1);
    request(&mut world, 1);
    let new = channel(&mut world, 1);
    world.b().cma.migrate_id(listener, new).expect("exists");
    let waiting = |world: &mut World| {
        world
            .b()
            .cma
            .query(listener)
            .expect("exists")
            .backlog
            .expect("listens")
            .waiting
    };
    assert_eq!(waiting(&mut world), 1);
    world.b().expect_on(new, EventKind::CONNECT_REQUEST);
    assert_eq!(waiting(&mut world), 0);
    request(&mut world, 2);
    world.b().expect_on(new, EventKind::CONNECT_REQUEST);
}

/// R-MIG-9: readers who wait on the new channel are told of the events that moved, also of those that the readers of
/// the old channel were told of before.
#[test]
fn readers_of_the_new_channel_wake_up() {
    let (mut world, listener) = listening();
    request(&mut world, 1);
    request(&mut world, 2);
    let (old, new) = (world.b().channel, channel(&mut world, 1));
    assert_eq!(world.b().cma.poll_ready(), Some((old, 2)));
    request(&mut world, 3);
    world.b().cma.migrate_id(listener, new).expect("exists");
    assert_eq!(world.b().cma.poll_ready(), Some((new, 3)));
    assert_eq!(world.b().cma.poll_ready(), None);
}

/// R-MIG-2, R-MIG-9: migration to the channel that it is on puts the events at the tail and wakes nobody twice.
#[test]
fn migration_to_the_same_channel_puts_the_events_at_the_tail() {
    let (mut world, _) = listening();
    let ids = [world.a().id(), world.a().id()];
    for id in ids {
        queue_one(&mut world, id);
    }
    let here = world.a().channel;
    assert_eq!(world.a().cma.poll_ready(), Some((here, 2)));
    assert_eq!(world.a().cma.migrate_id(ids[0], here), Ok(0));
    assert_eq!(world.a().cma.poll_ready(), None);
    world
        .a()
        .cma
        .resolve_route(ids[0], SECOND)
        .expect("resolved");
    assert_eq!(world.a().cma.poll_ready(), Some((here, 1)));
    let host = world.a();
    let order = [
        host.expect(EventKind::ADDR_RESOLVED).id,
        host.expect(EventKind::ADDR_RESOLVED).id,
        host.expect(EventKind::ROUTE_RESOLVED).id,
    ];
    assert_eq!(order, [ids[1], ids[0], ids[0]]);
}

#[test]
fn a_migration_that_cannot_be_is_an_error_and_moves_nothing() {
    let mut world = World::with(&[Config {
        max_queued_events: 2,
        ..Config::default()
    }]);
    let (here, there) = (world.a().channel, channel(&mut world, 0));
    let ids = [
        world.a().id(),
        world.a().id_on(there),
        world.a().id_on(there),
    ];
    for id in ids {
        queue_one(&mut world, id);
    }
    let full = world.a().cma.migrate_id(ids[0], there);
    assert_eq!(
        full,
        Err(Error::ChannelFull {
            queued: 2,
            adding: 1,
            max: 2
        })
    );
    let now = world.now();
    let dead = channel(&mut world, 0);
    world.a().cma.destroy_channel(now, dead).expect("exists");
    assert_eq!(
        world.a().cma.migrate_id(ids[0], dead),
        Err(Error::UnknownChannel)
    );
    assert_eq!(world.a().cma.channel_of(ids[0]), Ok(here));
    assert_eq!(world.a().expect(EventKind::ADDR_RESOLVED).id, ids[0]);
    world.a().cma.destroy_id(now, ids[0]).expect("exists");
    assert_eq!(
        world.a().cma.migrate_id(ids[0], there),
        Err(Error::UnknownId)
    );
}

/// R-MIG-10: both sides migrate the listener and every connection after the transfers, destroy the old channels, and go on
/// with the disconnect events on the new ones.
#[test]
fn both_sides_migrate_everything_before_they_disconnect() {
    let (mut world, listener) = listening();
    let pairs: Vec<(Id, Id)> = (0..5).map(|_| world.connected()).collect();
    let new = [channel(&mut world, 0), channel(&mut world, 1)];
    assert_eq!(world.b().cma.migrate_id(listener, new[1]), Ok(5));
    for (active, passive) in &pairs {
        // ADDR_RESOLVED, ROUTE_RESOLVED, CONNECT_RESPONSE; ESTABLISHED.
        assert_eq!(world.a().cma.migrate_id(*active, new[0]), Ok(3));
        assert_eq!(world.b().cma.migrate_id(*passive, new[1]), Ok(1));
    }
    let now = world.now();
    for host in &mut world.hosts {
        host.cma.destroy_channel(now, host.channel).expect("exists");
    }
    world.settle();
    for (active, _) in &pairs {
        let now = world.now();
        world.a().cma.disconnect(now, *active).expect("connected");
    }
    world.settle();
    for (_, passive) in &pairs {
        assert_eq!(
            world.b().expect_on(new[1], EventKind::DISCONNECTED).id,
            *passive
        );
        let now = world.now();
        world.b().cma.disconnect(now, *passive).expect("connected");
    }
    world.settle();
    for (active, passive) in &pairs {
        assert_eq!(
            world.a().expect_on(new[0], EventKind::DISCONNECTED).id,
            *active
        );
        let now = world.now();
        assert_eq!(world.a().cma.destroy_id(now, *active), Ok(4));
        assert_eq!(world.b().cma.destroy_id(now, *passive), Ok(2));
    }
    let now = world.now();
    world.b().cma.destroy_id(now, listener).expect("exists");
    world.assert_nothing_left();
}
