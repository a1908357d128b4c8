//! Multicast groups that programs join through the service.

mod support;

use oarlock_hostd::{Host, MemWire};
use oarlock_port::{Batch, MEM_IFINDEX, Port};
use oarlock_ucm::abi::join_flag;
use oarlock_ucm::client::{self, IdNumber, JoinNumber};
use oarlock_wire::{AddressVector, Gid};
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, SocketAddr};
use std::process::{Command, Stdio};
use support::namespace::in_own_namespace;
use support::program::Process;
use support::*;

const UDP: u16 = 0x0111;
const UD: u8 = 4;
const MULTICAST_JOIN: u32 = 12;
const MULTICAST_ERROR: u32 = 13;
const DEVICE_REMOVAL: u32 = 11;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn group(text: &str) -> SocketAddr {
    (ip(text), 0).into()
}

/// An identifier that may join groups on the interface of `local`.
fn member(channel: &Channel, local: &str) -> IdNumber {
    let id = channel.call(client::create_id(7, UDP, UD));
    let (from, to) = (
        (ip(local), 0).into(),
        if ip(local).is_ipv4() {
            "239.0.0.1"
        } else {
            "ff0e::1"
        },
    );
    // A loopback address is on no device before the way to somewhere is known.
    channel.call(client::resolve_addr(id, Some(from), group(to), 2000));
    assert_eq!(channel.expect(ADDR_RESOLVED).id, id);
    id
}

/// Joins and takes the event.
fn join(channel: &Channel, id: IdNumber, to: &str, flags: u16) -> JoinNumber {
    let join = channel.call(client::join_multicast(id, 9, group(to), flags));
    let event = channel.expect(MULTICAST_JOIN);
    assert_eq!(event.uid, 9);
    assert_eq!(event.ud().qp_num, 0xFF_FFFF);
    join
}

/// A packet to queue pair 0xFFFFFF.
fn packet(mark: u8) -> [u8; 16] {
    [
        4, 0, 0xFF, 0xFF, 0, 0xFF, 0xFF, 0xFF, 0, 0, 0, 0, mark, 0, 0, 0,
    ]
}

/// What comes for a slot, until there is as much as was asked for.
fn marks(port: &Port, want: usize) -> Vec<u8> {
    let mut batch = Batch::default();
    let mut seen = Vec::new();
    until("packets", || {
        port.recv(&mut batch).unwrap();
        seen.extend(batch.iter().map(|(_, packet)| packet[12]));
        seen.len() >= want
    });
    seen
}

/// How many sockets of this namespace are in an IPv4 group.
fn users_of(group: &str) -> u32 {
    let octets = match ip(group) {
        IpAddr::V4(ip) => ip.octets(),
        IpAddr::V6(_) => panic!("listed elsewhere"),
    };
    // The list has the address as a number of this machine's byte order.
    let name = format!("{:08X}", u32::from_ne_bytes(octets));
    let list = std::fs::read_to_string("/proc/net/igmp").unwrap();
    list.lines()
        .map(str::split_whitespace)
        .filter_map(|mut columns| (columns.next()? == name).then(|| columns.next())?)
        .map(|users| users.parse::<u32>().unwrap())
        .sum()
}

fn veth() {
    let setup = "echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6 && \
        ip link add m0 type veth peer name m1 && ip link set m1 up && ip link set m0 up && \
        ip addr add 192.0.2.1/24 dev m0";
    let done = Command::new("sh").args(["-c", setup]).status();
    assert!(done.unwrap().success());
}

/// One member or many, the network is told once, and told of the end when the last has gone, however it went.
#[test]
fn an_interface_is_in_a_group_as_long_as_any_program_is() {
    const NAME: &str = "an_interface_is_in_a_group_as_long_as_any_program_is";
    if std::env::var_os("OARLOCK_TEST_PART").is_some() {
        let host = Host::join().unwrap();
        let channel = Channel::new(&host);
        let id = member(&channel, "192.0.2.1");
        for to in ["239.1.2.3", "239.1.2.4"] {
            join(&channel, id, to, join_flag::FULL_MEMBER);
        }
        println!("\nsays joined");
        std::thread::sleep(std::time::Duration::from_secs(300));
        return;
    }
    in_own_namespace(NAME, || {
        veth();
        let host = Host::serve().unwrap();
        let channel = Channel::new(&host);
        let memberships = || counter(&host, "service_group_memberships");
        // Who only sends joins nothing.
        let sender = member(&channel, "192.0.2.1");
        join(
            &channel,
            sender,
            "239.1.2.3",
            join_flag::SEND_ONLY_FULL_MEMBER,
        );
        assert_eq!((users_of("239.1.2.3"), memberships()), (0, 0));
        let ids = [(); 2].map(|()| member(&channel, "192.0.2.1"));
        let joins = ids.map(|id| join(&channel, id, "239.1.2.3", join_flag::FULL_MEMBER));
        assert_eq!((users_of("239.1.2.3"), memberships()), (1, 1));
        let mut other = Process::spawn(
            Command::new(std::env::current_exe().unwrap())
                .args(["--exact", NAME, "--nocapture", "--test-threads=1"])
                .env("OARLOCK_TEST_PART", "member")
                .stdout(Stdio::piped()),
        );
        let said = BufReader::new(other.stdout.take().unwrap()).lines();
        assert!(said.map_while(Result::ok).any(|line| line == "says joined"));
        assert_eq!((users_of("239.1.2.3"), users_of("239.1.2.4")), (1, 1));
        assert_eq!(memberships(), 2);
        channel.call(client::leave_multicast(joins[0]));
        channel.call(client::destroy_id(ids[1]));
        assert_eq!((users_of("239.1.2.3"), memberships()), (1, 2));
        other.kill().unwrap();
        until("the memberships of the killed program end", || {
            memberships() == 0
        });
        assert_eq!((users_of("239.1.2.3"), users_of("239.1.2.4")), (0, 0));
        // In more groups than one socket may be, over both families, and out of all of them with the channel.
        let id = member(&channel, "127.0.0.1");
        let six = member(&channel, "::1");
        for i in 0..30 {
            join(
                &channel,
                id,
                &format!("239.9.0.{i}"),
                join_flag::FULL_MEMBER,
            );
            join(
                &channel,
                six,
                &format!("ff0e::{i}:1"),
                join_flag::FULL_MEMBER,
            );
        }
        assert_eq!((memberships(), users_of("239.9.0.29")), (60, 1));
        drop(channel);
        until("all memberships have ended", || memberships() == 0);
        assert_eq!(users_of("239.9.0.29"), 0);
    });
}

/// The data never passes through the service, which is in the group too.
#[test]
fn members_receive_on_their_own_slots() {
    in_own_namespace("members_receive_on_their_own_slots", || {
        let host = Host::serve().unwrap();
        let others = [(); 2].map(|()| Host::join().unwrap());
        let channel = Channel::new(&host);
        for (local, to) in [("127.0.0.1", "239.1.2.3"), ("::1", "ff0e::123")] {
            let id = member(&channel, local);
            join(&channel, id, to, join_flag::FULL_MEMBER);
            let ports = others.each_ref().map(|other| other.take_slot().unwrap());
            for port in &ports {
                port.join_group(ip(to), LOOPBACK).unwrap();
            }
            let path = AddressVector {
                scope_id: LOOPBACK,
                ..AddressVector::new(Gid::from_ip(ip(local)), Gid::from_ip(ip(to)))
            };
            for mark in 0..10 {
                ports[0].send(&path, &packet(mark)).unwrap();
            }
            for port in &ports {
                assert_eq!(marks(port, 10), (0..10).collect::<Vec<_>>());
            }
        }
        assert_eq!(counter(&host, "data_packets"), 0);
        assert_eq!(counter(&host, "port_rx_packets"), 0);
        assert_eq!(counter(&host, "port_group_not_joined"), 0);
    });
}

/// What the system refuses is the status of the join's event.
#[test]
fn a_group_that_cannot_be_joined_is_an_error_with_its_errno() {
    in_own_namespace(
        "a_group_that_cannot_be_joined_is_an_error_with_its_errno",
        || {
            std::fs::write("/proc/sys/net/ipv4/igmp_max_memberships", "1").unwrap();
            let host = Host::serve().unwrap();
            let channel = Channel::new(&host);
            let id = member(&channel, "127.0.0.1");
            // 64 sockets of one membership each.
            for i in 0..64 {
                join(
                    &channel,
                    id,
                    &format!("239.9.0.{i}"),
                    join_flag::FULL_MEMBER,
                );
            }
            channel.call(client::join_multicast(id, 9, group("239.9.1.0"), 0));
            let event = channel.event();
            assert_eq!(
                (event.kind, event.status, event.uid),
                (MULTICAST_ERROR, -libc::ENOBUFS, 9)
            );
            assert_eq!(counter(&host, "service_group_memberships"), 64);
        },
    );
}

/// Hosts in memory: packets to a group reach the members on all of them, and a device that goes takes its joins along.
#[test]
fn groups_in_memory_work_and_end_with_the_device() {
    let wire = MemWire::new();
    let (near, far) = (
        Host::private_on(&wire, &[ip("192.0.2.1")]).unwrap(),
        Host::private_on(&wire, &[ip("192.0.2.2")]).unwrap(),
    );
    let channel = Channel::new(&near);
    let id = member(&channel, "192.0.2.1");
    join(&channel, id, "239.1.2.3", join_flag::FULL_MEMBER);
    let ports = [&near, &far].map(|host| host.take_slot().unwrap());
    for port in &ports {
        port.join_group(ip("239.1.2.3"), MEM_IFINDEX).unwrap();
    }
    let path = AddressVector::new(Gid::from_ip(ip("192.0.2.1")), Gid::from_ip(ip("239.1.2.3")));
    ports[0].send(&path, &packet(5)).unwrap();
    assert_eq!(ports.each_ref().map(|port| marks(port, 1)), [[5], [5]]);
    near.memory().unwrap().remove_device();
    assert_eq!(channel.expect(DEVICE_REMOVAL).id, id);
    let refused = channel.try_call(client::join_multicast(id, 9, group("239.1.2.4"), 0));
    assert!(refused.is_err());
    near.memory().unwrap().restore_device();
    let again = member(&channel, "192.0.2.1");
    join(&channel, again, "239.1.2.3", join_flag::FULL_MEMBER);
}

/// A new namespace's loopback interface is its first (Linux `LOOPBACK_IFINDEX`).
const LOOPBACK: u32 = 1;
