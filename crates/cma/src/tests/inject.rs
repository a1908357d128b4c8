//! Events that the user puts into a channel.

use super::world::{PORT, SECOND, World, addr, errno};
use crate::{Counter, Errno, Error, EventKind, EventParam, Id};

fn inject(world: &mut World, host: usize, id: Id, kind: EventKind, arg: u64) -> Result<(), Error> {
    let now = world.now();
    world.hosts[host].cma.inject_event(now, id, kind, -7, arg)
}

#[test]
fn an_injected_event_is_an_event_like_any_other() {
    let mut world = World::pair();
    let id = world.a().id();
    let now = world.now();
    world.ask(id, addr("127.0.0.1", PORT));
    inject(&mut world, 0, id, EventKind::USER, u64::MAX).expect("exists");
    inject(&mut world, 0, id, EventKind::INTERNAL, 2).expect("exists");
    let channel = world.a().channel;
    assert_eq!(world.a().cma.poll_ready(), Some((channel, 3)));
    world.a().expect(EventKind::ADDR_RESOLVED);
    let event = world.a().expect(EventKind::USER);
    assert_eq!(
        (event.id, event.context, event.status, event.param),
        (id, 0xC0FFEE, -7, EventParam::User(u64::MAX))
    );
    // It moves with its identifier, counts for it, and goes with it.
    let to = world.a().cma.create_channel().expect("room");
    assert_eq!(world.a().cma.migrate_id(id, to), Ok(2));
    inject(&mut world, 0, id, EventKind::USER, 3).expect("exists");
    let event = world.a().expect_on(to, EventKind::INTERNAL);
    assert_eq!(event.param, EventParam::User(2));
    assert_eq!(world.a().cma.destroy_id(now, id), Ok(3));
    assert_eq!(world.a().cma.next_event(to), None);
    let counters = world.a().cma.counters();
    assert_eq!(
        (
            counters.get(Counter::EventsInjected),
            counters.get(Counter::EventsDestroyed)
        ),
        (3, 1)
    );
}

#[test]
fn only_user_and_internal_events_can_be_injected_and_only_where_there_is_room() {
    let config = crate::Config {
        max_queued_events: 1,
        ..crate::Config::default()
    };
    let mut world = World::with(&[config]);
    let id = world.a().id();
    for kind in (0..=20).map(EventKind) {
        if kind == EventKind::USER || kind == EventKind::INTERNAL {
            continue;
        }
        let refused = inject(&mut world, 0, id, kind, 0);
        assert_eq!(
            errno(refused),
            (
                Errno::EINVAL,
                format!("event {kind} cannot be injected: USER and INTERNAL can")
            )
        );
    }
    inject(&mut world, 0, id, EventKind::USER, 0).expect("room for one");
    let full = inject(&mut world, 0, id, EventKind::USER, 0);
    assert_eq!(errno(full).0, Errno::ENOMEM);
    let now = world.now();
    world.a().cma.destroy_id(now, id).expect("exists");
    let gone = inject(&mut world, 0, id, EventKind::USER, 0);
    assert_eq!(gone, Err(Error::UnknownId));
}

/// The user injects deliberately, so that a child that was not accepted gets the event too; one whose device has gone does not.
#[test]
fn children_get_injected_events_and_removed_identifiers_do_not() {
    let mut world = World::pair();
    world.b().listener(addr("0.0.0.0", PORT), 0);
    let (_, passive) = world.requested();
    inject(&mut world, 1, passive, EventKind::USER, 9).expect("taken");
    assert_eq!(world.b().expect(EventKind::USER).id, passive);
    let now = world.now();
    world.b().cma.set_devices(now, Vec::new());
    let refused = inject(&mut world, 1, passive, EventKind::USER, 9);
    assert_eq!(errno(refused).0, Errno::ENXIO);
    world.run(SECOND);
}
