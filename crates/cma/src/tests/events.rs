//! Reading events: order, counting, waking.

use super::world::{PORT, SECOND, World, addr};
use crate::EventKind;

#[test]
fn ready_is_told_once_for_each_event() {
    let mut world = World::pair();
    let host = world.a();
    let channel = host.channel;
    assert_eq!(host.cma.poll_ready(), None);
    let ids = [host.id(), host.id()];
    let now = world.now();
    let host = world.a();
    for id in ids {
        host.cma
            .resolve_addr(now, id, None, addr("127.0.0.1", PORT), SECOND)
            .expect("idle");
    }
    assert_eq!(host.cma.poll_ready(), Some((channel, 2)));
    assert_eq!(host.cma.poll_ready(), None);
    host.cma.resolve_route(ids[0], SECOND).expect("resolved");
    assert_eq!(host.cma.poll_ready(), Some((channel, 1)));
    for _ in 0..3 {
        assert!(host.cma.next_event(channel).is_some());
    }
    assert_eq!(host.cma.poll_ready(), None);
}

#[test]
fn an_event_that_is_taken_or_destroyed_before_it_is_told_of_wakes_nobody() {
    let mut world = World::pair();
    let ids = [world.a().id(), world.a().id(), world.a().id()];
    let now = world.now();
    let host = world.a();
    for id in ids {
        host.cma
            .resolve_addr(now, id, None, addr("127.0.0.1", PORT), SECOND)
            .expect("idle");
    }
    assert_eq!(host.expect(EventKind::ADDR_RESOLVED).id, ids[0]);
    host.cma.destroy_id(now, ids[1]).expect("exists");
    assert_eq!(host.cma.poll_ready(), Some((host.channel, 1)));
    host.cma.destroy_id(now, ids[2]).expect("exists");
    assert_eq!(host.cma.poll_ready(), None);
    host.expect_nothing();
}

#[test]
fn a_request_is_counted_on_its_listener() {
    let mut world = World::pair();
    let listener = world.b().listener(addr("0.0.0.0", PORT), 0);
    let (_, passive) = world.connected();
    let reported = |world: &mut World, id| world.b().cma.query(id).expect("exists").events_reported;
    assert_eq!(reported(&mut world, listener), 1);
    // ESTABLISHED.
    assert_eq!(reported(&mut world, passive), 1);
}

#[test]
fn reading_a_channel_that_does_not_exist_gives_nothing() {
    let mut world = World::pair();
    let channel = world.a().cma.create_channel().expect("a second");
    let now = world.now();
    world.a().cma.destroy_channel(now, channel).expect("exists");
    assert_eq!(world.a().cma.next_event(channel), None);
    assert_eq!(world.a().cma.queued(channel), 0);
}
