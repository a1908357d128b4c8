//! What the service says when there is no room left.

mod support;

use oarlock_hostd::service::ServiceConfig;
use oarlock_hostd::{Error, Host};
use oarlock_ucm::proto::RefusalCode;
use std::os::fd::OwnedFd;
use std::process::Command;
use support::namespace::in_own_namespace;
use support::program::{raw, service_program, start_service};
use support::*;

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
        let mut shell = Command::new("sh");
        shell.args(["-c", "ulimit -n 512 && exec \"$0\" host"]);
        let mut service = start_service(shell.arg(service_program()));
        let host = Host::join().unwrap();
        let mut held: Vec<OwnedFd> = Vec::new();
        let mut told = None;
        until("the service has no descriptor left", || {
            held.extend((0..8).map(|_| raw()));
            told = Host::join().err();
            told.is_some()
        });
        for _ in 0..20 {
            held.push(raw());
            let (code, sentence) = refusal(Host::join());
            assert_eq!(code, RefusalCode::SYSTEM);
            assert!(
                sentence.contains("descriptor") && sentence.contains("ulimit -n"),
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
