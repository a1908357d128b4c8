//! Commands to the host service: one round trip each, or several in one.

use crate::error::{Error, Result};
use crate::param::PeerParam;
use crate::queue_pair::Recipes;
use oarlock_hostd::Host;
use oarlock_ucm::abi::qp_state;
use oarlock_ucm::client::{self, Addresses, Answer, Call, EventParam, IdNumber};
use oarlock_ucm::proto::{Acknowledged, WriteBatch, WriteItem, WriteReply};
use oarlock_wire::{Qpn, RetryCount};
use std::net::SocketAddr;

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
pub(crate) const MULTICAST_JOIN: u32 = 12;
pub(crate) const MULTICAST_ERROR: u32 = 13;
pub(crate) const ADDR_CHANGE: u32 = 14;
pub(crate) const TIMEWAIT_EXIT: u32 = 15;
pub(crate) const USER: u32 = 18;

/// The name of an event, as `rdma_event_str(3)` prints it.
pub(crate) fn event_name(number: u32) -> &'static str {
    match number {
        ADDR_RESOLVED => "RDMA_CM_EVENT_ADDR_RESOLVED",
        ADDR_ERROR => "RDMA_CM_EVENT_ADDR_ERROR",
        ROUTE_RESOLVED => "RDMA_CM_EVENT_ROUTE_RESOLVED",
        ROUTE_ERROR => "RDMA_CM_EVENT_ROUTE_ERROR",
        CONNECT_REQUEST => "RDMA_CM_EVENT_CONNECT_REQUEST",
        CONNECT_RESPONSE => "RDMA_CM_EVENT_CONNECT_RESPONSE",
        CONNECT_ERROR => "RDMA_CM_EVENT_CONNECT_ERROR",
        UNREACHABLE => "RDMA_CM_EVENT_UNREACHABLE",
        REJECTED => "RDMA_CM_EVENT_REJECTED",
        ESTABLISHED => "RDMA_CM_EVENT_ESTABLISHED",
        DISCONNECTED => "RDMA_CM_EVENT_DISCONNECTED",
        DEVICE_REMOVAL => "RDMA_CM_EVENT_DEVICE_REMOVAL",
        MULTICAST_JOIN => "RDMA_CM_EVENT_MULTICAST_JOIN",
        MULTICAST_ERROR => "RDMA_CM_EVENT_MULTICAST_ERROR",
        ADDR_CHANGE => "RDMA_CM_EVENT_ADDR_CHANGE",
        TIMEWAIT_EXIT => "RDMA_CM_EVENT_TIMEWAIT_EXIT",
        USER => "RDMA_CM_EVENT_USER",
        _ => "UNKNOWN EVENT",
    }
}

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
    let batch = WriteBatch {
        stop_on_error: true,
        items: commands
            .into_iter()
            .map(|command| command.into_item(channel))
            .collect(),
        ..WriteBatch::default()
    };
    let replies = host
        .call_batch(batch)
        .map_err(|source| host_error(call, source))?;
    let answers: Vec<A> = replies
        .into_iter()
        .map(|reply| answer(call, reply))
        .collect::<Result<_>>()?;
    <[A; N]>::try_from(answers).map_err(|answers| Error::Answer {
        call,
        got: answers.len(),
    })
}

/// Sends a command, and others after it in the same message. Whatever becomes of the others is no failure.
pub(crate) fn ask_and_try<A: Answer, B: Answer>(
    host: &Host,
    call: &'static str,
    channel: u64,
    command: Call<A>,
    others: impl IntoIterator<Item = Call<B>>,
) -> Result<(A, Vec<Result<B>>)> {
    let mut items = vec![command.into_item(channel)];
    items.extend(others.into_iter().map(|other| other.into_item(channel)));
    let batch = WriteBatch {
        items,
        ..WriteBatch::default()
    };
    let replies = host
        .call_batch(batch)
        .map_err(|source| host_error(call, source))?;
    let mut replies = replies.into_iter();
    let first = replies.next().ok_or(Error::Answer { call, got: 0 })?;
    Ok((
        answer(call, first)?,
        replies.map(|reply| answer(call, reply)).collect(),
    ))
}

fn answer<A: Answer>(call: &'static str, reply: WriteReply) -> Result<A> {
    if reply.errno != 0 {
        return Err(Error::Refused {
            call,
            errno: reply.errno,
            sentence: reply.sentence,
        });
    }
    A::decode(&reply.response).map_err(|_| Error::Answer {
        call,
        got: reply.response.len(),
    })
}

/// An event, and what the identifier's device and queue pair need next, as far as the event made it known.
pub(crate) struct Fetched {
    pub(crate) event: RawEvent,
    /// The other side of the identifier that the event names by number.
    pub(crate) remote: Option<SocketAddr>,
    pub(crate) recipes: Recipes,
}

/// Takes the next event of a channel; tells the service what was acknowledged.
pub(crate) fn get_event(
    host: &Host,
    channel: u64,
    acknowledged: Vec<Acknowledged>,
) -> Result<Option<Fetched>> {
    const CALL: &str = "get_event";
    // Whose identifier the event is about is not known before: the service puts its number in.
    let anybody = IdNumber(0);
    let about = |command: WriteItem| WriteItem {
        id_from: Some(0),
        ..command
    };
    let recipe = |state| about(client::init_qp_attr(anybody, state).into_item(channel));
    let batch = WriteBatch {
        stop_on_error: true,
        items: vec![
            client::get_event().into_item(channel),
            about(client::query_addr(anybody).into_item(channel)),
            recipe(qp_state::INIT),
            recipe(qp_state::RTR),
            recipe(qp_state::RTS),
        ],
        acknowledged,
    };
    let mut replies = host
        .call_batch(batch)
        .map_err(|source| host_error(CALL, source))?
        .into_iter();
    let event = match replies.next() {
        None => return Err(Error::Answer { call: CALL, got: 0 }),
        Some(reply) if reply.errno == libc::EAGAIN => return Ok(None),
        Some(reply) => answer(CALL, reply)?,
    };
    let addresses: Option<Addresses> = replies.next().and_then(known);
    Ok(Some(Fetched {
        event,
        remote: addresses.as_ref().and_then(|addresses| addresses.remote),
        recipes: Recipes {
            local: addresses
                .as_ref()
                .and_then(|addresses| Some(addresses.local?.ip())),
            device: addresses.and_then(|addresses| Some(addresses.device?.index)),
            init: replies.next().and_then(known),
            rtr: replies.next().and_then(known),
            rts: replies.next().and_then(known),
        },
    }))
}

fn known<A: Answer>(reply: WriteReply) -> Option<A> {
    (reply.errno == 0).then(|| A::decode(&reply.response).ok())?
}

/// Tells the service what was acknowledged, which it only shows.
pub(crate) fn tell_acknowledged(host: &Host, acknowledged: Vec<Acknowledged>) {
    host.post_batch(WriteBatch {
        acknowledged,
        ..WriteBatch::default()
    });
}

/// Sends a command without waiting for its answer.
pub(crate) fn post<A: Answer>(host: &Host, channel: u64, command: Call<A>) {
    host.post(command.into_item(channel));
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
        retry_count: RetryCount::truncate(param.retry_count),
        rnr_retry_count: RetryCount::truncate(param.rnr_retry_count),
        srq: param.srq,
        qpn: Qpn::truncate(param.qp_num),
    }
}
