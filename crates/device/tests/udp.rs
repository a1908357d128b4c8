//! The device on the real port, in a network namespace of its own.

mod support;

use std::collections::BTreeMap;
use std::net::IpAddr;

use oarlock_device::{Access, DeviceInfo, Error, QpInit};
use oarlock_port::{ForwardToken, Port, UdpPort, UdpSlots, netlink};
use oarlock_transport::{
    AttrMask, Counter, QpAttr, QpState, SendData, SendWr, UdDestination, WcStatus,
};
use oarlock_wire::{AddressVector, Gid, Grh, Mtu, Psn, Qpn};
use support::{
    KEY, Path, Side, Source, content, eventually, filled, pattern, recv, send, to_group, to_init,
    to_rts, ud_ready, ud_to, whole,
};

/// Runs `body` in a namespace with the loopback interface up, by running the test `name` again.
fn in_own_namespace(name: &str, body: impl FnOnce()) {
    oarlock_sim::in_namespace(&["-Urn"], name, || {
        netlink::bring_up(LOOPBACK).expect("loopback up");
        body();
    });
}

/// A new namespace's loopback interface is its first (Linux `LOOPBACK_IFINDEX`).
const LOOPBACK: u32 = 1;

fn side(slots: &UdpSlots, slot: u8, gid: Gid) -> Side {
    side_on(slots, slot, gid, LOOPBACK)
}

fn side_on(slots: &UdpSlots, slot: u8, gid: Gid, ifindex: u32) -> Side {
    let socket = slots
        .lend(slot)
        .expect("options")
        .expect("socket")
        .try_clone_to_owned()
        .expect("dup");
    let port = UdpPort::new(slot, socket, ForwardToken(1)).expect("port");
    let info = DeviceInfo {
        netdev_mtu: if ifindex == LOOPBACK { 65_536 } else { 1500 },
        ifindex,
        ..support::device("lo", gid)
    };
    Side::with_device(Source::new(Port::Udp(port)), info)
}

/// Messages both ways, with full packets of 4096 bytes, so that bursts and merged receives occur.
fn exchange(slots: &UdpSlots, first_slot: u8, gid: Gid) {
    let (a, b) = (
        side(slots, first_slot, gid),
        side(slots, first_slot + 1, gid),
    );
    let (qa, qb) = (a.qp(QpInit::default()), b.qp(QpInit::default()));
    for (side, qp, peer_side, peer) in [(&a, &qa, &b, &qb), (&b, &qb, &a, &qa)] {
        let path = Path::between(side, peer_side);
        to_init(qp);
        qp.modify(&QpAttr {
            mask: AttrMask::STATE
                | AttrMask::AV
                | AttrMask::PATH_MTU
                | AttrMask::DEST_QPN
                | AttrMask::RQ_PSN
                | AttrMask::MAX_DEST_RD_ATOMIC
                | AttrMask::MIN_RNR_TIMER,
            state: QpState::Rtr,
            av: AddressVector::new(gid, gid),
            path_mtu: Mtu::MTU_4096,
            dest_qpn: peer.qpn(),
            rq_psn: Psn::truncate(peer.qpn().get()),
            min_rnr_timer: 1,
            ..QpAttr::default()
        })
        .expect("rtr");
        to_rts(qp, &path);
    }
    for (round, len) in [1, 64, 4096, 4097, 65_536, 1_000_003]
        .into_iter()
        .enumerate()
    {
        for (from, to, sender, receiver) in [(&a, &b, &qa, &qb), (&b, &a, &qb, &qa)] {
            let target = to.pd.allocate(len, Access::LOCAL_WRITE).expect("region");
            let bytes = pattern(round, len);
            let source = filled(from, &bytes);
            recv(receiver, 1, &[whole(&target)]);
            send(sender, 2, &[whole(&source)]);
            let received = to.collect(1).remove(0).completion;
            assert_eq!(
                (received.status, received.byte_len as usize),
                (WcStatus::SUCCESS, len)
            );
            assert!(content(&target) == bytes, "content of {len} bytes");
            assert_eq!(from.collect(1)[0].completion.status, WcStatus::SUCCESS);
        }
    }
    nothing_dropped(&[&a, &b]);
}

fn nothing_dropped(sides: &[&Side]) {
    for side in sides {
        for dropped in [
            "malformed",
            "no_such_qp",
            "no_such_group",
            "foreign_slot",
            "send_failed",
            "port_icrc_bad",
            "port_foreign_qp",
            "port_group_not_joined",
        ] {
            assert_eq!(side.counter(dropped), 0, "{dropped}");
        }
    }
}

#[test]
fn messages_pass_over_ipv4_and_ipv6_on_port_4791() {
    in_own_namespace("messages_pass_over_ipv4_and_ipv6_on_port_4791", || {
        let slots = UdpSlots::open().expect("port 4791");
        exchange(&slots, 1, Gid::from_ip([127, 0, 0, 1].into()));
        if slots.is_ipv6() {
            exchange(
                &slots,
                11,
                Gid::from_ip(std::net::Ipv6Addr::LOCALHOST.into()),
            );
        } else {
            oarlock_sim::not_run("ipv6", "this system has no IPv6");
        }
    });
}

/// A receive of one message of `len` bytes.
fn posted(side: &Side, qp: &oarlock_device::Qp, len: usize) -> oarlock_device::Region {
    let region = side
        .pd
        .allocate(Grh::LEN + len, Access::LOCAL_WRITE)
        .expect("region");
    recv(qp, 7, &[whole(&region)]);
    region
}

fn say(from: &Side, qp: &oarlock_device::Qp, bytes: &[u8], to: UdDestination) {
    let source = filled(from, bytes);
    qp.post_send(&SendWr {
        data: SendData::Sges(&[whole(&source)]),
        ud: Some(to),
        ..SendWr::default()
    })
    .expect("post_send");
    let sent = from.collect(1).remove(0).completion;
    assert_eq!((sent.is_send, sent.status), (true, WcStatus::SUCCESS));
}

fn heard(side: &Side, region: &oarlock_device::Region, bytes: &[u8], from: IpAddr, to: IpAddr) {
    let received = side.collect(1).remove(0).completion;
    assert_eq!(received.status, WcStatus::SUCCESS);
    assert_eq!(received.byte_len as usize, Grh::LEN + bytes.len());
    let placed = content(region);
    assert!(placed[Grh::LEN..] == *bytes, "{} bytes", bytes.len());
    let grh = Grh::parse(placed.first_chunk().expect("40 bytes")).expect("a GRH");
    assert_eq!((grh.source, grh.destination), (from, to));
    assert_eq!(grh.hop_limit, 64);
}

/// Datagrams both ways between two processes' worth of slots, up to the longest.
fn exchange_datagrams(slots: &UdpSlots, first_slot: u8, gid: Gid) {
    let (a, b) = (
        side(slots, first_slot, gid),
        side(slots, first_slot + 1, gid),
    );
    let (qa, qb) = (ud_ready(&a), ud_ready(&b));
    for len in [1, 2, 64, 1024, 4095, 4096] {
        let bytes = pattern(len, len);
        for (from, to, sender, receiver) in [(&a, &b, &qa, &qb), (&b, &a, &qb, &qa)] {
            let target = posted(to, receiver, len);
            say(from, sender, &bytes, ud_to(from, to, receiver));
            heard(to, &target, &bytes, gid.to_ip(), gid.to_ip());
        }
    }
    nothing_dropped(&[&a, &b]);
}

#[test]
fn datagrams_pass_over_ipv4_and_ipv6_on_port_4791() {
    in_own_namespace("datagrams_pass_over_ipv4_and_ipv6_on_port_4791", || {
        let slots = UdpSlots::open().expect("port 4791");
        exchange_datagrams(&slots, 1, Gid::from_ip([127, 0, 0, 1].into()));
        if slots.is_ipv6() {
            let localhost = std::net::Ipv6Addr::LOCALHOST;
            exchange_datagrams(&slots, 11, Gid::from_ip(localhost.into()));
        } else {
            oarlock_sim::not_run("ipv6", "this system has no IPv6");
        }
    });
}

/// Two queue pairs of one process, two of another and the sender itself are members of a group: each gets one copy.
fn speak_to_group(slots: &UdpSlots, first_slot: u8, gid: Gid, ifindex: u32, group: IpAddr) {
    let sides = [0, 1, 2].map(|n| side_on(slots, first_slot + n, gid, ifindex));
    let [a, b, outsider] = &sides;
    let group = Gid::from_ip(group);
    let stranger = ud_ready(outsider);
    let _unused = posted(outsider, &stranger, 100);
    let members = [
        (a, ud_ready(a)),
        (a, ud_ready(a)),
        (b, ud_ready(b)),
        (b, ud_ready(b)),
    ];
    for (_, qp) in &members {
        qp.attach_multicast(group).expect("attach");
    }
    for len in [1, 100, 1024] {
        let bytes = pattern(len, len);
        let targets: Vec<_> = members
            .iter()
            .map(|(side, qp)| (qp.qpn().get(), posted(side, qp, len)))
            .collect();
        let targets: BTreeMap<_, _> = targets.into_iter().collect();
        let source = filled(a, &bytes);
        let (_, sender) = &members[0];
        sender
            .post_send(&SendWr {
                data: SendData::Sges(&[whole(&source)]),
                ud: Some(to_group(a, group)),
                ..SendWr::default()
            })
            .expect("post_send");
        // Its own completion, and two receives on each side.
        for cqe in a.collect(3).iter().chain(&b.collect(2)) {
            let completion = &cqe.completion;
            assert_eq!(completion.status, WcStatus::SUCCESS);
            if !completion.is_send {
                assert_eq!(completion.src_qp, sender.qpn());
                let placed = content(&targets[&cqe.qpn().get()]);
                assert!(placed[Grh::LEN..] == bytes, "{len} bytes");
                let grh = Grh::parse(placed.first_chunk().expect("40 bytes")).expect("a GRH");
                assert_eq!((grh.source, grh.destination), (gid.to_ip(), group.to_ip()));
            }
        }
    }
    for (_, qp) in &members {
        assert_eq!(qp.counters().get(Counter::DatagramsReceived), 3);
        assert_eq!(qp.counters().get(Counter::DroppedReceiverNotReady), 0);
    }
    assert_eq!(stranger.counters().get(Counter::DatagramsReceived), 0);
    nothing_dropped(&[a, b, outsider]);
}

/// A link with both ends here, and an address of each kind on the near one; gives its index.
fn link(name: &str, number: u8) -> u32 {
    let line = format!(
        "ip link add {name} type veth peer name {name}p && ip link set {name}p up && ip link set {name} up && \
         ip addr add 192.0.{number}.1/24 dev {name} && ip -6 addr add fd0{number}::1/64 dev {name} nodad"
    );
    let output = std::process::Command::new("sh")
        .args(["-c", &line])
        .output()
        .expect("sh");
    assert!(output.status.success(), "{output:?}");
    let interfaces = netlink::interfaces().expect("interfaces");
    let found = interfaces.iter().find(|interface| interface.name == name);
    found.expect("the new interface").index
}

#[test]
fn groups_of_both_ip_versions_reach_each_attached_queue_pair_once() {
    in_own_namespace(
        "groups_of_both_ip_versions_reach_each_attached_queue_pair_once",
        || {
            let m0 = link("m0", 2);
            let slots = UdpSlots::open().expect("port 4791");
            let ip = |text: &str| text.parse::<IpAddr>().expect("an address");
            let mut cases = vec![
                ("127.0.0.1", "239.1.2.3", LOOPBACK),
                ("192.0.2.1", "239.1.2.3", m0),
            ];
            if slots.is_ipv6() {
                cases.extend([
                    ("::1", "ff0e::123", LOOPBACK),
                    ("fd02::1", "ff0e::123", m0),
                    ("fd02::1", "ff02::123", m0),
                ]);
            } else {
                oarlock_sim::not_run("ipv6", "this system has no IPv6");
            }
            for (n, (own, group, ifindex)) in (0..).zip(cases) {
                speak_to_group(
                    &slots,
                    1 + n * 10,
                    Gid::from_ip(ip(own)),
                    ifindex,
                    ip(group),
                );
            }
        },
    );
}

/// One process with two devices: a group of one address is another group on each interface.
#[test]
fn a_group_on_one_interface_is_not_that_on_another() {
    in_own_namespace("a_group_on_one_interface_is_not_that_on_another", || {
        let interfaces = [link("m0", 2), link("n0", 3)];
        let slots = UdpSlots::open().expect("port 4791");
        let gids = [2, 3].map(|n| Gid::from_ip([192, 0, n, 1].into()));
        let first = side_on(&slots, 1, gids[0], interfaces[0]);
        let second = first.second_device(DeviceInfo {
            index: 1,
            ifindex: interfaces[1],
            ..support::device("n0", gids[1])
        });
        let group = Gid::from_ip([239, 1, 2, 3].into());
        let sides = [&first, &second];
        let qps = sides.map(|side| {
            let qp = ud_ready(side);
            qp.attach_multicast(group).expect("attach");
            qp
        });
        let targets = [0, 1].map(|n: usize| posted(sides[n], &qps[n], 3));
        for n in 0..2 {
            let source = filled(sides[n], [b"one", b"two"][n]);
            qps[n]
                .post_send(&SendWr {
                    data: SendData::Sges(&[whole(&source)]),
                    ud: Some(to_group(sides[n], group)),
                    ..SendWr::default()
                })
                .expect("post_send");
            let all = sides[n].collect(2);
            assert!(all.iter().all(|cqe| cqe.completion.status.is_success()));
        }
        assert_eq!(content(&targets[0])[Grh::LEN..], *b"one");
        assert_eq!(content(&targets[1])[Grh::LEN..], *b"two");
        for qp in &qps {
            assert_eq!(qp.counters().get(Counter::DatagramsReceived), 1);
            assert_eq!(qp.counters().get(Counter::DroppedReceiverNotReady), 0);
        }
    });
}

/// The system limits how many groups one socket may join; the error says so, and leaving one makes room.
#[test]
fn too_many_groups_are_an_error_that_names_the_limit() {
    in_own_namespace("too_many_groups_are_an_error_that_names_the_limit", || {
        let slots = UdpSlots::open().expect("port 4791");
        let side = side(&slots, 1, Gid::from_ip([127, 0, 0, 1].into()));
        let qp = ud_ready(&side);
        let group = |n: u16| Gid::from_ip([239, 7, (n >> 8) as u8, n as u8].into());
        let refused = (0..1000).find_map(|n| qp.attach_multicast(group(n)).err());
        let refused = refused.expect("a limit of the system");
        assert!(matches!(refused, Error::TooManyGroups { .. }), "{refused}");
        assert!(refused.to_string().contains("igmp_max_memberships"));
        qp.detach_multicast(group(0)).expect("detach");
        qp.attach_multicast(group(999)).expect("room for one");
        let target = posted(&side, &qp, 2);
        qp.post_send(&SendWr {
            data: SendData::Inline(b"hi"),
            ud: Some(UdDestination {
                av: AddressVector {
                    scope_id: LOOPBACK,
                    ..AddressVector::new(side.gid, group(999))
                },
                remote_qpn: Qpn::MULTICAST,
                remote_qkey: KEY,
            }),
            ..SendWr::default()
        })
        .expect("post_send");
        assert_eq!(side.collect(2).len(), 2);
        assert_eq!(content(&target)[Grh::LEN..], *b"hi");
        eventually("the count", || {
            qp.counters().get(Counter::DatagramsReceived) == 1
        });
    });
}
