//! Both sides in one process, on a wire in memory.

use super::*;
use crate::listening::until_listening;
use oarlock_hostd::Host;
use oarlock_hostd::service::ServiceConfig;
use oarlock_port::{Faults, MemWire};
use oarlock_rdmacm::{Connection, ConnectionOptions, Connector, Listener};
use oarlock_verbs::{Buffer, SendRequest};
use oarlock_wire::IbTimeout;
use std::net::{IpAddr, Ipv4Addr};

const SERVER: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2));
const ADDRESS: SocketAddr = SocketAddr::new(SERVER, 7174);
/// A test that hangs ends as a failure.
const PATIENCE: Duration = Duration::from_secs(300);

struct Hosts {
    server: Host,
    client: Host,
}

fn hosts(faults: Faults) -> Hosts {
    let wire = MemWire::with_faults(faults);
    let mut config = ServiceConfig::default();
    // With the retries, 4 s: longer than a busy machine keeps a program waiting.
    config.cma.cm_response_timeout = IbTimeout::truncate(16);
    // A peer whose program is busy asks for patience; if its next message is lost, it is that long until the one before is
    // repeated.
    config.cma.mra_service_timeout = IbTimeout::truncate(17);
    // Twice that is what a queue pair waits for an acknowledgement, eight times.
    config.cma.packet_life_time = IbTimeout::truncate(13);
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

/// With room for one message of another program.
fn options() -> ConnectionOptions {
    ConnectionOptions::new()
        .deadline(PATIENCE)
        .prepare(|queue_pair, pd| Ok(queue_pair.post_recv(0, Buffer::new(pd, 64)?)?))
}

/// Sends what no rping would.
fn say(connection: &Connection, message: &[u8]) {
    let request = SendRequest::inline(0, message);
    connection.queue_pair.post_send(request).expect("connected");
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
        until_listening(&hosts.server, &serving);
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
    for size in [1, 15, 64, 5000, end::MAX_SIZE] {
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

/// A client of another program is left with a sentence when its first message shows what it is.
#[test]
fn a_foreign_client_is_told_apart() {
    let hosts = hosts(Faults::default());
    let (served, counts, ()) = beside(&hosts, &server_plan(false), || {
        let connection = Connector::new(&hosts.client)
            .options(options())
            .connect(ADDRESS)
            .expect("nothing tells it from an rping yet");
        say(&connection, b"GET / HTTP/1.1");
        connection.until_disconnected().expect("the server leaves");
    });
    let said = served.expect_err("nobody was served").to_string();
    assert!(
        said.contains("a message of 14 bytes arrived, and those of rping have 16"),
        "{said}"
    );
    assert_eq!((counts.clients, counts.answered), (1, 0));
}

/// A client that asks for more than a server makes room for costs itself the connection, and the server nothing.
#[test]
fn a_message_beyond_all_bounds_is_not_fetched() {
    let hosts = hosts(Faults::default());
    let plan = server_plan(true);
    let (served, counts, ()) = beside(&hosts, &plan, || {
        let connection = Connector::new(&hosts.client)
            .options(options())
            .connect(ADDRESS)
            .expect("connected");
        let info = info::Info {
            len: u32::MAX,
            ..info::Info::default()
        };
        say(&connection, &info.emit());
        connection.until_disconnected().expect("the server leaves");
    });
    served.expect("it serves others");
    assert_eq!((counts.clients, counts.answered), (1, 0));
}

/// A server of another program is left with a sentence.
#[test]
fn a_foreign_server_is_told_apart() {
    let hosts = hosts(Faults::default());
    let listener = Listener::bind(&hosts.server, ADDRESS)
        .expect("it listens")
        .options(options());
    let passive = std::thread::spawn(move || {
        let connection = listener.accept()?;
        say(&connection, b"220 ready");
        connection.until_disconnected()
    });
    let (result, tally) = ping(&hosts, &client_plan(3, 64));
    let said = result.expect_err("no ping").to_string();
    assert!(said.contains("a message of 9 bytes arrived"), "{said}");
    assert_eq!(tally.received, 0);
    passive
        .join()
        .expect("no panic")
        .expect("the client leaves");
}

/// Without -P a second client is refused, and the first is served on.
#[test]
fn a_second_client_is_refused_and_told_so() {
    let hosts = hosts(Faults::default());
    let (served, counts, said) = beside(&hosts, &server_plan(false), || {
        let first = Connector::new(&hosts.client)
            .options(options())
            .connect(ADDRESS)
            .expect("the first");
        let (result, _) = ping(&hosts, &client_plan(1, 64));
        first.disconnect().expect("it ends");
        result.expect_err("the second").to_string()
    });
    served.expect("the first was served");
    assert!(said.contains("refuses the connection"), "{said}");
    assert_eq!((counts.clients, counts.refused), (1, 1));
}

/// A server that nobody runs is a sentence.
#[test]
fn a_server_that_does_not_listen_is_told() {
    let hosts = hosts(Faults::default());
    let (result, tally) = ping(&hosts, &client_plan(1, 1));
    let said = result.expect_err("nobody listens").to_string();
    assert!(said.contains("invalid service ID"), "{said}");
    assert!(tally.lines().is_empty());
}

/// A server that stops answering ends the client, which counts the message as lost.
#[test]
fn a_reply_that_does_not_come_is_a_lost_message() {
    let hosts = hosts(Faults::default());
    let listener = Listener::bind(&hosts.server, ADDRESS)
        .expect("it listens")
        .options(options());
    let passive = std::thread::spawn(move || listener.accept()?.until_disconnected());
    let plan = client::Plan {
        timeout: Duration::from_millis(20),
        ..client_plan(3, 64)
    };
    let (result, tally) = ping(&hosts, &plan);
    let said = result.expect_err("it was lost").to_string();
    assert!(said.contains("of 1 messages 1 were lost"), "{said}");
    assert_eq!((tally.sent, tally.received, tally.lost), (1, 0, 1));
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
