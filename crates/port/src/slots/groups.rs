//! Multicast on the real port, each test in a network namespace of its own.

use super::tests::{arrived, borrow, counter, expect_dropped, marks, packet};
use super::*;
use crate::Port;
use crate::tests::namespace::{in_own_namespace, run};
use oarlock_wire::{AddressVector, Gid};
use std::net::UdpSocket;
use std::time::{Duration, Instant};

/// A packet to a group: queue pair 0xFFFFFF.
fn to_group(mark: u32) -> Vec<u8> {
    let mut packet = packet(0xFF, mark);
    packet[5..8].copy_from_slice(&[0xFF; 3]);
    packet
}

/// The path from an address of interface `ifindex` to a group.
fn group_path(local: &str, group: IpAddr, ifindex: u32) -> AddressVector {
    AddressVector {
        scope_id: ifindex,
        ..AddressVector::new(Gid::from_ip(local.parse().unwrap()), Gid::from_ip(group))
    }
}

fn found(port: &Port, want: usize) -> Vec<u32> {
    marks(port, want)
        .into_iter()
        .map(|(_, mark)| mark)
        .collect()
}

/// A veth pair `m0`, `m1`, both in this namespace, with addresses on `m0`; gives the index of `m0`.
fn veth() -> u32 {
    run("ip link add m0 type veth peer name m1 && ip link set m1 up && ip link set m0 up");
    run("ip addr add 192.0.2.1/24 dev m0 && ip -6 addr add fd00::1/64 dev m0 nodad");
    index_of("m0")
}

fn index_of(name: &str) -> u32 {
    let interfaces = crate::netlink::interfaces().unwrap();
    let interface = interfaces.iter().find(|interface| interface.name == name);
    interface
        .unwrap_or_else(|| panic!("no interface {name}"))
        .index
}

/// Each member gets one copy of each packet, whoever sends it; nobody else gets any.
fn check_members(slots: &UdpSlots, cases: &[(&str, &str, u32)]) {
    let service = borrow(slots, 0);
    let members = [borrow(slots, 1), borrow(slots, 7), borrow(slots, 254)];
    let other = borrow(slots, 9);
    for (local, group, ifindex) in cases {
        let group: IpAddr = group.parse().unwrap();
        let av = group_path(local, group, *ifindex);
        for member in &members {
            member.join_group(group, *ifindex).unwrap();
        }
        // Of another group, and in this one on no interface that it could come by.
        let neighbour = match group {
            IpAddr::V4(_) => "239.9.9.9".parse().unwrap(),
            IpAddr::V6(_) => "ff05::9:9".parse().unwrap(),
        };
        other.join_group(neighbour, *ifindex).unwrap();
        for (mark, sender) in (1..).zip([&other, &members[0], &members[2], &service]) {
            sender.send(&av, &to_group(mark)).unwrap();
            for member in &members {
                let found = marks(member, 1);
                assert_eq!(found.len(), 1, "slot {}, {av:?}", member.slot());
                let (seen, seen_mark) = found[0];
                assert_eq!(seen_mark, mark);
                assert_eq!((seen.local, seen.remote), (av.remote, av.local));
                assert_eq!((seen.scope_id, seen.hop_limit), (*ifindex, 64));
            }
        }
        // A burst, which the kernel may keep together: every segment arrives, with a right ICRC.
        let mut burst = Vec::new();
        for mark in 0..20 {
            burst.extend(to_group(mark));
            burst.extend([0; 4]);
        }
        members[1].send_run(&av, &mut burst, 20).unwrap();
        for member in &members {
            assert_eq!(found(member, 20), (0..20).collect::<Vec<_>>());
        }
        for member in &members {
            member.leave_group(group, *ifindex).unwrap();
        }
        other.leave_group(neighbour, *ifindex).unwrap();
        let _ = other.send(&av, &to_group(99));
        for port in members.iter().chain([&other, &service]) {
            assert_eq!(arrived(port), [], "slot {}", port.slot());
            for bad in [
                "icrc_bad",
                "foreign_qp",
                "forwarded",
                "group_qp_bad",
                "group_not_joined",
                "forward_bad",
            ] {
                assert_eq!(counter(port, bad), 0, "slot {}: {bad}", port.slot());
            }
        }
    }
}

/// Several members on one host: over the loopback interface, where IPv6 groups have a carrier, and over a link.
#[test]
fn every_member_gets_one_copy_and_nobody_else_any() {
    in_own_namespace(
        "slots::groups::every_member_gets_one_copy_and_nobody_else_any",
        || {
            let m0 = veth();
            let slots = UdpSlots::open().unwrap();
            check_members(
                &slots,
                &[
                    ("127.0.0.1", "239.1.2.3", 1),
                    ("::1", "ff0e::123", 1),
                    ("::1", "ff02::123", 1),
                    ("192.0.2.1", "239.1.2.3", m0),
                    ("192.0.2.1", "224.0.0.77", m0),
                    ("fd00::1", "ff0e::123", m0),
                    ("fd00::1", "ff02::123", m0),
                ],
            );
        },
    );
}

/// Where the system has no IPv6 the slots are IPv4 sockets.
#[test]
fn without_ipv6_there_are_ipv4_groups() {
    in_own_namespace("slots::groups::without_ipv6_there_are_ipv4_groups", || {
        let slots = UdpSlots::group(false).unwrap();
        check_members(&slots, &[("127.0.0.1", "239.1.2.3", 1)]);
        let port = borrow(&slots, 3);
        for ifindex in [1, 2] {
            let joined = port.join_group("ff05::1".parse().unwrap(), ifindex);
            assert_eq!(joined.unwrap_err().raw_os_error(), Some(libc::EAFNOSUPPORT));
        }
    });
}

/// A membership holds on its interface only; the kernel is not that strict over IPv6.
#[test]
fn a_group_is_joined_on_one_interface() {
    in_own_namespace("slots::groups::a_group_is_joined_on_one_interface", || {
        let m0 = veth();
        run("ip link add n0 type veth peer name n1 && ip link set n1 up && ip link set n0 up");
        run("ip addr add 198.51.100.1/24 dev n0 && ip -6 addr add fd01::1/64 dev n0 nodad");
        let n0 = index_of("n0");
        let slots = UdpSlots::open().unwrap();
        let (one, two) = (borrow(&slots, 1), borrow(&slots, 2));
        for (mark, [on_m0, on_n0, group]) in (1..).zip([
            ["192.0.2.1", "198.51.100.1", "239.1.2.3"],
            ["fd00::1", "fd01::1", "ff05::123"],
        ]) {
            let group: IpAddr = group.parse().unwrap();
            one.join_group(group, m0).unwrap();
            two.join_group(group, n0).unwrap();
            one.send(&group_path(on_m0, group, m0), &to_group(mark))
                .unwrap();
            one.send(&group_path(on_n0, group, n0), &to_group(mark + 100))
                .unwrap();
            assert_eq!(
                (found(&one, 1), found(&two, 1)),
                (vec![mark], vec![mark + 100])
            );
            assert_eq!((arrived(&one), arrived(&two)), (vec![], vec![]));
        }
        let extra = [
            counter(&one, "group_not_joined"),
            counter(&two, "group_not_joined"),
        ];
        assert!(
            extra.iter().all(|n| *n <= 1),
            "IPv4 knows the interface: {extra:?}"
        );
        assert_eq!(
            (counter(&one, "icrc_bad"), counter(&two, "icrc_bad")),
            (0, 0)
        );
    });
}

/// IBA Vol. 1 ch. 9: a multicast packet names queue pair 0xFFFFFF, and no other packet does.
#[test]
fn the_queue_pair_number_of_groups_and_group_addresses_go_together() {
    in_own_namespace(
        "slots::groups::the_queue_pair_number_of_groups_and_group_addresses_go_together",
        || {
            let slots = UdpSlots::open().unwrap();
            let (one, spare) = (borrow(&slots, 1), borrow(&slots, SPARE_SLOT));
            let group: IpAddr = "239.1.2.3".parse().unwrap();
            one.join_group(group, 1).unwrap();
            one.send(&group_path("127.0.0.1", group, 1), &packet(1, 5))
                .unwrap();
            expect_dropped(&one, "group_qp_bad", 1);
            let here = Gid::from_ip(Ipv4Addr::LOCALHOST.into());
            one.send(&AddressVector::new(here, here), &to_group(6))
                .unwrap();
            assert_eq!(found(&spare, 1), [6], "steered to the slot that nobody has");
            assert_eq!(arrived(&one), []);
        },
    );
}

/// Nothing of the last borrower survives the renewal of a slot, memberships least of all.
#[test]
fn a_renewed_slot_is_in_no_group() {
    in_own_namespace("slots::groups::a_renewed_slot_is_in_no_group", || {
        let m0 = veth();
        let mut slots = UdpSlots::open().unwrap();
        let groups: [(&str, &str, u32); 4] = [
            ("127.0.0.1", "239.1.2.3", 1),
            ("::1", "ff0e::123", 1),
            ("192.0.2.1", "239.1.2.4", m0),
            ("fd00::1", "ff0e::124", m0),
        ];
        let one = borrow(&slots, 1);
        for (_, group, ifindex) in groups {
            one.join_group(group.parse().unwrap(), ifindex).unwrap();
        }
        let memberships = || {
            let v4 = std::fs::read_to_string("/proc/net/igmp").unwrap();
            let v6 = std::fs::read_to_string("/proc/net/igmp6").unwrap();
            // Addresses in host order and in network order.
            ["040201EF", "030201EF", "ff0e0000000000000000000000000124"]
                .map(|group| v4.contains(group) || v6.contains(group))
        };
        assert_eq!(memberships(), [true; 3]);
        drop(one);
        assert_eq!(memberships(), [true; 3], "the service still has the socket");
        assert_eq!(slots.renew(1).unwrap(), Renewal::Ready);
        assert_eq!(memberships(), [false; 3]);
        let (one, two) = (borrow(&slots, 1), borrow(&slots, 2));
        for (local, group, ifindex) in groups {
            let group = group.parse().unwrap();
            two.join_group(group, ifindex).unwrap();
            two.send(&group_path(local, group, ifindex), &to_group(1))
                .unwrap();
        }
        assert_eq!(found(&two, 4), [1; 4]);
        assert_eq!(arrived(&one), []);
        assert_eq!(
            counter(&one, "group_not_joined"),
            0,
            "not even the kernel delivers"
        );
    });
}

#[test]
fn memberships_are_refused_with_the_reason() {
    in_own_namespace(
        "slots::groups::memberships_are_refused_with_the_reason",
        || {
            let slots = UdpSlots::open().unwrap();
            let port = borrow(&slots, 1);
            let errno = |result: io::Result<()>| result.unwrap_err().raw_os_error().unwrap();
            for group in ["239.1.2.3", "ff05::1"] {
                let group: IpAddr = group.parse().unwrap();
                assert_eq!(errno(port.join_group(group, 0)), libc::EINVAL);
                assert_eq!(errno(port.join_group(group, 77)), libc::ENODEV);
                assert_eq!(errno(port.leave_group(group, 1)), libc::EADDRNOTAVAIL);
                port.join_group(group, 1).unwrap();
                assert_eq!(errno(port.join_group(group, 1)), libc::EADDRINUSE);
                port.leave_group(group, 1).unwrap();
                assert_eq!(errno(port.leave_group(group, 1)), libc::EADDRNOTAVAIL);
            }
            assert_eq!(
                errno(port.join_group("192.0.2.1".parse().unwrap(), 1)),
                libc::EINVAL
            );
            let limit: u8 = std::fs::read_to_string("/proc/sys/net/ipv4/igmp_max_memberships")
                .unwrap()
                .trim()
                .parse()
                .unwrap();
            for i in 0..limit {
                port.join_group(Ipv4Addr::new(239, 2, 0, i).into(), 1)
                    .unwrap();
            }
            let one_more = Ipv4Addr::new(239, 2, 1, 0).into();
            assert_eq!(errno(port.join_group(one_more, 1)), libc::ENOBUFS);
            port.leave_group(Ipv4Addr::new(239, 2, 0, 0).into(), 1)
                .unwrap();
            port.join_group(one_more, 1).unwrap();
        },
    );
}

/// IPv6 groups on the loopback interface that happen to have one carrier are told apart, and it stays as long as one of
/// them is joined.
#[test]
fn ipv6_groups_of_one_carrier_are_told_apart() {
    in_own_namespace(
        "slots::groups::ipv6_groups_of_one_carrier_are_told_apart",
        || {
            let slots = UdpSlots::open().unwrap();
            let (one, two) = (borrow(&slots, 1), borrow(&slots, 2));
            // The carrier's number folds the words by rotating five bits and adding without carry.
            let [a, b]: [IpAddr; 2] = ["ff05::1:0", "ff05::20"].map(|group| group.parse().unwrap());
            one.join_group(a, 1).unwrap();
            one.join_group(b, 1).unwrap();
            two.join_group(b, 1).unwrap();
            two.send(&group_path("::1", a, 1), &to_group(1)).unwrap();
            assert_eq!(found(&one, 1), [1]);
            // The carrier is the same.
            expect_dropped(&two, "group_not_joined", 1);
            one.leave_group(a, 1).unwrap();
            two.send(&group_path("::1", b, 1), &to_group(2)).unwrap();
            assert_eq!((found(&one, 1), found(&two, 1)), (vec![2], vec![2]));
            // Without the token nothing gets through a carrier.
            let mut forged = vec![0xFF, 0, 0, 0, 0, 0xFF, 0xFF, 0xFF];
            forged.extend([0; 80]);
            let carrier = SocketAddr::new(crate::udp::carrier_of(b), ROCE_PORT);
            let other = UdpSocket::bind("127.0.0.1:0").unwrap();
            other.send_to(&forged, carrier).unwrap();
            expect_dropped(&one, "forward_bad", 1);
            expect_dropped(&two, "forward_bad", 1);
        },
    );
}

/// One host in a namespace and another in one of its own, on a link between them: the network is told of memberships
/// (IGMPv2 and v3, RFC 2236 and 3376; MLDv2, RFC 3810), and packets pass.
#[test]
fn memberships_are_reported_and_packets_pass_between_hosts() {
    in_own_namespace(
        "slots::groups::memberships_are_reported_and_packets_pass_between_hosts",
        || {
            let m0 = veth();
            let listener = listen_to_everything();
            let (four, old, six): (IpAddr, IpAddr, IpAddr) = (
                "239.1.2.3".parse().unwrap(),
                "239.1.2.4".parse().unwrap(),
                "ff0e::123".parse().unwrap(),
            );
            std::thread::scope(|scope| {
                let (tid_in, tid) = std::sync::mpsc::channel();
                let (moved_in, moved) = std::sync::mpsc::channel();
                let far = scope.spawn(move || {
                    leave_namespace();
                    tid_in.send(rustix::thread::gettid()).unwrap();
                    let _: () = moved.recv().unwrap();
                    run("ip link set lo up && ip link set m1 up");
                    run(
                        "ip addr add 192.0.2.2/24 dev m1 && ip -6 addr add fd00::2/64 dev m1 nodad",
                    );
                    let m1 = index_of("m1");
                    let slots = UdpSlots::open().unwrap();
                    let (one, two) = (borrow(&slots, 1), borrow(&slots, 2));
                    for group in [four, six] {
                        one.join_group(group, m1).unwrap();
                        two.join_group(group, m1).unwrap();
                    }
                    std::fs::write("/proc/sys/net/ipv4/conf/m1/force_igmp_version", "2").unwrap();
                    one.join_group(old, m1).unwrap();
                    (slots, one, two, m1)
                });
                let tid = tid.recv().unwrap().as_raw_nonzero();
                run(&format!("ip link set m1 netns {tid}"));
                moved_in.send(()).unwrap();
                let (_far_slots, one, two, m1) = far.join().unwrap();
                let heard = hear(&listener, |frame| reports(frame, four, old, six));
                assert_eq!(heard, [true; 3], "IGMPv3, IGMPv2, MLDv2");

                let slots = UdpSlots::open().unwrap();
                let sender = borrow(&slots, 1);
                sender.join_group(four, m0).unwrap();
                sender.join_group(six, m0).unwrap();
                for (mark, (local, group)) in (1..).zip([("192.0.2.1", four), ("fd00::1", six)]) {
                    let av = group_path(local, group, m0);
                    sender.send(&av, &to_group(mark)).unwrap();
                    let mut burst: Vec<u8> = Vec::new();
                    for i in 0..10 {
                        burst.extend(to_group(100 + i));
                        burst.extend([0; 4]);
                    }
                    sender.send_run(&av, &mut burst, 20).unwrap();
                    let expected: Vec<u32> = [mark].into_iter().chain(100..110).collect();
                    for (port, ifindex) in [(&one, m1), (&two, m1), (&sender, m0)] {
                        let seen = marks(port, expected.len());
                        assert_eq!(
                            seen.iter().map(|(_, mark)| *mark).collect::<Vec<_>>(),
                            expected
                        );
                        assert!(seen.iter().all(|(seen, _)| {
                            (seen.local, seen.remote, seen.scope_id)
                                == (av.remote, av.local, ifindex)
                        }));
                        assert_eq!(counter(port, "icrc_bad"), 0);
                    }
                }
            });
        },
    );
}

/// A socket that sees every frame in this namespace.
fn listen_to_everything() -> Socket {
    let protocol = Protocol::from(i32::from(u16::to_be(libc::ETH_P_ALL as u16)));
    let socket = Socket::new(Domain::PACKET, Type::RAW, Some(protocol)).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

/// Reads frames until each of the three things has been seen in one.
fn hear(socket: &Socket, look: impl Fn(&[u8]) -> [bool; 3]) -> [bool; 3] {
    let mut heard = [false; 3];
    let deadline = Instant::now() + PATIENCE;
    let mut buffer = [0; 2048];
    while heard != [true; 3] && Instant::now() < deadline {
        let Ok(len) = io::Read::read(&mut &*socket, &mut buffer) else {
            break;
        };
        for (heard, seen) in heard.iter_mut().zip(look(&buffer[..len])) {
            *heard |= seen;
        }
    }
    heard
}

/// Whether an Ethernet frame holds an IGMPv3 report of `four`, an IGMPv2 report of `old`, an MLDv2 report of `six`.
fn reports(frame: &[u8], four: IpAddr, old: IpAddr, six: IpAddr) -> [bool; 3] {
    let holds = |group: IpAddr| {
        let octets = match group {
            IpAddr::V4(ip) => ip.octets().to_vec(),
            IpAddr::V6(ip) => ip.octets().to_vec(),
        };
        frame[14..]
            .windows(octets.len())
            .any(|window| window == octets)
    };
    let (Some(ethertype), Some(ip)) = (frame.get(12..14), frame.get(14..)) else {
        return [false; 3];
    };
    match ethertype {
        // IGMP with the router alert option: the header has 24 bytes. Types 0x22 and 0x16.
        [0x08, 0x00] if ip.len() > 24 && ip[0] == 0x46 && ip[9] == 2 => [
            ip[24] == 0x22 && holds(four),
            ip[24] == 0x16 && holds(old),
            false,
        ],
        // ICMPv6 behind a hop-by-hop header of 8 bytes. Type 143.
        [0x86, 0xDD] if ip.len() > 48 && ip[6] == 0 && ip[40] == 58 => {
            [false, false, ip[48] == 143 && holds(six)]
        }
        _ => [false; 3],
    }
}

/// Puts the calling thread into a network namespace of its own.
#[allow(
    unsafe_code,
    reason = "rustix marks the call for what it can do to descriptors"
)]
fn leave_namespace() {
    // SAFETY: only the network namespace is left; descriptors stay shared with the other threads.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) }.unwrap();
}

const PATIENCE: Duration = Duration::from_secs(300);
