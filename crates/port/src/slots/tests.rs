//! On the real port, each test in a network namespace of its own.

use super::*;
use crate::tests::namespace::in_own_namespace;
use crate::{ForwardToken, Port, UdpPort};
use oarlock_wire::{AddressVector, Gid};
use std::net::UdpSocket;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(300);
const TOKEN: ForwardToken = ForwardToken(0x0123_4567_89AB_CDEF);

/// A slot's endpoint with a copy of the group's socket, as a borrower has it.
pub(super) fn borrow(slots: &UdpSlots, slot: u8) -> Port {
    let socket = slots
        .lend(slot)
        .unwrap()
        .unwrap()
        .try_clone_to_owned()
        .unwrap();
    Port::Udp(UdpPort::new(slot, socket, TOKEN).unwrap())
}

/// A packet to a queue pair of `slot`: opcode SEND ONLY, `mark` as payload.
pub(super) fn packet(slot: u8, mark: u32) -> Vec<u8> {
    let mut packet = vec![0x04, 0, 0xFF, 0xFF, 0, slot, 0, 7, 0, 0, 0, 0];
    packet.extend(mark.to_be_bytes());
    packet
}

/// Takes what comes until there is as much as was asked for. The kernel may deliver a moment after the sending call has
/// returned; the time limit ends a test that has failed.
pub(super) fn marks(port: &Port, want: usize) -> Vec<(AddressVector, u32)> {
    let deadline = Instant::now() + PATIENCE;
    let mut found = Vec::new();
    while found.len() < want && Instant::now() < deadline {
        let more = arrived(port);
        if more.is_empty() {
            std::thread::yield_now();
        }
        found.extend(more);
    }
    found
}

/// Takes what has come.
pub(super) fn arrived(port: &Port) -> Vec<(AddressVector, u32)> {
    let mut batch = Batch::default();
    let mut found = Vec::new();
    while port.recv(&mut batch).unwrap() > 0 {
        let mark = |bytes: &[u8]| u32::from_be_bytes(bytes[12..16].try_into().unwrap());
        found.extend(batch.iter().map(|(av, bytes)| (av, mark(bytes))));
    }
    found
}

/// Waits until so many packets have been dropped for one reason, and none has come.
pub(super) fn expect_dropped(port: &Port, reason: &str, want: u64) {
    let deadline = Instant::now() + PATIENCE;
    while counter(port, reason) < want && Instant::now() < deadline {
        assert_eq!(arrived(port), []);
        std::thread::yield_now();
    }
    assert_eq!(arrived(port), []);
    assert_eq!(counter(port, reason), want, "{reason}");
}

fn path(local: &str, remote: &str) -> AddressVector {
    let gid = |text: &str| Gid::from_ip(text.parse().unwrap());
    AddressVector::new(gid(local), gid(remote))
}

pub(super) fn counter(port: &Port, name: &str) -> u64 {
    port.counters()
        .iter()
        .find(|(n, _)| *n == name)
        .unwrap_or_else(|| panic!("no counter {name}"))
        .1
}

#[test]
fn every_slot_gets_its_packets_and_renewal_keeps_the_order() {
    in_own_namespace(
        "slots::tests::every_slot_gets_its_packets_and_renewal_keeps_the_order",
        || {
            let mut slots = UdpSlots::open().unwrap();
            let check = |slots: &UdpSlots, round: u32| {
                let sender = borrow(slots, 0);
                for (local, remote) in [("127.0.0.1", "127.0.0.1"), ("::1", "::1")] {
                    let av = path(local, remote);
                    for slot in [0u8, 1, 2, 7, 128, 253, 254] {
                        let port = borrow(slots, slot);
                        for i in 0..64 {
                            sender.send(&av, &packet(slot, round << 16 | i)).unwrap();
                        }
                        let found = marks(&port, 64);
                        let expected: Vec<u32> = (0..64).map(|i| round << 16 | i).collect();
                        assert_eq!(
                            found.iter().map(|(_, mark)| *mark).collect::<Vec<_>>(),
                            expected,
                            "slot {slot}"
                        );
                        assert!(found.iter().all(|(seen, _)| seen.local == av.local && seen.remote == av.remote));
                        for bad in [
                            "icrc_bad",
                            "foreign_qp",
                            "truncated",
                            "no_address",
                            "not_rocev2",
                        ] {
                            assert_eq!(counter(&port, bad), 0, "slot {slot}: {bad}");
                        }
                    }
                }
            };
            check(&slots, 0);
            for (round, slot) in (1..).zip([7u8, 254, 1, 1, 128]) {
                // Something is left in the slot by its last borrower, and in the spare by a multicast.
                borrow(&slots, 0)
                    .send(&path("127.0.0.1", "127.0.0.1"), &packet(slot, 0xDEAD))
                    .unwrap();
                borrow(&slots, 0)
                    .send(&path("127.0.0.1", "127.0.0.1"), &packet(255, 0xDEAD))
                    .unwrap();
                assert_eq!(slots.renew(slot).unwrap(), Renewal::Ready);
                check(&slots, round);
            }
        },
    );
}

#[test]
fn a_slot_whose_borrower_left_a_copy_is_renewed_when_the_copy_goes() {
    in_own_namespace(
        "slots::tests::a_slot_whose_borrower_left_a_copy_is_renewed_when_the_copy_goes",
        || {
            let mut slots = UdpSlots::open().unwrap();
            let copy = borrow(&slots, 5);
            assert_eq!(slots.renew(5).unwrap(), Renewal::Held);
            assert!(!slots.is_ready(5) && slots.lend(5).unwrap().is_none());
            // Other slots are renewed and steered as ever.
            assert_eq!(slots.renew(9).unwrap(), Renewal::Ready);
            let av = path("::1", "::1");
            for slot in [4u8, 6, 9, 254] {
                let port = borrow(&slots, slot);
                borrow(&slots, 0).send(&av, &packet(slot, 1)).unwrap();
                assert_eq!(marks(&port, 1).len(), 1, "slot {slot}");
            }
            drop(copy);
            slots.settle().unwrap();
            for slot in [4u8, 5, 6, 9, 254, 255] {
                let port = borrow(&slots, slot);
                borrow(&slots, 0).send(&av, &packet(slot, 2)).unwrap();
                assert_eq!(marks(&port, 1).len(), 1, "slot {slot}");
            }
        },
    );
}

/// What came for a slot before it was lent was for nobody, and who borrows it is told where the rest comes from.
#[test]
fn a_slot_is_empty_when_it_is_lent_for_the_first_time() {
    in_own_namespace(
        "slots::tests::a_slot_is_empty_when_it_is_lent_for_the_first_time",
        || {
            let mut slots = UdpSlots::open().unwrap();
            let sender = borrow(&slots, 0);
            for renewed in [false, true] {
                for (slot, av) in [
                    (3, path("127.0.0.1", "127.0.0.1")),
                    (254, path("::1", "::1")),
                ] {
                    if renewed {
                        assert_eq!(slots.renew(slot).unwrap(), Renewal::Ready);
                    }
                    for _ in 0..10 {
                        sender.send(&av, &packet(slot, 0xDEAD)).unwrap();
                    }
                    // Packets of one sender arrive in their order: those have, when this has.
                    let other = borrow(&slots, 9);
                    sender.send(&av, &packet(9, 1)).unwrap();
                    marks(&other, 1);
                    let first = borrow(&slots, slot);
                    assert_eq!(arrived(&first), []);
                    sender.send(&av, &packet(slot, 2)).unwrap();
                    // A second copy is the same socket, and takes nothing away.
                    let found = marks(&borrow(&slots, slot), 1);
                    assert_eq!(found.len(), 1);
                    assert_eq!(
                        (found[0].0.local, found[0].0.remote, found[0].1),
                        (av.local, av.remote, 2)
                    );
                }
            }
        },
    );
}

#[test]
fn the_port_of_another_program_is_reported_with_its_owner() {
    in_own_namespace(
        "slots::tests::the_port_of_another_program_is_reported_with_its_owner",
        || {
            let other = UdpSocket::bind("127.0.0.1:4791").unwrap();
            let error = UdpSlots::open().unwrap_err();
            let pid = std::process::id();
            assert!(
                matches!(&error, SlotsError::PortTaken { owner: crate::PortOwner::Process { pid: p, .. } } if *p == pid)
            );
            assert!(
                error
                    .to_string()
                    .contains("UDP port 4791 is taken by process"),
                "{error}"
            );
            drop(other);
            let first = UdpSlots::open().unwrap();
            assert!(
                matches!(UdpSlots::open(), Err(SlotsError::PortTaken { .. })),
                "a second group must not join the first"
            );
            drop(first);
        },
    );
}

#[test]
fn too_few_descriptors_are_reported_with_the_remedy() {
    in_own_namespace(
        "slots::tests::too_few_descriptors_are_reported_with_the_remedy",
        || {
            setrlimit(
                Resource::Nofile,
                Rlimit {
                    current: Some(100),
                    maximum: Some(100),
                },
            )
            .unwrap();
            let error = UdpSlots::open().unwrap_err();
            assert!(
                matches!(
                    error,
                    SlotsError::Descriptors {
                        limit: 100,
                        needed: 512
                    }
                ),
                "{error}"
            );
            assert!(error.to_string().contains("ulimit -Hn 512"), "{error}");
        },
    );
}

#[test]
fn one_datagram_at_a_time_leaves_the_rest() {
    in_own_namespace(
        "slots::tests::one_datagram_at_a_time_leaves_the_rest",
        || {
            let slots = UdpSlots::open().unwrap();
            let (sender, receiver) = (borrow(&slots, 1), borrow(&slots, 2));
            let mut batch = Batch::default();
            assert_eq!(receiver.recv_one(&mut batch).unwrap(), 0);
            for mark in 0..3 {
                // Of different lengths: the kernel joins none of them.
                let mut one = packet(2, mark);
                one.resize(one.len() + 4 * mark as usize, 0);
                sender.send(&path("127.0.0.1", "127.0.0.1"), &one).unwrap();
            }
            let deadline = Instant::now() + PATIENCE;
            while receiver.recv_one(&mut batch).unwrap() == 0 && Instant::now() < deadline {}
            assert_eq!(batch.len(), 1);
            assert_eq!(marks(&receiver, 2).len(), 2);
        },
    );
}

#[test]
fn a_burst_arrives_whole_with_right_icrcs_over_both_families() {
    in_own_namespace(
        "slots::tests::a_burst_arrives_whole_with_right_icrcs_over_both_families",
        || {
            let slots = UdpSlots::open().unwrap();
            let (sender, receiver) = (borrow(&slots, 1), borrow(&slots, 2));
            for (local, remote) in [
                ("127.0.0.1", "127.0.0.1"),
                ("::1", "::1"),
                ("127.0.0.1", "127.0.0.5"),
            ] {
                let mut run = Vec::new();
                for i in 0..20 {
                    run.extend(packet(2, i));
                    run.extend([0; 4]);
                }
                // The last segment may be shorter.
                run.truncate(run.len() - 4);
                sender.send_run(&path(local, remote), &mut run, 20).unwrap();
                let mut batch = Batch::default();
                let mut lengths = Vec::new();
                let deadline = Instant::now() + PATIENCE;
                while lengths.len() < 20 && Instant::now() < deadline {
                    receiver.recv(&mut batch).unwrap();
                    lengths.extend(batch.iter().map(|(_, bytes)| bytes.len()));
                }
                let mut expected = vec![16; 19];
                expected.push(12);
                assert_eq!(lengths, expected, "{local} to {remote}");
            }
            assert_eq!(counter(&receiver, "icrc_bad"), 0);
        },
    );
}

#[test]
fn packets_of_two_slots_in_one_burst_are_handed_on_with_their_addresses() {
    in_own_namespace(
        "slots::tests::packets_of_two_slots_in_one_burst_are_handed_on_with_their_addresses",
        || {
            let slots = UdpSlots::open().unwrap();
            let (sender, two, three) = (borrow(&slots, 1), borrow(&slots, 2), borrow(&slots, 3));
            for (local, remote) in [("127.0.0.1", "127.0.0.5"), ("::1", "::1")] {
                let mut run = Vec::new();
                for i in 0..10 {
                    run.extend(packet(2 + (i % 2) as u8, i));
                    run.extend([0; 4]);
                }
                let av = path(local, remote);
                sender.send_run(&av, &mut run, 20).unwrap();
                assert_eq!(
                    marks(&two, 5)
                        .iter()
                        .map(|(_, mark)| *mark)
                        .collect::<Vec<_>>(),
                    [0, 2, 4, 6, 8]
                );
                let handed_on = marks(&three, 5);
                assert_eq!(
                    handed_on.iter().map(|(_, mark)| *mark).collect::<Vec<_>>(),
                    [1, 3, 5, 7, 9]
                );
                assert!(
                    handed_on
                        .iter()
                        .all(|(seen, _)| seen.local == av.remote && seen.remote == av.local)
                );
            }
            assert_eq!(
                (counter(&two, "foreign_qp"), counter(&two, "forwarded")),
                (10, 10)
            );
            assert_eq!(counter(&three, "forward_received"), 10);
            // A forged one, without the token, is counted and dropped.
            let mut forged = vec![0xFF, 0, 0, 0, 0, 3, 0, 7];
            forged.extend([0; 80]);
            UdpSocket::bind("127.0.0.1:0")
                .unwrap()
                .send_to(&forged, "127.0.0.1:4791")
                .unwrap();
            expect_dropped(&three, "forward_bad", 1);
        },
    );
}

#[test]
fn what_is_not_a_packet_or_damaged_is_counted_and_dropped() {
    in_own_namespace(
        "slots::tests::what_is_not_a_packet_or_damaged_is_counted_and_dropped",
        || {
            let slots = UdpSlots::open().unwrap();
            let service = borrow(&slots, 0);
            let other = UdpSocket::bind("127.0.0.1:0").unwrap();
            for len in [0, 1, 7, 8, 15] {
                other.send_to(&vec![0; len], "127.0.0.1:4791").unwrap();
            }
            other.send_to(&[0; 64], "127.0.0.1:4791").unwrap();
            expect_dropped(&service, "not_rocev2", 5);
            expect_dropped(&service, "icrc_bad", 1);
        },
    );
}

#[test]
fn a_capture_holds_each_packet_between_two_programs_once_and_as_on_the_wire() {
    in_own_namespace(
        "slots::tests::a_capture_holds_each_packet_between_two_programs_once_and_as_on_the_wire",
        || {
            let file = tempfile::NamedTempFile::new().unwrap();
            let slots = UdpSlots::open().unwrap();
            let (one, two) = (borrow(&slots, 1), borrow(&slots, 2));
            let capture = crate::pcap::Capture::create(file.path()).unwrap();
            one.tap(Some(capture.clone()));
            two.tap(Some(crate::pcap::Capture::append(file.path()).unwrap()));
            one.send(&path("127.0.0.1", "127.0.0.1"), &packet(2, 1))
                .unwrap();
            two.send(&path("::1", "::1"), &packet(1, 2)).unwrap();
            assert_eq!((marks(&two, 1).len(), marks(&one, 1).len()), (1, 1));
            let mut reader =
                crate::pcap::Reader::new(std::fs::File::open(file.path()).unwrap()).unwrap();
            let mut seen = Vec::new();
            while let Some(record) = reader.next_record().unwrap() {
                let datagram = record.datagram().unwrap();
                assert_eq!(datagram.destination.port(), 4791);
                assert!(datagram.source.port() >= 0xC000);
                assert_eq!(datagram.identification, 0);
                seen.push(u32::from_be_bytes(
                    datagram.payload[12..16].try_into().unwrap(),
                ));
            }
            assert_eq!(seen, [1, 2]);
        },
    );
}

/// R-ADDR-1 rests on it where IPv6 is off: the port is had and used over IPv4 alone.
#[test]
fn without_ipv6_the_port_works_over_ipv4() {
    in_own_namespace(
        "slots::tests::without_ipv6_the_port_works_over_ipv4",
        || {
            let mut slots = UdpSlots::group(false).unwrap();
            assert_eq!(slots.renew(2).unwrap(), Renewal::Ready);
            let (one, two) = (borrow(&slots, 1), borrow(&slots, 2));
            let av = path("127.0.0.1", "127.0.0.1");
            one.send(&av, &packet(2, 77)).unwrap();
            assert_eq!(
                marks(&two, 1),
                [(
                    AddressVector {
                        hop_limit: 64,
                        ..av
                    },
                    77
                )]
            );
            let error = one.send(&path("::1", "::1"), &packet(2, 77)).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EAFNOSUPPORT));
        },
    );
}

#[test]
fn traffic_class_and_hop_limit_arrive() {
    in_own_namespace("slots::tests::traffic_class_and_hop_limit_arrive", || {
        let slots = UdpSlots::open().unwrap();
        let (one, two) = (borrow(&slots, 1), borrow(&slots, 2));
        for address in ["127.0.0.1", "::1"] {
            let av = AddressVector {
                traffic_class: 0x68,
                hop_limit: 7,
                ..path(address, address)
            };
            one.send(&av, &packet(2, 1)).unwrap();
            assert_eq!(marks(&two, 1), [(av, 1)]);
        }
    });
}

/// The kernel's soft RoCE sends UDP checksum 0 over IPv6, which a socket refuses unless told otherwise.
#[test]
fn ipv6_without_a_udp_checksum_arrives() {
    in_own_namespace("slots::tests::ipv6_without_a_udp_checksum_arrives", || {
        let slots = UdpSlots::open().unwrap();
        let service = borrow(&slots, 0);
        let sender = UdpSocket::bind("[::1]:0").unwrap();
        set_option(&sender, libc::SOL_UDP, libc::UDP_NO_CHECK6_TX, 1).unwrap();
        sender.send_to(&[0; 64], "[::1]:4791").unwrap();
        // It came as far as that.
        expect_dropped(&service, "icrc_bad", 1);
    });
}

/// What the kernel drops for want of room is counted at once, and gone with the slot's renewal.
#[test]
fn datagrams_that_find_no_room_are_counted() {
    in_own_namespace(
        "slots::tests::datagrams_that_find_no_room_are_counted",
        || {
            let mut slots = UdpSlots::open().unwrap();
            let port = borrow(&slots, 3);
            let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
            let mut datagram = vec![0; 1024];
            datagram[5] = 3;
            let sent = 1 << 15;
            for _ in 0..sent {
                sender.send_to(&datagram, "127.0.0.1:4791").unwrap();
            }
            let lost = || counter(&port, "rxq_overflow");
            assert!(lost() > 0, "all of them fit");
            expect_dropped(&port, "icrc_bad", sent - lost());
            assert_eq!(slots.dropped(3), lost());
            drop(port);
            assert_eq!(slots.renew(3).unwrap(), Renewal::Ready);
            assert_eq!(slots.dropped(3), 0);
        },
    );
}

/// A slot hears of a multicast group only what it has joined itself: a packet to the group of another socket reaches that one
/// and no slot.
#[test]
fn multicast_that_nobody_joined_reaches_no_slot() {
    in_own_namespace(
        "slots::tests::multicast_that_nobody_joined_reaches_no_slot",
        || {
            let slots = UdpSlots::open().unwrap();
            let plain = UdpSocket::bind("[::]:0").unwrap();
            plain.set_read_timeout(Some(PATIENCE)).unwrap();
            let port = plain.local_addr().unwrap().port();
            // The loopback interface has no route for multicast.
            let ready = std::process::Command::new("sh")
                .args(["-c", "ip link add m0 type veth peer name m1 && ip link set m1 up && ip link set m0 up && ip -6 addr add fd00::1/64 dev m0 nodad"])
                .status();
            assert!(ready.unwrap().success());
            let interfaces = crate::netlink::interfaces().unwrap();
            let m0 = interfaces
                .iter()
                .find(|interface| interface.name == "m0")
                .unwrap()
                .index;
            let sender = UdpSocket::bind("[fd00::1]:0").unwrap();
            let group = Ipv6Addr::new(0xFF02, 0, 0, 0, 0, 0, 0x10, 0x4791);
            plain.join_multicast_v6(&group, m0).unwrap();
            for to in [ROCE_PORT, port] {
                let to = std::net::SocketAddrV6::new(group, to, 0, m0);
                sender.send_to(&[0; 64], to).unwrap();
            }
            assert_eq!(plain.recv(&mut [0; 100]).unwrap(), 64);
            for slot in 0..SPARE_SLOT {
                let port = borrow(&slots, slot);
                assert_eq!(arrived(&port), []);
                assert_eq!(counter(&port, "icrc_bad"), 0, "slot {slot}");
            }
        },
    );
}

/// Sends 4 KiB packets in runs of so many until the queue has no room; gives how many it holds.
fn packets_that_fit(slots: &UdpSlots, slot: u8, ip: &str, run: usize) -> u64 {
    let (sender, receiver) = (borrow(slots, 1), borrow(slots, slot));
    let before = counter(&receiver, "rxq_overflow");
    let mut sent = 0;
    while counter(&receiver, "rxq_overflow") == before {
        let mut bytes = Vec::new();
        for mark in 0..run {
            let mut one = packet(slot, mark as u32);
            one.resize(12 + 16 + 4096 + 4, 0);
            bytes.extend(one);
        }
        sender
            .send_run(&path(ip, ip), &mut bytes, 12 + 16 + 4096 + 4)
            .unwrap();
        sent += run as u64;
        assert!(sent < 1 << 20, "there is room without end");
    }
    let mut batch = Batch::default();
    let mut held = 0;
    while receiver.recv(&mut batch).unwrap() > 0 {
        held += batch.len() as u64;
    }
    held
}

/// The window of one connection, 64 packets of 4 KiB, fits the smallest receive buffer that a Linux system gives as it is
/// installed (`net.core.rmem_max` 212992), in bursts and one by one.
#[test]
fn a_window_of_the_largest_packets_fits_the_smallest_buffer() {
    in_own_namespace(
        "slots::tests::a_window_of_the_largest_packets_fits_the_smallest_buffer",
        || {
            let slots = UdpSlots::open().unwrap();
            for (ask, slot) in [(212_992, 3), (RECEIVE_BUFFER, 4)] {
                set_option(
                    slots.lend(slot).unwrap().unwrap(),
                    libc::SOL_SOCKET,
                    libc::SO_RCVBUF,
                    ask,
                )
                .unwrap();
                let size = socket2::SockRef::from(&slots.lend(slot).unwrap().unwrap())
                    .recv_buffer_size()
                    .unwrap();
                for ip in ["127.0.0.1", "::1"] {
                    let (burst, single) = (
                        packets_that_fit(&slots, slot, ip, 15),
                        packets_that_fit(&slots, slot, ip, 1),
                    );
                    println!("{size} bytes, {ip}: {burst} in bursts, {single} one by one");
                    assert!(burst >= 64 && single >= 32, "{burst} {single}");
                }
            }
        },
    );
}
