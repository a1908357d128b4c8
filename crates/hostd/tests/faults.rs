//! Faults on purpose, in management datagrams and in programs, as rules and as records.

mod support;

use oarlock_hostd::service::ServiceConfig;
use oarlock_hostd::{Error, Host, Injection, MemWire, Port};
use oarlock_port::Batch;
use oarlock_port::fault::DeviceFault;
use oarlock_ucm::client;
use oarlock_wire::{AddressVector, Gid, IbTimeout};
use std::fs::File;
use std::net::IpAddr;
use std::process::Command;
use support::namespace::in_own_namespace;
use support::*;

const DEVICE_REMOVAL: u32 = 11;
const ADDR_CHANGE: u32 = 14;
const UNREACHABLE: u32 = 7;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn rules(text: &str) -> Injection {
    Injection::Rules(text.parse().unwrap())
}

/// Two hosts on a wire that send a message again after `timeout`, up to `retries` times.
fn two_with(timeout: IbTimeout, retries: u8) -> (Host, Host) {
    let wire = MemWire::new();
    let mut config = ServiceConfig::default();
    config.cma.cm_response_timeout = timeout;
    config.cma.packet_life_time = IbTimeout::truncate(1);
    config.cma.max_cm_retries = retries;
    let host = |address| Host::private_with(&wire, &[ip(address)], config.clone()).unwrap();
    (host("192.0.2.1"), host("192.0.2.2"))
}

/// Enough for messages that are lost: 268 ms.
fn two() -> (Host, Host) {
    two_with(IbTimeout::truncate(16), 15)
}

fn send(from: &Port, to: &Port, av: &AddressVector, psn: u8) {
    let packet = [
        0x04,
        0,
        0xFF,
        0xFF,
        0,
        to.slot(),
        0,
        7,
        0,
        0,
        0,
        psn,
        1,
        2,
        3,
        4,
    ];
    from.send(av, &packet).unwrap();
}

fn psns(port: &Port) -> Vec<u8> {
    let mut batch = Batch::default();
    let mut found = Vec::new();
    while port.recv(&mut batch).unwrap() > 0 {
        found.extend(batch.iter().map(|(_, packet)| packet[11]));
    }
    found
}

/// Each message of a connection's set-up and end is lost once, doubled, delayed and damaged: the managers get over it, and both sides
/// learn the same as ever.
#[test]
fn a_connection_survives_faults_in_each_of_its_messages() {
    for message in ["cm_req", "cm_rep", "cm_rtu", "cm_dreq", "cm_drep"] {
        for kind in [
            "drop",
            "duplicate",
            "delay:us=2000",
            "corrupt",
            "reorder:us=1000",
        ] {
            let (a, b) = two();
            let separator = if kind.contains(':') { ',' } else { ':' };
            let rule = format!("{kind}{separator}opcode={message},direction=rx,count=1");
            for host in [&a, &b] {
                host.inject(rules(&rule), None).unwrap();
            }
            let (active, passive) = (Channel::new(&a), Channel::new(&b));
            let (_, to) = passive.listen(1, "192.0.2.2:0");
            let (one, other) = establish(&active, &passive, to, 0x20_0001);
            active.call(client::disconnect(one));
            passive.expect(DISCONNECTED);
            passive.call(client::disconnect(other));
            active.expect(DISCONNECTED);
            until(&rule, || {
                counter(&a, "service_faults_struck") + counter(&b, "service_faults_struck") == 1
            });
            a.inject(Injection::None, None).unwrap();
            assert_eq!(
                counter(&a, "service_faults_struck"),
                0,
                "no rules, no counts"
            );
        }
    }
}

/// All of a host's own traffic passes the port while there are faults, so that a program that talks to itself has them too.
#[test]
fn datagrams_within_a_host_are_struck_as_well() {
    let host = Host::private().unwrap();
    let before = counter(&host, "qp1_sent_within_host");
    host.inject(rules("duplicate:opcode=cm,direction=tx"), None)
        .unwrap();
    let (active, passive) = (Channel::new(&host), Channel::new(&host));
    let (_, to) = passive.listen(1, "127.0.0.1:0");
    establish(&active, &passive, to, 0x20_0001);
    assert_eq!(counter(&host, "qp1_sent_within_host"), before);
    // REQ, REP and RTU at least.
    assert!(counter(&host, "port_fault_duplicated") >= 3);
}

/// What a program's rules do to its packets: in slots that it has and in those to come, until there are other rules.
#[test]
fn rules_are_for_the_packets_of_slots_taken_before_and_after() {
    let (a, b) = two();
    let gid = |text| Gid::from_ip(ip(text));
    let av = AddressVector::new(gid("192.0.2.1"), gid("192.0.2.2"));
    let (one, to) = (a.take_slot().unwrap(), b.take_slot().unwrap());
    let faults = a
        .inject(rules("drop:psn=1"), None)
        .unwrap()
        .expect("faults");
    let two = a.take_slot().unwrap();
    for port in [&one, &two] {
        for psn in 0..3 {
            send(port, &to, &av, psn);
        }
        assert_eq!(psns(&to), [0, 2]);
    }
    let count = faults.counts().remove(0);
    assert_eq!((count.matched, count.struck), (2, 2));
    drop(two);
    let none = a.inject(Injection::None, None).unwrap();
    assert!(none.is_none() && !one.has_faults());
    send(&one, &to, &av, 1);
    assert_eq!(psns(&to), [1]);
}

/// A connection's set-up under loss, recorded, and replayed without the rules: the same datagrams are lost, and a program's own faults
/// stand in the same record.
#[test]
fn a_record_has_the_faults_of_program_and_service_and_replays_both() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let gid = |text| Gid::from_ip(ip(text));
    let av = AddressVector::new(gid("192.0.2.1"), gid("192.0.2.2"));
    let run = |injection: Injection, record: Option<File>| {
        // A second, since a message that is sent again although it was not lost moves the places of those that follow it.
        let (a, b) = two_with(IbTimeout::truncate(18), 15);
        a.inject(injection, record).unwrap();
        let (active, passive) = (Channel::new(&a), Channel::new(&b));
        let (_, to) = passive.listen(1, "192.0.2.2:0");
        establish(&active, &passive, to, 0x20_0001);
        let (port, to) = (a.take_slot().unwrap(), b.take_slot().unwrap());
        for psn in 0..20 {
            send(&port, &to, &av, psn);
        }
        (counter(&a, "service_faults_struck"), psns(&to))
    };
    let text =
        "drop:opcode=cm_req,direction=tx,count=1;drop:opcode=cm_rep,count=1;drop:p=0.3,seed=5";
    let first = run(rules(text), Some(file.reopen().unwrap()));
    assert_eq!(first.0, 2);
    assert!(first.1.len() < 20 && first.1.len() > 5);
    let record = std::fs::read_to_string(file.path()).unwrap();
    let lines = record.lines().filter(|line| !line.starts_with('#'));
    let (of_service, of_program): (Vec<&str>, Vec<&str>) =
        lines.partition(|line| line.contains("qpn=0x000001"));
    assert_eq!(
        (of_service.len(), of_program.len()),
        (2, 20 - first.1.len())
    );
    assert_eq!(run(Injection::Replay(record), None), first);
    assert_eq!(run(Injection::None, None).0, 0);
}

/// The host of a rule's program loses its device, and nobody else's identifiers do.
#[test]
fn a_device_is_removed_for_the_program_whose_rule_strikes() {
    // No message is lost, and a REQ that came twice would count twice.
    let (a, b) = two_with(IbTimeout::truncate(25), 15);
    let feed = b.changes_fd().unwrap().expect("this service tells");
    b.inject(rules("device_removal:opcode=cm_req,after=1"), None)
        .unwrap();
    let (active, passive) = (Channel::new(&a), Channel::new(&b));
    let (listener, to) = passive.listen(1, "192.0.2.2:0");
    let (_, accepted) = establish(&active, &passive, to, 0x20_0001);
    let id = active.resolve(9, to);
    active.connect(id, 0x20_0003, b"hello");
    passive.expect(CONNECT_REQUEST);
    // A connection that the program has not accepted yet is not told of.
    let mut orphans = [(); 2].map(|()| passive.expect(DEVICE_REMOVAL).id);
    orphans.sort();
    let mut expected = [listener, accepted];
    expected.sort();
    assert_eq!(orphans, expected);
    active.expect(DISCONNECTED);
    assert!(is_readable_within(&feed, PATIENCE));
    let kinds: Vec<_> = b
        .take_changes()
        .into_iter()
        .map(|change| (change.device, format!("{:?}", change.kind)))
        .collect();
    let device = b.devices().unwrap()[0].index;
    assert_eq!(
        kinds,
        [
            (device, "Removed".to_owned()),
            (device, "Returned".to_owned())
        ]
    );
    // The device is there for whoever begins anew.
    passive.listen(2, "192.0.2.2:0");
}

/// What a device's queue pairs see goes to the service, which tells the identifiers of that device.
#[test]
fn a_device_fails_on_request() {
    let (a, b) = two();
    let (active, passive) = (Channel::new(&a), Channel::new(&b));
    let (listener, to) = passive.listen(1, "192.0.2.2:0");
    let (_, accepted) = establish(&active, &passive, to, 0x20_0001);
    b.fail_device(DeviceFault::AddressChange, ip("192.0.2.2"));
    let mut told = [(); 2].map(|()| passive.expect(ADDR_CHANGE).id);
    told.sort();
    let mut expected = [listener, accepted];
    expected.sort();
    assert_eq!(told, expected);
    b.fail_device(DeviceFault::QpError, ip("192.0.2.2"));
    b.fail_device(DeviceFault::DeviceRemoval, ip("192.0.2.77"));
    b.fail_device(DeviceFault::DeviceRemoval, ip("192.0.2.2"));
    let mut told = [(); 2].map(|()| passive.expect(DEVICE_REMOVAL).id);
    told.sort();
    assert_eq!(told, expected);
    active.expect(DISCONNECTED);
}

/// With every request lost the active side gives up, as it would on a network that is cut.
#[test]
fn rules_without_end_cut_the_network() {
    let (a, b) = two_with(IbTimeout::truncate(16), 2);
    a.inject(rules("drop:opcode=cm_req"), None).unwrap();
    let (active, passive) = (Channel::new(&a), Channel::new(&b));
    let (_, to) = passive.listen(1, "192.0.2.2:0");
    let id = active.resolve(1, to);
    active.connect(id, 0x20_0001, b"hello");
    let event = active.event();
    assert_eq!(event.kind, UNREACHABLE, "{event:?}");
}

/// Programs of one service: the same rules count once, others are added, and they end with their program.
#[test]
fn the_same_rules_of_two_programs_are_one_set() {
    in_own_namespace("the_same_rules_of_two_programs_are_one_set", || {
        let host = Host::serve().unwrap();
        let (one, two) = (Host::join().unwrap(), Host::join().unwrap());
        let rule = "duplicate:opcode=cm_req,direction=tx";
        one.inject(rules(rule), None).unwrap();
        two.inject(rules(&format!("{rule};drop:psn=5")), None)
            .unwrap();
        let connect = |uid: u32| {
            let (active, passive) = (Channel::new(&host), Channel::new(&host));
            let (_, to) = passive.listen(u64::from(uid), "127.0.0.1:0");
            establish(&active, &passive, to, 0x20_0000 + uid * 2);
        };
        connect(1);
        assert_eq!(counter(&host, "port_fault_duplicated"), 1);
        drop(one);
        until("the first is gone", || {
            host.ps().unwrap().host.clients.len() == 2
        });
        connect(2);
        assert_eq!(counter(&host, "port_fault_duplicated"), 2);
        drop(two);
        until("the second is gone", || {
            host.ps().unwrap().host.clients.len() == 1
        });
        connect(3);
        assert_eq!(counter(&host, "port_fault_duplicated"), 2);
    });
}

/// The service writes a record to regular files only: anything else could make it wait.
#[test]
fn a_record_goes_to_a_regular_file_only() {
    let host = Host::private().unwrap();
    let null = File::options().write(true).open("/dev/null").unwrap();
    let refused = host.inject(rules("drop:opcode=cm"), Some(null));
    let error = refused.expect_err("no regular file");
    assert!(error.to_string().contains("regular file"), "{error}");
    let wrong = host.inject(Injection::Replay("# no record\n".to_owned()), None);
    assert!(matches!(wrong, Err(Error::FaultRecord(_))), "{wrong:?}");
}

/// Runs this test again with other variables, as a program that knows of nothing; gives what it prints.
fn child(test: &str, variables: &[(&str, &str)]) -> String {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]);
    for name in [
        oarlock_hostd::FAULT_VARIABLE,
        oarlock_hostd::FAULT_RECORD_VARIABLE,
        oarlock_hostd::FAULT_REPLAY_VARIABLE,
    ] {
        command.env_remove(name);
    }
    let output = command
        .env(CHILD, "1")
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    said
}

const CHILD: &str = "OARLOCK_TEST_CHILD_OF_FAULTS";

/// What the environment says is done by every host that is opened, or opening is refused with a sentence.
#[test]
fn the_environment_is_obeyed_or_refused() {
    const TEST: &str = "the_environment_is_obeyed_or_refused";
    if std::env::var_os(CHILD).is_some() {
        return match Host::private() {
            Err(error) => println!("refused: {error}"),
            Ok(host) => {
                let gid = Gid::from_ip(ip("127.0.0.1"));
                let (one, two) = (host.take_slot().unwrap(), host.take_slot().unwrap());
                for psn in 0..10 {
                    send(&one, &two, &AddressVector::new(gid, gid), psn);
                }
                println!("received: {:?}", psns(&two));
            }
        };
    }
    let folder = tempfile::tempdir().unwrap();
    let record = folder.path().join("record-%p");
    let record = record.to_str().unwrap();
    assert!(child(TEST, &[]).contains("received: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]"));
    let rules = [
        (
            "OARLOCK_FAULT",
            "drop:p=0.4,direction=tx,seed=3;duplicate:psn=9,direction=tx",
        ),
        ("OARLOCK_FAULT_RECORD", record),
    ];
    let said = child(TEST, &rules);
    let (_, received) = said.split_once("received: ").unwrap();
    let received = received.lines().next().unwrap();
    assert_ne!(received, "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]");
    let written: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
    assert_eq!(written.len(), 1, "{written:?}");
    let path = written[0].as_ref().unwrap().path();
    let name = path.to_str().unwrap();
    assert!(!name.contains("%p"), "{name}");
    let replay = [("OARLOCK_FAULT_REPLAY", name)];
    assert!(child(TEST, &replay).contains(&format!("received: {received}")));
    let missing = folder.path().join("missing");
    let refusals: [(&[(&str, &str)], &str); 6] = [
        (&[("OARLOCK_FAULT", "lose")], "`lose`"),
        (
            &[("OARLOCK_FAULT", "drop"), ("OARLOCK_FAULT_REPLAY", name)],
            "both set",
        ),
        (&[("OARLOCK_FAULT_RECORD", record)], "no faults are"),
        (
            &[("OARLOCK_FAULT_REPLAY", missing.to_str().unwrap())],
            "cannot read the fault record",
        ),
        (&[("OARLOCK_FAULT_REPLAY", "/proc/self/stat")], "line 1"),
        (
            &[
                ("OARLOCK_FAULT", "drop"),
                ("OARLOCK_FAULT_RECORD", "/proc/nowhere/record"),
            ],
            "cannot write the fault record",
        ),
    ];
    for (variables, sentence) in refusals {
        let said = child(TEST, variables);
        assert!(
            said.contains("refused: ") && said.contains(sentence),
            "{said}"
        );
    }
}
