//! Commands to the host service: one round trip each, or several in one.

use crate::error::{Error, Result};
use crate::param::PeerParam;
use oarlock_hostd::Host;
use oarlock_ucm::client::{self, Answer, Call, EventParam};
use oarlock_wire::Qpn;

pub(crate) use oarlock_ucm::client::Event as RawEvent;

/// Event numbers (Linux `include/uapi/rdma/rdma_user_cm.h`, the order of `enum rdma_cm_event_type`).
pub(crate) const ADDR_RESOLVED: u32 = 0;
pub(crate) const ADDR_ERROR: u32 = 1;
pub(crate) const ROUTE_RESOLVED: u32 = 2;
pub(crate) const ROUTE_ERROR: u32 = 3;
pub(crate) const CONNECT_REQUEST: u32 = 4;
pub(crate) const CONNECT_RESPONSE: u32 = 5;
pub(crate) const CONNECT_ERROR: u32 = 6;
pub(crate) const UNREACHABLE: u32 = 7;
pub(crate) const REJECTED: u32 = 8;
pub(crate) const ESTABLISHED: u32 = 9;
pub(crate) const DISCONNECTED: u32 = 10;
pub(crate) const DEVICE_REMOVAL: u32 = 11;
pub(crate) const ADDR_CHANGE: u32 = 14;
pub(crate) const TIMEWAIT_EXIT: u32 = 15;

/// Sends one command on the channel and reads its answer.
pub(crate) fn ask<A: Answer>(
    host: &Host,
    call: &'static str,
    channel: u64,
    command: Call<A>,
) -> Result<A> {
    let [answer] = ask_all(host, call, channel, [command])?;
    Ok(answer)
}

/// Sends commands of one kind in one message; the first failure is the result.
pub(crate) fn ask_all<A: Answer, const N: usize>(
    host: &Host,
    call: &'static str,
    channel: u64,
    commands: [Call<A>; N],
) -> Result<[A; N]> {
    todo!("{}", N)
}

/// Takes the next event of a channel.
pub(crate) fn get_event(host: &Host, channel: u64) -> Result<Option<RawEvent>> {
    match ask(host, "get_event", channel, client::get_event()) {
        Ok(event) => Ok(Some(event)),
        Err(Error::Refused { errno, .. }) if errno == libc::EAGAIN => Ok(None),
        Err(error) => Err(error),
    }
}

/// Sends a command without waiting for its answer.
pub(crate) fn post<A: Answer>(host: &Host, channel: u64, command: Call<A>) {
    let (request, inline) = command.into_parts();
    todo!("{:?} {:?} {channel} {}", request, inline, host.is_gone())
}

pub(crate) fn host_error(call: &'static str, source: oarlock_hostd::Error) -> Error {
    if source.is_gone() {
        Error::ServiceGone
    } else {
        Error::Host { call, source }
    }
}

pub(crate) fn peer_param(param: &EventParam) -> PeerParam {
    PeerParam {
        responder_resources: param.responder_resources,
        initiator_depth: param.initiator_depth,
        flow_control: param.flow_control,
        retry_count: param.retry_count,
        rnr_retry_count: param.rnr_retry_count,
        srq: param.srq,
        qpn: Qpn::truncate(param.qp_num),
    }
}
