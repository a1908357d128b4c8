//! What the service says when there is no room left.

mod support;

use oarlock_hostd::service::ServiceConfig;
use oarlock_hostd::{Error, Host};
use oarlock_port::fdpass;
use oarlock_sim::not_run;
use oarlock_ucm::proto::RefusalCode;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, Stdio};
use support::namespace::in_own_namespace;
use support::program::{Process, raw, service_program, start_service};
use support::*;

/// A lock for tests whose service may have few descriptors: those on their way are counted for all programs of a user, so
/// such tests wait for each other, in other processes too.
fn alone() -> File {
    let lock = File::open(std::env::temp_dir()).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
    lock
}

fn refusal(result: Result<Host, Error>) -> (RefusalCode, String) {
    match result {
        Err(Error::Refused(refusal)) => (refusal.code, refusal.sentence),
        other => panic!("{other:?}"),
    }
}

#[test]
fn one_program_too_many_is_told_so_and_the_others_stay() {
    in_own_namespace(
        "one_program_too_many_is_told_so_and_the_others_stay",
        || {
            let mut config = ServiceConfig::default();
            config.max_clients = 3;
            let host = Host::serve_with(config).unwrap();
            let second = Host::join().unwrap();
            let third = raw();
            until("three are connected", || {
                counter(&host, "service_clients") == 3
            });
            // Whichever comes first, our hello or the service's closing.
            for _ in 0..50 {
                let (code, sentence) = refusal(Host::join());
                assert_eq!(code, RefusalCode::LIMIT);
                assert!(sentence.contains("3 programs are connected"), "{sentence}");
            }
            assert_eq!(counter(&host, "service_clients_refused"), 50);
            second.devices().unwrap();
            drop(third);
            until("there is room again", || Host::join().is_ok());
        },
    );
}

#[test]
fn a_service_without_descriptors_says_so_and_goes_on() {
    in_own_namespace("a_service_without_descriptors_says_so_and_goes_on", || {
        let _alone = alone();
        let mut shell = Command::new("sh");
        shell.args(["-c", "ulimit -n 512 && exec \"$0\" host"]);
        let mut service = start_service(shell.arg(service_program()));
        let host = Host::join().unwrap();
        // A program takes several descriptors, one after the other, and any of them may be the one too many: one connection
        // at a time makes each of them so. What a program that got in leaves behind is free again a moment later.
        let mut held: Vec<OwnedFd> = Vec::new();
        let mut tries = 0;
        while tries < 20 {
            assert!(held.len() < 512, "more programs than descriptors");
            held.push(raw());
            let told = Host::join();
            if told.is_ok() {
                continue;
            }
            tries += 1;
            let (code, sentence) = refusal(told);
            assert_eq!(code, RefusalCode::SYSTEM);
            assert!(
                sentence.contains("no descriptor left") && sentence.contains("ulimit -n"),
                "{sentence}"
            );
        }
        // Who is connected is served; whoever wants a descriptor is told why there is none.
        host.devices().unwrap();
        let sentence = host.open_channel().unwrap_err().to_string();
        assert!(sentence.contains("ulimit -n"), "{sentence}");
        drop(held);
        until("there is room again", || {
            Host::join().is_ok_and(|again| again.open_channel().is_ok())
        });
        host.stop_service().unwrap();
        assert!(service.wait().unwrap().success());
    });
}

/// Containers of one pod share the network namespace and have pid namespaces of their own.
#[test]
fn programs_of_other_pid_namespaces_are_served() {
    const NAME: &str = "programs_of_other_pid_namespaces_are_served";
    if std::env::var_os("OARLOCK_TEST_PART").is_some() {
        // Process 1 here; the service cannot be seen.
        let host = Host::join().unwrap();
        let _slot = host.take_slot().unwrap();
        let sentence = Host::serve().unwrap_err().to_string();
        assert!(
            sentence.contains("already runs") && sentence.contains("another pid namespace"),
            "{sentence}"
        );
        println!("\njoined");
        std::io::stdin().read_line(&mut String::new()).unwrap();
        return;
    }
    in_own_namespace(NAME, || {
        let inside = |program: &std::path::Path| {
            let mut command = Command::new("unshare");
            command.args(["-pf", "--kill-child"]).arg(program);
            command
        };
        if !inside("true".as_ref()).status().is_ok_and(|s| s.success()) {
            not_run("netns", "no pid namespaces");
            return;
        }
        // A program that the service sees, and whose own view does not have the service.
        let host = Host::serve().unwrap();
        let mut program = inside(&std::env::current_exe().unwrap());
        program
            .args(["--exact", NAME, "--nocapture", "--test-threads=1"])
            .env("OARLOCK_TEST_PART", "inside")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut program = Process::spawn(&mut program);
        let lines = BufReader::new(program.stdout.take().unwrap()).lines();
        let joined = lines.map_while(Result::ok).any(|line| line == "joined");
        assert!(joined);
        let state = host.ps().unwrap().host;
        assert_eq!(state.slots.len(), 1);
        let foreign = state.clients.iter().find(|client| client.own_pid == 1);
        assert!(foreign.is_some_and(|client| client.pid > 1), "{state:?}");
        program.kill().unwrap();
        until("the slot is free", || {
            host.ps().unwrap().host.slots.is_empty()
        });
        drop(host);
        until("the service has ended", || {
            matches!(Host::join(), Err(Error::NoService))
        });
        // The other way round: a service that cannot see the program.
        let mut service = start_service(inside(&service_program()).arg("host"));
        let host = Host::join().unwrap();
        assert_eq!(host.hello().pid, 1);
        let us = host.ps().unwrap().host.clients.remove(0);
        assert_eq!((us.pid, us.own_pid), (0, std::process::id()));
        let slot = host.take_slot().unwrap();
        drop((slot, host));
        let host = Host::join().unwrap();
        until("the slot is free", || {
            host.ps().unwrap().host.slots.is_empty()
        });
        host.stop_service().unwrap();
        assert!(service.wait().unwrap().success());
    });
}

/// The answer to the hello brings a descriptor, for which there may be no room.
#[test]
fn a_program_without_descriptors_is_told_so() {
    const NAME: &str = "a_program_without_descriptors_is_told_so";
    if std::env::var_os("OARLOCK_TEST_PART").is_some() {
        // The socket takes the last descriptor.
        let mut files = Vec::new();
        while let Ok(file) = File::open("/dev/null") {
            files.push(file);
        }
        files.pop();
        let error = Host::join().unwrap_err();
        drop(files);
        assert!(error.to_string().contains("ulimit -n"), "{error}");
        return;
    }
    in_own_namespace(NAME, || {
        let _host = Host::serve().unwrap();
        let status = Command::new("sh")
            .args(["-c", "ulimit -n 64 && exec \"$0\" \"$@\""])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", NAME, "--test-threads=1"])
            .env("OARLOCK_TEST_PART", "poor")
            .status()
            .unwrap();
        assert!(status.success());
    });
}

/// The system bounds the descriptors that lie unread in the sockets of a user. A service that meets the bound tells who
/// asked for a descriptor, and takes back what that one did not get; before, it dropped the program.
#[test]
fn descriptors_that_nobody_reads_cost_no_program_its_connection() {
    in_own_namespace(
        "descriptors_that_nobody_reads_cost_no_program_its_connection",
        || {
            let _alone = alone();
            let mut shell = Command::new("sh");
            shell.args(["-c", "ulimit -n 512 && exec \"$0\" host"]);
            let mut service = start_service(shell.arg(service_program()));
            let host = Host::join().unwrap();
            let null = File::open("/dev/null").unwrap();
            let mut unread = Vec::new();
            while unread.len() < 100 {
                let (theirs, ours) = std::os::unix::net::UnixStream::pair().unwrap();
                fdpass::send(&ours, b"8", &[null.as_fd(); 8], true).unwrap();
                unread.push((theirs, ours));
            }
            for refused in [host.open_channel().err(), host.take_slot().err()] {
                let Some(Error::Refused(refusal)) = refused else {
                    panic!("{refused:?}");
                };
                assert_eq!(refusal.code, RefusalCode::SYSTEM);
                assert!(refusal.sentence.contains("on their way"), "{refusal}");
            }
            let (code, _) = refusal(Host::join());
            assert_eq!(code, RefusalCode::SYSTEM);
            assert!(host.ps().unwrap().host.slots.is_empty(), "taken back");
            assert_eq!(counter(&host, "service_clients_failed"), 0);
            drop(unread);
            until("descriptors can be passed again", || {
                host.open_channel().is_ok()
            });
            drop(host.take_slot().unwrap());
            host.stop_service().unwrap();
            assert!(service.wait().unwrap().success());
        },
    );
}
