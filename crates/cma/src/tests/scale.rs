//! Many identifiers at once: what is per identifier stays per identifier.

use super::world::{PORT, World, addr, param};
use crate::{ConnectParam, EventKind, Id};

/// 10,000 live connections; each further step touches its own identifier only, so that the test takes seconds, not minutes.
#[test]
fn ten_thousand_connections_live_at_once_and_go() {
    const COUNT: u32 = 10_000;
    let mut world = World::pair();
    let listener = world.b().listener(addr("0.0.0.0", PORT), 0);
    let mut pairs: Vec<(Id, Id)> = Vec::new();
    for n in 0..COUNT {
        let active = world.resolved(addr("10.0.0.2", PORT));
        let now = world.now();
        world.connect(active, param(n + 1));
        let passive = world.b().expect(EventKind::CONNECT_REQUEST).id;
        world
            .b()
            .cma
            .accept(
                now,
                passive,
                None,
                ConnectParam {
                    qpn: super::world::qpn(n + 1),
                    ..ConnectParam::default()
                },
            )
            .expect("waits");
        world.settle();
        world.a().expect(EventKind::CONNECT_RESPONSE);
        world.establish(active);
        assert_eq!(world.b().expect(EventKind::ESTABLISHED).id, passive);
        pairs.push((active, passive));
    }
    assert_eq!(
        (world.a().cma.connections(), world.b().cma.connections()),
        (10_000, 10_000)
    );
    // An established connection has no timer.
    assert_eq!(
        (world.a().cma.poll_timeout(), world.b().cma.poll_timeout()),
        (None, None)
    );
    let now = world.now();
    for (active, passive) in pairs {
        world.a().cma.destroy_id(now, active).expect("exists");
        world.b().cma.destroy_id(now, passive).expect("exists");
    }
    world.b().cma.destroy_id(now, listener).expect("exists");
    world.assert_nothing_left();
}
