//! Both sides in one process, on a wire in memory.

use super::*;
use oarlock_hostd::Host;
use oarlock_hostd::service::ServiceConfig;
use oarlock_port::{Faults, MemWire};
use oarlock_rdmacm::{ConnParam, ConnectionOptions, Connector, Error, Listener};
use oarlock_wire::IbTimeout;
use std::net::{IpAddr, Ipv4Addr};

const SERVER: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2));
const ADDRESS: SocketAddr = SocketAddr::new(SERVER, 7174);
/// A test that hangs ends as a failure.
const PATIENCE: Duration = Duration::from_secs(60);

struct Hosts {
    server: Host,
    client: Host,
}

fn hosts(faults: Faults) -> Hosts {
    let wire = MemWire::with_faults(faults);
    let mut config = ServiceConfig::default();
    config.cma.cm_response_timeout = IbTimeout::truncate(13);
    // A peer whose program is busy asks for patience; if its next message is lost, it is that long until the one before is
    // repeated.
    config.cma.mra_service_timeout = IbTimeout::truncate(17);
    config.cma.packet_life_time = IbTimeout::truncate(10);
    let host = |address| Host::private_with(&wire, &[address], config.clone()).expect("a host");
    Hosts {
        server: host(SERVER),
        client: host(CLIENT),
    }
}

fn server_plan(persistent: bool) -> server::Plan {
    server::Plan {
        address: ADDRESS,
        persistent,
        verbose: false,
        validate: true,
        until: Some(Instant::now() + PATIENCE),
    }
}

fn client_plan(count: u32, size: u32) -> client::Plan {
    client::Plan {
        address: ADDRESS,
        source: None,
        count: Some(count),
        size,
        verbose: false,
        validate: true,
        interval: Duration::ZERO,
        connect_timeout: PATIENCE,
        timeout: PATIENCE,
        until: None,
    }
}

const QUIET: fn() -> Lines = || Lines::new(true);

fn options(param: ConnParam) -> ConnectionOptions {
    ConnectionOptions::new().param(param).deadline(PATIENCE)
}

/// Runs a server beside `clients`. One that is persistent is asked to end when they are done; the others end by themselves.
fn beside<T: Send>(
    hosts: &Hosts,
    plan: &server::Plan,
    clients: impl FnOnce() -> T + Send,
) -> (Result<(), Failure>, server::Served, T) {
    let (ending, ask) = Ending::by_hand();
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| {
            let mut served = server::Served::default();
            let result = server::run(&hosts.server, plan, &ending, QUIET(), &mut served);
            (result, served)
        });
        while hosts.server.ps().expect("it answers").host.ports.is_empty() {
            assert!(!serving.is_finished(), "the server listens");
            std::thread::yield_now();
        }
        let done = clients();
        if plan.persistent {
            ask();
        }
        let (result, served) = serving.join().expect("no panic");
        (result, served, done)
    })
}

fn ping(hosts: &Hosts, plan: &client::Plan) -> (Result<(), Failure>, client::Tally) {
    let (ending, _ask) = Ending::by_hand();
    let mut tally = client::Tally::new(plan);
    let result = client::run(&hosts.client, plan, &ending, QUIET(), &mut tally);
    (result, tally)
}

#[test]
fn every_message_comes_back_as_it_was_sent_at_every_size() {
    for size in [0, 1, 15, 64, 5000, protocol::MAX_SIZE] {
        let hosts = hosts(Faults::default());
        let (served, counts, (pinged, tally)) = beside(&hosts, &server_plan(false), || {
            ping(&hosts, &client_plan(5, size))
        });
        served.unwrap_or_else(|failure| panic!("server, {size} bytes: {failure}"));
        pinged.unwrap_or_else(|failure| panic!("client, {size} bytes: {failure}"));
        assert_eq!(
            (tally.sent, tally.received, tally.lost, tally.mismatches),
            (5, 5, 0, 0),
            "{size}"
        );
        assert_eq!(
            (counts.clients, counts.answered, counts.mismatches),
            (1, 5, 0),
            "{size}"
        );
    }
}

#[test]
fn a_lossy_wire_costs_time_and_no_message() {
    for seed in 0..4 {
        let faults = Faults {
            seed,
            loss: 0.1,
            ..Faults::default()
        };
        let hosts = hosts(faults);
        let (served, counts, (pinged, tally)) = beside(&hosts, &server_plan(false), || {
            ping(&hosts, &client_plan(20, 3000))
        });
        served.unwrap_or_else(|failure| panic!("seed {seed}, server: {failure}"));
        pinged.unwrap_or_else(|failure| panic!("seed {seed}, client: {failure}"));
        assert_eq!((tally.received, tally.mismatches), (20, 0), "seed {seed}");
        assert_eq!(counts.answered, 20, "seed {seed}");
    }
}

/// -P: several clients at once, and the server goes on until it is asked to end.
#[test]
fn a_persistent_server_serves_several_clients_at_once() {
    let hosts = hosts(Faults::default());
    let (served, counts, tallies) = beside(&hosts, &server_plan(true), || {
        std::thread::scope(|scope| {
            let clients: Vec<_> = (0..4)
                .map(|at| {
                    let hosts = &hosts;
                    scope.spawn(move || ping(hosts, &client_plan(10 + at, 64 + at)))
                })
                .collect();
            clients
                .into_iter()
                .map(|client| client.join().expect("no panic"))
                .collect::<Vec<_>>()
        })
    });
    served.expect("the server");
    for (result, tally) in tallies {
        result.expect("a client");
        assert_eq!(tally.sent, tally.received);
    }
    assert_eq!((counts.clients, counts.answered), (4, 10 + 11 + 12 + 13));
}

/// A request of rping, of another program or of another version is refused, and both sides say why.
#[test]
fn a_foreign_client_is_refused_and_told_so() {
    for (private_data, sentence) in [
        (Vec::new(), "is no `oarlock ping -c`"),
        (b"oarl\x01\0\0\0".to_vec(), "is no `oarlock ping -c`"),
        (
            protocol::tests::hello_of_version(2).to_vec(),
            "speaks version 2 of the ping protocol, this program version 1",
        ),
    ] {
        let hosts = hosts(Faults::default());
        let param = ConnParam::default().private_data(private_data.clone());
        let (served, counts, refused) = beside(&hosts, &server_plan(false), || {
            Connector::new(&hosts.client)
                .options(options(param))
                .connect(ADDRESS)
                .map(drop)
        });
        let said = served.expect_err("nobody was served").to_string();
        assert!(said.contains(sentence), "{said}");
        assert_eq!((counts.clients, counts.refused), (0, 1));
        match refused.expect_err("it was refused") {
            Error::Rejected {
                reason,
                private_data,
                ..
            } => {
                assert_eq!(reason, oarlock_rdmacm::RejReason::CONSUMER_DEFINED);
                let sentence = protocol::Refusal::sentence_in(private_data.as_ref());
                assert!(sentence.is_some(), "the refusal says who refuses");
            }
            other => panic!("{other}"),
        }
    }
}

/// A server that is none of ours, or of another version, is left at once, with a sentence.
#[test]
fn a_foreign_server_is_not_spoken_to() {
    for (private_data, sentence) in [
        (Vec::new(), "its reply carries no marker"),
        (vec![7; 60], "its reply carries no marker"),
        (
            protocol::tests::hello_of_version(9).to_vec(),
            "speaks version 9 of the ping protocol, this program version 1",
        ),
    ] {
        let hosts = hosts(Faults::default());
        let listener = Listener::bind(&hosts.server, ADDRESS)
            .expect("it listens")
            .options(options(ConnParam::default().private_data(private_data)));
        let passive = std::thread::spawn(move || listener.accept()?.until_disconnected());
        let (result, tally) = ping(&hosts, &client_plan(3, 64));
        let said = result.expect_err("no ping").to_string();
        assert!(said.contains(sentence), "{said}");
        assert_eq!(tally.sent, 0);
        passive
            .join()
            .expect("no panic")
            .expect("the connection ends");
    }
}

/// Both sides tell a size that the server has no room for; and a server that nobody runs is a sentence, too.
#[test]
fn what_cannot_be_is_told_by_both_sides() {
    let hosts = hosts(Faults::default());
    let (served, _, (result, _)) = beside(&hosts, &server_plan(false), || {
        ping(&hosts, &client_plan(1, protocol::MAX_SIZE + 1))
    });
    let said = served.expect_err("refused").to_string();
    assert!(said.contains("at most 1048576 are possible"), "{said}");
    let said = result.expect_err("refused").to_string();
    assert!(said.contains("at most 1048576 bytes"), "{said}");

    let (result, tally) = ping(&hosts, &client_plan(1, 1));
    let said = result.expect_err("nobody listens").to_string();
    assert!(said.contains("invalid service ID"), "{said}");
    assert!(tally.lines().is_empty());
}

/// A server that stops answering costs the messages, not the client: they are counted as lost.
#[test]
fn a_reply_that_does_not_come_is_a_lost_message() {
    let hosts = hosts(Faults::default());
    let hello = protocol::Hello {
        way: protocol::Way::SEND,
        size: 64,
    };
    let listener = Listener::bind(&hosts.server, ADDRESS)
        .expect("it listens")
        .options(
            options(ConnParam::default().private_data(hello.emit())).prepare(|queue_pair, pd| {
                for number in 0..8 {
                    queue_pair.post_recv(number, oarlock_verbs::Buffer::new(pd, 64)?)?;
                }
                Ok(())
            }),
        );
    let passive = std::thread::spawn(move || listener.accept()?.until_disconnected());
    let plan = client::Plan {
        timeout: Duration::from_millis(20),
        ..client_plan(3, 64)
    };
    let (result, tally) = ping(&hosts, &plan);
    let said = result.expect_err("three were lost").to_string();
    assert!(said.contains("of 3 messages 3 were lost"), "{said}");
    assert_eq!((tally.sent, tally.received, tally.lost), (3, 0, 3));
    passive
        .join()
        .expect("no panic")
        .expect("the client disconnects");
}

#[test]
fn seconds_have_a_range() {
    assert_eq!(seconds("0.25"), Ok(Duration::from_millis(250)));
    for text in ["0", "-1", "nan", "inf", "", "2e6"] {
        assert!(seconds(text).is_err(), "{text}");
    }
}
