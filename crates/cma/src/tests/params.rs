//! Connection parameters: checked, swapped, clamped; private data.

use super::world::{PORT, World, addr, conn, param};
use crate::{
    ConnectParam, Counter, Errno, Error, EventKind, LimitOwner, Limits, PRIVATE_DATA_ACCEPT,
    PRIVATE_DATA_CONNECT, PRIVATE_DATA_REJECT, QpAttr, QpState,
};
use oarlock_wire::{CmMessage, RejReason, RetryCount};

fn listening() -> World {
    let mut world = World::pair();
    world.b().listener(addr("0.0.0.0", PORT), 0);
    world
}

fn limit(world: &mut World, host: usize, max_qp_rd_atom: u8, max_qp_init_rd_atom: u8) {
    let now = world.now();
    let host = &mut world.hosts[host];
    for device in &mut host.devices {
        device.limits = Limits {
            max_qp_rd_atom,
            max_qp_init_rd_atom,
            ..Limits::default()
        };
    }
    host.cma.set_devices(now, host.devices.clone());
}

/// R-PAR-1: private data is copied and arrives transparently, as the whole field, zeros after what was given.
#[test]
fn private_data_arrives_as_the_whole_zero_padded_field() {
    let mut world = listening();
    let active = world.resolved(addr("10.0.0.2", PORT));
    let given = ConnectParam {
        private_data: b"hello".to_vec(),
        ..param(0x11)
    };
    world.connect(active, given);
    let event = world.b().expect(EventKind::CONNECT_REQUEST);
    let mut field = [0; PRIVATE_DATA_CONNECT];
    field[..5].copy_from_slice(b"hello");
    assert_eq!(
        event
            .param
            .private_data()
            .expect("a request has a field")
            .as_bytes(),
        field
    );

    let answer = ConnectParam {
        private_data: vec![0xEE; PRIVATE_DATA_ACCEPT],
        ..ConnectParam::default()
    };
    world.accept(event.id, answer);
    let event = world.a().expect(EventKind::CONNECT_RESPONSE);
    assert_eq!(
        event
            .param
            .private_data()
            .expect("a response has a field")
            .as_bytes(),
        [0xEE; PRIVATE_DATA_ACCEPT]
    );
}

/// R-PAR-1: absent data is absent, not empty; a rejection carries its 148 bytes. Public fault 33: the field is padded,
/// and its type says so.
#[test]
fn what_comes_without_a_field_has_none_and_a_rejection_has_148_bytes() {
    let mut world = listening();
    let (active, passive) = world.connected();
    let now = world.now();
    world.a().cma.disconnect(now, active).expect("connected");
    world.settle();
    let event = world.b().expect(EventKind::DISCONNECTED);
    assert_eq!((event.id, event.param.private_data()), (passive, None));

    let (_, passive) = world.requested();
    world
        .b()
        .cma
        .reject(now, passive, RejReason::CONSUMER_DEFINED, b"no")
        .expect("waits");
    world.settle();
    let event = world.a().expect(EventKind::REJECTED);
    assert_eq!(event.status, 28);
    let mut field = [0; PRIVATE_DATA_REJECT];
    field[..2].copy_from_slice(b"no");
    assert_eq!(
        event
            .param
            .private_data()
            .expect("a rejection has a field")
            .as_bytes(),
        field
    );
}

/// R-PAR-1, R-PAR-4: what does not fit is refused at the call, and the error names both lengths. Public fault 34.
#[test]
fn private_data_that_does_not_fit_is_refused_with_both_lengths() {
    let mut world = listening();
    let active = world.resolved(addr("10.0.0.2", PORT));
    let now = world.now();
    let long = |len| ConnectParam {
        private_data: vec![1; len],
        ..param(0x11)
    };
    let refused = world
        .a()
        .cma
        .connect(now, active, long(57))
        .expect_err("57 bytes");
    assert_eq!(
        refused.to_string(),
        "57 bytes of private data, of which connect carries at most 56"
    );
    assert_eq!(refused.errno(), Errno::EINVAL);
    world
        .a()
        .cma
        .connect(now, active, long(56))
        .expect("still resolved, and 56 bytes fit");
    world.settle();
    let child = world.b().expect(EventKind::CONNECT_REQUEST).id;
    let refused = world
        .b()
        .cma
        .reject(now, child, RejReason::CONSUMER_DEFINED, &[0; 149]);
    assert_eq!(
        refused,
        Err(Error::PrivateDataTooLong {
            call: "reject",
            given: 149,
            max: 148
        })
    );
    let refused = world.b().cma.accept(
        now,
        child,
        None,
        ConnectParam {
            private_data: vec![0; 197],
            ..ConnectParam::default()
        },
    );
    assert_eq!(
        refused,
        Err(Error::PrivateDataTooLong {
            call: "accept",
            given: 197,
            max: 196
        })
    );
    // As in the kernel, a failed accept is a rejection: the peer does not wait for nothing.
    world.settle();
    assert_eq!(world.a().expect(EventKind::REJECTED).status, 28);
}

/// R-PAR-2, R-PAR-4: `connect` checks both depths against the device.
#[test]
fn connect_checks_the_depths_against_the_device() {
    let mut world = listening();
    limit(&mut world, 0, 8, 6);
    let active = world.resolved(addr("10.0.0.2", PORT));
    let now = world.now();
    let depths = |responder_resources, initiator_depth| ConnectParam {
        responder_resources,
        initiator_depth,
        ..param(0x11)
    };
    let refused = world
        .a()
        .cma
        .connect(now, active, depths(9, 6))
        .expect_err("9 of 8");
    assert_eq!(
        refused.to_string(),
        "responder_resources 9 exceeds the device's limit of 8"
    );
    let refused = world
        .a()
        .cma
        .connect(now, active, depths(8, 7))
        .expect_err("7 of 6");
    assert_eq!(
        refused.to_string(),
        "initiator_depth 7 exceeds the device's limit of 6"
    );
    assert_eq!(refused.errno(), Errno::EINVAL);
    world
        .a()
        .cma
        .connect(now, active, depths(8, 6))
        .expect("within the limits");
}

/// R-PAR-2, R-PAR-4: `accept` checks both depths against the device and against the request.
#[test]
fn accept_checks_the_depths_against_the_device_and_the_request() {
    // The request asks for an initiator depth of 3 and offers 4 resources.
    let cases = [
        (
            16,
            16,
            4,
            0,
            Error::ResponderResources {
                given: 4,
                max: 3,
                owner: LimitOwner::Request,
            },
        ),
        (
            16,
            16,
            0,
            5,
            Error::InitiatorDepth {
                given: 5,
                max: 4,
                owner: LimitOwner::Request,
            },
        ),
        (
            2,
            16,
            3,
            0,
            Error::ResponderResources {
                given: 3,
                max: 2,
                owner: LimitOwner::Device,
            },
        ),
        (
            16,
            1,
            0,
            2,
            Error::InitiatorDepth {
                given: 2,
                max: 1,
                owner: LimitOwner::Device,
            },
        ),
    ];
    for (max_qp_rd_atom, max_qp_init_rd_atom, responder_resources, initiator_depth, error) in cases
    {
        let mut world = listening();
        limit(&mut world, 1, max_qp_rd_atom, max_qp_init_rd_atom);
        let (_, passive) = world.requested();
        let now = world.now();
        let answer = ConnectParam {
            responder_resources,
            initiator_depth,
            ..param(0x12)
        };
        assert_eq!(world.b().cma.accept(now, passive, None, answer), Err(error));
        world.settle();
        assert_eq!(world.a().expect(EventKind::REJECTED).status, 28);
    }
    let message = Error::ResponderResources {
        given: 4,
        max: 3,
        owner: LimitOwner::Request,
    }
    .to_string();
    assert_eq!(
        message,
        "responder_resources 4 exceeds the connection request of 3"
    );
}

/// R-PAR-3: events give the values in the receiver's view. Public fault 35.
#[test]
fn events_give_the_depths_in_the_receivers_view() {
    let mut world = listening();
    let active = world.resolved(addr("10.0.0.2", PORT));
    let asked = ConnectParam {
        responder_resources: 5,
        initiator_depth: 2,
        ..param(0x11)
    };
    world.connect(active, asked);
    let event = world.b().expect(EventKind::CONNECT_REQUEST);
    assert_eq!(
        (
            conn(&event).responder_resources,
            conn(&event).initiator_depth
        ),
        (2, 5)
    );
    let answer = ConnectParam {
        responder_resources: 1,
        initiator_depth: 4,
        ..param(0x12)
    };
    world.accept(event.id, answer);
    let event = world.a().expect(EventKind::CONNECT_RESPONSE);
    assert_eq!(
        (
            conn(&event).responder_resources,
            conn(&event).initiator_depth
        ),
        (4, 1)
    );
}

/// Public fault 35: what the peer offers beyond the device reaches no queue pair.
#[test]
fn an_offer_beyond_the_device_is_clamped_in_the_request_event() {
    let mut world = listening();
    limit(&mut world, 1, 2, 1);
    let (_, passive) = world.requested();
    let attr = world
        .b()
        .cma
        .init_qp_attr(passive, QpState::RTS)
        .expect("a request");
    let QpAttr::Rts(attr) = attr else {
        panic!("{attr:?}")
    };
    assert_eq!(attr.max_rd_atomic, 1);
    let attr = world
        .b()
        .cma
        .init_qp_attr(passive, QpState::RTR)
        .expect("a request");
    let QpAttr::Rtr(attr) = attr else {
        panic!("{attr:?}")
    };
    assert_eq!(attr.max_dest_rd_atomic, 2);
    assert_eq!(world.b().cma.counters().get(Counter::OffersClamped), 2);
}

/// A response that grants more than was asked for reaches neither the event nor the queue pair (R-PAR-2). Public fault 35.
#[test]
fn a_response_beyond_the_request_is_clamped() {
    let mut world = listening();
    world.tap = Some(Box::new(|message| {
        if let CmMessage::Rep(rep) = message {
            rep.responder_resources = 100;
            rep.initiator_depth = 101;
        }
    }));
    let (active, passive) = world.requested();
    world.accept(passive, ConnectParam::default());
    let event = world.a().expect(EventKind::CONNECT_RESPONSE);
    assert_eq!(
        (
            conn(&event).responder_resources,
            conn(&event).initiator_depth
        ),
        (4, 3)
    );
    let attr = world
        .a()
        .cma
        .init_qp_attr(active, QpState::RTS)
        .expect("a response");
    let QpAttr::Rts(attr) = attr else {
        panic!("{attr:?}")
    };
    assert_eq!(attr.max_rd_atomic, 3);
    assert_eq!(world.a().cma.counters().get(Counter::OffersClamped), 2);
}

/// R-PAR-5: retry_count in the request event only; the others in request and response.
#[test]
fn the_other_parameters_arrive_where_they_belong() {
    let mut world = listening();
    let active = world.resolved(addr("10.0.0.2", PORT));
    let retries = |n| RetryCount::new(n).expect("3 bits");
    let asked = ConnectParam {
        flow_control: true,
        retry_count: retries(5),
        rnr_retry_count: retries(6),
        srq: true,
        ..param(0x11)
    };
    world.connect(active, asked);
    let request = world.b().expect(EventKind::CONNECT_REQUEST);
    let got = conn(&request);
    assert_eq!(
        (got.flow_control, got.srq, got.qpn.get()),
        (true, true, 0x11)
    );
    assert_eq!(
        (got.retry_count, got.rnr_retry_count),
        (retries(5), retries(6))
    );
    let answer = ConnectParam {
        retry_count: retries(1),
        rnr_retry_count: retries(2),
        ..ConnectParam {
            qpn: super::world::qpn(0x12),
            ..ConnectParam::default()
        }
    };
    world.accept(request.id, answer);
    let event = world.a().expect(EventKind::CONNECT_RESPONSE);
    let got = conn(&event);
    assert_eq!(
        (got.flow_control, got.srq, got.qpn.get()),
        (false, false, 0x12)
    );
    assert_eq!(
        (got.retry_count, got.rnr_retry_count),
        (retries(0), retries(2))
    );
}
