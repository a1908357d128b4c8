//! rdma_accept(3).

use super::*;
use oarlock_rdmacm::{
    Error, MAX_ACCEPT_PRIVATE_DATA, MAX_DATAGRAM_REPLY_PRIVATE_DATA, Qpn, RetryCount,
};

/// R-PAR-8
#[test]
fn it_is_called_on_the_new_identifier_and_not_on_the_listener() {
    let sides = sides();
    sides.active.connect(&external(1)).unwrap();
    let request = request(&sides.passive_channel);
    assert_ne!(request.id, sides.listener);
    let error = sides.listener.accept(&external(2)).unwrap_err();
    assert_eq!(error.errno(), 22, "{error}");
    request.id.accept(&external(2)).unwrap();
}

#[test]
fn the_new_identifier_is_bound_to_a_device() {
    let sides = sides();
    assert!(sides.listener.device().is_err());
    sides.active.connect(&external(1)).unwrap();
    let child = request(&sides.passive_channel).id;
    assert_eq!(child.device().unwrap(), sides.active.device().unwrap());
}

#[test]
fn it_accepts_connections_and_datagram_lookups() {
    let connections = sides();
    connections.active.connect(&external(1)).unwrap();
    let child = request(&connections.passive_channel).id;
    child.accept(&external(2)).unwrap();
    expect(&connections.active_channel, "CONNECT_RESPONSE");
    let datagrams = datagram_sides();
    datagrams.active.connect(&ConnParam::default()).unwrap();
    let child = lookup(&datagrams.passive_channel).id;
    child.accept(&external(2)).unwrap();
    expect(&datagrams.active_channel, "ESTABLISHED");
}

/// R-PAR-6
#[test]
fn parameters_of_the_event_may_be_used_before_it_is_acknowledged() {
    let sides = sides();
    sides
        .active
        .connect(&external(1).initiator_depth(2).private_data(b"echo"))
        .unwrap();
    let event = expect(&sides.passive_channel, "CONNECT_REQUEST");
    let Event::ConnectRequest {
        id,
        params: Some(params),
        private_data: Some(data),
        ..
    } = &event
    else {
        panic!("{event}")
    };
    let param = external(2)
        .responder_resources(params.responder_resources)
        .private_data(&data.as_padded()[..4]);
    id.accept(&param).unwrap();
    event.ack();
    match expect(&sides.active_channel, "CONNECT_RESPONSE") {
        Event::ConnectResponse {
            params,
            private_data,
            ..
        } => {
            assert_eq!(params.initiator_depth, 2);
            assert!(private_data.unwrap().is_padded_from(b"echo"));
        }
        other => panic!("{other}"),
    }
}

/// R-PAR-2: without values of its own an acceptance takes those of the request, as far as the device can.
#[test]
fn open_values_are_those_of_the_request_as_far_as_the_device_can() {
    let asked = ConnParam::default()
        .responder_resources(2)
        .initiator_depth(5);
    let (active, passive) = connected(&asked, &ConnParam::default());
    assert_eq!(passive.query().max_dest_rd_atomic, 5);
    assert_eq!(passive.query().max_rd_atomic, 2);
    assert_eq!(active.query().max_dest_rd_atomic, 2);
    assert_eq!(active.query().max_rd_atomic, 5);
}

/// R-PAR-1
#[test]
fn private_data_is_copied_and_passed_on_as_it_is() {
    let sides = sides();
    sides.active.connect(&external(1)).unwrap();
    let every_byte: Vec<u8> = (0..MAX_ACCEPT_PRIVATE_DATA as u8)
        .map(|i| i ^ 0x5a)
        .collect();
    let mut own = every_byte.clone();
    let param = external(2).private_data(&own[..]);
    request(&sides.passive_channel).id.accept(&param).unwrap();
    own.fill(0);
    drop(param);
    match expect(&sides.active_channel, "CONNECT_RESPONSE") {
        Event::ConnectResponse { private_data, .. } => {
            assert_eq!(private_data.unwrap().as_padded(), every_byte);
        }
        other => panic!("{other}"),
    }
}

/// R-PAR-1
#[test]
fn more_private_data_may_arrive_than_was_given() {
    let sides = sides();
    sides.active.connect(&external(1)).unwrap();
    let child = request(&sides.passive_channel).id;
    child.accept(&external(2).private_data(b"short")).unwrap();
    match expect(&sides.active_channel, "CONNECT_RESPONSE") {
        Event::ConnectResponse { private_data, .. } => {
            let data = private_data.unwrap();
            assert_eq!(data.as_padded().len(), MAX_ACCEPT_PRIVATE_DATA);
            assert!(data.is_padded_from(b"short"));
        }
        other => panic!("{other}"),
    }
}

/// R-PAR-1 and R-PAR-7
#[test]
fn private_data_is_limited_to_196_bytes_and_to_136_with_datagrams() {
    assert_eq!(
        (MAX_ACCEPT_PRIVATE_DATA, MAX_DATAGRAM_REPLY_PRIVATE_DATA),
        (196, 136)
    );
    let too_long = |child: Identifier, limit: usize| {
        let error = child
            .accept(&external(2).private_data(vec![1; limit + 1]))
            .unwrap_err();
        assert!(
            matches!(error, Error::PrivateDataTooLong { given, max, .. }
                if (given, max) == (limit + 1, limit)),
            "{error}"
        );
        child
            .accept(&external(2).private_data(vec![1; limit]))
            .unwrap();
    };
    let connections = sides();
    connections.active.connect(&external(1)).unwrap();
    too_long(request(&connections.passive_channel).id, 196);
    let datagrams = datagram_sides();
    datagrams.active.connect(&ConnParam::default()).unwrap();
    too_long(lookup(&datagrams.passive_channel).id, 136);
}

/// R-PAR-2 and R-PAR-4: what the request says bounds it too, although the page only prefers that for the first.
#[test]
fn both_resource_counts_are_at_most_those_of_the_device_and_of_the_request() {
    let sides = sides();
    sides
        .active
        .connect(&external(1).responder_resources(2).initiator_depth(3))
        .unwrap();
    let request = request(&sides.passive_channel);
    let refused = |param: ConnParam| request.id.accept(&param).unwrap_err();
    let error = refused(external(2).responder_resources(4));
    assert!(
        matches!(
            error,
            Error::MoreThanOffered {
                name: "responder_resources",
                given: 4,
                offered: 3
            }
        ),
        "{error}"
    );
    let error = refused(external(2).initiator_depth(3));
    assert!(
        matches!(
            error,
            Error::MoreThanOffered {
                name: "initiator_depth",
                given: 3,
                offered: 2
            }
        ),
        "{error}"
    );
    request
        .id
        .accept(&external(2).responder_resources(3).initiator_depth(2))
        .unwrap();
}

/// R-PAR-5
#[test]
fn flow_control_is_told_to_the_peer() {
    for offered in [false, true] {
        let sides = sides();
        sides.active.connect(&external(1)).unwrap();
        let child = request(&sides.passive_channel).id;
        child.accept(&external(2).flow_control(offered)).unwrap();
        match expect(&sides.active_channel, "CONNECT_RESPONSE") {
            Event::ConnectResponse { params, .. } => assert_eq!(params.flow_control, offered),
            other => panic!("{other}"),
        }
    }
}

/// R-PAR-5
#[test]
fn the_retry_count_is_ignored() {
    let retries = |count| RetryCount::new(count).unwrap();
    let asked = ConnParam::default().retry_count(retries(4));
    let accepted = ConnParam::default().retry_count(retries(1));
    let (active, passive) = connected(&asked, &accepted);
    assert_eq!(active.query().retry_count, retries(4));
    assert_eq!(passive.query().retry_count, retries(4));
}

/// R-PAR-5
#[test]
fn the_rnr_retry_count_bounds_the_remote_peers_retries() {
    let retries = |count| RetryCount::new(count).unwrap();
    let (active, _) = connected(
        &ConnParam::default(),
        &ConnParam::default().rnr_retry_count(retries(1)),
    );
    assert_eq!(active.query().rnr_retry, retries(1));
}

/// R-PAR-5
#[test]
fn srq_and_qp_num_are_ignored_where_the_identifier_has_a_queue_pair() {
    let sides = sides();
    sides.active.connect(&external(1)).unwrap();
    let child = request(&sides.passive_channel).id;
    let own = idle_queue_pair(&child);
    child
        .accept(&ConnParam::default().external_queue_pair(Qpn::truncate(0x01_4321), true))
        .unwrap();
    match expect(&sides.active_channel, "CONNECT_RESPONSE") {
        Event::ConnectResponse { params, .. } => {
            assert!(!params.srq);
            assert_eq!(params.qpn, own.qpn());
        }
        other => panic!("{other}"),
    }
}

/// R-PAR-5
#[test]
fn srq_and_qp_num_say_which_queue_pair_where_the_identifier_has_none() {
    let sides = sides();
    sides.active.connect(&external(1)).unwrap();
    let child = request(&sides.passive_channel).id;
    let named = Qpn::truncate(0x01_4321);
    child
        .accept(&ConnParam::default().external_queue_pair(named, true))
        .unwrap();
    match expect(&sides.active_channel, "CONNECT_RESPONSE") {
        Event::ConnectResponse { params, .. } => {
            assert!(params.srq);
            assert_eq!(params.qpn, named);
        }
        other => panic!("{other}"),
    }
}
