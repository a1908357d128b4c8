//! Addresses, interfaces and the loopback interface that come and go under a running service.

mod support;

use oarlock_hostd::{Error, Host, MemWire};
use oarlock_port::netlink;
use oarlock_ucm::client;
use std::net::IpAddr;
use std::process::Command;
use support::namespace::in_own_namespace;
use support::*;

const DEVICE_REMOVAL: u32 = 11;
const ADDR_CHANGE: u32 = 14;
const ADDR_ERROR: u32 = 1;

fn run(line: &str) {
    let output = Command::new("sh").args(["-c", line]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{line}: {said}");
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Name and number of the devices.
fn devices(host: &Host) -> Vec<(String, u32)> {
    let devices = host.devices().unwrap();
    devices
        .into_iter()
        .map(|device| (device.name, device.index))
        .collect()
}

/// Nothing more is queued: what the service has to say it has said before it answers the next request.
fn expect_nothing(channel: &Channel) {
    let answer = channel.try_call(client::get_event());
    assert!(
        matches!(&answer, Err(reply) if reply.errno == EAGAIN),
        "{answer:?}"
    );
}

/// R-ADDR-4: an address that goes is told to whoever is bound to it, once, and nothing else changes.
#[test]
fn an_address_that_goes_is_told_to_those_bound_to_it() {
    let wire = MemWire::new();
    let host = Host::private_on(&wire, &[ip("192.0.2.1"), ip("192.0.2.11")]).unwrap();
    let far = Host::private_on(&wire, &[ip("192.0.2.2")]).unwrap();
    let (bound, wild) = (Channel::new(&host), Channel::new(&host));
    let (active, other) = (Channel::new(&far), Channel::new(&host));
    let (listener, to) = bound.listen(1, "192.0.2.11:0");
    let (_, wild_to) = wild.listen(2, "0.0.0.0:0");
    let (_, connected) = establish(&active, &bound, to, 0x20_0001);
    let (_, kept) = other.listen(3, "192.0.2.1:0");
    let memory = host.memory().unwrap();
    assert!(memory.remove_address(ip("192.0.2.11")));
    let mut told = [(); 2].map(|()| bound.expect(ADDR_CHANGE).id);
    told.sort();
    let mut expected = [listener, connected];
    expected.sort();
    assert_eq!(told, expected);
    assert_eq!(host.devices().unwrap()[0].addresses, [ip("192.0.2.1")]);
    for channel in [&bound, &wild, &other] {
        expect_nothing(channel);
    }
    // Who is not bound to it is reached as ever, and the address serves again when it is back.
    let wild_port = wild_to.port();
    establish(
        &active,
        &wild,
        (ip("192.0.2.1"), wild_port).into(),
        0x20_0003,
    );
    establish(&active, &other, kept, 0x20_0005);
    memory.add_address(ip("192.0.2.11")).unwrap();
    establish(&active, &bound, to, 0x20_0007);
    establish(
        &active,
        &wild,
        (ip("192.0.2.11"), wild_port).into(),
        0x20_0009,
    );
    assert!(Host::private().unwrap().memory().is_some());
}

/// R-ADDR-4: a device that goes ends what is bound to it; one that is back under its number serves new identifiers and
/// wildcard listeners. Public fault 60.
#[test]
fn a_device_that_goes_is_told_and_one_that_is_back_serves() {
    let wire = MemWire::new();
    let host = Host::private_on(&wire, &[ip("192.0.2.1")]).unwrap();
    let far = Host::private_on(&wire, &[ip("192.0.2.2")]).unwrap();
    let (passive, active) = (Channel::new(&host), Channel::new(&far));
    let (wild_listener, wild) = passive.listen(1, "0.0.0.0:0");
    let (listener, to) = passive.listen(2, "192.0.2.1:0");
    let wild_to = (ip("192.0.2.1"), wild.port()).into();
    let (_, connected) = establish(&active, &passive, wild_to, 0x20_0001);
    let before = devices(&host);
    let memory = host.memory().unwrap();
    memory.remove_device();
    let mut told = [(); 2].map(|()| passive.expect(DEVICE_REMOVAL).id);
    told.sort();
    let mut expected = [listener, connected];
    expected.sort();
    assert_eq!(told, expected);
    expect_nothing(&passive);
    assert!(devices(&host).is_empty());
    let lost = passive.create(7);
    assert!(passive.try_call(client::bind(lost, to)).is_err());
    memory.restore_device();
    assert_eq!(devices(&host), before);
    establish(&active, &passive, wild_to, 0x20_0003);
    for id in [listener, connected, lost] {
        passive.call(client::destroy_id(id));
    }
    let (_, again) = passive.listen(8, &to.to_string());
    establish(&active, &passive, again, 0x20_0005);
    assert_ne!(wild_listener, listener);
}

/// A veth pair with IPv4 addresses. Link-local IPv6 addresses would come when they have proved to be unique, at any time.
fn veth() {
    run("echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6");
    run("ip link add m0 type veth peer name m1 && ip link set m1 up && ip link set m0 up");
    run("ip addr add 192.0.2.1/24 dev m0 && ip addr add 192.0.2.11/24 dev m0");
}

/// R-ADDR-4, on the real port: the service hears of each change by itself. Public fault 8.
#[test]
fn changes_of_a_real_interface_are_told_at_once() {
    in_own_namespace("changes_of_a_real_interface_are_told_at_once", || {
        veth();
        let host = Host::serve().unwrap();
        let channel = Channel::new(&host);
        let listen = |uid, address: &str| channel.listen(uid, address).0;
        let (first, second) = (listen(1, "192.0.2.1:0"), listen(2, "192.0.2.11:0"));
        let wild = listen(3, "0.0.0.0:7471");
        run("ip addr del 192.0.2.11/24 dev m0");
        assert_eq!(channel.expect(ADDR_CHANGE).id, second);
        let before = devices(&host);
        assert_eq!(before[0].0, "soft_m0");
        // The interface goes down and comes up: that is a port's affair, and nobody loses anything.
        let active = |host: &Host| host.devices().unwrap()[0].port_active;
        assert!(active(&host));
        for _ in 0..2 {
            run("ip link set m0 down");
            until("the port is down", || !active(&host));
            assert_eq!(devices(&host), before);
            run("ip link set m0 up");
            until("the port is up", || active(&host));
            assert_eq!(devices(&host), before);
        }
        expect_nothing(&channel);
        let third = listen(4, "192.0.2.1:0");
        // Another interface under the same name: the device that was there has gone, and has its number again.
        let (old, new) = ("ip link del m0", "ip link add m0 type veth peer name m1");
        run(&format!(
            "{old} && {new} && ip link set m1 up && ip link set m0 up && ip addr add 192.0.2.1/24 dev m0"
        ));
        let mut told = [(); 3].map(|()| channel.expect(DEVICE_REMOVAL).id);
        told.sort();
        assert_eq!(told, [first, second, third]);
        assert_eq!(devices(&host), before);
        listen(5, "192.0.2.1:0");
        // The last address goes, the device stays.
        run("ip addr flush dev m0");
        channel.expect(ADDR_CHANGE);
        assert!(host.devices().unwrap()[0].addresses.is_empty());
        channel.call(client::destroy_id(wild));
        expect_nothing(&channel);
    });
}

/// Packets between programs of one host pass through the loopback interface. Without it a program would see its retries
/// exceeded, and nobody would know why.
#[test]
fn a_loopback_interface_that_goes_down_is_told_in_a_sentence() {
    in_own_namespace(
        "a_loopback_interface_that_goes_down_is_told_in_a_sentence",
        || {
            veth();
            let host = Host::serve().unwrap();
            let channel = Channel::new(&host);
            let (_, to) = channel.listen(1, "192.0.2.1:0");
            run("ip link set lo down");
            let refused = |error: Error| {
                let text = error.to_string();
                assert!(matches!(error, Error::Refused(_)), "{text}");
                assert!(
                    text.contains("loopback") && text.contains("ip link set lo up"),
                    "{text}"
                );
            };
            refused(host.take_slot().unwrap_err());
            refused(host.open_channel().unwrap_err());
            // For what is there already the way to this host is gone, with an errno that says as much.
            let id = channel.create(2);
            channel.call(client::resolve_addr(id, None, to, 2000));
            let event = channel.event();
            assert_eq!((event.kind, event.status), (ADDR_ERROR, -libc::ENETDOWN));
            // Others can still look.
            assert!(host.ps().is_ok() && Host::join().unwrap().ps().is_ok());
            netlink::bring_up(1).unwrap();
            let (active, slot) = (Channel::new(&host), host.take_slot().unwrap());
            establish(&active, &channel, to, 0x20_0001);
            drop(slot);
        },
    );
}
