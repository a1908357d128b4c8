//! Networks in which the way to an address is not the obvious one, on the real port; and hosts without any.

mod support;

use oarlock_hostd::{Error, Host};
use oarlock_sim::not_run;
use oarlock_ucm::client;
use std::io::{BufReader, Write};
use std::net::{IpAddr, SocketAddr};
use std::process::{Command, Stdio};
use support::namespace::in_own_namespace;
use support::program::{Process, hear, part, say};
use support::*;

const ADDR_ERROR: u32 = 1;
const UNREACHABLE: u32 = 7;

fn succeeds(line: &str) -> bool {
    let output = Command::new("sh").args(["-c", line]).output();
    output.is_ok_and(|output| output.status.success())
}

#[track_caller]
fn run(line: &str) {
    let output = Command::new("sh").args(["-c", line]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{line}: {said}");
}

/// No link-local addresses, which would come when they have proved to be unique, at any time.
fn no_link_local_addresses() {
    let _ = std::fs::write("/proc/sys/net/ipv6/conf/default/addr_gen_mode", "1");
}

/// From nothing to ROUTE_RESOLVED, from a given source.
fn resolve_from(channel: &Channel, uid: u64, from: IpAddr, to: SocketAddr) -> client::IdNumber {
    let id = channel.create(uid);
    let source = SocketAddr::new(from, 0);
    channel.call(client::resolve_addr(id, Some(source), to, 2000));
    channel.expect(ADDR_RESOLVED);
    channel.call(client::resolve_route(id, 2000));
    channel.expect(ROUTE_RESOLVED);
    let local = channel.call(client::query_addr(id)).local.unwrap();
    assert_eq!(local.ip(), from);
    id
}

/// A connection from that identifier, up and down again.
fn connect_and_disconnect(active: &Channel, id: client::IdNumber, passive: &Channel, qp_num: u32) {
    active.connect(id, qp_num, b"hello");
    let request = passive.expect(CONNECT_REQUEST);
    passive.accept(request.id, 2, qp_num + 1, b"welcome");
    active.expect(CONNECT_RESPONSE);
    active.call(client::establish(id));
    passive.expect(ESTABLISHED);
    active.call(client::disconnect(id));
    passive.expect(DISCONNECTED);
    passive.call(client::disconnect(request.id));
    active.expect(DISCONNECTED);
    active.call(client::destroy_id(id));
    passive.call(client::destroy_id(request.id));
}

/// Public faults 42, 50 and 51: a host with several interfaces reaches each of its own addresses from each other one, in both
/// families, however strict it is about addresses that arrive at the wrong interface.
#[test]
fn every_own_address_reaches_every_other() {
    in_own_namespace("every_own_address_reaches_every_other", || {
        no_link_local_addresses();
        let veth = "ip link add a0 type veth peer name a1 && ip link add b0 type veth peer name b1";
        if !succeeds(veth) {
            not_run("netns", "no veth pairs");
            return;
        }
        for name in ["a0", "a1", "b0", "b1"] {
            run(&format!("ip link set {name} up"));
        }
        run("ip addr add 192.0.2.1/24 dev a0 && ip addr add 198.51.100.1/24 dev b0");
        run("ip addr add fd00::1/64 dev a0 nodad && ip addr add fd01::1/64 dev b0 nodad");
        for (name, value) in [("rp_filter", 1), ("arp_ignore", 2), ("accept_local", 0)] {
            for scope in ["all", "a0", "b0"] {
                let path = format!("/proc/sys/net/ipv4/conf/{scope}/{name}");
                std::fs::write(path, value.to_string()).unwrap();
            }
        }
        let host = Host::serve().unwrap();
        let (active, passive) = (Channel::new(&host), Channel::new(&host));
        let families = [["192.0.2.1", "198.51.100.1"], ["fd00::1", "fd01::1"]];
        let mut qp_num = 0x20_0001;
        for addresses in families {
            for to in addresses {
                let to = SocketAddr::new(to.parse().unwrap(), 0);
                let (listener, to) = passive.listen(1, &to.to_string());
                for from in addresses {
                    let id = resolve_from(&active, 2, from.parse().unwrap(), to);
                    connect_and_disconnect(&active, id, &passive, qp_num);
                    qp_num += 2;
                }
                // And from the address that the system chooses.
                let id = active.resolve(3, to);
                connect_and_disconnect(&active, id, &passive, qp_num);
                qp_num += 2;
                passive.call(client::destroy_id(listener));
            }
        }
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let (_, to) = passive.listen(4, address);
            let id = active.resolve(5, to);
            connect_and_disconnect(&active, id, &passive, qp_num);
            qp_num += 2;
        }
    });
}

/// Public fault 43: addresses of interfaces in a VRF are reached from within it, the own ones, too.
#[test]
fn an_address_in_a_vrf_reaches_itself() {
    in_own_namespace("an_address_in_a_vrf_reaches_itself", || {
        no_link_local_addresses();
        if !succeeds("ip link add red type vrf table 10") {
            not_run("vrf", "the kernel has no VRF devices");
            return;
        }
        run("ip link set red up && ip link add v0 type veth peer name v1");
        run("ip link set v0 master red && ip link set v0 up && ip link set v1 up");
        run("ip addr add 192.0.2.1/24 dev v0 && ip addr add 192.0.2.11/24 dev v0");
        let host = Host::serve().unwrap();
        let (active, passive) = (Channel::new(&host), Channel::new(&host));
        let (_, to) = passive.listen(1, "192.0.2.11:0");
        let id = resolve_from(&active, 2, "192.0.2.1".parse().unwrap(), to);
        connect_and_disconnect(&active, id, &passive, 0x20_0001);
    });
}

/// Public faults 21 and 62: no service, no loopback interface and no network are different things, and each says what it is; a
/// namespace with nothing but its loopback interface has one device, and works within itself.
#[test]
fn a_namespace_without_a_network_says_so() {
    in_own_namespace("a_namespace_without_a_network_says_so", || {
        let none = Host::join().unwrap_err();
        run("ip link set lo down");
        let down = Host::serve().unwrap_err();
        run("ip link set lo up");
        assert!(matches!(none, Error::NoService), "{none}");
        assert!(matches!(down, Error::LoopbackDown), "{down}");
        let host = Host::serve().unwrap();
        let devices = host.devices().unwrap();
        assert_eq!(devices.len(), 1);
        assert!(devices[0].is_loopback);
        let channel = Channel::new(&host);
        let id = channel.create(1);
        let away = "192.0.2.9:1".parse().unwrap();
        channel.call(client::resolve_addr(id, None, away, 2000));
        let event = channel.event();
        assert_eq!((event.kind, event.status), (ADDR_ERROR, -libc::ENETUNREACH));
        let unbound = channel.create(2);
        let refused = channel
            .try_call(client::bind(unbound, "192.0.2.1:0".parse().unwrap()))
            .unwrap_err();
        assert_eq!(refused.errno, libc::EADDRNOTAVAIL);
        let passive = Channel::new(&host);
        let (_, to) = passive.listen(2, "127.0.0.1:0");
        establish(&channel, &passive, to, 0x20_0001);
    });
}

/// Public fault 59: an interface that cannot carry RDMA takes nothing from the others; who uses it is told why.
#[test]
fn an_interface_that_cannot_carry_rdma_spoils_nothing() {
    in_own_namespace("an_interface_that_cannot_carry_rdma_spoils_nothing", || {
        no_link_local_addresses();
        if !succeeds("ip link add n0 type veth peer name n1") {
            not_run("netns", "no veth pair");
            return;
        }
        // RoCEv2 needs 352 bytes: 256 of the least IB MTU and 96 of headers.
        run("ip link set n0 mtu 300 && ip link set n0 up && ip link set n1 up");
        run("ip addr add 192.0.2.1/24 dev n0");
        run("ip link add w0 type veth peer name w1 && ip link set w0 up && ip link set w1 up");
        run("ip addr add 198.51.100.1/24 dev w0");
        let host = Host::serve().unwrap();
        let (active, passive) = (Channel::new(&host), Channel::new(&host));
        let id = active.create(1);
        let narrow = "192.0.2.7:1".parse().unwrap();
        active.call(client::resolve_addr(id, None, narrow, 2000));
        match active.event().kind {
            ADDR_RESOLVED => {
                let refused = active
                    .try_call(client::resolve_route(id, 2000))
                    .unwrap_err();
                assert_eq!(refused.errno, libc::EINVAL, "{refused:?}");
            }
            kind => assert_eq!(kind, ADDR_ERROR),
        }
        active.call(client::destroy_id(id));
        let (_, to) = passive.listen(2, "198.51.100.1:0");
        establish(&active, &passive, to, 0x20_0001);
    });
}

/// R-ADDR-3: neighbour entries are the system's, static ones included, and a VLAN is that of the interface. Two services in
/// namespaces of their own, joined by an interface that answers no ARP: only an entry that somebody made leads to the other
/// side, and a wrong one to nobody.
#[test]
fn static_neighbours_and_vlans_are_honoured() {
    const NAME: &str = "static_neighbours_and_vlans_are_honoured";
    const LISTEN: [&str; 2] = ["192.0.2.2:7471", "198.51.100.2:7471"];
    if part().is_some() {
        say("here");
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).unwrap();
        let host = Host::serve().unwrap();
        let channel = Channel::new(&host);
        for address in LISTEN {
            channel.listen(1, address);
        }
        say("listening");
        for _ in LISTEN {
            let request = channel.expect(CONNECT_REQUEST);
            channel.accept(request.id, 2, 0x40_0001, b"welcome");
            channel.expect(ESTABLISHED);
            channel.expect(DISCONNECTED);
            channel.call(client::disconnect(request.id));
            channel.call(client::destroy_id(request.id));
        }
        // The interfaces between the two go with this process: the other side has heard everything first.
        line.clear();
        std::io::stdin().read_line(&mut line).unwrap();
        return;
    }
    in_own_namespace(NAME, || {
        no_link_local_addresses();
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
        let there = |line: &str| format!("nsenter -t {pid} -n sh -c '{line}'");
        if !succeeds(&format!(
            "ip link add v1 address 02:00:00:00:00:01 type veth peer name v2 address 02:00:00:00:00:02 netns {pid}"
        )) {
            not_run("netns", "no veth pair between two namespaces");
            return;
        }
        run(&there("ip link set lo up"));
        run("ip link set v1 up");
        run(&there("ip link set v2 up"));
        let has_vlan = succeeds("ip link add link v1 name v1.5 type vlan id 5");
        if has_vlan {
            run(&there("ip link add link v2 name v2.5 type vlan id 5"));
            run("ip addr add 198.51.100.1/24 dev v1.5 && ip link set v1.5 up");
            run(&there(
                "ip addr add 198.51.100.2/24 dev v2.5 && ip link set v2.5 up",
            ));
        } else {
            not_run("vlan", "the kernel has no VLAN devices");
            // The same without a tag.
            run("ip addr add 198.51.100.1/24 dev v1");
            run(&there("ip addr add 198.51.100.2/24 dev v2"));
        }
        run("ip addr add 192.0.2.1/24 dev v1 && ip link set v1 arp off");
        run(&there(
            "ip addr add 192.0.2.2/24 dev v2 && ip link set v2 arp off",
        ));
        writeln!(server.stdin.as_mut().unwrap()).unwrap();
        assert_eq!(hear(&mut reader), "listening");
        let host = Host::serve().unwrap();
        let channel = Channel::new(&host);
        let to: SocketAddr = LISTEN[0].parse().unwrap();

        // A wrong entry: the packets go to a station that is not there.
        run("ip neigh replace 192.0.2.2 lladdr 02:00:00:00:00:99 nud permanent dev v1");
        let id = channel.resolve(1, to);
        let deadline = std::time::Duration::from_millis(300);
        channel.call(client::set_connect_deadline(id, Some(deadline)));
        channel.connect(id, 0x20_0001, b"hello");
        let event = channel.event();
        assert_eq!(
            (event.kind, event.status),
            (UNREACHABLE, -libc::ETIMEDOUT),
            "{event:?}"
        );
        channel.call(client::destroy_id(id));

        // The right ones, in both directions.
        run("ip neigh replace 192.0.2.2 lladdr 02:00:00:00:00:02 nud permanent dev v1");
        run(&there(
            "ip neigh replace 192.0.2.1 lladdr 02:00:00:00:00:01 nud permanent dev v2",
        ));
        let there_and_back = |to: SocketAddr, qp_num: u32, meanwhile: &[String]| {
            let id = channel.resolve(2, to);
            channel.connect(id, qp_num, b"hello");
            channel.expect(CONNECT_RESPONSE);
            channel.call(client::establish(id));
            for line in meanwhile {
                run(line);
                let nothing = channel.try_call(client::get_event()).unwrap_err();
                assert_eq!(nothing.errno, EAGAIN, "{line}");
            }
            channel.call(client::disconnect(id));
            channel.expect(DISCONNECTED);
        };
        there_and_back(to, 0x20_0003, &[]);

        // The VLAN's interface is a device of its own, and what goes to its addresses goes through it.
        let way = if has_vlan { "v1.5" } else { "v1" };
        let sent = || -> u64 {
            let text = std::fs::read_to_string("/proc/net/dev").unwrap();
            let mut lines = text.lines().map(|line| line.trim_start());
            let numbers = lines.find_map(|line| line.strip_prefix(way)?.strip_prefix(':'));
            // Eight columns of what was received, then bytes and packets sent.
            numbers
                .unwrap()
                .split_whitespace()
                .nth(9)
                .unwrap()
                .parse()
                .unwrap()
        };
        if has_vlan {
            let names: Vec<String> = host
                .devices()
                .unwrap()
                .into_iter()
                .map(|d| d.name)
                .collect();
            assert!(names.contains(&"soft_v1.5".to_owned()), "{names:?}");
        } else {
            run("ip neigh replace 198.51.100.2 lladdr 02:00:00:00:00:02 nud permanent dev v1");
            run(&there(
                "ip neigh replace 198.51.100.1 lladdr 02:00:00:00:00:01 nud permanent dev v2",
            ));
        }
        let before = sent();
        // A neighbour that moves and a route that changes are no events: whether the peer is still there, its answers say.
        let moves = [
            format!("ip route replace 198.51.100.2 dev {way}"),
            format!(
                "ip neigh replace 198.51.100.2 lladdr 02:00:00:00:00:99 nud permanent dev {way}"
            ),
            format!(
                "ip neigh replace 198.51.100.2 lladdr 02:00:00:00:00:02 nud permanent dev {way}"
            ),
            "ip route del 198.51.100.2".to_owned(),
        ];
        there_and_back(LISTEN[1].parse().unwrap(), 0x20_0005, &moves);
        // REQ, RTU and DREQ.
        assert!(sent() >= before + 3);
        writeln!(server.stdin.as_mut().unwrap()).unwrap();
        assert!(server.wait().unwrap().success());
    });
}
