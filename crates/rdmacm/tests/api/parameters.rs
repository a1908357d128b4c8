//! Connection parameters and event data (R-PAR), addresses (R-ADDR), misuse.

use crate::support::*;
use oarlock_rdmacm::{
    ConnParam, Ece, Error, Event, IbTimeout, Identifier, MAX_ACCEPT_PRIVATE_DATA,
    MAX_CONNECT_PRIVATE_DATA, MAX_REJECT_PRIVATE_DATA, PortSpace, RejReason, RetryCount, RnrTimer,
};
use oarlock_verbs::QpState;
use std::net::SocketAddr;
use std::time::Duration;

/// R-PAR-1: private data arrives as given, padded with zeros to the message's field. Public fault 33: what is zeros at
/// the end may be padding, and the type says so.
#[test]
fn private_data_is_transparent_and_padded() {
    let host = private();
    let (passive_channel, active_channel) = (channel(&host), channel(&host));
    let (_listener, address) = listener(&passive_channel);
    let active = resolved(&active_channel, address);
    active
        .connect(&external(1).private_data(b"from the active side"))
        .unwrap();
    let request = request(&passive_channel);
    let data = request.private_data.unwrap();
    assert_eq!(data.as_padded().len(), MAX_CONNECT_PRIVATE_DATA);
    assert!(data.is_padded_from(b"from the active side"), "{data:?}");
    request
        .id
        .accept(&external(2).private_data(b"from the passive side"))
        .unwrap();
    match expect(&active_channel, "CONNECT_RESPONSE") {
        Event::ConnectResponse { private_data, .. } => {
            let data = private_data.unwrap();
            assert_eq!(data.as_padded().len(), MAX_ACCEPT_PRIVATE_DATA);
            assert!(data.is_padded_from(b"from the passive side"), "{data:?}");
        }
        other => panic!("{other}"),
    }
}

/// The host's own values would leave it waiting for 74 s, and a patient peer for longer. Public fault 10.
#[test]
fn an_attempt_ends_at_the_deadline_of_its_identifier() {
    let host = private();
    let (passive_channel, active_channel) = (channel(&host), channel(&host));
    let (_listener, address) = listener(&passive_channel);
    let active = resolved(&active_channel, address);
    active
        .set_connect_deadline(Some(Duration::from_millis(100)))
        .unwrap();
    active.connect(&external(1)).unwrap();
    let _undecided = request(&passive_channel);
    let event = expect(&active_channel, "UNREACHABLE");
    assert_eq!(event.status(), -110);
}

/// Each timer of connecting can be set, within the bits of its field. Public faults 10 and 10b: the interval between
/// repetitions is configurable.
#[test]
fn the_timers_of_connecting_are_options() {
    let host = private();
    let channel = channel(&host);
    let id = Identifier::new(&channel, PortSpace::TCP).unwrap();
    id.set_min_rnr_timer(RnrTimer::US_640).unwrap();
    id.set_response_timeout(IbTimeout::MAX).unwrap();
    id.set_max_retries(15).unwrap();
    match id.set_max_retries(16) {
        Err(error @ Error::Refused { .. }) => {
            assert!(error.to_string().contains("16, at most 15"), "{error}");
        }
        other => panic!("{other:?}"),
    }
}

/// R-PAR-1: the message that says a connection is established carries none, and none is none.
#[test]
fn no_private_data_is_none() {
    let host = private();
    let (passive_channel, active_channel) = (channel(&host), channel(&host));
    let (_listener, address) = listener(&passive_channel);
    let active = resolved(&active_channel, address);
    active.connect(&external(1)).unwrap();
    let passive = request(&passive_channel).id;
    passive.accept(&external(2)).unwrap();
    expect(&active_channel, "CONNECT_RESPONSE");
    active.establish().unwrap();
    match expect(&passive_channel, "ESTABLISHED") {
        Event::Established {
            private_data,
            params,
            ..
        } => {
            assert_eq!(private_data, None);
            assert_eq!(params, None);
        }
        other => panic!("{other}"),
    }
}

/// R-PAR-1: the limits of all three messages, one byte below and above; the error names both lengths. Public fault 34.
#[test]
fn private_data_limits_are_those_of_the_messages() {
    let host = private();
    let (passive_channel, active_channel) = (channel(&host), channel(&host));
    let (_listener, address) = listener(&passive_channel);
    let active = resolved(&active_channel, address);
    let check = |error: Error, limit: usize| match error {
        Error::PrivateDataTooLong { given, max, .. } => {
            assert_eq!((given, max), (limit + 1, limit))
        }
        other => panic!("{other}"),
    };
    let long = |limit: usize| external(1).private_data(vec![7; limit]);
    check(
        active
            .connect(&long(MAX_CONNECT_PRIVATE_DATA + 1))
            .unwrap_err(),
        MAX_CONNECT_PRIVATE_DATA,
    );
    active.connect(&long(MAX_CONNECT_PRIVATE_DATA)).unwrap();
    let passive = request(&passive_channel).id;
    check(
        passive
            .accept(&long(MAX_ACCEPT_PRIVATE_DATA + 1))
            .unwrap_err(),
        MAX_ACCEPT_PRIVATE_DATA,
    );
    let too_long = vec![7; MAX_REJECT_PRIVATE_DATA + 1];
    check(
        passive
            .reject(RejReason::CONSUMER_DEFINED, &too_long)
            .unwrap_err(),
        MAX_REJECT_PRIVATE_DATA,
    );
    passive
        .reject(RejReason::CONSUMER_DEFINED, &too_long[1..])
        .unwrap();
    match expect(&active_channel, "REJECTED") {
        Event::Rejected {
            reason,
            private_data,
            ..
        } => {
            assert_eq!(reason, RejReason::CONSUMER_DEFINED);
            assert_eq!(private_data.unwrap().as_padded(), &too_long[1..]);
        }
        other => panic!("{other}"),
    }
}

/// R-PAR-2 and R-PAR-3: each side reads in its own view what the other gave, and cannot accept more than that.
#[test]
fn resources_are_swapped_for_the_receiver_and_bound_the_acceptance() {
    let host = private();
    let (passive_channel, active_channel) = (channel(&host), channel(&host));
    let (_listener, address) = listener(&passive_channel);
    let active = resolved(&active_channel, address);
    let retry = RetryCount::new(5).unwrap();
    let param = external(1)
        .responder_resources(3)
        .initiator_depth(2)
        .retry_count(retry)
        .rnr_retry_count(RetryCount::new(6).unwrap());
    active.connect(&param).unwrap();
    let request = request(&passive_channel);
    let offer = request.params;
    assert_eq!((offer.responder_resources, offer.initiator_depth), (2, 3));
    assert_eq!(
        (offer.retry_count.get(), offer.rnr_retry_count.get()),
        (5, 6)
    );
    assert_eq!(request.id.offered(), Some(offer));
    let error = request
        .id
        .accept(&external(2).responder_resources(3))
        .unwrap_err();
    assert!(
        matches!(
            error,
            Error::MoreThanOffered {
                name: "responder_resources",
                given: 3,
                offered: 2
            }
        ),
        "{error}"
    );
    let error = request
        .id
        .accept(&external(2).initiator_depth(4))
        .unwrap_err();
    assert!(
        matches!(
            error,
            Error::MoreThanOffered {
                given: 4,
                offered: 3,
                ..
            }
        ),
        "{error}"
    );
    request.id.accept(&external(2).initiator_depth(1)).unwrap();
    match expect(&active_channel, "CONNECT_RESPONSE") {
        Event::ConnectResponse { params, .. } => {
            assert_eq!((params.responder_resources, params.initiator_depth), (1, 2));
            // R-PAR-5: the retry count is in the request only.
            assert_eq!(params.retry_count.get(), 0);
        }
        other => panic!("{other}"),
    }
}

/// R-PAR-4: what the device cannot do is refused by the call, with both numbers.
#[test]
fn more_than_the_device_can_is_refused_at_the_call() {
    let host = private();
    let (_listener, address) = listener(&channel(&host));
    let active = resolved(&channel(&host), address);
    let limits = active.device().unwrap().device().limits;
    let max = limits.max_qp_rd_atom;
    let error = active
        .connect(&external(1).responder_resources(max + 1))
        .unwrap_err();
    match error {
        Error::MoreThanDevice {
            name: "responder_resources",
            given,
            max: said,
            ..
        } => {
            assert_eq!((given, said), (max + 1, max));
        }
        other => panic!("{other}"),
    }
    let max = limits.max_qp_init_rd_atom;
    let error = active
        .connect(&external(1).initiator_depth(max + 1))
        .unwrap_err();
    assert!(
        matches!(
            error,
            Error::MoreThanDevice {
                name: "initiator_depth",
                ..
            }
        ),
        "{error}"
    );
    active.connect(&external(1).initiator_depth(max)).unwrap();
}

/// R-PAR-2: values left open are the device's, and the accepted ones reach both queue pairs.
#[test]
fn open_values_become_the_largest_possible() {
    let host = private();
    let (passive_channel, active_channel) = (channel(&host), channel(&host));
    let (_listener, address) = listener(&passive_channel);
    let active = resolved(&active_channel, address);
    let active_queue_pair = idle_queue_pair(&active);
    active
        .connect(&ConnParam::default().initiator_depth(4))
        .unwrap();
    let passive = request(&passive_channel).id;
    let passive_queue_pair = idle_queue_pair(&passive);
    passive.accept(&ConnParam::default()).unwrap();
    expect(&active_channel, "ESTABLISHED");
    assert_eq!(active_queue_pair.query().max_rd_atomic, 4);
    assert_eq!(passive_queue_pair.query().max_dest_rd_atomic, 4);
    let limits = active.device().unwrap().device().limits;
    assert_eq!(
        active_queue_pair.query().max_dest_rd_atomic,
        limits.max_qp_rd_atom
    );
    assert_eq!(
        passive_queue_pair.query().max_rd_atomic,
        limits.max_qp_init_rd_atom
    );
}

/// R-PAR-2: accepting less than was offered is what both queue pairs then do. Public fault 35.
#[test]
fn accepting_less_reaches_both_queue_pairs() {
    let host = private();
    let (passive_channel, active_channel) = (channel(&host), channel(&host));
    let (_listener, address) = listener(&passive_channel);
    let active = resolved(&active_channel, address);
    let active_queue_pair = idle_queue_pair(&active);
    let param = ConnParam::default()
        .responder_resources(6)
        .initiator_depth(4);
    active.connect(&param).unwrap();
    let passive = request(&passive_channel).id;
    let passive_queue_pair = idle_queue_pair(&passive);
    let param = ConnParam::default()
        .responder_resources(3)
        .initiator_depth(5);
    passive.accept(&param).unwrap();
    expect(&active_channel, "ESTABLISHED");
    let (active, passive) = (active_queue_pair.query(), passive_queue_pair.query());
    assert_eq!((passive.max_dest_rd_atomic, passive.max_rd_atomic), (3, 5));
    assert_eq!((active.max_dest_rd_atomic, active.max_rd_atomic), (5, 3));
}

/// R-PAR-6: an acceptance may use what the event holds while it holds it; the event is acknowledged after.
#[test]
fn accept_inside_the_event() {
    let host = private();
    let (passive_channel, active_channel) = (channel(&host), channel(&host));
    let (_listener, address) = listener(&passive_channel);
    let active = resolved(&active_channel, address);
    active.connect(&external(1).private_data(b"echo")).unwrap();
    let event = expect(&passive_channel, "CONNECT_REQUEST");
    if let Event::ConnectRequest {
        id,
        params: Some(params),
        private_data: Some(data),
        ..
    } = &event
    {
        let param = external(2)
            .responder_resources(params.responder_resources)
            .private_data(&data.as_padded()[..4]);
        id.accept(&param).unwrap();
    } else {
        panic!("{event}");
    }
    event.ack();
    expect(&active_channel, "CONNECT_RESPONSE");
}

/// R-ADDR-1: without a source the route gives it; a bound address and an explicit source are kept.
#[test]
fn the_source_is_found_bound_or_given() {
    let host = private();
    let events = channel(&host);
    let (_listener, address) = listener(&channel(&host));
    let local = |id: &Identifier| id.local_addr().unwrap().unwrap();
    let found = resolved(&events, address);
    assert_eq!(local(&found).ip(), address.ip());
    assert_ne!(local(&found).port(), 0);
    assert_eq!(found.peer_addr().unwrap(), Some(address));

    let bound = Identifier::new(&events, PortSpace::TCP).unwrap();
    let own: SocketAddr = "127.0.0.1:45678".parse().unwrap();
    bound.bind_addr(own).unwrap();
    bound.resolve_addr(None, address, LONG).unwrap();
    expect(&events, "ADDR_RESOLVED");
    assert_eq!(local(&bound), own);

    let given = Identifier::new(&events, PortSpace::TCP).unwrap();
    let source: SocketAddr = "127.0.0.1:45679".parse().unwrap();
    given.resolve_addr(Some(source), address, LONG).unwrap();
    expect(&events, "ADDR_RESOLVED");
    assert_eq!(local(&given), source);
}

/// R-ADDR-1: an address that is not ours, and one that nothing leads to.
#[test]
fn foreign_sources_and_unreachable_destinations_are_errors() {
    let host = private();
    let events = channel(&host);
    let id = Identifier::new(&events, PortSpace::TCP).unwrap();
    let error = id.bind_addr("192.0.2.9:0".parse().unwrap()).unwrap_err();
    assert!(
        matches!(
            error,
            Error::Refused {
                call: "bind_addr",
                ..
            }
        ),
        "{error}"
    );
    assert_eq!(error.errno(), 99);
    match id.resolve_addr(None, "192.0.2.9:7".parse().unwrap(), LONG) {
        Err(Error::Refused { errno, .. }) => assert!([101, 113].contains(&errno), "{errno}"),
        Err(other) => panic!("{other}"),
        Ok(()) => {
            expect(&events, "ADDR_ERROR");
        }
    }
}

/// The sentence names the state or the rule.
#[test]
fn calls_in_the_wrong_state_are_refused_with_a_sentence() {
    let host = private();
    let events = channel(&host);
    let id = Identifier::new(&events, PortSpace::TCP).unwrap();
    let error = id.resolve_route(LONG).unwrap_err();
    assert_eq!(error.errno(), 22, "{error}");
    let error = id.connect(&external(1)).unwrap_err();
    assert!(
        matches!(error, Error::NoDevice { call: "connect" }),
        "{error}"
    );
    let error = id.disconnect().unwrap_err();
    assert_eq!(error.errno(), 22, "{error}");
    let (listener, address) = listener(&events);
    let error = listener.resolve_addr(None, address, LONG).unwrap_err();
    assert!(error.to_string().contains("LISTEN"), "{error}");
    let active = resolved(&events, address);
    let error = active.connect(&ConnParam::default()).unwrap_err();
    assert!(
        matches!(error, Error::NoQueuePair { call: "connect" }),
        "{error}"
    );
    idle_queue_pair(&active);
    let error = active.establish().unwrap_err();
    assert!(matches!(error, Error::QueuePairExists { .. }), "{error}");
    let error = active.reject(RejReason::TIMEOUT, &[]).unwrap_err();
    assert!(
        matches!(error, Error::ReasonNotForPrograms(RejReason::TIMEOUT)),
        "{error}"
    );
    let error = active.next_event().unwrap_err();
    assert!(matches!(error, Error::NotSynchronous { .. }), "{error}");
    let error = active.resolve_route(Duration::ZERO).unwrap_err();
    assert!(matches!(error, Error::TimeoutOutOfRange { .. }), "{error}");
}

#[test]
fn a_second_queue_pair_and_one_of_another_device_are_refused() {
    let pair = pair();
    let device = pair.active.device().unwrap();
    let cq = oarlock_verbs::CompletionQueue::new(&device, 1).unwrap();
    let init = oarlock_verbs::QpInitAttr::default();
    let error = pair
        .active
        .create_qp(&device.default_pd(), &cq, &cq, init)
        .unwrap_err();
    assert!(matches!(error, Error::QueuePairExists { .. }), "{error}");
    // A device of another host.
    let other = oarlock_verbs::Context::open(&private(), device.device().index).unwrap();
    pair.passive.destroy_qp();
    let error = pair
        .passive
        .create_qp(&other.default_pd(), &cq, &cq, init)
        .unwrap_err();
    assert!(matches!(error, Error::OtherDevice { .. }), "{error}");
}

#[test]
fn options_are_taken_in_their_states_and_refused_in_others() {
    let host = private();
    let events = channel(&host);
    let id = Identifier::new(&events, PortSpace::TCP).unwrap();
    id.set_type_of_service(0x20).unwrap();
    id.set_reuse_address(true).unwrap();
    id.set_address_family_only(true).unwrap();
    id.set_ack_timeout(IbTimeout::new(14).unwrap()).unwrap();
    id.bind_addr("127.0.0.1:0".parse().unwrap()).unwrap();
    id.listen(0).unwrap();
    assert_eq!(id.set_reuse_address(true).unwrap_err().errno(), 22);
    assert_eq!(id.set_address_family_only(false).unwrap_err().errno(), 22);
}

/// The queue pair follows the connection: Init, RTS on both sides, Error at the end and after a refusal.
#[test]
fn the_queue_pair_follows_the_connection() {
    let pair = pair();
    let state = |id: &Identifier| id.queue_pair().unwrap().state();
    assert_eq!(state(&pair.active), QpState::Rts);
    assert_eq!(state(&pair.passive), QpState::Rts);
    pair.active.disconnect().unwrap();
    assert_eq!(state(&pair.active), QpState::Error);

    let refused = resolved(&pair.active_channel, pair.address);
    idle_queue_pair(&refused);
    assert_eq!(state(&refused), QpState::Init);
    refused.connect(&ConnParam::default()).unwrap();
    expect(&pair.passive_channel, "DISCONNECTED");
    request(&pair.passive_channel)
        .id
        .reject(RejReason::CONSUMER_DEFINED, &[])
        .unwrap();
    // The answer to the first connection's end comes first or second.
    loop {
        let event = pair
            .active_channel
            .get_event_timeout(LONG)
            .unwrap()
            .unwrap();
        if matches!(event, Event::Rejected { .. }) {
            break;
        }
    }
    assert_eq!(state(&refused), QpState::Error);
}

/// Dropping an identifier that was never accepted rejects the request; dropping an established one disconnects.
#[test]
fn dropping_is_telling_the_peer() {
    let host = private();
    let (passive_channel, active_channel) = (channel(&host), channel(&host));
    let (_listener, address) = listener(&passive_channel);
    let active = resolved(&active_channel, address);
    active.connect(&external(1)).unwrap();
    drop(request(&passive_channel));
    expect(&active_channel, "REJECTED");
    let active = resolved(&active_channel, address);
    active.connect(&external(1)).unwrap();
    let passive = request(&passive_channel).id;
    passive.accept(&external(2)).unwrap();
    expect(&active_channel, "CONNECT_RESPONSE");
    active.establish().unwrap();
    expect(&passive_channel, "ESTABLISHED");
    drop(passive);
    expect(&active_channel, "DISCONNECTED");
}

/// Every wait and every call ends with one error when the service is gone.
#[test]
fn the_end_of_the_service_ends_every_wait() {
    let pair = pair();
    let waiting = {
        let channel = pair.active_channel.clone();
        std::thread::spawn(move || channel.get_event().unwrap_err())
    };
    let synchronous = Identifier::synchronous(&pair.host, PortSpace::TCP).unwrap();
    synchronous.listen(0).unwrap();
    let blocked = std::thread::spawn(move || synchronous.get_request().unwrap_err());
    pair.host.clone().close();
    for error in [
        waiting.join().unwrap(),
        blocked.join().unwrap(),
        pair.active.disconnect().unwrap_err(),
        pair.passive_channel.try_event().unwrap_err(),
        pair.passive.migrate(&pair.active_channel).unwrap_err(),
    ] {
        assert!(matches!(error, Error::ServiceGone), "{error}");
        assert!(error.is_device_fatal());
        assert!(error.to_string().starts_with("device fatal"), "{error}");
    }
}

/// A vendor's options travel both ways; without a vendor there are none; more than 24 bits of vendor are refused.
#[test]
fn vendor_options_reach_the_other_side() {
    let host = private();
    let (passive_channel, active_channel) = (channel(&host), channel(&host));
    let (_listener, address) = listener(&passive_channel);
    let ece = |vendor_id, options| Ece { vendor_id, options };
    let active = resolved(&active_channel, address);
    let error = active
        .connect(&external(1).ece(ece(0x0100_0000, 1)))
        .unwrap_err();
    assert_eq!(error.errno(), 22, "{error}");
    active
        .connect(&external(1).ece(ece(0x00_15b3, 0xdead_beef)))
        .unwrap();
    let passive = request(&passive_channel).id;
    assert_eq!(passive.peer_ece(), Some(ece(0x00_15b3, 0xdead_beef)));
    passive
        .accept(&external(2).ece(ece(0x00_15b3, 0x0000_0001)))
        .unwrap();
    expect(&active_channel, "CONNECT_RESPONSE");
    assert_eq!(active.peer_ece(), Some(ece(0x00_15b3, 1)));

    let plain = resolved(&active_channel, address);
    plain.connect(&external(3)).unwrap();
    let passive = request(&passive_channel).id;
    assert_eq!(passive.peer_ece(), None);
    passive.accept(&external(4)).unwrap();
    expect(&active_channel, "CONNECT_RESPONSE");
    assert_eq!(plain.peer_ece(), None);
}
