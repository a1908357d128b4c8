//! Addresses that are used again.

use crate::support::*;
use oarlock_rdmacm::{Identifier, PortSpace};
use std::net::SocketAddr;

/// Public fault 39: a server that starts again has its address at once, though connections of its earlier life are alive, and
/// in timewait.
#[test]
fn a_server_that_starts_again_has_its_address_at_once() {
    let pair = pair();
    drop((pair.listener, pair.passive));
    expect(&pair.active_channel, "DISCONNECTED");
    // The other side has not answered yet; its identifier lives.
    for n in 0..3 {
        let again = Identifier::new(&pair.passive_channel, PortSpace::TCP).unwrap();
        again.bind_addr(pair.address).unwrap();
        again.listen(0).unwrap();
        let active = resolved(&pair.active_channel, pair.address);
        active.connect(&external(n)).unwrap();
        let passive = request(&pair.passive_channel).id;
        passive.accept(&external(100 + n)).unwrap();
        expect(&pair.active_channel, "CONNECT_RESPONSE");
        active.establish().unwrap();
        expect(&pair.passive_channel, "ESTABLISHED");
        drop((again, passive));
        expect(&pair.active_channel, "DISCONNECTED");
        drop(active);
    }
}

/// Public fault 39: an address that is taken says so, and which rule it was: the same address, or a wildcard in the way (which
/// has another number, as in the kernel). With `reuse_address` before binding both may have it, and who is alone with it may listen.
#[test]
fn an_address_that_is_taken_says_by_which_rule() {
    let host = private();
    let events = channel(&host);
    let (first, address) = listener(&events);
    let bind = |to: SocketAddr, reuse: bool| {
        let id = Identifier::new(&events, PortSpace::TCP).unwrap();
        if reuse {
            id.set_reuse_address(true).unwrap();
        }
        id.bind_addr(to).map(|()| id)
    };
    let same = bind(address, false).unwrap_err();
    let any = SocketAddr::new("0.0.0.0".parse().unwrap(), address.port());
    let wild = bind(any, false).unwrap_err();
    for (error, numbers) in [(&same, &[98, 99][..]), (&wild, &[99])] {
        assert!(numbers.contains(&error.errno()), "{error}");
        let port = address.port().to_string();
        assert!(error.to_string().contains(&port), "{error}");
    }
    assert_ne!(same.to_string(), wild.to_string());
    drop(first);
    let (one, two) = (bind(address, true).unwrap(), bind(address, true).unwrap());
    // Listening looks again, and does not share.
    let error = one.listen(0).unwrap_err();
    assert!([98, 99].contains(&error.errno()), "{error}");
    drop(two);
    one.listen(0).unwrap();
}
