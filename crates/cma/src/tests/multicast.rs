//! Multicast groups: joins, their events, and the memberships of interfaces.

use super::world::{Host, PORT, SECOND, World, addr, device, errno, ip, scoped, ud, usual_devices};
use crate::{
    ChannelId, Cma, Config, Counter, Errno, Error, Event, EventKind, Id, IdOption, JoinKind, McId,
    Membership, MembershipAction, PortSpace, QpType, Route, State,
};
use oarlock_sim::NetworkConfig;
use oarlock_wire::{Gid, QKey, Qpn, Time};

const GROUP: &str = "239.1.2.3";
const NOW: Time = Time::ZERO;
/// The interface of device 0.
const IFINDEX: u32 = 2;

fn bound(world: &mut World) -> Id {
    let id = world.a().ud_id();
    world
        .a()
        .cma
        .bind_addr(id, addr("10.0.0.1", 0))
        .expect("free");
    id
}

fn join(world: &mut World, id: Id, kind: JoinKind, context: u64) -> McId {
    world
        .a()
        .cma
        .join_multicast(NOW, id, addr(GROUP, 0), kind, context)
        .expect("may join")
}

fn full(world: &mut World, id: Id) -> McId {
    join(world, id, JoinKind::FullMember, 0xBEEF)
}

#[track_caller]
fn asked(world: &mut World, action: MembershipAction) -> Membership {
    let membership = world.a().cma.poll_membership();
    let membership = membership.expect("something to do");
    assert_eq!(
        (membership.group, membership.ifindex, membership.action),
        (ip(GROUP), IFINDEX, action)
    );
    membership
}

#[track_caller]
fn granted(world: &mut World) {
    let membership = asked(world, MembershipAction::Join);
    world
        .a()
        .cma
        .handle_membership(NOW, membership.token, Ok(()));
}

#[track_caller]
fn nothing_asked(world: &mut World) {
    assert_eq!(world.a().cma.poll_membership(), None);
}

fn joined(world: &mut World) -> Event {
    world.a().expect(EventKind::MULTICAST_JOIN)
}

/// R-PAR-7: MULTICAST_JOIN carries what datagrams to the group are addressed with.
#[test]
fn a_join_is_reported_with_what_the_group_is_addressed_with() {
    let mut world = World::pair();
    let id = bound(&mut world);
    world
        .a()
        .cma
        .set_option(id, IdOption::TypeOfService(0x20))
        .expect("any state");
    let mc = full(&mut world, id);
    world.a().expect_nothing();
    granted(&mut world);
    nothing_asked(&mut world);
    let event = joined(&mut world);
    assert_eq!(
        (event.id, event.multicast, event.context, event.status),
        (id, Some(mc), 0xBEEF, 0)
    );
    let param = ud(&event);
    assert_eq!(param.private_data, None);
    assert_eq!(
        (param.qpn, param.qkey, param.sgid_index, param.port_num),
        (Qpn::MULTICAST, QKey::RDMA_UDP, 0, 1)
    );
    let av = param.av;
    assert_eq!(
        (av.local, av.remote),
        (Gid::from_ip(ip("10.0.0.1")), Gid::from_ip(ip(GROUP)))
    );
    assert_eq!(
        (av.hop_limit, av.scope_id, av.traffic_class),
        (64, IFINDEX, 0x20)
    );
    assert_eq!(
        world.a().cma.query(id).expect("exists").multicasts,
        vec![mc]
    );
    assert_eq!(world.a().cma.multicast_group(mc), Ok(ip(GROUP)));
    assert_eq!(world.a().cma.leave_multicast(NOW, mc), Ok(1));
    asked(&mut world, MembershipAction::Leave);
    nothing_asked(&mut world);
    let again = world.a().cma.leave_multicast(NOW, mc);
    assert_eq!(
        errno(again),
        (Errno::ENOENT, "no such multicast join".to_owned())
    );
    assert_eq!(
        world.a().cma.query(id).expect("exists").events_reported,
        1,
        "the event counts on the identifier too"
    );
}

#[test]
fn an_interface_joins_for_the_first_full_member_and_leaves_after_the_last() {
    let mut world = World::pair();
    let (first, second) = (bound(&mut world), bound(&mut world));
    let a = full(&mut world, first);
    // The same group twice, on one identifier and on another: each counts.
    let b = full(&mut world, first);
    let c = full(&mut world, second);
    granted(&mut world);
    nothing_asked(&mut world);
    let events = [(); 3].map(|()| joined(&mut world).multicast);
    assert_eq!(events, [Some(a), Some(b), Some(c)]);
    // One that comes later need not wait.
    let d = full(&mut world, second);
    assert_eq!(joined(&mut world).multicast, Some(d));
    for mc in [a, c, b] {
        assert_eq!(world.a().cma.leave_multicast(NOW, mc), Ok(1));
        nothing_asked(&mut world);
    }
    world.a().cma.destroy_id(NOW, second).expect("exists");
    asked(&mut world, MembershipAction::Leave);
    // Left is left: the next one joins again.
    full(&mut world, first);
    granted(&mut world);
}

#[test]
fn a_send_only_member_joins_nothing() {
    let mut world = World::pair();
    let id = bound(&mut world);
    let mc = join(&mut world, id, JoinKind::SendOnlyFullMember, 1);
    nothing_asked(&mut world);
    let event = joined(&mut world);
    assert_eq!((event.multicast, event.context), (Some(mc), 1));
    assert_eq!(ud(&event).qpn, Qpn::MULTICAST);
    world.a().cma.leave_multicast(NOW, mc).expect("joined");
    nothing_asked(&mut world);
}

#[test]
fn a_join_that_fails_is_reported_to_all_who_waited_and_the_next_one_asks_again() {
    let mut world = World::pair();
    let id = bound(&mut world);
    let mcs = [full(&mut world, id), full(&mut world, id)];
    let membership = asked(&mut world, MembershipAction::Join);
    world
        .a()
        .cma
        .handle_membership(NOW, membership.token, Err(Errno::ENOMEM));
    for mc in mcs {
        let event = world.a().expect(EventKind::MULTICAST_ERROR);
        assert_eq!(
            (event.multicast, event.status, event.context),
            (Some(mc), -12, 0xBEEF)
        );
        assert_eq!(event.param.ud(), None);
    }
    assert_eq!(world.a().cma.counters().get(Counter::MulticastErrors), 2);
    let third = full(&mut world, id);
    granted(&mut world);
    assert_eq!(joined(&mut world).multicast, Some(third));
    // The failed ones hold no membership.
    for mc in mcs {
        assert_eq!(world.a().cma.leave_multicast(NOW, mc), Ok(1));
        nothing_asked(&mut world);
    }
    world.a().cma.leave_multicast(NOW, third).expect("joined");
    asked(&mut world, MembershipAction::Leave);
}

/// F-17: a join that is left while it is pending is gone: its answer finds nobody.
#[test]
fn leaving_while_the_join_is_pending_ends_it() {
    let mut world = World::pair();
    let id = bound(&mut world);
    // Not even asked yet: nothing is.
    let mc = full(&mut world, id);
    assert_eq!(world.a().cma.leave_multicast(NOW, mc), Ok(0));
    nothing_asked(&mut world);

    // Asked: the interface leaves in any case, and the answer is stale.
    let mc = full(&mut world, id);
    let membership = asked(&mut world, MembershipAction::Join);
    assert_eq!(world.a().cma.leave_multicast(NOW, mc), Ok(0));
    asked(&mut world, MembershipAction::Leave);
    world
        .a()
        .cma
        .handle_membership(NOW, membership.token, Ok(()));
    world.a().expect_nothing();
    assert_eq!(world.a().cma.counters().get(Counter::MembershipsStale), 1);

    // Another one still waits: it gets the answer.
    let (left, stays) = (full(&mut world, id), full(&mut world, id));
    let membership = asked(&mut world, MembershipAction::Join);
    world.a().cma.leave_multicast(NOW, left).expect("pending");
    nothing_asked(&mut world);
    world
        .a()
        .cma
        .handle_membership(NOW, membership.token, Ok(()));
    assert_eq!(joined(&mut world).multicast, Some(stays));
    world.a().expect_nothing();

    // The identifier itself goes while a join is pending; and a late answer of an earlier life touches no later join.
    let other = bound(&mut world);
    let group = addr("239.9.9.9", 0);
    let cma = &mut world.a().cma;
    cma.join_multicast(NOW, other, group, JoinKind::FullMember, 0)
        .expect("may join");
    let early = cma.poll_membership().expect("asked");
    cma.destroy_id(NOW, other).expect("exists");
    let leave = cma.poll_membership().map(|membership| membership.action);
    assert_eq!(leave, Some(MembershipAction::Leave));
    let later = cma
        .join_multicast(NOW, id, group, JoinKind::FullMember, 0)
        .expect("may join");
    cma.handle_membership(NOW, early.token, Err(Errno::EINVAL));
    let now_asked = cma.poll_membership().expect("asked");
    cma.handle_membership(NOW, now_asked.token, Ok(()));
    assert_eq!(joined(&mut world).multicast, Some(later));
}

/// The event of a join that is left disappears from the queue; those of others stay in order.
#[test]
fn leaving_removes_the_queued_event() {
    let mut world = World::pair();
    let id = bound(&mut world);
    let mcs = [
        full(&mut world, id),
        full(&mut world, id),
        full(&mut world, id),
    ];
    granted(&mut world);
    assert_eq!(world.a().cma.leave_multicast(NOW, mcs[1]), Ok(0));
    assert_eq!(world.a().cma.counters().get(Counter::EventsDestroyed), 1);
    assert_eq!(world.a().cma.query(id).expect("exists").events_queued, 2);
    assert_eq!(joined(&mut world).multicast, Some(mcs[0]));
    assert_eq!(joined(&mut world).multicast, Some(mcs[2]));
    world.a().expect_nothing();
}

/// R-MIG-2, R-MIG-5: the events of an identifier's joins move with its others, in order, and are found there.
#[test]
fn multicast_events_move_with_their_identifier() {
    let mut world = World::pair();
    let id = bound(&mut world);
    let (a, b) = (full(&mut world, id), full(&mut world, id));
    granted(&mut world);
    world
        .a()
        .cma
        .inject_event(NOW, id, EventKind::USER, 0, 1)
        .expect("exists");
    let to = world.a().cma.create_channel().expect("room");
    assert_eq!(world.a().cma.migrate_id(id, to), Ok(0));
    world.a().expect_nothing();
    assert_eq!(
        world.a().expect_on(to, EventKind::MULTICAST_JOIN).multicast,
        Some(a)
    );
    // The rest moves on, and leaving finds the event on its third channel.
    let third = world.a().cma.create_channel().expect("room");
    assert_eq!(world.a().cma.migrate_id(id, third), Ok(1));
    assert_eq!(world.a().cma.leave_multicast(NOW, b), Ok(0));
    world.a().expect_on(third, EventKind::USER);
    assert_eq!(world.a().cma.next_event(third), None);
    // What joins later reports where the identifier is now.
    let late = full(&mut world, id);
    assert_eq!(
        world
            .a()
            .expect_on(third, EventKind::MULTICAST_JOIN)
            .multicast,
        Some(late)
    );
    let reported = world.a().cma.migrate_id(id, to).expect("exists");
    assert_eq!(reported, 3, "events of joins count on the identifier");
}

#[test]
fn what_cannot_join_is_refused_with_the_rule() {
    let mut world = World::pair();
    let refused = |world: &mut World, id, group| {
        let joined = world
            .a()
            .cma
            .join_multicast(NOW, id, group, JoinKind::FullMember, 0);
        errno(joined)
    };
    let group = addr(GROUP, 0);
    let einval = |sentence: &str| (Errno::EINVAL, sentence.to_owned());
    let idle = world.a().ud_id();
    assert_eq!(
        refused(&mut world, idle, group),
        einval(
            "join_multicast before the identifier has a device (state IDLE): resolve an address first"
        )
    );
    let anywhere = world.a().ud_id();
    let cma = &mut world.a().cma;
    cma.bind_addr(anywhere, addr("0.0.0.0", 0)).expect("free");
    assert_eq!(refused(&mut world, anywhere, group).0, Errno::EINVAL);
    let rc = world.a().bound(addr("10.0.0.1", 0)).expect("free");
    assert_eq!(
        refused(&mut world, rc, group),
        einval("join_multicast with an identifier for RC queue pairs: it is for UD")
    );
    let listener = world.a().ud_listener(addr("10.0.0.1", PORT), 0);
    assert_eq!(
        refused(&mut world, listener, group),
        einval("join_multicast in state LISTEN, which wants ADDR_BOUND or ADDR_RESOLVED")
    );
    let routed = world.a().ud_id();
    world.resolve(0, routed, None, addr("10.0.0.2", PORT));
    assert_eq!(
        refused(&mut world, routed, group),
        einval("join_multicast in state ROUTE_RESOLVED, which wants ADDR_BOUND or ADDR_RESOLVED")
    );
    let id = bound(&mut world);
    for address in ["0.0.0.0", "::", "10.0.0.2", "255.255.255.255", "fd00::1"] {
        assert_eq!(
            refused(&mut world, id, addr(address, 0)),
            einval(&format!("{address} is no multicast group"))
        );
    }
    assert_eq!(
        refused(&mut world, id, addr("::ffff:239.1.2.3", 0)).0,
        Errno::EADDRNOTAVAIL
    );
    assert_eq!(
        refused(&mut world, id, scoped("ff02::1", 0, 99)).0,
        Errno::EINVAL
    );
    nothing_asked(&mut world);
    assert_eq!(world.a().cma.counters().get(Counter::MulticastJoins), 0);
}

#[test]
fn an_identifier_without_an_address_of_the_groups_family_uses_the_devices_or_is_refused() {
    let mut world = World::pair();
    let id = bound(&mut world);
    let cma = &mut world.a().cma;
    cma.join_multicast(NOW, id, addr("ff15::7", 0), JoinKind::SendOnlyFullMember, 0)
        .expect("the device has IPv6 addresses");
    let event = joined(&mut world);
    let param = ud(&event);
    assert_eq!(
        (param.av.local, param.sgid_index),
        (Gid::from_ip(ip("fd00::1")), 1)
    );

    let mut cma = Cma::new(Config::default(), crate::Seed([1; 32]));
    let mut devices = usual_devices(1);
    devices[0].addresses.truncate(1);
    cma.set_devices(NOW, devices);
    let channel = cma.create_channel().expect("room");
    let id = cma
        .create_id(channel, PortSpace::UDP, QpType::UD, 0)
        .expect("room");
    cma.bind_addr(id, addr("10.0.0.1", 0)).expect("free");
    let refused = cma.join_multicast(NOW, id, addr("ff15::7", 0), JoinKind::FullMember, 0);
    assert_eq!(
        errno(refused),
        (
            Errno::EADDRNOTAVAIL,
            "the identifier's device has no address to send to ff15::7 from".to_owned()
        )
    );
}

/// An address resolution towards the group gives the device, as programs that name no source do.
#[test]
fn a_group_can_be_resolved_first() {
    let mut world = World::pair();
    let id = world.a().ud_id();
    world.ask(id, addr(GROUP, 0));
    world.drain();
    world.a().expect(EventKind::ADDR_RESOLVED);
    full(&mut world, id);
    granted(&mut world);
    assert_eq!(
        ud(&joined(&mut world)).av.local,
        Gid::from_ip(ip("10.0.0.1"))
    );
    assert_eq!(
        world.a().cma.query(id).expect("exists").state,
        State::AddrResolved
    );
}

/// A group of the link is looked up on the interface that is named with it.
#[test]
fn a_group_of_the_link_is_resolved_on_its_interface() {
    let devices = vec![device(0, 1500, &["fe80::a"]), device(1, 1500, &["fe80::b"])];
    let hosts = vec![Host::new(Config::default(), 1, devices)];
    let mut world = World::of(hosts, NetworkConfig::default(), 1);
    for (ifindex, own) in [(2, "fe80::a"), (3, "fe80::b")] {
        let id = world.a().ud_id();
        world.ask_and_keep(id, scoped("ff02::77", 0, ifindex));
        let lookup = *world.a().asked.last().expect("asked");
        assert_eq!(lookup.scope_id, ifindex);
        let route = Route {
            source: ip(own),
            ifindex,
            gateway: None,
            hop_limit: 0,
            mtu: 0,
            is_local: false,
        };
        let cma = &mut world.a().cma;
        cma.handle_lookup(NOW, lookup.token, Ok(route));
        world.a().expect(EventKind::ADDR_RESOLVED);
        let cma = &mut world.a().cma;
        cma.join_multicast(NOW, id, addr("ff02::77", 0), JoinKind::FullMember, 0)
            .expect("resolved");
        let asked = cma.poll_membership().expect("a join");
        assert_eq!((asked.ifindex, asked.group), (ifindex, ip("ff02::77")));
        cma.handle_membership(NOW, asked.token, Ok(()));
        let av = ud(&joined(&mut world)).av;
        assert_eq!((av.local, av.scope_id), (Gid::from_ip(ip(own)), ifindex));
    }
}

/// Groups on two interfaces are two memberships; the loopback device has its own.
#[test]
fn memberships_are_per_interface() {
    let mut world = World::pair();
    let here = bound(&mut world);
    let there = world.a().ud_id();
    world.ask(there, addr("127.0.0.1", PORT));
    world.a().expect(EventKind::ADDR_RESOLVED);
    full(&mut world, here);
    full(&mut world, there);
    let cma = &mut world.a().cma;
    let asked = [(); 2].map(|()| cma.poll_membership().map(|asked| asked.ifindex));
    assert_eq!(asked, [Some(IFINDEX), Some(1)]);
}

#[test]
fn the_limits_of_joins_and_of_the_channel_are_errors_with_their_values() {
    let config = Config {
        max_multicasts: 2,
        max_queued_events: 2,
        ..Config::default()
    };
    let mut world = World::with(&[config]);
    let id = bound(&mut world);
    for _ in 0..2 {
        join(&mut world, id, JoinKind::SendOnlyFullMember, 0);
    }
    let refused = |world: &mut World| {
        let group = addr(GROUP, 0);
        let joined = world
            .a()
            .cma
            .join_multicast(NOW, id, group, JoinKind::FullMember, 0);
        joined.expect_err("full")
    };
    assert_eq!(refused(&mut world), Error::TooManyMulticasts { max: 2 });
    assert_eq!(refused(&mut world).errno(), Errno::ENOMEM);
    let mc = world.a().cma.query(id).expect("exists").multicasts[0];
    world.a().cma.leave_multicast(NOW, mc).expect("joined");
    join(&mut world, id, JoinKind::SendOnlyFullMember, 0);
    let mc = joined(&mut world).multicast.expect("of a join");
    world.a().cma.leave_multicast(NOW, mc).expect("joined");
    let cma = &mut world.a().cma;
    cma.inject_event(NOW, id, EventKind::USER, 0, 0)
        .expect("room for one");
    assert_eq!(
        refused(&mut world),
        Error::ChannelFull {
            queued: 2,
            adding: 1,
            max: 2
        }
    );
    nothing_asked(&mut world);
}

/// A device that goes ends the memberships; what is left of the joins goes with the identifier.
#[test]
fn a_device_that_goes_takes_its_memberships_along() {
    let mut world = World::pair();
    let id = bound(&mut world);
    let mc = full(&mut world, id);
    granted(&mut world);
    world.a().cma.set_devices(NOW, Vec::new());
    asked(&mut world, MembershipAction::Leave);
    nothing_asked(&mut world);
    // What was queued before is not lost.
    assert_eq!(joined(&mut world).multicast, Some(mc));
    world.a().expect(EventKind::DEVICE_REMOVAL);
    let refused = world.a().cma.leave_multicast(NOW, mc);
    assert_eq!(errno(refused).0, Errno::ENXIO);
    assert_eq!(world.a().cma.destroy_id(NOW, id), Ok(2));
    nothing_asked(&mut world);
    assert_eq!(
        world.a().cma.leave_multicast(NOW, mc),
        Err(Error::UnknownMulticast)
    );
}

#[test]
fn destroying_a_channel_ends_the_joins_of_its_identifiers() {
    let mut world = World::pair();
    let id = bound(&mut world);
    full(&mut world, id);
    granted(&mut world);
    let channel: ChannelId = world.a().channel;
    world.a().cma.destroy_channel(NOW, channel).expect("exists");
    asked(&mut world, MembershipAction::Leave);
    world.run(SECOND);
    assert_eq!(world.a().cma.len(), 0);
}
