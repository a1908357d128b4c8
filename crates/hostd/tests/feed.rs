//! What programs are told of devices unasked, and what they tell the service of them.

mod support;

use oarlock_hostd::{DeviceChange, DeviceChangeKind, Host, MemWire};
use oarlock_port::{DeviceStatistics, fdpass};
use oarlock_ucm::proto::{Reply, Request};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::process::Command;
use support::namespace::in_own_namespace;
use support::program::raw;
use support::*;

use DeviceChangeKind::{Addresses, PortActive, PortError, Removed, Returned};

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn run(line: &str) {
    let output = Command::new("sh").args(["-c", line]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{line}: {said}");
}

/// Waits for changes until one is this.
fn until_told(host: &Host, feed: &OwnedFd, wanted: &DeviceChange) -> Vec<DeviceChange> {
    let mut told = Vec::new();
    while !told.contains(wanted) {
        assert!(
            is_readable_within(feed, PATIENCE),
            "{wanted:?} after {told:?}"
        );
        told.extend(host.take_changes());
    }
    told
}

/// Each change of an in-memory host, one message each, and silence between.
#[test]
fn a_program_is_told_of_each_change_and_of_nothing_else() {
    let wire = MemWire::new();
    let host = Host::private_on(&wire, &[ip("192.0.2.1")]).unwrap();
    let memory = host.memory().unwrap();
    assert_eq!(host.take_changes(), [], "before it asks");
    let feed = host.changes_fd().unwrap().expect("this service tells");
    let device = host.devices().unwrap().remove(0);
    assert!(device.port_active);
    assert!(!is_readable_within(&feed, 0));
    let expect = |kinds: &[DeviceChangeKind]| {
        // The service has seen the change when it answers.
        let devices = host.devices().unwrap();
        let told: Vec<_> = host.take_changes();
        let kinds = kinds.iter().cloned();
        let device = device.index;
        let expected: Vec<_> = kinds.map(|kind| DeviceChange { device, kind }).collect();
        assert_eq!(told, expected);
        assert!(!is_readable_within(&feed, 0), "all is taken");
        devices
    };
    memory.set_link_up(false);
    assert!(!expect(&[PortError])[0].port_active);
    memory.set_link_up(true);
    assert!(expect(&[PortActive])[0].port_active);
    memory.add_address(ip("192.0.2.9")).unwrap();
    expect(&[Addresses(vec![ip("192.0.2.1"), ip("192.0.2.9")])]);
    memory.remove_address(ip("192.0.2.1"));
    expect(&[Addresses(vec![ip("192.0.2.9")])]);
    memory.remove_device();
    assert!(expect(&[PortError, Removed]).is_empty());
    memory.restore_device();
    expect(&[Returned, PortActive]);
    expect(&[]);
}

/// A program that does not look is sent no more than its socket holds, learns how things stand in the end, and the service
/// goes on serving meanwhile.
#[test]
fn a_program_that_does_not_look_holds_nobody_up() {
    let wire = MemWire::new();
    let host = Host::private_on(&wire, &[ip("192.0.2.1")]).unwrap();
    let memory = host.memory().unwrap();
    let feed = host.changes_fd().unwrap().expect("this service tells");
    for round in 0..2000_u32 {
        let [_, _, c, d] = round.to_be_bytes();
        memory.add_address([10, 0, c, d].into()).unwrap();
        memory.set_link_up(round % 2 == 1);
        assert_eq!(host.devices().unwrap().len(), 1);
        memory.remove_address([10, 0, c, d].into());
        host.devices().unwrap();
    }
    memory.add_address(ip("192.0.2.9")).unwrap();
    let device = host.devices().unwrap()[0].index;
    let last = DeviceChange {
        device,
        kind: Addresses(vec![ip("192.0.2.1"), ip("192.0.2.9")]),
    };
    let told = until_told(&host, &feed, &last);
    assert!(told.len() < 4000, "{} of 6000 changes", told.len());
    assert_eq!(told.last(), Some(&last));
    let state = told
        .iter()
        .rev()
        .find(|change| matches!(change.kind, PortActive | PortError));
    assert_eq!(state.map(|change| &change.kind), Some(&PortActive));
}

/// Interfaces of a real kernel: a carrier that is lost, addresses, an interface that goes down, is deleted and comes back.
#[test]
fn interfaces_of_the_system_are_told_of() {
    in_own_namespace("interfaces_of_the_system_are_told_of", || {
        run("ip link add v0 type veth peer name v1 && ip link set v1 up && ip link set v0 up");
        run("ip addr add 192.0.2.1/24 dev v0 && sysctl -qw net.ipv6.conf.v0.disable_ipv6=1");
        let host = Host::serve().unwrap();
        let other = Host::join().unwrap();
        let quiet = Host::join().unwrap();
        let feeds = [&host, &other].map(|host| host.changes_fd().unwrap().unwrap());
        let devices = host.devices().unwrap();
        let device = devices
            .iter()
            .find(|device| device.name == "soft_v0")
            .unwrap();
        let index = device.index;
        let expect = |kind: DeviceChangeKind| {
            let wanted = DeviceChange {
                device: index,
                kind,
            };
            for (host, feed) in [&host, &other].into_iter().zip(&feeds) {
                until_told(host, feed, &wanted);
            }
        };
        run("ip link set v1 down");
        expect(PortError);
        run("ip link set v1 up");
        expect(PortActive);
        run("ip addr add 192.0.2.7/24 dev v0");
        expect(Addresses(vec![ip("192.0.2.1"), ip("192.0.2.7")]));
        for _ in 0..2 {
            run("ip link set v0 down");
            expect(PortError);
            run("ip link set v0 up");
            expect(PortActive);
        }
        run("ip link del v0");
        expect(Removed);
        run("ip link add v0 type veth peer name v1 && ip link set v1 up && ip link set v0 up");
        run("ip addr add 192.0.2.1/24 dev v0");
        expect(Returned);
        assert_eq!(quiet.take_changes(), [], "it has not asked");
    });
}

/// A program of version 1.1 asks for nothing new: what it is sent are answers to its requests, which it can read.
#[test]
fn a_program_of_an_earlier_version_is_sent_nothing_of_it() {
    in_own_namespace(
        "a_program_of_an_earlier_version_is_sent_nothing_of_it",
        || {
            run("ip link add v0 type veth peer name v1 && ip link set v1 up && ip link set v0 up");
            run("ip addr add 192.0.2.1/24 dev v0");
            let host = Host::serve().unwrap();
            let feed = host.changes_fd().unwrap().unwrap();
            let socket = raw();
            let hello = Request::Hello {
                pid: 1,
                name: "old".to_owned(),
            };
            let exchange = |request: Request| {
                let mut message = request.encode(7);
                // Version 1.1.
                message[5] = 1;
                fdpass::send(&socket, &message, &[], true).unwrap();
                let mut buffer = vec![0; 1 << 17];
                assert!(is_readable_within(&socket, PATIENCE));
                let received = fdpass::receive(&socket, &mut buffer, true).unwrap();
                Reply::decode(&buffer[..received.len]).unwrap().1
            };
            assert!(matches!(exchange(hello), Reply::Hello(_)));
            run("ip link set v1 down");
            let devices = host.devices().unwrap();
            let device = devices
                .iter()
                .find(|device| device.name == "soft_v0")
                .unwrap()
                .index;
            until_told(
                &host,
                &feed,
                &DeviceChange {
                    device,
                    kind: PortError,
                },
            );
            assert!(!is_readable_within(&socket, 0), "nothing came unasked");
            assert!(matches!(
                exchange(Request::Devices { first: 0 }),
                Reply::Devices(_)
            ));
        },
    );
}

/// The counters of programs are added up by device, those of programs that have ended included.
#[test]
fn counters_of_all_programs_are_in_the_services_answer() {
    in_own_namespace(
        "counters_of_all_programs_are_in_the_services_answer",
        || {
            let host = Host::serve().unwrap();
            let counters = |values: &[(&'static str, u64)]| DeviceStatistics {
                device: 0,
                counters: values.to_vec(),
            };
            let (one, two) = (Host::join().unwrap(), Host::join().unwrap());
            one.publish_statistics(&[counters(&[("sent_pkts", 100)])]);
            assert_eq!(
                host.statistics().unwrap(),
                [],
                "a program without a slot counts nothing"
            );
            let slots = [&one, &two].map(|host| host.take_slot().unwrap());
            assert_eq!(host.statistics().unwrap(), []);
            one.publish_statistics(&[counters(&[("sent_pkts", 5), ("rcvd_pkts", 2)])]);
            two.publish_statistics(&[counters(&[("sent_pkts", 7)])]);
            let values = || {
                let mut all = host.statistics().unwrap();
                assert_eq!((all.len(), all[0].device), (1, 0));
                all.remove(0).counters
            };
            let total = |sent| [("rcvd_pkts".to_owned(), 2), ("sent_pkts".to_owned(), sent)];
            assert_eq!(values(), total(12));
            one.publish_statistics(&[counters(&[("sent_pkts", 9), ("rcvd_pkts", 2)])]);
            assert_eq!(values(), total(16));
            drop((slots, one));
            until("the program is gone", || {
                host.ps().unwrap().host.clients.len() == 2
            });
            assert_eq!(values(), total(16));
            drop(two);
            until("the other is gone", || {
                host.ps().unwrap().host.clients.len() == 1
            });
            assert_eq!(values(), total(16));
        },
    );
}

/// A program that may write small files only has its slot, and is left alone.
#[test]
fn a_limit_of_file_sizes_costs_the_counters_and_nothing_else() {
    const TEST: &str = "a_limit_of_file_sizes_costs_the_counters_and_nothing_else";
    in_own_namespace(TEST, || {
        let counters = [DeviceStatistics {
            device: 0,
            counters: vec![("sent_pkts", 5)],
        }];
        let host = Host::serve().unwrap();
        let early = Host::join().unwrap();
        let _slot = early.take_slot().unwrap();
        early.publish_statistics(&counters);
        for limit in [4096, 0] {
            let now = getrlimit(Resource::Fsize);
            let lower = Rlimit {
                current: Some(limit),
                ..now
            };
            setrlimit(Resource::Fsize, lower).unwrap();
            // One whose file was made before, and one whose file cannot be made.
            early.publish_statistics(&[]);
            let late = Host::join().unwrap();
            let _slot = late.take_slot().unwrap();
            late.publish_statistics(&counters);
            let all = host.statistics().unwrap();
            assert_eq!(all.len(), 1);
            assert_eq!(all[0].counters, [("sent_pkts".to_owned(), 5)]);
        }
    });
}
