use std::ffi::{CStr, c_char};

use crate::abi::{IBV_RATE_MAX, ibv_rate};
use crate::verbs::names::*;

fn text(name: *const c_char) -> &'static str {
    // SAFETY: names are texts that are there for ever.
    unsafe { CStr::from_ptr(name) }.to_str().expect("ASCII")
}

#[test]
fn what_has_no_name_is_unknown() {
    assert_eq!(text(ibv_node_type_str(1)), "InfiniBand channel adapter");
    assert_eq!(text(ibv_node_type_str(7)), "unspecified");
    for node_type in [-1, 0, 8, i32::MIN, i32::MAX] {
        assert_eq!(text(ibv_node_type_str(node_type)), "unknown", "{node_type}");
    }
    assert_eq!(text(ibv_port_state_str(4)), "active");
    assert_eq!(text(ibv_port_state_str(6)), "unknown");
    assert_eq!(text(ibv_event_type_str(18)), "GID table change");
    assert_eq!(text(ibv_event_type_str(20)), "unknown");
    assert_eq!(text(ibv_wc_status_str(5)), "Work Request Flushed Error");
    assert_eq!(
        text(ibv_wc_status_str(12)),
        "transport retry counter exceeded"
    );
    assert_eq!(text(ibv_wc_status_str(24)), "unknown");
    assert_eq!(text(ibv_wr_opcode_str(8)), "bind-mw");
    assert_eq!(
        text(ibv_wr_opcode_str(12)),
        "unknown",
        "a number that was left out"
    );
    assert_eq!(text(ibv_wr_opcode_str(15)), "atomic-write");
}

#[test]
fn rates_are_converted_there_and_back() {
    let mut with_multiple = 0;
    for rate in 1..=24 as ibv_rate {
        let mbps = ibv_rate_to_mbps(rate);
        if mbps < 0 {
            assert_eq!(rate, 1, "every other number is a rate");
            continue;
        }
        assert_eq!(mbps_to_ibv_rate(mbps), rate);
        let mult = ibv_rate_to_mult(rate);
        if mult > 0 {
            with_multiple += 1;
            assert_eq!(mult_to_ibv_rate(mult), rate);
            // Of lanes of 26.6 Gb/s and more the multiple is that of the nominal rate.
            let nominal = mult * 2_500;
            assert!(
                mbps >= nominal && mbps <= nominal + nominal / 10,
                "{mbps} {mult}"
            );
        }
    }
    assert_eq!(with_multiple, 15);
    assert_eq!(ibv_rate_to_mbps(IBV_RATE_MAX), -1);
    assert_eq!(ibv_rate_to_mult(25), -1);
    assert_eq!(mbps_to_ibv_rate(2_501), IBV_RATE_MAX);
    assert_eq!(mult_to_ibv_rate(-1), IBV_RATE_MAX);
}
