//! The service of a network namespace and its programs, on the real port: each test in a namespace of its own.

mod support;

use oarlock_hostd::{Error, Host, Injection};
use oarlock_port::{Batch, fdpass, netlink};
use oarlock_sim::not_run;
use oarlock_ucm::client;
use oarlock_ucm::proto::{RefusalCode, Reply};
use oarlock_wire::{AddressVector, Gid};
use rustix::process::Signal;
use std::io::{BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use support::namespace::{in_namespace_with_users, in_own_namespace};
use support::program::{
    Process, hear, part, play, raw, refused, say, service_program, signal, start_service,
};
use support::*;

#[test]
fn this_process_serves_others_join_and_nobody_serves_beside_it() {
    in_own_namespace(
        "this_process_serves_others_join_and_nobody_serves_beside_it",
        || {
            let none = Host::join().unwrap_err();
            assert!(
                matches!(none, Error::NoService) && none.to_string().contains("oarlock host"),
                "{none}"
            );
            let host = Host::serve().unwrap();
            assert!(
                matches!(Host::serve(), Err(Error::AlreadyRunning { pid }) if pid == std::process::id())
            );
            let other = Host::join().unwrap();
            assert_eq!(other.hello().pid, std::process::id());
            for address in ["127.0.0.1:0", "[::1]:0"] {
                let (active, passive) = (Channel::new(&other), Channel::new(&host));
                let (_, to) = passive.listen(1, address);
                let (a, _) = establish(&active, &passive, to, 0x20_0011);
                active.call(client::disconnect(a));
                passive.expect(DISCONNECTED);
            }
            assert_eq!(host.ps().unwrap().host.clients.len(), 2);
            host.close();
            assert!(matches!(other.devices(), Err(Error::ServiceGone)));
            // The port and the name are free again.
            Host::serve().unwrap().close();
        },
    );
}

#[test]
fn packets_between_slots_never_pass_through_the_service() {
    in_own_namespace(
        "packets_between_slots_never_pass_through_the_service",
        || {
            let host = Host::serve().unwrap();
            let other = Host::join().unwrap();
            let (one, two) = (host.take_slot().unwrap(), other.take_slot().unwrap());
            let gid = Gid::from_ip("127.0.0.1".parse().unwrap());
            let packet = [
                4,
                0,
                0xFF,
                0xFF,
                0,
                two.slot(),
                0,
                1,
                0,
                0,
                0,
                0,
                1,
                2,
                3,
                4,
            ];
            for _ in 0..64 {
                one.send(&AddressVector::new(gid, gid), &packet).unwrap();
            }
            let mut batch = Batch::default();
            let mut received = 0;
            until("64 packets", || {
                received += two.recv(&mut batch).unwrap();
                received == 64
            });
            assert_eq!(
                (
                    counter(&host, "data_packets"),
                    counter(&host, "port_rx_packets")
                ),
                (0, 0)
            );
            // One for a queue pair of the service's own slot is counted, and nothing more.
            one.send(
                &AddressVector::new(gid, gid),
                &[4, 0, 0xFF, 0xFF, 0, 0, 0, 9, 0, 0, 0, 0],
            )
            .unwrap();
            until("the counter", || counter(&host, "data_packets") == 1);
        },
    );
}

#[test]
fn a_killed_program_leaves_nothing_behind_and_its_peer_hears_at_once() {
    const NAME: &str = "a_killed_program_leaves_nothing_behind_and_its_peer_hears_at_once";
    if part().is_some() {
        let host = Host::join().unwrap();
        let _slot = host.take_slot().unwrap();
        let channel = Channel::new(&host);
        let (_, to) = channel.listen(1, "127.0.0.1:7471");
        say(&to.to_string());
        let request = channel.expect(CONNECT_REQUEST);
        channel.accept(request.id, 2, 0x40_0001, b"welcome");
        channel.expect(ESTABLISHED);
        say("established");
        std::thread::sleep(std::time::Duration::from_secs(300));
        return;
    }
    in_own_namespace(NAME, || {
        let host = Host::serve().unwrap();
        for round in 0..3u32 {
            let mut child = Process::spawn(play(NAME, "server").stdout(Stdio::piped()));
            let mut reader = BufReader::new(child.stdout.take().unwrap());
            let to = hear(&mut reader).parse().unwrap();
            let channel = Channel::new(&host);
            let id = channel.resolve(1, to);
            channel.connect(id, 0x20_0001 + round, b"hello");
            channel.expect(CONNECT_RESPONSE);
            channel.call(client::establish(id));
            assert_eq!(hear(&mut reader), "established");
            let state = host.ps().unwrap();
            assert_eq!(
                (state.host.slots.len(), state.ids.len()),
                (1, 3),
                "{state:?}"
            );
            assert!(state.ids.iter().any(|id| id.pid == child.id()));
            child.kill().unwrap();
            assert_eq!(channel.expect(DISCONNECTED).id, id);
            until("nothing of it is left", || {
                let state = host.ps().unwrap();
                state.host.slots.is_empty() && state.ids.len() == 1 && state.host.clients.len() == 1
            });
            // The next round binds the same port.
            child.wait().unwrap();
        }
        assert_eq!(counter(&host, "service_slots_held"), 0);
    });
}

#[test]
fn a_program_of_another_user_is_told_so() {
    const NAME: &str = "a_program_of_another_user_is_told_so";
    if part().is_some() {
        // Even who says nothing is told, and takes no place.
        let silent = raw();
        let mut buffer = [0; 1024];
        let told = fdpass::receive(&silent, &mut buffer, true).unwrap();
        let reply = Reply::decode(&buffer[..told.len]).unwrap().1;
        assert_eq!(refused(&reply), RefusalCode::OTHER_USER);
        assert_eq!(fdpass::receive(&silent, &mut buffer, true).unwrap().len, 0);
        let error = Host::join().unwrap_err();
        assert!(
            matches!(error, Error::OtherUser { .. })
                && error.to_string().contains("belongs to user 1001"),
            "{error}"
        );
        say("refused");
        return;
    }
    if !rustix::process::geteuid().is_root() {
        not_run("root", "only root can play two users");
        return;
    }
    in_namespace_with_users(NAME, || {
        let mut service = start_service(
            Command::new(service_program())
                .arg("host")
                .uid(1001)
                .gid(1001),
        );
        let mut other = Process::spawn(
            play(NAME, "other")
                .uid(1002)
                .gid(1002)
                .stdout(Stdio::piped()),
        );
        assert_eq!(
            hear(&mut BufReader::new(other.stdout.as_mut().unwrap())),
            "refused"
        );
        assert!(other.wait().unwrap().success());
        // Root is served.
        let host = Host::join().unwrap();
        assert_eq!(host.hello().uid, 1001);
        assert_eq!(host.ps().unwrap().host.clients.len(), 1);
        host.stop_service().unwrap();
        assert!(service.wait().unwrap().success());
    });
}

/// Public fault 64: a forked child has nothing of its parent's host, and is told so.
#[test]
fn a_forked_child_cannot_use_its_parents_host_and_keeps_nothing_alive() {
    in_own_namespace(
        "a_forked_child_cannot_use_its_parents_host_and_keeps_nothing_alive",
        || {
            let service = Host::serve().unwrap();
            let mut program =
                Process::spawn(play("a_forked_child_is_played", "parent").stdout(Stdio::piped()));
            let mut reader = BufReader::new(program.stdout.take().unwrap());
            // The two speak in whatever order they come to it.
            let said = [hear(&mut reader), hear(&mut reader)];
            let child = said.iter().find_map(|text| text.parse::<u32>().ok());
            let child = child.unwrap_or_else(|| panic!("{said:?}"));
            assert!(said.iter().any(|text| text == "forked"), "{said:?}");
            assert_eq!(service.ps().unwrap().host.slots.len(), 1);
            program.kill().unwrap();
            program.wait().unwrap();
            // The child lives, but the slot is free and renewed.
            until("nothing is left", || {
                let state = service.ps().unwrap();
                state.host.slots.is_empty() && state.host.clients.len() == 1
            });
            assert_eq!(counter(&service, "service_slots_held"), 0);
            signal(child, Signal::KILL);
        },
    );
}

/// Plays the program of the test above.
#[test]
fn a_forked_child_is_played() {
    if part().is_none() {
        return;
    }
    let host = Host::join().unwrap();
    // Faults that hold packets have a thread, which the child does not have and must not wait for.
    let rules = Injection::Rules("delay:us=1000".parse().unwrap());
    host.inject(rules, None).unwrap();
    let slot = host.take_slot().unwrap();
    // SAFETY: the child only makes calls that are refused before they take a lock that another thread might have held,
    // closes its copy of the slot, writes to its standard output, and sleeps until it is killed.
    match unsafe { libc::fork() } {
        0 => {
            drop(slot);
            let forked = matches!(host.devices(), Err(Error::Forked { .. }));
            say(if forked { "forked" } else { "not refused" });
            std::thread::sleep(std::time::Duration::from_secs(300));
            std::process::exit(0);
        }
        child => {
            say(&child.to_string());
            std::thread::sleep(std::time::Duration::from_secs(300));
        }
    }
}

/// Public fault 60: an interface that comes later is a device.
#[test]
fn the_loopback_interface_must_be_up_and_new_interfaces_become_devices() {
    in_own_namespace(
        "the_loopback_interface_must_be_up_and_new_interfaces_become_devices",
        || {
            let ip = |arguments: &str| {
                Command::new("ip")
                    .args(arguments.split(' '))
                    .output()
                    .is_ok_and(|output| output.status.success())
            };
            if !ip("link set lo down") {
                not_run("programs", "no `ip` command");
                return;
            }
            let error = Host::serve().unwrap_err();
            assert!(
                matches!(error, Error::LoopbackDown)
                    && error.to_string().contains("ip link set lo up"),
                "{error}"
            );
            assert!(ip("link set lo up"));
            let host = Host::serve().unwrap();
            let names = || -> Vec<String> {
                host.devices()
                    .unwrap()
                    .into_iter()
                    .map(|device| device.name)
                    .collect()
            };
            assert_eq!(names(), ["soft_lo"]);
            // Link-local addresses, and devices with them, would come at any time.
            let _ = std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1");
            if !ip("link add veth1 type veth peer name veth2") {
                not_run("netns", "no veth pair");
                return;
            }
            assert!(
                ip("addr add 192.0.2.1/24 dev veth1")
                    && ip("link set veth1 up")
                    && ip("link set veth2 up")
            );
            assert_eq!(names()[0], "soft_veth1");
            assert_eq!(names().last().map(String::as_str), Some("soft_lo"));
            let index = netlink::interfaces()
                .unwrap()
                .iter()
                .find(|i| i.name == "veth1")
                .unwrap()
                .index;
            let device = host.devices().unwrap().remove(0);
            assert_eq!(
                (device.ifindex, device.interface.as_str(), device.path_mtu),
                (index, "veth1", 3)
            );
            assert_eq!(
                device.addresses[0],
                "192.0.2.1".parse::<std::net::IpAddr>().unwrap()
            );
        },
    );
}

/// R-ADDR-1 where IPv6 is switched off: IPv4 works as ever.
#[test]
fn with_ipv6_switched_off_ipv4_works() {
    in_own_namespace("with_ipv6_switched_off_ipv4_works", || {
        if std::fs::write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1").is_err() {
            not_run("ipv6", "IPv6 cannot be switched off here");
            return;
        }
        let host = Host::serve().unwrap();
        let other = Host::join().unwrap();
        let (active, passive) = (Channel::new(&other), Channel::new(&host));
        let (_, to) = passive.listen(1, "127.0.0.1:0");
        establish(&active, &passive, to, 0x20_0011);
        assert!(
            host.devices().unwrap()[0]
                .addresses
                .iter()
                .all(|ip| ip.is_ipv4())
        );
    });
}

/// R-ADDR-1: two services, each in a namespace of its own, joined by a veth pair, over both families. Public fault 62:
/// the devices of a namespace are those of its own interfaces.
#[test]
fn two_services_joined_by_a_veth_pair_connect() {
    const NAME: &str = "two_services_joined_by_a_veth_pair_connect";
    if part().is_some() {
        say("here");
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).unwrap();
        let host = Host::serve().unwrap();
        for address in ["192.0.2.2:7471", "[fd00::2]:7471"] {
            let channel = Channel::new(&host);
            let (_, to) = channel.listen(1, address);
            say(&to.to_string());
            let request = channel.expect(CONNECT_REQUEST);
            channel.accept(request.id, 2, 0x40_0001, b"welcome");
            channel.expect(ESTABLISHED);
            channel.expect(DISCONNECTED);
            channel.call(client::disconnect(request.id));
        }
        // The namespace, and with it the link, lasts until the other side has heard the end of it.
        std::io::stdin().read_line(&mut line).unwrap();
        return;
    }
    in_own_namespace(NAME, || {
        let ip = |arguments: &str| {
            let output = Command::new("ip").args(arguments.split(' ')).output();
            output.is_ok_and(|output| output.status.success())
        };
        let mut command = Command::new("unshare");
        command
            .arg("-n")
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", NAME, "--nocapture", "--test-threads=1"])
            .env("OARLOCK_TEST_PART", "server")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut server = Process::spawn(&mut command);
        let mut reader = BufReader::new(server.stdout.take().unwrap());
        assert_eq!(hear(&mut reader), "here");
        let pid = server.id();
        if !ip(&format!("link add v1 type veth peer name v2 netns {pid}")) {
            not_run("netns", "no veth pair between two namespaces");
            return;
        }
        assert!(
            ip("addr add 192.0.2.1/24 dev v1")
                && ip("addr add fd00::1/64 dev v1 nodad")
                && ip("link set v1 up")
        );
        for arguments in [
            "ip link set lo up",
            "ip addr add 192.0.2.2/24 dev v2",
            "ip addr add fd00::2/64 dev v2 nodad",
            "ip link set v2 up",
        ] {
            let inside = Command::new("nsenter")
                .args(["-t", &pid.to_string(), "-n"])
                .args(arguments.split(' '))
                .output();
            assert!(inside.unwrap().status.success(), "{arguments}");
        }
        writeln!(server.stdin.as_mut().unwrap()).unwrap();
        let host = Host::serve().unwrap();
        for _ in 0..2 {
            let to = hear(&mut reader).parse().unwrap();
            let channel = Channel::new(&host);
            let id = channel.resolve(1, to);
            channel.connect(id, 0x20_0001, b"hello");
            channel.expect(CONNECT_RESPONSE);
            channel.call(client::establish(id));
            channel.call(client::disconnect(id));
            assert_eq!(channel.expect(DISCONNECTED).id, id);
        }
        writeln!(server.stdin.as_mut().unwrap()).unwrap();
        assert!(server.wait().unwrap().success());
        assert_eq!(
            (
                counter(&host, "port_icrc_bad"),
                counter(&host, "data_packets")
            ),
            (0, 0)
        );
        assert!(counter(&host, "qp1_received") >= 4 && counter(&host, "qp1_sent_within_host") == 0);
    });
}
