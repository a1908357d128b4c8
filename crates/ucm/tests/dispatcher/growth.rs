//! A program that makes and destroys without end.

use std::net::SocketAddr;

use oarlock_ucm::Owner;
use oarlock_ucm::client;

use crate::world::{PORT, UDP, World, address, kind};

/// Public faults 19 and 40: a hundred thousand identifiers, each with an ephemeral port, more than there are, leave no port, no
/// number and no event behind, however far they got; the numbers are the lowest ones again and again.
#[test]
fn a_hundred_thousand_identifiers_leave_nothing() {
    let mut w = World::new(1);
    let file = w.open(0);
    let to = SocketAddr::new(address(0), PORT);
    for n in 0..100_000_u64 {
        let id = if n % 4 == 3 {
            w.ok(0, file, &client::create_id(n, UDP, 0))
        } else {
            w.create(0, file, n)
        };
        assert_eq!(id.0, 0, "the lowest free number");
        w.ok(0, file, &client::resolve_addr(id, None, to, 1000));
        match n % 4 {
            // The event is never fetched.
            0 => {}
            1 => {
                w.expect(0, file, kind::ADDR_RESOLVED);
                w.ok(0, file, &client::resolve_route(id, 1000));
            }
            2 => {
                // The second resolution is refused; what the first one took is not taken twice.
                let again = client::resolve_addr(id, None, to, 1000);
                assert_eq!(w.errno(0, file, again.request(), &[]), 22);
            }
            _ => {
                w.expect(0, file, kind::ADDR_RESOLVED);
            }
        }
        w.ok(0, file, &client::destroy_id(id));
        assert!(w.event(0, file).is_none());
    }
    assert_eq!(w.hosts[0].ports(), []);
    assert_eq!((w.hosts[0].ids(), w.hosts[0].queued(file)), (0, 0));
    assert_eq!(w.hosts[0].poll_timeout(), None);
    w.hosts[0].close_all(w.now, Owner(1));
    assert_eq!((w.hosts[0].files(), w.hosts[0].cma().len()), (0, 0));
}
