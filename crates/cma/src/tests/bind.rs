//! Binding, options, port spaces.

use super::world::{Host, PORT, World, addr, errno, ip, scoped};
use crate::{Config, Errno, IdOption, State};

#[test]
fn binding_a_specific_address_binds_the_device_and_any_or_loopback_does_not() {
    let mut world = World::pair();
    let device_of = |host: &mut Host, address: &str| {
        let id = host.bound(addr(address, 0)).expect("binds");
        let query = host.cma.query(id).expect("exists");
        assert_eq!(query.state, State::AddrBound);
        assert_ne!(query.local.expect("bound").port(), 0);
        query.device.map(|device| device.index)
    };
    assert_eq!(device_of(world.a(), "10.0.0.1"), Some(0));
    assert_eq!(device_of(world.a(), "fd00::1"), Some(0));
    for address in ["0.0.0.0", "::", "127.0.0.1", "127.9.9.9", "::1"] {
        assert_eq!(device_of(world.a(), address), None, "{address}");
    }
}

/// Public fault 39: each refusal names the address and the rule.
#[test]
fn what_cannot_be_bound_says_why() {
    let mut world = World::pair();
    let host = world.a();
    host.cma
        .set_addresses_without_device(vec![ip("192.168.7.7")]);
    let cases = [
        (
            addr("10.0.0.77", 0),
            Errno::EADDRNOTAVAIL,
            "10.0.0.77 is not an address of this host",
        ),
        (
            addr("192.168.7.7", 0),
            Errno::ENODEV,
            "192.168.7.7 is a local address without an RDMA device",
        ),
        (
            addr("fe80::1", 0),
            Errno::EINVAL,
            "link-local address fe80::1 without a scope: say which interface, as in fe80::1%2",
        ),
        (
            scoped("fe80::1", 0, 9),
            Errno::EADDRNOTAVAIL,
            "fe80::1 is not an address of this host",
        ),
        (
            addr("::ffff:10.0.0.1", 0),
            Errno::EADDRNOTAVAIL,
            "::ffff:10.0.0.1 is an IPv4-mapped address: give the IPv4 address",
        ),
        (
            addr("10.0.0.1", 80),
            Errno::EACCES,
            "port 80 is below 1024, which needs the privilege to bind such ports",
        ),
    ];
    for (address, number, sentence) in cases {
        let id = host.id();
        assert_eq!(
            errno(host.cma.bind_addr(id, address)),
            (number, sentence.to_owned())
        );
        assert_eq!(
            host.cma.query(id).expect("exists").state,
            State::Idle,
            "{address} changed something"
        );
        assert_eq!(
            host.cma.bind_addr(id, addr("10.0.0.1", 0)),
            Ok(()),
            "still idle after {address}"
        );
    }
    assert!(host.bound(scoped("fe80::1", 0, 2)).is_ok());
    let id = host.bound(addr("10.0.0.1", 5000)).expect("free");
    let again = host.cma.bind_addr(id, addr("10.0.0.1", 5001));
    assert_eq!(
        errno(again),
        (
            Errno::EINVAL,
            "bind_addr in state ADDR_BOUND, which wants IDLE".to_owned()
        )
    );
    assert_eq!(
        errno(host.bound(addr("10.0.0.1", 5000))).0,
        Errno::EADDRINUSE
    );
    assert_eq!(
        errno(host.bound(addr("0.0.0.0", 5000))).0,
        Errno::EADDRNOTAVAIL
    );
}

#[test]
fn a_channel_may_be_allowed_to_bind_low_ports() {
    let mut world = World::pair();
    let channel = world.a().channel;
    world
        .a()
        .cma
        .allow_privileged_ports(channel, true)
        .expect("exists");
    assert!(world.a().bound(addr("10.0.0.1", 80)).is_ok());
    let config = Config {
        privileged_ports: true,
        ..Config::default()
    };
    let mut world = World::with(&[config]);
    assert!(world.a().bound(addr("10.0.0.1", 80)).is_ok());
}

#[test]
fn af_only_follows_the_family_the_configuration_and_the_option() {
    let mut world = World::pair();
    let host = world.a();
    host.bound(addr("0.0.0.0", 5000)).expect("free");
    // bindv6only is off: an IPv6 wildcard stands for IPv4 too.
    assert_eq!(errno(host.bound(addr("::", 5000))).0, Errno::EADDRNOTAVAIL);
    let id = host.id();
    host.cma
        .set_option(id, IdOption::AfOnly(true))
        .expect("idle");
    assert_eq!(host.cma.bind_addr(id, addr("::", 5000)), Ok(()));

    let mut world = World::with(&[Config {
        bindv6only: true,
        ..Config::default()
    }]);
    world.a().bound(addr("0.0.0.0", 5000)).expect("free");
    assert!(world.a().bound(addr("::", 5000)).is_ok());
}

#[test]
fn options_change_only_where_they_still_mean_something() {
    let mut world = World::pair();
    let host = world.a();
    let listener = host.listener(addr("10.0.0.1", PORT), 0);
    let bound = host.bound(addr("10.0.0.1", 0)).expect("free");
    let set = |host: &mut Host, id, option| {
        host.cma
            .set_option(id, option)
            .map_err(|error| error.errno())
    };
    assert_eq!(
        set(host, listener, IdOption::ReuseAddr(true)),
        Err(Errno::EINVAL)
    );
    assert_eq!(set(host, bound, IdOption::ReuseAddr(true)), Ok(()));
    assert_eq!(
        set(host, bound, IdOption::ReuseAddr(false)),
        Err(Errno::EINVAL)
    );
    assert_eq!(set(host, bound, IdOption::AfOnly(false)), Ok(()));
    assert_eq!(
        set(host, listener, IdOption::AfOnly(false)),
        Err(Errno::EINVAL)
    );
    assert_eq!(set(host, bound, IdOption::AckTimeout(31)), Ok(()));
    let refused = host.cma.set_option(bound, IdOption::AckTimeout(32));
    assert_eq!(
        errno(refused),
        (
            Errno::EINVAL,
            "option ACK_TIMEOUT of 32, at most 31".to_owned()
        )
    );
    assert_eq!(
        set(host, bound, IdOption::MinRnrTimer(32)),
        Err(Errno::EINVAL)
    );
    assert_eq!(
        set(host, bound, IdOption::MaxCmRetries(16)),
        Err(Errno::EINVAL)
    );
    assert_eq!(set(host, listener, IdOption::TypeOfService(8)), Ok(()));
}
