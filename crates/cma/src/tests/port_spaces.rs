//! Port spaces: what their identifiers are for, and that their ports and service IDs are apart.

use super::world::{PORT, World, addr, errno, qpn};
use crate::{ConnectParam, Counter, Errno, EventKind, IdOption, PortSpace, QpType};
use oarlock_wire::ServiceId;

fn with_qpn(n: u32) -> ConnectParam {
    ConnectParam {
        qpn: qpn(n),
        ..ConnectParam::default()
    }
}

/// A request for the other kind of queue pair: REJ 28, or status 2. Not even the listener learns of it.
#[test]
fn a_request_of_the_wrong_transport_is_refused() {
    // Port space IB has listeners of each kind on its service IDs.
    for (listens, asks, kind, status) in [
        (QpType::UD, QpType::RC, EventKind::REJECTED, 28),
        (QpType::RC, QpType::UD, EventKind::UNREACHABLE, 2),
        (QpType::UC, QpType::UD, EventKind::UNREACHABLE, 2),
        (QpType::UC, QpType::RC, EventKind::REJECTED, 28),
        (QpType::RC, QpType::XRC_SEND, EventKind::REJECTED, 28),
        (QpType::XRC_RECV, QpType::RC, EventKind::REJECTED, 28),
        (QpType::XRC_SEND, QpType::XRC_SEND, EventKind::REJECTED, 28),
    ] {
        let mut world = World::pair();
        let listener = world.b().id_of(PortSpace::IB, listens);
        world.b().listen_at(listener, addr("0.0.0.0", PORT), 0);
        let active = world.a().id_of(PortSpace::IB, asks);
        world.resolve(0, active, None, addr("10.0.0.2", PORT));
        assert_eq!(
            world.a().path(active).service_id,
            ServiceId(0x013F_0000 + u64::from(PORT))
        );
        world.connect(active, with_qpn(0x11));
        let event = world.a().expect(kind);
        assert_eq!(event.status, status, "{listens} asked for {asks}");
        world.b().expect_nothing();
        let counter = Counter::RequestsRejectedTransport;
        assert_eq!(world.b().cma.counters().get(counter), 1);
        assert_eq!(world.b().cma.connections(), 0);
    }
}

/// The tables of the port spaces are apart: the same port four times, and each request finds its own listener.
#[test]
fn each_port_space_has_ports_and_service_ids_of_its_own() {
    let spaces = [
        (PortSpace::TCP, QpType::RC),
        (PortSpace::UDP, QpType::UD),
        (PortSpace::IPOIB, QpType::UD),
        (PortSpace::IB, QpType::UD),
    ];
    let mut world = World::pair();
    let mut listeners = Vec::new();
    for (port_space, qp_type) in spaces {
        let listener = world.b().id_of(port_space, qp_type);
        world.b().listen_at(listener, addr("0.0.0.0", PORT), 0);
        listeners.push(listener);
    }
    let ports: Vec<_> = world.b().cma.ports().collect();
    assert_eq!(ports.len(), 4);
    assert!(
        ports
            .iter()
            .all(|(_, port, owners)| (*port, *owners) == (PORT, 1))
    );
    let another = world.b().id_of(PortSpace::UDP, QpType::UD);
    let taken = world.b().cma.bind_addr(another, addr("10.0.0.2", PORT));
    assert_eq!(errno(taken).0, Errno::EADDRNOTAVAIL);
    for ((port_space, qp_type), listener) in spaces.into_iter().zip(listeners) {
        let active = world.a().id_of(port_space, qp_type);
        world.resolve(0, active, None, addr("10.0.0.2", PORT));
        let service_id = u64::from(port_space.0) << 16 | u64::from(PORT);
        assert_eq!(world.a().path(active).service_id, ServiceId(service_id));
        let param = world.param();
        let now = world.now();
        let param = ConnectParam {
            responder_resources: 0,
            ..param
        };
        world.a().cma.connect(now, active, param).expect("a path");
        world.settle();
        let event = world.b().expect(EventKind::CONNECT_REQUEST);
        assert_eq!(event.listen_id, Some(listener), "{port_space}");
    }
}

/// A port space decides about the queue pair type, but for IB, where the caller does.
#[test]
fn each_port_space_is_for_its_queue_pair_types() {
    let mut world = World::pair();
    let host = world.a();
    let mut create = |port_space, qp_type| {
        let id = host.cma.create_id(host.channel, port_space, qp_type, 0)?;
        host.cma.query(id).map(|query| query.qp_type)
    };
    assert_eq!(create(PortSpace::TCP, QpType::UD), Ok(QpType::RC));
    assert_eq!(create(PortSpace::UDP, QpType::RC), Ok(QpType::UD));
    assert_eq!(create(PortSpace::IPOIB, QpType::RC), Ok(QpType::UD));
    let [send, recv] = [QpType::XRC_SEND, QpType::XRC_RECV];
    for qp_type in [QpType::RC, QpType::UC, QpType::UD, send, recv] {
        assert_eq!(create(PortSpace::IB, qp_type), Ok(qp_type));
    }
    let sentence =
        "identifiers for QP type 8 queue pairs are not implemented: RC, UC, UD and XRC are";
    assert_eq!(
        errno(create(PortSpace::IB, QpType(8))),
        (Errno::ENOSYS, sentence.to_owned())
    );
    assert_eq!(
        errno(create(PortSpace(0x999), QpType::RC)),
        (Errno::EINVAL, "there is no port space 0x0999".to_owned())
    );
}

/// As in the kernel, what tunes retransmission is for reliable connections only, and of XRC for the side that it is of use to.
#[test]
fn options_of_reliable_connections_are_refused_for_others() {
    let mut world = World::pair();
    let datagrams = world.a().ud_id();
    let unreliable = world.a().id_of(PortSpace::IB, QpType::UC);
    let reliable = world.a().id_of(PortSpace::IB, QpType::RC);
    for option in [IdOption::AckTimeout(14), IdOption::MinRnrTimer(3)] {
        let cma = &mut world.a().cma;
        for id in [datagrams, unreliable] {
            assert_eq!(errno(cma.set_option(id, option)).0, Errno::EINVAL);
        }
        assert_eq!(cma.set_option(reliable, option), Ok(()));
    }
    let [send, recv] =
        [QpType::XRC_SEND, QpType::XRC_RECV].map(|side| world.a().id_of(PortSpace::IB, side));
    let cma = &mut world.a().cma;
    assert_eq!(cma.set_option(send, IdOption::AckTimeout(14)), Ok(()));
    assert_eq!(cma.set_option(recv, IdOption::MinRnrTimer(3)), Ok(()));
    let refused = [
        (recv, IdOption::AckTimeout(14)),
        (send, IdOption::MinRnrTimer(3)),
    ];
    for (id, option) in refused {
        assert_eq!(errno(cma.set_option(id, option)).0, Errno::EINVAL);
    }
    let refused = world
        .a()
        .cma
        .set_option(datagrams, IdOption::AckTimeout(14));
    assert_eq!(
        errno(refused).1,
        "option ACK_TIMEOUT of an identifier for UD queue pairs: it is for reliable ones"
    );
}
