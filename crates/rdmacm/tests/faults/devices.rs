//! Devices that go and come back.

use crate::support::*;
use oarlock_hostd::MemWire;
use oarlock_rdmacm::{
    Connector, Event, EventChannel, Host, Identifier, JoinKind, Listener, PortSpace,
};
use oarlock_verbs::{Buffer, Context};
use std::net::{IpAddr, SocketAddr};

const ADDRESS: &str = "192.0.2.1";

fn host_with_device() -> (Host, SocketAddr) {
    let address: IpAddr = ADDRESS.parse().unwrap();
    let host = Host::private_on(&MemWire::new(), &[address]).unwrap();
    (host, SocketAddr::new(address, 0))
}

fn bound(channel: &EventChannel, port_space: PortSpace, address: SocketAddr) -> Identifier {
    let id = Identifier::new(channel, port_space).unwrap();
    id.bind_addr(address).unwrap();
    id
}

/// Public faults 4, 7, 9 and 60: a device goes while programs hold contexts, queue pairs, memory and identifiers in every state
/// of it, and its removal waits for none of them. Each identifier is told once, destroying works, and the device that is back
/// serves new identifiers; as often as that happens.
#[test]
fn a_device_goes_whoever_holds_it_and_comes_back() {
    let (host, address) = host_with_device();
    let memory = host.memory().unwrap();
    for round in 0..5 {
        let events = channel(&host);
        let passive_events = channel(&host);
        let listener = bound(&passive_events, PortSpace::TCP, address);
        listener.listen(0).unwrap();
        let to = listener.local_addr().unwrap().unwrap();

        let context = Context::open(&host, host.devices().unwrap()[0].index).unwrap();
        let region = Buffer::new(&context.default_pd(), 4096).unwrap();

        // One in each state that lasts.
        let established = resolved(&events, to);
        established.connect(&external(1)).unwrap();
        let accepted = request(&passive_events).id;
        accepted.accept(&external(2)).unwrap();
        expect(&events, "CONNECT_RESPONSE");
        established.establish().unwrap();
        expect(&passive_events, "ESTABLISHED");
        let connecting = resolved(&events, to);
        connecting.connect(&external(3)).unwrap();
        let requested = request(&passive_events).id;
        let with_queue_pair = resolved(&events, to);
        let queue_pair = idle_queue_pair(&with_queue_pair);
        let idle = bound(&events, PortSpace::TCP, address);
        let member = bound(&events, PortSpace::UDP, address);
        let group = member
            .join_multicast("239.0.0.1:0".parse().unwrap(), JoinKind::FullMember)
            .unwrap();
        expect(&events, "MULTICAST_JOIN");
        let ended = resolved(&events, to);
        ended.connect(&external(4)).unwrap();
        drop(request(&passive_events).id);
        expect(&events, "REJECTED");

        memory.remove_device();
        assert!(host.devices().unwrap().is_empty());

        let told = |channel: &EventChannel, mut missing: Vec<&Identifier>| {
            while !missing.is_empty() {
                let event = channel.get_event_timeout(LONG).unwrap().expect("an event");
                assert!(
                    matches!(event, Event::DeviceRemoval { .. }),
                    "round {round}: {event}"
                );
                let at = missing.iter().position(|id| *id == event.id());
                missing.remove(at.expect("told once"));
            }
            assert_empty(channel);
        };
        told(
            &events,
            vec![
                &established,
                &connecting,
                &with_queue_pair,
                &idle,
                &member,
                &ended,
            ],
        );
        told(&passive_events, vec![&listener, &accepted]);
        let error = idle.listen(0).unwrap_err();
        assert!([6, 19].contains(&error.errno()), "{error}");
        assert!(Context::open(&host, 0).is_err());

        memory.restore_device();
        drop(group);
        for id in [
            established,
            connecting,
            with_queue_pair,
            idle,
            member,
            ended,
        ] {
            id.close().unwrap();
        }
        for id in [accepted, requested, listener] {
            id.close().unwrap();
        }
        assert_eq!(host.ps().unwrap().ids.len(), 0, "round {round}");
        // What is left of the old device is ours to drop, at any time.
        drop((queue_pair, region, context));
    }
}

/// Public fault 60: what a program has open sees the device as it is now, with the addresses that came later.
#[test]
fn an_address_that_comes_later_serves_what_is_open() {
    let (host, address) = host_with_device();
    let context = Context::open(&host, host.devices().unwrap()[0].index).unwrap();
    let region = Buffer::new(&context.default_pd(), 64).unwrap();
    let later: IpAddr = "192.0.2.77".parse().unwrap();
    host.memory().unwrap().add_address(later).unwrap();
    for ip in [later, address.ip()] {
        let listener = Listener::bind(&host, SocketAddr::new(ip, 0)).unwrap();
        let to = listener.local_addr().unwrap();
        let passive = std::thread::spawn(move || listener.accept()?.until_disconnected());
        let connection = Connector::new(&host).connect(to).unwrap();
        connection.disconnect().unwrap();
        passive.join().unwrap().unwrap();
    }
    drop((region, context));
}

/// Public fault 8: a listener on any address is there still when the last device has gone and another comes.
#[test]
fn a_listener_on_any_address_outlives_devices() {
    let (host, address) = host_with_device();
    let memory = host.memory().unwrap();
    let (passive_events, events) = (channel(&host), channel(&host));
    let listener = bound(
        &passive_events,
        PortSpace::TCP,
        "0.0.0.0:0".parse().unwrap(),
    );
    listener.listen(0).unwrap();
    let port = listener.local_addr().unwrap().unwrap().port();
    for n in 0..3 {
        memory.remove_device();
        memory.restore_device();
        assert_empty(&passive_events);
        let id = resolved(&events, SocketAddr::new(address.ip(), port));
        id.connect(&external(n)).unwrap();
        drop(request(&passive_events));
        expect(&events, "REJECTED");
    }
}

/// Public fault 63: nothing is kept for the process as a whole. Hosts have devices, ports and numbers of their own, one that
/// is closed takes nothing from another, and a new one sees what there is now.
#[test]
fn hosts_of_one_process_share_nothing() {
    let (first, address) = host_with_device();
    let (second, _) = host_with_device();
    let address = SocketAddr::new(address.ip(), 7471);
    let (first_events, second_events) = (channel(&first), channel(&second));
    let one = bound(&first_events, PortSpace::TCP, address);
    let two = bound(&second_events, PortSpace::TCP, address);
    one.listen(0).unwrap();
    two.listen(0).unwrap();
    first.memory().unwrap().remove_device();
    assert_eq!(expect(&first_events, "DEVICE_REMOVAL").id(), &one);
    assert_eq!(second.devices().unwrap().len(), 1);
    assert_empty(&second_events);
    drop((one, first_events));
    first.close();
    let events = channel(&second);
    let id = resolved(&events, address);
    id.connect(&external(1)).unwrap();
    drop(request(&second_events));
    expect(&events, "REJECTED");
    let (third, _) = host_with_device();
    assert_eq!(third.devices().unwrap().len(), 1);
}
