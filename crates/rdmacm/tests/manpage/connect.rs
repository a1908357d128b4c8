//! rdma_connect(3).

use super::*;
use oarlock_rdmacm::{
    Error, MAX_CONNECT_PRIVATE_DATA, MAX_DATAGRAM_CONNECT_PRIVATE_DATA, Qpn, RetryCount, RnrTimer,
};

fn retries(count: u8) -> RetryCount {
    RetryCount::new(count).unwrap()
}

/// R-PAR-7
#[test]
fn with_datagrams_it_looks_up_the_remote_queue_pair() {
    let sides = datagram_sides();
    sides.active.connect(&ConnParam::default()).unwrap();
    let lookup = lookup(&sides.passive_channel);
    let queue_pair = datagram_queue_pair(&lookup.id);
    lookup.id.accept(&ConnParam::default()).unwrap();
    match expect(&sides.active_channel, "ESTABLISHED") {
        Event::Established { ud: Some(ud), .. } => assert_eq!(ud.qpn, queue_pair.qpn()),
        other => panic!("{other}"),
    }
}

#[test]
fn the_route_must_be_resolved_before() {
    let sides = sides();
    let early = Identifier::new(&sides.active_channel, PortSpace::TCP).unwrap();
    early.resolve_addr(None, sides.address, LONG).unwrap();
    expect(&sides.active_channel, "ADDR_RESOLVED");
    let error = early.connect(&external(1)).unwrap_err();
    assert_eq!(error.errno(), 22);
    assert!(error.to_string().contains("ADDR_RESOLVED"), "{error}");
}

/// R-PAR-1
#[test]
fn private_data_is_copied_and_passed_on_as_it_is() {
    let sides = sides();
    let every_byte: Vec<u8> = (0..MAX_CONNECT_PRIVATE_DATA as u8)
        .map(|i| i ^ 0xa5)
        .collect();
    let mut own = every_byte.clone();
    let param = external(1).private_data(&own[..]);
    sides.active.connect(&param).unwrap();
    // Both may change now.
    own.fill(0);
    drop(param);
    let data = request(&sides.passive_channel).private_data.unwrap();
    assert_eq!(data.as_padded(), every_byte);
}

/// R-PAR-1: the request has the field, so it is there, and all zeros.
#[test]
fn private_data_may_be_left_out() {
    let sides = sides();
    sides.active.connect(&external(1)).unwrap();
    let data = request(&sides.passive_channel).private_data.unwrap();
    assert!(data.is_padded_from(b""));
}

/// R-PAR-1
#[test]
fn more_private_data_may_arrive_than_was_given() {
    let sides = sides();
    sides
        .active
        .connect(&external(1).private_data(b"short"))
        .unwrap();
    let data = request(&sides.passive_channel).private_data.unwrap();
    assert_eq!(data.as_padded().len(), MAX_CONNECT_PRIVATE_DATA);
    assert!(data.is_padded_from(b"short"));
}

/// R-PAR-1 and R-PAR-7
#[test]
fn private_data_is_limited_to_56_bytes_and_to_180_with_datagrams() {
    assert_eq!(
        (MAX_CONNECT_PRIVATE_DATA, MAX_DATAGRAM_CONNECT_PRIVATE_DATA),
        (56, 180)
    );
    for (sides, limit) in [(sides(), 56), (datagram_sides(), 180)] {
        let error = sides
            .active
            .connect(&external(1).private_data(vec![1; limit + 1]))
            .unwrap_err();
        assert!(
            matches!(error, Error::PrivateDataTooLong { given, max, .. }
                if (given, max) == (limit + 1, limit)),
            "{error}"
        );
        sides
            .active
            .connect(&external(1).private_data(vec![1; limit]))
            .unwrap();
    }
}

/// R-PAR-2 and R-PAR-4
#[test]
fn responder_resources_are_at_most_what_the_local_device_answers() {
    let sides = sides();
    let max = sides
        .active
        .device()
        .unwrap()
        .device()
        .limits
        .max_qp_rd_atom;
    let error = sides
        .active
        .connect(&external(1).responder_resources(max + 1))
        .unwrap_err();
    assert!(
        matches!(error, Error::MoreThanDevice { name: "responder_resources", given, max: said, .. }
            if (given, said) == (max + 1, max)),
        "{error}"
    );
    sides
        .active
        .connect(&external(1).responder_resources(max))
        .unwrap();
    assert_eq!(request(&sides.passive_channel).params.initiator_depth, max);
}

/// R-PAR-2 and R-PAR-4
#[test]
fn initiator_depth_is_at_most_what_the_local_device_issues() {
    let sides = sides();
    let limits = sides.active.device().unwrap().device().limits;
    let max = limits.max_qp_init_rd_atom;
    let error = sides
        .active
        .connect(&external(1).initiator_depth(max + 1))
        .unwrap_err();
    assert!(
        matches!(error, Error::MoreThanDevice { name: "initiator_depth", given, max: said, .. }
            if (given, said) == (max + 1, max)),
        "{error}"
    );
    sides
        .active
        .connect(&external(1).initiator_depth(max))
        .unwrap();
    let offered = request(&sides.passive_channel).params;
    assert_eq!(offered.responder_resources, max);
}

/// R-PAR-2
#[test]
fn the_remote_side_may_lower_both_when_it_accepts() {
    let asked = ConnParam::default()
        .responder_resources(6)
        .initiator_depth(4);
    let accepted = ConnParam::default()
        .responder_resources(3)
        .initiator_depth(5);
    let (active, passive) = connected(&asked, &accepted);
    assert_eq!(active.query().max_rd_atomic, 3);
    assert_eq!(active.query().max_dest_rd_atomic, 5);
    assert_eq!(passive.query().max_dest_rd_atomic, 3);
    assert_eq!(passive.query().max_rd_atomic, 5);
}

/// R-PAR-5
#[test]
fn flow_control_is_told_to_the_peer_and_configures_no_queue_pair() {
    let mut seen = Vec::new();
    for offered in [false, true] {
        let sides = sides();
        let queue_pair = idle_queue_pair(&sides.active);
        let param = ConnParam::default().flow_control(offered);
        sides.active.connect(&param).unwrap();
        let request = request(&sides.passive_channel);
        assert_eq!(request.params.flow_control, offered);
        idle_queue_pair(&request.id);
        request.id.accept(&ConnParam::default()).unwrap();
        expect(&sides.active_channel, "ESTABLISHED");
        let attr = queue_pair.query();
        seen.push((attr.state, attr.retry_count, attr.rnr_retry, attr.timeout));
    }
    assert_eq!(seen[0], seen[1]);
}

/// R-PAR-5
#[test]
fn the_retry_count_bounds_the_retries_on_the_connection() {
    let asked = ConnParam::default().retry_count(retries(3));
    let (active, passive) = connected(&asked, &ConnParam::default());
    assert_eq!(active.query().retry_count, retries(3));
    assert_eq!(passive.query().retry_count, retries(3));
}

/// R-PAR-5
#[test]
fn the_rnr_retry_count_bounds_the_remote_peers_retries() {
    let asked = ConnParam::default().rnr_retry_count(retries(2));
    let (active, passive) = connected(&asked, &ConnParam::default().rnr_retry_count(retries(6)));
    assert_eq!(passive.query().rnr_retry, retries(2));
    assert_eq!(active.query().rnr_retry, retries(6));
}

/// Both are 3-bit values: the type holds no other.
#[test]
fn retry_counts_have_three_bits() {
    assert_eq!(RetryCount::new(8), None);
    assert_eq!(RetryCount::new(7).map(RetryCount::get), Some(7));
}

/// R-PAR-5
#[test]
fn srq_and_qp_num_say_which_queue_pair_where_the_identifier_has_none() {
    let sides = sides();
    let named = Qpn::truncate(0x01_4321);
    sides
        .active
        .connect(&ConnParam::default().external_queue_pair(named, true))
        .unwrap();
    let params = request(&sides.passive_channel).params;
    assert!(params.srq);
    assert_eq!(params.qpn, named);
}

/// R-PAR-5
#[test]
fn srq_and_qp_num_are_ignored_where_the_identifier_has_a_queue_pair() {
    let sides = sides();
    let own = idle_queue_pair(&sides.active);
    sides
        .active
        .connect(&ConnParam::default().external_queue_pair(Qpn::truncate(0x01_4321), true))
        .unwrap();
    let params = request(&sides.passive_channel).params;
    assert!(!params.srq);
    assert_eq!(params.qpn, own.qpn());
}

/// The page says timer 0, which is 655 ms; public fault 36 asks for a sane one, and here it is 0.64 ms unless set
/// otherwise.
#[test]
fn the_minimal_rnr_timer_is_not_655_ms() {
    let (active, passive) = connected(&ConnParam::default(), &ConnParam::default());
    assert_eq!(active.query().min_rnr_timer, RnrTimer::US_640.get());
    assert_eq!(passive.query().min_rnr_timer, RnrTimer::US_640.get());
}

/// Packet life time 16 and a local delay of 15 give 17 (IBA Vol. 1 ch. 12; 0.54 s), and the option overrides it.
#[test]
fn the_acknowledgement_timeout_follows_from_the_path() {
    let (active, _) = connected(&ConnParam::default(), &ConnParam::default());
    assert_eq!(active.query().timeout.get(), 17);
    let sides = sides();
    let queue_pair = idle_queue_pair(&sides.active);
    let timeout = oarlock_rdmacm::IbTimeout::new(12).unwrap();
    sides.active.set_ack_timeout(timeout).unwrap();
    sides.active.connect(&ConnParam::default()).unwrap();
    let request = request(&sides.passive_channel);
    idle_queue_pair(&request.id);
    request.id.accept(&ConnParam::default()).unwrap();
    expect(&sides.active_channel, "ESTABLISHED");
    assert_eq!(queue_pair.query().timeout.get(), 12);
}
