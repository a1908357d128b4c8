//! How a service begins and ends, on the real port: each test in a namespace of its own.

mod support;

use oarlock_hostd::{Error, Host, Wake};
use rustix::process::Signal;
use std::io::{BufReader, Read};
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};
use support::namespace::in_own_namespace;
use support::program::{Process, hear, part, play, say, service_program, signal, start_service};
use support::*;

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
        until("the service has ended", || match Host::join() {
            Ok(host) => {
                // The service of another starter, which had so little of a processor that it comes only now: it would stay
                // as long as somebody joins it.
                if host.hello().pid != pid {
                    host.stop_service().unwrap();
                }
                false
            }
            Err(error) => matches!(error, Error::NoService),
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
            assert!(is_readable_within(&gone, PATIENCE) && host.is_gone());
            assert!(matches!(host.ps(), Err(Error::ServiceGone)));
            assert!(is_readable_within(&channel.channel, PATIENCE));
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
