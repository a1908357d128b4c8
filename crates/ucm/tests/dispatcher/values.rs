//! Each command's own errors, in the kernel's order.

use zerocopy::FromZeros;

use oarlock_cma::Errno;
use oarlock_ucm::abi::{self, Bind, Command, ResolveAddr, SockaddrIb, SockaddrStorage};
use oarlock_ucm::client::{self, IdNumber, Param};
use oarlock_ucm::{Failure, FileId, Owner};

use crate::errno::{
    EACCES, EADDRINUSE, EADDRNOTAVAIL, EAFNOSUPPORT, EINVAL, EISCONN, ENOENT, ENOSYS,
};
use crate::errors::{plausible, raw};
use crate::world::{PORT, TCP, World, accept_param, address, kind, param};

#[test]
fn create_id_knows_its_port_spaces() {
    let mut w = World::new(1);
    let file = w.open(0);
    for (ps, errno) in [
        (TCP, 0),
        (0x9999, EINVAL),
        (0, EINVAL),
        (0x0111, 0),
        (0x0002, 0),
        (0x013F, 0),
    ] {
        assert_eq!(
            w.errno(0, file, client::create_id(1, ps, 2).request(), &[]),
            errno,
            "{ps:#x}"
        );
    }
    // The queue pair type counts in port space IB only; raw packets (8) have no queue pairs here.
    for (qp_type, errno) in [
        (2, 0),
        (3, 0),
        (4, 0),
        (8, ENOSYS),
        (9, 0),
        (10, 0),
        (0, ENOSYS),
    ] {
        let (tcp, ib) = [TCP, 0x013F]
            .map(|ps| client::create_id(1, ps, qp_type))
            .into();
        assert_eq!(w.errno(0, file, ib.request(), &[]), errno, "{qp_type}");
        assert_eq!(w.errno(0, file, tcp.request(), &[]), 0, "{qp_type}");
    }
}

fn bind(id: u32, addr: SockaddrStorage, addr_size: u16, reserved: u16) -> Vec<u8> {
    raw(
        Command::BIND,
        &Bind {
            id,
            addr_size,
            reserved,
            addr,
        },
    )
}

#[test]
fn bind_checks_the_address_before_the_identifier() {
    let mut w = World::new(1);
    let file = w.open(0);
    let v4 = SockaddrStorage::from(std::net::SocketAddr::from((address(0), PORT)));
    let mut unknown = v4;
    unknown.bytes[..2].copy_from_slice(&77_u16.to_ne_bytes());
    let ib = SockaddrStorage::from(SockaddrIb {
        family: abi::AF_IB,
        ..SockaddrIb::new_zeroed()
    });
    let rows: [(&str, Vec<u8>, i32); 7] = [
        ("reserved", bind(99, v4, 16, 1), EINVAL),
        ("size 0", bind(99, v4, 0, 0), EINVAL),
        ("another family's size", bind(99, v4, 28, 0), EINVAL),
        ("unknown family", bind(99, unknown, 16, 0), EINVAL),
        (
            "unknown family without a size",
            bind(99, unknown, 0, 0),
            EINVAL,
        ),
        (
            "native InfiniBand, unknown identifier",
            bind(99, ib, 48, 0),
            ENOENT,
        ),
        ("an address that is right", bind(99, v4, 16, 0), ENOENT),
    ];
    for (what, request, errno) in rows {
        assert_eq!(w.errno(0, file, &request, &[]), errno, "{what}");
    }
    let id = w.create(0, file, 1).0;
    assert_eq!(w.errno(0, file, &bind(id, ib, 48, 0), &[]), EAFNOSUPPORT);
    let mut narrow = plausible(Command::BIND_IP, id);
    narrow[16..18].copy_from_slice(&abi::AF_IB.to_ne_bytes());
    assert_eq!(
        w.errno(0, file, &narrow, &[]),
        EINVAL,
        "a native address does not fit in BIND_IP"
    );
    assert_eq!(w.errno(0, file, &plausible(Command::BIND_IP, id), &[]), 0);
    assert_eq!(
        w.ok(0, file, &client::query_addr(IdNumber(id))).local,
        Some((address(0), PORT).into())
    );
}

/// R-ADDR-1 and the rules of ports, as errors of the call.
#[test]
fn bind_gives_the_errors_of_addresses_and_ports() {
    let mut w = World::new(1);
    let file = w.open(0);
    let first = w.create(0, file, 1);
    w.ok(0, file, &client::bind(first, (address(0), PORT).into()));
    let rows = [
        ("10.9.9.9:1", EADDRNOTAVAIL),
        ("10.0.0.1:80", EACCES),
        ("[fe80::1]:7471", EINVAL),
        ("10.0.0.1:7471", EADDRINUSE),
        ("0.0.0.0:7471", EADDRNOTAVAIL),
        ("127.0.0.1:7471", EADDRNOTAVAIL),
        ("0.0.0.0:0", 0),
    ];
    for (addr, errno) in rows {
        let id = w.create(0, file, 1);
        let addr = addr.parse().expect("an address");
        assert_eq!(
            w.errno(0, file, client::bind(id, addr).request(), &[]),
            errno,
            "{addr}"
        );
    }
    assert_eq!(
        w.errno(
            0,
            file,
            client::bind(first, (address(0), PORT).into()).request(),
            &[]
        ),
        EINVAL,
        "bound already"
    );
    w.hosts[0].allow_privileged_ports(file, true).expect("open");
    let id = w.create(0, file, 1);
    w.ok(0, file, &client::bind(id, (address(0), 80).into()));
}

#[test]
fn resolve_addr_checks_both_addresses() {
    let mut w = World::new(2);
    let file = w.open(0);
    let id = w.create(0, file, 1).0;
    let v4 = SockaddrStorage::from(std::net::SocketAddr::from((address(1), PORT)));
    let v6 = SockaddrStorage::from(
        "[2001:db8::1]:7471"
            .parse::<std::net::SocketAddr>()
            .expect("an address"),
    );
    let none = SockaddrStorage::new_zeroed();
    let right = ResolveAddr {
        id,
        timeout_ms: 1000,
        src_size: 0,
        dst_size: 16,
        reserved: 0,
        src_addr: none,
        dst_addr: v4,
    };
    let rows = [
        (
            "reserved",
            ResolveAddr {
                reserved: 1,
                ..right
            },
        ),
        (
            "no destination",
            ResolveAddr {
                dst_size: 0,
                ..right
            },
        ),
        (
            "destination of another size",
            ResolveAddr {
                dst_size: 28,
                ..right
            },
        ),
        (
            "source of another size",
            ResolveAddr {
                src_size: 28,
                src_addr: v4,
                ..right
            },
        ),
        (
            "source of no family",
            ResolveAddr {
                src_size: 16,
                ..right
            },
        ),
        (
            "two families",
            ResolveAddr {
                src_size: 28,
                src_addr: v6,
                ..right
            },
        ),
    ];
    for (what, body) in rows {
        assert_eq!(
            w.errno(0, file, &raw(Command::RESOLVE_ADDR, &body), &[]),
            EINVAL,
            "{what}"
        );
    }
    let bad = plausible(Command::RESOLVE_IP, id);
    let mut no_destination = bad.clone();
    no_destination[8 + 28..8 + 30].fill(0);
    assert_eq!(w.errno(0, file, &no_destination, &[]), EINVAL);
    let mut bad_source = bad;
    bad_source[8..10].copy_from_slice(&77_u16.to_ne_bytes());
    assert_eq!(w.errno(0, file, &bad_source, &[]), EINVAL);
    assert_eq!(
        w.errno(0, file, &raw(Command::RESOLVE_ADDR, &right), &[]),
        0
    );
    assert_eq!(
        w.errno(0, file, &raw(Command::RESOLVE_ADDR, &right), &[]),
        EINVAL,
        "resolved already"
    );
}

#[test]
fn resolve_route_and_connect_follow_the_states() {
    let mut w = World::new(2);
    let file = w.open(0);
    let id = w.create(0, file, 1);
    w.ok(
        0,
        file,
        &client::resolve_addr(id, None, (address(1), PORT).into(), 1000),
    );
    let connect = client::connect(id, &param(1)).expect("short");
    assert_eq!(
        w.errno(0, file, connect.request(), &[]),
        EINVAL,
        "no route yet"
    );
    assert_eq!(
        w.errno(0, file, client::resolve_route(id, 0).request(), &[]),
        EINVAL,
        "no time to wait"
    );
    assert_eq!(
        w.errno(0, file, client::resolve_route(id, 1).request(), &[]),
        0
    );
    assert_eq!(
        w.errno(0, file, client::resolve_route(id, 1).request(), &[]),
        EINVAL,
        "resolved already"
    );
    assert_eq!(w.errno(0, file, connect.request(), &[]), 0);
    assert_eq!(
        w.errno(0, file, connect.request(), &[]),
        EINVAL,
        "connecting already"
    );
}

/// R-PAR-1, R-PAR-2, R-PAR-4: what is wrong is refused where it is given, with both numbers in the sentence.
#[test]
fn connect_checks_its_parameters() {
    let mut w = World::new(2);
    let file = w.open(0);
    let id = w.routed(0, file, 1, 1);
    let good = client::connect(id, &param(1))
        .expect("short")
        .into_parts()
        .0;
    let mut invalid = good.clone();
    invalid[8 + 271] = 0;
    let mut ece = good.clone();
    ece[8 + 280 + 3] = 1;
    let mut too_short = good.clone();
    too_short[4..6].copy_from_slice(&279_u16.to_ne_bytes());
    assert_eq!(w.errno(0, file, &too_short, &[]), EINVAL);
    assert_eq!(w.errno(0, file, &invalid, &[]), EINVAL);
    assert_eq!(
        w.errno(0, file, &ece, &[]),
        EINVAL,
        "a vendor of more than 24 bits"
    );
    let rows: [(Param, &str); 3] = [
        (
            Param {
                private_data: vec![1; 57],
                ..param(1)
            },
            "57 bytes of private data, of which connect carries at most 56",
        ),
        (
            Param {
                responder_resources: 17,
                ..param(1)
            },
            "responder_resources 17 exceeds the device's limit of 16",
        ),
        (
            Param {
                initiator_depth: 17,
                ..param(1)
            },
            "initiator_depth 17 exceeds the device's limit of 16",
        ),
    ];
    for (param, sentence) in rows {
        let call = client::connect(id, &param).expect("short");
        let failure = w.call(0, file, &call).expect_err("refused");
        assert_eq!(
            (failure.errno(), failure.to_string().as_str()),
            (Errno::EINVAL, sentence)
        );
    }
    // An older caller, without the fields for enhanced connection establishment.
    let mut old = good;
    old.truncate(8 + 280);
    old[4..6].copy_from_slice(&280_u16.to_ne_bytes());
    assert_eq!(w.errno(0, file, &old, &[]), 0);
}

/// R-PAR-2, R-PAR-4 on the passive side. As in the kernel, a request whose acceptance fails is rejected, so that the peer
/// does not wait for nothing.
#[test]
fn accept_checks_its_parameters_against_the_request() {
    let rows: [(Param, &str); 3] = [
        (
            Param {
                private_data: vec![1; 197],
                ..accept_param(1)
            },
            "197 bytes of private data, of which accept carries at most 196",
        ),
        (
            Param {
                responder_resources: 3,
                ..accept_param(1)
            },
            "responder_resources 3 exceeds the connection request of 2",
        ),
        (
            Param {
                initiator_depth: 5,
                ..accept_param(1)
            },
            "initiator_depth 5 exceeds the connection request of 4",
        ),
    ];
    for (param, sentence) in rows {
        let mut w = World::new(2);
        let (active, passive, child) = requested(&mut w);
        let call = client::accept(child, 200, &param).expect("short");
        let failure = w.call(1, passive, &call).expect_err("refused");
        assert_eq!(
            (failure.errno(), failure.to_string().as_str()),
            (Errno::EINVAL, sentence)
        );
        assert_eq!(w.expect(0, active, kind::REJECTED).status, 28);
        let good = client::accept(child, 200, &accept_param(0x22)).expect("short");
        assert_eq!(
            w.errno(1, passive, good.request(), &[]),
            EINVAL,
            "it is over"
        );
    }
}

/// A connection request that was taken and not answered.
fn requested(w: &mut World) -> (FileId, FileId, IdNumber) {
    let (active, passive) = (w.open(0), w.open(1));
    w.listener(1, passive, 100);
    let id = w.routed(0, active, 1, 1);
    w.connect(0, active, id, 0x11);
    let child = w.expect(1, passive, kind::CONNECT_REQUEST).id;
    (active, passive, child)
}

#[test]
fn accept_checks_its_structure_and_the_state() {
    let mut w = World::new(2);
    let (_, passive, child) = requested(&mut w);
    let good = client::accept(child, 200, &accept_param(0x22))
        .expect("short")
        .into_parts()
        .0;
    let mut too_short = good.clone();
    too_short[4..6].copy_from_slice(&287_u16.to_ne_bytes());
    assert_eq!(w.errno(1, passive, &too_short, &[]), EINVAL);
    let mut ece = good.clone();
    ece[8 + 288] = 1;
    ece[8 + 279] = 0;
    assert_eq!(
        w.errno(1, passive, &ece, &[]),
        EINVAL,
        "an RTU carries no options"
    );
    let on_listener = client::accept(IdNumber(0), 1, &accept_param(1)).expect("short");
    assert_eq!(
        w.errno(1, passive, on_listener.request(), &[]),
        EINVAL,
        "a listener"
    );
    assert_eq!(
        w.errno(1, passive, &good, &[]),
        0,
        "what was refused did no harm"
    );
    assert_eq!(w.errno(1, passive, &good, &[]), EINVAL, "accepted already");
}

#[test]
fn listen_reject_disconnect_and_recipes_follow_the_states() {
    let mut w = World::new(2);
    let (active, passive) = (w.open(0), w.open(1));
    let listener = w.listener(1, passive, 100);
    assert_eq!(
        w.errno(1, passive, client::listen(listener, 1).request(), &[]),
        EINVAL,
        "listening already"
    );
    let reject = |id, reason| client::reject(id, reason, b"").expect("short");
    assert_eq!(
        w.errno(1, passive, reject(IdNumber(99), 3).request(), &[]),
        EINVAL,
        "the reason comes first"
    );
    assert_eq!(
        w.errno(1, passive, reject(IdNumber(99), 35).request(), &[]),
        ENOENT
    );
    let id = w.routed(0, active, 1, 1);
    assert_eq!(
        w.errno(0, active, reject(id, 0).request(), &[]),
        EINVAL,
        "no connection"
    );
    assert_eq!(
        w.errno(0, active, client::disconnect(id).request(), &[]),
        EINVAL,
        "no connection"
    );
    assert_eq!(
        w.errno(0, active, client::establish(id).request(), &[]),
        EINVAL,
        "no connection"
    );
    let recipe = |id, state| client::init_qp_attr(id, state);
    assert_eq!(
        w.errno(0, active, recipe(IdNumber(99), 7).request(), &[]),
        EINVAL,
        "the state comes first"
    );
    assert_eq!(
        w.errno(0, active, recipe(IdNumber(99), 6).request(), &[]),
        ENOENT
    );
    for state in [0, 2, 3, 4, 5, 6] {
        assert_eq!(
            w.errno(0, active, recipe(id, state).request(), &[]),
            EINVAL,
            "queue pair state {state}"
        );
    }
    assert_eq!(
        w.errno(0, active, recipe(id, 1).request(), &[]),
        0,
        "INIT is known before there is a connection"
    );
    w.connect(0, active, id, 0x11);
    let child = w.expect(1, passive, kind::CONNECT_REQUEST).id;
    let long = client::reject(child, 0, &[1; 149]).expect("short enough for the structure");
    assert_eq!(
        w.errno(1, passive, long.request(), &[]),
        EINVAL,
        "148 bytes at most"
    );
    assert_eq!(w.errno(1, passive, reject(child, 28).request(), &[]), 0);
    assert_eq!(
        w.errno(1, passive, reject(child, 28).request(), &[]),
        EINVAL,
        "rejected already"
    );
}

#[test]
fn notify_passes_on_what_concerns_the_connection() {
    let mut w = World::new(2);
    let (active, passive) = (w.open(0), w.open(1));
    w.listener(1, passive, 100);
    let idle = w.create(0, active, 1);
    assert_eq!(
        w.errno(0, active, client::notify(idle, 4).request(), &[]),
        EINVAL,
        "no device"
    );
    let (id, _) = w.established(active, passive);
    for event in [0, 3, 5, 7, u32::MAX] {
        assert_eq!(
            w.errno(0, active, client::notify(id, event).request(), &[]),
            EINVAL,
            "event {event}"
        );
    }
    assert_eq!(
        w.errno(0, active, client::notify(id, 4).request(), &[]),
        EISCONN,
        "established already"
    );

    // The first message overtakes the RTU, and the connection is established by it, once.
    let id = w.routed(0, active, 1, 1);
    w.connect(0, active, id, 0x99);
    let child = w.expect(1, passive, kind::CONNECT_REQUEST).id;
    w.ok(
        1,
        passive,
        &client::accept(child, 2, &accept_param(0x98)).expect("short"),
    );
    w.ok(1, passive, &client::notify(child, 4));
    assert_eq!(w.expect(1, passive, kind::ESTABLISHED).id, child);
    w.expect(0, active, kind::CONNECT_RESPONSE);
    w.ok(0, active, &client::establish(id));
    assert_eq!(w.event(1, passive), None);
}

/// Misuse names the state and the rule.
#[test]
fn every_refusal_has_a_sentence() {
    let mut w = World::new(1);
    let (file, other) = (w.open(0), w.hosts[0].open(Owner(1)).expect("room"));
    let id = w.create(0, file, 1);
    let failure = w
        .call(0, file, &client::resolve_route(id, 1))
        .expect_err("no device");
    assert_eq!(
        failure.to_string(),
        "RESOLVE_ROUTE: identifier 0 is in state IDLE and has no device yet; resolve an address first"
    );
    let failure = w
        .call(0, other, &client::listen(id, 1))
        .expect_err("elsewhere");
    assert_eq!(
        failure.to_string(),
        "LISTEN: identifier 0 is on another event channel"
    );
    w.ok(0, file, &client::bind(id, (address(0), PORT).into()));
    let failure = w
        .call(0, file, &client::bind(id, (address(0), PORT).into()))
        .expect_err("bound");
    assert_eq!(
        failure.to_string(),
        "bind_addr in state ADDR_BOUND, which wants IDLE"
    );
    assert!(matches!(failure, Failure::Cma(_)));
}
