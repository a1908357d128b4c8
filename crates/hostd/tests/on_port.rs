//! The service of a network namespace, on the real port: each test in a namespace of its own.

mod support;

use oarlock_hostd::{Error, Host, Wake};
use oarlock_port::{Batch, fdpass, netlink};
use oarlock_sim::not_run;
use oarlock_ucm::client;
use oarlock_ucm::proto::{RefusalCode, Reply, Request};
use oarlock_wire::{AddressVector, Gid};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use support::namespace::{in_namespace_with_users, in_own_namespace};
use support::program::{Process, raw, service_program, start_service};
use support::*;

fn signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(), signal).unwrap();
}

/// This test again, in a process of its own, as another part of the play.
fn play(test: &str, part: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env("OARLOCK_TEST_PART", part);
    command
}

fn part() -> Option<String> {
    std::env::var("OARLOCK_TEST_PART").ok()
}

/// What a part prints for another.
fn say(text: &str) {
    println!("\nsays {text}");
}

fn hear(reader: &mut impl BufRead) -> String {
    let mut line = String::new();
    let mut heard = String::new();
    for _ in 0..100 {
        line.clear();
        let n = reader.read_line(&mut line).unwrap();
        assert!(n > 0, "the other part has ended: {heard}");
        heard += &line;
        if let Some(text) = line.strip_prefix("says ") {
            return text.trim().to_owned();
        }
    }
    panic!("the other part talks nonsense");
}

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
fn of_several_starters_at_once_one_starts_the_service_and_all_join_it() {
    const NAME: &str = "of_several_starters_at_once_one_starts_the_service_and_all_join_it";
    if part().is_some() {
        let host = Host::open().unwrap();
        say(&host.hello().pid.to_string());
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).unwrap();
        return;
    }
    in_own_namespace(NAME, || {
        let mut starters: Vec<Process> = (0..6)
            .map(|_| {
                Process::spawn(
                    play(NAME, "starter")
                        .env("OARLOCK_HOSTD", service_program())
                        .stdin(Stdio::piped())
                        .stdout(Stdio::piped()),
                )
            })
            .collect();
        let mut pids: Vec<String> = starters
            .iter_mut()
            .map(|child| hear(&mut BufReader::new(child.stdout.as_mut().unwrap())))
            .collect();
        assert_eq!(Host::join().unwrap().hello().pid.to_string(), pids[0]);
        for child in &mut starters {
            drop(child.stdin.take());
            assert!(child.wait().unwrap().success());
        }
        let pid: u32 = pids[0].parse().unwrap();
        pids.dedup();
        assert_eq!(pids.len(), 1);
        // It would leave by itself after its grace period; the namespace does not wait for that.
        signal(pid, Signal::TERM);
        until("the service has ended", || {
            matches!(Host::join(), Err(Error::NoService))
        });
    });
}

#[test]
fn a_service_that_cannot_start_says_why_through_its_starter() {
    in_own_namespace(
        "a_service_that_cannot_start_says_why_through_its_starter",
        || {
            let holder = std::net::UdpSocket::bind("0.0.0.0:4791").unwrap();
            // SAFETY: this process runs this test alone, in one thread that reads the environment.
            unsafe { std::env::set_var("OARLOCK_HOSTD", service_program()) };
            let error = Host::open().unwrap_err();
            let text = error.to_string();
            assert!(
                matches!(error, Error::StartFailed { .. })
                    && text.contains("UDP port 4791 is taken by process"),
                "{text}"
            );
            assert!(!text.contains("error:"), "{text}");
            drop(holder);
            Host::open().unwrap().stop_service().unwrap();
        },
    );
}

/// A service that a program starts has no terminal: what it logs is in a file that the program chose for it.
#[test]
fn a_service_that_a_program_starts_logs_to_a_file() {
    in_own_namespace("a_service_that_a_program_starts_logs_to_a_file", || {
        let folder = tempfile::tempdir().unwrap();
        // SAFETY: this process runs this test alone, in one thread that reads the environment.
        unsafe {
            std::env::remove_var("XDG_RUNTIME_DIR");
            std::env::remove_var("OARLOCK_LOG_FILE");
            std::env::set_var("TMPDIR", folder.path());
        }
        // The program is not found under its name, but told.
        let host = Host::open_starting(&service_program()).unwrap();
        let user = rustix::process::geteuid().as_raw();
        let namespace = std::fs::metadata("/proc/self/ns/net").unwrap().ino();
        let log = format!("oarlock-{user}/host-{namespace}.log");
        let said = || std::fs::read_to_string(folder.path().join(&log)).unwrap_or_default();
        assert!(said().contains("the host service is ready"), "{}", said());
        host.stop_service().unwrap();
        until("the service has ended", || {
            matches!(Host::join(), Err(Error::NoService))
        });
        until("it has said so", || {
            said().contains("the host service has ended")
        });
        let other = folder.path().join("other");
        // SAFETY: as above.
        unsafe { std::env::set_var("OARLOCK_LOG_FILE", &other) };
        Host::open_starting(&service_program())
            .unwrap()
            .stop_service()
            .unwrap();
        assert!(std::fs::read_to_string(other).unwrap().contains("is ready"));
    });
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
        std::thread::sleep(std::time::Duration::from_secs(60));
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
fn a_killed_service_is_noticed_and_a_new_one_starts_at_once() {
    in_own_namespace(
        "a_killed_service_is_noticed_and_a_new_one_starts_at_once",
        || {
            // SAFETY: this process runs this test alone, in one thread that reads the environment.
            unsafe { std::env::set_var("OARLOCK_HOSTD", service_program()) };
            let host = Host::open().unwrap();
            let first = host.hello().pid;
            let (channel, slot, gone) = (
                Channel::new(&host),
                host.take_slot().unwrap(),
                host.gone_fd().unwrap(),
            );
            signal(first, Signal::KILL);
            assert!(is_readable_within(&gone, 20) && host.is_gone());
            assert!(matches!(host.ps(), Err(Error::ServiceGone)));
            assert!(is_readable_within(&channel.channel, 20));
            assert_eq!(channel.channel.take_wake(1).unwrap(), Wake::Gone);
            // As long as we hold the slot's socket the port is not clear.
            let opener = std::thread::spawn(Host::open);
            std::thread::sleep(std::time::Duration::from_millis(100));
            drop(slot);
            let again = opener.join().unwrap().unwrap();
            assert_ne!(again.hello().pid, first);
            let (active, passive) = (Channel::new(&again), Channel::new(&again));
            let (_, to) = passive.listen(1, "127.0.0.1:0");
            establish(&active, &passive, to, 0x20_0001);
            again.stop_service().unwrap();
        },
    );
}

#[test]
fn sigterm_disconnects_everybody_and_ends_the_service_cleanly() {
    in_own_namespace(
        "sigterm_disconnects_everybody_and_ends_the_service_cleanly",
        || {
            let mut service = start_service(Command::new(service_program()).arg("host"));
            let mut second = Process::spawn(
                Command::new(service_program())
                    .arg("host")
                    .stderr(Stdio::piped()),
            );
            let mut text = String::new();
            second
                .stderr
                .take()
                .unwrap()
                .read_to_string(&mut text)
                .unwrap();
            assert!(!second.wait().unwrap().success());
            assert_eq!(text.lines().count(), 1, "{text}");
            assert!(
                text.contains("already runs") && text.contains(&service.id().to_string()),
                "{text}"
            );
            let host = Host::join().unwrap();
            signal(service.id(), Signal::TERM);
            assert!(service.wait().unwrap().success());
            assert!(host.is_gone());
        },
    );
}

#[test]
fn the_service_leaves_after_its_grace_period_without_programs() {
    in_own_namespace(
        "the_service_leaves_after_its_grace_period_without_programs",
        || {
            // Whoever comes too late, because the machine is busy, finds that it has left, and tries again.
            let joined = (0..20).find_map(|_| {
                let mut service =
                    start_service(Command::new(service_program()).args(["host", "--grace", "1"]));
                match Host::join() {
                    Ok(host) => Some((service, host)),
                    Err(Error::NoService | Error::ServiceGone) => {
                        assert!(service.wait().unwrap().success());
                        None
                    }
                    Err(error) => panic!("{error}"),
                }
            });
            let (mut service, host) = joined.unwrap();
            std::thread::sleep(std::time::Duration::from_millis(1500));
            assert!(service.try_wait().unwrap().is_none(), "it has a program");
            host.devices().unwrap();
            drop(host);
            assert!(service.wait().unwrap().success());
        },
    );
}

fn exchange(socket: &OwnedFd, message: &[u8], fds: &[&OwnedFd]) -> Reply {
    let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
    fdpass::send(socket, message, &fds, true).unwrap();
    let mut buffer = vec![0; 1 << 18];
    assert!(
        is_readable_within(socket, 20),
        "no answer to {} bytes",
        message.len()
    );
    let received = fdpass::receive(socket, &mut buffer, true).unwrap();
    assert!(received.len > 0, "the connection was closed");
    Reply::decode(&buffer[..received.len]).unwrap().1
}

fn refused(reply: &Reply) -> RefusalCode {
    let Reply::Refused(refusal) = reply else {
        panic!("{reply:?}")
    };
    assert!(!refusal.sentence.is_empty());
    refusal.code
}

#[test]
fn bad_messages_are_refused_and_never_end_the_service_or_the_connection() {
    in_own_namespace(
        "bad_messages_are_refused_and_never_end_the_service_or_the_connection",
        || {
            let host = Host::serve().unwrap();
            let socket = raw();
            let hello = Request::Hello {
                pid: 1,
                name: "test".to_owned(),
            }
            .encode(7);
            assert_eq!(
                refused(&exchange(&socket, &Request::OpenChannel.encode(1), &[])),
                RefusalCode::HELLO_FIRST
            );
            for len in 1..hello.len() {
                assert_eq!(
                    refused(&exchange(&socket, &hello[..len], &[])),
                    RefusalCode::MALFORMED,
                    "cut at {len}"
                );
            }
            assert_eq!(
                refused(&exchange(&socket, &vec![0x5A; 1 << 17], &[])),
                RefusalCode::MALFORMED
            );
            assert_eq!(
                refused(&exchange(&socket, &vec![0x5A; (1 << 17) + 1], &[])),
                RefusalCode::MALFORMED
            );
            let mut other_version = hello.clone();
            other_version[4] += 1;
            assert_eq!(
                refused(&exchange(&socket, &other_version, &[])),
                RefusalCode::VERSION
            );
            let mut unknown = Request::OpenChannel.encode(1);
            unknown[6..8].copy_from_slice(&0x7777u16.to_le_bytes());
            assert_eq!(
                refused(&exchange(&socket, &unknown, &[])),
                RefusalCode::UNKNOWN_REQUEST
            );
            let null = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
            assert_eq!(
                refused(&exchange(&socket, &hello, &[&null])),
                RefusalCode::DESCRIPTOR
            );
            assert!(matches!(exchange(&socket, &hello, &[]), Reply::Hello(_)));
            let ours = Channel::new(&host);
            let close = Request::CloseChannel {
                token: ours.channel.token(),
            }
            .encode(3);
            assert_eq!(
                refused(&exchange(&socket, &close, &[])),
                RefusalCode::UNKNOWN_CHANNEL
            );
            assert_eq!(
                refused(&exchange(&socket, &Request::Trace.encode(4), &[])),
                RefusalCode::DESCRIPTOR
            );
            assert_eq!(
                refused(&exchange(&socket, &Request::Trace.encode(4), &[&null])),
                RefusalCode::DESCRIPTOR
            );
            assert_eq!(
                refused(&exchange(
                    &socket,
                    &Request::ReturnSlot { slot: 9 }.encode(5),
                    &[]
                )),
                RefusalCode::LIMIT
            );
            // Every bit of a message flipped, one at a time.
            let good = Request::Devices { first: 0 }.encode(9);
            for bit in 0..good.len() * 8 {
                let mut message = good.clone();
                message[bit / 8] ^= 1 << (bit % 8);
                // A flip of the sequence number to 0, which wants no answer, cannot happen: 9 has two bits.
                exchange(&socket, &message, &[]);
            }
            assert!(matches!(exchange(&socket, &good, &[]), Reply::Devices(_)));
            drop(socket);
            ours.create(1);
            assert!(counter(&host, "service_requests_refused") > 40);
        },
    );
}

#[test]
fn a_program_that_does_not_read_its_answers_blocks_nobody() {
    in_own_namespace(
        "a_program_that_does_not_read_its_answers_blocks_nobody",
        || {
            let host = Host::serve().unwrap();
            let socket = raw();
            let hello = Request::Hello {
                pid: 1,
                name: "deaf".to_owned(),
            }
            .encode(7);
            assert!(matches!(exchange(&socket, &hello, &[]), Reply::Hello(_)));
            let devices = Request::Devices { first: 0 }.encode(9);
            let mut sent = 0;
            // Until its own requests find no room: the service has stopped reading them.
            for _ in 0..100_000 {
                match fdpass::send(&socket, &devices, &[], false) {
                    Ok(_) => sent += 1,
                    Err(_) => {
                        host.devices().unwrap();
                        if fdpass::send(&socket, &devices, &[], false).is_err() {
                            break;
                        }
                        sent += 1;
                    }
                }
            }
            assert!(sent > 10 && sent < 100_000, "{sent}");
            host.ps().unwrap();
            // Once it reads again, every request is answered.
            let mut buffer = vec![0; 1 << 17];
            for _ in 0..sent {
                assert!(is_readable_within(&socket, 20));
                assert!(fdpass::receive(&socket, &mut buffer, true).unwrap().len > 0);
            }
        },
    );
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
    let _slot = host.take_slot().unwrap();
    // SAFETY: the child only makes calls that are refused before they take a lock that another thread might have held,
    // writes to its standard output, and sleeps until it is killed.
    match unsafe { libc::fork() } {
        0 => {
            let forked = matches!(host.devices(), Err(Error::Forked { .. }));
            say(if forked { "forked" } else { "not refused" });
            std::thread::sleep(std::time::Duration::from_secs(60));
            std::process::exit(0);
        }
        child => {
            say(&child.to_string());
            std::thread::sleep(std::time::Duration::from_secs(60));
        }
    }
}

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

/// R-ADDR-1: two services, each in a namespace of its own, joined by a veth pair, over both families.
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
        // The answer to the last request to disconnect has left when the service is asked for something else.
        host.ps().unwrap();
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
