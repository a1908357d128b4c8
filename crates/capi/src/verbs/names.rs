//! Names of numbers, and rates.
//!
//! Both are a contract with programs that print them or compare; the names are those of rdma-core's manual pages and tools.

use std::ffi::{CStr, c_char, c_int};

use crate::abi::{
    IBV_RATE_2_5_GBPS, IBV_RATE_5_GBPS, IBV_RATE_10_GBPS, IBV_RATE_14_GBPS, IBV_RATE_20_GBPS,
    IBV_RATE_25_GBPS, IBV_RATE_28_GBPS, IBV_RATE_30_GBPS, IBV_RATE_40_GBPS, IBV_RATE_50_GBPS,
    IBV_RATE_56_GBPS, IBV_RATE_60_GBPS, IBV_RATE_80_GBPS, IBV_RATE_100_GBPS, IBV_RATE_112_GBPS,
    IBV_RATE_120_GBPS, IBV_RATE_168_GBPS, IBV_RATE_200_GBPS, IBV_RATE_300_GBPS, IBV_RATE_400_GBPS,
    IBV_RATE_600_GBPS, IBV_RATE_800_GBPS, IBV_RATE_1200_GBPS, IBV_RATE_MAX, ibv_event_type,
    ibv_node_type, ibv_port_state, ibv_rate, ibv_wc_status, ibv_wr_opcode,
};

/// `ibv_node_type_str`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_node_type_str(node_type: ibv_node_type) -> *const c_char {
    // Types begin with 1.
    name(NODE_TYPES, node_type.checked_sub(1))
}

/// `ibv_port_state_str`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_port_state_str(port_state: ibv_port_state) -> *const c_char {
    name(PORT_STATES, Some(port_state))
}

/// `ibv_event_type_str`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_event_type_str(event: ibv_event_type) -> *const c_char {
    name(EVENT_TYPES, Some(event))
}

/// `ibv_wc_status_str`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_wc_status_str(status: ibv_wc_status) -> *const c_char {
    name(WC_STATUSES, Some(status))
}

/// `ibv_wr_opcode_str`, which only tools and drivers of rdma-core call.
pub(crate) extern "C" fn ibv_wr_opcode_str(opcode: ibv_wr_opcode) -> *const c_char {
    name(WR_OPCODES, Some(opcode))
}

fn name(names: &'static [&'static CStr], number: Option<impl TryInto<usize>>) -> *const c_char {
    let index = number.and_then(|number| number.try_into().ok());
    let known = index.and_then(|index| names.get(index));
    known
        .copied()
        .filter(|name| !name.is_empty())
        .unwrap_or(c"unknown")
        .as_ptr()
}

/// `ibv_rate_to_mult`: multiples of 2.5 Gb/s; -1 for a rate that has no such.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_rate_to_mult(rate: ibv_rate) -> c_int {
    RATES
        .iter()
        .find(|known| known.rate == rate)
        .and_then(|known| known.mult)
        .unwrap_or(-1)
}

/// `mult_to_ibv_rate`: `IBV_RATE_MAX` for none.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn mult_to_ibv_rate(mult: c_int) -> ibv_rate {
    RATES
        .iter()
        .find(|known| known.mult == Some(mult))
        .map_or(IBV_RATE_MAX, |known| known.rate)
}

/// `ibv_rate_to_mbps`: Mb/s; -1 for what is no rate.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_rate_to_mbps(rate: ibv_rate) -> c_int {
    RATES
        .iter()
        .find(|known| known.rate == rate)
        .map_or(-1, |known| known.mbps)
}

/// `mbps_to_ibv_rate`: `IBV_RATE_MAX` for none.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn mbps_to_ibv_rate(mbps: c_int) -> ibv_rate {
    RATES
        .iter()
        .find(|known| known.mbps == mbps)
        .map_or(IBV_RATE_MAX, |known| known.rate)
}

/// A rate of `enum ibv_rate`.
struct Rate {
    rate: ibv_rate,
    /// What the signalling carries of it, in Mb/s.
    mbps: c_int,
    /// Multiple of 2.5 Gb/s, for those that have one.
    mult: Option<c_int>,
}

const fn rate(rate: ibv_rate, mbps: c_int, mult: c_int) -> Rate {
    let mult = if mult == 0 { None } else { Some(mult) };
    Rate { rate, mbps, mult }
}

/// The rates in the order of their speed. Those of lanes of 14 and 25 Gb/s have no multiple.
const RATES: [Rate; 23] = [
    rate(IBV_RATE_2_5_GBPS, 2_500, 1),
    rate(IBV_RATE_5_GBPS, 5_000, 2),
    rate(IBV_RATE_10_GBPS, 10_000, 4),
    rate(IBV_RATE_14_GBPS, 14_062, 0),
    rate(IBV_RATE_20_GBPS, 20_000, 8),
    rate(IBV_RATE_25_GBPS, 25_781, 0),
    rate(IBV_RATE_28_GBPS, 28_125, 11),
    rate(IBV_RATE_30_GBPS, 30_000, 12),
    rate(IBV_RATE_40_GBPS, 40_000, 16),
    rate(IBV_RATE_50_GBPS, 53_125, 20),
    rate(IBV_RATE_56_GBPS, 56_250, 0),
    rate(IBV_RATE_60_GBPS, 60_000, 24),
    rate(IBV_RATE_80_GBPS, 80_000, 32),
    rate(IBV_RATE_100_GBPS, 103_125, 0),
    rate(IBV_RATE_112_GBPS, 112_500, 0),
    rate(IBV_RATE_120_GBPS, 120_000, 48),
    rate(IBV_RATE_168_GBPS, 168_750, 0),
    rate(IBV_RATE_200_GBPS, 206_250, 0),
    rate(IBV_RATE_300_GBPS, 309_375, 0),
    rate(IBV_RATE_400_GBPS, 425_000, 160),
    rate(IBV_RATE_600_GBPS, 637_500, 240),
    rate(IBV_RATE_800_GBPS, 850_000, 320),
    rate(IBV_RATE_1200_GBPS, 1_275_000, 480),
];

/// From 1 on.
const NODE_TYPES: &[&CStr] = &[
    c"InfiniBand channel adapter",
    c"InfiniBand switch",
    c"InfiniBand router",
    c"iWARP NIC",
    c"usNIC",
    c"usNIC UDP",
    c"unspecified",
];

const PORT_STATES: &[&CStr] = &[
    c"no state change (NOP)",
    c"down",
    c"init",
    c"armed",
    c"active",
    c"active defer",
];

const EVENT_TYPES: &[&CStr] = &[
    c"CQ error",
    c"local work queue catastrophic error",
    c"invalid request local work queue error",
    c"local access violation work queue error",
    c"communication established",
    c"send queue drained",
    c"path migrated",
    c"path migration request error",
    c"local catastrophic error",
    c"port active",
    c"port error",
    c"LID change",
    c"P_Key change",
    c"SM change",
    c"SRQ catastrophic error",
    c"SRQ limit reached",
    c"last WQE reached",
    c"client reregistration",
    c"GID table change",
    c"WQ fatal",
];

const WC_STATUSES: &[&CStr] = &[
    c"success",
    c"local length error",
    c"local QP operation error",
    c"local EE context operation error",
    c"local protection error",
    c"Work Request Flushed Error",
    c"memory management operation error",
    c"bad response error",
    c"local access error",
    c"remote invalid request error",
    c"remote access error",
    c"remote operation error",
    c"transport retry counter exceeded",
    c"RNR retry counter exceeded",
    c"local RDD violation error",
    c"remote invalid RD request",
    c"aborted error",
    c"invalid EE context number",
    c"invalid EE context state",
    c"fatal error",
    c"response timeout error",
    c"general error",
    c"TM error",
    c"TM software rendezvous",
];

/// Empty where there is no such number.
const WR_OPCODES: &[&CStr] = &[
    c"rdma-write",
    c"rdma-write-with-imm",
    c"send",
    c"send-with-imm",
    c"rdma-read",
    c"atomic-cmp-and-swp",
    c"atomic-fetch-and-add",
    c"local-inv",
    c"bind-mw",
    c"send-with-inv",
    c"tso",
    c"driver1",
    c"",
    c"",
    c"flush",
    c"atomic-write",
];
