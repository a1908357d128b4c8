//! For tests with both sides in one process: from when on a client can connect.

use oarlock_hostd::Host;
use std::thread::ScopedJoinHandle;

/// Waits until an identifier listens on `host`, as `server` does soon.
pub(crate) fn until_listening<T>(host: &Host, server: &ScopedJoinHandle<'_, T>) {
    while !is_listening(host) {
        assert!(!server.is_finished(), "the server listens");
        std::thread::yield_now();
    }
}

/// One that is only bound has its port already, but what is asked of it is rejected.
fn is_listening(host: &Host) -> bool {
    let shown = host.ps().expect("it answers");
    shown.ids.iter().any(|id| id.state == "LISTEN")
}

#[test]
fn who_is_bound_only_does_not_listen() {
    use oarlock_rdmacm::{EventChannel, Identifier, PortSpace};
    let host = Host::private().expect("a host");
    let channel = EventChannel::new(&host).expect("a channel");
    let id = Identifier::new(&channel, PortSpace::TCP).expect("an identifier");
    id.bind_addr("127.0.0.1:0".parse().expect("an address"))
        .expect("bound");
    assert_eq!(host.ps().expect("it answers").host.ports.len(), 1);
    assert!(!is_listening(&host));
    id.listen(0).expect("it listens");
    assert!(is_listening(&host));
}
