//! Devices and addresses that come and go.

use super::world::{Host, PORT, SECOND, World, addr, device, errno, loopback, usual_devices};
use crate::{
    Counter, Device, Errno, Error, EventKind, EventParam, Id, JoinKind, Pretence, QpState, State,
};
use oarlock_wire::{Guid, RejReason};

fn set(world: &mut World, host: usize, devices: Vec<Device>) {
    let now = world.now();
    let host = &mut world.hosts[host];
    host.devices.clone_from(&devices);
    host.cma.set_devices(now, devices);
}

/// The usual devices of B without one of its addresses.
fn without(address: &str) -> Vec<Device> {
    let mut devices = usual_devices(2);
    for device in &mut devices {
        device
            .addresses
            .retain(|own| *own != super::world::ip(address));
    }
    devices
}

#[track_caller]
fn ids_of(host: &mut Host, kind: EventKind, count: usize) -> Vec<Id> {
    let mut ids: Vec<Id> = (0..count).map(|_| host.expect(kind).id).collect();
    ids.sort_unstable();
    host.expect_nothing();
    ids
}

fn sorted(mut ids: Vec<Id>) -> Vec<Id> {
    ids.sort_unstable();
    ids
}

/// R-ADDR-4: an address that goes is reported once to everything that is bound to it, listeners too, and nothing else
/// changes.
#[test]
fn an_address_that_goes_is_reported_to_those_who_rely_on_it() {
    let mut world = World::pair();
    let wildcard = world.b().listener(addr("0.0.0.0", PORT), 0);
    let specific = world.b().listener(addr("10.0.0.2", PORT + 1), 0);
    let other_family = world.b().listener(addr("fd00::2", PORT + 2), 0);
    let datagrams = world.b().ud_listener(addr("10.0.0.2", PORT), 0);
    let (active, passive) = world.connected();
    set(&mut world, 1, without("10.0.0.2"));
    let told = ids_of(world.b(), EventKind::ADDR_CHANGE, 3);
    assert_eq!(told, sorted(vec![specific, datagrams, passive]));
    let counters = world.b().cma.counters();
    assert_eq!(counters.get(Counter::AddressChanges), 3);
    for (id, state) in [
        (wildcard, State::Listen),
        (specific, State::Listen),
        (other_family, State::Listen),
        (passive, State::Connect),
    ] {
        assert_eq!(world.b().cma.query(id).expect("exists").state, state);
    }
    // The address comes back, which is no event; what was there works on.
    set(&mut world, 1, usual_devices(2));
    world.b().expect_nothing();
    let again = world.a().id();
    world.resolve(0, again, None, addr("10.0.0.2", PORT + 1));
    let param = world.param();
    world.connect(again, param);
    let request = world.b().expect(EventKind::CONNECT_REQUEST);
    assert_eq!(request.listen_id, Some(specific));
    let now = world.now();
    world.a().cma.disconnect(now, active).expect("connected");
    world.settle();
    world.b().expect(EventKind::DISCONNECTED);
}

/// R-ADDR-4: every state that has an address is told.
#[test]
fn an_address_change_is_reported_in_every_state() {
    let mut world = World::pair();
    world.b().listener(addr("0.0.0.0", PORT), 0);
    let mut affected = Vec::new();
    let idle = world.a().id();
    affected.push(world.a().bound(addr("10.0.0.1", 0)).expect("free"));
    let asking = world.a().bound(addr("10.0.0.1", 0)).expect("free");
    world.ask_and_keep(asking, addr("10.0.0.2", PORT));
    affected.push(asking);
    world.a().lookups = super::world::Lookups::Answered;
    let addressed = world.a().id();
    world.ask(addressed, addr("10.0.0.2", PORT));
    world.drain();
    world.a().expect(EventKind::ADDR_RESOLVED);
    affected.push(addressed);
    affected.push(world.resolved(addr("10.0.0.2", PORT)));
    affected.push(world.requested().0);
    let (active, passive) = world.connected();
    affected.push(active);
    let (disconnected, _) = world.connected();
    let now = world.now();
    world
        .a()
        .cma
        .disconnect(now, disconnected)
        .expect("connected");
    world.settle();
    world.b().expect(EventKind::DISCONNECTED);
    affected.push(disconnected);
    let elsewhere = world.a().id();
    world.resolve(0, elsewhere, None, addr("fd00::2", PORT));
    let states: Vec<State> = affected
        .iter()
        .map(|id| world.hosts[0].cma.query(*id).expect("exists").state)
        .collect();

    let mut devices = usual_devices(1);
    devices[0].addresses.remove(0);
    set(&mut world, 0, devices.clone());
    let told = ids_of(world.a(), EventKind::ADDR_CHANGE, affected.len());
    assert_eq!(told, sorted(affected.clone()));
    let after: Vec<State> = affected
        .iter()
        .map(|id| world.hosts[0].cma.query(*id).expect("exists").state)
        .collect();
    assert_eq!(states, after);
    // The same list again, and one in another order, are no change.
    set(&mut world, 0, devices.clone());
    devices.reverse();
    set(&mut world, 0, devices);
    world.a().expect_nothing();
    let now = world.now();
    world.a().cma.destroy_id(now, idle).expect("exists");
    world.b().cma.disconnect(now, passive).expect("connected");
}

/// A bonded interface fails over: the device stays in number and becomes another one.
#[test]
fn a_device_that_becomes_another_one_is_an_address_change() {
    let mut world = World::pair();
    let bound = world.a().bound(addr("10.0.0.1", 0)).expect("free");
    let mut devices = usual_devices(1);
    devices[0].guid = Guid(0xD00D);
    set(&mut world, 0, devices.clone());
    let event = world.a().expect(EventKind::ADDR_CHANGE);
    assert_eq!(
        (event.id, event.status, event.param, event.multicast),
        (bound, 0, EventParam::None, None)
    );
    devices[0].ifindex = 77;
    set(&mut world, 0, devices.clone());
    assert_eq!(world.a().expect(EventKind::ADDR_CHANGE).id, bound);
    // A new MTU, a new name or a new address is none.
    devices[0].netdev_mtu = 9000;
    devices[0].name = "other".to_owned();
    devices[0].addresses.push(super::world::ip("10.0.0.9"));
    set(&mut world, 0, devices);
    world.a().expect_nothing();
}

/// An address that moves to another device is gone from its own.
#[test]
fn an_address_that_moves_between_devices_is_reported() {
    let mut world = World::pair();
    let bound = world.a().bound(addr("10.0.0.1", 0)).expect("free");
    let devices = vec![
        device(0, 1500, &["fd00::1"]),
        loopback(1),
        device(2, 1500, &["10.0.0.1"]),
    ];
    set(&mut world, 0, devices);
    assert_eq!(world.a().expect(EventKind::ADDR_CHANGE).id, bound);
    // What is bound from now on is bound to the new one.
    let newer = world.a().id();
    world
        .a()
        .cma
        .bind_addr(newer, addr("10.0.0.1", 0))
        .expect("free");
    let device_of = |world: &World, id| {
        let query = world.hosts[0].cma.query(id).expect("exists");
        query.device.map(|device| device.index)
    };
    assert_eq!(
        (device_of(&world, bound), device_of(&world, newer)),
        (Some(0), Some(2))
    );
}

/// Public fault 4: DEVICE_REMOVAL comes once for each identifier, listeners included; every later call fails at once
/// with ENXIO, but destroying works.
#[test]
fn after_a_removal_every_call_but_destruction_fails_at_once() {
    let mut world = World::pair();
    let listener = world.b().listener(addr("10.0.0.2", PORT), 0);
    let datagrams = world.b().ud_id();
    let now = world.now();
    let cma = &mut world.b().cma;
    cma.bind_addr(datagrams, addr("10.0.0.2", PORT))
        .expect("free");
    let (_, passive) = world.connected();
    set(&mut world, 1, Vec::new());
    let told = ids_of(world.b(), EventKind::DEVICE_REMOVAL, 3);
    assert_eq!(told, sorted(vec![listener, datagrams, passive]));
    for id in [listener, datagrams, passive] {
        let to = world.b().channel;
        let cma = &mut world.b().cma;
        let gone = |refused: Result<(), Error>| {
            let (number, sentence) = errno(refused);
            assert_eq!(number, Errno::ENXIO, "{sentence}");
        };
        gone(cma.bind_addr(id, addr("0.0.0.0", 0)));
        gone(cma.listen(id, 0));
        gone(cma.resolve_addr(now, id, None, addr("127.0.0.1", 1), SECOND));
        gone(cma.resolve_route(id, SECOND));
        gone(cma.connect(now, id, crate::ConnectParam::default()));
        gone(cma.accept(now, id, None, crate::ConnectParam::default()));
        gone(cma.establish(now, id));
        gone(cma.reject(now, id, RejReason::CONSUMER_DEFINED, &[]));
        gone(cma.disconnect(now, id).map(|_| ()));
        gone(cma.notify(now, id, crate::AsyncEvent::CommEst));
        gone(cma.init_qp_attr(id, QpState::INIT).map(|_| ()));
        gone(cma.inject_event(now, id, EventKind::USER, 0, 0));
        gone(cma.load_alternate_path(now, id, crate::AlternatePath::default()));
        let group = addr("239.1.1.1", 0);
        gone(
            cma.join_multicast(now, id, group, JoinKind::FullMember, 0)
                .map(|_| ()),
        );
        // It can still be moved and looked at.
        assert_eq!(cma.migrate_id(id, to).map(|_| ()), Ok(()));
        assert_eq!(cma.query(id).expect("exists").state, State::DeviceRemoval);
        cma.destroy_id(now, id).expect("exists");
    }
    world.b().expect_nothing();
    assert_eq!(world.b().cma.len(), 0);
}

/// Public fault 8: a listener on any address survives the loss of every device, and serves those that come.
#[test]
fn a_wildcard_listener_serves_a_device_that_comes_back() {
    let mut world = World::pair();
    let wildcard = world.b().listener(addr("0.0.0.0", PORT), 0);
    let datagrams = world.b().ud_listener(addr("::", PORT), 0);
    let (_, passive) = world.connected();
    set(&mut world, 1, Vec::new());
    assert_eq!(world.b().expect(EventKind::DEVICE_REMOVAL).id, passive);
    world.settle();
    world.a().expect(EventKind::DISCONNECTED);
    let lonely = world.b().id();
    let refused = world.b().cma.bind_addr(lonely, addr("10.0.0.2", 0));
    assert_eq!(errno(refused).0, Errno::EADDRNOTAVAIL);
    // The device comes back under its number; what it left behind stays dead.
    set(&mut world, 1, usual_devices(2));
    world.b().expect_nothing();
    assert_eq!(
        world.b().cma.query(passive).expect("exists").state,
        State::DeviceRemoval
    );
    let (_, again) = world.connected();
    let query = world.b().cma.query(again).expect("exists");
    assert_eq!(query.device.map(|device| device.index), Some(0));
    let active = world.a().ud_id();
    world.resolve(0, active, None, addr("10.0.0.2", PORT));
    let param = world.param();
    let param = crate::ConnectParam {
        responder_resources: 0,
        ..param
    };
    world.connect(active, param);
    let request = world.b().expect(EventKind::CONNECT_REQUEST);
    assert_eq!(request.listen_id, Some(datagrams));
    assert_ne!(request.listen_id, Some(wildcard));
    let cma = &mut world.b().cma;
    cma.bind_addr(lonely, addr("10.0.0.2", 0)).expect("back");
    // The second removal is one for those who came since.
    set(&mut world, 1, Vec::new());
    let told = ids_of(world.b(), EventKind::DEVICE_REMOVAL, 2);
    assert_eq!(told, sorted(vec![again, lonely]));
}

/// A request that waits on the channel when the device goes: its child is dead when it is taken.
#[test]
fn a_waiting_request_of_a_removed_device_is_dead() {
    let mut world = World::pair();
    world.b().listener(addr("0.0.0.0", PORT), 0);
    let active = world.resolved(addr("10.0.0.2", PORT));
    let param = world.param();
    world.connect(active, param);
    set(&mut world, 1, Vec::new());
    world.settle();
    assert_eq!(world.a().expect(EventKind::REJECTED).status, 28);
    let child = world.b().expect(EventKind::CONNECT_REQUEST).id;
    world.b().expect_nothing();
    let now = world.now();
    let refused = world
        .b()
        .cma
        .accept(now, child, None, crate::ConnectParam::default());
    assert_eq!(errno(refused).0, Errno::ENXIO);
    world.b().cma.destroy_id(now, child).expect("exists");
}

/// Public fault 9: a lookup that is under way when the device goes ends with it; nothing keeps the identifier.
#[test]
fn a_lookup_under_way_ends_with_the_device() {
    let mut world = World::pair();
    let id = world.a().bound(addr("10.0.0.1", 0)).expect("free");
    let token = world.ask_and_keep(id, addr("10.0.0.2", PORT));
    set(&mut world, 0, Vec::new());
    world.a().expect(EventKind::DEVICE_REMOVAL);
    let now = world.now();
    let late = Err(crate::LookupError::Failed(Errno::EINVAL));
    world.a().cma.handle_lookup(now, token, late);
    world.run(10 * SECOND);
    world.a().expect_nothing();
    assert_eq!(world.a().cma.counters().get(Counter::LookupsStale), 1);
    world.a().cma.destroy_id(now, id).expect("exists");
    world.assert_nothing_left();
}

/// A fault on purpose strikes the identifiers of the channels that it is for, on the device that it is for, and the device
/// itself goes on serving.
#[test]
fn what_is_pretended_of_a_device_concerns_the_channels_that_it_is_for() {
    let mut world = World::pair();
    let now = world.now();
    let host = world.b();
    let index = host.devices[0].index;
    let listener = host.listener(addr("10.0.0.2", PORT), 0);
    let wildcard = host.listener(addr("0.0.0.0", PORT + 1), 0);
    let elsewhere = host.cma.create_channel().expect("another channel");
    let other = host.id_on(elsewhere);
    host.listen_at(other, addr("10.0.0.2", PORT + 2), 0);
    for what in [Pretence::AddressChange, Pretence::Removal] {
        host.cma.pretend(now, index + 7, what, |_| true);
        host.cma
            .pretend(now, index, what, |channel| channel == elsewhere);
        let kind = match what {
            Pretence::AddressChange => EventKind::ADDR_CHANGE,
            Pretence::Removal => EventKind::DEVICE_REMOVAL,
        };
        assert_eq!(host.expect_on(elsewhere, kind).id, other);
        host.expect_nothing();
    }
    let state = |host: &mut Host, id| host.cma.query(id).expect("exists").state;
    assert_eq!(state(host, other), State::DeviceRemoval);
    assert_eq!(state(host, listener), State::Listen);
    assert_eq!(state(host, wildcard), State::Listen);
    // Told once: what has lost its device has none to lose.
    host.cma.pretend(now, index, Pretence::Removal, |channel| {
        channel == elsewhere
    });
    host.expect_nothing();
    host.bound(addr("10.0.0.2", PORT + 3))
        .expect("the device is there");
}
